//! Runs the inputs of the fuzz targets, also for ordinary tests that replay their corpus.
//!
//! An input holds the random numbers that the generators of the property tests draw. So fuzzer and property
//! tests share generators and oracles, and a test that replays an input needs no fuzzer.

use crate::history::Audited;
use crate::reference::{Armed, Mix, Shipping, World};
use crate::{GPU_ARENA, MAIN_ARENA, Place, Shape, machine, reference};
use dml_arenas::Script;
use dml_arenas::faulty::{CallKind, Fault};
use dml_core::{Platform, PlatformBuilder, TransferError};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Drives the pure machine. Returns the number of operations that the input encodes.
///
/// # Panics
/// When the machine contradicts the specification.
pub fn machine(bytes: &[u8]) -> u64 {
    static PLATFORMS: OnceLock<Vec<Platform>> = OnceLock::new();
    let Some((shape, zeroed, ops)) = machine::from_bytes(bytes) else { return 0 };
    let platforms = PLATFORMS.get_or_init(|| Shape::OF_THE_MACHINE.map(Shape::plain).into());
    machine::run(&platforms[shape % platforms.len()], zeroed, &ops);
    ops.len() as u64
}

/// Drives a whole platform and compares it with the reference model. The first four bytes say whether one of
/// its calls fails, which one, and how. Returns the number of operations that the input encodes.
///
/// # Panics
/// When the platform contradicts the model.
pub fn reference(bytes: &[u8]) -> u64 {
    let Some((head, rest)) = bytes.split_first_chunk() else { return 0 };
    let armed = armed(*head);
    let mix = if armed.is_some() { Mix::Short } else { Mix::All };
    let Some((setup, ops)) = reference::from_bytes(mix, rest) else { return 0 };
    let mut rig = setup.shape.rig();
    if let Some((armed, n)) = &armed {
        rig = rig.scripted(armed.place, Script::new().at_kind(armed.kind, *n, armed.fault.clone()));
    }
    let mut world = World::new(rig.build(), &setup.buffers, armed.map(|(armed, _)| armed));
    ops.iter().for_each(|op| world.step(op));
    let _ = world.finish();
    ops.len() as u64
}

/// Drives memories that ship and compares them with the reference model. The first byte says
/// [which](Shipping). Devices and workers are found once, and every input has a platform of its own on them.
/// Workers run `program`, or this program if it calls `offload::hook`. Returns the number of operations that
/// the input encodes, or zero if this machine does not have the memories.
///
/// # Panics
/// When the platform contradicts the model.
pub fn shipping(program: Option<&Path>, bytes: &[u8]) -> u64 {
    static FOUND: [OnceLock<Option<PlatformBuilder>>; Shipping::ALL.len()] =
        [const { OnceLock::new() }; Shipping::ALL.len()];
    let Some((which, rest)) = bytes.split_first() else { return 0 };
    let which = usize::from(*which) % FOUND.len();
    // The shape is of test arenas, and not used.
    let Some((setup, ops)) = reference::from_bytes(Mix::All, rest) else { return 0 };
    let found = FOUND[which].get_or_init(|| {
        let found = Shipping::ALL[which].discover(program);
        found.inspect_err(|missing| eprintln!("{:?} is not driven: {missing}", Shipping::ALL[which])).ok()
    });
    let Some(builder) = found else { return 0 };
    let platform = builder.clone().build().expect("what discovery adds fits together");
    let _ = reference::run(Audited::new(platform), &setup.buffers, &ops);
    ops.len() as u64
}

/// Returns the fault that some bytes encode, and the number of the call that meets it; every second input has
/// one. Panics are excluded: a fuzzer ends at the first panic, and must not report a scripted one.
fn armed([how, place, kind, n]: [u8; 4]) -> Option<(Armed, u64)> {
    let place = Place::Arena([MAIN_ARENA, GPU_ARENA][usize::from(place % 2)]);
    let transfers = [CallKind::CopyIn, CallKind::CopyOut, CallKind::Fill];
    let others = [CallKind::Alloc, CallKind::Bind, CallKind::Map, CallKind::Unmap];
    let (kind, fault) = match how % 8 {
        0 => (others[usize::from(kind) % others.len()], Fault::fail()),
        1 => (transfers[usize::from(kind) % transfers.len()], Fault::fail()),
        2 => (
            transfers[usize::from(kind) % transfers.len()],
            Fault::FailInFence(TransferError::DeviceLost { loss: None }),
        ),
        3 => (transfers[usize::from(kind) % transfers.len()], Fault::Short(u64::from(kind / 32))),
        _ => return None,
    };
    Some((Armed { place, fault, kind }, 1 + u64::from(n % 16)))
}

/// Counts executions and operations, and prints the counts now and then.
pub fn counted(target: &str, operations: u64) {
    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
    static OPERATIONS: AtomicU64 = AtomicU64::new(0);
    let operations = OPERATIONS.fetch_add(operations, Ordering::Relaxed) + operations;
    let executions = EXECUTIONS.fetch_add(1, Ordering::Relaxed) + 1;
    if executions.is_multiple_of(10_000) {
        eprintln!("fuzz {target}: {executions} executions, {operations} operations");
    }
}
