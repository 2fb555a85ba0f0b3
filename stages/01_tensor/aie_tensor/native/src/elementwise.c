/* Functions of one element, and of two. Rows are cut into pieces, so that all threads work on a single long row, too. */
#include "plan.h"
#include "vector_math.h"

enum { PIECE = 4096 };

#define MAP(result)                                        \
    for (int i = 0; i < count; i += VW) {                  \
        vf v = load_part(x + i, count - i);                \
        store_part(out + i, result, count - i);            \
    }                                                      \
    break
#define MAP_TWO(result)                                                             \
    for (int i = 0; i < count; i += VW) {                                           \
        vf v = load_part(x + i, count - i), w = load_part(y + i, count - i);        \
        store_part(out + i, result, count - i);                                     \
    }                                                                               \
    break

static void map(int kind, float constant, const float *x, const float *y, int count, float *out) {
    switch (kind) {
    case OP_MUL: MAP_TWO(v * w);
    case OP_ADD: MAP_TWO(v + w);
    case OP_SILU: MAP(v / (1.0f + vf_exp(-v)));
    case OP_RELU: MAP(vf_select(v < 0.0f, vf_set(0.0f), v));
    case OP_SIGMOID: MAP(vf_sigmoid(v));
    case OP_TANH: MAP(vf_tanh(v));
    case OP_GELU: MAP(vf_gelu(v));
    case OP_GELU_TANH: MAP(vf_gelu_tanh(v));
    case OP_QUICK_GELU: MAP(v / (1.0f + vf_exp(-1.702f * v)));
    case OP_SCALE: MAP(v * constant);
    case OP_SOFTCAP: MAP(constant * vf_tanh(v / constant));
    case OP_EXP: MAP(vf_exp(v));
    default: break;
    }
}

void run_elementwise(Context *c, const Op *op) {
    int pieces = (op->width + PIECE - 1) / PIECE;
    for (int i, n; (n = pool_claim(c->plan->pool, &c->ticket, op_rows(c, op) * pieces, 1, 8, &i));)
        for (; n > 0; n--, i++) {
            int begin = i % pieces * PIECE, count = op->width - begin < PIECE ? op->width - begin : PIECE;
            size_t at = (size_t)(i / pieces) * (size_t)op->width + (size_t)begin;
            map(op->kind, op->scale, op->x + at, op->y ? op->y + at : NULL, count, op->out + at);
        }
}

/* x [n] -> f(x) [n] for an operator of one element; exported for the tests of their accuracy. */
AIE_EXPORT void aie_map(int kind, float constant, const float *x, int n, float *out) { map(kind, constant, x, NULL, n, out); }
