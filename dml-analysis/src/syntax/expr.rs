//! Expressions of C, by precedence.

use super::{Binary, Expr, ExprKind, Parsed, Parser, Unary};
use crate::token::Kind;
use crate::types::{INT, SIZE, Type};
use crate::{Language, Refusal};
use std::rc::Rc;

/// The most operators of one precedence in a row.
const CHAIN: usize = 1000;

impl Parser<'_> {
    pub(super) fn expr(&mut self) -> Parsed<Expr> {
        let mut expr = self.assignment()?;
        while self.is(",") {
            let at = self.place();
            self.at += 1;
            let next = self.assignment()?;
            expr = Expr { at, kind: ExprKind::Comma(Box::new(expr), Box::new(next)) };
        }
        Ok(expr)
    }

    pub(super) fn assignment(&mut self) -> Parsed<Expr> {
        self.nested(|this| {
            let target = this.conditional()?;
            let at = this.place();
            let operators = [
                ("=", None),
                ("+=", Some(Binary::Add)),
                ("-=", Some(Binary::Sub)),
                ("*=", Some(Binary::Mul)),
                ("/=", Some(Binary::Div)),
                ("%=", Some(Binary::Rem)),
                ("<<=", Some(Binary::ShiftLeft)),
                (">>=", Some(Binary::ShiftRight)),
                ("&=", Some(Binary::And)),
                ("|=", Some(Binary::Or)),
                ("^=", Some(Binary::Xor)),
            ];
            let Some((_, operator)) = operators.into_iter().find(|(sign, _)| this.accept(sign)) else {
                return Ok(target);
            };
            let value = this.assignment()?;
            Ok(Expr { at, kind: ExprKind::Assign(operator, Box::new(target), Box::new(value)) })
        })
    }

    pub(super) fn conditional(&mut self) -> Parsed<Expr> {
        let test = self.binary(0)?;
        let at = self.place();
        if !self.accept("?") {
            return Ok(test);
        }
        let yes = self.nested(Self::expr)?;
        self.expect(":")?;
        let no = self.nested(Self::conditional)?;
        Ok(Expr { at, kind: ExprKind::Conditional(Box::new(test), Box::new(yes), Box::new(no)) })
    }

    /// Parses operators of this precedence and of higher ones.
    fn binary(&mut self, least: usize) -> Parsed<Expr> {
        const LEVELS: [&[(&str, Binary)]; 10] = [
            &[("||", Binary::Either)],
            &[("&&", Binary::Both)],
            &[("|", Binary::Or)],
            &[("^", Binary::Xor)],
            &[("&", Binary::And)],
            &[("==", Binary::Equal), ("!=", Binary::NotEqual)],
            &[
                ("<=", Binary::LessEqual),
                (">=", Binary::GreaterEqual),
                ("<", Binary::Less),
                (">", Binary::Greater),
            ],
            &[("<<", Binary::ShiftLeft), (">>", Binary::ShiftRight)],
            &[("+", Binary::Add), ("-", Binary::Sub)],
            &[("*", Binary::Mul), ("/", Binary::Div), ("%", Binary::Rem)],
        ];
        let Some(level) = LEVELS.get(least) else { return self.unary() };
        let mut one = self.binary(least + 1)?;
        for _ in 0..CHAIN {
            let at = self.place();
            let Some((_, operator)) = level.iter().find(|(sign, _)| self.accept(sign)) else {
                return Ok(one);
            };
            let other = self.binary(least + 1)?;
            one = Expr { at, kind: ExprKind::Binary(*operator, Box::new(one), Box::new(other)) };
        }
        Err(Refusal::new(self.place(), "code that is nested too deeply"))
    }

    /// Returns the type in parentheses that a cast or a vector begins with, behind it.
    fn cast(&mut self) -> Parsed<Option<Type>> {
        if !self.is("(") {
            return Ok(None);
        }
        self.at += 1;
        if !self.is_declaration() {
            self.at -= 1;
            return Ok(None);
        }
        let specifiers = self.specifiers()?;
        let of = self.pointers(&specifiers)?;
        self.expect(")")?;
        Ok(Some(of))
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let at = self.place();
        let expr = |kind| Ok(Expr { at, kind });
        for (sign, operator) in [
            ("+", Unary::Plus),
            ("-", Unary::Minus),
            ("!", Unary::Not),
            ("~", Unary::Complement),
            ("*", Unary::Load),
            ("&", Unary::Address),
        ] {
            if self.accept(sign) {
                let of = self.nested(Self::unary)?;
                if operator == Unary::Address {
                    self.addressed.extend(root(&of));
                }
                return expr(ExprKind::Unary(operator, Box::new(of)));
            }
        }
        for (sign, by) in [("++", 1), ("--", -1)] {
            if self.accept(sign) {
                let of = self.nested(Self::unary)?;
                return expr(ExprKind::Step(by, false, Box::new(of)));
            }
        }
        if self.accept("sizeof") {
            let Some(of) = self.cast()? else {
                // What it is the size of is not computed.
                self.nested(Self::unary)?;
                return expr(ExprKind::Call("sizeof".into(), Vec::new()));
            };
            let bytes = of.size().map_or_else(|| self.unexpected("the size of a type"), Ok)?;
            return expr(ExprKind::Integer(bytes.into(), SIZE));
        }
        if let Some(of) = self.cast()? {
            let is_vector = matches!(of, Type::Vector(..)) && self.is("(");
            let value = self.nested(Self::unary)?;
            if !is_vector {
                return expr(ExprKind::Cast(of, Box::new(value)));
            }
            let mut values = Vec::new();
            let mut rest = value;
            while let ExprKind::Comma(before, last) = rest.kind {
                values.push(*last);
                rest = *before;
            }
            values.push(rest);
            values.reverse();
            return expr(ExprKind::Vector(of, values));
        }
        self.postfix()
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let mut expr = self.primary()?;
        loop {
            let at = self.place();
            let kind = if self.accept("[") {
                let index = self.nested(Self::expr)?;
                self.expect("]")?;
                ExprKind::Index(Box::new(expr), Box::new(index))
            } else if self.accept(".") {
                let name = self.name()?;
                if self.is("(") && self.is_next(")") {
                    self.at += 2;
                    ExprKind::Method(Box::new(expr), name)
                } else {
                    ExprKind::Member(Box::new(expr), name)
                }
            } else if self.accept("->") {
                let of = Expr { at, kind: ExprKind::Unary(Unary::Load, Box::new(expr)) };
                ExprKind::Member(Box::new(of), self.name()?)
            } else if self.accept("++") {
                ExprKind::Step(1, true, Box::new(expr))
            } else if self.accept("--") {
                ExprKind::Step(-1, true, Box::new(expr))
            } else {
                return Ok(expr);
            };
            expr = Expr { at, kind };
        }
    }

    fn arguments(&mut self) -> Parsed<Vec<Expr>> {
        let mut arguments = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            arguments.push(self.assignment()?);
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(arguments)
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let at = self.place();
        let Some(token) = self.peek() else { return self.unexpected("an expression") };
        let (kind, text) = (token.kind, token.text.clone());
        let kind = match kind {
            Kind::Sign if &*text == "(" => return self.nested(Self::parenthesised),
            Kind::Sign => return self.unexpected("an expression"),
            Kind::Text => {
                self.at += 1;
                character(&text).map_or(ExprKind::Real, |value| ExprKind::Integer(value, INT))
            }
            Kind::Number => {
                self.at += 1;
                literal(&text).ok_or_else(|| Refusal::new(at, format!("the number {text}")))?
            }
            Kind::Name => {
                self.at += 1;
                if !self.is("(") {
                    match &*text {
                        "true" => ExprKind::Integer(1, INT),
                        "false" => ExprKind::Integer(0, INT),
                        _ => ExprKind::Name(text),
                    }
                } else if let Some(of) = self.type_of(&text).filter(|_| self.language == Language::Cuda) {
                    // A conversion as a call.
                    let mut arguments = self.arguments()?;
                    match arguments.pop() {
                        Some(argument) if arguments.is_empty() => ExprKind::Cast(of, Box::new(argument)),
                        _ => return Err(Refusal::new(at, format!("`{text}` of several values"))),
                    }
                } else {
                    ExprKind::Call(text, self.nested(Self::arguments)?)
                }
            }
        };
        Ok(Expr { at, kind })
    }
}

/// Returns the variable that an expression names, or a part of.
fn root(expr: &Expr) -> Option<Rc<str>> {
    match &expr.kind {
        ExprKind::Name(name) => Some(name.clone()),
        ExprKind::Member(of, _) | ExprKind::Cast(_, of) => root(of),
        _ => None,
    }
}

/// Returns the value of a character between quotes.
fn character(text: &str) -> Option<i128> {
    let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
    let mut characters = inner.chars();
    let value = match (characters.next()?, characters.next()) {
        (value, None) => value,
        ('\\', Some('0')) => '\0',
        ('\\', Some('n')) => '\n',
        ('\\', Some(value @ ('\\' | '\''))) => value,
        _ => return None,
    };
    characters.next().is_none().then_some(i128::from(u32::from(value)))
}

/// Returns the value of a number.
fn literal(text: &str) -> Option<ExprKind> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(digits) if !digits.contains(['.', 'p']) => (digits, 16),
        Some(_) => return Some(ExprKind::Real),
        None if lower.contains(['.', 'e', 'f', 'h']) => return Some(ExprKind::Real),
        None if lower.starts_with('0') && lower.len() > 1 => (&lower[1..], 8),
        None => (&*lower, 10),
    };
    let end = digits.find(['u', 'l']).unwrap_or(digits.len());
    let (digits, suffix) = digits.split_at(end);
    let value = if digits.is_empty() { 0 } else { i128::from_str_radix(digits, radix).ok()? };
    let is_signed = !suffix.contains('u');
    if !suffix.chars().all(|character| matches!(character, 'u' | 'l')) || value > i128::from(u64::MAX) {
        return None;
    }
    let limit = i128::from(if is_signed { i32::MAX as u32 } else { u32::MAX });
    let bytes = if suffix.contains('l') || value > limit { 8 } else { 4 };
    Some(ExprKind::Integer(value, Type::Integer { bytes, is_signed }))
}
