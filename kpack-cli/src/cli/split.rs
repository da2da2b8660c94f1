//! `kpack split`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::kernel_files::KernelFilesArguments;
use super::output::{self, Text, count, size};
use super::print::print;
use super::progress::{Bar, DEVICE_CODE};
use super::storage::{InstallHint, StorageArguments, Variants};
use crate::module_name::default_module;
use kpack_core::platform::canonicalize;
use kpack_core::publish::name_part;
use kpack_core::report::FileReport;
use kpack_core::words::list;
use kpack_core::{DebugInfo, Error, Finding, Spirv, ids, shown};
use kpack_format::archive::Scheme;
use kpack_format::{Delivery, TargetId};
use kpack_split::install::{self, InstallOptions, Outcome, Report};
use kpack_tree::check;

/// Split binaries: move device code into archives, and leave a marker
///
/// Replaces each FILE, an executable or shared object, with a host binary without device code. The device
/// code goes into PREFIX/KPACK_DIR/MODULE_COMPONENT_TARGET.kpack, one archive for each GPU target. Files
/// without device code and split files stay unchanged, so a second run changes nothing. Kernel files
/// (--kernel-files) must be for the GPU targets in their paths, and stay unchanged. kpack checks everything
/// before it changes the first file.
#[derive(Debug, Args)]
#[command(after_help = concat!("\
Examples:
  Split a library; its code for gfx1100 goes to stage/lib/.kpack/vec_lib_gfx1100.kpack:
    kpack split stage/lib/libvec.so
  Split two binaries of an install tree:
    kpack split --prefix /opt/rocm --module rocblas lib/librocblas.so.5.2 bin/rocblas-bench
  Split all binaries of an install tree:
    kpack split --prefix /opt/rocm --module rocm --all
  Fail if there is code for any target but these two:
    kpack split --prefix stage --module vec \\
        --arch gfx1100 --arch gfx942 --unexpected error lib/libvec.so
  Write host part and one target's part, for separate packages:
    kpack split --prefix host --module vec --only host lib/libvec.so
    kpack split --prefix gfx1100 --module vec --only device --arch gfx1100 \\
        --source build/libvec.so lib/libvec.so

", exit_codes!()))]
pub(super) struct Arguments {
    /// Install prefix: the directory that the binaries are in. Default: if FILE is in a directory bin, lib, lib64, lib32,
    /// libx32 or libexec, or in a directory directly below one, the directory above it; otherwise, the directory of FILE
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// Module that the binaries belong to, the first part of the archives' names. Default: the name of FILE, such as vec
    /// for libvec.so.1, vec.dll and the program vec
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    #[command(flatten)]
    pub(super) options: InstallOptions,
    #[command(flatten)]
    kernel_files: KernelFilesArguments,
    #[command(flatten)]
    hint: InstallHint,
    #[command(flatten)]
    storage: StorageArguments,
    #[command(flatten)]
    variants: Variants,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let mut options = arguments.options.clone();
    if let Some(directory) = options.files.iter().find(|file| file.is_dir()) {
        let text = "a directory (expected a binary)";
        return Err(Error::rejected(ids::NOT_A_FILE, directory, text));
    }
    let defaults = set_place(arguments, &mut options)?;
    options.install_hint.clone_from(&arguments.hint.install_hint);
    options.storage = arguments.storage.storage_for(&options.architectures);
    options.storage.complete_variants = arguments.variants.complete_variants;
    let kernel_files = check::kernel_files(&options.prefix, &arguments.kernel_files.rules()?)?;
    let bar = Bar::new(DEVICE_CODE);
    let mut report = install::install(&options, &bar)?;
    bar.finish();
    if !defaults.is_empty() && !print().quiet {
        output::complain("note", format_args!("using{defaults} by default"));
    }
    report.findings.extend(kernel_files);
    complete_what_was_replaced(&mut report, &options);
    let code = report_done(&report)?;
    if !print().quiet && !print().json {
        let text = if options.dry_run {
            would_write(&report, &options)
        } else {
            way_back(&report, &options)
        };
        text.write()?;
    }
    if io::stdout().is_terminal() && !print().quiet && !print().json {
        in_a_sentence(&report, &kpack_core::gpus::agents().unwrap_or_default()).write()?;
    }
    Ok(code)
}

/// The default module of a directory: its name.
pub(super) fn module_of(directory: &Path) -> String {
    let real = canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    name_part(&real.file_name().unwrap_or_default().to_string_lossy())
}

/// Sets the prefix and the module. Those that are not given are what the paths of the files say; returns their options.
fn set_place(arguments: &Arguments, options: &mut InstallOptions) -> Result<String, Error> {
    let files = &arguments.options.files;
    let mut defaults = String::new();
    options.prefix = match &arguments.prefix {
        Some(prefix) => prefix.clone(),
        None if options.all => return Err(Error::usage("--all requires --prefix and --module")),
        None => {
            // Only a complete path has all directories, and what a link leads to is what changes.
            let real = files
                .iter()
                .map(|file| canonicalize(file).map_err(|error| Error::io(file, "open", error)))
                .collect::<Result<Vec<_>, _>>()?;
            let (prefix, inside) = default_places(files, &real)?;
            options.files = inside;
            defaults += &format!(" --prefix {}", shown(&prefix));
            prefix
        }
    };
    options.module = match &arguments.module {
        Some(module) => module.clone(),
        None if options.all => return Err(Error::usage("--all requires --prefix and --module")),
        None => {
            // A file that is not there yet, or no longer, still has a name.
            let real = |file: &PathBuf| {
                let found =
                    canonicalize(&options.prefix.join(file)).or_else(|_| canonicalize(file));
                default_module(found.as_ref().unwrap_or(file))
            };
            let module = common("--module", files, options.files.iter().map(real))?;
            defaults += &format!(" --module {module}");
            module
        }
    };
    Ok(defaults)
}

/// The default prefix of files, whose absolute paths are also given, and their paths in it.
///
/// # Errors
/// [`Error::Usage`] if they have several.
pub(super) fn default_places(
    files: &[PathBuf],
    places: &[PathBuf],
) -> Result<(PathBuf, Vec<PathBuf>), Error> {
    let prefix = common("--prefix", files, places.iter().map(|file| default_prefix(file)))?;
    let inside = |file: &PathBuf| file.strip_prefix(prefix).unwrap_or(file).to_owned();
    Ok((prefix.to_owned(), places.iter().map(inside).collect()))
}

/// The default of an option, which must be the same for all files: they are split together or not at all.
fn common<T: AsRef<Path>>(
    option: &str,
    files: &[PathBuf],
    defaults: impl Iterator<Item = T>,
) -> Result<T, Error> {
    let mut defaults = files.iter().zip(defaults);
    let (file, default) =
        defaults.next().ok_or_else(|| Error::usage(format!("{option} is missing")))?;
    match defaults.find(|(_, other)| other.as_ref() != default.as_ref()) {
        None => Ok(default),
        Some((other_file, other)) => Err(Error::usage(format!(
            "the default {option} of {} is {}, but that of {} is {}; pass one {option} for all, or run kpack once per file",
            shown(file),
            shown(default.as_ref()),
            shown(other_file),
            shown(other.as_ref())
        ))),
    }
}

/// The directory above the one for libraries or programs, if that is the file's own or the next one above, as in
/// `lib/x86_64-linux-gnu`; or else the file's own. A `lib` far above, such as one in a home directory, is not the
/// project's.
fn default_prefix(file: &Path) -> &Path {
    let holds_binaries = |directory: &&Path| {
        let name = directory.file_name().and_then(OsStr::to_str);
        matches!(name, Some("bin" | "lib" | "lib32" | "lib64" | "libx32" | "libexec"))
    };
    let own = file.parent().unwrap_or(file);
    own.ancestors().take(2).find(holds_binaries).and_then(Path::parent).unwrap_or(own)
}

/// Prints what was done.
pub(super) fn report_done(report: &Report) -> Result<ExitCode, Error> {
    for finding in &report.findings {
        output::complain_finding(finding);
    }
    if print().json {
        output::json(report)?;
    } else if !print().quiet {
        summary(report).write()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What became of a binary.
fn outcome(outcome: &Outcome) -> String {
    let sizes = |before: u64, after: u64| format!("{} -> {}", size(before), size(after));
    let (what, wrappers, targets) = match outcome {
        Outcome::Split { wrappers, targets, size_before, size_after } => {
            let what = if size_before == size_after {
                "device code archived".to_owned()
            } else {
                sizes(*size_before, *size_after)
            };
            (what, wrappers, count(targets.len(), "target"))
        }
        Outcome::Joined { wrappers, targets, size_before, size_after } => {
            (sizes(*size_before, *size_after), wrappers, targets.join(", "))
        }
        Outcome::Relocated { wrappers, targets } => {
            let what = "split before the link, device code moved into the prefix".to_owned();
            (what, wrappers, count(targets.len(), "target"))
        }
        Outcome::AlreadySplit => return "already split".to_owned(),
        _ => return "unchanged".to_owned(),
    };
    format!("{what} ({}, {targets})", count(*wrappers, "wrapper"))
}

fn summary(report: &Report) -> Text {
    let mut text = Text::default();
    for file in &report.files {
        text.line(format_args!("{}: {}", file.path, outcome(&file.outcome)));
    }
    let rows = report.archives.iter().map(|archive| {
        let name = archive.path.file_name().unwrap_or_default();
        let state = if archive.changed { "written" } else { "unchanged" };
        vec![
            name.to_string_lossy().into_owned(),
            size(archive.size),
            archive.code_object_count.to_string(),
            state.to_owned(),
        ]
    });
    if !report.archives.is_empty() {
        text.table(2, &["archive", ">size", ">code objects", "state"], rows);
    }
    for path in &report.removed {
        text.line(format_args!("{}: removed (empty)", path.display()));
    }
    text
}

/// Which archives the run would write.
fn would_write(report: &Report, options: &InstallOptions) -> Text {
    let mut text = Text::default();
    let targets = report.files.iter().filter_map(|file| match &file.outcome {
        Outcome::Split { targets, .. } | Outcome::Relocated { targets, .. } => Some(targets),
        _ => None,
    });
    let targets = BTreeSet::from_iter(targets.flatten());
    if targets.is_empty() {
        text.line("nothing would be written");
    } else {
        text.line(format_args!(
            "would write {}_{}_TARGET.kpack to {}, for {}",
            options.module,
            options.component,
            shown(&options.prefix.join(&options.kpack_dir)),
            list(targets)
        ));
    }
    text
}

/// Where the code of binaries is that were replaced, and the command that puts it back.
fn way_back(report: &Report, options: &InstallOptions) -> Text {
    let mut text = Text::default();
    let is_replaced = |file: &&FileReport| match file.outcome {
        Outcome::Split { size_before, size_after, .. } => size_before != size_after,
        _ => false,
    };
    let replaced = Vec::from_iter(report.files.iter().filter(is_replaced));
    if replaced.is_empty() || options.only.is_some() {
        return text;
    }
    let prefix = options.prefix.to_string_lossy();
    let mut words = vec!["kpack", "join", "--prefix", &*prefix, "--arch", "all"];
    match options.all {
        true => words.extend(["--module", &*options.module]),
        false => words.extend(replaced.iter().map(|file| &*file.path)),
    }
    let files = match &replaced[..] {
        [one] => one.path.clone(),
        several => count(several.len(), "file"),
    };
    text.line(format_args!(
        "replaced {files}; the device code is in {}",
        shown(&options.prefix.join(&options.kpack_dir))
    ));
    if let Ok(command) = shlex::try_join(words) {
        let lost = match &lost(report, options)[..] {
            [] => String::new(),
            lost => format!(", except for {}", list(lost)),
        };
        text.line(format_args!("to undo{lost}: {command}"));
    }
    text
}

/// Gives the commands that complete the archives for variants of binaries that were replaced: their code comes back, and goes
/// again.
fn complete_what_was_replaced(report: &mut Report, options: &InstallOptions) {
    // The other half of the work is elsewhere, and so is the original.
    if options.only.is_some() {
        return;
    }
    let is_incomplete = |found: &&mut Finding| found.id == ids::INCOMPLETE_VARIANT;
    let mut warnings = Vec::from_iter(report.findings.iter_mut().filter(is_incomplete));
    if warnings.is_empty() {
        return;
    }
    let real = canonicalize(&options.prefix).unwrap_or_default();
    let inside = |path: &Path| {
        let path = path.strip_prefix(&real).unwrap_or(path).to_string_lossy();
        // Otherwise it looks like an option.
        if path.starts_with('-') { format!("./{path}") } else { path.into_owned() }
    };
    let files = Vec::from_iter(warnings.iter().map(|found| inside(found.file())));
    let (prefix, kpack_dir) =
        (options.prefix.to_string_lossy(), options.kpack_dir.to_string_lossy());
    let level = options.storage.level.to_string();
    let usual = InstallOptions::new("", "", [""; 0]);
    // What the first run dropped, a join does not bring back.
    let unusual = [
        (options.component != usual.component, ["--component", &*options.component]),
        (options.kpack_dir != usual.kpack_dir, ["--kpack-dir", &*kpack_dir]),
        (options.storage.spirv == Spirv::Archive, ["--spirv", "archive"]),
        (options.storage.scheme == Scheme::None, ["--compression", "none"]),
        (options.storage.level != usual.storage.level, ["--level", &*level]),
    ];
    let unusual = unusual.into_iter().filter_map(|(is_given, words)| is_given.then_some(words));
    let place = ["--prefix", &*prefix, "--module", &*options.module];
    let mut join = [&["kpack", "join"][..], &place, &["--arch", "all"]].concat();
    let mut split = [&["kpack", "split"][..], &place].concat();
    split.extend(unusual.flatten());
    split.push("--complete-variants");
    if options.all {
        split.push("--all");
    } else {
        join.extend(files.iter().map(|file| &**file));
        split.extend(files.iter().map(|file| &**file));
    }
    if let (Ok(join), Ok(split)) = (shlex::try_join(join), shlex::try_join(split)) {
        for warning in &mut warnings {
            warning.help = Some(format!("run `{join} && {split}`"));
        }
    }
}

/// What a join does not bring back.
fn lost(report: &Report, options: &InstallOptions) -> Vec<&'static str> {
    let is_skipped = report.findings.iter().any(|found| found.id == ids::UNEXPECTED_TARGET);
    let is_dropped = options.storage.spirv == Spirv::Drop;
    let is_stripped = options.storage.debug != DebugInfo::Keep;
    let all = [
        (is_skipped, "the skipped device code"),
        (is_dropped, "what --spirv drop removed"),
        (is_stripped, "what --strip-debug removed"),
    ];
    all.into_iter().filter_map(|(is_lost, what)| is_lost.then_some(what)).collect()
}

/// What a person would say of it who sits at a machine with these GPUs: how much smaller the binaries are, and what
/// the machine needs besides.
fn in_a_sentence(report: &Report, gpus: &[TargetId]) -> Text {
    let mut text = Text::default();
    let split = Vec::from_iter(report.files.iter().filter_map(|file| match file.outcome {
        Outcome::Split { size_before, size_after, .. } => Some((file, size_before, size_after)),
        _ => None,
    }));
    let [(first, ..), others @ ..] = &split[..] else {
        return text;
    };
    let name = match others {
        [] => first.path.rsplit('/').next().unwrap_or_default().to_owned(),
        _ => format!("{} binaries", split.len()),
    };
    let (before, after) =
        split.iter().fold((0, 0), |(b, a), (_, before, after)| (b + before, a + after));
    text.line("");
    text.line(format_args!("{name}: {} → {}.", size(before), size(after)));

    let archives: Vec<(TargetId, u64)> = report
        .archives
        .iter()
        .filter_map(|archive| Some((archive.target.parse().ok()?, archive.size)))
        .collect();
    let needed =
        |gpu: &&TargetId| archives.iter().any(|(target, _)| gpu.needs(target, Delivery::Archive));
    let processors: BTreeSet<&str> = gpus.iter().filter(needed).map(TargetId::processor).collect();
    let own = Vec::from_iter(processors).join(", ");
    let sizes = Vec::from_iter(
        archives
            .iter()
            .filter(|(target, _)| gpus.iter().any(|gpu| gpu.needs(target, Delivery::Archive)))
            .map(|(_, size)| *size),
    );
    let all = || archives.iter().map(|(_, size)| *size);
    match (&sizes[..], all().min(), all().max()) {
        ([one], ..) => {
            text.line(format_args!("This machine ({own}) needs one archive of {}.", size(*one)))
        }
        ([_, _, ..], ..) => text.line(format_args!(
            "This machine ({own}) needs {} archives with {}.",
            sizes.len(),
            size(sizes.iter().sum())
        )),
        ([], Some(least), Some(most)) => text.line(format_args!(
            "Each machine needs the archive for its GPU ({} to {}).",
            size(least),
            size(most)
        )),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_above_the_directory_of_libraries_or_programs() {
        for (file, prefix) in [
            ("/usr/lib/x86_64-linux-gnu/librocrand.so.1.1", "/usr"),
            ("/opt/rocm/lib64/librocrand.so", "/opt/rocm"),
            ("/opt/rocm/libexec/rocm/tool", "/opt/rocm"),
            ("/usr/lib/python3/torch/bin/tool", "/usr/lib/python3/torch"),
            ("/home/me/libvec/build/libvec.so", "/home/me/libvec/build"),
            ("/home/me/lib/vec/build/libvec.so", "/home/me/lib/vec/build"),
            ("/usr/lib/python3/dist-packages/vec/_C.so", "/usr/lib/python3/dist-packages/vec"),
            ("/home/me/bin/a/b/c/lib/libvec.so", "/home/me/bin/a/b/c"),
            ("/lib/libvec.so", "/"),
            ("/libvec.so", "/"),
            ("/build/bin", "/build"),
        ] {
            assert_eq!(default_prefix(Path::new(file)), Path::new(prefix), "{file}");
        }
    }

    #[test]
    fn the_module_is_named_after_the_file() {
        for (file, module) in [
            ("lib/librocrand.so", "rocrand"),
            ("lib/librocblas.so.5.2", "rocblas"),
            ("lib.so", "lib"),
            ("_C.cpython-311-x86_64-linux-gnu.so", "_C.cpython-311-x86_64-linux-gnu"),
            ("libvec-1.2.so.3", "vec-1.2"),
            ("vec.sorted.so", "vec.sorted"),
            ("bin/VEC.DLL", "VEC"),
            ("bin/libvec.dll", "vec"),
            ("bin/vec.exe", "vec"),
            ("bin/vec-1.2", "vec-1.2"),
            ("bin/librarian", "librarian"),
            ("my lib@2.so", "my_lib_2"),
        ] {
            assert_eq!(default_module(Path::new(file)), module, "{file}");
        }
    }
}
