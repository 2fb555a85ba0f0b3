/* The parts that causal and bidirectional attention share; attention.h says how they fit together. */
#include "attention.h"

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* causal.c: queries, scores, two sums, a key; encoder.c: the same for a band of tiles, and a span of transposed keys */
size_t attention_scratch_floats(int max_group, int head_dim) {
    size_t rows = (size_t)larger((size_t)max_group, TILE_ROWS), ld = (size_t)align16(head_dim), band = rows * BAND;
    size_t causal = rows * (ld + SPAN) + 2 * sums_floats((int)rows, (int)ld) + ld;
    size_t encoder = band * ld + rows * SPAN + sums_floats((int)band, (int)ld) + sums_floats((int)rows, (int)ld) + ld * SPAN;
    return larger(causal, encoder) + 16;
}

/* Where row r of the tile begins in a buffer of `width` floats per token. */
static size_t row_at(const Op *op, const Tile *tile, int r, int width) {
    int group = group_of(op);
    return (size_t)(tile->t0 + r / group) * (size_t)width + (size_t)((tile->head * group + r % group) * op->head_dim);
}

void load_queries(const Context *c, const Op *op, Tile *tile) {
    int D = op->head_dim;
    for (int r = 0; r < tile->rows; r++) {
        float *q = tile->q + r * tile->ld;
        memcpy(q, op->x + row_at(op, tile, r, op->width), sizeof(float) * (size_t)D);
        if (op->cosines) rotate_head(op, q, c->step->positions[tile->t0 + r / group_of(op)]);
        for (int d = 0; d < D; d += VW) vf_store(q + d, vf_load(q + d) * op->scale); /* rows are padded */
    }
}

void softmax_row(float *scores, int first, int end, int count, float *maximum, float *total) {
    int padded = align16(count);
    *maximum = -INFINITY, *total = 0.0f;
    if (first >= end) {
        memset(scores, 0, sizeof(float) * (size_t)padded);
        return;
    }
    for (int j = 0; j < first; j++) scores[j] = -INFINITY;
    for (int j = end; j < padded; j++) scores[j] = -INFINITY;
    vf top = vf_set(-INFINITY), sum = vf_set(0.0f);
    for (int j = 0; j < align16(end); j += VW) top = vf_max(vf_load(scores + j), top);
    float greatest = *maximum = vf_top(top);
    for (int j = 0; j < padded; j += VW) {
        vf weight = vf_exp_down(vf_load(scores + j) - greatest);
        vf_store(scores + j, weight);
        sum += weight;
    }
    *total = vf_total(sum);
}

void sums_clear(const Tile *tile, Sums into) { memset(into.totals, 0, sizeof(float) * (size_t)tile->rows); }

void sums_merge(const Tile *tile, Sums into, Sums part) {
    for (int r = 0; r < tile->rows; r++) {
        if (part.totals[r] == 0.0f) continue; /* the row sees nothing of the span: that must not change a bit */
        float *out = into.out + r * tile->ld, *added = part.out + r * tile->ld;
        if (into.totals[r] == 0.0f) { /* its first span */
            memcpy(out, added, sizeof(float) * (size_t)tile->ld);
            into.maxima[r] = part.maxima[r], into.totals[r] = part.totals[r];
            continue;
        }
        float maximum = part.maxima[r] > into.maxima[r] ? part.maxima[r] : into.maxima[r], old[VW], new[VW];
        vf_store(old, vf_exp(vf_set(into.maxima[r] - maximum)));
        vf_store(new, vf_exp(vf_set(part.maxima[r] - maximum)));
        into.maxima[r] = maximum;
        into.totals[r] = into.totals[r] * old[0] + part.totals[r] * new[0];
        for (int d = 0; d < tile->ld; d += VW) vf_store(out + d, vf_load(out + d) * old[0] + vf_load(added + d) * new[0]);
    }
}

void attention_finish(const Op *op, const Tile *tile, Sums sums) {
    int D = op->head_dim;
    for (int r = 0; r < tile->rows; r++) {
        float *to = op->out + row_at(op, tile, r, op->out_width);
        const float *from = sums.out + r * tile->ld;
        float inverse = 1.0f / sums.totals[r];
        for (int d = 0; d < D; d += VW) store_part(to + d, vf_load(from + d) * inverse, D - d);
    }
}
