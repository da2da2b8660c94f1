//! The joined file that replaces a split binary.

use std::path::Path;

use super::binary::MarkedBinary;
use super::code::ChosenCode;
use super::differences;
use super::options::JoinOptions;
use crate::elf::{BinaryError, NewCode};
use crate::host::JoinPlan;
use crate::input::{LinkedBinary, Lookup, binary_error};
use crate::publish::{self, StagedFile};
use crate::report::{Outcome, Progress, Report};
use crate::{Error, ids};
use kpack_core::words::bytes;
use kpack_format::TargetId;

/// What the marker and its page, and what comes with the code, may take of the room of the former code, at most.
const ROOM_OF_MARKER: u64 = 128 << 10;

impl MarkedBinary {
    /// The targets that an earlier run put back, and that a join with `code` does not.
    pub(super) fn dropped_by(&self, code: &ChosenCode) -> Vec<String> {
        self.joined.difference(code.targets()).cloned().collect()
    }

    /// Whether an earlier run put back all code that these options ask for.
    pub(super) fn has_joined(&self, options: &JoinOptions) -> bool {
        let built = self.marker.code_ids.keys().chain(&self.joined);
        let mut built = built.filter_map(|id| Some((id, id.parse::<TargetId>().ok()?)));
        let is_asked = |id: &TargetId| {
            options.all_architectures || options.architectures.iter().any(|gpu| id.may_run_on(gpu))
        };
        let joined = Vec::from_iter(self.joined.iter().filter_map(|id| id.parse().ok()));
        let has_any = |gpu: &TargetId| joined.iter().any(|id: &TargetId| id.may_run_on(gpu));
        options.architectures.iter().all(has_any)
            && built.all(|(name, id)| !is_asked(&id) || self.joined.contains(name))
    }

    /// Plans the joined binary.
    pub(super) fn plan(&self, code: &ChosenCode) -> Result<JoinPlan, Error> {
        let file = self.open()?;
        let wrappers = self.wrappers.iter().copied();
        let new = NewCode {
            wrappers: &Vec::from_iter(wrappers.zip(code.bundle_of_wrappers())),
            sizes: &code.bundle_sizes(self),
            marker: self.marker_at.clone(),
        };
        let plan = JoinPlan::new(&self.headers.over(&file), &new);
        plan.map_err(|error| binary_error(&self.located.path, error))
    }

    /// Writes the joined binary, checks it, and lets it replace the split one or another file.
    pub(super) fn write(
        &self,
        code: &ChosenCode,
        plan: &JoinPlan,
        options: &JoinOptions,
        lookup: &Lookup,
        progress: &dyn Progress,
        report: &mut Report,
    ) -> Result<Outcome, Error> {
        let path = &self.located.path;
        let ids = &self.marker.code_ids;
        // The same build has the same code.
        let is_known = code.targets().iter().all(|target| ids.contains_key(target));
        if *code.targets() == self.joined && is_known && options.output.is_none() {
            if let Some(original) = &options.against {
                compare(&LinkedBinary::open(path)?, original)?;
            }
            let reason = "it is joined for these targets already".to_owned();
            return Ok(Outcome::LeftAlone { reason });
        }
        let input = self.open()?;
        if let Some(output) = &options.output {
            publish::check_named_output(output)?;
        }
        let output = options.output.as_deref().unwrap_or(path);
        let sums = plan.sums();
        let (staged, ()) = StagedFile::write(output, |staged| {
            if options.output.is_none() {
                staged.replaces(&input)?;
                staged.check()?;
            }
            let ((), lost) = staged.fill(&input, |file| {
                plan.write(&input, file).map_err(|e| failed(path, e))?;
                let places = (plan.bundles(), sums.as_ref());
                code.write(self, &input, places, file, lookup, progress)
            })?;
            for lost in lost {
                report.warn(ids::ATTRIBUTE_LOST, path, lost);
            }
            let file = staged.file();
            plan.finish_with(&input, file, sums.as_ref()).map_err(|e| failed(path, e))?;
            let clone = file.try_clone().map_err(|e| Error::io(path, "read", e))?;
            let written = LinkedBinary::read(path, clone)?;
            code.check(self, &written)?;
            match &options.against {
                Some(original) => compare(&written, original),
                None => Ok(()),
            }
        })?;
        publish::replace(staged)?;
        let (room, size) = (plan.room(), code.bundle_sizes(self).iter().sum::<u64>());
        if room > 0 && size > room + ROOM_OF_MARKER {
            let (before, now) = (bytes(room), bytes(size));
            let text = format!(
                "larger than before the split: its code had about {before} and has {now} now, because join does not compress it, or because \
                 the archives have code for more targets"
            );
            report.note(ids::UNCOMPRESSED, output, text);
        }
        Ok(Outcome::Joined {
            wrappers: self.wrappers.len(),
            targets: code.targets().iter().cloned().collect(),
            size_before: self.identity.size(),
            size_after: plan.output_size(),
        })
    }
}

fn failed(path: &Path, error: BinaryError) -> Error {
    match error {
        BinaryError::Io(error) => Error::io(path, "write the joined binary of", error),
        error => binary_error(path, error),
    }
}

/// Refuses a joined binary that differs from the unsplit original in more than the targets.
fn compare(joined: &LinkedBinary, original: &Path) -> Result<(), Error> {
    let differences = differences::differences(joined, &LinkedBinary::open(original)?)?;
    if differences.is_empty() {
        Ok(())
    } else {
        Err(Error::rejected(
            ids::HOST_DIFFERS,
            &joined.path,
            format!("joined, it differs from {}: {}", original.display(), differences.join("; ")),
        ))
    }
}
