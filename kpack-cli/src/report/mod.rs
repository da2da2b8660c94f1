//! The page that `kpack report --html` writes.

mod html;
mod treemap;

pub use html::{columns, page};
