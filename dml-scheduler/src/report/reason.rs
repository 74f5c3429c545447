//! Why a device is left out of a run.

use std::fmt;

/// Why a device is left out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The other devices finish before this device could help.
    SetUp {
        /// Lower bound on the time for setup and data transfer, and the first item of a known device, in
        /// seconds.
        setup_seconds: f64,
        /// Expected duration of the run without the device, in seconds.
        others_seconds: f64,
    },
    /// The run is expected to take longer with the device, or to gain too little from it.
    Slower {
        /// Expected duration with the chosen devices, in seconds.
        seconds: f64,
        /// Expected duration with the best set that includes the device, in seconds.
        with_it_seconds: f64,
    },
    /// The device's speed is unknown, and a trial would cost more than it could save.
    Unknown {
        /// Expected duration with the best set of known devices, in seconds.
        others_seconds: f64,
    },
    /// The whole run is a trial of an unknown device: it has too few work-groups to be shared.
    Trial,
    /// The device shares cores with devices that take part, and is not known to be faster.
    SameCores,
    /// The policy kept the device in reserve and did not call it up.
    NotCalledUp {
        /// Duration of the run without the device, in seconds.
        others_seconds: f64,
    },
    /// The kernel is undivided, and another device computes it.
    Undivided,
    /// The system had no thread for the device.
    NoThread,
    /// The device was called up, but no work was left when it began.
    TooLate {
        /// Time from the start of the run until the device began, in seconds.
        began_seconds: f64,
        /// Duration of the run without the device, in seconds.
        others_seconds: f64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| seconds * 1e6;
        match *self {
            Self::SetUp { setup_seconds, others_seconds } => write!(
                f,
                "its setup takes at least {:.0} us; the others finish in {:.0} us",
                us(setup_seconds),
                us(others_seconds)
            ),
            Self::Slower { seconds, with_it_seconds } => write!(
                f,
                "the run would take {:.0} us with it and {:.0} us without it",
                us(with_it_seconds),
                us(seconds)
            ),
            Self::Unknown { others_seconds } => write!(
                f,
                "unknown speed, and a trial would cost more than it saves: the others finish in {:.0} us",
                us(others_seconds)
            ),
            Self::Trial => f.write_str("the run is a trial of a device with unknown speed"),
            Self::SameCores => f.write_str("shares its cores with devices that take part"),
            Self::Undivided => f.write_str("the kernel is undivided, and another device computes it"),
            Self::NoThread => f.write_str("no thread was available for it"),
            Self::NotCalledUp { others_seconds } => {
                write!(f, "was not called up: the others finished in {:.0} us", us(others_seconds))
            }
            Self::TooLate { began_seconds, others_seconds } => {
                let (began, others) = (us(began_seconds), us(others_seconds));
                write!(f, "began too late: after {began:.0} us; the others finished in {others:.0} us")
            }
        }
    }
}
