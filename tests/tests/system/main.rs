//! What needs packages, real libraries, root, the network or minutes, so each test is ignored. `cargo xtask test NAME`
//! runs those of a module, such as `faults`, and ends with what could not run and why. `.ci/run` runs all but those in
//! modules named `extra`, which take longer.

mod bootstrap;
mod containers;
mod corpus;
mod e2e;
mod faults;
mod hip;
mod packages;
mod real;
mod support;
mod thread_sanitizer;
mod wheels;
mod workflow;
