//! Quick check of a file or a static library member before parsing it. Most compiled and archived
//! files have no device code and pass through, whatever they are.

use object::elf;

use kpack_core::elf::{BinaryError, ReadAt, unsupported};
use kpack_core::files::{FileKind, START, kind_of};

use super::relocatable::pointer_relocation;

/// Everything with HIP device code contains one of these: section names, symbol names, or the magic
/// of a bundle. This holds for bitcode and nested static libraries too.
const TRACES: [&[u8]; 4] =
    [b"hip_fatbin", b"hipFatBinSegment", b"__CLANG_OFFLOAD_BUNDLE__", b"llvm.offloading"];

/// Whether a file or member may be an object that can be split: one for a supported host
/// architecture. If not, it has no device code.
///
/// # Errors
/// The file has device code but cannot be split.
pub(super) fn is_object<S: ReadAt>(source: &S) -> Result<bool, BinaryError> {
    let start = start(source)?;
    match kind_of(&start) {
        Some(FileKind::Object) => {
            let machine = u16::from_le_bytes([start[18], start[19]]);
            let known = pointer_relocation(elf::Machine(machine)).is_some();
            if start[4] == elf::ELFCLASS64.0 && start[5] == elf::ELFDATA2LSB.0 && known {
                return Ok(true);
            }
            if source.contains(&TRACES)? {
                unsupported!(
                    "has device code for an unsupported host (expected a 64-bit object for \
                     x86-64, e_machine 62, AArch64, 183, or ppc64le, 21; found class {}, data {}, e_machine \
                     {machine})",
                    start[4],
                    start[5]
                );
            }
        }
        Some(FileKind::Linked) if source.contains(&TRACES)? => {
            unsupported!("a linked binary with device code; split it with `kpack split`")
        }
        Some(FileKind::StaticLibrary) if source.contains(&TRACES)? => unsupported!(
            "a static library with device code inside a static library, where linkers do not \
             look; split its objects and put them into the outer library"
        ),
        Some(FileKind::Bundle) => unsupported!(
            "an offload bundle, as -fgpu-rdc --emit-static-lib makes it, whose device \
             code is complete only after the link; compile without -fgpu-rdc, or link it \
             unchanged and split the linked binary (kpack split)"
        ),
        Some(FileKind::CodeObject) => unsupported!(
            "an AMDGPU ELF file for a device link; link it unchanged, and split the \
             linked binary (kpack split)"
        ),
        None if is_bitcode(&start) && source.contains(&TRACES)? => unsupported!(
            "LLVM bitcode with device code, as -flto or -emit-llvm makes it, and not yet \
             an object; compile HIP sources without -flto, or link it unchanged and split the \
             linked binary (kpack split)"
        ),
        _ => {}
    }
    Ok(false)
}

/// Whether a file starts like LLVM bitcode, with or without its wrapper.
pub(crate) fn is_bitcode(start: &[u8]) -> bool {
    start.starts_with(b"BC\xc0\xde") || start.starts_with(&[0xde, 0xc0, 0x17, 0x0b])
}

/// The first bytes, padded with zeroes.
pub(super) fn start<S: ReadAt>(source: &S) -> Result<[u8; START], BinaryError> {
    let mut start = [0; START];
    let size = source.size()?.min(START as u64) as usize;
    source.read_exact_at(0, &mut start[..size])?;
    Ok(start)
}
