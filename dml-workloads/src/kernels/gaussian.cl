// One work-item is one pixel: the full square convolution with weights[(2 * radius + 1)^2], edges clamped.
//
// The taps of a row inside the image are processed eight at a time, with four pixels in a vector of sixteen
// channels. These are wide vectors on a CPU, and aligned loads of whole pixels on a GPU. Contraction is
// allowed.

inline float16 four_pixels(global const uchar4 *restrict pixels) {
    return convert_float16(as_uchar16(vload4(0, (global const uint *)pixels)));
}

inline float16 four_weights(global const float *restrict weights) {
    const float4 four = vload4(0, weights);
    return four.s0000111122223333;
}

kernel void gaussian(global const uchar4 *restrict image, global const float *restrict weights,
                     global uchar4 *restrict out, const uint width, const uint height, const uint radius,
                     const ulong end) {
    const ulong item = get_global_id(0);
    if (item >= end || item >= (ulong)width * height) {
        return;
    }
    const int x = (int)(item % width);
    const int y = (int)(item / width);
    const int reach = (int)radius;
    const int edge = 2 * reach + 1;
    const int last_row = (int)height - 1;

    // The taps before `inside` lie left of the image, and the taps from `outside` on lie right of it.
    const int inside = max(reach - x, 0);
    const int outside = min(edge, (int)width - x + reach);

    float4 sum = 0.0f;
    float16 even = 0.0f;
    float16 odd = 0.0f;
    for (int down = 0; down < edge; ++down) {
        global const uchar4 *row = image + (ulong)clamp(y - reach + down, 0, last_row) * width;
        global const float *row_weights = weights + down * edge;
        int across = 0;
        for (; across < inside; ++across) {
            sum += row_weights[across] * convert_float4(row[0]);
        }
        for (; across + 8 <= outside; across += 8) {
            global const uchar4 *pixels = row + (x - reach + across);
            even += four_weights(row_weights + across) * four_pixels(pixels);
            odd += four_weights(row_weights + across + 4) * four_pixels(pixels + 4);
        }
        for (; across < outside; ++across) {
            sum += row_weights[across] * convert_float4(row[x - reach + across]);
        }
        for (; across < edge; ++across) {
            sum += row_weights[across] * convert_float4(row[width - 1]);
        }
    }
    even += odd;
    sum += (even.s0123 + even.s4567) + (even.s89ab + even.scdef);
    out[item] = convert_uchar4_sat(sum + 0.5f);
}
