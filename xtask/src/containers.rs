//! `cargo xtask containers`: builds the images of `examples/containers`, pushes them to a registry on the loopback
//! interface, and pulls them as users do. Also fetches one GPU's files from an HTTP server.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use serde_json::Value;
use walkdir::WalkDir;
use xshell::cmd;

use crate::process::{self, NotRun, shell, step};
use crate::repository;

/// The programs that it runs, all of Debian.
const TOOLS: [&str; 6] = [
    "buildah",
    "skopeo",
    "umoci",
    "docker-registry",
    "curl",
    "python3",
];

/// The targets of the images.
const TARGETS: [&str; 2] = ["gfx1030", "gfx942"];

/// Builds, pushes, pulls and verifies images.
///
/// # Errors
/// An image is not what the page says. [`NotRun`] without the tools, or where images cannot be built.
pub(crate) fn run() -> Result<()> {
    let mut tools = TOOLS.iter();
    if let Some(missing) = tools.find(|tool| process::find_program(tool).is_none()) {
        bail!(NotRun(format!(
            "{missing} is not installed; `cargo xtask bootstrap` installs it"
        )));
    }
    let kpack = repository::build_helper()?;
    let scratch = tempfile::tempdir()?;
    let work = scratch.path();
    let shell = shell();
    let _directory = shell.push_dir(work);
    step("Packing an artifact for two GPUs");
    let library = work.join("built/vec_lib/stage/lib/libvec.so");
    let code = TARGETS.map(|target| code(target, "add"));
    FatLibrary::new()
        .wrapper(Storage::Plain, code)
        .build(&library)?;
    fs::write(work.join("built/vec_lib/artifact_manifest.txt"), "stage\n")?;
    process::run!("{kpack} split --quiet --batch-artifact-parent-dir built --output-dir split")?;
    process::run!("{kpack} pack split --quiet --output-dir release --run 1-linux")?;
    fetch(&kpack, work)?;

    step("Building images, and pushing them to a registry");
    let registry = registry(work)?;
    let repository = format!("127.0.0.1:{}/rocm", registry.port);
    let storage = format!(
        "--root {0}/storage --runroot {0}/run --storage-driver vfs",
        work.display()
    );
    let build = repository::root().join("examples/containers/build");
    let [first, second] = TARGETS;
    let built = cmd!(shell, "{build} release {repository} 7.14 {first} {second}")
        .env("KPACK", &kpack)
        .env("BUILDAH_OPTIONS", storage)
        .env("BUILDAH_ISOLATION", "chroot")
        .env("PUSH_OPTIONS", "--tls-verify=false");
    process::output(built)?;
    check_index(&repository)?;
    check_layers(&repository)?;
    for target in TARGETS {
        step(&format!("Pulling what is for {target}"));
        let there = pull(&repository, work, target, &["--override-variant", target])?;
        ensure!(
            there.len() == 1 && there[0].contains(target),
            "{target}: the image has {there:?}"
        );
        let root = work.join(target).join("rootfs/opt/rocm");
        process::run!("{kpack} verify --quiet {root} --arch {target}")?;
    }
    step("Pulling without a variant");
    let there = pull(&repository, work, "all", &[])?;
    ensure!(there.len() == 2, "the fallback has {there:?}");
    let root = work.join("all/rootfs/opt/rocm");
    process::run!("{kpack} verify --quiet {root}")?;
    Ok(())
}

/// Fetches what is for one GPU from an HTTP server, with the commands of the page.
fn fetch(kpack: &Path, work: &Path) -> Result<()> {
    step("Fetching one GPU's files by HTTP");
    let mut server = Command::new("python3");
    let server = server.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
    let port = free_port()?;
    let server = Server::start(server.arg(work.join("release")).arg(port.to_string()), port)?;
    let url = format!("http://127.0.0.1:{}", server.port);
    let page = fs::read_to_string(repository::root().join("docs/many-machines.md"))?;
    let commands = page
        .split_once("URL=https://example.org/12345-linux\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let (commands, _) = commands.context("docs/many-machines.md: no commands for one GPU")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = kpack.parent().into_iter().map(Path::to_owned);
    let path = std::env::join_paths(programs.chain(std::env::split_paths(&path)))?;
    // The second time, nothing is left to fetch.
    for _ in 0..2 {
        let fetched = cmd!(shell(), "sh -euc {commands}")
            .env("URL", &url)
            .env("PATH", &path);
        process::output(fetched)?;
        let check = "[ ! -e rocm/lib/.kpack/*gfx1030* ] && rm -r rocm";
        process::output(cmd!(shell(), "sh -euc {check}"))?;
    }
    ensure!(
        fs::read(work.join("list"))?.is_empty(),
        "files are fetched again"
    );
    Ok(())
}

/// Whether the index begins with an entry for everybody, and then has one for each target.
fn check_index(repository: &str) -> Result<()> {
    let raw = process::run!("skopeo inspect --tls-verify=false --raw docker://{repository}:7.14")?;
    let index: Value = serde_json::from_str(&raw)?;
    let entries = index["manifests"]
        .as_array()
        .context("a list of manifests")?;
    let variants = entries
        .iter()
        .map(|entry| entry["platform"]["variant"].as_str());
    let expected = [None, Some(TARGETS[0]), Some(TARGETS[1])];
    let variants = Vec::from_iter(variants);
    ensure!(
        variants == expected,
        "the index has the variants {variants:?}"
    );
    Ok(())
}

/// Whether the images share the layer of the host files, and that of everything has no layers of its own.
fn check_layers(repository: &str) -> Result<()> {
    let layers = |tag: &str| -> Result<Vec<String>> {
        let text =
            process::run!("skopeo inspect --tls-verify=false docker://{repository}:7.14-{tag}")?;
        let image: Value = serde_json::from_str(&text)?;
        let layers = image["LayersData"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let layer = |layer: &Value| {
            println!("   {tag}: {} bytes", layer["Size"]);
            layer["Digest"].as_str().unwrap_or_default().to_owned()
        };
        let mut found: Vec<String> = layers.iter().map(layer).collect();
        if found.is_empty() {
            let plain = image["Layers"].as_array().map_or(&[][..], Vec::as_slice);
            found = plain
                .iter()
                .filter_map(|l| Some(l.as_str()?.to_owned()))
                .collect();
        }
        Ok(found)
    };
    let (one, two, all) = (layers(TARGETS[0])?, layers(TARGETS[1])?, layers("all")?);
    ensure!(one.len() == 2 && two.len() == 2, "{one:?}, {two:?}");
    ensure!(one[0] == two[0], "they do not share the first layer");
    ensure!(
        all == [&one[0], &one[1], &two[1]].map(String::clone),
        "{all:?}"
    );
    Ok(())
}

/// Pulls an image and unpacks it; returns the names of the archives in it.
fn pull(repository: &str, work: &Path, name: &str, options: &[&str]) -> Result<Vec<String>> {
    let (layout, bundle) = (format!("oci-{name}"), work.join(name));
    process::run!(
        "skopeo {options...} copy --quiet --src-tls-verify=false docker://{repository}:7.14 oci:{layout}:x"
    )?;
    process::run!("umoci unpack --image {layout}:x {bundle}")?;
    let files = WalkDir::new(bundle.join("rootfs")).into_iter();
    let files = files.filter_map(|entry| entry.ok()?.into_path().to_str().map(str::to_owned));
    Ok(files
        .filter(|path| path.ends_with(".kpack") && !path.ends_with("/.kpack"))
        .collect())
}

fn registry(work: &Path) -> Result<Server> {
    let port = free_port()?;
    let configuration = format!(
        "version: 0.1\nstorage:\n  filesystem: {{rootdirectory: {}}}\nhttp: {{addr: \"127.0.0.1:{port}\"}}\n",
        work.join("registry").display()
    );
    fs::write(work.join("registry.yml"), configuration)?;
    let mut registry = Command::new("docker-registry");
    Server::start(registry.arg("serve").arg(work.join("registry.yml")), port)
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A server on the loopback interface, stopped on drop.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts it, and waits until it listens.
    pub(crate) fn start(command: &mut Command, port: u16) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn()?;
        let server = Self { child, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(
                started.elapsed() < Duration::from_secs(30),
                "{command:?} does not listen"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
