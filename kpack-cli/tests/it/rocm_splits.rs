//! Given a library that ROCm's own tool split, which leaves the addresses of its device code in a segment without
//! content, when it is verified, joined and split again, then every command understands it as its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use kpack_core::report::Outcome;
use kpack_format::TargetId;
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::{JoinOptions, join};
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, WindowsBuild, WindowsLinker, add_and_mul, code, rocm_split,
    rocm_split_artifact,
};
use kpack_tests::process::try_run;
use kpack_tests::require;
use kpack_tests::tree::Tree;

use crate::command::{said, succeeds, words};
use crate::fat::bundles;
use crate::layouts::{Bench, LINKERS, expected_report, same_bytes};
use crate::verified::{assert_found, check, check_with, faults};

const FILE: &str = "lib/libvec.so";
const TARGETS: [&str; 2] = ["gfx1100", "gfx90a:xnack+"];

/// A prefix with a library that ROCm's tool split, and the unsplit one as `fat`. A tool may have changed that.
fn split_after(library: &FatLibrary, tool: &[&str]) -> Tree {
    let tree = library.in_tree("fat");
    if let [tool, arguments @ ..] = tool {
        try_run(Command::new(tool).args(arguments).arg(tree.path("fat"))).unwrap();
    }
    tree.copy_file("fat", "prefix/lib/libvec.so");
    rocm_split(library, &tree.path("prefix"), FILE, "vec_lib").unwrap();
    tree
}

fn split(library: &FatLibrary) -> Tree {
    split_after(library, &[])
}

fn two_wrappers() -> FatLibrary {
    add_and_mul(TARGETS, TARGETS)
}

/// Joins it for some targets, and compares it with the fat library.
fn joined(tree: &Tree, targets: &[&str]) {
    let targets = targets.iter().map(|target| target.parse::<TargetId>().unwrap());
    let mut options = JoinOptions::new(tree.path("prefix"), targets, [FILE]);
    options.against = Some(tree.path("fat"));
    let report = join(&options, &()).unwrap();
    assert!(matches!(report.files[0].outcome, Outcome::Joined { .. }), "{report:?}");
    assert_eq!(faults(&check_with(tree, "prefix/lib/libvec.so", Some("fat"), &[])), [""; 0]);
}

fn split_again(tree: &Tree) {
    install(&InstallOptions::new(tree.path("prefix"), "vec", [FILE]), &()).unwrap();
    let kpm = tree.path("prefix/lib/.kpack/vec_lib.kpm");
    fs::remove_file(kpm).unwrap();
}

/// Snapshots without sizes and addresses, which depend on the linker.
fn with_filters(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r" +[0-9.]+ [KM]?i?B", " [size]");
    settings.add_filter(r" +[+-][0-9.]+%", " [change]");
    settings.add_filter(r#""(size|address)": [0-9]+"#, "\"$1\": [number]");
    settings.add_filter(r"archive +size  code", "archive  size  code");
    settings.bind(check);
}

/// Where the section with this name is in memory, and whether the file has its bytes.
fn section(path: &Path, name: &str) -> (u64, bool) {
    let image = kpack_split::elf::Image::read(fs::File::open(path).unwrap()).unwrap();
    let (_, section) = image.section(name).unwrap().unwrap();
    (section.addr, section.has_bytes())
}

/// Verified, joined with little and with all of its code, and split again, it stays what it is.
fn check_chain(library: &FatLibrary, kind: Kind, tool: &[&str]) {
    let bench = Bench::new().unwrap();
    let tree = split_after(library, tool);
    let file = tree.path("prefix").join(FILE);
    let fat = bench.report(kind, &tree.path("fat")).unwrap();
    let what = format!("{tool:?} {}", library.code_objects().count());
    assert_eq!(bench.report(kind, &file).unwrap(), expected_report(&fat), "{what}");
    assert_eq!(
        faults(&check_with(&tree, "prefix/lib/libvec.so", Some("fat"), &[])),
        [""; 0],
        "{what}"
    );
    let host = fs::read(&file).unwrap();
    for targets in [&TARGETS[..1], &TARGETS] {
        joined(&tree, targets);
        assert_eq!(bench.report(kind, &file).unwrap(), fat, "{what}");
        joined(&tree, &TARGETS[1..]);
        joined(&tree, targets);
        split_again(&tree);
        fs::write(tree.path("host"), &host).unwrap();
        same_bytes(&tree.path("host"), &file).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn the_code_goes_where_the_linker_put_it() {
    for storage in [Storage::Plain, Storage::Zstd(2)] {
        let both = || TARGETS.map(|target| code(target, "add"));
        let tree = split(&FatLibrary::new().wrapper(storage, both()).wrapper(storage, both()));
        let file = tree.path("prefix").join(FILE);
        let (place, _) = section(&tree.path("fat"), ".hip_fatbin");
        assert_eq!(section(&file, ".hip_fatbin"), (place, false));
        if storage == Storage::Plain {
            joined(&tree, &TARGETS);
            assert_eq!(section(&file, ".hip_fatbin"), (place, true));
        }
    }
}

#[test]
fn every_kind_of_library_joins_and_splits_back_to_the_byte() {
    let both = |name| TARGETS.map(|target| code(target, name));
    let one = FatLibrary::new().wrapper(Storage::Plain, both("add"));
    let compressed = FatLibrary::new()
        .wrapper(Storage::Zstd(3), both("add"))
        .wrapper(Storage::Zlib(2), both("mul"));
    // Less than a page, so it stays in the file.
    let small = FatLibrary::new().wrapper(Storage::Zstd(2), both("add"));
    for library in [one, compressed, two_wrappers(), small] {
        check_chain(&library, Kind::Shared, &[]);
        check_chain(&library.kind(Kind::Pie), Kind::Pie, &[]);
    }
}

#[test]
fn so_do_those_of_every_linker() {
    for linker in LINKERS {
        if !require::tool(linker.program) || !require::tool(linker.compiler) {
            continue;
        }
        let library = two_wrappers().compiler(linker.compiler).flag(linker.flag);
        check_chain(&library, Kind::Shared, &[]);
    }
}

#[test]
fn so_do_those_that_a_tool_changed_before() {
    let tools: [&[&str]; 3] =
        [&["strip"], &["llvm-strip-19"], &["patchelf", "--set-rpath", "/a/directory/of/libraries"]];
    for tool in tools.into_iter().filter(|tool| require::tool(tool[0])) {
        check_chain(&two_wrappers(), Kind::Shared, tool);
    }
}

/// A large note after the program headers, which is removed, leaves room for more of them.
#[test]
fn program_headers_may_stay_in_place() {
    let id = format!("-Wl,--build-id=0x{}", "00".repeat(250));
    let library = two_wrappers().flag(id);
    let tool = ["objcopy", "-R", ".note.gnu.build-id"];
    let tree = split_after(&library, &tool);
    let bytes = fs::read(tree.path("prefix").join(FILE)).unwrap();
    assert_eq!(bytes[32..40], u64::to_le_bytes(64));
    check_chain(&library, Kind::Shared, &tool);
}

/// What they had in common was not recorded, and ROCm 5.2 to 6.2 know a module by the address of its bundle.
#[test]
fn wrappers_get_bundles_of_their_own() {
    let both = || TARGETS.map(|t| code(t, "add"));
    let library = FatLibrary::new().wrapper(Storage::Plain, both());
    let tree = split(&library.wrapper(Storage::Plain, both()));
    joined(&tree, &TARGETS[..1]);
    let [first, second] = bundles(&tree.path("prefix").join(FILE))[..] else {
        panic!("two wrappers")
    };
    assert_ne!(first, second);
}

/// ROCm's tool stores a bundle once and numbers all wrappers, so all but one of a library like RCCL have no code. They
/// have one handle, for which start-up code registers the first one alone.
#[test]
fn wrappers_of_relocatable_device_code_share_a_bundle_again() {
    let library = FatLibrary::new().wrapper(Storage::Plain, TARGETS.map(|t| code(t, "add")));
    let library = library.wrapper_sharing(0).wrapper_sharing(0);
    for kind in [Kind::Shared, Kind::Pie] {
        check_chain(&library.clone().kind(kind), kind, &[]);
    }
    let tree = split(&library);
    let doctor = said(&tree, &words("doctor --arch gfx1100 prefix/lib/libvec.so"));
    assert!(doctor.contains("GPU code will load for gfx1100\n"), "{doctor}");
    let note = "only at index 0; the binary's 3 wrappers share it, because they have one handle (`-fgpu-rdc`)";
    for line in [
        "verify --verbose prefix",
        "verify --verbose --arch gfx1100 prefix",
        "join --prefix prefix --arch gfx1100 --against fat lib/libvec.so",
    ] {
        let said = said(&tree, &words(line));
        assert!(said.contains(note) && said.contains("[missing-kernel]"), "{said}");
        assert!(said.ends_with("exit code 0\n"), "{said}");
    }
    let bundles = bundles(&tree.path("prefix").join(FILE));
    assert_eq!(bundles, [bundles[0]; 3]);
}

/// Nothing says that wrappers share code that the archives have not: `verify` and `join` say so alike.
#[test]
fn wrappers_without_code_are_named() {
    let both = |name| TARGETS.map(|target| code(target, name));
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, both("add"))
        .wrapper(Storage::Plain, [code("gfx90a:xnack+", "mul")])
        .wrapper(Storage::Plain, [code("gfx90a:xnack+", "div")]);
    let tree = split(&library);
    let lines = [
        "verify prefix",
        "verify --arch gfx1100 prefix",
        "verify --arch gfx90a prefix",
        "join --prefix prefix --arch gfx1100 lib/libvec.so",
        "join --prefix prefix --arch gfx90a lib/libvec.so",
    ];
    let lines = lines.map(|line| said(&tree, &words(line)));
    with_filters(|| insta::assert_snapshot!(lines.join("\n")));
}

/// What was left out when it was built is no cause to warn, and noted alike.
#[test]
fn wrappers_that_never_had_code_are_noted() {
    let tree = Tree::new();
    let file = tree.path("prefix").join(FILE);
    let own = [code("gfx90a:xnack+", "mul")];
    let library = FatLibrary::new().wrapper(Storage::Plain, TARGETS.map(|t| code(t, "add")));
    library.wrapper(Storage::Plain, own).build(&file).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", [FILE]), &()).unwrap();
    let lines =
        ["verify --arch gfx1100 prefix", "join --prefix prefix --arch gfx1100 lib/libvec.so"];
    let lines = lines.map(|line| said(&tree, &words(line)));
    with_filters(|| insta::assert_snapshot!(lines.join("\n")));
}

/// ROCm's tool writes the path in the artifact into the marker, and puts archives into `.kpack` of the prefix that the
/// artifact's manifest lists.
#[test]
fn in_an_artifact_the_layout_of_rocms_tool_needs_its_names() {
    const PREFIX: &str = "math-libs/BLAS/rocBLAS/stage";
    let tree = Tree::new();
    let file = format!("{PREFIX}/{FILE}");
    let path = tree.path("blas_lib").join(&file);
    let library = two_wrappers();
    library.build(&path).unwrap();
    rocm_split_artifact(&library, &tree.path("blas_lib"), (PREFIX, FILE), "blas_lib").unwrap();
    fs::copy(&path, tree.path("theirs")).unwrap();
    let targets = TARGETS.map(|target| format!("--arch {target}")).join(" ");
    let archives = format!("{PREFIX}/.kpack");
    for (prefix, directory, is_same) in [
        ("blas_lib".to_owned(), archives.as_str(), true),
        ("blas_lib".to_owned(), "lib/.kpack", false),
        (format!("blas_lib/{PREFIX}"), ".kpack", false),
    ] {
        succeeds(&tree, &words(&format!("join --prefix blas_lib {targets} {file}")));
        let name = path.strip_prefix(tree.path(&prefix)).unwrap().display();
        let split = format!("split --prefix {prefix} --module blas --kpack-dir {directory} {name}");
        succeeds(&tree, &words(&split));
        let same = same_bytes(&tree.path("theirs"), &path);
        assert_eq!(same.is_ok(), is_same, "{split}: {same:?}");
        fs::copy(tree.path("theirs"), &path).unwrap();
    }
}

/// Steps of a chain: a split by ROCm's tool or by kpack, or a join.
const ROCM: char = 'R';
const JOIN: char = 'J';

/// Takes a fat library through the steps. After each, it has the code and the host memory of the fat library; what
/// kpack splits after a join is what was joined, byte for byte.
fn check_steps(library: &FatLibrary, kind: Kind, steps: &str) {
    let bench = Bench::new().unwrap();
    let tree = library.in_prefix(FILE);
    let file = tree.path("prefix").join(FILE);
    let fat = bench.report(kind, &file).unwrap();
    for (number, step) in steps.chars().enumerate() {
        let what = format!("{kind:?}, step {number} of {steps}");
        let expected = match step {
            JOIN => {
                fs::copy(&file, tree.path("split")).unwrap();
                joined(&tree, &TARGETS);
                fat.clone()
            }
            ROCM => {
                rocm_split(library, &tree.path("prefix"), FILE, "vec_lib").expect(&what);
                expected_report(&fat)
            }
            _ => {
                split_again(&tree);
                if number > 0 {
                    same_bytes(&tree.path("split"), &file)
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                expected_report(&fat)
            }
        };
        assert_eq!(bench.report(kind, &file).unwrap(), expected, "{what}");
        let report = check_with(&tree, "prefix/lib/libvec.so", Some("fat"), &[]);
        assert_eq!(faults(&report), [""; 0], "{what}");
    }
}

/// fat → ROCm's → join → kpack's → join → ROCm's, and on.
#[test]
fn splits_pass_through_any_chain() {
    let both = |name| TARGETS.map(|target| code(target, name));
    // Its code goes after everything else when it is joined.
    let compressed = FatLibrary::new()
        .wrapper(Storage::Zstd(3), both("add"))
        .wrapper(Storage::Zlib(2), both("mul"));
    let small = FatLibrary::new().wrapper(Storage::Zstd(2), both("add"));
    for library in [two_wrappers(), compressed, small] {
        for kind in [Kind::Shared, Kind::Pie] {
            let library = library.clone().kind(kind);
            check_steps(&library, kind, "RJKJRJRJK");
            check_steps(&library, kind, "KJRJKJR");
        }
    }
}

#[test]
fn commands_show_it_as_a_split_library() {
    let tree = split(&two_wrappers());
    let commands = [
        "show prefix/lib/libvec.so",
        "show --json prefix/lib/libvec.so",
        "list prefix/lib/.kpack/vec_lib_gfx1100.kpack",
        "verify prefix",
        "verify prefix --arch gfx1100",
        "verify prefix/lib/libvec.so --against fat",
        "report prefix",
        "extract prefix/lib/.kpack/vec_lib_gfx1100.kpack --kernel lib/libvec.so#0 --output code",
        "doctor -v --arch gfx1100 prefix/lib/libvec.so",
        "join --prefix prefix --arch gfx1100 --against fat lib/libvec.so",
        "show prefix/lib/libvec.so",
        "verify prefix/lib/libvec.so --against fat",
    ];
    let said = commands.map(|line| said(&tree, &words(line)));
    with_filters(|| insta::assert_snapshot!(said.join("\n")));
}

/// Nobody says which targets there are code for: neither a manifest nor the marker.
#[test]
fn without_its_archive_the_cause_is_named() {
    let tree = split(&two_wrappers());
    fs::remove_file(tree.path("prefix/lib/.kpack/vec_lib_gfx1100.kpack")).unwrap();
    let doctor = "doctor -v --arch gfx1100 prefix/lib/libvec.so";
    let join = "join --prefix prefix --arch gfx1100 lib/libvec.so";
    let mut lines = Vec::from_iter([doctor, join].map(|line| said(&tree, &words(line))));
    fs::remove_dir_all(tree.path("prefix/lib/.kpack")).unwrap();
    lines.extend([doctor, join, "verify prefix"].map(|line| said(&tree, &words(line))));
    with_filters(|| insta::assert_snapshot!(lines.join("\n")));
}

#[test]
fn a_tree_with_both_kinds_is_split() {
    let tree = split(&two_wrappers());
    let own = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "own")]);
    own.build(&tree.path("prefix/lib/libown.so")).unwrap();
    let line = "split --prefix prefix --module own --all";
    with_filters(|| insta::assert_snapshot!(said(&tree, &words(line))));
    assert!(check(&tree, "prefix").holds());
}

/// Tools that drop what is in no section leave the program headers where no page begins.
#[test]
fn one_that_no_system_loads_is_rejected() {
    let tree = split(&two_wrappers());
    let file = tree.path("prefix").join(FILE);
    let mut bytes = fs::read(&file).unwrap();
    let table = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
    let count = usize::from(bytes[56]);
    let last = table + 56 * (count - 1);
    bytes[last + 8..last + 16].copy_from_slice(&(table as u64 - 8).to_le_bytes());
    fs::write(&file, bytes).unwrap();
    assert_found(&check(&tree, "prefix"), &["congruent", "damaged-binary"]);
    let line = "join --prefix prefix --arch gfx1100 lib/libvec.so";
    assert!(said(&tree, &words(line)).contains("damaged-binary"));
}

#[test]
fn images_for_windows_join_and_split_back_to_the_byte() {
    let build = WindowsBuild { linker: WindowsLinker::LldLink, flags: &[], is_program: false };
    if !build.linker.is_there() {
        return;
    }
    let name = "bin/vec.dll";
    // The compressed one has more code than fits where its bundles were.
    for storage in [Storage::Plain, Storage::Zstd(2)] {
        let both = |name| TARGETS.map(|target| code(target, name));
        let library = FatLibrary::new().wrapper(storage, both("add")).wrapper(storage, both("mul"));
        let tree = Tree::new();
        library.build_for_windows(build, &tree.path("fat")).unwrap();
        tree.copy_file("fat", &format!("prefix/{name}"));
        let file = tree.path("prefix").join(name);
        rocm_split(&library, &tree.path("prefix"), name, "vec_lib").unwrap();
        let host = fs::read(&file).unwrap();
        fs::write(tree.path("host"), &host).unwrap();
        let against = || {
            let report = check_with(&tree, &format!("prefix/{name}"), Some("fat"), &[]);
            assert_eq!(faults(&report), [""; 0], "{storage:?}");
        };
        against();
        for targets in [&TARGETS[..1], &TARGETS, &TARGETS[1..]] {
            let targets = targets.iter().map(|target| target.parse::<TargetId>().unwrap());
            let mut options = JoinOptions::new(tree.path("prefix"), targets, [name]);
            options.against = Some(tree.path("fat"));
            join(&options, &()).unwrap();
            against();
        }
        let mut options = InstallOptions::new(tree.path("prefix"), "vec", [name]);
        options.kpack_dir = "bin/.kpack".into();
        install(&options, &()).unwrap();
        same_bytes(&tree.path("host"), &file)
            .unwrap_or_else(|error| panic!("{storage:?}: {error}"));
        // And on: join → ROCm's → join → kpack's. All of the code does not fit where the linker put it, since the rest
        // of ROCm's split is kept with it, and then the wrappers' section grows: ROCm's tool takes that for wrappers.
        let join_for = |targets: &[&str]| {
            let targets = targets.iter().map(|target| target.parse::<TargetId>().unwrap());
            join(&JoinOptions::new(tree.path("prefix"), targets, [name]), &()).unwrap();
            against();
        };
        let split_by_rocm = || rocm_split(&library, &tree.path("prefix"), name, "vec_lib");
        join_for(&TARGETS);
        split_by_rocm().unwrap_err();
        fs::copy(tree.path("fat"), &file).unwrap();
        for targets in [&TARGETS[..], &TARGETS[..1], &TARGETS[..1]] {
            install(&options, &()).unwrap();
            join_for(targets);
            split_by_rocm().unwrap();
            against();
            fs::copy(&file, tree.path("host")).unwrap();
            join_for(&TARGETS[..1]);
            install(&options, &()).unwrap();
            same_bytes(&tree.path("host"), &file)
                .unwrap_or_else(|error| panic!("{storage:?}: {error}"));
            join_for(&TARGETS[..1]);
        }
    }
}

/// The marker of a joined binary is replaced where it is, by one with other search paths and code IDs. Another module needs
/// all of its code: what a join did not put back is in the archives of its former one.
#[test]
fn a_joined_binary_is_split_with_another_marker() {
    let both = |name| TARGETS.map(|target| code(target, name));
    for (storage, is_for_windows) in [
        (Storage::Plain, false),
        (Storage::Zstd(2), false),
        (Storage::Plain, true),
        (Storage::Zstd(2), true),
    ] {
        let build = WindowsBuild { linker: WindowsLinker::LldLink, flags: &[], is_program: false };
        if is_for_windows && !build.linker.is_there() {
            continue;
        }
        let (directory, name) = if is_for_windows { ("bin", "bin/vec.dll") } else { ("lib", FILE) };
        let library = FatLibrary::new().wrapper(storage, both("add")).wrapper(storage, both("mul"));
        for is_of_rocm in [true, false] {
            let what = format!("{storage:?}, {name}, ROCm's: {is_of_rocm}");
            let tree = Tree::new();
            if is_for_windows {
                library.build_for_windows(build, &tree.path("fat")).unwrap()
            } else {
                library.build(&tree.path("fat")).unwrap()
            }
            tree.copy_file("fat", &format!("prefix/{name}"));
            let split = |module: &str, targets: &[&str]| {
                let mut options = InstallOptions::new(tree.path("prefix"), module, [name]);
                options.kpack_dir = format!("{directory}/.kpack").into();
                install(&options, &()).unwrap_or_else(|error| panic!("{what}, {module}: {error}"));
                let report = check_with(&tree, &format!("prefix/{name}"), Some("fat"), targets);
                assert_eq!(faults(&report), [""; 0], "{what}, {module}");
            };
            if is_of_rocm {
                rocm_split(&library, &tree.path("prefix"), name, "vec_lib").unwrap()
            } else {
                split("vec", &TARGETS)
            }
            for (targets, module) in [
                (&TARGETS[..], "vec"),
                (&TARGETS[..], "w"),
                (&TARGETS[..], "uvw"),
                (&TARGETS[..], "uvw"),
                (&TARGETS[..], "v"),
            ] {
                let joined = targets.iter().map(|target| target.parse::<TargetId>().unwrap());
                join(&JoinOptions::new(tree.path("prefix"), joined, [name]), &()).unwrap();
                split(module, targets);
            }
        }
    }
}

/// ROCm's marker fills its section. What follows it in the file may be free, or be something else.
#[test]
fn a_longer_marker_gets_room() {
    let bench = Bench::new().unwrap();
    let id = format!("-Wl,--build-id=0x{}", "00".repeat(250));
    let headers_stay = ["objcopy", "-R", ".note.gnu.build-id"];
    let needs_room = ["patchelf", "--set-rpath", "/a/directory/of/libraries/that/needs/room"];
    let cases: [(FatLibrary, &[&str], &[&str]); 3] = [
        // The program headers follow, on the next page.
        (two_wrappers(), &[], &[]),
        // The file ends with the marker.
        (two_wrappers().flag(id), &headers_stay, &[]),
        // More than the room follows that the marker needs.
        (two_wrappers(), &[], &needs_room),
    ];
    for (library, before, after) in cases {
        if !before.iter().chain(after).take(1).all(|tool| require::tool(tool)) {
            continue;
        }
        let tree = split_after(&library, before);
        let file = tree.path("prefix").join(FILE);
        let fat = bench.report(Kind::Shared, &tree.path("fat")).unwrap();
        let (_, size) = marker(&file);
        joined(&tree, &TARGETS);
        if let [tool, arguments @ ..] = after {
            try_run(Command::new(tool).args(arguments).arg(&file)).unwrap();
        }
        let mut longest = size;
        for module in ["vec".repeat(70), "vec".repeat(60), "v".to_owned()] {
            let what = format!("{before:?} {after:?} {module}");
            install(&InstallOptions::new(tree.path("prefix"), &module, [FILE]), &())
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let (name, size) = marker(&file);
            assert_eq!(name, format!(".kpack/{module}_lib_@GFXARCH@.kpack"));
            longest = longest.max(size);
            assert_eq!(size, longest, "{what}: only a longer marker needs room");
            assert_eq!(bench.report(Kind::Shared, &file).unwrap(), expected_report(&fat), "{what}");
            assert_eq!(faults(&check(&tree, "prefix/lib/libvec.so")), [""; 0], "{what}");
            let joined = TARGETS.map(|target| target.parse::<TargetId>().unwrap());
            join(&JoinOptions::new(tree.path("prefix"), joined, [FILE]), &()).unwrap();
            assert_eq!(bench.report(Kind::Shared, &file).unwrap(), fat, "{what}");
        }
        assert!(longest > size + 200, "{longest}");
    }
}

/// The search path of a library's marker, and the size of its section.
fn marker(path: &Path) -> (String, u64) {
    let image = kpack_split::elf::Image::read(fs::File::open(path).unwrap()).unwrap();
    let section = image.section(".rocm_kpack_ref").unwrap().unwrap().1;
    let bytes = image.section_bytes(section).unwrap();
    let (marker, _) = kpack_format::marker::Marker::read(&bytes).unwrap();
    (marker.kpack_search_paths[0].clone(), section.size)
}
