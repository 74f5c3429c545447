//! Loops.

use super::{Access, Leaves, Machine, Run, Stack, UNSET};
use crate::poly::{Condition, Poly, Symbol};
use crate::syntax::{Expr, Stmt};
use crate::token::Place;
use crate::value::{Integer, Value, Why};
use std::rc::Rc;

impl Machine<'_> {
    /// Follows a loop.
    pub(super) fn turns(
        &mut self,
        at: Place,
        (condition, is_tested_first): (Option<&Expr>, bool),
        step: Option<&Expr>,
        body: &Stmt,
    ) -> Run<Leaves> {
        self.step(at)?;
        let (depth, held) = (self.stack.len(), self.conditions.len());
        let (ends_early, returns) = leaves(body);
        let before = self.stack.clone();
        let newest = self.symbols;
        let why = Why { at, what: "a value that changes from turn to turn" };
        // A pointer stays within its memory: other ones are found below, when the loop is followed.
        let astray = |first: &Value| match first {
            Value::Pointer { base, of, .. } | Value::Astray { base, of, .. } => {
                Value::Astray { base: *base, of: of.clone(), why: why.clone() }
            }
            _ => Value::Unknown(why.clone()),
        };

        // Which variables a turn changes, and how, whatever the values of these variables are before it.
        let mut changed: Vec<usize> = Vec::new();
        let symbols = loop {
            let mut symbols = Vec::new();
            for index in &changed {
                let mut number = || {
                    let symbol = Poly::symbol(Symbol::Some(self.fresh()));
                    symbols.push(symbol.clone());
                    Some(symbol)
                };
                let unknown = with_numbers(&before[*index].1, &mut number, &astray);
                self.stack[*index].1 = unknown;
            }
            let counts = (self.trace.accesses.len(), self.trace.facts.len(), self.returned.clone());
            self.turn((condition, is_tested_first), step, body)?;
            self.conditions.truncate(held);
            self.trace.accesses.truncate(counts.0);
            self.trace.facts.truncate(counts.1);
            self.returned = counts.2;
            let is_further =
                |index: &usize| !changed.contains(index) && self.stack[*index].1 != before[*index].1;
            let further: Vec<_> = (0..depth).filter(is_further).collect();
            if further.is_empty() {
                break symbols;
            }
            changed.extend(further);
            self.stack.clone_from(&before);
        };
        let first: Vec<Value> = changed.iter().map(|index| before[*index].1.clone()).collect();
        let mut ends = Vec::new();
        for (index, first) in changed.iter().zip(&first) {
            numbers(first, Some(&self.stack[*index].1), &mut ends);
        }
        let growth: Vec<Option<Poly>> = (ends.iter().zip(&symbols))
            .map(|(end, symbol)| {
                let growth = end.as_ref()? - symbol;
                (!self.is_newer(&growth, newest)).then_some(growth)
            })
            .collect();

        // The turns themselves.
        let turn = self.fresh();
        let at_turn = |number: &Poly| -> Vec<Value> {
            let mut starts = Vec::new();
            first.iter().for_each(|first| numbers(first, Some(first), &mut starts));
            let mut grown = starts.iter().zip(&growth).map(|(start, growth)| {
                let (start, growth) = (start.as_ref()?, growth.as_ref()?);
                Some(start + &(growth * number))
            });
            let mut next = || grown.next().flatten();
            first.iter().map(|first| with_numbers(first, &mut next, &astray)).collect()
        };
        let number = Poly::symbol(Symbol::Turn(turn));
        for (index, value) in changed.iter().zip(at_turn(&number)) {
            self.stack[*index].1 = value;
        }
        if ends_early && !self.ends_for_good(turn, (condition, is_tested_first), step, body, held)? {
            self.conditions.push(Condition::UNKNOWN);
        }
        let count = self.trace.accesses.len();
        let (tested, left) = self.turn((condition, is_tested_first), step, body)?;
        // A turn may not be done where its test would hold, as one before has failed.
        if tested.as_ref().is_some_and(|tested| is_tested_first && !self.holds_from_first(tested, turn)) {
            let own = self.trace.accesses[count..].iter_mut();
            own.for_each(|access| access.conditions.insert(held, Condition::UNKNOWN));
        }
        self.conditions.truncate(held);
        self.stack.truncate(depth);
        let ended_under = std::mem::take(&mut self.ended_under);
        let ended: Vec<Value> = changed.iter().map(|index| self.stack[*index].1.clone()).collect();

        // What follows knows the number of turns as far as the condition ended them.
        let last = Poly::symbol(Symbol::Some(self.fresh()));
        let zero = Poly::from(0);
        self.trace.facts.push(Condition::at_least(&last, &zero));
        let depends_on_turn = |condition: &Condition| {
            let mut depends = false;
            condition.each(&mut |poly| depends |= self.is_newer_term(poly, newest));
            depends
        };
        let tested = tested.filter(|tested| !tested.is_unknown() && !depends_on_turn(tested));
        // A flag has its value of the last turn, if there is one.
        let mut flags: Vec<Option<Value>> = vec![None; changed.len()];
        if let Some(tested) = tested.as_ref().filter(|_| is_tested_first) {
            let of_last = Poly::symbol(Symbol::Some(self.symbols));
            let symbol = Symbol::Turn(turn);
            // It is the last one because the test fails after it, or because it ends early.
            let mut is_last = vec![tested.with(symbol, &(&of_last + &Poly::from(1))).negated()];
            is_last.extend(ended_under.iter().map(|under| {
                let own = under[held.min(under.len())..].iter().filter(|of| !depends_on_turn(of));
                Condition::All(own.map(|of| of.with(symbol, &of_last)).collect())
            }));
            let is_last = Condition::Any(is_last);
            for (place, value) in ended.iter().enumerate() {
                let flag = value.truth();
                let is_flag = match &first[place] {
                    Value::Unknown(why) => why.what == UNSET,
                    first => first.is_flag(),
                };
                if is_flag && value.is_flag() && !depends_on_turn(&flag) {
                    let none = tested.with(symbol, &zero).negated();
                    flags[place] = Some(Value::Test(Condition::Any(vec![
                        Condition::All(vec![none, first[place].truth()]),
                        Condition::All(vec![
                            Condition::at_least(&of_last, &zero),
                            tested.with(symbol, &of_last),
                            is_last.clone(),
                            flag.with(symbol, &of_last),
                        ]),
                    ])));
                }
            }
            self.fresh();
        }
        if let Some(tested) = tested {
            let before = &last - &Poly::from(1);
            let none = Condition::at_least(&zero, &last);
            let symbol = Symbol::Turn(turn);
            if is_tested_first {
                self.trace.facts.push(Condition::Any(vec![none, tested.with(symbol, &before)]));
            } else {
                // The condition held after all turns but the last.
                let one = Condition::at_least(&Poly::from(1), &last);
                let before = &before - &Poly::from(1);
                self.trace.facts.push(Condition::Any(vec![one, tested.with(symbol, &before)]));
            }
            if is_tested_first && !ends_early {
                self.trace.facts.push(tested.with(symbol, &last).negated());
            }
            if !is_tested_first {
                let previous = &number - &Poly::from(1);
                let none = Condition::at_least(&zero, &number);
                self.trace.facts.push(Condition::Any(vec![none, tested.with(symbol, &previous)]));
            }
        }
        // A turn that ends early may have changed a variable already.
        let entered = at_turn(&number);
        for (place, (index, value)) in changed.iter().zip(at_turn(&last)).enumerate() {
            let is_same = left.iter().all(|early| early[*index].1 == entered[place]);
            self.stack[*index].1 = match flags[place].take() {
                Some(flag) => flag,
                None if is_same => value,
                None => astray(&value),
            };
        }
        if let Some(condition) = condition.filter(|_| is_tested_first) {
            // The test that ends the loop may change variables, too.
            let before = self.stack.clone();
            let held = self.conditions.len();
            self.conditions.push(Condition::UNKNOWN);
            self.eval(condition)?;
            self.conditions.truncate(held);
            if ends_early {
                for (index, (_, value, _)) in before.into_iter().enumerate() {
                    let own = self.stack[index].1.clone();
                    self.stack[index].1 = self.either(own, value);
                }
            }
        }
        if returns {
            self.conditions.push(Condition::UNKNOWN);
            return Ok(Leaves::Sometimes);
        }
        Ok(Leaves::Never)
    }

    /// Follows one turn. Returns the condition of the loop.
    fn turn(
        &mut self,
        (condition, is_tested_first): (Option<&Expr>, bool),
        step: Option<&Expr>,
        body: &Stmt,
    ) -> Run<(Option<Condition>, Vec<Stack>)> {
        let mut tested = None;
        if let Some(condition) = condition.filter(|_| is_tested_first) {
            let condition = self.tested(condition)?;
            self.conditions.push(condition.clone());
            tested = Some(condition);
        }
        let (held, depth) = (self.conditions.len(), self.stack.len());
        let outer = (std::mem::take(&mut self.left), std::mem::take(&mut self.left_under));
        let leaves = self.exec(body);
        self.goes_on = match leaves {
            Ok(Leaves::Never | Leaves::Sometimes) => Some(self.conditions[held..].to_vec()),
            _ => None,
        };
        let left = std::mem::replace(&mut self.left, outer.0);
        // Those of a loop in this one are taken already.
        self.ended_under = std::mem::replace(&mut self.left_under, outer.1);
        leaves?;
        self.conditions.truncate(held);
        self.stack.truncate(depth);
        for early in &left {
            for (index, (_, value, _)) in early.iter().enumerate().take(depth) {
                let own = self.stack[index].1.clone();
                self.stack[index].1 = self.either(own, value.clone());
            }
        }
        if let Some(step) = step {
            self.eval(step)?;
        }
        if let Some(condition) = condition.filter(|_| !is_tested_first) {
            tested = Some(self.tested(condition)?);
        }
        Ok((tested, left))
    }

    /// Follows the test of a loop. What it accesses, it does only if the tests before have held.
    fn tested(&mut self, condition: &Expr) -> Run<Condition> {
        self.conditions.push(Condition::UNKNOWN);
        let value = self.eval(condition);
        self.conditions.pop();
        Ok(value?.truth())
    }

    /// Returns whether the conditions under which the body goes on never hold again once they do not. Then a
    /// turn is done exactly where they hold in it.
    fn ends_for_good(
        &mut self,
        turn: usize,
        condition: (Option<&Expr>, bool),
        step: Option<&Expr>,
        body: &Stmt,
        held: usize,
    ) -> Run<bool> {
        let (stack, count, facts) = (self.stack.clone(), self.trace.accesses.len(), self.trace.facts.len());
        let returned = self.returned.clone();
        self.turn(condition, step, body)?;
        // What precedes the statement that may end the loop is done in its last turn, too.
        let goes_on = self.goes_on.take();
        let is_behind = |access: &Access| {
            goes_on.as_ref().is_some_and(|all| all.iter().all(|of| access.conditions[held..].contains(of)))
        };
        // What is the same in each turn is done in the first one.
        let is_same = |access: &Access| {
            let mut is_same = self.newest_of(&access.offset) <= turn;
            let own = &access.conditions[held..];
            own.iter().for_each(|of| of.each(&mut |poly| is_same &= self.newest_of(poly) <= turn));
            is_same
        };
        let own = &self.trace.accesses[count..];
        let mut is_for_good = own.iter().all(|access| !access.writes || is_behind(access) || is_same(access));
        for condition in own.iter().flat_map(|access| &access.conditions[held..]) {
            is_for_good &= self.holds_from_first(condition, turn);
            is_for_good &= !matches!(condition, Condition::Any(of) if of.len() > 2);
        }
        self.conditions.truncate(held);
        self.trace.accesses.truncate(count);
        self.trace.facts.truncate(facts);
        (self.stack, self.returned) = (stack, returned);
        Ok(is_for_good)
    }

    /// Returns whether a condition that holds in a turn has held in each turn before.
    fn holds_from_first(&self, condition: &Condition, turn: usize) -> bool {
        let symbol = Symbol::Turn(turn);
        let mut holds = !condition.is_unknown();
        condition.each(&mut |poly| {
            let of_term = |of: &Symbol| matches!(of, Symbol::Term(term) if self.newest[*term] > turn);
            let is_known = |symbols: &[Symbol]| {
                !symbols.iter().any(of_term) && (symbols.len() == 1 || !symbols.contains(&symbol))
            };
            let grows = |(symbols, factor): (&[Symbol], i128)| symbols.contains(&symbol) && factor > 0;
            // What holds in the first turn, and grows, holds in each.
            let is_always = || poly.with(symbol, &Poly::default()).is_count();
            holds &= poly.products().all(|(symbols, _)| is_known(symbols));
            holds &= !poly.products().any(grows) || is_always();
        });
        holds
    }
}

/// Returns a value with other numbers in place of its own, or astray where there is none.
fn with_numbers(
    value: &Value,
    number: &mut dyn FnMut() -> Option<Poly>,
    astray: &dyn Fn(&Value) -> Value,
) -> Value {
    let mut each =
        |values: &[Value]| Rc::new(values.iter().map(|value| with_numbers(value, number, astray)).collect());
    match value {
        Value::Lanes(values) => Value::Lanes(each(values)),
        Value::Fields(of, values) => Value::Fields(of.clone(), each(values)),
        Value::Integer(of) => match number() {
            Some(poly) => Value::Integer(Integer { poly, ..of.clone() }),
            None => astray(value),
        },
        Value::Pointer { base, of, .. } => match number() {
            Some(offset) => Value::Pointer { base: *base, offset, of: of.clone() },
            None => astray(value),
        },
        value => astray(value),
    }
}

/// Lists, for each number in a value, the one that stands there in another value, if there is one.
fn numbers(value: &Value, other: Option<&Value>, found: &mut Vec<Option<Poly>>) {
    match (value, other) {
        (Value::Lanes(values), Some(Value::Lanes(others)))
        | (Value::Fields(_, values), Some(Value::Fields(_, others))) => {
            for (place, value) in values.iter().enumerate() {
                numbers(value, others.get(place), found);
            }
        }
        (Value::Lanes(values) | Value::Fields(_, values), _) => {
            values.iter().for_each(|value| numbers(value, None, found));
        }
        (Value::Integer(_), Some(Value::Integer(other))) => found.push(Some(other.poly.clone())),
        (Value::Pointer { base, .. }, Some(Value::Pointer { base: same, offset, .. })) if base == same => {
            found.push(Some(offset.clone()));
        }
        (Value::Integer(_) | Value::Pointer { .. }, _) => found.push(None),
        _ => {}
    }
}

/// Returns whether a loop with this body may end within a turn, and whether it may return.
fn leaves(body: &Stmt) -> (bool, bool) {
    fn walk(statement: &Stmt, is_inner: bool, found: &mut (bool, bool)) {
        match statement {
            Stmt::Return(_) => *found = (true, true),
            Stmt::Leave => found.0 |= !is_inner,
            Stmt::Block(statements) => {
                statements.iter().for_each(|statement| walk(statement, is_inner, found))
            }
            Stmt::If(_, yes, no) => {
                walk(yes, is_inner, found);
                no.iter().for_each(|no| walk(no, is_inner, found));
            }
            Stmt::Loop { body, .. } => walk(body, true, found),
            Stmt::Declare(_) | Stmt::Expr(_) => {}
        }
    }
    let mut found = (false, false);
    walk(body, false, &mut found);
    found
}
