/* The scripts of `scripted_server.c`, read from a file, and the bytes of their steps. */

enum action { HEAD, ROLE, TEXT, HALF, REST, USAGE, DONE, STATUS, ERROR, CLOSE, RESET, HOLD };
static const char *const names[] = {"head", "role", "text", "half", "rest", "usage",
                                    "done", "status", "error", "close", "reset", "hold"};

struct step {
    int64_t after_ns;
    enum action action;
    int number;
};
struct script {
    struct step *steps;
    int count;
};

static struct script *scripts;
static int num_scripts;
static char out[OUT_BYTES];
static size_t out_bytes;

static struct step read_step(const char *word) {
    char *end;
    struct step step = {strtoll(word, &end, 10) * 1000, HEAD, 0};
    if (end == word || *end != ':' || step.after_ns < 0) fail("a step is no MICROSECONDS:ACTION: %s", word);
    const char *name = end + 1;
    size_t letters = strcspn(name, "0123456789");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == letters && strncmp(names[i], name, letters) == 0) {
            step.action = (enum action)i;
            step.number = name[letters] ? atoi(name + letters) : 1;
            return step;
        }
    fail("an action that is none: %s", word);
    return step;
}

static void read_scripts(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) fail("%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
        struct script script = {NULL, 0};
        for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
            script.steps = grown(script.steps, (size_t)(script.count + 1) * sizeof *script.steps);
            script.steps[script.count++] = read_step(word);
        }
        if (script.count == 0) fail("%s: a script without steps", path);
        scripts = grown(scripts, (size_t)(num_scripts + 1) * sizeof *scripts);
        scripts[num_scripts++] = script;
    }
    free(line);
    fclose(file);
    if (num_scripts == 0) fail("%s holds no script", path);
}

static void put(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    out_bytes += (size_t)vsnprintf(out + out_bytes, OUT_BYTES - out_bytes, format, arguments);
    va_end(arguments);
    if (out_bytes >= OUT_BYTES) fail("a piece of more than %d bytes", OUT_BYTES);
}

/* One event, framed as one chunk; part: 0 the whole, 1 its first half, 2 its second. */
static void put_event(int part, const char *format, ...) {
    char body[4096], whole[4200];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(body, sizeof body, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof body) fail("an event of more than %zu bytes", sizeof body);
    length = snprintf(whole, sizeof whole, "%x\r\ndata: %s\n\n\r\n", length + 8, body);
    int middle = length / 2, begin = part == 2 ? middle : 0, end = part == 1 ? middle : length;
    put("%.*s", end - begin, whole + begin);
}

static void put_text(int part, int count, long number, int is_chat) {
    char text[1024];
    if (count < 1 || count > 200) fail("a text of %d tokens", count);
    for (int i = 0; i < count; i++) memcpy(text + 5 * i, " word", 6);
    if (is_chat)
        put_event(part, "{\"id\": \"chatcmpl-%ld\", \"object\": \"chat.completion.chunk\", \"created\": 0, \"model\": "
                        "\"scripted\", \"choices\": [{\"index\": 0, \"delta\": {\"content\": \"%s\"}, "
                        "\"finish_reason\": null}]}", number, text);
    else
        put_event(part, "{\"id\": \"cmpl-%ld\", \"object\": \"text_completion\", \"created\": 0, \"model\": "
                        "\"scripted\", \"choices\": [{\"index\": 0, \"text\": \"%s\", \"logprobs\": null, "
                        "\"finish_reason\": null}]}", number, text);
}

static void put_whole(int status, const char *body) {
    put("HTTP/1.1 %d Scripted\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(body),
        body);
}

/* number: of the request, from 1 on; tokens: that it has been given so far. */
static void put_step(struct step step, long number, int is_chat, int *tokens) {
    switch (step.action) {
    case HEAD:
        put("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        break;
    case ROLE:
        if (is_chat)
            put_event(0, "{\"id\": \"chatcmpl-%ld\", \"object\": \"chat.completion.chunk\", \"created\": 0, \"model\": "
                         "\"scripted\", \"choices\": [{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": "
                         "\"\"}, \"finish_reason\": null}]}", number);
        else
            put_event(0, "{\"id\": \"cmpl-%ld\", \"object\": \"text_completion\", \"created\": 0, \"model\": "
                         "\"scripted\", \"choices\": [{\"index\": 0, \"text\": \"\", \"finish_reason\": null}]}",
                      number);
        break;
    case TEXT: put_text(0, step.number, number, is_chat); *tokens += step.number; break;
    case HALF: put_text(1, 1, number, is_chat); break;
    case REST: put_text(2, 1, number, is_chat); *tokens += 1; break;
    case USAGE:
        put_event(0, "{\"id\": \"%ld\", \"object\": \"%s\", \"created\": 0, \"model\": \"scripted\", \"choices\": [], "
                     "\"usage\": {\"prompt_tokens\": %ld, \"completion_tokens\": %d, \"total_tokens\": %ld}}",
                  number, is_chat ? "chat.completion.chunk" : "text_completion",
                  number, *tokens, number + *tokens);
        break;
    case DONE:
        put_event(0, "[DONE]");
        put("0\r\n\r\n");
        break;
    case STATUS: put_whole(step.number, "{\"error\": {\"message\": \"as the script says\"}}"); break;
    case ERROR: put_event(0, "{\"error\": {\"message\": \"as the script says\", \"type\": \"server_error\"}}"); break;
    default: break;
    }
}

