//! Loads kernels through the C interface, or decompresses the same frames with plain `ZSTD_decompressDCtx`:
//! `cargo xtask bench load` makes an archive and compares the two.
//!
//! - `load kpack|zstd ARCHIVE THREADS`: all kernels once
//! - `load open ARCHIVE TIMES`: opens and closes it
//! - `load module GPU TIMES`: loads the module of this program, which is a copy with a bundle in [`ROOM`]
//! - `load frames ARCHIVE TIMES`, `load bundle FILE TIMES`: decompresses all frames of an archive, or that of a compressed
//!   bundle, with plain `ZSTD_decompressDCtx`
//! - `load ARCHIVE`: prints what lookups cost, and how fast uncompressed kernels load
//!
//! Both sides do what a runtime does: they allocate memory for each code object with malloc, and free it
//! after use. Of what this program itself measures the best time counts, since other work on the machine only
//! ever adds time.

#![allow(unsafe_code, reason = "the C interface is what is measured")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "handles are used between open and close, strings end with NUL"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::hint;
use std::io::{Cursor, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kpack_format::archive::{Archive, ArchiveWriter, Encoder, Scheme, Toc};
use kpack_format::digest::blake3;
use kpack_format::marker::{MAX_SEARCH_PATHS, Marker};
use memmap2::Mmap;
use rocm_kpack::ffi;
use tempfile::NamedTempFile;
use zstd::zstd_safe::DCtx;

/// Room for a bundle. [`START`] tells where it is in the program.
static ROOM: [u8; 3 << 20] = {
    let mut room = [0; 3 << 20];
    let mut at = 0;
    while at < START.len() {
        room[at] = START[at];
        at += 1;
    }
    room
};
const START: &[u8] = b"room for a bundle of kpack's benchmark";

kpack::modules_v1! {
    modules;
    MODULE { name: "bench", size: 3145728, bundle: &crate::ROOM, targets: [], kernels: [], list: "" }
}

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
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [archive] => details(Path::new(archive)),
        [what, archive, number] => {
            let number = number.parse().expect("a number");
            once(what, Path::new(archive), number);
        }
        _ => eprintln!("needs an archive: run `cargo xtask bench load`"),
    }
}

/// Does one thing, for somebody else to measure.
fn once(what: &str, path: &Path, number: usize) {
    if what == "open" {
        (0..number).for_each(|_| unsafe { ffi::kpack_close(open(path)) });
        return;
    }
    if what == "module" {
        let gpu = path.to_str().expect("the name of a GPU");
        (0..number).for_each(|_| drop(hint::black_box(modules::MODULE.load(gpu).unwrap())));
        return;
    }
    let bytes = map(path);
    if what == "bundle" {
        // The header of version 3 (LLVM, "Clang Offload Bundler"): the size of the plain bundle, then its hash.
        let size = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        let frame = Frame { name: CString::default(), bytes: &bytes[32..], size: size as usize };
        let mut context = DCtx::create();
        (0..number).for_each(|_| decompress(&mut context, &frame));
        return;
    }
    let (toc, frames) = frames(&bytes);
    match what {
        "kpack" => {
            let target = CString::new(toc.gfx_arch_family).unwrap();
            let handle = Handle(open(path));
            run(number, &frames, || {
                |frame: &Frame<'_>| {
                    let (data, size) = get(&handle, &frame.name, &target);
                    assert_eq!(size, frame.size);
                    unsafe { ffi::kpack_free_kernel(data) };
                }
            });
            unsafe { ffi::kpack_close(handle.0) };
        }
        "frames" => {
            let mut context = DCtx::create();
            (0..number).for_each(|_| {
                frames.iter().for_each(|frame| decompress(&mut context, frame));
            });
        }
        "zstd" => run(number, &frames, || {
            let mut context = DCtx::create();
            move |frame: &Frame<'_>| decompress(&mut context, frame)
        }),
        _ => panic!("kpack, zstd, open, module, frames or bundle, not {what}"),
    }
}

fn map(path: &Path) -> Mmap {
    let file = File::open(path).expect("the archive");
    unsafe { Mmap::map(&file) }.expect("the archive in memory")
}

/// The kernels of an archive with one target, by name.
fn frames(bytes: &[u8]) -> (Toc, Vec<Frame<'_>>) {
    let mut archive = Archive::open(Cursor::new(bytes)).expect("an archive");
    let toc = archive.toc().clone();
    let mut frames = Vec::new();
    for (name, targets) in &toc.kernels {
        let entry = &targets[&toc.gfx_arch_family];
        let (offset, size) = archive.stored(entry.ordinal).unwrap();
        frames.push(Frame {
            name: CString::new(name.as_str()).unwrap(),
            bytes: &bytes[offset as usize..(offset + size) as usize],
            size: entry.original_size as usize,
        });
    }
    (toc, frames)
}

/// Prints what lookups cost, and how fast uncompressed kernels load.
fn details(path: &Path) {
    let bytes = map(path);
    let (toc, frames) = frames(&bytes);
    let target = CString::new(toc.gfx_arch_family.clone()).unwrap();
    let total: usize = frames.iter().map(|frame| frame.size).sum();
    let stored: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
    println!(
        "{}: {} kernels, {:.1} MB, {:.1} MB compressed",
        path.file_name().unwrap_or_default().to_string_lossy(),
        frames.len(),
        megabytes(total),
        megabytes(stored)
    );
    let handle = Handle(open(path));
    let smallest = frames.iter().min_by_key(|frame| frame.size).unwrap();
    lookup(path, smallest, &handle, &target);
    unsafe { ffi::kpack_close(handle.0) };
    search(path, smallest, &target);
    uncompressed(&toc, &bytes);
}

/// Times loading all kernels from an uncompressed archive, with checksums and without.
fn uncompressed(toc: &Toc, bytes: &[u8]) {
    let mut archive = Archive::open(Cursor::new(bytes)).expect("an archive");
    let target = toc.gfx_arch_family.parse().unwrap();
    let spool = Cursor::new(Vec::new());
    let mut writer = ArchiveWriter::new(spool, &toc.group_name, &target, Scheme::None);
    let mut encoder = Encoder::new(Scheme::None, 3).unwrap();
    let mut total = 0;
    for name in toc.kernels.keys() {
        let code = archive.read(name, &toc.gfx_arch_family).unwrap();
        total += code.len();
        let encoded = encoder.encode(&code, blake3(&code));
        writer.add(name, &encoded.unwrap()).unwrap();
    }
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    println!("\nall kernels, uncompressed, one thread, best of 5");
    let key = bytes.windows(6).rposition(|w| w == b"blake3").unwrap();
    for (what, first) in [("with checksums", b'b'), ("without", b'B')] {
        // Readers ignore a key with an unknown name.
        bytes[key] = first;
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let opened = kpack::internal::Archive::open(file.path()).unwrap();
        assert_eq!(opened.toc().checksums.is_some(), first == b'b');
        let once = |_| {
            let start = Instant::now();
            for name in toc.kernels.keys() {
                hint::black_box(opened.load(name, &toc.gfx_arch_family).unwrap());
            }
            start.elapsed()
        };
        let best: Duration = (0..5).map(once).min().unwrap_or_default();
        let speed = megabytes(total) / best.as_secs_f64();
        println!("  {what:<16} {speed:>8.0} MB/s");
    }
}

/// How often each lookup is timed.
const TIMES: usize = 200;

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
        ffi::kpack_get_kernel(archive.0, name, target.as_ptr(), &raw mut data, &raw mut size)
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
    let opened = kpack::internal::Archive::open(archive).unwrap();
    let id = opened.toc().code_id(binary, target_name).unwrap();
    let kernels = opened.toc().kernels.len();
    let marker = Marker::new(binary, vec![file_name.replace(target_name, "@GFXARCH@")]);
    let with_id = marker.clone().with_code_ids([(target_name.to_owned(), id)].into());
    let markers = [("", marker.to_bytes()), (", code ID", with_id.to_bytes())];
    let beside = CString::new(archive.with_file_name("libvec.so").as_os_str().as_bytes()).unwrap();
    let mut cache = ptr::null_mut();
    assert_eq!(unsafe { ffi::kpack_cache_create(&raw mut cache) }, SUCCESS);
    println!("\none small kernel ({} bytes), archive open, best of {TIMES}", frame.size);
    let print = |what: &str, work: &dyn Fn()| {
        let once = |_| {
            let start = Instant::now();
            work();
            start.elapsed()
        };
        let best: Duration = (0..TIMES).map(once).min().unwrap_or_default();
        println!("  {what:<60} {:>7.1} µs", best.as_secs_f64() * 1e6);
    };
    print("kpack_get_kernel", &|| {
        let (data, _) = get(handle, &frame.name, target);
        unsafe { ffi::kpack_free_kernel(data) };
    });
    print(&format!("the code ID of {kernels} kernels, once"), &|| {
        hint::black_box(opened.toc().code_id(binary, target_name));
    });
    for (features, (kind, marker)) in ["", ":sramecc+:xnack-"]
        .into_iter()
        .flat_map(|features| markers.iter().map(move |marker| (features, marker)))
    {
        let isa = CString::new(format!("{target_name}{features}")).unwrap();
        print(&format!("kpack_load_code_object for {target_name}{features}{kind}"), &|| {
            load(cache, marker, &beside, index.parse().unwrap(), &isa);
        });
    }
    unsafe { ffi::kpack_cache_destroy(cache) };
}

/// Times the first lookup of a cache, for a marker that names as many archives as it can, of which only the last one has the
/// kernel.
fn search(archive: &Path, frame: &Frame<'_>, target: &CStr) {
    let directory = tempfile::tempdir().unwrap();
    let target_id = target.to_str().unwrap().parse().unwrap();
    let mut paths = Vec::new();
    for index in 1..MAX_SEARCH_PATHS {
        let spool = Cursor::new(Vec::new());
        let mut writer = ArchiveWriter::new(spool, "other", &target_id, Scheme::None);
        let code = index.to_le_bytes();
        let encoded = Encoder::new(Scheme::None, 3).unwrap().encode(&code, blake3(&code));
        writer.add("other#0", &encoded.unwrap()).unwrap();
        let name = format!("other{index}.kpack");
        writer.finish(File::create(directory.path().join(&name)).unwrap()).unwrap();
        paths.push(name);
    }
    std::fs::copy(archive, directory.path().join("last.kpack")).unwrap();
    paths.push("last.kpack".to_owned());
    let (binary, index) = frame.name.to_str().unwrap().rsplit_once('#').unwrap();
    let marker = Marker::new(binary, paths).to_bytes();
    let beside = directory.path().join("libvec.so");
    let beside = CString::new(beside.as_os_str().as_bytes()).unwrap();
    let once = |_| {
        let start = Instant::now();
        let mut cache = ptr::null_mut();
        assert_eq!(unsafe { ffi::kpack_cache_create(&raw mut cache) }, SUCCESS);
        load(cache, &marker, &beside, index.parse().unwrap(), target);
        let elapsed = start.elapsed();
        unsafe { ffi::kpack_cache_destroy(cache) };
        elapsed
    };
    let best: Duration = (0..TIMES).map(once).min().unwrap_or_default();
    println!(
        "\n  the last of {MAX_SEARCH_PATHS} archives, first lookup: {:.1} µs",
        best.as_secs_f64() * 1e6
    );
}

fn load(cache: ffi::kpack_cache_t, marker: &[u8], binary: &CStr, index: u32, isa: &CStr) {
    let (mut data, mut size) = (ptr::null_mut(), 0);
    let isas = [isa.as_ptr()];
    let error = unsafe {
        ffi::kpack_load_code_object(
            cache,
            marker.as_ptr().cast(),
            binary.as_ptr(),
            index,
            isas.as_ptr(),
            isas.len(),
            &raw mut data,
            &raw mut size,
        )
    };
    assert_eq!(error, SUCCESS);
    unsafe { ffi::kpack_free_code_object(data) };
}

const SUCCESS: ffi::kpack_error_t = ffi::kpack_error_t::KPACK_SUCCESS;

/// The least that any loader must do.
fn decompress(context: &mut DCtx<'_>, frame: &Frame<'_>) {
    let mut memory: Vec<u8> = Vec::with_capacity(frame.size);
    let size = context.decompress(&mut memory, frame.bytes);
    assert_eq!(size.ok(), Some(frame.size));
    hint::black_box(&memory);
}

/// All frames, in `threads` threads; each takes the next one that is left.
fn run<W: FnMut(&Frame<'_>)>(threads: usize, frames: &[Frame<'_>], worker: impl Fn() -> W + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut work = worker();
                while let Some(frame) = frames.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(frame);
                }
            });
        }
    });
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
