//! uv: where it gets wheels from, and its projects.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use kpack_core::shown;
use kpack_wheel::Distribution;

use super::active::{active, is_same};
use super::sources::{Source, Sources, configuration_directory, of_variable};
use crate::image;
use crate::remedy::is_shown;
use crate::text::{small_text, text};

/// The largest lock file, in bytes.
const MAX_LOCK: u64 = 16 << 20;

/// What an environment belongs to.
pub(super) enum UvScope {
    Project(Box<Project>),
    /// The directory of a workspace without a project. Which of its members needs something is unknown.
    Workspace(PathBuf),
    Nothing,
}

/// A project.
#[derive(Debug, Clone)]
pub(super) struct Project {
    pub(super) directory: PathBuf,
    /// Whether it is the current directory.
    pub(super) is_current: bool,
    /// Where `uv add` gets wheels from.
    pub(super) sources: Sources,
    /// `None` until something is to be installed again.
    pub(super) lock: Option<Lock>,
}

/// Where `uv pip` gets packages of a project from.
#[derive(Debug, Clone)]
pub(super) struct Lock {
    path: PathBuf,
    /// Whether only the examined tree names what the lock file does.
    is_foreign: bool,
    /// The URLs of the indexes that packages come from, by name; `None` for one that comes from elsewhere.
    indexes: BTreeMap<String, Vec<Option<String>>>,
    /// What uv is configured for.
    others: Sources,
}

impl Project {
    /// What the environment at `root` belongs to.
    pub(super) fn around(root: &Path, is_active: bool) -> UvScope {
        let environment =
            image::variable("UV_PROJECT_ENVIRONMENT").unwrap_or_else(|| ".venv".into());
        let directory = root.parent().filter(|project| {
            project.join("uv.lock").is_file() && project.join(&environment) == root
        });
        let Some(directory) = directory else { return UvScope::Nothing };
        let table = small_text(&directory.join("pyproject.toml"))
            .and_then(|text| text.parse::<toml::Table>().ok())
            .unwrap_or_default();
        if !table.contains_key("project") {
            return UvScope::Workspace(directory.to_owned());
        }
        let current = env::current_dir();
        UvScope::Project(Box::new(Self {
            directory: directory.to_owned(),
            is_current: current.is_ok_and(|current| current == directory),
            sources: sources(root, Some(directory), is_active),
            lock: None,
        }))
    }

    /// How to remove device wheels, which `uv sync` would install again.
    pub(super) fn advice_to_remove(&self) -> String {
        let file = self.directory.join("pyproject.toml");
        format!(
            "in {}, ask for the extras of these GPUs instead of all, and run `uv sync`",
            shown(&file)
        )
    }
}

/// How to install or remove device wheels in the workspace in this directory.
pub(super) fn advice_in_workspace(directory: &Path) -> String {
    format!(
        "in the `pyproject.toml` of the member of {} that needs the GPU code, ask for the extras of these GPUs alone, and run `uv sync`",
        shown(directory)
    )
}

impl Lock {
    pub(super) fn read(root: &Path, project: &Path, is_active: bool) -> Self {
        let path = project.join("uv.lock");
        let lock: toml::Table =
            text(&path, MAX_LOCK).and_then(|text| text.parse().ok()).unwrap_or_default();
        let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
        let mut indexes: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
        for package in packages {
            let Some(name) = package.get("name").and_then(toml::Value::as_str) else { continue };
            let index = package.get("source").and_then(|source| source.get("registry")?.as_str());
            indexes.entry(name.to_owned()).or_default().push(index.map(str::to_owned));
        }
        let is_foreign = !is_active && !env::current_dir().is_ok_and(|at| at.starts_with(project));
        Self { path, is_foreign, indexes, others: sources(root, None, is_active) }
    }

    /// Where these come from: the lock file knows the index of each, also of one that the project asks for only some packages.
    /// If they come from several, or from none, what uv is configured for.
    pub(super) fn sources(&self, distributions: &[&Distribution]) -> Sources {
        let mut urls = distributions.iter().filter_map(|own| self.indexes.get(&own.name)).flatten();
        let Some(Some(url)) = urls.next().filter(|first| urls.all(|url| url == *first)) else {
            return self.others.clone();
        };
        if !["https://", "http://"].iter().any(|scheme| url.starts_with(scheme)) {
            return self.others.clone();
        }
        let index = Source {
            url: url.clone(),
            is_index: true,
            named_by: self.path.display().to_string(),
            is_foreign: self.is_foreign,
        };
        Sources { index: Some(index), ..Sources::default() }
    }
}

/// The environment `.venv` that is nearest to the current directory.
pub(crate) fn nearest_environment() -> Option<PathBuf> {
    let current = env::current_dir().ok()?;
    let mut found = current.ancestors().map(|directory| directory.join(".venv"));
    found.find(|path| path.join("pyvenv.cfg").is_file())
}

/// Whether uv finds the environment at `root` from the current directory.
pub(super) fn finds(root: &Path) -> bool {
    let found = active().or_else(nearest_environment);
    found.is_some_and(|found| is_same(&found, root))
}

/// What uv gets wheels from for the environment at `root`, of a project if it has one. It reads its configuration itself.
pub(super) fn sources(root: &Path, project: Option<&Path>, is_active: bool) -> Sources {
    let current = env::current_dir().unwrap_or_default();
    let beside = project.or(root.parent()).unwrap_or(root);
    let is_own = is_active || current.starts_with(beside);
    let words = |text: &str| text.split_whitespace().map(without_name).collect();
    let mut others = Vec::new();
    for name in ["UV_INDEX", "UV_EXTRA_INDEX_URL"] {
        others.extend(of_variable(name, words));
    }
    let paths = |text: &str| text.split(',').map(|path| path.trim().to_owned()).collect();
    others.extend(of_variable("UV_FIND_LINKS", paths));
    let named = image::variable("UV_CONFIG_FILE").map(PathBuf::from);
    let nearest = || project.unwrap_or(&current).ancestors().find_map(uv_configuration);
    let users = configuration_directory().map(|config| config.join("uv/uv.toml"));
    let common = users.into_iter().chain([PathBuf::from("/etc/uv/uv.toml")]);
    let is_of_project = |path: &Path| project.is_some_and(|project| path.starts_with(project));
    let files = match named {
        Some(named) => vec![named],
        None => nearest().into_iter().chain(common).collect(),
    };
    for path in files {
        let is_foreign = is_of_project(&path) && !is_own;
        others.extend(uv_places(&path, is_foreign));
    }
    let one = |text: &str| vec![without_name(text.trim())];
    let mut index = ["UV_DEFAULT_INDEX", "UV_INDEX_URL"]
        .into_iter()
        .find_map(|name| of_variable(name, one).into_iter().next());
    let mut unread = Vec::new();
    if index.is_none() && others.is_empty() && project.is_none() {
        // uv does not read this one from here, so the command has to name what it can.
        let beside = uv_configuration(beside);
        unread.extend(beside.into_iter().flat_map(|path| uv_places(&path, !is_own)));
        let first = unread.iter().position(|place| place.is_index && is_shown(&place.url));
        index = first.map(|first| unread.remove(first));
    }
    Sources { index, others, unread }
}

/// The URL of an index that a variable of uv may give a name, as in `NAME=URL`.
fn without_name(text: &str) -> String {
    let is_name = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    match text.split_once('=') {
        Some((name, url)) if is_name(name) => url.to_owned(),
        _ => text.to_owned(),
    }
}

/// The file in a directory that uv reads its configuration from.
fn uv_configuration(directory: &Path) -> Option<PathBuf> {
    let files = ["uv.toml", "pyproject.toml"].map(|name| directory.join(name));
    files.into_iter().find(|path| uv_table(path).is_some())
}

/// The configuration of uv in a file.
fn uv_table(path: &Path) -> Option<toml::Table> {
    let table: toml::Table = small_text(path)?.parse().ok()?;
    if path.file_name().is_some_and(|name| name != "pyproject.toml") {
        return Some(table);
    }
    table.get("tool")?.get("uv")?.as_table().cloned()
}

/// The places that a configuration of uv names, also for `uv pip`.
fn uv_places(path: &Path, is_foreign: bool) -> Vec<Source> {
    let table = uv_table(path).unwrap_or_default();
    let pip = table.get("pip").and_then(toml::Value::as_table);
    let named_by = path.display().to_string();
    let mut places = Vec::new();
    for table in pip.into_iter().chain([&table]) {
        for key in ["index", "index-url", "extra-index-url", "find-links"] {
            let values = match table.get(key) {
                Some(toml::Value::Array(values)) => values.iter().collect(),
                value => Vec::from_iter(value),
            };
            let url =
                |value: &toml::Value| value.get("url").unwrap_or(value).as_str().map(str::to_owned);
            places.extend(values.into_iter().filter_map(url).map(|url| Source {
                url,
                is_index: key != "find-links",
                named_by: named_by.clone(),
                is_foreign,
            }));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_uv_gives_to_indexes() {
        for (text, expected) in [
            ("own=https://a/b", "https://a/b"),
            ("https://a/b?c=d", "https://a/b?c=d"),
            ("https://a/b", "https://a/b"),
            ("=a", "=a"),
        ] {
            assert_eq!(without_name(text), expected);
        }
    }

    #[test]
    fn a_configuration_of_uv() {
        let tree = kpack_tests::tree::Tree::new();
        for (name, text, expected) in [
            ("uv.toml", "[[index]]\nname = \"a\"\nurl = \"https://a\"\n", &["https://a"][..]),
            (
                "uv.toml",
                "[pip]\nindex-url = \"https://a\"\nfind-links = [\"b\"]\n",
                &["https://a", "b"],
            ),
            ("uv.toml", "# index-url = \"https://a\"\n", &[]),
            ("uv.toml", "index-url = [[[\n", &[]),
            ("pyproject.toml", "[project]\nname = \"index-url\"\n", &[]),
            ("pyproject.toml", "[tool.uv]\nindex-url = \"https://a\"\n", &["https://a"]),
        ] {
            let path = tree.path(name);
            std::fs::write(&path, text).unwrap();
            let found = Vec::from_iter(uv_places(&path, true).into_iter().map(|place| place.url));
            assert_eq!(found, expected, "{text}");
        }
    }
}
