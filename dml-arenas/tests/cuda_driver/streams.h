/* State of the GPUs that do not exist: memory, streams and their threads, commands as they run. `driver.c`
 * has the calls. */

#pragma once
#define REFUSED 100
#include "../stand_in/stand_in.h"

enum {
    INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NO_ACCESS = 217,
    INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ACCESS_THERE = 704, LOCKED = 712,
    NOT_LOCKED = 713, LAUNCH_FAILED = 719
};
enum { DEVICES = 3, MEMORY = 256 << 20, DEPTH = 16, KERNELS = 4 };
typedef uint64_t address;

struct device { int number, retained, lost, opened_to; size_t used; };
struct pool { int device, opened_to; size_t kept; struct pool *next; };
enum state { FRESH, LIVE, CACHED };
struct block { address start; size_t size; int device; enum state state; struct pool *pool; struct stream *of; struct block *next; };
struct region { uintptr_t start; size_t size; int is_mapped; struct region *next; };
/* The last record of an event. Streams wait for it even if the event is recorded again. Never freed. */
struct record { int is_reached, code; };
struct event { int device; struct record *record; struct event *next; };
struct module { int device; char *text; struct module *next; };
struct function { struct module *module; int kernel; int shared; struct function *next; };
/* A chain of kernels. An executable graph is a copy, with nodes that are asked for by those of its graph. */
enum { NODES = 64 };
struct node { struct function *function; unsigned grid[3], local[3], shared; uint64_t arguments[8]; };
struct graph { int device, nodes; struct node node[NODES]; struct graph *of, *next; };
enum kind { COPY_IN, COPY_OUT, SET, ACROSS, RECORD, AWAIT, READY, FREE, LAUNCH };
struct command {
    enum kind kind;
    address to, from;
    unsigned char *host, *staged, byte;
    size_t bytes;
    struct event *event;
    struct record *record;
    struct function *function;
    uint64_t arguments[8];
    uint64_t grid[3], local[3];
    struct command *next;
};
struct stream { int device, closing, busy; pthread_t thread; struct command *first, **last; struct stream *next; };

static struct device devices[DEVICES] = {{.number = 0}, {.number = 1}, {.number = 2}};
static struct pool *pools;
static struct block *blocks;
/* Stands for whose memory is the program's own. */
static struct stream theirs;
static struct region *regions;
static struct event *events;
static struct stream *streams;
static struct module *modules;
static struct function *functions;
static struct graph *graphs, *executables;
static int pushed, asleep, has_nvlink = 1;
static __thread struct device *stack[DEPTH];
static __thread int depth;

static struct device *current(void) { return depth ? stack[depth - 1] : NULL; }

#define IN_CONTEXT                                                                                                     \
    BEGIN;                                                                                                             \
    struct device *device = current();                                                                                 \
    if (!device) { found("%s without a context", __func__); code = INVALID_CONTEXT; goto end; }                        \
    if (device->lost) { code = device->lost; goto end; }                                                               \
    (void)device
static struct block *block_of(address start, size_t bytes) {
    struct block *block = blocks;
    while (block && !(block->start <= start && start < block->start + block->size)) block = block->next;
    if (!block || start + bytes <= block->start + block->size) return block;
    /* What was mapped piece by piece is one. */
    address end = block->start + block->size;
    return !block->of && block_of(end, start + bytes - end) ? block : NULL;
}

static int is_locked(uintptr_t start, size_t bytes) {
    return COUNT(regions, it->start <= start && start + bytes <= it->start + it->size) != 0;
}

/* The block of bytes that a command of a stream uses now. */
static struct block *used(struct stream *stream, address start, size_t bytes, const char *what) {
    /* Pages of the host that are locked. */
    static struct block of_host = {.state = LIVE};
    if (is_locked(start, bytes)) return &of_host;
    struct block *block = block_of(start, bytes);
    if (!block || block->state == CACHED) found("%s: %zu bytes at %#lx are no memory", what, bytes, (long)start);
    else if (block->state == FRESH && block->of != stream) found("%s: the memory is not there yet for this stream", what);
    return block && block->state != CACHED ? block : NULL;
}

static void drop_block(struct block *block) {
    TAKE_OUT(blocks, block);
    devices[block->device].used -= block->size;
    free((void *)block->start);
    free(block);
}

static void trim(struct pool *pool, size_t kept) {
    size_t cached = 0;
    for (struct block *at = blocks; at; at = at->next) cached += at->pool == pool && at->state == CACHED ? at->size : 0;
    for (struct block *at = blocks, *next; at && cached > kept; at = next) {
        next = at->next;
        if (at->pool == pool && at->state == CACHED) { cached -= at->size; drop_block(at); }
    }
}

/* The kernels: their names, and the sizes of their parameters.
 *   late    (word *to, word value, microseconds)              writes a word, after a while
 *   count   (word *out, end, items)                           adds one for each thread within its items
 *   follow  (word *from, word *to, end)                       the first `end` words of one, each plus one, to another
 *   nothing ()                                               nothing */
static const struct { const char *name; int bytes[4]; } kernels[KERNELS] = {
    {"late", {8, 4, 8}}, {"count", {8, 8, 48}}, {"follow", {8, 8, 8}}, {"nothing", {0}},
};

static void launch(struct stream *stream, struct command *command) {
    uint64_t *a = command->arguments;
    switch (command->function->kernel) {
    case 0:
        pthread_mutex_unlock(&lock);
        usleep(a[2]);
        pthread_mutex_lock(&lock);
        if (used(stream, a[0], 4, "late")) *(uint32_t *)a[0] = (uint32_t)a[1];
        break;
    case 1:
        /* Threads of the grid, of which those past the end of the items or of the data do nothing. */
        for (uint64_t x = a[2]; x < a[2] + command->grid[0] * command->local[0]; x++)
            for (uint64_t y = a[3]; y < a[3] + command->grid[1] * command->local[1]; y++) {
                uint64_t at = y * 16 + x;
                if (x >= a[5] || y >= a[6] || at >= a[1]) continue;
                if (used(stream, a[0] + at * 4, 4, "count")) ((uint32_t *)a[0])[at] += 1;
            }
        break;
    case 2:
        if (used(stream, a[0], a[2] * 4, "follow") && used(stream, a[1], a[2] * 4, "follow"))
            for (uint64_t at = 0; at < a[2]; at++) ((uint32_t *)a[1])[at] = ((uint32_t *)a[0])[at] + 1;
        break;
    }
}

static void run(struct stream *stream, struct command *command) {
    struct device *device = &devices[stream->device];
    void *host = command->staged ? command->staged : command->host;
    if (command->kind == RECORD) {
        if (!IS_THERE(events, command->event)) found("an event is gone before its record");
        *command->record = (struct record){1, device->lost};
        return;
    }
    if (device->lost && command->kind != FREE && command->kind != READY) return;
    switch (command->kind) {
    case COPY_IN:
        if (!command->staged && !is_locked((uintptr_t)host, command->bytes)) found("copy in: the source is not locked any more");
        else if (used(stream, command->to, command->bytes, "copy in")) memcpy((void *)command->to, host, command->bytes);
        break;
    case COPY_OUT:
        if (!command->staged && !is_locked((uintptr_t)host, command->bytes)) found("copy out: the target is not locked any more");
        else if (used(stream, command->from, command->bytes, "copy out")) memcpy(host, (void *)command->from, command->bytes);
        break;
    case SET:
        if (used(stream, command->to, command->bytes, "set")) memset((void *)command->to, command->byte, command->bytes);
        break;
    case ACROSS: {
        struct block *from = used(stream, command->from, command->bytes, "peer copy");
        struct block *to = used(stream, command->to, command->bytes, "peer copy");
        if (from && to) memcpy((void *)command->to, (void *)command->from, command->bytes);
        break;
    }
    case READY: {
        struct block *block = block_of(command->to, 1);
        if (block && block->state == FRESH) block->state = LIVE;
        break;
    }
    case FREE: {
        struct block *block = block_of(command->to, 1);
        if (!block || block->state == CACHED || !block->pool) found("memory is freed twice, or never was of a pool");
        else block->state = CACHED;
        break;
    }
    case LAUNCH:
        if (!IS_THERE(modules, command->function->module)) found("a kernel runs whose program is gone");
        else launch(stream, command);
        break;
    default: break;
    }
}

static void *work(void *given) {
    struct stream *stream = given;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct command *command = stream->first;
        int waits = !command || are_held() || (command->kind == AWAIT && !command->record->is_reached);
        if (!command && stream->closing) break;
        if (waits) { sleep_for_a_while(); continue; }
        stream->busy = 1;
        run(stream, command);
        stream->busy = 0;
        stream->first = command->next;
        if (!stream->first) stream->last = &stream->first;
        free(command);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* The stream, where the call may use it. */
static struct stream *stream_of(void *given, const char *call) {
    if (!IS_THERE(streams, (struct stream *)given)) { found("%s of a stream that is not there", call); return NULL; }
    return given;
}

static struct command *enqueue(struct stream *stream, enum kind kind) {
    struct command *command = calloc(1, sizeof *command);
    command->kind = kind;
    *stream->last = command;
    stream->last = &command->next;
    pthread_cond_broadcast(&changed);
    return command;
}

static void drain(struct stream *stream) {
    asleep++;
    while (IS_THERE(streams, stream) && stream->first) pthread_cond_wait(&changed, &lock);
    asleep--;
    for (struct pool *pool = pools; pool; pool = pool->next) trim(pool, pool->kept);
}
