// out[i] = a[i] + b[i]; one thread is one element.
extern "C" __global__ void vecadd(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ out,
                                  const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    out[item] = a[item] + b[item];
}
