// DML puts this before every kernel in CUDA C. A kernel whose last parameter is a `DmlItems` receives its
// items: along each axis, those from `offset` up to `end`. A launch is padded to whole blocks, so some
// threads lie past the end.
struct DmlItems {
    unsigned long long offset[3];
    unsigned long long end[3];

    __device__ unsigned long long x() const { return offset[0] + (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; }
    __device__ unsigned long long y() const { return offset[1] + (unsigned long long)blockIdx.y * blockDim.y + threadIdx.y; }
    __device__ unsigned long long z() const { return offset[2] + (unsigned long long)blockIdx.z * blockDim.z + threadIdx.z; }
};
