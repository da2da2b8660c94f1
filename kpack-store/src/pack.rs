//! Packs artifacts, and writes the index of a store.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_artifact::directories::Siblings;
use kpack_artifact::mark;
use kpack_artifact::names::{Role, is_file_name};
use kpack_artifact::tree::targets_of_group;
use kpack_core::parallel;
use kpack_core::publish::{NewNames, Stage, StagedFile, write_output};
use kpack_core::report::Progress;
use kpack_core::{Error, Finding, Reason, Severity, ids};
use kpack_format::names::fold_case;
use kpack_split::{input, leftover, source_date};

use super::archive::{self, Format};
use super::index::{Entry, FILE_NAME, GENERIC, Index, file_name, is_portable, parse_file_name};
use super::member::{self, Contents, Member, Visitor, misplaced, target_of};

/// The default level of compression.
const LEVEL: i32 = 3;

/// Each thread takes some 10 MB, and at high levels 100.
const MAX_THREADS: NonZeroUsize = NonZeroUsize::new(6).unwrap();

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
    let threads = options.jobs.min(MAX_THREADS).get() as u32;
    let format = Format { level: options.level, threads, time: time()? };
    let (sources, mut findings) = sources(&options.artifacts)?;
    let stage = Stage::lock(&options.output_dir, STAGE)?;
    // Another publisher may have been there until now.
    let there = published(&stage, &options.index)?;
    let replaced: Vec<String> =
        there.into_iter().flat_map(|(_, there)| there.artifacts).map(|entry| entry.file).collect();
    let mut entries = Vec::new();
    for ArtifactSource { root, entry } in sources {
        let output = stage.output(&entry.file);
        let file = stage
            .directory()
            .create_open(entry.file.as_ref(), false)
            .map_err(|e| Error::io(&output, "create", e))?;
        let (contents, found) = archive::write(&root, &entry, (file, &output), &format, progress)?;
        findings.extend(found);
        let Contents { size, sha256, unpacked, files } = contents;
        entries.push(Entry { size, sha256, unpacked, files, ..entry });
    }
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
    let named: Vec<_> = files
        .iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let (component, target) = parse_file_name(name)?;
            Some((path, name, component, target))
        })
        .collect();
    if named.is_empty() {
        let text = "no packed artifacts, which have names such as blas_lib_gfx942.tar.zst";
        return Err(Error::rejected(ids::NOT_AN_ARTIFACT, store, text));
    }
    // `pack` waits for the same lock.
    let stage = Stage::lock(store, STAGE)?;
    let path = store.join(FILE_NAME);
    let there = published(&stage, options)?;
    let entries = parallel::with_jobs(jobs, || {
        parallel::try_map(named, |(path, name, component, target)| {
            let entry = Entry { file: name.to_owned(), component, target, ..Entry::default() };
            entry_of(path, entry)
        })
    })?;
    let is_unknown = |entry: &&Entry| !entry.is_generic() && entry.device_targets().is_empty();
    let findings = entries.iter().filter(is_unknown).map(|entry| {
        let text = format!(
            "nothing says which GPUs `{}` is for, so that `kpack artifact select --arch` never takes it; pack it with \
             `kpack artifact pack`, or call it after a target",
            entry.target
        );
        let (id, path) = (ids::UNKNOWN_GROUP, store.join(&entry.file));
        Finding::new(Severity::Warning, id, path, text)
    }).collect();
    let index = with_targets(options, entries);
    for (path, there) in there {
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
    let mut archives = KernelArchives::default();
    let Contents { size, sha256, unpacked, files } = member::read(path, None, &mut archives)?;
    check_digest_beside(path, &sha256)?;
    let mut entry = Entry { size, sha256, unpacked, files, ..entry };
    if !entry.is_generic() && entry.device_targets().is_empty() {
        let targets: BTreeSet<String> = archives
            .0
            .iter()
            .filter_map(|path| target_of(path))
            .map(|target| target.to_string())
            .collect();
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
    Err(Error::rejected(ids::WRONG_DIGEST, path, Reason::from(text).differs(found, sha256)))
}

/// The archives of kernels in an artifact.
#[derive(Default)]
struct KernelArchives(Vec<PathBuf>);

impl Visitor for KernelArchives {
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
        let targets: BTreeSet<String> = entries
            .iter()
            .flat_map(Entry::device_targets)
            .map(|target| target.to_string())
            .collect();
        targets.into_iter().collect()
    } else {
        options.built_for.clone()
    };
    Index::new(options.run.clone(), options.shard.clone(), built_for, entries)
}

/// An artifact to pack.
struct ArtifactSource {
    root: PathBuf,
    entry: Entry,
}

/// The artifacts in a directory, by the names of their files.
fn sources(directory: &Path) -> Result<(Vec<ArtifactSource>, Vec<Finding>), Error> {
    let found = Siblings::read(directory)?;
    let mut findings = Vec::from_iter(found.skipped());
    for path in &found.leftovers {
        let text = format!("skipped: {}", leftover::TEXT);
        findings.push(Finding::new(Severity::Warning, ids::LEFTOVER, path, text));
    }
    for path in &found.others {
        let text = "skipped: not an artifact, which has an artifact_manifest.txt";
        findings.push(Finding::new(Severity::Note, ids::NOT_AN_ARTIFACT, path, text));
    }
    let mut sources: Vec<ArtifactSource> = Vec::new();
    for (root, component, role) in found.roles() {
        sources.push(source(root.to_owned(), component, &role)?);
    }
    sources.sort_by(|a, b| a.entry.file.cmp(&b.entry.file));
    if sources.is_empty() {
        let text = "no artifacts; expected the output of `kpack artifact split` or `kpack artifact recombine`";
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

fn source(root: PathBuf, component: String, role: &Role) -> Result<ArtifactSource, Error> {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let mut targets = Vec::new();
    let target = match role {
        Role::Unsplit => {
            let text =
                "not split; pack the output of `kpack artifact split`, such as blas_lib_generic";
            return Err(Error::rejected(ids::NOT_AN_ARTIFACT, &root, text));
        }
        Role::Generic => GENERIC.to_owned(),
        Role::Target(_) => name[component.len() + 1..].to_owned(),
        Role::Group => {
            let found = targets_of_group(&root)?.into_iter();
            targets = found.map(|target| target.to_string()).collect();
            targets.sort();
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
    let databases = mark::noted(&root)?.map(|noted| noted.names());
    let entry = Entry { file, component, target, targets, databases, ..Entry::default() };
    Ok(ArtifactSource { root, entry })
}

/// The index in the output directory and one that a killed run has set aside, as far as there are any. They must be of
/// the same publisher.
fn published(stage: &Stage, own: &IndexOptions) -> Result<Vec<(PathBuf, Index)>, Error> {
    let aside = stage.set_aside(FILE_NAME.as_ref())?;
    let directories = [Some(stage.above()), aside.as_ref()];
    let mut there = Vec::new();
    for directory in directories.into_iter().flatten() {
        if !directory.has(FILE_NAME.as_ref())? {
            continue;
        }
        let path = directory.path().join(FILE_NAME);
        let index = Index::read(&directory.anchor().join(FILE_NAME))?;
        check_publisher(&path, &index, own)?;
        there.push((path, index));
    }
    Ok(there)
}

/// Refuses the index of another publisher.
fn check_publisher(path: &Path, there: &Index, own: &IndexOptions) -> Result<(), Error> {
    if (&there.run, &there.shard) == (&own.run, &own.shard) {
        return Ok(());
    }
    let name = |run: &Option<String>, shard: &Option<String>| {
        let or_none = |name: &Option<String>| name.clone().unwrap_or_else(|| "none".to_owned());
        format!("run {}, shard {}", or_none(run), or_none(shard))
    };
    let text = format!(
        "belongs to {} (expected {}); choose another directory, or pass that run and shard",
        name(&there.run, &there.shard),
        name(&own.run, &own.shard)
    );
    Err(Error::rejected(ids::OTHER_PUBLISHER, path, text))
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
    stage.publish(&NewNames::new(&names).with_last(&[FILE_NAME]).instead_of(&stale))
}
