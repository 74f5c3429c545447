//! Runs one program of [`dml_workloads::overhead`], for a profiler: `overhead PROGRAM OPERATIONS`. Prints the
//! nanoseconds per operation. Without arguments, prints the memory of buffers.

use dml_workloads::overhead::{Footprint, Program};
use std::error::Error;
use std::num::NonZeroU64;
use std::process::ExitCode;

const USAGE: &str = "usage: overhead [PROGRAM OPERATIONS], with a number above 0";

fn main() -> ExitCode {
    let run = run();
    if let Err(error) = &run {
        eprintln!("overhead: {error}");
    }
    if run.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [program, operations] => {
            let program: Program = program.parse()?;
            let operations = operations.parse::<NonZeroU64>().map_err(|_| USAGE)?.get();
            let time = program.prepare()?.run(operations)?;
            println!("{program}: {:.1} ns", time.as_secs_f64() * 1e9 / operations as f64);
        }
        [] => match Footprint::measured()? {
            Some(Footprint { buffer_bytes, storage_bytes, range_bytes, .. }) => println!(
                "bytes: {buffer_bytes:.1} for a buffer, {storage_bytes:.1} for its storage, {range_bytes:.1} for a range"
            ),
            None => return Err("the system does not tell the memory of a process".into()),
        },
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
