//! The syntax of kernels: functions of C, as far as OpenCL C and CUDA C need it.
//!
//! A function that has anything else is refused, and with it every kernel that calls it. Other functions of
//! the source remain.

use crate::token::{Kind, Place, Token};
use crate::types::{Space, Struct, Type};
use crate::value::held;
use crate::{Language, Refusal};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

mod expr;
mod statement;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    ShiftLeft,
    ShiftRight,
    And,
    Or,
    Xor,
    Less,
    LessEqual,
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Both,
    Either,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Plus,
    Minus,
    Not,
    Complement,
    Load,
    Address,
}

#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) at: Place,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    Integer(i128, Type),
    Real,
    Name(Rc<str>),
    Unary(Unary, Box<Expr>),
    /// `++` and `--`: the change, and whether the value is that from before.
    Step(i64, bool, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `=`, or an operator and `=`.
    Assign(Option<Binary>, Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Call(Rc<str>, Vec<Expr>),
    /// A call of a member function.
    Method(Box<Expr>, Rc<str>),
    Index(Box<Expr>, Box<Expr>),
    Member(Box<Expr>, Rc<str>),
    Cast(Type, Box<Expr>),
    /// `(float4)(a, b)`.
    Vector(Type, Vec<Expr>),
    /// `{ a, b }`.
    List(Vec<Expr>),
    Comma(Box<Expr>, Box<Expr>),
}

#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) at: Place,
    pub(crate) name: Rc<str>,
    pub(crate) of: Type,
    pub(crate) first: Option<Expr>,
    pub(crate) is_const: bool,
}

impl Expr {
    /// Returns whether this is a variable, or a part of one.
    pub(crate) fn is_of_variable(&self) -> bool {
        match &self.kind {
            ExprKind::Name(_) => true,
            ExprKind::Member(of, _) => of.is_of_variable(),
            _ => false,
        }
    }
}

impl Variable {
    /// Returns the least and the greatest element of a constant array of integers.
    pub(crate) fn elements(&self) -> Option<(i128, i128)> {
        fn walk(of: &Expr, all: &mut Vec<i128>) -> Option<()> {
            match &of.kind {
                ExprKind::List(values) => values.iter().try_for_each(|value| walk(value, all)),
                _ => fold(of).map(|value| all.push(value)),
            }
        }
        let (mut element, mut count) = (&self.of, 1_u64);
        while let Type::Array(of, length) = element {
            (element, count) = (of, count.checked_mul(*length)?);
        }
        let Type::Integer { bytes, is_signed } = *element else { return None };
        let mut all = Vec::new();
        walk(self.first.as_ref().filter(|_| self.is_const)?, &mut all)?;
        if (all.len() as u64) < count {
            all.push(0);
        }
        let (least, most) = (*all.iter().min()?, *all.iter().max()?);
        let half = 1_i128 << (8 * bytes - 1);
        // Unsigned differences may be large in 8 bytes.
        let is_held = if is_signed && bytes < 8 { -half <= least } else { 0 <= least } && most < half;
        is_held.then_some((least, most))
    }
}

#[derive(Debug)]
pub(crate) enum Stmt {
    Declare(Vec<Variable>),
    Expr(Expr),
    If(Expr, Box<Stmt>, Option<Box<Stmt>>),
    /// A loop: condition, what follows each turn, and body. The condition is tested before the first turn, or
    /// else after it.
    Loop {
        at: Place,
        condition: Option<Expr>,
        step: Option<Expr>,
        body: Box<Stmt>,
        is_tested_first: bool,
    },
    Return(Option<Expr>),
    /// `break` and `continue`.
    Leave,
    Block(Vec<Stmt>),
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) at: Place,
    pub(crate) is_kernel: bool,
    pub(crate) parameters: Parameters,
    /// The positions of the parameters that are references.
    pub(crate) references: Vec<usize>,
    pub(crate) body: Stmt,
    /// The variables whose addresses are taken.
    pub(crate) addressed: Rc<BTreeSet<Rc<str>>>,
}

/// Names and types.
pub(crate) type Parameters = Vec<(Rc<str>, Type)>;

/// A parsed source.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) functions: HashMap<Rc<str>, Result<Rc<Function>, Refusal>>,
    /// The names of the kernels.
    pub(crate) kernels: BTreeSet<Rc<str>>,
    /// Variables outside functions.
    pub(crate) variables: Vec<Variable>,
    /// The first part that is not understood, which may have declared anything.
    pub(crate) skipped: Option<Refusal>,
}

/// How deeply expressions and statements may be nested.
const DEPTH: usize = 200;

/// Words before a declaration that do not change where an element is.
const IGNORED: [&str; 24] = [
    "const",
    "volatile",
    "restrict",
    "__restrict",
    "__restrict__",
    "static",
    "inline",
    "__inline",
    "__inline__",
    "__forceinline__",
    "__noinline__",
    "register",
    "__device__",
    "__host__",
    "read_only",
    "write_only",
    "read_write",
    "__read_only",
    "__write_only",
    "constexpr",
    "__const",
    "extern",
    "private",
    "__private",
];
/// Words of memory that other packages see.
const GLOBAL: [&str; 5] = ["global", "__global", "constant", "__constant", "__constant__"];
/// Words of values that nothing changes.
const CONSTANT: [&str; 6] = ["const", "__const", "constexpr", "constant", "__constant", "__constant__"];
const LOCAL: [&str; 3] = ["local", "__local", "__shared__"];
/// Words that have arguments and are ignored.
/// Words of attributes that change sizes, and places of fields.
const LAYOUT: [&str; 5] = ["packed", "aligned", "vector_size", "vector_type", "mode"];
const ATTRIBUTES: [&str; 5] = ["__attribute__", "__launch_bounds__", "__align__", "alignas", "__attribute"];

type Parsed<T> = Result<T, Refusal>;

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    language: Language,
    types: HashMap<Rc<str>, Type>,
    depth: usize,
    addressed: BTreeSet<Rc<str>>,
    /// Whether an attribute changes the size of a type.
    is_laid_out: bool,
    /// Whether a `break` here ends a `switch`.
    is_in_switch: bool,
}

/// What precedes the names of a declaration.
struct Specifiers {
    of: Type,
    space: Option<Space>,
    is_kernel: bool,
    is_typedef: bool,
    is_const: bool,
}

/// Parses a source.
pub(crate) fn parse(tokens: &[Token], language: Language) -> Unit {
    let mut parser = Parser::new(tokens, language);
    let mut unit = Unit::default();
    while parser.at < tokens.len() {
        let start = parser.at;
        if let Err(refusal) = parser.outer(&mut unit) {
            unit.skipped.get_or_insert(refusal);
            parser.at = start;
            parser.skip();
        }
    }
    unit
}

/// Evaluates a constant expression, such as the condition of an `#if`.
pub(crate) fn constant(tokens: &[Token], at: Place) -> Result<i128, Refusal> {
    let mut parser = Parser::new(tokens, Language::OpenCl);
    let value = parser.expr()?;
    if parser.at < tokens.len() {
        return Err(Refusal::new(at, "an expression that does not end"));
    }
    fold(&value).ok_or_else(|| Refusal::new(at, "an expression that is no constant"))
}

/// Returns the value of a constant expression.
fn fold(expr: &Expr) -> Option<i128> {
    Some(match &expr.kind {
        ExprKind::Integer(value, _) => *value,
        ExprKind::Unary(Unary::Minus, of) => fold(of)?.checked_neg()?,
        ExprKind::Unary(Unary::Plus, of) => fold(of)?,
        ExprKind::Cast(Type::Integer { bytes, is_signed }, of) => held(fold(of)?, *bytes, *is_signed),
        ExprKind::Unary(Unary::Not, of) => i128::from(fold(of)? == 0),
        ExprKind::Unary(Unary::Complement, of) => !fold(of)?,
        ExprKind::Conditional(test, yes, no) => fold(if fold(test)? != 0 { yes } else { no })?,
        ExprKind::Binary(operator, one, other) => {
            let (one, other) = (fold(one)?, fold(other)?);
            let shift = || u32::try_from(other).ok().filter(|bits| *bits < 64);
            match operator {
                Binary::Add => one.checked_add(other)?,
                Binary::Sub => one.checked_sub(other)?,
                Binary::Mul => one.checked_mul(other)?,
                Binary::Div => one.checked_div(other)?,
                Binary::Rem => one.checked_rem(other)?,
                Binary::ShiftLeft => one.checked_mul(1 << shift()?)?,
                Binary::ShiftRight => one >> shift()?,
                Binary::And => one & other,
                Binary::Or => one | other,
                Binary::Xor => one ^ other,
                Binary::Less => (one < other).into(),
                Binary::LessEqual => (one <= other).into(),
                Binary::Equal => (one == other).into(),
                Binary::NotEqual => (one != other).into(),
                Binary::Greater => (one > other).into(),
                Binary::GreaterEqual => (one >= other).into(),
                Binary::Both => (one != 0 && other != 0).into(),
                Binary::Either => (one != 0 || other != 0).into(),
            }
        }
        _ => return None,
    })
}

impl<'a> Parser<'a> {
    fn new(tokens: &'a [Token], language: Language) -> Self {
        let (types, addressed) = (HashMap::new(), BTreeSet::new());
        Self { tokens, at: 0, language, types, depth: 0, addressed, is_laid_out: false, is_in_switch: false }
    }
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn place(&self) -> Place {
        self.peek().or(self.tokens.last()).map_or(0, |token| token.at)
    }

    fn is(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.is(text))
    }

    fn is_next(&self, text: &str) -> bool {
        self.tokens.get(self.at + 1).is_some_and(|token| token.is(text))
    }

    fn accept(&mut self, text: &str) -> bool {
        let accepted = self.is(text);
        self.at += usize::from(accepted);
        accepted
    }

    fn accept_any(&mut self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.accept(text))
    }

    fn unexpected<T>(&self, expected: &str) -> Parsed<T> {
        let found = self.peek().map_or("the end", |token| &token.text);
        Err(Refusal::new(self.place(), format!("`{found}` instead of {expected}")))
    }

    fn expect(&mut self, text: &str) -> Parsed<()> {
        if self.accept(text) { Ok(()) } else { self.unexpected(&format!("`{text}`")) }
    }

    fn name(&mut self) -> Parsed<Rc<str>> {
        match self.peek() {
            Some(token) if token.kind == Kind::Name => {
                let name = token.text.clone();
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEPTH {
            return Err(Refusal::new(self.place(), "code that is nested too deeply"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Skips to the end of a `;` or of a block in braces.
    fn skip(&mut self) {
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            let (opens, closes) = (token.is("{"), token.is("}"));
            let ends = token.is(";") && depth == 0;
            self.at += 1;
            depth = if opens { depth + 1 } else { depth.saturating_sub(usize::from(closes)) };
            if ends || closes && depth == 0 {
                return;
            }
        }
    }

    /// Parses one declaration outside functions.
    fn outer(&mut self, unit: &mut Unit) -> Parsed<()> {
        if self.accept(";") || self.accept("}") {
            return Ok(());
        }
        if self.is("extern") && self.tokens.get(self.at + 1).is_some_and(|token| token.kind == Kind::Text) {
            self.at += 2;
            // The brace that ends a block of declarations is skipped above.
            self.accept("{");
            return Ok(());
        }
        self.is_laid_out = false;
        let specifiers = self.specifiers()?;
        if self.accept(";") {
            return Ok(());
        }
        loop {
            let at = self.place();
            let (name, of) = self.declarator(&specifiers)?;
            if specifiers.is_typedef {
                while self.attribute()? {}
                self.check_layout(at)?;
                self.types.insert(name, of);
            } else if self.is("(") {
                return self.function(unit, at, name, specifiers.is_kernel);
            } else {
                let first = if self.accept("=") { Some(self.initial()?) } else { None };
                unit.variables.push(Variable { at, name, of, first, is_const: specifiers.is_const });
            }
            if !self.accept(",") {
                return self.expect(";");
            }
        }
    }

    /// Parses a function behind its name. What is refused is refused for this function alone.
    fn function(&mut self, unit: &mut Unit, at: Place, name: Rc<str>, is_kernel: bool) -> Parsed<()> {
        let start = self.at;
        let parsed = self.parameters(is_kernel).and_then(|(parameters, references)| {
            while self.attribute()? {}
            if self.accept(";") {
                return Ok(None);
            }
            self.depth = 0;
            self.addressed.clear();
            let body = self.block()?;
            let addressed = Rc::new(std::mem::take(&mut self.addressed));
            Ok(Some(Rc::new(Function { at, is_kernel, parameters, references, body, addressed })))
        });
        self.depth = 0;
        let entry = match parsed {
            Ok(None) => return Ok(()),
            Ok(Some(function)) => Ok(function),
            Err(refusal) => {
                self.at = start;
                self.skip();
                Err(refusal)
            }
        };
        if is_kernel {
            unit.kernels.insert(name.clone());
        }
        // Two functions of one name are overloads.
        let refusal = || Err(Refusal::new(at, format!("a second function {name}")));
        unit.functions.entry(name.clone()).and_modify(|known| *known = refusal()).or_insert(entry);
        Ok(())
    }

    fn parameters(&mut self, is_kernel: bool) -> Parsed<(Parameters, Vec<usize>)> {
        let (mut parameters, mut references) = (Vec::new(), Vec::new());
        self.expect("(")?;
        if self.is("void") && self.is_next(")") {
            self.at += 1;
        }
        while !self.accept(")") {
            let mut specifiers = self.specifiers()?;
            if is_kernel && self.language == Language::Cuda {
                specifiers.space = Some(Space::Global);
            }
            // Without a name, it is not used.
            let name = if self.is(",") || self.is(")") {
                ("".into(), specifiers.of)
            } else {
                let is_reference = self.is("&") && !is_kernel;
                self.at += usize::from(is_reference);
                references.extend(is_reference.then_some(parameters.len()));
                self.declarator(&specifiers)?
            };
            parameters.push(name);
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok((parameters, references))
    }

    /// Skips an attribute in parentheses.
    fn attribute(&mut self) -> Parsed<bool> {
        self.is_laid_out |= self.is("__align__") || self.is("alignas");
        if !self.accept_any(&ATTRIBUTES) {
            return Ok(false);
        }
        let mut depth = 0_usize;
        loop {
            let is_layout = |token: &Token| LAYOUT.iter().any(|word| token.text.contains(word));
            self.is_laid_out |= self.peek().is_some_and(is_layout);
            if self.accept("(") {
                depth += 1;
            } else if self.accept(")") {
                depth = depth.saturating_sub(1);
            } else if self.peek().is_none() {
                return self.unexpected("`)`");
            } else {
                self.at += 1;
            }
            if depth == 0 {
                return Ok(true);
            }
        }
    }

    fn type_of(&self, name: &str) -> Option<Type> {
        self.types.get(name).cloned().or_else(|| Type::named(name, self.language))
    }

    /// Returns whether a declaration begins here.
    fn is_declaration(&self) -> bool {
        let Some(token) = self.peek().filter(|token| token.kind == Kind::Name) else { return false };
        let words =
            [&IGNORED[..], &GLOBAL, &LOCAL, &ATTRIBUTES, &["struct", "unsigned", "signed", "union", "enum"]];
        words.iter().any(|words| words.contains(&&*token.text)) || self.type_of(&token.text).is_some()
    }

    fn specifiers(&mut self) -> Parsed<Specifiers> {
        let (mut of, mut space, mut is_kernel, mut is_typedef) = (None, None, false, false);
        let (mut sign, mut longs, mut is_const) = (None, 0, false);
        loop {
            is_const |= CONSTANT.iter().any(|word| self.is(word));
            if self.attribute()? || self.accept_any(&IGNORED) {
            } else if self.accept_any(&GLOBAL) {
                space = Some(Space::Global);
            } else if self.accept_any(&LOCAL) {
                space = Some(Space::Own);
            } else if self.accept_any(&["kernel", "__kernel", "__global__"]) {
                is_kernel = true;
            } else if self.accept("typedef") {
                is_typedef = true;
            } else if self.accept("unsigned") {
                sign = Some(false);
            } else if self.accept("signed") {
                sign = Some(true);
            } else if of.is_none() && self.accept("struct") {
                of = Some(self.structure()?);
            } else if self.is("long") && (of.is_none() || longs > 0) {
                self.at += 1;
                longs += 1;
                of = Type::named("long", self.language);
            } else if self.is("int") && (longs > 0 || matches!(of, Some(Type::Integer { bytes: 2, .. }))) {
                self.at += 1;
            } else if of.is_none() && self.peek().is_some_and(|token| self.type_of(&token.text).is_some()) {
                // With a sign, only words of C follow.
                of = self.peek().and_then(|token| self.type_of(&token.text));
                self.at += 1;
            } else {
                break;
            }
        }
        let of = match (of, sign) {
            (Some(Type::Integer { bytes, .. }), Some(is_signed)) => Type::Integer { bytes, is_signed },
            (None, Some(is_signed)) => Type::Integer { bytes: 4, is_signed },
            (Some(of), None) => of,
            _ => return self.unexpected("a type"),
        };
        Ok(Specifiers { of, space, is_kernel, is_typedef, is_const })
    }

    /// Refuses attributes that change the size of a type.
    fn check_layout(&mut self, at: Place) -> Parsed<()> {
        if std::mem::take(&mut self.is_laid_out) {
            return Err(Refusal::new(at, "an attribute that changes the layout of a type"));
        }
        Ok(())
    }

    fn structure(&mut self) -> Parsed<Type> {
        let at = self.place();
        while self.attribute()? {}
        let name = if self.is("{") { None } else { Some(self.name()?) };
        let key = name.as_ref().map(|name| Rc::from(format!("struct {name}")));
        if !self.accept("{") {
            let known = key.as_ref().and_then(|key: &Rc<str>| self.types.get(key)).cloned();
            return known.map_or_else(|| self.unexpected("a struct that is defined"), Ok);
        }
        let mut fields = Vec::new();
        while !self.accept("}") {
            let specifiers = self.specifiers()?;
            loop {
                fields.push(self.declarator(&specifiers)?);
                if self.is(":") {
                    return self.unexpected("a field of whole bytes");
                }
                if !self.accept(",") {
                    break;
                }
            }
            self.expect(";")?;
        }
        if self.is("__attribute__") || self.is("__attribute") {
            return self.unexpected("a struct without attributes");
        }
        self.check_layout(at)?;
        let of = Type::Struct(Rc::new(Struct { name: name.clone(), fields }));
        if let (Some(key), Some(name)) = (key, name) {
            self.types.insert(key, of.clone());
            if self.language == Language::Cuda {
                self.types.insert(name, of.clone());
            }
        }
        Ok(of)
    }

    /// Parses pointers, a name and the lengths of an array.
    fn declarator(&mut self, specifiers: &Specifiers) -> Parsed<(Rc<str>, Type)> {
        let mut of = self.pointers(specifiers)?;
        while self.attribute()? {}
        let name = self.name()?;
        let mut lengths = Vec::new();
        while self.accept("[") {
            // An array without a length is one of the group, or is as long as its initial value.
            let at = self.place();
            let length = if self.is("]") { Some(0) } else { fold(&self.expr()?) };
            let length = length.and_then(|length| u64::try_from(length).ok());
            lengths.push(length.ok_or_else(|| Refusal::new(at, "a length of an array that is no constant"))?);
            self.expect("]")?;
        }
        while self.attribute()? {}
        for length in lengths.into_iter().rev() {
            of = Type::Array(Rc::new(of), length);
        }
        Ok((name, of))
    }

    fn pointers(&mut self, specifiers: &Specifiers) -> Parsed<Type> {
        let mut of = specifiers.of.clone();
        let mut space = specifiers.space.unwrap_or(Space::Own);
        while self.accept("*") {
            of = Type::Pointer(Rc::new(of), space);
            space = Space::Own;
            while self.attribute()? || self.accept_any(&IGNORED) || self.accept_any(&LOCAL) {}
        }
        if self.is("&") {
            return self.unexpected("a name");
        }
        Ok(of)
    }

    fn initial(&mut self) -> Parsed<Expr> {
        if !self.is("{") {
            return self.assignment();
        }
        let at = self.place();
        self.at += 1;
        let mut values = Vec::new();
        while !self.accept("}") {
            values.push(self.nested(Self::initial)?);
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { at, kind: ExprKind::List(values) })
    }
}
