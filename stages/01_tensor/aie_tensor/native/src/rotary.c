/* Rotary embedding (Su et al. 2021), of whole rows and of single heads. */
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

void rotate_head(const Op *op, float *x, int position) {
    size_t at = (size_t)position * (size_t)(op->rotary_dim / 2);
    rotate(x, op->cosines + at, op->sines + at, op->rotary_dim, op->interleaved);
}

/* out [T][H x D] = x with the heads of each token turned by its position. */
void run_rope(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_tokens, 1, 8, &t));)
        for (; n > 0; n--, t++) {
            float *out = op->out + (size_t)t * (size_t)op->width;
            if (op->out != op->x) memcpy(out, op->x + (size_t)t * (size_t)op->width, sizeof(float) * (size_t)op->width);
            for (int h = 0; h < op->num_heads; h++) rotate_head(op, out + h * op->head_dim, c->step->positions[t]);
        }
}
