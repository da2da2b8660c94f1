//! Splits Python wheels into a host wheel without device code, and a small device wheel for each GPU processor.
//!
//! A wheel is unpacked into a hidden directory, where [`install`](kpack_split::install::install) splits its binaries
//! and a [`Walk`](kpack_tree::Walk) finds the files of kernel databases. [`split()`] then writes
//! the host wheel, whose extras (`device-gfx942`, `device-all`) require the device wheels. Each wheel pins the
//! version of the others. [`verify()`] checks such a set, and [`describe`] lists the extra for each GPU.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod archive;
mod device;
mod elsewhere;
mod installed;
mod members;
mod metadata;
mod name;
mod options;
mod record;
mod rocm;
mod sdist;
mod set;
mod show;
mod split;
mod variant;
mod variant_json;
mod vendor;
mod verify;
mod writer;

pub use installed::{
    Distribution, Environment, InstalledFile, Listed, Lister, Needed, Required,
    package_directories, update_record, within,
};
pub use options::{DeviceGroup, Options};
pub use record::{Digest, digest_of};
pub use show::{Description, Device, describe};
pub use split::{WheelReport, WrittenWheel, split};
pub use verify::{VerifyOptions, verify};
