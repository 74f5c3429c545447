// DML puts this before a kernel in CUDA C that reads its block or the grid. A package is a part of a run, and
// CUDA's own numbers count from the part's first block. Here, `blockIdx` and `gridDim` are those of the whole
// run. The kernel's first statement, `dml_enter`, stores them for the block.
struct DmlPart {
    unsigned long long offset[3];
    unsigned long long end[3];
    unsigned long long total[3];
};
struct DmlPlace {
    unsigned block[3];
    unsigned grid[3];
};
static __device__ inline DmlPlace& dml_place() {
    __shared__ DmlPlace place;
    return place;
}
static __device__ inline void dml_enter(const DmlPart& part) {
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
        DmlPlace& place = dml_place();
        place.block[0] = (unsigned)(part.offset[0] / blockDim.x) + blockIdx.x;
        place.block[1] = (unsigned)(part.offset[1] / blockDim.y) + blockIdx.y;
        place.block[2] = (unsigned)(part.offset[2] / blockDim.z) + blockIdx.z;
        place.grid[0] = (unsigned)((part.total[0] + blockDim.x - 1) / blockDim.x);
        place.grid[1] = (unsigned)((part.total[1] + blockDim.y - 1) / blockDim.y);
        place.grid[2] = (unsigned)((part.total[2] + blockDim.z - 1) / blockDim.z);
    }
    __syncthreads();
}
static __device__ inline uint3 dml_block() {
    DmlPlace& place = dml_place();
    return make_uint3(place.block[0], place.block[1], place.block[2]);
}
static __device__ inline dim3 dml_grid() {
    DmlPlace& place = dml_place();
    return dim3(place.grid[0], place.grid[1], place.grid[2]);
}
#define blockIdx (dml_block())
#define gridDim (dml_grid())
