//! The time of what has to be reproducible.

use std::env;

use crate::Error;

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// `SOURCE_DATE_EPOCH`, in seconds since 1970; `None` if it is not set.
///
/// # Errors
/// [`Error::Usage`] if it is no number, or `convert` cannot represent the time.
pub fn source_date<T>(convert: impl FnOnce(i64) -> Option<T>) -> Result<Option<T>, Error> {
    let Some(value) = env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let seconds = value.to_str().and_then(|value| value.parse().ok());
    match seconds.and_then(convert) {
        Some(time) => Ok(Some(time)),
        None => Err(Error::usage(format!(
            "{VARIABLE}: expected seconds since 1970, found `{}`",
            value.display()
        ))),
    }
}
