/* What this machine can do at most, so that a kernel's time has something to be held against: fused multiply-adds that
 * touch no memory, and reading that computes nothing. (The roofline: Williams, Waterman and Patterson 2009.) */
#include "plan.h"

#include <stdlib.h>
#include <time.h>

#if VW == 16 || defined(__ARM_NEON)
enum { CHAINS = 16 }; /* independent sums: latency times the units that work side by side, and some to spare */
#else
enum { CHAINS = 12 }; /* the same, with sixteen registers in all */
#endif
enum { CALLS = 1 << 14, PIECE = 1 << 16 /* floats */ };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct {
    Pool *pool;
    int total, reads;       /* pieces of work; whether they read or multiply */
    const float *memory;
    float *sinks;           /* [threads][16]: results that somebody may look at, so that nothing is left out */
} Job;

static float multiply_add(int calls, float seed) {
    vf sums[CHAINS], factor = vf_set(0.999f), addend = vf_set(seed);
    UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vf_set((float)i + seed);
    for (int n = 0; n < calls; n++) UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = vf_fma(sums[i], factor, addend);
    vf total = vf_set(0.0f);
    UNROLL for (int i = 0; i < CHAINS; i++) total += sums[i];
    return vf_sum(total);
}

static float read_floats(const float *from, int count) {
    vf sums[8];
    UNROLL for (int i = 0; i < 8; i++) sums[i] = vf_set(0.0f);
    for (int n = 0; n < count; n += 8 * VW) UNROLL for (int i = 0; i < 8; i++) sums[i] += vf_load(from + n + i * VW);
    vf total = vf_set(0.0f);
    UNROLL for (int i = 0; i < 8; i++) total += sums[i];
    return vf_sum(total);
}

static void work(void *raw, int thread) {
    Job *job = raw;
    Ticket ticket = pool_ticket(job->pool);
    int first, count;
    while ((count = pool_claim(job->pool, &ticket, job->total, 1, 4, &first)))
        for (int i = first; i < first + count; i++)
            job->sinks[thread * 16] +=
                job->reads ? read_floats(job->memory + (size_t)i * PIECE, PIECE) : multiply_add(CALLS, (float)(thread + i));
    pool_wait(job->pool, &ticket);
}

/* The shortest of the runs that fit into `seconds` (three at least), in seconds; negative when memory is refused. */
static double best_s(Job *job, int threads, double seconds) {
    double best = -1.0, end;
    job->pool = pool_create(threads);
    job->sinks = calloc((size_t)threads * 16, sizeof(float));
    if (job->pool && job->sinks) {
        end = now_s() + seconds;
        for (int runs = 0; runs < 3 || now_s() < end; runs++) {
            double start = now_s(), took;
            pool_run(job->pool, work, job);
            took = now_s() - start;
            if (best < 0 || took < best) best = took;
        }
    }
    if (job->pool) pool_destroy(job->pool);
    free(job->sinks);
    return best;
}

/* fp32 operations per second of all threads together, a fused multiply-add counting as two; negative: no memory. */
AIE_EXPORT double aie_peak_flops(int threads, double seconds) {
    Job job = {.total = 16 * threads};
    double took = best_s(&job, threads, seconds);
    return took <= 0 ? -1.0 : 2.0 * CHAINS * VW * (double)CALLS * job.total / took;
}

/* Bytes per second that all threads together read from `bytes` of memory; negative: no memory. */
AIE_EXPORT double aie_peak_read(int threads, int64_t bytes, double seconds) {
    Job job = {.total = (int)(bytes / (int64_t)(PIECE * sizeof(float))), .reads = 1};
    void *memory = NULL;
    size_t size = (size_t)job.total * PIECE * sizeof(float);
    if (job.total < 1 || posix_memalign(&memory, 64, size)) return -1.0;
    memset(memory, 1, size); /* every page its own: zero pages would all be the same one, in the cache */
    job.memory = memory;
    double took = best_s(&job, threads, seconds);
    free(memory);
    return took <= 0 ? -1.0 : (double)size / took;
}
