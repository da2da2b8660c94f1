//! Under wine: what ROCm's own loader for Windows and kpack's take from the archives of a DLL that kpack split, what published
//! DLLs that kpack trimmed register with a HIP runtime, and what a program compiles with published DLLs that kpack staged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use anyhow::{Context, Result, ensure};
use kpack_split::pe;
use kpack_tests::conformance::{ROCM_7_14, check};
use kpack_tests::fixture::{FatLibrary, Storage, WindowsBuild, WindowsLinker, code};
use kpack_tests::require::{self, checked, fetched};
use kpack_tests::sha256;
use kpack_tests::{corpus, windows};
use object::Object;
use object::read::NameOrOrdinal;

use super::trimmed::trim;
use crate::support::{copy, prefix, root, run, work};

/// The targets of the DLL, and the ISA of a GPU for each.
const TARGETS: [(&str, &str); 3] = [
    ("gfx1100", "gfx1100"),
    ("gfx90a:xnack+", "gfx90a:sramecc+:xnack+"),
    ("gfx942", "gfx942:sramecc+:xnack-"),
];

/// A loader, and the program that asks it.
struct Loader {
    path: PathBuf,
    program: PathBuf,
}

impl Loader {
    /// The lines that the program prints.
    fn says(&self, arguments: &[String]) -> Result<Vec<String>> {
        let mut wine = windows::wine(&self.program);
        wine.arg(windows::path(&self.path)).args(arguments);
        let output = wine.output().context("wine")?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(
            output.status.success(),
            "{}: {text}{}",
            self.path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text.lines().map(|line| line.trim().to_owned()).collect())
    }

    /// The ISAs that it finds code for in a DLL, each with the code's size and SHA-256.
    fn loads(&self, library: &Path) -> Result<Vec<String>> {
        let isas = TARGETS.map(|(_, isa)| isa.to_owned());
        let mut loaded = self.says(&[&[windows::path(library)], &isas[..]].concat())?;
        loaded.retain(|line| !line.contains(" error "));
        Ok(loaded)
    }
}

#[test]
#[ignore = "needs mingw-w64 and wine, and ROCm's loader for Windows, which it fetches"]
fn both_loaders_for_windows_load_the_same_code() -> Result<()> {
    if !windows::available() {
        return Ok(());
    }
    let Some((wheel, theirs)) = fetched(corpus::rocm_for_windows()) else {
        return Ok(());
    };
    let work = work("real-windows");
    let program = work.join("windows.exe");
    let root = root();
    let (source, include) = (root.join("tests/real/windows.c"), root.join("kpack-runtime/include"));
    let compiler = windows::COMPILER;
    run!("{compiler} -O2 -static -I {include} -o {program} {source}")?;
    let kind = ["--lib", "--crate-type", "cdylib"];
    let ours = windows::build(&[&["rustc", "-p", "kpack-runtime"], &kind[..]].concat());
    let [theirs, ours] = [theirs, ours].map(|directory| Loader {
        path: directory.join("rocm_kpack.dll"),
        program: program.clone(),
    });

    let library = work.join("prefix/bin/vec.dll");
    let objects = TARGETS.map(|(target, _)| code(target, "add"));
    let build = WindowsBuild { linker: WindowsLinker::Gnu, is_program: false, flags: &[] };
    FatLibrary::new()
        .wrapper(Storage::Plain, objects.clone())
        .build_for_windows(build, &library)?;
    let (kpack, prefix) = (prefix().join("bin/kpack"), work.join("prefix"));
    run!("{kpack} split --quiet --prefix {prefix} --module vec bin/vec.dll")?;

    let expected =
        Vec::from_iter(TARGETS.iter().zip(&objects).map(|((_, isa), (_, bytes))| {
            format!("load {isa} 0 {} {}", bytes.len(), sha256(bytes))
        }));
    let without_features: Vec<String> =
        expected.iter().filter(|line| !line.contains("gfx90a")).cloned().collect();
    let loads = [theirs.loads(&library)?, ours.loads(&library)?];
    ensure!(
        loads == [without_features.clone(), expected.clone()],
        "from archives with names of Windows, the loaders load {loads:#?}"
    );
    let archives = prefix.join("lib/.kpack");
    let archive = archives.join("vec_lib_gfx90a-xnack+.kpack");
    let path = windows::path(&archive);
    let opened = [theirs.says(slice::from_ref(&path))?, ours.says(&[path])?];
    ensure!(
        opened[0] == opened[1] && opened[0].len() == 1 && !opened[0][0].contains("error"),
        "the loaders read {opened:#?} from {}",
        archive.display()
    );
    // On NTFS, such a name leads to another stream of a file, so kpack looks for none; wine has such files.
    fs::rename(&archive, archives.join("vec_lib_gfx90a:xnack+.kpack"))?;
    let loads = [theirs.loads(&library)?, ours.loads(&library)?];
    ensure!(
        loads == [expected, without_features],
        "from an archive with a colon in its name, the loaders load {loads:#?}"
    );
    let vectors = check(&theirs.path, ROCM_7_14)?;
    let version = run!("wine --version")?;
    checked(&format!("{vectors} vectors, {} for Windows", ROCM_7_14));
    checked(&format!(
        "{wheel} and kpack {} load the same code under {}; ROCm's finds no archive with `-` for `:` in its name",
        env!("CARGO_PKG_VERSION"),
        version.trim()
    ));
    Ok(())
}

/// A HIP runtime for Windows that writes each registered bundle, which is compressed, into a file.
const REGISTER: &str = r#"#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wrapper {
    uint32_t magic, version;
    const char *bundle;
};

__declspec(dllexport) void **__hipRegisterFatBinary(const struct wrapper *wrapper) {
    static int number;
    char name[32];
    uint16_t version;
    uint32_t size;
    if (memcmp(&wrapper->magic, "FPIH", 4) || memcmp(wrapper->bundle, "CCOB", 4))
        abort();
    memcpy(&version, wrapper->bundle + 4, sizeof version);
    memcpy(&size, wrapper->bundle + 8, sizeof size);
    if (version < 2)
        abort();
    sprintf(name, "%d.hipfb", number++);
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(wrapper->bundle, 1, size, file) != size || fclose(file))
        abort();
    return (void **)wrapper;
}
"#;

const LOAD: &str = r#"#include <stdio.h>
#include <windows.h>
int main(int count, char **arguments) {
    if (!LoadLibraryA(arguments[count - 1]))
        return fprintf(stderr, "error %lu\n", GetLastError()), 1;
    return 0;
}
"#;

/// DLLs as their author published them register the code of the chosen GPUs after `kpack trim` as before, for one
/// GPU and for two.
#[test]
#[ignore = "needs mingw-w64 and wine, and fetches bitsandbytes for Windows"]
fn trimmed_dlls_register_the_same_code() -> Result<()> {
    if !windows::available() {
        return Ok(());
    }
    let Some(dlls) = fetched(corpus::dlls()) else {
        return Ok(());
    };
    let work = work("real-windows-trimmed");
    let (program, source, compiler) =
        (work.join("load.exe"), work.join("load.c"), windows::COMPILER);
    fs::write(&source, LOAD)?;
    run!("{compiler} -O2 -static -o {program} {source}")?;
    let mut count = 0;
    for dll in &dlls {
        stub_imports(&fs::read(dll)?, &work)?;
        let before = registered(dll, &program, &work)?;
        for chosen in [&["gfx1100"][..], &["gfx1100", "gfx1201"]] {
            let copy = work.join("trimmed.dll");
            fs::copy(dll, &copy)?;
            trim(&copy, chosen)?;
            let after = registered(&copy, &program, &work)?;
            let is_chosen = |name: &&String| {
                chosen.iter().any(|target| name.ends_with(&format!("-{target}.hsaco")))
            };
            let kept = before.iter().filter(|(name, _)| is_chosen(name));
            let expected =
                BTreeMap::from_iter(kept.map(|(name, code)| (name.clone(), code.clone())));
            ensure!(
                after == expected && !after.is_empty() && after.len() < before.len(),
                "{}, trimmed for {chosen:?}, registers {:?}; before {:?}",
                dll.display(),
                after.keys(),
                before.keys()
            );
            count += after.len();
        }
    }
    checked(&format!("{} DLLs, {count} code objects", dlls.len()));
    Ok(fs::remove_dir_all(work)?)
}

/// What a DLL registers when a program loads it: the SHA-256 of each code object, by its bundle and target.
fn registered(dll: &Path, program: &Path, work: &Path) -> Result<BTreeMap<String, String>> {
    let directory = work.join("registered");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory)?;
    let mut wine = windows::wine(program);
    let output = wine.arg(windows::path(dll)).current_dir(&directory).output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        dll.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let (kpack, mut found) = (prefix().join("bin/kpack"), BTreeMap::new());
    for bundle in fs::read_dir(&directory)? {
        let bundle = bundle?.path();
        let code = work.join("code");
        let _ = fs::remove_dir_all(&code);
        run!("{kpack} extract --quiet {bundle} --output-dir {code}")?;
        for object in fs::read_dir(code)? {
            let object = object?;
            let digest = sha256(&fs::read(object.path())?);
            found.insert(object.file_name().to_string_lossy().into_owned(), digest);
        }
    }
    Ok(found)
}

/// Makes stubs of the libraries of ROCm that a DLL needs.
fn stub_imports(dll: &[u8], directory: &Path) -> Result<()> {
    let mut functions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for import in object::File::parse(dll)?.imports()? {
        let import = import?;
        let (library, NameOrOrdinal::Name(name)) = (import.library(), import.name()) else {
            continue;
        };
        let [library, name] = [library, name].map(|text| String::from_utf8(text.to_vec()));
        let (library, name) = (library?, name?);
        if ["hip", "roc"].iter().any(|start| library.contains(start)) {
            functions.entry(library).or_default().insert(name);
        }
    }
    for (library, functions) in &functions {
        let mut code = String::new();
        if library.starts_with("amdhip64") {
            code += REGISTER;
        }
        for function in functions.iter().filter(|name| *name != "__hipRegisterFatBinary") {
            code += &format!("__declspec(dllexport) int {function}(void) {{ return 0; }}\n");
        }
        let (source, library) = (directory.join("stub.c"), directory.join(library));
        fs::write(&source, code)?;
        let compiler = windows::COMPILER;
        run!("{compiler} -O2 -shared -o {library} {source}")?;
    }
    ensure!(!functions.is_empty(), "it needs no library of ROCm");
    Ok(())
}

/// Compiles a kernel, for which hipRTC loads comgr by name.
pub(super) const COMPILE: &str = r#"#include <stdio.h>
typedef struct program *hiprtcProgram;
int hiprtcCreateProgram(hiprtcProgram *, const char *, const char *, int, const char **,
                        const char **);
int hiprtcCompileProgram(hiprtcProgram, int, const char **);
int hiprtcGetCodeSize(hiprtcProgram, size_t *);
int hipRuntimeGetVersion(int *);

int main(void) {
    const char *code = "extern \"C\" __global__ void root(float *a) { *a = sqrtf(*a); }";
    const char *option = "--offload-arch=gfx1100";
    hiprtcProgram program;
    size_t size = 0;
    int version = 0;
    if (hipRuntimeGetVersion(&version) ||
        hiprtcCreateProgram(&program, code, "root", 0, 0, 0) ||
        hiprtcCompileProgram(program, 1, &option) || hiprtcGetCodeSize(program, &size))
        return 1;
    printf("HIP %d, %zu bytes\n", version, size);
    return !size;
}
"#;

/// Given a program with ROCm's DLLs beside it, when it is staged, then it runs without the original, and the doctor names each
/// DLL that it cannot do without.
#[test]
#[ignore = "needs mingw-w64 and wine, and ROCm's DLLs for Windows, which it fetches"]
fn a_staged_program_compiles_what_it_did() -> Result<()> {
    if !windows::available() {
        return Ok(());
    }
    let Some((wheel, dlls)) = fetched(corpus::rocm_for_windows()) else {
        return Ok(());
    };
    let work = work("real-windows-staged");
    let (build, output, compiler) = (work.join("build"), work.join("dist"), windows::COMPILER);
    copy(&dlls, &build);
    let (source, program) = (work.join("compile.c"), build.join("compile.exe"));
    fs::write(&source, COMPILE)?;
    let [hiprtc, hip] = ["hiprtc0714.dll", "amdhip64_7.dll"].map(|name| build.join(name));
    run!("{compiler} -O2 -static -o {program} {source} {hiprtc} {hip}")?;
    let said = |program: &Path| {
        let output = windows::wine(program).output()?;
        let text = String::from_utf8(output.stdout)?;
        anyhow::Ok((output.status.success(), text))
    };
    let before = said(&program)?;
    ensure!(before.0, "{before:?}");
    let kpack = prefix().join("bin/kpack");
    run!("{kpack} stage --quiet {program} --output-dir {output}")?;
    fs::remove_dir_all(build)?;
    let staged = fs::read_dir(output.join("bin"))?.flatten();
    let staged = staged.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let staged = BTreeSet::from_iter(staged);
    let expected = [
        "amd_comgr.dll",
        "amdhip64_7.dll",
        "compile.exe",
        "hiprtc-builtins0714.dll",
        "hiprtc0714.dll",
        "rocm_kpack.dll",
    ];
    ensure!(staged.iter().eq(expected), "{staged:?}");
    let program = output.join("bin/compile.exe");
    let after = said(&program)?;
    ensure!(after == before, "{after:?}, not {before:?}");
    let mut missed = Vec::new();
    for name in staged.iter().filter(|name| *name != "compile.exe") {
        let (path, away) = (output.join("bin").join(name), work.join(name));
        fs::rename(&path, &away)?;
        let doctor =
            Command::new(&kpack).args(["doctor", "--arch", "gfx1100"]).arg(&program).output()?;
        let is_missed = String::from_utf8(doctor.stdout)?.contains(&format!("{name}, which"));
        let runs = said(&program)? == before;
        ensure!(
            is_missed != runs,
            "without {name}: runs {runs}, and the doctor misses it {is_missed}"
        );
        missed.extend(is_missed.then_some(name));
        fs::rename(away, path)?;
    }
    ensure!(missed.len() == 4, "{missed:?}");
    let [before, missed] = [before.1.trim(), &format!("{missed:?}")];
    checked(&format!("{wheel}, staged: {before}; missed if removed: {missed}"));
    Ok(fs::remove_dir_all(work)?)
}

#[test]
#[ignore = "needs mingw-w64, and ROCm's DLLs for Windows, which it fetches"]
fn the_dlls_that_published_ones_need_are_those_that_objdump_lists() -> Result<()> {
    const OBJDUMP: &str = "x86_64-w64-mingw32-objdump";
    if !require::tool(OBJDUMP) {
        return Ok(());
    }
    let Some((_, directory)) = fetched(corpus::rocm_for_windows()) else {
        return Ok(());
    };
    let mut compared = 0;
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "dll") {
            continue;
        }
        let image = pe::Image::read(fs::File::open(&path)?)?;
        // It does not list those that are loaded later.
        let own = image.imported_dlls()?.into_iter().filter(|dll| !dll.is_delayed);
        let own = Vec::from_iter(own.map(|dll| String::from_utf8_lossy(&dll.name).into_owned()));
        let listed = run!("{OBJDUMP} -p {path}")?;
        let listed = listed.lines().filter_map(|line| line.trim().strip_prefix("DLL Name: "));
        ensure!(own == Vec::from_iter(listed), "{}: {own:?}", path.display());
        compared += 1;
    }
    ensure!(compared > 5, "{compared} DLLs");
    Ok(())
}
