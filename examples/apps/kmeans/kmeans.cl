// One round of k-means clustering of points in the plane: `assign`, then `update`. Points and centres are
// pairs (x, y). A work-item of `assign` is one point; `update` has a single one.

// Adds to a float atomically. OpenCL C 1.2 has no such function, so the bits are exchanged until no other
// work-item came between.
void add(volatile global float *to, float value) {
    volatile global int *bits = (volatile global int *)to;
    int old = *bits, seen;
    while ((seen = atomic_cmpxchg(bits, old, as_int(as_float(old) + value))) != old) {
        old = seen;
    }
}

// labels[i] = the nearest centre of point i, the first of equals. sums[3 * label ..] increases by (x, y, 1);
// the sums begin with 0.
kernel void assign(global const float *restrict points, global const float *restrict centres,
                   global int *restrict labels, volatile global float *sums, uint n, uint k) {
    uint i = get_global_id(0);
    if (i >= n) {
        return;
    }
    float2 point = vload2(i, points);
    uint nearest = 0;
    float least = 0.0f;
    for (uint centre = 0; centre < k; ++centre) {
        float2 away = vload2(centre, centres) - point;
        float square = dot(away, away);
        if (centre == 0 || square < least) {
            least = square;
            nearest = centre;
        }
    }
    labels[i] = nearest;
    add(sums + 3 * nearest, point.x);
    add(sums + 3 * nearest + 1, point.y);
    add(sums + 3 * nearest + 2, 1.0f);
}

// new_centres = the mean of each centre's points; a centre without points stays. moved[0] = the greatest
// distance that a centre moved.
kernel void update(global const float *restrict sums, global const float *restrict centres,
                   global float *restrict new_centres, global float *restrict moved, uint k) {
    if (get_global_id(0) != 0) {
        return;
    }
    float most = 0.0f;
    for (uint centre = 0; centre < k; ++centre) {
        float2 old = vload2(centre, centres);
        float2 mean = old;
        float count = sums[3 * centre + 2];
        if (count > 0.0f) {
            mean = (float2)(sums[3 * centre], sums[3 * centre + 1]) / count;
        }
        vstore2(mean, centre, new_centres);
        most = max(most, distance(old, mean));
    }
    moved[0] = most;
}
