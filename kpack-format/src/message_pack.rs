//! Reads and writes MessagePack, value by value.
//!
//! By hand, since every build script compiles it: `rmp` would bring two more crates and a build script, and
//! `rmp-serde` a third of the compile time on top (`cargo xtask bench build-dep`).

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Range;

use crate::Reason;
pub(crate) use crate::wire::MessagePackError;

type Result<T, E = MessagePackError> = std::result::Result<T, E>;

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Map,
    List,
    Text,
    /// Any other kind, or the end of the input.
    Other,
}

/// Reads values one after another. A value of an unexpected type is not consumed.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    size: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { size: bytes.len(), rest: bytes }
    }

    /// The offset of the next value, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.size - self.rest.len()
    }

    pub(crate) fn fail<T>(&self, reason: impl Into<Reason>) -> Result<T> {
        Err(MessagePackError { offset: self.offset(), reason: reason.into() })
    }

    /// The kind of the next value.
    pub(crate) fn kind(&self) -> Kind {
        match self.peek() {
            Some(Token::Map(_)) => Kind::Map,
            Some(Token::List(_)) => Kind::List,
            Some(Token::Text(_)) => Kind::Text,
            _ => Kind::Other,
        }
    }

    fn peek(&self) -> Option<Token<'a>> {
        Token::read(&mut { self.rest })
    }

    /// Fails if anything follows the last value; `what` names the values in the message.
    pub(crate) fn expect_end(&self, what: &str) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            more => self.fail(format!("{more} bytes follow the {what}")),
        }
    }

    /// Reads the next value. `read` gets its first token, and what follows.
    fn value<T>(
        &mut self,
        what: impl Display,
        read: impl FnOnce(Token<'a>, &mut &'a [u8]) -> Option<T>,
    ) -> Result<T> {
        let mut rest = self.rest;
        let token = Token::read(&mut rest);
        if let Some(value) = token.and_then(|token| read(token, &mut rest)) {
            self.rest = rest;
            return Ok(value);
        }
        self.clone().skip()?;
        match token {
            Some(found) => self.fail(Reason::mismatch("", what, found)),
            None => self.fail(format!("expected {what}")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let mut next = self.clone();
        let text = next.value("a string", |token, _| match token {
            Token::Text(text) => Some(text),
            _ => None,
        })?;
        let Ok(text) = std::str::from_utf8(text) else {
            return self.fail("a string is not UTF-8");
        };
        *self = next;
        Ok(text)
    }

    pub(crate) fn string(&mut self) -> Result<String> {
        self.text().map(str::to_owned)
    }

    pub(crate) fn integer<T: TryFrom<i128>>(&mut self) -> Result<T> {
        self.value("an integer of its range", |token, _| token.integer())
    }

    /// A byte string of `SIZE` bytes.
    pub(crate) fn digest<const SIZE: usize>(&mut self) -> Result<[u8; SIZE]> {
        self.value(format_args!("a digest of {SIZE} bytes"), |token, rest| {
            match token {
                Token::Bytes(bytes) => bytes.try_into().ok(),
                // Some writers have no byte strings.
                Token::List(size) if size == SIZE as u64 => {
                    let mut digest = [0; SIZE];
                    for byte in &mut digest {
                        *byte = Token::read(rest)?.integer()?;
                    }
                    Some(digest)
                }
                _ => None,
            }
        })
    }

    /// Reads the number of elements of a list. An element can be one byte in the file and many in
    /// memory, so the file's size alone must not determine how much is allocated.
    fn list_size(&mut self, most: usize) -> Result<usize> {
        self.value(format_args!("a list of at most {most} elements"), |token, _| match token {
            Token::List(size) => usize::try_from(size).ok().filter(|size| *size <= most),
            _ => None,
        })
    }

    /// Reads a list, element by element.
    pub(crate) fn list<T>(
        &mut self,
        most: usize,
        mut element: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut list = Vec::new();
        for _ in 0..self.list_size(most)? {
            list.push(element(self)?);
        }
        Ok(list)
    }

    /// Reads the number of entries of a map.
    pub(crate) fn map_size(&mut self, most: usize) -> Result<usize> {
        let size = self.value("a map", |token, _| match token {
            Token::Map(size) => Some(size),
            _ => None,
        })?;
        match size as usize {
            size if size <= most => Ok(size),
            size => self.fail(format!("a map of {size} entries (expected at most {most} entries)")),
        }
    }

    /// Reads a map, entry by entry: `value` gets each key, and reads the value.
    pub(crate) fn map(
        &mut self,
        mut value: impl FnMut(&'a str, &mut Self) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..self.map_size(usize::MAX)? {
            let key = self.text()?;
            value(key, self)?;
        }
        Ok(())
    }

    /// Reads a map whose values have one type.
    pub(crate) fn map_of<T>(
        &mut self,
        most: usize,
        mut value: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<BTreeMap<String, T>> {
        let mut map = BTreeMap::new();
        for _ in 0..self.map_size(most)? {
            map.insert(self.string()?, value(self)?);
        }
        Ok(map)
    }

    /// Reads the value of `key`, which may appear only once in a map.
    pub(crate) fn field<T>(
        &mut self,
        field: &mut Option<T>,
        key: &str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<()> {
        let value = read(self)?;
        match field.replace(value) {
            None => Ok(()),
            Some(_) => self.fail(format!("the key `{key}` appears twice")),
        }
    }

    /// The value that [`field`](Self::field) read; fails if the map lacks the key.
    pub(crate) fn required<T>(&self, field: Option<T>, key: &str) -> Result<T> {
        match field {
            Some(value) => Ok(value),
            None => self.fail(format!("the key `{key}` is missing")),
        }
    }

    /// Reads any value, as its bytes. It counts the values left instead of recursing, so deep
    /// nesting costs nothing.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8]> {
        let mut rest = self.rest;
        let mut values = 1_u64;
        while values > 0 {
            let Some(token) = Token::read(&mut rest) else {
                return self.fail("truncated, or not MessagePack");
            };
            values = values - 1 + token.inner();
        }
        let (value, rest) = self.rest.split_at(self.rest.len() - rest.len());
        self.rest = rest;
        Ok(value)
    }
}

/// Takes the first `size` bytes off.
fn take<'b>(rest: &mut &'b [u8], size: usize) -> Option<&'b [u8]> {
    let (taken, others) = rest.split_at_checked(size)?;
    *rest = others;
    Some(taken)
}

/// Takes a number of `size` bytes off.
fn number(rest: &mut &[u8], size: usize) -> Option<u64> {
    let bytes = take(rest, size)?.iter();
    Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Takes off bytes that follow their number, which has `size` bytes.
fn sized<'b>(rest: &mut &'b [u8], size: usize) -> Option<&'b [u8]> {
    let length = number(rest, size)?;
    take(rest, usize::try_from(length).ok()?)
}

/// A value, without the values inside it.
#[derive(Clone, Copy)]
enum Token<'a> {
    Integer(i128),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// The number of elements.
    List(u64),
    /// The number of entries.
    Map(u64),
    /// Nil, a boolean, a floating-point number or an extension.
    Other,
}

impl<'a> Token<'a> {
    /// Takes one off; `None` if it is truncated, or not MessagePack.
    fn read(rest: &mut &'a [u8]) -> Option<Self> {
        let first = *take(rest, 1)?.first()?;
        // Forms with a larger number follow those with a smaller one.
        let size = |smallest: u8| 1 << (first - smallest);
        Some(match first {
            0x00..=0x7f | 0xe0.. => Self::Integer((first as i8).into()),
            0x80..=0x8f => Self::Map((first & 0xf).into()),
            0x90..=0x9f => Self::List((first & 0xf).into()),
            0xa0..=0xbf => Self::Text(take(rest, (first & 0x1f).into())?),
            0xc0 | 0xc2 | 0xc3 => Self::Other,
            0xc1 => return None,
            0xc4..=0xc6 => Self::Bytes(sized(rest, size(0xc4))?),
            0xc7..=0xc9 => {
                let length = number(rest, size(0xc7))?;
                take(rest, usize::try_from(length).ok()?.checked_add(1)?)?;
                Self::Other
            }
            0xca | 0xcb => {
                take(rest, 4 * size(0xca))?;
                Self::Other
            }
            0xcc..=0xcf => Self::Integer(number(rest, size(0xcc))?.into()),
            0xd0..=0xd3 => {
                let unused = 64 - 8 * size(0xd0);
                let number = (number(rest, size(0xd0))? << unused) as i64 >> unused;
                Self::Integer(number.into())
            }
            0xd4..=0xd8 => {
                take(rest, 1 + size(0xd4))?;
                Self::Other
            }
            0xd9..=0xdb => Self::Text(sized(rest, size(0xd9))?),
            0xdc | 0xdd => Self::List(number(rest, 2 * size(0xdc))?),
            0xde | 0xdf => Self::Map(number(rest, 2 * size(0xde))?),
        })
    }

    fn integer<T: TryFrom<i128>>(self) -> Option<T> {
        match self {
            Self::Integer(number) => T::try_from(number).ok(),
            _ => None,
        }
    }

    /// How many values are inside it.
    fn inner(self) -> u64 {
        match self {
            Self::List(size) => size,
            Self::Map(size) => 2 * size,
            _ => 0,
        }
    }
}

impl Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "the integer {number}"),
            Self::Text(_) => f.write_str("a string"),
            Self::Bytes(bytes) => write!(f, "a byte string of length {}", bytes.len()),
            Self::List(size) => write!(f, "a list of length {size}"),
            Self::Map(size) => write!(f, "a map of length {size}"),
            Self::Other => f.write_str("a value of another type"),
        }
    }
}

/// Writes values one after another, each in its shortest form.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn map(&mut self, size: usize) -> &mut Self {
        self.head(size as u64, 0x80..0x90, &[(2, 0xde), (4, 0xdf)])
    }

    pub(crate) fn list(&mut self, size: usize) -> &mut Self {
        self.head(size as u64, 0x90..0xa0, &[(2, 0xdc), (4, 0xdd)])
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let wide = [(1, 0xd9), (2, 0xda), (4, 0xdb)];
        self.head(text.len() as u64, 0xa0..0xc0, &wide);
        self.value(text.as_bytes())
    }

    pub(crate) fn integer(&mut self, number: u64) -> &mut Self {
        let wide = [(1, 0xcc), (2, 0xcd), (4, 0xce), (8, 0xcf)];
        self.head(number, 0x00..0x80, &wide)
    }

    /// Writes an encoded value.
    pub(crate) fn value(&mut self, encoded: &[u8]) -> &mut Self {
        self.0.extend_from_slice(encoded);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let wide = [(1, 0xc4), (2, 0xc5), (4, 0xc6)];
        self.head(bytes.len() as u64, 0..0, &wide);
        self.value(bytes)
    }

    /// Writes a number, as one byte if `short` has one for it. Otherwise it follows the byte in `wide` for the
    /// fewest bytes that hold it.
    fn head(&mut self, number: u64, short: Range<u8>, wide: &[(usize, u8)]) -> &mut Self {
        if number < short.len() as u64 {
            self.0.push(short.start + number as u8);
            return self;
        }
        let bytes = number.to_be_bytes();
        let needed = bytes.len() - number.leading_zeros() as usize / 8;
        if let Some((size, first)) = wide.iter().find(|(size, _)| *size >= needed) {
            self.0.push(*first);
            self.0.extend_from_slice(&bytes[bytes.len() - size..]);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_skipped_to_its_last_byte() {
        let values: [&[u8]; 14] = [
            b"\xc0",
            b"\x7f",
            b"\xe0",
            b"\xcd\x01\x02",
            b"\xcb12345678",
            b"\xa3abc",
            b"\xda\x00\x01a",
            b"\xc5\x00\x01\xff",
            b"\xd4\x01a",
            b"\xd8\x010123456789abcdef",
            b"\xc7\x02\x01ab",
            b"\x92\x91\xc0\x90",
            b"\xdd\x00\x00\x00\x01\xc3",
            b"\x81\xa1a\x82\x01\xde\x00\x00\x02\xc2",
        ];
        for value in values {
            let bytes = [value, b"\x01"].concat();
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.skip().unwrap(), value);
            assert_eq!(reader.integer::<u8>().unwrap(), 1);
            let truncated = Reader::new(&value[..value.len() - 1]).skip();
            assert!(truncated.is_err(), "{value:02x?}");
        }
        assert!(Reader::new(b"\xc1").skip().is_err());
        let error = Reader::new(b"\xa1\xff").text().unwrap_err();
        assert_eq!(error.to_string(), "at offset 0x0: a string is not UTF-8");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_offset() {
        let read = |bytes: &[u8]| {
            let mut number = None;
            let mut reader = Reader::new(bytes);
            let read = reader
                .map(|key, value| value.field(&mut number, key, Reader::integer))
                .and_then(|()| reader.required::<u32>(number, "a"));
            read.map_err(|error| error.to_string())
        };
        assert_eq!(read(b"\x81\xa1a\xcd\x01\x00"), Ok(256));
        for (bytes, error) in [
            (&b"\x91\x01"[..], "at offset 0x0: expected a map, found a list of length 1"),
            (
                b"\x81\xa1a\xff",
                "at offset 0x3: expected an integer of its range, found the integer -1",
            ),
            (b"\x81\xa1a\xcd\x01", "at offset 0x3: truncated, or not MessagePack"),
            (b"\x82\xa1a\x01\xa1a\x01", "at offset 0x7: the key `a` appears twice"),
            (b"\x80", "at offset 0x1: the key `a` is missing"),
        ] {
            assert_eq!(read(bytes).unwrap_err(), error);
        }
    }

    #[test]
    fn a_digest_may_be_a_list_of_numbers() {
        let digest = |bytes: &[u8]| Reader::new(bytes).digest::<2>().ok();
        assert_eq!(digest(b"\xc4\x02\x01\xff"), Some([1, 255]));
        assert_eq!(digest(b"\x92\x01\xcc\xff"), Some([1, 255]));
        assert_eq!(digest(b"\x92\x01\xcd\x01\x00"), None);
        assert_eq!(digest(b"\x93\x01\x01\x01"), None);
    }

    /// Of each form there is a smallest and a largest one.
    #[test]
    fn each_form_is_that_of_another_implementation() {
        let check = |own: &Writer, other: Vec<u8>| {
            assert_eq!(own.0, other);
            assert_eq!(Reader::new(&own.0).skip().unwrap(), other);
        };
        for bits in [0, 7, 8, 16, 32, 63] {
            for number in [(1_u64 << bits) - 1, 1 << bits, u64::MAX] {
                let other = rmp_serde::to_vec(&number).unwrap();
                check(Writer::default().integer(number), other);
                let negative = !(number as i64 & i64::MAX);
                let bytes = rmp_serde::to_vec(&negative).unwrap();
                assert_eq!(Reader::new(&bytes).integer::<i64>().unwrap(), negative);
            }
        }
        for size in [0, 15, 16, 31, 32, 255, 256, 65535, 65536] {
            let text = "x".repeat(size);
            let other = rmp_serde::to_vec(&text).unwrap();
            check(Writer::default().text(&text), other);
            let [mut list, mut map, mut bytes] = [(); 3].map(|()| Writer::default());
            list.list(size);
            map.map(size);
            for number in 0..size as u64 {
                list.integer(number);
                map.integer(number).value(b"\xc0");
            }
            check(&list, rmp_serde::to_vec(&Vec::from_iter(0..size)).unwrap());
            let entries: BTreeMap<usize, ()> = (0..size).map(|key| (key, ())).collect();
            check(&map, rmp_serde::to_vec(&entries).unwrap());
            bytes.bytes(text.as_bytes());
            let expected = size + [2, 3, 5][usize::from(size > 255) + usize::from(size > 65535)];
            assert_eq!(bytes.0.len(), expected);
            assert_eq!(Reader::new(&bytes.0).skip().unwrap(), bytes.0);
        }
    }
}
