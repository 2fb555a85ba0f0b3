/* Convolution as a product: the patches under the kernel, one row each, times the kernels, packed as any matrix is.
 *
 * A work item is some output pixels of one item and group, perhaps for a part of the output channels. Its patches are
 * gathered into scratch memory and multiplied by the register tile of micro.h. Each output element adds its products in
 * one order (channel, row, column of the kernel), so its bits depend on nothing else in the batch. */
#include "dense.h"
#include "micro.h"

enum { PATCH_FLOATS = 32768, MOST_TILES = 4, CHUNK = 256 };

static int depth(const Window *w) { return w->channels / w->groups * w->kernel[0] * w->kernel[1]; }

static int pixels_per_tile(const Window *w) {
    int tiles = PATCH_FLOATS / depth(w) / MAX_ROWS;
    return MAX_ROWS * (tiles < 1 ? 1 : tiles > MOST_TILES ? MOST_TILES : tiles);
}

size_t conv_scratch_floats(const Op *op) {
    return (size_t)pixels_per_tile(op->shape) * ((size_t)depth(op->shape) + PANEL * TILE_PANELS);
}

/* One row of a patch: kernel[1] pixels of an image row, from `column` on; zeros beyond the edges. */
static void gather_row(const Window *w, const float *row, int column, float *out) {
    for (int j = 0; j < w->kernel[1]; j++, column += w->dilation[1]) out[j] = column >= 0 && column < w->width ? row[column] : 0.0f;
}

/* The patch of one output pixel over the channels of a group. */
static void gather(const Window *w, const float *x, int pixel, float *out) {
    int top = pixel / w->out_width * w->stride[0] - w->padding[0], left = pixel % w->out_width * w->stride[1] - w->padding[1];
    for (int c = 0; c < w->channels / w->groups; c++, x += (size_t)w->height * (size_t)w->width)
        for (int i = 0; i < w->kernel[0]; i++, out += w->kernel[1]) {
            int line = top + i * w->dilation[0];
            if (line >= 0 && line < w->height) gather_row(w, x + (size_t)line * (size_t)w->width, left, out);
            else memset(out, 0, sizeof(float) * (size_t)w->kernel[1]);
        }
}

/* The patches of a kernel of one element: a column of numbers from each channel. Channel by channel, as they lie. */
static void gather_points(const Window *w, const float *x, int first, int pixels, float *out) {
    int places[MAX_ROWS * MOST_TILES], channels = w->channels / w->groups;
    for (int p = 0; p < pixels; p++)
        places[p] = (first + p) / w->out_width * w->stride[0] * w->width + (first + p) % w->out_width * w->stride[1];
    for (int c = 0; c < channels; c++, x += (size_t)w->height * (size_t)w->width)
        for (int p = 0; p < pixels; p++) out[(size_t)p * (size_t)channels + (size_t)c] = x[places[p]];
}

static void gather_all(const Window *w, const float *x, int first, int pixels, float *out) {
    if (w->kernel[0] == 1 && w->kernel[1] == 1 && w->padding[0] == 0 && w->padding[1] == 0) gather_points(w, x, first, pixels, out);
    else for (int p = 0; p < pixels; p++) gather(w, x, first + p, out + (size_t)p * (size_t)depth(w));
}

/* y [pixels][stride] -> `count` channels of the output from `channel` on, turned to [channel][pixel] */
static void store_pixels(const Op *op, const Window *w, const float *y, int stride, int pixels, int channel, int count, float *out) {
    for (int o = 0; o < count; o++) {
        float bias = op->bias ? op->bias[channel + o] : 0.0f, *to = out + (size_t)(channel + o) * (size_t)(w->out_height * w->out_width);
        for (int p = 0; p < pixels; p++) to[p] = op->bias ? y[p * stride + o] + bias : y[p * stride + o];
    }
}

/* Output pixels from `first` on, panels `begin` .. `end` of one group, of the item whose x and out are given. */
static void convolve(Context *c, const Op *op, int group, int first, int pixels, int begin, int end, const float *x, float *out) {
    const Window *w = op->shape;
    const PackedMatrix *kernels = &op->mats[group];
    int num_k = depth(w);
    float *patches = c->scratch, *y = patches + (size_t)pixels_per_tile(w) * (size_t)num_k;
    x += (size_t)group * (size_t)(w->channels / w->groups) * (size_t)w->height * (size_t)w->width;
    gather_all(w, x, first, pixels, patches);
    for (int panel = begin; panel < end; panel += TILE_PANELS) {
        int num = end - panel < TILE_PANELS ? end - panel : TILE_PANELS;
        for (int k = 0; k < num_k; k += CHUNK) {
            const float *panels[TILE_PANELS];
            for (int i = 0; i < num; i++)
                panels[i] = (const float *)(const void *)(kernels->data + (panel + i) * kernels->panel_bytes) + (size_t)k * PANEL;
            micro_rows(pixels, num, patches + k, num_k, panels, PANEL, num_k - k < CHUNK ? num_k - k : CHUNK, y, num * PANEL, k > 0);
        }
        int channel = panel * PANEL, count = kernels->n - channel < num * PANEL ? kernels->n - channel : num * PANEL;
        store_pixels(op, w, y, num * PANEL, pixels, group * kernels->n + channel, count, out + first);
    }
}

void run_conv(Context *c, const Op *op) {
    const Window *w = op->shape;
    int all = w->out_height * w->out_width, per_tile = pixels_per_tile(w), tiles = (all + per_tile - 1) / per_tile;
    int pairs = (op->mats->num_panels + TILE_PANELS - 1) / TILE_PANELS, whole = op_rows(c, op) * w->groups * tiles;
    if (whole == 0) return;
    /* few items: let several threads share one, each for its part of the output channels */
    int parts = (4 * c->plan->spec.num_threads + whole - 1) / whole;
    parts = parts < pairs ? parts : pairs;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, whole * parts, 1, 4, &i));)
        for (; n > 0; n--, i++) {
            int part = i % parts, tile = i / parts % tiles, group = i / parts / tiles % w->groups, item = i / parts / tiles / w->groups;
            int begin = part * pairs / parts * TILE_PANELS, end = (part + 1) * pairs / parts * TILE_PANELS;
            end = end < op->mats->num_panels ? end : op->mats->num_panels;
            int first = tile * per_tile, pixels = all - first < per_tile ? all - first : per_tile;
            convolve(c, op, group, first, pixels, begin, end, op->x + (size_t)item * (size_t)op->width,
                     op->out + (size_t)item * (size_t)op->out_width);
        }
}
