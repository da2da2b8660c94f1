//! The C headers are what cbindgen makes of the C interface.
//!
//! `KPACK_WRITE_HEADERS=1 cargo test -p kpack-runtime --test headers` writes them anew.

use std::fs;
use std::path::Path;

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use kpack_format::archive::MAGIC;

const LICENSE: &str = "/* SPDX-License-Identifier: MIT OR Apache-2.0 */";

const TYPES: &str = "
/* Types of librocm_kpack: see kpack.h. Made by cbindgen from kpack-runtime; not to be edited. */";

/// cbindgen knows no strings.
const ARCHIVE: &str = r#"
/**
 * The first bytes of an archive, and their number.
 */
#define KPACK_MAGIC "MAGIC"
#define KPACK_MAGIC_SIZE SIZE"#;

const FUNCTIONS: &str = r#"
/* librocm_kpack: finds the device code of split HIP binaries.
 *
 * Made by cbindgen from kpack-runtime; not to be edited.
 *
 * For all functions: pointers are null or valid; where null is not allowed it is an error,
 * KPACK_ERROR_INVALID_ARGUMENT. Strings end with NUL. Any number of threads may use one archive or
 * cache at the same time; the one that closes it must be the last. Outputs are written only where
 * KPACK_SUCCESS is returned. No file, however damaged, makes a function crash.
 */"#;

#[test]
fn types() {
    let magic = std::str::from_utf8(&MAGIC).unwrap();
    let archive = ARCHIVE.replace("\"MAGIC\"", &format!("{magic:?}"));
    let mut types = Config {
        after_includes: Some(archive.replace(" SIZE", &format!(" {}", MAGIC.len()))),
        header: Some(format!("{LICENSE}{TYPES}")),
        include_guard: Some("ROCM_KPACK_KPACK_TYPES_H".to_owned()),
        sys_includes: vec!["stdbool.h".to_owned(), "stddef.h".to_owned()],
        ..config()
    };
    let names = [
        "kpack_error_t",
        "kpack_compression_scheme_t",
        "KPACK_CURRENT_VERSION",
        "kpack_archive_t",
        "kpack_cache_t",
        "kpack_arch_callback_t",
    ];
    // No function here uses them.
    types.export.include = names.map(str::to_owned).to_vec();
    check("types.rs", types, "kpack_types.h");
}

#[test]
fn functions() {
    let mut functions = Config {
        header: Some(format!("{LICENSE}{FUNCTIONS}")),
        include_guard: Some("ROCM_KPACK_KPACK_H".to_owned()),
        includes: ["kpack_export.h", "kpack_types.h"]
            .map(str::to_owned)
            .to_vec(),
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        ..config()
    };
    functions.function.prefix = Some("KPACK_API".to_owned());
    functions.export.item_types = vec![cbindgen::ItemType::Functions];
    check("functions.rs", functions, "kpack.h");
}

fn config() -> Config {
    Config {
        language: Language::C,
        cpp_compat: true,
        no_includes: true,
        usize_is_size_t: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::Doxy,
        line_length: 100,
        ..Config::default()
    }
}

fn check(source: &str, config: Config, header: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let builder = Builder::new()
        .with_src(root.join("src/ffi").join(source))
        .with_config(config);
    let mut expected = Vec::new();
    builder.generate().unwrap().write(&mut expected);
    let expected = String::from_utf8(expected).unwrap();
    let path = root.join("include/rocm_kpack").join(header);
    if std::env::var_os("KPACK_WRITE_HEADERS").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} is not what the C interface is; KPACK_WRITE_HEADERS=1 cargo test -p kpack-runtime --test headers writes it anew",
        path.display()
    );
}
