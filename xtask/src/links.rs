//! Tests that the links of the documents lead somewhere in the repository, in a second and without mdBook. `cargo xtask book`
//! checks the links of the handbook, whose pages are elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{book, repository};

/// The lines of a page that are not in a block of code.
fn prose(page: &Path) -> Vec<String> {
    let text =
        fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// The names of the headings of a page, as they stand in links.
fn places(page: &Path) -> BTreeSet<String> {
    let headings = prose(page).into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| place(line.trim_start_matches('#').trim())).collect()
}

fn place(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then_some(c),
    };
    heading.to_lowercase().chars().filter_map(kept).collect()
}

/// Why a link of a page leads nowhere.
fn broken(page: &Path, link: &str) -> Option<String> {
    let (file, place) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.into() } else { page.with_file_name(file) };
    if !target.exists() {
        return Some(format!("{}: {link}: there is no such file", page.display()));
    }
    (!place.is_empty() && !places(&target).contains(place))
        .then(|| format!("{}: {link}: the page has no such heading", page.display()))
}

#[test]
fn the_links_of_the_documents_lead_somewhere() {
    let mut pages = book::documents().unwrap();
    pages.extend(repository::files_with_extension(repository::root(), "md").unwrap());
    let mut count = 0;
    let mut wrong = Vec::new();
    for page in pages {
        for line in prose(&page) {
            let links = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            for (link, _) in links.filter(|(link, _)| !link.contains("://")) {
                wrong.extend(broken(&page, link));
                count += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 300, "{count} links");
}
