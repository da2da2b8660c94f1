//! What may differ between host binaries that were built for different targets.

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
            let and = if found.has_other_units {
                format!(", and in {UNIT_IDS}")
            } else {
                String::new()
            };
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

/// The names of IDs of compilation units in messages.
pub(crate) const UNIT_IDS: &str = "IDs of compilation units (`__hip_cuid_…`), which clang derives \
                                   from its options, --offload-arch among them";

/// What the names of symbols begin with that exist only for their names.
pub(super) const UNIT_ID: &[u8] = b"__hip_cuid_";
/// The most digits that follow.
pub(super) const LONGEST_ID: usize = 16;

/// Whether a symbol exists only for its name, which contains the ID of a compilation unit: a hash of
/// the compiler's options and the source's path, without leading zeros (clang, `-fuse-cuid=hash`, the
/// default for HIP). Longer names with an ID do not count: with `-fgpu-rdc`, variables and kernels must
/// have the same names in host and device code.
pub(super) fn is_unit_id(name: &[u8]) -> bool {
    let id = name.strip_prefix(UNIT_ID).unwrap_or_default();
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(is_digit)
}
