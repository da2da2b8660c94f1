//! What is in fat and joined binaries, and in other files.

use std::path::Path;

use kpack_cli::inspect::inspect;
use serde_json::Value;

/// The JSON of `kpack show`, with this kind.
pub(crate) fn shown(path: &Path, kind: &str) -> Value {
    let shown = serde_json::to_value(inspect(path).unwrap()).unwrap();
    assert_eq!(shown["kind"], kind, "{}", path.display());
    shown
}

/// The JSON of a binary, which must be fat or joined.
pub(crate) fn fat(path: &Path) -> Value {
    let shown = serde_json::to_value(inspect(path).unwrap()).unwrap();
    let kind = shown["kind"].as_str().unwrap();
    assert!(["fat-binary", "joined-binary"].contains(&kind), "{}: {kind}", path.display());
    shown
}

/// The elements of a list in it.
pub(crate) fn elements<'a>(shown: &'a Value, list: &str) -> &'a [Value] {
    shown[list].as_array().unwrap()
}

/// A text in it.
pub(crate) fn text(shown: &Value, key: &str) -> String {
    shown[key].as_str().unwrap().to_owned()
}

/// The targets of a fat or joined binary.
pub(crate) fn targets_of(path: &Path) -> Vec<String> {
    elements(&fat(path), "targets").iter().map(|total| text(total, "target")).collect()
}

/// The offsets of its bundles, in order of its wrappers.
pub(crate) fn bundles(path: &Path) -> Vec<u64> {
    let offset = |wrapper: &Value| wrapper["bundle_offset"].as_u64().unwrap();
    elements(&fat(path), "wrappers").iter().map(offset).collect()
}
