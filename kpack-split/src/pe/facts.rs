//! What linkers cannot change in an image by placing things elsewhere.

use std::ops::Range;

use object::LittleEndian as LE;
use object::pe;
use object::read::pe::ExportTable;

use kpack_core::elf::{BinaryError, ReadAt, pods};

use super::image::{Image, Section};
use super::imports::{Imported, or_refused};
use crate::facts::{Facts, Linkage};

/// What linkers make: tables of addresses and names, and unwind tables.
const OF_LINKERS: [&str; 7] = [".pdata", ".xdata", ".edata", ".idata", ".didat", ".rsrc", ".reloc"];

/// The facts of an image.
pub(crate) fn facts<S: ReadAt>(image: &Image<S>) -> Result<Facts, BinaryError> {
    let mut facts = Facts::of_file(image.source().size()?);
    let is_of_code = |section: &&Section| {
        let is_of_linker = OF_LINKERS.contains(&section.name.as_str());
        !section.is_device() && !section.is_debug_information() && !is_of_linker
    };
    for section in image.sections.iter().filter(is_of_code) {
        facts.add_section(&section.name, section.memory_size());
    }
    let optional = &image.optional;
    facts.add("characteristics", format!("{:#x}", image.header.characteristics.get(LE).0));
    facts.add("DLL characteristics", format!("{:#x}", optional.dll_characteristics.get(LE).0));
    facts.add("subsystem", optional.subsystem.get(LE).0.to_string());
    for (fact, size) in [
        ("stack", [optional.size_of_stack_reserve, optional.size_of_stack_commit]),
        ("heap", [optional.size_of_heap_reserve, optional.size_of_heap_commit]),
    ] {
        let [reserve, commit] = size.map(|size| size.get(LE));
        facts.add(fact, format!("{reserve} bytes, {commit} of them committed"));
    }
    add_exports(image, &mut facts)?;
    add_imports(image, &mut facts)?;
    Ok(facts)
}

/// The parts of the file that tell builds apart, rather than being code or data: when it was linked, the ID and the path
/// of its debug information, and the checksum over these. They are in no order.
pub(crate) fn build_marks<S: ReadAt>(image: &Image<S>) -> Result<Vec<Range<u64>>, BinaryError> {
    let word = |at: u64| at..at.saturating_add(4);
    let mut marks = vec![word(image.header_offset + TIMESTAMP), word(image.checksum_offset())];
    let exports = image.directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT);
    if let Some(at) = image.offset_of(&exports).filter(|_| !exports.is_empty()) {
        marks.push(word(at + TIMESTAMP));
    }
    let what = "the debug directory";
    if let Some((at, bytes)) = image.directory_bytes(pe::IMAGE_DIRECTORY_ENTRY_DEBUG, what)? {
        let entries = pods::<pe::ImageDebugDirectory>(&bytes);
        let places = (at..).step_by(size_of::<pe::ImageDebugDirectory>());
        for (entry, at) in entries.iter().zip(places) {
            marks.push(word(at + TIMESTAMP));
            let is_id = [pe::IMAGE_DEBUG_TYPE_CODEVIEW, pe::IMAGE_DEBUG_TYPE_REPRO];
            if is_id.contains(&entry.typ.get(LE)) {
                let start = u64::from(entry.pointer_to_raw_data.get(LE));
                marks.push(start..start + u64::from(entry.size_of_data.get(LE)));
            }
        }
    }
    Ok(marks)
}

/// Offset of the time of the link, in the COFF header, the table of exports and the records of debug information.
const TIMESTAMP: u64 = 4;

/// The sections in the file with the data of the host code.
pub(crate) fn data<S>(image: &Image<S>) -> Vec<Range<u64>> {
    let is_data = |section: &&Section| {
        let is_code = section.flags.0 & pe::IMAGE_SCN_MEM_EXECUTE.0 != 0;
        !is_code && !section.is_device() && !section.is_debug_information()
    };
    let in_file = |section: &Section| {
        let Range { start, end } = section.in_file();
        section.offset..section.offset + (end - start)
    };
    image.sections.iter().filter(is_data).map(in_file).collect()
}

/// The name of the DLL, and what it exports.
fn add_exports<S: ReadAt>(image: &Image<S>, facts: &mut Facts) -> Result<(), BinaryError> {
    let directory = image.directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT);
    let what = "the exported symbols";
    let Some((_, bytes)) = image.directory_bytes(pe::IMAGE_DIRECTORY_ENTRY_EXPORT, what)? else {
        return Ok(());
    };
    let exports = or_refused(ExportTable::parse(&bytes, directory.start as u32))?;
    let name = exports.name_from_pointer(exports.directory().name.get(LE));
    facts.add_text("DLL name", or_refused(name)?)?;
    facts.add("exported addresses", exports.addresses().len().to_string());
    for (name, index) in exports.name_iter() {
        let name = or_refused(exports.name_from_pointer(name))?;
        let address = or_refused(exports.address_by_index(index))?;
        let mut value = format!("number {}", or_refused(exports.ordinal_from_index(index))?);
        let forwarded = or_refused(exports.forward_string(address))?;
        if let Some(to) = forwarded {
            value += &format!(", forwarded to `{}`", String::from_utf8_lossy(to));
        }
        facts.add_symbol(Linkage::Exported, name, value, forwarded.unwrap_or_default())?;
    }
    Ok(())
}

/// The needed DLLs in their order, and what is imported from each.
fn add_imports<S: ReadAt>(image: &Image<S>, facts: &mut Facts) -> Result<(), BinaryError> {
    for dll in image.imported_dlls()? {
        let fact = if dll.is_delayed { "DLLs needed later" } else { "needed DLLs" };
        facts.add_text(fact, &dll.name)?;
        let text = String::from_utf8_lossy(&dll.name);
        image.each_import(&dll, &mut |symbol| {
            let name = match symbol {
                Imported::Name(name) => name,
                Imported::Ordinal(ordinal) => ordinal.to_string().into_bytes(),
            };
            facts.add_symbol(Linkage::Imported, &name, format!("from `{text}`"), &dll.name)
        })?;
    }
    Ok(())
}
