//! What people type before they have read anything: it does what they mean, or prints the command to type.

use std::fs;
use std::process::Stdio;

use insta::assert_snapshot;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, Wheel, add_and_mul, bundle, code};
use kpack_tests::require;
use kpack_tests::tree::{Tree, entries_below};

use crate::command::{Row, said_by, shell};

/// A prefix with a library, and files that contain libraries.
fn prefix() -> Tree {
    let targets = ["gfx1100", "gfx90a:xnack+"];
    let tree = add_and_mul(targets, targets).in_tree("stage/lib/libvec.so");
    fs::write(tree.path("vec.deb"), "!<arch>\ndebian-binary   1700000000  0").unwrap();
    fs::write(tree.path("vec.rpm"), b"\xed\xab\xee\xdb\x03\0").unwrap();
    fs::write(tree.path("vec.whl"), "PK\x03\x04").unwrap();
    fs::write(tree.path("vec.zip"), "PK\x03\x04").unwrap();
    tree
}

#[test]
fn what_people_type_first() {
    let rows: &[Row] = &[
        (
            "a path alone",
            |_| {},
            &["kpack stage/lib/libvec.so", "kpack --color never stage/lib", "kpack no-file"],
        ),
        (
            "directories, packages and archives",
            |_| {},
            &[
                "kpack split stage",
                "kpack split vec.deb",
                "kpack split vec.rpm",
                "kpack split vec.whl",
                "kpack show vec.deb",
                "kpack show vec.whl",
                "kpack show vec.zip",
                "kpack verify vec.whl",
                "kpack install vec.whl",
                "kpack list stage",
                "kpack list stage/lib/libvec.so",
            ],
        ),
        (
            "words of other tools",
            |_| {},
            &[
                "kpack undo stage/lib/libvec.so",
                "kpack unsplit stage/lib/libvec.so",
                "kpack restore stage/lib/libvec.so",
                "kpack info stage/lib/libvec.so",
                "kpack inspect stage/lib/libvec.so",
                "kpack check stage",
                "kpack validate stage",
                "kpack --color never ls stage",
                "kpack shrink --arch gfx1100 stage",
                "kpack version",
                "kpack nonsense stage",
            ],
        ),
        (
            "options of other tools",
            |_| {},
            &[
                "kpack split --undo stage/lib/libvec.so",
                "kpack split --target gfx1100 stage/lib/libvec.so",
                "kpack split --gpu gfx1100 stage/lib/libvec.so",
                "kpack split --recursive stage",
                "kpack split --archs gfx1100 stage/lib/libvec.so",
                "kpack verify --gpu gfx1100 stage",
                "kpack report --recursive stage",
                "kpack wheel split --foo vec.whl",
                "kpack split -x stage/lib/libvec.so",
            ],
        ),
        (
            "exit codes",
            |_| {},
            &[
                "kpack explain 3",
                "kpack explain exit code 1",
                "kpack explain exit-code 143 [stale-archive]",
                "kpack explain exit",
                "kpack explain 77",
                "kpack explain 3000",
                "kpack explain +3",
                "kpack explain 03",
            ],
        ),
        (
            "a split and its way back",
            |_| {},
            &[
                "kpack split --dry-run stage/lib/libvec.so",
                "kpack split stage/lib/libvec.so",
                "kpack split --dry-run stage/lib/libvec.so",
                "kpack split stage/lib/.kpack/vec_lib_gfx1100.kpack",
                "kpack list stage/lib/.kpack/vec_lib_gfx1100.kpack stage/lib/libvec.so",
                "kpack join stage/lib/libvec.so",
                "kpack join --arch all stage/lib/libvec.so",
                "rm -r stage/lib/.kpack",
            ],
        ),
    ];
    // How wide a column is depends on the length of the tree's path.
    let said = said_by(rows, &prefix());
    let lines = said.lines().map(|line| match line.split_once("  archive  ") {
        Some((before, after)) => format!("{before}  archive  {}\n", after.trim_start()),
        None => format!("{line}\n"),
    });
    assert_snapshot!(String::from_iter(lines));
}

/// What two people typed who had not read anything: a Rust developer, a maintainer of CMake projects, a packager, a
/// publisher of wheels, somebody who ships an application, and somebody who just got an error.
const GUESSES: &[&str] = &[
    "kpack",
    "kpack target/release/myapp",
    "kpack list target/release/myapp",
    "kpack build --release",
    "kpack extract target/release/myapp -o code/",
    "kpack split target/release/myapp",
    "kpack embed target/release/myapp kernels/vec-gfx1100.hsaco",
    "kpack --version",
    "kpack split libvec.so --output-dir stage",
    "kpack split build/lib/libvec.so -o build/split/libvec.so --archive build/split/lib/.kpack/vec.kpack",
    "kpack install --prefix stage --targets 'gfx1100;gfx90a'",
    "kpack split --help",
    "kpack --cmake-dir",
    "kpack check stage",
    "kpack split rocm --output rocm-split",
    "kpack split rocm/ split/ --targets gfx1100,gfx90a",
    "kpack merge out/ -o rocm-joined",
    "kpack join out/ rocm-joined",
    "kpack verify rocm out",
    "kpack strip --keep gfx90a rocm/",
    "kpack -thin gfx90a libvec.so -output libvec-thin.so",
    "kpack trim --gpu gfx1100 --in-place rocm/",
    "kpack diff rocm out",
    "kpack du rocm",
    "kpack ls -l out/lib/.kpack/*.kpack",
    "kpack wheel dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "kpack split dist/*.whl --out-dir dist-split",
    "kpack repair dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl -w wheelhouse",
    "kpack show dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "kpack trim dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --arch gfx1100",
    "kpack verify dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "kpack info myapp/",
    "kpack -info libvec.so",
    "kpack remove gfx90a myapp/",
    "cd split-app && kpack install gfx1100",
    "mv split-app/lib/.kpack/app_lib_gfx1100.kpack vec.kpack && kpack add split-app/ vec.kpack",
    "kpack doctor",
    "kpack diagnose ./myapp/bin/libvec.so",
    "kpack explain hipErrorNoBinaryForGpu",
    "kpack why myapp/ --gpu gfx1103",
    // Another one.
    "kpack --list target/release/myapp",
    "kpack archs libvec.so",
    "kpack dump libvec.so",
    "kpack -t out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack unpack out/lib/.kpack/rocm_lib_gfx1100.kpack -d code",
    "kpack get gfx1100 libvec.so -o vec.hsaco",
    "kpack list-kernels libvec.so",
    "kpack libvec.so --split",
    "kpack compress libvec.so",
    "kpack split libvec.so out-dir/",
    "kpack splt libvec.so",
    "kpack pack kernels/vec-gfx1100.hsaco -o kernels.kpack",
    "kpack split --input rocm --output rocm-split --arch gfx1100",
    "kpack split -p rocm",
    "kpack split rocm --dry-run",
    "kpack help shrink",
    "kpack test stage",
    "kpack verify out --original rocm",
    "kpack compare rocm/lib/librocvec.so out/lib/librocvec.so",
    "kpack split vec.deb",
    "kpack unsplit out",
    "kpack undo --prefix out",
    "kpack restore out/lib/librocvec.so -o librocvec.so",
    "kpack trim rocm gfx1100",
    "kpack slim rocm --only gfx1100 --out rocm-slim",
    "kpack prune --remove gfx90a rocm",
    "kpack remove-arch gfx90a libvec.so",
    "kpack size rocm --by-target",
    "kpack stats libvec.so",
    "kpack wheel inspect dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "kpack wheel dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl -o wheels",
    "kpack split-wheel dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --arch gfx1100",
    "kpack check dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "kpack bundle target/release/myapp --out app",
    "cd split-app && kpack fetch gfx1100",
    "kpack explain 'no kernel image is available for execution on the device'",
    "kpack hipErrorInvalidImage",
    "kpack gpus",
    "kpack debug myapp/bin/myapp",
    "kpack supports gfx1103 myapp/bin/myapp",
    "kpack unpack split-app/bin/myapp",
    "kpack install myapp/bin/myapp --prefix staged --gpu gfx1100",
    "kpack trim dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl gfx1100",
    // People who merge, compress, bundle and strip, and users of other tools.
    "kpack merge one two -o both",
    "kpack split libvec.so -o apart",
    "kpack rm libvec.so",
    "mv out/lib/.kpack/rocm_lib_gfx90a.kpack code.kpack && kpack add out/lib/librocvec.so code.kpack",
    "kpack split libvec.so -j8 -o apart",
    "kpack has dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl gfx1100",
    "kpack explain libvec.so --gpu gfx1036",
    "kpack check libvec.so",
    "kpack join libvec.so 'lib/*.kpack' -o full.so",
    "kpack convert kernels/vec-gfx1100.hsaco -o vec.kpack",
    "kpack list-targets",
    "kpack wheel dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --gpu gfx942 -w apart",
    "kpack union one/ two/",
    "kpack add two one",
    "kpack combine rocm myapp both",
    "kpack merge one out -o both",
    "kpack recombine built/vec_lib built/app_lib -o both",
    "kpack merge out/lib/.kpack/rocm_lib_gfx1100.kpack out/lib/.kpack/rocm_lib_gfx90a.kpack -o rocm.kpack",
    "kpack merge kernels/vec-gfx1100.hsaco kernels/vec-gfx90a.hsaco -o both.co",
    "kpack merge out/lib/librocvec.so out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack compress out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack recompress --level 19 out/lib/.kpack/rocm_lib_gfx1100.kpack -o small.kpack",
    "kpack zip rocm -o rocm.zip",
    "kpack bundle kernels/vec-gfx1100.hsaco kernels/vec-gfx90a.hsaco -o vec.co",
    "kpack bundle kernels/vec.co -o code",
    "kpack bundle out/lib/librocvec.so",
    "kpack bundle out/bin/rocapp",
    "kpack --unbundle --type=o --targets=host-x86_64-unknown-linux,hipv4-amdgcn-amd-amdhsa--gfx1100 --input=kernels/vec.co --output=vec.hsaco",
    "kpack strip libvec.so",
    "kpack strip -s libvec.so",
    "kpack strip out",
    "kpack squash kernels/vec.co",
    "kpack --remove-section .hip_fatbin libvec.so",
    "kpack --dump-section .hip_fatbin=code.bin libvec.so",
    "kpack -j .hip_fatbin --dump libvec.so",
    "kpack --offloading libvec.so",
    "kpack -d libvec.so",
    "kpack disassemble libvec.so",
    "kpack roc-obj -t gfx1100 -o code libvec.so",
    "kpack roc-obj-ls -v libvec.so",
    "kpack --contents vec.deb",
    "kpack owner out/lib/librocvec.so",
    "kpack exec target/release/myapp",
    "kpack hash out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack outdated out",
    "kpack freeze out",
    "kpack clean",
    "kpack clean rocm",
    "kpack repair out",
    "kpack repair out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack diff out/lib/.kpack/rocm_lib_gfx1100.kpack out/lib/.kpack/rocm_lib_gfx90a.kpack",
    "kpack diff rocm myapp",
    "kpack cmp kernels/vec-gfx1100.hsaco kernels/vec-gfx90a.hsaco",
    "kpack supported gfx1103",
    "kpack backup rocm",
    "kpack config",
    "kpack watch out",
    "kpack -c vec.deb",
    "kpack x out/lib/.kpack/rocm_lib_gfx1100.kpack -C code",
    "kpack remove libvec.so",
    "kpack strip libvec.so -o host.so",
    "kpack prune --image rocm --gfx gfx1100 --dry-run",
    // People who add code for a GPU, build for one, install wheels and trim packages.
    "kpack add libvec.so kernels/vec-gfx1100.hsaco -o new.so",
    "kpack add gfx1030 libvec.so",
    "kpack build -t gfx90a rocm",
    "kpack install dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --target site",
    "kpack install dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --gpu gfx90a",
    "cd rocm && kpack build -t gfx90a lib/librocvec.so",
    "cd target && kpack build ../rocm -t gfx90a",
    "kpack trim --arch gfx1100 vec.deb",
    "cp vec.deb libvec1_1.0-2_amd64.deb && kpack split libvec1_1.0-2_amd64.deb",
    "kpack slim vec.deb --only gfx1100 -o small.deb",
    "kpack wheel trim dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --target gfx90a -o small",
    "cp out/lib/librocvec.so new.so && kpack join new.so out/lib/.kpack/rocm_lib_gfx1100.kpack out/lib/.kpack/rocm_lib_gfx90a.kpack",
    "cp out/lib/librocvec.so new.so && kpack join --arch gfx90a new.so out/lib/.kpack/rocm_lib_gfx90a.kpack",
    // People who write scripts, pass no path, pack what they make, compare, and name outputs that exist.
    "kpack -q list --format '{{.Target}}' libvec.so",
    "kpack show libvec.so -f '{{.Size}}'",
    "kpack inspect --template '{{.Archs}}' dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
    "kpack list --porcelain rocm",
    "kpack list -1 libvec.so",
    "kpack size --sort=size libvec.so",
    "kpack du --sort size rocm",
    "kpack stats out/lib/librocvec.so --sort-by size",
    "kpack ls --sort=size rocm",
    "kpack list --sort size out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack strip --strip-all libvec.so -o host.so",
    "kpack strip --strip-all libvec.so",
    "kpack strip --strip-all rocm -o host",
    "kpack strip --strip-all rocm",
    "kpack objcopy --remove-section=.hip_fatbin libvec.so host.so",
    "kpack report rocm -f json",
    "kpack ldd rocm",
    "kpack split libvec.so --host-only -o host.so",
    "kpack trim --native rocm",
    "kpack trim --this-gpu --dry-run rocm",
    "kpack stage target/release/myapp --gpu current -o bundle",
    "kpack doctor target/release/myapp --arch native",
    "cd out && kpack undo",
    "cp libvec.so out && cd out && kpack split -q libvec.so && kpack unsplit",
    "cd one && kpack restore",
    "mkdir empty && cd empty && kpack undo",
    "kpack join --arch all",
    "cd rocm && kpack split",
    "cd rocm && kpack trim --gpu gfx1100",
    "cd rocm && kpack du",
    "cd myapp && kpack bundle",
    "cd out && kpack check",
    "kpack ls",
    "kpack ldd target/release/myapp",
    "kpack deps rocm/bin/rocapp",
    "kpack collect --output myapp.tar.gz target/release/myapp",
    "kpack ship target/release/myapp --targets gfx1100 --zip myapp.zip",
    "kpack split rocm -o rocm-split.tgz",
    "kpack pack target/release/myapp -o myapp.AppImage",
    "kpack save rocm -o rocm.tar",
    "touch rocm.tar.gz && kpack export rocm -o rocm.tar.gz",
    "kpack repair dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --plat gfx1100",
    "kpack wheel dist",
    "kpack split dist -o wheels",
    "kpack vec.deb",
    "kpack debian vec.deb",
    "kpack split-deb vec.deb --out tree",
    "kpack build-deb out",
    "kpack split rocm --package vec",
    "kpack join out -o rocm",
    "kpack merge out/lib/librocvec.so out/lib/.kpack/*.kpack -o libvec.so",
    "kpack bundle target/release/myapp -o dist",
    "kpack split rocm -o myapp",
    "kpack split libvec.so -o build/lib/libvec.so",
    "kpack get gfx1100 kernels/vec.co -o libvec.so",
    "kpack unpack libvec.so -d rocm",
    "kpack slim vec.deb --only gfx1100 -o vec.deb",
    "kpack diff libvec.so rocm/lib/librocvec.so",
    "kpack compare one/lib/libvec.so two/lib/libvec.so",
    "kpack diff one two",
    "kpack diff out split-app",
    "kpack undo rocm",
    "kpack trim -q --arch gfx1100 rocm && kpack undo rocm",
    "kpack untrim rocm",
    "kpack targets",
    "kpack --list-targets",
    "kpack -xelf all libvec.so",
    "kpack index dist/",
    "kpack --offload-arch=gfx1100 libvec.so -o slim.so",
    "kpack -t out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack --dump-section gfx1100=code.o libvec.so",
    "kpack has libvec.so gfx1100",
    "kpack check rocm --target gfx1100",
    "kpack lipo -archs libvec.so",
    "kpack lipo libvec.so -thin gfx1100 -output thin.so",
    "kpack extract-kernels libvec.so --kernel 'libvec.so#0'",
    "kpack trim --keep-arch gfx1100 --root stage /lib/libvec.so",
    "kpack split --keep-original libvec.so",
    "kpack trim rocm --arch gfx1100 --backup",
    "kpack split -C rocm --all",
    "kpack check --gpu gfx1100 target/release/myapp",
    "kpack trim -n --arch gfx1100 rocm",
    "kpack explain 'hipErrorNoBinaryForGpu: Unable to find code object for all current devices!'",
    "kpack explain 'kpack: error: libvec.so: not split [nothing-split]'",
    "kpack explain 'error code 209'",
    "kpack extract out/lib/.kpack/*.kpack split-app/lib/.kpack/*.kpack -o code",
    "kpack report --output report.html rocm",
    "kpack show libvec.so -o info.json",
    "kpack list rocm --only-targets",
    "kpack split vec.deb -o vec-split.deb",
    "kpack wheel split",
    "cd out && kpack wheel split",
    "kpack extract out/lib/librocvec.so --arch gfx1100 -o code",
    "kpack list-archs libvec.so",
];

/// A tree in which every guess names something.
fn everything() -> Tree {
    let library = || add_and_mul(["gfx1100", "gfx90a"], ["gfx1100", "gfx90a"]);
    let tree = library().in_tree("libvec.so");
    tree.write(
        "Cargo.toml",
        "[package]\nname = \"app\"\nversion = \"1.0.0\"\nedition = \"2021\"\n[workspace]\n",
    );
    tree.write("src/main.rs", "fn main() {}\n");
    fs::create_dir_all(tree.path("target/release")).unwrap();
    library().kind(Kind::Pie).build(&tree.path("target/release/myapp")).unwrap();
    for to in [
        "build/lib/libvec.so",
        "rocm/lib/librocvec.so",
        "myapp/bin/libvec.so",
        "stage/lib/libvec.so",
    ] {
        tree.copy_file("libvec.so", to);
    }
    for to in ["rocm/bin/rocapp", "myapp/bin/myapp"] {
        tree.copy_file("target/release/myapp", to);
    }
    let entries = ["gfx1100", "gfx90a"].map(|target| code(target, "add"));
    for ((_, kernel), target) in entries.iter().zip(["gfx1100", "gfx90a"]) {
        tree.write(&format!("kernels/vec-{target}.hsaco"), kernel);
    }
    tree.write("kernels/vec.co", bundle(Storage::Plain, &entries).unwrap());
    for (to, target) in [("one", "gfx1100"), ("two", "gfx90a")] {
        fs::create_dir_all(tree.path(to).join("lib")).unwrap();
        FatLibrary::new()
            .wrapper(Storage::Plain, [code(target, "add")])
            .build(&tree.path(to).join("lib/libvec.so"))
            .unwrap();
    }
    for artifact in ["vec_lib", "app_lib"] {
        tree.write(&format!("built/{artifact}/artifact_manifest.txt"), "math/stage\n");
    }
    let wheel = Wheel::with_library(
        "vec-1.0-py3-none-manylinux_2_28_x86_64.whl",
        fs::read(tree.path("libvec.so")).unwrap(),
    );
    fs::create_dir(tree.path("dist")).unwrap();
    wheel.write(&tree.path("dist")).unwrap();
    tree.write("package/DEBIAN/control", "Package: vec\nVersion: 1\nArchitecture: all\nMaintainer: me <me@example.org>\nDescription: vectors\n");
    tree.copy_file("libvec.so", "package/usr/lib/libvec.so");
    for line in [
        "cp -a rocm out && kpack split --prefix out --module rocm --all",
        "cp -a myapp split-app && kpack split --prefix split-app --module app --all",
        "kpack split stage/lib/libvec.so",
        "kpack split --prefix one --module vec --all && kpack split --prefix two --module vec --all",
        "dpkg-deb --root-owner-group --build package vec.deb && rm -r package",
    ] {
        let output = shell(&tree, line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
    tree
}

/// Whether a command line did what it was for. The commands that look for faults find some here, because there is no GPU.
fn succeeded(line: &str, code: Option<i32>) -> bool {
    let finds_faults = ["diff", "doctor", "verify"].iter().any(|command| line.contains(command));
    let wants_gpu = line.contains("--arch native") || line.contains("--print-arch");
    code == Some(0) || finds_faults && code == Some(1) || wants_gpu && code == Some(3)
}

#[test]
fn each_guess_does_what_it_means_or_prints_commands_that_do() {
    if !require::tools(&["dpkg-deb", "unzip"]) {
        return;
    }
    let original = everything();
    let mut text = String::new();
    let mut answered = 0;
    for guess in GUESSES {
        let tree = original.copy();
        // To a pipe, kpack prints more.
        let output = shell(&tree, guess).stdout(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let root = tree.root().canonicalize().unwrap();
        let stderr = stderr.replace(root.to_str().unwrap(), "/tree");
        text += &format!("$ {guess}\n");
        if succeeded(guess, output.status.code()) || stderr.starts_with("Moves") {
            answered += 1;
            continue;
        }
        let said = Vec::from_iter(stderr.lines().filter(|line| !line.is_empty()));
        said.iter().for_each(|line| text += &format!("! {line}\n"));
        let below = said.iter().skip(1).filter_map(|line| line.strip_prefix("  "));
        let commands = Vec::from_iter(below.filter(|line| *line != "instead, run:"));
        assert!(said.len() <= 5 || commands.is_empty(), "{guess}: {said:?}");
        // In the directory of the guess, after what it does before.
        let before =
            guess.rsplit_once(" && ").map_or(String::new(), |(before, _)| format!("{before} && "));
        let mut all = !commands.is_empty();
        for command in commands {
            let is_missing = |program: &&str| {
                command.contains(&format!("{program} ")) && !require::tool(program)
            };
            if ["jq", "pip", "python3"].iter().any(is_missing) {
                continue;
            }
            let tree = original.copy();
            let line = format!("{before}{command}").replace("/tree", tree.root().to_str().unwrap());
            let existed = entries_below(tree.root());
            let output = shell(&tree, &line).output().unwrap();
            if !succeeded(&line, output.status.code()) {
                all = false;
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                text += &format!("failed: {command}: {stderr}");
            }
            // Where the output would be, something else is: it stays.
            if said[0].contains(" exists") {
                let there = entries_below(tree.root());
                let changed = existed.iter().find(|(path, own)| there.get(*path) != Some(*own));
                assert_eq!(changed.map(|(path, _)| path), None, "{guess}: {command}");
            }
        }
        answered += usize::from(all);
    }
    assert!(!text.contains("\nfailed: "), "{text}");
    text += &format!("{answered} of {} answered\n", GUESSES.len());
    assert_snapshot!(text);
}

/// What the engine may understand in another way than it is meant, or in part, where a command would remove, replace or drop
/// something.
const DANGEROUS: &[&str] = &[
    "kpack trim --arch gfx1100 --dry-rnu libvec.so",
    "kpack trim --arch gfx1100 --preview libvec.so",
    "kpack split -n libvec.so --urn",
    "kpack trim --keep gfx1100 --remove gfx90a libvec.so",
    "kpack trim --arch gfx1100 --exclude gfx90a libvec.so",
    "kpack split --check libvec.so",
    "kpack thin --arch gfx1100 libvec.so .hip/libvec.so",
    "kpack strip --no-gpu --arch gfx1100 libvec.so",
    "kpack split ./rocm -o rocm/out",
    "kpack split -C build libvec.so",
    "kpack thin --root rocm --backup --arch gfx1100 lib",
    "kpack rm --keep gfx1100 libvec.so",
    "kpack remove --except gfx1100 libvec.so",
    "kpack trim --arch gfx1100,gfx94x libvec.so",
    "kpack split rocm -o rocm/sub",
    "kpack split rocm -o /usr",
    "kpack slim /usr --only gfx1100 --out new",
    "kpack strip /usr",
    "kpack trim /usr /etc --gpu gfx1100",
    "kpack trim libvec.so rocm --gpu gfx1100 -o both",
    "kpack trim libvec.so build/lib/libvec.so --gpu gfx1100 -o new",
    "kpack split --frob",
    "kpack dont-split libvec.so",
    "kpack split -o new -- libvec.so",
    "kpack trim --gpu gfx1100 libvec.so typo.so",
    "kpack join --arch all libvec.so typo.so",
    "kpack info libvec.so '|'",
    "kpack slim \"$(printf 'a\\nb')\" libvec.so",
    "kpack pack kernels/vec-gfx1100.hsaco -o out/lib/.kpack/rocm_lib_gfx1100.kpack",
    "kpack pack kernels/vec-gfx1100.hsaco typo -o kernels.kpack",
    "kpack merge one two -o rocm",
    "kpack merge one two -o one",
    "kpack merge one two -o one/both",
    "cp -a one same && kpack merge one same -o new",
    "kpack merge libvec.so build/lib/libvec.so -o new.so",
    "kpack merge out/lib/librocvec.so stage/lib/libvec.so -o new.so",
    "kpack -d libvec.so",
    "kpack -c libvec.so",
    "kpack strip -s libvec.so",
    "kpack build -t gfx90a,typo rocm",
    "cp out/lib/librocvec.so new.so && mkdir .kpack && touch .kpack/other && kpack join new.so out/lib/.kpack/rocm_lib_gfx90a.kpack",
    "mv out/lib/librocvec.so new.so && kpack join new.so split-app/lib/.kpack/app_lib_gfx90a.kpack",
    "kpack install dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl --target rocm",
    "kpack install dist/vec-1.0-py3-none-manylinux_2_28_x86_64.whl typo.whl",
    "kpack trim --arch gfx1100 vec.deb rocm -o small.deb",
    "cp vec.deb vec2.deb && kpack trim --arch gfx1100 vec.deb vec2.deb -o small.deb",
    "cd /usr && kpack trim --gpu gfx1100",
    "cd / && kpack undo",
    "cd rocm && kpack split -o new",
    "cd rocm && kpack trim --frob --gpu gfx1100",
    "kpack remove --arch native rocm",
    "kpack split --archive old.kpack libvec.so",
    "kpack strip --strip-all libvec.so -o rocm/lib/.kpack",
    "kpack undo rocm -o new",
    "kpack repair rocm --plat gfx1100 --exclude libamdhip64.so",
];

#[test]
fn what_may_be_meant_in_another_way_gets_no_command_that_changes_something() {
    if !require::tools(&["dpkg-deb", "unzip"]) {
        return;
    }
    let tree = everything();
    let mut wrong = String::new();
    for guess in DANGEROUS {
        let output = shell(&tree, guess).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{guess}");
        for line in stderr.lines().filter_map(|line| line.strip_prefix("  ")) {
            let reads = ["doctor", "help", "list", "report", "show", "verify", "wheel show"];
            let reads = reads.iter().any(|read| line.starts_with(&format!("kpack {read}")));
            let is_other = ["cp -a", "pip ", "dpkg-deb -"].iter().any(|word| line.contains(word));
            if is_other || line.starts_with("kpack ") && !reads {
                wrong += &format!("{guess}: {line}\n");
            }
        }
    }
    assert_eq!(wrong, "");
}

/// Given a link to a tree, then a copy of the tree is trimmed, not the tree.
#[test]
fn what_a_link_leads_to_stays() {
    if !require::tools(&["dpkg-deb", "unzip"]) {
        return;
    }
    let tree = everything();
    std::os::unix::fs::symlink("rocm", tree.path("link-rocm")).unwrap();
    let guess = "kpack slim link-rocm --only gfx1100 --out slim";
    let output = shell(&tree, guess).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let line = stderr.lines().find_map(|line| line.strip_prefix("  ")).unwrap();
    let before = entries_below(&tree.path("rocm"));
    assert!(shell(&tree, line).status().unwrap().success(), "{line}");
    assert_eq!(entries_below(&tree.path("rocm")), before, "{line}");
    assert!(tree.path("slim/lib/librocvec.so").exists(), "{line}");
}
