/* The plan: a flat array of operators, walked by one call per step. native/structs.py mirrors these structures. */
#ifndef AIE_PLAN_H
#define AIE_PLAN_H

#include "formats.h"
#include "pool.h"

#define AIE_EXPORT __attribute__((visibility("default")))

enum {
    OP_EMBED, OP_RMS_NORM, OP_LAYER_NORM, OP_L2_NORM, OP_LINEAR, OP_SWIGLU, OP_ROPE, OP_ATTENTION, OP_ENCODER_ATTENTION,
    OP_SELECT_ROWS, OP_POOL_TOKENS,
    OP_SILU, OP_RELU, OP_SIGMOID, OP_TANH, OP_GELU, OP_GELU_TANH, OP_QUICK_GELU, OP_SCALE, OP_SOFTCAP, OP_EXP, OP_MUL, OP_ADD,
    OP_CONV, OP_MAX_POOL, OP_AVG_POOL, OP_CHANNELS, OP_GROUP_NORM, OP_COPY, OP_REDUCE, OP_SOFTMAX, OP_LOG_SOFTMAX, OP_TOP_K, OP_ARGMAX,
    NUM_KINDS
};
enum { ROWS_TOKENS, ROWS_LOGITS, ROWS_SEQUENCES, ROWS_ITEMS, ROWS_FIXED };
enum { INDEX_TOKEN_IDS, INDEX_POSITIONS, INDEX_TOKEN_TYPES };
enum { POOL_MEAN, POOL_CLS, POOL_MAX, POOL_LAST };

/* Axes: T tokens of the step, R rows whose logits are wanted, S sequences, B items of a batch, C/K/N widths, H and G query
 * and kv heads, D head size. */
typedef struct {
    int32_t kind, rows;             /* OP_*, and over what it runs: ROWS_* */
    int32_t width, out_width;       /* floats in a row of x and of out */
    int32_t num_mats, layer;
    int32_t num_heads, num_kv_heads, head_dim, interleaved; /* num_heads of a norm: vectors side by side in a row */
    int32_t table_format;
    float eps, scale;               /* scale: of scores, of an embedding; the constant of scale and softcap */
    int32_t fixed_rows;             /* for ROWS_FIXED */
    int32_t kv_width, rotary_dim;   /* floats in a row of y and z of attention; features of a head that turn */
    int32_t window, index;          /* sliding window or 0; INDEX_* of an embedding, POOL_*, REDUCE_* */
    float softcap;                  /* of attention's scores, or 0 */
    int32_t reserved;
    int64_t table_row_bytes;
    const float *x, *y, *z;         /* inputs; y is the residual of a linear (or NULL); q, k, v of attention */
    float *out;
    const float *weight, *bias;     /* of a norm; linear's bias [N] or NULL */
    const float *cosines, *sines;   /* [max_context][rotary_dim / 2]; NULL: attention does not turn */
    const float *slopes;            /* ALiBi's [H] or NULL */
    const uint8_t *table;           /* embedding rows in the file's layout */
    const PackedMatrix *mats;       /* linear: side by side along N; swiglu: gate, up; convolution: one per group */
    const void *shape;              /* Window, Walk or Strip of dense.h */
} Op;

typedef struct {
    int32_t num_tokens, num_sequences, num_logit_rows, max_blocks;
    int32_t num_items, reserved;              /* B */
    const int32_t *token_ids, *positions;     /* [T] */
    const int32_t *token_types;               /* [T], encoders only */
    const int32_t *seq_starts, *context_lens; /* [S + 1], [S] */
    const int32_t *block_tables;              /* [S][max_blocks] */
    const int32_t *logit_rows;                /* [R] */
} Step;

typedef struct {
    int32_t num_ops, num_threads, max_tokens, profile; /* max_tokens: the most rows that an operator may have */
    int32_t num_blocks, num_layers, num_kv_heads, block_size, head_dim, max_group;
    int32_t max_head_dim, kv_format; /* KV_* of kv.h */
    const Op *ops;
    uint8_t *keys, *values;           /* [P][L][G][A x D]; within a slab keys are [D][A] and values [A][D] */
    float *key_scales, *value_scales; /* [P][L][G][A], int8 only */
    float *partials;                  /* of sequences whose spans are shared out among the threads */
    int64_t num_partials;             /* floats of it */
} PlanSpec;

typedef struct Plan {
    PlanSpec spec;
    const Step *step;
    Pool *pool;
    float **scratch;    /* one area per thread */
    float *packed_rows; /* of the product under way, see matmul.c */
    int64_t *op_ns;       /* [num_ops], thread 0's time in all runs, waiting included; with spec.profile */
    int64_t *last_end_ns; /* [num_ops], of the last run */
    int64_t last_start_ns;
} Plan;

/* What an operator sees: the plan, its own number among the threads, and its own scratch memory. */
typedef struct {
    Plan *plan;
    const Step *step;
    int thread;
    float *scratch;
    Ticket ticket; /* where this thread is among the pieces of work */
} Context;

size_t linear_scratch_floats(void);
size_t packed_rows_floats(const Op *, int max_tokens);
size_t attention_scratch_floats(int max_group, int head_dim);

/* Each of these is called by all threads at once and shares the work out by pool_claim. */
void run_embed(Context *, const Op *);
void run_norm(Context *, const Op *);
void run_linear(Context *, const Op *);
void run_swiglu(Context *, const Op *);
void run_rope(Context *, const Op *);
void run_attention(Context *, const Op *);
void run_encoder_attention(Context *, const Op *);
void run_select_rows(Context *, const Op *);
void run_pool_tokens(Context *, const Op *);
void run_argmax(Context *, const Op *);
void run_elementwise(Context *, const Op *);

void unpack_row(int format, int k, const uint8_t *row, float *out);

static inline int op_rows(const Context *c, const Op *op) {
    switch (op->rows) {
    case ROWS_TOKENS: return c->step->num_tokens;
    case ROWS_LOGITS: return c->step->num_logit_rows;
    case ROWS_SEQUENCES: return c->step->num_sequences;
    case ROWS_ITEMS: return c->step->num_items;
    default: return op->fixed_rows;
    }
}

#endif
