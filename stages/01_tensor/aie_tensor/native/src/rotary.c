/* Rotary embedding (Su et al. 2021), and the writing of keys and values into the paged cache. */
#include "attention.h"

/* The first `turning` features of x [D] in place; pairs are (2i, 2i + 1) when interleaved, else (i, i + turning / 2). */
static void rotate(float *x, const float *cosines, const float *sines, int turning, int interleaved) {
    int half = turning / 2, step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    for (int i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cosines[i] - b * sines[i];
        x[i * step + other] = b * cosines[i] + a * sines[i];
    }
}

static void rotate_heads(const Op *op, float *x, int num_heads, int position) {
    size_t at = (size_t)position * (size_t)(op->rotary_dim / 2);
    for (int h = 0; h < num_heads; h++)
        rotate(x + h * op->head_dim, op->cosines + at, op->sines + at, op->rotary_dim, op->interleaved);
}

/* out [T][H x D] = x with the heads of each token turned by its position. */
void run_rope(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_tokens, 1, 8, &t));)
        for (; n > 0; n--, t++) {
            float *out = op->out + (size_t)t * (size_t)op->width;
            if (op->out != op->x) memcpy(out, op->x + (size_t)t * (size_t)op->width, sizeof(float) * (size_t)op->width);
            rotate_heads(op, out, op->num_heads, c->step->positions[t]);
        }
}

static int sequence_of(const Step *step, int token) {
    int low = 0, high = step->num_sequences - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (step->seq_starts[middle] <= token) low = middle;
        else high = middle - 1;
    }
    return low;
}

static void store_token(Context *c, const Op *op, int t) {
    const PlanSpec *s = &c->plan->spec;
    int D = op->head_dim, A = s->block_size, position = c->step->positions[t];
    const float *k = op->y + (size_t)t * (size_t)op->kv_width, *v = op->z + (size_t)t * (size_t)op->kv_width;
    if (op->cosines) { /* the fused form: q and k lie in a buffer of this operator's own, and are turned there */
        rotate_heads(op, (float *)op->x + (size_t)t * (size_t)op->width, op->num_heads, position);
        rotate_heads(op, (float *)k, op->num_kv_heads, position);
    }
    const int32_t *blocks = c->step->block_tables + (size_t)sequence_of(c->step, t) * (size_t)c->step->max_blocks;
    int block = blocks[position / A], slot = position % A;
    for (int g = 0; g < op->num_kv_heads; g++) {
        float *keys = slab(s, s->keys, op->layer, block, g) + slot;
        for (int d = 0; d < D; d++) keys[d * A] = k[g * D + d];
        memcpy(slab(s, s->values, op->layer, block, g) + slot * D, v + g * D, sizeof(float) * (size_t)D);
    }
}

void run_store_keys(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_tokens, 1, 8, &t));)
        for (; n > 0; n--, t++) store_token(c, op, t);
}
