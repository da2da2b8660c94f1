//! `cargo xtask workflow`: runs `examples/workflow` as its readers do, and disturbs it. Each time the release has to be,
//! byte for byte, the one that kpack makes without it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use serde_json::json;
use walkdir::WalkDir;
use xshell::cmd;

use crate::containers::{Server, free_port};
use crate::process::{self, NotRun, shell, step};
use crate::repository;

/// The machines, and the targets that each builds for.
const MACHINES: [(&str, &[&str]); 3] = [
    ("linux-a", &["gfx1030", "gfx1100"]),
    ("linux-b", &["gfx90a"]),
    ("linux-c", &["gfx942"]),
];

/// The components that each machine builds.
const COMPONENTS: [&str; 2] = ["math_lib", "vec_lib"];

const SNAKEMAKE: &str = "snakemake>=9,<10";

/// What S3 needs: Snakemake's plugin, a client, and a server for tests.
const S3_TOOLS: [&str; 3] = ["snakemake-storage-plugin-s3", "boto3", "moto[server]"];

/// Options of `cargo xtask workflow`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also keep all files in S3, of a server on the loopback interface.
    #[arg(long)]
    s3: bool,
}

/// Runs the workflow on this machine: once undisturbed, then with kpack killed, Snakemake killed, and a machine missing.
///
/// # Errors
/// A release differs. [`NotRun`] if Snakemake cannot be installed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let kpack = repository::build_helper()?;
    let snakemake = install(options)?;
    let work = repository::empty_directory("workflow")?;
    build(&work)?;
    direct(&kpack, &work)?;
    let workflow = Workflow {
        kpack,
        snakemake,
        work,
    };
    workflow.undisturbed()?;
    workflow.kpack_killed()?;
    workflow.engine_killed()?;
    workflow.machine_missing()?;
    if options.s3 {
        workflow.in_s3()?;
    }
    Ok(())
}

/// Installs Snakemake where earlier runs did; returns its path.
fn install(options: &Options) -> Result<PathBuf> {
    let directory = repository::target_directory().join("workflow-tools");
    let program = directory.join("bin/snakemake");
    let more = if options.s3 { &S3_TOOLS[..] } else { &[] };
    if program.is_file() && (!options.s3 || directory.join("bin/moto_server").is_file()) {
        return Ok(program);
    }
    step("Installing Snakemake from the Python package index");
    // Debian's own Python installs pip nowhere.
    process::run!("python3 -m venv --without-pip {directory}")?;
    let python = directory.join("bin/python");
    match process::run!("pip3 --python {python} install --quiet {SNAKEMAKE} {more...}") {
        Ok(_) => Ok(program),
        Err(error) => bail!(NotRun(format!("Snakemake cannot be installed: {error:#}"))),
    }
}

/// What the machines built.
fn build(work: &Path) -> Result<()> {
    for (machine, targets) in MACHINES {
        for component in COMPONENTS {
            let artifact = work.join(format!("built/{machine}/{component}"));
            let library = artifact.join(format!("{component}/stage/lib/lib{component}.so"));
            let code = targets.iter().map(|target| code(target, component));
            FatLibrary::new()
                .wrapper(Storage::Plain, code)
                .build(&library)?;
            // S3 keeps no modes.
            fs::set_permissions(&library, fs::Permissions::from_mode(0o644))?;
            let list = format!("{component}/stage\n");
            fs::write(artifact.join("artifact_manifest.txt"), list)?;
        }
    }
    let groups = |names: &[&str]| json!({"architectures": names});
    let configuration = json!({
        "primary_shard": "linux-a",
        "shards": MACHINES.map(|(machine, _)| machine),
        "architecture_groups": {
            "radeon": groups(&["gfx1030", "gfx1100"]),
            "instinct": groups(&["gfx90a", "gfx942"]),
        },
        // The fixtures have names of temporary files in them.
        "validation": {"verify_generic_artifacts_match": false, "error_on_missing_architecture": true},
    });
    Ok(fs::write(
        work.join("packaging.json"),
        configuration.to_string(),
    )?)
}

/// The release, made without Snakemake and without packing the shards, in `direct/release`.
fn direct(kpack: &Path, work: &Path) -> Result<()> {
    step("Making the release directly");
    let _directory = shell().push_dir(work);
    for (machine, _) in MACHINES {
        process::run!(
            "{kpack} split --quiet --batch-artifact-parent-dir built/{machine} --output-dir direct/shards/{machine}"
        )?;
    }
    process::run!(
        "{kpack} recombine --quiet --input-shards-dir direct/shards --config packaging.json --output-dir direct/packages"
    )?;
    process::run!("{kpack} pack --quiet direct/packages --output-dir direct/release --run 1-linux")
        .map(drop)
}

/// Puts what was built into a new bucket.
const UPLOAD: &str = "
import boto3, os
s3 = boto3.client('s3', endpoint_url=os.environ['URL'])
s3.create_bucket(Bucket='bucket')
s3.upload_file('packaging.json', 'bucket', 'rocm/packaging.json')
for root, _, files in os.walk('built'):
    for name in files:
        s3.upload_file(os.path.join(root, name), 'bucket', 'rocm/' + os.path.join(root, name))
";

/// Gets the release, in `s3`.
const DOWNLOAD: &str = "
import boto3, os
s3 = boto3.client('s3', endpoint_url=os.environ['URL'])
os.mkdir('s3')
for entry in s3.list_objects_v2(Bucket='bucket', Prefix='rocm/release/')['Contents']:
    name = entry['Key'].rsplit('/', 1)[1]
    if not name.startswith('.'):
        s3.download_file('bucket', entry['Key'], 's3/' + name)
";

struct Workflow {
    kpack: PathBuf,
    snakemake: PathBuf,
    work: PathBuf,
}

impl Workflow {
    /// The command for all machines.
    fn command(&self, kpack: &Path) -> Command {
        self.command_for(kpack, &MACHINES.map(|(machine, _)| machine), "local")
    }

    /// The command, in the directory of the trees.
    fn command_for(&self, kpack: &Path, machines: &[&str], profile: &str) -> Command {
        let example = repository::root().join("examples/workflow");
        let machines = machines.join(",");
        let mut command = Command::new(&self.snakemake);
        command
            .arg("--snakefile")
            .arg(example.join("Snakefile"))
            .arg("--profile")
            .arg(example.join("profiles").join(profile))
            .arg("--directory")
            .arg(&self.work)
            .arg("--config")
            .arg(format!("machines={machines}"))
            .arg(format!("kpack={}", kpack.display()))
            .stdin(Stdio::null());
        command
    }

    /// Removes what earlier runs made.
    fn clean(&self) -> Result<()> {
        for name in ["shards", "merged", "release", ".snakemake"] {
            let path = self.work.join(name);
            if path.exists() {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// Runs it; returns whether it succeeded, and what it printed.
    fn try_run(&self, kpack: &Path) -> Result<(bool, String)> {
        let output = self.command(kpack).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.success(), text))
    }

    /// Runs it, and compares the release.
    fn run_to_its_end(&self) -> Result<()> {
        let (done, text) = self.try_run(&self.kpack)?;
        ensure!(done, "the workflow failed:\n{text}");
        let (one, other) = (self.work.join("direct/release"), self.work.join("release"));
        cmd!(
            shell(),
            "diff -r --exclude=.snakemake_timestamp {one} {other}"
        )
        .quiet()
        .run()?;
        ensure!(!self.work.join("merged").exists(), "scratch files are left");
        Ok(())
    }

    fn undisturbed(&self) -> Result<()> {
        step("Running the workflow");
        self.clean()?;
        self.run_to_its_end()
    }

    fn kpack_killed(&self) -> Result<()> {
        for command in ["pack", "recombine"] {
            step(&format!(
                "Killing `kpack {command}`, and running the workflow again"
            ));
            self.clean()?;
            let wrapper = self.work.join("killed-kpack");
            let script = format!(
                "#!/bin/sh\nif [ \"$1\" = {command} ]; then {kpack} \"$@\" & sleep 0.02; kill -9 $! $$; fi\nexec {kpack} \"$@\"\n",
                kpack = self.kpack.display()
            );
            fs::write(&wrapper, script)?;
            cmd!(shell(), "chmod +x {wrapper}").quiet().run()?;
            let (done, text) = self.try_run(&wrapper)?;
            ensure!(!done, "nothing was killed:\n{text}");
            ensure!(
                !self.work.join("release/index.json").exists(),
                "it is published"
            );
            self.run_to_its_end()?;
        }
        Ok(())
    }

    fn engine_killed(&self) -> Result<()> {
        step("Killing Snakemake, and running the workflow again");
        self.clean()?;
        let mut command = self.command(&self.kpack);
        let mut engine = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let started = Instant::now();
        while !self.work.join("shards").exists() && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        engine.kill()?;
        engine.wait()?;
        // Jobs that it had started go on.
        self.wait_for_jobs()?;
        let unlocked = self.command(&self.kpack).arg("--unlock").output()?;
        ensure!(unlocked.status.success(), "{unlocked:?}");
        self.run_to_its_end()
    }

    /// Puts what was built into a bucket, runs the workflow with that as its store, and compares the release there.
    fn in_s3(&self) -> Result<()> {
        step("Running the workflow with S3");
        self.clean()?;
        let tools = self.snakemake.parent().context("it is in a directory")?;
        let port = free_port()?;
        let mut moto = Command::new(tools.join("moto_server"));
        let _moto = Server::start(
            moto.args(["-H", "127.0.0.1", "-p"]).arg(port.to_string()),
            port,
        )?;
        let url = format!("http://127.0.0.1:{port}");
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("URL", &url),
        ];
        let python = |script: &str| {
            let mut python = Command::new(tools.join("python"));
            let python = python
                .args(["-c", script])
                .current_dir(&self.work)
                .envs(variables);
            let output = python.output()?;
            ensure!(output.status.success(), "{output:?}");
            Ok(())
        };
        python(UPLOAD)?;
        let machines = MACHINES.map(|(machine, _)| machine);
        let mut command = self.command_for(&self.kpack, &machines, "s3");
        command.args(["--default-storage-prefix", "s3://bucket/rocm"]);
        command
            .args(["--storage-s3-endpoint-url", &url])
            .envs(variables);
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the workflow failed:\n{text}");
        python(DOWNLOAD)?;
        let (one, other) = (self.work.join("direct/release"), self.work.join("s3"));
        cmd!(
            shell(),
            "diff -r --exclude=.snakemake_timestamp {one} {other}"
        )
        .quiet()
        .run()?;
        Ok(())
    }

    /// Waits until nothing is under a hidden name.
    fn wait_for_jobs(&self) -> Result<()> {
        let is_busy = || {
            let files = WalkDir::new(self.work.join("shards")).into_iter().flatten();
            files
                .into_iter()
                .any(|entry| entry.file_name().to_string_lossy().ends_with(".tmp"))
        };
        let started = Instant::now();
        while is_busy() {
            ensure!(
                started.elapsed() < Duration::from_secs(60),
                "a job does not end"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn machine_missing(&self) -> Result<()> {
        step("Running the workflow without a machine");
        self.clean()?;
        let (there, away) = (self.work.join("built/linux-c"), self.work.join("linux-c"));
        fs::rename(&there, &away)?;
        let (done, text) = self.try_run(&self.kpack)?;
        fs::rename(&away, &there)?;
        ensure!(!done && text.contains("built/linux-c"), "{text}");
        // Neither does the merge accept it, whoever calls it.
        let two = self
            .command_for(&self.kpack, &["linux-a", "linux-b"], "local")
            .output()?;
        let text = String::from_utf8_lossy(&two.stderr);
        ensure!(!two.status.success(), "two of three machines are a release");
        ensure!(text.contains("[missing-shard]"), "{text}");
        let released = self.work.join("release/index.json");
        ensure!(!released.exists(), "it is published");
        self.clean().context("the last files cannot be removed")
    }
}
