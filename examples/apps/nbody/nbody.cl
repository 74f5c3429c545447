// One step of every body under the gravity of all bodies: velocity + a * step, position + velocity * step +
// a * step^2 / 2. A body is (x, y, z, mass). A work-item is one body, or LANES bodies on CPUs. softening > 0.
#define LANES 16

// The work-group of nbody_local.
#define TILE 256

float3 pull(float4 own, float4 other, float softening) {
    float3 away = other.xyz - own.xyz;
    float inverse = rsqrt(dot(away, away) + softening);
    return other.w * inverse * inverse * inverse * away;
}

void move(global const float4 *positions, global const float4 *velocities, global float4 *new_positions,
          global float4 *new_velocities, uint body, float3 acceleration, float step) {
    float4 position = positions[body], velocity = velocities[body];
    position.xyz += velocity.xyz * step + acceleration * (0.5f * step * step);
    velocity.xyz += acceleration * step;
    new_positions[body] = position;
    new_velocities[body] = velocity;
}

// A work-item is one body.
kernel void nbody(global const float4 *restrict positions, global const float4 *restrict velocities,
                  global float4 *restrict new_positions, global float4 *restrict new_velocities, uint bodies,
                  float softening, float step) {
    uint body = get_global_id(0);
    if (body >= bodies) {
        return;
    }
    float4 own = positions[body];
    float3 acceleration = 0.0f;
    for (uint other = 0; other < bodies; ++other) {
        acceleration += pull(own, positions[other], softening);
    }
    move(positions, velocities, new_positions, new_velocities, body, acceleration, step);
}

// For CPUs: a work-item is LANES bodies, each a lane of the vectors.
kernel void nbody_tiled(global const float4 *restrict positions, global const float4 *restrict velocities,
                        global float4 *restrict new_positions, global float4 *restrict new_velocities,
                        uint bodies, float softening, float step) {
    uint first = LANES * get_global_id(0);
    if (first >= bodies) {
        return;
    }
    float lanes[3][LANES];
    for (uint lane = 0; lane < LANES; ++lane) {
        float4 own = positions[min(first + lane, bodies - 1)];
        lanes[0][lane] = own.x;
        lanes[1][lane] = own.y;
        lanes[2][lane] = own.z;
    }
    float16 x = vload16(0, lanes[0]), y = vload16(0, lanes[1]), z = vload16(0, lanes[2]);
    float16 sum_x = 0.0f, sum_y = 0.0f, sum_z = 0.0f;
    for (uint i = 0; i < bodies; ++i) {
        float4 other = positions[i];
        float16 away_x = other.x - x, away_y = other.y - y, away_z = other.z - z;
        float16 inverse = rsqrt(away_x * away_x + away_y * away_y + away_z * away_z + softening);
        float16 scale = other.w * inverse * inverse * inverse;
        sum_x += scale * away_x;
        sum_y += scale * away_y;
        sum_z += scale * away_z;
    }
    vstore16(sum_x, 0, lanes[0]);
    vstore16(sum_y, 0, lanes[1]);
    vstore16(sum_z, 0, lanes[2]);
    for (uint lane = 0; lane < min((uint)LANES, bodies - first); ++lane) {
        float3 acceleration = (float3)(lanes[0][lane], lanes[1][lane], lanes[2][lane]);
        move(positions, velocities, new_positions, new_velocities, first + lane, acceleration, step);
    }
}

// For GPUs: a work-item is one body. A work-group loads TILE bodies at a time into local memory.
kernel __attribute__((reqd_work_group_size(TILE, 1, 1))) void
nbody_local(global const float4 *restrict positions, global const float4 *restrict velocities,
            global float4 *restrict new_positions, global float4 *restrict new_velocities, uint bodies,
            float softening, float step) {
    local float4 tile[TILE];
    uint body = get_global_id(0), place = get_local_id(0);
    float4 own = body < bodies ? positions[body] : 0.0f;
    float3 acceleration = 0.0f;
    for (uint first = 0; first < bodies; first += TILE) {
        // Without mass, a body has no pull.
        tile[place] = first + place < bodies ? positions[first + place] : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = 0; i < TILE; ++i) {
            acceleration += pull(own, tile[i], softening);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (body < bodies) {
        move(positions, velocities, new_positions, new_velocities, body, acceleration, step);
    }
}
