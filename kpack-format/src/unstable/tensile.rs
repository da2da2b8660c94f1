//! Reads which targets and code objects a library file of Tensile (`.dat`) names.
//!
//! rocBLAS, hipBLASLt and hipSPARSELt find their kernels through such files: a MessagePack map with
//! a solution library in it. The library names processors (`gfx942`) as values or keys of its
//! predicates, and code objects by file name. Everything else is skipped.

use std::collections::BTreeSet;
use std::fmt;

use crate::TargetId;
use crate::message_pack::{Kind, MessagePackError, Reader};

/// Maximum nesting depth; decision trees are nested.
const MAX_DEPTH: usize = 512;

/// The bytes of truth values.
const TRUE: u8 = 0xc3;
const FALSE: u8 = 0xc2;

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
    /// Whether a file whose first byte is `first` may be one: a MessagePack map.
    pub fn begins_with(first: u8) -> bool {
        Reader::new(&[first]).kind() == Kind::Map
    }

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
        let mut reader = Reader::new(bytes);
        if reader.kind() != Kind::Map {
            return reader.fail("it does not start with a map");
        }
        self.value(&mut reader, false, MAX_DEPTH)?;
        reader.expect_end("map")
    }

    /// Walks a value, which names a code object if its key says so. Returns it if it is a text.
    fn value<'a>(
        &mut self,
        value: &mut Reader<'a>,
        names_code_object: bool,
        depth: usize,
    ) -> Result<Option<&'a str>, MessagePackError> {
        let Some(inner) = depth.checked_sub(1) else {
            return value.fail(format!("the depth limit of {MAX_DEPTH} is exceeded"));
        };
        match value.kind() {
            Kind::Map => {
                let (mut kind, mut named) = (None, None);
                for _ in 0..value.map_size(usize::MAX)? {
                    match self.value(value, false, inner)? {
                        Some("sourceKernel") => match value.skip()? {
                            [TRUE] => self.library.has_source = true,
                            [FALSE] => self.library.has_assembly = true,
                            _ => {}
                        },
                        Some("type") => kind = self.value(value, false, inner)?,
                        Some("value") => named = self.value(value, false, inner)?,
                        key => {
                            let key = key.unwrap_or_default();
                            let is_code = matches!(key, "codeObjectFile" | "codeObjectFilename");
                            self.value(value, is_code, inner)?;
                        }
                    }
                }
                if kind == Some("Placeholder") {
                    self.library.placeholders.extend(named.map(str::to_owned));
                }
            }
            Kind::List => {
                value.list(usize::MAX, |element| {
                    self.value(element, names_code_object, inner).map(drop)
                })?;
            }
            Kind::Text => match value.text() {
                Ok(text) => {
                    self.text(text, names_code_object);
                    return Ok(Some(text));
                }
                Err(_) => _ = value.skip()?,
            },
            Kind::Other => _ = value.skip()?,
        }
        Ok(None)
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
