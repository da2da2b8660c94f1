//! Given a fat binary of some linker and some layout, when its host binary is planned and written,
//! then it runs as before, standard tools find nothing wrong, and it still runs after they have
//! had their way with it. The same holds when device code is put back into the host binary.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::layouts::random::{self, each_seed};
use crate::layouts::{
    self, AARCH64, Bench, Host, LINKERS, Linker, PPC64LE, apply, fat_library, same_host_code,
};
use anyhow::{Context, Result};
use kpack_split::elf::{self, Image};
use kpack_tests::bytes;
use kpack_tests::fixture::{FatLibrary, Kind, Storage, code_object};
use kpack_tests::process::try_run as run;
use kpack_tests::require;

/// Runs `variants` of each linker that is there.
fn each_linker(variants: impl Fn(&Linker) -> Vec<(Kind, Vec<&'static str>)>) -> Result<()> {
    let bench = Bench::new()?;
    for linker in LINKERS
        .iter()
        .filter(|linker| require::tool(linker.program) && require::tool(linker.compiler))
    {
        for (kind, flags) in variants(linker) {
            let mut library = fat_library(kind)?.compiler(linker.compiler).flag(linker.flag);
            for flag in &flags {
                library = library.flag(*flag);
            }
            bench
                .check(&library, kind)
                .with_context(|| format!("{}, {kind:?}, {flags:?}", linker.name))?;
        }
    }
    Ok(())
}

#[test]
fn every_kind_of_every_linker() -> Result<()> {
    each_linker(|_| vec![(Kind::Shared, vec![]), (Kind::Pie, vec![]), (Kind::NoPie, vec![])])
}

/// The linkers of Debian 13 and of its next release, with their defaults.
#[test]
fn newer_linkers_of_debian() -> Result<()> {
    for suite in ["trixie", "sid"] {
        let Some(linker) = layouts::debian::linker(suite)? else {
            continue;
        };
        let bench = Bench::new()?;
        for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
            for flag in ["-O1", "-s", "-Wl,-z,pack-relative-relocs"] {
                let library = fat_library(kind)?.flag(format!("-B{}", linker.display()));
                let library = library.flag("-fuse-ld=bfd").flag(flag);
                bench
                    .check(&library, kind)
                    .with_context(|| format!("Debian {suite}, {kind:?}, {flag}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn packed_relative_relocations() -> Result<()> {
    each_linker(|linker| {
        let Some(relr) = linker.relr else {
            return Vec::new();
        };
        vec![(Kind::Shared, vec![relr]), (Kind::Pie, vec![relr])]
    })
}

#[test]
fn device_code_in_the_segment_of_the_program_headers() -> Result<()> {
    each_linker(|linker| match linker.name {
        "lld" => vec![(Kind::Shared, vec!["-Wl,-z,noseparate-code", "-Wl,--no-rosegment"])],
        // gold has one read-only segment anyway.
        "gold" => Vec::new(),
        _ => vec![
            (Kind::Shared, vec!["-Wl,-z,noseparate-code"]),
            (Kind::Pie, vec!["-Wl,-z,noseparate-code"]),
            (Kind::NoPie, vec!["-Wl,-z,noseparate-code"]),
            (Kind::Shared, vec!["-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=0x10000"]),
        ],
    })
}

#[test]
fn large_pages() -> Result<()> {
    each_linker(|_| {
        vec![
            (Kind::Shared, vec!["-Wl,-z,max-page-size=0x10000"]),
            (Kind::Pie, vec!["-Wl,-z,max-page-size=0x10000"]),
            // Here the device code frees no page: it is zeroed, and nothing moves.
            (Kind::Shared, vec!["-Wl,-z,max-page-size=0x200000"]),
        ]
    })
}

#[test]
fn stripped_with_debug_information_and_with_all_hashes() -> Result<()> {
    each_linker(|_| {
        vec![
            (Kind::Shared, vec!["-s"]),
            (Kind::Shared, vec!["-g"]),
            (Kind::Pie, vec!["-g", "-Wl,--hash-style=both", "-Wl,-z,now"]),
            (Kind::Pie, vec!["-s", "-Wl,--build-id=none"]),
        ]
    })
}

#[test]
fn static_executables() -> Result<()> {
    each_linker(|linker| match linker.name {
        "GNU ld" => vec![(Kind::NoPie, vec!["-static"]), (Kind::Pie, vec!["-static-pie"])],
        _ => vec![(Kind::NoPie, vec!["-static"])],
    })
}

/// Device code after everything else in memory, as a section before everything else.
#[test]
fn device_code_at_an_address_of_its_own() -> Result<()> {
    const PLACE: &str = "-Wl,--section-start=.hip_fatbin=0x800000";
    each_linker(|linker| match linker.name {
        "GNU ld" => vec![
            (Kind::NoPie, vec!["-static", PLACE]),
            (Kind::Pie, vec!["-static-pie", PLACE]),
            (Kind::Shared, vec![PLACE]),
        ],
        _ => vec![(Kind::NoPie, vec!["-static", PLACE])],
    })
}

/// Gold maps no program headers if the code does not begin at a page. PT_PHDR is empty, then. Executables of
/// this layout do not start.
#[test]
fn program_headers_that_are_not_loaded() -> Result<()> {
    if !require::tool("ld.gold") {
        return Ok(());
    }
    let library = fat_library(Kind::Shared)?.flag("-fuse-ld=gold");
    let library = library.flag("-Wl,-z,max-page-size=0x200000");
    let library = library.flag("-Wl,-Ttext=0x900000");
    Bench::new()?.check(&library, Kind::Shared).map(drop)
}

/// Its `.hip_fatbin` is aligned to 16 bytes, and the bundle in it begins anywhere.
#[test]
fn device_code_that_clang_linker_wrapper_links() -> Result<()> {
    const KERNEL: &str = r#"
        struct dim3 { unsigned x, y, z; };
        extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
        extern "C" int __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);
        __attribute__((global)) void kernel(int *a) { a[0] = 1; }
    "#;
    if !require::tools(&["clang-19", "clang-linker-wrapper-19", "ld.lld-19"]) {
        return Ok(());
    }
    let bench = Bench::new()?;
    let [source, fat, host, joined, again] =
        ["kernel.hip", "fat", "host", "joined", "again"].map(|name| bench.path(name));
    let object = bench.path("kernel.o");
    fs::write(&source, KERNEL)?;
    let clang = |words: &[&str]| {
        let mut command = Command::new("clang-19");
        command.args(["--offload-new-driver", "-fgpu-rdc", "--offload-arch=gfx1100"]);
        run(command.args(["-nogpulib", "-o"]).args(words))
    };
    let text = |path: &Path| path.display().to_string();
    clang(&[&text(&object), "-x", "hip", "-nogpuinc", "-fPIC", "-c", &text(&source)])?;
    clang(&[&text(&fat), "--hip-link", "-no-hip-rt", "-fuse-ld=lld", "-shared", &text(&object)])?;
    bench.split(&fat, &host)?;
    same_host_code(&fat, &host)?;
    for size in [layouts::LITTLE, layouts::MUCH] {
        layouts::join(&host, &joined, size)?;
        same_host_code(&fat, &joined)?;
        let _ = fs::remove_file(&again);
        bench.split(&joined, &again)?;
        layouts::same_bytes(&host, &again)?;
    }
    Ok(())
}

#[test]
fn a_symbol_at_the_end_of_the_device_code() -> Result<()> {
    // Where nothing is laid out after the device code, linkers put `_end` there.
    let directory = tempfile::tempdir()?;
    let end = directory.path().join("end.s");
    let text = ".section .hip_fatbin,\"a\",@progbits\n.globl device_code_end\ndevice_code_end:\n";
    fs::write(&end, text)?;
    let library = fat_library(Kind::Shared)?.flag(&end);
    Bench::new()?.check(&library, Kind::Shared).map(drop)
}

#[test]
fn wrappers_between_red_zones() -> Result<()> {
    let bench = Bench::new()?;
    bench.check(&fat_library(Kind::Shared)?.red_zones(), Kind::Shared)?;
    bench.check(&fat_library(Kind::NoPie)?.red_zones(), Kind::NoPie)?;
    Ok(())
}

/// Some projects' linker scripts put device code after the data, to keep code within 2 GiB.
#[test]
fn device_code_in_the_writable_segment() -> Result<()> {
    let bench = Bench::new()?;
    for place in
        ["INSERT BEFORE .bss", "INSERT AFTER .data", "INSERT AFTER .bss", "INSERT BEFORE .data"]
    {
        let script = bench.path("place.ld");
        fs::write(
            &script,
            format!("SECTIONS {{ .hip_fatbin : {{ *(.hip_fatbin) }} }} {place};\n"),
        )?;
        for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
            let flag = format!("-Wl,-T,{}", script.display());
            let library = fat_library(kind)?.flag("-fuse-ld=bfd").flag(flag);
            bench.check(&library, kind).with_context(|| format!("{place}, {kind:?}"))?;
        }
    }
    Ok(())
}

/// GNU ld lays programs out like this since 2.44. Notes make room for a program header, and the last of them ends
/// within a word whose other half, the beginning of `.interp`, stays.
#[test]
fn notes_that_end_within_a_word_before_the_interpreter() -> Result<()> {
    let bench = Bench::new()?;
    let script = bench.path("notes.ld");
    fs::write(&script, layouts::NOTES_FIRST)?;
    for kind in [Kind::Pie, Kind::NoPie, Kind::Shared] {
        for build_id in ["sha1", "md5", "0x0123456789abcdef01234567"] {
            let library = fat_library(kind)?.flag("-fuse-ld=bfd");
            let library = library.flag(format!("-Wl,-T,{}", script.display()));
            let library = library.flag(format!("-Wl,--build-id={build_id}"));
            bench.check(&library, kind).with_context(|| format!("{kind:?}, {build_id}"))?;
        }
    }
    Ok(())
}

/// An image of OpenMP, and code that stops the program if the image is not what it was.
const IMAGE: &str = "
    .section .llvm.offloading,\"a\",@0x6fff4c0b
image:
    .zero 200, 0x41
    .data
    .balign 8
pointer:
    .quad image
    .text
check:
    movq pointer(%rip), %rax
    movl $200, %ecx
1:
    cmpb $0x41, -1(%rax,%rcx)
    jne 2f
    loop 1b
    ret
2:
    ud2
    .section .init_array,\"aw\",@init_array
    .balign 8
    .quad check
    .section .note.GNU-stack,\"\",@progbits
";

/// lld puts the images of OpenMP right after the program headers. Code refers to them, so they cannot move.
#[test]
fn images_of_openmp_after_the_program_headers() -> Result<()> {
    if !require::tools(&["clang-19", "ld.lld-19"]) {
        return Ok(());
    }
    let bench = Bench::new()?;
    let source = bench.path("image.s");
    fs::write(&source, IMAGE)?;
    for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
        let library = fat_library(kind)?.compiler("clang-19").flag("-fuse-ld=lld");
        let library = library.flag("-Wl,--build-id=none").flag(&source);
        bench.check(&library, kind).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// patchelf moves the images of OpenMP and overwrites where they were, but does not change what refers to them. Such a
/// program has lost its images already, so it is refused with the way to keep them.
#[test]
fn images_of_openmp_that_patchelf_moved() -> Result<()> {
    if !require::tools(&["clang-19", "ld.lld-19", "patchelf"]) {
        return Ok(());
    }
    let bench = Bench::new()?;
    let [source, fat, host] = ["image.s", "fat", "host"].map(|name| bench.path(name));
    fs::write(&source, IMAGE)?;
    let library = fat_library(Kind::Pie)?.compiler("clang-19").flag("-fuse-ld=lld");
    library.flag("-Wl,--build-id=none").flag(&source).build(&fat)?;
    bench.report(Kind::Pie, &fat)?;
    apply("patchelf", &["--set-rpath", "/a/directory/with/quite/a/long/name"], &fat)?;
    bench.report(Kind::Pie, &fat).expect_err("patchelf breaks it");
    let refused = bench.split(&fat, &host).map(|plan| plan.to_string());
    let error = format!("{:#}", refused.expect_err("code refers to what is after the table"));
    assert!(error.contains("run kpack before the tool that moved"), "{error}");
    assert!(!host.exists());
    Ok(())
}

/// A linker script can put device code among what is read-only after relocation. The dynamic loader
/// protects that as a whole, so nothing in it can be unmapped.
#[test]
fn device_code_within_relro_is_refused() -> Result<()> {
    let bench = Bench::new()?;
    for place in ["INSERT AFTER .data.rel.ro", "INSERT BEFORE .got"] {
        let script = bench.path("place.ld");
        fs::write(
            &script,
            format!("SECTIONS {{ .hip_fatbin : {{ *(.hip_fatbin) }} }} {place};\n"),
        )?;
        for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
            let flag = format!("-Wl,-T,{}", script.display());
            let library = fat_library(kind)?.flag("-fuse-ld=bfd").flag(flag);
            let (fat, host) = (bench.path("relro"), bench.path("relro-host"));
            library.build(&fat)?;
            bench.report(kind, &fat)?;
            let refused = bench.split(&fat, &host).map(|plan| plan.to_string());
            let error = format!("{:#}", refused.expect_err("it is within RELRO"));
            assert!(
                error.contains("`.hip_fatbin` is within PT_GNU_RELRO")
                    && error.contains("change the linker script"),
                "{place}, {kind:?}: {error}"
            );
            assert!(!host.exists());

            // Without RELRO the same place is fine.
            bench
                .check(&library.flag("-Wl,-z,norelro"), kind)
                .with_context(|| format!("{place}, {kind:?}, without RELRO"))?;
        }
    }
    Ok(())
}

#[test]
fn device_code_that_frees_no_page_is_zeroed() -> Result<()> {
    let bench = Bench::new()?;
    let library =
        FatLibrary::new().wrapper(Storage::Plain, [("gfx1100", code_object("gfx1100", b"small")?)]);
    let plan = bench.check(&library, Kind::Shared)?;
    assert!(plan.to_string().contains("nothing is cut"), "{plan}");
    let host = fs::read(bench.path("host"))?;
    assert!(!bytes::contains(&host, b"small"));
    Ok(())
}

/// Every kind of another machine, where pages have 64 KiB.
fn each_kind_of(host: Host, flags: &[&str]) -> Result<()> {
    if !require::tools(&[host.compiler, host.runner[0]]) {
        return Ok(());
    }
    let compiler = host.compiler;
    let bench = Bench::of(host)?;
    for kind in [Kind::Shared, Kind::Pie, Kind::NoPie] {
        let library = fat_library(kind)?.compiler(compiler);
        let library = flags.iter().fold(library, |library, flag| library.flag(*flag));
        let plan = bench.check(&library, kind).with_context(|| format!("{kind:?}, {flags:?}"))?;
        assert!(plan.to_string().contains("are cut"), "{plan}");
    }
    Ok(())
}

#[test]
fn aarch64_hosts() -> Result<()> {
    each_kind_of(AARCH64, &[])
}

#[test]
fn ppc64le_hosts() -> Result<()> {
    for flags in [&[][..], &["-O2", "-s", "-Wl,-z,now"]] {
        each_kind_of(PPC64LE, flags)?;
    }
    Ok(())
}

/// The comparison with the original says so, whatever byte of the host code changes, also in sections that moved. Left
/// out is what a split changes: pointers of wrappers, which are relocated, and the numbers of sections in symbols.
#[test]
fn every_byte_of_the_host_code_is_compared() -> Result<()> {
    let bench = Bench::new()?;
    let (fat, host) = (bench.path("fat"), bench.path("host"));
    fat_library(Kind::Shared)?.flag("-fuse-ld=bfd").build(&fat)?;
    let plan = bench.split(&fat, &host)?.to_string();
    assert!(plan.contains("are cut"), "{plan}");
    let original = Image::read(fs::read(&fat)?)?;
    let sound = Image::read(fs::read(&host)?)?;
    assert!(elf::compare(&original, &sound)?.is_empty());
    let (_, wrappers) = sound.section(".hipFatBinSegment")?.context("no wrappers")?;
    let is_of_wrapper = |relocation: &[u8]| {
        let address = u64::from_le_bytes(relocation[..8].try_into().unwrap());
        (wrappers.addr..wrappers.addr_end()).contains(&address)
    };
    let (mut moved, mut compared) = (0, 0);
    for section in sound.sections.iter().filter(|s| s.is_alloc() && s.has_bytes()) {
        if [".hip_fatbin", ".rocm_kpack_ref"].contains(&&*section.name) {
            continue;
        }
        let (_, before) = original.section(&section.name)?.context("a new section")?;
        moved += usize::from(before.addr != section.addr);
        for at in 0..section.size as usize {
            let offset = section.offset as usize;
            let record = |size: usize| &sound.source()[offset + at - at % size..];
            let may_change = match &*section.name {
                ".hipFatBinSegment" => (8..16).contains(&(at % 24)) || at % 24 >= 20,
                ".dynsym" => (6..8).contains(&(at % 24)),
                ".rela.dyn" => at % 24 >= 8 && is_of_wrapper(record(24)),
                _ => false,
            };
            let mut changed = sound.source().clone();
            changed[offset + at] ^= 0x55;
            let is_found = Image::read(changed)
                .and_then(|changed| elf::compare(&original, &changed))
                .map_or(true, |differences| !differences.is_empty());
            assert!(is_found || may_change, "{}, byte {at:#x}", section.name);
            compared += 1;
        }
    }
    assert!(moved > 0 && compared > 1000, "{moved} sections moved; {compared} bytes");
    Ok(())
}

/// `objcopy` leaves dynamic symbols with the old numbers of their sections: here, that of `.rodata` has become
/// the number of the device code.
#[test]
fn dynamic_symbols_with_old_section_numbers_stay() -> Result<()> {
    if !require::tool("ld.gold") {
        return Ok(());
    }
    let bench = Bench::new()?;
    let (fat, host) = (bench.path("fat"), bench.path("host"));
    let library = fat_library(Kind::Pie)?.flag("-fuse-ld=gold").flag("-rdynamic");
    library.flag("-Wl,--build-id=sha1").build(&fat)?;
    apply("objcopy", &["--remove-section", ".note.gnu.build-id"], &fat)?;
    bench.split(&fat, &host)?;
    same_host_code(&fat, &host)
}

/// `lld` packs relocations so on request. The wrappers' pointers are among them.
#[test]
fn relocations_packed_for_android_are_refused() -> Result<()> {
    if !require::tools(&["clang-19", "ld.lld-19"]) {
        return Ok(());
    }
    let bench = Bench::new()?;
    let (fat, host) = (bench.path("fat"), bench.path("host"));
    let library = fat_library(Kind::Shared)?.compiler("clang-19");
    let library = library.flag("-fuse-ld=lld");
    library.flag("-Wl,--pack-dyn-relocs=android").build(&fat)?;
    let refused = bench.split(&fat, &host).map(|plan| plan.to_string());
    let error = format!("{:#}", refused.expect_err("nothing reads them"));
    assert!(error.contains("(DT_ANDROID_RELA)"), "{error}");
    Ok(())
}

/// Nothing of the host code may depend on section headers, which are not loaded.
/// Maps the section headers, as patchelf 0.19 does, by a program header that was another one.
fn load_section_headers(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let kind = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (table, size) = (word(40), 64 * u64::from(bytes[60]));
    let segments = (0..usize::from(bytes[56])).map(|index| word(32) as usize + 56 * index);
    let loads = segments.clone().filter(|at| kind(*at) == 1);
    let end = loads.map(|at| word(at + 16) + word(at + 40)).max();
    let address = end.context("a segment")?.next_multiple_of(1 << 16) + table % (1 << 16);
    let mut others = segments.filter(|at| kind(*at) == 0x6474_e551);
    let at = others.next().context("PT_GNU_STACK")?;
    // Type and flags, offset, two addresses, two sizes, alignment.
    let words = [4 << 32 | 1, table, address, address, size, size, 4096_u64];
    bytes[at..at + 56].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
    Ok(fs::write(path, bytes)?)
}

#[test]
fn section_headers_that_are_loaded() -> Result<()> {
    let bench = Bench::new()?;
    let (fat, host, joined) = (bench.path("fat"), bench.path("host"), bench.path("joined"));
    for (before, after) in [(true, false), (false, true)] {
        fat_library(Kind::Shared)?.build(&fat)?;
        if before {
            load_section_headers(&fat)?;
        }
        let report = bench.report(Kind::Shared, &fat)?;
        let _ = fs::remove_file(&host);
        bench.split(&fat, &host)?;
        if after {
            load_section_headers(&host)?;
        }
        let expected = layouts::expected_report(&report);
        assert_eq!(bench.report(Kind::Shared, &host)?, expected);
        for size in [layouts::LITTLE, layouts::MUCH] {
            layouts::join(&host, &joined, size)?;
            let again = bench.path("again");
            let _ = fs::remove_file(&again);
            bench.split(&joined, &again)?;
            assert_eq!(bench.report(Kind::Shared, &again)?, expected);
        }
    }
    Ok(())
}

#[test]
fn wrong_section_headers_of_a_joined_binary_lose_nothing() -> Result<()> {
    let bench = Bench::new()?;
    let (fat, host, joined) = (bench.path("fat"), bench.path("host"), bench.path("joined"));
    fat_library(Kind::Shared)?.flag("-Wl,--hash-style=gnu").build(&fat)?;
    let report = bench.report(Kind::Shared, &fat)?;
    bench.split(&fat, &host)?;
    for size in [layouts::LITTLE, layouts::MUCH] {
        layouts::join(&host, &joined, size)?;
        let sound = fs::read(&joined)?;
        let word = |at: usize| u64::from_le_bytes(sound[at..at + 8].try_into().unwrap());
        let (table, count) = (word(40) as usize, usize::from(sound[60]));
        let mut split = 0;
        for section in 1..count {
            // The address, the size and the type.
            for (field, value) in [(16, 0), (16, 0x40), (32, 8), (32, 0x3000), (4, 8), (4, 1)] {
                let mut damaged = sound.clone();
                let at = table + section * 64 + field;
                damaged[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
                fs::write(&joined, damaged)?;
                let again = bench.path("again");
                let _ = fs::remove_file(&again);
                if bench.split(&joined, &again).is_ok() {
                    let found = bench.report(Kind::Shared, &again);
                    let expected = layouts::expected_report(&report);
                    assert_eq!(found?, expected, "section {section}, {field}: {value:#x}");
                    split += 1;
                }
            }
        }
        // Few sections decide where something is.
        assert!(2 * split > 6 * (count - 1), "{split} of {}", 6 * (count - 1));
    }
    Ok(())
}

/// Where it leads nowhere, the headers are guessed from the sections, as without a record.
#[test]
fn a_wrong_record_of_a_join_loses_nothing() -> Result<()> {
    let bench = Bench::new()?;
    let (fat, host, joined) = (bench.path("fat"), bench.path("host"), bench.path("joined"));
    fat_library(Kind::Shared)?.build(&fat)?;
    let report = bench.report(Kind::Shared, &fat)?;
    bench.split(&fat, &host)?;
    for size in [layouts::LITTLE, layouts::MUCH] {
        layouts::join(&host, &joined, size)?;
        let sound = fs::read(&joined)?;
        let word = |at: usize| u64::from_le_bytes(sound[at..at + 8].try_into().unwrap());
        let magic = sound.windows(8).rposition(|word| word == b"kpkjoin1");
        let length = magic.context("no record")? - 8;
        let start = length + 16 - 8 * word(length) as usize;
        for at in (start..length).step_by(8) {
            for value in [0, 1, 0x1001, 1 << 40, 1 << 61, u64::MAX - 4095, u64::MAX] {
                let mut damaged = sound.clone();
                damaged[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
                fs::write(&joined, damaged)?;
                let again = bench.path("again");
                let _ = fs::remove_file(&again);
                let what = format!("{size}: word {}: {value:#x}", (at - start) / 8);
                bench.split(&joined, &again).context(what.clone())?;
                let found = bench.report(Kind::Shared, &again)?;
                assert_eq!(found, layouts::expected_report(&report), "{what}");
            }
        }
    }
    Ok(())
}

/// Nothing of it is in a file, so it takes no time either.
#[test]
fn zeroed_memory_of_any_size_is_compared_at_once() -> Result<()> {
    let bench = Bench::new()?;
    let (fat, host) = (bench.path("fat"), bench.path("host"));
    fat_library(Kind::Shared)?.build(&fat)?;
    let mut bytes = fs::read(&fat)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (table, count) = (word(32) as usize, usize::from(bytes[56]));
    let headers = (0..count).map(|header| table + header * 56);
    let mut loads = headers.filter(|at| bytes[*at..at + 4] == [1, 0, 0, 0]);
    let size = loads.next_back().context("no PT_LOAD")? + 40;
    bytes[size..size + 8].copy_from_slice(&u64::to_le_bytes(1 << 60));
    fs::write(&fat, bytes)?;
    bench.split(&fat, &host)?;
    Ok(())
}

/// Some tools, such as post-link optimisers, write a larger table to the end of the file.
#[test]
fn program_headers_after_the_device_code_are_refused() -> Result<()> {
    let bench = Bench::new()?;
    let (fat, host) = (bench.path("fat"), bench.path("host"));
    fat_library(Kind::Shared)?.build(&fat)?;
    let mut bytes = fs::read(&fat)?;
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let end = bytes.len() as u64;
    bytes.extend_from_within(64..64 + 56 * usize::from(bytes[56]));
    bytes[32..40].copy_from_slice(&end.to_le_bytes());
    fs::write(&fat, bytes)?;
    bench.report(Kind::Shared, &fat)?;
    let refused = bench.split(&fat, &host).map(|plan| plan.to_string());
    let error = format!("{:#}", refused.expect_err("they would move"));
    assert!(error.contains(", after the device code (expected at the start"), "{error}");
    Ok(())
}

/// Of the seeds in `KPACK_SEEDS`, such as `0..500`.
#[test]
fn random_layouts_and_tools() -> Result<()> {
    each_seed(20, random::check)
}
