//! Compiler launcher: splits objects as part of compiling.
//!
//! It runs the compiler, then splits the object it wrote, in place. The archives go into a
//! directory next to the object, `<object>.kpack`, and the object's marker refers to them by an
//! absolute path. So a linked binary runs from the build tree; installing it moves the code objects
//! to their final place.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use kpack_format::names::{self, Group};

use super::arguments::Compilation;
use super::{Options, examine, split};
use kpack_core::files::{self, FileKind, binary_error};
use kpack_core::platform::readable;
use kpack_core::publish::{Directory, NewNames, Stage};
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
        return remove_archives(&Directory::of(&archives)?, &archives);
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
            Some(Outcome::Split { .. }) => replace(object, &archives, &stage),
            // The compiler wrote nothing; this is the object of an earlier run.
            Some(Outcome::AlreadySplit) => Ok(()),
            _ => remove_archives(stage.above(), &archives),
        }
    })
}

/// Gives archives, manifest and host object, in this order, their final names. Each is exchanged with what was there, so
/// that programs that were linked with that can still load it.
fn replace(object: &Path, archives: &Path, stage: &Stage) -> Result<(), Error> {
    let directory = Path::new(archives.file_name().unwrap_or_default()).join(KPACK_DIR);
    let new = stage.directory().below(Path::new(KPACK_DIR))?;
    let mut names = new.names()?;
    // A manifest lists archives that are there.
    names.sort_by_key(|name| names::is_manifest(name.as_ref()));
    let there = stage.above().below(&directory).and_then(|there| there.names());
    let stale = there.unwrap_or_default().into_iter().filter(|name| !names.contains(name));
    let stale = Vec::from_iter(stale.map(|name| directory.join(name)));
    let above = stage.make(archives.file_name().unwrap_or_default())?;
    let moved = stage.directory().rename_into(KPACK_DIR.as_ref(), &above, KPACK_DIR.as_ref());
    moved.map_err(|e| Error::io(archives, "write", e))?;
    let mut paths = Vec::from_iter(names.iter().map(|name| directory.join(name)));
    paths.push(object.file_name().unwrap_or_default().into());
    stage.publish(&NewNames::new(&paths).instead_of(&stale))
}

/// Removes an object's archives and manifests. A link in the place of one of their directories is not kpack's, and stays
/// with all that it leads to.
fn remove_archives(above: &Directory, archives: &Path) -> Result<(), Error> {
    let name = archives.file_name().unwrap_or_default();
    let Ok(own) = above.below(Path::new(name)) else {
        return Ok(());
    };
    if let Ok(directory) = own.below(Path::new(KPACK_DIR)) {
        for name in directory.names()? {
            directory.remove(&name)?;
        }
    }
    // Removes them only if empty.
    own.remove_empty(KPACK_DIR.as_ref());
    above.remove_empty(name);
    Ok(())
}
