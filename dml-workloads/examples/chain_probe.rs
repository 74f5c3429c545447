//! Probe.
use dml_arenas::{Discover, DiscoverOptions};
use dml_core::Platform;
use dml_workloads::by_hand::chain::{Chains, Shape};
fn main() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(std::env::args().skip(1))).unwrap().build().unwrap();
    for name in std::env::args().skip(1) {
        let device = platform.device(&name).unwrap();
        for elements in [64, 1024, 65536] {
            let mut chains = Chains::new(&platform, device, elements).unwrap();
            for shape in Shape::ALL {
                let n: usize = std::env::var("N").map_or(1000, |n| n.parse().unwrap());
                let mut t = [vec![], vec![], vec![], vec![]];
                for _ in 0..9 {
                    t[0].push(chains.by_hand(shape, n).unwrap());
                    t[1].push(chains.submitted(shape, n).unwrap());
                    t[2].push(chains.one_grant(shape, n).unwrap());
                    t[3].push(chains.one_by_one(shape, n).unwrap());
                }
                let m: Vec<f64> = t
                    .iter_mut()
                    .map(|t| {
                        t.sort();
                        t[t.len() / 2].as_secs_f64() / n as f64 * 1e6
                    })
                    .collect();
                println!(
                    "{name} {elements} {:8} hand {:.2} us submit {:.2} ({:.2}) one grant {:.2} ({:.2}) one by one {:.2} ({:.2})",
                    shape.name(),
                    m[0],
                    m[1],
                    m[1] / m[0],
                    m[2],
                    m[2] / m[0],
                    m[3],
                    m[3] / m[0]
                );
            }
        }
    }
}
