//! The snippets of the README, with what a reader has to imagine around them, so that they are compiled. `tests/readme.rs`
//! compares them with the README.

/// ```no_run
/// # fn use_them(_: Option<dml::core::NativeHandle>, _: Option<dml::core::NativeHandle>) {}
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (n, lo, hi) = (1000, 0, 500);
/// use dml::{Kernel, prelude::*};
///
/// let platform = Platform::builder().discover()?.build()?;      // every memory found on this machine
/// let gpu = platform.device("opencl:0")?;
/// let a = platform.buffer_from(vec![1.0f32; n])?;               // the application's storage, moved in
/// let c = platform.buffer::<f32>(n as u64).build()?;            // nothing allocated yet
///
/// let grants = platform.acquire(gpu).read(&a).write(&c.range(lo..hi)).wait()?;  // or try_now(), wait_timeout(d), .await
/// use_them(grants.native(&a)?, grants.native(&c)?);             // the framework's own handles, for a launch of your own
/// grants.release()?;                                            // commits what was written; a drop without it rolls back
///
/// let view = c.read()?;                                         // the host sees the latest contents: &[f32]; or load_into(&mut slice)
/// # Ok(())
/// # }
/// ```
mod acquire {}

/// ```no_run
/// # use dml::{Kernel, prelude::*};
/// # const SOURCE: &str = "";
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let platform = Platform::builder().discover()?.build()?;
/// # let a = platform.buffer_from(vec![1.0f32; 1000])?;
/// # let c = platform.buffer::<f32>(1000).build()?;
/// let host = launch::host(&platform, |call| { /* slices of the package's parts of a and c */ Ok(()) })?;
/// let opencl = unsafe { launch::opencl(&platform, SOURCE, "scale", "") }?;              // you answer for what SOURCE touches
/// let kernel = Kernel::new("scale", 64).scalar(2.5_f32).read(&a).write(&c).end();       // as in SOURCE's signature: kinds and scalars are checked
/// let report = Coexecutor::new(&platform).run(&kernel.launchers(host)?.launchers(opencl)?, c.len())?;
/// # Ok(())
/// # }
/// ```
mod coexecute {}

/// ```no_run
/// # use dml::{Kernel, prelude::*};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let platform = Platform::builder().discover()?.build()?;
/// # let picture = platform.buffer_from(vec![1.0f32; 640 * 480])?;
/// # let (kernel, items, gpu) = (Kernel::new("blur", 64), 640 * 480, platform.device("opencl:0")?);
/// # let _ = (
/// Argument::part(&picture, Access::ReadOnly, Footprint::rows(640, 640 * 4, 3))          // its rows, and three above and below
/// # );
/// # let _ =
/// check_footprints(&platform, &kernel, items, gpu)?;                                     // are they right? names the first wrong byte
/// # Ok(())
/// # }
/// ```
mod footprints {}

/// ```no_run
/// # use dml::{Kernel, prelude::*};
/// # async fn started(platform: &Platform, kernel: &Kernel, items: u64) -> Result<(), Box<dyn std::error::Error>> {
/// let mut running = Coexecutor::new(&platform).devices_where(|device| device.units > 1).start(&kernel, items)?;
/// println!("{} of {items}", running.progress().computed);                                // and by device
/// let report = running.await?;                                                           // or wait(), wait_timeout(d), cancel()
/// # Ok(())
/// # }
/// ```
mod start {}

/// ```no_run
/// # use dml::{Kernel, prelude::*};
/// # use dml::timeline::Trace;
/// # use std::fs::File;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let platform = Platform::builder().discover()?.build()?;
/// # let (coexecutor, kernel, items) = (Coexecutor::new(&platform), Kernel::new("traced", 64), 1000);
/// let recording = Trace::record(&platform);                                              // dml::timeline::Trace
/// let trace = recording.finish(&coexecutor.run(&kernel, items)?)?;
/// trace.write_page(File::create("run.html")?)?;                                          // or write_perfetto, or serde
/// # Ok(())
/// # }
/// ```
mod timeline {}

/// ```no_run
/// # use dml::launch::{Call, ComputeError};
/// # use dml::prelude::*;
/// # use std::error::Error;
/// # fn smooth(_: &mut Call<'_>) -> Result<(), ComputeError> { Ok(()) }
/// fn main() -> Result<(), Box<dyn Error>> {
///     offload::hook(Registry::new().with("smooth", smooth));    // in the worker, this does not return
///     let platform = Platform::builder().discover()?.build()?;  // offload:0 is there, and can run "smooth"
/// # let _ = platform;
/// # Ok(())
/// # }
/// ```
mod worker {}

/// ```no_run
/// # use dml::prelude::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let platform = Platform::builder().discover_with(&DiscoverOptions::default().bind("opencl:0"))?.build()?;
/// # Ok(())
/// # }
/// ```
mod bind {}

/// ```no_run
/// # use dml::prelude::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let platform = Platform::builder().discover()?.build()?;
/// # let (cpu, gpu, n) = (platform.device("cpu")?, platform.device("opencl:0")?, 1000);
/// let field = platform.buffer::<f32>(n).used_by([cpu, gpu]).pattern(Pattern::ToAndFro).build()?;
/// # Ok(())
/// # }
/// ```
mod hints {}

/// ```no_run
/// # use dml::prelude::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let n = 1000;
/// let options = DiscoverOptions::default().cuda_pinned(8 << 30).allow_binding("cuda:0");
/// let platform = Platform::builder().discover_with(&options)?.build()?;
/// let result = platform.buffer::<f32>(n).pattern(Pattern::ToAndFro).build()?;
/// # Ok(())
/// # }
/// ```
mod in_place {}

/// ```no_run
/// # use dml::prelude::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = DiscoverOptions::default().offload(2).share(["cpu", "offload:0", "offload:1"]);
/// let platform = Platform::builder().discover_with(&options)?.build()?;
/// # Ok(())
/// # }
/// ```
mod share {}

/// ```no_run
/// # use dml::arenas::{DiscoverError, kit::Backend};
/// # use dml::core::{ArenaId, PlatformBuilder};
/// # use dml::prelude::*;
/// # #[derive(Debug)]
/// # struct Disk { folder: std::path::PathBuf, bytes: u64 }
/// # impl Backend for Disk {
/// #     fn name(&self) -> &'static str { "disk" }
/// #     fn devices(&self) -> Vec<String> { Vec::new() }
/// #     fn add(&self, _: &mut PlatformBuilder, _: ArenaId, _: &DiscoverOptions) -> Result<(), DiscoverError> { Ok(()) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (folder, len) = (std::env::temp_dir(), 1000);
/// # let buffer = Platform::builder().build()?.buffer::<f32>(1000).build()?;
/// let options = DiscoverOptions::default().backend(Disk { folder, bytes: 1 << 30 });
/// let platform = Platform::builder().discover_with(&options)?.build()?;
/// buffer.raw().prefetch_in(platform.arena_named("disk")?, 0..len).wait()?;   // then free it in main memory; whoever uses it gets it back
/// # Ok(())
/// # }
/// ```
mod disk {}
