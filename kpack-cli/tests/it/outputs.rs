//! Given something in the place of an output file, when a command writes that file, then a regular file is
//! replaced, and anything else stays and is an error, such as a link or a directory.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::command::{kpack, words};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{Kind, Wheel, add_and_mul, code_object};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

const FAT: &str = "vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl";
const ARCHIVE: &str = "prefix/lib/.kpack/vec_lib_gfx942.kpack";

/// Each command that writes files, and one of its files.
const OUTPUTS: &[(&str, &str)] = &[
    (
        "extract prefix/lib/.kpack/vec_lib_gfx942.kpack --kernel lib/libvec.so#0 -o out/file",
        "out/file",
    ),
    (
        "extract prefix/lib/.kpack/vec_lib_gfx942.kpack --output-dir out",
        "out/lib_libvec.so-1-gfx942.hsaco",
    ),
    ("extract fat.so --output-dir out", "out/fat.so-0-gfx942.hsaco"),
    ("join --prefix prefix --arch gfx942 --output out/file lib/libvec.so", "out/file"),
    ("report prefix --html out/file", "out/file"),
    ("object --module vec --output-dir out vec.o", "out/vec.o"),
    ("object --module vec --output-dir out vec.o", "out/.kpack/vec_lib_gfx942.kpack"),
    ("object --module vec --output-dir out vec.o", "out/.kpack/vec_lib.kpm"),
    (
        "split --prefix out --module vec --only device --source fat.so lib/libvec.so",
        "out/lib/.kpack/vec_lib_gfx942.kpack",
    ),
    (
        "wheel split vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl --output-dir out",
        "out/vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ),
    (
        "wheel split vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl --output-dir out",
        "out/vec_device_gfx942-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    ),
    (
        "artifact split --artifact-dir artifact --artifact-prefix vec_lib --output-dir out",
        "out/vec_lib_generic",
    ),
];

/// What may be in the place of a file. kpack-core, which decides what replaces what, tests the other kinds.
const OBSTACLES: [&str; 3] = ["a regular file", "a symbolic link", "a directory"];

pub(crate) fn inputs() -> Tree {
    let tree = Tree::new();
    let library = add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"]);
    for file in ["fat.so", "prefix/lib/libvec.so", "artifact/vec/stage/lib/libvec.so"] {
        fs::create_dir_all(tree.path(file).parent().unwrap()).unwrap();
        library.build(&tree.path(file)).unwrap();
    }
    fs::write(tree.path("artifact/artifact_manifest.txt"), "vec/stage\n").unwrap();
    library.clone().kind(Kind::Object).build(&tree.path("vec.o")).unwrap();
    let wheel = Wheel::new(FAT).member("vec/_vec.so", fs::read(tree.path("fat.so")).unwrap());
    wheel.write(tree.root()).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    tree
}

/// A tree with the inputs and an empty directory `out`.
fn with_output(inputs: &Tree) -> Tree {
    let tree = inputs.copy();
    fs::create_dir(tree.path("out")).unwrap();
    tree
}

/// Puts what is called so at `path`.
fn make(obstacle: &str, path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match obstacle {
        "a regular file" => fs::write(path, "old").unwrap(),
        "a symbolic link" => {
            fs::write(path.with_file_name("linked"), "old").unwrap();
            symlink("linked", path).unwrap();
        }
        _ => {
            fs::create_dir(path).unwrap();
            fs::write(path.join("mine"), "old").unwrap();
        }
    }
}

#[test]
fn every_command_replaces_regular_files_and_nothing_else() {
    let inputs = inputs();
    for (line, output) in OUTPUTS {
        for obstacle in OBSTACLES {
            let tree = with_output(&inputs);
            if line.starts_with("split") {
                fs::create_dir(tree.path("out/lib")).unwrap();
                fs::copy(tree.path("fat.so"), tree.path("out/lib/libvec.so")).unwrap();
            }
            let path = tree.path(output);
            make(obstacle, &path);
            if *output == "out/vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
                && obstacle == "a regular file"
            {
                // An earlier host wheel.
                fs::remove_file(&path).unwrap();
                assert!(kpack(&tree, &words(line)).status.success());
            }
            if output.contains(".kpack/") && obstacle == "a regular file" {
                // An earlier archive.
                fs::copy(
                    tree.path(
                        &output
                            .replace("out/.kpack", "prefix/lib/.kpack")
                            .replace("out/lib", "prefix/lib"),
                    ),
                    &path,
                )
                .unwrap();
            }
            let before = path.symlink_metadata().unwrap();
            let said = kpack(&tree, &words(line));
            let text = String::from_utf8_lossy(&said.stderr).into_owned();
            let what = format!("{line}: {obstacle}: {text}");
            // A directory that is no artifact also stays.
            let may_replace = obstacle == "a regular file" && !line.starts_with("artifact split");
            if may_replace {
                assert_eq!(said.status.code(), Some(0), "{what}");
                continue;
            }
            assert_eq!(said.status.code(), Some(3), "{what}");
            let name = Path::new(output).file_name().unwrap().to_str().unwrap();
            assert!(text.contains(name), "{what}");
            let after = path.symlink_metadata().unwrap();
            assert_eq!(after.file_type(), before.file_type(), "{what}");
            assert_eq!(after.ino(), before.ino(), "{what}");
            if obstacle == "a symbolic link" {
                assert_eq!(fs::read(path.with_file_name("linked")).unwrap(), b"old");
            }
            let hidden = |file: &String| file.contains("/.") && file.ends_with(".tmp");
            assert!(!tree.files().iter().any(hidden), "{what}: {:?}", tree.files());
        }
    }
}

/// The directories in which commands write what is not complete, and commands that write there.
const HIDDEN: [(&str, &str); 4] = [
    ("out/.kpack-extract.tmp", "extract prefix/lib/.kpack/vec_lib_gfx942.kpack --output-dir out"),
    ("out/.vec.tmp", "wheel split vec-1.0-cp311-cp311-manylinux_2_28_x86_64.whl --output-dir out"),
    (
        "out/.vec_lib.tmp",
        "artifact split --artifact-dir artifact --artifact-prefix vec_lib --output-dir out",
    ),
    (
        "out/.vec_lib.tmp",
        "artifact recombine --input-shards-dir shards --config groups.json --output-dir out",
    ),
];

#[test]
fn files_of_the_user_under_a_hidden_name_stay() {
    let inputs = inputs();
    let split =
        "artifact split --artifact-dir artifact --artifact-prefix vec_lib --output-dir shards/one";
    assert!(kpack(&inputs, &words(split)).status.success());
    let groups = r#"{"primary_shard": "one", "architecture_groups":
        {"one": {"architectures": ["gfx942", "gfx90a"]}}}"#;
    fs::write(inputs.path("groups.json"), groups).unwrap();
    for (directory, line) in HIDDEN {
        let tree = with_output(&inputs);
        let mine = ["thesis.txt", "vec_lib_generic/thesis.txt", "old.vec/thesis.txt"];
        let mine = mine.map(|name| tree.path(directory).join(name));
        for file in &mine {
            write(file, "mine");
        }
        for _ in 0..2 {
            let said = kpack(&tree, &words(line));
            let text = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.status.success(), "{line}: {text}");
            let stays = |file| fs::read(file).is_ok_and(|text| text == b"mine");
            assert!(mine.iter().all(stays), "{line}");
            let others = fs::read_dir(tree.path(directory)).unwrap();
            assert_eq!(others.count(), 3, "{line}");
        }
    }
}

#[test]
fn no_file_that_the_user_names_replaces_an_archive() {
    let tree = with_output(&inputs());
    let before = tree.snapshot();
    for line in [
        "join --prefix prefix --arch gfx942 --output OUT lib/libvec.so",
        "extract fat.so --kernel fat.so#0 --arch gfx942 -o OUT",
        "report prefix --html OUT",
    ] {
        let line = line.replace("OUT", ARCHIVE);
        let said = kpack(&tree, &words(&line));
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(3), "{line}: {text}");
        assert!(text.contains("which binaries may need"), "{line}: {text}");
        assert_eq!(tree.snapshot(), before);
    }
}

#[test]
fn a_code_object_that_kernels_share_is_written_once() {
    // Given an archive whose kernels share code objects of 1 MiB.
    let tree = Tree::new();
    let code = code_object("gfx942", &vec![0; 1 << 20]).unwrap();
    let library = (0..10).fold(kpack_tests::fixture::FatLibrary::new(), |library, _| {
        let code = [("gfx942".to_owned(), code.clone())];
        library.wrapper(kpack_tests::fixture::Storage::Plain, code)
    });
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();

    // When all are extracted, then that takes the room of one, and again nothing changes.
    let extract = format!("extract {ARCHIVE} --output-dir out");
    for _ in 0..2 {
        let said = kpack(&tree, &words(&extract));
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let files: Vec<_> = fs::read_dir(tree.path("out")).unwrap().collect();
        assert_eq!(files.len(), 10);
        let mut nodes = Vec::new();
        for file in files {
            let path = file.unwrap().path();
            assert_eq!(fs::read(&path).unwrap(), code);
            nodes.push(path.metadata().unwrap().ino());
        }
        nodes.dedup();
        assert_eq!(nodes.len(), 1);
    }

    // When less is allowed, then nothing is written, not even the directory.
    let size = code.len();
    for (most, expected) in [(size, 0), (size - 1, 3)] {
        let line = format!("extract {ARCHIVE} --output-dir limited{most} --max-bytes {most}");
        let said = kpack(&tree, &words(&line));
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(expected), "{text}");
        assert_eq!(tree.path(&format!("limited{most}")).exists(), expected == 0);
        assert!(expected == 0 || text.contains("[size-limit]"), "{text}");
    }
}

#[test]
fn a_large_code_object_is_extracted_in_little_memory() {
    // Given an archive of some kilobytes with a code object of 256 MiB.
    let tree = Tree::new();
    let size = 256 << 20;
    let code = {
        let mut code = code_object("gfx942", &[]).unwrap();
        code.resize(size, 0);
        code
    };
    let target = "gfx942".parse().unwrap();
    let scheme = kpack_format::archive::Scheme::ZstdPerKernel;
    let spool = std::io::Cursor::new(Vec::new());
    let mut archive = kpack_format::archive::ArchiveWriter::new(spool, "vec_lib", &target, scheme);
    let checksum = kpack_format::digest::blake3(&code);
    let mut encoder = kpack_format::archive::Encoder::new(scheme, 3).unwrap();
    archive.add("lib/libvec.so#0", &encoder.encode(&code, checksum).unwrap()).unwrap();
    drop(code);
    let file = fs::File::create(tree.path("vec_lib_gfx942.kpack")).unwrap();
    archive.finish(file).unwrap();

    // When it is extracted with 150 MB of memory, then it is there.
    for output in ["out", "-"] {
        let line = format!(
            "ulimit -v 150000; {} extract vec_lib_gfx942.kpack -o {output} | wc -c",
            env!("CARGO_BIN_EXE_kpack")
        );
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", &line]);
        let said = shell.current_dir(tree.root()).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{output}: {text}");
        if output == "-" {
            assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), size.to_string());
        }
    }
    assert_eq!(tree.path("out").metadata().unwrap().len(), size as u64);
}

#[test]
fn damage_that_is_met_late_leaves_the_output_directory_as_it_was() {
    // Given an archive of two code objects, the second damaged, and a file with the name of the first.
    let tree = Tree::new();
    fs::create_dir_all(tree.path("prefix/lib")).unwrap();
    let library = add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"]);
    library.build(&tree.path("prefix/lib/libvec.so")).unwrap();
    let options = InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]);
    install(&options, &()).unwrap();
    fs::create_dir(tree.path("out")).unwrap();
    let first = tree.path("out/lib_libvec.so-0-gfx942.hsaco");
    fs::write(&first, "earlier").unwrap();
    let whole = fs::read(tree.path(ARCHIVE)).unwrap();
    let starts = |at: &usize| whole[*at..].starts_with(b"\x28\xb5\x2f\xfd");
    let frames: Vec<usize> = (0..whole.len()).filter(starts).collect();
    let mut damaged = whole.clone();
    damaged[frames[1] + 12] ^= 1;
    fs::write(tree.path(ARCHIVE), damaged).unwrap();
    let before = tree.snapshot();

    // When all are extracted, into that directory or a new one, then nothing changes.
    for directory in ["out", "new"] {
        let said = kpack(&tree, &words(&format!("extract {ARCHIVE} --output-dir {directory}")));
        assert_eq!(said.status.code(), Some(3), "{said:?}");
        assert!(tree.snapshot() == before, "{directory}");
    }

    // When the archive is whole again, then all are there.
    fs::write(tree.path(ARCHIVE), whole).unwrap();
    let said = kpack(&tree, &words(&format!("extract {ARCHIVE} --output-dir out")));
    assert!(said.status.success(), "{said:?}");
    let names = fs::read_dir(tree.path("out")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lib_libvec.so-0-gfx942.hsaco", "lib_libvec.so-1-gfx942.hsaco"]);
    assert!(fs::read(&first).unwrap().starts_with(b"\x7fELF"));
}

#[test]
fn one_kernel_of_a_binary_is_extracted_without_the_others() {
    // Given a binary whose second bundle is damaged.
    let tree = Tree::new();
    let codes = [0, 1].map(|seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes: Vec<u8> = (0..600_000).map(|_| random.u8(..50)).collect();
        code_object("gfx942", &bytes).unwrap()
    });
    let library = codes.iter().fold(kpack_tests::fixture::FatLibrary::new(), |library, code| {
        let code = [("gfx942".to_owned(), code.clone())];
        library.wrapper(kpack_tests::fixture::Storage::Zlib(2), code)
    });
    library.build(&tree.path("fat.so")).unwrap();
    let mut bytes = fs::read(tree.path("fat.so")).unwrap();
    let bundles: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"CCOB")).collect();
    assert_eq!(bundles.len(), 2);
    let end = bundles[1] + 300_000;
    bytes[end..end + 8].fill(0xff);
    fs::write(tree.path("fat.so"), bytes).unwrap();
    for (index, expected) in [(0, 0), (1, 3)] {
        let line = format!("extract fat.so --kernel fat.so#{index} --arch gfx942 -o out");
        let said = kpack(&tree, &words(&line));
        assert_eq!(said.status.code(), Some(expected), "{said:?}");
    }
    // What was extracted before stays.
    assert!(fs::read(tree.path("out")).unwrap() == codes[0]);
}

/// Given a file that its owner may not read, when a command writes it, then that replaces it: the directory is theirs.
#[test]
fn an_own_file_without_permissions_is_replaced() {
    if !require::root() {
        return;
    }
    let tree = Tree::new();
    let kpack = tree.path("kpack");
    process::copy(env!("CARGO_BIN_EXE_kpack"), &kpack);
    fs::write(tree.path("code.hsaco"), code_object("gfx942", &[1; 100]).unwrap()).unwrap();
    for name in ["out", "out.kpack"] {
        fs::write(tree.path(name), "earlier").unwrap();
        fs::set_permissions(tree.path(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    process::run(Command::new("chown").args(["-R", "65534:65534"]).arg(tree.root()));
    let extract = |output: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&kpack);
        let command =
            command.args(["extract", "code.hsaco", "-o", output]).current_dir(tree.root());
        process::output(command)
    };
    let said = extract("out");
    assert!(said.status.success(), "{said:?}");
    assert!(fs::read(tree.path("out")).unwrap().starts_with(b"\x7fELF"));
    // Its name says that it may be needed.
    let said = extract("out.kpack");
    assert_eq!(said.status.code(), Some(3), "{said:?}");
}
