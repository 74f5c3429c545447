//! A trial computes what the host has under way as well. Whoever is done first has computed it.

use super::*;
use dml::core::{Withdrawal, Withdrawn};
use dml::scheduler::Reason;

/// What the host does with a package that is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It leaves its launch, which has written something.
    Leaves,
    /// It leaves its launch, and says that it has written nothing.
    NeverBegins,
    /// It leaves its launch when somebody has taken the trial's results.
    LeavesInVain,
    /// It is done all the same.
    Ends,
    Fails,
    Panics,
}

/// Computes `x ^ 0x55` in main memory. Of its packages one is not done before it is withdrawn, as long as there is a trial.
struct Host {
    slow: u64,
    then: Then,
    packages: Arc<AtomicU64>,
    withdrawn: Arc<AtomicU64>,
    /// The slow package is under way.
    began: Signal,
    platform: Platform,
    cues: Cues,
}

impl Host {
    /// Waits until the launch is withdrawn. A launch that never is would hang.
    fn wait_for(&self, withdrawal: &Withdrawal) {
        self.began.set();
        self.cues.launched.wait();
        // Somebody else asks for what it writes.
        std::thread::sleep(Duration::from_millis(2));
        self.cues.may_end.set();
        while !withdrawal.is_withdrawn() {
            std::thread::yield_now();
        }
        self.withdrawn.fetch_add(1, Ordering::SeqCst);
    }
}

impl Launcher for Host {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [LaunchArg::Buffer { buffer: source, .. }, LaunchArg::Buffer { buffer: target, .. }] =
            launch.arguments
        else {
            return Err(LaunchError::not_started("two buffers"));
        };
        std::thread::sleep(Duration::from_micros(300));
        let is_slow = self.packages.fetch_add(1, Ordering::SeqCst) == self.slow;
        let bytes = launch.items.start * 4..launch.items.end * 4;
        let values = computed(&grants.read_bytes(&source.range(bytes.clone())).expect("granted"));
        let mut write = |values: &[u8]| {
            grants.write_bytes(&target.range(bytes.clone()), values).map_err(LaunchError::failed)
        };
        if is_slow && let Some(withdrawal) = launch.withdrawal {
            self.wait_for(withdrawal);
            match self.then {
                Then::Leaves => {
                    write(&vec![0xab; values.len()])?;
                    return Err(LaunchError::failed(Withdrawn));
                }
                Then::LeavesInVain => {
                    write(&vec![0xab; values.len()])?;
                    let own = self.cues.own.lock().clone().expect("there was a trial");
                    let takes = self.platform.acquire(CPU).write(&own).wait().expect("nobody has it");
                    *self.cues.taken.lock() = Some(takes.hand_over());
                    return Err(LaunchError::failed(Withdrawn));
                }
                Then::NeverBegins => return Err(LaunchError::not_started(Withdrawn)),
                Then::Ends => {}
                Then::Fails => return Err(LaunchError::failed("the host failed")),
                Then::Panics => panic!("a host that panics"),
            }
        }
        write(&values)?;
        Ok(Fence::done(0))
    }
}

/// A scene whose host is told of withdrawals, and how often it was.
fn scene_of_launchers(does: Does, slow: u64, then: Then) -> (Scene, Arc<AtomicU64>) {
    let (scene, withdrawn, _) = scene_with_signal(does, slow, then);
    (scene, withdrawn)
}

/// The same, and the signal that the slow package is under way.
fn scene_with_signal(does: Does, slow: u64, then: Then) -> (Scene, Arc<AtomicU64>, Signal) {
    let home = if does == Does::CopyFails { Home::Apart } else { Home::Reached };
    let mut scene =
        scene_on(platform(DeviceKind::Gpu, LinkSpeed::default(), None, home), does, |_, _| Ok(()));
    let (cues, platform) = (scene.cues.clone(), Platform::clone(&scene.platform));
    let (packages, withdrawn) = (Arc::default(), Arc::<AtomicU64>::default());
    let began = Signal::default();
    let (of_host, began_too) = (cues.clone(), began.clone());
    let host = Host {
        slow,
        then,
        packages,
        withdrawn: withdrawn.clone(),
        began: began_too,
        platform: Platform::clone(&platform),
        cues: of_host,
    };
    let gpu = Gpu { platform, target: scene.target.raw().clone(), does, cues };
    let kernel = Kernel::new("copy", LOCAL).read(&scene.source).write(&scene.target);
    scene.kernel = kernel.launchers([(CPU, host)]).unwrap().launchers([(GPU, gpu)]).unwrap();
    (scene, withdrawn, began)
}

fn items_of(report: &Report, device: DeviceId) -> u64 {
    report.devices.iter().find(|it| it.device == device).unwrap().items
}

#[test]
fn nobody_waits_for_a_package_that_a_trial_has_computed() {
    for slow in [0, 1] {
        let (scene, withdrawn) = scene_of_launchers(Does::Well, slow, Then::Leaves);
        let report = scene.run().unwrap();
        scene.check(&report);
        scene.all_is_home();
        assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
        assert!(report.failures.is_empty(), "{report:?}");
        let packages = scene.packages_of_gpu(&report);
        assert!(packages.len() >= 2, "the rest, and what the host gave up: {report:?}");
        packages.iter().for_each(|record| in_order(record, &report));
        assert_eq!(scene.cues.others.load(Ordering::SeqCst), 0, "nothing was computed again");
        assert_eq!(items_of(&report, CPU), slow * LOCAL);
        let decisions = report.decisions.as_ref().unwrap().to_string();
        assert_eq!(decisions.matches("\ngiven_back ").count(), 1, "the policy is told: {decisions}");
        let overtaken: Vec<_> = report.left_out.iter().map(|left| (left.device, &left.reason)).collect();
        if slow == 0 {
            assert!(
                matches!(overtaken[..], [(CPU, Reason::Overtaken { others_seconds })] if *others_seconds > 0.0)
            );
        } else {
            assert!(overtaken.is_empty(), "{report:?}");
        }
        // What it would have taken at the least is for the next run.
        let known = scene.knowledge.to_string();
        assert!(known.contains("device cpu*1 rate "), "{known}");
    }
}

#[test]
fn who_is_done_first_has_computed_it() {
    let (scene, withdrawn) = scene_of_launchers(Does::Well, 1, Then::Ends);
    let report = scene.run().unwrap();
    scene.check(&report);
    assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
    assert_eq!(items_of(&report, CPU), 2 * LOCAL, "its package is its own: {report:?}");
    assert_eq!(scene.packages_of_gpu(&report).len(), 1);
    assert!(report.failures.is_empty() && report.left_out.is_empty(), "{report:?}");
}

/// That the results come from elsewhere is no reason to hide it.
#[test]
fn a_failure_of_a_package_that_is_withdrawn_is_one() {
    for then in [Then::Fails, Then::Panics] {
        let (scene, _) = scene_of_launchers(Does::Well, 1, then);
        let report = scene.run().unwrap();
        scene.check(&report);
        let failed: Vec<_> = report.failures.iter().map(|failure| failure.device).collect();
        assert_eq!(failed, [CPU], "{then:?}: {report:?}");
        assert_eq!(scene.cues.others.load(Ordering::SeqCst), 1, "the GPU computes it");
    }
}

/// Whoever looks before it begins says so.
#[test]
fn who_never_began_has_left_as_well() {
    let (scene, withdrawn) = scene_of_launchers(Does::Well, 0, Then::NeverBegins);
    let report = scene.run().unwrap();
    scene.check(&report);
    assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
    assert!(report.failures.is_empty(), "{report:?}");
    assert_eq!(scene.cues.others.load(Ordering::SeqCst), 0, "nothing was computed again");
}

/// Others who use the buffer see the contents that it had, or its results: nothing of what a launch has written that was left, and no error.
#[test]
fn nobody_sees_what_was_written_in_vain() {
    for slow in [0, 1] {
        let (scene, withdrawn, began) = scene_with_signal(Does::Well, slow, Then::Leaves);
        let range = scene.target.range(slow * LOCAL..(slow + 1) * LOCAL);
        let platform = Platform::clone(&scene.platform);
        let reads = std::thread::spawn(move || {
            // This request waits for the end of the package.
            began.wait();
            let grants = platform.acquire(CPU).read(&range).wait()?;
            let values = grants.read_bytes(&range).expect("granted").to_vec();
            grants.release().expect("it was read");
            Ok::<_, dml::core::AcquireError>(values)
        });
        let report = scene.run().unwrap();
        scene.check(&report);
        assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
        let read = reads.join().unwrap().expect("nothing has failed");
        let grants = scene.platform.acquire(CPU).read(&scene.target).wait().unwrap();
        let all = grants.read_bytes(&scene.target).unwrap();
        let bytes = (slow * LOCAL * 4) as usize..((slow + 1) * LOCAL * 4) as usize;
        assert_eq!(read, all[bytes]);
    }
}

/// Who waits for all of the results waits for the package, and the trial's other results wait for whoever that is.
#[test]
fn whoever_waits_for_all_results_holds_nobody_up() {
    let (scene, withdrawn, began) = scene_with_signal(Does::Well, 0, Then::Leaves);
    let (platform, target) = (Platform::clone(&scene.platform), scene.target.clone());
    let mut filled = platform.acquire(CPU).write(&target).wait().unwrap();
    filled.write_bytes(&target, &vec![7; ITEMS as usize * 4]).unwrap();
    filled.release().unwrap();
    let reads = std::thread::spawn(move || {
        began.wait();
        platform.acquire(CPU).read(&target).wait().map(|grants| grants.release().expect("it was read"))
    });
    let report = scene.run().unwrap();
    scene.check(&report);
    reads.join().unwrap().expect("nothing has failed");
    assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
    assert!(report.failures.is_empty(), "{report:?}");
}

/// The results cannot be copied, so somebody computes them.
#[test]
fn what_is_given_up_and_cannot_be_copied_is_computed_again() {
    let (scene, withdrawn) = scene_of_launchers(Does::Lends, 0, Then::LeavesInVain);
    let report = scene.run().unwrap();
    drop(scene.cues.taken.lock().take().expect("it left").not_started());
    scene.cues.own.lock().take();
    scene.check(&report);
    assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
    assert!(report.failures.is_empty(), "{report:?}");
    let first = report.packages.iter().find(|record| record.package.range().contains(&0)).unwrap();
    let by_itself = scene.cues.by_itself.lock().iter().filter(|items| items.contains(&0)).count();
    assert_eq!(
        (first.device, by_itself),
        if first.device == CPU { (CPU, 0) } else { (GPU, 1) },
        "{report:?}"
    );
}

/// Results can be copied to what this process reaches, and to nothing else.
#[test]
fn nobody_is_told_to_leave_what_no_results_can_be_copied_to() {
    let (scene, withdrawn) = scene_of_launchers(Does::CopyFails, 0, Then::Leaves);
    scene.cues.may_end.set();
    let report = scene.run().unwrap();
    scene.check(&report);
    assert_eq!(withdrawn.load(Ordering::SeqCst), 0);
    assert!(report.failures.is_empty(), "{report:?}");
}

/// A launcher that says so without being told has failed.
#[test]
fn nobody_withdraws_by_itself() {
    struct Leaves;
    impl Launcher for Leaves {
        fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
            Ok(())
        }

        fn launch(&self, launch: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
            if let Some(withdrawal) = launch.withdrawal {
                // Nor if it says it of itself.
                withdrawal.withdraw();
            }
            Err(LaunchError::failed(Withdrawn))
        }
    }
    // No trial ends, so that nobody tells it to leave.
    let (mut scene, _) = scene_of_launchers(Does::Well, 0, Then::Leaves);
    let (cues, platform) = (scene.cues.clone(), Platform::clone(&scene.platform));
    let gpu = Gpu { platform, target: scene.target.raw().clone(), does: Does::Well, cues };
    let kernel = Kernel::new("copy", LOCAL).read(&scene.source).write(&scene.target);
    scene.kernel = kernel.launchers([(CPU, Leaves)]).unwrap().launchers([(GPU, gpu)]).unwrap();
    let report = scene.run().unwrap();
    scene.check(&report);
    assert_eq!(report.failures.len(), 1, "{report:?}");
    assert_eq!(report.failures[0].message, "the launch was withdrawn");
    scene.cues.may_end.set();
}

/// Whoever launches keeps what it was lent, and says so after the run.
#[test]
fn a_withdrawal_that_is_kept_says_nothing_of_later_runs() {
    let (scene, withdrawn) = scene_of_launchers(Does::Well, 0, Then::Leaves);
    scene.check(&scene.run().unwrap());
    for _ in 0..3 {
        let report = scene.run().unwrap();
        scene.check(&report);
        assert!(report.failures.is_empty(), "{report:?}");
    }
    assert_eq!(withdrawn.load(Ordering::SeqCst), 1);
}
