//! Verifies that the code objects of each target have the kernels that a host binary registers.
//!
//! Start-up code passes the names of kernels to the HIP runtime, which looks for each in the code object of the GPU. The
//! code for one target may lack a kernel: the source may leave it out with `#if`. If it also has a kernel that the host
//! does not know and the other targets lack, it probably comes from another build. That is no proof, because the source may
//! also replace one kernel by another, such as `k<64>` by `k<32>`; only the original shows that.

use std::collections::{BTreeMap, BTreeSet};

use kpack_core::words::list_some;
use kpack_core::{Error, Reason, Severity, ids};

use super::context::Context;
use super::report::VerifyReport;
use crate::input::{CodePlace, KernelNames, LinkedBinary, NameHash, Resolver};

/// Maximum number of kernels to name.
const MOST_KERNELS: usize = 3;

/// Where code objects are, by index and target.
pub(super) type KernelPlaces = BTreeMap<u32, BTreeMap<String, CodePlace>>;

/// The kernels of an index's code objects, by target.
type OfTargets<'a> = BTreeMap<&'a str, KernelNames>;

/// Compares the code objects of all targets, which are at `places`.
pub(super) fn verify(
    binary: &LinkedBinary,
    places: &KernelPlaces,
    resolver: &Resolver,
    context: &Context<'_>,
    report: &mut VerifyReport,
) -> Result<(), Error> {
    let mut differing: BTreeMap<u32, OfTargets<'_>> = BTreeMap::new();
    for (index, of_index) in places {
        let mut of_targets = OfTargets::new();
        for (target, place) in of_index {
            let archives = &context.lookup.archives;
            if let Some(names) = resolver.kernels(*place, *index, target, archives)? {
                of_targets.insert(target, names);
            }
        }
        let mut all = of_targets.values();
        let first = all.next();
        if all.any(|own| Some(own) != first) {
            differing.insert(*index, of_targets);
        }
    }
    // Mostly none.
    if differing.is_empty() {
        return Ok(());
    }
    let names: BTreeSet<NameHash> =
        differing.values().flat_map(BTreeMap::values).flat_map(KernelNames::iter).collect();
    let registered = binary.registered(&|name| names.contains(&name))?;
    let quoted = |names: &BTreeSet<NameHash>| {
        let names = names.iter().filter_map(|name| registered.get(name));
        list_some(names.map(|name| format!("`{name}`")).collect::<Vec<_>>(), MOST_KERNELS)
    };
    let mut left_out: BTreeMap<&str, BTreeSet<NameHash>> = BTreeMap::new();
    for (index, of_targets) in &differing {
        for (target, own) in of_targets {
            let others = of_targets.values().filter(|other| *other != own);
            let is_lacking = |name: &NameHash| registered.contains_key(name) && !own.has(*name);
            let lacking: BTreeSet<NameHash> =
                others.clone().flat_map(KernelNames::iter).filter(is_lacking).collect();
            let is_unknown = |name: NameHash| {
                let mut others = others.clone();
                !registered.contains_key(&name) && !others.any(|other| other.has(name))
            };
            if lacking.is_empty() {
                continue;
            }
            if !own.iter().any(is_unknown) {
                left_out.entry(target).or_default().extend(lacking);
                continue;
            }
            let place = places.get(index).and_then(|places| places.get(*target));
            let path = place.map_or(&*binary.path, |place| resolver.path(*place));
            let text = format!(
                "`{}`: the code for {target} at index {index} may be from another build: it lacks {}, which the host \
                 binary registers and the code for other targets contains, and has kernels that the host does not register; \
                 run kpack verify --against the original",
                path.display(),
                quoted(&lacking)
            );
            let reason = Reason::from(text).target(target);
            report.add(Severity::Warning, ids::STALE_ARCHIVE, &binary.path, reason);
        }
    }
    for (target, lacking) in left_out {
        let text = format!(
            "the code for {target} lacks {}, which the host binary registers and the code for other targets contains; the \
             source may leave kernels out for some targets",
            quoted(&lacking)
        );
        report.note(ids::MISSING_KERNEL, &binary.path, Reason::from(text).target(target));
    }
    Ok(())
}
