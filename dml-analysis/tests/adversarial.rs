//! Kernels that mislead a reader: what is touched, or a refusal. Never less than what is touched.

use dml_analysis::{Access, Language, Launch, ParameterKind, Source};

/// What a package of items 16 to 31 of 64, in groups of 16, touches of buffers of 256 bytes. All integers are
/// 64.
fn touched(text: &str, language: Language) -> String {
    let source = Source::new(text, language, &[]);
    let analysis = match source.kernel("f") {
        Ok(analysis) => analysis,
        Err(refusal) => return format!("refused {refusal}"),
    };
    let integers = vec![Some(64); analysis.parameters().len()];
    let launch = Launch { sizes: [64, 1, 1], group: [16, 1, 1], axis: 0, integers };
    let launched = analysis.launch(&launch);
    let buffers = analysis.parameters().iter().enumerate();
    let buffers = buffers.filter(|(_, of)| matches!(of.kind, ParameterKind::Buffer { .. }));
    let part = |(position, of): (usize, &dml_analysis::Parameter)| match launched.part(position, 16..32, 256)
    {
        Err(refusal) => format!("{} refused {refusal}", of.name),
        Ok(part) => {
            let how = match part.access {
                Access::None => return format!("{} -", of.name),
                Access::Reads => "r",
                Access::Overwrites => "w",
                Access::Updates => "u",
            };
            let ranges: Vec<_> =
                part.bytes.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
            format!("{} {how} {}", of.name, ranges.join(" "))
        }
    };
    buffers.map(part).collect::<Vec<_>>().join(", ")
}

/// The body of a kernel of two buffers of floats and one of integers, and what it touches.
const BODIES: &[(&str, &str)] = &[
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
    ("switch (i) { case 1: a[i] = 1; }", "refused"),
    ("a[i] = b[i] ; goto end; end: return;", "refused"),
    ("a[WHO] = 1;", "a refused"),
    // Names in inner scopes.
    ("int j = 1; { int j = 2; a[j] = 1; } a[j] = 1;", "a w 4..12, b -, k -"),
    ("for (int i = 0; i < 2; i++) a[i] = 1;", "a w 0..8, b -, k -"),
];

#[test]
fn bodies() {
    let mut wrong = Vec::new();
    for (body, expected) in BODIES {
        let text = format!(
            "float twice(global const float *p, uint at) {{ return p[2 * at]; }}\n\
             kernel void f(global float *a, global float *b, global int *k, uint n) {{\n\
             uint i = get_global_id(0);\n{body}\n}}\n"
        );
        let found = touched(&text, Language::OpenCl);
        if !found.contains(expected) || expected.is_empty() {
            wrong.push(format!("{body}\n    found    {found}\n    expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn cuda() {
    for (text, expected) in [
        (
            "__global__ void f(float *a, const float *__restrict__ b, int n) {\n\
             int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] = __ldg(&b[i]); }",
            "a w 64..128, b r 64..128",
        ),
        (
            "extern \"C\" __global__ void __launch_bounds__(16) f(float3 *a, DmlItems items) {\n\
             float3 v = make_float3(1, 2, 3); a[items.x()].y = v.x; }",
            "a u 196..200 208..212",
        ),
        (
            "struct Pair { char first; double second; };\n\
             __global__ void f(Pair *p) { p[blockIdx.x].second = 1; }",
            "p w 24..32",
        ),
        ("template <typename T> __global__ void f(T *a) { a[0] = 1; }", "refused"),
        ("__global__ void f(float *a) { auto g = [=](int i) { return i; }; a[g(1)] = 1; }", "refused"),
        ("__device__ int next; __global__ void f(float *a) { a[next] = 1; }", "a refused"),
        (
            "__device__ void swap(int &x, int &y) { int t = x; x = y; y = t; }\n\
          __global__ void f(float *a) { int i = 1, j = 2; swap(i, j); a[i] = 1; }",
            "a refused",
        ),
    ] {
        let found = touched(text, Language::Cuda);
        assert!(found.contains(expected), "{text}\n    found    {found}\n    expected {expected}");
    }
}
