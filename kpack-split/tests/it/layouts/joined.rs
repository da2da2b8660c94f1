//! Device code put back into a host binary.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kpack_format::offload_bundle::{HOST_ENTRY, plain};
use kpack_split::elf::{DeviceCode, ElfJoinPlan, Image, NewCode};
use kpack_tests::fixture::{Kind, code_object};

use super::{Bench, MARKER, Made, same_host_code};

/// So much device code for each wrapper fits into the addresses that the split freed, in bytes.
pub(crate) const LITTLE: usize = 9_000;
/// So much does not.
pub(crate) const MUCH: usize = 300_000;

/// Joins `host`, the host binary of `fat`, checks it as it is and after each tool, joins what each tool
/// makes of the host binary, and splits it again.
pub(super) fn check(bench: &Bench, kind: Kind, fat: &Path, host: &Path) -> Result<()> {
    check_size(bench, kind, fat, host, LITTLE).context("little device code")?;
    check_size(bench, kind, fat, host, MUCH).context("much device code")
}

fn check_size(bench: &Bench, kind: Kind, fat: &Path, host: &Path, size: usize) -> Result<()> {
    let expected = bench.report(kind, fat)?;
    let joined = bench.path("joined");
    join(host, &joined, size)?;
    bench.check_host(kind, fat, &joined, &expected)?;
    same_host_code(fat, &joined)?;

    let again = bench.path("again");
    let _ = fs::remove_file(&again);
    bench.split(&joined, &again).context("split again")?;
    let split = bench.report(kind, host)?;
    bench.check_host(kind, fat, &again, &split).context("split again")?;
    same_bytes(host, &again).context("split again")?;

    let made = Made { fat, path: &joined, expected: &expected, what: "join" };
    bench.check_with_tools(kind, &made, &|(tool, arguments), _, of_treated| {
        let treated = bench.path("host-tool");
        fs::copy(host, &treated)?;
        bench.apply(tool, arguments, &treated)?;
        join(&treated, of_treated, size)
    })
}

/// Checks that splitting a joined binary gives the binary that was joined.
pub(crate) fn same_bytes(split: &Path, again: &Path) -> Result<()> {
    let (split, again) = (fs::read(split)?, fs::read(again)?);
    let pairs = split.iter().zip(&again);
    let at = pairs.take_while(|(a, b)| a == b).count();
    let differ = split.iter().zip(&again).filter(|(a, b)| a != b).count();
    ensure!(
        split == again,
        "{} bytes became {}; they differ from offset {at:#x}, in {differ} bytes",
        split.len(),
        again.len()
    );
    Ok(())
}

/// Puts a code object for each wrapper of `host` back.
pub(crate) fn join(host: &Path, output: &Path, size: usize) -> Result<()> {
    let input = File::open(host)?;
    let image = Image::read(&input)?;
    let DeviceCode::Split(wrappers) = image.device_code()? else {
        bail!("{} is not split", host.display())
    };
    let mut bundles = Vec::new();
    for index in 0..wrappers.len() {
        let code = code_object("gfx1100", &vec![index as u8; size])?;
        let entries: [(&str, &[u8]); 2] =
            [(HOST_ENTRY, &[]), ("hipv4-amdgcn-amd-amdhsa--gfx1100", &code)];
        bundles.push(plain(entries));
    }
    let marker = wrappers[0].marker_address;
    let plan = ElfJoinPlan::new(
        &image,
        &NewCode {
            wrappers: &Vec::from_iter((0..).zip(&wrappers).map(|(bundle, w)| (w.address, bundle))),
            sizes: &Vec::from_iter(bundles.iter().map(|bundle| bundle.len() as u64)),
            marker: marker..marker + MARKER.len() as u64,
        },
    )?;
    let _ = fs::remove_file(output);
    let file = File::options().read(true).write(true).create_new(true).open(output)?;
    plan.write(&input, &file)?;
    for (bundle, offset) in bundles.iter().zip(plan.bundles()) {
        file.write_all_at(bundle, *offset)?;
    }
    plan.check(&input, &file)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    Ok(())
}
