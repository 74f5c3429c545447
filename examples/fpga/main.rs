//! A pipeline over two simulated FPGA boards. The host reaches the second one only through the first, and the
//! planner finds the path.
//!
//! ```text
//! cargo run --release --example fpga [KIB]      1024 KiB by default
//! ```

mod board;

use board::{BoardArena, Boards};
use dml::core::internal::state::Begin;
use dml::core::{OwnerId, Span};
use dml::prelude::*;
use std::error::Error;

/// Returns the board of a device.
fn board(platform: &Platform, device: DeviceId) -> Result<&BoardArena, Box<dyn Error>> {
    let home = platform.home(device).ok_or("every board has a memory")?;
    Ok(platform.arena(home).downcast_ref::<BoardArena>().ok_or("the device is no board")?)
}

/// Runs a kernel on the bytes of a buffer, on the device's board.
fn run(
    platform: &Platform,
    device: DeviceId,
    buffer: &Buffer<u8>,
    kernel: fn(&mut [u8]),
) -> Result<(), Box<dyn Error>> {
    let grants = platform.acquire(device).read_write(buffer).wait()?;
    let fence = board(platform, device)?.launch(grants.block(buffer)?.ok_or("the buffer has bytes")?, kernel);
    Ok(grants.in_flight(fence).wait()?.release()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let kib: u64 = std::env::args().nth(1).map_or(Ok(1024), |kib| kib.parse())?;
    let options = DiscoverOptions::default().backend(Boards { bytes: (kib << 10) + (1 << 20) });
    let platform = Platform::builder().discover_with(&options.only(["fpga:0", "fpga:1"]))?.build()?;
    let (near, far) = (platform.device("fpga:0")?, platform.device("fpga:1")?);

    let bytes: Vec<u8> = (0..kib << 10).map(|index| (index % 251) as u8).collect();
    let bytes_len = bytes.len();
    let buffer = platform.buffer_from(bytes)?;

    // From main memory to the second board, through the first.
    let (home, all) = (platform.home(far).ok_or("every board has a memory")?, Span::new(0, kib << 10));
    if let Begin::Plan(plan) = buffer.raw().snapshot().prefetch(platform.routes(), OwnerId(0), home, all) {
        println!("to reach the second board, {plan:#}");
    }
    run(&platform, far, &buffer, |bytes| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3)))?;
    run(&platform, near, &buffer, |bytes| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(7)))?;

    let view = buffer.read()?;
    let expected = |index: usize| ((index % 251) as u8).wrapping_mul(3).wrapping_add(7);
    if let Some(wrong) = view.iter().enumerate().position(|(index, byte)| *byte != expected(index)) {
        return Err(format!("byte {wrong} is {} instead of {}", view[wrong], expected(wrong)).into());
    }
    for transfer in platform.counters().transfers() {
        let link = platform.links()[usize::from(transfer.link.0)];
        let [from, to] = [link.from, link.to].map(|arena| &platform.desc(arena).name);
        println!("{from} -> {to}: {} bytes in {} copies", transfer.bytes, transfer.copies);
    }
    drop(view);

    // Losing a board loses no bytes that are valid elsewhere.
    board(&platform, far)?.unplug();
    let refused = platform.acquire(far).read(&buffer.range(0..1)).wait().map(drop);
    println!("{}", refused.err().ok_or("nothing can be acquired on a board that is gone")?);
    println!("the last byte is {}", buffer.read()?[bytes_len - 1]);
    Ok(())
}
