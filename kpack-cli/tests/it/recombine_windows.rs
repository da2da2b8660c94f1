//! Given DLLs that were linked from the same host code with device code of other targets, when their split artifacts
//! are recombined, then addresses that have moved are no differences, and all others are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::planned::{CONFIGURATION, assert_said, options, planned, said};
use crate::shards::{PREFIX, write};
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
use kpack_tests::tree::Tree;

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
        write(&artifact.join("artifact_manifest.txt"), format!("{PREFIX}\n").as_bytes());
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
                assert_said(&plan, Severity::Note, &["vec.dll", "differs in its layout"]);
            }
            // and the result is complete and runs.
            plan.apply(&options(&tree, CONFIGURATION), &()).unwrap();
            assert_holds(&tree.path("out"));
            if runs_windows_programs() {
                walk(&host(&tree, "out"), Path::new(env!("CARGO_TARGET_TMPDIR")))?;
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

/// In the first, nothing but a constant differs; in the others, a text, a function and what a table leads to.
#[test]
fn other_host_code_is_an_error() -> Result<()> {
    for (from, to, part) in [
        ("1234", "1235", "section `.text`"),
        ("another", "a mother", "text `another` against `a mother`"),
        ("{once, twice}", "{twice, once}", "differs: in "),
        ("zeroes[3000]", "zeroes[9000]", "sizes"),
        ("int more(", "int moar(", "differs: in "),
    ] {
        for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
            let tree = Tree::new();
            let flags: &[&str] = &[];
            let machine = Machine { tree: &tree, linker, flags };
            let other = HOST_CODE.replace(from, to);
            ensure!(other != HOST_CODE);
            machine.shards([HOST_CODE, &other])?;
            let plan = planned(&tree, CONFIGURATION);
            assert_differs(&plan, &["differs: ", part]);
        }
    }
    Ok(())
}

/// Numbers that differ by the distance that a section has moved are no addresses if no table says so.
#[test]
fn numbers_that_look_like_moved_addresses_are_an_error() -> Result<()> {
    for declaration in [
        "int number(void) { return NUMBER; }",
        "volatile unsigned number[4] = { 1, NUMBER, 3, 4 };",
        "const volatile unsigned number[4] = { 1, NUMBER, 3, 4 };",
        "const volatile unsigned long long number[4] = { 1, NUMBER, 3, 4 };",
        "volatile unsigned long long number[4] = { 1, BASE + NUMBER, 3, 4 };",
    ] {
        for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
            let tree = Tree::new();
            let machine = Machine { tree: &tree, linker, flags: &[] };
            let with = |base: u64, number: u64| {
                let text = declaration.replace("NUMBER", &number.to_string());
                let text = text.replace("BASE", &format!("{base}ull"));
                HOST_CODE.to_owned() + "__declspec(dllexport) " + &text
            };
            // The same number in both.
            machine.shards([&with(0, 1_000_000), &with(0, 1_000_000)])?;
            let plan = planned(&tree, CONFIGURATION);
            assert_eq!(plan.errors(), 0, "{linker:?} {declaration}: {:#?}", said(&plan));

            let dlls = SHARDS.map(|(name, ..)| host(&tree, &format!("shards/{name}")));
            let [one, other] = dlls.map(|dll| moved(&dll));
            let ((base, one), (_, other)) = (one?, other?);
            ensure!(one != other);
            machine.shards([&with(base, one + 16), &with(base, other + 16)])?;
            let plan = planned(&tree, CONFIGURATION);
            let is_said = |line: &String| line.starts_with("Fault") && line.contains("vec.dll");
            ensure!(
                said(&plan).iter().any(is_said),
                "{linker:?} {declaration}: {:#?}",
                said(&plan)
            );
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
    changed_by(WindowsLinker::Gnu, tree, sources, change)
}

fn changed_by(
    linker: WindowsLinker,
    tree: &Tree,
    sources: [&str; 2],
    change: impl Fn(usize, &mut Vec<u8>),
) -> Result<Recombination> {
    let machine = Machine { tree, linker, flags: &["-s"] };
    machine.shards(sources)?;
    for (index, (name, ..)) in SHARDS.iter().enumerate() {
        let dll = host(tree, &format!("shards/{name}"));
        let mut bytes = fs::read(&dll)?;
        change(index, &mut bytes);
        fs::write(&dll, bytes)?;
    }
    Ok(planned(tree, CONFIGURATION))
}

/// Changes the split DLL of the shard at a position.
type Change = Box<dyn Fn(usize, &mut Vec<u8>)>;

/// The offset of the PE signature.
fn signature(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[0x3c..0x40].try_into().unwrap()) as usize
}

/// Numbers that stay the same although what they led to has moved.
#[test]
fn same_numbers_that_lead_elsewhere_are_an_error() -> Result<()> {
    let pointer = "char zz[0x60000];\n__declspec(dllexport) char *volatile ptr = zz + OFFSET;";
    let export = r#"
char zz[0x60000];
__declspec(dllexport) char *keep(void) { return zz; }
__asm__(".globl exported\nexported = zz + OFFSET\n.section .drectve,\"yni\"\n"
        ".ascii \" -export:exported,data\"\n.text\n");
"#;
    let operand =
        "char zz[0x60000];\n__declspec(dllexport) char *get(void) { return zz + OFFSET; }";
    let handler = r#"
char zz[0x60000];
__declspec(dllexport) char *keep(void) { return zz; }
__asm__(".text\n.globl handler\nhandler = zz + OFFSET\n.globl unwound\n.seh_proc unwound\nunwound:\nnop\n"
        ".seh_endprologue\n.seh_handler handler, @except\nret\n.seh_endproc\n");
"#;
    let scope = r#"
char zz[0x60000];
__declspec(dllexport) char *keep(void) { return zz; }
__asm__(".text\n.globl handler\nhandler:\nret\n.globl unwound\n.seh_proc unwound\nunwound:\nnop\n"
        ".seh_endprologue\n.seh_handler handler, @except\n.seh_handlerdata\n.long 1\n"
        ".rva unwound, guarded, zz + OFFSET, guarded\n.text\nguarded:\nret\n.seh_endproc\n");
"#;
    let resource = r#"
__asm__(".section .rsrc,\"dr\"\nresources:\n.long 0, 0, 0, 0x10000, 10, 0x80000018\n"
        ".long 0, 0, 0, 0x10000, 1, 0x80000030\n.long 0, 0, 0, 0x10000, 1033, 0x48\n"
        ".rva resources + OFFSET\n.long 4, 0, 0\n.zero 0x60000\n.text\n");
"#;
    for (linker, source) in [
        (WindowsLinker::Gnu, pointer),
        (WindowsLinker::Gnu, export),
        (WindowsLinker::Gnu, operand),
        (WindowsLinker::Gnu, handler),
        (WindowsLinker::Gnu, scope),
        (WindowsLinker::LldGnu, resource),
    ] {
        if !linker.is_there() {
            continue;
        }
        let changed =
            |tree: &Tree, sources: [&str; 2]| changed_by(linker, tree, sources, |_, _| ());
        let tree = Tree::new();
        let with =
            |offset: u64| HOST_CODE.to_owned() + &source.replace("OFFSET", &offset.to_string());
        let plan = changed(&tree, [&with(0x100), &with(0x100)])?;
        assert_eq!(plan.errors(), 0, "{source}: {:#?}", said(&plan));
        let dlls = SHARDS.map(|(name, ..)| host(&tree, &format!("shards/{name}")));
        let [one, other] = dlls.map(|dll| moved(&dll));
        let distance = one?.1.checked_sub(other?.1).context("a distance")?;
        let other = with(0x100 + distance);
        let plan = changed(&tree, [&with(0x100), &other])?;
        assert_differs(&plan, &["differs: in "]);
    }
    Ok(())
}

/// In records that linkers make, so that no source has them.
#[test]
fn same_numbers_in_tables_that_lead_elsewhere_are_an_error() -> Result<()> {
    if !WindowsLinker::Gnu.is_there() {
        return Ok(());
    }
    let table = "const unsigned table_of_image[20] = {0x6b706b74, 0x6c626174};\n\
                 __declspec(dllexport) unsigned first(int n) { return table_of_image[n]; }";
    let source = HOST_CODE.to_owned() + table;
    // The variables of a delayed import, and what a debug directory refers to.
    for (directory, size, word) in [(13, 64, 2), (13, 64, 3), (6, 28, 5)] {
        let tree = Tree::new();
        let mut number = 0;
        for _ in 0..2 {
            let plan = changed(&tree, [&source; 2], |_, bytes| {
                let start = bytes.windows(8).position(|own| own == b"tkpktabl").unwrap();
                let header = bytes.windows(8).position(|own| own == b".rdata\0\0").unwrap();
                let word_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                let address = start as u32 - word_at(header + 20) + word_at(header + 12);
                let entry = signature(bytes) + 24 + 112 + 8 * directory;
                bytes[entry..entry + 4].copy_from_slice(&address.to_le_bytes());
                bytes[entry + 4..entry + 8].copy_from_slice(&u32::to_le_bytes(size));
                bytes[start..start + 8].fill(0);
                let at = start + 4 * word;
                bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(number));
            })?;
            if number == 0 {
                assert_eq!(plan.errors(), 0, "{directory} {word}: {:#?}", said(&plan));
                let dll = host(&tree, &format!("shards/{}", SHARDS[0].0));
                number = moved(&dll)?.1 as u32;
            } else {
                assert_differs(&plan, &["differs: in "]);
            }
        }
    }
    Ok(())
}

#[test]
fn other_headers_and_overlays_are_an_error() -> Result<()> {
    if !WindowsLinker::Gnu.is_there() {
        return Ok(());
    }
    let second = |change: fn(&mut Vec<u8>)| {
        move |index: usize, bytes: &mut Vec<u8>| {
            if index == 1 {
                change(bytes);
            }
        }
    };
    let flip = |at: fn(&[u8]) -> usize| {
        move |index: usize, bytes: &mut Vec<u8>| {
            let at = at(bytes);
            bytes[at] ^= index as u8;
        }
    };
    let changes: [(&str, Change); 7] = [
        ("bytes after the last section", Box::new(second(|bytes| bytes.extend(b"mode=b")))),
        (
            "bytes after the last section",
            Box::new(|index: usize, bytes: &mut Vec<u8>| bytes.push(index as u8)),
        ),
        ("the DOS stub", Box::new(flip(|_| 0x50))),
        // The system's and the subsystem's version, the reserved word, and the loader's flags.
        ("the headers", Box::new(flip(|bytes| signature(bytes) + 24 + 40))),
        ("the headers", Box::new(flip(|bytes| signature(bytes) + 24 + 48))),
        ("the headers", Box::new(flip(|bytes| signature(bytes) + 24 + 52))),
        ("the headers", Box::new(flip(|bytes| signature(bytes) + 24 + 104))),
    ];
    for (part, change) in changes {
        let tree = Tree::new();
        let plan = changed(&tree, [HOST_CODE; 2], change)?;
        assert_differs(&plan, &["differs: ", part]);
    }
    Ok(())
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

/// The preferred address of a DLL, and the address in it of a section that has moved.
fn moved(dll: &Path) -> Result<(u64, u64)> {
    use object::{Object, ObjectSection};
    let bytes = fs::read(dll)?;
    let file = object::File::parse(&*bytes)?;
    let base = file.relative_address_base();
    let section = file.section_by_name(".reloc").context("relocations")?;
    Ok((base, section.address() - base))
}
