//! Whether all shards are there, and are what their machines published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use walkdir::WalkDir;

use super::Options;
use super::shards::{ComponentArtifacts, Shard, Shards};
use crate::manifest_txt;
use crate::store::{self, Index};
use kpack_core::platform::shared_inode;
use kpack_core::words::list;
use kpack_core::{Error, ids};
use kpack_split::input::walk_error;

/// Checks that the shards are those that the configuration lists.
pub(super) fn check_list(options: &Options, shards: &Shards) -> Result<(), Error> {
    let listed: BTreeSet<&str> = options.configuration.shards.iter().map(String::as_str).collect();
    let there: BTreeSet<&str> = shards.names().collect();
    if listed.is_empty() {
        return Ok(());
    }
    let missing: Vec<&&str> = listed.difference(&there).collect();
    let others: Vec<&&str> = there.difference(&listed).collect();
    let text = match (missing.is_empty(), others.is_empty()) {
        (true, true) => return Ok(()),
        (false, _) => format!(
            "no artifacts of {}, which the configuration lists (found {}); fetch or build what is missing",
            list(missing),
            list(&there)
        ),
        (true, false) => format!(
            "the configuration does not list {} (expected {}); list it, or remove it",
            list(others),
            list(&listed)
        ),
    };
    Err(Error::rejected(ids::MISSING_SHARD, &options.shards_dir, text))
}

/// Checks that each shard has an index that fits, if the options say so.
pub(super) fn check_indexes(options: &Options, shards: &Shards) -> Result<(), Error> {
    let mut first: Option<(&str, Option<String>)> = None;
    for shard in shards.shards.iter().filter(|_| options.require_index) {
        let index = read(shard)?;
        match &first {
            Some((other, run)) if *run != index.run => {
                let name = |run: &Option<String>| run.clone().unwrap_or_else(|| "none".to_owned());
                let text = format!(
                    "its index is of run {} (expected {}, as of shard {other}); fetch the shards of one run",
                    name(&index.run),
                    name(run)
                );
                return Err(Error::rejected(ids::SHARDS_DIFFER, &shard.path, text));
            }
            Some(_) => {}
            None => first = Some((&shard.name, index.run.clone())),
        }
    }
    Ok(())
}

fn read(shard: &Shard) -> Result<Index, Error> {
    let path = shard.path.join(store::FILE_NAME);
    if !path.exists() {
        let text = format!(
            "it has no {}, so it is not published, or was not made by `kpack unpack`; fetch and unpack it again",
            store::FILE_NAME
        );
        return Err(Error::rejected(ids::NOT_PUBLISHED, &shard.path, text));
    }
    let index = Index::read(&path)?;
    let refuse = |text: String| Err(Error::rejected(ids::INDEX_DIFFERS, &path, text));
    if let Some(name) = &index.shard
        && *name != shard.name
    {
        return refuse(format!("it is the index of shard {name}; rename the directory"));
    }
    let there = shard.artifacts.values().flat_map(ComponentArtifacts::paths);
    let names = there.filter_map(|path| Some((path.file_name()?.to_str()?, path)));
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
        let Some(directory) = manifest_txt::directory(root, &prefix)? else {
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
