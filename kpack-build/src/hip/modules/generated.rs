//! Writes `modules.rs`, a call of a macro of the crate `kpack`. The macro has a version, so that an older `kpack` gives
//! an error that names it.

use std::fmt::Write;
use std::path::Path;

use kpack_core::{Error, ids};

use super::contents::{Contents, WITHOUT_CODE};
use super::names::ModuleName;

/// The macro, and the version of what it is called with.
const MACRO: &str = "kpack::modules_v1!";

/// Where the compiled crate finds the bundles.
#[derive(Debug, Clone, Copy)]
pub(super) enum BundleLocation<'a> {
    /// In `OUT_DIR`, which the compiler knows.
    InOutDir,
    /// In another directory.
    At(&'a Path),
}

/// The modules `name` with their device code.
pub(super) fn compiled(
    name: &str,
    contents: &[Contents],
    location: BundleLocation<'_>,
) -> Result<String, Error> {
    let mut text = String::new();
    for module in contents {
        if !module.has_code() {
            text.push_str(&without_code(&module.name, WITHOUT_CODE));
            continue;
        }
        let file = module.file_name();
        let bundle = match location {
            BundleLocation::InOutDir => {
                format!("concat!(env!(\"OUT_DIR\"), \"/kpack/{name}/{file}\")")
            }
            BundleLocation::At(directory) => {
                let path = directory.join(&file);
                let Some(path) = path.to_str() else {
                    let reason = "the name is not UTF-8, as paths in Rust must be; rename it";
                    return Err(Error::rejected(ids::UNREPRESENTABLE_PATH, &path, reason));
                };
                format!("\"{}\"", path.escape_default())
            }
        };
        let targets: Vec<String> = module.targets().map(|target| format!("\"{target}\"")).collect();
        let kernels = Vec::from_iter(module.kernels());
        let literals: Vec<String> =
            kernels.iter().map(|kernel| format!("c\"{}\"", kernel.escape_default())).collect();
        let _ = write!(
            text,
            "    {} {{\n        name: \"{}\",\n        size: {},\n        bundle: include_bytes!({bundle}),\n        \
             targets: [{}],\n        kernels: [{}],\n        list: \"{}\",\n    }}\n",
            module.name.identifier(),
            module.name.as_str(),
            module.bundle_size(),
            targets.join(", "),
            literals.join(", "),
            kernels.join(", ").escape_default(),
        );
    }
    Ok(call(name, &text))
}

/// The modules `name` without device code.
pub(super) fn skipped(name: &str, modules: &[ModuleName], reason: &str) -> String {
    let modules: String = modules.iter().map(|module| without_code(module, reason)).collect();
    call(name, &modules)
}

fn without_code(module: &ModuleName, reason: &str) -> String {
    format!(
        "    {} {{ skipped: \"{}\", name: \"{}\" }}\n",
        module.identifier(),
        reason.escape_default(),
        module.as_str()
    )
}

fn call(name: &str, modules: &str) -> String {
    // The compiler prints the first line if there is no such macro.
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{MACRO} {{ // written by kpack-build {version}; if kpack has no such macro, use the same \
         version of both\n    {name};\n{modules}}}\n"
    )
}
