//! An install prefix, and checks of it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kpack_tests::sha256;
use walkdir::WalkDir;

use crate::cmake::package::Package;
use crate::cmake::project::{Run, output_of};

pub(crate) struct Prefix<'a> {
    pub(crate) package: &'a Package,
    pub(crate) path: PathBuf,
}

impl Prefix<'_> {
    /// Every file in it, sorted, symlinks with `-> target`.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut files: Vec<String> = WalkDir::new(&self.path)
            .into_iter()
            .map(Result::unwrap)
            .filter(|entry| !entry.file_type().is_dir())
            .map(|entry| {
                let name = entry.path().strip_prefix(&self.path).unwrap();
                match fs::read_link(entry.path()) {
                    Ok(target) => format!("{} -> {}", name.display(), target.display()),
                    Err(_) => name.display().to_string(),
                }
            })
            .collect();
        files.sort();
        files
    }

    /// Every file with its checksum.
    pub(crate) fn contents(&self) -> Vec<(String, String)> {
        let digest = |name: &String| match fs::read(self.path.join(name)) {
            Ok(bytes) => sha256(&bytes),
            Err(_) => "symlink".to_owned(),
        };
        self.files().into_iter().map(|name| (name.clone(), digest(&name))).collect()
    }

    /// These files and no others are there.
    pub(crate) fn has_exactly(&self, expected: &[&str]) {
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(self.files(), expected);
    }

    /// The binary has no device code, and its marker leads to all that it had.
    pub(crate) fn is_split(&self, binary: &str) {
        self.is_split_without_kpacks(binary);
        self.verify(&self.path.join(binary));
    }

    /// The binary has no device code; its kpacks are elsewhere.
    pub(crate) fn is_split_without_kpacks(&self, binary: &str) {
        let sections = self.readelf("-SW", binary);
        assert!(sections.contains(".rocm_kpack_ref"), "{binary} is not split\n{sections}");
    }

    /// The binary still has its device code.
    pub(crate) fn is_fat(&self, binary: &str) {
        let sections = self.readelf("-SW", binary);
        assert!(!sections.contains(".rocm_kpack_ref"), "{binary} is split\n{sections}");
        assert!(sections.contains(".hip_fatbin "), "{binary} has no device code\n{sections}");
    }

    /// All manifests, archives and binaries of the prefix agree.
    pub(crate) fn verifies(&self) {
        self.verify(&self.path);
    }

    fn verify(&self, path: &Path) {
        let mut verify = Command::new(&self.package.helper);
        Run::of(verify.args(["verify", "--arch", "all"]).arg(path)).succeeds();
    }

    pub(crate) fn readelf(&self, option: &str, binary: &str) -> String {
        output_of("readelf", &[OsStr::new(option), self.path.join(binary).as_os_str()])
    }

    /// The program runs, and its only wrapper is split.
    pub(crate) fn runs_split(&self, program: &str) {
        let output = output_of(self.path.join(program), &[]);
        assert_eq!(output, "HIPK 0\nhost 27\n");
    }
}
