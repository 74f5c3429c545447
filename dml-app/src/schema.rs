//! The tables and keys of an application file, as serde reads them.
//!
//! Their comments are the descriptions in the published JSON schema (`docs/application.schema.json`).

use indexmap::IndexMap;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::Spanned;

/// Names, each with a value, in the order of the file.
pub(crate) type Named<T> = IndexMap<Spanned<String>, Spanned<T>>;

/// An application: kernels in OpenCL C and CUDA C, the arrays that they read and write, and the order in
/// which they run.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    /// The name of the application. Default: the name of the file.
    pub(crate) name: Option<String>,
    /// Numbers by name, for expressions. `dml run --set NAME=NUMBER` changes one.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Expression>"))]
    pub(crate) parameters: Named<Expression>,
    /// The arrays by name.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Array>"))]
    pub(crate) arrays: Named<Array>,
    /// The kernels by name.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Kernel>"))]
    pub(crate) kernels: Named<Kernel>,
    /// What runs, in this order.
    #[cfg_attr(test, schemars(with = "Vec<Step>"))]
    pub(crate) run: Spanned<Vec<Spanned<Step>>>,
}

/// An array of numbers, row-major as in C and NumPy.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Array {
    /// The type of the elements, by its name in OpenCL C.
    #[serde(rename = "type")]
    #[cfg_attr(test, schemars(with = "ElementType"))]
    pub(crate) element: Spanned<ElementType>,
    /// The number of elements along each axis: planes, rows and columns, of which the last is contiguous. A
    /// name that is no parameter takes its value from the array's file.
    #[cfg_attr(test, schemars(with = "Vec<Expression>"))]
    pub(crate) shape: Spanned<Vec<Spanned<Expression>>>,
    /// The first contents. Default: zeros.
    #[cfg_attr(test, schemars(with = "Option<Input>"))]
    pub(crate) from: Option<Spanned<Input>>,
    /// The file for the last contents, relative to the current folder: `.npy`, `.png`, or any other name for
    /// the bytes alone.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) to: Option<Spanned<String>>,
}

/// The first contents of an array: one of `file`, `random` and `value`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    /// A file, relative to the application file: `.npy`, `.png`, or any other name for the bytes alone.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) file: Option<Spanned<String>>,
    /// The seed of random numbers.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) random: Option<Spanned<Expression>>,
    /// The least random number. Default: 0.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) low: Option<Spanned<Expression>>,
    /// The end of the random numbers, which is not among them. Default: 1, or 256 for integers.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) high: Option<Spanned<Expression>>,
    /// The value of every element.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) value: Option<Spanned<Expression>>,
}

/// A kernel, its index space and its arguments.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Kernel {
    /// The file with the source in OpenCL C, relative to the application file.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) opencl: Option<Spanned<String>>,
    /// The file with the source in CUDA C, relative to the application file.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) cuda: Option<Spanned<String>>,
    /// The name of the function. Default: the name of the kernel.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) function: Option<Spanned<String>>,
    /// The points to compute along each axis. `x` is `get_global_id(0)`, the contiguous one.
    #[cfg_attr(test, schemars(with = "Axes"))]
    pub(crate) items: Spanned<Axes>,
    /// The work-items of a work-group along each axis. Default: 64; 64 and 4; 64, 4 and 1.
    #[cfg_attr(test, schemars(with = "Option<Axes>"))]
    pub(crate) group: Option<Spanned<Axes>>,
    /// The points that a work-item computes along each axis. Default: 1.
    #[cfg_attr(test, schemars(with = "Option<Axes>"))]
    pub(crate) tile: Option<Spanned<Axes>>,
    /// The axis along which devices divide the items. Default: the last one of `items`.
    #[cfg_attr(test, schemars(with = "Option<Axis>"))]
    pub(crate) split: Option<Spanned<Axis>>,
    /// Whether one device runs all items.
    #[serde(default)]
    pub(crate) undivided: bool,
    /// Macros of the source, each with its value.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Expression>"))]
    pub(crate) define: Named<Expression>,
    /// Options of the compiler for OpenCL C.
    pub(crate) opencl_options: Option<String>,
    /// Options of the compiler for CUDA C.
    pub(crate) cuda_options: Option<String>,
    /// The arguments, in the order of the function.
    #[cfg_attr(test, schemars(with = "Vec<Argument>"))]
    pub(crate) arguments: Spanned<Vec<Spanned<Argument>>>,
    /// What differs on processors.
    #[cfg_attr(test, schemars(with = "Option<Variant>"))]
    pub(crate) cpu: Option<Spanned<Variant>>,
    /// What differs on graphics processors.
    #[cfg_attr(test, schemars(with = "Option<Variant>"))]
    pub(crate) gpu: Option<Spanned<Variant>>,
    /// What differs on other devices.
    #[cfg_attr(test, schemars(with = "Option<Variant>"))]
    pub(crate) accelerator: Option<Spanned<Variant>>,
}

/// What differs on one kind of device. Keys that are missing are those of the kernel.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    /// The file with the source in OpenCL C.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) opencl: Option<Spanned<String>>,
    /// The file with the source in CUDA C.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) cuda: Option<Spanned<String>>,
    /// The name of the function.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) function: Option<Spanned<String>>,
    /// The work-items of a work-group along each axis.
    #[cfg_attr(test, schemars(with = "Option<Axes>"))]
    pub(crate) group: Option<Spanned<Axes>>,
    /// The points that a work-item computes along each axis.
    #[cfg_attr(test, schemars(with = "Option<Axes>"))]
    pub(crate) tile: Option<Spanned<Axes>>,
    /// Macros of the source, besides those of the kernel.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Expression>"))]
    pub(crate) define: Named<Expression>,
    /// Options of the compiler for OpenCL C.
    pub(crate) opencl_options: Option<String>,
    /// Options of the compiler for CUDA C.
    pub(crate) cuda_options: Option<String>,
}

/// A number along each axis.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, expecting = "a number along each axis, such as { x = 16, y = 4 }")]
pub(crate) struct Axes {
    /// Along `get_global_id(0)`.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) x: Option<Spanned<Expression>>,
    /// Along `get_global_id(1)`.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) y: Option<Spanned<Expression>>,
    /// Along `get_global_id(2)`.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) z: Option<Spanned<Expression>>,
}

/// An axis of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    X,
    Y,
    Z,
}

/// An argument: an array, a scalar by its type in OpenCL C, or local memory.
///
/// An array has one of `reads`, `writes`, `updates` and `reduces`. The first three say which part the items
/// of a device touch, along the axis `split`: `whole`, `elements`, `rows`, `columns` or `planes`. `rows(1)`
/// is a row per item and one more on each side; `rows(0, 2)` has none before and two after; `rows + 1` begins
/// one row further; `4 rows` is four rows per item.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Argument {
    /// The name of an array.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) array: Option<Spanned<String>>,
    /// The part that is read.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) reads: Option<Spanned<String>>,
    /// The part that is overwritten completely.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) writes: Option<Spanned<String>>,
    /// The part that is read and changed, or overwritten in places.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) updates: Option<Spanned<String>>,
    /// How the values of devices are combined, each of which begins with the operation's identity.
    #[cfg_attr(test, schemars(with = "Option<Operation>"))]
    pub(crate) reduces: Option<Spanned<Operation>>,
    /// Local memory, in bytes. In CUDA C it is `extern __shared__` memory and no parameter.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) local: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) char: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) uchar: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) short: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) ushort: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) int: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) uint: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) long: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) ulong: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) float: Option<Spanned<Expression>>,
    /// A scalar.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) double: Option<Spanned<Expression>>,
}

/// How the values of devices are combined, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    Sum,
    Product,
    Min,
    Max,
}

/// One of: a kernel, arrays that change places, or repeated steps.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// The name of a kernel.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) kernel: Option<Spanned<String>>,
    /// Runs the kernel after every so many repetitions only.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) every: Option<Spanned<Expression>>,
    /// The names of two arrays that change places.
    #[cfg_attr(test, schemars(with = "Option<Vec<String>>"))]
    pub(crate) swap: Option<Spanned<Vec<Spanned<String>>>>,
    /// The number of repetitions, or their limit if there is `until`.
    #[cfg_attr(test, schemars(with = "Option<Expression>"))]
    pub(crate) repeat: Option<Spanned<Expression>>,
    /// Ends the repetitions: the name of an array, `<` or `>`, and a number. It is tested after each
    /// repetition in which a kernel changed the array, of which the first element counts.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(crate) until: Option<Spanned<String>>,
    /// The repeated steps.
    #[cfg_attr(test, schemars(with = "Option<Vec<Step>>"))]
    pub(crate) run: Option<Spanned<Vec<Spanned<Step>>>>,
}

/// The type of an element, by its name in OpenCL C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum ElementType {
    Char,
    Uchar,
    Short,
    Ushort,
    Int,
    Uint,
    Long,
    Ulong,
    Float,
    Double,
}

/// A number, or an expression of numbers and parameters: `"n / 2 + 1"`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(untagged))]
pub(crate) enum Expression {
    Integer(i64),
    Real(f64),
    Text(String),
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;

        impl Visitor<'_> for Numbers {
            type Value = Expression;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or an expression such as \"n / 2\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Expression, E> {
                Ok(Expression::Integer(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Expression, E> {
                self.visit_i128(number.into())
            }

            fn visit_i128<E: Error>(self, number: i128) -> Result<Expression, E> {
                let number = i64::try_from(number);
                number.map(Expression::Integer).map_err(|_| E::custom("the number is too large for 64 bits"))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Expression, E> {
                Ok(Expression::Real(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Expression, E> {
                Ok(Expression::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published schema is that of the types. `DML_BLESS=1` writes it.
    #[test]
    fn the_published_schema_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/application.schema.json");
        let schema = schemars::schema_for!(Description);
        let text = serde_json::to_string_pretty(&schema).expect("it is JSON") + "\n";
        if std::env::var_os("DML_BLESS").is_some() {
            std::fs::write(path, &text).expect("it can be written");
        }
        let published = std::fs::read_to_string(path).expect("it is published");
        assert!(published == text, "docs/application.schema.json is stale: run this test with DML_BLESS=1");
    }
}
