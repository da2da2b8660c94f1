//! Given DLLs that were linked from the same host code with device code of other targets, when their split artifacts
//! are recombined, then addresses that have moved are no differences, and all others are.

use std::fs;
use std::path::{Path, PathBuf};

use crate::planned::{CONFIGURATION, assert_said, options, planned, said};
use crate::shards::{PREFIX, write};
use crate::verified::assert_holds;
use anyhow::{Context, Result, ensure};
use kpack_artifact::recombine::Severity;
use kpack_artifact::split::{Options, split};
use kpack_tests::fixture::{
    FatLibrary, Storage, WINDOWS_LINKERS, WindowsBuild, WindowsLinker, code_object,
    runs_windows_programs, walk,
};
use kpack_tests::tree::Tree;

/// The shards, their targets, and so many bytes of code for each.
const SHARDS: [(&str, &[&str], usize); 2] = [
    ("linux-a", &["gfx1100", "gfx1101"], 90_000),
    ("linux-c", &["gfx942"], 20_000),
];

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
        let build = WindowsBuild {
            linker: self.linker,
            is_program: false,
            flags: &flags,
        };
        let code = |seed: u8| -> Result<Vec<(String, Vec<u8>)>> {
            let of = |target: &&str| {
                Ok((
                    (*target).to_owned(),
                    code_object(target, &vec![seed; size])?,
                ))
            };
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
        write(
            &artifact.join("artifact_manifest.txt"),
            format!("{PREFIX}\n").as_bytes(),
        );
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
    tree.path(&format!(
        "{artifacts}/blas_lib_generic/{PREFIX}/bin/vec.dll"
    ))
}

#[test]
fn addresses_after_the_device_code_may_differ() -> Result<()> {
    for linker in WINDOWS_LINKERS {
        for flags in flags_of(linker) {
            if !linker.is_there() {
                continue;
            }
            let tree = Tree::new();
            let machine = Machine {
                tree: &tree,
                linker,
                flags,
            };
            let host_code = if flags.contains(&MSVCRT) {
                HOST_CODE.to_owned() + IMPORTED
            } else {
                HOST_CODE.to_owned()
            };
            machine
                .shards([&host_code; 2])
                .with_context(|| format!("{linker:?} {flags:?}"))?;
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

const MSVCRT: &str = "/usr/x86_64-w64-mingw32/lib/libmsvcrt.a";

fn flags_of(linker: WindowsLinker) -> &'static [&'static [&'static str]] {
    match linker {
        WindowsLinker::Gnu => &[
            &[],
            &["-s"],
            &["-Wl,--build-id"],
            &[MSVCRT],
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
        for linker in WINDOWS_LINKERS
            .into_iter()
            .filter(|linker| linker.is_there())
        {
            let tree = Tree::new();
            let flags: &[&str] = &[];
            let machine = Machine {
                tree: &tree,
                linker,
                flags,
            };
            let other = HOST_CODE.replace(from, to);
            ensure!(other != HOST_CODE);
            machine.shards([HOST_CODE, &other])?;
            let plan = planned(&tree, CONFIGURATION);
            assert_said(
                &plan,
                Severity::Fault,
                &["linux-c", "vec.dll", "differs: ", part],
            );
        }
    }
    Ok(())
}

/// Numbers that differ by the distance that a section has moved are no addresses if no table says so.
#[test]
fn numbers_that_look_like_moved_addresses_are_an_error() -> Result<()> {
    for declaration in [
        "int number(void) { return NUMBER; }",
        "const volatile unsigned number[4] = { 1, NUMBER, 3, 4 };",
        "const volatile unsigned long long number[4] = { 1, NUMBER, 3, 4 };",
        "volatile unsigned long long number[4] = { 1, BASE + NUMBER, 3, 4 };",
    ] {
        for linker in WINDOWS_LINKERS
            .into_iter()
            .filter(|linker| linker.is_there())
        {
            let tree = Tree::new();
            let machine = Machine {
                tree: &tree,
                linker,
                flags: &[],
            };
            let with = |base: u64, number: u64| {
                let text = declaration.replace("NUMBER", &number.to_string());
                let text = text.replace("BASE", &format!("{base}ull"));
                HOST_CODE.to_owned() + "__declspec(dllexport) " + &text
            };
            // The same number in both.
            machine.shards([&with(0, 1_000_000), &with(0, 1_000_000)])?;
            let plan = planned(&tree, CONFIGURATION);
            assert_eq!(
                plan.errors(),
                0,
                "{linker:?} {declaration}: {:#?}",
                said(&plan)
            );

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

/// The preferred address of a DLL, and the address in it of a section that has moved.
fn moved(dll: &Path) -> Result<(u64, u64)> {
    use object::{Object, ObjectSection};
    let bytes = fs::read(dll)?;
    let file = object::File::parse(&*bytes)?;
    let base = file.relative_address_base();
    let section = file.section_by_name(".reloc").context("relocations")?;
    Ok((base, section.address() - base))
}
