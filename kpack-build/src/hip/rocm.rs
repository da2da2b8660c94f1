//! Finds ROCm: its headers, libraries and compiler.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use super::directives;
use super::environment::{DOCS_RS, Environment};
use kpack_core::Error;
use kpack_core::words::list;

/// The variables that name an installation, the strongest first.
const VARIABLES: [&str; 2] = ["ROCM_PATH", "HIP_PATH"];

/// The variables of Python environments, into which wheels install ROCm.
const OF_PYTHON: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];

/// The header that every program with kernels includes.
const HEADER: &str = "include/hip/hip_runtime.h";

/// The HIP runtime.
const RUNTIME: &str = "amdhip64";

/// Paths of the compilers in an installation.
const COMPILERS: [&str; 3] = ["lib/llvm/bin/amdclang++", "llvm/bin/clang++", "bin/hipcc"];

/// A ROCm installation with headers and libraries, for build scripts that link a library of ROCm.
///
/// `build.rs`:
///
/// ```no_run
/// kpack_build::Rocm::find().link("hipblas");
/// ```
///
/// It is the first complete one of these: `ROCM_PATH` and `HIP_PATH`, which exclude all others; the wheels in the
/// Python environment `VIRTUAL_ENV` or `CONDA_PREFIX`; `/opt/rocm`, then the newest `/opt/rocm-*`; the distribution's
/// in `/usr`. [`Hip`](super::Hip) looks in the same places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rocm {
    root: PathBuf,
    version: Option<[u32; 3]>,
    libraries: PathBuf,
    device_libraries: Option<PathBuf>,
    compiler: Option<PathBuf>,
    is_of_system: bool,
    is_for_windows: bool,
    /// Whether it does not exist, because docs.rs has none.
    is_stand_in: bool,
}

impl Rocm {
    /// Finds ROCm, and prints the lines that have Cargo run the build script again when a variable changes.
    ///
    /// docs.rs (`DOCS_RS`) has no ROCm, and does not link. If there is none, `find` then returns one in `/opt/rocm` that
    /// does not exist, and [`link`](Self::link) prints nothing. For a feature such as `stub`, do not call it.
    ///
    /// # Panics
    /// If [`try_find`](Self::try_find) fails, except on docs.rs.
    #[track_caller]
    pub fn find() -> Self {
        let environment = Environment::of_process();
        let found = Self::find_or_stand_in(&environment, Path::new("/"));
        directives::print(&directives::watch([""; 0], &environment));
        found.unwrap_or_else(|error| panic!("\n\n{}\n", error.in_one_line()))
    }

    /// As [`find`](Self::find), but an error even on docs.rs if there is no ROCm. A build script that goes on without it
    /// runs again when a variable changes, not when ROCm is installed: `touch build.rs` then. Cargo takes a missing path for
    /// a changed one, so a script that named the places would run at each build.
    ///
    /// # Errors
    /// [`Error::Compiler`] that lists all places that were looked at.
    pub fn try_find() -> Result<Self, Error> {
        let environment = Environment::of_process();
        let found = Self::find_in(&environment, Path::new("/"));
        directives::print(&directives::watch([""; 0], &environment));
        found
    }

    fn find_or_stand_in(environment: &Environment, system: &Path) -> Result<Self, Error> {
        let found = Self::find_in(environment, system);
        if found.is_ok() || environment.get(DOCS_RS).is_none() {
            return found;
        }
        let root = system.join("opt/rocm");
        Ok(Self {
            libraries: root.join("lib"),
            root,
            version: None,
            device_libraries: None,
            compiler: None,
            is_of_system: false,
            is_for_windows: environment.is_for_windows(),
            is_stand_in: true,
        })
    }

    fn find_in(environment: &Environment, system: &Path) -> Result<Self, Error> {
        let mut looked_at = not_set(environment);
        for location in locations(environment, system) {
            match Self::at(&location, environment) {
                Ok(found) => return Ok(found),
                Err(reason) => looked_at.push(format!("{}: {reason}", location.name())),
            }
        }
        Err(Error::Compiler(format!(
            "no ROCm with headers and libraries was found. Looked at, in this order:\n  {}\nInstall ROCm (Debian: \
             `apt-get install libamdhip64-dev`; Python: `pip install 'rocm[libraries,devel]'`, then `rocm-sdk init`), \
             or set ROCM_PATH to an installation",
            looked_at.join("\n  ")
        )))
    }

    /// The installation at a place; otherwise what it lacks.
    fn at(location: &Location, environment: &Environment) -> Result<Self, String> {
        let root = &location.root;
        if let Some(problem) = &location.problem {
            return Err(problem.clone());
        }
        if !root.is_dir() {
            return Err("no such directory".to_owned());
        }
        if !root.join(HEADER).is_file() {
            return Err(format!("no {HEADER}"));
        }
        let is_for_windows = environment.is_for_windows();
        let libraries = libraries(root, environment)
            .ok_or_else(|| format!("no {}", list(file_names(RUNTIME, is_for_windows))))?;
        Ok(Self {
            root: root.clone(),
            version: version(root),
            libraries,
            device_libraries: device_libraries(root).find(|path| path.join("ockl.bc").is_file()),
            compiler: compilers(root).into_iter().find(|path| path.is_file()),
            is_of_system: location.from == Origin::System,
            is_for_windows,
            is_stand_in: false,
        })
    }

    /// The directory of the installation.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its version, such as `Some([7, 0, 2])`; the last number is 0 if only the version of HIP is known.
    pub fn version(&self) -> Option<[u32; 3]> {
        self.version
    }

    /// The directory of the headers.
    pub fn headers(&self) -> PathBuf {
        self.root.join("include")
    }

    /// The directory of the libraries.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// The directory of the bitcode that device code is linked with.
    pub fn device_libraries(&self) -> Option<&Path> {
        self.device_libraries.as_deref()
    }

    /// The compiler. [`Hip`](super::Hip) may choose another one, which supports the targets of its build.
    pub fn compiler(&self) -> Option<&Path> {
        self.compiler.as_deref()
    }

    /// Prints the lines for Cargo that link the program with a library, such as `hipblas`.
    ///
    /// # Panics
    /// If the installation does not have the library.
    #[track_caller]
    pub fn link(&self, library: &str) -> &Self {
        match self.directives(library) {
            Ok(lines) => directives::print(&lines),
            Err(error) => panic!("\n\n{}\n", error.in_one_line()),
        }
        self
    }

    /// The lines that link a library.
    fn directives(&self, library: &str) -> Result<Vec<String>, Error> {
        if self.is_stand_in {
            return Ok(Vec::new());
        }
        let names = file_names(library, self.is_for_windows);
        if !has_library(&self.libraries, library, self.is_for_windows) {
            return Err(Error::Compiler(format!(
                "`{}` has no {}; install the development package of {library}, or set ROCM_PATH to a ROCm that has it",
                self.libraries.display(),
                list(names)
            )));
        }
        // Every linker looks in the directories of the system, where other versions of other libraries may be.
        let search = (!self.is_of_system)
            .then(|| format!("cargo::rustc-link-search=native={}", self.libraries.display()));
        let link = format!("cargo::rustc-link-lib=dylib={library}");
        Ok(search.into_iter().chain([link]).collect())
    }
}

/// Who says that ROCm is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A variable, which excludes all other places.
    Variable(&'static str),
    /// An active Python environment.
    Wheel,
    /// The usual directory, or one of those beside it.
    Usual,
    /// The distribution.
    System,
}

/// Where ROCm may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) root: PathBuf,
    pub(super) from: Origin,
    /// Why it cannot be used.
    pub(super) problem: Option<String>,
}

impl Location {
    fn new(root: PathBuf, from: Origin) -> Self {
        Self { root, from, problem: None }
    }

    /// For messages.
    pub(super) fn name(&self) -> String {
        match self.from {
            Origin::Variable(name) => format!("{name} ({})", self.root.display()),
            _ => self.root.display().to_string(),
        }
    }
}

/// The installation that a variable names.
pub(super) fn named(environment: &Environment) -> Option<PathBuf> {
    of_variables(environment).into_iter().next().map(|location| location.root)
}

fn of_variables(environment: &Environment) -> Vec<Location> {
    let place = |name: &'static str| {
        let root = PathBuf::from(environment.get(name)?);
        // Before ROCm 6, that was a directory in ROCm's.
        let parent = root.parent().filter(|parent| parent.join(HEADER).is_file());
        let is_inside = name == "HIP_PATH" && root.ends_with("hip");
        let root = parent.filter(|_| is_inside).map(Path::to_owned).unwrap_or(root);
        Some(Location::new(root, Origin::Variable(name)))
    };
    VARIABLES.into_iter().filter_map(place).collect()
}

/// Lines for the variables that are not set, and would have named a place.
pub(super) fn not_set(environment: &Environment) -> Vec<String> {
    let of_python = if named(environment).is_none() { &OF_PYTHON[..] } else { &[] };
    let names = VARIABLES.iter().chain(of_python);
    let missing = names.filter(|name| environment.get(name).is_none());
    missing.map(|name| format!("{name}: not set")).collect()
}

/// Where to look for ROCm, in order, in the file system whose root is `system`.
pub(super) fn locations(environment: &Environment, system: &Path) -> Vec<Location> {
    let named = of_variables(environment);
    if !named.is_empty() {
        return named;
    }
    let mut locations = Vec::new();
    for name in OF_PYTHON {
        if let Some(root) = environment.get(name).map(PathBuf::from) {
            let wheels = of_wheels(&root);
            // Some distributions of conda have ROCm in the environment itself.
            if root.join(HEADER).is_file() {
                locations.extend(wheels);
                locations.push(Location::new(root, Origin::Wheel));
            } else if wheels.is_empty() {
                let problem = Some("no wheels of ROCm in it (`_rocm_sdk_devel`)".to_owned());
                locations.push(Location { problem, ..Location::new(root, Origin::Wheel) });
            } else {
                locations.extend(wheels);
            }
        }
    }
    let opt = system.join("opt");
    locations.push(Location::new(opt.join("rocm"), Origin::Usual));
    let mut versions = Vec::from_iter(entries(&opt).into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.strip_prefix("rocm-")?.to_owned();
        Some((numbers(&name)?, path))
    }));
    versions.sort();
    locations
        .extend(versions.into_iter().rev().map(|(_, path)| Location::new(path, Origin::Usual)));
    locations.push(Location::new(system.join("usr"), Origin::System));
    locations
}

/// The installations in the packages of a Python environment.
fn of_wheels(environment: &Path) -> Vec<Location> {
    let mut packages = vec![environment.join("Lib/site-packages")];
    for library in ["lib", "lib64"] {
        let pythons = entries(&environment.join(library)).into_iter().filter(|path| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("python3")
        });
        packages.extend(pythons.map(|python| python.join("site-packages")));
    }
    let mut locations = Vec::new();
    for packages in packages {
        let (core, devel) = (packages.join("_rocm_sdk_core"), packages.join("_rocm_sdk_devel"));
        if devel.is_dir() {
            locations.push(Location::new(devel, Origin::Wheel));
        } else if core.is_dir() {
            let problem = "has no headers; run `rocm-sdk init`, which makes `_rocm_sdk_devel` beside it (it needs \
                           `pip install 'rocm[devel]'`)";
            locations.push(Location {
                problem: Some(problem.to_owned()),
                ..Location::new(core, Origin::Wheel)
            });
        }
    }
    locations
}

/// The paths in a directory, sorted; none if it cannot be read.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths = Vec::from_iter(entries.map(|entry| entry.path()));
    paths.sort();
    paths
}

/// Where a compiler may be in an installation, the most capable first.
pub(super) fn compilers(root: &Path) -> [PathBuf; 3] {
    COMPILERS.map(|name| root.join(name))
}

/// The directory of an installation that has the HIP runtime.
pub(super) fn libraries(root: &Path, environment: &Environment) -> Option<PathBuf> {
    let target = environment.target();
    let arch = target.split('-').next().unwrap_or(ARCH);
    let is_for_windows = environment.is_for_windows();
    let names = ["lib".to_owned(), "lib64".to_owned(), format!("lib/{arch}-linux-gnu")];
    let mut directories = names.into_iter().map(|name| root.join(name));
    directories.find(|directory| has_library(directory, RUNTIME, is_for_windows))
}

/// The names that linkers look for.
fn file_names(library: &str, is_for_windows: bool) -> Vec<String> {
    if is_for_windows {
        vec![format!("lib{library}.dll.a"), format!("{library}.lib"), format!("lib{library}.a")]
    } else {
        vec![format!("lib{library}.so")]
    }
}

fn has_library(directory: &Path, library: &str, is_for_windows: bool) -> bool {
    file_names(library, is_for_windows).iter().any(|name| directory.join(name).is_file())
}

/// Where an installation or a distribution may have device libraries.
pub(super) fn device_libraries(root: &Path) -> impl Iterator<Item = PathBuf> {
    let parents = [
        String::new(),
        "lib/llvm".to_owned(),
        format!("lib/{ARCH}-linux-gnu"),
        "lib64".to_owned(),
        "lib".to_owned(),
    ];
    let directly = parents.map(|parent| root.join(parent).join("amdgcn/bitcode"));
    let clangs = ["lib/llvm/lib/clang", "llvm/lib/clang", "lib/clang"];
    let clangs = clangs.into_iter().flat_map(|path| entries(&root.join(path)).into_iter().rev());
    let of_clang = Vec::from_iter(clangs).into_iter().flat_map(|clang| {
        ["lib/amdgcn/bitcode", "amdgcn/bitcode"].map(|inside| clang.join(inside))
    });
    directly.into_iter().chain(of_clang)
}

/// The version of an installation, by its own file, by the header of ROCm, or by that of HIP, whose third number is one
/// of its own.
fn version(root: &Path) -> Option<[u32; 3]> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let of_header = |path: &str, names: [&str; 3]| {
        let text = read(path)?;
        let number = |name: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace());
            lines.find_map(|mut words| {
                let found = words.next() == Some("#define") && words.next() == Some(name);
                found.then(|| words.next()?.parse().ok()).flatten()
            })
        };
        Some([number(names[0])?, number(names[1])?, number(names[2]).unwrap_or(0)])
    };
    read(".info/version")
        .and_then(|text| numbers(text.trim()))
        .or_else(|| {
            let names = ["ROCM_VERSION_MAJOR", "ROCM_VERSION_MINOR", "ROCM_VERSION_PATCH"];
            of_header("include/rocm-core/rocm_version.h", names)
        })
        .or_else(|| {
            let names = ["HIP_VERSION_MAJOR", "HIP_VERSION_MINOR", ""];
            of_header("include/hip/hip_version.h", names)
        })
}

/// The first three numbers of `7.0.2`, `7.0.2-56`, `7.10.0a20251006` or `7`.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut numbers = [0; 3];
    for (index, part) in version.splitn(3, '.').enumerate() {
        let digits = part.split(|character: char| !character.is_ascii_digit()).next();
        numbers[index] = digits.unwrap_or_default().parse().ok()?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use kpack_tests::tree::Tree;

    use super::*;

    fn environment(tree: &Tree, variables: &[(&str, &str)]) -> Environment {
        let variable = |(name, value): &(&str, &str)| {
            let value = value.replace("[root]", tree.root().to_str().unwrap());
            (OsString::from(name), OsString::from(value))
        };
        Environment::of(variables.iter().map(variable).collect())
    }

    fn find(tree: &Tree, variables: &[(&str, &str)]) -> Result<Rocm, String> {
        let found = Rocm::find_in(&environment(tree, variables), tree.root());
        found.map_err(|error| error.to_string().replace(tree.root().to_str().unwrap(), "[root]"))
    }

    /// An installation in the tree.
    fn install(tree: &Tree, root: &str, libraries: &str) {
        for file in [HEADER, &format!("{libraries}/libamdhip64.so")] {
            tree.write(&format!("{root}/{file}"), "");
        }
    }

    const PACKAGES: &str = "venv/lib/python3.12/site-packages";
    const VENV: (&str, &str) = ("VIRTUAL_ENV", "[root]/venv");

    #[test]
    fn the_first_complete_installation() {
        let tree = Tree::new();
        let conda = ("CONDA_PREFIX", "[root]/conda");
        let all = [VENV, conda];
        // Each comes before those that are there already.
        for (root, libraries, variables) in [
            ("usr", "lib/x86_64-linux-gnu", &all[..]),
            ("opt/rocm-6.4.1", "lib64", &all),
            ("opt/rocm-6.10.0", "lib", &all),
            ("opt/rocm", "lib", &all),
            ("conda", "lib", &all),
            ("conda/lib/python3.13/site-packages/_rocm_sdk_devel", "lib", &all),
            (&format!("{PACKAGES}/_rocm_sdk_devel"), "lib", &all),
            ("hip", "lib", &[VENV, ("HIP_PATH", "[root]/hip")]),
            ("mine", "lib", &[VENV, ("HIP_PATH", "[root]/hip"), ("ROCM_PATH", "[root]/mine")]),
        ] {
            install(&tree, root, libraries);
            let found = find(&tree, variables).unwrap();
            assert_eq!(found.root(), tree.path(root));
            assert_eq!(found.libraries(), tree.path(&format!("{root}/{libraries}")));
            assert_eq!(found.headers(), tree.path(&format!("{root}/include")));
        }
        // HIP_PATH of ROCm 5.
        assert_eq!(
            find(&tree, &[("HIP_PATH", "[root]/mine/hip")]).unwrap().root(),
            tree.path("mine")
        );
    }

    #[test]
    fn versions() {
        let hip = "#define HIP_VERSION_MAJOR 5\n#define HIP_VERSION_MINOR 2\n#define HIP_VERSION_PATCH 21153\n";
        let rocm = "#define ROCM_VERSION_MAJOR   6\n#define ROCM_VERSION_MINOR   4\n#define ROCM_VERSION_PATCH   1\n";
        for (files, expected) in [
            (&[][..], None),
            (&[("include/hip/hip_version.h", hip)], Some([5, 2, 0])),
            (
                &[("include/hip/hip_version.h", hip), ("include/rocm-core/rocm_version.h", rocm)],
                Some([6, 4, 1]),
            ),
            (
                &[("include/rocm-core/rocm_version.h", rocm), (".info/version", "7.0.2-56\n")],
                Some([7, 0, 2]),
            ),
            (&[(".info/version", "7.10.0a20251006")], Some([7, 10, 0])),
            (&[(".info/version", "unknown"), ("include/hip/hip_version.h", hip)], Some([5, 2, 0])),
        ] {
            let tree = Tree::new();
            install(&tree, "opt/rocm", "lib");
            for (name, text) in files {
                tree.write(&format!("opt/rocm/{name}"), text);
            }
            assert_eq!(find(&tree, &[]).unwrap().version(), expected, "{files:?}");
        }
    }

    #[test]
    fn parts_of_an_installation() {
        let tree = Tree::new();
        install(&tree, "opt/rocm", "lib");
        let rocm = find(&tree, &[]).unwrap();
        assert_eq!((rocm.compiler(), rocm.device_libraries()), (None, None));
        let libraries = "opt/rocm/lib/llvm/lib/clang/20/lib/amdgcn/bitcode";
        let compiler = "opt/rocm/lib/llvm/bin/amdclang++";
        tree.write(&format!("{libraries}/ockl.bc"), "");
        tree.write(compiler, "");
        tree.write("opt/rocm/bin/hipcc", "");
        let rocm = find(&tree, &[]).unwrap();
        assert_eq!(rocm.compiler(), Some(&*tree.path(compiler)));
        assert_eq!(rocm.device_libraries(), Some(&*tree.path(libraries)));
    }

    #[test]
    fn lines_that_link_a_library() {
        let tree = Tree::new();
        install(&tree, "usr", "lib/x86_64-linux-gnu");
        let of_system = find(&tree, &[]).unwrap();
        assert_eq!(
            of_system.directives("amdhip64").unwrap(),
            ["cargo::rustc-link-lib=dylib=amdhip64"]
        );
        install(&tree, "opt/rocm", "lib");
        let rocm = find(&tree, &[]).unwrap();
        let error = rocm.directives("hipblas").unwrap_err().to_string();
        assert!(error.contains("opt/rocm/lib` has no libhipblas.so"), "{error}");
        tree.write("opt/rocm/lib/libhipblas.so", "");
        let search = format!("cargo::rustc-link-search=native={}", rocm.libraries().display());
        let link = "cargo::rustc-link-lib=dylib=hipblas".to_owned();
        assert_eq!(rocm.directives("hipblas").unwrap(), [search, link]);
        // Import libraries for Windows.
        let windows = [("TARGET", "x86_64-pc-windows-gnu")];
        assert!(find(&tree, &windows).is_err());
        tree.write("opt/rocm/lib/amdhip64.lib", "");
        assert_eq!(find(&tree, &windows).unwrap().directives("amdhip64").unwrap().len(), 2);
    }

    /// A build script that links a library of ROCm can be documented.
    #[test]
    fn no_installation_on_docs_rs() {
        let tree = Tree::new();
        let find = |variables| Rocm::find_or_stand_in(&environment(&tree, variables), tree.root());
        assert!(find(&[]).is_err());
        let docs_rs = [("DOCS_RS", "1")];
        let rocm = find(&docs_rs).unwrap();
        assert_eq!((rocm.root(), rocm.version()), (&*tree.path("opt/rocm"), None));
        assert_eq!(rocm.directives("hipblas").unwrap(), [""; 0]);
        install(&tree, "usr", "lib");
        assert_eq!(find(&docs_rs).unwrap().root(), tree.path("usr"));
    }

    #[test]
    fn an_error_lists_all_places() {
        let tree = Tree::new();
        tree.write(&format!("{PACKAGES}/_rocm_sdk_core/lib/libamdhip64.so.7"), "");
        tree.write("opt/rocm/lib/libamdhip64.so", "");
        tree.write(&format!("opt/rocm-6.1/{HEADER}"), "");
        let mut text = find(&tree, &[VENV]).unwrap_err();
        text += "\n\n";
        text += &find(&tree, &[("CONDA_PREFIX", "[root]/opt")]).unwrap_err();
        text += "\n\n";
        text += &find(&tree, &[VENV, ("ROCM_PATH", "[root]/none")]).unwrap_err();
        insta::assert_snapshot!(text);
    }
}
