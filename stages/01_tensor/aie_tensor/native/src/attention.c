/* The parts that causal and bidirectional attention share; attention.h says how they fit together. */
#include "attention.h"

size_t attention_scratch_floats(int max_group, int head_dim) {
    return (size_t)tile_rows(max_group) * (size_t)(2 * align16(head_dim) + SPAN + 16 + 2);
}

Tile attention_tile(const Context *c, const Op *op, int t0, int num_q, int head) {
    int D = op->head_dim, group = op->num_heads / op->num_kv_heads, rows = num_q * group, ld = align16(D);
    Tile tile = {.rows = rows, .ld = ld, .q = c->scratch};
    tile.out = tile.q + rows * ld;
    tile.scores = tile.out + rows * ld;
    tile.maxima = tile.scores + rows * SPAN + 16;
    tile.totals = tile.maxima + rows;
    for (int r = 0; r < rows; r++) {
        const float *from = op->x + (size_t)(t0 + r / group) * (size_t)op->width + (size_t)(head * group + r % group) * (size_t)D;
        for (int d = 0; d < D; d++) tile.q[r * ld + d] = from[d] * op->scale;
        memset(tile.out + r * ld, 0, sizeof(float) * (size_t)ld);
        tile.maxima[r] = -INFINITY, tile.totals[r] = 0.0f;
    }
    return tile;
}

void softmax_row(Tile *tile, int row, int first, int end, int count) {
    float *scores = tile->scores + row * SPAN, *out = tile->out + row * tile->ld, *maximum = &tile->maxima[row];
    if (first >= end) {
        memset(scores, 0, sizeof(float) * (size_t)count);
        return;
    }
    int padded = align16(count);
    for (int j = 0; j < first; j++) scores[j] = -INFINITY;
    for (int j = end; j < padded; j++) scores[j] = -INFINITY;
    vf top = vf_set(*maximum), sum = vf_set(0.0f);
    for (int j = 0; j < align16(end); j += VW) top = vf_max(vf_load(scores + j), top);
    float new_maximum = vf_hmax(top), factor[VW];
    vf_store(factor, vf_exp(vf_set(*maximum - new_maximum)));
    for (int j = 0; j < padded; j += VW) {
        vf weight = vf_exp(vf_load(scores + j) - new_maximum);
        vf_store(scores + j, weight);
        sum += weight;
    }
    tile->totals[row] = tile->totals[row] * factor[0] + vf_sum(sum);
    *maximum = new_maximum;
    for (int d = 0; d < tile->ld; d += VW) vf_store(out + d, vf_load(out + d) * factor[0]);
}

void mix_values(Tile *tile, const float *values, ptrdiff_t ldv, int j, int num, int head_dim) {
    const float *weights = tile->scores + j;
    float *out = tile->out;
    int ldo = tile->ld, d = 0;
    for (; d + PANEL <= head_dim; d += PANEL * TILE_PANELS) {
        const float *panels[TILE_PANELS];
        int np = 0;
        for (; np < TILE_PANELS && d + (np + 1) * PANEL <= head_dim; np++) panels[np] = values + d + np * PANEL;
        micro_rows(tile->rows, np, weights, SPAN, panels, ldv, num, out + d, ldo, 1);
    }
    for (d = head_dim / PANEL * PANEL; d < head_dim; d++)
        for (int r = 0; r < tile->rows; r++)
            for (int i = 0; i < num; i++) out[r * ldo + d] = float_fma(weights[r * SPAN + i], values[i * ldv + d], out[r * ldo + d]);
}

void attention_finish(const Op *op, const Tile *tile, int t0, int head) {
    int D = op->head_dim, group = op->num_heads / op->num_kv_heads;
    for (int r = 0; r < tile->rows; r++) {
        float *to = op->out + (size_t)(t0 + r / group) * (size_t)op->out_width + (size_t)(head * group + r % group) * (size_t)D;
        for (int d = 0; d < D; d++) to[d] = tile->out[r * tile->ld + d] / tile->totals[r];
    }
}

/* ---- the work items ---- */

static int positions_per_tile(const Op *op) {
    int group = op->num_heads / op->num_kv_heads;
    return tile_rows(group) / group;
}

static int tiles_of(const Step *step, int sequence, int per_tile) {
    return (step->seq_starts[sequence + 1] - step->seq_starts[sequence] + per_tile - 1) / per_tile;
}

int attention_items(const Step *step, const Op *op) {
    int total = 0;
    for (int s = 0; s < step->num_sequences; s++) total += tiles_of(step, s, positions_per_tile(op)) * op->num_kv_heads;
    return total;
}

TilePlace attention_place(const Step *step, const Op *op, int item) {
    int per_tile = positions_per_tile(op), s = 0, tiles;
    for (;; s++) {
        tiles = tiles_of(step, s, per_tile);
        if (item < tiles * op->num_kv_heads) break;
        item -= tiles * op->num_kv_heads;
    }
    /* the last tiles of a causal sequence see most keys: first, so that no long item is left for the end */
    int t0 = step->seq_starts[s] + (tiles - 1 - item / op->num_kv_heads) * per_tile, left = step->seq_starts[s + 1] - t0;
    return (TilePlace){s, t0, left < per_tile ? left : per_tile, item % op->num_kv_heads};
}
