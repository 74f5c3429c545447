// best[i] = the maximum benefit of request i: its budget is distributed among the activities that it allows.
//
// Activities are processed one after the other: best(b) = max over x of best(b - x) + benefit(x). Budgets go
// from the largest down, so that the smaller ones do not include the activity yet. All numbers are integers.
#define ACTIVITIES 12
#define AMOUNTS 64

kernel void rap(global const uint2 *restrict requests, global const uint *restrict benefits, global uint *restrict best,
                const ulong end) {
    const ulong item = get_global_id(0);
    if (item >= end) {
        return;
    }
    const uint2 request = requests[item];
    const uint budget = min(request.x, (uint)(AMOUNTS - 1));
    uint brought[AMOUNTS];
    for (uint units = 0; units <= budget; ++units) {
        brought[units] = 0;
    }
    for (uint activity = 0; activity < ACTIVITIES; ++activity) {
        if ((request.y >> activity & 1) == 0) {
            continue;
        }
        global const uint *benefit = benefits + activity * AMOUNTS;
        for (uint units = budget; units > 0; --units) {
            uint most = 0;
            for (uint given = 0; given <= units; ++given) {
                most = max(most, brought[units - given] + benefit[given]);
            }
            brought[units] = most;
        }
    }
    best[item] = brought[budget];
}
