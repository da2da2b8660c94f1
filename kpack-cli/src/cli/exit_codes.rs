//! How commands end: their exit codes, and what `--json` prints of a failure.

use kpack_core::finding::Id;
use kpack_core::{Details, Error};
use serde::Serialize;

/// Formats the exit codes of a command for its help, as [`exit_code`] returns them. Arguments:
/// lines before the first code, lines after it, and the meaning of code 3, if it is not the usual one.
macro_rules! exit_codes {
    () => {
        exit_codes!("", "")
    };
    ($rejected:literal) => {
        exit_codes!("", "", $rejected)
    };
    ($before:literal, $more:literal) => {
        exit_codes!(
            $before,
            $more,
            "the request cannot be met: an input is damaged, is unsupported or lacks\n     \
             what was asked for, or an output is in the way"
        )
    };
    ($before:literal, $more:literal, $rejected:literal) => {
        concat!(
            "Exit codes:\n",
            $before,
            "  0  success\n",
            $more,
            "  2  wrong usage\n  3  ",
            $rejected,
            "\n  4  reading or writing failed"
        )
    };
}

/// All exit codes, including that of `kpack verify` and `kpack doctor`.
pub(super) const EXIT_CODES: &str =
    exit_codes!("", "  1  `kpack verify`, `kpack wheel verify` or `kpack doctor` found a fault\n");

pub(super) fn exit_code(error: &Error) -> u8 {
    match error {
        Error::Usage(_) => 2,
        Error::Refused { .. } | Error::Changed { .. } | Error::Compiler(_) => 3,
        _ => 4,
    }
}

/// The output of `--json` for a command that failed.
#[derive(Serialize)]
pub(super) struct Failed {
    outcome: &'static str,
    #[serde(flatten)]
    problem: Problem,
}

/// Why something failed.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    pub(super) error: String,
    #[serde(serialize_with = "kpack_core::lossy::id")]
    pub(super) id: Id,
    #[serde(skip_serializing_if = "Details::is_empty")]
    pub(super) details: Details,
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        Self { error: error.without_id(), id: error.id(), details: error.details() }
    }
}

impl From<&Error> for Failed {
    fn from(error: &Error) -> Self {
        Self { outcome: "failed", problem: error.into() }
    }
}
