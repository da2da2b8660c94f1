//! Reads and writes rocFFT's kernel cache: an SQLite database with a row for each kernel and
//! target.
//!
//! Files are opened as immutable: SQLite then neither locks them nor writes anything beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use serde::{Deserialize, Serialize};

use kpack_core::Error;
use kpack_split::input;

/// The schema that rocFFT uses.
const SCHEMA: &str = "CREATE TABLE cache_v1 (
  kernel_name TEXT NOT NULL,
  arch TEXT NOT NULL,
  hip_version INTEGER NOT NULL,
  generator_sum BLOB NOT NULL,
  code BLOB NOT NULL,
  timestamp INTEGER NOT NULL,
  PRIMARY KEY (kernel_name, arch, hip_version, generator_sum))";

/// A row without its code.
#[derive(Debug, Serialize, Deserialize)]
pub struct CacheRow {
    arch: String,
    kernel_name: String,
    hip_version: i64,
    generator_sum: Vec<u8>,
    /// Time of last use. The other fields are the primary key.
    timestamp: i64,
}

/// A row and its code.
pub type WithCode = (CacheRow, Vec<u8>);

/// The primary key, for people; the target first.
impl fmt::Display for CacheRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arch, kernel_name, hip_version, .. } = self;
        write!(f, "{arch} {kernel_name} (HIP {hip_version}, generator ")?;
        let mut sum = self.generator_sum.iter();
        sum.try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Why a file in a database cannot be read as what it should be.
#[derive(Debug)]
pub struct Unreadable {
    /// What is wrong with it.
    pub reason: String,
    /// Whether it is not even an intact file of the expected format or another one.
    pub damaged: bool,
}

/// The targets that it has code for, as they are written. The table is read instead of its index,
/// so that damage is noticed.
///
/// # Errors
/// [`Error::Io`].
pub fn targets(path: &Path) -> Result<Result<BTreeSet<String>, Unreadable>, Error> {
    let query = "SELECT DISTINCT arch FROM cache_v1 NOT INDEXED";
    read(path, query, |row| row.get(0))
}

/// The same, with the bytes of that code.
///
/// # Errors
/// [`Error::Io`].
pub fn sizes(path: &Path) -> Result<Result<BTreeMap<String, u64>, Unreadable>, Error> {
    let query =
        "SELECT arch, coalesce(sum(length(code)), 0) FROM cache_v1 NOT INDEXED GROUP BY arch";
    read(path, query, |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))
}

/// All rows, with their code.
///
/// # Errors
/// [`Error::Io`].
pub fn rows(path: &Path) -> Result<Result<Vec<WithCode>, Unreadable>, Error> {
    let query =
        "SELECT arch, kernel_name, hip_version, generator_sum, timestamp, code FROM cache_v1";
    read(path, query, |row| {
        let key = CacheRow {
            arch: row.get(0)?,
            kernel_name: row.get(1)?,
            hip_version: row.get(2)?,
            generator_sum: row.get(3)?,
            timestamp: row.get(4)?,
        };
        Ok((key, row.get(5)?))
    })
}

/// A kernel cache with these rows.
///
/// # Errors
/// That of a row, and those of SQLite.
pub fn to_bytes<'a>(
    rows: impl Iterator<Item = io::Result<(CacheRow, &'a [u8])>>,
) -> io::Result<Vec<u8>> {
    let mut database = Connection::open_in_memory().map_err(io::Error::other)?;
    let all = database.transaction().map_err(io::Error::other)?;
    all.execute(SCHEMA, ()).map_err(io::Error::other)?;
    for row in rows {
        let (row, code) = row?;
        let values = params![
            row.kernel_name,
            row.arch,
            row.hip_version,
            row.generator_sum,
            code,
            row.timestamp
        ];
        all.execute("INSERT INTO cache_v1 VALUES (?, ?, ?, ?, ?, ?)", values)
            .map_err(io::Error::other)?;
    }
    all.commit().map_err(io::Error::other)?;
    let bytes = database.serialize("main").map_err(io::Error::other)?;
    Ok(bytes.to_vec())
}

/// Runs a query on the file's table.
fn read<T, C: FromIterator<T>>(
    path: &Path,
    query: &str,
    row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Result<C, Unreadable>, Error> {
    // SQLite does not say why it cannot open a file.
    input::open(path)?;
    let found = open_database(path).and_then(|database| {
        let tables = "SELECT count(*) FROM sqlite_schema \
                      WHERE type = 'table' AND name = 'cache_v1' AND rootpage > 0";
        let count: i64 = database.query_row(tables, (), |row| row.get(0))?;
        if count == 0 {
            return Ok(None);
        }
        let mut statement = database.prepare(query)?;
        let rows = statement.query_map((), row)?;
        rows.collect::<rusqlite::Result<C>>().map(Some)
    });
    let error = match found {
        Ok(Some(found)) => return Ok(Ok(found)),
        Ok(None) => {
            return Ok(Err(Unreadable {
                reason: "no table `cache_v1`, as a kernel cache of rocFFT has".to_owned(),
                damaged: false,
            }));
        }
        Err(error) => error,
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::OutOfMemory) => {
            Err(Error::io(path, "read", io::Error::other(error)))
        }
        code => Ok(Err(Unreadable {
            reason: format!("cannot be read as a kernel cache of rocFFT: {error}"),
            damaged: matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)),
        })),
    }
}

/// Opens a database without writing anything, not even beside it.
pub fn open_database(path: &Path) -> rusqlite::Result<Connection> {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        uri += &format!("%{byte:02x}");
    }
    uri += "?immutable=1";
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(uri, flags)?;
    database.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY")?;
    Ok(database)
}
