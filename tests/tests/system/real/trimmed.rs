//! What HIP runtimes load from libraries that `kpack trim` made smaller: for the chosen GPUs what they load from the
//! original, and for any other GPU what they load from a library that never had its code.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{lazy_library, library_file};
use kpack_tests::require::{self, checked};

use super::gpus::isa;
use super::rig::{Execution, Rig};
use super::{installed_rocrand, variants};
use crate::support::{copy, prefix, run};

/// GPUs with code in Debian's rocRAND: two that are chosen, and one whose code goes.
const CHOSEN: [&str; 2] = ["gfx1030", "gfx90a:xnack+"];
const REMOVED: &str = "gfx908:xnack-";
/// A GPU that all runtimes know and that rocRAND never had code for. (Debian's take code for gfx1030 for a gfx1036.)
const ABSENT: &str = "gfx1010:xnack-";

/// What packagers run on libraries, before or after kpack.
const TOOLS: [&[&str]; 3] = [
    &["strip", "--strip-unneeded", "--remove-section=.comment"],
    &["llvm-strip-19"],
    &[
        "patchelf",
        "--set-rpath",
        "$ORIGIN/../lib:/opt/a/directory/that/needs/a/longer/string/table",
    ],
];

/// rocRAND as Debian installs it: trimmed for one GPU and for two, and treated by other tools before and after.
pub(super) fn check(rig: &Rig) -> Result<()> {
    if !require::tools(&["strip", "llvm-strip-19", "patchelf"]) {
        return Ok(());
    }
    let (original, file) = installed_rocrand()?;
    let work = rig.work("trimmed");
    let name = Path::new(&file).file_name().context("a library has a name")?;
    let form = |form: &str| -> Result<PathBuf> {
        let directory = work.join(form);
        fs::create_dir_all(&directory)?;
        fs::copy(&original, directory.join(name))?;
        Ok(directory.join(name))
    };
    let mut count = 0;
    let two = form("two")?;
    trim(&two, &CHOSEN)?;
    count += same(rig, &original, &two, &CHOSEN, Some([REMOVED, ABSENT]))?;
    for chosen in CHOSEN {
        let one = form("one")?;
        trim(&one, &[chosen])?;
        count += same(rig, &original, &one, &[chosen], Some([REMOVED, ABSENT]))?;
        // A file that was trimmed for more GPUs gives the same file.
        trim(&two, &[chosen])?;
        ensure!(fs::read(&two)? == fs::read(&one)?, "trimmed in two steps, the file differs");
        fs::copy(&original, &two)?;
        trim(&two, &CHOSEN)?;
    }
    for tool in TOOLS {
        let [before, after] = ["before", "after"].map(form);
        let (before, after) = (before?, after?);
        run!("env {tool...} {before}")?;
        trim(&before, &CHOSEN)?;
        trim(&after, &CHOSEN)?;
        run!("env {tool...} {after}")?;
        for (file, when) in [(&before, "before"), (&after, "after")] {
            let held = same(rig, &original, file, &CHOSEN, Some([REMOVED, ABSENT]));
            count += held.with_context(|| format!("{} {when} kpack trim", tool[0]))?;
        }
    }
    checked(&format!("{}: {count} code objects, the same as from the original", rig.name));
    Ok(fs::remove_dir_all(work)?)
}

/// Removes what is not for the chosen GPUs. The file becomes smaller.
pub(crate) fn trim(file: &Path, chosen: &[&str]) -> Result<()> {
    let (kpack, before) = (prefix().join("bin/kpack"), fs::metadata(file)?.len());
    let options = chosen.iter().flat_map(|target| ["--arch", target]);
    run!("{kpack} trim --quiet {options...} {file}")?;
    let after = fs::metadata(file)?.len();
    ensure!(after < before, "{}: {before} bytes before, {after} after", file.display());
    Ok(())
}

/// That a runtime loads the same from a trimmed file as from the original for each chosen GPU, for two alike and for two
/// that differ; and for the first of `gone`, what it loads from the original for the second, which never had code.
/// Returns how many code objects that were.
///
/// # Errors
/// The first difference.
pub(crate) fn same(
    rig: &Rig,
    original: &Path,
    trimmed: &Path,
    chosen: &[&str],
    gone: Option<[&str; 2]>,
) -> Result<usize> {
    let chosen = Vec::from_iter(chosen.iter().map(|target| isa(target)));
    let chosen = Vec::from_iter(chosen.iter().map(String::as_str));
    let mut sets = Vec::from_iter(chosen.iter().flat_map(|gpu| [vec![*gpu], vec![*gpu; 2]]));
    if chosen.len() > 1 {
        sets.push(chosen.clone());
    }
    let gone = gone.map(|gone| gone.map(isa));
    let gone = gone.as_ref().map(|[removed, absent]| (removed.as_str(), absent.as_str()));
    if let Some((removed, _)) = gone {
        sets.extend([vec![removed], vec![chosen[0], removed], vec![removed, chosen[0]]]);
    }
    let mut count = 0;
    for gpus in &sets {
        let known = gpus.iter().map(|gpu| match gone {
            Some((removed, absent)) if *gpu == removed => absent,
            _ => *gpu,
        });
        let expected = rig.all_for(original, &Vec::from_iter(known))?;
        let found = rig.all_for(trimmed, gpus)?;
        ensure!(
            found == expected,
            "{} loads {found:?} from {} for {gpus:?}, and {expected:?} from the original",
            rig.name,
            trimmed.display()
        );
        count += found.count();
    }
    ensure!(count > 0, "{} loads nothing from {}", rig.name, trimmed.display());
    Ok(count)
}

/// A tree as rocBLAS installs it: its files for the chosen GPU are there afterwards, and load as before.
pub(super) fn check_database(rig: &Rig) -> Result<()> {
    let library = &variants().first().context("there are forms of the library")?.library;
    let work = rig.work("database");
    let (kpack, code) = (prefix().join("bin/kpack"), work.join("code"));
    run!("{kpack} extract --quiet {library} --output-dir {code}")?;
    let [original, trimmed] = ["original", "trimmed"].map(|name| work.join(name));
    let database = "opt/rocm/lib/rocblas/library";
    fs::create_dir_all(original.join(database))?;
    let mut names = Vec::new();
    for (target, _) in super::TARGETS {
        // rocBLAS's files name processors with their features, by hyphens.
        let name = target.replace('+', "-on").replace(':', "-");
        let processor = target.split(':').next().unwrap_or(target);
        let mut objects = Vec::new();
        for number in 0..2 {
            let object = format!("TensileLibrary_Type_SS_Contraction_l_Ailk_{number}_{name}");
            let from = format!("librandom.so.1.2.3-{number}-{target}.hsaco");
            let to = original.join(database).join(format!("{object}.co"));
            fs::copy(code.join(&from), to).context(from)?;
            objects.push(object);
        }
        let objects = Vec::from_iter(objects.iter().map(String::as_str));
        let write = |name: String, bytes| fs::write(original.join(database).join(name), bytes);
        write(format!("TensileLibrary_{name}.dat"), library_file(processor, &objects)?)?;
        write(format!("TensileLibrary_lazy_{name}.dat"), lazy_library(processor, &objects)?)?;
        names.push((target, objects.iter().map(|name| format!("{name}.co")).collect::<Vec<_>>()));
    }
    copy(&original, &trimmed);
    let (chosen, kept) = &names[0];
    let (_, gone) = &names[1];
    run!("{kpack} trim --quiet --arch {chosen} {trimmed}")?;
    let mut count = 0;
    for name in kept {
        let load = |tree: &Path| {
            let file = tree.join(database).join(name).display().to_string();
            let execution = Execution {
                gpus: &[chosen],
                steps: &["open", "file", &file],
                deferred: true,
                ..Execution::default()
            };
            rig.run(library, &execution).context(file.clone())
        };
        let (expected, found) = (load(&original)?, load(&trimmed)?);
        ensure!(found == expected, "{}: {found:?}, and before {expected:?}", rig.name);
        count += found.count();
    }
    ensure!(count == kept.len(), "{} loads {count} of {kept:?}", rig.name);
    for name in gone {
        ensure!(!trimmed.join(database).join(name).exists(), "{name} stays");
    }
    checked(&format!("{}: {count} files of a database load as before", rig.name));
    Ok(fs::remove_dir_all(work)?)
}
