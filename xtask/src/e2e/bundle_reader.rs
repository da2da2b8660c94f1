//! A second reader of offload bundles, for compression versions and targets newer than clang's
//! bundler. It shares no code with the one under test, and is compared with clang's wherever both
//! can read.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::code_object::CodeObject;
use super::reference::CodeObjects;

/// The code objects of the bundle that fills `file`.
///
/// # Errors
/// The file is not a bundle, or is compressed with anything but Zstandard.
pub(super) fn read(file: &Path) -> Result<CodeObjects> {
    let bytes = fs::read(file)?;
    let plain = match bytes.get(..4) {
        Some(b"CCOB") => decompress(&bytes),
        _ => Ok(bytes),
    };
    plain
        .and_then(|plain| entries(&plain))
        .with_context(|| file.display().to_string())
}

/// As [`read`], and removes the file.
pub(super) fn take(file: &Path) -> Result<CodeObjects> {
    let code_objects = read(file)?;
    fs::remove_file(file)?;
    Ok(code_objects)
}

fn decompress(bytes: &[u8]) -> Result<Vec<u8>> {
    let header = match half(bytes, 4)? {
        2 => 24,
        3 => 32,
        version => bail!("CCOB version {version} is unsupported"),
    };
    ensure!(
        half(bytes, 6)? == 1,
        "compressed by another method than Zstandard"
    );
    let frame = bytes.get(header..).context("truncated")?;
    Ok(zstd::stream::decode_all(frame)?)
}

fn entries(plain: &[u8]) -> Result<CodeObjects> {
    ensure!(
        plain.starts_with(b"__CLANG_OFFLOAD_BUNDLE__"),
        "not an offload bundle"
    );
    let mut code_objects = CodeObjects::new();
    let mut at = 32;
    for _ in 0..word(plain, 24)? {
        let (offset, size, id) = (
            word(plain, at)?,
            word(plain, at + 8)?,
            word(plain, at + 16)?,
        );
        let id = plain.get(at + 24..at + 24 + id).context("truncated")?;
        at += 24 + id.len();
        let id = std::str::from_utf8(id)?;
        if id.starts_with("host-") {
            continue;
        }
        let (_, target) = id.rsplit_once("--").context("no target in an entry ID")?;
        let bytes = plain.get(offset..offset + size).context("truncated")?;
        code_objects.insert(target.to_owned(), CodeObject::of(bytes));
    }
    Ok(code_objects)
}

fn half(bytes: &[u8], at: usize) -> Result<u16> {
    let bytes = bytes.get(at..at + 2).context("truncated")?;
    Ok(u16::from_le_bytes(bytes.try_into()?))
}

fn word(bytes: &[u8], at: usize) -> Result<usize> {
    let bytes = bytes.get(at..at + 8).context("truncated")?;
    Ok(u64::from_le_bytes(bytes.try_into()?).try_into()?)
}
