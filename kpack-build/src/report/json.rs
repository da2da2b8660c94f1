//! Reports as JSON. Implemented by hand: `derive` would add five crates to each build script.

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::{ArchiveReport, FileReport, Notice, Outcome, Report, Severity};

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Replace invalid UTF-8: one odd name must not make the whole report fail.
        let removed: Vec<_> = self.removed.iter().map(|p| p.to_string_lossy()).collect();
        let mut report = serializer.serialize_struct("Report", 4)?;
        report.serialize_field("files", &self.files)?;
        report.serialize_field("archives", &self.archives)?;
        report.serialize_field("removed", &removed)?;
        report.serialize_field("notices", &self.notices)?;
        report.end()
    }
}

impl Serialize for FileReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut file = serializer.serialize_map(None)?;
        file.serialize_entry("path", &self.path)?;
        match &self.outcome {
            Outcome::Split {
                wrappers,
                targets,
                size_before,
                size_after,
            } => {
                file.serialize_entry("outcome", "split")?;
                file.serialize_entry("wrappers", wrappers)?;
                file.serialize_entry("targets", targets)?;
                file.serialize_entry("size_before", size_before)?;
                file.serialize_entry("size_after", size_after)?;
            }
            Outcome::Relocated { wrappers, targets } => {
                file.serialize_entry("outcome", "placed")?;
                file.serialize_entry("wrappers", wrappers)?;
                file.serialize_entry("targets", targets)?;
            }
            Outcome::AlreadySplit => file.serialize_entry("outcome", "already-split")?,
            Outcome::LeftAlone { reason } => {
                file.serialize_entry("outcome", "left-alone")?;
                file.serialize_entry("reason", reason)?;
            }
        }
        file.end()
    }
}

impl Serialize for ArchiveReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut archive = serializer.serialize_struct("ArchiveReport", 5)?;
        archive.serialize_field("path", &self.path.to_string_lossy())?;
        archive.serialize_field("target", &self.target)?;
        archive.serialize_field("size", &self.size)?;
        archive.serialize_field("kernel_count", &self.kernel_count)?;
        archive.serialize_field("changed", &self.changed)?;
        archive.end()
    }
}

impl Serialize for Notice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut notice = serializer.serialize_struct("Notice", 3)?;
        notice.serialize_field("severity", &self.severity)?;
        notice.serialize_field("path", &self.path.to_string_lossy())?;
        notice.serialize_field("text", &self.text)?;
        notice.end()
    }
}

impl Serialize for Severity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
        })
    }
}
