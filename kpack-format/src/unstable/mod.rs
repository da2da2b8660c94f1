//! Parts of this crate that may change in any release, because kpack's own crates share them: guesses about the names that
//! others chose, and the few facts that kpack needs of Tensile's libraries.

pub mod raw_map;
pub mod spelling;
pub mod target_names;
pub mod tensile;
