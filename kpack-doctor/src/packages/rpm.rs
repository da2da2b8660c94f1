//! The packages in RPM's database.

use std::collections::BTreeSet;

use super::package::{
    Origin, Package, PackageLists, PackageManager, PackageTool, Unread, WantedFiles, is_plain,
};
use super::rpm_database::{self, RpmPackage};
use crate::root::Root;
use crate::text::small_text;

/// The files of databases that are not of SQLite, and what each is.
const OTHER_DATABASES: [(&str, &str); 2] = [
    ("Packages.db", "RPM's database is in the format ndb, which kpack does not read"),
    ("Packages", "RPM's database is in the format Berkeley DB, which kpack does not read"),
];

const DNF: PackageTool =
    PackageTool { name: "dnf", before_version: "-", reinstall: &["reinstall"] };

/// That of SUSE.
const ZYPPER: PackageTool =
    PackageTool { name: "zypper", before_version: "=", reinstall: &["install", "--force"] };

/// The packages in the database.
fn packages(root: &Root) -> Result<Vec<RpmPackage>, Unread> {
    let find = |name: &str| {
        let places = ["usr/lib/sysimage/rpm", "var/lib/rpm"].into_iter();
        let mut files = places.filter_map(|place| root.at(&format!("{place}/{name}")));
        files.find(|path| path.is_file())
    };
    let unread = |path, why| Unread { path, why, command: Some("rpm --query --file FILE") };
    let Some(database) = find("rpmdb.sqlite") else {
        let mut others = OTHER_DATABASES.into_iter();
        let other = others.find_map(|(name, why)| Some(unread(find(name)?, why)));
        return other.map_or(Ok(Vec::new()), Err);
    };
    let Some(mut packages) = rpm_database::read(&database) else {
        let why = "kpack cannot read RPM's database: it is damaged, or part of it is still in the write-ahead log";
        return Err(unread(database, why));
    };
    packages.retain(|own| [&own.name, &own.version].into_iter().all(|text| is_plain(text)));
    Ok(packages)
}

/// The program that installs packages here.
fn program(root: &Root) -> &'static PackageTool {
    let mut releases =
        ["etc/os-release", "usr/lib/os-release"].into_iter().filter_map(|path| root.at(path));
    let release = releases.find_map(|path| small_text(&path)).unwrap_or_default();
    let mut lines = release.lines().filter_map(|line| line.split_once('='));
    let is_suse = lines.any(|(key, ids)| ["ID", "ID_LIKE"].contains(&key) && ids.contains("suse"));
    if is_suse { &ZYPPER } else { &DNF }
}

/// The packages that are installed; none if the database cannot be read.
pub(super) fn installed(root: &Root) -> Vec<Origin> {
    let packages = packages(root).unwrap_or_default().into_iter();
    packages.map(|RpmPackage { name, version, .. }| origin(name, version)).collect()
}

fn origin(name: String, version: String) -> Origin {
    Origin { manager: PackageManager::Rpm, name, version }
}

/// The packages that list a file that is wanted.
pub(super) fn read(root: &Root, wanted: &WantedFiles<'_>) -> PackageLists {
    let packages = match packages(root) {
        Ok(packages) => packages,
        Err(unread) => return unread.into(),
    };
    let program = Some(program(root));
    let installed: BTreeSet<String> = packages.iter().map(|own| own.name.clone()).collect();
    let is_lacked = |(name, version): &(String, Option<String>)| {
        let is_sound = is_plain(name) && version.as_deref().is_none_or(is_plain);
        is_sound && !installed.contains(name)
    };
    let listing =
        packages.into_iter().filter_map(|RpmPackage { name, version, files, recommends }| {
            let files =
                wanted.among(files.iter().map(String::as_str), |path| Some(root.join(path)));
            let package = || Package {
                origin: origin(name, version),
                suffix: String::new(),
                program,
                files: files.clone(),
                lacks: recommends.into_iter().filter(is_lacked).collect(),
            };
            (!files.is_empty()).then(package)
        });
    listing.map(Ok).collect()
}
