/* The register tile: one multiply routine serves every weight format, and both products of attention.
 *
 *   c[r][lane] (+)= sum over k of x[r][k] * b[k][lane]     r < num_rows <= MAX_ROWS, lane < 16 * TILE_PANELS
 *
 * Every element has one accumulator, which takes its k in rising order by fused multiply-adds. So a row's result has the
 * same bits whichever rows share its tile, and gemv.c keeps the same order: batching changes nothing. */
#ifndef AIE_MICRO_H
#define AIE_MICRO_H

#include "simd.h"

#if VW == 16
#define MAX_ROWS 12 /* 12 rows x 2 vectors = 24 of the 32 registers */
#define TILE_PANELS 2
#elif VW == 8
#define MAX_ROWS 6 /* 6 rows x 2 vectors = 12 of 16 */
#define TILE_PANELS 1
#elif defined(__ARM_NEON)
#define MAX_ROWS 6 /* 6 rows x 4 vectors = 24 of 32 */
#define TILE_PANELS 1
#else
#define MAX_ROWS 3
#define TILE_PANELS 1
#endif

/* `panels[p]` points at lane 16 p of the first k, `ldb` floats lead from one k to the next. */
void micro_tile(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[], ptrdiff_t ldb,
                int num_k, float *c, ptrdiff_t ldc, int accumulate);

/* Any number of rows, cut into tiles of nearly equal height. */
static inline void micro_rows(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[],
                              ptrdiff_t ldb, int num_k, float *c, ptrdiff_t ldc, int accumulate) {
    int tiles = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int t = 0, row = 0; t < tiles; t++) {
        int rows = (num_rows - row + tiles - t - 1) / (tiles - t);
        micro_tile(rows, num_panels, x + row * ldx, ldx, panels, ldb, num_k, c + row * ldc, ldc, accumulate);
        row += rows;
    }
}

/* Bytes that are wanted soon: a tile asks the second cache for `step` of them with each k, panel by panel. */
typedef struct {
    const uint8_t *at[TILE_PANELS];
    ptrdiff_t step;
} Ahead;

/* The same with panels [k][16], and x either as above or, with ldx = 0, packed as [k][MAX_ROWS]. */
void micro_ahead(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[], int num_k,
                 float *c, ptrdiff_t ldc, int accumulate, const Ahead *ahead);

#endif
