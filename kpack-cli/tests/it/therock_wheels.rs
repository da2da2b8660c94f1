//! Given wheels with device code, when they are split by the commands of TheRock's workflows, then what the workflows
//! publish is there, in the form that TheRock's own scripts read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kpack_tests::fixture::{Wheel, add_and_mul};
use kpack_tests::page::repository;
use kpack_tests::process::run;
use kpack_tests::require::tool;
use kpack_tests::tree::{Tree, files_in};

use crate::command::said;
use crate::wheels::{names, text};

const TORCH: &str = "torch-2.10.0+rocm7.14.0-cp311-cp311-manylinux_2_28_x86_64.whl";
const TORCHVISION: &str = "torchvision-0.25.0+rocm7.14.0-cp311-cp311-manylinux_2_28_x86_64.whl";

/// The calls of the workflows, for torch and for torchvision.
const SPLIT_TORCH: &str = r#"
python3 -m rocm_kpack.tools.split_python_wheels \
    --input "${FAT_STAGE}"/torch-*.whl \
    --output-dir "${PACKAGE_DIST_DIR}" \
    --device-package-prefix amd-torch-device \
    --overlay-root torch/ \
    --wheel-type torch-fat \
    --device-requires-dist "rocm-sdk-device-@GFXARCH@ == ${ROCM_SDK_VERSION}" \
    --compression zstd \
    -j "$(nproc)""#;
const SPLIT_TORCHVISION: &str = r#"
python3 -m rocm_kpack.tools.split_python_wheels \
    --input "${FAT_STAGE}"/torchvision-*.whl \
    --output-dir "${PACKAGE_DIST_DIR}" \
    --device-package-prefix amd-torchvision-device \
    --overlay-root torchvision/ \
    --device-requires-dist "rocm-sdk-device-@GFXARCH@ == ${ROCM_SDK_VERSION}" \
    --compression zstd \
    -j 32"#;

/// Wheels for several GPUs in `fat`; torch has images for families of GPUs as well.
fn fat_wheels(tree: &Tree) -> [PathBuf; 2] {
    let library = add_and_mul(["gfx90a:xnack+", "gfx1100"], ["gfx90a:xnack-", "gfx1201"]);
    let library = library.bytes();
    let mut torch = Wheel::new(TORCH).member("torch/__init__.py", "").member_with_mode(
        "torch/lib/libtorch_hip.so",
        0o755,
        library.clone(),
    );
    for family in ["gfx11xx", "gfx120x"] {
        let image = format!("torch/lib/aotriton.images/amd-{family}/flash/attn_fwd.aks2");
        torch = torch.member(&image, family);
    }
    let torchvision = Wheel::new(TORCHVISION).member("torchvision/_C.so", library);
    [torch, torchvision].map(|wheel| wheel.write(&tree.path("fat")).unwrap())
}

fn shell(tree: &Tree, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(tree.root());
    let modules = repository().join("therock/python");
    command.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("KPACK_EXECUTABLE", env!("CARGO_BIN_EXE_kpack"));
    command.env("FAT_STAGE", "fat").env("PACKAGE_DIST_DIR", "dist");
    command.env("ROCM_SDK_VERSION", "7.14.0");
    command
}

/// What a script says that fails with this exit code.
#[track_caller]
fn fails(tree: &Tree, script: &str, code: i32) -> String {
    let Output { status, stderr, .. } = shell(tree, script).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{said}");
    said
}

/// The fields of METADATA that matter to installers.
fn requirements(wheel: &Path) -> Vec<String> {
    let name = wheel.file_name().unwrap().to_str().unwrap();
    let project: Vec<&str> = name.split('-').take(2).collect();
    let metadata = text(wheel, &format!("{}.dist-info/METADATA", project.join("-")));
    let is_asked =
        |line: &&str| ["Requires-Dist", "Provides-Extra"].iter().any(|f| line.starts_with(f));
    metadata.lines().filter(is_asked).map(str::to_owned).collect()
}

#[test]
fn the_workflows_split_torch_and_torchvision() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let fat = fat_wheels(&tree);
    run(&mut shell(&tree, SPLIT_TORCH));
    run(&mut shell(&tree, SPLIT_TORCHVISION));
    let dist = tree.path("dist");
    let device = |target: &str| {
        format!("amd_torch_device_{target}-2.10.0+rocm7.14.0-cp311-cp311-manylinux_2_28_x86_64.whl")
    };
    let vision =
        |target: &str| device(target).replace("torch_", "torchvision_").replace("2.10", "0.25");
    let of_torch = ["gfx11", "gfx1100", "gfx1201", "gfx12_0", "gfx90a"].map(device);
    let of_vision = ["gfx1100", "gfx1201", "gfx90a"].map(vision);
    let mut expected = [&of_torch[..], &of_vision, &[TORCH.into(), TORCHVISION.into()]].concat();
    expected.sort();
    assert_eq!(names(&dist), expected);
    // Only processors have extras: TheRock's scripts drop those of other GPUs by these names.
    let version = "2.10.0+rocm7.14.0";
    let all = |label: &str| {
        format!("Requires-Dist: amd-torch-device-{label}=={version} ; extra == \"device-all\"")
    };
    let own = |extra: &str, label: &str| {
        format!("Requires-Dist: amd-torch-device-{label}=={version} ; extra == \"device-{extra}\"")
    };
    assert_eq!(
        requirements(&dist.join(TORCH)),
        [
            "Requires-Dist: rocm-bootstrap".to_owned(),
            "Provides-Extra: device-all".to_owned(),
            all("gfx11"),
            all("gfx1100"),
            all("gfx1201"),
            all("gfx12_0"),
            all("gfx90a"),
            "Provides-Extra: device-gfx1100".to_owned(),
            own("gfx1100", "gfx1100"),
            own("gfx1100", "gfx11"),
            "Provides-Extra: device-gfx1201".to_owned(),
            own("gfx1201", "gfx1201"),
            own("gfx1201", "gfx12_0"),
            "Provides-Extra: device-gfx90a".to_owned(),
            own("gfx90a", "gfx90a"),
        ]
    );
    let host = format!("Requires-Dist: torch=={version}");
    assert_eq!(
        requirements(&dist.join(device("gfx1100"))),
        [
            host.clone(),
            format!("Requires-Dist: amd-torch-device-gfx11=={version}"),
            "Requires-Dist: rocm-sdk-device-gfx1100 == 7.14.0".to_owned(),
        ]
    );
    assert_eq!(requirements(&dist.join(device("gfx11"))), [host]);
    for (wheel, fat) in [("torch-", &fat[0]), ("torchvision-", &fat[1])] {
        let project = wheel.replace('-', "_device_");
        let wheels =
            names(&dist).into_iter().filter(|n| n.starts_with(wheel) || n.contains(&project));
        let wheels = Vec::from_iter(wheels.map(|name| dist.join(name)));
        let wheels = wheels.iter().map(|path| path.to_str().unwrap());
        let arguments = ["wheel", "verify", "--against", fat.to_str().unwrap()];
        let said = said(&tree, &Vec::from_iter(arguments.into_iter().chain(wheels)));
        assert!(said.ends_with("exit code 0\n"), "{said}");
    }
}

/// Every option of the tool that kpack stands in for.
#[test]
fn options_that_change_nothing_are_accepted() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    fat_wheels(&tree);
    run(&mut shell(&tree, SPLIT_TORCH));
    fs::create_dir(tree.path("scratch")).unwrap();
    let more = r#" --output-dir again --databases rocblas aotriton --tmp-dir scratch --verbose
        --clang-offload-bundler /nowhere/bundler --objcopy objcopy --readelf readelf
        --compression-level 3"#;
    run(&mut shell(&tree, &format!("{SPLIT_TORCH}{}", more.replace('\n', " "))));
    assert!(files_in(&tree.path("dist")) == files_in(&tree.path("again")));
    // Without compression, the level has no meaning.
    let stored = " --output-dir stored --compression none --compression-level 19";
    run(&mut shell(&tree, &format!("{SPLIT_TORCH}{stored}")));
    assert_eq!(names(&tree.path("stored")), names(&tree.path("dist")));
}

#[test]
fn several_requirements_of_device_wheels() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    fat_wheels(&tree);
    let more = " --device-requires-dist 'rocm-sdk-libraries-@GFXARCH@ == 7.14.0' 'amd-helper >= 2'";
    run(&mut shell(&tree, &format!("{SPLIT_TORCHVISION}{more}")));
    let device = names(&tree.path("dist")).into_iter().find(|name| name.contains("gfx1201"));
    let device = tree.path("dist").join(device.unwrap());
    assert_eq!(
        requirements(&device)[1..],
        [
            "Requires-Dist: rocm-sdk-device-gfx1201 == 7.14.0",
            "Requires-Dist: rocm-sdk-libraries-gfx1201 == 7.14.0",
            "Requires-Dist: amd-helper >= 2",
        ]
    );
}

#[test]
fn directories_in_and_out() {
    if !tool("python3") {
        return;
    }
    // Given an unpacked wheel in which somebody has changed a file,
    let tree = Tree::new();
    fat_wheels(&tree);
    run(&mut shell(&tree, SPLIT_TORCH));
    let unpack = "python3 -m zipfile -e fat/torch-*.whl unpacked; chmod 755 unpacked/torch/lib/*.so
        echo 'answer = 42' >unpacked/torch/__init__.py";
    run(&mut shell(&tree, unpack));
    // when it is split into directories, twice,
    let split = SPLIT_TORCH.replace(r#""${FAT_STAGE}"/torch-*.whl"#, "unpacked");
    let split = format!("{split} --output-format directory --output-dir directories");
    run(&mut shell(&tree, &split));
    run(&mut shell(&tree, &split));
    // then they have the files of the wheels, and the change.
    let stems = names(&tree.path("dist")).into_iter().map(|name| name.replace(".whl", ""));
    assert_eq!(names(&tree.path("directories")), Vec::from_iter(stems));
    let directory = tree.path("directories").join(TORCH.replace(".whl", ""));
    assert_eq!(fs::read(directory.join("torch/__init__.py")).unwrap(), b"answer = 42\n");
    let mut checks = Command::new("find");
    checks.arg(&directory).args(["-name", "*.so", "-perm", "755"]);
    assert!(run(&mut checks).ends_with("libtorch_hip.so\n"));
    let record = fs::read_to_string(directory.join("torch-2.10.0+rocm7.14.0.dist-info/RECORD"));
    let files = run(Command::new("find").arg(&directory).args(["-type", "f"]));
    assert_eq!(record.unwrap().lines().count(), files.lines().count());
    // A directory that is something else stays.
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    let said = fails(&tree, &split, 4);
    assert!(said.contains("exists, and is not an unpacked wheel"), "{said}");
    fs::remove_dir_all(tree.path("unpacked/torch-2.10.0+rocm7.14.0.dist-info")).unwrap();
    let said = fails(&tree, &split, 4);
    assert!(said.contains("unpacked: not an unpacked wheel"), "{said}");
}

#[test]
fn variants_in_the_other_format_are_rejected() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    fat_wheels(&tree);
    for option in ["--generate-variant-wheel", "--variant-label amd"] {
        let said = fails(&tree, &format!("{SPLIT_TORCH} {option}"), 2);
        let name = option.split(' ').next().unwrap();
        assert!(said.contains(&format!("{name}: kpack writes wheel variants")), "{said}");
        assert!(!tree.path("dist").exists());
    }
    // Those of kpack work.
    run(&mut shell(&tree, &format!("{SPLIT_TORCH} --variant")));
    let written = names(&tree.path("dist"));
    assert!(written.iter().any(|name| name.ends_with("-variants.json")), "{written:?}");
}

/// A directory that cannot be replaced is still there, as it was.
#[test]
fn an_unpacked_wheel_is_replaced_at_once_or_not_at_all() {
    if !tool("python3") {
        return;
    }
    let tree = Tree::new();
    let wheel = Wheel::new(TORCH).member("torch/__init__.py", "");
    wheel.write(&tree.path("fat")).unwrap();
    let script = r#"
from pathlib import Path
from rocm_kpack import wheel_directory
rename = Path.rename
def fail(self, target):
    if self.name == ".out.tmp":
        raise OSError("no room")
    return rename(self, target)
wheel, out = next(Path("fat").iterdir()), Path("out")
wheel_directory.unpack(wheel, out)
(out / "mine").touch()
Path.rename = fail
try:
    wheel_directory.unpack(wheel, out)
except OSError:
    assert (out / "mine").exists()
else:
    raise AssertionError("it did not fail")
Path.rename = rename
wheel_directory.unpack(wheel, out)
assert (out / "torch/__init__.py").exists() and not (out / "mine").exists()
assert sorted(path.name for path in Path().iterdir()) == ["fat", "out", "script"]
"#;
    fs::write(tree.path("script"), script).unwrap();
    run(&mut shell(&tree, "python3 script"));
}
