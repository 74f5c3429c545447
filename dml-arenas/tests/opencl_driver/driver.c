/* The part of an OpenCL loader and its drivers that DML uses, for devices that do not exist: their memory is
 * this process's, and each queue is a thread.
 *
 *   opencl:0   a GPU with memory of its own, at 0001:1a:03.1
 *   opencl:1   the processor, whose memory the host shares, also byte by byte; it splits into any parts
 *   opencl:2   an accelerator of OpenCL 1.2 with memory of its own, which splits into equal parts only
 *   opencl:3   a GPU of NVIDIA's extension, at 0002:65:0a.2
 *   opencl:4   to opencl:7 are of no use, each for another reason
 *
 * It is as strict as drivers are lax. Misuse ends the process: use of released objects, use of memory while
 * the host has it, maps that do not end. No command begins before it is submitted, by clFlush or by a wait.
 * Memory is allocated at its first use. `stand_in_count` returns the number of live objects of a kind. */

#include "objects.h"

#define DRIVER_TYPE(type_) .type = type_, .memory = 256 << 20, .largest = 64 << 20
static struct device devices[] = {
    {.name = "Quick\tGPU ", DRIVER_TYPE(4), .svm = 3, .version = "OpenCL 3.0 stand-in", .units = 4, .extensions = "cl_khr_fp64 cl_khr_pci_bus_info"},
    {.name = "Cores", DRIVER_TYPE(2), .version = "OpenCL 2.0 stand-in", .units = 8, .unified = 1, .splits_by_counts = 1, .svm = 3, .extensions = ""},
    {.name = "Board", DRIVER_TYPE(8), .version = "OpenCL 1.2 stand-in", .units = 2, .svm = 3, .extensions = "cl_khr_pci_bus_infos"},
    {.name = "Other GPU", DRIVER_TYPE(4), .version = "OpenCL 3.0 CUDA", .units = 6, .svm = 1, .extensions = "cl_nv_device_attribute_query cl_khr_icd"},
    {.name = "Away", DRIVER_TYPE(4), .version = "OpenCL 3.0 stand-in", .units = 1, .extensions = "", .away = 1},
    {.name = "Bare", DRIVER_TYPE(4), .version = "OpenCL 3.0 stand-in", .units = 1, .extensions = "", .bare = 1},
    {.name = "Old", DRIVER_TYPE(4), .version = "OpenCL 1.1  old\n", .units = 1, .extensions = ""},
    {.name = "Mute", DRIVER_TYPE(4), .version = "OpenCL 3.0 stand-in", .units = 1, .extensions = "", .broken = 1},
};
enum { DEVICES = sizeof devices / sizeof *devices };
/* In the order in which the loader lists them. Two of them have the same devices. */
static struct platform { const char *name, *vendor, *version; int first, count, code; } platforms[] = {
    {"D again", "DML", "OpenCL 3.0", 0, 4, 0},
    {"C defects", "DML", "OpenCL 3.0", 4, 4, 0},
    {"B stand-in ", "DML", "OpenCL 3.0", 0, 4, 0},
    {"A empty", "DML", "OpenCL 3.0", 0, 0, NO_DEVICE},
    {"A fails", "DML", "OpenCL 3.0", 0, 0, -5},
};
enum { PLATFORMS = sizeof platforms / sizeof *platforms };

__attribute__((constructor)) static void begin(void) {
    for (int index = 0; index < DEVICES; index++) {
        devices[index].is = (struct object){DEVICE, 1, {NULL, NULL}, objects[DEVICE]};
        devices[index].whole = &devices[index];
        objects[DEVICE] = &devices[index].is;
    }
}

/* What a test asks and says. */

long stand_in_count(const char *what) {
    long count = -1;
    pthread_mutex_lock(&lock);
    for (int kind = 0; kind < KINDS; kind++)
        if (!strncmp(what, names[kind], strlen(names[kind])) && !strcmp(what + strlen(names[kind]), "s")) count = COUNT(objects[kind], 1);
    if (!strcmp(what, "devices")) count -= DEVICES;
    if (!strcmp(what, "shared")) count = COUNT(shared, 1);
    if (!strcmp(what, "mapped")) {
        count = 0;
        for (struct object *at = objects[MEMORY]; at; at = at->next) count += ((struct memory *)at)->mapped != NULL;
    }
    if (!strcmp(what, "over host memory")) {
        count = 0;
        for (struct object *at = objects[MEMORY]; at; at = at->next) count += ((struct memory *)at)->host != NULL;
    }
    if (!strcmp(what, "asleep")) count = asleep;
    if (!strcmp(what, "kept")) count = COUNT(kept, 1);
    if (!strcmp(what, "queued") || !strcmp(what, "held back")) {
        count = 0;
        for (struct object *at = objects[QUEUE]; at; at = at->next)
            for (struct command *command = ((struct queue *)at)->first; command; command = command->next)
                count += !strcmp(what, "queued") || !command->is_flushed;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* Holds back the callbacks at the end of commands from now on. Zero makes the held-back calls. */
void stand_in_silence(int silent) {
    pthread_mutex_lock(&lock);
    is_silent = silent;
    struct called *called = silent ? NULL : kept;
    if (!silent) kept = NULL;
    call_back(called);
    pthread_mutex_unlock(&lock);
}

void stand_in_lose(int device, int code) {
    pthread_mutex_lock(&lock);
    devices[device].lost = code;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void stand_in_forget(void) {
    pthread_mutex_lock(&lock);
    for (int index = 0; index < CALLS; index++) calls[index].code = 0;
    for (int index = 0; index < DEVICES; index++) devices[index].lost = 0;
    is_silent = is_stale = 0;
    pthread_mutex_unlock(&lock);
}

/* From now on, queries answer that no command has ended. Zero ends that. */
void stand_in_stale(int stale) { is_stale = stale; }

/* The last launch: the kernel, its sizes, and the bytes of its arguments. */
const char *stand_in_launched(void) { return launched; }

/* The options of the last program that was built. */
static char options[256];
const char *stand_in_options(void) { return options; }

/* Platforms and devices. */

static int give(const void *value, size_t size, size_t room, void *to, size_t *needs) {
    if (needs) *needs = size;
    if (to && room < size) return INVALID_VALUE;
    if (to) memcpy(to, value, size);
    return SUCCESS;
}
#define GIVE(type, value) FAIL(give(&(type){value}, sizeof(type), room, to, needs))
#define GIVE_TEXT(text) FAIL(give(text, strlen(text) + 1, room, to, needs))

int clGetPlatformIDs(unsigned room, void **ids, unsigned *count) {
    BEGIN;
    int there = getenv("STAND_IN_PLATFORMS") ? atoi(getenv("STAND_IN_PLATFORMS")) : PLATFORMS;
    for (int index = 0; ids && index < there && index < (int)room; index++) ids[index] = &platforms[index];
    if (count) *count = there;
    END;
}

int clGetPlatformInfo(struct platform *platform, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    if (what == 0x0901) GIVE_TEXT(platform->version);
    if (what == 0x0902) GIVE_TEXT(platform->name);
    if (what == 0x0903) GIVE_TEXT(platform->vendor);
    FAIL(INVALID_VALUE);
    END;
}

int clGetDeviceIDs(struct platform *platform, uint64_t type, unsigned room, void **ids, unsigned *count) {
    BEGIN;
    if (type != 0xFFFFFFFF) found("devices of type %#lx", (long)type);
    if (platform->code) FAIL(platform->code);
    for (int index = 0; ids && index < platform->count && index < (int)room; index++) ids[index] = &devices[platform->first + index];
    if (count) *count = platform->count;
    END;
}

int clGetDeviceInfo(void *given, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct device *device = IS(DEVICE, given);
    if (device->broken) FAIL(-5);
    char question[40];
    snprintf(question, sizeof question, "device info %#x", what);
    if ((code = enter(question))) goto end;
    switch (what) {
    case 0x1000: GIVE(uint64_t, device->type);
    case 0x1002: GIVE(unsigned, device->units);
    case 0x1003: GIVE(unsigned, 3);
    case 0x1004: GIVE(size_t, GROUP);
    case 0x1005: FAIL(give((size_t[3]){GROUP, GROUP / 2, 64}, 3 * sizeof(size_t), room, to, needs));
    case 0x1010: GIVE(uint64_t, device->largest);
    case 0x1019: GIVE(unsigned, ALIGNMENT * 8);
    case 0x101F: GIVE(uint64_t, device->memory);
    case 0x1027: GIVE(unsigned, !device->away);
    case 0x1028: GIVE(unsigned, !device->bare);
    case 0x102B: GIVE_TEXT(device->name);
    case 0x102D: GIVE_TEXT("stand-in  1.0\n");
    case 0x102F: GIVE_TEXT(device->version);
    case 0x1030: GIVE_TEXT(device->extensions);
    case 0x1035: GIVE(unsigned, device->unified);
    case 0x1053: GIVE(uint64_t, device->svm);
    case 0x410F: FAIL(give((unsigned[4]){1, 0x1a, 3, 1}, 16, room, to, needs));
    case 0x4008: GIVE(unsigned, 0x65);
    case 0x4009: GIVE(unsigned, 10 << 3 | 2);
    case 0x400A: GIVE(unsigned, 2);
    default: FAIL(INVALID_VALUE);
    }
    END;
}

int clCreateSubDevices(void *given, const intptr_t *how, unsigned room, void **made, unsigned *count) {
    BEGIN;
    struct device *device = IS(DEVICE, given);
    unsigned parts = how[0] == 0x1086 ? device->units / (unsigned)how[1] : 1;
    int is_fit = how[0] == 0x1086 ? how[2] == 0 : how[0] == 0x1087 && how[2] == 0 && how[3] == 0 && device->splits_by_counts;
    if (!is_fit || !how[1] || how[1] > device->units) FAIL(SPLIT_FAILED);
    for (unsigned index = 0; made && index < parts && index < room; index++) {
        struct device *part = make(DEVICE, sizeof *part, device, NULL);
        struct object is = part->is;
        *part = *device;
        part->is = is;
        part->units = getenv("STAND_IN_UNITS") ? (unsigned)atoi(getenv("STAND_IN_UNITS")) : (unsigned)how[1];
        made[index] = part;
    }
    if (count) *count = parts;
    END;
}

int clRetainDevice(void *device) { BEGIN; ((struct object *)IS(DEVICE, device))->references++; END; }
int clReleaseDevice(void *device) { BEGIN; let_go(IS(DEVICE, device)); END; }

/* Contexts, queues, memory. */

#define END_WITH(made) DONE; if (error) *error = code; return code ? NULL : made

void *clCreateContext(const void *properties, unsigned count, void *const *of, const void *back, void *data, int *error) {
    struct context *made = NULL;
    BEGIN;
    (void)properties, (void)back, (void)data;
    if (count != 1) found("a context of %u devices", count);
    struct device *device = IS(DEVICE, *of);
    if (device->whole->lost) FAIL(device->whole->lost);
    made = make(CONTEXT, sizeof *made, device, NULL);
    made->device = device;
    END_WITH(made);
}

int clGetContextInfo(void *context, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct device *device = ((struct context *)IS(CONTEXT, context))->device;
    if (what == 0x1081) FAIL(give(&device, sizeof device, room, to, needs));
    FAIL(INVALID_VALUE);
    END;
}

int clRetainContext(void *context) { BEGIN; ((struct object *)IS(CONTEXT, context))->references++; END; }
int clReleaseContext(void *context) { BEGIN; let_go(IS(CONTEXT, context)); END; }

#define ALIVE(device_) do { if ((device_)->whole->lost) FAIL((device_)->whole->lost); } while (0)

void *clCreateCommandQueue(void *given, void *device, uint64_t properties, int *error) {
    struct queue *made = NULL;
    BEGIN;
    struct context *context = IS(CONTEXT, given);
    if (context->device != device || properties) found("a queue of another device, or of properties %#lx", (long)properties);
    ALIVE(context->device);
    made = make(QUEUE, sizeof *made, context, NULL);
    made->device = context->device;
    made->last = &made->first;
    pthread_t thread;
    pthread_create(&thread, NULL, work, made);
    pthread_detach(thread);
    END_WITH(made);
}

int clReleaseCommandQueue(void *queue) { BEGIN; let_go(IS(QUEUE, queue)); END; }

void *clCreateBuffer(void *given, uint64_t flags, size_t size, void *host, int *error) {
    struct memory *made = NULL;
    BEGIN;
    struct device *device = ((struct context *)IS(CONTEXT, given))->device;
    ALIVE(device);
    if (size == 0) FAIL(INVALID_BUFFER_SIZE);
    if (size > device->largest && !getenv("STAND_IN_ANY_SIZE")) FAIL(INVALID_BUFFER_SIZE);
    if (!(flags & 8) != !host) found("a buffer of flags %#lx %s memory of the host", (long)flags, host ? "with" : "without");
    made = make(MEMORY, sizeof *made, given, NULL);
    made->device = device;
    made->size = size;
    made->host = host;
    if (host && device->unified) { made->bytes = host; made->in_place = 1; }
    END_WITH(made);
}

int clReleaseMemObject(void *memory) { BEGIN; let_go(IS(MEMORY, memory)); END; }
int clRetainMemObject(void *memory) { BEGIN; ((struct object *)IS(MEMORY, memory))->references++; END; }

void *clSVMAlloc(void *given, uint64_t flags, size_t size, unsigned alignment) {
    struct shared *made = NULL;
    BEGIN;
    struct device *device = ((struct context *)IS(CONTEXT, given))->device;
    if (flags != (1 | 1 << 10) || alignment != ALIGNMENT || !(device->svm & 2)) found("shared memory of flags %#lx", (long)flags);
    if (!size || size > device->largest || device->whole->lost || device->used + size > device->memory) FAIL(NO_MEMORY);
    made = calloc(1, sizeof *made);
    *made = (struct shared){aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment), size, device, shared};
    memset(made->bytes, 0xDD, size);
    device->used += size;
    shared = made;
    DONE;
    return code ? NULL : made->bytes;
}

void clSVMFree(void *context, unsigned char *bytes) {
    pthread_mutex_lock(&lock);
    enter(__func__);
    IS(CONTEXT, context);
    struct shared *at = shared;
    while (at && at->bytes != bytes) at = at->next;
    if (!at) { found("shared memory is freed that is not there"); return; }
    for (struct object *other = objects[MEMORY]; other; other = other->next)
        if (((struct memory *)other)->host == bytes) found("shared memory is freed that a buffer is made of");
    TAKE_OUT(shared, at);
    at->device->used -= at->size;
    free(at->bytes);
    free(at);
    pthread_mutex_unlock(&lock);
}

/* Commands. */

#define ON_QUEUE                                                                                                       \
    BEGIN;                                                                                                             \
    struct queue *queue = IS(QUEUE, given);                                                                            \
    ALIVE(queue->device)
#define OF_MEMORY(given_) ({ struct memory *it_ = IS(MEMORY, given_); if (it_->device != queue->device) found("%s of memory of another device", __func__); it_; })
#define HAND_OUT(command) if (event) *event = (command)->event; else let_go((command)->event)

/* A read or a write, and the end of it where the call blocks. */
static int transfer(struct queue *queue, enum what what, const char *call, struct memory *memory, unsigned blocking, size_t start, size_t bytes, void *host, unsigned count, struct event *const *after, struct event **event) {
    struct command *command = enqueue(queue, what, call, memory, count, after);
    command->start = start, command->bytes = bytes, command->host = host;
    struct event *end = command->event;
    end->is.references++;
    HAND_OUT(command);
    int code = blocking ? await(end) : SUCCESS;
    let_go(end);
    return code;
}

int clEnqueueReadBuffer(void *given, void *memory, unsigned blocking, size_t start, size_t bytes, void *host, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    code = transfer(queue, READ, __func__, OF_MEMORY(memory), blocking, start, bytes, host, count, after, event);
    END;
}

int clEnqueueWriteBuffer(void *given, void *memory, unsigned blocking, size_t start, size_t bytes, void *host, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    code = transfer(queue, WRITE, __func__, OF_MEMORY(memory), blocking, start, bytes, host, count, after, event);
    END;
}

int clEnqueueFillBuffer(void *given, void *memory, const unsigned char *pattern, size_t size, size_t start, size_t bytes, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    if (size != 1) found("a fill with %zu bytes", size);
    struct command *command = enqueue(queue, FILL, __func__, OF_MEMORY(memory), count, after);
    command->start = start, command->bytes = bytes, command->pattern = *pattern;
    HAND_OUT(command);
    END;
}

void *clEnqueueMapBuffer(void *given, void *which, unsigned blocking, uint64_t flags, size_t start, size_t bytes, unsigned count, struct event *const *after, struct event **event, int *error) {
    unsigned char *at = NULL;
    ON_QUEUE;
    struct memory *memory = OF_MEMORY(which);
    if (start || bytes != memory->size || !(flags & 3)) found("a map of bytes %zu and %zu more of %zu, of flags %#lx", start, bytes, memory->size, (long)flags);
    struct command *command = enqueue(queue, MAP, __func__, memory, count, after);
    at = memory->host ? memory->host : queue->device->unified ? bytes_of(memory, 0, bytes, "map") : malloc(bytes);
    if (getenv("STAND_IN_MAPS_ELSEWHERE")) at = malloc(bytes);
    command->host = at;
    struct event *end = command->event;
    end->is.references++;
    HAND_OUT(command);
    if (blocking) await(end);
    let_go(end);
    if (!enter("address of clEnqueueMapBuffer")) goto end;
    at = NULL;
    END_WITH(at);
}

int clEnqueueUnmapMemObject(void *given, void *memory, void *at, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    struct command *command = enqueue(queue, UNMAP, __func__, OF_MEMORY(memory), count, after);
    command->host = at;
    HAND_OUT(command);
    END;
}

int clEnqueueMarkerWithWaitList(void *given, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    struct command *command = enqueue(queue, BARRIER, __func__, NULL, count, after);
    HAND_OUT(command);
    END;
}

int clEnqueueBarrierWithWaitList(void *given, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    struct command *command = enqueue(queue, BARRIER, __func__, NULL, count, after);
    HAND_OUT(command);
    END;
}

static size_t append(size_t at, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    at += vsnprintf(launched + at, sizeof launched - at, format, arguments);
    va_end(arguments);
    return at;
}

int clEnqueueNDRangeKernel(void *given, void *which, unsigned dimensions, const size_t *offset, const size_t *global, const size_t *local, unsigned count, struct event *const *after, struct event **event) {
    ON_QUEUE;
    struct kernel *kernel = IS(KERNEL, which);
    if (kernel->device != queue->device) found("a kernel of another device");
    if (dimensions < 1 || dimensions > 3) FAIL(INVALID_DIMENSIONS);
    size_t group = 1;
    for (unsigned axis = 0; local && axis < dimensions; axis++) {
        if (!local[axis] || global[axis] % local[axis]) FAIL(INVALID_GROUP);
        group *= local[axis];
    }
    if (group > GROUP) FAIL(INVALID_GROUP);
    for (int index = 0; index < kernel->count; index++)
        if (!kernel->parameters[index].is_set) FAIL(INVALID_ARGUMENTS);
    struct command *command = enqueue(queue, LAUNCH, __func__, NULL, count, after);
    command->kernel = kernel;
    kernel->is.references++;
    command->had = *kernel;
    command->dimensions = dimensions;
    size_t at = append(0, "%s", kernel->name);
    for (unsigned axis = 0; axis < 3; axis++) {
        int counts = axis < dimensions;
        command->offset[axis] = counts && offset ? offset[axis] : 0;
        command->global[axis] = counts ? global[axis] : 1;
        if (!counts) continue;
        at = append(at, " %zu+%zu", command->offset[axis], global[axis]);
        if (local) at = append(at, "/%zu", local[axis]);
    }
    for (int index = 0; index < kernel->count; index++) {
        struct parameter *parameter = &command->had.parameters[index];
        int is_memory = parameter->address == 0x119B || parameter->address == 0x119D;
        at = append(at, parameter->address == 0x119C ? " local %zu" : is_memory ? " memory" : " ", parameter->given);
        for (size_t byte = 0; parameter->address == 0x119E && byte < parameter->given; byte++) at = append(at, "%02x", parameter->value[byte]);
        if (is_memory) memory_of(parameter)->is.references++;
    }
    HAND_OUT(command);
    END;
}

int clFlush(void *given) {
    ON_QUEUE;
    hand_over(queue);
    END;
}

int clFinish(void *given) {
    ON_QUEUE;
    hand_over(queue);
    queue->is.references++;
    asleep++;
    while (queue->first) sleep_for_a_while();
    asleep--;
    let_go(queue);
    END;
}

/* Events. */

int clWaitForEvents(unsigned count, struct event *const *events) {
    BEGIN;
    for (unsigned index = 0; index < count; index++)
        if (await(IS(EVENT, events[index])) < 0) code = WAITED_FOR_FAILURE;
    END;
}

int clGetEventInfo(void *given, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct event *event = IS(EVENT, given);
    if (what == 0x11D3) GIVE(int, is_stale ? 1 : event->status);
    FAIL(INVALID_VALUE);
    END;
}

int clSetEventCallback(void *given, int status, void (*back)(void *, int, void *), void *data) {
    BEGIN;
    struct event *event = IS(EVENT, given);
    if (status) found("a call at status %d", status);
    struct called *called = calloc(1, sizeof *called);
    *called = (struct called){back, data, event, event->status, event->called};
    event->is.references++;
    if (event->status > 0) event->called = called;
    else if (is_silent) { called->next = kept; kept = called; }
    else { called->next = NULL; call_back(called); }
    END;
}

int clReleaseEvent(void *event) { BEGIN; let_go(IS(EVENT, event)); END; }
int clRetainEvent(void *event) { BEGIN; ((struct object *)IS(EVENT, event))->references++; END; }

/* Programs and kernels. */

void *clCreateProgramWithSource(void *given, unsigned count, const char **texts, const size_t *sizes, int *error) {
    struct program *made = NULL;
    BEGIN;
    struct context *context = IS(CONTEXT, given);
    ALIVE(context->device);
    if (count != 1 || !sizes) found("a program of %u texts", count);
    made = make(PROGRAM, sizeof *made, context, NULL);
    made->device = context->device;
    made->source = strndup(texts[0], sizes[0]);
    made->log = strdup("");
    END_WITH(made);
}

int clBuildProgram(void *given, unsigned count, void *const *of, const char *with, void *back, void *data) {
    BEGIN;
    struct program *program = IS(PROGRAM, given);
    (void)back, (void)data;
    ALIVE(program->device);
    if (count != 1 || *of != program->device) found("a program is built for another device");
    snprintf(options, sizeof options, "%s", with);
    program->describes = strstr(with, "-cl-kernel-arg-info") != NULL;
    int refused = strstr(with, "-refused") != NULL, is_wrong = strstr(program->source, "#error") != NULL;
    if (refused || is_wrong) {
        free(program->log);
        program->log = strdup(is_wrong ? "\n  the source is wrong \n\n" : strstr(with, "-told") ? "an option is wrong\n" : "\n ");
        FAIL(is_wrong && !refused ? BUILD_FAILED : INVALID_OPTIONS);
    }
    program->is_built = 1;
    END;
}

int clGetProgramBuildInfo(void *given, void *device, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct program *program = IS(PROGRAM, given);
    IS(DEVICE, device);
    if (what == 0x1183) GIVE_TEXT(program->log);
    FAIL(INVALID_VALUE);
    END;
}

/* The parameters of a kernel in the source: behind its name. */
static const char *kernel_in(const char *source, const char *name) {
    for (const char *at = source; (at = strstr(at, "kernel void ")); ) {
        at += strlen("kernel void ");
        if (!strncmp(at, name, strlen(name)) && at[strlen(name)] == '(') return at + strlen(name) + 1;
    }
    return NULL;
}

int clGetProgramInfo(void *given, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct program *program = IS(PROGRAM, given);
    char known[256] = "";
    size_t count = 0;
    for (const char *at = program->source; (at = strstr(at, "kernel void ")); count++) {
        at += strlen("kernel void ");
        size_t so_far = strlen(known);
        snprintf(known + so_far, sizeof known - so_far, "%s%.*s", count ? ";" : "", (int)strcspn(at, "("), at);
    }
    if (what == 0x1162) GIVE(unsigned, 1);
    if (what == 0x1163) FAIL(give(&program->device, sizeof(void *), room, to, needs));
    if (what == 0x1167) GIVE(size_t, count);
    if (what == 0x1168) GIVE_TEXT(known);
    FAIL(INVALID_VALUE);
    END;
}

int clReleaseProgram(void *program) { BEGIN; let_go(IS(PROGRAM, program)); END; }

void *clCreateKernel(void *given, const char *name, int *error) {
    struct kernel *made = NULL;
    BEGIN;
    struct program *program = IS(PROGRAM, given);
    if (!program->is_built) found("a kernel of a program that is not built");
    const char *at = kernel_in(program->source, name);
    if (!at) FAIL(INVALID_KERNEL_NAME);
    made = make(KERNEL, sizeof *made, program, NULL);
    made->device = program->device;
    snprintf(made->name, sizeof made->name, "%s", name);
    for (size_t length; *at != ')'; at += length + (at[length] == ',')) {
        length = strcspn(at, ",)");
        if (made->count == PARAMETERS) found("a kernel of many parameters");
        made->parameters[made->count++] = parsed(at, length);
    }
    END_WITH(made);
}

int clReleaseKernel(void *kernel) { BEGIN; let_go(IS(KERNEL, kernel)); END; }

int clGetKernelInfo(void *given, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct kernel *kernel = IS(KERNEL, given);
    if (what == 0x1190) GIVE_TEXT(kernel->name);
    if (what == 0x1191) GIVE(unsigned, kernel->count);
    FAIL(INVALID_VALUE);
    END;
}

int clGetKernelWorkGroupInfo(void *given, void *device, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct kernel *kernel = IS(KERNEL, given);
    if (IS(DEVICE, device) != kernel->device) found("a kernel of another device");
    /* Kernels named so need much of each work-item. */
    size_t group = strstr(kernel->name, "narrow") ? 48 : strstr(kernel->name, "wide") ? 4 * GROUP : GROUP;
    if (what == 0x11B0) GIVE(size_t, group);
    FAIL(INVALID_VALUE);
    END;
}

int clGetKernelArgInfo(void *given, unsigned index, unsigned what, size_t room, void *to, size_t *needs) {
    BEGIN;
    struct kernel *kernel = IS(KERNEL, given);
    if (index >= (unsigned)kernel->count) found("parameter %u of %d", index, kernel->count);
    struct program *program = (struct program *)kernel->is.parents[0];
    if (!program->describes || strstr(kernel->name, "opaque")) FAIL(NO_ARGUMENT_INFO);
    if (what == 0x1196) GIVE(unsigned, kernel->parameters[index].address);
    if (what == 0x1198) GIVE_TEXT(strstr(kernel->name, "untyped") ? "" : kernel->parameters[index].type);
    FAIL(INVALID_VALUE);
    END;
}

int clSetKernelArg(void *given, unsigned index, size_t size, const void *value) {
    BEGIN;
    struct kernel *kernel = IS(KERNEL, given);
    ALIVE(kernel->device);
    if (index >= (unsigned)kernel->count) FAIL(INVALID_INDEX);
    struct parameter *parameter = &kernel->parameters[index];
    int is_local = parameter->address == 0x119C;
    if (is_local != !value) found("parameter %u of %s %s a value", index, kernel->name, value ? "with" : "without");
    if (!is_local && (size > sizeof parameter->value || (parameter->size && size != parameter->size))) FAIL(INVALID_SIZE);
    if (value) memcpy(parameter->value, value, size);
    parameter->given = size;
    parameter->is_set = 1;
    END;
}
