//! Binaries for Windows that linkers lay out by random flags, sections and features, and random tools before and after
//! they are split, joined and split again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kpack_artifact::verify::{Options, verify};
use kpack_core::ids;
use kpack_tests::fixture::{
    FatLibrary, Storage, WINDOWS_LINKERS, WindowsBuild, WindowsLinker, code_object,
};
use kpack_tests::process::try_run;
use kpack_tests::require;
use kpack_tests::windows::{free_headers, lengthen_stub, signature};
use object::LittleEndian as LE;
use object::pe;
use object::read::pe::{ImageNtHeaders, PeFile64};

use crate::layouts::random::{Outcome, each_seed};
use crate::windows_binaries::{Bench, is_split, runs, tools_find_nothing};

/// What is compiled and linked with the device code, besides the fixture's own host code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feature {
    /// A directory of thread-local storage.
    Tls,
    /// Imports that are resolved by the first call.
    Delayed,
    /// Sections with data, zeroes and code, of these alignments.
    Sections([u32; 3]),
    /// A Rich header, as Microsoft's linker writes it.
    Rich,
}

/// Reads variables of the thread as compilers do: by the index that the system gave the module.
const TLS: &str = r#"
typedef unsigned long long word;
unsigned _tls_index;
__attribute__((section(".tls$AAA"))) int first = 5;
__attribute__((section(".tls$ZZZ"))) int last = 37;
struct directory { const void *start, *end; unsigned *index; const void *const *callbacks; unsigned zeroes, flags; };
static const void *const callbacks[] = {0};
const struct directory _tls_used = {&first, &last + 1, &_tls_index, callbacks, 0, 0};
__declspec(dllexport) const struct directory *directory(void) { return &_tls_used; }
static int *of_thread(int *variable) {
    char **blocks;
    __asm__("movq %%gs:0x58, %0" : "=r"(blocks));
    return (int *)(blocks[_tls_index] + ((char *)variable - (char *)&first));
}
__declspec(dllexport) int fixture_more(void) { return *of_thread(&first) + *of_thread(&last); }
"#;

/// The helper that thunks of delayed imports call, and a call.
const DELAYED: &str = r#"
typedef unsigned long long word;
extern char __ImageBase;
struct descriptor { unsigned flags, name, module, slots, names, bound, unload, time; };
__declspec(dllimport) void *__stdcall LoadLibraryA(const char *);
__declspec(dllimport) void *__stdcall GetProcAddress(void *, const char *);
void *__delayLoadHelper2(const struct descriptor *delayed, void **slot) {
    char *base = &__ImageBase;
    word *names = (word *)(base + delayed->names);
    char *name = base + names[slot - (void **)(base + delayed->slots)] + 2;
    return *slot = GetProcAddress(LoadLibraryA(base + delayed->name), name);
}
int labs(int);
__declspec(dllexport) int fixture_more(void) { return labs(-42); }
"#;

const LIBRARY: &str = "LIBRARY msvcrt.dll\nEXPORTS\nlabs\n";

/// What such host code adds to the number that a DLL prints.
const MORE: u64 = 42;

impl Feature {
    /// Compiles it in a directory. Returns flags for the linker.
    fn flags(self, linker: WindowsLinker, directory: &Path) -> Result<Vec<String>> {
        let compile = |name: &str, text: &str| -> Result<String> {
            let source = directory.join(name);
            fs::write(&source, text)?;
            let object = source.with_extension("o");
            linker.compile(&source, &object)?;
            Ok(object.to_str().context("UTF-8")?.to_owned())
        };
        Ok(match self {
            Self::Tls => vec![compile("tls.c", TLS)?],
            Self::Delayed => {
                let object = compile("delayed.c", DELAYED)?;
                let library = directory.join("msvcrt.lib");
                fs::write(directory.join("msvcrt.def"), LIBRARY)?;
                let mut tool = Command::new("llvm-dlltool-19");
                tool.current_dir(directory).args(["-m", "i386:x86-64", "-d", "msvcrt.def", "-l"]);
                try_run(tool.arg(&library))?;
                let library = library.to_str().context("UTF-8")?.to_owned();
                let flag = match linker {
                    WindowsLinker::LldLink => "/delayload:msvcrt.dll",
                    _ => "-Wl,-Xlink=-delayload:msvcrt.dll",
                };
                vec![object, library, flag.to_owned()]
            }
            Self::Sections(alignments) => vec![compile("sections.s", &sections(alignments))?],
            Self::Rich => Vec::new(),
        })
    }
}

fn sections(alignments: [u32; 3]) -> String {
    let mut text = String::new();
    let names = [".a", ".a_long_name_of_a_section", ".zzzzzz"];
    let kinds = ["dr", "dw", "bw"];
    for ((name, kind), alignment) in names.iter().zip(kinds).zip(alignments) {
        let fill = match kind {
            "bw" => ".zero 9000",
            _ => ".fill 700, 8, 0x1234",
        };
        let _ = write!(text, ".section {name},\"{kind}\"\n.p2align {alignment}\n{fill}\n");
    }
    text
}

/// Inserts a Rich header before the signature, if the headers have room. Returns whether they have.
fn add_rich_header(binary: &Path) -> Result<bool> {
    let mut bytes = fs::read(binary)?;
    let key: u32 = 0x1357_9bdf;
    let words = [0x536e_6144 ^ key, key, key, key, 0x0103_6b14 ^ key, 7 ^ key, 0x6863_6952, key];
    let rich = Vec::from_iter(words.iter().flat_map(|word| word.to_le_bytes()));
    if free_headers(&bytes).len() < rich.len() {
        return Ok(false);
    }
    lengthen_stub(&mut bytes, &rich);
    Ok(fs::write(binary, bytes).map(|()| true)?)
}

/// Checks what Windows asks of an image, and wine does not: sections in ascending order, without holes, and what they
/// have in the file aligned and in the file.
pub(crate) fn is_loadable(binary: &Path) -> Result<()> {
    let bytes = fs::read(binary)?;
    let file = PeFile64::parse(&*bytes)?;
    let optional = file.nt_headers().optional_header();
    let headers = optional.size_of_headers.get(LE);
    let (align, file_align) = (optional.section_alignment.get(LE), optional.file_alignment.get(LE));
    let sections = Vec::from_iter(file.section_table().iter());
    let table = signature(&bytes)
        + 24
        + usize::from(file.nt_headers().file_header.size_of_optional_header.get(LE));
    ensure!(table + 40 * sections.len() <= headers as usize, "section headers past the headers");
    ensure!(headers.is_multiple_of(file_align));
    let mut next = headers.next_multiple_of(align);
    let mut in_file = headers;
    for section in &sections {
        let name = String::from_utf8_lossy(&section.name).into_owned();
        let (address, size) = (section.virtual_address.get(LE), section.virtual_size.get(LE));
        ensure!(address == next, "{name} at {address:#x}, not at {next:#x}");
        ensure!(size > 0, "{name} is empty");
        next = (address + size).next_multiple_of(align);
        let (offset, size) =
            (section.pointer_to_raw_data.get(LE), section.size_of_raw_data.get(LE));
        if size > 0 {
            ensure!(offset.is_multiple_of(file_align), "{name} at offset {offset:#x}");
            ensure!(offset >= in_file, "{name} at offset {offset:#x}, before {in_file:#x}");
            in_file = offset + size;
        }
        let zeroed =
            section.characteristics.get(LE).0 & pe::IMAGE_SCN_CNT_UNINITIALIZED_DATA.0 != 0;
        ensure!(!zeroed || size == 0, "{name} is zeroed and has bytes");
    }
    ensure!(in_file as usize <= bytes.len(), "sections end past the end of the file");
    ensure!(optional.size_of_image.get(LE) == next, "the size of the image");
    Ok(())
}

/// One flag of each row is chosen, by linker.
const GNU_FLAGS: &[&[&str]] = &[
    &["", "", "-s"],
    &["", "-g"],
    &["", "-Wl,--build-id"],
    &["", "-Wl,--disable-long-section-names"],
    &["", "", "", "-Wl,--disable-reloc-section,--disable-dynamicbase"],
    &["", "", "-Wl,--section-alignment,0x2000", "-Wl,--section-alignment,0x10000"],
    &["", "", "-Wl,--file-alignment,0x1000"],
    &["", "-Wl,--image-base,0x20000000"],
    &["", "-Wl,--gc-sections"],
    &["", "-Wl,--stack=0x200000"],
    &["", "-Wl,--no-insert-timestamp"],
    &["", "", "-Wl,-T,place.ld"],
];

const LLD_GNU_FLAGS: &[&[&str]] = &[
    &["", "", "-s"],
    &["", "-g"],
    &["", "-Wl,--build-id"],
    &["", "", "", "-Wl,--disable-reloc-section,--disable-dynamicbase"],
    &["", "-Wl,--section-alignment=0x2000", "-Wl,--section-alignment=0x10000"],
    &["", "-Wl,--file-alignment=0x1000"],
    &["", "-Wl,--image-base=0x20000000"],
    &["", "-Wl,--gc-sections"],
];

const LLD_LINK_FLAGS: &[&[&str]] = &[
    &["", "", "/debug /pdb:vec.pdb", "/debug:dwarf", "/debug:symtab"],
    &["", "/release"],
    &["", "", "", "/fixed"],
    &["", "/align:8192", "/align:65536"],
    &["", "/filealign:4096", "/filealign:1024"],
    &["", "/base:0x20000000"],
    &["", "/merge:.pdata=.rdata", "/merge:.zzzzzz=.data"],
    &["", "/brepro", "/timestamp:1"],
    &["", "/opt:noref", "/opt:icf"],
    &["", "/section:.a,ER", "/section:.hipFatBinSegment,RW"],
    &["", "/stub:stub.bin"],
];

/// Where a linker script puts the device code.
const PLACES: &[&str] = &[
    "BEFORE .text",
    "AFTER .text",
    "AFTER .data",
    "BEFORE .rdata",
    "AFTER .pdata",
    "AFTER .bss",
    "AFTER .idata",
    "BEFORE .reloc",
    "AFTER .tls",
];

/// Tools, for binaries before the split, after it, and after the join.
const TOOLS: &[&[&str]] = &[
    &["x86_64-w64-mingw32-strip"],
    &["x86_64-w64-mingw32-strip", "--strip-debug"],
    &["x86_64-w64-mingw32-objcopy"],
    &["x86_64-w64-mingw32-objcopy", "--remove-section", ".a"],
    &["llvm-strip-19"],
    &["llvm-strip-19", "--strip-debug"],
    &["llvm-objcopy-19"],
];

/// Why a layout may be refused after tools changed a joined binary.
const REFUSAL: &str = "another tool changed its sections";

type Tool = &'static [&'static str];

/// What is done with the layout of a seed.
#[derive(Debug)]
struct Choice {
    linker: WindowsLinker,
    is_program: bool,
    features: Vec<Feature>,
    flags: Vec<&'static str>,
    place: &'static str,
    /// For each wrapper, how its bundle is stored, and the bytes of code for each target.
    wrappers: Vec<(Storage, usize)>,
    /// Tools before the split, after it, and after the join.
    tools: [Vec<Tool>; 3],
    targets: &'static [&'static str],
    /// Whether wine loads it, which takes a second each time.
    runs: bool,
}

impl Choice {
    fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let linker = WINDOWS_LINKERS[random.usize(0..3)];
        let rows = match linker {
            WindowsLinker::Gnu => GNU_FLAGS,
            WindowsLinker::LldGnu => LLD_GNU_FLAGS,
            WindowsLinker::LldLink => LLD_LINK_FLAGS,
        };
        let flags = rows.iter().map(|row| row[random.usize(0..row.len())]);
        let flags = Vec::from_iter(flags.flat_map(|flag| flag.split_whitespace()));
        let mut features = Vec::new();
        if random.bool() {
            features.push(Feature::Sections([(); 3].map(|()| random.u32(0..13))));
        }
        match random.u8(0..4) {
            0 => features.push(Feature::Tls),
            1 if linker != WindowsLinker::Gnu => features.push(Feature::Delayed),
            _ => {}
        }
        if random.u8(0..3) == 0 {
            features.push(Feature::Rich);
        }
        let wrappers = (0..random.usize(1..5)).map(|_| {
            let storage = [Storage::Plain, Storage::Plain, Storage::Zstd(2)][random.usize(0..3)];
            (storage, [64, 3000, 20_000, 100_000][random.usize(0..4)])
        });
        let wrappers = wrappers.collect();
        let tools = [(); 3].map(|()| {
            let count = random.usize(0..3);
            Vec::from_iter((0..count).map(|_| TOOLS[random.usize(0..TOOLS.len())]))
        });
        Self {
            linker,
            is_program: random.bool(),
            features,
            flags,
            place: PLACES[random.usize(0..PLACES.len())],
            wrappers,
            tools,
            targets: [&["gfx942"][..], &["gfx1100", "gfx942"]][random.usize(0..2)],
            runs: random.u8(0..4) == 0,
        }
    }

    fn library(&self) -> Result<FatLibrary> {
        let mut library = FatLibrary::new();
        for (index, (storage, size)) in self.wrappers.iter().enumerate() {
            let code = |target| Ok((target, code_object(target, &vec![index as u8 + 1; *size])?));
            let codes = ["gfx1100", "gfx942"].into_iter().map(code);
            library = library.wrapper(*storage, codes.collect::<Result<Vec<_>>>()?);
        }
        Ok(library)
    }

    fn bench(&self) -> Result<Bench> {
        let scratch = tempfile::tempdir()?;
        let mut flags = Vec::new();
        for feature in &self.features {
            flags.extend(feature.flags(self.linker, scratch.path())?);
        }
        let (script, stub) = (scratch.path().join("place.ld"), scratch.path().join("stub.bin"));
        let text =
            format!("SECTIONS {{ .hip_fatbin : {{ *(.hip_fatbin) }} }} INSERT {};\n", self.place);
        fs::write(&script, text)?;
        fs::write(&stub, [&b"MZ"[..], &[0; 0xee]].concat())?;
        for flag in &self.flags {
            let flag = flag.replace("place.ld", &script.display().to_string());
            flags.push(flag.replace("stub.bin", &stub.display().to_string()));
        }
        let flags = Vec::from_iter(flags.iter().map(String::as_str));
        let build =
            WindowsBuild { linker: self.linker, is_program: self.is_program, flags: &flags };
        let bench = Bench::new(&self.library()?, build)?;
        if self.features.contains(&Feature::Rich) {
            for path in [bench.path(), bench.original.clone()] {
                add_rich_header(&path)?;
            }
        }
        Ok(bench)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fat,
    Split,
    Joined,
}

/// A binary on its way, beside one that is never split but treated by the same tools.
struct Trial {
    bench: Bench,
    /// What the unsplit binary prints; `None` if it is not run.
    fat: Option<Vec<String>>,
    state: State,
    /// Whether a tool has changed it after the join.
    may_be_refused: bool,
    done: Vec<String>,
}

impl Trial {
    fn run(&mut self, choice: &Choice) -> Result<()> {
        let [before, between, after] = &choice.tools;
        self.tools(before)?;
        self.split()?;
        self.tools(between)?;
        let split = fs::read(self.bench.path())?;
        self.done.push(format!("join {:?}", choice.targets));
        self.bench.join(choice.targets).context("join")?;
        self.state = State::Joined;
        self.check(true).context("joined")?;
        let joined = fs::read(self.bench.path())?;
        self.split().context("again")?;
        ensure!(fs::read(self.bench.path())? == split, "another split binary");
        fs::write(self.bench.path(), joined)?;
        self.state = State::Joined;
        if self.tools(after)? > 0 {
            self.may_be_refused = true;
            self.split().context("after tools")?;
        }
        Ok(())
    }

    fn split(&mut self) -> Result<()> {
        self.done.push("split".to_owned());
        self.bench.split().context("split")?;
        self.state = State::Split;
        self.check(true)
    }

    /// Runs tools; gives how many of them changed the binary.
    fn tools(&mut self, tools: &[Tool]) -> Result<usize> {
        let before = self.done.len();
        for words in tools.iter().filter(|words| require::tool(words[0])) {
            let apply = |path: &Path| try_run(Command::new(words[0]).args(&words[1..]).arg(path));
            let control = fs::read(&self.bench.original)?;
            let is_sound = apply(&self.bench.original).is_ok()
                && is_loadable(&self.bench.original).is_ok()
                && match &self.fat {
                    Some(fat) => runs(&self.bench.original).is_ok_and(|lines| lines == *fat),
                    None => true,
                };
            if !is_sound {
                // It breaks the unsplit binary.
                fs::write(&self.bench.original, control)?;
                continue;
            }
            self.done.push(words.join(" "));
            apply(&self.bench.path())?;
            self.check(false).with_context(|| words.join(" "))?;
        }
        Ok(self.done.len() - before)
    }

    /// Nothing finds anything wrong with it. Tools may leave a checksum that is not true.
    fn check(&self, is_new: bool) -> Result<()> {
        let path = self.bench.path();
        is_loadable(&path)?;
        tools_find_nothing(&path)?;
        if self.state != State::Fat {
            let mut options = Options::default();
            options.against = Some(self.bench.original.clone());
            let report = verify(std::slice::from_ref(&path), &options, &())?;
            ensure!(report.holds(), "{report:#?}");
            let mut findings = report.findings.iter();
            let is_stale = findings.any(|found| found.id == ids::STALE_CHECKSUM);
            ensure!(!is_new || !is_stale, "its checksum is stale");
        }
        let Some(fat) = &self.fat else {
            return Ok(());
        };
        let lines = runs(&path)?;
        if self.state == State::Split {
            return is_split(fat, &lines);
        }
        ensure!(lines.len() == fat.len() && lines.last() == fat.last(), "{lines:?}");
        ensure!(lines[0].starts_with("FPIH 0 "), "{lines:?}");
        Ok(())
    }
}

/// Builds the layout of a seed, runs tools on it, and checks it after each step.
fn check(seed: u64) -> Result<Outcome> {
    let choice = Choice::of(seed);
    if !choice.linker.is_there() || !require::tool("llvm-dlltool-19") {
        return Ok(Outcome::LeftOut(format!("no {:?}", choice.linker)));
    }
    let bench = match choice.bench() {
        Ok(bench) => bench,
        Err(error) => return Ok(Outcome::LeftOut(format!("{error:#}"))),
    };
    if let Err(error) = is_loadable(&bench.original) {
        return Ok(Outcome::LeftOut(format!("{error:#}")));
    }
    let fat = choice.runs.then(|| runs(&bench.original)).transpose();
    let fat = match fat {
        Ok(fat) => fat,
        Err(error) => return Ok(Outcome::LeftOut(format!("{error:#}"))),
    };
    let mut trial =
        Trial { bench, fat, state: State::Fat, may_be_refused: false, done: Vec::new() };
    match trial.run(&choice) {
        Ok(()) => Ok(Outcome::Held),
        Err(error) => {
            let text = format!("{error:#}");
            if trial.may_be_refused && text.contains(REFUSAL) && !text.contains("bug in kpack") {
                return Ok(Outcome::Refused(text));
            }
            let done = trial.done.join("\n  ");
            bail!("KPACK_SEEDS={seed}..{}\n{choice:#?}\n  {done}\n{text}", seed + 1)
        }
    }
}

/// Of the seeds in `KPACK_SEEDS`, such as `0..500`.
#[test]
fn random_layouts_and_tools() -> Result<()> {
    // Each of the linkers needs it.
    if !require::tool(kpack_tests::windows::COMPILER) {
        return Ok(());
    }
    each_seed(10, check)
}

/// A DLL with a feature, split and joined, runs as before.
fn named(linkers: &[WindowsLinker], feature: Feature, expected: u64) -> Result<()> {
    for linker in linkers.iter().copied().filter(|linker| linker.is_there()) {
        let scratch = tempfile::tempdir()?;
        let flags = feature.flags(linker, scratch.path())?;
        let flags = Vec::from_iter(flags.iter().map(String::as_str));
        let build = WindowsBuild { linker, is_program: false, flags: &flags };
        let bench = Bench::new(&crate::windows_binaries::library(), build)?;
        if feature == Feature::Rich {
            for path in [bench.path(), bench.original.clone()] {
                ensure!(add_rich_header(&path)?, "no room");
            }
        }
        if kpack_tests::fixture::runs_windows_programs() {
            let lines = runs(&bench.original)?;
            ensure!(
                lines.last().is_some_and(|last| *last == format!("host {expected}")),
                "{lines:?}"
            );
        }
        let what = || format!("{linker:?} {feature:?}");
        bench.check().with_context(what)?;
        is_loadable(&bench.path()).with_context(what)?;
        bench.check_join().with_context(what)?;
    }
    Ok(())
}

/// What the fixture's host code prints.
const HOST: u64 = 22;

#[test]
fn thread_local_storage() -> Result<()> {
    named(&WINDOWS_LINKERS, Feature::Tls, HOST + MORE)
}

#[test]
fn delayed_imports() -> Result<()> {
    if !require::tool("llvm-dlltool-19") {
        return Ok(());
    }
    named(&[WindowsLinker::LldGnu, WindowsLinker::LldLink], Feature::Delayed, HOST + MORE)
}

#[test]
fn rich_headers() -> Result<()> {
    named(&WINDOWS_LINKERS, Feature::Rich, HOST)
}
