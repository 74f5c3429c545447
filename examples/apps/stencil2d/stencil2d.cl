// One step of a 5-point stencil: an element becomes 0.5 * itself + 0.125 * (north + west + east + south).
// The outermost rows and columns are copied. A work-item is one element, or ROWS elements of a column.
#define ROWS 4

// The work-group of stencil_local.
#define WIDE 32
#define TALL 4

void element(global const float *from, global float *to, uint x, uint y, uint rows, uint columns) {
    if (x >= columns || y >= rows) {
        return;
    }
    size_t i = (size_t)y * columns + x;
    if (x == 0 || y == 0 || x == columns - 1 || y == rows - 1) {
        to[i] = from[i];
    } else {
        to[i] = 0.5f * from[i] + 0.125f * (from[i - columns] + from[i - 1] + from[i + 1] + from[i + columns]);
    }
}

// A work-item is one element.
kernel void stencil(global const float *restrict from, global float *restrict to, uint rows, uint columns) {
    element(from, to, get_global_id(0), get_global_id(1), rows, columns);
}

// For CPUs: a work-item is ROWS elements of a column. The unrolled loop is vectorised across work-items.
kernel void stencil_tiled(global const float *restrict from, global float *restrict to, uint rows,
                          uint columns) {
    uint x = get_global_id(0), y = ROWS * get_global_id(1);
#pragma unroll
    for (uint row = 0; row < ROWS; ++row) {
        element(from, to, x, y + row, rows, columns);
    }
}

// For GPUs: a work-item is ROWS elements of a column. A work-group loads its block and the border of one
// element into local memory, so that most elements are loaded once instead of five times.
kernel __attribute__((reqd_work_group_size(WIDE, TALL, 1))) void
stencil_local(global const float *restrict from, global float *restrict to, uint rows, uint columns) {
    local float block[1 + TALL * ROWS + 1][1 + WIDE + 1];
    uint across = get_local_id(0), down = get_local_id(1);
    uint x = get_global_id(0), y = ROWS * get_global_id(1);

    // The first column and row of the block with its border. 0 - 1 wraps, and so is outside the array.
    uint left = x - across - 1, top = y - ROWS * down - 1;
    for (uint row = down; row < 1 + TALL * ROWS + 1; row += TALL) {
        for (uint column = across; column < 1 + WIDE + 1; column += WIDE) {
            uint from_x = left + column, from_y = top + row;
            if (from_x < columns && from_y < rows) {
                block[row][column] = from[(size_t)from_y * columns + from_x];
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    for (uint row = 0; row < ROWS; ++row, ++y) {
        if (x >= columns || y >= rows) {
            return;
        }
        uint i = 1 + ROWS * down + row, j = 1 + across;
        float value = block[i][j];
        if (x > 0 && y > 0 && x < columns - 1 && y < rows - 1) {
            float around = block[i - 1][j] + block[i][j - 1] + block[i][j + 1] + block[i + 1][j];
            value = 0.5f * value + 0.125f * around;
        }
        to[(size_t)y * columns + x] = value;
    }
}
