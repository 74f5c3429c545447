//! What expressions name: variables, and places in memory.

use super::{Base, Machine, OWN, Run, Target};
use crate::Refusal;
use crate::poly::Poly;
use crate::syntax::{Expr, ExprKind, Unary};
use crate::token::Place;
use crate::types::{Type, lanes};
use crate::value::Value;

impl Machine<'_> {
    /// Returns what an expression names.
    pub(super) fn target(&mut self, expr: &Expr) -> Run<Target> {
        match &expr.kind {
            ExprKind::Name(name) => match self.find(name) {
                Some(index) => {
                    Ok(Target::Variable { index, path: Vec::new(), of: self.stack[index].2.clone() })
                }
                None => Err(Refusal::new(expr.at, format!("a change of `{name}`, which is unknown"))),
            },
            ExprKind::Unary(Unary::Load, of) => {
                let pointer = self.eval(of)?;
                self.pointed(pointer, &Poly::default(), expr.at)
            }
            ExprKind::Index(of, index) => {
                let pointer = self.eval(of)?;
                let index = self.eval(index)?;
                match (&pointer, index) {
                    (Value::Pointer { .. }, Value::Integer(index)) => {
                        self.pointed(pointer, &index.poly, expr.at)
                    }
                    (Value::Pointer { base, of, .. }, index) => {
                        let (base, of, why) = (*base, of.clone(), index.why(expr.at));
                        self.pointed(Value::Astray { base, of, why }, &Poly::default(), expr.at)
                    }
                    (Value::Astray { .. }, _) => self.pointed(pointer, &Poly::default(), expr.at),
                    // An array in a structure that is no part of a buffer.
                    (Value::Unknown(_), _) if matches!(self.type_of(of), Some(Type::Array(..))) => {
                        Ok(Target::Own(OWN))
                    }
                    _ => Err(Refusal::new(expr.at, "an index of something that is no known pointer")),
                }
            }
            ExprKind::Member(of, name) => match self.target(of)? {
                Target::Own(what) => Ok(Target::Own(what)),
                Target::Astray { argument, of: Type::Struct(of), why } => {
                    let field = of.field(name);
                    let of = field
                        .ok_or_else(|| Refusal::new(expr.at, format!("an unknown field {name}")))?
                        .1
                        .clone();
                    Ok(Target::Astray { argument, of, why })
                }
                of @ Target::Astray { .. } => Ok(of),
                Target::Variable { index, mut path, of } => {
                    let part = of.part(name);
                    let (lanes, of) =
                        part.ok_or_else(|| Refusal::new(expr.at, format!("an unknown field {name}")))?;
                    path.push(lanes);
                    Ok(Target::Variable { index, path, of })
                }
                Target::Lanes { base, offset, of, lanes: own } => {
                    let picked = lanes(name, own.len() as u64)
                        .ok_or_else(|| Refusal::new(expr.at, format!("an unknown field {name}")))?;
                    let lanes = picked.iter().map(|lane| own[*lane as usize]).collect();
                    Ok(Target::Lanes { base, offset, of, lanes })
                }
                Target::Memory { base, offset, of } => self.member(base, &offset, &of, name, expr.at),
            },
            ExprKind::Cast(_, of) => self.target(of),
            _ => Err(Refusal::new(expr.at, "a change of something that is not understood")),
        }
    }

    pub(super) fn lanes_of(&self, value: &Value, name: &str) -> Option<Vec<u64>> {
        match value {
            Value::Lanes(values) => lanes(name, values.len() as u64),
            Value::Fields(of, _) => {
                let field = of.fields.iter().position(|(known, _)| **known == *name)?;
                Some(vec![field as u64])
            }
            _ => None,
        }
    }

    /// Returns the type of what an expression names, if that is known.
    fn type_of(&self, expr: &Expr) -> Option<Type> {
        match &expr.kind {
            ExprKind::Name(name) => Some(self.stack[self.find(name)?].2.clone()),
            ExprKind::Member(of, name) => Some(self.type_of(of)?.part(name)?.1),
            ExprKind::Index(of, _) | ExprKind::Unary(Unary::Load, of) => self.type_of(of)?.element().cloned(),
            _ => None,
        }
    }

    /// Returns a field of a structure, or elements of a vector, in memory.
    fn member(&self, base: Base, offset: &Poly, of: &Type, name: &str, at: Place) -> Run<Target> {
        let found = match of {
            Type::Struct(of) => of.field(name).map(|(start, of)| {
                let offset = offset + &Poly::from(i128::from(start));
                Target::Memory { base, offset, of: of.clone() }
            }),
            Type::Vector(element, count) => lanes(name, *count).map(|lanes| Target::Lanes {
                base,
                offset: offset.clone(),
                of: (**element).clone(),
                lanes,
            }),
            _ => None,
        };
        found.ok_or_else(|| Refusal::new(at, format!("an unknown field {name}")))
    }

    pub(super) fn pointed(&mut self, pointer: Value, index: &Poly, at: Place) -> Run<Target> {
        match pointer {
            Value::Pointer { base: Base::Own, of, .. } if !matches!(of, Type::Array(..)) => {
                Ok(Target::Own(OWN))
            }
            Value::Pointer { base, offset, of } => {
                let bytes = of.size().ok_or_else(|| Refusal::new(at, "an element of unknown size"))?;
                let offset = &offset + &(index * &Poly::from(i128::from(bytes)));
                Ok(Target::Memory { base, offset, of })
            }
            Value::Astray { base: Base::Argument(argument), why, of } => {
                let refusal = Refusal::caused(at, "an index that is not known before the kernel runs", &why);
                self.trace.refused.entry(argument).or_insert(refusal);
                Ok(Target::Astray { argument, of, why })
            }
            Value::Astray { base: base @ Base::Table(..), of, .. } => {
                Ok(Target::Memory { base, offset: Poly::default(), of })
            }
            Value::Astray { base: Base::Module, .. } => {
                Ok(Target::Memory { base: Base::Module, offset: Poly::default(), of: Type::Opaque })
            }
            Value::Astray { .. } => Ok(Target::Own(OWN)),
            Value::Unknown(why) => Err(Refusal::caused(at, "a pointer that is not followed", &why)),
            _ => Err(Refusal::new(at, "a use of something as a pointer that is none")),
        }
    }
}
