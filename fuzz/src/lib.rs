//! What must hold for any bytes. The fuzz targets call these, and so does the test that replays the
//! seeds.

mod binaries;
mod formats;
mod trees;

pub use formats::{opens, with_toc};
pub use trees::{packaging, tree, wheel};

/// A fuzz target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. The seeds of each are in the directory of its name.
pub const TARGETS: [Target; 12] = [
    ("archive", formats::archive),
    ("bundle", formats::bundle),
    ("code_object", formats::code_object),
    ("linked", binaries::linked),
    ("manifest", formats::manifest),
    ("map", formats::map),
    ("marker", formats::marker),
    ("object", binaries::object),
    ("packaging", |bytes| _ = packaging(bytes)),
    ("toc", formats::toc),
    ("tree", |bytes| _ = tree(bytes)),
    ("wheel", |bytes| _ = wheel(bytes)),
];
