//! Given lists of installed files, Python's RECORD and conda's, when `kpack trim` changes or removes some of the files,
//! then each line is true of its file, wherever the list is; and where it leads elsewhere, nothing changes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, bundle, code_with};
use kpack_tests::steps::{Steps, kill_at_steps};
use kpack_tests::tree::{Tree, write};
use kpack_tests::{process, require, sha256};

use crate::command::{NOBODY, command, for_every_user, kpack, words};

const COMPARE: &str = include_str!("trim_lists/compare.py");

/// What an environment has: the place of `site-packages` in it, and of its programs.
#[derive(Debug, Clone, Copy)]
struct Layout {
    packages: &'static str,
    programs: &'static str,
}

const LAYOUTS: [Layout; 6] = [
    Layout { packages: "venv/lib/python3.12/site-packages", programs: "venv/bin" },
    Layout { packages: "venv/Lib/site-packages", programs: "venv/Scripts" },
    Layout { packages: "home/.local/lib/python3.12/site-packages", programs: "home/.local/bin" },
    Layout { packages: "usr/local/lib/python3.12/dist-packages", programs: "usr/local/bin" },
    Layout { packages: "usr/lib64/python3.12/site-packages", programs: "usr/bin" },
    // As `pip install --target` makes it.
    Layout { packages: "target", programs: "target/bin" },
];

fn kernels(seed: u8) -> Vec<u8> {
    let code = |target| code_with(target, &vec![seed; 30_000]);
    bundle(Storage::Plain, &[code("gfx1100"), code("gfx942")]).unwrap()
}

/// A row of RECORD in the directory `packages`, for the file `path`.
fn row(tree: &Tree, packages: &str, path: &str) -> String {
    let bytes = fs::read(tree.path(path)).unwrap();
    let same = packages.split('/').zip(path.split('/')).take_while(|(a, b)| a == b).count();
    let up = "../".repeat(packages.split('/').count() - same);
    let down = path.split('/').skip(same).collect::<Vec<_>>().join("/");
    let script = "import base64, hashlib, sys\n\
        print(base64.urlsafe_b64encode(hashlib.sha256(sys.stdin.buffer.read()).digest()).decode().rstrip('='))";
    let mut python = Command::new("python3");
    python.args(["-c", script]).stdin(fs::File::open(tree.path(path)).unwrap());
    let hash = process::run(&mut python);
    format!("{up}{down},sha256={},{}\n", hash.trim(), bytes.len())
}

/// Writes the RECORD of a distribution with these files.
fn record(tree: &Tree, packages: &str, name: &str, files: &[&str]) {
    let info = format!("{packages}/{name}-1.dist-info");
    let metadata = format!("{info}/METADATA");
    tree.write(&metadata, format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"));
    let mut rows = row(tree, packages, &metadata);
    rows.extend(files.iter().map(|file| row(tree, packages, file)));
    rows += &format!("{name}-1.dist-info/RECORD,,\n");
    tree.write(&format!("{info}/RECORD"), rows);
}

/// Environments with a distribution that has kernels in its package, and as a program; and another distribution.
fn environment(layout: Layout) -> Tree {
    let Layout { packages, programs } = layout;
    let tree = Tree::new();
    let files = [
        format!("{packages}/vec/a, b.hipfb"),
        format!("{packages}/vec/lib/c.hipfb"),
        format!("{packages}/vec/lib/rocblas/library/K_gfx1100.hsaco"),
        format!("{packages}/vec/lib/rocblas/library/K_gfx942.hsaco"),
        format!("{programs}/d.hipfb"),
    ];
    for (seed, file) in files.iter().enumerate() {
        tree.write(file, kernels(seed as u8));
    }
    tree.write(&files[2], code_with("gfx1100", &[1; 100]).1);
    tree.write(&files[3], code_with("gfx942", &[1; 100]).1);
    let rows: Vec<String> = files.iter().map(|file| row(&tree, packages, file)).collect();
    record(&tree, packages, "vec", &[]);
    let list = tree.path(&format!("{packages}/vec-1.dist-info/RECORD"));
    let quoted = rows[0].replacen("vec/a, b.hipfb", "\"vec/a, b.hipfb\"", 1);
    let text = quoted + &rows[1..].concat() + &fs::read_to_string(&list).unwrap();
    fs::write(&list, text).unwrap();
    tree.write(&format!("{packages}/other/e.hipfb"), kernels(9));
    record(&tree, packages, "other", &[&format!("{packages}/other/e.hipfb")]);
    tree
}

/// In which lines lists below a directory are not true.
fn differences(path: &Path) -> String {
    let mut python = Command::new("python3");
    process::run(python.args(["-c", COMPARE]).arg(path))
}

fn trim(tree: &Tree, arguments: &str) -> String {
    let output = kpack(tree, &words(&format!("trim --arch gfx1100 {arguments}")));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap() + &text
}

/// Whether there is what makes and compares lists.
fn can_compare() -> bool {
    require::tools(&["python3"])
}

#[test]
fn the_list_above_what_is_given_is_true_afterwards() {
    if !can_compare() {
        return;
    }
    for layout in LAYOUTS {
        let Layout { packages, programs } = layout;
        let before = environment(layout);
        let top = packages.split('/').next().unwrap();
        for given in [
            top.to_owned(),
            packages.to_owned(),
            format!("{packages}/vec"),
            format!("{packages}/vec/lib"),
            format!("{packages}/vec/lib/c.hipfb"),
            format!("{packages}/other {packages}/vec/lib/rocblas"),
            format!("{packages}/vec/lib/c.hipfb {programs}/d.hipfb"),
            programs.to_owned(),
        ] {
            let tree = before.copy();
            assert_eq!(differences(tree.root()), "");
            let snapshot = tree.snapshot_with_times();
            trim(&tree, &format!("--dry-run {given}"));
            assert!(tree.snapshot_with_times() == snapshot, "{given}");
            let said = trim(&tree, &given);
            assert!(!said.starts_with("0 files"), "{given}: {said}");
            assert_eq!(differences(tree.root()), "", "{given}");
            let snapshot = tree.snapshot_with_times();
            let again = trim(&tree, &given);
            assert!(again.starts_with("0 files"), "{given}: {again}");
            assert!(tree.snapshot_with_times() == snapshot, "{given}");
        }
    }
}

#[test]
fn nothing_above_the_root_of_an_image_changes() {
    if !can_compare() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    let tree = environment(LAYOUTS[0]);
    let list = tree.path(&format!("{packages}/vec-1.dist-info/RECORD"));
    let old = fs::read(&list).unwrap();
    trim(&tree, &format!("--root {packages}/vec /lib"));
    assert!(fs::read(&list).unwrap() == old);
    // In the root, lists above what is given are corrected.
    let tree = environment(LAYOUTS[0]);
    trim(&tree, "--root venv /lib/python3.12/site-packages/vec/lib");
    assert_eq!(differences(tree.root()), "");
}

/// Adds a distribution with a split library.
fn split(tree: &Tree, packages: &str) {
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, ["gfx1100", "gfx942"].map(|target| code_with(target, &[1; 100])));
    let split = format!("{packages}/vec/lib/libvec.so");
    library.build(&tree.path(&split)).unwrap();
    let options =
        InstallOptions::new(tree.path(&format!("{packages}/vec")), "vec", ["lib/libvec.so"]);
    install(&options, &()).unwrap();
    let archives = format!("{packages}/vec/lib/.kpack/");
    let names = tree.files().into_iter().filter(|file| file.starts_with(&archives));
    let names = Vec::from_iter(names.chain([split]));
    let names = Vec::from_iter(names.iter().map(String::as_str));
    record(tree, packages, "split", &names);
}

#[test]
fn a_manifest_is_listed_as_it_is() {
    if !can_compare() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    for given in ["venv", "venv/lib/python3.12/site-packages/vec/lib"] {
        let tree = environment(LAYOUTS[0]);
        split(&tree, packages);
        assert_eq!(differences(tree.root()), "");
        let list = tree.path(&format!("{packages}/split-1.dist-info/RECORD"));
        let old = fs::read(&list).unwrap();
        let said = trim(&tree, given);
        assert!(said.contains("lists what is left"), "{said}");
        assert_eq!(differences(tree.root()), "", "{given}");
        let new = fs::read(&list).unwrap();
        // A run that was killed before it could write the list.
        fs::write(&list, old).unwrap();
        trim(&tree, given);
        assert_eq!(
            String::from_utf8_lossy(&fs::read(&list).unwrap()),
            String::from_utf8_lossy(&new)
        );
    }
}

/// A library with a bundle in its data, which keeps its size.
fn with_holes(path: &Path) {
    let text = format!(
        ".section .rodata\n.balign 8\n.incbin \"{}\"\n.ascii \"after\"\n.section .note.GNU-stack,\"\",@progbits\n",
        path.with_extension("bundle").display()
    );
    fs::write(path.with_extension("bundle"), kernels(1)).unwrap();
    fs::write(path.with_extension("s"), text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-o"]).arg(path).arg(path.with_extension("s"));
    process::run(&mut cc);
    for extension in ["bundle", "s"] {
        fs::remove_file(path.with_extension(extension)).unwrap();
    }
}

#[test]
fn a_later_run_mends_lists_that_an_earlier_one_or_a_backup_left_false() {
    if !can_compare() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    let tree = environment(LAYOUTS[0]);
    let library = format!("{packages}/vec/lib/libholes.so");
    with_holes(&tree.path(&library));
    record(&tree, packages, "holes", &[&library]);
    conda(&tree, "venv", &[&library, "venv/bin/d.hipfb"]);
    let lists = ["vec-1.dist-info/RECORD", "holes-1.dist-info/RECORD", "other-1.dist-info/RECORD"];
    let mut lists = lists.map(|list| format!("{packages}/{list}")).to_vec();
    lists.push("venv/conda-meta/vec-1-0.json".to_owned());
    let old = Vec::from_iter(lists.iter().map(|list| fs::read(tree.path(list)).unwrap()));
    let size = fs::metadata(tree.path(&library)).unwrap().len();
    trim(&tree, "venv");
    assert_eq!(fs::metadata(tree.path(&library)).unwrap().len(), size);
    assert_eq!(differences(tree.root()), "");
    let new = Vec::from_iter(lists.iter().map(|list| fs::read(tree.path(list)).unwrap()));
    let (package, given_file) = (format!("{packages}/vec"), library.as_str());
    for (given, mended) in [
        ("venv", &["vec/", "d.hipfb", "e.hipfb"][..]),
        (&package, &["vec/"]),
        (given_file, &["libholes.so"]),
        ("venv/bin", &["d.hipfb"]),
    ] {
        for (list, old) in lists.iter().zip(&old) {
            fs::write(tree.path(list), old).unwrap();
        }
        let false_before = differences(tree.root());
        let said = trim(&tree, given);
        assert!(said.starts_with("0 files"), "{said}");
        let left = differences(tree.root());
        for file in mended {
            assert!(false_before.contains(file) && !left.contains(file), "{given}: {left}");
        }
        trim(&tree, "venv");
        for (list, new) in lists.iter().zip(&new) {
            assert!(fs::read(tree.path(list)).unwrap() == *new, "{given}: {list}");
        }
    }
}

/// Writes conda's list of these files of a prefix.
fn conda(tree: &Tree, prefix: &str, files: &[&str]) {
    let names = files.iter().map(|file| file.strip_prefix(prefix).unwrap().trim_start_matches('/'));
    let names = Vec::from_iter(names);
    let paths = names.iter().map(|name| {
        let bytes = fs::read(tree.path(prefix).join(name)).unwrap();
        let is_link = tree.path(prefix).join(name).is_symlink();
        serde_json::json!({
            "_path": name,
            "path_type": if is_link { "softlink" } else { "hardlink" },
            "sha256": "of the package",
            "sha256_in_prefix": sha256(&bytes),
            "size_in_bytes": bytes.len(),
        })
    });
    let meta = serde_json::json!({
        "name": "vec",
        "files": names,
        "paths_data": {"paths": Vec::from_iter(paths), "paths_version": 1},
    });
    let text = serde_json::to_vec_pretty(&meta).unwrap();
    tree.write(&format!("{prefix}/conda-meta/vec-1-0.json"), text);
}

#[test]
fn conda_lists_what_links_lead_to() {
    if !can_compare() {
        return;
    }
    for given in ["prefix", "prefix/lib", "prefix/lib/a.hipfb.1", "prefix/lib/rocblas"] {
        let tree = Tree::new();
        tree.write("prefix/lib/a.hipfb.1", kernels(1));
        symlink("a.hipfb.1", tree.path("prefix/lib/a.hipfb")).unwrap();
        for target in ["gfx1100", "gfx942"] {
            let code = code_with(target, &[1; 100]).1;
            tree.write(&format!("prefix/lib/rocblas/library/K_{target}.hsaco"), code);
        }
        let files = [
            "prefix/lib/a.hipfb",
            "prefix/lib/a.hipfb.1",
            "prefix/lib/rocblas/library/K_gfx1100.hsaco",
            "prefix/lib/rocblas/library/K_gfx942.hsaco",
        ];
        conda(&tree, "prefix", &files);
        assert_eq!(differences(tree.root()), "");
        trim(&tree, given);
        assert_eq!(differences(tree.root()), "", "{given}");
        let list = fs::read_to_string(tree.path("prefix/conda-meta/vec-1-0.json")).unwrap();
        let left = 4 - usize::from(!list.contains("gfx942"));
        assert_eq!(list.matches("of the package").count(), left, "{list}");
    }
}

#[test]
fn a_list_that_cannot_be_written_is_named_and_the_others_are_corrected() {
    if !can_compare() || !require::root() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    let tree = environment(LAYOUTS[0]);
    for entry in walkdir::WalkDir::new(tree.root()) {
        std::os::unix::fs::lchown(entry.unwrap().path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // Above, there is a directory that others may enter, but not list.
    std::os::unix::fs::chown(tree.root(), Some(0), Some(0)).unwrap();
    fs::set_permissions(tree.root(), fs::Permissions::from_mode(0o711)).unwrap();
    let info = tree.path(&format!("{packages}/other-1.dist-info"));
    std::os::unix::fs::chown(&info, Some(0), Some(0)).unwrap();
    let (program, _own) = for_every_user();
    let run = |given: &str| {
        let mut kpack = Command::new(&program);
        kpack.args(["trim", "--arch", "gfx1100", given]).current_dir(tree.root());
        kpack.uid(NOBODY).gid(NOBODY).env("TMPDIR", tree.path("venv"));
        let output = kpack.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run(packages);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("other-1.dist-info/RECORD"), "{text}");
    let left = differences(tree.root());
    assert!(left.lines().all(|line| line.contains("other/e.hipfb")) && !left.is_empty(), "{left}");
    // Once it can be written, the next run corrects it.
    std::os::unix::fs::chown(&info, Some(NOBODY), Some(NOBODY)).unwrap();
    let (code, text) = run(packages);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(differences(tree.root()), "");
}

#[test]
fn after_a_killed_run_the_next_one_corrects_all_lists() {
    killed(Steps::Some);
}

mod faults {
    mod extra {
        use super::super::{Steps, killed};

        #[test]
        #[ignore = "needs half a minute"]
        fn after_a_run_that_was_killed_at_each_step_the_next_one_corrects_all_lists() {
            killed(Steps::All);
        }
    }
}

fn killed(steps: Steps) {
    if !can_compare() || !require::tracing() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    let before = environment(LAYOUTS[0]);
    let library = format!("{packages}/vec/lib/libholes.so");
    with_holes(&before.path(&library));
    record(&before, packages, "holes", &[&library]);
    split(&before, packages);
    let after = before.copy();
    trim(&after, "venv");
    assert_eq!(differences(after.root()), "");
    let line = words("trim --arch gfx1100 venv");
    let tree = Tree::new();
    let reset = || {
        let _ = fs::remove_dir_all(tree.path("venv"));
        process::run(Command::new("cp").arg("-a").args([before.path("venv"), tree.path("venv")]));
    };
    reset();
    let lists =
        ["vec", "holes", "split"].map(|name| format!("{packages}/{name}-1.dist-info/RECORD"));
    kill_at_steps(
        steps,
        1,
        |_| {
            reset();
            command(&tree, &line)
        },
        || tree.snapshot(),
        |_| {
            trim(&tree, "venv");
            for list in &lists {
                let [now, expected] =
                    [&tree, &after].map(|tree| fs::read_to_string(tree.path(list)));
                assert_eq!(now.unwrap(), expected.unwrap(), "{list}");
            }
        },
    );
}

/// Lists that lead elsewhere, or that installers do not write.
#[test]
fn odd_lists_lead_nowhere_and_what_they_say_of_the_files_is_corrected() {
    if !can_compare() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    let tree = environment(LAYOUTS[0]);
    tree.write("victim/RECORD", "vec/lib/c.hipfb,sha256=x,1\n");
    let list = |name: &str| format!("{packages}/{name}.dist-info/RECORD");
    // Links to a list, and to a directory with one; something other than a file.
    fs::create_dir(tree.path(&format!("{packages}/link-1.dist-info"))).unwrap();
    symlink(tree.path("victim/RECORD"), tree.path(&list("link-1"))).unwrap();
    symlink(tree.path("victim"), tree.path(&format!("{packages}/victim-1.dist-info"))).unwrap();
    fs::create_dir_all(tree.path(&list("directory-1"))).unwrap();
    fs::create_dir_all(tree.path(&format!("{packages}/fifo-1.dist-info"))).unwrap();
    process::run(Command::new("mkfifo").arg(tree.path(&list("fifo-1"))));
    symlink("lib", tree.path(&format!("{packages}/vec/same"))).unwrap();
    let odd = b"\xff\xfe.so,sha256=x,3\nvec/lib/c.hipfb,sha256=x,1,more\nvec/lib/c.hipfb,sha256=y\n\
        /etc/passwd,sha256=z,1\n../../../../victim/RECORD,sha256=z,1\n./vec/../vec/lib/c.hipfb,sha256=w,1\n\
        vec/same/c.hipfb,sha256=w,1\nvec/lib/c.hipfb,,\nvec/lib/rocblas/library/K_gfx942.hsaco,sha256=v,1\r\n\n\n"
        .to_vec();
    tree.write(&list("odd-1"), &odd);
    for (name, text) in
        [("empty-1", &b""[..]), ("nul-1", b"\0\0\"\"\","), ("open-1", b"\"vec/lib/c.hipfb")]
    {
        tree.write(&list(name), text);
    }
    tree.write("venv/conda-meta/damaged.json", "[");
    tree.write(
        "venv/conda-meta/odd.json",
        r#"{"files": 1, "paths_data": {"paths": [1, {"_path": 2}, {}]}}"#,
    );
    let hash = |path: &str| row(&tree, packages, path).split_once(',').unwrap().1.to_owned();
    trim(&tree, &format!("{packages}/vec"));
    let right = hash(&format!("{packages}/vec/lib/c.hipfb"));
    let new = fs::read(tree.path(&list("odd-1"))).unwrap();
    let expected = [
        b"\xff\xfe.so,sha256=x,3\n".to_vec(),
        format!("vec/lib/c.hipfb,{right}vec/lib/c.hipfb,{right}").into_bytes(),
        b"/etc/passwd,sha256=z,1\n../../../../victim/RECORD,sha256=z,1\n".to_vec(),
        format!("./vec/../vec/lib/c.hipfb,{right}vec/same/c.hipfb,{right}").into_bytes(),
        b"vec/lib/c.hipfb,,\n\n\n".to_vec(),
    ]
    .concat();
    assert_eq!(String::from_utf8_lossy(&new), String::from_utf8_lossy(&expected));
    assert_eq!(fs::read(tree.path("victim/RECORD")).unwrap(), b"vec/lib/c.hipfb,sha256=x,1\n");
    assert!(tree.path(&list("link-1")).is_symlink());
}

/// uv links files from its cache.
#[test]
fn the_list_in_a_cache_stays_as_its_files_do() {
    if !can_compare() {
        return;
    }
    let packages = LAYOUTS[0].packages;
    let tree = environment(LAYOUTS[0]);
    let cache = tree.path("cache");
    let mut cp = Command::new("cp");
    process::run(cp.arg("-rl").arg(tree.path(packages)).arg(&cache));
    fs::remove_file(cache.join("vec-1.dist-info/RECORD")).unwrap();
    record(&tree, "cache", "vec", &["cache/vec/lib/c.hipfb"]);
    let old = Tree::new();
    process::run(Command::new("cp").arg("-r").arg(&cache).arg(old.path("cache")));
    trim(&tree, &format!("{packages}/vec/lib/c.hipfb"));
    trim(&tree, "venv");
    assert_eq!(differences(&tree.path("venv")), "");
    process::run(Command::new("diff").arg("-r").args([&cache, &old.path("cache")]));
    // Where both are given, they stay one file, and both lists are true.
    let tree = environment(LAYOUTS[0]);
    process::run(Command::new("cp").arg("-rl").arg(tree.path(packages)).arg(tree.path("cache")));
    let list = "other-1.dist-info/RECORD";
    write(tree.path("cache").join(list), fs::read(tree.path(packages).join(list)).unwrap());
    fs::remove_file(tree.path("cache/vec-1.dist-info/RECORD")).unwrap();
    trim(&tree, "venv cache");
    assert_eq!(differences(tree.root()), "");
    let inode = |path: &str| fs::metadata(tree.path(path).join("other/e.hipfb")).unwrap().ino();
    assert_eq!(inode(packages), inode("cache"));
}
