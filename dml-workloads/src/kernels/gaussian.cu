// One thread is one pixel: the full square convolution with weights[(2 * radius + 1)^2], edges clamped.
// Contraction is allowed.
extern "C" __global__ void gaussian(const uchar4 *__restrict__ image, const float *__restrict__ weights,
                                    uchar4 *__restrict__ out, const unsigned int width, const unsigned int height,
                                    const unsigned int radius, const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end || item >= (unsigned long long)width * height) {
        return;
    }
    const int x = (int)(item % width);
    const int y = (int)(item / width);
    const int reach = (int)radius;
    const int edge = 2 * reach + 1;
    const int last_row = (int)height - 1;
    const int last_column = (int)width - 1;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int down = 0; down < edge; ++down) {
        const uchar4 *row = image + (unsigned long long)min(max(y - reach + down, 0), last_row) * width;
        const float *row_weights = weights + down * edge;
        for (int across = 0; across < edge; ++across) {
            const uchar4 pixel = row[min(max(x - reach + across, 0), last_column)];
            const float weight = row_weights[across];
            sum.x += weight * pixel.x;
            sum.y += weight * pixel.y;
            sum.z += weight * pixel.z;
            sum.w += weight * pixel.w;
        }
    }
    out[item] = make_uchar4((unsigned char)fminf(fmaxf(sum.x + 0.5f, 0.0f), 255.0f),
                            (unsigned char)fminf(fmaxf(sum.y + 0.5f, 0.0f), 255.0f),
                            (unsigned char)fminf(fmaxf(sum.z + 0.5f, 0.0f), 255.0f),
                            (unsigned char)fminf(fmaxf(sum.w + 0.5f, 0.0f), 255.0f));
}
