/* x [T][K] times packed weights: `linear` with bias and residual, and `swiglu`.
 *
 * A few tokens go through gemv.c, more through gemm.c, and those that are rounded to eight bits through int8.c. Each adds
 * up an output element in one order, so a token's result does not depend on its company. */
#include "matmul.h"

#include "vector_math.h"

enum {
    PACK_FROM = 2 * MAX_ROWS + 1, /* rows from which packing them pays for the wait that it costs */
    MOST_TILES = 42,              /* row tiles that one unpacked tile is multiplied with */
    QUANTIZED_ALONE = 4096,       /* elements of x that every thread rounds for itself, rather than wait for the others */
    MOST_CLAIM = 64               /* jobs or panels that one thread takes at a time: many, since neighbours are fetched ahead */
};

/* Panels side by side for so many tokens: what leaves the accumulators in registers; the 4-bit formats need some of the
 * sixteen of AVX2 for scales, minima and both halves of a byte. */
static int gemv_panels(const Op *op, int num_tokens) {
    int most = VW == 8 && op->mats->format >= FORMAT_Q4_0 ? 1 : MAX_FEW / 2;
    return num_tokens <= most ? GEMV_PANELS : GEMV_PANELS / 2;
}

size_t linear_scratch_floats(void) {
    return (size_t)PANEL * (MOST_TILES * MAX_ROWS * 2 + TILE_PANELS * CHUNK);
}

size_t packed_rows_floats(const Op *op, int max_tokens) {
    size_t k = (size_t)op->mats->k;
    if (is_dot(op->mats->format)) return (size_t)max_tokens * k / BLOCK * sizeof(QuantizedBlock) / sizeof(float);
    return max_tokens < PACK_FROM ? 0 : (size_t)num_tiles(max_tokens) * MAX_ROWS * k;
}

static int is_few(const Op *op, int num_tokens) {
    for (int m = 0; m < op->num_mats; m++)
        if (only_as_tile(op->mats[m].format)) return 0;
    return num_tokens <= MAX_FEW;
}

/* Whether the product before this one has left the same rows packed: query, key and value of an encoder read one x. */
static int packed_before(const Context *c, const Op *op) {
    const Op *last = op - 1;
    return op > c->plan->spec.ops && (last->kind == OP_LINEAR || last->kind == OP_SWIGLU) && last->x == op->x &&
           last->rows == op->rows && last->fixed_rows == op->fixed_rows && last->mats->k == op->mats->k &&
           is_dot(last->mats->format) == is_dot(op->mats->format);
}

/* The operator's rows; many of them are packed, by all threads together. */
static Rows rows_of(Context *c, const Op *op, int num_tokens) {
    Rows x = {op->x, num_tokens, op->mats->k, 0};
    if (num_tokens < PACK_FROM) return x;
    if (packed_before(c, op)) return (Rows){c->plan->packed_rows, num_tokens, x.k, 1};
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, num_tiles(num_tokens), 1, 8, &t));)
        for (; n > 0; n--, t++) pack_tile(&x, t, c->plan->packed_rows + (size_t)t * (size_t)x.k * MAX_ROWS);
    pool_wait(c->plan->pool, &c->ticket);
    return (Rows){c->plan->packed_rows, num_tokens, x.k, 1};
}

/* The operator's rows in eight bits: [T][k / 32] */
static const QuantizedBlock *quantized_rows(Context *c, const Op *op, int num_tokens) {
    int k = op->mats->k, alone = (int64_t)num_tokens * k <= QUANTIZED_ALONE;
    QuantizedBlock *blocks = alone ? (void *)c->scratch : (void *)c->plan->packed_rows;
    if (packed_before(c, op)) return blocks;
    for (int t = 0; alone && t < num_tokens; t++) quantize_row(op->x + (size_t)t * (size_t)k, k, blocks + t * (k / BLOCK));
    if (alone) return blocks;
    for (int t, n; (n = pool_claim(c->plan->pool, &c->ticket, num_tokens, 1, 16, &t));)
        for (; n > 0; n--, t++)
            quantize_row(op->x + (size_t)t * (size_t)k, k, blocks + (size_t)t * (size_t)(k / BLOCK));
    pool_wait(c->plan->pool, &c->ticket);
    return blocks;
}

/* Blocks of row tiles, so many that each thread gets several jobs even where there are few panels. */
static int row_blocks(const Context *c, int num_rows, int jobs) {
    int tiles = num_tiles(num_rows), blocks = (tiles + MOST_TILES - 1) / MOST_TILES;
    while (blocks * jobs < 8 * c->plan->spec.num_threads && tiles / (2 * blocks) >= 4) blocks *= 2;
    return blocks;
}

/* Columns of panels first .. first + num of w. */
static int columns(const PackedMatrix *w, int first, int num) {
    return w->n - first * PANEL < num * PANEL ? w->n - first * PANEL : num * PANEL;
}

/* out = y + bias + residual for `count` columns of y [num][ld]. */
static void store_columns(const Op *op, const float *y, int ld, int first, int num, int column, int count) {
    for (int t = 0; t < num; t++, y += ld) {
        size_t at = (size_t)(first + t) * (size_t)op->out_width + (size_t)column;
        for (int i = 0; i < count; i += VW) {
            vf value = vf_load(y + i);
            if (op->bias) value += load_part(op->bias + column + i, count - i);
            if (op->y) value += load_part(op->y + at + i, count - i);
            store_part(op->out + at + i, value, count - i);
        }
    }
}

static void store_swiglu(const Op *op, const float *gate, const float *up, int ld, int first, int num, int column, int count) {
    for (int t = 0; t < num; t++, gate += ld, up += ld)
        for (int i = 0; i < count; i += VW) {
            vf g = vf_load(gate + i), value = g / (1.0f + vf_exp(-g)) * vf_load(up + i);
            store_part(op->out + (size_t)(first + t) * (size_t)op->out_width + (size_t)(column + i), value, count - i);
        }
}

/* ---- linear ---- */

static int all_panels(const Op *op) {
    int total = 0;
    for (int m = 0; m < op->num_mats; m++) total += op->mats[m].num_panels;
    return total;
}

/* Panel i of all matrices side by side, which are taken so many at a time. */
static PanelRef find_panel(const Op *op, int i, int together) {
    const PackedMatrix *w = op->mats;
    int column = 0;
    for (; i >= w->num_panels; w++) i -= w->num_panels, column += w->n;
    return (PanelRef){w, i, column + i * PANEL, together * w->panel_bytes};
}

static void linear_few(Context *c, const Op *op, int num_tokens) {
    int most = gemv_panels(op, num_tokens), total = all_panels(op);
    for (int first, n; (n = pool_claim(c->plan->pool, &c->ticket, total, (most + 1) / 2, MOST_CLAIM, &first));)
        for (int num; n > 0; n -= num, first += num) {
            PanelRef ref = find_panel(op, first, most);
            int left = ref.w->num_panels - ref.panel; /* a claim may cross from one matrix into the next */
            num = n < most ? n : most;
            num = num < left ? num : left;
            gemv(ref.w, ref.panel, num, op->x, num_tokens, c->scratch);
            store_columns(op, c->scratch, num * PANEL, 0, num_tokens, ref.column, columns(ref.w, ref.panel, num));
        }
}

static void finish_linear(const Op *op, const PanelRef panels[], int num_panels, const float *y, int ld, int row, int rows) {
    for (int p = 0; p < num_panels; p++)
        store_columns(op, y + p * PANEL, ld, row, rows, panels[p].column, columns(panels[p].w, panels[p].panel, 1));
}

static void linear_many(Context *c, const Op *op, int num_tokens) {
    Rows x = rows_of(c, op, num_tokens);
    float *tile = c->scratch, *y = tile + TILE_PANELS * CHUNK * PANEL;
    int total = all_panels(op), jobs = (total + TILE_PANELS - 1) / TILE_PANELS, tiles = num_tiles(num_tokens);
    int blocks = row_blocks(c, num_tokens, jobs);
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, blocks * jobs, 1, MOST_CLAIM, &i));)
        for (; n > 0; n--, i++) {
            int block = i / jobs, panel = i % jobs * TILE_PANELS, num = 0;
            PanelRef panels[TILE_PANELS];
            for (; num < TILE_PANELS && panel + num < total; num++) panels[num] = find_panel(op, panel + num, TILE_PANELS);
            gemm(op, panels, num, &x, block * tiles / blocks, (block + 1) * tiles / blocks, tile, y, finish_linear);
        }
}

static void linear_int8(Context *c, const Op *op, int num_tokens) {
    const QuantizedBlock *x = quantized_rows(c, op, num_tokens);
    float y[MAX_ROWS * 2 * PANEL];
    int total = all_panels(op), jobs = (total + 1) / 2, tiles = num_tiles(num_tokens), blocks = row_blocks(c, num_tokens, jobs);
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, blocks * jobs, 1, MOST_CLAIM, &i));)
        for (; n > 0; n--, i++) {
            int first = tile_row(num_tokens, i / jobs * tiles / blocks), end = tile_row(num_tokens, (i / jobs + 1) * tiles / blocks);
            int panel = i % jobs * 2, num = 0;
            PanelRef panels[2];
            for (; num < 2 && panel + num < total; num++) panels[num] = find_panel(op, panel + num, 2);
            dot_gemm(op, panels, num, x, first, end, y, finish_linear);
        }
}

void run_linear(Context *c, const Op *op) {
    int num_tokens = op_rows(c, op);
    if (num_tokens == 0) return;
    if (is_dot(op->mats->format)) linear_int8(c, op, num_tokens);
    else if (is_few(op, num_tokens)) linear_few(c, op, num_tokens);
    else linear_many(c, op, num_tokens);
}

/* ---- swiglu: out = silu(x Wgate) * (x Wup); both halves of an element are computed by the same thread ---- */

static void swiglu_few(Context *c, const Op *op, int num_tokens) {
    const PackedMatrix *gate = &op->mats[0], *up = &op->mats[1];
    int most = gemv_panels(op, num_tokens);
    for (int first, n; (n = pool_claim(c->plan->pool, &c->ticket, gate->num_panels, (most + 1) / 2, MOST_CLAIM, &first));)
        for (int num; n > 0; n -= num, first += num) {
            num = n < most ? n : most;
            float *g = c->scratch, *u = g + num_tokens * num * PANEL;
            gemv(gate, first, num, op->x, num_tokens, g);
            gemv(up, first, num, op->x, num_tokens, u);
            store_swiglu(op, g, u, num * PANEL, 0, num_tokens, first * PANEL, columns(gate, first, num));
        }
}

/* The gate's sums take the place that the up's sums leave free: half the rows of the scratch, or the other lanes. */
static void finish_swiglu(const Op *op, const PanelRef panels[], int num_panels, const float *y, int ld, int row, int rows) {
    const float *up = num_panels == 2 ? y + PANEL : y, *gate = num_panels == 2 ? y : y - MOST_TILES * MAX_ROWS * PANEL;
    store_swiglu(op, gate, up, ld, row, rows, panels->column, columns(panels->w, panels->panel, 1));
}

static void finish_nothing(const Op *op, const PanelRef panels[], int num_panels, const float *y, int ld, int row, int rows) {
    (void)op, (void)panels, (void)num_panels, (void)y, (void)ld, (void)row, (void)rows;
}

/* A job is a panel of each matrix: side by side in the register tile where it takes two. */
static void swiglu_many(Context *c, const Op *op, int num_tokens) {
    Rows x = rows_of(c, op, num_tokens);
    const PackedMatrix *gate = &op->mats[0], *up = &op->mats[1];
    float *tile = c->scratch, *y = tile + TILE_PANELS * CHUNK * PANEL;
    int jobs = gate->num_panels, blocks = row_blocks(c, num_tokens, jobs), tiles = num_tiles(num_tokens);
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, blocks * jobs, 1, MOST_CLAIM, &i));)
        for (; n > 0; n--, i++) {
            int first = i / jobs * tiles / blocks, end = (i / jobs + 1) * tiles / blocks, panel = i % jobs;
            PanelRef panels[] = {{gate, panel, panel * PANEL, gate->panel_bytes}, {up, panel, panel * PANEL, up->panel_bytes}};
            if (TILE_PANELS == 2) {
                gemm(op, panels, 2, &x, first, end, tile, y, finish_swiglu);
            } else {
                gemm(op, panels, 1, &x, first, end, tile, y, finish_nothing);
                gemm(op, panels + 1, 1, &x, first, end, tile, y + MOST_TILES * MAX_ROWS * PANEL, finish_swiglu);
            }
        }
}

static void swiglu_int8(Context *c, const Op *op, int num_tokens) {
    const QuantizedBlock *x = quantized_rows(c, op, num_tokens);
    const PackedMatrix *gate = &op->mats[0], *up = &op->mats[1];
    float y[MAX_ROWS * 2 * PANEL];
    int jobs = gate->num_panels, tiles = num_tiles(num_tokens), blocks = row_blocks(c, num_tokens, jobs);
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, blocks * jobs, 1, MOST_CLAIM, &i));)
        for (; n > 0; n--, i++) {
            int first = tile_row(num_tokens, i / jobs * tiles / blocks), end = tile_row(num_tokens, (i / jobs + 1) * tiles / blocks);
            int panel = i % jobs;
            PanelRef panels[] = {{gate, panel, panel * PANEL, gate->panel_bytes}, {up, panel, panel * PANEL, up->panel_bytes}};
            dot_gemm(op, panels, 2, x, first, end, y, finish_swiglu);
        }
}

void run_swiglu(Context *c, const Op *op) {
    int num_tokens = op_rows(c, op);
    if (num_tokens == 0) return;
    if (is_dot(op->mats->format)) swiglu_int8(c, op, num_tokens);
    else if (is_few(op, num_tokens)) swiglu_few(c, op, num_tokens);
    else swiglu_many(c, op, num_tokens);
}
