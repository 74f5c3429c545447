// best[i] = the most that request i's budget can bring, handed out among the activities that the request allows.
//
// With the activities taken one after the other, best(b) = max over x of best(b - x) + benefit(x), from the largest budget
// down: then the smaller ones still are those without the activity. All numbers are whole.
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
