//! Parses the make rules in which a compiler lists included files.

use std::path::PathBuf;

/// The target passed to the compiler for its rules. It is fixed because a path could contain a
/// colon, and no name of a header: the target is not among the files.
pub(super) const TARGET: &str = "kpack-target";

/// The files after the colon in rules for [`TARGET`], as clang writes them (`PrintFilename` in
/// `DependencyFile.cpp`): `$$` is a dollar sign and `\#` a hash sign. A backslash precedes a space
/// in a name, and backslashes before it are doubled. Rules may name the target twice
/// (`kpack-target kpack-target:`).
pub(super) fn dependencies(rules: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut name = String::new();
    let mut rest = rules.chars().peekable();
    let mut backslashes = 0;
    while let Some(next) = rest.next() {
        if next == '\\' {
            backslashes += 1;
            continue;
        }
        let literal = match next {
            '#' => backslashes - usize::from(backslashes > 0),
            ' ' => backslashes / 2,
            '\n' => backslashes - usize::from(backslashes > 0),
            _ => backslashes,
        };
        name.extend(std::iter::repeat_n('\\', literal));
        let escaped = backslashes % 2 == 1;
        backslashes = 0;
        match next {
            ' ' if escaped => name.push(' '),
            '$' if rest.peek() == Some(&'$') => {
                rest.next();
                name.push('$');
            }
            ' ' | '\n' => found.push(std::mem::take(&mut name)),
            other => name.push(other),
        }
    }
    found.push(name);
    let target = format!("{TARGET}:");
    let mut files: Vec<PathBuf> = Vec::new();
    for name in found.into_iter().filter(|name| !name.is_empty()) {
        if name != target {
            files.push(name.into());
        } else if files.last().is_some_and(|last| last.as_os_str() == TARGET) {
            files.pop();
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::dependencies;

    fn names(rules: &str) -> Vec<String> {
        let paths =
            dependencies(&rules.replace("T:", "kpack-target:").replace("T ", "kpack-target "))
                .into_iter();
        paths.map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn what_clang_escapes() {
        assert_eq!(names("T: a.hip dir/b.h\n"), ["a.hip", "dir/b.h"]);
        assert_eq!(names("T: a.hip \\\n  b.h \\\n  c.h\n"), ["a.hip", "b.h", "c.h"]);
        assert_eq!(names("T: sp\\ $$ace\\ \\#1/b\\ h.h\n"), ["sp $ace #1/b h.h"]);
        // `odd\ name.h`, and `back\slash.h`
        assert_eq!(names("T: odd\\\\\\ name.h back\\slash.h"), ["odd\\ name.h", "back\\slash.h"]);
        assert_eq!(names("T: /a: b/c.h"), ["/a:", "b/c.h"]);
    }

    #[test]
    fn a_rule_for_each_pass() {
        assert_eq!(names("T: a.hip b.h\nT: a.hip c.h\n"), ["a.hip", "b.h", "a.hip", "c.h"]);
        assert_eq!(names("T T: a.hip x\nT T: c.h x\n"), ["a.hip", "x", "c.h", "x"]);
        assert_eq!(names(""), [""; 0]);
    }
}
