//! What crosses crates: the fixtures, the fuzz targets' seeds and the CMake package.

mod cmake;
mod fixture;
mod fuzz_seeds;
