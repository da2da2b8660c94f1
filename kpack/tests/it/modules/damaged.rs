//! Given modules whose content in memory is damaged, when a program loads them, then it gets an error that says what was
//! expected and what was found, and no code.
//!
//! Their wrappers are not in the file of this program, because other tests split it.

use kpack::Module;
use kpack::internal::{Bundle, Wrapper, compiled_module};
use kpack_tests::fixture::{Storage, bundle, code};

use super::told;

/// A module over a copy of this bundle.
fn module(content: &[u8]) -> Module {
    const ROOM: usize = 1 << 16;
    let mut bytes = Box::new([0; ROOM]);
    bytes[..content.len()].copy_from_slice(content);
    let bundle: &'static Bundle<ROOM> = Box::leak(Box::new(Bundle::new(&bytes)));
    let wrapper = Box::leak(Box::new(Wrapper::new(bundle)));
    compiled_module("made", wrapper, &[], &[], "")
}

#[test]
fn a_code_object_that_is_not_what_its_entry_says() {
    let of = |target, content: Vec<u8>| (code(target, "").0, content);
    let elf = |target| code(target, "its code").1;
    for storage in [Storage::Plain, Storage::Zstd(3)] {
        let entries = [
            of("gfx90a", elf("gfx942")),
            of("gfx1100", elf("gfx1100")[..100].to_vec()),
            of("gfx1030", vec![7; 100]),
            of("gfx1200", elf("gfx1200")),
        ];
        let module = module(&bundle(storage, &entries).unwrap());
        assert!(told(module.load("gfx1200")).ends_with("(gfx1200)"));
        for (gpu, expected) in [
            ("gfx90a", "its ELF header is for gfx942 (e_flags 0x"),
            ("gfx1100", "ends past the end"),
            ("gfx1030", "starts with [07, 07, 07, 07]; expected 7f 45 4c 46"),
        ] {
            let error = told(module.load(gpu));
            let start =
                format!("error: module `made`: its code for {gpu} in the program is damaged: ");
            assert!(
                error.starts_with(&start) && error.contains(expected),
                "{expected:?} in {error}"
            );
            assert!(error.ends_with("; rebuild or reinstall the program"));
        }
    }
}

#[test]
fn several_entries_for_a_target() {
    for storage in [Storage::Plain, Storage::Zstd(3)] {
        let entries = ["first", "second"].map(|text| code("gfx1200", text));
        let code = module(&bundle(storage, &entries).unwrap()).load("gfx1200").unwrap();
        assert_eq!(code.as_bytes(), entries[0].1, "{storage:?}");
    }
}
