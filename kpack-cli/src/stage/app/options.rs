//! What to stage of a program in any language.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use kpack_core::Error;
use kpack_format::TargetId;

use crate::stage::output_dir::is_own;

/// What to stage of programs in any language: the arguments of `kpack stage PROGRAM...`.
#[derive(Debug, Clone, Default, Args)]
#[non_exhaustive]
pub struct AppOptions {
    /// Programs and libraries to stage, each with what it needs
    #[arg(value_name = "PROGRAM", conflicts_with_all = ["messages", "embed", "spirv"])]
    pub programs: Vec<PathBuf>,
    /// Library that a program loads by name while it runs, such as a plugin. It goes to lib/, or to DIR in the output. Can
    /// be repeated
    #[arg(long, value_name = "[DIR=]LIB", requires = "programs")]
    pub also: Vec<Also>,
    /// Leave out libraries with this name, in which `*` stands for anything: the system must provide them. Can be
    /// repeated
    #[arg(long, value_name = "NAME", requires = "programs")]
    pub exclude: Vec<String>,
    /// Stage libraries with this name, even if systems usually provide them. Can be repeated
    #[arg(long, value_name = "NAME", requires = "programs")]
    pub include: Vec<String>,
    /// Leave ROCm's libraries out: the system must provide them
    #[arg(long, requires = "programs")]
    pub system_rocm: bool,
    /// Make one directory for the host and one per GPU target, to be packed separately. A machine needs those for the host and for
    /// its GPU, unpacked into one directory
    #[arg(long, requires = "programs")]
    pub split: bool,
    /// The GPUs whose code is staged; all code if empty.
    #[arg(skip)]
    pub gpus: Vec<TargetId>,
}

/// A library that is loaded by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Also {
    /// The library.
    pub library: PathBuf,
    /// The directory in the output, if given.
    pub directory: Option<PathBuf>,
}

impl FromStr for Also {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let whole = || Self { library: text.into(), directory: None };
        let Some((directory, library)) = text.split_once('=') else {
            return Ok(whole());
        };
        // A path may have such a character in it.
        if Path::new(text).exists() {
            return Ok(whole());
        }
        match kpack_split::input::plain(Path::new(directory)) {
            Some(directory) if is_own(Path::new(&directory)) => Err(Error::usage(format!(
                "`{text}`: kpack needs `{directory}` for its own files; choose another directory"
            ))),
            Some(directory) if !library.is_empty() => {
                Ok(Self { library: library.into(), directory: Some(directory.into()) })
            }
            _ => Err(Error::usage(format!(
                "`{text}`: expected LIB, or DIR=LIB with a relative directory of the output, such as bin=libplugin.so"
            ))),
        }
    }
}

impl Also {
    /// The name of the library in the output.
    pub(super) fn name(&self) -> OsString {
        self.library.file_name().unwrap_or_default().to_owned()
    }
}
