//! Given trees before and after a split, when their sizes are reported, then every byte of every
//! file is in a row, and the rows before and after are about the same things.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command::succeeds;
use crate::shards::{PREFIX, one_shard, three_shards};
use kpack_artifact::sizes::{Depth, Row, Sizes, measure};
use kpack_cli::report::page;
use kpack_split::install::{InstallOptions, install};
use kpack_tests::fixture::{FatLibrary, Storage, add_and_mul, code_with};
use kpack_tests::require;
use kpack_tests::tree::{Tree, write};

fn sizes(tree: &Tree, after: &str, before: &[&str]) -> Sizes {
    let before: Vec<PathBuf> = before.iter().map(|path| tree.path(path)).collect();
    measure(&[tree.path(after)], &before).unwrap()
}

/// The size of all files below a directory.
fn bytes(tree: &Tree, directory: &str) -> u64 {
    let start = format!("{directory}/");
    let files = tree.files().into_iter().filter(|file| file.starts_with(&start));
    let sizes = files.map(|file| tree.path(&file).symlink_metadata().unwrap());
    sizes.filter(|metadata| metadata.is_file()).map(|metadata| metadata.len()).sum()
}

fn row<'a>(sizes: &'a Sizes, target: Option<&str>, what: &str) -> &'a Row {
    let mut rows = sizes.rows.iter();
    let found = rows.find(|row| row.target.as_deref() == target && row.what == what);
    found.unwrap_or_else(|| panic!("{what} for {target:?} is not in {sizes:#?}"))
}

#[test]
fn every_byte_is_in_a_row() {
    let tree = one_shard();
    let sizes = sizes(&tree, "shards/linux-a", &["in/linux-a"]);
    assert!(sizes.before_was_measured);
    assert_eq!(sizes.total(), (bytes(&tree, "in/linux-a"), bytes(&tree, "shards/linux-a")));
    let host = row(&sizes, None, "lib/librocblas.so.5");
    let device = row(&sizes, Some("gfx942"), "lib/librocblas.so.5");
    assert_eq!(host.module, "rocblas");
    assert!(device.before > 0 && device.after > 0 && device.after < device.before);
    let database = row(&sizes, Some("gfx942"), "rocblas database");
    assert_eq!(database.before, database.after);
    assert!(host.after < host.before);
}

#[test]
fn what_is_unpacked_where_nothing_was_measured_before() {
    let tree = one_shard();
    let after = sizes(&tree, "shards/linux-a", &[]);
    assert!(!after.before_was_measured);
    let kernels = row(&after, Some("gfx1100"), "lib/librocblas.so.5");
    let archive =
        format!("shards/linux-a/blas_lib_gfx1100/{PREFIX}/lib/.kpack/rocblas_lib_gfx1100.kpack");
    let index = row(&after, Some("gfx1100"), "archive index");
    assert_eq!(kernels.after + index.after, tree.path(&archive).metadata().unwrap().len());
    assert!(kernels.before > kernels.after);
    assert_eq!(index.before, 0);
}

#[test]
fn an_install_prefix_has_its_modules_from_its_archives() {
    let tree = one_shard();
    let unsplit = format!("in/linux-a/blas_lib/{PREFIX}");
    let binary = "lib/librocblas.so.5";
    tree.copy_file(&format!("{unsplit}/{binary}"), &format!("prefix/{binary}"));
    install(&InstallOptions::new(tree.path("prefix"), "rocblas", [binary]), &()).unwrap();
    let sizes = sizes(&tree, "prefix", &[&unsplit]);
    assert_eq!(sizes.total(), (bytes(&tree, &unsplit), bytes(&tree, "prefix")));
    for target in [None, Some("gfx942")] {
        let row = row(&sizes, target, binary);
        assert_eq!(row.module, "rocblas");
        assert!(row.before > row.after && row.after > 0, "{row:?}");
    }
}

#[test]
fn sums_by_module_and_target() {
    let tree = three_shards();
    let sizes = sizes(&tree, "shards", &["in"]);
    let total = sizes.total();
    for depth in [Depth::Module, Depth::Target, Depth::Binary] {
        let rows = sizes.by(depth);
        let sum = rows.iter().fold((0, 0), |sum, row| (sum.0 + row.before, sum.1 + row.after));
        assert_eq!(sum, total);
    }
    let modules: Vec<String> = sizes.by(Depth::Module).into_iter().map(|row| row.module).collect();
    assert_eq!(modules, ["artifacts", "rocblas"]);
    let targets: Vec<String> = sizes
        .by(Depth::Target)
        .into_iter()
        .map(|row| format!("{} {}", row.module, row.target.unwrap_or_default()))
        .collect();
    assert_eq!(
        targets,
        [
            "artifacts ",
            "rocblas ",
            "rocblas gfx1100",
            "rocblas gfx1101",
            "rocblas gfx90a:xnack+",
            "rocblas gfx942",
        ]
    );
}

/// A library with this many bytes of code for each target, which is not compressed.
fn library(tree: &Tree, sizes: &[(&str, usize)]) {
    let code = sizes.iter().map(|(target, size)| code_with(target, &vec![0; *size]));
    let library = tree.path("prefix/lib/libvec.so");
    FatLibrary::new().wrapper(Storage::Plain, Vec::from_iter(code)).build(&library).unwrap();
}

/// What the command prints of the prefix, and then of the same one once it is split.
fn reported(tree: &Tree, options: &[&str]) -> [String; 2] {
    let arguments = [&["report", "prefix"], options].concat();
    let fat = succeeds(tree, &arguments);
    install(&InstallOptions::new(tree.path("prefix"), "vec", ["lib/libvec.so"]), &()).unwrap();
    [fat, succeeds(tree, &arguments)]
}

#[test]
fn what_an_unsplit_tree_would_have_is_not_what_it_has() {
    let tree = Tree::new();
    library(&tree, &[("gfx1100", 40_000), ("gfx942", 40_000)]);
    let [fat, split] = reported(&tree, &[]);
    let would = "if split, a machine with gfx1100 or gfx942 would have ";
    assert!(fat.contains(would) && fat.contains(" installed (before compression) "), "{fat}");
    assert!(split.contains("\na machine with gfx1100 "), "{split}");
    assert!(!split.contains("if split") && !split.contains("compression"), "{split}");
}

#[test]
fn many_sizes_are_a_range_and_all_are_listed_if_asked_for() {
    let tree = Tree::new();
    let names = ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100"];
    let sizes = names.iter().enumerate().map(|(index, name)| (*name, 10_000 * (index + 1)));
    library(&tree, &Vec::from_iter(sizes));
    let fat = succeeds(&tree, &["report", "prefix"]);
    let range = fat.lines().last().unwrap();
    assert!(range.contains(" (gfx906) to ") && range.contains(" (gfx1100) installed"), "{fat}");
    let all = succeeds(&tree, &["report", "prefix", "--verbose"]);
    let listed = all.lines().filter(|line| line.contains("a machine with gfx"));
    assert_eq!(listed.count(), names.len(), "{all}");
}

#[test]
fn rows_fit_into_a_terminal_and_the_indexes_of_archives_share_one() {
    let tree = Tree::new();
    library(&tree, &[("gfx90a:sramecc+:xnack-", 1), ("gfx942", 1)]);
    let [_, split] = reported(&tree, &["--by", "binary"]);
    assert_eq!(split.matches("archive index").count(), 1, "{split}");
    assert!(split.contains("\n  all targets "), "{split}");
    let library = "lib/with/a/long/path/in/the/prefix/that/takes/a/whole/line/of/a/terminal.so";
    tree.copy_file("prefix/lib/libvec.so", &format!("prefix/{library}"));
    for depth in ["module", "target", "binary"] {
        let text = succeeds(&tree, &["report", "prefix", "--by", depth]);
        let rows = text.lines().filter(|line| line.ends_with('%'));
        for row in rows.filter(|line| !line.starts_with("a machine")) {
            assert!(row.len() <= 80, "{row}");
        }
    }
}

#[test]
fn the_page_needs_nothing_else() {
    let tree = one_shard();
    let sizes = sizes(&tree, "shards", &["in"]);
    let page = page(&sizes, "Sizes of <7.2 & \"later\">");
    assert!(page.contains("<h1>Sizes of &lt;7.2 &amp; &quot;later&quot;&gt;</h1>"));
    for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<svg").count(), 2);
    // The largest boxes show the names of files, whole: the browser shortens them where it must.
    assert!(page.contains("<div>librocblas.so.5</div>"), "{page}");
    // The page contains no path of this machine.
    assert!(!page.contains(tree.root().to_str().unwrap()));
    assert!(page.contains("<title>rocblas, gfx942, lib/librocblas.so.5: "));
    for (open, close) in [("<rect", "</rect>"), ("<text", "</text>"), ("<tr", "</tr>")] {
        assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"));
    // A table of targets, one of modules, and each module's binaries folded.
    assert_eq!(page.matches("<table").count(), 5);
    assert_eq!(page.matches("<details>").count(), 2);
    assert_eq!(page.matches("<td>total").count(), 2);
    let targets = sizes.by_target();
    let names: Vec<Option<&str>> = targets.iter().map(|row| row.target.as_deref()).collect();
    assert_eq!(names, [None, Some("gfx1100"), Some("gfx942")]);
    let sum = |side: fn(&Row) -> u64| targets.iter().map(side).sum::<u64>();
    assert_eq!((sum(|row| row.before), sum(|row| row.after)), sizes.total());
}

#[test]
fn a_file_is_no_tree() {
    let tree = one_shard();
    fs::write(tree.path("file"), "text").unwrap();
    let error = measure(&[tree.path("file")], &[]).unwrap_err();
    assert_eq!(error.id(), kpack_core::ids::UNKNOWN_FILE);
}

#[test]
fn a_fifo_has_no_bytes() {
    let tree = one_shard();
    let expected = sizes(&tree, "in/linux-a", &[]).total();
    let artifacts = fs::read_dir(tree.path("in/linux-a")).unwrap();
    let artifact = artifacts.flatten().next().unwrap().path();
    let fifo = artifact.join(PREFIX).join("lib/fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    assert_eq!(sizes(&tree, "in/linux-a", &[]).total(), expected);
}

/// Each shard has its own copy of the host files; an installation has one.
#[test]
fn what_a_machine_installs() {
    let tree = three_shards();
    let sizes = sizes(&tree, "shards", &["in"]);
    let targets: Vec<&str> = sizes.machines.iter().map(|m| m.target.as_str()).collect();
    assert_eq!(targets, ["gfx1100", "gfx1101", "gfx90a:xnack+", "gfx942"]);
    let one = bytes(&tree, "shards/linux-a/blas_lib_generic");
    let own = bytes(&tree, "shards/linux-c/blas_lib_gfx942");
    let machine = sizes.machines.last().unwrap();
    let lists = 1000;
    assert!(machine.after.abs_diff(one + own) < lists, "{machine:?}: {one} {own}");
    assert!(machine.after < machine.before && machine.before < sizes.total().0);
}

/// Given code for a GPU and generic code for its generation, then a machine gets both, whichever command one asks.
#[test]
fn report_and_install_agree_about_what_a_gpu_needs() {
    let tree = Tree::new();
    let binary = "lib/libvec.so";
    let library = add_and_mul(["gfx1100", "gfx11-generic"], ["gfx942", "gfx11-generic"]);
    for (prefix, targets) in [("one", vec!["gfx1100".parse().unwrap()]), ("all", vec![])] {
        fs::create_dir_all(tree.path(prefix).join("lib")).unwrap();
        library.build(&tree.path(prefix).join(binary)).unwrap();
        let mut options = InstallOptions::new(tree.path(prefix), "vec", [binary]);
        options.architectures = targets;
        install(&options, &()).unwrap();
    }
    let sizes = sizes(&tree, "all", &[]);
    let machines = Vec::from_iter(sizes.machines.iter().map(|machine| &*machine.target));
    assert_eq!(machines, ["gfx1100", "gfx942"]);
    for (machine, left_out) in
        std::iter::zip(&sizes.machines, [vec!["gfx942"], vec!["gfx1100", "gfx11-generic"]])
    {
        let is_left_out =
            |row: &&Row| row.target.as_deref().is_some_and(|target| left_out.contains(&target));
        let without: u64 = sizes.rows.iter().filter(is_left_out).map(|row| row.after).sum();
        assert_eq!(machine.after, sizes.total().1 - without, "{}", machine.target);
    }
    let installed = tree.files().into_iter().filter(|file| file.starts_with("one/lib/.kpack/"));
    let archives = Vec::from_iter(installed.filter(|file| file.ends_with(".kpack")));
    let archive = |target: &str| format!("one/lib/.kpack/vec_lib_{target}.kpack");
    assert_eq!(archives, [archive("gfx11-generic"), archive("gfx1100")]);
}

/// What is for a family is for each of its processors, and for no machine of its own.
#[test]
fn machines_install_what_is_for_families() {
    let tree = Tree::new();
    let sizes_by_name = [
        ("gfx1100", 1000),
        ("gfx11xx", 2000),
        ("gfx110x", 4000),
        ("gfx1201", 8000),
        ("gfx120x", 16_000),
    ];
    for (name, size) in sizes_by_name {
        let path = tree.path(&format!("tree/lib/aotriton.images/amd-{name}/a.aks2"));
        write(&path, vec![0; size]);
    }
    let sizes = sizes(&tree, "tree", &[]);
    let machines = sizes.machines.iter().map(|m| (m.target.as_str(), m.before, m.after));
    assert_eq!(Vec::from_iter(machines), [("gfx1100", 31_000, 7000), ("gfx1201", 31_000, 24_000)]);
}

#[test]
fn a_page_has_the_date_of_the_newest_input_or_the_one_that_is_given() {
    let tree = one_shard();
    let page = |epoch: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kpack"));
        command
            .args(["report", "shards", "--html", "page.html"])
            .current_dir(tree.root())
            .env_remove("SOURCE_DATE_EPOCH")
            .envs(epoch.map(|epoch| ("SOURCE_DATE_EPOCH", epoch)));
        assert!(command.output().unwrap().status.success());
        fs::read_to_string(tree.path("page.html")).unwrap()
    };
    let newest = page(None);
    assert!(newest.contains("<p>20"), "{newest}");
    // What the pictures are comes before them.
    let at = |text: &str| newest.find(text).unwrap_or_else(|| panic!("{text}: {newest}"));
    assert!(at("The first picture shows the sizes of the unpacked code") < at("<svg"));
    // The columns are called as on the terminal: it knows of no split.
    assert!(at("<h2>Now: ") > at("<h2>Unpacked: ") && at(">unpacked<th class=\"n\">now<") > 0);
    assert!(
        !newest.contains(">after<") && !newest.contains("After") && !newest.contains(" after<")
    );
    assert_eq!(newest, page(None));
    assert!(page(Some("1714521600")).contains("<p>2024-05-01</p>"));
}

/// Given a time that is none, when a page or a store is written, then all commands say the same.
#[test]
fn a_time_that_is_no_number_is_an_error_everywhere() {
    let tree = three_shards();
    for arguments in [
        &["report", "shards", "--html", "page.html"][..],
        &["artifact", "pack", "shards/linux-a", "--output-dir", "store"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kpack"));
        command.args(arguments).current_dir(tree.root());
        let run = command.env("SOURCE_DATE_EPOCH", "now").output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        let expected = "SOURCE_DATE_EPOCH: expected seconds since 1970, found `now` [usage]";
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert_eq!(run.status.code(), Some(2));
    }
    assert!(!tree.path("page.html").exists() && !tree.path("store").exists());
}

/// The page in a real browser, light and dark, wide and narrow: nothing on its console, no scrolling sideways, the title
/// names the tree, and its tiles and totals are those of the JSON.
#[test]
fn a_browser_shows_what_the_json_says() {
    if !require::tool("chromium") {
        return;
    }
    let tree = one_shard();
    let report = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kpack"));
        command.arg("report").args(arguments);
        let run = command.current_dir(tree.root()).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        run.stdout
    };
    report(&["shards", "--before", "in", "--html", "page.html"]);
    let json = report(&["shards", "--before", "in", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let drawn = |key: &str| rows.iter().filter(|row| row[key] != 0).count();
    // The page says how wide it is, which only a script can find out.
    let page = fs::read_to_string(tree.path("page.html")).unwrap();
    let script = "<script>document.title+=` ${document.documentElement.scrollWidth<=innerWidth}`</script></body>";
    fs::write(tree.path("measured.html"), page.replace("</body>", script)).unwrap();
    for options in [
        &["--window-size=1280,900"][..],
        &["--window-size=500,900", "--blink-settings=preferredColorScheme=0"],
    ] {
        let mut browser = Command::new("chromium");
        browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]);
        browser.args(["--dump-dom", "--virtual-time-budget=2000"]).args(options);
        browser.arg(format!("--user-data-dir={}", tree.path("profile").display()));
        browser.arg(format!("file://{}", tree.path("measured.html").display()));
        let shown = browser.output().unwrap();
        let said = String::from_utf8_lossy(&shown.stderr);
        assert!(!said.contains("CONSOLE"), "{said}");
        let dom = String::from_utf8_lossy(&shown.stdout);
        assert!(dom.contains("<title>Sizes of rocblas true</title>"), "{options:?}: {dom}");
        let tiles = dom.matches("<rect").count();
        let modules: std::collections::BTreeSet<_> =
            rows.iter().map(|row| row["module"].as_str()).collect();
        // A tile a row, in each of the two pictures, and one around each module.
        assert_eq!(tiles, drawn("before") + drawn("after") + 2 * modules.len());
    }
}

#[test]
fn a_page_that_cannot_be_written_leaves_the_old_one() {
    let tree = Tree::new();
    fs::create_dir(tree.path("prefix")).unwrap();
    fs::write(tree.path("page.html"), "old").unwrap();
    let script =
        format!("ulimit -f 1; exec {} report prefix --html page.html", env!("CARGO_BIN_EXE_kpack"));
    let run = Command::new("sh").args(["-c", &script]).current_dir(tree.root()).output().unwrap();
    assert_eq!(run.status.code(), Some(4));
    assert_eq!(tree.files(), ["page.html"]);
    assert_eq!(fs::read(tree.path("page.html")).unwrap(), b"old");
}
