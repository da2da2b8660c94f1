//! The targets that a user names, and what they stand for.

use std::collections::BTreeSet;

use crate::{Delivery, TargetId};

/// Targets that a user names: in a filter, a requirement, or a group of a package.
///
/// Each stands for what it [needs](TargetId::needs), from archives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection(BTreeSet<TargetId>);

impl Selection {
    /// Whether it names nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The named targets.
    pub fn iter(&self) -> impl Iterator<Item = &TargetId> {
        self.0.iter()
    }

    /// Whether `found` is one of the named targets itself.
    pub fn names(&self, found: &TargetId) -> bool {
        self.0.contains(found)
    }

    /// Whether what is for `found` is selected.
    pub fn matches(&self, found: &TargetId) -> bool {
        self.0.iter().any(|named| named.needs(found, Delivery::Archive))
    }

    /// The named targets that none of `found` is for.
    pub fn unmatched<'s>(&'s self, found: &[&TargetId]) -> Vec<&'s TargetId> {
        let is_missing = |named: &&TargetId| {
            let mut found = found.iter();
            !found.any(|found| named.needs(found, Delivery::Archive))
        };
        self.0.iter().filter(is_missing).collect()
    }

    /// The positions of the groups that `found` goes to: those that [match](Self::matches) it, so that
    /// each is complete. What is for a family, or generic, goes to the groups that name it, if there are any.
    pub fn groups_of(groups: &[Self], found: &TargetId) -> Vec<usize> {
        let positions = |is_for: &dyn Fn(&Self) -> bool| -> Vec<usize> {
            let groups = groups.iter().enumerate().filter(|(_, group)| is_for(group));
            groups.map(|(position, _)| position).collect()
        };
        let naming = positions(&|group| group.names(found));
        let is_shared = found.is_generic() || TargetId::family(found.processor()).is_some();
        if naming.is_empty() || !is_shared {
            positions(&|group| group.matches(found))
        } else {
            naming
        }
    }
}

impl<'a> FromIterator<&'a TargetId> for Selection {
    fn from_iter<T: IntoIterator<Item = &'a TargetId>>(targets: T) -> Self {
        targets.into_iter().cloned().collect()
    }
}

impl FromIterator<TargetId> for Selection {
    fn from_iter<T: IntoIterator<Item = TargetId>>(targets: T) -> Self {
        Self(targets.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TargetId {
        TargetId::family(text).unwrap_or_else(|| text.parse().unwrap())
    }

    fn selection(names: &[&str]) -> Selection {
        names.iter().map(|name| id(name)).collect()
    }

    #[test]
    fn a_processor_stands_for_its_variants_and_a_variant_takes_the_plain_processor_along() {
        for (named, found, matches) in [
            ("gfx90a", "gfx90a", true),
            ("gfx90a", "gfx90a:xnack+", true),
            ("gfx90a", "gfx90a:sramecc+:xnack-", true),
            ("gfx90a:xnack+", "gfx90a:xnack+", true),
            ("gfx90a:xnack+", "gfx90a", true),
            ("gfx90a:xnack+", "gfx90a:xnack-", false),
            ("gfx942:sramecc+:xnack-", "gfx942:xnack-", true),
            ("gfx942:xnack-", "gfx942:sramecc+:xnack-", false),
            ("gfx942:xnack-", "gfx942:sramecc+:xnack+", false),
            ("gfx90a", "gfx908", false),
            ("gfx1250", "gfx1250-strict", false),
            ("gfx1100", "gfx11", true),
            ("gfx1100", "gfx11xx", true),
            ("gfx1100", "gfx115x", false),
            ("gfx11", "gfx11", true),
            ("gfx11", "gfx1100", false),
            ("amdgcnspirv", "amdgcnspirv", true),
            ("gfx1100", "amdgcnspirv", false),
            ("gfx1100", "gfx11-generic", true),
            ("gfx906", "gfx9-generic", true),
            ("gfx908", "gfx9-generic", false),
            ("gfx950:xnack+", "gfx9-4-generic:xnack-", false),
            ("gfx11-generic", "gfx1100", false),
        ] {
            let selects = selection(&[named]).matches(&id(found));
            assert_eq!(selects, matches, "{named}: {found}");
        }
        assert!(!selection(&[]).matches(&id("gfx1100")));
    }

    #[test]
    fn named_targets_without_anything_for_them() {
        let named = selection(&["gfx90a", "gfx942:xnack-", "gfx1100"]);
        let found = [&id("gfx90a:xnack+"), &id("gfx942")];
        assert_eq!(named.unmatched(&found), [&id("gfx1100")]);
    }

    #[test]
    fn groups_are_complete_and_one_that_names_a_family_has_its_files_alone() {
        let groups = [
            selection(&["gfx90a", "gfx908"]),
            selection(&["gfx90a:xnack+"]),
            selection(&["gfx942:xnack+"]),
            selection(&["gfx942:xnack-"]),
            selection(&["gfx1030", "gfx1100"]),
            selection(&["gfx1101", "gfx10-3-generic"]),
        ];
        for (found, expected) in [
            ("gfx90a", vec![0, 1]),
            ("gfx90a:xnack+", vec![0, 1]),
            ("gfx90a:xnack-", vec![0]),
            ("gfx942", vec![2, 3]),
            ("gfx1200", vec![]),
            ("gfx11-generic", vec![4, 5]),
            ("gfx10-3-generic", vec![5]),
        ] {
            assert_eq!(Selection::groups_of(&groups, &id(found)), expected, "{found}");
        }
    }
}
