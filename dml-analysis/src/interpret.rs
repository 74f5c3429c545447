//! Runs a kernel with unknown numbers: which elements each statement reads and writes.
//!
//! 1. Variables have values from [`value`](crate::value). Branches are followed both, under their conditions.
//! 2. A loop is followed twice. First, each variable that its body changes has an unknown value. One that
//!    grows by the same in every turn is `first + growth * turn` the second time; others are unknown.
//! 3. Calls are followed as if the function stood there.
//! 4. An unknown index refuses the buffer, and an unknown pointer the kernel. Memory of a work-item or of a
//!    work-group is not followed: its values are unknown.

use crate::poly::{Condition, Kind, Poly, Symbol, Term};
use crate::syntax::{Expr, ExprKind, Function, Stmt, Unit, Variable};
use crate::token::Place;
use crate::types::{Space, Type};
use crate::value::{Base, Value, Why};
use crate::{Language, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

mod call;
mod convert;
mod eval;
mod place;
mod turns;

/// A statement's access to a buffer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Access {
    /// The position of the buffer among the kernel's parameters.
    pub(crate) argument: usize,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) is_atomic: bool,
    /// The first byte, and how many.
    pub(crate) offset: Poly,
    pub(crate) bytes: u64,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) at: Place,
}

/// What a kernel does with its buffers.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Trace {
    pub(crate) accesses: Vec<Access>,
    pub(crate) terms: Vec<Term>,
    /// The integers that are passed: the positions of the parameter, and in its vector.
    pub(crate) numbers: Vec<(usize, usize)>,
    /// For each of them, the first number that is beyond a signed type, if it is unsigned.
    pub(crate) large: Vec<Option<i128>>,
    /// The buffers with an index that is unknown, and why.
    pub(crate) refused: BTreeMap<usize, Refusal>,
    /// Those of them that are changed.
    pub(crate) changed: BTreeSet<usize>,
    /// What always holds of numbers with one unknown value.
    pub(crate) facts: Vec<Condition>,
}

impl Trace {
    /// Returns whether an unsigned integer is too large for a signed type.
    pub(crate) fn has_large(&self, scalars: &[Vec<i128>]) -> bool {
        self.numbers.iter().zip(&self.large).any(|((position, place), large)| {
            let value = scalars.get(*position).and_then(|of| of.get(*place));
            value.zip(*large).is_some_and(|(value, large)| *value >= large)
        })
    }
}

/// What is not followed.
const OWN: &str = "a value from memory of a work-item or work-group";
/// What has been declared alone.
const UNSET: &str = "no value yet";
/// How deeply calls may be nested.
const CALLS: usize = 24;
/// The most statements and expressions that are followed.
const STEPS: usize = 2_000_000;
/// The most choices in an offset that are followed each.
const CHOICES: usize = 3;
/// The most accesses.
const ACCESSES: usize = 10_000;

type Run<T> = Result<T, Refusal>;

/// The variables, each with what is known of it, and its type.
type Stack = Vec<(Rc<str>, Value, Type)>;

/// Whether a statement leaves the block around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Never,
    Sometimes,
    Always,
}

/// What can be assigned to.
enum Target {
    /// A variable, or a part of it: the elements of each vector and the field of each structure on the way.
    Variable {
        index: usize,
        path: Vec<Vec<u64>>,
        of: Type,
    },
    Memory {
        base: Base,
        offset: Poly,
        of: Type,
    },
    /// Elements of a vector in memory.
    Lanes {
        base: Base,
        offset: Poly,
        of: Type,
        lanes: Vec<u64>,
    },
    /// A part of something whose values are not followed, and what it is.
    Own(&'static str),
    /// An unknown element of the buffer at this position.
    Astray {
        argument: usize,
        of: Type,
        why: Why,
    },
}

pub(crate) struct Machine<'a> {
    unit: &'a Unit,
    language: Language,
    stack: Stack,
    /// Where the variables of the current function begin.
    frame: usize,
    calls: usize,
    conditions: Vec<Condition>,
    trace: Trace,
    symbols: usize,
    /// For each term, one more than the newest symbol that it depends on.
    newest: Vec<usize>,
    returned: Option<Value>,
    /// The variables where a turn of the innermost loop ends early.
    left: Vec<Stack>,
    /// The conditions under which it does.
    left_under: Vec<Vec<Condition>>,
    ended_under: Vec<Vec<Condition>>,
    /// The conditions under which the last turn that was followed came to its end, if it may.
    goes_on: Option<Vec<Condition>>,
    /// The conditions of choices, by the terms: the first of both where it holds.
    choices: BTreeMap<usize, Condition>,
    /// The variables of the current function whose addresses are taken.
    addressed: Rc<BTreeSet<Rc<str>>>,
    steps: usize,
}

/// Runs a kernel.
pub(crate) fn run(unit: &Unit, kernel: &Function, language: Language) -> Run<Trace> {
    let mut machine = Machine {
        unit,
        language,
        stack: Vec::new(),
        frame: 0,
        calls: 0,
        conditions: Vec::new(),
        trace: Trace::default(),
        symbols: 0,
        newest: Vec::new(),
        returned: None,
        left: Vec::new(),
        left_under: Vec::new(),
        ended_under: Vec::new(),
        goes_on: None,
        choices: BTreeMap::new(),
        addressed: kernel.addressed.clone(),
        steps: 0,
    };
    for variable in &unit.variables {
        let value = machine.global(variable);
        machine.stack.push((variable.name.clone(), value, variable.of.clone()));
    }
    for (position, (name, of)) in kernel.parameters.iter().enumerate() {
        let value = match of {
            Type::Pointer(of, Space::Global) => {
                let (base, of) = (Base::Argument(position), (**of).clone());
                Value::Pointer { base, offset: Poly::default(), of }
            }
            Type::Pointer(of, Space::Own) => {
                Value::Pointer { base: Base::Own, offset: Poly::default(), of: (**of).clone() }
            }
            Type::Integer { .. } => machine.passed((position, 0), of),
            of if let Some((element, count)) = of.integers() => {
                let elements = (0..count as usize).map(|place| machine.passed((position, place), element));
                Value::Lanes(Rc::new(elements.collect()))
            }
            Type::Bool => Value::Test(machine.passed((position, 0), of).truth()),
            _ => Value::unknown(kernel.at, "an argument that is no integer"),
        };
        let value = machine.unless_addressed(name, value, kernel.at);
        machine.stack.push((name.clone(), value, of.clone()));
    }
    machine.frame = unit.variables.len();
    machine.exec(&kernel.body)?;
    machine
        .trace
        .accesses
        .iter_mut()
        .for_each(|access| access.conditions.retain(|held| *held != Condition::All(vec![])));
    join_branches(&mut machine.trace.accesses);
    Ok(machine.trace)
}

/// Replaces writes under a condition and under its opposite by one write without it.
fn join_branches(accesses: &mut Vec<Access>) {
    let joined = |one: &Access, other: &Access| {
        let is_same = one.writes
            && other.writes
            && (one.reads, one.argument, one.bytes, &one.offset)
                == (other.reads, other.argument, other.bytes, &other.offset)
            && one.conditions.len() == other.conditions.len();
        let mut pairs = one.conditions.iter().zip(&other.conditions).enumerate();
        let different = pairs.find(|(_, (this, that))| this != that).filter(|_| is_same)?;
        let (index, (this, that)) = different;
        // Those without a number are not of one branch.
        let are_opposite = !this.has_unnumbered() && (*this == that.negated() || this.negated() == *that);
        (are_opposite && one.conditions[index + 1..] == other.conditions[index + 1..]).then_some(index)
    };
    while let Some((one, other, index)) = (0..accesses.len()).find_map(|one| {
        (one + 1..accesses.len())
            .find_map(|other| joined(&accesses[one], &accesses[other]).map(|index| (one, other, index)))
    }) {
        accesses[one].conditions.remove(index);
        accesses.remove(other);
    }
}

impl Machine<'_> {
    /// Returns an integer that is passed.
    fn passed(&mut self, place: (usize, usize), of: &Type) -> Value {
        let number = self.trace.numbers.len();
        self.trace.numbers.push(place);
        self.trace.large.push(match of {
            Type::Integer { bytes: bytes @ 4.., is_signed: false } => Some(1 << (8 * bytes - 1)),
            _ => None,
        });
        let is_signed = matches!(of, Type::Integer { is_signed: true, .. });
        let symbol = if is_signed { Symbol::Argument(number) } else { Symbol::Unsigned(number) };
        Value::integer(Poly::symbol(symbol), of)
    }

    fn global(&self, variable: &Variable) -> Value {
        match (&variable.of, &variable.first) {
            (of @ Type::Integer { .. }, Some(Expr { kind: ExprKind::Integer(value, _), .. }))
                if variable.is_const =>
            {
                Value::integer(Poly::from(*value), of)
            }
            (of @ Type::Array(..), _) => {
                let base = variable.elements().map_or(Base::Module, |(least, most)| Base::Table(least, most));
                Value::Pointer { base, offset: Poly::default(), of: decayed(of) }
            }
            _ => Value::unknown(variable.at, "a variable outside the kernel"),
        }
    }

    fn fresh(&mut self) -> usize {
        self.symbols += 1;
        self.symbols - 1
    }

    /// Returns a number with one unknown value, of these bounds.
    fn some(&mut self, least: i128, most: i128) -> Poly {
        let some = Poly::symbol(Symbol::Some(self.fresh()));
        self.trace.facts.push(Condition::at_least(&some, &Poly::from(least)));
        self.trace.facts.push(Condition::at_least(&Poly::from(most), &some));
        some
    }

    fn term(&mut self, term: Term) -> Poly {
        let known = self.trace.terms.iter().position(|known| *known == term);
        let index = known.unwrap_or_else(|| {
            let newest = self.newest_of(&term.one).max(self.newest_of(&term.other)).max(term.choice);
            self.newest.push(newest);
            self.trace.terms.push(term);
            self.trace.terms.len() - 1
        });
        Poly::symbol(Symbol::Term(index))
    }

    fn step(&mut self, at: Place) -> Run<()> {
        self.steps += 1;
        if self.steps > STEPS || self.trace.accesses.len() > ACCESSES {
            return Err(Refusal::new(at, "a kernel that is too large"));
        }
        Ok(())
    }

    /// Follows a statement.
    fn exec(&mut self, statement: &Stmt) -> Run<Leaves> {
        match statement {
            Stmt::Declare(variables) => {
                for variable in variables {
                    let value = self.declared(variable)?;
                    let value = self.unless_addressed(&variable.name, value, variable.at);
                    self.stack.push((variable.name.clone(), value, variable.of.clone()));
                }
            }
            Stmt::Expr(expr) => {
                self.eval(expr)?;
            }
            Stmt::Block(statements) => {
                let scope = self.stack.len();
                let mut leaves = Leaves::Never;
                for statement in statements {
                    match self.exec(statement)? {
                        Leaves::Never => {}
                        Leaves::Sometimes => leaves = Leaves::Sometimes,
                        Leaves::Always => {
                            leaves = Leaves::Always;
                            break;
                        }
                    }
                }
                self.stack.truncate(scope);
                return Ok(leaves);
            }
            Stmt::If(condition, yes, no) => {
                let condition = self.eval(condition)?.truth();
                return self.branch(&condition, yes, no.as_deref());
            }
            Stmt::Loop { at, condition, step, body, is_tested_first } => {
                return self.turns(*at, (condition.as_ref(), *is_tested_first), step.as_ref(), body);
            }
            Stmt::Return(value) => {
                let value = value.as_ref().map(|value| self.eval(value)).transpose()?;
                if let Some(value) = value {
                    self.returned = Some(match self.returned.take() {
                        Some(known) => self.either(known, value),
                        None => value,
                    });
                }
                return Ok(Leaves::Always);
            }
            Stmt::Leave => {
                self.left.push(self.stack.clone());
                self.left_under.push(self.conditions.clone());
                return Ok(Leaves::Always);
            }
        }
        Ok(Leaves::Never)
    }

    /// Returns the value of a variable, which is unknown if its address is taken anywhere.
    fn unless_addressed(&self, name: &Rc<str>, value: Value, at: Place) -> Value {
        if self.addressed.contains(name) {
            return Value::unknown(at, "a variable whose address is taken");
        }
        value
    }

    fn declared(&mut self, variable: &Variable) -> Run<Value> {
        let first = match &variable.first {
            Some(first) => Some(self.eval(first)?),
            None => None,
        };
        Ok(match (&variable.of, first) {
            (of @ Type::Array(..), _) => {
                let base = variable.elements().map_or(Base::Own, |(least, most)| Base::Table(least, most));
                Value::Pointer { base, offset: Poly::default(), of: decayed(of) }
            }
            (of, Some(first)) => self.converted(first, of, variable.at),
            (Type::Vector(_, lanes), None) => {
                Value::Lanes(Rc::new(vec![Value::unknown(variable.at, UNSET); *lanes as usize]))
            }
            (Type::Struct(of), None) if of.is_vector() => {
                Value::Lanes(Rc::new(vec![Value::unknown(variable.at, UNSET); of.fields.len()]))
            }
            (Type::Struct(of), None) => {
                let fields = vec![Value::unknown(variable.at, UNSET); of.fields.len()];
                Value::Fields(of.clone(), Rc::new(fields))
            }
            _ => Value::unknown(variable.at, UNSET),
        })
    }

    fn branch(&mut self, condition: &Condition, yes: &Stmt, no: Option<&Stmt>) -> Run<Leaves> {
        let (before, held) = (self.stack.clone(), self.conditions.len());
        let condition = &condition.numbered(self.fresh() + 1);
        self.conditions.push(condition.clone());
        let first = self.exec(yes)?;
        self.stack.truncate(before.len());
        self.conditions.truncate(held);
        let after = std::mem::replace(&mut self.stack, before);
        self.conditions.push(condition.negated());
        let second = match no {
            Some(no) => self.exec(no)?,
            None => Leaves::Never,
        };
        self.stack.truncate(after.len());
        self.conditions.truncate(held);
        match (first, second) {
            (Leaves::Always, Leaves::Always) => return Ok(Leaves::Always),
            // What follows is done by those that have not left.
            (Leaves::Always, _) => self.conditions.push(condition.negated()),
            (_, Leaves::Always) => {
                self.stack = after;
                self.conditions.push(condition.clone());
            }
            _ => {
                let other = std::mem::replace(&mut self.stack, after);
                self.merge_variables(condition, other);
            }
        }
        if first == Leaves::Sometimes || second == Leaves::Sometimes {
            self.conditions.push(Condition::UNKNOWN);
        }
        let is_never = first == Leaves::Never && second == Leaves::Never;
        Ok(if is_never { Leaves::Never } else { Leaves::Sometimes })
    }

    /// Gives variables the values that they have now under a condition, and otherwise those of `other`.
    fn merge_variables(&mut self, condition: &Condition, other: Stack) {
        for (index, (_, no, _)) in other.into_iter().enumerate() {
            if self.stack[index].1 != no {
                let yes = self.stack[index].1.clone();
                self.stack[index].1 = self.merged(condition, yes, no);
            }
        }
    }

    /// Returns the value that is `yes` under a condition, and otherwise `no`.
    fn merged(&mut self, condition: &Condition, yes: Value, no: Value) -> Value {
        if let (Value::Integer(one), Value::Integer(other)) = (&yes, &no) {
            let more = &one.poly - &other.poly;
            let tested = match condition {
                Condition::AtLeastZero(poly) => Some(poly),
                _ => None,
            };
            let is = |poly: &Poly| tested == Some(poly) || tested == Some(&(poly - &Poly::from(1)));
            let (is_max, is_min) = (is(&more), is(&-&more));
            if is_max || is_min {
                let kind = if is_max { Kind::Max } else { Kind::Min };
                let term = Term::new(kind, &one.poly, &other.poly);
                return Value::Integer(one.joined(other, self.term(term)));
            }
        }
        match (yes.flag(), no.flag()) {
            (Some(true), Some(false)) => return Value::Test(condition.clone()),
            (Some(false), Some(true)) => return Value::Test(condition.negated()),
            _ => {}
        }
        if let (Value::Test(_), _) | (_, Value::Test(_)) = (&yes, &no)
            && (yes.is_flag() && no.is_flag())
        {
            return Value::Test(Condition::Any(vec![
                Condition::All(vec![condition.clone(), yes.truth()]),
                Condition::All(vec![condition.negated(), no.truth()]),
            ]));
        }
        let count = self.trace.terms.len();
        let value = self.either(yes, no);
        for term in count..self.trace.terms.len() {
            if self.trace.terms[term].choice > 0 && !condition.is_unknown() {
                self.choices.insert(term, condition.clone());
            }
        }
        value
    }

    /// Returns a number that is one of two, unknown which, and maybe another one at another place or turn.
    fn chosen(&mut self, one: &Poly, other: &Poly, is_signed: bool) -> Poly {
        if one == other {
            return one.clone();
        }
        let choice = self.fresh() + 1;
        let more = one - other;
        let is_fixed =
            |symbol: &Symbol| matches!(symbol, Symbol::Argument(_) | Symbol::GroupSize(_) | Symbol::Size(_));
        let mut products = more.products();
        let is_step = matches!((products.next(), products.next()),
            (Some((symbols, _)), None) if symbols.iter().all(is_fixed));
        drop(products);
        if is_step && is_signed {
            // What both have in common stays outside: it is a step more or not.
            let term = Term::new(Kind::Either, &Poly::from(1), &Poly::default());
            return other + &(&more * &self.term(Term { choice, ..term }));
        }
        self.term(Term { choice, ..Term::new(Kind::Either, one, other) })
    }

    fn either_of_each(&mut self, one: &[Value], other: &[Value]) -> Rc<Vec<Value>> {
        let pairs = one.iter().zip(other);
        Rc::new(pairs.map(|(one, other)| self.either(one.clone(), other.clone())).collect())
    }

    /// Returns what is known of a value that is one of two.
    fn either(&mut self, one: Value, other: Value) -> Value {
        match (one, other) {
            (one, other) if one == other => one,
            (Value::Integer(one), Value::Integer(other)) => {
                let is_signed = one.is_signed && other.is_signed;
                let poly = self.chosen(&one.poly, &other.poly, is_signed);
                Value::Integer(one.joined(&other, poly))
            }
            (
                Value::Pointer { base, offset, of },
                Value::Pointer { base: other, offset: second, of: same },
            ) if base == other && of == same => {
                let offset = self.chosen(&offset, &second, true);
                Value::Pointer { base, offset, of }
            }
            (Value::Lanes(one), Value::Lanes(other)) if one.len() == other.len() => {
                Value::Lanes(self.either_of_each(&one, &other))
            }
            (Value::Fields(of, one), Value::Fields(same, other)) if of == same => {
                Value::Fields(of, self.either_of_each(&one, &other))
            }
            (
                astray @ Value::Astray { base, .. },
                Value::Pointer { base: other, .. } | Value::Astray { base: other, .. },
            )
            | (Value::Pointer { base: other, .. }, astray @ Value::Astray { base, .. })
                if base == other =>
            {
                astray
            }
            (Value::Pointer { .. } | Value::Astray { .. }, _)
            | (_, Value::Pointer { .. } | Value::Astray { .. }) => {
                Value::unknown(0, "a pointer to one of several buffers")
            }
            (unknown @ Value::Unknown(_), _) | (_, unknown @ Value::Unknown(_)) => unknown,
            (Value::Test(_), Value::Test(_)) => Value::Test(Condition::UNKNOWN),
            _ => Value::unknown(0, "one of several values"),
        }
    }

    /// Returns one more than the newest number of a loop that a polynomial depends on.
    fn newest_of(&self, poly: &Poly) -> usize {
        let symbols = poly.products().flat_map(|(symbols, _)| symbols);
        let newest = symbols.map(|symbol| match symbol {
            Symbol::Turn(number) | Symbol::Some(number) => number + 1,
            Symbol::Term(number) => self.newest[*number],
            _ => 0,
        });
        newest.max().unwrap_or(0)
    }

    /// Returns whether a polynomial contains a symbol that is at least as new as `newest`.
    fn is_newer(&self, poly: &Poly, newest: usize) -> bool {
        self.newest_of(poly) > newest
    }

    /// As [`is_newer`](Self::is_newer), for terms alone.
    fn is_newer_term(&self, poly: &Poly, newest: usize) -> bool {
        let mut symbols = poly.products().flat_map(|(symbols, _)| symbols);
        symbols
            .any(|symbol| matches!(symbol, Symbol::Term(_)) && self.is_newer(&Poly::symbol(*symbol), newest))
    }

    fn find(&self, name: &str) -> Option<usize> {
        let is_it = |(known, ..): &(Rc<str>, Value, Type)| **known == *name;
        let own = self.stack[self.frame..].iter().rposition(is_it).map(|index| self.frame + index);
        own.or_else(|| self.stack[..self.unit.variables.len()].iter().rposition(is_it))
    }

    fn load(&mut self, target: &Target, at: Place) -> Run<Value> {
        match target {
            Target::Variable { index, path, .. } => {
                let value = self.stack[*index].1.clone();
                Ok(path.iter().fold(value, |value, lanes| match value {
                    Value::Lanes(values) | Value::Fields(_, values) => picked(&values, lanes),
                    _ => Value::unknown(at, "an element of an unknown vector"),
                }))
            }
            Target::Own(what) => Ok(Value::unknown(at, what)),
            Target::Astray { argument, of: of @ Type::Array(..), why } => {
                Ok(Value::Astray { base: Base::Argument(*argument), of: decayed(of), why: why.clone() })
            }
            Target::Astray { .. } => Ok(Value::unknown(at, "a value from a buffer")),
            Target::Lanes { base, offset, of, lanes } => {
                self.access_lanes((*base, offset, of), lanes, (true, false, false), at)?;
                let value = Value::unknown(at, "a value from a buffer");
                Ok(if lanes.len() == 1 { value } else { Value::Lanes(Rc::new(vec![value; lanes.len()])) })
            }
            Target::Memory { base, offset, of } => {
                if let Type::Array(..) = of {
                    return Ok(Value::Pointer { base: *base, offset: offset.clone(), of: decayed(of) });
                }
                self.access((*base, offset, of), (true, false, false), at)?;
                Ok(match of {
                    Type::Integer { .. } if let Base::Table(least, most) = *base => {
                        Value::integer(self.some(least, most), of)
                    }
                    // Few values: an index into a table is within it.
                    Type::Integer { bytes: bytes @ (1 | 2), is_signed }
                        if matches!(base, Base::Argument(_)) =>
                    {
                        let span = 1_i128 << (8 * bytes);
                        let least = if *is_signed { -span / 2 } else { 0 };
                        Value::integer(self.some(least, least + span - 1), of)
                    }
                    _ => Value::unknown(at, "a value from a buffer"),
                })
            }
        }
    }

    fn access(
        &mut self,
        (base, offset, of): (Base, &Poly, &Type),
        (reads, writes, is_atomic): (bool, bool, bool),
        at: Place,
    ) -> Run<()> {
        let argument = match base {
            Base::Own => return Ok(()),
            Base::Module | Base::Table(..) if writes => {
                return Err(Refusal::new(at, "a change of a variable outside the kernel"));
            }
            Base::Module | Base::Table(..) => return Ok(()),
            Base::Argument(argument) => argument,
        };
        let bytes = of.size().ok_or_else(|| Refusal::new(at, "an element of unknown size"))?;
        if offset.is_excessive() {
            return Err(Refusal::new(at, "an index that is too large to be followed"));
        }
        // An index that is another number in a larger type is beyond the buffer.
        let (offset, conditions) = (self.narrowed(offset), self.conditions.clone());
        let access = Access { argument, reads, writes, is_atomic, offset, bytes, conditions, at };
        self.split(access, CHOICES);
        Ok(())
    }

    /// Notes an access, for each of two choices in its offset by itself.
    fn split(&mut self, access: Access, depth: usize) {
        let choice =
            access.offset.products().flat_map(|(symbols, _)| symbols).find_map(|symbol| match symbol {
                Symbol::Term(term) => self.choices.get(term).map(|condition| (*term, condition.clone())),
                _ => None,
            });
        let Some((term, condition)) = choice.filter(|_| depth > 0) else {
            self.trace.accesses.push(access);
            return;
        };
        let [one, other] = [&self.trace.terms[term].one, &self.trace.terms[term].other].map(Clone::clone);
        for (condition, poly) in [(condition.clone(), one), (condition.negated(), other)] {
            let symbol = Symbol::Term(term);
            let mut own = Access { offset: access.offset.with(symbol, &poly), ..access.clone() };
            own.conditions = own.conditions.iter().map(|held| held.with(symbol, &poly)).collect();
            own.conditions.push(condition);
            self.split(own, depth - 1);
        }
    }

    fn access_lanes(
        &mut self,
        (base, offset, of): (Base, &Poly, &Type),
        lanes: &[u64],
        how: (bool, bool, bool),
        at: Place,
    ) -> Run<()> {
        let bytes = of.size().ok_or_else(|| Refusal::new(at, "an element of unknown size"))?;
        for lane in lanes {
            let offset = offset + &Poly::from(i128::from(lane * bytes));
            self.access((base, &offset, of), how, at)?;
        }
        Ok(())
    }

    fn store(&mut self, target: &Target, value: Value, at: Place) -> Run<()> {
        match target {
            Target::Variable { index, path, of } => {
                let value = self.converted(value, of, at);
                let name = self.stack[*index].0.clone();
                let value = self.unless_addressed(&name, value, at);
                put(&mut self.stack[*index].1, path, value, at);
                Ok(())
            }
            Target::Own(_) => Ok(()),
            Target::Astray { argument, .. } => {
                self.trace.changed.insert(*argument);
                Ok(())
            }
            Target::Lanes { base, offset, of, lanes } => {
                self.access_lanes((*base, offset, of), lanes, (false, true, false), at)
            }
            Target::Memory { base, offset, of } => self.access((*base, offset, of), (false, true, false), at),
        }
    }
}

/// Returns the type of what an array's name points to.
fn decayed(of: &Type) -> Type {
    of.element().cloned().unwrap_or(Type::Opaque)
}

/// Changes a part of a value. What is unknown stays so.
fn put(whole: &mut Value, path: &[Vec<u64>], value: Value, at: Place) {
    let Some((lanes, rest)) = path.split_first() else {
        *whole = value;
        return;
    };
    let (Value::Lanes(values) | Value::Fields(_, values)) = whole else { return };
    let values = Rc::make_mut(values);
    let mut part = picked(values, lanes);
    put(&mut part, rest, value, at);
    for (place, lane) in lanes.iter().enumerate() {
        let own = match &part {
            own if lanes.len() == 1 => Some(own),
            Value::Lanes(of) => of.get(place),
            _ => None,
        };
        let own = own.cloned().unwrap_or_else(|| Value::unknown(at, "an element of an unknown vector"));
        if let Some(element) = values.get_mut(*lane as usize) {
            *element = own;
        }
    }
}

fn picked(values: &[Value], lanes: &[u64]) -> Value {
    let pick = |lane: &u64| values.get(*lane as usize).cloned();
    let values: Option<Vec<_>> = lanes.iter().map(pick).collect();
    match values {
        Some(mut values) if values.len() == 1 => values.remove(0),
        Some(values) => Value::Lanes(Rc::new(values)),
        None => Value::unknown(0, "an element that the vector has not"),
    }
}
