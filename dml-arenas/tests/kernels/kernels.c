/* Functions for the tests of offload workers: what a user's library would have, and what it should not. */
#define _GNU_SOURCE
#include "dml_offload.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* views[0][i] = views[1][i] * f32(0) + item */
int32_t scale(const dml_call *call)
{
    float *out = call->views[0].data;
    const float *in = call->views[1].data;
    if (!call->views[0].writable || call->views[1].writable || call->size != sizeof(dml_call))
        return 3;
    for (uint64_t item = call->first; item < call->end; item++)
        out[item - call->first] = in[item - call->first] * call->scalars[0].value.f32 + (float)item;
    return 0;
}

/* What the call says of its arguments, as text into views[0]. */
int32_t describe(const dml_call *call)
{
    char text[512];
    const dml_scalar *s = call->scalars;
    int length = snprintf(text, sizeof text, "%llu..%llu threads=%u start=%llu bytes=%llu",
                          (unsigned long long)call->first, (unsigned long long)call->end, call->threads,
                          (unsigned long long)call->views[0].start, (unsigned long long)call->views[0].bytes);
    for (uint64_t i = 0; i < call->scalar_count; i++) {
        char *at = text + length;
        size_t room = sizeof text - (size_t)length;
        switch (s[i].kind) {
        case DML_U32: length += snprintf(at, room, " %u", s[i].value.u32); break;
        case DML_I32: length += snprintf(at, room, " %d", s[i].value.i32); break;
        case DML_U64: length += snprintf(at, room, " %llu", (unsigned long long)s[i].value.u64); break;
        case DML_I64: length += snprintf(at, room, " %lld", (long long)s[i].value.i64); break;
        case DML_F32: length += snprintf(at, room, " %g", (double)s[i].value.f32); break;
        case DML_F64: length += snprintf(at, room, " %g", s[i].value.f64); break;
        case DML_U8: length += snprintf(at, room, " %u", s[i].value.u8); break;
        case DML_I8: length += snprintf(at, room, " %d", s[i].value.i8); break;
        case DML_U16: length += snprintf(at, room, " %u", s[i].value.u16); break;
        case DML_I16: length += snprintf(at, room, " %d", s[i].value.i16); break;
        case DML_F16: length += snprintf(at, room, " half %x", s[i].value.u16); break;
        }
    }
    if ((uint64_t)length > call->views[0].bytes)
        return 1;
    memcpy(call->views[0].data, text, (size_t)length);
    return 0;
}

/* The positions of the arguments, and the bytes of the values, as text into views[0]. */
int32_t positions(const dml_call *call)
{
    char text[512] = "";
    int length = 0;
    for (uint64_t i = 0; i < call->view_count; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "view %u: %llu+%llu, ", call->views[i].argument,
                           (unsigned long long)call->views[i].start, (unsigned long long)call->views[i].bytes);
    for (uint64_t i = 0; i < call->scalar_count; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "scalar %u, ", call->scalars[i].argument);
    for (uint64_t i = 0; i < call->value_count; i++) {
        length += snprintf(text + length, sizeof text - (size_t)length, "value %u:", call->values[i].argument);
        for (uint64_t at = 0; at < call->values[i].bytes; at++)
            length += snprintf(text + length, sizeof text - (size_t)length, " %u",
                               ((const uint8_t *)call->values[i].data)[at]);
    }
    if ((uint64_t)length > call->views[0].bytes)
        return 1;
    memcpy(call->views[0].data, text, (size_t)length);
    return 0;
}

/* The environment and the cores of the worker, as text into views[0]. */
int32_t surroundings(const dml_call *call)
{
    char text[512];
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    int length = snprintf(text, sizeof text, "omp=%s rayon=%s cores=%d first=%d", getenv("OMP_NUM_THREADS"),
                          getenv("RAYON_NUM_THREADS"), CPU_COUNT(&cores), CPU_ISSET(0, &cores));
    if ((uint64_t)length > call->views[0].bytes)
        return 1;
    memcpy(call->views[0].data, text, (size_t)length);
    return 0;
}

/* Adds u32(0) to every element, after so many milliseconds as u32(1) says. */
int32_t add_late(const dml_call *call)
{
    usleep(call->scalars[1].value.u32 * 1000);
    uint32_t *data = call->views[0].data;
    for (uint64_t i = 0; i < call->views[0].bytes / 4; i++)
        data[i] = data[i] * 3 + call->scalars[0].value.u32;
    return 0;
}

/* Returns only when u32(0) calls are in it at once. */
int32_t meet(const dml_call *call)
{
    _Atomic uint32_t *here = call->views[0].data;
    atomic_fetch_add(here, 1);
    while (atomic_load(here) < call->scalars[0].value.u32)
        sched_yield();
    return 0;
}

int32_t fail(const dml_call *call)
{
    snprintf(call->message, call->message_bytes, "no luck with %u", call->scalars[0].value.u32);
    return -42;
}

int32_t fail_silently(const dml_call *call)
{
    (void)call;
    return 7;
}

int32_t hang(const dml_call *call)
{
    (void)call;
    for (;;)
        pause();
}

/* Writes to every element of views[0], again and again, and never returns. */
int32_t scribble(const dml_call *call)
{
    volatile uint32_t *data = call->views[0].data;
    for (uint32_t round = 1;; round++)
        for (uint64_t i = 0; i < call->views[0].bytes / 4; i++)
            data[i] = round * 2654435761u + (uint32_t)i;
}

int32_t crash(const dml_call *call)
{
    (void)call;
    abort();
}

int32_t leave(const dml_call *call)
{
    _exit((int)call->scalars[0].value.u32);
}

/* What a function prints must not get into its owner's output. */
int32_t print(const dml_call *call)
{
    (void)call;
    printf("printed by a function\n");
    fflush(stdout);
    return 0;
}

/* Reads from the standard input: there is nothing. */
int32_t read_input(const dml_call *call)
{
    (void)call;
    char byte;
    return read(0, &byte, 1) == 0 ? 0 : 9;
}

/* Forks a child that returns from the function like its parent, and waits until it has ended. */
int32_t fork_and_return(const dml_call *call)
{
    uint32_t *data = call->views[0].data;
    pid_t child = fork();
    if (child == 0)
        return 0;
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    data[0] = 7;
    return 0;
}

/* Forks a child that writes into the buffer: 0 where it could not, and was ended for it. */
int32_t fork_and_touch(const dml_call *call)
{
    volatile uint32_t *data = call->views[0].data;
    pid_t child = fork();
    if (child == 0) {
        data[0] = 1;
        _exit(0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 0 : 2;
}
