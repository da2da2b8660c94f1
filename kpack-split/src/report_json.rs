//! Serialises the reports of runs as JSON. The report types are in `kpack-build`, which does
//! without serde because every build script would compile it.

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use crate::report::{ArchiveReport, FileReport, Notice, Outcome, Report};

/// Serialises the report type `T`.
pub(crate) struct Json<'a, T>(pub(crate) &'a T);

fn all<T>(list: &[T]) -> Vec<Json<'_, T>> {
    list.iter().map(Json).collect()
}

/// For fields of types that derive `Serialize`.
pub(crate) fn list<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error>
where
    for<'a> Json<'a, T>: Serialize,
{
    all(list).serialize(serializer)
}

impl Serialize for Json<'_, Report> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Replace invalid UTF-8: one odd name must not make the whole report fail.
        let removed: Vec<_> = self.0.removed.iter().map(|p| p.to_string_lossy()).collect();
        let mut report = serializer.serialize_struct("Report", 4)?;
        report.serialize_field("files", &all(&self.0.files))?;
        report.serialize_field("archives", &all(&self.0.archives))?;
        report.serialize_field("removed", &removed)?;
        report.serialize_field("notices", &all(&self.0.notices))?;
        report.end()
    }
}

impl Serialize for Json<'_, FileReport> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut file = serializer.serialize_map(None)?;
        file.serialize_entry("path", &self.0.path)?;
        let is_split = matches!(self.0.outcome, Outcome::Split { .. });
        match &self.0.outcome {
            Outcome::Split {
                wrappers,
                targets,
                size_before,
                size_after,
            }
            | Outcome::Joined {
                wrappers,
                targets,
                size_before,
                size_after,
            } => {
                let outcome = if is_split { "split" } else { "joined" };
                file.serialize_entry("outcome", outcome)?;
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

impl Serialize for Json<'_, ArchiveReport> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut archive = serializer.serialize_struct("ArchiveReport", 5)?;
        archive.serialize_field("path", &self.0.path.to_string_lossy())?;
        archive.serialize_field("target", &self.0.target)?;
        archive.serialize_field("size", &self.0.size)?;
        archive.serialize_field("kernel_count", &self.0.kernel_count)?;
        archive.serialize_field("changed", &self.0.changed)?;
        archive.end()
    }
}

impl Serialize for Json<'_, Notice> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut notice = serializer.serialize_struct("Notice", 3)?;
        notice.serialize_field("severity", self.0.severity.as_str())?;
        notice.serialize_field("path", &self.0.path.to_string_lossy())?;
        notice.serialize_field("text", &self.0.text)?;
        notice.end()
    }
}
