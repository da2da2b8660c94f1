//! Given a compiler that the launcher runs, when it writes an object with device code, then the object is
//! split in place, and all other output stays unchanged.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::verified::assert_holds;
use kpack_build::object_file::{Options, launch};
use kpack_split::Error;
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code};
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

const HIP: &str = "#include <hip/hip_runtime.h>
__global__ void add(float *a) { a[0] += AMOUNT; }
void run(float *a) { add<<<1, 1>>>(a); }
";
/// For a HIP source without ROCm.
const FLAGS: &str = "-x hip -nogpuinc -nogpulib --offload-arch=gfx1100 -fPIC -DAMOUNT=1";

/// A directory with `add.hip` and `host.cpp`, where compilers run; `None` without clang.
fn project() -> Option<Tree> {
    if !(require::tool("clang++-19") && require::tool("ld.lld-19")) {
        return None;
    }
    let tree = Tree::new();
    fs::write(tree.path("add.hip"), HIP).unwrap();
    fs::write(tree.path("host.cpp"), "int host() { return 1; }\n").unwrap();
    Some(tree)
}

/// Runs clang through the launcher with the words of `line`; `@/` stands for the tree's root.
fn try_launch(tree: &Tree, line: &str) -> Result<i32, Error> {
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip");
    let line = line.replace("HIP", FLAGS);
    let root = format!("{}/", tree.root().display());
    // All tests are threads of one process, with one working directory.
    let mut command: Vec<OsString> =
        ["env", "-C", &root, "clang++-19", "-I", headers].map(OsString::from).to_vec();
    command.extend(line.split_whitespace().map(|word| word.replace("@/", &root).into()));
    let options = Options::new("vec", "", Vec::<OsString>::new());
    launch(&options, &command).map(|status| status.code().unwrap())
}

fn compile(tree: &Tree, line: &str) {
    assert_eq!(try_launch(tree, line).unwrap(), 0, "{line}");
}

fn is_fat(path: &Path) -> bool {
    bytes::contains(&fs::read(path).unwrap(), b"__CLANG_OFFLOAD_BUNDLE__")
}

/// Links an object, and checks that its device code is found.
fn assert_runs(tree: &Tree, object: &str) {
    let stub = tree.path("stub.c");
    fs::write(
        &stub,
        "void *__hipRegisterFatBinary(void *w) { return w; }
void __hipUnregisterFatBinary(void *w) {} void __hipRegisterFunction() {}
int __hipPopCallConfiguration() { return 0; } int __hipPushCallConfiguration() { return 0; }
int hipLaunchKernel() { return 0; }",
    )
    .unwrap();
    let library = tree.path("linked.so");
    let mut command = Command::new("cc");
    command.args(["-w", "-shared", "-fPIC", "-o"]).arg(&library);
    assert!(command.arg(tree.path(object)).arg(&stub).status().unwrap().success());
    assert_holds(&library);
    fs::remove_file(stub).unwrap();
    fs::remove_file(tree.path("linked.so")).unwrap();
}

#[test]
fn an_object_is_split_however_it_is_named() {
    let Some(tree) = project() else { return };
    for (line, object) in [
        ("HIP -c @/add.hip -o @/plain.o", "plain.o"),
        ("HIP -c @/add.hip --output @/long.o", "long.o"),
        ("HIP -c @/add.hip --output=@/equals.o", "equals.o"),
    ] {
        compile(&tree, line);
        assert!(!is_fat(&tree.path(object)), "{line}");
        assert_runs(&tree, object);
    }
}

/// Response files, and output names that the compiler chooses.
#[test]
fn an_object_is_split_where_the_compiler_puts_it() {
    let Some(tree) = project() else { return };
    fs::write(tree.path("options"), "-c add.hip '-o' in\\ file.o").unwrap();
    for (line, object) in [("HIP @options", "in file.o"), ("HIP -c add.hip", "add.o")] {
        let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip");
        let mut launcher = Command::new(env!("CARGO_BIN_EXE_kpack"));
        launcher.current_dir(tree.root());
        launcher.args(["launch", "--module=vec", "--", "clang++-19", "-I", headers]);
        let line = line.replace("HIP", FLAGS);
        let status = launcher.args(line.split_whitespace()).status();
        assert!(status.unwrap().success());
        assert!(!is_fat(&tree.path(object)), "{line}");
        assert_runs(&tree, object);
    }
}

/// gcc writes through such a link; clang replaces it.
#[test]
fn an_object_behind_a_symbolic_link_stays_there() {
    let tree = Tree::new();
    let fat = FatLibrary::new().kind(Kind::Object);
    let fat = fat.wrapper(Storage::Plain, [code("gfx1100", "add")]);
    fat.build(&tree.path("fat.o")).unwrap();
    fs::create_dir(tree.path("elsewhere")).unwrap();
    fs::write(tree.path("elsewhere/real.o"), "").unwrap();
    symlink("elsewhere/real.o", tree.path("link.o")).unwrap();
    let [fat, link] = ["fat.o", "link.o"].map(|name| tree.path(name));
    let [fat, link] = [&fat, &link].map(|path| path.to_str().unwrap());
    let compiler = ["sh", "-c", "cat $0 > $2", fat, "-o", link];
    let options = Options::new("vec", "", Vec::<OsString>::new());
    let status = launch(&options, &compiler.map(OsString::from));
    assert!(status.unwrap().success());
    assert!(tree.path("link.o").is_symlink());
    assert!(!is_fat(&tree.path("link.o")));
    assert!(tree.path("elsewhere/real.o.kpack/.kpack").is_dir());
}

#[test]
fn what_is_no_object_with_device_code_passes_through() {
    let Some(tree) = project() else { return };
    fs::write(tree.path("header.h"), "int a;\n").unwrap();
    fs::write(tree.path("module.cppm"), "export module m;\n").unwrap();
    for (line, output) in [
        ("HIP -c -E @/add.hip -o @/add.i", "add.i"),
        ("HIP -c -S --cuda-host-only @/add.hip -o @/add.s", "add.s"),
        ("HIP -c -M @/add.hip -o @/add.d", "add.d"),
        ("HIP -c -emit-llvm @/add.hip -o @/add.bc", "add.bc"),
        ("HIP -c --cuda-device-only @/add.hip -o @/add.co", "add.co"),
        ("-x c++-header -c @/header.h -o @/header.pch", "header.pch"),
        ("-std=c++20 --precompile @/module.cppm -o @/m.pcm", "m.pcm"),
        ("-flto -c @/host.cpp -o @/lto.o", "lto.o"),
        ("-c @/host.cpp -o @/host.o", "host.o"),
        ("-m32 -c @/host.cpp -o @/m32.o", "m32.o"),
        ("--target=powerpc64-linux-gnu -c @/host.cpp -o @/ppc.o", "ppc.o"),
        ("--target=riscv64-linux-gnu -c @/host.cpp -o @/riscv.o", "riscv.o"),
        ("-shared -fPIC @/host.cpp -o @/host.so", "host.so"),
    ] {
        compile(&tree, line);
        let launched = fs::read(tree.path(output)).unwrap();
        fs::remove_file(tree.path(output)).unwrap();
        let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip");
        let root = format!("{}/", tree.root().display());
        let line = line.replace("HIP", FLAGS).replace("@/", &root);
        let mut plain = Command::new("clang++-19");
        plain.current_dir(tree.root()).arg("-I").arg(headers);
        assert!(plain.args(line.split_whitespace()).status().unwrap().success());
        // Bundles contain temporary names, and precompiled headers contain times.
        let same = launched == fs::read(tree.path(output)).unwrap();
        assert!(same || output == "header.pch", "{output}");
    }
    compile(&tree, "-fsyntax-only -c @/host.cpp -o @/nothing.o");
    assert!(!tree.path("nothing.o").exists());
    let kpacks = fs::read_dir(tree.root()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("kpack")
    });
    assert_eq!(kpacks.count(), 0);
}

#[test]
fn a_compilation_that_fails_leaves_what_was_made_before() {
    let Some(tree) = project() else { return };
    compile(&tree, "HIP -c @/add.hip -o @/add.o");
    let before = tree.snapshot();
    for line in [
        "HIP -c @/add.hip -o @/add.o -DAMOUNT=x",
        "-no-such-option -c @/add.hip -o @/add.o",
        "HIP -c @/missing.hip -o @/add.o",
    ] {
        assert_ne!(try_launch(&tree, line).unwrap(), 0);
        assert_eq!(tree.snapshot(), before, "{line}");
    }
    compile(&tree, "HIP -fsyntax-only -c @/add.hip -o @/add.o");
    assert_eq!(tree.snapshot(), before);
    let object = tree.path("add.o");
    let command = ["no-such-compiler", "-c", "-o", object.to_str().unwrap()];
    let options = Options::new("vec", "", Vec::<OsString>::new());
    let error = launch(&options, &command.map(OsString::from)).unwrap_err();
    assert!(error.to_string().contains("cannot run `"), "{error}");
    assert_eq!(tree.snapshot(), before);

    // An object that cannot be split must not be linked, but earlier binaries keep working.
    let archive = "add.o.kpack/.kpack/vec_lib_gfx1100.kpack";
    let kept = fs::read(tree.path(archive)).unwrap();
    let error = try_launch(&tree, "HIP -fgpu-rdc -c @/add.hip -o @/add.o").unwrap_err();
    assert!(error.to_string().contains("-fgpu-rdc"), "{error}");
    assert!(!tree.path("add.o").exists());
    assert_eq!(fs::read(tree.path(archive)).unwrap(), kept);
    let error = try_launch(&tree, "HIP -flto -c @/add.hip -o @/add.o").unwrap_err();
    assert!(error.to_string().contains("without -flto"), "{error}");
}

#[test]
fn archives_of_what_is_not_made_any_more_go() {
    let Some(tree) = project() else { return };
    let names = || -> Vec<String> {
        let Ok(entries) = fs::read_dir(tree.path("add.o.kpack/.kpack")) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    compile(&tree, "HIP --offload-arch=gfx942 -c @/add.hip -o @/add.o");
    let both = ["vec_lib.kpm", "vec_lib_gfx1100.kpack", "vec_lib_gfx942.kpack"];
    assert_eq!(names(), both);
    // A damaged archive can also be replaced.
    fs::write(tree.path("add.o.kpack/.kpack/vec_lib_gfx1100.kpack"), "damaged").unwrap();
    compile(&tree, "HIP -c @/add.hip -o @/add.o");
    assert_eq!(names(), both[..2]);
    assert_runs(&tree, "add.o");
    compile(&tree, "-c @/host.cpp -o @/add.o");
    assert!(!tree.path("add.o.kpack").exists());
}

/// Somebody put a link to other files in the place of an object's archives.
#[test]
fn what_a_link_in_the_place_of_archives_leads_to_stays() {
    let tree = Tree::new();
    let kept = tree.path("victim/.kpack/vec_lib_gfx942.kpack");
    write(&kept, "precious");
    symlink("victim", tree.path("a.o.kpack")).unwrap();
    fs::write(tree.path("a.c"), "int a;").unwrap();
    compile(&tree, "-c @/a.c -o @/a.o");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "precious");
}

#[test]
fn a_manifest_gets_its_name_after_the_archives() {
    let Some(tree) = project() else { return };
    compile(&tree, "HIP -c @/add.hip -o @/add.o");
    let manifest = || fs::read(tree.path("add.o.kpack/.kpack/vec_lib.kpm")).unwrap();
    let before = manifest();
    // The second archive cannot replace this.
    fs::create_dir(tree.path("add.o.kpack/.kpack/vec_lib_gfx942.kpack")).unwrap();
    try_launch(&tree, "HIP --offload-arch=gfx942 -c @/add.hip -o @/add.o").unwrap_err();
    assert_eq!(manifest(), before);
    assert!(!tree.path("add.o").exists());
}

#[test]
fn two_launchers_of_one_object_take_turns() {
    let Some(tree) = project() else { return };
    // Another run is at work.
    let hidden = tree.path(".add.o.kpack.tmp");
    let half = hidden.join(".kpack.tmp/half");
    write(&half, "half");
    let lock = fs::File::open(&hidden).unwrap();
    lock.lock().unwrap();
    let opened = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let paths = files.filter_map(|file| fs::read_link(file.path()).ok());
        paths.filter(|path| *path == hidden).count()
    };
    thread::scope(|scope| {
        let run = scope.spawn(|| compile(&tree, "HIP -c @/add.hip -o @/add.o"));
        while opened() < 2 && !run.is_finished() {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(300));
        let is_waiting = !run.is_finished() && half.exists();
        drop(lock);
        assert!(is_waiting);
    });
    assert!(!hidden.exists());
    assert_runs(&tree, "add.o");
}

#[test]
fn files_of_the_user_under_a_hidden_name_stay() {
    let Some(tree) = project() else { return };
    let mine = tree.path(".add.o.kpack.tmp/thesis.txt");
    fs::create_dir(mine.parent().unwrap()).unwrap();
    fs::write(&mine, "mine").unwrap();
    compile(&tree, "HIP -c @/add.hip -o @/add.o");
    assert_eq!(fs::read(&mine).unwrap(), b"mine");
    assert_eq!(fs::read_dir(mine.parent().unwrap()).unwrap().count(), 1);
}

/// A build that is stopped stops its launchers, which must not leave compilers running.
#[test]
fn a_signal_ends_the_compiler_too() {
    use std::os::unix::process::ExitStatusExt;
    let tree = Tree::new();
    let [started, object] = ["started", "add.o"].map(|name| tree.path(name));
    let [start, write] = [&started, &object].map(|path| path.to_str().unwrap());
    let script = "trap 'echo ended > $0.ended; exit 1' TERM; : > $0; for i in $(seq 600); do sleep 0.1; done; : > $2";
    let mut launcher = Command::new(env!("CARGO_BIN_EXE_kpack"));
    launcher.args(["launch", "--module=vec", "--", "sh", "-c", script]);
    let mut launcher = launcher.args([start, "-o", write]).spawn().unwrap();
    while !started.exists() {
        assert_eq!(launcher.try_wait().unwrap(), None);
        std::thread::yield_now();
    }
    let id = launcher.id().to_string();
    assert!(Command::new("kill").arg(&id).status().unwrap().success());
    let status = launcher.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (None, Some(15)));
    assert!(tree.path("started.ended").exists());
    assert!(!object.exists());
}

/// The system calls of the command that wait for a disk; `None` if strace cannot trace here.
fn flushes(tree: &Tree, arguments: &[&str]) -> Option<Vec<String>> {
    let calls = "fsync,fdatasync,sync_file_range,syncfs,sync,msync,fadvise64";
    let mut traced = Command::new("strace");
    let traced = traced.args(["-f", "-qq", "-o", "trace", "-e", &format!("trace={calls}")]);
    let traced = traced.arg(env!("CARGO_BIN_EXE_kpack")).args(arguments);
    let output = traced.current_dir(tree.root()).output().unwrap();
    let trace = fs::read_to_string(tree.path("trace")).unwrap_or_default();
    if !output.status.success() && trace.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        require::skip(&format!("strace cannot trace here: {why}"));
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    // strace also writes lines on threads that it detaches from: `18517 ???( <detached ...>`.
    let named = |line: &&str| calls.split(',').any(|call| line.contains(call));
    Some(trace.lines().filter(named).map(str::to_owned).collect())
}

/// A build can be repeated, so it need not survive a power failure. An installation must.
#[test]
fn builds_wait_for_no_disk() {
    let Some(tree) = project().filter(|_| require::tool("strace")) else {
        return;
    };
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip");
    let launch =
        format!("launch --module vec -- clang++-19 -I {headers} {FLAGS} -c add.hip -o add.o");
    for _ in 0..2 {
        let Some(calls) = flushes(&tree, &Vec::from_iter(launch.split(' '))) else {
            return;
        };
        assert_eq!(calls, [""; 0]);
    }
    assert_runs(&tree, "add.o");

    let library = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "add")]);
    library.build(&tree.path("lib/libvec.so")).unwrap();
    let install = "split --prefix . --module vec lib/libvec.so";
    let calls = flushes(&tree, &Vec::from_iter(install.split(' '))).unwrap();
    assert!(calls.iter().any(|call| call.contains("fsync(")), "{calls:?}");
}
