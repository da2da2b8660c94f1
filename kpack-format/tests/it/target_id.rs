//! Target IDs: what is read, in which order an agent's targets are tried, and what is refused
//! because it could not be a part of a file name.

use kpack_format::TargetId;

fn id(text: &str) -> TargetId {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn compatible(agent: &str) -> Vec<String> {
    id(agent).compatible().iter().map(TargetId::to_string).collect()
}

#[test]
fn ids_are_written_as_they_are_read() {
    for text in [
        "gfx1100",
        "gfx90a:xnack+",
        "gfx942:sramecc+:xnack-",
        "gfx9-4-generic",
        "gfx11-generic:xnack+",
        "amdgcnspirv",
        // A family, as AOTriton names one, and processors that nobody knows yet.
        "gfx11xx",
        "gfx13ab",
        "gfx13-5-generic:sramecc-",
    ] {
        assert_eq!(id(text).to_string(), text);
    }
    assert_eq!(id("amdgcn-amd-amdhsa--gfx90a:xnack-").to_string(), "gfx90a:xnack-");
}

#[test]
fn features_are_in_alphabetical_order() {
    assert_eq!(id("gfx942:xnack-:sramecc+").to_string(), "gfx942:sramecc+:xnack-");
}

#[test]
fn an_agents_targets_come_most_specific_first() {
    assert_eq!(
        compatible("gfx942:sramecc+:xnack-"),
        ["gfx942:sramecc+:xnack-", "gfx942:sramecc+", "gfx942:xnack-", "gfx942"]
    );
    assert_eq!(compatible("gfx1100"), ["gfx1100"]);
}

#[test]
fn a_code_object_runs_where_its_features_are() {
    let agent = id("gfx90a:sramecc+:xnack-");
    for runs in ["gfx90a", "gfx90a:xnack-", "gfx90a:sramecc+", "gfx90a:sramecc+:xnack-"] {
        assert!(id(runs).runs_on(&agent), "{runs}");
        assert!(agent.compatible().contains(&id(runs)), "{runs}");
    }
    for not in ["gfx90a:xnack+", "gfx942", "gfx90a:sramecc-", "gfx90a:tgsplit+"] {
        assert!(!id(not).runs_on(&agent), "{not}");
        assert!(!agent.compatible().contains(&id(not)), "{not}");
    }
}

#[test]
fn what_is_no_id_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "expected a processor"),
        ("gfx1100/../x", "expected a processor"),
        ("../gfx1100", "expected a processor"),
        ("-rf", "expected a processor"),
        ("gfx 90a", "expected a processor"),
        ("gfx-900", "expected a processor"),
        ("gfx", "expected a processor"),
        ("gfx9", "expected a processor"),
        ("gfx110X", "expected a processor"),
        ("GFX1100", "expected a processor"),
        ("gfx1100-all", "expected a processor"),
        ("gfx9-generic-all", "expected a processor"),
        ("gfx-generic", "expected a processor"),
        ("gfx9--generic", "expected a processor"),
        ("gfx90a-xnack+", "expected a processor"),
        ("gfx90a:XNACK+", "expected a feature"),
        ("gfx90a:xnack--", "expected a feature"),
        ("gfx90a:xnack", "expected `+` or `-`"),
        ("gfx90a:", "expected `+` or `-`"),
        ("gfx90a:+", "expected a feature"),
        ("gfx90a:xnack+:xnack-", "names a feature twice"),
        ("gfx90a:a+:b+:c+:d+:e+", "names more than 4 features"),
    ] {
        let error = text.parse::<TargetId>().unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    assert!("g".repeat(101).parse::<TargetId>().is_err());
}

#[test]
fn a_gpu_whose_features_are_unknown_may_run_every_variant() {
    for (target, gpu, may) in [
        ("gfx90a:xnack+", "gfx90a", true),
        ("gfx90a", "gfx90a:xnack+", true),
        ("gfx90a:sramecc+", "gfx90a:xnack+", true),
        ("gfx90a:xnack-", "gfx90a:xnack+", false),
        ("gfx908", "gfx90a", false),
    ] {
        assert_eq!(id(target).may_run_on(&id(gpu)), may, "{target} {gpu}");
    }
}

#[test]
fn spirv_with_the_triples_that_runtimes_write() {
    for text in
        ["amdgcnspirv", "spirv64-amd-amdhsa-unknown-amdgcnspirv", "spirv64-amd-amdhsa--amdgcnspirv"]
    {
        let target: TargetId = text.parse().unwrap();
        assert!(target.is_spirv());
        assert_eq!(target.to_string(), "amdgcnspirv");
    }
    assert!("spirv64-amd-amdhsa--gfx1100".parse::<TargetId>().is_err());
}

/// ROCm's packages for gfx1250 contain what is for gfx1250-strict.
#[test]
fn a_target_without_packages_of_its_own_belongs_to_those_of_another() {
    for (target, owner) in [
        ("gfx1250-strict", "gfx1250"),
        ("gfx1250-strict:xnack+", "gfx1250:xnack+"),
        ("gfx1250", "gfx1250"),
        ("gfx90a:xnack+", "gfx90a:xnack+"),
        ("gfx11-generic", "gfx11-generic"),
        ("amdgcnspirv", "amdgcnspirv"),
    ] {
        assert_eq!(id(target).package_owner(), id(owner), "{target}");
    }
    let strict = id("gfx1250-strict");
    let families = Vec::from_iter(strict.families().map(|family| family.processor().to_owned()));
    assert_eq!(families, ["gfx12_5", "gfx12"]);
    assert!(!id("gfx1250").covers(&strict) && !strict.covers(&id("gfx1250")));
}
