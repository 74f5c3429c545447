//! Kernels launched under grants of one's own.

use crate::{LEN, Scene};
use dml::arenas::{Discover, DiscoverOptions};
use dml::core::{
    AcquireError, Buffer, DeviceId, Fence, GrantArg, Grants, Items, Launch, LaunchArg, LaunchError, Launcher,
    Misfit, Platform, TransferError, args, bytes, local,
};
use dml_verify::{block_on, watched};
use std::sync::Arc;

fn host() -> (Platform, DeviceId) {
    let options = DiscoverOptions::default().only(["cpu"]);
    let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let host = platform.host().unwrap();
    (platform, host)
}

fn buffers<const N: usize>(platform: &Platform) -> [Buffer<f32>; N] {
    std::array::from_fn(|at| platform.buffer_from(vec![at as f32 + 1.0; LEN as usize]).unwrap())
}

#[test]
fn kernels_under_the_same_grants_follow_each_other() {
    let Some(Scene { platform, device, scale, .. }) = Scene::new() else { return };
    let [a, b, c] = buffers(&platform);
    for ends in ["release", "wait", "await"] {
        let mut grants = platform.acquire(device).read(&a).write(&b).write(&c).ahead().wait().unwrap();
        grants.launch(&scale, args![&a, &b, 2.0_f32, LEN], LEN).unwrap();
        grants.launch(&scale, args![GrantArg::read(&b), &c, 3.0_f32, LEN], LEN).unwrap();
        let grants = match ends {
            "release" => grants,
            "wait" => grants.running().wait().unwrap(),
            _ => block_on(grants.running()).unwrap(),
        };
        grants.release().unwrap();
        assert!(c.read().unwrap().iter().all(|value| *value == 6.0), "{ends}");
    }
    assert!(platform.leaked_grants().is_empty());
}

#[test]
fn a_kernel_has_two_dimensions_groups_and_local_memory() {
    let Some(Scene { platform, device, turn, .. }) = Scene::new() else { return };
    let (width, height) = (40_u32, 25_u32);
    let from = platform.buffer_from((0..LEN).map(|at| at as f32).collect::<Vec<_>>()).unwrap();
    let to = platform.buffer::<f32>(LEN).build().unwrap();
    let mut grants = platform.acquire(device).read(&from).write(&to).wait().unwrap();
    let items = Items::from([u64::from(width), u64::from(height)]).in_groups([8, 1, 0]);
    grants.launch(&turn, args![&from, &to, local(32), width, height], items).unwrap();
    grants.release().unwrap();
    let (from, to) = (from.read().unwrap(), to.read().unwrap());
    let at = |x: usize, y: usize| (from[y * 40 + x], to[x * 25 + y]);
    assert!((0..40).all(|x| (0..25).all(|y| at(x, y).0 == at(x, y).1)));
}

/// A launcher that records what it gets, and whose kernels end as the test says.
struct Records {
    given: std::sync::Mutex<Vec<Vec<LaunchArg>>>,
    fails: bool,
}

impl Launcher for Records {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        match arguments.len() {
            2 => Ok(()),
            given => Err(Misfit::Count { kernel: "records".to_owned(), takes: 2, given }),
        }
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let views = grants.views().map_err(LaunchError::not_started)?;
        let buffers = launch.arguments.iter().filter(|argument| matches!(argument, LaunchArg::Buffer { .. }));
        assert_eq!(views.len(), buffers.count(), "a view for each argument");
        self.given.lock().unwrap().push(launch.arguments.to_vec());
        let fails = self.fails;
        Ok(Fence::running(move || if fails { Err(TransferError::DeviceLost { loss: None }) } else { Ok(0) }))
    }
}

fn records(fails: bool) -> Arc<dyn Launcher> {
    Arc::new(Records { given: std::sync::Mutex::default(), fails })
}

#[test]
fn what_does_not_fit_or_is_not_granted_is_named_and_changes_nothing() {
    let (platform, host) = host();
    let [a, b] = buffers(&platform);
    let launcher = records(false);
    let mut grants = platform.acquire(host).read(&a.range(0..10)).wait().unwrap();
    let said = |result: Result<(), LaunchError>| match result {
        Err(LaunchError::NotStarted(cause)) => cause.to_string(),
        other => panic!("{other:?}"),
    };
    let not_granted = said(grants.launch(&launcher, args![&b, 1_u32], 10_u64));
    assert!(not_granted.contains("is not part of these grants"), "{not_granted}");
    let outside = said(grants.launch(&launcher, args![&a, 1_u32], 10_u64));
    assert!(outside.contains("not granted"), "{outside}");
    let count = said(grants.launch(&launcher, args![&a.range(0..10)], 10_u64));
    assert!(count.contains("takes 2 arguments"), "{count}");
    let items = said(grants.launch(&launcher, args![&a.range(0..10), bytes(&[1])], 0_u64));
    assert!(items.contains('0'), "{items}");
    grants.launch(&launcher, args![&a.range(2..5), 1_u32], 10_u64).unwrap();
    grants.release().unwrap();
    assert!(a.read().unwrap().iter().all(|value| *value == 1.0));
}

#[test]
fn a_kernel_that_fails_poisons_what_was_granted_for_writing() {
    let (platform, host) = host();
    for ends in ["release", "wait", "drop", "downgrade"] {
        let [a, b] = buffers(&platform);
        let mut grants = platform.acquire(host).read(&a).write(&b).wait().unwrap();
        grants.launch(&records(true), args![&a, &b], LEN).unwrap();
        match ends {
            "release" => {
                let error = grants.release().unwrap_err();
                assert!(matches!(error, AcquireError::KernelFailed { .. }), "{error:?}");
                assert!(error.is_device_lost() && error.to_string().contains("launched under the grants"));
            }
            "wait" => drop(grants.running().wait().unwrap_err()),
            "downgrade" => drop(grants.downgrade().unwrap_err()),
            _ => drop(grants),
        }
        assert!(matches!(b.read(), Err(AcquireError::Poisoned { .. })), "{ends}");
        assert!(a.read().unwrap().iter().all(|value| *value == 1.0));
    }
    assert!(platform.leaked_grants().is_empty());
}

/// The grants outlive the kernels, however they end.
#[test]
fn grants_that_are_dropped_wait_for_their_kernels() {
    let (platform, host) = host();
    let [a, b] = buffers(&platform);
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    struct Waits(std::sync::Mutex<Option<std::sync::mpsc::Receiver<()>>>);
    impl Launcher for Waits {
        fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
            Ok(())
        }

        fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
            let ended = self.0.lock().unwrap().take().expect("one launch");
            Ok(Fence::running(move || ended.recv().map(|()| 0).map_err(|_| TransferError::Finished)))
        }
    }
    let waits: Arc<dyn Launcher> = Arc::new(Waits(std::sync::Mutex::new(Some(ended))));
    let mut grants = platform.acquire(host).read(&a).write(&b).wait().unwrap();
    grants.launch(&waits, args![&a, &b], LEN).unwrap();
    let dropped = watched("a drop", move || drop(grants));
    assert!(platform.acquire(host).read(&b).try_now().is_err());
    ends.send(()).unwrap();
    dropped.join();
    assert!(matches!(b.read(), Err(AcquireError::Poisoned { .. })));
}

/// A failure is remembered, although the program goes on after the error of a launch.
#[test]
fn a_failure_that_a_launch_has_returned_fails_the_release() {
    struct Ends(bool);

    impl Launcher for Ends {
        fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
            Ok(())
        }

        fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
            match self.0 {
                true => Err(LaunchError::failed("it began, and broke")),
                false => Ok(Fence::running(|| Err(TransferError::Finished))),
            }
        }
    }

    let (platform, host) = host();
    for (fails_at_launch, said) in [(false, "polled again"), (true, "broke")] {
        for waits in [false, true] {
            let [a, b] = buffers(&platform);
            let mut grants = platform.acquire(host).read(&a).write(&b).wait().unwrap();
            let mut launch = || grants.launch(&Ends(fails_at_launch), args![&a, &b], LEN);
            let failed = launch().and_then(|()| launch());
            assert!(matches!(failed, Err(LaunchError::Failed(_))), "{failed:?}");
            let error = match waits {
                true => grants.running().wait().unwrap_err().to_string(),
                false => grants.release().unwrap_err().to_string(),
            };
            assert!(error.contains(said), "{error}");
            assert!(matches!(b.read(), Err(AcquireError::Poisoned { .. })));
        }
    }
}
