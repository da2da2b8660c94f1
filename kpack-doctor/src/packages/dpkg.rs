//! The packages of dpkg: what is installed, by its `status`, and the files of each package, by the lists in `info`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kpack_core::parallel;

use super::package::{
    MAX_LIST, Origin, Package, PackageLists, PackageManager, PackageTool, Unread, WantedFiles,
    entries, is_plain,
};
use crate::root::Root;
use crate::text::{lossy_text, small_text};

/// The largest `status`, in bytes.
const MAX_STATUS: u64 = 64 << 20;

const SEARCH: Option<&str> = Some("dpkg --search FILE");

const APT: PackageTool =
    PackageTool { name: "apt-get", before_version: "=", reinstall: &["install", "--reinstall"] };

/// An installed package. One can be installed for several architectures, in several versions.
struct DebianPackage {
    version: String,
    architecture: String,
    /// Whether packages of other architectures can use it.
    is_for_all: bool,
    recommends: String,
}

/// The installed packages by name, and the architecture of the system, if others are known.
struct Status {
    installed: BTreeMap<String, Vec<DebianPackage>>,
    /// dpkg writes the list of architectures when the first foreign one is added, and the system's own one is first.
    architecture: Option<String>,
}

impl Status {
    /// `None` if there is no database.
    fn read(root: &Root) -> Result<Option<Self>, Unread> {
        let Some(status) = root.at("var/lib/dpkg/status") else { return Ok(None) };
        let Some(text_of_status) = lossy_text(&status, MAX_STATUS) else {
            let why = "dpkg's database cannot be read";
            return Err(Unread { path: status, why, command: SEARCH });
        };
        let mut installed: BTreeMap<String, Vec<DebianPackage>> = BTreeMap::new();
        for paragraph in text_of_status.split("\n\n") {
            let field = |name: &str| {
                let mut lines = paragraph.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
            };
            if let (Some(name), Some(version)) = (field("Package"), field("Version"))
                && field("Status").is_some_and(|status| status.ends_with(" installed"))
                && [name, version].into_iter().all(is_plain)
            {
                let architecture = field("Architecture").unwrap_or_default();
                installed.entry(name.to_owned()).or_default().push(DebianPackage {
                    version: version.to_owned(),
                    architecture: architecture.to_owned(),
                    is_for_all: architecture == "all" || field("Multi-Arch") == Some("foreign"),
                    recommends: field("Recommends").unwrap_or_default().to_owned(),
                });
            }
        }
        let architectures = root.at("var/lib/dpkg/arch").and_then(|path| small_text(&path));
        let architecture =
            architectures.and_then(|text| Some(text.lines().next()?.trim().to_owned()));
        Ok(Some(Self { installed, architecture }))
    }

    /// What comes after the name of a package that is not for the system's own architecture.
    fn suffix(&self, own: &DebianPackage) -> String {
        let is_foreign =
            self.architecture.as_ref().is_some_and(|system| *system != own.architecture)
                && own.architecture != "all"
                && is_plain(&own.architecture);
        if is_foreign { format!(":{}", own.architecture) } else { String::new() }
    }

    fn origin(&self, name: &str, own: &DebianPackage) -> Origin {
        Origin {
            manager: PackageManager::Dpkg,
            name: format!("{name}{}", self.suffix(own)),
            version: own.version.clone(),
        }
    }

    /// The package whose list of files is at `path`, if it lists a file that is wanted.
    fn package(
        &self,
        path: PathBuf,
        root: &Root,
        wanted: &WantedFiles<'_>,
    ) -> Option<Result<Package, Unread>> {
        let list = path.file_name()?.to_string_lossy();
        let name = list.strip_suffix(".list")?;
        // Only the lists of packages that may be installed for several architectures name theirs.
        let (name, architecture) = match name.split_once(':') {
            Some((name, architecture)) => (name, Some(architecture)),
            None => (name, None),
        };
        let mut packages = self.installed.get(name)?.iter();
        let own = packages.find(|own| architecture.is_none_or(|name| own.architecture == name))?;
        let origin = self.origin(name, own);
        let Some(list) = lossy_text(&path, MAX_LIST) else {
            let why = "this list of a package's files cannot be read";
            return Some(Err(Unread { path, why, command: SEARCH }));
        };
        let files = wanted.among(list.lines(), |line| Some(root.join(line)));
        if files.is_empty() {
            return None;
        }
        let serves =
            |other: &DebianPackage| other.is_for_all || other.architecture == own.architecture;
        let is_there = |name: &str| self.installed.get(name).into_iter().flatten().any(serves);
        let lacks = recommended(&own.recommends).filter(|(name, _)| !is_there(name)).collect();
        let suffix = self.suffix(own);
        Some(Ok(Package { origin, suffix, program: Some(&APT), files, lacks }))
    }
}

/// The packages that are installed; none if the database cannot be read.
pub(super) fn installed(root: &Root) -> Vec<Origin> {
    let Ok(Some(status)) = Status::read(root) else { return Vec::new() };
    let packages = status.installed.iter();
    packages.flat_map(|(name, all)| all.iter().map(|own| status.origin(name, own))).collect()
}

/// The packages that list a file that is wanted.
pub(super) fn read(root: &Root, wanted: &WantedFiles<'_>) -> PackageLists {
    let status = match Status::read(root) {
        Ok(Some(status)) => status,
        Ok(None) => return PackageLists::default(),
        Err(unread) => return unread.into(),
    };
    let Some(info) = root.at("var/lib/dpkg/info").filter(|_| !status.installed.is_empty()) else {
        return PackageLists::default();
    };
    let Ok(lists) = entries(&info) else {
        let why = "dpkg's lists of the files of packages cannot be listed";
        return Unread { path: info, why, command: SEARCH }.into();
    };
    // dpkg writes no links there.
    let lists = Vec::from_iter(
        lists
            .into_iter()
            .filter(|list| list.file_type().is_ok_and(|kind| kind.is_file()))
            .map(|list| list.path()),
    );
    let read = parallel::map(lists, |path| status.package(path, root, wanted));
    read.into_iter().flatten().collect()
}

/// What a field like `a (= 1) | b, c` asks for first of all: `a` and `c`, with the versions that alone are accepted.
fn recommended(field: &str) -> impl Iterator<Item = (String, Option<String>)> {
    let groups = field.split(',');
    groups.filter_map(|group| {
        let text = group.split('|').next()?.trim();
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let version = rest
            .trim()
            .strip_prefix("(=")
            .and_then(|rest| rest.strip_suffix(')'))
            .map(|version| version.trim().to_owned());
        let is_sound = is_plain(name) && version.as_ref().is_none_or(|version| is_plain(version));
        is_sound.then(|| (name.to_owned(), version))
    })
}
