//! Given libraries that each bring a copy of the shared shim, when one process has several copies, then each
//! wrapper reaches the HIP runtime.

use std::path::PathBuf;
use std::process::Command;

use kpack_tests::process::{copy, run};
use kpack_tests::require;

use crate::GFX90A;
use crate::project::{Form, Project, WRAP, preloaded};

const NAMES: [&str; 2] = ["one", "two"];

/// Builds `NAME/lib/libvec.so`, which needs its own copy of the shim before the runtime, and splits it.
fn with_own_copy(project: &Project, name: &str, flags: &[String]) -> PathBuf {
    let library = project.tree.path(&format!("{name}/lib/libvec.so"));
    let shim = library.with_file_name(format!("libkpack_hip-{name}.so.0"));
    std::fs::create_dir_all(shim.parent().unwrap()).unwrap();
    copy(preloaded(), &shim);
    let soname = shim.file_name().unwrap();
    run(Command::new("patchelf").arg("--set-soname").arg(soname).arg(&shim));
    let mut all = vec![WRAP.to_owned(), shim.to_str().unwrap().to_owned()];
    all.extend_from_slice(flags);
    all.push("-Wl,-rpath,$ORIGIN".to_owned());
    project.link(name, "cc", &all);
    project.split(name);
    library
}

#[test]
fn copies_in_one_process_find_the_runtime() {
    if !require::tool("patchelf") {
        return;
    }
    let project = Project::new(Form::None);
    let libraries = NAMES.map(|name| with_own_copy(&project, name, &[]));
    let source = project.tree.path("main.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = project.tree.path("linked");
    run(Command::new("cc")
        .arg("-Wl,--no-as-needed")
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg(project.tree.path("old/libamdhip64.so"))
        .args(&libraries));
    let linked = || Command::new(&program);
    let mut open = Command::new(project.program("kpack-hip/tests/c/open.c"));
    open.args(&libraries);
    let mut preloading = linked();
    preloading.env("LD_PRELOAD", preloaded());
    let mut off = linked();
    off.env("KPACK_HIP", "off");
    // Two wrappers each; the runtime takes fat ones only.
    for (mut command, expected) in [(linked(), 4), (open, 4), (preloading, 4), (off, 0)] {
        let (printed, events) = project.run("old", GFX90A, &mut command);
        assert!(printed.status.success(), "{command:?}: {printed:?}");
        let fat = |event: &&String| event.starts_with("fat\tmemory\t");
        let count = events.iter().filter(fat).count();
        assert_eq!(count, expected, "{command:?}: {events:#?}");
    }
}

#[test]
fn copies_with_a_runtime_each_use_their_own() {
    if !require::tool("patchelf") {
        return;
    }
    let project = Project::new(Form::None);
    let libraries = [("one", None), ("two", Some("-DMARKERS"))].map(|(name, markers)| {
        let runtime = project.tree.path(&format!("{name}/lib/libamdhip64-{name}.so"));
        std::fs::create_dir_all(runtime.parent().unwrap()).unwrap();
        let soname = runtime.file_name().unwrap().to_str().unwrap();
        run(Command::new("cc")
            .args(["-shared", "-fPIC"])
            .args(markers)
            .arg(format!("-DNAME=\"{name}\""))
            .arg(format!("-Wl,-soname,{soname}"))
            .arg("-o")
            .arg(&runtime)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/runtime.c")));
        let runtime = runtime.to_str().unwrap().to_owned();
        let library = with_own_copy(&project, name, &[runtime]);
        let link = library.with_file_name(format!("libvec-{name}.so"));
        std::os::unix::fs::symlink(&library, &link).unwrap();
        link
    });
    let directories = ["old", "one/lib", "two/lib"].map(|name| project.tree.path(name));
    let directories = std::env::join_paths(directories).unwrap();
    let program = project.program("kpack-hip/tests/c/open.c");
    // With their directories, and found in LD_LIBRARY_PATH.
    let names = NAMES.map(|name| PathBuf::from(format!("libvec-{name}.so")));
    for (arguments, preload) in
        [(&libraries, PathBuf::new()), (&names, PathBuf::new()), (&libraries, preloaded())]
    {
        for (mode, [one, two]) in [
            ("auto", ["one fat", "two split"]),
            ("off", ["one split", "two split"]),
            ("force", ["one fat", "two fat"]),
        ] {
            let printed = run(Command::new(&program)
                .args(arguments)
                .env("KPACK_HIP", mode)
                .env("LD_PRELOAD", &preload)
                .env("LD_LIBRARY_PATH", &directories)
                .env("HSA_OVERRIDE_GFX_VERSION", GFX90A));
            let expected = [one, one, two, two];
            assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{arguments:?}");
        }
    }
}
