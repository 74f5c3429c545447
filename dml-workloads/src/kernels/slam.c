// KinectFusion. Images are row-major, and a work-item is a pixel. Depths and places are in metres. A normal
// whose x is INVALID, and a vertex or depth of zero, say that nothing was seen. A voxel is a signed distance in
// units of mu / SCALE, and the number of frames that it was averaged over.
#define INVALID -2.0f
#define SCALE 32766.0f

typedef struct {
    float x, y, z;
} Vector;

// Three rows: a rotation and a translation, or a projection.
typedef struct {
    float at[12];
} Matrix;

// What a pixel adds to the equations of the tracking. `result` is positive if it adds something.
typedef struct {
    int result;
    float error;
    float derivative[6];
} Equation;

FUNCTION Vector vector(const float x, const float y, const float z) {
    Vector made;
    made.x = x;
    made.y = y;
    made.z = z;
    return made;
}

FUNCTION Vector minus(const Vector a, const Vector b) {
    return vector(a.x - b.x, a.y - b.y, a.z - b.z);
}

FUNCTION float inner(const Vector a, const Vector b) {
    return a.x * b.x + a.y * b.y + a.z * b.z;
}

FUNCTION Vector cross_product(const Vector a, const Vector b) {
    return vector(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

FUNCTION Vector turned(const Matrix by, const Vector a) {
    return vector(by.at[0] * a.x + by.at[1] * a.y + by.at[2] * a.z, by.at[4] * a.x + by.at[5] * a.y + by.at[6] * a.z,
                  by.at[8] * a.x + by.at[9] * a.y + by.at[10] * a.z);
}

FUNCTION Vector moved(const Matrix by, const Vector a) {
    const Vector to = turned(by, a);
    return vector(to.x + by.at[3], to.y + by.at[7], to.z + by.at[11]);
}

FUNCTION int clamped(const int value, const int least, const int most) {
    return value < least ? least : value > most ? most : value;
}

KERNEL mm2meters(GLOBAL float *restrict meters, GLOBAL const ushort *restrict millimeters, const uint width,
                 const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    meters[Y * width + X] = millimeters[Y * width + X] / 1000.0f;
}

// The mean of 5 x 5 depths, weighted by distances within the image and in depth. `near` and `far` are the weights
// of a distance of one and two pixels.
KERNEL bilateral_filter(GLOBAL float *restrict to, GLOBAL const float *restrict from, const float near,
                        const float far, const float inverse_square, const uint width, const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    const float centre = from[Y * width + X];
    float sum = 0.0f, weights = 0.0f;
    if (centre > 0.0f) {
        for (int down = -2; down <= 2; ++down) {
            for (int right = -2; right <= 2; ++right) {
                const int x = clamped((int)X + right, 0, (int)width - 1);
                const int y = clamped((int)Y + down, 0, (int)end - 1);
                const float depth = from[(uint)y * width + (uint)x];
                if (depth > 0.0f) {
                    const float off = depth - centre;
                    const float by_row = down == 0 ? 1.0f : down * down == 1 ? near : far;
                    const float by_column = right == 0 ? 1.0f : right * right == 1 ? near : far;
                    const float weight = by_row * by_column * exp(-off * off * inverse_square);
                    sum += weight * depth;
                    weights += weight;
                }
            }
        }
    }
    to[Y * width + X] = centre > 0.0f ? sum / weights : 0.0f;
}

// The mean of those of 2 x 2 depths that are within `near` of the first one.
KERNEL half_sample(GLOBAL float *restrict to, GLOBAL const float *restrict from, const float near, const uint width,
                   const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    const float first = from[4 * Y * width + 2 * X];
    float sum = 0.0f, count = 0.0f;
    for (uint down = 0; down < 2; ++down) {
        for (uint right = 0; right < 2; ++right) {
            const float depth = from[(2 * Y + down) * 2 * width + 2 * X + right];
            if (fabs(depth - first) < near) {
                sum += depth;
                count += 1.0f;
            }
        }
    }
    to[Y * width + X] = sum / count;
}

KERNEL depth2vertex(GLOBAL Vector *restrict vertices, GLOBAL const float *restrict depths, const float focal_x,
                    const float focal_y, const float centre_x, const float centre_y, const uint width,
                    const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    const float depth = depths[Y * width + X];
    vertices[Y * width + X] =
        vector(depth * (((float)X - centre_x) / focal_x), depth * (((float)Y - centre_y) / focal_y), depth);
}

KERNEL vertex2normal(GLOBAL Vector *restrict normals, GLOBAL const Vector *restrict vertices, const uint width,
                     const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    const Vector left = vertices[Y * width + (X > 0 ? X - 1 : 0)];
    const Vector right = vertices[Y * width + (X + 1 < width ? X + 1 : X)];
    const Vector above = vertices[(Y > 0 ? Y - 1 : 0) * width + X];
    const Vector below = vertices[(Y + 1 < end ? Y + 1 : Y) * width + X];
    Vector normal = vector(INVALID, 0.0f, 0.0f);
    if (left.z != 0.0f && right.z != 0.0f && above.z != 0.0f && below.z != 0.0f) {
        // Towards the camera.
        const Vector across = cross_product(minus(below, above), minus(right, left));
        const float square = inner(across, across);
        if (square > 0.0f) {
            const float inverse = 1.0f / sqrt(square);
            normal = vector(across.x * inverse, across.y * inverse, across.z * inverse);
        }
    }
    normals[Y * width + X] = normal;
}

// Compares each pixel with the one of the reference to which it projects: the distance along the normal, and its
// derivatives by a motion of the camera.
KERNEL track(GLOBAL Equation *restrict equations, GLOBAL const Vector *restrict vertices,
             GLOBAL const Vector *restrict normals, GLOBAL const Vector *restrict reference_vertices,
             GLOBAL const Vector *restrict reference_normals, const Matrix pose, const Matrix projection,
             const float distance, const float cosine, const uint reference_width, const uint reference_height,
             const uint width, const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    Equation equation = {0, 0.0f, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}};
    const Vector normal = normals[Y * width + X];
    if (normal.x == INVALID) {
        equation.result = -1;
    } else {
        const Vector vertex = moved(pose, vertices[Y * width + X]);
        const Vector projected = moved(projection, vertex);
        const float column = projected.x / projected.z + 0.5f, row = projected.y / projected.z + 0.5f;
        if (!(projected.z > 0.0f && column >= 0.0f && column <= (float)(reference_width - 1) && row >= 0.0f &&
              row <= (float)(reference_height - 1))) {
            equation.result = -2;
        } else {
            const uint at = (uint)row * reference_width + (uint)column;
            const Vector reference_normal = reference_normals[at];
            const Vector off = minus(reference_vertices[at], vertex);
            if (reference_normal.x == INVALID) {
                equation.result = -3;
            } else if (sqrt(inner(off, off)) > distance) {
                equation.result = -4;
            } else if (inner(turned(pose, normal), reference_normal) < cosine) {
                equation.result = -5;
            } else {
                const Vector moment = cross_product(vertex, reference_normal);
                equation.result = 1;
                equation.error = inner(reference_normal, off);
                equation.derivative[0] = reference_normal.x;
                equation.derivative[1] = reference_normal.y;
                equation.derivative[2] = reference_normal.z;
                equation.derivative[3] = moment.x;
                equation.derivative[4] = moment.y;
                equation.derivative[5] = moment.z;
            }
        }
    }
    equations[Y * width + X] = equation;
}

// Adds up the equations in eight groups of 32 sums: the squared error, its products with the derivatives, the
// products of the derivatives, the number of equations, and of pixels that were too far, turned away, or not seen.
REDUCTION reduce(GLOBAL float *restrict sums, GLOBAL const Equation *restrict equations, const uint width,
                 const uint height ITEMS) {
    LOCAL float shared[256 * 32];
    float own[32];
    for (uint at = 0; at < 32; ++at) {
        own[at] = 0.0f;
    }
    const uint member = MEMBER;
    for (uint y = GROUP; y < height; y += 8) {
        for (uint x = member; x < width; x += 256) {
            const Equation equation = equations[y * width + x];
            if (equation.result < 1) {
                own[29] += equation.result == -4 ? 1.0f : 0.0f;
                own[30] += equation.result == -5 ? 1.0f : 0.0f;
                own[31] += equation.result > -4 ? 1.0f : 0.0f;
            } else {
                own[0] += equation.error * equation.error;
                uint next = 7;
                for (uint row = 0; row < 6; ++row) {
                    own[row + 1] += equation.error * equation.derivative[row];
                    for (uint column = row; column < 6; ++column) {
                        own[next++] += equation.derivative[row] * equation.derivative[column];
                    }
                }
                own[28] += 1.0f;
            }
        }
    }
    for (uint at = 0; at < 32; ++at) {
        shared[member * 32 + at] = own[at];
    }
    BARRIER;
    // A member adds up one sum of 32 members, then 32 members those of eight others.
    const uint sum = member % 32, part = member / 32;
    float total = 0.0f;
    for (uint at = 0; at < 32; ++at) {
        total += shared[(part * 32 + at) * 32 + sum];
    }
    BARRIER;
    shared[member] = total;
    BARRIER;
    if (member < 32) {
        float all = 0.0f;
        for (uint at = 0; at < 8; ++at) {
            all += shared[at * 32 + member];
        }
        sums[GROUP * 32 + member] = all;
    }
}

// A work-item is a voxel. A row goes along x, and `Y` counts rows through all planes.
KERNEL clear_volume(GLOBAL short2 *restrict volume, const uint edge, const ulong end ITEMS) {
    if (X >= edge || Y >= end) {
        return;
    }
    volume[Y * edge + X] = SHORT2((short)SCALE, 0);
}

// Averages the signed distances with those that a frame shows, as far as `mu` behind its surface.
KERNEL integrate(GLOBAL short2 *restrict volume, GLOBAL const float *restrict depths, const Matrix to_camera,
                 const float focal_x, const float focal_y, const float centre_x, const float centre_y,
                 const float voxel, const float mu, const float most, const uint columns, const uint rows,
                 const uint edge, const ulong end ITEMS) {
    if (X >= edge || Y >= end) {
        return;
    }
    const uint y = (uint)Y % edge, z = (uint)Y / edge;
    const Vector place =
        moved(to_camera, vector(((float)X + 0.5f) * voxel, ((float)y + 0.5f) * voxel, ((float)z + 0.5f) * voxel));
    if (!(place.z >= 0.0001f)) {
        return;
    }
    const float right = place.x / place.z, down = place.y / place.z;
    const float column = focal_x * right + centre_x + 0.5f, row = focal_y * down + centre_y + 0.5f;
    // Also false for a place that is no number, which must not become an index.
    if (!(column >= 0.0f && column <= (float)(columns - 1) && row >= 0.0f && row <= (float)(rows - 1))) {
        return;
    }
    const float depth = depths[(uint)row * columns + (uint)column];
    if (depth == 0.0f) {
        return;
    }
    const float distance = (depth - place.z) * sqrt(1.0f + right * right + down * down);
    if (distance > -mu) {
        const short2 old = volume[Y * edge + X];
        const float count = (float)old.y;
        const float now = (count * ((float)old.x / SCALE) + fmin(1.0f, distance / mu)) / (count + 1.0f);
        volume[Y * edge + X] =
            SHORT2((short)(fmin(fmax(now, -1.0f), 1.0f) * SCALE), (short)fmin(count + 1.0f, most));
    }
}

// Returns the distance at a place, which is in voxels, between the eight nearest voxels. It is in units of the
// voxels.
FUNCTION float between(GLOBAL const short2 *volume, const uint edge, const Vector place) {
    const float x = floor(place.x), y = floor(place.y), z = floor(place.z);
    const int last = (int)edge - 1;
    const float right = place.x - x, down = place.y - y, away = place.z - z;
    const uint x0 = (uint)clamped((int)x, 0, last), x1 = (uint)clamped((int)x + 1, 0, last);
    const uint y0 = (uint)clamped((int)y, 0, last) * edge, y1 = (uint)clamped((int)y + 1, 0, last) * edge;
    const uint z0 = (uint)clamped((int)z, 0, last) * edge * edge, z1 = (uint)clamped((int)z + 1, 0, last) * edge * edge;
    const float near = (volume[z0 + y0 + x0].x * (1.0f - right) + volume[z0 + y0 + x1].x * right) * (1.0f - down) +
                       (volume[z0 + y1 + x0].x * (1.0f - right) + volume[z0 + y1 + x1].x * right) * down;
    const float far = (volume[z1 + y0 + x0].x * (1.0f - right) + volume[z1 + y0 + x1].x * right) * (1.0f - down) +
                      (volume[z1 + y1 + x0].x * (1.0f - right) + volume[z1 + y1 + x1].x * right) * down;
    return near * (1.0f - away) + far * away;
}

FUNCTION Vector along(const Vector origin, const Vector direction, const float depth) {
    return vector(origin.x + direction.x * depth, origin.y + direction.y * depth, origin.z + direction.z * depth);
}

// Follows the ray of each pixel to where the distance becomes negative. `view` takes directions of the camera to
// those of the volume. Steps are in units of depth.
KERNEL raycast(GLOBAL Vector *restrict vertices, GLOBAL Vector *restrict normals, GLOBAL const short2 *restrict volume,
               const Matrix view, const float focal_x, const float focal_y, const float centre_x,
               const float centre_y, const float voxel, const float near_plane, const float far_plane,
               const float short_step, const float long_step, const uint edge, const uint width,
               const ulong end ITEMS) {
    if (X >= width || Y >= end) {
        return;
    }
    const Vector forward = vector(((float)X - centre_x) / focal_x, ((float)Y - centre_y) / focal_y, 1.0f);
    const Vector turn = turned(view, forward);
    const float size = voxel * (float)edge;
    // Where the ray enters the volume and leaves it.
    const float x0 = -view.at[3] / turn.x, x1 = (size - view.at[3]) / turn.x;
    const float y0 = -view.at[7] / turn.y, y1 = (size - view.at[7]) / turn.y;
    const float z0 = -view.at[11] / turn.z, z1 = (size - view.at[11]) / turn.z;
    const float enter = fmax(fmax(fmax(fmin(x0, x1), fmin(y0, y1)), fmin(z0, z1)), near_plane);
    const float leave = fmin(fmin(fmin(fmax(x0, x1), fmax(y0, y1)), fmax(z0, z1)), far_plane);
    Vector vertex = vector(0.0f, 0.0f, 0.0f), normal = vector(INVALID, 0.0f, 0.0f);
    // Both in voxels, whose centres have integral coordinates.
    const Vector origin =
        vector(view.at[3] / voxel - 0.5f, view.at[7] / voxel - 0.5f, view.at[11] / voxel - 0.5f);
    const Vector direction = vector(turn.x / voxel, turn.y / voxel, turn.z / voxel);
    if (enter < leave) {
        float depth = enter, step = long_step;
        float before = between(volume, edge, along(origin, direction, depth)), now = 0.0f;
        if (before > 0.0f) {
            for (; depth < leave; depth += step) {
                now = between(volume, edge, along(origin, direction, depth));
                if (now < 0.0f) {
                    break;
                }
                if (now < 0.8f * SCALE) {
                    step = short_step;
                }
                before = now;
            }
        }
        if (now < 0.0f) {
            const Vector hit = along(origin, direction, depth + step * now / (before - now));
            const Vector slope = vector(between(volume, edge, vector(hit.x + 1.0f, hit.y, hit.z)) -
                                            between(volume, edge, vector(hit.x - 1.0f, hit.y, hit.z)),
                                        between(volume, edge, vector(hit.x, hit.y + 1.0f, hit.z)) -
                                            between(volume, edge, vector(hit.x, hit.y - 1.0f, hit.z)),
                                        between(volume, edge, vector(hit.x, hit.y, hit.z + 1.0f)) -
                                            between(volume, edge, vector(hit.x, hit.y, hit.z - 1.0f)));
            const float square = inner(slope, slope);
            vertex = vector((hit.x + 0.5f) * voxel, (hit.y + 0.5f) * voxel, (hit.z + 0.5f) * voxel);
            if (square > 0.0f) {
                const float inverse = 1.0f / sqrt(square);
                normal = vector(slope.x * inverse, slope.y * inverse, slope.z * inverse);
            }
        }
    }
    vertices[Y * width + X] = vertex;
    normals[Y * width + X] = normal;
}
