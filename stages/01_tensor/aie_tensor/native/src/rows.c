/* Operators that look at each row by itself: look-ups, normalisations, choices. Rows are shared out among the threads. */
#include "plan.h"
#include "sums.h"
#include "vector_math.h"

void run_embed(Context *c, const Op *op) {
    const Step *step = c->step;
    const int32_t *ids = op->index == INDEX_POSITIONS ? step->positions
                         : op->index == INDEX_TOKEN_TYPES ? step->token_types : step->token_ids;
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, step->num_tokens, 1, 8, &t));)
        for (; n > 0; n--, t++) {
            float *out = op->out + (size_t)t * (size_t)op->out_width;
            unpack_row(op->table_format, op->out_width, op->table + ids[t] * op->table_row_bytes, out);
            for (int i = 0; op->scale != 1.0f && i < op->out_width; i++) out[i] *= op->scale;
        }
}

/* out = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019). */
static void rms_norm_row(const Op *op, const float *x, int width, float *out) {
    float factor = (float)(1.0 / sqrt(row_sum(x, width, 0.0f, 1) / width + (double)op->eps));
    int i = 0;
    for (; i + VW <= width; i += VW) vf_store(out + i, vf_load(x + i) * factor * vf_load(op->weight + i));
    for (; i < width; i++) out[i] = x[i] * factor * op->weight[i];
}

/* out = (x - mean) / sqrt(variance + eps) * weight + bias (Ba, Kiros and Hinton 2016). */
static void layer_norm_row(const Op *op, const float *x, int width, float *out) {
    float mean = row_mean(x, width);
    float factor = (float)(1.0 / sqrt(row_sum(x, width, mean, 1) / width + (double)op->eps));
    for (int i = 0; i < width; i += VW) {
        vf v = (load_part(x + i, width - i) - mean) * factor * load_part(op->weight + i, width - i);
        store_part(out + i, op->bias ? v + load_part(op->bias + i, width - i) : v, width - i);
    }
}

/* out = x / |x|; a row of zeros stays zero. */
static void l2_norm_row(const float *x, int width, float *out) {
    float length = sqrtf((float)row_sum(x, width, 0.0f, 1));
    for (int i = 0; i < width; i++) out[i] = x[i] / (length < 1e-12f ? 1e-12f : length);
}

/* A row may hold several vectors side by side, each normalised by itself with the same weight: heads, pixels. */
void run_norm(Context *c, const Op *op) {
    int width = op->width / op->num_heads;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * op->num_heads, 1, 8, &i));)
        for (; n > 0; n--, i++) {
            const float *x = op->x + (size_t)i * (size_t)width;
            float *out = op->out + (size_t)i * (size_t)width;
            if (op->kind == OP_RMS_NORM) rms_norm_row(op, x, width, out);
            else if (op->kind == OP_LAYER_NORM) layer_norm_row(op, x, width, out);
            else l2_norm_row(x, width, out);
        }
}

void run_select_rows(Context *c, const Op *op) {
    for (int r, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_logit_rows, 1, 8, &r));)
        for (; n > 0; n--, r++)
            memcpy(op->out + (size_t)r * (size_t)op->width, op->x + (size_t)c->step->logit_rows[r] * (size_t)op->width,
                   sizeof(float) * (size_t)op->width);
}

/* Index of the first of the greatest values of x [width], or of the first NaN, as NumPy answers. Looked for in the one piece
 * that holds it: the first whose greatest value is beyond all before it. */
static int argmax_row(const float *x, int width) {
    const int piece = 1024;
    float best = -INFINITY;
    int at = 0, has_nan = 0, i;
    for (int start = 0; start < width && !has_nan; start += piece) {
        int end = width - start < piece ? width : start + piece;
        vf top = vf_set(-INFINITY);
        vi broken = {0};
        for (i = start; i + VW <= end; i += VW) {
            vf v = vf_load(x + i);
            top = vf_max(v, top);
            broken |= v != v;
        }
        float greatest = vf_top(top);
        for (int lane = 0; lane < VW; lane++) has_nan |= broken[lane] != 0;
        for (; i < end; i++) greatest = x[i] > greatest ? x[i] : greatest, has_nan |= x[i] != x[i];
        if (greatest > best || has_nan) best = greatest, at = start;
    }
    for (i = at; has_nan ? x[i] == x[i] : x[i] != best; i++) {}
    return i;
}

/* x [R][V] -> out [R] of int32 */
void run_argmax(Context *c, const Op *op) {
    for (int r, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op), 1, 8, &r));)
        for (; n > 0; n--, r++) {
            int32_t found = argmax_row(op->x + (size_t)r * (size_t)op->width, op->width);
            memcpy(op->out + r, &found, sizeof found);
        }
}

AIE_EXPORT void aie_argmax_rows(const float *x, int num_rows, int width, int32_t *out) {
    for (int r = 0; r < num_rows; r++) out[r] = argmax_row(x + (size_t)r * (size_t)width, width);
}
