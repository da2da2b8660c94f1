//! Each form of a library in each situation of a process: a real HIP runtime must behave as it does with the
//! unsplit library, and load the same code objects from it. What it does is a table of `docs/dev/runtimes.md`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kpack_tests::require::{checked, skip};

use super::rig::{Execution, Outcome, Rig};
use super::{DOCUMENT, variants};
use crate::support::root;

/// GPUs with code in the library of `tests/real`.
const GFX1030: &str = "gfx1030";
const GFX90A: &str = "gfx90a:sramecc+:xnack+";
/// A GPU without code in it.
const GFX906: &str = "gfx906:sramecc+:xnack-";

/// The kernels of that library.
const KERNELS: [&str; 3] =
    ["_Z13fill_mrg32k3aPfjy", "_Z18fill_philox4x32_10Pfjy", "_Z11fill_xorwowPfjy"];

struct Situation {
    name: &'static str,
    gpus: &'static [&'static str],
    /// The steps of `tests/real/load.c`. `query` and `launch` stand for all kernels; without them, the
    /// runtime loads all code as it starts.
    steps: &'static str,
}

const fn situation(
    name: &'static str,
    gpus: &'static [&'static str],
    steps: &'static str,
) -> Situation {
    Situation { name, gpus, steps }
}

/// The columns of the table in `docs/dev/runtimes.md`.
const COLUMNS: [Situation; 10] = [
    situation("registered", &[GFX1030], "open"),
    situation("queried", &[GFX1030], "open query"),
    situation("launched", &[GFX1030], "open launch"),
    situation("two alike", &[GFX1030, GFX1030], "open launch"),
    situation("two different", &[GFX1030, GFX90A], "open launch"),
    situation("no code: registered", &[GFX906], "open"),
    situation("no code: queried", &[GFX906], "open query"),
    situation("no code: launched", &[GFX906], "open launch"),
    situation("no code for the second", &[GFX1030, GFX906], "open launch"),
    situation("no code for the first", &[GFX906, GFX1030], "open launch"),
];

const OTHERS: [Situation; 11] = [
    situation("all loaded at the start", &[GFX1030], "open init"),
    situation("the other target", &[GFX90A], "open init"),
    situation("no code, all loaded at the start", &[GFX906], "open init"),
    situation("opened again", &[GFX1030], "open init query close open query"),
    situation("opened again, then the first kernel", &[GFX1030], "open close open init query"),
    situation("in a child of fork", &[GFX1030], "open fork init query"),
    situation("RTLD_LOCAL", &[GFX1030], "local init query"),
    situation("RTLD_DEEPBIND", &[GFX1030], "deepbind init query"),
    situation("a set-user-ID program", &[GFX1030], "secure open init query"),
    situation("two GPUs, queried", &[GFX1030, GFX90A], "open init query"),
    situation("hipModuleLoadData", &[GFX1030], "open module"),
];

/// A form of the library.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) library: PathBuf,
    pub(super) code: Code,
}

/// Where a runtime gets the code from.
#[derive(Debug)]
pub(super) enum Code {
    Unsplit,
    Split,
    Joined,
    /// Joined for the first GPU alone.
    ForOne,
    /// `kpack trim` left code for the first GPU alone.
    Trimmed,
    /// By the shim, for `LD_PRELOAD`.
    Preloaded(PathBuf),
    /// By the shim, which is linked into the library.
    Linked,
}

impl Situation {
    fn is_privileged(&self) -> bool {
        self.steps.starts_with("secure")
    }

    /// Whether `LD_PRELOAD` has no effect on the library.
    fn no_preload(&self) -> bool {
        self.is_privileged() || self.steps.starts_with("deepbind")
    }

    /// Whether the code is passed to the runtime by the program itself, so that neither loader nor shim is asked.
    fn is_passed_on(&self) -> bool {
        self.steps.ends_with("module")
    }

    fn has_different_gpus(&self) -> bool {
        self.gpus.iter().any(|gpu| *gpu != self.gpus[0])
    }

    fn run(&self, rig: &Rig, variant: &Variant) -> Result<Outcome> {
        self.run_on(self.gpus, rig, variant)
    }

    /// Runs it with other GPUs.
    fn run_on(&self, gpus: &[&str], rig: &Rig, variant: &Variant) -> Result<Outcome> {
        let mut steps = Vec::new();
        for step in self.steps.split(' ') {
            match step {
                "query" | "launch" => steps.extend(KERNELS.iter().flat_map(|k| [step, k])),
                step => steps.push(step),
            }
        }
        let mut environment = Vec::new();
        let preload = match &variant.code {
            Code::Preloaded(shim) => Some(shim.as_path()),
            _ => None,
        };
        if matches!(variant.code, Code::Preloaded(_) | Code::Linked) {
            environment.push(("KPACK_HIP", "force"));
            // The shim sees what the kernel's driver lists: here, the GPUs of the stub.
            match (self.has_different_gpus(), self.gpus[0]) {
                (false, GFX1030) => environment.push(("HSA_OVERRIDE_GFX_VERSION", "10.3.0")),
                (false, GFX906) => environment.push(("HSA_OVERRIDE_GFX_VERSION", "9.0.6")),
                _ => {}
            }
        }
        let execution = Execution {
            gpus,
            steps: &steps,
            preload,
            environment: &environment,
            deferred: !self.steps.ends_with("init"),
            privileged: self.is_privileged(),
            ..Execution::default()
        };
        rig.run(&variant.library, &execution)
    }

    /// Whether the runtime gets the code of a form of the library, if that is known here.
    fn readable(&self, rig: &Rig, variant: &Variant) -> Option<bool> {
        match variant.code {
            Code::ForOne if self.gpus.contains(&GFX90A) => None,
            Code::Split | Code::Preloaded(_) | Code::Linked if self.is_passed_on() => Some(false),
            Code::Preloaded(_) if self.no_preload() => Some(rig.reads_markers),
            // The runtimes that read markers ask for code once, for all GPUs: the document says what comes of it.
            Code::Split if rig.reads_markers && self.has_different_gpus() => None,
            Code::Split => Some(rig.reads_markers),
            _ => Some(true),
        }
    }
}

/// What a runtime does with a form of the library in each situation, which is what it does with the unsplit one, and
/// what `docs/dev/runtimes.md` says.
pub(super) fn check(rig: &Rig, name: &str) -> Result<()> {
    let variant = |name: &str| variants().iter().find(|variant| variant.name == name);
    let variant = variant(name).context("no form has that name")?;
    if let (Code::Preloaded(_) | Code::Linked, Some(why)) = (&variant.code, Rig::has_gpus()) {
        skip(why);
        return Ok(());
    }
    let not_privileged = rig.not_privileged();
    let situations = Vec::from_iter(
        COLUMNS
            .iter()
            .chain(&OTHERS)
            .filter(|situation| not_privileged.is_none() || !situation.is_privileged()),
    );
    let run = |variant: &Variant| -> Result<Vec<Outcome>> {
        let outcomes = situations.iter().map(|situation| {
            situation
                .run(rig, variant)
                .with_context(|| format!("{}, {}", variant.name, situation.name))
        });
        outcomes.collect()
    };
    let unsplit = match rig.unsplit.get() {
        Some(unsplit) => unsplit,
        None => {
            let outcomes = run(&variants()[0])?;
            rig.unsplit.get_or_init(|| outcomes)
        }
    };
    let is_unsplit = matches!(variant.code, Code::Unsplit);
    let outcomes = if is_unsplit { unsplit } else { &run(variant)? };
    let expected = match variant.code {
        Code::Trimmed => &as_if_never_there(rig, &situations, unsplit)?,
        _ => unsplit,
    };
    if let Code::Unsplit | Code::Split | Code::Trimmed = variant.code {
        let ends = Vec::from_iter(outcomes.iter().map(|outcome| outcome.end.to_string()));
        let ends = ends[..COLUMNS.len()].join(" | ");
        let line = format!("| {}, {} | {ends} |", rig.name, variant.name);
        let document = std::fs::read_to_string(root().join(DOCUMENT))?;
        ensure!(document.lines().any(|known| known == line), "{DOCUMENT} needs this row:\n{line}");
    }
    if let (true, Some(why)) = (is_unsplit, not_privileged) {
        skip(&format!("{}, a set-user-ID program: {why}", rig.name));
    }
    let mut count = 0;
    for ((situation, found), expected) in situations.iter().zip(outcomes).zip(expected) {
        count += found.count();
        match situation.readable(rig, variant) {
            Some(true) => ensure!(
                found == expected,
                "{}: {found:?}; with the unsplit library {expected:?}",
                situation.name
            ),
            Some(false) => ensure!(found.count() == 0, "{}: {found:?}", situation.name),
            None => {}
        }
    }
    checked(&format!("{}: {} situations, {count} code objects", rig.name, situations.len()));
    Ok(())
}

/// What a runtime does with the unsplit library if each GPU whose code `kpack trim` removes is one that the library
/// never had code for.
fn as_if_never_there(
    rig: &Rig,
    situations: &[&Situation],
    unsplit: &[Outcome],
) -> Result<Vec<Outcome>> {
    let outcomes = situations.iter().zip(unsplit).map(|(situation, known)| {
        if !situation.gpus.contains(&GFX90A) {
            return Ok(known.clone());
        }
        let others = situation.gpus.iter().map(|gpu| if *gpu == GFX90A { GFX906 } else { *gpu });
        situation.run_on(&Vec::from_iter(others), rig, &variants()[0]).context(situation.name)
    });
    outcomes.collect()
}
