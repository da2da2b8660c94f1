//! Given a fat binary of some linker and some layout, when its host binary is planned and written,
//! then it runs as before, standard tools find nothing wrong, and it still runs after they have changed it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kpack_split::elf::{self, DeviceCode, Image, Plan};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code_object};
use kpack_tests::process::try_run as run;
use kpack_tests::require;

const MARKER: &[u8] = b"\x82\xb2kpack_search_paths\x91\xa1x\xabkernel_name\xa1y";

/// A linker, and the flag that selects it.
struct Linker {
    name: &'static str,
    program: &'static str,
    compiler: &'static str,
    flag: &'static str,
    /// Packs relative relocations into a RELR table.
    relr: Option<&'static str>,
}

const LINKERS: [Linker; 4] = [
    Linker {
        name: "GNU ld",
        program: "ld.bfd",
        compiler: "cc",
        flag: "-fuse-ld=bfd",
        relr: Some("-Wl,-z,pack-relative-relocs"),
    },
    Linker {
        name: "gold",
        program: "ld.gold",
        compiler: "cc",
        flag: "-fuse-ld=gold",
        relr: None,
    },
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

/// A fat binary of three wrappers, with enough device code to free pages.
fn fat_library(kind: Kind) -> Result<FatLibrary> {
    let device = |target: &str, seed: u8| code_object(target, &vec![seed; 60_000]);
    Ok(FatLibrary::new()
        .kind(kind)
        .wrapper(
            Storage::Plain,
            [
                ("gfx1100", device("gfx1100", 1)?),
                ("gfx942", device("gfx942", 2)?),
            ],
        )
        .wrapper(Storage::Plain, [("gfx1100", device("gfx1100", 3)?)])
        .wrapper(
            Storage::Zstd(2),
            [("gfx90a:xnack+", device("gfx90a:xnack+", 4)?)],
        ))
}

/// The tools for host binaries of one machine.
struct Host {
    compiler: &'static str,
    /// The command that runs a program.
    runner: &'static [&'static str],
    strip: &'static str,
    objcopy: &'static str,
}

const NATIVE: Host = Host {
    compiler: "cc",
    runner: &[],
    strip: "strip",
    objcopy: "objcopy",
};

const AARCH64: Host = Host {
    compiler: "aarch64-linux-gnu-gcc",
    runner: &["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"],
    strip: "aarch64-linux-gnu-strip",
    objcopy: "aarch64-linux-gnu-objcopy",
};

/// A directory with a program that loads a library and lets it report.
struct Bench {
    machine: Host,
    directory: tempfile::TempDir,
    loader: PathBuf,
}

impl Bench {
    fn new() -> Result<Self> {
        Self::of(NATIVE)
    }

    fn of(machine: Host) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let source = directory.path().join("loader.c");
        let loader = directory.path().join("loader");
        fs::write(
            &source,
            "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char **v) {\n\
             void *library = dlopen(v[1], RTLD_NOW);\n\
             if (!library) { fputs(dlerror(), stderr); return 1; }\n\
             void (*report)(void) = (void (*)(void))dlsym(library, \"fixture_report\");\n\
             if (!report) return 2;\n report(); return n != 2;\n}\n",
        )?;
        run(Command::new(machine.compiler)
            .arg(&source)
            .arg("-o")
            .arg(&loader)
            .arg("-ldl"))?;
        Ok(Self {
            machine,
            directory,
            loader,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the binary says of its wrappers and its host code, whether its symbols are bound at the
    /// start or when they are used.
    fn report(&self, kind: Kind, binary: &Path) -> Result<String> {
        let mut words: Vec<&OsStr> = self.machine.runner.iter().map(OsStr::new).collect();
        if kind == Kind::Shared {
            words.push(self.loader.as_os_str());
        }
        words.push(binary.as_os_str());
        let lazy = run(Command::new(words[0]).args(&words[1..]))?;
        let bound = run(Command::new(words[0])
            .args(&words[1..])
            .env("LD_BIND_NOW", "1"))?;
        ensure!(lazy == bound, "with LD_BIND_NOW: {bound}\nwithout: {lazy}");
        Ok(lazy)
    }

    /// Splits `fat` into `host`; also gives the plan.
    fn split(&self, fat: &Path, host: &Path) -> Result<Plan> {
        let input = File::open(fat)?;
        let image = Image::read(&input)?;
        let DeviceCode::Fat(code) = image.device_code()? else {
            bail!("{} is not fat", fat.display())
        };
        let plan = Plan::new(&image, &code, MARKER)?;
        let output = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(host)?;
        plan.apply(&input, &output)?;
        output.set_permissions(fs::Permissions::from_mode(0o755))?;
        Ok(plan)
    }

    /// Builds, splits, and checks that everything still holds.
    fn check(&self, library: &FatLibrary, kind: Kind) -> Result<Plan> {
        let (fat, host) = (self.path("fat"), self.path("host"));
        for old in [&fat, &host] {
            let _ = fs::remove_file(old);
        }
        library.build(&fat)?;
        let before = self.report(kind, &fat)?;
        let plan = self.split(&fat, &host)?;
        let expected = expected_report(&before);
        self.check_host(kind, &fat, &host, &expected)
            .with_context(|| plan.to_string())?;
        let differences = elf::compare(
            &Image::read(File::open(&fat)?)?,
            &Image::read(File::open(&host)?)?,
        )?;
        ensure!(
            differences.is_empty(),
            "host code differs: {differences:#?}\n{plan}"
        );
        self.check_tools(kind, &fat, &host, &expected)
            .with_context(|| plan.to_string())?;
        Ok(plan)
    }

    fn check_host(&self, kind: Kind, fat: &Path, host: &Path, expected: &str) -> Result<()> {
        self.check_report(kind, host, expected)?;
        if require::tool("eu-elflint") {
            let (before, after) = (elflint(fat)?, elflint(host)?);
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

    /// Each tool that packaging runs on installed files, before and after the split.
    fn check_tools(&self, kind: Kind, fat: &Path, host: &Path, expected: &str) -> Result<()> {
        let before = self.report(kind, fat)?;
        let rpath = "/a/directory/with/quite/a/long/name:/and/another/one";
        let tools: [(&str, &[&str]); 5] = [
            (self.machine.strip, &[]),
            ("llvm-strip-19", &[]),
            ("eu-strip", &[]),
            (self.machine.objcopy, &["--strip-debug"]),
            ("patchelf", &["--set-rpath", rpath]),
        ];
        for (tool, arguments) in tools.into_iter().filter(|(tool, _)| require::tool(tool)) {
            let fat_then_tool = self.path("fat-tool");
            fs::copy(fat, &fat_then_tool)?;
            let said = match apply(tool, arguments, &fat_then_tool) {
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
            let says = apply(tool, arguments, &split_then_tool)?;
            ensure!(says == said, "{tool} says of the host binary: {says}");
            let tool_then_split = self.path("tool-split");
            let _ = fs::remove_file(&tool_then_split);
            self.split(&fat_then_tool, &tool_then_split)
                .with_context(|| format!("of the output of {tool}"))?;

            for (order, result) in [("after", split_then_tool), ("before", tool_then_split)] {
                let checked = if elflint(&fat_then_tool)?.is_subset(&elflint(fat)?) {
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

/// Runs a tool that changes `file`; gives what it says.
fn apply(tool: &str, arguments: &[&str], file: &Path) -> Result<String> {
    let output = Command::new(tool).args(arguments).arg(file).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{tool}: {}\n{said}", output.status);
    Ok(said)
}

/// The report of the fat binary, with the magic and the index of a split one.
fn expected_report(before: &str) -> String {
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

/// What `eu-elflint --gnu-ld` says, without numbers: section indices and addresses may shift.
fn elflint(path: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new("eu-elflint")
        .arg("--gnu-ld")
        .arg(path)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |c: char| c.is_ascii_digit();
    let plain = |line: &str| -> String {
        let words = line.split(' ').map(|word| match word.strip_prefix("0x") {
            Some(_) => String::from("0x"),
            None => word.trim_start_matches('[').replace(number, ""),
        });
        words
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let said = text.lines().filter(|line| *line != "No errors").map(plain);
    Ok(said.collect())
}

/// Runs `variants` of each linker that is there.
fn each_linker(variants: impl Fn(&Linker) -> Vec<(Kind, Vec<&'static str>)>) -> Result<()> {
    let bench = Bench::new()?;
    for linker in LINKERS
        .iter()
        .filter(|linker| require::tool(linker.program) && require::tool(linker.compiler))
    {
        for (kind, flags) in variants(linker) {
            let mut library = fat_library(kind)?
                .compiler(linker.compiler)
                .flag(linker.flag);
            for flag in &flags {
                library = library.flag(*flag);
            }
            bench
                .check(&library, kind)
                .with_context(|| format!("{}, {kind:?}, {flags:?}", linker.name))?;
        }
    }
    Ok(())
}

#[test]
fn every_kind_of_every_linker() -> Result<()> {
    each_linker(|_| {
        vec![
            (Kind::Shared, vec![]),
            (Kind::Pie, vec![]),
            (Kind::NoPie, vec![]),
        ]
    })
}

#[test]
fn packed_relative_relocations() -> Result<()> {
    each_linker(|linker| {
        let Some(relr) = linker.relr else {
            return Vec::new();
        };
        vec![(Kind::Shared, vec![relr]), (Kind::Pie, vec![relr])]
    })
}

#[test]
fn device_code_in_the_segment_of_the_program_headers() -> Result<()> {
    each_linker(|linker| match linker.name {
        "lld" => vec![(
            Kind::Shared,
            vec!["-Wl,-z,noseparate-code", "-Wl,--no-rosegment"],
        )],
        // gold has one read-only segment anyway.
        "gold" => Vec::new(),
        _ => vec![
            (Kind::Shared, vec!["-Wl,-z,noseparate-code"]),
            (Kind::Pie, vec!["-Wl,-z,noseparate-code"]),
            (Kind::NoPie, vec!["-Wl,-z,noseparate-code"]),
        ],
    })
}

#[test]
fn large_pages() -> Result<()> {
    each_linker(|_| {
        vec![
            (Kind::Shared, vec!["-Wl,-z,max-page-size=0x10000"]),
            (Kind::Pie, vec!["-Wl,-z,max-page-size=0x10000"]),
            // Here the device code frees no page: it is zeroed, and nothing moves.
            (Kind::Shared, vec!["-Wl,-z,max-page-size=0x200000"]),
        ]
    })
}

#[test]
fn stripped_with_debug_information_and_with_all_hashes() -> Result<()> {
    each_linker(|_| {
        vec![
            (Kind::Shared, vec!["-s"]),
            (Kind::Shared, vec!["-g"]),
            (Kind::Pie, vec!["-g", "-Wl,--hash-style=both", "-Wl,-z,now"]),
            (Kind::Pie, vec!["-s", "-Wl,--build-id=none"]),
        ]
    })
}

#[test]
fn static_executables() -> Result<()> {
    each_linker(|linker| match linker.name {
        "GNU ld" => vec![
            (Kind::NoPie, vec!["-static"]),
            (Kind::Pie, vec!["-static-pie"]),
        ],
        _ => vec![(Kind::NoPie, vec!["-static"])],
    })
}

#[test]
fn wrappers_between_red_zones() -> Result<()> {
    let bench = Bench::new()?;
    bench.check(&fat_library(Kind::Shared)?.red_zones(), Kind::Shared)?;
    bench.check(&fat_library(Kind::NoPie)?.red_zones(), Kind::NoPie)?;
    Ok(())
}

/// Some projects' linker scripts put device code after the data, to keep code within 2 GiB.
#[test]
fn device_code_in_the_writable_segment() -> Result<()> {
    let bench = Bench::new()?;
    for place in [
        "INSERT BEFORE .bss",
        "INSERT AFTER .data",
        "INSERT AFTER .bss",
        "INSERT BEFORE .data",
    ] {
        let script = bench.path("place.ld");
        fs::write(
            &script,
            format!("SECTIONS {{ .hip_fatbin : {{ *(.hip_fatbin) }} }} {place};\n"),
        )?;
        for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
            let flag = format!("-Wl,-T,{}", script.display());
            let library = fat_library(kind)?.flag("-fuse-ld=bfd").flag(flag);
            bench
                .check(&library, kind)
                .with_context(|| format!("{place}, {kind:?}"))?;
        }
    }
    Ok(())
}

/// A linker script can put device code among what is read-only after relocation. The dynamic loader
/// protects that as a whole, so nothing in it can be unmapped.
#[test]
fn device_code_within_relro_is_refused() -> Result<()> {
    let bench = Bench::new()?;
    for place in ["INSERT AFTER .data.rel.ro", "INSERT BEFORE .got"] {
        let script = bench.path("place.ld");
        fs::write(
            &script,
            format!("SECTIONS {{ .hip_fatbin : {{ *(.hip_fatbin) }} }} {place};\n"),
        )?;
        for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
            let flag = format!("-Wl,-T,{}", script.display());
            let library = fat_library(kind)?.flag("-fuse-ld=bfd").flag(flag);
            let (fat, host) = (bench.path("relro"), bench.path("relro-host"));
            library.build(&fat)?;
            bench.report(kind, &fat)?;
            let refused = bench.split(&fat, &host).map(|plan| plan.to_string());
            let error = format!("{:#}", refused.expect_err("it is within RELRO"));
            assert!(
                error.contains("`.hip_fatbin` is within PT_GNU_RELRO")
                    && error.contains("change the linker script"),
                "{place}, {kind:?}: {error}"
            );
            assert!(!host.exists());

            // Without RELRO the same place is fine.
            bench
                .check(&library.flag("-Wl,-z,norelro"), kind)
                .with_context(|| format!("{place}, {kind:?}, without RELRO"))?;
        }
    }
    Ok(())
}

#[test]
fn device_code_that_frees_no_page_is_zeroed() -> Result<()> {
    let bench = Bench::new()?;
    let library = FatLibrary::new().wrapper(
        Storage::Plain,
        [("gfx1100", code_object("gfx1100", b"small")?)],
    );
    let plan = bench.check(&library, Kind::Shared)?;
    assert!(plan.to_string().contains("nothing is cut"), "{plan}");
    let host = fs::read(bench.path("host"))?;
    assert!(!host.windows(5).any(|bytes| bytes == b"small"));
    Ok(())
}

/// Pages have 64 KiB there.
#[test]
fn aarch64_hosts() -> Result<()> {
    if !require::tool(AARCH64.compiler) || !require::tool(AARCH64.runner[0]) {
        return Ok(());
    }
    let bench = Bench::of(AARCH64)?;
    for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
        let library = fat_library(kind)?.compiler(AARCH64.compiler);
        let plan = bench
            .check(&library, kind)
            .with_context(|| format!("{kind:?}"))?;
        assert!(plan.to_string().contains("are cut"), "{plan}");
    }
    Ok(())
}
