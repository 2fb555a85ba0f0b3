/* Non-maximum suppression: of boxes that overlap too much the best one stays. How many stay is known only afterwards, so
 * this is a call of its own and no operator of a plan. */
#include "plan.h"

#include <stdlib.h>

typedef struct {
    float score;
    int32_t index;
} Scored;

/* Best first, of equals the first first, NaN last. */
static int by_score(const void *a, const void *b) {
    const Scored *p = a, *q = b;
    int p_nan = p->score != p->score, q_nan = q->score != q->score;
    if (p_nan != q_nan) return p_nan - q_nan;
    if (p->score != q->score && !p_nan) return p->score < q->score ? 1 : -1;
    return p->index - q->index;
}

static float side(float low, float high) { return high - low > 0.0f ? high - low : 0.0f; }

static float area(const float *b) { return side(b[0], b[2]) * side(b[1], b[3]); }

static int overlaps(const float *a, const float *b, float iou) {
    float width = side(a[0] > b[0] ? a[0] : b[0], a[2] < b[2] ? a[2] : b[2]);
    float shared = width * side(a[1] > b[1] ? a[1] : b[1], a[3] < b[3] ? a[3] : b[3]);
    return shared > iou * (area(a) + area(b) - shared);
}

/* boxes [n][4] as x1, y1, x2, y2, scores [n] -> kept [.], at most `most`; how many, or -1 when memory is refused. */
AIE_EXPORT int aie_nms(const float *boxes, const float *scores, int n, float iou, int most, int64_t *kept) {
    Scored *order = malloc(sizeof(Scored) * (size_t)(n ? n : 1));
    int count = 0;
    if (!order) return -1;
    for (int i = 0; i < n; i++) order[i] = (Scored){scores[i], i};
    qsort(order, (size_t)n, sizeof *order, by_score);
    for (int i = 0; i < n && count < most; i++) {
        int beaten = 0;
        for (int j = 0; j < count && !beaten; j++) beaten = overlaps(boxes + 4 * kept[j], boxes + 4 * order[i].index, iou);
        if (!beaten) kept[count++] = order[i].index;
    }
    free(order);
    return count;
}
