// One step of every body under the gravity of all bodies: velocity + a * step, position + velocity * step +
// a * step^2 / 2. A body is (x, y, z, mass). A thread is one body. softening > 0.

// The threads of a block of nbody_local.
#define TILE 256

// Adds the pull of another body to an acceleration.
__device__ void pull(float3 &acceleration, float4 own, float4 other, float softening) {
    float x = other.x - own.x, y = other.y - own.y, z = other.z - own.z;
    float inverse = rsqrtf(x * x + y * y + z * z + softening);
    float scale = other.w * inverse * inverse * inverse;
    acceleration.x += scale * x;
    acceleration.y += scale * y;
    acceleration.z += scale * z;
}

__device__ void move(const float4 *positions, const float4 *velocities, float4 *new_positions,
                     float4 *new_velocities, unsigned int body, float3 acceleration, float step) {
    float4 position = positions[body], velocity = velocities[body];
    position.x += velocity.x * step + acceleration.x * (0.5f * step * step);
    position.y += velocity.y * step + acceleration.y * (0.5f * step * step);
    position.z += velocity.z * step + acceleration.z * (0.5f * step * step);
    velocity.x += acceleration.x * step;
    velocity.y += acceleration.y * step;
    velocity.z += acceleration.z * step;
    new_positions[body] = position;
    new_velocities[body] = velocity;
}

// The other bodies are read from global memory.
extern "C" __global__ void nbody(const float4 *__restrict__ positions, const float4 *__restrict__ velocities,
                                 float4 *__restrict__ new_positions, float4 *__restrict__ new_velocities,
                                 unsigned int bodies, float softening, float step) {
    unsigned int body = blockIdx.x * blockDim.x + threadIdx.x;
    if (body >= bodies) {
        return;
    }
    float4 own = positions[body];
    float3 acceleration = make_float3(0.0f, 0.0f, 0.0f);
    for (unsigned int other = 0; other < bodies; ++other) {
        pull(acceleration, own, positions[other], softening);
    }
    move(positions, velocities, new_positions, new_velocities, body, acceleration, step);
}

// The threads of a block load TILE bodies at a time into shared memory.
extern "C" __global__ void __launch_bounds__(TILE)
nbody_local(const float4 *__restrict__ positions, const float4 *__restrict__ velocities,
            float4 *__restrict__ new_positions, float4 *__restrict__ new_velocities, unsigned int bodies,
            float softening, float step) {
    __shared__ float4 tile[TILE];
    unsigned int body = blockIdx.x * TILE + threadIdx.x, place = threadIdx.x;
    float4 nobody = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 own = body < bodies ? positions[body] : nobody;
    float3 acceleration = make_float3(0.0f, 0.0f, 0.0f);
    for (unsigned int first = 0; first < bodies; first += TILE) {
        // Without mass, a body has no pull.
        tile[place] = first + place < bodies ? positions[first + place] : nobody;
        __syncthreads();
        for (unsigned int i = 0; i < TILE; ++i) {
            pull(acceleration, own, tile[i], softening);
        }
        __syncthreads();
    }
    if (body < bodies) {
        move(positions, velocities, new_positions, new_velocities, body, acceleration, step);
    }
}
