//! What only reads: the doctor, and the shim in a program. However it is disturbed, it says what an undisturbed run
//! says, or fails with a message; no process gets wrong code, and nothing is written.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, code, stub_hip};

use super::calls::{self, Call, Fault, Trace, errors_of_reads};
use super::each::at_each;
use super::limits;
use super::place::{Place, Snapshot};
use crate::support::root;

/// A program, and its input.
pub(super) struct Reader {
    /// Makes the input in an empty directory. What is no input is beside that directory.
    prepare: fn(&Place, &Path) -> Result<()>,
    /// The program, unless it is `kpack`.
    program: Option<&'static str>,
    arguments: &'static str,
    environment: &'static [(&'static str, &'static str)],
    /// Checks how it ended when something failed, given an undisturbed run.
    judge: fn(&End, &End, Option<Fault>) -> Result<()>,
}

/// How a run ended.
struct End {
    output: Output,
    /// What the stub HIP runtime reported.
    report: String,
}

const DIAGNOSE: &str = "doctor --arch gfx1100 prefix/lib/libvec.so";

pub(super) const DOCTOR: Reader = Reader {
    prepare: |place, _| split(place, "gfx1100"),
    program: None,
    arguments: DIAGNOSE,
    environment: &[],
    judge: diagnosis,
};

pub(super) const DOCTOR_WITHOUT_AN_ARCHIVE: Reader = Reader {
    prepare: |place, _| {
        split(place, "gfx1100")?;
        let archive = place.path("prefix/lib/.kpack/vec_lib_gfx1100.kpack");
        Ok(fs::remove_file(archive)?)
    },
    program: None,
    arguments: DIAGNOSE,
    environment: &[],
    judge: diagnosis,
};

pub(super) const SHIM_PRELOADED: Reader = Reader {
    prepare: |place, prefix| {
        fs::copy(prefix.join("lib/libkpack_hip.so"), place.path(SHIM))?;
        started(place, |library| library)
    },
    program: Some(LOAD),
    arguments: LOADED,
    environment: &[GPU, REPORTED, ("LD_PRELOAD", SHIM)],
    judge: code_objects,
};

pub(super) const SHIM_LINKED: Reader = Reader {
    prepare: |place, prefix| {
        let shim = prefix.join("lib/libkpack_hip.a");
        started(place, |library| {
            let functions = ["Register", "Unregister"];
            let wrap = functions.map(|name| format!("--wrap=__hip{name}FatBinary"));
            library.flag(format!("-Wl,{}", wrap.join(","))).flag(shim)
        })
    },
    program: Some(LOAD),
    arguments: LOADED,
    environment: &[GPU, REPORTED],
    judge: code_objects,
};

/// The program that loads a library, the shim, and the report, beside the directory of the input.
const LOAD: &str = "../load";
const SHIM: &str = "../libkpack_hip.so";
const REPORT: &str = "../report.txt";
const LOADED: &str = "prefix/lib/libvec.so local close";
const GPU: (&str, &str) = ("HSA_OVERRIDE_GFX_VERSION", "11.0.0");
const REPORTED: (&str, &str) = ("STUB_HIP_REPORT", REPORT);

/// A split library that is linked with a HIP runtime that reads markers.
fn split(place: &Place, target: &str) -> Result<()> {
    let loader = place.path("rocm/librocm_kpack.so.0");
    let runtime = place.path("rocm/libamdhip64.so.7");
    fs::create_dir(place.path("rocm"))?;
    let own = "int kpack_load_code_object(void) { return 1; }\n";
    let uses = "int kpack_load_code_object(void);\nint (*loads)(void) = kpack_load_code_object;\n";
    for (library, text, needed) in [(&loader, own, None), (&runtime, uses, Some(&loader))] {
        let source = library.with_extension("c");
        fs::write(&source, text)?;
        let name = library.file_name().context("a library has a name")?.display();
        let soname = format!("-Wl,-soname,{name},-rpath,$ORIGIN");
        let (source, library) = (source.display().to_string(), library.display().to_string());
        let needed = needed.map(|path| path.display().to_string());
        let flags = ["-shared", "-fPIC", &soname, "-o", &library, &source];
        let flags = flags.into_iter().chain(needed.as_deref());
        place.run("cc", &Vec::from_iter(flags))?;
    }
    let library = FatLibrary::new().wrapper(Storage::Plain, [code(target, "add")]);
    installed(place, library.flag("-Wl,--no-as-needed"), &runtime)
}

/// A split library with start-up code, a HIP runtime that reads no markers, and a program that loads it.
fn started(place: &Place, with_shim: impl FnOnce(FatLibrary) -> FatLibrary) -> Result<()> {
    // No library of this machine has that name.
    let runtime = place.path("rocm/libamdhip64.so.0");
    stub_hip(&runtime, &["-DWITHOUT_MARKERS"])?;
    let load = root().join("tests/real/load.c");
    let load = load.to_str().context("the path is UTF-8")?;
    place.run("cc", &["-O1", "-o", LOAD, load])?;
    let code = |kernel| ["gfx1100", "gfx942"].map(|target| code(target, kernel));
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, code("add"))
        .wrapper(Storage::Plain, code("mul"))
        .start_up(&["add", "mul"]);
    installed(place, with_shim(library), &runtime)
}

/// Links the library with a HIP runtime, and splits it.
fn installed(place: &Place, library: FatLibrary, runtime: &Path) -> Result<()> {
    let path = library.flag("-Wl,-rpath,$ORIGIN/../../rocm").flag(runtime);
    path.build(&place.path("prefix/lib/libvec.so"))?;
    place.kpack("split --prefix prefix --module vec --all")
}

/// The doctor must find what is there, or fail. What may not be read counts as missing, as for the dynamic linker.
fn diagnosis(sound: &End, found: &End, fault: Option<Fault>) -> Result<()> {
    match found.output.status.code() {
        Some(4) => ensure!(found.said("kpack: error: "), "no message"),
        code @ Some(0 | 1) => {
            let is_same =
                code == sound.output.status.code() && found.findings() == sound.findings();
            let may_differ = fault == Some(Fault::Error("EACCES")) && code == Some(1);
            ensure!(is_same || may_differ, "another diagnosis");
        }
        _ => bail!("unexpected exit code"),
    }
    Ok(())
}

/// The HIP runtime must get the code objects, or the process is told why not.
fn code_objects(sound: &End, found: &End, _: Option<Fault>) -> Result<()> {
    let (expected, entries) = (sound.entries(), found.entries());
    ensure!(entries.iter().all(|entry| expected.contains(entry)), "wrong code: {entries:?}");
    match found.output.status.code() {
        Some(0) => ensure!(
            entries == expected || found.said("kpack: "),
            "code is missing without a message"
        ),
        Some(_) => ensure!(!found.output.stderr.is_empty(), "no message"),
        None => ensure!(found.said("stub HIP runtime: "), "it crashed"),
    }
    Ok(())
}

impl End {
    fn said(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.output.stderr).contains(text)
    }

    /// What the doctor printed, without the places of files: a path may be resolved or not. It notes which list of a package
    /// it could not read, and the rest must be the same.
    fn findings(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.output.stdout);
        let file = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
        let lines = text.lines().filter(|line| !line.ends_with("[unread-package-database]"));
        lines.flat_map(str::split_whitespace).map(file).collect()
    }

    /// The code objects that the HIP runtime got.
    fn entries(&self) -> Vec<&str> {
        let lines = self.report.lines();
        lines.filter(|line| line.starts_with("entry\t")).collect()
    }
}

/// A program, its input, and what an undisturbed run says.
struct Reading<'a> {
    reader: &'a Reader,
    place: &'a Place,
    before: Snapshot,
    sound: End,
}

/// Disturbs a program in each way, and returns what was done.
pub(super) fn disturb(
    reader: &Reader,
    place: &Place,
    prefix: &Path,
    scratch: &Path,
    quick: bool,
) -> Result<Vec<String>> {
    (reader.prepare)(place, prefix)?;
    let reading =
        Reading { reader, place, before: place.snapshot()?, sound: reader.run(place, &[])? };
    reading.check_sound(&reading.sound)?;
    let log = scratch.join("strace.log");
    let trace = Trace::record_reads(&log, |runner| {
        let end = reader.run(place, runner)?;
        reading.check_sound(&end)
    })?;
    let calls = trace.reading(place.root(), "report.txt");
    let mut said =
        at_each(&calls, errors_of_reads, quick, |call, fault| reading.at(call, fault, &log))?;
    said.push(format!("{} runs with limits", reading.limited()?));
    Ok(said)
}

impl Reader {
    fn run(&self, place: &Place, runner: &[&str]) -> Result<End> {
        let report = place.path(REPORT);
        let _ = fs::remove_file(&report);
        let mut command: Command = match self.program {
            Some(program) => place.other_command(runner, Path::new(program), self.arguments),
            None => place.command(runner, self.arguments),
        };
        command.envs(self.environment.iter().copied());
        let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
        Ok(End { output, report: fs::read_to_string(&report).unwrap_or_default() })
    }
}

impl Reading<'_> {
    /// Disturbs the program at one call. Returns whether it came to it.
    fn at(&self, call: &Call, fault: Fault, log: &Path) -> Result<bool> {
        let shown = log.to_str().context("the path is UTF-8")?;
        let words = calls::runner(call, fault, shown);
        let runner = Vec::from_iter(words.iter().map(String::as_str));
        let end = self.reader.run(self.place, &runner)?;
        if !calls::was_reached(log, fault)? {
            return Ok(false);
        }
        match fault {
            Fault::Kill => ensure!(end.output.status.signal() == Some(9), "it was not killed"),
            Fault::Error(_) => self.judge(&end, Some(fault))?,
        }
        self.check_unchanged()?;
        Ok(true)
    }

    /// Runs the program with few open files and little memory. Then it may fail somehow, but get no wrong code.
    fn limited(&self) -> Result<usize> {
        let mut runs = 0;
        for (limit, runner, is_last) in limits::of_readers() {
            let runner = Vec::from_iter(runner.iter().map(String::as_str));
            let end = self.reader.run(self.place, &runner)?;
            let result = match (is_last, end.output.status.code()) {
                (true, _) => self.check_sound(&end),
                // Programs need some memory and files to start.
                (false, None | Some(126 | 127)) => Ok(()),
                (false, _) => self.judge(&end, None),
            };
            result.and_then(|()| self.check_unchanged()).context(limit)?;
            runs += 1;
        }
        Ok(runs)
    }

    fn judge(&self, end: &End, fault: Option<Fault>) -> Result<()> {
        (self.reader.judge)(&self.sound, end, fault).with_context(|| end.describe())
    }

    fn check_sound(&self, end: &End) -> Result<()> {
        let same_output = end.output.stdout == self.sound.output.stdout;
        ensure!(
            end.output.status.code().is_some() && end.report == self.sound.report && same_output,
            "another result without a fault; {}",
            end.describe()
        );
        let is_shim = self.reader.program.is_some();
        ensure!(!is_shim || end.entries().len() == 2, "{}", end.report);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        ensure!(self.place.snapshot()? == self.before, "a file has changed");
        Ok(())
    }
}

impl End {
    fn describe(&self) -> String {
        format!(
            "{}; it printed:\n{}{}{}",
            self.output.status,
            String::from_utf8_lossy(&self.output.stdout),
            String::from_utf8_lossy(&self.output.stderr),
            self.report
        )
    }
}
