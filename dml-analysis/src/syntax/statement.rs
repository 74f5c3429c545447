//! Statements.

use super::{Binary, Expr, ExprKind, Parsed, Parser, Stmt, Variable};
use crate::Refusal;
use crate::token::Place;
use crate::types::Type;
use std::rc::Rc;

impl Parser<'_> {
    pub(super) fn block(&mut self) -> Parsed<Stmt> {
        self.expect("{")?;
        let mut statements = Vec::new();
        while !self.accept("}") {
            statements.push(self.nested(Self::statement)?);
        }
        Ok(Stmt::Block(statements))
    }

    fn declaration(&mut self) -> Parsed<Stmt> {
        self.is_laid_out = false;
        let specifiers = self.specifiers()?;
        let mut variables = Vec::new();
        while !self.accept(";") {
            let at = self.place();
            let (name, of) = self.declarator(&specifiers)?;
            let first = if self.accept("=") { Some(self.initial()?) } else { None };
            variables.push(Variable { at, name, of, first, is_const: specifiers.is_const });
            if !self.accept(",") {
                self.expect(";")?;
                break;
            }
        }
        if specifiers.is_typedef {
            self.check_layout(self.place())?;
            self.types.extend(variables.drain(..).map(|variable| (variable.name, variable.of)));
        }
        Ok(Stmt::Declare(variables))
    }

    fn statement(&mut self) -> Parsed<Stmt> {
        let at = self.place();
        if self.is("{") {
            return self.block();
        }
        if self.accept(";") {
            return Ok(Stmt::Block(Vec::new()));
        }
        if self.accept("if") {
            let condition = self.parenthesised()?;
            let yes = Box::new(self.nested(Self::statement)?);
            let no = if self.accept("else") { Some(Box::new(self.nested(Self::statement)?)) } else { None };
            return Ok(Stmt::If(condition, yes, no));
        }
        if self.accept("for") {
            self.expect("(")?;
            let first = if self.is_declaration() {
                self.declaration()?
            } else if self.accept(";") {
                Stmt::Block(Vec::new())
            } else {
                let first = self.expr()?;
                self.expect(";")?;
                Stmt::Expr(first)
            };
            let condition = if self.is(";") { None } else { Some(self.expr()?) };
            self.expect(";")?;
            let step = if self.is(")") { None } else { Some(self.expr()?) };
            self.expect(")")?;
            let body = Box::new(self.body()?);
            let turns = Stmt::Loop { at, condition, step, body, is_tested_first: true };
            return Ok(Stmt::Block(vec![first, turns]));
        }
        if self.accept("while") {
            let condition = Some(self.parenthesised()?);
            let body = Box::new(self.body()?);
            return Ok(Stmt::Loop { at, condition, step: None, body, is_tested_first: true });
        }
        if self.accept("do") {
            let body = Box::new(self.body()?);
            self.expect("while")?;
            let condition = Some(self.parenthesised()?);
            self.expect(";")?;
            return Ok(Stmt::Loop { at, condition, step: None, body, is_tested_first: false });
        }
        if self.accept("return") {
            let value = if self.is(";") { None } else { Some(self.expr()?) };
            self.expect(";")?;
            return Ok(Stmt::Return(value));
        }
        if self.accept("switch") {
            return self.cases(at);
        }
        if self.is("break") && self.is_in_switch {
            return Err(Refusal::new(at, "a `break` that is not the last statement of its case"));
        }
        if self.accept("break") || self.accept("continue") {
            self.expect(";")?;
            return Ok(Stmt::Leave);
        }
        if let Some(word) = ["goto", "asm", "__asm__", "case", "default"].iter().find(|word| self.is(word)) {
            return Err(Refusal::new(at, format!("`{word}`, which is not followed")));
        }
        // A type in parentheses behind it would be a conversion of CUDA C.
        if self.is_declaration() && !self.is_next("(") {
            return self.declaration();
        }
        let expr = self.expr()?;
        self.expect(";")?;
        Ok(Stmt::Expr(expr))
    }

    /// Parses the body of a loop.
    fn body(&mut self) -> Parsed<Stmt> {
        let is_outer = std::mem::replace(&mut self.is_in_switch, false);
        let body = self.nested(Self::statement);
        self.is_in_switch = is_outer;
        body
    }

    /// Parses a `switch` as branches, each of which leaves it.
    fn cases(&mut self, at: Place) -> Parsed<Stmt> {
        let value = self.parenthesised()?;
        self.expect("{")?;
        let name: Rc<str> = format!("switch at {at}").into();
        let expr = |kind| Expr { at, kind };
        let named = || expr(ExprKind::Name(name.clone()));
        let mut cases: Vec<(Expr, Stmt)> = Vec::new();
        let mut otherwise = None;
        while !self.accept("}") {
            let (mut labels, mut is_default) = (None, false);
            while !self.is("}") {
                if self.accept("default") {
                    is_default = true;
                } else if self.accept("case") {
                    let label = Box::new(self.conditional()?);
                    let is_it = expr(ExprKind::Binary(Binary::Equal, Box::new(named()), label));
                    labels = Some(match labels {
                        Some(labels) => {
                            expr(ExprKind::Binary(Binary::Either, Box::new(labels), Box::new(is_it)))
                        }
                        None => is_it,
                    });
                } else {
                    break;
                }
                self.expect(":")?;
            }
            let is_outer = std::mem::replace(&mut self.is_in_switch, true);
            let mut body = Vec::new();
            let is_ended = self.of_case(&mut body);
            self.is_in_switch = is_outer;
            if !is_ended? && !self.is("}") {
                return Err(Refusal::new(self.place(), "a case that goes on into the next one"));
            }
            let body = Stmt::Block(body);
            match labels {
                _ if is_default => otherwise = Some(Box::new(body)),
                Some(labels) => cases.push((labels, body)),
                None => return self.unexpected("`case` or `default`"),
            }
        }
        let branches = cases
            .into_iter()
            .rev()
            .fold(otherwise, |no, (labels, yes)| Some(Box::new(Stmt::If(labels, Box::new(yes), no))));
        let of = Type::Integer { bytes: 8, is_signed: true };
        let first = Variable { at, name: name.clone(), of, first: Some(value), is_const: true };
        let branches = branches.into_iter().map(|branches| *branches);
        Ok(Stmt::Block(std::iter::once(Stmt::Declare(vec![first])).chain(branches).collect()))
    }

    /// Parses the statements of a case. Returns whether they end by leaving it.
    fn of_case(&mut self, statements: &mut Vec<Stmt>) -> Parsed<bool> {
        while !["}", "case", "default"].iter().any(|word| self.is(word)) {
            let is_left = self.is("return") || self.is("continue");
            let mut is_end = false;
            if self.accept("{") {
                let mut inner = Vec::new();
                is_end = self.nested(|own| own.of_case(&mut inner))?;
                self.expect("}")?;
                statements.push(Stmt::Block(inner));
            } else if !self.is("break") {
                statements.push(self.nested(Self::statement)?);
            }
            if self.accept("break") {
                self.expect(";")?;
                is_end = true;
            }
            if is_end || is_left {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn parenthesised(&mut self) -> Parsed<Expr> {
        self.expect("(")?;
        let expr = self.expr()?;
        self.expect(")")?;
        Ok(expr)
    }
}
