//! Libraries that ROCm's libraries load by name while they run, which no table in their files lists.

use std::fs::File;
use std::path::Path;

use kpack_core::Error;
use kpack_split::elf::ReadAt;
use kpack_tree::place::matches_pattern;

/// A library that others load by name.
struct ByName {
    /// The files that load it; a `*` stands for anything.
    loaded_by: &'static [&'static str],
    /// How its name begins.
    start: &'static str,
    /// Whether these others do not work without it.
    is_required: bool,
}

/// All of them, as ROCm 5.2 to 7.14 load them.
const BY_NAME: &[ByName] = &[
    ByName {
        // It compiles kernels, and those of the HIP runtime itself in particular.
        loaded_by: &["libamdhip64*.so*", "libhiprtc*.so*", "amdhip64*.dll", "hiprtc*.dll"],
        start: "amd_comgr",
        is_required: true,
    },
    ByName { loaded_by: &["libhipblas*.so*"], start: "rocsolver", is_required: false },
];

/// A library that is loaded by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedLibrary {
    pub(crate) name: String,
    /// Whether what loads it does not work without it.
    pub(crate) is_required: bool,
}

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// The longest name, in bytes.
const LONGEST: usize = 64;

/// What the file at `path` loads by name, apart from what it is linked with: whoever vendors libraries often links what was
/// loaded by name.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub(crate) fn names<'n>(
    path: &Path,
    file: &File,
    linked: impl Iterator<Item = &'n str> + Clone,
) -> Result<Vec<NamedLibrary>, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folded = name.to_ascii_lowercase();
    let is_dll = folded.ends_with(".dll");
    let name = if is_dll { &*folded } else { &*name };
    let mut found = Vec::new();
    for library in BY_NAME {
        let is_linked = |name: &str| {
            let name = name.strip_prefix("lib").unwrap_or(name);
            name.starts_with(library.start)
        };
        let mut patterns = library.loaded_by.iter();
        if !patterns.any(|pattern| matches_pattern(pattern, name)) || linked.clone().any(is_linked)
        {
            continue;
        }
        let start =
            if is_dll { library.start.to_owned() } else { format!("lib{}.so", library.start) };
        let name = name_in(file, &start, is_dll).map_err(|e| Error::io(path, "read", e))?;
        let is_required = library.is_required;
        found.extend(name.map(|name| NamedLibrary { name, is_required }));
    }
    Ok(found)
}

/// The first name of a library in a file that begins like this.
fn name_in(file: &File, start: &str, is_dll: bool) -> std::io::Result<Option<String>> {
    let size = file.size()?;
    let mut piece = vec![0; PIECE + LONGEST];
    for offset in (0..size).step_by(PIECE) {
        let length = (size - offset).min(piece.len() as u64) as usize;
        let piece = &mut piece[..length];
        file.read_exact_at(offset, piece)?;
        let first = start.as_bytes()[0];
        let candidates = piece.iter().enumerate().filter(|(_, byte)| **byte == first);
        for (at, _) in candidates.take_while(|(at, _)| *at < PIECE) {
            let rest = &piece[at..];
            if rest.starts_with(start.as_bytes())
                && let Some(name) = library_name(rest, is_dll)
            {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

/// The name that is at the start of these bytes and ends with NUL, if it is one that is loaded: a file without a version is for
/// linkers.
fn library_name(bytes: &[u8], is_dll: bool) -> Option<String> {
    let end = bytes.iter().take(LONGEST).position(|byte| *byte == 0)?;
    let name = str::from_utf8(&bytes[..end]).ok()?;
    let is_name = if is_dll {
        name.ends_with(".dll")
    } else {
        let (_, version) = name.split_once(".so.")?;
        version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    (is_name && name.chars().all(is_plain)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use kpack_tests::tree::Tree;

    use super::*;

    #[test]
    fn names_are_read_from_what_loads_them() {
        let tree = Tree::new();
        let names_in = |name: &str, content: &[u8], linked: &[&str]| {
            tree.write(name, content);
            let path = tree.path(name);
            let found = names(&path, &File::open(&path).unwrap(), linked.iter().copied()).unwrap();
            Vec::from_iter(found.into_iter().map(|library| (library.name, library.is_required)))
        };
        let required = |name: &str| vec![(name.to_owned(), true)];
        let comgr = b"\0libamd_comgr.so\0libamd_comgr.so.3\0";
        assert_eq!(
            names_in("libamdhip64.so.6", comgr, &["libc.so.6"]),
            required("libamd_comgr.so.3")
        );
        // An auditor of wheels has linked it.
        assert_eq!(names_in("libamdhip64.so.6", comgr, &["libamd_comgr-8aab37bd.so.3"]), []);
        assert_eq!(names_in("libother.so.6", comgr, &[]), []);
        assert_eq!(names_in("libhiprtc.so.6", b"\0libamd_comgr.so\0", &[]), []);
        assert_eq!(names_in("libhiprtc.so.6", b"libamd_comgr.so.3", &[]), []);
        assert_eq!(names_in("amdhip64_7.dll", b"Camd_comgr.dll\0", &[]), required("amd_comgr.dll"));
        assert_eq!(
            names_in("AMDHIP64.DLL", b"amd_comgr_2.dll\0", &["KERNEL32.dll"]),
            required("amd_comgr_2.dll")
        );
        let optional = vec![("librocsolver.so.0".to_owned(), false)];
        assert_eq!(names_in("libhipblas.so.2", b"\0librocsolver.so.0\0", &[]), optional);
        // A name may be where two pieces meet.
        let mut content = vec![b'l'; PIECE - 3];
        content.extend(comgr);
        assert_eq!(names_in("libhiprtc.so.6", &content, &[]), required("libamd_comgr.so.3"));
    }
}
