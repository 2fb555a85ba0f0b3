/* Walks the plan: all threads run through the same operators, and go on when an operator's work is done. */
#include "plan.h"

#include <stdlib.h>
#include <time.h>

/* Sizes that native/library.py checks against the mirrors of structs.py before the first call. */
AIE_EXPORT void aie_struct_sizes(int64_t sizes[4]) {
    sizes[0] = sizeof(PackedMatrix), sizes[1] = sizeof(Op), sizes[2] = sizeof(Step), sizes[3] = sizeof(PlanSpec);
}

AIE_EXPORT const char *aie_isa(void) { return AIE_ISA; }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void run_op(Context *c, const Op *op) {
    switch (op->kind) {
    case OP_EMBED: run_embed(c, op); break;
    case OP_RMS_NORM:
    case OP_LAYER_NORM:
    case OP_L2_NORM: run_norm(c, op); break;
    case OP_LINEAR: run_linear(c, op); break;
    case OP_SWIGLU: run_swiglu(c, op); break;
    case OP_ROPE: run_rope(c, op); break;
    case OP_ATTENTION:
        run_store_keys(c, op);
        pool_wait(c->plan->pool, &c->ticket); /* every key of the step is in the cache before anybody attends */
        run_attend(c, op);
        break;
    case OP_ENCODER_ATTENTION:
        run_transpose_keys(c, op);
        pool_wait(c->plan->pool, &c->ticket);
        run_encoder_attend(c, op);
        break;
    case OP_POOL_TOKENS: run_pool_tokens(c, op); break;
    case OP_SELECT_ROWS: run_select_rows(c, op); break;
    default: run_elementwise(c, op); break;
    }
}

static void walk(void *raw, int thread) {
    Plan *plan = raw;
    Context c = {plan, plan->step, thread, plan->scratch[thread], pool_ticket(plan->pool)};
    int timed = plan->spec.profile && thread == 0;
    int64_t start = timed ? now_ns() : 0;
    for (int i = 0; i < plan->spec.num_ops; i++) {
        const Op *op = &plan->spec.ops[i];
        run_op(&c, op);
        pool_wait(plan->pool, &c.ticket);
        if (timed) {
            int64_t end = now_ns();
            plan->kind_ns[op->kind] += end - start;
            plan->kind_calls[op->kind]++;
            start = end;
        }
    }
}

AIE_EXPORT void aie_plan_run(Plan *plan, const Step *step) {
    plan->step = step;
    pool_run(plan->pool, walk, plan);
}

AIE_EXPORT void aie_plan_profile(const Plan *plan, int64_t *ns, int64_t *calls) {
    memcpy(ns, plan->kind_ns, sizeof(int64_t) * NUM_KINDS);
    memcpy(calls, plan->kind_calls, sizeof(int64_t) * NUM_KINDS);
}

AIE_EXPORT void aie_plan_free(Plan *plan) {
    if (plan->pool) pool_destroy(plan->pool);
    for (int i = 0; plan->scratch && i < plan->spec.num_threads; i++) free(plan->scratch[i]);
    free(plan->scratch);
    free(plan->kind_ns);
    free(plan->kind_calls);
    free((void *)plan->spec.ops);
    free(plan);
}

static size_t thread_scratch_bytes(const PlanSpec *spec) {
    size_t linear = linear_scratch_floats(spec->max_tokens), other = (size_t)spec->scratch_floats;
    size_t attend = attention_scratch_floats(spec->max_group, spec->max_head_dim), most = linear > attend ? linear : attend;
    return sizeof(float) * (most > other ? most : other);
}

/* What the threads of such a plan hold together, for whoever keeps the books of memory. */
AIE_EXPORT int64_t aie_plan_scratch_bytes(const PlanSpec *spec) {
    return (int64_t)thread_scratch_bytes(spec) * spec->num_threads;
}

/* Copies the operators; what they point to stays the caller's. NULL when memory or threads are refused. */
AIE_EXPORT Plan *aie_plan_create(const PlanSpec *spec) {
    Plan *plan = calloc(1, sizeof *plan);
    if (!plan) return NULL;
    plan->spec = *spec;
    size_t ops_bytes = sizeof(Op) * (size_t)spec->num_ops;
    Op *ops = malloc(ops_bytes);
    plan->spec.ops = ops;
    plan->scratch = calloc((size_t)spec->num_threads, sizeof(float *));
    plan->kind_ns = calloc(NUM_KINDS, sizeof(int64_t));
    plan->kind_calls = calloc(NUM_KINDS, sizeof(int64_t));
    int ok = ops && plan->scratch && plan->kind_ns && plan->kind_calls;
    if (ops) memcpy(ops, spec->ops, ops_bytes);
    size_t bytes = thread_scratch_bytes(spec);
    for (int i = 0; ok && i < spec->num_threads; i++) {
        void *area = NULL;
        ok = posix_memalign(&area, 64, bytes) == 0;
        if (ok) plan->scratch[i] = area;
    }
    if (ok) plan->pool = pool_create(spec->num_threads);
    if (plan->pool) return plan;
    aie_plan_free(plan);
    return NULL;
}
