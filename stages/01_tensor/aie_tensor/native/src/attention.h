/* What both kinds of attention share: tiles of queries, and the softmax over spans of keys.
 *
 * A tile is some query positions times the query heads that share a kv head, so every key and value is read once for all of
 * them. Keys are taken in spans of SPAN positions, counted from the start of the sequence. Each span is summed up by itself,
 * with weights relative to its own greatest score, and the spans are merged in their order (as online softmax does it,
 * Milakov and Gimelshein 2018): so it does not matter who computed which span, and a long context can be shared out. */
#ifndef AIE_ATTENTION_H
#define AIE_ATTENTION_H

#include "kv.h"
#include "vector_math.h"

enum { TILE_ROWS = 24, BAND = 8 /* tiles of an encoder's work item */ };

static inline int align16(int n) { return (n + 15) / 16 * 16; }
static inline int group_of(const Op *op) { return op->num_heads / op->num_kv_heads; }

/* Query positions of a tile, and the rows that they come to. */
static inline int tile_positions(int group) { return group > TILE_ROWS ? 1 : TILE_ROWS / group; }
static inline int tile_rows(int group) { return tile_positions(group) * group; }

/* What attention over some keys comes to, not yet divided by the totals of its weights. */
typedef struct {
    float *out, *maxima, *totals; /* [rows][ld], [rows], [rows] */
} Sums;

static inline size_t sums_floats(int rows, int ld) { return (size_t)rows * (size_t)(ld + 2); }
static inline Sums sums_at(float *memory, int rows, int ld) {
    return (Sums){memory, memory + rows * ld, memory + rows * ld + rows};
}

typedef struct {
    int t0, num_q, head, rows, ld; /* ld: floats from one row of q or out to the next */
    float *q, *scores;             /* [rows][ld] scaled queries, [rows][SPAN] */
} Tile;

/* The queries of tokens t0 .. t0 + num_q and one kv head, turned by their positions if `op` turns, into tile.q. */
void load_queries(const Context *c, const Op *op, Tile *tile);

/* Turns the first features of a head; rotary.c. */
void rotate_head(const Op *op, float *x, int position);

/* scores [count] of a row -> weights relative to their maximum; what lies outside first .. end gets weight 0. */
void softmax_row(float *scores, int first, int end, int count, float *maximum, float *total);

void sums_clear(const Tile *tile, Sums into); /* nothing seen yet */
void sums_merge(const Tile *tile, Sums into, Sums part);
void attention_finish(const Op *op, const Tile *tile, Sums sums);

#endif
