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

/// What `kpack explain` says of an exit code.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExitCodeEntry {
    pub(super) meaning: &'static str,
    pub(super) help: &'static str,
}

/// Explains an exit code, including those of a process that did not end by itself; `None` if kpack never exits with it.
pub(super) fn explained(code: u32) -> Option<ExitCodeEntry> {
    let (meaning, help) = match code {
        0 => ("Success. There may be warnings on standard error.", "Nothing."),
        1 => (
            "`kpack verify`, `kpack wheel verify` or `kpack doctor` found a fault. `kpack launch` passes on the code of a compiler that fails.",
            "Read the lines that begin with FAULT. Each ends with an ID in brackets, which `kpack explain ID` explains.",
        ),
        2 => (
            "The arguments are wrong. Nothing was written.",
            "Correct the command. `kpack COMMAND --help` lists its arguments.",
        ),
        3 => (
            "kpack cannot do what was asked: an input is damaged, is unsupported or lacks what was asked for, or something else is at the path of an output.",
            "Read the error on standard error. It ends with an ID in brackets, which `kpack explain ID` explains. Running the same command again helps only after `changed-while-read`.",
        ),
        4 => (
            "Reading or writing failed, or a file that was named does not exist.",
            "Fix the cause that the error names, such as a full disk or missing permissions. Then run the same command again.",
        ),
        // The standard library's code.
        101 => {
            ("kpack panicked, which is a bug.", "Report it, with the messages on standard error.")
        }
        137 => (
            "SIGKILL (signal 9) ended kpack, so shells report 128 + 9. The usual cause is a lack of memory.",
            "Give the container or job more memory, then run the same command again.",
        ),
        129..=192 => (
            "A signal ended kpack. Shells add 128 to its number: 130 is SIGINT (Ctrl-C), 143 is SIGTERM.",
            "Run the same command again. It removes or replaces what the interrupted run left.",
        ),
        _ => return None,
    };
    Some(ExitCodeEntry { meaning, help })
}

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
