//! Given programs and libraries on a machine, when the doctor examines them, then it says why their kernels
//! do not load there, and what to do. The libraries are real; HIP runtimes and loaders are libraries without
//! code that import and export what real ones do.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::command::{
    NOBODY, Row, command, for_every_user, said_by, shell, transcript, without_configuration,
};
use crate::machine::{
    HIP, LIBRARY, RUNTIME, asks_once, code, fat, library, linked, machine, new_runtime, note,
    split, split_files, stub, with_filters, write_nodes,
};
use insta::assert_snapshot;
use kpack_format::marker::Marker;
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage};
use kpack_tests::process::{copy_environment, output, run};
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

const AS_IT_IS: fn(&Tree) = |_| {};

/// Changes the split library.
fn changed(tree: &Tree, to: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(tree.path(LIBRARY)).unwrap();
    change(&mut bytes);
    tree.write(to, bytes);
}

#[test]
fn runtimes_and_shims() {
    let rows: &[Row] = &[
        (
            "a runtime that reads markers, and code for the GPU",
            new_runtime,
            &[
                "kpack doctor prefix --arch gfx942 -v",
                "kpack doctor prefix/lib/libvec.so --arch gfx942 -v",
            ],
        ),
        (
            "what it advises for an old runtime fixes it",
            AS_IT_IS,
            &[
                "kpack doctor prefix --arch gfx1030 -v",
                "kpack doctor prefix --arch gfx1030 --fix | sh",
                "kpack doctor prefix --arch gfx1030 -v",
            ],
        ),
        (
            "one command for all binaries of a prefix",
            |tree| {
                for name in ["libone.so", "libtwo.so", "libfat.so"] {
                    tree.copy_file("fat/lib/libvec.so", &format!("many/lib/{name}"));
                }
                split_files(tree, "many", &["lib/libone.so", "lib/libtwo.so"]);
            },
            &["kpack doctor many --arch gfx942 -v"],
        ),
        (
            "a library that is named like an option",
            |tree| {
                let library = fat(&["gfx942"]).linked_with(tree.path(HIP), "$ORIGIN/../rocm");
                library.build(&tree.path("option/--installed")).unwrap();
                split_files(tree, "option", &["--installed"]);
            },
            &[
                "kpack doctor option --arch gfx942 --fix",
                "kpack doctor option --arch gfx942 --fix | sh",
                "kpack doctor option --arch gfx942 -v",
            ],
        ),
        (
            "a program, by a link without a directory too, and the library that it loads",
            AS_IT_IS,
            &[
                "kpack doctor bin/app --arch gfx942 -v",
                "ln -s bin/app app",
                "kpack doctor app --arch gfx942 --quiet",
            ],
        ),
        (
            "a command for each prefix of a program",
            |tree| {
                let two = library(tree, &["gfx942", "gfx1030"]).flag("-Wl,-soname,libtwo.so");
                two.build(&tree.path("a b/lib/libtwo.so")).unwrap();
                FatLibrary::new()
                    .kind(Kind::Pie)
                    .linked_with(tree.path("fat/lib/libvec.so"), "$ORIGIN/../prefix/lib")
                    .linked_with(tree.path("a b/lib/libtwo.so"), "$ORIGIN/../a b/lib")
                    .build(&tree.path("bin/both"))
                    .unwrap();
                split_files(tree, "a b", &["lib/libtwo.so"]);
            },
            &["kpack doctor bin/both --arch gfx942 -v"],
        ),
        (
            "a binary that cannot be joined",
            |tree| {
                let library = library(tree, &["gfx1030", "gfx942"]);
                split(&library.wrapper(Storage::Plain, [code("gfx942", 2)]), tree, "prefix");
                changed(tree, LIBRARY, |bytes| {
                    let wrapper = bytes::position(bytes, b"HIPK");
                    bytes[wrapper + 16] = 1;
                });
            },
            &["kpack doctor prefix --arch gfx942 -v"],
        ),
        (
            "a loader that is missing, and a runtime",
            new_runtime,
            &[
                "rm rocm/librocm_kpack.so.0",
                "kpack doctor prefix --arch gfx942 -v",
                "rm rocm/libamdhip64.so.6",
                "kpack doctor prefix --arch gfx942 -v",
            ],
        ),
        (
            "a runtime that the dynamic linker rejects",
            |tree| tree.write(HIP, "INPUT(libamdhip64.so.7)"),
            &["kpack doctor prefix --arch gfx942 -v"],
        ),
        (
            "a library that leaves the runtime to its program",
            |tree| split(&fat(&["gfx942"]), tree, "prefix"),
            &["kpack doctor prefix --arch gfx942 -v"],
        ),
        (
            "what the environment chooses, unless the program has raised privileges",
            |tree| {
                new_runtime(tree);
                stub(tree, "old/libamdhip64.so.6");
            },
            &[
                "LD_LIBRARY_PATH=$PWD/old kpack doctor bin/app --arch gfx942 --quiet",
                "chmod 4755 bin/app",
                "LD_LIBRARY_PATH=$PWD/old kpack doctor bin/app --arch gfx942 --quiet",
            ],
        ),
        (
            "directories with any name",
            |tree| {
                for name in ["a => b", "a\nb", "a (0x1) => not found", "\t=> "] {
                    tree.copy_file(HIP, &format!("{name}/libamdhip64.so.6"));
                }
            },
            &[
                "LD_LIBRARY_PATH=\"$PWD/a => b\" kpack doctor bin/app --arch gfx942 --quiet",
                "LD_LIBRARY_PATH=\"$PWD/a\nb\" kpack doctor bin/app --arch gfx942 --quiet",
                "LD_LIBRARY_PATH=\"$PWD/a (0x1) => not found\" kpack doctor bin/app --arch gfx942 --quiet",
                "LD_LIBRARY_PATH=\"$PWD/\t=> \" kpack doctor bin/app --arch gfx942 --quiet",
            ],
        ),
        (
            "a preloaded shim serves an old runtime, unless it is switched off",
            AS_IT_IS,
            &[
                "LD_PRELOAD=$PWD/kpack/libkpack_hip.so kpack doctor prefix --arch gfx942 -v",
                "LD_PRELOAD=$PWD/kpack/libkpack_hip.so kpack doctor prefix --arch gfx942 --json",
                "KPACK_HIP=off LD_PRELOAD=$PWD/kpack/libkpack_hip.so kpack doctor prefix --arch gfx942 -v",
            ],
        ),
        (
            "a linked shim serves every runtime",
            |tree| {
                // What kpack-hip/link has as well.
                tree.write("note.s", note(".note.kpack_hip", 1));
                split(&library(tree, &["gfx942"]).flag(tree.path("note.s")), tree, "prefix");
            },
            &["kpack doctor prefix --arch gfx942 -v"],
        ),
        (
            "a shared shim that is linked, as `RUNTIME_SHIM shared` links it, and as tools vendor it into a wheel",
            |tree| {
                for (prefix, shim) in
                    [("own", "libkpack_hip.so.0"), ("vendored", "libkpack_hip-1a2b3c4d.so.0")]
                {
                    stub(tree, shim);
                    let library = library(tree, &["gfx942"]);
                    split(&library.linked_with(tree.path(shim), "$ORIGIN"), tree, prefix);
                    tree.copy_file(shim, &format!("{prefix}/lib/{shim}"));
                }
            },
            &["kpack doctor own --arch gfx942 -v", "kpack doctor vendored --arch gfx942 -v"],
        ),
        (
            "a link to a library, which does not load itself, and an old runtime",
            linked,
            &["kpack doctor linked --arch gfx942"],
        ),
    ];
    with_filters(|| assert_snapshot!(said_by(rows, &machine())));
}

/// Where a variable leads ROCm's loader to other code than kpack's.
#[test]
fn loaders() {
    let rows: &[Row] = &[(
        "ROCm's runs the code of another build, while kpack's goes on to the installed archive",
        |tree| {
            new_runtime(tree);
            let newer = FatLibrary::new().wrapper(Storage::Plain, [code("gfx942", 2)]);
            split(&newer.linked_with(tree.path(HIP), RUNTIME), tree, "newer");
        },
        &[
            "cp prefix/lib/.kpack/vec_lib_gfx942.kpack old.kpack",
            "ROCM_KPACK_PATH_PREFIX=$PWD/old.kpack kpack doctor newer --arch gfx942 --quiet",
            "cp kpack/librocm_kpack.so.0 rocm",
            "ROCM_KPACK_PATH_PREFIX=$PWD/old.kpack kpack doctor newer --arch gfx942 --quiet",
        ],
    )];
    with_filters(|| assert_snapshot!(said_by(rows, &machine())));
}

#[test]
fn code_for_the_gpu() {
    let rows: &[Row] = &[
        (
            "`verify` and `doctor` agree about a target that an unsplit library lacks",
            |tree| {
                new_runtime(tree);
                library(tree, &["gfx1100"]).build(&tree.path(LIBRARY)).unwrap();
            },
            &[
                "kpack verify prefix/lib/libvec.so --arch gfx942",
                "kpack doctor prefix/lib/libvec.so --arch gfx942 -v",
                "kpack verify prefix/lib/libvec.so --arch gfx1100",
                "kpack doctor prefix/lib/libvec.so --arch gfx1100 -v",
            ],
        ),
        (
            "code that is missing for a named GPU, whatever else is missing",
            |tree| {
                stub(tree, "gone/libother.so.1");
                let needed = tree.path("gone/libother.so.1");
                let library = library(tree, &["gfx942"]).linked_with(&needed, "$ORIGIN");
                library.build(&tree.path("lacking/libvec.so")).unwrap();
                fs::remove_file(needed).unwrap();
            },
            &[
                "kpack doctor lacking/libvec.so --arch gfx1103",
                "kpack doctor lacking/libvec.so --arch gfx942",
            ],
        ),
        (
            "a join says which code it drops, and the doctor which is missing then",
            AS_IT_IS,
            &[
                "kpack join --prefix prefix --arch gfx942 --arch gfx1030 lib/libvec.so",
                "kpack join --prefix prefix --arch gfx1030 lib/libvec.so",
                "kpack join --prefix prefix --arch gfx1030 lib/libvec.so",
                "kpack doctor prefix --arch gfx1030 -v",
                "kpack doctor prefix --arch gfx942 -v",
            ],
        ),
        (
            "markers in the early form: it is unknown whether there is code for them",
            |tree| {
                new_runtime(tree);
                changed(tree, LIBRARY, |bytes| {
                    let key = b"kpack_search_paths";
                    let places = (2..bytes.len()).filter(|at| bytes[*at..].starts_with(key));
                    for place in Vec::from_iter(places) {
                        let (_, size) = Marker::read(&bytes[place - 2..]).unwrap();
                        let marker = &mut bytes[place - 2..][..size];
                        marker.fill(0);
                        marker[..13].copy_from_slice(b"../lib/.kpack");
                    }
                });
            },
            &[
                "kpack doctor prefix --arch gfx942 -v",
                "kpack verify prefix/lib/libvec.so --verbose",
                "kpack join --prefix prefix --arch gfx942 lib/libvec.so",
            ],
        ),
    ];
    with_filters(|| assert_snapshot!(said_by(rows, &machine())));
}

#[test]
fn other_files_and_options() {
    let rows: &[Row] = &[
        (
            "other files and options",
            |tree| {
                tree.write("text", "text");
                FatLibrary::new().build(&tree.path("plain.so")).unwrap();
                fs::create_dir(tree.path("empty")).unwrap();
            },
            &[
                "kpack doctor prefix --arch gfx942",
                "kpack doctor prefix --arch gfx942 --fix",
                "kpack doctor text",
                "kpack doctor nowhere",
                "kpack doctor empty",
                "kpack doctor rocm/libamdhip64.so.6 --arch gfx942 -v",
                "kpack doctor prefix/lib/.kpack/vec_lib.kpm",
                "kpack doctor plain.so --arch gfx942 -v",
                "kpack doctor prefix --arch gfx942 --json",
            ],
        ),
        (
            "a damaged library keeps no other from being examined",
            |tree| {
                new_runtime(tree);
                changed(tree, "prefix/lib/libcut.so", |bytes| bytes.truncate(bytes.len() / 2));
                // The dynamic section: DT_STRTAB leads nowhere.
                changed(tree, "prefix/lib/libdyn.so", |bytes| {
                    let is_table = |at: &usize| bytes[*at..].starts_with(&5_u64.to_le_bytes());
                    let entry = (0..bytes.len()).step_by(8).find(is_table).unwrap();
                    bytes[entry + 12..][..4].fill(0xff);
                });
            },
            &["kpack doctor prefix --arch gfx1100 -v"],
        ),
        (
            "a library that names more than can be searched",
            |tree| {
                stub(tree, "libmany.so");
                let many = Vec::from_iter((0..3000).map(|number| format!("/no/such/{number}")));
                let needed = Vec::from_iter((0..60).map(|number| format!("libneeded{number}.so")));
                let mut cc = Command::new("cc");
                cc.args(["-shared", "-nostdlib", "-xc", "/dev/null", "-o", &needed[0]]);
                run(cc.current_dir(tree.root()));
                for name in &needed[1..] {
                    tree.copy_file(&needed[0], name);
                }
                let mut cc = Command::new("cc");
                cc.args(["-shared", "-nostdlib", "-xc", "/dev/null", "-xnone", "-o", "libmany.so"]);
                cc.arg(format!("-Wl,--no-as-needed,-rpath,{}", many.join(":")));
                run(cc.args(&needed).current_dir(tree.root()));
            },
            &["kpack doctor libmany.so --arch gfx942 -v"],
        ),
    ];
    with_filters(|| assert_snapshot!(said_by(rows, &machine())));
}

/// A name, the names of HIP runtimes, of which each makes a row of its own, what changes in a copy of the machine, and lines with
/// the GPUs before the command.
type RuntimeRow = (&'static str, &'static [&'static str], fn(&Tree, &str), &'static [&'static str]);

/// Given a machine with the GPUs before the colon, then variables hide or replace them.
#[test]
fn variables_and_the_gpus_of_the_machine() {
    const FORCED: &[&str] = &[
        "gfx942 gfx1030: kpack doctor prefix -v",
        "gfx942 gfx1030: KPACK_HIP=force LD_PRELOAD=$PWD/kpack/libkpack_hip.so kpack doctor prefix -v",
    ];
    let rows: &[RuntimeRow] = &[
        (
            "hidden GPUs",
            &[""],
            |tree, _| {
                new_runtime(tree);
                library(tree, &["gfx942"]).build(&tree.path(LIBRARY)).unwrap();
            },
            &[
                "gfx1030 gfx942: HIP_VISIBLE_DEVICES=1 kpack doctor prefix -v",
                "gfx1030 gfx942: ROCR_VISIBLE_DEVICES=0 kpack doctor prefix -v",
                "gfx1030 gfx942: ROCR_VISIBLE_DEVICES= kpack doctor prefix -v",
            ],
        ),
        (
            "a GPU that is overridden",
            &[""],
            |tree, _| new_runtime(tree),
            &[
                "gfx942: HSA_OVERRIDE_GFX_VERSION=11.0.0 kpack doctor prefix -v",
                "gfx942: HSA_OVERRIDE_GFX_VERSION=10.3.0 kpack doctor prefix -v",
            ],
        ),
        (
            "the device wheels of neither GPU are unused",
            &[""],
            |tree, _| {
                for target in ["gfx942", "gfx1030", "gfx1100"] {
                    let text =
                        format!("Metadata-Version: 2.1\nName: x-device-{target}\nVersion: 1\n");
                    let packages = "env/lib/python3.12/site-packages";
                    tree.write(&format!("{packages}/x_{target}.dist-info/METADATA"), text);
                }
            },
            &["gfx942: HSA_OVERRIDE_GFX_VERSION=10.3.0 kpack doctor env --unused"],
        ),
        (
            "a join for the GPUs of the machine",
            &[""],
            |_, _| {},
            &[
                "gfx942 gfx1030 gfx942: HIP_VISIBLE_DEVICES=0 ROCR_VISIBLE_DEVICES=1 kpack join --prefix prefix --arch native",
                "gfx942 gfx1030 gfx942: kpack doctor prefix -v",
                ": kpack join --prefix prefix --arch native",
            ],
        ),
        (
            "a shim that replaces a runtime that asks once",
            &["libamdhip64.so.7.14.60850"],
            asks_once,
            FORCED,
        ),
        (
            "a shim that replaces a runtime that may ask once",
            &["libamdhip64.so.7", "libamdhip64.so.10.1.80000"],
            asks_once,
            FORCED,
        ),
    ];
    let original = machine();
    if !pretending(&original, "true").output().is_ok_and(|output| output.status.success()) {
        return require::skip("`unshare --user --mount` does not work here");
    }
    let mut text = String::new();
    for (name, runtimes, change, lines) in rows {
        for runtime in *runtimes {
            let tree = original.copy();
            change(&tree, runtime);
            let separator = if runtime.is_empty() { "" } else { ": " };
            writeln!(text, "# {name}{separator}{runtime}").unwrap();
            for line in *lines {
                let (gpus, command) = line.split_once(": ").unwrap();
                write_nodes(&tree, gpus);
                text += &transcript(&tree, line, pretending(&tree, command));
            }
            text.push('\n');
        }
    }
    with_filters(|| assert_snapshot!(text));
}

/// A command line on a machine with the GPUs in `nodes`.
fn pretending(tree: &Tree, line: &str) -> Command {
    let script = "mount -t tmpfs none /sys/class; mkdir -p /sys/class/kfd/kfd/topology nodes; \
                  cp -r nodes /sys/class/kfd/kfd/topology/nodes; mkdir -p dev/shm; touch dev/kfd dev/null; \
                  mount --rbind /dev/shm dev/shm; mount --bind /dev/null dev/null; mount --rbind dev /dev";
    let inner = shell(tree, &format!("set -e; {script}; {line}"));
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount"]).arg(inner.get_program());
    unshare.args(inner.get_args()).current_dir(tree.root());
    copy_environment(&inner, &mut unshare);
    unshare
}

/// Given a database that this user may not list, then the doctor names it, examines all else, and does not say that code
/// loads.
#[test]
fn a_kernel_database_that_cannot_be_listed_is_named() {
    use std::os::unix::process::CommandExt;
    let tree = machine();
    new_runtime(&tree);
    let directory = |target: &str| tree.path(&format!("prefix/lib/aotriton.images/amd-{target}"));
    for target in ["gfx90a", "gfx942"] {
        write(directory(target).join("flash/fwd.aks2"), "kernels");
    }
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(tree.root(), open.clone()).unwrap();
    let closed = directory("gfx90a");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let (kpack, _directory) = for_every_user();
    let mut command = Command::new(kpack);
    command.current_dir(tree.root()).args(["doctor", "prefix/lib/libvec.so", "--arch", "gfx942"]);
    without_configuration(&mut command, &tree);
    let output = command.uid(NOBODY).gid(NOBODY).output();
    fs::set_permissions(&closed, open).unwrap();
    // Only root may become another user.
    let Ok(output) = output else { return };
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    let named = "prefix/lib/aotriton.images/amd-gfx90a: Permission denied";
    assert!(
        said.contains(named) && said.contains("which GPUs the kernel database has files"),
        "{said}"
    );
    assert!(said.contains("cannot tell whether GPU code will load"), "{said}");
    assert!(!said.contains("has no files for"), "{said}");
}

#[test]
fn a_binary_of_another_machine() {
    for machine in ["aarch64", "powerpc64le"] {
        let compiler = format!("{machine}-linux-gnu-gcc");
        if !require::tool(&compiler) {
            continue;
        }
        let tree = Tree::new();
        split(&fat(&["gfx942"]).compiler(&compiler), &tree, "prefix");
        let mut doctor = command(&tree, &["doctor", "prefix", "--arch", "gfx942", "--json"]);
        let output = output(without_configuration(&mut doctor, &tree));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = said["findings"].as_array().unwrap().iter();
        let found = Vec::from_iter(found.filter(|found| found["severity"] != "ok"));
        let [found] = &found[..] else { panic!("{said:#}") };
        let text = format!("is unknown: it is for another machine ({machine}");
        assert!(found["text"].as_str().unwrap().contains(&text), "{said:#}");
    }
}

#[test]
fn no_code_of_the_file_runs() {
    let tree = Tree::new();
    let source = r#"
        #include <fcntl.h>
        static void ran(void) { open(RAN, O_CREAT | O_WRONLY, 0600); }
        __attribute__((constructor)) static void construct(void) { ran(); }
        static int one(void) { return 1; }
        static int (*resolve(void))(void) { ran(); return one; }
        __attribute__((ifunc("resolve"))) int indirect(void);
        int (*volatile called)(void) = indirect;
        int main(void) { ran(); return called(); }
    "#;
    fs::write(tree.path("evil.c"), source).unwrap();
    let build = |output: &str, flags: &[&str]| {
        let ran = format!("-DRAN=\"{}\"", tree.path("ran").display());
        let mut cc = Command::new("cc");
        cc.arg(tree.path("evil.c")).arg(ran).args(flags);
        run(cc.arg("-o").arg(tree.path(output)));
    };
    build("libevil.so", &["-shared", "-fPIC", "-Wl,-z,now"]);
    build("evil", &["-Wl,-z,now"]);
    let code = "#include <fcntl.h>\n\
                unsigned la_version(unsigned version) {\n\
                    open(RAN, O_CREAT | O_WRONLY, 0600);\n\
                    return version;\n\
                }\n";
    fs::write(tree.path("audit.c"), code).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC"]).arg(tree.path("audit.c"));
    cc.arg(format!("-DRAN=\"{}\"", tree.path("ran").display()));
    let audit = tree.path("libaudit.so");
    run(cc.arg("-o").arg(&audit));
    let audit = audit.display();
    build("audited", &[&format!("-Wl,--audit,{audit}")]);
    build("audited.so", &["-shared", "-fPIC", &format!("-Wl,--depaudit,{audit}")]);
    let interpreter = format!("-Wl,--dynamic-linker,{}", tree.path("evil").display());
    build("interpreted", &[&interpreter]);
    let mut cc = Command::new("cc");
    cc.args(["-static", "-nostdlib", "-xc", "/dev/null", "-o"]);
    run(cc.arg(tree.path("static")));
    decoy(&tree, "audited", "decoy");
    for (name, exit) in [
        ("libevil.so", 0),
        ("evil", 0),
        ("audited", 0),
        ("audited.so", 0),
        ("interpreted", 0),
        ("static", 0),
        ("decoy", 1),
    ] {
        let mut doctor = command(&tree, &["doctor", name, "--arch", "gfx942"]);
        let doctor = without_configuration(&mut doctor, &tree);
        // The dynamic linker relocates, and so resolves, with these.
        let doctor = doctor.env("LD_BIND_NOW", "1").env("LD_WARN", "1");
        assert_eq!(doctor.status().unwrap().code(), Some(exit), "{name}");
        assert!(!tree.path("ran").exists(), "{name}");
    }
    // They do run otherwise.
    for name in ["evil", "audited", "decoy"] {
        run(Command::new("sh").arg("-c").arg(format!("{} || true", tree.path(name).display())));
        fs::remove_file(tree.path("ran")).unwrap();
    }
}

/// Copies the program `from` to `to`. There, PT_DYNAMIC has the offset of a table without the audit
/// library; at its address, which the dynamic linker uses, is the true one.
fn decoy(tree: &Tree, from: &str, to: &str) {
    const PT_DYNAMIC: [u8; 4] = 2_u32.to_le_bytes();
    const DT_AUDIT: u64 = 0x6fff_fefc;
    let mut bytes = fs::read(tree.path(from)).unwrap();
    let number = |bytes: &[u8], at: usize| {
        usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
    };
    let headers = (number(&bytes, 32)..).step_by(56);
    let mut headers = headers.take(usize::from(bytes[56]));
    let header = headers.find(|at| bytes[*at..*at + 4] == PT_DYNAMIC).unwrap();
    let (start, size) = (number(&bytes, header + 8), number(&bytes, header + 32));
    let mut table = bytes[start..start + size].to_vec();
    for entry in table.chunks_exact_mut(16) {
        if entry.starts_with(&DT_AUDIT.to_le_bytes()) {
            // DT_DEBUG
            entry[..8].copy_from_slice(&21_u64.to_le_bytes());
        }
    }
    let offset = bytes.len() as u64;
    bytes[header + 8..header + 16].copy_from_slice(&offset.to_le_bytes());
    bytes.extend(table);
    fs::write(tree.path(to), bytes).unwrap();
    fs::set_permissions(tree.path(to), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_fifo_in_the_place_of_a_library() {
    let tree = machine();
    new_runtime(&tree);
    let line = "mkdir fifos; mkfifo fifos/libamdhip64.so.6; \
                LD_LIBRARY_PATH=$PWD/fifos timeout 300 kpack doctor bin/app --arch gfx942 --quiet";
    let said = transcript(&tree, line, shell(&tree, line));
    let is_named = said.contains("fifos/libamdhip64.so.6: not a regular file");
    assert!(is_named && said.ends_with("exit code 1\n"), "{said}");
}
