//! Reads the tar archives of stores: no member may take more memory or name more than it should.

use std::io::{self, Read};

use tar::{Archive, Entry, EntryType, PaxExtensions};

/// The most bytes of a long name, or of the extensions of one member.
const MAX_EXTENSION: u64 = 64 << 10;

/// Long names and extensions of an artifact may have this many bytes, with their headers.
const ROOM: u64 = 1 << 20;

/// And this many more for each member: two paths of the greatest length, and what else tools note in extensions.
const ROOM_OF_MEMBER: u64 = 8 << 10;

/// The bytes of a header.
const HEADER: u64 = 512;

/// A member's header, with the long names that come before it.
pub(super) struct Header {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: EntryType,
    pub(super) mode: u32,
    pub(super) time: u64,
    pub(super) size: u64,
}

/// Why a tar archive cannot be read further.
#[derive(Debug)]
pub(super) enum TarError<E> {
    /// Reading failed, or the archive is damaged.
    Read(io::Error),
    /// It is readable, and has what no artifact has.
    Unsupported(String),
    /// The caller's own.
    Visit(E),
}

impl<E> From<io::Error> for TarError<E> {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// Calls `visit` with each member and its content.
pub(super) fn members<R: Read, E>(
    reader: R,
    mut visit: impl FnMut(&Header, &mut dyn Read) -> Result<(), E>,
) -> Result<(), TarError<E>> {
    let mut archive = Archive::new(reader);
    let (mut path, mut link) = (None, None);
    let mut extensions = Extensions { room: ROOM };
    // The library would read extensions of any size into memory.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => path = Some(extensions.name(&mut entry)?),
            EntryType::GNULongLink => link = Some(extensions.name(&mut entry)?),
            EntryType::XGlobalHeader => {
                // Some tools give such a name to all members that follow, and others ignore it.
                if pax(&extensions.read(&mut entry)?)? != (None, None) {
                    let text = "a name for all members that follow; pack it with kpack";
                    return Err(TarError::Unsupported(text.to_owned()));
                }
            }
            EntryType::XHeader => {
                let (own_path, own_link) = pax(&extensions.read(&mut entry)?)?;
                path = own_path.or(path);
                link = own_link.or(link);
            }
            kind => {
                let raw = entry.header();
                let header = Header {
                    path: path.take().unwrap_or_else(|| raw.path_bytes().into_owned()),
                    link: link.take().unwrap_or_else(|| {
                        let link = raw.link_name_bytes();
                        link.map_or(Vec::new(), |link| link.into_owned())
                    }),
                    kind,
                    mode: raw.mode()?,
                    time: raw.mtime()?,
                    size: raw.entry_size()?,
                };
                visit(&header, &mut entry).map_err(TarError::Visit)?;
                extensions.room += ROOM_OF_MEMBER;
            }
        }
    }
    Ok(())
}

/// How many more bytes long names and extensions may have. They compress well, so the size of an artifact bounds nothing.
struct Extensions {
    room: u64,
}

impl Extensions {
    /// The content of an extension.
    fn read<R: Read, E>(&mut self, entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TarError<E>> {
        let size = entry.header().entry_size()?;
        if size > MAX_EXTENSION {
            return Err(TarError::Unsupported(format!(
                "a name or extension of {size} bytes (expected at most {MAX_EXTENSION})"
            )));
        }
        let Some(room) = self.room.checked_sub(HEADER + size) else {
            let text = format!(
                "too many names and extensions (expected at most {ROOM} bytes, and {ROOM_OF_MEMBER} per member)"
            );
            return Err(TarError::Unsupported(text));
        };
        self.room = room;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        if bytes.len() as u64 != size {
            return Err(TarError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }

    /// A long name, which a zero byte ends.
    fn name<R: Read, E>(&mut self, entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TarError<E>> {
        let mut name = self.read(entry)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        Ok(name)
    }
}

/// The long names in POSIX extensions.
#[expect(clippy::type_complexity, reason = "a path and a link")]
fn pax<E>(bytes: &[u8]) -> Result<(Option<Vec<u8>>, Option<Vec<u8>>), TarError<E>> {
    let (mut path, mut link) = (None, None);
    for extension in PaxExtensions::new(bytes) {
        let extension = extension?;
        let value = || Some(extension.value_bytes().to_owned());
        match extension.key_bytes() {
            b"path" => path = value(),
            b"linkpath" => link = value(),
            // The header has another size then, and the next member would be looked for elsewhere.
            b"size" => {
                let text = "a member of more than 8 GiB, in a form that kpack does not read; pack it with kpack";
                return Err(TarError::Unsupported(text.to_owned()));
            }
            key if key.starts_with(b"GNU.sparse") => {
                let text = "a sparse file, which artifacts do not have; pack it with kpack";
                return Err(TarError::Unsupported(text.to_owned()));
            }
            _ => {}
        }
    }
    Ok((path, link))
}
