//! Follows docs/many-machines.md: from install prefixes to artifacts, and from a server to a machine, one release after another.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::page::{Page, Reader};
use kpack_tests::require;
use kpack_tests::tree::Tree;

/// A process that ends with its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The block of commands of the page that begins with `start`.
fn block(start: &str) -> String {
    Page::read("docs/many-machines.md").commands(start)
}

/// Runs commands with kpack in the PATH.
fn shell(directory: &Path, commands: &str) {
    Reader::new(directory, Path::new(env!("CARGO_BIN_EXE_kpack"))).run(commands);
}

/// The builds of the page's three machines are merged, and unpacked for an image.
#[test]
fn shards_are_merged_as_the_page_says() {
    let tree = Tree::new();
    for (machine, target) in [("linux-a", "gfx1100"), ("linux-b", "gfx1101"), ("linux-c", "gfx942")]
    {
        let library = FatLibrary::new().wrapper(Storage::Plain, [code(target, "add")]);
        let artifact = format!("{machine}/built/vec_lib");
        library.build(&tree.path(&format!("{artifact}/vec/stage/lib/libvec.so"))).unwrap();
        // The names of the fixture's own sources, which are temporary.
        let mut strip = Command::new("strip");
        strip.arg(tree.path(&format!("{artifact}/vec/stage/lib/libvec.so")));
        assert!(strip.status().unwrap().success());
        fs::write(tree.path(&format!("{artifact}/artifact_manifest.txt")), "vec/stage\n").unwrap();
        let commands = block("kpack artifact split --batch").replace("linux-a", machine);
        shell(&tree.path(machine), &commands);
        fs::create_dir_all(tree.path("fetched")).unwrap();
        let store = tree.path(&format!("{machine}/store"));
        fs::rename(store, tree.path(&format!("fetched/{machine}"))).unwrap();
    }
    let configuration = Page::read("docs/many-machines.md").blocks("json").remove(0);
    fs::write(tree.path("packaging.json"), configuration).unwrap();
    shell(tree.root(), &block("for shard in"));
    shell(tree.root(), &block("kpack artifact unpack release"));
    assert!(tree.path("roots/generic/lib/libvec.so").is_file());
    assert!(tree.path("roots/gfx942/lib/.kpack/vec_lib_gfx942.kpack").is_file());
    assert!(!tree.path("roots/gfx942/lib/.kpack/vec_lib_gfx1100.kpack").exists());
}

/// A release of two prefixes, `site/RUN`, whose kernels differ from those of another run.
fn release(tree: &Tree, name: &str) {
    for module in ["vec", "blas"] {
        let prefix = tree.path(&format!("{name}/{module}"));
        let kernels = ["gfx942", "gfx1100"].map(|target| code(target, &format!("{module} {name}")));
        let library = prefix.join(format!("lib/lib{module}.so"));
        FatLibrary::new().wrapper(Storage::Plain, kernels).build(&library).unwrap();
        let commands = block("MODULE=vec");
        let commands = commands.replace("MODULE=vec", &format!("MODULE={module}"));
        shell(&tree.path(name), &commands.replace("/opt/vec", module));
    }
    let commands = block("kpack artifact split --batch").replace(" --shard linux-a", "");
    shell(&tree.path(name), &commands.replace("12345-linux", name));
    fs::create_dir_all(tree.path("site")).unwrap();
    fs::rename(tree.path(&format!("{name}/store")), tree.path(&format!("site/{name}"))).unwrap();
}

#[test]
fn each_release_is_fetched_as_the_page_says() {
    if !require::tools(&["curl", "python3"]) {
        return;
    }
    let tree = Tree::new();
    for name in ["12345-linux", "12346-linux"] {
        release(&tree, name);
    }
    let mut server = Command::new("python3");
    server.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]);
    server.arg(tree.path("site")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(server.spawn().unwrap());
    let mut said = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    let port = said.split_whitespace().skip_while(|word| *word != "port").nth(1).unwrap();

    let machine = tree.path("machine");
    fs::create_dir(&machine).unwrap();
    let commands =
        block("RUN=").replace("https://example.org", &format!("http://127.0.0.1:{port}"));
    // The second of each finds everything there; the last goes back.
    for name in ["12345-linux", "12345-linux", "12346-linux", "12346-linux", "12345-linux"] {
        shell(&machine, &commands.replace("12345-linux", name));
        let rocm = fs::canonicalize(machine.join("rocm")).unwrap();
        assert_eq!(rocm, fs::canonicalize(machine.join(name).join("rocm")).unwrap());
        for module in ["vec", "blas"] {
            assert!(rocm.join(format!("lib/lib{module}.so")).is_file());
            assert!(rocm.join(format!("lib/.kpack/{module}_lib_gfx942.kpack")).is_file());
            assert!(!rocm.join(format!("lib/.kpack/{module}_lib_gfx1100.kpack")).exists());
        }
    }
}
