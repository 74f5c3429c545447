// One thread is one pixel: its ray, traced over at most `depth` reflections.
//
// The kernel executes the operations of the host kernel in the same order, without contraction (the operators
// of Real round each of them). Roots come from inverse_root. So pictures are bit-identical.

// Each thing of the scene is two vectors: (x, y, z, radius), (red, green, blue, mirror). The first thing is
// the camera, with the colour of the sky. A negative radius marks a lamp, and a radius of zero marks the
// ground.
#define NEAR 0.002f
#define FAR 200.0f

// A number whose operators round every sum and product, so that the compiler contracts none.
struct Real {
    float value;

    __device__ Real(const float value) : value(value) {}
    __device__ Real operator+(const Real other) const { return __fadd_rn(value, other.value); }
    __device__ Real operator-(const Real other) const { return __fsub_rn(value, other.value); }
    __device__ Real operator*(const Real other) const { return __fmul_rn(value, other.value); }
    __device__ Real operator-() const { return -value; }
    __device__ bool operator<(const Real other) const { return value < other.value; }
    __device__ bool operator>(const Real other) const { return value > other.value; }
    __device__ bool operator==(const Real other) const { return value == other.value; }
};

struct Vector {
    Real x, y, z;

    __device__ Vector(const Real x, const Real y, const Real z) : x(x), y(y), z(z) {}
    __device__ Vector(const float4 of) : x(of.x), y(of.y), z(of.z) {}
    __device__ Vector operator+(const Vector o) const { return Vector(x + o.x, y + o.y, z + o.z); }
    __device__ Vector operator-(const Vector o) const { return Vector(x - o.x, y - o.y, z - o.z); }
    __device__ Vector operator*(const Vector o) const { return Vector(x * o.x, y * o.y, z * o.z); }
    __device__ Vector operator*(const Real by) const { return Vector(x * by, y * by, z * by); }
    __device__ Vector operator+(const Real more) const { return Vector(x + more, y + more, z + more); }
};

__device__ Real inner(const Vector a, const Vector b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

__device__ Real inverse_root(const Real value) {
    const Real half_of_it = Real(0.5f) * value;
    Real guess = __uint_as_float(0x5f3759dfu - (__float_as_uint(value.value) >> 1));
    for (int round = 0; round < 4; ++round) {
        guess = guess * (Real(1.5f) - half_of_it * guess * guess);
    }
    return guess;
}

// Returns the nearest thing in a direction, if it is nearer than `distance`, which becomes its distance; 0 if
// there is none.
__device__ unsigned int first_on(const float4 *__restrict__ scene, const unsigned int things, const Vector from,
                                 const Vector way, Real &distance) {
    unsigned int first = 0;
    for (unsigned int thing = 1; thing < things; ++thing) {
        const float4 place = scene[2 * thing];
        const Real radius = place.w;
        Real far_off = 0.0f;
        if (radius < 0.0f) {
            continue;
        } else if (radius == 0.0f) {
            const Real fall = -way.y;
            if (!(fall > 0.0001f)) {
                continue;
            }
            const Real root = inverse_root(fall);
            far_off = (from.y - place.y) * root * root;
        } else {
            const Vector away = from - Vector(place);
            const Real along = inner(away, way);
            const Real rest = inner(away, away) - radius * radius;
            const Real square = along * along - rest;
            if (!(square > 0.0f)) {
                continue;
            }
            const Real root = square * inverse_root(square);
            far_off = -along - root;
            if (!(far_off > NEAR)) {
                far_off = root - along;
            }
        }
        if (far_off > NEAR && far_off < distance) {
            distance = far_off;
            first = thing;
        }
    }
    return first;
}

__device__ unsigned char channel_of(const Real colour) {
    const Real within = fminf(fmaxf(colour.value, 0.0f), 1.0f);
    return (unsigned char)(unsigned int)(within * 255.0f + 0.5f).value;
}

extern "C" __global__ void ray(const float4 *__restrict__ scene, uchar4 *__restrict__ pixels, const unsigned int things,
                               const unsigned int width, const unsigned int depth, const float half_width,
                               const float half_height, const float step, const unsigned long long end,
                               const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    const Real column = (float)(unsigned int)(item % width);
    const Real row = (float)(unsigned int)(item / width);
    const Vector sky = scene[1];
    Vector from = scene[0];
    Vector way = Vector((column - half_width) * step, (Real(half_height) - row) * step - scene[0].w, 1.0f);
    way = way * inverse_root(inner(way, way));

    Vector colour = Vector(0.0f, 0.0f, 0.0f);
    Real weight = 1.0f;
    for (unsigned int mirrors = 0; mirrors <= depth; ++mirrors) {
        Real distance = FAR;
        const unsigned int met = first_on(scene, things, from, way, distance);
        if (met == 0) {
            const Real haze = Real(1.0f) - fmaxf(way.y.value, 0.0f);
            colour = colour + (sky + (Vector(1.0f, 1.0f, 1.0f) - sky) * (haze * haze)) * weight;
            break;
        }
        const float4 place = scene[2 * met];
        const Vector look = scene[2 * met + 1];
        const Real mirror = scene[2 * met + 1].w;
        const Vector point = from + way * distance;
        Vector normal = Vector(0.0f, 1.0f, 0.0f);
        Real shade = 1.0f;
        if (place.w == 0.0f) {
            const int cell = (int)floorf(point.x.value) + (int)floorf(point.z.value);
            shade = (cell & 1) != 0 ? 0.35f : 1.0f;
        } else {
            normal = point - Vector(place);
            normal = normal * inverse_root(inner(normal, normal));
        }
        const Vector outside = point + normal * Real(NEAR);
        Vector light = Vector(0.12f, 0.12f, 0.12f);
        Real gleam = 0.0f;
        for (unsigned int thing = 1; thing < things; ++thing) {
            const float4 lamp = scene[2 * thing];
            if (!(lamp.w < 0.0f)) {
                continue;
            }
            Vector to_lamp = Vector(lamp) - point;
            const Real square = inner(to_lamp, to_lamp);
            const Real inverse = inverse_root(square);
            to_lamp = to_lamp * inverse;
            const Real facing = inner(normal, to_lamp);
            Real lamp_distance = square * inverse;
            if (facing > 0.0f && first_on(scene, things, outside, to_lamp, lamp_distance) == 0) {
                const Vector shining = scene[2 * thing + 1];
                light = light + shining * facing;
                const Vector mirrored = normal * (Real(2.0f) * facing) - to_lamp;
                Real shine = fmaxf(-inner(mirrored, way).value, 0.0f);
                for (int doubling = 0; doubling < 5; ++doubling) {
                    shine = shine * shine;
                }
                gleam = gleam + shine * shining.x;
            }
        }
        colour = colour + (look * shade * light) * (weight * (Real(1.0f) - mirror));
        colour = colour + weight * gleam;
        weight = weight * mirror;
        if (weight < 0.004f) {
            break;
        }
        way = way - normal * (Real(2.0f) * inner(way, normal));
        way = way * inverse_root(inner(way, way));
        from = outside;
    }
    pixels[item] = make_uchar4(channel_of(colour.x), channel_of(colour.y), channel_of(colour.z), 255);
}
