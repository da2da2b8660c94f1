//! The command lines for what somebody wants, with the values that he gave.

use std::collections::{BTreeMap, BTreeSet};
use std::env::current_exe;
use std::path::{Component, Path, PathBuf, absolute};

use clap::Command;
use kpack_core::gpus::agents;
use kpack_core::words::list;
use kpack_doctor::internal::{Loading, libraries, note};
use kpack_format::names::{GFXARCH, archive_ends};
use kpack_split::input::{LinkedBinary, walk};

use super::given::{Filter, Given, Input, Kind, find};
use super::words::{self, Intent};
use super::{command_of, explain, show, split};
use crate::inspect::{self, Content, SelectedCodeObjects};
use crate::module_name::default_module;

/// Commands, each of which runs if the one before succeeds.
pub(super) type Line = Vec<Vec<String>>;

/// What to run, and why not what was asked for.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Who does what kpack does not do.
    pub(super) instead: Option<String>,
    pub(super) lines: Vec<Line>,
}

/// More lines than this help nobody.
const MOST_LINES: usize = 3;
/// More programs than this are not one application.
const MOST_PROGRAMS: usize = 8;
/// More files than this are not named one by one.
const MOST_FILES: usize = 3;
/// The most entries of a directory that are read for an error.
const MOST_READ: usize = 2000;
/// In a command line, what passes the output on; a shell must read it.
pub(super) const PIPE: &str = "|";

/// The install prefix of distributions' packages.
const USR: &str = "/usr";

/// A value in a command line: words, or none.
trait Words {
    fn words(self) -> Vec<String>;
}

impl Words for &str {
    fn words(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl Words for Vec<String> {
    fn words(self) -> Vec<String> {
        self
    }
}

impl Words for Option<String> {
    fn words(self) -> Vec<String> {
        self.into_iter().collect()
    }
}

/// The words of a command line, with these values in place of each `{}`.
macro_rules! command {
    ($line:literal $(, $value:expr)* $(,)?) => { fill($line, vec![$(Words::words($value)),*]) };
}

fn fill(line: &str, values: Vec<Vec<String>>) -> Vec<String> {
    let mut values = values.into_iter();
    let words = line.split(' ').flat_map(|word| match word {
        "{}" => values.next().unwrap_or_default(),
        word => word.words(),
    });
    words.collect()
}

/// Plans what a person wants. kpack accepts each of its commands in the plan. If a path is in the way of what they would write,
/// they write to one with another name, or only those that read are in it.
pub(super) fn plan(given: &Given, kpack: &Command) -> (Plan, Option<String>) {
    let (plan, in_the_way) = plan_as_given(given, kpack);
    let renamed = in_the_way.as_deref().and_then(|path| with_free_name(given, path));
    if let Some((renamed, None)) = renamed.map(|given| plan_as_given(&given, kpack))
        && renamed.lines.iter().any(changes)
    {
        return (renamed, in_the_way);
    }
    (plan, in_the_way)
}

/// The same with another name for the output, if something else has this one.
fn with_free_name(given: &Given, taken: &str) -> Option<Given> {
    let path = Path::new(taken);
    let is_archive = path.parent().is_some_and(|above| above.ends_with(".kpack"));
    if is_archive || is_of_system(path) || given.intent == Some(Intent::Install) || !path.exists() {
        return None;
    }
    let (mut other, name) = (given.clone(), free(taken.trim_end_matches('/')));
    if given.packing.as_deref() == Some(taken) {
        other.packing = Some(name);
    } else {
        other.into_directory &= Path::new(taken).is_dir();
        other.output = Some(name);
    }
    Some(other)
}

fn plan_as_given(given: &Given, kpack: &Command) -> (Plan, Option<String>) {
    let is_wheel = given.commands.iter().any(|name| name == "wheel");
    let inputs = given.inputs.iter().filter(|input| input.kind != Kind::Other);
    let inputs = inputs.flat_map(|input| match input.kind {
        Kind::Directory => wheels_in(input, is_wheel),
        _ => vec![input.clone()],
    });
    let mut inputs = Vec::from_iter(inputs);
    if is_wheel && given.inputs.is_empty() && given.rest.is_empty() {
        let mut places = [".", "dist"].iter().map(|place| wheels_in(&Input::at(place), true));
        inputs.extend(places.find(|found| found[0].kind == Kind::Wheel).into_iter().flatten());
    }
    let mut planner =
        Planner { given, inputs, targets: Vec::new(), before: Line::new(), after: Line::new() };
    planner.targets = planner.targets();
    let is_readable = |input: &Input| !matches!(input.kind, Kind::Debian | Kind::Rpm | Kind::Zip);
    let reads = !planner.inputs.is_empty() && planner.inputs.iter().all(is_readable);
    let reading = if reads { planner.show("show") } else { Vec::new() };
    let mut plan = planner.plan();
    let is_answer = plan.lines.is_empty() && plan.instead.is_some();
    // Each is for another file, or they are alternatives.
    let last = |line: &Line| line.last().and_then(|words| words.get(1)).cloned();
    if plan.lines.len() > MOST_LINES
        && plan.lines.iter().all(|line| last(line) == last(&plan.lines[0]))
    {
        plan.lines = vec![plan.lines.concat()];
    }
    plan.lines.truncate(MOST_LINES);
    plan.lines.retain_mut(|line| add_options(line, given, kpack));
    let changing = plan.lines.iter().filter(|line| changes(line));
    let in_the_way = in_the_way(changing.flatten()).cloned();
    if given.is_doubtful || in_the_way.is_some() {
        plan.lines.retain(|line| !changes(line));
    }
    let is_typed = !given.commands.is_empty() || given.intent == Some(Intent::Cmake);
    if plan.lines.is_empty() && !is_typed && !is_answer {
        let command = given.intent.map_or("show", words::command);
        plan.lines = [reading, lines(command!("kpack help {}", command))].concat();
    }
    let for_programs = plan.lines.first().and_then(|line| for_programs(line, given));
    let asks =
        matches!(given.intent, Some(Intent::Gpus | Intent::List | Intent::Report | Intent::Show));
    match (for_programs, given.filter) {
        (Some(line), Some(_)) => plan.lines[0] = line,
        (Some(line), None) if asks && is_piped() => plan.lines.insert(1, line),
        _ => {}
    }
    if let (true, Some(output), [line]) = (asks, &given.output, &mut plan.lines[..]) {
        write_to(line, output);
    }
    (plan, in_the_way)
}

/// A line that prints what another one does as JSON, or what is wanted of it.
fn for_programs(line: &Line, given: &Given) -> Option<Line> {
    let [words] = &line[..] else { return None };
    let reads = |command: &str| ["list", "report", "show"].contains(&command);
    if words[0] != "kpack" || !words[1..].iter().take(2).any(|word| reads(word)) {
        return None;
    }
    let is_json = words.iter().any(|word| word == "--json");
    if is_json && given.filter.is_none() {
        return None;
    }
    let are_all = |kind| given.inputs.iter().all(|input| input.kind == kind);
    let filter = given.filter.and_then(|filter| match filter {
        Filter::Targets if words[1] == "wheel" => {
            Some("[.[] | (.targets + .fat_targets)[]] | unique[]")
        }
        Filter::Targets => Some("[.. | .target? // empty] | unique[]"),
        Filter::Largest if words[1] == "report" => {
            Some(r#".rows | sort_by(-.after)[] | "\(.after) \(.target // .what)""#)
        }
        // Fat binaries have the former, split ones the latter.
        Filter::Largest if are_all(Kind::Binary) => {
            Some(r#"(.targets // .files) | sort_by(-.size)[] | "\(.size) \(.target)""#)
        }
        Filter::Largest if given.inputs.len() == 1 && are_all(Kind::Directory) => {
            Some(r#"sort_by(-.size)[] | "\(.size) \(.path)""#)
        }
        Filter::Largest => None,
    });
    let filter = filter.map(|filter| command!("{} jq -r {}", PIPE, vec![filter.to_owned()]));
    let json = (!is_json).then(|| "--json".to_owned());
    Some(vec![command!("{} {} {}", words.clone(), json, filter.unwrap_or_default())])
}

/// Lets the last command of a line write to a file what it prints.
fn write_to(line: &mut Line, output: &str) {
    let Some(words) = line.last_mut() else { return };
    let output = &*free(output);
    if words[1] == "report" && output.ends_with(".html") {
        return words.extend(command!("--html {}", output));
    }
    if output.ends_with(".json") && !words.iter().any(|word| word == "--json") {
        words.push("--json".to_owned());
    }
    words.extend(command!("{} tee {}", PIPE, output));
}

/// Whether another program reads what kpack prints.
fn is_piped() -> bool {
    #[cfg(windows)]
    return false;
    #[cfg(not(windows))]
    rustix::fs::fstat(std::io::stdout())
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo())
}

/// The first path that commands must not write to: it is there, or the system's, or nested with what they read, or two write to
/// it.
fn in_the_way<'a>(mut commands: impl Iterator<Item = &'a Vec<String>>) -> Option<&'a String> {
    let mut written = BTreeSet::new();
    commands.find_map(|words| {
        // An image is trimmed as a whole.
        let is_image = |path: &&String| words[1] == "trim" && *path == "/usr";
        let value = |name| words.iter().skip_while(|word| *word != name).nth(1);
        let into = value("--output-dir");
        let to = match (&*words[0], &*words[1]) {
            ("cp", _) => words.last(),
            (_, "create") => words.get(2),
            ("tar", _) => words.get(2),
            ("python3", _) => words.get(4),
            ("dpkg-deb", "--root-owner-group") => words.last(),
            ("pip", _) => value("--target"),
            _ => value("--output").or(into),
        };
        let is_free = |path: &Path| {
            let is_empty = || path.read_dir().is_ok_and(|mut all| all.next().is_none());
            let whole = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
            let to = whole(path);
            let nested = |from: &Path| {
                let from = whole(from);
                to.starts_with(&from) || from.starts_with(&to)
            };
            // `.` is the directory after `-C` to tar.
            let read = if words[0] == "tar" { &words[4..5] } else { words };
            let mut read = read.iter().map(Path::new).filter(|from| from.is_dir() && *from != path);
            !to.components().any(|part| part == Component::ParentDir)
                && !read.any(nested)
                && (path.symlink_metadata().is_err() || is_empty())
        };
        let mut system = words.iter().filter(|path| is_of_system(path.as_ref()));
        let system = system.find(|path| !is_image(path));
        system.or(to.filter(|to| !is_free(to.as_ref()) || !(written.insert(*to) || into.is_some())))
    })
}

fn is_of_system(path: &Path) -> bool {
    const OF_SYSTEM: &[&str] = &[
        "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/proc", "/root", "/sys",
        "/usr", "/var",
    ];
    let real = path.canonicalize();
    real.is_ok_and(|real| OF_SYSTEM.iter().any(|own| real == Path::new(own)))
}

/// Whether a line writes something, so that it must be what was meant.
fn changes(line: &Line) -> bool {
    const READING: &[&str] = &["doctor", "explain", "help", "list", "report", "show", "verify"];
    line.iter().any(|words| {
        let reads = words.get(1).is_some_and(|command| READING.contains(&&**command));
        let reads_wheel = words.get(1..3).is_some_and(|two| two[0] == "wheel" && two[1] != "split");
        words[0] != "kpack" || !(reads || reads_wheel)
    })
}

/// Adds the given options that the last command of kpack's has as well; returns whether kpack accepts all of its commands.
fn add_options(line: &mut Line, given: &Given, kpack: &Command) -> bool {
    let is_accepted = |words: &Vec<String>| words[0] != "kpack" || accepts(kpack, words);
    if let Some(last) = line.iter_mut().rfind(|command| command[0] == "kpack") {
        let plain = last.clone();
        let path = command_of(&last[1..], kpack);
        let command = path.last().copied().unwrap_or(kpack);
        let options = BTreeSet::from_iter(&given.options);
        let mut are_all_known = true;
        for option in options {
            match find(command, &option[0]).or_else(|| find(kpack, &option[0])) {
                Some(_) if !plain.contains(&option[0]) => last.extend_from_slice(option),
                Some(_) => {}
                // All commands use all processors.
                None => {
                    are_all_known &= ["-j", "--jobs"].iter().any(|jobs| option[0].starts_with(jobs))
                }
            }
        }
        if !are_all_known && changes(line) {
            return false;
        }
        let Some(last) = line.iter_mut().rfind(|command| command[0] == "kpack") else {
            return true;
        };
        if !is_accepted(last) {
            *last = plain;
            // Without the options, it may change something else.
            return !changes(line) && line.iter().all(is_accepted);
        }
    }
    line.iter().all(is_accepted)
}

/// Whether kpack runs this, or prints help.
pub(super) fn accepts(kpack: &Command, words: &[String]) -> bool {
    let parsed = kpack.clone().try_get_matches_from(words);
    parsed.map_or_else(|error| !error.use_stderr(), |_| true)
}

struct Planner<'a> {
    given: &'a Given,
    inputs: Vec<Input>,
    targets: Vec<String>,
    /// The commands that make the inputs.
    before: Line,
    /// The commands that make packages of them again.
    after: Line,
}

impl Planner<'_> {
    fn plan(mut self) -> Plan {
        use Intent::*;
        let given = self.given;
        let mut intent = given.intent.unwrap_or(Show);
        if let Some(text) = self.error_text() {
            let mut plan = one(command!("kpack explain {}", &*text));
            plan.lines.extend(if self.inputs.is_empty() { Vec::new() } else { self.doctor() });
            return plan;
        }
        match intent {
            _ if given.wants_help && given.intent.is_some() => {
                return one(command!("kpack help {}", words::command(intent)));
            }
            Cmake => return cmake(),
            Version => return one(command!("kpack --version")),
            Split | Trim => {}
            _ if given.only_says && intent.writes() => intent = Show,
            _ => {}
        }
        self.unpack(intent);
        if self.inputs.is_empty() && self.before.is_empty() {
            if given.intent.is_none() && given.word.is_some() && given.targets.is_empty() {
                return one(command!("kpack help"));
            }
            if given.commands.first().is_some_and(|name| name == "wheel") {
                return one(command!("kpack help wheel"));
            }
            // The values of these options are inputs as well.
            let is_value =
                |option: &Vec<String>| option.get(1).is_some_and(|value| Path::new(value).exists());
            if given.commands.first().is_some_and(|name| name == "artifact")
                || given.options.iter().any(is_value)
            {
                return Plan::default();
            }
            let is_named = !(given.rest.is_empty() && given.inputs.is_empty());
            // Like other tools, in this directory.
            let here = match intent {
                Join => !split_here().is_empty(),
                Split | Trim => has_code(".".as_ref()),
                Bundle | Stage => true,
                _ => !intent.writes(),
            } && (given.output.is_none() || !matches!(intent, Join | Split | Trim));
            if (is_named || !here) && intent != Install {
                let command = given.intent.map(words::command);
                return command
                    .map_or_else(Plan::default, |name| one(command!("kpack help {}", name)));
            }
            // Without a path, these are about what is installed, unless somebody wants code for what is here.
            let is_here = match intent {
                Install => !split_here().is_empty(),
                _ => !matches!(intent, Doctor | Gpus | Build | Repair),
            };
            if is_here {
                self.inputs.push(Input::at("."));
            }
        }
        let are_trees =
            self.inputs.len() > 1 && self.inputs.iter().all(|input| input.kind.is_tree());
        if given.word.as_deref() == Some("add") && are_trees {
            intent = Merge;
        }
        let adds = given.word.as_deref() == Some("add")
            && !self.of(Kind::Binary).is_empty()
            && self.of(Kind::Archive).is_empty();
        if adds {
            intent = Embed;
        }
        let is_wheel = given.intent.is_none() && given.commands.iter().any(|name| name == "wheel");
        let lines = match intent {
            _ if is_wheel => [self.split(), self.show("show")].concat(),
            _ if intent.writes() && self.makes_archive() => self.pack(),
            Build => self.build(),
            Repair if !self.of(Kind::Wheel).is_empty() => self.split(),
            Doctor | Repair => self.doctor(),
            Libraries => self.libraries(),
            Pack | Compress | Extract if self.packs_tree() => {
                let line = given.packing.as_deref().and_then(|to| pack(to, &self.inputs[0].path));
                line.map_or_else(Vec::new, lines)
            }
            Join if self.is_nothing_split() => {
                if self.is_trimmed() {
                    self.doctor()
                } else {
                    self.show("show")
                }
            }
            Embed if adds => self.show("list"),
            Embed if self.of(Kind::Code).is_empty() => self.join(),
            Bundle if self.are_split() && self.inputs.iter().all(Input::is_library) => self.join(),
            Bundle if self.of(Kind::Code).is_empty() => self.stage(),
            Pack | Compress if self.packs_programs() => self.stage(),
            // `dpkg -c` and others list with the option that creates elsewhere.
            Pack if given.word.is_none() && self.of(Kind::Code).is_empty() => self.show("list"),
            Bundle | Compress | Embed | Pack => self.pack(),
            Compare => self.compare(),
            // Its code is in archives, and who unpacks a binary wants it back.
            Extract if self.are_split() && self.targets.is_empty() => self.join(),
            Extract => self.extract(),
            Gpus if self.inputs.is_empty() => {
                let known = lines(command!("kpack targets --list"));
                let own = has_gpu().then(|| lines(command!("kpack doctor --print-arch")));
                own.into_iter().flatten().chain(known).collect()
            }
            Install if given.output.is_some() && !self.of(Kind::Binary).is_empty() => self.stage(),
            Install => self.install(),
            // A binary and its archives are joined.
            Merge if self.inputs.len() > 1 && self.of(Kind::Binary).len() != 1 => self.merge(),
            Join | Merge => self.join(),
            List => self.show("list"),
            Remove | Trim => self.trim(),
            Report => self.report(),
            Show | Gpus if self.targets.is_empty() || !self.of(Kind::Wheel).is_empty() => {
                self.show("show")
            }
            // Whether there is code for a GPU.
            Show | Gpus => [self.verify(), self.show("show")].concat(),
            Split => self.split(),
            Stage => self.stage(),
            Verify => self.verify(),
            Cmake | Explain | Version => Vec::new(),
        };
        let around = |line: Line| {
            let packed = given.packing.as_deref().zip(given.output.as_deref());
            let packed = packed.filter(|(_, from)| {
                line.iter().flatten().any(|word| Path::new(word).starts_with(from))
            });
            let packed = packed.and_then(|(to, from)| pack(to, from));
            let packed = Vec::from_iter(packed);
            [&self.before[..], &line, &self.after, &packed].concat()
        };
        // What a line has changed would be unpacked over.
        let is_one = !self.before.is_empty() && lines.len() > 1 && lines.iter().all(changes);
        let lines = if is_one { vec![lines.concat()] } else { lines };
        let lines = lines.into_iter().map(around);
        let instead = match intent {
            _ if !self.of(Kind::Wheel).is_empty()
                && !self.targets.is_empty()
                && (is_wheel || matches!(intent, Trim | Split | Repair)) =>
            {
                let text = format!(
                    "kpack splits a wheel for all GPUs; users then choose theirs, as with {}",
                    self.pip_install()
                );
                return Plan { instead: Some(text), lines: lines.collect() };
            }
            Split
                if given
                    .inputs
                    .iter()
                    .any(|input| matches!(input.kind, Kind::Debian | Kind::Rpm)) =>
            {
                words::PACKAGES
            }
            Pack | Compress | Extract if self.packs_tree() => {
                "kpack packs no directories, but tar and zip do"
            }
            Join if self.is_nothing_split() && self.is_trimmed() => words::TRIMMED,
            Join if self.is_nothing_split() => {
                let verb = if self.inputs.len() == 1 { "is" } else { "are" };
                let text = format!("{} {verb} not split", list(self.paths()));
                return Plan { instead: Some(text), lines: lines.collect() };
            }
            Embed if adds => {
                "kpack adds no code for other GPUs; compile for them with `--offload-arch`, once per GPU"
            }
            Gpus if self.inputs.is_empty() && !has_gpu() => {
                "kpack finds no GPU here that ROCm can use; docs/gpus.md lists GPUs and their targets"
            }
            Build => "kpack does not compile; the build tool does, before kpack",
            Embed => {
                "only a compiler puts code objects into binaries; kpack stores them in archives"
            }
            Compress | Pack if !self.of(Kind::Archive).is_empty() => {
                "archives are compressed already; `kpack trim` removes those for other GPUs, and `kpack split` makes smaller ones with `--level 19`, `--strip-debug` or fewer targets (`--arch`)"
            }
            Bundle | Merge if !self.of(Kind::Code).is_empty() => {
                "`clang-offload-bundler` makes bundles; kpack stores code objects in archives, one for each GPU target"
            }
            Merge if self.inputs.len() > 1 && self.of(Kind::Archive).len() == self.inputs.len() => {
                "archives are not merged; put those for several GPUs into the same directory"
            }
            Merge if are_trees => {
                "kpack merges artifacts (docs/artifacts.md), but not install trees; compile one tree for all GPUs"
            }
            Trim if lines.len() > 1 && given.commands.is_empty() => {
                "`kpack split` moves GPU code into archives beside the files; `kpack trim` removes the code for other GPUs"
            }
            Trim if !self.of(Kind::Wheel).is_empty() => {
                "a wheel is not trimmed, but split; users then install the part for their GPU"
            }
            Install if !self.of(Kind::Wheel).is_empty() => "kpack installs nothing, pip does",
            Install if self.of(Kind::Archive).is_empty() && given.output.is_none() => {
                "kpack installs nothing; `kpack doctor` prints the command that does"
            }
            Install if given.output.is_none() => {
                "kpack installs nothing; `kpack show` of a binary says in which directory its archives must be"
            }
            _ => return Plan { instead: None, lines: lines.collect() },
        };
        Plan { instead: Some(instead.to_owned()), lines: lines.collect() }
    }

    /// Whether code objects go into an archive, whatever the word for that is.
    fn makes_archive(&self) -> bool {
        let is_archive = |output: &String| output.ends_with(".kpack");
        !self.of(Kind::Code).is_empty() && self.given.output.as_ref().is_some_and(is_archive)
    }

    fn is_nothing_split(&self) -> bool {
        let may_be = |input: &Input| matches!(input.kind, Kind::Binary | Kind::Directory);
        self.before.is_empty()
            && self.inputs.iter().all(|input| may_be(input) && !is_split(input.path.as_ref()))
    }

    fn is_trimmed(&self) -> bool {
        let has_note = |path: &Path| path.join(note::NAME).is_file();
        let has_note = |input: &Input| Path::new(&input.path).ancestors().take(2).any(has_note);
        self.inputs.iter().any(has_note)
    }

    /// Whether a directory goes into a file as it is.
    fn packs_tree(&self) -> bool {
        let is_tree = |input: &Input| input.kind == Kind::Directory;
        self.given.packing.is_some() && self.inputs.len() == 1 && self.inputs.iter().all(is_tree)
    }

    /// Whether programs are packed with what they need: `kpack split` changes nothing without code, and makes no single file.
    fn packs_programs(&self) -> bool {
        self.are_programs() && (self.given.packing.is_some() || self.there().is_empty())
    }

    fn are_programs(&self) -> bool {
        let is_program = |input: &Input| input.kind == Kind::Binary && !input.is_library();
        !self.inputs.is_empty() && self.inputs.iter().all(is_program)
    }

    fn are_split(&self) -> bool {
        !self.inputs.is_empty() && self.inputs.iter().all(|input| is_split(input.path.as_ref()))
    }

    /// The targets whose code is wanted: those that were named, or all others that are there.
    fn targets(&self) -> Vec<String> {
        let named = &self.given.targets;
        if !self.given.removes || named.is_empty() {
            return named.clone();
        }
        let is_exact = named.iter().any(|target| target.contains(':'));
        let name = |target: String| match target.split_once(':') {
            Some((processor, _)) if !is_exact => processor.to_owned(),
            _ => target,
        };
        let there = BTreeSet::from_iter(self.there().into_iter().map(name));
        there.into_iter().filter(|target| !named.contains(target)).collect()
    }

    /// The targets that there is code for.
    fn there(&self) -> BTreeSet<String> {
        let is_small = |input: &&Input| {
            walk(input.path.as_ref()).into_iter().take(MOST_READ).count() < MOST_READ
        };
        let small = self.inputs.iter().filter(is_small);
        small.flat_map(|input| show::targets_of(input.path.as_ref())).collect()
    }

    /// What `kpack explain` explains.
    fn error_text(&self) -> Option<String> {
        let given = self.given;
        let word = given.word.as_ref().filter(|_| given.intent.is_none());
        let words = word.into_iter().chain(&given.rest).skip_while(|word| words::is_filler(word));
        let text = Vec::from_iter(words.cloned()).join(" ");
        let may_be = matches!(given.intent, Some(Intent::Explain | Intent::Doctor) | None);
        (may_be && explain::knows(&text)).then_some(text)
    }

    /// Plans to unpack packages, and goes on with the directories.
    fn unpack(&mut self, intent: Intent) {
        let trims = intent == Intent::Trim && !self.targets.is_empty();
        let rebuilds = trims
            && !self.given.only_says
            && self.given.inputs.iter().all(|input| input.kind == Kind::Debian);
        let mut names = BTreeSet::new();
        for input in std::mem::take(&mut self.inputs) {
            let path = &*input.path;
            let stem = stem(path);
            // The versions and architectures of packages follow their names.
            let name = match input.kind {
                Kind::Debian => stem.split('_').next(),
                Kind::Rpm => stem.rsplitn(3, '-').last(),
                _ => None,
            };
            let mut directory = free(name.unwrap_or(&stem));
            // Two versions of a package.
            if !names.insert(directory.clone()) {
                directory = free(&stem);
            }
            let to = &*directory;
            let package = match &self.given.output {
                None => Some(free(&format!("{to}-{}.deb", self.targets.join("-")))),
                output => output.clone().filter(|output| output.ends_with(".deb")),
            };
            match input.kind {
                Kind::Debian if rebuilds && package.is_some() => {
                    self.before.push(command!("dpkg-deb -R {} {}", path, to));
                    // The sums are stale, and dpkg computes missing ones. Two trimmed packages must not both install the note.
                    let wrong = ["DEBIAN/md5sums", note::NAME].map(|name| format!("{to}/{name}"));
                    self.after.push(command!("rm -f {}", wrong.to_vec()));
                    self.after.extend(package.as_deref().and_then(directory_above));
                    self.after.push(command!("dpkg-deb --root-owner-group -b {} {}", to, package));
                }
                Kind::Debian => self.before.push(command!("dpkg-deb -x {} {}", path, to)),
                Kind::Rpm => self.before.extend([
                    command!("mkdir {}", to),
                    command!("rpm2cpio {} | cpio -idmD {}", path, to),
                ]),
                Kind::Zip => self.before.push(command!("unzip {} -d {}", path, to)),
                Kind::Wheel if intent == Intent::Extract => {
                    let to = self.given.output.as_deref().unwrap_or(to);
                    self.before.push(command!("unzip {} -d {}", path, to));
                    continue;
                }
                _ => {
                    self.inputs.push(input);
                    continue;
                }
            }
            let has_prefix = matches!(intent, Intent::Join | Intent::Split | Intent::Trim);
            if has_prefix && !trims && input.kind != Kind::Zip {
                directory += USR;
            }
            self.inputs.push(Input { path: directory, kind: Kind::Directory });
        }
    }

    fn of(&self, kind: Kind) -> Vec<String> {
        let inputs = self.inputs.iter().filter(|input| input.kind == kind);
        inputs.map(|input| input.path.clone()).collect()
    }

    fn paths(&self) -> Vec<String> {
        self.inputs.iter().map(|input| input.path.clone()).collect()
    }

    /// `--arch` with the targets, if some were named.
    fn arch(&self) -> Vec<String> {
        let targets = &self.targets;
        if targets.is_empty() { Vec::new() } else { command!("--arch {}", &*targets.join(",")) }
    }

    fn dry_run(&self) -> Option<String> {
        self.given.only_says.then(|| "--dry-run".to_owned())
    }

    /// The output, or else a new name.
    fn output(&self, default: &str) -> Vec<String> {
        vec![self.given.output.clone().unwrap_or_else(|| free(default))]
    }

    /// Where a copy of an input goes, if an output was named.
    fn copy_of(&self, input: &Input) -> Option<String> {
        let output = self.given.output.as_ref().filter(|_| !self.given.only_says)?;
        if output.ends_with(".kpack") || !self.after.is_empty() {
            return None;
        }
        let name = Path::new(&input.path).file_name()?.to_string_lossy();
        let directory = output.trim_end_matches('/');
        // What has no extension is not the name of a library.
        let is_directory = self.given.into_directory
            || Path::new(output).is_dir()
            || self.inputs.len() == 1
                && !self.given.commands.iter().any(|name| name == "join")
                && name.contains('.')
                && Path::new(output).extension().is_none();
        let is_inside = input.is_file() && is_directory;
        Some(if is_inside { format!("{directory}/{name}") } else { directory.to_owned() })
    }

    /// Where to work on an input: on a copy in the output, because the command replaces files.
    fn place(&self, input: &Input, line: &mut Line) -> Vec<String> {
        let path = &*input.path;
        let how = match Path::new(path).is_symlink() {
            true if input.is_file() => "-aL",
            true => "-aH",
            false => "-a",
        };
        let Some(copy) = self.copy_of(input) else {
            if self.given.keeps_original && !self.given.only_says {
                line.push(command!("cp {} {} {}", how, path, &*free(&format!("{path}.orig"))));
            }
            return path.words();
        };
        line.extend(directory_above(&copy));
        let from = if Path::new(&copy).is_dir() { format!("{path}/.") } else { path.to_owned() };
        line.push(command!("cp {} {} {}", how, &*from, &*copy));
        vec![copy]
    }

    fn show(&self, command: &str) -> Vec<Line> {
        let wheels = self.of(Kind::Wheel);
        if !wheels.is_empty() {
            return lines(command!("kpack wheel show {}", wheels));
        }
        let command = if self.inputs.len() > 1 { "list" } else { command };
        lines(command!("kpack {} {}", command, self.paths()))
    }

    fn extract(&self) -> Vec<Line> {
        if self.inputs.is_empty() {
            return vec![Line::new()];
        }
        let mut files = Vec::new();
        for Input { path, kind } in &self.inputs {
            match kind {
                Kind::Packed => {
                    let (path, output) = (&**path, self.output("unpacked"));
                    let arch = self.arch();
                    return lines(command!(
                        "kpack artifact unpack {} --output-dir {} {}",
                        path,
                        output,
                        arch
                    ));
                }
                Kind::Directory => files.extend(files_in(path, |path| {
                    SelectedCodeObjects::find(path, None, None).is_ok()
                })),
                Kind::Binary if is_split(path.as_ref()) => files.extend(self.archives_for(path)),
                _ => files.push(path.clone()),
            }
        }
        let output = self.output("code").remove(0);
        let output = output.trim_end_matches('/');
        let is_file = !self.given.into_directory
            && !Path::new(output).is_dir()
            && Path::new(output).extension().is_some();
        let mut targets = Vec::from_iter(self.targets.iter().map(Some));
        if targets.is_empty() {
            targets.push(None);
        }
        let extract = |file: &String, target: Option<&String>| {
            let parsed = target.and_then(|target| target.parse().ok());
            let found = SelectedCodeObjects::find(Path::new(file), None, parsed.as_ref());
            let is_one = found.is_ok_and(|found| found.selected().len() == 1);
            let to = match is_file {
                true if is_one => command!("--output {}", output),
                true => command!("--output-dir {}", &*stem(output)),
                false => command!("--output-dir {}", output),
            };
            let arch = target.map(|target| command!("--arch {}", &**target)).unwrap_or_default();
            vec![command!("kpack extract {} {} {}", &**file, arch, to)]
        };
        let each = files.iter().flat_map(|file| targets.iter().map(move |target| (file, *target)));
        each.map(|(file, target)| extract(file, target)).collect()
    }

    /// The archives of a split binary for the targets that are wanted.
    fn archives_for(&self, binary: &str) -> Vec<String> {
        let content = inspect::inspect(binary.as_ref()).map(|file| file.content);
        let Ok(Content::SplitBinary(split)) = content else { return Vec::new() };
        let is_wanted = |target: &str| {
            self.targets.iter().any(|own| target == own || target.split(':').next() == Some(own))
        };
        let there = split.kpacks.files.iter().filter(|kpack| kpack.size.is_some());
        let files = there.filter(|kpack| is_wanted(&kpack.target));
        files.map(|kpack| kpack.path.to_string_lossy().into_owned()).collect()
    }

    fn split(&self) -> Vec<Line> {
        let given = self.given;
        let wheels = self.of(Kind::Wheel);
        if !wheels.is_empty() {
            return match given.only_says {
                true => self.show("show"),
                false => lines(command!(
                    "kpack wheel split {} --output-dir {}",
                    wheels,
                    self.output("split")
                )),
            };
        }
        let split = |input: &Input| {
            let path = &*input.path;
            let mut line = Line::new();
            let output = || self.output("split");
            let named = |name: String| given.module.clone().unwrap_or(name);
            let module =
                || named(split::module_of(path.strip_suffix(USR).unwrap_or(path).as_ref()));
            // It drops all other code, which nobody else means.
            let means_it = given.commands.first().is_some_and(|name| name == "split");
            // In place, it would remove the code.
            let host_only = given.host_only && self.copy_of(input).is_some();
            let only = if host_only { command!("--only host") } else { Vec::new() };
            let (arch, dry_run) = (if means_it { self.arch() } else { Vec::new() }, self.dry_run());
            let words = match input.kind {
                Kind::Binary | Kind::Directory if !means_it && !self.targets.is_empty() => {
                    command!("kpack trim {} {} --dry-run", self.arch(), path)
                }
                _ if !means_it && !self.targets.is_empty() => command!("kpack list {}", path),
                Kind::Artifact => command!(
                    "kpack artifact split --artifact-dir {} --artifact-prefix {} --output-dir {}",
                    path,
                    &*module(),
                    output()
                ),
                Kind::Artifacts => {
                    command!(
                        "kpack artifact split --batch-artifact-parent-dir {} --output-dir {}",
                        path,
                        output()
                    )
                }
                Kind::Object => {
                    let module = named(default_module(stem(path).as_ref()));
                    command!(
                        "kpack object {} --module {} --output-dir {}",
                        path,
                        &*module,
                        output()
                    )
                }
                Kind::Archive | Kind::Code => command!("kpack list {}", path),
                Kind::Binary => {
                    let module = given
                        .module
                        .as_deref()
                        .map(|name| command!("--module {}", name))
                        .unwrap_or_default();
                    command!(
                        "kpack split {} {} {} {} {}",
                        only,
                        self.place(input, &mut line),
                        module,
                        arch,
                        dry_run
                    )
                }
                _ => {
                    let prefix = self.place(input, &mut line);
                    command!(
                        "kpack split {} --prefix {} --module {} --all {} {}",
                        only,
                        prefix,
                        &*module(),
                        arch,
                        dry_run
                    )
                }
            };
            line.push(words);
            line
        };
        self.inputs.iter().map(split).collect()
    }

    fn pack(&self) -> Vec<Line> {
        let given = self.given;
        if let [artifacts] = &self.of(Kind::Artifacts)[..] {
            let output = self.output("packed");
            return lines(command!("kpack artifact pack {} --output-dir {}", &**artifacts, output));
        }
        let mut by_target: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in self.of(Kind::Code) {
            let mut own = show::targets_of(Path::new(&path));
            if own.len() > 1 {
                return self.extract();
            }
            if let Some(target) = own.pop_first().or(self.targets.first().cloned()) {
                by_target.entry(target).or_default().push(path);
            }
        }
        if by_target.is_empty() {
            return self.split();
        }
        let is_one = by_target.len() == 1;
        let create = |(target, files): (String, Vec<String>)| {
            let archive = match &given.output {
                Some(output) if is_one && output.ends_with(".kpack") => output.clone(),
                output => format!(
                    "{}_{target}.kpack",
                    output.as_deref().map_or("kernels".to_owned(), stem)
                ),
            };
            vec![command!("kpack create {} --arch {} {}", &*archive, &*target, files)]
        };
        by_target.into_iter().map(create).collect()
    }

    /// Copies the archives to where the marker of the binary refers to, if none are there; nothing, if they have other names.
    fn put_archives(&self) -> Option<Line> {
        let ([binary], archives) = (&self.of(Kind::Binary)[..], self.of(Kind::Archive)) else {
            return None;
        };
        let (place, has_archives) = archives_of(binary)?;
        let (start, _) = place.file_name()?.to_str()?.split_once(GFXARCH)?;
        let fits = |archive: &String| stem(archive).starts_with(start);
        if archives.is_empty() || has_archives {
            return None;
        } else if !archives.iter().all(fits) {
            return Some(Line::new());
        }
        let place = match &*place.parent()?.to_string_lossy() {
            "" => ".".to_owned(),
            place => place.to_owned(),
        };
        let place = &*place;
        Some(vec![command!("mkdir -p {}", place), command!("cp {} {}", archives, place)])
    }

    fn join(&self) -> Vec<Line> {
        let put = self.put_archives();
        if put.as_ref().is_some_and(Line::is_empty) {
            return self.show("list");
        }
        let targets = match (&self.targets[..], &put) {
            ([], None) => "all".to_owned(),
            // Other archives are not there.
            ([], Some(_)) => {
                let archives = self.of(Kind::Archive);
                let there = archives.iter().flat_map(|path| show::targets_of(path.as_ref()));
                Vec::from_iter(BTreeSet::from_iter(there)).join(",")
            }
            (targets, _) => targets.join(","),
        };
        let arch = &*targets;
        let (archives, others): (Vec<_>, Vec<_>) =
            self.inputs.iter().partition(|input| input.kind == Kind::Archive);
        if self.given.inputs.is_empty() && self.before.is_empty() {
            let join = |(prefix, files): (String, Vec<String>)| {
                let files = if files.len() > MOST_FILES { Vec::new() } else { files };
                vec![command!("kpack join --prefix {} --arch {} {}", &*prefix, arch, files)]
            };
            return split_here().into_iter().map(join).collect();
        }
        if others.is_empty() {
            let prefixes = archives.iter().map(|archive| prefix_of(Path::new(&archive.path)));
            let join =
                |prefix: String| vec![command!("kpack join --prefix {} --arch {}", &*prefix, arch)];
            return BTreeSet::from_iter(prefixes).into_iter().map(join).collect();
        }
        let join = |input: &Input| {
            let mut line = put.clone().unwrap_or_default();
            let path = &*input.path;
            match (input.kind, self.copy_of(input)) {
                (Kind::Wheel, _) => return self.show("show").remove(0),
                (Kind::Artifact | Kind::Artifacts | Kind::Packed, _) => {
                    line.push(command!("kpack help artifact recombine"));
                }
                (Kind::Binary, Some(output)) => {
                    line.extend(directory_above(&output));
                    line.push(command!(
                        "kpack join --arch {} {} --output {}",
                        arch,
                        path,
                        &*output
                    ));
                }
                (Kind::Binary, None) => {
                    let path = self.place(input, &mut line);
                    line.push(command!("kpack join --arch {} {}", arch, path));
                }
                _ => {
                    let prefix = self.place(input, &mut line);
                    line.push(command!("kpack join --prefix {} --arch {}", prefix, arch));
                }
            }
            line
        };
        others.into_iter().map(join).collect()
    }

    fn trim(&self) -> Vec<Line> {
        if !self.of(Kind::Wheel).is_empty() {
            return self.split();
        }
        if !self.targets.is_empty() {
            let mut line = Line::new();
            let places = self.inputs.iter().flat_map(|input| self.place(input, &mut line));
            let (places, arch) = (Vec::from_iter(places), self.arch());
            line.push(command!("kpack trim {} {} {}", arch, places, self.dry_run()));
            return vec![line];
        }
        let example = if has_gpu() { Some("native".to_owned()) } else { self.there().pop_first() };
        match example.filter(|_| !self.given.removes || self.given.targets.is_empty()) {
            Some(target) => {
                let trim = command!("kpack trim --arch {} {} --dry-run", &*target, self.paths());
                // A dry run has no output.
                let trim = if self.given.output.is_some() { Vec::new() } else { lines(trim) };
                let is_file = |input: &Input| input.is_file() || self.given.host_only;
                let moves_code =
                    self.inputs.iter().all(is_file) && !self.are_split() && !self.given.removes;
                let mut split = if moves_code { self.split() } else { Vec::new() };
                split.retain(changes);
                [split, trim].concat()
            }
            None => self.show("show"),
        }
    }

    fn merge(&self) -> Vec<Line> {
        if !self.of(Kind::Code).is_empty() {
            self.pack()
        } else if self.inputs.iter().any(|input| input.kind.is_tree()) {
            lines(command!("kpack help artifact recombine"))
        } else {
            self.show("list")
        }
    }

    fn compare(&self) -> Vec<Line> {
        let [first, second] = &self.inputs[..] else { return self.verify() };
        let (from, to, arch) = (&*first.path, &*second.path, self.arch());
        let distances = [from, to].map(|path| distance(path.as_ref()));
        let have_code = [from, to].iter().all(|path| !show::targets_of(path.as_ref()).is_empty());
        let copy = &*free("compare");
        match (first.kind, second.kind) {
            (Kind::Archive, Kind::Archive) => {
                let [one, other] = [1, 2].map(|number| format!("{copy}/{number}"));
                vec![vec![
                    command!("kpack extract {} --output-dir {}", from, &*one),
                    command!("kpack extract {} --output-dir {}", to, &*other),
                    command!("diff -r {} {}", &*one, &*other),
                ]]
            }
            _ if distances[0] != distances[1] => self.verify(),
            // `kpack verify` compares only with what is split, or only with what is not.
            (Kind::Binary, Kind::Binary) if distances == [0, 0] && have_code => {
                let name = Path::new(to).file_name().unwrap_or_default().to_string_lossy();
                let file = &*format!("{copy}/{name}");
                vec![vec![
                    command!("mkdir {}", copy),
                    command!("cp -aL {} {}", to, file),
                    command!("kpack split --quiet {}", file),
                    command!("kpack verify {} --against {} {}", file, from, arch),
                ]]
            }
            (Kind::Binary, Kind::Binary) if distances == [2, 2] => vec![vec![
                command!("kpack join --arch all {} --output {}", from, copy),
                command!("kpack verify {} --against {} {}", to, copy, arch),
            ]],
            (Kind::Directory, Kind::Directory) if distances == [2, 2] => vec![vec![
                command!("cp -aH {} {}", from, copy),
                command!("kpack join --prefix {} --arch all", copy),
                command!("kpack verify {} --against {} {}", to, copy, arch),
            ]],
            (one, other) if one.is_tree() && other.is_tree() => {
                lines(command!("kpack report {} --before {}", to, from))
            }
            _ => self.show("list"),
        }
    }

    fn verify(&self) -> Vec<Line> {
        // What a program loads can be wrong, even if nothing in it can.
        if self.given.against.is_none() && self.are_programs() && self.there().is_empty() {
            return self.doctor();
        }
        // There is nothing to verify in a tree that is not split.
        let are_trees = self.inputs.iter().all(|input| input.kind.is_tree());
        if !self.targets.is_empty()
            && are_trees
            && self.of(Kind::Wheel).is_empty()
            && !self.are_split()
        {
            return self.doctor();
        }
        let wheels = self.of(Kind::Wheel);
        let command = if wheels.is_empty() { "verify".words() } else { command!("wheel verify") };
        let mut paths = if wheels.is_empty() { self.paths() } else { wheels };
        let mut against = self.given.against.clone();
        if let ([first, second], None) = (&paths[..], &against)
            && self.of(Kind::Archive).is_empty()
        {
            against = Some(first.clone());
            paths = vec![second.clone()];
        }
        if let ([path], Some(original)) = (&mut paths[..], &mut against)
            && distance(original.as_ref()) > distance(path.as_ref())
        {
            std::mem::swap(path, original);
        }
        let against = against.map(|original| command!("--against {}", &*original));
        lines(command!(
            "kpack {} {} {} {}",
            command,
            paths,
            against.unwrap_or_default(),
            self.arch()
        ))
    }

    fn report(&self) -> Vec<Line> {
        if !self.inputs.iter().all(|input| input.kind.is_tree()) {
            return self.show("show");
        }
        let before = self.given.against.as_ref().map(|before| command!("--before {}", &**before));
        lines(command!("kpack report {} {}", self.paths(), before.unwrap_or_default()))
    }

    fn doctor(&self) -> Vec<Line> {
        if !self.of(Kind::Wheel).is_empty() {
            return self.show("show");
        }
        if !self.of(Kind::Archive).is_empty() {
            return self.verify();
        }
        // The GPUs of this machine are the default.
        let is_native = self.targets.iter().any(|target| target == "native");
        let arch = if is_native { Vec::new() } else { self.arch() };
        lines(command!("kpack doctor {} {}", self.paths(), arch))
    }

    /// Lists those with code for GPUs among the files that programs load.
    fn libraries(&self) -> Vec<Line> {
        let loaded = |program: &String| {
            let linked = LinkedBinary::open(program.as_ref()).ok()?;
            match libraries(&linked.path, &linked.image, None) {
                Ok(Loading::Listed(loaded)) => Some(loaded),
                _ => None,
            }
        };
        let programs = self.of(Kind::Binary);
        if programs.is_empty() && !self.inputs.is_empty() {
            return self.show("show");
        }
        let loaded = programs.iter().filter_map(loaded).flatten();
        let loaded =
            loaded.filter_map(|library| Some(library.path?.to_string_lossy().into_owned()));
        let files = BTreeSet::from_iter(programs.iter().cloned().chain(loaded));
        let with_code =
            files.into_iter().filter(|file| !show::targets_of(file.as_ref()).is_empty());
        match Vec::from_iter(with_code) {
            with_code if with_code.is_empty() => self.doctor(),
            with_code => lines(command!("kpack list {}", with_code)),
        }
    }

    /// How users of a split wheel install the code for their GPUs.
    fn pip_install(&self) -> String {
        let wheel = stem(&self.of(Kind::Wheel)[0]);
        let name = wheel.split('-').next().unwrap_or_default();
        let processors = self.targets.iter().map(|target| target.split(':').next());
        let extras = processors.map(|name| format!("device-{}", name.unwrap_or_default()));
        let extras = Vec::from_iter(extras).join(",");
        format!("`pip install --find-links {} '{name}[{extras}]'`", self.output("split").join(""))
    }

    fn stage(&self) -> Vec<Line> {
        let mut programs = self.of(Kind::Binary);
        for directory in self.of(Kind::Directory) {
            let is_program =
                |path: &Path| path.extension().is_none() && Kind::of(path) == Kind::Binary;
            programs.extend(files_in(&directory, is_program));
        }
        if programs.is_empty() || programs.len() > MOST_PROGRAMS {
            return self.show("show");
        }
        lines(command!(
            "kpack stage {} --output-dir {} {}",
            programs,
            self.output("dist"),
            self.arch()
        ))
    }

    fn build(&self) -> Vec<Line> {
        let is_here = self.inputs.iter().all(|input| input.path == ".");
        if is_here && Path::new("Cargo.toml").is_file() {
            let output = self.output("dist");
            return lines(command!(
                "cargo build --release --message-format=json-render-diagnostics | kpack stage --output-dir {} {}",
                output,
                self.arch()
            ));
        }
        if self.inputs.is_empty() { lines(command!("kpack show .")) } else { self.split() }
    }

    /// Finds the command that installs code, or copies an archive to where it belongs.
    fn install(&self) -> Vec<Line> {
        let given = self.given;
        let wheels = self.of(Kind::Wheel);
        if !wheels.is_empty() {
            let is_all = wheels.len() == given.inputs.len() && given.rest.is_empty();
            // Another option of pip may say where to, or which versions.
            let is_target = |name: &String| ["t", "target"].contains(&&**name);
            let is_understood =
                given.word.as_deref() == Some("install") && given.names.iter().all(is_target);
            if !is_all || !is_understood || !self.targets.is_empty() {
                return self.show("show");
            }
            let to = given.output.as_deref().map(|to| command!("--target {}", to));
            return lines(command!("pip install {} {}", to.unwrap_or_default(), wheels));
        }
        let (archives, trees, binaries) =
            (self.of(Kind::Archive), self.of(Kind::Directory), self.of(Kind::Binary));
        let (archive, place, verified) = match (&archives[..], &trees[..], &binaries[..]) {
            ([archive], [tree], []) => {
                let mut all =
                    walk(tree.as_ref()).into_iter().filter_map(Result::ok).take(MOST_READ);
                let place = all.find(|entry| entry.file_name() == ".kpack");
                (archive, place.map(|entry| entry.into_path()), tree)
            }
            ([archive], [], [binary]) => {
                let place =
                    archives_of(binary).and_then(|(place, _)| Some(place.parent()?.to_owned()));
                (archive, place, binary)
            }
            _ => return self.doctor(),
        };
        let read = inspect::inspect(archive.as_ref()).map(|file| file.content);
        let Ok(Content::Archive(read)) = read else {
            return self.doctor();
        };
        let (Some(place), Some(end)) = (place, archive_ends(&read.target).next()) else {
            return self.doctor();
        };
        let name = format!("{}{end}", read.group_name);
        let to = place.join(&name);
        let manifest = place.join(format!("{}.kpm", read.group_name));
        if name.contains(['/', '\\']) || to.exists() || !manifest.is_file() {
            return self.doctor();
        }
        let copy = command!("cp {} {}", &**archive, &*to.to_string_lossy());
        vec![vec![copy, command!("kpack verify {}", &**verified)]]
    }
}

/// Whether this machine has a GPU whose target is known.
fn has_gpu() -> bool {
    agents().is_some_and(|gpus| !gpus.is_empty())
}

fn lines(words: Vec<String>) -> Vec<Line> {
    vec![vec![words]]
}

fn one(words: Vec<String>) -> Plan {
    Plan { instead: None, lines: lines(words) }
}

/// Packs what is in a directory.
fn pack(file: &str, directory: &str) -> Option<Vec<String>> {
    let contents = &*format!("{directory}/.");
    if file.ends_with(".zip") {
        return Some(command!("python3 -m zipfile -c {} {}", file, contents));
    }
    (file.contains(".tar") || file.ends_with(".tgz"))
        .then(|| command!("tar -caf {} -C {} .", file, directory))
}

/// Where CMake finds kpack.
fn cmake() -> Plan {
    let program = current_exe().ok();
    let prefix = program.as_deref().and_then(|program| program.ancestors().nth(2));
    let prefix = prefix.filter(|prefix| prefix.join("lib/cmake/Kpack").is_dir());
    let Some(prefix) = prefix.map(Path::to_string_lossy) else {
        let text = "this kpack was installed without its CMake functions; docs/install.md says how to get them";
        return Plan { instead: Some(text.to_owned()), lines: Vec::new() };
    };
    let instead =
        format!("CMake finds kpack (`find_package(Kpack)`) if CMAKE_PREFIX_PATH contains {prefix}");
    let configure = command!("cmake -B build {}", &*format!("-DCMAKE_PREFIX_PATH={prefix}"));
    let has_project = Path::new("CMakeLists.txt").is_file();
    Plan { instead: Some(instead), lines: if has_project { lines(configure) } else { Vec::new() } }
}

/// The name of a file without what follows the last dot.
fn stem(path: &str) -> String {
    Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// A name that nothing has here: a number is added, before an extension such as `.so.1`.
pub(super) fn free(name: &str) -> String {
    if name.starts_with('-') {
        return free(&format!("./{name}"));
    }
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let is_extension = |end: &usize| {
        *end > start && name[end + 1..].starts_with(|first: char| first.is_ascii_alphabetic())
    };
    let mut dots = name.match_indices('.').map(|(end, _)| end);
    let (name, end) = name.split_at(dots.find(is_extension).unwrap_or(name.len()));
    let numbered = (2..).map(|number| format!("{name}-{number}{end}"));
    let mut names = [format!("{name}{end}")].into_iter().chain(numbered);
    names.find(|name| !Path::new(name).exists()).unwrap_or_default()
}

/// The wheels in a directory that is for wheels, or else the directory.
fn wheels_in(directory: &Input, is_for_wheels: bool) -> Vec<Input> {
    let entries = Path::new(&directory.path).read_dir().into_iter().flatten().take(MOST_READ);
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path().to_string_lossy().into_owned()));
    let ends_with = |path: &String, ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    let (wheels, others): (BTreeSet<_>, BTreeSet<_>) =
        paths.partition(|path| ends_with(path, &[".whl"]));
    // Source distributions are in the same directory.
    if wheels.is_empty() || !is_for_wheels && !others.iter().all(|path| ends_with(path, &[".gz"])) {
        return vec![directory.clone()];
    }
    wheels.into_iter().map(|path| Input { path, kind: Kind::Wheel }).collect()
}

/// The command that makes the directory of a file, if it is not there.
fn directory_above(file: &str) -> Option<Vec<String>> {
    let above = Path::new(file).parent().filter(|above| !above.as_os_str().is_empty())?;
    (!above.exists()).then(|| command!("mkdir -p {}", &*above.to_string_lossy()))
}

/// The prefix whose directory `.kpack` or `lib/.kpack` an archive is in.
fn prefix_of(archive: &Path) -> String {
    let above = archive.ancestors().skip(2).find(|above| !above.ends_with("lib"));
    let prefix = above.filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    prefix.to_string_lossy().into_owned()
}

fn files_in(directory: &str, is_wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let all = walk(directory.as_ref()).into_iter().filter_map(Result::ok).take(MOST_READ);
    let wanted = all.filter(|entry| entry.file_type().is_file() && is_wanted(entry.path()));
    wanted.map(|entry| entry.path().to_string_lossy().into_owned()).collect()
}

/// Where the marker of a split binary leads to, with a place for the target, and whether there are archives.
fn archives_of(binary: &str) -> Option<(PathBuf, bool)> {
    let Content::SplitBinary(split) = inspect::inspect(binary.as_ref()).ok()?.content else {
        return None;
    };
    let [searched] = &split.search_paths[..] else { return None };
    Some((Path::new(binary).parent()?.join(searched), !split.kpacks.files.is_empty()))
}

/// The split binaries in this directory that have archives, by their install prefixes.
fn split_here() -> BTreeMap<String, Vec<String>> {
    // What is below these has nothing to do with each other.
    if is_of_system(".".as_ref()) {
        return BTreeMap::new();
    }
    let here = Path::new(".").canonicalize().unwrap_or_default();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files_in(".", |path| Kind::of(path) == Kind::Binary) {
        let Ok(Content::SplitBinary(split)) = inspect::inspect(file.as_ref()).map(|it| it.content)
        else {
            continue;
        };
        let prefix = split.prefix.filter(|_| !split.kpacks.files.is_empty());
        let below = prefix.as_deref().and_then(|prefix| prefix.strip_prefix(&here).ok());
        if let Some(below) = below
            && let Ok(name) = Path::new(&file).strip_prefix(Path::new(".").join(below))
        {
            let prefix = if below.as_os_str().is_empty() { Path::new(".") } else { below };
            let names = found.entry(prefix.to_string_lossy().into_owned()).or_default();
            names.push(name.to_string_lossy().into_owned());
        }
    }
    found
}

/// How far a file or a tree is from what compilers made: 2 if it is split, 1 if it is joined, 0 if it is neither.
fn distance(path: &Path) -> u8 {
    if path.is_dir() {
        return if is_split(path) { 2 } else { 0 };
    }
    match inspect::inspect(path).map(|file| file.content) {
        Ok(Content::SplitBinary(_)) => 2,
        Ok(Content::JoinedBinary(_)) => 1,
        _ => 0,
    }
}

/// Whether one of the first files in a directory has code for GPUs, or is an archive.
fn has_code(directory: &Path) -> bool {
    let mut all = walk(directory).into_iter().filter_map(Result::ok).take(MOST_READ);
    all.any(|entry| entry.file_type().is_file() && !show::targets_of(entry.path()).is_empty())
}

/// Whether a binary is split, or one in a directory probably is.
fn is_split(path: &Path) -> bool {
    if path.is_dir() {
        let mut all = walk(path).into_iter().filter_map(Result::ok).take(MOST_READ);
        return all.any(|entry| entry.file_name() == ".kpack");
    }
    inspect::inspect(path).is_ok_and(|file| matches!(file.content, Content::SplitBinary(_)))
}
