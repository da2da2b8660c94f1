//! Finds a HIP compiler that can make device code for the targets of a build.
//!
//! To check that, it compiles and links an empty source: only the compiler knows which processors it supports, and
//! where it looks for ROCm's device libraries and for lld.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::command::{advice, error_line};
use super::environment::{Environment, words};
use super::rocm::{self, Location, Origin};
use kpack_core::Error;
use kpack_core::platform::OsStrExt;
use kpack_format::TargetId;

/// A compiler name that only ROCm uses.
const OF_ROCM: &str = "amdclang++";

/// Names of other compilers on the `PATH`, the most capable first. Distributions' LLVM packages
/// have the version in the name.
const OTHERS: [&str; 20] = [
    "hipcc",
    "clang++",
    "clang++-29",
    "clang++-28",
    "clang++-27",
    "clang++-26",
    "clang++-25",
    "clang++-24",
    "clang++-23",
    "clang++-22",
    "clang++-21",
    "clang++-20",
    "clang++-19",
    "clang++-18",
    "clang++-17",
    "clang++-16",
    "clang++-15",
    "clang++-14",
    "clang++-13",
    "clang++-12",
];

/// Variables that change what the compilers make of their arguments: those of clang (its driver and `AMDGPU.cpp`), then
/// those of `hipcc` (`hipBin_base.h`).
pub(super) const VARIABLES: [&str; 22] = [
    "CCC_OVERRIDE_OPTIONS",
    "CLANG_NO_DEFAULT_CONFIG",
    "COMPILER_PATH",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "HIP_DEVICE_LIB_PATH",
    "HIP_PATH",
    "ROCM_PATH",
    "SOURCE_DATE_EPOCH",
    "DEVICE_LIB_PATH",
    "HIPCC_COMPILE_FLAGS_APPEND",
    "HIPCC_LINK_FLAGS_APPEND",
    "HIP_CLANG_HCC_COMPAT_MODE",
    "HIP_CLANG_PATH",
    "HIP_COMPILER",
    "HIP_COMPILE_CXX_AS_HIP",
    "HIP_LIB_PATH",
    "HIP_PLATFORM",
    "HIP_ROCCLR_HOME",
    "HIP_RUNTIME",
    "HSA_PATH",
];

/// Prefixes of flags that select the device libraries to link.
const OF_DEVICE_LIBRARIES: [&str; 6] =
    ["-nogpulib", "-nocudalib", "--no-offloadlib", "--rocm-", "--hip-", "-mcode-object-version="];

/// The code that a compiler must be able to make.
pub(super) struct Requirements<'a> {
    targets: &'a [TargetId],
    /// The flags of the build that affect device libraries.
    flags: Vec<OsString>,
    /// The variables that the compiler gets.
    environment: &'a Environment,
}

impl<'a> Requirements<'a> {
    /// Code for `targets` with the package's flags.
    pub(super) fn new(
        targets: &'a [TargetId],
        own: &[OsString],
        environment: &'a Environment,
    ) -> Self {
        let matters = |flag: &&OsString| {
            let text = flag.to_string_lossy();
            OF_DEVICE_LIBRARIES.iter().any(|name| text.starts_with(name))
        };
        Self { targets, flags: own.iter().filter(matters).cloned().collect(), environment }
    }

    /// The targets, for messages.
    fn names(&self) -> String {
        names(self.targets)
    }
}

/// A compiler and its launcher, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compiler {
    program: PathBuf,
    /// What comes before all flags: if the program is a launcher, the compiler, and flags.
    arguments: Vec<OsString>,
    /// The ROCm installation that it belongs to.
    pub(super) rocm: Option<PathBuf>,
    /// The directory of device libraries, if the compiler does not find them by itself.
    device_libraries: Option<PathBuf>,
}

impl Compiler {
    fn new(program: PathBuf, arguments: Vec<OsString>, rocm: Option<PathBuf>) -> Self {
        Self { program, arguments, rocm, device_libraries: None }
    }

    /// A compiler given by path. Missing features show up when it compiles.
    pub(super) fn at(program: &Path, requirements: &Requirements<'_>) -> Self {
        let rocm = rocm::named(requirements.environment);
        let compiler = Self::new(program.to_owned(), Vec::new(), rocm);
        compiler.clone().fit(requirements).unwrap_or(compiler)
    }

    /// Finds a compiler. If `HIPCXX` is set, it is that one or none. Otherwise it is the first of these that supports
    /// all targets of the build: those where variables say that ROCm is, or in wheels; ROCm's on the `PATH`; those in
    /// `/opt/rocm`; others on the `PATH`.
    ///
    /// # Errors
    /// [`Error::Compiler`] that lists everything tried.
    pub(super) fn find(requirements: &Requirements<'_>) -> Result<Self, Error> {
        Self::find_with(requirements, Path::new("/"))
    }

    /// As `find`, in the file system whose root is `system`.
    fn find_with(requirements: &Requirements<'_>, system: &Path) -> Result<Self, Error> {
        let environment = requirements.environment;
        let path = environment.untracked("PATH").unwrap_or_default();
        if let Some(named) = environment.get("HIPCXX") {
            return Self::named(&named, rocm::named(environment), requirements);
        }
        let locations = rocm::locations(environment, system);
        let mut looked_at = vec!["HIPCXX: not set".to_owned()];
        looked_at.extend(rocm::not_set(environment));
        looked_at.extend(locations.iter().filter_map(|location| {
            let problem = location.problem.as_ref()?;
            Some(format!("{}: {problem}", location.name()))
        }));
        let candidates = candidates(&path, &locations);
        let mut missing: Vec<String> = Vec::new();
        for Candidate { name, program, rocm } in candidates {
            let Some(program) = program else {
                missing.push(name);
                continue;
            };
            let compiler = Self::new(program, Vec::new(), rocm).fit(requirements);
            match compiler.and_then(|compiler| compiler.with_linker(requirements)) {
                Ok(compiler) => return Ok(compiler),
                Err(reason) => {
                    looked_at.extend(not_found(&mut missing));
                    looked_at.push(format!("{name}: {reason}"));
                }
            }
        }
        looked_at.extend(not_found(&mut missing));
        Err(Error::Compiler(format!(
            "no HIP compiler for {} was found. Tried, in this order:\n  {}\nInstall ROCm's \
             compiler (package `rocm-llvm` or `hipcc`), or a clang with the AMDGPU target and \
             lld (Debian: `apt-get install clang-19 lld-19`); or set HIPCXX to one; or build \
             for other targets",
            requirements.names(),
            looked_at.join("\n  ")
        )))
    }

    /// The compiler that `HIPCXX` names.
    fn named(
        named: &OsStr,
        rocm: Option<PathBuf>,
        requirements: &Requirements<'_>,
    ) -> Result<Self, Error> {
        let path = requirements.environment.untracked("PATH").unwrap_or_default();
        let (program, arguments) = program_and_arguments(&path, named)?;
        program
            .ok_or_else(|| "no such program".to_owned())
            .and_then(|program| Self::new(program, arguments, rocm).without_spaces()?.fit(requirements))
            .and_then(|compiler| compiler.with_linker(requirements))
            .map_err(|problem| {
                Error::Compiler(format!(
                    "HIPCXX is `{}`: {problem}; set it to a clang++ with the AMDGPU target that supports {}, or unset it",
                    Path::new(&named).display(),
                    requirements.names(),
                ))
            })
    }

    /// The variables for `cc`, which a variable alone can give a launcher.
    fn variables(&self, environment: &Environment) -> BTreeMap<OsString, OsString> {
        let mut variables = environment.all().clone();
        // Unless the variable is set, `cc` asks for warnings, and the compiler would repeat each for every GPU target.
        variables.entry("CXXFLAGS".into()).or_default();
        if self.is_launcher() {
            let mut words = self.program.clone().into_os_string();
            for argument in &self.arguments {
                words.push(" ");
                words.push(argument);
            }
            let launcher = self.program.file_stem().unwrap_or_default().to_owned();
            variables.insert(format!("CXX_{}", environment.target()).into(), words);
            variables.insert("CC_KNOWN_WRAPPER_CUSTOM".into(), launcher);
        }
        variables
    }

    /// Asks `cc` for the flags of this compiler, and has it run the archiver. It writes into `directory`.
    pub(super) fn build(&self, environment: &Environment, directory: &Path) -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).host(&environment.host()).target(&environment.target());
        build.opt_level_str(environment.text("OPT_LEVEL").as_deref().unwrap_or("0"));
        // They would take registers of the GPU.
        build.force_frame_pointer(false);
        build.set_envs_snapshot(self.variables(environment)).out_dir(directory);
        if !self.is_launcher() {
            build.compiler(&self.program).flags(&self.arguments);
        }
        build.cargo_warnings(false).cargo_output(false);
        build
    }

    /// Whether the program runs the compiler, which is its first argument.
    pub(super) fn is_launcher(&self) -> bool {
        self.arguments.first().is_some_and(|first| !first.as_bytes().starts_with(b"-"))
    }

    /// A command without the arguments of a compilation.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// A command that asks the compiler something, with the variables of the build.
    fn asked(&self, requirements: &Requirements<'_>) -> Command {
        let mut command = self.command();
        command.env_clear().envs(requirements.environment.all()).stdin(Stdio::null());
        command
    }

    /// The flag for the ROCm installation.
    pub(super) fn rocm_flag(&self) -> Option<OsString> {
        let mut flag = OsString::from("--rocm-path=");
        flag.push(self.rocm.as_ref()?);
        Some(flag)
    }

    /// The flags for the directories of ROCm's headers and device libraries.
    pub(super) fn rocm_flags(&self) -> Vec<OsString> {
        let libraries = self.device_libraries.as_deref().map(device_library_flag);
        self.rocm_flag().into_iter().chain(libraries).collect()
    }

    /// Returns the compiler if it supports the targets, otherwise the reason.
    fn fit(mut self, requirements: &Requirements<'_>) -> Result<Self, String> {
        self.can_target_amdgcn(requirements)?;
        self.device_libraries = device_libraries(&self, requirements)?;
        Ok(self)
    }

    /// Whether it takes a flag for the host and the GPU targets.
    pub(super) fn supports(&self, flag: &OsStr, requirements: &Requirements<'_>) -> bool {
        let mut command = self.asked(requirements);
        command.args(["-x", "hip", "-nogpuinc", "-nogpulib", "-fsyntax-only", "-Werror"]);
        if requirements.environment.target() != requirements.environment.host() {
            command.arg(format!("--target={}", requirements.environment.target()));
        }
        command.args(requirements.targets.iter().map(|target| format!("--offload-arch={target}")));
        // Flags for the link do nothing here.
        command.arg("-Wno-unused-command-line-argument").arg(flag).arg("/dev/null");
        command.output().is_ok_and(|output| output.status.success())
    }

    /// Checks that it can link device code. Distributions have lld in a package of its own, one for each version.
    fn with_linker(self, requirements: &Requirements<'_>) -> Result<Self, String> {
        // SPIR-V is translated instead.
        let Some(target) = requirements.targets.iter().find(|target| !target.is_spirv()) else {
            return Ok(self);
        };
        let flags = requirements.flags.iter().cloned().chain(self.rocm_flags());
        let mut command = compilation(&self, requirements, std::slice::from_ref(target), flags);
        match command.args(["-c", "-o", "/dev/null"]).output() {
            Ok(output) if output.status.success() => Ok(self),
            Ok(output) => {
                let printed = String::from_utf8_lossy(&output.stderr);
                let error = error_line(&printed).unwrap_or("it failed");
                let advice = advice(error).map(|advice| format!("; {advice}")).unwrap_or_default();
                Err(format!("cannot link device code{advice} ({error})"))
            }
            Err(error) => Err(format!("cannot be run: {error}")),
        }
    }

    /// Checks that `cc` can take a launcher and its compiler from a variable.
    fn without_spaces(self) -> Result<Self, String> {
        let with_space = |word: &OsStr| word.as_bytes().contains(&b' ');
        if self.is_launcher()
            && (with_space(self.program.as_os_str())
                || self.arguments.iter().any(|argument| with_space(argument)))
        {
            return Err("a launcher, and a path with a space".to_owned());
        }
        Ok(self)
    }

    /// Checks that the compiler has the AMDGPU target.
    fn can_target_amdgcn(&self, requirements: &Requirements<'_>) -> Result<(), String> {
        let mut command = self.asked(requirements);
        command.arg("--print-targets");
        match command.output() {
            Err(error) => Err(format!("cannot be run: {error}")),
            Ok(output) if !output.status.success() => {
                Err(format!("`--print-targets` failed ({}); expected a clang", output.status))
            }
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("amdgcn") => Ok(()),
            Ok(_) => Err("no target amdgcn".to_owned()),
        }
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.display())?;
        for argument in &self.arguments {
            write!(f, " {}", Path::new(argument).display())?;
        }
        Ok(())
    }
}

/// The line for candidates that do not exist, if any; empties the list.
fn not_found(missing: &mut Vec<String>) -> Option<String> {
    let names = std::mem::take(missing);
    (!names.is_empty()).then(|| format!("not found: {}", names.join(", ")))
}

/// A place where a compiler may be.
struct Candidate {
    /// For messages.
    name: String,
    /// `None` if there is nothing.
    program: Option<PathBuf>,
    /// The ROCm installation that it belongs to.
    rocm: Option<PathBuf>,
}

/// Where to look for a compiler, in order.
fn candidates(path: &OsStr, locations: &[Location]) -> Vec<Candidate> {
    // The distribution's compilers are on the `PATH`, and know where their ROCm is.
    let usable =
        |location: &&Location| location.problem.is_none() && location.from != Origin::System;
    let (usual, chosen): (Vec<&Location>, Vec<&Location>) =
        locations.iter().filter(usable).partition(|location| location.from == Origin::Usual);
    let in_rocm = |location: &Location| {
        let root = location.root.clone();
        rocm::compilers(&location.root).map(move |program| Candidate {
            name: program.display().to_string(),
            program: program.is_file().then_some(program),
            rocm: Some(root.clone()),
        })
    };
    let rocm = chosen.first().map(|location| location.root.clone());
    let on_path = |name: &str| Candidate {
        name: name.to_owned(),
        program: on_path(path, name.as_ref()),
        rocm: rocm.clone(),
    };
    let mut candidates = Vec::new();
    candidates.extend(chosen.into_iter().flat_map(in_rocm));
    candidates.push(on_path(OF_ROCM));
    candidates.extend(usual.into_iter().flat_map(in_rocm));
    candidates.extend(OTHERS.map(on_path));
    candidates
}

/// Splits `HIPCXX` into a program and its arguments, as in `ccache clang++`. The path of a program without
/// arguments may have spaces.
fn program_and_arguments(
    path: &OsStr,
    named: &OsStr,
) -> Result<(Option<PathBuf>, Vec<OsString>), Error> {
    if let Some(program) = on_path(path, named) {
        return Ok((Some(program), Vec::new()));
    }
    let mut words = words("HIPCXX", named)?.into_iter();
    let program = words.next().and_then(|program| on_path(path, &program));
    Ok((program, words.collect()))
}

/// Finds a program by its name or path.
fn on_path(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        let program = PathBuf::from(name);
        return program.is_file().then_some(program);
    }
    let mut directories = std::env::split_paths(path);
    directories.find_map(|directory| {
        let program = directory.join(name);
        program.is_file().then_some(program)
    })
}

/// The directory of device libraries to pass to `compiler`; `None` if it finds them or needs none.
///
/// # Errors
/// The reason why the compiler does not fit.
fn device_libraries(
    compiler: &Compiler,
    requirements: &Requirements<'_>,
) -> Result<Option<PathBuf>, String> {
    let compiles = |targets: &[TargetId], more: Option<OsString>| {
        compiles(compiler, requirements, targets, requirements.flags.iter().cloned().chain(more))
    };
    let fails = |more: Option<OsString>| {
        let each = requirements.targets.iter().cloned();
        Vec::from_iter(each.filter(|target| !compiles(std::slice::from_ref(target), more.clone())))
    };
    if compiles(requirements.targets, None) {
        return Ok(None);
    }
    let unknown = fails(Some("-nogpulib".into()));
    if !unknown.is_empty() {
        return Err(format!("cannot compile for {}", names(&unknown)));
    }
    let mut without = requirements.targets.to_vec();
    // Distributions' clang looks only in `/opt/rocm` and next to itself.
    let usr = Path::new("/usr");
    let roots = compiler.rocm.iter().map(PathBuf::as_path).chain([usr]);
    for directory in roots.flat_map(rocm::device_libraries).filter(|directory| directory.is_dir()) {
        let flag = device_library_flag(&directory);
        if compiles(requirements.targets, Some(flag.clone())) {
            return Ok(Some(directory));
        }
        without = fails(Some(flag));
    }
    Err(format!("finds no ROCm device library for {}", names(&without)))
}

/// The flag for a directory of device libraries.
fn device_library_flag(directory: &Path) -> OsString {
    let mut flag = OsString::from("--rocm-device-lib-path=");
    flag.push(directory);
    flag
}

fn compiles(
    compiler: &Compiler,
    requirements: &Requirements<'_>,
    targets: &[TargetId],
    flags: impl Iterator<Item = OsString>,
) -> bool {
    let flags = flags.chain(compiler.rocm_flag()).chain(["-fsyntax-only".into()]);
    let output = compilation(compiler, requirements, targets, flags).output();
    output.is_ok_and(|output| output.status.success())
}

/// The compilation of an empty source for the GPUs.
fn compilation(
    compiler: &Compiler,
    requirements: &Requirements<'_>,
    targets: &[TargetId],
    flags: impl Iterator<Item = OsString>,
) -> Command {
    let mut command = compiler.asked(requirements);
    command.args(["-x", "hip", "--cuda-device-only", "-nogpuinc"]);
    command.args(targets.iter().map(|target| format!("--offload-arch={target}")));
    command.args(flags).arg("/dev/null");
    command
}

fn names(targets: &[TargetId]) -> String {
    let names: Vec<String> = targets.iter().map(TargetId::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use kpack_tests::process;

    use super::{Compiler, Environment, Requirements};

    /// The program found and its ROCm installation, relative to `root`.
    fn found(root: &Path, variables: &[(&str, &str)]) -> (String, Option<String>) {
        let mut all = vec![(OsString::from("PATH"), root.join("bin").into_os_string())];
        all.extend(variables.iter().map(|(name, value)| {
            let value = value.replace("[root]", root.to_str().unwrap());
            (OsString::from(name), OsString::from(value))
        }));
        let environment = Environment::of(all.into_iter().collect());
        let targets = ["gfx1100".parse().unwrap()];
        let requirements = Requirements::new(&targets, &[], &environment);
        let compiler = Compiler::find_with(&requirements, root).unwrap();
        let shown = |path: &Path| {
            let inside = path.strip_prefix(root).unwrap();
            inside.display().to_string()
        };
        (shown(&compiler.program), compiler.rocm.as_deref().map(shown))
    }

    #[test]
    fn rocms_compiler_before_the_distributions() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let clang = "echo '  amdgcn - AMD GCN GPUs'";
        process::script(root.join("bin/clang++-19"), clang);
        assert_eq!(found(root, &[]), ("bin/clang++-19".to_owned(), None));
        process::script(root.join("bin/clang++-24"), clang);
        assert_eq!(found(root, &[]), ("bin/clang++-24".to_owned(), None));
        process::script(root.join("opt/rocm/llvm/bin/clang++"), clang);
        assert_eq!(
            found(root, &[]),
            ("opt/rocm/llvm/bin/clang++".to_owned(), Some("opt/rocm".to_owned()))
        );
        process::script(root.join("bin/amdclang++"), clang);
        assert_eq!(found(root, &[]).0, "bin/amdclang++");
        process::script(root.join("mine/bin/hipcc"), clang);
        let rocm = [("ROCM_PATH", "[root]/mine")];
        assert_eq!(found(root, &rocm), ("mine/bin/hipcc".to_owned(), Some("mine".to_owned())));
        assert_eq!(found(root, &[("HIPCXX", "clang++-19")]).0, "bin/clang++-19");
    }

    /// The distribution's packages of the newest clang and its lld are installed one by one.
    #[test]
    fn compilers_without_their_linker_are_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let without_linker = r#"case "$*" in
            *-fsyntax-only* | *--print-targets*) echo amdgcn ;;
            *) echo "clang++-22: error: Executable \"lld\" doesn't exist!" >&2; exit 1 ;;
        esac"#;
        process::script(root.join("bin/clang++-22"), without_linker);
        let environment = |variables: &[(&str, &str)]| {
            let path = [("PATH".into(), root.join("bin").into_os_string())];
            let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
            Environment::of(path.into_iter().chain(all).collect())
        };
        let targets = ["gfx1100".parse().unwrap()];
        let cases: [&[(&str, &str)]; 2] = [&[], &[("HIPCXX", "clang++-22")]];
        for variables in cases {
            let environment = environment(variables);
            let requirements = Requirements::new(&targets, &[], &environment);
            let error = Compiler::find_with(&requirements, root).unwrap_err().to_string();
            assert!(error.contains("clang++-22"), "{error}");
            assert!(error.contains("install the lld of the compiler's version"), "{error}");
        }
        process::script(root.join("bin/clang++-19"), "echo amdgcn");
        assert_eq!(found(root, &[]).0, "bin/clang++-19");
    }

    #[test]
    fn a_launcher_in_front() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        process::script(root.join("bin/clang++"), "echo amdgcn");
        process::script(root.join("bin/launch"), "exec \"$@\"");
        process::script(root.join("a b/clang++"), "echo amdgcn");
        let here = root.join("bin/clang++");
        let launched = format!("launch '{}'", here.display());
        assert_eq!(found(root, &[("HIPCXX", &launched)]).0, "bin/launch");
        assert_eq!(found(root, &[("HIPCXX", "[root]/a b/clang++")]).0, "a b/clang++");
    }
}
