//! The opening of a run of which nothing is known: one unit begins, and others join if that is worth their while.
//!
//! ```text
//!   first unit   ▏sample▏longer sample▏longer sample▏ ── the rest is short ──▶ all of it
//!                                                  │
//!                                                  └──── the rest is long ────▶ the others are called up
//! ```
//! Nobody knows yet which device is the best one. But the first unit costs next to nothing to set going (the host's), and
//! after some tens of microseconds it has shown how long the rest takes. If that is shorter than what the others take to begin,
//! the run is over before they could help. Otherwise they join, and no package is longer than a part of the run so far, so that
//! a unit that turns out to be slow does not keep the others waiting at the end. One that turns out to do next to nothing is
//! left out.

#[path = "opening_rivals.rs"]
mod rivals;
#[path = "opening_samples.rs"]
mod samples;
#[path = "opening_trials.rs"]
mod trials;

use super::travelling::Travelling;
use super::{Calibrated, Computed, Freight, Policy, TryOut};
use crate::{Package, UnitId};
use rivals::Turns;
use samples::{EARLY_SECONDS, GROWTH, Samples, WAKING_SAMPLE_SECONDS, WAKING_SECONDS};
use std::time::Duration;

/// As long as so much of the rest takes at the least, the first unit waits for the end of a trial: what it has under way by then would hold the
/// run up for longer.
const TRIAL_PART: f64 = 0.05;
/// Until a trial can end, a package of the first unit takes this part of the time at most: what comes may be dearer.
const TRIAL_AHEAD: f64 = 0.5;
/// Where the rest is likely to take less than this, what is likely is enough.
const LIKELY_SECONDS: f64 = 1e-3;
/// The least time of a package of a unit that was tried out.
const TRIAL_LEAST_SECONDS: f64 = 60e-6;
/// The part of the rest that is the first package of a unit that joins. It is done before the rest is, unless the unit is so many
/// times as slow as the others, as a worker with one core is beside the others of a processor.
const FIRST: u64 = 16;
/// How many times as long as the longest one before a package of a unit may be, as long as it may be its launch that took the
/// time: of a package shorter than this, of its first one shorter than that, and of one that took as long as a much shorter one.
const LEAP: u64 = 16;
const SHORT_SECONDS: f64 = 100e-6;
const FIRST_SECONDS: f64 = 1e-3;
/// How many times as long as its launch a package is at least, if the unit's part of the rest is.
const LAUNCHES: f64 = 2.0;
/// Two packages whose items differ by more than [`FLAT_ITEMS`], and whose times by less than [`FLAT_SECONDS`], took the time that a launch
/// takes, if that is less than [`FIRST_SECONDS`]. Of a dominant unit it may be [`FLAT_MOST_SECONDS`]: a GPU may take milliseconds for an
/// item, and no longer for thousands.
const FLAT_ITEMS: f64 = 1.5;
const FLAT_SECONDS: f64 = 1.2;
const FLAT_MOST_SECONDS: f64 = 20e-3;
/// By how much more items than the one before a package shows whether items take the time, and what part of that it takes longer then.
const LEAST_MORE: f64 = 0.2;
const LEAST_LONGER: f64 = 1.0 / 3.0;
/// A unit that does so much of what all units do is dominant. It gets no package shorter than [`LAUNCHES`] times its shortest one. Such
/// a package would be a launch and little else, and nobody is there who could do the rest meanwhile.
const DOMINANT: f64 = 0.8;
/// A unit with less than this part of what all units do is left out from then on, once each has done [`MEASURED`] packages.
/// It can shorten the run by no more, and may lengthen it at the end.
const LEAST_SHARE: f64 = 0.1;
const MEASURED: u64 = 3;
/// A unit with less than this part of what the fastest does is left out as soon as both have computed.
const HOPELESS: f64 = 1.0 / 16.0;
/// The least time of a package, except of the last one.
const LEAST_SECONDS: f64 = 50e-6;
/// The part of the rest that the fastest unit gets where the rates say that it should wait for the others.
const SINGLE: f64 = 1.0 / 6.0;
/// The last unit that is left gets so much of the rest at a time, if its results travel while it computes. While its packages may be
/// launches and little else, it gets more. Its smallest package is so much of what there was when it was left.
const LAST: u64 = 6;
const LAST_OPEN: u64 = 3;
const LAST_PACKAGES: u64 = 12;
/// How many times as long as the unit's shortest package results travel, for what it may compute to be divided into [`UNDER_WAY`]
/// packages, so that they travel while it computes.
const TRAVELS: f64 = 1.0;
/// The packages under way of the fastest unit, if its results travel while it computes: one that computes, and others that travel.
const UNDER_WAY: u64 = 3;
/// The part of the run so far that a package may take. Of the fastest unit: that all of its packages under way may take. And the least
/// such time.
const PATIENCE: f64 = 0.125;
const PATIENCE_WITH_FASTEST: f64 = 1.0;
const LEAST_PATIENCE_SECONDS: f64 = 50e-6;

/// A unit that can be tried out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tries {
    pub(crate) unit: UnitId,
    /// On how many items at most.
    pub(crate) items: u64,
    /// After how many seconds of the run it is, even if nothing is known of the others by then: unless a short sample has ended before.
    pub(crate) after: f64,
    /// How many seconds it takes at least, by what moving its inputs takes.
    pub(crate) takes: f64,
}

/// Calibrated, begun by one unit.
#[derive(Debug, Clone)]
pub(crate) struct Opening {
    inner: Calibrated,
    first: UnitId,
    /// The units that could join.
    others: Vec<(UnitId, Freight)>,
    stage: Stage,
    /// Whether the first unit computes all in one package.
    is_undivided: bool,
    /// The unassigned items, as of the last package handed out.
    remaining: u64,
    samples: Samples,
    now: Duration,
    /// How fast each unit was lately.
    paces: Vec<Pace>,
    /// What remained when a single unit was left.
    left: Option<u64>,
    /// The units that are called up, and were not yet told.
    called: Vec<UnitId>,
    travelling: Travelling,
    tries: Option<Tries>,
    /// Which of the others are as fast as the unit that can be tried out.
    twins: Vec<UnitId>,
    /// Whether the trial is to begin, and nobody has been told.
    begins: bool,
    /// Whether a trial is under way that began before the samples said that it is worth its while.
    is_early: bool,
    /// When the trial began.
    tried: Duration,
    /// The sample under way: its items, and when it was handed out.
    sampled: Option<(u64, Duration)>,
    /// A unit that computes on the cores of the first one, and is to be compared with it.
    rival: Option<(UnitId, Freight)>,
    turns: Turns,
}

/// How fast a unit was lately.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Items per second of the last package that took any time.
    rate: Option<f64>,
    /// Whether that package took as long as one of another size: then it is its launch that takes the time.
    is_flat: bool,
    /// The last package's items and seconds.
    last: Option<(u64, f64)>,
    /// The highest such rate.
    best: f64,
    /// The seconds that its launch takes, by the last two packages of different sizes that took as long; 0 before.
    launch: f64,
    /// The seconds of its shortest package.
    least: f64,
    /// Whether its packages' launches may have taken most of their time: then the unit may be far faster than it seems.
    is_open: bool,
    /// Whether it once took longer for more.
    scales: bool,
    /// The items of its longest package.
    most: u64,
    /// The packages that it has and has not computed, and their items.
    in_flight: u64,
    ahead: u64,
    /// When the last package was computed.
    ended: Duration,
    packages: u64,
    /// What it was allowed besides the package that it was handed, and in what pieces it has it.
    allowed: u64,
    piece: u64,
    is_dropped: bool,
}

impl Pace {
    /// The seconds of the last package that took any time; 0 before.
    fn seconds(&self) -> f64 {
        self.last.map_or(0.0, |(_, seconds)| seconds)
    }

    /// One of its packages is no more under way.
    fn leaves(&mut self, items: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ahead = self.ahead.saturating_sub(items);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first unit computes samples.
    Sampling,
    /// The first unit computes samples, while another is tried out.
    Trying,
    /// The first unit computes all.
    Alone,
    /// The first unit and its rival compute a package each, one after the other.
    Turns,
    /// Others have joined.
    Together,
}

/// Whether two packages, each as items and seconds, differ in their items alone.
fn is_flat(one: (f64, f64), other: (f64, f64), most_seconds: f64) -> bool {
    let (small, large) = if one.0 < other.0 { (one, other) } else { (other, one) };
    let longer = small.1.max(large.1);
    large.0 > small.0 * FLAT_ITEMS && longer < (small.1.min(large.1) * FLAT_SECONDS).min(most_seconds)
}

impl Opening {
    /// Lets `first` begin a run of `work` items; of the others is known what `others` says. Units that are in neither are
    /// left out for good.
    pub(crate) fn new(inner: Calibrated, work: u64, first: UnitId, others: Vec<(UnitId, Freight)>) -> Self {
        Self {
            inner,
            first,
            others,
            stage: Stage::Sampling,
            is_undivided: false,
            remaining: work,
            samples: Samples::default(),
            now: Duration::ZERO,
            paces: Vec::new(),
            left: None,
            called: Vec::new(),
            travelling: Travelling::default(),
            tries: None,
            twins: Vec::new(),
            begins: false,
            is_early: false,
            tried: Duration::ZERO,
            sampled: None,
            rival: None,
            turns: Turns::default(),
        }
    }

    /// Says which unit can be tried out.
    #[must_use]
    pub(crate) fn tries(mut self, tries: Option<Tries>) -> Self {
        self.tries = tries;
        self
    }

    /// Says which of the others are as fast as the unit that can be tried out.
    #[must_use]
    pub(crate) fn twins(mut self, twins: Vec<UnitId>) -> Self {
        self.twins = twins;
        self
    }

    /// Says which unit computes on the cores of the first one. It is not among the others, and is compared with it where they cannot help.
    #[must_use]
    pub(crate) fn rival(mut self, rival: Option<(UnitId, Freight)>) -> Self {
        self.rival = rival;
        self
    }

    /// Says how many threads the first unit has. All but one have to wake up.
    #[must_use]
    pub(crate) fn threads(mut self, threads: u64) -> Self {
        self.samples.threads = threads;
        self
    }

    /// Says how many seconds a launch of the first unit takes, besides what it computes.
    #[must_use]
    pub(crate) fn launch(mut self, seconds: f64) -> Self {
        self.samples.launch = seconds.max(0.0); // also takes NaN for 0
        self
    }

    /// Lets all begin at once.
    #[must_use]
    pub(crate) fn at_once(mut self) -> Self {
        self.stage = Stage::Together;
        self
    }

    /// Lets the first unit compute all in one package. Another one is tried out only for the sake of later runs.
    #[must_use]
    pub(crate) fn undivided(mut self) -> Self {
        self.is_undivided = true;
        self
    }

    /// Decides, as far as the samples allow it, whether others join.
    fn decide(&mut self) {
        let known = self.samples.seconds_per_item().filter(|_| !self.samples.may_be_launch());
        let Some((gross, net)) = known else { return };
        let is_telling = self.is_telling();
        let remaining = self.remaining as f64;
        let joining = |per_item: f64| -> Vec<UnitId> {
            let awake = self.samples.awake_per_item().map_or(per_item, |awake| awake.min(per_item));
            let helps = |(unit, freight): &&(UnitId, Freight)| {
                freight.could_help(remaining, 1.0 / per_item) && !self.moves_longer(*unit, awake)
            };
            self.others.iter().filter(helps).map(|(unit, _)| *unit).collect()
        };
        let at_best = gross / self.samples.threads.max(1) as f64;
        let is_early = self.samples.may_be_one_threads() && joining(at_best).len() == self.others.len();
        // Nobody could help even if the rest took as long per item as a sample with all that it cost, or is likely to.
        let likely = self.samples.likely_per_item().filter(|likely| likely * remaining < LIKELY_SECONDS);
        let is_unlikely = likely.is_some_and(|likely| joining(likely).is_empty());
        if joining(gross).is_empty() || is_unlikely {
            self.alone();
        } else if is_early || is_telling {
            let called = joining(if is_early { at_best } else { net });
            if called.is_empty() {
                self.alone();
                return;
            }
            if self.tries.is_some_and(|tries| called.contains(&tries.unit)) {
                (self.stage, self.begins) = (Stage::Trying, !std::mem::take(&mut self.is_early));
                return;
            }
            for (unit, _) in &self.others {
                if !called.contains(unit) {
                    self.inner.retire(*unit);
                }
            }
            self.others.retain(|(unit, _)| called.contains(unit));
            // Beside others nobody waits for a comparison.
            self.drop_rival();
            self.called = called;
            self.stage = Stage::Together;
        }
    }

    /// Whether the samples say enough: the last one, and the one before was no launch that left the unit's threads asleep.
    fn is_telling(&self) -> bool {
        let least = if self.samples.threads > 1 { EARLY_SECONDS } else { 0.0 };
        let were_awake = self.samples.before.is_some_and(|(_, seconds)| seconds >= least);
        self.samples.is_telling() && (were_awake || self.samples.is_long())
    }

    /// Learns that a package was computed.
    fn learn(&mut self, computed: &Computed) {
        self.now = self.now.max(computed.ended);
        self.pace(computed);
        if matches!(self.stage, Stage::Sampling | Stage::Trying) && computed.unit == self.first {
            self.sampled = None;
            self.samples.add(computed.items, computed.ended.saturating_sub(computed.handed).as_secs_f64());
            if self.is_early && self.is_trial_worth_while(self.now) {
                (self.stage, self.is_early) = (Stage::Trying, false);
            }
            if self.stage == Stage::Sampling {
                self.decide();
            } else if self.rival.is_none() && self.do_all_move_longer() {
                // The trial disturbs the first unit, which is done before it.
                self.alone();
            }
        }
        if self.stage == Stage::Turns {
            self.took_turn(computed);
        }
    }

    /// The least seconds per item of the first unit, by the last sample, if that was no launch and little else: with all its threads, unless
    /// it was so long that they must have been awake.
    fn surely_per_item(&self) -> Option<f64> {
        let threads = if self.samples.is_long() { 1 } else { self.samples.threads.max(1) };
        let (gross, _) = self.samples.seconds_per_item().filter(|_| self.samples.is_telling())?;
        Some(gross / threads as f64)
    }

    /// The length of the first unit's next package while another is tried out. Its results are to be used at once when that has ended.
    fn meanwhile(&self) -> u64 {
        let pace = self.pace_of(self.first);
        let now = self.now.as_secs_f64();
        let end = self.tries.map_or(0.0, |tries| self.tried.as_secs_f64() + tries.takes);
        let patience = (now * PATIENCE).max((end - now) * TRIAL_AHEAD).max(LEAST_PATIENCE_SECONDS);
        let longest = pace.most.saturating_mul(GROWTH).max(1);
        let items = self.samples.items_in(patience).or(pace.rate.map(|rate| rate * patience));
        items.map_or(1, |items| items as u64).clamp(1, longest) // The cast saturates.
    }

    /// Learns how fast a unit was lately.
    fn pace(&mut self, computed: &Computed) {
        let is_first = computed.unit == self.first;
        let was_dominant = self.is_dominant(computed.unit);
        let flat_seconds = if was_dominant { FLAT_MOST_SECONDS } else { FIRST_SECONDS };
        // Nobody computes faster for long than data comes and goes.
        let most_rate = 1.0 / self.per_item(computed.unit);
        let pace = self.pace_mut(computed.unit);
        pace.leaves(computed.items);
        // While the package before was under way, or inputs were, this one had to wait.
        let began = computed.handed.max(pace.ended);
        let seconds = computed.ended.saturating_sub(began).as_secs_f64();
        if seconds > 0.0 && computed.items > 0 {
            pace.rate = Some((computed.items as f64 / seconds).min(most_rate));
            let this = (computed.items as f64, seconds);
            let flat = pace.last.filter(|(items, took)| is_flat((*items as f64, *took), this, flat_seconds));
            pace.is_flat = flat.is_some();
            pace.launch = flat.map_or(pace.launch, |(_, took)| seconds.min(took));
            let longer = |(items, took): (u64, f64)| {
                let (more, longer) = (computed.items as f64 / items as f64 - 1.0, seconds / took - 1.0);
                more > LEAST_MORE && longer > more * LEAST_LONGER
            };
            pace.scales |= pace.last.is_some_and(longer);
            pace.last = Some((computed.items, seconds));
            // What the first unit is like, its samples have shown.
            let most = if pace.packages == 0 { FIRST_SECONDS } else { SHORT_SECONDS };
            pace.is_open = !is_first && (seconds < most || pace.is_flat);
            pace.least = if pace.least > 0.0 { pace.least.min(seconds) } else { seconds };
            pace.most = pace.most.max(computed.items);
            pace.best = pace.best.max(computed.items as f64 / seconds);
        }
        pace.ended = pace.ended.max(computed.ended);
        pace.packages += 1;
        // Beside a dominant unit nobody waits for it to show that more takes it longer.
        if self.is_dominant(computed.unit) {
            let pace = self.pace_mut(computed.unit);
            pace.is_open |= !is_first && !pace.scales;
        }
        if self.stage == Stage::Together {
            self.drop_slow();
        }
    }

    fn pace_mut(&mut self, unit: UnitId) -> &mut Pace {
        if unit.0 >= self.paces.len() {
            self.paces.resize(unit.0 + 1, Pace::default());
        }
        &mut self.paces[unit.0]
    }

    fn pace_of(&self, unit: UnitId) -> Pace {
        self.paces.get(unit.0).copied().unwrap_or_default()
    }

    /// The units that take part, or may.
    fn units(&self) -> impl Iterator<Item = UnitId> + '_ {
        let all = self.others.iter().map(|(other, _)| *other).chain([self.first]);
        all.filter(|unit| !self.pace_of(*unit).is_dropped)
    }

    /// Returns whether a unit was lately so much faster than all others that these hardly count. Not before it and another one have
    /// computed.
    fn is_dominant(&self, unit: UnitId) -> bool {
        let rate = |unit: UnitId| self.pace_of(unit).rate.unwrap_or(0.0);
        let sum: f64 = self.units().map(rate).sum();
        let is_compared = self.units().all(|other| other == unit) || rate(unit) < sum;
        is_compared && rate(unit) > sum * DOMINANT
    }

    /// Leaves those out that do next to nothing.
    fn drop_slow(&mut self) {
        let paces: Vec<(UnitId, Pace)> = self.units().map(|unit| (unit, self.pace_of(unit))).collect();
        if paces.iter().any(|(_, pace)| pace.rate.is_none()) {
            return;
        }
        let are_measured = paces.iter().all(|(_, pace)| pace.packages >= MEASURED);
        // Of many equal units none does much of the whole.
        let least = |rates: &[f64]| {
            let fastest = rates.iter().copied().fold(0.0, f64::max);
            let share = (rates.iter().sum::<f64>() * LEAST_SHARE).min(fastest / 2.0);
            if are_measured { share } else { fastest * HOPELESS }
        };
        let lately: Vec<f64> = paces.iter().filter_map(|(_, pace)| pace.rate).collect();
        // Whose last package was the dearer one only looks slow: at one place of the work it is not.
        let of_all = self.inner.rates();
        let at_one_place: Vec<f64> = paces.iter().map(|(unit, _)| of_all[unit.0]).collect();
        for (index, (unit, pace)) in paces.into_iter().enumerate() {
            let is_slow = pace.rate.is_some_and(|rate| rate < least(&lately));
            if is_slow && at_one_place[index] < least(&at_one_place) {
                self.paces[unit.0].is_dropped = true;
                self.inner.retire(unit);
            }
        }
    }

    /// What is known of one of the others.
    fn freight_of(&self, unit: UnitId) -> Option<Freight> {
        self.others.iter().find(|(other, _)| *other == unit).map(|(_, freight)| *freight)
    }

    /// The seconds per item that results, or inputs, take to travel at least.
    fn per_item(&self, unit: UnitId) -> f64 {
        self.freight_of(unit).map_or(0.0, |freight| freight.per_item)
    }

    /// The length of the next package of a unit, while several take part.
    fn together(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        let pace = self.pace_of(unit);
        if pace.is_dropped {
            return None;
        }
        if pace.allowed > 0 {
            let length = pace.piece.min(pace.allowed);
            self.pace_mut(unit).allowed -= length;
            return Some(length);
        }
        let mut length = self.allowance(unit, pace, remaining)?;
        // What little it would leave saves less than another package takes.
        let saved = pace.rate.map_or(0.0, |rate| remaining.saturating_sub(length) as f64 / rate);
        if self.is_dominant(unit) && saved < pace.least / 2.0 {
            length = remaining;
        }
        let is_last = self.units().all(|other| other == unit);
        let travel = length as f64 * self.per_item(unit);
        if !is_last && pace.least > 0.0 && self.inner.overlaps(unit) && travel > pace.least * TRAVELS {
            let piece = length.div_ceil(UNDER_WAY);
            let this = self.pace_mut(unit);
            (this.piece, this.allowed) = (piece, length - piece);
            length = piece;
        }
        Some(length)
    }

    /// How far a unit may go that asks for a package, while several take part.
    fn allowance(&mut self, unit: UnitId, pace: Pace, remaining: u64) -> Option<u64> {
        let is_last = self.units().all(|other| other == unit);
        // While nobody knows how fast the unit is, one package after the other tells most. The last one waits for its second package only
        // if the first took so long that others of the same length would be most of the run.
        let tells = !is_last || (pace.packages == 1 && pace.seconds() > FIRST_SECONDS);
        if pace.in_flight > 0 && (pace.rate.is_none() || (pace.is_open && tells)) {
            return None;
        }
        let items = |seconds: f64| pace.rate.map_or(0, |rate| (rate * seconds) as u64); // The cast saturates.
        // At the least that its rate can be, its part of the rest is done when the others have done theirs, who are as fast on
        // average where that is not known.
        let known = || self.units().filter_map(|unit| self.pace_of(unit).rate);
        let mean = known().sum::<f64>() / known().count().max(1) as f64;
        let sum: f64 = self.units().map(|unit| self.pace_of(unit).rate.unwrap_or(mean)).sum();
        let share = pace.rate.map_or(0, |rate| (remaining as f64 * rate / sum) as u64);
        // The first unit leaps as well, as long as no faster one is known: it may be its threads' waking that takes the time.
        let is_waking = unit == self.first && pace.seconds() < WAKING_SECONDS;
        let is_none_faster = known().all(|rate| Some(rate) <= pace.rate);
        let leaps = pace.is_open || (is_waking && is_none_faster);
        let is_dominant = self.is_dominant(unit);
        let surely = if is_waking {
            WAKING_SAMPLE_SECONDS
        } else if pace.is_flat || is_dominant {
            // What takes the same time whatever its size may take as long again, and no longer than the run so far.
            self.now.as_secs_f64().max(FIRST_SECONDS)
        } else {
            FIRST_SECONDS
        };
        let leap = if leaps { pace.most.saturating_mul(LEAP).min(items(surely)) } else { 0 };
        let launch = if is_dominant { pace.launch.max(pace.least) } else { pace.launch };
        let worth = (pace.best * launch * LAUNCHES) as u64;
        let first = if pace.rate.is_none() { remaining / FIRST } else { 0 };
        let least = items(LEAST_SECONDS).max(leap.max(worth).min(share)).max(first);
        if is_last {
            // Nobody waits for it, so that its packages are as long as if it had begun alone. But it has not: what its costs are is a guess.
            let piece = (*self.left.get_or_insert(remaining) / LAST_PACKAGES).max(worth / 2);
            let part = if pace.is_open { LAST_OPEN } else { LAST };
            let most = if self.inner.overlaps(unit) { (remaining / part).max(piece) } else { remaining };
            let length = self.inner.next(unit, remaining)?;
            let length = if pace.is_open { most } else { length.min(most).max(piece) };
            return Some(if pace.is_flat { remaining } else { length.max(1) });
        }
        // Where the work is irregular, what comes may take many times as long as what the unit has shown. The fastest unit, once it is
        // known which that is, may go further: it is not to wait, but it is not to take all that is left either, should the rest be slower.
        let is_slower =
            |other: Pace| !other.is_open && other.rate.is_some_and(|other| Some(other) <= pace.rate);
        let is_fastest = self.units().all(|other| other == unit || is_slower(self.pace_of(other)));
        let length = match self.inner.next(unit, remaining) {
            None if is_fastest => (remaining as f64 * SINGLE) as u64,
            length => length?,
        };
        let part = if is_fastest { PATIENCE_WITH_FASTEST } else { PATIENCE };
        let patience = (self.now.as_secs_f64() * part).max(LEAST_PATIENCE_SECONDS);
        let most = items(patience).max(leap.min(share)).max(1);
        let length = length.max(least);
        match (pace.rate, is_fastest) {
            (None, _) => Some(length),
            (Some(_), false) => Some(length.min(most)),
            (Some(_), true) => {
                // What is under way is bound as well: it may have several packages. The rest of a package is none.
                let room = most.saturating_sub(pace.ahead);
                let one = if self.inner.overlaps(unit) && !pace.is_open { most / UNDER_WAY } else { most };
                let length = length.min(one.max(worth / 2));
                (pace.in_flight == 0 || room >= length / 2).then_some(length.min(room).max(1))
            }
        }
    }
}

impl Policy for Opening {
    fn next(&mut self, unit: UnitId, remaining: u64) -> Option<u64> {
        self.remaining = remaining;
        // What one sample says decides about the next one, also where a device takes several packages at once.
        let is_sample = matches!(self.stage, Stage::Sampling | Stage::Trying);
        if is_sample && unit == self.first && self.pace_of(unit).in_flight > 0 {
            return None;
        }
        match self.stage {
            Stage::Sampling if unit == self.first && self.is_undivided => Some(remaining),
            Stage::Sampling if unit == self.first => {
                let items = self.samples.last.map_or(1, |(items, _)| items as u64);
                let growth = self.growth_beside_rival().unwrap_or_else(|| self.samples.growth());
                Some(items.saturating_mul(growth).max(1))
            }
            Stage::Trying if unit == self.first => Some(self.meanwhile()),
            Stage::Alone if unit == self.first => Some(remaining),
            Stage::Turns => self.in_turn(unit),
            Stage::Together => self.together(unit, remaining),
            _ => None,
        }
    }

    fn handed(&mut self, package: &Package, now: Duration) {
        self.now = self.now.max(now);
        self.remaining = self.remaining.saturating_sub(package.items());
        if package.unit() == self.first {
            self.sampled = Some((package.items(), now));
        }
        let pace = self.pace_mut(package.unit());
        pace.in_flight += 1;
        pace.ahead = pace.ahead.saturating_add(package.items());
        self.inner.handed(package, now);
        self.turn_begins(package);
    }

    fn ended(&mut self, computed: &Computed) {
        self.travelling.depart(computed);
        self.learn(computed);
        self.inner.ended(computed);
    }

    fn computed(&mut self, computed: &Computed) {
        self.now = self.now.max(computed.done);
        self.inner.computed(computed);
        if !self.travelling.arrive(computed) {
            self.learn(computed);
        }
    }

    fn given_back(&mut self, package: &Package) {
        self.remaining = self.remaining.saturating_add(package.items());
        if !self.travelling.come_back(package) {
            self.pace_mut(package.unit()).leaves(package.items());
        }
        self.inner.given_back(package);
        if self.stage == Stage::Turns {
            self.turn_came_back(package);
        }
    }

    fn try_out(&mut self, now: Duration) -> TryOut {
        if let Some((unit, _)) = self.rival.filter(|_| self.tries.is_none()) {
            match self.stage {
                Stage::Sampling => return TryOut::Later,
                Stage::Trying if self.begins => {}
                _ => return TryOut::No,
            }
            (self.begins, self.tried) = (false, now);
            return TryOut::Now { unit, items: self.trial_of_rival() };
        }
        let Some(tries @ Tries { unit, items, after, .. }) = self.tries else { return TryOut::No };
        if self.is_early || !self.others.iter().any(|(other, _)| *other == unit) {
            return TryOut::No;
        }
        match self.stage {
            Stage::Sampling if self.is_undivided && self.could_be_replaced(unit, now) => {
                self.tries = None;
                return TryOut::Now { unit, items };
            }
            Stage::Sampling if self.is_undivided => return TryOut::Later,
            Stage::Sampling if self.is_trial_worth_while(now) => self.stage = Stage::Trying,
            Stage::Sampling if now.as_secs_f64() >= after && self.may_be_early(tries, now) => {
                self.is_early = true
            }
            Stage::Sampling => return TryOut::Later,
            Stage::Trying if self.begins => {}
            _ => return TryOut::No,
        }
        (self.begins, self.tried) = (false, now);
        TryOut::Now { unit, items }
    }

    fn waits(&mut self, unit: UnitId, _: Duration) -> Duration {
        let is_rivals = self.rival.is_some() && self.tries.is_none();
        if self.stage != Stage::Trying || self.begins || unit != self.first || is_rivals {
            return Duration::ZERO;
        }
        // What the unit would do meanwhile is no more than this part of what there is. But it may do it when the trial ends.
        let rest = self.surely_per_item().map_or(0.0, |per_item| per_item * self.remaining as f64);
        self.tried.saturating_add(Duration::try_from_secs_f64(rest * TRIAL_PART).unwrap_or_default())
    }

    fn tried(&mut self, unit: UnitId, computed: Option<&Computed>) {
        self.tries = None;
        let is_early = std::mem::take(&mut self.is_early) && self.stage == Stage::Sampling;
        if self.stage != Stage::Trying && !is_early {
            if self.rival.is_some_and(|(rival, _)| rival == unit) {
                // Nobody conducts its trial.
                self.rival = None;
                self.inner.retire(unit);
            }
            return;
        }
        (self.stage, self.begins) = (Stage::Sampling, false);
        if self.rival.is_some_and(|(rival, _)| rival == unit) {
            return self.rival_was_tried(unit, computed);
        }
        let Some(computed) = computed else { return self.decide() };
        self.stage = Stage::Together;
        self.now = self.now.max(computed.ended);
        let seconds = computed.ended.saturating_sub(computed.begun).as_secs_f64();
        if seconds > 0.0 && computed.items > 0 {
            // Its inputs came before, and its results go later.
            let rate_of = |unit: UnitId| (computed.items as f64 / seconds).min(1.0 / self.per_item(unit));
            let rate = rate_of(unit);
            let tried: Vec<(UnitId, f64)> =
                std::iter::once(&unit).chain(&self.twins).map(|unit| (*unit, rate_of(*unit))).collect();
            for (unit, rate) in tried {
                let pace = self.pace_mut(unit);
                (pace.rate, pace.best) = (Some(rate), rate);
                (pace.last, pace.most, pace.packages) = (Some((computed.items, seconds)), computed.items, 1);
                // What a launch takes the trial has not shown, but that it is no more than this.
                pace.least = seconds.min(TRIAL_LEAST_SECONDS);
            }
            if self.surely_per_item().is_some_and(|per_item| 1.0 / per_item < rate * HOPELESS) {
                self.pace_mut(self.first).is_dropped = true;
                self.inner.retire(self.first);
            }
        }
        let rate: f64 = [unit, self.first].iter().filter_map(|unit| self.pace_of(*unit).rate).sum();
        let helps = |freight: &Freight| freight.could_help(self.remaining as f64, rate);
        let joins = |(other, freight): &&(UnitId, Freight)| *other == unit || helps(freight);
        self.called = self.others.iter().filter(joins).map(|(other, _)| *other).collect();
        let called = &self.called;
        for (other, _) in self.others.iter().filter(|(other, _)| !called.contains(other)) {
            self.inner.retire(*other);
        }
        self.others.retain(|(other, _)| called.contains(other));
    }

    fn retire(&mut self, unit: UnitId) {
        self.inner.retire(unit);
        self.others.retain(|(other, _)| *other != unit);
        if self.tries.is_some_and(|tries| tries.unit == unit) {
            self.is_early = false;
            if self.stage == Stage::Trying {
                self.stage = Stage::Sampling;
            }
        }
        if self.rival.is_some_and(|(rival, _)| rival == unit) {
            self.rival = None;
            if matches!(self.stage, Stage::Trying | Stage::Turns) {
                self.stage = Stage::Alone;
            }
        }
        if unit == self.first && self.stage != Stage::Together {
            // Whoever is left is called up.
            self.others.extend(self.rival.take());
            self.called = self.others.iter().map(|(unit, _)| *unit).collect();
            self.stage = Stage::Together;
        }
    }

    fn call_up(&mut self) -> Vec<UnitId> {
        // Nobody is to begin for nothing.
        if self.remaining == 0 {
            return Vec::new();
        }
        std::mem::take(&mut self.called)
    }
}

#[cfg(test)]
#[path = "opening_far_tests.rs"]
mod far_tests;
#[cfg(test)]
#[path = "opening_simulated.rs"]
mod simulated;
#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
