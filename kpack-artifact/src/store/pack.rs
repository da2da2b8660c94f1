//! Packs artifacts, and writes the index of a store.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_core::platform::MetadataExt;
use kpack_format::digest::{Hasher, hex};
use kpack_format::names::fold_case;
use tar::{EntryType, Header};
use walkdir::{DirEntry, WalkDir};

use super::frames::{ENOUGH, MOST, Part, compress};
use super::index::{Entry, FILE_NAME, GENERIC, Index, file_name, is_portable, parse_file_name};
use super::member::{self, Contents, MAX_LIST, Member, Visitor, misplaced, target_of};
use super::path::link_fault;
use crate::classify::Class;
use crate::names::is_file_name;
use crate::tree::{Role, Siblings, Tree};
use crate::{manifest_txt, mark};
use kpack_core::interrupt::Watched;
use kpack_core::parallel;
use kpack_core::platform::{SharedInode, shared_inode};
use kpack_core::publish::{Directory, Stage, StagedFile, write_output};
use kpack_core::report::Progress;
use kpack_core::{Error, Finding, Severity, ids};
use kpack_split::input::{self, walk_error};
use kpack_split::leftover::{self, is_leftover_entry};
use kpack_split::source_date;

/// The default level of compression.
const LEVEL: i32 = 3;

/// What to pack, and where.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PackOptions {
    /// The directory with split or recombined artifacts.
    pub artifacts: PathBuf,
    /// The directory for the packed artifacts and their index.
    pub output_dir: PathBuf,
    /// What to write into the index.
    pub index: IndexOptions,
    /// zstd's level of compression.
    pub level: i32,
    /// Number of threads.
    pub jobs: NonZeroUsize,
}

/// What to write into an index besides the artifacts.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct IndexOptions {
    /// The build.
    pub run: Option<String>,
    /// The machine.
    pub shard: Option<String>,
    /// The targets that it built for; if empty, those of the artifacts.
    pub built_for: Vec<String>,
}

impl PackOptions {
    /// Options with defaults for everything else.
    pub fn new(artifacts: impl Into<PathBuf>, output_dir: impl Into<PathBuf>) -> Self {
        Self {
            artifacts: artifacts.into(),
            output_dir: output_dir.into(),
            index: IndexOptions::default(),
            level: LEVEL,
            jobs: parallel::processors(),
        }
    }
}

/// What was packed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Packed {
    /// The index.
    pub index: Index,
    /// What was left out, and what other systems cannot unpack.
    pub findings: Vec<Finding>,
}

/// Packs the artifacts of a directory: each as a file, its SHA-256 beside it, and the index last. All of them appear
/// under their names together. The same trees give the same bytes, whenever and wherever.
///
/// # Errors
/// [`Error::Refused`] for what is no split artifact, and for what no artifact may have; [`Error::Io`].
pub fn pack(options: &PackOptions, progress: &dyn Progress) -> Result<Packed, Error> {
    check_names(&options.index)?;
    let time = time()?;
    let (mut sources, mut findings) = sources(&options.artifacts)?;
    let stage = Stage::lock(&options.output_dir, STAGE)?;
    // Another publisher may have been there until now.
    let replaced = replaced(options)?;
    let mut artifacts: Vec<Artifact<'_>> = Vec::new();
    for source in &sources {
        artifacts.push(Artifact::open(source, time)?);
    }
    let mut packer = Packer { artifacts, current: 0, findings: Vec::new(), progress };
    let mut writer = StoreWriter {
        stage: &stage,
        names: sources.iter().map(|s| s.entry.file.clone()).collect(),
        open: None,
        written: Vec::new(),
    };
    compress(
        options.level,
        options.jobs,
        |part| packer.fill(part),
        |frame, is_last| writer.add(frame, is_last),
        |error| Error::io(&options.artifacts, "compress", error),
    )?;
    let written = std::mem::take(&mut writer.written);
    findings.append(&mut packer.findings);
    let counts: Vec<(u64, u64)> = packer.artifacts.iter().map(|a| (a.files, a.unpacked)).collect();
    drop(packer);
    for ((source, (size, sha256)), (files, unpacked)) in sources.iter_mut().zip(written).zip(counts)
    {
        let entry = &mut source.entry;
        (entry.size, entry.sha256, entry.files, entry.unpacked) = (size, sha256, files, unpacked);
    }
    let entries: Vec<Entry> = sources.into_iter().map(|source| source.entry).collect();
    let index = with_targets(&options.index, entries);
    publish(stage, &index, &replaced)?;
    Ok(Packed { index, findings })
}

/// Writes the index of packed artifacts that are already there, such as those of TheRock's own tools. Each is
/// read once, and must be as `pack` would have written it; a digest beside it must be its own. An index of another run
/// or shard stays.
///
/// # Errors
/// As [`pack()`].
pub fn index(store: &Path, options: &IndexOptions, jobs: NonZeroUsize) -> Result<Packed, Error> {
    check_names(options)?;
    let files = input::list(store)?;
    let named = files.iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let (component, target) = parse_file_name(name)?;
        Some((path, name, component, target))
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() {
        let text = "no packed artifacts, which have names such as blas_lib_gfx942.tar.zst";
        return Err(Error::rejected(ids::NOT_AN_ARTIFACT, store, text));
    }
    // `pack` waits for the same lock.
    let _stage = Stage::lock(store, STAGE)?;
    let path = store.join(FILE_NAME);
    let there = published(&path, options)?;
    let entries = parallel::with_jobs(jobs, || {
        parallel::try_map(named, |(path, name, component, target)| {
            let entry = Entry { file: name.to_owned(), component, target, ..Entry::default() };
            entry_of(path, entry)
        })
    })?;
    let is_unknown = |entry: &&Entry| !entry.is_generic() && entry.device_targets().is_empty();
    let findings = entries.iter().filter(is_unknown).map(|entry| {
        let text = format!(
            "nothing says which GPUs `{}` is for, so that `kpack select --arch` never takes it; pack it with \
             `kpack pack`, or call it after a target",
            entry.target
        );
        let (id, path) = (ids::UNKNOWN_GROUP, store.join(&entry.file));
        Finding::new(Severity::Warning, id, path, text)
    });
    let findings = findings.collect();
    let index = with_targets(options, entries);
    if let Some(there) = there {
        check_poorer(&path, &there, &index)?;
    }
    let bytes = index.to_checked_bytes(&path)?;
    write_output(&path, |staged: &mut StagedFile| {
        let written = staged.file().write_all(&bytes);
        written.map_err(|e| Error::io(&path, "write", e))
    })?;
    Ok(Packed { index, findings })
}

/// The entry of the packed artifact `path`, with what is in it.
fn entry_of(path: &Path, entry: Entry) -> Result<Entry, Error> {
    let mut archives = Archives::default();
    let Contents { size, sha256, unpacked, files } = member::read(path, None, &mut archives)?;
    check_digest_beside(path, &sha256)?;
    let mut entry = Entry { size, sha256, unpacked, files, ..entry };
    if !entry.is_generic() && entry.device_targets().is_empty() {
        let targets = archives.0.iter().filter_map(|path| target_of(path));
        let targets: BTreeSet<String> = targets.map(|target| target.to_string()).collect();
        entry.targets = targets.into_iter().collect();
    }
    match archives.0.iter().find_map(|archive| misplaced(&entry, archive)) {
        Some(text) => Err(Error::rejected(ids::MISPLACED_FILE, path, text)),
        None => Ok(entry),
    }
}

/// Refuses to replace an index that says more than the archives do.
fn check_poorer(path: &Path, there: &Index, new: &Index) -> Result<(), Error> {
    let says_more = |entry: &Entry| {
        let new = new.artifacts.iter().find(|new| new.file == entry.file);
        new.is_some_and(|new| {
            entry.databases.is_some()
                || !entry.targets.is_empty() && new.device_targets().is_empty()
        })
    };
    if !there.artifacts.iter().any(says_more) {
        return Ok(());
    }
    let text = "the index lists targets or databases that the archives alone do not show; keep it, or \
                remove it to write a new one";
    Err(Error::rejected(ids::OUTPUT_IN_THE_WAY, path, text))
}

/// The name of the file with the digest of a packed artifact.
fn digest_name(file: &str) -> String {
    format!("{file}.sha256sum")
}

fn check_digest_beside(path: &Path, sha256: &str) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(digest_name(&name));
    if !beside.exists() {
        return Ok(());
    }
    let text = input::read_text(&beside)?;
    let found = text.split_whitespace().next().unwrap_or_default();
    if found.eq_ignore_ascii_case(sha256) {
        return Ok(());
    }
    let text = format!(
        "its SHA-256 is {sha256} (expected {found}, as {} says); download both again",
        beside.display()
    );
    Err(Error::rejected(ids::WRONG_DIGEST, path, text))
}

/// The archives of kernels in an artifact.
#[derive(Default)]
struct Archives(Vec<PathBuf>);

impl Visitor for Archives {
    fn prefixes(&mut self, _: &str, _: &[String], _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn member(&mut self, member: Member<'_>) -> Result<(), Error> {
        if target_of(&member.path).is_some() {
            self.0.push(member.path);
        }
        Ok(())
    }
}

/// The hidden directory of a store is called after this.
const STAGE: &str = "kpack-store";

fn check_names(options: &IndexOptions) -> Result<(), Error> {
    for (what, name) in [("run", &options.run), ("shard", &options.shard)] {
        if let Some(name) = name
            && !is_file_name(name)
        {
            let text = format!("{what} `{name}`: expected letters, digits and `._+:-`");
            return Err(Error::usage(text));
        }
    }
    Ok(())
}

/// The time of all members, in seconds since 1970: that of `SOURCE_DATE_EPOCH`, or else 1980.
fn time() -> Result<u64, Error> {
    const DEFAULT: u64 = 315_532_800;
    let time = source_date(|seconds| u64::try_from(seconds).ok())?;
    Ok(time.unwrap_or(DEFAULT))
}

fn with_targets(options: &IndexOptions, entries: Vec<Entry>) -> Index {
    let built_for = if options.built_for.is_empty() {
        let targets = entries.iter().flat_map(Entry::device_targets);
        let targets: BTreeSet<String> = targets.map(|target| target.to_string()).collect();
        targets.into_iter().collect()
    } else {
        options.built_for.clone()
    };
    Index::new(options.run.clone(), options.shard.clone(), built_for, entries)
}

/// An artifact to pack.
struct Source {
    root: PathBuf,
    entry: Entry,
}

/// The artifacts in a directory, by the names of their files.
fn sources(directory: &Path) -> Result<(Vec<Source>, Vec<Finding>), Error> {
    let found = Siblings::read(directory)?;
    let mut findings = Vec::new();
    for path in found.leftovers {
        let text = format!("skipped: {}", leftover::TEXT);
        findings.push(Finding::new(Severity::Warning, ids::LEFTOVER, path, text));
    }
    for path in found.others {
        let text = "skipped: not an artifact, which has an artifact_manifest.txt";
        findings.push(Finding::new(Severity::Note, ids::NOT_AN_ARTIFACT, path, text));
    }
    let mut sources: Vec<Source> = Vec::new();
    for (root, component, role) in found.artifacts {
        sources.push(source(root, component, &role)?);
    }
    sources.sort_by(|a, b| a.entry.file.cmp(&b.entry.file));
    if sources.is_empty() {
        let text = "no artifacts; expected the output of `kpack split` or `kpack recombine`";
        return Err(Error::rejected(ids::NOT_AN_ARTIFACT, directory, text));
    }
    let mut known: HashMap<String, PathBuf> = HashMap::new();
    for source in &sources {
        let name = fold_case(&source.entry.file);
        if let Some(other) = known.insert(name, source.root.clone()) {
            let text = format!(
                "its file {} would clash with that of {} where case is ignored; rename one of the artifacts",
                source.entry.file,
                other.display()
            );
            return Err(Error::rejected(ids::NAMES_DIFFER_BY_CASE, &source.root, text));
        }
    }
    Ok((sources, findings))
}

fn source(root: PathBuf, component: String, role: &Role) -> Result<Source, Error> {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let mut targets = Vec::new();
    let target = match role {
        Role::Unsplit => {
            let text = "not split; pack the output of `kpack split`, such as blas_lib_generic";
            return Err(Error::rejected(ids::NOT_AN_ARTIFACT, &root, text));
        }
        Role::Generic => GENERIC.to_owned(),
        Role::Target(_) => name[component.len() + 1..].to_owned(),
        Role::Group => {
            targets = targets_of_group(&root)?;
            name[component.len() + 1..].to_owned()
        }
    };
    let file = file_name(&component, &target);
    if !is_file_name(&name) || !is_portable(&digest_name(&file)) {
        let text = format!(
            "expected a name of letters, digits and `._+-`, for a file that every system can hold ({file}); rename it"
        );
        return Err(Error::rejected(ids::UNREPRESENTABLE_PATH, &root, text));
    }
    let databases =
        if mark::is_marked(&root) { Some(mark::databases(&root)?.names()) } else { None };
    let entry = Entry { file, component, target, targets, databases, ..Entry::default() };
    Ok(Source { root, entry })
}

/// The list of prefixes of an artifact, as it is.
fn read_list(root: &Path) -> Result<Vec<u8>, Error> {
    let path = root.join(manifest_txt::FILE_NAME);
    let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, "read", e))?;
    if bytes.len() as u64 > MAX_LIST {
        let text = format!("it has {} bytes (expected at most {MAX_LIST})", bytes.len());
        return Err(Error::rejected(ids::INVALID_PREFIX_LIST, &path, text));
    }
    Ok(bytes)
}

/// The targets that the artifact of a group has code for.
fn targets_of_group(root: &Path) -> Result<Vec<String>, Error> {
    let tree = Tree::read("", root)?;
    let targets: BTreeSet<String> = tree
        .entries
        .values()
        .filter_map(|item| match &item.class {
            Class::Target { target, .. } => Some(target.to_string()),
            _ => None,
        })
        .collect();
    Ok(targets.into_iter().collect())
}

/// The files of an earlier run of this shard in the output directory, which this one replaces.
fn replaced(options: &PackOptions) -> Result<Vec<String>, Error> {
    let path = options.output_dir.join(FILE_NAME);
    let there = published(&path, &options.index)?;
    let entries = there.into_iter().flat_map(|there| there.artifacts);
    Ok(entries.map(|entry| entry.file).collect())
}

/// The index at `path`, if there is one, which must be of the same publisher.
fn published(path: &Path, own: &IndexOptions) -> Result<Option<Index>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let there = Index::read(path)?;
    if (&there.run, &there.shard) != (&own.run, &own.shard) {
        let name = |run: &Option<String>, shard: &Option<String>| {
            let or_none = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".to_owned());
            format!("run {}, shard {}", or_none(run), or_none(shard))
        };
        let text = format!(
            "belongs to {} (expected {}); choose another directory, or pass that run and shard",
            name(&there.run, &there.shard),
            name(&own.run, &own.shard)
        );
        return Err(Error::rejected(ids::OTHER_PUBLISHER, path, text));
    }
    Ok(Some(there))
}

fn publish(stage: Stage, index: &Index, replaced: &[String]) -> Result<(), Error> {
    let write = |name: &str, bytes: &[u8]| {
        let file = stage.directory().create_open(name.as_ref(), false);
        let written = file.and_then(|mut file| file.write_all(bytes));
        written.map_err(|e| Error::io(&stage.output(name), "write", e))
    };
    let mut names = Vec::new();
    for entry in &index.artifacts {
        let digest = digest_name(&entry.file);
        write(&digest, format!("{}\n", entry.sha256).as_bytes())?;
        names.extend([entry.file.clone(), digest]);
    }
    write(FILE_NAME, &index.to_checked_bytes(&stage.output(FILE_NAME))?)?;
    let mut stale = Vec::new();
    for file in replaced {
        stale.extend(
            [file.clone(), digest_name(file)].into_iter().filter(|file| !names.contains(file)),
        );
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let stale: Vec<&str> = stale.iter().map(String::as_str).collect();
    stage.publish(&names, Some(FILE_NAME), &stale, &|_| Ok(()))
}

/// Writes the files of a store, one after another.
struct StoreWriter<'a> {
    stage: &'a Stage,
    names: Vec<String>,
    open: Option<(File, Hasher, u64)>,
    /// Size and SHA-256 of each file.
    written: Vec<(u64, String)>,
}

impl StoreWriter<'_> {
    fn add(&mut self, frame: &[u8], is_last: bool) -> Result<(), Error> {
        let name = &self.names[self.written.len()];
        let path = self.stage.output(name);
        let (file, hasher, size) = match &mut self.open {
            Some(open) => open,
            none => {
                let file = self.stage.directory().create_open(name.as_ref(), false);
                let file = file.map_err(|e| Error::io(&path, "create", e))?;
                none.insert((file, Hasher::default(), 0))
            }
        };
        let written = Watched(file).write_all(frame);
        written.map_err(|e| Error::io(&path, "write", e))?;
        hasher.update(frame);
        *size += frame.len() as u64;
        if is_last && let Some((_, hasher, size)) = self.open.take() {
            self.written.push((size, hex(&hasher.finish())));
        }
        Ok(())
    }
}

/// Makes tar archives of artifacts, a part at a time.
struct Packer<'a> {
    artifacts: Vec<Artifact<'a>>,
    /// The one at work.
    current: usize,
    findings: Vec<Finding>,
    progress: &'a dyn Progress,
}

impl Packer<'_> {
    /// Makes the next part; returns whether there is one.
    fn fill(&mut self, part: &mut Part) -> Result<bool, Error> {
        let Some(artifact) = self.artifacts.get_mut(self.current) else {
            return Ok(false);
        };
        // Headers, and what fills up a block, come on top.
        let room = part.bytes.try_reserve(MOST + ENOUGH / 4);
        room.map_err(|e| Error::io(&artifact.source.root, "read", e.into()))?;
        part.is_last = artifact.fill(&mut part.bytes, self.progress)?;
        if part.is_last {
            self.findings.append(&mut artifact.findings);
            self.current += 1;
        }
        Ok(true)
    }
}

/// The bytes of a block of tar.
const BLOCK: usize = 512;

/// Modes of files and directories. Those of builds depend on a user's umask.
const FILE_MODE: u32 = 0o644;
const EXECUTABLE_MODE: u32 = 0o755;

/// The longest name that a header holds.
const MAX_NAME: usize = 100;

/// An artifact that is being packed.
struct Artifact<'a> {
    source: &'a Source,
    /// What is left, by prefix.
    walks: std::vec::IntoIter<(String, WalkDir)>,
    walk: Option<(String, walkdir::IntoIter)>,
    /// The file that is being read, and how much of it is left.
    open: Option<(File, PathBuf, u64)>,
    /// The list of prefixes, until it is written.
    list: Option<Vec<u8>>,
    /// The first name of each file that has several.
    first_names: HashMap<SharedInode, Vec<u8>>,
    /// The names in the directories above, as they would be where case does not matter.
    siblings: Vec<BTreeSet<String>>,
    time: u64,
    files: u64,
    unpacked: u64,
    findings: Vec<Finding>,
}

impl<'a> Artifact<'a> {
    fn open(source: &'a Source, time: u64) -> Result<Self, Error> {
        let root = &source.root;
        let list = read_list(root)?;
        let mut prefixes = manifest_txt::read(root)?;
        prefixes.sort();
        let mut walks = Vec::new();
        for prefix in &prefixes {
            if let Some(directory) = manifest_txt::directory(root, prefix)? {
                let walk = WalkDir::new(directory).min_depth(1).sort_by_file_name();
                walks.push((prefix.clone(), walk));
            }
        }
        let mut findings = Vec::new();
        for outside in manifest_txt::walk_outside(root, &prefixes) {
            let outside = outside?;
            if !outside.file_type().is_dir() {
                let text =
                    format!("not packed: in no prefix that {} lists", manifest_txt::FILE_NAME);
                let finding =
                    Finding::new(Severity::Warning, ids::IN_NO_PREFIX, outside.path(), text);
                findings.push(finding);
            }
        }
        Ok(Self {
            source,
            walks: walks.into_iter(),
            walk: None,
            open: None,
            list: Some(list),
            first_names: HashMap::new(),
            siblings: Vec::new(),
            time,
            files: 0,
            unpacked: 0,
            findings,
        })
    }

    /// Adds bytes of the archive; returns whether it ends with them.
    fn fill(&mut self, bytes: &mut Vec<u8>, progress: &dyn Progress) -> Result<bool, Error> {
        if let Some(list) = self.list.take() {
            let name = manifest_txt::FILE_NAME.as_bytes();
            let size = list.len() as u64;
            self.header(bytes, name, EntryType::Regular, (FILE_MODE, size), b"");
            bytes.extend_from_slice(&list);
            pad(bytes);
        }
        loop {
            if let Some((file, path, left)) = &mut self.open {
                let room = MOST.saturating_sub(bytes.len()) as u64;
                let wanted = room.min(*left);
                let read = Read::by_ref(file).take(wanted).read_to_end(bytes);
                let read = read.map_err(|e| Error::io(path, "read", e))? as u64;
                if read < wanted {
                    return Err(Error::changed(path));
                }
                *left -= read;
                progress.advance(read);
                if *left > 0 {
                    return Ok(false);
                }
                pad(bytes);
                self.open = None;
            }
            if bytes.len() >= ENOUGH {
                return Ok(false);
            }
            let Some((prefix, entry)) = self.next_entry()? else {
                bytes.resize(bytes.len() + 2 * BLOCK, 0);
                return Ok(true);
            };
            self.add(bytes, &prefix, &entry, progress)?;
        }
    }

    fn next_entry(&mut self) -> Result<Option<(String, DirEntry)>, Error> {
        loop {
            let Some((prefix, walk)) = &mut self.walk else {
                match self.walks.next() {
                    Some((prefix, walk)) => {
                        self.walk = Some((prefix, walk.into_iter()));
                        self.siblings.clear();
                    }
                    None => return Ok(None),
                }
                continue;
            };
            match walk.next() {
                Some(entry) => {
                    let entry = entry.map_err(|e| walk_error(&self.source.root, e))?;
                    if !is_leftover_entry(&entry) {
                        return Ok(Some((prefix.clone(), entry)));
                    }
                    if entry.file_type().is_dir() {
                        walk.skip_current_dir();
                    }
                    let text = format!("not packed: {}", leftover::TEXT);
                    let path = entry.into_path();
                    self.findings.push(Finding::new(Severity::Warning, ids::LEFTOVER, path, text));
                }
                None => self.walk = None,
            }
        }
    }

    fn add(
        &mut self,
        bytes: &mut Vec<u8>,
        prefix: &str,
        entry: &DirEntry,
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let path = entry.path();
        self.note_case(entry);
        let metadata = entry.metadata().map_err(|e| walk_error(path, e))?;
        let within = path.strip_prefix(self.source.root.join(prefix)).unwrap_or(path);
        let member = Path::new(prefix).join(within);
        let name = &*super::path::bytes(&member);
        let refuse = |text: String| Err(Error::rejected(ids::UNSAFE_MEMBER, path, text));
        if let Err(text) = super::path::plain(name) {
            return refuse(text);
        }
        if let Some(text) = misplaced(&self.source.entry, &member) {
            return Err(Error::rejected(ids::MISPLACED_FILE, path, text));
        }
        self.files += 1;
        if metadata.is_dir() {
            self.header(bytes, name, EntryType::Directory, (EXECUTABLE_MODE, 0), b"");
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(path).map_err(|e| Error::io(path, "read", e))?;
            if let Some(fault) = link_fault(within, &target) {
                return refuse(format!("{fault}; `kpack unpack` refuses that"));
            }
            if Directory::open(&self.source.root.join(prefix))?.leads_out(within) {
                let text = "a symbolic link out of its prefix, by way of others; `kpack unpack` refuses that";
                return refuse(text.to_owned());
            }
            let target = super::path::bytes(&target);
            self.header(bytes, name, EntryType::Symlink, (0o777, 0), &target);
        } else if metadata.is_file() {
            progress.file(name_of(path));
            self.file(bytes, path, name, &metadata)?;
        } else {
            let text = "neither file, directory nor symbolic link; remove it";
            return Err(Error::rejected(ids::NOT_A_FILE, path, text));
        }
        Ok(())
    }

    fn file(
        &mut self,
        bytes: &mut Vec<u8>,
        path: &Path,
        name: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Error> {
        if metadata.mode() & 0o7000 != 0 {
            let text = format!(
                "set-user-ID, set-group-ID or sticky (mode {:o}), which `kpack unpack` refuses; remove the bit",
                metadata.mode() & 0o7777
            );
            return Err(Error::rejected(ids::UNSAFE_MEMBER, path, text));
        }
        if let Some(inode) = shared_inode(metadata) {
            if let Some(first) = self.first_names.get(&inode).cloned() {
                self.header(bytes, name, EntryType::Link, (FILE_MODE, 0), &first);
                return Ok(());
            }
            self.first_names.insert(inode, name.to_owned());
        }
        let mode = match metadata.mode() & 0o100 {
            0 => FILE_MODE,
            _ => EXECUTABLE_MODE,
        };
        let size = metadata.len();
        self.header(bytes, name, EntryType::Regular, (mode, size), b"");
        self.unpacked += size;
        if size > 0 {
            self.open = Some((input::open(path)?, path.to_owned(), size));
        }
        Ok(())
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
            let finding = Finding::new(Severity::Warning, id, path, text);
            self.findings.push(finding);
        }
    }

    /// Adds the header of a member, with mode and size.
    fn header(
        &self,
        bytes: &mut Vec<u8>,
        name: &[u8],
        kind: EntryType,
        (mode, size): (u32, u64),
        link: &[u8],
    ) {
        for (long, kind) in [(name, EntryType::GNULongName), (link, EntryType::GNULongLink)] {
            if long.len() > MAX_NAME {
                write_header(
                    bytes,
                    b"././@LongLink",
                    kind,
                    (FILE_MODE, long.len() as u64 + 1),
                    0,
                    b"",
                );
                bytes.extend_from_slice(long);
                bytes.push(0);
                pad(bytes);
            }
        }
        write_header(bytes, name, kind, (mode, size), self.time, link);
    }
}

fn name_of(path: &Path) -> &Path {
    Path::new(path.file_name().unwrap_or_default())
}

/// Adds a header. What does not fit of name and link, the member before it has.
fn write_header(
    bytes: &mut Vec<u8>,
    name: &[u8],
    kind: EntryType,
    (mode, size): (u32, u64),
    time: u64,
    link: &[u8],
) {
    let mut header = Header::new_gnu();
    if let Some(gnu) = header.as_gnu_mut() {
        let name = &name[..name.len().min(MAX_NAME)];
        gnu.name[..name.len()].copy_from_slice(name);
        let link = &link[..link.len().min(MAX_NAME)];
        gnu.linkname[..link.len()].copy_from_slice(link);
    }
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(time);
    header.set_size(size);
    header.set_cksum();
    bytes.extend_from_slice(header.as_bytes());
}

/// Fills up the last block.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
}
