/* The plan: a flat array of operators, walked by one call per step. native/structs.py mirrors these structures. */
#ifndef AIE_PLAN_H
#define AIE_PLAN_H

#include "formats.h"
#include "pool.h"

#define AIE_EXPORT __attribute__((visibility("default")))

enum { OP_EMBED, OP_RMS_NORM, OP_LINEAR, OP_SWIGLU, OP_ROPE_ATTENTION, OP_SELECT_ROWS, OP_SILU, OP_MUL, OP_ADD, NUM_KINDS };
enum { ROWS_TOKENS, ROWS_LOGITS };

/* Axes: T tokens of the step, R rows whose logits are wanted, C/K/N widths, H and G query and kv heads, D head size. */
typedef struct {
    int32_t kind, rows;             /* OP_*, and whether it runs over T or R rows */
    int32_t width, out_width;       /* floats in a row of x and of out */
    int32_t num_mats, layer;
    int32_t num_heads, num_kv_heads, head_dim, interleaved;
    int32_t table_format;
    float eps, scale;
    int32_t reserved;
    int64_t table_row_bytes;
    const float *x, *y;             /* inputs; y is the residual of a linear (or NULL), the second operand of mul and add */
    float *out;
    const float *weight, *bias;     /* rms_norm's weight; linear's bias [N] or NULL */
    const float *cosines, *sines;   /* [max_context][D / 2] */
    const uint8_t *table;           /* embedding rows in the file's layout */
    const PackedMatrix *mats;       /* linear: side by side along N; swiglu: gate, up */
} Op;

typedef struct {
    int32_t num_tokens, num_sequences, num_logit_rows, max_blocks;
    const int32_t *token_ids, *positions;     /* [T] */
    const int32_t *seq_starts, *context_lens; /* [S + 1], [S] */
    const int32_t *block_tables;              /* [S][max_blocks] */
    const int32_t *logit_rows;                /* [R] */
} Step;

typedef struct {
    int32_t num_ops, num_threads, max_tokens, profile;
    int32_t num_layers, num_blocks, num_kv_heads, block_size, head_dim, max_group;
    const Op *ops;
    float *keys, *values; /* [L][P][G][A x D]; within a block keys are [D][A] and values [A][D] */
} PlanSpec;

typedef struct Plan {
    PlanSpec spec;
    const Step *step;
    Pool *pool;
    float **scratch;    /* one area per thread */
    int64_t *kind_ns;   /* [NUM_KINDS], thread 0's time, waiting included */
    int64_t *kind_calls;
} Plan;

/* What an operator sees: the plan, its own number among the threads, and its own scratch memory. */
typedef struct {
    Plan *plan;
    const Step *step;
    int thread;
    float *scratch;
    Ticket ticket; /* where this thread is among the pieces of work */
} Context;

size_t linear_scratch_floats(int max_tokens);
size_t attention_scratch_floats(int max_group, int head_dim);

/* Each of these is called by all threads at once and shares the work out by pool_claim. */
void run_embed(Context *, const Op *);
void run_rms_norm(Context *, const Op *);
void run_linear(Context *, const Op *);
void run_swiglu(Context *, const Op *);
void run_rope_store(Context *, const Op *);
void run_attend(Context *, const Op *);
void run_select_rows(Context *, const Op *);
void run_elementwise(Context *, const Op *);

void unpack_row(int format, int k, const uint8_t *row, float *out);

static inline int op_rows(const Context *c, const Op *op) {
    return op->rows == ROWS_LOGITS ? c->step->num_logit_rows : c->step->num_tokens;
}

#endif
