//! Numbers, and expressions of numbers and parameters.
//!
//! ```text
//!   sum      = product { ("+" | "-") product }
//!   product  = sign { ("*" | "/" | "%") sign }
//!   sign     = "-" sign | atom
//!   atom     = NUMBER | NAME | "(" sum ")"
//! ```
//! Integers stay integers: `/` between two of them rounds down.

use crate::schema::Expression;
use indexmap::IndexMap;
use std::fmt;

/// Deepest nesting of parentheses and signs.
const DEEPEST: usize = 64;

/// Longest expression, in bytes.
const LONGEST: usize = 1000;

/// The value of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Integer(i64),
    Real(f64),
}

/// The values of the parameters, by name.
pub(crate) type Values = IndexMap<String, Number>;

impl Number {
    pub(crate) fn real(self) -> f64 {
        match self {
            Self::Integer(number) => number as f64,
            Self::Real(number) => number,
        }
    }

    /// Returns the number if it is an integer from `least` on.
    pub(crate) fn count(self, least: u64) -> Result<u64, String> {
        let wrong = || format!("{self} is no integer of at least {least}");
        let Self::Integer(number) = self else { return Err(wrong()) };
        u64::try_from(number).ok().filter(|number| *number >= least).ok_or_else(wrong)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            // With a point or an exponent, even if it is whole.
            Self::Real(number) => fmt::Debug::fmt(number, f),
        }
    }
}

impl Expression {
    /// Evaluates the expression.
    pub(crate) fn value(&self, values: &Values) -> Result<Number, String> {
        match self {
            Self::Integer(number) => Ok(Number::Integer(*number)),
            Self::Real(number) => Ok(Number::Real(*number)),
            Self::Text(text) => evaluate(text, values),
        }
    }

    /// Returns the name, if the expression is one.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Text(text) => is_name(text.trim()).then_some(text.trim()),
            _ => None,
        }
    }
}

/// Returns whether a text is a name: letters, digits and underscores that do not begin with a digit.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Evaluates an expression.
pub(crate) fn evaluate(text: &str, values: &Values) -> Result<Number, String> {
    if text.len() > LONGEST {
        return Err(format!("an expression of {} bytes is too long", text.len()));
    }
    let mut reader = Reader { text, at: 0, values, depth: 0 };
    let value = reader.sum()?;
    match reader.rest().chars().next() {
        None => Ok(value),
        Some(character) => Err(format!("expected an operator or the end of \"{text}\", found `{character}`")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    values: &'a Values,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    /// Takes one of these characters, if it is next.
    fn take(&mut self, among: &[char]) -> Option<char> {
        let next = self.rest().chars().next().filter(|next| among.contains(next))?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn sum(&mut self) -> Result<Number, String> {
        let mut value = self.product()?;
        while let Some(operator) = self.take(&['+', '-']) {
            value = combine(value, operator, self.product()?)?;
        }
        Ok(value)
    }

    fn product(&mut self) -> Result<Number, String> {
        let mut value = self.sign()?;
        while let Some(operator) = self.take(&['*', '/', '%']) {
            value = combine(value, operator, self.sign()?)?;
        }
        Ok(value)
    }

    fn sign(&mut self) -> Result<Number, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("\"{}\" is nested too deeply", self.text));
        }
        let value = match self.take(&['-']) {
            Some(_) => combine(Number::Integer(0), '-', self.sign()?),
            None => self.atom(),
        };
        self.depth -= 1;
        value
    }

    fn atom(&mut self) -> Result<Number, String> {
        if self.take(&['(']).is_some() {
            let value = self.sum()?;
            self.take(&[')']).ok_or_else(|| format!("a `)` is missing in \"{}\"", self.text))?;
            return Ok(value);
        }
        let rest = self.rest();
        let is_part =
            |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '.';
        let mut length = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let is_number = rest.starts_with(|first: char| first.is_ascii_digit() || first == '.');
        // The sign of an exponent.
        if is_number && rest[..length].ends_with(['e', 'E']) && rest[length..].starts_with(['+', '-']) {
            let digits = rest[length + 1..].find(|c: char| !c.is_ascii_digit());
            length = digits.map_or(rest.len(), |digits| length + 1 + digits);
        }
        let word = &rest[..length];
        self.at += length;
        if is_number {
            let integer = word.parse().map(Number::Integer);
            let real = || word.parse::<f64>().ok().filter(|real| real.is_finite()).map(Number::Real);
            return integer.ok().or_else(real).ok_or_else(|| format!("`{word}` is no number"));
        }
        if !is_name(word) {
            let found = rest.chars().next().map_or("the end".to_owned(), |found| format!("`{found}`"));
            return Err(format!("expected a number or a parameter in \"{}\", found {found}", self.text));
        }
        let names = || self.values.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.values.get(word).copied().ok_or_else(|| match self.values.is_empty() {
            true => format!("there is no parameter `{word}`: there are none"),
            false => format!("there is no parameter `{word}`: there are {}", names()),
        })
    }
}

fn combine(left: Number, operator: char, right: Number) -> Result<Number, String> {
    use Number::{Integer, Real};
    let undefined = || format!("{left} {operator} {right} has no value");
    let result = match (left, right) {
        (Integer(left), Integer(right)) => Integer(
            match operator {
                '+' => left.checked_add(right),
                '-' => left.checked_sub(right),
                '*' => left.checked_mul(right),
                '/' => left.checked_div_euclid(right),
                _ => left.checked_rem_euclid(right),
            }
            .ok_or_else(undefined)?,
        ),
        _ => {
            let (left, right) = (left.real(), right.real());
            Real(match operator {
                '+' => left + right,
                '-' => left - right,
                '*' => left * right,
                '/' => left / right,
                _ => left % right,
            })
        }
    };
    if result.real().is_finite() { Ok(result) } else { Err(undefined()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        [("n".to_owned(), Number::Integer(10)), ("dt".to_owned(), Number::Real(0.5))].into_iter().collect()
    }

    #[test]
    fn expressions_have_the_usual_values() {
        for (text, value) in [
            ("7", Number::Integer(7)),
            (" n*n - 1", Number::Integer(99)),
            ("(n + 3) / 4 % 2", Number::Integer(1)),
            ("-n - -2", Number::Integer(-8)),
            ("1e-3*2", Number::Real(0.002)),
            ("n * dt", Number::Real(5.0)),
            ("n / 4", Number::Integer(2)),
            ("n / 4.0", Number::Real(2.5)),
        ] {
            assert_eq!(evaluate(text, &values()), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_named() {
        for (text, message) in [
            ("m", "there is no parameter `m`: there are n, dt"),
            ("n +", "expected a number or a parameter in \"n +\", found the end"),
            ("(n", "a `)` is missing in \"(n\""),
            ("n 2", "expected an operator or the end of \"n 2\", found `2`"),
            ("1.2.3", "`1.2.3` is no number"),
            ("n / 0", "10 / 0 has no value"),
            ("n / 0.0", "10 / 0.0 has no value"),
            ("9223372036854775807 + 1", "9223372036854775807 + 1 has no value"),
            ("é", "expected a number or a parameter in \"é\", found `é`"),
        ] {
            assert_eq!(evaluate(text, &values()), Err(message.to_owned()), "{text}");
        }
        let deep = "(".repeat(1000);
        assert!(evaluate(&deep, &values()).unwrap_err().ends_with("is nested too deeply"));
        assert!(evaluate(&(deep + "("), &values()).unwrap_err().ends_with("is too long"));
    }
}
