//! The Dockerfiles of docs/trim.md, built as they stand, in a root that debootstrap makes and with the Rust of this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::corpus;
use kpack_tests::page::Page;
use kpack_tests::require::{self, checked, fetched};
use xshell::cmd;

use crate::support::{output, prefix, root, run, shell, work};

/// The GPU of the page's command.
const ARCH: &str = "gfx1030";

/// The images that the page names: how each is made here, from what is next to it.
const IMAGES: [(&str, &str); 4] = [
    ("docker.io/library/debian:12", "FROM scratch\nADD root.tar /\n"),
    ("docker.io/library/ubuntu:24.04", "FROM docker.io/library/debian:12\n"),
    // /opt/rocm is a link, as in AMD's images.
    (
        "docker.io/rocm/dev-ubuntu-24.04:latest",
        "FROM docker.io/library/debian:12
COPY librocrand.so /opt/rocm-7.2.0/lib/
RUN ln -s rocm-7.2.0 /opt/rocm
",
    ),
    // The toolchain and the crates are mounted when it is used. Optimised code would take minutes.
    (
        "docker.io/library/rust:bookworm",
        "FROM docker.io/library/debian:12
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
ENV PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/usr/local/cargo
ENV CARGO_NET_OFFLINE=true CARGO_PROFILE_RELEASE_OPT_LEVEL=0
",
    ),
];

#[test]
#[ignore = "needs root, buildah and debootstrap, and fetches a minimal Debian, gcc and rocRAND"]
fn an_image_for_one_gpu() -> Result<()> {
    if !(require::root() && require::tools(&["buildah", "debootstrap"])) {
        return Ok(());
    }
    let Some((base, libraries)) =
        fetched(corpus::debian_12()).zip(fetched(corpus::package("librocrand1")))
    else {
        return Ok(());
    };
    let original = &libraries.first().context("rocRAND has a library")?.path;
    let builder = Builder::new(&base, original)?;
    builder.installed(original)?;
    builder.copied()?;
    Ok(fs::remove_dir_all(&builder.work)?)
}

struct Builder {
    /// The context of all builds.
    work: PathBuf,
    run: tempfile::TempDir,
    /// The Dockerfiles of the page.
    dockerfiles: Vec<String>,
    /// The command of the page, without its program.
    command: String,
}

impl Builder {
    /// One who has the images of the page, and a clone of kpack.
    fn new(base: &Path, original: &Path) -> Result<Self> {
        let page = Page::read("docs/trim.md");
        let command = page.commands("docker build ");
        ensure!(command.contains(&format!("ARCH={ARCH} ")), "{command}");
        let command = command.trim().trim_start_matches("docker ").to_owned();
        let dockerfiles = page.blocks("dockerfile");
        let work = work("trimmed-image");
        let builder = Self { work, run: tempfile::tempdir()?, dockerfiles, command };
        let work = &builder.work;
        fs::copy(original, work.join("librocrand.so"))?;
        fs::hard_link(base, work.join("root.tar"))
            .or_else(|_| fs::copy(base, work.join("root.tar")).map(drop))?;
        let (root, clone) = (root(), work.join("kpack"));
        fs::create_dir(&clone)?;
        let archive = work.join("kpack.tar");
        run!("tar --create --file {archive} --exclude=target --exclude=.git --directory {root} .")?;
        run!("tar --extract --file {archive} --directory {clone}")?;
        fs::remove_file(archive)?;
        for (name, dockerfile) in IMAGES {
            builder.build(dockerfile, &format!("build --tag {name} ."))?;
        }
        Ok(builder)
    }

    fn buildah(&self, arguments: &str) -> Result<String> {
        let (work, run) = (self.work.display(), self.run.path().display());
        let storage = format!("--root {work}/storage --runroot {run} --storage-driver vfs");
        let command = format!("cd {work} && buildah {storage} {arguments}");
        let command = cmd!(shell(), "sh -euc {command}").env("BUILDAH_ISOLATION", "chroot");
        Ok(output(command)?.trim().to_owned())
    }

    /// Runs a command that begins with `build`. Returns the name of the image.
    fn build(&self, dockerfile: &str, command: &str) -> Result<String> {
        fs::write(self.work.join("Dockerfile"), dockerfile)?;
        let command = command.trim_start_matches("build ");
        let toolchain = cmd!(shell(), "rustc --print sysroot").read()?;
        let home = env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
        let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
        let cargo = cargo.context("HOME is not set")?;
        let cargo = cargo.display();
        self.buildah(&format!(
            "build --quiet --layers --pull-never --timestamp 0 --volume {toolchain}:/usr/local/rust:ro \
             --volume {cargo}/registry:/usr/local/cargo/registry {command}"
        ))
    }

    /// Trimmed in the layer that installs. Each build gives the same image, with the trimmed library.
    fn installed(&self, original: &Path) -> Result<()> {
        let dockerfile = &self.dockerfiles[0];
        let first = self.build(dockerfile, &self.command)?;
        // Not the stage that builds kpack, which is an image of its own.
        self.buildah(&format!("rmi {first}"))?;
        let image = self.build(dockerfile, &self.command)?;
        ensure!(first == image, "two builds give {first} and {image}");

        let container = self.buildah(&format!("from --pull-never {image}"))?;
        let root = PathBuf::from(self.buildah(&format!("mount {container}"))?);
        let (kpack, trimmed) = (prefix().join("bin/kpack"), self.work.join("trimmed.so"));
        fs::copy(original, &trimmed)?;
        run!("{kpack} trim --quiet --arch {ARCH} {trimmed}")?;
        let library = root.join("usr/lib/x86_64-linux-gnu/librocrand.so.1").canonicalize()?;
        ensure!(fs::read(library)? == fs::read(&trimmed)?, "the image has another library");
        ensure!(root.join("usr/lib/.kpack-trimmed").is_file(), "nothing says what was removed");
        self.buildah(&format!("rm {container}"))?;
        checked(&format!("two builds give the image {image}"));
        Ok(())
    }

    /// Copied from an image with ROCm: a stage whose result is copied makes the image smaller, a later layer larger.
    fn copied(&self) -> Result<()> {
        let (stage, _) = self.dockerfiles[0].split_once("\n\n").context("two stages")?;
        let dockerfile = format!("{stage}\n{}", self.dockerfiles[1]);
        let mut sizes = Vec::new();
        let later = self.command.replace("build ", "build --target full ");
        for image in [
            IMAGES[2].0.to_owned(),
            self.build(&dockerfile, &later)?,
            self.build(&dockerfile, &self.command)?,
        ] {
            let archive = self.work.join("image.tar");
            let to = archive.display();
            self.buildah(&format!(
                "push --quiet --disable-compression {image} docker-archive:{to}"
            ))?;
            sizes.push(fs::metadata(&archive)?.len());
            fs::remove_file(archive)?;
        }
        let (full, later, copied) = (sizes[0], sizes[1], sizes[2]);
        ensure!(copied < full && full < later, "full, in a later layer, copied: {sizes:?} bytes");
        checked(&format!("{full} bytes; trimmed in a later layer {later}, copied {copied}"));
        Ok(())
    }
}
