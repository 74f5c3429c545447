/* The part of NVIDIA's driver that DML uses, for GPUs that do not exist: their memory is this process's, and
 * each stream is a thread.
 *
 *   cuda:0, cuda:1   reach each other by NVLink, have pools
 *   cuda:2           reaches no other GPU, has no pools
 *
 * It is as strict as the driver is lax. Misuse ends the process: use of memory that was freed under a
 * command, that another stream must not use yet, or that is no longer locked; stale handles; copies between
 * GPUs of which one was not opened to the other; objects left in a released context. `stand_in_count` returns
 * the number of live objects of a kind. */

#include "streams.h"

/* What a test asks and says. */

long stand_in_count(const char *what) {
    long count = -1;
    pthread_mutex_lock(&lock);
    if (!strcmp(what, "contexts")) count = !!devices[0].retained + !!devices[1].retained + !!devices[2].retained;
    if (!strcmp(what, "streams")) count = COUNT(streams, 1);
    if (!strcmp(what, "events")) count = COUNT(events, 1);
    if (!strcmp(what, "pools")) count = COUNT(pools, 1);
    if (!strcmp(what, "kept")) count = pools ? (long)pools->kept : -1;
    if (!strcmp(what, "blocks")) count = COUNT(blocks, it->state != CACHED && it->of && it->of != &theirs);
    if (!strcmp(what, "locked")) count = COUNT(regions, 1);
    if (!strcmp(what, "modules")) count = COUNT(modules, 1);
    if (!strcmp(what, "graphs")) count = COUNT(graphs, 1) + COUNT(executables, 1);
    if (!strcmp(what, "pushed")) count = pushed;
    if (!strcmp(what, "asleep")) count = asleep;
    if (!strcmp(what, "queued")) {
        count = 0;
        for (struct stream *at = streams; at; at = at->next)
            for (struct command *command = at->first; command; command = command->next) count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* The program that was loaded last. */
const char *stand_in_program(void) { return modules ? modules->text : ""; }

/* Drops what a test has left without an owner: pages that it locked itself, memory in pieces, and failures
 * still due. */
void stand_in_forget(void) {
    pthread_mutex_lock(&lock);
    for (struct block *at = blocks, *next; at; at = next) {
        next = at->next;
        if (!at->of || at->of == &theirs) { TAKE_OUT(blocks, at); free(at); }
    }
    regions = NULL;
    for (int index = 0; index < CALLS; index++) calls[index].code = 0;
    for (int index = 0; index < DEVICES; index++) devices[index].lost = 0;
    has_nvlink = 1;
    pthread_mutex_unlock(&lock);
}

/* Whether the GPUs that reach each other do so by NVLink. */
void stand_in_nvlink(int is_there) { has_nvlink = is_there; }

void stand_in_lose(int device, int code) {
    pthread_mutex_lock(&lock);
    devices[device].lost = code;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Makes device memory in pieces at consecutive addresses. The program mapped each, or allocated it in the
 * context. The memory is never freed. */
address stand_in_pieces(int device, int count, size_t bytes, int is_mapped) {
    char *memory = calloc(count, bytes);
    pthread_mutex_lock(&lock);
    for (int index = 0; index < count; index++) {
        struct block *block = calloc(1, sizeof *block);
        *block = (struct block){(address)memory + index * bytes, bytes, device, LIVE, NULL, is_mapped ? NULL : &theirs, blocks};
        blocks = block;
    }
    pthread_mutex_unlock(&lock);
    return (address)memory;
}

/* The driver. */

static int of_env(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }

int cuDriverGetVersion(int *version) { BEGIN; *version = of_env("STAND_IN_VERSION", 13000); END; }
int cuInit(unsigned flags) { BEGIN; if (flags) FAIL(INVALID_VALUE); END; }
int cuDeviceGetCount(int *count) { BEGIN; *count = of_env("STAND_IN_DEVICES", DEVICES); END; }

int cuDeviceGet(int *device, int index) {
    BEGIN;
    if (index < 0 || index >= DEVICES) FAIL(INVALID_DEVICE);
    *device = index;
    END;
}

int cuDeviceGetName(char *name, int length, int device) { BEGIN; snprintf(name, length, "Stand-in %d ", device); END; }
int cuDeviceGetPCIBusId(char *text, int length, int device) { BEGIN; snprintf(text, length, "0000:%02X:00.0", 0x1a + device); END; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { BEGIN; memset(uuid, 0xA0 + device, 16); END; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { BEGIN; (void)device; *bytes = MEMORY; END; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN;
    switch (attribute) {
    case 16: *value = 100 + device; break;
    case 75: *value = 9; break;
    case 76: *value = device; break;
    case 115: *value = device < 2 ? 1 : 0; break;
    default: found("attribute %d of a device", attribute); FAIL(INVALID_VALUE);
    }
    END;
}

static int reach(int from, int to) { return from != to && from < 2 && to < 2; }

int cuDeviceCanAccessPeer(int *can, int from, int to) { BEGIN; *can = reach(from, to); END; }

int cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to) {
    BEGIN;
    if (attribute != 3) found("attribute %d of two devices", attribute);
    *value = reach(from, to) && has_nvlink;
    END;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    BEGIN;
    if (devices[device].lost) FAIL(devices[device].lost);
    devices[device].retained++;
    *context = &devices[device];
    END;
}

int cuDevicePrimaryCtxRelease_v2(int number) {
    BEGIN;
    struct device *device = &devices[number];
    if (!device->retained) { found("a context is given back too often"); FAIL(INVALID_CONTEXT); }
    if (--device->retained == 0) {
        /* What was mapped piece by piece is the program's. */
        if (COUNT(streams, it->device == number)) found("streams are left behind");
        if (COUNT(events, it->device == number)) found("events are left behind");
        if (COUNT(pools, it->device == number)) found("a pool is left behind");
        if (COUNT(blocks, it->device == number && it->of && it->of != &theirs)) found("memory is left behind");
        if (COUNT(modules, it->device == number)) found("a program is left behind");
        if (COUNT(graphs, it->device == number) + COUNT(executables, it->device == number)) found("a graph is left behind");
        device->opened_to = 0;
    }
    END;
}

int cuCtxPushCurrent_v2(void *context) {
    BEGIN;
    struct device *device = context;
    if (!device || !device->retained) { found("a context that was given back is made current"); FAIL(INVALID_CONTEXT); }
    if (depth == DEPTH) abort();
    stack[depth++] = device;
    pushed++;
    END;
}

int cuCtxPopCurrent_v2(void **context) {
    BEGIN;
    if (!depth) { found("there is no context to take off"); FAIL(INVALID_CONTEXT); }
    *context = stack[--depth];
    pushed--;
    END;
}

int cuCtxSynchronize(void) {
    IN_CONTEXT;
    for (struct stream *at = streams; at; at = at->next)
        if (at->device == device->number) drain(at);
    END;
}

int cuCtxEnablePeerAccess(void *other, unsigned flags) {
    IN_CONTEXT;
    struct device *to = other;
    if (flags || !reach(device->number, to->number)) FAIL(NO_ACCESS);
    if (to->opened_to & 1 << device->number) FAIL(ACCESS_THERE);
    to->opened_to |= 1 << device->number;
    END;
}

int cuStreamCreate(struct stream **made, unsigned flags) {
    IN_CONTEXT;
    if (flags != 1) found("a stream that waits for the default stream");
    struct stream *stream = calloc(1, sizeof *stream);
    *stream = (struct stream){.device = device->number, .last = &stream->first, .next = streams};
    streams = stream;
    if (pthread_create(&stream->thread, NULL, work, stream)) abort();
    *made = stream;
    END;
}

int cuStreamDestroy_v2(void *given) {
    BEGIN;
    struct stream *stream = stream_of(given, "destruction");
    if (!stream) FAIL(INVALID_HANDLE);
    if (stream->first) found("a stream is destroyed before its commands have ended");
    stream->closing = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&lock);
    TAKE_OUT(streams, stream);
    free(stream);
    END;
}

int cuStreamSynchronize(void *given) {
    BEGIN;
    struct stream *stream = stream_of(given, "wait");
    if (!stream) FAIL(INVALID_HANDLE);
    drain(stream);
    code = devices[stream->device].lost;
    END;
}

int cuStreamWaitEvent(void *given, struct event *event, unsigned flags) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "wait for an event");
    if (!stream || flags || !IS_THERE(events, event) || !event->record) FAIL(INVALID_HANDLE);
    struct command *command = enqueue(stream, AWAIT);
    command->record = event->record;
    END;
}

int cuEventCreate(struct event **made, unsigned flags) {
    IN_CONTEXT;
    if (flags != 2) found("an event that takes the time, or comes with an interrupt");
    struct event *event = calloc(1, sizeof *event);
    *event = (struct event){.device = device->number, .next = events};
    *made = events = event;
    END;
}

int cuEventDestroy_v2(struct event *event) {
    BEGIN;
    if (!IS_THERE(events, event)) { found("an event is destroyed twice"); FAIL(INVALID_HANDLE); }
    TAKE_OUT(events, event);
    free(event);
    END;
}

int cuEventRecord(struct event *event, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "record");
    if (!stream || !IS_THERE(events, event)) { found("an event that is gone is recorded"); FAIL(INVALID_HANDLE); }
    if (event->device != stream->device) FAIL(INVALID_HANDLE);
    struct command *command = enqueue(stream, RECORD);
    command->event = event;
    command->record = event->record = calloc(1, sizeof *event->record);
    END;
}

static int ended(struct event *event) {
    if (event->record && !event->record->is_reached) return NOT_READY;
    return event->record && event->record->code ? event->record->code : devices[event->device].lost;
}

int cuEventQuery(struct event *event) {
    BEGIN;
    if (!IS_THERE(events, event)) { found("an event that is gone is asked"); FAIL(INVALID_HANDLE); }
    code = ended(event);
    END;
}

int cuEventSynchronize(struct event *event) {
    BEGIN;
    if (!IS_THERE(events, event)) { found("an event that is gone is awaited"); FAIL(INVALID_HANDLE); }
    asleep++;
    while (ended(event) == NOT_READY) pthread_cond_wait(&changed, &lock);
    asleep--;
    code = ended(event);
    END;
}

struct properties { int type, handles, place, number; };

int cuMemPoolCreate(struct pool **made, const struct properties *given) {
    IN_CONTEXT;
    if (given->type != 1 || given->handles || given->place != 1 || given->number != device->number) FAIL(INVALID_VALUE);
    if (device->number == 2) { found("a pool of a device without"); FAIL(INVALID_VALUE); }
    struct pool *pool = calloc(1, sizeof *pool);
    *pool = (struct pool){.device = device->number, .next = pools};
    *made = pools = pool;
    END;
}

int cuMemPoolSetAttribute(struct pool *pool, int attribute, uint64_t *value) {
    BEGIN;
    if (attribute != 4) FAIL(INVALID_VALUE);
    pool->kept = *value;
    END;
}

int cuMemPoolSetAccess(struct pool *pool, const int *access, size_t count) {
    BEGIN;
    /* The kind of place, its number, and the right to read and write. */
    if (count != 1 || access[0] != 1 || access[2] != 3) FAIL(INVALID_VALUE);
    if (!reach(access[1], pool->device)) FAIL(INVALID_DEVICE);
    pool->opened_to |= 1 << access[1];
    END;
}

int cuMemPoolTrimTo(struct pool *pool, size_t bytes) { BEGIN; trim(pool, bytes); END; }

int cuMemPoolDestroy(struct pool *pool) {
    BEGIN;
    if (!IS_THERE(pools, pool)) { found("a pool is destroyed twice"); FAIL(INVALID_HANDLE); }
    trim(pool, 0);
    if (COUNT(blocks, it->pool == pool)) found("a pool is destroyed before its memory is freed");
    TAKE_OUT(pools, pool);
    free(pool);
    END;
}

static int allocate(address *made, size_t bytes, struct device *device, struct pool *pool, struct stream *stream) {
    if (!bytes) return INVALID_VALUE;
    if (device->used + bytes > MEMORY) return OUT_OF_MEMORY;
    struct block *block = calloc(1, sizeof *block);
    void *memory = NULL;
    if (posix_memalign(&memory, 512, bytes)) abort();
    /* What was never written is no zeros. */
    memset(memory, 0xD5, bytes < 4096 ? bytes : 4096);
    static struct stream own;
    *block = (struct block){(address)memory, bytes, device->number, pool ? FRESH : LIVE, pool, stream ? stream : &own, blocks};
    blocks = block;
    device->used += bytes;
    *made = block->start;
    return SUCCESS;
}

int cuMemAllocFromPoolAsync(address *made, size_t bytes, struct pool *pool, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "allocation");
    if (!stream || !IS_THERE(pools, pool)) FAIL(INVALID_HANDLE);
    struct block *block = blocks;
    while (block && !(block->pool == pool && block->state == CACHED && block->size == bytes)) block = block->next;
    if (block) {
        block->state = FRESH;
        *made = block->start;
    } else {
        code = allocate(made, bytes, &devices[pool->device], pool, stream);
        if (code) goto end;
    }
    enqueue(stream, READY)->to = *made;
    END;
}

int cuMemFreeAsync(address start, void *given) {
    BEGIN;
    struct stream *stream = stream_of(given, "freeing");
    if (!stream) FAIL(INVALID_HANDLE);
    enqueue(stream, FREE)->to = start;
    END;
}

int cuMemAlloc_v2(address *made, size_t bytes) {
    IN_CONTEXT;
    if (device->number < 2) found("memory that is not of the pool");
    code = allocate(made, bytes, device, NULL, NULL);
    END;
}

int cuMemFree_v2(address start) {
    BEGIN;
    struct block *block = block_of(start, 1);
    if (!block || block->start != start || block->pool) { found("memory is freed twice, or was never had"); FAIL(INVALID_VALUE); }
    drop_block(block);
    END;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    IN_CONTEXT;
    if (!(flags & 1)) found("pages are locked for one device alone");
    uintptr_t start = (uintptr_t)memory;
    if (!bytes) FAIL(INVALID_VALUE);
    if (COUNT(regions, it->start < start + bytes && start < it->start + it->size)) FAIL(LOCKED);
    struct region *region = calloc(1, sizeof *region);
    *region = (struct region){start, bytes, flags & 2, regions};
    regions = region;
    END;
}

int cuMemHostGetDevicePointer_v2(address *at, void *memory, unsigned flags) {
    IN_CONTEXT;
    uintptr_t start = (uintptr_t)memory;
    if (flags || !COUNT(regions, it->is_mapped && it->start <= start && start < it->start + it->size)) FAIL(INVALID_VALUE);
    *at = start;
    END;
}

int cuMemHostUnregister(void *memory) {
    IN_CONTEXT;
    struct region *region = regions;
    while (region && region->start != (uintptr_t)memory) region = region->next;
    if (!region) { found("pages are unlocked that are not locked"); FAIL(NOT_LOCKED); }
    TAKE_OUT(regions, region);
    free(region);
    END;
}

int cuMemcpyHtoDAsync_v2(address to, void *from, size_t bytes, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "copy in");
    if (!stream) FAIL(INVALID_HANDLE);
    struct command *command = enqueue(stream, COPY_IN);
    command->to = to;
    command->bytes = bytes;
    command->host = from;
    if (!is_locked((uintptr_t)from, bytes)) {
        /* As the driver does: the source is read before the call returns. */
        command->staged = malloc(bytes);
        memcpy(command->staged, from, bytes);
    }
    END;
}

int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "copy out");
    if (!stream) FAIL(INVALID_HANDLE);
    struct command *command = enqueue(stream, COPY_OUT);
    command->from = from;
    command->bytes = bytes;
    command->host = to;
    if (!is_locked((uintptr_t)to, bytes)) {
        /* As the driver does: the call returns when the target is written. */
        unsigned char *staged = command->staged = malloc(bytes);
        drain(stream);
        if (!device->lost) memcpy(to, staged, bytes);
        free(staged);
    }
    END;
}

int cuMemcpyPeerAsync(address to, struct device *there, address from, struct device *here, size_t bytes, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "peer copy");
    struct block *source = block_of(from, bytes), *target = block_of(to, bytes);
    if (!stream || !source || !target) FAIL(INVALID_VALUE);
    if (source->device != here->number || target->device != there->number) { found("a peer copy takes one GPU for another"); FAIL(INVALID_CONTEXT); }
    int is_open = (there->opened_to & 1 << here->number) && target->pool && (target->pool->opened_to & 1 << here->number);
    if (!is_open) found("a peer copy to memory that is not open to it");
    struct command *command = enqueue(stream, ACROSS);
    command->to = to;
    command->from = from;
    command->bytes = bytes;
    END;
}

int cuMemsetD8Async(address to, unsigned char byte, size_t bytes, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "set");
    if (!stream) FAIL(INVALID_HANDLE);
    struct command *command = enqueue(stream, SET);
    command->to = to;
    command->byte = byte;
    command->bytes = bytes;
    END;
}

int cuMemGetAddressRange_v2(address *start, size_t *bytes, address at) {
    BEGIN;
    struct block *block = block_of(at, 1);
    if (!block) FAIL(NOT_FOUND);
    *start = block->start;
    *bytes = block->size;
    END;
}

int cuPointerGetAttribute(void *value, int attribute, address at) {
    BEGIN;
    struct block *block = block_of(at, 1);
    if (!block && !is_locked(at, 1)) FAIL(INVALID_VALUE);
    switch (attribute) {
    case 1:
        /* Memory of pools, and what was mapped, is of no context. */
        if (!block || block->pool || !block->of) FAIL(INVALID_VALUE);
        *(void **)value = &devices[block->device];
        break;
    case 2: *(unsigned *)value = block ? 2 : 1; break;
    case 8: *(unsigned *)value = 0; break;
    case 9: *(int *)value = block ? block->device : 0; break;
    default: found("attribute %d of a pointer", attribute); FAIL(INVALID_VALUE);
    }
    END;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
        : error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : NULL;
    return *text ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == LAUNCH_FAILED ? "unspecified launch failure" : NULL;
    return *text ? SUCCESS : INVALID_VALUE;
}

int cuModuleLoadDataEx(struct module **made, const char *text, unsigned count, int *options, void **values) {
    IN_CONTEXT;
    if (strstr(text, "refused")) {
        for (unsigned index = 0; index < count; index++)
            if (options[index] == 5) snprintf(values[index], 64, "line 3: no such instruction\n");
        FAIL(INVALID_PTX);
    }
    if (strstr(text, "damaged")) FAIL(INVALID_PTX);
    struct module *module = calloc(1, sizeof *module);
    *module = (struct module){device->number, strdup(text), modules};
    *made = modules = module;
    END;
}

int cuModuleUnload(struct module *module) {
    IN_CONTEXT;
    if (!IS_THERE(modules, module)) { found("a program is unloaded twice"); FAIL(INVALID_HANDLE); }
    for (struct graph *at = executables; at; at = at->next)
        for (int index = 0; index < at->nodes; index++)
            if (at->node[index].function->module == module) found("a program is unloaded of which a graph has a kernel");
    TAKE_OUT(modules, module);
    for (struct function *at = functions; at; at = at->next)
        if (at->module == module) at->kernel = -1;
    free(module->text);
    free(module);
    END;
}

int cuModuleGetFunction(struct function **made, struct module *module, const char *name) {
    IN_CONTEXT;
    if (!IS_THERE(modules, module)) { found("a program that is gone is asked for a kernel"); FAIL(INVALID_HANDLE); }
    int kernel = 0;
    while (kernel < KERNELS && strcmp(kernels[kernel].name, name)) kernel++;
    if (kernel == KERNELS || !strstr(module->text, name)) FAIL(NOT_FOUND);
    /* All who ask for a kernel get the same one. */
    struct function *function = functions;
    while (function && (function->module != module || function->kernel != kernel)) function = function->next;
    if (!function) {
        function = calloc(1, sizeof *function);
        *function = (struct function){module, kernel, 48 << 10, functions};
        functions = function;
    }
    *made = function;
    END;
}

int cuFuncGetAttribute(int *value, int attribute, struct function *function) {
    BEGIN;
    if (attribute) FAIL(INVALID_VALUE);
    (void)function;
    *value = 512;
    END;
}

int cuFuncSetAttribute(struct function *function, int attribute, int value) {
    BEGIN;
    if (attribute != 8 || value > 200 << 10) FAIL(INVALID_VALUE);
    function->shared = value;
    END;
}

int cuFuncGetParamInfo(struct function *function, size_t index, size_t *offset, size_t *bytes) {
    BEGIN;
    const int *sizes = kernels[function->kernel].bytes;
    if (index >= 4 || !sizes[index]) FAIL(INVALID_VALUE);
    *offset = 8 * index;
    *bytes = sizes[index];
    END;
}

static int is_too_large(const struct node *node) {
    const unsigned *grid = node->grid, *local = node->local;
    return !grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535
        || local[0] * local[1] * local[2] > 512 || (int)node->shared > node->function->shared;
}

static void take(struct node *node, void **arguments) {
    const int *sizes = kernels[node->function->kernel].bytes;
    for (int index = 0, to = 0; index < 4 && sizes[index]; to += (sizes[index++] + 7) / 8)
        memcpy(&node->arguments[to], arguments[index], sizes[index]);
}

static void start(struct stream *stream, const struct node *node) {
    struct command *command = enqueue(stream, LAUNCH);
    command->function = node->function;
    memcpy(command->arguments, node->arguments, sizeof command->arguments);
    for (int axis = 0; axis < 3; axis++) command->grid[axis] = node->grid[axis], command->local[axis] = node->local[axis];
}

int cuLaunchKernel(struct function *function, unsigned gx, unsigned gy, unsigned gz, unsigned lx, unsigned ly, unsigned lz,
                   unsigned shared, void *given, void **arguments, void **extra) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "launch");
    if (!stream || extra) FAIL(INVALID_HANDLE);
    struct node node = {function, {gx, gy, gz}, {lx, ly, lz}, shared, {0}};
    if (is_too_large(&node)) FAIL(INVALID_VALUE);
    take(&node, arguments);
    start(stream, &node);
    END;
}

int cuGraphCreate(struct graph **made, unsigned flags) {
    IN_CONTEXT;
    if (flags) FAIL(INVALID_VALUE);
    struct graph *graph = calloc(1, sizeof *graph);
    *graph = (struct graph){.device = device->number, .next = graphs};
    *made = graphs = graph;
    END;
}

/* The parameters of a kernel's node. */
struct given {
    struct function *function;
    unsigned grid[3], local[3], shared;
    void **arguments, **extra, *kernel, *context;
};

static int set(struct node *node, const struct given *given) {
    *node = (struct node){given->function, {0}, {0}, given->shared, {0}};
    memcpy(node->grid, given->grid, sizeof node->grid);
    memcpy(node->local, given->local, sizeof node->local);
    if (given->extra || given->kernel || given->context || is_too_large(node)) return INVALID_VALUE;
    take(node, given->arguments);
    return SUCCESS;
}

/* Each node follows the one before. Its handle is its number, from 1. */
int cuGraphAddKernelNode_v2(uintptr_t *made, struct graph *graph, const uintptr_t *before, size_t count, const struct given *given) {
    IN_CONTEXT;
    if (!IS_THERE(graphs, graph)) { found("a kernel for a graph that is not there"); FAIL(INVALID_HANDLE); }
    if (graph->nodes == NODES || count != (size_t)!!graph->nodes || (count && *before != (uintptr_t)graph->nodes)) FAIL(INVALID_VALUE);
    int refused = set(&graph->node[graph->nodes], given);
    if (refused) FAIL(refused);
    *made = ++graph->nodes;
    END;
}

int cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph, unsigned long long flags) {
    IN_CONTEXT;
    if (!IS_THERE(graphs, graph) || flags) FAIL(INVALID_VALUE);
    struct graph *executable = malloc(sizeof *executable);
    *executable = *graph;
    executable->of = graph;
    executable->next = executables;
    *made = executables = executable;
    END;
}

int cuGraphExecKernelNodeSetParams_v2(struct graph *executable, uintptr_t node, const struct given *given) {
    IN_CONTEXT;
    if (!IS_THERE(executables, executable)) { found("a graph is changed that is not there"); FAIL(INVALID_HANDLE); }
    if (node < 1 || node > (uintptr_t)executable->nodes) FAIL(INVALID_VALUE);
    int refused = set(&executable->node[node - 1], given);
    if (refused) FAIL(refused);
    END;
}

int cuGraphLaunch(struct graph *executable, void *given) {
    IN_CONTEXT;
    struct stream *stream = stream_of(given, "launch of a graph");
    if (!stream || !IS_THERE(executables, executable)) { found("a graph is launched that is not there"); FAIL(INVALID_HANDLE); }
    for (int index = 0; index < executable->nodes; index++) start(stream, &executable->node[index]);
    END;
}

int cuGraphExecDestroy(struct graph *executable) {
    BEGIN;
    if (!IS_THERE(executables, executable)) { found("a graph is destroyed twice"); FAIL(INVALID_HANDLE); }
    TAKE_OUT(executables, executable);
    free(executable);
    END;
}

int cuGraphDestroy(struct graph *graph) {
    BEGIN;
    if (!IS_THERE(graphs, graph)) { found("a graph is destroyed twice"); FAIL(INVALID_HANDLE); }
    TAKE_OUT(graphs, graph);
    free(graph);
    END;
}
