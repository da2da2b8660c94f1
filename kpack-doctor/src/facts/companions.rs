//! What ROCm's libraries load by name, or read, while they run. No table in their files lists it, hence this one.

use std::fs::File;
use std::path::{Path, PathBuf};

use kpack_core::Error;
use kpack_core::files::{self, metadata_of};
use kpack_split::elf::ReadAt;
use kpack_tree::databases::{self, installed};
use kpack_tree::place::matches_pattern;
use memchr::memmem::Finder;

/// What some libraries load or read.
struct Companions {
    /// The [stems](stem) of these libraries; a `*` stands for anything.
    of: &'static [&'static str],
    /// A library whose name is in their files.
    named: Option<Named>,
    /// The stems of libraries in their directory whose names they make up.
    beside: &'static [&'static str],
    /// Files and directories, relative to their directory. A `*` stands for anything in a name.
    read: &'static [&'static str],
}

/// A library that others load by a name that is in their files.
struct Named {
    /// How its stem begins.
    start: &'static str,
    /// Whether these others do not work without it.
    is_required: bool,
}

/// The defaults of a row.
const COMPANIONS: Companions = Companions { of: &[], named: None, beside: &[], read: &[] };

/// All of them, for ROCm 5.2 to 7.14. Kernel databases are in [`databases`], with their libraries.
const ALL: &[Companions] = &[
    Companions {
        // It compiles kernels, and those of the HIP runtime itself in particular.
        of: &["amdhip64*", "hiprtc*"],
        named: Some(Named { start: "amd_comgr", is_required: true }),
        ..COMPANIONS
    },
    Companions {
        of: &["hipblas*"],
        named: Some(Named { start: "rocsolver", is_required: false }),
        ..COMPANIONS
    },
    // It contains the same header, and so works without this library.
    Companions { of: &["hiprtc*"], beside: &["hiprtc-builtins*"], ..COMPANIONS },
    Companions { of: &["hsa-runtime64*"], beside: &["hsa-amd-aqlprofile64*"], ..COMPANIONS },
    Companions {
        of: &["miopen", "miopen-*"],
        beside: &["miopenck*"],
        read: &["../share/miopen"],
        ..COMPANIONS
    },
    Companions {
        // Clang's bitcode for the functions of the device. The library contains it, and so works without these files.
        of: &["amd_comgr*"],
        read: &["amdgcn/bitcode", "../amdgcn/bitcode", "llvm/lib/clang/*/lib/amdgcn/bitcode"],
        ..COMPANIONS
    },
    Companions {
        of: &["rocfft", "rocfft-*"],
        read: &["rocfft", "rocfft_rtc_helper*", "../bin/rocfft_rtc_helper*"],
        ..COMPANIONS
    },
    Companions { of: &["rccl", "rccl-*"], read: &["../share/rccl"], ..COMPANIONS },
    // PyTorch has a copy of AOTriton's kernels.
    Companions {
        of: &["aotriton*", "torch_hip"],
        read: &["aotriton.images", "aotriton/kernels"],
        ..COMPANIONS
    },
    // The names of GPUs.
    Companions { of: &["rocm_sysdeps_drm_amdgpu*"], read: &["../share/libdrm"], ..COMPANIONS },
];

/// The name of a library in lower case, without what systems put before and after it; `None` for other files.
fn stem(file_name: &str) -> Option<String> {
    let name = file_name.to_ascii_lowercase();
    if let Some(stem) = name.strip_suffix(".dll") {
        // Tools for Linux also build DLLs that begin so.
        return Some(stem.strip_prefix("lib").unwrap_or(stem).to_owned());
    }
    let (stem, version) = name.strip_prefix("lib")?.split_once(".so")?;
    (version.is_empty() || version.starts_with('.')).then(|| stem.to_owned())
}

/// The rows for a library.
fn rows(file_name: &str) -> impl Iterator<Item = &'static Companions> {
    let stem = stem(file_name);
    let is_of = move |row: &&Companions| {
        stem.as_ref().is_some_and(|stem| row.of.iter().any(|of| matches_pattern(of, stem)))
    };
    ALL.iter().filter(is_of)
}

/// The libraries in `directory` that the library `name` there loads by names that it makes up.
///
/// # Errors
/// [`Error::Io`].
pub fn libraries_beside(directory: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let wanted = Vec::from_iter(rows(name).flat_map(|row| row.beside));
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = files::list(directory)?;
    found.retain(|path| {
        let stem = stem(&path.file_name().unwrap_or_default().to_string_lossy());
        let is_wanted = |stem: &String| wanted.iter().any(|pattern| matches_pattern(pattern, stem));
        stem.as_ref().is_some_and(is_wanted) && path.is_file()
    });
    Ok(found)
}

/// The files and directories that the library `name` in `directory` reads: its kernel database, and others.
///
/// # Errors
/// [`Error::Io`].
pub fn data_of(directory: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    if let Some(own) = databases::of_library(name) {
        let roots = databases::roots(directory);
        let (installed, unlisted) = installed(&roots, &|other| other.name == own.name);
        if let Some(error) = unlisted.into_iter().next() {
            return Err(error);
        }
        found.extend(installed.into_iter().map(|database| database.directory));
    }
    for pattern in rows(name).flat_map(|row| row.read) {
        found.extend(paths(directory, pattern)?);
    }
    found.sort();
    // What is in another one is found with it.
    found.dedup_by(|next, first| next.starts_with(&*first));
    Ok(found)
}

/// What is at a path relative to `directory`, with patterns in its names.
fn paths(directory: &Path, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let mut found = vec![directory.to_owned()];
    for part in pattern.split('/') {
        let mut next = Vec::new();
        for above in found {
            if part == ".." {
                next.extend(above.parent().map(Path::to_owned));
            } else if part.contains('*') {
                if metadata_of(&above)?.is_some_and(|there| there.is_dir()) {
                    let names = files::list(&above)?.into_iter();
                    next.extend(names.filter(|path| {
                        let name = path.file_name().unwrap_or_default().to_string_lossy();
                        matches_pattern(part, &name)
                    }));
                }
            } else {
                next.push(above.join(part));
            }
        }
        found = next;
    }
    let mut there = Vec::new();
    for path in found {
        if metadata_of(&path)?.is_some() {
            there.push(path);
        }
    }
    Ok(there)
}

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

/// What the file at `path` loads by name, apart from what it is linked with. Whoever vendors libraries often links what was
/// loaded by name, and renames it; and ROCm can be built to link a loader, `libamd_comgr_loader`, instead of comgr. The old name
/// is needed in both cases.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read.
pub(crate) fn names<'n>(
    path: &Path,
    file: &File,
    linked: impl Iterator<Item = &'n str> + Clone,
) -> Result<Vec<NamedLibrary>, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_dll = name.to_ascii_lowercase().ends_with(".dll");
    let mut found = Vec::new();
    for library in rows(&name).filter_map(|row| row.named.as_ref()) {
        let mut stems = linked.clone().filter_map(stem);
        if stems.any(|stem| stem == library.start) {
            continue;
        }
        let start =
            if is_dll { library.start.to_owned() } else { format!("lib{}.so", library.start) };
        let name = name_in(file, &start, is_dll).map_err(|e| Error::io(path, "read", e))?;
        let name = name.filter(|name| !linked.clone().any(|linked| linked == name));
        let is_required = library.is_required;
        found.extend(name.map(|name| NamedLibrary { name, is_required }));
    }
    Ok(found)
}

/// The first name of a library in a file that begins like this.
fn name_in(file: &File, start: &str, is_dll: bool) -> std::io::Result<Option<String>> {
    let size = file.size()?;
    let starts = Finder::new(start.as_bytes());
    let mut piece = vec![0; PIECE + LONGEST];
    for offset in (0..size).step_by(PIECE) {
        let length = (size - offset).min(piece.len() as u64) as usize;
        let piece = &mut piece[..length];
        file.read_exact_at(offset, piece)?;
        let here = starts.find_iter(piece).take_while(|at| *at < PIECE);
        if let Some(name) = here.filter_map(|at| library_name(&piece[at..], is_dll)).next() {
            return Ok(Some(name));
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

    /// Given a directory of ROCm for Linux and one for Windows, then each library has what it loads and reads, and others have not.
    #[test]
    fn what_is_beside_libraries() {
        let tree = Tree::new();
        for file in [
            "lib/libhiprtc-builtins.so.7",
            "lib/libMIOpenCKGroupedConv_gfx942.so",
            "lib/rocblas/library/TensileLibrary_gfx942.co",
            "amdgcn/bitcode/ocml.bc",
            "share/miopen/db/gfx942.kdb",
            "bin/hiprtc-builtins0700.dll",
            "bin/MIOpenCK_gfx942.dll",
            "bin/rocblas/library/TensileLibrary_gfx942.co",
            "bin/rocfft_rtc_helper.exe",
            "bin/aotriton.images/amd-gfx942/a.aks2",
        ] {
            tree.write(file, "");
        }
        for (directory, library, expected) in [
            ("lib", "libhiprtc.so.7", &["lib/libhiprtc-builtins.so.7"][..]),
            ("lib", "libMIOpen.so.1", &["lib/libMIOpenCKGroupedConv_gfx942.so", "share/miopen"]),
            ("lib", "librocblas-1a2b3c4d.so.5", &["lib/rocblas/library"]),
            ("lib", "libamd_comgr.so.3", &["amdgcn/bitcode"]),
            ("bin", "hiprtc0700.dll", &["bin/hiprtc-builtins0700.dll"]),
            ("bin", "MIOpen.dll", &["bin/MIOpenCK_gfx942.dll", "share/miopen"]),
            ("bin", "ROCBLAS.dll", &["bin/rocblas/library"]),
            ("bin", "amd_comgr_2.dll", &["amdgcn/bitcode"]),
            ("bin", "rocfft.dll", &["bin/rocfft_rtc_helper.exe"]),
            ("bin", "aotriton_v2.dll", &["bin/aotriton.images"]),
            // Names that only contain those of databases.
            ("lib", "libmy_rocblas_wrapper.so", &[]),
            ("lib", "librocblas.a", &[]),
        ] {
            let at = tree.path(directory);
            let mut found = libraries_beside(&at, library).unwrap();
            found.extend(data_of(&at, library).unwrap());
            let inside = found.iter().map(|path| {
                let path = path.to_str().unwrap().replace("/lib/../", "/").replace("/bin/../", "/");
                path.strip_prefix(tree.root().to_str().unwrap()).unwrap()[1..].to_owned()
            });
            assert_eq!(Vec::from_iter(inside), expected, "{library}");
        }
    }

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
        assert_eq!(names_in("libamdhip64.so.6", comgr, &["libamd_comgr.so.3"]), []);
        // An auditor of wheels has linked it, or it is linked with a loader.
        for linked in ["libamd_comgr-8aab37bd.so.3", "libamd_comgr_loader.so.1"] {
            let found = names_in("libamdhip64.so.6", comgr, &[linked]);
            assert_eq!(found, required("libamd_comgr.so.3"), "{linked}");
        }
        assert_eq!(names_in("amdhip64_7.dll", b"amd_comgr_2.dll\0", &["amd_comgr_2.dll"]), []);
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
