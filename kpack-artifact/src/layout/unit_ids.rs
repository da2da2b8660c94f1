//! IDs of compilation units, which differ between builds for different targets.

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
