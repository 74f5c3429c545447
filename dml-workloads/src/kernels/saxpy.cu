// out[i] = alpha * x[i] + y[i]; one thread is one element.
extern "C" __global__ void saxpy(const float alpha, const float *__restrict__ x, const float *__restrict__ y,
                                 float *__restrict__ out, const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    out[item] = alpha * x[item] + y[item];
}
