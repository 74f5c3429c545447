//! Results of a trial whose homes are unlike each other: this process reaches one of them, and the other not.

use crate::{CPU, Cues, Does, GPU, ITEMS, LOCAL, Signal, VIDEO, scene, video};
use dml::arenas::{Null, kit};
use dml::core::sync::Arc;
use dml::core::{
    AllocError, Arena, ArenaDesc, ArenaId, ArenaKind, BlockRef, BufferCopy, Concurrency, CopyIn, CopyOut,
    DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, Fill, Grants, Launch, LaunchArg, LaunchError,
    Launcher, LinkSpeed, MapReport, MapRequest, Misfit, NewBlock, Platform, TransferError, UnmapRequest,
};
use dml::prelude::*;
use dml::scheduler::{Kernel, KernelError, Package};
use dml_verify::watched;

/// Main memory of which this process reaches the small blocks.
#[derive(Debug)]
struct Mixed {
    reached: Null,
    apart: Null,
}

impl Mixed {
    fn of(&self, len: u64) -> &Null {
        if len > 4 * ITEMS { &self.apart } else { &self.reached }
    }
}

impl Arena for Mixed {
    fn desc(&self) -> &ArenaDesc {
        self.reached.desc()
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        self.of(len).alloc(len)
    }

    fn free(&self, block: BlockRef) {
        self.of(block.len()).free(block);
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        self.of(request.block().len()).map(request)
    }

    fn unmap(&self, request: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        self.of(request.block().len()).unmap(request)
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        self.of(copy.block().len()).copy_in(copy)
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        self.of(copy.block().len()).copy_out(copy)
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        self.of(fill.block().len()).fill(fill)
    }
}

/// Writes nines to two results, and does not copy them on the device.
struct Nines {
    platform: Platform,
    cues: Cues,
    answered: Signal,
}

impl Launcher for Nines {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        for (argument, element_bytes) in launch.arguments.iter().zip([4, 8]) {
            let LaunchArg::Buffer { buffer, .. } = argument else { panic!("two buffers") };
            let bytes = launch.items.start * element_bytes..launch.items.end * element_bytes;
            let nines = vec![9; (bytes.end - bytes.start) as usize];
            video(&self.platform).write(grants, &buffer.range(bytes), &nines).expect("granted");
        }
        self.cues.launched.set();
        Ok(Fence::done(0))
    }

    fn copies(&self) -> bool {
        true
    }

    fn copy(&self, _: &[BufferCopy], _: &mut Grants) -> Result<Fence, LaunchError> {
        self.cues.copied.set();
        self.answered.wait();
        Err(LaunchError::not_started("not now"))
    }
}

fn mixed() -> Platform {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu).with_units(1));
    builder.add_device(DeviceDesc::new("gpu:0", DeviceKind::Gpu).with_units(64));
    let cpu = DeviceSet::of(CPU);
    let main = ArenaDesc::new("main", ArenaKind("test"), CPU).with_remotes(cpu);
    let home = || Null::backed(main.clone().with_concurrency(Concurrency::BimapFull));
    builder.add_arena(Arc::new(Mixed { reached: home(), apart: home().with_host(DeviceId(9)) }));
    let video = Null::backed(ArenaDesc::new("video", ArenaKind("test"), GPU).with_remotes(cpu));
    assert_eq!(builder.add_arena(Arc::new(video)), VIDEO);
    kit::join_staged(&mut builder, ArenaId(0), VIDEO, LinkSpeed::default());
    builder.build().expect("a sound platform")
}

/// The first result could be copied home, the second one not. So neither is, and if the device does not copy them either, the run is cancelled and the
/// items are nobody's, both buffers are as they were in every memory.
#[test]
fn results_of_which_one_cannot_be_copied_home_stay_as_they_were() {
    let platform = mixed();
    let (small, large) =
        (platform.buffer::<u32>(ITEMS).build().unwrap(), platform.buffer::<u64>(ITEMS).build().unwrap());
    for raw in [small.raw(), large.raw()] {
        let mut grants = platform.acquire(CPU).write(raw).wait().unwrap();
        grants.write_bytes(raw, &vec![7; raw.len() as usize]).unwrap();
        grants.release().unwrap();
        platform.acquire(GPU).read(raw).wait().unwrap().release().unwrap();
    }
    let (cues, answered) = (Cues::default(), Signal::default());
    let (seen, first, second) = (cues.clone(), small.clone(), large.clone());
    let host = move |package: &Package, grants: &mut Grants| -> Result<Fence, KernelError> {
        if package.start() == 0 {
            seen.launched.wait();
            seen.copied.wait();
        }
        for (raw, element_bytes) in [(first.raw(), 4), (second.raw(), 8)] {
            let bytes = package.start() * element_bytes..package.end() * element_bytes;
            grants.write_bytes(&raw.range(bytes.clone()), &vec![9; (bytes.end - bytes.start) as usize])?;
        }
        Ok(Fence::done(0))
    };
    let gpu = Nines { platform: platform.clone(), cues: cues.clone(), answered: answered.clone() };
    let kernel = Kernel::new("nines", LOCAL).write(&small).write(&large);
    let kernel = kernel.variant(CPU, host).launchers([(GPU, gpu)]).unwrap();
    let run = Coexecutor::new(&platform).cores(2);
    let mut running = run.start(&kernel, ITEMS).unwrap();
    watched("the copy", move || cues.copied.wait()).join();
    running.cancel();
    answered.set();
    drop(watched("a cancelled run", move || running.wait()).join());
    for last in [small.raw().range(4 * ITEMS - 4..4 * ITEMS), large.raw().range(8 * ITEMS - 8..8 * ITEMS)] {
        for device in [CPU, GPU] {
            let grants = platform.acquire(device).read(&last).wait().unwrap();
            assert!(grants.read_bytes(&last).unwrap().iter().all(|byte| *byte == 7), "{device:?}");
        }
    }
}

/// What results go to is gone when the launch is.
#[test]
fn a_launch_that_panics_for_longer_than_its_run_gives_its_grants_back() {
    let scene = scene(Does::PanicsLong, |package, cues| {
        if package == 0 {
            cues.launched.wait();
        }
        Ok(())
    });
    let report = scene.run().unwrap();
    scene.check(&report);
    assert!(report.failures.is_empty(), "{report:?}");
    let (of_trial, platform) = (video(&scene.platform).live_blocks(), Platform::clone(&scene.platform));
    drop(scene);
    assert!(of_trial > 0 && video(&platform).live_blocks() == 0, "all of it is given back");
}
