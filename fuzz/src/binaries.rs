//! Objects, executables and shared libraries.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kpack_build::Error;
use kpack_build::object_file::{Options, split};
use kpack_build::report::Outcome;
use kpack_format::offload_bundle::{HOST_ENTRY, plain};
use kpack_split::elf::{BinaryError, DeviceCode, NewCode};
use kpack_split::host::{Image, JoinPlan, SplitPlan};

/// A relocatable object, or a static library.
///
/// # Panics
/// Where it is neither refused, with nothing written, nor split, into something that is split and
/// not much larger.
pub fn object(bytes: &[u8]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [input, output, again] =
        ["file.o", "split", "again"].map(|name| directory.path().join(name));
    fs::write(&input, bytes).expect("a temporary file");
    let run = |input: &Path, output: &Path| split(&Options::new("vec", output, [input]), &());
    match run(&input, &output) {
        Err(Error::Refused { .. }) => assert!(!output.exists(), "nothing is written"),
        Err(error) => panic!("{}", error.in_one_line()),
        Ok(report) => {
            let host = output.join("file.o");
            let written = fs::read(&host).expect("a host-only file");
            assert!(written.len() <= 2 * bytes.len() + 4096);
            let report_of_host = run(&host, &again).expect("what is written is read");
            let was_split = |outcome: &Outcome| matches!(outcome, Outcome::Split { .. });
            assert!(!was_split(&report_of_host.files[0].outcome));
            if !was_split(&report.files[0].outcome) {
                assert_eq!(written, bytes);
            }
        }
    }
}

/// A linked file, ELF or PE: a fat one is split, a split one is joined and split again.
///
/// # Panics
/// Where device code was put back, and is not found.
pub fn linked(bytes: &[u8]) {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("a temporary file");
    if let Ok(image) = Image::read(&file) {
        let _ = image.facts();
    }
    let Ok(split) = split_linked(&file) else {
        return;
    };
    // Little device code goes where it was, much after everything else.
    for padding in [0, 16 << 20] {
        let Ok(joined) = join_linked(split.as_ref().unwrap_or(&file), padding) else {
            continue;
        };
        let image = Image::read(&joined).expect("what was checked is read");
        match image.device_code() {
            Ok(DeviceCode::Fat(fat)) if fat.joined.is_some() => {}
            other => panic!("joined, it is {other:?}"),
        }
        let _ = split_linked(&joined);
    }
}

const MARKER: &[u8] = b"\x82\xb2kpack_search_paths\x91\xa1x\xabkernel_name\xa1y";

/// The host binary of a fat one; `None` for what is no fat binary.
fn split_linked(file: &File) -> Result<Option<File>, BinaryError> {
    let image = Image::read(file)?;
    let DeviceCode::Fat(fat) = image.device_code()? else {
        return Ok(None);
    };
    let plan = SplitPlan::new(&image, &fat, MARKER, &[])?;
    let output = tempfile::tempfile()?;
    plan.apply(file, &output)?;
    Ok(Some(output))
}

/// A split binary with a bundle for each wrapper, and room for `padding` bytes after it.
fn join_linked(file: &File, padding: u64) -> Result<File, BinaryError> {
    let image = Image::read(file)?;
    let code = image.device_code()?;
    let wrappers = code.split_wrappers();
    let Some(first) = wrappers.first() else {
        return Err(BinaryError::Refused("not split".into()));
    };
    let bundle = plain([(HOST_ENTRY, &[][..])]);
    let new = NewCode {
        wrappers: &Vec::from_iter((0..).zip(wrappers).map(|(bundle, w)| (w.address, bundle))),
        sizes: &vec![bundle.len() as u64 + padding; wrappers.len()],
        marker: first.marker_address..first.marker_address.saturating_add(MARKER.len() as u64),
    };
    let plan = JoinPlan::new(&image, &new)?;
    if plan.output_size() > 8 * image.source().metadata()?.len() + (64 << 20) {
        return Err(BinaryError::Refused("would only cost time".into()));
    }
    let output = tempfile::tempfile()?;
    plan.write(file, &output)?;
    for offset in plan.bundles() {
        output.write_all_at(&bundle, *offset)?;
    }
    plan.finish(file, &output)?;
    Ok(output)
}
