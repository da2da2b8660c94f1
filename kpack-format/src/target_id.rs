//! GPU target IDs, such as `gfx90a:xnack+`, and which code object runs on which agent.

use std::fmt;
use std::str::FromStr;

/// What a code object was compiled for: `processor[:feature(+|-)]…`.
///
/// Ordered by processor, then by features.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId {
    processor: String,
    /// Sorted by name; `true` is `+`.
    features: Vec<(String, bool)>,
}

/// Why a text is no target ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a GPU target ID: {reason}")]
pub struct ParseTargetIdError {
    text: String,
    reason: &'static str,
}

impl TargetId {
    /// The processor, such as `gfx90a` or `gfx9-4-generic`.
    pub fn processor(&self) -> &str {
        &self.processor
    }

    /// The features that are set, in alphabetical order, `true` for `+`.
    pub fn features(&self) -> impl Iterator<Item = (&str, bool)> {
        self.features.iter().map(|(name, on)| (name.as_str(), *on))
    }

    /// Whether a code object for this target runs on an agent with the ISA `agent`.
    pub fn runs_on(&self, agent: &TargetId) -> bool {
        todo!("{agent}")
    }

    /// Every target whose code objects run on this agent, most specific first.
    pub fn compatible(&self) -> Vec<TargetId> {
        todo!()
    }
}

impl FromStr for TargetId {
    type Err = ParseTargetIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        todo!("{text}")
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.processor)?;
        for (name, on) in &self.features {
            write!(f, ":{name}{}", if *on { '+' } else { '-' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
