//! Given artifacts as real builds make them, with odd names, links and binaries, when they are split, then
//! nothing is lost, and messages name what cannot be split.

use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kpack_artifact::split::{BatchOptions, Options, batch, split};
use kpack_build::object_file;
use kpack_core::ids;
use kpack_split::install::Progress;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code, code_object};
use kpack_tests::require;
use kpack_tests::tree::Tree;

use crate::blas::{HIPBLASLT, ROCBLAS, artifact, fat, files, options, refusal, run, warnings};
use crate::verified::assert_holds;

#[test]
fn the_library_directory_is_a_link() {
    let (input, output) = (artifact(), Tree::new());
    for prefix in [ROCBLAS, HIPBLASLT] {
        let stage = input.path(prefix);
        fs::rename(stage.join("lib"), stage.join("lib64")).unwrap();
        symlink("lib64", stage.join("lib")).unwrap();
    }
    run(&options(&input, &output));
    let kpack = format!("{ROCBLAS}/lib64/.kpack/rocblas_lib_gfx942.kpack");
    assert!(files(&output, "blas_lib_gfx942").contains(&kpack));
    assert_holds(output.root());
}

#[test]
fn names_that_are_no_text_are_kept_and_messages_stay_on_their_lines() {
    let (input, output) = (artifact(), Tree::new());
    let odd = |name: &[u8]| input.path(ROCBLAS).join("share").join(OsStr::from_bytes(name));
    fs::create_dir_all(input.path(ROCBLAS).join("share")).unwrap();
    for name in [&b"bad\xff.txt"[..], b"two\nlines.txt", b"two\ngfx1100.csv"] {
        fs::write(odd(name), name).unwrap();
    }
    let report = run(&options(&input, &output));
    let copy = output.path("blas_lib_generic").join(ROCBLAS).join("share");
    for name in [&b"bad\xff.txt"[..], b"two\nlines.txt", b"two\ngfx1100.csv"] {
        assert_eq!(fs::read(copy.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    let text = &report.findings.last().unwrap().text;
    assert!(text.contains("`two\\ngfx1100.csv`"), "{text}");

    // Kernels are named after the path of their binary, which must be text.
    fat("odd").build(&odd(b"lib\n\xff.so")).unwrap();
    let error = refusal(&options(&input, &output));
    assert!(
        error.contains("lib\\n\u{fffd}.so: expected a path in UTF-8") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn packages_are_not_opened_and_a_note_says_so() {
    let (input, output) = (artifact(), Tree::new());
    let wheel = format!("{ROCBLAS}/share/rocblas-5.0-py3-none-any.whl");
    input.write(&wheel, "PK");
    let report = run(&options(&input, &output));
    assert!(
        report
            .findings
            .iter()
            .any(|notice| notice.file().ends_with(&wheel) && notice.id == ids::UNOPENED_PACKAGE),
        "{report:#?}"
    );
    assert!(files(&output, "blas_lib_generic").contains(&wheel));
}

#[test]
fn a_truncated_library_file_gets_a_warning() {
    let (input, output) = (artifact(), Tree::new());
    let path = format!("{ROCBLAS}/lib/rocblas/library/TensileLibrary_Type_SS_gfx942.dat");
    let whole = fs::read(input.path(&path)).unwrap();
    input.write(&path, &whole[..whole.len() / 2]);
    let report = run(&options(&input, &output));
    let start = format!("{path}: damaged: ");
    assert!(warnings(&report).iter().any(|text| text.starts_with(&start)), "{report:#?}");
    assert!(files(&output, "blas_lib_gfx942").contains(&path));
}

/// Its device code is not in the artifact, so it would be in none of the split artifacts.
#[test]
fn a_binary_that_was_split_before_the_link_and_not_installed_is_refused() {
    let (input, output) = (artifact(), Tree::new());
    let build = Tree::new();
    let object = build.path("vec.o");
    FatLibrary::new()
        .kind(Kind::Object)
        .wrapper(Storage::Plain, [code("gfx1100", "add")])
        .build(&object)
        .unwrap();
    let mut split = object_file::Options::new("vec", build.path("split"), [object]);
    let pattern = build.path("split/.kpack/vec_lib_@GFXARCH@.kpack");
    split.search_paths = vec![pattern.to_str().unwrap().to_owned()];
    object_file::split(&split, &()).unwrap();
    let linked = Command::new("cc")
        .args(["-shared", "-o"])
        .arg(input.path(&format!("{ROCBLAS}/lib/libvec.so")))
        .arg(build.path("split/vec.o"))
        .status();
    assert!(linked.unwrap().success());
    let error = refusal(&options(&input, &output));
    assert!(error.contains("libvec.so: the device code was split before the link"), "{error}");
    assert!(output.files().is_empty());

    // It may have been installed on another machine, at the path that it names.
    fs::remove_dir_all(build.path("split")).unwrap();
    let report = run(&options(&input, &output));
    assert!(
        warnings(&report)
            .iter()
            .any(|text| text.contains("libvec.so: the device code was split before the link")),
        "{report:#?}"
    );
}

#[test]
fn one_thread_makes_the_same_of_a_batch() {
    let parent = Tree::new();
    for name in ["blas_lib", "fft_run"] {
        fs::rename(artifact().root(), parent.path(name)).unwrap();
    }
    let split = |jobs| {
        let output = Tree::new();
        let mut each = Options::new("", output.root(), "");
        each.storage.jobs = NonZeroUsize::new(jobs).unwrap();
        let options = BatchOptions::new(parent.root().to_owned(), each);
        batch(&options, &()).unwrap();
        output
    };
    assert_eq!(split(1).snapshot(), split(4).snapshot());
}

/// When installed, the archives of one would replace those of the other.
#[test]
fn a_module_in_two_artifacts_of_a_batch() {
    let (parent, output) = (Tree::new(), Tree::new());
    for name in ["blas_lib", "fft_lib"] {
        fs::rename(artifact().root(), parent.path(name)).unwrap();
    }
    // The first one by name has the module, however long it takes to read.
    for number in 0..500 {
        let file = format!("blas_lib/{ROCBLAS}/share/{number}.hsaco");
        parent.write(&file, "no code object");
    }
    let options = BatchOptions::new(parent.root().to_owned(), Options::new("", output.root(), ""));
    let report = batch(&options, &()).unwrap();
    let failures: Vec<_> = report.failures().collect();
    let [failure] = &failures[..] else {
        panic!("{report:#?}");
    };
    let archives = "would be installed as lib/.kpack/rocblas_lib_TARGET.kpack, like those of";
    assert!(failure.error.contains(archives), "{failure:?}");
    assert_eq!(failure.artifact_prefix, "fft_lib");
    let of_failed = |file: &String| file.starts_with(&failure.artifact_prefix);
    assert!(!output.files().iter().any(of_failed), "{failure:?}");
}

/// A killed run of another command leaves such directories.
#[test]
fn leftovers_of_an_interrupted_run_are_not_artifacts() {
    let (parent, output) = (Tree::new(), Tree::new());
    fs::rename(artifact().root(), parent.path("blas_lib")).unwrap();
    parent.write(".blas_lib_generic.tmp/artifact_manifest.txt", "a/stage\n");
    let options = BatchOptions::new(parent.root().to_owned(), Options::new("", output.root(), ""));
    let report = batch(&options, &()).unwrap();
    assert_eq!(report.artifacts.len(), 1);
    assert_eq!(report.failures().count(), 0);
    assert!(report.findings[0].text.starts_with("leftover"));
}

/// Documents can begin with anything, and tests contain files that are broken on purpose.
#[test]
fn files_that_only_begin_like_device_code_stay_generic_with_a_warning() {
    let (input, output) = (artifact(), Tree::new());
    let object = code_object("gfx1100", b"kernel").unwrap();
    let library = fs::read(input.path(&format!("{ROCBLAS}/lib/librocblas.so.5"))).unwrap();
    let odd: [(&str, &[u8]); 4] = [
        ("share/games.txt", b"KPAK is a game"),
        ("share/rock.txt", b"CCOB is a band"),
        ("share/test/truncated.hsaco", &object[..100]),
        ("share/test/truncated.so", &library[..1000]),
    ];
    for (path, bytes) in odd {
        input.write(&format!("{ROCBLAS}/{path}"), bytes);
    }
    let report = run(&options(&input, &output));
    for (path, bytes) in odd {
        let copy = output.path(&format!("blas_lib_generic/{ROCBLAS}/{path}"));
        assert_eq!(fs::read(copy).unwrap(), bytes, "{path}");
        let start = format!("{ROCBLAS}/{path}: damaged, or only begins like device code: ");
        let warnings = warnings(&report);
        assert!(warnings.iter().any(|text| text.starts_with(&start)), "{path}: {warnings:#?}");
    }
    let mut ids = report.findings.iter().map(|found| found.id);
    assert!(ids.any(|id| id == ids::UNREADABLE_DEVICE_CODE));
    assert!(files(&output, "blas_lib_gfx942").len() > 1);

    // Among archives, it would be missing.
    input.write(&format!("{ROCBLAS}/lib/.kpack/x_lib_gfx942.kpack"), "KPAK");
    assert!(refusal(&options(&input, &Tree::new())).contains("x_lib_gfx942.kpack"));
}

/// Assembles a COFF object with a section of device code; with `dll`, links it into a DLL.
fn pe_coff(path: &Path, dll: bool) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let source = path.with_extension("s");
    let text = ".section .hip_fatbin,\"dr\"\n.ascii \"__CLANG_OFFLOAD_BUNDLE__\"\n.text\n.globl _DllMainCRTStartup\n_DllMainCRTStartup: ret\n";
    fs::write(&source, text).unwrap();
    let object = if dll { path.with_extension("o") } else { path.to_owned() };
    let assembled = Command::new("clang-19")
        .args(["--target=x86_64-pc-windows-gnu", "-c", "-o"])
        .args([&object, &source])
        .status();
    assert!(assembled.unwrap().success());
    fs::remove_file(source).unwrap();
    if dll {
        let linked = Command::new("ld.lld-19")
            .args(["-m", "i386pep", "-shared", "-o"])
            .args([path, &object])
            .status();
        assert!(linked.unwrap().success());
        fs::remove_file(object).unwrap();
        // For ARM64.
        let mut bytes = fs::read(path).unwrap();
        let signature = u32::from_le_bytes(bytes[0x3c..0x40].try_into().unwrap()) as usize;
        bytes[signature + 4..signature + 6].copy_from_slice(&[0x64, 0xaa]);
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn device_code_in_a_windows_binary_that_is_not_split_is_named() {
    if !(require::tool("clang-19") && require::tool("ld.lld-19")) {
        return;
    }
    let (input, output) = (Tree::new(), Tree::new());
    input.write("artifact_manifest.txt", "stage\n");
    pe_coff(&input.path("stage/bin/vec.dll"), true);
    pe_coff(&input.path("stage/lib/vec.obj"), false);
    input.write("stage/bin/notepad.exe", "MZ, and nothing else");
    let report = run(&options(&input, &output));
    let found = warnings(&report);
    let start = |path: &str, section: &str| {
        format!(
            "stage/{path}: looks architecture-specific: a PE/COFF file with device code in \
             section `{section}`"
        )
    };
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with(&start("bin/vec.dll", ".hip_fat")), "{found:#?}");
    assert!(found[1].starts_with(&start("lib/vec.obj", ".hip_fatbin")), "{found:#?}");
    assert!(report.device_code && report.left_generic == 2, "{report:#?}");
}

/// Installed together, one of them is lost. Verifying the artifacts would fail.
#[test]
fn files_of_two_prefixes_that_are_installed_at_one_path() {
    let (input, output) = (artifact(), Tree::new());
    let license = |prefix: &str, text: &str| {
        input.write(&format!("{prefix}/share/LICENSE"), text);
    };
    license(ROCBLAS, "MIT");
    license(HIPBLASLT, "MIT");
    assert_eq!(warnings(&run(&options(&input, &output))), [""; 0]);
    license(HIPBLASLT, "BSD");
    let report = run(&options(&input, &output));
    let text = "and both are installed as share/LICENSE";
    let notices = report.findings.iter();
    let said = notices.filter(|notice| notice.text.contains(text));
    assert_eq!(said.count(), 1, "{report:#?}");
}

#[test]
fn directories_are_as_old_as_the_input_has_them() {
    let input = artifact();
    let outputs = [Tree::new(), Tree::new()];
    for output in &outputs {
        run(&options(&input, output));
    }
    for name in ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"] {
        let [one, other] = outputs.each_ref().map(|output| output.directory_times(name));
        assert!(one.keys().any(|path| path.ends_with(".kpack")), "{one:?}");
        assert_eq!(one, other);
    }
}

#[test]
fn holes_of_files_that_are_copied_stay_holes() {
    let (input, output) = (artifact(), Tree::new());
    let sparse = fs::File::create(input.path(&format!("{ROCBLAS}/lib/sparse"))).unwrap();
    sparse.set_len(256 << 20).unwrap();
    run(&options(&input, &output));
    let copy = output.path(&format!("blas_lib_generic/{ROCBLAS}/lib/sparse"));
    let copy = fs::metadata(copy).unwrap();
    assert_eq!(copy.len(), 256 << 20);
    assert!(copy.blocks() * 512 < 1 << 20, "{} blocks", copy.blocks());
}

/// Counts the bytes that are reported.
#[derive(Default)]
struct Told {
    total: AtomicU64,
    done: AtomicU64,
    files: Mutex<Vec<PathBuf>>,
}

impl Progress for Told {
    fn start(&self, total: u64) {
        self.total.fetch_add(total, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn file(&self, path: &Path) {
        self.files.lock().unwrap().push(path.to_owned());
    }
}

#[test]
fn progress_counts_each_byte_once() {
    let totals = [false, true].map(|has_another_name| {
        let (input, output) = (artifact(), Tree::new());
        let lib = input.path(ROCBLAS).join("lib");
        if has_another_name {
            fs::hard_link(lib.join("librocblas.so.5"), lib.join("librocblas.so.5.0")).unwrap();
        }
        let told = Told::default();
        split(&options(&input, &output), &told).unwrap();
        let files = told.files.into_inner().unwrap();
        assert!(files.contains(&Path::new(ROCBLAS).join("lib/librocblas.so.5")));
        let total = told.total.into_inner();
        assert_eq!(told.done.into_inner(), total);
        total
    });
    assert!(totals[0] > 0);
    assert_eq!(totals[0], totals[1]);
}
