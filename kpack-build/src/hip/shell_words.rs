//! Splits an environment variable into words, with quotes as in a shell.

/// Splits at white space outside of quotes. A backslash escapes the next character, except in
/// single quotes. An unclosed quote ends with the text.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match (quote, next) {
            (Some(open), _) if next == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(next),
            (_, '\\') => {
                let word = word.get_or_insert_default();
                match (quote, rest.next()) {
                    // In double quotes it stays before a character without special meaning.
                    (Some(_), Some(other)) if !"\"\\$`".contains(other) => {
                        word.extend(['\\', other]);
                    }
                    (_, other) => word.extend(other),
                }
            }
            (Some(_), _) => word.get_or_insert_default().push(next),
            (None, '"' | '\'') => {
                quote = Some(next);
                word.get_or_insert_default();
            }
            (None, _) if next.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(next),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn words_and_quotes() {
        assert_eq!(split("  -O2\t-g "), ["-O2", "-g"]);
        assert_eq!(
            split(r#"-DX="a b" '-DY="c d"'"#),
            ["-DX=a b", "-DY=\"c d\""]
        );
        assert_eq!(
            split(r#"-I/a\ b "\"q\" \n" ''"#),
            ["-I/a b", "\"q\" \\n", ""]
        );
        assert_eq!(split(""), [""; 0]);
    }
}
