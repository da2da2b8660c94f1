//! ROCm's own loader, asked the conformance vectors.

use std::fs;

use anyhow::{Context, Result};
use kpack_tests::conformance::{ROCM_7_14, check};
use kpack_tests::corpus;
use kpack_tests::require::{checked, fetched};

#[test]
#[ignore = "needs ROCm's loader, which it fetches"]
fn rocms_loader_answers_what_the_vectors_say() -> Result<()> {
    let Some(directory) = fetched(corpus::rocm()) else {
        return Ok(());
    };
    let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
    let is_loader = |name: &str| name.starts_with("librocm_kpack") && name.contains(".so");
    let loader = files
        .into_iter()
        .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_loader));
    let loader = loader.context("no librocm_kpack")?;
    let count = check(&loader, ROCM_7_14)?;
    checked(&format!("{count} vectors, {}", ROCM_7_14));
    Ok(())
}
