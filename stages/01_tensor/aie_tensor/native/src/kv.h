/* The paged cache of keys and values: its number formats, where things lie in it, and the register tiles that read it.
 *
 * Keys and values of one kv head in one layer of a block are a slab each, of A positions: keys [D][A], values [A][D]. So
 * sixteen positions of a key's feature are a vector, and so are sixteen features of a value. An int8 vector has one scale,
 * kept beside in [A] floats for each slab: it is a factor of the whole score, and of the whole weight. */
#ifndef AIE_KV_H
#define AIE_KV_H

#include "plan.h"

enum { KV_F32, KV_F16, KV_I8 };

static inline int kv_bytes(int format) { return format == KV_F32 ? 4 : format == KV_F16 ? 2 : 1; }

/* One kv head of one sequence, in one layer. */
typedef struct {
    const PlanSpec *spec;
    const int32_t *blocks; /* the sequence's block table */
    int layer, head;
} KvHead;

static inline size_t slab_index(const KvHead *h, int position) {
    const PlanSpec *s = h->spec;
    size_t layer = (size_t)h->blocks[position / s->block_size] * (size_t)s->num_layers + (size_t)h->layer;
    return layer * (size_t)s->num_kv_heads + (size_t)h->head;
}

/* The first feature of a key; the next ones lie block_size elements apart. */
static inline uint8_t *key_at(const KvHead *h, int position) {
    const PlanSpec *s = h->spec;
    size_t slab = slab_index(h, position) * (size_t)s->head_dim * (size_t)s->block_size;
    return s->keys + (slab + (size_t)(position % s->block_size)) * (size_t)kv_bytes(s->kv_format);
}

/* A value; that of the next position of the block follows. */
static inline uint8_t *value_at(const KvHead *h, int position) {
    const PlanSpec *s = h->spec;
    size_t row = slab_index(h, position) * (size_t)s->block_size + (size_t)(position % s->block_size);
    return s->values + row * (size_t)s->head_dim * (size_t)kv_bytes(s->kv_format);
}

static inline float *scale_at(const KvHead *h, float *scales, int position) {
    return scales + slab_index(h, position) * (size_t)h->spec->block_size + position % h->spec->block_size;
}

/* Key and value [D] of one token, rounded to the cache's format. */
void kv_store(const KvHead *, int position, const float *key, const float *value);

/* ---- register tiles ---- */

enum { SPAN = 256 }; /* positions whose scores lie side by side */

/* A tile of few rows is as fast as memory brings the cache: it is wide. */
#if VW == 16
enum { KV_ROWS = 12, KV_PANELS = 2 };
#elif VW == 8 || defined(__ARM_NEON)
enum { KV_ROWS = 6, KV_PANELS = 1 };
#else
enum { KV_ROWS = 3, KV_PANELS = 1 };
#endif
enum { KV_FEW = KV_ROWS / 2, KV_WIDE = 2 * KV_PANELS };

static inline int kv_panels(int rows) { return rows <= KV_FEW ? KV_WIDE : KV_PANELS; }

/* scores [rows][SPAN] = q [rows][ldq] times `panels` (at most KV_WIDE) of sixteen keys each, whose features lie
 * `step` bytes apart. ahead: what lies there in the same way will be needed soon, and is fetched. */
void score_rows(int format, int rows, int panels, const float *q, ptrdiff_t ldq, const uint8_t *const keys[], ptrdiff_t step,
                int head_dim, float *scores, const uint8_t *const ahead[]);

/* The same for positions start .. start + count of blocks that are no multiple of sixteen; small ones, as tests like them. */
void score_odd_blocks(const KvHead *, int rows, const float *q, ptrdiff_t ldq, int start, int count, float *scores);

/* Values that lie one after another. */
typedef struct {
    const uint8_t *values, *ahead; /* ahead: what will be needed soon */
    int num;
} Run;

/* out [rows][ldo] = weights [rows][SPAN] of all positions times the values of the runs, `step` bytes apart. */
void mix_rows(int format, int rows, const float *weights, const Run *runs, int num_runs, ptrdiff_t step,
              int head_dim, float *out, ptrdiff_t ldo);

#endif
