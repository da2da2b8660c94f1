//! The fixtures are binaries that run, with device code where clang puts it.

use std::process::Command;

use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code_object};
use kpack_tests::process;

fn described() -> FatLibrary {
    let object = |target: &str, name: &str| {
        (target.to_owned(), code_object(target, name.as_bytes()).unwrap())
    };
    FatLibrary::new()
        .wrapper(Storage::Plain, [object("gfx1100", "add"), object("gfx90a:xnack+", "add")])
        .wrapper(Storage::Zstd(2), [object("gfx942", "mul")])
        .wrapper(Storage::Zlib(3), [object("gfx942", "sub"), object("gfx1101", "sub")])
        .wrapper(Storage::Bare, [object("gfx1100", "bare")])
}

#[test]
fn executables_run_and_report_their_wrappers() {
    let directory = tempfile::tempdir().unwrap();
    for kind in [Kind::Pie, Kind::NoPie] {
        let program = directory.path().join(format!("{kind:?}"));
        described().kind(kind).red_zones().build(&program).unwrap();
        let text = process::run(&mut Command::new(&program));
        assert_eq!(text, "FPIH 0\nFPIH 0\nFPIH 0\nFPIH 0\nhost 27\n");
    }
}

#[test]
fn every_kind_holds_its_bundles() {
    let directory = tempfile::tempdir().unwrap();
    let bundles = described().bundles().unwrap();
    for kind in [Kind::Shared, Kind::Pie, Kind::NoPie, Kind::Object, Kind::StaticLibrary] {
        let binary = directory.path().join(format!("{kind:?}"));
        described().kind(kind).build(&binary).unwrap();
        let bytes = std::fs::read(&binary).unwrap();
        for bundle in &bundles {
            assert!(
                bytes::contains(&bytes, bundle),
                "{kind:?} lacks a bundle of {} bytes",
                bundle.len()
            );
        }
    }
}
