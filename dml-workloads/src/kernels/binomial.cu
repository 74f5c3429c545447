// values[i] = the present values of the four options of item i, from trees of STEPS steps. A block of threads
// is an item, and a thread is a leaf of all four options.
//
// A leaf is the value of the option at expiry. The levels follow from expiry to today, each node from its two
// successors. Two arrays in shared memory alternate, so that one barrier per level is enough. Nodes beyond a
// level are computed too, but no node of the level needs them. Contraction is allowed.
//
// STEPS is even.
#define STEPS 254
#define LEAVES (STEPS + 1)
#define FIELDS 5

__device__ float4 before(const float4 up, const float4 risen, const float4 down, const float4 fallen) {
    return make_float4(up.x * risen.x + down.x * fallen.x, up.y * risen.y + down.y * fallen.y,
                       up.z * risen.z + down.z * fallen.z, up.w * risen.w + down.w * fallen.w);
}

__device__ float leaf(const float price, const float strike, const float rise, const float rises) {
    return fmaxf(price * expf(rise * rises) - strike, 0.0f);
}

extern "C" __global__ void __launch_bounds__(LEAVES)
    binomial(const float4 *__restrict__ options, float4 *__restrict__ values, const unsigned long long end,
             const DmlItems items) {
    __shared__ float4 even[LEAVES + 1];
    __shared__ float4 odd[LEAVES + 1];
    const unsigned long long item = items.y();
    const unsigned int node = threadIdx.x;

    // All threads of a block have the same item, so either all of them return, or none.
    if (item >= end) {
        return;
    }
    const float4 *option = options + item * FIELDS;
    const float4 price = option[0];
    const float4 strike = option[1];
    const float4 rise = option[2];
    const float4 up = option[3];
    const float4 down = option[4];
    const float rises = (float)((int)(2 * node) - STEPS);
    even[node] = make_float4(leaf(price.x, strike.x, rise.x, rises), leaf(price.y, strike.y, rise.y, rises),
                             leaf(price.z, strike.z, rise.z, rises), leaf(price.w, strike.w, rise.w, rises));
    if (node == 0) {
        even[LEAVES] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        odd[LEAVES] = even[LEAVES];
    }
    for (unsigned int level = 0; level < STEPS; level += 2) {
        __syncthreads();
        odd[node] = before(up, even[node + 1], down, even[node]);
        __syncthreads();
        even[node] = before(up, odd[node + 1], down, odd[node]);
    }
    if (node == 0) {
        values[item] = even[0];
    }
}
