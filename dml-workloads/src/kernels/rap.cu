// best[i] = the maximum benefit of request i: its budget is distributed among the activities that it allows.
//
// Activities are processed one after the other: best(b) = max over x of best(b - x) + benefit(x). Budgets go
// from the largest down, so that the smaller ones do not include the activity yet. All numbers are integers.
#define ACTIVITIES 12
#define AMOUNTS 64

extern "C" __global__ void rap(const uint2 *__restrict__ requests, const unsigned int *__restrict__ benefits,
                               unsigned int *__restrict__ best, const unsigned long long end, const DmlItems items) {
    const unsigned long long item = items.x();
    if (item >= end) {
        return;
    }
    const uint2 request = requests[item];
    const unsigned int budget = min(request.x, AMOUNTS - 1u);
    unsigned int brought[AMOUNTS];
    for (unsigned int units = 0; units <= budget; ++units) {
        brought[units] = 0;
    }
    for (unsigned int activity = 0; activity < ACTIVITIES; ++activity) {
        if ((request.y >> activity & 1) == 0) {
            continue;
        }
        const unsigned int *benefit = benefits + activity * AMOUNTS;
        for (unsigned int units = budget; units > 0; --units) {
            unsigned int most = 0;
            for (unsigned int given = 0; given <= units; ++given) {
                most = max(most, brought[units - given] + benefit[given]);
            }
            brought[units] = most;
        }
    }
    best[item] = brought[budget];
}
