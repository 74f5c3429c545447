// circle[i] = (sin x[i], cos x[i]), tangents[i] = tan x[i], each by the first `terms` terms of its Taylor
// series.
//
// factors[k] times the square of x leads from term k to term k + 1. So a series is
// `1 + f[0] s (1 + f[1] s (1 + ...))`, and is summed from its last term. Contraction is allowed.
extern "C" __global__ void taylor(const float *__restrict__ x, const float2 *__restrict__ circle_factors,
                                  const float *__restrict__ tangent_factors, float2 *__restrict__ circle,
                                  float *__restrict__ tangents, const unsigned int terms, const unsigned long long end,
                                  const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    const float angle = x[item];
    const float square = angle * angle;
    float sine = 1.0f;
    float cosine = 1.0f;
    float tangent = 1.0f;
    for (unsigned int term = terms - 1; term-- > 0;) {
        const float2 factors = circle_factors[term];
        sine = 1.0f + factors.x * square * sine;
        cosine = 1.0f + factors.y * square * cosine;
        tangent = 1.0f + tangent_factors[term] * square * tangent;
    }
    circle[item] = make_float2(angle * sine, cosine);
    tangents[item] = angle * tangent;
}
