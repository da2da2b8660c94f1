//! `examples/trimmed-image`, and the layers of docs/trim.md: images with the code for one GPU, from a root that
//! debootstrap makes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::corpus;
use kpack_tests::require::{self, checked, fetched};
use xshell::cmd;

use crate::support::{output, prefix, root, run, shell, work};

/// The GPU of the example.
const ARCH: &str = "gfx1030";

/// A library in an image, trimmed in three ways.
const LAYERS: &str = "FROM localhost/base AS full
COPY librocrand.so /opt/
FROM full AS later
RUN --mount=type=bind,source=kpack,target=/usr/local/bin/kpack kpack trim --arch gfx1030 /opt
FROM localhost/base AS copied
COPY --from=later /opt /opt
";

#[test]
#[ignore = "needs root, buildah and debootstrap, and fetches a minimal Debian and its rocRAND"]
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
    let builder = Builder { work: work("trimmed-image"), run: tempfile::tempdir()? };
    let _directory = shell().push_dir(&builder.work);
    fs::copy(prefix().join("bin/kpack"), builder.work.join("kpack"))?;
    fs::hard_link(&base, builder.work.join("root.tar"))
        .or_else(|_| fs::copy(&base, builder.work.join("root.tar")).map(drop))?;
    builder.build("FROM scratch\nADD root.tar /\n", "base", &[])?;
    builder.example(original)?;
    builder.layers(original)?;
    Ok(fs::remove_dir_all(&builder.work)?)
}

struct Builder {
    /// The context of all builds.
    work: PathBuf,
    run: tempfile::TempDir,
}

impl Builder {
    /// Where buildah keeps its images.
    fn storage(&self) -> String {
        let (work, run) = (self.work.display(), self.run.path().display());
        format!("--root {work}/storage --runroot {run} --storage-driver vfs")
    }

    fn buildah(&self, arguments: &str) -> Result<String> {
        let command = format!("buildah {} {arguments}", self.storage());
        let command = cmd!(shell(), "sh -euc {command}").env("BUILDAH_ISOLATION", "chroot");
        Ok(output(command.env("SOURCE_DATE_EPOCH", "1700000000"))?.trim().to_owned())
    }

    fn build(&self, containerfile: &str, tag: &str, options: &[&str]) -> Result<String> {
        fs::write(self.work.join("Containerfile"), containerfile)?;
        let options = options.join(" ");
        self.buildah(&format!("build --quiet --layers --timestamp 0 {options} --tag {tag} ."))
    }

    /// The example, by the command that it names, gives the same image each time. Its library is the trimmed one.
    fn example(&self, original: &Path) -> Result<()> {
        let example = fs::read_to_string(root().join("examples/trimmed-image/Containerfile"))?;
        let command = example.lines().find_map(|line| line.strip_prefix("#   buildah build "));
        let command = command.context("the example names no command")?;
        ensure!(command.contains(&format!("ARCH={ARCH} ")), "{command}");
        let command = format!("build --quiet --no-cache --build-arg BASE=localhost/base {command}");
        fs::write(self.work.join("Containerfile"), &example)?;
        let images = [self.buildah(&command)?, self.buildah(&command)?];
        ensure!(images[0] == images[1], "two builds give {images:?}");

        let container = self.buildah(&format!("from --pull-never {}", images[0]))?;
        let image = PathBuf::from(self.buildah(&format!("mount {container}"))?);
        let (kpack, trimmed) = (self.work.join("kpack"), self.work.join("librocrand.so"));
        fs::copy(original, &trimmed)?;
        run!("{kpack} trim --quiet --arch {ARCH} {trimmed}")?;
        let library = image.join("usr/lib/x86_64-linux-gnu/librocrand.so.1").canonicalize()?;
        ensure!(fs::read(library)? == fs::read(&trimmed)?, "the image has another library");
        let note = image.join("usr/lib/.kpack-trimmed");
        ensure!(note.is_file(), "nothing says what was removed");
        self.buildah(&format!("rm {container}"))?;
        checked(&format!("two builds give the image {}", &images[0]));
        Ok(())
    }

    /// A later layer makes the image larger; a stage whose result is copied makes it smaller.
    fn layers(&self, original: &Path) -> Result<()> {
        fs::copy(original, self.work.join("librocrand.so"))?;
        let mut sizes = Vec::new();
        for stage in ["full", "later", "copied"] {
            self.build(LAYERS, stage, &["--target", stage])?;
            let archive = self.work.join(format!("{stage}.tar"));
            let to = archive.display();
            self.buildah(&format!(
                "push --quiet --disable-compression {stage} docker-archive:{to}"
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
