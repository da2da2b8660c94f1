//! Rules for kernel files that [`DATABASES`] does not list: `cycles=lib/kernel*_{target}.{fatbin,hipfb}.zst`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use kpack_core::Error;
use kpack_core::publish::is_name_part;
use kpack_format::TargetId;
use kpack_format::unstable::target_names;

use crate::databases::DATABASES;
use crate::place::{Place, matches_pattern};

/// Stands for a GPU target in a pattern.
const TARGET: &str = "{target}";

/// Stands for any number of directories in a pattern.
const ANY_DIRECTORIES: &str = "**";

/// The most patterns that the alternatives in braces may stand for.
const MAX_ALTERNATIVES: usize = 256;

/// The most bytes that these patterns may have together. Each is compared with each path.
const MAX_PATTERNS: usize = 16 << 10;

/// A rule that says which files are kernel files of a program, and where their paths name the GPU target.
///
/// It is written `NAME=PATTERN`. The pattern is compared with the last components of a path, so it matches in any
/// directory. `{target}` stands for a target, once in a component, `*` for anything within a component, `**` for any
/// number of directories, and `{a,b}` for one of several texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFiles {
    name: Arc<str>,
    pattern: String,
    /// A list of components for each choice among the alternatives.
    choices: Vec<Vec<String>>,
}

impl KernelFiles {
    /// What the files are called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads a file with a rule on each line. Blank lines, and lines that begin with `#`, are skipped.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Usage`] for an invalid rule.
    pub fn read(path: &Path) -> Result<Vec<Self>, Error> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, "read", e))?;
        let lines = text.lines().map(str::trim).enumerate();
        let rules = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        rules
            .map(|(index, line)| {
                let in_line = |e| Error::usage(format!("{}:{}: {e}", path.display(), index + 1));
                line.parse().map_err(in_line)
            })
            .collect()
    }

    /// What a path says, given its components; `None` if it is not one of these files.
    pub fn place(&self, path: &[&str]) -> Option<Place> {
        let matches = self.choices.iter().filter_map(|choice| targets_in(path, choice));
        let (_, named) = matches.min_by_key(|(start, _)| *start)?;
        let mut named = named.into_iter();
        let first = named.next()?;
        Some(match named.find(|other| !first.covers(other) && !other.covers(&first)) {
            Some(other) => Place::Contradiction(first, other),
            None => Place::Target(first),
        })
    }
}

impl FromStr for KernelFiles {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |what: &str| Error::usage(format!("rule for kernel files `{text}`: {what}"));
        let (name, pattern) = text.split_once('=').ok_or_else(|| {
            refuse("expected NAME=PATTERN, such as cycles=lib/kernel*_{target}.fatbin.zst")
        })?;
        if !is_name_part(name) || name == "kpack" {
            return Err(refuse("expected a name of letters, digits, `.`, `_`, `+` and `-`"));
        }
        if DATABASES.iter().any(|database| database.name == name) {
            return Err(refuse(
                "this is the name of a kernel database that kpack knows; choose another",
            ));
        }
        let mut choices = Vec::new();
        for choice in alternatives(pattern).map_err(|e| refuse(&e))? {
            let components: Vec<String> = choice.split('/').map(str::to_owned).collect();
            if components.iter().any(|part| matches!(part.as_str(), "" | "." | "..")) {
                return Err(refuse(
                    "expected a relative path without empty components, `.` and `..`",
                ));
            }
            let targets = components.iter().map(|part| part.matches(TARGET).count());
            match targets.max() {
                Some(1) => choices.push(components),
                Some(0) | None => {
                    return Err(refuse("expected {target} where the path names the GPU target"));
                }
                Some(_) => {
                    return Err(refuse("expected {target} only once in a file or directory name"));
                }
            }
        }
        Ok(Self { name: name.into(), pattern: pattern.to_owned(), choices })
    }
}

impl fmt::Display for KernelFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.pattern)
    }
}

/// The patterns that `{a,b}` in a pattern stand for. `{target}` stays.
fn alternatives(pattern: &str) -> Result<Vec<String>, String> {
    let mut found = vec![String::new()];
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, braces) = rest.split_at(at);
        let end = braces.find('}').filter(|end| *end > 0).ok_or("expected `{` and `}` in pairs")?;
        let inside = &braces[1..end];
        if inside.contains('{') {
            return Err("expected no braces in braces".to_owned());
        }
        let words: Vec<&str> = match inside {
            "target" => vec![TARGET],
            _ if inside.contains(',') => inside.split(',').collect(),
            _ => {
                return Err(format!(
                    "`{{{inside}}}`: expected {TARGET}, or alternatives such as {{co,hsaco}}"
                ));
            }
        };
        if found.len() * words.len() > MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives; write several rules"));
        }
        let combined = found
            .iter()
            .flat_map(|start| words.iter().map(move |word| format!("{start}{before}{word}")));
        found = combined.collect();
        rest = &braces[end + 1..];
    }
    found.iter_mut().for_each(|choice| choice.push_str(rest));
    let size = found.iter().map(String::len).sum::<usize>();
    if size > MAX_PATTERNS {
        return Err(format!(
            "its alternatives stand for {size} bytes of patterns (at most {MAX_PATTERNS}); write shorter ones"
        ));
    }
    Ok(found)
}

/// Where the part of a path begins that a pattern matches to its end, and the targets that it names.
///
/// Between two `**`, the first match is taken. If the rest of the pattern matches after a later one, it also matches
/// after the first, so there is nothing to try again: rules come with artifacts that others made.
fn targets_in(path: &[&str], pattern: &[String]) -> Option<(usize, Vec<TargetId>)> {
    let mut runs = pattern.split(|part| part == ANY_DIRECTORIES);
    let last = runs.next_back()?;
    let (mut begin, mut at, mut targets) = (None, 0, Vec::new());
    for run in runs {
        let starts = at..=path.len().checked_sub(run.len())?;
        let mut found = starts.filter_map(|start| Some((start, matching(&path[start..], run)?)));
        let (start, own) = found.next()?;
        begin = begin.or(Some(start));
        at = start + run.len();
        targets.extend(own);
    }
    let start = path.len().checked_sub(last.len()).filter(|start| *start >= at)?;
    targets.extend(matching(&path[start..], last)?);
    // What the file's own name says counts first.
    targets.reverse();
    Some((begin.unwrap_or(start), targets))
}

/// The targets that the first components of a path name, if each matches its part of a pattern.
fn matching(path: &[&str], run: &[String]) -> Option<Vec<TargetId>> {
    let mut targets = Vec::new();
    for (part, name) in run.iter().zip(path) {
        match part.split_once(TARGET) {
            Some((before, after)) => targets.push(target_between(name, before, after)?),
            None if matches_pattern(part, name) => {}
            None => return None,
        }
    }
    Some(targets)
}

/// The target in a name, between what matches the patterns `before` and `after`.
fn target_between(name: &str, before: &str, after: &str) -> Option<TargetId> {
    let mut starts = name.match_indices("gfx").map(|(at, _)| name.split_at(at));
    starts.find_map(|(start, text)| {
        let (target, rest) = target_names::at_start(text)?;
        (matches_pattern(before, start) && matches_pattern(after, rest)).then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> KernelFiles {
        text.parse().unwrap()
    }

    fn place(rule: &KernelFiles, path: &str) -> Option<String> {
        rule.place(&path.split('/').collect::<Vec<_>>()).map(|place| match place {
            Place::Target(target) => target.to_string(),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn a_rule_names_files_and_their_targets() {
        let cycles = rule("cycles=lib/kernel*_{target}.{fatbin,hipfb}.zst");
        for (path, target) in [
            ("bpy/5.0/cycles/lib/kernel_gfx1100.fatbin.zst", Some("gfx1100")),
            ("lib/kernel_rt_gfx1030.hipfb.zst", Some("gfx1030")),
            ("lib/kernel_gfx90a-xnack+.fatbin.zst", Some("gfx90a:xnack+")),
            ("lib/kernel_gfx9-4-generic.fatbin.zst", Some("gfx9-4-generic")),
            ("lib/kernel_sm_75.cubin.zst", None),
            ("lib/kernel_gfx1100.fatbin", None),
            ("lib/kernel_gfx1100y.fatbin.zst", None),
            ("lib/other_gfx1100.fatbin.zst", None),
            ("lib/sub/kernel_gfx1100.fatbin.zst", None),
            ("mylib/kernel_gfx1100.fatbin.zst", None),
        ] {
            assert_eq!(place(&cycles, path).as_deref(), target, "{path}");
        }
    }

    #[test]
    fn the_target_may_be_in_a_directory() {
        let aiter = rule("aiter=hsa/{target}/**/*.co");
        assert_eq!(place(&aiter, "aiter_meta/hsa/gfx942/fmha/fwd.co").as_deref(), Some("gfx942"));
        assert_eq!(place(&aiter, "hsa/gfx950/fwd.co").as_deref(), Some("gfx950"));
        assert_eq!(place(&aiter, "hsa/fwd.co"), None);
        assert_eq!(place(&aiter, "hsa/gfx942/readme.txt"), None);
        let both = rule("x=k/{target}/*_{target}.hsaco");
        assert_eq!(place(&both, "k/gfx942/a_gfx942.hsaco").as_deref(), Some("gfx942"));
        let two = place(&both, "k/gfx942/a_gfx950.hsaco").unwrap();
        assert!(two.starts_with("Contradiction"), "{two}");
    }

    #[test]
    fn between_any_directories_the_first_match_is_taken() {
        for (pattern, path, target) in [
            ("a/**/{target}/**/b/*.co", "a/a/x/gfx942/b/b/k.co", Some("gfx942")),
            ("a/**/{target}/**/b/*.co", "a/gfx942/x/gfx950/b/k.co", Some("gfx942")),
            ("a/**/{target}/**/b/*.co", "a/gfx942/b/x/k.co", None),
            ("a/**/b/{target}.co", "a/b/b/a/b/gfx942.co", Some("gfx942")),
            ("a/**/b/{target}.co", "b/a/gfx942.co", None),
            ("{target}/**", "x/gfx942", Some("gfx942")),
            ("**/{target}/**", "gfx942/gfx950/k", Some("gfx942")),
            ("{x/**,y}/{target}.co", "y/x/gfx942.co", Some("gfx942")),
            ("{target}/{target}.co", "gfx90a/gfx90a-xnack+.co", Some("gfx90a:xnack+")),
        ] {
            assert_eq!(place(&rule(&format!("n={pattern}")), path).as_deref(), target, "{path}");
        }
    }

    /// Backtracking would try each way to place them, which takes longer than the test may.
    #[test]
    fn many_any_directories_are_matched_in_little_time() {
        let path = "a/".repeat(200);
        for part in ["**/", "**/a/", "**/a*/", "**/a/a/"] {
            let rule = rule(&format!("n={}{{target}}.co", part.repeat(40)));
            assert_eq!(place(&rule, &format!("{path}b.co")), None);
            assert_eq!(place(&rule, &format!("{path}gfx942.co")).as_deref(), Some("gfx942"));
        }
        let rule = rule(&format!("n={}{{target}}.co", "*a".repeat(40)));
        assert_eq!(place(&rule, &format!("{}b.co", "a".repeat(200))), None);
    }

    #[test]
    fn invalid_rules_are_rejected() {
        for (text, reason) in [
            ("kernel_{target}.co", "expected NAME=PATTERN"),
            ("a b=kernel_{target}.co", "expected a name of letters"),
            ("rocblas=kernel_{target}.co", "a kernel database that kpack knows"),
            ("a=kernel.co", "expected {target} where"),
            ("a={target}_{target}.co", "only once"),
            ("a=/lib/{target}.co", "expected a relative path"),
            ("a=../{target}.co", "expected a relative path"),
            ("a={target}.{co", "in pairs"),
            ("a={target}.co}", "in pairs"),
            ("a={target}.{a,{b,c}}", "no braces in braces"),
            ("a={gpu}.co", "expected {target}, or alternatives"),
            ("a={target}{1,2,3,4,5,6,7}{1,2,3,4,5,6,7}{1,2,3,4,5,6,7}", "write several rules"),
        ] {
            let error = text.parse::<KernelFiles>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let long = format!("a={{target}}{}", "{x,y}{1,2}".repeat(4) + &"z".repeat(100));
        let error = long.parse::<KernelFiles>().unwrap_err().to_string();
        assert!(error.contains("bytes of patterns (at most 16384)"), "{error}");
        let text = "cycles=lib/kernel*_{target}.{fatbin,hipfb}.zst";
        assert_eq!(rule(text).to_string(), text);
    }
}
