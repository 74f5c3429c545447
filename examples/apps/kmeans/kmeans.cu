// One round of k-means clustering of points in the plane: `assign`, then `update`. Points and centres are
// pairs (x, y). A thread of `assign` is one point; `update` has a single one.

// labels[i] = the nearest centre of point i, the first of equals. sums[3 * label ..] increases by (x, y, 1);
// the sums begin with 0.
extern "C" __global__ void assign(const float *__restrict__ points, const float *__restrict__ centres,
                                  int *__restrict__ labels, float *sums, unsigned int n, unsigned int k) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = points[2 * i], y = points[2 * i + 1];
    unsigned int nearest = 0;
    float least = 0.0f;
    for (unsigned int centre = 0; centre < k; ++centre) {
        float away_x = centres[2 * centre] - x, away_y = centres[2 * centre + 1] - y;
        float square = away_x * away_x + away_y * away_y;
        if (centre == 0 || square < least) {
            least = square;
            nearest = centre;
        }
    }
    labels[i] = nearest;
    atomicAdd(sums + 3 * nearest, x);
    atomicAdd(sums + 3 * nearest + 1, y);
    atomicAdd(sums + 3 * nearest + 2, 1.0f);
}

// new_centres = the mean of each centre's points; a centre without points stays. moved[0] = the greatest
// distance that a centre moved.
extern "C" __global__ void update(const float *__restrict__ sums, const float *__restrict__ centres,
                                  float *__restrict__ new_centres, float *__restrict__ moved,
                                  unsigned int k) {
    if (blockIdx.x * blockDim.x + threadIdx.x != 0) {
        return;
    }
    float most = 0.0f;
    for (unsigned int centre = 0; centre < k; ++centre) {
        float old_x = centres[2 * centre], old_y = centres[2 * centre + 1];
        float x = old_x, y = old_y, count = sums[3 * centre + 2];
        if (count > 0.0f) {
            x = sums[3 * centre] / count;
            y = sums[3 * centre + 1] / count;
        }
        new_centres[2 * centre] = x;
        new_centres[2 * centre + 1] = y;
        most = fmaxf(most, sqrtf((x - old_x) * (x - old_x) + (y - old_y) * (y - old_y)));
    }
    moved[0] = most;
}
