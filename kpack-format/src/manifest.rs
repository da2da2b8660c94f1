//! The manifest (`.kpm`), which lists a module's archives.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::Blake3;
use crate::names::{GFXARCH, in_package_name};
use crate::target_id::owner_of;
use crate::wire::{self, Bytes, Digest, Input, MapOf, Record, TEXT, field, number, required};

/// The version of the format.
const FORMAT_VERSION: u32 = 1;

/// Stands for the processor in an install hint that the package of a target is named after: `gfx90a` for `gfx90a:xnack+`,
/// and `gfx1250` for `gfx1250-strict`, which [belongs to its packages](crate::TargetId::package_owner).
pub const PROCESSOR: &str = "@PROCESSOR@";

/// A module's manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Manifest {
    /// Module and component, such as `rocblas_lib`.
    pub component_name: String,
    /// The directory in the install prefix that holds the kpack directory, as installed: `lib`.
    pub prefix: String,
    /// By target ID.
    pub kpack_files: BTreeMap<String, KpackFile>,
    /// How users install the archive of a target, such as `apt install vec-@GFXARCH@`, where
    /// [`GFXARCH`] stands for the target ID
    /// [in a package's name](crate::names::in_package_name), and [`PROCESSOR`] for its processor.
    pub install_hint: Option<String>,
}

/// One archive of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KpackFile {
    /// Target ID.
    pub architecture: String,
    /// File name, in the manifest's directory.
    pub filename: String,
    /// Size in bytes.
    pub size: u64,
    /// Number of entries.
    pub kernel_count: u64,
    /// BLAKE3 digest of the file.
    pub checksum: Option<Blake3>,
}

/// Why bytes are not a manifest.
#[derive(Debug)]
pub struct ManifestError(pub(crate) String);

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a kpack manifest: {}", self.0)
    }
}

impl std::error::Error for ManifestError {}

impl KpackFile {
    /// An archive for the target `architecture`.
    pub fn new(
        architecture: impl Into<String>,
        filename: impl Into<String>,
        size: u64,
        kernel_count: u64,
        checksum: Option<Blake3>,
    ) -> Self {
        let (architecture, filename) = (architecture.into(), filename.into());
        Self { architecture, filename, size, kernel_count, checksum }
    }
}

impl Manifest {
    /// A manifest that lists no archives yet and has no install hint.
    pub fn new(component_name: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            component_name: component_name.into(),
            prefix: prefix.into(),
            kpack_files: BTreeMap::new(),
            install_hint: None,
        }
    }

    /// The command that installs the archive of a target, if the manifest has a hint.
    pub fn install_command(&self, target: &str) -> Option<String> {
        let hint = self.install_hint.as_ref()?;
        let processor = owner_of(target.split(':').next().unwrap_or_default());
        Some(hint.replace(GFXARCH, &in_package_name(target)).replace(PROCESSOR, processor))
    }

    /// The MessagePack form.
    pub fn to_bytes(&self) -> Vec<u8> {
        wire::write(&Wire(self))
    }

    /// Reads a manifest that fills `bytes`. Unknown keys are ignored.
    ///
    /// # Errors
    /// Bytes that are not a manifest, another version, trailing bytes, and an archive name that is
    /// not a plain file name.
    pub fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let input = Input::new(bytes);
        let read = input.read(PhantomData);
        let Versioned(version, manifest) =
            read.map_err(|error| ManifestError(error.to_string()))?;
        if version != FORMAT_VERSION {
            return Err(ManifestError(format!(
                "format version {version}; this program reads version {FORMAT_VERSION}"
            )));
        }
        let end = input.expect_end("manifest");
        end.map_err(|error| ManifestError(error.to_string()))?;
        for (target, file) in &manifest.kpack_files {
            let name = file.filename.as_str();
            if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
                return Err(ManifestError(format!(
                    "the archive of {target} is named {name:?}; expected a file name without directory"
                )));
            }
        }
        Ok(manifest)
    }
}

/// A part of a manifest as a map.
struct Wire<'a, T>(&'a T);

impl Serialize for Wire<'_, Manifest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Manifest { component_name, prefix, kpack_files, install_hint } = self.0;
        let files = kpack_files.iter().map(|(target, file)| (target, Wire(file)));
        let count = 4 + usize::from(install_hint.is_some());
        let mut map = serializer.serialize_map(Some(count))?;
        map.serialize_entry("format_version", &FORMAT_VERSION)?;
        map.serialize_entry("component_name", component_name)?;
        map.serialize_entry("prefix", prefix)?;
        map.serialize_entry("kpack_files", &BTreeMap::from_iter(files))?;
        if let Some(hint) = install_hint {
            map.serialize_entry("install_hint", hint)?;
        }
        map.end()
    }
}

impl Serialize for Wire<'_, KpackFile> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let KpackFile { architecture, filename, size, kernel_count, checksum } = self.0;
        let mut map = serializer.serialize_map(Some(4 + usize::from(checksum.is_some())))?;
        map.serialize_entry("architecture", architecture)?;
        map.serialize_entry("filename", filename)?;
        map.serialize_entry("size", size)?;
        map.serialize_entry("kernel_count", kernel_count)?;
        if let Some(checksum) = checksum {
            map.serialize_entry("blake3", &Bytes(checksum))?;
        }
        map.end()
    }
}

/// A manifest of any version.
struct Versioned(u32, Manifest);

impl<'de> Deserialize<'de> for Versioned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = wire::record(Fields::default(), deserializer)?;
        let manifest = Manifest {
            component_name: required(fields.component_name, "component_name")?,
            prefix: required(fields.prefix, "prefix")?,
            kpack_files: required(fields.files, "kpack_files")?,
            install_hint: fields.install_hint,
        };
        Ok(Self(required(fields.version, "format_version")?, manifest))
    }
}

#[derive(Default)]
struct Fields {
    version: Option<u32>,
    component_name: Option<String>,
    prefix: Option<String>,
    files: Option<BTreeMap<String, KpackFile>>,
    install_hint: Option<String>,
}

impl<'de> Record<'de> for Fields {
    const KEYS: &'static [&'static str] =
        &["format_version", "component_name", "prefix", "kpack_files", "install_hint"];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "format_version" => field(&mut self.version, key, number(), map),
            "component_name" => field(&mut self.component_name, key, TEXT, map),
            "prefix" => field(&mut self.prefix, key, TEXT, map),
            "kpack_files" => field(&mut self.files, key, MapOf(usize::MAX, File), map),
            _ => field(&mut self.install_hint, key, TEXT, map),
        }
    }
}

/// An archive in a manifest.
#[derive(Clone, Copy)]
struct File;

impl<'de> DeserializeSeed<'de> for File {
    type Value = KpackFile;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<KpackFile, D::Error> {
        let fields = wire::record(FileFields::default(), deserializer)?;
        Ok(KpackFile {
            architecture: required(fields.architecture, "architecture")?,
            filename: required(fields.filename, "filename")?,
            size: required(fields.size, "size")?,
            kernel_count: required(fields.kernel_count, "kernel_count")?,
            checksum: fields.checksum,
        })
    }
}

#[derive(Default)]
struct FileFields {
    architecture: Option<String>,
    filename: Option<String>,
    size: Option<u64>,
    kernel_count: Option<u64>,
    checksum: Option<Blake3>,
}

impl<'de> Record<'de> for FileFields {
    const KEYS: &'static [&'static str] =
        &["architecture", "filename", "size", "kernel_count", "blake3"];

    fn value<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "architecture" => field(&mut self.architecture, key, TEXT, map),
            "filename" => field(&mut self.filename, key, TEXT, map),
            "size" => field(&mut self.size, key, number(), map),
            "kernel_count" => field(&mut self.kernel_count, key, number(), map),
            _ => field(&mut self.checksum, key, Digest, map),
        }
    }
}
