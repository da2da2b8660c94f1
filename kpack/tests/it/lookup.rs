//! Given a marker, archives and a GPU, when a code object is looked up, then it is the right one, or
//! the message says what is missing.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{archive, code_of, marker, write, write_manifest};
use kpack::internal::{Cache, Environment, Error, ErrorCode, Marker, Request, TargetId};
use kpack_format::archive::Scheme;
use kpack_format::code_id;
use kpack_format::digest::blake3;
use kpack_format::finding as ids;
use kpack_tests::bytes;
use kpack_tests::process;
use kpack_tests::tree::Tree;

const KERNEL: &str = "lib/libvec.so#0";

/// Looks for index 0 of `lib/libvec.so` in `tree`.
fn load(tree: &Tree, marker: &Marker, isas: &[&str]) -> Result<String, Error> {
    load_with(&Cache::new(Environment::default()), tree, marker, isas)
}

fn load_with(cache: &Cache, tree: &Tree, marker: &Marker, isas: &[&str]) -> Result<String, Error> {
    let isas: Vec<TargetId> = isas.iter().map(|isa| isa.parse().unwrap()).collect();
    let bytes = cache.load_code_object(&Request {
        marker,
        binary: &tree.path("lib/libvec.so"),
        co_index: 0,
        isas: &isas,
    })?;
    Ok(String::from_utf8(bytes).unwrap())
}

fn kpack(target: &str) -> String {
    format!("lib/.kpack/vec_lib_{target}.kpack")
}

#[test]
fn the_most_specific_target_that_the_isa_can_run_wins() {
    let tree = Tree::new();
    let isa = ["gfx942:sramecc+:xnack-"];
    // From the least specific to the most specific, each wins over those before it.
    for target in ["gfx942", "gfx942:xnack-", "gfx942:sramecc+", "gfx942:sramecc+:xnack-"] {
        write(&tree.path(&kpack(target)), target, &[(KERNEL, target.as_bytes())]);
        assert_eq!(load(&tree, &marker(), &isa).unwrap(), target);
    }
    // Code that the GPU cannot run never wins.
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx942:xnack+")), "gfx942:xnack+", &[(KERNEL, b"no")]);
    let code = code_of(load(&tree, &marker(), &isa));
    assert_eq!(code, ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND);
}

#[test]
fn isas_are_tried_in_the_callers_order() {
    let tree = Tree::new();
    for target in ["gfx942", "gfx9-4-generic"] {
        write(&tree.path(&kpack(target)), target, &[(KERNEL, target.as_bytes())]);
    }
    let native_first = ["amdgcn-amd-amdhsa--gfx942:xnack-", "gfx9-4-generic"];
    assert_eq!(load(&tree, &marker(), &native_first).unwrap(), "gfx942");
    let generic_first = ["gfx9-4-generic", "gfx942:xnack-"];
    assert_eq!(load(&tree, &marker(), &generic_first).unwrap(), "gfx9-4-generic");
}

#[test]
fn a_kernel_that_the_more_specific_archive_lacks_is_found_in_the_general_one() {
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx90a:xnack-")), "gfx90a:xnack-", &[("lib/other.so#0", b"other")]);
    write(&tree.path(&kpack("gfx90a")), "gfx90a", &[(KERNEL, b"general")]);
    assert_eq!(load(&tree, &marker(), &["gfx90a:xnack-"]).unwrap(), "general");
}

#[test]
fn targets_come_before_archives() {
    let tree = Tree::new();
    // The first archive has the general target, the second the special one.
    write(&tree.path("lib/first.kpack"), "gfx90a", &[(KERNEL, b"general")]);
    write(&tree.path("lib/second.kpack"), "gfx90a:xnack-", &[(KERNEL, b"special")]);
    write(&tree.path("lib/third.kpack"), "gfx90a:xnack-", &[(KERNEL, b"too late")]);
    let mut marker = marker();
    marker.kpack_search_paths =
        ["first.kpack", "second.kpack", "third.kpack"].map(str::to_owned).to_vec();
    assert_eq!(load(&tree, &marker, &["gfx90a:xnack-"]).unwrap(), "special");
    assert_eq!(load(&tree, &marker, &["gfx90a:xnack+"]).unwrap(), "general");
}

#[test]
fn paths_are_relative_to_the_binary_wherever_a_link_to_it_is() {
    let tree = Tree::new();
    write(&tree.path("opt/lib/.kpack/vec_lib_gfx1100.kpack"), "gfx1100", &[(KERNEL, b"code")]);
    fs::write(tree.path("opt/lib/libvec.so"), "").unwrap();
    fs::create_dir(tree.path("lib")).unwrap();
    symlink("../opt/lib/libvec.so", tree.path("lib/libvec.so")).unwrap();
    assert_eq!(load(&tree, &marker(), &["gfx1100"]).unwrap(), "code");
    // The binary was removed, for example by an upgrade.
    fs::remove_file(tree.path("opt/lib/libvec.so")).unwrap();
    write(&tree.path(&kpack("gfx1100")), "gfx1100", &[(KERNEL, b"beside the link")]);
    assert_eq!(load(&tree, &marker(), &["gfx1100"]).unwrap(), "beside the link");
}

#[test]
fn the_environment_replaces_or_precedes_the_markers_paths() {
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx1100")), "gfx1100", &[(KERNEL, b"marker's")]);
    write(&tree.path("mine_gfx1100.kpack"), "gfx1100", &[(KERNEL, b"mine")]);
    let set = |name: &'static str, value: PathBuf| {
        let environment = Environment::read(|n| (n == name).then(|| value.clone().into()));
        load_with(&Cache::new(environment), &tree, &marker(), &["gfx1100"])
    };
    for name in ["ROCM_KPACK_PATH", "ROCM_KPACK_PATH_PREFIX"] {
        assert_eq!(set(name, tree.path("mine_@GFXARCH@.kpack")).unwrap(), "mine");
    }
    let missing = tree.path("missing.kpack");
    assert_eq!(set("ROCM_KPACK_PATH_PREFIX", missing.clone()).unwrap(), "marker's");
    assert_eq!(code_of(set("ROCM_KPACK_PATH", missing)), ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND);
    assert_eq!(set("ROCM_KPACK_PATH", "".into()).unwrap(), "marker's");
    assert_eq!(
        code_of(set("ROCM_KPACK_DISABLE", "1".into())),
        ErrorCode::KPACK_ERROR_NOT_IMPLEMENTED
    );
    // Neither 0 nor nothing turns anything on.
    for value in ["0", ""] {
        assert_eq!(set("ROCM_KPACK_DISABLE", value.into()).unwrap(), "marker's");
        let debug = Environment::read(|n| (n == "ROCM_KPACK_DEBUG").then(|| value.into()));
        assert!(!debug.debug, "{value:?}");
    }
}

/// The marker of a `lib/libvec.so` that was built with these code objects for `target`.
fn marker_of_build(target: &str, code_objects: &[&[u8]]) -> Marker {
    let checksums = code_objects.iter().map(|code| blake3(code));
    let id = code_id(&(0..).zip(checksums).collect()).unwrap();
    let mut marker = marker();
    marker.code_ids.insert(target.to_owned(), id);
    marker
}

#[test]
fn a_process_of_one_version_takes_no_code_of_another() {
    // Given a process that mapped version 1, whose archives an upgrade replaces by version 2's.
    let tree = Tree::new();
    let path = tree.path(&kpack("gfx1100"));
    let version_1 = marker_of_build("gfx1100", &[b"one", b"same"]);
    let version_2 = marker_of_build("gfx1100", &[b"two", b"same"]);
    let version = |code: &'static [u8]| [(KERNEL, code), ("lib/libvec.so#1", &b"same"[..])];
    write(&path, "gfx1100", &version(b"one"));
    assert_eq!(load(&tree, &version_1, &["gfx1100"]).unwrap(), "one");
    let running = Cache::new(Environment::default());
    write(&path, "gfx1100", &version(b"two"));

    // When it loads its first kernel, then there is none, and the message says why.
    let error = load_with(&running, &tree, &version_1, &["gfx1100"]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);
    let text = error.to_string();
    let reason = "vec_lib_gfx1100.kpack: made for another build of lib/libvec.so; install the matching package";
    assert!(text.contains(reason), "{text}");
    assert!(text.contains("restart the program"), "{text}");
    // A manifest may know the command.
    let hint = "pip install 'vec[device-@GFXARCH@]==1'";
    write_manifest(&tree.path("lib/.kpack/vec_lib.kpm"), &["gfx1100"], Some(hint));
    let error = load_with(&running, &tree, &version_1, &["gfx1100"]).unwrap_err();
    let what_to_do = "what to do: run `pip install 'vec[device-gfx1100]==1'`, and restart";
    assert!(error.to_string().contains(what_to_do), "{error}");
    // Version 2 finds its code, also through the same cache.
    assert_eq!(load_with(&running, &tree, &version_2, &["gfx1100"]).unwrap(), "two");
}

#[test]
fn a_device_package_that_is_upgraded_later_is_found_without_a_restart() {
    // Given a process of the new host, that looked for its code while the old archive was there,
    let tree = Tree::new();
    let path = tree.path(&kpack("gfx1100"));
    let (version_1, version_2) =
        (marker_of_build("gfx1100", &[b"one"]), marker_of_build("gfx1100", &[b"two", b"new"]));
    let (one, two) = (&b"one"[..], &b"two"[..]);
    write(&path, "gfx1100", &[(KERNEL, one)]);
    let cache = Cache::new(Environment::default());
    let old = cache.archive(&path).unwrap();
    let load = |marker: &Marker| load_with(&cache, &tree, marker, &["gfx1100"]);
    let code = code_of(load(&version_2));
    assert_eq!(code, ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);

    // when the device package is upgraded, by renaming as package managers do,
    let next = tree.path("lib/.kpack/next");
    write(&next, "gfx1100", &[(KERNEL, two), ("lib/libvec.so#1", b"new")]);
    fs::rename(&next, &path).unwrap();

    // then the next lookup finds the new code, also for kernels that the old archive lacks.
    assert_eq!(load(&version_2).unwrap(), "two");
    let isas = ["gfx1100".parse().unwrap()];
    let new = cache.load_code_object(&Request {
        marker: &version_2,
        binary: &tree.path("lib/libvec.so"),
        co_index: 1,
        isas: &isas,
    });
    assert_eq!(new.unwrap(), b"new");
    // Binaries of the old version continue to load from the open archive,
    assert_eq!(old.load(KERNEL, "gfx1100").unwrap(), b"one");
    assert_eq!(load(&version_1).unwrap(), "one");
    // and a marker without IDs gets the same code as before.
    assert_eq!(load(&marker()).unwrap(), "one");
}

#[test]
fn the_next_archive_is_taken_where_one_is_of_another_build() {
    let tree = Tree::new();
    let (first, second) = (tree.path("lib/a/a.kpack"), tree.path("lib/b/b.kpack"));
    write(&first, "gfx1100", &[(KERNEL, b"two")]);
    write(&second, "gfx1100", &[(KERNEL, b"one")]);
    let paths = ["a/a.kpack", "b/b.kpack"].map(str::to_owned);
    let mut marker = marker_of_build("gfx1100", &[b"one"]);
    marker.kpack_search_paths = paths.to_vec();
    assert_eq!(load(&tree, &marker, &["gfx1100"]).unwrap(), "one");
    // A less specific target wins likewise.
    write(&first, "gfx1100:xnack+", &[(KERNEL, b"two")]);
    marker.code_ids.insert("gfx1100:xnack+".to_owned(), [0; 8]);
    assert_eq!(load(&tree, &marker, &["gfx1100:xnack+"]).unwrap(), "one");
}

#[test]
fn an_archive_that_is_skipped_is_named_once() {
    const NAME: &str = "lookup::an_archive_that_is_skipped_is_named_once";
    if env::var_os("KPACK_TEST_LOADS").is_none() {
        // Given the loader in its own process, then it says on standard error that it skipped the archive.
        let mut this = Command::new(env::current_exe().unwrap());
        this.args(["--exact", NAME, "--nocapture"]);
        let printed = process::output(this.env("KPACK_TEST_LOADS", "1"));
        let said = String::from_utf8(printed.stderr).unwrap();
        assert!(printed.status.success(), "{said}");
        assert_eq!(said.matches("skipped ").count(), 1, "{said}");
        let lines = said.lines().filter(|line| line.starts_with("kpack: "));
        assert_eq!(lines.count(), 3, "{said}");
        return;
    }
    let tree = Tree::new();
    let (first, second) = (tree.path("lib/a/a.kpack"), tree.path("lib/b/b.kpack"));
    write(&first, "gfx1100", &[(KERNEL, b"two")]);
    write(&second, "gfx1100", &[(KERNEL, b"one")]);
    let mut marker = marker_of_build("gfx1100", &[b"one"]);
    marker.kpack_search_paths = ["a/a.kpack", "b/b.kpack"].map(str::to_owned).to_vec();
    let mut environment = Environment::default();
    environment.debug = true;
    let cache = Cache::new(environment);
    for _ in 0..3 {
        let isas = ["gfx1100:xnack+", "gfx1100"];
        assert_eq!(load_with(&cache, &tree, &marker, &isas).unwrap(), "one");
    }
}

/// A HIP runtime skips a GPU whose code is not found, so the user must learn why without setting a variable.
#[test]
fn a_stale_archive_is_explained_once() {
    const NAME: &str = "lookup::a_stale_archive_is_explained_once";
    if env::var_os("KPACK_TEST_LOADS").is_none() {
        let mut this = Command::new(env::current_exe().unwrap());
        this.args(["--exact", NAME, "--nocapture"]);
        let printed = process::output(this.env("KPACK_TEST_LOADS", "1"));
        let said = String::from_utf8(printed.stderr).unwrap();
        assert!(printed.status.success(), "{said}");
        let lines = Vec::from_iter(said.lines().filter(|line| line.starts_with("kpack: ")));
        let [line] = lines[..] else { panic!("{said}") };
        for part in [
            "lib/libvec.so: no code object for gfx1100",
            "vec_lib_gfx1100.kpack was made for another build of lib/libvec.so; run",
            "run `pip install 'vec[device-gfx1100]==1.1'`",
            "[stale-archive]",
        ] {
            assert!(line.contains(part), "{line}");
        }
        return;
    }
    // Given the host of version 1.1 with the device code of version 1.0, and another GPU's of 1.1.
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx1100")), "gfx1100", &[(KERNEL, b"1.0")]);
    write(&tree.path(&kpack("gfx942")), "gfx942", &[(KERNEL, b"own")]);
    let hint = Some("pip install 'vec[device-@GFXARCH@]==1.1'");
    let targets = ["gfx1100", "gfx942"];
    write_manifest(&tree.path("lib/.kpack/vec_lib.kpm"), &targets, hint);
    let mut marker = marker_of_build("gfx1100", &[b"1.1"]);
    marker.code_ids.extend(marker_of_build("gfx942", &[b"own"]).code_ids);
    let cache = Cache::new(Environment::default());
    for _ in 0..3 {
        let code = code_of(load_with(&cache, &tree, &marker, &["gfx1100"]));
        assert_eq!(code, ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);
        assert_eq!(load_with(&cache, &tree, &marker, &["gfx942"]).unwrap(), "own");
    }
}

/// Two damaged bits, one of them in the key `blake3`, must not become altered code.
#[test]
fn checksums_that_a_marker_relies_on_and_that_are_missing_are_damage() {
    let tree = Tree::new();
    let path = tree.path(&kpack("gfx1100"));
    write(&path, "gfx1100", &[(KERNEL, b"one")]);
    let marker = marker_of_build("gfx1100", &[b"one"]);
    assert_eq!(load(&tree, &marker, &["gfx1100"]).unwrap(), "one");
    let mut bytes = fs::read(&path).unwrap();
    let key = bytes::position(&bytes, b"blake3");
    bytes[key] = b'C';
    fs::write(&path, bytes).unwrap();
    let error = load(&tree, &marker, &["gfx1100"]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::KPACK_ERROR_INVALID_FORMAT);
    assert_eq!(error.id(), ids::DAMAGED_ARCHIVE);
    assert!(error.to_string().contains("has no checksums"), "{error}");
    // Another archive with the code is taken.
    let other = tree.path("lib/b.kpack");
    write(&other, "gfx1100", &[(KERNEL, b"one")]);
    let mut marker = marker;
    marker.kpack_search_paths.push("b.kpack".to_owned());
    assert_eq!(load(&tree, &marker, &["gfx1100"]).unwrap(), "one");
}

#[test]
fn markers_and_archives_without_ids_are_accepted() {
    let tree = Tree::new();
    let path = tree.path(&kpack("gfx1100"));
    write(&path, "gfx1100", &[(KERNEL, b"one")]);
    // A target that the marker does not list came from another build of the device code.
    let other_target = marker_of_build("gfx942", &[b"other"]);
    assert_eq!(load(&tree, &other_target, &["gfx1100"]).unwrap(), "one");
    // An archive without checksums, and a marker without IDs.
    let mut bytes = fs::read(&path).unwrap();
    let key = bytes::position(&bytes, b"blake3");
    bytes[key] = b'C';
    fs::write(&path, bytes).unwrap();
    assert_eq!(load(&tree, &marker(), &["gfx1100"]).unwrap(), "one");
    assert_eq!(load(&tree, &other_target, &["gfx1100"]).unwrap(), "one");
}

#[test]
fn the_early_form_of_the_marker_names_directories_and_no_kernel() {
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx1100")), "gfx1100", &[(KERNEL, b"code")]);
    let (marker, _) = Marker::read(b"../../.kpack:.kpack\0").unwrap();
    assert_eq!(load(&tree, &marker, &["gfx1100"]).unwrap(), "code");
}

#[test]
fn each_way_to_find_nothing_has_its_number() {
    let tree = Tree::new();
    let load = |isas: &[&str]| code_of(load(&tree, &marker(), isas));
    assert_eq!(load(&["gfx1100"]), ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND);
    fs::create_dir_all(tree.path("lib/.kpack")).unwrap();
    fs::write(tree.path(&kpack("gfx1100")), "damaged").unwrap();
    assert_eq!(load(&["gfx1100"]), ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND);
    // The file is named after one target, and has code for another.
    write(&tree.path(&kpack("gfx1100")), "gfx942", &[(KERNEL, b"code")]);
    assert_eq!(load(&["gfx1100"]), ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);
    write(&tree.path(&kpack("gfx1101")), "gfx1101", &[("lib/other.so#0", b"code")]);
    assert_eq!(load(&["gfx1101"]), ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND);
    assert_eq!(load(&[]), ErrorCode::KPACK_ERROR_INVALID_ARGUMENT);
}

/// On "kernel not found", HIP runtimes may give up on all GPUs; one that a binary has no code for is skipped.
#[test]
fn a_gpu_that_only_other_binaries_have_code_for_is_an_architecture_that_is_not_found() {
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx1031")), "gfx1031", &[("lib/other.so#0", b"other")]);
    let knowing = marker_of_build("gfx1030", &[b"code"]);
    let error = load(&tree, &knowing, &["gfx1031"]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);
    assert_eq!(error.id(), ids::MISSING_TARGET);
    let why = "it has code for this GPU, but this binary was built without it";
    assert!(error.to_string().contains(why), "{error}");
    let advice = "use a build of the binary with code for gfx1031";
    assert!(error.to_string().contains(advice), "{error}");
    // Code for the GPU that the marker knows, in an archive without it, is a kernel that is missing.
    write(&tree.path(&kpack("gfx1030")), "gfx1030", &[("lib/other.so#0", b"other")]);
    let missing = code_of(load(&tree, &knowing, &["gfx1030"]));
    assert_eq!(missing, ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND);
    // A marker without IDs does not tell.
    let missing = code_of(load(&tree, &marker(), &["gfx1031"]));
    assert_eq!(missing, ErrorCode::KPACK_ERROR_KERNEL_NOT_FOUND);
}

/// Several machines may have built the archives, and the manifest is of one of them.
#[test]
fn a_manifest_that_does_not_list_what_is_there_does_not_say_that_there_is_no_code() {
    let tree = Tree::new();
    for target in ["gfx942", "gfx1100"] {
        write(&tree.path(&kpack(target)), target, &[(KERNEL, b"code")]);
    }
    let install = "what to do: install the archive for gfx1030 in /opt/vec/lib/.kpack; if there is none, use a build";
    let asked = || message(&tree, &["gfx1030"]);
    assert!(asked().contains(install), "{}", asked());
    let manifest = tree.path("lib/.kpack/vec_lib.kpm");
    write_manifest(&manifest, &["gfx1100"], None);
    assert!(asked().contains(install), "{}", asked());
    write_manifest(&manifest, &["gfx1100", "gfx942"], None);
    let none = "what to do: use a build with code for gfx1030";
    assert!(asked().contains(none), "{}", asked());
}

/// A process with too many open files must not call an archive missing.
#[test]
fn running_out_of_file_descriptors_is_an_io_error() {
    // Given a process that may open only a few files,
    if env::var_os("KPACK_FEW_FILES").is_none() {
        let test = "lookup::running_out_of_file_descriptors_is_an_io_error";
        let command = format!("ulimit -n 40 && exec \"$0\" --exact {test}");
        let mut sh = Command::new("sh");
        sh.arg("-c").arg(command).arg(env::current_exe().unwrap());
        let printed = process::run(sh.env("KPACK_FEW_FILES", "1"));
        assert!(printed.contains("1 passed"), "{printed}");
        return;
    }
    let tree = Tree::new();
    let path = tree.path(&kpack("gfx1100"));
    write(&path, "gfx1100", &[(KERNEL, b"code")]);
    let cache = Cache::new(Environment::default());
    // when it has opened as many as it may,
    let open: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let error = load_with(&cache, &tree, &marker(), &["gfx1100"]).unwrap_err();
    let mapped = kpack::internal::discover_binary_path(KERNEL.as_ptr() as usize);
    drop(open);
    // then both functions return this error, and it is not permanent.
    assert_eq!(error.code(), ErrorCode::KPACK_ERROR_IO_ERROR, "{error}");
    assert!(error.to_string().contains("Too many open files"), "{error}");
    assert_eq!(mapped.unwrap_err().code(), ErrorCode::KPACK_ERROR_IO_ERROR);
    let loaded = load_with(&cache, &tree, &marker(), &["gfx1100"]);
    assert_eq!(loaded.unwrap(), "code");
}

/// Nor must a process with too little memory for the contents.
#[test]
fn running_out_of_memory_is_an_io_error() {
    if env::var_os("KPACK_LITTLE_MEMORY").is_none() {
        let test = "running_out_of_memory_is_an_io_error";
        let command = format!("ulimit -v 204800 && exec \"$0\" --exact {test}");
        let mut sh = Command::new("sh");
        sh.arg("-c").arg(command).arg(env::current_exe().unwrap());
        // Each thread's share of malloc would reserve 64 MiB of addresses.
        sh.env("KPACK_LITTLE_MEMORY", "1").env("MALLOC_ARENA_MAX", "1");
        assert!(sh.status().unwrap().success());
        return;
    }
    // Given an archive with 240 MiB of contents,
    let tree = Tree::new();
    let path = tree.path(&kpack("gfx1100"));
    write(&path, "gfx1100", &[(KERNEL, b"code")]);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(240 << 20).unwrap();
    // when a process that may use 200 MiB opens it, then the error does not call it missing.
    let error = load(&tree, &marker(), &["gfx1100"]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::KPACK_ERROR_IO_ERROR, "{error}");
    assert!(error.to_string().contains("out of memory"), "{error}");
}

#[test]
fn an_archive_that_holds_the_kernel_damaged_is_not_passed_over() {
    let tree = Tree::new();
    let special = tree.path(&kpack("gfx90a:xnack-"));
    write(&special, "gfx90a:xnack-", &[(KERNEL, &[5; 1000])]);
    write(&tree.path(&kpack("gfx90a")), "gfx90a", &[(KERNEL, b"general")]);
    let mut bytes = fs::read(&special).unwrap();
    bytes[80] ^= 0xff;
    fs::write(&special, bytes).unwrap();
    let code = code_of(load(&tree, &marker(), &["gfx90a:xnack-"]));
    assert_eq!(code, ErrorCode::KPACK_ERROR_DECOMPRESSION_FAILED);
}

/// The loader reads other files beside an archive only for its explanation, and never waits for them.
#[test]
fn a_manifest_that_is_none() {
    let tree = Tree::new();
    write(&tree.path(&kpack("gfx942")), "gfx942", &[(KERNEL, b"code")]);
    let manifest = tree.path("lib/.kpack/vec_lib.kpm");
    let pipe = Command::new("mkfifo").arg(&manifest).status();
    assert!(pipe.unwrap().success());
    let text = message(&tree, &["gfx1100"]);
    assert!(text.contains("vec_lib.kpm cannot be read: not a regular file"), "{text}");
    fs::remove_file(&manifest).unwrap();
    File::create(&manifest).unwrap().set_len(3 << 30).unwrap();
    let text = message(&tree, &["gfx1100"]);
    assert!(text.contains("expected at most 1048576"), "{text}");
    fs::write(&manifest, "\x1b[2J").unwrap();
    let text = message(&tree, &["gfx1100"]);
    assert!(text.contains("vec_lib.kpm cannot be read: not a kpack manifest"), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn control_characters_are_escaped() {
    let tree = Tree::new();
    let marker = Marker::new("lib/\x1b[2J.so", vec!["\x1b[2J_@GFXARCH@.kpack".to_owned()]);
    let text = load(&tree, &marker, &["gfx1100"]).unwrap_err().to_string();
    assert!(!text.contains('\x1b') && text.contains("\\u{1b}[2J"), "{text:?}");
}

#[test]
fn an_archive_is_opened_once_by_whatever_path() {
    let tree = Tree::new();
    write(&tree.path("lib/a.kpack"), "gfx1100", &[(KERNEL, b"code")]);
    symlink("a.kpack", tree.path("lib/b.kpack")).unwrap();
    let cache = Cache::new(Environment::default());
    let first = cache.archive(&tree.path("lib/a.kpack")).unwrap();
    let second = cache.archive(&tree.path("lib/../lib/b.kpack")).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    // An open archive stays open when its file is removed or replaced.
    fs::write(tree.path("lib/new"), archive(Scheme::None, "gfx1100", &[])).unwrap();
    fs::rename(tree.path("lib/new"), tree.path("lib/a.kpack")).unwrap();
    assert_eq!(first.load(KERNEL, "gfx1100").unwrap(), b"code");
}

#[test]
fn a_failed_open_is_tried_again() {
    let tree = Tree::new();
    let cache = Cache::new(Environment::default());
    let path = tree.path(&kpack("gfx1100"));
    load_with(&cache, &tree, &marker(), &["gfx1100"]).unwrap_err();
    write(&path, "gfx1100", &[(KERNEL, b"code")]);
    assert_eq!(load_with(&cache, &tree, &marker(), &["gfx1100"]).unwrap(), "code");
}

fn message(tree: &Tree, isas: &[&str]) -> String {
    anonymous(tree, &load(tree, &marker(), isas).unwrap_err().to_string())
}

/// A message with the tree's path as `/opt/vec`.
fn anonymous(tree: &Tree, message: &str) -> String {
    let root = |path: &Path| path.display().to_string();
    let real = fs::canonicalize(tree.root()).unwrap();
    message.replace(&root(&real), "/opt/vec").replace(&root(tree.root()), "/opt/vec")
}

#[test]
fn a_manifest_tells_how_to_install_what_is_missing() {
    let tree = Tree::new();
    let directory = |name: &str| tree.path("lib/.kpack").join(name);
    let targets = ["gfx1100", "gfx1100:xnack+", "gfx90a:xnack+", "gfx942"];
    write_manifest(&directory("vec_lib.a.kpm"), &targets, None);
    let hint = "pip install 'vec[device-@GFXARCH@]' \x1b[2J";
    write_manifest(&directory("vec_lib.kpm"), &targets, Some(hint));
    for (isa, target, package) in [
        ("gfx942:sramecc+:xnack-", "gfx942", "gfx942"),
        ("gfx1100", "gfx1100", "gfx1100"),
        // As kpack's CMake package names it.
        ("gfx90a:sramecc+:xnack+", "gfx90a:xnack+", "gfx90a.xnack-on"),
    ] {
        let message = message(&tree, &[isa]);
        let what_to_do = format!(
            "what to do: run `pip install 'vec[device-{package}]' \\u{{1b}}[2J`: code for {target} exists, but \
             is not installed [missing-archive]\n  run: kpack doctor /opt/vec/lib/libvec.so"
        );
        assert!(message.ends_with(&what_to_do), "{message}");
    }
    // No command helps where nothing is listed.
    let message = message(&tree, &["gfx1030"]);
    assert!(!message.contains("pip"), "{message}");
}

#[test]
fn messages_say_what_to_do() {
    let tree = Tree::new();
    fs::create_dir(tree.path("lib")).unwrap();
    let mut messages = vec![message(&tree, &["gfx1100"])];
    write(&tree.path(&kpack("gfx942")), "gfx942", &[(KERNEL, b"code")]);
    messages.push(message(&tree, &["gfx1100", "gfx11-generic"]));
    write_manifest(&tree.path("lib/.kpack/vec_lib.kpm"), &["gfx1100", "gfx942"], None);
    messages.push(message(&tree, &["gfx1100"]));
    messages.push(message(&tree, &["gfx1030"]));
    fs::write(tree.path(&kpack("gfx1030")), [0; 100]).unwrap();
    messages.push(message(&tree, &["gfx1030"]));
    write(&tree.path(&kpack("gfx1030")), "gfx1030", &[("lib/other.so#0", b"code")]);
    messages.push(message(&tree, &["gfx1030"]));
    write(&tree.path(&kpack("gfx1030")), "gfx1031", &[(KERNEL, b"code")]);
    messages.push(message(&tree, &["gfx1030"]));
    write_manifest(&tree.path("lib/.kpack/vec_lib.radeon.kpm"), &["gfx1100"], None);
    messages.push(message(&tree, &["gfx1100"]));
    for (path, isa) in [("/none", "gfx942"), ("/none", "gfx1036")] {
        let path = |name: &str| (name == "ROCM_KPACK_PATH").then(|| path.into());
        let cache = Cache::new(Environment::read(path));
        let error = load_with(&cache, &tree, &marker(), &[isa]).unwrap_err();
        messages.push(anonymous(&tree, &error.to_string()));
    }
    insta::assert_snapshot!(messages.join("\n\n"));
}

#[test]
fn spirv_is_a_target_that_few_binaries_have() {
    let tree = Tree::new();
    let isa = ["spirv64-amd-amdhsa-unknown-amdgcnspirv"];
    let none = load(&tree, &marker(), &isa);
    assert_eq!(code_of(none), ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);
    write(&tree.path(&kpack("gfx942")), "gfx942", &[(KERNEL, b"native")]);
    let none = load(&tree, &marker(), &isa);
    assert_eq!(code_of(none), ErrorCode::KPACK_ERROR_ARCH_NOT_FOUND);
    let spirv = kpack("amdgcnspirv");
    write(&tree.path(&spirv), "amdgcnspirv", &[(KERNEL, b"SPIR-V")]);
    assert_eq!(load(&tree, &marker(), &isa).unwrap(), "SPIR-V");
    fs::write(tree.path(&spirv), "no archive").unwrap();
    let damaged = load(&tree, &marker(), &isa);
    assert_eq!(code_of(damaged), ErrorCode::KPACK_ERROR_ARCHIVE_NOT_FOUND);
}
