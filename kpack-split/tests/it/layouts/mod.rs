//! Fat binaries of every linker, and what is checked of their host binaries.

#![allow(dead_code, unused_imports, reason = "not every test uses all of it")]

pub(crate) mod debian;
mod joined;
pub(crate) mod random;
pub(crate) mod trimmed;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use self::joined::{LITTLE, MUCH, join, same_bytes};
use anyhow::{Context, Result, bail, ensure};
use kpack_split::elf::{self, DeviceCode, ElfPlan, Image, Segment};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code_object, compile};
use kpack_tests::process::try_run as run;
use kpack_tests::{require, sha256};

const MARKER: &[u8] = b"\x82\xb2kpack_search_paths\x91\xa1x\xabkernel_name\xa1y";

/// A linker, and the flag that selects it.
#[derive(Debug)]
pub(crate) struct Linker {
    pub(crate) name: &'static str,
    pub(crate) program: &'static str,
    pub(crate) compiler: &'static str,
    pub(crate) flag: &'static str,
    /// Packs relative relocations into a RELR table.
    pub(crate) relr: Option<&'static str>,
}

pub(crate) const LINKERS: [Linker; 4] = [
    Linker {
        name: "GNU ld",
        program: "ld.bfd",
        compiler: "cc",
        flag: "-fuse-ld=bfd",
        relr: Some("-Wl,-z,pack-relative-relocs"),
    },
    Linker { name: "gold", program: "ld.gold", compiler: "cc", flag: "-fuse-ld=gold", relr: None },
    Linker {
        name: "lld",
        program: "ld.lld-19",
        compiler: "clang-19",
        flag: "-fuse-ld=lld",
        relr: Some("-Wl,-z,pack-relative-relocs"),
    },
    Linker {
        name: "mold",
        program: "mold",
        compiler: "cc",
        flag: "-fuse-ld=mold",
        // Its RELR table lacks the version dependency that glibc requires.
        relr: None,
    },
];

/// Loads a library, whose symbols are bound when they are used, and then again, when all are bound at the start.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
static int load(const char *path, int mode) {
    void *library = dlopen(path, mode);
    if (!library) { fputs(dlerror(), stderr); return 1; }
    void (*report)(void) = (void (*)(void))dlsym(library, "fixture_report");
    if (!report) return 2;
    report();
    return dlclose(library);
}
int main(int n, char **v) {
    int failed = load(v[1], RTLD_LAZY);
    if (failed) return failed;
    /* Otherwise the second load would give the first one. */
    if (dlopen(v[1], RTLD_LAZY | RTLD_NOLOAD)) { fputs("it stays loaded", stderr); return 3; }
    puts("bound at the start:");
    return load(v[1], RTLD_NOW) || n != 2;
}
"#;

/// What the loader prints between the two reports.
const BOUND: &str = "bound at the start:\n";

/// A linker script for GNU ld that puts notes before `.interp`, as its own scripts do since 2.44.
pub(crate) const NOTES_FIRST: &str = "SECTIONS {
    .note.gnu.build-id : { *(.note.gnu.build-id) }
    .interp : { *(.interp) }
    .note.ABI-tag : { *(.note.ABI-tag) }
} INSERT BEFORE .hash;
";

/// A fat binary of three wrappers, with enough device code to free pages.
pub(crate) fn fat_library(kind: Kind) -> Result<FatLibrary> {
    let device = |target: &str, seed: u8| code_object(target, &vec![seed; 60_000]);
    Ok(FatLibrary::new()
        .kind(kind)
        .wrapper(
            Storage::Plain,
            [("gfx1100", device("gfx1100", 1)?), ("gfx942", device("gfx942", 2)?)],
        )
        .wrapper(Storage::Plain, [("gfx1100", device("gfx1100", 3)?)])
        .wrapper(Storage::Zstd(2), [("gfx90a:xnack+", device("gfx90a:xnack+", 4)?)]))
}

/// The tools for host binaries of one machine.
pub(crate) struct Host {
    pub(crate) compiler: &'static str,
    /// The command that runs a program.
    pub(crate) runner: &'static [&'static str],
    strip: &'static str,
    objcopy: &'static str,
}

const NATIVE: Host = Host { compiler: "cc", runner: &[], strip: "strip", objcopy: "objcopy" };

pub(crate) const AARCH64: Host = Host {
    compiler: "aarch64-linux-gnu-gcc",
    runner: &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
    strip: "aarch64-linux-gnu-strip",
    objcopy: "aarch64-linux-gnu-objcopy",
};

pub(crate) const PPC64LE: Host = Host {
    compiler: "powerpc64le-linux-gnu-gcc",
    runner: &["qemu-ppc64le", "-L", "/usr/powerpc64le-linux-gnu"],
    strip: "powerpc64le-linux-gnu-strip",
    objcopy: "powerpc64le-linux-gnu-objcopy",
};

/// A binary that was made of a fat one.
struct Made<'a> {
    fat: &'a Path,
    path: &'a Path,
    /// What the fat one reports.
    expected: &'a str,
    /// How it was made, for messages.
    what: &'a str,
}

/// Something that a packager runs on installed files, and its arguments.
type Tool = (&'static str, &'static [&'static str]);

/// Makes the second file again, of the output of a tool: the first file is the fat binary after it.
type Make<'a> = dyn Fn(Tool, &Path, &Path) -> Result<()> + 'a;

/// What programs made of files, by the bytes and the mode of each file. Many steps of a check have the same file, and
/// starting programs is nearly all that a check costs.
#[derive(Debug)]
struct Memory<T>(RefCell<HashMap<String, T>>);

impl<T: Clone> Memory<T> {
    fn new() -> Self {
        Self(RefCell::default())
    }

    /// What `start` made of such a file before, or else what it makes now.
    fn of(&self, program: &str, file: &Path, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let mode = fs::metadata(file)?.permissions().mode();
        let key = format!("{program} {mode:o} {}", sha256(&fs::read(file)?));
        if let Some(made) = self.0.borrow().get(&key) {
            return Ok(made.clone());
        }
        let made = start()?;
        self.0.borrow_mut().insert(key, made.clone());
        Ok(made)
    }
}

/// A directory with a program that loads a library and lets it report.
pub(crate) struct Bench {
    machine: Host,
    directory: tempfile::TempDir,
    loader: PathBuf,
    reports: Memory<String>,
    lints: Memory<BTreeSet<String>>,
    /// What tools said, and the bytes that they made.
    applied: Memory<(String, Vec<u8>)>,
}

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        Self::of(NATIVE)
    }

    pub(crate) fn of(machine: Host) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("loader.c"), LOADER)?;
        let mut compiler = Command::new(machine.compiler);
        compile(compiler.current_dir(&directory).arg("-ldl"), &["loader.c"], "loader");
        let loader = directory.path().join("loader");
        let (reports, lints, applied) = (Memory::new(), Memory::new(), Memory::new());
        Ok(Self { machine, directory, loader, reports, lints, applied })
    }

    /// The tool of that name for the binaries of this machine.
    fn tool(&self, name: &'static str) -> &'static str {
        match name {
            "strip" => self.machine.strip,
            "objcopy" => self.machine.objcopy,
            name => name,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the binary says of its wrappers and its host code, whether its symbols are bound at the
    /// start or when they are used.
    pub(crate) fn report(&self, kind: Kind, binary: &Path) -> Result<String> {
        self.reports.of(&format!("{kind:?}"), binary, || self.start(kind, binary))
    }

    fn start(&self, kind: Kind, binary: &Path) -> Result<String> {
        let mut words: Vec<&OsStr> = self.machine.runner.iter().map(OsStr::new).collect();
        if kind == Kind::Shared {
            // It reports both at one start.
            words.extend([self.loader.as_os_str(), binary.as_os_str()]);
            let said = run(Command::new(words[0]).args(&words[1..]))?;
            let (lazy, bound) = said.split_once(BOUND).context("no second report")?;
            ensure!(lazy == bound, "bound at the start: {bound}\nwithout: {lazy}");
            return Ok(lazy.to_owned());
        }
        words.push(binary.as_os_str());
        let lazy = run(Command::new(words[0]).args(&words[1..]))?;
        let bound = run(Command::new(words[0]).args(&words[1..]).env("LD_BIND_NOW", "1"))?;
        ensure!(lazy == bound, "with LD_BIND_NOW: {bound}\nwithout: {lazy}");
        Ok(lazy)
    }

    /// As [`apply`].
    fn apply(&self, tool: &str, arguments: &[&str], file: &Path) -> Result<String> {
        let made = self.applied.of(&format!("{tool} {arguments:?}"), file, || {
            let said = apply(tool, arguments, file)?;
            Ok((said, fs::read(file)?))
        });
        let (said, bytes) = made?;
        if fs::read(file)? != bytes {
            fs::write(file, bytes)?;
        }
        Ok(said)
    }

    /// What `eu-elflint` says, as [`elflint`].
    fn elflint(&self, file: &Path) -> Result<BTreeSet<String>> {
        self.lints.of("eu-elflint", file, || elflint(file))
    }

    /// Splits `fat` into `host`; also gives the plan.
    pub(crate) fn split(&self, fat: &Path, host: &Path) -> Result<ElfPlan> {
        let input = File::open(fat)?;
        let image = Image::read(&input)?;
        let DeviceCode::Fat(code) = image.device_code()? else {
            bail!("{} is not fat", fat.display())
        };
        let plan = ElfPlan::new(&image, &code, MARKER)?;
        let output = File::options().read(true).write(true).create_new(true).open(host)?;
        plan.apply(&input, &output)?;
        output.set_permissions(fs::Permissions::from_mode(0o755))?;
        Ok(plan)
    }

    /// Builds, splits, and checks that everything still holds.
    pub(crate) fn check(&self, library: &FatLibrary, kind: Kind) -> Result<ElfPlan> {
        let (fat, host) = (self.path("fat"), self.path("host"));
        // Another library has other files.
        self.applied.0.borrow_mut().clear();
        for old in [&fat, &host] {
            let _ = fs::remove_file(old);
        }
        library.build(&fat)?;
        let before = self.report(kind, &fat)?;
        let plan = self.split(&fat, &host)?;
        let expected = expected_report(&before);
        self.check_host(kind, &fat, &host, &expected).with_context(|| plan.to_string())?;
        same_host_code(&fat, &host).with_context(|| plan.to_string())?;
        self.check_tools(kind, &fat, &host, &expected).with_context(|| plan.to_string())?;
        trimmed::check(self, kind, &fat).context("trimmed")?;
        let device: usize = library.bundles()?.iter().map(Vec::len).sum();
        if device > ENOUGH {
            let checked = joined::check(self, kind, &fat, &host);
            checked.with_context(|| format!("joined, from\n{plan}"))?;
        }
        Ok(plan)
    }

    fn check_host(&self, kind: Kind, fat: &Path, host: &Path, expected: &str) -> Result<()> {
        self.check_report(kind, host, expected)?;
        if require::tool("eu-elflint") {
            let (before, after) = (self.elflint(fat)?, self.elflint(host)?);
            let added: Vec<_> = after.difference(&before).collect();
            ensure!(
                added.is_empty(),
                "eu-elflint says of the output: {added:#?}\nof the input: {before:#?}"
            );
        }
        Ok(())
    }

    fn check_report(&self, kind: Kind, host: &Path, expected: &str) -> Result<()> {
        let after = self.report(kind, host)?;
        ensure!(after == expected, "reported {after}\nexpected {expected}");
        Ok(())
    }

    /// The tools that packaging runs on installed files, each with its arguments.
    fn tools(&self) -> impl Iterator<Item = (&'static str, &'static [&'static str])> + use<> {
        const RPATH: &str = "/a/directory/with/quite/a/long/name:/and/another/one";
        let tools: [(&str, &[&str]); 5] = [
            (self.machine.strip, &[]),
            ("llvm-strip-19", &[]),
            ("eu-strip", &[]),
            (self.machine.objcopy, &["--strip-debug"]),
            ("patchelf", &["--set-rpath", RPATH]),
        ];
        tools.into_iter().filter(|(tool, _)| require::tool(tool))
    }

    /// Checks a binary after each tool, and what `make` makes of each tool's output.
    fn check_with_tools(&self, kind: Kind, made: &Made<'_>, make: &Make<'_>) -> Result<()> {
        let (treated, of_treated) = (self.path("fat-tool"), self.path("made-tool"));
        for (tool, arguments) in self.tools() {
            fs::copy(made.fat, &treated)?;
            let sound = self.apply(tool, arguments, &treated).is_ok()
                && self.report(kind, &treated).is_ok_and(|report| report == made.expected);
            if !sound {
                // Said where the split is checked.
                continue;
            }
            let lints = self.elflint(&treated)?.is_subset(&self.elflint(made.fat)?);
            let check = |order| {
                let checked = if lints {
                    self.check_host(kind, &treated, &of_treated, made.expected)
                } else {
                    self.check_report(kind, &of_treated, made.expected)
                };
                checked.with_context(|| format!("{tool} {order} the {}", made.what))
            };
            fs::copy(made.path, &of_treated)?;
            self.apply(tool, arguments, &of_treated)?;
            check("after")?;
            let again = make((tool, arguments), &treated, &of_treated);
            again.with_context(|| format!("of the output of {tool}"))?;
            check("before")?;
        }
        Ok(())
    }

    /// Each tool that packaging runs on installed files, before and after the split.
    fn check_tools(&self, kind: Kind, fat: &Path, host: &Path, expected: &str) -> Result<()> {
        let before = self.report(kind, fat)?;
        for (tool, arguments) in self.tools() {
            let fat_then_tool = self.path("fat-tool");
            fs::copy(fat, &fat_then_tool)?;
            let said = match self.apply(tool, arguments, &fat_then_tool) {
                Ok(said) => said,
                Err(error) => {
                    eprintln!("left out: {tool} refuses the fat binary itself: {error}");
                    continue;
                }
            };
            let report = self.report(kind, &fat_then_tool);
            if !report.is_ok_and(|report| report == before) {
                eprintln!("left out: {tool} breaks the fat binary itself");
                continue;
            }

            let split_then_tool = self.path("split-tool");
            fs::copy(host, &split_then_tool)?;
            let says = self.apply(tool, arguments, &split_then_tool)?;
            ensure!(says == said, "{tool} says of the host binary: {says}");
            let tool_then_split = self.path("tool-split");
            let _ = fs::remove_file(&tool_then_split);
            self.split(&fat_then_tool, &tool_then_split)
                .with_context(|| format!("of the output of {tool}"))?;

            same_host_code(&fat_then_tool, &tool_then_split)
                .with_context(|| format!("of the output of {tool}"))?;

            for (order, result) in [("after", split_then_tool), ("before", tool_then_split)] {
                let checked = if self.elflint(&fat_then_tool)?.is_subset(&self.elflint(fat)?) {
                    self.check_host(kind, &fat_then_tool, &result, expected)
                } else {
                    eprintln!("eu-elflint is left out: {tool} damages the fat binary itself");
                    self.check_report(kind, &result, expected)
                };
                checked.with_context(|| format!("{tool} {order} the split"))?;
            }
        }
        Ok(())
    }
}

/// Compares what is loaded of a fat binary and of its host binary.
pub(crate) fn same_host_code(fat: &Path, host: &Path) -> Result<()> {
    let image = |path: &Path| -> Result<_> { Ok(Image::read(File::open(path)?)?) };
    let differences = elf::compare(&image(fat)?, &image(host)?)?;
    ensure!(differences.is_empty(), "host code: {differences:#?}");
    Ok(())
}

/// So much device code leaves room to join it again, in bytes.
const ENOUGH: usize = 100_000;

/// Runs a tool that changes `file`; gives what it says.
pub(crate) fn apply(tool: &str, arguments: &[&str], file: &Path) -> Result<String> {
    let output = Command::new(tool).args(arguments).arg(file).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{tool}: {}\n{said}", output.status);
    Ok(said)
}

/// The report of the fat binary, with the magic and the index of a split one.
pub(crate) fn expected_report(before: &str) -> String {
    let mut index = 0;
    let mut lines = String::new();
    for line in before.lines() {
        if line == "FPIH 0" {
            lines += &format!("HIPK {index}\n");
            index += 1;
        } else {
            lines += &format!("{line}\n");
        }
    }
    assert!(index > 0, "no wrapper in the report: {before}");
    lines
}

/// What `eu-elflint` says. For it, `.tdata` is no writable section, although relocations may change it.
fn elflint(path: &Path) -> Result<BTreeSet<String>> {
    // It finds the segment of an empty section by file offsets alone, and takes one whose zeroed memory would
    // reach there.
    let image = Image::read(File::open(path)?)?;
    let is_mapped = image.section(".hip_fatbin")?.is_some_and(|(_, code)| {
        let maps = |s: &Segment| s.vaddr <= code.addr && code.addr_end() <= s.vaddr + s.memsz;
        image.segments.iter().any(|s| s.is_load() && maps(s))
    });
    let is_known = |line: &String| {
        let is_inside = line.contains("'.hip_fatbin' not fully contained in segment");
        line.ends_with("is writable but contains no writable sections") || is_inside && is_mapped
    };
    let mut said = kpack_tests::elflint::elflint(path)?;
    said.retain(|line| !is_known(line));
    Ok(said)
}
