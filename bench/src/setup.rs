//! What the comparisons read: made of real libraries, in the directory of their group.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kpack_tests::corpus::{self, Library};
use kpack_tests::fixture::{
    FatLibrary, Storage, WindowsBuild, WindowsLinker, add_and_mul, bundle, code_object,
    library_file, rocm_split,
};
use kpack_tests::page::repository;
use kpack_tests::process::{cargo, try_run};
use kpack_tests::python::{self, Tools};
use kpack_tests::runtime;
use serde_json::{Value, json};
use walkdir::WalkDir;

use crate::comparison::Setup;
use crate::corpus::{archives, largest_of_each};
use crate::{build, stored};

/// The GPU whose code objects of the largest library are used where one is enough.
const TARGET: &str = "gfx1030";

/// A code object with its target.
type TargetCode = (String, Vec<u8>);

/// Runs a shell script in the group's directory.
fn run(setup: &Setup<'_>, script: &str) -> Result<()> {
    try_run(&mut setup.command(script)).map(drop)
}

fn corpus_library(package: &str) -> Result<Library> {
    let mut libraries = corpus::libraries()?.into_iter();
    libraries
        .find(|library| library.package == package)
        .with_context(|| format!("{package} is not in the corpus"))
}

/// Splits copies of the libraries in `lib`, and returns the code objects that kpack stores.
fn code_objects_of_copies(setup: &Setup<'_>) -> Result<Vec<TargetCode>> {
    let script = "mkdir split; cp -r lib split
        kpack split --quiet --module bench --prefix split split/lib/*.so";
    run(setup, script)?;
    let mut found = Vec::new();
    for archive in archives(&setup.work.join("split/lib"))? {
        found.extend(code_objects(&archive)?);
    }
    run(setup, "rm -r split")?;
    Ok(found)
}

fn code_objects(archive: &Path) -> Result<Vec<TargetCode>> {
    let stored = stored::read(archive)?.into_iter();
    Ok(stored.map(|stored| (stored.target, stored.code)).collect())
}

/// Makes a virtual environment with 300 distributions of 200 files, of which one has split libraries, and further archives
/// that are sparse files of 1 GB.
const ENVIRONMENT: &str = r#"
import pathlib, sys
site = next(pathlib.Path("env/lib").glob("python3*/site-packages"))
host = pathlib.Path("host")
def distribution(name, fields, files):
    for path, size, source in files:
        to = site / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(source)
        with to.open("r+b") as file:
            file.truncate(size)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + fields
    (info / "METADATA").write_text(text)
    (info / "INSTALLER").write_text("pip\n")
    rows = [f"{path},,{size}\n" for path, size, _ in files]
    (info / "RECORD").write_text("".join(rows))
for number in range(298):
    name = f"package_{number}"
    files = [(f"{name}/module_{file}.py", 100, b"") for file in range(200)]
    distribution(name, "", files)
library = lambda path: (f"host/{path.relative_to(host)}", path.stat().st_size, path.read_bytes())
libraries = [library(path) for path in host.rglob("*.so")]
archives = [library(path) for path in host.rglob("*_gfx1100.kpack")]
archives += [(f"host/lib/.kpack/large{number}_gfx1100.kpack", 1 << 30, b"") for number in range(20)]
extra = "Provides-Extra: device-gfx1100\nRequires-Dist: host-device-gfx1100==1.0; extra == 'device-gfx1100'\n"
distribution("host", extra, libraries)
distribution("host_device_gfx1100", "", archives)
"#;

/// The environment in `env`.
pub(crate) fn environment(setup: &Setup<'_>) -> Result<()> {
    for number in 0..20 {
        let code = code_object("gfx1100", &[number; 4096])?;
        let library = FatLibrary::new().wrapper(Storage::Plain, [("gfx1100", code)]);
        let name = format!("lib/lib{number}.so");
        library.build(&setup.work.join("host").join(&name))?;
        rocm_split(&library, &setup.work.join("host"), &name, &format!("group{number}"))?;
    }
    fs::write(setup.work.join("environment.py"), ENVIRONMENT)?;
    python::environment(&setup.work.join("env"), &["pip"])?;
    run(setup, "env/bin/python environment.py")
}

/// What an archive stores, one frame after another.
fn frames(archive: &Path) -> Result<Vec<u8>> {
    let stored = stored::read(archive)?.into_iter();
    Ok(Vec::from_iter(stored.map(|stored| stored.frame)).concat())
}

/// `library.so`: the largest library of the corpus.
pub(crate) fn largest(setup: &Setup<'_>) -> Result<()> {
    symlink(corpus_library(corpus::LARGEST)?.path, setup.work.join("library.so"))?;
    Ok(())
}

/// `lib` has libraries with compressed bundles, `frames` what is compressed in each of these, and
/// `objects` the code objects that kpack stores.
pub(crate) fn compressed(setup: &Setup<'_>) -> Result<()> {
    let Setup { work, .. } = setup;
    for directory in ["lib", "frames", "objects"] {
        fs::create_dir(work.join(directory))?;
    }
    let libraries = corpus::libraries()?.into_iter();
    for library in libraries.filter(|library| library.package == "bitsandbytes") {
        fs::copy(&library.path, work.join("lib").join(library.name()))?;
        let bytes = fs::read(&library.path)?;
        for (index, frame) in compressed_bundles(&bytes)?.into_iter().enumerate() {
            fs::write(work.join(format!("frames/{}.{index}.zst", library.name())), frame)?;
        }
    }
    for (index, (_, code)) in code_objects_of_copies(setup)?.iter().enumerate() {
        fs::write(work.join(format!("objects/{index}")), code)?;
    }
    Ok(())
}

/// What is in each bundle that clang compressed with zstd.
fn compressed_bundles(library: &[u8]) -> Result<Vec<&[u8]>> {
    let mut found = Vec::new();
    let mut rest = library;
    while let Some(start) = rest.windows(4).position(|window| window == b"CCOB") {
        rest = &rest[start..];
        // Version and method; then the size of all, of 4 bytes or of 8.
        let (header, size) = match rest[4..8] {
            [2, 0, 1, 0] => (24, u64::from(u32::from_le_bytes(rest[8..12].try_into()?))),
            [3, 0, 1, 0] => (32, u64::from_le_bytes(rest[8..16].try_into()?)),
            _ => bail!("a compressed bundle of an unknown kind"),
        };
        let (bundle, behind) = rest.split_at(usize::try_from(size)?);
        found.push(&bundle[header..]);
        rest = behind;
    }
    ensure!(!found.is_empty(), "a library without compressed bundles");
    Ok(found)
}

/// `library.so`: a library with four code objects.
pub(crate) fn small(setup: &Setup<'_>) -> Result<()> {
    let targets = ["gfx90a", "gfx1100"];
    add_and_mul(targets, targets).build(&setup.work.join("library.so"))
}

/// The program that loads kernels, `kpack-runtime/benches/load.rs`.
fn loading_program() -> Result<String> {
    let build = "bench --quiet --locked --package=kpack-runtime --bench=load --no-run --message-format=json";
    let mut build = cargo(&Vec::from_iter(build.split(' ')));
    let built = try_run(build.current_dir(repository()))?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["name"] == "load")
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .context("cargo names no program")
}

/// `bench.kpack`: the archive of the largest library for one GPU; `load`: a program that loads its kernels.
pub(crate) fn load(setup: &Setup<'_>) -> Result<()> {
    symlink(loading_program()?, setup.work.join("load"))?;
    largest(setup)?;
    let archive = split_largest(setup, &["--arch", TARGET])?;
    fs::rename(archive, setup.work.join("bench.kpack"))?;
    Ok(())
}

/// Where `load.rs` has room for a bundle.
const ROOM: &[u8] = b"room for a bundle of kpack's benchmark";

/// `plain` and `compressed`: a program with a module of 2 MB in a bundle; `bundle.ccob`: the latter's; `split/bin/load`: the
/// former, split; `module.kpack`: its archive.
pub(crate) fn modules(setup: &Setup<'_>) -> Result<()> {
    let program = fs::read(loading_program()?)?;
    // It is at the start of a page.
    let room = (0..program.len()).step_by(4096).find(|at| program[*at..].starts_with(ROOM));
    let room = room.context("load.rs has no room for a bundle")?;
    // Like instructions of 64 bits: few operations, more operands. It takes a quarter of its size when it is compressed.
    let mut state = 1u32;
    let mut instruction = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let operation = (state >> 27).wrapping_mul(0x9e37_79b9);
        [operation.to_le_bytes(), (state >> 21 & 63).to_le_bytes()].concat()
    };
    let payload = Vec::from_iter((0..1 << 18).flat_map(|_| instruction()));
    let code = [("gfx90a".to_owned(), code_object("gfx90a", &payload)?)];
    for (name, storage) in [("plain", Storage::Plain), ("compressed", Storage::Zstd(3))] {
        let content = bundle(storage, &code)?;
        let mut copy = program.clone();
        copy[room..][..content.len()].copy_from_slice(&content);
        fs::write(setup.work.join(name), copy)?;
        if name == "compressed" {
            fs::write(setup.work.join("bundle.ccob"), content)?;
        }
    }
    let script = "chmod +x plain compressed
        mkdir -p split/bin
        cp plain split/bin/load
        kpack split --quiet --module load --prefix split split/bin/load
        cp split/lib/.kpack/load_lib_gfx90a.kpack module.kpack";
    run(setup, script)
}

/// A shell script. Starts a HIP runtime with a library, on a machine with one GPU: the runtime loads all code, not only
/// that of kernels which are used.
const START: &str =
    "export STUB_HSA_GPUS=gfx1030 HIP_ENABLE_DEFERRED_LOADING=0 LD_LIBRARY_PATH=$PWD/$1
    exec $1/load $2 open init";

/// `rocm` and `kpack`: ROCm's HIP runtime over a stub of the HSA runtime, with either loader; `start`: what starts one
/// with a library; `fat` and `split`: the largest library, and a small one with one code object; `code.zst`: the kernels of both.
pub(crate) fn runtime(setup: &Setup<'_>) -> Result<()> {
    let loader = build::loader()?;
    for (name, loader) in [("rocm", None), ("kpack", Some(loader.as_path()))] {
        let directory = setup.work.join(name);
        fs::create_dir(&directory)?;
        let (runtime, hsa) = runtime::rocm(&directory, loader)?;
        runtime::build(&directory, &runtime, &hsa)?;
    }
    fs::write(setup.work.join("start"), START)?;
    let fat = setup.work.join("fat/lib");
    fs::create_dir_all(&fat)?;
    fs::copy(corpus_library(corpus::LARGEST)?.path, fat.join("library.so"))?;
    let code = repository().join("tests/fixtures/code-objects/dot.gfx11-generic.hsaco");
    let mut code = fs::read(code)?;
    // The same code, as for this GPU: what runtimes read is in `e_flags`.
    code[48..52].copy_from_slice(&0x36_u32.to_le_bytes());
    FatLibrary::new()
        .wrapper(Storage::Plain, [(TARGET, code)])
        .start_up(&["_Z3dotPfPKfS1_"])
        .flag(setup.work.join("rocm/libamdhip64.so.7"))
        .build(&fat.join("small.so"))?;
    let script = "cp -r fat split
        kpack split --quiet --module bench --prefix split --arch";
    run(setup, &format!("{script} {TARGET} lib/library.so lib/small.so"))?;
    let archive = setup.work.join(format!("split/lib/.kpack/bench_lib_{TARGET}.kpack"));
    Ok(fs::write(setup.work.join("code.zst"), frames(&archive)?)?)
}

/// `prefix`: the largest library, split; `copy`: joined for one GPU; `code.zst`: the code for that GPU, compressed.
pub(crate) fn join(setup: &Setup<'_>) -> Result<()> {
    largest(setup)?;
    let archive = split_largest(setup, &[])?;
    fs::write(setup.work.join("code.zst"), frames(&archive)?)?;
    run(setup, &format!("kpack join --arch {TARGET} --prefix prefix --output copy lib/library.so"))
}

/// `trimmed.so`: the largest library, trimmed for one GPU.
pub(crate) fn trim(setup: &Setup<'_>) -> Result<()> {
    largest(setup)?;
    let script = "cp -L library.so trimmed.so
        kpack trim --quiet --arch";
    run(setup, &format!("{script} {TARGET} trimmed.so"))
}

/// `trimmed.so`, as for [`trim`]; `prefix`: the largest library; `parts`: the same, staged in parts.
pub(crate) fn stage(setup: &Setup<'_>) -> Result<()> {
    trim(setup)?;
    run(
        setup,
        "mkdir -p prefix/lib
        cp -L library.so prefix/lib
        kpack stage --quiet --system-rocm --split prefix/lib/library.so --output-dir parts",
    )
}

/// `library.so`: RCCL of Debian experimental; `frames`: what is compressed in each of its bundles; `stays`: the code
/// objects for one GPU.
pub(crate) fn trim_compressed(setup: &Setup<'_>) -> Result<()> {
    let package = corpus::package_of("experimental", "librccl1")?;
    symlink(package, setup.work.join("package.deb"))?;
    run(
        setup,
        "dpkg-deb -x package.deb rccl
        mv rccl/usr/lib/*/librccl.so.1.* library.so
        rm -r rccl
        kpack extract --quiet --arch gfx1100 library.so --output-dir stays
        mkdir frames",
    )?;
    let bytes = fs::read(setup.work.join("library.so"))?;
    for (index, frame) in compressed_bundles(&bytes)?.into_iter().enumerate() {
        fs::write(setup.work.join(format!("frames/{index}.zst")), frame)?;
    }
    Ok(())
}

/// `10000`: a tree with that many files; `trimmed`: what is left of it; `goes`: the paths of the rest, in `tree`.
pub(crate) fn trim_tree(setup: &Setup<'_>) -> Result<()> {
    files(setup)?;
    run(
        setup,
        "cp -r 10000 trimmed
        kpack trim --quiet --arch gfx942 trimmed
        cd 10000
        find . -type f | while read -r file; do
            if [ ! -e \"../trimmed/$file\" ]; then printf '%s\\0' \"tree/$file\"; fi
        done > ../goes",
    )
}

/// `elf` and `pe`: a shared library and a DLL with the code of the largest library for one GPU, both split.
pub(crate) fn join_windows(setup: &Setup<'_>) -> Result<()> {
    largest(setup)?;
    let archive = split_largest(setup, &["--arch", TARGET])?;
    let library = library_of(&code_objects(&archive)?, 190_000_000, 0)?;
    library.build(&setup.work.join("elf/lib/bench.so"))?;
    let dll = WindowsBuild { linker: WindowsLinker::Gnu, is_program: false, flags: &[] };
    library.build_for_windows(dll, &setup.work.join("pe/bin/bench.dll"))?;
    let script = "rm -r prefix
        kpack split --quiet --module bench --prefix elf lib/bench.so
        kpack split --quiet --module bench --prefix pe bin/bench.dll";
    run(setup, script)
}

/// Splits `library.so` in `prefix`, and returns the archive for [`TARGET`].
fn split_largest(setup: &Setup<'_>, options: &[&str]) -> Result<PathBuf> {
    let prefix = setup.work.join("prefix");
    fs::create_dir_all(prefix.join("lib"))?;
    fs::copy(setup.work.join("library.so"), prefix.join("lib/library.so"))?;
    let options = options.join(" ");
    run(setup, &format!("kpack split --module bench --prefix prefix {options} lib/library.so"))?;
    Ok(prefix.join(format!("lib/.kpack/bench_lib_{TARGET}.kpack")))
}

/// `tools`: Python's own tools for wheels; the wheels, each in a directory named after its package.
pub(crate) fn wheels(setup: &Setup<'_>) -> Result<()> {
    Tools::install(setup.work.join("tools"))?;
    for package in ["cyllama-rocm", "bitsandbytes"] {
        let wheel = corpus::wheel(package)?;
        let directory = wheel.parent().context("a wheel is in a directory")?;
        symlink(directory, setup.work.join(package))?;
    }
    Ok(())
}

/// Empty packages, named after the only build dependency that each has and does not use.
pub(crate) fn build_dependencies(setup: &Setup<'_>) -> Result<()> {
    let own = repository().join("kpack-build");
    let packages = [
        ("kpack-build", format!("{{ path = {own:?} }}")),
        ("cc", "\"1\"".to_owned()),
        ("bindgen", "\"0.72\"".to_owned()),
    ];
    for (name, dependency) in &packages {
        let directory = setup.work.join(name);
        fs::create_dir_all(directory.join("src"))?;
        let manifest = format!(
            "[package]\nname = \"uses-{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [build-dependencies]\n{name} = {dependency}\n\n[workspace]\n"
        );
        fs::write(directory.join("Cargo.toml"), manifest)?;
        fs::write(directory.join("build.rs"), "fn main() {}\n")?;
        fs::write(directory.join("src/lib.rs"), "")?;
        run(setup, &format!("cd {name}; cargo fetch --quiet"))?;
    }
    Ok(())
}

/// Fat binaries in the tree.
const BINARIES: usize = 20;

/// `blas_lib`: an artifact directory with real fat binaries in several modules and a kernel database of real
/// code objects; `shards`: split, one half of the targets in each shard; `recombined` by `groups.json`; and
/// `frames`: the compressed frames of each of its archives.
pub(crate) fn tree(setup: &Setup<'_>) -> Result<()> {
    let Setup { work, .. } = setup;
    let mut libraries = corpus::libraries()?;
    libraries.retain(|library| library.package != corpus::LARGEST);
    let artifact = work.join("blas_lib");
    let mut prefixes = Vec::new();
    for index in 0..BINARIES {
        let library = &libraries[index % libraries.len()];
        // A module would store duplicates only once, and no two may be installed in one place.
        let module = index / libraries.len();
        let prefix = format!("math-libs/module{module}/stage");
        let directory = artifact.join(&prefix).join(format!("lib/{module}"));
        fs::create_dir_all(&directory)?;
        fs::copy(&library.path, directory.join(library.name()))?;
        prefixes.push(prefix);
    }
    prefixes.dedup();
    run(setup, "mkdir lib")?;
    for library in largest_of_each()? {
        if library.package == corpus::LARGEST {
            continue;
        }
        fs::copy(&library.path, work.join("lib").join(library.name()))?;
    }
    let code_objects = code_objects_of_copies(setup)?;
    add_database(&artifact, prefixes, &code_objects, (1000, 40))?;

    run(setup, "mkdir -p shards/one shards/two
        kpack artifact split --quiet --artifact-prefix blas_lib --artifact-dir blas_lib --output-dir shards/one
        cp -r shards/one/blas_lib_generic shards/two")?;
    let names = fs::read_dir(work.join("shards/one"))?.map(|entry| {
        let name = entry?.file_name().to_string_lossy().into_owned();
        Ok(name)
    });
    let mut targets: Vec<String> = names.collect::<Result<Vec<_>>>()?;
    targets.retain(|name| name != "blas_lib_generic");
    targets.sort();
    let (one, two) = targets.split_at(targets.len() / 2);
    for name in two {
        fs::rename(work.join("shards/one").join(name), work.join("shards/two").join(name))?;
    }
    let group = |names: &[String]| {
        let targets: Vec<&str> =
            names.iter().filter_map(|name| name.strip_prefix("blas_lib_")).collect();
        json!({"architectures": targets})
    };
    let groups = json!({"primary_shard": "one", "architecture_groups": {"first": group(one), "second": group(two)}});
    fs::write(work.join("groups.json"), groups.to_string())?;
    run(setup, "mkdir frames
        kpack artifact recombine --quiet --input-shards-dir shards --config groups.json --output-dir recombined")?;
    for (index, file) in WalkDir::new(work.join("recombined")).into_iter().enumerate() {
        let file = file?.into_path();
        if file.extension().is_some_and(|extension| extension == "kpack") {
            fs::write(work.join(format!("frames/{index}.zst")), frames(&file)?)?;
        }
    }
    Ok(())
}

/// Adds a Tensile database with pairs of a code object and a library file with solutions; and the manifest.
fn add_database(
    artifact: &Path,
    mut prefixes: Vec<String>,
    code_objects: &[TargetCode],
    (pairs, solutions): (usize, usize),
) -> Result<()> {
    let prefix = "math-libs/BLAS/rocBLAS/stage";
    let directory = artifact.join(prefix).join("lib/rocblas/library");
    fs::create_dir_all(&directory)?;
    for (index, (target, code)) in code_objects.iter().cycle().take(pairs).enumerate() {
        let stem = format!("TensileLibrary_Type_SS_Contraction_l_Ailk_Bljk_{index:06}_{target}");
        fs::write(directory.join(format!("{stem}.co")), code)?;
        let library = library_file(target, &vec![stem.as_str(); solutions])?;
        fs::write(directory.join(format!("{stem}.dat")), library)?;
    }
    prefixes.push(prefix.to_owned());
    fs::write(artifact.join("artifact_manifest.txt"), prefixes.join("\n") + "\n")?;
    Ok(())
}

/// Directories named after the number of files in each: artifact directories with a kernel database.
pub(crate) fn files(setup: &Setup<'_>) -> Result<()> {
    let code = |target: &&str| Ok(((*target).to_owned(), code_object(target, &[7; 1000])?));
    let code_objects: Vec<TargetCode> =
        ["gfx90a", "gfx942", "gfx1100", "gfx1201"].iter().map(code).collect::<Result<_>>()?;
    for row in setup.rows {
        let artifact = setup.work.join(row.size.to_string());
        let pairs = row.size as usize / 2;
        add_database(&artifact, Vec::new(), &code_objects, (pairs, 1))?;
    }
    Ok(())
}

/// Directories named after the megabytes of code in each: libraries of 1 GB at most, with a real library's code
/// objects. No two are the same, since kpack would store them once.
pub(crate) fn bytes(setup: &Setup<'_>) -> Result<()> {
    largest(setup)?;
    let archive = split_largest(setup, &["--arch", TARGET])?;
    let code_objects = code_objects(&archive)?;
    run(setup, "rm -r prefix")?;
    for row in setup.rows {
        for index in 0..row.size.div_ceil(1000) {
            let size = (row.size - index * 1000).min(1000) as usize * 1_000_000;
            let library = library_of(&code_objects, size, index)?;
            let sources = setup.work.join("sources");
            library.write_sources(&sources)?;
            drop(library);
            let size = row.size;
            run(
                setup,
                &format!(
                    "mkdir -p {size}
                cd sources; cc -shared -fPIC -O1 device.s host.c -o ../{size}/lib{index}.so
                cd ..; rm -r sources"
                ),
            )?;
        }
    }
    Ok(())
}

/// A library with code objects of hardly less than `size` bytes together.
fn library_of(code_objects: &[TargetCode], size: usize, number: u32) -> Result<FatLibrary> {
    let smallest = code_objects.iter().map(|(_, code)| code.len()).min().unwrap_or_default();
    let mut library = FatLibrary::new();
    let mut left = size;
    for (index, (target, code)) in code_objects.iter().cycle().enumerate() {
        if left < smallest {
            break;
        }
        if code.len() > left {
            continue;
        }
        left -= code.len();
        let mut code = code.clone();
        // Bytes of an ELF header without a meaning.
        let distinct = number << 20 | u32::try_from(index)?;
        code[9..13].copy_from_slice(&distinct.to_le_bytes());
        library = library.wrapper(Storage::Plain, [(target.as_str(), code)]);
    }
    Ok(library)
}

/// The targets of the machines of a build, which share one host library each.
const SHARDS: [(&str, &[&str]); 3] = [
    ("linux-a", &["gfx1030", "gfx1100", "gfx1101"]),
    ("linux-b", &["gfx906", "gfx908", "gfx90a"]),
    ("linux-c", &["gfx942", "gfx1200"]),
];

/// Size in bytes of a component's device code for one target, and of its host files besides the library.
const MACHINE_CODE: usize = 16_000_000;
const MACHINE_HOST: usize = 24_000_000;

/// Directories named after the number of components: `shards`, as three machines split them; `packages`, merged;
/// and `store`, packed. The bytes are those of a real library's code objects.
pub(crate) fn machines(setup: &Setup<'_>) -> Result<()> {
    largest(setup)?;
    let archive = split_largest(setup, &["--arch", TARGET])?;
    let real: Vec<u8> = code_objects(&archive)?.into_iter().flat_map(|(_, code)| code).collect();
    run(setup, "rm -r prefix library.so")?;
    let groups = SHARDS.map(|(shard, targets)| (shard, json!({"architectures": targets})));
    let groups = json!({
        "primary_shard": SHARDS[0].0,
        "architecture_groups": serde_json::Map::from_iter(groups.map(|(name, value)| (name.to_owned(), value))),
    });
    fs::write(setup.work.join("groups.json"), groups.to_string())?;
    let sizes: BTreeSet<u32> = setup.rows.iter().map(|row| row.size).collect();
    for size in sizes {
        for number in 0..size {
            component(setup, &real, size, number)?;
        }
        run(setup, &format!(
            "cd {size}
            kpack artifact recombine --quiet --input-shards-dir shards --config ../groups.json --output-dir packages
            kpack artifact pack --quiet packages --output-dir store"
        ))?;
    }
    Ok(())
}

/// Adds a component to the shards in the directory `size`.
fn component(setup: &Setup<'_>, real: &[u8], size: u32, number: u32) -> Result<()> {
    let name = format!("c{number}_lib");
    let prefix = setup.work.join(format!("built/{name}/{name}/stage"));
    let part = |at: usize, length: usize| -> Vec<u8> {
        let start = (at * 7919 * 4096) % (real.len() / 2);
        let mut bytes: Vec<u8> = real.iter().skip(start).cycle().take(length).copied().collect();
        bytes[..8].copy_from_slice(&((u64::from(number) << 8) | at as u64).to_le_bytes());
        bytes
    };
    let targets = SHARDS.iter().flat_map(|(_, targets)| targets.iter());
    let code = targets.enumerate().map(|(index, target)| {
        Ok(((*target).to_owned(), code_object(target, &part(index, MACHINE_CODE))?))
    });
    let code = code.collect::<Result<Vec<TargetCode>>>()?;
    FatLibrary::new()
        .wrapper(Storage::Plain, code)
        .build(&prefix.join(format!("lib/lib{name}.so")))?;
    fs::create_dir_all(prefix.join(format!("share/{name}")))?;
    fs::write(prefix.join(format!("share/{name}/data")), part(100, MACHINE_HOST))?;
    let list = setup.work.join(format!("built/{name}/artifact_manifest.txt"));
    fs::write(list, format!("{name}/stage\n"))?;
    for (shard, targets) in SHARDS {
        let targets = targets.join(",");
        run(
            setup,
            &format!(
                "kpack artifact split --quiet --artifact-prefix {name} --artifact-dir built/{name} --gpu-targets {targets} \
                --output-dir {size}/shards/{shard}"
            ),
        )?;
    }
    run(setup, "rm -r built")
}
