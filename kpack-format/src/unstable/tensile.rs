//! Reads which targets and code objects a library file of Tensile (`.dat`) names.
//!
//! rocBLAS, hipBLASLt and hipSPARSELt find their kernels through such files: a MessagePack map with
//! a solution library in it. The library names processors (`gfx942`) as values or keys of its
//! predicates, and code objects by file name. Everything else is skipped.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::TargetId;
use crate::wire::{self, Input, MessagePackError};

/// Maximum nesting depth; decision trees are nested.
const MAX_DEPTH: usize = 512;

/// The content of a library file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Library {
    /// The targets that it names.
    pub targets: BTreeSet<TargetId>,
    /// The code object files that it names, spelled as in the file: lazily loaded libraries omit
    /// the extension. Sorted, each once; most name one, which takes far less memory than in a set.
    pub code_objects: Vec<String>,
    /// Whether [`keep_own`](Self::keep_own) removed the file's own name from `code_objects`.
    pub names_own: bool,
    /// The library files that it loads when they are needed, without their extension.
    pub placeholders: BTreeSet<String>,
    /// Whether it has solutions in assembly, whose kernels are in a `.co`.
    pub has_assembly: bool,
    /// Whether it has solutions in source, whose kernels are in a `.hsaco`.
    pub has_source: bool,
}

/// Why bytes are not a library file.
#[derive(Debug)]
pub struct LibraryError(MessagePackError);

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a MessagePack library file: {}", self.0)
    }
}

impl std::error::Error for LibraryError {}

impl Library {
    /// Reads a file that fills `bytes`.
    ///
    /// # Errors
    /// Bytes that are not one MessagePack map.
    pub fn read(bytes: &[u8]) -> Result<Self, LibraryError> {
        let mut scan = Scan::default();
        scan.file(bytes).map_err(LibraryError)?;
        let mut code_objects = Vec::from_iter(scan.code_objects);
        // It begins with space for four.
        code_objects.shrink_to_fit();
        Ok(Self { code_objects, ..scan.library })
    }

    /// Removes the file's own name, `stem`, from `code_objects`, and remembers it as `names_own`. Most library files name
    /// only the code object that is called like them, so this saves memory where there are many.
    pub fn keep_own(&mut self, stem: &str) {
        let names = self.code_objects.len();
        self.code_objects.retain(|name| name != stem);
        self.names_own |= self.code_objects.len() < names;
        self.code_objects.shrink_to_fit();
    }
}

/// What a file says, while it is read.
#[derive(Default)]
struct Scan {
    library: Library,
    /// Most files repeat few names.
    code_objects: BTreeSet<String>,
}

impl Scan {
    fn file(&mut self, bytes: &[u8]) -> Result<(), MessagePackError> {
        let input = Input::new(bytes);
        if !bytes.first().is_some_and(|first| wire::begins_map(*first)) {
            let reason = "it does not start with a map".into();
            return Err(MessagePackError { offset: 0, reason });
        }
        let walk = Walk { scan: self, input: &input, names_code_object: false };
        input.read_nested(walk, MAX_DEPTH)?;
        input.expect_end("map")
    }

    fn text(&mut self, text: &str, names_code_object: bool) {
        if text.starts_with("gfx") && text[3..].starts_with(|c: char| c.is_ascii_digit()) {
            // Tensile's gfx000 stands for any processor.
            if text != "gfx000" && !text.contains('_') {
                self.library.targets.extend(text.parse().ok());
            }
        }
        let is_file = text.ends_with(".co") || text.ends_with(".hsaco");
        if (is_file || names_code_object) && !text.is_empty() {
            self.code_objects.insert(text.to_owned());
        }
    }
}

/// Walks a value, which names a code object if its key says so.
struct Walk<'s, 'i, 'a> {
    scan: &'s mut Scan,
    input: &'i Input<'a>,
    names_code_object: bool,
}

/// A value, as far as it matters to the map that it is in.
enum Value {
    /// Where it is in the file.
    Text(Range<usize>),
    Bool(bool),
    Other,
}

impl<'a> Walk<'_, '_, 'a> {
    /// For a value inside this one.
    fn inner(&mut self, names_code_object: bool) -> Walk<'_, '_, 'a> {
        Walk { scan: self.scan, input: self.input, names_code_object }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Value, A::Error> {
        let (mut is_placeholder, mut named) = (false, None);
        while let Some(key) = map.next_key_seed(self.inner(false))? {
            let key = match key {
                Value::Text(place) => &self.input.bytes()[place],
                _ => b"",
            };
            let is_code = matches!(key, b"codeObjectFile" | b"codeObjectFilename");
            let value = map.next_value_seed(self.inner(is_code))?;
            match (key, value) {
                (b"sourceKernel", Value::Bool(true)) => self.scan.library.has_source = true,
                (b"sourceKernel", Value::Bool(false)) => self.scan.library.has_assembly = true,
                (b"type", Value::Text(place)) => {
                    is_placeholder = &self.input.bytes()[place] == b"Placeholder";
                }
                (b"value", Value::Text(place)) => named = Some(place),
                _ => {}
            }
        }
        let named = named.filter(|_| is_placeholder);
        let named = named.and_then(|place| str::from_utf8(&self.input.bytes()[place]).ok());
        self.scan.library.placeholders.extend(named.map(str::to_owned));
        Ok(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let is_code = self.names_code_object;
        while list.next_element_seed(self.inner(is_code))?.is_some() {}
        Ok(Value::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        self.scan.text(text, self.names_code_object);
        let end = self.input.offset();
        Ok(Value::Text(end - text.len()..end))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Value, E> {
        Ok(Value::Other)
    }

    /// An extension.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Value, D::Error> {
        IgnoredAny.visit_newtype_struct(value).map(|_| Value::Other)
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
        assert_eq!(code_objects, ["TensileLibrary_Type_SS_gfx942", "extop_gfx942.co"]);
    }

    #[test]
    fn the_own_name_is_kept_once() {
        let mut library =
            Library { code_objects: vec!["a".into(), "b".into()], ..Library::default() };
        for stem in ["c", "b", "b"] {
            library.keep_own(stem);
            assert_eq!(library.names_own, stem == "b");
        }
        assert_eq!(library.code_objects, ["a"]);
    }

    #[test]
    fn code_objects_are_sorted_and_named_once() {
        let files = json!({"codeObjectFile": ["b", "a", "b", "b"]});
        let library = Library::read(&rmp_serde::to_vec(&files).unwrap()).unwrap();
        assert_eq!(library.code_objects, ["a", "b"]);
    }

    /// A library that only says which others to load, and one that they are.
    #[test]
    fn placeholders_and_kinds_of_kernels_are_found() {
        let placeholder = |name: &str| json!({"type": "Placeholder", "value": name});
        let lazy = json!({"solutions": [], "library": {"type": "Hardware", "rows": [
            {"predicate": {"type": "Processor", "value": "gfx90a"}, "library": placeholder("A_gfx90a")},
            {"predicate": {"type": "TruePred"}, "library": placeholder("A_fallback")},
        ]}});
        let lazy = Library::read(&rmp_serde::to_vec(&lazy).unwrap()).unwrap();
        assert!(lazy.placeholders.iter().eq(["A_fallback", "A_gfx90a"]));
        assert!(lazy.targets.iter().map(ToString::to_string).eq(["gfx90a"]));
        assert!(!lazy.has_assembly && !lazy.has_source);
        for (source, expected) in [(false, (true, false)), (true, (false, true))] {
            let one = json!({"solutions": [{"sizeMapping": {"sourceKernel": source}}]});
            let one = Library::read(&rmp_serde::to_vec(&one).unwrap()).unwrap();
            assert_eq!((one.has_assembly, one.has_source), expected);
        }
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
