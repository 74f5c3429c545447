/*
 * The interface between a coprocessor's worker and a shared library of functions.
 *
 *     int32_t scale(const dml_call *call)
 *     {
 *         float *data = call->views[0].data;
 *         for (uint64_t i = 0; i < call->end - call->first; i++)
 *             data[i] *= call->scalars[0].value.f32;
 *         return 0;
 *     }
 *
 * The worker loads the library (OffloadDevice::load) and looks up functions by name
 * (OffloadDevice::function). A function may be called from several threads at once, each time with its own
 * buffers. It returns 0 for success. Any other number is the function's own error code. On an error, the
 * function may write a zero-terminated text to `message`.
 *
 * A function may fork. The child does not inherit the mappings of the buffers: access to `data` there is a
 * segmentation fault. If the child returns from the function, it exits.
 */
#ifndef DML_OFFLOAD_H
#define DML_OFFLOAD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Part of a buffer, in the worker's memory. */
typedef struct dml_view {
    void *data;        /* the first byte */
    uint64_t bytes;    /* the number of bytes */
    uint64_t start;    /* the offset of the first byte in its buffer */
    uint32_t writable; /* 1 if the function may write, 0 if it may only read */
    uint32_t argument; /* the position of its argument; a buffer may have several parts */
} dml_view;

enum {
    DML_U32 = 0,
    DML_I32 = 1,
    DML_U64 = 2,
    DML_I64 = 3,
    DML_F32 = 4,
    DML_F64 = 5,
    DML_U8 = 6,
    DML_I8 = 7,
    DML_U16 = 8,
    DML_I16 = 9,
    DML_F16 = 10 /* half precision, as its bits in u16 */
};

typedef struct dml_scalar {
    uint32_t kind;     /* the valid member of `value`: DML_U32 to DML_F16 */
    uint32_t argument; /* the position of its argument */
    union {
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
    } value;
} dml_scalar;

/* A value of another type, such as a structure. */
typedef struct dml_value {
    const void *data;  /* the first byte, which may be unaligned */
    uint64_t bytes;    /* the number of bytes */
    uint32_t argument; /* the position of its argument */
    uint32_t reserved; /* 0 */
} dml_value;

/* One call. */
typedef struct dml_call {
    uint32_t size;    /* the size of this structure in bytes; later versions add members at its end */
    uint32_t threads; /* the number of threads that the function may use */
    uint64_t first;   /* the first item to compute */
    uint64_t end;     /* the item after the last one */
    const dml_view *views;
    uint64_t view_count;
    const dml_scalar *scalars;
    uint64_t scalar_count;
    char *message; /* a buffer for the function's error message */
    uint64_t message_bytes; /* the size of that buffer */
    const dml_value *values;
    uint64_t value_count;
} dml_call;

typedef int32_t (*dml_function)(const dml_call *call);

#ifdef __cplusplus
}
#endif

#endif
