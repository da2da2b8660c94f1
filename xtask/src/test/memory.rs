//! A directory in memory for what tests write: otherwise they wait for a disk half of the time, since kpack flushes its output.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_tools::process::try_run;

/// Where Linux keeps files in memory.
const PLACE: &str = "/dev/shm";
const NAME: &str = "kpack-tests-";

/// How much has to be free there, and in memory, in MiB. The tests of the workspace need less than one GiB.
const ENOUGH: u64 = 4096;

/// The directory. It is removed on drop.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    /// The directory itself, locked as long as this run lives: containers share the place, but not the numbers of processes.
    /// The lock is shared, because `kpack trim` takes a shared one on each directory above what it changes.
    _lock: File,
}

impl Memory {
    /// Makes it, where there is enough memory, and programs in it may be run: containers often mount it without.
    pub(super) fn new() -> Option<Self> {
        remove_leftovers();
        if free()? < ENOUGH || available()? < ENOUGH {
            return None;
        }
        let template = Path::new(PLACE).join(format!("{NAME}XXXXXXXXXX"));
        let made = try_run(Command::new("mktemp").arg("--directory").arg(template)).ok()?;
        let path = PathBuf::from(made.trim_end());
        let lock = File::open(&path).ok()?;
        // If another run took it for a leftover before, it is gone afterwards, and what follows fails.
        lock.lock_shared().ok()?;
        let memory = Self { path, _lock: lock };
        // As `/tmp`: some tests run programs as another user.
        fs::set_permissions(&memory.path, Permissions::from_mode(0o1777)).ok()?;
        let program = memory.path.join("true");
        fs::copy("/bin/true", &program).ok()?;
        let runs = Command::new(&program).status().is_ok_and(|status| status.success());
        let _ = fs::remove_file(program);
        runs.then_some(memory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what runs left that were killed.
fn remove_leftovers() {
    for entry in fs::read_dir(PLACE).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.starts_with(NAME)) {
            continue;
        }
        // Held until it is removed.
        let Ok(lock) = File::open(entry.path()) else { continue };
        if lock.try_lock().is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What is free in the place.
fn free() -> Option<u64> {
    let shown = try_run(Command::new("df").args(["--output=avail", "-BM", PLACE])).ok()?;
    shown.lines().last()?.trim().trim_end_matches('M').parse().ok()
}

/// The memory that programs can get.
fn available() -> Option<u64> {
    let shown = fs::read_to_string("/proc/meminfo").ok()?;
    let line = shown.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes / 1024)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;

    use super::{Memory, PLACE};

    #[test]
    fn a_directory_in_memory_is_open_to_all_and_does_not_stay() {
        let Some(memory) = Memory::new() else {
            return;
        };
        let path = memory.path().to_owned();
        assert!(path.starts_with(PLACE));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o1777);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        // As `kpack trim` does in a test.
        File::open(&path).unwrap().try_lock_shared().unwrap();
        // Another run, and what a run left that was killed.
        let leftover = path.with_extension("leftover");
        fs::create_dir(&leftover).unwrap();
        let other = Memory::new();
        assert!(path.exists() && !leftover.exists());
        drop(other);
        assert!(path.exists());
        drop(memory);
        assert!(!path.exists());
    }
}
