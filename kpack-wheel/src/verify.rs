//! Verifies host wheels with their device wheels.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kpack_format::{Selection, TargetId};
use tempfile::TempDir;

use super::archive::{Destination, Wheel};
use super::members::{Member, of_unpacked};
use super::record::Digest;
use super::sdist::{self, is_sdist};
use super::set::{ALL, Pin, Pins, device_of};
use kpack_artifact::verify::{self, VerifyReport};
use kpack_core::finding::Id;
use kpack_core::parallel;
use kpack_core::publish::Directory;
use kpack_core::words::{counted, list, list_some};
use kpack_core::{Error, Finding, Reason, Severity, ids};
use kpack_tree::{Class, Only, Parsed, Walk};

/// The most names of device wheels in one line.
const MOST_NAMES: usize = 8;

/// What to compare with, and how.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// The fat wheel that the host wheel of the same name was split from.
    pub against: Option<PathBuf>,
    /// GPUs whose device wheels are among the wheels; if empty, all device wheels are.
    pub targets: Vec<TargetId>,
    /// Number of threads; `None` for the number of processors.
    pub jobs: Option<NonZeroUsize>,
}

/// Verifies host wheels with their device wheels: each is undamaged and says so in its RECORD, extras and
/// pins lead to the others and nowhere else, no two have a file at one path, and the binaries of a host find
/// their device code in what is installed. What a source distribution (`.tar.gz`) among them requires counts as asked
/// for.
///
/// # Errors
/// [`Error::Io`]; [`Error::Usage`] if there is nothing to compare with.
pub fn verify(wheels: &[PathBuf], options: &VerifyOptions) -> Result<VerifyReport, Error> {
    let jobs = options.jobs.unwrap_or_else(parallel::processors);
    parallel::with_jobs(jobs, || verify_all(wheels, options))
}

fn verify_all(paths: &[PathBuf], options: &VerifyOptions) -> Result<VerifyReport, Error> {
    let mut report = VerifyReport::default();
    let mut wheels = Vec::new();
    let (sdists, paths): (Vec<&PathBuf>, Vec<&PathBuf>) =
        paths.iter().partition(|path| is_sdist(path));
    for path in &paths {
        if let Some(wheel) = sound(path, &mut report)? {
            wheels.push(wheel);
        }
    }
    let against = match &options.against {
        Some(path) => Some(Wheel::open(path)?),
        None => None,
    };
    let mut asked = BTreeSet::new();
    let mut hosts = 0;
    for host in &wheels {
        let pins = host.pins()?;
        if !pins.are_of_host() {
            continue;
        }
        hosts += 1;
        let devices = devices(host, &pins, &wheels, &options.targets, &mut report)?;
        asked.extend(devices.iter().map(|device| &device.path));
        // Wheel variants, and other wheels that it always requires.
        let is_required = |wheel: &&Wheel| pins.always.iter().any(|pin| pin.asks_for(wheel));
        asked.extend(wheels.iter().filter(is_required).map(|wheel| &wheel.path));
        let fat = against.as_ref().filter(|fat| fat.name == host.name);
        if let Err(error) = overlay(host, &pins, &devices, fat, options, &mut report) {
            rejected(&mut report, error)?;
        }
        if let Some(fat) = fat
            && let Err(error) = same_members(host, fat, &mut report)
        {
            rejected(&mut report, error)?;
        }
    }
    for path in sdists {
        hosts += 1;
        let requirements = asked_by_sdist(path, &wheels, &mut report)?;
        let is_asked = |wheel: &&Wheel| requirements.iter().any(|pin| pin.asks_for(wheel));
        asked.extend(wheels.iter().filter(is_asked).map(|wheel| &wheel.path));
    }
    let mut others = 0;
    let mut unsplit = Vec::new();
    for wheel in wheels.iter().filter(|wheel| !asked.contains(&wheel.path)) {
        // It is not asked for, and its libraries were verified above.
        if wheel.pins()?.are_of_host() {
            continue;
        }
        let read = wheel
            .sections()
            .and_then(|own| Ok((wheel.split_elsewhere(&own)?, own.iter().any(|own| own.code))));
        let (elsewhere, has_code) = match read {
            Ok(read) => read,
            Err(error) => {
                rejected(&mut report, error)?;
                others += 1;
                continue;
            }
        };
        for library in &elsewhere {
            let id = ids::SPLIT_BY_ANOTHER_TOOL;
            fault(&mut report, id, &wheel.path, library.to_string());
        }
        if !elsewhere.is_empty() {
            others += 1;
        } else if hosts == 0 && has_code {
            unsplit.push(&wheel.path);
        } else if hosts > 0 {
            let text = "no extra of a host wheel among these asks for it";
            fault(&mut report, ids::UNREQUESTED_WHEEL, &wheel.path, text);
        }
    }
    for path in &unsplit {
        let text = "not split, so there is nothing to verify; `kpack wheel split` splits it";
        fault(&mut report, ids::NOTHING_SPLIT, path, text);
    }
    if hosts == 0 && others + unsplit.len() < paths.len() {
        for path in paths.iter().take(1) {
            let text = "no host wheel with the extra device-all is among these; pass it as well, or the source \
                        distribution (.tar.gz) whose extras ask for these wheels";
            fault(&mut report, ids::MISSING_WHEEL, path, text);
        }
    }
    if let Some(fat) = &against
        && !wheels.iter().any(|wheel| wheel.name == fat.name)
    {
        let text = "no host wheel has this name, so there is nothing to compare with";
        fault(&mut report, ids::MISSING_WHEEL, &fat.path, text);
    }
    say_once(&mut report.findings);
    Ok(report)
}

/// Leaves out what is there twice: the hosts for several Pythons share device wheels, and what is wrong with these.
fn say_once(findings: &mut Vec<Finding>) {
    let mut known = BTreeSet::new();
    findings.retain(|found| {
        known.insert((found.severity, found.id.as_str(), found.path.clone(), found.text.clone()))
    });
}

/// What a source distribution requires, with any extra. Reports it, and the wheels that are not there.
fn asked_by_sdist(
    path: &Path,
    wheels: &[Wheel],
    report: &mut VerifyReport,
) -> Result<BTreeSet<Pin>, Error> {
    let pins = match sdist::requirements(path) {
        Ok(pins) => pins,
        Err(error) => {
            rejected(report, error)?;
            return Ok(BTreeSet::new());
        }
    };
    let extras = pins.extras.into_values().flatten();
    let all: BTreeSet<Pin> = extras.chain(pins.always).collect();
    let (there, missing): (Vec<&Pin>, Vec<&Pin>) =
        all.iter().partition(|pin| wheels.iter().any(|wheel| pin.is_for(wheel)));
    for pin in &there {
        if let Some(wheel) = wheels.iter().find(|wheel| pin.is_for(wheel))
            && pin.version.is_some()
            && !wheels.iter().any(|wheel| pin.accepts(wheel))
        {
            let version = &wheel.name.version;
            let text = format!("it asks for {pin} (found version {version})");
            fault(report, ids::WRONG_PIN, path, text);
        }
    }
    let mut text = format!("it asks for {} of these", counted(there.len(), "project"));
    if !missing.is_empty() {
        text += &format!(", and for {}, which are not among them", list_some(missing, MOST_NAMES));
    }
    let note = Finding::new(Severity::Note, ids::WHEEL_SOUND, path, text);
    report.findings.push(note);
    Ok(all)
}

fn fault(report: &mut VerifyReport, id: Id, path: &Path, text: impl Into<Reason>) {
    let finding = Finding::new(Severity::Fault, id, path, text);
    report.findings.push(finding);
}

/// Reports why a file was rejected. An error that is not about the contents of one is returned.
fn rejected(report: &mut VerifyReport, error: Error) -> Result<(), Error> {
    let Error::Refused { id, path, reason, .. } = error else { return Err(error) };
    fault(report, id, &path, reason);
    Ok(())
}

/// Opens a wheel and reads all of it; `None` if it is damaged, or installers reject it.
fn sound(path: &Path, report: &mut VerifyReport) -> Result<Option<Wheel>, Error> {
    let read = Wheel::parse(path).and_then(|wheel| {
        wheel.pins()?;
        let digests = wheel.read_all()?;
        Ok((wheel, digests.len()))
    });
    match read {
        Ok((wheel, count)) => {
            let faults = report.count(Severity::Fault);
            for member in wheel.without_hash() {
                let text = format!("RECORD has no hash of `{}`", member.name);
                fault(report, ids::DAMAGED_WHEEL, path, text);
            }
            let mut is_installed = true;
            for (member, why) in wheel.not_installed() {
                let text = Reason::from(why).in_member(&member.name);
                fault(report, ids::DAMAGED_WHEEL, path, text);
                is_installed = false;
            }
            if report.count(Severity::Fault) == faults {
                let text = format!("{count} members as listed in RECORD");
                report.findings.push(Finding::new(Severity::Ok, ids::WHEEL_SOUND, path, text));
            }
            Ok(is_installed.then_some(wheel))
        }
        Err(error) => rejected(report, error).map(|()| None),
    }
}

/// The device wheels that the extras of `host` ask for, and whether all pins fit.
fn devices<'w>(
    host: &Wheel,
    pins: &Pins,
    wheels: &'w [Wheel],
    targets: &[TargetId],
    report: &mut VerifyReport,
) -> Result<Vec<&'w Wheel>, Error> {
    let mut devices = Vec::new();
    let mut missing = Vec::new();
    for (pin, extras) in pins.devices() {
        let Some(device) = device_of(pin, host, wheels) else {
            missing.push(pin);
            continue;
        };
        if !pin.accepts(device) {
            let text = format!(
                "the extras ask for {pin} (expected exactly version {})",
                device.name.version
            );
            fault(report, ids::WRONG_PIN, &host.path, text);
        }
        if extras.is_empty() {
            let text = format!("only device-all asks for {pin}");
            fault(report, ids::WRONG_PIN, &host.path, text);
        }
        if !device.pins()?.always.iter().any(|pin| pin.accepts(host)) {
            let text =
                format!("it does not require {}=={}", host.name.distribution, host.name.version);
            fault(report, ids::WRONG_PIN, &device.path, text);
        }
        devices.push(device);
    }
    missing_devices(host, pins, &missing, targets, report);
    let all = pins.extras.iter().filter(|(_, pins)| pins.len() < devices.len() + missing.len());
    for (extra, _) in all.filter(|(extra, _)| extra.to_string() == ALL) {
        let text = format!("the extra {extra} does not ask for all device wheels");
        fault(report, ids::WRONG_PIN, &host.path, text);
    }
    Ok(devices)
}

/// Reports device wheels that the extras of `host` ask for and that were not given.
fn missing_devices(
    host: &Wheel,
    pins: &Pins,
    missing: &[&Pin],
    targets: &[TargetId],
    report: &mut VerifyReport,
) {
    let selection: Selection = targets.iter().map(TargetId::package_owner).collect();
    let extras = Vec::from_iter(pins.targets());
    let labels: Vec<&TargetId> = extras.iter().map(|(target, ..)| target).collect();
    let lacks = selection.unmatched(&labels);
    if !lacks.is_empty() {
        let text = format!("no extra for {}", list(lacks));
        fault(report, ids::MISSING_WHEEL, &host.path, text);
    }
    let selected = extras.iter().filter(|(target, ..)| selection.matches(target));
    let needed: BTreeSet<&Pin> = selected.flat_map(|(.., asked)| *asked).collect();
    let is_needed = |pin: &&&Pin| targets.is_empty() || needed.contains(*pin);
    let (needed, others): (Vec<&Pin>, Vec<&Pin>) = missing.iter().partition(is_needed);
    if !needed.is_empty() {
        let verb = if needed.len() == 1 { "is" } else { "are" };
        let needed = list_some(needed, MOST_NAMES);
        let text = format!("the extras ask for {needed}, which {verb} not among these wheels");
        fault(report, ids::MISSING_WHEEL, &host.path, text);
    }
    if !others.is_empty() {
        let others = counted(others.len(), "device wheel");
        let text = format!("not checked: {others} for other GPUs");
        let note = Finding::new(Severity::Note, ids::MISSING_WHEEL, &host.path, text);
        report.findings.push(note);
    }
}

/// Verifies what is in `site-packages` when a host wheel and its device wheels are installed.
fn overlay(
    host: &Wheel,
    pins: &Pins,
    devices: &[&Wheel],
    fat: Option<&Wheel>,
    options: &VerifyOptions,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    #[expect(clippy::disallowed_methods, reason = "nobody else may write to a temporary directory")]
    let scratch =
        TempDir::new().map_err(|e| Error::io(&std::env::temp_dir(), "create files in", e))?;
    // Reports have the path without symbolic links.
    let root = scratch.path().canonicalize().map_err(|e| Error::io(scratch.path(), "open", e))?;
    let directory = Directory::open(&root)?;
    let make = |name: &str| directory.provide_below(name.as_ref());
    let (site, whole) = (make("site")?, make("fat")?);
    let (tree, original) = (site.path().to_owned(), whole.path().to_owned());
    let wheels = Vec::from_iter([host].into_iter().chain(devices.iter().copied()));
    if !fit_together(&wheels, report) {
        return Ok(());
    }
    for wheel in wheels {
        wheel.unpack(&site, &|member| in_site(wheel, member))?;
    }
    if let Some(fat) = fat {
        fat.unpack(&whole, &|member| in_site(fat, member))?;
    }
    let owners = owners(devices);
    // The wheel that an unpacked file is from, and the directory that it was unpacked into.
    let origin = |path: &Path| match fat {
        Some(fat) if path.starts_with(&original) => (fat, &original),
        _ => {
            let device = path.strip_prefix(&tree).ok().and_then(|path| owners.get(path));
            (device.copied().unwrap_or(host), &tree)
        }
    };
    let of_wheel = |error| match &error {
        Error::Refused { path, .. } => {
            let (wheel, directory) = origin(path);
            of_unpacked(&wheel.path, &[directory], error)
        }
        _ => error,
    };
    shared(host, pins, devices, &owners, &tree, report).map_err(of_wheel)?;
    let mut unpacked = verify::Options::default();
    unpacked.against = fat.map(|_| original.clone());
    unpacked.targets.clone_from(&options.targets);
    unpacked.jobs = options.jobs;
    let found = verify::verify(std::slice::from_ref(&tree), &unpacked, &()).map_err(of_wheel)?;
    let given: Selection = targets_of(pins, devices).collect();
    for mut check in found.findings {
        // The fault is that the device wheel with the code was not given, and that was reported.
        if check.severity == Severity::Fault
            && [ids::MISSING_ARCHIVE, ids::MISSING_TARGET].contains(&check.id)
            && devices.len() < pins.devices().len()
            && let Some(target) = check.details.target.as_ref().and_then(|id| id.parse().ok())
            && !given.matches(&TargetId::package_owner(&target))
        {
            check.severity = Severity::Note;
        }
        // Files in wheels instead of temporary ones.
        let (wheel, directory) = origin(check.file());
        if let Ok(within) = check.file().strip_prefix(directory) {
            check.path = Some(if within == Path::new("") {
                wheel.path.clone()
            } else {
                wheel.path.join(within)
            });
        }
        if check.text.contains(&*tree.to_string_lossy()) {
            // The longest first: one path may begin with another.
            for (path, device) in owners.iter().rev() {
                let (from, to) = (tree.join(path), device.path.join(path));
                check.text = check.text.replace(&*from.to_string_lossy(), &to.to_string_lossy());
            }
        }
        for (directory, wheel) in [(&tree, Some(host)), (&original, fat)] {
            let Some(wheel) = wheel else { continue };
            let (from, to) = (directory.to_string_lossy(), wheel.path.to_string_lossy());
            check.text = check.text.replace(&*from, &to);
        }
        report.findings.push(check);
    }
    Ok(())
}

/// The targets of the extras whose device wheels are all among `devices`.
fn targets_of(pins: &Pins, devices: &[&Wheel]) -> impl Iterator<Item = TargetId> {
    let is_given = |pin: &Pin| devices.iter().any(|device| pin.is_for(device));
    let targets = pins.targets().filter(move |(.., asked)| asked.iter().all(is_given));
    targets.map(|(target, ..)| target)
}

/// Which device wheel each file of `site-packages` is from, if it is from one.
fn owners<'w>(devices: &[&'w Wheel]) -> BTreeMap<PathBuf, &'w Wheel> {
    let files = devices.iter().flat_map(|device| {
        let paths = device.members.iter().filter_map(|member| in_site(device, member));
        paths.map(|path| (path, *device))
    });
    files.collect()
}

/// Reports extras and device wheels that do not ask for what their processor needs besides its own: files for
/// its family, and generic code. `tree` is where the wheels were unpacked, and `owners` tells whose its files are.
fn shared(
    host: &Wheel,
    pins: &Pins,
    devices: &[&Wheel],
    owners: &BTreeMap<PathBuf, &Wheel>,
    tree: &Path,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let mut found: BTreeMap<TargetId, BTreeMap<&Path, &Wheel>> = BTreeMap::new();
    let (databases, parsed) = (&kpack_tree::DatabaseSelection::default(), Parsed::default());
    let walk = Walk { prefix: tree, databases, parsed, only: Only::All };
    for entry in walk.collect()?.entries {
        if let (Class::Target { target, .. }, Some(owner)) =
            (&*entry.class, owners.get(&*entry.path))
            && (target.is_generic() || TargetId::family(target.processor()).is_some())
        {
            found.entry(target.clone()).or_default().insert(&owner.path, owner);
        }
    }
    let sharing: BTreeSet<&Path> = found.values().flat_map(BTreeMap::keys).copied().collect();
    for (shared, owners) in &found {
        for owner in owners.values() {
            let Some(pin) = pins.devices().into_keys().find(|pin| pin.is_for(owner)) else {
                continue;
            };
            let what = format!("{pin}, which has files for {shared}");
            for (extra, asked) in pins.needing(shared) {
                if !asked.contains(pin) {
                    let text = format!("the extra {extra} does not ask for {what}");
                    fault(report, ids::FAMILY_NOT_REQUIRED, &host.path, text);
                }
                let asks = |device: &Wheel| asked.iter().any(|pin| pin.is_for(device));
                let is_other = |device: &&Wheel| !sharing.contains(&&*device.path);
                for device in devices.iter().copied().filter(is_other) {
                    if asks(device) && !device.pins()?.always.contains(pin) {
                        let text = format!("it does not require {what}");
                        fault(report, ids::FAMILY_NOT_REQUIRED, &device.path, text);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Whether wheels can be installed together: no two have a file at one path, or one at a directory of
/// another.
fn fit_together(wheels: &[&Wheel], report: &mut VerifyReport) -> bool {
    let mut known: BTreeMap<PathBuf, &Path> = BTreeMap::new();
    let mut is_sound = true;
    for wheel in wheels {
        for path in wheel.members.iter().filter_map(|member| in_site(wheel, member)) {
            if let Some(other) = known.insert(path.clone(), &wheel.path) {
                let text = format!("{} also has `{}`", other.display(), path.display());
                fault(report, ids::OVERLAPPING_WHEELS, &wheel.path, text);
                is_sound = false;
            }
        }
    }
    for (path, wheel) in &known {
        for (file, other) in path.ancestors().skip(1).filter_map(|p| known.get_key_value(p)) {
            let text = format!("`{}` is a file in {}", file.display(), other.display());
            fault(report, ids::OVERLAPPING_WHEELS, wheel, text);
            is_sound = false;
        }
    }
    is_sound
}

/// Where a member is in `site-packages`, unless it is metadata.
fn in_site(wheel: &Wheel, member: &Member) -> Option<PathBuf> {
    match wheel.place(member) {
        Destination::Site(_, path) if !wheel.is_metadata(member) => Some(path),
        _ => None,
    }
}

/// Compares the members that are not installed in `site-packages`, and the metadata but METADATA and
/// RECORD.
fn same_members(host: &Wheel, fat: &Wheel, report: &mut VerifyReport) -> Result<(), Error> {
    let others = |wheel: &Wheel| -> Result<BTreeMap<String, Digest>, Error> {
        let is_other = |member: &&Member| {
            let is_changed = wheel.is_record(member) || member.name.ends_with("/METADATA");
            in_site(wheel, member).is_none() && !is_changed
        };
        let members = wheel.members.iter().filter(is_other);
        let digests = members.map(|member| Ok((member.name.clone(), wheel.digest(member)?)));
        digests.collect()
    };
    let (own, expected) = (others(host)?, others(fat)?);
    let names: BTreeSet<&String> = own.keys().chain(expected.keys()).collect();
    for name in names {
        let text = match (own.get(name), expected.get(name)) {
            (Some(own), Some(expected)) if own == expected => continue,
            (Some(_), Some(_)) => format!("member `{name}` differs from that of the fat wheel"),
            (None, _) => format!("member `{name}` of the fat wheel is missing"),
            (_, None) => format!("member `{name}` is not in the fat wheel"),
        };
        fault(report, ids::HOST_DIFFERS, &host.path, text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given the same words as a note of one host and a fault of another, then the fault is not lost.
    #[test]
    fn only_what_is_as_severe_is_said_once() {
        let finding = |severity| Finding::new(severity, ids::MISSING_WHEEL, Path::new("a"), "text");
        let [note, fault] = [Severity::Note, Severity::Fault].map(finding);
        let mut findings = vec![note.clone(), fault.clone(), note.clone(), fault.clone()];
        say_once(&mut findings);
        assert_eq!(findings, [note, fault]);
    }
}
