/* Causal attention over the paged key-value cache.
 *
 * Within a block of A positions keys lie transposed, [D][A], and values as [A][D]. So scores are x = query [D] times a
 * panel of 16 keys, and the output is x = probabilities times panels of 16 value columns: both are the register tile of
 * micro.h, without sums across lanes.
 *
 * A query's sums depend on its own position alone: keys it may not see have weight 0, a span it sees nothing of scales by
 * 1. So neither the batch nor the way a prompt was cut into chunks changes a bit. */
#include "attention.h"

typedef struct {
    const PlanSpec *spec;
    const Op *op;
    const int32_t *blocks; /* the sequence's block table */
    int head;              /* kv head */
} Keys;

/* scores [rows][SPAN] of keys start .. start + count, count rounded up to whole panels of 16 */
static void score_span(const Keys *keys, Tile *tile, int start, int count) {
    int A = keys->spec->block_size, D = keys->op->head_dim;
    if (A % PANEL) { /* small blocks, as tests like them: key by key, in the same order of d */
        for (int j = 0; j < count; j++) {
            const float *key = slab(keys->spec, keys->spec->keys, keys->op->layer, keys->blocks[(start + j) / A], keys->head);
            for (int r = 0; r < tile->rows; r++) {
                float sum = 0.0f;
                for (int d = 0; d < D; d++) sum = float_fma(key[d * A + (start + j) % A], tile->q[r * tile->ld + d], sum);
                tile->scores[r * SPAN + j] = sum;
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
        micro_rows(tile->rows, num, tile->q, tile->ld, panels, A, D, tile->scores + j, SPAN, 0);
    }
}

/* What some models do to scores before the softmax: bound them (Gemma 2), or lower them with the distance (ALiBi). */
static void adjust_scores(const Op *op, float *scores, int head, int position, int start, int count) {
    for (int j = 0; op->softcap > 0.0f && j < count; j += VW)
        vf_store(scores + j, op->softcap * vf_tanh(vf_load(scores + j) / op->softcap));
    for (int j = 0; op->slopes && j < count; j++) scores[j] -= op->slopes[head] * (float)(position - start - j);
}

static void add_values(const Keys *keys, Tile *tile, int start, int count) {
    int A = keys->spec->block_size, D = keys->op->head_dim;
    for (int j = 0, num; j < count; j += num) {
        int offset = (start + j) % A;
        num = A - offset < count - j ? A - offset : count - j;
        const float *values = slab(keys->spec, keys->spec->values, keys->op->layer, keys->blocks[(start + j) / A], keys->head);
        mix_values(tile, values + (size_t)offset * (size_t)D, D, j, num, D);
    }
}

/* Query positions t0 .. t0 + num_q of one sequence against one kv head. */
static void attend_tile(Context *c, const Op *op, TilePlace place) {
    int group = op->num_heads / op->num_kv_heads;
    const int32_t *positions = c->step->positions + place.t0;
    const int32_t *blocks = c->step->block_tables + (size_t)place.sequence * (size_t)c->step->max_blocks;
    Keys keys = {&c->plan->spec, op, blocks, place.head};
    Tile tile = attention_tile(c, op, place.t0, place.num_q, place.head);
    int end = positions[place.num_q - 1] + 1, oldest = op->window ? positions[0] - op->window + 1 : 0;
    for (int start = oldest > 0 ? oldest / SPAN * SPAN : 0; start < end; start += SPAN) {
        int count = end - start < SPAN ? end - start : SPAN;
        score_span(&keys, &tile, start, count);
        for (int r = 0; r < tile.rows; r++) {
            int position = positions[r / group], visible = position + 1 - start < count ? position + 1 - start : count;
            int first = op->window && position - op->window + 1 > start ? position - op->window + 1 - start : 0;
            if (op->softcap > 0.0f || op->slopes)
                adjust_scores(op, tile.scores + r * SPAN, place.head * group + r % group, position, start, count);
            softmax_row(&tile, r, first, visible, count);
        }
        add_values(&keys, &tile, start, count);
    }
    attention_finish(op, &tile, place.t0, place.head);
}

void run_attend(Context *c, const Op *op) {
    int total = attention_items(c->step, op);
    for (int item; pool_claim(c->plan->pool, &c->ticket, total, 1, 1, &item);)
        attend_tile(c, op, attention_place(c->step, op, item));
}
