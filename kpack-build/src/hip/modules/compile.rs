//! Compiles sources for the device alone, one call of the compiler for each source and target.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use kpack_core::parallel;
use kpack_core::platform::OsStrExt;
use kpack_core::publish::Directory;
use kpack_core::{Error, shown};
use kpack_format::TargetId;
use kpack_format::digest::{Blake3, Hasher};

use super::reuse::{Object, ObjectCache, Pair, code_name};
use crate::hip::command::{advice, command_line, error_line, warnings};
use crate::hip::compiler;
use crate::hip::device_libraries::DeviceLibraries;
use crate::hip::make_rule::{self, dependencies};
use crate::hip::toolchain::Toolchain;

/// Flags for a single code object rather than a bundle. Without host code, it needs no symbol that ties it to some, whose
/// name would depend on the path of `OUT_DIR`.
const ONE_OBJECT: [&str; 3] = ["--no-gpu-bundle-output", "-fuse-cuid=none", "-c"];

/// Precedes a flag for the host's pass, of which there is none.
const FOR_HOST: &str = "-Xarch_host";

/// What all calls of the compiler share.
pub(super) struct Compilation<'a> {
    pub(super) toolchain: &'a Toolchain,
    /// For device code, without its target.
    pub(super) flags: &'a [OsString],
    /// Where the compiler runs.
    pub(super) package: &'a Path,
    /// The variables of the build.
    pub(super) variables: &'a BTreeMap<OsString, OsString>,
    /// Where the compiler writes.
    pub(super) directory: &'a Directory,
    pub(super) cache: &'a ObjectCache,
}

/// A call of the compiler that failed.
struct Failure {
    /// The line that says why.
    line: String,
    /// Everything that the compiler printed.
    printed: String,
    command: String,
}

impl Compilation<'_> {
    /// The code objects of `pairs`, in their order. All of them are tried, whichever fail.
    ///
    /// # Errors
    /// [`Error::Compiler`] that lists all failures; [`Error::Io`].
    pub(super) fn run(
        &self,
        name: &str,
        pairs: &[Pair<'_>],
        libraries: &DeviceLibraries,
    ) -> Result<Vec<Object>, Error> {
        let identity = self.identity(libraries);
        let results = parallel::with_jobs(self.toolchain.threads, || {
            parallel::map(pairs, |pair| self.object(pair, &identity))
        });
        let mut objects = Vec::new();
        let mut failures = Vec::new();
        let mut compiled = Vec::new();
        for (pair, result) in pairs.iter().zip(results) {
            match result? {
                Ok(object) => {
                    compiled.push(pair);
                    objects.push(object);
                }
                Err(failure) => failures.push((pair, failure)),
            }
        }
        match &failures[..] {
            [] => Ok(objects),
            failures => Err(Error::Compiler(listed(name, failures, &compiled))),
        }
    }

    /// The code object of `pair`: the one of an earlier build, or a new one.
    fn object(&self, pair: &Pair<'_>, identity: &[u8]) -> Result<Result<Object, Failure>, Error> {
        let flags = self.flags_for(pair);
        let digest = self.digest(identity, &flags, pair.source.path);
        if let Some(object) = self.cache.find(pair, &digest, self.package) {
            return Ok(Ok(object));
        }
        let code = self.directory.path().join(code_name(pair));
        let rule = code.with_extension("d");
        let mut command = self.command();
        // clang 21 ignores `-MD` without a pass for the host, so this is what the driver makes of it.
        let listing: [&OsStr; 5] = [
            "-dependency-file".as_ref(),
            rule.as_os_str(),
            "-sys-header-deps".as_ref(),
            "-MT".as_ref(),
            make_rule::TARGET.as_ref(),
        ];
        for argument in listing {
            command.arg("-Xclang").arg(argument);
        }
        if self.toolchain.compiler.is_launcher() {
            // A cache writes the file on a hit only if it knows of it.
            command.args(["-MD", "-MT", make_rule::TARGET, "-MF"]).arg(&rule);
            command.arg("-Wno-unused-command-line-argument");
        }
        command.args(flags).arg("-o").arg(&code).arg(pair.source.path);
        let token = self.toolchain.job_server.acquire();
        let begun = SystemTime::now();
        let output = command.output();
        drop(token);
        let output = output.map_err(|e| Error::io(command.get_program().as_ref(), "run", e))?;
        if !output.status.success() {
            return Ok(Err(Failure::new(&output, &command)));
        }
        let read = |path: &Path| fs::read(path).map_err(|e| Error::io(path, "read", e));
        let mut inputs = dependencies(&String::from_utf8_lossy(&read(&rule)?));
        inputs.sort();
        inputs.dedup();
        let warnings = warnings(&output);
        let object = Object { code: read(&code)?, inputs, warnings };
        self.cache.add(pair, digest, &object, self.package, begun, self.directory)?;
        Ok(Ok(object))
    }

    /// The compiler in the package's directory, with the variables of the build.
    fn command(&self) -> Command {
        let mut command = self.toolchain.compiler.command();
        command.env_clear().envs(self.variables);
        command.current_dir(self.package).stdin(Stdio::null());
        command
    }

    /// The flags for `pair`.
    fn flags_for(&self, pair: &Pair<'_>) -> Vec<OsString> {
        let mut flags = self.flags_for_targets([&pair.target]);
        flags.extend(ONE_OBJECT.map(OsString::from));
        flags
    }

    fn flags_for_targets<'t>(
        &self,
        targets: impl IntoIterator<Item = &'t TargetId>,
    ) -> Vec<OsString> {
        let mut own = Vec::new();
        let mut flags = self.flags.iter();
        while let Some(flag) = flags.next() {
            if flag == FOR_HOST {
                flags.next();
            } else {
                own.push(flag.clone());
            }
        }
        own.extend(targets.into_iter().map(|target| format!("--offload-arch={target}").into()));
        own
    }

    /// The libraries that the compiler links code for these targets with.
    pub(super) fn device_libraries(&self, targets: &[TargetId]) -> DeviceLibraries {
        let mut command = self.command();
        command.args(self.flags_for_targets(targets));
        DeviceLibraries::of(&mut command)
    }

    /// What identifies the compiler and its libraries.
    fn identity(&self, libraries: &DeviceLibraries) -> Vec<u8> {
        let output = self.command().arg("--version").output();
        let mut identity = output.map(|output| output.stdout).unwrap_or_default();
        identity.extend(libraries.identity());
        identity
    }

    /// The digest of everything but files that decides what the compiler makes.
    fn digest(&self, identity: &[u8], flags: &[OsString], source: &Path) -> Blake3 {
        let mut hasher = Hasher::default();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(identity);
        add(command_line(&self.toolchain.compiler.command()).as_bytes());
        add(self.package.as_os_str().as_bytes());
        add(source.as_os_str().as_bytes());
        for flag in flags {
            add(flag.as_bytes());
        }
        for name in compiler::VARIABLES {
            let value = self.variables.get(OsStr::new(name));
            add(value.map_or(&[], |value| value.as_bytes()));
        }
        hasher.finish()
    }
}

impl Failure {
    fn new(output: &Output, command: &Command) -> Self {
        let printed = [&output.stdout[..], &output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).trim_end().to_owned();
        let line = match error_line(&printed) {
            Some(line) => match advice(&printed) {
                Some(advice) => format!("{line}; {advice}"),
                None => line.to_owned(),
            },
            None => format!("the compiler failed without a message ({})", output.status),
        };
        Self { line, printed, command: command_line(command) }
    }
}

/// The message for `failures`, of which there is at least one, and what else was `compiled`.
fn listed(name: &str, failures: &[(&Pair<'_>, Failure)], compiled: &[&Pair<'_>]) -> String {
    let all = failures.len() + compiled.len();
    let mut text = format!("modules `{name}`: {} of {all} compilations failed\n", failures.len());
    // Several targets often fail for one reason.
    let mut grouped: Vec<(&Path, &str, Vec<String>)> = Vec::new();
    for (pair, failure) in failures {
        let target = pair.target.to_string();
        let known = grouped
            .iter_mut()
            .find(|(path, line, _)| (*path, *line) == (pair.source.path, &failure.line[..]));
        match known {
            Some((_, _, targets)) => targets.push(target),
            None => grouped.push((pair.source.path, &failure.line, vec![target])),
        }
    }
    for (path, line, targets) in grouped {
        let _ = writeln!(text, "  {} for {}: {line}", shown(path), targets.join(", "));
    }
    let mut by_source: BTreeMap<&Path, Vec<String>> = BTreeMap::new();
    for pair in compiled {
        by_source.entry(pair.source.path).or_default().push(pair.target.to_string());
    }
    let compiled: Vec<String> = by_source
        .iter()
        .map(|(path, targets)| format!("{} for {}", shown(path), targets.join(", ")))
        .collect();
    let compiled = if compiled.is_empty() { "nothing".to_owned() } else { compiled.join("; ") };
    let _ = writeln!(text, "compiled: {compiled}");
    if let Some((pair, first)) = failures.first() {
        let _ = write!(
            text,
            "{} for {}:\n{}\nThe command was: {}",
            shown(pair.source.path),
            pair.target,
            first.printed,
            first.command
        );
    }
    text
}
