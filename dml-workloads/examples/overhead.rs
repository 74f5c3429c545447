//! Runs one program of [`dml_workloads::overhead`], for a profiler: `overhead PROGRAM OPERATIONS`. Prints the
//! nanoseconds per operation. Without arguments, prints the memory of buffers.

use dml_workloads::overhead::{Footprint, Program};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [program, operations] => {
            let (program, operations): (Program, u64) = (program.parse()?, operations.parse()?);
            let time = program.prepare()?.run(operations)?;
            println!("{program}: {:.1} ns", time.as_secs_f64() * 1e9 / operations as f64);
        }
        [] => println!("{:.1?}", Footprint::measured()?),
        _ => return Err("usage: overhead [PROGRAM OPERATIONS]".into()),
    }
    Ok(())
}
