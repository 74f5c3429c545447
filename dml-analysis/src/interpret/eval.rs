//! Values of expressions.

use super::{Base, CALLS, Machine, Run, Target};
use crate::poly::{Condition, Kind, Poly, Symbol, Term};
use crate::syntax::{Binary, Expr, ExprKind, Function, Unary};
use crate::token::Place;
use crate::types::{INT, SIZE, Type, UINT};
use crate::value::{Integer, Value, held};
use crate::{Language, Refusal};
use std::collections::BTreeSet;
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
    fn groups(&mut self, axis: usize) -> Poly {
        let group = Poly::symbol(Symbol::GroupSize(axis));
        let rounded = &(&Poly::symbol(Symbol::Size(axis)) + &group) - &Poly::from(1);
        self.term(Term::new(Kind::Quotient, &rounded, &group))
    }

    /// Returns a value in another type.
    pub(super) fn converted(&mut self, value: Value, to: &Type, at: Place) -> Value {
        match (to, &value) {
            (Type::Integer { .. } | Type::Bool, Value::Test(_)) => return value,
            (Type::Bool, _) => return Value::Test(value.truth()),
            _ => {}
        }
        let Type::Integer { bytes, is_signed } = to else {
            return match (to, value) {
                (Type::Pointer(of, _), Value::Pointer { base: Base::Table(..), of: from, .. })
                    if **of != from =>
                {
                    Value::Pointer { base: Base::Own, offset: Poly::default(), of: (**of).clone() }
                }
                (Type::Pointer(of, _), Value::Pointer { base, offset, .. }) => {
                    Value::Pointer { base, offset, of: (**of).clone() }
                }
                (Type::Pointer(of, _), Value::Astray { base: Base::Table(..), of: from, .. })
                    if **of != from =>
                {
                    Value::Pointer { base: Base::Own, offset: Poly::default(), of: (**of).clone() }
                }
                (Type::Pointer(of, _), Value::Astray { base, why, .. }) => {
                    Value::Astray { base, of: (**of).clone(), why }
                }
                (Type::Vector(of, _), Value::Lanes(values)) => {
                    let values = spread((*values).clone(), to, at).into_iter();
                    Value::Lanes(Rc::new(values.map(|value| self.converted(value, of, at)).collect()))
                }
                (Type::Struct(of), Value::Lanes(values))
                    if of.is_vector() && values.len() == of.fields.len() =>
                {
                    let fields = of.fields.iter().zip(values.iter());
                    let fields = fields.map(|((_, of), value)| self.converted(value.clone(), of, at));
                    Value::Lanes(Rc::new(fields.collect()))
                }
                (Type::Struct(of), Value::Fields(from, values)) if *of == from => Value::Fields(from, values),
                (Type::Struct(of), Value::Lanes(values)) if values.len() == of.fields.len() => {
                    let fields = of.fields.iter().zip(values.iter());
                    let fields = fields.map(|((_, of), value)| self.converted(value.clone(), of, at));
                    Value::Fields(of.clone(), Rc::new(fields.collect()))
                }
                (Type::Vector(of, _), value @ Value::Integer(_)) => {
                    let value = self.converted(value, of, at);
                    Value::Lanes(Rc::new(spread(vec![value], to, at)))
                }
                (_, Value::Unknown(why)) => Value::Unknown(why),
                _ => Value::unknown(at, "a value of another type"),
            };
        };
        match self.numeric(value) {
            Value::Integer(of) => {
                let mut of = self.widened(of, *bytes);
                if *bytes <= 4 {
                    of.poly = self.narrowed(&of.poly);
                    if of.bytes > 4 && self.is_wide(&of.poly, &mut BTreeSet::new()) {
                        return Value::unknown(at, "a number that its type may not hold");
                    }
                }
                let is_held =
                    of.bytes <= *bytes && of.is_signed == *is_signed || of.bytes < *bytes && !of.is_signed;
                match of.poly.constant() {
                    None if *bytes < 4 && !is_held => Value::integer(self.within(to), to),
                    Some(value) => Value::integer(Poly::from(held(value, *bytes, *is_signed)), to),
                    _ => Value::integer(of.poly, to),
                }
            }
            Value::Unknown(_) if *bytes < 4 => Value::integer(self.within(to), to),
            Value::Unknown(why) => Value::Unknown(why),
            _ => Value::unknown(at, "a conversion to an integer"),
        }
    }

    /// Returns an integer as a type of so many bytes needs it: an unsigned one of 4 bytes that may be negative
    /// here is another number in a type of 8 bytes.
    fn widened(&mut self, of: Integer, bytes: u64) -> Integer {
        if of.is_signed || of.bytes != 4 || bytes <= 4 || self.is_natural(&of.poly) {
            return of;
        }
        let span = Poly::from(1 << 32);
        let poly = match of.poly.constant() {
            Some(value) => Poly::from(value.rem_euclid(1 << 32)),
            None => self.term(Term { wraps: 32, ..Term::new(Kind::Remainder, &of.poly, &span) }),
        };
        Integer { poly, ..of }
    }

    /// Returns whether a number is a sum of products of numbers that are never negative, such as quotients and
    /// remainders of unsigned ones.
    fn is_natural(&self, poly: &Poly) -> bool {
        poly.products().all(|(symbols, factor)| {
            let is_natural = |symbol: &Symbol| match symbol {
                Symbol::Argument(_) | Symbol::Some(_) => false,
                Symbol::Term(term) => {
                    let Term { kind, wraps, .. } = &self.trace.terms[*term];
                    *wraps > 0 && matches!(kind, Kind::Quotient | Kind::Remainder)
                }
                _ => true,
            };
            factor >= 0 && symbols.iter().all(is_natural)
        })
    }

    /// Returns the number that a term has [widened](Self::widened).
    fn wide(&self, term: usize) -> Option<&Poly> {
        let Term { kind, one, other, wraps, .. } = &self.trace.terms[term];
        (*kind == Kind::Remainder && *wraps == 32 && other.constant() == Some(1 << 32)).then_some(one)
    }

    /// Returns whether a number depends on one that was widened.
    fn is_wide(&self, poly: &Poly, seen: &mut BTreeSet<usize>) -> bool {
        poly.products().flat_map(|(symbols, _)| symbols).any(|symbol| match symbol {
            Symbol::Term(term) if seen.insert(*term) => {
                let Term { one, other, .. } = &self.trace.terms[*term];
                self.wide(*term).is_some() || self.is_wide(one, seen) || self.is_wide(other, seen)
            }
            _ => false,
        })
    }

    /// Returns a number as a type of 4 bytes has it: see [`widened`](Self::widened).
    pub(super) fn narrowed(&self, poly: &Poly) -> Poly {
        let of_wide = |symbol: &Symbol| match symbol {
            Symbol::Term(term) => self.wide(*term).map(|one| (*symbol, one.clone())),
            _ => None,
        };
        let mut poly = poly.clone();
        while !poly.is_excessive() {
            let wide = poly.products().flat_map(|(symbols, _)| symbols).find_map(of_wide);
            let Some((symbol, by)) = wide else { break };
            poly = poly.with(symbol, &by);
        }
        poly
    }

    /// Returns some number of a type of one or two bytes.
    fn within(&mut self, of: &Type) -> Poly {
        let Type::Integer { bytes, is_signed } = of else { return Poly::default() };
        let span = 1_i128 << (8 * bytes);
        let least = if *is_signed { -span / 2 } else { 0 };
        self.some(least, least + span - 1)
    }

    /// Returns a test as a number.
    fn numeric(&mut self, value: Value) -> Value {
        match value {
            Value::Test(condition) => match condition {
                Condition::All(of) if of.is_empty() => Value::integer(Poly::from(1), &INT),
                Condition::Any(of) if of.is_empty() => Value::integer(Poly::from(0), &INT),
                _ => Value::integer(self.some(0, 1), &INT),
            },
            value => value,
        }
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

    fn call(&mut self, name: &Rc<str>, arguments: &[Expr], at: Place) -> Run<Value> {
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

    fn inlined(&mut self, name: &str, function: &Function, arguments: &[Expr], at: Place) -> Run<Value> {
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
    fn builtin(&mut self, name: &str, mut values: Vec<Value>, at: Place) -> Run<Value> {
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
    fn bounded(&mut self, kind: Kind, one: &Integer, other: &Integer) -> Integer {
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
    fn numbering(&mut self, name: &str, values: &[Value]) -> Option<Value> {
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
    fn vector(
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

/// Returns the elements of a vector of this type: one value is that of all.
fn spread(mut values: Vec<Value>, of: &Type, at: Place) -> Vec<Value> {
    let count = match of {
        Type::Vector(_, count) => *count as usize,
        Type::Struct(of) => of.fields.len(),
        _ => values.len(),
    };
    if let [value] = &values[..] {
        return vec![value.clone(); count];
    }
    values.resize(count, Value::unknown(at, "an element without a value"));
    values
}
