//! GPUs, by the names that HIP runtimes give them.

/// GPUs of each generation.
pub(super) const GPUS: [&str; 33] = [
    "gfx900:xnack-",
    "gfx902:xnack-",
    "gfx904:xnack-",
    "gfx906:sramecc+:xnack-",
    "gfx908:sramecc+:xnack-",
    "gfx909:xnack-",
    "gfx90a:sramecc+:xnack-",
    "gfx90c:xnack-",
    "gfx942:sramecc+:xnack-",
    "gfx950:sramecc+:xnack-",
    "gfx1010:xnack-",
    "gfx1011:xnack-",
    "gfx1012:xnack-",
    "gfx1013:xnack-",
    "gfx1030",
    "gfx1031",
    "gfx1032",
    "gfx1033",
    "gfx1034",
    "gfx1035",
    "gfx1036",
    "gfx1100",
    "gfx1101",
    "gfx1102",
    "gfx1103",
    "gfx1150",
    "gfx1151",
    "gfx1152",
    "gfx1153",
    "gfx1170",
    "gfx1200",
    "gfx1201",
    "gfx1250",
];

/// The ISA of a GPU that runs code for a target: with all features that its processor has.
pub(crate) fn isa(target: &str) -> String {
    let (processor, own) = target.split_once(':').unwrap_or((target, ""));
    let known = GPUS.iter().find_map(|gpu| gpu.strip_prefix(processor)?.strip_prefix(':'));
    let mut isa = processor.to_owned();
    for feature in known.into_iter().flat_map(|features| features.split(':')) {
        let name = feature.trim_end_matches(['+', '-']);
        let set = own.split(':').find(|own| own.starts_with(name));
        isa += &format!(":{}", set.unwrap_or(feature));
    }
    isa
}
