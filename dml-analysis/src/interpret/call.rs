//! Calls: of functions of the source, and of those that the language provides.

use super::convert::spread;
use super::{Base, CALLS, Machine, Run, Target};
use crate::Refusal;
use crate::poly::{Kind, Poly, Symbol, Term};
use crate::syntax::{Binary, Expr, Function};
use crate::token::Place;
use crate::types::{SIZE, Type, UINT};
use crate::value::{Integer, Value};
use std::rc::Rc;

impl Machine<'_> {
    pub(super) fn call(&mut self, name: &Rc<str>, arguments: &[Expr], at: Place) -> Run<Value> {
        if let Some(function) = self.unit.functions.get(name) {
            let function = function.as_ref().map_err(Clone::clone)?.clone();
            return self.inlined(name, &function, arguments, at);
        }
        let mut values = Vec::new();
        for argument in arguments {
            values.push(self.eval(argument)?);
        }
        self.builtin(name, values, at)
    }

    pub(super) fn inlined(
        &mut self,
        name: &str,
        function: &Function,
        arguments: &[Expr],
        at: Place,
    ) -> Run<Value> {
        if self.calls >= CALLS {
            return Err(Refusal::new(at, format!("{name}, whose calls are nested too deeply")));
        }
        if arguments.len() != function.parameters.len() {
            return Err(Refusal::new(at, format!("{name} with other arguments than it has")));
        }
        let (mut own, mut changed) = (Vec::new(), Vec::new());
        for (position, (argument, (parameter, of))) in arguments.iter().zip(&function.parameters).enumerate()
        {
            let value = self.eval(argument)?;
            if function.references.contains(&position) {
                match self.target(argument)? {
                    Target::Variable { index, .. } => changed.push(index),
                    Target::Memory { base: Base::Own, .. } | Target::Own(_) => {}
                    Target::Memory { .. } | Target::Lanes { .. } | Target::Astray { .. } => {
                        return Err(Refusal::new(argument.at, "a reference to an element of a buffer"));
                    }
                }
            }
            let value = self.converted(value, of, argument.at);
            let is_addressed = function.addressed.contains(parameter);
            let value =
                if is_addressed { Value::unknown(at, "a variable whose address is taken") } else { value };
            own.push((parameter.clone(), value, of.clone()));
        }
        let (frame, held, returned) = (self.frame, self.conditions.len(), self.returned.take());
        let base = self.stack.len();
        self.frame = base;
        self.stack.extend(own);
        self.calls += 1;
        let addressed = std::mem::replace(&mut self.addressed, function.addressed.clone());
        self.exec(&function.body)?;
        self.addressed = addressed;
        self.calls -= 1;
        self.stack.truncate(base);
        self.frame = frame;
        self.conditions.truncate(held);
        for index in changed {
            self.stack[index].1 = Value::unknown(at, "a variable that a function may change");
        }
        let result = std::mem::replace(&mut self.returned, returned);
        Ok(result.unwrap_or_else(|| Value::unknown(at, "the result of a function")))
    }

    /// Returns the result of a function that the language provides.
    pub(super) fn builtin(&mut self, name: &str, mut values: Vec<Value>, at: Place) -> Run<Value> {
        if let Some(value) = self.numbering(name, &values) {
            return Ok(value);
        }
        let digits = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.parse::<u64>().ok());
        if let (Some(count), [index, pointer]) = (digits("vload"), &values[..]) {
            let (index, pointer) = (index.clone(), pointer.clone());
            self.vector((index, pointer, count), (true, false), at)?;
            let value = Value::unknown(at, "a value from a buffer");
            return Ok(Value::Lanes(Rc::new(vec![value; count as usize])));
        }
        if let (Some(count), [_, index, pointer]) = (digits("vstore"), &values[..]) {
            let (index, pointer) = (index.clone(), pointer.clone());
            self.vector((index, pointer, count), (false, true), at)?;
            return Ok(Value::unknown(at, "no value"));
        }
        let is_atomic = ["atomic", "atom_"].iter().any(|prefix| name.starts_with(prefix));
        if let (true, Some(pointer)) = (is_atomic, values.first()) {
            let target = self.pointed(pointer.clone(), &Poly::default(), at)?;
            if let Target::Memory { base, offset, of } = target {
                self.access((base, &offset, &of), (true, true, true), at)?;
            } else {
                self.store(&target, Value::unknown(at, "a value from a buffer"), at)?;
            }
            return Ok(Value::unknown(at, "the result of an atomic operation"));
        }
        if let ("__ldg" | "__ldcg" | "__ldca", [pointer]) = (name, &values[..]) {
            let target = self.pointed(pointer.clone(), &Poly::default(), at)?;
            return self.load(&target, at);
        }
        if matches!(name, "prefetch" | "printf") {
            return Ok(Value::unknown(at, "no value"));
        }
        let is_buffer = |value: &Value| {
            matches!(
                value,
                Value::Pointer { base: Base::Argument(_), .. }
                    | Value::Astray { base: Base::Argument(_), .. }
            )
        };
        if values.iter().any(is_buffer) {
            return Err(Refusal::new(at, format!("{name} of a buffer, which the source does not define")));
        }
        if let ("min" | "max" | "clamp" | "abs" | "mul24" | "mad24", Some(count)) = (
            name,
            values.iter().find_map(|value| if let Value::Lanes(of) = value { Some(of.len()) } else { None }),
        ) {
            let each = (0..count).map(|lane| {
                let own = values.iter().map(|value| match value {
                    Value::Lanes(of) => {
                        of.get(lane).cloned().unwrap_or_else(|| Value::unknown(at, "no such lane"))
                    }
                    value => value.clone(),
                });
                self.builtin(name, own.collect(), at)
            });
            return Ok(Value::Lanes(Rc::new(each.collect::<Run<_>>()?)));
        }
        let integers = |values: &[Value]| values.iter().all(|value| matches!(value, Value::Integer(_)));
        Ok(match (name, values.len()) {
            ("min" | "max" | "clamp" | "abs", _) if integers(&values) => {
                let of: Vec<Integer> = values
                    .into_iter()
                    .filter_map(|value| if let Value::Integer(of) = value { Some(of) } else { None })
                    .collect();
                match (name, &of[..]) {
                    ("min", [one, other]) => Value::Integer(self.bounded(Kind::Min, one, other)),
                    ("max", [one, other]) => Value::Integer(self.bounded(Kind::Max, one, other)),
                    ("clamp", [of, least, most]) => {
                        let raised = self.bounded(Kind::Max, of, least);
                        Value::Integer(self.bounded(Kind::Min, &raised, most))
                    }
                    ("abs", [of]) if !of.is_signed => Value::Integer(of.clone()),
                    ("abs", [of]) => {
                        let negative = Integer { poly: -&of.poly, ..of.clone() };
                        let of = Integer { is_signed: false, ..self.bounded(Kind::Max, of, &negative) };
                        Value::Integer(of)
                    }
                    _ => Value::unknown(at, "a function with other arguments than it has"),
                }
            }
            ("mul24" | "__mul24" | "__umul24", 2) => {
                let other = values.remove(1);
                self.binary(Binary::Mul, values.remove(0), other, at)
            }
            ("mad24", 3) => {
                let (third, second) = (values.remove(2), values.remove(1));
                let product = self.binary(Binary::Mul, values.remove(0), second, at);
                self.binary(Binary::Add, product, third, at)
            }
            ("select", 3) => {
                let yes = values.remove(1);
                self.either(values.remove(0), yes)
            }
            _ => {
                let target = ["convert_", "make_", "as_"].iter().find_map(|prefix| name.strip_prefix(prefix));
                let target = target
                    .map(|name| name.split("_sat").next().unwrap_or(name).split("_r").next().unwrap_or(name));
                match target.and_then(|name| Type::named(name, self.language)) {
                    Some(of) if name.starts_with("make_") && integers(&values) => {
                        Value::Lanes(Rc::new(spread(values, &of, at)))
                    }
                    Some(Type::Vector(..)) if name.contains("_sat") => {
                        Value::unknown(at, "saturated numbers")
                    }
                    Some(of @ Type::Vector(..)) if values.len() == 1 && name.starts_with("convert_") => {
                        self.converted(values.remove(0), &of, at)
                    }
                    Some(of @ Type::Integer { .. }) if name.contains("_sat") && values.len() == 1 => {
                        self.converted(Value::unknown(at, "a saturated number"), &of, at)
                    }
                    Some(of @ Type::Integer { .. }) if values.len() == 1 => {
                        self.converted(values.remove(0), &of, at)
                    }
                    _ => Value::unknown(at, "the result of a function that the source does not define"),
                }
            }
        })
    }

    /// Returns the less or the greater of two numbers.
    pub(super) fn bounded(&mut self, kind: Kind, one: &Integer, other: &Integer) -> Integer {
        let (left, right) = (&one.poly, &other.poly);
        let poly = match (one.number(other), other.number(one)) {
            (Some(left), Some(right)) => {
                Poly::from(if kind == Kind::Min { left.min(right) } else { left.max(right) })
            }
            _ => self.term(Term { wraps: one.wraps_with(other), ..Term::new(kind, left, right) }),
        };
        one.joined(other, poly)
    }

    /// Returns the number of a work-item, a group, or a size.
    pub(super) fn numbering(&mut self, name: &str, values: &[Value]) -> Option<Value> {
        let axis = match values {
            [] => None,
            [Value::Integer(axis)] => axis.poly.constant().and_then(|axis| usize::try_from(axis).ok()),
            _ => return None,
        };
        let symbol = |of: fn(usize) -> Symbol| axis.map(|axis| (axis, of));
        let (outside, found) = match name {
            "get_global_id" => (0, symbol(Symbol::Item)),
            "get_group_id" => (0, symbol(Symbol::Group)),
            "get_local_id" => (0, symbol(Symbol::Local)),
            "get_local_size" | "get_enqueued_local_size" => (1, symbol(Symbol::GroupSize)),
            "get_global_size" => (1, symbol(Symbol::Size)),
            "get_num_groups" => {
                let groups = axis.map(|axis| if axis < 3 { self.groups(axis) } else { Poly::from(1) });
                return groups.map(|groups| Value::integer(groups, &SIZE));
            }
            "get_global_offset" => return Some(Value::integer(Poly::from(0), &SIZE)),
            "get_work_dim" => return Some(Value::integer(self.some(1, 3), &UINT)),
            "get_global_linear_id" => return Some(Value::integer(linear(Symbol::Item, Symbol::Size), &SIZE)),
            "get_local_linear_id" => {
                return Some(Value::integer(linear(Symbol::Local, Symbol::GroupSize), &SIZE));
            }
            _ => return None,
        };
        let (axis, of) = found?;
        let poly = if axis < 3 { Poly::symbol(of(axis)) } else { Poly::from(outside) };
        Some(Value::integer(poly, &SIZE))
    }

    /// Accesses the elements of a vector in memory.
    pub(super) fn vector(
        &mut self,
        (index, pointer, count): (Value, Value, u64),
        (reads, writes): (bool, bool),
        at: Place,
    ) -> Run<()> {
        let pointer = match (pointer, &index) {
            (Value::Pointer { base, of, .. }, index) if !matches!(index, Value::Integer(_)) => {
                Value::Astray { base, of, why: index.why(at) }
            }
            (pointer, _) => pointer,
        };
        let (Value::Pointer { base, offset, of }, Value::Integer(index)) = (pointer.clone(), index) else {
            let target = self.pointed(pointer, &Poly::default(), at)?;
            let value = Value::unknown(at, "no value");
            return if writes { self.store(&target, value, at) } else { self.load(&target, at).map(|_| ()) };
        };
        if base == Base::Own {
            return Ok(());
        }
        let bytes = of.size().ok_or_else(|| Refusal::new(at, "an element of unknown size"))?;
        let offset = &offset + &(&index.poly * &Poly::from(i128::from(bytes * count)));
        self.access((base, &offset, &Type::Array(Rc::new(of), count)), (reads, writes, false), at)
    }
}

fn linear(of: fn(usize) -> Symbol, size: fn(usize) -> Symbol) -> Poly {
    let symbol = |of: fn(usize) -> Symbol, axis| Poly::symbol(of(axis));
    let upper = &(&symbol(of, 2) * &symbol(size, 1)) + &symbol(of, 1);
    &(&upper * &symbol(size, 0)) + &symbol(of, 0)
}
