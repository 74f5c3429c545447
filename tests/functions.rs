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
        test(
            "i29_submitted_functions_queue_on_host_and_worker",
            tests::i29_submitted_functions_queue_on_host_and_worker,
        ),
        test("i29_kills_of_a_worker_in_mid_stream", tests::i29_kills_of_a_worker_in_mid_stream),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

#[cfg(all(target_os = "linux", not(dml_loom)))]
mod tests {
    use dml::Kernel;
    use dml::arenas::OffloadArena;
    use dml::arenas::launch::{self, Call, ComputeError};
    use dml::core::internal::sync::{Condvar, Mutex};
    use dml::prelude::*;
    use dml::scheduler::RunError;
    use std::sync::Arc;

    const ITEMS: u64 = 1000;

    type Function = fn(&mut Call<'_>) -> Result<(), ComputeError>;

    pub(super) fn registry() -> Registry {
        Registry::new()
            .with("mixed", mixed)
            .with("halo", halo)
            .with("columns", columns)
            .with("wrong", wrong)
            .with("step", step)
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

    /// The number of a step that waits for the gate. Those of the next two steps fail and panic.
    const WAITS: u32 = 1000;

    /// A gate that functions of the host can wait at.
    static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    /// `to = 3 * from + number`.
    fn step(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let number = call.scalar::<u32>(2)?;
        match number {
            WAITS => {
                let mut is_open = GATE.0.lock();
                while !*is_open {
                    is_open = GATE.1.wait(is_open);
                }
            }
            number if number == WAITS + 1 => return Err("as told".into()),
            number if number == WAITS + 2 => panic!("as told"),
            _ => {}
        }
        let [from, to] = call.parts([0, 1])?;
        let pairs = to.slice_mut::<u32>()?.iter_mut().zip(from.slice::<u32>()?);
        pairs.for_each(|(to, from)| *to = from.wrapping_mul(3).wrapping_add(number));
        Ok(())
    }

    /// A device with the launcher of the step on it, and two buffers.
    struct Chain {
        platform: Platform,
        device: DeviceId,
        step: Arc<dyn Launcher>,
        buffers: [Buffer<u32>; 2],
    }

    impl Chain {
        fn on(name: &str) -> Self {
            let platform = platform();
            let device = platform.device(name).unwrap();
            let of = |launchers: Vec<(DeviceId, Arc<dyn Launcher>)>| {
                launchers.into_iter().find(|(of, _)| *of == device).map(|(_, launcher)| launcher)
            };
            let host = launch::host(&platform, step).unwrap().into_iter();
            // SAFETY: the function is safe Rust, and the stream keeps the grants.
            let workers = unsafe { launch::offload(&platform, "step") }.unwrap().into_iter();
            let step = of(host.map(|(of, step)| (of, Arc::new(step) as Arc<dyn Launcher>)).collect())
                .or_else(|| {
                    of(workers.map(|(of, step)| (of, Arc::new(step) as Arc<dyn Launcher>)).collect())
                });
            let buffers = [7, 0].map(|value| platform.buffer_from(vec![value; ITEMS as usize]).unwrap());
            Self { platform, device, step: step.expect("each device has one"), buffers }
        }

        /// Submits the `at`-th step of the chain, counted from 0.
        fn submit(&self, at: u32, number: u32) -> Result<Submission, SubmitError> {
            let [from, to] = [0, 1].map(|which| &self.buffers[(at as usize + which) % 2]);
            self.platform.submit(self.device, &self.step).read(from).write(to).scalar(number).items(ITEMS)
        }

        fn value(&self, at: u32) -> Result<u32, AcquireError> {
            let view = self.buffers[at as usize % 2].read()?;
            assert!(view.iter().all(|value| *value == view[0]));
            Ok(view[0])
        }
    }

    /// Returns what the first steps of a chain leave in the buffer that the last of them writes.
    fn expected(steps: u32) -> u32 {
        (0..steps).fold(7, |value: u32, number| value.wrapping_mul(3).wrapping_add(number))
    }

    pub(super) fn i29_submitted_functions_queue_on_host_and_worker() {
        for name in ["cpu", "offload:0"] {
            let chain = Chain::on(name);
            for at in 0..300 {
                chain.submit(at, at).unwrap();
            }
            assert_eq!(
                (chain.value(300), chain.value(299)),
                (Ok(expected(300)), Ok(expected(299))),
                "{name}"
            );
            // What fails takes those behind it along, and leaves those before it.
            for number in [WAITS + 1, WAITS + 2] {
                let chain = Chain::on(name);
                let before = chain.submit(0, 0).unwrap();
                let spare = chain.platform.buffer_from(vec![0_u32; ITEMS as usize]).unwrap();
                let from = &chain.buffers[1];
                let submit = |number: u32| {
                    let submit = chain.platform.submit(chain.device, &chain.step).read(from).write(&spare);
                    submit.scalar(number).items(ITEMS).unwrap()
                };
                let (fails, behind) = (submit(number), submit(3));
                before.wait().unwrap();
                for failed in [fails, behind] {
                    let error = failed.wait().unwrap_err();
                    assert!(matches!(&error, SubmitError::Failed { number: 2, .. }), "{name}: {error:?}");
                    let said = error.to_string();
                    assert!(said.contains("as told") && !said.contains("launch"), "{name}: {said}");
                }
                assert!(matches!(spare.read(), Err(AcquireError::Poisoned { .. })));
                assert_eq!(chain.value(1), Ok(expected(1)));
                chain.submit(1, 1).unwrap().wait().expect("the stream is open");
                assert_eq!(chain.value(2), Ok(expected(2)));
            }
        }
        // A function of the host cannot wait for its own stream, from no thread that it runs on.
        let chain = Chain::on("cpu");
        let (says, said) = std::sync::mpsc::channel();
        let (settles, device) = (chain.platform.clone(), chain.device);
        let settles = move |_: &mut Call<'_>| {
            let _ = says.send(settles.settle(device));
            Ok(())
        };
        let (_, settles) = launch::host(&chain.platform, settles).unwrap().remove(0);
        chain.platform.submit(device, &Arc::new(settles)).items(1).unwrap().wait().unwrap();
        let settled = said.recv().unwrap();
        assert!(matches!(settled, Err(SubmitError::OnStream)), "{settled:?}");
        // A function of the host runs while its submitter goes on.
        let chain = Chain::on("cpu");
        let first = chain.submit(0, WAITS).unwrap();
        let second = chain.submit(1, 1).unwrap();
        assert!(!first.has_ended() && !second.has_ended());
        *GATE.0.lock() = true;
        GATE.1.notify_all();
        second.wait().unwrap();
        assert_eq!(chain.value(2), Ok((7 * 3 + WAITS) * 3 + 1));
    }

    /// After each kill, what a step had left is right, or lost with an error. `DML_KILLS` sets their number.
    pub(super) fn i29_kills_of_a_worker_in_mid_stream() {
        const STEPS: u32 = 200;
        let kills = std::env::var("DML_KILLS").map_or(20, |kills| kills.parse().expect("a number"));
        let (mut ended, mut failed) = (0, 0);
        for kill in 0..kills {
            let chain = Chain::on("offload:0");
            let arena = chain.platform.arena(chain.platform.home(chain.device).unwrap());
            let worker = arena.downcast_ref::<OffloadArena>().unwrap().device().process().unwrap();
            let victim = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_micros(kill % 10 * 300));
                let killed = std::process::Command::new("kill").args(["-KILL", &worker.to_string()]).status();
                assert!(killed.unwrap().success());
            });
            let submitted: Vec<_> = (0..STEPS).map_while(|at| chain.submit(at, at).ok()).collect();
            victim.join().unwrap();
            let good = submitted.iter().take_while(|submission| submission.wait().is_ok()).count();
            for submission in &submitted[good..] {
                let error = submission.wait().expect_err("one before it failed");
                assert!(error.to_string().contains("lost"), "kill {kill}: {error}");
            }
            for last in [good as u32, (good as u32).saturating_sub(1)] {
                match chain.value(last) {
                    Ok(value) => assert_eq!(value, expected(last), "kill {kill}, {good} ended well"),
                    Err(error) => {
                        let is_poisoned = matches!(error, AcquireError::Poisoned { .. });
                        assert!(is_poisoned || error.is_device_lost(), "kill {kill}: {error}");
                    }
                }
            }
            assert!(chain.platform.leaked_grants().is_empty());
            (ended, failed) = (ended + good, failed + STEPS as usize - good);
        }
        println!("{kills} kills: {ended} steps ended well, {failed} did not");
        assert!(failed > 0, "no kill came in mid-stream");
    }
}
