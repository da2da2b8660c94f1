//! Given fat wheels and options, when they are split, then host and device wheels have the right files, extras and
//! requirements, and fit together. One snapshot has what each row of the table becomes.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::wheels::{FAT, binary, binary_wheel, library, members, names, noise, text};
use kpack_artifact::verify::{self, verify as verify_installed};
use kpack_core::{Finding, Severity, ids};
use kpack_format::manifest::Manifest;
use kpack_format::names::is_manifest;
use kpack_format::unstable::spelling::read_target;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, Wheel, add_and_mul, code};
use kpack_tests::tree::Tree;
use kpack_wheel::{Options, VerifyOptions, split, verify};

/// Fat wheels, what to do with them, and GPUs for which the result is verified.
struct Row {
    name: &'static str,
    wheels: Vec<Wheel>,
    options: fn(&mut Options),
    archs: &'static [&'static str],
}

/// A row of a wheel that is split with the default options.
fn row(name: &'static str, wheel: Wheel) -> Row {
    Row { name, wheels: vec![wheel], options: |_| {}, archs: &[] }
}

/// A wheel of a package with a fat binary, and something of everything else.
fn wheel(file: &str) -> Wheel {
    Wheel::with_library(file, library().bytes())
}

/// A wheel with code for these targets.
fn with_targets(targets: &[&str]) -> Wheel {
    let library = targets.iter().fold(FatLibrary::new(), |library, target| {
        library.wrapper(Storage::Plain, [code(target, "add")])
    });
    Wheel::new(FAT).member("vec/_vec.so", library.bytes())
}

/// A wheel in the shape of torch's: AOTriton's images are for families of processors.
fn with_families() -> Wheel {
    let library = add_and_mul(["gfx942", "gfx1100"], ["gfx942", "gfx1201"]);
    let images = ["amd-gfx11xx", "amd-gfx110x", "amd-gfx120x", "amd-gfx942"];
    images.into_iter().fold(
        Wheel::new(FAT).member("vec/_vec.so", library.bytes()),
        |wheel, family| {
            wheel.member(&format!("vec/lib/aotriton.images/{family}/flash/attn_fwd.aks2"), family)
        },
    )
}

/// The wheel, and files of rocBLAS for each of these targets.
fn with_rocblas(wheel: Wheel, targets: [&str; 2]) -> Wheel {
    let wheel = wheel.member("vec/lib/rocblas/library/TensileManifest.txt", "names");
    targets.into_iter().fold(wheel, |wheel, target| {
        let names =
            [format!("Kernels.so-000-{target}.hsaco"), format!("TensileLibrary_{target}.co")];
        names.iter().fold(wheel, |wheel, name| {
            wheel.member(&format!("vec/lib/rocblas/library/{name}"), code(target, "kernel").1)
        })
    })
}

fn groups(options: &mut Options, groups: &[&str]) {
    options.groups = groups.iter().map(|group| group.parse().unwrap()).collect();
}

fn rows() -> Vec<Row> {
    const STRICT: [&str; 2] = ["gfx1250", "gfx1250-strict"];
    let strict = |targets: &[&str]| with_targets(targets);
    let generic = with_targets(&["gfx11-generic", "gfx1100", "gfx1102"]);
    let linux = "vec-1.0-cp311-cp311-linux_x86_64.whl";
    let of_python =
        |python: &str| wheel(&FAT.replace("cp311", python)).member("vec/python.txt", python);
    let of_version =
        |version: &str| Wheel::new(&FAT.replace("1.0", version)).member("vec/_vec.so", binary());
    let tags = "cp311-cp311-manylinux_2_28_x86_64.whl";
    let of_name =
        |name: &str| Wheel::new(&format!("{name}-{tags}")).member("vec/_vec.so", binary());
    vec![
        row("binaries and a kernel database", {
            let wheel = with_rocblas(Wheel::new(FAT), ["gfx942", "gfx1100"]);
            wheel
                .member("vec.libs/libvec-1a2b3c4d.so", library().bytes())
                .member("vec/_vec.so", library().bytes())
        }),
        row("directories, and no description", wheel(FAT).directory("vec").without_description()),
        row("a binary in purelib", wheel(FAT).in_wheel("Purelib: false", "Purelib: true")),
        row("CRLF", wheel(FAT).in_metadata("\n", "\r\n").without_description()),
        row(
            "a binary in data for platlib",
            Wheel::new(FAT)
                .in_wheel("Purelib: false", "Purelib: true")
                .member("vec/__init__.py", "")
                .member("vec-1.0.data/platlib/vec/_vec.so", library().bytes()),
        ),
        row("files for families", with_families()),
        Row {
            options: |options| groups(options, &["mine=gfx942,gfx1100"]),
            ..row("files for families, and a group", with_families())
        },
        Row {
            options: |options| {
                options.variant = true;
                groups(options, &["cdna=gfx942"]);
            },
            ..row("variants", with_families())
        },
        Row {
            options: |options| {
                options.device_name = "amd-{dist}-device-{target}".to_owned();
                options.overlay_root = Some("vec/".into());
                options.device_requires =
                    ["rocm-sdk-device-{target}==7.14", "hip-helper"].map(str::to_owned).to_vec();
                options.host_requires = vec!["rocm-bootstrap>=1".to_owned()];
            },
            ..row("one directory with archives, and requirements", {
                let library = add_and_mul(["gfx942", "gfx1100"], ["gfx942", "gfx1100"]);
                Wheel::new(FAT)
                    .member("vec/lib/libvec.so", library.bytes())
                    .member("vec.libs/libmore.so", library.bytes())
                    .member("vec/lib/aotriton.images/amd-gfx11xx/flash/attn_fwd.aks2", "image")
            })
        },
        Row {
            options: |options| {
                options.device_name = "amd-{dist}-{target}".to_owned();
                groups(options, &["gfx9=gfx90a,gfx942"]);
            },
            ..row("a group, and other names of device wheels", wheel(FAT))
        },
        // It has no files of that family. A GPU without its own extra has the generic code.
        Row {
            options: |options| groups(options, &["gfx11=gfx1100,gfx1101"]),
            archs: &["gfx1103", "gfx942"],
            ..row("a group that is called like a family", {
                let library = add_and_mul(["gfx1100", "gfx1101"], ["gfx1102", "gfx11-generic"]);
                Wheel::new(FAT).member("vec/_vec.so", library.bytes())
            })
        },
        Row {
            options: |options| groups(options, &["g=gfx1103"]),
            ..row("generic code that one group needs", with_targets(&["gfx11-generic"]))
        },
        Row {
            options: |options| groups(options, &["g=gfx1102,gfx1103", "h=gfx1150"]),
            ..row("generic code that two groups need", generic)
        },
        // ROCm's packages for gfx1250 contain the code for gfx1250-strict, so there are none of its own.
        Row { archs: &STRICT, ..row("code in the packages of another target", strict(&STRICT)) },
        row("code in the packages of another target, alone", strict(&STRICT[1..])),
        Row {
            options: |options| groups(options, &["g=gfx1250"]),
            ..row("the same, in a group", strict(&STRICT))
        },
        Row {
            options: |options| groups(options, &["g=gfx1250"]),
            ..row("the same, alone and in a group", strict(&STRICT[1..]))
        },
        Row {
            options: |options| {
                options.device_requires = vec!["rocm-sdk-device-{target}==7.14".to_owned()];
                options.variant = true;
            },
            archs: &STRICT,
            ..row(
                "the same, with a kernel database, variants and requirements",
                with_rocblas(strict(&STRICT), STRICT),
            )
        },
        Row { wheels: ["cp310", "cp311"].map(of_python).into(), ..row("two Pythons", wheel(FAT)) },
        Row {
            wheels: ["1.0", "2.0", "2.0-1"].map(of_version).into(),
            ..row("two versions and two builds", wheel(FAT))
        },
        row(
            "what is reported",
            wheel(linux)
                .in_wheel("Tag: cp311-cp311", "Tag: cp39-cp39")
                .member("vec-1.0.data/scripts/vec", library().bytes())
                .member("vec-1.0.dist-info/RECORD.jws", "{}")
                .member("vec/kernels-gfx942.co", code("gfx942", "kernel").1)
                .member("vec/noise.bin", noise(1 << 20)),
        ),
        row(
            "a wheel for an older ROCm",
            of_name("vec_rocm6_4-1.0+rocm6.4")
                .field("Requires-Dist", "rocm==7.10")
                .field("Requires-Dist", "rocm[libraries]==7.10 ; extra == 'a'")
                .field(
                    "Requires-Dist",
                    "jax-rocm60-plugin @ https://user:s3cr3t@host.example/x.whl",
                )
                .field("Requires-Dist", "torch>=2"),
        ),
        row(
            "a wheel for a newer ROCm",
            of_name("vec_rocm-1.0+rocm7.14.0")
                .field("Requires-Dist", "rocm>=6.4")
                .member("vec/librocblas.txt", ""),
        ),
        row(
            "copies of ROCm's libraries",
            of_name("vec-1.0")
                .member("vec.libs/libamdhip64-9bb0d6b1.so.7.2.53211", vec![0; 2048])
                .member("vec.libs/librocblas-0a1b2c3d.so.5.1", vec![0; 1024]),
        ),
        row(
            "ROCm's own libraries",
            of_name("rocm_sdk_libraries-7.14.0")
                .member("_rocm_sdk_libraries/lib/librocblas.so.5", vec![0; 1024]),
        ),
    ]
}

/// What a finding says, in a line.
fn line(finding: &Finding) -> String {
    let severity = finding.severity;
    format!("{severity:?}: {} [{}]\n", finding.text, finding.id)
}

/// The files in a directory: the members of each wheel, but for those that each has, what it requires, and the hints in its
/// manifests for the code of `targets`.
fn listed(directory: &Path, targets: &[String]) -> String {
    let mut said = String::new();
    for file in names(directory) {
        let path = directory.join(&file);
        writeln!(said, "{file}").unwrap();
        if !file.ends_with(".whl") {
            let index: serde_json::Value =
                serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            writeln!(said, "  variants: {}", index["variants"]).unwrap();
            continue;
        }
        for (name, (mode, bytes)) in members(&path) {
            match name.rsplit('/').next().unwrap() {
                "RECORD" | "WHEEL" => continue,
                "METADATA" => {
                    let text = String::from_utf8(bytes).unwrap();
                    let is_shown = |line: &&str| {
                        ["Provides-Extra", "Requires-Dist"]
                            .iter()
                            .any(|field| line.starts_with(field))
                    };
                    for line in text.lines().filter(is_shown) {
                        writeln!(said, "  | {line}").unwrap();
                    }
                }
                "variant.json" => {
                    let of_wheel: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                    writeln!(said, "  {name}: {}", of_wheel["variants"]).unwrap();
                    let index = fs::read(directory.join("vec_device-1.0-variants.json")).unwrap();
                    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
                    for part in ["$schema", "default-priorities", "providers"] {
                        assert_eq!(of_wheel[part], index[part], "{file}");
                    }
                }
                file => {
                    let mode = if mode == 0o644 { String::new() } else { format!(" {mode:o}") };
                    writeln!(said, "  {name}{mode}").unwrap();
                    let manifest =
                        is_manifest(Path::new(file)).then(|| Manifest::read(&bytes).unwrap());
                    let hints = targets.iter().filter_map(|target| {
                        Some((target, manifest.as_ref()?.install_command(target)?))
                    });
                    for (target, hint) in hints {
                        writeln!(said, "    for {target}: {hint}").unwrap();
                    }
                }
            }
        }
    }
    said
}

/// The faults in a set that was just written. Other findings say that it is sound.
fn faults(wheels: &[PathBuf], options: &VerifyOptions) -> String {
    let report = verify(wheels, options).unwrap();
    let faults = report.findings.iter().filter(|finding| finding.severity == Severity::Fault);
    faults.map(line).collect()
}

#[test]
fn wheels_become_sets_that_fit_together() {
    let mut said = String::new();
    for Row { name, wheels, options: change, archs } in rows() {
        let tree = Tree::new();
        let wheels = wheels.iter().map(|wheel| wheel.write(&tree.path("dist")).unwrap());
        let wheels = Vec::from_iter(wheels);
        let mut options = Options::new(&wheels, tree.path("out"));
        change(&mut options);
        let report = split(&options, &()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut targets = Vec::from_iter(report.wheels.iter().flat_map(|wheel| &wheel.targets));
        targets.sort();
        targets.dedup();
        // The others are families.
        let targets = targets.into_iter().filter(|target| read_target(target).is_ok());
        let targets = Vec::from_iter(targets.cloned());
        writeln!(said, "# {name}\n{}", listed(&tree.path("out"), &targets).trim_end()).unwrap();
        said.extend(report.findings.iter().map(line));
        let written = Vec::from_iter(report.wheels.iter().map(|wheel| wheel.path.clone()));
        for fat in &wheels {
            let mut options = VerifyOptions::default();
            options.against = Some(fat.clone());
            assert_eq!(faults(&written, &options), "", "{name}");
            for arch in archs {
                options.targets = vec![arch.parse().unwrap()];
                write!(said, "verified for {arch}\n{}", faults(&written, &options)).unwrap();
            }
        }
        said += "\n";
    }
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+ bytes, \d+ before", "[sizes]");
    // By how much a small wheel grows depends on the linker, unless most of it stays as it is.
    settings.add_filter(r"have (?:1[1-9]|2\d)\d%", "have [percent]%");
    settings.bind(|| insta::assert_snapshot!(said.trim_end()));
}

/// One project's device wheels say nothing about another's download.
#[test]
fn sizes_are_compared_within_a_project() {
    let tree = Tree::new();
    let library = add_and_mul(["gfx942", "gfx90a"], ["gfx942", "gfx90a"]);
    let small = Wheel::new(FAT)
        .member("vec/_vec.so", library.bytes())
        .member("vec/kernels-gfx942.co", code("gfx942", "kernel").1);
    let small = small.member("vec/noise.bin", noise(1 << 16));
    let other = FAT.replace("vec-", "other-");
    let mut large = code("gfx942", "kernel").1;
    large.extend(noise(1 << 20));
    let large = Wheel::new(&other)
        .member("other/rocblas/library/Kernels.so-000-gfx942.hsaco", large)
        .member("other/_other.so", library.bytes());
    let wheels = [small, large].map(|wheel| wheel.write(&tree.path("dist")).unwrap());
    let gains = |wheels: &[PathBuf]| {
        let report = split(&Options::new(wheels, tree.path("out")), &()).unwrap();
        let of_gain = report.findings.into_iter();
        let of_gain = of_gain.filter(|finding| finding.id == ids::SMALL_GAIN);
        let texts = of_gain.map(|finding| finding.text);
        texts.collect::<Vec<_>>()
    };
    let alone = wheels.each_ref().map(|wheel| gains(std::slice::from_ref(wheel)));
    let mut alone = alone.concat();
    let mut together = gains(&wheels);
    alone.sort();
    together.sort();
    assert_eq!(together, alone);
}

/// Unpacks a wheel as installers do.
fn unpack(wheel: &Path, site: &Path) {
    for (name, (_, bytes)) in members(wheel) {
        let path = site.join(name);
        assert!(!path.exists(), "two wheels have {}", path.display());
        kpack_tests::tree::write(path, bytes);
    }
}

/// Given a fat wheel, and one with a binary that its build split, as `kpack_install` does with scikit-build-core, when they are
/// split, then both sets have the same members, the host wheel works with any of the device wheels, and the whole of one set is
/// as the snapshot has it.
#[test]
fn each_device_wheel_works_with_its_host_however_the_binary_was_split() {
    let tree = Tree::new();
    tree.write("built/vec/_vec.so", library().bytes());
    let mut options = InstallOptions::new(tree.path("built"), "vec", ["vec/_vec.so"]);
    options.kpack_dir = "vec/.kpack".into();
    install(&options, &()).unwrap();
    let file = |name: &str| fs::read(tree.path("built/vec").join(name)).unwrap();
    let archives = names(&tree.path("built/vec/.kpack")).into_iter();
    let archives = archives.map(|name| format!(".kpack/{name}"));
    let built = archives
        .fold(Wheel::new(FAT).member("vec/_vec.so", file("_vec.so")), |wheel, name| {
            wheel.member(&format!("vec/{name}"), file(&name))
        });
    let fat = Wheel::new(FAT).member("vec/_vec.so", library().bytes());
    let sets = [("built", built), ("fat", fat), ("whole", wheel(FAT))].map(|(name, wheel)| {
        let path = wheel.write(&tree.path(&format!("dist/{name}"))).unwrap();
        let report = split(&Options::new([path], tree.path(&format!("out/{name}"))), &()).unwrap();
        let (host, devices) = report.wheels.split_last().unwrap();
        for device in devices {
            let site = tree.path(&format!("site/{name}-{}", device.extra.as_ref().unwrap()));
            unpack(&host.path, &site);
            unpack(&device.path, &site);
            let found = verify_installed(&[site], &verify::Options::default(), &()).unwrap();
            assert_eq!(found.count(Severity::Fault), 0, "{name}: {:?}", found.findings);
        }
        let targets = ["gfx90a:xnack+", "gfx942"].map(str::to_owned);
        listed(&tree.path(&format!("out/{name}")), &targets)
    });
    assert_eq!(sets[0], sets[1]);
    let mut said = String::new();
    for file in names(&tree.path("out/whole")) {
        let path = tree.path("out/whole").join(&file);
        for (name, (mode, _)) in members(&path) {
            writeln!(said, "{mode:o} {name}").unwrap();
            if ["METADATA", "WHEEL", "top_level.txt", "RECORD"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                for line in text(&path, &name).lines() {
                    writeln!(said, "    {line}").unwrap();
                }
            }
        }
    }
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"sha256=[\w-]{43},\d+", "sha256=[digest],[size]");
    settings.add_filter(r"kpack \d+\.\d+\.\d+", "kpack [version]");
    settings.bind(|| insta::assert_snapshot!(said.replace("    \n", "\n").trim_end()));
}

/// Given options that make no sense, or files in the way, when wheels are split, then nothing is written.
#[test]
fn options_that_make_no_sense_are_refused() {
    fn variant(options: &mut Options, name: &str, group: &str) {
        options.variant = true;
        options.device_name = name.to_owned();
        groups(options, &[group]);
    }
    type Change = fn(&mut Options);
    let rows: &[(&str, Change)] = &[
        ("a group with a GPU that has no code", |o| groups(o, &["gfx9=gfx90a,gfx9999"])),
        ("a group that is named like another extra", |o| {
            groups(o, &["x=gfx90a"]);
            o.groups[0].name = "All".to_owned();
        }),
        ("a name that leads elsewhere", |o| o.device_name = "../{target}".to_owned()),
        ("a variant for a GPU in its name", |o| variant(o, "{dist}-{target}", "cdna=gfx942")),
        ("a variant with a long label", |o| {
            variant(o, "{dist}-device-{target}", "much_too_long_label=gfx942")
        }),
        ("no directory of the wheel", |o| o.overlay_root = Some("missing".into())),
        ("a directory of metadata", |o| o.overlay_root = Some("vec-1.0.dist-info".into())),
        ("a directory outside", |o| o.overlay_root = Some("../vec".into())),
        ("no requirement", |o| o.device_requires = vec!["a b".to_owned()]),
        ("a host that requires a GPU", |o| o.host_requires = vec!["a-{target}".to_owned()]),
        ("two wheels of one name", |o| {
            let other = o.wheels[0].with_file_name(FAT.replace("vec", "Vec"));
            fs::copy(&o.wheels[0], &other).unwrap();
            o.wheels.push(other);
        }),
        ("a fat wheel in the way", |o| {
            binary_wheel().write(&o.output_dir).unwrap();
        }),
        ("its own fat wheel in the way", |o| {
            o.wheels = vec![wheel(FAT).write(&o.output_dir).unwrap()];
        }),
        ("a directory for device wheels, and no device code", |o| {
            let other = Wheel::new(FAT).member("vec/__init__.py", "");
            o.wheels = vec![other.write(&o.output_dir.with_file_name("other")).unwrap()];
            o.device_dir = Some(o.output_dir.with_file_name("devices"));
        }),
    ];
    let mut said = String::new();
    for (name, change) in rows {
        let tree = Tree::new();
        let fat = wheel(FAT).write(&tree.path("dist")).unwrap();
        let mut options = Options::new([fat], tree.path("out"));
        change(&mut options);
        let before = tree.snapshot();
        let error = split(&options, &()).unwrap_err().in_one_line();
        assert_eq!(tree.snapshot(), before, "{name}");
        writeln!(said, "# {name}\n{}", error.replace(tree.root().to_str().unwrap(), "/tree"))
            .unwrap();
    }
    for group in [
        "gfx9=gfx90a,gfx9O8",
        "gfx942=gfx90a,gfx1100",
        "gfx9=gfx90a:xnack+",
        "gfx12=gfx90a,gfx1250-strict",
    ] {
        let error = group.parse::<kpack_wheel::DeviceGroup>().unwrap_err();
        writeln!(said, "# the group {group}\n{}", error.in_one_line()).unwrap();
    }
    insta::assert_snapshot!(said.trim_end());
}
