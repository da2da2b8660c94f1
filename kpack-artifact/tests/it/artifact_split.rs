//! Given an artifact directory, when it is split, then the generic artifact has nothing specific to an
//! architecture, each target's artifact has what is for that target, nothing is lost, and the input is
//! unchanged.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use kpack_artifact::split::{BatchOptions, BatchOutcome, Options, Unknown, batch, split};
use kpack_core::ids;
use kpack_split::Error;
use kpack_split::install;
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Storage, bundle, code, code_object, library_file};
use kpack_tests::process;
use kpack_tests::tree::Tree;
use kpack_tree::{DatabaseSelection, Known};

use crate::blas::{
    HIPBLASLT, ROCBLAS, artifact, fat, files, manifest, options, overlay, refusal, run, warnings,
};
use crate::verified::{assert_holds, check_with};

#[test]
fn each_target_gets_its_own_and_the_generic_artifact_nothing_specific() {
    let (input, output) = (artifact(), Tree::new());
    let report = run(&options(&input, &output));
    assert_eq!(
        files(&output, "blas_lib_generic"),
        [
            ".kpack-artifact",
            "artifact_manifest.txt",
            "math-libs/BLAS/hipBLASLt/stage/lib/.kpack/hipblaslt_lib.kpm",
            "math-libs/BLAS/hipBLASLt/stage/lib/libhipblaslt.so.1",
            "math-libs/BLAS/rocBLAS/stage/bin/rocblas-bench",
            "math-libs/BLAS/rocBLAS/stage/include/rocblas.h",
            "math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib.kpm",
            "math-libs/BLAS/rocBLAS/stage/lib/librocblas.so",
            "math-libs/BLAS/rocBLAS/stage/lib/librocblas.so.5",
            "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_fallback.dat",
        ]
    );
    assert_eq!(
        files(&output, "blas_lib_gfx1100"),
        [
            ".kpack-artifact",
            "artifact_manifest.txt",
            "math-libs/BLAS/hipBLASLt/stage/lib/.kpack/hipblaslt_lib_gfx1100.kpack",
            "math-libs/BLAS/hipBLASLt/stage/lib/hipblaslt/library/gfx1100/TensileLibrary_HH.co",
            "math-libs/BLAS/hipBLASLt/stage/lib/hipblaslt/library/gfx1100/TensileLibrary_HH.dat",
            "math-libs/BLAS/hipBLASLt/stage/lib/hipblaslt/library/gfx1100/TensileManifest.txt",
            "math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx1100.kpack",
            "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx1100.co",
            "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx1100.dat",
        ]
    );
    assert_eq!(
        files(&output, "blas_lib_gfx942"),
        [
            ".kpack-artifact",
            "artifact_manifest.txt",
            "math-libs/BLAS/hipBLASLt/stage/lib/.kpack/hipblaslt_lib_gfx942.kpack",
            "math-libs/BLAS/rocBLAS/stage/lib/.kpack/rocblas_lib_gfx942.kpack",
            "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx942.co",
            "math-libs/BLAS/rocBLAS/stage/lib/rocblas/library/TensileLibrary_Type_SS_gfx942.dat",
        ]
    );
    assert_eq!(fs::read_dir(output.root()).unwrap().count(), 3, "nothing hidden is left behind");
    let generic = output.path("blas_lib_generic/artifact_manifest.txt");
    assert_eq!(fs::read_to_string(generic).unwrap(), format!("{ROCBLAS}\n{HIPBLASLT}\n"));
    assert!(report.device_code);
    assert_eq!(warnings(&report), Vec::<String>::new());
    let notes: Vec<_> = report.findings.iter().map(|notice| notice.id).collect();
    assert_eq!(notes, [ids::MISSING_PREFIX]);
    assert!(report.size_after < report.size_before, "{report:#?}");
}

#[test]
fn a_manifest_lists_every_target_with_the_prefix_of_the_installation() {
    let (input, output) = (artifact(), Tree::new());
    run(&options(&input, &output));
    for (prefix, module) in [(ROCBLAS, "rocblas"), (HIPBLASLT, "hipblaslt")] {
        let path = format!("blas_lib_generic/{prefix}/lib/.kpack/{module}_lib.kpm");
        let manifest = manifest(&output, &path);
        assert_eq!(manifest.component_name, format!("{module}_lib"));
        assert_eq!(manifest.prefix, "lib");
        let targets: Vec<&str> = manifest.kpack_files.keys().map(String::as_str).collect();
        assert_eq!(targets, ["gfx1100", "gfx942"]);
        for (target, file) in &manifest.kpack_files {
            let path = format!("blas_lib_{target}/{prefix}/lib/.kpack/{}", file.filename);
            assert_eq!(fs::metadata(output.path(&path)).unwrap().len(), file.size);
        }
    }
}

#[test]
fn an_overlay_of_the_generic_artifact_and_targets_works() {
    let (input, output) = (artifact(), Tree::new());
    run(&options(&input, &output));
    let all = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];
    assert_holds(overlay(&output, &all).root());
    let some = overlay(&output, &all[..2]);
    let report = check_with(&some, ".", None, &["gfx1100"]);
    assert!(report.holds(), "{report:#?}");
}

#[test]
fn the_bytes_are_those_of_an_install() {
    let (input, output) = (artifact(), Tree::new());
    run(&options(&input, &output));
    let prefix = Tree::new();
    process::copy(input.path(&format!("{ROCBLAS}/.")), prefix.root());
    let files = ["lib/librocblas.so.5", "bin/rocblas-bench"];
    let options = install::InstallOptions::new(prefix.root(), "rocblas", files);
    install::install(&options, &()).unwrap();
    let all = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];
    let split = overlay(&output, &all).snapshot();
    let mut compared = 0;
    for (path, entry) in prefix.snapshot() {
        assert_eq!(split.get(&path), Some(&entry), "{path}");
        compared += usize::from(path.contains(".kpack/"));
    }
    assert_eq!(compared, 3);
}

#[test]
fn the_input_is_only_read() {
    let (input, output) = (artifact(), Tree::new());
    let changes = |tree: &Tree| -> Vec<_> {
        let files = tree.files().into_iter();
        files
            .map(|file| {
                let metadata = tree.path(&file).symlink_metadata().unwrap();
                (file, metadata.ctime(), metadata.ctime_nsec(), metadata.nlink())
            })
            .collect()
    };
    let state = |input: &Tree| {
        let times = (input.snapshot_with_times(), input.directory_times(""));
        (times, changes(input))
    };
    let before = state(&input);
    run(&options(&input, &output));
    assert_eq!(state(&input), before);
}

#[test]
fn links_modes_times_and_empty_directories_are_kept() {
    let (input, output) = (artifact(), Tree::new());
    let at = |path: &str| input.path(&format!("{ROCBLAS}/{path}"));
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, 123_456_789);
    let set_time = |path: &Path| fs::File::open(path).unwrap().set_modified(then).unwrap();

    fs::hard_link(at("include/rocblas.h"), at("include/rocblas-hard.h")).unwrap();
    fs::hard_link(at("lib/librocblas.so.5"), at("lib/librocblas-hard.so")).unwrap();
    let stem = "lib/rocblas/library/TensileLibrary_Type_SS_gfx1100";
    fs::hard_link(at(&format!("{stem}.co")), at(&format!("{stem}_v2.co"))).unwrap();
    fs::copy(at(&format!("{stem}.dat")), at(&format!("{stem}_v2.dat"))).unwrap();
    fs::create_dir_all(at("share/empty")).unwrap();
    fs::set_permissions(at("share/empty"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::set_permissions(at("include/rocblas.h"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(at("bin/rocblas-bench"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("nowhere", at("lib/dangling.so")).unwrap();
    symlink("rocblas", at("lib/directory")).unwrap();
    for path in ["include/rocblas.h", "lib/librocblas.so.5", "share/empty", "lib", ""] {
        set_time(&at(path));
    }
    set_time(&at(&format!("{stem}.dat")));

    run(&options(&input, &output));
    let out = |path: &str| output.path(&format!("blas_lib_generic/{ROCBLAS}/{path}"));
    let target = |path: &str| output.path(&format!("blas_lib_gfx1100/{ROCBLAS}/{path}"));
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&out("include/rocblas.h")), inode(&out("include/rocblas-hard.h")));
    assert_eq!(inode(&out("lib/librocblas.so.5")), inode(&out("lib/librocblas-hard.so")));
    assert_eq!(inode(&target(&format!("{stem}.co"))), inode(&target(&format!("{stem}_v2.co"))));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&out("share/empty")), 0o750);
    assert_eq!(mode(&out("include/rocblas.h")), 0o444);
    assert_eq!(mode(&out("bin/rocblas-bench")), 0o4755);
    assert_eq!(fs::read_link(out("lib/dangling.so")).unwrap(), Path::new("nowhere"));
    assert_eq!(fs::read_link(out("lib/directory")).unwrap(), Path::new("rocblas"));
    for path in ["include/rocblas.h", "lib/librocblas.so.5", "share/empty", "lib", ""] {
        assert_eq!(fs::metadata(out(path)).unwrap().modified().unwrap(), then, "{path}");
    }
    for path in ["lib", &format!("{stem}.dat")] {
        assert_eq!(fs::metadata(target(path)).unwrap().modified().unwrap(), then, "{path}");
    }
    let link = |path: &Path| path.symlink_metadata().unwrap().modified().unwrap();
    assert_eq!(link(&out("lib/dangling.so")), link(&at("lib/dangling.so")));
    assert_holds(
        overlay(&output, &["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"]).root(),
    );
}

#[test]
fn names_of_one_binary_in_two_directories_stay_one_and_both_find_the_archives() {
    let (input, output) = (artifact(), Tree::new());
    let at = |path: &str| input.path(&format!("{ROCBLAS}/{path}"));
    fs::create_dir_all(at("lib/deep/er")).unwrap();
    fs::hard_link(at("lib/librocblas.so.5"), at("lib/deep/er/librocblas.so.5")).unwrap();
    run(&options(&input, &output));
    let all = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];
    assert_holds(overlay(&output, &all).root());
}

#[test]
fn splitting_again_gives_the_same() {
    let (input, first, second) = (artifact(), Tree::new(), Tree::new());
    run(&options(&input, &first));
    run(&options(&input, &second));
    assert_eq!(first.snapshot(), second.snapshot());
    // The same where a split already exists.
    run(&options(&input, &second));
    assert_eq!(first.snapshot(), second.snapshot());
}

#[test]
fn without_device_code_there_is_a_generic_artifact_only() {
    let (input, output) = (Tree::new(), Tree::new());
    input.write("artifact_manifest.txt", "core/docs/stage\n");
    input.write("core/docs/stage/share/readme.txt", "read me");
    FatLibrary::new().build(&input.path("core/docs/stage/lib/libhost.so")).unwrap();
    let report = run(&options(&input, &output));
    assert!(!report.device_code);
    assert_eq!(report.artifacts.len(), 1);
    assert_eq!(
        output.files(),
        [
            "blas_lib_generic/.kpack-artifact",
            "blas_lib_generic/artifact_manifest.txt",
            "blas_lib_generic/core/docs/stage/lib/libhost.so",
            "blas_lib_generic/core/docs/stage/share/readme.txt",
        ]
    );
}

#[test]
fn debug_files_and_sanitized_binaries_do_not_stop_a_split() {
    let (input, output) = (artifact(), Tree::new());
    let lib = input.path(&format!("{ROCBLAS}/lib"));
    let debug = lib.join("librocblas.so.5.debug");
    process::run(
        Command::new("objcopy")
            .arg("--only-keep-debug")
            .arg(lib.join("librocblas.so.5"))
            .arg(&debug),
    );
    let sanitized = fat("asan").wrapper(Storage::Plain, [code("gfx942", "more")]).red_zones();
    sanitized.build(&lib.join("librocblas-asan.so")).unwrap();
    let before = fs::read(&debug).unwrap();
    let report = run(&options(&input, &output));
    assert_eq!(report.binaries.len(), 4);
    let debug = format!("blas_lib_generic/{ROCBLAS}/lib/librocblas.so.5.debug");
    assert_eq!(fs::read(output.path(&debug)).unwrap(), before);
    let all = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];
    assert_holds(overlay(&output, &all).root());
}

#[test]
fn where_name_and_content_disagree_nothing_is_split() {
    let library = format!("{ROCBLAS}/lib/rocblas/library");
    let stem = format!("{library}/TensileLibrary_Type_SS_gfx1100");
    let other = |target: &str| code_object(target, b"other").unwrap();
    let two = [("gfx1100".to_owned(), other("gfx1100")), ("gfx1101".to_owned(), other("gfx1101"))];
    for (path, bytes, says) in [
        (
            format!("{stem}.co"),
            other("gfx1101"),
            "the path says gfx1100, but the ELF header of the code object says gfx1101",
        ),
        (
            format!("{stem}.dat"),
            library_file("gfx942", &["TensileLibrary_Type_SS_gfx1100"]).unwrap(),
            "the path says gfx1100, but the library file names gfx942",
        ),
        (
            format!("{stem}.co"),
            bundle(Storage::Zstd(3), &two).unwrap(),
            "the path says gfx1100, but it has code for gfx1100, gfx1101",
        ),
        (
            format!("{library}/gfx1101/Kernels.so-000-gfx1100.hsaco"),
            other("gfx1100"),
            "the path says gfx1101, and gfx1100 as well",
        ),
    ] {
        let (input, output) = (artifact(), Tree::new());
        input.write(&path, bytes);
        let error = refusal(&options(&input, &output));
        assert!(error.contains(&path) && error.contains(says), "{error}");
        assert!(output.files().is_empty());
    }
}

#[test]
fn halves_of_pairs_are_reported() {
    let (input, output) = (artifact(), Tree::new());
    let library = format!("{ROCBLAS}/lib/rocblas/library");
    fs::remove_file(input.path(&format!("{library}/TensileLibrary_Type_SS_gfx942.co"))).unwrap();
    fs::remove_file(input.path(&format!("{library}/TensileLibrary_Type_SS_gfx1100.dat"))).unwrap();
    let report = run(&options(&input, &output));
    assert_eq!(
        warnings(&report),
        [
            format!(
                "{library}/TensileLibrary_Type_SS_gfx1100.co: belongs to no library file: \
                 TensileLibrary_Type_SS_gfx1100.dat is missing, and no .dat names it"
            ),
            format!(
                "{library}/TensileLibrary_Type_SS_gfx942.dat: names \
                 TensileLibrary_Type_SS_gfx942, which is missing from its directory"
            ),
        ]
    );
}

#[test]
fn binaries_that_cannot_be_read_for_device_code_stay_as_they_are() {
    let (input, output) = (artifact(), Tree::new());
    let fat = fs::read(input.path(&format!("{ROCBLAS}/lib/librocblas.so.5"))).unwrap();
    // One as sstrip leaves it, and one for a machine without such GPUs.
    let (stripped, foreign) =
        (format!("{ROCBLAS}/lib/sstripped.so"), format!("{ROCBLAS}/lib/riscv.so"));
    let mut bytes = fat.clone();
    bytes[40..48].fill(0);
    input.write(&stripped, bytes);
    let mut bytes = fat;
    bytes[18] = 243;
    input.write(&foreign, bytes);
    let report = run(&options(&input, &output));
    let noted = report.findings.iter().find(|notice| notice.file().ends_with(&stripped));
    assert_eq!(noted.unwrap().id, ids::UNSUPPORTED_BINARY, "{report:#?}");
    for file in [stripped, foreign] {
        let copy = fs::read(output.path(&format!("blas_lib_generic/{file}"))).unwrap();
        assert_eq!(copy, fs::read(input.path(&file)).unwrap());
    }
}

#[test]
fn a_library_in_the_directory_of_a_target_is_the_targets() {
    let (input, output) = (Tree::new(), Tree::new());
    input.write("artifact_manifest.txt", "kp/stage\n");
    let engines = "kp/stage/lib/engines/arch_content/ck";
    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx942", "engine")]);
    for name in ["libfat.so", "libhost.so"] {
        let library = if name == "libfat.so" { library.clone() } else { FatLibrary::new() };
        library.build(&input.path(&format!("{engines}/gfx942/{name}"))).unwrap();
    }
    let report = run(&options(&input, &output));
    assert!(report.binaries.is_empty());
    assert_eq!(files(&output, "blas_lib_generic"), [".kpack-artifact", "artifact_manifest.txt"]);
    for name in ["libfat.so", "libhost.so"] {
        let file = format!("{engines}/gfx942/{name}");
        let moved = fs::read(output.path(&format!("blas_lib_gfx942/{file}"))).unwrap();
        assert_eq!(moved, fs::read(input.path(&file)).unwrap());
    }
    let file = input.path(&format!("{engines}/gfx1100/libfat.so"));
    library.build(&file).unwrap();
    let error = refusal(&options(&input, &output));
    assert!(error.contains("the path says gfx1100, but it has code for gfx942"), "{error}");
}

#[test]
fn databases_are_left_where_they_are_on_demand() {
    let (input, output) = (artifact(), Tree::new());
    let mut options = options(&input, &output);
    options.databases =
        DatabaseSelection::new(Known::Named(vec!["hipblaslt".to_owned()]), Vec::new());
    let report = run(&options);
    assert_eq!(warnings(&report), Vec::<String>::new());
    let generic = files(&output, "blas_lib_generic");
    assert!(generic.iter().any(|file| file.ends_with("TensileLibrary_Type_SS_gfx942.co")));
    assert!(!generic.iter().any(|file| file.contains("library/gfx1100")));
}

#[test]
fn modules_of_one_name_would_overwrite_each_other() {
    let (input, output) = (artifact(), Tree::new());
    input.write("artifact_manifest.txt", format!("{ROCBLAS}\nother/RocBLAS/stage\n"));
    fat("x").build(&input.path("other/RocBLAS/stage/lib/libx.so")).unwrap();
    let error = refusal(&options(&input, &output));
    assert!(error.contains("rocblas_lib_TARGET.kpack") && error.contains(ROCBLAS), "{error}");
}

#[test]
fn a_damaged_binary_leaves_no_output() {
    let (input, output) = (artifact(), Tree::new());
    let path = input.path(&format!("{HIPBLASLT}/lib/libhipblaslt.so.1"));
    let mut bytes = fs::read(&path).unwrap();
    // The damage is in the middle of the compressed bundle, where only decompression finds it.
    let start = bytes::position(&bytes, b"CCOB");
    bytes[start + 60..start + 90].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let error = refusal(&options(&input, &output));
    assert!(error.contains("libhipblaslt.so.1"), "{error}");
    assert_eq!(fs::read_dir(output.root()).unwrap().count(), 0);
}

#[test]
fn an_output_directory_in_the_input_or_full_of_other_things_is_refused() {
    let (input, output) = (artifact(), Tree::new());
    let inside = Options::new(input.root(), input.path("out"), "blas_lib");
    assert!(matches!(split(&inside, &()), Err(Error::Usage(_))));
    fs::create_dir(output.path("blas_lib_gfx942")).unwrap();
    output.write("blas_lib_gfx942/thesis.tex", "years of work");
    let error = refusal(&options(&input, &output));
    assert!(error.contains("kpack replaces only directories that it wrote"), "{error}");
    assert_eq!(output.files(), ["blas_lib_gfx942/thesis.tex"]);
    for name in ["blas", "_lib", "blas_", ".._lib", "a/b_lib"] {
        let named = Options::new(input.root(), output.root(), name);
        assert!(matches!(split(&named, &()), Err(Error::Usage(_))), "{name}");
    }
}

#[test]
fn one_artifact_of_a_batch_that_fails_does_not_stop_the_others() {
    let (parent, output) = (Tree::new(), Tree::new());
    for name in ["blas_lib_gfx94X-dcgpu", "fft_lib", "sparse_run_generic"] {
        process::copy(artifact().root(), parent.path(name));
    }
    parent.write("logs/readme.txt", "no artifact");
    let library = parent.path(&format!("fft_lib/{ROCBLAS}/lib/librocblas.so.5"));
    let whole = fs::read(&library).unwrap();
    fs::write(&library, &whole[..whole.len() - 100]).unwrap();
    let options = BatchOptions::new(parent.root().to_owned(), Options::new("", output.root(), ""));
    let report = batch(&options, &()).unwrap();
    let prefixes: Vec<(&str, bool)> = report
        .artifacts
        .iter()
        .map(|outcome| match outcome {
            BatchOutcome::Split(report) => (report.artifact_prefix.as_str(), true),
            BatchOutcome::Failed(failure) => (failure.artifact_prefix.as_str(), false),
        })
        .collect();
    assert_eq!(prefixes, [("blas_lib", true), ("fft_lib", false), ("sparse_run", true)]);
    let failure = report.failures().next().unwrap();
    assert!(failure.error.contains("librocblas.so.5"), "{failure:?}");
    assert_eq!(failure.id, ids::DAMAGED_BINARY, "{failure:?}");
    assert!(report.findings[0].text.contains("skipped"));
    assert!(output.path("sparse_run_gfx1100").is_dir());
    assert!(!output.path("fft_lib_generic").exists());

    parent.write("blas_lib/artifact_manifest.txt", "");
    assert!(matches!(batch(&options, &()), Err(Error::Usage(_))));
}

/// Some platforms build nothing of a component.
#[test]
fn an_artifact_none_of_whose_prefixes_is_there() {
    let tree = Tree::new();
    tree.write("artifact_manifest.txt", "core/hip/stage\n");
    let output = Tree::new();
    let report = run(&options(&tree, &output));
    assert_eq!(report.artifacts.len(), 1);
    assert_eq!(
        output.files(),
        ["blas_lib_generic/.kpack-artifact", "blas_lib_generic/artifact_manifest.txt"]
    );
}

/// The same file in two modules is split into the archives of each, and each marker leads to its own.
#[test]
fn a_fat_binary_that_two_modules_share() {
    let tree = Tree::new();
    let (one, two) = ("m/AAA/stage/lib/libx.so", "m/BBB/stage/lib/libx.so");
    tree.write("artifact_manifest.txt", "m/AAA/stage\nm/BBB/stage\n");
    fat("shared").build(&tree.path(one)).unwrap();
    fs::create_dir_all(tree.path("m/BBB/stage/lib")).unwrap();
    fs::hard_link(tree.path(one), tree.path(two)).unwrap();
    let output = Tree::new();
    run(&options(&tree, &output));
    for (module, path) in [("aaa", one), ("bbb", two)] {
        let bytes = fs::read(output.path(&format!("blas_lib_generic/{path}"))).unwrap();
        let marker = format!(".kpack/{module}_lib_@GFXARCH@.kpack");
        assert!(bytes::contains(&bytes, &marker), "{path} does not lead to {marker}");
    }
}

/// Newer builds of hipBLASLt have such files.
#[test]
fn compressed_library_files_are_of_their_targets() {
    let (input, output) = (artifact(), Tree::new());
    let library = format!("{HIPBLASLT}/lib/hipblaslt/library");
    for target in ["gfx1100", "gfx942"] {
        for stem in ["TensileLibrary_Type_HH", "extop"] {
            let object = code_object(target, stem.as_bytes()).unwrap();
            input.write(&format!("{library}/{stem}_{target}.co"), object);
        }
        for stem in ["TensileLibrary_Type_HH", "TensileLibrary_lazy"] {
            input.write(&format!("{library}/{stem}_{target}.dat.zlib"), b"x\x9c\x01");
        }
    }
    for name in ["TensileLibrary_HH_fallback", "hipblasltExtOpLibrary"] {
        input.write(&format!("{library}/{name}.dat.zlib"), b"x\x9c\x02");
    }
    let report = run(&options(&input, &output));
    assert_eq!(warnings(&report), Vec::<String>::new());
    let own = files(&output, "blas_lib_gfx942");
    for stem in ["TensileLibrary_Type_HH", "TensileLibrary_lazy"] {
        let file = format!("{library}/{stem}_gfx942.dat.zlib");
        assert!(own.contains(&file), "{file}\n{own:#?}");
    }
    let generic = files(&output, "blas_lib_generic");
    for name in ["TensileLibrary_HH_fallback", "hipblasltExtOpLibrary"] {
        let file = format!("{library}/{name}.dat.zlib");
        assert!(generic.contains(&file), "{file}\n{generic:#?}");
    }
    assert_holds(output.root());

    // In no known place.
    let alone = format!("{ROCBLAS}/share/tuning_gfx942.dat.zlib");
    input.write(&alone, b"x\x9c\x03");
    let mut options = options(&input, &output);
    options.unknown = Unknown::Move;
    assert_eq!(warnings(&run(&options)), Vec::<String>::new());
    assert!(files(&output, "blas_lib_gfx942").contains(&alone));

    // Without its other half.
    fs::remove_file(input.path(&format!("{library}/TensileLibrary_Type_HH_gfx942.dat.zlib")))
        .unwrap();
    fs::remove_file(input.path(&format!("{library}/hipblasltExtOpLibrary.dat.zlib"))).unwrap();
    let report = run(&options);
    for (stem, count) in [
        ("TensileLibrary_Type_HH_gfx942", 1),
        ("TensileLibrary_Type_HH_gfx1100", 0),
        ("extop_gfx942", 1),
    ] {
        let start = format!("{library}/{stem}.co: belongs to no library file");
        let said = warnings(&report);
        let found = said.iter().filter(|text| text.starts_with(&start)).count();
        assert_eq!(found, count, "{stem} {said:#?}");
    }
}
