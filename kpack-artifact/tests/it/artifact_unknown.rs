//! Given files that look specific to an architecture, when an artifact is split, then device code and data
//! of one target may move, files for all targets stay generic, and no file that a host needs moves because
//! of its name.

use std::os::unix::fs::symlink;

use kpack_artifact::split::Unknown;
use kpack_core::ids;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, bundle, code, code_object, library_file};
use kpack_tests::tree::Tree;

use crate::blas::{
    HIPBLASLT, ROCBLAS, artifact, fat, files, options, overlay, pair, refusal, run, warnings,
};
use crate::verified::{assert_holds, check_with, faults};

#[test]
fn a_code_object_without_a_name_says_itself_whose_it_is() {
    let (input, output) = (artifact(), Tree::new());
    let library = format!("{ROCBLAS}/lib/rocblas/library");
    let object = code_object("gfx90a:xnack+", b"transform").unwrap();
    input.write(&format!("{library}/Transform.hsaco"), object);
    run(&options(&input, &output));
    assert!(files(&output, "blas_lib_gfx90a").contains(&format!("{library}/Transform.hsaco")));
}

#[test]
fn what_looks_specific_in_no_known_place_is_reported_or_moved() {
    let input = artifact();
    let object = format!("{ROCBLAS}/share/kernels/add.bin");
    input.write(&object, code_object("gfx942", b"add").unwrap());
    let named = format!("{ROCBLAS}/share/tuning_gfx1100.csv");
    input.write(&named, "1,2,3");
    let generation = format!("{ROCBLAS}/include/gfx9.h");
    input.write(&generation, "int gfx9;");

    let output = Tree::new();
    let mut options = options(&input, &output);
    let report = run(&options);
    assert_eq!(
        warnings(&report),
        [
            format!(
                "{generation}: looks architecture-specific: `gfx9.h` looks like the name of a GPU \
                 target; it stays generic"
            ),
            format!(
                "{object}: looks architecture-specific: an AMDGPU code object; it stays generic"
            ),
            format!(
                "{named}: looks architecture-specific: `tuning_gfx1100.csv` looks like the name of \
                 a GPU target; it stays generic"
            ),
        ]
    );
    let mut ids = report.findings.iter().map(|found| found.id);
    assert!(ids.any(|id| id == ids::UNPLACED_FILE));
    assert!(files(&output, "blas_lib_generic").contains(&object));

    options.unknown = Unknown::Move;
    run(&options);
    assert!(files(&output, "blas_lib_gfx942").contains(&object));
    assert!(files(&output, "blas_lib_gfx1100").contains(&named));
    let generic = files(&output, "blas_lib_generic");
    assert!(!generic.contains(&object) && generic.contains(&generation));

    options.unknown = Unknown::Error;
    assert!(refusal(&options).contains("gfx9.h"));
}

#[test]
fn device_code_that_cannot_be_split_is_reported() {
    let (input, output) = (artifact(), Tree::new());
    let object = format!("{ROCBLAS}/lib/librocblas.a");
    let library = fat("static").kind(Kind::StaticLibrary);
    library.build(&input.path(&object)).unwrap();
    let bundled = format!("{ROCBLAS}/lib/rocblas/library/Kernels.hsaco");
    let two = [code("gfx1100", "two"), code("gfx942", "two")];
    input.write(&bundled, bundle(Storage::Plain, &two).unwrap());
    let report = run(&options(&input, &output));
    let generic = files(&output, "blas_lib_generic");
    assert!(generic.contains(&object) && generic.contains(&bundled));
    assert_eq!(
        warnings(&report),
        [
            format!(
                "{object}: looks architecture-specific: has device code that is split before \
                 the link; it stays generic"
            ),
            format!("{bundled}: looks architecture-specific: an offload bundle; it stays generic"),
        ]
    );
}

#[test]
fn what_a_host_needs_is_not_moved_for_its_name() {
    let input = artifact();
    let at = |name: &str| format!("{ROCBLAS}/{name}");
    FatLibrary::new().build(&input.path(&at("lib/libck_gfx1100.so.1"))).unwrap();
    symlink("libck_gfx1100.so.1", input.path(&at("lib/libck_gfx1100.so"))).unwrap();
    // An ELF file, whatever its name.
    FatLibrary::new().build(&input.path(&at("lib/plugin_gfx1100.bin"))).unwrap();
    FatLibrary::new()
        .kind(Kind::StaticLibrary)
        .build(&input.path(&at("lib/libck_gfx1100.a")))
        .unwrap();
    for text in [
        "include/gfx1100.h",
        "include/gfx1100/kernels.hpp",
        "lib/cmake/targets-gfx1100.cmake",
        "lib/python/gfx1100.py",
        "bin/tune_gfx1100",
        "share/doc/README_gfx1100.txt",
    ] {
        input.write(&at(text), "for all");
    }
    input.write(&at("share/run_gfx1100.dat"), "#!/bin/sh\n");
    symlink("nowhere", input.path(&at("share/gone_gfx1100.dat"))).unwrap();
    symlink("../lib", input.path(&at("share/gfx1100"))).unwrap();
    // Data, and a link to it.
    input.write(&at("share/tuning_gfx1100.csv"), "1,2");
    symlink("tuning_gfx1100.csv", input.path(&at("share/best_gfx1100.csv"))).unwrap();

    let output = Tree::new();
    let mut options = options(&input, &output);
    options.unknown = Unknown::Move;
    let report = run(&options);
    let moved: Vec<String> = files(&output, "blas_lib_gfx1100")
        .into_iter()
        .filter(|file| file.starts_with(ROCBLAS) && !file.contains("rocblas"))
        .collect();
    assert_eq!(moved, [at("share/best_gfx1100.csv"), at("share/tuning_gfx1100.csv")]);
    let said: Vec<String> = warnings(&report)
        .into_iter()
        .map(|warning| warning.replace("looks like the name of a GPU target, but it is ", ""))
        .collect();
    let stays = "it cannot be moved to one target, and stays generic";
    for (file, what) in [
        ("lib/libck_gfx1100.so", "an ELF file for the host"),
        ("lib/libck_gfx1100.so.1", "an ELF file for the host"),
        ("lib/plugin_gfx1100.bin", "an ELF file for the host"),
        ("lib/libck_gfx1100.a", "a static library"),
        ("include/gfx1100.h", "not named like a data file"),
        ("bin/tune_gfx1100", "not named like a data file"),
        ("share/run_gfx1100.dat", "a script"),
        ("share/gfx1100", "a dangling symbolic link"),
        ("share/gone_gfx1100.dat", "a dangling symbolic link"),
    ] {
        let name = file.rsplit('/').next().unwrap();
        let text = format!("{}: looks architecture-specific: `{name}` {what}; {stays}", at(file));
        assert!(said.contains(&text), "{text}\n{said:#?}");
    }
    let all = ["blas_lib_generic", "blas_lib_gfx1100", "blas_lib_gfx942"];
    assert_holds(overlay(&output, &all).root());
}

/// A build for one target puts that target's code into the files that are for all.
#[test]
fn shared_files_of_the_flat_layout_stay_generic_whatever_they_hold() {
    let (input, output) = (artifact(), Tree::new());
    let library = format!("{HIPBLASLT}/lib/hipblaslt/library");
    let shared = [
        ("hipblasltTransform.hsaco", code_object("gfx942", b"t")),
        ("hipblasltExtOpLibrary.dat", library_file("gfx942", &["extop_gfx942"])),
        ("TensileLibrary_Type_HH_fallback.dat", library_file("gfx942", &[])),
    ];
    for (name, bytes) in shared {
        input.write(&format!("{library}/{name}"), bytes.unwrap());
    }
    let own = code_object("gfx942", b"own").unwrap();
    input.write(&format!("{library}/extop_gfx942.co"), &own);
    input.write(&format!("{library}/Own.hsaco"), own);
    let mut options = options(&input, &output);
    options.unknown = Unknown::Error;
    let report = run(&options);
    assert_eq!(warnings(&report), Vec::<String>::new());
    let generic = files(&output, "blas_lib_generic");
    for name in [
        "hipblasltTransform.hsaco",
        "hipblasltExtOpLibrary.dat",
        "TensileLibrary_Type_HH_fallback.dat",
    ] {
        let file = format!("{library}/{name}");
        assert!(generic.contains(&file), "{file}\n{generic:#?}");
    }
    let moved = format!("{library}/Own.hsaco");
    assert!(files(&output, "blas_lib_gfx942").contains(&moved));
    // The libraries are for gfx1100 as well: merging all machines' files gives both.
    let both = ["gfx1100", "gfx942"].map(|target| code(target, "t"));
    let file = format!("blas_lib_generic/{library}/hipblasltTransform.hsaco");
    output.write(&file, bundle(Storage::Plain, &both).unwrap());
    assert_holds(output.root());
}

/// Debian's rocBLAS: the version is compiled into the library, and a link leads to it.
#[test]
fn a_version_may_be_in_the_path_of_a_database() {
    for version in ["5", "2.47.0"] {
        let (input, output) = (artifact(), Tree::new());
        let rocblas = format!("{ROCBLAS}/lib/rocblas");
        let versioned = input.path(&format!("{rocblas}/{version}"));
        std::fs::create_dir(&versioned).unwrap();
        std::fs::rename(input.path(&format!("{rocblas}/library")), versioned.join("library"))
            .unwrap();
        let link = format!("{version}/library");
        symlink(&link, input.path(&format!("{rocblas}/library"))).unwrap();
        let report = run(&options(&input, &output));
        assert_eq!(warnings(&report), [""; 0]);
        let moved = format!("{rocblas}/{link}/TensileLibrary_Type_SS_gfx942.co");
        assert!(files(&output, "blas_lib_gfx942").contains(&moved));
        assert!(files(&output, "blas_lib_generic").contains(&format!("{rocblas}/library")));
        assert_holds(output.root());
    }
}

/// One warning for each directory, which says what it looks like.
#[test]
fn files_of_a_database_in_another_place_are_counted() {
    let (input, output) = (artifact(), Tree::new());
    let library = format!("{ROCBLAS}/lib/blas-kernels");
    std::fs::rename(input.path(&format!("{ROCBLAS}/lib/rocblas/library")), input.path(&library))
        .unwrap();
    for target in ["gfx1100", "gfx942"] {
        let stem = format!("TensileLibrary_Type_HH_{target}");
        pair(&input, &library, &stem, target);
    }
    let mut options = options(&input, &output);
    let report = run(&options);
    let name = "TensileLibrary_Type_HH_gfx1100.co";
    assert_eq!(
        warnings(&report),
        [format!(
            "{library}: 8 files look architecture-specific, such as {name}: an AMDGPU code \
             object; named like those of a kernel database, which kpack expects in \
             hipblaslt/library/, hipsparselt/library/, rocblas/library/; they stay generic"
        )]
    );

    // Moved, and left out by a filter, they are not lost.
    let output = Tree::new();
    options.output_dir = output.root().to_owned();
    options.unknown = Unknown::Move;
    options.targets = vec!["gfx1100".parse().unwrap()];
    let report = run(&options);
    let moved = report.findings.iter().filter(|notice| notice.text.contains("moved to gfx"));
    assert_eq!(moved.count(), 4, "{:#?}", report.findings);
    let input = input.root().to_str().unwrap();
    let found = faults(&check_with(&output, "", Some(input), &["gfx1100"]));
    assert_eq!(found, [""; 0]);
    // Those of the target are compared.
    std::fs::remove_file(output.path(&format!("blas_lib_gfx1100/{library}/{name}"))).unwrap();
    let found = faults(&check_with(&output, "", Some(input), &["gfx1100"]));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("is lost: no output has it"), "{found:#?}");
}
