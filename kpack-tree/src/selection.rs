//! Which kernel files to recognise: those of databases, and those that rules name.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use kpack_core::Error;

use crate::databases::{DATABASES, Database, recognise};
use crate::kernel_files::KernelFiles;
use crate::place::Place;

/// Which kernel files to recognise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DatabaseSelection {
    known: Known,
    rules: Vec<KernelFiles>,
}

/// Which of the [`DATABASES`] to recognise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Known {
    /// All except those that must be named.
    #[default]
    Auto,
    /// No database.
    None,
    /// Those with these names.
    Named(Vec<String>),
}

impl fmt::Display for DatabaseSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names() {
            names if names.is_empty() => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}

impl DatabaseSelection {
    /// These databases, and files that the rules name. The rules are asked first.
    pub fn new(known: Known, rules: Vec<KernelFiles>) -> Self {
        Self { known, rules }
    }

    /// All databases, including those that must be named.
    pub fn all() -> Self {
        let names = DATABASES.iter().map(|database| database.name.to_owned());
        Self::new(Known::Named(names.collect()), Vec::new())
    }

    /// The default databases, and those with these names.
    pub fn and_named<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let names = BTreeSet::from_iter(names);
        let has = |database: &&Database| database.with.is_none() || names.contains(database.name);
        let named = DATABASES.iter().filter(has).map(|database| database.name.to_owned());
        Self::new(Known::Named(named.collect()), Vec::new())
    }

    /// This one, with the rules of another as well.
    pub fn and_rules_of(mut self, other: &Self) -> Self {
        let new: Vec<KernelFiles> =
            other.rules.iter().filter(|rule| !self.rules.contains(rule)).cloned().collect();
        self.rules.extend(new);
        self
    }

    /// The names of the selected databases, and the rules as they are written.
    pub fn names(&self) -> Vec<String> {
        let selected = DATABASES.iter().filter(|database| self.has(database));
        let known = selected.map(|database| database.name.to_owned());
        known.chain(self.rules.iter().map(KernelFiles::to_string)).collect()
    }

    /// What [`names`](Self::names) returned.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid rule.
    pub fn from_names(names: Vec<String>) -> Result<Self, Error> {
        let (rules, known): (Vec<String>, _) =
            names.into_iter().partition(|name| name.contains('='));
        let rules = rules.iter().map(|rule| rule.parse()).collect::<Result<_, _>>()?;
        Ok(Self { known: Known::Named(known), rules })
    }

    /// Whether this database is selected.
    pub fn has(&self, database: &Database) -> bool {
        match &self.known {
            Known::Auto => database.with.is_none(),
            Known::None => false,
            Known::Named(names) => names.iter().any(|name| name == database.name),
        }
    }

    /// What a file with this path in the prefix belongs to, selected or not, and what the path says.
    pub fn recognise(&self, path: &str) -> Option<(Owner<'_>, Place)> {
        let parts: Vec<&str> = path.split('/').collect();
        let mut rules = self.rules.iter();
        let by_rule = rules.find_map(|rule| Some((Owner::Rule(rule), rule.place(&parts)?)));
        by_rule.or_else(|| {
            let (database, place) = recognise(path)?;
            Some((Owner::Database(database, self.has(database)), place))
        })
    }
}

/// What a kernel file belongs to.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// A database, and whether it is selected.
    Database(&'static Database, bool),
    /// Files that a rule names.
    Rule(&'a KernelFiles),
}

impl Owner<'_> {
    /// Its name in [`Class::Target`](crate::Class::Target).
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Database(database, _) => database.name.into(),
            Self::Rule(rule) => rule.name().to_owned().into(),
        }
    }

    /// Whether it is selected; files that a rule names always are.
    pub fn is_selected(self) -> bool {
        !matches!(self, Self::Database(_, false))
    }

    /// Whether the targets in its files may differ from those in their paths, so only paths count.
    pub fn is_opaque(self) -> bool {
        matches!(self, Self::Database(database, _) if database.is_opaque)
    }

    /// Whether it is one of Tensile's databases.
    pub fn is_tensile(self) -> bool {
        matches!(self, Self::Database(database, _) if database.is_tensile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_names_databases() {
        let names = |known: Known| -> Vec<&str> {
            let selection = DatabaseSelection::new(known, Vec::new());
            let selected = DATABASES.iter().filter(|database| selection.has(database));
            selected.map(|database| database.name).collect()
        };
        let optional = DATABASES.iter().filter(|database| database.with.is_some());
        assert_eq!(names(Known::Auto).len(), DATABASES.len() - optional.count());
        assert!(names(Known::None).is_empty());
        assert_eq!(names(Known::Named(vec!["miopen".to_owned()])), ["miopen"]);
    }
}
