//! The JSON of the reports of runs. The report types are in `kpack-build`, which does without serde
//! because every build script would compile it.

use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::report::{ArchiveReport, FileReport, Notice, Outcome, Report};

/// What `--json` prints as an object.
pub trait Json {
    /// The value.
    fn json(&self) -> Value;
}

fn all<T: Json>(list: &[T]) -> Vec<Value> {
    list.iter().map(T::json).collect()
}

/// For fields of types that derive `Serialize`.
pub fn list<T: Json, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    all(list).serialize(serializer)
}

impl Json for Report {
    fn json(&self) -> Value {
        // Replace invalid UTF-8: one odd name must not make the whole report fail.
        let removed: Vec<_> = self.removed.iter().map(|p| p.to_string_lossy()).collect();
        json!({
            "files": all(&self.files),
            "archives": all(&self.archives),
            "removed": removed,
            "notices": all(&self.notices),
        })
    }
}

impl Json for FileReport {
    fn json(&self) -> Value {
        let path = &self.path;
        let is_split = matches!(self.outcome, Outcome::Split { .. });
        match &self.outcome {
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
            } => json!({
                "path": path,
                "outcome": if is_split { "split" } else { "joined" },
                "wrappers": wrappers,
                "targets": targets,
                "size_before": size_before,
                "size_after": size_after,
            }),
            Outcome::Relocated { wrappers, targets } => json!({
                "path": path, "outcome": "placed", "wrappers": wrappers, "targets": targets,
            }),
            Outcome::AlreadySplit => json!({ "path": path, "outcome": "already-split" }),
            Outcome::LeftAlone { reason } => {
                json!({ "path": path, "outcome": "left-alone", "reason": reason })
            }
        }
    }
}

impl Json for ArchiveReport {
    fn json(&self) -> Value {
        json!({
            "path": self.path.to_string_lossy(),
            "target": self.target,
            "size": self.size,
            "kernel_count": self.kernel_count,
            "changed": self.changed,
        })
    }
}

impl Json for Notice {
    fn json(&self) -> Value {
        json!({
            "severity": self.severity.as_str(),
            "path": self.path.to_string_lossy(),
            "text": self.text,
        })
    }
}
