//! Writes compressed bundles.

use std::io::{self, Seek, SeekFrom, Write};

use super::bundle::{COMPRESSED_MAGIC, Method};
use crate::backend::{BundleWriter, ContentHash};

/// Compresses the plain bundle that is written to it, after a header (`CCOB`) of the version and method of another
/// compressed bundle.
pub struct Compressed<W: Write + Seek> {
    writer: BundleWriter<W>,
    hash: ContentHash,
    version: u16,
    method: Method,
    /// Size of the plain bundle in bytes.
    size: u64,
    start: u64,
}

impl<W: Write + Seek> Compressed<W> {
    /// A bundle at the current position of `out`, of a plain one of `size` bytes. `long_matches` says whether zstd looks for
    /// repetitions in up to 128 MiB instead of 2 MiB: code objects for several GPUs are alike, but one repeats little over such distances.
    ///
    /// # Errors
    /// `out` cannot be written; or the version has no room for the size.
    pub fn new(
        mut out: W,
        version: u16,
        method: Method,
        size: u64,
        long_matches: bool,
    ) -> io::Result<Self> {
        let start = out.stream_position()?;
        out.write_all(&header(version, method, [size, 0], [0; 8])?)?;
        let writer = BundleWriter::new(out, method, size, long_matches)?;
        Ok(Self { writer, hash: ContentHash::default(), version, method, size, start })
    }

    /// Completes it; returns its size in bytes. `out` is at its end then.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn finish(self) -> io::Result<u64> {
        let mut out = self.writer.finish()?;
        let end = out.stream_position()?;
        let total = end - self.start;
        let hash = self.hash.finish();
        out.seek(SeekFrom::Start(self.start))?;
        out.write_all(&header(self.version, self.method, [self.size, total], hash)?)?;
        out.seek(SeekFrom::Start(end))?;
        Ok(total)
    }
}

impl<W: Write + Seek> Write for Compressed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl<W: Write + Seek> std::fmt::Debug for Compressed<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compressed").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The header; `size` is that of the plain bundle, `total` that of the compressed one.
fn header(
    version: u16,
    method: Method,
    [size, total]: [u64; 2],
    hash: [u8; 8],
) -> io::Result<Vec<u8>> {
    let short = |size: u64| match u32::try_from(size) {
        Ok(size) => Ok(size.to_le_bytes()),
        Err(_) => Err(io::Error::other(format!(
            "{size} bytes are too many for a compressed bundle of version {version} (at most 4 GiB)"
        ))),
    };
    let mut bytes = COMPRESSED_MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(match method {
        Method::Zlib => [0, 0],
        Method::Zstd => [1, 0],
    });
    match version {
        1 => bytes.extend(short(size)?),
        2 => [total, size].into_iter().try_for_each(|size| {
            bytes.extend(short(size)?);
            Ok::<_, io::Error>(())
        })?,
        _ => [total, size].into_iter().for_each(|size| bytes.extend(size.to_le_bytes())),
    }
    bytes.extend(hash);
    Ok(bytes)
}

#[cfg(all(test, feature = "compression"))]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::offload_bundle::{Bundle, Format, HOST_ENTRY, plain};

    #[test]
    fn every_version_and_method_is_read_back() {
        let code = vec![7; 100_000];
        let inside = plain([(HOST_ENTRY, &[][..]), ("hip-amdgcn-amd-amdhsa--gfx90a", &code)]);
        let mut hashes = Vec::new();
        for (version, method) in [
            (1, Method::Zlib),
            (1, Method::Zstd),
            (2, Method::Zstd),
            (3, Method::Zlib),
            (3, Method::Zstd),
        ] {
            let mut out = Cursor::new(b"before".to_vec());
            out.set_position(6);
            let mut writer =
                Compressed::new(&mut out, version, method, inside.len() as u64, true).unwrap();
            writer.write_all(&inside).unwrap();
            let size = writer.finish().unwrap();
            out.set_position(6);
            let available = out.get_ref().len() as u64 - 6;
            let bundle = Bundle::read(&mut out, available).unwrap();
            let uncompressed_size = inside.len() as u64;
            assert_eq!(bundle.format, Format::Compressed { version, method, uncompressed_size });
            assert_eq!(bundle.size, size);
            out.set_position(6);
            let mut codes = bundle.code_objects(&mut out, |_| true).unwrap();
            assert_eq!(codes.next().unwrap().unwrap().bytes, code);
            assert!(codes.next().is_none());
            let end = 6 + match version {
                1 => 20,
                2 => 24,
                _ => 32,
            };
            hashes.push(out.get_ref()[end - 8..end].to_vec());
        }
        hashes.dedup();
        let mut hash = ContentHash::default();
        hash.update(&inside);
        assert_eq!(hashes, [hash.finish()]);
    }
}
