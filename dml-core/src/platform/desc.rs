//! Descriptions of devices, for display.

use crate::base::sync::Arc;
use std::fmt;

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A processor. The first device of this kind is the host; others are its cores behind another framework.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Any other device that runs kernels.
    Accelerator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Accelerator => "accelerator",
        })
    }
}

/// The description of a device, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceDesc {
    /// The name used on command lines, unique in a platform (`cpu`, `opencl:0`).
    pub name: Arc<str>,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The vendor's name for the device.
    pub description: String,
    /// The number of compute units (threads, multiprocessors) that it may use.
    pub compute_units: u32,
    /// The version of the driver; empty if there is none or it is unknown.
    pub driver: String,
    /// The identifier of the physical device, if its backend knows it. Two devices with the same identifier
    /// are one piece of hardware, seen by two frameworks.
    pub hardware: Option<String>,
    /// The hardware model, if its backend knows it. Separate devices of the same kind, model, driver
    /// and number of compute units are expected to be equally fast. Measurements of one apply to the others.
    pub model: Option<String>,
}

impl DeviceDesc {
    /// Creates the description of a device with one compute unit.
    #[must_use]
    pub fn new(name: &str, kind: DeviceKind) -> Self {
        Self {
            name: name.into(),
            kind,
            description: String::new(),
            compute_units: 1,
            driver: String::new(),
            hardware: None,
            model: None,
        }
    }

    /// Sets the vendor's description.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Sets the version of the driver.
    #[must_use]
    pub fn with_driver(mut self, version: impl Into<String>) -> Self {
        self.driver = version.into();
        self
    }

    /// Sets the identifier of the physical device, such as its bus address.
    #[must_use]
    pub fn with_hardware(mut self, hardware: impl Into<String>) -> Self {
        self.hardware = Some(hardware.into());
        self
    }

    /// Sets the hardware model, such as the product name.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Returns whether two devices are separate pieces of hardware of one model, and therefore equally fast.
    /// A device without a known model has no twin, and neither has a processor.
    #[must_use]
    pub fn is_twin_of(&self, other: &Self) -> bool {
        let is_same_hardware = self.hardware.is_some() && self.hardware == other.hardware;
        let model = |desc: &Self| (desc.kind, desc.model.clone(), desc.compute_units, desc.driver.clone());
        self.kind != DeviceKind::Cpu
            && self.model.is_some()
            && self.name != other.name
            && !is_same_hardware
            && model(self) == model(other)
    }

    /// Sets the number of compute units.
    #[must_use]
    pub fn with_compute_units(mut self, compute_units: u32) -> Self {
        self.compute_units = compute_units;
        self
    }
}

/// A backend that is unavailable on this machine, with the reason. This is an ordinary value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The backend, such as `opencl`.
    pub backend: &'static str,
    /// The reason why the backend cannot be used.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceDesc, DeviceKind};

    #[test]
    fn kinds_say_what_they_are() {
        let kinds = [DeviceKind::Cpu, DeviceKind::Gpu, DeviceKind::Accelerator];
        assert_eq!(kinds.map(|kind| kind.to_string()), ["cpu", "gpu", "accelerator"]);
    }

    #[test]
    fn twins_are_two_pieces_of_one_model() {
        let gpu =
            |name: &str| DeviceDesc::new(name, DeviceKind::Gpu).with_compute_units(132).with_driver("580.1");
        let one = gpu("cuda:0").with_model("H200").with_hardware("pci 1");
        let twin = gpu("cuda:1").with_model("H200").with_hardware("pci 2");
        assert!(one.is_twin_of(&twin) && twin.is_twin_of(&one));
        assert!(
            gpu("a").with_model("H200").is_twin_of(&gpu("b").with_model("H200")),
            "the hardware of both is unknown"
        );
        assert!(!one.is_twin_of(&one));
        assert!(!gpu("a").is_twin_of(&gpu("b")), "without a model");
        let but = |desc: DeviceDesc| !one.is_twin_of(&desc) && !desc.is_twin_of(&one);
        assert!(but(twin.clone().with_model("H100")) && but(twin.clone().with_compute_units(66)));
        assert!(but(twin.clone().with_driver("550.2")), "another driver compiles another kernel");
        assert!(but(twin.clone().with_hardware("pci 1")), "one device, seen by two frameworks");
        assert!(but(DeviceDesc { kind: DeviceKind::Accelerator, ..twin.clone() }));
        let cores = |name| DeviceDesc { kind: DeviceKind::Cpu, ..gpu(name).with_model("cores") };
        assert!(!cores("a").is_twin_of(&cores("b")));
    }
}
