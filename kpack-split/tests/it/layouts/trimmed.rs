//! A binary with the code for some GPUs only.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kpack_core::publish::Directory;
use kpack_split::ids;
use kpack_split::input::LinkedBinary;
use kpack_split::join::differences;
use kpack_split::trim::{self, Keep, Scratch, Trim, TrimDestination};
use kpack_tests::fixture::Kind;

use super::{Bench, Made, same_host_code};

/// Trims the fat binary for one GPU and for two, checks it as it is and after each tool, and trims what each tool makes
/// of the fat binary.
pub(super) fn check(bench: &Bench, kind: Kind, fat: &Path) -> Result<()> {
    check_gpus(bench, kind, fat, &["gfx1100"]).context("for gfx1100")?;
    check_gpus(bench, kind, fat, &["gfx90a", "gfx942"]).context("for two GPUs")
}

fn check_gpus(bench: &Bench, kind: Kind, fat: &Path, gpus: &[&str]) -> Result<()> {
    let expected = bench.report(kind, fat)?;
    let trimmed = bench.path("trimmed");
    fs::copy(fat, &trimmed)?;
    if !trim(&trimmed, gpus)? {
        // Some layouts have code for gfx1100 alone.
        return Ok(());
    }
    bench.check_host(kind, fat, &trimmed, &expected)?;
    same(fat, &trimmed)?;
    let size = |path: &Path| -> Result<u64> { Ok(fs::metadata(path)?.len()) };
    ensure!(size(&trimmed)? <= size(fat)?, "it has grown");
    ensure!(!trim(&trimmed, gpus)?, "it is trimmed twice");
    if let [first, _] = gpus {
        let again = bench.path("trimmed-again");
        fs::copy(&trimmed, &again)?;
        ensure!(trim(&again, &[first])?, "it stays as it is, for fewer GPUs");
        bench.check_host(kind, fat, &again, &expected).context("for fewer GPUs")?;
        same(fat, &again).context("for fewer GPUs")?;
        let loads = |path: &Path| -> Result<usize> {
            let image = kpack_split::elf::Image::read(fs::File::open(path)?)?;
            Ok(image.segments.len())
        };
        ensure!(loads(&again)? == loads(&trimmed)?, "another program header");
    }

    let made = Made { fat, path: &trimmed, expected: &expected, what: "trim" };
    bench.check_with_tools(kind, &made, &|_, treated, of_treated| {
        fs::copy(treated, of_treated)?;
        ensure!(trim(of_treated, gpus)?, "it stays as it is");
        same(treated, of_treated)
    })
}

/// Trims a file. Whether it changed: not without code for the GPUs.
pub(crate) fn trim(path: &Path, gpus: &[&str]) -> Result<bool> {
    // Every layout has code for gfx1100.
    let has_all = gpus == ["gfx1100"];
    let gpus = gpus.iter().map(|gpu| gpu.parse()).collect::<Result<_, _>>()?;
    let keep = Keep { gpus, spirv: false, check: false };
    let directory = path.parent().context("it is in a directory")?;
    let scratch = Scratch { directory, only_measured: false };
    match trim::plan(path, File::open(path)?, &keep, scratch)? {
        Trim::Planned(plan) => {
            let directory = Arc::new(Directory::open(directory)?);
            let name = path.file_name().context("it has a name")?;
            let to = TrimDestination { directory: &directory, name, link: None };
            let lost = plan.apply(path, &File::open(path)?, &to)?.lost;
            ensure!(lost.is_empty(), "{lost:?}");
            ensure!(fs::metadata(path)?.len() == plan.size_after(), "the size is not as planned");
            Ok(true)
        }
        Trim::Done => Ok(false),
        Trim::LeftAlone(why) if why.id == ids::MISSING_TARGET && !has_all => Ok(false),
        other => bail!("{other:?}"),
    }
}

/// Compares host code, and the code objects that stay, under their wrappers.
pub(crate) fn same(fat: &Path, trimmed: &Path) -> Result<()> {
    same_host_code(fat, trimmed)?;
    let differences = differences(&LinkedBinary::open(trimmed)?, &LinkedBinary::open(fat)?)?;
    ensure!(differences.is_empty(), "{differences:#?}");
    Ok(())
}
