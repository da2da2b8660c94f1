//! Whatever a file contains, showing and verifying it gives an answer or an error, never a panic.

use std::fs;
use std::process::Command;
use std::sync::OnceLock;

use crate::command::{kpack, words};
use kpack_artifact::verify;
use kpack_cli::inspect;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Kind, Storage, bundle, code, code_object};
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::Tree;
use proptest::prelude::*;

fn library() -> FatLibrary {
    FatLibrary::new()
        .wrapper(Storage::Plain, [code("gfx1100", "add"), code("gfx942", "add")])
        .wrapper(Storage::Zlib(3), [code("gfx1100", "mul")])
}

/// A file of each kind: name and bytes.
fn files() -> &'static Vec<(String, Vec<u8>)> {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let tree = library().in_tree("fat.so");
        library().kind(Kind::NoPie).build(&tree.path("fat")).unwrap();
        library().build(&tree.path("split.so")).unwrap();
        library().kind(Kind::Object).build(&tree.path("device.o")).unwrap();
        library().kind(Kind::StaticLibrary).build(&tree.path("libdevice.a")).unwrap();
        fs::write(tree.path("code.hsaco"), code("gfx942", "add").1).unwrap();
        let entries = [code("gfx1100", "add"), code("gfx942", "add")];
        fs::write(tree.path("bundle.co"), bundle(Storage::Zstd(2), &entries).unwrap()).unwrap();
        install(&InstallOptions::new(tree.root(), "vec", ["split.so"]), &()).unwrap();
        let files = tree.snapshot().into_iter();
        files
            .map(|(name, (_, bytes))| (name.rsplit('/').next().unwrap().to_owned(), bytes))
            .collect()
    })
}

/// The JSON of `kpack show` is an interface: its keys and their order stay.
#[test]
fn json_of_each_kind() {
    let tree = Tree::new();
    for (name, bytes) in files() {
        let name = match name.rsplit_once('.') {
            Some((_, "kpack" | "kpm")) => format!("lib/.kpack/{name}"),
            _ => name.clone(),
        };
        tree.write(&name, bytes);
    }
    let mut text = String::new();
    for name in tree.snapshot().keys() {
        let shown = inspect::inspect(&tree.path(name)).unwrap();
        let json = serde_json::to_string_pretty(&shown).unwrap();
        let keys = json.lines().filter(|line| line.starts_with("  \""));
        let mut keys = Vec::from_iter(keys.filter_map(|line| line.split(':').next()));
        keys.sort_unstable();
        assert!(keys.is_sorted_by(|a, b| a < b), "{name}: a key is there twice: {keys:?}");
        text += &json;
        text += "\n";
    }
    let root = fs::canonicalize(tree.root()).unwrap();
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(root.to_str().unwrap(), "PREFIX");
    settings.add_filter(r#""blake3": "[0-9a-f]{64}""#, r#""blake3": "BLAKE3""#);
    settings.add_filter(r#""(size|address|bundle_offset|stored_size|original_size|device_bytes|uncompressed_size|section_size)": \d+"#, r#""$1": 0"#);
    settings.bind(|| insta::assert_snapshot!(text));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_files(
        file in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let (name, bytes) = file.get(files());
        let mut bytes = bytes.clone();
        for (index, value, head) in flips {
            // Often in the headers, where damage matters most.
            let length = if head { bytes.len().min(400) } else { bytes.len() };
            bytes[index.index(length)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let tree = Tree::new();
        let path = tree.path(name);
        fs::write(&path, bytes).unwrap();
        let _ = inspect::inspect(&path);
        let _ = verify::verify(&[path], &verify::Options::default(), &());
        let _ = verify::verify(&[tree.root().to_owned()], &verify::Options::default(), &());
    }
}

/// A small file may need a large window, although it is undamaged.
#[test]
fn without_memory_for_a_code_object_it_is_not_called_damaged() {
    let tree = Tree::new();
    let zeros = code_object("gfx1100", &vec![0; 100 << 20]).unwrap();
    let large = FatLibrary::new().wrapper(Storage::ZstdLong(2), [("gfx1100", zeros)]);
    large.build(&tree.path("lib/large.so")).unwrap();
    let install = "ulimit -v 65536; exec \"$0\" split --prefix . --module large lib/large.so";
    let output = Command::new("sh")
        .args(["-c", install, env!("CARGO_BIN_EXE_kpack")])
        .current_dir(tree.root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("out of memory"), "{said}");
}

/// A library whose data has a bundle that it hands to the HIP runtime itself, as TensorFlow does, and the magic of
/// bundles alone, as programs that read them have.
fn with_bundles_in_data(tree: &Tree) -> std::path::PathBuf {
    let storages = [Storage::Plain, Storage::Zstd(2), Storage::Zstd(3)];
    let mut text =
        ".section .rodata\n.ascii \"__CLANG_OFFLOAD_BUNDLE__\"\n.ascii \"CCOB\"\n".to_owned();
    for (index, storage) in storages.into_iter().enumerate() {
        let name = format!("data{index}.bundle");
        fs::write(tree.path(&name), bundle(storage, &[code("gfx1100", "own")]).unwrap()).unwrap();
        text += &format!(".balign 8\n.incbin \"{}\"\n", tree.path(&name).display());
    }
    text += ".section .note.GNU-stack,\"\",@progbits\n";
    fs::write(tree.path("data.s"), text).unwrap();
    let library = tree.path("p/lib/libvec.so");
    let fat = FatLibrary::new().wrapper(Storage::Plain, [code("gfx1100", "add")]);
    fat.flag(tree.path("data.s")).build(&library).unwrap();
    library
}

#[test]
fn bundles_in_data_are_mentioned() {
    let tree = Tree::new();
    with_bundles_in_data(&tree);
    let expected = "3 offload bundles in `.rodata` outside of the section for device code: the program loads \
                    them itself, so they stay in the file";
    for command in [
        "show p/lib/libvec.so",
        "verify p --verbose",
        "split --prefix p --module vec lib/libvec.so",
        "show p/lib/libvec.so",
        "verify p --verbose",
    ] {
        let output = kpack(&tree, &words(command));
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(expected) && said.contains("[bundles-in-data]"), "{command}: {said}");
        assert!(output.status.success(), "{command}: {said}");
    }
}

#[test]
fn what_a_thin_archive_and_a_file_of_device_code_are() {
    let tree = Tree::new();
    let object = tree.path("vec.o");
    let fat = FatLibrary::new().kind(Kind::Object);
    fat.wrapper(Storage::Plain, [code("gfx1100", "add")]).build(&object).unwrap();
    run(Command::new("ar").arg("rcT").arg(tree.path("libvec.a")).arg(&object));
    let output = kpack(&tree, &["show", "libvec.a"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(said.contains("a thin archive") && said.contains("[thin-archive]"), "{said}");
    assert!(!said.contains("no device code"), "{said}");

    fs::create_dir(tree.path("p")).unwrap();
    fs::write(tree.path("p/add.co"), code("gfx1100", "add").1).unwrap();
    let output = kpack(&tree, &words("split --prefix p --module vec add.co"));
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = "a code object, device code alone; expected an executable or library (ELF or PE) [unknown-file]";
    assert!(said.contains(expected), "{said}");
}

/// Two kernels, and a device function that is none.
#[test]
fn kernels_of_a_code_object_are_counted() {
    if !require::tools(&["clang++-19", "ld.lld-19"]) {
        return;
    }
    let tree = Tree::new();
    let attribute = "__attribute__((amdgpu_kernel))";
    let source = format!(
        "extern \"C\" {{ int twice(int x) {{ return 2 * x; }}\n\
         {attribute} void one(int *a) {{ *a = twice(*a); }} {attribute} void two(int *a) {{ *a = 2; }} }}\n"
    );
    fs::write(tree.path("kernels.cpp"), source).unwrap();
    let mut clang = Command::new("clang++-19");
    clang.args([
        "--target=amdgcn-amd-amdhsa",
        "-mcpu=gfx1100",
        "-nogpulib",
        "-fvisibility=default",
    ]);
    run(clang.args(["kernels.cpp", "-o", "two.hsaco"]).current_dir(tree.root()));
    let said = kpack(&tree, &words("show two.hsaco"));
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(text.ends_with("\n2 kernels\n"), "{text}");
    let said = kpack(&tree, &words("show two.hsaco --json"));
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&said.stdout).unwrap()["kernel_count"],
        2
    );
    // Without symbols, nothing is said.
    fs::write(tree.path("bare.hsaco"), code("gfx1100", "add").1).unwrap();
    let said = kpack(&tree, &words("show bare.hsaco"));
    assert!(!String::from_utf8(said.stdout).unwrap().contains("kernel"));
}
