//! What the fuzz targets do with an input, and what replays their corpus in an ordinary test.
//!
//! An input is the random numbers that the generators of the property tests draw, so that fuzzer and property tests share
//! generators and oracles; a test that replays an input needs no fuzzer.

use crate::reference::{Armed, Mix, Place, World};
use crate::rig::{GPU_ARENA, MAIN_ARENA};
use crate::{machine, reference};
use dml_arenas::Script;
use dml_arenas::faulty::{CallKind, Fault};
use dml_core::{Platform, TransferError};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Drives the pure machine; how many operations the input was.
///
/// # Panics
/// When anything contradicts the specification.
pub fn machine(bytes: &[u8]) -> u64 {
    static SHAPES: OnceLock<Vec<(&'static str, Platform)>> = OnceLock::new();
    let Some((shape, zeroed, ops)) = machine::from_bytes(bytes) else { return 0 };
    let shapes = SHAPES.get_or_init(machine::shapes::all);
    machine::run(&shapes[shape % shapes.len()].1, zeroed, &ops);
    ops.len() as u64
}

/// Drives a whole platform and compares it with the reference model. The first four bytes say whether one of its calls
/// goes wrong, which, and how; how many operations the input was.
///
/// # Panics
/// As [`machine()`].
pub fn reference(bytes: &[u8]) -> u64 {
    let Some((head, rest)) = bytes.split_first_chunk() else { return 0 };
    let armed = armed(*head);
    let mix = if armed.is_some() { Mix::Short } else { Mix::All };
    let Some((setup, ops)) = reference::from_bytes(mix, rest) else { return 0 };
    let script = armed.clone().map(|(armed, n)| {
        let script = Script::new().at_kind(armed.kind, n, armed.fault.clone());
        (armed.place, script)
    });
    let platform = setup.shape.scripted(script);
    let mut world = World::new(platform, &setup.buffers, armed.map(|(armed, _)| armed));
    ops.iter().for_each(|op| world.step(op));
    let _ = world.finish();
    ops.len() as u64
}

/// The fault of some bytes, and the number of the call that meets it, in every second input. It is one of those that a
/// fuzzer survives: it ends at the first panic, and a scripted one is none it should report.
fn armed([how, place, kind, n]: [u8; 4]) -> Option<(Armed, u64)> {
    let place = Place::Arena([MAIN_ARENA, GPU_ARENA][usize::from(place % 2)]);
    let transfers = [CallKind::CopyIn, CallKind::CopyOut, CallKind::Fill];
    let others = [CallKind::Alloc, CallKind::Bind, CallKind::Map, CallKind::Unmap];
    let (kind, fault) = match how % 8 {
        0 => (others[usize::from(kind) % others.len()], Fault::fail()),
        1 => (transfers[usize::from(kind) % transfers.len()], Fault::fail()),
        2 => (transfers[usize::from(kind) % transfers.len()], Fault::FailInFence(TransferError::DeviceLost)),
        3 => (transfers[usize::from(kind) % transfers.len()], Fault::Short(u64::from(kind / 32))),
        _ => return None,
    };
    Some((Armed { place, fault, kind }, 1 + u64::from(n % 16)))
}

/// Counts executions and operations, and says now and then how many there were.
pub fn counted(target: &str, operations: u64) {
    static EXECUTIONS: AtomicU64 = AtomicU64::new(0);
    static OPERATIONS: AtomicU64 = AtomicU64::new(0);
    let operations = OPERATIONS.fetch_add(operations, Ordering::Relaxed) + operations;
    let executions = EXECUTIONS.fetch_add(1, Ordering::Relaxed) + 1;
    if executions.is_multiple_of(10_000) {
        eprintln!("fuzz {target}: {executions} executions, {operations} operations");
    }
}
