//! Policies by name, as given on the command line.

use super::dynamic::checked_packages;
use super::hguided::checked_divisor;
use super::{
    Calibrated, CustomPolicy, Dynamic, HGuided, Policy, PolicyError, PolicyInput, Prior, Splitter, Static,
};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A policy and its parameters, independent of the powers and the work.
///
/// | form | policy |
/// |---|---|
/// | `calibrated` | [`Calibrated`], the default |
/// | `static` | [`Static`] |
/// | `dynamic:N` | [`Dynamic`] with N packages |
/// | `hguided` | [`HGuided`] with k = 2 |
/// | `hguided:K` | [`HGuided`] with divisor K |
/// | `hguided:K:MIN` | [`HGuided`] with divisor K and packages of at least MIN items |
///
/// Parsing checks the parameters. Printing gives the shortest form that parses to the same value,
/// but for [`Custom`](Self::Custom), whose name is printed.
///
/// ```
/// use dml_scheduler::policy::PolicySpec;
///
/// assert_eq!("hguided:3:1024".parse(), Ok(PolicySpec::HGuided { k: 3.0, min: Some(1024) }));
/// assert_eq!(PolicySpec::Dynamic { packages: 200 }.to_string(), "dynamic:200");
/// assert_eq!(
///     "dynamic".parse::<PolicySpec>().unwrap_err().to_string(),
///     "bad policy: dynamic needs a number of packages; \
///      expected calibrated, static, dynamic:N, hguided, hguided:K or hguided:K:MIN",
/// );
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PolicySpec {
    /// Packages that shrink with the remaining work, by rates measured during the run. The powers are the
    /// initial estimates.
    #[default]
    Calibrated,
    /// One package per unit, in proportion to its power.
    Static,
    /// Equal packages, on demand.
    Dynamic {
        /// The number of packages, at least 1.
        packages: u64,
    },
    /// Packages that shrink with the remaining work.
    HGuided {
        /// The divisor, at least 1; [`HGuided::DEFAULT_K`] when not given.
        k: f64,
        /// The minimum package, in items; the local work size when not given.
        min: Option<u64>,
    },
    /// A policy implemented by the application, created by [`custom`](Self::custom). No text parses to it.
    Custom(CustomPolicy),
}

impl PolicySpec {
    /// The forms that parse, for help texts.
    pub const FORMS: &str = "calibrated, static, dynamic:N, hguided, hguided:K or hguided:K:MIN";

    /// Creates the spec of a policy implemented by the application. `make` is called once for each run, and
    /// by [`RecordedDecisions::replay`](super::RecordedDecisions::replay).
    ///
    /// ```
    /// use dml_scheduler::{UnitId, policy::{Policy, PolicySpec}};
    ///
    /// /// Gives each unit a quarter of the remaining items.
    /// #[derive(Debug)]
    /// struct Quarters;
    ///
    /// impl Policy for Quarters {
    ///     fn next(&mut self, _unit: UnitId, remaining: u64) -> Option<u64> {
    ///         Some(remaining / 4)
    ///     }
    /// }
    ///
    /// # use dml_core::Platform;
    /// # fn run(platform: &Platform, kernel: &dml_scheduler::Kernel) -> Result<(), dml_scheduler::RunError> {
    /// let quarters = PolicySpec::custom("quarters", |_| Ok(Box::new(Quarters)));
    /// let report = dml_scheduler::Coexecutor::new(platform).policy(quarters).run(kernel, 1_000_000)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn custom(
        name: impl Into<String>,
        make: impl Fn(PolicyInput<'_>) -> Result<Box<dyn Policy>, Box<dyn Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self::Custom(CustomPolicy::new(name.into(), make))
    }

    /// Builds the policy for units of these relative powers, `work` items and a local work size of
    /// `local_size` items.
    ///
    /// # Errors
    /// [`NoUnits`](PolicyError::NoUnits) without a power; [`BadPower`](PolicyError::BadPower) when a power is
    /// not positive and finite, even if the policy does not use it;
    /// [`ZeroLocalSize`](PolicyError::ZeroLocalSize). When a parameter of the policy is out of its range,
    /// [`ZeroPackages`](PolicyError::ZeroPackages) or [`BadDivisor`](PolicyError::BadDivisor).
    /// [`Custom`](PolicyError::Custom) when the application's code does not build its policy.
    pub fn build(&self, powers: &[f64], work: u64, local_size: u64) -> Result<Box<dyn Policy>, PolicyError> {
        // The arguments are checked in the same way for every policy. Otherwise, a wrong argument would go
        // unnoticed until the user selects another policy.
        let by_shares = Static::new(powers, local_size)?;
        Ok(match self {
            Self::Calibrated => {
                let priors: Vec<Option<Prior>> =
                    powers.iter().map(|power| Some(Prior::of_power(*power))).collect();
                Box::new(Calibrated::new(work, local_size, &priors)?)
            }
            Self::Static => Box::new(by_shares),
            Self::Dynamic { packages } => Box::new(Dynamic::new(*packages, work, local_size)?),
            Self::HGuided { k, min } => Box::new(HGuided::new(powers, *k, min.unwrap_or(local_size))?),
            Self::Custom(policy) => policy.build(PolicyInput { powers, items: work, local_size })?,
        })
    }

    /// Builds the policy with [`build`](Self::build), and a [`Splitter`] with one unit per power.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn splitter(&self, powers: &[f64], work: u64, local_size: u64) -> Result<Splitter, PolicyError> {
        Splitter::new(self.build(powers, work, local_size)?, powers.len(), work, local_size)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calibrated => f.write_str("calibrated"),
            Self::Static => f.write_str("static"),
            Self::Dynamic { packages } => write!(f, "dynamic:{packages}"),
            Self::HGuided { k, min: Some(min) } => write!(f, "hguided:{k}:{min}"),
            Self::HGuided { k, min: None } if *k == HGuided::DEFAULT_K => f.write_str("hguided"),
            Self::HGuided { k, min: None } => write!(f, "hguided:{k}"),
            Self::Custom(policy) => f.write_str(policy.name()),
        }
    }
}

/// Why a text does not parse as a policy.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ParsePolicyError {
    /// No policy has this name.
    #[error("bad policy: unknown name {name:?}; expected {}", PolicySpec::FORMS)]
    UnknownName {
        /// The text before the first colon.
        name: String,
    },
    /// A required parameter is missing.
    #[error("bad policy: {policy} needs a {parameter}; expected {}", PolicySpec::FORMS)]
    MissingParameter {
        /// The policy's name.
        policy: &'static str,
        /// The parameter that is missing.
        parameter: &'static str,
    },
    /// A parameter is not a number of its kind.
    #[error(
        "bad policy: the {parameter} of {policy} is {text:?}, which is not a {kind}; expected {}",
        PolicySpec::FORMS
    )]
    NotANumber {
        /// The policy's name.
        policy: &'static str,
        /// The parameter that has a bad value.
        parameter: &'static str,
        /// The text given for the parameter.
        text: String,
        /// The kind of number it should be.
        kind: &'static str,
    },
    /// The text has more parameters than the policy.
    #[error("bad policy: surplus parameter {text:?} of {policy}; expected {}", PolicySpec::FORMS)]
    TooManyParameters {
        /// The policy's name.
        policy: &'static str,
        /// The surplus text.
        text: String,
    },
    /// A parameter is out of the policy's range.
    #[error("{source}; expected {}", PolicySpec::FORMS)]
    OutOfRange {
        /// The error of the policy.
        #[from]
        source: PolicyError,
    },
}

impl FromStr for PolicySpec {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, parameters) = match text.split_once(':') {
            Some((name, parameters)) => (name, Some(parameters)),
            None => (text, None),
        };
        match name {
            "calibrated" => {
                Parameters { policy: "calibrated", rest: parameters }.end()?;
                Ok(Self::Calibrated)
            }
            "static" => {
                Parameters { policy: "static", rest: parameters }.end()?;
                Ok(Self::Static)
            }
            "dynamic" => {
                let mut parameters = Parameters { policy: "dynamic", rest: parameters };
                let packages = parameters.required("number of packages", "whole number")?;
                parameters.end()?;
                Ok(Self::Dynamic { packages: checked_packages(packages)? })
            }
            "hguided" => {
                let mut parameters = Parameters { policy: "hguided", rest: parameters };
                let k = parameters.optional("divisor", "number")?.unwrap_or(HGuided::DEFAULT_K);
                let min = parameters.optional("smallest package", "whole number")?;
                parameters.end()?;
                Ok(Self::HGuided { k: checked_divisor(k)?, min })
            }
            _ => Err(ParsePolicyError::UnknownName { name: name.to_owned() }),
        }
    }
}

/// The unparsed parameters of a policy.
struct Parameters<'a> {
    policy: &'static str,
    rest: Option<&'a str>,
}

impl Parameters<'_> {
    fn optional<T: FromStr>(
        &mut self,
        parameter: &'static str,
        kind: &'static str,
    ) -> Result<Option<T>, ParsePolicyError> {
        let Some(rest) = self.rest else { return Ok(None) };
        let (text, rest) = match rest.split_once(':') {
            Some((text, rest)) => (text, Some(rest)),
            None => (rest, None),
        };
        self.rest = rest;
        text.parse().map(Some).map_err(|_| ParsePolicyError::NotANumber {
            policy: self.policy,
            parameter,
            text: text.to_owned(),
            kind,
        })
    }

    fn required<T: FromStr>(
        &mut self,
        parameter: &'static str,
        kind: &'static str,
    ) -> Result<T, ParsePolicyError> {
        let value = self.optional(parameter, kind)?;
        value.ok_or(ParsePolicyError::MissingParameter { policy: self.policy, parameter })
    }

    fn end(&self) -> Result<(), ParsePolicyError> {
        match self.rest {
            None => Ok(()),
            Some(rest) => {
                Err(ParsePolicyError::TooManyParameters { policy: self.policy, text: rest.to_owned() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::package::UnitId;
    use proptest::prelude::*;

    fn message(text: &str) -> String {
        text.parse::<PolicySpec>().unwrap_err().to_string()
    }

    #[test]
    fn every_form_parses() {
        for (text, spec) in [
            ("calibrated", PolicySpec::Calibrated),
            ("static", PolicySpec::Static),
            ("dynamic:200", PolicySpec::Dynamic { packages: 200 }),
            ("hguided", PolicySpec::HGuided { k: 2.0, min: None }),
            ("hguided:3", PolicySpec::HGuided { k: 3.0, min: None }),
            ("hguided:2.5", PolicySpec::HGuided { k: 2.5, min: None }),
            ("hguided:2:1024", PolicySpec::HGuided { k: 2.0, min: Some(1024) }),
        ] {
            assert_eq!(spec.to_string(), text);
            assert_eq!(text.parse(), Ok(spec));
        }
    }

    #[test]
    fn the_default_needs_no_powers() {
        assert_eq!(PolicySpec::default(), PolicySpec::Calibrated);
    }

    #[test]
    fn errors_say_what_was_wrong_and_what_is_right() {
        for (text, what) in [
            ("", "unknown name \"\""),
            ("guided", "unknown name \"guided\""),
            ("Static", "unknown name \"Static\""),
            ("calibrated:2", "surplus parameter \"2\" of calibrated"),
            ("static:2", "surplus parameter \"2\" of static"),
            ("static:", "surplus parameter \"\" of static"),
            ("dynamic", "dynamic needs a number of packages"),
            ("dynamic:", "the number of packages of dynamic is \"\", which is not a whole number"),
            ("dynamic:-1", "the number of packages of dynamic is \"-1\", which is not a whole number"),
            ("dynamic:1.5", "the number of packages of dynamic is \"1.5\", which is not a whole number"),
            ("dynamic:0", "bad number of packages: dynamic was given 0, needs at least 1"),
            ("dynamic:1:2", "surplus parameter \"2\" of dynamic"),
            ("hguided:", "the divisor of hguided is \"\", which is not a number"),
            ("hguided:two", "the divisor of hguided is \"two\", which is not a number"),
            ("hguided:0.5", "bad divisor: hguided was given k = 0.5, needs a finite number of at least 1"),
            ("hguided:nan", "k = NaN"),
            ("hguided:inf", "k = inf"),
            ("hguided:2:x", "the smallest package of hguided is \"x\", which is not a whole number"),
            ("hguided:2:1:3", "surplus parameter \"3\" of hguided"),
        ] {
            let message = message(text);
            assert!(message.contains(what), "{text:?}: {message}");
            assert!(message.ends_with(&format!("; expected {}", PolicySpec::FORMS)), "{text:?}: {message}");
        }
    }

    #[test]
    fn building_checks_the_facts_for_every_policy() {
        let specs =
            ["calibrated", "static", "dynamic:4", "hguided"].map(|text| text.parse::<PolicySpec>().unwrap());
        for spec in specs {
            assert!(spec.build(&[1.0], 0, 1).is_ok());
            assert_eq!(spec.build(&[], 10, 1).unwrap_err(), PolicyError::NoUnits);
            assert_eq!(spec.build(&[1.0], 10, 0).unwrap_err(), PolicyError::ZeroLocalSize);
            let bad = PolicyError::BadPower { unit: UnitId(2), power: -1.0 };
            assert_eq!(spec.build(&[1.0, 1.0, -1.0], 10, 1).unwrap_err(), bad);
            assert_eq!(
                bad.to_string(),
                "bad power: u2 has relative power -1, which is not positive and finite"
            );
        }
        let zero = PolicySpec::Dynamic { packages: 0 };
        assert_eq!(zero.build(&[1.0], 10, 1).unwrap_err(), PolicyError::ZeroPackages);
        let steep = PolicySpec::HGuided { k: 0.0, min: None };
        assert_eq!(steep.build(&[1.0], 10, 1).unwrap_err(), PolicyError::BadDivisor { k: 0.0 });
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(
            spec in prop_oneof![
                Just(PolicySpec::Calibrated),
                Just(PolicySpec::Static),
                (1..=u64::MAX).prop_map(|packages| PolicySpec::Dynamic { packages }),
                (1.0..1e300f64, any::<Option<u64>>()).prop_map(|(k, min)| PolicySpec::HGuided { k, min }),
            ]
        ) {
            prop_assert_eq!(spec.to_string().parse(), Ok(spec));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "(calibrated|static|dynamic|hguided|.{0,3})?(:.{0,4}){0,3}") {
            if let Ok(spec) = text.parse::<PolicySpec>() {
                prop_assert!(spec.splitter(&[1.0, 0.5], 1000, 64).is_ok());
            }
        }
    }
}
