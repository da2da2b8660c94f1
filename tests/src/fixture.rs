//! Builds small fat binaries with the installed C compiler.
//!
//! This needs no HIP compiler: assembly text provides the wrappers and sections that clang would
//! write, the code objects are synthetic, and the real linker makes everything else (program
//! headers, relocations, symbol tables).
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use kpack_tests::fixture::{FatLibrary, Storage, code_object};
//!
//! let library = FatLibrary::new()
//!     .wrapper(Storage::Plain, [("gfx1100", code_object("gfx1100", b"vector_add")?)])
//!     .wrapper(Storage::Zstd(2), [
//!         ("gfx1100", code_object("gfx1100", b"vector_mul")?),
//!         ("gfx90a:xnack+", code_object("gfx90a:xnack+", b"vector_mul")?),
//!     ])
//!     .build("prefix/lib/libvec.so".as_ref())?;
//! # Ok(()) }
//! ```

mod bundle;
mod code_object;
mod kept;
mod rocm_split;
mod tensile;
mod tiny;
mod wheel;
mod windows;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

pub use bundle::{Storage, bundle};
pub use code_object::code_object;
pub use kept::compile;
pub use rocm_split::{RocmScheme, rocm_archive, rocm_split, rocm_split_artifact, rocm_split_with};
pub use tensile::{lazy_library, library_file, library_of_kernels};
pub use tiny::{tiny, tiny_dll};
pub use wheel::Wheel;
pub use windows::{
    WINDOWS_LINKERS, WindowsBuild, WindowsLinker, runs_windows_programs, stub_dll, walk,
};

use crate::bytes;
use crate::process::try_run;
use crate::tree::Tree;

/// The kind of file to link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A shared object.
    Shared,
    /// A position-independent executable.
    Pie,
    /// An executable at a fixed address: its wrappers hold pointers, not relocations.
    NoPie,
    /// A relocatable object.
    Object,
    /// A static library of one object.
    StaticLibrary,
}

/// A target ID and the code object for it.
pub type TargetCode = (String, Vec<u8>);

/// A target and a code object for it that contains `name`. It is large enough to free pages, and it
/// compresses well.
///
/// # Panics
/// If [`code_object()`] does not know the target.
pub fn code(target: &str, name: &str) -> TargetCode {
    code_with(target, &[name.as_bytes(), &[7; 5000]].concat())
}

/// A target and a code object for it that carries `payload`.
///
/// # Panics
/// If [`code_object()`] does not know the target.
pub fn code_with(target: &str, payload: &[u8]) -> TargetCode {
    match code_object(target, payload) {
        Ok(bytes) => (target.to_owned(), bytes),
        Err(error) => panic!("{error:#}"),
    }
}

/// A shared object with two wrappers, `add` and `mul`, each with code for its targets.
///
/// # Panics
/// If [`code_object()`] does not know a target.
pub fn add_and_mul(add: [&str; 2], mul: [&str; 2]) -> FatLibrary {
    FatLibrary::new()
        .wrapper(Storage::Plain, add.map(|target| code(target, "add")))
        .wrapper(Storage::Zstd(2), mul.map(|target| code(target, "mul")))
}

/// As [`add_and_mul`] for three targets, with another `add` for one of them.
pub fn three_wrappers() -> FatLibrary {
    let library = add_and_mul(["gfx1100", "gfx90a:xnack+"], ["gfx1100", "gfx942"]);
    library.wrapper(Storage::Plain, [code("gfx1100", "add")])
}

/// Builds the stub HIP runtime as `library`, with more flags for the compiler: `-DWITHOUT_MARKERS`, or the ones that
/// make it find kpack's loader. `tests/stub-hip/amdhip64.c` says what it does.
///
/// # Errors
/// The compiler is missing or fails.
pub fn stub_hip(library: &Path, flags: &[impl AsRef<OsStr>]) -> Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/stub-hip/amdhip64.c");
    let mut soname = OsString::from("-Wl,-soname,");
    soname.push(library.file_name().context("a library has a name")?);
    if let Some(directory) = library.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-O2", "-fPIC", "-shared"]);
    cc.arg(soname).arg("-o").arg(library).arg(source);
    try_run(cc.args(flags).arg("-ldl")).map(drop)
}

/// Builds the library `output` of this C code. It needs the libraries `needed`, which have a soname, and not the C library,
/// and finds others beside itself.
///
/// # Panics
/// The compiler is missing or fails.
pub fn stub_library(output: &Path, code: &str, needed: &[&Path]) {
    let scratch = Tree::new();
    scratch.write("stub.c", code);
    fs::create_dir_all(output.parent().unwrap()).unwrap();
    let name = output.file_name().unwrap().display();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-nostdlib", "stub.c"]).current_dir(scratch.root());
    cc.arg(format!("-Wl,-soname,{name},-rpath,$ORIGIN,--no-as-needed"));
    let mut input = kept::Input::new(cc.get_program());
    cc.get_args().for_each(|argument| input.add(argument.as_encoded_bytes()));
    input.add(code);
    needed.iter().for_each(|library| input.add(fs::read(library).unwrap()));
    let output = std::path::absolute(output).unwrap();
    cc.args(needed).arg("-o").arg(&output);
    kept::write(&input, &output, || try_run(&mut cc).map(drop)).unwrap();
}

/// Describes and builds a binary with device code.
#[derive(Debug, Clone)]
pub struct FatLibrary {
    kind: Kind,
    compiler: OsString,
    flags: Vec<OsString>,
    libraries: Vec<PathBuf>,
    red_zones: bool,
    without_wrappers: bool,
    wrappers: Vec<(Storage, Vec<TargetCode>)>,
    /// For each wrapper, the one whose bundle it has.
    bundle_of: Vec<usize>,
    /// For each wrapper, the kernel that start-up code registers.
    kernels: Vec<String>,
}

impl Default for FatLibrary {
    fn default() -> Self {
        Self::new()
    }
}

impl FatLibrary {
    /// A shared object without device code, built by `cc`.
    pub fn new() -> Self {
        Self {
            kind: Kind::Shared,
            compiler: "cc".into(),
            flags: Vec::new(),
            libraries: Vec::new(),
            red_zones: false,
            without_wrappers: false,
            wrappers: Vec::new(),
            bundle_of: Vec::new(),
            kernels: Vec::new(),
        }
    }

    /// Adds a wrapper with its own bundle. Its position is its index.
    pub fn wrapper<T: Into<String>>(
        mut self,
        storage: Storage,
        code_objects: impl IntoIterator<Item = (T, Vec<u8>)>,
    ) -> Self {
        let entries = code_objects.into_iter().map(|(target, bytes)| (target.into(), bytes));
        self.bundle_of.push(self.wrappers.len());
        self.wrappers.push((storage, entries.collect()));
        self
    }

    /// Adds a wrapper with the bundle of another one, as links of relocatable device code (`-fgpu-rdc`) make
    /// them, with one handle.
    pub fn wrapper_sharing(mut self, other: usize) -> Self {
        self.bundle_of.push(self.bundle_of[other]);
        self.wrappers.push(self.wrappers[other].clone());
        self
    }

    /// Sets what to build; defaults to a shared object.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets another compiler than `cc`, such as `clang-19`.
    pub fn compiler(mut self, compiler: impl Into<OsString>) -> Self {
        self.compiler = compiler.into();
        self
    }

    /// Adds a flag for the compiler driver, such as `-Wl,-z,relro` or `-s`.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Links it with a library, which must have a soname, and which the dynamic linker finds by this path.
    pub fn linked_with(self, library: impl Into<PathBuf>, search_path: &str) -> Self {
        let mut linked = self.flag(format!("-Wl,--no-as-needed,-rpath,{search_path}"));
        linked.libraries.push(library.into());
        linked
    }

    /// Puts gaps between the wrappers, as AddressSanitizer does.
    pub fn red_zones(mut self) -> Self {
        self.red_zones = true;
        self
    }

    /// Leaves the wrappers out, so that `.hip_fatbin` stands alone (as in rocSHMEM).
    pub fn without_wrappers(mut self) -> Self {
        self.without_wrappers = true;
        self
    }

    /// Adds the start-up code that HIP compilers write: it registers each wrapper, with one of these kernels. The
    /// function `launch` launches them all. This needs a HIP runtime to link with, such as [`stub_hip`].
    pub fn start_up(mut self, kernels: &[&str]) -> Self {
        self.kernels = kernels.iter().map(|&kernel| kernel.to_owned()).collect();
        self
    }

    /// The bytes of each wrapper's bundle.
    ///
    /// # Errors
    /// As [`bundle()`].
    pub fn bundles(&self) -> Result<Vec<Vec<u8>>> {
        self.wrappers.iter().map(|(storage, entries)| bundle(*storage, entries)).collect()
    }

    /// The code objects of each wrapper, by target.
    pub fn code_objects(&self) -> impl Iterator<Item = &[TargetCode]> {
        self.wrappers.iter().map(|(_, entries)| entries.as_slice())
    }

    /// Builds it as `output`, creating the directory if missing. Sources stay in a temporary
    /// directory.
    ///
    /// Executables print a line for each wrapper (magic and code object index) and a line that
    /// host code computed.
    ///
    /// # Errors
    /// The compiler is missing or fails.
    pub fn build(&self, output: &Path) -> Result<()> {
        let output = std::path::absolute(output)?;
        if let Some(directory) = output.parent() {
            fs::create_dir_all(directory)?;
        }
        let is_file = |flag: &OsString| {
            let flag = flag.as_encoded_bytes();
            flag.contains(&b'/') && !bytes::contains(flag, "$ORIGIN")
        };
        if self.flags.iter().any(is_file) {
            return self.compile(&output);
        }
        kept::write(&self.input()?, &output, || self.compile(&output))
    }

    /// What the result of [`compile`](Self::compile) depends on, if no flag names a file.
    fn input(&self) -> Result<kept::Input> {
        let mut input = kept::Input::new(&self.compiler);
        input.add(format!("{:?}", self.kind));
        for flag in &self.flags {
            input.add(flag.as_encoded_bytes());
        }
        for (name, bytes) in self.sources()? {
            input.add(name);
            input.add(bytes);
        }
        for library in &self.libraries {
            input.add(fs::read(library)?);
        }
        if !self.kernels.is_empty() {
            input.add(include_bytes!("start.h"));
        }
        Ok(input)
    }

    fn compile(&self, output: &Path) -> Result<()> {
        let scratch = tempfile::tempdir().context("temporary directory")?;
        self.write_sources(scratch.path())?;
        let mode: &[&str] = match self.kind {
            Kind::Shared => &["-shared", "-fPIC"],
            Kind::Pie => &["-pie", "-fPIE"],
            Kind::NoPie => &["-no-pie", "-fno-pie"],
            Kind::Object | Kind::StaticLibrary => &["-r", "-nostdlib", "-fPIC"],
        };
        let object = scratch.path().join("device.o");
        let target = if self.kind == Kind::StaticLibrary { &object } else { output };
        let mut command = Command::new(&self.compiler);
        command.current_dir(&scratch).args(mode).args(["-O1", "device.s", "host.c"]);
        if !self.kernels.is_empty() {
            command.arg("start.c");
        }
        command.args(&self.flags).args(&self.libraries);
        try_run(command.arg("-o").arg(target))?;
        if self.kind == Kind::StaticLibrary {
            let _ = fs::remove_file(output);
            try_run(Command::new("ar").arg("rcsD").arg(output).arg(target))?;
        }
        Ok(())
    }

    /// Builds it at this path of a new tree.
    ///
    /// # Panics
    /// As errors of [`build`](Self::build).
    pub fn in_tree(&self, path: &str) -> Tree {
        let tree = Tree::new();
        self.build(&tree.path(path)).unwrap_or_else(|error| panic!("{error:#}"));
        tree
    }

    /// Builds it as `fat` of a new tree, and copies it to this path below `prefix`, to split it there.
    ///
    /// # Panics
    /// As errors of [`build`](Self::build).
    pub fn in_prefix(&self, path: &str) -> Tree {
        let tree = self.in_tree("fat");
        tree.copy_file("fat", &format!("prefix/{path}"));
        tree
    }

    /// The bytes that are built.
    ///
    /// # Panics
    /// As errors of [`build`](Self::build).
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(self.in_tree("lib.so").path("lib.so")).unwrap()
    }

    /// Writes what [`build`](Self::build) compiles: `device.s`, which includes `bundle<index>.bin`
    /// from the assembler's include path, `host.c`, and `start.c` with start-up code.
    ///
    /// # Errors
    /// As [`bundle()`], or the directory cannot be written.
    pub fn write_sources(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        for (name, bytes) in self.sources()? {
            fs::write(directory.join(name), bytes)?;
        }
        Ok(())
    }

    fn sources(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let bundles = self.bundles()?.into_iter().enumerate();
        let mut sources =
            Vec::from_iter(bundles.map(|(index, bytes)| (format!("bundle{index}.bin"), bytes)));
        sources.push(("device.s".to_owned(), self.assembly().into_bytes()));
        sources.push(("host.c".to_owned(), self.host_code().into_bytes()));
        if !self.kernels.is_empty() {
            sources.push(("start.c".to_owned(), self.start_up_code().into_bytes()));
        }
        Ok(sources)
    }

    fn assembly(&self) -> String {
        let mut text = String::new();
        if !self.wrappers.is_empty() {
            text.push_str(".section .hip_fatbin,\"a\",@progbits\n");
        }
        for index in 0..self.wrappers.len() {
            if self.bundle_of[index] != index {
                continue;
            }
            let _ = write!(text, ".p2align 12\n.Lbundle{index}: .incbin \"bundle{index}.bin\"\n");
        }
        if !self.wrappers.is_empty() && !self.without_wrappers {
            text.push_str(".section .hipFatBinSegment,\"aw\",@progbits\n.p2align 3\n");
            for (index, bundle) in self.bundle_of.iter().enumerate() {
                let _ = write!(
                    text,
                    ".hidden wrapper{index}\n.globl wrapper{index}\nwrapper{index}:\n\
                     .long 0x48495046, 1\n.quad .Lbundle{bundle}, 0\n"
                );
                if self.red_zones {
                    text.push_str(".zero 40\n");
                }
            }
        }
        let bundles = self.bundle_of.iter();
        let shared = bundles.enumerate().filter(|(index, bundle)| index != *bundle);
        let shared = shared.map(|(_, bundle)| bundle).collect::<BTreeSet<_>>();
        if !shared.is_empty() {
            let size = 8 * shared.len();
            let _ = write!(text, ".section .hip_gpubin_handle,\"aw\",@progbits\n.zero {size}\n");
        }
        text.push_str(".section .note.GNU-stack,\"\",@progbits\n");
        text
    }

    fn start_up_code(&self) -> String {
        let header = concat!(env!("CARGO_MANIFEST_DIR"), "/src/start.h");
        let mut text = format!("#include \"{header}\"\n");
        let mut launches = String::new();
        for (index, kernel) in self.kernels.iter().enumerate() {
            let _ = writeln!(text, "UNIT(wrapper{index}, \"{kernel}\")");
            let _ = write!(launches, "wrapper{index}_launch(); ");
        }
        text + &format!("void launch(void) {{ {launches}}}\n")
    }

    /// Host code with relocations into all kinds of sections, so that running it reveals a wrong
    /// host image.
    fn host_code(&self) -> String {
        let count = if self.without_wrappers { 0 } else { self.wrappers.len() };
        let mut declared = String::new();
        let mut listed = String::new();
        for index in 0..count {
            let _ = writeln!(
                declared,
                "extern struct wrapper wrapper{index} __attribute__((visibility(\"hidden\")));"
            );
            let _ = write!(listed, "&wrapper{index}, ");
        }
        let main = match self.kind {
            Kind::Pie | Kind::NoPie => {
                "int main(void) {\n    fixture_report();\n    return 0;\n}\n"
            }
            _ => "",
        };
        format!(
            r#"#include <stdio.h>
struct wrapper {{ unsigned magic, version; const void *bundle; unsigned long long index; }};
{declared}
static struct wrapper *const wrappers[] = {{ {listed}0 }};
static int twice(int n) {{ return 2 * n; }}
static int square(int n) {{ return n * n; }}
static int (*volatile operations[])(int) = {{ twice, square }};
static int constructed;
__attribute__((constructor)) static void construct(void) {{ constructed = operations[0](3); }}
static _Thread_local int per_thread = 5;

int fixture_host(int n) {{ return operations[1](n) + constructed + per_thread; }}

void fixture_report(void) {{
    for (int i = 0; wrappers[i]; i++)
        printf("%.4s %llu\n", (const char *)&wrappers[i]->magic, wrappers[i]->index);
    printf("host %d\n", fixture_host(4));
}}
{main}"#
        )
    }
}
