//! The table that ends a run.

use anyhow::{Error, Result, bail};

/// What was checked, line by line.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<(String, Outcome)>,
    failures: Vec<(String, Error)>,
}

#[derive(Debug)]
enum Outcome {
    /// What held.
    Passed(String),
    Failed,
    /// Why it could not be checked.
    NotChecked(String),
}

impl Table {
    /// Adds the outcome of a check; a failure is printed at once, and the run goes on.
    pub(super) fn add(&mut self, what: impl Into<String>, outcome: Result<String>) {
        let what = what.into();
        let outcome = match outcome {
            Ok(held) => {
                println!("   {what}: {held}");
                Outcome::Passed(held)
            }
            Err(error) => {
                println!("   {what}: FAILED\n{error:#}");
                self.failures.push((what.clone(), error));
                Outcome::Failed
            }
        };
        self.rows.push((what, outcome));
    }

    /// Adds a line for something that cannot be checked here, and why.
    pub(super) fn not_checked(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), why.into());
        println!("   {what}: NOT CHECKED, {why}");
        self.rows.push((what, Outcome::NotChecked(why)));
    }

    /// Prints the table, and the failures again.
    ///
    /// # Errors
    /// Where anything failed.
    pub(super) fn finish(self) -> Result<()> {
        let width = self
            .rows
            .iter()
            .map(|(what, _)| what.chars().count())
            .max()
            .unwrap_or(0);
        println!("\n{:<width$}  what was checked", "");
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
            0 => {
                let passed = |row: &&(String, Outcome)| matches!(row.1, Outcome::Passed(_));
                let passed = self.rows.iter().filter(passed).count();
                println!(
                    "\n{passed} of {} checks hold; none failed.",
                    self.rows.len()
                );
                Ok(())
            }
            failures => bail!("{failures} of {} checks failed", self.rows.len()),
        }
    }
}
