// What the kernels of steps.c need in OpenCL C. A product and a sum are rounded each.
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define HAS_DOUBLES
#endif
#pragma OPENCL FP_CONTRACT OFF
#define KERNEL kernel void
#define GLOBAL global
#define X get_global_id(0)
#define Y get_global_id(1)
#define Z get_global_id(2)
#define ITEMS
