/* Many tokens: TILE_PANELS panels at a time are unpacked into a tile that stays in the first cache (float32 panels are
 * read where they are), and the register tile of micro.h multiplies it with all rows. So unpacking is paid once for some
 * hundred rows.
 *
 * x is packed first, once for all threads: rows of a long matrix lie some thousand bytes apart, which is where caches
 * get in each other's way, and as [tile][k][MAX_ROWS] the register tile reads one stream. */
#include "matmul.h"

enum { WHOLE = 2048 }; /* k of float32 panels that are multiplied in one go, with the sums in registers */

void pack_tile(const Rows *x, int t, float *out) {
    int row = tile_row(x->num, t), rows = tile_row(x->num, t + 1) - row;
    const float *from[MAX_ROWS];
    for (int r = 0; r < MAX_ROWS; r++) from[r] = x->x + (size_t)(row + (r < rows ? r : 0)) * (size_t)x->k;
    for (int k = 0; k < x->k; k++, out += MAX_ROWS)
        UNROLL for (int r = 0; r < MAX_ROWS; r++) out[r] = from[r][k];
}

static const uint8_t *panel_at(const PanelRef *ref, int k) {
    return ref->w->data + ref->panel * ref->w->panel_bytes + k / BLOCK * block_bytes(ref->w->format) * PANEL;
}

/* The lines that `finish` will write, and perhaps read, while the tile is computed. */
static void prefetch_out(const Op *op, const PanelRef panels[], int num_panels, int row, int rows) {
    for (int r = row; r < row + rows; r++)
        for (int p = 0; p < num_panels; p++) {
            size_t at = (size_t)r * (size_t)op->out_width + (size_t)panels[p].column;
            __builtin_prefetch(op->out + at, 1);
            if (op->y) __builtin_prefetch(op->y + at);
        }
}

/* Tile t of x times k0 .. k0 + num_k of the panels, whose floats are at b. */
static void multiply_tile(const PanelRef panels[], int num_panels, const Rows *x, int t, int k0, int num_k,
                          const float *const b[], float *y, Ahead *ahead, ptrdiff_t offset) {
    int row = tile_row(x->num, t), rows = tile_row(x->num, t + 1) - row;
    for (int p = 0; p < num_panels; p++) ahead->at[p] = panel_at(&panels[p], k0) + panels[p].ahead + offset;
    const float *from = x->packed ? x->x + ((size_t)t * (size_t)x->k + (size_t)k0) * MAX_ROWS
                                  : x->x + (size_t)row * (size_t)x->k + k0;
    micro_ahead(rows, num_panels, from, x->packed ? 0 : x->k, b, num_k, y, num_panels * PANEL, k0 > 0, ahead);
}

void gemm(const Op *op, const PanelRef panels[], int num_panels, const Rows *x, int first, int end, float *tile, float *y,
          Finish *finish) {
    int chunk = WHOLE, ld = num_panels * PANEL, start = tile_row(x->num, first);
    for (int p = 0; p < num_panels; p++) chunk = panels[p].w->format == FORMAT_F32 ? chunk : CHUNK;
    for (int k0 = 0; k0 < x->k; k0 += chunk) {
        const float *b[TILE_PANELS];
        int num_k = x->k - k0 < chunk ? x->k - k0 : chunk, last = k0 + num_k == x->k;
        ptrdiff_t per_k = 0; /* bytes of weights */
        for (int p = 0; p < num_panels; p++) {
            ptrdiff_t bytes = (block_bytes(panels[p].w->format) * PANEL + BLOCK - 1) / BLOCK;
            per_k = bytes > per_k ? bytes : per_k;
            b[p] = (const float *)(const void *)panel_at(&panels[p], k0);
            if (panels[p].w->format == FORMAT_F32) continue;
            b[p] = tile + p * CHUNK * PANEL;
            unpack_panel(panels[p].w, panels[p].panel, k0, num_k, tile + p * CHUNK * PANEL);
        }
        Ahead ahead = {.step = (per_k + end - first - 1) / (end - first)};
        for (int t = first; t < end; t++) {
            int row = tile_row(x->num, t), rows = tile_row(x->num, t + 1) - row;
            ptrdiff_t done = (ptrdiff_t)(t - first) * ahead.step * num_k;
            float *to = y + (row - start) * ld;
            if (last) prefetch_out(op, panels, num_panels, row, rows);
            multiply_tile(panels, num_panels, x, t, k0, num_k, b, to, &ahead, done < per_k * num_k ? done : per_k * num_k);
            if (last) finish(op, panels, num_panels, to, ld, row, rows);
        }
    }
}
