//! The packages of `docs/runtime.md` that join a library as they are installed, with dpkg and rpm.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kpack_tests::package_root::PackageRoot;

use super::super::readme::block;
use super::Real;
use super::rig::End;
use crate::{process, repository};

/// The names in the document.
const HOST: &str = "vec";
const DEVICE: &str = "vec-gfx1030";
const TARGET: &str = "gfx1030";
const LIBRARY: &str = "usr/lib/libvec.so.1";

impl Real<'_> {
    /// Installs a host package and the package with its device code, in different orders. The real
    /// runtime must find in the library what it finds in the unsplit one, `fat`.
    pub(super) fn recipe(&self, generator: &str, fat: &Path) -> Result<String> {
        process::step(&format!(
            "Following docs/runtime.md with {generator} packages"
        ));
        let work = self.work.join(format!("recipe-{generator}"));
        let [host, device] = match generator {
            "DEB" => self.debs(fat, &work)?,
            _ => self.rpms(fat, &work)?,
        };
        let root = PackageRoot::new(&work.join("root"))?;
        root.add_program(&self.kpack.join("bin/kpack"), "usr/bin/kpack")?;
        fs::create_dir_all(root.file("etc/vec"))?;
        fs::write(root.file("etc/vec/targets"), format!("{TARGET}\n"))?;
        let run = |actions: [&str; 2], what: &[&Path]| match generator {
            "DEB" => root.dpkg(actions[0], what),
            _ => root.rpm(actions[1], what),
        };
        let (install, again, remove) = (["-i", "-i"], ["-i", "--reinstall"], ["-r", "-e"]);
        let library = root.file(LIBRARY);
        let expected = self.rig.all(fat, TARGET)?;
        let is_joined = |when: &str| {
            let found = self.rig.all(&library, TARGET).context(when.to_owned())?;
            ensure!(found == expected, "{when}, the library has {found:?}");
            anyhow::Ok(())
        };

        run(install, &[&host])?;
        let alone = self.rig.all_for(&library, &[TARGET])?;
        ensure!(
            alone.end != End::Normal && alone.count() == 0,
            "without device code: {alone:?}"
        );
        run(install, &[&device])?;
        is_joined("with device code")?;
        run(again, &[&host])?;
        is_joined("after the host package again")?;
        run(remove, &[Path::new(DEVICE)])?;
        is_joined("after the removal of the device code")?;
        run(remove, &[Path::new(HOST)])?;
        run(install, &[&host, &device])?;
        is_joined("after both at once")?;
        Ok(format!(
            "{} code objects, after each of four orders",
            expected.len()
        ))
    }

    /// What the two packages contain, in directories with their names.
    fn trees(&self, fat: &Path, work: &Path) -> Result<[PathBuf; 2]> {
        let [host, device] = [HOST, DEVICE].map(|name| work.join(name));
        for tree in [&host, &device] {
            fs::create_dir_all(tree.join("usr/lib/.kpack"))?;
        }
        fs::copy(fat, host.join(LIBRARY))?;
        let (helper, prefix) = (self.kpack.join("bin/kpack"), host.join("usr"));
        process::run!("{helper} install --quiet --prefix {prefix} --module vec lib/libvec.so.1")?;
        let archive = format!("usr/lib/.kpack/vec_lib_{TARGET}.kpack");
        fs::rename(host.join(&archive), device.join(&archive))?;
        Ok([host, device])
    }

    fn debs(&self, fat: &Path, work: &Path) -> Result<[PathBuf; 2]> {
        let trees = self.trees(fat, work)?;
        for tree in &trees {
            let name = tree.file_name().unwrap_or_default().display();
            fs::create_dir(tree.join("DEBIAN"))?;
            let control = format!(
                "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: Vec <vec@example.org>\nDescription: Vectors\n"
            );
            fs::write(tree.join("DEBIAN/control"), control)?;
        }
        let recipe = section("### In a Debian package")?;
        let scripts = trees[0].join("DEBIAN");
        fs::write(scripts.join("triggers"), block(&recipe, "text")?)?;
        fs::write(scripts.join("postinst"), block(&recipe, "sh")?)?;
        fs::set_permissions(scripts.join("postinst"), Permissions::from_mode(0o755))?;
        for tree in &trees {
            process::run!("dpkg-deb --build --root-owner-group {tree} {tree}.deb")?;
        }
        Ok(trees.map(|tree| tree.with_extension("deb")))
    }

    fn rpms(&self, fat: &Path, work: &Path) -> Result<[PathBuf; 2]> {
        let trees = self.trees(fat, work)?;
        let recipe = section("### In an RPM package")?;
        for (tree, trigger) in trees.iter().zip([block(&recipe, "spec")?, ""]) {
            let name = tree.file_name().unwrap_or_default().display();
            let spec = format!(
                "Name: {name}\nVersion: 1\nRelease: 1\nSummary: Vectors\nLicense: MIT\n\
                 %global __os_install_post %{{nil}}\n%description\nVectors\n\
                 %install\ncp -a {}/. %{{buildroot}}\n%files\n/usr\n{trigger}",
                tree.display()
            );
            let file = tree.with_extension("spec");
            fs::write(&file, spec)?;
            let definitions = [
                format!("_topdir {}", work.join("top").display()),
                format!("_rpmdir {}", work.display()),
                "_rpmfilename %{name}.rpm".to_owned(),
                "_build_id_links none".to_owned(),
            ];
            let definitions = definitions.iter().flat_map(|text| ["--define", text]);
            process::run!("rpmbuild -bb {definitions...} {file}")?;
        }
        Ok(trees.map(|tree| tree.with_extension("rpm")))
    }
}

/// A section of the document, to its end.
fn section(title: &str) -> Result<String> {
    let document = fs::read_to_string(repository::root().join("docs/runtime.md"))?;
    let (_, section) = document
        .split_once(title)
        .with_context(|| format!("docs/runtime.md has no section `{title}`"))?;
    Ok(section.to_owned())
}
