/* State of the OpenCL devices that do not exist: objects with their references, queues and their threads,
 * commands as they run. `driver.c` has the calls. */

#pragma once
#define REFUSED -6
#include "../stand_in/stand_in.h"

enum {
    NO_DEVICE = -1, DEVICE_NOT_AVAILABLE = -2, NO_MEMORY = -4, BUILD_FAILED = -11, WAITED_FOR_FAILURE = -14, SPLIT_FAILED = -18,
    NO_ARGUMENT_INFO = -19, INVALID_VALUE = -30, INVALID_OPTIONS = -43, INVALID_KERNEL_NAME = -46, INVALID_INDEX = -49,
    INVALID_SIZE = -51, INVALID_ARGUMENTS = -52, INVALID_DIMENSIONS = -53, INVALID_GROUP = -54, INVALID_BUFFER_SIZE = -61
};
enum { GROUP = 256, ALIGNMENT = 128, PARAMETERS = 16, CHILDREN = 4 };

/* Header of each object. An object is freed with its last reference. Each of its children holds one. */
enum kind { DEVICE, CONTEXT, QUEUE, MEMORY, PROGRAM, KERNEL, EVENT, KINDS };
struct object { enum kind kind; int references; struct object *parents[2], *next; };

struct device {
    struct object is;
    const char *name, *version, *extensions;
    uint64_t type, svm;
    unsigned units;
    int unified, away, bare, splits_by_counts, broken;
    size_t memory, largest;
    /* Of the whole device. */
    struct device *whole;
    int lost;
    size_t used;
};
struct context { struct object is; struct device *device; };
struct memory { struct object is; struct device *device; size_t size; unsigned char *bytes, *host, *mapped; int in_place; };
struct program { struct object is; struct device *device; char *source, *log; int describes, is_built; };
struct parameter { unsigned address; char type[32]; size_t size, given; unsigned char value[64]; int is_set; };
struct kernel { struct object is; struct device *device; char name[32]; int count; struct parameter parameters[PARAMETERS]; };
struct called { void (*back)(void *, int, void *); void *data; struct event *event; int status; struct called *next; };
struct event { struct object is; struct queue *queue; int status; struct called *called; };
enum what { READ, WRITE, FILL, MAP, UNMAP, LAUNCH, BARRIER };
struct command {
    enum what what;
    const char *call;
    struct memory *memory;
    size_t start, bytes;
    unsigned char *host, pattern;
    struct kernel *kernel, had;
    unsigned dimensions;
    size_t offset[3], global[3], local[3];
    struct event *event, **after;
    unsigned count;
    int is_flushed;
    struct command *next;
};
struct queue { struct object is; struct device *device; int closing; struct command *first, **last; };

static struct object *objects[KINDS];
static const char *names[KINDS] = {"device", "context", "queue", "block", "program", "kernel", "event"};
/* What the host allocated of the memory of a context. */
struct shared { unsigned char *bytes; size_t size; struct device *device; struct shared *next; };
static struct shared *shared;
/* Calls back that are kept, while the driver does not call. */
static struct called *kept;
static int is_silent, is_stale, asleep;
static char launched[1024];

/* An object that the program has, or the end of it. */
static void *is(enum kind kind, void *given, const char *call) {
    if (!IS_THERE(objects[kind], (struct object *)given) || !((struct object *)given)->references)
        found("%s of a %s that is not there", call, names[kind]);
    return given;
}
#define IS(kind, given) is(kind, given, __func__)

static void *make(enum kind kind, size_t size, void *parent, void *other) {
    struct object *made = calloc(1, size), *parents[2] = {parent, other};
    made->kind = kind;
    made->references = 1;
    for (int index = 0; index < 2; index++)
        if ((made->parents[index] = parents[index])) parents[index]->references++;
    made->next = objects[kind];
    return objects[kind] = made;
}

static void let_go(void *given) {
    struct object *object = given;
    if (--object->references) return;
    if (object->kind == QUEUE) { ((struct queue *)object)->closing = 1; return; }
    if (object->kind == MEMORY) {
        struct memory *memory = given;
        if (memory->mapped) found("memory is let go while it is mapped");
        if (memory->bytes && !memory->in_place) { memory->device->used -= memory->size; free(memory->bytes); }
    }
    if (object->kind == PROGRAM) { free(((struct program *)object)->source); free(((struct program *)object)->log); }
    TAKE_OUT(objects[object->kind], object);
    for (int index = 0; index < 2; index++)
        if (object->parents[index]) let_go(object->parents[index]);
    free(object);
}

/* Bytes of the device's memory, which is had at the first use. */
static unsigned char *bytes_of(struct memory *memory, size_t start, size_t bytes, const char *what) {
    if (start + bytes > memory->size || start + bytes < start) found("%s: bytes %zu and %zu more of %zu", what, start, bytes, memory->size);
    if (memory->bytes) return memory->bytes + start;
    struct device *device = memory->device;
    if (device->used + memory->size > device->memory) return NULL;
    device->used += memory->size;
    memory->bytes = malloc(memory->size);
    if (memory->host) memcpy(memory->bytes, memory->host, memory->size);
    else memset(memory->bytes, 0xDD, memory->size);
    return memory->bytes + start;
}

/* The same, of what the host must not have. */
static unsigned char *used(struct memory *memory, size_t start, size_t bytes, const char *what) {
    if (memory->mapped) found("%s: the host has the memory", what);
    return bytes_of(memory, start, bytes, what);
}

static uint64_t number(const struct parameter *parameter) {
    uint64_t value = 0;
    memcpy(&value, parameter->value, parameter->given < 8 ? parameter->given : 8);
    return value;
}

static struct memory *memory_of(const struct parameter *parameter) {
    struct memory *memory;
    memcpy(&memory, parameter->value, sizeof memory);
    return is(MEMORY, memory, "a kernel");
}

/* What kernels of these names do:
 *   late (uint *to, uint value, ulong microseconds)     writes a word, after a while
 *   add  (uint *data, uint what, ulong end)             adds to the words of its work-items before the end
 *   grid (uint *data, ulong columns, ulong rows)        adds one to the words of its work-items within both
 * All others do nothing, but what they are given is told. */
static int launch(struct command *command) {
    const struct kernel *kernel = &command->had;
    const struct parameter *p = kernel->parameters;
    if (!strcmp(kernel->name, "late")) {
        struct memory *memory = memory_of(p);
        unsigned char *to = used(memory, 0, 4, "late");
        uint32_t value = number(p + 1);
        pthread_mutex_unlock(&lock);
        usleep(number(p + 2));
        pthread_mutex_lock(&lock);
        if (!to || used(memory, 0, 4, "late") != to) return NO_MEMORY;
        memcpy(to, &value, 4);
    }
    int is_add = !strcmp(kernel->name, "add"), is_grid = !strcmp(kernel->name, "grid");
    if (!is_add && !is_grid) return SUCCESS;
    struct memory *memory = memory_of(p);
    uint64_t columns = is_add ? number(p + 2) : number(p + 1), rows = is_add ? 1 : number(p + 2);
    for (uint64_t y = command->offset[1]; y < command->offset[1] + command->global[1] && y < rows; y++)
        for (uint64_t x = command->offset[0]; x < command->offset[0] + command->global[0] && x < columns; x++) {
            unsigned char *at = used(memory, (y * columns + x) * 4, 4, kernel->name);
            uint32_t word;
            if (!at) return NO_MEMORY;
            memcpy(&word, at, 4);
            word += is_add ? number(p + 1) : 1;
            memcpy(at, &word, 4);
        }
    return SUCCESS;
}

static int run(struct command *command) {
    unsigned char *at;
    struct memory *memory = command->memory;
    switch (command->what) {
    case READ:
        if (!(at = used(memory, command->start, command->bytes, "read"))) return NO_MEMORY;
        memcpy(command->host, at, command->bytes);
        break;
    case WRITE:
        if (!(at = used(memory, command->start, command->bytes, "write"))) return NO_MEMORY;
        memcpy(at, command->host, command->bytes);
        break;
    case FILL:
        if (!(at = used(memory, command->start, command->bytes, "fill"))) return NO_MEMORY;
        memset(at, command->pattern, command->bytes);
        break;
    case MAP:
        if (!(at = bytes_of(memory, 0, memory->size, "map"))) return NO_MEMORY;
        if (memory->mapped) found("map: the memory is mapped already");
        if (command->host != at) memcpy(command->host, at, memory->size);
        memory->mapped = command->host;
        break;
    case UNMAP:
        if (memory->mapped != command->host) found("unmap: the memory is not mapped there");
        if (command->host != memory->bytes) memcpy(memory->bytes, command->host, memory->size);
        /* What the host writes from now on is lost. */
        if (command->host != memory->bytes && command->host != memory->host) { memset(command->host, 0xEE, memory->size); free(command->host); }
        memory->mapped = NULL;
        break;
    case LAUNCH: return launch(command);
    case BARRIER: break;
    }
    return SUCCESS;
}

static void call_back(struct called *called) {
    while (called) {
        struct called *next = called->next;
        pthread_mutex_unlock(&lock);
        called->back(called->event, called->status, called->data);
        pthread_mutex_lock(&lock);
        let_go(called->event);
        free(called);
        called = next;
    }
}

static void tell(struct event *event, int status) {
    event->status = status;
    struct called *called = event->called;
    event->called = NULL;
    for (struct called *at = called; at; at = at->next) at->status = status;
    pthread_cond_broadcast(&changed);
    if (!is_silent) { call_back(called); return; }
    while (called) {
        struct called *next = called->next;
        called->next = kept;
        kept = called;
        called = next;
    }
}

static void *work(void *given) {
    struct queue *queue = given;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct command *command = queue->first;
        if (!command && queue->closing) break;
        int waits = !command || !(command->is_flushed || queue->closing) || are_held(), status = SUCCESS;
        for (unsigned index = 0; command && index < command->count; index++) {
            waits |= command->after[index]->status > 0;
            if (command->after[index]->status < 0) status = WAITED_FOR_FAILURE;
        }
        if (waits) { sleep_for_a_while(); continue; }
        char end[64];
        snprintf(end, sizeof end, "end of %s", command->call);
        if (!status) status = enter(end);
        if (!status) status = queue->device->whole->lost;
        if (!status) status = run(command);
        tell(command->event, status);
        queue->first = command->next;
        if (!queue->first) queue->last = &queue->first;
        for (unsigned index = 0; index < command->count; index++) let_go(command->after[index]);
        for (int index = 0; index < command->had.count; index++) {
            struct parameter *parameter = &command->had.parameters[index];
            if (parameter->address == 0x119B || parameter->address == 0x119D) let_go(memory_of(parameter));
        }
        let_go(command->event);
        if (command->memory) let_go(command->memory);
        if (command->kernel) let_go(command->kernel);
        free(command->after);
        free(command);
        pthread_cond_broadcast(&changed);
    }
    TAKE_OUT(objects[QUEUE], &queue->is);
    let_go(queue->is.parents[0]);
    free(queue);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* A command at the end of a queue. Its event is for the caller to release. */
static struct command *enqueue(struct queue *queue, enum what what, const char *call, struct memory *memory, unsigned count, struct event *const *after) {
    struct command *command = calloc(1, sizeof *command);
    command->what = what;
    command->call = call;
    command->memory = memory;
    if (memory) memory->is.references++;
    command->count = count;
    if (!count != !after) found("%s: %u events to wait for, and %s list", call, count, after ? "a" : "no");
    command->after = calloc(count + 1, sizeof *after);
    for (unsigned index = 0; index < count; index++) {
        command->after[index] = is(EVENT, after[index], call);
        command->after[index]->is.references++;
    }
    command->event = make(EVENT, sizeof *command->event, queue->is.parents[0], NULL);
    command->event->is.references++;
    command->event->queue = queue;
    command->event->status = 3;
    *queue->last = command;
    queue->last = &command->next;
    return command;
}

static void hand_over(struct queue *queue) {
    for (struct command *at = queue->first; at; at = at->next) at->is_flushed = 1;
    pthread_cond_broadcast(&changed);
}

/* Waits for an event, which the caller has. */
static int await(struct event *event) {
    event->is.references++;
    if (event->queue && event->status > 0) hand_over(event->queue);
    asleep++;
    while (event->status > 0) sleep_for_a_while();
    asleep--;
    int status = event->status;
    let_go(event);
    return status;
}

/* One parameter of a kernel, as its source has it. */
static struct parameter parsed(const char *text, size_t length) {
    static const struct { const char *name; size_t size; } sizes[] = {
        {"char", 1}, {"uchar", 1}, {"short", 2}, {"ushort", 2}, {"half", 2}, {"int", 4}, {"uint", 4}, {"float", 4},
        {"long", 8}, {"ulong", 8}, {"double", 8}, {"float4", 16}, {"float3", 16},
    };
    struct parameter parameter = {.address = 0x119E};
    char copy[128], *rest = copy;
    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    int is_pointer = strchr(copy, '*') != NULL;
    for (char *word; (word = strsep(&rest, " *\n\t"));) {
        if (!strcmp(word, "__global")) parameter.address = 0x119B;
        else if (!strcmp(word, "__local")) parameter.address = 0x119C;
        else if (!strcmp(word, "__constant")) parameter.address = 0x119D;
        else if (*word && !parameter.type[0]) snprintf(parameter.type, sizeof parameter.type - 1, "%s", word);
    }
    for (size_t index = 0; index < sizeof sizes / sizeof *sizes; index++)
        if (!strcmp(parameter.type, sizes[index].name)) parameter.size = sizes[index].size;
    if (is_pointer) { strcat(parameter.type, "*"); parameter.size = sizeof(void *); }
    return parameter;
}
