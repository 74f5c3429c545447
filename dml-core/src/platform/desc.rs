//! Descriptions of devices, for people.

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

/// The description of a device, for people.
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
    pub units: u32,
    /// The version of the driver, or nothing where there is none or it is not known.
    pub driver: String,
    /// Which piece of hardware the device is, where its backend knows: two devices with the same answer are one, by two
    /// frameworks.
    pub hardware: Option<String>,
}

impl DeviceDesc {
    /// Creates the description of a device with one compute unit.
    #[must_use]
    pub fn new(name: &str, kind: DeviceKind) -> Self {
        Self {
            name: name.into(),
            kind,
            description: String::new(),
            units: 1,
            driver: String::new(),
            hardware: None,
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

    /// Sets which piece of hardware the device is, such as its place on a bus.
    #[must_use]
    pub fn with_hardware(mut self, hardware: impl Into<String>) -> Self {
        self.hardware = Some(hardware.into());
        self
    }

    /// Sets the number of compute units.
    #[must_use]
    pub fn with_units(mut self, units: u32) -> Self {
        self.units = units;
        self
    }
}

/// A backend that this machine lacks, with the reason. This is an ordinary value, not an error.
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
    use super::DeviceKind;

    #[test]
    fn kinds_say_what_they_are() {
        let kinds = [DeviceKind::Cpu, DeviceKind::Gpu, DeviceKind::Accelerator];
        assert_eq!(kinds.map(|kind| kind.to_string()), ["cpu", "gpu", "accelerator"]);
    }
}
