//! ROCm's device libraries: bitcode that the compiler links device code with, and does not list among the files that it
//! reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

/// Precedes the path of a library in a command of clang.
const FLAG: &str = "-mlink-builtin-bitcode";

/// The directories of the libraries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceLibraries {
    pub(super) directories: BTreeSet<PathBuf>,
}

impl DeviceLibraries {
    /// Those that the compiler `command` links device code with.
    pub(super) fn of(command: &mut Command) -> Self {
        let output = command.args(["-###", "-c", "/dev/null"]).output();
        let printed = output.map(|output| output.stderr).unwrap_or_default();
        Self::named(&String::from_utf8_lossy(&printed))
    }

    /// Those in the commands that clang prints for `-###`.
    fn named(commands: &str) -> Self {
        let mut directories = BTreeSet::new();
        for words in commands.lines().filter_map(shlex::split) {
            let flags = words.iter().zip(words.iter().skip(1)).filter(|(flag, _)| *flag == FLAG);
            directories
                .extend(flags.filter_map(|(_, path)| Some(Path::new(path).parent()?.to_owned())));
        }
        Self { directories }
    }

    /// The paths, sizes and times of the libraries. Their content is a few megabytes, which takes long to read in a build
    /// script that is compiled without optimization.
    pub(super) fn identity(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        for directory in &self.directories {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            lines.extend(entries.filter_map(|entry| {
                let path = entry.path();
                let metadata = fs::metadata(&path).ok()?;
                let time = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
                let is_library = path.extension().is_some_and(|extension| extension == "bc");
                is_library.then(|| format!("{} {} {time:?}\n", path.display(), metadata.len()))
            }));
        }
        lines.sort();
        lines.concat().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_in_the_commands_of_clang() {
        let commands = "clang version 19.1.7\nInstalledDir: /usr/bin\n \"/usr/bin/clang\" \"-cc1\" \
             \"-mlink-builtin-bitcode\" \"/opt/a b/ocml.bc\" \"-mlink-builtin-bitcode\" \"/opt/a b/ockl.bc\" \"-O3\"\n \
             \"/usr/bin/clang\" \"-cc1\" \"-mlink-builtin-bitcode\" \"/usr/$1/ocml.bc\"\n it's not a command\n";
        let found = DeviceLibraries::named(&commands.replace('$', "\\$"));
        assert_eq!(Vec::from_iter(found.directories), ["/opt/a b", "/usr/$1"].map(PathBuf::from));
        assert_eq!(DeviceLibraries::named(""), DeviceLibraries::default());
    }
}
