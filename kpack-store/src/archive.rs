//! Packs one artifact: a tar archive, compressed with zstd on several threads. The bytes depend on the artifact and the
//! level alone, not on the number of threads.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use kpack_artifact::manifest_txt;
use kpack_core::interrupt::Watched;
use kpack_core::platform::{MetadataExt, SharedInode, shared_inode};
use kpack_core::publish::Directory;
use kpack_core::report::Progress;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::digest::hex;
use kpack_format::names::fold_case;
use kpack_split::input::{self, walk, walk_error};
use kpack_split::leftover::{self, is_leftover_entry};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use walkdir::DirEntry;
use zstd::stream::write::Encoder;
use zstd::zstd_safe::CParameter;

use super::index::Entry;
use super::member::{Contents, MAX_LIST, misplaced};
use super::path::{Directories, bytes, link_fault, plain};

/// What the archives of a run have in common.
pub(super) struct Format {
    /// zstd's level of compression.
    pub(super) level: i32,
    /// The threads that compress.
    pub(super) threads: u32,
    /// The time of all members, in seconds since 1970.
    pub(super) time: u64,
}

/// A thread compresses this many bytes at a time. The number of threads changes no byte, but this does.
const PART: u32 = 4 << 20;

/// A part can refer to the end of the part before it: an eighth of zstd's window, as zstd itself has it at low levels.
/// At high levels it would take the whole window, which is larger than a part.
const OVERLAP: u32 = 6;

/// Modes of files and directories. Those of builds depend on a user's umask.
const FILE_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// Packs the artifact directory `root`, which becomes `entry` of the index, into `file`, whose final path will be
/// `output`. Returns what is in the archive, and what is not.
pub(super) fn write(
    root: &Path,
    entry: &Entry,
    (file, output): (File, &Path),
    format: &Format,
    progress: &dyn Progress,
) -> Result<(Contents, Vec<Finding>), Error> {
    let list = read_list(root)?;
    let mut prefixes = manifest_txt::read(root)?;
    prefixes.sort();
    // Everything else in a tree is a member.
    Directories::new(&prefixes).map_err(|text| {
        Error::rejected(ids::INVALID_PREFIX_LIST, &root.join(manifest_txt::FILE_NAME), text)
    })?;
    let mut packer = Packer {
        root,
        entry,
        output,
        builder: Builder::new(compressor(file, format).map_err(|e| unwritten(output, e))?),
        first_names: HashMap::new(),
        siblings: Vec::new(),
        time: format.time,
        contents: Contents::default(),
        findings: unlisted(root, &prefixes)?,
        progress,
    };
    packer.file(Path::new(manifest_txt::FILE_NAME), FILE_MODE, list.len() as u64, &*list)?;
    for prefix in &prefixes {
        if let Some(directory) = manifest_txt::prefix_directory(root, prefix)? {
            packer.prefix(prefix, &directory)?;
        }
    }
    let encoder = packer.builder.into_inner();
    let written = encoder.and_then(Encoder::finish).map_err(|e| unwritten(output, e))?;
    let (size, sha256) = (written.size, hex(&written.hasher.finalize()));
    Ok((Contents { size, sha256, ..packer.contents }, packer.findings))
}

/// The list of prefixes of an artifact, as it is.
fn read_list(root: &Path) -> Result<Vec<u8>, Error> {
    let path = root.join(manifest_txt::FILE_NAME);
    let list = std::fs::read(&path).map_err(|e| Error::io(&path, "read", e))?;
    if list.len() as u64 <= MAX_LIST {
        return Ok(list);
    }
    let text = format!("it has {} bytes (expected at most {MAX_LIST})", list.len());
    Err(Error::rejected(ids::INVALID_PREFIX_LIST, &path, text))
}

/// A warning for each file that is in no prefix.
fn unlisted(root: &Path, prefixes: &[String]) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for outside in manifest_txt::walk_outside(root, prefixes) {
        let outside = outside?;
        if !outside.file_type().is_dir() {
            let text = format!("not packed: in no prefix that {} lists", manifest_txt::FILE_NAME);
            let path = outside.into_path();
            findings.push(Finding::new(Severity::Warning, ids::IN_NO_PREFIX, path, text));
        }
    }
    Ok(findings)
}

type Compressor = Encoder<'static, HashedFile>;

fn compressor(file: File, format: &Format) -> io::Result<Compressor> {
    let output = HashedFile { file: Watched(file), hasher: Sha256::new(), size: 0 };
    let mut encoder = Encoder::new(output, format.level)?;
    // Readers without the index notice damage.
    encoder.include_checksum(true)?;
    // Without a thread of its own, zstd would write other bytes than with one or more.
    encoder.multithread(format.threads.max(1))?;
    encoder.set_parameter(CParameter::JobSize(PART))?;
    encoder.set_parameter(CParameter::OverlapSizeLog(OVERLAP))?;
    Ok(encoder)
}

/// A file that is hashed as it is written.
struct HashedFile {
    file: Watched<File>,
    hasher: Sha256,
    size: u64,
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // zstd does not repeat a write that was interrupted at the end of its frame.
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The content of a file that has to have the size that is in its header.
struct SizedFile<'a> {
    path: &'a Path,
    file: File,
    left: u64,
    progress: &'a dyn Progress,
}

impl Read for SizedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = match self.file.read(&mut buffer[..wanted]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => return Err(io::Error::other(Error::io(self.path, "read", error))),
            Ok(0) if wanted > 0 => return Err(io::Error::other(Error::changed(self.path))),
            Ok(read) => read,
        };
        self.left -= read as u64;
        self.progress.advance(read as u64);
        Ok(read)
    }
}

/// Why an archive could not be written: it has what [`SizedFile`] says of its own file.
fn unwritten(output: &Path, error: io::Error) -> Error {
    error.downcast().unwrap_or_else(|error| Error::io(output, "write", error))
}

/// An artifact that is being packed.
struct Packer<'a> {
    root: &'a Path,
    entry: &'a Entry,
    output: &'a Path,
    builder: Builder<Compressor>,
    /// The first name of each file that has several.
    first_names: HashMap<SharedInode, PathBuf>,
    /// The names in the directories above, as they would be where case does not matter.
    siblings: Vec<BTreeSet<String>>,
    time: u64,
    contents: Contents,
    findings: Vec<Finding>,
    progress: &'a dyn Progress,
}

impl Packer<'_> {
    /// Adds what is in a prefix, by name.
    fn prefix(&mut self, prefix: &str, directory: &Path) -> Result<(), Error> {
        self.siblings.clear();
        let mut walk = walk(directory).min_depth(1).into_iter();
        while let Some(entry) = walk.next() {
            let entry = entry.map_err(|e| walk_error(self.root, e))?;
            if !is_leftover_entry(&entry) {
                self.add(prefix, directory, &entry)?;
                continue;
            }
            if entry.file_type().is_dir() {
                walk.skip_current_dir();
            }
            let text = format!("not packed: {}", leftover::TEXT);
            let path = entry.into_path();
            self.findings.push(Finding::new(Severity::Warning, ids::LEFTOVER, path, text));
        }
        Ok(())
    }

    fn add(&mut self, prefix: &str, directory: &Path, entry: &DirEntry) -> Result<(), Error> {
        let path = entry.path();
        self.note_case(entry);
        let metadata = entry.metadata().map_err(|e| walk_error(path, e))?;
        let within = path.strip_prefix(directory).unwrap_or(path);
        let member = Path::new(prefix).join(within);
        let refuse = |text: String| Err(Error::rejected(ids::UNSAFE_MEMBER, path, text));
        if let Err(text) = plain(&bytes(&member)) {
            return refuse(text);
        }
        if let Some(text) = misplaced(self.entry, &member) {
            return Err(Error::rejected(ids::MISPLACED_FILE, path, text));
        }
        self.contents.files += 1;
        if metadata.is_dir() {
            self.member(&member, EntryType::Directory, (EXECUTABLE_MODE, 0), io::empty())
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(path).map_err(|e| Error::io(path, "read", e))?;
            if let Some(fault) = link_fault(within, &target) {
                return refuse(format!("{fault}; `kpack artifact unpack` refuses that"));
            }
            if Directory::open(directory)?.leads_out(within)? {
                let text = "a symbolic link out of its prefix, by way of others; `kpack artifact unpack` refuses that";
                return refuse(text.to_owned());
            }
            self.link(&member, EntryType::Symlink, 0o777, &target)
        } else if metadata.is_file() {
            self.progress.file(Path::new(entry.file_name()));
            self.regular(path, member, &metadata)
        } else {
            let text = "neither file, directory nor symbolic link; remove it";
            Err(Error::rejected(ids::NOT_A_FILE, path, text))
        }
    }

    fn regular(&mut self, path: &Path, member: PathBuf, metadata: &Metadata) -> Result<(), Error> {
        if metadata.mode() & 0o7000 != 0 {
            let text = format!(
                "set-user-ID, set-group-ID or sticky (mode {:o}), which `kpack artifact unpack` refuses; remove the bit",
                metadata.mode() & 0o7777
            );
            return Err(Error::rejected(ids::UNSAFE_MEMBER, path, text));
        }
        if let Some(inode) = shared_inode(metadata) {
            if let Some(first) = self.first_names.get(&inode).cloned() {
                return self.link(&member, EntryType::Link, FILE_MODE, &first);
            }
            self.first_names.insert(inode, member.clone());
        }
        let mode = match metadata.mode() & 0o100 {
            0 => FILE_MODE,
            _ => EXECUTABLE_MODE,
        };
        let (file, left) = (input::open(path)?, metadata.len());
        self.contents.unpacked += left;
        self.file(&member, mode, left, SizedFile { path, file, left, progress: self.progress })
    }

    /// Notes names that are one where case does not matter.
    fn note_case(&mut self, entry: &DirEntry) {
        self.siblings.truncate(entry.depth());
        self.siblings.resize_with(entry.depth(), BTreeSet::new);
        let name = fold_case(&entry.file_name().to_string_lossy());
        let siblings = self.siblings.last_mut();
        if siblings.is_some_and(|siblings| !siblings.insert(name)) {
            let text = "another name in its directory differs from it only by case, so that some \
                        systems cannot unpack both";
            let (id, path) = (ids::NAMES_DIFFER_BY_CASE, entry.path());
            self.findings.push(Finding::new(Severity::Warning, id, path, text));
        }
    }

    fn file(
        &mut self,
        member: &Path,
        mode: u32,
        size: u64,
        content: impl Read,
    ) -> Result<(), Error> {
        self.member(member, EntryType::Regular, (mode, size), content)
    }

    fn member(
        &mut self,
        path: &Path,
        kind: EntryType,
        (mode, size): (u32, u64),
        content: impl Read,
    ) -> Result<(), Error> {
        let mut header = header(kind, mode, size, self.time);
        let added = self.builder.append_data(&mut header, path, content);
        added.map_err(|error| unwritten(self.output, error))
    }

    fn link(&mut self, path: &Path, kind: EntryType, mode: u32, to: &Path) -> Result<(), Error> {
        let mut header = header(kind, mode, 0, self.time);
        // The library's own function would write `a//b` as `a/b`.
        let to = bytes(to);
        if header.set_link_name_literal(&to).is_err() {
            self.long_link(&to)?;
        }
        let added = self.builder.append_data(&mut header, path, io::empty());
        added.map_err(|error| unwritten(self.output, error))
    }

    /// Adds where the next member leads to, as a member of its own: it is longer than a header can hold.
    fn long_link(&mut self, to: &[u8]) -> Result<(), Error> {
        let (kind, size) = (EntryType::GNULongLink, to.len() as u64 + 1);
        self.member(Path::new("@LongLink"), kind, (FILE_MODE, size), to.chain(&b"\0"[..]))
    }
}

/// The header of a member, without its name.
fn header(kind: EntryType, mode: u32, size: u64, time: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(time);
    header.set_size(size);
    header
}
