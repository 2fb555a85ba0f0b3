/* Bidirectional attention over packed sequences, and one row out of a sequence's many.
 *
 * Keys of all heads are transposed once, [G][D][T + padding], so that a panel of 16 keys of one sequence lies side by side;
 * lanes beyond the sequence's end hold its neighbour's keys, whose scores are not looked at. Values are read where they
 * are. Every query sees the whole of its sequence, in spans counted from its start: its bits do not depend on neighbours. */
#include "attention.h"

/* floats between two features of the transposed keys; the padding is what a last pair of panels may read beyond T */
static int transposed_stride(const PlanSpec *spec) { return spec->max_tokens + PANEL * TILE_PANELS; }

void run_transpose_keys(Context *c, const Op *op) {
    int D = op->head_dim, stride = transposed_stride(&c->plan->spec);
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_tokens, 16, 64, &t));)
        for (int d = 0; d < op->num_kv_heads * D; d++)
            for (int i = t; i < t + n; i++) op->work[(size_t)d * (size_t)stride + (size_t)i] = op->y[(size_t)i * (size_t)op->kv_width + (size_t)d];
}

static void attend_tile(Context *c, const Op *op, TilePlace place) {
    int D = op->head_dim, stride = transposed_stride(&c->plan->spec);
    int begin = c->step->seq_starts[place.sequence], length = c->step->seq_starts[place.sequence + 1] - begin;
    Tile tile = attention_tile(c, op, place.t0, place.num_q, place.head);
    const float *keys = op->work + (size_t)(place.head * D) * (size_t)stride + begin;
    const float *values = op->z + (size_t)begin * (size_t)op->kv_width + (size_t)(place.head * D);
    for (int start = 0; start < length; start += SPAN) {
        int count = length - start < SPAN ? length - start : SPAN;
        for (int j = 0; j < count; j += PANEL * TILE_PANELS) {
            const float *panels[TILE_PANELS];
            int num = 0;
            for (; num < TILE_PANELS && j + num * PANEL < count; num++) panels[num] = keys + start + j + num * PANEL;
            micro_rows(tile.rows, num, tile.q, tile.ld, panels, stride, D, tile.scores + j, SPAN, 0);
        }
        for (int r = 0; r < tile.rows; r++) softmax_row(&tile, r, 0, count, count);
        mix_values(&tile, values + (size_t)start * (size_t)op->kv_width, op->kv_width, 0, count, D);
    }
    attention_finish(op, &tile, place.t0, place.head);
}

void run_encoder_attend(Context *c, const Op *op) {
    int total = attention_items(c->step, op);
    for (int item; pool_claim(c->plan->pool, &c->ticket, total, 1, 1, &item);)
        attend_tile(c, op, attention_place(c->step, op, item));
}

/* x [n][width] -> out [width]: mean, first, largest or last; the mean adds the tokens in their order. */
static void pool_sequence(int kind, const float *x, int num, int width, float *out) {
    memcpy(out, kind == POOL_LAST ? x + (size_t)(num - 1) * (size_t)width : x, sizeof(float) * (size_t)width);
    if (kind == POOL_CLS || kind == POOL_LAST) return;
    for (int t = 1; t < num; t++) {
        const float *row = x + (size_t)t * (size_t)width;
        for (int i = 0; i < width; i++)
            if (kind == POOL_MEAN) out[i] += row[i];
            else out[i] = row[i] > out[i] || row[i] != row[i] ? row[i] : out[i];
    }
    for (int i = 0; kind == POOL_MEAN && i < width; i++) out[i] /= (float)num;
}

void run_pool_tokens(Context *c, const Op *op) {
    const int32_t *starts = c->step->seq_starts;
    for (int s, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_sequences, 1, 4, &s));)
        for (; n > 0; n--, s++)
            pool_sequence(op->index, op->x + (size_t)starts[s] * (size_t)op->width, starts[s + 1] - starts[s], op->width,
                          op->out + (size_t)s * (size_t)op->width);
}
