//! Whether unpacked shards are what their machines published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_artifact::directories::Siblings;
use kpack_artifact::manifest_txt;
use kpack_core::platform::shared_inode;
use kpack_core::publish::is_leftover;
use kpack_core::{Error, ids};
use kpack_split::input::walk_error;
use kpack_split::leftover::directories;
use walkdir::WalkDir;

use super::index::{FILE_NAME, Index};

/// Checks that each shard in `directory` has the index that [`unpack()`](crate::unpack()) left, and the artifacts that
/// it lists, by name and size; and that all are of one run.
///
/// # Errors
/// [`Error::Refused`] for the first shard that is not what was published; [`Error::Io`].
pub fn check_shards(directory: &Path) -> Result<(), Error> {
    let mut first: Option<(String, Option<String>)> = None;
    for shard in directories(directory)? {
        let name = shard.file_name().unwrap_or_default();
        if is_leftover(name) {
            continue;
        }
        let artifacts = Siblings::read(&shard)?.artifacts;
        // `recombine` says that it is no shard.
        if artifacts.is_empty() {
            continue;
        }
        let name = name.to_string_lossy().into_owned();
        let index = read(&shard, &name, artifacts.iter().map(PathBuf::as_path))?;
        match &first {
            Some((other, run)) if *run != index.run => {
                let run_of =
                    |run: &Option<String>| run.clone().unwrap_or_else(|| "none".to_owned());
                let text = format!(
                    "its index is of run {} (expected {}, as of shard {other}); fetch the shards of one run",
                    run_of(&index.run),
                    run_of(run)
                );
                return Err(Error::rejected(ids::SHARDS_DIFFER, &shard, text));
            }
            Some(_) => {}
            None => first = Some((name, index.run)),
        }
    }
    Ok(())
}

/// The index of the shard at `path`, called `name`, which fits its `artifacts`.
fn read<'a>(
    shard: &Path,
    name: &str,
    artifacts: impl Iterator<Item = &'a Path>,
) -> Result<Index, Error> {
    let path = shard.join(FILE_NAME);
    if !path.exists() {
        let text = format!(
            "it has no {}, so it is not published, or was not made by `kpack artifact unpack`; fetch and unpack it again",
            FILE_NAME
        );
        return Err(Error::rejected(ids::NOT_PUBLISHED, shard, text));
    }
    let index = Index::read(&path)?;
    let refuse = |text: String| Err(Error::rejected(ids::INDEX_DIFFERS, &path, text));
    if let Some(other) = index.shard.as_deref().filter(|other| *other != name) {
        return refuse(format!("it is the index of shard {other}; rename the directory"));
    }
    let names = artifacts.filter_map(|path| Some((path.file_name()?.to_str()?, path)));
    let there: BTreeMap<&str, &Path> = names.collect();
    let listed: BTreeSet<String> = index.artifacts.iter().map(|entry| entry.artifact()).collect();
    if let Some(name) = there.keys().find(|name| !listed.contains(**name)) {
        return refuse(format!("it does not list {name}, which is there; unpack the shard again"));
    }
    for entry in &index.artifacts {
        let Some(root) = there.get(entry.artifact().as_str()) else {
            let name = entry.artifact();
            return refuse(format!("it lists {name}, which is missing; unpack the shard again"));
        };
        let found = size(root)?;
        if found != entry.unpacked {
            return refuse(format!(
                "{} has files of {found} bytes (expected {}); unpack the shard again",
                entry.artifact(),
                entry.unpacked
            ));
        }
    }
    Ok(index)
}

/// The size of the files in the prefixes of an artifact, which is all that an index says about what was unpacked. A
/// file with several names counts once.
fn size(root: &Path) -> Result<u64, Error> {
    let (mut size, mut known) = (0, BTreeSet::new());
    for prefix in manifest_txt::read(root)? {
        let Some(directory) = manifest_txt::prefix_directory(root, &prefix)? else {
            continue;
        };
        for entry in WalkDir::new(directory) {
            let entry = entry.map_err(|e| walk_error(root, e))?;
            if !entry.file_type().is_file() {
                continue;
            }
            let metadata = entry.metadata().map_err(|e| walk_error(root, e))?;
            if shared_inode(&metadata).is_none_or(|inode| known.insert(inode)) {
                size += metadata.len();
            }
        }
    }
    Ok(size)
}
