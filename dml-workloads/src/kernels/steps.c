// Stencils. An item is a row, or a plane of stencil3d. Elements at the edge of the grid stay.

#ifdef HAS_DOUBLES
KERNEL jacobi(GLOBAL const double *restrict from, GLOBAL double *restrict to, const uint columns, const uint rows,
              const ulong end ITEMS) {
    const ulong x = X, y = Y, at = y * columns + x;
    if (y >= end || x >= columns) {
        return;
    }
    to[at] = x == 0 || y == 0 || x == columns - 1 || y == rows - 1
                 ? from[at]
                 : (from[at - columns] + from[at - 1] + from[at] + from[at + 1] + from[at + columns]) / 5;
}

// A star of radius 2 with the weights of the Parallel Research Kernels, added to what `to` has.
KERNEL prk_star(GLOBAL const double *restrict from, GLOBAL double *restrict to, const uint columns, const uint rows,
                const ulong end ITEMS) {
    const ulong x = X, y = Y, at = y * columns + x;
    if (y >= end || x < 2 || y < 2 || x + 2 >= columns || y + 2 >= rows) {
        return;
    }
    double sum = to[at];
    sum += 0.25 * (from[at + 1] - from[at - 1]);
    sum += 0.25 * (from[at + columns] - from[at - columns]);
    sum += 0.125 * (from[at + 2] - from[at - 2]);
    sum += 0.125 * (from[at + 2 * columns] - from[at - 2 * columns]);
    to[at] = sum;
}

KERNEL prk_add(GLOBAL double *restrict grid, const uint columns, const uint rows, const ulong end ITEMS) {
    if (Y < end && X < columns) {
        grid[Y * columns + X] += 1.0;
    }
}
#endif

KERNEL stencil2d(GLOBAL const float *restrict from, GLOBAL float *restrict to, const uint columns, const uint rows,
                 const ulong end ITEMS) {
    const ulong x = X, y = Y, at = y * columns + x;
    if (y >= end || x >= columns) {
        return;
    }
    to[at] = x == 0 || y == 0 || x == columns - 1 || y == rows - 1
                 ? from[at]
                 : 0.5f * from[at] + 0.125f * (from[at - columns] + from[at - 1] + from[at + 1] + from[at + columns]);
}

KERNEL stencil3d(GLOBAL const float *restrict from, GLOBAL float *restrict to, const uint columns, const uint rows,
                 const uint planes, const ulong end ITEMS) {
    const ulong x = X, y = Y, z = Z, plane = (ulong)columns * rows, at = z * plane + y * columns + x;
    if (z >= end || y >= rows || x >= columns) {
        return;
    }
    to[at] = x == 0 || y == 0 || z == 0 || x == columns - 1 || y == rows - 1 || z == planes - 1
                 ? from[at]
                 : 0.4f * from[at] + 0.1f * (from[at - plane] + from[at - columns] + from[at - 1] + from[at + 1] +
                                             from[at + columns] + from[at + plane]);
}

KERNEL gray_scott(GLOBAL const float *restrict u, GLOBAL const float *restrict v, GLOBAL float *restrict new_u,
                  GLOBAL float *restrict new_v, const uint columns, const uint rows, const float feed,
                  const float kill, const ulong end ITEMS) {
    const ulong x = X, y = Y, at = y * columns + x;
    if (y >= end || x >= columns) {
        return;
    }
    if (x == 0 || y == 0 || x == columns - 1 || y == rows - 1) {
        new_u[at] = u[at];
        new_v[at] = v[at];
        return;
    }
    const float spread_u = u[at - columns] + u[at - 1] + u[at + 1] + u[at + columns] - 4.0f * u[at];
    const float spread_v = v[at - columns] + v[at - 1] + v[at + 1] + v[at + columns] - 4.0f * v[at];
    const float reaction = u[at] * v[at] * v[at];
    new_u[at] = u[at] + (0.16f * spread_u - reaction + feed * (1.0f - u[at]));
    new_v[at] = v[at] + (0.08f * spread_v + reaction - (feed + kill) * v[at]);
}
