//! What ROCm's loader does with a binary whose code kpack's loader finds.

use std::path::{Path, PathBuf};

use kpack::internal::lookup::{self, Rule, Rules};
use kpack_core::ids;
use kpack_format::TargetId;
use kpack_split::input::{MarkerGroup, Resolver};

use super::code::CodeForGpu;

/// ROCm's loader, with the archives that a marker leads it to.
pub(crate) struct RocmLoader<'a> {
    pub(crate) path: &'a Path,
    /// Whether it is known to be of ROCm 7.14 or older.
    pub(crate) is_old: bool,
    pub(crate) resolver: Resolver,
}

/// Why it does not get a code object that kpack's gets.
enum Miss {
    /// It does not look where this rule leads.
    Elsewhere(Rule),
    /// It stops at an archive before.
    Stops,
    /// It takes that of another build from this archive.
    OtherBuild(PathBuf),
}

/// How archives come to lack no kernel.
const COMPLETE: &str = "split the original with `--complete-variants`, or ";

impl RocmLoader<'_> {
    /// What is wrong with the code for `gpu`, all of which kpack's loader finds; `None` if it gets the same.
    pub(crate) fn judge(
        &self,
        group: &MarkerGroup,
        gpu: &TargetId,
        kpack: &Resolver,
    ) -> Option<CodeForGpu> {
        if let Some(miss) = self.miss(Rules::ROCM, group, gpu, kpack) {
            return Some(self.fault(gpu, &miss));
        }
        self.miss(Rules::ROCM_7_14, group, gpu, kpack)?;
        Some(if self.is_old {
            self.fault(gpu, &Miss::Stops)
        } else {
            let path = self.path.display();
            let text = format!(
                "if ROCm's loader, {path}, is of ROCm 7.14 or older, it stops at an archive that lacks a kernel, and \
                 misses code for {gpu} that kpack's finds"
            );
            CodeForGpu::Doubtful(text, format!("{COMPLETE}{}", self.replace()))
        })
    }

    /// The first code object that a loader with these rules misses.
    fn miss(
        &self,
        rules: Rules,
        group: &MarkerGroup,
        gpu: &TargetId,
        kpack: &Resolver,
    ) -> Option<Miss> {
        let targets = kpack.kpacks.targets();
        // One without features can be any variant.
        let isas =
            targets.filter(|target| gpu.may_run(target)).filter_map(|target| target.parse().ok());
        isas.into_iter().find_map(|isa: TargetId| {
            let targets = lookup::targets(&[isa]);
            group.wrappers.iter().find_map(|wrapper| {
                let index = wrapper.co_index;
                let place = kpack.find_first(index, &targets)?;
                let Some(found) = self.resolver.find_first_by(rules, index, &targets) else {
                    return kpack.rule(place).map(Miss::Elsewhere);
                };
                let path = self.resolver.path(found);
                let mut others = kpack.other_builds();
                let is_other =
                    path != kpack.path(place) && others.any(|(_, archive)| archive == path);
                is_other.then(|| Miss::OtherBuild(path.to_owned()))
            })
        })
    }

    fn fault(&self, gpu: &TargetId, miss: &Miss) -> CodeForGpu {
        let (why, alternative) = match miss {
            Miss::OtherBuild(archive) => {
                let text = format!(
                    "ROCm's loader, {}, does not compare code IDs: it runs the code of another build for {gpu}, from {}",
                    self.path.display(),
                    archive.display()
                );
                let advice = format!(
                    "install host and device packages of one version, or {}",
                    self.replace()
                );
                return CodeForGpu::Fault(ids::STALE_ARCHIVE, text, advice);
            }
            Miss::Elsewhere(Rule::Link) => (
                "does not search the directory of a symbolic link",
                "install the files themselves instead of links (`uv pip install --link-mode copy`), or ",
            ),
            Miss::Elsewhere(Rule::Path | Rule::PathPrefix) => {
                ("does not know `@GFXARCH@` in variables", "")
            }
            Miss::Elsewhere(Rule::Marker) => (
                "does not find archives whose names have `-` for the colons of the target",
                "rename the archives, with colons, or ",
            ),
            Miss::Stops => ("stops at an archive that lacks a kernel", COMPLETE),
        };
        let loader = self.path.display();
        CodeForGpu::Fault(
            ids::ROCM_LOADER,
            format!("ROCm's loader, {loader}, {why}: it misses code for {gpu} that kpack's finds"),
            format!("{alternative}{}", self.replace()),
        )
    }

    /// The advice that always helps.
    fn replace(&self) -> String {
        format!("put kpack's loader (`librocm-kpack0`) in the place of {}", self.path.display())
    }
}
