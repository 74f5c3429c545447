//! Values of expressions.

use super::convert::spread;
use super::{Base, Machine, Run, Target};
use crate::poly::{Condition, Kind, Poly, Symbol, Term};
use crate::syntax::{Binary, Expr, ExprKind, Unary};
use crate::token::Place;
use crate::types::{INT, SIZE, Type, UINT};
use crate::value::{Integer, Value, held};
use crate::{Language, Refusal};
use std::rc::Rc;

impl Machine<'_> {
    pub(super) fn eval(&mut self, expr: &Expr) -> Run<Value> {
        self.step(expr.at)?;
        let at = expr.at;
        match &expr.kind {
            ExprKind::Integer(value, of) => {
                let value = match of {
                    Type::Integer { bytes, is_signed: false } => held(*value, *bytes, false),
                    _ => *value,
                };
                Ok(Value::integer(Poly::from(value), of))
            }
            ExprKind::Real => Ok(Value::unknown(at, "a real number")),
            ExprKind::Name(name) => Ok(match self.find(name) {
                Some(index) => self.stack[index].1.clone(),
                None => Value::unknown(at, "a name that the source does not define"),
            }),
            ExprKind::Unary(operator, of) => self.unary(*operator, of, at),
            ExprKind::Step(by, is_before, of) => {
                let target = self.target(of)?;
                let old = self.load(&target, at)?;
                let by = Value::integer(Poly::from(i128::from(*by)), &INT);
                let new = self.binary(Binary::Add, old.clone(), by, at);
                let new = self.stored(&target, new, at)?;
                Ok(if *is_before { old } else { new })
            }
            ExprKind::Binary(operator @ (Binary::Both | Binary::Either), one, other) => {
                let one = self.eval(one)?.truth();
                // The other is evaluated only if it decides.
                let decides = if *operator == Binary::Both { one.clone() } else { one.negated() };
                let before = self.stack.clone();
                self.conditions.push(decides.clone());
                let other = self.eval(other).map(|other| other.truth());
                self.conditions.pop();
                self.merge_variables(&decides, before);
                let both = vec![one, other?];
                Ok(Value::Test(if *operator == Binary::Both {
                    Condition::All(both)
                } else {
                    Condition::Any(both)
                }))
            }
            ExprKind::Binary(operator, one, other) => {
                let one = self.eval(one)?;
                let other = self.eval(other)?;
                Ok(self.binary(*operator, one, other, at))
            }
            ExprKind::Assign(operator, target, value) => {
                let value = self.eval(value)?;
                let target = self.target(target)?;
                let value = match operator {
                    Some(operator) => {
                        let old = self.load(&target, at)?;
                        self.binary(*operator, old, value, at)
                    }
                    None => value,
                };
                self.stored(&target, value, at)
            }
            ExprKind::Conditional(condition, yes, no) => {
                let condition = self.eval(condition)?.truth();
                let (held, before) = (self.conditions.len(), self.stack.clone());
                let side = condition.numbered(self.fresh() + 1);
                self.conditions.push(side.clone());
                let yes = self.eval(yes)?;
                self.conditions[held] = side.negated();
                let after = std::mem::replace(&mut self.stack, before);
                let no = self.eval(no)?;
                self.conditions.truncate(held);
                let other = std::mem::replace(&mut self.stack, after);
                self.merge_variables(&condition, other);
                Ok(self.merged(&condition, yes, no))
            }
            ExprKind::Call(name, arguments) => self.call(name, arguments, at),
            ExprKind::Method(of, name) => {
                // `DmlItems`, the last parameter of a package's kernel in CUDA C.
                self.eval(of)?;
                let axis = ["x", "y", "z"].iter().position(|axis| *axis == &**name);
                let is_cuda = self.language == Language::Cuda;
                let item = axis
                    .filter(|_| is_cuda)
                    .map(|axis| Value::integer(Poly::symbol(Symbol::Item(axis)), &SIZE));
                item.ok_or_else(|| Refusal::new(at, format!("a member function {name}")))
            }
            ExprKind::Index(of, _) => {
                let _ = of;
                let target = self.target(expr)?;
                self.load(&target, at)
            }
            ExprKind::Member(of, name) => self.member_value(expr, of, name, at),
            ExprKind::Cast(to, of) => {
                let value = self.eval(of)?;
                Ok(self.converted(value, to, at))
            }
            ExprKind::Vector(of, values) => {
                let mut all = Vec::new();
                for value in values {
                    match self.eval(value)? {
                        Value::Lanes(values) => all.extend(values.iter().cloned()),
                        value => all.push(value),
                    }
                }
                let all = Value::Lanes(Rc::new(spread(all, of, at)));
                Ok(self.converted(all, of, at))
            }
            ExprKind::List(values) => {
                let values: Vec<_> = values.iter().map(|value| self.eval(value)).collect::<Run<_>>()?;
                Ok(Value::Lanes(Rc::new(values)))
            }
            ExprKind::Comma(one, other) => {
                self.eval(one)?;
                self.eval(other)
            }
        }
    }

    /// Assigns a value. Returns it as what is assigned to holds it.
    fn stored(&mut self, target: &Target, value: Value, at: Place) -> Run<Value> {
        let of = match target {
            Target::Variable { of, .. } | Target::Memory { of, .. } | Target::Astray { of, .. } => {
                Some(of.clone())
            }
            _ => None,
        };
        let value = match of {
            Some(of) => self.converted(value, &of, at),
            None => value,
        };
        self.store(target, value.clone(), at)?;
        Ok(value)
    }

    fn unary(&mut self, operator: Unary, of: &Expr, at: Place) -> Run<Value> {
        match operator {
            Unary::Load => {
                let pointer = self.eval(of)?;
                let target = self.pointed(pointer, &Poly::default(), at)?;
                self.load(&target, at)
            }
            Unary::Address => Ok(match self.target(of)? {
                // Its value is unknown from its declaration on.
                Target::Variable { .. } => {
                    Value::Pointer { base: Base::Own, offset: Poly::default(), of: Type::Opaque }
                }
                Target::Memory { base, offset, of } => Value::Pointer { base, offset, of },
                Target::Lanes { .. } => {
                    return Err(Refusal::new(at, "the address of an element of a vector"));
                }
                Target::Astray { argument, of, why } => {
                    Value::Astray { base: Base::Argument(argument), of, why }
                }
                Target::Own(_) => {
                    Value::Pointer { base: Base::Own, offset: Poly::default(), of: Type::Opaque }
                }
            }),
            Unary::Not => Ok(Value::Test(self.eval(of)?.truth().negated())),
            Unary::Plus => self.eval(of),
            Unary::Minus => {
                let value = self.eval(of)?;
                Ok(self.binary(Binary::Sub, Value::integer(Poly::from(0), &INT), value, at))
            }
            // In two's complement, `~x` is `-x - 1`.
            Unary::Complement => {
                let value = self.eval(of)?;
                Ok(self.binary(Binary::Sub, Value::integer(Poly::from(-1), &INT), value, at))
            }
        }
    }

    fn member_value(&mut self, expr: &Expr, of: &Expr, name: &Rc<str>, at: Place) -> Run<Value> {
        if let ExprKind::Name(variable) = &of.kind
            && self.language == Language::Cuda
            && self.find(variable).is_none()
        {
            let axis = ["x", "y", "z"].iter().position(|axis| *axis == &**name);
            let symbol = axis.and_then(|axis| match &**variable {
                "threadIdx" => Some(Poly::symbol(Symbol::Local(axis))),
                "blockIdx" => Some(Poly::symbol(Symbol::Group(axis))),
                "blockDim" => Some(Poly::symbol(Symbol::GroupSize(axis))),
                "gridDim" => Some(self.groups(axis)),
                _ => None,
            });
            return Ok(match symbol {
                Some(symbol) => Value::integer(symbol, &UINT),
                None => Value::unknown(at, "a name that the source does not define"),
            });
        }
        let is_in_memory =
            matches!(of.kind, ExprKind::Index(..) | ExprKind::Member(..) | ExprKind::Unary(Unary::Load, _));
        if is_in_memory && !of.is_of_variable() {
            let target = self.target(expr)?;
            return self.load(&target, at);
        }
        Ok(match self.eval(of)? {
            value @ (Value::Lanes(_) | Value::Fields(..)) => match (self.lanes_of(&value, name), &value) {
                (Some(lanes), Value::Lanes(values) | Value::Fields(_, values)) => {
                    super::picked(values, &lanes)
                }
                _ => Value::unknown(at, "a field of a structure"),
            },
            Value::Unknown(why) => Value::Unknown(why),
            _ => return Err(Refusal::new(at, format!("a field {name} of something that has none"))),
        })
    }

    /// Returns the number of work-groups.
    pub(super) fn groups(&mut self, axis: usize) -> Poly {
        let group = Poly::symbol(Symbol::GroupSize(axis));
        let rounded = &(&Poly::symbol(Symbol::Size(axis)) + &group) - &Poly::from(1);
        self.term(Term::new(Kind::Quotient, &rounded, &group))
    }

    pub(super) fn binary(&mut self, operator: Binary, one: Value, other: Value, at: Place) -> Value {
        if let (Value::Test(one), Value::Test(other)) = (&one, &other) {
            match operator {
                Binary::And => return Value::Test(Condition::All(vec![one.clone(), other.clone()])),
                Binary::Or => return Value::Test(Condition::Any(vec![one.clone(), other.clone()])),
                _ => {}
            }
        }
        let (one, other) = (self.numeric(one), self.numeric(other));
        match (one, other) {
            (Value::Integer(one), Value::Integer(other)) => self.arithmetic(operator, &one, &other, at),
            (Value::Pointer { base, offset, of }, Value::Integer(by))
                if matches!(operator, Binary::Add | Binary::Sub) =>
            {
                self.moved(base, &offset, of, operator, &by, at)
            }
            (Value::Integer(by), Value::Pointer { base, offset, of }) if operator == Binary::Add => {
                self.moved(base, &offset, of, operator, &by, at)
            }
            // Each element of it is 0 or -1.
            (Value::Lanes(of), _) | (_, Value::Lanes(of)) if is_comparison(operator) => {
                Value::Lanes(Rc::new(vec![Value::unknown(at, "a comparison of vectors"); of.len()]))
            }
            (Value::Lanes(one), Value::Lanes(other)) if one.len() == other.len() => {
                let pairs: Vec<_> = one.iter().cloned().zip(other.iter().cloned()).collect();
                let values = pairs.into_iter().map(|(one, other)| self.binary(operator, one, other, at));
                Value::Lanes(Rc::new(values.collect()))
            }
            (Value::Lanes(values), scalar @ (Value::Integer(_) | Value::Unknown(_))) => {
                let values =
                    values.iter().cloned().map(|value| self.binary(operator, value, scalar.clone(), at));
                Value::Lanes(Rc::new(values.collect()))
            }
            (scalar @ (Value::Integer(_) | Value::Unknown(_)), Value::Lanes(values)) => {
                let values =
                    values.iter().cloned().map(|value| self.binary(operator, scalar.clone(), value, at));
                Value::Lanes(Rc::new(values.collect()))
            }
            // A mask bounds whatever it is applied to.
            (Value::Unknown(_), Value::Integer(mask)) | (Value::Integer(mask), Value::Unknown(_))
                if operator == Binary::And && mask.poly.constant().is_some_and(|mask| mask >= 0) =>
            {
                let most = mask.poly.constant().unwrap_or_default();
                Value::integer(self.some(0, most), &INT)
            }
            (Value::Pointer { base, of, .. }, Value::Unknown(why))
            | (Value::Unknown(why), Value::Pointer { base, of, .. })
                if matches!(operator, Binary::Add | Binary::Sub) =>
            {
                Value::Astray { base, of, why }
            }
            (astray @ Value::Astray { .. }, _) | (_, astray @ Value::Astray { .. })
                if matches!(operator, Binary::Add | Binary::Sub) =>
            {
                astray
            }
            (Value::Pointer { base: Base::Argument(_), .. }, _)
            | (_, Value::Pointer { base: Base::Argument(_), .. }) => {
                if is_comparison(operator) {
                    return Value::Test(Condition::UNKNOWN);
                }
                Value::unknown(at, "arithmetic of pointers")
            }
            (Value::Unknown(why), _) | (_, Value::Unknown(why)) => {
                if is_comparison(operator) {
                    Value::Test(Condition::UNKNOWN)
                } else {
                    Value::Unknown(why)
                }
            }
            _ if is_comparison(operator) => Value::Test(Condition::UNKNOWN),
            _ => Value::unknown(at, "an operation that is not followed"),
        }
    }

    fn moved(
        &mut self,
        base: Base,
        offset: &Poly,
        of: Type,
        operator: Binary,
        by: &Integer,
        at: Place,
    ) -> Value {
        let Some(bytes) = of.size() else {
            return match base {
                Base::Own => Value::Pointer { base, offset: Poly::default(), of },
                _ => Value::unknown(at, "a pointer to elements of unknown size"),
            };
        };
        let by = &by.poly * &Poly::from(i128::from(bytes));
        let offset = if operator == Binary::Add { offset + &by } else { offset - &by };
        Value::Pointer { base, offset, of }
    }

    fn arithmetic(&mut self, operator: Binary, one: &Integer, other: &Integer, at: Place) -> Value {
        let is_shift = matches!(operator, Binary::ShiftLeft | Binary::ShiftRight);
        let bytes = if is_shift { 0 } else { one.bytes.max(other.bytes) };
        let (one, other) = (&self.widened(one.clone(), bytes), &self.widened(other.clone(), bytes));
        let (left, right) = (&one.poly, &other.poly);
        if left.is_excessive() || right.is_excessive() {
            return Value::unknown(at, "a number that is too large to be followed");
        }
        let joined = |poly| Value::Integer(one.joined(other, poly));
        match operator {
            // `x + 0xffffffffu` is `x - 1`.
            Binary::Add => joined(&one.wrapped(other) + &other.wrapped(one)),
            Binary::Sub => joined(&one.wrapped(other) - &other.wrapped(one)),
            Binary::Mul => joined(left * right),
            Binary::Div | Binary::Rem => match (left.constant(), right.constant()) {
                (_, Some(0)) => Value::unknown(at, "a division by 0"),
                (Some(_), Some(_)) => {
                    let (left, right) = (one.number(other).unwrap_or(0), other.number(one).unwrap_or(1));
                    joined(Poly::from(if operator == Binary::Div { left / right } else { left % right }))
                }
                _ => {
                    let kind = if operator == Binary::Div { Kind::Quotient } else { Kind::Remainder };
                    let term = Term { wraps: one.wraps_with(other), ..Term::new(kind, left, right) };
                    joined(self.term(term))
                }
            },
            Binary::ShiftLeft => match right.constant() {
                Some(bits @ 0..64) => Value::Integer(one.joined(one, left * &Poly::from(1 << bits))),
                _ => Value::unknown(at, "a shift by an unknown number of bits"),
            },
            Binary::ShiftRight => match (left.constant(), right.constant()) {
                (Some(_), Some(bits @ 0..64)) => {
                    let left = one.number(one).unwrap_or(0);
                    Value::Integer(one.joined(one, Poly::from(left >> bits)))
                }
                (None, Some(bits @ 0..64)) => {
                    let term = Term::new(Kind::Quotient, left, &Poly::from(1 << bits));
                    let rounded = self.term(Term { wraps: one.wraps_with(one), ..term });
                    // A negative number is rounded down.
                    let poly = if one.is_signed && !left.is_count() {
                        let down = &rounded - &Poly::from(1);
                        self.term(Term::new(Kind::Either, &rounded, &down))
                    } else {
                        rounded
                    };
                    Value::Integer(one.joined(one, poly))
                }
                _ => Value::unknown(at, "a shift by an unknown number of bits"),
            },
            Binary::And => match (left.constant(), right.constant()) {
                (Some(left), Some(right)) => joined(Poly::from(left & right)),
                (Some(mask), None) | (None, Some(mask)) => {
                    let (of, by) = if left.constant().is_some() { (other, one) } else { (one, other) };
                    self.masked(of, by, mask, at)
                }
                (None, None) => Value::unknown(at, "bits of unknown numbers"),
            },
            Binary::Or | Binary::Xor => match (left.constant(), right.constant()) {
                (Some(left), Some(right)) if operator == Binary::Or => joined(Poly::from(left | right)),
                (Some(left), Some(right)) => joined(Poly::from(left ^ right)),
                _ => Value::unknown(at, "bits of unknown numbers"),
            },
            Binary::Less => Value::Test(one.less(other)),
            Binary::Greater => Value::Test(other.less(one)),
            Binary::LessEqual => Value::Test(other.less(one).negated()),
            Binary::GreaterEqual => Value::Test(one.less(other).negated()),
            Binary::Equal => Value::Test(one.equals(other)),
            Binary::NotEqual => Value::Test(one.equals(other).negated()),
            Binary::Both | Binary::Either => Value::Test(Condition::UNKNOWN),
        }
    }

    /// Returns the bits of a number that a mask leaves.
    fn masked(&mut self, of: &Integer, by: &Integer, mask: i128, at: Place) -> Value {
        let low = mask + 1;
        if mask >= 0 && low.count_ones() == 1 && (!of.is_signed || of.is_unsigned_with(by)) {
            let term = Term::new(Kind::Remainder, &of.poly, &Poly::from(low));
            let poly = self.term(Term { wraps: of.wraps_with(by), ..term });
            return Value::Integer(of.joined(by, poly));
        }
        if mask >= 0 {
            let poly = self.some(0, mask);
            return Value::Integer(of.joined(by, poly));
        }
        Value::unknown(at, "bits of an unknown number")
    }
}

const fn is_comparison(operator: Binary) -> bool {
    matches!(
        operator,
        Binary::Less
            | Binary::LessEqual
            | Binary::Equal
            | Binary::NotEqual
            | Binary::Greater
            | Binary::GreaterEqual
    )
}
