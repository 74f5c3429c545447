use dml::Kernel;
use dml::arenas::launch;
use dml::prelude::*;
use rayon::prelude::*;

fn platform() -> Platform {
    let options = DiscoverOptions::default().only(["cpu"]);
    Platform::builder().discover_with(&options).unwrap().build().unwrap()
}

/// Adds a number to each element, by rayon or by a team.
fn adds(platform: &Platform, data: &Buffer<u32>, by_team: bool) -> Kernel {
    let kernel = Kernel::new("add", 16).read_write(data).scalar(3_u32);
    if by_team {
        let launchers = launch::host_by_team(platform, |call| {
            let (number, team) = (call.scalar::<u32>(1)?, call.team());
            let data = call.part(0)?.slice_mut::<u32>()?;
            team.for_each(data.chunks_mut(16), |data| data.iter_mut().for_each(|value| *value += number));
            Ok(())
        });
        return kernel.launchers(launchers.unwrap()).unwrap();
    }
    let launchers = launch::host(platform, |call| {
        let number = call.scalar::<u32>(1)?;
        call.part(0)?.slice_mut::<u32>()?.par_iter_mut().for_each(|value| *value += number);
        Ok(())
    });
    kernel.launchers(launchers.unwrap()).unwrap()
}

fn data(platform: &Platform) -> Buffer<u32> {
    platform.buffer_from((0..200_u32).collect::<Vec<_>>()).unwrap()
}

/// Sixty of sixty-four failed: a thread that waited for its package took up the next run of the iterator.
#[test]
fn runs_start_on_threads_of_rayon() {
    let platform = platform();
    for by_team in [false, true] {
        let data = data(&platform);
        let kernel = adds(&platform, &data, by_team);
        let run = |_| Coexecutor::new(&platform).policy("dynamic:3".parse().unwrap()).run(&kernel, 200);
        let failed = (0..64).into_par_iter().map(run).filter_map(Result::err).map(|error| error.to_string());
        assert_eq!(failed.collect::<Vec<_>>(), [""; 0], "by a team: {by_team}");
        assert!(data.read().unwrap().iter().zip(0..).all(|(value, i)| *value == i + 64 * 3));
    }
}

/// Each of them holds a view of a buffer that the others want as well.
#[test]
fn runs_start_on_threads_of_rayon_that_hold_views() {
    let platform = platform();
    let wanted = data(&platform);
    for by_team in [false, true] {
        let failed = (0..64).into_par_iter().filter_map(|_: u32| {
            let held = wanted.read().map_err(|error| error.to_string());
            let data = data(&platform);
            let kernel = adds(&platform, &data, by_team);
            let run = Coexecutor::new(&platform).run(&kernel, 200).map_err(|error| error.to_string());
            let changed = data.read().unwrap().iter().zip(0..).all(|(value, i)| *value == i + 3);
            let told = held.map(drop).and(run.map(drop));
            told.err().or_else(|| (!changed).then(|| "wrong results".to_owned()))
        });
        assert_eq!(failed.collect::<Vec<_>>(), [""; 0], "by a team: {by_team}");
        let mut next = wanted.write().unwrap();
        next.iter_mut().for_each(|value| *value = 1);
        next.release().unwrap();
    }
}

/// A kernel that runs a kernel for each of its elements.
#[test]
fn runs_start_in_kernels() {
    let platform = platform();
    let inner: Vec<_> = (0..8).map(|_| data(&platform)).collect();
    let outer = platform.buffer_from(vec![1_u32; 8]).unwrap();
    for by_team in [false, true] {
        let kernels: Vec<_> = inner.iter().map(|data| adds(&platform, data, by_team)).collect();
        let runs = platform.clone();
        let launchers = launch::host(&platform, move |call| {
            let items = call.items();
            let values = call.part(0)?.slice_mut::<u32>()?;
            values.par_iter_mut().zip(items.start as usize..items.end as usize).try_for_each(
                |(value, item)| {
                    *value += 1;
                    Coexecutor::new(&runs).run(&kernels[item], 200).map(drop)
                },
            )?;
            Ok(())
        });
        let kernel = Kernel::new("outer", 1).read_write(&outer).launchers(launchers.unwrap()).unwrap();
        Coexecutor::new(&platform).policy("dynamic:3".parse().unwrap()).run(&kernel, 8).unwrap();
    }
    assert!(outer.read().unwrap().iter().all(|value| *value == 3));
    for data in inner {
        assert!(data.read().unwrap().iter().zip(0..).all(|(value, i)| *value == i + 6));
    }
}

/// A hundred had two hundred and four threads.
#[test]
fn kernels_share_the_threads_of_the_host() {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let platform = platform();
    let data = data(&platform);
    let units = platform.devices()[0].compute_units as usize;
    let before = threads();
    let kernels: Vec<_> = (0..100).map(|number| adds(&platform, &data, number % 2 == 0)).collect();
    assert!(threads() <= before + 2 * units, "{} threads for 100 kernels", threads() - before);
    for kernel in &kernels[..10] {
        Coexecutor::new(&platform).run(kernel, 200).unwrap();
    }
}
