//! The conformance vectors in `conformance`: what readers of archives and markers must answer. This module writes the
//! files, and asks loaders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::fixture::{
    FatLibrary, RocmScheme, Storage, TargetCode, code_object, rocm_archive, rocm_split, tiny,
    tiny_dll,
};
use crate::process::try_run;
use crate::tree::Tree;
use crate::windows;

/// Where the vectors are in the repository.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance")
}

/// The readers whose answers the vectors list. Tests ask the first two; the answers of the third are those that its
/// source gives.
const READERS: [&str; 3] = [KPACK, ROCM_7_14, ROCM];
/// kpack's loader.
pub const KPACK: &str = "kpack";
/// The loader of ROCm 7.14.
pub const ROCM_7_14: &str = "ROCm 7.14";
/// ROCm's loader with pull request 9953 of ROCm/rocm-systems.
const ROCM: &str = "ROCm since August 2026";

const ARCHIVE: &str = "lib/.kpack/vec_lib_gfx1100.kpack";
const PATTERN: &str = ".kpack/vec_lib_@GFXARCH@.kpack";
const KERNEL: &str = "lib/libvec.so";
const DLL: &str = "bin/vec.dll";
/// The machines of split binaries.
const LINUX: &str = "x86-64";
const WINDOWS: &str = "x86-64 Windows";
/// What the symbol of a wrapper begins with.
const WRAPPER: &str = "wrapper_";

/// The files, each in `files`, and the vectors.
#[derive(Default)]
struct Writer {
    files: BTreeMap<String, Vec<u8>>,
    vectors: Vec<Value>,
}

/// What a vector asks, if it is not code for gfx1100 of wrapper 0.
struct Asked<'a> {
    files: &'a [(&'a str, &'a str)],
    marker: &'a str,
    /// The binary, if a wrapper in it leads to the marker.
    image: Option<&'a str>,
    index: u32,
    environment: &'a [(&'a str, &'a str)],
    isas: &'a [&'a str],
}

impl Default for Asked<'_> {
    fn default() -> Self {
        let files = &[(ARCHIVE, "plain.kpack")];
        let isas = &["gfx1100"];
        Self { files, marker: "plain.marker", image: None, index: 0, environment: &[], isas }
    }
}

/// Code of a file, or an error's number; `None` is any error.
fn code(name: &str) -> Value {
    json!({"code": format!("{name}.co")})
}
fn error(number: Option<u32>) -> Value {
    number.map_or(json!({"error": "any"}), |number| json!({"error": number}))
}

impl Writer {
    fn add(&mut self, name: &str, bytes: Vec<u8>) {
        self.files.insert(format!("files/{name}"), bytes);
    }

    /// What all readers answer.
    fn all(&mut self, name: &str, about: &str, asked: &Asked<'_>, answer: Value) {
        self.vector(name, about, asked, json!([{"answer": answer, "of": READERS}]));
    }

    /// Two answers, with the readers that give them, and why another reader may do as either does.
    fn differ(
        &mut self,
        (name, about): (&str, &str),
        asked: &Asked<'_>,
        [(one, of_one), (other, of_other)]: [(Value, &[&str]); 2],
        why: &str,
    ) {
        let answers = json!([
            {"answer": one, "of": of_one},
            {"answer": other, "of": of_other, "why": why},
        ]);
        self.vector(name, about, asked, answers);
    }

    fn vector(&mut self, name: &str, about: &str, asked: &Asked<'_>, answers: Value) {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value)));
            Value::Object(pairs.collect())
        };
        let mut vector = json!({
            "name": name, "about": about, "files": map(asked.files), "marker": asked.marker, "binary": KERNEL,
            "index": asked.index, "environment": map(asked.environment), "isas": asked.isas, "answers": answers,
        });
        if let Some(image) = asked.image {
            let wrapper = format!("{WRAPPER}{}", asked.index);
            let is_dll = image.ends_with(".dll");
            let machine = if is_dll { WINDOWS } else { LINUX };
            vector["marker"] = Value::Null;
            vector["image"] = json!({"file": image, "machine": machine, "wrapper": wrapper});
            if is_dll {
                vector["binary"] = json!(DLL);
            }
        }
        self.vectors.push(vector);
    }
}

/// All files below `conformance` that this module writes, by path. `kpack` splits one of them.
///
/// # Errors
/// A fixture cannot be made.
pub fn files(kpack: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut writer = Writer::default();
    let kernels = |target: &str, names: &[&str]| -> Result<Vec<TargetCode>> {
        let kernels = names.iter().enumerate();
        let kernel = |(index, name): (usize, &&str)| {
            Ok((format!("{KERNEL}#{index}"), code_object(target, name.as_bytes())?))
        };
        kernels.map(kernel).collect()
    };
    let plain = kernels("gfx1100", &["add", "mul"])?;
    for (name, (_, code)) in ["add", "mul"].into_iter().zip(&plain) {
        writer.add(&format!("{name}.co"), code.clone());
    }
    let archive = |target: &str, kernels: &[TargetCode], scheme| {
        rocm_archive("vec_lib", target, kernels, scheme)
    };
    let sound = archive("gfx1100", &plain, RocmScheme::None)?;
    let zstd = archive("gfx1100", &plain, RocmScheme::Zstd)?;
    writer.add("plain.kpack", sound.clone());
    writer.add("zstd.kpack", zstd.clone());
    for (name, target) in [("xnack", "gfx90a:xnack+"), ("gfx90a", "gfx90a")] {
        let own = kernels(target, &[name])?;
        writer.add(&format!("{name}.co"), own[0].1.clone());
        writer.add(&format!("{name}.kpack"), archive(target, &own, RocmScheme::None)?);
        if name == "xnack" {
            let damaged = damage_frame(archive(target, &own, RocmScheme::Zstd)?);
            writer.add("damaged-xnack.kpack", damaged);
        }
    }
    let other = kernels("gfx1100", &["other"])?;
    writer.add("other.co", other[0].1.clone());
    writer.add("other.kpack", archive("gfx1100", &other, RocmScheme::None)?);
    let unrelated = [("lib/libelse.so#0".to_owned(), other[0].1.clone())];
    writer.add("unrelated.kpack", archive("gfx1100", &unrelated, RocmScheme::None)?);

    let marker = |value: Value| rmp_serde::to_vec(&value);
    let paths = |paths: Value| json!({"kpack_search_paths": paths, "kernel_name": KERNEL});
    writer.add("plain.marker", marker(paths(json!([PATTERN])))?);
    let two = json!(["missing/@GFXARCH@.kpack", "../share/a/@GFXARCH@.kpack", PATTERN]);
    writer.add("two-paths.marker", marker(paths(two))?);
    writer.add("odd-path.marker", marker(paths(json!([7, PATTERN])))?);
    let mut unknown = paths(json!([PATTERN]));
    unknown["new_key"] = json!({"a": [1, 2]});
    writer.add("unknown-key.marker", marker(unknown)?);
    writer.add("without-name.marker", marker(json!({"kpack_search_paths": [PATTERN]}))?);
    writer.add("without-paths.marker", marker(json!({"kernel_name": KERNEL}))?);
    writer.add("number.marker", vec![0x07]);
    let mut of_another_build = marker(paths(json!([PATTERN])))?;
    of_another_build[0] += 1;
    of_another_build.extend(b"\xabcode_blake3\x81\xa7gfx1100\xc4\x0812345678");
    writer.add("code-ids.marker", of_another_build);

    lookups(&mut writer);
    archives(&mut writer, &sound, &zstd);
    images(&mut writer, &plain, kpack)?;
    let text = json!({"format": "kpack-conformance", "version": 1, "vectors": writer.vectors});
    writer.files.insert("vectors.json".to_owned(), format!("{text:#}\n").into_bytes());
    Ok(writer.files)
}

/// Which archive is taken.
fn lookups(writer: &mut Writer) {
    let add = || code("add");
    writer.all("plain", "The archive beside the binary.", &Asked::default(), add());
    let asked = Asked { index: 1, ..Asked::default() };
    writer.all("index", "The second wrapper's code.", &asked, code("mul"));
    let asked = Asked { index: 2, ..Asked::default() };
    writer.all("no-such-index", "No kernel has this index.", &asked, error(Some(5)));
    let asked = Asked { isas: &["amdgcn-amd-amdhsa--gfx1100"], ..Asked::default() };
    writer.all("triple", "An ISA may have its triple.", &asked, add());
    let asked = Asked { isas: &["gfx1201", "gfx1100"], ..Asked::default() };
    writer.all("second-isa", "ISAs are tried in order.", &asked, add());
    let asked = Asked { isas: &["gfx1201"], ..Asked::default() };
    writer.all("no-archive", "There is no archive for the ISA.", &asked, error(Some(13)));

    let xnack = ("lib/.kpack/vec_lib_gfx90a:xnack+.kpack", "xnack.kpack");
    let gfx90a = ("lib/.kpack/vec_lib_gfx90a.kpack", "gfx90a.kpack");
    let isas = &["gfx90a:sramecc+:xnack+"];
    let asked = Asked { files: &[xnack, gfx90a], isas, ..Asked::default() };
    writer.all("variant", "The most specific target comes first.", &asked, code("xnack"));
    let asked = Asked { files: &[gfx90a], isas, ..Asked::default() };
    writer.all("processor", "Code without features runs with any.", &asked, code("gfx90a"));
    let isas = &["gfx90a:sramecc+:xnack-"];
    let asked = Asked { files: &[xnack], isas, ..Asked::default() };
    writer.all(
        "other-feature",
        "A feature with another sign does not fit.",
        &asked,
        error(Some(13)),
    );

    let above = ("share/a/gfx1100.kpack", "other.kpack");
    let asked = Asked {
        files: &[above, (ARCHIVE, "plain.kpack")],
        marker: "two-paths.marker",
        ..Asked::default()
    };
    writer.all("search-path", "Search paths are tried in order.", &asked, code("other"));
    let unrelated = ("share/a/gfx1100.kpack", "unrelated.kpack");
    let asked = Asked {
        files: &[unrelated, (ARCHIVE, "plain.kpack")],
        marker: "two-paths.marker",
        ..Asked::default()
    };
    writer.differ(
        (
            "archive-without-the-kernel",
            "The first archive is for the target, but lacks the kernel.",
        ),
        &asked,
        [(add(), &[KPACK, ROCM]), (error(Some(5)), &[ROCM_7_14])],
        "the loader of ROCm 7.13 and 7.14 stops at the first archive for the target; others look in the next one",
    );
    let damaged = ("lib/.kpack/vec_lib_gfx90a:xnack+.kpack", "damaged-xnack.kpack");
    let asked =
        Asked { files: &[damaged, gfx90a], isas: &["gfx90a:sramecc+:xnack+"], ..Asked::default() };
    writer.differ(
        ("damaged-variant", "The kernel for the most specific target is damaged."),
        &asked,
        [(error(Some(6)), &[KPACK, ROCM_7_14]), (code("gfx90a"), &[ROCM])],
        "since August 2026, ROCm's loader looks in the next archive, as if this one lacked the kernel",
    );

    let own = (ARCHIVE, "plain.kpack");
    let elsewhere = ("elsewhere.kpack", "other.kpack");
    for (name, variable, about) in [
        ("environment-path", "ROCM_KPACK_PATH", "The variable replaces the search paths."),
        (
            "environment-prefix",
            "ROCM_KPACK_PATH_PREFIX",
            "The variable comes before the search paths.",
        ),
    ] {
        let asked = Asked {
            files: &[own, elsewhere],
            environment: &[(variable, "{root}/elsewhere.kpack")],
            ..Asked::default()
        };
        writer.all(name, about, &asked, code("other"));
    }
    let asked = Asked { environment: &[("ROCM_KPACK_DISABLE", "1")], ..Asked::default() };
    writer.all("environment-disable", "Nothing is loaded.", &asked, error(Some(8)));

    for (name, about) in [
        ("odd-path", "A search path that is no string is skipped."),
        ("unknown-key", "Unknown keys of a marker are skipped."),
    ] {
        let asked = Asked { marker: &format!("{name}.marker"), ..Asked::default() };
        writer.all(name, about, &asked, add());
    }
    for name in ["without-name", "without-paths", "number"] {
        let asked = Asked { marker: &format!("{name}.marker"), ..Asked::default() };
        writer.all(&format!("marker-{name}"), "No marker.", &asked, error(Some(12)));
    }
    let asked = Asked { marker: "code-ids.marker", ..Asked::default() };
    writer.differ(
        ("code-ids", "The marker has the ID of other code than the archive's."),
        &asked,
        [(error(None), &[KPACK]), (add(), &[ROCM_7_14, ROCM])],
        "`code_blake3` is an addition, which readers may ignore",
    );
}

/// Archives with something odd or wrong in them.
fn archives(writer: &mut Writer, sound: &[u8], zstd: &[u8]) {
    let find = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).position(|w| w == text);
    let changed = |bytes: &[u8], text: &[u8], by: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        if let Some(at) = find(&bytes, text) {
            bytes[at + by] = value;
        }
        bytes
    };
    let add = || code("add");
    let mut odd = |name: &str, about: &str, bytes: Vec<u8>, answer: Value| {
        let file = format!("{name}.kpack");
        writer.add(&file, bytes);
        let asked = Asked { files: &[(ARCHIVE, file.as_str())], ..Asked::default() };
        writer.all(name, about, &asked, answer);
    };
    odd("zstd", "A frame for each kernel.", zstd.to_vec(), add());
    let family = changed(sound, b"gfx_arch_family", 0, b'_');
    odd("without-family", "Only `toc` and what its scheme needs are required.", family, add());
    let unsized_ = changed(sound, b"original_size", 0, b'_');
    odd("without-size", "The size is that of what is stored.", unsized_, add());
    let kind = changed(sound, b"hsaco", 0, b'x');
    odd("other-type", "The type of an entry is not looked at.", kind, add());

    let magic = changed(sound, b"KPAK", 0, b'X');
    odd("wrong-magic", "No archive.", magic, error(Some(13)));
    odd(
        "version-2",
        "An archive of another version.",
        changed(sound, b"KPAK", 4, 2),
        error(Some(13)),
    );
    let end = sound.len() - 40;
    odd("truncated", "The table of contents is cut off.", sound[..end].to_vec(), error(Some(13)));
    odd("empty", "A file without bytes.", Vec::new(), error(Some(13)));
    let mut offset = sound.to_vec();
    offset[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    odd(
        "offset-beyond-the-file",
        "The offset of the table leads out of the file.",
        offset,
        error(Some(13)),
    );
    let frame = damage_frame(zstd.to_vec());
    odd("damaged-frame", "A frame is no frame of Zstandard's.", frame, error(Some(6)));
    let ordinal = changed(sound, b"ordinal", 7, 9);
    odd(
        "ordinal-beyond-the-last",
        "An entry names a code object that is not stored.",
        ordinal,
        error(None),
    );
}

/// Overwrites the magic of the first frame of an archive.
fn damage_frame(mut archive: Vec<u8>) -> Vec<u8> {
    archive[72..76].fill(0xff);
    archive
}

/// Split binaries, whose wrappers lead to their markers as soon as they are loaded.
fn images(writer: &mut Writer, plain: &[TargetCode], kpack: &Path) -> Result<()> {
    let mut library = FatLibrary::new();
    for (_, code) in plain {
        library = library.wrapper(Storage::Plain, [("gfx1100", code.clone())]);
    }
    let bundles = library.bundles()?;
    let (headers_move, headers_stay, dll) =
        (tiny(&bundles, false), tiny(&bundles, true), tiny_dll(&bundles));
    // Code IDs in kpack's marker need the checksums of kpack's own archive.
    for (image, fat, archive, about) in [
        (
            "kpack.so",
            &headers_move,
            "of-kpack.kpack",
            "kpack split it: the marker is where device code was",
        ),
        (
            "rocm.so",
            &headers_move,
            "plain.kpack",
            "rocm-kpack split it: marker and program headers have segments of their own",
        ),
        (
            "rocm-in-place.so",
            &headers_stay,
            "plain.kpack",
            "rocm-kpack split it: the program headers had room",
        ),
        ("kpack.dll", &dll, "of-kpack-dll.kpack", "kpack split it: the marker has a section"),
        ("rocm.dll", &dll, "of-rocm-dll.kpack", "rocm-kpack split it: the marker is at the end"),
    ] {
        let tree = Tree::new();
        let binary = if image.ends_with(".dll") { DLL } else { KERNEL };
        let file = tree.path(binary);
        fs::create_dir_all(file.parent().context("a path has a parent")?)?;
        fs::write(&file, fat)?;
        let mut place = ARCHIVE;
        if image.starts_with("rocm") {
            rocm_split(&library, tree.root(), binary, "vec_lib")?;
            if binary == DLL {
                place = "bin/.kpack/vec_lib_gfx1100.kpack";
            }
        } else {
            let mut split = Command::new(kpack);
            split.args(["split", "--quiet", "--module", "vec", "--prefix"]).arg(tree.root());
            try_run(split.arg(binary))?;
        }
        writer.add(image, fs::read(&file)?);
        if archive.starts_with("of-") {
            writer.add(archive, fs::read(tree.path(place))?);
        }
        for (index, kernel) in [(0, "add"), (1, "mul")] {
            let files = &[(place, archive)];
            let asked = Asked { files, image: Some(image), index, ..Asked::default() };
            let name = match image.strip_suffix(".so") {
                Some(name) => format!("image-{name}-{index}"),
                None => format!("image-{}-{index}", image.replace('.', "-")),
            };
            writer.all(&name, &format!("{about}; wrapper {index}."), &asked, code(kernel));
        }
    }
    Ok(())
}

/// Asks a loader all questions; `reader` is [`KPACK`] or [`ROCM_7_14`]. Returns how many. Those about binaries for Windows are
/// asked of loaders for Windows alone, which wine runs.
///
/// # Errors
/// It answers something else than the vectors say.
pub fn check(loader: &Path, reader: &str) -> Result<usize> {
    let is_for_windows = loader.extension().is_some_and(|extension| extension == "dll");
    let (directory, tree) = (directory(), Tree::new());
    let (ask, compiler, libraries): (_, _, &[&str]) = if is_for_windows {
        (tree.path("ask.exe"), windows::COMPILER, &["-static"])
    } else {
        (tree.path("ask"), "cc", &["-ldl"])
    };
    try_run(
        Command::new(compiler)
            .args(["-std=gnu11", "-O1", "-w", "-I"])
            .arg(directory.join("../kpack-runtime/include"))
            .arg("-o")
            .arg(&ask)
            .arg(directory.join("ask.c"))
            .args(libraries),
    )?;
    let vectors: Value = serde_json::from_slice(&fs::read(directory.join("vectors.json"))?)?;
    let vectors = vectors["vectors"].as_array().context("no vectors")?;
    let mut wrong = Vec::new();
    let mut count = 0;
    for vector in vectors {
        let name = text(&vector["name"]);
        let is_asked = match text(&vector["image"]["machine"]) {
            WINDOWS => is_for_windows,
            LINUX => !is_for_windows && cfg!(target_arch = "x86_64"),
            _ => !is_for_windows,
        };
        if !is_asked {
            continue;
        }
        count += 1;
        let root = tree.path(name);
        let (expected, found) = question(vector, &root, (&ask, is_for_windows), loader, reader)?;
        let is_right = match (&expected["code"], &expected["error"]) {
            (Value::String(code), _) => {
                let right = fs::read(directory.join("files").join(code))?;
                found.starts_with("code") && fs::read(root.join("output"))? == right
            }
            (_, Value::Number(number)) => found == format!("error {number}"),
            _ => found.starts_with("error"),
        };
        if !is_right {
            wrong.push(format!("{name}: expected {expected}, found {found}"));
        }
    }
    ensure!(wrong.is_empty(), "{reader} answers\n{}", wrong.join("\n"));
    Ok(count)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What a loader must answer to a vector, and what it answers.
fn question(
    vector: &Value,
    root: &Path,
    (ask, is_for_windows): (&Path, bool),
    loader: &Path,
    reader: &str,
) -> Result<(Value, String)> {
    let files = directory().join("files");
    let binary = root.join(text(&vector["binary"]));
    let image = &vector["image"];
    let (contents, marker) = if image.is_null() {
        (Vec::new(), files.join(text(&vector["marker"])).into_os_string())
    } else {
        let symbol = format!("@{}", text(&image["wrapper"]));
        (fs::read(files.join(text(&image["file"])))?, symbol.into())
    };
    let mut laid_out = vec![(binary.clone(), contents)];
    for (path, file) in vector["files"].as_object().context("no files")? {
        laid_out.push((root.join(path), fs::read(files.join(text(file)))?));
    }
    for (path, bytes) in laid_out {
        fs::create_dir_all(path.parent().context("a path has a parent")?)?;
        fs::write(path, bytes)?;
    }
    let mut command = if is_for_windows { windows::wine(ask) } else { Command::new(ask) };
    let path = |path: &Path| {
        if is_for_windows { windows::path(path).into() } else { path.as_os_str().to_owned() }
    };
    command.arg(path(loader)).arg(marker).arg(path(&binary));
    command.arg(vector["index"].to_string()).arg(path(&root.join("output")));
    command.args(vector["isas"].as_array().context("no ISAs")?.iter().map(text));
    for (name, value) in vector["environment"].as_object().context("no environment")? {
        command.env(name, text(value).replace("{root}", &root.display().to_string()));
    }
    let answers = vector["answers"].as_array().context("no answers")?;
    let own = |answer: &&Value| {
        answer["of"].as_array().is_some_and(|of| of.iter().any(|of| text(of) == reader))
    };
    let Some(answer) = answers.iter().find(own) else {
        bail!("{} has no answer of {reader}", vector["name"]);
    };
    Ok((answer["answer"].clone(), try_run(&mut command)?.trim().to_owned()))
}
