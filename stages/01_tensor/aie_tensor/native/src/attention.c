/* Rotary embedding, the paged key-value cache, and causal attention over it.
 *
 * Within a block of A positions keys lie transposed, [D][A], and values as [A][D]. So scores are x = query [D] times a
 * panel of 16 keys, and the output is x = probabilities times panels of 16 value columns: both are the register tile of
 * micro.h, without sums across lanes. A work item is (sequence, tile of query positions, kv head); the tile's rows are
 * its positions times the query heads that share the kv head, so every key and value is read once for all of them.
 *
 * Softmax is online over spans of SPAN positions, counted from the start of the sequence (Milakov and Gimelshein 2018).
 * A query's sums depend on its own position alone: keys it may not see have weight 0, a span it sees nothing of scales by
 * 1. So neither the batch nor the way a prompt was cut into chunks changes a bit. */
#include "micro.h"
#include "plan.h"

enum { SPAN = 256, TILE_ROWS = 24 };

static int tile_rows(int group) { return group > TILE_ROWS ? group : TILE_ROWS; }

static int align16(int n) { return (n + 15) / 16 * 16; }

size_t attention_scratch_floats(int max_group, int head_dim) {
    return (size_t)tile_rows(max_group) * (size_t)(2 * align16(head_dim) + SPAN + 16 + 2);
}

/* ---- rotation and storing ---- */

/* x [D] in place, Su et al. 2021; pairs are (2i, 2i + 1) when interleaved, else (i, i + D / 2). */
static void rotate(float *x, const float *cosines, const float *sines, int head_dim, int interleaved) {
    int half = head_dim / 2, step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    for (int i = 0; i < half; i++) {
        float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cosines[i] - b * sines[i];
        x[i * step + other] = b * cosines[i] + a * sines[i];
    }
}

/* The [A x D] slab of one kv head in one block of a layer. */
static float *slab(const PlanSpec *s, float *cache, int layer, int block, int head) {
    size_t index = ((size_t)layer * (size_t)s->num_blocks + (size_t)block) * (size_t)s->num_kv_heads + (size_t)head;
    return cache + index * (size_t)s->block_size * (size_t)s->head_dim;
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

static void rope_store_token(Context *c, const Op *op, int t) {
    const PlanSpec *s = &c->plan->spec;
    int D = op->head_dim, H = op->num_heads, G = op->num_kv_heads, A = s->block_size, position = c->step->positions[t];
    float *q = (float *)op->x + (size_t)t * (size_t)op->width, *k = q + H * D, *v = k + G * D;
    const float *cosines = op->cosines + (size_t)position * (size_t)(D / 2), *sines = op->sines + (size_t)position * (size_t)(D / 2);
    for (int h = 0; h < H + G; h++) rotate(q + h * D, cosines, sines, D, op->interleaved);
    const int32_t *blocks = c->step->block_tables + (size_t)sequence_of(c->step, t) * (size_t)c->step->max_blocks;
    int block = blocks[position / A], slot = position % A;
    for (int g = 0; g < G; g++) {
        float *keys = slab(s, s->keys, op->layer, block, g) + slot;
        for (int d = 0; d < D; d++) keys[d * A] = k[g * D + d];
        memcpy(slab(s, s->values, op->layer, block, g) + slot * D, v + g * D, sizeof(float) * (size_t)D);
    }
}

void run_rope_store(Context *c, const Op *op) {
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, c->step->num_tokens, 1, 8, &t));)
        for (; n > 0; n--, t++) rope_store_token(c, op, t);
}

/* ---- attention ---- */

typedef struct {
    const PlanSpec *spec;
    const Op *op;
    const int32_t *blocks; /* the sequence's block table */
    int head;              /* kv head */
} Keys;

/* scores [rows][SPAN] of keys start .. start + count, count rounded up to whole panels of 16 */
static void score_span(const Keys *keys, const float *q, int rows, int ldq, int start, int count, float *scores) {
    int A = keys->spec->block_size, D = keys->op->head_dim;
    if (A % PANEL) { /* small blocks, as tests like them: key by key, in the same order of d */
        for (int j = 0; j < count; j++) {
            const float *key = slab(keys->spec, keys->spec->keys, keys->op->layer, keys->blocks[(start + j) / A], keys->head);
            for (int r = 0; r < rows; r++) {
                float sum = 0.0f;
                for (int d = 0; d < D; d++) sum = fmaf(key[d * A + (start + j) % A], q[r * ldq + d], sum);
                scores[r * SPAN + j] = sum;
            }
        }
        return;
    }
    for (int j = 0; j < count; j += PANEL * TILE_PANELS) {
        const float *panels[TILE_PANELS];
        int num = 0;
        for (int at = j; num < TILE_PANELS && at < count; at += PANEL, num++)
            panels[num] = slab(keys->spec, keys->spec->keys, keys->op->layer, keys->blocks[(start + at) / A], keys->head) +
                          (start + at) % A;
        micro_rows(rows, num, q, ldq, panels, A, D, scores + j, SPAN, 0);
    }
}

/* out [rows][ldo] += weights [rows][SPAN] times values of positions start .. start + count */
static void add_values(const Keys *keys, const float *weights, int rows, int start, int count, float *out, int ldo) {
    int A = keys->spec->block_size, D = keys->op->head_dim;
    for (int j = 0, num; j < count; j += num) {
        int offset = (start + j) % A;
        num = A - offset < count - j ? A - offset : count - j;
        const float *values = slab(keys->spec, keys->spec->values, keys->op->layer, keys->blocks[(start + j) / A], keys->head) +
                              (size_t)offset * (size_t)D;
        int d = 0;
        for (; d + PANEL <= D; d += PANEL * TILE_PANELS) {
            const float *panels[TILE_PANELS];
            int np = 0;
            for (; np < TILE_PANELS && d + (np + 1) * PANEL <= D; np++) panels[np] = values + d + np * PANEL;
            micro_rows(rows, np, weights + j, SPAN, panels, D, num, out + d, ldo, 1);
        }
        for (d = D / PANEL * PANEL; d < D; d++)
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < num; i++) out[r * ldo + d] = fmaf(weights[r * SPAN + j + i], values[i * D + d], out[r * ldo + d]);
    }
}

/* scores [count] of one row -> weights relative to the running maximum; the rest of the span gets weight 0. */
static void softmax_row(float *scores, int visible, int count, float *maximum, float *total, float *out, int width) {
    if (visible <= 0) {
        memset(scores, 0, sizeof(float) * (size_t)count);
        return;
    }
    int padded = align16(count);
    for (int j = visible; j < padded; j++) scores[j] = -INFINITY;
    vf top = vf_set(*maximum), sum = vf_set(0.0f);
    for (int j = 0; j < align16(visible); j += VW) top = vf_max(vf_load(scores + j), top);
    float new_maximum = vf_hmax(top), factor[VW];
    vf_store(factor, vf_exp(vf_set(*maximum - new_maximum)));
    for (int j = 0; j < padded; j += VW) {
        vf weight = vf_exp(vf_load(scores + j) - new_maximum);
        vf_store(scores + j, weight);
        sum += weight;
    }
    *total = *total * factor[0] + vf_sum(sum);
    *maximum = new_maximum;
    for (int d = 0; d < width; d += VW) vf_store(out + d, vf_load(out + d) * factor[0]);
}

/* Query positions t0 .. t0 + num_q of one sequence against one kv head. */
static void attend_tile(Context *c, const Op *op, int sequence, int t0, int num_q, int head) {
    int D = op->head_dim, group = op->num_heads / op->num_kv_heads, rows = num_q * group, ld = align16(D);
    const int32_t *positions = c->step->positions + t0;
    Keys keys = {&c->plan->spec, op, c->step->block_tables + (size_t)sequence * (size_t)c->step->max_blocks, head};
    float *q = c->scratch, *out = q + rows * ld, *scores = out + rows * ld, *maxima = scores + rows * SPAN + 16,
          *totals = maxima + rows;
    for (int r = 0; r < rows; r++) {
        const float *from = op->x + (size_t)(t0 + r / group) * (size_t)op->width + (size_t)(head * group + r % group) * (size_t)D;
        for (int d = 0; d < D; d++) q[r * ld + d] = from[d] * op->scale;
        memset(out + r * ld, 0, sizeof(float) * (size_t)ld);
        maxima[r] = -INFINITY, totals[r] = 0.0f;
    }
    int end = positions[num_q - 1] + 1;
    for (int start = 0; start < end; start += SPAN) {
        int count = end - start < SPAN ? end - start : SPAN;
        score_span(&keys, q, rows, ld, start, count, scores);
        for (int r = 0; r < rows; r++)
            softmax_row(scores + r * SPAN, positions[r / group] + 1 - start < count ? positions[r / group] + 1 - start : count, count,
                        &maxima[r], &totals[r], out + r * ld, ld);
        add_values(&keys, scores, rows, start, count, out, ld);
    }
    for (int r = 0; r < rows; r++) {
        float *to = op->out + (size_t)(t0 + r / group) * (size_t)op->out_width + (size_t)(head * group + r % group) * (size_t)D;
        for (int d = 0; d < D; d++) to[d] = out[r * ld + d] / totals[r];
    }
}

void run_attend(Context *c, const Op *op) {
    const Step *step = c->step;
    int group = op->num_heads / op->num_kv_heads, per_tile = tile_rows(group) / group, total = 0;
    for (int s = 0; s < step->num_sequences; s++)
        total += (step->seq_starts[s + 1] - step->seq_starts[s] + per_tile - 1) / per_tile * op->num_kv_heads;
    for (int item; pool_claim(c->plan->pool, &c->ticket, total, 1, 1, &item);) {
        int s = 0, tiles;
        for (;; s++) {
            tiles = (step->seq_starts[s + 1] - step->seq_starts[s] + per_tile - 1) / per_tile;
            if (item < tiles * op->num_kv_heads) break;
            item -= tiles * op->num_kv_heads;
        }
        /* the last tiles see most keys: first, so that no long item is left for the end */
        int tile = tiles - 1 - item / op->num_kv_heads, t0 = step->seq_starts[s] + tile * per_tile;
        int left = step->seq_starts[s + 1] - t0;
        attend_tile(c, op, s, t0, left < per_tile ? left : per_tile, item % op->num_kv_heads);
    }
}
