// circle[i] = (sin x[i], cos x[i]), tangents[i] = tan x[i], each by the first `terms` terms of its Taylor
// series.
//
// factors[k] times the square of x leads from term k to term k + 1. So a series is
// `1 + f[0] s (1 + f[1] s (1 + ...))`, and is summed from its last term. Contraction is allowed.
kernel void taylor(global const float *restrict x, global const float2 *restrict circle_factors,
                   global const float *restrict tangent_factors, global float2 *restrict circle,
                   global float *restrict tangents, const uint terms, const ulong end) {
    const ulong item = get_global_id(0);
    if (item >= end) {
        return;
    }
    const float angle = x[item];
    const float square = angle * angle;
    float sine = 1.0f;
    float cosine = 1.0f;
    float tangent = 1.0f;
    for (uint term = terms - 1; term-- > 0;) {
        const float2 factors = circle_factors[term];
        sine = 1.0f + factors.x * square * sine;
        cosine = 1.0f + factors.y * square * cosine;
        tangent = 1.0f + tangent_factors[term] * square * tangent;
    }
    circle[item] = (float2)(angle * sine, cosine);
    tangents[item] = angle * tangent;
}
