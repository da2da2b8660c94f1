//! Binaries that linkers lay out by random flags and linker scripts, and random tools before and after they
//! are split, joined and split again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::Kind;
use kpack_tests::require;
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::option;
use proptest::sample::select;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::joined::{LITTLE, MUCH, join, same_bytes};
use super::{
    AARCH64, Bench, Host, LINKERS, Linker, NATIVE, NOTES_FIRST, PPC64LE, apply, expected_report,
    fat_library, same_host_code,
};

const CROSS: [Linker; 2] = [cross("AArch64", AARCH64), cross("ppc64le", PPC64LE)];

const fn cross(name: &'static str, host: Host) -> Linker {
    Linker {
        name,
        program: host.runner[0],
        compiler: host.compiler,
        flag: "-fuse-ld=bfd",
        relr: Some("-Wl,-z,pack-relative-relocs"),
    }
}

/// One flag of each row is chosen. Linkers ignore a `-z` that they do not know.
const FLAGS: &[&[&str]] = &[
    &["", "-Wl,--hash-style=sysv", "-Wl,--hash-style=gnu", "-Wl,--hash-style=both"],
    &["", "-Wl,-z,now", "-Wl,-z,lazy"],
    &["", "-Wl,-z,relro", "-Wl,-z,norelro"],
    &["", "-Wl,-z,separate-code", "-Wl,-z,noseparate-code"],
    &[
        "",
        "",
        "-Wl,-z,max-page-size=0x1000",
        "-Wl,-z,max-page-size=0x10000",
        "-Wl,-z,max-page-size=0x200000",
    ],
    &["", "-Wl,--build-id=none", "-Wl,--build-id=sha1"],
    &["", "-g", "-s"],
    &["", "", "", "-static"],
    &["", "-DIFUNC"],
    &["", "-DZEROS=3000000"],
    &["", "-ftls-model=initial-exec", "-ftls-model=global-dynamic"],
    &["", "-ffunction-sections -fdata-sections -Wl,--gc-sections"],
    &["", "", "-Wl,--emit-relocs"],
    &["", "RELR"],
    &["", "", "-Wl,--no-eh-frame-hdr"],
    &["", "", "-rdynamic"],
    &[
        "",
        "",
        "",
        "-Wl,--section-start=.hip_fatbin=0x800000",
        "-Wl,-Ttext=0x900000",
        "-Wl,-Ttext-segment=0x600000",
    ],
];

/// Where a linker script puts the device code, for linkers that understand `INSERT`.
const PLACES: &[&str] = &[
    "BEFORE .rodata",
    "AFTER .rodata",
    "BEFORE .text",
    "AFTER .text",
    "AFTER .fini",
    "BEFORE .eh_frame",
    "AFTER .eh_frame",
    "BEFORE .init_array",
    "BEFORE .data",
    "AFTER .data",
    "BEFORE .bss",
    "AFTER .bss",
    "BEFORE .dynsym",
    "BEFORE .gnu.hash",
    "AFTER .dynstr",
];

const ALIGNMENTS: &[&str] = &["", "ALIGN(0x1000)", "ALIGN(0x10000)", "ALIGN(0x200000)"];

const TOOLS: &[&[&str]] = &[
    &["strip"],
    &["strip", "--strip-debug"],
    &["strip", "--strip-unneeded"],
    &["llvm-strip-19"],
    &["llvm-strip-19", "--strip-debug"],
    &["eu-strip"],
    &["eu-strip", "--strip-debug"],
    &["objcopy", "--compress-debug-sections"],
    &["objcopy", "--add-section", ".extra=/etc/hostname"],
    &["objcopy", "--remove-section", ".comment"],
    &["objcopy", "--remove-section", ".note.gnu.build-id"],
    &["llvm-objcopy-19", "--add-section", ".extra=/etc/hostname"],
    &["llvm-objcopy-19", "--remove-section", ".comment"],
    &["patchelf", "--set-rpath", "/a/directory/with/quite/a/long/name:/and/another/one"],
    &["patchelf", "--remove-rpath"],
    &["patchelf", "--add-needed", "libm.so.6"],
    &["patchelf", "--set-soname", "libofquitealongname.so.1"],
];

/// Host code that stops the program if a relocation, a thread's variable or zeroed memory is wrong.
const HOST_CODE: &str = r#"
#include <stdlib.h>
#ifndef ZEROS
#define ZEROS 100
#endif
static int seven(void) { return 7; }
#ifdef IFUNC
static int (*choose(void))(void) { return seven; }
int chosen(void) __attribute__((ifunc("choose")));
#else
int chosen(void) { return seven(); }
#endif
__thread int zeroed[300];
__thread int three = 3;
static char zeros[ZEROS];
static const char *const names[] = {"one", "two"};
static const char *const *volatile table = names;
__attribute__((constructor)) static void begin(void) {
    if (chosen() != 7 || three != 3 || zeroed[299] || zeros[ZEROS - 1] || table[1][0] != 't') abort();
    zeros[ZEROS - 1] = zeroed[299] = 1;
}
__attribute__((destructor)) static void end(void) { if (zeros[ZEROS - 1] + zeroed[299] != 2) abort(); }
"#;

/// Reasons for which a layout may be refused.
const REFUSALS: &[&str] = &[
    "is within PT_GNU_RELRO",
    "there is no room for another program header",
    "join fewer targets (--arch)",
    // After a tool that moved or removed what is around it.
    "is not where `kpack join` puts it",
    "is not entirely where a PT_LOAD maps it",
];

/// What became of a seed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    /// Refused for one of the known reasons.
    Refused(String),
    /// The linker refuses it, or what it makes does not run.
    LeftOut(String),
}

/// Checks the layouts of the seeds in `KPACK_SEEDS`, such as `0..500`, or of the first `count`.
pub(crate) fn each_seed(count: u64, check: fn(u64) -> Result<Outcome>) -> Result<()> {
    let seeds = std::env::var("KPACK_SEEDS").unwrap_or_else(|_| format!("0..{count}"));
    let (start, end) = seeds.split_once("..").context("KPACK_SEEDS is not A..B")?;
    let (start, end): (u64, u64) = (start.parse()?, end.parse()?);
    let (mut held, mut failed) = (0, Vec::new());
    for seed in start..end {
        match check(seed) {
            Ok(Outcome::Held) => held += 1,
            Ok(other) => println!("seed {seed}: {other:?}"),
            Err(error) => {
                println!("{error:#}");
                failed.push(seed);
            }
        }
    }
    println!("{held} of {} layouts hold", end - start);
    ensure!(failed.is_empty(), "seeds that fail: {failed:?}");
    ensure!(held > 0 || end - start < count, "no layout was tried");
    Ok(())
}

/// What is done with the layout of a seed.
#[derive(Debug)]
struct Choice {
    linker: &'static Linker,
    kind: Kind,
    flags: Vec<&'static str>,
    place: Option<(&'static str, &'static str)>,
    /// Whether notes are before `.interp`.
    notes_first: bool,
    /// Tools before the split, after it, and after the join.
    tools: [Vec<&'static [&'static str]>; 3],
    /// Bytes of device code to join.
    size: usize,
}

impl Choice {
    fn of(seed: u64) -> Result<Self> {
        let linkers = Vec::from_iter(LINKERS.iter().chain(&CROSS));
        let tools = || vec(select(TOOLS), 0..=2);
        let flags: Vec<_> = FLAGS.iter().map(|row| select(*row)).collect();
        let strategy = (
            select(linkers),
            select(&[Kind::Shared, Kind::Pie, Kind::NoPie][..]),
            flags,
            option::of((select(PLACES), select(ALIGNMENTS))),
            weighted(0.3),
            [tools(), tools(), tools()],
            select(&[LITTLE, MUCH][..]),
        );
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        let chosen = strategy.new_tree(&mut runner);
        let chosen = chosen.map_err(|reason| anyhow::anyhow!("{reason}"))?;
        let (linker, kind, flags, place, notes_first, tools, size) = chosen.current();
        Ok(Self {
            linker,
            kind,
            flags,
            place: place.filter(|_| linker.flag == "-fuse-ld=bfd" || linker.name == "lld"),
            notes_first: notes_first && linker.flag == "-fuse-ld=bfd",
            tools,
            size,
        })
    }

    /// The flags as the compiler's driver takes them.
    fn flags(&self, script: &Path) -> Vec<String> {
        let words = self.flags.iter().flat_map(|flag| flag.split_whitespace());
        let words = words.filter_map(|word| match word {
            "RELR" => self.linker.relr,
            // Refused by gold, and for binaries without symbols.
            word if word.ends_with("separate-code") && self.linker.name == "gold" => None,
            "-Wl,--emit-relocs" if self.flags.contains(&"-s") => None,
            "-static" if self.kind == Kind::Shared => None,
            "-static" if self.kind == Kind::Pie => Some("-static-pie"),
            word => Some(word),
        });
        let mut flags = Vec::from_iter(words.map(str::to_owned));
        flags.push(self.linker.flag.to_owned());
        if self.place.is_some() || self.notes_first {
            flags.push(format!("-Wl,-T,{}", script.display()));
        }
        flags
    }
}

/// A binary on its way, beside one that is never split but treated by the same tools.
struct Trial {
    bench: Bench,
    kind: Kind,
    /// What the unsplit binary reports.
    fat: String,
    /// What the binary must report now.
    expected: String,
    /// Whether no tool has made the unsplit binary worse in the eyes of `eu-elflint`.
    is_sound: bool,
    done: Vec<String>,
}

/// Builds the layout of a seed, runs tools on it, and checks it after each step.
pub(crate) fn check(seed: u64) -> Result<Outcome> {
    let choice = Choice::of(seed)?;
    let linker = choice.linker;
    if !require::tools(&[linker.program, linker.compiler]) {
        return Ok(Outcome::LeftOut(format!("no {}", linker.name)));
    }
    let machine = match linker.name {
        "AArch64" => AARCH64,
        "ppc64le" => PPC64LE,
        _ => NATIVE,
    };
    let mut trial = Trial {
        bench: Bench::of(machine)?,
        kind: choice.kind,
        fat: String::new(),
        expected: String::new(),
        is_sound: true,
        done: Vec::new(),
    };
    let outcome = trial.run(&choice).or_else(|error| {
        let text = format!("{error:#}");
        let is_known = |reason: &&str| text.contains(*reason) && !text.contains("bug in kpack");
        if REFUSALS.iter().any(is_known) { Ok(Outcome::Refused(text)) } else { Err(error) }
    });
    outcome.with_context(|| {
        let mut text = format!("KPACK_SEEDS={seed}..{}", seed + 1);
        for line in &trial.done {
            let _ = write!(text, "\n  {line}");
        }
        text
    })
}

impl Trial {
    fn run(&mut self, choice: &Choice) -> Result<Outcome> {
        if let Err(error) = self.link(choice) {
            return Ok(Outcome::LeftOut(format!("{error:#}")));
        }
        let [before, between, after] = &choice.tools;
        self.tools(before)?;
        self.split()?;
        self.tools(between)?;
        self.done.push(format!("join {} bytes", choice.size));
        fs::copy(self.path("now"), self.path("split"))?;
        join(&self.path("now"), &self.path("next"), choice.size).context("join")?;
        self.expected.clone_from(&self.fat);
        self.accept("next")?;
        self.again()?;
        if self.tools(after)? > 0 {
            self.split().context("again")?;
        }
        Ok(Outcome::Held)
    }

    /// Splits the joined binary `now`, which gives the binary that was joined.
    fn again(&mut self) -> Result<()> {
        fs::copy(self.path("now"), self.path("joined"))?;
        self.split().context("again")?;
        same_bytes(&self.path("split"), &self.path("now")).context("again")?;
        fs::rename(self.path("joined"), self.path("now"))?;
        self.expected.clone_from(&self.fat);
        Ok(())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.bench.path(name)
    }

    /// Builds the binary `now`, and the binary `control`, which is the same.
    fn link(&mut self, choice: &Choice) -> Result<()> {
        let (source, script) = (self.path("more.c"), self.path("place.ld"));
        fs::write(&source, HOST_CODE)?;
        let mut text = String::new();
        if choice.notes_first {
            text += NOTES_FIRST;
        }
        if let Some((place, alignment)) = choice.place {
            let _ = writeln!(
                text,
                "SECTIONS {{ .hip_fatbin : {alignment} {{ *(.hip_fatbin) }} }} INSERT {place};"
            );
        }
        fs::write(&script, &text)?;
        self.done.push(format!("place.ld: {text}"));
        let flags = choice.flags(&script);
        self.done.push(format!("{} {:?} {}", choice.linker.compiler, choice.kind, flags.join(" ")));
        let mut library = fat_library(choice.kind)?.compiler(choice.linker.compiler).flag(source);
        for flag in flags {
            library = library.flag(flag);
        }
        library.build(&self.path("original"))?;
        self.fat = self.bench.report(self.kind, &self.path("original"))?;
        self.expected.clone_from(&self.fat);
        fs::copy(self.path("original"), self.path("control"))?;
        fs::copy(self.path("original"), self.path("now"))?;
        Ok(())
    }

    /// Runs tools; gives how many of them changed the binary.
    fn tools(&mut self, tools: &[&'static [&'static str]]) -> Result<usize> {
        let before = self.done.len();
        for words in tools {
            let (tool, arguments) = (self.bench.tool(words[0]), &words[1..]);
            let command = [&[tool], arguments].concat().join(" ");
            if self.tool(tool, arguments).context(command.clone())? {
                self.done.push(command);
            }
        }
        Ok(self.done.len() - before)
    }

    /// Runs a tool on both binaries. Returns whether it did, since some tools break the unsplit one.
    fn tool(&mut self, tool: &str, arguments: &[&str]) -> Result<bool> {
        let next = self.path("next");
        fs::copy(self.path("control"), &next)?;
        let Ok(said) = apply(tool, arguments, &next) else {
            return Ok(false);
        };
        let report = self.bench.report(self.kind, &next);
        if !report.is_ok_and(|report| report == self.fat) {
            return Ok(false);
        }
        self.is_sound &=
            self.bench.elflint(&next)?.is_subset(&self.bench.elflint(&self.path("original"))?);
        fs::rename(&next, self.path("control"))?;
        fs::copy(self.path("now"), &next)?;
        let says = apply(tool, arguments, &next)?;
        ensure!(!said.is_empty() || says.is_empty(), "it says {says}");
        self.accept("next")?;
        Ok(true)
    }

    fn split(&mut self) -> Result<()> {
        self.done.push("split".to_owned());
        let (now, next) = (self.path("now"), self.path("next"));
        let _ = fs::remove_file(&next);
        let plan = self.bench.split(&now, &next).context("split")?;
        self.expected = expected_report(&self.fat);
        let checked = same_host_code(&now, &next).and_then(|()| self.accept("next"));
        checked.with_context(|| plan.to_string())
    }

    /// Checks a binary, which becomes `now`.
    fn accept(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        if self.is_sound {
            self.bench.check_host(self.kind, &self.path("control"), &path, &self.expected)?
        } else {
            self.bench.check_report(self.kind, &path, &self.expected)?
        }
        Ok(fs::rename(path, self.path("now"))?)
    }
}
