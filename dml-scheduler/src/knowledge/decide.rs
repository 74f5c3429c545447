//! Who takes part in a run.
//!
//! 1. What a set of devices took is known once it has been tried ([`TRIES`] times). Of those the fastest is taken.
//! 2. Before that, two kinds of sets are tried where they promise to be faster. One is a device alone: among others it may look
//!    far slower than it is. The other is the set that shortens the run most by the sum of its rates.
//! 3. A device of which nothing is known is tried where it could help if it computed as fast as its data moves. Where runs are too short to call one up, one is
//!    tried alone after a few of them, if a run of it alone could be shorter. If the host is
//!    among the devices, it begins, and calls the others up when it has seen how long the run takes. In its place a device begins that
//!    computes on the processor's cores, in the memory where the data lies: a worker, which is set going as soon.
//! 4. Nothing is known, and there is neither: a device with units of its own begins as if it were alone, and calls the others up if the run is
//!    long. So does the first of twins.
//!
//! Twins are devices of one model, with units of their own. What is known of one is taken for what the other can do, until that has
//! computed itself.

use super::{KEPT, Knowledge, Samples, Topic, class_of};
use crate::package::UnitId;
use crate::policy::{self, Estimate, Freight};
use std::fmt;
use std::time::Duration;

/// How often a set is tried before its times are believed.
pub(super) const TRIES: usize = 2;
/// How often a set is tried that comes near the best one: its first runs may have met a busy machine.
const MORE_TRIES: usize = 5;
const NEAR: f64 = 1.8;
/// A device that was never tried alone is tried every now and then, if it promises at most so many times the best set's time. It may have been
/// disturbed by others whenever it computed.
const UNTRIED: f64 = 1.5;
/// A try costs little if it takes so many times the best set's time, or so many seconds more. Others wait for their time.
const CHEAP: f64 = 1.2;
const CHEAP_SECONDS: f64 = 10e-3;
/// A set whose rates promise so much less than the best time is tried every now and then, and one whose last run took so much less
/// is tried again.
const MUCH_FASTER: f64 = 0.9;
/// A run that is shorter, in seconds, may have ended before an unknown device was called up. Or the device was not asked, because it moves its data for too long.
pub(crate) const SHORT_SECONDS: f64 = 5e-3;
/// And one that is shorter than this may have ended before it was compared with the host.
const SHORT_BESIDE_RIVAL_SECONDS: f64 = 10e-3;
/// By how much more devices have to be faster than fewer.
const NOISE: f64 = 0.03;

/// A device that could take part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'a str,
    /// The least that it takes, of whatever is not known.
    pub(crate) freight: Freight,
    /// The least that a run takes which it computes alone, if nothing else is known of it.
    pub(crate) alone: Freight,
    /// Whether it works in the memory where data begins and ends.
    pub(crate) is_host: bool,
    /// Whether it can begin where there is no host: it computes on the processor's cores, and none of its data moves.
    pub(crate) is_near: bool,
    /// Which part of the processor's cores it computes on; 0 for what has units of its own.
    pub(crate) part_of_cores: f64,
    /// Whether it can be compared with a host that computes on the same cores.
    pub(crate) is_comparable: bool,
    /// The first one of the devices of its model, if there are several: all have the same.
    pub(crate) model: Option<usize>,
}

impl Candidate<'_> {
    /// Returns whether both are devices of one model. They compute as fast as each other.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        self.model.is_some() && self.model == other.model && self.name != other.name
    }
}

/// Which of the candidates take part, in their order.
pub(crate) type Members = Vec<bool>;

/// Who takes part in a run, and why others do not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selection {
    /// Of each device, in the order of the run.
    pub(crate) members: Members,
    /// What is known of each device.
    pub(crate) estimates: Vec<Option<Estimate>>,
    /// The items per second of each device's kernels alone, without inputs that travel meanwhile, as far as that is known.
    pub(crate) kernels: Vec<Option<f64>>,
    /// Whether what is known of a device is what a twin has shown.
    pub(crate) by_twins: Vec<bool>,
    /// The seconds that each device takes for any package, as far as that is known; else 0.
    pub(crate) latencies: Vec<f64>,
    /// Why each device is left out; `None` for members.
    pub(crate) reasons: Vec<Option<Reason>>,
    /// The member that begins, and calls the others up if they are worth their while; `None` where all begin.
    pub(crate) opens: Option<usize>,
}

/// What is known of a device before a run.
#[derive(Clone, Copy)]
struct Known {
    /// Its rate while others run, and what passes before its first package begins and after its last one is computed.
    estimate: Estimate,
    /// Items per second of its best package, without what a package costs.
    peak: f64,
}

impl Known {
    fn setup_seconds(&self) -> f64 {
        self.estimate.setup.as_secs_f64()
    }

    fn alone_seconds(&self, items: f64) -> f64 {
        self.setup_seconds() + items / self.estimate.rate
    }
}

/// Why a device is left out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The others are done before it could help.
    SetUp {
        /// What it takes to set it going, in seconds.
        setup_seconds: f64,
        /// What the others take without it, in seconds.
        others_seconds: f64,
    },
    /// Runs with it took longer.
    Slower {
        /// What the set that is used takes, in seconds.
        seconds: f64,
        /// What the fastest known set with the device takes, in seconds; `None` if there is none.
        with_it_seconds: Option<f64>,
    },
    /// Nothing is known of it, and the run is too short to find out.
    Unknown {
        /// What the others are expected to take, in seconds.
        others_seconds: f64,
    },
    /// Another device is tried alone, to learn what it can do.
    Trial,
    /// Nothing is known of it, and it would compute on the cores of those that take part.
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
    /// Another device had computed its items as well, and was done first.
    Overtaken {
        /// What the run took without it, in seconds.
        others_seconds: f64,
    },
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
                "would take {:.0} us to set going; the others are done in {:.0} us",
                us(setup_seconds),
                us(others_seconds)
            ),
            Self::Slower { seconds, with_it_seconds: Some(with_it) } => {
                write!(f, "runs took {:.0} us with it and {:.0} us without", us(with_it), us(seconds))
            }
            Self::Slower { seconds, with_it_seconds: None } => {
                write!(f, "would not shorten a run of {:.0} us", us(seconds))
            }
            Self::Unknown { others_seconds } => {
                write!(f, "nothing is known of it, and the others are done in {:.0} us", us(others_seconds))
            }
            Self::Trial => f.write_str("another device is tried alone"),
            Self::Undivided => f.write_str("another device computes the kernel, which is undivided"),
            Self::NoThread => f.write_str("there was no thread for it"),
            Self::SameCores => f.write_str("computes on the same cores as those that take part"),
            Self::NotCalledUp { others_seconds } => {
                write!(f, "was not called up: the others were done in {:.0} us", us(others_seconds))
            }
            Self::Overtaken { others_seconds } => {
                write!(
                    f,
                    "was overtaken: the others had computed its items as well in {:.0} us",
                    us(others_seconds)
                )
            }
            Self::TooLate { began_seconds, others_seconds } => {
                let (began, others) = (us(began_seconds), us(others_seconds));
                write!(f, "began too late: after {began:.0} us, and the others were done in {others:.0} us")
            }
        }
    }
}

impl Knowledge {
    /// Decides who computes `items` items of a kernel.
    pub(crate) fn decide(&self, kernel: &str, items: u64, candidates: &[Candidate<'_>]) -> Selection {
        let book = self.0.lock();
        // Of itself, or else of a twin.
        let notes = |candidate: &Candidate<'_>| {
            let twins = candidates.iter().filter(|other| other.is_twin_of(candidate));
            let names = std::iter::once(candidate.name).chain(twins.map(|twin| twin.name));
            names.filter_map(|name| book.notes(kernel, items, name)).next()
        };
        let known = |candidate: &Candidate<'_>| {
            let notes = notes(candidate)?;
            let (rate, setup) = (notes.rate.median()?, notes.setup.median().unwrap_or_default());
            let setup = Duration::try_from_secs_f64(setup).unwrap_or(Duration::MAX);
            let peak = notes.peak.greatest().map_or(rate, |peak| peak.max(rate));
            Some(Known { estimate: Estimate { rate, setup }, peak })
        };
        let known: Vec<Option<Known>> = candidates.iter().map(known).collect();
        let topic = Topic { kernel: kernel.to_owned(), class: class_of(items) };
        let page = book.0.get(&topic);
        let sets = page.iter().flat_map(|page| &page.sets);
        let tried: Vec<Tried> =
            sets.filter_map(|(names, samples)| Tried::of(names, samples, candidates, items)).collect();
        let runs = page.map_or(0, |page| page.runs);
        let choice = Choice { items: items as f64, candidates, known: &known, tried: &tried, runs };
        let (members, reasons, opens) = choice.make();
        let kernels = candidates.iter().map(|candidate| notes(candidate)?.kernel.median()).collect();
        let estimates = known.into_iter().map(|known| Some(known?.estimate)).collect();
        let latency = |candidate: &Candidate<'_>| {
            notes(candidate).and_then(|notes| notes.latency.least()).unwrap_or_default()
        };
        let latencies = candidates.iter().map(latency).collect();
        let is_by_twin = |candidate: &Candidate<'_>| {
            book.notes(kernel, items, candidate.name).is_none() && notes(candidate).is_some()
        };
        let by_twins = candidates.iter().map(is_by_twin).collect();
        Selection { members, estimates, kernels, by_twins, latencies, reasons, opens }
    }
}

/// A set of candidates that has been tried.
struct Tried {
    members: Members,
    seconds: f64,
    /// What it took in its fastest run, and in its last one.
    least_seconds: f64,
    last_seconds: f64,
    times: usize,
}

impl Tried {
    /// `None` if the set has others than the candidates.
    fn of(names: &[String], samples: &Samples, candidates: &[Candidate<'_>], items: u64) -> Option<Self> {
        let members: Members =
            candidates.iter().map(|candidate| names.iter().any(|name| name == candidate.name)).collect();
        let is_whole = members.iter().filter(|&&member| member).count() == names.len();
        let of_all = |per_item: f64| per_item * items as f64;
        let seconds = of_all(samples.expected_seconds()?);
        let (least_seconds, last_seconds) = (of_all(samples.least()?), of_all(samples.last()?));
        (is_whole && !names.is_empty()).then_some(Self {
            members,
            seconds,
            least_seconds,
            last_seconds,
            times: samples.len(),
        })
    }

    fn size(&self) -> usize {
        count(&self.members)
    }
}

/// Whether devices with such parts of the cores can compute at once.
pub(crate) fn fits(parts: f64) -> bool {
    parts <= 1.0 + 1e-9
}

fn count(members: &[bool]) -> usize {
    members.iter().filter(|&&member| member).count()
}

/// What a decision is made from.
struct Choice<'a> {
    items: f64,
    candidates: &'a [Candidate<'a>],
    known: &'a [Option<Known>],
    tried: &'a [Tried],
    /// The runs so far.
    runs: u64,
}

/// Where a device of which nothing is known could compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Beside those who take part.
    Beside,
    /// On the cores of the host, which is the only one: one after the other, until it is known which is faster.
    InTurns,
    None,
}

type Made = (Members, Vec<Option<Reason>>, Option<usize>);

impl Choice<'_> {
    fn make(&self) -> Made {
        let all = self.candidates.len();
        let host = self.candidates.iter().position(|candidate| candidate.is_host);
        let near = || self.candidates.iter().position(|candidate| candidate.is_near);
        let Some((joined, joined_seconds)) = self.joined() else {
            let are_twins = |[one, other]: &[Candidate<'_>; 2]| one.is_twin_of(other);
            let first_of_twins = self.candidates.array_windows().all(are_twins).then_some(0);
            let has_own_units =
                || self.candidates.iter().position(|candidate| candidate.part_of_cores == 0.0);
            let opens = host.or(first_of_twins).or_else(near).or_else(has_own_units);
            return (vec![true; all], vec![None; all], opens.filter(|_| all > 1));
        };
        let best = self.best_tried();
        let expected = best.map_or(joined_seconds, |best| best.seconds.min(joined_seconds));
        let is_stranger = |index| self.could_help(index, expected, &joined, host);
        let strangers: Members = (0..all).map(is_stranger).collect();
        let is_to_try = |index: usize| strangers[index] || self.could_be_faster_alone(index, expected);
        let to_try: Members = (0..all).map(is_to_try).collect();
        if let Some(members) = self.stranger_to_try(&to_try, expected, best) {
            let reasons = members.iter().map(|&member| (!member).then_some(Reason::Trial)).collect();
            return (members, reasons, None);
        }
        if strangers.contains(&true) {
            // In a longer run nobody tries the stranger alone, and who begins as if it were alone may have all of it in one package.
            let alone = || self.only_one_with_own_units(&joined).filter(|_| expected < SHORT_SECONDS);
            let first = host.or_else(near).or_else(alone);
            return self.with_strangers(&joined, &strangers, expected, first);
        }
        let (members, reasons) = self.among_known(joined, joined_seconds, best);
        let reason = |(index, reason): (usize, Option<Reason>)| match (reason, self.known[index]) {
            (Some(_), None) if self.place(index, &members, host) == Place::None => Some(Reason::SameCores),
            (Some(_), None) => Some(Reason::Unknown { others_seconds: expected }),
            (reason, _) => reason,
        };
        let reasons = reasons.into_iter().enumerate().map(reason).collect();
        (members, reasons, None)
    }

    /// Returns whether nothing is known of a device, and it would shorten the run if it computed as fast as its data moves: beside those members, or in
    /// the place of a host that has the same cores.
    fn could_help(&self, index: usize, seconds: f64, members: &[bool], host: Option<usize>) -> bool {
        let (freight, others) = (self.candidates[index].freight, self.items / seconds);
        let could = match self.place(index, members, host) {
            Place::Beside => freight.could_help(self.items, others),
            Place::InTurns => freight.could_replace(self.items, others),
            Place::None => false,
        };
        self.known[index].is_none() && could
    }

    /// Returns whether nothing is known of a device with units of its own, and a run would be shorter if it computed all of it as fast as its data moves.
    fn could_be_faster_alone(&self, index: usize, seconds: f64) -> bool {
        let Candidate { alone, is_host, part_of_cores, .. } = self.candidates[index];
        let is_strange = self.known[index].is_none() && !is_host && part_of_cores == 0.0;
        is_strange && alone.could_replace(self.items, self.items / seconds)
    }

    /// Where a device of which nothing is known could compute. A host can always: it begins, and others on its cores are compared with it.
    fn place(&self, index: usize, members: &[bool], host: Option<usize>) -> Place {
        let candidate = &self.candidates[index];
        let parts = self.candidates.iter().zip(members).filter(|(_, member)| **member);
        let taken: f64 = parts.map(|(candidate, _)| candidate.part_of_cores).sum();
        let is_hosts = || count(members) == 1 && host.is_some_and(|host| members[host]);
        if candidate.is_host || fits(taken + candidate.part_of_cores) {
            Place::Beside
        } else if candidate.is_comparable && is_hosts() {
            Place::InTurns
        } else {
            Place::None
        }
    }

    /// A stranger that is tried alone: where runs are so short that they have ended before one was called up, again and again.
    fn stranger_to_try(&self, strangers: &[bool], expected: f64, best: Option<&Tried>) -> Option<Members> {
        if best.is_none_or(|best| best.times <= TRIES) {
            return None;
        }
        let is_meant = |index: &usize| {
            let Candidate { is_host, is_comparable, .. } = self.candidates[*index];
            let short = if is_comparable { SHORT_BESIDE_RIVAL_SECONDS } else { SHORT_SECONDS };
            strangers[*index] && !is_host && expected < short
        };
        let stranger = (0..strangers.len()).find(is_meant)?;
        Some((0..strangers.len()).map(|index| index == stranger).collect())
    }

    /// The members, where some are tried of which nothing is known.
    fn with_strangers(
        &self,
        joined: &[bool],
        strangers: &[bool],
        expected: f64,
        first: Option<usize>,
    ) -> Made {
        let members: Members =
            joined.iter().zip(strangers).map(|(joined, stranger)| *joined || *stranger).collect();
        let reasons = members.iter().zip(self.known).map(|(member, known)| match (member, known) {
            (true, _) => None,
            (false, Some(_)) => Some(Reason::Slower { seconds: expected, with_it_seconds: None }),
            (false, None) => Some(Reason::Unknown { others_seconds: expected }),
        });
        let opens = first.filter(|&first| members[first]);
        let reasons = reasons.collect();
        (members, reasons, opens)
    }

    /// The one member, if there is one and it has units of its own.
    fn only_one_with_own_units(&self, members: &[bool]) -> Option<usize> {
        let only = members.iter().position(|member| *member).filter(|_| count(members) == 1)?;
        Some(only).filter(|&only| self.candidates[only].part_of_cores == 0.0)
    }

    fn among_known(
        &self,
        joined: Members,
        joined_seconds: f64,
        best: Option<&Tried>,
    ) -> (Members, Vec<Option<Reason>>) {
        let Some(best) = best else {
            return self.explained(joined, joined_seconds);
        };
        let promises = |much: f64| joined_seconds < best.seconds * much;
        // Before devices alone: what they promise is from their best packages, which may have been the cheap ones.
        if promises(1.0 - NOISE) && self.times(&joined) < TRIES {
            return self.explained(joined, joined_seconds);
        }
        if let Some(alone) = self.alone_to_try(best.seconds) {
            let reasons = alone.iter().map(|&member| (!member).then_some(Reason::Trial)).collect();
            return (alone, reasons);
        }
        // The first runs of a set pay for compilation, first touch and locked pages of every device in it, and all that are known may have
        // met a busy machine.
        if promises(MUCH_FASTER) && self.is_time_to_try_again() {
            return self.explained(joined, joined_seconds);
        }
        // A try that went well is made once more: twice in a row is no chance, and then what was known before is forgotten.
        if let Some(tried) = self.tried.iter().find(|tried| tried.last_seconds < best.seconds * MUCH_FASTER) {
            return self.explained(tried.members.clone(), tried.last_seconds);
        }
        self.explained(best.members.clone(), best.seconds)
    }

    /// The devices of which something is known that have cores beside each other. Where they have not, the fastest come first.
    fn beside_each_other(&self) -> Members {
        let mut fastest: Vec<(usize, f64)> = self
            .known
            .iter()
            .enumerate()
            .filter_map(|(index, known)| Some((index, known.as_ref()?.alone_seconds(self.items))))
            .collect();
        fastest.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (mut members, mut taken) = (vec![false; self.known.len()], 0.0);
        for (index, _) in fastest {
            let part = self.candidates[index].part_of_cores;
            if part == 0.0 || fits(taken + part) {
                (members[index], taken) = (true, taken + part);
            }
        }
        members
    }

    /// The devices of which something is known that shorten the run by the sum of their rates, and what they take.
    fn joined(&self) -> Option<(Members, f64)> {
        let beside = self.beside_each_other();
        let known = || {
            let known = self.known.iter().enumerate().filter(|(index, _)| beside[*index]);
            known.filter_map(|(index, known)| Some((index, (*known)?)))
        };
        let fastest = known().map(|(_, known)| known.alone_seconds(self.items)).reduce(f64::min)?;
        let estimates: Vec<_> = known().map(|(_, known)| known.estimate).collect();
        let chosen = policy::join(self.items as u64, &estimates, fastest * NOISE);
        let mut members = vec![false; self.known.len()];
        for (place, (index, _)) in known().enumerate() {
            members[index] = chosen.members.contains(&UnitId(place));
        }
        Some((members, chosen.seconds))
    }

    /// The fastest set that was tried often enough. Of two that are about as fast, the one with fewer devices.
    fn best_tried(&self) -> Option<&Tried> {
        let fastest = self.tried.iter().map(|tried| tried.seconds).reduce(f64::min)?;
        let about = self.tried.iter().filter(|tried| tried.seconds <= fastest * (1.0 + NOISE));
        about.min_by(|a, b| a.size().cmp(&b.size()).then(a.seconds.total_cmp(&b.seconds)))
    }

    /// Returns whether a set may be tried that has been tried often enough. The more runs there were, the rarer that is, so all such
    /// tries together cost little.
    fn is_time_to_try_again(&self) -> bool {
        self.runs.is_power_of_two()
    }

    fn times(&self, members: &[bool]) -> usize {
        self.tried.iter().find(|tried| tried.members == members).map_or(0, |tried| tried.times)
    }

    /// A device alone that could be faster than the best set and was not tried often enough: the one that promises most.
    ///
    /// What a device did in its best package, without what a package costs, is taken for all of its work. Among others, and
    /// with small packages, it looks slower than it is.
    fn alone_to_try(&self, best_seconds: f64) -> Option<Members> {
        let is_time = self.is_time_to_try_again();
        let devices = self.known.iter().enumerate().filter_map(|(index, known)| {
            let mut members = vec![false; self.known.len()];
            members[index] = true;
            let known = known.as_ref()?;
            let setup_seconds = self.candidates[index].freight.setup.min(known.setup_seconds());
            let seconds = setup_seconds + self.items / known.peak;
            Some((members, seconds))
        });
        // What promises more than the best set comes first, and then what nobody knows.
        let ranked = devices.filter_map(|(members, seconds)| {
            let promises = seconds < best_seconds;
            let Some(tried) = self.tried.iter().find(|tried| tried.members == members) else {
                let is_worth_a_look = promises || (is_time && seconds < best_seconds * UNTRIED);
                return is_worth_a_look.then_some((u8::from(!promises), seconds, members));
            };
            let is_cheap = tried.seconds < (best_seconds * CHEAP).max(best_seconds + CHEAP_SECONDS);
            if tried.times < TRIES {
                return (promises && (is_cheap || is_time)).then_some((0, seconds, members));
            }
            let is_near = tried.times < MORE_TRIES && tried.seconds < best_seconds * NEAR;
            // What it did once it may do again: most of its runs may have met a busy machine.
            let was_faster = tried.times < KEPT && tried.least_seconds < best_seconds * (1.0 - NOISE);
            let is_due = (is_near && is_cheap) || ((is_near || was_faster) && is_time);
            is_due.then_some((2, seconds, members))
        });
        let (.., members) = ranked.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
        Some(members)
    }

    /// The members, with why each other device is left out.
    fn explained(&self, members: Members, seconds: f64) -> (Members, Vec<Option<Reason>>) {
        let reason = |index: usize| {
            if members[index] {
                return None;
            }
            let with_it = self.tried.iter().filter(|tried| tried.members[index]);
            let with_it_seconds = with_it.map(|tried| tried.seconds).reduce(f64::min);
            let setup_seconds = self.known[index].map(|known| known.setup_seconds());
            Some(match setup_seconds {
                Some(setup_seconds) if with_it_seconds.is_none() && setup_seconds >= seconds => {
                    Reason::SetUp { setup_seconds, others_seconds: seconds }
                }
                _ => Reason::Slower { seconds, with_it_seconds },
            })
        };
        let reasons = (0..members.len()).map(reason).collect();
        (members, reasons)
    }
}
