//! Why a device is left out of a run.

use std::fmt;

/// Why a device is left out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The others are done before it could help.
    SetUp {
        /// The least that beginning and moving its data takes, in seconds.
        setup_seconds: f64,
        /// What the others take without it, in seconds.
        others_seconds: f64,
    },
    /// The run is expected to take longer with it.
    Slower {
        /// What the chosen devices are expected to take, in seconds.
        seconds: f64,
        /// What the best set with the device is expected to take, in seconds.
        with_it_seconds: f64,
    },
    /// Little is known of it, and finding out would cost more than it could save.
    Unknown {
        /// What the others are expected to take, in seconds.
        others_seconds: f64,
    },
    /// It computes on the cores of those that take part, and is not known to be faster.
    SameCores,
    /// Nothing was known, and the device that began saw that the others could not help.
    NotCalledUp {
        /// What the run took without it, in seconds.
        others_seconds: f64,
    },
    /// The kernel is undivided, and another device computes it.
    Undivided,
    /// The system had no thread for it.
    NoThread,
    /// It was called up, and nothing was left for it when it began.
    TooLate {
        /// When it began, in seconds from the start of the run.
        began_seconds: f64,
        /// What the run took without it, in seconds.
        others_seconds: f64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| seconds * 1e6;
        match *self {
            Self::SetUp { setup_seconds, others_seconds } => write!(
                f,
                "would take {:.0} us to begin; the others are done in {:.0} us",
                us(setup_seconds),
                us(others_seconds)
            ),
            Self::Slower { seconds, with_it_seconds } => write!(
                f,
                "a run would take {:.0} us with it and {:.0} us without",
                us(with_it_seconds),
                us(seconds)
            ),
            Self::Unknown { others_seconds } => write!(
                f,
                "little is known of it, and finding out costs more than it could save: the others are done in {:.0} us",
                us(others_seconds)
            ),
            Self::SameCores => f.write_str("computes on the same cores as those that take part"),
            Self::Undivided => f.write_str("another device computes the kernel, which is undivided"),
            Self::NoThread => f.write_str("there was no thread for it"),
            Self::NotCalledUp { others_seconds } => {
                write!(f, "was not called up: the others were done in {:.0} us", us(others_seconds))
            }
            Self::TooLate { began_seconds, others_seconds } => {
                let (began, others) = (us(began_seconds), us(others_seconds));
                write!(f, "began too late: after {began:.0} us, and the others were done in {others:.0} us")
            }
        }
    }
}
