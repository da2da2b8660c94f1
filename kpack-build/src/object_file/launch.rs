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

use kpack_format::names::Group;

use super::arguments::Compilation;
use super::{Options, examine, split};
use crate::Error;
use crate::input::{self, FileKind, elf_error};
use crate::report::Outcome;
use crate::store::remove_directory;

/// Runs a compiler, and splits the objects that it makes. `options` have the module and how code
/// objects are stored; their output directory and files are not looked at. What else a compiler
/// writes, such as precompiled headers, stays as it is.
///
/// # Errors
/// [`Error::Compiler`] for one that cannot be run, and as [`split`]; the object is removed then, so
/// that the build does not go on with it. A compiler that fails is none: its status is returned, and
/// the archives of what it made before stay.
pub fn launch(options: &Options, command: &[OsString]) -> Result<ExitStatus, Error> {
    launch_watched(options, command, &|_| {})
}

/// As [`launch`]; `watch` is told the compiler's process ID, and `None` when it has ended, so that
/// signals can be passed on to it.
///
/// # Errors
/// As [`launch`].
pub fn launch_watched(
    options: &Options,
    command: &[OsString],
    watch: &dyn Fn(Option<u32>),
) -> Result<ExitStatus, Error> {
    let Some((compiler, arguments)) = command.split_first() else {
        return Err(Error::usage("no compiler given"));
    };
    // Before it runs, which may remove response files.
    let compilation = Compilation::of(arguments);
    let status = Command::new(compiler).args(arguments).spawn();
    let status = status.and_then(|mut compiler| {
        watch(Some(compiler.id()));
        let status = compiler.wait();
        watch(None);
        status
    });
    let status = status
        .map_err(|e| Error::Compiler(format!("`{}` cannot be run: {e}", compiler.display())))?;
    if status.success() {
        for output in &compilation.outputs {
            // Compilers write through symbolic links.
            let Ok(object) = fs::canonicalize(output) else {
                continue; // Nothing was written, as where only the syntax was checked.
            };
            let done = in_place(options, &object, compilation.bitcode);
            if done.is_err() {
                let _ = fs::remove_file(&object);
            }
            done?;
        }
    }
    Ok(status)
}

/// The directory of an object's archives, and a hidden one in which they are made.
fn directories(object: &Path) -> (PathBuf, PathBuf) {
    let name = object.file_name().unwrap_or(OsStr::new(""));
    let [mut shown, mut hidden] = ["", "."].map(OsString::from);
    shown.push(name);
    shown.push(".kpack");
    hidden.push(name);
    hidden.push(".kpack.tmp");
    (object.with_file_name(shown), object.with_file_name(hidden))
}

/// Whether there is an object to be split in what the compiler wrote.
fn is_object(path: &Path, bitcode: bool) -> Result<bool, Error> {
    if !path.is_file() {
        return Ok(false);
    }
    let file = input::open(path)?;
    Ok(match input::identify(path, &file)? {
        Some(FileKind::Object) => true,
        // Of -flto. Where it has device code, that is said.
        None => {
            let start = examine::start(&file).map_err(|e| elf_error(path, e))?;
            !bitcode && examine::is_bitcode(&start)
        }
        Some(_) => false,
    })
}

/// Splits `object` in its place. Archives and host object are made in a directory of their own, and
/// replace what is there when they are whole.
fn in_place(options: &Options, object: &Path, bitcode: bool) -> Result<(), Error> {
    let (archives, hidden) = directories(object);
    if !is_object(object, bitcode)? {
        return remove_archives(&archives, &[]);
    }
    let Some(place) = archives.to_str() else {
        return Err(Error::refused(
            &archives,
            "its name is not UTF-8, as markers must be; rename it",
        ));
    };
    let group = Group::new(&options.module, &options.component);
    let mut own = options.clone();
    own.output_dir.clone_from(&hidden);
    own.files = vec![object.to_owned()];
    own.search_paths = vec![format!("{place}/.kpack/{}", group.archive_pattern())];
    // What a run that was killed left behind.
    remove_directory(&hidden)?;
    let done = split(&own, &()).and_then(|report| {
        let outcome = report.files.first().map(|file| &file.outcome);
        match outcome {
            Some(Outcome::Split { .. }) => replace(object, &archives, &hidden),
            // The compiler wrote nothing, and what an earlier one wrote is there.
            Some(Outcome::AlreadySplit) => Ok(()),
            _ => remove_archives(&archives, &[]),
        }
    });
    let removed = remove_directory(&hidden);
    done.and(removed)
}

/// Puts archives and host object from `hidden` into their places.
fn replace(object: &Path, archives: &Path, hidden: &Path) -> Result<(), Error> {
    let directory = archives.join(".kpack");
    fs::create_dir_all(&directory).map_err(|e| Error::io(&directory, "create directory", e))?;
    let mut new = Vec::new();
    let made = hidden.join(".kpack");
    for entry in fs::read_dir(&made).map_err(|e| Error::io(&made, "list", e))? {
        let entry = entry.map_err(|e| Error::io(&made, "list", e))?;
        let path = directory.join(entry.file_name());
        fs::rename(entry.path(), &path).map_err(|e| Error::io(&path, "replace", e))?;
        new.push(entry.file_name());
    }
    let host = hidden.join(object.file_name().unwrap_or_default());
    fs::rename(&host, object).map_err(|e| Error::io(object, "replace", e))?;
    remove_archives(archives, &new)
}

/// Removes archives and manifests of an object, but for those that `keep` names.
fn remove_archives(archives: &Path, keep: &[OsString]) -> Result<(), Error> {
    let directory = archives.join(".kpack");
    let Ok(entries) = fs::read_dir(&directory) else {
        return Ok(()); // There are none.
    };
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(&directory, "list", e))?;
        if !keep.contains(&entry.file_name()) {
            let path = entry.path();
            fs::remove_file(&path).map_err(|e| Error::io(&path, "remove", e))?;
        }
    }
    // Only where they are empty.
    let _ = fs::remove_dir(&directory);
    let _ = fs::remove_dir(archives);
    Ok(())
}
