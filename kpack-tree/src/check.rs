//! Checks that kernel files are for the targets in their paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kpack_core::words::{counted, list};
use kpack_core::{Error, Finding, Severity, ids};
use kpack_format::TargetId;

use crate::classifier::Parsed;
use crate::entry::Class;
use crate::kernel_files::KernelFiles;
use crate::selection::{DatabaseSelection, Known};
use crate::walk::{Only, Walk};

/// Checks that the files below `prefix` which the rules name are for the targets in their paths. Says which files
/// there are.
///
/// # Errors
/// [`Error::Refused`] for a damaged file, and for one that is for another target; [`Error::Io`].
pub fn kernel_files(prefix: &Path, rules: &[KernelFiles]) -> Result<Vec<Finding>, Error> {
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let selection = DatabaseSelection::new(Known::None, rules.to_vec());
    let parsed = Parsed::default();
    let walk = Walk { prefix, databases: &selection, parsed, only: Only::Databases };
    let content = walk.collect()?;
    let mut observations = content.observations.into_iter();
    if let Some(fault) = observations.find(|found| found.severity == Severity::Fault) {
        return Err(Error::rejected(fault.id, &prefix.join(fault.file()), fault.text));
    }
    let mut found: BTreeMap<String, (usize, BTreeSet<TargetId>)> = BTreeMap::new();
    for entry in content.entries {
        if let Class::Target { target, database } = &*entry.class {
            let (files, targets) = found.entry(database.to_string()).or_default();
            *files += 1;
            targets.insert(target.clone());
        }
    }
    let notes = found.into_iter().map(|(name, (files, targets))| {
        let files = counted(files, "kernel file");
        let text = format!("{files} of {name} for {}; unchanged", list(&targets));
        Finding::new(Severity::Note, ids::UNCHANGED, prefix, text)
    });
    Ok(notes.collect())
}
