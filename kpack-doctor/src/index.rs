//! Where installers get wheels from: what the configuration of pip and uv says, without running them.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};

use super::image;
use super::machine::small_text;
use super::remedy::{is_shown, masked};
use kpack_core::words::list;

/// Where an installer gets wheels from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// The index that a command names.
    index: Option<Place>,
    /// Further places, which the installer reads in its configuration itself.
    others: Vec<Place>,
    /// Places that a configuration names which the installer does not read from here.
    unread: Vec<Place>,
}

/// An index of wheels, or a directory or page of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Its URL, as configured.
    url: String,
    /// Whether it is an index.
    is_index: bool,
    /// The variable or file that names it.
    named_by: String,
    /// Whether only the examined tree names it.
    is_foreign: bool,
}

impl Sources {
    /// The arguments that name the index. There are none if the URL has a secret in it, which the installer then finds in
    /// its configuration.
    pub(super) fn arguments(&self) -> Vec<String> {
        let index = self.index.iter().filter(|index| is_shown(&index.url));
        index.flat_map(|index| ["--index-url".to_owned(), index.url.clone()]).collect()
    }

    /// What to know before `project` is installed from there.
    pub(super) fn caution(&self, project: &str) -> Option<String> {
        let named = self.index.iter().chain(&self.others);
        if named.clone().next().is_none() && self.unread.is_empty() {
            return Some(format!(
                "nothing says which index {project} came from, so add `--index-url` unless it is your default one"
            ));
        }
        let urls = |places: &[&Place]| list(places.iter().map(|place| masked(&place.url)));
        let mut cautions = Vec::new();
        let foreign = Vec::from_iter(named.filter(|place| place.is_foreign));
        if let [first, others @ ..] = &foreign[..] {
            let (what, them) =
                if others.is_empty() { ("index", "it") } else { ("indexes", "them") };
            let (named_by, urls) = (&first.named_by, urls(&foreign));
            cautions.push(format!(
                "only {named_by} names the {what} {urls}, so check that you trust {them}"
            ));
        }
        if let [first, ..] = &self.unread[..] {
            let (named_by, urls) = (&first.named_by, urls(&Vec::from_iter(&self.unread)));
            cautions.push(format!("this command does not use {urls}, which {named_by} names"));
        }
        (!cautions.is_empty()).then(|| cautions.join("; "))
    }
}

/// What pip in the environment at `root` gets wheels from.
pub(super) fn of_pip(root: &Path, is_active: bool) -> Sources {
    let own = root.join(if cfg!(windows) { "pip.ini" } else { "pip.conf" });
    let named = image::variable("PIP_CONFIG_FILE").map(PathBuf::from);
    let has_named = named.as_ref().is_some_and(|file| file.exists());
    let users = || {
        let home = image::variable("HOME").map(|home| PathBuf::from(home).join(".pip/pip.conf"));
        [home, configuration_directory().map(|config| config.join("pip/pip.conf"))]
    };
    let mut files = Vec::new();
    if named.as_deref() != Some(Path::new(if cfg!(windows) { "nul" } else { "/dev/null" })) {
        files.extend(["/etc/xdg/pip/pip.conf", "/etc/pip.conf"].map(PathBuf::from));
        files.extend(users().into_iter().flatten().filter(|_| !has_named));
        files.push(own.clone());
        files.extend(named);
    }
    // The section `install` counts more than `global`, in whatever file it is; later files count more. An option that
    // counts more replaces all values of the others.
    let mut options: BTreeMap<(bool, String), Vec<Place>> = BTreeMap::new();
    for path in files {
        let Some(text) = small_text(&path) else { continue };
        for (is_install, option, values) in pip_options(&text) {
            let is_foreign = path == own && !is_active;
            let named_by = path.display().to_string();
            let is_index = option != "find-links";
            let place = |url| Place { url, is_index, named_by: named_by.clone(), is_foreign };
            options.insert((is_install, option), values.into_iter().map(place).collect());
        }
    }
    let mut option = |name: &str| {
        let variable = format!("PIP_{}", name.to_uppercase().replace('-', "_"));
        let of_variable = of_variable(&variable, |text| pip_values(name, text));
        if !of_variable.is_empty() {
            return of_variable;
        }
        let global = options.remove(&(false, name.to_owned()));
        options.remove(&(true, name.to_owned())).or(global).unwrap_or_default()
    };
    Sources {
        index: option("index-url").into_iter().next(),
        others: ["extra-index-url", "find-links"].into_iter().flat_map(option).collect(),
        unread: Vec::new(),
    }
}

/// What uv gets wheels from for the environment at `root`, of a project if it has one. It reads its configuration itself.
pub(super) fn of_uv(root: &Path, project: Option<&Path>, is_active: bool) -> Sources {
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

/// What `uv pip` gets the packages `names` from, as the lock file of a project says: it knows the index of each, also of one
/// that the project asks for only some packages. If they come from several, or from none, what uv is configured for.
pub(super) fn of_lock(root: &Path, project: &Path, names: &[&str], is_active: bool) -> Sources {
    let path = project.join("uv.lock");
    let lock = std::fs::read_to_string(&path).ok().and_then(|text| text.parse().ok());
    let lock: toml::Table = lock.unwrap_or_default();
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let named = packages.filter(|package| {
        package.get("name").and_then(toml::Value::as_str).is_some_and(|name| names.contains(&name))
    });
    let urls = named.map(|package| package.get("source")?.get("registry")?.as_str());
    let urls: Option<BTreeSet<&str>> = urls.collect();
    match urls.map(Vec::from_iter).as_deref() {
        Some([url]) if url.starts_with("https://") || url.starts_with("http://") => {
            let is_foreign =
                !is_active && !env::current_dir().is_ok_and(|at| at.starts_with(project));
            let named_by = path.display().to_string();
            let index = Place { url: (*url).to_owned(), is_index: true, named_by, is_foreign };
            Sources { index: Some(index), ..Sources::default() }
        }
        _ => of_uv(root, None, is_active),
    }
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
fn uv_places(path: &Path, is_foreign: bool) -> Vec<Place> {
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
            places.extend(values.into_iter().filter_map(url).map(|url| Place {
                url,
                is_index: key != "find-links",
                named_by: named_by.clone(),
                is_foreign,
            }));
        }
    }
    places
}

/// The directory of the user's configuration.
fn configuration_directory() -> Option<PathBuf> {
    let named = image::variable("XDG_CONFIG_HOME").map(PathBuf::from);
    named.or_else(|| image::variable("HOME").map(|home| PathBuf::from(home).join(".config")))
}

/// The places that a variable of the user names, whose `values` say which URLs are in its text.
fn of_variable(name: &str, values: impl Fn(&str) -> Vec<String>) -> Vec<Place> {
    let text = image::variable(name).and_then(|text| text.into_string().ok());
    let mut urls = values(text.unwrap_or_default().as_str());
    urls.retain(|url| !url.is_empty());
    let is_index = !name.ends_with("FIND_LINKS");
    let place = |url| Place { url, is_index, named_by: name.to_owned(), is_foreign: false };
    urls.into_iter().map(place).collect()
}

/// The values in the text of an option of pip: there is one index, and any number of other places.
fn pip_values(option: &str, text: &str) -> Vec<String> {
    if ["extra-index-url", "find-links"].contains(&option) {
        text.split_whitespace().map(str::to_owned).collect()
    } else {
        let lines = text.lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).take(1).map(str::to_owned).collect()
    }
}

/// The options that count for `pip install` in a configuration file of pip: whether each is in its own section, the name
/// and the values, which can be on lines below the name.
fn pip_options(text: &str) -> Vec<(bool, String, Vec<String>)> {
    let mut section = "";
    let mut options: Vec<(bool, String, String)> = Vec::new();
    // Whether further lines belong to the last option.
    let mut is_open = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with([' ', '\t']) && is_open {
            if let Some((.., value)) = options.last_mut() {
                value.push('\n');
                value.push_str(trimmed);
            }
        } else if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
        {
            (section, is_open) = (name, false);
        } else if let Some((key, value)) = trimmed.split_once(['=', ':']) {
            is_open = ["global", "install"].contains(&section);
            if is_open {
                let key = key.trim().to_lowercase().replace('_', "-");
                let key = key.trim_start_matches("--").to_owned();
                options.push((section == "install", key, value.trim().to_owned()));
            }
        }
    }
    let values = options.into_iter().map(|(is_install, option, value)| {
        let values = pip_values(&option, &value);
        (is_install, option, values)
    });
    values.filter(|(.., values)| !values.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_pip() {
        for (text, expected) in [
            ("[global]\nindex-url = https://a/simple\n", &[(false, "https://a/simple")][..]),
            ("[global]\nindex_url=a\n[install]\nindex-url: b\n", &[(false, "a"), (true, "b")]),
            ("[list]\nindex-url = a\n", &[]),
            ("[global]\n# index-url = a\nextra-index-url = b\n", &[]),
            ("[global]\nindex-url =\n  # why\n  a\n  b\n", &[(false, "a")]),
            ("[install]\ntimeout = 9\n  index-url = a\n--index-url = b\n", &[(true, "b")]),
        ] {
            let options = pip_options(text).into_iter();
            let found = options.filter(|(_, name, _)| name == "index-url");
            let found = Vec::from_iter(found.map(|(install, _, values)| (install, values)));
            let expected = expected.iter();
            let expected = expected.map(|(install, value)| (*install, vec![(*value).to_owned()]));
            assert_eq!(found, Vec::from_iter(expected), "{text}");
        }
    }

    #[test]
    fn options_of_pip_with_several_values() {
        for (text, option, expected) in [
            ("extra-index-url = a b\n", "extra-index-url", &["a", "b"][..]),
            ("extra-index-url =\n  # why\n  a\n\n  b c\n", "extra-index-url", &["a", "b", "c"]),
            ("find-links = a\n\tb\ntimeout = 9\n  c\n", "find-links", &["a", "b"]),
        ] {
            let options = pip_options(&format!("[global]\n{text}")).into_iter();
            let found =
                options.filter(|(_, name, _)| name == option).flat_map(|(.., values)| values);
            assert_eq!(Vec::from_iter(found), expected, "{text}");
        }
    }

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
