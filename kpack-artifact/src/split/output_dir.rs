//! Checks the output directory: it must not be in the input or replace it, however the paths are
//! spelled.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use crate::names;
use kpack_core::Error;
use kpack_core::platform::id_of;
use kpack_core::publish::{hidden, resolve};

/// Refuses an output directory that would put output into one of `inputs`, or replace what holds
/// one: artifact directories with their prefixes.
pub(super) fn check_output<'a>(
    output_dir: &Path,
    inputs: impl IntoIterator<Item = (&'a Path, &'a str)> + Clone,
) -> Result<(), Error> {
    let output = resolve(output_dir)?;
    for (input, _) in inputs.clone() {
        let own = id(input).map_err(|e| Error::io(input, "open", e))?;
        if output.ancestors().any(|above| is(above, own)) {
            return Err(Error::usage(format!(
                "output directory {} is in the artifact directory {}, which is only read",
                output_dir.display(),
                input.display()
            )));
        }
        let Some(name) = name_in(&output, input)? else {
            continue;
        };
        if inputs.clone().into_iter().any(|(_, prefix)| is_written(&name, prefix)) {
            return Err(Error::usage(format!(
                "the artifact directory {} is where its own output would be, at {}; name another \
                 output directory",
                input.display(),
                output_dir.join(name).display()
            )));
        }
    }
    Ok(())
}

/// Which directory `path` leads to.
pub(super) fn id(path: &Path) -> io::Result<(u64, u64)> {
    id_of(path, &path.metadata()?)
}

/// Whether `path` is this directory. One may have several paths: where it is mounted twice.
pub(super) fn is(path: &Path, directory: (u64, u64)) -> bool {
    id(path).is_ok_and(|own| own == directory)
}

/// The name of what holds `input` in the directory `output`, if that does.
fn name_in(output: &Path, input: &Path) -> Result<Option<OsString>, Error> {
    let Ok(output) = id(output) else {
        return Ok(None);
    };
    let input = input.canonicalize().map_err(|e| Error::io(input, "open", e))?;
    let holds = |path: &&Path| path.parent().is_some_and(|parent| is(parent, output));
    let name = input.ancestors().find(holds).and_then(Path::file_name);
    Ok(name.map(ToOwned::to_owned))
}

/// Whether splitting an artifact replaces or removes entries with this name.
fn is_written(name: &OsString, prefix: &str) -> bool {
    *name == hidden(prefix)
        || names::parse(&name.to_string_lossy()).is_some_and(|(component, _)| component == prefix)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Checks an output directory against the artifact directory `in/blas_lib`, in a tree that also
    /// has a link to it, and one in the place of the output.
    fn check(output: &str) -> Result<(), String> {
        let tree = tempfile::tempdir().unwrap();
        let at = |path: &str| tree.path().join(path);
        fs::create_dir_all(at("in/blas_lib/stage/lib")).unwrap();
        fs::create_dir_all(at("out/blas_lib_generic/deep/blas_lib")).unwrap();
        symlink("in/blas_lib/stage", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let input = match output {
            "out" => at("out/blas_lib_generic/deep/blas_lib"),
            _ => at("in/blas_lib"),
        };
        let checked = check_output(&at(output), [(input.as_path(), "blas_lib")]);
        checked.map_err(|error| match error {
            Error::Usage(text) => text.replace(tree.path().to_str().unwrap(), "TREE"),
            error => panic!("{error:?}"),
        })
    }

    #[test]
    fn output_does_not_go_into_the_input_in_any_spelling() {
        for output in [
            "in/blas_lib",
            "in/blas_lib/",
            "in/blas_lib/stage/new/deep",
            "in/../in/./blas_lib/x",
            "link",
            "link/lib/x",
            "link/..",
        ] {
            let text = check(output).unwrap_err();
            assert!(text.contains("is in the artifact directory"), "{text}");
        }
        for output in ["in", "in/out", "elsewhere", "link/../../other"] {
            assert_eq!(check(output), Ok(()), "{output}");
        }
    }

    #[test]
    fn output_does_not_replace_what_holds_the_input() {
        let text = check("out").unwrap_err();
        assert!(
            text.ends_with("at TREE/out/blas_lib_generic; name another output directory"),
            "{text}"
        );
    }

    #[test]
    fn a_way_through_what_is_not_there_is_refused() {
        let text = check("missing/../in/blas_lib").unwrap_err();
        assert!(text.contains("`..` follows"), "{text}");
        let text = check("dangling/x").unwrap_err();
        assert!(text.contains("is a dangling symbolic link"), "{text}");
    }
}
