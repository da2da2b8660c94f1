//! `examples/workflow` as its readers run it, on this machine, undisturbed and disturbed. Each time the release has to be,
//! byte for byte, the one that kpack makes without it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::page::{Page, Reader};
use kpack_tests::process::{target_directory, try_run};
use kpack_tests::python;
use kpack_tests::require::{self, checked, fetched, find_program};
use rustix::process::{Pid, test_kill_process_group};
use serde_json::json;
use xshell::cmd;

use crate::support::{
    Daemon, Server, copy, free_port, output, prefix, root, run, shell, wait, work,
};

/// The machines, and the targets that each builds for.
const MACHINES: [(&str, &[&str]); 3] =
    [("linux-a", &["gfx1030", "gfx1100"]), ("linux-b", &["gfx90a"]), ("linux-c", &["gfx942"])];

/// The components that each machine builds.
const COMPONENTS: [&str; 2] = ["math_lib", "vec_lib"];

const SNAKEMAKE: &str = "snakemake>=9,<10";

/// How the page installs it.
const INSTALL: &str = "python3 -m venv env && env/bin/pip install 'snakemake>=9,<10'";

#[test]
#[ignore = "fetches Snakemake"]
fn undisturbed() -> Result<()> {
    with_workflow("workflow", &[], Workflow::undisturbed)
}

#[test]
#[ignore = "fetches Snakemake"]
fn as_the_page_says() -> Result<()> {
    with_workflow("workflow-page", &[], Workflow::as_the_page_says)
}

#[test]
#[ignore = "needs strace, and fetches Snakemake"]
fn kpack_killed_as_it_packs() -> Result<()> {
    with_workflow("workflow-pack", &[], |workflow| workflow.kpack_killed("pack"))
}

#[test]
#[ignore = "needs strace, and fetches Snakemake"]
fn kpack_killed_as_it_merges() -> Result<()> {
    with_workflow("workflow-merge", &[], |workflow| workflow.kpack_killed("recombine"))
}

#[test]
#[ignore = "fetches Snakemake"]
fn snakemake_killed() -> Result<()> {
    with_workflow("workflow-killed", &[], Workflow::engine_killed)
}

#[test]
#[ignore = "fetches Snakemake"]
fn without_a_machine() -> Result<()> {
    with_workflow("workflow-missing", &[], Workflow::machine_missing)
}

mod extra {
    use super::*;

    /// All files are in S3, of a server on the loopback interface.
    #[test]
    #[ignore = "fetches Snakemake, and tools for S3"]
    fn in_s3() -> Result<()> {
        let tools = ["snakemake-storage-plugin-s3", "boto3", "moto[server]"];
        with_workflow("workflow-s3", &tools, Workflow::in_s3)
    }

    /// All of it with Slurm, on this machine as the only node.
    #[test]
    #[ignore = "needs root, slurm-wlm, munge and a quarter of an hour, and fetches Snakemake"]
    fn with_slurm() -> Result<()> {
        if !(require::root()
            && require::tools(&["munged", "slurmctld", "slurmd", "srun", "strace"]))
        {
            return Ok(());
        }
        with_workflow("workflow-slurm", &["snakemake-executor-plugin-slurm"], |workflow| {
            let slurm = Some(Arc::new(Slurm::start(&workflow.work)?));
            let workflow = Workflow { slurm, ..workflow.clone() };
            workflow.undisturbed()?;
            workflow.kpack_killed("pack")?;
            workflow.kpack_killed("recombine")?;
            workflow.engine_killed()?;
            workflow.machine_missing()?;
            workflow.job_cancelled()
        })
    }
}

/// Runs a check with a workflow of its own, in a directory of this name, and with more Python packages.
fn with_workflow(
    name: &str,
    packages: &[&str],
    check: impl FnOnce(&Workflow) -> Result<()>,
) -> Result<()> {
    if !require::tools(&["python3", "pip3"]) {
        return Ok(());
    }
    let tools =
        if packages.is_empty() { "workflow-tools".to_owned() } else { format!("{name}-tools") };
    let Some(snakemake) = fetched(snakemake(&tools, packages)) else {
        return Ok(());
    };
    let work = work(name);
    for built in ["built", "packaging.json", "direct"] {
        copy(release().join(built), work.join(built));
    }
    check(&Workflow { kpack: prefix().join("bin/kpack"), snakemake, work, slurm: None })
}

/// Installs Snakemake and more into a directory of this name, unless an earlier run did; returns its path.
fn snakemake(name: &str, more: &[&str]) -> Result<PathBuf> {
    let directory = target_directory().join(name);
    fs::create_dir_all(target_directory())?;
    let lock = fs::File::create(directory.with_extension("lock"))?;
    lock.lock()?;
    let done = directory.join("done");
    if !done.is_file() {
        let packages = [&[SNAKEMAKE], more].concat();
        python::environment(&directory, &packages).context("Snakemake cannot be installed")?;
        fs::write(done, "")?;
    }
    Ok(directory.join("bin/snakemake"))
}

/// What the machines built, and the release of that, which is made without Snakemake.
fn release() -> &'static Path {
    static RELEASE: LazyLock<Result<PathBuf>> = LazyLock::new(|| {
        let work = work("workflow-release");
        build(&work)?;
        direct(&work)?;
        Ok(work)
    });
    RELEASE.as_ref().unwrap_or_else(|error| panic!("the release: {error:#}"))
}

/// What the machines built.
fn build(work: &Path) -> Result<()> {
    for (machine, targets) in MACHINES {
        for component in COMPONENTS {
            let artifact = work.join(format!("built/{machine}/{component}"));
            let library = artifact.join(format!("{component}/stage/lib/lib{component}.so"));
            let code = targets.iter().map(|target| code(target, component));
            FatLibrary::new().wrapper(Storage::Plain, code).build(&library)?;
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
        "validation": {"error_on_missing_architecture": true},
    });
    Ok(fs::write(work.join("packaging.json"), configuration.to_string())?)
}

/// The release, made without Snakemake and without packing the shards, in `direct/release`.
fn direct(work: &Path) -> Result<()> {
    let kpack = prefix().join("bin/kpack");
    let _directory = shell().push_dir(work);
    for (machine, _) in MACHINES {
        run!(
            "{kpack} artifact split --quiet --batch-artifact-parent-dir built/{machine} --output-dir direct/shards/{machine}"
        )?;
    }
    run!(
        "{kpack} artifact recombine --quiet --input-shards-dir direct/shards --config packaging.json --output-dir direct/packages"
    )?;
    run!("{kpack} artifact pack --quiet direct/packages --output-dir direct/release --run 1-linux")
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

#[derive(Clone)]
struct Workflow {
    kpack: PathBuf,
    snakemake: PathBuf,
    work: PathBuf,
    /// What runs the jobs, if not Snakemake itself.
    slurm: Option<Arc<Slurm>>,
}

impl Workflow {
    /// The command for all machines.
    fn command(&self, kpack: &Path) -> Command {
        let machines = MACHINES.map(|(machine, _)| machine);
        self.command_here(kpack, &machines)
    }

    /// The command with the profile for this machine or for Slurm.
    fn command_here(&self, kpack: &Path, machines: &[&str]) -> Command {
        let Some(slurm) = &self.slurm else {
            return self.command_for(kpack, machines, "local");
        };
        let mut command = self.command_for(kpack, machines, "slurm");
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = slurm.configuration.with_file_name("bin");
        command.env("PATH", format!("{}:{path}", programs.display()));
        command.env("SLURM_CONF", &slurm.configuration);
        command
    }

    /// The command, in the directory of the trees.
    fn command_for(&self, kpack: &Path, machines: &[&str], profile: &str) -> Command {
        let example = root().join("examples/workflow");
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
        self.compare()
    }

    /// Compares the release.
    fn compare(&self) -> Result<()> {
        let (one, other) = (self.work.join("direct/release"), self.work.join("release"));
        run!("diff -r --exclude=.snakemake_timestamp {one} {other}")?;
        ensure!(!self.work.join("merged").exists(), "scratch files are left");
        Ok(())
    }

    fn undisturbed(&self) -> Result<()> {
        self.clean()?;
        self.run_to_its_end()
    }

    /// By the commands of docs/many-machines.md, with the Snakemake that is there already.
    fn as_the_page_says(&self) -> Result<()> {
        let commands = Page::read("docs/many-machines.md").commands("python3 -m venv");
        ensure!(commands.contains(INSTALL) && INSTALL.contains(SNAKEMAKE), "{commands}");
        let mut reader = Reader::new(&self.work, &self.kpack);
        reader.replaced = vec![
            (INSTALL, String::new()),
            ("env/bin/snakemake", self.snakemake.display().to_string()),
            ("$CLONE", root().display().to_string()),
        ];
        reader.run(&commands);
        self.compare()
    }

    /// kpack is killed whenever a command has written everything, and nothing has its name.
    fn kpack_killed(&self, command: &str) -> Result<()> {
        if !require::tracing() {
            return Ok(());
        }
        self.clean()?;
        let wrapper = self.work.join("killed-kpack");
        let traces = self.work.join(format!("traces-{command}"));
        fs::create_dir(&traces)?;
        let script = format!(
            "#!/bin/sh\n[ \"$1 $2\" = 'artifact {command}' ] || exec {kpack} \"$@\"\n\
            exec strace -f -qq -e trace={RENAMES} -e inject={RENAMES}:signal=KILL:when=1 -o {traces}/$$ {kpack} \"$@\"\n",
            kpack = self.kpack.display(),
            traces = traces.display(),
        );
        fs::write(&wrapper, script)?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
        let (done, text) = self.try_run(&wrapper)?;
        ensure!(!done, "nothing was killed:\n{text}");
        let mut killed = 0;
        for trace in fs::read_dir(&traces)? {
            let trace = fs::read_to_string(trace?.path())?;
            ensure!(trace.contains("killed by SIGKILL"), "it was not killed: {trace}");
            killed += 1;
        }
        ensure!(killed > 0, "nothing was killed:\n{text}");
        ensure!(!self.work.join("release/index.json").exists(), "it is published");
        self.run_to_its_end()?;
        checked(&format!("killed {killed} times"));
        Ok(())
    }

    fn engine_killed(&self) -> Result<()> {
        self.clean()?;
        let mut engine = self.start()?;
        wait("no job starts", || match &self.slurm {
            None => Ok(self.work.join("shards").exists()),
            Some(slurm) => Ok(!slurm.jobs()?.is_empty()),
        })?;
        ensure!(engine.try_wait()?.is_none(), "it ended before it was killed");
        engine.kill()?;
        engine.wait()?;
        ensure!(!self.work.join("release").exists(), "it had done everything");
        // Jobs that it had started go on.
        let group = i32::try_from(engine.id()).ok().and_then(Pid::from_raw);
        let group = group.context("a process has a number")?;
        wait("a job does not end", || match &self.slurm {
            None => Ok(test_kill_process_group(group).is_err()),
            Some(slurm) => Ok(slurm.jobs()?.is_empty()),
        })?;
        try_run(self.command(&self.kpack).arg("--unlock"))?;
        self.run_to_its_end()
    }

    /// Puts what was built into a bucket, runs the workflow with that as its store, and compares the release there.
    fn in_s3(&self) -> Result<()> {
        self.clean()?;
        let tools = self.snakemake.parent().context("it is in a directory")?;
        let moto = Server::start(|port| {
            let mut moto = Command::new(tools.join("moto_server"));
            moto.args(["-H", "127.0.0.1", "-p"]).arg(port.to_string());
            Ok(moto)
        })?;
        let url = format!("http://127.0.0.1:{}", moto.port);
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("URL", &url),
        ];
        let python = |script: &str| {
            let mut python = Command::new(tools.join("python"));
            let python = python.args(["-c", script]).current_dir(&self.work).envs(variables);
            try_run(python).map(drop)
        };
        python(UPLOAD)?;
        let machines = MACHINES.map(|(machine, _)| machine);
        let mut command = self.command_for(&self.kpack, &machines, "s3");
        command.args(["--default-storage-prefix", "s3://bucket/rocm"]);
        command.args(["--storage-s3-endpoint-url", &url]).envs(variables);
        try_run(&mut command)?;
        python(DOWNLOAD)?;
        let (one, other) = (self.work.join("direct/release"), self.work.join("s3"));
        run!("diff -r --exclude=.snakemake_timestamp {one} {other}")?;
        Ok(())
    }

    /// Starts the engine in a process group of its own.
    fn start(&self) -> Result<Child> {
        let mut command = self.command(&self.kpack);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.process_group(0).spawn()?)
    }

    /// A job that is cancelled starts again by itself.
    fn job_cancelled(&self) -> Result<()> {
        let slurm = self.slurm.as_ref().context("there are jobs")?;
        self.clean()?;
        let mut engine = self.start()?;
        wait("no job runs", || Ok(slurm.first_running()?.is_some()))?;
        let job = slurm.first_running()?.context("a job runs")?;
        slurm.client("scancel", &[&job])?;
        let ended = engine.wait()?;
        let state = slurm.client("scontrol", &["show", "job", &job])?;
        ensure!(state.contains("JobState=CANCELLED"), "it was not cancelled: {state}");
        ensure!(ended.success(), "the workflow failed");
        self.compare()
    }

    fn machine_missing(&self) -> Result<()> {
        self.clean()?;
        let (there, away) = (self.work.join("built/linux-c"), self.work.join("linux-c"));
        fs::rename(&there, &away)?;
        let (done, text) = self.try_run(&self.kpack)?;
        fs::rename(&away, &there)?;
        ensure!(!done && text.contains("built/linux-c"), "{text}");
        // Neither does the merge accept it, whoever calls it.
        let two = self.command_here(&self.kpack, &["linux-a", "linux-b"]).output()?;
        let text = String::from_utf8_lossy(&two.stderr);
        ensure!(!two.status.success(), "two of three machines are a release");
        let report = fs::read_to_string(self.work.join("report.json"))?;
        ensure!(report.contains("\"missing-shard\""), "{report}\n{text}");
        let released = self.work.join("release/index.json");
        ensure!(!released.exists(), "it is published");
        self.clean().context("the last files cannot be removed")
    }
}

/// The system calls that give files their names.
const RENAMES: &str = "rename,renameat,renameat2";

/// A cluster of this machine alone. Its daemons end when this is dropped.
struct Slurm {
    configuration: PathBuf,
    /// The controller and the node are stopped before the daemon that signs their messages.
    _daemons: Vec<Daemon>,
}

impl Slurm {
    fn start(work: &Path) -> Result<Self> {
        let directory = work.join("slurm");
        for name in ["bin", "munge", "state", "spool"] {
            fs::create_dir_all(directory.join(name))?;
        }
        let key = directory.join("munge/key");
        fs::write(&key, [7; 128])?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let configuration = directory.join("slurm.conf");
        let (controller, node) = (free_port()?, free_port()?);
        let processors = std::thread::available_parallelism()?;
        let text = SLURM_CONF
            .replace("@DIRECTORY@", &directory.display().to_string())
            .replace("@HOST@", host.trim())
            .replace("@CONTROLLER@", &controller.to_string())
            .replace("@NODE@", &node.to_string())
            .replace("@PROCESSORS@", &processors.to_string());
        fs::write(&configuration, text)?;
        // Jobs do not get this variable, and are clients as well.
        let srun = find_program("srun").context("srun is not installed")?;
        let wrapper = directory.join("bin/srun");
        let (shown, srun) = (configuration.display(), srun.display());
        fs::write(&wrapper, format!("#!/bin/sh\nSLURM_CONF={shown} exec {srun} \"$@\"\n"))?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
        let daemon = |program: &str, arguments: &[&str]| -> Result<Daemon> {
            let log = fs::File::create(directory.join(program).with_extension("log"))?;
            let mut command = Command::new(program);
            command.args(arguments).env("SLURM_CONF", &configuration);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            Ok(Daemon(command.spawn()?))
        };
        let at = |name: &str| directory.join(name).display().to_string();
        let munge = ["key-file", "socket", "pid-file", "log-file", "seed-file"];
        let munge = munge.map(|name| {
            let file = if name == "key-file" { "key" } else { name };
            format!("--{name}={}", at(&format!("munge/{file}")))
        });
        let munge = Vec::from_iter(munge.iter().map(String::as_str));
        let munge = daemon("munged", &[&["--foreground", "--force"], &munge[..]].concat())?;
        let daemons = vec![daemon("slurmd", &["-D"])?, daemon("slurmctld", &["-D", "-c"])?, munge];
        let slurm = Self { configuration, _daemons: daemons };
        wait(&format!("no node is idle: see {}", at("")), || {
            let state = slurm.client("sinfo", &["-h", "-o", "%T"]);
            Ok(state.is_ok_and(|state| state.trim() == "idle"))
        })?;
        Ok(slurm)
    }

    /// Runs a client; returns what it printed.
    fn client(&self, program: &str, arguments: &[&str]) -> Result<String> {
        output(cmd!(shell(), "{program} {arguments...}").env("SLURM_CONF", &self.configuration))
    }

    /// The jobs that are not done.
    fn jobs(&self) -> Result<String> {
        self.client("squeue", &["-h", "-o", "%i"])
    }

    fn first_running(&self) -> Result<Option<String>> {
        let running = self.client("squeue", &["-h", "-t", "RUNNING", "-o", "%i"])?;
        Ok(running.lines().next().map(str::to_owned))
    }
}

/// Without accounting and control groups, which need more than this machine.
const SLURM_CONF: &str = "ClusterName=kpack
SlurmctldHost=@HOST@(127.0.0.1)
SlurmctldPort=@CONTROLLER@
SlurmdPort=@NODE@
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=@DIRECTORY@/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=3600
MailProg=/bin/true
StateSaveLocation=@DIRECTORY@/state
SlurmdSpoolDir=@DIRECTORY@/spool
SlurmctldPidFile=@DIRECTORY@/slurmctld.pid
SlurmdPidFile=@DIRECTORY@/slurmd.pid
SlurmctldLogFile=@DIRECTORY@/slurmctld.log
SlurmdLogFile=@DIRECTORY@/slurmd.log
NodeName=@HOST@ NodeAddr=127.0.0.1 CPUs=@PROCESSORS@ RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
";
