// c = a * b, square matrices of n x n floats.
// A work-item is one element of c, or a tile: 16 columns x 8 rows on CPUs, 4 x 4 on GPUs.

float element(global const float *a, global const float *b, uint n, uint x, uint y) {
    float sum = 0.0f;
    for (uint i = 0; i < n; ++i) {
        sum += a[(size_t)y * n + i] * b[(size_t)i * n + x];
    }
    return sum;
}

// A work-item is one element.
kernel void matmul(global const float *restrict a, global const float *restrict b, global float *restrict c,
                   uint n) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (x < n && y < n) {
        c[(size_t)y * n + x] = element(a, b, n, x, y);
    }
}

// For CPUs: a work-item is a tile of WIDE columns x TALL rows, whose sums stay in vector registers. Every
// vector of b is used for TALL rows.
#define WIDE 16
#define TALL 8

kernel void matmul_tiled(global const float *restrict a, global const float *restrict b,
                         global float *restrict c, uint n) {
    uint x = WIDE * get_global_id(0), y = TALL * get_global_id(1);
    if (x + WIDE > n || y + TALL > n) {
        // An incomplete tile, or none.
        for (uint row = y; row < min(y + TALL, n); ++row) {
            for (uint column = x; column < min(x + WIDE, n); ++column) {
                c[(size_t)row * n + column] = element(a, b, n, column, row);
            }
        }
        return;
    }
    float16 sums[TALL];
    for (uint row = 0; row < TALL; ++row) {
        sums[row] = 0.0f;
    }
    for (uint i = 0; i < n; ++i) {
        float16 columns = vload16(0, b + (size_t)i * n + x);
        for (uint row = 0; row < TALL; ++row) {
            sums[row] += a[(size_t)(y + row) * n + i] * columns;
        }
    }
    for (uint row = 0; row < TALL; ++row) {
        vstore16(sums[row], 0, c + (size_t)(y + row) * n + x);
    }
}

// For GPUs: a work-item is a tile of TILE x TILE, and a work-group of GROUP x GROUP work-items a block of
// EDGE x EDGE. The work-group loads DEPTH columns of a and DEPTH rows of b at a time into local memory.
#define GROUP 16
#define TILE 4
#define EDGE (GROUP * TILE)
#define DEPTH 16

kernel __attribute__((reqd_work_group_size(GROUP, GROUP, 1))) void
matmul_local(global const float *restrict a, global const float *restrict b, global float *restrict c,
             uint n) {
    // The block of a is transposed. The padding distributes its columns among the banks.
    local float a_block[DEPTH][EDGE + 4] __attribute__((aligned(16)));
    local float b_block[DEPTH][EDGE] __attribute__((aligned(16)));
    uint across = get_local_id(0), down = get_local_id(1);
    uint left = get_group_id(0) * EDGE, top = get_group_id(1) * EDGE;

    float sums[TILE][TILE] = {{0.0f}};
    for (uint first = 0; first < n; first += DEPTH) {
        for (uint i = down * GROUP + across; i < EDGE * DEPTH; i += GROUP * GROUP) {
            uint row = top + i / DEPTH, column = first + i % DEPTH;
            a_block[i % DEPTH][i / DEPTH] = row < n && column < n ? a[(size_t)row * n + column] : 0.0f;
            row = first + i / EDGE, column = left + i % EDGE;
            b_block[i / EDGE][i % EDGE] = row < n && column < n ? b[(size_t)row * n + column] : 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = 0; i < DEPTH; ++i) {
            for (uint row = 0; row < TILE; ++row) {
                for (uint column = 0; column < TILE; ++column) {
                    sums[row][column] += a_block[i][TILE * down + row] * b_block[i][TILE * across + column];
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (uint row = 0; row < TILE; ++row) {
        for (uint column = 0; column < TILE; ++column) {
            uint x = left + TILE * across + column, y = top + TILE * down + row;
            if (x < n && y < n) {
                c[(size_t)y * n + x] = sums[row][column];
            }
        }
    }
}
