// One step of a 5-point stencil: an element becomes 0.5 * itself + 0.125 * (north + west + east + south).
// The outermost rows and columns are copied. A thread is one element, or ROWS elements of a column.
#define ROWS 4

// The block of threads of stencil_local.
#define WIDE 32
#define TALL 4

// A thread is one element.
extern "C" __global__ void stencil(const float *__restrict__ from, float *__restrict__ to, unsigned int rows,
                                   unsigned int columns) {
    unsigned int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
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

// A thread is ROWS elements of a column. The threads of a block load its elements and the border of one
// element into shared memory, so that most elements are loaded once instead of five times.
extern "C" __global__ void __launch_bounds__(WIDE * TALL)
stencil_local(const float *__restrict__ from, float *__restrict__ to, unsigned int rows,
              unsigned int columns) {
    __shared__ float block[1 + TALL * ROWS + 1][1 + WIDE + 1];
    unsigned int across = threadIdx.x, down = threadIdx.y;
    unsigned int x = blockIdx.x * WIDE + across, y = ROWS * (blockIdx.y * TALL + down);

    // The first column and row of the block with its border. 0 - 1 wraps, and so is outside the array.
    unsigned int left = x - across - 1, top = y - ROWS * down - 1;
    for (unsigned int row = down; row < 1 + TALL * ROWS + 1; row += TALL) {
        for (unsigned int column = across; column < 1 + WIDE + 1; column += WIDE) {
            unsigned int from_x = left + column, from_y = top + row;
            if (from_x < columns && from_y < rows) {
                block[row][column] = from[(size_t)from_y * columns + from_x];
            }
        }
    }
    __syncthreads();

    for (unsigned int row = 0; row < ROWS; ++row, ++y) {
        if (x >= columns || y >= rows) {
            return;
        }
        unsigned int i = 1 + ROWS * down + row, j = 1 + across;
        float value = block[i][j];
        if (x > 0 && y > 0 && x < columns - 1 && y < rows - 1) {
            float around = block[i - 1][j] + block[i][j - 1] + block[i][j + 1] + block[i + 1][j];
            value = 0.5f * value + 0.125f * around;
        }
        to[(size_t)y * columns + x] = value;
    }
}
