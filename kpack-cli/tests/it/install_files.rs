//! Given binaries in a prefix, when they are installed, then files have the right modes and attributes,
//! whoever else changes the prefix meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::command::{NOBODY, for_every_user};
use crate::verified::assert_holds;
use kpack_build::Error;
use kpack_build::report::{Progress, Report};
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::require;
use kpack_tests::tree::Tree;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::process::{Pid, Signal, kill_process};

/// A prefix with `lib/libvec.so`.
fn prefix() -> Tree {
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add"), code("gfx942", "add")])
        .in_tree("lib/libvec.so")
}

fn options(tree: &Tree) -> InstallOptions {
    InstallOptions::new(tree.root(), "vec", ["lib/libvec.so"])
}

fn mode(tree: &Tree, path: &str) -> u32 {
    fs::metadata(tree.path(path)).unwrap().mode() & 0o7777
}

/// `kpack split` of the library, as a command of a shell.
fn command(tree: &Tree, before: &str) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_kpack")), tree, before)
}

fn command_of(kpack: &Path, tree: &Tree, before: &str) -> Command {
    let script = format!("{before}exec \"$0\" split --prefix \"$1\" --module vec lib/libvec.so");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(kpack).arg(tree.root());
    command
}

/// Runs it as a user who may write in the prefix but does not own the library. Returns its messages, or
/// `None` if the test does not run as root.
fn install_as_nobody(tree: &Tree) -> Option<String> {
    if !require::root() {
        return None;
    }
    for directory in ["", "lib"] {
        chown(tree.path(directory), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (kpack, _directory) = for_every_user();
    let mut command = command_of(&kpack, tree, "");
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    Some(said)
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    let tree = prefix();
    fs::set_permissions(tree.path("lib/libvec.so"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(command(&tree, "umask 077; ").status().unwrap().success());
    assert_eq!(mode(&tree, "lib/.kpack"), 0o755);
    for file in ["vec_lib_gfx1100.kpack", "vec_lib_gfx942.kpack", "vec_lib.kpm"] {
        assert_eq!(mode(&tree, &format!("lib/.kpack/{file}")), 0o644, "{file}");
    }
    assert_eq!(mode(&tree, "lib/libvec.so"), 0o755);
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode() {
    let tree = prefix();
    install(&options(&tree), &()).unwrap();
    let archive = tree.path("lib/.kpack/vec_lib_gfx1100.kpack");
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::read(&archive).unwrap();
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "other")])
        .build(&tree.path("lib/libvec.so"))
        .unwrap();
    install(&options(&tree), &()).unwrap();
    assert_ne!(fs::read(&archive).unwrap(), before);
    assert_eq!(mode(&tree, "lib/.kpack/vec_lib_gfx1100.kpack"), 0o640);
}

#[test]
fn rights_of_an_owner_who_is_lost_are_lost_too() {
    let tree = prefix();
    let library = tree.path("lib/libvec.so");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o6755)).unwrap();
    let Some(said) = install_as_nobody(&tree) else {
        return;
    };
    let now = fs::metadata(&library).unwrap();
    assert_eq!((now.uid(), now.mode() & 0o7777), (NOBODY, 0o755));
    assert!(
        said.contains("cannot keep its owner 0; its set-user-ID bit is dropped [attribute-lost]"),
        "{said}"
    );
    assert!(said.contains("cannot keep its group 0; its set-group-ID bit is dropped"), "{said}");
}

/// File capabilities: `cap_net_raw=ep` ("capabilities(7)", `struct vfs_cap_data`).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(256);
    getxattr(path, name, rustix::buffer::spare_capacity(&mut value)).ok()?;
    Some(value)
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Whether the file system of a file keeps attributes of users.
pub(crate) fn can_have_attributes(path: &Path) -> bool {
    let result = setxattr(path, "user.probe", b"probe", XattrFlags::empty());
    result.is_ok() || require::missing("the target directory's file system has no user attributes")
}

#[test]
fn extended_attributes_stay() {
    let tree = Tree::new_in(env!("CARGO_TARGET_TMPDIR"));
    prefix().copy_to(&tree);
    let library = tree.path("lib/libvec.so");
    if !can_have_attributes(&library) {
        return;
    }
    set_attribute(&library, "user.origin", b"mirror");
    let report = install(&options(&tree), &()).unwrap();
    assert_eq!(attribute(&library, "user.origin").unwrap(), b"mirror");
    assert_eq!(report.findings, []);
}

#[test]
fn file_capabilities_stay_or_are_said_to_be_lost() {
    if !require::root() {
        return;
    }
    let tree = prefix();
    let of_nobody = tree.copy();
    for tree in [&tree, &of_nobody] {
        set_attribute(&tree.path("lib/libvec.so"), "security.capability", &CAPABILITY);
    }
    assert_eq!(install(&options(&tree), &()).unwrap().findings, []);
    let kept = attribute(&tree.path("lib/libvec.so"), "security.capability");
    assert_eq!(kept.unwrap(), CAPABILITY);

    let said = install_as_nobody(&of_nobody).unwrap();
    assert!(said.contains("cannot keep its extended attribute `security.capability`"), "{said}");
}

/// Does something once, when the device code is being read.
struct Meanwhile<F>(F, AtomicBool);

impl<F: Fn() + Sync> Progress for Meanwhile<F> {
    fn advance(&self, _: u64) {
        if !self.1.swap(true, Ordering::SeqCst) {
            (self.0)();
        }
    }
}

fn install_while(tree: &Tree, meanwhile: impl Fn() + Sync) -> Result<Report, Error> {
    install(&options(tree), &Meanwhile(meanwhile, AtomicBool::new(false)))
}

#[test]
fn a_symbolic_link_that_comes_meanwhile_leads_nothing_out_of_the_prefix() {
    for directory in ["lib/.kpack", "lib"] {
        let tree = prefix();
        let elsewhere = Tree::new();
        fs::create_dir(tree.path("lib/.kpack")).unwrap();
        // The same library is also there.
        fs::hard_link(tree.path("lib/libvec.so"), elsewhere.path("libvec.so")).unwrap();
        fs::create_dir(elsewhere.path(".kpack")).unwrap();
        let before = elsewhere.snapshot();

        let result = install_while(&tree, || {
            fs::rename(tree.path(directory), tree.path("aside")).unwrap();
            symlink(elsewhere.root(), tree.path(directory)).unwrap();
        });
        assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
        assert_eq!(elsewhere.snapshot(), before, "{directory}");
    }
}

#[test]
fn a_binary_that_is_replaced_meanwhile_is_read_again() {
    let tree = prefix();
    let newer = FatLibrary::new().wrapper(Storage::Plain, [code("gfx90a", "newer")]);
    newer.build(&tree.path("newer.so")).unwrap();
    let report = install_while(&tree, || {
        fs::rename(tree.path("newer.so"), tree.path("lib/libvec.so")).unwrap();
    });
    let archives = report.unwrap().archives;
    let targets: Vec<&str> = archives.iter().map(|archive| archive.target.as_str()).collect();
    assert_eq!(targets, ["gfx90a"]);
    assert_eq!(
        tree.files(),
        ["lib/.kpack/vec_lib.kpm", "lib/.kpack/vec_lib_gfx90a.kpack", "lib/libvec.so"]
    );
    assert_holds(tree.root());
}

#[test]
fn of_runs_with_different_directories_of_archives_one_wins() {
    let build = prefix();
    for _ in 0..20 {
        let tree = build.copy();
        let results = thread::scope(|scope| {
            let runs = ["lib/.kpack", "kpacks"].map(|directory| {
                let mut options = options(&tree);
                options.kpack_dir = directory.into();
                scope.spawn(move || install(&options, &()))
            });
            runs.map(|run| run.join().unwrap())
        });
        // As if one had started after the other.
        let (done, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(done.len(), 1, "{refused:?}");
        let said = refused[0].as_ref().unwrap_err().in_one_line();
        assert!(said.contains("[split-already]"), "{said}");
        assert_eq!(tree.files().len(), 4, "{:?}", tree.files());
        assert_holds(tree.root());
    }
}

#[test]
fn leftovers_of_a_killed_run_with_other_targets_go() {
    let tree = prefix();
    let whole = tree.copy();
    install(&options(&whole), &()).unwrap();
    fs::create_dir_all(tree.path("lib/.kpack")).unwrap();
    for leftover in [
        "lib/.kpack/.vec_lib_gfx90a.kpack.0123456789abcdef.tmp",
        "lib/.libvec.so.fedcba9876543210.tmp",
    ] {
        fs::write(tree.path(leftover), b"half").unwrap();
    }
    // This may belong to somebody else.
    for tree in [&tree, &whole] {
        fs::write(tree.path("lib/.other.so.tmp"), b"half").unwrap();
    }
    install(&options(&tree), &()).unwrap();
    assert_eq!(tree.snapshot(), whole.snapshot());
}

/// Waits until there is a hidden file in `lib`; the run that writes it must not end before.
fn wait_for_hidden_file(tree: &Tree, run: &mut Child) {
    while !tree.files().iter().any(|file| file.starts_with("lib/.libvec.so.")) {
        assert_eq!(run.try_wait().unwrap(), None);
        thread::yield_now();
    }
}

#[test]
fn a_signal_leaves_nothing_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let tree = prefix();
        let before = tree.snapshot();
        // The run waits for this lock when everything is written and nothing has its name yet.
        let library = File::open(tree.path("lib/libvec.so")).unwrap();
        library.lock().unwrap();
        // A shell starts background jobs with the signal ignored, and programs inherit that.
        let mut run = Command::new("env");
        run.args(["--default-signal", env!("CARGO_BIN_EXE_kpack"), "split"])
            .args(["--module", "vec", "lib/libvec.so", "--prefix"])
            .arg(tree.root());
        let mut run = run.stderr(Stdio::piped()).spawn().unwrap();
        wait_for_hidden_file(&tree, &mut run);
        kill_process(Pid::from_child(&run), signal).unwrap();
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("kpack: error: stopped by signal"), "{said}");
        assert_eq!(tree.snapshot(), before);
        assert!(!tree.path("lib/.kpack").exists());
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error_that_names_the_file() {
    let tree = prefix();
    let before = tree.snapshot();
    // Archives are smaller; the host binary is not.
    let output = command(&tree, "ulimit -f 8; ").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("libvec.so: File too large"), "{said}");
    assert_eq!(tree.snapshot(), before);
    assert!(!tree.path("lib/.kpack").exists());
}

#[test]
fn names_may_be_as_long_as_the_file_system_allows() {
    let tree = prefix();
    let name = format!("lib/{}", "ü".repeat(127) + "x");
    fs::rename(tree.path("lib/libvec.so"), tree.path(&name)).unwrap();
    let mut options = options(&tree);
    options.files = vec![name.into()];
    // With `_lib_gfx1100.kpack`, of 18 bytes.
    options.module = "m".repeat(255 - 18);
    install(&options, &()).unwrap();
    assert_holds(tree.root());
}

#[test]
fn holes_stay_holes() {
    let tree = prefix();
    let library = tree.path("lib/libvec.so");
    let file = File::options().write(true).open(&library).unwrap();
    let size = file.metadata().unwrap().len() + (256 << 20);
    file.set_len(size).unwrap();
    install(&options(&tree), &()).unwrap();
    let now = fs::metadata(&library).unwrap();
    assert!(now.len() > 256 << 20);
    assert!(now.blocks() * 512 < 1 << 20, "{} blocks", now.blocks());
}
