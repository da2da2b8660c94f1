//! One packed artifact, read once: decompressed, hashed, and each member checked before it is used.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use kpack_core::platform::OsStrExt;
use kpack_format::TargetId;
use kpack_format::digest::hex;
use kpack_format::unstable::target_names;
use sha2::{Digest as _, Sha256};
use tar::EntryType;
use zstd::stream::read::Decoder;

use super::index::Entry;
use super::path::{Directories, foreign_name, in_prefix, link_fault, plain};
use super::tar_reader::{Header, TarError, members};
use kpack_artifact::manifest_txt;
use kpack_core::finding::Id;
use kpack_core::{Error, Reason, escaped, ids};
use kpack_format::is_exhaustion;
use kpack_format::names::is_archive;
use kpack_split::input;

/// The most bytes of the list of prefixes.
pub(super) const MAX_LIST: u64 = 1 << 20;

/// The most bytes after the end of a tar archive. Tools fill up a record.
const MAX_END: u64 = 1 << 20;

/// Bytes that are read at a time.
const PART: usize = 1 << 20;

/// Set-user-ID, set-group-ID, and sticky.
const SPECIAL_BITS: u32 = 0o7000;

/// A member of an artifact, other than the list of prefixes.
pub(super) struct Member<'a> {
    /// Its path in the artifact.
    pub(super) path: PathBuf,
    /// Its path in its prefix; `None` for a prefix itself, or a directory above it.
    pub(super) installed: Option<PathBuf>,
    pub(super) node: Node<'a>,
    /// Seconds since 1970.
    pub(super) time: u64,
}

/// What a member is.
pub(super) enum Node<'a> {
    /// A file of this size; the permission bits; and its content.
    File(u64, u32, &'a mut dyn Read),
    Directory,
    /// A symbolic link, and where it leads to.
    Symlink(PathBuf),
    /// Another name of the file with this path in the artifact, and that path in its prefix.
    HardLink(PathBuf, PathBuf),
}

/// Gets the content of a packed artifact.
pub(super) trait Visitor {
    /// The list of prefixes, which comes first: its text, its prefixes and its time.
    fn prefixes(&mut self, text: &str, prefixes: &[String], time: u64) -> Result<(), Error>;

    /// The next member.
    fn member(&mut self, member: Member<'_>) -> Result<(), Error>;
}

/// What is in a packed artifact.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Its size in bytes.
    pub(super) size: u64,
    /// Its SHA-256.
    pub(super) sha256: String,
    pub(super) unpacked: u64,
    pub(super) files: u64,
}

/// The rest of the message about an artifact that is as its publisher packed it.
const PUBLISHED: &str = "; its publisher has to pack it again";

/// As [`PUBLISHED`], where it is good on other systems.
const FOREIGN: &str = "; unpack it on Linux or in WSL, or select other targets";

/// Reads the packed artifact `path`. If `expected`, it must be that: what does not fit is rejected as soon as
/// it shows, and no member is visited that is too large. What was visited before is worth nothing then.
pub(super) fn read(
    path: &Path,
    expected: Option<&Entry>,
    visitor: &mut dyn Visitor,
) -> Result<Contents, Error> {
    let file = input::open(path)?;
    let size = file.metadata().map_err(|e| Error::io(path, "read", e))?.len();
    if let Some(expected) = expected.filter(|expected| expected.size != size) {
        let advice = if size < expected.size {
            "it is truncated; resume the download"
        } else {
            "it is another file; remove it, and download it again"
        };
        let text = format!("it has {size} bytes (expected {}): {advice}", expected.size);
        let reason = Reason::from(text).differs(expected.size, size);
        return Err(Error::rejected(ids::WRONG_DIGEST, path, reason));
    }
    let mut reading = Reading {
        path,
        expected,
        visitor,
        prefixes: None,
        contents: Contents::default(),
        known: HashSet::new(),
        hasher: RandomState::new(),
    };
    let hashed = Hashed { path, file, hasher: Sha256::new() };
    let mut decoder = Decoder::with_buffer(BufReader::with_capacity(PART, hashed))
        .map_err(|e| unreadable(path, e))?;
    let read = reading.read(&mut decoder);
    let mut contents = reading.contents;
    // Another file than the one that was published explains everything else.
    let mut hashed = decoder.finish().into_inner();
    io::copy(&mut hashed, &mut io::sink()).map_err(|e| unreadable(path, e))?;
    contents.sha256 = hex(&hashed.hasher.finalize());
    contents.size = size;
    if let Some(expected) = expected.filter(|expected| expected.sha256 != contents.sha256) {
        let text = format!(
            "its SHA-256 is {} (expected {}): it is damaged, or another file; remove it, and \
             download it again",
            contents.sha256, expected.sha256
        );
        let reason = Reason::from(text).differs(&expected.sha256, &contents.sha256);
        return Err(Error::rejected(ids::WRONG_DIGEST, path, reason));
    }
    read.map(|()| contents)
}

struct Reading<'a> {
    path: &'a Path,
    expected: Option<&'a Entry>,
    visitor: &'a mut dyn Visitor,
    prefixes: Option<(Vec<String>, Directories)>,
    contents: Contents,
    /// Hashes of the paths of files and links: whole paths would take much memory.
    known: HashSet<u64>,
    hasher: RandomState,
}

impl Reading<'_> {
    fn read(&mut self, mut tar: impl Read) -> Result<(), Error> {
        let path = self.path;
        let read = members(&mut tar, |header, content| self.member(header, content));
        read.map_err(|error| match error {
            TarError::Read(error) => unreadable(path, error),
            TarError::Unsupported(text) => {
                Error::rejected(ids::DAMAGED_TAR, path, text + PUBLISHED)
            }
            TarError::Visit(error) => error,
        })?;
        let end = io::copy(&mut tar.take(MAX_END + 1), &mut io::sink())
            .map_err(|e| unreadable(path, e))?;
        if end > MAX_END {
            let text = format!("it goes on after the end of its tar archive{PUBLISHED}");
            return Err(Error::rejected(ids::DAMAGED_TAR, path, text));
        }
        if self.prefixes.is_none() {
            return Err(self.without_prefixes());
        }
        if let Some(expected) = self.expected {
            let Contents { files, unpacked, .. } = self.contents;
            if (files, unpacked) != (expected.files, expected.unpacked) {
                return Err(self.differs(&format!("{files} members with {unpacked} bytes")));
            }
        }
        Ok(())
    }

    fn differs(&self, found: &str) -> Error {
        let (files, bytes) = self.expected.map_or((0, 0), |e| (e.files, e.unpacked));
        let expected = format!("{files} with {bytes}");
        let text = format!("it has {found} (expected {expected}, as the index says){PUBLISHED}");
        Error::rejected(ids::INDEX_DIFFERS, self.path, Reason::from(text).differs(expected, found))
    }

    fn without_prefixes(&self) -> Error {
        let text = format!("its first member is not {}{PUBLISHED}", manifest_txt::FILE_NAME);
        Error::rejected(ids::DAMAGED_TAR, self.path, text)
    }

    fn member(&mut self, header: &Header, content: &mut dyn Read) -> Result<(), Error> {
        let own = self.path;
        let refuse = |id: Id, text: &str| {
            let name = String::from_utf8_lossy(&header.path);
            let advice = match foreign_name(Path::new(&*name)) {
                Some(_) => FOREIGN,
                None => PUBLISHED,
            };
            let reason = Reason::from(text).then(advice).in_member(escaped(&name));
            Error::rejected(id, own, reason)
        };
        let path = plain(&header.path).map_err(|text| refuse(ids::UNSAFE_MEMBER, &text))?;
        let Some((prefixes, directories)) = &mut self.prefixes else {
            return self.list_of_prefixes(&path, header, content);
        };
        let (node, size) =
            node(header, content, prefixes, &path).map_err(|(id, text)| refuse(id, &text))?;
        let installed = in_prefix(prefixes, &path).map(|(_, within)| within.to_owned());
        let is_above = |prefix: &String| Path::new(prefix).starts_with(&path);
        if installed.is_none()
            && !(matches!(node, Node::Directory) && prefixes.iter().any(is_above))
        {
            let text = format!("in no prefix that {} lists", manifest_txt::FILE_NAME);
            return Err(refuse(ids::IN_NO_PREFIX, &text));
        }
        let implied = directories.add(&path, matches!(node, Node::Directory));
        implied.map_err(|text| refuse(ids::UNSAFE_MEMBER, &text))?;
        let misplaced = self.expected.and_then(|entry| misplaced(entry, &path));
        if let Some(text) = misplaced {
            return Err(refuse(ids::MISPLACED_FILE, &text));
        }
        let mut is_new = || self.known.insert(self.hasher.hash_one(&path));
        if !matches!(node, Node::Directory) && !is_new() {
            return Err(refuse(ids::CONFLICTING_FILES, "another member has the same path"));
        }
        self.contents.files += 1;
        self.contents.unpacked = self.contents.unpacked.saturating_add(size);
        let Contents { files, unpacked, .. } = self.contents;
        if let Some(expected) = self.expected
            && (files > expected.files || unpacked > expected.unpacked)
        {
            let found = format!("{files} members with {unpacked} bytes, or more");
            return Err(self.differs(&found));
        }
        self.visitor.member(Member { path, installed, node, time: header.time })
    }

    fn list_of_prefixes(
        &mut self,
        path: &Path,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<(), Error> {
        if path != Path::new(manifest_txt::FILE_NAME) || !is_file(header.kind) {
            return Err(self.without_prefixes());
        }
        let mut bytes = Vec::new();
        let read = content.take(MAX_LIST + 1).read_to_end(&mut bytes);
        let text = match (read, String::from_utf8(bytes)) {
            (Ok(read), Ok(text)) if read as u64 == header.size && header.size <= MAX_LIST => text,
            _ => {
                let text = format!("no text, or larger than {MAX_LIST} bytes{PUBLISHED}");
                let reason = Reason::from(text).in_member(manifest_txt::FILE_NAME);
                return Err(Error::rejected(ids::INVALID_PREFIX_LIST, self.path, reason));
            }
        };
        let prefixes = manifest_txt::parse(self.path, &text)?;
        let directories = Directories::new(&prefixes).map_err(|text| {
            let reason = Reason::from(text).then(PUBLISHED).in_member(manifest_txt::FILE_NAME);
            Error::rejected(ids::INVALID_PREFIX_LIST, self.path, reason)
        })?;
        self.visitor.prefixes(&text, &prefixes, header.time)?;
        self.prefixes = Some((prefixes, directories));
        Ok(())
    }
}

/// The target that the archive of kernels `path` is called after.
pub(super) fn target_of(path: &Path) -> Option<TargetId> {
    let stem = path.file_stem()?.to_str()?;
    is_archive(path).then(|| target_names::last(stem))?.map(|(_, target)| target)
}

/// Why an archive of kernels does not belong into the artifact of `entry`; `None` if it does, or is none. What is in
/// it, `kpack verify` reads.
pub(super) fn misplaced(entry: &Entry, path: &Path) -> Option<String> {
    let found = target_of(path)?;
    let targets = entry.device_targets();
    let is_own = |own: &TargetId| own.covers(&found) || own.processor() == found.processor();
    let is_unknown_group = targets.is_empty() && !entry.is_generic();
    (!is_unknown_group && !targets.iter().any(is_own))
        .then(|| format!("an archive for {found} (expected one for {})", entry.target))
}

fn is_file(kind: EntryType) -> bool {
    matches!(kind, EntryType::Regular | EntryType::Continuous)
}

/// What the member at `path` is, and its size; or why it must not be.
fn node<'a>(
    header: &Header,
    content: &'a mut dyn Read,
    prefixes: &[String],
    path: &Path,
) -> Result<(Node<'a>, u64), (Id, String)> {
    let unsafe_member = |text: String| (ids::UNSAFE_MEMBER, text);
    if header.mode & SPECIAL_BITS != 0 {
        return Err(unsafe_member(format!(
            "set-user-ID, set-group-ID or sticky (mode {:o})",
            header.mode
        )));
    }
    let link = || PathBuf::from(OsStr::from_bytes(&header.link));
    let node = match header.kind {
        kind if is_file(kind) => {
            let mode = header.mode & 0o777;
            return Ok((Node::File(header.size, mode, content), header.size));
        }
        EntryType::Directory => Node::Directory,
        EntryType::Symlink => {
            let within = in_prefix(prefixes, path).map_or(path, |(_, within)| within);
            match link_fault(within, &link()) {
                Some(fault) => return Err(unsafe_member(fault)),
                None => Node::Symlink(link()),
            }
        }
        EntryType::Link => {
            let to = plain(&header.link)
                .map_err(|text| unsafe_member(format!("a hard link to {text}")))?;
            let Some((_, within)) = in_prefix(prefixes, &to) else {
                let text = format!("a hard link to {}, in no prefix", to.display());
                return Err(unsafe_member(text));
            };
            let within = within.to_owned();
            Node::HardLink(to, within)
        }
        kind => {
            let what = match kind {
                EntryType::Char | EntryType::Block => "a device",
                EntryType::Fifo => "a FIFO",
                _ => "neither file, directory nor link",
            };
            return Err(unsafe_member(what.to_owned()));
        }
    };
    if header.size != 0 {
        return Err((ids::DAMAGED_TAR, "no file, but with content".to_owned()));
    }
    Ok((node, 0))
}

/// A file that is hashed as it is read.
struct Hashed<'a> {
    path: &'a Path,
    file: File,
    hasher: Sha256,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.file.read(buffer) {
            Ok(read) => {
                self.hasher.update(&buffer[..read]);
                Ok(read)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            // What decompresses could not say which file it is.
            Err(error) => Err(io::Error::other(Error::io(self.path, "read", error))),
        }
    }
}

/// Why the packed artifact `path` could not be read or decompressed.
pub(super) fn unreadable(path: &Path, error: io::Error) -> Error {
    let error = match error.downcast() {
        Ok(error) => return error,
        Err(error) => error,
    };
    let text = error.to_string();
    if is_exhaustion(&error) || text.contains("not enough memory") {
        let error = io::Error::new(io::ErrorKind::OutOfMemory, text);
        return Error::io(path, "decompress", error);
    }
    let text = format!("not a tar archive compressed with zstd, or damaged: {text}{PUBLISHED}");
    Error::rejected(ids::DAMAGED_TAR, path, text)
}
