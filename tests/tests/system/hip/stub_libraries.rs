//! Stand-ins for missing libraries that a real library needs. Each has the symbols, with their versions,
//! that the real library wants from it. The stand-in for the HIP runtime is the stub.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use object::read::ReadCache;
use object::read::elf::{ElfFile64, FileHeader, Sym};
use object::{Endianness, elf};

use super::runtime::{self, Runtime};
use crate::support::run;

/// What a library needs from other libraries.
#[derive(Debug, Default)]
struct Needs {
    /// Their names (DT_NEEDED).
    libraries: Vec<String>,
    /// Symbols by library, or `None` if no version names the library.
    symbols: BTreeMap<Option<String>, BTreeSet<Symbol>>,
}

/// A symbol's name, and its version or an empty string.
type Symbol = (String, String);

/// A library with this symbol is the HIP runtime. Many libraries do not need the runtime by name, but
/// need a library that does.
const REGISTER: &str = "__hipRegisterFatBinary";

/// Builds stand-ins in `prefix`: for ROCm's libraries, installed or not, and for all other libraries that
/// `library` needs and the C compiler does not find.
///
/// # Errors
/// A library cannot be read, or the compiler fails.
pub(crate) fn build(library: &Path, prefix: &Path) -> Result<Runtime> {
    let directory = prefix.join("lib");
    fs::create_dir_all(&directory)?;
    let needs = Needs::of(library).with_context(|| library.display().to_string())?;
    // A symbol without a version can come from any of them.
    let mut of_any = needs.symbols.get(&None);
    for name in &needs.libraries {
        // A wheel has libraries of its own.
        if library.with_file_name(name).exists() {
            continue;
        }
        let found = run!("cc -print-file-name={name}")?;
        let found = Path::new(found.trim());
        if found.is_absolute() && !is_rocm(name, found)? {
            continue;
        }
        let of_this = needs.symbols.get(&Some(name.clone()));
        let symbols: Vec<&Symbol> = of_this.into_iter().chain(of_any.take()).flatten().collect();
        let (code, versions) = stand_in(&symbols);
        let code_file = prefix.join("stand-in.c");
        let versions_file = prefix.join("stand-in.map");
        fs::write(&code_file, code)?;
        fs::write(&versions_file, &versions)?;
        let mut sources = vec![code_file];
        let mut flags = vec![format!("-Wl,-soname,{name}")];
        if symbols.iter().any(|(name, _)| name == REGISTER) {
            sources.push(runtime::source());
            flags.extend(runtime::add_loader(&directory)?);
        }
        if !versions.is_empty() {
            flags.push(format!("-Wl,--version-script={}", versions_file.display()));
        }
        let output = directory.join(name);
        run!("cc -w -fno-builtin -shared -fPIC -o {output} {sources...} {flags...} -ldl")?;
    }
    Ok(Runtime { prefix: prefix.to_owned() })
}

/// Builds libraries without symbols in `directory` for those that `library` needs and the C compiler does not find.
/// Programs that load it lazily, and call nothing of them, need no more. They need the HIP runtime in
/// `directory`, as the real ones do.
///
/// # Errors
/// A library cannot be read, or the compiler fails.
pub(crate) fn build_empty(library: &Path, directory: &Path) -> Result<()> {
    let needs = Needs::of(library).with_context(|| library.display().to_string())?;
    for name in &needs.libraries {
        let found = run!("cc -print-file-name={name}")?;
        let (output, beside) = (directory.join(name), library.with_file_name(name));
        if !(Path::new(found.trim()).is_absolute() || output.exists() || beside.exists()) {
            run!(
                "cc -shared -Wl,-soname,{name} -Wl,--no-as-needed -x c /dev/null -o {output} -L{directory} -l:libamdhip64.so.7"
            )?;
        }
    }
    Ok(())
}

/// Whether an installed library is the real HIP runtime, or has kernels of its own, which the stub would
/// report among those of the library under test.
fn is_rocm(name: &str, path: &Path) -> Result<bool> {
    if name.starts_with("libamdhip64.so") {
        return Ok(true);
    }
    let needs = Needs::of(path).with_context(|| path.display().to_string())?;
    let mut symbols = needs.symbols.values().flatten();
    Ok(symbols.any(|(name, _)| name == REGISTER))
}

impl Needs {
    fn of(library: &Path) -> Result<Self> {
        let cache = ReadCache::new(File::open(library)?);
        let data = &cache;
        let file = ElfFile64::<Endianness, _>::parse(data)?;
        let endian = file.endian();
        let sections = file.elf_header().sections(endian, data)?;
        let mut needs = Self::default();

        let dynamic = sections.dynamic_table(endian, data)?;
        for entry in dynamic.iter() {
            if entry.tag == elf::DT_NEEDED {
                needs.libraries.push(text(dynamic.string(entry)?));
            }
        }
        let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
        let versions = sections.versions(endian, data)?;
        for (index, symbol) in symbols.enumerate() {
            let defined_elsewhere =
                symbol.st_shndx(endian) == elf::SHN_UNDEF && symbol.st_bind() == elf::STB_GLOBAL;
            if !defined_elsewhere {
                continue;
            }
            let name = text(symbols.symbol_name(endian, symbol)?);
            let version = match &versions {
                Some(table) => table.version(table.version_index(endian, index).index())?,
                None => None,
            };
            let (library, version) = match version {
                Some(version) => (version.file().map(text), text(version.name())),
                None => (None, String::new()),
            };
            needs.symbols.entry(library).or_default().insert((name, version));
        }
        Ok(needs)
    }
}

/// C code and version script of a stand-in.
fn stand_in(symbols: &[&Symbol]) -> (String, String) {
    let mut code = String::new();
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (symbol, version) in symbols {
        // Weak, so that the definitions of the stub HIP runtime win.
        let _ = writeln!(code, "__attribute__((weak)) long {symbol}(void) {{ return 0; }}");
        by_version.entry(version).or_default().push(symbol);
    }
    let mut script = String::new();
    for (version, symbols) in by_version.iter().filter(|(version, _)| !version.is_empty()) {
        let _ = writeln!(script, "{version} {{ global: {}; }};", symbols.join("; "));
    }
    (code, script)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
