//! Kernels that mislead a reader: what is touched, or a refusal. Never less than what is touched.

use super::bodies::{BODIES, kernel_of};
use dml_analysis::{Access, Language, Launch, ParameterKind, Source};

/// What a package of items 16 to 31 of 64, in groups of 16, touches of buffers of 256 bytes. All integers are
/// 64.
fn touched(text: &str, language: Language) -> String {
    let source = Source::new(text, language, &[]);
    let analysis = match source.kernel("f") {
        Ok(analysis) => analysis,
        Err(refusal) => return format!("refused {refusal}"),
    };
    let integers = vec![vec![64; 2]; analysis.parameters().len()];
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

#[test]
fn bodies() {
    let mut wrong = Vec::new();
    for (body, expected) in BODIES {
        let found = touched(&kernel_of(body), Language::OpenCl);
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

/// Groups are whole, also the last one.
#[test]
fn the_global_size_is_that_of_whole_groups() {
    let text = "kernel void f(global float *a, global const float *b) {
        if (get_global_id(0) < 60) a[get_global_id(0)] = b[get_global_size(0) - 1 - get_global_id(0)];
    }";
    let analysis = Source::new(text, Language::OpenCl, &[]).kernel("f").expect("it is analysed");
    let launch = Launch { sizes: [60, 1, 1], group: [16, 1, 1], axis: 0, integers: Vec::new() };
    let part = analysis.launch(&launch).part(1, 0..16, 256).expect("a part");
    assert_eq!(part.bytes, [48 * 4..64 * 4]);
}

/// Sizes of types that are not those of C.
#[test]
fn attributes_of_types() {
    for (types, expected) in [
        ("struct __attribute__((packed)) S { char c; float x; };", "refused"),
        ("__attribute__((packed)) struct S { char c; float x; };", "refused"),
        ("struct S { char c; float x; } __attribute__((packed));", "refused"),
        ("struct S { char c; float x __attribute__((aligned(32))); };", "refused"),
        ("typedef float v4 __attribute__((ext_vector_type(4))); struct S { char c; v4 x; };", "refused"),
        ("#pragma pack(1)\nstruct S { char c; float x; };", "refused 1:1: a #pragma pack"),
        ("struct S { char c; float x; }; local float t[4] __attribute__((aligned(16)));", "a w 128..256"),
    ] {
        let text = format!(
            "{types}\nkernel __attribute__((reqd_work_group_size(16, 1, 1))) void f(global struct S *a) {{
            local float t[4] __attribute__((aligned(16)));
            a[get_global_id(0)].c = 1; a[get_global_id(0)].x = t[0]; }}"
        );
        let found = touched(&text, Language::OpenCl);
        assert!(
            found.starts_with(expected) || expected == "a w 128..256" && found.starts_with("a w 128"),
            "{types}: {found}"
        );
    }
}

/// An unsigned argument that no signed one holds makes sums wrap.
#[test]
fn large_unsigned_arguments() {
    let text = "kernel void f(global float *a, uint n, uint r) { a[(get_global_id(0) + r) % n] = 1; }";
    let analysis = Source::new(text, Language::OpenCl, &[]).kernel("f").expect("it is analysed");
    let part = |r: i128| {
        let integers = vec![vec![], vec![64], vec![r]];
        let launch = Launch { sizes: [64, 1, 1], group: [16, 1, 1], axis: 0, integers };
        analysis.launch(&launch).part(0, 16..32, 256).expect("a part").access
    };
    assert_eq!((part(3), part((1 << 32) - 6)), (Access::Updates, Access::Updates));
    let text =
        "kernel void f(global float *a, uint r) { uint j = get_global_id(0) + r; if (j < 64) a[j] = 1; }";
    let analysis = Source::new(text, Language::OpenCl, &[]).kernel("f").expect("it is analysed");
    let part = |r: i128| {
        let launch =
            Launch { sizes: [64, 1, 1], group: [16, 1, 1], axis: 0, integers: vec![vec![], vec![r]] };
        analysis.launch(&launch).part(0, 16..32, 256).expect("a part").bytes
    };
    assert_eq!((part(8), part((1 << 32) - 6)), (vec![96..160], vec![0..256]));
}

/// Structures whose fields are pointers, sizes and arrays.
#[test]
fn structures() {
    let types = "typedef struct { float4 data[4]; } Matrix;
        typedef struct { uint size; global float *data; } Volume;
        typedef struct { uint count; int2 size; } Sizes;
        float4 turned(Matrix m, float4 v) { return m.data[0] * v.x; }
        void put(Volume v, uint at, float value) { v.data[at] = value; }
        uint last(Volume v) { return v.size - 1; }\n";
    for (body, expected) in [
        ("Volume v; v.size = n; v.data = a; put(v, i, turned(m, vload4(0, b)).x);", "a w 64..128, b r 0..16"),
        ("Volume v = {n, a}; v.data[min(i, last(v))] = 1;", "a u 64..128"),
        ("Volume v; v.data = a; if (b[0] > 0) v.data = b; v.data[i] = 1;", "refused"),
        ("Volume v; v.data = a; for (uint j = 0; j < 2; j++) { v.data[i] = 1; v.data += 2; }", "a w 64..136"),
        ("Volume v, w; v.data = a; w = v; w.data[i] = 1;", "a w 64..128"),
        ("Volume v; v.data = a; Volume *p = &v; p->data = b; v.data[i] = 1;", "refused"),
        ("Volume v; v.size = i; a[v.size] = 1; v.size += 1; a[v.size] = 1;", "a w 64..132"),
        ("Matrix w = m; w.data[i & 3] = 1; a[i] = w.data[0].x;", "a w 64..128"),
        (
            "Sizes s; s.count = n; s.size = size; a[i + s.size.y - s.count] = 1; s.size.x = 3; a[s.size.x] = 1;",
            "a w 12..16 64..128",
        ),
        ("int at = (int)m.data[0].x; a[at] = 1;", "a refused"),
        ("if (i < size.x) a[i + size.y - 64] = 1;", "a w 64..128"),
    ] {
        let text = format!(
            "{types}kernel void f(global float *a, global float *b, Matrix m, uint n, int2 size) {{ uint i = get_global_id(0); {body} }}"
        );
        let found = touched(&text, Language::OpenCl);
        assert!(found.contains(expected), "{body}\n    found    {found}\n    expected {expected}");
    }
}

/// What the compiler defines is unknown.
#[test]
fn macros_of_the_compiler() {
    for (text, expected) in [
        (
            "#ifdef cl_khr_fp64\ntypedef double real;\n#else\ntypedef float real;\n#endif\n\
             kernel void f(global real *a) { a[get_global_id(0)] = 1; }",
            "refused 6:13: `defined(cl_khr_fp64)`, which the compiler or an included file decides",
        ),
        (
            "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n\
             kernel void f(global float *a) { a[get_global_id(0)] = 1; }",
            "a w 64..128",
        ),
        (
            "#ifndef cl_khr_fp64\n#error no doubles\n#endif\n\
             kernel void f(global double *a) { a[get_global_id(0)] = 1; }",
            "a w 128..256",
        ),
        (
            "#include \"sizes.h\"\n#ifndef N\n#define N 2\n#endif\n\
             kernel void f(global float *a) { a[N * get_global_id(0)] = 1; }",
            "refused",
        ),
    ] {
        let found = touched(text, Language::OpenCl);
        assert!(found.contains(expected), "{text}\n    found    {found}\n    expected {expected}");
    }
}
