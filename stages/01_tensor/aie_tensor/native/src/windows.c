/* Pooling, and what is done to every element of a channel. A work item is one channel, or group of channels, of one item. */
#include "dense.h"
#include "sums.h"

static float largest(const Window *w, const float *x, int top, int left) {
    float best = -INFINITY;
    for (int i = 0; i < w->kernel[0]; i++)
        for (int j = 0; j < w->kernel[1]; j++) {
            int line = top + i * w->dilation[0], column = left + j * w->dilation[1];
            if (line < 0 || line >= w->height || column < 0 || column >= w->width) continue;
            float v = x[line * w->width + column];
            best = v > best || v != v ? v : best; /* a NaN stays: nothing is greater */
        }
    return best;
}

static int clipped(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

/* Elements that count along one axis: what ceil_mode adds beyond the padding never does. */
static int counted(const Window *w, int begin, int axis, int size) {
    int end = clipped(begin + w->kernel[axis], begin, size + w->padding[axis]);
    return w->count_padding ? end - begin : clipped(end, 0, size) - clipped(begin, 0, size);
}

static float average(const Window *w, const float *x, int top, int left) {
    double sum = 0.0;
    for (int line = clipped(top, 0, w->height); line < clipped(top + w->kernel[0], 0, w->height); line++)
        for (int column = clipped(left, 0, w->width); column < clipped(left + w->kernel[1], 0, w->width); column++)
            sum += x[line * w->width + column];
    return (float)(sum / (counted(w, top, 0, w->height) * counted(w, left, 1, w->width)));
}

void run_window(Context *c, const Op *op) {
    const Window *w = op->shape;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * w->channels, 1, 8, &i));)
        for (; n > 0; n--, i++) {
            const float *x = op->x + (size_t)i * (size_t)(w->height * w->width);
            float *out = op->out + (size_t)i * (size_t)(w->out_height * w->out_width);
            for (int p = 0; p < w->out_height * w->out_width; p++) {
                int top = p / w->out_width * w->stride[0] - w->padding[0], left = p % w->out_width * w->stride[1] - w->padding[1];
                out[p] = op->kind == OP_MAX_POOL ? largest(w, x, top, left) : average(w, x, top, left);
            }
        }
}

/* out = x * weight + bias, one of each for a channel (batch normalisation with its statistics folded in). */
void run_channels(Context *c, const Op *op) {
    int channels = op->num_heads, inner = op->width / channels;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * channels, 1, 8, &i));)
        for (; n > 0; n--, i++) {
            const float *x = op->x + (size_t)i * (size_t)inner;
            float *out = op->out + (size_t)i * (size_t)inner;
            for (int j = 0; j < inner; j++) out[j] = float_fma(x[j], op->weight[i % channels], op->bias[i % channels]);
        }
}

/* num_heads groups of num_kv_heads channels each, every group of an item normalised by itself (Wu and He 2018). */
void run_group_norm(Context *c, const Op *op) {
    int groups = op->num_heads, per_group = op->num_kv_heads, width = op->width / groups, inner = width / per_group;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * groups, 1, 4, &i));)
        for (; n > 0; n--, i++) {
            const float *x = op->x + (size_t)i * (size_t)width;
            float *out = op->out + (size_t)i * (size_t)width;
            float mean = row_mean(x, width);
            float factor = (float)(1.0 / sqrt(row_sum(x, width, mean, 1) / width + (double)op->eps));
            for (int j = 0; j < width; j++) {
                int channel = i % groups * per_group + j / inner;
                out[j] = float_fma((x[j] - mean) * factor, op->weight[channel], op->bias[channel]);
            }
        }
}
