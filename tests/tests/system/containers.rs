//! docs/many-machines.md with the builds of three machines: they are packed and merged, one GPU's files are fetched
//! from an HTTP server, the images of `examples/containers` are pushed to a registry on the loopback interface,
//! and pulled as users do. Each time a HIP runtime gets the kernel.

mod trimmed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, TargetCode, code_object};
use kpack_tests::require::{self, checked};
use serde_json::Value;
use walkdir::WalkDir;
use xshell::{Cmd, cmd};

use crate::hip::project::runtime;
use crate::hip::runtime::{CodeObject, Kind, Program, build_load};
use crate::support::{Server, copy, output, prefix, root, run, shell, work};

/// The programs for images, all of Debian.
const TOOLS: [&str; 5] = ["buildah", "skopeo", "umoci", "podman", "docker-registry"];

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

#[test]
#[ignore = "needs curl and Python"]
fn one_gpus_files_by_http() -> Result<()> {
    if require::tools(&["curl", "python3"]) { reader().fetch() } else { Ok(()) }
}

#[test]
#[ignore = "needs buildah, skopeo, umoci, podman and docker-registry"]
fn images_with_a_layer_for_each_gpu() -> Result<()> {
    if !require::tools(&TOOLS) {
        return Ok(());
    }
    let reader = reader();
    let _directory = shell().push_dir(&reader.work);
    let registry = registry(&reader.work)?;
    // Podman rejects a run directory of more than 50 bytes, and cargo's target directory may be anywhere.
    let run = tempfile::tempdir()?;
    let repository = format!("127.0.0.1:{}/rocm", registry.port);
    reader.images(&repository, run.path())?;
    check_index(&repository)?;
    check_layers(&repository)?;
    for (target, targets) in TARGETS {
        reader
            .pull(&repository, target, &["--override-variant", target], targets)
            .with_context(|| format!("pulling what is for {target}"))?;
    }
    let all = MACHINES.map(|(_, target)| target);
    reader.pull(&repository, "all", &[], &all).context("pulling without a variant")?;
    reader.pull_with_podman(&repository, run.path())
}

/// A reader of the page.
struct Reader {
    kpack: PathBuf,
    /// The directory in which the commands run.
    work: PathBuf,
    page: String,
    /// A program that loads libraries.
    load: PathBuf,
}

/// One who has the release, which all tests share.
fn reader() -> &'static Reader {
    static READER: LazyLock<Reader> =
        LazyLock::new(|| Reader::new().unwrap_or_else(|error| panic!("the release: {error:#}")));
    &READER
}

impl Reader {
    fn new() -> Result<Self> {
        let work = work("containers");
        let load = work.join("load");
        build_load(&load)?;
        let kpack = prefix().join("bin/kpack");
        let page = fs::read_to_string(root().join("docs/many-machines.md"))?;
        let reader = Self { kpack, page, load, work };
        reader.release()?;
        Ok(reader)
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

    /// The builds of the machines, packed and merged by the commands of the page, as `release`.
    fn release(&self) -> Result<()> {
        for (machine, target) in MACHINES {
            let directory = self.work.join(machine);
            let library = directory.join("built/vec_lib/vec/stage/lib/libvec.so");
            self.build(&library, &[target])?;
            fs::write(directory.join("built/vec_lib/artifact_manifest.txt"), "vec/stage\n")?;
            let pack = self.block("kpack artifact split --batch")?;
            let pack = pack.replace("linux-a", machine);
            output(self.commands(&directory, &pack)?)?;
            let fetched = self.work.join("fetched");
            fs::create_dir_all(&fetched)?;
            fs::rename(directory.join("store"), fetched.join(machine))?;
        }
        fs::write(self.work.join("packaging.json"), self.block("{")?)?;
        output(self.commands(&self.work, self.block("for shard in")?)?)?;
        Ok(())
    }

    /// A library that registers its kernel with the HIP runtime.
    fn build(&self, library: &Path, targets: &[&str]) -> Result<()> {
        let code = targets.iter().map(|target| code(target));
        let hip = runtime().prefix.join("lib/libamdhip64.so");
        FatLibrary::new()
            .wrapper(Storage::Plain, code.collect::<Result<Vec<_>>>()?)
            .start_up(&["add"])
            .flag(&hip)
            .build(library)?;
        // The names of the fixture's own sources, which are temporary.
        run!("strip {library}").map(drop)
    }

    /// Checks that a HIP runtime gets the kernel of the library below `root` for a GPU.
    fn load(&self, root: &Path, target: &str) -> Result<()> {
        let program =
            Program { executable: self.load.clone(), libraries: vec!["lib/libvec.so".into()] };
        let scratch = tempfile::tempdir()?;
        let observed = runtime().run(root, &program, target, scratch.path())?;
        let expected = Kind::Loaded(CodeObject::of(&code(target)?.1));
        let is_loaded = observed.events.iter().any(|event| event.kind == expected);
        ensure!(is_loaded, "{target}: {observed:?}");
        Ok(())
    }

    /// Fetches what is for one GPU from an HTTP server.
    fn fetch(&self) -> Result<()> {
        let site = self.work.join("site");
        fs::create_dir(&site)?;
        copy(self.work.join("release"), site.join("12345-linux"));
        let server = Server::start(|port| {
            let mut server = Command::new("python3");
            server.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]);
            server.arg(&site).arg(port.to_string());
            Ok(server)
        })?;
        let (public, own) = ("https://example.org", format!("http://127.0.0.1:{}", server.port));
        let commands = self.block("RUN=")?.replace(public, &own);
        // The second time, nothing is left to fetch.
        for _ in 0..2 {
            output(self.commands(&self.work, &commands)?)?;
            let root = self.work.join("rocm");
            check_archives(&root, &["gfx942"])?;
            self.load(&root, "gfx942")?;
        }
        let list = self.work.join("12345-linux/list");
        ensure!(fs::read(list)?.is_empty(), "files are fetched again");
        Ok(())
    }

    /// Builds the images, and one that is not split, for the sizes.
    fn images(&self, repository: &str, run: &Path) -> Result<()> {
        let storage = self.storage(run);
        let storage = &storage[..];
        let build = root().join("examples/containers/build");
        let targets = TARGETS.map(|(target, _)| target);
        let built = cmd!(shell(), "{build} release {repository} 7.14 {targets...}")
            .env("KPACK", &self.kpack)
            .env("BUILDAH_OPTIONS", storage.join(" "))
            .env("BUILDAH_ISOLATION", "chroot")
            .env("PUSH_OPTIONS", "--tls-verify=false");
        output(built)?;
        let library = self.work.join("fat/opt/rocm/lib/libvec.so");
        self.build(&library, &MACHINES.map(|(_, target)| target))?;
        fs::write(self.work.join("fat/Containerfile"), "FROM scratch\nCOPY opt /opt\n")?;
        let tag = format!("{repository}:7.14-unsplit");
        run!("buildah {storage...} bud --quiet --timestamp 0 --tag {tag} fat")?;
        run!("buildah {storage...} push --quiet --tls-verify=false {tag} docker://{tag}").map(drop)
    }

    /// Where buildah and podman keep their images, and what belongs to a run.
    fn storage(&self, run: &Path) -> Vec<String> {
        let (work, run) = (self.work.display(), run.display());
        let options = format!("--root {work}/storage --runroot {run} --storage-driver vfs");
        options.split(' ').map(str::to_owned).collect()
    }

    /// Pulls an image and unpacks it; checks that it has the code for `targets`, and no other.
    fn pull(&self, repository: &str, name: &str, options: &[&str], targets: &[&str]) -> Result<()> {
        let (layout, bundle) = (format!("oci-{name}"), self.work.join(name));
        run!(
            "skopeo {options...} copy --quiet --src-tls-verify=false docker://{repository}:7.14 oci:{layout}:x"
        )?;
        run!("umoci unpack --image {layout}:x {bundle}")?;
        self.check_root(&bundle.join("rootfs").join(ROOT), targets)
    }

    /// Pulls the tag of a GPU with podman, by the command of the page, and from the index, by variant and without.
    fn pull_with_podman(&self, repository: &str, run: &Path) -> Result<()> {
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
            // Not the images that were built here.
            let storage = self.storage(run).join(" ").replace("/storage", "/podman");
            let options = format!("podman {storage}");
            let pull =
                pull.replacen("podman pull", &format!("{options} pull --tls-verify=false"), 1);
            output(self.commands(&self.work, &pull)?)?;
            let mount = format!("{options} image mount {repository}:{image}");
            let root = output(self.commands(&self.work, &mount)?)?;
            self.check_root(&Path::new(root.trim()).join(ROOT), targets)?;
            let remove = format!("{options} image unmount --all; {options} rmi --all --force");
            output(self.commands(&self.work, &remove)?)?;
        }
        Ok(())
    }

    /// Checks that an installed tree is sound, and has the code for `targets` alone.
    fn check_root(&self, root: &Path, targets: &[&str]) -> Result<()> {
        let kpack = &self.kpack;
        check_archives(root, targets)?;
        for target in targets {
            run!("{kpack} verify --quiet {root} --arch {target}")?;
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
    let raw = run!("skopeo inspect --tls-verify=false --raw docker://{repository}:7.14")?;
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
    let mut sizes_of_pulls = Vec::new();
    let mut layers = |tag: &str| -> Result<Vec<String>> {
        let image = format!("docker://{repository}:7.14-{tag}");
        let text = run!("skopeo inspect --tls-verify=false --raw {image}")?;
        let manifest: Value = serde_json::from_str(&text)?;
        let layers = manifest["layers"].as_array().context("layers")?;
        let sizes = layers.iter().filter_map(|layer| layer["size"].as_f64());
        sizes_of_pulls.push(format!("{tag} {:.2} MB", sizes.sum::<f64>() / 1e6));
        let digests = layers.iter().filter_map(|layer| layer["digest"].as_str());
        Ok(digests.map(str::to_owned).collect())
    };
    layers("unsplit")?;
    let [one, two] = TARGETS.map(|(target, _)| layers(target));
    let (one, two, all) = (one?, two?, layers("all")?);
    ensure!(one.len() == 2 && two.len() == 2, "{one:?}, {two:?}");
    ensure!(one[0] == two[0], "they do not share the first layer");
    ensure!(all == [&one[0], &one[1], &two[1]].map(String::clone), "{all:?}");
    checked(&format!("to pull: {}", sizes_of_pulls.join(", ")));
    Ok(())
}

fn registry(work: &Path) -> Result<Server> {
    Server::start(|port| {
        let configuration = format!(
            "version: 0.1\nstorage:\n  filesystem: {{rootdirectory: {}}}\nhttp: {{addr: \"127.0.0.1:{port}\"}}\n",
            work.join("registry").display()
        );
        fs::write(work.join("registry.yml"), configuration)?;
        let mut registry = Command::new("docker-registry");
        registry.arg("serve").arg(work.join("registry.yml"));
        Ok(registry)
    })
}
