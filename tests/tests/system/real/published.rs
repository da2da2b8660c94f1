//! The libraries of ROCm's own split in a published wheel, as its author's tools left them.

use std::fs;

use anyhow::{Context, Result, ensure};
use kpack_tests::corpus;
use kpack_tests::fixture::{RocmScheme, code, rocm_archive};
use kpack_tests::require::{checked, fetched};

use crate::support::{prefix, run, work};

/// Where ROCm's build had the DLL, in its own prefix.
const STAGE: &str = "math-libs/rocFFT/stage";

/// The wheel has no archives, so one is made. The DLL is signed, and kpack changes no signed file.
#[test]
#[ignore = "fetches ROCm's libraries for Windows"]
fn rocfft_for_windows_is_joined_without_its_signature() -> Result<()> {
    let Some((wheel, libraries)) = fetched(corpus::rocm_for_windows()) else {
        return Ok(());
    };
    let (work, kpack) = (work("published-windows"), prefix().join("bin/kpack"));
    let (tree, name) = (work.join("prefix"), format!("{STAGE}/bin/rocfft.dll"));
    let (file, archives) = (tree.join(&name), tree.join(STAGE).join(".kpack"));
    for directory in [file.parent().context("a directory")?, &archives] {
        fs::create_dir_all(directory)?;
    }
    let signed = fs::read(libraries.join("rocfft.dll"))?;
    fs::write(&file, &signed)?;
    let (target, object) = code("gfx1100", "fft");
    let kernels = [(format!("{name}#0"), object.clone())];
    let archive = rocm_archive("fft_lib", &target, &kernels, RocmScheme::Zstd)?;
    fs::write(archives.join("fft_lib_gfx1100.kpack"), archive)?;
    run!("{kpack} verify {tree} --arch gfx1100")?;
    let refused = run!("{kpack} join --prefix {tree} --arch gfx1100 {name}");
    ensure!(refused.is_err() && fs::read(&file)? == signed, "a signed file was joined");

    let unsigned = without_signature(signed)?;
    fs::write(&file, &unsigned)?;
    run!("{kpack} join --prefix {tree} --arch gfx1100 {name}")?;
    run!("{kpack} verify {file}")?;
    let out = work.join("out");
    run!("{kpack} extract --quiet {file} --output-dir {out}")?;
    ensure!(fs::read(out.join("rocfft.dll-0-gfx1100.hsaco"))? == object, "other code");
    run!("{kpack} split --prefix {tree} --module fft --kpack-dir {STAGE}/.kpack {name}")?;
    ensure!(fs::read(&file)? == unsigned, "the split DLL differs from the one that was joined");
    checked(&format!("rocfft.dll of {wheel}"));
    Ok(fs::remove_dir_all(work)?)
}

/// A PE image without its certificates, which are at its end, and without the checksum, which covers them.
fn without_signature(mut bytes: Vec<u8>) -> Result<Vec<u8>> {
    let word = |bytes: &[u8], at: usize| -> Result<usize> {
        let word = bytes.get(at..at + 4).context("a header is cut off")?;
        Ok(u32::from_le_bytes(word.try_into()?) as usize)
    };
    let optional = word(&bytes, 60)? + 24;
    let directory = optional + 112 + 8 * 4;
    let start = word(&bytes, directory)?;
    ensure!(start > 0, "rocfft.dll is not signed");
    bytes[directory..directory + 8].fill(0);
    bytes[optional + 64..optional + 68].fill(0);
    bytes.truncate(start);
    Ok(bytes)
}

/// The wheel's author stripped the library after ROCm's tool had moved its program headers. No system loads it, and
/// kpack says so.
#[test]
#[ignore = "fetches ROCm's HIP runtime"]
fn rocfft_for_linux_is_broken_and_found_to_be() -> Result<()> {
    let Some(libraries) = fetched(corpus::rocm()) else {
        return Ok(());
    };
    let kpack = prefix().join("bin/kpack");
    let library = libraries.join("librocfft-5e17f420.so.0.1");
    let before = fs::read(&library)?;
    ensure!(run!("{kpack} verify {library}").is_err(), "no fault");
    ensure!(fs::read(&library)? == before, "it changed");
    checked("librocfft-5e17f420.so.0.1 is rejected");
    Ok(())
}
