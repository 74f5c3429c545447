// The tasks for CUDA GPUs. The last argument is the number of items.

__device__ size_t item() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void smooth(const unsigned* from, unsigned* to, unsigned radius, size_t end) {
    size_t i = item();
    if (i >= end) return;
    size_t first = i < radius ? 0 : i - radius, last = min(i + radius + 1, end);
    unsigned sum = 0;
    for (size_t k = first; k < last; k++) sum += from[k];
    to[i] = sum / (unsigned)(last - first);
}

extern "C" __global__ void difference(const unsigned* a, const unsigned* b, unsigned* to, size_t end) {
    size_t i = item();
    if (i < end) to[i] = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i];
}

extern "C" __global__ void join(unsigned* both, const unsigned* other, size_t end) {
    size_t i = item();
    if (i < end) both[i] = max(both[i], other[i]);
}
