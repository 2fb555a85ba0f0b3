/* Causal attention over the paged key-value cache, and the storing of the step's keys and values before it.
 *
 * A query's sums depend on its own position alone: keys it may not see have weight 0, and a span it sees nothing of is not
 * merged. So neither the batch nor the way a prompt was cut into chunks changes a bit.
 *
 * A work item is (sequence, tile, kv head). A sequence of one tile, as in decoding, needs nobody else's keys: its items store
 * them themselves, and where it has several spans, each is an item of its own, so that one long context keeps all threads
 * busy. The keys of longer chunks are stored by all threads before anybody attends. */
#include "attention.h"

/* ---- what there is to do ---- */

/* Where a walk over the step's sequences stands. */
typedef struct {
    int sequence, first;  /* its first item */
    int tiles, spans;     /* spans: how many items a tile is cut into, 1 where it is not */
    size_t memory;        /* floats of the plan's `partials` that earlier sequences use */
} Cursor;

static int num_tokens_of(const Step *step, int s) { return step->seq_starts[s + 1] - step->seq_starts[s]; }

/* The first position that a span of the sequence's tile from position `oldest_query` on has to look at. */
static int first_span(const Op *op, int oldest_query) {
    int oldest = op->window ? oldest_query - op->window + 1 : 0;
    return oldest > 0 ? oldest / SPAN * SPAN : 0;
}

static size_t partial_floats(const Op *op, int num_tokens) {
    return sums_floats(num_tokens * group_of(op), align16(op->head_dim));
}

static void look_at(const Context *c, const Op *op, Cursor *at) {
    int num = num_tokens_of(c->step, at->sequence), end = c->step->context_lens[at->sequence];
    at->tiles = (num + tile_positions(group_of(op)) - 1) / tile_positions(group_of(op));
    at->spans = 1;
    if (at->tiles > 1) return;
    int spans = (end - first_span(op, end - num) + SPAN - 1) / SPAN;
    size_t wanted = partial_floats(op, num) * (size_t)(spans * op->num_kv_heads);
    if (at->memory + wanted <= (size_t)c->plan->spec.num_partials) at->spans = spans;
}

static Cursor first_sequence(const Context *c, const Op *op) {
    Cursor at = {0};
    look_at(c, op, &at);
    return at;
}

static int items_of(const Op *op, const Cursor *at) { return at->tiles * at->spans * op->num_kv_heads; }

/* To the next sequence; 0 when there is none. `num`: items of this one in the phase that the walk is for. */
static int move_on(const Context *c, const Op *op, Cursor *at, int num) {
    if (at->spans > 1)
        at->memory += partial_floats(op, num_tokens_of(c->step, at->sequence)) * (size_t)(at->spans * op->num_kv_heads);
    at->first += num;
    if (++at->sequence == c->step->num_sequences) return 0;
    look_at(c, op, at);
    return 1;
}

/* ---- one tile ---- */

/* What a thread needs to compute a tile; `from` .. `to` are the positions of the keys. */
typedef struct {
    KvHead kv;
    Tile tile;
    int from, to, alone; /* alone: the sequence has no other tile */
    float *partial;      /* where the sums go when others have the other spans; or NULL */
} Job;

static Job job_of(const Context *c, const Op *op, const Cursor *at, int item) {
    int G = op->num_kv_heads, group = group_of(op), per_tile = tile_positions(group), s = at->sequence;
    int num_tokens = num_tokens_of(c->step, s), span = item % at->spans, head = item / at->spans % G;
    /* the last tiles of a sequence see most keys: first, so that no long item is left for the end */
    int tile = at->tiles - 1 - item / at->spans / G, t0 = c->step->seq_starts[s] + tile * per_tile;
    int left = c->step->seq_starts[s + 1] - t0, num_q = left < per_tile ? left : per_tile;
    Job job = {.kv = {&c->plan->spec, c->step->block_tables + (size_t)s * (size_t)c->step->max_blocks, op->layer, head},
               .tile = {.t0 = t0, .num_q = num_q, .head = head, .rows = num_q * group, .ld = align16(op->head_dim)},
               .from = first_span(op, c->step->positions[t0]), .to = c->step->positions[t0 + num_q - 1] + 1,
               .alone = at->tiles == 1};
    if (at->spans > 1) {
        job.partial = c->plan->spec.partials + at->memory + partial_floats(op, num_tokens) * (size_t)(head * at->spans + span);
        job.from += span * SPAN;
        job.to = span + 1 < at->spans ? job.from + SPAN : job.to;
    }
    return job;
}

static void store_token(const Op *op, const KvHead *kv, int t, int position, float *key) {
    size_t at = (size_t)t * (size_t)op->kv_width + (size_t)(kv->head * op->head_dim);
    memcpy(key, op->y + at, sizeof(float) * (size_t)op->head_dim);
    if (op->cosines) rotate_head(op, key, position);
    kv_store(kv, position, key, op->z + at);
}

/* The tokens of the tile whose positions this job attends to. */
static void store_tile(const Context *c, const Op *op, const Job *job, float *key) {
    for (int t = job->tile.t0; t < job->tile.t0 + job->tile.num_q; t++) {
        int position = c->step->positions[t];
        if (position >= job->from && position < job->to) store_token(op, &job->kv, t, position, key);
    }
}

/* What some models do to scores before the softmax: bound them (Gemma 2), or lower them with the distance (ALiBi). */
static void adjust_scores(const Op *op, float *scores, int head, int position, int start, int count) {
    for (int j = 0; op->softcap > 0.0f && j < count; j += VW)
        vf_store(scores + j, op->softcap * vf_tanh(vf_load(scores + j) / op->softcap));
    for (int j = 0; op->slopes && j < count; j++) scores[j] -= op->slopes[head] * (float)(position - start - j);
}

static void multiply(float *scores, const float *factors, int count) {
    for (int j = 0; j < align16(count); j += VW) vf_store(scores + j, vf_load(scores + j) * vf_load(factors + j));
}

static void load_scales(const KvHead *kv, float *scales, int start, int count, float *out) {
    int A = kv->spec->block_size;
    for (int j = 0, num; j < count; j += num) {
        num = A - (start + j) % A < count - j ? A - (start + j) % A : count - j;
        memcpy(out + j, scale_at(kv, scales, start + j), sizeof(float) * (size_t)num);
    }
}

/* How far ahead the cache is fetched, in positions: as many as a wide tile scores at once. */
enum { AHEAD = KV_WIDE * PANEL };

/* A thread reads the keys of a span, then its values, then the keys of what is next: what lies `at` positions from start. */
static const uint8_t *upcoming(const Job *job, const Job *next, int start, int count, int at) {
    int padded = align16(count);
    if (at < count) return key_at(&job->kv, start + at);
    if (at >= padded && at - padded < count) return value_at(&job->kv, start + at - padded);
    at -= 2 * padded;
    if (start + SPAN < job->to) next = job;
    if (!next) return key_at(&job->kv, start);
    int from = next == job ? start + SPAN : next->from;
    return key_at(&next->kv, at >= 0 && from + at < next->to ? from + at : from);
}

/* scores [rows][SPAN] of keys start .. start + count, count rounded up to whole panels of 16 */
static void score_span(const Job *job, const Job *next, int start, int count) {
    const Tile *tile = &job->tile;
    const PlanSpec *s = job->kv.spec;
    if (s->block_size % PANEL) {
        score_odd_blocks(&job->kv, tile->rows, tile->q, tile->ld, start, count, tile->scores);
        return;
    }
    for (int j = 0; j < count; j += PANEL * KV_WIDE) {
        const uint8_t *keys[KV_WIDE], *ahead[KV_WIDE];
        int num = 0;
        for (int at = j; num < KV_WIDE && at < count; at += PANEL, num++) {
            keys[num] = key_at(&job->kv, start + at);
            ahead[num] = upcoming(job, next, start, count, at + AHEAD);
        }
        score_rows(s->kv_format, tile->rows, num, tile->q, tile->ld, keys, s->block_size * kv_bytes(s->kv_format), s->head_dim,
                   tile->scores + j, ahead);
    }
}

static void mix_span(const Job *job, const Job *next, int start, int count, float *out) {
    const Tile *tile = &job->tile;
    const PlanSpec *s = job->kv.spec;
    int A = s->block_size, num_runs = 0, padded = align16(count);
    Run runs[SPAN];
    for (int j = 0, num; j < count; j += num) {
        num = A - (start + j) % A < count - j ? A - (start + j) % A : count - j;
        const uint8_t *values = value_at(&job->kv, start + j);
        runs[num_runs++] = (Run){values, upcoming(job, next, start, count, padded + j + AHEAD), num};
    }
    mix_rows(s->kv_format, tile->rows, tile->scores, runs, num_runs, s->head_dim * kv_bytes(s->kv_format), s->head_dim, out,
             tile->ld);
}

static void attend_span(const Context *c, const Op *op, const Job *job, const Job *next, int start, Sums sums) {
    const Tile *tile = &job->tile;
    const PlanSpec *s = job->kv.spec;
    int group = group_of(op), count = job->to - start < SPAN ? job->to - start : SPAN, is_int8 = s->kv_format == KV_I8;
    _Alignas(64) float key_scales[SPAN] = {0}, value_scales[SPAN] = {0};
    if (is_int8) load_scales(&job->kv, s->key_scales, start, count, key_scales);
    if (is_int8) load_scales(&job->kv, s->value_scales, start, count, value_scales);
    score_span(job, next, start, count);
    for (int r = 0; r < tile->rows; r++) {
        float *scores = tile->scores + r * SPAN;
        int position = c->step->positions[tile->t0 + r / group];
        int visible = position + 1 - start < count ? position + 1 - start : count;
        int first = op->window && position - op->window + 1 > start ? position - op->window + 1 - start : 0;
        if (is_int8) multiply(scores, key_scales, count);
        if (op->softcap > 0.0f || op->slopes) adjust_scores(op, scores, tile->head * group + r % group, position, start, count);
        softmax_row(scores, first, visible, count, &sums.maxima[r], &sums.totals[r]);
        if (is_int8) multiply(scores, value_scales, count);
    }
    mix_span(job, next, start, count, sums.out);
}

static void attend(Context *c, const Op *op, Job *job, const Job *next) {
    Tile *tile = &job->tile;
    tile->q = c->scratch;
    tile->scores = tile->q + tile->rows * tile->ld;
    float *free = tile->scores + tile->rows * SPAN, *next_free = free + sums_floats(tile->rows, tile->ld);
    Sums part = sums_at(free, tile->rows, tile->ld), whole = sums_at(next_free, tile->rows, tile->ld);
    load_queries(c, op, tile);
    if (job->alone) store_tile(c, op, job, free);
    if (job->partial) {
        attend_span(c, op, job, next, job->from, sums_at(job->partial, tile->rows, tile->ld));
        return;
    }
    sums_clear(tile, whole);
    for (int start = job->from; start < job->to; start += SPAN) {
        attend_span(c, op, job, next, start, part);
        sums_merge(tile, whole, part);
    }
    attention_finish(op, tile, whole);
}

/* ---- the phases ---- */

static void run_store(Context *c, const Op *op, int total) {
    const Step *step = c->step;
    int per_tile = tile_positions(group_of(op)), s = 0;
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, total, 1, 8, &t));)
        for (; n > 0; n--, t++) {
            while (step->seq_starts[s + 1] <= t) s++;
            if (num_tokens_of(step, s) <= per_tile) continue; /* one tile: it stores its own */
            KvHead kv = {&c->plan->spec, step->block_tables + (size_t)s * (size_t)step->max_blocks, op->layer, 0};
            for (; kv.head < op->num_kv_heads; kv.head++) store_token(op, &kv, t, step->positions[t], c->scratch);
        }
}

enum { MOST_CLAIMED = 8 };

static void run_attend(Context *c, const Op *op, int total) {
    Cursor at = first_sequence(c, op);
    for (int item, n; (n = pool_claim(c->plan->pool, &c->ticket, total, 1, MOST_CLAIMED, &item));) {
        Job jobs[MOST_CLAIMED]; /* each, while it is worked on, fetches what the next one reads first */
        for (int i = 0; i < n; i++) {
            while (item + i >= at.first + items_of(op, &at)) move_on(c, op, &at, items_of(op, &at));
            jobs[i] = job_of(c, op, &at, item + i - at.first);
        }
        for (int i = 0; i < n; i++) attend(c, op, &jobs[i], i + 1 < n ? &jobs[i + 1] : NULL);
    }
}

/* The spans of every tile that was cut up, in their order. */
static void run_merge(Context *c, const Op *op, int total) {
    Cursor at = first_sequence(c, op);
    int G = op->num_kv_heads;
    for (int item, n; (n = pool_claim(c->plan->pool, &c->ticket, total, 1, 8, &item));)
        for (; n > 0; n--, item++) {
            while (at.spans == 1 || item >= at.first + G) move_on(c, op, &at, at.spans == 1 ? 0 : G);
            Job job = job_of(c, op, &at, (item - at.first) * at.spans);
            Tile *tile = &job.tile;
            Sums whole = sums_at(c->scratch, tile->rows, tile->ld);
            sums_clear(tile, whole);
            for (int span = 0; span < at.spans; span++, job.partial += sums_floats(tile->rows, tile->ld))
                sums_merge(tile, whole, sums_at(job.partial, tile->rows, tile->ld));
            attention_finish(op, tile, whole);
        }
}

void run_attention(Context *c, const Op *op) {
    int num_items = 0, num_cut = 0, is_long = 0;
    Cursor at = first_sequence(c, op);
    do {
        num_items = at.first + items_of(op, &at);
        if (at.spans > 1) num_cut += op->num_kv_heads;
        is_long |= at.tiles > 1;
    } while (move_on(c, op, &at, items_of(op, &at)));
    if (is_long) {
        run_store(c, op, c->step->num_tokens);
        pool_wait(c->plan->pool, &c->ticket);
    }
    run_attend(c, op, num_items);
    if (num_cut == 0) return;
    pool_wait(c->plan->pool, &c->ticket);
    run_merge(c, op, num_cut);
}
