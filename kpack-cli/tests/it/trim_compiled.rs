//! Given binaries as compilers make them, when they are trimmed, then each wrapper keeps what some HIP runtime takes for each
//! variant of the chosen GPUs. And given no room for scratch files, then that is an error of the system, and not of a file.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::command::{command, kpack, words};
use crate::fat::targets_of;
use crate::install_refused::can_unshare;
use crate::kernel_files::gzip;
use crate::trim::as_done;
use kpack_split::elf::DeviceCode;
use kpack_split::input::LinkedBinary;
use kpack_tests::fixture::{FatLibrary, Storage, bundle, code_with, compile};
use kpack_tests::require;
use kpack_tests::tree::Tree;

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Compiles `sources` for their targets, and links them into the library `lib/libvec.so`; the objects' device code is
/// aligned to so many bytes.
fn compiled(tree: &Tree, sources: &[&[&str]], flags: &[&str], alignment: Option<u64>) {
    fs::create_dir_all(tree.path("lib")).unwrap();
    let mut link = Command::new("clang++-19");
    link.current_dir(tree.root()).args(["-fuse-ld=lld-19", "-shared", "-nostdlib", "text.o"]);
    tree.write("text.c", "const char* text(void) { return \"an odd address\"; }");
    run(Command::new("clang-19").current_dir(tree.root()).args(["-fPIC", "-c", "text.c"]));
    for (number, targets) in sources.iter().enumerate() {
        let [source, object] = ["hip", "o"].map(|end| format!("vec{number}.{end}"));
        let kernel = format!(
            "#include <hip/hip_runtime.h>\n\
             __global__ void add{number}(float* a) {{ a[0] += {number}; }}\n\
             extern \"C\" void call{number}(float* a) {{ add{number}<<<1, 1>>>(a); }}\n"
        );
        tree.write(&source, &kernel);
        let mut clang = Command::new("clang++-19");
        clang.current_dir(tree.root()).args(["-x", "hip", "-nogpuinc", "-nogpulib", "-I"]);
        clang.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/e2e/hip"));
        clang.args(targets.iter().map(|target| format!("--offload-arch={target}")));
        compile(clang.args(flags).args(["-O1", "-fPIC", "-c"]), &[&source], &object);
        if let Some(alignment) = alignment {
            let mut objcopy = Command::new("llvm-objcopy-19");
            objcopy.arg(format!("--set-section-alignment=.hip_fatbin={alignment}"));
            run(objcopy.arg(tree.path(&object)));
        }
        link.arg(object);
    }
    run(link.args(["-o", "lib/libvec.so"]));
}

fn has_compiler() -> bool {
    ["clang++-19", "ld.lld-19", "llvm-objcopy-19"].iter().all(|tool| require::tool(tool))
}

/// The targets in the bundle of each wrapper, in order.
fn by_wrapper(path: &Path) -> Vec<Vec<String>> {
    let binary = LinkedBinary::open(path).unwrap();
    let DeviceCode::Fat(fat) = &binary.code else { panic!("no device code") };
    let bundles = binary.bundles(&fat.wrappers).map(|bundle| {
        let entries = bundle.unwrap().entries.into_iter();
        let targets = entries.filter(|entry| entry.size > 0);
        let targets = targets.filter_map(|entry| entry.id.target().map(ToString::to_string));
        Vec::from_iter(targets)
    });
    bundles.collect()
}

#[test]
fn generic_code_stays_for_the_variants_of_a_gpu_that_only_some_runtimes_take_it_for() {
    if !has_compiler() {
        return;
    }
    let [own, generic] = ["gfx906:xnack+", "gfx9-generic"];
    let one_each: &[&[&str]] = &[&[generic], &[own]];
    for (gpu, sources, expected) in [
        ("gfx906", &[&[own, generic][..]][..], &[&[own, generic][..]][..]),
        ("gfx906:xnack-", &[&[own, generic]], &[&[generic]]),
        ("gfx906:xnack+", &[&[own, generic, "gfx1100"]], &[&[own]]),
        // Some code for a GPU in one wrapper is none in another.
        ("gfx906", one_each, &[&[generic], &[own]]),
        ("gfx906:xnack-", one_each, &[&[generic], &[]]),
    ] {
        let tree = Tree::new();
        compiled(&tree, sources, &["-mcode-object-version=6"], None);
        let output = kpack(&tree, &words(&format!("trim --arch {gpu} lib")));
        assert!(output.status.success(), "{output:?}");
        let mut found = by_wrapper(&tree.path("lib/libvec.so"));
        found.iter_mut().for_each(|targets| targets.sort());
        let mut expected = Vec::from_iter(expected.iter().map(|targets| targets.to_vec()));
        expected.iter_mut().for_each(|targets| targets.sort_unstable());
        assert_eq!(found, expected, "{gpu}, {sources:?}");
    }
}

#[test]
fn bundles_that_are_not_aligned_to_pages_are_trimmed_split_and_joined() {
    if !has_compiler() {
        return;
    }
    let both: &[&str] = &["gfx942", "gfx1100"];
    for alignment in [16, 8, 64] {
        let tree = Tree::new();
        compiled(&tree, &[both, both], &["--offload-compress"], Some(alignment));
        let library = tree.path("lib/libvec.so");
        let before = fs::read(&library).unwrap();
        fs::copy(&library, tree.path("fat")).unwrap();
        succeeds(&tree, "trim --arch gfx942 lib");
        assert_eq!(targets_of(&library), ["gfx942"], "{alignment}");
        assert_eq!(by_wrapper(&library).len(), 2);
        succeeds(&tree, "trim --arch gfx1100 --dry-run vec0.o");
        succeeds(&tree, "trim --arch gfx1100 vec0.o vec1.o");
        run(Command::new("clang++-19")
            .current_dir(tree.root())
            .args(words("-fuse-ld=lld-19 -shared -nostdlib text.o vec0.o vec1.o -o linked.so")));
        assert_eq!(targets_of(&tree.path("linked.so")), ["gfx1100"], "{alignment}");
        fs::write(&library, before).unwrap();
        succeeds(&tree, "split lib/libvec.so");
        succeeds(&tree, "verify --against fat lib/libvec.so");
        succeeds(&tree, "join --prefix . --arch gfx1100 lib/libvec.so");
        assert_eq!(targets_of(&library), ["gfx1100"], "{alignment}");
        succeeds(&tree, "verify --against fat lib/libvec.so");
    }
}

#[track_caller]
fn succeeds(tree: &Tree, arguments: &str) -> String {
    let output = kpack(tree, &words(arguments));
    let text = String::from_utf8_lossy(&[&*output.stdout, &output.stderr].concat()).into_owned();
    assert!(output.status.success() && !text.contains("damaged"), "{arguments}: {text}");
    text
}

/// A directory with a library whose bundle is compressed, and a bundle that is compressed as a whole.
fn compressed() -> Tree {
    let code = [code_with("gfx1100", &[1; 30_000]), code_with("gfx942", &[2; 30_000])];
    let tree = FatLibrary::new().wrapper(Storage::Zstd(2), code.clone()).in_tree("lib/libvec.so");
    let plain = bundle(Storage::Plain, &code).unwrap();
    fs::write(tree.path("lib/kernels.fatbin.gz"), gzip(&plain)).unwrap();
    tree
}

fn with_tmpdir(tree: &Tree, arguments: &str, directory: &Path) -> Output {
    command(tree, &words(arguments)).env("TMPDIR", directory).output().unwrap()
}

#[test]
fn a_dry_run_writes_only_what_it_must_and_says_where_it_cannot() {
    let tree = compressed();
    let nowhere = tree.path("nowhere");
    let before = tree.snapshot_with_times();
    let dry = with_tmpdir(&tree, "trim --arch gfx942 --dry-run lib/libvec.so", &nowhere);
    assert!(dry.status.success(), "{dry:?}");
    let output = with_tmpdir(&tree, "trim --arch gfx942 --dry-run lib", &nowhere);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nowhere: ") && said.contains("set TMPDIR"), "{said}");
    assert!(!said.contains("[damaged"), "{said}");
    assert_eq!(tree.snapshot_with_times(), before);
    let wet = kpack(&tree, &words("trim --arch gfx942 lib/libvec.so"));
    let [dry, wet] = [dry, wet].map(|output| String::from_utf8(output.stdout).unwrap());
    assert_eq!(as_done(&dry), wet);
}

#[test]
fn no_room_for_scratch_files_is_no_damage() {
    if !can_unshare() {
        return;
    }
    let tree = compressed();
    let script = "mount -t tmpfs -o size=64k tmpfs full || exit 77; cp -p lib/* full/ || exit 77
        head -c 100000 /dev/zero > full/filler
        \"$0\" trim --arch gfx942 full; code=$?; rm full/filler
        cmp lib/libvec.so full/libvec.so && cmp lib/kernels.fatbin.gz full/kernels.fatbin.gz || exit 78
        exit $code";
    fs::create_dir(tree.path("full")).unwrap();
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    let output = unshare.arg(env!("CARGO_BIN_EXE_kpack")).current_dir(tree.root()).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("free some space") && !said.contains("[damaged"), "{said}");
}
