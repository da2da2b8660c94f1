//! Forms and parses the names of archives, manifests and kernels, and search paths. No other code
//! does.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::TargetId;
use crate::digest::{Blake3, hex};
use crate::unstable::spelling::FEATURES;

/// Stands for the target ID in a search path.
pub const GFXARCH: &str = "@GFXARCH@";

/// A target ID in a package's name, as kpack's CMake package forms it: `gfx90a.xnack-on`. In a target
/// ID's own form, `apt` reads the colon as an architecture and the last sign as an order.
pub fn in_package_name(target: &str) -> String {
    let mut parts = target.split(':');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for feature in parts {
        name.push('.');
        match (feature.strip_suffix('+'), feature.strip_suffix('-')) {
            (Some(on), _) => name.extend([on, "-on"]),
            (_, Some(off)) => name.extend([off, "-off"]),
            _ => name.push_str(feature),
        }
    }
    name
}

/// How a target ID is written in the names of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileNames {
    /// As it is: `gfx90a:xnack+`. ROCm's loader looks for such names.
    Linux,
    /// With `-` for each colon, which leads into a stream of a file on Windows: `gfx90a-xnack+`. ROCm's kernel
    /// databases have such names on both systems.
    Windows,
}

impl FileNames {
    /// What this system writes.
    pub const HERE: Self = if cfg!(windows) { Self::Windows } else { Self::Linux };

    /// What this system can write of it.
    pub fn on_disk(self) -> Self {
        if cfg!(windows) { Self::Windows } else { self }
    }

    /// A target ID as it is written.
    pub fn of(self, target: &str) -> String {
        match self {
            Self::Linux => target.to_owned(),
            Self::Windows => target.replace(':', "-"),
        }
    }

    /// A target ID as this system reads it, the usual form first: files may have been made for the other system. A
    /// path with a colon is not even tried on Windows.
    pub fn read_here(target: &str) -> impl Iterator<Item = String> + use<> {
        let other = Some(Self::Windows.of(target));
        let usual = Self::HERE.of(target);
        let other = other.filter(|other| *other != usual);
        [usual].into_iter().chain(other)
    }

    /// The target in a part of a file's name, in either form.
    pub fn parse(text: &str) -> Option<TargetId> {
        let mut target = text.to_owned();
        for feature in FEATURES {
            target = target.replace(&format!("-{feature}"), &format!(":{feature}"));
        }
        target.parse().ok()
    }
}

/// A module and one of its components, `rocblas_lib`, which name its archives and manifests.
#[derive(Debug, Clone)]
pub struct Group {
    name: String,
    files: FileNames,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Group {}

impl PartialOrd for Group {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Group {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Group {
    /// The group of a module's component.
    pub fn new(module: &str, component: &str) -> Self {
        Self::from(format!("{module}_{component}"))
    }

    /// The same group, with the archives' names of a system: that of its binaries, if kpack runs on another one.
    pub fn with_names_of(self, files: FileNames) -> Self {
        Self { files, ..self }
    }

    /// Its module, judging by the name: most components have no `_`.
    pub fn module(&self) -> &str {
        self.rsplit_once('_').map_or(self, |(module, _)| module)
    }

    /// `rocblas_lib_gfx942.kpack`.
    pub fn archive(&self, target: impl fmt::Display) -> String {
        let target = self.files.of(&target.to_string());
        format!("{self}_{target}.kpack")
    }

    /// `rocblas_lib_@GFXARCH@.kpack`: its archives in a search path.
    pub fn archive_pattern(&self) -> String {
        self.archive(GFXARCH)
    }

    /// The target of an archive of this group, judging by its name. `a_b_c.kpack` may be module
    /// `a`'s for target `b_c`, or module `a_b`'s for `c`; only the archive tells.
    pub fn target_of(&self, file_name: &str) -> Option<TargetId> {
        let rest = file_name.strip_prefix(self.as_ref())?.strip_prefix('_')?;
        FileNames::parse(rest.strip_suffix(".kpack")?)
    }

    /// `rocblas_lib.kpm`.
    pub fn manifest(&self) -> String {
        format!("{self}.kpm")
    }

    /// `rocblas_lib.gfx110X.kpm`: the manifest of the group's archives in one package.
    pub fn fragment(&self, part: &str) -> String {
        format!("{self}.{part}.kpm")
    }

    /// The part of a fragment of this group's manifest, by the fragment's name.
    pub fn part_of<'a>(&self, file_name: &'a str) -> Option<&'a str> {
        let rest = file_name.strip_prefix(self.as_ref())?.strip_prefix('.')?;
        rest.strip_suffix(".kpm").filter(|part| !part.is_empty())
    }

    /// Whether a file name is that of this group's manifest or of a fragment.
    pub fn has_manifest(&self, file_name: &str) -> bool {
        file_name == self.manifest() || self.part_of(file_name).is_some()
    }
}

impl Deref for Group {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl AsRef<str> for Group {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl From<&str> for Group {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl From<String> for Group {
    fn from(name: String) -> Self {
        Self { name, files: FileNames::HERE }
    }
}

impl From<Group> for String {
    fn from(group: Group) -> Self {
        group.name
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Whether a file name is that of a manifest or of a fragment.
pub fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "kpm")
}

/// Whether a file name is that of an archive.
pub fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "kpack")
}

/// The ends of the names of all archives for a target, the usual one of this system first.
pub fn archive_ends(target: &str) -> impl Iterator<Item = String> + use<> {
    FileNames::read_here(target).map(|target| format!("_{target}.kpack"))
}

/// What names have in common that are one where case does not matter. As NTFS does, it takes the upper case of each
/// character that has one character as its upper case: `ß` is not `SS`.
pub fn fold_case(name: &str) -> String {
    let fold = |c: char| {
        let mut upper = c.to_uppercase();
        match (upper.next(), upper.next()) {
            (Some(upper), None) => upper,
            _ => c,
        }
    };
    name.chars().map(fold).collect()
}

/// A kernel's name: `lib/libvec.so#2`. Ordered by the binary, then by the index as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelName<'a> {
    /// The path of its binary in the install prefix.
    pub binary: &'a str,
    /// The code object index; `None` if the name does not end with one.
    pub index: Option<u32>,
}

impl<'a> KernelName<'a> {
    /// The name of a binary's code object.
    pub fn new(binary: &'a str, index: u32) -> Self {
        Self { binary, index: Some(index) }
    }

    /// Parses a name. An index has only one valid spelling, so that no two names mean the same.
    pub fn parse(name: &'a str) -> Self {
        let split = name.rsplit_once('#').and_then(|(binary, index)| {
            let canonical = index == "0" || !index.starts_with(['0', '+']);
            canonical.then_some(Self::new(binary, index.parse().ok()?))
        });
        split.unwrap_or(Self { binary: name, index: None })
    }

    /// The binary that a kernel is of. One without an index is a file that was stored by its name.
    pub fn binary_of(name: &'a str) -> Option<&'a str> {
        let Self { binary, index } = Self::parse(name);
        index.map(|_| binary)
    }
}

impl fmt::Display for KernelName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}#{index}", self.binary),
            None => f.write_str(self.binary),
        }
    }
}

/// The name of an object that was split before the link: `libvec.a/add.o@0123456789abcdef`, its file
/// name and a digest of its bundles.
///
/// A linked binary's kernels are named after its path in the install prefix, which is unique. Objects
/// have no such path, and objects of many directories or builds meet in one module. With the digest,
/// two objects of the same name have the same device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectName<'a> {
    label: &'a str,
}

impl<'a> ObjectName<'a> {
    /// Bytes of the digest in a name. With 64 bits, the probability of a collision among 10⁹
    /// different objects with the same file name is 3%.
    const DIGEST: usize = 8;

    /// The name of an object; `label` is its file name, or the names of a static library and its
    /// member.
    pub fn form(label: &str, digest: &Blake3) -> String {
        format!("{label}@{}", hex(&digest[..Self::DIGEST]))
    }

    /// Parses the name of an object; `None` for the path of a binary.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (label, digest) = name.rsplit_once('@')?;
        let is_digest = digest.len() == 2 * Self::DIGEST
            && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (is_digest && !label.is_empty()).then_some(Self { label })
    }

    /// The file name of the object or of its static library.
    pub fn file(self) -> &'a str {
        self.label.split('/').next().unwrap_or(self.label)
    }
}

/// Whether a kernel name (without the index) is that of an object, not the path of a binary.
pub fn is_object(name: &str) -> bool {
    ObjectName::parse(name).is_some()
}

/// A path to archives, with [`GFXARCH`] in place of the target ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchPath<'a>(&'a Path);

impl<'a> SearchPath<'a> {
    /// A search path from a marker or the environment.
    pub fn new(path: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self(path.as_ref())
    }

    /// Whether it names the target.
    pub fn names_target(self) -> bool {
        match self.0.to_str() {
            Some(path) => path.contains(GFXARCH),
            None => self.0.iter().any(names_target),
        }
    }

    /// The path for a target.
    pub fn expand(self, target: &str) -> PathBuf {
        if let Some(path) = self.0.to_str() {
            return path.replace(GFXARCH, target).into();
        }
        let expanded = self.0.iter().map(|component| match component.to_str() {
            Some(component) => OsString::from(component.replace(GFXARCH, target)),
            None => component.to_owned(),
        });
        expanded.collect()
    }

    /// Splits it at the first component with the target; `None` if there is none.
    pub fn split(self) -> Option<Pattern<'a>> {
        let with_target = |path: &&Path| path.file_name().is_some_and(names_target);
        let first = self.0.ancestors().filter(with_target).last()?;
        let directory = first.parent()?;
        let (start, end) = first.file_name()?.to_str()?.split_once(GFXARCH)?;
        Some(Pattern {
            directory,
            tail: Self(self.0.strip_prefix(directory).ok()?),
            start,
            end,
            is_file: first == self.0,
        })
    }
}

/// Whether a component of a path names the target. One that is not Unicode never does.
fn names_target(component: &OsStr) -> bool {
    component.to_str().is_some_and(|name| name.contains(GFXARCH))
}

/// A search path, split at the first component with the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern<'a> {
    /// The path before that component.
    pub directory: &'a Path,
    /// That component and the rest.
    pub tail: SearchPath<'a>,
    start: &'a str,
    end: &'a str,
    is_file: bool,
}

impl Pattern<'_> {
    /// Whether that component is the last one, so that archives are directly in the directory.
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    /// The target in the name of a file or directory that matches the component.
    pub fn target_of(&self, file_name: &OsStr) -> Option<TargetId> {
        FileNames::parse(self.written_in(file_name)?)
    }

    /// That target as it is written there.
    pub fn written_in<'n>(&self, file_name: &'n OsStr) -> Option<&'n str> {
        let name = file_name.to_str()?.strip_prefix(self.start)?;
        name.strip_suffix(self.end)
    }

    /// The group of these archives, judging by their names.
    pub fn group(&self) -> Option<Group> {
        let name = self.start.strip_suffix('_')?;
        (self.is_file && !name.is_empty()).then(|| Group::from(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_names_its_archives_and_manifests_and_knows_them_again() {
        let group = Group::new("rocblas", "lib");
        let target: TargetId = "gfx90a:xnack+".parse().unwrap();
        assert_eq!(group.module(), "rocblas");
        assert_eq!(group.archive(&target), "rocblas_lib_gfx90a:xnack+.kpack");
        assert_eq!(group.target_of(&group.archive(&target)), Some(target.clone()));
        let group = group.with_names_of(FileNames::Windows);
        assert_eq!(group.archive(&target), "rocblas_lib_gfx90a-xnack+.kpack");
        assert_eq!(group.target_of(&group.archive(&target)), Some(target));
        assert_eq!(group.archive_pattern(), "rocblas_lib_@GFXARCH@.kpack");
        assert_eq!(group.manifest(), "rocblas_lib.kpm");
        assert_eq!(group.part_of(&group.fragment("gfx110X")), Some("gfx110X"));
        assert_eq!(group.target_of("rocblas_library_gfx942.kpack"), None);
        for (name, own) in [
            ("rocblas_lib.kpm", true),
            ("rocblas_lib.dcgpu.kpm", true),
            ("rocblas_lib..kpm", false),
            ("rocblas_library.kpm", false),
        ] {
            assert_eq!(group.has_manifest(name), own, "{name}");
        }
    }

    #[test]
    fn targets_in_names_of_files() {
        for (target, on_windows) in [
            ("gfx1100", "gfx1100"),
            ("gfx9-4-generic", "gfx9-4-generic"),
            ("gfx9-4-generic:xnack-", "gfx9-4-generic-xnack-"),
            ("gfx1250-strict:xnack+", "gfx1250-strict-xnack+"),
            ("gfx942:sramecc-:xnack-", "gfx942-sramecc--xnack-"),
            ("amdgcnspirv", "amdgcnspirv"),
        ] {
            assert_eq!(FileNames::Linux.of(target), target);
            assert_eq!(FileNames::Windows.of(target), on_windows);
            for name in [target, on_windows] {
                let read = FileNames::parse(name).unwrap();
                assert_eq!(read.to_string(), target, "{name}");
            }
            let read = Vec::from_iter(FileNames::read_here(target));
            assert!(read.contains(&on_windows.to_owned()));
            assert_eq!(read.len(), if target == on_windows { 1 } else { 2 });
        }
    }

    #[test]
    fn names_are_compared_by_the_upper_case_of_each_character() {
        for (one, other, is_same) in [
            ("Vec_lib.kpm", "vec_LIB.kpm", true),
            ("É", "é", true),
            ("ΟΔΟΣ", "οδος", true),
            ("straße", "STRASSE", false),
            // The sign for kelvin.
            ("\u{212a}", "k", false),
            ("a", "b", false),
        ] {
            assert_eq!(fold_case(one) == fold_case(other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn names_of_packages_have_neither_colons_nor_signs() {
        for (target, name) in [
            ("gfx1100", "gfx1100"),
            ("gfx9-4-generic", "gfx9-4-generic"),
            ("gfx90a:xnack+", "gfx90a.xnack-on"),
            ("gfx942:sramecc+:xnack-", "gfx942.sramecc-on.xnack-off"),
        ] {
            assert_eq!(in_package_name(target), name);
        }
    }

    #[test]
    fn kernels_are_ordered_by_number_and_an_index_has_one_spelling() {
        let mut names = ["b.so#2", "a.so#10", "a.so#9", "a.so"].map(KernelName::parse);
        names.sort();
        assert_eq!(names.map(|name| name.to_string()), ["a.so", "a.so#9", "a.so#10", "b.so#2"]);
        assert_eq!(KernelName::parse("a#b.so#3"), KernelName::new("a#b.so", 3));
        for odd in ["a.so#", "a.so#+1", "a.so#01", "a.so#x", "a.so#4294967296"] {
            assert_eq!(KernelName::parse(odd).index, None, "{odd}");
            assert_eq!(KernelName::parse(odd).to_string(), odd);
        }
    }

    #[test]
    fn an_object_is_known_by_its_digest() {
        let name = ObjectName::form("libvec.a/add.o", &[0xab; 32]);
        assert_eq!(name, "libvec.a/add.o@abababababababab");
        let file = ObjectName::parse(&name).map(ObjectName::file);
        assert_eq!(file, Some("libvec.a"));
        for path in ["lib/libvec.so", "lib/a@b.so", "@abababababababab", "a@ABABABABABABABAB"] {
            assert_eq!(ObjectName::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_search_path_is_taken_apart_where_it_names_the_target() {
        let path = SearchPath::new("../lib/.kpack/vec_lib_@GFXARCH@.kpack");
        let pattern = path.split().unwrap();
        assert_eq!(pattern.directory.as_os_str(), "../lib/.kpack");
        assert_eq!(pattern.group(), Some(Group::new("vec", "lib")));
        assert_eq!(pattern.tail.expand("gfx942"), Path::new("vec_lib_gfx942.kpack"));
        let target = pattern.target_of(OsStr::new("vec_lib_gfx942.kpack"));
        assert_eq!(target, "gfx942".parse().ok());
        assert_eq!(pattern.target_of(OsStr::new("vec_lib.kpm")), None);

        let root = SearchPath::new("/@GFXARCH@.kpack").split().unwrap();
        assert_eq!(root.directory.as_os_str(), "/");
        let bare = SearchPath::new("@GFXARCH@.kpack").split().unwrap();
        assert_eq!(bare.directory.as_os_str(), "");

        let directories = SearchPath::new("k/@GFXARCH@/@GFXARCH@.kpack");
        let pattern = directories.split().unwrap();
        assert!(!pattern.is_file());
        assert_eq!(pattern.group(), None);
        assert_eq!(directories.expand("gfx942"), Path::new("k/gfx942/gfx942.kpack"));
        assert_eq!(SearchPath::new("k/GFXARCH.kpack").split(), None);
    }
}
