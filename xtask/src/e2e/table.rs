//! The table at the end of a run.

use anyhow::{Error, Result, bail};

use crate::process::{self, NotRun};

/// The checks, a row each.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<(String, Outcome)>,
    failures: Vec<(String, Error)>,
    /// Something that is needed could not be had.
    is_incomplete: bool,
}

#[derive(Debug)]
enum Outcome {
    Passed,
    Failed,
    /// The reason why it could not be checked.
    NotChecked(String),
}

impl Table {
    /// Adds the outcome of a check. A failure is printed at once, and the run continues.
    pub(super) fn add(&mut self, what: impl Into<String>, outcome: Result<String>) {
        let what = what.into();
        let outcome = match outcome {
            Ok(held) => {
                println!("   {what}: {held}");
                Outcome::Passed
            }
            Err(error) if error.is::<NotRun>() => {
                self.is_incomplete = true;
                return self.not_checked(what, format!("{error:#}"));
            }
            Err(error) => {
                println!("   {what}: FAILED\n{error:#}");
                self.failures.push((what.clone(), error));
                Outcome::Failed
            }
        };
        self.rows.push((what, outcome));
    }

    /// Adds a row for a check that is impossible here, with the reason.
    pub(super) fn not_checked(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), why.into());
        println!("   {what}: NOT CHECKED, {why}");
        self.rows.push((what, Outcome::NotChecked(why)));
    }

    /// Prints what could not be checked, and the failures again.
    ///
    /// # Errors
    /// A check failed, or could not run.
    pub(super) fn finish(self) -> Result<()> {
        let rows = self.rows.len();
        let not_checked =
            Vec::from_iter(self.rows.iter().filter_map(|(what, outcome)| match outcome {
                Outcome::NotChecked(why) => Some((what, why)),
                Outcome::Passed | Outcome::Failed => None,
            }));
        if !not_checked.is_empty() {
            println!();
        }
        for (what, why) in &not_checked {
            println!("NOT CHECKED: {what}: {why}");
            process::note_not_run(what, why)?;
        }
        for (what, error) in &self.failures {
            println!("\nFAILED: {what}\n{error:#}");
        }
        match self.failures.len() {
            0 if self.is_incomplete => {
                Err(NotRun("something could not be fetched".to_owned()).into())
            }
            0 => {
                println!("\n{} of {rows} checks passed; none failed.", rows - not_checked.len());
                Ok(())
            }
            failures => bail!("{failures} of {rows} checks failed"),
        }
    }
}
