//! Probe.
use dml_arenas::{Discover, DiscoverOptions};
use dml_core::{Fence, Grants, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform};
struct Nothing;
impl Launcher for Nothing {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }
    fn runs_in_order(&self) -> bool {
        true
    }
    fn launch(&self, _: &Launch<'_>, _: &mut Grants) -> Result<Fence, LaunchError> {
        Ok(Fence::done(0))
    }
}
fn main() {
    let platform = Platform::builder()
        .discover_with(&DiscoverOptions::default().only(["cpu"]))
        .unwrap()
        .build()
        .unwrap();
    let device = platform.device("cpu").unwrap();
    let a = platform.buffer::<f32>(1000).zeroed().build().unwrap();
    let b = platform.buffer::<f32>(1000).zeroed().build().unwrap();
    let label: &str = "x";
    let _ = label;
    for n in [1000u64, 100000, 300000, 300000] {
        let t = std::time::Instant::now();
        for i in 0..n {
            let (x, y) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            platform.submit(device, &Nothing).read(x).read(x).write(y).scalar(n).items(n).unwrap();
        }
        let mid = t.elapsed();
        platform.settle(device).unwrap();
        println!(
            "{n}: {:.3} us, settled {:.3}",
            mid.as_secs_f64() / n as f64 * 1e6,
            t.elapsed().as_secs_f64() / n as f64 * 1e6
        );
        let t = std::time::Instant::now();
        for i in 0..n {
            let (x, y) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            platform.acquire(device).read(x).read(x).write(y).wait().unwrap().release().unwrap();
        }
        println!("   acquire/release {:.3} us", t.elapsed().as_secs_f64() / n as f64 * 1e6);
    }
}
