//! What the unsplit build does and contains: the reference for every split build.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use kpack_format::offload_bundle::{Bundle, Format, PLAIN_MAGIC};

use super::runtime::{CodeObject, Event, Kind, Observation};

/// A wrapper: its binary as a path in the prefix, and its index among the binary's wrappers.
pub(crate) type Wrapper = (PathBuf, u32);

/// Code objects by target ID.
pub(crate) type CodeObjects = BTreeMap<String, CodeObject>;

/// Observations of the unsplit build.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    /// What each program printed and did, in the order of the programs.
    pub(crate) programs: Vec<Behaviour>,
    /// What each wrapper's bundle holds.
    pub(crate) wrappers: BTreeMap<Wrapper, CodeObjects>,
}

/// Behaviour of a program that splitting must not change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Behaviour {
    pub(crate) stdout: String,
    /// Kernels as they are registered and launched.
    pub(crate) kernels: Vec<(Wrapper, Kind)>,
}

/// The index of each wrapper, in order of address, since wrappers are an array.
pub(crate) fn indices(events: &[Event]) -> BTreeMap<(&Path, u64), u32> {
    let mut addresses: BTreeMap<&Path, BTreeSet<u64>> = BTreeMap::new();
    for event in events {
        addresses.entry(&event.binary).or_default().insert(event.wrapper);
    }
    addresses
        .into_iter()
        .flat_map(|(binary, addresses)| {
            (0..).zip(addresses).map(move |(i, address)| ((binary, address), i))
        })
        .collect()
}

impl Behaviour {
    pub(crate) fn of(observation: &Observation) -> Self {
        let indices = indices(&observation.events);
        let kernels = observation
            .events
            .iter()
            .filter(|event| matches!(event.kind, Kind::Function(_) | Kind::Launch(_)))
            .map(|event| {
                let index = indices[&(event.binary.as_path(), event.wrapper)];
                ((event.binary.clone(), index), event.kind.clone())
            })
            .collect();
        Self { stdout: observation.stdout.clone(), kernels }
    }

    /// Describes the first difference of `found` from this.
    pub(crate) fn difference(&self, found: &Self) -> String {
        if self.stdout != found.stdout {
            return format!("it printed\n{}instead of\n{}", found.stdout, self.stdout);
        }
        let (before, after) = (&self.kernels, &found.kernels);
        let place = before.iter().zip(after).take_while(|(b, a)| b == a).count();
        format!(
            "event {place} of {} is {:?} instead of {:?}",
            before.len(),
            after.get(place),
            before.get(place)
        )
    }
}

impl Reference {
    /// Adds the run of a program of the unsplit build. Removes the copies of its bundles.
    ///
    /// # Errors
    /// A wrapper is already split.
    pub(crate) fn add(&mut self, observation: &Observation) -> Result<()> {
        let indices = indices(&observation.events);
        for event in &observation.events {
            let index = indices[&(event.binary.as_path(), event.wrapper)];
            let wrapper = (event.binary.clone(), index);
            match &event.kind {
                Kind::Fat { bundle } if !self.wrappers.contains_key(&wrapper) => {
                    let code_objects = unbundle(bundle)?;
                    ensure!(
                        !code_objects.is_empty(),
                        "{}: wrapper {index} has a bundle without device code",
                        event.binary.display()
                    );
                    self.wrappers.insert(wrapper, code_objects);
                }
                Kind::Split { .. } => bail!(
                    "{}: the wrapper at {:#x} of an unsplit binary is split",
                    event.binary.display(),
                    event.wrapper
                ),
                _ => {}
            }
        }
        self.programs.push(Behaviour::of(observation));
        Ok(())
    }

    /// The targets of all wrappers.
    pub(crate) fn targets(&self) -> BTreeSet<&str> {
        self.wrappers
            .values()
            .flat_map(|code_objects| code_objects.keys().map(String::as_str))
            .collect()
    }

    /// What a GPU with these ISAs, the preferred one first, must get for `wrapper`: code for the most
    /// specific target that runs on the first ISA, or else on the next one.
    pub(crate) fn expected(&self, wrapper: &Wrapper, isas: &[&str]) -> Option<&CodeObject> {
        let code_objects = self.wrappers.get(wrapper)?;
        isas.iter().find_map(|isa| {
            let fitting = code_objects.iter().filter(|(target, _)| runs_on(target, isa));
            let best = fitting.max_by_key(|(target, _)| target.matches(':').count());
            best.map(|(_, code_object)| code_object)
        })
    }

    /// The binaries with device code, as paths in the prefix.
    pub(crate) fn binaries(&self) -> BTreeSet<&Path> {
        self.wrappers.keys().map(|(binary, _)| binary.as_path()).collect()
    }
}

/// The code objects of the bundle that fills `file`, which is removed.
fn unbundle(file: &Path) -> Result<CodeObjects> {
    let mut source = BufReader::new(File::open(file)?);
    let bundle = Bundle::read(&mut source, file.metadata()?.len())?;
    if bundle.format == Format::Plain {
        // Entries that kpack would not see are in no other reference either.
        let mut count = [0; 8];
        source.seek(SeekFrom::Start(PLAIN_MAGIC.len() as u64))?;
        source.read_exact(&mut count)?;
        let (found, count) = (bundle.entries.len() as u64, u64::from_le_bytes(count));
        ensure!(found == count, "{}: kpack reads {found} entries of {count}", file.display());
    }
    source.rewind()?;
    let code_objects = bundle.code_objects(source, |_| true)?.map(|code| {
        let code = code?;
        Ok((code.target.to_string(), CodeObject::of(&code.bytes)))
    });
    let code_objects = code_objects.collect();
    fs::remove_file(file)?;
    code_objects
}

/// Whether code for `target` runs on a GPU with the ISA `isa`.
fn runs_on(target: &str, isa: &str) -> bool {
    let mut parts = target.split(':');
    parts.next() == isa.split(':').next()
        && parts.all(|feature| isa.split(':').any(|other| other == feature))
}
