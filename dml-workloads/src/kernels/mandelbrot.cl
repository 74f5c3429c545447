// One work-item is four horizontally adjacent pixels. The kernel executes the operations of the host kernel
// in the same order, without contraction. So iteration counts are bit-identical everywhere.
#pragma OPENCL FP_CONTRACT OFF

// The stops of the palette, as in the host kernel.
constant uchar4 palette[16] = {
    (uchar4)(66, 30, 15, 255),    (uchar4)(25, 7, 26, 255),     (uchar4)(9, 1, 47, 255),
    (uchar4)(4, 4, 73, 255),      (uchar4)(0, 7, 100, 255),     (uchar4)(12, 44, 138, 255),
    (uchar4)(24, 82, 177, 255),   (uchar4)(57, 125, 209, 255),  (uchar4)(134, 181, 229, 255),
    (uchar4)(211, 236, 248, 255), (uchar4)(241, 233, 191, 255), (uchar4)(248, 201, 95, 255),
    (uchar4)(255, 170, 0, 255),   (uchar4)(204, 128, 0, 255),   (uchar4)(153, 87, 0, 255),
    (uchar4)(106, 52, 3, 255)};

uchar4 colour_of(const uint iterations, const uint max_iterations) {
    if (iterations >= max_iterations) {
        return (uchar4)(0, 0, 0, 255);
    }
    const uint phase = (iterations * 4 + 56) & 255;
    const uint4 from = convert_uint4(palette[phase >> 4]);
    const uint4 to = convert_uint4(palette[((phase >> 4) + 1) & 15]);
    const uint share = phase & 15;
    return convert_uchar4((from * (16 - share) + to * share + 8) >> 4);
}

kernel void mandelbrot(global uchar4 *restrict out, const uint width, const uint height, const uint max_iterations,
                       const float left, const float top, const float step, const ulong end) {
    const ulong item = get_global_id(0);
    const uint items_per_row = width / 4;
    if (item >= end || item >= (ulong)items_per_row * height) {
        return;
    }
    const uint row = (uint)(item / items_per_row);
    const uint column = (uint)(item % items_per_row) * 4;

    const float4 point_x = left + step * convert_float4((uint4)(column, column + 1, column + 2, column + 3));
    const float point_y = top - step * (float)row;

    float4 x = 0.0f;
    float4 y = 0.0f;
    int4 active = -1;
    int4 iterations = 0;
    for (uint done = 0; done < max_iterations; ++done) {
        const float4 x_squared = x * x;
        const float4 y_squared = y * y;
        active &= (x_squared + y_squared) <= 4.0f;
        if (!any(active)) {
            break;
        }
        iterations -= active;
        y = (x + x) * y + point_y;
        x = (x_squared - y_squared) + point_x;
    }

    global uchar4 *pixels = out + item * 4;
    pixels[0] = colour_of((uint)iterations.s0, max_iterations);
    pixels[1] = colour_of((uint)iterations.s1, max_iterations);
    pixels[2] = colour_of((uint)iterations.s2, max_iterations);
    pixels[3] = colour_of((uint)iterations.s3, max_iterations);
}
