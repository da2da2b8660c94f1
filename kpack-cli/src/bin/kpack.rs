//! The helper command `kpack`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    kpack_cli::cli::main()
}
