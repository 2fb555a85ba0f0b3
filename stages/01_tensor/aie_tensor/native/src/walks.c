/* Elements moved, reduced, or compared along an axis: transposition, slices, concatenation, sums, softmax, top-k. */
#include "dense.h"
#include "vector_math.h"

/* Offset in x (or, with the other strides, in out) of the index-th position of axes begin .. end. */
static int64_t offset_of(const Walk *w, const int32_t *strides, int begin, int end, int index) {
    int64_t at = 0;
    for (int d = end - 1; d >= begin; index /= w->sizes[d], d--) at += (int64_t)(index % w->sizes[d]) * strides[d];
    return at;
}

static int positions(const Walk *w, int begin, int end) {
    int count = 1;
    for (int d = begin; d < end; d++) count *= w->sizes[d];
    return count;
}

/* Every element of an item to its new place; a piece of work is one run along the last axis. */
void run_copy(Context *c, const Op *op) {
    const Walk *w = op->shape;
    int last = w->num_dims - 1, runs = positions(w, 0, last), in = w->in_strides[last], to = w->out_strides[last];
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * runs, 1, 64, &i));)
        for (; n > 0; n--, i++) {
            size_t item = (size_t)(i / runs);
            const float *x = op->x + item * (size_t)op->width + w->in_offset + offset_of(w, w->in_strides, 0, last, i % runs);
            float *out = op->out + item * (size_t)op->out_width + w->out_offset + offset_of(w, w->out_strides, 0, last, i % runs);
            if (in == 1 && to == 1) memcpy(out, x, sizeof(float) * (size_t)w->sizes[last]);
            else for (int j = 0; j < w->sizes[last]; j++) out[j * to] = x[j * in];
        }
}

static float reduced(const Walk *w, int kind, const float *x) {
    int outer = w->num_dims - w->num_inner, count = positions(w, outer, w->num_dims);
    double sum = 0.0;
    float best = -INFINITY;
    for (int i = 0; i < count; i++) {
        float v = x[offset_of(w, w->in_strides, outer, w->num_dims, i)];
        sum += v;
        best = v > best || v != v ? v : best;
    }
    return kind == REDUCE_MAX ? best : (float)(kind == REDUCE_MEAN ? sum / count : sum);
}

void run_reduce(Context *c, const Op *op) {
    const Walk *w = op->shape;
    int outer = w->num_dims - w->num_inner, outputs = positions(w, 0, outer);
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * outputs, 1, 32, &i));)
        for (; n > 0; n--, i++) {
            const float *x = op->x + (size_t)(i / outputs) * (size_t)op->width;
            op->out[i] = reduced(w, op->index, x + offset_of(w, w->in_strides, 0, outer, i % outputs));
        }
}

/* ---- along one axis ---- */

size_t strip_scratch_floats(const Op *op) { return (size_t)((const Strip *)op->shape)->length + VW; }

/* x [n] -> softmax or its logarithm, in place */
static void softmax(float *x, int n, int logarithm) {
    vf top = vf_set(-INFINITY), sum = vf_set(0.0f);
    float maximum, total = 0.0f;
    int i = 0;
    for (; i + VW <= n; i += VW) top = vf_max(vf_load(x + i), top);
    maximum = vf_hmax(top);
    for (int j = i; j < n; j++) maximum = x[j] > maximum || x[j] != x[j] ? x[j] : maximum;
    for (int j = 0; j < n; j += VW) {
        vf e = vf_exp(load_part(x + j, n - j) - maximum);
        if (j + VW <= n) sum += e;
        else for (int lane = 0; lane < n - j; lane++) total += e[lane];
        if (!logarithm) store_part(x + j, e, n - j);
    }
    total += vf_sum(sum);
    float log_total = logarithm ? logf(total) : 0.0f;
    for (int j = 0; j < n; j++) x[j] = logarithm ? x[j] - maximum - log_total : x[j] / total;
}

void run_softmax(Context *c, const Op *op) {
    const Strip *s = op->shape;
    int per_item = s->outer * s->inner;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * per_item, 1, 8, &i));)
        for (; n > 0; n--, i++) {
            size_t at = (size_t)(i / per_item) * (size_t)op->width +
                        (size_t)(i % per_item / s->inner) * (size_t)(s->length * s->inner) + (size_t)(i % s->inner);
            for (int j = 0; j < s->length; j++) c->scratch[j] = op->x[at + (size_t)(j * s->inner)];
            softmax(c->scratch, s->length, op->kind == OP_LOG_SOFTMAX);
            for (int j = 0; j < s->length; j++) op->out[at + (size_t)(j * s->inner)] = c->scratch[j];
        }
}

/* x [n] -> the places of the k largest, largest first, of equals the first first; NaN comes last */
static void top_k(const float *x, int n, int k, int32_t *best) {
    int held = 0;
    for (int i = 0; i < n; i++) {
        int at = held;
        while (at > 0 && (x[i] > x[best[at - 1]] || (x[i] == x[i] && x[best[at - 1]] != x[best[at - 1]]))) at--;
        if (at == k) continue;
        held = held < k ? held + 1 : k;
        for (int j = held - 1; j > at; j--) best[j] = best[j - 1];
        best[at] = i;
    }
}

/* out [.][k]: the values, or as the bits of integers where they were */
void run_top_k(Context *c, const Op *op) {
    const Strip *s = op->shape;
    int32_t *best = (int32_t *)(void *)c->scratch;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * s->outer, 1, 8, &i));)
        for (; n > 0; n--, i++) {
            const float *x = op->x + (size_t)i * (size_t)s->length;
            float *out = op->out + (size_t)i * (size_t)s->k;
            top_k(x, s->length, s->k, best);
            if (op->index) memcpy(out, best, sizeof(float) * (size_t)s->k);
            else for (int j = 0; j < s->k; j++) out[j] = x[best[j]];
        }
}
