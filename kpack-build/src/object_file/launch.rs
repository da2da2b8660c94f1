//! Compiler launcher: splits objects as part of compiling.
//!
//! It runs the compiler, then splits the object it wrote, in place. The archives go into a
//! directory next to the object, `<object>.kpack`, and the object's marker refers to them by an
//! absolute path. So a linked binary runs from the build tree; installing it moves the code objects
//! to their final place.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use kpack_format::names::{self, Group};

use super::arguments::Compilation;
use super::{Options, examine, split};
use kpack_core::files::{self, FileKind, binary_error};
use kpack_core::platform::readable;
use kpack_core::publish::{CreatedDirectories, Directory, Stage};
use kpack_core::report::Outcome;
use kpack_core::{Error, ids};

/// The directory of archives in `<object>.kpack`.
const KPACK_DIR: &str = ".kpack";

/// Runs a compiler and splits the objects it makes, using the module and compression settings in
/// `options` (its output directory and files are ignored). Other output of the compiler, such as
/// precompiled headers, stays unchanged.
///
/// # Errors
/// [`Error::Compiler`] if the compiler cannot be run; otherwise as [`split`], with the object
/// removed so that the build stops. A failing compiler is not an error: its exit status is
/// returned, and the archives of its last successful run stay.
pub fn launch(options: &Options, command: &[OsString]) -> Result<ExitStatus, Error> {
    launch_watched(options, command, &|_| {})
}

/// As [`launch`], and calls `watch` with the compiler's process ID, then with `None` when it has
/// ended, so that the caller can forward signals to it.
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
    // Read them before the compiler runs: it may remove its response files.
    let compilation = Compilation::of(arguments);
    let status = Command::new(compiler).args(arguments).spawn();
    let status = status.and_then(|mut compiler| {
        watch(Some(compiler.id()));
        let status = compiler.wait();
        watch(None);
        status
    });
    let status = status.map_err(|e| {
        Error::Compiler(format!("cannot run `{}`: {e}", Path::new(compiler).display()))
    })?;
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

/// The directory of an object's archives.
fn archives_of(object: &Path) -> PathBuf {
    let mut archives = object.to_owned();
    archives.as_mut_os_string().push(".kpack");
    archives
}

/// Whether the compiler wrote an object to split.
fn is_object(path: &Path, bitcode: bool) -> Result<bool, Error> {
    if !path.is_file() {
        return Ok(false);
    }
    let file = files::open(path)?;
    Ok(match files::identify(path, &file)? {
        Some(FileKind::Object) => true,
        // Written by -flto. An error reports any device code in it.
        None => {
            let start = examine::start(&file).map_err(|e| binary_error(path, e))?;
            !bitcode && examine::is_bitcode(&start)
        }
        Some(_) => false,
    })
}

/// Splits `object` in place. Archives and host object are written to a hidden directory, which one run at a
/// time has, and replace the old ones when they are complete.
fn in_place(options: &Options, object: &Path, bitcode: bool) -> Result<(), Error> {
    let archives = archives_of(object);
    if !is_object(object, bitcode)? {
        return remove_archives(&archives, &BTreeSet::new());
    }
    let Some(place) = archives.to_str() else {
        return Err(Error::rejected(
            ids::UNREPRESENTABLE_PATH,
            &archives,
            "the name is not UTF-8, as markers must be; rename it",
        ));
    };
    let place = readable(place);
    let group = Group::new(&options.module, &options.component);
    let above = archives.parent().unwrap_or(Path::new(""));
    let stage = Stage::lock(above, archives.file_name().unwrap_or_default())?.without_flushes();
    let mut own = options.clone();
    own.flushes = false;
    own.output_dir = stage.directory().anchor();
    own.files = vec![object.to_owned()];
    own.search_paths = vec![format!("{place}/{KPACK_DIR}/{}", group.archive_pattern())];
    split(&own, &()).and_then(|report| {
        let outcome = report.files.first().map(|file| &file.outcome);
        match outcome {
            Some(Outcome::Split { .. }) => replace(object, &archives, stage.directory()),
            // The compiler wrote nothing; this is the object of an earlier run.
            Some(Outcome::AlreadySplit) => Ok(()),
            _ => remove_archives(&archives, &BTreeSet::new()),
        }
    })
}

/// Moves archives, manifest and host object, in this order, from `hidden` to their final places.
fn replace(object: &Path, archives: &Path, hidden: &Directory) -> Result<(), Error> {
    let failed = |path: &Path, e| Error::io(path, "replace", e);
    let mut made = CreatedDirectories::default();
    let inside = Path::new(archives.file_name().unwrap_or_default()).join(KPACK_DIR);
    let directory = Directory::of(archives)?.make_below(&inside, &mut made)?;
    made.keep();
    let from = hidden.below(Path::new(KPACK_DIR))?;
    let mut names = from.names()?;
    // A manifest lists archives that are there.
    names.sort_by_key(|name| names::is_manifest(name.as_ref()));
    let mut new = BTreeSet::new();
    for name in names {
        let path = directory.path().join(&name);
        from.rename_into(&name, &directory, &name).map_err(|e| failed(&path, e))?;
        new.insert(name);
    }
    let name = object.file_name().unwrap_or_default();
    let beside = Directory::of(object)?;
    hidden.rename_into(name, &beside, name).map_err(|e| failed(object, e))?;
    remove_archives(archives, &new)
}

/// Removes an object's archives and manifests, except those in `keep`. A link in the place of one of their directories
/// is not kpack's, and stays with all that it leads to.
fn remove_archives(archives: &Path, keep: &BTreeSet<OsString>) -> Result<(), Error> {
    let above = Directory::of(archives)?;
    let name = archives.file_name().unwrap_or_default();
    let Ok(own) = above.below(Path::new(name)) else {
        return Ok(());
    };
    if let Ok(directory) = own.below(Path::new(KPACK_DIR)) {
        for name in directory.names()?.iter().filter(|name| !keep.contains(*name)) {
            directory.remove(name)?;
        }
    }
    // Removes them only if empty.
    own.remove_empty(KPACK_DIR.as_ref());
    above.remove_empty(name);
    Ok(())
}
