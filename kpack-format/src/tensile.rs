//! `.dat`: what a library file of Tensile says of targets and of code objects.
//!
//! rocBLAS, hipBLASLt and hipSPARSELt find their kernels through such files: MessagePack, a map,
//! with a solution library in it that has the processors of its predicates as values (`gfx942`) or
//! as keys, and the code objects of its kernels, by file name. The rest, which is most of it, is of no
//! interest here and skipped.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Cursor;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::TargetId;

/// Decision trees nest.
const MAX_DEPTH: usize = 512;

/// What a library file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Library {
    /// The targets that it names.
    pub targets: BTreeSet<TargetId>,
    /// The code object files that it names, as it names them: with extension or, where a lazily
    /// loaded library does so, without.
    pub code_objects: BTreeSet<String>,
}

/// Why bytes are no library file.
#[derive(Debug)]
pub struct LibraryError(String);

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a MessagePack library file: {}", self.0)
    }
}

impl std::error::Error for LibraryError {}

impl Library {
    /// Whether a file that begins with `first` may be one: a MessagePack map.
    pub fn begins_with(first: u8) -> bool {
        matches!(first, 0x80..=0x8f | 0xde | 0xdf)
    }

    /// Reads a file that fills `bytes`.
    ///
    /// # Errors
    /// Bytes that are not one MessagePack map.
    pub fn read(bytes: &[u8]) -> Result<Self, LibraryError> {
        if !bytes.first().is_some_and(|first| Self::begins_with(*first)) {
            return Err(LibraryError("it does not start with a map".to_owned()));
        }
        let mut library = Self::default();
        let mut deserializer = rmp_serde::Deserializer::new(Cursor::new(bytes));
        deserializer.set_max_depth(MAX_DEPTH);
        let scan = Scan {
            library: &mut library,
            names_code_object: false,
        };
        let read = scan.deserialize(&mut deserializer);
        let end = deserializer.position();
        read.map_err(|error| LibraryError(format!("at offset {end:#x}: {error}")))?;
        if end != bytes.len() as u64 {
            let more = bytes.len() as u64 - end;
            return Err(LibraryError(format!(
                "{more} bytes follow the map, which ends at {end:#x}"
            )));
        }
        Ok(library)
    }
}

/// Walks a value. Gives whether it is a key whose value names a code object.
struct Scan<'a> {
    library: &'a mut Library,
    names_code_object: bool,
}

impl Scan<'_> {
    fn text(&mut self, text: &str) -> bool {
        if text.starts_with("gfx") && text[3..].starts_with(|c: char| c.is_ascii_digit()) {
            // Tensile's gfx000 is any processor.
            if let Ok(target) = text.parse()
                && text != "gfx000"
                && !text.contains('_')
            {
                self.library.targets.insert(target);
            }
        }
        let is_file = text.ends_with(".co") || text.ends_with(".hsaco");
        if (is_file || self.names_code_object) && !text.is_empty() {
            self.library.code_objects.insert(text.to_owned());
        }
        matches!(text, "codeObjectFile" | "codeObjectFilename")
    }
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MessagePack")
    }

    fn visit_str<E: de::Error>(mut self, text: &str) -> Result<bool, E> {
        Ok(self.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let Scan {
            library,
            names_code_object,
        } = self;
        while items
            .next_element_seed(Scan {
                library,
                names_code_object,
            })?
            .is_some()
        {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<bool, A::Error> {
        let library = self.library;
        while let Some(names_code_object) = entries.next_key_seed(Scan {
            library,
            names_code_object: false,
        })? {
            entries.next_value_seed(Scan {
                library,
                names_code_object,
            })?;
        }
        Ok(false)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_bytes<E: de::Error>(self, _: &[u8]) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E: de::Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_none<E: de::Error>(self) -> Result<bool, E> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn library() -> Vec<u8> {
        rmp_serde::to_vec(&json!({
            "solutions": [{
                "index": 0,
                "name": "Cijk_Ailk_Bljk_SB_MT64x64",
                "codeObjectFile": "TensileLibrary_Type_SS_gfx942",
                "hardwarePredicate": {"type": "AMDGPU", "value": {"type": "Processor", "value": "gfx942"}},
                "ideals": [1.5, -3, null, true],
            }],
            "extop": {"gfx942": [{"co_path": "extop_gfx942.co"}], "gfx000": []},
        }))
        .unwrap()
    }

    #[test]
    fn targets_and_code_objects_are_found() {
        let library = Library::read(&library()).unwrap();
        let targets: Vec<String> = library.targets.iter().map(ToString::to_string).collect();
        assert_eq!(targets, ["gfx942"]);
        let code_objects: Vec<&String> = library.code_objects.iter().collect();
        assert_eq!(
            code_objects,
            ["TensileLibrary_Type_SS_gfx942", "extop_gfx942.co"]
        );
    }

    #[test]
    fn no_truncation_is_read_as_a_library() {
        let whole = library();
        for end in 0..whole.len() {
            assert!(Library::read(&whole[..end]).is_err(), "{end}");
        }
        let mut more = whole.clone();
        more.push(0);
        let error = Library::read(&more).unwrap_err().to_string();
        assert!(error.contains("1 bytes follow the map"), "{error}");
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let mut bytes = vec![0x81, 0xa1, b'k'];
        bytes.extend(vec![0x91; 100_000]);
        bytes.push(0xc0);
        let error = Library::read(&bytes).unwrap_err().to_string();
        assert!(error.contains("depth"), "{error}");
    }
}
