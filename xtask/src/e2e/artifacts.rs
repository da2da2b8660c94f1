//! Plays a CI and its packagers: three machines build for their GPUs and split the results. The shards
//! are recombined, copied into one root and run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{Storage, bundle, library_file};
use xshell::cmd;

use super::bundle_reader;
use super::check::Checker;
use super::embedded::assemble;
use super::reference::{CodeObject, CodeObjects, Reference};
use super::runtime::{Program, Runtime};
use super::table::Table;
use super::{contents, same_files};
use crate::{process, repository};

/// Each machine with its targets.
const SHARDS: [(&str, &[&str]); 3] = [
    ("linux-gfx110X", &["gfx1100", "gfx1101"]),
    ("linux-gfx90a", &["gfx90a:xnack+", "gfx90a:xnack-"]),
    ("linux-gfx942", &["gfx942", "gfx942:xnack-"]),
];

const CONFIGURATION: &str = r#"{
  "primary_shard": "linux-gfx110X",
  "architecture_groups": {
    "gfx110X": {
      "display_name": "Radeon RX 7000",
      "architectures": ["gfx1100", "gfx1101", "gfx11"]
    },
    "instinct": {
      "display_name": "Instinct MI200 and MI300",
      "architectures": ["gfx90a", "gfx90a:xnack+", "gfx90a:xnack-", "gfx942", "gfx942:xnack-"]
    }
  }
}
"#;

/// The library's translation units, with the storage of their bundles.
const UNITS: [(&str, Storage); 3] = [
    ("add", Storage::Plain),
    ("multiply", Storage::Zstd(2)),
    ("dot", Storage::Zstd(3)),
];

const BLAS: &str = "math-libs/BLAS/rocBLAS/stage";
const BLAS_LT: &str = "math-libs/BLAS/hipBLASLt/stage";
const SPARSE_LT: &str = "math-libs/hipSPARSELt/stage";
const MIOPEN: &str = "ml-libs/MIOpen/stage";
const AOTRITON: &str = "ml-libs/aotriton/stage";

/// hipBLASLt's transform kernels, for every target of a build.
const TRANSFORM: &str = "hipblasltTransform.hsaco";

/// Runs all steps; adds a line for each.
pub(super) fn check(runtime: &Runtime, helper: &Path, work: &Path, table: &mut Table) {
    let run = Run {
        runtime,
        helper,
        work,
    };
    process::step("Building and splitting artifacts on three machines");
    let reference = match run.shards() {
        Ok((reference, held)) => {
            table.add("artifacts of three machines, split", Ok(held));
            reference
        }
        Err(error) => return table.add("artifacts of three machines, split", Err(error)),
    };
    process::step("Recombining the shards, and copying the artifacts into one root");
    table.add("recombined", run.recombine());
    table.add("all artifacts in one root", run.overlay(&reference));
    table.add("one group's packages only", run.some_groups(&reference));
}

struct Run<'a> {
    runtime: &'a Runtime,
    helper: &'a Path,
    work: &'a Path,
}

impl Run<'_> {
    /// Builds and splits everything on every machine.
    fn shards(&self) -> Result<(Reference, String)> {
        let mut code: BTreeMap<(PathBuf, u32), CodeObjects> = BTreeMap::new();
        for (shard, targets) in SHARDS {
            let built = self.work.join("built").join(shard);
            let stage = built.join("blas_lib").join(BLAS);
            self.blas(&stage, targets, &mut code)?;
            self.tree(&built, targets)?;
            let (helper, output) = (self.helper, self.work.join("shards").join(shard));
            let split = cmd!(
                process::shell(),
                "{helper} split --batch-artifact-parent-dir {built} --output-dir {output} --unknown error"
            );
            process::output(split)?;
            self.verify(&output, Some(&built))?;
        }
        let mut reference = Reference::default();
        let fat = self
            .work
            .join("built")
            .join(SHARDS[0].0)
            .join("blas_lib")
            .join(BLAS);
        let scratch = self.work.join("scratch");
        let observation = self
            .runtime
            .run(&fat, &programs()[0], "gfx1100", &scratch)?;
        reference.add(&observation, |wrapper, _| {
            let known = code.get(wrapper).cloned();
            known.with_context(|| format!("{} is not what was built", wrapper.0.display()))
        })?;
        let artifacts = fs::read_dir(self.work.join("shards").join(SHARDS[0].0))?.count();
        let held = format!(
            "{} machines, {artifacts} artifacts of the first, each verified against the original",
            SHARDS.len()
        );
        Ok((reference, held))
    }

    fn recombine(&self) -> Result<String> {
        let (helper, work) = (self.helper, self.work);
        let configuration = work.join("packaging.json");
        fs::write(&configuration, CONFIGURATION)?;
        let (shards, output) = (work.join("shards"), work.join("packages"));
        let command = cmd!(
            process::shell(),
            "{helper} recombine --input-shards-dir {shards} --config {configuration} --output-dir {output}"
        );
        process::output(command)?;
        self.verify(&output, None)?;
        // The host files come from the first machine.
        let (shard, targets) = SHARDS[0];
        let (built, targets) = (work.join("built").join(shard), targets.join(","));
        let command = cmd!(
            process::shell(),
            "{helper} verify {output} --against {built} --arch {targets}"
        );
        process::output(command)?;
        let names = artifacts(&output)?;
        let expected = [
            "aotriton_lib_generic",
            "aotriton_lib_gfx110X",
            "aotriton_lib_instinct",
            "blas_lib_generic",
            "blas_lib_gfx110X",
            "blas_lib_instinct",
            "doc_lib_generic",
            "miopen_lib_generic",
            "miopen_lib_gfx110X",
            "miopen_lib_instinct",
        ];
        ensure!(
            names == expected,
            "expected the artifacts {expected:?}, found {names:?}"
        );
        let page = work.join("sizes.html");
        let built = work.join("built");
        process::run!("{helper} report {output} --before {built} --html {page}")?;
        Ok(format!(
            "{} artifacts, verified alone and against what the first machine built",
            names.len()
        ))
    }

    /// Copies all artifacts into one root, in two orders, and runs the programs on each GPU.
    fn overlay(&self, reference: &Reference) -> Result<String> {
        let mut names = artifacts(&self.work.join("packages"))?;
        let root = self.lay(&names, "root")?;
        names.reverse();
        let other = self.lay(&names, "other")?;
        same_files(&contents(&root)?, &contents(&other)?)?;
        self.verify(&root, None)?;
        self.has_code_of_all_machines(&root)?;
        let counts = self.checker(reference).check(&root)?;
        Ok(format!("{}, in any order", super::counted(counts)))
    }

    /// Checks that a file for all targets has the code of each machine.
    fn has_code_of_all_machines(&self, root: &Path) -> Result<()> {
        let file = root.join("lib/hipblaslt/library").join(TRANSFORM);
        let mut expected = CodeObjects::new();
        for target in SHARDS.iter().flat_map(|(_, targets)| *targets) {
            let code = CodeObject::of(&code_object("multiply", target)?);
            expected.insert((*target).to_owned(), code);
        }
        let found = bundle_reader::read(&file)?;
        ensure!(
            found == expected,
            "{}: expected the code of all machines, {:?}, found that for {:?}",
            file.display(),
            expected.keys(),
            found.keys()
        );
        Ok(())
    }

    /// Installs what a user of one kind of GPU needs.
    fn some_groups(&self, reference: &Reference) -> Result<String> {
        let names = artifacts(&self.work.join("packages"))?;
        let some: Vec<String> = names
            .into_iter()
            .filter(|name| !name.ends_with("_gfx110X"))
            .collect();
        let root = self.lay(&some, "some")?;
        self.verify(&root, None)?;
        let mut loaded = 0;
        for agent in ["gfx90a:sramecc+:xnack-", "gfx942:sramecc+:xnack-"] {
            loaded += self.checker(reference).observe(&root, agent)?;
        }
        Ok(format!("verified, {loaded} code objects loaded"))
    }

    fn checker<'a>(&'a self, reference: &'a Reference) -> Checker<'a> {
        Checker {
            runtime: self.runtime,
            helper: self.helper,
            programs: programs(),
            reference,
            scratch: self.work,
        }
    }

    fn verify(&self, path: &Path, against: Option<&Path>) -> Result<()> {
        let helper = self.helper;
        let against = against.map(|against| ["--against".into(), against.to_owned()]);
        let against: Vec<PathBuf> = against.into_iter().flatten().collect();
        process::run!("{helper} verify --quiet {path} {against...}")?;
        Ok(())
    }

    /// Copies the prefixes of artifacts into one root.
    fn lay(&self, names: &[String], root: &str) -> Result<PathBuf> {
        let root = self.work.join(root);
        fs::create_dir_all(&root)?;
        for name in names {
            let artifact = self.work.join("packages").join(name);
            for prefix in fs::read_to_string(artifact.join("artifact_manifest.txt"))?.lines() {
                let from = artifact.join(prefix).join(".");
                if from.is_dir() {
                    process::run!("cp -a {from} {root}")?;
                }
            }
        }
        Ok(root)
    }

    /// A library with three bundles and a program with one, like rocBLAS.
    fn blas(
        &self,
        stage: &Path,
        targets: &[&str],
        code: &mut BTreeMap<(PathBuf, u32), CodeObjects>,
    ) -> Result<()> {
        let build = self.work.join("build");
        for directory in [&build, &stage.join("lib"), &stage.join("bin")] {
            fs::create_dir_all(directory)?;
        }
        let mut unit = |name: &str, storage, wrapper: (&str, u32)| -> Result<PathBuf> {
            let entries: Vec<(String, Vec<u8>)> = targets
                .iter()
                .map(|target| Ok(((*target).to_owned(), code_object(name, target)?)))
                .collect::<Result<_>>()?;
            let known = code.entry((wrapper.0.into(), wrapper.1)).or_default();
            for (target, bytes) in &entries {
                known.insert(target.clone(), CodeObject::of(bytes));
            }
            assemble(name, &bundle(storage, &entries)?, &build)
        };
        let library = "lib/librocblas.so.5";
        let objects: Vec<PathBuf> = (0..)
            .zip(UNITS)
            .map(|(index, (name, storage))| unit(name, storage, (library, index)))
            .collect::<Result<_>>()?;
        let objects = &objects;
        let app = unit("app", Storage::Plain, (PROGRAM, 0))?;
        let sources = repository::root().join("tests/e2e/embedded");
        let stub = self.runtime.prefix.join("lib");
        let (output, source) = (stage.join(library), sources.join("vec.c"));
        process::run!(
            "cc -O2 -shared -fPIC -Wl,-soname,librocblas.so.5 -o {output} {source} {objects...} -L{stub} -lamdhip64"
        )?;
        link(&stage.join("lib/librocblas.so"), "librocblas.so.5")?;
        let (output, source, lib) = (
            stage.join(PROGRAM),
            sources.join("app.c"),
            stage.join("lib"),
        );
        let run_path = "$ORIGIN/../lib";
        process::run!(
            "cc -O2 -pie -fPIE -o {output} {source} {app} -L{lib} -lrocblas -L{stub} -lamdhip64 -Wl,-rpath,{run_path}"
        )?;
        // Two more modules, one of which has no program.
        let lt = stage
            .ancestors()
            .nth(4)
            .context("stage is in an artifact")?;
        for (prefix, name) in [
            (BLAS_LT, "libhipblaslt.so.1"),
            (SPARSE_LT, "libhipsparselt.so.0"),
        ] {
            let output = lt.join(prefix).join("lib").join(name);
            fs::create_dir_all(lt.join(prefix).join("lib"))?;
            let source = sources.join("vec.c");
            process::run!(
                "cc -O2 -shared -fPIC -Wl,-soname,{name} -o {output} {source} {objects...} -L{stub} -lamdhip64"
            )?;
        }
        Ok(())
    }

    /// Kernel databases like those of ROCm's libraries, and files for every GPU.
    fn tree(&self, built: &Path, targets: &[&str]) -> Result<()> {
        let blas = built.join("blas_lib");
        list(
            &blas,
            &[BLAS, BLAS_LT, SPARSE_LT, "math-libs/not-built/stage"],
        )?;
        let rocblas = blas.join(BLAS).join("lib/rocblas/library");
        let hipblaslt = blas.join(BLAS_LT).join("lib/hipblaslt/library");
        let hipsparselt = blas.join(SPARSE_LT).join("lib/hipsparselt/library");
        write(
            &rocblas.join("TensileLibrary_Type_SS_fallback.dat"),
            &library_file("gfx000", &[])?,
        )?;
        // One file for all targets of the build.
        let transform: Vec<(String, Vec<u8>)> = targets
            .iter()
            .map(|target| Ok(((*target).to_owned(), code_object("multiply", target)?)))
            .collect::<Result<_>>()?;
        let transform = bundle(Storage::Zstd(3), &transform)?;
        write(&hipblaslt.join(TRANSFORM), &transform)?;
        write(
            &blas.join(BLAS).join("include/rocblas/rocblas.h"),
            b"int rocblas;\n",
        )?;
        let miopen = built.join("miopen_lib");
        list(&miopen, &[MIOPEN])?;
        let aotriton = built.join("aotriton_lib");
        list(&aotriton, &[AOTRITON])?;
        for target in targets {
            let kernels = code_object("add", target)?;
            // One flat database, and one with a directory for each target.
            for (directory, stem) in [
                (&rocblas, format!("TensileLibrary_Type_SS_{target}")),
                (&hipsparselt, format!("TensileLibrary_SPMM_{target}")),
                (&hipblaslt.join(target), "TensileLibrary_HH_SH".to_owned()),
            ] {
                write(&directory.join(format!("{stem}.co")), &kernels)?;
                let library = library_file(target.split(':').next().unwrap_or(target), &[&stem])?;
                write(&directory.join(format!("{stem}.dat")), &library)?;
            }
            let processor = target.split(':').next().unwrap_or(target);
            let database = miopen.join(MIOPEN).join("share/miopen/db");
            for file in ["68.HIP.fdb.txt", "68.db.txt", "_ConvAsm1x1U.tn.model"] {
                write(&database.join(format!("{processor}{file}")), b"1x1=perf\n")?;
            }
            let images = match processor {
                "gfx1100" | "gfx1101" => "gfx11xx",
                other => other,
            };
            let directory = format!("lib/aotriton.images/amd-{images}/flash");
            let image = aotriton
                .join(AOTRITON)
                .join(directory)
                .join("attn_fwd.aks2");
            write(&image, images.as_bytes())?;
        }
        write(
            &miopen.join(MIOPEN).join("include/miopen/miopen.h"),
            b"int miopen;\n",
        )?;
        let header = aotriton.join(AOTRITON).join("include/aotriton/config.h");
        write(&header, b"int aotriton;\n")?;
        let doc = built.join("doc_lib");
        list(&doc, &["doc/stage"])?;
        write(&doc.join("doc/stage/share/doc/README"), b"For every GPU.\n")?;
        fs::create_dir_all(doc.join("doc/stage/share/empty"))?;
        link(&doc.join("doc/stage/share/doc/LIESMICH"), "README")
    }
}

const PROGRAM: &str = "bin/rocblas-bench";

fn programs() -> &'static [Program] {
    use std::sync::LazyLock;
    static PROGRAMS: LazyLock<[Program; 1]> = LazyLock::new(|| {
        [Program {
            executable: PROGRAM.into(),
            libraries: Vec::new(),
        }]
    });
    &*PROGRAMS
}

/// A real code object of unit `name` for `target`, or else of another unit.
fn code_object(name: &str, target: &str) -> Result<Vec<u8>> {
    let directory = repository::root().join("tests/fixtures/code-objects");
    let mut files = [name, "add", "app", "multiply", "dot"]
        .map(|name| directory.join(format!("{name}.{target}.hsaco")))
        .into_iter();
    let file = files.find(|file| file.is_file());
    let file = file.with_context(|| format!("no code object for {target}"))?;
    Ok(fs::read(file)?)
}

/// The names of the artifacts in a directory, sorted.
fn artifacts(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn list(artifact: &Path, prefixes: &[&str]) -> Result<()> {
    let text: String = prefixes
        .iter()
        .map(|prefix| format!("{prefix}\n"))
        .collect();
    write(&artifact.join("artifact_manifest.txt"), text.as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

fn link(path: &Path, to: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink(to, path).with_context(|| path.display().to_string())
}
