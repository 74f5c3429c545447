// Heat in a plate, by the explicit 5-point scheme, and how much a step changes it.
// A thread is one element of the plate.

// The outermost rows and columns keep their temperature. The scheme is stable for diffusion <= 0.25.
extern "C" __global__ void heat(const float *__restrict__ from, float *__restrict__ to, unsigned int rows,
                                unsigned int columns, float diffusion) {
    unsigned int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= columns || y >= rows) {
        return;
    }
    size_t i = (size_t)y * columns + x;
    float value = from[i];
    if (x > 0 && y > 0 && x < columns - 1 && y < rows - 1) {
        float around = from[i - columns] + from[i - 1] + from[i + 1] + from[i + columns];
        value += diffusion * (around - 4.0f * value);
    }
    to[i] = value;
}

// most[0] = the greatest absolute difference of two plates. It begins with -infinity, whose bits are a negative
// int. Floats that are not negative are ordered like their bits, so the maximum of ints is that of the floats.
extern "C" __global__ void change(const float *__restrict__ one, const float *__restrict__ other,
                                  volatile int *most, unsigned int rows, unsigned int columns) {
    unsigned int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= columns || y >= rows) {
        return;
    }
    size_t i = (size_t)y * columns + x;
    int difference = __float_as_int(fabsf(one[i] - other[i]));
    // most[0] only grows, so most threads need no atomic operation.
    if (difference > most[0]) {
        atomicMax((int *)most, difference);
    }
}
