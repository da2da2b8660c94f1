//! Where installers get wheels from, as far as their configuration says.

use std::path::PathBuf;

use kpack_core::words::list;

use crate::image;
use crate::remedy::{is_shown, masked};

/// Where an installer gets wheels from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// The index that a command names.
    pub(super) index: Option<Source>,
    /// Further places, which the installer reads in its configuration itself.
    pub(super) others: Vec<Source>,
    /// Places that a configuration names which the installer does not read from here.
    pub(super) unread: Vec<Source>,
}

/// An index of wheels, or a directory or page of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// Its URL, as configured.
    pub(super) url: String,
    /// Whether it is an index.
    pub(super) is_index: bool,
    /// The variable or file that names it.
    pub(super) named_by: String,
    /// Whether only the examined tree names it.
    pub(super) is_foreign: bool,
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
        let urls = |places: &[&Source]| list(places.iter().map(|place| masked(&place.url)));
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

/// The directory of the user's configuration.
pub(super) fn configuration_directory() -> Option<PathBuf> {
    let named = image::variable("XDG_CONFIG_HOME").map(PathBuf::from);
    named.or_else(|| image::variable("HOME").map(|home| PathBuf::from(home).join(".config")))
}

/// The places that a variable of the user names, whose `values` say which URLs are in its text.
pub(super) fn of_variable(name: &str, values: impl Fn(&str) -> Vec<String>) -> Vec<Source> {
    let text = image::variable(name).and_then(|text| text.into_string().ok());
    let mut urls = values(text.unwrap_or_default().as_str());
    urls.retain(|url| !url.is_empty());
    let is_index = !name.ends_with("FIND_LINKS");
    let place = |url| Source { url, is_index, named_by: name.to_owned(), is_foreign: false };
    urls.into_iter().map(place).collect()
}
