//! GPU target IDs, such as `gfx90a:xnack+`, and which code object runs on which agent.

use std::fmt;
use std::str::FromStr;

/// What a processor's name looks like.
pub(crate) const EXPECTED: &str =
    "expected a processor, such as gfx1100 or gfx9-4-generic, or amdgcnspirv";

/// The target that a code object was compiled for: `processor[:feature(+|-)]…`.
///
/// Ordered by processor, then by features.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId {
    processor: String,
    /// Sorted by name; `true` is `+`.
    features: Vec<(String, bool)>,
}

/// Why a text is not a target ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseTargetIdError {
    text: String,
    reason: String,
}

impl ParseTargetIdError {
    pub(crate) fn new(text: &str, reason: impl Into<String>) -> Self {
        Self { text: text.chars().take(MAX_LENGTH).collect(), reason: reason.into() }
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for ParseTargetIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, reason } = self;
        write!(f, "`{text}` is not a GPU target ID: {reason}")
    }
}

impl std::error::Error for ParseTargetIdError {}

impl TargetId {
    /// The processor, such as `gfx90a` or `gfx9-4-generic`.
    pub fn processor(&self) -> &str {
        &self.processor
    }

    /// The features with a sign, in alphabetical order; `true` is `+`.
    pub fn features(&self) -> impl Iterator<Item = (&str, bool)> {
        self.features.iter().map(|(name, on)| (name.as_str(), *on))
    }

    /// Whether a code object for this target runs on an agent with the ISA `agent`: the processors
    /// are equal, and the agent has every feature of this target, with the same sign.
    pub fn runs_on(&self, agent: &TargetId) -> bool {
        self.processor == agent.processor
            && self.features.iter().all(|feature| agent.features.contains(feature))
    }

    /// Whether what is for this target may be for a GPU of which only `known` is known: this is its
    /// processor, or a family that includes it, and no feature has another sign. Either may leave
    /// features open: what is for `gfx90a` runs on every variant, and a GPU that is only known as `gfx90a`
    /// may be any of them.
    pub fn may_run_on(&self, known: &TargetId) -> bool {
        self.covers(known)
            && self.features.iter().all(|(name, on)| {
                let mut features = known.features.iter();
                features.all(|(other, sign)| other != name || sign == on)
            })
    }

    /// Whether one of the two may have code for the other: each may leave features open.
    pub fn agrees_with(&self, other: &TargetId) -> bool {
        self.may_run_on(other) || other.may_run_on(self)
    }

    /// Whether the text `target` is a target ID whose code objects [may run](Self::may_run_on) on a GPU of
    /// which only this is known.
    pub fn may_run(&self, target: &str) -> bool {
        let target = target.parse();
        target.is_ok_and(|target: Self| target.may_run_on(self))
    }

    /// Whether this is [SPIR-V](SPIRV), which HIP runtimes compile for any GPU.
    pub fn is_spirv(&self) -> bool {
        self.processor == SPIRV
    }

    /// Whether a user who names this target means what is for `found`. A processor stands for itself and its
    /// variants; a variant for itself and what runs there as well: what is for the plain processor, and for
    /// a family that includes it. A family stands for itself alone.
    pub(crate) fn selects(&self, found: &TargetId) -> bool {
        let mut features = found.features.iter();
        found.covers(self)
            && (self.features.is_empty() || features.all(|feature| self.features.contains(feature)))
    }

    /// The target without features: what is for a processor and its variants is installed together.
    #[must_use]
    pub fn plain(&self) -> Self {
        Self::new(&self.processor, &[])
    }

    /// Every target whose code objects run on this agent, most specific first: for
    /// `gfx942:sramecc+:xnack-` itself, `gfx942:sramecc+`, `gfx942:xnack-`, `gfx942`.
    pub fn compatible(&self) -> Vec<TargetId> {
        // One bit for each feature, the first feature's being the highest: of two numbers with
        // equally many bits, the larger comes first.
        let count = self.features.len();
        let mut sets: Vec<u32> = (0..1 << count).collect();
        sets.sort_by_key(|set: &u32| {
            (std::cmp::Reverse(set.count_ones()), std::cmp::Reverse(*set))
        });
        let subset = |set: u32| {
            let chosen = self.features.iter().enumerate();
            chosen
                .filter(|(index, _)| set >> (count - 1 - index) & 1 == 1)
                .map(|(_, feature)| feature.clone())
                .collect()
        };
        sets.into_iter()
            .map(|set| TargetId { processor: self.processor.clone(), features: subset(set) })
            .collect()
    }

    /// The processor with this major version, minor version and stepping: the last two are hexadecimal digits of its
    /// name.
    pub fn of_version([major, minor, stepping]: [u32; 3]) -> Self {
        Self::new(&format!("gfx{major}{minor:x}{stepping:x}"), &[])
    }

    /// The target of device code for a family of processors, such as `gfx11`, which is also `gfx11xx`; `None`
    /// if there is no such family. No code object has such a target.
    pub fn family(name: &str) -> Option<Self> {
        let is_named = |(family, pattern): &&(&str, &str)| [*family, *pattern].contains(&name);
        let (family, _) = FAMILIES.iter().find(is_named)?;
        Some(Self::new(family, &[]))
    }

    /// The families that include the processor, the smallest first: `gfx110x` and `gfx11` for `gfx1100`.
    pub fn families(&self) -> impl Iterator<Item = Self> {
        let families = FAMILIES.iter().rev().map(|(name, _)| Self::new(name, &[]));
        families.filter(|family| family.processor != self.processor && family.covers(self))
    }

    /// The processor, or the family as it is called where a name has no `_`: `gfx120x` for `gfx12_0`.
    pub fn plain_name(&self) -> &str {
        let family = FAMILIES.iter().find(|(name, _)| *name == self.processor);
        match family {
            Some((name, pattern)) if name.contains('_') => pattern,
            _ => &self.processor,
        }
    }

    /// Whether the processor is `other`'s, or a family that includes it or the one that
    /// [owns its packages](Self::package_owner). In names of families, `x` stands for any digit.
    pub fn covers(&self, other: &TargetId) -> bool {
        let family = FAMILIES.iter().find(|(name, _)| *name == self.processor);
        let pattern = family.map_or(&*self.processor, |(_, pattern)| pattern).as_bytes();
        let processor =
            if family.is_some() { owner_of(&other.processor) } else { &other.processor };
        let processor = processor.as_bytes();
        self.processor == other.processor
            || pattern.len() == processor.len()
                && pattern.starts_with(b"gfx")
                && std::iter::zip(pattern, processor)
                    .all(|(a, b)| a == b || *a == b'x' && b.is_ascii_hexdigit())
    }

    /// The target whose packages contain the code for this one: a device wheel, an extra and a requirement have the name
    /// of that. Most targets have packages of their own.
    #[must_use]
    pub fn package_owner(&self) -> Self {
        Self { processor: owner_of(&self.processor).to_owned(), features: self.features.clone() }
    }

    /// A target with these parts.
    pub(crate) fn new(processor: &str, features: &[(&str, bool)]) -> Self {
        let mut features: Vec<_> =
            features.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        features.sort();
        Self { processor: processor.to_owned(), features }
    }
}

/// The names of processor families and parts of families in ROCm's packages, and the processors of
/// each, where `x` stands for any digit. AOTriton's directories use the second form.
#[rustfmt::skip]
pub const FAMILIES: &[(&str, &str)] = &[
    ("gfx9", "gfx9xx"), ("gfx9_0", "gfx90x"), ("gfx9_4", "gfx94x"), ("gfx9_5", "gfx95x"),
    ("gfx10", "gfx10xx"), ("gfx10_1", "gfx101x"), ("gfx10_3", "gfx103x"),
    ("gfx11", "gfx11xx"), ("gfx110x", "gfx110x"), ("gfx115x", "gfx115x"),
    ("gfx12", "gfx12xx"), ("gfx12_0", "gfx120x"), ("gfx12_5", "gfx125x"),
];

/// Processors that have no packages of their own, each with the one whose packages contain their code. ROCm's tools have
/// the same table (rocm-bootstrap 0.3.0, `package_metadata.py`).
const PACKAGE_OWNERS: &[(&str, &str)] = &[("gfx1250-strict", "gfx1250")];

/// The processor whose packages contain the code for this one.
pub(crate) fn owner_of(processor: &str) -> &str {
    let owner = PACKAGE_OWNERS.iter().find(|(owned, _)| *owned == processor);
    owner.map_or(processor, |(_, owner)| owner)
}

/// Maximum number of features, more than any target has: the targets that run on an agent grow as
/// the power set of its features.
const MOST_FEATURES: usize = 4;
/// Maximum length of an ID in bytes, because it becomes part of file names.
const MAX_LENGTH: usize = 100;
/// ROCm's runtimes write this before an ID.
pub const TRIPLE: &str = "amdgcn-amd-amdhsa--";
/// The target of SPIR-V code.
pub const SPIRV: &str = "amdgcnspirv";
/// What runtimes and bundles write before [`SPIRV`].
const SPIRV_TRIPLES: [&str; 2] = ["spirv64-amd-amdhsa-unknown-", "spirv64-amd-amdhsa--"];

/// An ID without the triple before it.
fn without_triple(text: &str) -> &str {
    let mut triples = SPIRV_TRIPLES.iter();
    match triples.find_map(|triple| text.strip_prefix(triple)) {
        Some(SPIRV) => SPIRV,
        _ => text.strip_prefix(TRIPLE).unwrap_or(text),
    }
}

/// Whether `name` has the form of a processor: `gfx` and a number whose last digits can be
/// hexadecimal (or `x` for any digit in the names of families, `gfx11xx`); a variant of it
/// (`gfx1250-strict`); a generic one (`gfx9-4-generic`); or a word such as `amdgcnspirv`.
fn is_processor(name: &str) -> bool {
    let Some(number) = name.strip_prefix("gfx") else {
        return is_word(name);
    };
    let is_digit = |byte: u8| byte.is_ascii_digit();
    if let Some(generation) = number.strip_suffix("-generic") {
        let mut parts = generation.split('-');
        return parts.all(|part| !part.is_empty() && part.bytes().all(is_digit));
    }
    // A variant of a processor with its own instructions (gfx1250-strict).
    let number = number.strip_suffix("-strict").unwrap_or(number);
    // The digits are major version, minor version and stepping.
    number.len() >= 3
        && number.starts_with(|c: char| c.is_ascii_digit())
        && number.bytes().all(|byte| is_digit(byte) || matches!(byte, b'a'..=b'f' | b'x'))
}

fn is_word(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(plain)
}

impl FromStr for TargetId {
    type Err = ParseTargetIdError;

    /// Reads an ID, with or without the [`TRIPLE`] (or that of SPIR-V) in front, by the grammar of LLVM
    /// ("User Guide for AMDGPU Backend", "Target ID"). A processor need not be known, so that
    /// new GPUs work.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |reason| Err(ParseTargetIdError::new(text, reason));
        if text.len() > MAX_LENGTH {
            return refuse("it is longer than 100 bytes");
        }
        let id = without_triple(text);
        let mut parts = id.split(':');
        let processor = parts.next().unwrap_or_default();
        if !is_processor(processor) {
            return refuse(EXPECTED);
        }
        let mut features: Vec<(String, bool)> = Vec::new();
        for part in parts {
            let (name, on) = match (part.strip_suffix('+'), part.strip_suffix('-')) {
                (Some(name), _) => (name, true),
                (None, Some(name)) => (name, false),
                (None, None) => return refuse("expected `+` or `-` after each feature"),
            };
            if !is_word(name) {
                return refuse("expected a feature, such as xnack");
            }
            if features.iter().any(|(known, _)| known == name) {
                return refuse("names a feature twice");
            }
            features.push((name.to_owned(), on));
        }
        if features.len() > MOST_FEATURES {
            return refuse("names more than 4 features");
        }
        features.sort();
        Ok(Self { processor: processor.to_owned(), features })
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
