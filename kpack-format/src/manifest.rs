//! The manifest (`.kpm`), which lists a module's archives.

use std::collections::BTreeMap;
use std::fmt;

use crate::Blake3;
use crate::message_pack::{MessagePackError, Reader, Writer};
use crate::names::{GFXARCH, in_package_name};
use crate::target_id::owner_of;

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

    fn write(&self, out: &mut Writer) {
        out.map(4 + usize::from(self.checksum.is_some()));
        out.text("architecture").text(&self.architecture);
        out.text("filename").text(&self.filename);
        out.text("size").integer(self.size);
        out.text("kernel_count").integer(self.kernel_count);
        if let Some(checksum) = &self.checksum {
            out.text("blake3").bytes(checksum);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, MessagePackError> {
        let (mut architecture, mut filename) = (None, None);
        let (mut size, mut kernel_count, mut checksum) = (None, None, None);
        reader.map(|key, value| match key {
            "architecture" => value.field(&mut architecture, key, Reader::string),
            "filename" => value.field(&mut filename, key, Reader::string),
            "size" => value.field(&mut size, key, Reader::integer),
            "kernel_count" => value.field(&mut kernel_count, key, Reader::integer),
            "blake3" => value.field(&mut checksum, key, Reader::digest),
            _ => value.skip().map(drop),
        })?;
        Ok(Self {
            architecture: reader.required(architecture, "architecture")?,
            filename: reader.required(filename, "filename")?,
            size: reader.required(size, "size")?,
            kernel_count: reader.required(kernel_count, "kernel_count")?,
            checksum,
        })
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
        let mut out = Writer::default();
        out.map(4 + usize::from(self.install_hint.is_some()));
        out.text("format_version").integer(FORMAT_VERSION.into());
        out.text("component_name").text(&self.component_name);
        out.text("prefix").text(&self.prefix);
        out.text("kpack_files").map(self.kpack_files.len());
        for (target, file) in &self.kpack_files {
            file.write(out.text(target));
        }
        if let Some(hint) = &self.install_hint {
            out.text("install_hint").text(hint);
        }
        out.0
    }

    /// Reads a manifest that fills `bytes`. Unknown keys are ignored.
    ///
    /// # Errors
    /// Bytes that are not a manifest, another version, trailing bytes, and an archive name that is
    /// not a plain file name.
    pub fn read(bytes: &[u8]) -> Result<Self, ManifestError> {
        let mut reader = Reader::new(bytes);
        let (version, manifest) =
            Self::read_any(&mut reader).map_err(|error| ManifestError(error.to_string()))?;
        if version != FORMAT_VERSION {
            return Err(ManifestError(format!(
                "format version {version}; this program reads version {FORMAT_VERSION}"
            )));
        }
        let end = reader.expect_end("manifest");
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

    /// Reads a manifest of any version.
    fn read_any(reader: &mut Reader<'_>) -> Result<(u32, Self), MessagePackError> {
        let (mut version, mut component_name) = (None, None);
        let (mut prefix, mut files, mut install_hint) = (None, None, None);
        reader.map(|key, value| match key {
            "format_version" => value.field(&mut version, key, Reader::integer),
            "component_name" => value.field(&mut component_name, key, Reader::string),
            "prefix" => value.field(&mut prefix, key, Reader::string),
            "kpack_files" => {
                value.field(&mut files, key, |value| value.map_of(usize::MAX, KpackFile::read))
            }
            "install_hint" => value.field(&mut install_hint, key, Reader::string),
            _ => value.skip().map(drop),
        })?;
        let manifest = Self {
            component_name: reader.required(component_name, "component_name")?,
            prefix: reader.required(prefix, "prefix")?,
            kpack_files: reader.required(files, "kpack_files")?,
            install_hint,
        };
        Ok((reader.required(version, "format_version")?, manifest))
    }
}
