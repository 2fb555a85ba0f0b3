/* A server of the OpenAI API that generates nothing: it answers by a script, to the microsecond, and notes what it did.
 *
 *   scripted_server PORT SCRIPTS RECORDS
 *
 * SCRIPTS holds a script per line; the k-th request is answered by the k-th line, and after the last comes the first
 * again. A script is a row of steps "MICROSECONDS:ACTION", each so long after the one before, the first after the
 * request's last byte has arrived; steps at the same moment go out in one piece. Actions:
 *
 *   head       status 200 and the headers of an event stream
 *   role       an event without text, as chats begin with
 *   textN      an event with a text of N tokens
 *   half rest  the two parts of an event with a text of one token
 *   usage      the event that counts tokens; as prompt_tokens it gives the number of the request, from 1 on
 *   done       [DONE] and the end of the body
 *   statusNNN  a whole answer with this status and an error object
 *   error      an event that says that something went wrong
 *   close      the connection is closed, reset: with RST; hold: nothing, until the client has gone
 *
 * Prints its port (PORT 0: any), works until SIGTERM, and then writes RECORDS, a line per request: number, script (from
 * 0 on), 1 for a chat, when its last byte arrived, when it ended, how ("ended" by the script, "left" by the client), and
 * when each step was written. Times are seconds on CLOCK_MONOTONIC, taken just before the system call that writes.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MOST_FDS 8192
#define IN_BYTES (256 * 1024) /* of a request */
#define OUT_BYTES (256 * 1024) /* of what goes out in one piece */
#define MOST_AT_ONCE 256 /* events of the kernel */

static void fail(const char *sentence, ...) {
    va_list arguments;
    va_start(arguments, sentence);
    vfprintf(stderr, sentence, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *grown(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    if (memory == NULL) fail("out of memory");
    return memory;
}

#include "scripted_answers.h"

struct record {
    int script, is_chat, has_left, num_written;
    int64_t arrival_ns, end_ns;
    int64_t *written_ns;
};
struct connection {
    int fd, is_closing;
    size_t have;    /* bytes of the request */
    long record;    /* -1: no script is being played */
    int next;       /* its step */
    int tokens;     /* that were written */
    int64_t due_ns; /* of that step */
    char in[IN_BYTES];
};
struct timer { /* fd and record tell whether it is still meant */
    int64_t due_ns;
    int fd;
    long record;
};

static struct record *records;
static long num_records, room_records;
static struct connection *connections[MOST_FDS];
static struct timer *heap;
static long heap_size, heap_room;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- timers: a binary heap, the earliest on top ---- */

static void push_timer(struct timer timer) {
    if (heap_size == heap_room) heap = grown(heap, (size_t)(heap_room = heap_room * 2 + 64) * sizeof *heap);
    long at = heap_size++;
    for (; at > 0 && heap[(at - 1) / 2].due_ns > timer.due_ns; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = timer;
}

static struct timer pop_timer(void) {
    struct timer top = heap[0], last = heap[--heap_size];
    long at = 0;
    for (long child; (child = 2 * at + 1) < heap_size; at = child) {
        if (child + 1 < heap_size && heap[child + 1].due_ns < heap[child].due_ns) child++;
        if (heap[child].due_ns >= last.due_ns) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* ---- connections ---- */

static void hang_up(struct connection *one, int with_reset) {
    struct linger linger = {1, 0};
    if (with_reset) setsockopt(one->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    connections[one->fd] = NULL;
    close(one->fd);
    free(one);
}

static void end_record(struct connection *one, int has_left, int64_t at_ns) {
    records[one->record].has_left = has_left;
    records[one->record].end_ns = at_ns;
    one->record = -1;
}

/* Whether all of it went. A client that does not read is none that a script was written for. */
static int send_out(struct connection *one) {
    ssize_t sent = out_bytes ? send(one->fd, out, out_bytes, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (sent >= 0 && (size_t)sent < out_bytes) fail("a client does not read");
    if (sent < 0 && errno != EPIPE && errno != ECONNRESET) fail("sending failed: %s", strerror(errno));
    return sent >= 0;
}

/* All steps that are due at this moment, in one piece. */
static void play(struct connection *one) {
    struct record *record = &records[one->record];
    struct script script = scripts[record->script];
    out_bytes = 0;
    int first = one->next, last = first;
    for (;; last++) {
        put_step(script.steps[last], one->record + 1, record->is_chat, &one->tokens);
        if (last + 1 == script.count || script.steps[last + 1].after_ns > 0) break;
    }
    int64_t at_ns = now_ns();
    for (int i = first; i <= last; i++) record->written_ns[record->num_written++] = at_ns;
    enum action action = script.steps[last].action;
    one->next = last + 1;
    if (!send_out(one)) {
        end_record(one, 1, at_ns);
        hang_up(one, 0);
    } else if (action == HOLD) { /* until it leaves */
    } else if (one->next < script.count) {
        one->due_ns += script.steps[one->next].after_ns;
        push_timer((struct timer){one->due_ns, one->fd, one->record});
    } else {
        end_record(one, 0, at_ns);
        if (one->is_closing || action == CLOSE || action == RESET) hang_up(one, action == RESET);
    }
}

static void begin_script(struct connection *one, int is_chat) {
    if (num_records == room_records)
        records = grown(records, (size_t)(room_records = room_records * 2 + 1024) * sizeof *records);
    int script = (int)(num_records % num_scripts);
    one->record = num_records++;
    one->next = one->tokens = 0;
    records[one->record] = (struct record){script, is_chat, 0, 0, now_ns(), 0,
                                           grown(NULL, (size_t)scripts[script].count * sizeof(int64_t))};
    one->due_ns = records[one->record].arrival_ns + scripts[script].steps[0].after_ns;
    push_timer((struct timer){one->due_ns, one->fd, one->record});
}

static void answer_get(struct connection *one, const char *path) {
    out_bytes = 0;
    if (strncmp(path, "/v1/models ", 11) == 0)
        put_whole(200, "{\"object\": \"list\", \"data\": [{\"id\": \"scripted\", \"object\": \"model\", \"created\": 0, "
                       "\"owned_by\": \"nobody\"}]}");
    else
        put_whole(strncmp(path, "/health ", 8) == 0 ? 200 : 404, "{}");
    if (!send_out(one) || one->is_closing) hang_up(one, 0);
}

/* A request that is complete is answered; whatever is none ends the connection. */
static void take_request(struct connection *one) {
    one->in[one->have] = 0;
    char *end = strstr(one->in, "\r\n\r\n");
    if (end == NULL) return;
    char *length = strcasestr(one->in, "\r\nContent-Length:");
    size_t need = (size_t)(end - one->in) + 4 + (length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0);
    if (need >= IN_BYTES) fail("a request of %zu bytes", need);
    if (one->have < need) return;
    if (one->have > need) fail("a request before the last was answered");
    char *closing = strcasestr(one->in, "\r\nConnection: close");
    one->is_closing = closing != NULL && closing < end;
    one->have = 0;
    *end = 0;
    char *target = strchr(one->in, ' ');
    if (strncmp(one->in, "POST ", 5) == 0 && strstr(one->in, "/completions HTTP/1.") != NULL)
        begin_script(one, strstr(one->in, "/chat/completions HTTP/1.") != NULL);
    else
        answer_get(one, target == NULL ? "" : target + 1);
}

static void receive(struct connection *one) {
    ssize_t got = recv(one->fd, one->in + one->have, IN_BYTES - 1 - one->have, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        if (one->record >= 0) end_record(one, 1, now_ns());
        hang_up(one, 0);
        return;
    }
    one->have += (size_t)got;
    if (one->record >= 0) fail("a request before the last was answered");
    take_request(one);
}

static void accept_all(int listener, int poller) {
    int fd, yes = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MOST_FDS) fail("more than %d connections", MOST_FDS);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        struct connection *one = connections[fd] = grown(NULL, sizeof *one);
        one->fd = fd;
        one->have = 0;
        one->record = -1;
        struct epoll_event wanted = {.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
    }
}

static void play_what_is_due(void) {
    while (heap_size > 0 && heap[0].due_ns <= now_ns()) {
        struct timer timer = pop_timer();
        struct connection *one = connections[timer.fd];
        if (one != NULL && one->record == timer.record) play(one);
    }
}

static void write_records(const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL) fail("%s: %s", path, strerror(errno));
    for (long i = 0; i < num_records; i++) {
        struct record *one = &records[i];
        int is_open = one->end_ns == 0;
        fprintf(file, "%ld %d %d %.6f %.6f %s", i + 1, one->script, one->is_chat, (double)one->arrival_ns * 1e-9,
                (double)(is_open ? now_ns() : one->end_ns) * 1e-9, is_open ? "open" : one->has_left ? "left" : "ended");
        for (int step = 0; step < one->num_written; step++)
            fprintf(file, " %.6f", (double)one->written_ns[step] * 1e-9);
        fputc('\n', file);
    }
    if (fclose(file) != 0) fail("%s: %s", path, strerror(errno));
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 || listen(listener, 4096) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        fail("port %d cannot be opened: %s", port, strerror(errno));
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

int main(int argc, char **argv) {
    if (argc != 4) fail("usage: scripted_server PORT SCRIPTS RECORDS");
    read_scripts(argv[2]);
    struct rlimit files = {MOST_FDS, MOST_FDS};
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1);
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    int listener = listen_on(atoi(argv[1])), poller = epoll_create1(0), signals = signalfd(-1, &ending, 0);
    int alarm = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), watched[] = {listener, signals, alarm};
    for (int i = 0; i < 3; i++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = watched[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, watched[i], &wanted) < 0) fail("no epoll: %s", strerror(errno));
    }
    struct epoll_event ready[MOST_AT_ONCE];
    int64_t alarm_ns = 0;
    for (;;) {
        if (heap_size > 0 && heap[0].due_ns != alarm_ns) {
            alarm_ns = heap[0].due_ns;
            struct itimerspec when = {.it_value = {alarm_ns / 1000000000, alarm_ns % 1000000000}};
            timerfd_settime(alarm, TFD_TIMER_ABSTIME, &when, NULL);
        }
        int count = epoll_wait(poller, ready, MOST_AT_ONCE, -1);
        play_what_is_due();
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            if (fd == signals) {
                write_records(argv[3]);
                return 0;
            }
            uint64_t expired;
            if (fd == listener)
                accept_all(listener, poller);
            else if (fd == alarm) {
                if (read(alarm, &expired, sizeof expired) < 0 && errno != EAGAIN) fail("no timer");
            } else if (connections[fd] != NULL)
                receive(connections[fd]);
        }
    }
}
