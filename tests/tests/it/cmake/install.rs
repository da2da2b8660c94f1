//! The installed files: names, modes, paths, and a second install.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::cmake::package::Package;
use crate::cmake::prefix::Prefix;
use crate::cmake::project::{Project, Run, define, output_of};

with_each_package!(["cmake", "cc", "readelf", "ninja"] =>
    rpath_and_strip_come_before_the_split,
    symlinks_and_modes_stay,
    paths_are_expanded_when_installing,
    a_symlinking_install_is_refused,
    a_second_install_changes_nothing,
    an_install_that_cannot_split_fails,
    installed_files_are_listed,
    static_libraries_and_objects_are_left_alone,
    arguments_reach_install_targets,
    hip_code_is_split,
    debug_information_is_stripped,
    a_note_is_printed_once,
);

/// The files that the project `plain` installs.
const PLAIN: [&str; 8] = [
    "bin/vecapp",
    "lib/.kpack/veclib_lib.kpm",
    "lib/.kpack/veclib_lib_gfx1100.kpack",
    "lib/.kpack/veclib_lib_gfx90a:xnack+.kpack",
    "lib/.kpack/veclib_lib_gfx942.kpack",
    "lib/libveclib.so -> libveclib.so.1",
    "lib/libveclib.so.1 -> libveclib.so.1.2.3",
    "lib/libveclib.so.1.2.3",
];

fn rpath_and_strip_come_before_the_split(package: &Package) {
    let project = Project::built(package, "rpath_and_strip");
    let prefix = project.prefix("prefix");
    for _ in 0..2 {
        project.install(&prefix.path, &["--strip"]).succeeds();
        prefix.is_split("lib/libveclib.so");
        prefix.is_split("bin/vecapp");
        prefix.verifies();
        let dynamic = prefix.readelf("-d", "bin/vecapp");
        assert!(dynamic.contains("[$ORIGIN/../lib]"), "{dynamic}");
        assert!(!prefix.readelf("-SW", "bin/vecapp").contains(".symtab"));
        prefix.runs_split("bin/vecapp");
    }
}

fn symlinks_and_modes_stay(package: &Package) {
    let project = Project::built(package, "soname");
    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.has_exactly(&[
        "bin/vecapp -> vecapp-1.2",
        "bin/vecapp-1.2",
        "lib/.kpack/veclib_lib.kpm",
        "lib/.kpack/veclib_lib_gfx1100.kpack",
        "lib/.kpack/veclib_lib_gfx90a:xnack+.kpack",
        "lib/.kpack/veclib_lib_gfx942.kpack",
        "lib64/libveclib.so -> libveclib.so.1",
        "lib64/libveclib.so.1 -> libveclib.so.1.2.3",
        "lib64/libveclib.so.1.2.3",
        "lib64/plugin.so",
    ]);
    for binary in ["lib64/libveclib.so.1.2.3", "lib64/plugin.so", "bin/vecapp-1.2"] {
        prefix.is_split(binary);
    }
    prefix.runs_split("bin/vecapp");
    let dev = project.prefix("dev");
    project.install(&dev.path, &["--component", "dev"]).succeeds();
    dev.has_exactly(&["lib64/libveclib.so -> libveclib.so.1"]);

    let mode = |file: &str| {
        let metadata = fs::metadata(prefix.path.join(file)).unwrap();
        metadata.permissions().mode() & 0o7777
    };
    assert_eq!(mode("bin/vecapp-1.2"), 0o550);
    // The mode depends on the distribution: Debian's CMake installs shared libraries without the x bits.
    assert_eq!(mode("lib64/libveclib.so.1.2.3"), mode("lib64/plugin.so"));
    assert_eq!(mode("lib64/libveclib.so.1.2.3") & 0o644, 0o644);
}

fn paths_are_expanded_when_installing(package: &Package) {
    let mut project = Project::new(package, "paths");
    project.build = project.scratch().join("a build directory");
    project.configure(&["-DCMAKE_INSTALL_PREFIX=/not/used"]).succeeds();
    project.build(&[]).succeeds();
    let installed = [
        "my libs/.kpack/paths_lib.kpm",
        "my libs/.kpack/paths_lib_gfx1100.kpack",
        "my libs/.kpack/paths_lib_gfx90a:xnack+.kpack",
        "my libs/.kpack/paths_lib_gfx942.kpack",
        "my libs/libvec lib.so",
    ];

    let prefix = project.prefix("a prefix; with [brackets] $and 'quotes'");
    project.install(&prefix.path, &[]).succeeds();
    prefix.has_exactly(&installed);
    prefix.is_split("my libs/libvec lib.so");

    // CMake separates this list by semicolons, so it also breaks the names of its own files.
    let list = fs::read_to_string(project.build.join("install_manifest.txt")).unwrap();
    assert!(
        list.contains("with [brackets] $and 'quotes'/my libs/.kpack/paths_lib_gfx942.kpack"),
        "{list}"
    );

    let staged = project.prefix("a stage; too/opt/vec");
    let stage = project.scratch().join("a stage; too");
    let mut command = project.install_command(Path::new("/opt/vec"));
    Run::of(command.env("DESTDIR", &stage)).succeeds();
    staged.has_exactly(&installed);
    assert_eq!(staged.contents(), prefix.contents());
    assert!(!Path::new("/opt/vec").exists());

    // Relative to the directory that cmake runs in.
    project.install(Path::new("relative"), &[]).succeeds();
    assert_eq!(project.prefix("relative").contents(), prefix.contents());
}

fn a_symlinking_install_is_refused(package: &Package) {
    let project = Project::built(package, "plain");
    let built = project.build.join("libveclib.so.1.2.3");
    let before = fs::read(&built).unwrap();

    let prefix = project.scratch().join("prefix");
    let mut command = project.install_command(&prefix);
    Run::of(command.env("CMAKE_INSTALL_MODE", "ABS_SYMLINK"))
        .fails_with("is not a copy of target \"veclib\" but a link to another file");
    assert_eq!(fs::read(&built).unwrap(), before);
}

fn a_second_install_changes_nothing(package: &Package) {
    let project = Project::built(package, "plain");
    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.has_exactly(&PLAIN);
    let manifest = fs::read(prefix.path.join("lib/.kpack/veclib_lib.kpm")).unwrap();
    let manifest = String::from_utf8_lossy(&manifest);
    assert!(manifest.contains("pip install 'vec[device-@GFXARCH@]'"), "{manifest}");
    let first = prefix.contents();

    project.install(&prefix.path, &[]).succeeds();
    assert_eq!(prefix.contents(), first, "installed again");

    // CMake copies the fat binaries again if the times differ.
    let built =
        fs::File::options().write(true).open(project.build.join("libveclib.so.1.2.3")).unwrap();
    built.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    project.install(&prefix.path, &[]).succeeds();
    assert_eq!(prefix.contents(), first, "copied again");
    prefix.verifies();
}

fn an_install_that_cannot_split_fails(package: &Package) {
    let project = Project::new(package, "plain");
    project.configure(&["-DARCHITECTURES=gfx1100;gfx942;gfx90a:xnack+;gfx1201"]).succeeds();
    project.build(&[]).succeeds();
    let prefix = project.prefix("prefix");
    let run = project.install(&prefix.path, &[]);
    run.says("gfx1201").fails_with("The install is not complete");

    // The helper is removed after the configuration.
    let helper = project.scratch().join("kpack");
    fs::copy(&package.helper, &helper).unwrap();
    project
        .configure(&[
            "-DARCHITECTURES=gfx1100;gfx942;gfx90a:xnack+",
            &define("Kpack_EXECUTABLE", &helper),
        ])
        .succeeds();
    fs::remove_file(&helper).unwrap();
    project.install(&prefix.path, &[]).fails_with("was removed after the project was configured");
}

fn installed_files_are_listed(package: &Package) {
    let project = Project::built(package, "plain");
    let stage = project.scratch().join("stage");
    let mut command = project.install_command(Path::new("/opt/vec"));
    Run::of(command.env("DESTDIR", &stage)).succeeds();

    let list = fs::read_to_string(project.build.join("install_manifest.txt")).unwrap();
    let mut listed: Vec<&str> = list.lines().collect();
    listed.sort_unstable();
    let expected: Vec<String> = PLAIN
        .iter()
        .map(|file| format!("/opt/vec/{}", file.split(" -> ").next().unwrap()))
        .collect();
    assert_eq!(listed, expected);
    for file in listed {
        fs::remove_file(stage.join(file.trim_start_matches('/'))).unwrap();
    }
    project.prefix("stage").has_exactly(&[]);
}

fn static_libraries_and_objects_are_left_alone(package: &Package) {
    let project = Project::new(package, "unlinked");
    project
        .configure(&[])
        .succeeds()
        .says("\"archive\" (STATIC_LIBRARY) is installed as it is")
        .says("\"objects\" (OBJECT_LIBRARY) is installed as it is");
    project.build(&[]).succeeds();
    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.is_fat("lib/libarchive.a");
    prefix.is_split("bin/vecapp");
    let names = prefix.files();
    assert_eq!(names.iter().filter(|name| name.ends_with(".o")).count(), 2, "{names:?}");
}

fn arguments_reach_install_targets(package: &Package) {
    let project = Project::built(package, "forwarded");
    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.is_split("lib/vec/libveclib.so");
    assert!(prefix.path.join("include/vec/vec.h").exists());

    let mut consumer = Project::new(package, "forwarded/consumer");
    consumer.build = project.scratch().join("consumer");
    consumer.configure_bare(&[&define("CMAKE_PREFIX_PATH", &prefix.path)]).succeeds();
    consumer.build(&[]).succeeds();
    output_of(consumer.build.join("consumer"), &[]);
}

fn hip_code_is_split(package: &Package) {
    if !kpack_tests::require::tools(&["clang++-19", "ld.lld-19"]) {
        return;
    }
    let project = Project::new(package, "hip");
    project.configure(&["-DCMAKE_CXX_COMPILER=clang++-19"]).succeeds();
    project.build(&[]).succeeds();
    let prefix = project.prefix("prefix");
    project.install(&prefix.path, &[]).succeeds();
    prefix.has_exactly(&[
        "lib/.kpack/veclib_lib.kpm",
        "lib/.kpack/veclib_lib_gfx1100.kpack",
        "lib/.kpack/veclib_lib_gfx90a:xnack+.kpack",
        "lib/.kpack/veclib_lib_gfx942.kpack",
        "lib/libveclib.so",
    ]);
    against_build(&prefix, "lib/libveclib.so", &project.build.join("libveclib.so"));
}

/// Installed at once, by component, and from objects that were split before the link: the same archives
/// without debug information, and debug files with the device components.
fn debug_information_is_stripped(package: &Package) {
    if !kpack_tests::require::tools(&["clang++-19", "ld.lld-19"]) {
        return;
    }
    let install = |arguments: &[&str], components: &[&str], is_whole: bool| {
        let project = Project::new(package, "hip");
        let flags =
            "-DCMAKE_CXX_FLAGS=-g -cuid=0 -fdebug-compilation-dir=. -Xoffload-linker --build-id";
        let compiler = ["-DCMAKE_CXX_COMPILER=clang++-19", flags];
        project.configure(&[&compiler, arguments].concat()).succeeds();
        project.build(&[]).succeeds();
        let prefix = project.prefix("prefix");
        for component in components {
            let run = match *component {
                "" => project.install(&prefix.path, &[]),
                component => project.install(&prefix.path, &["--component", component]),
            };
            run.succeeds();
        }
        prefix.verifies();
        if is_whole {
            let original = project.build.join("libveclib.so");
            against_build(&prefix, "lib/libveclib.so", &original);
        }
        let files = prefix.files();
        let debug = files.iter().filter(|file| file.ends_with(".debug"));
        let is_there = |file: &&String| file.starts_with("lib/debug/.build-id/");
        let sizes = ["gfx1100", "gfx942"].map(|target| {
            let archive = format!("lib/.kpack/veclib_lib_{target}.kpack");
            fs::metadata(prefix.path.join(archive)).unwrap().len()
        });
        (sizes, debug.filter(is_there).count())
    };
    let (whole, none) = install(&[], &[""], true);
    let destination = "-DMORE=STRIP_DEBUG;DEBUG_DESTINATION;lib/debug";
    let (stripped, count) = install(&[destination], &[""], true);
    assert_eq!((none, count), (0, 3));
    let is_smaller = stripped.iter().zip(&whole).all(|(a, b)| a + 200 < *b);
    assert!(is_smaller, "{stripped:?} {whole:?}");

    let by_component = format!("{destination};DEVICE_COMPONENTS");
    let devices = ["lib-gfx942", "lib-gfx1100", "lib-gfx90a.xnack-on"];
    let all = [&devices[..], &["Unspecified"]].concat();
    let (sizes, count) = install(&[&by_component], &all, true);
    assert_eq!((sizes, count), (stripped, 3));

    let compiled = ["-DKPACK_SPLIT_AT=compile", "-DKPACK_STRIP_DEBUG=ON"];
    assert_eq!(install(&compiled, &[""], false), (stripped, 0));
}

/// However many rules, targets and binaries there are.
fn a_note_is_printed_once(package: &Package) {
    if !kpack_tests::require::tools(&["clang++-19", "ld.lld-19"]) {
        return;
    }
    for rules in ["-DEVERYTHING=ON", "-DMORE=DEVICE_COMPONENTS"] {
        let project = Project::new(package, "hip");
        let compiler = ["-DCMAKE_CXX_COMPILER=clang++-19", "-DCMAKE_CXX_FLAGS=-g", rules];
        project.configure(&compiler).succeeds();
        project.build(&[]).succeeds();
        let run = project.install(&project.prefix("prefix").path, &[]).succeeds();
        let count = |id: &str| run.output.matches(id).count();
        assert_eq!(count("[debug-information]"), 1, "{rules}: {}", run.output);
        assert_eq!(count("[unchanged]"), 0, "{rules}: {}", run.output);
    }
}

/// Every code object equals that of the unsplit file.
fn against_build(prefix: &Prefix<'_>, binary: &str, original: &Path) {
    let mut command = Command::new(&prefix.package.helper);
    command.arg("verify").arg(prefix.path.join(binary)).arg("--against").arg(original);
    Run::of(&mut command).succeeds();
}
