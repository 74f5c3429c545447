// One work-item is one pixel: its ray, traced over at most `depth` reflections.
//
// The kernel executes the operations of the host kernel in the same order, without contraction. Roots come
// from inverse_root, because OpenCL's own roots may be off by several units. So pictures are bit-identical.
#pragma OPENCL FP_CONTRACT OFF

// Each thing of the scene is two vectors: (x, y, z, radius), (red, green, blue, mirror). The first thing is
// the camera, with the colour of the sky. A negative radius marks a lamp, and a radius of zero marks the
// ground.
#define NEAR 0.002f
#define FAR 200.0f

inline float inner(const float3 a, const float3 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z;
}

inline float inverse_root(const float value) {
    const float half_of_it = 0.5f * value;
    float guess = as_float(0x5f3759dfu - (as_uint(value) >> 1));
    guess = guess * (1.5f - half_of_it * guess * guess);
    guess = guess * (1.5f - half_of_it * guess * guess);
    guess = guess * (1.5f - half_of_it * guess * guess);
    guess = guess * (1.5f - half_of_it * guess * guess);
    return guess;
}

// Returns the nearest thing in a direction, if it is nearer than `*distance`, which becomes its distance; 0
// if there is none.
uint first_on(global const float4 *restrict scene, const uint things, const float3 from, const float3 way,
              float *distance) {
    uint first = 0;
    for (uint thing = 1; thing < things; ++thing) {
        const float4 place = scene[2 * thing];
        float far_off;
        if (place.w < 0.0f) {
            continue;
        } else if (place.w == 0.0f) {
            const float fall = -way.y;
            if (!(fall > 0.0001f)) {
                continue;
            }
            const float root = inverse_root(fall);
            far_off = (from.y - place.y) * root * root;
        } else {
            const float3 away = from - place.xyz;
            const float along = inner(away, way);
            const float rest = inner(away, away) - place.w * place.w;
            const float square = along * along - rest;
            if (!(square > 0.0f)) {
                continue;
            }
            const float root = square * inverse_root(square);
            far_off = -along - root;
            if (!(far_off > NEAR)) {
                far_off = root - along;
            }
        }
        if (far_off > NEAR && far_off < *distance) {
            *distance = far_off;
            first = thing;
        }
    }
    return first;
}

kernel void ray(global const float4 *restrict scene, global uchar4 *restrict pixels, const uint things,
                const uint width, const uint depth, const float half_width, const float half_height, const float step,
                const ulong end) {
    const ulong item = get_global_id(0);
    if (item >= end) {
        return;
    }
    const float column = (float)(uint)(item % width);
    const float row = (float)(uint)(item / width);
    const float3 sky = scene[1].xyz;
    float3 from = scene[0].xyz;
    float3 way = (float3)((column - half_width) * step, (half_height - row) * step - scene[0].w, 1.0f);
    way = way * inverse_root(inner(way, way));

    float3 colour = 0.0f;
    float weight = 1.0f;
    for (uint mirrors = 0; mirrors <= depth; ++mirrors) {
        float distance = FAR;
        const uint met = first_on(scene, things, from, way, &distance);
        if (met == 0) {
            const float haze = 1.0f - fmax(way.y, 0.0f);
            colour = colour + weight * (sky + (1.0f - sky) * (haze * haze));
            break;
        }
        const float4 place = scene[2 * met];
        const float4 look = scene[2 * met + 1];
        const float3 point = from + way * distance;
        float3 normal = (float3)(0.0f, 1.0f, 0.0f);
        float shade = 1.0f;
        if (place.w == 0.0f) {
            const int cell = (int)floor(point.x) + (int)floor(point.z);
            shade = (cell & 1) != 0 ? 0.35f : 1.0f;
        } else {
            normal = point - place.xyz;
            normal = normal * inverse_root(inner(normal, normal));
        }
        const float3 outside = point + normal * NEAR;
        float3 light = 0.12f;
        float gleam = 0.0f;
        for (uint thing = 1; thing < things; ++thing) {
            const float4 lamp = scene[2 * thing];
            if (!(lamp.w < 0.0f)) {
                continue;
            }
            float3 to_lamp = lamp.xyz - point;
            const float square = inner(to_lamp, to_lamp);
            const float inverse = inverse_root(square);
            to_lamp = to_lamp * inverse;
            const float facing = inner(normal, to_lamp);
            float lamp_distance = square * inverse;
            if (facing > 0.0f && first_on(scene, things, outside, to_lamp, &lamp_distance) == 0) {
                light = light + facing * scene[2 * thing + 1].xyz;
                const float3 mirrored = normal * (2.0f * facing) - to_lamp;
                float shine = fmax(-inner(mirrored, way), 0.0f);
                shine = shine * shine;
                shine = shine * shine;
                shine = shine * shine;
                shine = shine * shine;
                shine = shine * shine;
                gleam = gleam + shine * scene[2 * thing + 1].x;
            }
        }
        colour = colour + weight * (1.0f - look.w) * (look.xyz * shade * light);
        colour = colour + weight * gleam;
        weight = weight * look.w;
        if (weight < 0.004f) {
            break;
        }
        way = way - normal * (2.0f * inner(way, normal));
        way = way * inverse_root(inner(way, way));
        from = outside;
    }
    const float3 channels = fmin(fmax(colour, 0.0f), 1.0f) * 255.0f + 0.5f;
    pixels[item] = (uchar4)((uchar)(uint)channels.x, (uchar)(uint)channels.y, (uchar)(uint)channels.z, 255);
}
