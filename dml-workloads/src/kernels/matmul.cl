// out = a * b, square matrices, row-major. A work-item is one element, and a work-group is a tile of
// `16 x 16`.
//
// A work-group iterates over the tiles of its rows of a and of its columns of b. It loads each pair into
// local memory, so that one fetch of an element serves sixteen products. Tiles are padded with zeros beyond
// the matrix.
#define TILE 16

kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void
matmul(global const float *restrict a, global const float *restrict b, global float *restrict out, const uint edge,
       const ulong end) {
    local float a_tile[TILE][TILE];
    local float b_tile[TILE][TILE];
    const uint across = get_local_id(0);
    const uint down = get_local_id(1);
    const ulong column = get_global_id(0);
    const ulong row = get_global_id(1);

    float sum = 0.0f;
    for (ulong first = 0; first < edge; first += TILE) {
        a_tile[down][across] = row < end && first + across < edge ? a[row * edge + first + across] : 0.0f;
        b_tile[down][across] = column < edge && first + down < edge ? b[(first + down) * edge + column] : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint step = 0; step < TILE; ++step) {
            sum += a_tile[down][step] * b_tile[step][across];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < end && column < edge) {
        out[row * edge + column] = sum;
    }
}
