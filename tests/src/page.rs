//! The pages of the documents, and the commands that they show.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

pub use kpack_tools::documents::task_commands;
pub use kpack_tools::process::repository;

/// A page of the user's book.
#[derive(Debug)]
pub struct Page {
    /// Its path in the repository.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl Page {
    /// Reads a page by its path in the repository, such as `docs/split.md`.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn read(name: &str) -> Self {
        let path = repository().join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name: name.to_owned(), text }
    }

    /// All pages of the user's book: README, and those in `docs` but not below it.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn of_users() -> Vec<Self> {
        let files = fs::read_dir(repository().join("docs")).expect("docs can be read");
        let files = files.map(|file| file.expect("docs can be read").file_name());
        let files = files.map(|name| format!("docs/{}", name.to_string_lossy()));
        let pages = files.filter(|name| name.ends_with(".md"));
        let mut pages = Vec::from_iter(pages.chain(["README.md".to_owned()]));
        pages.sort();
        pages.iter().map(|name| Self::read(name)).collect()
    }

    /// The blocks of a language, such as `sh`.
    pub fn blocks(&self, language: &str) -> Vec<String> {
        let start = format!("```{language}\n");
        let blocks = self.text.split(&start).skip(1);
        blocks.filter_map(|block| Some(block.split_once("```")?.0.to_owned())).collect()
    }

    /// The shell commands of CI jobs: in each block of YAML, what is indented below `run: |` or `script:`.
    pub fn jobs(&self) -> Vec<String> {
        let command = |line: &str| {
            let line = line.trim_start();
            line.strip_prefix("- ").unwrap_or(line).to_owned()
        };
        let indent = |line: &str| line.len() - command(line).len();
        let blocks = self.blocks("yaml").into_iter();
        let jobs = blocks.map(|block| {
            let is_key = |line: &&str| ["run: |", "script:"].contains(&&*command(line));
            let mut lines = block.lines().skip_while(|line| !is_key(line));
            let key = lines.next().map_or(0, indent);
            let commands = lines.take_while(|line| indent(line) > key).map(command);
            Vec::from_iter(commands).join("\n")
        });
        jobs.collect()
    }

    /// The block of shell commands that begins with `start`.
    ///
    /// # Panics
    /// If there is none.
    pub fn commands(&self, start: &str) -> String {
        let mut blocks = self.blocks("sh").into_iter();
        let found = blocks.find(|block| block.starts_with(start));
        found.unwrap_or_else(|| panic!("{}: no commands begin with `{start}`", self.name))
    }
}

/// A reader of a page, who runs its commands.
#[derive(Debug)]
pub struct Reader {
    /// Where the commands run.
    pub directory: PathBuf,
    /// The directory of `kpack`.
    pub programs: PathBuf,
    /// Texts of the page, such as paths of an example, and what the reader has in their place.
    pub replaced: Vec<(&'static str, String)>,
}

impl Reader {
    /// One who has this `kpack`.
    pub fn new(directory: &Path, kpack: &Path) -> Self {
        let programs = kpack.parent().unwrap_or(kpack).to_owned();
        Self { directory: directory.to_owned(), programs, replaced: Vec::new() }
    }

    /// Runs the commands of a block, and stops at the first one that fails. A diagnosis of `kpack doctor` is no failure.
    ///
    /// # Panics
    /// If a command fails.
    pub fn run(&self, commands: &str) -> String {
        const DOCTOR: &str = "kpack() {
            command kpack \"$@\" || case $1$? in doctor1 | doctor3) ;; *) return 3 ;; esac
        }";
        let mut commands = commands.to_owned();
        for (from, to) in &self.replaced {
            commands = commands.replace(from, to);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.args(["-euc", &format!("{DOCTOR}\n{commands}")]).current_dir(&self.directory);
        process::run(shell.env("PATH", format!("{}:{path}", self.programs.display())))
    }
}
