/* What both kinds of attention share: spans of scores, and the online softmax over them.
 *
 * A work item is (sequence, tile of query positions, kv head); the tile's rows are its positions times the query heads
 * that share the kv head, so every key and value is read once for all of them. Softmax is online over spans of SPAN
 * positions, counted from the start of the sequence (Milakov and Gimelshein 2018). */
#ifndef AIE_ATTENTION_H
#define AIE_ATTENTION_H

#include "micro.h"
#include "plan.h"
#include "vector_math.h"

enum { SPAN = 256, TILE_ROWS = 24 };

static inline int tile_rows(int group) { return group > TILE_ROWS ? group : TILE_ROWS; }
static inline int align16(int n) { return (n + 15) / 16 * 16; }

/* The [A x D] slab of one kv head in one block of a layer. */
static inline float *slab(const PlanSpec *s, float *cache, int layer, int block, int head) {
    size_t index = ((size_t)layer * (size_t)s->num_blocks + (size_t)block) * (size_t)s->num_kv_heads + (size_t)head;
    return cache + index * (size_t)s->block_size * (size_t)s->head_dim;
}

/* Where a tile's numbers lie in its thread's scratch memory. */
typedef struct {
    int rows, ld;                   /* ld: floats from one row of q and out to the next */
    float *q, *out, *scores;        /* [rows][ld] twice, [rows][SPAN] */
    float *maxima, *totals;         /* [rows] of the softmax so far */
} Tile;

Tile attention_tile(const Context *c, const Op *op, int t0, int num_q, int head);

/* scores [count] of each row -> weights relative to its running maximum; what lies outside first .. end gets weight 0. */
void softmax_row(Tile *tile, int row, int first, int end, int count);

/* out [rows][ld] += weights [rows][SPAN] of keys j .. j + num times their values, which lie `ldv` floats apart. */
void mix_values(Tile *tile, const float *values, ptrdiff_t ldv, int j, int num, int head_dim);

void attention_finish(const Op *op, const Tile *tile, int t0, int head);

/* Which tile an item is: of one sequence, in one step's order; total of all items when `item` is negative. */
typedef struct {
    int sequence, t0, num_q, head;
} TilePlace;

int attention_items(const Step *step, const Op *op);
TilePlace attention_place(const Step *step, const Op *op, int item);

#endif
