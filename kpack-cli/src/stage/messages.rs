//! Reads Cargo's messages about what it built.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use cargo_metadata::{Artifact, BuildScript, Message, TargetKind};

use kpack_core::staging::MODULES_VARIABLE;
use kpack_core::{Error, ids};

/// The results of a build.
#[derive(Debug, Default)]
pub(super) struct Built {
    /// Executables and C-compatible dynamic libraries, each once.
    pub(super) binaries: Vec<BuiltBinary>,
    /// The packages with a build script.
    pub(super) scripts: Vec<Script>,
    /// The directories of the built packages, and whether each is local (not fetched by Cargo).
    pub(super) packages: Vec<(PathBuf, bool)>,
}

/// An executable or dynamic library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BuiltBinary {
    pub(super) path: PathBuf,
    /// `bin` or `lib`.
    pub(super) directory: &'static str,
}

impl BuiltBinary {
    /// A dynamic library at `path`; `None` for other files.
    pub(super) fn library(path: PathBuf) -> Option<Self> {
        let directory = match path.extension()?.to_str()? {
            "so" => "lib",
            // Windows looks for libraries beside programs.
            "dll" => "bin",
            _ => return None,
        };
        Some(Self { path, directory })
    }
}

/// A build script that ran.
#[derive(Debug)]
pub(super) struct Script {
    /// The package, by name and version.
    pub(super) package: String,
    pub(super) out_dir: PathBuf,
    /// The directories of libraries and of modules that it passed to Cargo.
    pub(super) directories: Vec<PathBuf>,
}

/// Reads the output of `cargo build` with `--message-format=json` or `json-render-diagnostics`.
pub(super) fn read(
    messages: impl BufRead,
    diagnostics: &mut dyn FnMut(&str),
) -> Result<Built, Error> {
    let place = Path::new("Cargo's messages");
    let mut built = Built::default();
    let mut finished = false;
    for message in Message::parse_stream(messages) {
        match message.map_err(|e| Error::io(place, "read", e))? {
            Message::CompilerArtifact(artifact) => built.add_artifact(artifact),
            Message::BuildScriptExecuted(script) => built.scripts.push(Script {
                package: package_name(&script.package_id.repr),
                directories: directories(&script),
                out_dir: script.out_dir.into(),
            }),
            Message::CompilerMessage(said) => {
                if let Some(text) = said.message.rendered {
                    diagnostics(&text);
                }
            }
            Message::BuildFinished(end) if !end.success => {
                return Err(Error::rejected(
                    ids::NOTHING_BUILT,
                    place,
                    "the build failed; there is nothing to stage",
                ));
            }
            Message::BuildFinished(_) => finished = true,
            _ => {}
        }
    }
    if !finished {
        return Err(Error::rejected(
            ids::NOTHING_BUILT,
            place,
            "the messages end before the build does (expected the output of `cargo build \
             --message-format=json-render-diagnostics`)",
        ));
    }
    if built.binaries.is_empty() {
        return Err(Error::rejected(
            ids::NOTHING_BUILT,
            place,
            "the build made no executable and no cdylib; there is nothing to stage",
        ));
    }
    Ok(built)
}

impl Built {
    fn add_artifact(&mut self, artifact: Artifact) {
        let manifest = artifact.manifest_path.as_std_path();
        let local = artifact.package_id.repr.starts_with("path+");
        let package = (manifest.parent().unwrap_or(Path::new("")).to_owned(), local);
        if !self.packages.contains(&package) {
            self.packages.push(package);
        }
        let is = |kind| !artifact.profile.test && artifact.target.kind.contains(&kind);
        for executable in artifact.executable.iter().filter(|_| is(TargetKind::Bin)) {
            self.add(BuiltBinary { path: executable.into(), directory: "bin" });
        }
        let files = artifact.filenames.iter().filter(|_| is(TargetKind::CDyLib));
        for library in files.filter_map(|file| BuiltBinary::library(file.into())) {
            self.add(library);
        }
    }

    fn add(&mut self, binary: BuiltBinary) {
        if !self.binaries.contains(&binary) {
            self.binaries.push(binary);
        }
    }
}

/// The directories of libraries, then of modules.
fn directories(script: &BuildScript) -> Vec<PathBuf> {
    let linked = script.linked_paths.iter().map(|path| without_kind(path.as_str()));
    let variables = script.env.iter();
    let modules = variables.filter(|(name, _)| name.starts_with(MODULES_VARIABLE));
    linked.chain(modules.map(|(_, directory)| directory.as_str())).map(PathBuf::from).collect()
}

/// Removes the kind of library from a search path such as `native=/usr/lib`.
fn without_kind(path: &str) -> &str {
    match path.split_once('=') {
        Some((kind, path)) if !kind.contains('/') => path,
        _ => path,
    }
}

/// `vec v0.1.0` for a package ID such as `path+file:///srv/vec#0.1.0` or `…#vec@0.1.0` (Cargo's
/// package ID specifications).
fn package_name(id: &str) -> String {
    let Some((source, fragment)) = id.rsplit_once('#') else {
        return id.to_owned();
    };
    match fragment.split_once('@') {
        Some((name, version)) => format!("{name} v{version}"),
        None => format!("{} v{fragment}", source.rsplit('/').next().unwrap_or(source)),
    }
}
