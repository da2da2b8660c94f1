//! `cargo xtask containers`: follows docs/many-machines.md with the builds of three machines: packs and merges them, fetches
//! one GPU's files from an HTTP server, pushes the images of `examples/containers` to a registry on the loopback interface,
//! and pulls them as users do. Each time a HIP runtime gets the kernel.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, TargetCode, code_object};
use serde_json::Value;
use walkdir::WalkDir;
use xshell::{Cmd, cmd};

use crate::dist::Cargo;
use crate::e2e::code_object::CodeObject;
use crate::e2e::real_libraries::build_loader;
use crate::e2e::runtime::{Kind, Program, Runtime};
use crate::process::{self, Daemon, NotRun, shell, step};
use crate::{build, repository};

/// The programs that it runs, all of Debian.
const TOOLS: [&str; 7] =
    ["buildah", "skopeo", "umoci", "podman", "docker-registry", "curl", "python3"];

/// The machines of the page, and what each builds for.
const MACHINES: [(&str, &str); 3] =
    [("linux-a", "gfx1100"), ("linux-b", "gfx1101"), ("linux-c", "gfx942")];

/// The targets of the images, and the GPUs whose code each has: that of a group.
const TARGETS: [(&str, &[&str]); 2] =
    [("gfx1100", &["gfx1100", "gfx1101"]), ("gfx942", &["gfx942"])];

/// The directory of the library in an image.
const ROOT: &str = "opt/rocm";

/// Bytes of device code per target. The host file is some 20 KB.
const CODE: usize = 4 << 20;

/// Builds, pushes, pulls and verifies images.
///
/// # Errors
/// An image is not what the page says. [`NotRun`] without the tools, or where images cannot be built.
pub(crate) fn run() -> Result<()> {
    let mut tools = TOOLS.iter();
    if let Some(missing) = tools.find(|tool| process::find_program(tool).is_none()) {
        bail!(NotRun(format!(
            "{missing} is not installed; `cargo xtask bootstrap containers` installs it"
        )));
    }
    let kpack = build::helper(build::Profile::Release)?;
    let scratch = tempfile::tempdir()?;
    let reader = Reader::new(kpack, scratch.path())?;
    let _directory = shell().push_dir(&reader.work);
    reader.release()?;
    reader.fetch()?;
    let registry = registry(&reader.work)?;
    let repository = format!("127.0.0.1:{}/rocm", registry.port);
    reader.images(&repository)?;
    check_index(&repository)?;
    check_layers(&repository)?;
    for (target, targets) in TARGETS {
        step(&format!("Pulling what is for {target}"));
        reader.pull(&repository, target, &["--override-variant", target], targets)?;
    }
    step("Pulling without a variant");
    reader.pull(&repository, "all", &[], &MACHINES.map(|(_, target)| target))?;
    reader.pull_with_podman(&repository)
}

/// A reader of the page.
struct Reader {
    kpack: PathBuf,
    /// The directory in which the commands run.
    work: PathBuf,
    page: String,
    runtime: Runtime,
    /// A program that loads libraries.
    load: PathBuf,
}

impl Reader {
    fn new(kpack: PathBuf, work: &Path) -> Result<Self> {
        let page = repository::root().join("docs/many-machines.md");
        let rocm = work.join("installed");
        let loader = build::loader(&Cargo::System, build::Profile::Release)?;
        let loader = loader.join("librocm_kpack.so");
        fs::create_dir_all(rocm.join("lib"))?;
        fs::copy(loader, rocm.join("lib/librocm_kpack.so.0"))?;
        symlink(repository::root().join("kpack-runtime/include"), rocm.join("include"))?;
        let load = work.join("load");
        build_loader(&load)?;
        Ok(Self {
            kpack,
            page: fs::read_to_string(page)?,
            runtime: Runtime::build(&work.join("hip"), &rocm)?,
            load,
            work: work.to_owned(),
        })
    }

    /// The commands or the file of the page that begins with `start`.
    fn block(&self, start: &str) -> Result<&str> {
        let blocks = self.page.split("```").skip(1).step_by(2);
        let mut blocks = blocks.filter_map(|block| Some(block.split_once('\n')?.1));
        let block = blocks.find(|block| block.starts_with(start));
        block.with_context(|| format!("docs/many-machines.md: nothing begins with `{start}`"))
    }

    /// Commands of the page, to run in a directory.
    fn commands(&self, directory: &Path, commands: &str) -> Result<Cmd<'static>> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = self.kpack.parent().into_iter().map(Path::to_owned);
        let path = std::env::join_paths(programs.chain(std::env::split_paths(&path)))?;
        let commands = format!("cd {}\n{commands}", directory.display());
        Ok(cmd!(shell(), "sh -euc {commands}").env("PATH", path))
    }

    /// The builds of the machines, packed and merged by the commands of the page, as `release`. A directory is in place of
    /// the bucket.
    fn release(&self) -> Result<()> {
        step("Packing the builds of three machines, and merging them");
        for (machine, target) in MACHINES {
            let directory = self.work.join(machine);
            let library = directory.join("built/vec_lib/vec/stage/lib/libvec.so");
            self.build(&library, &[target])?;
            fs::write(directory.join("built/vec_lib/artifact_manifest.txt"), "vec/stage\n")?;
            let pack = self.block("kpack split --batch")?;
            let pack = pack.replace("linux-a", machine);
            process::output(self.commands(&directory, &pack)?)?;
            let prefix = self.work.join("bucket/shards/12345-linux");
            fs::create_dir_all(&prefix)?;
            fs::rename(directory.join("store"), prefix.join(machine))?;
        }
        fs::write(self.work.join("packaging.json"), self.block("{")?)?;
        // `aws s3 cp s3://bucket/FROM TO --recursive`
        let aws = "aws() { mkdir -p \"$4\" && cp -r \"${3#s3://}/.\" \"$4\"; }";
        let merge = format!("{aws}\n{}", self.block("for shard in")?);
        process::output(self.commands(&self.work, &merge)?)?;
        Ok(())
    }

    /// A library that registers its kernel with the HIP runtime.
    fn build(&self, library: &Path, targets: &[&str]) -> Result<()> {
        let code = targets.iter().map(|target| code(target));
        let hip = self.runtime.prefix.join("lib/libamdhip64.so");
        FatLibrary::new()
            .wrapper(Storage::Plain, code.collect::<Result<Vec<_>>>()?)
            .start_up(&["add"])
            .flag(&hip)
            .build(library)?;
        // The names of the fixture's own sources, which are temporary.
        process::run!("strip {library}").map(drop)
    }

    /// Checks that a HIP runtime gets the kernel of the library below `root` for a GPU.
    fn load(&self, root: &Path, target: &str) -> Result<()> {
        let program =
            Program { executable: self.load.clone(), libraries: vec!["lib/libvec.so".into()] };
        let scratch = self.work.join("scratch");
        let observed = self.runtime.run(root, &program, target, &scratch)?;
        let expected = Kind::Loaded(CodeObject::of(&code(target)?.1));
        let is_loaded = observed.events.iter().any(|event| event.kind == expected);
        ensure!(is_loaded, "{target}: {observed:?}");
        println!("   {}: loaded the kernel for {target}", root.display());
        Ok(())
    }

    /// Fetches what is for one GPU from an HTTP server.
    fn fetch(&self) -> Result<()> {
        step("Fetching one GPU's files by HTTP");
        let mut server = Command::new("python3");
        let server = server.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
        let port = free_port()?;
        let site = self.work.join("site");
        process::copy_tree(&self.work.join("release"), &site.join("12345-linux"))?;
        let server = server.arg(site).arg(port.to_string());
        let server = Server::start(server, port)?;
        let (public, own) = ("https://example.org", format!("http://127.0.0.1:{}", server.port));
        let commands = self.block("RUN=")?.replace(public, &own);
        // The second time, nothing is left to fetch.
        for _ in 0..2 {
            process::output(self.commands(&self.work, &commands)?)?;
            let root = self.work.join("rocm");
            check_archives(&root, &["gfx942"])?;
            self.load(&root, "gfx942")?;
        }
        let list = self.work.join("12345-linux/list");
        ensure!(fs::read(list)?.is_empty(), "files are fetched again");
        Ok(())
    }

    /// Builds the images, and one that is not split, for the sizes.
    fn images(&self, repository: &str) -> Result<()> {
        step("Building images, and pushing them to a registry");
        let storage = self.storage();
        let storage = &storage[..];
        let build = repository::root().join("examples/containers/build");
        let targets = TARGETS.map(|(target, _)| target);
        let built = cmd!(shell(), "{build} release {repository} 7.14 {targets...}")
            .env("KPACK", &self.kpack)
            .env("BUILDAH_OPTIONS", storage.join(" "))
            .env("BUILDAH_ISOLATION", "chroot")
            .env("PUSH_OPTIONS", "--tls-verify=false");
        process::output(built)?;
        let library = self.work.join("fat/opt/rocm/lib/libvec.so");
        self.build(&library, &MACHINES.map(|(_, target)| target))?;
        fs::write(self.work.join("fat/Containerfile"), "FROM scratch\nCOPY opt /opt\n")?;
        let tag = format!("{repository}:7.14-unsplit");
        process::run!("buildah {storage...} bud --quiet --timestamp 0 --tag {tag} fat")?;
        process::run!("buildah {storage...} push --quiet --tls-verify=false {tag} docker://{tag}")
            .map(drop)
    }

    /// Where buildah and podman keep their images.
    fn storage(&self) -> Vec<String> {
        let work = self.work.display();
        let options = format!("--root {work}/storage --runroot {work}/run --storage-driver vfs");
        options.split(' ').map(str::to_owned).collect()
    }

    /// Pulls an image and unpacks it; checks that it has the code for `targets`, and no other.
    fn pull(&self, repository: &str, name: &str, options: &[&str], targets: &[&str]) -> Result<()> {
        let (layout, bundle) = (format!("oci-{name}"), self.work.join(name));
        process::run!(
            "skopeo {options...} copy --quiet --src-tls-verify=false docker://{repository}:7.14 oci:{layout}:x"
        )?;
        process::run!("umoci unpack --image {layout}:x {bundle}")?;
        self.check_root(&bundle.join("rootfs").join(ROOT), targets)
    }

    /// Pulls the tag of a GPU with podman, by the command of the page, and from the index, by variant and without.
    fn pull_with_podman(&self, repository: &str) -> Result<()> {
        let command = self.page.split('`').find(|text| text.starts_with("podman pull "));
        let command = command.context("docs/many-machines.md: no `podman pull`")?;
        let (public, gpu) = ("registry.example.org/rocm", "$(kpack doctor --print-arch)");
        ensure!(command.contains(public) && command.contains(gpu), "{command}");
        let by_tag = command.replace(public, repository).replace(gpu, "gfx942");
        let all = MACHINES.map(|(_, target)| target);
        for (image, pull, targets) in [
            ("7.14-gfx942", by_tag, &["gfx942"][..]),
            ("7.14", format!("podman pull --variant gfx942 {repository}:7.14"), &["gfx942"]),
            ("7.14", format!("podman pull {repository}:7.14"), &all),
        ] {
            step(&format!("Running `{pull}`"));
            // Not the images that were built here.
            let storage = self.storage().join(" ").replace("/storage", "/podman");
            let options = format!("podman {storage}");
            let pull =
                pull.replacen("podman pull", &format!("{options} pull --tls-verify=false"), 1);
            process::output(self.commands(&self.work, &pull)?)?;
            let mount = format!("{options} image mount {repository}:{image}");
            let root = process::output(self.commands(&self.work, &mount)?)?;
            self.check_root(&Path::new(root.trim()).join(ROOT), targets)?;
            let remove = format!("{options} image unmount --all; {options} rmi --all --force");
            process::output(self.commands(&self.work, &remove)?)?;
        }
        Ok(())
    }

    /// Checks that an installed tree is sound, and has the code for `targets` alone.
    fn check_root(&self, root: &Path, targets: &[&str]) -> Result<()> {
        let kpack = &self.kpack;
        check_archives(root, targets)?;
        for target in targets {
            process::run!("{kpack} verify --quiet {root} --arch {target}")?;
            self.load(root, target)?;
        }
        Ok(())
    }
}

/// A code object whose bytes do not compress.
fn code(target: &str) -> Result<TargetCode> {
    let mut state = target.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte));
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let noise: Vec<u8> = noise.take(CODE).collect();
    Ok((target.to_owned(), code_object(target, &noise)?))
}

/// Checks that there is an archive for each of these targets, and no other.
fn check_archives(root: &Path, targets: &[&str]) -> Result<()> {
    let files = WalkDir::new(root).into_iter();
    let names = files.filter_map(|entry| entry.ok()?.file_name().to_str().map(str::to_owned));
    let mut found: Vec<String> =
        names.filter(|name| name.len() > 6 && name.ends_with(".kpack")).collect();
    found.sort();
    let expected: Vec<String> =
        targets.iter().map(|target| format!("vec_lib_{target}.kpack")).collect();
    ensure!(found == expected, "{}: {found:?} (expected {expected:?})", root.display());
    Ok(())
}

/// Whether the index begins with an entry for everybody, and then has one for each target.
fn check_index(repository: &str) -> Result<()> {
    let raw = process::run!("skopeo inspect --tls-verify=false --raw docker://{repository}:7.14")?;
    let index: Value = serde_json::from_str(&raw)?;
    let entries = index["manifests"].as_array().context("a list of manifests")?;
    let variants = entries.iter().map(|entry| entry["platform"]["variant"].as_str());
    let expected = [None, Some(TARGETS[0].0), Some(TARGETS[1].0)];
    let variants = Vec::from_iter(variants);
    ensure!(variants == expected, "the index has the variants {variants:?}");
    Ok(())
}

/// Whether the images share the layer of the host files, and that of everything has no layers of its own. Prints sizes.
fn check_layers(repository: &str) -> Result<()> {
    println!("   image        MB to pull");
    let layers = |tag: &str| -> Result<Vec<String>> {
        let image = format!("docker://{repository}:7.14-{tag}");
        let text = process::run!("skopeo inspect --tls-verify=false --raw {image}")?;
        let manifest: Value = serde_json::from_str(&text)?;
        let layers = manifest["layers"].as_array().context("layers")?;
        let sizes = layers.iter().filter_map(|layer| layer["size"].as_f64());
        println!("   {tag:<10} {:>8.2}", sizes.sum::<f64>() / 1e6);
        let digests = layers.iter().filter_map(|layer| layer["digest"].as_str());
        Ok(digests.map(str::to_owned).collect())
    };
    layers("unsplit")?;
    let [one, two] = TARGETS.map(|(target, _)| layers(target));
    let (one, two, all) = (one?, two?, layers("all")?);
    ensure!(one.len() == 2 && two.len() == 2, "{one:?}, {two:?}");
    ensure!(one[0] == two[0], "they do not share the first layer");
    ensure!(all == [&one[0], &one[1], &two[1]].map(String::clone), "{all:?}");
    Ok(())
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
    _process: Daemon,
    port: u16,
}

impl Server {
    /// Starts it, and waits until it listens.
    pub(crate) fn start(command: &mut Command, port: u16) -> Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = Daemon(command.stderr(Stdio::null()).spawn()?);
        let listens = || Ok(TcpStream::connect(("127.0.0.1", port)).is_ok());
        process::wait(&format!("{command:?} does not listen"), listens)?;
        Ok(Self { _process: process, port })
    }
}
