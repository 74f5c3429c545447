use super::{opencl, platform_of, run_on};
use dml::Kernel;
use dml::arenas::launch;
use dml::core::Launcher;
use dml::prelude::*;

const SUM: &str = "kernel void sum(global const float *a, global const float *b, global float *out, global float *more, ulong nb, ulong end) {
    size_t i = get_global_id(0);
    if (i >= end) return;
    out[i] = a[i] + (i < nb ? b[i] : 0.5f);
    if (nb > 1000) more[i] = 1;
}";
#[cfg(feature = "cuda")]
const SUM_IN_CUDA: &str =
    "extern \"C\" __global__ void sum(const float *a, const float *b, float *out, float *more,
    unsigned long long nb, unsigned long long end, DmlItems items) {
    unsigned long long i = items.x();
    if (i >= end) return;
    out[i] = a[i] + (i < nb ? b[i] : 0.5f);
    if (nb > 1000) more[i] = 1;
}";

/// Sums of which one term has fewer elements, or none, and a buffer that has none at all. Later packages have
/// an empty part of the term.
fn arguments_without_bytes_are_passed<L: Launcher + 'static>(
    (platform, device): &(Platform, DeviceId),
    launchers: impl Fn() -> Vec<(DeviceId, L)>,
) {
    const ITEMS: u64 = 400;
    let a = platform.buffer_from((0..ITEMS).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    for elements in [0, 1, 64, 100] {
        let b = platform.buffer_from((0..elements).map(|i| 2.0 * i as f32).collect::<Vec<_>>()).unwrap();
        let out = platform.buffer::<f32>(ITEMS).build().unwrap();
        let more = platform.buffer::<f32>(0).build().unwrap();
        let part = Footprint::of(move |items| items.start.min(elements) * 4..items.end.min(elements) * 4);
        let nothing = || Footprint::of(|_| 0..0);
        let kernel = Kernel::new("sum", 32)
            .read(&a)
            .argument(Argument::part(&b, Access::ReadOnly, part))
            .write(&out)
            .argument(Argument::part(&more, Access::WriteInvalidate, nothing()))
            .scalar(elements)
            .end()
            .launchers(launchers())
            .unwrap();
        run_on(platform, *device, &kernel, ITEMS, 7);
        for (i, sum) in out.read().unwrap().iter().enumerate() {
            let other = if (i as u64) < elements { 2.0 * i as f32 } else { 0.5 };
            assert_eq!(*sum, i as f32 + other, "{elements} elements, {i}");
        }
    }
}

/// A reduction to no element.
const ADD: &str = "kernel void add(global const float *a, global float *out, global float *none, ulong end) {
    size_t i = get_global_id(0);
    if (i < end) out[i] = a[i] + 1;
}";

#[test]
fn an_argument_without_bytes_is_a_null_pointer_for_opencl() {
    let copied = DiscoverOptions::default().only(["opencl:0"]);
    let bound = DiscoverOptions::default().only(["opencl:0"]).sharing(Sharing::bound("opencl:0"));
    let svm = DiscoverOptions::default().only(["opencl:0"]).sharing(Sharing::fine_grained("opencl:0"));
    let shared = DiscoverOptions::default()
        .only(["opencl:0"])
        .sharing(Sharing::memory(["cpu", "opencl:0"]).bytes(1 << 20));
    let has_svm = Platform::builder().discover_with(&svm).is_ok();
    for options in [copied, bound, shared].into_iter().chain(has_svm.then_some(svm)) {
        let Some(found) = platform_of(&options, "opencl:0") else { return };
        // SAFETY: it reads and writes elements that there are.
        let launchers = || unsafe { launch::opencl(&found.0, SUM, "sum", "") }.expect("it compiles");
        arguments_without_bytes_are_passed(&found, launchers);
        let a = found.0.buffer_from((0..100).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let (out, none) =
            (found.0.buffer::<f32>(100).build().unwrap(), found.0.buffer::<f32>(0).build().unwrap());
        // SAFETY: as above.
        let built = unsafe { launch::opencl(&found.0, ADD, "add", "") }.expect("it compiles");
        let kernel = Kernel::new("add", 8).read(&a).write(&out).reduce(&none, 0.0, |a, b| a + b).end();
        run_on(&found.0, found.1, &kernel.launchers(built).unwrap(), 100, 5);
        assert!(out.read().unwrap().iter().zip(0..).all(|(value, i)| *value == i as f32 + 1.0));
    }
}

#[cfg(feature = "cuda")]
#[test]
fn an_argument_without_bytes_is_a_null_pointer_for_cuda() {
    let in_place =
        DiscoverOptions::default().only(["cuda:0"]).sharing(Sharing::page_locked(1 << 28).bind("cuda:0"));
    for options in [DiscoverOptions::default().only(["cuda:0"]), in_place] {
        let Some(found) = platform_of(&options, "cuda:0") else { return };
        // SAFETY: it reads and writes elements that there are.
        let launchers = || unsafe { launch::cuda(&found.0, SUM_IN_CUDA, "sum", "") }.expect("it compiles");
        arguments_without_bytes_are_passed(&found, launchers);
    }
}

/// The command's function `vecadd` is given the parts that there are.
#[test]
#[cfg(all(feature = "command", feature = "offload", target_os = "linux"))]
fn a_worker_is_given_an_empty_view_for_an_argument_without_bytes() {
    let worker = || {
        let options = DiscoverOptions::default().only(["offload:0"]).offload(1);
        options.offload(Workers::default().program(env!("CARGO_BIN_EXE_dml")).memory(64 << 20))
    };
    for options in [worker(), worker().sharing(Sharing::memory(["cpu", "offload:0"]).bytes(1 << 20))] {
        let (platform, device) = platform_of(&options, "offload:0").expect("every machine has a worker");
        let empty = || platform.buffer::<f32>(0).build().unwrap();
        let (a, b, sum) = (empty(), empty(), empty());
        // SAFETY: the scheduler keeps the grants until a run has ended, and the command's functions are safe
        // Rust.
        let launchers = unsafe { launch::offload(&platform, "vecadd") }.unwrap();
        let nothing = || Footprint::of(|_| 0..0);
        let argument = |buffer, access| Argument::part(buffer, access, nothing());
        let kernel = Kernel::new("vecadd", 8)
            .argument(argument(&a, Access::ReadOnly))
            .argument(argument(&b, Access::ReadOnly))
            .argument(argument(&sum, Access::WriteInvalidate))
            .launchers(launchers)
            .unwrap();
        let run = Coexecutor::new(&platform)
            .devices([device])
            .policy("dynamic:3".parse().unwrap())
            .run(&kernel, 64);
        // The function is called, and says itself what it does not like.
        let told = run.unwrap_err().to_string();
        assert!(told.contains("vecadd") && !told.contains("no storage"), "{told}");
    }
}

/// Says what is wrong with one argument of a kernel of so many.
fn misfit(platform: &Platform, source: &str, name: &str, kernel: Kernel) -> Result<Kernel, String> {
    // SAFETY: where it is launched, it stays within its buffers.
    let built = unsafe { launch::opencl(platform, source, name, "") }.expect("it compiles");
    kernel.launchers(built).map_err(|misfit| misfit.to_string())
}

/// The driver died of a sampler that is a number, and looked at a buffer as at an image.
#[test]
fn images_and_samplers_are_no_arguments() {
    let Some((platform, _)) = opencl() else { return };
    let out = platform.buffer::<f32>(64).build().unwrap();
    for (types, image, sampler) in [
        ("", "read_only image2d_t", "sampler_t"),
        ("typedef image2d_t picture; typedef sampler_t how;", "picture", "how"),
    ] {
        let look = format!(
            "{types} kernel void look(global float *out, {image} in, {sampler} how) {{
                out[get_global_id(0)] = read_imagef(in, how, (float2)(0, 0)).x;
            }}"
        );
        let kernel = Kernel::new("look", 8).write(&out).read_all(&out).scalar(0_u64);
        let said = format!(
            "argument 1 of kernel look on opencl:0 is {} (an image, a sampler or another object), which no launch can pass, \
             and was given a buffer",
            image.trim_start_matches("read_only ")
        );
        assert_eq!(misfit(&platform, &look, "look", kernel).map(drop).unwrap_err(), said);
        let sample = format!(
            "{types} kernel void look(global float *out, {sampler} how) {{ out[get_global_id(0)] = 1; }}"
        );
        let kernel = || Kernel::new("look", 8).write(&out);
        for kernel in [kernel().scalar(0_u64), kernel().scalar(0_u32), kernel().value(&[0_u8; 8])] {
            let told = misfit(&platform, &sample, "look", kernel).map(drop).unwrap_err();
            let said = format!("argument 1 of kernel look on opencl:0 is {sampler} (an image");
            assert!(told.starts_with(&said), "{told}");
        }
    }
}

/// The driver died of more than there is.
#[test]
fn local_memory_is_as_large_as_the_device_has_it() {
    const SOURCE: &str = "kernel void keep(global uint *out, local uint *one, local uint *two, ulong end) {
        if (get_global_id(0) < end) out[get_global_id(0)] = 7;
    }";
    let Some((platform, device)) = opencl() else { return };
    let out = platform.buffer::<u32>(64).build().unwrap();
    let kernel = |one, two| Kernel::new("keep", 8).write(&out).local_memory(one).local_memory(two).end();
    run_on(&platform, device, &misfit(&platform, SOURCE, "keep", kernel(64, 128)).unwrap(), 64, 3);
    for (one, two, index) in
        [(64, 1 << 40, 2), (1 << 40, 64, 1), (u64::MAX, u64::MAX, 1), (0, 64, 1), (64, 0, 2)]
    {
        let told = misfit(&platform, SOURCE, "keep", kernel(one, two)).map(drop).unwrap_err();
        let said = format!("argument {index} of kernel keep on opencl:0 is local memory, of 1 to ");
        assert!(told.starts_with(&said), "{told}");
    }
}

#[test]
fn types_that_the_source_names_have_their_sizes() {
    const SOURCE: &str = "
        typedef float real;
        typedef struct { float x, y; int z; } point;
        struct pair { real a; real b; };
        typedef uint4 words;
        enum mode { slow, fast };
        typedef unsigned long big;
        kernel void add(real r, point p, struct pair q, words w, enum mode m, big b, global double *out, ulong end) {
            size_t i = get_global_id(0);
            if (i < end) out[i] = r + p.x + p.y + p.z + q.a + q.b + w.w + (m == fast ? 100 : 0) + b + i;
        }";
    let Some((platform, device)) = opencl() else { return };
    let out = platform.buffer::<f64>(100).build().unwrap();
    let kernel = |wrong: usize| {
        let kernel = Kernel::new("add", 8);
        let kernel = match wrong {
            0 => kernel.scalar(1_u32),
            10 => kernel.scalar(1.0_f64),
            20 => kernel.value(&[0_u8; 8]),
            _ => kernel.scalar(0.5_f32),
        };
        let kernel = match wrong {
            1 => kernel.value(&[0_u8; 7]),
            11 => kernel.scalar(1.0_f32),
            _ => kernel.value(&[1.0_f32.to_bits(), 2.0_f32.to_bits(), 3]),
        };
        let kernel = if wrong == 2 { kernel.value(&[0.0_f32; 3]) } else { kernel.value(&[4.0_f32, 5.0]) };
        let kernel = if wrong == 3 { kernel.value(&[0_u32; 3]) } else { kernel.value(&[0_u32, 0, 0, 6]) };
        let kernel = if wrong == 4 { kernel.scalar(1_u64) } else { kernel.scalar(1_u32) };
        let kernel = if wrong == 5 { kernel.scalar(7_i64) } else { kernel.scalar(7_u64) };
        kernel.write(&out).end()
    };
    let right = misfit(&platform, SOURCE, "add", kernel(99)).unwrap();
    run_on(&platform, device, &right, 100, 3);
    assert!(out.read().unwrap().iter().zip(0..).all(|(value, i)| *value == 128.5 + i as f64));
    for (wrong, index, takes, given) in [
        (0, 0, "real (float)", "uint"),
        (10, 0, "real (float)", "double"),
        (20, 0, "real (float)", "a value of 8 bytes"),
        (1, 1, "point of 12 bytes", "a value of 7 bytes"),
        (11, 1, "point of 12 bytes", "float"),
        (2, 2, "struct pair of 8 bytes", "a value of 12 bytes"),
        (3, 3, "words of 16 bytes", "a value of 12 bytes"),
        (4, 4, "enum mode (uint)", "ulong"),
        (5, 5, "big (ulong)", "long"),
    ] {
        let told = misfit(&platform, SOURCE, "add", kernel(wrong)).map(drop).unwrap_err();
        assert_eq!(
            told,
            format!("argument {index} of kernel add on opencl:0 is {takes}, and was given {given}")
        );
    }
}
