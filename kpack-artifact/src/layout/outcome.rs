//! What a comparison of two host binaries comes to.

use super::unit_ids::UNIT_IDS;

/// What a comparison of two host binaries comes to.
pub(crate) enum Same {
    /// Equal except for the code IDs in their markers: each shard lists the targets that it built.
    Yes,
    /// Equal except for what this says.
    But(String),
    /// Different, or not comparable.
    No,
}

/// How two host binaries differ whose code and data are the same.
pub(super) struct Found {
    pub(super) has_moved: bool,
    pub(super) has_other_units: bool,
    /// What identifies the build, as messages have it, if that differs.
    pub(super) other_id: Option<&'static str>,
}

impl Same {
    pub(super) fn of(found: Found) -> Self {
        if found.has_moved {
            let and =
                if found.has_other_units { format!(", and in {UNIT_IDS}") } else { String::new() };
            return Self::But(format!(
                "differs in its layout{and}: its sections have the same sizes at other addresses, \
                 because the device code had another size; apart from the addresses, code and data are equal"
            ));
        }
        if found.has_other_units {
            return Self::But(format!("differs in {UNIT_IDS} only"));
        }
        match found.other_id {
            Some(id) => Self::But(format!("differs in its {id}")),
            None => Self::Yes,
        }
    }
}
