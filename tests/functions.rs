//! Kernels that are functions: the same one on the host and in workers.

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
        test("one_function_serves_host_and_workers", tests::one_function_serves_host_and_workers),
        test(
            "elements_have_their_indices_in_every_package",
            tests::elements_have_their_indices_in_every_package,
        ),
        test("errors_name_arguments_by_position", tests::errors_name_arguments_by_position),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

#[cfg(all(target_os = "linux", not(dml_loom)))]
mod tests {
    use dml::Kernel;
    use dml::arenas::launch::{self, Call, ComputeError};
    use dml::prelude::*;
    use dml::scheduler::RunError;

    const ITEMS: u64 = 1000;

    type Function = fn(&mut Call<'_>) -> Result<(), ComputeError>;

    pub(super) fn registry() -> Registry {
        Registry::new().with("mixed", mixed).with("halo", halo).with("columns", columns).with("wrong", wrong)
    }

    fn platform() -> Platform {
        let options = DiscoverOptions::default().only(["cpu", "offload:0"]).limit("cpu", 1).offload(1);
        Platform::builder().discover_with(&options).unwrap().build().unwrap()
    }

    /// Gives a kernel to both devices, and runs it in packages of ten items.
    fn run(
        platform: &Platform,
        kernel: Kernel,
        function: (&str, Function),
        items: u64,
    ) -> Result<(), RunError> {
        let kernel = kernel.launchers(launch::host(platform, function.1).unwrap()).unwrap();
        // SAFETY: the function is safe Rust, and the scheduler keeps the grants.
        let workers = unsafe { launch::offload(platform, function.0) }.unwrap();
        let kernel = kernel.launchers(workers).unwrap();
        for device in [vec![0, 1], vec![0], vec![1]] {
            let devices: Vec<_> = device.into_iter().map(DeviceId).collect();
            let coexecutor =
                Coexecutor::new(platform).devices(devices).policy("dynamic:100".parse().unwrap());
            coexecutor.run(&kernel, items)?;
        }
        Ok(())
    }

    /// A structure of the application's, with integers of both signs.
    type Affine = [i32; 2];

    fn mixed(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (shift, [factor, sign]) = (call.scalar::<i64>(1)?, call.value::<Affine>(3)?);
        let (small, items) = (call.scalar::<i32>(4)?, call.items());
        let [input, out] = call.parts([0, 5])?;
        let pairs = out.slice_mut::<i64>()?.iter_mut().zip(input.slice::<i32>()?).zip(items);
        for ((out, input), item) in pairs {
            *out = i64::from(sign * factor * input + small) + shift + item as i64;
        }
        Ok(())
    }

    pub(super) fn one_function_serves_host_and_workers() {
        let platform = platform();
        let input = platform.buffer_from((0..ITEMS as i32).map(|i| i - 500).collect::<Vec<_>>()).unwrap();
        let out = platform.buffer::<i64>(ITEMS).build().unwrap();
        let kernel = Kernel::new("mixed", 1).read(&input).scalar(-(1_i64 << 40)).local_memory(64);
        let kernel = kernel.value::<Affine>(&[7, -1]).scalar(-3_i32).write(&out);
        run(&platform, kernel, ("mixed", mixed), ITEMS).unwrap();
        let expected = (0..ITEMS as i64).map(|i| -7 * (i - 500) - 3 - (1 << 40) + i);
        assert!(out.read().unwrap().iter().copied().eq(expected));
    }

    /// No regard to the first and the last package, whose parts have no items beyond the walls.
    fn halo(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let items = call.items();
        let [input, out] = call.parts([0, 1])?;
        let (input, mut out) = (input.elements::<u32>()?, out.elements_mut::<u32>()?);
        for item in items {
            let left = item.checked_sub(1).and_then(|left| input.get(left)).unwrap_or(&0);
            out[item] = left + 10 * input[item] + 100 * input.get(item + 1).unwrap_or(&0);
        }
        Ok(())
    }

    /// Each item is a column, and has an element in each of three rows.
    fn columns(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (items, width) = (call.items(), call.scalar::<u64>(0)?);
        let mut matrix = call.part(1)?.elements_mut::<u32>()?;
        for (column, row) in items.flat_map(|column| (0..3).map(move |row| (column, row))) {
            let at = row * width + column;
            matrix[at] = matrix[at] * 2 + at as u32;
        }
        Ok(())
    }

    pub(super) fn elements_have_their_indices_in_every_package() {
        let platform = platform();
        let input = platform.buffer_from((0..ITEMS as u32).map(|i| i * i % 7).collect::<Vec<_>>()).unwrap();
        let out = platform.buffer::<u32>(ITEMS).build().unwrap();
        let around = Argument::part(&input, Access::ReadOnly, Footprint::neighbourhood(4, 1));
        run(&platform, Kernel::new("halo", 1).argument(around).write(&out), ("halo", halo), ITEMS).unwrap();
        let at = |i: u64| if i < ITEMS { (i * i % 7) as u32 } else { 0 };
        let expected = (0..ITEMS).map(|i| at(i.wrapping_sub(1)) + 10 * at(i) + 100 * at(i + 1));
        assert!(out.read().unwrap().iter().copied().eq(expected));

        let matrix = platform.buffer_from(vec![0_u32; 3 * ITEMS as usize]).unwrap();
        let footprint = Footprint::columns(4, 4 * ITEMS);
        let kernel = Kernel::new("columns", 1).scalar(ITEMS);
        let kernel = kernel.argument(Argument::part(&matrix, Access::ReadWrite, footprint));
        run(&platform, kernel, ("columns", columns), ITEMS).unwrap();
        assert!(matrix.read().unwrap().iter().copied().eq((0..3 * ITEMS as u32).map(|at| at * 7)));
    }

    fn wrong(call: &mut Call<'_>) -> Result<(), ComputeError> {
        match call.scalar::<u32>(0)? {
            0 => call.scalar::<u32>(1).map(drop),
            1 => call.part(1)?.slice::<[u8; 3]>().map(drop),
            2 => call.part(2)?.slice_mut::<u32>().map(drop),
            _ => call.part(3).map(drop),
        }
    }

    /// The same sentence, wherever the function runs, but for the name that the host knows a buffer by.
    pub(super) fn errors_name_arguments_by_position() {
        let platform = platform();
        let (out, input) = (
            platform.buffer::<u32>(ITEMS).label("out").build().unwrap(),
            platform.buffer_from(vec![0_u32; 1000]).unwrap(),
        );
        for (number, expected) in [
            (0_u32, "argument 1 is a buffer, not a scalar"),
            (1, "argument 1: "),
            (2, "argument 2: "),
            (3, "there is no argument 3: the kernel has 3"),
        ] {
            for device in [0, 1].map(DeviceId) {
                let kernel = Kernel::new("wrong", 1).scalar(number).write(&out).read(&input);
                let kernel = kernel.launchers(launch::host(&platform, wrong).unwrap()).unwrap();
                // SAFETY: the function is safe Rust, and the scheduler keeps the grants.
                let kernel =
                    kernel.launchers(unsafe { launch::offload(&platform, "wrong") }.unwrap()).unwrap();
                let failed = Coexecutor::new(&platform).devices([device]).run(&kernel, ITEMS).unwrap_err();
                let told =
                    std::iter::successors(Some(&failed as &dyn std::error::Error), |error| error.source());
                let told = told.map(ToString::to_string).collect::<Vec<_>>().join(": ");
                assert!(told.contains(expected), "{number} on {device:?}: {told}");
            }
        }
    }
}
