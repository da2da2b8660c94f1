//! A HIP project, and the stub HIP runtime that reports what it and other libraries load.

pub(crate) mod check;
pub(crate) mod project;
pub(crate) mod reference;
pub(crate) mod runtime;
pub(crate) mod stub_libraries;
