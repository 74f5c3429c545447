//! Devices that exist on paper only.

use std::time::Duration;

/// A device, with what it costs to use it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Device {
    /// Its power beside the others of the system.
    pub power: f64,
    /// What every package costs the device before its first item.
    pub launch: Duration,
    /// How long it takes to hand a package to the device. While the device computes another one, this costs
    /// nothing.
    pub turnaround: Duration,
    /// What has to be done once, before the device can be handed anything.
    pub setup: Duration,
    /// So many items of cost 1 take it as long as fewer: it computes them side by side.
    pub fills: f64,
    /// The way to the device; `None` where nothing travels.
    pub link: Option<Link>,
    /// When the device is lost, if it is.
    pub dies: Option<Duration>,
}

/// A way to a device and back; both directions work at once.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Link {
    /// What every transfer costs.
    pub latency: Duration,
    /// Seconds per item on the way in.
    pub inward_s: f64,
    /// Seconds per item on the way out.
    pub outward_s: f64,
}

impl Link {
    /// Makes a link of a latency and the seconds that an item takes in and out.
    #[must_use]
    pub const fn new(latency: Duration, inward_s: f64, outward_s: f64) -> Self {
        Self { latency, inward_s, outward_s }
    }
}

impl Device {
    /// A device of this power, to which handing a package costs time in these two ways.
    #[must_use]
    pub const fn new(power: f64, launch: Duration, turnaround: Duration) -> Self {
        Self { power, launch, turnaround, setup: Duration::ZERO, fills: 0.0, link: None, dies: None }
    }
}

/// Some devices that work together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct System {
    /// A short name.
    pub name: &'static str,
    /// The devices.
    pub devices: Vec<Device>,
}

impl System {
    /// Makes a system.
    #[must_use]
    pub fn new(name: &'static str, devices: Vec<Device>) -> Self {
        Self { name, devices }
    }

    /// The four systems of the tables. A package costs what handing one to an OpenCL device takes, most of it
    /// on the way.
    #[must_use]
    pub fn four() -> [Self; 4] {
        let device = |power, micros| {
            let launch = Duration::from_micros(5);
            Device::new(power, launch, Duration::from_micros(micros) - launch)
        };
        [
            Self::new("two equal cores", vec![device(1.0, 60), device(1.0, 60)]),
            Self::new("two fast, two slow", [1.0, 0.45, 0.45, 1.0].map(|power| device(power, 30)).to_vec()),
            Self::new("a slow one first", vec![device(0.09, 145), device(1.0, 145)]),
            Self::new("a slow one last", vec![device(1.0, 45), device(0.15, 45)]),
        ]
    }

    /// A processor, and up to three devices that differ from it and from each other: a GPU, one of less than
    /// half its speed behind a slow link, and an accelerator that is slower than the processor.
    #[must_use]
    pub fn unequal(devices: usize) -> Self {
        let micros = Duration::from_micros;
        let cpu = Device::new(1.0, micros(2), micros(3));
        let gpu = |power, fills, link_s| Device {
            setup: micros(80),
            fills,
            link: Some(Link::new(micros(10), 0.0, link_s)),
            ..Device::new(power, micros(15), micros(10))
        };
        let accelerator = Device { setup: micros(60), ..Device::new(0.5, micros(10), micros(20)) };
        let all = vec![cpu, gpu(12.0, 4096.0, 2e-9), gpu(5.0, 2048.0, 1e-8), accelerator];
        let names = ["cpu", "cpu, GPU", "cpu, two GPUs", "cpu, two GPUs, accelerator"];
        Self::new(names[devices - 1], all.into_iter().take(devices).collect())
    }

    /// A GPU of 70 times the processor beside it, which is further than the devices of the four systems are
    /// apart.
    #[must_use]
    pub fn far_apart() -> Self {
        let device =
            |power, micros| Device::new(power, Duration::from_micros(5), Duration::from_micros(micros));
        Self::new("a GPU of 70 times the CPU", vec![device(70.0, 55), device(1.0, 5)])
    }

    /// The same system, in which every device but the first has to be set going.
    #[must_use]
    pub fn set_going(mut self, setup: Duration) -> Self {
        self.devices.iter_mut().skip(1).for_each(|device| device.setup = setup);
        self
    }

    /// The relative powers.
    #[must_use]
    pub fn powers(&self) -> Vec<f64> {
        self.devices.iter().map(|device| device.power).collect()
    }
}
