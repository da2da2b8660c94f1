//! Given a module's archives, when a run adds code objects of binaries and replaces those of earlier builds, then archives,
//! manifest and report fit together, or nothing has changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kpack_core::publish::{Directory, StagedFile, Transaction, Update, scratch_file};
use kpack_core::report::Report;
use kpack_core::{Error, files, ids};
use kpack_format::TargetId;
use kpack_format::archive::{ArchiveWriter, Scheme};
use kpack_format::digest::blake3;
use kpack_format::manifest::Manifest;
use kpack_format::names::Group;
use kpack_tests::tree::Tree;

/// Target and binary of each code object: `gfx90a/a gfx942/a`.
type Code = &'static str;

fn group() -> Group {
    Group::new("vec", "lib")
}

fn target(text: &str) -> TargetId {
    text.parse().unwrap()
}

/// Archives for a run, by target.
fn archives(tree: &Tree, code: Code) -> BTreeMap<TargetId, ArchiveWriter<fs::File>> {
    let mut archives = BTreeMap::new();
    for (id, binary) in code.split_whitespace().filter_map(|text| text.split_once('/')) {
        let own = archives.entry(target(id)).or_insert_with(|| {
            let spool = scratch_file(tree.root()).unwrap();
            ArchiveWriter::new(spool, &group(), &target(id), Scheme::None)
        });
        let kernel = format!("lib/{binary}.so#0");
        let bytes = kernel.as_bytes();
        let size = bytes.len() as u64;
        own.add_from(&kernel, &mut &bytes[..], size, size, blake3(bytes)).unwrap();
    }
    archives
}

/// Begins a run that has all code of the `rebuilt` binary, and may change archives of the targets that `touched` names.
fn begin(
    tree: &Tree,
    new: Code,
    rebuilt: &str,
    touched: Option<&str>,
) -> Result<Transaction, Error> {
    let root = Directory::open(tree.root())?;
    let mut transaction = Transaction::begin(&root, Path::new(".kpack"), &group())?;
    let start = format!("lib/{rebuilt}.so#");
    let known = transaction.directory().manifest()?;
    let mut manifest = known.unwrap_or_else(|| Manifest::new("vec_lib", "lib"));
    let update = Update {
        replaces: &|_, kernel| kernel.starts_with(&start),
        touches: &|id| touched.is_none_or(|touched| *id == target(touched)),
        only_computed: false,
    };
    transaction.archives(&update, archives(tree, new), &mut manifest)?;
    transaction.manifest(&manifest)?;
    Ok(transaction)
}

/// Target and binary of each code object in the archives, whose targets must be those that the manifest lists.
fn written(tree: &Tree) -> String {
    let (mut found, mut targets, mut listed) = (Vec::new(), Vec::new(), Vec::new());
    for file in tree.files() {
        let path = tree.path(&file);
        if let Ok(archive) = files::open_archive(&path) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let target = group().target_of(name).unwrap().to_string();
            let kernels = archive.toc().kernels.keys();
            found.extend(
                kernels.map(|kernel| format!("{target}/{}", kernel[4..].replace(".so#0", ""))),
            );
            targets.push(target);
        } else if file.ends_with(".kpm") {
            listed.extend(files::read_manifest(&path).unwrap().kpack_files.into_keys());
        }
    }
    assert_eq!(targets, listed);
    found.join(" ")
}

#[test]
fn what_is_there_after_a_run() {
    // What is there, what is new of the rebuilt binary `a`, the only target that may change, what is there afterwards, the
    // archives that the report has (`=`: unchanged), and those that it has as removed.
    let both = "gfx90a/a gfx942/a";
    let only = Some("gfx942");
    for (name, before, new, touched, after, reported, removed) in [
        ("nothing there", "", "gfx942/a", None, "gfx942/a", "gfx942", ""),
        ("another binary", "gfx942/b", "gfx942/a", None, "gfx942/a gfx942/b", "gfx942", ""),
        (
            "fewer targets",
            "gfx90a/a gfx90a/b",
            "gfx942/a",
            None,
            "gfx90a/b gfx942/a",
            "gfx90a gfx942",
            "",
        ),
        ("an empty archive", both, "gfx942/a", None, "gfx942/a", "gfx942=", "gfx90a"),
        ("the last archive", "gfx942/a", "", None, "", "", "gfx942"),
        ("a target that must not change", both, "gfx942/a", only, both, "gfx942=", ""),
    ] {
        let tree = Tree::new();
        begin(&tree, before, "none", None).unwrap().commit(&mut Report::default()).unwrap();
        let unchanged = tree.snapshot_with_times();
        drop(begin(&tree, new, "a", touched).unwrap());
        assert_eq!(tree.snapshot_with_times(), unchanged, "{name}");

        let mut report = Report::default();
        begin(&tree, new, "a", touched).unwrap().commit(&mut report).unwrap();
        assert_eq!(written(&tree), after, "{name}");
        let archives = report.archives.iter();
        let archives = archives.map(|own| own.target.clone() + if own.changed { "" } else { "=" });
        assert_eq!(Vec::from_iter(archives).join(" "), reported, "{name}");
        let gone = report.removed.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
        let gone = gone.map(|name| group().target_of(name).unwrap().to_string());
        assert_eq!(Vec::from_iter(gone).join(" "), removed, "{name}");
    }
}

/// Given something else in the directory, then a run is rejected, or leaves it alone.
#[test]
fn other_files_among_archives() {
    type Change = fn(&Tree);
    let rows: &[(&str, Change, Option<kpack_core::Id>)] = &[
        ("nothing", |_| {}, None),
        (
            "a second archive for the target, with the name that Windows needs",
            |tree| {
                let own = ".kpack/vec_lib_gfx90a:xnack+.kpack";
                tree.copy_file(own, ".kpack/vec_lib_gfx90a-xnack+.kpack");
            },
            Some(ids::MISNAMED_ARCHIVE),
        ),
        (
            "a truncated archive",
            |tree| {
                let own = tree.path(".kpack/vec_lib_gfx90a:xnack+.kpack");
                let bytes = fs::read(&own).unwrap();
                fs::write(own, &bytes[..bytes.len() - 9]).unwrap();
            },
            Some(ids::DAMAGED_ARCHIVE),
        ),
        (
            "an archive of a module whose name starts like this one's",
            |tree| {
                let other = Group::new("vec_lib", "x");
                let id = target("gfx90a:xnack+");
                let spool = scratch_file(tree.root()).unwrap();
                let archive = ArchiveWriter::new(spool, &other, &id, Scheme::None);
                let file = fs::File::create(tree.path(&format!(".kpack/{}", other.archive(&id))));
                archive.finish(file.unwrap()).unwrap();
            },
            None,
        ),
        (
            "a directory with the name of an archive",
            |tree| fs::create_dir(tree.path(".kpack/vec_lib_gfx942.kpack")).unwrap(),
            Some(ids::OUTPUT_IN_THE_WAY),
        ),
        (
            "leftovers",
            |tree| {
                tree.write(".kpack/.vec_lib_gfx1100.kpack.0123456789abcdef.tmp", "half");
                tree.write(".kpack/.vec_lib.kpm.tmp", "half");
            },
            None,
        ),
    ];
    for (name, change, refused) in rows {
        let tree = Tree::new();
        let code = "gfx90a:xnack+/a";
        begin(&tree, code, "none", None).unwrap().commit(&mut Report::default()).unwrap();
        let own = tree.snapshot();
        change(&tree);
        let before = tree.snapshot();
        let run = begin(&tree, code, "a", None);
        let run = run.and_then(|transaction| transaction.commit(&mut Report::default()));
        assert_eq!(run.as_ref().err().map(Error::id), *refused, "{name}: {run:?}");
        if *refused == Some(ids::DAMAGED_ARCHIVE) {
            assert!(run.unwrap_err().to_string().contains(". Restore it, or remove it and split"));
        }
        let expected = if *name == "leftovers" { own } else { before };
        assert_eq!(tree.snapshot(), expected, "{name}");
    }
}

/// Its archive would fit the new build of the host file, and not the one that is there.
#[test]
fn a_host_file_that_changed_meanwhile() {
    let tree = Tree::new();
    tree.write("liba.so", "fat");
    let root = Directory::open(tree.root()).unwrap();
    let mut transaction = begin(&tree, "gfx942/a", "a", None).unwrap();
    let opened = fs::File::open(tree.path("liba.so")).unwrap();
    let (host, ()) =
        StagedFile::write_in(root, "liba.so".as_ref(), |host| host.replaces(&opened)).unwrap();
    transaction.host(host);
    tree.write("new", "built again");
    fs::rename(tree.path("new"), tree.path("liba.so")).unwrap();
    let error = transaction.commit(&mut Report::default()).unwrap_err();
    assert_eq!(error.id(), ids::CHANGED, "{error:?}");
    assert_eq!(tree.files(), ["liba.so"]);
    assert_eq!(fs::read(tree.path("liba.so")).unwrap(), b"built again");
}
