/* The part of NVML that DML uses, for two GPUs: one whose counter grows by 250 mJ with each reading, and one
 * without a counter. */

#include <stddef.h>
#include <string.h>

static int initialised;
static unsigned long long readings;
static int with_counter;
static int without_counter;

/* How often the library was initialised and not shut down. */
int stand_in_started(void) { return initialised; }

int nvmlInit_v2(void) {
#ifdef NO_DRIVER
    return 9;
#else
    initialised += 1;
    return 0;
#endif
}

int nvmlShutdown(void) {
    initialised -= 1;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *place, void **device) {
    if (!initialised) {
        return 1;
    }
    if (strcmp(place, "0000:1a:00.0") == 0) {
        *device = &with_counter;
    } else if (strcmp(place, "0000:1b:00.0") == 0) {
        *device = &without_counter;
    } else {
        return 6;
    }
    return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    if (!initialised) {
        return 1;
    }
    if (device != &with_counter) {
        return 3;
    }
    *millijoules = 5000000 + 250 * readings++;
    return 0;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case 1: return "Uninitialized";
    case 3: return "Not Supported";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    default: return NULL;
    }
}
