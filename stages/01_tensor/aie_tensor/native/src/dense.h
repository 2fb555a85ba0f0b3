/* Shapes that the operators on images, signals and plain vectors need; native/structs.py mirrors them. Everything lies as
 * [item][channel][height][width], and an operator sees one item as one row. */
#ifndef AIE_DENSE_H
#define AIE_DENSE_H

#include "plan.h"

enum { MAX_DIMS = 8 };
enum { REDUCE_MEAN, REDUCE_SUM, REDUCE_MAX };

/* Convolution and pooling: pairs are height, width. */
typedef struct {
    int32_t channels, height, width, out_channels, out_height, out_width, groups, count_padding;
    int32_t kernel[2], stride[2], padding[2], dilation[2];
} Window;

/* A walk over an item's elements: `sizes` of its axes, and how far apart neighbours lie in x and in out. */
typedef struct {
    int32_t num_dims, in_offset, out_offset, num_inner; /* the last num_inner axes are those that a reduction sums over */
    int32_t sizes[MAX_DIMS], in_strides[MAX_DIMS], out_strides[MAX_DIMS];
} Walk;

/* One axis of an item: [outer][length][inner]; k: how many of it are wanted. */
typedef struct {
    int32_t outer, length, inner, k;
} Strip;

size_t conv_scratch_floats(const Op *);
size_t strip_scratch_floats(const Op *);

void run_conv(Context *, const Op *);
void run_window(Context *, const Op *);
void run_channels(Context *, const Op *);
void run_group_norm(Context *, const Op *);
void run_copy(Context *, const Op *);
void run_reduce(Context *, const Op *);
void run_softmax(Context *, const Op *);
void run_top_k(Context *, const Op *);

#endif
