// What the kernels of steps.c need in CUDA C. They are compiled with --fmad=false: a product and a sum are
// rounded each.
typedef unsigned int uint;
typedef unsigned long long ulong;
#define HAS_DOUBLES
#define restrict __restrict__
#define KERNEL extern "C" __global__ void
#define GLOBAL
#define X items.x()
#define Y items.y()
#define Z items.z()
#define ITEMS , const DmlItems items
