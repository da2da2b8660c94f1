//! All artifacts of a component laid over one root, as they are installed.

use std::collections::BTreeMap;
use std::path::Path;

use super::component::Component;
use super::{Severity, Source};

impl Component<'_> {
    /// Files that two artifacts would have: laid over each other, one would hide the other.
    pub(super) fn overlaps(&mut self) {
        let mut owners: BTreeMap<&Path, &str> = BTreeMap::new();
        let mut found = Vec::new();
        for artifact in &self.artifacts {
            for (path, source) in &artifact.entries {
                if matches!(source, Source::Directory(_)) {
                    continue;
                }
                if let Some(other) = owners.insert(path, &artifact.name) {
                    let text = format!("{other} has it too; a file is in one artifact only");
                    found.push((Path::new(&artifact.name).join(path), text));
                }
            }
        }
        for (path, text) in found {
            self.say(Severity::Error, self.options.output_dir.join(path), text);
        }
    }
}
