//! Reads and writes MessagePack, value by value.
//!
//! Uses only `rmp`: serde and `rmp-serde` would cost every build script three more crates and a
//! third more compile time (`cargo xtask bench build-dep`).

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use rmp::{Marker, decode, encode};

/// Why bytes cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub struct MessagePackError {
    /// Offset in bytes.
    pub offset: usize,
    /// What was expected and what was found.
    pub reason: String,
}

impl Display for MessagePackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, reason } = self;
        write!(f, "at offset {offset:#x}: {reason}")
    }
}

impl std::error::Error for MessagePackError {}

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
        Self {
            size: bytes.len(),
            rest: bytes,
        }
    }

    /// The offset of the next value, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.size - self.rest.len()
    }

    pub(crate) fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(MessagePackError {
            offset: self.offset(),
            reason: reason.into(),
        })
    }

    /// The kind of the next value.
    pub(crate) fn kind(&self) -> Kind {
        match self.marker() {
            Some(Marker::FixMap(_) | Marker::Map16 | Marker::Map32) => Kind::Map,
            Some(Marker::FixArray(_) | Marker::Array16 | Marker::Array32) => Kind::List,
            Some(Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32) => Kind::Text,
            _ => Kind::Other,
        }
    }

    fn marker(&self) -> Option<Marker> {
        self.rest.first().copied().map(Marker::from_u8)
    }

    /// Fails if anything follows the last value; `what` names the values in the message.
    pub(crate) fn expect_end(&self, what: &str) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            more => self.fail(format!("{more} bytes follow the {what}")),
        }
    }

    /// Reads the next value with `read`, a function of `rmp`.
    fn value<T>(
        &mut self,
        what: impl Display,
        read: impl FnOnce(&mut &'a [u8]) -> Option<T>,
    ) -> Result<T> {
        let mut rest = self.rest;
        if let Some(value) = read(&mut rest) {
            self.rest = rest;
            return Ok(value);
        }
        self.clone().skip()?;
        match self.marker() {
            Some(found) => self.fail(format!("expected {what}, found type {found:?}")),
            None => self.fail(format!("expected {what}")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        self.value("a string", |rest| {
            let (text, after) = decode::read_str_from_slice(*rest).ok()?;
            *rest = after;
            Some(text)
        })
    }

    pub(crate) fn string(&mut self) -> Result<String> {
        self.text().map(str::to_owned)
    }

    pub(crate) fn integer<T: TryFrom<i128>>(&mut self) -> Result<T> {
        self.value("an integer of its range", |rest| {
            let number = decode::read_int::<i128, _>(rest).ok()?;
            T::try_from(number).ok()
        })
    }

    /// A byte string of `SIZE` bytes.
    pub(crate) fn digest<const SIZE: usize>(&mut self) -> Result<[u8; SIZE]> {
        self.value(format_args!("a digest of {SIZE} bytes"), |rest| {
            let mut digest = [0; SIZE];
            let mut bytes = *rest;
            match decode::read_bin_len(&mut bytes) {
                Ok(length) if length as usize == SIZE => {
                    digest.copy_from_slice(take(&mut bytes, SIZE)?);
                    *rest = bytes;
                }
                Ok(_) => return None,
                // Some writers have no byte strings.
                Err(_) => {
                    let length = decode::read_array_len(rest).ok()?;
                    (length as usize == SIZE).then_some(())?;
                    for byte in &mut digest {
                        *byte = decode::read_int(rest).ok()?;
                    }
                }
            }
            Some(digest)
        })
    }

    /// Reads the number of elements of a list. An element can be one byte in the file and many in
    /// memory, so the file's size alone must not determine how much is allocated.
    fn list_size(&mut self, most: usize) -> Result<usize> {
        self.value(format_args!("a list of at most {most} elements"), |rest| {
            let size = decode::read_array_len(rest).ok()? as usize;
            (size <= most).then_some(size)
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
        let size = self.value("a map", |rest| decode::read_map_len(rest).ok())?;
        match size as usize {
            size if size <= most => Ok(size),
            size => self.fail(format!(
                "a map of {size} entries (expected at most {most} entries)"
            )),
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
            let Some(inner) = skip_one(&mut rest) else {
                return self.fail("truncated, or not MessagePack");
            };
            values = values - 1 + inner;
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

/// Skips a value without the values inside it, and returns how many these are.
fn skip_one(rest: &mut &[u8]) -> Option<u64> {
    let marker = decode::read_marker(rest).ok()?;
    let mut length = |size: usize| {
        let bytes = take(rest, size)?.iter();
        Some(bytes.fold(0, |length, byte| length << 8 | u64::from(*byte)))
    };
    let (bytes, values) = match marker {
        Marker::Null | Marker::True | Marker::False => (0, 0),
        Marker::FixPos(_) | Marker::FixNeg(_) => (0, 0),
        Marker::U8 | Marker::I8 => (1, 0),
        Marker::U16 | Marker::I16 | Marker::FixExt1 => (2, 0),
        Marker::FixExt2 => (3, 0),
        Marker::U32 | Marker::I32 | Marker::F32 => (4, 0),
        Marker::FixExt4 => (5, 0),
        Marker::U64 | Marker::I64 | Marker::F64 => (8, 0),
        Marker::FixExt8 => (9, 0),
        Marker::FixExt16 => (17, 0),
        Marker::FixStr(size) => (u64::from(size), 0),
        Marker::Str8 | Marker::Bin8 => (length(1)?, 0),
        Marker::Str16 | Marker::Bin16 => (length(2)?, 0),
        Marker::Str32 | Marker::Bin32 => (length(4)?, 0),
        Marker::Ext8 => (length(1)? + 1, 0),
        Marker::Ext16 => (length(2)? + 1, 0),
        Marker::Ext32 => (length(4)? + 1, 0),
        Marker::FixArray(size) => (0, u64::from(size)),
        Marker::Array16 => (0, length(2)?),
        Marker::Array32 => (0, length(4)?),
        Marker::FixMap(size) => (0, 2 * u64::from(size)),
        Marker::Map16 => (0, 2 * length(2)?),
        Marker::Map32 => (0, 2 * length(4)?),
        Marker::Reserved => return None,
    };
    take(rest, usize::try_from(bytes).ok()?)?;
    Some(values)
}

/// Writes values one after another, each in its shortest form.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

// Writing to memory cannot fail.
impl Writer {
    pub(crate) fn map(&mut self, size: usize) -> &mut Self {
        let _ = encode::write_map_len(&mut self.0, size as u32);
        self
    }

    pub(crate) fn list(&mut self, size: usize) -> &mut Self {
        let _ = encode::write_array_len(&mut self.0, size as u32);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let _ = encode::write_str(&mut self.0, text);
        self
    }

    pub(crate) fn integer(&mut self, number: u64) -> &mut Self {
        let _ = encode::write_uint(&mut self.0, number);
        self
    }

    /// Writes an encoded value.
    pub(crate) fn value(&mut self, encoded: &[u8]) -> &mut Self {
        self.0.extend_from_slice(encoded);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        let _ = encode::write_bin(&mut self.0, bytes);
        self
    }

    /// Writes bytes of zero, always as `bin 16`: what comes before them has the same size for any number.
    pub(crate) fn zeroes(&mut self, count: u16) -> &mut Self {
        self.0.push(0xc5);
        self.0.extend(count.to_be_bytes());
        self.0.resize(self.0.len() + usize::from(count), 0);
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
    }

    #[test]
    fn a_wrong_value_is_named_with_its_offset() {
        let read = |bytes: &[u8]| {
            let mut number = None;
            let mut reader = Reader::new(bytes);
            let read = reader.map(|key, value| value.field(&mut number, key, Reader::integer));
            let read = read.and_then(|()| reader.required::<u32>(number, "a"));
            read.map_err(|error| error.to_string())
        };
        assert_eq!(read(b"\x81\xa1a\xcd\x01\x00"), Ok(256));
        for (bytes, error) in [
            (
                &b"\x91\x01"[..],
                "at offset 0x0: expected a map, found type FixArray(1)",
            ),
            (
                b"\x81\xa1a\xff",
                "at offset 0x3: expected an integer of its range, found type FixNeg(-1)",
            ),
            (
                b"\x81\xa1a\xcd\x01",
                "at offset 0x3: truncated, or not MessagePack",
            ),
            (
                b"\x82\xa1a\x01\xa1a\x01",
                "at offset 0x7: the key `a` appears twice",
            ),
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
}
