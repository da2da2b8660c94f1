//! The documents: given what three machines built, when the commands of docs/artifacts.md are run one
//! after the other, then each succeeds and the tree is what the document says; and given any link of
//! a document, then the file and the heading that it names exist.

use std::fs;
use std::path::Path;

use crate::shards::{PREFIX, three_shards};
use kpack_tests::page::{Page, Reader, repository};

#[test]
fn every_command_of_the_document() {
    let tree = three_shards();
    fs::remove_dir_all(tree.path("shards")).unwrap();
    fs::rename(tree.path("in"), tree.path("built")).unwrap();

    let commands = Page::read("docs/artifacts.md").blocks("sh");
    assert!(commands.len() >= 4);
    let reader = Reader::new(tree.root(), Path::new(env!("CARGO_BIN_EXE_kpack")));
    for commands in commands {
        reader.run(&commands);
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
    assert!(!tree.path("root/lib/.kpack/rocblas_lib_gfx942.kpack").exists());
    assert!(tree.path(&format!("built/linux-a/blas_lib/{PREFIX}")).is_dir());
}

/// The anchor that GitHub gives to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.collect()
}

/// The lines of a document that are not code.
fn prose(document: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    document.lines().filter(move |line| {
        let fence = line.starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

#[test]
fn every_link_leads_somewhere() {
    let root = repository();
    let directories = ["docs", "docs/dev"].map(|name| fs::read_dir(root.join(name)).unwrap());
    let documents = directories.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut broken = Vec::new();
    for document in documents.chain([root.join("README.md")]) {
        if document.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        for line in prose(&text) {
            let links = line.split("](").skip(1);
            for link in links.filter_map(|rest| rest.split_once(')')) {
                let (file, heading) = link.0.split_once('#').unwrap_or((link.0, ""));
                if file.starts_with("http") {
                    continue;
                }
                let target = match file {
                    "" => document.clone(),
                    _ => document.parent().unwrap().join(file),
                };
                let found = match heading {
                    "" => target.exists(),
                    _ => fs::read_to_string(&target).is_ok_and(|text| {
                        let mut headings = prose(&text).filter(|line| line.starts_with('#'));
                        headings.any(|line| anchor(line.trim_start_matches('#').trim()) == heading)
                    }),
                };
                if !found {
                    broken.push(format!("{}: {}", document.display(), link.0));
                }
            }
        }
    }
    assert_eq!(broken, [""; 0]);
}

#[test]
fn every_path_of_the_architecture_exists() {
    let root = repository();
    let text = fs::read_to_string(root.join("docs/dev/architecture.md")).unwrap();
    let is_path = |word: &&str| {
        let (first, rest) = word.split_once('/').unwrap_or((word, ""));
        !rest.is_empty() && !word.contains(' ') && root.join(first).is_dir()
    };
    let paths: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_path).collect();
    let missing: Vec<_> = paths.iter().filter(|path| !root.join(path).exists()).collect();
    assert!(paths.len() > 20, "{paths:?}");
    assert_eq!(missing, [&""; 0]);
}
