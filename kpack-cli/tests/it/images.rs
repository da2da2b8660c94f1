//! Given the root of an image, when the doctor examines it, then paths and absolute links are resolved in it, and neither
//! files outside nor variables of this machine count.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, code, stub_library};
use kpack_tests::package_root::PackageRoot;
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::Tree;

use crate::command::{NOBODY, command, for_every_user, kpack};

const ARCHIVE: &str = "image/opt/vec-1/lib/.kpack/vec_lib_gfx942.kpack";

/// A tree with the root `image` of a system with merged directories and ROCm, both below absolute links, and a split
/// library that finds the HIP runtime by an absolute path. `outside` has the same library.
pub(crate) fn image() -> Option<Tree> {
    if !require::tools(&["cc", "ldd"]) || !require::root() {
        return None;
    }
    let tree = Tree::new();
    let image = tree.path("image");
    drop(PackageRoot::new(&image).unwrap());
    for name in ["lib", "lib64"] {
        let (from, to) = (image.join(name), image.join("usr").join(name));
        fs::create_dir_all(&to).unwrap();
        if from.is_dir() {
            run(Command::new("cp").arg("-a").arg(from.join(".")).arg(&to));
            fs::remove_dir_all(&from).unwrap();
        }
        symlink(format!("/usr/{name}"), from).unwrap();
    }
    let rocm = image.join("opt/rocm-7/lib");
    let loader = rocm.join("librocm_kpack.so.0");
    stub_library(&loader, "int kpack_load_code_object(void) { return 1; }", &[]);
    let hip = "int kpack_load_code_object(void);\nint (*loads)(void) = kpack_load_code_object;";
    stub_library(&rocm.join("libamdhip64.so.7"), hip, &[&loader]);
    symlink("/opt/rocm-7", image.join("opt/rocm")).unwrap();
    symlink("/opt/vec-1", image.join("opt/vec")).unwrap();
    for prefix in [image.join("opt/vec-1"), tree.path("outside")] {
        let codes = ["gfx942", "gfx1030"].map(|target| code(target, "add"));
        let library = FatLibrary::new().wrapper(Storage::Plain, codes);
        let library = library.flag("-Wl,--no-as-needed,-rpath,/opt/rocm/lib");
        let library = library.flag(rocm.join("libamdhip64.so.7"));
        library.build(&prefix.join("lib/libvec.so")).unwrap();
        install(&InstallOptions::new(&prefix, "vec", ["lib/libvec.so"]), &()).unwrap();
    }
    Some(tree)
}

/// What the doctor says about a path in the image, and its exit code, with variables that would change the result.
pub(crate) fn said(tree: &Tree, arguments: &[&str]) -> (String, Option<i32>) {
    let mut command = command(tree, &["doctor", "--root", "image", "--arch", "gfx942"]);
    command.args(arguments).env("ROCM_KPACK_DISABLE", "1").env("ROCM_KPACK_PATH", "/nowhere");
    command.env("LD_LIBRARY_PATH", "/nowhere").env("VIRTUAL_ENV", tree.root());
    let output = command.output().unwrap();
    let text = [&*output.stdout, &output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

#[test]
fn absolute_links_lead_into_the_image() {
    let Some(tree) = image() else { return };
    for path in ["/opt/vec", "opt/vec/lib/libvec.so"] {
        let (said, code) = said(&tree, &[path, "-v"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.starts_with("GPU code will load for gfx942\n"), "{said}");
        // The runtime is that of the image.
        assert!(said.contains("/opt/rocm/lib/libamdhip64.so.7"), "{said}");
        assert!(!said.contains(tree.root().to_str().unwrap()), "{said}");
    }
    fs::remove_file(tree.path(ARCHIVE)).unwrap();
    let (said, code) = said(&tree, &["/opt/vec"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/opt/vec-1/lib/.kpack/vec_lib_gfx942.kpack"), "{said}");
}

/// Given links that lead out of the image to files that would do, then those do not count.
#[test]
fn nothing_leads_out_of_the_image() {
    let Some(tree) = image() else { return };
    let image = tree.path("image");
    let outside = tree.path("outside");
    for (name, to) in [
        ("absolute", outside.clone()),
        ("relative", Path::new("../../outside").to_owned()),
        (
            "far",
            Path::new("../../../../../../../../../..").join(outside.strip_prefix("/").unwrap()),
        ),
    ] {
        symlink(to, image.join("opt").join(name)).unwrap();
        let (said, code) = said(&tree, &[&format!("/opt/{name}")]);
        assert!(code != Some(0) && said.contains("No such file"), "{name}: {said}");
    }
    for outer in ["/opt/../../outside", "../outside"] {
        let (said, code) = said(&tree, &[outer]);
        assert!(code != Some(0) && said.contains("No such file"), "{outer}: {said}");
    }
    // Archives that only this machine has.
    let archives = image.join("opt/vec-1/lib/.kpack");
    fs::remove_dir_all(&archives).unwrap();
    symlink(outside.join("lib/.kpack"), &archives).unwrap();
    let plain = kpack(&tree, &["doctor", "image/opt/vec-1", "--arch", "gfx942", "-v"]);
    let plain = String::from_utf8(plain.stdout).unwrap();
    assert!(plain.contains("split, with code for gfx942"), "{plain}");
    let (said, code) = said(&tree, &["/opt/vec"]);
    assert!(code == Some(1) && said.contains("[missing-archive]"), "{said}");
}

/// Given several installations of ROCm, then the doctor examines the one that `/opt/rocm` leads to, or else the newest.
#[test]
fn the_newest_rocm_is_meant() {
    let Some(tree) = image() else { return };
    let opt = tree.path("image/opt");
    fs::remove_file(opt.join("rocm")).unwrap();
    for version in ["6.4.3", "7.9.0", "7.10.0", "7.10.0-rc1", "core"] {
        run(Command::new("cp")
            .arg("-a")
            .arg(opt.join("vec-1"))
            .arg(opt.join(format!("rocm-{version}"))));
    }
    for (link, examined) in [(None, "rocm-7.10.0"), (Some("rocm-7.9.0"), "rocm-7.9.0")] {
        if let Some(to) = link {
            symlink(to, opt.join("rocm")).unwrap();
        }
        let (said, _) = said(&tree, &["-v"]);
        let libraries = said.matches("/lib/libvec.so: ").count();
        let found = said.matches(&format!(" /opt/{examined}/lib/libvec.so: ")).count();
        assert!(found > 0 && found == libraries, "{examined}: {said}");
    }
}

/// Given a FIFO where a file of the system should be, then the doctor does not wait for it.
#[test]
fn files_of_the_system_that_are_none() {
    let Some(tree) = image() else { return };
    let linker = "usr/lib64/ld-linux-x86-64.so.2";
    if !tree.path("image").join(linker).is_file() {
        return require::skip("this machine has another dynamic linker");
    }
    for file in ["etc/ld.so.cache", "etc/ld.so.preload", linker, "proc/self/cgroup"] {
        let path = tree.path("image").join(file);
        let _ = fs::remove_file(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        run(Command::new("mkfifo").arg(&path));
        let (said, _) = said(&tree, &["/opt/vec", "-v"]);
        assert!(said.contains("split, with code for gfx942"), "{file}: {said}");
    }
    let (said, _) = said(&tree, &["/opt/vec", "-v"]);
    assert!(said.contains("is not that of the GNU C library"), "{said}");
}

/// Given a command for an image, then it is not one for this machine's shell.
#[test]
fn a_command_is_for_the_image() {
    let Some(tree) = image() else { return };
    // A runtime that reads no markers.
    stub_library(&tree.path("image/opt/rocm-7/lib/libamdhip64.so.7"), "", &[]);
    let (text, code) = said(&tree, &["/opt/vec"]);
    assert_eq!(code, Some(1), "{text}");
    let command = "\nkpack join --prefix /opt/vec-1 --arch gfx942 lib/libvec.so\n\
                   note: run this inside the image image, not here\n";
    assert!(text.contains(command), "{text}");
    assert_eq!(said(&tree, &["/opt/vec", "--fix"]).0, "");
}

/// Given an image that was trimmed, then the doctor finds its note and its packages in the image.
#[test]
fn what_was_trimmed_in_an_image_comes_from_its_packages() {
    let Some(tree) = image() else { return };
    let info = tree.path("image/var/lib/dpkg");
    let status =
        "Package: vec\nStatus: install ok installed\nVersion: 1.0-1\nArchitecture: amd64\n\n";
    fs::write(info.join("status"), status).unwrap();
    let list = "/opt/vec-1/lib/libvec.so\n/opt/vec-1/lib/.kpack/vec_lib.kpm\n\
                /opt/vec-1/lib/.kpack/vec_lib_gfx942.kpack\n";
    fs::write(info.join("info/vec.list"), list).unwrap();
    let trim = ["trim", "--arch", "gfx1030", "--root", "image", "/opt/vec"];
    let trimmed = kpack(&tree, &trim);
    assert!(trimmed.status.success(), "{trimmed:?}");
    let (text, code) = said(&tree, &["/opt/vec"]);
    assert_eq!(code, Some(1), "{text}");
    let command = "\napt-get install --reinstall 'vec=1.0-1'\n\
                   note: run this inside the image image, not here\n";
    assert!(text.contains(command), "{text}");
    assert!(text.contains("says /opt/vec-1/.kpack-trimmed"), "{text}");
}

#[test]
fn a_gpu_has_to_be_named() {
    let tree = Tree::new();
    fs::create_dir(tree.path("image")).unwrap();
    let output = kpack(&tree, &["doctor", "--root", "image", "/opt"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = kpack(&tree, &["doctor", "--root", "no", "--arch", "gfx942", "/opt"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("no: ") && text.contains("No such file"), "{text}");
}

/// Given a user who is not root, then a user namespace does it, or the doctor says who may.
#[test]
fn users_examine_images_as_well() {
    let Some(tree) = image() else { return };
    fs::set_permissions(tree.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let (kpack, _directory) = for_every_user();
    let mut command = Command::new(kpack);
    command.current_dir(tree.root()).args(["doctor", "--root", "image", "--arch", "gfx942"]);
    let output = command.arg("/opt/vec").uid(NOBODY).gid(NOBODY).output().unwrap();
    let text = [&*output.stdout, &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    if text.contains("image: only root can use it as a root directory here") {
        return require::skip("this system has no user namespaces for users");
    }
    assert_eq!(text, "GPU code will load for gfx942\n");
}
