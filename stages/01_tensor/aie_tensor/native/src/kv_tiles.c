/* The register tiles of attention: like micro.h's, but they read the cache's number formats as they are, and they stay in
 * registers over all runs of a span. Every element has one accumulator that takes its terms in rising order, whatever the
 * tile: a row's bits do not depend on the rows beside it. */
#include "kv.h"

ALWAYS_INLINE vf load_kv(const int format, const uint8_t *p) {
    return format == KV_F32 ? vf_load((const float *)(const void *)p)
           : format == KV_F16 ? vf_load_f16(p) : vf_from_int(vi_load_i8(p));
}

static inline float kv_number(int format, const uint8_t *p) {
    float f;
    uint16_t h;
    if (format == KV_I8) return (float)*(const int8_t *)p;
    if (format == KV_F32) return memcpy(&f, p, 4), f;
    return memcpy(&h, p, 2), half_to_float(h);
}

#define FOR_ROWS UNROLL for (int r = 0; r < rows; r++)
#define FOR_VECS UNROLL for (int v = 0; v < panels * VEC_PER_PANEL; v++)

/* With constant format, rows and panels the inner loops unroll and `acc` lives in registers. */
ALWAYS_INLINE void score_tile(const int format, const int rows, const int panels, const float *q, ptrdiff_t ldq,
                              const uint8_t *const keys[], ptrdiff_t step, int head_dim, float *scores,
                              const uint8_t *const ahead[]) {
    const int size = kv_bytes(format), per_line = 4 / size; /* features whose sixteen numbers fill a cache line */
    vf acc[KV_ROWS][KV_WIDE * VEC_PER_PANEL];
    FOR_ROWS FOR_VECS acc[r][v] = vf_set(0.0f);
    ptrdiff_t at = 0;
    for (int d = 0; d < head_dim; d++, at += step) {
        vf key[KV_WIDE * VEC_PER_PANEL];
        FOR_VECS key[v] = load_kv(format, keys[v / VEC_PER_PANEL] + at + v % VEC_PER_PANEL * VW * size);
        if (d % per_line == 0) UNROLL for (int p = 0; p < panels; p++) __builtin_prefetch(ahead[p] + at);
        FOR_ROWS {
            vf broadcast = vf_set(q[r * ldq + d]);
            FOR_VECS acc[r][v] = vf_fma(key[v], broadcast, acc[r][v]);
        }
    }
    FOR_ROWS FOR_VECS vf_store(scores + r * SPAN + v * VW, acc[r][v]);
}

/* Features column .. column + 16 panels of the values. */
ALWAYS_INLINE void mix_tile(const int format, const int rows, const int panels, const float *weights,
                            const Run *runs, int num_runs, ptrdiff_t step, int column, float *out, ptrdiff_t ldo) {
    const int size = kv_bytes(format);
    vf acc[KV_ROWS][KV_WIDE * VEC_PER_PANEL];
    FOR_ROWS FOR_VECS acc[r][v] = vf_set(0.0f);
    for (const Run *run = runs; run < runs + num_runs; run++) {
        const uint8_t *values = run->values + column * size, *ahead = run->ahead + column * size;
        for (int j = 0; j < run->num; j++, values += step, ahead += step, weights++) {
            vf value[KV_WIDE * VEC_PER_PANEL];
            FOR_VECS value[v] = load_kv(format, values + v * VW * size);
            UNROLL for (int byte = 0; byte < panels * PANEL * size; byte += 64) __builtin_prefetch(ahead + byte);
            FOR_ROWS {
                vf broadcast = vf_set(weights[r * SPAN]);
                FOR_VECS acc[r][v] = vf_fma(value[v], broadcast, acc[r][v]);
            }
        }
    }
    FOR_ROWS FOR_VECS vf_store(out + r * ldo + column + v * VW, acc[r][v]);
}

/* One function for each format and height, in two widths. */
#define SCORE(F, R)                                                                                      \
    case (F) * 16 + (R):                                                                                 \
        if (panels == 1) score_tile(F, R, 1, q, ldq, keys, step, head_dim, scores, ahead);          \
        else score_tile(F, R, R <= KV_FEW ? KV_WIDE : KV_PANELS, q, ldq, keys, step, head_dim, scores, ahead); \
        break;
#define MIX(F, R)                                                                                        \
    case (F) * 16 + (R):                                                                                 \
        if (panels == 1) mix_tile(F, R, 1, weights, runs, num_runs, step, column, out, ldo);        \
        else mix_tile(F, R, R <= KV_FEW ? KV_WIDE : KV_PANELS, weights, runs, num_runs, step, column, out, ldo); \
        break;
#define FORMATS(WHAT, R) WHAT(KV_F32, R) WHAT(KV_F16, R) WHAT(KV_I8, R)
#if VW == 16
#define MORE_ROWS(WHAT)                                                                                  \
    FORMATS(WHAT, 4) FORMATS(WHAT, 5) FORMATS(WHAT, 6) FORMATS(WHAT, 7) FORMATS(WHAT, 8) FORMATS(WHAT, 9) \
    FORMATS(WHAT, 10) FORMATS(WHAT, 11) FORMATS(WHAT, 12)
#elif VW == 8 || defined(__ARM_NEON)
#define MORE_ROWS(WHAT) FORMATS(WHAT, 4) FORMATS(WHAT, 5) FORMATS(WHAT, 6)
#else
#define MORE_ROWS(WHAT)
#endif
#define ALL_ROWS(WHAT) FORMATS(WHAT, 1) FORMATS(WHAT, 2) FORMATS(WHAT, 3) MORE_ROWS(WHAT)

static void score(int format, int rows, int panels, const float *q, ptrdiff_t ldq, const uint8_t *const keys[],
                  ptrdiff_t step, int head_dim, float *scores, const uint8_t *const ahead[]) {
    switch (format * 16 + rows) { ALL_ROWS(SCORE) }
}

static void mix(int format, int rows, int panels, const float *weights, const Run *runs, int num_runs,
                ptrdiff_t step, int column, float *out, ptrdiff_t ldo) {
    switch (format * 16 + rows) { ALL_ROWS(MIX) }
}

/* Rows of the next tile, so that all tiles of what is left are nearly equally high. */
static int next_height(int left) {
    int tiles = (left + KV_ROWS - 1) / KV_ROWS;
    return (left + tiles - 1) / tiles;
}

void score_rows(int format, int rows, int panels, const float *q, ptrdiff_t ldq, const uint8_t *const keys[], ptrdiff_t step,
                int head_dim, float *scores, const uint8_t *const ahead[]) {
    for (int r = 0, height; r < rows; r += height) {
        height = next_height(rows - r);
        for (int p = 0, num; p < panels; p += num) {
            num = p + kv_panels(height) <= panels ? kv_panels(height) : 1;
            score(format, height, num, q + r * ldq, ldq, keys + p, step, head_dim, scores + r * SPAN + p * PANEL, ahead + p);
        }
    }
}

void mix_rows(int format, int rows, const float *weights, const Run *runs, int num_runs, ptrdiff_t step,
              int head_dim, float *out, ptrdiff_t ldo) {
    int size = kv_bytes(format), whole = head_dim / PANEL;
    for (int r = 0, height; r < rows; r += height) {
        height = next_height(rows - r);
        for (int p = 0, num; p < whole; p += num) {
            num = p + kv_panels(height) <= whole ? kv_panels(height) : 1;
            mix(format, height, num, weights + r * SPAN, runs, num_runs, step, p * PANEL, out + r * ldo, ldo);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int d = whole * PANEL; d < head_dim; d++) { /* heads that are no multiple of sixteen */
            const float *weight = weights + r * SPAN;
            float sum = 0.0f;
            for (const Run *run = runs; run < runs + num_runs; run++)
                for (int j = 0; j < run->num; j++)
                    sum = float_fma(kv_number(format, run->values + j * step + d * size), *weight++, sum);
            out[r * ldo + d] = sum;
        }
}

void score_odd_blocks(const KvHead *head, int rows, const float *q, ptrdiff_t ldq, int start, int count, float *scores) {
    int format = head->spec->kv_format, step = head->spec->block_size * kv_bytes(format);
    for (int j = 0; j < count; j++) {
        const uint8_t *key = key_at(head, start + j);
        for (int r = 0; r < rows; r++) {
            float sum = 0.0f;
            for (int d = 0; d < head->spec->head_dim; d++)
                sum = float_fma(kv_number(format, key + d * step), q[r * ldq + d], sum);
            scores[r * SPAN + j] = sum;
        }
    }
}
