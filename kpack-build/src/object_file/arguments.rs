//! Finds the objects that a compiler writes, from the arguments that gcc, clang and hipcc share.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use kpack_core::platform::{OsStrExt, OsStringExt};

/// How deeply response files may nest; stops one that names itself.
const DEPTH: usize = 16;

/// Options whose value is the next argument, which is then not an input. Options that begin with
/// `-X` take one too.
const WITH_VALUE: [&str; 34] = [
    "--config",
    "--include-directory",
    "--language",
    "--param",
    "--sysroot",
    "-B",
    "-D",
    "-F",
    "-I",
    "-L",
    "-MF",
    "-MJ",
    "-MQ",
    "-MT",
    "-T",
    "-U",
    "-arch",
    "-cxx-isystem",
    "-dumpbase",
    "-dumpdir",
    "-idirafter",
    "-imacros",
    "-imultilib",
    "-include",
    "-include-pch",
    "-iprefix",
    "-iquote",
    "-isysroot",
    "-isystem",
    "-iwithprefix",
    "-iwithprefixbefore",
    "-mllvm",
    "-target",
    "-x",
];
/// Extensions of source files. Without `-x`, files with other extensions go to the linker.
const SOURCES: [&str; 14] =
    ["C", "S", "bc", "c", "c++", "cc", "cp", "cpp", "cppm", "cu", "cxx", "hip", "i", "s"];

/// The output that a compiler is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Compilation {
    /// The files it writes; empty unless it is asked for objects (for example, when it links). A
    /// file may still turn out not to be an object.
    pub(super) outputs: Vec<PathBuf>,
    /// Whether it is asked for LLVM bitcode.
    pub(super) bitcode: bool,
}

impl Compilation {
    /// Reads the arguments after the compiler's name, including those in response files.
    pub(super) fn of(arguments: &[OsString]) -> Self {
        let mut all = Vec::new();
        expand(arguments, DEPTH, &mut all);
        let mut compiles = false;
        let mut bitcode = false;
        let mut output = None;
        let mut inputs = Vec::new();
        let mut any_language = false;
        let mut rest = all.iter();
        while let Some(argument) = rest.next() {
            let bytes = argument.as_bytes();
            match bytes {
                b"-c" | b"--compile" => compiles = true,
                b"-emit-llvm" => bitcode = true,
                b"-o" | b"--output" => output = rest.next().map(PathBuf::from),
                _ if bytes.starts_with(b"--output=") => output = Some(path(&bytes[9..])),
                _ if bytes.starts_with(b"-o") => output = Some(path(&bytes[2..])),
                _ if bytes.starts_with(b"-X") => _ = rest.next(),
                _ if WITH_VALUE.iter().any(|option| argument == option) => {
                    any_language |= matches!(bytes, b"-x" | b"--language");
                    rest.next();
                }
                _ if bytes.starts_with(b"-x") => any_language = true,
                _ if bytes.starts_with(b"-") => {}
                _ => inputs.push(Path::new(argument)),
            }
        }
        let is_source = |input: &Path| {
            let extension = input.extension();
            any_language || SOURCES.iter().any(|known| extension == Some(OsStr::new(known)))
        };
        let outputs = match (compiles, output) {
            (false, _) => Vec::new(),
            (true, Some(output)) => vec![output],
            (true, None) => {
                let sources = inputs.into_iter().filter(|input| is_source(input));
                let names = sources.filter_map(Path::file_name);
                names.map(|name| Path::new(name).with_extension("o")).collect()
            }
        };
        Self { outputs, bitcode }
    }
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Replaces each response file (`@file`) by its arguments. As compilers do, keeps the name of an
/// unreadable file as an argument.
fn expand(arguments: &[OsString], depth: usize, all: &mut Vec<OsString>) {
    for argument in arguments {
        let file = argument.as_bytes().strip_prefix(b"@");
        let text = file.filter(|_| depth > 0).and_then(|file| fs::read(path(file)).ok());
        match text {
            Some(text) => expand(&words(&text), depth - 1, all),
            None => all.push(argument.clone()),
        }
    }
}

/// Splits a response file into words at white space. Supports single and double quotes, and `\`
/// before a literal character (GCC, "Options Controlling the Kind of Output", `@file`). Not the rules
/// of a shell (`shlex`), where `#` starts a comment and `\` is literal in single quotes.
fn words(text: &[u8]) -> Vec<OsString> {
    let mut found = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => word.get_or_insert_default().extend(bytes.next()),
            _ if quote == Some(byte) => quote = None,
            _ if quote.is_some() => word.get_or_insert_default().push(byte),
            b'"' | b'\'' => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            _ if byte.is_ascii_whitespace() => found.extend(word.take()),
            _ => word.get_or_insert_default().push(byte),
        }
    }
    found.extend(word);
    found.into_iter().map(OsString::from_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let outputs = Compilation::of(&words).outputs;
        outputs.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn an_output_is_what_an_option_says_or_the_name_of_the_source() {
        for (line, expected) in [
            ("-c a.cpp -o b.o", vec!["b.o"]),
            ("-c a.cpp -ob.o", vec!["b.o"]),
            ("-c a.cpp --output b.o", vec!["b.o"]),
            ("-c a.cpp --output=b.o", vec!["b.o"]),
            ("-o first.o -c a.cpp -o last.o", vec!["last.o"]),
            ("--compile src/a.b.cpp", vec!["a.b.o"]),
            ("-c a.hip ../b.cu -I x.cpp -DX", vec!["a.o", "b.o"]),
            ("-c -x hip kernels -include pre.hip", vec!["kernels.o"]),
            ("-c -Xclang a.c -Xarch_host b.c c.c", vec!["c.o"]),
            ("-c a.cpp libb.so", vec!["a.o"]),
            ("a.cpp -o program", vec![]),
            ("-E a.cpp -o a.i", vec![]),
            ("-S a.cpp", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(outputs(line), expected, "{line}");
        }
    }

    #[test]
    fn response_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            format!("@{}", path.display())
        };
        let inner = file("inner", "-o 'of \"two\" words.o'");
        let outer = file("outer", &format!("-c a\\ b.cpp\n\t\"{inner}\" -DX=\"\""));
        let compilation = Compilation::of(&[outer.into()]);
        assert_eq!(compilation.outputs, [Path::new("of \"two\" words.o")]);
        assert_eq!(outputs("-c a.cpp @missing"), ["a.o"]);
        let itself = directory.path().join("itself");
        fs::write(&itself, format!("-c a.cpp @{}", itself.display())).unwrap();
        assert!(!Compilation::of(&[format!("@{}", itself.display()).into()]).outputs.is_empty());
    }
}
