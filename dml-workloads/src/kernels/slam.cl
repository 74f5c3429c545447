// What the kernels of slam.c need in OpenCL C.
#define KERNEL kernel void
#define REDUCTION kernel __attribute__((reqd_work_group_size(256, 1, 1))) void
#define FUNCTION static inline
#define GLOBAL global
#define LOCAL local
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define X get_global_id(0)
#define Y get_global_id(1)
#define GROUP get_group_id(0)
#define MEMBER get_local_id(0)
#define SHORT2(x, y) (short2)(x, y)
#define ITEMS
