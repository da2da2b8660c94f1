//! Compares the cost of loading, through the C interface, with plain `ZSTD_decompressDCtx` of the same
//! frames: `load ARCHIVE ROUNDS`. `cargo xtask bench load` makes the archive and runs this.
//!
//! Both sides do what a runtime does: they allocate memory for each code object with malloc, and free it
//! after use. Rounds alternate, and the best round of each side counts, since other work on the machine
//! only ever adds time.

#![allow(unsafe_code, reason = "the C interface is what is measured")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "handles are used between open and close, strings end with NUL"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kpack_format::archive::{Archive, ArchiveWriter, Encoder, Scheme, Toc};
use kpack_format::digest::sha256;
use kpack_format::marker::Marker;
use rocm_kpack::ffi;
use tempfile::NamedTempFile;
use zstd::zstd_safe::DCtx;

/// An archive that C has opened; any number of threads may use it.
struct Handle(ffi::kpack_archive_t);

unsafe impl Sync for Handle {}

/// A stored code object.
struct Frame<'a> {
    name: CString,
    bytes: &'a [u8],
    size: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let [archive, rounds] = arguments.as_slice() else {
        eprintln!("needs ARCHIVE ROUNDS: run `cargo xtask bench load`");
        return;
    };
    let rounds: usize = rounds.parse().expect("a number of rounds");
    let bytes = fs::read(archive).expect("the archive");
    let mut index = Archive::open(Cursor::new(&bytes)).expect("an archive");
    let toc = index.toc().clone();
    let target = CString::new(toc.gfx_arch_family.clone()).unwrap();
    let mut frames = Vec::new();
    for (name, targets) in &toc.kernels {
        let entry = &targets[&toc.gfx_arch_family];
        let (offset, size) = index.stored(entry.ordinal).unwrap();
        frames.push(Frame {
            name: CString::new(name.as_str()).unwrap(),
            bytes: &bytes[offset as usize..(offset + size) as usize],
            size: entry.original_size as usize,
        });
    }
    let total: usize = frames.iter().map(|frame| frame.size).sum();
    let stored: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
    println!(
        "{}: {} kernels, {:.1} MB, {:.1} MB compressed",
        Path::new(archive).file_name().unwrap_or_default().display(),
        frames.len(),
        megabytes(total),
        megabytes(stored)
    );

    let small = small_archive(&toc);
    println!("\nopen, warm, best of {OPENINGS}: it and one with as many kernels and little data");
    for path in [Path::new(archive), small.path()] {
        let size = fs::metadata(path).unwrap().len() as usize;
        println!(
            "  {:>8.1} MB {:>8.3} ms",
            megabytes(size),
            milliseconds(opening(path))
        );
    }

    let archive = Path::new(archive);
    let handle = Handle(open(archive));
    let start = Instant::now();
    let (data, _) = get(&handle, &frames[0].name, &target);
    println!(
        "\nfirst kernel ({:.1} MB): {:.2} ms",
        megabytes(frames[0].size),
        milliseconds(start.elapsed())
    );
    unsafe { ffi::kpack_free_kernel(data) };
    let smallest = frames.iter().min_by_key(|frame| frame.size).unwrap();
    lookup(archive, smallest, &handle, &target);
    uncompressed(&toc, &mut index);
    // This program's own copy of the archive does not count for the loader.
    let own = megabytes(bytes.len());
    println!("resident before loading all: {:.1} MB", resident() - own);

    let ours = |threads| {
        run(threads, &frames, || {
            |frame: &Frame<'_>| {
                let (data, size) = get(&handle, &frame.name, &target);
                assert_eq!(size, frame.size);
                unsafe { ffi::kpack_free_kernel(data) };
            }
        })
    };
    let plain = |threads| {
        run(threads, &frames, || {
            let mut context = DCtx::create();
            move |frame: &Frame<'_>| decompress(&mut context, frame)
        })
    };
    let mut best = [[Duration::MAX; 2]; 2];
    for _ in 0..rounds {
        for threads in [1, 2] {
            let [plain_best, ours_best] = &mut best[threads - 1];
            *plain_best = plain(threads).min(*plain_best);
            *ours_best = ours(threads).min(*ours_best);
        }
    }
    println!("resident after loading all:  {:.1} MB", resident() - own);
    println!(
        "\nall kernels, best of {rounds}      ZSTD_decompressDCtx     kpack_get_kernel   ratio"
    );
    for (index, [plain, ours]) in best.into_iter().enumerate() {
        println!(
            "  {} thread{} {:>20.0} MB/s {:>15.0} MB/s {:>8.3}",
            index + 1,
            if index == 0 { " " } else { "s" },
            megabytes(total) / plain.as_secs_f64(),
            megabytes(total) / ours.as_secs_f64(),
            plain.as_secs_f64() / ours.as_secs_f64()
        );
    }
    let ratio = best[0][0].as_secs_f64() / best[0][1].as_secs_f64();
    let scaling = best[0][1].as_secs_f64() / best[1][1].as_secs_f64();
    println!("  two threads over one: {scaling:.2}");
    println!("\nBounds:");
    let verdict = |what: &str, holds: bool| {
        println!(
            "  {what}: {}",
            if holds { "holds" } else { "DOES NOT HOLD" }
        );
    };
    verdict(
        "open in less than 1 ms",
        opening(archive) < Duration::from_millis(1),
    );
    verdict("one thread at least 0.95 of zstd", ratio >= 0.95);
    verdict("two threads at least 1.8 times one", scaling >= 1.8);
    unsafe { ffi::kpack_close(handle.0) };
}

/// An archive with the kernels of `toc`, each of few bytes.
fn small_archive(toc: &Toc) -> NamedTempFile {
    let target = toc.gfx_arch_family.parse().unwrap();
    let spool = Cursor::new(Vec::new());
    let mut writer = ArchiveWriter::new(spool, &toc.group_name, &target, toc.scheme);
    let mut encoder = Encoder::new(toc.scheme, 3).unwrap();
    for name in toc.kernels.keys() {
        let encoded = encoder.encode(name.as_bytes(), sha256(name.as_bytes()));
        writer.add(name, &encoded.unwrap()).unwrap();
    }
    let mut file = NamedTempFile::new().unwrap();
    writer.finish(&mut file).unwrap();
    file
}

/// Times loading all kernels from an uncompressed archive, with checksums and without.
fn uncompressed(toc: &Toc, archive: &mut Archive<Cursor<&Vec<u8>>>) {
    let target = toc.gfx_arch_family.parse().unwrap();
    let spool = Cursor::new(Vec::new());
    let mut writer = ArchiveWriter::new(spool, &toc.group_name, &target, Scheme::None);
    let mut encoder = Encoder::new(Scheme::None, 3).unwrap();
    let mut total = 0;
    for name in toc.kernels.keys() {
        let code = archive.read(name, &toc.gfx_arch_family).unwrap();
        total += code.len();
        let encoded = encoder.encode(&code, sha256(&code));
        writer.add(name, &encoded.unwrap()).unwrap();
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    println!("\nall kernels, uncompressed, one thread, best of 5");
    let key = bytes.windows(9).rposition(|w| w == b"checksums").unwrap();
    for (what, first) in [("with checksums", b'c'), ("without", b'C')] {
        // Readers ignore a key with an unknown name.
        bytes[key] = first;
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let opened = rocm_kpack::Archive::open(file.path()).unwrap();
        assert_eq!(opened.toc().checksums.is_some(), first == b'c');
        let once = |_| {
            let start = Instant::now();
            for name in toc.kernels.keys() {
                std::hint::black_box(opened.load(name, &toc.gfx_arch_family).unwrap());
            }
            start.elapsed()
        };
        let best: Duration = (0..5).map(once).min().unwrap_or_default();
        let speed = megabytes(total) / best.as_secs_f64();
        println!("  {what:<16} {speed:>8.0} MB/s");
    }
}

const OPENINGS: usize = 200;

/// The best time of opening and closing.
fn opening(path: &Path) -> Duration {
    let once = |_| {
        let start = Instant::now();
        unsafe { ffi::kpack_close(open(path)) };
        start.elapsed()
    };
    (0..OPENINGS).map(once).min().unwrap_or_default()
}

fn open(path: &Path) -> ffi::kpack_archive_t {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut archive = ptr::null_mut();
    let error = unsafe { ffi::kpack_open(path.as_ptr(), &raw mut archive) };
    assert_eq!(error, ffi::kpack_error_t::KPACK_SUCCESS);
    archive
}

fn get(archive: &Handle, name: &CStr, target: &CStr) -> (*mut c_void, usize) {
    let (mut data, mut size) = (ptr::null_mut(), 0);
    let name: *const c_char = name.as_ptr();
    let error = unsafe {
        ffi::kpack_get_kernel(
            archive.0,
            name,
            target.as_ptr(),
            &raw mut data,
            &raw mut size,
        )
    };
    assert_eq!(error, ffi::kpack_error_t::KPACK_SUCCESS);
    (data, size)
}

/// Times kpack_load_code_object for one kernel, against kpack_get_kernel, and for a GPU with features
/// that no archive is for.
fn lookup(archive: &Path, frame: &Frame<'_>, handle: &Handle, target: &CStr) {
    let name = frame.name.to_str().unwrap();
    let (binary, index) = name.rsplit_once('#').unwrap();
    let file_name = archive.file_name().unwrap().to_str().unwrap();
    let target_name = target.to_str().unwrap();
    let opened = rocm_kpack::Archive::open(archive).unwrap();
    let id = opened.toc().code_id(binary, target_name).unwrap();
    let kernels = opened.toc().kernels.len();
    let marker = Marker {
        kernel_name: Some(binary.to_owned()),
        kpack_search_paths: vec![file_name.replace(target_name, "@GFXARCH@")],
        ..Marker::default()
    };
    let with_id = Marker {
        code_ids: [(target_name.to_owned(), id)].into(),
        ..marker.clone()
    };
    let markers = [("", marker.to_bytes()), (", code ID", with_id.to_bytes())];
    let beside = CString::new(archive.with_file_name("libvec.so").as_os_str().as_bytes()).unwrap();
    let mut cache = ptr::null_mut();
    assert_eq!(unsafe { ffi::kpack_cache_create(&raw mut cache) }, SUCCESS);
    println!(
        "\none small kernel ({} bytes), archive open, best of {OPENINGS}",
        frame.size
    );
    let print = |what: &str, work: &dyn Fn()| {
        let once = |_| {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        let best: Duration = (0..OPENINGS).map(once).min().unwrap_or_default();
        println!("  {what:<60} {:>7.1} µs", best.as_secs_f64() * 1e6);
    };
    print("kpack_get_kernel", &|| {
        let (data, _) = get(handle, &frame.name, target);
        unsafe { ffi::kpack_free_kernel(data) };
    });
    print(&format!("the code ID of {kernels} kernels, once"), &|| {
        std::hint::black_box(opened.toc().code_id(binary, target_name));
    });
    for (features, (kind, marker)) in ["", ":sramecc+:xnack-"]
        .into_iter()
        .flat_map(|features| markers.iter().map(move |marker| (features, marker)))
    {
        let isa = CString::new(format!("{target_name}{features}")).unwrap();
        print(
            &format!("kpack_load_code_object for {target_name}{features}{kind}"),
            &|| {
                let (mut data, mut size) = (ptr::null_mut(), 0);
                let isas = [isa.as_ptr()];
                let error = unsafe {
                    ffi::kpack_load_code_object(
                        cache,
                        marker.as_ptr().cast(),
                        beside.as_ptr(),
                        index.parse().unwrap(),
                        isas.as_ptr(),
                        isas.len(),
                        &raw mut data,
                        &raw mut size,
                    )
                };
                assert_eq!(error, SUCCESS);
                unsafe { ffi::kpack_free_code_object(data) };
            },
        );
    }
    unsafe { ffi::kpack_cache_destroy(cache) };
}

const SUCCESS: ffi::kpack_error_t = ffi::kpack_error_t::KPACK_SUCCESS;

/// The least that any loader must do.
fn decompress(context: &mut DCtx<'_>, frame: &Frame<'_>) {
    let mut memory: Vec<u8> = Vec::with_capacity(frame.size);
    let size = context.decompress(&mut memory, frame.bytes);
    assert_eq!(size.ok(), Some(frame.size));
    std::hint::black_box(&memory);
}

/// The time that `threads` threads take for all frames; each takes the next one that is left.
fn run<W: FnMut(&Frame<'_>)>(
    threads: usize,
    frames: &[Frame<'_>],
    worker: impl Fn() -> W + Sync,
) -> Duration {
    let next = AtomicUsize::new(0);
    let barrier = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut work = worker();
                    barrier.wait();
                    while let Some(frame) = frames.get(next.fetch_add(1, Ordering::Relaxed)) {
                        work(frame);
                    }
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for handle in handles {
            handle.join().unwrap();
        }
        start.elapsed()
    })
}

/// Resident memory of this process, in MB.
fn resident() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: f64 = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or_default();
    kilobytes * 1024.0 / 1e6
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
