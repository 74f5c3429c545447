// One step of every body under the pull of all bodies. A thread is a body; a body is (x, y, z, mass).
//
// A block of threads loads the bodies into shared memory, one tile after the other. The pulls of BLOCK bodies
// are summed without compensation, and the sums of blocks with compensation (Kahan). So the error does not
// grow with the number of bodies. Contraction is allowed.
#define TILE 64
#define BLOCK 16

extern "C" __global__ void __launch_bounds__(TILE)
    nbody(const float4 *__restrict__ positions, const float4 *__restrict__ velocities,
          float4 *__restrict__ new_positions, float4 *__restrict__ new_velocities, const unsigned int bodies,
          const float softening, const float step, const unsigned long long end, const DmlItems items) {
    __shared__ float4 tile[TILE];
    const unsigned long long item = items.x();
    const unsigned int place = threadIdx.x;
    const float4 nobody = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float4 own = item < end ? positions[item] : nobody;

    float3 sum = make_float3(0.0f, 0.0f, 0.0f);
    float3 lost = sum;
    for (unsigned int first = 0; first < bodies; first += TILE) {
        const unsigned int other = first + place;
        tile[place] = other < bodies ? positions[other] : nobody;
        __syncthreads();
        for (unsigned int block = 0; block < TILE; block += BLOCK) {
            float3 part = make_float3(0.0f, 0.0f, 0.0f);
#pragma unroll
            for (unsigned int body = block; body < block + BLOCK; ++body) {
                const float4 pulling = tile[body];
                const float x = pulling.x - own.x;
                const float y = pulling.y - own.y;
                const float z = pulling.z - own.z;
                const float inverse = rsqrtf(x * x + y * y + z * z + softening);
                const float pull = pulling.w * inverse * inverse * inverse;
                part.x += pull * x;
                part.y += pull * y;
                part.z += pull * z;
            }
            const float3 rest = make_float3(part.x - lost.x, part.y - lost.y, part.z - lost.z);
            const float3 next = make_float3(sum.x + rest.x, sum.y + rest.y, sum.z + rest.z);
            lost = make_float3((next.x - sum.x) - rest.x, (next.y - sum.y) - rest.y, (next.z - sum.z) - rest.z);
            sum = next;
        }
        __syncthreads();
    }
    if (item < end) {
        const float4 velocity = velocities[item];
        const float half_square = 0.5f * step * step;
        new_positions[item] =
            make_float4(own.x + velocity.x * step + sum.x * half_square, own.y + velocity.y * step + sum.y * half_square,
                        own.z + velocity.z * step + sum.z * half_square, own.w);
        new_velocities[item] =
            make_float4(velocity.x + sum.x * step, velocity.y + sum.y * step, velocity.z + sum.z * step, velocity.w);
    }
}
