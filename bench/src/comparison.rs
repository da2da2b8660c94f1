//! A comparison as data, and what runs it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use wait4::{ResUse, Wait4};
use walkdir::WalkDir;

/// The variable that says from which size malloc returns a block to the system. Only this program has it, not what it
/// measures.
pub(crate) const MALLOC: &str = "MALLOC_MMAP_THRESHOLD_";

/// Comparisons of the same input.
pub(crate) struct Group {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Puts the input into the group's directory.
    pub(crate) setup: fn(&Setup<'_>) -> Result<()>,
    /// A shell script that runs before each command and is not measured.
    pub(crate) fresh: &'static str,
    /// The comparisons.
    pub(crate) rows: &'static [Row],
}

/// What a set-up may use.
pub(crate) struct Setup<'a> {
    /// The group's directory, empty.
    pub(crate) work: &'a Path,
    /// The optimised program.
    pub(crate) kpack: &'a Path,
    /// The same for a processor without SHA, AVX2 and AVX-512.
    pub(crate) portable: &'a Path,
    /// An older `kpack`, which then is the reference of all rows.
    pub(crate) older: Option<&'a Path>,
    /// The comparisons to run.
    pub(crate) rows: &'a [&'static Row],
}

impl Setup<'_> {
    /// A shell script in the group's directory, which finds the optimised program first.
    pub(crate) fn command(&self, script: &str) -> Command {
        self.command_with(self.kpack, script)
    }

    fn command_with(&self, kpack: &Path, script: &str) -> Command {
        let programs = kpack.parent().unwrap_or(Path::new(""));
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-euc", script])
            .current_dir(self.work)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env_remove("CARGO_TARGET_DIR")
            .env_remove(MALLOC)
            .stdin(Stdio::null());
        command
    }
}

/// kpack against another program that does the least that any program must do, or the same by other means.
pub(crate) struct Row {
    /// What both do.
    pub(crate) what: &'static str,
    /// The reference, as the table names it, and its shell script.
    pub(crate) reference: (&'static str, &'static str),
    /// kpack's shell script.
    pub(crate) own: &'static str,
    /// What must hold.
    pub(crate) bounds: &'static [Bound],
    /// Whether kpack is also measured without the instructions that hash fast.
    pub(crate) hashes: bool,
    /// How often a script runs its program: times are for one.
    pub(crate) calls: u32,
    /// The size of the input, for comparisons that only differ in it; scripts have it as `$SIZE`.
    pub(crate) size: u32,
    /// Whether only `--large` runs it.
    pub(crate) large: bool,
    /// What it has to read, in the directory `$SIZE`; what it writes is in `out`. Empty if bytes are not counted.
    pub(crate) input: &'static str,
}

/// A row with one call, no bounds and no size, for `..ROW`.
pub(crate) const ROW: Row = Row {
    what: "",
    reference: ("", ""),
    own: "",
    bounds: &[],
    hashes: false,
    calls: 1,
    size: 0,
    large: false,
    input: "",
};

/// A limit for kpack.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// The ratio of wall time.
    Wall(f64),
    /// The ratio of processor time.
    Cpu(f64),
    /// Milliseconds of wall time more than the reference.
    More(f64),
    /// Peak memory in MB.
    Memory(f64),
    /// The ratio of bytes read to those of the input.
    Read(f64),
}

/// One run of one side, for one call.
#[derive(Debug, Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
    /// Peak resident memory, in MB.
    memory: f64,
    /// Bytes read and written, in all files.
    read: f64,
    written: f64,
}

/// The runs of both sides.
pub(crate) struct Outcome {
    pub(crate) row: &'static Row,
    /// The reference, as the table names it.
    pub(crate) against: &'static str,
    /// What must hold; nothing does for an older `kpack`.
    pub(crate) bounds: &'static [Bound],
    reference: Vec<Cost>,
    own: Vec<Cost>,
    /// kpack's without SHA, AVX2 and AVX-512, if they were measured.
    portable: Vec<Cost>,
    /// Bytes of the row's input, and of what kpack wrote.
    input: f64,
    output: f64,
}

/// The median, the smallest and the largest of some numbers.
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// Makes the group's input and runs both sides of each row alternately.
///
/// # Errors
/// The set-up or a command fails.
pub(crate) fn run(group: &Group, setup: &Setup<'_>, rounds: u32) -> Result<Vec<Outcome>> {
    let start = Instant::now();
    (group.setup)(setup)?;
    println!("   {:.1} s for the data", start.elapsed().as_secs_f64());
    let rows = setup.rows.iter();
    rows.map(|row| compare(setup, group, row, rounds)).collect()
}

fn compare(setup: &Setup<'_>, group: &Group, row: &'static Row, rounds: u32) -> Result<Outcome> {
    let (against, script, program, bounds) = match setup.older {
        Some(older) => ("the older kpack", row.own, older, &[][..]),
        None => (row.reference.0, row.reference.1, setup.kpack, row.bounds),
    };
    println!("\n{} against {against}", row.what);
    let start = Instant::now();
    let (mut input, mut output) = (0.0, 0.0);
    let mut costs: [Vec<Cost>; 3] = [const { Vec::new() }; 3];
    let sides = [
        ("reference", script, program),
        ("kpack", row.own, setup.kpack),
        ("portable", row.own, setup.portable),
    ];
    let sides = if row.hashes && setup.older.is_none() { &sides[..] } else { &sides[..2] };
    for round in 0..rounds {
        // Whoever comes second may find a warmer cache: take turns.
        for turn in 0..sides.len() {
            let side = (turn + round as usize) % sides.len();
            let (name, script, kpack) = sides[side];
            // Nothing is left to be written when the time starts.
            measure(setup, setup.kpack, &format!("{}\nsync -f .", group.fresh), row)?;
            let cost = measure(setup, kpack, script, row)?;
            println!(
                "   {name:<10} {:>9.3} s {:>9.3} s CPU {:>8.1} MB",
                cost.wall, cost.cpu, cost.memory
            );
            costs[side].push(cost);
            if name == "kpack" && !row.input.is_empty() {
                input = size_below(&setup.work.join(format!("{}/{}", row.size, row.input)));
                output = size_below(&setup.work.join("out"));
            }
        }
    }
    println!("   {:.1} s for all rounds", start.elapsed().as_secs_f64());
    let [reference, own, portable] = costs;
    Ok(Outcome { row, against, bounds, reference, own, portable, input, output })
}

/// Bytes of the files below a directory; one with several names counts once.
fn size_below(directory: &Path) -> f64 {
    let files = WalkDir::new(directory).into_iter().flatten();
    let files = files.filter(|entry| entry.file_type().is_file());
    let files = files.filter_map(|entry| entry.metadata().ok());
    let files: BTreeMap<u64, u64> = files.map(|file| (file.ino(), file.len())).collect();
    files.values().sum::<u64>() as f64
}

/// Bytes that this program and those that it waited for have read and written.
fn transferred() -> Result<[f64; 2]> {
    let io = fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let field = |name: &str| {
        let value = io.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse().ok())
    };
    let both = [field("rchar:"), field("wchar:")].map(|value| value.context("/proc/self/io"));
    let [read, written] = both;
    Ok([read?, written?])
}

fn measure(setup: &Setup<'_>, kpack: &Path, script: &str, row: &Row) -> Result<Cost> {
    // A child starts with its parent's peak, so this program forgets its own.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let mut command = setup.command_with(kpack, script);
    let before = transferred()?;
    let start = Instant::now();
    let ResUse { status, rusage } = command
        .env("SIZE", row.size.to_string())
        .stdout(Stdio::null())
        .spawn()
        .and_then(|mut child| child.wait4())
        .context("sh cannot be run")?;
    let wall = start.elapsed();
    ensure!(status.success(), "`{script}` failed ({status})");
    let calls = f64::from(row.calls);
    let after = transferred()?;
    let [read, written] = [0, 1].map(|side| (after[side] - before[side]) / calls);
    Ok(Cost {
        read,
        written,
        wall: wall.as_secs_f64() / calls,
        cpu: (rusage.utime + rusage.stime).as_secs_f64() / calls,
        memory: rusage.maxrss as f64 / 1e6,
    })
}

impl Outcome {
    /// Median wall time of the reference and of kpack, in seconds.
    pub(crate) fn wall(&self) -> [f64; 2] {
        [&self.reference, &self.own].map(|costs| median_of(costs, |cost| cost.wall))
    }

    /// Median processor time of the reference and of kpack, in seconds.
    pub(crate) fn cpu(&self) -> [f64; 2] {
        [&self.reference, &self.own].map(|costs| median_of(costs, |cost| cost.cpu))
    }

    /// The ratios of wall time, by round.
    pub(crate) fn wall_ratio(&self) -> Spread {
        self.spread(|own, reference| own.wall / reference.wall)
    }

    /// The ratios of processor time, by round.
    pub(crate) fn cpu_ratio(&self) -> Spread {
        self.spread(|own, reference| own.cpu / reference.cpu)
    }

    /// The ratios of wall time and of processor time without SHA, AVX2 and AVX-512, if they were measured.
    pub(crate) fn portable_ratios(&self) -> Option<[Spread; 2]> {
        let ratio = |of: fn(&Cost) -> f64| {
            spread(&self.portable, &self.reference, |own, reference| of(own) / of(reference))
        };
        let is_measured = !self.portable.is_empty();
        is_measured.then(|| [ratio(|cost| cost.wall), ratio(|cost| cost.cpu)])
    }

    /// Peak memory of the reference and of kpack, in MB.
    pub(crate) fn memory(&self) -> [f64; 2] {
        [&self.reference, &self.own]
            .map(|costs| costs.iter().map(|cost| cost.memory).fold(0.0, f64::max))
    }

    /// The bound in words, and whether it holds.
    pub(crate) fn judge(&self, bound: Bound) -> (String, bool) {
        let ratio =
            |name, bound, ratio: Spread| (format!("{name} ≤ {bound}"), ratio.median <= bound);
        match bound {
            Bound::Wall(bound) => ratio("wall", bound, self.wall_ratio()),
            Bound::Cpu(bound) => ratio("CPU", bound, self.cpu_ratio()),
            Bound::More(most) => {
                let more = self.spread(|own, reference| (own.wall - reference.wall) * 1e3);
                let words = format!("{:.1} ms more, ≤ {most}", more.median);
                (words, more.median <= most)
            }
            Bound::Memory(most) => (format!("≤ {most} MB"), self.memory()[1] <= most),
            Bound::Read(most) => {
                let read = median_of(&self.own, |cost| cost.read) / self.input;
                let words = format!("reads {read:.2} × its input, ≤ {most}");
                (words, read <= most)
            }
        }
    }

    /// Bytes that kpack read and wrote per byte of output, and the reference, if they are counted.
    pub(crate) fn per_byte(&self) -> Option<[[f64; 2]; 2]> {
        let per_byte = |of: fn(&Cost) -> f64| {
            [&self.own, &self.reference].map(|costs| median_of(costs, of) / self.output)
        };
        let is_counted = !self.row.input.is_empty();
        is_counted.then(|| [per_byte(|cost| cost.read), per_byte(|cost| cost.written)])
    }

    fn spread(&self, of: fn(&Cost, &Cost) -> f64) -> Spread {
        spread(&self.own, &self.reference, of)
    }
}

/// Of both costs in the same round.
fn spread(own: &[Cost], reference: &[Cost], of: impl Fn(&Cost, &Cost) -> f64) -> Spread {
    let pairs = own.iter().zip(reference);
    let values = sorted(pairs.map(|(own, reference)| of(own, reference)));
    Spread { median: median(&values), least: values[0], most: values[values.len() - 1] }
}

fn median_of(costs: &[Cost], of: fn(&Cost) -> f64) -> f64 {
    median(&sorted(costs.iter().map(of)))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}
