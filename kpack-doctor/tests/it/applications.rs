//! Given an application that was copied with all that it needs, for Linux or for Windows, when a file of it is missing or in the
//! wrong place, then the doctor names it, and says what to do.

use std::fs;
use std::process::Command;

use kpack_core::Severity;
use kpack_doctor::{Options, Report, Scope, examine};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, WindowsBuild, WindowsLinker, code_object, lazy_library,
    library_of_kernels, stub_dll, stub_library,
};
use kpack_tests::process::run;
use kpack_tests::removed::each_file;
use kpack_tests::tree::Tree;
use kpack_tests::{require, windows};

use crate::machine::{code, kpack_loader, reading_runtime, split_files};

/// The GPU of the application.
const GPU: &str = "gfx1100";
/// What the HIP runtime loads by name, and the loader of it that it is linked with.
const COMGR: [&str; 2] = ["libamd_comgr.so.3", "libamd_comgr_loader.so.1"];
/// Libraries that the program needs besides.
const OTHERS: usize = 16;

/// Whether only the files of the application count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Application,
    Machine,
}

fn report_of(tree: &Tree, program: &str, counts: Counts) -> Report {
    report_of_all(tree, &[program], counts)
}

fn report_of_all(tree: &Tree, paths: &[&str], counts: Counts) -> Report {
    let mut options = Options::default();
    options.targets = vec![GPU.parse().unwrap()];
    options.system = tree.path("system");
    if counts == Counts::Application {
        let directory = Some(tree.path("app"));
        options.scope = Some(Scope { directory, ..Scope::default() });
    }
    let paths = Vec::from_iter(paths.iter().map(|path| tree.path(path)));
    examine(&paths, &options).unwrap()
}

/// The findings that are at least this severe, each with its ID and what to do.
fn found(report: &Report, least: Severity, tree: &Tree) -> Vec<String> {
    let findings = report.findings.iter().map(|found| &found.finding);
    let severe = findings.filter(|finding| finding.severity >= least);
    let lines = severe.map(|finding| {
        let help = finding.help.as_deref().unwrap_or_default();
        let text =
            format!("{} [{}] {}; {help}", finding.file().display(), finding.id, finding.text);
        text.replace(tree.root().to_str().unwrap(), "/tree")
    });
    lines.collect()
}

/// What is wrong with a program, as one text.
fn faults(tree: &Tree, program: &str, counts: Counts) -> String {
    if !tree.path(program).exists() {
        return format!("{program} is missing");
    }
    found(&report_of(tree, program, counts), Severity::Fault, tree).join("\n")
}

/// rocBLAS's kernel database for the GPU, as rocBLAS 6.4 writes it, and a part of that for another GPU.
fn database(tree: &Tree, directory: &str) {
    let put = |name: &str, bytes: Vec<u8>| tree.write(&format!("{directory}/{name}"), bytes);
    let stem = format!("TensileLibrary_Type_SS_{GPU}");
    let fallback = "TensileLibrary_Type_SS_fallback";
    let object = || code_object(GPU, b"kernel").unwrap();
    put(&format!("TensileLibrary_lazy_{GPU}.dat"), lazy_library(GPU, &[&stem, fallback]).unwrap());
    put(&format!("{stem}.dat"), library_of_kernels(&[GPU], &[false, true]).unwrap());
    put(&format!("{stem}.co"), object());
    put(&format!("{stem}.hsaco"), object());
    put(&format!("{fallback}.dat"), library_of_kernels(&[], &[true]).unwrap());
    put(&format!("{fallback}_{GPU}.hsaco"), object());
    put(&format!("Kernels.so-000-{GPU}.hsaco"), object());
    put("TensileLibrary_lazy_gfx942.dat", lazy_library("gfx942", &["not-there"]).unwrap());
}

/// A program with ROCm, its libraries and archives in the directory `app`.
fn for_linux() -> Tree {
    let tree = Tree::new();
    let at = |name: &str| tree.path(&format!("app/lib/{name}"));
    let stub = |name: &str, code: &str, needed: &[&str]| {
        let needed = Vec::from_iter(needed.iter().map(|name| at(name)));
        stub_library(&at(name), code, &Vec::from_iter(needed.iter().map(|path| &**path)));
    };
    for name in ["libnuma.so.1", "libelf.so.1", "libLLVM.so.21.1"] {
        stub(name, "", &[]);
    }
    stub("libhsa-runtime64.so.1", "", &["libnuma.so.1", "libelf.so.1"]);
    let [comgr, comgr_loader] = COMGR;
    stub(comgr, "", &["libLLVM.so.21.1"]);
    stub(comgr_loader, "", &[]);
    kpack_loader(&tree, "app/lib/librocm_kpack.so.0");
    let code = format!(
        "int kpack_load_code_object(void);\n\
         int (*loads)(void) = kpack_load_code_object;\n\
         const char comgr[] = \"{comgr}\";"
    );
    let needed = ["librocm_kpack.so.0", "libhsa-runtime64.so.1", comgr_loader];
    stub("libamdhip64.so.7", &code, &needed);
    stub("librocblas.so.5", "", &["libamdhip64.so.7"]);
    database(&tree, "app/lib/rocblas/library");
    let mut program = FatLibrary::new().kind(Kind::Pie);
    for number in 0..OTHERS {
        let name = format!("libother{number}.so.1");
        let before = format!("libother{}.so.1", number.saturating_sub(1));
        let needed = [&*before];
        // Each second one is needed by another library.
        let is_last = number % 2 == 1;
        stub(&name, "", if is_last { &needed } else { &[] });
        if is_last {
            program = program.linked_with(at(&name), "$ORIGIN/../lib");
        }
    }
    let library = FatLibrary::new().flag("-Wl,-soname,libvec.so");
    let library = library.wrapper(Storage::Plain, [self::code(GPU, 1)]);
    let library = library.linked_with(at("libamdhip64.so.7"), "$ORIGIN");
    library.build(&at("libvec.so")).unwrap();
    for name in ["libvec.so", "librocblas.so.5"] {
        program = program.linked_with(at(name), "$ORIGIN/../lib");
    }
    program.build(&tree.path("app/bin/program")).unwrap();
    split_files(&tree, "app", &["lib/libvec.so"]);
    tree.write("app/share/LICENSE", "");
    tree
}

const PROGRAM: &str = "app/bin/program";

#[test]
fn each_file_of_an_application_for_linux_is_missed() {
    let tree = for_linux();
    let report = report_of(&tree, PROGRAM, Counts::Application);
    assert_eq!(report.loads, Some(true), "{report:#?}");
    let removed = each_file(&tree.path("app"), || faults(&tree, PROGRAM, Counts::Application));
    assert!(removed.missed.len() >= 30, "{removed:#?}");
    // Loaders do not read manifests.
    assert_eq!(
        removed.unnoticed,
        [
            "lib/.kpack/vec_lib.kpm",
            "lib/rocblas/library/TensileLibrary_lazy_gfx942.dat",
            "share/LICENSE"
        ]
    );
    // Without a scope, this machine's libraries count as well.
    fs::remove_file(tree.path("app/lib/libother3.so.1")).unwrap();
    let said = faults(&tree, PROGRAM, Counts::Machine);
    assert_eq!(
        said,
        "/tree/app/bin/program [missing-library] needs libother3.so.1, which was not found; install the package that \
         contains it, or add its directory to LD_LIBRARY_PATH"
    );
}

/// Given an application whose files are complete with others elsewhere, then those do not count.
#[test]
fn files_outside_of_an_application_do_not_count() {
    for (inside, expected) in [
        ("lib/libother3.so.1", "needs libother3.so.1, which was not found"),
        ("lib/.kpack/vec_lib_gfx1100.kpack", "is outside of the directory: `"),
    ] {
        let tree = for_linux();
        let other = tree.path("elsewhere");
        fs::rename(tree.path(&format!("app/{inside}")), &other).unwrap();
        std::os::unix::fs::symlink(&other, tree.path(&format!("app/{inside}"))).unwrap();
        assert_eq!(faults(&tree, PROGRAM, Counts::Machine), "", "{inside}");
        let said = faults(&tree, PROGRAM, Counts::Application);
        assert!(said.contains(expected), "{inside}: {said}");
    }
}

/// Given archives that were copied to another directory, then the doctor says where they are, and its command brings them to
/// their place, if one rename does.
#[test]
fn archives_in_the_wrong_directory() {
    const ARCHIVE: &str = "vec_lib_gfx1100.kpack";
    let original = for_linux();
    let remedy = |tree: &Tree| {
        let report = report_of(tree, PROGRAM, Counts::Machine);
        let cause = report.cause().unwrap();
        assert_eq!(cause.finding.id.as_str(), "missing-archive");
        let root = tree.root().to_str().unwrap();
        let command = report.remedy.as_ref().map(|remedy| remedy.command.replace(root, "/tree"));
        if let Some(remedy) = &report.remedy {
            run(Command::new(&remedy.program).args(&remedy.arguments));
            assert_eq!(report_of(tree, PROGRAM, Counts::Machine).loads, Some(true));
        }
        (cause.finding.text.replace(root, "/tree"), command)
    };
    let text = |found: &str| {
        format!(
            "split, but the archive for gfx1100 is in the wrong directory: `/tree/app/{found}`; the marker leads to \
             `/tree/app/lib/.kpack/{ARCHIVE}`"
        )
    };

    let tree = original.copy();
    fs::rename(tree.path("app/lib/.kpack"), tree.path("app/.kpack")).unwrap();
    let mv = "mv /tree/app/.kpack /tree/app/lib/.kpack".to_owned();
    assert_eq!(remedy(&tree), (text(&format!(".kpack/{ARCHIVE}")), Some(mv)));

    // Archives of others stay where they are.
    let tree = original.copy();
    fs::rename(tree.path("app/lib/.kpack"), tree.path("app/.kpack")).unwrap();
    tree.write("app/.kpack/other_lib_gfx1100.kpack", "");
    assert_eq!(remedy(&tree), (text(&format!(".kpack/{ARCHIVE}")), None));
    fs::create_dir(tree.path("app/lib/.kpack")).unwrap();
    let mv = format!("mv /tree/app/.kpack/{ARCHIVE} /tree/app/lib/.kpack/{ARCHIVE}");
    assert_eq!(remedy(&tree), (text(&format!(".kpack/{ARCHIVE}")), Some(mv)));

    // Beside the library.
    let tree = original.copy();
    let archive = format!("app/lib/.kpack/{ARCHIVE}");
    fs::rename(tree.path(&archive), tree.path(&format!("app/lib/{ARCHIVE}"))).unwrap();
    let mv = format!("mv /tree/app/lib/{ARCHIVE} /tree/{archive}");
    assert_eq!(remedy(&tree), (text(&format!("lib/{ARCHIVE}")), Some(mv)));

    // One of another build would not help.
    let tree = original.copy();
    let other = FatLibrary::new().wrapper(Storage::Plain, [code(GPU, 2)]);
    other.build(&tree.path("other/lib/libvec.so")).unwrap();
    split_files(&tree, "other", &["lib/libvec.so"]);
    fs::remove_file(tree.path(&archive)).unwrap();
    tree.copy_file(&format!("other/lib/.kpack/{ARCHIVE}"), &format!("app/.kpack/{ARCHIVE}"));
    let said = faults(&tree, PROGRAM, Counts::Machine);
    assert!(said.contains("the archive for gfx1100 is missing"), "{said}");
}

/// Given a split library that was copied without its archives, then the doctor says so, and where they belong; but not if there
/// are archives for other GPUs near it, or a manifest, which a package installs.
#[test]
fn a_library_that_was_copied_without_its_archives() {
    let original = for_linux();
    let said = |change: fn(&Tree)| {
        let tree = original.copy();
        fs::rename(tree.path("app/lib/.kpack"), tree.path("kept")).unwrap();
        change(&tree);
        faults(&tree, PROGRAM, Counts::Machine)
    };
    let expected = |advice: &str| {
        format!(
            "/tree/app/lib/libvec.so [missing-archive] split, but the archive for gfx1100 is missing: \
             `/tree/app/lib/.kpack/vec_lib_gfx1100.kpack`; {advice}"
        )
    };
    let copied = "the file was probably copied without its archives: copy them from the same place to \
                  `/tree/app/lib/.kpack`, or install their package";
    let installed = "install the package that contains it";
    assert_eq!(said(|_| ()), expected(copied));
    assert_eq!(
        said(|tree| tree.write("app/lib/.kpack/other_lib_gfx1100.kpack", "")),
        expected(copied)
    );
    assert_eq!(said(|tree| tree.write("app/.kpack/vec_lib_gfx942.kpack", "")), expected(installed));
    let with_manifest =
        |tree: &Tree| tree.copy_file("kept/vec_lib.kpm", "app/lib/.kpack/vec_lib.kpm");
    assert_eq!(said(with_manifest), expected(installed));
}

#[test]
fn libraries_without_their_kernel_databases() {
    let tree = for_linux();
    fs::remove_dir_all(tree.path("app/lib/rocblas")).unwrap();
    for counts in [Counts::Application, Counts::Machine] {
        assert_eq!(
            faults(&tree, PROGRAM, counts),
            "/tree/app/lib/librocblas.so.5 [missing-database] the kernel database rocblas is missing: looked for \
             `/tree/app/lib/rocblas/library`; this library fails without it; copy this directory from the ROCm that the \
             library is from"
        );
    }
    // What is for all GPUs was copied alone.
    tree.write("app/lib/rocblas/5/library/TensileLibrary.dat", "");
    assert_eq!(
        faults(&tree, PROGRAM, Counts::Application),
        "/tree/app/lib/librocblas.so.5 [missing-database] the kernel database rocblas has no file for any GPU in \
         `/tree/app/lib/rocblas/5/library`; this library fails without it; copy this directory from the ROCm that the \
         library is from"
    );
    // These work without theirs.
    for (name, database) in [
        ("libMIOpen.so.1", "share/miopen/db"),
        ("librocfft-5e17f420.so.0.1", "lib/rocfft"),
        ("libhipblaslt.so.1", "lib/hipblaslt/library"),
    ] {
        let library = format!("app/lib/{name}");
        stub_library(&tree.path(&library), "", &[]);
        let notes =
            |counts| found(&report_of(&tree, &library, counts), Severity::Note, &tree).join("\n");
        let severity = |text: &str| text.contains(&format!("looked for `/tree/app/{database}`"));
        assert!(severity(&notes(Counts::Application)), "{}", notes(Counts::Application));
        let is_fault = faults(&tree, &library, Counts::Application).contains(database);
        assert_eq!(is_fault, name.contains("hipblaslt"), "{name}");
    }
    tree.write("app/share/miopen/db/gfx1100.kdb", "");
    tree.write("app/lib/rocfft/rocfft_kernel_cache.db", "");
    // That of ROCm 7.14 has its kernels in archives.
    let library = FatLibrary::new().wrapper(Storage::Plain, [code(GPU, 1)]);
    library.build(&tree.path("app/lib/split/librocfft.so.0")).unwrap();
    split_files(&tree, "app", &["lib/split/librocfft.so.0"]);
    for name in ["libMIOpen.so.1", "librocfft-5e17f420.so.0.1", "split/librocfft.so.0"] {
        let report = report_of(&tree, &format!("app/lib/{name}"), Counts::Machine);
        let notes = found(&report, Severity::Note, &tree).join("\n");
        assert!(!notes.contains("missing-database"), "{notes}");
    }
}

/// Given a library without a run path that a program loads by name, then it finds others through the program's DT_RPATH, if the
/// caller names both files, or their directory.
#[test]
fn libraries_that_programs_load_by_name() {
    let tree = Tree::new();
    let hip = "libamdhip64.so.7";
    stub_library(&tree.path("app/lib").join(hip), "", &[]);
    tree.write("main.c", "int main(void) { return 0; }");
    fs::create_dir_all(tree.path("app/bin")).unwrap();
    for (name, flags) in [
        ("program", "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib"),
        ("new", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib"),
        ("none", "-Wl,--enable-new-dtags"),
    ] {
        let mut cc = Command::new("cc");
        cc.args(["main.c", flags, "-o"]).arg(tree.path("app/bin").join(name));
        run(cc.current_dir(tree.root()));
    }
    let plugin = "app/bin/libplugin.so";
    let library = FatLibrary::new().wrapper(Storage::Plain, [code(GPU, 1)]);
    let linked = library.clone().flag("-Wl,--no-as-needed").flag(tree.path("app/lib").join(hip));
    linked.build(&tree.path(plugin)).unwrap();

    let faults = |paths: &[&str]| {
        let report = report_of_all(&tree, paths, Counts::Machine);
        found(&report, Severity::Fault, &tree).join("\n")
    };
    for paths in [&[PROGRAM, plugin][..], &[plugin, PROGRAM], &["app"], &["app/bin"]] {
        assert_eq!(faults(paths), "", "{paths:?}");
    }
    let is_missing = |said: &str, by: &str| {
        let missing = format!("/tree/{by} needs {hip}, which was not found");
        assert!(said.contains(&missing) && !said.contains("another version"), "{said}");
    };
    for paths in [&[plugin][..], &["app/bin/new", plugin], &["app/bin/none", plugin]] {
        is_missing(&faults(paths), plugin);
    }
    // A library with a run path inherits none.
    let linked = library.linked_with(tree.path("app/lib").join(hip), "$ORIGIN/elsewhere");
    linked.flag("-Wl,--enable-new-dtags").build(&tree.path("app/lib/libown.so")).unwrap();
    is_missing(&faults(&[PROGRAM, "app/lib/libown.so"]), "app/lib/libown.so");
    fs::remove_file(tree.path("app/lib/libown.so")).unwrap();
    // Other programs of a prefix do not load a library that is not where they search.
    let elsewhere = "app/share/libplugin.so";
    fs::create_dir_all(tree.path("app/share")).unwrap();
    fs::copy(tree.path(plugin), tree.path(elsewhere)).unwrap();
    is_missing(&faults(&["app"]), elsewhere);
    assert_eq!(faults(&[PROGRAM, elsewhere]), "");
}

/// Given a library beside the one that needs it, which no run path leads to, then that is no other version of it.
#[test]
fn a_library_that_no_run_path_leads_to() {
    let tree = Tree::new();
    stub_library(&tree.path("lib/libneeded.so.1"), "", &[]);
    stub_library(&tree.path("lib/libneeded.so.2"), "", &[]);
    let library = FatLibrary::new().wrapper(Storage::Plain, [code(GPU, 1)]);
    let needed = tree.path("lib/libneeded.so.1");
    let library = library.flag("-Wl,--no-as-needed").flag(&needed);
    library.build(&tree.path("lib/libvec.so")).unwrap();
    let needs = "needs libneeded.so.1, which was not found";
    let other = format!("{needs}; /tree/lib/libneeded.so.2 is another version");
    for (gone, expected) in [("libneeded.so.1", &*other), ("libneeded.so.2", needs)] {
        let (path, hidden) = (tree.path("lib").join(gone), tree.path("hidden"));
        fs::rename(&path, &hidden).unwrap();
        let said = faults(&tree, "lib/libvec.so", Counts::Machine);
        fs::rename(&hidden, &path).unwrap();
        assert!(said.contains(&format!(" {expected}; install the package")), "{gone}: {said}");
    }
}

/// A loader of another version is there under another name, or lacks functions.
#[test]
fn loaders_of_other_versions() {
    let tree = for_linux();
    fs::remove_file(tree.path("app/lib/librocm_kpack.so.0")).unwrap();
    kpack_loader(&tree, "app/lib/librocm_kpack.so.1");
    let said = faults(&tree, PROGRAM, Counts::Machine);
    assert!(
        said.contains(
            "needs librocm_kpack.so.0, which was not found; /tree/app/lib/librocm_kpack.so.1 is another version"
        ),
        "{said}"
    );

    let tree = Tree::new();
    reading_runtime(&tree, "app/lib/libamdhip64.so.7", "app/lib/librocm_kpack.so.0");
    let report = || faults(&tree, "app/lib/libamdhip64.so.7", Counts::Machine);
    assert_eq!(report(), "");
    let loader = tree.path("app/lib/librocm_kpack.so.0");
    let new = "int kpack_load_code_object(void) { return 1; }\nint kpack_later(void) { return 1; }";
    stub_library(&tree.path("new/librocm_kpack.so.0"), new, &[]);
    let calls = "int kpack_load_code_object(void);\nint kpack_later(void);\n\
                 int (*loads[])(void) = { kpack_load_code_object, kpack_later };";
    let new = tree.path("new/librocm_kpack.so.0");
    stub_library(&tree.path("app/lib/libamdhip64.so.7"), calls, &[&new]);
    assert_eq!(
        report(),
        "/tree/app/lib/librocm_kpack.so.0 [loader-version] this loader does not have kpack_later, which the HIP runtime \
         /tree/app/lib/libamdhip64.so.7 calls: they are from different versions; copy the loader from the ROCm that the \
         HIP runtime is from"
    );
    fs::copy(&new, &loader).unwrap();
    assert_eq!(report(), "");
}

/// A program for Windows with ROCm's DLLs beside it; `None` if they cannot be built.
fn for_windows() -> Option<Tree> {
    if !require::tool(windows::COMPILER) {
        return None;
    }
    let tree = Tree::new();
    let at = |name: &str| tree.path(&format!("app/bin/{name}"));
    let stub = |name: &str, code: &str, needed: &[&str]| {
        let needed = Vec::from_iter(needed.iter().map(|name| at(name)));
        stub_dll(&at(name), code, &Vec::from_iter(needed.iter().map(|path| &**path)));
    };
    stub("amd_comgr.dll", "", &[]);
    stub(
        "rocm_kpack.dll",
        "__declspec(dllexport) int kpack_load_code_object(void) { return 1; }",
        &[],
    );
    let code = "__declspec(dllimport) int kpack_load_code_object(void);\n\
                __declspec(dllexport) int loads(void) { return kpack_load_code_object(); }\n\
                __declspec(dllexport) const char comgr[] = \"amd_comgr.dll\";";
    stub("amdhip64_7.dll", code, &["rocm_kpack.dll"]);
    stub("rocblas.dll", "", &["amdhip64_7.dll"]);
    database(&tree, "app/bin/rocblas/library");
    stub("Other.dll", "", &[]);
    // The program asks for the name that the linker gave it.
    fs::rename(at("Other.dll"), at("oTHER.DLL")).unwrap();
    tree.write("vec.c", "__declspec(dllimport) int stub_amdhip64_7_dll(void);\nint (*needed)(void) = stub_amdhip64_7_dll;");
    let object = tree.path("vec.o");
    WindowsLinker::Gnu.compile(&tree.path("vec.c"), &object).unwrap();
    let library = FatLibrary::new().wrapper(Storage::Plain, [self::code(GPU, 1)]);
    let flags =
        [object.to_str().unwrap(), at("amdhip64_7.dll").to_str().unwrap()].map(str::to_owned);
    let flags = flags.each_ref().map(|flag| &**flag);
    let build = WindowsBuild { linker: WindowsLinker::Gnu, is_program: false, flags: &flags };
    library.build_for_windows(build, &at("vec.dll")).unwrap();
    stub("program.exe", "", &["rocblas.dll", "oTHER.DLL"]);
    install(&InstallOptions::new(tree.path("app"), "vec", ["bin/vec.dll"]), &()).unwrap();
    Some(tree)
}

/// What is wrong with a program for Windows and with a DLL that it loads by name.
fn faults_for_windows(tree: &Tree, counts: Counts) -> String {
    let said = ["app/bin/program.exe", "app/bin/vec.dll"].map(|file| faults(tree, file, counts));
    said.join("\n").trim().to_owned()
}

#[test]
fn each_file_of_an_application_for_windows_is_missed() {
    let Some(tree) = for_windows() else { return };
    let report = report_of(&tree, "app/bin/vec.dll", Counts::Application);
    assert_eq!(report.loads, Some(true), "{report:#?}");
    let removed = each_file(&tree.path("app"), || faults_for_windows(&tree, Counts::Application));
    let other = "bin/rocblas/library/TensileLibrary_lazy_gfx942.dat";
    assert_eq!(removed.unnoticed, [other, "lib/.kpack/vec_lib.kpm"], "{removed:#?}");

    fs::remove_file(tree.path("app/bin/rocm_kpack.dll")).unwrap();
    let said = faults(&tree, "app/bin/vec.dll", Counts::Machine);
    assert!(
        said.contains(
            "the HIP runtime of /tree/app/bin/vec.dll needs rocm_kpack.dll, which was not found; copy rocm_kpack.dll from \
             the `bin` directory of ROCm to the directory of amdhip64_7.dll"
        ),
        "{said}"
    );
    // The driver may have one.
    fs::remove_file(tree.path("app/bin/amdhip64_7.dll")).unwrap();
    let report = report_of(&tree, "app/bin/vec.dll", Counts::Machine);
    assert_eq!(report.loads, None, "{report:#?}");
    let cause = report.cause().unwrap().finding.text.clone();
    assert!(cause.contains("needs amdhip64_7.dll, which is not in its directory"), "{cause}");
    // The whole directory is examined as well.
    let report = report_of(&tree, "app", Counts::Machine);
    assert_eq!(report.loads, None, "{report:#?}");
}
