//! Given DLLs and programs for Windows, of each of its linkers, when they are split, then they load as before, no
//! tool finds anything wrong, and joining them undoes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{succeeds, words};
use crate::create::python;
use crate::verified::{assert_found, assert_holds, assert_holds_against, check};
use anyhow::{Context, Result, ensure};
use kpack_artifact::verify::{Options, verify};
use kpack_split::host::Image;
use kpack_split::install::{InstallOptions, Outcome, install};
use kpack_split::join::{JoinOptions, join};
use kpack_split::{Error, ids};
use kpack_tests::fixture::{
    FatLibrary, Storage, Wheel, WindowsBuild, WindowsLinker, code_object, code_with,
    runs_windows_programs, walk,
};
use kpack_tests::process::{output, try_run};
use kpack_tests::require;
use kpack_tests::tree::Tree;
use kpack_tests::windows::signature;

/// Three wrappers, two with plain bundles, with enough device code to free pages.
pub(crate) fn library() -> FatLibrary {
    let device = |target, seed| code_with(target, &vec![seed; 20_000]);
    FatLibrary::new()
        .wrapper(Storage::Plain, [device("gfx1100", 1), device("gfx942", 2)])
        .wrapper(Storage::Plain, [device("gfx1100", 3)])
        .wrapper(Storage::Zstd(2), [device("gfx90a:xnack+", 4)])
}

/// A binary in a prefix, and how it was before.
pub(crate) struct Bench {
    pub(crate) tree: Tree,
    name: &'static str,
    pub(crate) original: PathBuf,
}

impl Bench {
    pub(crate) fn new(library: &FatLibrary, build: WindowsBuild<'_>) -> Result<Self> {
        let tree = Tree::new();
        let name = if build.is_program { "bin/vec.exe" } else { "bin/vec.dll" };
        library.build_for_windows(build, &tree.path(name))?;
        let original = tree.root().with_extension("original").join(name);
        fs::create_dir_all(original.parent().context("a directory")?)?;
        fs::copy(tree.path(name), &original)?;
        Ok(Self { tree, name, original })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.tree.path(self.name)
    }

    pub(crate) fn split(&self) -> Result<u64, Error> {
        let options = InstallOptions::new(self.tree.root(), "vec", [self.name]);
        let report = install(&options, &())?;
        match &report.files[0].outcome {
            Outcome::Split { size_after, .. } => Ok(*size_after),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn join(&self, targets: &[&str]) -> Result<(), Error> {
        let targets = targets.iter().map(|target| target.parse().unwrap());
        let options = JoinOptions::new(self.tree.root(), targets, [self.name]);
        join(&options, &()).map(drop)
    }

    /// Splits it. Nothing finds anything wrong with it, also after other tools.
    pub(crate) fn check(&self) -> Result<()> {
        let fat = runs(&self.original)?;
        ensure!(fat.iter().filter(|line| line.starts_with("FPIH 0 ")).count() == 3);
        self.split()?;
        assert_holds(self.tree.root());
        assert_holds_against(&self.path(), &self.original);
        tools_find_nothing(&self.path())?;
        let split = runs(&self.path())?;
        is_split(&fat, &split)?;

        let bytes = fs::read(self.path())?;
        for tool in TOOLS {
            let mut words = tool.iter();
            let program = words.next().context("a program")?;
            if !require::tool(program) {
                continue;
            }
            try_run(Command::new(program).args(words).arg(self.path()))?;
            let what = || format!("after {tool:?}");
            tools_find_nothing(&self.path()).with_context(what)?;
            is_split(&fat, &runs(&self.path())?).with_context(what)?;
            assert_holds(self.tree.root());
            assert_holds_against(&self.path(), &self.original);
            fs::write(self.path(), &bytes)?;
        }
        Ok(())
    }

    /// Joins it for few and for many targets, and splits it again, which gives the same bytes.
    pub(crate) fn check_join(&self) -> Result<()> {
        let fat = runs(&self.original)?;
        let split = fs::read(self.path())?;
        for targets in [&["gfx942"][..], &["gfx1100", "gfx942", "gfx90a"]] {
            self.join(targets)?;
            assert_holds(self.tree.root());
            assert_holds_against(&self.path(), &self.original);
            tools_find_nothing(&self.path())?;
            let joined = runs(&self.path())?;
            ensure!(joined.len() == fat.len(), "{joined:?}");
            ensure!(joined[0].starts_with("FPIH 0 "), "{joined:?}");
            ensure!(joined.last() == fat.last());
        }
        self.split()?;
        ensure!(fs::read(self.path())? == split, "another split binary");
        Ok(())
    }
}

/// What tools do to binaries that are installed.
const TOOLS: &[&[&str]] = &[
    &["x86_64-w64-mingw32-strip"],
    &["x86_64-w64-mingw32-strip", "--strip-debug"],
    &["x86_64-w64-mingw32-objcopy"],
    &["llvm-strip-19"],
    &["llvm-objcopy-19"],
];

/// The lines that it prints.
pub(crate) fn runs(binary: &Path) -> Result<Vec<String>> {
    if !runs_windows_programs() {
        return Ok(["FPIH 0 ", "FPIH 0 ", "FPIH 0 ", "host"].map(str::to_owned).to_vec());
    }
    let text = walk(binary).with_context(|| format!("{} does not run", binary.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The lines of a split binary: the wrappers have indices, and all point to one marker.
pub(crate) fn is_split(fat: &[String], split: &[String]) -> Result<()> {
    if fat[0] == "FPIH 0 " {
        return Ok(());
    }
    ensure!(fat.last() == split.last() && fat.len() == split.len(), "{split:?}");
    let mut markers = Vec::new();
    for (index, line) in split[..split.len() - 1].iter().enumerate() {
        let marker = line.strip_prefix(&format!("HIPK {index} "));
        markers.push(marker.with_context(|| format!("{split:?}"))?);
    }
    markers.dedup();
    ensure!(markers.len() == 1, "{split:?}");
    Ok(())
}

/// Tools that read headers say nothing about them.
pub(crate) fn tools_find_nothing(binary: &Path) -> Result<()> {
    let commands: [&[&str]; 3] = [
        &["llvm-readobj-19", "--file-headers", "--sections", "--symbols", "--coff-debug-directory"],
        &["x86_64-w64-mingw32-objdump", "-p", "-h", "-t"],
        &["llvm-objdump-19", "-p", "-h"],
    ];
    for command in commands {
        if !require::tool(command[0]) {
            continue;
        }
        let output = output(Command::new(command[0]).args(&command[1..]).arg(binary));
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{command:?}: {said}");
    }
    Ok(())
}

/// Splits and checks what a linker makes with each set of flags, as DLL and as program.
fn each(linker: WindowsLinker, sets: &[&[&str]]) -> Result<()> {
    if !linker.is_there() {
        return Ok(());
    }
    for flags in sets {
        for is_program in [false, true] {
            let build = WindowsBuild { linker, is_program, flags };
            let bench = Bench::new(&library(), build)?;
            bench.check().with_context(|| format!("{build:?}"))?;
            bench.check_join().with_context(|| format!("{build:?}, joined"))?;
        }
    }
    Ok(())
}

#[test]
fn binaries_of_gnu_ld() -> Result<()> {
    each(
        WindowsLinker::Gnu,
        &[
            &[],
            &["-s"],
            &["-g", "-Wl,--build-id"],
            &["-Wl,--disable-long-section-names"],
            &["-Wl,--disable-reloc-section", "-Wl,--no-dynamicbase"],
        ],
    )
}

#[test]
fn binaries_of_lld_as_a_gnu_linker() -> Result<()> {
    each(WindowsLinker::LldGnu, &[&[], &["-s"], &["-g"]])
}

#[test]
fn binaries_of_lld_as_microsofts_linker() -> Result<()> {
    each(
        WindowsLinker::LldLink,
        &[
            &[],
            &["/debug", "/pdb:vec.pdb"],
            &["/release"],
            &["/fixed"],
            &["/filealign:4096"],
            &["/debug:dwarf", "/debug:symtab"],
        ],
    )
}

/// A DLL by lld as Microsoft's linker, or `None` if that is missing.
fn dll(flags: &[&str]) -> Result<Option<Bench>> {
    let build = WindowsBuild { linker: WindowsLinker::LldLink, is_program: false, flags };
    if !build.linker.is_there() {
        return Ok(None);
    }
    Bench::new(&library(), build).map(Some)
}

/// Code that has no room in its former place needs more addresses.
#[test]
fn a_join_beyond_the_largest_image_is_rejected() -> Result<()> {
    let linker = WindowsLinker::Gnu;
    if !linker.is_there() {
        return Ok(());
    }
    let tree = Tree::new();
    let (source, object) = (tree.path("more.c"), tree.path("more.o"));
    let text = "char zeroes[0x7ffa0000];\n__declspec(dllexport) char *more(int n) { return zeroes + n; }\n";
    fs::write(&source, text)?;
    linker.compile(&source, &object)?;
    let build =
        WindowsBuild { linker, is_program: false, flags: &[object.to_str().context("UTF-8")?] };
    let code = ["gfx1100", "gfx942"].map(|target| (target, vec![7; 300_000]));
    let code = code.map(|(target, code)| Ok((target, code_object(target, &code)?)));
    let code = code.into_iter().collect::<Result<Vec<_>>>()?;
    let library = FatLibrary::new().wrapper(Storage::Zstd(2), code);
    let bench = Bench::new(&library, build)?;
    bench.split()?;
    let split = fs::read(bench.path())?;
    let error = bench.join(&["gfx1100", "gfx942"]).unwrap_err();
    let text = error.in_one_line();
    ensure!(text.contains("2 GiB that Windows loads") && text.contains("--arch"), "{text}");
    ensure!(fs::read(bench.path())? == split);
    Ok(())
}

/// A separate debug file has a directory of relocations, but no bytes of them.
#[test]
fn separate_debug_files_stay() -> Result<()> {
    let compiler = "x86_64-w64-mingw32-gcc";
    if !require::tool(compiler) {
        return Ok(());
    }
    let tree = Tree::new();
    let text = "int x[3]; int *p[] = {x, x + 1}; __declspec(dllexport) int f(int n) { return *p[n]; }\n\
                int entry(void *m, unsigned r, void *q) { return 1; }\n";
    fs::write(tree.path("plain.c"), text)?;
    fs::create_dir_all(tree.path("bin"))?;
    let flags = words("-g -shared -nostdlib -Wl,-e,entry -o");
    try_run(
        Command::new(compiler).args(flags).args([tree.path("plain.dll"), tree.path("plain.c")]),
    )?;
    for tool in ["x86_64-w64-mingw32-objcopy", "llvm-objcopy-19"] {
        if !require::tool(tool) {
            continue;
        }
        try_run(
            Command::new(tool)
                .arg("--only-keep-debug")
                .args([tree.path("plain.dll"), tree.path("bin/plain.debug")]),
        )?;
        let before = fs::read(tree.path("bin/plain.debug"))?;
        let install = "split --prefix . --module vec --component lib bin/plain.debug";
        for line in [install, "show bin/plain.debug", "verify bin/plain.debug"] {
            succeeds(&tree, &words(line));
        }
        ensure!(fs::read(tree.path("bin/plain.debug"))? == before, "{tool}");
    }
    Ok(())
}

/// Tools remove debug information at the end of an image, and Windows loads no image with a hole.
#[test]
fn debug_information_is_stripped_from_joined_binaries() -> Result<()> {
    for linker in [WindowsLinker::Gnu, WindowsLinker::LldGnu] {
        if !linker.is_there() {
            continue;
        }
        for tool in TOOLS.iter().filter(|tool| require::tool(tool[0])) {
            let build = WindowsBuild { linker, is_program: false, flags: &["-g"] };
            let bench = Bench::new(&library(), build)?;
            bench.split()?;
            let split = fs::read(bench.path())?;
            // Given more device code than there was, at the end,
            bench.join(&["gfx1100", "gfx942", "gfx90a"])?;
            let joined = fs::read(bench.path())?;
            bench.split()?;
            ensure!(fs::read(bench.path())? == split, "{linker:?}");
            fs::write(bench.path(), joined)?;
            // when debug information is stripped, then the binary is sound, and can be split.
            let mut words = tool.iter();
            let program = words.next().context("a program")?;
            try_run(Command::new(program).args(words).arg(bench.path()))?;
            assert_holds(bench.tree.root());
            assert_holds_against(&bench.path(), &bench.original);
            bench.split().with_context(|| format!("{linker:?} {tool:?}"))?;
            assert_holds_against(&bench.path(), &bench.original);
        }
    }
    Ok(())
}

#[test]
fn a_wrong_size_in_memory_is_found() -> Result<()> {
    let Some(bench) = dll(&[])? else {
        return Ok(());
    };
    bench.split()?;
    // Given another size in memory than that of its sections, in a split binary,
    let split = fs::read(bench.path())?;
    let mut bytes = split.clone();
    let at = signature(&bytes) + 24 + 56;
    bytes[at + 1] ^= 0x10;
    fs::write(bench.path(), &bytes)?;
    // then it is found.
    assert_found(&check(&bench.tree, bench.name), &["damaged-binary", "Windows does not load"]);
    Ok(())
}

/// Given a joined binary whose record of what it was has another word, when it is split, then that is no bug in kpack.
#[test]
fn a_changed_record_of_a_join_is_damage() -> Result<()> {
    for targets in [&["gfx942"][..], &["gfx1100", "gfx942", "gfx90a"]] {
        let Some(bench) = dll(&[])? else {
            return Ok(());
        };
        bench.split()?;
        bench.join(targets)?;
        let joined = fs::read(bench.path())?;
        let magic = joined.windows(8).position(|word| word == b"kpkjoin1");
        let record = magic.context("a record")? + 8 - 80;
        let mut damaged = 0;
        for (word, bit) in (0..8).flat_map(|word| (0..33).map(move |bit| (word, bit))) {
            let mut bytes = joined.clone();
            bytes[record + 8 * word + bit / 8] ^= 1 << (bit % 8);
            fs::write(bench.path(), &bytes)?;
            let Err(error) = bench.split() else {
                // A sound binary, of other sizes.
                assert_holds_against(&bench.path(), &bench.original);
                continue;
            };
            let text = error.in_one_line();
            ensure!(error.id() != ids::UNSOUND_OUTPUT, "word {word}, bit {bit}: {text}");
            ensure!(fs::read(bench.path())? == bytes, "it changed");
            let is_named =
                text.contains("bin/vec.dll") && text.contains("install the unsplit binary");
            damaged += usize::from(error.id() == ids::DAMAGED_BINARY && is_named);
        }
        ensure!(damaged > 100, "{damaged}");
    }
    Ok(())
}

#[test]
fn a_stale_checksum_is_found() -> Result<()> {
    let Some(bench) = dll(&["/release"])? else {
        return Ok(());
    };
    bench.split()?;
    let split = fs::read(bench.path())?;
    let found = |bytes: &[u8]| -> Result<Vec<String>> {
        fs::write(bench.path(), bytes)?;
        let report = check(&bench.tree, bench.name);
        let stale = report.findings.iter().filter(|found| found.id == ids::STALE_CHECKSUM);
        Ok(stale.map(|found| found.text.clone()).collect())
    };
    ensure!(found(&split)?.is_empty());
    // Given another byte in a text of the DOS stub,
    let mut bytes = split.clone();
    bytes[0x50] ^= 1;
    // then it is found, and where the header has no checksum, nothing is.
    let stale = found(&bytes)?;
    ensure!(stale.len() == 1 && stale[0].contains("the header has 0x"), "{stale:?}");
    let at = signature(&bytes) + 24 + 64;
    bytes[at..at + 4].fill(0);
    ensure!(found(&bytes)?.is_empty());
    Ok(())
}

/// The Python adapter writes other search paths into what the command wrote.
#[test]
fn python_writes_the_checksum_of_a_dll() -> Result<()> {
    let Some(bench) = dll(&["/release"])? else {
        return Ok(());
    };
    if !require::tool("python3") {
        return Ok(());
    }
    let script = "from rocm_kpack import coff\n\
                  paths = ['.kpack/a_@GFXARCH@.kpack', '.kpack/b_@GFXARCH@.kpack']\n";
    let path = bench.path();
    python(&bench.tree, &format!("{script}coff.kpack_offload_binary({path:?}, {path:?}, paths)"));
    let image = Image::read(fs::File::open(&path)?)?;
    ensure!(image.stale_checksum()?.is_none(), "{:?}", image.stale_checksum()?);
    Ok(())
}

#[test]
fn linkers_write_the_same_checksum() -> Result<()> {
    for (linker, flags) in [(WindowsLinker::Gnu, &[][..]), (WindowsLinker::LldLink, &["/release"])]
    {
        let build = WindowsBuild { linker, is_program: false, flags };
        if !linker.is_there() {
            continue;
        }
        let bench = Bench::new(&library(), build)?;
        let sums = |path: &Path| -> Result<Option<(u32, u32)>> {
            Ok(Image::read(fs::File::open(path)?)?.stale_checksum()?)
        };
        ensure!(sums(&bench.path())?.is_none(), "{linker:?}");
        let mut bytes = fs::read(bench.path())?;
        bytes.push(1);
        fs::write(bench.path(), bytes)?;
        ensure!(sums(&bench.path())?.is_some(), "{linker:?}, with a byte more");
    }
    Ok(())
}

#[test]
fn a_wheel_for_windows_is_split() -> Result<()> {
    let Some(bench) = dll(&[])? else {
        return Ok(());
    };
    let tree = Tree::new();
    let name = "vec-1.0-py3-none-win_amd64.whl";
    let wheel = Wheel::new(name).member("vec/__init__.py", "x\n");
    let wheel = wheel.member("vec/vec.dll", fs::read(&bench.original)?);
    wheel.write(&tree.path("dist"))?;
    let split = format!("wheel split dist/{name} --output-dir out");
    succeeds(&tree, &words(&split));
    let found = tree.files();
    for target in ["gfx1100", "gfx90a", "gfx942"] {
        let device = format!("out/vec_device_{target}-1.0-py3-none-win_amd64.whl");
        assert!(found.contains(&device), "{found:?}");
    }
    let wheels = found.iter().filter(|file| file.starts_with("out/"));
    let wheels = Vec::from_iter(wheels.map(String::as_str)).join(" ");
    succeeds(&tree, &words(&format!("wheel verify {wheels} --against dist/{name}")));
    let shown = succeeds(&tree, &words(&format!("wheel show out/{name}")));
    assert!(shown.contains("device-gfx1100"), "{shown}");
    Ok(())
}

#[test]
fn an_artifact_with_a_dll_is_split_and_recombined() -> Result<()> {
    let Some(bench) = dll(&[])? else {
        return Ok(());
    };
    let tree = Tree::new();
    let stage = "in/vec_lib/stage";
    fs::create_dir_all(tree.path(stage).join("bin"))?;
    fs::write(tree.path("in/vec_lib/artifact_manifest.txt"), "stage\n")?;
    fs::copy(&bench.original, tree.path(stage).join("bin/vec.dll"))?;
    let split = "artifact split --artifact-dir in/vec_lib --artifact-prefix vec_lib";
    // Two machines build the same for other targets.
    for (shard, targets) in [("one", "gfx1100 gfx942"), ("two", "gfx90a")] {
        let line = format!(
            "{split} --output-dir shards/{shard} --unexpected drop --gpu-targets {targets}"
        );
        succeeds(&tree, &words(&line));
    }
    fs::write(
        tree.path("c.json"),
        r#"{"primary_shard": "one", "architecture_groups": {
            "gfx110X": {"architectures": ["gfx1100"]},
            "instinct": {"architectures": ["gfx90a:xnack+", "gfx942"]}}}"#,
    )?;
    let recombine = "artifact recombine --input-shards-dir shards --config c.json --output-dir out";
    succeeds(&tree, &words(&format!("{recombine} --strict")));
    succeeds(&tree, &words("verify out"));
    let host = tree.path("out/vec_lib_generic/stage/bin/vec.dll");
    is_split(&runs(&bench.original)?, &runs(&host)?)?;
    // The path from `bin` to the archives.
    let shown = succeeds(&tree, &words("show out/vec_lib_generic/stage/bin/vec.dll"));
    assert!(shown.contains("../lib/.kpack/"), "{shown}");
    Ok(())
}

/// Whatever a byte of the headers is, a binary is rejected, or what is written is sound.
#[test]
fn flipped_bytes() -> Result<()> {
    let Some(bench) = dll(&[])? else {
        return Ok(());
    };
    let original = fs::read(&bench.original)?;
    bench.split()?;
    let split = fs::read(bench.path())?;
    bench.join(&["gfx942"])?;
    let joined = fs::read(bench.path())?;
    let mut random = fastrand::Rng::with_seed(7);
    let is_handled = |result: Result<(), Error>, what: &str| match result {
        Err(error) if error.id() == ids::UNSOUND_OUTPUT => panic!("{what}: {error}"),
        Ok(()) | Err(Error::Refused { .. }) => {}
        Err(error) => panic!("{what}: {error:?}"),
    };
    let headers = signature(&original)..0x400;
    let wrappers = original.windows(4).position(|word| word == b"FPIH");
    let wrappers = wrappers.context("wrappers")?;
    for round in 0..600 {
        let place = match round % 4 {
            0 => wrappers..wrappers + 72,
            _ => headers.clone(),
        };
        let (at, bit) = (random.usize(place), 1 << random.u8(0..8));
        let what = format!("bit {bit:#x} at {at:#x}");
        for (bytes, step) in [(&original, "split"), (&split, "join"), (&joined, "split")] {
            let mut bytes = bytes.clone();
            bytes[at] ^= bit;
            fs::write(bench.path(), &bytes)?;
            let options = Options::default();
            let _ = verify(&[bench.path()], &options, &());
            let result = match step {
                "join" => bench.join(&["gfx942"]),
                _ => install(&InstallOptions::new(bench.tree.root(), "vec", [bench.name]), &())
                    .map(drop),
            };
            is_handled(result, &what);
        }
    }
    Ok(())
}
