//! Given what three machines built, when the commands of docs/artifacts.md are run one after the
//! other, then each succeeds and the tree is what the document says.

mod shards;

use std::fs;
use std::path::Path;
use std::process::Command;

use shards::{PREFIX, three_shards};

/// The shell commands of a document, block by block.
fn commands(document: &str) -> Vec<String> {
    let blocks = document.split("```sh\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn every_command_of_the_document() {
    let tree = three_shards();
    fs::remove_dir_all(tree.path("shards")).unwrap();
    fs::rename(tree.path("in"), tree.path("built")).unwrap();

    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/artifacts.md");
    let document = fs::read_to_string(document).unwrap();
    let helper = Path::new(env!("CARGO_BIN_EXE_kpack"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", helper.parent().unwrap().display());
    let commands = commands(&document);
    assert!(commands.len() >= 4);
    for commands in commands {
        let output = Command::new("sh")
            .args(["-euc", &commands])
            .current_dir(tree.root())
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{commands}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }

    for file in [
        "split/blas_lib_gfx1101/artifact_manifest.txt",
        "roots/blas_lib_gfx1100/lib/.kpack/rocblas_lib_gfx1100.kpack",
        "try/lib/librocblas.so.5",
        "shards/linux-a/blas_lib_gfx1100/artifact_manifest.txt",
        "packages/blas_lib_generic/artifact_manifest.txt",
        "packages/blas_lib_instinct/artifact_manifest.txt",
        "sizes.html",
        "root/lib/librocblas.so.5",
        "root/lib/.kpack/rocblas_lib.kpm",
        "root/lib/.kpack/rocblas_lib.gfx110X.kpm",
        "root/lib/.kpack/rocblas_lib_gfx1101.kpack",
    ] {
        assert!(tree.path(file).is_file(), "{file}");
    }
    assert!(
        !tree
            .path("root/lib/.kpack/rocblas_lib_gfx942.kpack")
            .exists()
    );
    assert!(
        tree.path(&format!("built/linux-a/blas_lib/{PREFIX}"))
            .is_dir()
    );
}
