//! Compares the kernels that the host binaries of two shards register. Device code of both is used with one of the
//! binaries, so a kernel that only the other one registers could not be found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kpack_core::parallel::lock;
use kpack_core::words::list_some;
use kpack_core::{Error, Reason};
use kpack_format::names::KernelName;
use kpack_split::input::{KernelNames, NameHash};

use super::super::read::Inputs;
use crate::tree::Tree;

/// Maximum number of kernels to name.
const MOST_KERNELS: usize = 3;

/// How the kernels that the binaries at `path` register differ, of those in the device code that is moved out of them.
/// Which of them each target has does not matter: the source may leave kernels out for some targets.
pub(super) fn registered_differ(
    inputs: &Inputs<'_>,
    shards: [&Tree; 2],
    path: &Path,
) -> Result<Option<Reason>, Error> {
    let mut hosts = Vec::new();
    for item in shards.iter().filter_map(|tree| tree.entries.get(path)) {
        hosts.push(item.linked()?);
    }
    let [one, other] = &hosts[..] else {
        return Ok(None);
    };
    let mut binaries = BTreeSet::new();
    for host in &hosts {
        let markers = host.markers()?.into_iter();
        binaries.extend(markers.filter_map(|group| group.marker.kernel_name));
    }
    let device = inputs.device.values().flatten();
    let device = device.filter(|own| shards.iter().any(|tree| tree.shard == own.shard));
    let archives = inputs.component.archives;
    let mut names: BTreeSet<NameHash> = BTreeSet::new();
    for item in device.flat_map(|tree| &tree.entries).filter(|item| item.is_kpack()) {
        let archive = archives.open(item.full())?;
        let mut kernels = Vec::new();
        for (kernel, targets) in &lock(&archive).toc().kernels {
            if KernelName::binary_of(kernel).is_some_and(|binary| binaries.contains(binary)) {
                kernels.extend(targets.keys().map(|target| (kernel.clone(), target.clone())));
            }
        }
        for (kernel, target) in kernels {
            let own = archives.kernels(item.full(), &kernel, &target)?;
            names.extend(own.iter().flat_map(KernelNames::iter));
        }
    }
    let is_one = |name| names.contains(&name);
    let (ours, theirs) = (one.registered(&is_one)?, other.registered(&is_one)?);
    let (expected, found) = (only(&ours, &theirs), only(&theirs, &ours));
    if expected == found {
        return Ok(None);
    }
    let text = format!(
        "registers other kernels than the primary shard's binary, although both shards have device code for them \
         (expected {expected}, found {found})"
    );
    Ok(Some(Reason::from(text).differs(expected, found)))
}

/// The kernels that only the first of two binaries registers, for people.
fn only(own: &BTreeMap<NameHash, String>, other: &BTreeMap<NameHash, String>) -> String {
    let only = own.iter().filter(|(name, _)| !other.contains_key(name));
    let mut only = Vec::from_iter(only.map(|(_, name)| format!("`{name}`")));
    only.sort();
    if only.is_empty() { "none".to_owned() } else { list_some(only, MOST_KERNELS) }
}
