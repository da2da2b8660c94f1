//! `cargo xtask bench real`: libraries that were fetched by hand.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use kpack_tests::corpus;
use kpack_tests::process::target_directory;

use crate::comparison::Bound::{Cpu, Memory, Wall};
use crate::comparison::{self, Group, Row, Setup};
use crate::page::{self, ratio};
use crate::{build, table};

/// Options of `cargo xtask bench real`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Libraries, or directories with libraries, such as unpacked packages
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// How often to run each program, alternately
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// The second reference compresses and hashes the library, and nothing else, so it shows whether a bound can be met.
const SPLIT: Group = Group {
    name: "real",
    setup: |_| Ok(()),
    fresh: table::FRESH_PREFIX,
    rows: &[
        Row { what: "Split", bounds: &[Wall(1.1), Cpu(1.0), Memory(100.0)], ..table::SPLIT },
        Row {
            what: "Split",
            reference: (
                "`zstd -3 -T2`, `b3sum`",
                "zstd -3 -T2 -q prefix/lib/library.so -o library.zst
                b3sum --num-threads 1 prefix/lib/library.so",
            ),
            hashes: false,
            ..table::SPLIT
        },
    ],
};

/// Measures each library, and prints a table.
///
/// # Errors
/// There is none, or it cannot be split.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut libraries = Vec::new();
    for path in &options.paths {
        let found = corpus::with_device_code(path)?;
        ensure!(!found.is_empty(), "{}: no device code", path.display());
        libraries.extend(found);
    }
    let mut text = page::machine(options.rounds)?;
    text += "\n| library | wall time against `zstd -3 -T2` | CPU time | wall time against that and `b3sum` | CPU time against both | wall and CPU ratio without SHA, AVX2 and AVX-512 | the same against both | peak MB | bounds |\n\
        | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n";
    let kpack = build::kpack(build::PACKAGED)?;
    let portable = build::portable_kpack()?;
    build::b3sum(&kpack, false)?;
    build::b3sum(&portable, true)?;
    let work = target_directory().join("bench");
    for library in &libraries {
        let _ = fs::remove_dir_all(&work);
        fs::create_dir(&work)?;
        symlink(fs::canonicalize(library)?, work.join("library.so"))?;
        let name = library.file_name().unwrap_or_default().display();
        build::step(&name.to_string());
        let setup = Setup {
            work: &work,
            kpack: &kpack,
            portable: &portable,
            older: None,
            rows: &Vec::from_iter(SPLIT.rows),
        };
        let outcomes = comparison::run(&SPLIT, &setup, options.rounds)?;
        println!("\nWithout SHA, AVX2 and AVX-512");
        let setup = Setup { kpack: &portable, rows: &[&SPLIT.rows[1]], ..setup };
        let floor = &comparison::run(&SPLIT, &setup, options.rounds)?[0];
        text += &format!(
            "| `{name}` ({:.0} MB) | {} | {} | {} | {} | {} | {:.2}, {:.2} | {:.0} | {} |\n",
            fs::metadata(library)?.len() as f64 / 1e6,
            ratio(&outcomes[0].wall_ratio()),
            ratio(&outcomes[0].cpu_ratio()),
            ratio(&outcomes[1].wall_ratio()),
            ratio(&outcomes[1].cpu_ratio()),
            page::portable(&outcomes[0]),
            floor.wall_ratio().median,
            floor.cpu_ratio().median,
            outcomes[0].memory()[1],
            page::bounds(&outcomes[0]),
        );
    }
    fs::remove_dir_all(&work)?;
    println!("\n{text}");
    Ok(())
}
