//! Debian's apt-get, whatever the state of the machine's packages.
//!
//! It upgrades an installed package only if a new one needs it, because a machine that lacks some updates is the usual case: a new
//! `perl` demands `perl-base` in its own version. It removes none, and leaves a package alone that is on hold.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kpack_tools::programs::{find_program, is_root};
use xshell::cmd;

use crate::{log, process, repository};

/// How long to wait for another apt-get: a machine that has just started often installs updates, and another task may install
/// its tools.
const PATIENCE: Duration = Duration::from_secs(600);

/// What apt-get would do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What it would fetch, `NAME=VERSION`: new packages, and new versions of installed ones.
    pub(crate) fetched: Vec<String>,
    /// The installed packages among them, `NAME OLD -> NEW`.
    pub(crate) upgraded: Vec<String>,
    /// The installed packages that would have to go.
    removed: Vec<String>,
}

impl Plan {
    /// From what `apt-get install --simulate` prints.
    fn parse(printed: &str) -> Self {
        let mut plan = Self::default();
        for line in printed.lines() {
            let words = Vec::from_iter(line.split_whitespace());
            let (name, old, new) = match words.as_slice() {
                ["Inst", name, old, new, ..] if old.starts_with('[') => (name, Some(old), new),
                ["Inst", name, new, ..] => (name, None, new),
                ["Remv", name, ..] => {
                    plan.removed.push((*name).to_owned());
                    continue;
                }
                _ => continue,
            };
            let new = new.trim_start_matches('(');
            plan.fetched.push(format!("{name}={new}"));
            if let Some(old) = old {
                let old = old.trim_matches(['[', ']']);
                plan.upgraded.push(format!("{name} {old} -> {new}"));
            }
        }
        plan
    }
}

/// Bytes of packages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) download: u64,
    pub(crate) installed: u64,
}

impl Sizes {
    /// The sum of what `apt-cache show` prints.
    fn parse(printed: &str) -> Self {
        let mut sum = Self::default();
        let mut seen = BTreeSet::new();
        for package in printed.split("\n\n") {
            let field = |key: &str| {
                let mut lines = package.lines();
                lines
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
                    .unwrap_or_default()
            };
            // Two archives may have the same version.
            if seen.insert(["Package", "Version", "Architecture"].map(field)) {
                sum.download += field("Size").parse::<u64>().unwrap_or(0);
                sum.installed += 1024 * field("Installed-Size").parse::<u64>().unwrap_or(0);
            }
        }
        sum
    }
}

/// apt-get with some sources of packages.
#[derive(Debug, Default)]
pub(crate) struct Apt {
    /// Options that replace the sources of the machine.
    sources: Vec<String>,
}

/// How to install these packages.
///
/// # Errors
/// apt-get is missing or not permitted, or the packages cannot be installed; the error says what blocks them.
pub(crate) fn plan(packages: &[&str]) -> Result<(Apt, Plan)> {
    let names = packages.join(" ");
    ensure!(
        find_program("apt-get").is_some(),
        "apt-get is missing; install the tools in these Debian packages by other means: {names}"
    );
    ensure!(
        is_root() || find_program("sudo").is_some(),
        "apt-get needs root, and sudo is missing; run this as root, and then the same command again: \
         apt-get update && apt-get install --yes --no-install-recommends {names}"
    );
    let apt = Apt::default();
    apt.update();
    apt.repair()?;
    let error = match apt.simulate(&["--no-remove"], packages) {
        Ok(plan) => return Ok((apt, plan)),
        Err(error) => error,
    };
    apt.explain_hold(packages)?;
    if let Some(debian) = Apt::of_debian()? {
        println!(
            "   The machine's sources of packages do not suffice; trying Debian's own, only this time"
        );
        debian.update();
        if let Ok(plan) = debian.simulate(&["--no-remove"], packages) {
            return Ok((debian, plan));
        }
    }
    if let Ok(Plan { removed, .. }) = apt.simulate(&[], packages)
        && !removed.is_empty()
    {
        bail!(
            "the tools conflict with these installed packages: {removed}; to remove these, run this, and then the same \
             command again: {sudo}apt-get remove {removed}",
            removed = removed.join(" "),
            sudo = sudo()
        );
    }
    Err(error).context(format!(
        "apt-get cannot install the tools from the sources in /etc/apt; correct these so that this succeeds, and then run the \
         same command again: {}apt-get install --no-install-recommends {names}",
        sudo()
    ))
}

impl Apt {
    /// With Debian's own sources in place of the machine's, if it runs Debian. An image that was made with security updates,
    /// but lists no source of them, has newer packages than its sources, and nothing else fits these.
    fn of_debian() -> Result<Option<Self>> {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let Some(sources) = debian_sources(&release) else {
            return Ok(None);
        };
        let file = repository::empty_directory("xtask/apt")?.join("debian.list");
        fs::write(&file, sources).with_context(|| file.display().to_string())?;
        let sources = [
            format!("--option=Dir::Etc::SourceList={}", file.display()),
            "--option=Dir::Etc::SourceParts=/dev/null".to_owned(),
            // The lists of the machine's sources stay.
            "--option=APT::Get::List-Cleanup=false".to_owned(),
        ];
        Ok(Some(Self { sources: sources.into() }))
    }

    /// Fetches the lists of packages. A third-party archive that does not respond need not stop us: only the install itself
    /// must succeed.
    fn update(&self) {
        // The suite of a release changes when the next one appears: from stable to oldstable.
        let options = ["--allow-releaseinfo-change-suite", "--option=APT::Update::Error-Mode=any"];
        if let Err(error) = self.run(&[&["update"], &options[..]].concat()) {
            let error = error.to_string();
            let why = error.lines().find(|line| line.starts_with("E: ") || line.starts_with("W: "));
            let why = why.unwrap_or(&error);
            println!("   apt-get update failed; continuing with the existing lists: {why}");
        }
    }

    /// Waits for another apt-get, and completes what an interrupted one left.
    fn repair(&self) -> Result<()> {
        const NOTHING: [&str; 3] = ["install", "--yes", "--no-remove"];
        if self.run(&NOTHING).is_ok() {
            return Ok(());
        }
        process::step("Completing an installation of packages that was interrupted");
        // With broken dependencies, it configures what it can.
        if let Err(error) =
            as_root(&["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
        {
            log::note(&format!("{error:#}"))?;
        }
        self.run(&[&NOTHING[..], &["--fix-broken"]].concat()).with_context(|| {
            format!(
                "packages of this machine are broken, and apt-get cannot repair them without removing others; run this, and \
                 then the same command again: {}sh -c 'dpkg --configure -a; apt-get install --fix-broken'",
                sudo()
            )
        })
    }

    fn simulate(&self, options: &[&str], packages: &[&str]) -> Result<Plan> {
        let sources = &self.sources;
        let printed = process::run!(
            "env LC_ALL=C apt-get --simulate {sources...} install --yes --no-install-recommends {options...} {packages...}"
        );
        Ok(Plan::parse(&printed?))
    }

    /// Fails if a package is on hold that the others need in another version.
    fn explain_hold(&self, packages: &[&str]) -> Result<()> {
        let held = process::run!("apt-mark showhold")?;
        let held = BTreeSet::from_iter(held.split_whitespace());
        let ignoring = ["--no-remove", "--ignore-hold", "--allow-change-held-packages"];
        let Ok(plan) = self.simulate(&ignoring, packages) else {
            return Ok(());
        };
        let upgraded = plan.upgraded.iter().filter(|package| {
            package.split_whitespace().next().is_some_and(|name| held.contains(name))
        });
        let upgraded = Vec::from_iter(upgraded);
        let names = upgraded.iter().filter_map(|package| package.split_whitespace().next());
        let names = Vec::from_iter(names).join(" ");
        for package in &upgraded {
            println!("   on hold: {package}");
        }
        ensure!(
            names.is_empty(),
            "the tools need other versions of packages that are on hold: {names}; run this, and then the same command again: \
             {}apt-mark unhold {names}",
            sudo()
        );
        Ok(())
    }

    pub(crate) fn sizes(&self, plan: &Plan) -> Result<Sizes> {
        let (sources, packages) = (&self.sources, &plan.fetched);
        if packages.is_empty() {
            return Ok(Sizes::default());
        }
        let printed = process::run!("apt-cache {sources...} show --no-all-versions {packages...}");
        Ok(Sizes::parse(&printed?))
    }

    /// Installs these packages and what they need.
    pub(crate) fn install(&self, packages: &[&str]) -> Result<()> {
        let install = ["install", "--yes", "--no-install-recommends", "--no-remove"];
        self.run(&[&install[..], packages].concat())
    }

    /// Runs apt-get as root. Only the wait for dpkg's lock is its own: it does not wait for those of the lists and of the
    /// packages that are fetched.
    fn run(&self, arguments: &[&str]) -> Result<()> {
        let wait = format!("--option=DPkg::Lock::Timeout={}", PATIENCE.as_secs());
        let mut command = vec!["apt-get", &wait];
        // An upgrade keeps a configuration that somebody changed, and asks nothing.
        command.extend([
            "--option=DPkg::Options::=--force-confdef",
            "--option=DPkg::Options::=--force-confold",
        ]);
        command.extend(self.sources.iter().map(String::as_str));
        command.extend(arguments);
        let started = Instant::now();
        loop {
            match as_root(&command) {
                Err(error)
                    if error.to_string().contains("Could not get lock")
                        && started.elapsed() < PATIENCE =>
                {
                    thread::sleep(Duration::from_secs(2));
                }
                result => return result,
            }
        }
    }
}

/// Debian's sources for a release, from `/etc/os-release`.
fn debian_sources(release: &str) -> Option<String> {
    let field = |name: &str| {
        let mut lines = release.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"'))
    };
    let suite = field("VERSION_CODENAME").filter(|_| field("ID") == Some("debian"))?;
    let signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
    let archive = "http://deb.debian.org";
    Some(format!(
        "deb {signed} {archive}/debian {suite} main\n\
         deb {signed} {archive}/debian {suite}-updates main\n\
         deb {signed} {archive}/debian-security {suite}-security main\n"
    ))
}

/// What a user who is not root writes before a command for root.
fn sudo() -> &'static str {
    if is_root() { "" } else { "sudo " }
}

/// Runs a command as root, through sudo if needed. The variables go through `env` since sudo drops the environment.
fn as_root(command: &[&str]) -> Result<()> {
    let sudo = sudo().trim();
    let words = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"];
    let words = [sudo].into_iter().filter(|word| !word.is_empty()).chain(words);
    let command = Vec::from_iter(words.chain(command.iter().copied()));
    let (first, rest) = command.split_first().context("a command is never empty")?;
    log::run(cmd!(process::shell(), "{first} {rest...}"))
}

#[cfg(test)]
mod tests {
    use super::{Plan, Sizes, debian_sources};

    #[test]
    fn what_apt_get_would_upgrade_and_remove_is_listed() {
        let printed = "Reading package lists...\n\
            Remv other [1]\n\
            Inst perl-base [5.36.0-7] (5.36.0-7+deb12u2 Debian:12.11/oldstable [amd64]) []\n\
            Inst perl (5.36.0-7+deb12u2 Debian:12.11/oldstable [amd64])\n\
            Conf perl-base (5.36.0-7+deb12u2 Debian:12.11/oldstable [amd64])\n";
        let plan = Plan::parse(printed);
        assert_eq!(plan.fetched, ["perl-base=5.36.0-7+deb12u2", "perl=5.36.0-7+deb12u2"]);
        assert_eq!(plan.upgraded, ["perl-base 5.36.0-7 -> 5.36.0-7+deb12u2"]);
        assert_eq!(plan.removed, ["other"]);
    }

    #[test]
    fn sizes_are_summed_once_for_each_version() {
        let one = "Package: a\nVersion: 1\nInstalled-Size: 2\nSize: 700\n";
        let other = "Package: b\nVersion: 1\nInstalled-Size: 3\nSize: 1\n";
        let sum = Sizes::parse(&[one, one, other].join("\n"));
        assert_eq!(sum, Sizes { download: 701, installed: 5 * 1024 });
    }

    #[test]
    fn sources_are_those_of_the_release() {
        let release = "PRETTY_NAME=\"Debian\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        let sources = debian_sources(release).unwrap();
        let suites = sources.lines().filter_map(|line| line.rsplit(' ').nth(1));
        assert!(suites.eq(["bookworm", "bookworm-updates", "bookworm-security"]), "{sources}");
        assert_eq!(debian_sources(&release.replace("=debian", "=ubuntu")), None);
    }
}
