/* The register tile of micro.h, once for every height that a tile can have. */
#include "micro.h"

enum { ROWS_AHEAD = 24 }; /* k by which packed x is fetched into the first cache before it is multiplied */

/* With constant `rows`, `np` and `packed` the inner loops unroll and `acc` lives in registers. */
ALWAYS_INLINE void tile(const int rows, const int np, const int packed, const float *x, ptrdiff_t ldx,
                        const float *const panels[], ptrdiff_t ldb, int num_k, float *c, ptrdiff_t ldc, int accumulate,
                        const Ahead *ahead) {
    vf acc[MAX_ROWS][TILE_PANELS * VEC_PER_PANEL];
    const float *b[TILE_PANELS];
    const uint8_t *soon[TILE_PANELS];
    UNROLL for (int p = 0; p < np; p++) b[p] = panels[p], soon[p] = ahead ? ahead->at[p] : NULL;
    if (accumulate) {
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) acc[r][v] = vf_load(c + r * ldc + v * VW);
    } else {
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) acc[r][v] = vf_set(0.0f);
    }
    for (int k = 0; k < num_k; k++) {
        vf w[TILE_PANELS * VEC_PER_PANEL];
        UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) w[v] = vf_kept(vf_load(b[v / VEC_PER_PANEL] + v % VEC_PER_PANEL * VW));
        UNROLL for (int p = 0; p < np; p++) b[p] += ldb;
        if (ahead) {
            UNROLL for (int p = 0; p < np; p++) __builtin_prefetch(soon[p], 0, 2), soon[p] += ahead->step;
        }
        if (packed) __builtin_prefetch(x + ROWS_AHEAD * MAX_ROWS);
        UNROLL for (int r = 0; r < rows; r++) {
            vf broadcast = vf_set(packed ? x[r] : x[r * ldx + k]);
            UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) acc[r][v] = vf_fma(w[v], broadcast, acc[r][v]);
        }
        if (packed) x += MAX_ROWS;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) vf_store(c + r * ldc + v * VW, acc[r][v]);
}

#define ROWS(n)                                                                                                     \
    case n:                                                                                                         \
        if (num_panels == 1) tile(n, 1, PACKED, x, ldx, panels, ldb, num_k, c, ldc, accumulate, AHEAD);             \
        else tile(n, TILE_PANELS, PACKED, x, ldx, panels, ldb, num_k, c, ldc, accumulate, AHEAD);                   \
        break;

#if MAX_ROWS >= 12
#define ALL_ROWS ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
#elif MAX_ROWS >= 6
#define ALL_ROWS ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
#else
#define ALL_ROWS ROWS(1) ROWS(2) ROWS(3)
#endif

#define PACKED 0
#define AHEAD NULL
void micro_tile(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[], ptrdiff_t ldb,
                int num_k, float *c, ptrdiff_t ldc, int accumulate) {
    switch (num_rows) { ALL_ROWS }
}
#undef AHEAD

#define AHEAD ahead
static void rows_ahead(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[], int num_k,
                       float *c, ptrdiff_t ldc, int accumulate, const Ahead *ahead) {
    const ptrdiff_t ldb = PANEL;
    switch (num_rows) { ALL_ROWS }
}
#undef PACKED

#define PACKED 1
static void packed_ahead(int num_rows, int num_panels, const float *x, const float *const panels[], int num_k, float *c,
                         ptrdiff_t ldc, int accumulate, const Ahead *ahead) {
    const ptrdiff_t ldb = PANEL, ldx = 0;
    switch (num_rows) { ALL_ROWS }
}

void micro_ahead(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[], int num_k,
                 float *c, ptrdiff_t ldc, int accumulate, const Ahead *ahead) {
    if (ldx) rows_ahead(num_rows, num_panels, x, ldx, panels, num_k, c, ldc, accumulate, ahead);
    else packed_ahead(num_rows, num_panels, x, panels, num_k, c, ldc, accumulate, ahead);
}
