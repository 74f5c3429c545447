//! What a kernel changes is changed once: where a device goes with some results of a package and others have
//! come home, the package is not computed again.

#![cfg(not(dml_loom))]

use dml::Kernel;
use dml::arenas::{Null, kit};
use dml::core::internal::sync::Arc;
use dml::core::{
    ArenaDesc, ArenaId, ArenaKind, Concurrency, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence, LinkSpeed,
};
use dml::prelude::*;
use dml::scheduler::{KernelError, Report, RunError};
use dml_verify::{Audited, Death, Mortal, mortal, watched};
use std::ops::Range;

const CPU: DeviceId = DeviceId(0);
const MORTAL: DeviceId = DeviceId(1);
const OTHER: DeviceId = DeviceId(2);

fn memory(platform: &Platform, arena: u8) -> &Mortal<Null> {
    platform.arena(ArenaId(arena)).downcast_ref().expect("all are")
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// What the kernel makes of a word.
fn changed(word: u32) -> u32 {
    word.wrapping_mul(3).wrapping_add(1)
}

/// What it writes for an item.
fn told(item: u64) -> u32 {
    item as u32 ^ 0x55
}

struct Machine {
    platform: Audited,
    items: u64,
    state: Buffer<u32>,
    out: Buffer<u32>,
    kernel: Kernel,
}

/// Computes on a memory.
fn compute(
    there: &Platform,
    arena: u8,
    [state, out]: [&Buffer<u32>; 2],
    items: Range<u64>,
    grants: &mut Grants,
) -> Result<Fence, KernelError> {
    let memory = memory(there, arena).inner();
    let bytes = items.start * 4..items.end * 4;
    let old = words(&memory.read(grants, &state.raw().range(bytes.clone()))?);
    let new: Vec<u32> = old.into_iter().map(changed).collect();
    memory.write(grants, &state.raw().range(bytes.clone()), bytemuck::cast_slice(&new))?;
    let told: Vec<u32> = items.map(told).collect();
    memory.write(grants, &out.raw().range(bytes), bytemuck::cast_slice(&told))?;
    Ok(Fence::done(0))
}

impl Machine {
    /// The first device has a memory of its own and may die. The other one has, too, unless it shares that of
    /// the processor.
    fn new(items: u64, shares: bool) -> Self {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_device(DeviceDesc::new("mortal", DeviceKind::Gpu).with_compute_units(64));
        builder.add_device(DeviceDesc::new("other", DeviceKind::Gpu).with_compute_units(64));
        let memory_of = |name: &str, device| {
            let desc = ArenaDesc::new(name, ArenaKind("test"), device).with_remotes(DeviceSet::of(CPU));
            Arc::new(mortal(Null::backed(desc.with_concurrency(Concurrency::BimapFull))))
        };
        let [main, first, second] = [("main", CPU), ("first", MORTAL), ("second", OTHER)]
            .map(|(name, device)| builder.add_arena(memory_of(name, device)));
        kit::join_staged(&mut builder, main, first, LinkSpeed::default());
        if shares {
            kit::join_bound(&mut builder, main, second, Concurrency::BimapFull, LinkSpeed::default());
            builder.prefer_binding(main, second);
        } else {
            kit::join_staged(&mut builder, main, second, LinkSpeed::default());
        }
        let platform = Audited::new(builder.build().expect("a sound platform"));
        let state = platform.buffer::<u32>(items).build().unwrap();
        let out = platform.buffer::<u32>(items).build().unwrap();
        let mut grants = platform.acquire(CPU).write(&state).wait().unwrap();
        let old: Vec<u32> = (0..items as u32).collect();
        memory(&platform, 0).inner().write(&mut grants, &state, bytemuck::cast_slice(&old)).unwrap();
        grants.release().unwrap();
        let mut kernel = Kernel::new("change", 10).read_write(&state).write(&out);
        for (arena, device) in [(1, MORTAL), (2, OTHER)] {
            let (there, state, out) = (Platform::clone(&platform), state.clone(), out.clone());
            kernel = kernel.variant(device, move |package: &Package, grants: &mut Grants| {
                compute(&there, arena, [&state, &out], package.range(), grants)
            });
        }
        Self { platform, items, state, out, kernel }
    }

    /// The words of a buffer, as far as they can be read.
    fn seen(&self, buffer: &Buffer<u32>) -> Vec<Option<u32>> {
        let word = |item: u64| {
            let part = buffer.range(item..item + 1);
            let grants = self.platform.acquire(CPU).read(&part).wait().ok()?;
            let seen = words(&grants.read_bytes(&part).ok()?)[0];
            grants.release().ok()?;
            Some(seen)
        };
        (0..self.items).map(word).collect()
    }

    fn run(&self, collect: bool) -> Result<Report, RunError> {
        // The first one computes nearly all.
        let run = Coexecutor::new(&self.platform).devices([MORTAL, OTHER]).powers([100.0, 0.001]);
        let run = run.collect_on(collect.then_some(CPU)).policy("static".parse().expect("a policy"));
        let (kernel, items) = (self.kernel.clone(), self.items);
        watched("a run", move || run.run(&kernel, items)).join()
    }
}

#[test]
fn nothing_is_changed_twice_whenever_a_device_goes() {
    let (mut done, mut given_up) = (0, 0);
    for (items, collect, shares) in
        [(3, true, false), (3, true, true), (3, false, false), (40, true, false), (40, true, true)]
    {
        for call in 1..24 {
            for death in [Death::Before(call), Death::During(call)] {
                let machine = Machine::new(items, shares);
                memory(&machine.platform, 1).die_at(death);
                let ended = machine.run(collect);
                let (state, out) = (machine.seen(&machine.state), machine.seen(&machine.out));
                let what = format!("{items} items, {collect}, {shares}, {death:?}: {ended:?}, {state:?}");
                for (item, word) in (0_u32..).zip(&state) {
                    let is_once = |word: u32| word == item || word == changed(item);
                    assert!(word.is_none_or(is_once), "{item}: {what}");
                }
                match ended {
                    // Without collection, results can be lost with the device after a successful run.
                    Ok(report) if collect => {
                        assert_eq!(
                            state,
                            (0..items as u32).map(|word| Some(changed(word))).collect::<Vec<_>>(),
                            "{what}"
                        );
                        assert_eq!(
                            out,
                            (0..items).map(|item| Some(told(item))).collect::<Vec<_>>(),
                            "{what}"
                        );
                        let computed: u64 = report.packages.iter().map(|record| record.package.items()).sum();
                        assert_eq!(computed, items, "{what}");
                        done += 1;
                    }
                    Ok(_) => {}
                    Err(RunError::Unfinished { missing, ref failures, .. }) => {
                        assert!(missing > 0 && missing <= items && !failures.is_empty(), "{what}");
                        given_up += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    assert!(done > 40 && given_up > 5, "{done}, {given_up}");
}
