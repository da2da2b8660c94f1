//! Follows docs/many-machines.md: from install prefixes to artifacts, and from a server to a machine, one release after another.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::process::run;
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
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/many-machines.md");
    let page = fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```sh\n").skip(1).map(|block| block.split_once("```").unwrap().0);
    blocks.find(|block| block.starts_with(start)).unwrap().to_owned()
}

/// Runs commands with kpack in the PATH.
fn shell(directory: &Path, commands: &str) {
    let kpack = Path::new(env!("CARGO_BIN_EXE_kpack")).parent().unwrap();
    let path = format!("{}:{}", kpack.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    run(shell.args(["-euc", commands]).current_dir(directory).env("PATH", path));
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
    let commands = block("kpack split --batch").replace(" --shard linux-a", "");
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
