// Heat in a plate, by the explicit 5-point scheme, and how much a step changes it.
// A work-item is one element of the plate.

// The outermost rows and columns keep their temperature. The scheme is stable for diffusion <= 0.25.
kernel void heat(global const float *restrict from, global float *restrict to, uint rows, uint columns,
                 float diffusion) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (x >= columns || y >= rows) {
        return;
    }
    size_t i = (size_t)y * columns + x;
    float value = from[i];
    if (x > 0 && y > 0 && x < columns - 1 && y < rows - 1) {
        float around = from[i - columns] + from[i - 1] + from[i + 1] + from[i + columns];
        value += diffusion * (around - 4.0f * value);
    }
    to[i] = value;
}

// most[0] = the greatest absolute difference of two plates. It begins with -infinity, whose bits are a negative
// int. Floats that are not negative are ordered like their bits, so the maximum of ints is that of the floats.
kernel void change(global const float *restrict one, global const float *restrict other,
                   volatile global int *most, uint rows, uint columns) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (x >= columns || y >= rows) {
        return;
    }
    size_t i = (size_t)y * columns + x;
    int difference = as_int(fabs(one[i] - other[i]));
    // most[0] only grows, so most work-items need no atomic operation.
    if (difference > most[0]) {
        atomic_max(most, difference);
    }
}
