//! Given installed files with code for several GPUs, when they are trimmed, then they have the code for the chosen ones
//! and nothing else changes: not what others use, and not what is listed. `elf_layouts` has the binaries of each linker.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::command::{Row, command, kpack, said, said_by, succeeds, words};
use crate::fat::targets_of;
use crate::install_files::can_have_attributes;
use crate::kernel_files::gzip;
use crate::layouts::trimmed::same;
use crate::spirv::{CLANG_19, spirv};
use crate::windows_binaries::{self, runs};
use kpack_core::words::bytes;
use kpack_split::Spirv;
use kpack_split::input::LinkedBinary;
use kpack_split::install::{InstallOptions, install};
use kpack_split::join::differences;
use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, TargetCode, WINDOWS_LINKERS, Wheel, WindowsBuild, bundle, code_with,
};
use kpack_tests::package_root::PackageRoot;
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::sha256;
use kpack_tests::steps::{Steps, kill_at_steps};
use kpack_tests::tree::{Tree, copy_file};
use rustix::fs::{XattrFlags, getxattr, setxattr};

const LIBRARY: &str = "lib/libvec.so";

fn code(target: &str, seed: u8) -> TargetCode {
    code_with(target, &vec![seed; 30_000])
}

/// Wrappers of every form of bundle, two of which share one.
fn library() -> FatLibrary {
    let both = |seed| [code("gfx1100", seed), code("gfx942", seed + 1)];
    FatLibrary::new()
        .wrapper(Storage::Plain, both(1))
        .wrapper(Storage::Zlib(1), both(3))
        .wrapper(Storage::Zstd(2), both(5))
        .wrapper(Storage::ZstdLong(3), both(7))
        .wrapper_sharing(2)
        .wrapper(Storage::Bare, [code("gfx90a:xnack+", 9)])
        .wrapper(Storage::Plain, [code("gfx90a:xnack-", 10), code("gfx9-4-generic", 11)])
}

/// A prefix with the library, and the same one elsewhere, as `fat`.
fn prefix() -> Tree {
    library().in_prefix(LIBRARY)
}

/// Runs `kpack trim` with more arguments, and gives what it printed.
fn trim(tree: &Tree, arguments: &str) -> String {
    let output = kpack(tree, &words(&format!("trim {arguments}")));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap() + &text
}

/// What a run prints that does what a dry run says.
pub(crate) fn as_done(dry: &str) -> String {
    assert!(dry.contains("would change"), "{dry}");
    [
        ("would change", "changed"),
        ("would shrink: ", ""),
        ("would be removed", "removed"),
        ("would list", "lists"),
        ("would still be", "still"),
    ]
    .iter()
    .fold(dry.to_owned(), |text, (would, does)| text.replace(would, does))
}

#[test]
fn code_of_the_chosen_gpus_stays_under_its_wrappers_in_the_same_form() {
    for (gpus, left) in [
        ("gfx1100", &["gfx1100"][..]),
        ("gfx942,gfx1100", &["gfx1100", "gfx9-4-generic", "gfx942"]),
        ("gfx90a:xnack+", &["gfx90a:xnack+"]),
        ("gfx90a", &["gfx90a:xnack-", "gfx90a:xnack+"]),
        ("gfx950", &["gfx9-4-generic"]),
    ] {
        let tree = prefix();
        let (fat, trimmed) = (tree.path("fat"), tree.path("prefix").join(LIBRARY));
        trim(&tree, &format!("--arch {gpus} prefix"));
        assert_eq!(targets_of(&trimmed), left, "{gpus}");
        same(&fat, &trimmed).unwrap();
        let [before, after] = [&fat, &trimmed].map(|path| LinkedBinary::open(path).unwrap());
        let kpack_split::elf::DeviceCode::Fat(old) = &before.code else { panic!() };
        let kpack_split::elf::DeviceCode::Fat(new) = &after.code else { panic!() };
        let form = |binary: &LinkedBinary, fat: &kpack_split::elf::FatBinary| -> Vec<_> {
            let bundles = binary.bundles(&fat.wrappers);
            let form = |format: kpack_format::offload_bundle::Format| match format {
                kpack_format::offload_bundle::Format::Compressed { version, method, .. } => {
                    format!("{version} {method:?}")
                }
                other => format!("{other:?}"),
            };
            bundles.map(|bundle| form(bundle.unwrap().format)).collect()
        };
        // A code object that goes leaves a bundle without any.
        let mut expected = form(&before, old);
        if !gpus.contains("gfx90a") {
            expected[5] = "Plain".to_owned();
        }
        assert_eq!(form(&after, new), expected, "{gpus}");
        let starts = Vec::from_iter(new.wrappers.iter().map(|w| w.bundle_address));
        assert_eq!(starts[2], starts[4]);
        assert_eq!(std::collections::BTreeSet::from_iter(starts).len(), 6);
    }
}

/// A program for Windows on another machine, as pip has launchers of, with `code` in it.
fn program_for(machine: u16, code: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 0x200];
    bytes[..2].copy_from_slice(b"MZ");
    bytes[0x3c] = 0x40;
    bytes[0x40..0x44].copy_from_slice(b"PE\0\0");
    bytes[0x44..0x46].copy_from_slice(&machine.to_le_bytes());
    bytes.extend(code);
    bytes
}

/// Writes binaries that kpack cannot read, and gives the start of one of ELF.
fn other_binaries(tree: &Tree) -> Vec<u8> {
    let mut elf = fs::read(tree.path("fat")).unwrap();
    elf.truncate(64);
    // A 32-bit one, whose headers are not there, either.
    elf[4] = 1;
    tree.write("venv/t32.exe", program_for(0x14c, b""));
    tree.write("venv/t64-arm.exe", program_for(0xaa64, b""));
    tree.write("venv/truncated.exe", b"MZ");
    tree.write("venv/other.so", &elf);
    elf
}

/// Moves the code of the library to archives, which `kpack split` makes.
fn split_library(tree: &Tree) {
    install(&InstallOptions::new(tree.path("prefix"), "vec", [LIBRARY]), &()).unwrap();
}

/// Adds kernel databases, and splits the library.
fn with_databases_and_archives(tree: &Tree) {
    let place = "prefix/lib/rocblas/library";
    for target in ["gfx1100", "gfx942"] {
        let name = format!("{place}/TensileLibrary_Type_SS_{target}.hsaco");
        tree.write(&name, code(target, 1).1);
    }
    let only = "prefix/lib/hipblaslt/library/TensileLibrary_Type_SS_gfx942.hsaco";
    tree.write(only, code("gfx942", 1).1);
    // What goes as a whole is not looked into, even by a dry run.
    let goes = bundle(Storage::Plain, &[code("gfx942", 1)]).unwrap();
    tree.write(&format!("{place}/Kernels_gfx942.hsaco"), goes);
    split_library(tree);
}

/// Trees that are made from a prefix with a library for several GPUs, and what becomes of them.
const OF_A_PREFIX: &[Row] = &[
    (
        "a dry run, a run and another one",
        |_| {},
        &[
            "kpack trim --arch gfx1100 --dry-run prefix",
            "kpack trim --arch gfx1100 prefix",
            "kpack trim --arch gfx1100 prefix",
        ],
    ),
    ("a file without code for the GPU", |_| {}, &["kpack trim --arch gfx1030 prefix"]),
    (
        "files that stay for the same reason",
        |tree| {
            tree.copy_file("fat", "prefix/lib/liba.so");
            tree.copy_file("fat", "prefix/lib/libb.so");
        },
        &[
            "kpack trim --arch gfx1030 prefix",
            "kpack trim --arch gfx1030 --verbose prefix",
            "kpack trim --arch gfx1030 --json prefix",
        ],
    ),
    (
        "binaries that cannot be read, without device code",
        |tree| drop(other_binaries(tree)),
        &["kpack trim --arch gfx1100 --verbose venv"],
    ),
    (
        "binaries that cannot be read, with device code",
        |tree| {
            let plain = bundle(Storage::Plain, &[code("gfx942", 1)]).unwrap();
            let packed = bundle(Storage::Zstd(2), &[code("gfx942", 1)]).unwrap();
            let elf = other_binaries(tree);
            tree.write("venv/plain.exe", program_for(0xaa64, &plain));
            tree.write("venv/packed.exe", program_for(0x14c, &packed));
            tree.write("venv/bare.exe", program_for(0x14c, b".hip_fat"));
            tree.write("venv/fat.so", [elf, plain].concat());
        },
        &["kpack trim --arch gfx1100 --verbose venv"],
    ),
    // Among files that a shell listed, some are always without code. Of another kind, they are errors if no file has any.
    (
        "paths without device code",
        |tree| {
            tree.write("notes.txt", "text");
            tree.write("doc/notes.txt", "text");
            drop(other_binaries(tree));
        },
        &[
            "kpack trim --arch gfx1100 notes.txt",
            "kpack trim --arch gfx1100 notes.txt venv/other.so",
            "kpack trim --arch gfx1100 doc",
            "kpack trim --arch gfx1100 --dry-run doc prefix",
            "kpack trim --arch gfx1100 --dry-run doc venv/other.so prefix/lib/libvec.so",
            "kpack trim --arch gfx1100 --dry-run notes.txt prefix/lib/libvec.so doc/notes.txt",
        ],
    ),
    (
        "a split library, an archive and a code object, without the rest",
        |tree| {
            split_library(tree);
            tree.copy_file("prefix/lib/libvec.so", "alone/libvec.so");
            tree.write("code/vec.hsaco", code("gfx942", 1).1);
        },
        &[
            "kpack trim --arch gfx1100 prefix/lib/libvec.so",
            "kpack trim --arch gfx1100 prefix/lib/.kpack/vec_lib_gfx942.kpack",
            "kpack trim --arch gfx1100 alone code",
        ],
    ),
    (
        "databases, archives and a manifest",
        with_databases_and_archives,
        &[
            "kpack trim --arch gfx1100 --dry-run prefix",
            "kpack trim --arch gfx1100 prefix",
            "kpack show prefix/lib/.kpack/vec_lib.kpm",
            "kpack trim --arch gfx1100 prefix",
        ],
    ),
    // hipDNN's engines have archives in a directory per target.
    (
        "archives in directories per target",
        |tree| {
            split_library(tree);
            let put = |name: &str, target: &str| {
                let archive = format!("prefix/lib/.kpack/vec_lib_{target}.kpack");
                tree.copy_file(&archive, &format!("tree/{name}_{target}.kpack"));
            };
            // A kernel database that kpack knows, and one that it does not; each has an engine for both GPUs, and one for
            // gfx1100 alone.
            for place in ["lib/engines/arch_content", "lib/others"] {
                put(&format!("{place}/x/gfx1100/c"), "gfx1100");
                put(&format!("{place}/x/gfx942/c"), "gfx942");
                put(&format!("{place}/y/gfx1100/d"), "gfx1100");
            }
            // A rule names these, so they are a database's, too.
            put("share/mine/e", "gfx1100");
            put("share/mine/e", "gfx942");
        },
        &[
            "kpack trim --arch gfx942,gfx1100 --kernel-files mine=share/mine/*_{target}.kpack tree",
            "kpack trim --arch gfx1030 --kernel-files mine=share/mine/*_{target}.kpack tree",
            "kpack trim --arch gfx942 --kernel-files mine=share/mine/*_{target}.kpack tree",
        ],
    ),
    // A link leads to the file that serves a chosen GPU.
    (
        "files of a database that serve a chosen GPU or are all there is",
        |tree| {
            let db = |rocm: &str, target: &str| {
                format!("opt/{rocm}/share/miopen/db/{target}_20.HIP.fdb.txt")
            };
            tree.write(&db("r5", "gfx906"), "");
            for target in ["gfx906", "gfx942", "gfx1030"] {
                tree.write(&db("r6", target), "");
            }
            symlink("gfx1030_20.HIP.fdb.txt", tree.path(&db("r6", "gfx1031"))).unwrap();
        },
        &["kpack trim --arch gfx942,gfx1031 opt"],
    ),
    (
        "a damaged database",
        |tree| {
            let name = "prefix/lib/rocblas/library/Kernels_gfx942.hsaco";
            tree.write(name, b"__CLANG_OFFLOAD_BUNDLE__\xff");
        },
        &["kpack trim --arch gfx1100 prefix"],
    ),
    (
        "a note that is a link",
        |tree| symlink("../fat", tree.path("prefix/.kpack-trimmed")).unwrap(),
        &["kpack trim --arch gfx1100 prefix"],
    ),
    (
        "kernel files, without a rule and with one",
        |tree| {
            for target in ["gfx1100", "gfx942"] {
                let kernel = bundle(Storage::Plain, &[code(target, 1)]).unwrap();
                tree.write(&format!("lib/kernel_{target}.fatbin.zst"), packed("zstd", &kernel));
            }
        },
        &[
            "kpack trim --arch gfx1100 lib",
            "kpack trim --arch gfx1100 --kernel-files cycles=kernel_{target}.fatbin.zst lib",
        ],
    ),
    (
        "bundles in data that cannot shrink",
        |tree| drop(with_bundles_in_data(tree, &[Storage::Plain, Storage::Zlib(1)], &[])),
        &["kpack trim --arch gfx1100 lib"],
    ),
    // One variant of gfx90a's code went and the other one stayed, which the message about gfx1030 names. The note does not
    // explain what is missing for that.
    (
        "what the note explains",
        |_| {},
        &[
            "kpack trim --quiet --arch gfx1100,gfx90a:xnack+ prefix",
            "kpack verify --quiet --arch gfx90a,gfx1030,gfx942 prefix",
        ],
    ),
];

#[test]
fn what_trim_says_and_changes() {
    let mut settings = insta::Settings::clone_current();
    // They depend on the linker, unless there is nothing.
    settings.add_filter(r"\b(?:[1-9][0-9.]*|0\.[0-9]+) [KM]?i?B\b", "[size]");
    settings.add_filter(r#""(\w*(size|bytes|before|after)\w*)": \d+"#, r#""$1": 0"#);
    settings.add_filter("0x[0-9a-f]{4,}", "[offset]");
    settings.bind(|| insta::assert_snapshot!(said_by(OF_A_PREFIX, &prefix()).trim_end()));
}

/// The snapshots have no sizes of files.
#[test]
fn a_dry_run_says_what_a_run_does_with_exact_sizes() {
    const AS_IT_IS: fn(&Tree) = |_| {};
    for (change, files) in [(AS_IT_IS, "1 file"), (with_databases_and_archives, "7 files")] {
        let tree = prefix();
        change(&tree);
        let dry = trim(&tree, "--arch gfx1100 --dry-run prefix");
        let wet = trim(&tree, "--arch gfx1100 prefix");
        assert_eq!(as_done(&dry), wet);
        assert!(wet.contains(&format!("{files} changed: ")), "{wet}");
    }
}

#[test]
fn spirv_stays_where_a_gpu_has_no_other_code_or_if_asked_to() {
    let spirv = || ("amdgcnspirv".to_owned(), b"SPIR-V".repeat(2000));
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", 1), code("gfx942", 2), spirv()])
        .wrapper(Storage::Plain, [code("gfx942", 3), spirv()]);
    for (arguments, left) in [
        ("--arch gfx942", &["gfx942"][..]),
        ("--arch gfx1100", &["amdgcnspirv", "gfx1100"]),
        ("--arch gfx942 --spirv keep", &["amdgcnspirv", "gfx942"]),
    ] {
        let tree = library.in_tree(LIBRARY);
        trim(&tree, &format!("{arguments} lib"));
        assert_eq!(targets_of(&tree.path(LIBRARY)), left, "{arguments}");
    }
}

/// Given a module whose binaries are for different GPUs, then none of them loses all of its code, whether they are split or
/// not.
#[test]
fn a_binary_without_code_for_the_gpu_keeps_what_it_has() {
    for is_split in [false, true] {
        let tree = Tree::new();
        let files = ["lib/liba.so", "lib/libb.so"];
        for (file, targets) in
            files.iter().zip([&["gfx1100", "gfx942", "gfx1030"][..], &["gfx942"]])
        {
            let codes = targets.iter().map(|target| code(target, 1));
            let library = FatLibrary::new().wrapper(Storage::Plain, codes);
            library.build(&tree.path("prefix").join(file)).unwrap();
        }
        let what = if is_split {
            install(&InstallOptions::new(tree.path("prefix"), "vec", files), &()).unwrap();
            "the archives of lib/libb.so stay as they are"
        } else {
            "prefix/lib/libb.so: stays as it is"
        };
        let said = trim(&tree, "--arch gfx1100 prefix");
        let warning =
            format!("{what}: it has no code for gfx1100, only for gfx942 [missing-target]");
        assert!(said.contains(&warning), "{said}");
        assert_eq!(said.matches("warning").count(), 1, "{said}");
        succeeds(&tree, &words("verify --arch gfx942 prefix/lib/libb.so"));
        if is_split {
            let files = tree.files();
            let archives = files.iter().filter_map(|file| file.strip_prefix("prefix/lib/.kpack/"));
            assert_eq!(
                Vec::from_iter(archives),
                ["vec_lib.kpm", "vec_lib_gfx1100.kpack", "vec_lib_gfx942.kpack"]
            );
        }
    }
}

/// Somebody may have passed another GPU than he meant, and an image would keep all of its code.
#[test]
fn code_that_is_only_for_other_gpus_is_an_error() {
    for is_split in [false, true] {
        let tree = prefix();
        if is_split {
            install(&InstallOptions::new(tree.path("prefix"), "vec", [LIBRARY]), &()).unwrap();
        }
        let before = tree.snapshot();
        let run = kpack(&tree, &words("trim --arch gfx1201 prefix"));
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        let error = "prefix: there is no code for gfx1201, so nothing is trimmed; pass another `--arch` [missing-target]";
        assert_eq!((run.status.code(), said.matches(error).count()), (Some(3), 1), "{said}");
        assert_eq!(tree.snapshot(), before);
        // A module of which nothing goes any more is no reason.
        succeeds(&tree, &words("trim --arch gfx942 prefix"));
        succeeds(&tree, &words("trim --arch gfx942 prefix"));
    }
}

/// Where one kernel has no other code for a GPU, the archive with its SPIR-V stays.
#[test]
fn archives_stay_that_one_of_the_kernels_needs() {
    let tree = FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", 1), spirv(CLANG_19, "add")])
        .wrapper(Storage::Plain, [code("gfx942", 2), spirv(CLANG_19, "mul")])
        .in_prefix(LIBRARY);
    let mut options = InstallOptions::new(tree.path("prefix"), "vec", [LIBRARY]);
    options.storage.spirv = Spirv::Archive;
    install(&options, &()).unwrap();
    let archive = |target: &str| tree.path(&format!("prefix/lib/.kpack/vec_lib_{target}.kpack"));
    trim(&tree, "--arch gfx1100 prefix");
    assert!(archive("gfx1100").exists() && archive("amdgcnspirv").exists());
    assert!(!archive("gfx942").exists());
}

#[test]
fn files_that_others_use_stay_and_names_in_the_tree_stay_one_file() {
    let tree = prefix();
    let library = tree.path("prefix").join(LIBRARY);
    fs::create_dir_all(tree.path("prefix/bin")).unwrap();
    fs::hard_link(&library, tree.path("cache")).unwrap();
    fs::hard_link(&library, tree.path("prefix/bin/other")).unwrap();
    symlink("libvec.so", tree.path("prefix/lib/libvec.so.1")).unwrap();
    symlink("../../fat", tree.path("prefix/lib/linked.so.1")).unwrap();
    symlink("linked.so.1", tree.path("prefix/lib/linked.so")).unwrap();
    symlink("../..", tree.path("prefix/lib/up")).unwrap();
    let fat = fs::read(tree.path("fat")).unwrap();
    trim(&tree, "--arch gfx1100 prefix");
    for other in ["cache", "fat"] {
        assert_eq!(fs::read(tree.path(other)).unwrap(), fat, "{other}");
    }
    let inode = |path: &str| tree.path(path).symlink_metadata().unwrap().ino();
    assert_eq!(inode("prefix/lib/libvec.so"), inode("prefix/bin/other"));
    assert_ne!(inode("prefix/lib/libvec.so"), inode("cache"));
    assert_eq!(targets_of(&tree.path("prefix/bin/other")), ["gfx1100"]);
    assert!(tree.path("prefix/lib/libvec.so.1").is_symlink());
    assert!(tree.path("prefix/lib/linked.so").is_symlink());
    assert!(!tree.path("prefix/lib/linked.so.1").is_symlink());
    assert_eq!(targets_of(&tree.path("prefix/lib/linked.so")), ["gfx1100"]);
    let after = tree.snapshot_with_times();
    trim(&tree, "--arch gfx1100 prefix");
    assert_eq!(tree.snapshot_with_times(), after);
}

#[test]
fn owner_mode_times_and_attributes_stay() {
    let tree = Tree::new_in(env!("CARGO_TARGET_TMPDIR"));
    prefix().copy_to(&tree);
    let library = tree.path("prefix").join(LIBRARY);
    let is_root = require::root();
    if is_root {
        std::os::unix::fs::chown(&library, Some(1234), Some(4321)).unwrap();
    }
    fs::set_permissions(&library, fs::Permissions::from_mode(0o2755)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 12345);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    File::options().write(true).open(&library).unwrap().set_times(times).unwrap();
    let attributes = can_have_attributes(&library);
    if attributes {
        setxattr(&library, "user.kpack", b"mine", XattrFlags::empty()).unwrap();
    }
    let capabilities = is_root && require::tools(&["setcap", "getcap"]);
    if capabilities {
        process::run(Command::new("setcap").arg("cap_net_raw+ep").arg(&library));
    }
    let before = library.metadata().unwrap();
    trim(&tree, "--arch gfx1100 prefix");
    let after = library.metadata().unwrap();
    let facts = |m: &fs::Metadata| (m.mode(), m.uid(), m.gid(), m.mtime(), m.mtime_nsec());
    assert_eq!(facts(&after), facts(&before));
    assert!(after.len() < before.len());
    if attributes {
        let mut value = [0; 4];
        getxattr(&library, "user.kpack", &mut value).unwrap();
        assert_eq!(&value, b"mine");
    }
    if capabilities {
        let said = process::run(Command::new("getcap").arg(&library));
        assert!(said.contains("cap_net_raw=ep"), "{said}");
    }
}

#[test]
fn in_a_root_absolute_links_lead_into_it_and_nothing_outside_changes() {
    let tree = prefix();
    let root = tree.path("root");
    fs::create_dir_all(root.join("opt/rocm-6.4/lib")).unwrap();
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    fs::copy(tree.path("fat"), root.join("opt/rocm-6.4/lib/libvec.so")).unwrap();
    fs::copy(tree.path("fat"), root.join("usr/lib/libother.so")).unwrap();
    symlink("/opt/rocm-6.4", root.join("opt/rocm")).unwrap();
    symlink("/usr/lib/libother.so", root.join("opt/rocm-6.4/lib/libother.so")).unwrap();
    // From the root, this leads nowhere; from the machine, to a library.
    symlink(tree.path("fat"), root.join("opt/rocm-6.4/lib/out.so")).unwrap();
    symlink("../../../../../../../fat", root.join("opt/rocm-6.4/lib/up.so")).unwrap();
    let fat = fs::read(tree.path("fat")).unwrap();
    trim(&tree, "--arch gfx1100 --root root /opt/rocm");
    assert_eq!(targets_of(&root.join("opt/rocm-6.4/lib/libvec.so")), ["gfx1100"]);
    assert_eq!(targets_of(&root.join("opt/rocm-6.4/lib/libother.so")), ["gfx1100"]);
    for other in [root.join("usr/lib/libother.so"), tree.path("fat")] {
        assert_eq!(fs::read(other).unwrap(), fat);
    }
    for link in ["out.so", "up.so"] {
        assert!(root.join("opt/rocm-6.4/lib").join(link).is_symlink(), "{link}");
    }
    let outside = said(&tree, &words("trim --arch gfx1100 --root root /opt/../../prefix"));
    assert!(outside.contains("exit code 4"), "{outside}");
}

#[test]
fn a_killed_run_leaves_each_file_old_or_new_and_the_next_one_finishes() {
    killed(Steps::Some);
}

mod faults {
    mod extra {
        use super::super::{Steps, killed};

        #[test]
        #[ignore = "needs half a minute"]
        fn a_run_that_is_killed_at_each_step_leaves_each_file_old_or_new() {
            killed(Steps::All);
        }
    }
}

fn killed(steps: Steps) {
    if !require::tracing() {
        return;
    }
    let tree = prefix();
    let fat = tree.path("fat");
    let site = "prefix/lib/python3.12/site-packages";
    let links = ["lib/libvec-1.so", "lib/libvec-2.so", "lib/libvec-3.so"];
    let names = [LIBRARY, "lib/liba.so", "lib/python3.12/site-packages/vec/lib.so"];
    let path = |name: &str| tree.path("prefix").join(name);
    // The size that the list says. Afterwards, a file has this size, so that only its digest is stale.
    let listed = std::cell::Cell::new(fs::metadata(&fat).unwrap().len());
    let reset = || {
        let _ = fs::remove_dir_all(tree.path("prefix"));
        let info = tree.path(&format!("{site}/vec-1.dist-info"));
        fs::create_dir_all(&info).unwrap();
        for name in names {
            copy_file(&fat, path(name));
        }
        for link in links {
            fs::hard_link(path(LIBRARY), path(link)).unwrap();
        }
        let size = listed.get();
        let record = format!("vec/lib.so,sha256=x,{size}\nvec-1.dist-info/RECORD,,\n");
        fs::write(info.join("RECORD"), record).unwrap();
    };
    reset();
    let old = fs::read(&fat).unwrap();
    trim(&tree, "--arch gfx1100 prefix");
    let new = fs::read(path(LIBRARY)).unwrap();
    let record = fs::read(tree.path(&format!("{site}/vec-1.dist-info/RECORD"))).unwrap();
    let complete = tree.snapshot();
    let note = || fs::read_to_string(tree.path("prefix/.kpack-trimmed")).unwrap_or_default();
    assert!(!note().contains("unfinished"), "{}", note());
    listed.set(new.len() as u64);
    kill_at_steps(
        steps,
        1,
        |_| {
            reset();
            command(&tree, &words("trim --arch gfx1100 prefix"))
        },
        || names.map(|name| fs::read(path(name)).ok()),
        |_| {
            for name in names {
                let found = fs::read(path(name)).unwrap();
                assert!(found == old || found == new, "{name} is broken");
                assert!(found == old || note().contains(name), "{name} is not explained");
            }
            trim(&tree, "--arch gfx1100 prefix");
            let after = tree.snapshot();
            assert!(after == complete, "{:?}", after.keys());
            let now = fs::read(tree.path(&format!("{site}/vec-1.dist-info/RECORD"))).unwrap();
            assert_eq!(now, record);
            let inode = |name: &str| path(name).metadata().unwrap().ino();
            assert_eq!(links.map(inode), [inode(LIBRARY); 3]);
        },
    );
}

#[test]
fn record_and_conda_meta_list_what_is_there_and_hostile_entries_lead_nowhere() {
    let tree = prefix();
    let fat = fs::read(tree.path("fat")).unwrap();
    let site = tree.path("prefix/lib/python3.12/site-packages");
    let info = site.join("vec-1.dist-info");
    fs::create_dir_all(&info).unwrap();
    let size = fat.len();
    let record = format!(
        "../../../lib/libvec.so,sha256=x,{size}\n../../../../fat,sha256=y,{size}\n/etc/passwd,sha256=z,1\n\
         \"vec/a,b.py\",sha256=w,3\nvec-1.dist-info/RECORD,,\n"
    );
    fs::write(info.join("RECORD"), record).unwrap();
    fs::create_dir_all(tree.path("prefix/conda-meta")).unwrap();
    let meta = serde_json::json!({
        "files": ["lib/libvec.so"],
        "name": "vec",
        "paths_data": {"paths": [
            {"_path": "lib/libvec.so", "sha256": "p", "sha256_in_prefix": "q", "size_in_bytes": size},
            {"_path": "../fat", "sha256": "p", "sha256_in_prefix": "q", "size_in_bytes": size},
        ]},
    });
    let json = tree.path("prefix/conda-meta/vec-1-0.json");
    fs::write(&json, serde_json::to_vec_pretty(&meta).unwrap()).unwrap();
    let said = trim(&tree, "--arch gfx1100 prefix");
    assert!(said.contains("lists `../../../../fat`, which is outside"), "{said}");
    assert!(said.contains("lists `../fat`, which is outside"), "{said}");
    assert_eq!(fs::read(tree.path("fat")).unwrap(), fat);
    let new = fs::read(tree.path("prefix").join(LIBRARY)).unwrap();
    let record = fs::read_to_string(info.join("RECORD")).unwrap();
    let lines = Vec::from_iter(record.lines());
    assert!(lines[0].ends_with(&format!(",{}", new.len())), "{record}");
    assert!(!lines[0].contains("sha256=x"), "{record}");
    assert_eq!(lines[1], format!("../../../../fat,sha256=y,{size}"));
    assert_eq!(lines[3], "\"vec/a,b.py\",sha256=w,3");
    let meta: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let paths = &meta["paths_data"]["paths"];
    assert_eq!(paths[0]["sha256_in_prefix"], sha256(&new));
    assert_eq!(paths[0]["size_in_bytes"], new.len());
    assert_eq!(paths[0]["sha256"], "p");
    assert_eq!(paths[1]["size_in_bytes"], size);
}

#[test]
fn pip_finds_nothing_wrong_and_removes_everything() {
    if !require::tools(&["pip3", "python3"]) {
        return;
    }
    let tree = prefix();
    let fat = fs::read(tree.path("fat")).unwrap();
    let database = "vec/lib/rocblas/library/TensileLibrary_Type_SS";
    let wheel = Wheel::new("vec-1.0-py3-none-any.whl")
        .member("vec/__init__.py", "")
        .member("vec/libvec.so", fat)
        .member(&format!("{database}_gfx1100.hsaco"), code("gfx1100", 1).1)
        .member(&format!("{database}_gfx942.hsaco"), code("gfx942", 1).1);
    let wheel = wheel.write(tree.root()).unwrap();
    process::run(
        Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(tree.path("venv")),
    );
    let pip = |arguments: &[&str]| {
        let mut pip = Command::new("pip3");
        pip.arg("--python").arg(tree.path("venv/bin/python")).args(arguments);
        process::run(pip.env("PIP_DISABLE_PIP_VERSION_CHECK", "1"))
    };
    pip(&["install", "--no-index", wheel.to_str().unwrap()]);
    let site = |name: &str| {
        let lib = fs::read_dir(tree.path("venv/lib")).unwrap().next().unwrap().unwrap().path();
        lib.join("site-packages").join(name)
    };
    trim(&tree, "--arch gfx1100 venv");
    assert_eq!(targets_of(&site("vec/libvec.so")), ["gfx1100"]);
    assert!(site(&format!("{database}_gfx1100.hsaco")).exists());
    assert!(!site(&format!("{database}_gfx942.hsaco")).exists());
    // As importlib.metadata has them: each file with its size and digest.
    let script = "import base64, hashlib, importlib.metadata as m\n\
        for f in m.files('vec'):\n  p = f.locate()\n  b = p.read_bytes()\n  \
        assert f.size in (None, len(b)), f\n  h = hashlib.sha256(b).digest()\n  \
        h = base64.urlsafe_b64encode(h).rstrip(b'=').decode()\n  assert f.hash is None or f.hash.value == h, f\n";
    process::run(Command::new(tree.path("venv/bin/python")).args(["-c", script]));
    pip(&["check"]);
    pip(&["uninstall", "--yes", "vec"]);
    assert!(!site("vec").exists());
}

#[test]
fn rocfft_s_kernel_cache_stays_and_is_named_with_its_code_for_others() {
    let tree = Tree::new();
    let cache = tree.path("prefix/lib/rocfft/rocfft_kernel_cache.db");
    fs::create_dir_all(cache.parent().unwrap()).unwrap();
    let database = rusqlite::Connection::open(&cache).unwrap();
    database.execute("CREATE TABLE cache_v1 (kernel_name, arch, code)", ()).unwrap();
    for (kernel, target) in [("a", "gfx942"), ("b", "gfx942"), ("a", "gfx1030"), ("a", "gfx1100")] {
        let row = rusqlite::params![kernel, target, vec![1_u8; 1024]];
        database.execute("INSERT INTO cache_v1 VALUES (?, ?, ?)", row).unwrap();
    }
    drop(database);
    let before = tree.snapshot_with_times();
    let said = trim(&tree, "--arch gfx1100 prefix");
    let expected =
        "rocfft_kernel_cache.db: stays as it is, with 3.00 KiB of code for gfx1030, gfx942:";
    assert!(said.contains(expected), "{said}");
    assert_eq!(tree.snapshot_with_times(), before);
    let said = trim(&tree, "--arch gfx1100,gfx1030,gfx942 prefix");
    assert!(!said.contains("rocfft"), "{said}");
    fs::write(&cache, "no database").unwrap();
    let said = trim(&tree, "--arch gfx1100 prefix");
    assert!(said.contains("rocfft_kernel_cache.db: stays as it is: cannot be read"), "{said}");
}

#[test]
fn a_link_that_is_given_gets_a_file_of_its_own_and_each_given_path_is_listed() {
    let tree = prefix();
    let fat = fs::read(tree.path("fat")).unwrap();
    symlink("../fat", tree.path("prefix/link.so")).unwrap();
    let info = tree.path("prefix/lib/python3.12/site-packages/vec-1.dist-info");
    fs::create_dir_all(&info).unwrap();
    let record = format!("../../libvec.so,sha256=x,{}\nvec-1.dist-info/RECORD,,\n", fat.len());
    fs::write(info.join("RECORD"), record).unwrap();
    let said = trim(
        &tree,
        "--arch gfx1100 prefix/link.so prefix/lib/libvec.so prefix/lib/python3.12/site-packages",
    );
    assert!(!said.contains("outside"), "{said}");
    let command = format!("kpack trim --arch gfx1100 {}", tree.path("fat").display());
    assert!(said.contains(&format!("run `{command}` [shared-link]")), "{said}");
    assert_eq!(fs::read(tree.path("fat")).unwrap(), fat);
    assert_eq!(targets_of(&tree.path("prefix/link.so")), ["gfx1100"]);
    let size = fs::metadata(tree.path("prefix").join(LIBRARY)).unwrap().len();
    let record = fs::read_to_string(info.join("RECORD")).unwrap();
    assert!(
        record.starts_with("../../libvec.so,sha256=") && record.contains(&format!(",{size}\n"))
    );
    assert!(!record.contains("sha256=x"), "{record}");
}

#[test]
fn single_bundles_keep_their_form() {
    for storage in [Storage::Plain, Storage::Zlib(2), Storage::Zstd(1), Storage::ZstdLong(3)] {
        let tree = Tree::new();
        let entries = [code("gfx942", 1), code("gfx1100", 2), code("gfx1101", 3)];
        fs::write(tree.path("kernels.hipfb"), bundle(storage, &entries).unwrap()).unwrap();
        trim(&tree, "--arch gfx1100 kernels.hipfb");
        let found = fs::read(tree.path("kernels.hipfb")).unwrap();
        let again = bundle(storage, &entries[1..2]).unwrap();
        if storage == Storage::Plain {
            assert!(found == again, "{storage:?}");
        } else {
            // Version and method. The hash in the header is compared when the code objects are read.
            assert_eq!(found[..8], again[..8], "{storage:?}");
            let mut source = std::io::Cursor::new(&found);
            let read = kpack_format::offload_bundle::Bundle::read(&mut source, found.len() as u64);
            let read = read.unwrap();
            source.set_position(0);
            let codes = read.code_objects(source, |_| true).unwrap();
            let codes = Vec::from_iter(codes.map(|code| code.unwrap().bytes));
            assert_eq!(codes, [entries[1].1.clone()]);
        }
    }
}

/// The windows for reading and for writing are as large as the bundles, and not in memory at the same time.
#[test]
fn a_large_compressed_bundle_takes_the_memory_of_one_window() {
    if !require::tools(&["python3"]) {
        return;
    }
    const SIZE: usize = 32 << 20;
    let tree = Tree::new();
    let entries = ["gfx1100", "gfx1101", "gfx942"];
    let entries = entries.map(|target| code_with(target, &vec![target.len() as u8; SIZE]));
    fs::write(tree.path("a.hipfb"), bundle(Storage::ZstdLong(3), &entries).unwrap()).unwrap();
    let script = "import resource as r, subprocess, sys\nsubprocess.run(sys.argv[1:], check=True)\n\
        print(r.getrusage(r.RUSAGE_CHILDREN).ru_maxrss)";
    let kpack = command(&tree, &words("trim --quiet --arch gfx1100,gfx1101 a.hipfb"));
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(kpack.get_program()).args(kpack.get_args());
    let peak: usize = process::run(python.current_dir(tree.root())).trim().parse().unwrap();
    // Reading takes the memory of three code objects. Writing takes that of two, which must not be added to it.
    // The program itself takes about one.
    let (peak, window) = (peak << 10, 3 * SIZE);
    assert!(peak < window + SIZE + SIZE / 2, "{} MiB", peak >> 20);
    assert!(fs::metadata(tree.path("a.hipfb")).unwrap().len() < SIZE as u64);
}

/// The code objects for gfx1100 that each wrapper of a binary leads to.
fn codes_by_wrapper(path: &Path) -> Vec<Vec<Vec<u8>>> {
    let (linked, bytes) = (LinkedBinary::open(path).unwrap(), fs::read(path).unwrap());
    let kpack_split::elf::DeviceCode::Fat(fat) = &linked.code else { panic!() };
    let codes = fat.wrappers.iter().map(|wrapper| {
        let start = wrapper.bundle_offset as usize;
        let bytes = &bytes[start..start + wrapper.bundle_available as usize];
        let mut source = std::io::Cursor::new(bytes);
        let bundle = kpack_format::offload_bundle::Bundle::read(&mut source, bytes.len() as u64);
        let bundle = bundle.unwrap();
        source.set_position(0);
        let codes = bundle.code_objects(source, |target| target.to_string() == "gfx1100");
        codes.unwrap().map(|code| code.unwrap().bytes).collect()
    });
    let codes = Vec::from_iter(codes);
    assert_eq!(codes.iter().flatten().count(), 5);
    codes
}

#[test]
fn objects_and_static_libraries_are_linked_as_before() {
    let tree = library().kind(Kind::Object).in_tree("vec.o");
    let text = "void fixture_report(void);\nint main(void) { fixture_report(); return 0; }\n";
    fs::write(tree.path("main.c"), text).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        process::run(Command::new(program).args(arguments).current_dir(tree.root()))
    };
    run("cc", &["-c", "main.c"]);
    run("ld", &["-r", "-o", "part.o", "vec.o"]);
    run("ar", &["rcsD", "libvec.a", "main.o", "vec.o"]);
    let files = ["vec.o", "part.o", "libvec.a"];
    let linked = |file: &str| {
        run("cc", &["-o", "program", "main.o", file]);
        let printed = run("./program", &[]);
        // All but the bundles themselves.
        let printed = printed.lines().filter(|line| !line.starts_with("FPIH "));
        (Vec::from_iter(printed.map(str::to_owned)), fs::read(tree.path("program")).unwrap())
    };
    let before = files.map(linked);
    let said = trim(&tree, "--arch gfx1100 vec.o part.o libvec.a");
    assert!(said.contains("3 files changed") && !said.contains("warning"), "{said}");
    let old_sizes = files.map(|file| fs::metadata(tree.path(file)).unwrap().len());
    for (file, (printed, fat)) in files.iter().zip(before) {
        let (printed_now, _) = linked(file);
        assert_eq!(printed_now, printed, "{file}");
        assert!(!printed.is_empty());
        fs::write(tree.path("fat"), fat).unwrap();
        let [fat, trimmed] = ["fat", "program"].map(|name| tree.path(name));
        assert_eq!(targets_of(&trimmed), ["gfx1100"], "{file}");
        assert_eq!(codes_by_wrapper(&trimmed), codes_by_wrapper(&fat), "{file}");
    }
    let snapshot = tree.snapshot_with_times();
    let again = trim(&tree, "--arch gfx1100 vec.o part.o libvec.a");
    assert!(again.contains("0 files changed"), "{again}");
    assert_eq!(tree.snapshot_with_times(), snapshot);
    assert_eq!(old_sizes, files.map(|file| fs::metadata(tree.path(file)).unwrap().len()));
    let members = run("ar", &["t", "libvec.a"]);
    assert_eq!(members, "main.o\nvec.o\n");
}

/// Packs bytes in a form that the name of a program says.
fn packed(program: &str, bytes: &[u8]) -> Vec<u8> {
    if program == "zstd" { zstd::bulk::compress(bytes, 3).unwrap() } else { gzip(bytes) }
}

#[test]
fn bundles_in_compressed_files_are_compressed_again() {
    for (program, name) in [("zstd", "kernels.hipfb.zst"), ("gzip", "kernels.fatbin.gz")] {
        let tree = Tree::new();
        let entries = [code("gfx942", 1), code("gfx1100", 2)];
        let whole = packed(program, &bundle(Storage::Plain, &entries).unwrap());
        fs::write(tree.path(name), &whole).unwrap();
        // What only begins like a compressed file is none of ours.
        fs::write(tree.path("damaged.zst"), &whole[..12]).unwrap();
        let said = trim(&tree, "--arch gfx1100 .");
        assert!(said.contains("without gfx942") && !said.contains("warning"), "{said}");
        let output = process::run(
            Command::new("sh")
                .args(["-c", "\"$0\" -dc <\"$1\" | sha256sum"])
                .arg(program)
                .arg(tree.path(name)),
        );
        let expected = sha256(&bundle(Storage::Plain, &entries[1..]).unwrap());
        assert!(output.starts_with(&expected), "{output}");
        let before = tree.snapshot_with_times();
        assert!(trim(&tree, "--arch gfx1100 .").contains("0 files changed"));
        assert_eq!(tree.snapshot_with_times(), before);
    }
}

/// A library with bundles in its data, which it hands to the HIP runtime itself, and with these objects.
fn with_bundles_in_data(
    tree: &Tree,
    storages: &[Storage],
    objects: &[&Path],
) -> std::path::PathBuf {
    let mut text = ".section .rodata\n.ascii \"__CLANG_OFFLOAD_BUNDLE__\"\n".to_owned();
    for (index, storage) in storages.iter().enumerate() {
        let name = tree.path(&format!("{index}.bundle"));
        let entries = [code("gfx942", 1), code("gfx1100", 2), code("gfx1030", 3)];
        fs::write(&name, bundle(*storage, &entries).unwrap()).unwrap();
        text += &format!(".balign 8\n.incbin \"{}\"\n.ascii \"after\"\n", name.display());
    }
    text += ".section .note.GNU-stack,\"\",@progbits\n";
    fs::write(tree.path("data.s"), text).unwrap();
    let library = tree.path("lib/libdata.so");
    fs::create_dir(tree.path("lib")).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-o"]).args([&library, &tree.path("data.s")]);
    process::run(cc.args(objects));
    library
}

/// Checks that the bundles in the data of `new` have the code for gfx1100 alone of those of `old`, in their places.
/// Returns where they are in each of them.
fn shrunk(old: &Path, new: &Path) -> Vec<[std::ops::Range<usize>; 2]> {
    let [old, new] = [old, new].map(|path| {
        let linked = LinkedBinary::open(path).unwrap();
        let [found] = &linked.image.bundles_in_data().unwrap()[..] else { panic!() };
        (fs::read(path).unwrap(), found.clone())
    });
    assert_eq!(old.1.starts.len(), new.1.starts.len());
    let starts = old.1.starts.iter().zip(&new.1.starts);
    let rooms = starts.map(|(was_at, is_at)| {
        let bundle_in = |(bytes, found): &(Vec<u8>, kpack_split::elf::DataBundles), start: u64| {
            let bytes = &bytes[start as usize..found.end as usize];
            let mut source = std::io::Cursor::new(bytes);
            let read = kpack_format::offload_bundle::Bundle::read(&mut source, bytes.len() as u64);
            let read = read.unwrap();
            source.set_position(0);
            let codes = read.code_objects(source, |_| true).unwrap();
            let codes = Vec::from_iter(codes.map(|code| code.unwrap().bytes));
            (read, codes)
        };
        let (was, codes_before) = bundle_in(&old, *was_at);
        let (is, codes) = bundle_in(&new, *is_at);
        assert_eq!(codes, [code("gfx1100", 2).1]);
        assert_eq!(codes_before.len(), 3);
        if is.format == kpack_format::offload_bundle::Format::Plain {
            // Whatever points to the code still does.
            assert!(is.entries.iter().all(|entry| was.entries.contains(entry)));
        }
        [was_at, is_at].map(|start| *start as usize..(start + was.size) as usize)
    });
    rooms.collect()
}

#[test]
fn bundles_in_data_shrink_in_their_place() {
    let tree = Tree::new();
    let storages = [Storage::Plain, Storage::Zstd(2), Storage::Plain, Storage::Zstd(3)];
    let library = with_bundles_in_data(&tree, &storages, &[]);
    fs::copy(&library, tree.path("fat")).unwrap();
    let (old, before) = (fs::read(&library).unwrap(), library.metadata().unwrap());
    let said = trim(&tree, "--arch gfx1100 lib");
    let (new, after) = (fs::read(&library).unwrap(), library.metadata().unwrap());
    assert_eq!(new.len(), old.len());
    assert!(after.blocks() < before.blocks(), "{} of {}", after.blocks(), before.blocks());
    let sizes = [(before.blocks() - after.blocks()) * 512, before.len()].map(bytes);
    let replaced = format!("{} of {} replaced by holes", sizes[0], sizes[1]);
    assert!(said.contains(&replaced), "{said}, expected {replaced}");
    let rooms = shrunk(&tree.path("fat"), &library);
    assert_eq!(rooms.len(), storages.len());
    let mut outside = vec![true; old.len()];
    for [was_at, is_at] in rooms {
        assert_eq!(was_at, is_at);
        outside[was_at].fill(false);
    }
    let same = outside.iter().zip(old.iter().zip(&new)).all(|(out, (a, b))| !out || a == b);
    assert!(same, "something outside of the bundles changed");
    let snapshot = tree.snapshot_with_times();
    assert!(trim(&tree, "--arch gfx1100 lib").contains("0 files changed"));
    assert_eq!(tree.snapshot_with_times(), snapshot);
}

/// An object with wrappers, which a library with bundles in its data is linked with.
fn object(tree: &Tree) -> std::path::PathBuf {
    library().kind(Kind::Object).build(&tree.path("vec.o")).unwrap();
    tree.path("vec.o")
}

#[test]
fn nothing_is_said_of_holes_where_there_are_none() {
    let tree = Tree::new();
    // The code is larger than the file, and less than a block of it goes.
    let library = with_bundles_in_data(&tree, &[Storage::Zstd(2)], &[]);
    let before = library.metadata().unwrap().blocks();
    for arguments in ["--arch gfx1100 lib --dry-run", "--arch gfx1100 lib"] {
        let said = trim(&tree, arguments);
        assert!(said.contains("without gfx1030, gfx942"), "{said}");
        assert!(!said.contains("hole"), "{said}");
    }
    assert_eq!(library.metadata().unwrap().blocks(), before);
}

#[test]
fn bundles_in_data_shrink_beside_those_of_wrappers() {
    let tree = Tree::new();
    let storages = [Storage::Plain, Storage::Zstd(2), Storage::Plain];
    let trimmed = with_bundles_in_data(&tree, &storages, &[&object(&tree)]);
    let fat = tree.path("fat");
    fs::copy(&trimmed, &fat).unwrap();
    let said = trim(&tree, "--arch gfx1100 lib");
    assert!(
        said.contains("without gfx1030, gfx9-4-generic") && !said.contains("warning"),
        "{said}"
    );
    assert!(fs::metadata(&trimmed).unwrap().len() < fs::metadata(&fat).unwrap().len());
    assert_eq!(targets_of(&trimmed), ["gfx1100"]);
    assert_eq!(codes_by_wrapper(&trimmed), codes_by_wrapper(&fat));
    let rooms = shrunk(&fat, &trimmed);
    assert_eq!(rooms.len(), storages.len());
    // With the old bundles in these places, its host memory is that of the original.
    let (old, mut patched) = (fs::read(&fat).unwrap(), fs::read(&trimmed).unwrap());
    for [was_at, is_at] in rooms {
        patched[is_at].copy_from_slice(&old[was_at]);
    }
    fs::write(tree.path("patched"), patched).unwrap();
    same(&fat, &tree.path("patched")).unwrap();
    let snapshot = tree.snapshot_with_times();
    assert!(trim(&tree, "--arch gfx1100 lib").contains("0 files changed"));
    assert_eq!(tree.snapshot_with_times(), snapshot);
    // A file in which only they have code for others.
    fs::copy(tree.path("patched"), &trimmed).unwrap();
    let said = trim(&tree, "--arch gfx1100 lib");
    assert!(said.contains("replaced by holes, without gfx1030, gfx942"), "{said}");
    shrunk(&fat, &trimmed);
}

#[test]
fn bundles_in_data_that_cannot_shrink_are_named_and_those_of_wrappers_shrink() {
    let tree = Tree::new();
    let storages = [Storage::Plain, Storage::Zlib(1)];
    let trimmed = with_bundles_in_data(&tree, &storages, &[&object(&tree)]);
    let fat = tree.path("fat");
    fs::copy(&trimmed, &fat).unwrap();
    let left = "all bundles in its data stay as they are (2 offload bundles in `.rodata`)";
    let dry = trim(&tree, "--arch gfx1100 --dry-run lib");
    let said = trim(&tree, "--arch gfx1100 lib");
    assert!(said.contains(left) && said.contains("[bundles-in-data]"), "{said}");
    assert_eq!(as_done(&dry), said);
    same(&fat, &trimmed).unwrap();
    assert_eq!(targets_of(&trimmed), ["gfx1100"]);
    let again = trim(&tree, "--arch gfx1100 lib");
    assert!(again.contains("0 files changed") && again.contains(left), "{again}");
}

#[test]
fn binaries_for_windows_are_trimmed_and_load() {
    for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
        for is_program in [false, true] {
            let tree = Tree::new();
            let build = WindowsBuild { linker, is_program, flags: &[] };
            // Linkers give a program without an extension one.
            let [fat, trimmed] = if is_program {
                ["fat.exe", "vec.exe"].map(|name| tree.path(name))
            } else {
                ["fat.dll", "vec.dll"].map(|name| tree.path(name))
            };
            windows_binaries::library().build_for_windows(build, &fat).unwrap();
            fs::copy(&fat, &trimmed).unwrap();
            let arguments = format!("--arch gfx1100 {}", trimmed.display());
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            let times = FileTimes::new().set_modified(time);
            File::options().write(true).open(&trimmed).unwrap().set_times(times).unwrap();
            trim(&tree, &arguments);
            assert_eq!(trimmed.metadata().unwrap().modified().unwrap(), time, "{linker:?}");
            assert!(fs::metadata(&trimmed).unwrap().len() < fs::metadata(&fat).unwrap().len());
            assert_eq!(targets_of(&trimmed), ["gfx1100"]);
            let [before, after] = [&fat, &trimmed].map(|path| LinkedBinary::open(path).unwrap());
            assert_eq!(differences(&after, &before).unwrap(), [""; 0], "{linker:?}");
            let again = fs::read(&trimmed).unwrap();
            trim(&tree, &arguments);
            assert!(fs::read(&trimmed).unwrap() == again);
            // All but the bundles themselves.
            let loaded = |path: &Path| -> Vec<String> {
                let lines = runs(path).unwrap().into_iter();
                let bundle = |line: &str| line.starts_with("FPIH 0 ");
                lines.map(|line| if bundle(&line) { "FPIH 0".to_owned() } else { line }).collect()
            };
            assert_eq!(loaded(&trimmed), loaded(&fat));
        }
    }
}

/// Given a DLL whose last bundle ends anywhere, when it is trimmed, then it can be trimmed again, split and joined, and has the code that
/// was chosen first.
#[test]
fn what_is_trimmed_for_windows_is_trimmed_again_and_split() {
    for linker in WINDOWS_LINKERS.into_iter().filter(|linker| linker.is_there()) {
        let tree = Tree::new();
        let [fat, trimmed] = ["fat/vec.dll", "bin/vec.dll"].map(|name| tree.path(name));
        let targets = ["gfx1030", "gfx1100", "gfx942"].into_iter().zip(1..);
        let own = Vec::from_iter(targets.map(|(target, seed)| {
            let bytes = (0..20_001 * seed)
                .map(|at: u32| (at.wrapping_mul(at).wrapping_mul(seed) >> 7) as u8);
            code_with(target, &Vec::from_iter(bytes))
        }));
        let library = FatLibrary::new().wrapper(Storage::Zstd(2), own);
        let build = WindowsBuild { linker, is_program: false, flags: &[] };
        for path in [&fat, &trimmed] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        library.build_for_windows(build, &fat).unwrap();
        fs::copy(&fat, &trimmed).unwrap();
        let code = |path: &Path| {
            differences(&LinkedBinary::open(path).unwrap(), &LinkedBinary::open(&fat).unwrap())
                .unwrap()
        };
        for gpus in ["gfx1030,gfx1100", "gfx1100"] {
            trim(&tree, &format!("--arch {gpus} bin"));
            assert_eq!(targets_of(&trimmed).join(","), gpus, "{linker:?}");
            assert_eq!(code(&trimmed), [""; 0], "{linker:?}");
        }
        succeeds(&tree, &words("split --prefix . --module vec bin/vec.dll"));
        succeeds(&tree, &words("verify ."));
        succeeds(&tree, &words("join --prefix . --arch gfx1100 bin/vec.dll"));
        assert_eq!(code(&trimmed), [""; 0], "{linker:?}");
        runs(&trimmed).unwrap();
    }
}

/// Given packages that dpkg and rpm installed, when their files are trimmed, then both say so.
#[test]
fn package_managers_list_what_was_trimmed() {
    if !require::tools(&["dpkg", "dpkg-deb", "rpm", "rpmbuild"]) || !require::root() {
        return;
    }
    const DATABASE: &str = "usr/lib/rocblas/library/TensileLibrary_Type_SS";
    let tree = library().in_tree("vec/usr/lib/libvec.so");
    fs::create_dir_all(tree.path("vec/usr/lib/rocblas/library")).unwrap();
    for (target, code) in [code("gfx1100", 1), code("gfx942", 2)] {
        fs::write(tree.path(&format!("vec/{DATABASE}_{target}.hsaco")), code).unwrap();
    }
    let spec = format!(
        "Name: vec\nVersion: 2.0\nRelease: 1\nSummary: vectors\nLicense: MIT\n%description\nvectors\n\
         %install\ncp -a {}/usr %{{buildroot}}\n%files\n/usr/lib/libvec.so\n/usr/lib/rocblas\n",
        tree.path("vec").display()
    );
    fs::write(tree.path("vec.spec"), spec).unwrap();
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.arg("-bb").arg("--define").arg(format!("_topdir {}", tree.path("top").display()));
    rpmbuild.args(["--define", "__os_install_post %{nil}", "--define", "debug_package %{nil}"]);
    process::run(rpmbuild.arg(tree.path("vec.spec")));
    let rpm =
        process::run(Command::new("find").arg(tree.path("top/RPMS")).args(["-name", "*.rpm"]));
    fs::create_dir(tree.path("vec/DEBIAN")).unwrap();
    let control = "Package: vec\nVersion: 2.0-1\nArchitecture: amd64\nMaintainer: A <a@example.org>\nDescription: vectors\n";
    fs::write(tree.path("vec/DEBIAN/control"), control).unwrap();
    let mut dpkg_deb = Command::new("dpkg-deb");
    dpkg_deb.arg("--root-owner-group").arg("-b").arg(tree.path("vec"));
    process::run(dpkg_deb.arg(tree.path("vec.deb")));
    let verify = |program: &str, root: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.arg("--root").arg(tree.path(root)).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for is_rpm in [false, true] {
        let name = if is_rpm { "root-rpm" } else { "root-dpkg" };
        let root = PackageRoot::new(&tree.path(name)).unwrap();
        let verify = || {
            if is_rpm {
                verify("rpm", name, &["--dbpath", "/var/lib/rpm", "--nodeps", "-V", "vec"])
            } else {
                verify("dpkg", name, &["--verify", "vec"])
            }
        };
        if is_rpm {
            root.rpm("-i", &[rpm.trim()]).unwrap()
        } else {
            root.dpkg("-i", &[tree.path("vec.deb")]).unwrap()
        }
        assert_eq!(verify(), "");
        let manager = if is_rpm { "rpm" } else { "dpkg" };
        let arguments = format!("--arch gfx1100 --root {name} /usr");
        let dry = trim(&tree, &format!("{arguments} --dry-run"));
        let report = kpack(&tree, &words(&format!("trim {arguments} --json"))).stdout;
        assert!(dry.contains(&format!("\n{manager}: vec (2 files)\n")), "{dry}");
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let [package] = &report["packages"].as_array().unwrap()[..] else { panic!("{report}") };
        assert_eq!(package["manager"], manager);
        let files = package["files"].as_array().unwrap();
        let files = files.iter().map(|file| Path::new(file.as_str().unwrap()).to_owned());
        let mut files = Vec::from_iter(files);
        files.sort();
        let expected = ["usr/lib/libvec.so".to_owned(), format!("{DATABASE}_gfx942.hsaco")];
        let root_of = tree.path(name).canonicalize().unwrap();
        assert_eq!(files, expected.map(|file| root_of.join(file)));
        let changed = if is_rpm { "S.5......    " } else { "??5??????   " };
        let expected =
            format!("{changed}/usr/lib/libvec.so\nmissing     /{DATABASE}_gfx942.hsaco\n");
        assert_eq!(verify(), expected);
        // The package brings its code back.
        if is_rpm {
            root.rpm("--reinstall", &[rpm.trim()]).unwrap()
        } else {
            root.dpkg("-i", &[tree.path("vec.deb")]).unwrap()
        }
        assert_eq!(verify(), "");
    }
}

#[test]
fn the_note_explains_what_went() {
    let tree = prefix();
    trim(&tree, "--arch gfx1100 prefix");
    for (gpu, expected) in [
        ("gfx942", "; `kpack trim` removed the code for gfx9-4-generic, gfx942 (it kept gfx1100)"),
        (
            "gfx90a",
            "; `kpack trim` removed the code for gfx90a:xnack+, gfx90a:xnack- (it kept gfx1100)",
        ),
        ("gfx1100", ""),
        ("gfx1030", ""),
    ] {
        let text = said(&tree, &words(&format!("verify --arch {gpu} prefix")));
        assert!(text.contains(expected), "{gpu}: {text}");
        assert_eq!(text.contains("kpack trim"), !expected.is_empty(), "{gpu}: {text}");
    }
    // It explains, and what is missing is missing.
    for command in ["verify --arch gfx942 prefix", "doctor --arch gfx942 prefix/lib/libvec.so"] {
        let text = said(&tree, &words(command));
        assert!(text.contains("[missing-target]") && text.contains("exit code 1"), "{text}");
        assert!(
            text.contains("; `kpack trim` removed the code for gfx9-4-generic, gfx942"),
            "{text}"
        );
    }
    let text = said(&tree, &words("show prefix/lib/libvec.so"));
    assert!(text.contains("`kpack trim` removed the code for gfx9-4-generic"), "{text}");
    let text = said(&tree, &words("verify --arch gfx1030 prefix"));
    assert!(!text.contains("kpack trim"), "{text}");
}

#[test]
fn native_is_what_the_machine_has_and_where_none_is_seen_the_option_is_named() {
    let tree = prefix();
    let native = |version: Option<&str>| {
        let mut kpack = command(&tree, &words("trim --arch native prefix"));
        match version {
            Some(version) => kpack.env("HSA_OVERRIDE_GFX_VERSION", version),
            None => kpack.env_remove("HSA_OVERRIDE_GFX_VERSION"),
        };
        let output = kpack.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    if Path::new("/sys/class/kfd/kfd/topology/nodes").exists() {
        return require::skip("this machine has GPUs of its own");
    }
    let before = tree.snapshot();
    let (done, text) = native(None);
    assert!(!done && text.contains("[no-gpu]") && text.contains("`--arch gfx942`"), "{text}");
    assert_eq!(tree.snapshot(), before);
    let (done, text) = native(Some("11.0.0"));
    assert!(done && text.contains("this machine has gfx1100"), "{text}");
    assert!(text.contains("warning: HSA_OVERRIDE_GFX_VERSION is set"), "{text}");
    assert_eq!(targets_of(&tree.path("prefix").join(LIBRARY)), ["gfx1100"]);
}
