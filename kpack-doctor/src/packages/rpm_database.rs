//! Reads the database of installed packages of RPM, an SQLite file with a header for each package.

use std::path::Path;

use kpack_split::input;
use kpack_tree::kernel_cache::open_database;

/// An installed package.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RpmPackage {
    /// Its name.
    pub(super) name: String,
    /// Its epoch and a colon, if it has one, its version, a hyphen and its release.
    pub(super) version: String,
    /// Its files, as absolute paths.
    pub(super) files: Vec<String>,
    /// The names of the packages that it recommends, each with the version, if it is one alone.
    pub(super) recommends: Vec<(String, Option<String>)>,
}

/// The largest database, in bytes.
const MAX_DATABASE: u64 = 1 << 30;
/// The largest header, in bytes. RPM itself allows 256 MiB.
const MAX_HEADER: u64 = 64 << 20;

/// The packages in the database at `path`; `None` if it is none that can be read as it is, also because a part of it is
/// still in its write-ahead log. Headers that are damaged are left out.
pub(super) fn read(path: &Path) -> Option<Vec<RpmPackage>> {
    let size = input::open(path).ok()?.metadata().ok()?.len();
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let is_whole = Path::new(&log).symlink_metadata().map_or(true, |log| log.len() == 0);
    if size > MAX_DATABASE || !is_whole {
        return None;
    }
    let database = open_database(path).ok()?;
    // A view could be anything.
    let count = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'Packages' AND rootpage > 0";
    let tables: i64 = database.query_row(count, (), |row| row.get(0)).ok()?;
    if tables != 1 {
        return None;
    }
    let query = format!("SELECT blob FROM Packages WHERE length(blob) <= {MAX_HEADER}");
    let mut statement = database.prepare(&query).ok()?;
    let headers = statement.query_map((), |row| row.get::<_, Vec<u8>>(0)).ok()?;
    Some(headers.flatten().filter_map(|header| package(&header)).collect())
}

const NAME: u32 = 1000;
const VERSION: u32 = 1001;
const RELEASE: u32 = 1002;
const EPOCH: u32 = 1003;
const DIRECTORY_INDEXES: u32 = 1116;
const BASE_NAMES: u32 = 1117;
const DIRECTORY_NAMES: u32 = 1118;
const RECOMMENDED_NAMES: u32 = 5046;
const RECOMMENDED_VERSIONS: u32 = 5047;
const RECOMMENDED_FLAGS: u32 = 5048;
/// What says in flags which versions are accepted, and that only the same one is.
const COMPARES: u32 = 0xe;
const EQUAL: u32 = 0x8;

/// The most entries, strings or numbers that a header can have.
const MOST: u32 = 10_000_000;

fn package(header: &[u8]) -> Option<RpmPackage> {
    let header = Header::of(header)?;
    let one = |tag| header.strings(tag)?.into_iter().next();
    let directories = header.strings(DIRECTORY_NAMES).unwrap_or_default();
    let indexes = header.numbers(DIRECTORY_INDEXES).unwrap_or_default();
    let names = header.strings(BASE_NAMES).unwrap_or_default();
    let files = indexes.iter().zip(names).filter_map(|(index, name)| {
        let directory = directories.get(usize::try_from(*index).ok()?)?;
        Some(format!("{directory}{name}"))
    });
    let epoch = header
        .numbers(EPOCH)
        .and_then(|epoch| epoch.first().copied())
        .map_or(String::new(), |epoch| format!("{epoch}:"));
    let mut versions = header.strings(RECOMMENDED_VERSIONS).unwrap_or_default().into_iter();
    let mut flags = header.numbers(RECOMMENDED_FLAGS).unwrap_or_default().into_iter();
    let names = header.strings(RECOMMENDED_NAMES).unwrap_or_default();
    let recommends = names.into_iter().map(|name| {
        let (version, flags) = (versions.next(), flags.next().unwrap_or_default());
        (name, version.filter(|version| flags & COMPARES == EQUAL && !version.is_empty()))
    });
    Some(RpmPackage {
        name: one(NAME)?,
        version: format!("{epoch}{}-{}", one(VERSION)?, one(RELEASE)?),
        files: files.collect(),
        recommends: recommends.collect(),
    })
}

/// A header: entries of 16 bytes, and the data that they refer to.
struct Header<'a> {
    entries: &'a [u8],
    data: &'a [u8],
}

impl<'a> Header<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let count = usize::try_from(number(bytes, 0)?).ok()?.checked_mul(16)?;
        let size = usize::try_from(number(bytes, 4)?).ok()?;
        let (entries, data) = bytes.get(8..)?.split_at_checked(count)?;
        Some(Self { entries, data: data.get(..size)? })
    }

    /// The data of a tag, and the number of its values.
    fn find(&self, tag: u32) -> Option<(&'a [u8], u32)> {
        let mut entries = self.entries.chunks_exact(16);
        let entry = entries.find(|entry| number(entry, 0) == Some(tag))?;
        let start = usize::try_from(number(entry, 8)?).ok()?;
        Some((self.data.get(start..)?, number(entry, 12)?.min(MOST)))
    }

    fn strings(&self, tag: u32) -> Option<Vec<String>> {
        let (data, count) = self.find(tag)?;
        let strings = data.split(|byte| *byte == 0).take(usize::try_from(count).ok()?);
        Some(strings.map(|text| String::from_utf8_lossy(text).into_owned()).collect())
    }

    fn numbers(&self, tag: u32) -> Option<Vec<u32>> {
        let (data, count) = self.find(tag)?;
        let numbers = data.chunks_exact(4).take(usize::try_from(count).ok()?);
        Some(numbers.filter_map(|bytes| number(bytes, 0)).collect())
    }
}

/// The number at an offset, whose highest byte is first.
fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}
