/* Walks the plan: all threads run through the same operators, and go on when an operator's work is done. */
#include "dense.h"

#include <stdlib.h>
#include <time.h>

/* Sizes that native/library.py checks against the mirrors of structs.py before the first call. */
AIE_EXPORT void aie_struct_sizes(int64_t sizes[7]) {
    sizes[0] = sizeof(PackedMatrix), sizes[1] = sizeof(Op), sizes[2] = sizeof(Step), sizes[3] = sizeof(PlanSpec);
    sizes[4] = sizeof(Window), sizes[5] = sizeof(Walk), sizes[6] = sizeof(Strip);
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
    case OP_ATTENTION: run_attention(c, op); break;
    case OP_ENCODER_ATTENTION: run_encoder_attention(c, op); break;
    case OP_POOL_TOKENS: run_pool_tokens(c, op); break;
    case OP_SELECT_ROWS: run_select_rows(c, op); break;
    case OP_CONV: run_conv(c, op); break;
    case OP_MAX_POOL:
    case OP_AVG_POOL: run_window(c, op); break;
    case OP_CHANNELS: run_channels(c, op); break;
    case OP_GROUP_NORM: run_group_norm(c, op); break;
    case OP_COPY: run_copy(c, op); break;
    case OP_REDUCE: run_reduce(c, op); break;
    case OP_SOFTMAX:
    case OP_LOG_SOFTMAX: run_softmax(c, op); break;
    case OP_TOP_K: run_top_k(c, op); break;
    case OP_ARGMAX: run_argmax(c, op); break;
    default: run_elementwise(c, op); break;
    }
}

static void walk(void *raw, int thread) {
    Plan *plan = raw;
    Context c = {plan, plan->step, thread, plan->scratch[thread], pool_ticket(plan->pool)};
    int timed = plan->spec.profile && thread == 0;
    int64_t start = timed ? now_ns() : 0;
    if (timed) plan->last_start_ns = start;
    for (int i = 0; i < plan->spec.num_ops; i++) {
        const Op *op = &plan->spec.ops[i];
        run_op(&c, op);
        pool_wait(plan->pool, &c.ticket);
        if (timed) {
            int64_t end = now_ns();
            plan->op_ns[i] += end - start;
            plan->last_end_ns[i] = end;
            start = end;
        }
    }
}

AIE_EXPORT void aie_plan_run(Plan *plan, const Step *step) {
    plan->step = step;
    pool_run(plan->pool, walk, plan);
}

/* Of each operator the time in all runs, and when it ended in the last one; returns when that run began. */
AIE_EXPORT int64_t aie_plan_profile(const Plan *plan, int64_t *ns, int64_t *last_end_ns) {
    memcpy(ns, plan->op_ns, sizeof(int64_t) * (size_t)plan->spec.num_ops);
    memcpy(last_end_ns, plan->last_end_ns, sizeof(int64_t) * (size_t)plan->spec.num_ops);
    return plan->last_start_ns;
}

AIE_EXPORT void aie_plan_free(Plan *plan) {
    if (plan->pool) pool_destroy(plan->pool);
    for (int i = 0; plan->scratch && i < plan->spec.num_threads; i++) free(plan->scratch[i]);
    free(plan->scratch);
    free(plan->packed_rows);
    free(plan->op_ns);
    free(plan->last_end_ns);
    free((void *)plan->spec.ops);
    free(plan);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t thread_scratch_bytes(const PlanSpec *spec) {
    size_t floats = larger(linear_scratch_floats(), attention_scratch_floats(spec->max_group, spec->max_head_dim));
    for (const Op *op = spec->ops; op < spec->ops + spec->num_ops; op++)
        if (op->kind == OP_CONV) floats = larger(floats, conv_scratch_floats(op));
        else if (op->kind >= OP_SOFTMAX && op->kind <= OP_TOP_K) floats = larger(floats, strip_scratch_floats(op));
    return sizeof(float) * floats;
}

/* What all threads share: rows packed for a product, and what is fetched ahead behind the last of them. */
static size_t shared_scratch_bytes(const PlanSpec *spec) {
    size_t floats = 0;
    for (const Op *op = spec->ops; op < spec->ops + spec->num_ops; op++)
        if (op->kind == OP_LINEAR || op->kind == OP_SWIGLU) floats = larger(floats, packed_rows_floats(op, spec->max_tokens));
    return sizeof(float) * (floats + 512);
}

/* What the threads of such a plan hold together, for whoever keeps the books of memory. */
AIE_EXPORT int64_t aie_plan_scratch_bytes(const PlanSpec *spec) {
    return (int64_t)(thread_scratch_bytes(spec) * (size_t)spec->num_threads + shared_scratch_bytes(spec));
}

static float *aligned_area(size_t bytes) {
    void *area = NULL;
    return posix_memalign(&area, 64, bytes) == 0 ? area : NULL;
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
    plan->op_ns = calloc((size_t)spec->num_ops + 1, sizeof(int64_t));
    plan->last_end_ns = calloc((size_t)spec->num_ops + 1, sizeof(int64_t));
    int ok = ops && plan->scratch && plan->op_ns && plan->last_end_ns;
    if (ops) memcpy(ops, spec->ops, ops_bytes);
    size_t bytes = thread_scratch_bytes(spec);
    for (int i = 0; ok && i < spec->num_threads; i++) ok = (plan->scratch[i] = aligned_area(bytes)) != NULL;
    ok = ok && (plan->packed_rows = aligned_area(shared_scratch_bytes(spec)));
    if (ok) plan->pool = pool_create(spec->num_threads);
    if (plan->pool) return plan;
    aie_plan_free(plan);
    return NULL;
}
