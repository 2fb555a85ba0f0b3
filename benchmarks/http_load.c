/* A load client that costs little: N connections to a port of this machine, each sends the same request again as soon
 * as it is answered (a closed loop, HTTP/1.1, kept alive), until a time or a number is reached.
 *
 *   http_load PORT CONNECTIONS SECONDS MOST_REQUESTS FILE
 *
 * FILE holds one whole request, head and body. Every answer must have status 200, a Content-Length, and as many bytes
 * of body as the first one had. Prints one JSON object; anything unexpected ends it with a sentence and status 1.
 *
 * The first tenth of the time (at most half a second) warms up and is not counted.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_CONNECTIONS 1024
#define BUFFER_BYTES (64 * 1024)
#define NUM_BUCKETS 4096 /* of latencies: 64 for each doubling, from a microsecond on */
#define SILENCE_MS 10000 /* without any answer: the server hangs */

struct connection {
    int fd;
    size_t sent;     /* bytes of the request that have left */
    size_t have;     /* bytes of the answer that have come */
    size_t need;     /* its length, once the head is read; 0 before */
    double began_s;
    char buffer[BUFFER_BYTES];
};

static struct connection *connections;
static struct pollfd *polls;
static char *request;
static size_t request_bytes;
static long body_bytes = -1;
static long latencies[NUM_BUCKETS];
static long num_done, num_counted;

static void fail(const char *sentence, ...) {
    va_list arguments;
    va_start(arguments, sentence);
    vfprintf(stderr, sentence, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Buckets grow by doublings, each divided evenly: 64 to a doubling is a resolution of 1.6 %. */
static int bucket_of(double seconds) {
    unsigned long us = (unsigned long)(seconds * 1e6);
    int doublings = 0;
    while (us >= 128) {
        us >>= 1;
        doublings++;
    }
    int bucket = doublings * 64 + (int)us;
    return bucket < NUM_BUCKETS ? bucket : NUM_BUCKETS - 1;
}

static double bucket_us(int bucket) {
    if (bucket < 128) return bucket + 0.5;
    int doublings = bucket / 64 - 1;
    return ((double)(bucket - doublings * 64) + 0.5) * (double)(1ul << doublings);
}

static double percentile_us(double share) {
    long wanted = (long)(share * (double)num_counted + 0.999999), seen = 0;
    for (int bucket = 0; bucket < NUM_BUCKETS; bucket++) {
        seen += latencies[bucket];
        if (seen >= wanted && seen > 0) return bucket_us(bucket);
    }
    return 0;
}

static void send_on(struct connection *one, struct pollfd *poll) {
    while (one->sent < request_bytes) {
        ssize_t sent = send(one->fd, request + one->sent, request_bytes - one->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            poll->events = POLLIN | POLLOUT;
            return;
        }
        if (sent < 0) fail("sending failed: %s", strerror(errno));
        one->sent += (size_t)sent;
    }
    poll->events = POLLIN;
}

static void begin(struct connection *one, struct pollfd *poll) {
    one->sent = one->have = one->need = 0;
    one->began_s = now_s();
    send_on(one, poll);
}

/* The answer's whole length, from its head; 0 while the head is not complete. */
static size_t length_of(struct connection *one) {
    one->buffer[one->have] = 0;
    char *end = strstr(one->buffer, "\r\n\r\n");
    if (end == NULL) return 0;
    if (strncmp(one->buffer, "HTTP/1.1 200 ", 13) != 0) fail("not a 200: %.300s", one->buffer);
    *end = 0;
    char *length = strcasestr(one->buffer, "\r\nContent-Length:");
    if (length == NULL) fail("an answer without Content-Length: %.300s", one->buffer);
    if (strcasestr(one->buffer, "\r\nConnection: close") != NULL) fail("the server closes: %.300s", one->buffer);
    long body = atol(length + 17);
    if (body_bytes < 0) body_bytes = body;
    if (body != body_bytes) fail("a body of %ld bytes; the first had %ld", body, body_bytes);
    size_t whole = (size_t)(end - one->buffer) + 4 + (size_t)body;
    if (whole >= BUFFER_BYTES) fail("an answer of %zu bytes is too long for this client", whole);
    return whole;
}

/* Whether the answer is complete. */
static int receive(struct connection *one) {
    ssize_t got = recv(one->fd, one->buffer + one->have, BUFFER_BYTES - 1 - one->have, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got < 0) fail("receiving failed: %s", strerror(errno));
    if (got == 0) fail("the server hung up after %ld answers", num_done);
    one->have += (size_t)got;
    if (one->need == 0) one->need = length_of(one);
    if (one->need == 0 || one->have < one->need) return 0;
    if (one->have > one->need) fail("more bytes than the answer's length says");
    return 1;
}

static void connect_all(int port, int count) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
            fail("no connection to port %d: %s", port, strerror(errno));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        connections[i].fd = polls[i].fd = fd;
    }
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail("%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    request = malloc((size_t)size + 1);
    if (size <= 0 || request == NULL || fread(request, 1, (size_t)size, file) != (size_t)size)
        fail("%s cannot be read", path);
    request_bytes = (size_t)size;
    fclose(file);
}

int main(int argc, char **argv) {
    if (argc != 6) fail("usage: http_load PORT CONNECTIONS SECONDS MOST_REQUESTS FILE");
    int port = atoi(argv[1]), count = atoi(argv[2]);
    double seconds = atof(argv[3]);
    long most = atol(argv[4]);
    if (port < 1 || count < 1 || count > MOST_CONNECTIONS || !(seconds > 0 && seconds <= 600) || most < 1)
        fail("out of range: port %d, %d connections, %g seconds, %ld requests", port, count, seconds, most);
    read_request(argv[5]);
    connections = calloc((size_t)count, sizeof *connections);
    polls = calloc((size_t)count, sizeof *polls);
    if (connections == NULL || polls == NULL) fail("out of memory");
    connect_all(port, count);

    double warm_s = seconds / 10 < 0.5 ? seconds / 10 : 0.5;
    double count_from_s = now_s() + warm_s, end_s = count_from_s + seconds, cpu_from_s = -1, from_s = 0, now = now_s();
    long num_begun = count;
    for (int i = 0; i < count; i++) begin(&connections[i], &polls[i]);
    while (num_done < num_begun) { /* what was begun is answered, or the server would see resets */
        int ready = poll(polls, (nfds_t)count, SILENCE_MS);
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) fail("no answer for %d s after %ld", SILENCE_MS / 1000, num_done);
        now = now_s();
        if (cpu_from_s < 0 && now >= count_from_s) {
            cpu_from_s = cpu_s();
            from_s = now;
        }
        for (int i = 0; i < count && ready > 0; i++) {
            if (polls[i].revents == 0) continue;
            ready--;
            struct connection *one = &connections[i];
            if (polls[i].revents & POLLOUT) send_on(one, &polls[i]);
            if ((polls[i].revents & ~POLLOUT) && receive(one)) {
                num_done++;
                if (cpu_from_s >= 0) {
                    latencies[bucket_of(now_s() - one->began_s)]++;
                    num_counted++;
                }
                if (now >= end_s || num_begun >= most) continue;
                num_begun++;
                begin(one, &polls[i]);
            }
        }
    }
    double took_s = now_s() - from_s;
    if (cpu_from_s < 0) fail("all %ld requests went into the warm-up", num_done);
    printf("{\"connections\": %d, \"requests\": %ld, \"seconds\": %.6f, \"cpu_s\": %.6f, \"body_bytes\": %ld, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"all_requests\": %ld}\n",
           count, num_counted, took_s, cpu_s() - cpu_from_s, body_bytes, percentile_us(0.5), percentile_us(0.99),
           num_done);
    return 0;
}
