// c = a * b, square matrices of n x n floats.
// A thread is one element of c, or a tile of 4 x 4.

// A thread is one element.
extern "C" __global__ void matmul(const float *__restrict__ a, const float *__restrict__ b,
                                  float *__restrict__ c, unsigned int n) {
    unsigned int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) {
        return;
    }
    float sum = 0.0f;
    for (unsigned int i = 0; i < n; ++i) {
        sum += a[(size_t)y * n + i] * b[(size_t)i * n + x];
    }
    c[(size_t)y * n + x] = sum;
}

// A thread is a tile of TILE x TILE, and GROUP x GROUP threads are a block of EDGE x EDGE. The threads load
// DEPTH columns of a and DEPTH rows of b at a time into shared memory.
#define GROUP 16
#define TILE 4
#define EDGE (GROUP * TILE)
#define DEPTH 16

extern "C" __global__ void __launch_bounds__(GROUP * GROUP)
matmul_local(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c,
             unsigned int n) {
    // The block of a is transposed. The padding distributes its columns among the banks.
    __shared__ __align__(16) float a_block[DEPTH][EDGE + 4];
    __shared__ __align__(16) float b_block[DEPTH][EDGE];
    unsigned int across = threadIdx.x, down = threadIdx.y;
    unsigned int left = blockIdx.x * EDGE, top = blockIdx.y * EDGE;

    float sums[TILE][TILE] = {{0.0f}};
    for (unsigned int first = 0; first < n; first += DEPTH) {
        for (unsigned int i = down * GROUP + across; i < EDGE * DEPTH; i += GROUP * GROUP) {
            unsigned int row = top + i / DEPTH, column = first + i % DEPTH;
            a_block[i % DEPTH][i / DEPTH] = row < n && column < n ? a[(size_t)row * n + column] : 0.0f;
            row = first + i / EDGE, column = left + i % EDGE;
            b_block[i / EDGE][i % EDGE] = row < n && column < n ? b[(size_t)row * n + column] : 0.0f;
        }
        __syncthreads();
        for (unsigned int i = 0; i < DEPTH; ++i) {
            for (unsigned int row = 0; row < TILE; ++row) {
                for (unsigned int column = 0; column < TILE; ++column) {
                    sums[row][column] += a_block[i][TILE * down + row] * b_block[i][TILE * across + column];
                }
            }
        }
        __syncthreads();
    }
    for (unsigned int row = 0; row < TILE; ++row) {
        for (unsigned int column = 0; column < TILE; ++column) {
            unsigned int x = left + TILE * across + column, y = top + TILE * down + row;
            if (x < n && y < n) {
                c[(size_t)y * n + x] = sums[row][column];
            }
        }
    }
}
