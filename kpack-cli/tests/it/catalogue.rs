//! Each entry of the catalogue is asserted by a test.

use std::fs;
use std::path::Path;

use kpack_core::ids;
use kpack_tests::page::repository;

#[test]
fn each_id_is_asserted_by_a_test() {
    let tests = test_sources(repository());
    let is_asserted = |id: &str| {
        let constant = id.to_uppercase().replace('-', "_");
        let forms = [format!("\"{id}\""), format!("[{id}]"), format!("ids::{constant}")];
        let has_form = |text: &String| forms.iter().any(|form| text.contains(form));
        tests.iter().any(has_form)
    };
    let ids = ids::ALL.iter().map(|id| id.as_str());
    let missing = ids.filter(|id| !is_asserted(id));
    let missing: Vec<&str> = missing.collect();
    assert!(missing.is_empty(), "no test asserts {missing:?}");
}

/// The texts of all files below `tests` directories, and of test modules in other sources.
fn test_sources(root: &Path) -> Vec<String> {
    let is_source = |entry: &walkdir::DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() == 0 || !(name.starts_with('.') || name == "target" || name == "fuzz")
    };
    let mut texts = Vec::new();
    for entry in walkdir::WalkDir::new(root).into_iter().filter_entry(is_source) {
        let path = entry.unwrap().into_path();
        let kind = path.extension().unwrap_or_default();
        if path.ends_with("tests/it/catalogue.rs") || !(kind == "rs" || kind == "snap") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let within = path.strip_prefix(root).unwrap();
        if within.components().any(|part| part.as_os_str() == "tests") {
            texts.push(text);
        } else if let Some((_, tests)) = text.split_once("\nmod tests {") {
            texts.push(tests.to_owned());
        }
    }
    texts
}
