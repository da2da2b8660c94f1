//! Splitting as a part of compiling: a compiler launcher.
//!
//! It runs the compiler, and splits the object that this has written, in its place. The archives go
//! into a directory beside the object, `<object>.kpack`, to which its marker leads by an absolute
//! path: a linked binary runs where it is built, and installing it puts the code objects where they
//! belong.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use kpack_format::marker::GFXARCH;

use super::{Options, split};
use crate::Error;
use crate::kpack_dir::group_name;
use crate::report::Outcome;

/// Runs a compiler, and splits what it makes. `options` have the module and how code objects are
/// stored; their output directory and files are not looked at.
///
/// # Errors
/// [`Error::Compiler`] for one that cannot be run, and as [`split`]; the object is removed then, so
/// that the build does not go on with it. A compiler that fails is none: its status is returned.
pub fn launch(options: &Options, command: &[OsString]) -> Result<ExitStatus, Error> {
    let Some((compiler, arguments)) = command.split_first() else {
        return Err(Error::usage("no compiler is named"));
    };
    let object = object_of(arguments);
    let directory = object.as_deref().map(archives_of);
    if let Some(directory) = &directory {
        remove(directory)?;
    }
    let status = Command::new(compiler).args(arguments).status();
    let status = status
        .map_err(|e| Error::Compiler(format!("`{}` cannot be run: {e}", compiler.display())))?;
    if let (true, Some(object), Some(directory)) = (status.success(), &object, &directory) {
        let done = in_place(options, object, directory);
        if done.is_err() {
            let _ = fs::remove_file(object);
            let _ = remove(directory);
        }
        done?;
    }
    Ok(status)
}

/// The object that a compiler with these arguments writes; `None` where it does something else, such
/// as preprocessing or linking.
fn object_of(arguments: &[OsString]) -> Option<PathBuf> {
    let compiles = |argument: &OsString| argument == "-c" || argument == "--compile";
    if !arguments.iter().any(compiles) {
        return None;
    }
    let at = arguments
        .iter()
        .rposition(|argument| argument.as_encoded_bytes().starts_with(b"-o"))?;
    match arguments[at].as_encoded_bytes() {
        b"-o" => arguments.get(at + 1).map(PathBuf::from),
        _ => arguments[at]
            .to_str()?
            .strip_prefix("-o")
            .map(PathBuf::from),
    }
}

/// The directory of an object's archives.
fn archives_of(object: &Path) -> PathBuf {
    let mut name = object.file_name().unwrap_or(OsStr::new("")).to_owned();
    name.push(".kpack");
    object.with_file_name(name)
}

fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(directory, "remove", error))
        }
        _ => Ok(()),
    }
}

fn in_place(options: &Options, object: &Path, directory: &Path) -> Result<(), Error> {
    // Nothing was written where only the syntax was checked.
    if !object.is_file() {
        return Ok(());
    }
    let absolute = std::path::absolute(directory).map_err(|e| Error::io(directory, "find", e))?;
    let Some(place) = absolute.to_str() else {
        return Err(Error::refused(
            directory,
            "its name is no UTF-8, which a marker has to be",
        ));
    };
    let group = group_name(&options.module, &options.component);
    let mut own = options.clone();
    own.output_dir = directory.to_owned();
    own.files = vec![object.to_owned()];
    own.search_paths = vec![format!("{place}/.kpack/{group}_{GFXARCH}.kpack")];
    let report = split(&own, &())?;
    let was_split = |outcome: &Outcome| matches!(outcome, Outcome::Split { .. });
    if !report.files.iter().any(|file| was_split(&file.outcome)) {
        return remove(directory);
    }
    let host = directory.join(object.file_name().unwrap_or_default());
    fs::rename(&host, object).map_err(|e| Error::io(object, "replace", e))
}
