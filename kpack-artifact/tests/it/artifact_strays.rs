//! Given files in no prefix of an artifact, when it is split, then they are in the generic artifact as
//! they were, counted and named, and nothing of them is lost.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use kpack_artifact::split::Unknown;
use kpack_split::install::Severity;
use kpack_tests::fixture::code_object;
use kpack_tests::tree::Tree;

use crate::blas::{ROCBLAS, artifact, fat, files, options, refusal, run, warnings};
use crate::verified::assert_holds;

const COPIED: &str =
    "no prefix that artifact_manifest.txt lists; copied unchanged to the generic artifact";

#[test]
fn files_in_no_prefix_are_not_lost() {
    let (input, output) = (artifact(), Tree::new());
    input.write("build.log", "warning: all is well");
    let report = run(&options(&input, &output));
    assert!(files(&output, "blas_lib_generic").contains(&"build.log".to_owned()));
    assert_eq!(warnings(&report).len(), 1);
}

#[test]
fn links_modes_and_empty_directories_are_kept() {
    let (input, output) = (artifact(), Tree::new());
    let header = format!("{ROCBLAS}/include/rocblas.h");
    input.write("logs/deep/build.log", "all is well");
    fs::hard_link(input.path("logs/deep/build.log"), input.path("logs/again.log")).unwrap();
    fs::hard_link(input.path(&header), input.path("logs/rocblas.h")).unwrap();
    fs::create_dir_all(input.path("math-libs/empty")).unwrap();
    fs::set_permissions(input.path("math-libs/empty"), fs::Permissions::from_mode(0o711)).unwrap();
    let report = run(&options(&input, &output));
    assert_eq!(warnings(&report), [format!("logs: has 3 files that are in {COPIED}")]);
    let out = |path: &str| output.path(&format!("blas_lib_generic/{path}"));
    let inode = |path: &str| fs::metadata(out(path)).unwrap().ino();
    assert_eq!(inode("logs/deep/build.log"), inode("logs/again.log"));
    assert_eq!(inode("logs/rocblas.h"), inode(&header));
    let empty = fs::metadata(out("math-libs/empty")).unwrap();
    assert!(empty.is_dir());
    assert_eq!(empty.mode() & 0o7777, 0o711);
}

#[test]
fn what_no_artifact_can_hold_is_refused() {
    for path in ["fifo".to_owned(), format!("{ROCBLAS}/lib/fifo")] {
        let (input, output) = (artifact(), Tree::new());
        let made = Command::new("mkfifo").arg(input.path(&path)).status();
        assert!(made.unwrap().success());
        let error = refusal(&options(&input, &output));
        assert!(error.contains("fifo: "), "{error}");
        assert!(output.files().is_empty());
    }
}

/// As where a prefix was forgotten in the list.
#[test]
fn device_code_among_them_is_named_and_refused_on_demand() {
    let (input, output) = (artifact(), Tree::new());
    let stage = "math-libs/rocFFT/stage/lib";
    fat("fft").build(&input.path(&format!("{stage}/librocfft.so"))).unwrap();
    let object = code_object("gfx942", b"fft").unwrap();
    input.write(&format!("{stage}/rocblas/library/a_gfx942.co"), &object);
    input.write(&format!("{stage}/kernel.bin"), &object);
    let mut options = options(&input, &output);
    let report = run(&options);
    assert_eq!(report.left_generic, 3);
    let warned = warnings(&report);
    for text in [
        format!("math-libs/rocFFT: has 3 files that are in {COPIED}"),
        format!(
            "{stage}/librocfft.so: looks architecture-specific: a fat binary in no prefix; \
             it stays generic"
        ),
        format!(
            "{stage}/rocblas/library/a_gfx942.co: looks architecture-specific: for gfx942 \
             (rocblas) in no prefix; it stays generic"
        ),
        format!(
            "{stage}/kernel.bin: looks architecture-specific: an AMDGPU code object in no \
             prefix; it stays generic"
        ),
    ] {
        assert!(warned.contains(&text), "{text}\n{warned:#?}");
    }
    let copied = files(&output, "blas_lib_generic");
    assert!(copied.contains(&format!("{stage}/librocfft.so")));
    assert_eq!(
        fs::read(output.path(&format!("blas_lib_generic/{stage}/librocfft.so"))).unwrap(),
        fs::read(input.path(&format!("{stage}/librocfft.so"))).unwrap()
    );
    assert_holds(output.root());

    // Nothing of them is moved: no prefix would bring it to where it is looked for.
    options.unknown = Unknown::Move;
    run(&options);
    assert!(files(&output, "blas_lib_generic").contains(&format!("{stage}/kernel.bin")));
    options.unknown = Unknown::Error;
    assert!(refusal(&options).contains("in no prefix"));
}

#[test]
fn a_damaged_file_among_them_is_copied() {
    let (input, output) = (artifact(), Tree::new());
    let library = input.path(&format!("{ROCBLAS}/lib/librocblas.so.5"));
    let whole = fs::read(library).unwrap();
    input.write("core.1234", &whole[..whole.len() - 100]);
    let report = run(&options(&input, &output));
    let noted = report.findings.iter().any(|notice| {
        notice.severity == Severity::Note && notice.text.starts_with("in no prefix, and damaged")
    });
    assert!(noted, "{report:#?}");
    let copy = fs::read(output.path("blas_lib_generic/core.1234")).unwrap();
    assert_eq!(copy, whole[..whole.len() - 100]);
}

#[test]
fn they_are_counted() {
    let (input, output) = (artifact(), Tree::new());
    let before = run(&options(&input, &output)).size_before;
    input.write("build.log", [b'x'; 1000]);
    let report = run(&options(&input, &output));
    assert_eq!(report.size_before, before + 1000);
}
