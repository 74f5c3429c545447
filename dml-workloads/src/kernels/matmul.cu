// out = a * b, square matrices, row-major. A thread is one element, and a block of threads is a tile of
// `16 x 16`.
//
// A block iterates over the tiles of its rows of a and of its columns of b. It loads each pair into shared
// memory, so that one fetch of an element serves sixteen products. Tiles are padded with zeros beyond the
// matrix.
#define TILE 16

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    matmul(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ out, const unsigned int edge,
           const unsigned long long end, const DmlItems items) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const unsigned int across = threadIdx.x;
    const unsigned int down = threadIdx.y;
    const unsigned long long column = items.x();
    const unsigned long long row = items.y();

    float sum = 0.0f;
    for (unsigned long long first = 0; first < edge; first += TILE) {
        a_tile[down][across] = row < end && first + across < edge ? a[row * edge + first + across] : 0.0f;
        b_tile[down][across] = column < edge && first + down < edge ? b[(first + down) * edge + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (unsigned int step = 0; step < TILE; ++step) {
            sum += a_tile[down][step] * b_tile[step][across];
        }
        __syncthreads();
    }
    if (row < end && column < edge) {
        out[row * edge + column] = sum;
    }
}
