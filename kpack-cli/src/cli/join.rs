//! `kpack join`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use kpack_doctor::internal::no_gpu;
use kpack_format::TargetId;
use kpack_format::target_id::ParseTargetIdError;
use kpack_format::unstable::spelling;

use super::all_or::AllOr;
use super::output::{self, Text};
use super::print::print;
use super::progress::{Bar, DEVICE_CODE};
use super::split::{default_places, report_done};
use super::targets;
use kpack_core::gpus::{KFD_NODES, agents};
use kpack_core::platform::canonicalize;
use kpack_core::{Error, shown};
use kpack_split::install::Report;
use kpack_split::join::{self, JoinOptions};

/// Put chosen targets' device code back into split binaries, for HIP runtimes that do not read markers
///
/// Takes the code for the chosen targets from the archives that each binary's marker refers to and puts
/// it where it was before the split. The result runs with every HIP runtime, and needs no archives. kpack
/// checks every archive before it changes the first binary. `kpack split` splits a joined binary again.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Join all split binaries of a prefix for this machine's GPUs:
    kpack join --prefix /opt/rocm --arch native
  In a package's trigger, join what is installed:
    kpack join --prefix /usr --arch native --installed
  Undo the split of a library:
    kpack join --arch all stage/lib/libvec.so
  Join one, and compare it with the unsplit original:
    kpack join --prefix stage --arch gfx1030 --against build/libvec.so lib/libvec.so

", exit_codes!("an input was rejected (damaged or unsupported), or an archive is missing")))]
pub(super) struct Arguments {
    /// GPU target to put back, `native` for every GPU of this machine, or `all` for every target that the binary was split
    /// for. Can be repeated; commas separate targets as well. A target without features, such as gfx90a, stands for all of its
    /// variants
    #[arg(long, value_name = "TARGET", value_parser = read_arch, value_delimiter = ',', required = true)]
    arch: Vec<AllOr<Architecture>>,
    /// Install prefix: the directory that the binaries are in. Default: as for `kpack split`, what the paths of FILE say
    #[arg(long, value_name = "DIR", required_unless_present = "files")]
    prefix: Option<PathBuf>,
    #[command(flatten)]
    pub(super) options: JoinOptions,
}

fn read_arch(name: &str) -> Result<AllOr<Architecture>, ParseTargetIdError> {
    AllOr::read(name, str::parse)
}

/// A value of `--arch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Architecture {
    Native,
    Target(TargetId),
}

impl FromStr for Architecture {
    type Err = ParseTargetIdError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "native" {
            Ok(Self::Native)
        } else {
            spelling::read_target(name).map(Self::Target)
        }
    }
}

impl Architecture {
    pub(super) fn named(&self) -> Option<&TargetId> {
        match self {
            Self::Native => None,
            Self::Target(target) => Some(target),
        }
    }

    pub(super) fn targets(&self, may_be_none: bool) -> Result<Vec<TargetId>, Error> {
        if let Self::Target(target) = self {
            return Ok(vec![target.clone()]);
        }
        // What is hidden from a process today may be seen by one tomorrow.
        let gpus = agents().unwrap_or_default();
        if gpus.is_empty() && !may_be_none {
            return Err(no_gpu(KFD_NODES.as_ref()));
        }
        Ok(gpus)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    let mut options = arguments.options.clone();
    options.prefix = match &arguments.prefix {
        Some(prefix) => prefix.clone(),
        None => {
            // The last name stays as it is: what a link leads to may be shared, so it is not joined.
            let place = |file: &PathBuf| {
                let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
                let directory = directory.unwrap_or(Path::new("."));
                let directory = canonicalize(directory);
                let name = file.file_name().unwrap_or_default();
                directory.map(|path| path.join(name)).map_err(|e| Error::io(file, "open", e))
            };
            let places = options.files.iter().map(place).collect::<Result<Vec<_>, _>>()?;
            let (prefix, inside) = default_places(&options.files, &places)?;
            if !print().quiet {
                let prefix = shown(&prefix);
                output::complain("note", format_args!("using --prefix {prefix} by default"));
            }
            options.files = inside;
            prefix
        }
    };
    options.all_architectures = arguments.arch.contains(&AllOr::All);
    let architectures = || AllOr::each(&arguments.arch);
    targets::warn_of_unknown(architectures().filter_map(Architecture::named));
    for architecture in architectures() {
        let may_be_none = options.installed && !options.need_result();
        options.architectures.extend(architecture.targets(may_be_none)?);
    }
    if options.architectures.is_empty() && options.installed && !options.all_architectures {
        if print().json || print().quiet {
            return report_done(&Report::default());
        }
        let mut text = Text::default();
        text.line("this machine has no GPU; nothing is joined");
        text.write()?;
        return Ok(ExitCode::SUCCESS);
    }
    options.architectures.sort();
    options.architectures.dedup();
    let bar = Bar::new(DEVICE_CODE);
    let report = join::join(&options, &bar)?;
    bar.finish();
    report_done(&report)
}
