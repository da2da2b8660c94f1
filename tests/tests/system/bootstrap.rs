//! Given a Debian 12 that was made without security updates, when `cargo xtask bootstrap` installs the tools of the README's
//! commands, then it works whatever the state of the installed packages, or says which command helps.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kpack_tests::corpus;
use kpack_tests::process::{target_directory, try_run};
use kpack_tests::require::{self, checked, fetched};

use crate::support::{root as repository, run, work};

/// How much the README's commands may install, in units of 1,024 bytes, as dpkg counts.
const MOST: u64 = 700_000_000 / 1024;
/// The package whose update `perl` demands in the same version.
const BEHIND: &str = "perl-base";

const RELEASE: &str = "deb http://deb.debian.org/debian bookworm main\n";
const UPDATES: &str = "deb http://deb.debian.org/debian bookworm-updates main\n\
    deb http://deb.debian.org/debian-security bookworm-security main\n";

#[test]
#[ignore = "needs root and debootstrap, and fetches a minimal Debian and 200 MB of tools"]
fn tools_are_installed_whatever_the_state_of_packages() -> Result<()> {
    if !(require::root() && require::tools(&["debootstrap", "unshare"])) {
        return Ok(());
    }
    if run!("unshare --mount chroot / /bin/true").is_err() {
        require::missing("unshare and chroot are not permitted");
        return Ok(());
    }
    let Some(archive) = fetched(corpus::debian_12()) else {
        return Ok(());
    };
    let machine = Machine::new(&archive)?;
    if let Err(error) = machine.run("/xtask --help") {
        require::missing(&format!("programs of this machine do not run on Debian 12: {error:#}"));
        return Ok(());
    }
    machine.sources(RELEASE)?;
    machine.run("apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev")?;
    let before = machine.installed()?;

    // An interrupted installation, no lists, and a hold that is in nobody's way.
    machine.sources(&format!("{RELEASE}{UPDATES}"))?;
    machine.interrupt("login")?;
    machine.run(&format!("apt-mark hold {BEHIND}"))?;
    let shown = machine.run("/xtask bootstrap e2e test")?;
    ensure!(shown.contains("clang-19 "), "{shown}");
    let after = machine.installed()?;
    ensure!(before.is_subset_of(&after), "a package was removed");
    let size = after.size - before.size;
    ensure!(size < MOST, "the README's commands install {size} KiB (at most {MOST})");
    let status = machine.run("dpkg --audit")?;
    ensure!(status.is_empty(), "{status}");
    let shown = machine.run("/xtask bootstrap e2e test")?;
    ensure!(shown.contains("All tools are installed"), "{shown}");
    checked(&format!("{} MB for the README's commands", size * 1024 / 1_000_000));

    let upgraded = machine.run("apt-get --simulate --ignore-hold upgrade")?;
    if !upgraded.contains(&format!("Inst {BEHIND} ")) {
        require::skip(&format!("Debian 12 has no update of {BEHIND}"));
        return Ok(machine.remove()?);
    }
    // The hold is in the way now.
    let error = machine.run("/xtask bootstrap package").unwrap_err().to_string();
    let advice = error.lines().find_map(|line| line.split_once("again: ")).map(|(_, after)| after);
    let advice = advice.with_context(|| format!("no advice: {error}"))?;
    ensure!(advice.starts_with("apt-mark unhold ") && advice.contains(BEHIND), "{error}");
    ensure!(machine.installed()?.names == after.names, "something was installed");
    machine.run(advice)?;
    let shown = machine.run("/xtask bootstrap package")?;
    ensure!(shown.contains(&format!("   {BEHIND} ")), "not upgraded:\n{shown}");

    // The installed packages are newer than those of the sources.
    machine.run("apt-get remove --yes perl")?;
    machine.sources(RELEASE)?;
    let shown = machine.run("/xtask bootstrap package")?;
    ensure!(shown.contains("Debian's own"), "{shown}");
    machine.run("perl -e 1 && dpkg-shlibdeps --version")?;
    checked(&format!("with {BEHIND} on hold, upgraded, and newer than the sources"));
    Ok(machine.remove()?)
}

/// A root that a program sees as the root of its machine.
struct Machine {
    work: PathBuf,
    root: PathBuf,
    /// Packages that were fetched, which the next test need not fetch.
    archives: PathBuf,
}

/// The installed packages.
struct Installed {
    names: BTreeSet<String>,
    /// In units of 1,024 bytes.
    size: u64,
}

impl Installed {
    fn is_subset_of(&self, other: &Self) -> bool {
        self.names.is_subset(&other.names)
    }
}

impl Machine {
    fn new(archive: &Path) -> Result<Self> {
        let work = work("bootstrap");
        let (root, archives) = (work.join("root"), target_directory().join("corpus/apt-archives"));
        for directory in [&root, &archives] {
            fs::create_dir_all(directory)?;
        }
        run!("tar --extract --numeric-owner --file {archive} --directory {root}")?;
        let program = env::var_os("KPACK_TEST_XTASK");
        let program =
            program.context("KPACK_TEST_XTASK is not set: run cargo xtask test bootstrap")?;
        fs::copy(program, root.join("xtask"))?;
        for file in ["etc/resolv.conf", "etc/hosts"] {
            fs::copy(Path::new("/").join(file), root.join(file))?;
        }
        // Nobody needs what is installed here after a power failure.
        fs::write(root.join("etc/dpkg/dpkg.cfg.d/test"), "force-unsafe-io\n")?;
        // The program works in its repository.
        fs::create_dir_all(root.join(std::path::absolute(repository())?.strip_prefix("/")?))?;
        Ok(Self { work, root, archives })
    }

    /// What a command printed.
    fn run(&self, command: &str) -> Result<String> {
        let script = "mount --bind $2 $1/var/cache/apt/archives
            mount --rbind /dev $1/dev
            mount -t proc proc $1/proc
            exec chroot $1 sh -euc \"$3\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-euc", script, "sh"]).args([&self.root, &self.archives]);
        unshare.arg(command).env("HOME", "/root").env("TMPDIR", "/tmp").env("LC_ALL", "C");
        unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        try_run(unshare.env("DEBIAN_FRONTEND", "noninteractive").env_remove("CARGO_TARGET_DIR"))
    }

    /// Replaces the sources of packages, and forgets the lists of the others.
    fn sources(&self, sources: &str) -> Result<()> {
        fs::write(self.root.join("etc/apt/sources.list"), sources)?;
        self.run("rm -rf /var/lib/apt/lists/*").map(drop)
    }

    /// As if dpkg had been killed while it configured a package.
    fn interrupt(&self, package: &str) -> Result<()> {
        let dpkg = self.root.join("var/lib/dpkg");
        let status = fs::read_to_string(dpkg.join("status"))?;
        let first = format!("Package: {package}\n");
        let paragraph = status.split("\n\n").find(|paragraph| paragraph.starts_with(&first));
        let paragraph = paragraph.context(format!("{package} is not installed"))?;
        let half = paragraph.replace("install ok installed", "install ok half-configured");
        ensure!(half != paragraph, "{paragraph}");
        Ok(fs::write(dpkg.join("updates/0000"), format!("{half}\n"))?)
    }

    fn installed(&self) -> Result<Installed> {
        let format = "${Package} ${Installed-Size}\\n";
        let printed = self.run(&format!("dpkg-query --show --showformat '{format}'"))?;
        let packages = printed.lines().filter_map(|line| line.split_once(' '));
        let packages = Vec::from_iter(packages);
        Ok(Installed {
            names: packages.iter().map(|(name, _)| (*name).to_owned()).collect(),
            size: packages.iter().filter_map(|(_, size)| size.parse::<u64>().ok()).sum(),
        })
    }

    fn remove(self) -> std::io::Result<()> {
        fs::remove_dir_all(self.work)
    }
}
