//! The table at the end of a run.

use anyhow::{Error, Result, bail};

use crate::process::NotRun;

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
    /// Details of a check that passed.
    Passed(String),
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
                Outcome::Passed(held)
            }
            Err(error) if error.is::<NotRun>() => {
                self.is_incomplete = true;
                println!("   {what}: NOT CHECKED, {error:#}");
                Outcome::NotChecked(format!("{error:#}"))
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

    /// Prints the table, and the failures again.
    ///
    /// # Errors
    /// A check failed, or could not run.
    pub(super) fn finish(self) -> Result<()> {
        let width = self.rows.iter().map(|(what, _)| what.chars().count()).max().unwrap_or(0);
        println!("\n{:<width$}  details", "");
        for (what, outcome) in &self.rows {
            let (mark, text) = match outcome {
                Outcome::Passed(held) => ("ok  ", held.as_str()),
                Outcome::Failed => ("FAIL", "see below"),
                Outcome::NotChecked(why) => ("--  ", why.as_str()),
            };
            println!("{what:<width$}  {mark}  {text}");
        }
        for (what, error) in &self.failures {
            println!("\nFAILED: {what}\n{error:#}");
        }
        match self.failures.len() {
            0 if self.is_incomplete => {
                Err(NotRun("something could not be fetched".to_owned()).into())
            }
            0 => {
                let passed = |row: &&(String, Outcome)| matches!(row.1, Outcome::Passed(_));
                let passed = self.rows.iter().filter(passed).count();
                println!("\n{passed} of {} checks passed; none failed.", self.rows.len());
                Ok(())
            }
            failures => bail!("{failures} of {} checks failed", self.rows.len()),
        }
    }
}
