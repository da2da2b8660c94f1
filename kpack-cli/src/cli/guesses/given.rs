//! What arguments contain: what somebody wants, files and directories by their kinds, targets, and where to write.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, Command};
use kpack_core::files::{FileKind, identify};
use kpack_format::names::is_archive;
use kpack_format::unstable::spelling;
use kpack_split::input::open;

use super::plan::free;
use super::words::{self, Flag, Intent, Role};

/// A file or directory that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) path: String,
    pub(super) kind: Kind,
}

impl Input {
    pub(super) fn at(path: &str) -> Self {
        Self { path: trimmed(path), kind: Kind::of(Path::new(path)) }
    }

    pub(super) fn is_file(&self) -> bool {
        !self.kind.is_tree()
    }

    pub(super) fn is_library(&self) -> bool {
        self.kind == Kind::Binary && Path::new(&self.path).extension().is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An archive of kpack's.
    Archive,
    /// An artifact directory.
    Artifact,
    /// A directory of artifact directories.
    Artifacts,
    /// A linked binary.
    Binary,
    /// A code object, or a bundle of them.
    Code,
    Debian,
    Directory,
    Object,
    Other,
    /// A directory of packed artifacts.
    Packed,
    Rpm,
    Wheel,
    Zip,
}

/// Which part of an output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// The targets alone.
    Targets,
    /// Targets by their sizes, the largest first.
    Largest,
}

/// What arguments contain.
#[derive(Debug, Default, Clone)]
pub(super) struct Given {
    /// The commands that are typed, such as `wheel` and `split`.
    pub(super) commands: Vec<String>,
    /// The word that is typed in place of a command.
    pub(super) word: Option<String>,
    pub(super) intent: Option<Intent>,
    pub(super) inputs: Vec<Input>,
    pub(super) targets: Vec<String>,
    /// Whether the code for these targets is to go, instead of that for the others.
    pub(super) removes: bool,
    pub(super) output: Option<String>,
    /// The file that the output is to be packed into.
    pub(super) packing: Option<String>,
    pub(super) filter: Option<Filter>,
    /// Whether the output is to have no code for GPUs.
    pub(super) host_only: bool,
    /// Whether a copy of what changes is to stay.
    pub(super) keeps_original: bool,
    /// Whether the output is called a directory.
    pub(super) into_directory: bool,
    pub(super) against: Option<String>,
    pub(super) module: Option<String>,
    prefix: Option<String>,
    /// Options of kpack's commands, with their values.
    pub(super) options: Vec<Vec<String>>,
    /// The names of all options.
    pub(super) names: Vec<String>,
    /// Options that the typed command does not have.
    pub(super) unknown: Vec<String>,
    /// Words that are none of these.
    pub(super) rest: Vec<String>,
    pub(super) wants_help: bool,
    /// Whether nothing is to change.
    pub(super) only_says: bool,
    /// Whether some of it was not understood. A command that changes something may then do what nobody wants.
    pub(super) is_doubtful: bool,
    /// Whether an option says that its targets are to stay.
    keeps: bool,
}

/// The sections with device code.
const SECTIONS: [&str; 2] = [".hip_fatbin", ".hipFatBinSegment"];

impl Given {
    pub(super) fn read(arguments: &[OsString], kpack: &Command) -> Self {
        let lossy = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        // kpack finds the section itself, which users of objcopy name.
        let is_section = |word: &str| {
            let name = word.split_once('=').map_or(word, |(name, _)| name);
            SECTIONS.contains(&name) && !Path::new(word).exists()
        };
        let lossy = lossy.filter(|word| !is_section(word));
        let words = Vec::from_iter(lossy.map(|word| match word.split_once('=') {
            Some((option, value)) if is_section(value) => option.to_owned(),
            _ => word,
        }));
        let mut given = Self::default();
        let mut rest = &words[..];
        while let Some((word, after)) = rest.split_first() {
            rest = after;
            if word.len() > 1 && word.starts_with('-') && given.intent != Some(Intent::Explain) {
                let taken = given.read_option(word, after, kpack);
                rest = &after[taken.min(after.len())..];
            } else {
                given.read_word(word, kpack);
            }
        }
        given.settle();
        // kpack writes directories, which other programs pack.
        let package = |output| match given.intent {
            Some(Intent::Split) => {
                [".deb", ".rpm"].iter().find_map(|end| str::strip_suffix(output, end))
            }
            _ => None,
        };
        let packed = |output| without_packing(output).or_else(|| package(output));
        if let Some(name) = given.output.as_deref().and_then(packed) {
            let directory = free(&format!("{name}-dist"));
            given.packing = given.output.replace(directory);
        }
        given
    }

    /// The command that is typed, or kpack itself.
    pub(super) fn command<'c>(&self, kpack: &'c Command) -> &'c Command {
        let below =
            |above: &'c Command, name: &String| above.find_subcommand(name).unwrap_or(above);
        self.commands.iter().fold(kpack, below)
    }

    fn is_empty(&self) -> bool {
        self.word.is_none() && self.inputs.is_empty() && self.targets.is_empty()
    }

    fn read_word(&mut self, word: &str, kpack: &Command) {
        if self.intent == Some(Intent::Explain) {
            return self.rest.push(word.to_owned());
        }
        let is_first = self.is_empty() && self.rest.is_empty();
        let exists = Path::new(word).exists();
        let is_command = is_first && !(exists && self.intent.is_some());
        let named = self.command(kpack).find_subcommand(word).filter(|_| is_command);
        if let Some(command) = named {
            self.commands.push(command.get_name().to_owned());
            self.intent = words::intent(word).or(self.intent);
            return;
        }
        if is_first && word == "help" {
            self.wants_help = true;
            return;
        }
        let intent = words::intent(word);
        let is_path = word.contains(['/', '.']);
        let names_path = exists && (is_path || !self.commands.is_empty());
        if is_first && !names_path && self.intent.is_none() && intent.is_some() {
            self.word = Some(word.to_owned());
            self.intent = intent;
        } else if exists {
            self.inputs.push(Input::at(word));
        } else if let Some(targets) = targets(word) {
            self.targets.extend(targets);
        } else if self.intent.is_none() && intent.is_some() {
            self.intent = intent;
        } else if is_first && self.intent.is_none() {
            self.word = Some(word.to_owned());
            self.intent = words::misspelled(word);
        } else if !words::is_filler(word) && (intent.is_none() || !self.inputs.is_empty()) {
            self.rest.push(word.to_owned());
        }
    }

    /// Reads an option; returns how many of the words after it are its values.
    fn read_option(&mut self, word: &str, after: &[String], kpack: &Command) -> usize {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            // As in `-j8`.
            None if !word.starts_with("--")
                && word[1..].ends_with(|c: char| c.is_ascii_digit()) =>
            {
                match word.trim_end_matches(|c: char| c.is_ascii_digit()).len() {
                    1 => (word, None),
                    end => (&word[..end], Some(&word[end..])),
                }
            }
            None => (word, None),
        };
        let name = option.trim_start_matches('-').to_lowercase().replace('_', "-");
        let next = after.first().map(String::as_str).filter(|next| !next.starts_with('-'));
        let single = value.or(next);
        let taken = usize::from(value.is_none());
        // Elsewhere, as in `du -h FILE`, it asks for sizes that people read.
        if name == "help" || name == "h" && after.is_empty() {
            self.wants_help = true;
            return 0;
        }
        self.names.push(name.clone());
        let command = self.command(kpack);
        let known = find(command, option).or_else(|| find(kpack, option));
        let has_command = !self.commands.is_empty();
        if known.is_none() && has_command && !self.unknown.iter().any(|known| known == option) {
            self.unknown.push(option.to_owned());
        }
        if known.is_none() && single == Some("json") && words::role(&name) != Some(Role::Output) {
            self.options.push(vec!["--json".to_owned()]);
            return taken;
        }
        if known.is_none()
            && let Some(taken) = self.read_format(&name, single, taken)
        {
            return taken;
        }
        let flag = words::flag(&name);
        match flag.filter(|flag| known.is_none() || *flag == Flag::DryRun) {
            None => {}
            Some(Flag::Native) if !self.intent.is_some_and(Intent::writes) => {}
            Some(flag) => {
                self.read_flag(flag);
                return 0;
            }
        }
        // As objcopy writes the content of a section.
        if name == "dump-section"
            && let Some((target, file)) = single.and_then(|single| single.split_once('='))
            && let Some(targets) = targets(target)
        {
            self.targets.extend(targets);
            self.output = Some(file.to_owned());
            self.intent = Some(Intent::Extract);
            return taken;
        }
        // As gzip and unzip test archives.
        let is_archive = |next: &str| is_archive(next.as_ref()) && Path::new(next).exists();
        if self.intent.is_none() && name == "t" && next.is_some_and(is_archive) {
            self.intent = Some(Intent::Verify);
            return 0;
        }
        let role = match words::role(&name) {
            // With pip, it names a directory.
            Some(Role::Targets)
                if self.intent == Some(Intent::Install)
                    && ["t", "target"].contains(&&*name)
                    && single.is_some_and(|single| targets(single).is_none()) =>
            {
                Some(Role::Output)
            }
            // As with make and git.
            Some(Role::Output)
                if option == "-C"
                    && !matches!(self.intent, Some(Intent::Extract | Intent::Install))
                    && single.is_some_and(|single| Path::new(single).is_dir()) =>
            {
                // Other paths would be in there.
                self.is_doubtful |= !after.iter().skip(taken).all(|word| word.starts_with('-'));
                self.is_doubtful |= !self.inputs.is_empty();
                Some(Role::Input)
            }
            role => role,
        };
        match (role, single) {
            (Some(role @ (Role::Targets | Role::Removed)), Some(single)) => {
                let of = |word: &str| match word {
                    "all" => Some(Vec::new()),
                    word if words::is_native(word) => Some(vec!["native".to_owned()]),
                    word => targets(word),
                };
                let mut values = 0;
                let mut words = value.into_iter().chain(after.iter().map(String::as_str));
                while let Some(targets) = words.next().and_then(of) {
                    self.targets.extend(targets);
                    values += 1;
                    if value.is_some() {
                        break;
                    }
                }
                if values > 0 {
                    // `remove --except gfx1100` keeps it.
                    self.is_doubtful |= self.intent == Some(Intent::Remove)
                        && ["except", "without", "not"].contains(&&*name);
                    self.removes |= role == Role::Removed;
                    // With another option for what is to go, these are to stay.
                    self.keeps |= name.starts_with("keep")
                        || role == Role::Targets && self.intent != Some(Intent::Remove);
                    let chosen = words::intent(&name).filter(|intent| *intent == Intent::Extract);
                    self.intent = self.intent.or(chosen).or(Some(Intent::Trim)
                        .filter(|_| self.removes || words::intent(&name) == Some(Intent::Trim)));
                    return if value.is_some() { 0 } else { values };
                }
                // A value that is no target, where a target belongs.
                self.is_doubtful = true;
                if known.is_some_and(|known| known.get_possible_values().is_empty())
                    && !Path::new(single).exists()
                {
                    return taken;
                }
            }
            // `objdump -d FILE` has no output, nor has `dpkg -c FILE`.
            (Some(Role::Output), Some(single))
                if !(self.inputs.is_empty() && name.len() == 1 && Path::new(single).is_file()) =>
            {
                self.output = Some(single.to_owned());
                self.into_directory = name.contains("dir") || single.ends_with('/');
                return taken;
            }
            (Some(Role::Against), Some(single)) if Path::new(single).exists() => {
                self.against = Some(trimmed(single));
                return taken;
            }
            (Some(Role::Module), Some(single)) if !Path::new(single).exists() => {
                self.module = Some(single.to_owned());
                return taken;
            }
            (Some(Role::Input), Some(single)) if known.is_none() || name == "prefix" => {
                match Path::new(single).exists() {
                    true if name == "prefix" => self.prefix = Some(trimmed(single)),
                    true => self.inputs.push(Input::at(single)),
                    false if name.contains("dir") || name == "prefix" => {
                        self.output = Some(single.to_owned());
                        self.into_directory = true;
                    }
                    false => self.rest.push(single.to_owned()),
                }
                return taken;
            }
            _ => {}
        }
        // What no command says yet, or what undoes what the command says, such as `split --undo`.
        let verb = match self.intent {
            None => words::intent(&name),
            Some(Intent::Doctor | Intent::Explain) => None,
            Some(_) => words::verb(&name).filter(|intent| {
                name.len() > 1 && intent.replaces() && self.intent != Some(*intent)
            }),
        };
        let meant = self.intent.and_then(|intent| kpack.find_subcommand(words::command(intent)));
        let known = known.or_else(|| meant.and_then(|command| find(command, option)));
        if let Some(intent) = verb.filter(|_| known.is_none()) {
            self.intent = Some(intent);
            return 0;
        }
        let known = known.or_else(|| all(kpack).find_map(|command| find(command, option)));
        if let Some(known) = known.filter(|_| option.starts_with("--") || has_command) {
            let takes = known.get_action().takes_values() && !known.is_require_equals_set();
            let takes = takes && value.is_none() && next.is_some();
            let mut words = vec![word.to_owned()];
            words.extend(after.first().filter(|_| takes).cloned());
            self.options.push(words);
            return usize::from(takes);
        }
        self.is_doubtful = true;
        // The value of an option that nobody knows.
        let is_value = |next: &str| {
            !Path::new(next).exists() && targets(next).is_none() && words::intent(next).is_none()
        };
        usize::from(has_command && value.is_none() && next.is_some_and(is_value))
    }

    fn read_flag(&mut self, flag: Flag) {
        match flag {
            Flag::Backup => self.keeps_original = true,
            Flag::DryRun => self.only_says = true,
            Flag::ForPrograms => self.options.push(vec!["--json".to_owned()]),
            Flag::Harmless => {}
            Flag::HostOnly => {
                self.host_only = true;
                // Most options of objcopy extract something, but `--remove-section` does not.
                let intent = self.intent.filter(|intent| *intent != Intent::Extract);
                self.intent = intent.or(Some(Intent::Trim));
            }
            Flag::Native => self.targets.push("native".to_owned()),
        }
    }

    /// Reads an option that says how to print: by a template, in a form or in an order. Returns how many words it takes.
    fn read_format(&mut self, name: &str, value: Option<&str>, taken: usize) -> Option<usize> {
        const TARGETS: &[&str] = &["target", "arch", "gfx", "gpu"];
        let value = value.unwrap_or_default().to_lowercase();
        let is_about = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
        let is_only = name.starts_with("only-") || name.ends_with("-only");
        if is_only && is_about(name, TARGETS) && targets(&value).is_none() {
            self.filter = Some(Filter::Targets);
            return Some(0);
        }
        if value.is_empty() || !(words::is_format(name) || name == "f" && value.contains('{')) {
            return None;
        }
        if name.starts_with("sort") {
            let by_size = is_about(&value, &["size", "bytes"]).then_some(Filter::Largest);
            self.filter = self.filter.or(by_size);
        } else if is_about(&value, TARGETS) {
            self.filter = Some(Filter::Targets);
        } else if !is_about(&value, &["human", "plain", "table", "text"]) {
            self.options.push(vec!["--json".to_owned()]);
        }
        Some(taken)
    }

    /// Finds inputs in a directory among what is left.
    fn take_inside(&mut self, directory: &Path) {
        let inside = |word: &str| directory.join(word.trim_start_matches('/'));
        let (found, rest) =
            self.rest.drain(..).partition::<Vec<_>, _>(|word| inside(word).exists());
        self.rest = rest;
        let found = found.into_iter().map(|path| Input { kind: Kind::of(&inside(&path)), path });
        self.inputs.extend(found);
    }

    /// Finds the output among what is left.
    fn settle(&mut self) {
        self.targets.dedup();
        if self.intent == Some(Intent::Remove) {
            self.removes = true;
            self.intent = Some(Intent::Trim);
        }
        let is_native = self.targets.iter().any(|target| target == "native");
        self.is_doubtful |= self.removes && (self.keeps || is_native);
        // What stays for which GPUs, if no code for GPUs is to stay?
        self.is_doubtful |= self.host_only && !self.targets.is_empty();
        let has_root = self.options.iter().any(|words| words[0] == "--root");
        self.is_doubtful |= has_root && (self.output.is_some() || self.keeps_original);
        // Archives have the code that is to go.
        let is_archive = |output: &String| output.ends_with(".kpack");
        self.is_doubtful |= self.host_only && self.output.as_ref().is_some_and(is_archive);
        let has_prefix = self.prefix.is_some();
        let root = self.options.iter().find(|words| words[0] == "--root");
        if let Some(root) = root.and_then(|words| words.get(1)).cloned() {
            self.take_inside(root.as_ref());
        }
        if let Some(prefix) = self.prefix.take() {
            self.take_inside(prefix.as_ref());
            match self.inputs.is_empty() {
                true => self.inputs.push(Input::at(&prefix)),
                false if self.output.is_none() => {
                    self.options.push(vec!["--prefix".to_owned(), prefix]);
                }
                false => {}
            }
        }
        let is_path = |word: &String| word.contains(['/', '.']);
        if self.intent.is_none() && self.word.is_none() && !self.inputs.is_empty() {
            let writes = self.output.is_some() || self.rest.last().is_some_and(is_path);
            let intent = if self.targets.is_empty() { Intent::Split } else { Intent::Trim };
            self.intent = writes.then_some(intent);
        }
        let writes = self.intent.is_some_and(Intent::writes);
        self.is_doubtful |= writes && self.output.is_some() && !self.rest.is_empty();
        if self.output.is_some() || self.inputs.is_empty() || has_prefix || !writes {
            return;
        }
        if let Some(path) = self.rest.pop() {
            // It may also be one more input, with a wrong name.
            self.is_doubtful |= match self.intent {
                Some(Intent::Trim) => !self.host_only,
                Some(Intent::Join | Intent::Merge) => self.inputs.iter().any(Input::is_file),
                _ => false,
            } || !self.rest.is_empty();
            self.into_directory = path.ends_with('/');
            self.output = Some(path);
            return;
        }
        let [first, .., last] = &self.inputs[..] else {
            return;
        };
        let is_empty =
            || Path::new(&last.path).read_dir().is_ok_and(|mut all| all.next().is_none());
        let takes_trees =
            matches!(self.intent, Some(Intent::Trim | Intent::Join | Intent::Merge)) && !is_empty();
        if last.kind == Kind::Directory
            && !takes_trees
            && (first.kind != Kind::Directory || is_empty())
        {
            self.into_directory = true;
            self.output = self.inputs.pop().map(|input| input.path);
        }
    }
}

/// The name of a packed directory without what says how it is packed.
fn without_packing(path: &str) -> Option<&str> {
    const ENDS: &[&str] =
        &[".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz", ".tar", ".zip", ".AppImage"];
    ENDS.iter().find_map(|end| path.strip_suffix(end))
}

impl Kind {
    pub(super) fn is_tree(self) -> bool {
        matches!(self, Self::Artifact | Self::Artifacts | Self::Directory | Self::Packed)
    }

    pub(super) fn of(path: &Path) -> Self {
        const MANIFEST: &str = "artifact_manifest.txt";
        if path.is_dir() {
            let below = |entry: std::io::Result<std::fs::DirEntry>| {
                entry.is_ok_and(|entry| entry.path().join(MANIFEST).is_file())
            };
            return if path.join(MANIFEST).is_file() {
                Self::Artifact
            } else if path.join("index.json").is_file() {
                Self::Packed
            } else if path.read_dir().is_ok_and(|mut all| all.any(below)) {
                Self::Artifacts
            } else {
                Self::Directory
            };
        }
        match path.extension().and_then(|end| end.to_str()) {
            Some("whl") => return Self::Wheel,
            Some("deb") => return Self::Debian,
            Some("rpm") => return Self::Rpm,
            Some("zip") => return Self::Zip,
            _ => {}
        }
        match open(path).and_then(|file| identify(path, &file)) {
            Ok(Some(FileKind::Linked)) => Self::Binary,
            Ok(Some(FileKind::Object | FileKind::StaticLibrary)) => Self::Object,
            Ok(Some(FileKind::Archive | FileKind::Manifest)) => Self::Archive,
            Ok(Some(FileKind::Bundle | FileKind::CodeObject | FileKind::OffloadBinary)) => {
                Self::Code
            }
            Ok(None) | Err(_) => Self::Other,
        }
    }
}

/// The targets that a word lists, if nothing else is in it: as users write them, or by the names of products.
fn targets(word: &str) -> Option<Vec<String>> {
    let target = |name: &str| match spelling::read_target(name) {
        Ok(target) => Some(target.to_string()),
        // One processor is not the family that it is in.
        Err(_) if name.ends_with(['x', 'X']) => None,
        // Any number may be something else, such as an error's.
        Err(_) if name.bytes().all(|byte| byte.is_ascii_digit()) => None,
        Err(_) => spelling::meant(name),
    };
    if word == "native" {
        return Some(vec![word.to_owned()]);
    }
    if let Some(target) = target(word) {
        return Some(vec![target]);
    }
    let names = word.split([',', ';', ' ']);
    let names = names.filter(|name| !name.is_empty() && !name.starts_with("host-"));
    // The entries of bundles contain targets, as in `hipv4-amdgcn-amd-amdhsa--gfx1100`.
    let names = names.map(|name| name.split_once("amdhsa--").map_or(name, |(_, target)| target));
    names.map(target).collect::<Option<Vec<_>>>().filter(|targets| !targets.is_empty())
}

/// A path without a slash at its end.
fn trimmed(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => path.to_owned(),
        path => path.to_owned(),
    }
}

/// All commands.
fn all(kpack: &Command) -> impl Iterator<Item = &Command> {
    kpack
        .get_subcommands()
        .flat_map(|command| [command].into_iter().chain(command.get_subcommands()))
}

/// The option of a command, or one that all have.
pub(super) fn find<'c>(command: &'c Command, option: &str) -> Option<&'c Arg> {
    let option = option.split('=').next().unwrap_or(option);
    let long = option.strip_prefix("--");
    let short = option.strip_prefix('-').filter(|name| name.chars().count() == 1);
    let is_it = |argument: &&Arg| match (long, short) {
        (Some(long), _) => argument.get_long() == Some(long),
        (None, Some(short)) => argument.get_short().map(String::from).as_deref() == Some(short),
        (None, None) => false,
    };
    command.get_arguments().find(is_it)
}
