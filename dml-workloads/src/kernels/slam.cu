// What the kernels of slam.c need in CUDA C.
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
#define restrict __restrict__
#define KERNEL extern "C" __global__ void
#define REDUCTION KERNEL
#define FUNCTION static __device__ inline
#define GLOBAL
#define LOCAL __shared__
#define BARRIER __syncthreads()
#define X items.x()
#define Y items.y()
#define GROUP blockIdx.x
#define MEMBER threadIdx.x
#define SHORT2(x, y) make_short2(x, y)
#define ITEMS , const DmlItems items
