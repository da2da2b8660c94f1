//! Each form of a library in each situation of a process: the real HIP runtime must load from it what
//! it loads from the unsplit library.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};

use super::super::table::Table;
use super::rig::{End, Execution, Outcome, Rig};

/// GPUs with code in the library of `tests/real`.
pub(super) const ALL_GPUS: [&str; 2] = [GFX1030, GFX90A];
const GFX1030: &str = "gfx1030";
const GFX90A: &str = "gfx90a:sramecc+:xnack+";
/// A GPU without code in it.
const GFX906: &str = "gfx906:sramecc+:xnack-";

/// The kernels of that library.
const KERNELS: [&str; 3] = [
    "_Z13fill_mrg32k3aPfjy",
    "_Z18fill_philox4x32_10Pfjy",
    "_Z11fill_xorwowPfjy",
];

struct Situation {
    name: &'static str,
    gpus: &'static [&'static str],
    /// The steps of `tests/real/load.c`. `kernels` stands for the use of each kernel; without it, the
    /// runtime loads all code as it starts.
    steps: &'static str,
    /// `LD_PRELOAD` has no effect on the library.
    no_preload: bool,
    /// The program is set-user-ID.
    privileged: bool,
}

const fn situation(
    name: &'static str,
    gpus: &'static [&'static str],
    steps: &'static str,
) -> Situation {
    Situation {
        name,
        gpus,
        steps,
        no_preload: false,
        privileged: false,
    }
}

const SITUATIONS: [Situation; 11] = [
    situation("one GPU", &[GFX1030], "open init"),
    situation("one GPU, loaded on demand", &[GFX1030], "open init kernels"),
    situation(
        "two different GPUs",
        &[GFX1030, GFX90A],
        "open init kernels",
    ),
    situation("no code for the GPU", &[GFX906], "open init"),
    situation(
        "no code for one of two GPUs",
        &[GFX1030, GFX906],
        "open init kernels",
    ),
    situation(
        "opened again",
        &[GFX1030],
        "open init kernels close open kernels",
    ),
    situation(
        "opened again, then the first kernel",
        &[GFX1030],
        "open close open init kernels",
    ),
    situation("in a child of fork", &[GFX1030], "open fork init kernels"),
    situation("RTLD_LOCAL", &[GFX1030], "local init kernels"),
    Situation {
        no_preload: true,
        ..situation("RTLD_DEEPBIND", &[GFX1030], "deepbind init kernels")
    },
    Situation {
        no_preload: true,
        privileged: true,
        ..situation(
            "a set-user-ID program",
            &[GFX1030],
            "secure open init kernels",
        )
    },
];

/// A form of the library.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) library: Result<PathBuf>,
    /// The GPUs that it has code for.
    pub(super) gpus: &'static [&'static str],
    pub(super) code: Code,
}

/// How a runtime that does not read markers gets the code.
#[derive(Debug)]
pub(super) enum Code {
    InTheFile,
    /// By the shim, for `LD_PRELOAD`.
    Preloaded(PathBuf),
    /// By the shim, which is linked into the library.
    Linked,
    /// Not at all.
    Unreadable,
}

impl Situation {
    fn run(&self, rig: &Rig, preload: Option<&Path>, library: &Path) -> Result<Outcome> {
        let mut steps = Vec::new();
        for step in self.steps.split(' ') {
            match step {
                "kernels" => steps.extend(KERNELS),
                step => steps.push(step),
            }
        }
        let execution = Execution {
            gpus: self.gpus,
            steps: &steps,
            preload,
            deferred: steps.contains(&KERNELS[0]),
            privileged: self.privileged,
        };
        rig.run(library, &execution)
    }

    /// How the process must end with a library.
    fn end(&self, variant: &Variant) -> End {
        let is_readable = match variant.code {
            Code::InTheFile | Code::Linked => true,
            Code::Preloaded(_) => !self.no_preload,
            Code::Unreadable => false,
        };
        if !is_readable {
            End::NotInitialized
        } else if self.gpus.iter().any(|gpu| !variant.gpus.contains(gpu)) {
            End::NoCodeForGpu
        } else {
            End::Normal
        }
    }

    fn check(&self, rig: &Rig, variant: &Variant, library: &Path, fat: &Path) -> Result<String> {
        let preload = match &variant.code {
            Code::Preloaded(shim) => Some(shim.as_path()),
            _ => None,
        };
        let (found, end) = (self.run(rig, preload, library)?, self.end(variant));
        ensure!(found.end == end, "expected {end:?}, found {found:?}");
        if end != End::Normal {
            ensure!(found.count() == 0, "the real runtime loaded {found:?}");
            return Ok(format!("nothing is loaded: {end:?}"));
        }
        let expected = self.run(rig, None, fat)?;
        ensure!(
            expected.loaded.len() == self.gpus.len(),
            "from the unsplit library, the real runtime loaded only {expected:?}"
        );
        ensure!(
            found == expected,
            "the real runtime loaded {found:?}, and from the unsplit library {expected:?}"
        );
        Ok(format!("{} code objects", found.count()))
    }
}

/// Adds a row for each variant in each situation. `fat` is the unsplit library.
pub(super) fn check(
    rig: &Rig,
    fat: &Path,
    variants: impl IntoIterator<Item = Variant>,
    table: &mut Table,
) {
    let not_privileged = rig.not_privileged();
    for variant in variants {
        let library = match &variant.library {
            Ok(library) => library,
            Err(error) => {
                table.add(variant.name, Err(anyhow!("{error:#}")));
                continue;
            }
        };
        if let (Code::Preloaded(_) | Code::Linked, Some(why)) = (&variant.code, Rig::has_gpus()) {
            table.not_checked(variant.name, why);
            continue;
        }
        for situation in &SITUATIONS {
            let row = format!("{}: {}", variant.name, situation.name);
            match not_privileged.filter(|_| situation.privileged) {
                Some(why) => table.not_checked(row, why),
                None => table.add(row, situation.check(rig, &variant, library, fat)),
            }
        }
    }
}
