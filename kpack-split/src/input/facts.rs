//! What host binaries from machines that built for other targets have in common.

use std::fmt::Write as _;
use std::ops::Range;

use kpack_format::digest::{Hasher, hex};
use kpack_format::marker::Marker;

use super::{LinkedBinary, MarkerGroup};
use crate::Error;
use crate::device_code::{DeviceCode, SplitWrapper};
use crate::elf::ReadAt;
use crate::facts::Facts;

/// How many bytes of a bundle are in memory.
const PIECE: u64 = 1 << 20;

impl LinkedBinary {
    /// The parts of the file that tell builds of the same code apart, in order.
    ///
    /// # Errors
    /// [`Error::Refused`] if a table is damaged; [`Error::Io`].
    pub fn build_marks(&self) -> Result<Vec<Range<u64>>, Error> {
        self.image.build_marks().map_err(|e| self.error(e))
    }

    /// The facts of the host code, of the markers, and of the SPIR-V that a split keeps.
    ///
    /// # Errors
    /// [`Error::Refused`] if a table is damaged; [`Error::Io`].
    pub fn facts(&self) -> Result<Facts, Error> {
        let mut facts = self.image.facts().map_err(|e| self.error(e))?;
        facts.add(
            "device code",
            match self.code {
                DeviceCode::None(_) => "none",
                DeviceCode::Fat(_) => "in the file",
                DeviceCode::Split(_) => "in archives",
            },
        );
        // What a marker says of its code differs between machines.
        let mut groups: Vec<(Marker, Vec<SplitWrapper>)> = Vec::new();
        for MarkerGroup { marker, wrappers } in self.markers()? {
            let marker = marker.without_additions();
            match groups.iter_mut().find(|(known, _)| *known == marker) {
                Some((_, known)) => known.extend(wrappers),
                None => groups.push((marker, wrappers)),
            }
        }
        for (marker, mut wrappers) in groups {
            wrappers.sort_by_key(|wrapper| wrapper.position);
            let of = format!("of wrappers {}", runs(wrappers.iter().map(|w| w.position)));
            facts.add(format!("code objects {of}"), runs(wrappers.iter().map(|w| w.co_index)));
            if let Some(name) = &marker.kernel_name {
                facts
                    .add_text(&format!("kernel name {of}"), name.as_bytes())
                    .map_err(|e| self.error(e))?;
            }
            for path in &marker.kpack_search_paths {
                facts
                    .add_text(&format!("search paths {of}"), path.as_bytes())
                    .map_err(|e| self.error(e))?;
            }
        }
        self.add_spirv(&mut facts)?;
        Ok(facts)
    }

    fn add_spirv(&self, facts: &mut Facts) -> Result<(), Error> {
        let Some(fat) = &self.kept else {
            return Ok(());
        };
        // Wrappers that share a bundle usually follow each other.
        let mut last = None;
        for (wrapper, bundle) in fat.wrappers.iter().zip(self.bundles(&fat.wrappers)) {
            let at = (wrapper.bundle_offset, bundle?.size);
            let value = match last.take() {
                Some((known, value)) if known == at => value,
                _ => self.digest_of(at)?,
            };
            facts.add(format!("SPIR-V of code object {}", wrapper.co_index), &value);
            last = Some((at, value));
        }
        Ok(())
    }

    /// The size and the digest of bytes of the file.
    fn digest_of(&self, (start, size): (u64, u64)) -> Result<String, Error> {
        let mut hasher = Hasher::default();
        let end = start.saturating_add(size);
        let mut at = start;
        while at < end {
            let mut bytes = vec![0; (end - at).min(PIECE) as usize];
            let read = self.image.source().read_exact_at(at, &mut bytes);
            read.map_err(|e| Error::io(&self.path, "read", e))?;
            hasher.update(&bytes);
            at += bytes.len() as u64;
        }
        Ok(format!("{size} bytes with BLAKE3 digest {}", hex(&hasher.finish())))
    }
}

/// Numbers in their order, with runs of consecutive ones in short: `0-3, 7`.
fn runs(numbers: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(number) => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let mut text = String::new();
    for (start, end) in runs {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = if end == start {
            write!(text, "{separator}{start}")
        } else {
            write!(text, "{separator}{start}-{end}")
        };
    }
    text
}
