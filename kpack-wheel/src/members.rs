//! The members of a ZIP archive, whose names and kinds are checked before anything is made of them.

use std::collections::{HashMap, HashSet};
use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Mutex;

use zip::ZipArchive;
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;

use kpack_core::files::{MAX_DEPTH, SharedFile};
use kpack_core::finding::Id;
use kpack_core::parallel::lock;
use kpack_core::platform::{is_file_name, name_key};
use kpack_core::{Error, Reason, ids};

/// A file in a wheel.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) name: String,
    /// The permission bits.
    pub(super) mode: u32,
    /// Its place in the ZIP directory.
    pub(super) index: usize,
    /// Its size in bytes, unpacked.
    pub(super) size: u64,
}

/// The most bytes that DEFLATE makes of one.
const MAX_RATIO: u64 = 1032;

/// The size in bytes of all members, unpacked.
pub(super) fn unpacked<'a>(members: impl IntoIterator<Item = &'a Member>) -> u64 {
    let sizes = members.into_iter().map(|member| member.size);
    sizes.fold(0, u64::saturating_add)
}

/// Refuses an archive of `size` bytes whose members share their compressed bytes: however small it is, it
/// could fill any disk.
pub(super) fn check_size(path: &Path, members: &[Member], size: u64) -> Result<(), Error> {
    let unpacked = unpacked(members);
    if unpacked <= size.saturating_mul(MAX_RATIO) {
        return Ok(());
    }
    let text = format!(
        "the members are {unpacked} bytes, unpacked (expected at most {MAX_RATIO} times the {size} bytes of the file, as ZIP compresses); do not unpack it"
    );
    Err(damaged(path, text))
}

/// The error for a damaged wheel.
pub(super) fn damaged(wheel: &Path, text: impl Into<Reason>) -> Error {
    Error::rejected(ids::DAMAGED_WHEEL, wheel, text)
}

/// The error for a damaged member.
pub(super) fn member_error(wheel: &Path, member: &str, text: impl Into<Reason>) -> Error {
    in_member(ids::DAMAGED_WHEEL, wheel, member, text)
}

/// An error in a member.
pub(super) fn in_member(id: Id, wheel: &Path, member: &str, text: impl Into<Reason>) -> Error {
    Error::rejected(id, wheel, text.into().in_member(member))
}

/// An error about a file below one of `trees`, where the wheel was unpacked, as one about the member.
pub(super) fn of_unpacked(wheel: &Path, trees: &[&Path], error: Error) -> Error {
    let Error::Refused { id, path, reason, details, .. } = &error else { return error };
    let reason = Reason::new(reason.clone(), details.clone());
    match trees.iter().find_map(|tree| path.strip_prefix(tree).ok()) {
        Some(member) if member.as_os_str().is_empty() => Error::rejected(*id, wheel, reason),
        Some(member) => in_member(*id, wheel, &member.to_string_lossy(), reason),
        None => error,
    }
}

/// An error of the library: damage, unless a system call failed.
pub(super) fn zip_error(path: &Path, member: Option<&str>, error: ZipError) -> Error {
    let broken = |text: String| match member {
        Some(member) => member_error(path, member, &text),
        None => damaged(path, format!("not a ZIP archive that kpack can read: {text}")),
    };
    match error {
        ZipError::Io(error) => read_error(path, error, |error| broken(error.to_string())),
        error => broken(error.to_string()),
    }
}

/// An error of a library that reads an archive: what `broken` says of it, unless a system call failed.
pub(super) fn read_error(
    path: &Path,
    error: io::Error,
    broken: impl FnOnce(io::Error) -> Error,
) -> Error {
    if error.raw_os_error().is_some() || error.kind() == ErrorKind::OutOfMemory {
        Error::io(path, "read", error)
    } else {
        broken(error)
    }
}

/// More memory than the library takes to make a compressor or decompressor.
const MEMORY: usize = 1 << 20;

/// Makes a compressor or decompressor. Without enough memory for one, the library would panic.
///
/// # Errors
/// Too little memory; those of `make`.
pub(super) fn with_memory<T>(make: impl FnOnce() -> Result<T, ZipError>) -> Result<T, ZipError> {
    static ALONE: Mutex<()> = Mutex::new(());
    // No other thread takes what was asked for.
    let _alone = lock(&ALONE);
    let mut room: Vec<u8> = Vec::new();
    room.try_reserve_exact(MEMORY).map_err(io::Error::from)?;
    drop(black_box(room));
    make()
}

/// Refuses a file with more than the archive in it, or with an archive that other readers read differently:
/// some go by the size of the directory, some by its position, and some by the number of its entries.
pub(super) fn check_end(
    path: &Path,
    (file, file_size): (SharedFile, u64),
    zip: &ZipArchive<SharedFile>,
) -> Result<(), Error> {
    let refused = |what: &str| {
        let text =
            format!("not a ZIP archive that kpack can read: {what}; build or download it again");
        Err(damaged(path, text))
    };
    let bytes = |at: u64, size: usize| {
        let mut bytes = vec![0; size];
        let mut from = file.clone();
        let read = from.seek(SeekFrom::Start(at)).and_then(|_| from.read_exact(&mut bytes));
        match read {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => {
                Err(Error::io(path, "read", error))
            }
            read => Ok(read.is_ok().then_some(bytes)),
        }
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let comment = zip.comment().len() as u64;
    let end = file_size.saturating_sub(END + comment);
    let Some(record) = bytes(end, END as usize)?
        .filter(|record| record.starts_with(b"PK\x05\x06") && number(&record[20..22]) == comment)
    else {
        return refused("the end record is not at the end of the file");
    };
    let (mut size, mut start, mut directory_end) =
        (number(&record[12..16]), number(&record[16..20]), end);
    let locator = end.saturating_sub(LOCATOR);
    if let Some(found) = bytes(locator, LOCATOR as usize)?.filter(|b| b.starts_with(b"PK\x06\x07"))
    {
        let at = number(&found[8..16]);
        let Some(large) = bytes(at, 56)?.filter(|large| {
            let end = at.checked_add(12).and_then(|at| at.checked_add(number(&large[4..12])));
            large.starts_with(b"PK\x06\x06") && end == Some(locator)
        }) else {
            return refused("its ZIP64 end record is not before its locator");
        };
        let (large_size, large_start) = (number(&large[40..48]), number(&large[48..56]));
        let agrees = |small: u64, large: u64| small == u64::from(u32::MAX) || small == large;
        if !agrees(size, large_size) || !agrees(start, large_start) {
            return refused("the two end records contradict each other");
        }
        (size, start, directory_end) = (large_size, large_start, at);
    }
    if zip.offset() != 0 || start != zip.central_directory_start() {
        return refused("there are bytes before it");
    }
    if start.checked_add(size) != Some(directory_end) {
        return refused("the directory has another size than its end record says");
    }
    let (mut at, mut entries) = (start, 0);
    while at < directory_end {
        let Some(entry) = bytes(at, 46)?.filter(|entry| entry.starts_with(b"PK\x01\x02")) else {
            break;
        };
        let more: u64 = [28, 30, 32].iter().map(|field| number(&entry[*field..field + 2])).sum();
        at += 46 + more;
        entries += 1;
    }
    if at != directory_end || entries != zip.len() {
        return refused("the directory has another number of entries than its end record says");
    }
    Ok(())
}

/// Size in bytes of the record at the end of an archive, without its comment.
const END: u64 = 22;
/// Size in bytes of the locator of the ZIP64 record.
const LOCATOR: u64 = 20;

/// The error for an archive with two members of one name.
pub(super) fn duplicate(path: &Path, window: SharedFile) -> Result<Error, Error> {
    let failed = |error| zip_error(path, None, error);
    let mut zip = ZipIterable::try_new(window, Default::default()).map_err(failed)?;
    let files = zip.files().map_err(failed)?;
    let mut known = HashSet::new();
    for file in files.by_ref() {
        let name = file.map_err(failed)?.name_raw().to_owned();
        if let Some(name) = known.replace(name) {
            let text = "two members have this name; build the wheel again";
            return Ok(member_error(path, &String::from_utf8_lossy(&name), text));
        }
    }
    Ok(damaged(path, "two members have one name"))
}

/// The flag of members whose names are UTF-8. Those of others are of code page 437.
const UTF_8: u16 = 1 << 11;

/// The bits of a Unix mode that say what something is, and what they are for a directory.
const FILE_KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// The most bytes that an empty file has when it is compressed.
const MAX_EMPTY: u64 = 2;

/// The most bytes of a file name on Linux.
const MAX_NAME: usize = 255;

/// The files in a wheel. Installers disagree about anything else.
pub(super) fn members(path: &Path, zip: &ZipArchive<SharedFile>) -> Result<Vec<Member>, Error> {
    let mut members: Vec<Member> = Vec::new();
    let mut directories = Vec::new();
    let mut known = HashMap::new();
    for index in 0..zip.len() {
        let entry = zip.by_index_data(index).map_err(|e| zip_error(path, None, e))?;
        let raw = String::from_utf8_lossy(entry.name_raw());
        let refused = |text: &str| member_error(path, &raw, text);
        let Ok(name) = std::str::from_utf8(entry.name_raw()) else {
            return Err(refused("the name is not UTF-8; build the wheel again"));
        };
        if !name.is_ascii() && entry.flags().as_u16() & UTF_8 == 0 {
            return Err(refused(
                "the name is not marked as UTF-8, so installers would use another name; build the wheel again",
            ));
        }
        if entry.is_symlink() {
            let text = "a symbolic link, which installers do not unpack";
            return Err(in_member(ids::UNSUPPORTED_WHEEL, path, &raw, text));
        }
        if entry.encrypted() {
            let text = "it is encrypted";
            return Err(in_member(ids::UNSUPPORTED_WHEEL, path, &raw, text));
        }
        let plain = name.strip_suffix('/').unwrap_or(name);
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !plain.split('/').all(is_part) || plain.contains(['\\', '\0']) {
            return Err(refused(
                "not a valid path in a wheel (expected names with `/` between them, without `..`)",
            ));
        }
        if let Some(part) = plain.split('/').find(|part| !is_file_name(part.as_ref())) {
            let text =
                format!("no file can be named `{part}` on Windows; run kpack on Linux or in WSL");
            return Err(in_member(ids::WINDOWS_NAME, path, &raw, &text));
        }
        if let Some(part) = plain.split('/').find(|part| part.len() > MAX_NAME) {
            let text = format!(
                "a name in it has {} bytes (expected at most {MAX_NAME}); rename it",
                part.len()
            );
            return Err(refused(&text));
        }
        let depth = plain.split('/').count();
        if depth > MAX_DEPTH {
            let text =
                format!("a path of {depth} names (expected at most {MAX_DEPTH}); shorten it");
            return Err(refused(&text));
        }
        if entry.is_dir() {
            if entry.size() > 0 || entry.compressed_size() > MAX_EMPTY {
                return Err(refused("a directory with contents; build the wheel again"));
            }
            directories.push(plain.to_owned());
            continue;
        }
        if entry.unix_mode().is_some_and(|mode| mode & FILE_KIND == DIRECTORY) {
            return Err(refused(
                "a directory by its mode and a file by its name; build the wheel again",
            ));
        }
        if let Some((own, other)) = other_spelling(&mut known, name) {
            let text = format!(
                "`{own}` differs only by case from `{other}` in another member, so Windows cannot hold both; run kpack on \
                 Linux or in WSL"
            );
            return Err(in_member(ids::NAMES_DIFFER_BY_CASE, path, &raw, &text));
        }
        let mode = entry.unix_mode().map(|mode| mode & 0o777);
        members.push(Member {
            name: name.to_owned(),
            mode: mode.filter(|mode| *mode != 0).unwrap_or(0o644),
            index,
            size: entry.size(),
        });
    }
    let files: HashSet<&str> = members.iter().map(|member| &*member.name).collect();
    let is_file = |directory: &&String| {
        let mut ends = directory.match_indices('/').map(|(at, _)| at).chain([directory.len()]);
        ends.any(|end| files.contains(&directory[..end]))
    };
    match directories.iter().find(is_file) {
        None => Ok(members),
        Some(directory) => {
            Err(member_error(path, &format!("{directory}/"), "a file and a directory"))
        }
    }
}

/// The part of a name, from its start, that this system takes for a path of another spelling among those `known`; and that
/// path.
fn other_spelling<'a>(
    known: &mut HashMap<String, String>,
    name: &'a str,
) -> Option<(&'a str, String)> {
    let ends = name.match_indices('/').map(|(at, _)| at);
    let mut paths = ends.chain([name.len()]).map(|end| &name[..end]);
    paths.find_map(|path| {
        let key = name_key(path).into_owned();
        let first = known.entry(key).or_insert_with(|| path.to_owned());
        (first != path).then(|| (path, first.clone()))
    })
}
