//! Why a value is refused.

use std::fmt::{self, Display};

use serde::de::{Error, Expected, Unexpected};

use crate::Reason;

/// Why a value is refused. It is small, since nearly all results have none.
#[derive(Debug)]
pub(crate) struct Failure(pub(super) Box<Refusal>);

#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Reason,
    /// Whether it is another value than was expected.
    pub(super) is_mismatch: bool,
    /// The keys that lead to it, from the last one.
    pub(super) path: Vec<String>,
}

impl Failure {
    fn mismatch(found: impl Display, expected: &dyn Expected) -> Self {
        let reason = Reason::mismatch("", expected, found);
        Self(Box::new(Refusal { reason, is_mismatch: true, path: Vec::new() }))
    }

    /// The same, about a value of this key.
    #[cold]
    pub(super) fn within(mut self, key: String) -> Self {
        self.0.path.push(key);
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.reason.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl Error for Failure {
    fn custom<T: Display>(text: T) -> Self {
        let reason = text.to_string().into();
        Self(Box::new(Refusal { reason, is_mismatch: false, path: Vec::new() }))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        match found {
            Unexpected::Unsigned(number) => {
                Self::mismatch(format_args!("the integer {number}"), expected)
            }
            Unexpected::Signed(number) => {
                Self::mismatch(format_args!("the integer {number}"), expected)
            }
            Unexpected::Str(_) => Self::mismatch("a string", expected),
            Unexpected::Bytes(_) => Self::mismatch("a byte string", expected),
            Unexpected::Seq => Self::mismatch("a list", expected),
            Unexpected::Map => Self::mismatch("a map", expected),
            Unexpected::Unit | Unexpected::Option => Self::mismatch("nil", expected),
            Unexpected::Bool(_) => Self::mismatch("a boolean", expected),
            Unexpected::Float(_) => Self::mismatch("a floating-point number", expected),
            _ => Self::mismatch("a value of another type", expected),
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(size: usize, expected: &dyn Expected) -> Self {
        Self::mismatch(format_args!("one of length {size}"), expected)
    }
}
