//! Given binaries for Windows that are changed in one way each, when they are split, then those that would break are
//! rejected, with the reason and the advice, and nothing changes. Those that are only unusual are split and joined.
//!
//! Every row of the tables is one binary.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::ptr;

use anyhow::{Result, ensure};
use kpack_tests::fixture::{FatLibrary, Storage, WindowsBuild, WindowsLinker, code_with};
use kpack_tests::process::try_run;
use kpack_tests::require;
use kpack_tests::windows::{free_headers, lengthen_stub, signature};
use object::pe;
use object::read::pe::PeFile64;

use crate::verified::{assert_holds, assert_holds_against};
use crate::windows_binaries::{Bench, library, tools_find_nothing};

/// The header of a section.
fn header(bytes: &[u8], name: &[u8]) -> usize {
    let mut headers = (signature(bytes) + 24 + 240..).step_by(40);
    headers.find(|at| bytes[*at..].starts_with(name)).unwrap()
}

/// Makes headers that end with the last section header.
fn fill_headers(bytes: &mut Vec<u8>) {
    let free = free_headers(bytes).len();
    assert!(free.is_multiple_of(8));
    lengthen_stub(bytes, &vec![0x90; free]);
}

/// Sets the offset of the symbol table, without symbols.
fn set_symbols(bytes: &mut [u8], offset: u32) {
    let at = signature(bytes) + 12;
    bytes[at..at + 4].copy_from_slice(&offset.to_le_bytes());
    bytes[at + 4..at + 8].fill(0);
}

/// Sets the machine that the binary is for.
fn set_machine(bytes: &mut [u8], machine: u16) {
    let at = signature(bytes) + 4;
    bytes[at..at + 2].copy_from_slice(&machine.to_le_bytes());
}

/// Sets a word of the optional header.
fn set_word(bytes: &mut [u8], offset: usize, value: u32) {
    let at = signature(bytes) + 24 + offset;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Gives a section a long name, the first one of the string table.
fn name_long(bytes: &mut [u8], section: &[u8]) {
    let name = header(bytes, section);
    bytes[name..name + 8].copy_from_slice(b"/4\0\0\0\0\0\0");
}

/// The offset of the entry for debug data of the only kind.
fn debug_entry(bytes: &[u8]) -> usize {
    let file = PeFile64::parse(bytes).unwrap();
    let directory = file.data_directory(pe::IMAGE_DIRECTORY_ENTRY_DEBUG).unwrap();
    directory.file_range(&file.section_table()).unwrap().0 as usize
}

/// Sets the address of a data directory to that of device code, without a size.
fn set_directory(bytes: &mut [u8], index: usize) {
    let code = header(bytes, b".hip_fat") + 12;
    let code = u32::from_le_bytes(bytes[code..code + 4].try_into().unwrap()) + 16;
    let entry = signature(bytes) + 24 + 112 + 8 * index;
    bytes[entry..entry + 4].copy_from_slice(&code.to_le_bytes());
    bytes[entry + 4..entry + 8].fill(0);
}

/// Lets code be executed in `.rdata`, by IMAGE_SCN_MEM_EXECUTE.
fn set_executable(bytes: &mut [u8]) {
    let at = header(bytes, b".rdata\0") + 39;
    bytes[at] |= 0x20;
}

/// A binary, and how it is changed.
struct Row {
    name: &'static str,
    build: WindowsBuild<'static>,
    library: fn() -> FatLibrary,
    /// What a join gives it back.
    target: &'static str,
    change: fn(&mut Vec<u8>),
}

impl Row {
    /// Whether another row changes the same binary, so that it is linked once for both.
    fn has_binary_of(&self, other: &Self) -> bool {
        self.build == other.build && ptr::fn_addr_eq(self.library, other.library)
    }
}

const DLL: WindowsBuild<'_> =
    WindowsBuild { linker: WindowsLinker::LldLink, is_program: false, flags: &[] };
const WITH_DEBUG_DATA: WindowsBuild<'_> =
    WindowsBuild { flags: &["/debug", "/pdb:vec.pdb"], ..DLL };
const MERGED: &str = "/merge:.hipFatBinSegment=.rdata";
/// Without relocations and sections of their own, what they point to tells wrappers from other data.
const MERGED_INTO_DATA: WindowsBuild<'_> = WindowsBuild {
    is_program: true,
    flags: &["/fixed", "/merge:.hipFatBinSegment=.data", "/merge:.hip_fatbin=.rdata"],
    ..DLL
};
const ROW: Row = Row { name: "", build: DLL, library, target: "gfx942", change: |_| () };
/// With device code of less than a page.
const LITTLE: Row = Row { library: little, target: "gfx1100", ..ROW };

/// One code object of less than a page.
fn little() -> FatLibrary {
    FatLibrary::new().wrapper(Storage::Plain, [code_with("gfx1100", &[1; 64])])
}

/// The same, compressed.
fn little_compressed() -> FatLibrary {
    FatLibrary::new().wrapper(Storage::Zstd(2), [code_with("gfx1100", &[1; 64])])
}

/// What would break.
const REJECTED: &[Row] = &[
    Row { name: "for ARM64", change: |bytes| set_machine(bytes, 0xaa64), ..ROW },
    Row { name: "for 32-bit x86", change: |bytes| set_machine(bytes, 0x14c), ..ROW },
    Row {
        name: "for a machine that nobody knows",
        change: |bytes| set_machine(bytes, 0x1234),
        ..ROW
    },
    Row {
        name: "signed",
        change: |bytes| {
            let directory = signature(bytes) + 24 + 112 + 4 * 8;
            let certificate = (bytes.len() as u32).to_le_bytes();
            bytes[directory..directory + 4].copy_from_slice(&certificate);
            bytes[directory + 4] = 16;
            bytes.extend([0; 16]);
        },
        ..ROW
    },
    Row {
        name: "another size of the image",
        change: |bytes| set_word(bytes, 56, 0x10_0000),
        ..ROW
    },
    Row { name: "sections not aligned", change: |bytes| set_word(bytes, 36, 0x300), ..ROW },
    Row { name: "sections smaller than a page", change: |bytes| set_word(bytes, 32, 0x200), ..ROW },
    Row {
        name: "long names in a table within the sections",
        change: |bytes| {
            name_long(bytes, b".rdata\0");
            set_symbols(bytes, 0x800);
        },
        ..ROW
    },
    Row {
        name: "too large",
        change: |bytes| {
            let last = header(bytes, b".reloc\0");
            let size = 0x8000_0000_u32;
            let address = u32::from_le_bytes(bytes[last + 12..last + 16].try_into().unwrap());
            bytes[last + 8..last + 12].copy_from_slice(&size.to_le_bytes());
            set_word(bytes, 56, address + size);
        },
        ..ROW
    },
    Row { name: "truncated in a section", change: |bytes| bytes.truncate(5000), ..ROW },
    Row { name: "truncated in the headers", change: |bytes| bytes.truncate(200), ..ROW },
    Row {
        name: "a string table of one name that does not end",
        change: |bytes| {
            let (coff, table) = (signature(bytes) + 4, (bytes.len() as u32).to_le_bytes());
            bytes[coff + 8..coff + 16].copy_from_slice(&[table, [0; 4]].concat());
            name_long(bytes, b".rdata\0");
            bytes.extend(vec![b'A'; 1 << 20]);
        },
        ..ROW
    },
    // Nothing tells which of the two places is right, unless the data do.
    Row {
        name: "debug data at two addresses",
        build: WITH_DEBUG_DATA,
        change: |bytes| {
            let entry = debug_entry(bytes);
            bytes[entry + 20] ^= 0x40;
        },
        ..ROW
    },
    Row {
        name: "unknown debug data at two offsets",
        build: WITH_DEBUG_DATA,
        change: |bytes| {
            let entry = debug_entry(bytes);
            let data = u32::from_le_bytes(bytes[entry + 24..entry + 28].try_into().unwrap());
            bytes[data as usize..data as usize + 4].fill(b'?');
            bytes[entry + 25] ^= 2;
        },
        ..ROW
    },
    Row { name: "merged wrappers", build: WindowsBuild { flags: &[MERGED], ..DLL }, ..ROW },
    Row {
        name: "wrappers merged into code",
        build: WindowsBuild { flags: &[MERGED], ..DLL },
        change: |bytes| set_executable(bytes),
        ..ROW
    },
    Row {
        name: "merged device code",
        build: WindowsBuild { flags: &["/merge:.hip_fatbin=.rdata"], ..DLL },
        ..ROW
    },
    Row {
        name: "wrappers and device code merged into data",
        build: MERGED_INTO_DATA,
        library: little,
        ..ROW
    },
    Row {
        name: "wrappers and compressed device code merged into data",
        build: MERGED_INTO_DATA,
        library: little_compressed,
        ..ROW
    },
    Row {
        name: "merged wrappers without relocations",
        build: WindowsBuild { flags: &[MERGED, "/fixed"], ..DLL },
        ..ROW
    },
    Row {
        name: "wrappers merged into code without relocations",
        build: WindowsBuild { flags: &[MERGED, "/fixed"], ..DLL },
        change: |bytes| set_executable(bytes),
        ..ROW
    },
];

/// Changes a binary. Then it is rejected, and neither it nor the tree changes. Returns the message, which ends with an
/// ID.
fn rejected(bench: &Bench, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = fs::read(&bench.original).unwrap();
    change(&mut bytes);
    fs::write(bench.path(), &bytes).unwrap();
    let before = bench.tree.snapshot();
    let Err(error) = bench.split() else {
        return "is split".to_owned();
    };
    let said = error.in_one_line();
    assert_eq!(bench.tree.snapshot(), before, "{said}");
    said.replace(&bench.tree.root().display().to_string(), "[root]")
}

#[test]
fn binaries_that_would_break_are_rejected() -> Result<()> {
    if !DLL.linker.is_there() {
        return Ok(());
    }
    let mut all = String::new();
    for rows in REJECTED.chunk_by(Row::has_binary_of) {
        let bench = Bench::new(&(rows[0].library)(), rows[0].build)?;
        for row in rows {
            let said = rejected(&bench, row.change);
            all.push_str(&format!("{}\n    {said}\n", row.name));
        }
    }
    insta::assert_snapshot!(all.trim_end());
    Ok(())
}

/// What is unusual, but sound.
const ACCEPTED: &[Row] = &[
    // The offset of a symbol table that nothing uses means nothing.
    Row {
        name: "a symbol table within the sections",
        change: |bytes| set_symbols(bytes, 0x800),
        ..ROW
    },
    Row {
        name: "a symbol table at the end",
        change: |bytes| {
            let offset = bytes.len() as u32 - 0x100;
            set_symbols(bytes, offset);
        },
        ..ROW
    },
    Row {
        name: "a symbol table past the end",
        change: |bytes| {
            let offset = bytes.len() as u32 + 0x100;
            set_symbols(bytes, offset);
        },
        ..ROW
    },
    // The address of a directory without a size means nothing, and that of certificates is an offset in the file.
    Row {
        name: "data directories without a size in device code",
        change: |bytes| {
            set_directory(bytes, pe::IMAGE_DIRECTORY_ENTRY_SECURITY);
            set_directory(bytes, pe::IMAGE_DIRECTORY_ENTRY_GLOBALPTR);
        },
        ..ROW
    },
    Row {
        name: "a wrong offset of debug data, as tools leave it that move data",
        build: WITH_DEBUG_DATA,
        change: |bytes| {
            let entry = debug_entry(bytes);
            bytes[entry + 25] ^= 2;
        },
        ..ROW
    },
    // Only a join needs another section header.
    Row { name: "headers without room for a join", change: fill_headers, ..LITTLE },
    Row { name: "device code of one page", ..LITTLE },
    Row {
        name: "device code of one page, by GNU ld",
        build: WindowsBuild { linker: WindowsLinker::Gnu, ..DLL },
        ..LITTLE
    },
    Row {
        name: "device code of one page, by lld as a GNU linker",
        build: WindowsBuild { linker: WindowsLinker::LldGnu, ..DLL },
        ..LITTLE
    },
];

/// Given an unusual binary, when it is split, joined and split again, then each is sound, and the last the first one.
#[test]
fn unusual_binaries_are_split_and_joined() -> Result<()> {
    for rows in ACCEPTED.chunk_by(Row::has_binary_of) {
        if !rows[0].build.linker.is_there() {
            continue;
        }
        let bench = Bench::new(&(rows[0].library)(), rows[0].build)?;
        let unchanged = bench.original.with_extension("unchanged");
        fs::copy(&bench.original, &unchanged)?;
        for row in rows {
            println!("{}", row.name);
            let mut bytes = fs::read(&unchanged)?;
            (row.change)(&mut bytes);
            for path in [&bench.path(), &bench.original] {
                fs::write(path, &bytes)?;
            }
            let is_sound = || {
                assert_holds(bench.tree.root());
                for original in [&bench.original, &unchanged] {
                    assert_holds_against(&bench.path(), original);
                }
                tools_find_nothing(&bench.path())
            };
            bench.split()?;
            is_sound()?;
            let split = fs::read(bench.path())?;
            bench.join(&[row.target])?;
            is_sound()?;
            bench.split()?;
            ensure!(fs::read(bench.path())? == split, "another split binary");
        }
    }
    Ok(())
}

#[test]
fn headers_without_room_grow() -> Result<()> {
    if !DLL.linker.is_there() {
        return Ok(());
    }
    let bench = Bench::new(&library(), DLL)?;
    // Given headers that end with the last section header,
    let mut bytes = fs::read(&bench.original)?;
    fill_headers(&mut bytes);
    for path in [&bench.path(), &bench.original] {
        fs::write(path, &bytes)?;
    }
    // when it is split, then it runs, and a join and a split give the same bytes.
    bench.check()?;
    bench.check_join()
}

/// It writes a size of the image that is 0.
#[test]
fn a_section_that_llvm_objcopy_adds_is_named() -> Result<()> {
    let tool = "llvm-objcopy-19";
    if !DLL.linker.is_there() || !require::tool(tool) {
        return Ok(());
    }
    let bench = Bench::new(&library(), DLL)?;
    let add = |path: &Path| {
        let section = ".extra=/etc/hostname";
        try_run(Command::new(tool).args(["--add-section", section]).arg(path))
    };
    let parts =
        ["`.extra`", "llvm-objcopy --add-section", "install the original", "[damaged-binary]"];
    let is_named = || {
        let said = rejected(&bench, |_| ());
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    let fat = fs::read(&bench.original)?;
    add(&bench.original)?;
    is_named();
    // The split binary as well.
    fs::write(bench.path(), fat)?;
    bench.split()?;
    fs::copy(bench.path(), &bench.original)?;
    add(&bench.original)?;
    is_named();
    Ok(())
}
