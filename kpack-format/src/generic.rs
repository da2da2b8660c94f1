//! Generic targets: for which processors HIP runtimes take their code, and from where.

use std::fmt;

use crate::TargetId;
use crate::code_object::processors;

/// Where a HIP runtime finds device code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// In a bundle: of a fat or joined binary, or made by the shim. The newest HIP runtime chooses.
    Bundle,
    /// In a bundle that any HIP runtime may read, including those whose successors choose differently. Ask this before
    /// code is removed for good, because nobody knows which runtime will load the rest.
    AnyBundle,
    /// In an archive, through a loader that it asks.
    Archive,
}

/// A version of ROCm: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RocmVersion(pub u16, pub u16);

impl fmt::Display for RocmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ROCm {}.{}", self.0, self.1)
    }
}

/// The generic target whose code HIP runtimes take for a GPU that has no code of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generic {
    /// The target, with the GPU's features.
    pub target: TargetId,
    /// The first ROCm whose runtime takes it.
    pub since: RocmVersion,
}

/// Which code HIP runtimes take for which processors, and since when: from bundles, and from archives.
///
/// This is the table in the HIP runtime (ROCm/rocm-systems, `projects/clr/hipamd/src/hip_fatbin.cpp`,
/// `TargetGenericMap`; since ROCm 6.4). LLVM's "User Guide for AMDGPU Backend", "AMDGPU Generic Processors",
/// has more processors (gfx11-7-generic, gfx12-5-generic, gfx13-generic), which no released runtime takes
/// generic code for. For gfx906, the runtime asks for `gfx9-generic:sramecc+:xnack-`: no bundle has that,
/// since gfx9-generic has no sramecc; loaders try fewer features as well. `cargo xtask test real` compares the table with real runtimes: 5.2, 5.7 and 7.14, and `real::extra` with 6.4 and 7.2.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    ("gfx9-generic", &["gfx900", "gfx902", "gfx904", "gfx909", "gfx90c"], BUNDLES, ARCHIVES),
    ("gfx9-generic", &["gfx906"], Bundles::Only(RocmVersion(6, 4)), ARCHIVES),
    ("gfx9-4-generic", &["gfx942"], BUNDLES, ARCHIVES),
    // The first ROCm for this GPU.
    ("gfx9-4-generic", &["gfx950"], Bundles::Always(RocmVersion(7, 0)), ARCHIVES),
    ("gfx10-1-generic", &["gfx1010", "gfx1011", "gfx1012", "gfx1013"], BUNDLES, ARCHIVES),
    ("gfx10-3-generic", &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"], BUNDLES, ARCHIVES),
    ("gfx11-generic", &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151"], BUNDLES, ARCHIVES),
    // Tried: 6.4.3 does not, 7.2.4 does.
    ("gfx11-generic", &["gfx1152", "gfx1153"], Bundles::Since(RocmVersion(7, 2)), ARCHIVES),
    ("gfx12-generic", &["gfx1200", "gfx1201"], BUNDLES, ARCHIVES),
];

/// The generic target, its processors, and since when runtimes take its code from bundles and from archives.
type Row = (&'static str, &'static [&'static str], Bundles, RocmVersion);

/// Which runtimes take generic code for a processor from bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bundles {
    /// All that take generic code and know the processor: since this version.
    Always(RocmVersion),
    /// Some that know the processor do not. Those since this version do.
    Since(RocmVersion),
    /// This version alone.
    Only(RocmVersion),
}

/// The first runtime that takes generic code.
const BUNDLES: Bundles = Bundles::Always(RocmVersion(6, 4));
/// The first runtime that can be built to read markers.
const ARCHIVES: RocmVersion = RocmVersion(7, 12);

/// The row of a known processor.
fn row(processor: &str) -> Option<&'static Row> {
    TABLE.iter().find(|(_, processors, ..)| processors.contains(&processor))
}

/// The generic target of a known processor, and since when runtimes take its code.
fn of_processor(processor: &str, delivery: Delivery) -> Option<(&'static str, RocmVersion)> {
    let (name, _, bundles, archives) = row(processor)?;
    let since = match (delivery, bundles) {
        (Delivery::Archive, _) => archives,
        (Delivery::Bundle, Bundles::Only(_)) => return None,
        (_, Bundles::Always(since) | Bundles::Since(since) | Bundles::Only(since)) => since,
    };
    Some((name, *since))
}

impl TargetId {
    /// Whether it is a generic target, such as `gfx11-generic`.
    pub fn is_generic(&self) -> bool {
        self.processor().ends_with("-generic")
    }

    /// The generic target whose code HIP runtimes take for this GPU; `None` if they take none. For a processor that this
    /// version does not know, it is the one that all known processors have whose names differ in the last digit alone.
    pub fn generic(&self, delivery: Delivery) -> Option<Generic> {
        let (name, since) = if self.is_listed() {
            of_processor(self.processor(), delivery)?
        } else {
            let similar = self
                .similar()
                .map(|known| of_processor(known, delivery))
                .collect::<Option<Vec<_>>>()?;
            let (name, _) = *similar.first()?;
            let since = similar.iter().map(|(_, since)| *since).max()?;
            similar.iter().all(|(other, _)| *other == name).then_some((name, since))?
        };
        let features: Vec<(&str, bool)> = self.features().collect();
        Some(Generic { target: Self::new(name, &features), since })
    }

    /// Whether this version knows the processor.
    fn is_listed(&self) -> bool {
        processors().any(|known| known == self.processor())
    }

    /// The known processors whose names differ from this one's in the last digit alone, such as gfx1150 for gfx1154.
    pub(crate) fn similar(&self) -> impl Iterator<Item = &'static str> {
        let digits = |name: &str| {
            name.strip_prefix("gfx").is_some_and(|number| {
                number.len() > 2 && number.bytes().all(|digit| digit.is_ascii_hexdigit())
            })
        };
        let own = self.processor();
        processors().filter(move |known| {
            digits(own)
                && digits(known)
                && known.len() == own.len()
                && known[..known.len() - 1] == own[..own.len() - 1]
        })
    }

    /// Whether this is a generic target whose code HIP runtimes take for `gpu`.
    pub fn is_generic_for(&self, gpu: &TargetId, delivery: Delivery) -> bool {
        let generic = gpu.generic(delivery);
        generic.is_some_and(|generic| self.may_run_on(&generic.target))
    }

    /// Whether a HIP runtime may take code for this target on a GPU of which only `gpu` is known.
    pub fn may_be_taken_for(&self, gpu: &TargetId, delivery: Delivery) -> bool {
        self.may_run_on(gpu) || self.is_generic_for(gpu, delivery)
    }

    /// Whether a user who names this target needs what is for `found`. A processor stands for itself and its
    /// variants; a variant for itself and what runs there as well. Both need what is for families that include
    /// the processor, and generic code that HIP runtimes take for it. A family stands for itself alone.
    pub fn needs(&self, found: &TargetId, delivery: Delivery) -> bool {
        self.selects(found) || found.is_generic_for(self, delivery)
    }

    /// Those of the targets `there` are, whose code a HIP runtime may take for this GPU: its own, and generic
    /// ones unless every variant of it that this may be has code of its own.
    pub fn taken<'t>(&self, there: &'t [TargetId], delivery: Delivery) -> Vec<&'t TargetId> {
        let own: Vec<&TargetId> = there.iter().filter(|t| t.may_run_on(self)).collect();
        let lacks_some = self.has_variant_without(&own);
        let generic = |target: &&TargetId| lacks_some && target.is_generic_for(self, delivery);
        let generic = there.iter().filter(generic);
        own.iter().copied().chain(generic).collect()
    }

    /// Whether the targets `there` have no code, native or generic, that a HIP runtime takes for some variant of this
    /// GPU. It then compiles SPIR-V, if there is any.
    pub fn lacks_code(&self, there: &[TargetId], delivery: Delivery) -> bool {
        let own: Vec<&TargetId> = there.iter().filter(|t| t.may_run_on(self)).collect();
        let is_sure = self.takes_generic_for_sure(delivery);
        let generic: Vec<&TargetId> =
            there.iter().filter(|t| is_sure && t.is_generic_for(self, delivery)).collect();
        let all: Vec<&TargetId> = own.iter().chain(&generic).copied().collect();
        !self.variants(&all).iter().all(|variant| {
            let as_generic = variant.generic(delivery);
            let has_generic = as_generic
                .is_some_and(|taken| generic.iter().any(|own| own.runs_on(&taken.target)));
            has_generic || own.iter().any(|own| own.runs_on(variant))
        })
    }

    /// Whether each HIP runtime that knows this GPU takes its generic code. What is only likely to be taken is no reason to do
    /// without SPIR-V.
    fn takes_generic_for_sure(&self, delivery: Delivery) -> bool {
        let always = || matches!(row(self.processor()), Some((_, _, Bundles::Always(_), _)));
        self.is_listed() && (delivery != Delivery::AnyBundle || always())
    }

    /// Whether this GPU may be one that none of the targets runs on. Each of them may run on some variant of it.
    fn has_variant_without(&self, own: &[&TargetId]) -> bool {
        let has_own = |variant: &TargetId| own.iter().any(|own| own.runs_on(variant));
        !self.variants(own).iter().all(has_own)
    }

    /// This GPU with each combination of the features of `targets` that it leaves open.
    fn variants(&self, targets: &[&TargetId]) -> Vec<TargetId> {
        let names = targets.iter().flat_map(|target| target.features());
        let mut open: Vec<&str> = Vec::new();
        for (name, _) in names {
            if !open.contains(&name) && self.features().all(|(own, _)| own != name) {
                open.push(name);
            }
        }
        let mut variants = vec![self.clone()];
        // Real GPUs have two features.
        for name in open.into_iter().take(6) {
            let with = |variant: &TargetId, on| {
                let features = variant.features().chain([(name, on)]);
                Self::new(variant.processor(), &Vec::from_iter(features))
            };
            variants = variants
                .iter()
                .flat_map(|variant| [with(variant, true), with(variant, false)])
                .collect();
        }
        variants
    }

    /// Why HIP runtimes take no code for the generic target `generic` on this GPU; `None` if they do, or if it
    /// is for another generation.
    pub fn why_not_generic(&self, generic: &TargetId, delivery: Delivery) -> Option<String> {
        let generation = |target: &TargetId| {
            let number = target.processor().strip_prefix("gfx")?;
            match number.strip_suffix("-generic") {
                Some(number) => Some(number.split('-').next().unwrap_or(number).to_owned()),
                // Minor version and stepping are one digit each.
                None => Some(number.get(..number.len().checked_sub(2)?)?.to_owned()),
            }
        };
        let is_other = !generic.is_generic() || generation(generic) != generation(self);
        if is_other || generic.is_generic_for(self, delivery) {
            return None;
        }
        let (own, generic) = (self.processor(), generic.processor());
        let known = self.generic(Delivery::Archive);
        Some(match known.filter(|known| known.target.processor() == generic) {
            Some(Generic { since, .. }) => {
                let bundles = match row(own) {
                    Some((_, _, Bundles::Only(version), _)) => {
                        format!("; from bundles, only {version} does")
                    }
                    _ => String::new(),
                };
                format!(
                    "HIP runtimes take {generic} for {own} only from archives, since {since}{bundles}"
                )
            }
            None => format!("HIP runtimes do not take {generic} for {own}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> TargetId {
        text.parse().unwrap()
    }

    #[test]
    fn runtimes_take_generic_code_for_the_processors_in_their_table() {
        for (generic, gpu, bundle, archive) in [
            ("gfx9-generic", "gfx900:xnack-", true, true),
            ("gfx9-generic", "gfx906:sramecc+:xnack-", false, true),
            ("gfx9-generic", "gfx908", false, false),
            ("gfx9-generic", "gfx90a", false, false),
            ("gfx9-generic", "gfx942", false, false),
            ("gfx9-4-generic", "gfx942", true, true),
            ("gfx9-4-generic", "gfx950", true, true),
            ("gfx9-4-generic:xnack+", "gfx950:sramecc+:xnack+", true, true),
            ("gfx9-4-generic:xnack+", "gfx950:sramecc+:xnack-", false, false),
            ("gfx9-4-generic:xnack+", "gfx950", true, true),
            ("gfx10-1-generic", "gfx1013", true, true),
            ("gfx10-3-generic", "gfx1030", true, true),
            ("gfx10-3-generic", "gfx1010", false, false),
            ("gfx11-generic", "gfx1103", true, true),
            ("gfx11-generic", "gfx1153", true, true),
            ("gfx11-generic", "gfx1170", false, false),
            ("gfx12-generic", "gfx1201", true, true),
            ("gfx12-generic", "gfx1250", false, false),
            ("gfx1030", "gfx1030", false, false),
        ] {
            let (target, gpu) = (id(generic), id(gpu));
            let is = |delivery| target.is_generic_for(&gpu, delivery);
            assert_eq!(is(Delivery::Bundle), bundle, "{generic} {gpu}");
            assert_eq!(is(Delivery::Archive), archive, "{generic} {gpu}");
        }
    }

    #[test]
    fn an_unknown_processor_has_the_generic_target_that_all_of_its_neighbours_have() {
        for (gpu, bundle, archive) in [
            ("gfx1154", Some(("gfx11-generic", RocmVersion(7, 2))), Some("gfx11-generic")),
            ("gfx1037", Some(("gfx10-3-generic", RocmVersion(6, 4))), Some("gfx10-3-generic")),
            (
                "gfx951:xnack+",
                Some(("gfx9-4-generic:xnack+", RocmVersion(7, 0))),
                Some("gfx9-4-generic:xnack+"),
            ),
            // gfx1170, gfx90a and gfx940 are known to have none.
            ("gfx1175", None, None),
            ("gfx90e", None, None),
            ("gfx943", None, None),
            // It has no neighbours, or is a family.
            ("gfx1160", None, None),
            ("gfx11-5-generic", None, None),
            ("gfx115x", None, None),
            ("gfx940", None, None),
        ] {
            let found = |delivery| id(gpu).generic(delivery);
            let in_bundles =
                found(Delivery::Bundle).map(|found| (found.target.to_string(), found.since));
            let expected = bundle.map(|(name, since)| (name.to_owned(), since));
            assert_eq!(in_bundles, expected, "{gpu}");
            let in_archives = found(Delivery::Archive).map(|found| found.target.to_string());
            assert_eq!(in_archives.as_deref(), archive, "{gpu}");
        }
        // It is only likely, so SPIR-V stays.
        let there = [id("gfx11-generic"), id("amdgcnspirv")];
        assert!(id("gfx1154").lacks_code(&there, Delivery::Bundle));
        assert!(!id("gfx1153").lacks_code(&there, Delivery::Bundle));
        assert!(id("gfx1154").needs(&there[0], Delivery::Bundle));
    }

    #[test]
    fn the_table_has_known_processors_each_once() {
        let mut seen = std::collections::BTreeSet::new();
        for (generic, gpus, ..) in TABLE {
            for name in gpus.iter().chain([generic]) {
                assert!(processors().any(|known| known == *name), "{name}");
            }
            for gpu in *gpus {
                assert!(seen.insert(gpu), "{gpu}");
            }
        }
    }

    #[test]
    fn generic_code_is_taken_where_a_variant_has_no_code_of_its_own() {
        let taken = |gpu: &str, there: &[&str]| {
            let there: Vec<TargetId> = there.iter().map(|target| id(target)).collect();
            let taken = id(gpu).taken(&there, Delivery::Bundle).into_iter();
            taken.map(TargetId::to_string).collect::<Vec<_>>()
        };
        let [generic, plain] = ["gfx9-4-generic", "gfx942"];
        let [on, off] = ["gfx942:xnack+", "gfx942:xnack-"];
        assert_eq!(taken("gfx942", &[generic, plain]), [plain]);
        assert_eq!(taken("gfx942", &[generic, on, off]), [on, off]);
        assert_eq!(taken("gfx942", &[generic, on]), [on, generic]);
        assert_eq!(taken("gfx942:xnack+", &[generic, on, off]), [on]);
        assert_eq!(taken("gfx942:xnack-", &[generic, on]), [generic]);
        assert_eq!(taken("gfx950", &["gfx9-generic", generic, plain]), [generic]);
        assert_eq!(taken("gfx1100", &[generic, "gfx1101"]), [""; 0]);
    }

    #[test]
    fn code_stays_that_only_some_runtimes_take() {
        let ids = |there: &[&str]| Vec::from_iter(there.iter().map(|target| id(target)));
        let taken = |gpu: &str, there: &[&str], delivery| {
            let there = ids(there);
            let taken = id(gpu).taken(&there, delivery).into_iter();
            taken.map(TargetId::to_string).collect::<Vec<_>>()
        };
        let there = ["gfx906:xnack+", "gfx9-generic"];
        assert_eq!(taken("gfx906", &there, Delivery::Bundle), there[..1]);
        assert_eq!(taken("gfx906", &there, Delivery::AnyBundle), there);
        assert_eq!(taken("gfx906:xnack-", &there, Delivery::AnyBundle), there[1..]);
        assert_eq!(taken("gfx906:xnack+", &there, Delivery::AnyBundle), there[..1]);
        assert_eq!(taken("gfx908", &there, Delivery::AnyBundle), [""; 0]);
        let lacks = |gpu: &str, there: &[&str], delivery| id(gpu).lacks_code(&ids(there), delivery);
        assert!(lacks("gfx906", &there, Delivery::AnyBundle));
        // ROCm 6.4 does not take it, and compiles SPIR-V.
        assert!(lacks("gfx1152", &["gfx11-generic"], Delivery::AnyBundle));
        assert!(!lacks("gfx1152", &["gfx11-generic"], Delivery::Bundle));
        assert!(!lacks("gfx950", &["gfx9-4-generic"], Delivery::AnyBundle));
    }

    #[test]
    fn generic_code_for_one_variant_is_none_for_the_other() {
        let lacks = |gpu: &str, there: &[&str]| {
            let there = Vec::from_iter(there.iter().map(|target| id(target)));
            id(gpu).lacks_code(&there, Delivery::Bundle)
        };
        let [generic, own] = ["gfx9-4-generic:xnack+", "gfx942:xnack-"];
        assert!(lacks("gfx942", &[generic]));
        assert!(!lacks("gfx942:xnack+", &[generic]));
        assert!(!lacks("gfx942", &[generic, own]));
        assert!(lacks("gfx950", &[generic, own]));
        assert!(!lacks("gfx942:sramecc+", &[generic, own]));
    }

    #[test]
    fn why_generic_code_is_not_taken() {
        let why =
            |gpu: &str, generic: &str| id(gpu).why_not_generic(&id(generic), Delivery::Bundle);
        assert_eq!(
            why("gfx942", "gfx9-generic").as_deref(),
            Some("HIP runtimes do not take gfx9-generic for gfx942")
        );
        assert_eq!(
            why("gfx906", "gfx9-generic").as_deref(),
            Some(
                "HIP runtimes take gfx9-generic for gfx906 only from archives, since ROCm 7.12; from bundles, only ROCm 6.4 does"
            )
        );
        assert_eq!(why("gfx1100", "gfx11-generic"), None);
        assert_eq!(why("gfx1100", "gfx9-generic"), None);
        assert_eq!(why("gfx1100", "gfx1101"), None);
    }
}
