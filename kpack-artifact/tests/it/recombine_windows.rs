//! Given DLLs that were linked from the same host code with device code of other targets, when their split artifacts
//! are recombined, then other bytes are no error, and other facts are.

use std::fs;
use std::path::PathBuf;

use crate::planned::{CONFIGURATION, assert_said, options, planned, said};
use crate::shards::PREFIX;
use crate::verified::assert_holds;
use anyhow::{Context, Result, ensure};
use kpack_artifact::recombine::{Recombination, Severity};
use kpack_artifact::split::{Options, split};
use kpack_core::ids;
use kpack_split::pe::Image;
use kpack_tests::fixture::{
    FatLibrary, Storage, WINDOWS_LINKERS, WindowsBuild, WindowsLinker, code_object,
    runs_windows_programs, walk,
};
use kpack_tests::tree::{Tree, write};
use kpack_tests::windows::signature;

/// The shards, their targets, and so many bytes of code for each.
const SHARDS: [(&str, &[&str], usize); 2] =
    [("linux-a", &["gfx1100", "gfx1101"], 90_000), ("linux-c", &["gfx942"], 20_000)];

/// Host code with zeroed memory, a table of addresses, texts, a `switch` and structured exceptions' tables.
const HOST_CODE: &str = r#"
static int zeroes[3000];
static int once(int n) { return n + zeroes[n & 7]; }
static int twice(int n) { return n * 2 + zeroes[(n & 7) + 8]; }
static int (*const volatile table[])(int) = {once, twice};
static const char *const volatile names[] = {"one name", "another"};
__declspec(dllexport) int *more_zeroes(void) { return zeroes; }
__declspec(dllexport) int more(int n) {
    zeroes[n & 7] = names[n & 1][0];
    switch (n) {
    case 0: return table[0](1);
    case 1: return table[1](2) + 17;
    case 2: return names[0][1] * 3;
    case 3: return zeroes[2] ^ n;
    case 4: return table[n & 1](5) - 4;
    case 5: return 1234;
    default: return n;
    }
}
"#;

/// The headers, which stay where they are.
const HEADERS: &str = r#"
__asm__(".section .late,\"xr\"\n.globl headers\nheaders:\nleaq __ImageBase(%rip), %rax\nret\n.text\n");
char *headers(void);
__declspec(dllexport) char *base(void) { return headers(); }
"#;

/// A variable of another DLL, without `dllimport`: start-up code of mingw-w64 relocates what refers to it, by a list.
const IMPORTED: &str = r#"
extern int _commode;
void _pei386_runtime_relocator(void) {}
__declspec(dllexport) int *imported(void) { return &_commode; }
"#;

/// A DLL on a machine, in the artifact that it uploads as `shards/<name>`.
struct Machine<'a> {
    tree: &'a Tree,
    linker: WindowsLinker,
    flags: &'a [&'a str],
}

impl Machine<'_> {
    /// Compiles and links the host code with each shard's device code, and splits the artifacts.
    fn shards(&self, sources: [&str; 2]) -> Result<()> {
        for ((name, targets, size), source) in SHARDS.into_iter().zip(sources) {
            self.shard(name, targets, size, source)?;
        }
        Ok(())
    }

    fn shard(&self, name: &str, targets: &[&str], size: usize, source: &str) -> Result<()> {
        let object = self.object(source)?;
        let mut flags = vec![object.to_str().context("UTF-8")?];
        flags.extend(self.flags);
        let build = WindowsBuild { linker: self.linker, is_program: false, flags: &flags };
        let code = |seed: u8| -> Result<Vec<(String, Vec<u8>)>> {
            let of =
                |target: &&str| Ok(((*target).to_owned(), code_object(target, &vec![seed; size])?));
            targets.iter().map(of).collect()
        };
        let library = FatLibrary::new().wrapper(Storage::Plain, code(1)?);
        let library = library.wrapper(Storage::Plain, code(2)?);
        let artifact = self.tree.path(&format!("in/{name}/blas_lib"));
        // Linkers derive the preferred address from the path.
        let output = self.tree.path("vec.dll");
        library.build_for_windows(build, &output)?;
        let dll = artifact.join(PREFIX).join("bin/vec.dll");
        write(&dll, &fs::read(&output)?);
        write(artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n"));
        let output = self.tree.path(&format!("shards/{name}"));
        let _ = fs::remove_dir_all(&output);
        split(&Options::new(artifact, output, "blas_lib"), &())?;
        Ok(())
    }

    fn object(&self, source: &str) -> Result<PathBuf> {
        let (text, object) = (self.tree.path("more.c"), self.tree.path("more.o"));
        fs::write(&text, source)?;
        self.linker.compile(&text, &object)?;
        Ok(object)
    }
}

fn host(tree: &Tree, artifacts: &str) -> PathBuf {
    tree.path(&format!("{artifacts}/blas_lib_generic/{PREFIX}/bin/vec.dll"))
}

/// That the DLL of `linux-c` is said to differ, in these words.
fn assert_differs(plan: &Recombination, words: &[&str]) {
    let parts = [&["linux-c", "vec.dll"], words].concat();
    assert_said(plan, Severity::Fault, &parts);
}

#[test]
fn addresses_after_the_device_code_may_differ() -> Result<()> {
    for linker in WINDOWS_LINKERS {
        for flags in flags_of(linker) {
            if !linker.is_there() {
                continue;
            }
            let tree = Tree::new();
            let script = tree.path("place.ld");
            fs::write(&script, CODE_AFTER)?;
            let flags = flags.iter().map(|flag| match *flag {
                SCRIPT => format!("{SCRIPT}{}", script.display()),
                flag => flag.to_owned(),
            });
            let flags = Vec::from_iter(flags);
            let flags = &*Vec::from_iter(flags.iter().map(String::as_str));
            let machine = Machine { tree: &tree, linker, flags };
            let mut host_code = HOST_CODE.to_owned() + HEADERS;
            if flags.contains(&MSVCRT) {
                host_code += IMPORTED;
            }
            machine.shards([&host_code; 2]).with_context(|| format!("{linker:?} {flags:?}"))?;
            // When the artifacts are merged, then it is said that sections have moved, and no error,
            let plan = planned(&tree, CONFIGURATION);
            assert_eq!(plan.errors(), 0, "{linker:?} {flags:?}: {:#?}", said(&plan));
            // Nothing comes after the device code of images without relocations.
            if !flags.contains(&"/fixed") {
                assert_said(
                    &plan,
                    Severity::Note,
                    &["vec.dll", "the same names, symbols and sizes of sections"],
                );
            }
            // and the result is complete and runs.
            plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
            assert_holds(&tree.path("out"));
            if runs_windows_programs() {
                walk(&host(&tree, "out"))?;
            }
        }
    }
    Ok(())
}

/// The flag for a linker script, and one that puts some code after the device code.
const SCRIPT: &str = "-Wl,-T,";
const CODE_AFTER: &str =
    "SECTIONS { .hip_fatbin : { *(.hip_fatbin) } .late : { *(.late) } } INSERT AFTER .pdata;\n";

const MSVCRT: &str = "/usr/x86_64-w64-mingw32/lib/libmsvcrt.a";

fn flags_of(linker: WindowsLinker) -> &'static [&'static [&'static str]] {
    match linker {
        WindowsLinker::Gnu => &[
            &[],
            &["-s"],
            &["-Wl,--build-id"],
            &[MSVCRT],
            &[SCRIPT],
            &["-Wl,--disable-reloc-section", "-Wl,--no-dynamicbase"],
        ],
        WindowsLinker::LldGnu => &[&[], &["-s"]],
        WindowsLinker::LldLink => &[&[], &["/debug", "/pdbaltpath:vec.pdb"], &["/fixed"]],
    }
}

#[test]
fn other_host_code_is_an_error() -> Result<()> {
    for (from, to, part) in [
        ("zeroes[3000]", "zeroes[9000]", "differs in size of section `."),
        ("int more(", "int moar(", "exported symbol `moar` (expected none, found number "),
        ("int more(", "int moar(", "exported symbol `more` (expected number "),
        (
            "return n;\n    }",
            "return n * table[n & 1](n) + once(n) * n;\n    }",
            "size of section `.text`",
        ),
    ] {
        for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
            let tree = Tree::new();
            let flags: &[&str] = &[];
            let machine = Machine { tree: &tree, linker, flags };
            let other = HOST_CODE.replace(from, to);
            ensure!(other != HOST_CODE);
            machine.shards([HOST_CODE, &other])?;
            let plan = planned(&tree, CONFIGURATION);
            assert_differs(&plan, &[part]);
        }
    }
    Ok(())
}

/// Splits two shards and changes each split DLL with `change`, which gets the position of the shard. Gives the plan.
fn changed(
    tree: &Tree,
    sources: [&str; 2],
    change: impl Fn(usize, &mut Vec<u8>),
) -> Result<Recombination> {
    let machine = Machine { tree, linker: WindowsLinker::Gnu, flags: &["-s"] };
    machine.shards(sources)?;
    for (index, (name, ..)) in SHARDS.iter().enumerate() {
        let dll = host(tree, &format!("shards/{name}"));
        let mut bytes = fs::read(&dll)?;
        change(index, &mut bytes);
        fs::write(&dll, bytes)?;
    }
    Ok(planned(tree, CONFIGURATION))
}

#[test]
fn dlls_that_windows_does_not_load_are_an_error() -> Result<()> {
    if !WindowsLinker::Gnu.is_there() {
        return Ok(());
    }
    let tree = Tree::new();
    // Given another size in memory in both,
    let plan = changed(&tree, [HOST_CODE; 2], |_, bytes| {
        let at = signature(bytes) + 24 + 56;
        bytes[at + 1] ^= 0x10;
    })?;
    // then both are rejected.
    for shard in ["linux-a", "linux-c"] {
        let parts = [shard, "vec.dll", "Windows does not load", "[damaged-binary]"];
        assert_said(&plan, Severity::Fault, &parts);
    }
    Ok(())
}

#[test]
fn a_signed_dll_is_not_changed() -> Result<()> {
    if !WindowsLinker::Gnu.is_there() {
        return Ok(());
    }
    let tree = Tree::new();
    let plan = changed(&tree, [HOST_CODE; 2], |_, bytes| {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let directory = signature(bytes) + 24 + 112 + 4 * 8;
        let certificate = (bytes.len() as u32).to_le_bytes();
        bytes[directory..directory + 4].copy_from_slice(&certificate);
        bytes[directory + 4] = 16;
        bytes.extend([0; 16]);
    })?;
    let parts = ["linux-a", "vec.dll", "then sign the result"];
    assert_said(&plan, Severity::Fault, &parts);
    ensure!(plan.findings.iter().any(|found| found.id == ids::SIGNED_BINARY));
    Ok(())
}

/// One without device code has no reason to have another layout.
#[test]
fn a_dll_without_device_code_may_differ_in_times_and_ids_only() -> Result<()> {
    for (linker, flags) in [
        (WindowsLinker::Gnu, &["-Wl,--build-id"][..]),
        (WindowsLinker::LldLink, &["/debug", "/pdbaltpath:plain.pdb"]),
    ] {
        if !linker.is_there() {
            continue;
        }
        let tree = Tree::new();
        Machine { tree: &tree, linker, flags: &[] }.shards([HOST_CODE; 2])?;
        let output = tree.path("plain.dll");
        let build = WindowsBuild { linker, is_program: false, flags };
        FatLibrary::new().build_for_windows(build, &output)?;
        let plain = fs::read(&output)?;
        let place = |shard: &str| {
            tree.path(&format!("shards/{shard}/blas_lib_generic/{PREFIX}/bin/plain.dll"))
        };
        fs::write(place("linux-a"), &plain)?;
        // Given another time of the link, checksum and ID of the debug information,
        let mut other = plain.clone();
        let id = plain.windows(4).position(|word| word == b"RSDS").context("an ID")? + 4;
        for at in [signature(&plain) + 8, signature(&plain) + 24 + 64, id] {
            other[at] ^= 1;
        }
        fs::write(place("linux-c"), &other)?;
        // then one DLL can stand for both,
        let plan = planned(&tree, CONFIGURATION);
        assert_eq!(plan.errors(), 0, "{linker:?}: {:#?}", said(&plan));
        assert_said(&plan, Severity::Note, &["linux-c", "plain.dll", "another build ID"]);
        // but not if its code or data differ as well.
        let at = plain.windows(13).position(|text| text == b"fixture_host\0");
        other[at.context("a name")?] ^= 1;
        fs::write(place("linux-c"), other)?;
        let plan = planned(&tree, CONFIGURATION);
        assert_said(&plan, Severity::Fault, &["linux-c", "plain.dll", "differs"]);
    }
    Ok(())
}

/// GNU ld writes one.
#[test]
fn the_checksum_is_that_of_the_changed_marker() -> Result<()> {
    if !WindowsLinker::Gnu.is_there() {
        return Ok(());
    }
    let tree = Tree::new();
    let plan = changed(&tree, [HOST_CODE; 2], |_, _| ())?;
    plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
    let (before, after) = (host(&tree, "shards/linux-a"), host(&tree, "out"));
    ensure!(fs::read(before)? != fs::read(&after)?, "the marker is the same");
    let image = Image::read(fs::File::open(after)?)?;
    ensure!(image.optional.check_sum.get(object::LittleEndian) != 0);
    ensure!(image.stale_checksum()?.is_none());
    Ok(())
}
