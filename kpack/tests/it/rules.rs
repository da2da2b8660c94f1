//! Given archives in odd places, when code objects are looked up by our rules and by those of ROCm's own
//! loader, then each finds what that loader finds, and says what led there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::common::{marker, write};
use kpack::internal::lookup::{self, BinaryOrigin, Environment, Rule, Rules};
use kpack::internal::{Archive, Cache, Marker, Request};
use kpack_format::code_id;
use kpack_format::digest::blake3;
use kpack_tests::tree::Tree;

const KERNEL: &str = "lib/libvec.so#0";

/// What `rules` find for index 0 of `lib/libvec.so` in `tree`, and what led there.
fn find_with(
    rules: Rules,
    tree: &Tree,
    marker: &Marker,
    environment: &Environment,
    isa: &str,
) -> Option<(String, Rule)> {
    let binary = tree.path("lib/libvec.so");
    let locations = rules.locations(environment, marker, &BinaryOrigin::of(&binary, []));
    let targets = lookup::targets(&[isa.parse().unwrap()]);
    let candidates = rules.candidates(&locations, &targets).into_iter();
    let opened = candidates.filter_map(|candidate| {
        let archive = Archive::open(&candidate.path).ok()?;
        Some((candidate.rule, archive))
    });
    let opened = Vec::from_iter(opened);
    let kernels = lookup::kernels(marker, &binary, 0);
    rules.first(&targets, &opened, |(rule, archive), target| {
        rules.ask(archive, marker, &kernels, target).map(|kernel| {
            let code = archive.load(kernel, target).unwrap();
            (String::from_utf8(code).unwrap(), *rule)
        })
    })
}

/// What our rules and ROCm's find for gfx942. Loaders of ROCm differ in what they do with an archive that lacks the
/// kernel, and in nothing else.
fn find(tree: &Tree, marker: &Marker, environment: &Environment) -> [Option<(String, Rule)>; 2] {
    let [kpack, rocm, older] = find_all(tree, marker, environment, "gfx942");
    assert_eq!(rocm, older);
    [kpack, rocm]
}

/// What our rules find, those of ROCm's newest loader, and those of ROCm 7.14.
fn find_all(
    tree: &Tree,
    marker: &Marker,
    environment: &Environment,
    isa: &str,
) -> [Option<(String, Rule)>; 3] {
    [Rules::KPACK, Rules::ROCM, Rules::ROCM_7_14]
        .map(|rules| find_with(rules, tree, marker, environment, isa))
}

fn kpack(tree: &Tree, path: &str, kernel: &str, code: &str) {
    write(&tree.path(path), "gfx942", &[(kernel, code.as_bytes())]);
}

fn found(code: &str, rule: Rule) -> Option<(String, Rule)> {
    Some((code.to_owned(), rule))
}

#[test]
fn archives_beside_a_link_to_the_binary() {
    let tree = Tree::new();
    let none = Environment::default();
    fs::create_dir_all(tree.path("cache/lib")).unwrap();
    fs::create_dir(tree.path("lib")).unwrap();
    fs::write(tree.path("cache/lib/libvec.so"), "").unwrap();
    symlink("../cache/lib/libvec.so", tree.path("lib/libvec.so")).unwrap();
    kpack(&tree, "lib/.kpack/vec_lib_gfx942.kpack", KERNEL, "link");
    assert_eq!(find(&tree, &marker(), &none), [found("link", Rule::Link), None]);
    kpack(&tree, "cache/lib/.kpack/vec_lib_gfx942.kpack", KERNEL, "real");
    let real = found("real", Rule::Marker);
    assert_eq!(find(&tree, &marker(), &none), [real.clone(), real]);
}

#[test]
fn the_loader_says_what_led_to_an_archive() {
    let tree = Tree::new();
    fs::create_dir_all(tree.path("cache/lib")).unwrap();
    fs::create_dir(tree.path("lib")).unwrap();
    fs::write(tree.path("cache/lib/libvec.so"), "").unwrap();
    symlink("../cache/lib/libvec.so", tree.path("lib/libvec.so")).unwrap();
    kpack(&tree, "lib/.kpack/vec_lib_gfx942.kpack", KERNEL, "link");
    kpack(&tree, "mine.kpack", KERNEL, "mine");
    let rule = |variable: &'static str| {
        let environment = Environment::read(|name| {
            (name == variable).then(|| tree.path("mine.kpack").into_os_string())
        });
        let found = Cache::new(environment).code_objects(&Request {
            marker: &marker(),
            binary: &tree.path("lib/libvec.so"),
            co_index: 0,
            isas: &[],
        });
        let rules = found.unwrap().into_iter().map(|code| code.rule());
        Vec::from_iter(rules)
    };
    assert_eq!(rule("NONE"), [Rule::Link]);
    assert_eq!(rule("ROCM_KPACK_PATH"), [Rule::Path]);
    assert_eq!(rule("ROCM_KPACK_PATH_PREFIX"), [Rule::PathPrefix]);
}

#[test]
fn archives_of_another_build() {
    let tree = Tree::new();
    let none = Environment::default();
    kpack(&tree, "lib/.kpack/vec_lib_gfx942.kpack", KERNEL, "other");
    let id = code_id(&[(0, blake3(b"own"))].into()).unwrap();
    let marker = marker().with_code_ids([("gfx942".to_owned(), id)].into());
    assert_eq!(find(&tree, &marker, &none), [None, found("other", Rule::Marker)]);
    kpack(&tree, "lib/.kpack/vec_lib_gfx942.kpack", KERNEL, "own");
    let own = found("own", Rule::Marker);
    assert_eq!(find(&tree, &marker, &none), [own.clone(), own]);
}

#[test]
fn an_archive_that_lacks_the_kernel() {
    let tree = Tree::new();
    let none = Environment::default();
    let special = tree.path("lib/.kpack/vec_lib_gfx90a:xnack-.kpack");
    write(&special, "gfx90a:xnack-", &[("lib/other.so#0", b"other")]);
    let general = tree.path("lib/.kpack/vec_lib_gfx90a.kpack");
    write(&general, "gfx90a", &[(KERNEL, b"general")]);
    let find = |isa| find_all(&tree, &marker(), &none, isa);
    let general = found("general", Rule::Marker);
    assert_eq!(find("gfx90a:xnack-"), [general.clone(), general.clone(), None]);
    assert_eq!(find("gfx90a:xnack+"), [general.clone(), general.clone(), general]);
}

/// On Windows, names of files have no colons.
#[test]
fn archives_with_the_names_of_windows() {
    let tree = Tree::new();
    let none = Environment::default();
    let other = tree.path("lib/.kpack/vec_lib_gfx90a-sramecc+-xnack-.kpack");
    write(&other, "gfx90a:sramecc+:xnack-", &[(KERNEL, b"other")]);
    let find = |isa| {
        let [kpack, rocm, older] = find_all(&tree, &marker(), &none, isa);
        assert_eq!(rocm, older);
        [kpack, rocm]
    };
    let isa = "gfx90a:sramecc+:xnack-";
    assert_eq!(find(isa), [found("other", Rule::Marker), None]);
    assert_eq!(find("gfx90a:sramecc+:xnack+"), [None, None]);
    let pattern = tree.path("lib/.kpack/vec_lib_@GFXARCH@.kpack");
    let [ours, rocms] = [Rules::KPACK, Rules::ROCM].map(|rules| rules.installed(&pattern).unwrap());
    assert_eq!(ours[0].path, other);
    assert_eq!(ours[0].target, isa.parse().ok());
    assert_eq!(rocms, []);
    // The name of this system wins.
    let usual = tree.path("lib/.kpack/vec_lib_gfx90a:sramecc+:xnack-.kpack");
    write(&usual, isa, &[(KERNEL, b"usual")]);
    let usual = found("usual", Rule::Marker);
    assert_eq!(find(isa), [usual.clone(), usual]);
}

#[test]
fn archives_that_variables_list() {
    let tree = Tree::new();
    let set = |name: &'static str, value: PathBuf| {
        Environment::read(|n| (n == name).then(|| value.clone().into()))
    };
    kpack(&tree, "lib/.kpack/vec_lib_gfx942.kpack", KERNEL, "marker's");
    kpack(&tree, "mine_gfx942.kpack", KERNEL, "mine");
    let marked = found("marker's", Rule::Marker);
    for (name, rule, otherwise) in [
        ("ROCM_KPACK_PATH", Rule::Path, None),
        ("ROCM_KPACK_PATH_PREFIX", Rule::PathPrefix, marked),
    ] {
        let mine = found("mine", rule);
        let file = set(name, tree.path("mine_gfx942.kpack"));
        assert_eq!(find(&tree, &marker(), &file), [mine.clone(), mine.clone()]);
        // ROCm's loader takes the name as it is.
        let pattern = set(name, tree.path("mine_@GFXARCH@.kpack"));
        assert_eq!(find(&tree, &marker(), &pattern), [mine, otherwise]);
    }
}
