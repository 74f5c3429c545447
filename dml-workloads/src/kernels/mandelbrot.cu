// One thread is four horizontally adjacent pixels. The kernel executes the operations of the host kernel in
// the same order, without contraction (intrinsics round each operation). So iteration counts are
// bit-identical everywhere.

// The stops of the palette, as in the host kernel.
__constant__ unsigned char palette[16][4] = {
    {66, 30, 15, 255},    {25, 7, 26, 255},     {9, 1, 47, 255},      {4, 4, 73, 255},
    {0, 7, 100, 255},     {12, 44, 138, 255},   {24, 82, 177, 255},   {57, 125, 209, 255},
    {134, 181, 229, 255}, {211, 236, 248, 255}, {241, 233, 191, 255}, {248, 201, 95, 255},
    {255, 170, 0, 255},   {204, 128, 0, 255},   {153, 87, 0, 255},    {106, 52, 3, 255}};

__device__ uchar4 colour_of(const unsigned int iterations, const unsigned int max_iterations) {
    if (iterations >= max_iterations) {
        return make_uchar4(0, 0, 0, 255);
    }
    const unsigned int phase = (iterations * 4 + 56) & 255;
    const unsigned char *from = palette[phase >> 4];
    const unsigned char *to = palette[((phase >> 4) + 1) & 15];
    const unsigned int share = phase & 15;
    unsigned char mixed[4];
    for (int channel = 0; channel < 4; ++channel) {
        mixed[channel] = (unsigned char)((from[channel] * (16 - share) + to[channel] * share + 8) >> 4);
    }
    return make_uchar4(mixed[0], mixed[1], mixed[2], mixed[3]);
}

extern "C" __global__ void mandelbrot(uchar4 *__restrict__ out, const unsigned int width, const unsigned int height,
                                      const unsigned int max_iterations, const float left, const float top,
                                      const float step, const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    const unsigned int items_per_row = width / 4;
    if (item >= end || item >= (unsigned long long)items_per_row * height) {
        return;
    }
    const unsigned int row = (unsigned int)(item / items_per_row);
    const unsigned int column = (unsigned int)(item % items_per_row) * 4;
    const float point_y = __fsub_rn(top, __fmul_rn(step, (float)row));
    uchar4 *pixels = out + item * 4;
    for (unsigned int pixel = 0; pixel < 4; ++pixel) {
        const float point_x = __fadd_rn(left, __fmul_rn(step, (float)(column + pixel)));
        float x = 0.0f;
        float y = 0.0f;
        unsigned int iterations = 0;
        while (iterations < max_iterations) {
            const float x_squared = __fmul_rn(x, x);
            const float y_squared = __fmul_rn(y, y);
            if (!(__fadd_rn(x_squared, y_squared) <= 4.0f)) {
                break;
            }
            ++iterations;
            y = __fadd_rn(__fmul_rn(__fadd_rn(x, x), y), point_y);
            x = __fadd_rn(__fsub_rn(x_squared, y_squared), point_x);
        }
        pixels[pixel] = colour_of(iterations, max_iterations);
    }
}
