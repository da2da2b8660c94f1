//! What other ways to compress would save, and what they would cost.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use wait4::{ResUse, Wait4};

use super::stored;
use crate::{corpus_sizes, process};
use kpack_tests::corpus::Library;

/// The GPU whose archives are compared.
const TARGET: &str = "gfx1030";

/// Ways to compress the files in `objects`, as scripts that print compressed bytes. The first is what the others
/// are compared with. Frames have no checksum, as kpack's.
const WAYS: [(&str, &str); 9] = [
    ("level 3", "each -3"),
    ("level 1", "each -1"),
    ("level 2", "each -2"),
    ("level 3, smaller tables", "each --zstd=hlog=16,clog=15 -3"),
    ("level 3, window of 8 MiB, tables of 1 MiB", "each --zstd=wlog=23,hlog=18,clog=18 -3"),
    ("level 9", "each -9"),
    ("level 19", "each -19"),
    (
        "level 3, long-distance matching over all of them",
        "cat objects/* | zstd -q --no-check -3 --long=28 -c",
    ),
    (
        "level 3, shared dictionary",
        "zstd -q -f --train -B16384 -r objects -o dictionary; each -3 -D dictionary; cat dictionary",
    ),
];

/// Compresses each object by itself, on all cores.
const EACH: &str = "each() {
    mkdir out
    find objects -type f -print0 | xargs -0 -P $(nproc) -n 8 zstd -q --no-check --output-dir-flat out \"$@\"
    cat out/*
    rm -r out
}";

/// A Markdown table of these libraries: bytes and CPU time of the first way, with all programs that its script runs, and
/// how much more or less the others have.
///
/// # Errors
/// A library cannot be split, or zstd fails.
pub(super) fn table(helper: &Path, libraries: &[Library]) -> Result<String> {
    let [(first, _), others @ ..] = WAYS;
    let others = others.map(|(name, _)| name).join(" | ");
    let mut text = format!(
        "| library, for one GPU | code | {first} | kpack | {others} |\n| --- {}|\n",
        "| ---: ".repeat(2 + WAYS.len())
    );
    for library in libraries {
        text += &row(helper, library)?;
    }
    Ok(text)
}

fn row(helper: &Path, library: &Library) -> Result<String> {
    let work = corpus_sizes::split(helper, library)?;
    let work = work.path();
    let archive = work.join(format!("lib/.kpack/corpus_lib_{TARGET}.kpack"));
    fs::create_dir(work.join("objects"))?;
    let mut code = 0;
    for (index, stored) in stored::read(&archive)?.iter().enumerate() {
        code += stored.code.len() as u64;
        fs::write(work.join(format!("objects/{index}")), &stored.code)?;
    }
    let mut costs = Vec::new();
    for (name, script) in WAYS {
        process::step(&format!("Compressing its code objects: {name}"));
        let script = format!("{EACH}\n{{ {script}; }} > compressed");
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-euc", &script]).current_dir(work).spawn()?;
        let ResUse { status, rusage } = shell.wait4()?;
        ensure!(status.success(), "`{script}` failed ({status})");
        let time = (rusage.utime + rusage.stime).as_secs_f64();
        costs.push((fs::metadata(work.join("compressed"))?.len() as f64, time));
    }
    let (bytes, time) = costs[0];
    let more = |size: f64| format!("{:+.1}%", 100.0 * (size / bytes - 1.0));
    let others = costs[1..].iter();
    let others = others.map(|(size, cpu)| format!(" {}, {:.2} × |", more(*size), cpu / time));
    Ok(format!(
        "| `{}` | {:.2} MB | {:.2} MB, {time:.2} s | {} |{}\n",
        library.name(),
        code as f64 / 1e6,
        bytes / 1e6,
        more(fs::metadata(&archive)?.len() as f64),
        others.collect::<String>(),
    ))
}
