//! Whether there is code for a GPU.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kpack_core::finding::Id;
use kpack_core::{Error, ids};
use kpack_format::TargetId;
use kpack_format::names::SearchPath;
use kpack_split::input::{MarkerGroup, Obstacle, Resolver};

use super::misplaced::MisplacedArchive;

/// Whether a binary has code for a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CodeForGpu {
    /// It has.
    Here,
    /// It has, but whether this version of ROCm's loader finds it is unknown: why, and what to do.
    Doubtful(String, String),
    /// An archive is missing, damaged, or made for another build: what is wrong, and what to do.
    Fault(Id, String, String),
    /// An archive is there, but not where the marker leads.
    Misplaced(MisplacedArchive),
    /// Nowhere; there is code for these targets only.
    Nowhere(BTreeSet<String>),
    /// There are archives for these targets only, and nothing says for which ones they were built. Where an archive
    /// would be, and what to do if there are none.
    Unlisted(BTreeSet<String>, Vec<PathBuf>, Option<String>),
}

impl CodeForGpu {
    /// Whether there is code, even if some version of ROCm's loader does not find it.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Self::Here | Self::Doubtful(..))
    }

    /// Whether it is neither in the binary nor in an archive that is there.
    pub(crate) fn is_missing(&self) -> bool {
        let is_fault = matches!(self, Self::Fault(id, ..) if *id == ids::MISSING_ARCHIVE);
        is_fault || matches!(self, Self::Nowhere(_) | Self::Unlisted(..))
    }

    /// `ROCM_KPACK_PATH` keeps the loader from the code for `gpu`.
    pub(crate) fn replaced(gpu: &TargetId) -> Self {
        Self::Fault(
            ids::SEARCH_PATHS_SET,
            format!("the paths in ROCM_KPACK_PATH contain no code for {gpu}"),
            format!(
                "unset ROCM_KPACK_PATH: it replaces the installed archives, which have code for {gpu}"
            ),
        )
    }

    /// The code for `gpu` is in an archive that does not count.
    pub(crate) fn outside(gpu: &TargetId, archive: &Path) -> Self {
        Self::Fault(
            ids::MISSING_ARCHIVE,
            format!("the archive for {gpu} is outside of the directory: `{}`", archive.display()),
            "add it to the directory".to_owned(),
        )
    }

    pub(crate) fn of(
        group: &MarkerGroup,
        resolver: &Resolver,
        gpu: &TargetId,
    ) -> Result<Self, Error> {
        let promised = resolver
            .kpacks
            .targets()
            .map(str::to_owned)
            .chain(group.marker.code_ids.keys().cloned());
        let known: BTreeSet<String> = promised.collect();
        let (fitting, others): (Vec<&String>, Vec<&String>) =
            known.iter().partition(|target| gpu.may_run(target));
        let has_code = |target: &&String| {
            let mut wrappers = group.wrappers.iter();
            wrappers.any(|wrapper| resolver.find(wrapper.co_index, target).is_some())
        };
        if fitting.iter().any(has_code) {
            return Ok(Self::Here);
        }
        let obstacle = |target: &&String| Some(((*target).clone(), resolver.obstacle(target)?));
        let Some((target, obstacle)) = fitting.iter().find_map(obstacle) else {
            let files = resolver.kpacks.files.iter();
            let ids = &group.marker.code_ids;
            let mut own = files.filter(|kpack| {
                fitting.contains(&&kpack.target) && ids.contains_key(&kpack.target)
            });
            return Ok(match own.next() {
                Some(kpack) => {
                    Self::damaged(ids::MISSING_KERNEL, &kpack.path, "no code object of this binary")
                }
                // Not every binary of a module has code for each target.
                None => {
                    let others = others.into_iter().cloned().collect();
                    match resolver.unlisted(gpu) {
                        places if places.is_empty() => Self::Nowhere(others),
                        places => {
                            Self::Unlisted(others, places, resolver.kpacks.advice_without_any())
                        }
                    }
                }
            });
        };
        Ok(match obstacle {
            Obstacle::Damaged(archive, reason) => {
                Self::damaged(ids::DAMAGED_ARCHIVE, archive, reason)
            }
            Obstacle::OtherBuild(archive) => Self::Fault(
                ids::STALE_ARCHIVE,
                format!("{} is made for another build of it", archive.display()),
                "install host and device packages of one version".to_owned(),
            ),
            Obstacle::Missing(place) => {
                let searched = resolver.kpacks.searched.iter();
                let place = match place {
                    Some(place) => place.display().to_string(),
                    None => joined(searched.map(|path| SearchPath::new(path).expand(&target))),
                };
                let advice = resolver.kpacks.advice_without_any();
                Self::Fault(
                    ids::MISSING_ARCHIVE,
                    format!("the archive for {target} is missing: `{place}`"),
                    advice.unwrap_or_else(|| "install the package that contains it".to_owned()),
                )
            }
        })
    }

    fn damaged(id: Id, archive: &Path, reason: &str) -> Self {
        let what = format!("{} is damaged: {reason}", archive.display());
        Self::Fault(id, what, "install that archive again".to_owned())
    }

    /// Adds the code of another part of the binary. Not every part is compiled for every GPU.
    pub(crate) fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Nowhere(known) | Self::Unlisted(known, ..), Self::Nowhere(more)) => {
                known.extend(more);
            }
            (Self::Unlisted(known, places, _), Self::Unlisted(more, others, _)) => {
                known.extend(more);
                places.extend(others);
            }
            (Self::Nowhere(known), Self::Unlisted(mut more, places, advice)) => {
                more.append(known);
                *self = Self::Unlisted(more, places, advice);
            }
            (Self::Fault(..) | Self::Misplaced(_), _)
            | (Self::Here | Self::Doubtful(..), Self::Nowhere(_) | Self::Unlisted(..))
            | (Self::Doubtful(..), Self::Here) => {}
            (known, other) => *known = other,
        }
    }
}

/// Paths, for a text that quotes them.
pub(crate) fn joined(paths: impl Iterator<Item = impl AsRef<Path>>) -> String {
    Vec::from_iter(paths.map(|path| path.as_ref().display().to_string())).join("`, `")
}
