#include "pool.h"

#include <stdlib.h>

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

/* How often a thread looks before it sleeps; a test that wants many sleepers sets both to 0. */
#ifndef WAIT_SPINS
#define WAIT_SPINS 4000 /* about 100 microseconds: longer than operators differ between threads that have a core each */
#endif
#ifndef IDLE_SPINS
#define IDLE_SPINS 2000 /* then an idle thread sleeps, so that a quiet server burns no CPU */
#endif

static uint32_t phase_of(unsigned long long next) { return (uint32_t)(next >> 32); }

/* True while the thread has to wait: for the end of its phase, or (phase NULL) for the others to leave the run. */
static int must_wait(Pool *pool, const uint32_t *phase) {
    return phase ? phase_of(atomic_load(&pool->next)) == *phase : atomic_load(&pool->leaving) > 0;
}

static void wait_while(Pool *pool, const uint32_t *phase) {
    for (int spins = 0; spins < WAIT_SPINS; spins++) {
        if (!must_wait(pool, phase)) return;
        RELAX();
    }
    /* Some thread has lost its core to another program. Sleep rather than yield: the scheduler wakes a sleeper at once,
     * but lets one that yields wait for a whole time slice, every time anew. A sleeper counts itself before it looks at
     * the condition, whoever changes the condition does so before looking at the count: one of them sees the other. */
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (must_wait(pool, phase)) pthread_cond_wait(&pool->passed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void wake_sleepers(Pool *pool) {
    if (atomic_load(&pool->sleepers) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->passed);
    pthread_mutex_unlock(&pool->lock);
}

Ticket pool_ticket(const Pool *pool) { return (Ticket){.phase = pool->first_phase}; }

void pool_wait(Pool *pool, Ticket *ticket) {
    if (!ticket->entered) return; /* an operator without work: no thread has entered a phase for it */
    wait_while(pool, &ticket->phase);
    ticket->phase++;
    ticket->entered = 0;
}

int pool_claim(Pool *pool, Ticket *ticket, int total, int least, int most, int *first) {
    if (total <= 0) return 0;
    ticket->entered = 1;
    if (ticket->held > 0 && atomic_fetch_add(&pool->done, ticket->held) + ticket->held == total) {
        atomic_store(&pool->done, 0);
        atomic_store(&pool->next, (unsigned long long)(uint32_t)(ticket->phase + 1) << 32);
        wake_sleepers(pool);
    }
    ticket->held = 0;
    unsigned long long next = atomic_load(&pool->next);
    int size;
    do {
        int left = total - (int)(uint32_t)next;
        if (phase_of(next) != ticket->phase || left <= 0) return 0; /* over, perhaps long ago */
        size = left / (2 * pool->num_threads) / least * least;
        size = size < least ? least : size > most ? most : size;
        size = size < left ? size : left;
    } while (!atomic_compare_exchange_weak(&pool->next, &next, next + (unsigned)size));
    *first = (int)(uint32_t)next;
    return ticket->held = size;
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
    for (unsigned seen = 0; wait_for_run(start.pool, seen); seen++) {
        start.pool->body(start.pool->argument, start.thread);
        if (atomic_fetch_sub(&start.pool->leaving, 1) == 1) wake_sleepers(start.pool);
    }
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
    pool->first_phase = phase_of(atomic_load(&pool->next));
    atomic_store(&pool->leaving, pool->num_threads - 1);
    if (pool->num_threads > 1) announce(pool, 0);
    body(argument, 0);
    wait_while(pool, NULL); /* a thread that is behind may still look at the step's arrays */
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
