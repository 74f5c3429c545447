//! Bodies of kernels, most of them written to mislead, with what a package touches.

/// The body of a kernel of two buffers of floats and one of integers, and what it touches.
pub(crate) const BODIES: &[(&str, &str)] = &[
    // Plain.
    ("a[i] = b[i];", "a w 64..128, b r 64..128, k -"),
    ("a[i] += b[i + 1];", "a u 64..128, b r 68..132, k -"),
    ("a[n - 1 - i] = b[2 * i];", "a w 128..192, b r 128..252, k -"),
    ("a[i] = b[0] + b[n - 1];", "a w 64..128, b r 0..256, k -"),
    // Guards.
    ("if (i > 20) a[i] = 1;", "a w 84..128, b -, k -"),
    ("if (i == 17) a[0] = 1;", "a w 0..4, b -, k -"),
    ("if (i < 5) a[i] = 1;", "a w , b -, k -"),
    ("if (b[i] > 0) a[i] = 1;", "a u 64..128, b r 64..128, k -"),
    ("if (n < 64 && b[i] > 0) return; a[i] = 1;", "a w 64..128, b r , k -"),
    ("if (b[i] > 0) a[i] = 1; else a[i] = 2;", "a w 64..128, b r 64..128, k -"),
    ("if (i > 20 && b[i] > 0) { a[i] = 1; return; } a[i] = 2;", "a w 64..128, b r 84..128, k -"),
    ("if (i > 20) { a[i] = 1; return; } a[i] = 2;", "a w 64..128, b -, k -"),
    ("if (i & 1) a[i] = 1;", "a u 64..128, b -, k -"),
    ("uint j = i - 20; if (j < 4) a[j] = 1;", "a w 0..16, b -, k -"),
    ("int j = (int)i - 20; if (j < 4) a[i] = b[max(j, 0)];", "a w 64..96, b r 0..16, k -"),
    // Loops.
    (
        "float s = 0; for (int j = 0; j < 4; j++) s += b[i * 2 + j]; a[i] = s;",
        "a w 64..128, b r 128..256, k -",
    ),
    ("for (uint j = i; j < n; j += get_global_size(0)) a[j] = 1;", "a u 64..128, b -, k -"),
    ("for (int j = 3; j >= 0; j--) a[i] = b[j];", "a w 64..128, b r 0..16, k -"),
    ("int j = 0; while (b[j] > 0) j++; a[i] = j;", "a w 64..128, b r 0..256, k -"),
    ("int j = 0; do { a[i] = b[j]; j += 2; } while (j < 6);", "a w 64..128, b r 0..20, k -"),
    ("for (int j = 0; j < 8; j++) { if (b[j] > 0) break; a[j] = 1; }", "a u 0..32, b r 0..32, k -"),
    (
        "int found = 0; for (int j = 0; j < 8; j++) if (b[j] > 0) { found = j; break; } a[found] = 1;",
        "a refused 4:",
    ),
    ("for (int j = 0; j < 4; j++) { if (j == 2) continue; a[i] = b[j]; }", "a u 64..128, b r 0..16, k -"),
    ("int s = 1; for (int j = 0; j < 3; j++) { a[i] = b[s]; s *= 2; }", "b refused"),
    ("for (int j = 0; j < 2; j++) for (int l = 0; l < j; l++) a[i] = b[l];", "a u 64..128, b r 0..4, k -"),
    // Values from memory.
    ("a[i] = b[k[i]];", "b refused"),
    ("a[k[i] & 7] = 1;", "a u 0..32"),
    ("uchar c = (uchar)k[i]; a[i] = b[c % 16];", "a w 64..128, b r 0..64"),
    ("a[(int)b[i]] = 1;", "a refused"),
    // Pointers.
    ("global float *p = a + i; *p = 1; p[1] = 2;", "a w 64..132, b -, k -"),
    ("global float *p = a; for (int j = 0; j < 4; j++) *p++ = b[i];", "a w 0..16, b r 64..128, k -"),
    ("global float *p = i > 20 ? a : b; *p = 1;", "refused"),
    ("global float *p = k[0] ? a + i : a; *p = 1;", "a u 0..128"),
    ("vstore4(vload4(0, b + i), i / 4, a);", "a u 64..128, b r 64..140"),
    ("global float2 *p = (global float2 *)b; a[i] = p[i].y;", "a w 64..128, b r 132..256"),
    ("*(global char *)(a + i) = 1;", "a w 64..65 68..69"),
    ("int j = 5; int *q = &j; *q = 9; a[j] = 1;", "a refused"),
    // Numbers of groups.
    ("a[get_group_id(0)] = 1;", "a w 4..8, b -, k -"),
    ("if (get_local_id(0) == 0) a[get_group_id(0)] = 1;", "a w 4..8, b -, k -"),
    ("if (get_local_id(0) == 0) a[i] = 1;", "a u 64..128, b -, k -"),
    ("if (i == 17) a[get_local_id(0)] = 1;", "a u 0..64, b -, k -"),
    ("a[get_group_id(0) * get_local_size(0) + get_local_id(0)] = 1;", "a w 64..128, b -, k -"),
    ("a[i / 16 * 16 + i % 16] = 1;", "a w 64..128, b -, k -"),
    ("a[(i >> 2) << 2] = 1;", "a u 64..68 80..84 96..100 112..116, b -, k -"),
    ("a[i] = get_num_groups(0);", "a w 64..128, b -, k -"),
    // Local memory, functions, atomics.
    (
        "local float t[16]; t[get_local_id(0)] = b[i]; barrier(1); a[i] = t[15 - get_local_id(0)];",
        "a w 64..128, b r 64..128, k -",
    ),
    ("local int t[1]; t[0] = 3; a[t[0]] = 1;", "a refused"),
    ("a[i] = twice(b, i);", "a w 64..128, b r 128..252"),
    ("a[i] = unknown(b);", "refused"),
    ("a[i] = unknown(2.0f);", "a w 64..128, b -, k -"),
    ("atomic_add(&k[0], 1);", "a -, b -, k u 0..4"),
    ("atomic_add(&k[k[i]], 1);", "k refused"),
    ("switch (i) { case 17: a[i] = 1; }", "a w 68..72, b -, k -"),
    (
        "switch (i) { case 17: case 18: a[i] = 1; break; default: { a[0] = b[i]; break; } case 20: return; }",
        "a u 0..4 68..76, b r 64..128, k -",
    ),
    ("int q = 3; switch (k[0]) { case 1: q = 5; break; case 2: q = 7; } a[q] = 1;", "a u 12..32, b -"),
    ("switch (i) { case 17: a[i] = 1; case 18: a[0] = 1; }", "refused"),
    ("switch (i) { case 17: if (b[0] > 0) break; a[i] = 1; }", "refused"),
    (
        "for (int j = 0; j < 4; j++) switch (j) { case 1: continue; default: a[j] = 1; }",
        "a u 0..16, b -, k -",
    ),
    ("switch (i) { default: for (;;) { a[i] = 1; break; } }", "a w 64..128, b -, k -"),
    ("a[i] = b[i] ; goto end; end: return;", "refused"),
    ("a[WHO] = 1;", "a refused"),
    // Assignments that are not always done.
    ("int q = (int)i - 20; q < 0 && (q = 0); a[i] = b[q];", "a w 64..128, b r 0..48, k -"),
    ("uint q = i; (q < 20) || (q = 20); a[i] = b[q];", "a w 64..128, b r 64..84, k -"),
    ("uint q = i; q < 20 ? (q = 3) : (q += 1); a[i] = b[q];", "a w 64..128, b r 12..132, k -"),
    ("int q = 0; while (q < 3 && (q += 2) < 9) a[i] = b[q];", "a u 64..128, b r"),
    // What a loop leaves behind.
    ("int j = 0; for (;;) { j++; if (b[j] > 0) break; } a[j] = 1;", "a refused"),
    ("int j = 3; while (j-- > 0) a[i] = b[j]; a[j + 1] = 2;", "a w 0..4 64..128, b r 0..12, k -"),
    (
        "int j = 0; do { j += 2; } while (j < 6); a[j] = b[i];",
        "a u 0..4 8..12 16..20 24..28, b r 64..128, k -",
    ),
    ("int j = 0; for (; j < 5; j++) { } a[j] = b[i];", "a w 20..24, b r 64..128, k -"),
    ("int j = 0; for (; j < 5; j++) if (b[j] > 40) break; a[j] = b[i];", "a u 0..24, b r 0..128, k -"),
    // Small types, and variables that change by their addresses.
    ("uchar c; c = 4 * i + 200; a[i] = b[c % 64];", "a w 64..128, b r 0..256, k -"),
    ("uchar c = 250; c += 10; a[i] = b[c];", "a w 64..128, b r 16..20, k -"),
    ("char c = 250; a[i] = b[i + c];", "a w 64..128, b r 40..104, k -"),
    ("int j = 5; int *q = &j; j = 3; *q = 9; a[j] = 1;", "a refused"),
    ("int j = 5; for (int l = 0; l < 2; l++) { int *q = &j; *q = 9; } j = 3; a[j] = 1;", "a refused"),
    // Elements of vectors.
    ("((global float4 *)a)[i / 4].xz = (float2)(b[i], 1);", "a u 64..68 72..76 80..84"),
    ("((global float4 *)a)[i / 4].y = b[i];", "a u 68..72 84..88"),
    ("a[i] = ((global float4 *)b)[i / 4].w;", "a w 64..128, b r 76..128"),
    // Numbers that their types cannot hold.
    ("uint q = i + 0xffffffffu; a[i] = q < n ? b[q] : 0;", "a w 64..128, b r 60..124, k -"),
    ("uint q = i - 20u; uint m = min(q, n); a[i] = m == n ? b[0] : b[q];", "a w 64..128, b r 0..48, k -"),
    ("uint h = (i * 2654435761u) >> 26; a[i] = b[h];", "a w 64..128, b r 0..256, k -"),
    ("uint h = i * 2654435761u; a[i] = b[h < n ? h : 0];", "a w 64..128, b r 0..256, k -"),
    ("uint q = i - 20u; a[i] = b[q / 67108864u];", "a w 64..128, b r 0..256, k -"),
    // Choices: two between the same numbers are two, and one with a condition is not both.
    ("int x = b[i] > 5 ? 1 : 0, y = b[i + 1] > 5 ? 1 : 0; a[i + 1 + x - y] = 1;", "a u 64..136"),
    ("int x = b[i] > 5 ? 9 : 3, y = b[i + 1] > 5 ? 9 : 3; if (x > y) a[i] = 1;", "a u 64..128"),
    ("int x = b[i] > 5 ? 9 : 3; if (x > 5 && x < 4) a[i] = 1; a[0] = x;", "a w 0..4, b r"),
    ("int x = i > 20 ? 9 : 3; a[x] = 1;", "a w 12..16 36..40, b -, k -"),
    ("int w = i > 0 ? i - 1 : i; a[i] = b[w];", "a w 64..128, b r 60..124, k -"),
    ("int w = i; if (i % 2) w = i + 1; a[i] = b[w];", "a w 64..128, b r 64..132, k -"),
    ("int p = 0; for (int j = 0; j < 4; j++) { p += b[j] > 0 ? 1 : 0; a[p] = 1; }", "a refused"),
    // Flags.
    ("bool is = false; if (i > 20) is = true; if (is) a[i] = 1;", "a w 84..128, b -, k -"),
    ("bool is = true; if (i > 20) is = false; if (!is) a[i] = 1;", "a w 84..128, b -, k -"),
    ("bool is = b[i] > 3; if (i > 20) is = false; if (is) a[i] = 1;", "a u 64..84"),
    (
        "bool is; for (int j = 0; j < 3; j++) { is = false; if (i > 20 + j) is = true; if (j == 2) break; } \
         if (is) a[i] = 1;",
        "a u 92..128, b -, k -",
    ),
    (
        "bool is = true; for (int j = 0; j < 3; j++) { if (b[j] > 9) break; is = i > 20 + j; } if (!is) a[i] = 1;",
        "a u 64..128",
    ),
    ("bool is = i > 20; for (int j = 5; j < 3; j++) is = false; if (is) a[i] = 1;", "a w 84..128, b -, k -"),
    ("bool is = false; for (int j = 0; j < 3; j++) is = is || i == j; if (is) a[i] = 1;", "a u 64..128"),
    (
        "bool is; for (int j = 0; j < 3; j++) { if (b[j] > 0) { is = true; if (j == 0) a[i] = 1; } \
         else is = false; } if (!is) a[i] = 2;",
        "a u 64..128",
    ),
    (
        "bool is; for (int j = 0; j < 3; j++) { is = b[j] > 0; if (is && j == 0) a[i] = 1; } if (!is) a[i] = 2;",
        "a u 64..128",
    ),
    (
        "int x = 0; for (int j = 0; j < 3; j++) { x = b[j] > 0 ? 4 : 8; if (x == 4 && j == 0) a[i] = 1; } \
         if (x == 8) a[i] = 2;",
        "a u 64..128",
    ),
    // Tables.
    ("const int o[3] = {-1, 0, 4}; a[i] = b[i + o[i % 3]];", "a w 64..128, b r 60..144, k -"),
    ("const int o[2][2] = {{1, 2}, {3}}; a[i] = b[i + o[k[i] & 1][1]];", "a w 64..128, b r 64..140"),
    ("const int o[2] = {256, 2}; a[i] = b[i + ((const char *)o)[1]];", "b refused"),
    ("int o[2] = {1, 2}; o[1] = 9; a[i] = b[i + o[1]];", "b refused"),
    ("int x = k[0]; for (int j = 0; j < 3; j++) x = i > 20 + j; a[x] = 1;", "a refused"),
    ("int x = 5; for (int j = 0; j < 0; j++) x = i > 20 + j; a[x] = 1;", "a refused"),
    ("uchar x = 5; for (int j = 0; j < 0; j++) x = 1; a[x] = 1;", "a refused"),
    // Elements of vectors in loops and functions.
    ("uint3 p = 0; for (p.z = 1; p.z < 4; ++p.z) a[p.z + p.x] = 1;", "a w 4..16"),
    ("int2 p = (int2)(i, 0); for (int j = 0; j < 3; j++, p += (int2)(1, 2)) a[p.x] = p.y;", "a w 64..136"),
    (
        "int2 p = (int2)(i, 0); for (int j = 0; j < 3; j++) { p.y += 1; if (b[0] > 3) break; } a[p.x] = 1;",
        "a",
    ),
    (
        "int2 q = clamp((int2)(i - 4, i + 4), (int2)(20), (int2)(30)); a[q.x] = b[q.y];",
        "a u 80..112, b r 80..124",
    ),
    ("int4 p = (int4)(1, 2, 3, 4); for (int j = 0; j < 2; j++) p = p.yxwz; a[p.x] = 1;", "a refused"),
    ("int4 p = 0; p.xy.y = i; p.zw = (int2)(1, 2); a[p.y + p.w] = 1;", "a w 72..136"),
    ("uchar2 p = (uchar2)(300, i); p.y += 250; a[p.x] = 1;", "a w 176..180"),
    ("uchar2 p; p.x = i + 250; a[p.x & 63] = 1;", "a u 0..256"),
    ("int2 p = convert_int2((uint2)(i, 3)); a[p.x + p.y] = 1;", "a w 76..140"),
    (
        "float t[8]; for (int j = 0; j < sizeof(t) / sizeof(float); j++) t[j] = 1; a[i] = t[0];",
        "a w 64..128, b -",
    ),
    ("for (uint d = 0xffffffff; d != 2; d++) a[d + 1] = 1;", "a"),
    ("uint r = 0xfffffffa; uint j = i + r; if (j < n) a[j] = 1;", "a w 40..104, b -, k -"),
    // Found by comparing random kernels with their simulations.
    ("for (int j = 0; j < 5; j++) { a[j] = 1; if (i > 20) break; }", "a u 0..20, b -, k -"),
    ("for (int j = 0; j < 5; j++) { a[j] = 1; if (b[i] > 5) return; }", "a u 0..20, b r 64..128, k -"),
    ("for (int j = 0; j < 8; j++) { if (min(j, 9) < 3) break; a[j] = 1; }", "a u 12..32, b -, k -"),
    ("for (int j = 0; (j < 8 && (k[j] = 1) > 0) && j < 2; j++) { }", "a -, b -, k u 0..32"),
    ("int v = 7; while (v <= 0) { a[0] = 1; v -= 1; }", "a u 0..4, b -, k -"),
    ("uint j = 0; while (j--) a[0] = 1;", "a u 0..4, b -, k -"),
    (
        "uint g = get_group_id(0); if (g > 0) for (int j = 0; j < 4; j += g) b[j] = 1; if (g == 0) a[i] = 1;",
        "a w , b u 0..16, k -",
    ),
    (
        "if (n > 64) { for (int j = 0; j < 90; j += (int)n - 64) b[0] = 1; } a[i] = 1;",
        "a w 64..128, b w , k -",
    ),
    ("b[i] > 0 ? (a[i] = 1) : 0; b[(i + 1) & 63] > 5 ? 0 : (a[i] = 2);", "a u 64..128, b r 64..132, k -"),
    ("b[i] > 0 && (a[i] = 1) > 0; b[63 - i] > 0 || (a[i] = 2) > 0;", "a u 64..128, b r 64..192, k -"),
    (
        "while (b[i] > 0) { a[i] = 1; b[i] = -1; } while (!(b[63-i] > 0)) { a[i] = 2; b[63-i] = 1; }",
        "a u 64..128, b u 64..192, k -",
    ),
    ("uint g = get_group_id(0); if (i < 3u) b[g < 3 ? 8u : 31u] = 0;", "a -, b w , k -"),
    ("a[(2u - 5) % 64u] = 1;", "a w 244..248, b -, k -"),
    ("a[min(2u - 5, 63u)] = 1;", "a w 252..256, b -, k -"),
    ("uint q = ~0; a[q / 67108864u] = 1;", "a w 252..256, b -, k -"),
    ("a[((0u - 8) >> 27)] = 1;", "a w 124..128, b -, k -"),
    ("int v = (int)i - 64; a[v & 31u] = 1;", "a u 0..128, b -, k -"),
    ("long q = i - 20u; if (q >= 0) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uint p = i - 20u, q = i - 24u; if (p >= q) a[i] = 1;", "a u 64..128, b -, k -"),
    ("uint v = 17u - 63u; if (v <= v) a[i] = 1;", "a w 64..128, b -, k -"),
    ("if (abs((int)i - 20) - 5 < 3) a[i] = 1;", "a u 64..112, b -, k -"),
    ("uchar c = 0; if ((c = 300) < 100) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uchar c = 255; if (++c < 100) a[i] = 1;", "a w 64..128, b -, k -"),
    ("uchar c = (uchar)k[i]; uchar d = c << 4; if (d < 100) a[c & 63] = 1;", "a u 0..256, b -, k r 64..128"),
    ("uchar u = (uchar)k[i]; char c = u; a[(c + 128) / 4] = 1;", "a u 0..256, b -, k r 64..128"),
    ("char c = (char)k[i]; if (c > -4 && c < 4) a[(c >> 1) + 8] = 1;", "a u 24..40, b -, k r 64..128"),
    ("bool f = 4; a[f ? 1 : 2] = 1; a[(bool)6 + 8] = 1;", "a w 4..8 36..40, b -, k -"),
    ("bool f = 256; if (f) a[i] = 1;", "a w 64..128, b -, k -"),
    ("a[convert_uchar_sat(300) & 63] = 1;", "a u 0..256, b -, k -"),
    (
        "int2 c = (int2)(1, 2) > 0; a[c.x + 5] = 1;",
        "a refused 4:29: an index that is not known before the kernel runs: a comparison of vectors at 4:23, b -, k -",
    ),
    ("a[i] = ((global float4 *)b)[i / 4].xz.x;", "a w 64..128, b r 64..116, k -"),
    ("((global float4 *)a)[i / 4].xz.y = 1;", "a u 72..76 88..92 104..108 120..124, b -, k -"),
    ("int2 v=(int2)(1,2); v.xy.x = 9; a[v.x]=1;", "a w 36..40, b -, k -"),
    ("int2 z = (int2)((uint)5, 16); if (z.x - z.y < 0) a[i] = 1;", "a w 64..128, b -, k -"),
    (
        "uint q = 0; for (uint j = 0; j < q - 0x20000000u; j += 0x10000000u) a[i] = 1;",
        "a w 64..128, b -, k -",
    ),
    // What is read beside what is written.
    ("for (int j = 0; j < 2; j++) a[j * 32 + i / 8] *= 2;", "a u 8..16 136..144, b -, k -"),
    // Tests as numbers.
    ("if ((i < 20) | (i > 24)) return; a[i] = 1;", "a w 80..100, b -, k -"),
    ("bool in = i > 20 && i < n; if (!in) return; a[i] = 1;", "a w 84..128, b -, k -"),
    ("int in = i > 20; a[i + in] = 1;", "a u 64..132, b -, k -"),
    // Names in inner scopes.
    ("int j = 1; { int j = 2; a[j] = 1; } a[j] = 1;", "a w 4..12, b -, k -"),
    ("for (int i = 0; i < 2; i++) a[i] = 1;", "a w 0..8, b -, k -"),
];

/// Returns the kernel `f` with a body of [`BODIES`].
pub(crate) fn kernel_of(body: &str) -> String {
    format!(
        "float twice(global const float *p, uint at) {{ return p[2 * at]; }}\n\
         kernel void f(global float *a, global float *b, global int *k, uint n) {{\n\
         uint i = get_global_id(0);\n{body}\n}}\n"
    )
}
