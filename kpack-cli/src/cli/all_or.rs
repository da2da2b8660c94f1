//! A value of `--arch` that may be `all`.

/// All targets, or one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AllOr<T> {
    All,
    One(T),
}

impl<T> AllOr<T> {
    /// Reads `all`, or else what `one` reads.
    ///
    /// # Errors
    /// Those of `one`.
    pub(super) fn read<E>(name: &str, one: impl FnOnce(&str) -> Result<T, E>) -> Result<Self, E> {
        if name == "all" { Ok(Self::All) } else { one(name).map(Self::One) }
    }

    /// The values that are not `all`.
    pub(super) fn each(values: &[Self]) -> impl Iterator<Item = &T> {
        values.iter().filter_map(|value| match value {
            Self::All => None,
            Self::One(value) => Some(value),
        })
    }
}
