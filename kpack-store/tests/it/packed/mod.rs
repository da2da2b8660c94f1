//! Packed artifacts, as `kpack artifact pack` and others make them.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::path::Path;

use kpack_store::{Index, PackOptions, pack};
use kpack_tests::sha256;
use kpack_tests::tree::{Tree, write};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

/// Packs the artifacts in `from` as the shard `linux-a`, into `to`.
pub(crate) fn packed(tree: &Tree, from: &str, to: &str) -> Index {
    let mut options = PackOptions::new(tree.path(from), tree.path(to));
    options.index.run = Some("12345-linux".to_owned());
    options.index.shard = Some("linux-a".to_owned());
    let packed = pack(&options, &()).unwrap();
    assert_eq!(packed.findings, []);
    packed.index
}

/// A tar archive, made by hand: nothing in it is checked.
pub(crate) struct Tar {
    builder: Builder<Vec<u8>>,
    /// What an index says of it: the number of members, and the size of files.
    pub(crate) contents: (u64, u64),
}

impl Tar {
    /// An empty one.
    pub(crate) fn empty() -> Self {
        Self { builder: Builder::new(Vec::new()), contents: (0, 0) }
    }

    /// One that begins as those of artifacts do, with the prefix `stage`.
    pub(crate) fn new() -> Self {
        let mut tar = Self::empty().file("artifact_manifest.txt", b"stage\n");
        tar.contents = (0, 0);
        tar
    }

    /// Adds a member. Names are taken as they are.
    pub(crate) fn member(
        mut self,
        name: &str,
        kind: EntryType,
        mode: u32,
        link: &str,
        bytes: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        self.builder.append(&header, bytes).unwrap();
        self.contents.0 += 1;
        self.contents.1 += bytes.len() as u64;
        self
    }

    pub(crate) fn file(self, name: &str, bytes: &[u8]) -> Self {
        self.member(name, EntryType::Regular, 0o644, "", bytes)
    }

    /// Adds a member of this kind with a name, or a link, that is longer than a header can hold.
    pub(crate) fn long(self, kind: EntryType, name: &str, link: &str) -> Self {
        let contents = self.contents;
        let mut tar = self.member("@", EntryType::GNULongName, 0o644, "", name.as_bytes());
        tar = tar.member("@", EntryType::GNULongLink, 0o644, "", link.as_bytes());
        tar = tar.member("@", kind, 0o644, "", b"");
        tar.contents = (contents.0 + 1, contents.1);
        tar
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.member(name, EntryType::Symlink, 0o777, target, b"")
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.member(name, EntryType::Directory, 0o755, "", b"")
    }

    /// The bytes of the archive.
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.builder.into_inner().unwrap()
    }

    /// Compressed.
    pub(crate) fn compressed(self) -> Vec<u8> {
        zstd::encode_all(&self.bytes()[..], 3).unwrap()
    }
}

/// The entry of an index about a packed artifact with these bytes, members, and bytes in files.
pub(crate) fn entry(component: &str, target: &str, bytes: &[u8], files: u64, size: u64) -> Value {
    json!({
        "file": format!("{component}_{target}.tar.zst"), "component": component, "target": target,
        "size": bytes.len(), "sha256": sha256(bytes), "unpacked": size, "files": files,
    })
}

/// Writes an index.
pub(crate) fn write_index(store: &Path, entries: &[Value]) {
    let index = json!({
        "format": "kpack-index", "version": 1, "run": "1-linux", "shard": "linux-a",
        "built_for": ["gfx942"], "artifacts": entries,
    });
    write(store.join("index.json"), index.to_string());
}
