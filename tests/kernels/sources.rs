use super::{opencl, run_on};
use dml::Kernel;
use dml::arenas::launch;
use std::fs;
use std::path::Path;

const SOURCE: &str = "#include \"factor.h\"
    kernel void scale(global uint *out, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) out[i] = FACTOR * i;
    }";

fn write_header(folder: &Path, factor: u32) {
    fs::write(folder.join("factor.h"), format!("#define FACTOR {factor}\n")).expect("a folder of ours");
}

/// Also by the header's own group functions, which count within the run.
#[test]
fn a_header_that_has_changed_is_compiled_again() {
    let Some((platform, device)) = opencl() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = platform.buffer::<u32>(100).build().unwrap();
    let options = format!("-I {}", folder.path().display());
    for factor in [2, 3, 2] {
        write_header(folder.path(), factor);
        // SAFETY: it writes the number of its work-item.
        let built = unsafe { launch::opencl(&platform, SOURCE, "scale", &options) }.expect("it compiles");
        let kernel = Kernel::new("scale", 8).write(&out).end().launchers(built).unwrap();
        run_on(&platform, device, &kernel, 100, 3);
        assert!(out.read().unwrap().iter().zip(0..).all(|(value, i)| *value == factor * i), "{factor}");
    }
}

#[test]
fn groups_in_a_header_are_those_of_the_whole_run() {
    let Some((platform, device)) = opencl() else { return };
    let folder = tempfile::tempdir().unwrap();
    let header = "#define FACTOR 1\n#define get_global_id(d) (get_group_id(d) * get_local_size(d) + get_local_id(d))\n";
    fs::write(folder.path().join("factor.h"), format!("#undef get_global_id\n{header}")).unwrap();
    let out = platform.buffer::<u32>(100).build().unwrap();
    let options = format!("-I {}", folder.path().display());
    // SAFETY: it writes the number of its work-item.
    let built = unsafe { launch::opencl(&platform, SOURCE, "scale", &options) }.expect("it compiles");
    let kernel = Kernel::new("scale", 8).write(&out).end().launchers(built).unwrap();
    run_on(&platform, device, &kernel, 100, 5);
    assert!(out.read().unwrap().iter().zip(0..).all(|(value, i)| *value == i));
}

/// In this process, and by a cache that outlives it.
#[cfg(feature = "cuda")]
#[test]
fn a_header_of_cuda_that_has_changed_is_compiled_again() {
    let Some((platform, device)) = super::cuda() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = "#include \"factor.h\"
        extern \"C\" __global__ void scale(unsigned *out, unsigned long long end) {
            unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < end) out[i] = FACTOR * i;
        }";
    let out = platform.buffer::<u32>(100).build().unwrap();
    let options = format!("-I{}", folder.path().display());
    for factor in [2, 3, 2] {
        write_header(folder.path(), factor);
        // SAFETY: it writes the number of its work-item.
        let built = unsafe { launch::cuda(&platform, source, "scale", &options) }.expect("it compiles");
        let kernel = Kernel::new("scale", 8).write(&out).end().launchers(built).unwrap();
        run_on(&platform, device, &kernel, 100, 3);
        assert!(out.read().unwrap().iter().zip(0..).all(|(value, i)| *value == factor * i), "{factor}");
    }
}

/// Three hundred callers took a hundred times as long as one.
#[test]
fn many_threads_that_build_one_source_have_kernels_of_their_own() {
    let Some((platform, device)) = opencl() else { return };
    let source = "kernel void scale(global uint *out, ulong end) { size_t i = get_global_id(0); if (i < end) out[i] = 5 * i; }";
    let build = || {
        // SAFETY: it writes the number of its work-item.
        unsafe { launch::opencl(&platform, source, "scale", "") }.expect("it compiles")
    };
    let built: Vec<_> = std::thread::scope(|scope| {
        let building: Vec<_> = (0..300).map(|_| scope.spawn(build)).collect();
        building.into_iter().map(|building| building.join().unwrap()).collect()
    });
    for built in built {
        let out = platform.buffer::<u32>(64).build().unwrap();
        let kernel = Kernel::new("scale", 8).write(&out).end().launchers(built).unwrap();
        run_on(&platform, device, &kernel, 64, 2);
        assert!(out.read().unwrap().iter().zip(0..).all(|(value, i)| *value == 5 * i));
    }
}

/// The source has no kernel `mad`, although it defines one.
#[test]
fn a_kernel_with_the_name_of_a_function_of_opencl_is_told_why_it_is_none() {
    let Some((platform, _)) = opencl() else { return };
    for name in ["mad", "step"] {
        let source = format!("kernel void {name} (global float *out) {{ out[get_global_id(0)] = 1; }}");
        // SAFETY: nothing is launched.
        let told = unsafe { launch::opencl(&platform, &source, name, "") }.map(drop);
        let Err(told) = told else { continue };
        assert!(told.to_string().contains("functions of OpenCL C"), "{told}");
    }
    let source = "kernel void plain(global float *out) { out[get_global_id(0)] = 1; }";
    // SAFETY: nothing is launched.
    let told = unsafe { launch::opencl(&platform, source, "plane", "") }.map(drop).unwrap_err().to_string();
    assert!(told.ends_with("the source has no such kernel (a kernel is `kernel void`)"), "{told}");
}
