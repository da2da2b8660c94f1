//! Reads MessagePack of other formats, value by value.

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
}
