// What DML prepends to a kernel that queries its work-groups or the size of its launch. A package is a part
// of a run, launched with an offset. These functions return the values of the whole run, as if it were one
// launch.
//
// The offset of a dimension that is not split carries four times the size of the whole run along the split
// dimension, plus the number of dimensions:
//   items along x   x: first item   y: carried      z: 0
//   items along y   x: 0            y: first item   z: carried
//   items along z   x: carried      y: 0            z: first item
uint _dml_carrier(void) {
    size_t x = get_global_offset(0), y = get_global_offset(1), z = get_global_offset(2);
    return y && !z ? 1 : z && !x ? 2 : 0;
}
uint _dml_dimensions(void) { return get_global_offset(_dml_carrier()) % 4; }
size_t _dml_global_size(uint d) {
    return (d + 1) % 3 == _dml_carrier() && d < 3 ? get_global_offset(_dml_carrier()) / 4 : get_global_size(d);
}
size_t _dml_global_id(uint d) {
    return d == _dml_carrier() ? get_global_id(d) - get_global_offset(d) : get_global_id(d);
}
size_t _dml_global_offset(uint d) { return 0; }
size_t _dml_group_id(uint d) {
    return d > 2 ? 0 : (_dml_global_id(d) - get_local_id(d)) / get_local_size(d);
}
size_t _dml_num_groups(uint d) {
    return d > 2 ? 1 : (_dml_global_size(d) + get_local_size(d) - 1) / get_local_size(d);
}
#define get_work_dim _dml_dimensions
#define get_global_size _dml_global_size
#define get_global_id _dml_global_id
#define get_global_offset _dml_global_offset
#define get_num_groups _dml_num_groups
#define get_group_id _dml_group_id
#if __OPENCL_C_VERSION__ >= 200
size_t _dml_global_linear_id(void) {
    return (_dml_global_id(2) * _dml_global_size(1) + _dml_global_id(1)) * _dml_global_size(0) + _dml_global_id(0);
}
#define get_global_linear_id _dml_global_linear_id
#endif
#line 1
