/* Bidirectional attention over packed sequences, and one row out of a sequence's many.
 *
 * A work item is (sequence, band of tiles, kv head). It transposes the keys of a span into its thread's scratch memory, so
 * that sixteen keys lie side by side, and multiplies them with all of its tiles; values are read where they are. Every query
 * sees the whole of its sequence, in spans counted from its start: its bits do not depend on neighbours. */
#include "attention.h"

/* keys [count][width] -> [D][SPAN]; what pads the last panel of 16 are copies of the last key, which nobody looks at */
static void transpose_keys(const float *keys, ptrdiff_t width, int count, int head_dim, float *out) {
    for (int j = 0; j < align16(count); j += 4) {
        const float *key[4];
        for (int i = 0; i < 4; i++) key[i] = keys + (j + i < count ? j + i : count - 1) * width;
        int d = 0;
#if VW >= 8
        for (; d + 4 <= head_dim; d += 4) {
            __m128 row[4];
            UNROLL for (int i = 0; i < 4; i++) row[i] = _mm_loadu_ps(key[i] + d);
            _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
            UNROLL for (int i = 0; i < 4; i++) _mm_storeu_ps(out + (d + i) * SPAN + j, row[i]);
        }
#endif
        for (; d < head_dim; d++)
            for (int i = 0; i < 4; i++) out[d * SPAN + j + i] = key[i][d];
    }
}

/* One tile against a span of transposed keys. */
static void attend_span(const Tile *tile, int head_dim, const float *keys, const float *values, int width, int count, Sums sums) {
    for (int j = 0; j < count; j += PANEL * KV_WIDE) {
        const uint8_t *panels[KV_WIDE];
        int num = 0;
        for (; num < KV_WIDE && j + num * PANEL < count; num++) panels[num] = (const uint8_t *)(keys + j + num * PANEL);
        score_rows(KV_F32, tile->rows, num, tile->q, tile->ld, panels, sizeof(float) * SPAN, head_dim, tile->scores + j, panels);
    }
    for (int r = 0; r < tile->rows; r++) softmax_row(tile->scores + r * SPAN, 0, count, count, &sums.maxima[r], &sums.totals[r]);
    Run run = {(const uint8_t *)values, (const uint8_t *)(values + PANEL * width), count};
    mix_rows(KV_F32, tile->rows, tile->scores, &run, 1, (ptrdiff_t)sizeof(float) * width, head_dim, sums.out, tile->ld);
}

/* Which band of a sequence's queries an item is. */
typedef struct {
    int sequence, t0, num_q, head;
} Band;

static void attend_band(Context *c, const Op *op, Band band) {
    int D = op->head_dim, per_tile = tile_positions(group_of(op)), ld = align16(D), rows = band.num_q * group_of(op);
    int begin = c->step->seq_starts[band.sequence], length = c->step->seq_starts[band.sequence + 1] - begin;
    Tile all = {.t0 = band.t0, .num_q = band.num_q, .head = band.head, .rows = rows, .ld = ld, .q = c->scratch};
    float *keys = all.q + rows * ld, *free = keys + D * SPAN;
    Sums sums = sums_at(free, rows, ld);
    free += sums_floats(rows, ld);
    load_queries(c, op, &all);
    sums_clear(&all, sums);
    for (int start = 0; start < length; start += SPAN) {
        int count = length - start < SPAN ? length - start : SPAN;
        size_t at = (size_t)(begin + start) * (size_t)op->kv_width + (size_t)(band.head * D);
        transpose_keys(op->y + at, op->kv_width, count, D, keys);
        for (int q = 0; q < band.num_q; q += per_tile) {
            Tile tile = all;
            int row = q * group_of(op);
            tile.rows = rows - row < per_tile * group_of(op) ? rows - row : per_tile * group_of(op);
            tile.q += row * ld, tile.scores = free;
            Sums part = sums_at(free + tile.rows * SPAN, tile.rows, ld);
            attend_span(&tile, D, keys, op->z + at, op->kv_width, count, part);
            sums_merge(&tile, (Sums){sums.out + row * ld, sums.maxima + row, sums.totals + row}, part);
        }
    }
    attention_finish(op, &all, sums);
}

/* Bands are as long as BAND tiles, but for the last of a sequence. */
static int bands_of(const Step *step, const Op *op, int s) {
    int most = BAND * tile_positions(group_of(op));
    return (step->seq_starts[s + 1] - step->seq_starts[s] + most - 1) / most;
}

void run_encoder_attention(Context *c, const Op *op) {
    int total = 0, s = 0, first = 0, most = BAND * tile_positions(group_of(op)), G = op->num_kv_heads;
    for (int i = 0; i < c->step->num_sequences; i++) total += bands_of(c->step, op, i) * G;
    for (int item, n; (n = pool_claim(c->plan->pool, &c->ticket, total, 1, 4, &item));)
        for (; n > 0; n--, item++) {
            while (item >= first + bands_of(c->step, op, s) * G) first += bands_of(c->step, op, s++) * G;
            int t0 = c->step->seq_starts[s] + (item - first) / G * most, left = c->step->seq_starts[s + 1] - t0;
            attend_band(c, op, (Band){s, t0, left < most ? left : most, (item - first) % G});
        }
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
