//! Reads a linked file for splitting.

use kpack_core::files::describe_package;
use std::collections::BTreeSet;
use std::path::Path;

use kpack_format::TargetId;
use kpack_format::marker::{MAX_SIZE, Marker};
use kpack_format::names::FileNames;

use super::{PackedCode, Spirv, code_ids, padding};
use crate::elf;
use crate::host::{Image, SplitPlan};
use crate::input::{self, FileKind, LinkedBinary, is_spirv_archived};
use crate::{Error, ids};
use kpack_core::words::list;
use kpack_core::{Finding, Id, Severity};

/// What a linked file means to the splitter.
pub enum BinaryKind {
    /// It contains device code.
    Fat(Box<FatFile>, LinkedBinary),
    /// It is already split.
    Split(LinkedBinary),
    /// All of its bundles have SPIR-V, so that it stays unchanged.
    Kept(Box<FatFile>),
    /// It stays unchanged; the text says why.
    LeftAlone(Id, String),
}

/// A fat binary with its headers and tables. The file is closed, because there may be thousands of
/// binaries.
pub struct FatFile {
    /// Its device code.
    pub code: PackedCode,
    headers: Box<Image<()>>,
    fat: elf::FatBinary,
    /// The marker of a joined binary.
    kept: Option<Box<Marker>>,
}

/// Reads the file at `path` and tells whether to split it.
///
/// # Errors
/// [`Error::Refused`] if it is not a binary, or damaged.
pub fn read(path: &Path, spirv: Option<Spirv>) -> Result<BinaryKind, Error> {
    let file = input::open(path)?;
    let kind = input::identify(path, &file)?;
    let what = match kind {
        Some(FileKind::Linked) => return of(LinkedBinary::read(path, file)?, spirv),
        Some(FileKind::Object) => "a relocatable object",
        Some(FileKind::StaticLibrary) => "a static library",
        Some(FileKind::Archive) => {
            "an archive with device code that was split; `kpack list` lists it"
        }
        Some(FileKind::Manifest) => "a manifest, which lists archives",
        Some(FileKind::Bundle) => "an offload bundle, device code alone",
        Some(FileKind::CodeObject) => "a code object, device code alone",
        Some(FileKind::OffloadBinary) => "images for an offloading runtime",
        None => "not an ELF or PE file",
    };
    if let Some(FileKind::Object | FileKind::StaticLibrary) = kind {
        let advice = "split it before the link, with `kpack object`";
        return Ok(BinaryKind::LeftAlone(ids::UNCHANGED, format!("{what}; {advice}")));
    }
    let text = match describe_package(path, &input::open(path)?)? {
        Some(package) => package,
        None => format!("{what}; expected an executable or library (ELF or PE)"),
    };
    Err(Error::rejected(ids::UNKNOWN_FILE, path, text))
}

/// Tells whether to split a linked file; without `spirv`, whether there is code to read in it.
///
/// # Errors
/// [`Error::Refused`] also for a split binary that keeps SPIR-V, if `spirv` asks for something else.
pub fn of(linked: LinkedBinary, spirv: Option<Spirv>) -> Result<BinaryKind, Error> {
    let fat = match (&linked.code, &linked.kept) {
        (elf::DeviceCode::Fat(fat), _) => fat,
        (_, Some(fat)) if spirv != Some(Spirv::Keep) && linked.is_in_build_tree()? => fat,
        (elf::DeviceCode::Split(_), None) => return Ok(BinaryKind::Split(linked)),
        (elf::DeviceCode::Split(_), Some(_)) => {
            refuse_other_spirv(&linked, spirv)?;
            return Ok(BinaryKind::Split(linked));
        }
        (elf::DeviceCode::None(reason), _) => {
            return Ok(match (linked.bundles_in_data()?, linked.offload_note()?) {
                (Some(text), _) => BinaryKind::LeftAlone(ids::BUNDLES_IN_DATA, text),
                (None, Some(text)) => BinaryKind::LeftAlone(ids::OFFLOAD_IMAGES, text),
                (None, None) => BinaryKind::LeftAlone(ids::UNCHANGED, reason.to_string()),
            });
        }
    };
    let file = Box::new(FatFile::read(&linked, fat, spirv)?);
    if file.code.wrapper_count() > 0 {
        return Ok(BinaryKind::Fat(file, linked));
    }
    Ok(BinaryKind::Kept(file))
}

/// What an earlier run moved to archives may be for other targets than what is left.
fn refuse_other_spirv(linked: &LinkedBinary, spirv: Option<Spirv>) -> Result<(), Error> {
    if spirv.is_none_or(|spirv| spirv == Spirv::Keep) {
        return Ok(());
    }
    let text = "already split, and keeps its SPIR-V code; to drop or archive that, install the unsplit binary";
    Err(Error::rejected(ids::SPLIT_ALREADY, &linked.path, text))
}

/// How the names of the archives of these binaries write targets: as on the binaries' system, where ROCm's loader must
/// find them. If some are for Linux, all are as there. This system may not be able to write such names.
pub fn file_names(are_for_windows: impl IntoIterator<Item = bool>) -> FileNames {
    let all = are_for_windows.into_iter().reduce(|all, is| all && is);
    match all {
        Some(true) => FileNames::Windows,
        Some(false) => FileNames::Linux,
        None => FileNames::HERE,
    }
}

/// The warning about archives for `targets` in `directory`, if loaders on the binaries' system look for other `names`
/// than this one can write.
pub fn warn_of_names(
    names: FileNames,
    directory: &Path,
    targets: impl IntoIterator<Item = impl ToString>,
) -> Option<Finding> {
    let written = names.on_disk();
    let targets = BTreeSet::from_iter(
        targets
            .into_iter()
            .map(|target| target.to_string())
            .filter(|target| written.of(target) != names.of(target)),
    );
    if targets.is_empty() {
        return None;
    }
    let text = format!(
        "the archives for {} have `-` for each colon in their names, and ROCm's loader finds none of them on Linux",
        list(targets)
    );
    let help = "split ELF binaries on Linux or in WSL, or compile for the plain processor";
    let id = ids::NAMES_WITHOUT_COLONS;
    Some(Finding::new(Severity::Warning, id, directory, text).with_help(help))
}

impl FatFile {
    fn read(
        linked: &LinkedBinary,
        fat: &elf::FatBinary,
        spirv: Option<Spirv>,
    ) -> Result<Self, Error> {
        let (path, file) = (&linked.path, linked.image.source());
        let kept = linked.kept_marker()?;
        let archived = is_spirv_archived(kept.as_ref());
        if kept.is_some() && !linked.with_spirv(fat, kept.as_ref())?.is_empty() {
            refuse_other_spirv(linked, spirv)?;
        }
        // A joined binary is split as it was before.
        let spirv = spirv.filter(|_| !archived).unwrap_or(Spirv::Archive);
        let code = PackedCode::read(path, file, &fat.wrappers, spirv)?;
        padding::check(path, file, fat.section(), code.ranges())?;
        Ok(Self {
            code,
            headers: Box::new(linked.image.over(())),
            fat: fat.clone(),
            kept: kept.map(Box::new),
        })
    }

    /// Whether it is a DLL or a program for Windows.
    pub fn is_for_windows(&self) -> bool {
        self.headers.is_for_windows()
    }

    /// Whether splitting it replaces what archives have of it for `target`. A joined binary has code for
    /// some targets only; what archives have for others stays.
    pub fn replaces(&self, target: &TargetId) -> bool {
        self.kept.is_none() || self.code.targets().contains(target)
    }

    /// The targets that it has code for that splitting does not move: in bundles with SPIR-V; and, in a joined
    /// binary, in archives alone.
    pub fn elsewhere(&self) -> BTreeSet<TargetId> {
        let own = self.code.targets();
        let stays = self.code.kept().iter().flat_map(|kept| kept.targets.iter().cloned());
        let archived = self.kept.iter().flat_map(|kept| kept.code_ids.keys());
        archived
            .filter_map(|target| target.parse().ok())
            .chain(stays)
            .filter(|target| !own.contains(target))
            .collect()
    }

    /// `marker` with a record of the bundles that wrappers share, and with the IDs of a joined binary's code
    /// for targets that are not in it.
    ///
    /// # Errors
    /// [`Error::Refused`] if that code is in archives that `marker` does not refer to.
    pub fn complete(&self, mut marker: Marker) -> Result<Marker, Error> {
        match &self.kept {
            // A join may not have followed the record.
            Some(kept) => marker.shared_bundles.clone_from(&kept.shared_bundles),
            None => marker.set_shared_bundles(self.code.wrappers_by_bundle()),
        }
        let kept = self.kept.iter();
        for kept in kept.filter(|kept| kept.kernel_name == marker.kernel_name) {
            let elsewhere = self.elsewhere().into_iter().map(|target| target.to_string());
            let ids = Vec::from_iter(elsewhere.filter_map(|target| {
                let id = kept.code_ids.get(&target).copied()?;
                Some((target, id))
            }));
            if !ids.is_empty() && !kept.refers_to(&marker) {
                let text = format!(
                    "joined, and its code for {} is only in `{}` (expected `{}`); split it for the module, component and directory that it was split for, or split the original",
                    list(ids.iter().map(|(target, _)| target)),
                    kept.kpack_search_paths.join("`, `"),
                    marker.kpack_search_paths.join("`, `")
                );
                return Err(Error::rejected(ids::SPLIT_ALREADY, &self.code.path, text));
            }
            marker.code_ids.extend(ids);
        }
        Ok(marker)
    }

    /// Number of wrappers that belong to objects split before the link.
    pub fn split_before(&self) -> usize {
        self.fat.split_before.len()
    }

    /// Plans its host binary, with `marker` in place of the device code.
    ///
    /// # Errors
    /// Also if some wrappers were split before the link: only `kpack split` relocates their
    /// device code.
    pub fn plan(&self, marker: &Marker) -> Result<SplitPlan, Error> {
        match self.split_before() {
            0 => self.plan_with(marker, Vec::new()),
            count => Err(Error::rejected(
                ids::SPLIT_BEFORE_LINK,
                &self.code.path,
                format!(
                    "{count} of its {} wrappers were split before the link, the others were \
                     not; `kpack split` merges their device code",
                    count + self.fat.wrappers.len()
                ),
            )),
        }
    }

    /// Plans its host binary, with `marker` in place of the device code, room for a longer marker,
    /// and further `edits`, given by file offset.
    pub fn plan_with(
        &self,
        marker: &Marker,
        edits: Vec<(u64, Vec<u8>)>,
    ) -> Result<SplitPlan, Error> {
        let image = self.headers.over(self.code.open()?);
        let least = marker.to_bytes();
        let bytes = match &self.fat.joined {
            // The marker's section keeps its size. One without code IDs had no room for any.
            Some(kept) => {
                let available = usize::try_from(kept.available).unwrap_or(usize::MAX);
                let mut former = self.kept.iter();
                let fits =
                    least.len() <= available || former.any(|former| former.code_ids.is_empty());
                let within = marker.to_bytes_within(available.min(MAX_SIZE));
                within.filter(|_| fits).unwrap_or(least)
            }
            // A few kernels for one target may take less space than a marker with room.
            None => {
                let available = usize::try_from(self.fat.size()).unwrap_or(usize::MAX);
                code_ids::with_room(marker, available)
            }
        };
        let mut plan = SplitPlan::new(&image, &self.fat, &bytes, self.code.kept())
            .map_err(|error| input::binary_error(&self.code.path, error))?;
        plan.add(edits);
        Ok(plan)
    }
}
