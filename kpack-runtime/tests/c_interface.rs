//! Given an installed loader, when C programs are built against it in every way that its package
//! offers, then they find all functions to do what the headers say.

mod common;

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use common::{archive, marker};
use kpack_format::archive::{ArchiveWriter, Encoded, Scheme};
use kpack_tests::require;
use kpack_tests::tree::Tree;

/// Where `cargo xtask dist` put the loader, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        let _ = fs::remove_dir_all(&prefix);
        let dist = ["run", "--package", "xtask", "--", "dist", "--prefix"];
        run(Command::new(env!("CARGO")).args(dist).arg(&prefix));
        prefix
    });
    &PREFIX
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/conformance.c")
}

/// What it printed; it has to succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Compiles the program; the flags, which follow it, say where the loader is.
fn build(program: &Path, flags: impl IntoIterator<Item = String>) {
    let warnings = [
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-pthread",
    ];
    run(Command::new("cc")
        .args(warnings)
        .arg("-o")
        .arg(program)
        .arg(source())
        .args(flags));
}

/// Flags for the loader in the prefix.
fn installed() -> impl Iterator<Item = String> {
    let prefix = prefix().display();
    [
        format!("-I{prefix}/include"),
        format!("-L{prefix}/lib"),
        "-lrocm_kpack".to_owned(),
    ]
    .into_iter()
}

/// The files that the program expects.
fn files() -> Tree {
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
    write(
        "not_compressed.kpack",
        &archive(Scheme::None, target, &plain),
    );
    let mut damaged = archive(
        Scheme::ZstdPerKernel,
        target,
        &[("lib/libvec.so#1", b"code")],
    );
    let data = damaged.windows(4).position(|w| w == b"code").unwrap();
    damaged[data] ^= 1;
    write("damaged.kpack", &damaged);
    write("gibibyte.kpack", &gibibyte(target));
    let two = archive(Scheme::None, target, &[]);
    let two = replaced(
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
    of(
        "gfx1102",
        &archive(Scheme::ZstdPerKernel, "gfx1102", &other),
    );
    let mut damaged = archive(
        Scheme::ZstdPerKernel,
        "gfx942",
        &[("lib/libvec.so#0", b"code")],
    );
    let data = damaged.windows(4).position(|w| w == b"code").unwrap();
    damaged[data] ^= 1;
    of("gfx942", &damaged);
    tree
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
    let kernel = Encoded {
        bytes: frame,
        original_size: size,
        checksum: [0; 32],
    };
    let spool = Cursor::new(Vec::new());
    let target = target.parse().unwrap();
    let mut writer = ArchiveWriter::new(spool, "vec_lib", &target, Scheme::ZstdPerKernel);
    writer.add("lib/libvec.so#0", &kernel).unwrap();
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    bytes
}

fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let place = bytes.windows(old.len()).position(|w| w == old).unwrap();
    [&bytes[..place], new, &bytes[place + old.len()..]].concat()
}

/// Runs the program, with the loader where the dynamic linker finds it.
fn conforms(program: &Path) {
    let tree = files();
    let printed = run(Command::new(program)
        .arg(tree.root())
        .env("LD_LIBRARY_PATH", prefix().join("lib")));
    assert!(printed.ends_with(" checks\n"), "{printed}");
}

#[test]
fn a_program_with_the_installed_headers_and_the_shared_library() {
    let tree = Tree::new();
    let program = tree.path("conformance");
    build(&program, installed());
    let dynamic = run(Command::new("readelf").arg("-dW").arg(&program));
    assert!(dynamic.contains("[librocm_kpack.so.0]"), "{dynamic}");
    conforms(&program);
}

#[test]
fn a_program_with_pkg_config() {
    if !require::tool("pkg-config") {
        return;
    }
    for linkage in [None, Some("--static")] {
        let tree = Tree::new();
        let program = tree.path("conformance");
        // In a prefix that was moved.
        let moved = tree.path("moved");
        run(Command::new("cp").arg("-a").arg(prefix()).arg(&moved));
        if linkage.is_some() {
            for name in ["librocm_kpack.so", "librocm_kpack.so.0"] {
                fs::remove_file(moved.join("lib").join(name)).unwrap();
            }
        }
        let flags = run(Command::new("pkg-config")
            .args(["--cflags", "--libs", "rocm-kpack >= 0.1"])
            .args(linkage)
            .env("PKG_CONFIG_PATH", moved.join("lib/pkgconfig")));
        build(&program, flags.split_whitespace().map(str::to_owned));
        conforms(&program);
    }
}

#[test]
fn a_program_with_cmake() {
    if !require::tool("cmake") {
        return;
    }
    let tree = Tree::new();
    let project = format!(
        "cmake_minimum_required(VERSION 3.22)
project(conformance LANGUAGES C)
find_package(rocm-kpack 0.1 REQUIRED)
find_package(Threads REQUIRED)
foreach(kind shared static)
  add_executable(${{kind}} {})
endforeach()
target_link_libraries(shared PRIVATE rocm-kpack::rocm_kpack Threads::Threads)
target_link_libraries(static PRIVATE rocm-kpack::rocm_kpack_static Threads::Threads)
",
        source().display()
    );
    fs::write(tree.path("CMakeLists.txt"), project).unwrap();
    let build = tree.path("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(tree.root())
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for kind in ["shared", "static"] {
        conforms(&build.join(kind));
    }
}

/// The sanitizer sees each code object that is handed out, and whether all are freed.
#[test]
fn a_program_under_address_sanitizer() {
    let tree = Tree::new();
    let program = tree.path("conformance");
    let sanitizers = ["-fsanitize=address,undefined", "-g"].map(str::to_owned);
    build(&program, sanitizers.into_iter().chain(installed()));
    let files = files();
    let mut command = Command::new(&program);
    command
        .arg(files.root())
        .env("LD_LIBRARY_PATH", prefix().join("lib"))
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=1:allocator_may_return_null=1:max_allocation_size_mb=512",
        );
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for report in [
        "ERROR: AddressSanitizer",
        "ERROR: LeakSanitizer",
        "runtime error",
    ] {
        assert!(!errors.contains(report), "{errors}");
    }
    // It is watching.
    let output = command.arg("overflow").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("heap-buffer-overflow"), "{errors}");
}

#[test]
fn a_library_directory_of_another_name() {
    if !require::tool("pkg-config") {
        return;
    }
    let tree = Tree::new();
    let libdir = "lib/x86_64-linux-gnu";
    let dist = [
        "run",
        "--package",
        "xtask",
        "--",
        "dist",
        "--libdir",
        libdir,
    ];
    run(Command::new(env!("CARGO"))
        .args(dist)
        .arg("--prefix")
        .arg(tree.root()));
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "rocm-kpack"])
        .env("PKG_CONFIG_PATH", tree.path(libdir).join("pkgconfig")));
    let program = tree.path("conformance");
    build(&program, flags.split_whitespace().map(str::to_owned));
    let files = files();
    run(Command::new(&program)
        .arg(files.root())
        .env("LD_LIBRARY_PATH", tree.path(libdir)));
}

#[test]
fn the_headers_are_fit_for_cxx() {
    let include = prefix().join("include");
    let tree = Tree::new();
    let code = "#include <rocm_kpack/kpack.h>\nint main() { kpack_cache_t c; return kpack_cache_create(&c); }\n";
    fs::write(tree.path("main.cpp"), code).unwrap();
    if require::tool("c++") {
        run(Command::new("c++")
            .args([
                "-std=c++11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-c",
                "-o",
            ])
            .arg(tree.path("main.o"))
            .arg(tree.path("main.cpp"))
            .arg("-I")
            .arg(include));
    }
}

#[test]
fn the_shared_library_shows_its_interface_and_nothing_else() {
    let library = prefix().join("lib/librocm_kpack.so");
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&library));
    let mut names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    names.sort_unstable();
    let header = fs::read_to_string(prefix().join("include/rocm_kpack/kpack.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| line.starts_with("kpack_error_t kpack_") || line.starts_with("void kpack_"))
        .filter_map(|line| line.split_once(' ')?.1.split('(').next())
        .collect();
    declared.sort_unstable();
    assert_eq!(names, declared);
    assert_eq!(names.len(), 14);
    let dynamic = run(Command::new("readelf").arg("-dW").arg(&library));
    assert!(
        dynamic.contains("soname: [librocm_kpack.so.0]"),
        "{dynamic}"
    );
    // Three files tell the SONAME.
    let config = prefix().join("lib/cmake/rocm-kpack/rocm-kpack-config.cmake");
    let config = fs::read_to_string(config).unwrap();
    assert!(config.contains("IMPORTED_SONAME \"librocm_kpack.so.0\""));
    assert!(prefix().join("lib/librocm_kpack.so.0").exists());
}
