// Kernels whose groups also compute the border of their neighbours, as hotspot and pathfinder of Rodinia do.
#define GROUP 16
#define BORDER 2
#define INNER (GROUP - 2 * BORDER)
bool is_inner(int place, int border) { return place >= border && place < GROUP - border; }
kernel void plate(global const float *heat, global const float *power, global float *out, uint edge) {
    local float own[GROUP][GROUP];
    int column = get_local_id(0), row = get_local_id(1);
    int x = INNER * (int)get_group_id(0) - BORDER + column;
    int y = INNER * (int)get_group_id(1) - BORDER + row;
    bool is_inside = x >= 0 && y >= 0 && x < (int)edge && y < (int)edge;
    float more = is_inside ? power[y * edge + x] : 0;
    own[row][column] = is_inside ? heat[y * edge + x] : 0;
    for (int step = 1; step <= BORDER; step++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        float next = own[row][column];
        if (is_inner(row, step) && is_inner(column, step)) {
            next += more + 0.25f * (own[row - 1][column] + own[row + 1][column]
                + own[row][column - 1] + own[row][column + 1]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        own[row][column] = next;
    }
    if (is_inside && is_inner(row, BORDER) && is_inner(column, BORDER)) out[y * edge + x] = own[row][column];
}
kernel void path(global const float *wall, global const float *from, global float *to, uint columns, uint start) {
    local float own[GROUP];
    int place = get_local_id(0), x = INNER * (int)get_group_id(0) - BORDER + place;
    bool is_inside = x >= 0 && x < (int)columns;
    own[place] = is_inside ? from[x] : 0;
    for (int step = 0; step < BORDER; step++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        float next = own[place];
        if (is_inside && is_inner(place, step + 1)) {
            next += own[place - 1] + 2 * own[place + 1] + (step == 0 ? wall[start * columns + x] : 1);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        own[place] = next;
    }
    if (is_inside && is_inner(place, BORDER)) to[x] = own[place];
}
