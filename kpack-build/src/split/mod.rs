//! One fat binary as data: the plan of its host binary, and its code objects by target.

mod compress;
mod device_code;
#[cfg(feature = "install")]
mod fat_file;
pub(crate) mod padding;

pub(crate) use compress::{Budget, Compression, archive_error, compress};
pub(crate) use device_code::DeviceCode;
#[cfg(feature = "install")]
pub(crate) use fat_file::{FatFile, Input, read};
