// best[i] = the most that request i's budget can bring, handed out among the activities that the request allows.
//
// With the activities taken one after the other, best(b) = max over x of best(b - x) + benefit(x), from the largest budget
// down: then the smaller ones still are those without the activity. All numbers are whole.
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
