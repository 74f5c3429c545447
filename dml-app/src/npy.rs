//! The headers of `.npy` files, versions 1 to 3 of [the format].
//!
//! [the format]: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

use crate::data::invalid;
use std::io::{self, Read};

const MAGIC: &[u8] = b"\x93NUMPY";

/// A header longer than this is none: NumPy's own have at most a few hundred bytes.
const LONGEST: usize = 1 << 16;

/// What a header says of the array behind it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The type of its elements, as in `<f4`.
    pub(crate) descr: String,
    pub(crate) fortran_order: bool,
    pub(crate) shape: Vec<u64>,
}

impl Header {
    /// Reads a header, up to the first byte of the array.
    pub(crate) fn read(reader: &mut impl Read) -> io::Result<Self> {
        let mut start = [0; 8];
        reader.read_exact(&mut start)?;
        if !start.starts_with(MAGIC) {
            return Err(invalid("it is no .npy file: it does not begin with \\x93NUMPY"));
        }
        let wide = match start[6] {
            1 => 2,
            2 | 3 => 4,
            version => return Err(invalid(format!("its version is {version}, not 1, 2 or 3"))),
        };
        let mut length = [0; 4];
        reader.read_exact(&mut length[..wide])?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(invalid(format!("its header has {length} bytes, more than {LONGEST}")));
        }
        let mut text = vec![0; length];
        reader.read_exact(&mut text)?;
        let text = String::from_utf8(text).map_err(|_| invalid("its header is no text"))?;
        Self::parse(&mut Literal(text.trim())).map_err(|expected| {
            invalid(format!(
                "its header {:?} is no dictionary of descr, fortran_order and shape: {expected}",
                text.trim()
            ))
        })
    }

    fn parse(text: &mut Literal<'_>) -> Result<Self, String> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        text.expect("{")?;
        while !text.accept("}") {
            let key = text.string()?;
            text.expect(":")?;
            match key {
                "descr" if text.0.starts_with('[') => return Err("its elements are records".to_owned()),
                "descr" => descr = Some(text.string()?.to_owned()),
                "fortran_order" => fortran_order = Some(text.boolean()?),
                "shape" => shape = Some(text.shape()?),
                _ => return Err(format!("it has a {key:?}")),
            }
            if !text.accept(",") {
                text.expect("}")?;
                break;
            }
        }
        if !text.0.is_empty() {
            return Err(format!("{:?} follows it", text.0));
        }
        let missing = |name: &str| format!("{name} is missing");
        Ok(Self {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }

    /// Returns the header as bytes, padded so that the array begins at a multiple of 64.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let lengths: String = self.shape.iter().map(|length| format!("{length}, ")).collect();
        let order = if self.fortran_order { "True" } else { "False" };
        let text = format!(
            "{{'descr': '{}', 'fortran_order': {order}, 'shape': ({}), }}",
            self.descr,
            lengths.trim_end()
        );
        let start = MAGIC.len() + 4;
        let padded = (start + text.len() + 1).next_multiple_of(64) - start;
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((padded as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.resize(start + padded - 1, b' ');
        bytes.push(b'\n');
        bytes
    }
}

/// What is left of a Python literal.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn accept(&mut self, token: &str) -> bool {
        let rest = self.0.strip_prefix(token);
        self.0 = rest.unwrap_or(self.0).trim_start();
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.accept(token) { Ok(()) } else { Err(format!("{token:?} is expected before {:?}", self.0)) }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        for quote in ['\'', '"'] {
            let inside = self.0.strip_prefix(quote).and_then(|rest| rest.split_once(quote));
            if let Some((string, rest)) = inside {
                self.0 = rest.trim_start();
                return Ok(string);
            }
        }
        Err(format!("a string is expected before {:?}", self.0))
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.accept("True") {
            return Ok(true);
        }
        self.expect("False").map(|()| false)
    }

    /// Reads a tuple of lengths. Python 2 wrote an `L` behind them.
    fn shape(&mut self) -> Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            let end = self.0.find(|character: char| !character.is_ascii_digit()).unwrap_or(self.0.len());
            let (digits, rest) = self.0.split_at(end);
            shape.push(digits.parse().map_err(|_| format!("a length is expected before {:?}", self.0))?);
            self.0 = rest;
            let _python_2 = self.accept("L");
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(version: u8, text: &str) -> Result<Header, String> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        let length = (text.len() as u32).to_le_bytes();
        bytes.extend(&length[..if version == 1 { 2 } else { 4 }]);
        bytes.extend(text.as_bytes());
        Header::read(&mut &bytes[..]).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_are_read_back() {
        for shape in [vec![], vec![3], vec![3, 4], vec![u64::MAX, 0, 7]] {
            let header = Header { descr: "<f4".to_owned(), fortran_order: false, shape };
            let bytes = header.bytes();
            assert_eq!(bytes.len() % 64, 0);
            let mut rest = &bytes[..];
            assert_eq!(Header::read(&mut rest).unwrap(), header);
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn headers_of_all_versions_of_numpy_and_python_are_read() {
        let expected = Header { descr: "|u1".to_owned(), fortran_order: true, shape: vec![30, 4] };
        for (version, text) in [
            (1, "{'descr': '|u1', 'fortran_order': True, 'shape': (30, 4), }          \n"),
            (2, "{'shape': (30L, 4L), 'fortran_order': True, 'descr': '|u1'}\n"),
            (3, "{\"descr\":\"|u1\",\"fortran_order\":True,\"shape\":(30,4)}"),
        ] {
            assert_eq!(read(version, text).as_ref(), Ok(&expected));
        }
    }

    #[test]
    fn mistakes_are_told() {
        for (version, text, expected) in [
            (4, "", "version is 4"),
            (1, "", "\"{\" is expected"),
            (1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "are records"),
            (1, "{'descr': 4, 'fortran_order': False, 'shape': (1,)}", "a string is expected"),
            (1, "{'descr': '<f4', 'shape': (1,)}", "fortran_order is missing"),
            (1, "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,)}", "\"False\" is expected"),
            (1, "{'descr': '<f4', 'fortran_order': True, 'shape': (-1,)}", "a length is expected"),
            (
                1,
                "{'descr': '<f4', 'fortran_order': True, 'shape': (99999999999999999999,)}",
                "a length is expected",
            ),
            (1, "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2}", "\")\" is expected"),
            (1, "{'descr': '<f4', 'fortran_order': True, 'shape': (1)} 7", "\"7\" follows"),
            (1, "{'descr': '<f4', 'order': True, 'shape': (1)}", "it has a \"order\""),
        ] {
            let told = read(version, text).unwrap_err();
            assert!(told.contains(expected), "{text}: {told}");
        }
        assert!(
            Header::read(&mut &b"\x93NUMPY\x02\0\xff\xff\xff\xff"[..])
                .unwrap_err()
                .to_string()
                .contains("more than")
        );
        assert!(Header::read(&mut &b"PNG, not NUMPY"[..]).unwrap_err().to_string().contains("no .npy"));
        assert!(Header::read(&mut &b"\x93NUM"[..]).is_err());
    }
}
