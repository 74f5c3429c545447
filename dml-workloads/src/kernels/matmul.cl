// out = a * b, square matrices, row-major; one work-item is one element, one work-group a tile of 16 x 16 of them.
//
// A group goes along the tiles of its rows of a and of its columns of b. It brings each pair to local memory, so that
// every element is fetched once for sixteen products. Beyond the edge of a matrix the tiles hold zeros.
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
