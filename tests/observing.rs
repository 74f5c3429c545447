//! Footprints of kernels without a source: functions of the host and of workers, and compiled kernels.

#[cfg(any(not(target_os = "linux"), dml_loom))]
fn main() {}

#[cfg(all(target_os = "linux", not(dml_loom)))]
fn main() {
    use libtest_mimic::{Arguments, Trial};

    // In a worker this does not return.
    dml::arenas::offload::hook(tests::registry());
    let test = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let tests = vec![
        test("functions_of_the_host_are_observed", tests::functions_of_the_host_are_observed),
        test("functions_of_workers_are_observed", tests::functions_of_workers_are_observed),
        test("what_no_line_describes_is_unknown", tests::what_no_line_describes_is_unknown),
        test("compiled_kernels_are_observed", tests::compiled_kernels_are_observed),
        test("observed_footprints_are_right", tests::observed_footprints_are_right),
        #[cfg(feature = "cuda")]
        test("cuda_kernels_without_source_are_observed", tests::cuda_kernels_without_source_are_observed),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

#[cfg(all(target_os = "linux", not(dml_loom)))]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is tested")]
mod tests {
    use dml::Kernel;
    use dml::arenas::launch::{self, Call, ComputeError};
    use dml::prelude::*;
    use dml::scheduler::{Observation, ObservedPart, check_footprints, observe_footprints};

    const ITEMS: u64 = 120;
    const WIDTH: u64 = 10;

    type Function = fn(&mut Call<'_>) -> Result<(), ComputeError>;

    pub(super) fn registry() -> Registry {
        let registry = FUNCTIONS
            .iter()
            .fold(Registry::new(), |registry, (name, function, ..)| registry.with(*name, *function));
        registry.with("scattered", scattered)
    }

    /// Elements by their numbers in the whole buffers: `out[item]` becomes what `of` says of the input.
    fn each(call: &mut Call<'_>, of: impl Fn(&dyn Fn(u64) -> u32, u64) -> u32) -> Result<(), ComputeError> {
        let items = call.items();
        let [input, out] = call.parts([0, 1])?;
        let (input, mut out) = (input.elements::<u32>()?, out.elements_mut::<u32>()?);
        let at = |index: u64| *input.get(index).unwrap_or(&0);
        for item in items {
            out[item] = of(&at, item);
        }
        Ok(())
    }

    fn scale(call: &mut Call<'_>) -> Result<(), ComputeError> {
        each(call, |at, item| at(item).wrapping_mul(3))
    }

    fn blur(call: &mut Call<'_>) -> Result<(), ComputeError> {
        each(call, |at, item| at(item.wrapping_sub(1)).wrapping_add(at(item)).wrapping_add(at(item + 1)))
    }

    fn rows(call: &mut Call<'_>) -> Result<(), ComputeError> {
        each(call, |at, item| {
            (item * WIDTH..(item + 1) * WIDTH)
                .fold(7_u32, |sum, index| sum.wrapping_mul(31).wrapping_add(at(index)))
        })
    }

    fn ahead(call: &mut Call<'_>) -> Result<(), ComputeError> {
        each(call, |at, item| at(2 * item + 3) ^ at(2 * item + 4))
    }

    fn sum(call: &mut Call<'_>) -> Result<(), ComputeError> {
        each(call, |at, item| {
            (0..ITEMS * WIDTH).fold(item as u32, |sum, index| sum.wrapping_mul(31).wrapping_add(at(index)))
        })
    }

    fn scattered(call: &mut Call<'_>) -> Result<(), ComputeError> {
        each(call, |at, item| at(item * item % (ITEMS * WIDTH)))
    }

    fn scatter_of(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let items = call.items();
        let [input, out] = call.parts([0, 1])?;
        let (input, mut out) = (input.elements::<u32>()?, out.elements_mut::<u32>()?);
        for item in items {
            out[item * item % ITEMS] = input[item];
        }
        Ok(())
    }

    const fn part(per_item: u64, before: i64, after: i64) -> ObservedPart {
        ObservedPart::per_item(per_item, before, after)
    }

    /// Functions, with what they read; each writes an element per item.
    #[allow(clippy::type_complexity, reason = "a table")]
    const FUNCTIONS: &[(&str, Function, fn() -> ObservedPart)] = &[
        ("scale", scale, || part(4, 0, 0)),
        ("blur", blur, || part(4, 4, 4)),
        ("rows", rows, || part(4 * WIDTH, 0, 0)),
        ("ahead", ahead, || part(8, -12, 12)),
        ("sum", sum, || ObservedPart::Fixed(0..4 * ITEMS * WIDTH)),
    ];

    fn platform() -> Platform {
        let options = DiscoverOptions::default().only(["cpu", "offload:0"]).limit("cpu", 1).offload(1);
        Platform::builder().discover_with(&options).unwrap().build().unwrap()
    }

    fn buffers(platform: &Platform) -> (Buffer<u32>, Buffer<u32>) {
        let values = (0..(ITEMS * WIDTH) as u32).map(|index| index.wrapping_mul(2_654_435_761) >> 7);
        (
            platform.buffer_from(values.collect::<Vec<_>>()).unwrap(),
            platform.buffer::<u32>(ITEMS).build().unwrap(),
        )
    }

    fn kernel(name: &str, (input, out): (&Buffer<u32>, &Buffer<u32>)) -> Kernel {
        Kernel::new(name, 1).read_all(input).read_write_all(out)
    }

    fn observed(on_host: bool) {
        let platform = platform();
        let (input, out) = buffers(&platform);
        for (name, function, reads) in FUNCTIONS {
            let kernel = kernel(name, (&input, &out));
            let (kernel, device) = if on_host {
                (kernel.launchers(launch::host(&platform, *function).unwrap()).unwrap(), DeviceId(0))
            } else {
                // SAFETY: the function is safe Rust, and the check keeps the grants.
                let workers = unsafe { launch::offload(&platform, name) }.unwrap();
                (kernel.launchers(workers).unwrap(), DeviceId(1))
            };
            let seen = observe_footprints(&platform, &kernel, ITEMS, device).unwrap();
            assert_eq!(seen[0].reads, Some(Observation::Part(reads())), "{name}");
            assert_eq!(seen[0].writes, None, "{name}");
            assert_eq!(
                (&seen[1].reads, &seen[1].writes),
                (&None, &Some(Observation::Part(part(4, 0, 0)))),
                "{name}"
            );
        }
    }

    pub(super) fn functions_of_the_host_are_observed() {
        observed(true);
    }

    pub(super) fn functions_of_workers_are_observed() {
        observed(false);
    }

    /// The same functions for a GPU, in its assembly language.
    #[cfg(feature = "cuda")]
    fn ptx() -> String {
        // An element of the input at index %rd5, or 0 beyond its end.
        const AT: &str = "
            mov.u32 %r2, 0;
            setp.lt.u64 %p1, %rd5, 1200;
            mad.lo.u64 %rd6, %rd5, 4, %rd1;
            @%p1 ld.global.u32 %r2, [%rd6];";
        let at = |index: &str| format!("{index}{AT}");
        // From index %rd5 up to %rd7.
        let turns = format!(
            "turn:{AT}
            mad.lo.u32 %r1, %r1, 31, %r2;
            add.u64 %rd5, %rd5, 1;
            setp.lt.u64 %p2, %rd5, %rd7;
            @%p2 bra turn;"
        );
        let [before, own, behind] =
            [-1, 0, 1].map(|by| at(&format!("add.s64 %rd5, %rd3, {by};")) + "add.u32 %r1, %r1, %r2;");
        let bodies = [
            ("scale", at("mov.u64 %rd5, %rd3;") + "mul.lo.u32 %r1, %r2, 3;"),
            ("blur", format!("mov.u32 %r1, 0;{before}{own}{behind}")),
            (
                "rows",
                format!(
                    "mov.u32 %r1, 7; mul.lo.u64 %rd5, %rd3, {WIDTH}; add.u64 %rd7, %rd5, {WIDTH};{turns}"
                ),
            ),
            (
                "ahead",
                at("mul.lo.u64 %rd5, %rd3, 2; add.u64 %rd5, %rd5, 3;")
                    + "mov.u32 %r1, %r2;"
                    + &at("add.u64 %rd5, %rd5, 1;")
                    + "xor.b32 %r1, %r1, %r2;",
            ),
            ("sum", format!("cvt.u32.u64 %r1, %rd3; mov.u64 %rd5, 0; mov.u64 %rd7, 1200;{turns}")),
            ("scattered", at("mul.lo.u64 %rd5, %rd3, %rd3; rem.u64 %rd5, %rd5, 1200;") + "mov.u32 %r1, %r2;"),
        ];
        let entries = bodies.map(|(name, body)| {
            format!(
                ".visible .entry {name}(.param .u64 input, .param .u64 out, .param .align 8 .b8 items[48])
            {{
            .reg .pred %p<4>;
            .reg .b32 %r<8>;
            .reg .b64 %rd<10>;
            ld.param.u64 %rd1, [input];
            ld.param.u64 %rd2, [out];
            cvta.to.global.u64 %rd1, %rd1;
            cvta.to.global.u64 %rd2, %rd2;
            ld.param.u64 %rd3, [items];
            ld.param.u64 %rd4, [items+24];
            mov.u32 %r1, %ctaid.x;
            mov.u32 %r2, %ntid.x;
            mov.u32 %r3, %tid.x;
            mad.lo.u32 %r1, %r1, %r2, %r3;
            cvt.u64.u32 %rd5, %r1;
            add.u64 %rd3, %rd3, %rd5;
            setp.ge.u64 %p3, %rd3, %rd4;
            @%p3 ret;
            {body}
            mad.lo.u64 %rd6, %rd3, 4, %rd2;
            st.global.u32 [%rd6], %r1;
            ret;
            }}\n"
            )
        });
        format!(".version 6.0\n.target sm_50\n.address_size 64\n{}", entries.concat())
    }

    #[cfg(feature = "cuda")]
    pub(super) fn cuda_kernels_without_source_are_observed() {
        let Ok(builder) = Platform::builder().discover_with(&DiscoverOptions::default().only(["cuda:0"]))
        else {
            assert!(!std::env::var("DML_EXPECT").unwrap_or_default().contains("cuda"), "no GPU");
            eprintln!("skipped: no GPU");
            return;
        };
        let platform = builder.build().unwrap();
        let device = platform.device("cuda:0").unwrap();
        let ((input, out), ptx) = (buffers(&platform), ptx());
        let observed = |name: &str| {
            // SAFETY: the kernels stay within buffers of these sizes.
            let launchers = unsafe { launch::cuda(&platform, &ptx, name, "") }.unwrap();
            let started = std::time::Instant::now();
            let kernel = kernel(name, (&input, &out)).launchers(launchers).unwrap();
            let seen = observe_footprints(&platform, &kernel, ITEMS, device).unwrap();
            eprintln!("{name}: {:?}", started.elapsed());
            kernel.observed(&platform, ITEMS, device).unwrap();
            seen
        };
        for (name, _, reads) in FUNCTIONS {
            let seen = observed(name);
            assert_eq!(seen[0].reads, Some(Observation::Part(reads())), "{name}");
            assert_eq!(seen[1].writes, Some(Observation::Part(part(4, 0, 0))), "{name}");
            assert!(seen[1].overwrites && seen[0].writes.is_none(), "{name}");
        }
        let seen = observed("scattered");
        assert!(matches!(&seen[0].reads, Some(Observation::Unknown { .. })), "{seen:?}");
    }

    pub(super) fn what_no_line_describes_is_unknown() {
        let platform = platform();
        let (input, out) = buffers(&platform);
        let kernel = kernel("scattered", (&input, &out));
        let kernel = kernel.launchers(launch::host(&platform, scattered).unwrap()).unwrap();
        let seen = observe_footprints(&platform, &kernel, ITEMS, DeviceId(0)).unwrap();
        let Some(Observation::Unknown { .. }) = &seen[0].reads else { panic!("{:?}", seen[0].reads) };
        let said = seen[0].reads.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(said.starts_with("no part that grows with the items, such as bytes "), "{said}");
    }

    const SOURCE: &str = "
        kernel void stencil(global const float *from, global float *to, uint columns, uint rows, ulong end) {
            uint x = get_global_id(0), y = get_global_id(1), i = y * columns + x;
            if (x >= columns || y >= end) return;
            to[i] = x == 0 || y == 0 || x == columns - 1 || y == rows - 1
                ? from[i] : from[i - columns] + 2 * from[i - 1] + 3 * from[i + 1] + 5 * from[i + columns];
        }
        kernel void gather(global const uint *index, global const float *table, global float *out, ulong end) {
            size_t i = get_global_id(0);
            if (i < end) out[i] = table[index[i]];
        }
        kernel void add(global float *a, float by, ulong end) { if (get_global_id(0) < end) a[get_global_id(0)] += by; }
        kernel void late(global const float *a, global float *out, ulong end) {
            size_t i = get_global_id(0);
            if (i < end && a[i] > 3) out[i] = a[i];
        }";

    pub(super) fn compiled_kernels_are_observed() {
        let Ok(builder) = Platform::builder().discover_with(&DiscoverOptions::default().only(["opencl:0"]))
        else {
            assert!(!std::env::var("DML_EXPECT").unwrap_or_default().contains("opencl"), "no OpenCL device");
            eprintln!("skipped: no OpenCL device");
            return;
        };
        let platform = builder.build().unwrap();
        let device = platform.device("opencl:0").unwrap();
        let built = |kernel: Kernel, name: &str| {
            // SAFETY: the kernels stay within whole buffers of these sizes, wherever their elements stand.
            kernel.launchers(unsafe { launch::opencl(&platform, SOURCE, name, "") }.unwrap()).unwrap()
        };
        let floats = |count: u64| {
            platform
                .buffer_from((0..count).map(|i| (i * i % 97) as f32 + i as f32 / 64.0).collect::<Vec<_>>())
                .unwrap()
        };
        let observe = |kernel: &Kernel, items| {
            let seen = observe_footprints(&platform, kernel, items, device).unwrap();
            let known = |seen: Option<Observation>| {
                seen.map(|seen| match seen {
                    Observation::Part(part) => Ok(part),
                    unknown => Err(unknown.to_string()),
                })
            };
            seen.into_iter().map(|seen| (known(seen.reads), known(seen.writes))).collect::<Vec<_>>()
        };
        let (columns, rows) = (48_u32, 40_u32);
        let (from, to) = (floats(48 * 40), floats(48 * 40));
        let stencil = Kernel::new("stencil", 4).rows(columns.into(), 16).read_all(&from).read_write_all(&to);
        let stencil = built(stencil.scalar(columns).scalar(rows).end(), "stencil");
        let row = 48 * 4;
        // The corners of the border are not read.
        let around = observe(&stencil, rows.into());
        assert_eq!(around[0], (Some(Ok(part(row, 188, 188))), None));
        assert_eq!(around[1], (None, Some(Ok(part(row, 0, 0)))));

        let index = platform.buffer_from((0..200_u32).map(|i| i * 37 % 200).collect::<Vec<_>>()).unwrap();
        let (table, out) = (floats(200), floats(200));
        let gather = Kernel::new("gather", 8).read_all(&index).read_all(&table).read_write_all(&out).end();
        let seen = observe(&built(gather, "gather"), 200);
        assert_eq!(seen[0], (Some(Ok(part(4, 0, 0))), None));
        assert!(matches!(&seen[1], (Some(Err(_)), None)), "{seen:?}");
        assert_eq!(seen[2], (None, Some(Ok(part(4, 0, 0)))));

        let add = Kernel::new("add", 8).read_write_all(&floats(200)).scalar(0.5_f32).end();
        assert_eq!(observe(&built(add, "add"), 200)[0], (Some(Ok(part(4, 0, 0))), Some(Ok(part(4, 0, 0)))));
    }

    pub(super) fn observed_footprints_are_right() {
        let platform = platform();
        let (input, out) = buffers(&platform);
        for (name, function, reads) in FUNCTIONS {
            let kernel = kernel(name, (&input, &out));
            let kernel = kernel.launchers(launch::host(&platform, *function).unwrap()).unwrap();
            let kernel = kernel.observed(&platform, ITEMS, DeviceId(0)).unwrap();
            let [read, written] = kernel.arguments() else { panic!("two arguments") };
            assert_eq!(
                (read.access(), written.access()),
                (Access::ReadOnly, Access::WriteInvalidate),
                "{name}"
            );
            let read_part = reads().ranges(&(16..24), input.raw().len());
            assert_eq!(
                (read.ranges(16..24), written.ranges(16..24)),
                (Ok(read_part), Ok(vec![64..96])),
                "{name}"
            );
            assert_eq!(
                check_footprints(&platform, &kernel, ITEMS, DeviceId(0)).unwrap().unseen_reads,
                [0; 0]
            );
        }
        // A gather may read everything.
        let gather = kernel("scattered", (&input, &out));
        let gather = gather.launchers(launch::host(&platform, scattered).unwrap()).unwrap();
        let gather = gather.observed(&platform, ITEMS, DeviceId(0)).unwrap();
        assert_eq!(gather.arguments()[0].ranges(16..24), Ok(vec![0..input.raw().len()]));
        // Where packages write is not understood.
        let scatter = kernel("scatter", (&input, &out));
        let scatter = scatter.launchers(launch::host(&platform, scatter_of).unwrap()).unwrap();
        let unknown = scatter.observed(&platform, ITEMS, DeviceId(0)).unwrap_err().to_string();
        let expected = "observed: reads nothing; writes no part that grows with the items, such as bytes ";
        assert!(unknown.contains("kernel scatter, argument 1 (") && unknown.contains(expected), "{unknown}");
    }
}
