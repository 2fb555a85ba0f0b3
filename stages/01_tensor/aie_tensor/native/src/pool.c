#include "pool.h"

#include <stdlib.h>

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

enum {
    BARRIER_SPINS = 4000, /* about 100 microseconds: longer than operators differ between threads that have a core each */
    IDLE_SPINS = 2000     /* then an idle thread sleeps, so that a quiet server burns no CPU */
};

void pool_barrier(Pool *pool) {
    if (pool->num_threads == 1) {
        atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
        return;
    }
    unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->num_threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
        atomic_store(&pool->phase, phase + 1); /* sequentially consistent with `sleepers`: see below */
        if (atomic_load(&pool->sleepers) > 0) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_broadcast(&pool->passed);
            pthread_mutex_unlock(&pool->lock);
        }
        return;
    }
    for (int spins = 0; spins < BARRIER_SPINS; spins++) {
        if (atomic_load_explicit(&pool->phase, memory_order_acquire) != phase) return;
        RELAX();
    }
    /* Some thread has lost its core to another program. Sleep rather than yield: the scheduler wakes a sleeper at once,
     * but lets one that yields wait for a whole time slice, at every barrier anew. A sleeper counts itself before it
     * looks at the phase, the last arrival changes the phase before it looks at the count: one of them sees the other. */
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->phase) == phase) pthread_cond_wait(&pool->passed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

int pool_claim(Pool *pool, int total, int least, int most, int *first) {
    int start = atomic_load_explicit(&pool->next, memory_order_relaxed), size;
    do {
        int left = total - start;
        if (left <= 0) return 0;
        size = left / (2 * pool->num_threads) / least * least;
        size = size < least ? least : size > most ? most : size;
        size = size < left ? size : left;
    } while (!atomic_compare_exchange_weak_explicit(&pool->next, &start, start + size, memory_order_relaxed,
                                                    memory_order_relaxed));
    *first = start;
    return size;
}

static int wait_for_run(Pool *pool, unsigned seen) {
    for (int spins = 0; spins < IDLE_SPINS; spins++) {
        if (atomic_load_explicit(&pool->run, memory_order_acquire) != seen) break;
        RELAX();
    }
    pthread_mutex_lock(&pool->lock);
    while (atomic_load_explicit(&pool->run, memory_order_acquire) == seen) pthread_cond_wait(&pool->wake, &pool->lock);
    int stopping = pool->stopping;
    pthread_mutex_unlock(&pool->lock);
    return !stopping;
}

typedef struct {
    Pool *pool;
    int thread;
} Start;

static void *worker(void *raw) {
    Start start = *(Start *)raw;
    free(raw);
    for (unsigned seen = 0; wait_for_run(start.pool, seen); seen++) start.pool->body(start.pool->argument, start.thread);
    return NULL;
}

static void announce(Pool *pool, int stopping) {
    pthread_mutex_lock(&pool->lock);
    pool->stopping = stopping;
    atomic_fetch_add_explicit(&pool->run, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(Pool *pool, PoolBody body, void *argument) {
    pool->body = body;
    pool->argument = argument;
    if (pool->num_threads > 1) announce(pool, 0);
    body(argument, 0);
}

void pool_destroy(Pool *pool) {
    if (pool->num_started > 0) announce(pool, 1);
    for (int i = 0; i < pool->num_started; i++) pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->passed);
    free(pool->threads);
    free(pool);
}

Pool *pool_create(int num_threads) {
    void *memory;
    if (posix_memalign(&memory, 64, sizeof(Pool))) return NULL;
    Pool *pool = memory;
    *pool = (Pool){.num_threads = num_threads};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->passed, NULL);
    pool->threads = calloc((size_t)num_threads, sizeof(pthread_t));
    for (int i = 1; pool->threads && i < num_threads; i++) {
        Start *start = malloc(sizeof *start);
        if (!start) break;
        *start = (Start){pool, i};
        if (pthread_create(&pool->threads[i - 1], NULL, worker, start)) {
            free(start);
            break;
        }
        pool->num_started++;
    }
    if (pool->num_started == num_threads - 1 && pool->threads) return pool;
    pool_destroy(pool);
    return NULL;
}
