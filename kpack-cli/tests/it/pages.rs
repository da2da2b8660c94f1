//! Given what a page of the user's book tells its reader to have, when its commands are run one after the other, then
//! each succeeds. Given any mention of kpack on any page, then that command and its options exist.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kpack_tests::fixture::{
    FatLibrary, Kind, Storage, Wheel, code, code_object, rocm_split_artifact,
};
use kpack_tests::page::{Page, Reader, repository};
use kpack_tests::process;
use kpack_tests::require;
use kpack_tests::tree::Tree;

use crate::command::{kpack, succeeds};
use crate::shards::three_shards;
use crate::wheels::{FAT, library};

/// Pages whose commands another test runs.
const READ_ELSEWHERE: [&str; 4] = [
    // artifacts_document.rs
    "docs/artifacts.md",
    // tests/tests/it/cmake/packages.rs, tests/tests/system/packages.rs
    "docs/cmake.md",
    // many_machines.rs, tests/tests/system/containers.rs
    "docs/many-machines.md",
    // tests/tests/system/e2e/examples.rs
    "docs/rust.md",
];

/// The beginnings of blocks that need root, an index of packages, or what `cargo xtask dist` makes, and the test that
/// does the same: its file and its name.
const DONE_ELSEWHERE: [(&str, &str, &str, &str); 15] = [
    ("README.md", "cargo xtask e2e", "xtask/src/main.rs", "the_commands_of_the_documents_exist"),
    (
        "docs/debugging.md",
        "pip install",
        "kpack-cli/tests/it/environments.rs",
        "the_extra_for_a_gpu_is_printed_for_installers",
    ),
    (
        "docs/debugging.md",
        "kpack doctor --unused",
        "kpack-cli/tests/it/environments.rs",
        "what_a_machine_does_not_need_is_listed_and_removed",
    ),
    (
        "docs/json.md",
        "kpack verify /opt/rocm --json > verify.json",
        "kpack-cli/tests/it/json.rs",
        "commands_about_prefixes_print_what_the_schema_says",
    ),
    (
        "docs/older-rocm.md",
        "LD_PRELOAD",
        "kpack-hip/tests/shim/main.rs",
        "preloaded_it_gives_the_runtime_the_same_code",
    ),
    (
        "docs/packages.md",
        "dpkg-deb -x",
        "tests/tests/it/cmake/distributions.rs",
        "a_debian_package_for_each_gpu",
    ),
    (
        "docs/packages.md",
        "apt install kpack-gpu",
        "tests/tests/it/cmake/distributions.rs",
        "apt_installs_the_code_of_the_machines_gpus",
    ),
    (
        "docs/packages.md",
        "for gpu in",
        "tests/tests/it/cmake/distributions.rs",
        "a_repository_has_a_package_for_each_gpu",
    ),
    (
        "docs/rocm-kpack.md",
        "cargo xtask dist",
        "tests/tests/system/e2e/mod.rs",
        "the_flow_of_therock",
    ),
    (
        "docs/runtime.md",
        "cc program.c",
        "kpack-runtime/tests/it/c_interface/mod.rs",
        "a_program_with_pkg_config",
    ),
    (
        "docs/runtime.md",
        "rustup target add",
        "kpack-runtime/tests/it/c_interface/windows.rs",
        "the_library_exports_its_interface_and_nothing_else",
    ),
    (
        "docs/strip-debug.md",
        "rocgdb",
        "kpack-cli/tests/it/strip_debug.rs",
        "debug_files_are_where_debuggers_look_for_them",
    ),
    (
        "docs/trim.md",
        "apt-get download",
        "tests/tests/system/containers/trimmed.rs",
        "an_image_for_one_gpu",
    ),
    (
        "docs/trim.md",
        "docker build",
        "tests/tests/system/containers/trimmed.rs",
        "an_image_for_one_gpu",
    ),
    (
        "docs/wheels.md",
        "pip install",
        "tests/tests/system/wheels/project.rs",
        "pip_downloads_two_wheels",
    ),
];

/// The beginnings of blocks that no test runs as a whole: they install compilers from the network.
const NOT_RUN: [(&str, &str); 2] =
    [("README.md", "sudo apt-get install"), ("docs/install.md", "cargo xtask dist")];

const TARGETS: [&str; 4] = ["gfx1030", "gfx1100", "gfx942", "gfx90a"];

/// A library with code for all targets, wherever a page has one.
fn fat(tree: &Tree, paths: &[&str]) {
    let kernels = |name: &'static str| TARGETS.map(|target| code(target, name));
    let library = FatLibrary::new()
        .wrapper(Storage::Plain, kernels("add"))
        .wrapper(Storage::Plain, kernels("mul"));
    let first = tree.path(paths[0]);
    library.build(&first).unwrap();
    for path in &paths[1..] {
        tree.write(path, fs::read(&first).unwrap());
        fs::set_permissions(tree.path(path), fs::metadata(&first).unwrap().permissions()).unwrap();
    }
}

/// The library `lib/libvec.so` of a prefix, split.
fn split(tree: &Tree, prefix: &str) {
    let library = format!("{prefix}/lib/libvec.so");
    fat(tree, &["build/libvec.so", &library]);
    succeeds(tree, &["split", &library]);
}

/// The split artifacts of three machines, their builds, and a configuration.
fn artifacts() -> Tree {
    let tree = three_shards();
    fs::rename(tree.path("in"), tree.path("builds")).unwrap();
    fs::rename(tree.path("builds/linux-a"), tree.path("built")).unwrap();
    let configuration = Page::read("docs/many-machines.md").blocks("json").remove(0);
    let configuration = configuration.replace("\"gfx942\": {\"architectures\": [\"gfx942\"]}",
        "\"gfx942\": {\"architectures\": [\"gfx942\"]}, \"gfx90a\": {\"architectures\": [\"gfx90a\"]}");
    tree.write("packaging.json", configuration);
    tree
}

fn wheels(tree: &Tree) {
    let wheel = Wheel::new(FAT).member("vec/__init__.py", "answer = 42\n").member_with_mode(
        "vec/_vec.so",
        0o755,
        library().bytes(),
    );
    wheel.write(&tree.path("dist")).unwrap();
}

/// A file with Blender's kernels for a GPU.
fn kernels(target: &str) -> (String, Vec<u8>) {
    let object = code_object(target, b"cycles").unwrap();
    (format!("lib/kernel_{target}.fatbin.zst"), zstd::bulk::compress(&object, 3).unwrap())
}

/// Blender's wheel, with kernels in files.
fn blender(tree: &Tree) {
    let wheel = Wheel::new("bpy-5.0.1-cp311-cp311-manylinux_2_28_x86_64.whl").member_with_mode(
        "bpy/_bpy.so",
        0o755,
        library().bytes(),
    );
    let members = ["gfx1100", "gfx942"].map(kernels).into_iter();
    let wheel =
        members.fold(wheel, |wheel, (name, bytes)| wheel.member(&format!("bpy/{name}"), bytes));
    wheel.write(tree.root()).unwrap();
}

/// A library in place of a HIP runtime that does not read markers.
fn hip_runtime(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut compiler = std::process::Command::new("cc");
    process::run(compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(path));
}

/// Objects to split before the link, and a HIP runtime to link with.
fn objects(tree: &Tree) {
    let object = |name: &str| {
        FatLibrary::new().kind(Kind::Object).wrapper(Storage::Plain, [code("gfx942", name)])
    };
    object("add").build(&tree.path("add.o")).unwrap();
    object("mul").build(&tree.path("mul.o")).unwrap();
    process::run(
        std::process::Command::new("ar")
            .args(["rcs", "libmath.a", "mul.o"])
            .current_dir(tree.root()),
    );
    hip_runtime(&tree.path("libamdhip64.so"));
    fs::create_dir_all(tree.path("stage/lib")).unwrap();
}

/// A kernel in `vec.hip`. Returns the beginning of a command that compiles it without ROCm.
fn hip_source(tree: &Tree) -> String {
    tree.write(
        "vec.hip",
        b"#include <hip/hip_runtime.h>\n__global__ void add(float *a) { *a += 1; }\n",
    );
    // clang links HIP's runtime by itself.
    hip_runtime(&tree.path("libamdhip64.so"));
    let header = repository().join("tests/e2e/hip");
    format!("clang++-19 -x hip -nogpuinc -nogpulib -L. -I{}", header.display())
}

/// What the page tells its reader to have, in a tree. Also returns the page's texts that the reader has others for.
fn given(page: &str) -> (Tree, Vec<(&'static str, String)>) {
    let tree = if page == "docs/kpack-artifact.md" { artifacts() } else { Tree::new() };
    let sparse = "rocsparse/usr/lib/x86_64-linux-gnu/librocsparse.so.0.1";
    let mut replaced = vec![("native", "gfx1030".to_owned())];
    let mut replace = |from, to: &str| replaced.push((from, to.to_owned()));
    let opt = |tree: &Tree| {
        split(tree, "opt/vec");
        fs::copy("/bin/true", tree.path("app")).unwrap();
        hip_runtime(&tree.path("opt/rocm/lib/libamdhip64.so"));
    };
    match page {
        "README.md" => {
            fat(&tree, &[sparse]);
            replace(
                "apt-get download librocsparse0 && dpkg-deb -x librocsparse0_*.deb rocsparse",
                "",
            );
        }
        "docs/split.md" => {
            fat(&tree, &[sparse]);
            replace(
                "apt-get download librocsparse0\ndpkg-deb -x librocsparse0_*.deb rocsparse",
                "",
            );
        }
        "docs/strip-debug.md" => {
            fat(&tree, &[sparse]);
            fs::create_dir_all(tree.path("stage/lib")).unwrap();
            replace("clang++ -x hip", &hip_source(&tree));
        }
        "docs/kpack.md" => split(&tree, "."),
        "docs/rocm-kpack.md" => {
            let (prefix, file) = ("math-libs/rocBLAS/stage", "lib/librocblas.so.5");
            let kernels = TARGETS.map(|target| code(target, "add"));
            let library = FatLibrary::new().wrapper(Storage::Plain, kernels);
            let artifact = tree.path("blas_lib");
            library.build(&artifact.join(prefix).join(file)).unwrap();
            rocm_split_artifact(&library, &artifact, (prefix, file), "blas_lib").unwrap();
        }
        "docs/kpack-split.md" => {
            let files = [
                "stage/lib/libvec.so.1.2",
                "stage/bin/vec",
                "build/libvec.so",
                "pkg-host/lib/libvec.so",
            ];
            fat(&tree, &files);
            symlink("libvec.so.1.2", tree.path("stage/lib/libvec.so")).unwrap();
            replace(
                "--arch gfx1100,gfx942 --unexpected error",
                "--arch gfx1100,gfx942,gfx1030,gfx90a --unexpected error",
            );
        }
        "docs/kpack-join.md" => split(&tree, "stage"),
        "docs/kpack-object.md" => {
            objects(&tree);
            replace("-lamdhip64", "-L. -lamdhip64");
        }
        "docs/kpack-verify.md" => {
            split(&tree, "stage");
            let artifact = "built/vec_lib/vec/stage/lib/libvec.so";
            fat(&tree, &[artifact]);
            tree.write("built/vec_lib/artifact_manifest.txt", b"vec/stage\n");
            succeeds(
                &tree,
                &[
                    "artifact",
                    "split",
                    "--batch-artifact-parent-dir",
                    "built",
                    "--output-dir",
                    "split",
                ],
            );
        }
        "docs/kpack-report.md" => {
            fat(&tree, &["artifacts/vec_lib/vec/stage/lib/libvec.so"]);
            tree.write("artifacts/vec_lib/artifact_manifest.txt", b"vec/stage\n");
            succeeds(
                &tree,
                &[
                    "artifact",
                    "split",
                    "--batch-artifact-parent-dir",
                    "artifacts",
                    "--output-dir",
                    "packages",
                ],
            );
        }
        "docs/stage.md" => {
            let kernels = TARGETS.map(|target| code(target, "add"));
            let program = FatLibrary::new().kind(Kind::Pie).wrapper(Storage::Plain, kernels);
            program.build(&tree.path("app/bin/app")).unwrap();
            fat(&tree, &["plugins/libgpu.so"]);
        }
        "docs/kpack-create.md" => {
            tree.write("build/add.hsaco", code_object("gfx942", b"add").unwrap());
            replace("hipcc --genco --offload-arch=gfx942 -o build/add.hsaco add.hip", "");
        }
        "docs/kpack-wheel.md" => wheels(&tree),
        "docs/wheels.md" => {
            wheels(&tree);
            replace("clang++ -x hip", &hip_source(&tree));
        }
        "docs/kernel-files.md" => blender(&tree),
        "docs/trim.md" => {
            let roots = ["opt/rocm", "opt/venv", "image/opt/rocm", "image/usr"];
            let files = roots.map(|root| format!("{root}/lib/libvec.so"));
            fat(&tree, &files.each_ref().map(String::as_str));
            replace("/opt/rocm /opt/venv", "opt/rocm opt/venv");
            replace("gfx90a /opt/venv", "gfx90a opt/venv");
            for target in ["gfx1100", "gfx942"] {
                let (name, bytes) = kernels(target);
                tree.write(&format!("opt/blender/{name}"), &bytes);
            }
            replace("/opt/blender", "opt/blender");
        }
        "docs/kpack-doctor.md" | "docs/older-rocm.md" | "docs/json.md" | "docs/undo.md" => {
            split(&tree, "image/opt/vec");
            opt(&tree);
            replace("/opt/", "opt/");
            replace("PREFIX/lib", "opt/vec/lib");
        }
        _ => {}
    }
    (tree, replaced)
}

#[test]
fn every_command_of_the_users_book() {
    let done_elsewhere = DONE_ELSEWHERE.map(|(page, start, ..)| ((page, start), 0));
    let mut done_elsewhere = BTreeMap::from_iter(done_elsewhere);
    done_elsewhere.extend(NOT_RUN.map(|block| (block, 0)));
    let helper = Path::new(env!("CARGO_BIN_EXE_kpack"));
    for page in Page::of_users() {
        let blocks = page.blocks("sh");
        if blocks.is_empty() || READ_ELSEWHERE.contains(&&*page.name) {
            continue;
        }
        let (tree, replaced) = given(&page.name);
        let mut reader = Reader::new(tree.root(), helper);
        reader.replaced = replaced;
        for commands in blocks {
            let mut elsewhere = done_elsewhere.iter_mut();
            let elsewhere = elsewhere
                .find(|((name, start), _)| *name == page.name && commands.starts_with(start));
            match elsewhere {
                Some((_, blocks)) => *blocks += 1,
                None if commands.starts_with("clang++")
                    && !require::tools(&["clang++-19", "ld.lld-19"]) => {}
                None => {
                    reader.run(&commands);
                }
            }
        }
    }
    for ((page, start), blocks) in done_elsewhere {
        assert_eq!(blocks, 1, "{page}: blocks that begin with `{start}`");
    }
}

#[test]
fn what_another_test_does_is_done_there() {
    for (page, start, file, test) in DONE_ELSEWHERE {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        assert!(text.contains(&format!("fn {test}()")), "{page}: {start}: {file} has no {test}");
    }
}

/// Given repaired wheels, when a job of the page's CI runs, then it leaves the split wheels to publish.
#[test]
fn jobs_split_wheels() {
    const INSTALL: &str = "cargo install --git URL kpack-cli --locked";
    let jobs = Page::read("docs/wheels.md").jobs();
    assert_eq!(jobs.len(), 2, "{jobs:?}");
    for job in jobs {
        assert!(job.starts_with(INSTALL), "{job}");
        let tree = Tree::new();
        wheels(&tree);
        fs::rename(tree.path("dist"), tree.path("wheelhouse")).unwrap();
        let mut reader = Reader::new(tree.root(), Path::new(env!("CARGO_BIN_EXE_kpack")));
        reader.replaced.push((INSTALL, String::new()));
        reader.run(&job);
        let wheels = Vec::from_iter(fs::read_dir(tree.path("dist")).unwrap());
        assert!(wheels.len() > 2, "{job}: {wheels:?}");
    }
}

/// The mentions of kpack on a page: code in a line, and lines of commands.
fn mentions(page: &Page) -> Vec<String> {
    let blocks = page.blocks("sh").join("\n").replace("\\\n", " ");
    let lines = blocks.lines().filter(|line| line.starts_with("kpack ")).map(str::to_owned);
    let inline = page.text.lines().filter(|line| !line.starts_with("```"));
    let inline = inline.flat_map(|line| line.split('`').skip(1).step_by(2));
    let inline = inline.filter(|code| code.starts_with("kpack ")).map(str::to_owned);
    Vec::from_iter(lines).into_iter().chain(inline).collect()
}

#[test]
fn every_command_and_option_that_a_page_mentions_exists() {
    let tree = Tree::new();
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut checked = 0;
    for page in Page::of_users() {
        for mention in mentions(&page) {
            // Only up to the next command of a line.
            let mention = mention.split([';', '|', '&', '#', '>']).next().unwrap_or_default();
            let mention = mention.split(" -- ").next().unwrap_or_default();
            let mut words = mention.split_whitespace().skip(1).peekable();
            let is_command = |word: &str| word.chars().all(|c| c.is_ascii_lowercase());
            let Some(first) = words.next_if(|word| is_command(word)) else {
                continue;
            };
            if first == "help" {
                continue;
            }
            let mut command = vec![first];
            if ["artifact", "wheel"].contains(&first) {
                command.extend(words.next_if(|word| is_command(word)));
            }
            let name = command.join(" ");
            let help = helps.entry(name.clone()).or_insert_with(|| {
                let output = kpack(&tree, &[&command[..], &["--help"]].concat());
                assert!(output.status.success(), "{}: {mention}: no such command", page.name);
                String::from_utf8(output.stdout).unwrap()
            });
            for option in words.filter(|word| word.starts_with("--")) {
                let end = option.find(|c: char| c != '-' && !c.is_ascii_lowercase());
                let option = &option[..end.unwrap_or(option.len())];
                assert!(
                    help.contains(option),
                    "{}: `{mention}`: {name} has no {option}",
                    page.name
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked}");
}
