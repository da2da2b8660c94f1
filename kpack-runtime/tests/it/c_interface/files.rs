//! The files that the program expects.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::process::Command;

use kpack_format::archive::{ArchiveWriter, Encoded, Scheme};
use kpack_tests::bytes::{self, patched};
use kpack_tests::tree::Tree;

use super::run;
use crate::common::{archive, marker};

/// The files that the program expects; `compiler` makes its library.
pub(crate) fn files(compiler: &str) -> Tree {
    let tree = Tree::new();
    let target = "gfx1100";
    let large: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    let good = archive(
        Scheme::ZstdPerKernel,
        target,
        &[("lib/libvec.so#0", b"code"), ("lib/libvec.so#1", &large)],
    );
    let write = |name: &str, bytes: &[u8]| fs::write(tree.path(name), bytes).unwrap();
    write("good.kpack", &good);
    write("empty.kpack", b"");
    write("no_archive.kpack", &[1; 200]);
    let mut version_2 = good.clone();
    version_2[4] = 2;
    write("version_2.kpack", &version_2);
    write("no_toc.kpack", &good[..good.len() - 1]);
    write("shrinking.kpack", &good);
    let plain: [(&str, &[u8]); 2] = [("lib/libvec.so#1", b"plain"), ("lib/libvec.so#2", b"")];
    write("not_compressed.kpack", &archive(Scheme::None, target, &plain));
    let mut damaged = archive(Scheme::ZstdPerKernel, target, &[("lib/libvec.so#1", b"code")]);
    let data = bytes::position(&damaged, b"code");
    damaged[data] ^= 1;
    write("damaged.kpack", &damaged);
    write("gibibyte.kpack", &gibibyte(target));
    let two = archive(Scheme::None, target, &[]);
    let two = patched(
        &two,
        b"\xaagfx_arches\x91\xa7gfx1100",
        b"\xaagfx_arches\x92\xa7gfx1100\xa7gfx1101",
    );
    write("two.kpack", &two);

    write("marker", &marker().to_bytes());
    fs::create_dir_all(tree.path("lib/.kpack")).unwrap();
    let of = |name: &str, bytes: &[u8]| write(&format!("lib/.kpack/vec_lib_{name}.kpack"), bytes);
    of("gfx1100", &good);
    of("gfx1101", &good);
    let other: [(&str, &[u8]); 1] = [("lib/libother.so#0", b"code")];
    of("gfx1102", &archive(Scheme::ZstdPerKernel, "gfx1102", &other));
    let mut damaged = archive(Scheme::ZstdPerKernel, "gfx942", &[("lib/libvec.so#0", b"code")]);
    let data = bytes::position(&damaged, b"code");
    damaged[data] ^= 1;
    of("gfx942", &damaged);
    environment(&tree, &good, compiler);
    tree
}

/// A library in a store, as package managers have it, and an environment that links to it, with the archive
/// beside the link only.
fn environment(tree: &Tree, archive: &[u8], compiler: &str) {
    for directory in ["store/lib", "environment/lib/.kpack"] {
        fs::create_dir_all(tree.path(directory)).unwrap();
    }
    let library = tree.path("store/lib/libvec.so");
    let marker = marker().to_bytes();
    let source = tree.path("vec.c");
    fs::write(&source, format!("const unsigned char vec_marker[] = {{{}}};\n", numbers(&marker)))
        .unwrap();
    let shared = ["-shared", "-fPIC", "-o"];
    run(Command::new(compiler).args(shared).arg(&library).arg(&source));
    let link = tree.path("environment/lib/libvec.so");
    symlink("../../store/lib/libvec.so", link).unwrap();
    let archives = tree.path("environment/lib/.kpack");
    fs::write(archives.join("vec_lib_gfx1100.kpack"), archive).unwrap();
}

/// As C writes them.
fn numbers(bytes: &[u8]) -> String {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    numbers.join(", ")
}

/// An archive of 33 kB with a kernel of a gibibyte, for which no memory is needed here: a Zstandard
/// frame of blocks that say one byte, and how often (RFC 8878, 3.1.1.2.2).
fn gibibyte(target: &str) -> Vec<u8> {
    let (size, block) = (1u64 << 30, 128u32 << 10);
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0b1110_0000];
    frame.extend(size.to_le_bytes());
    let blocks = size / u64::from(block);
    for number in 1..=blocks {
        let header = block << 3 | 0b10 | u32::from(number == blocks);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(0);
    }
    let kernel = Encoded { bytes: frame, original_size: size, checksum: [0; 32] };
    let spool = Cursor::new(Vec::new());
    let target = target.parse().unwrap();
    let mut writer = ArchiveWriter::new(spool, "vec_lib", &target, Scheme::ZstdPerKernel);
    writer.add("lib/libvec.so#0", &kernel).unwrap();
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    bytes
}
