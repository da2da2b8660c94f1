//! The DLLs that an image needs, what it imports from them, and what it exports.

use object::LittleEndian as LE;
use object::pe;
use object::pod::Pod;
use object::read::pe::ExportTable;

use kpack_core::elf::{BinaryError, ReadAt, pods, refuse, unsupported};

use super::image::Image;

/// More DLLs than any image needs.
const MOST_DLLS: usize = 4096;
/// Longer than any name of a DLL or a symbol, in bytes.
const LONGEST_NAME: usize = 64 << 10;
/// Bytes of a name that are read at once. Most names are shorter.
const NAME_PIECE: u64 = 96;
/// Bytes of a list of imported symbols that are read at once.
const LIST_PIECE: u64 = 4 << 10;
/// The bit of an entry that has a number instead of a name.
const IS_ORDINAL: u64 = 1 << 63;
/// The first bytes of a name, which say where the name may be in the exporting DLL.
const HINT: u64 = 2;

/// A DLL that an image needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedDll {
    /// Its file name.
    pub name: Vec<u8>,
    /// Whether it is loaded when one of its functions is first called, and not with the image.
    pub is_delayed: bool,
    /// Where the list of imported symbols is.
    symbols: u32,
}

/// A symbol that is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Imported {
    Name(Vec<u8>),
    Ordinal(u16),
}

impl<S: ReadAt> Image<S> {
    /// The DLLs that it needs, in the order in which Windows loads them, and then those that it loads later.
    ///
    /// # Errors
    /// [`BinaryError`] if its tables are damaged.
    pub fn imported_dlls(&self) -> Result<Vec<ImportedDll>, BinaryError> {
        let mut dlls = Vec::new();
        let index = pe::IMAGE_DIRECTORY_ENTRY_IMPORT;
        self.each_record(index, &mut |dll: &pe::ImageImportDescriptor| {
            let symbols = match dll.original_first_thunk.get(LE) {
                0 => dll.first_thunk.get(LE),
                names => names,
            };
            self.add_dll(&mut dlls, dll.name.get(LE), symbols, false)
        })?;
        let index = pe::IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT;
        self.each_record(index, &mut |dll: &pe::ImageDelayloadDescriptor| {
            let symbols = dll.import_name_table_rva.get(LE);
            self.add_dll(&mut dlls, dll.dll_name_rva.get(LE), symbols, true)
        })?;
        Ok(dlls)
    }

    /// Adds a DLL, and returns whether more may follow: a record without a name is the last one.
    fn add_dll(
        &self,
        dlls: &mut Vec<ImportedDll>,
        name: u32,
        symbols: u32,
        is_delayed: bool,
    ) -> Result<bool, BinaryError> {
        if name == 0 {
            return Ok(false);
        }
        if dlls.len() == MOST_DLLS {
            unsupported!("needs more than {MOST_DLLS} DLLs");
        }
        let name = self.name_at(name.into(), "the name of a needed DLL")?;
        dlls.push(ImportedDll { name, is_delayed, symbols });
        Ok(true)
    }

    /// Calls `visit` with the records of a directory until it returns false. Windows ignores the size of these directories.
    fn each_record<T: Pod>(
        &self,
        index: usize,
        visit: &mut dyn FnMut(&T) -> Result<bool, BinaryError>,
    ) -> Result<(), BinaryError> {
        let directory = self.directory(index);
        if directory.is_empty() || self.section_at(&directory).is_none() {
            return Ok(());
        }
        let size = size_of::<T>() as u64;
        for start in (directory.start..).step_by(size_of::<T>()) {
            let bytes = self.bytes_at(start, size, "the list of needed DLLs")?;
            match pods(&bytes) {
                [record, ..] if visit(record)? => {}
                _ => break,
            }
        }
        Ok(())
    }

    /// Calls `visit` with each symbol that is imported from a DLL.
    pub(super) fn each_import(
        &self,
        dll: &ImportedDll,
        visit: &mut dyn FnMut(Imported) -> Result<(), BinaryError>,
    ) -> Result<(), BinaryError> {
        const ENTRY: u64 = 8;
        let what = "the list of imported symbols";
        let mut next = u64::from(dll.symbols);
        loop {
            let size = self.left_at(next).min(LIST_PIECE) / ENTRY * ENTRY;
            let bytes = self.bytes_at(next, size.max(ENTRY), what)?;
            for entry in pods::<object::U64<LE>>(&bytes) {
                visit(match entry.get(LE) {
                    0 => return Ok(()),
                    ordinal if ordinal & IS_ORDINAL != 0 => Imported::Ordinal(ordinal as u16),
                    at => {
                        Imported::Name(self.name_at(at.saturating_add(HINT), "an imported name")?)
                    }
                })?;
            }
            next += size;
        }
    }

    /// Whether it imports the function `name`, and from which DLL.
    ///
    /// # Errors
    /// [`BinaryError`] if its tables are damaged.
    pub fn imports(&self, name: &str) -> Result<Option<ImportedDll>, BinaryError> {
        for dll in self.imported_dlls()? {
            let mut found = false;
            self.each_import(&dll, &mut |symbol| {
                found |= symbol == Imported::Name(name.as_bytes().to_vec());
                Ok(())
            })?;
            if found {
                return Ok(Some(dll));
            }
        }
        Ok(None)
    }

    /// The names of the symbols that it imports, without those that only have a number.
    ///
    /// # Errors
    /// [`BinaryError`] if its tables are damaged.
    pub fn imported_names(&self) -> Result<Vec<String>, BinaryError> {
        let mut names = Vec::new();
        for dll in self.imported_dlls()? {
            self.each_import(&dll, &mut |symbol| {
                if let Imported::Name(name) = symbol {
                    names.push(String::from_utf8_lossy(&name).into_owned());
                }
                Ok(())
            })?;
        }
        Ok(names)
    }

    /// The names of the symbols that it exports.
    ///
    /// # Errors
    /// [`BinaryError`] if its tables are damaged.
    pub fn exported_names(&self) -> Result<Vec<String>, BinaryError> {
        let index = pe::IMAGE_DIRECTORY_ENTRY_EXPORT;
        let Some((_, bytes)) = self.directory_bytes(index, "the exported symbols")? else {
            return Ok(Vec::new());
        };
        let exports = or_refused(ExportTable::parse(&bytes, self.directory(index).start as u32))?;
        let names = exports.name_iter().map(|(name, _)| {
            let name = or_refused(exports.name_from_pointer(name))?;
            Ok(String::from_utf8_lossy(name).into_owned())
        });
        names.collect()
    }

    /// Whether it exports the function `name`.
    ///
    /// # Errors
    /// [`BinaryError`] if its tables are damaged.
    pub fn exports(&self, name: &str) -> Result<bool, BinaryError> {
        Ok(self.exported_names()?.iter().any(|exported| exported == name))
    }

    /// The bytes from this address to the end of its section in the file.
    fn left_at(&self, address: u64) -> u64 {
        let section = self.section_at(&(address..address.saturating_add(1)));
        section.map_or(0, |section| section.in_file().end.saturating_sub(address))
    }

    fn bytes_at(&self, address: u64, size: u64, what: &str) -> Result<Vec<u8>, BinaryError> {
        let end = address.saturating_add(size);
        let Some(offset) = self.offset_of(&(address..end)) else {
            refuse!("no section has {what}, at {address:#x}..{end:#x}, in the file");
        };
        self.bytes(offset, size, what)
    }

    /// The name at an address, which ends with NUL.
    fn name_at(&self, address: u64, what: &str) -> Result<Vec<u8>, BinaryError> {
        let mut name = Vec::new();
        loop {
            let next = address.saturating_add(name.len() as u64);
            let piece = self.bytes_at(next, self.left_at(next).clamp(1, NAME_PIECE), what)?;
            let end = piece.iter().position(|byte| *byte == 0);
            name.extend(&piece[..end.unwrap_or(piece.len())]);
            if end.is_some() {
                return Ok(name);
            }
            if name.len() > LONGEST_NAME {
                refuse!("{what}, at {address:#x}, has more than {LONGEST_NAME} bytes");
            }
        }
    }
}

pub(super) fn or_refused<T>(read: object::read::Result<T>) -> Result<T, BinaryError> {
    read.map_err(|error| BinaryError::Refused(error.to_string().into()))
}
