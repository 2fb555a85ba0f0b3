/* Operators that look at each row by itself. Rows are shared out among the threads. */
#include "plan.h"

void run_embed(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_tokens, 1, 8, &t));)
        for (; n > 0; n--, t++)
            unpack_row(op->table_format, op->out_width, op->table + c->step->token_ids[t] * op->table_row_bytes,
                       op->out + (size_t)t * (size_t)op->out_width);
}

/* out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019). Each lane adds its squares in float, the lanes are
 * added in double. */
static void rms_norm_row(const float *x, const float *weight, int width, float eps, float *out) {
    vf squares = vf_set(0.0f);
    double total = 0.0;
    int i = 0;
    for (; i + VW <= width; i += VW) {
        vf v = vf_load(x + i);
        squares = vf_fma(v, v, squares);
    }
    for (int lane = 0; lane < VW; lane++) total += squares[lane];
    for (; i < width; i++) total += (double)x[i] * x[i];
    float factor = (float)(1.0 / sqrt(total / width + (double)eps));
    for (i = 0; i + VW <= width; i += VW) vf_store(out + i, vf_load(x + i) * factor * vf_load(weight + i));
    for (; i < width; i++) out[i] = x[i] * factor * weight[i];
}

void run_rms_norm(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op), 1, 8, &t));)
        for (; n > 0; n--, t++) {
            size_t at = (size_t)t * (size_t)op->width;
            rms_norm_row(op->x + at, op->weight, op->width, op->eps, op->out + at);
        }
}

void run_select_rows(Context *c, const Op *op) {
    for (int r, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_logit_rows, 1, 8, &r));)
        for (; n > 0; n--, r++)
            memcpy(op->out + (size_t)r * (size_t)op->width, op->x + (size_t)c->step->logit_rows[r] * (size_t)op->width,
                   sizeof(float) * (size_t)op->width);
}

static void elementwise_row(const Op *op, size_t at) {
    const float *a = op->x + at, *b = op->y ? op->y + at : NULL;
    float *out = op->out + at;
    for (int i = 0; i < op->width; i += VW) {
        float in_a[VW] = {0}, in_b[VW] = {0}, result[VW];
        size_t bytes = sizeof(float) * (size_t)(op->width - i < VW ? op->width - i : VW);
        memcpy(in_a, a + i, bytes);
        if (b) memcpy(in_b, b + i, bytes);
        vf va = vf_load(in_a), vb = vf_load(in_b);
        vf_store(result, op->kind == OP_SILU ? va / (1.0f + vf_exp(-va)) : op->kind == OP_MUL ? va * vb : va + vb);
        memcpy(out + i, result, bytes);
    }
}

void run_elementwise(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op), 1, 8, &t));)
        for (; n > 0; n--, t++) elementwise_row(op, (size_t)t * (size_t)op->width);
}

/* x [R][V] -> out [R]: the first of the greatest values; a row with a NaN answers the first NaN, as NumPy does. */
AIE_EXPORT void aie_argmax_rows(const float *x, int num_rows, int width, int32_t *out) {
    for (int r = 0; r < num_rows; r++, x += width) {
        vf top = vf_set(-INFINITY);
        vi broken = {0};
        float best = -INFINITY;
        int i = 0, has_nan = 0;
        for (; i + VW <= width; i += VW) {
            vf v = vf_load(x + i);
            top = vf_max(v, top);
            broken |= v != v;
        }
        for (int lane = 0; lane < VW; lane++) has_nan |= broken[lane] != 0;
        best = vf_hmax(top);
        for (; i < width; i++) best = x[i] > best ? x[i] : best, has_nan |= x[i] != x[i];
        for (i = 0; has_nan ? x[i] == x[i] : x[i] != best; i++) {}
        out[r] = i;
    }
}

/* x [n] -> e^x [n]; exported for the tests of vf_exp. */
AIE_EXPORT void aie_exp(const float *x, int n, float *out) {
    for (int i = 0; i < n; i += VW) {
        float part[VW] = {0};
        size_t bytes = sizeof(float) * (size_t)(n - i < VW ? n - i : VW);
        memcpy(part, x + i, bytes);
        vf_store(part, vf_exp(vf_load(part)));
        memcpy(out + i, part, bytes);
    }
}
