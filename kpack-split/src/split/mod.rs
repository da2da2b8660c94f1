//! Device code of one fat binary: the plan of its host binary, and its code objects by target.

mod fat_file;

pub(crate) use fat_file::{FatFile, Input, of, read};
pub(crate) use kpack_build::shared::split::{
    Budget, Compression, DeviceCode, code_ids, compress, padding,
};
