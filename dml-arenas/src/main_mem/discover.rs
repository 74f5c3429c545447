//! Adds the processor and its memory, which every machine has.

use super::arena::MainMem;
use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::internal::sync::Arc;
use dml_core::{ArenaId, DeviceDesc, DeviceKind, PlatformBuilder};

/// The device name of the processor.
pub(crate) const CPU: &str = "cpu";

/// Adds the device `cpu` and the arena `main_mem`.
///
/// # Errors
/// [`DiscoverError::BadLimit`] where the options limit `cpu` to no thread, or to more threads than the
/// machine has.
pub(crate) fn discover(
    builder: &mut PlatformBuilder,
    options: &DiscoverOptions,
) -> Result<ArenaId, DiscoverError> {
    let threads = threads();
    let units = match options.limit_of(CPU) {
        None => threads,
        Some(units) if (1..=threads).contains(&units) => units,
        Some(units) => {
            let reason = format!("this process may use {threads} threads");
            return Err(DiscoverError::BadLimit { device: CPU.to_owned(), units, reason });
        }
    };
    let desc =
        DeviceDesc::new(CPU, DeviceKind::Cpu).with_description(description()).with_compute_units(units);
    let native = builder.add_device(desc);
    Ok(builder.add_arena(Arc::new(MainMem::new(native))))
}

/// Returns the number of threads that this process may use at once.
pub(crate) fn threads() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// Returns the vendor's name of the processor.
pub(crate) fn description() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model_name(&cpuinfo).map_or_else(|| format!("{} processor", std::env::consts::ARCH), str::to_owned)
}

fn model_name(cpuinfo: &str) -> Option<&str> {
    let (_, name) = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")?;
    Some(name.trim()).filter(|name| !name.is_empty())
}

#[cfg(all(feature = "offload", target_os = "linux"))]
/// Returns half of the memory that this process may have, in bytes.
pub(crate) fn default_memory() -> u64 {
    crate::machine_memory::total_bytes() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_name_is_found() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Some CPU @ 2.60GHz\n";
        assert_eq!(model_name(cpuinfo), Some("Some CPU @ 2.60GHz"));
        assert_eq!(model_name("processor : 0\nmodel name :\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_processor_is_what_the_system_says() {
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(threads() as usize, cores);
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let named = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let expected = named.map_or_else(|| format!("{} processor", std::env::consts::ARCH), str::to_owned);
        assert_eq!(description(), expected);
    }
}
