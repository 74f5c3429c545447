//! Spills a buffer to a disk, which is a memory without kernels. The next use copies it back.
//!
//! ```text
//! cargo run --release --example disk [MIB [FOLDER]]      64 MiB in the folder for temporary files by default
//! ```

mod disk;

use disk::{DISK, Disk};
use dml::core::internal::state::{Alloc, Begin};
use dml::core::{OwnerId, Span};
use dml::prelude::*;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mib: u64 = arguments.next().map_or(Ok(64), |mib| mib.parse())?;
    let folder = arguments.next().map_or_else(std::env::temp_dir, Into::into);

    // Adds this program's backend to those of DML.
    let options = DiscoverOptions::default().backend(Disk { folder, bytes: (mib << 20) + (1 << 20) });
    let platform = Platform::builder().discover_with(&options.only([DISK]))?.build()?;
    let (main, disk) = (platform.arena_named("main_mem")?, platform.arena_named(DISK)?);

    let buffer = platform.buffer::<u32>(mib << 18).label("spilled").build()?;
    let mut view = buffer.write()?;
    let words: &mut [u32] = &mut view;
    words.iter_mut().enumerate().for_each(|(index, word)| *word = (index as u32).wrapping_mul(0x9E37_79B9));
    view.release()?;

    // Spills the buffer and frees its storage in main memory.
    let all = Span::new(0, mib << 20);
    if let Begin::Plan(plan) = buffer.raw().snapshot().prefetch(platform.routes(), OwnerId(0), disk, all) {
        println!("to spill it, {plan:#}");
    }
    buffer.raw().prefetch_in(disk, all.to_range()).wait()?;
    buffer.raw().free(main)?;
    let is_there = |arena| buffer.raw().snapshot().arena(arena).alloc != Alloc::Unallocated;
    println!("has storage: main memory {}, the disk {}", is_there(main), is_there(disk));

    // The next reader copies it back.
    let view = buffer.read()?;
    let is_right = |(index, word): (usize, &u32)| *word == (index as u32).wrapping_mul(0x9E37_79B9);
    if !view.iter().enumerate().all(is_right) {
        return Err("a word is wrong".into());
    }
    for transfer in platform.counters().transfers() {
        let link = platform.links()[usize::from(transfer.link.0)];
        let [from, to] = [link.from, link.to].map(|arena| &platform.desc(arena).name);
        println!(
            "{from} -> {to}: {} bytes in {} copies, {:?}",
            transfer.bytes, transfer.copies, transfer.duration
        );
    }
    Ok(())
}
