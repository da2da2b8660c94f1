//! The artifacts of one component together: each file in one of them, and nothing without its other
//! half.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kpack_format::names::{KernelName, is_archive};
use walkdir::WalkDir;

use super::Set;
use crate::Error;
use crate::artifact::manifest_txt;
use crate::artifact::names;
use crate::inspect::open_archive;
use crate::object_file::is_object;
use crate::verify::{Report, Subject};

impl Set {
    /// Whether each file is in one artifact only, and each kernel of some binary.
    pub(super) fn verify(&self, report: &mut Report) -> Result<(), Error> {
        let mut files: BTreeSet<PathBuf> = BTreeSet::new();
        // By the path that a file is installed as.
        let mut owners: BTreeMap<PathBuf, &Path> = BTreeMap::new();
        let mut archives: BTreeSet<PathBuf> = BTreeSet::new();
        for root in &self.roots {
            // A list that cannot be read is a fault of the artifact.
            let prefixes = manifest_txt::read(root).unwrap_or_default();
            for entry in WalkDir::new(root).min_depth(1).sort_by_file_name() {
                let Ok(entry) = entry else { continue };
                if entry.file_type().is_dir() {
                    continue;
                }
                let within = entry.path().strip_prefix(root).unwrap_or(entry.path());
                if manifest_txt::is_of_artifact(within) {
                    continue;
                }
                if is_archive(within) {
                    archives.insert(entry.path().to_owned());
                }
                files.insert(within.to_owned());
                let mut prefixes = prefixes.iter();
                let installed = prefixes.find_map(|prefix| within.strip_prefix(prefix).ok());
                let other = owners.insert(installed.unwrap_or(within).to_owned(), root);
                if let Some(other) = other.filter(|other| other != root) {
                    let text =
                        format!("is in {} as well; expected it in one only", other.display());
                    report.fault(Subject::Artifact, entry.path(), text);
                }
            }
        }
        if !self.has_generic {
            let text = format!(
                "has no {}_{} beside it, so nothing loads its device code",
                self.component,
                names::GENERIC
            );
            if let Some(root) = self.roots.first() {
                report.note(Subject::Artifact, root, text);
            }
            return Ok(());
        }
        for archive in archives {
            self.kernels_have_binaries(&archive, &files, report)?;
        }
        Ok(())
    }

    fn kernels_have_binaries(
        &self,
        path: &Path,
        files: &BTreeSet<PathBuf>,
        report: &mut Report,
    ) -> Result<(), Error> {
        let archive = match open_archive(path) {
            Ok(archive) => archive,
            // That is a fault already.
            Err(Error::Refused { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let root = self.roots.iter().find(|root| path.starts_with(root));
        let Some(within) = root.and_then(|root| path.strip_prefix(root).ok()) else {
            return Ok(());
        };
        // The archive is somewhere in the prefix that its kernels are named in.
        let kernels = archive.toc().kernels.keys();
        let binaries: BTreeSet<&str> = kernels
            .map(|kernel| KernelName::parse(kernel).binary)
            .collect();
        for binary in binaries.into_iter().filter(|binary| !is_object(binary)) {
            let there = within
                .ancestors()
                .skip(1)
                .any(|prefix| files.contains(&prefix.join(binary)));
            if !there {
                let text = format!("has kernels of `{binary}`, which no artifact has");
                report.fault(Subject::Artifact, path, text);
            }
        }
        Ok(())
    }
}
