//! pip: where it gets wheels from.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use super::active::is_same;
use super::sources::{Source, Sources, configuration_directory, of_variable};
use crate::image;
use crate::text::small_text;

/// Whether `pip` is that of the environment at `root`.
pub(super) fn is_of(root: &Path) -> bool {
    let path = image::variable("PATH").unwrap_or_default();
    let name = format!("pip{}", env::consts::EXE_SUFFIX);
    let found = env::split_paths(&path).find(|directory| directory.join(&name).is_file());
    let own =
        |found: PathBuf| ["bin", "Scripts"].iter().any(|own| is_same(&root.join(own), &found));
    found.is_some_and(own)
}

/// What pip in the environment at `root` gets wheels from.
pub(super) fn sources(root: &Path, is_active: bool) -> Sources {
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
    let mut options: BTreeMap<(bool, String), Vec<Source>> = BTreeMap::new();
    for path in files {
        let Some(text) = small_text(&path) else { continue };
        for (is_install, option, values) in pip_options(&text) {
            let is_foreign = path == own && !is_active;
            let named_by = path.display().to_string();
            let is_index = option != "find-links";
            let place = |url| Source { url, is_index, named_by: named_by.clone(), is_foreign };
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
                let key =
                    key.trim().to_lowercase().replace('_', "-").trim_start_matches("--").to_owned();
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
            let found = Vec::from_iter(
                options
                    .filter(|(_, name, _)| name == "index-url")
                    .map(|(install, _, values)| (install, values)),
            );
            let expected =
                expected.iter().map(|(install, value)| (*install, vec![(*value).to_owned()]));
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
}
