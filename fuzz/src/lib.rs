//! What must hold for any bytes. The fuzz targets call these, and so does the test that replays the
//! seeds.

mod binaries;
mod formats;
mod loading;
mod trees;

pub use formats::{opens, with_toc};
pub use loading::{doctor, shim};
pub use trees::{packaging, store, tree, wheel};

/// A fuzz target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. The seeds of each are in the directory of its name.
pub const TARGETS: [Target; 15] = [
    ("archive", formats::archive),
    ("bundle", formats::bundle),
    ("code_object", formats::code_object),
    ("doctor", |bytes| _ = doctor(bytes)),
    ("linked", binaries::linked),
    ("manifest", formats::manifest),
    ("map", formats::map),
    ("marker", formats::marker),
    ("object", binaries::object),
    ("packaging", |bytes| _ = packaging(bytes)),
    ("shim", |bytes| _ = shim(bytes)),
    ("store", |bytes| _ = store(bytes)),
    ("toc", formats::toc),
    ("tree", |bytes| _ = tree(bytes)),
    ("wheel", |bytes| _ = wheel(bytes)),
];
