//! A wheel as a ZIP archive: where its members are installed, and whether they are what RECORD says.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use kpack_format::marker::SECTION_NAME;
use memchr::memmem::Finder;
use zip::ZipArchive;
use zip::result::ZipError;

use super::members::{
    Member, check_end, check_size, damaged, duplicate, in_member, member_error, members, unpacked,
    with_memory, zip_error,
};
use super::metadata::Fields;
use super::name::{WheelName, same_project, same_version};
use super::record::{self, Digest, Row};
use super::variant_json;
use kpack_core::elf::FAT_SECTION;
use kpack_core::files::{HostFormat, SharedFile, with_slashes};
use kpack_core::parallel;
use kpack_core::publish::{self, Directory};
use kpack_core::{Error, Reason, ids};
use kpack_split::elf::DeviceCode;
use kpack_split::input::{self, LinkedBinary, or_refused};
use kpack_split::pe::{CODE_SECTIONS, MARKER_SECTION};
use kpack_tree::databases::recognise;
use kpack_tree::place::Place;

/// The signatures of RECORD. No installer reads them, and a changed RECORD contradicts them.
const SIGNATURES: [&str; 2] = ["RECORD.jws", "RECORD.p7s"];

/// Where installers put the files in the data directory.
const SCHEMES: [&str; 5] = ["purelib", "platlib", "headers", "scripts", "data"];

/// Fields that a wheel has once. Installers that find two disagree about which one counts.
const SINGLE: [&str; 5] =
    ["Metadata-Version", "Name", "Version", "Wheel-Version", "Root-Is-Purelib"];

/// The metadata that must fit into memory.
const MAX_METADATA: u64 = 16 << 20;

/// A wheel.
pub(super) struct Wheel {
    pub(super) path: PathBuf,
    pub(super) name: WheelName,
    /// Its size in bytes.
    pub(super) size: u64,
    /// Its members, in their order; directories are left out.
    pub(super) members: Vec<Member>,
    /// The directory of its metadata.
    pub(super) dist_info: String,
    pub(super) metadata: Fields,
    pub(super) wheel: Fields,
    record: BTreeMap<String, Row>,
    zip: ZipArchive<SharedFile>,
}

/// The sections that a member may have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sections {
    /// That of a marker: it may be a split binary.
    pub(super) marker: bool,
    /// That of device code.
    pub(super) code: bool,
}

/// The place in a Python environment where a member is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// In `site-packages`, at this path.
    Site(SitePackages, PathBuf),
    /// Elsewhere: a script, a header, or data.
    Elsewhere,
}

/// The two kinds of `site-packages`, which some systems keep apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SitePackages {
    Purelib,
    Platlib,
}

impl SitePackages {
    /// Whether it is the one for files that are the same on all platforms.
    pub(super) fn is_pure(self) -> bool {
        self == Self::Purelib
    }

    fn name(self) -> &'static str {
        match self {
            Self::Purelib => "purelib",
            Self::Platlib => "platlib",
        }
    }
}

impl Wheel {
    /// Opens a wheel that installers accept.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let wheel = Self::parse(path)?;
        if let Some((member, text)) = wheel.not_installed().next() {
            return Err(member_error(path, &member.name, &text));
        }
        Ok(wheel)
    }

    /// Opens a wheel, and checks the names of its members and its metadata, but not all that installers do: see
    /// [`not_installed`](Self::not_installed).
    pub(super) fn parse(path: &Path) -> Result<Self, Error> {
        let name = WheelName::of(path)?;
        let file = input::open(path)?;
        let size = file.metadata().map_err(|e| Error::io(path, "read", e))?;
        let window = SharedFile::new(file);
        let failed = |error| zip_error(path, None, error);
        let mut zip = ZipArchive::new(window.clone()).map_err(failed)?;
        if zip.has_duplicate_names() {
            return Err(duplicate(path, window)?);
        }
        zip.validate_header_consistency().map_err(failed)?;
        check_end(path, (window, size.len()), &zip)?;
        let members = members(path, &zip)?;
        check_size(path, &members, size.len())?;
        let dist_info = dist_info(path, &name, &members)?;
        let mut wheel = Self {
            path: path.to_owned(),
            name,
            size: size.len(),
            members,
            dist_info,
            metadata: Fields::default(),
            wheel: Fields::default(),
            record: BTreeMap::new(),
            zip,
        };
        wheel.metadata = wheel.fields("METADATA")?;
        wheel.wheel = wheel.fields("WHEEL")?;
        let record = wheel.bytes(&wheel.in_dist_info("RECORD"))?;
        wheel.record = record::parse(&record).map_err(|text| wheel.refused("RECORD", text))?;
        wheel.check_metadata()?;
        wheel.check_places()?;
        wheel.check_record()?;
        Ok(wheel)
    }

    /// The path of a file of its metadata.
    pub(super) fn in_dist_info(&self, file: &str) -> String {
        format!("{}/{file}", self.dist_info)
    }

    /// A field that must be there.
    pub(super) fn required(&self, name: &'static str) -> Result<&str, Error> {
        let missing = || self.refused("METADATA", format!("has no field `{name}`"));
        self.metadata.get(name).ok_or_else(missing)
    }

    /// An error in a file of its metadata.
    pub(super) fn refused(&self, file: &str, text: impl Into<Reason>) -> Error {
        member_error(&self.path, &self.in_dist_info(file), text)
    }

    fn fields(&self, file: &str) -> Result<Fields, Error> {
        let bytes = self.bytes(&self.in_dist_info(file))?;
        let fields = Fields::parse(bytes).map_err(|text| self.refused(file, text))?;
        match SINGLE.iter().find(|name| fields.all(name).count() > 1) {
            None => Ok(fields),
            Some(name) => {
                let values = fields.all(name).collect::<Vec<_>>().join("` and `");
                let text = format!(
                    "has the field `{name}` more than once (`{values}`); build the wheel again"
                );
                Err(self.refused(file, text))
            }
        }
    }

    /// Checks that name, version and format are what the file name says, and what kpack knows.
    fn check_metadata(&self) -> Result<(), Error> {
        let (name, version) = (self.required("Name")?, self.required("Version")?);
        if !same_project(name, &self.name.distribution)
            || !same_version(version, &self.name.version)
        {
            let text = format!(
                "is for {name} {version} (expected {} {}, as the file name says)",
                self.name.distribution, self.name.version
            );
            let file = self.in_dist_info("METADATA");
            return Err(in_member(ids::WHEEL_NAME, &self.path, &file, &text));
        }
        if let Some(label) = &self.name.variant {
            let labels = variant_json::labels(&self.bytes(&self.in_dist_info(variant_json::FILE))?)
                .map_err(|text| self.refused(variant_json::FILE, text))?;
            if labels != [label.as_str()] {
                let text = format!(
                    "the file describes {} (expected {label}, as the file name says)",
                    labels.join(", ")
                );
                return Err(self.refused(variant_json::FILE, text));
            }
        }
        let format = self.wheel.get("Wheel-Version").unwrap_or("none");
        if format.split('.').next() != Some("1") {
            let text = Reason::mismatch("unknown Wheel-Version", "1.0", format);
            let file = self.in_dist_info("WHEEL");
            let id = ids::UNSUPPORTED_WHEEL;
            return Err(in_member(id, &self.path, &file, text));
        }
        Ok(())
    }

    /// The members that an installer would reject, or put somewhere else than another one, and why.
    pub(super) fn not_installed(&self) -> impl Iterator<Item = (&Member, String)> {
        self.members.iter().filter_map(|member| Some((member, self.why_not_installed(member)?)))
    }

    fn why_not_installed(&self, member: &Member) -> Option<String> {
        let mut parts = member.name.splitn(3, '/');
        let first = parts.next().filter(|first| first.ends_with(".data"))?;
        let own = self.data();
        if first != own {
            return Some(format!(
                "some installers take `{first}` for the wheel's data directory (expected only {own}); rename it, and build the wheel again"
            ));
        }
        let is_scheme = parts.next().is_some_and(|scheme| SCHEMES.contains(&scheme));
        if !is_scheme || parts.next().is_none() {
            let schemes = SCHEMES.join(", ");
            return Some(format!(
                "installers do not know where to put it (expected {own}/SCHEME/FILE, where SCHEME is one of {schemes}); build the wheel again"
            ));
        }
        // It would be metadata that nothing else here knows of, such as a signature of the old RECORD.
        match self.place(member) {
            Destination::Site(_, path) if path.starts_with(&self.dist_info) => Some(format!(
                "would be installed into {}; build the wheel again without it",
                self.dist_info
            )),
            _ => None,
        }
    }

    /// The directory of its data, which goes by the name of that of its metadata.
    fn data(&self) -> String {
        let stem = self.dist_info.strip_suffix(".dist-info");
        format!("{}.data", stem.unwrap_or(&self.dist_info))
    }

    /// Checks that all members can be installed together.
    fn check_places(&self) -> Result<(), Error> {
        let mut known = BTreeMap::new();
        for member in &self.members {
            let path = match self.place(member) {
                Destination::Site(_, path) => path,
                Destination::Elsewhere => Path::new("..").join(&member.name),
            };
            if known.insert(path, &member.name).is_some() {
                let text = "another member is installed at the same path; build the wheel again";
                return Err(member_error(&self.path, &member.name, text));
            }
        }
        let mut above = known.keys().flat_map(|path| path.ancestors().skip(1));
        match above.find_map(|directory| known.get(directory)) {
            None => Ok(()),
            Some(name) => {
                let text = "a file and a directory";
                Err(member_error(&self.path, name, text))
            }
        }
    }

    /// Where a member is installed.
    pub(super) fn place(&self, member: &Member) -> Destination {
        let Some((first, rest)) = member.name.split_once('/') else {
            return Destination::Site(self.root(), member.name.clone().into());
        };
        if first != self.data() {
            return Destination::Site(self.root(), member.name.clone().into());
        }
        for scheme in [SitePackages::Purelib, SitePackages::Platlib] {
            let rest = rest.strip_prefix(scheme.name());
            if let Some(rest) = rest.and_then(|rest| rest.strip_prefix('/')) {
                return Destination::Site(scheme, rest.into());
            }
        }
        Destination::Elsewhere
    }

    /// The member's name for a path in `site-packages`.
    pub(super) fn member_at(&self, scheme: SitePackages, path: &str) -> String {
        if scheme == self.root() {
            path.to_owned()
        } else {
            format!("{}/{}/{path}", self.data(), scheme.name())
        }
    }

    /// Where its root is installed.
    pub(super) fn root(&self) -> SitePackages {
        let is_pure = self.wheel.get("Root-Is-Purelib");
        if is_pure.is_some_and(|pure| pure.eq_ignore_ascii_case("true")) {
            SitePackages::Purelib
        } else {
            SitePackages::Platlib
        }
    }

    /// The path of a member in the directory of its metadata, if it is there.
    fn metadata_path<'m>(&self, member: &'m Member) -> Option<&'m str> {
        member.name.strip_prefix(&self.dist_info)?.strip_prefix('/')
    }

    /// Whether a member is a part of its metadata.
    pub(super) fn is_metadata(&self, member: &Member) -> bool {
        self.metadata_path(member).is_some()
    }

    /// Whether a member is a part of its metadata that kpack writes anew, or leaves out.
    pub(super) fn is_record(&self, member: &Member) -> bool {
        let file = self.metadata_path(member);
        file.is_some_and(|file| file == "RECORD" || SIGNATURES.contains(&file))
    }

    /// The licences in its metadata.
    pub(super) fn licences(&self) -> Vec<&Member> {
        let files =
            self.members.iter().filter_map(|member| Some((self.metadata_path(member)?, member)));
        // Metadata 2.4 has them in a directory; some builders write them to both places.
        let (new, old): (Vec<_>, Vec<_>) =
            files.partition(|(file, _)| file.starts_with("licenses/"));
        let listed = |file: &str| self.metadata.all("License-File").any(|name| name == file);
        let licences = if new.is_empty() {
            old.into_iter().filter(|(file, _)| listed(file)).collect()
        } else {
            new
        };
        licences.into_iter().map(|(_, member)| member).collect()
    }

    /// The signature of its RECORD, if it has one.
    pub(super) fn signature(&self) -> Option<&Member> {
        let mut members = self.members.iter();
        members.find(|member| self.is_record(member) && !member.name.ends_with("RECORD"))
    }

    /// Checks that RECORD lists each member and nothing else.
    fn check_record(&self) -> Result<(), Error> {
        let own = self.in_dist_info("RECORD");
        let mut members = self.members.iter();
        let is_unlisted = |m: &&Member| !self.is_record(m) && !self.record.contains_key(&m.name);
        if let Some(member) = members.find(is_unlisted) {
            let text = "RECORD does not list it; build or download the wheel again";
            return Err(member_error(&self.path, &member.name, text));
        }
        let names: BTreeSet<&str> = self.members.iter().map(|m| m.name.as_str()).collect();
        let mut rows = self.record.keys().filter(|path| **path != own);
        match rows.find(|path| !names.contains(path.as_str())) {
            None => Ok(()),
            Some(path) => {
                let text = format!(
                    "lists `{path}`, which is not in the wheel; build or download the wheel again"
                );
                Err(self.refused("RECORD", text))
            }
        }
    }

    /// The members whose hashes RECORD leaves out.
    pub(super) fn without_hash(&self) -> impl Iterator<Item = &Member> {
        let members = self.members.iter().filter(|m| !self.is_record(m));
        members.filter(|m| self.record.get(&m.name).is_some_and(|row| !row.has_hash()))
    }

    /// Which sections of device code or of markers each member in `site-packages` may have: an ELF file with their names
    /// anywhere, or a PE file with them in its headers.
    pub(super) fn sections(&self) -> Result<Vec<Sections>, Error> {
        parallel::try_map(&self.members, |member| self.sections_of(member))
    }

    fn sections_of(&self, member: &Member) -> Result<Sections, Error> {
        let failed = |error| zip_error(&self.path, Some(&member.name), error);
        if matches!(self.place(member), Destination::Elsewhere) {
            return Ok(Sections::default());
        }
        let mut zip = self.zip.clone();
        let mut reader = with_memory(|| zip.by_index(member.index)).map_err(failed)?;
        let mut magic = Vec::new();
        let read = reader.by_ref().take(4).read_to_end(&mut magic);
        let found = read.and_then(|_| match HostFormat::of(&magic) {
            Some(HostFormat::Elf) => has_names(reader, [SECTION_NAME, FAT_SECTION]),
            // The headers come first, and have the names themselves.
            Some(HostFormat::Pe) => {
                has_names(reader.take(PE_HEADERS), [MARKER_SECTION, CODE_SECTIONS[1]])
            }
            None => Ok([false; 2]),
        });
        let [marker, code] = found.map_err(|error| failed(error.into()))?;
        Ok(Sections { marker, code })
    }

    /// The targets of the device code in a wheel with these sections: of its binaries, and of files of kernel databases by
    /// their names. Unpacks one binary with code at a time per thread.
    ///
    /// # Errors
    /// [`Error::Refused`] for a damaged wheel; [`Error::Io`].
    pub(super) fn device_code(&self, sections: &[Sections]) -> Result<BTreeSet<String>, Error> {
        let with_code = self.members.iter().zip(sections).filter(|(_, own)| own.code);
        let of_binaries = parallel::try_map(with_code, |(member, _)| self.targets_of(member))?;
        let of_databases = self.members.iter().filter_map(|member| match self.place(member) {
            Destination::Site(_, path) => match recognise(&with_slashes(&path))?.1 {
                Place::Target(target) => Some(target.to_string()),
                _ => None,
            },
            Destination::Elsewhere => None,
        });
        Ok(of_binaries.into_iter().flatten().chain(of_databases).collect())
    }

    fn targets_of(&self, member: &Member) -> Result<BTreeSet<String>, Error> {
        let directory = std::env::temp_dir();
        publish::check_room(&self.path, "unpack", &directory, unpacked([member]))?;
        let file = publish::scratch_file(&directory)?;
        self.read(member, &mut &file, &directory)?;
        let read = LinkedBinary::read(&self.path.join(&member.name), file);
        let targets = read.and_then(|linked| match &linked.code {
            DeviceCode::Fat(fat) => linked.targets(fat, &|_| true),
            _ => Ok(BTreeSet::new()),
        });
        // What is damaged, or for another machine, is not for this command to say.
        Ok(or_refused(targets)?.unwrap_or_default())
    }

    /// Unpacks `members` of `site-packages` into `directory`.
    pub(super) fn unpack_some(
        &self,
        members: &[&Member],
        directory: &Directory,
    ) -> Result<(), Error> {
        let size = unpacked(members.iter().copied());
        publish::check_room(&self.path, "unpack", directory.path(), size)?;
        parallel::try_map(members, |member| {
            if let Destination::Site(_, path) = self.place(member) {
                self.read_into(member, directory, &path)?;
            }
            Ok(())
        })
        .map(drop)
    }

    /// As [`read_all`](Self::read_all); also unpacks each member to the path in `directory` that `to` says.
    pub(super) fn unpack(
        &self,
        directory: &Directory,
        to: &(dyn Fn(&Member) -> Option<PathBuf> + Sync),
    ) -> Result<Vec<Digest>, Error> {
        publish::check_room(&self.path, "unpack", directory.path(), unpacked(&self.members))?;
        self.read_members(&|member| match to(member) {
            Some(path) => self.read_into(member, directory, &path),
            None => self.digest(member),
        })
    }

    /// Checks all members against RECORD. Returns their digests.
    pub(super) fn read_all(&self) -> Result<Vec<Digest>, Error> {
        self.read_members(&|member| self.digest(member))
    }

    fn read_members(
        &self,
        read: &(dyn Fn(&Member) -> Result<Digest, Error> + Sync),
    ) -> Result<Vec<Digest>, Error> {
        parallel::try_map(&self.members, |member| {
            let digest = read(member)?;
            self.check(member, &digest)?;
            Ok(digest)
        })
    }

    /// The digest of a member.
    pub(super) fn digest(&self, member: &Member) -> Result<Digest, Error> {
        self.read(member, &mut io::sink(), &self.path)
    }

    /// Checks a member against RECORD.
    fn check(&self, member: &Member, digest: &Digest) -> Result<(), Error> {
        if self.is_record(member) {
            return Ok(());
        }
        let Some(row) = self.record.get(&member.name) else {
            return Ok(());
        };
        let longer = row
            .longer_hash()
            .map_err(|text| in_member(ids::UNSUPPORTED_WHEEL, &self.path, &member.name, text))?;
        let found = match longer {
            None => digest.hash(),
            Some(mut hasher) => {
                self.read(member, &mut hasher, &self.path)?;
                hasher.finish()
            }
        };
        match row.contradiction(&found, digest.size) {
            None => Ok(()),
            Some(what) => {
                let text =
                    what.after("RECORD has another ").then("; build or download the wheel again");
                Err(member_error(&self.path, &member.name, text))
            }
        }
    }

    /// Unpacks a member to a new file in `directory`.
    fn read_into(
        &self,
        member: &Member,
        directory: &Directory,
        relative: &Path,
    ) -> Result<Digest, Error> {
        let parent = directory.provide_below(relative.parent().unwrap_or(Path::new("")))?;
        let path = directory.path().join(relative);
        let name = relative.file_name().unwrap_or_default();
        let file = parent.create_open(name, false);
        self.read(member, &mut file.map_err(|e| Error::io(&path, "create", e))?, &path)
    }

    /// Copies a member to a file at `path`. The library compares its CRC.
    fn read(&self, member: &Member, to: &mut dyn Write, path: &Path) -> Result<Digest, Error> {
        let failed = |error| zip_error(&self.path, Some(&member.name), error);
        let mut zip = self.zip.clone();
        let unpacked = with_memory(|| zip.by_index(member.index)).map_err(failed)?;
        let expected = unpacked.size();
        // Damage must not fill the disk.
        let reader = unpacked.take(expected.saturating_add(1));
        let cannot_write = |error| Error::io(path, "write", error);
        let digest = record::copy(reader, to, &|error| failed(error.into()), &cannot_write)?;
        if digest.size == expected {
            return Ok(digest);
        }
        let text =
            format!("has another size (expected {expected} bytes, as the ZIP directory says)");
        Err(member_error(&self.path, &member.name, &text))
    }

    /// The bytes of a file of its metadata.
    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        let missing = || damaged(&self.path, format!("no `{name}`; build the wheel again"));
        let member = self.members.iter().find(|member| member.name == name).ok_or_else(missing)?;
        let entry = self
            .zip
            .by_index_data(member.index)
            .map_err(|error| zip_error(&self.path, Some(name), error))?;
        if entry.size() > MAX_METADATA {
            return Err(member_error(&self.path, name, "it is larger than 16 MiB"));
        }
        let mut bytes = Vec::new();
        self.read(member, &mut bytes, &self.path)?;
        Ok(bytes)
    }

    /// Hands a member, still compressed, to `copy`.
    pub(super) fn raw<T>(
        &self,
        member: &Member,
        copy: impl FnOnce(zip::read::ZipFile<'_, SharedFile>) -> Result<T, ZipError>,
    ) -> Result<T, Error> {
        let mut zip = self.zip.clone();
        let raw = zip.by_index_raw(member.index);
        let copied = raw.and_then(copy);
        copied.map_err(|error| zip_error(&self.path, Some(&member.name), error))
    }
}

/// The directory of the metadata.
fn dist_info(path: &Path, name: &WheelName, members: &[Member]) -> Result<String, Error> {
    let tops = members
        .iter()
        .filter_map(|member| member.name.split_once('/'))
        .map(|(top, _)| top)
        .filter(|top| top.ends_with(".dist-info"));
    let found = Vec::from_iter(BTreeSet::from_iter(tops));
    match found.as_slice() {
        [only] if name.has_directory(only, "dist-info") => Ok((*only).to_owned()),
        _ => {
            let expected = format!("one directory {}", name.directory("dist-info"));
            let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
            let text = Reason::mismatch("", expected, found).then("; build the wheel again");
            Err(damaged(path, text))
        }
    }
}

/// The most bytes of the headers of a PE file.
const PE_HEADERS: u64 = 64 << 10;

/// Which of two names are among these bytes, which are read in small parts.
fn has_names(mut from: impl Read, names: [&str; 2]) -> io::Result<[bool; 2]> {
    let finders = names.map(Finder::new);
    let longest = names.map(str::len).into_iter().max().unwrap_or_default();
    let mut found = [false; 2];
    let mut some = vec![0; 64 << 10];
    let mut kept = 0;
    while found != [true; 2] {
        let count = match from.read(&mut some[kept..]) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = kept + count;
        for (found, finder) in found.iter_mut().zip(&finders) {
            *found |= finder.find(&some[..end]).is_some();
        }
        // A name may cross the boundary between two parts.
        kept = end.min(longest - 1);
        some.copy_within(end - kept..end, 0);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_sections_are_found_across_parts() {
        let names = [SECTION_NAME, FAT_SECTION];
        for (at, name) in names.map(str::as_bytes).into_iter().enumerate() {
            for start in [0, 1, (64 << 10) - 5, 64 << 10, (128 << 10) - name.len() - 1] {
                let mut bytes = vec![name[0]; start];
                bytes.extend(name);
                let mut expected = [false; 2];
                expected[at] = true;
                assert_eq!(has_names(&*bytes, names).unwrap(), expected, "{start}");
                bytes.pop();
                assert_eq!(has_names(&*bytes, names).unwrap(), [false; 2], "{start}");
            }
        }
    }
}
