//! What the policy of a run was built from, as lines of text, and the same policy again.
//!
//! ```text
//!   work 100000 local 64                  overlaps u1              opens u0 threads 16
//!   unit u0 cpu                           left_out u2              joins u1 0.00015 0.000000001
//!                                                                  tries u1 100000 after 0.00002 takes 0.0002
//!                                                                  twin u2
//!                                                                  rival u1 0.00015 0.000000001
//!   unit u1 opencl:0                      opens u0 packages 14     opens u0 threads 16 launch 0.000025
//!   policy calibrated                     policy static 1 0.35     policy hguided:2 1 0.35     alone 16
//!   prior u0 measured 1500000 2500
//!   prior u1 power 0.35
//! ```
//! Rates are items per second, the launch of a measured unit nanoseconds, and what keeps a unit from joining seconds: until
//! it begins, and per item.

use super::{Calibrated, Dynamic, Freight, Opening, Policy, PolicyError, PolicySpec, Prior, Tries, Twins};
use crate::UnitId;
use std::fmt;
use std::time::Duration;

/// What the policy of a run was built from: the work, the units, and what was known of them.
///
/// Built again, it decides as the first one did, as long as it is asked and told the same ([`replay`](super::replay())).
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    pub(super) work: u64,
    pub(super) local_size: u64,
    /// The names of the units' devices.
    pub(super) units: Vec<String>,
    pub(super) plan: Plan,
}

/// Who decides, and what it knows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Plan {
    /// A policy by its name, and the powers of the units.
    Given(PolicySpec, Vec<f64>),
    /// Equal packages: so many.
    Packages(u64),
    Calibrated(Learned),
}

/// What [`Calibrated`] begins with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Learned {
    pub(crate) priors: Vec<Option<Prior>>,
    pub(crate) overlapping: Vec<UnitId>,
    pub(crate) left_out: Vec<UnitId>,
    pub(crate) opening: Option<Opens>,
}

/// One unit begins, and the others may join.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Opens {
    pub(crate) first: UnitId,
    pub(crate) others: Vec<(UnitId, Freight)>,
    /// Whether they join at once.
    pub(crate) at_once: bool,
    /// Whether the first unit computes all in one package.
    pub(crate) undivided: bool,
    /// How many threads the first unit has.
    pub(crate) threads: u64,
    /// How many seconds a launch of it takes, besides what it computes.
    pub(crate) launch: f64,
    /// If all others are its twins: in how many packages it computes all, unless it calls them up.
    pub(crate) packages: Option<u64>,
    /// Which unit can be tried out.
    pub(crate) tries: Option<Tries>,
    /// Which of the others are as fast as that one.
    pub(crate) twins: Vec<UnitId>,
    /// Which unit computes on the cores of the first one, and is compared with it.
    pub(crate) rival: Option<(UnitId, Freight)>,
}

impl Blueprint {
    pub(crate) fn new(work: u64, local_size: u64, units: Vec<String>, plan: Plan) -> Self {
        // A name is the rest of its line.
        let units = units.into_iter().map(|name| name.replace(['\n', '\r'], " ")).collect();
        Self { work, local_size, units, plan }
    }

    /// The items of the run.
    #[must_use]
    pub const fn work(&self) -> u64 {
        self.work
    }

    /// The items of a work-group.
    #[must_use]
    pub const fn local_size(&self) -> u64 {
        self.local_size
    }

    /// The name of each unit's device, in the order of the units.
    #[must_use]
    pub fn units(&self) -> &[String] {
        &self.units
    }

    /// Builds the policy.
    ///
    /// # Errors
    /// [`PolicyError`]: a fact is out of its range. What a run recorded is not, but a text may say anything.
    pub fn build(&self) -> Result<Box<dyn Policy>, PolicyError> {
        let Self { work, local_size, .. } = *self;
        Ok(match &self.plan {
            Plan::Given(spec, powers) => spec.build(powers, work, local_size)?,
            Plan::Packages(packages) => Box::new(Dynamic::new(*packages, work, local_size)?),
            Plan::Calibrated(Learned { priors, overlapping, left_out, opening }) => {
                let policy = Calibrated::new(work, local_size, priors)?;
                let mut policy = policy.overlapping(overlapping.iter().copied());
                left_out.iter().for_each(|unit| policy.retire(*unit));
                match opening {
                    None => Box::new(policy),
                    Some(Opens { first, others, at_once, packages: Some(packages), .. }) => {
                        let twins = Twins::new((work, *packages), *first, others.clone());
                        Box::new(if *at_once { twins.at_once() } else { twins })
                    }
                    Some(Opens {
                        first,
                        others,
                        at_once,
                        undivided,
                        threads,
                        launch,
                        tries,
                        twins,
                        rival,
                        ..
                    }) => {
                        let opening = Opening::new(policy, work, *first, others.clone());
                        let opening = opening.threads(*threads).launch(*launch);
                        let opening = if *undivided { opening.undivided() } else { opening };
                        let opening = opening.tries(*tries).twins(twins.clone()).rival(*rival);
                        Box::new(if *at_once { opening.at_once() } else { opening })
                    }
                }
            }
        })
    }
}

impl fmt::Display for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "work {} local {}", self.work, self.local_size)?;
        for (index, name) in self.units.iter().enumerate() {
            writeln!(f, "unit u{index} {name}")?;
        }
        match &self.plan {
            Plan::Given(spec, powers) => {
                write!(f, "policy {spec}")?;
                powers.iter().try_for_each(|power| write!(f, " {power}"))?;
                writeln!(f)
            }
            Plan::Packages(packages) => writeln!(f, "alone {packages}"),
            Plan::Calibrated(learned) => {
                writeln!(f, "policy {}", PolicySpec::Calibrated)?;
                learned.fmt(f)
            }
        }
    }
}

impl fmt::Display for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, prior) in self.priors.iter().enumerate() {
            match prior {
                Some(Prior { rate, launch, trusted: true }) => {
                    writeln!(f, "prior u{index} measured {rate} {}", launch.as_nanos())?;
                }
                Some(Prior { rate, .. }) => writeln!(f, "prior u{index} power {rate}")?,
                None => {}
            }
        }
        self.overlapping.iter().try_for_each(|unit| writeln!(f, "overlaps {unit}"))?;
        self.left_out.iter().try_for_each(|unit| writeln!(f, "left_out {unit}"))?;
        let Some(opening) = &self.opening else { return Ok(()) };
        let Opens { first, others, at_once, undivided, threads, launch, packages, tries, twins, rival } =
            opening;
        let how = [(*at_once, " at_once"), (*undivided, " undivided")];
        let how: String = how.iter().filter(|(is, _)| *is).map(|(_, how)| *how).collect();
        write!(f, "opens {first}{how}")?;
        match packages {
            Some(packages) => writeln!(f, " packages {packages}")?,
            // What takes no time is not written: a host's is a call.
            None if launch.to_bits() == 0 => writeln!(f, " threads {threads}")?,
            None => writeln!(f, " threads {threads} launch {launch}")?,
        }
        others.iter().try_for_each(|(unit, Freight { setup, per_item })| {
            writeln!(f, "joins {unit} {setup} {per_item}")
        })?;
        tries.iter().try_for_each(|Tries { unit, items, after, takes }| {
            writeln!(f, "tries {unit} {items} after {after} takes {takes}")
        })?;
        twins.iter().try_for_each(|unit| writeln!(f, "twin {unit}"))?;
        rival.iter().try_for_each(|(unit, Freight { setup, per_item })| {
            writeln!(f, "rival {unit} {setup} {per_item}")
        })
    }
}

/// Reads the lines of a blueprint.
#[derive(Debug, Default)]
pub(super) struct Reader {
    size: Option<(u64, u64)>,
    units: Vec<String>,
    decides: Option<Plan>,
}

impl Reader {
    /// Reads a line. `None` if it says nothing that can stand there.
    pub(super) fn read(&mut self, line: &str) -> Option<()> {
        if let Some(named) = line.strip_prefix("unit ") {
            let (unit, name) = named.split_once(' ')?;
            // Whoever decides knows how many there are.
            let is_next = self.decides.is_none() && unit == format!("u{}", self.units.len());
            return is_next.then(|| self.units.push(name.to_owned()));
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["work", work, "local", local] if self.size.is_none() => {
                self.size = Some((work.parse().ok()?, local.parse().ok()?));
            }
            ["alone", packages] if self.decides.is_none() => {
                self.decides = Some(Plan::Packages(packages.parse().ok()?));
            }
            ["policy", spec, ref powers @ ..] if self.decides.is_none() => {
                self.decides = Some(self.policy(spec, powers)?);
            }
            _ => self.learned(&words)?,
        }
        Some(())
    }

    fn policy(&self, spec: &str, powers: &[&str]) -> Option<Plan> {
        let spec: PolicySpec = spec.parse().ok()?;
        if spec == PolicySpec::Calibrated {
            let priors = vec![None; self.units.len()];
            let learned = Learned { priors, overlapping: Vec::new(), left_out: Vec::new(), opening: None };
            return powers.is_empty().then_some(Plan::Calibrated(learned));
        }
        let powers: Vec<f64> = powers.iter().map(|power| power.parse().ok()).collect::<Option<_>>()?;
        (powers.len() == self.units.len()).then_some(Plan::Given(spec, powers))
    }

    /// Reads what calibrated begins with.
    fn learned(&mut self, words: &[&str]) -> Option<()> {
        let units = self.units.len();
        let known = |word: &str| super::replay::unit(word).filter(|unit| unit.0 < units);
        let Some(Plan::Calibrated(learned)) = &mut self.decides else { return None };
        match *words {
            ["prior", unit, ref prior @ ..] => {
                let prior = match *prior {
                    ["measured", rate, launch] => {
                        Prior::measured(rate.parse().ok()?, Duration::from_nanos(launch.parse().ok()?))
                    }
                    ["power", power] => Prior::of_power(power.parse().ok()?),
                    _ => return None,
                };
                learned.priors[known(unit)?.0] = Some(prior);
            }
            ["overlaps", unit] => learned.overlapping.push(known(unit)?),
            ["left_out", unit] => learned.left_out.push(known(unit)?),
            ["opens", unit, ref how @ ..] if learned.opening.is_none() => {
                let (at_once, how) = match *how {
                    ["at_once", ref how @ ..] => (true, how),
                    ref how => (false, how),
                };
                let (undivided, how) = match *how {
                    ["undivided", ref how @ ..] => (true, how),
                    ref how => (false, how),
                };
                let (threads, launch, packages) = match *how {
                    ["threads", threads] => (threads.parse().ok()?, 0.0, None),
                    ["threads", threads, "launch", launch] => {
                        (threads.parse().ok()?, launch.parse().ok()?, None)
                    }
                    ["packages", packages] => (1, 0.0, Some(packages.parse().ok()?)),
                    _ => return None,
                };
                let first = known(unit)?;
                let (others, tries, twins, rival) = (Vec::new(), None, Vec::new(), None);
                learned.opening = Some(Opens {
                    first,
                    others,
                    at_once,
                    undivided,
                    threads,
                    launch,
                    packages,
                    tries,
                    twins,
                    rival,
                });
            }
            ["joins", unit, setup, per_item] => {
                let freight = Freight { setup: setup.parse().ok()?, per_item: per_item.parse().ok()? };
                learned.opening.as_mut()?.others.push((known(unit)?, freight));
            }
            ["tries", unit, items, "after", after, ref takes @ ..] => {
                let opening = learned.opening.as_mut().filter(|opening| opening.tries.is_none())?;
                let (unit, items, after) = (known(unit)?, items.parse().ok()?, after.parse().ok()?);
                let takes = match takes {
                    // Earlier versions went by nothing.
                    [] => 0.0,
                    ["takes", takes] => takes.parse().ok()?,
                    _ => return None,
                };
                opening.tries = Some(Tries { unit, items, after, takes });
            }
            ["twin", unit] => learned.opening.as_mut()?.twins.push(known(unit)?),
            ["rival", unit, setup, per_item] => {
                let freight = Freight { setup: setup.parse().ok()?, per_item: per_item.parse().ok()? };
                let opening = learned.opening.as_mut().filter(|opening| opening.rival.is_none())?;
                opening.rival = Some((known(unit)?, freight));
            }
            _ => return None,
        }
        Some(())
    }

    /// The blueprint, if nothing is missing.
    pub(super) fn end(self) -> Option<Blueprint> {
        let ((work, local_size), plan) = (self.size?, self.decides?);
        Some(Blueprint { work, local_size, units: self.units, plan })
    }
}
