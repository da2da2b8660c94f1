//! Given an archive at the edge of what readers take, when it is written, then it opens, or nothing is
//! written; given hostile contents, then reading them takes memory in proportion to their size.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor};
use std::process::Command;

use kpack_format::archive::{
    Archive, ArchiveError, ArchiveWriter, Encoder, MAX_CODE_OBJECT, MAX_KERNELS, Scheme,
};
use kpack_format::digest::blake3;

/// How many entries readers accept.
const MAX_ENTRIES: u32 = 1 << 20;

fn writer() -> ArchiveWriter<Cursor<Vec<u8>>> {
    let target = "gfx1100".parse().unwrap();
    ArchiveWriter::new(Cursor::new(Vec::new()), "vec_lib", &target, Scheme::None)
}

/// A writer with this many kernels, whose names end in `end`.
fn with_kernels(count: usize, end: &str) -> Result<ArchiveWriter<Cursor<Vec<u8>>>, ArchiveError> {
    let mut writer = writer();
    let code = Encoder::new(Scheme::None, 3)?.encode(b"code", blake3(b"code"))?;
    for kernel in 0..count {
        writer.add(&format!("lib/{kernel}{end}#0"), &code)?;
    }
    Ok(writer)
}

#[test]
fn a_library_of_very_many_kernels_with_long_names_opens() {
    let end = "_Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN".repeat(3);
    let mut bytes = Vec::new();
    let writer = with_kernels(100_000, &end).unwrap();
    let written = writer.finish(&mut bytes).unwrap();
    assert!(written.size > 16 << 20, "{}", written.size);
    let mut archive = Archive::open(Cursor::new(&bytes)).unwrap();
    assert_eq!(archive.kernel_count(), 100_000);
    let name = format!("lib/99999{end}#0");
    assert_eq!(archive.read(&name, "gfx1100").unwrap(), b"code");
}

#[test]
fn what_no_reader_takes_is_not_written() {
    // The number of kernels,
    let mut writer = with_kernels(MAX_KERNELS, "").unwrap();
    let error = writer.add_stored("lib/one_more#0", &blake3(b"code"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("262145 kernels; at most 262144"), "{error}");
    let mut bytes = Vec::new();
    writer.finish(&mut bytes).unwrap();
    let archive = Archive::open(Cursor::new(&bytes)).unwrap();
    assert_eq!(archive.kernel_count(), MAX_KERNELS as u64);

    // the number of targets,
    let targets = (0..4097).map(|target| format!("gfx{target}")).collect();
    let spool = Cursor::new(Vec::new());
    let writer = ArchiveWriter::for_family(spool, "vec_lib", "gfx1100", targets, Scheme::None);
    let mut bytes = Vec::new();
    let error = writer.finish(&mut bytes).unwrap_err().to_string();
    assert!(error.contains("4097 targets; at most 4096"), "{error}");
    assert_eq!(bytes, b"", "nothing was written");

    // the size of a code object, stored as it is or compressed,
    for size in [MAX_CODE_OBJECT + 1, 3] {
        let code = &mut io::repeat(0);
        let added = self::writer().add_from("a#0", code, size, MAX_CODE_OBJECT + 1, [0; 32]);
        let error = added.unwrap_err();
        assert!(matches!(error, ArchiveError::TooLarge { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("`a#0`") && error.contains("at most 2147483648"), "{error}");
    }
}

#[test]
fn a_table_with_too_many_entries_is_refused_before_they_take_memory() {
    let most = MAX_ENTRIES;
    let whole = with_entries(&[most / 2, 1, most / 2 - 1], None);
    assert_eq!(Archive::open(Cursor::new(whole)).unwrap().kernel_count(), u64::from(most));
    for (counts, announced, kernel, found) in [
        (&[][..], most + 1, "0", most + 1),
        (&[most], 1, "1", most + 1),
        (&[most / 2, 1], most / 2, "2", most + 1),
        (&[1], u32::MAX - 1, "1", u32::MAX),
    ] {
        let bytes = with_entries(counts, Some(announced));
        let offset = bytes.len() - 5;
        let error = Archive::open(Cursor::new(bytes)).unwrap_err().to_string();
        let expected = format!(
            "at offset {offset:#x} of the archive: the TOC cannot be read: toc > {kernel}: expected a table of at most \
             1048576 entries, of all kernels together, found one of length {found}"
        );
        assert_eq!(error, expected);
    }
}

/// A TOC whose value of `key` is `value`, in an archive without data.
fn with_contents(key: &str, value: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&[0xa0 | text.len() as u8], text.as_bytes()].concat();
    let list: &[u8] = &[0x90];
    let mut entries = vec![
        ("format_version", vec![1]),
        ("group_name", text("vec_lib")),
        ("gfx_arch_family", text("gfx1100")),
        ("gfx_arches", list.to_vec()),
        ("compression_scheme", text("none")),
        ("blobs", list.to_vec()),
        ("frame_offsets", list.to_vec()),
        ("blake3", list.to_vec()),
        ("toc", vec![0x80]),
    ];
    for entry in entries.iter_mut().filter(|entry| entry.0 == key) {
        entry.1 = value.to_vec();
    }
    let mut toc = vec![0x80 | entries.len() as u8];
    for (key, value) in entries {
        toc.extend([text(key), value].concat());
    }
    with_toc(&toc)
}

/// An archive without data.
fn with_toc(toc: &[u8]) -> Vec<u8> {
    let mut bytes = b"KPAK\x01\0\0\0\x40\0\0\0\0\0\0\0".to_vec();
    bytes.resize(64, 0);
    [&bytes[..], toc].concat()
}

/// An archive whose kernels `0`, `1` and so on have this many entries, as short as they can be. If a number is
/// `announced`, the file ends where the entries of one more kernel should follow.
fn with_entries(counts: &[u32], announced: Option<u32>) -> Vec<u8> {
    let entry = |index| [&name(index)[..], b"\x81\xa7ordinal\0"].concat();
    let complete = counts.iter().map(|count| match count {
        1..16 => {
            [&[0x80 | *count as u8], &*(0..*count).flat_map(entry).collect::<Vec<_>>()].concat()
        }
        count => many(0xdf, *count, entry),
    });
    let cut_off = announced.map(|count| [&[0xdf][..], &count.to_be_bytes()].concat());
    let kernels: Vec<_> = complete.chain(cut_off).collect();
    let kernel = |index| [name(index), kernels[index as usize].clone()].concat();
    let head = b"\x82\xa5blobs\x91\x82\xa6offset\x40\xa4size\0\xa3toc";
    with_toc(&[&head[..], &many(0xdf, kernels.len() as u32, kernel)].concat())
}

/// A map (`0xdf`) or a list (`0xdd`) of `count` elements.
fn many(marker: u8, count: u32, element: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = [&[marker][..], &count.to_be_bytes()].concat();
    (0..count).for_each(|index| bytes.extend(element(index)));
    bytes
}

/// A string for each number, as short as it can be: 0, 1 and so on, in base 64.
fn name(index: u32) -> Vec<u8> {
    let digits = [18, 12, 6, 0].map(|shift| b'0' + (index >> shift & 0x3f) as u8);
    let zeros = digits[..3].iter().take_while(|digit| **digit == b'0').count();
    [&[0xa4 - zeros as u8][..], &digits[zeros..]].concat()
}

/// What has few bytes in a file and more in memory.
fn hostile(which: &str) -> Vec<u8> {
    let blob = b"\x82\xa6offset\x40\xa4size\x00";
    match which {
        "kernels" => with_entries(&[1; MAX_KERNELS], None),
        "four targets of each kernel" => with_entries(&[4; MAX_KERNELS], None),
        "targets of some kernels" => with_entries(&[17; MAX_ENTRIES as usize / 17], None),
        "targets of a kernel" => with_entries(&[MAX_ENTRIES], None),
        "kernels of nothing" => {
            let kernel = |index| [name(index), vec![0x80]].concat();
            with_contents("toc", &many(0xdf, MAX_KERNELS as u32, kernel))
        }
        "targets" => with_contents("gfx_arches", &many(0xdd, 4_000_000, |_| vec![0xa0])),
        "code objects" => with_contents("blobs", &many(0xdd, 1_000_000, |_| blob.to_vec())),
        "frames" => with_contents("frame_offsets", &many(0xdd, 4_000_000, |_| vec![0x48])),
        "blake3" => {
            let checksum = [&[0xc4, 32][..], &[0; 32]].concat();
            with_contents("blake3", &many(0xdd, 1_000_000, |_| checksum.clone()))
        }
        other => panic!("{other}"),
    }
}

/// The most memory that this process has had, in bytes.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() << 10
}

#[test]
fn hostile_contents_take_memory_in_proportion_to_their_size() {
    // Given contents that are read by a process of their own,
    if let Some(path) = env::var_os("KPACK_HOSTILE") {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len() as usize;
        let before = peak();
        let _ = Archive::open(BufReader::new(file));
        // then it needs no more than this.
        let more = peak() - before;
        println!("{size} bytes, {more} more");
        assert!(more <= 12 * size + (40 << 20), "{size} bytes, {more}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.kpack");
    for which in [
        "kernels",
        "kernels of nothing",
        "four targets of each kernel",
        "targets of some kernels",
        "targets of a kernel",
        "targets",
        "code objects",
        "frames",
        "blake3",
    ] {
        fs::write(&path, hostile(which)).unwrap();
        let mut own = Command::new(env::current_exe().unwrap());
        own.args(["--exact", "--nocapture"]);
        own.arg("limits::hostile_contents_take_memory_in_proportion_to_their_size");
        let output = own.env("KPACK_HOSTILE", &path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{which}: {text}{error}");
        println!("{which}: {text}");
    }
}
