//! Probe.
use dml_arenas::{Discover, DiscoverOptions};
use dml_core::Platform;
use dml_workloads::by_hand::chain::{Chains, Shape};
fn main() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default()).unwrap().build().unwrap();
    let device = platform.device("opencl:0").unwrap();
    let chains = Chains::new(&platform, device, 64).unwrap();
    for n in [50, 200, 1000, 5000, 20000, 20000, 20000] {
        let took = chains.submitted(Shape::Chain, n).unwrap();
        println!("{n}: {:.2} us", took.as_secs_f64() / n as f64 * 1e6);
    }
}
