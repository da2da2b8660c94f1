//! `cargo xtask book`: the handbook, made by mdBook from `docs/` and the description of the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tools::programs::find_program;

use crate::build::{self, Profile};
use crate::glibc::Cargo;
use crate::{process, repository};

/// The version that the pages were read in.
const MDBOOK: &str = "0.4.52";
/// Pages of the repository's root, which the handbook also has.
const OF_ROOT: [&str; 3] = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

const CONFIGURATION: &str = r#"[book]
title = "kpack"
language = "en"

[build]
create-missing = false

[output.html]
no-section-label = true
additional-css = ["wide.css"]
"#;

/// Lines of 100 characters in blocks of code fit beside the list of pages in a window of 1280 pixels, and so does README's
/// table of sizes.
const STYLE: &str = "\
:root { --content-max-width: 1000px; }
.content table { font-size: 0.85em; }
.content table td, .content table thead th { padding: 3px 8px; }
";

/// Makes the handbook in `target/book`, and checks its links.
///
/// # Errors
/// mdBook cannot be had or fails, or a link leads nowhere.
pub(crate) fn run() -> Result<()> {
    let mdbook = mdbook()?;
    let output = repository::empty_directory("book")?;
    let work = output.join("work");
    let pages = work.join("src");
    fs::create_dir_all(&pages)?;
    let root = repository::root();
    let documents = documents()?;
    let titles = titles(&documents)?;
    for page in &documents {
        let name = page.file_name().context("a page has a name")?;
        write_page(page, &pages.join(name), &titles)?;
    }
    for image in repository::files_with_extension(&root.join("docs"), "png")? {
        let name = image.file_name().context("an image has a name")?;
        fs::copy(&image, pages.join(name))?;
    }
    for name in OF_ROOT {
        write_page(&root.join(name), &pages.join(name), &titles)?;
    }
    write_page(&root.join("README.md"), &pages.join("index.md"), &titles)?;
    let kpack = build::helper(&Cargo::System, Profile::Dev)?;
    fs::write(pages.join("options.md"), process::run!("{kpack} documents options")?)?;
    let publisher = crate::package::Publisher::read()?.repository;
    let mut configuration = CONFIGURATION.to_owned();
    if !publisher.is_empty() {
        writeln!(configuration, "git-repository-url = \"{publisher}\"")?;
    }
    fs::write(work.join("book.toml"), configuration)?;
    fs::write(work.join("wide.css"), STYLE)?;
    let html = output.join("html");
    process::run!("{mdbook} build {work} --dest-dir {html}")?;
    for page in repository::files_with_extension(&pages, "md")? {
        let name = page.file_stem().context("a page has a name")?;
        let made = html.join(name).with_extension("html").exists();
        ensure!(made || name == "SUMMARY", "docs/SUMMARY.md does not list {}", page.display());
    }
    check_links(&html)?;
    process::step(&format!("The handbook: {}", html.join("index.html").display()));
    Ok(())
}

/// mdBook: the installed one, or one that is compiled into `target/tools`, without optimisation: it runs for seconds.
fn mdbook() -> Result<PathBuf> {
    if let Some(installed) = find_program("mdbook") {
        return Ok(installed);
    }
    let tools = repository::target_directory().join("tools");
    let program = tools.join("bin/mdbook");
    if !program.exists() {
        process::step("Installing mdBook");
        process::run!(
            "cargo install --locked --debug --config profile.dev.debug=0 --root {tools} mdbook@{MDBOOK} --no-default-features --features search"
        )?;
    }
    Ok(program)
}

/// The pages of both books: the user's in `docs`, the developer's in `docs/dev`.
pub(crate) fn documents() -> Result<Vec<PathBuf>> {
    let docs = repository::root().join("docs");
    let mut pages = repository::files_with_extension(&docs, "md")?;
    pages.extend(repository::files_with_extension(&docs.join("dev"), "md")?);
    Ok(pages)
}

/// The names of the pages, and their titles.
fn titles(pages: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let title = |page: &PathBuf| {
        let text = fs::read_to_string(page)?;
        let title = text.lines().next().unwrap_or_default();
        let title = title.trim_start_matches("# ").to_owned();
        Ok((repository::file_name(page), title))
    };
    pages.iter().map(title).collect()
}

/// Copies a page. In the handbook, all pages are in one directory, and other files of the repository in `files`.
/// A link whose text is the name of a file gets the page's title.
fn write_page(from: &Path, to: &Path, titles: &[(String, String)]) -> Result<()> {
    let mut text = with_files(&fs::read_to_string(from)?, from, to)?;
    for directory in ["docs/", "dev/", "../", "../"] {
        text = text.replace(&format!("]({directory}"), "](");
    }
    text = text.replace("](README.md", "](index.md");
    for (name, title) in titles {
        for shown in ["docs/dev/", "docs/", ""].map(|directory| format!("[{directory}{name}]")) {
            text = text.replace(&shown, &format!("[{title}]"));
        }
    }
    // highlight.js, as mdBook has it, knows no CMake.
    text = text.replace("```cmake", "```text");
    // The only page without a file.
    let last = "  - [create](kpack-create.md)\n";
    text = text.replace(last, &format!("{last}  - [All options](options.md)\n"));
    Ok(fs::write(to, text)?)
}

/// The text of the page `from`, with the files that it links to copied to `files` beside `to`. Links to directories of
/// the repository, which a handbook cannot show, become their names.
fn with_files(text: &str, from: &Path, to: &Path) -> Result<String> {
    let (here, beside) = (parent(from)?, parent(to)?);
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (link, after) = after.split_once(')').unwrap_or((after, ""));
        out.push_str(before);
        rest = after;
        let is_page = link.contains("://")
            || link.starts_with('#')
            || [".md", ".png"].iter().any(|extension| link.contains(extension));
        let file = here.join(link);
        if is_page || !file.exists() {
            write!(out, "]({link})")?;
            continue;
        }
        let file = fs::canonicalize(file)?;
        let name = file.strip_prefix(fs::canonicalize(repository::root())?)?;
        if file.is_dir() {
            let start = out.rfind('[').context("a link has a text")?;
            out.replace_range(start.., &format!("`{}` in the repository", name.display()));
        } else {
            let copy = beside.join("files").join(name);
            fs::create_dir_all(parent(&copy)?)?;
            fs::copy(&file, &copy)?;
            write!(out, "](files/{})", name.display())?;
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn parent(path: &Path) -> Result<&Path> {
    path.parent().context("a page is in a directory")
}

/// Checks that each relative link of each page leads to a page and to a place in it, or to a file.
fn check_links(html: &Path) -> Result<()> {
    let mut places = BTreeMap::new();
    let mut links = Vec::new();
    for file in repository::files_with_extension(html, "html")? {
        let name = file.file_name().context("a page has a name")?;
        let name = name.to_string_lossy().into_owned();
        let text = fs::read_to_string(&file)?;
        let ids: BTreeSet<String> = values(&text, "id=\"").map(str::to_owned).collect();
        // The one page for printing has all others.
        if !["print.html", "404.html"].contains(&name.as_str()) {
            links.extend(values(&text, "href=\"").map(|link| (name.clone(), link.to_owned())));
            for image in values(&text, "src=\"").filter(|image| image.ends_with(".png")) {
                let found = image.contains("://") || html.join(image).exists();
                ensure!(found, "{name} shows {image}, which does not exist");
            }
        }
        places.insert(name, ids);
    }
    let broken = links.iter().filter(|(page, link)| {
        let (file, place) = link.split_once('#').unwrap_or((link, ""));
        let file = if file.is_empty() { page } else { file };
        let leads = match places.get(file) {
            Some(ids) => place.is_empty() || ids.contains(place),
            None => html.join(file).is_file(),
        };
        !link.contains("://") && !leads
    });
    let broken = Vec::from_iter(broken.map(|(page, link)| format!("{page}: {link}")));
    ensure!(broken.is_empty(), "links lead nowhere:\n{}", broken.join("\n"));
    let (pages, links) = (places.len(), links.len());
    ensure!(pages > 20 && links > 500, "{pages} pages with {links} links");
    println!("   {pages} pages, {links} links");
    Ok(())
}

/// The values of an attribute.
fn values<'t>(text: &'t str, attribute: &'t str) -> impl Iterator<Item = &'t str> {
    let parts = text.split(attribute).skip(1);
    parts.filter_map(|part| part.split_once('"').map(|(value, _)| value))
}
