//! A kernel's accesses in a launch: polynomials with all scalars and sizes put in.
//!
//! A *form* is `constant + sum of factor * number`. A *number* is that of an item, a group or a turn, a term,
//! or a product of several. Forms do not depend on the package, so they are made once for a launch.

use crate::interpret::{self, Trace};
use crate::poly::{Condition, Kind, Poly, Symbol, Term};
use std::collections::HashMap;

/// A launch: the work-items of a run and of a group along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) sizes: [u64; 3],
    pub(crate) group: [u64; 3],
    /// The axis along which packages divide the work-items.
    pub(crate) axis: usize,
    /// The integers of the arguments, by their positions.
    pub(crate) scalars: Vec<Vec<i128>>,
}

/// Beyond any index.
pub(crate) const FAR: i128 = 1 << 100;
/// Beyond the numbers of 32 bits. A form that may be larger may be another number in its type.
pub(crate) const WILD: i128 = 1 << 33;
/// The most forms of a condition with terms in it.
const FORMS: usize = 16;

/// The position of a number in the table of numbers.
pub(crate) type NumberId = usize;

/// `constant + sum of factor * number`, by ascending numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) constant: i128,
    pub(crate) parts: Vec<(NumberId, i128)>,
}

/// What a number is.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Symbol(Symbol),
    Term { kind: Kind, one: Form, other: Form, wraps: u64 },
    Product(Vec<NumberId>),
}

/// A condition.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    AtLeastZero(Bounds),
    All(Vec<Test>),
    Any(Vec<Test>),
    Unknown,
}

impl Test {
    /// Returns whether the condition holds, if no number matters for it.
    fn decided(&self) -> Option<bool> {
        match self {
            Self::AtLeastZero(Bounds { form, .. }) => match &form[..] {
                [Form { constant, parts }] if parts.is_empty() && constant.abs() < WILD => {
                    Some(*constant >= 0)
                }
                _ => None,
            },
            Self::All(of) if of.iter().any(|test| test.decided() == Some(false)) => Some(false),
            Self::All(of) => of.iter().all(|test| test.decided() == Some(true)).then_some(true),
            Self::Any(of) if of.iter().any(|test| test.decided() == Some(true)) => Some(true),
            Self::Any(of) => of.iter().all(|test| test.decided() == Some(false)).then_some(false),
            Self::Unknown => None,
        }
    }
}

/// A form that is at least 0.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) form: Vec<Form>,
    /// Forms without least and greatest numbers: the form is at least 0 exactly where these are.
    pub(crate) split: Vec<Form>,
    /// Unsigned numbers among them, which must not be less than 0 for that.
    pub(crate) counts: Vec<Form>,
}

/// A statement's access.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) argument: usize,
    pub(crate) offset: Form,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
    pub(crate) tests: Vec<Test>,
}

/// A kernel's accesses in a launch.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) sizes: Sizes,
    pub(crate) numbers: Vec<Number>,
    pub(crate) facts: Vec<Test>,
    pub(crate) accesses: Vec<Access>,
}

/// Makes forms.
struct Binder<'a> {
    trace: &'a Trace,
    sizes: &'a Sizes,
    numbers: Vec<Number>,
    symbols: HashMap<Symbol, NumberId>,
    products: HashMap<Vec<NumberId>, NumberId>,
    values: HashMap<usize, Option<i128>>,
}

impl Bound {
    pub(crate) fn new(trace: &Trace, sizes: Sizes) -> Self {
        let mut binder = Binder {
            trace,
            sizes: &sizes,
            numbers: Vec::new(),
            symbols: HashMap::new(),
            products: HashMap::new(),
            values: HashMap::new(),
        };
        // Those of the items come first: see `ids`.
        for axis in 0..3 {
            [Symbol::Item(axis), Symbol::Group(axis), Symbol::Local(axis)].into_iter().for_each(|symbol| {
                binder.id(symbol);
            });
        }
        let mut access = |access: &interpret::Access| Access {
            argument: access.argument,
            offset: binder.form(&access.offset),
            bytes: access.bytes,
            writes: access.writes,
            tests: access.conditions.iter().map(|condition| binder.test(condition)).collect(),
        };
        let accesses = trace.accesses.iter().map(&mut access).collect();
        let facts = trace.facts.iter().map(|fact| binder.test(fact)).collect();
        let numbers = binder.numbers;
        Self { sizes, numbers, facts, accesses }
    }

    /// Returns the positions of the numbers of an item, of its group, and in its group, along an axis.
    pub(crate) const fn ids(axis: usize) -> [NumberId; 3] {
        [3 * axis, 3 * axis + 1, 3 * axis + 2]
    }
}

impl Binder<'_> {
    fn id(&mut self, symbol: Symbol) -> NumberId {
        if let Some(id) = self.symbols.get(&symbol) {
            return *id;
        }
        let number = match symbol {
            Symbol::Term(term) => {
                let Term { kind, one, other, wraps, .. } = &self.trace.terms[term];
                let [one, other] = [one, other].map(|poly| self.form(poly));
                Number::Term { kind: *kind, one, other, wraps: *wraps }
            }
            symbol => Number::Symbol(symbol),
        };
        self.numbers.push(number);
        self.symbols.insert(symbol, self.numbers.len() - 1);
        self.numbers.len() - 1
    }

    /// Returns the value of a symbol that is the same for all packages.
    fn value(&mut self, symbol: Symbol) -> Option<i128> {
        match symbol {
            Symbol::Argument(position) | Symbol::Unsigned(position) => {
                let (position, place) = self.trace.numbers[position];
                self.sizes.scalars.get(position)?.get(place).copied()
            }
            Symbol::GroupSize(axis) => Some(self.sizes.group[axis].into()),
            // Groups are whole.
            Symbol::Size(axis) => {
                Some(self.sizes.sizes[axis].next_multiple_of(self.sizes.group[axis]).into())
            }
            Symbol::Term(term) => {
                if let Some(value) = self.values.get(&term) {
                    return *value;
                }
                let Term { kind, one, other, wraps, .. } = &self.trace.terms[term];
                let [one, other] = [one, other].map(|poly| {
                    let form = self.form(poly);
                    let is_in_type = |value: &i128| *wraps == 0 || (0..1 << wraps).contains(value);
                    Some(form.constant).filter(|value| form.parts.is_empty() && is_in_type(value))
                });
                let found = one.zip(other).and_then(|(one, other)| match kind {
                    Kind::Quotient => one.checked_div(other),
                    Kind::Remainder => one.checked_rem(other),
                    Kind::Min => Some(one.min(other)),
                    Kind::Max => Some(one.max(other)),
                    Kind::Either => Some(one).filter(|one| *one == other),
                });
                self.values.insert(term, found);
                found
            }
            _ => None,
        }
    }

    fn form(&mut self, poly: &Poly) -> Form {
        let mut form = Form::default();
        for (symbols, factor) in poly.products() {
            let (mut factor, mut rest) = (factor, Vec::new());
            for symbol in symbols {
                match self.value(*symbol) {
                    Some(value) => factor = factor.saturating_mul(value).clamp(-FAR, FAR),
                    None => rest.push(*symbol),
                }
            }
            match rest[..] {
                [] => form.constant = form.constant.saturating_add(factor).clamp(-FAR, FAR),
                [Symbol::Item(axis)] => {
                    // An item is one of its group.
                    let [_, group, local] = Bound::ids(axis);
                    form.add(group, factor.saturating_mul(self.sizes.group[axis].into()));
                    form.add(local, factor);
                }
                [symbol] => {
                    let id = self.id(symbol);
                    form.add(id, factor);
                }
                _ => {
                    let ids: Vec<_> = rest.into_iter().map(|symbol| self.id(symbol)).collect();
                    let known = self.products.get(&ids).copied();
                    let id = known.unwrap_or_else(|| {
                        self.numbers.push(Number::Product(ids.clone()));
                        self.products.insert(ids, self.numbers.len() - 1);
                        self.numbers.len() - 1
                    });
                    form.add(id, factor);
                }
            }
        }
        self.join_divisions(&mut form);
        for axis in 0..3 {
            let size = i128::from(self.sizes.group[axis]);
            let [item, group, local] = Bound::ids(axis);
            let (of_group, of_local) = (form.factor(group), form.factor(local));
            if of_local != 0 && of_group == of_local.saturating_mul(size) || size == 1 && of_group != 0 {
                form.remove(group);
                form.remove(local);
                form.add(item, if size == 1 { of_group } else { of_local });
            } else if size == 1 {
                form.remove(local);
            }
        }
        form
    }

    /// Replaces `x / d * d + x % d` by `x`.
    fn join_divisions(&self, form: &mut Form) {
        let terms: Vec<_> = form.parts.clone();
        for (remainder, small) in &terms {
            let Number::Term { kind: Kind::Remainder, one: of, other: by, .. } = &self.numbers[*remainder]
            else {
                continue;
            };
            let is_pair = |(id, large): &&(NumberId, i128)| {
                let is_same = matches!(&self.numbers[*id], Number::Term { kind: Kind::Quotient, one, other, .. } if one == of && other == by);
                is_same && by.parts.is_empty() && *large == small.saturating_mul(by.constant)
            };
            if let Some((quotient, _)) = terms.iter().find(is_pair) {
                form.remove(*quotient);
                form.remove(*remainder);
                *form = form.less(of, -small);
            }
        }
    }

    fn test(&mut self, condition: &Condition) -> Test {
        let test = match condition {
            Condition::Unknown(..) => Test::Unknown,
            Condition::All(of) => Test::All(of.iter().map(|of| self.test(of)).collect()),
            Condition::Any(of) => Test::Any(of.iter().map(|of| self.test(of)).collect()),
            Condition::AtLeastZero(poly) => Test::AtLeastZero(self.bounds(poly)),
        };
        // What the scalars decide leaves nothing open.
        match test.decided() {
            Some(true) => Test::All(Vec::new()),
            Some(false) => Test::Any(Vec::new()),
            None => test,
        }
    }

    fn bounds(&mut self, poly: &Poly) -> Bounds {
        let form = vec![self.form(poly)];
        let (mut split, mut counts) = (form.clone(), Vec::new());
        let mut at = 0;
        while at < split.len() {
            let bound = split[at].parts.iter().find_map(|(id, factor)| match &self.numbers[*id] {
                // The least of two is large enough if both are.
                Number::Term { kind: Kind::Min, one, other, wraps } if *factor > 0 => {
                    Some((*id, *factor, [one, other], *wraps))
                }
                Number::Term { kind: Kind::Max, one, other, wraps } if *factor < 0 => {
                    Some((*id, *factor, [one, other], *wraps))
                }
                _ => None,
            });
            match bound.filter(|_| split.len() < FORMS) {
                Some((id, factor, both, wraps)) => {
                    if wraps > 0 {
                        counts.extend(both.map(Form::clone));
                    }
                    let mut form = split.swap_remove(at);
                    form.remove(id);
                    split.extend(both.map(|one| form.less(one, -factor)));
                }
                None => at += 1,
            }
        }
        Bounds { form, split, counts }
    }
}

impl Form {
    pub(crate) fn factor(&self, id: NumberId) -> i128 {
        self.parts.iter().find(|(own, _)| *own == id).map_or(0, |(_, factor)| *factor)
    }

    pub(crate) fn remove(&mut self, id: NumberId) {
        self.parts.retain(|(own, _)| *own != id);
    }

    pub(crate) fn add(&mut self, id: NumberId, factor: i128) {
        match self.parts.binary_search_by_key(&id, |(own, _)| *own) {
            Ok(at) => {
                self.parts[at].1 = self.parts[at].1.saturating_add(factor).clamp(-FAR, FAR);
                if self.parts[at].1 == 0 {
                    self.parts.remove(at);
                }
            }
            Err(at) if factor != 0 => self.parts.insert(at, (id, factor.clamp(-FAR, FAR))),
            Err(_) => {}
        }
    }

    /// Returns this form less a multiple of another one.
    pub(crate) fn less(&self, other: &Self, times: i128) -> Self {
        let mut rest = self.clone();
        rest.constant = rest.constant.saturating_sub(other.constant.saturating_mul(times)).clamp(-FAR, FAR);
        for (id, factor) in &other.parts {
            rest.add(*id, factor.saturating_mul(times).saturating_neg());
        }
        rest
    }
}
