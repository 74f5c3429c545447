// One step of every body under the pull of all bodies. A work-item is a body; a body is (x, y, z, mass).
//
// A work-group loads the bodies into local memory, one tile after the other. The pulls of BLOCK bodies are
// summed without compensation, and the sums of blocks with compensation (Kahan). So the error does not grow
// with the number of bodies. Contraction is allowed.
#define TILE 64
#define BLOCK 16

kernel __attribute__((reqd_work_group_size(TILE, 1, 1))) void
nbody(global const float4 *restrict positions, global const float4 *restrict velocities,
      global float4 *restrict new_positions, global float4 *restrict new_velocities, const uint bodies,
      const float softening, const float step, const ulong end) {
    local float4 tile[TILE];
    const ulong item = get_global_id(0);
    const uint place = get_local_id(0);
    const float4 own = item < end ? positions[item] : (float4)(0.0f);

    float3 sum = 0.0f;
    float3 lost = 0.0f;
    for (uint first = 0; first < bodies; first += TILE) {
        const uint other = first + place;
        tile[place] = other < bodies ? positions[other] : (float4)(0.0f);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint block = 0; block < TILE; block += BLOCK) {
            float3 part = 0.0f;
            for (uint body = block; body < block + BLOCK; ++body) {
                const float3 away = tile[body].xyz - own.xyz;
                const float square = away.x * away.x + away.y * away.y + away.z * away.z + softening;
                const float inverse = rsqrt(square);
                part += tile[body].w * inverse * inverse * inverse * away;
            }
            const float3 rest = part - lost;
            const float3 next = sum + rest;
            lost = (next - sum) - rest;
            sum = next;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item < end) {
        const float4 velocity = velocities[item];
        new_positions[item] =
            (float4)(own.xyz + velocity.xyz * step + sum * (0.5f * step * step), own.w);
        new_velocities[item] = (float4)(velocity.xyz + sum * step, velocity.w);
    }
}
