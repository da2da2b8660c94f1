//! `kpack stage`.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::join::Architecture;
use super::output::{self, Text, size};
use super::print::print;
use super::split::report_done;
use super::storage::{SpirvTreatment, StripDebug};
use super::targets;
use crate::stage::{self, AppOptions, Application, HOST, Machine, Options, Part};
use kpack_core::{DebugInfo, Error};

/// Stage programs with GPU code in a directory that can be moved to another machine
///
/// With PROGRAM, copies programs and shared libraries in any language to bin/ and lib/, with all that they need on a machine that
/// has a GPU and no ROCm: the libraries that they load, their archives and kernel databases, the HIP runtime and its
/// loader. What systems provide stays out, such as libc and the driver's libraries. Where run paths do not lead from one
/// file to another in the output, kpack sets DT_RPATH, if the file has room for it, or says what to change. With --split, GPU
/// code and kernel databases go to one directory per GPU target, and all else to a directory named host; unpacked over each
/// other, they are the same application. In the end, kpack examines the output as `kpack doctor` does, with nothing but the
/// output and the system's libraries, and with --split once per GPU.
///
/// Without PROGRAM, stages Rust programs: reads Cargo's messages about a build. Copies its programs to bin/, its shared libraries to lib/ (DLLs to bin/),
/// and the device code of all its packages to lib/.kpack/, in one archive for each module and GPU target. Staged
/// programs find their device code by relative paths. kpack rejects files and code objects that contain a path of the
/// build: of a package, its workspace, Cargo's target directory, or a directory for headers. --spirv applies only to
/// Windows binaries; for others, the build script decides (Hip::spirv).
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Build and stage:
    cargo build --release --message-format=json-render-diagnostics |
        kpack stage --output-dir dist
  The same in two steps, so that the shell sees when the build fails:
    cargo build --release --message-format=json-render-diagnostics > build.json &&
        kpack stage --output-dir dist --messages build.json
  Stage a program in any language, with the code for two GPUs:
    kpack stage build/app --output-dir dist --arch gfx1100,gfx1201
  One directory for the host and one per target, to pack separately:
    kpack stage build/app --output-dir dist --split
  With a library that the program loads by name:
    kpack stage app --also plugins/libgpu.so --output-dir dist

", exit_codes!()))]
pub(super) struct Arguments {
    #[command(flatten)]
    app: AppOptions,
    /// GPU target whose code is staged, or `native` for every GPU of this machine. Can be repeated; commas separate targets
    /// as well. Default: all code
    #[arg(long, value_name = "TARGET", value_delimiter = ',', requires = "programs")]
    arch: Vec<Architecture>,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    spirv: SpirvTreatment,
    #[command(flatten)]
    strip: StripDebug,
    /// File with Cargo's messages. Default: standard input
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    output::note_ignored_variables();
    if !arguments.app.programs.is_empty() {
        return application(arguments);
    }
    let options = &Options {
        debug: arguments.strip.debug(),
        spirv: arguments.spirv.spirv(),
        ..arguments.options.clone()
    };
    // The compiler's diagnostics, which plain JSON keeps from the terminal.
    let mut say = |text: &str| {
        let _ = io::stderr().write_all(text.as_bytes());
    };
    let report = match &arguments.messages {
        Some(path) if path != Path::new("-") => {
            let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
            stage::stage(options, BufReader::new(file), &mut say)?
        }
        _ => stage::stage(options, io::stdin().lock(), &mut say)?,
    };
    report_done(&report)
}

/// Stages programs in any language.
fn application(arguments: &Arguments) -> Result<ExitCode, Error> {
    targets::warn_of_unknown(arguments.arch.iter().filter_map(Architecture::named));
    let mut app = arguments.app.clone();
    for architecture in &arguments.arch {
        app.gpus.extend(architecture.targets(false)?);
    }
    app.gpus.sort();
    app.gpus.dedup();
    let debug = arguments.strip.debug();
    if debug != DebugInfo::Keep && !app.split {
        let text = "with PROGRAM, `--strip-debug` requires `--split`, because device code stays as it is without";
        return Err(Error::usage(text));
    }
    let options = Options { debug, ..arguments.options.clone() };
    let staged = stage::stage_application(&options, &app)?;
    for finding in &staged.findings {
        output::complain_finding(finding);
    }
    if print().json {
        output::json(&staged)?;
    } else if !print().quiet {
        text(&staged).write()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(staged: &Application) -> Text {
    let name = |part: &Part| part.target.clone().unwrap_or_else(|| HOST.to_owned());
    let row = |part: &Part| vec![name(part), size(part.size)];
    let total: u64 = staged.parts.iter().map(|part| part.size).sum();
    let last = vec!["total".to_owned(), size(total)];
    let mut text = Text::default();
    text.table(0, &["part", ">size"], staged.parts.iter().map(row).chain([last]));
    for Machine { target, size: own, directories, .. } in &staged.machines {
        match &directories[..] {
            [] if *own == total => {}
            [] => text.line(format_args!("a machine with {target} uses {} of this", size(*own))),
            directories => text.line(format_args!(
                "a machine with {target} needs {} ({})",
                size(*own),
                directories.join(", ")
            )),
        }
    }
    if !staged.system_libraries.is_empty() {
        let libraries = staged.system_libraries.join(", ");
        text.line(format_args!("the system must provide {libraries}"));
    }
    text
}
