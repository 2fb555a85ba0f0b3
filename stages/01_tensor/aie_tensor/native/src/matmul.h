/* What the operators of matmul.c share with the ways to multiply: gemv.c for a few tokens, gemm.c for many, int8.c for both. */
#ifndef AIE_MATMUL_H
#define AIE_MATMUL_H

#include "micro.h"
#include "plan.h"
#include "unpack.h"

#if VW == 16
#define MAX_FEW 8 /* tokens up to which weights go from memory through registers, without a tile */
#define GEMV_PANELS 4
#else
#define MAX_FEW 4
#define GEMV_PANELS 2 /* side by side for one token */
#endif
#define CHUNK 192 /* k per tile: 2 panels x 192 x 16 floats are 24 KB of the first cache */

/* One panel of a matrix, and its first column of the output; the panel that the same thread will need next lies `ahead`
 * bytes further on. */
typedef struct {
    const PackedMatrix *w;
    int panel, column;
    ptrdiff_t ahead;
} PanelRef;

/* y [T][panels * 16] = x [T][K] times panels first .. first + panels of w, T <= MAX_FEW */
void gemv(const PackedMatrix *w, int first, int panels, const float *x, int num_tokens, float *y);

/* Formats whose digits are too scattered to be put together in a register while it multiplies. */
static inline int only_as_tile(int format) { return has_fifth_bits(format) || format == FORMAT_Q6_K; }

/* The rows of a product: [num][k], or packed for the register tile as [tiles][k][MAX_ROWS]. */
typedef struct {
    const float *x;
    int num, k, packed;
} Rows;

static inline int num_tiles(int num_rows) { return (num_rows + MAX_ROWS - 1) / MAX_ROWS; }

/* Tiles of nearly equal height: the first row of tile t; that of tile num_tiles is the number of rows. */
static inline int tile_row(int num_rows, int t) {
    int tiles = num_tiles(num_rows), longer = num_rows % tiles;
    return num_rows / tiles * t + (t < longer ? t : longer);
}

/* One tile of x [T][K] -> out [K][MAX_ROWS] */
void pack_tile(const Rows *x, int t, float *out);

/* What becomes of the sums of some rows: y [num_rows][ld] for the panels of a product. */
typedef void Finish(const Op *op, const PanelRef panels[], int num_panels, const float *y, int ld, int first_row, int num_rows);

/* Rows of tiles first .. end times the panels, handed to `finish` tile by tile while they are in the first cache.
 * tile, y: scratch for TILE_PANELS * CHUNK * 16 floats, and for [rows][TILE_PANELS * 16]. */
void gemm(const Op *op, const PanelRef panels[], int num_panels, const Rows *x, int first, int end, float *tile, float *y,
          Finish *finish);

/* 32 numbers of x in eight bits: x = scale * q. */
typedef struct {
    float scale, offset; /* offset: scale * sum */
    int32_t sum;         /* of q */
    int8_t q[BLOCK];
} QuantizedBlock;

/* One row [k] -> its blocks [k / 32] */
void quantize_row(const float *x, int k, QuantizedBlock *out);

/* As gemm, with rows first .. end of x [T][k / 32] in eight bits; y: scratch for MAX_ROWS * 2 * 16 floats. */
void dot_gemm(const Op *op, const PanelRef panels[], int num_panels, const QuantizedBlock *x, int first, int end, float *y,
              Finish *finish);

#endif
