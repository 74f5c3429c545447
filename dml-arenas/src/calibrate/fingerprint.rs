//! Fingerprints of what measured figures depend on: a machine, and the two ends of a link.

use super::table::LinkTable;
use crate::main_mem::discover::{description, threads};
use dml_core::{ArenaDesc, ArenaKind, DeviceDesc};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Kinds of memory whose copies are made by the calling thread or by the device at the other end. The number
/// of threads of their own device does not matter.
const COPIED_BY_OTHERS: [ArenaKind; 4] =
    [ArenaKind("main_mem"), ArenaKind("offload"), ArenaKind("cuda_pinned"), ArenaKind("shared")];

/// What all measured figures of a machine depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MachineFingerprint {
    /// The vendor's name of the processor.
    pub processor: String,
    /// The number of cores that this process may use.
    pub cores: u32,
    /// The operating system, its architecture and its release.
    pub os: String,
}

impl MachineFingerprint {
    /// Returns the fingerprint of this machine.
    #[must_use]
    pub fn here() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let os = format!("{} {} {}", std::env::consts::OS, std::env::consts::ARCH, release.trim());
        Self { processor: description(), cores: threads(), os: os.trim_end().to_owned() }
    }

    /// Returns 16 hexadecimal digits, which depend on the fingerprint alone and are the same in every
    /// release.
    #[must_use]
    pub fn digest(&self) -> String {
        // FNV-1a over the fields, each terminated by a byte that UTF-8 does not contain.
        let cores = self.cores.to_string();
        let fields = [self.processor.as_str(), &cores, &self.os];
        let bytes = fields.iter().flat_map(|field| field.bytes().chain([0xFF]));
        let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        format!("{hash:016x}")
    }
}

impl fmt::Display for MachineFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores, {}", self.processor, self.cores, self.os)
    }
}

/// What the figures of one end of a link depend on besides the machine: a device, or a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceFingerprint {
    /// The device's name, such as `opencl:0`; of a store, the name of the arena.
    pub name: String,
    /// The vendor's name of the device; of a store, its [description](ArenaDesc::description), or its kind if
    /// it has none.
    pub description: String,
    /// The version of the driver; empty if there is none or it is unknown.
    pub driver: String,
    /// The number of compute units in use, such as those of a sub-device. `None` for a store, and for memory
    /// that is copied by the calling thread or the other device.
    pub units: Option<u32>,
}

impl DeviceFingerprint {
    /// Returns the fingerprint of a device that is the native device of an arena.
    #[must_use]
    pub fn of(device: &DeviceDesc, arena: &ArenaDesc) -> Self {
        Self {
            name: device.name.to_string(),
            description: device.description.clone(),
            driver: device.driver.clone(),
            units: (!COPIED_BY_OTHERS.contains(&arena.kind)).then_some(device.compute_units),
        }
    }

    /// Returns the fingerprint of a store, which has no device.
    fn of_store(arena: &ArenaDesc) -> Self {
        let description = match &*arena.description {
            "" => arena.kind.0,
            description => description,
        };
        Self {
            name: arena.name.to_string(),
            description: description.to_owned(),
            driver: String::new(),
            units: None,
        }
    }
}

impl fmt::Display for DeviceFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)?;
        if !self.driver.is_empty() {
            write!(f, ", driver {}", self.driver)?;
        }
        match self.units {
            Some(units) => write!(f, ", {units} units"),
            None => Ok(()),
        }
    }
}

/// One end of a measured link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkEnd {
    /// The arena's name.
    pub arena: String,
    /// The arena's native device, or the store itself.
    pub device: DeviceFingerprint,
}

impl LinkEnd {
    /// Returns the end of a link in an arena. `None` if the arena is not a store and its native device is not
    /// among `devices`.
    #[must_use]
    pub fn of(devices: &[DeviceDesc], arena: &ArenaDesc) -> Option<Self> {
        let device = match arena.is_store() {
            true => DeviceFingerprint::of_store(arena),
            false => DeviceFingerprint::of(devices.get(usize::from(arena.native.0))?, arena),
        };
        Some(Self { arena: arena.name.to_string(), device })
    }
}

/// The figures of one link, and when they were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CalibratedLink {
    /// The source.
    pub from: LinkEnd,
    /// The destination.
    pub to: LinkEnd,
    /// The mechanism's name.
    pub mechanism: String,
    /// When the link was measured, in seconds since 1970 (UTC).
    pub measured_unix_s: u64,
    /// The measured times.
    pub classes: LinkTable,
}

impl CalibratedLink {
    /// Returns whether the figures are of this link.
    pub(super) fn is_of(&self, from: &LinkEnd, to: &LinkEnd, mechanism: &str) -> bool {
        self.from == *from && self.to == *to && self.mechanism == mechanism
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml_core::{DeviceId, DeviceKind};

    #[test]
    fn a_machine_says_what_it_is() {
        let machine = MachineFingerprint { processor: "a processor".into(), cores: 4, os: "Linux 6".into() };
        assert_eq!(machine.to_string(), "a processor, 4 cores, Linux 6");
    }

    #[test]
    fn the_digest_is_the_hash_of_the_fields() {
        let digest = |processor: &str, cores, os: &str| {
            MachineFingerprint { processor: processor.into(), cores, os: os.into() }.digest()
        };
        // FNV-1a of `foobar`, 0xFF, `8`, 0xFF, `a`, 0xFF, computed by another program.
        assert_eq!(digest("foobar", 8, "a"), "12d1db0bd484afec");
        // The digest depends on the boundaries between fields.
        let digests = [("a", 1, "b"), ("a1", 1, "b"), ("a", 11, "b"), ("a", 1, "1b"), ("", 1, "ab")];
        let digests: std::collections::BTreeSet<_> =
            digests.into_iter().map(|(processor, cores, os)| digest(processor, cores, os)).collect();
        assert_eq!(digests.len(), 5);
    }

    #[test]
    fn units_count_only_where_they_copy() {
        let of = |kind, units| {
            let device = DeviceDesc::new("device", DeviceKind::Cpu).with_compute_units(units);
            DeviceFingerprint::of(&device, &ArenaDesc::new("arena", ArenaKind(kind), DeviceId(0)))
        };
        assert_eq!(of("main_mem", 2), of("main_mem", 8));
        assert_eq!(of("offload", 2), of("offload", 8));
        assert_eq!(of("cuda_pinned", 2), of("cuda_pinned", 8));
        assert_eq!(of("shared", 2), of("shared", 8));
        assert_ne!(of("opencl", 2), of("opencl", 8));
    }
}
