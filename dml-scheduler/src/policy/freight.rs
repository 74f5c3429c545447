//! What moving the data of a unit takes of which nothing else is known, and whether it could be worth its while then.

/// A unit of which nothing is known may be so many times as fast as those that are.
const FASTEST: f64 = 256.0;
/// What the time with another unit could be, of that without, for the unit to be called up: more than a little, because
/// units disturb each other, and because it takes time to learn what a unit can do.
const WORTH_WHILE: f64 = 0.6;
/// The same of a unit of which is known how fast it computes.
const WORTH_WHILE_OF_KNOWN: f64 = 0.8;

/// What is known of a unit that could join: not how fast it computes, but what moving its data takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Freight {
    /// The least seconds before its first package begins.
    pub(crate) setup: f64,
    /// The least seconds per item.
    pub(crate) per_item: f64,
}

impl Freight {
    /// Returns whether the unit could be worth its while in a run of `items`, of which the others compute `others` per second: if
    /// it computed as fast as its data moves, and were no more than [`FASTEST`] times as fast as they are.
    pub(crate) fn could_help(&self, items: f64, others: f64) -> bool {
        self.with(items, others, others * FASTEST) < items / others * WORTH_WHILE
    }

    /// Returns whether the unit is worth its while beside others, who compute `others` per second, if it computes `rate`.
    pub(crate) fn helps(&self, items: f64, others: f64, rate: f64) -> bool {
        self.with(items, others, rate) < items / others * WORTH_WHILE_OF_KNOWN
    }

    /// The seconds that a run takes with the unit, if it computes so fast and its data moves as fast as that.
    fn with(&self, items: f64, others: f64, rate: f64) -> f64 {
        let without = items / others;
        let rate = rate.min(1.0 / self.per_item);
        let with = (items + self.setup * rate) / (rate + others);
        if self.setup < without { with } else { without }
    }

    /// Returns whether the unit could be worth its while in the place of others, who compute `others` items per second: by what moving its data takes, which
    /// nobody's computing hides.
    pub(crate) fn could_replace(&self, items: f64, others: f64) -> bool {
        self.setup + items * self.per_item < items / others * WORTH_WHILE
    }
}
