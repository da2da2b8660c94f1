//! What an AMDGPU ELF file says of itself, checked against a compiler that writes them.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::process::Command;

use kpack_format::code_object::{CodeObject, kernel_names, metadata_end};
use kpack_tests::fixture;
use kpack_tests::require::tool;

/// Compiles nothing for a processor and its features.
fn compile(processor: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("empty.c"), "").unwrap();
    let mut clang = Command::new("clang-19");
    clang.args(["--target=amdgcn-amd-amdhsa", "-nogpulib", "-c"]);
    clang.arg(format!("-mcpu={processor}")).current_dir(&directory);
    fixture::compile(&mut clang, &["empty.c"], "empty.o");
    std::fs::read(directory.path().join("empty.o")).unwrap()
}

fn read(bytes: &[u8]) -> CodeObject {
    CodeObject::read(&mut Cursor::new(bytes), bytes.len() as u64).unwrap()
}

fn target(bytes: &[u8]) -> String {
    read(bytes).target.unwrap().to_string()
}

#[test]
fn every_processor_of_the_compiler_is_known() {
    if !tool("clang-19") {
        return;
    }
    let mut command = Command::new("clang-19");
    command.args(["--target=amdgcn-amd-amdhsa", "-nogpulib", "--print-supported-cpus"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let words = said.split_whitespace();
    let processors: Vec<&str> = words.filter(|word| word.starts_with("gfx")).collect();
    assert!(processors.len() > 40, "{said}");
    for processor in processors {
        assert_eq!(target(&compile(processor)), processor);
    }
}

#[test]
fn features_are_told_by_sign() {
    if !tool("clang-19") {
        return;
    }
    for expected in ["gfx90a:xnack+", "gfx90a:sramecc+:xnack-", "gfx90a"] {
        assert_eq!(target(&compile(expected)), expected);
    }
}

#[test]
fn its_size_is_the_files() {
    if !tool("clang-19") {
        return;
    }
    let bytes = compile("gfx1100");
    let padded = [bytes.clone(), vec![0; 5000]].concat();
    assert_eq!(read(&padded).size, bytes.len() as u64);
}

#[test]
fn what_is_cut_off_or_for_another_machine_is_refused() {
    let bytes = kpack_tests::fixture::code_object("gfx1100", b"code").unwrap();
    for cut in 0..bytes.len() {
        assert!(CodeObject::read(&mut Cursor::new(&bytes[..cut]), cut as u64).is_err(), "{cut}");
    }
    // e_ehsize
    let mut header = bytes.clone();
    header[0x34..0x36].copy_from_slice(&0x4000u16.to_le_bytes());
    let error =
        CodeObject::read(&mut Cursor::new(&header), header.len() as u64).unwrap_err().to_string();
    assert!(error.contains("its header says 16384 bytes"), "{error}");
    let mut other = bytes;
    other[18] = 62;
    let error =
        CodeObject::read(&mut Cursor::new(&other), other.len() as u64).unwrap_err().to_string();
    assert_eq!(error, "not an AMDGPU code object: expected machine EM_AMDGPU (224), found 62");
}

#[test]
fn an_unknown_processor_is_no_error() {
    let mut bytes = kpack_tests::fixture::code_object("gfx1100", b"code").unwrap();
    bytes[0x30] = 0xee;
    assert_eq!(read(&bytes).target, None);
}

#[test]
fn its_kernels_are_in_its_metadata_near_the_start() {
    if !tool("clang-19") || !tool("ld.lld-19") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (source, output) =
        (directory.path().join("kernels.c"), directory.path().join("kernels.co"));
    let text = "#define KERNEL __attribute__((amdgpu_kernel))\n\
                KERNEL void one(float *a) { *a = 1; }\n\
                KERNEL void another(float *a) { *a = 2; }\n\
                void function(void) {}\n";
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("clang-19");
    command.args(["--target=amdgcn-amd-amdhsa", "-nogpulib", "-mcpu=gfx1100", "-O1"]);
    let status = command.arg(&source).arg("-o").arg(&output).status().unwrap();
    assert!(status.success(), "{command:?}");
    let bytes = std::fs::read(output).unwrap();
    let expected = BTreeSet::from(["another", "one"]);
    assert_eq!(kernel_names(&bytes), Some(expected.clone()));
    let end = metadata_end(&bytes).unwrap() as usize;
    assert!(end < 4096, "{end}");
    assert_eq!(kernel_names(&bytes[..end]), Some(expected));
    // Truncated and damaged ones tell nothing, and nothing fails.
    for size in 0..end {
        assert_eq!(kernel_names(&bytes[..size]), None, "{size}");
    }
    for at in 0..end {
        for byte in [0, 0x7f, 0xff] {
            let mut damaged = bytes[..end].to_vec();
            damaged[at] = byte;
            let _ = (kernel_names(&damaged), metadata_end(&damaged));
        }
    }
    assert_eq!(metadata_end(b"no ELF file"), None);
}
