/* The register tile of micro.h, once for every height that a tile can have. */
#include "micro.h"

/* With constant `rows` and `np` the inner loops unroll and `acc` lives in registers. */
ALWAYS_INLINE void tile(const int rows, const int np, const float *x, ptrdiff_t ldx, const float *const panels[],
                        ptrdiff_t ldb, int num_k, float *c, ptrdiff_t ldc, int accumulate) {
    vf acc[MAX_ROWS][TILE_PANELS * VEC_PER_PANEL];
    const float *b[TILE_PANELS];
    UNROLL for (int p = 0; p < np; p++) b[p] = panels[p];
    if (accumulate) {
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) acc[r][v] = vf_load(c + r * ldc + v * VW);
    } else {
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) acc[r][v] = vf_set(0.0f);
    }
    for (int k = 0; k < num_k; k++) {
        vf w[TILE_PANELS * VEC_PER_PANEL];
        UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) w[v] = vf_load(b[v / VEC_PER_PANEL] + v % VEC_PER_PANEL * VW);
        UNROLL for (int p = 0; p < np; p++) b[p] += ldb;
        UNROLL for (int r = 0; r < rows; r++) {
            vf broadcast = vf_set(x[r * ldx + k]);
            UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) acc[r][v] = vf_fma(w[v], broadcast, acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < np * VEC_PER_PANEL; v++) vf_store(c + r * ldc + v * VW, acc[r][v]);
}

#define ROWS(n)                                                                                     \
    case n:                                                                                         \
        if (num_panels == 1) tile(n, 1, x, ldx, panels, ldb, num_k, c, ldc, accumulate);            \
        else tile(n, TILE_PANELS, x, ldx, panels, ldb, num_k, c, ldc, accumulate);                  \
        break;

void micro_tile(int num_rows, int num_panels, const float *x, ptrdiff_t ldx, const float *const panels[], ptrdiff_t ldb,
                int num_k, float *c, ptrdiff_t ldc, int accumulate) {
    switch (num_rows) {
        ROWS(1) ROWS(2) ROWS(3)
#if MAX_ROWS >= 6
        ROWS(4) ROWS(5) ROWS(6)
#endif
#if MAX_ROWS >= 12
        ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)
#endif
    }
}
