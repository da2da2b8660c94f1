//! Asks the dynamic linker of this machine which libraries a file would be loaded with.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf;

use crate::Error;
use crate::elf::{Dynamic, Image, Machine};
use crate::input::elf_error;

/// The answer of the dynamic linker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loading {
    /// The libraries, in the order of the search for symbols.
    Listed(Vec<Library>),
    /// It cannot load the file, for this reason.
    Fails(String),
    /// It was not asked, for this reason.
    NotAsked(String),
}

/// A library that a file would be loaded with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Library {
    /// The name that it was asked for.
    pub(super) name: OsString,
    /// Where it is; `None` if it was not found.
    pub(super) path: Option<PathBuf>,
}

impl Library {
    /// One that is asked for by its path.
    pub(super) fn at(path: &Path) -> Self {
        Self {
            name: path.into(),
            path: Some(path.to_owned()),
        }
    }
}

/// Only its dynamic linker has this among its names. Others may run a program instead of listing its
/// libraries.
const GLIBC: &[u8] = b"GLIBC_PRIVATE";
/// What users choose libraries with.
const CHOOSES: [&str; 2] = ["LD_LIBRARY_PATH", "LD_PRELOAD"];

/// Asks for the libraries of the file at `path`. Its code does not run, nor does that of the
/// libraries: they are only mapped. Files for which the dynamic linker would run code are not asked
/// about.
///
/// # Errors
/// [`Error::Refused`] if the dynamic section is damaged, [`Error::Io`] if the dynamic linker cannot be
/// run.
pub(super) fn ask(path: &Path, image: &Image<File>) -> Result<Loading, Error> {
    let (linker, known) = match image.machine {
        Machine::X86_64 => ("/lib64/ld-linux-x86-64.so.2", "x86_64"),
        Machine::AArch64 => ("/lib/ld-linux-aarch64.so.1", "aarch64"),
    };
    let not_asked = |why: String| Ok(Loading::NotAsked(why));
    if known != std::env::consts::ARCH {
        return not_asked(format!(
            "it is for another machine ({known}; this one is {})",
            std::env::consts::ARCH
        ));
    }
    let failed = |error| elf_error(path, error);
    let dynamic = Dynamic::read(image).map_err(failed)?;
    if dynamic.entries.is_empty() {
        return not_asked("it is linked statically".to_owned());
    }
    let audits = [elf::DT_AUDIT, elf::DT_DEPAUDIT];
    if audits.iter().any(|tag| dynamic.get(*tag).is_some()) {
        return not_asked(
            "it names an audit library, which the dynamic linker would run".to_owned(),
        );
    }
    let interpreter = interpreter(image).map_err(failed)?;
    if let Some(own) = &interpreter
        && own.canonicalize().ok() != Path::new(linker).canonicalize().ok()
    {
        return not_asked(format!(
            "its dynamic linker is {}, not that of this machine",
            own.display()
        ));
    }
    // A program is loaded from its real directory; a library from the one where it was found.
    let real = match interpreter {
        Some(_) => path.canonicalize(),
        None => std::path::absolute(path),
    };
    let real = real.map_err(|e| Error::io(path, "find", e))?;
    run(Path::new(linker), &real)
}

fn run(linker: &Path, path: &Path) -> Result<Loading, Error> {
    match fs::read(linker) {
        Ok(bytes) if bytes.windows(GLIBC.len()).any(|name| name == GLIBC) => {}
        Ok(_) => {
            let why = format!("{} is not that of the GNU C library", linker.display());
            return Ok(Loading::NotAsked(why));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let why = format!("this machine has no {}", linker.display());
            return Ok(Loading::NotAsked(why));
        }
        Err(error) => return Err(Error::io(linker, "read", error)),
    }
    let mode = path.metadata().map_err(|e| Error::io(path, "read", e))?;
    let mut command = Command::new(linker);
    // Other variables make it run code, or print more.
    command.env_clear().arg(path);
    // As ldd does: `--list` ends at the first library that is not found.
    command.env("LD_TRACE_LOADED_OBJECTS", "1");
    // With raised privileges, it ignores what users choose.
    if mode.permissions().mode() & 0o6000 == 0 {
        let chosen = CHOOSES.map(|name| std::env::var_os(name).map(|value| (name, value)));
        command.envs(chosen.into_iter().flatten());
    }
    let output = command.output();
    let output = output.map_err(|e| Error::io(linker, "run", e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().find(|line| !line.is_empty());
        return Ok(Loading::Fails(match said {
            Some(line) => line.to_owned(),
            None => format!("{} ended with {}", linker.display(), output.status),
        }));
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    Ok(Loading::Listed(lines.filter_map(library).collect()))
}

/// Parses `NAME => PATH (ADDRESS)`, `NAME => not found`, or `PATH (ADDRESS)`.
fn library(line: &[u8]) -> Option<Library> {
    let line = line.strip_prefix(b"\t")?;
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).rposition(|part| part == what);
    let without_address =
        |text: &'_ [u8]| text[..find(text, b" (0x").unwrap_or(text.len())].to_vec();
    let Some(arrow) = find(line, b" => ") else {
        let path = PathBuf::from(OsString::from_vec(without_address(line)));
        return path.has_root().then(|| Library::at(&path));
    };
    let place = &line[arrow + b" => ".len()..];
    Some(Library {
        name: OsStr::from_bytes(&line[..arrow]).to_owned(),
        path: (place != b"not found").then(|| OsString::from_vec(without_address(place)).into()),
    })
}

/// The dynamic linker that a program names.
fn interpreter(image: &Image<File>) -> Result<Option<PathBuf>, crate::elf::ElfError> {
    let mut segments = image.segments.iter();
    let Some(segment) = segments.find(|segment| segment.kind == elf::PT_INTERP) else {
        return Ok(None);
    };
    let mut name = image.bytes(
        segment.offset,
        segment.filesz,
        "the name of its dynamic linker",
    )?;
    name.truncate(
        name.iter()
            .position(|byte| *byte == 0)
            .unwrap_or(name.len()),
    );
    Ok(Some(OsString::from_vec(name).into()))
}
