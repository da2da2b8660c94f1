//! What is compared with what, and what must hold.

use crate::comparison::Bound::{Cpu, Memory, More, Read, Wall};
use crate::comparison::{Group, ROW, Row};
use crate::setup;

/// `library.so` in a prefix. A second name keeps it, so that neither side frees its blocks on the disk.
pub(crate) const FRESH_PREFIX: &str = "rm -rf prefix kept *.zst
    mkdir -p prefix/lib
    cp -L library.so prefix/lib
    ln prefix/lib/library.so kept";

/// `out`, empty. What was in it stays, without its contents: for minutes after many files were removed, ext4 without a
/// journal looks at the numbers of all of them for each new file, which would take most of the time.
const NEW_OUTPUT: &str = "mkdir -p before
    if [ -e out ]; then
        mv out before/$$
        find before/$$ -type f -size +0 -exec truncate -s 0 {} +
    fi
    mkdir out";

/// Splitting it.
pub(crate) const SPLIT: Row = Row {
    reference: ("`zstd -3 -T2`", "zstd -3 -T2 -q prefix/lib/library.so -o library.zst"),
    own: PLAIN,
    hashes: true,
    ..ROW
};

const PLAIN: &str = "kpack split --quiet --module bench --prefix prefix lib/library.so";

pub(crate) const GROUPS: &[Group] = &[
    Group {
        name: "split",
        setup: setup::largest,
        fresh: FRESH_PREFIX,
        rows: &[
            Row {
                what: "Split librocsparse (1.3 GB)",
                bounds: &[Wall(1.1), Cpu(1.0), Memory(100.0)],
                ..SPLIT
            },
            Row {
                what: "Split librocsparse (1.3 GB), and remove the unsplit file",
                reference: ("`zstd -3 -T2 --rm`", "rm kept
                    zstd -3 -T2 -q --rm prefix/lib/library.so -o library.zst"),
                own: "rm kept
                    kpack split --quiet --module bench --prefix prefix lib/library.so",
                ..ROW
            },
            Row {
                what: "Split librocsparse (1.3 GB)",
                reference: ("`cp`, flushed", "cp --reflink=never prefix/lib/library.so prefix/copy
                    sync prefix/copy"),
                own: PLAIN,
                ..ROW
            },
        ],
    },
    Group {
        name: "compressed",
        setup: setup::compressed,
        fresh: "rm -rf prefix out
            mkdir prefix out
            cp -r lib prefix",
        rows: &[Row {
            what: "Split six libraries with compressed bundles (bitsandbytes)",
            reference: ("`zstd -d` of the bundles, `zstd -3` of their code objects, two at once", "find frames -type f -print0 | xargs -0 -P 2 -n 1 zstd -dqc
                find objects -type f -print0 | xargs -0 -P 2 -n 16 zstd -3 -q --output-dir-flat out"),
            own: "kpack split --quiet --module bench --prefix prefix prefix/lib/*.so",
            bounds: &[Wall(1.1), Cpu(1.1), Memory(150.0)],
            hashes: true,
            ..ROW
        }],
    },
    Group {
        name: "split-small",
        setup: setup::small,
        fresh: "rm -rf prefix
            for i in $(seq 20); do mkdir -p prefix/$i/lib; cp library.so prefix/$i/lib; done",
        rows: &[
            Row {
                what: "Split a small library",
                reference: ("`/bin/true`", "for p in prefix/*; do /bin/true; done"),
                own: SMALL,
                bounds: &[More(5.0)],
                calls: 20,
                ..ROW
            },
            Row {
                what: "Split a small library",
                reference: ("`strip`", "for p in prefix/*; do strip -o $p/stripped $p/lib/library.so; done"),
                own: SMALL,
                calls: 20,
                ..ROW
            },
        ],
    },
    Group {
        name: "doctor",
        setup: setup::environment,
        fresh: "",
        rows: &[Row {
            what: "Examine an environment (300 distributions, 20 GB in sparse files)",
            reference: ("`pip check`", "env/bin/pip --disable-pip-version-check check"),
            own: "kpack doctor env --arch gfx1100",
            bounds: &[Wall(1.0), Memory(150.0)],
            ..ROW
        }],
    },
    Group {
        name: "tree",
        setup: setup::tree,
        fresh: NEW_OUTPUT,
        rows: &[
            Row {
                what: "Split an artifact directory (20 fat binaries, 2,000 database files)",
                reference: ("`tar`, `zstd -3 -T2`", "tar -C blas_lib -c . | zstd -3 -T2 -q -o out/tar.zst"),
                own: "kpack artifact split --quiet --artifact-prefix blas_lib --artifact-dir blas_lib --output-dir out/split",
                bounds: &[Wall(1.5), Cpu(1.5), Memory(150.0)],
                hashes: true,
                ..ROW
            },
            Row {
                what: "Recombine two shards of it",
                reference: ("`cp -r` of the output, flushed", "cp -r --reflink=never recombined out/copy
                    sync -f out/copy"),
                own: "kpack artifact recombine --quiet --input-shards-dir shards --config groups.json --output-dir out/recombined",
                bounds: &[Wall(1.2), Memory(150.0)],
                hashes: true,
                ..ROW
            },
            Row {
                what: "Verify the result",
                reference: ("`cat`, `zstd -t`, on all cores", "find recombined -type f -print0 | xargs -0 -P $(nproc) -n 64 cat
                    find frames -type f -print0 | xargs -0 -P $(nproc) -n 1 zstd -tq"),
                own: "kpack verify --quiet recombined",
                bounds: &[Wall(1.2), Memory(150.0)],
                hashes: true,
                ..ROW
            },
        ],
    },
    Group {
        name: "machines",
        setup: setup::machines,
        fresh: NEW_OUTPUT,
        rows: &[
            Row { what: "Pack 1 component for 8 targets", size: 1, ..PACK },
            Row { what: "Pack 10 components for 8 targets", size: 10, ..PACK },
            Row { what: "Pack 100 components for 8 targets", size: 100, large: true, ..PACK },
            Row { what: "Unpack 1 component for 8 targets", size: 1, ..UNPACK },
            Row { what: "Unpack 10 components for 8 targets", size: 10, ..UNPACK },
            Row { what: "Unpack 100 components for 8 targets", size: 100, large: true, ..UNPACK },
            Row { what: "Recombine 1 component of 3 shards", size: 1, ..RECOMBINE },
            Row { what: "Recombine 10 components of 3 shards", size: 10, ..RECOMBINE },
            Row { what: "Recombine 100 components of 3 shards", size: 100, large: true, ..RECOMBINE },
        ],
    },
    Group {
        name: "load",
        setup: setup::load,
        fresh: "",
        rows: &[
            Row {
                what: "Open an archive (111 code objects)",
                reference: ("`/bin/true`", "/bin/true"),
                own: "./load open bench.kpack 200",
                bounds: &[More(1.0)],
                calls: 200,
                ..ROW
            },
            Row {
                what: "Load all its kernels (190 MB), one thread",
                reference: ("`ZSTD_decompressDCtx`", "./load zstd bench.kpack 1"),
                own: "./load kpack bench.kpack 1",
                bounds: &[Wall(1.05), Cpu(1.05)],
                ..ROW
            },
            Row {
                what: "Load all its kernels (190 MB), two threads",
                reference: ("`ZSTD_decompressDCtx`", "./load zstd bench.kpack 2"),
                own: "./load kpack bench.kpack 2",
                bounds: &[Wall(1.05), Cpu(1.05)],
                ..ROW
            },
        ],
    },
    Group {
        name: "modules",
        setup: setup::modules,
        fresh: "",
        rows: &[
            Row {
                what: "Load a module (2 MB, plain bundle) of a Rust program",
                reference: ("`/bin/true`", "/bin/true"),
                own: "./plain module gfx90a 200",
                bounds: &[More(1.0)],
                calls: 200,
                ..ROW
            },
            Row {
                what: "Load a module (2 MB, compressed bundle) of a Rust program",
                reference: ("`ZSTD_decompressDCtx`", "./plain bundle bundle.ccob 200"),
                own: "./compressed module gfx90a 200",
                // The only checksum of such a bundle is MD5, which takes as long as decompressing.
                bounds: &[],
                calls: 200,
                ..ROW
            },
            Row {
                what: "Load a module (2 MB) of a Rust program that was split",
                reference: ("`ZSTD_decompressDCtx`", "./plain frames module.kpack 200"),
                own: "./split/bin/load module gfx90a 200",
                bounds: &[Wall(1.05), Cpu(1.05)],
                calls: 200,
                ..ROW
            },
        ],
    },
    Group {
        name: "runtime",
        setup: setup::runtime,
        fresh: "",
        rows: &[
            Row {
                what: "Load librocsparse's kernels (190 MB) in ROCm 7.14's runtime",
                reference: ("the unsplit library", "sh start rocm fat/lib/library.so"),
                own: START,
                // 1.1 times the 515 MB of the unsplit library.
                bounds: &[Wall(1.05), Memory(567.0)],
                ..ROW
            },
            Row {
                what: "Load librocsparse's kernels (190 MB) in ROCm 7.14's runtime",
                reference: (
                    "the unsplit library, and `zstd -d` of the kernels",
                    "sh start rocm fat/lib/library.so
                    zstd -dqc code.zst",
                ),
                own: START,
                bounds: &[Wall(1.1), Cpu(1.1)],
                ..ROW
            },
            Row {
                what: "Load librocsparse's kernels (190 MB) in ROCm 7.14's runtime",
                reference: ("ROCm's loader", "sh start rocm split/lib/library.so"),
                own: START,
                ..ROW
            },
            Row {
                what: "Load the same from files that are not in memory",
                reference: ("the unsplit library", "dd if=fat/lib/library.so iflag=nocache count=0 status=none
                    sh start rocm fat/lib/library.so"),
                own: "dd if=split/lib/.kpack/bench_lib_gfx1030.kpack iflag=nocache count=0 status=none
                    dd if=split/lib/library.so iflag=nocache count=0 status=none
                    sh start kpack split/lib/library.so",
                ..ROW
            },
            Row {
                what: "Load the code object of a small library in ROCm 7.14's runtime",
                reference: ("the unsplit library", "for i in $(seq 20); do sh start rocm fat/lib/small.so; done"),
                own: "for i in $(seq 20); do sh start kpack split/lib/small.so; done",
                bounds: &[More(2.0)],
                calls: 20,
                ..ROW
            },
        ],
    },
    Group {
        name: "join",
        setup: setup::join,
        fresh: "rm -f joined",
        rows: &[
            Row {
                what: "Join librocsparse for one GPU (190 MB)",
                reference: ("`cp` of the output, flushed", "cp --reflink=never --sparse=never copy joined
                    sync joined"),
                own: JOIN,
                bounds: &[Wall(1.5), Memory(150.0)],
                hashes: true,
                ..ROW
            },
            Row {
                what: "Join librocsparse for one GPU (190 MB)",
                reference: ("`zstd -d` of its code into a file, flushed", "zstd -d -q --no-sparse code.zst -o joined
                    sync joined"),
                own: JOIN,
                bounds: &[Wall(1.1)],
                ..ROW
            },
        ],
    },
    Group {
        name: "trim",
        setup: setup::trim,
        fresh: FRESH_PREFIX,
        rows: &[Row {
            what: "Trim librocsparse for one GPU (1.3 GB, plain bundles)",
            reference: ("`cp` of the output, flushed", "cp --reflink=never --sparse=never trimmed.so prefix/copy
                sync prefix/copy"),
            own: "kpack trim --quiet --arch gfx1030 prefix/lib/library.so",
            bounds: &[Wall(1.3), Memory(64.0)],
            ..ROW
        }],
    },
    Group {
        name: "stage",
        setup: setup::stage,
        // Splitting replaces one name of the library, and reads the same blocks as staging.
        fresh: "rm -rf staged split
            mkdir -p split/lib
            ln prefix/lib/library.so split/lib",
        rows: &[
            Row {
                what: "Stage librocsparse (1.3 GB)",
                reference: ("`cp -r` of the output, flushed", "cp -r --reflink=never --sparse=never prefix staged
                    sync staged/lib/library.so"),
                own: "kpack stage --quiet --system-rocm prefix/lib/library.so --output-dir staged",
                bounds: &[Wall(1.2), Memory(64.0)],
                ..ROW
            },
            Row {
                what: "Stage librocsparse for one GPU (190 MB)",
                reference: ("`cp` of the output, flushed", "mkdir staged
                    cp --reflink=never --sparse=never trimmed.so staged
                    sync staged/trimmed.so"),
                own: "kpack stage --quiet --system-rocm --arch gfx1030 prefix/lib/library.so --output-dir staged",
                bounds: &[Wall(1.3), Memory(64.0)],
                ..ROW
            },
            Row {
                what: "Stage librocsparse in parts (1.3 GB)",
                reference: ("`cp -r` of the output, flushed, and `kpack split`", "cp -r --reflink=never --sparse=never parts staged
                    find staged -type f -exec sync {} +
                    kpack split --quiet --module bench --prefix split lib/library.so"),
                own: "kpack stage --quiet --system-rocm --split prefix/lib/library.so --output-dir staged",
                bounds: &[Wall(1.2), Memory(100.0)],
                ..ROW
            },
        ],
    },
    Group {
        name: "trim-compressed",
        setup: setup::trim_compressed,
        fresh: FRESH_PREFIX,
        rows: &[Row {
            what: "Trim RCCL 7.2 for one GPU (361 MB, compressed bundles)",
            reference: (
                "`zstd -d` of all bundles, `zstd -3` of what stays, flushed",
                "for f in frames/*; do zstd -dqc $f > /dev/null; done
                zstd -3 -q stays/* --output-dir-flat prefix
                sync prefix/*",
            ),
            own: "kpack trim --quiet --arch gfx1100 prefix/lib/library.so",
            // The window of its bundles has 128 MiB.
            bounds: &[Wall(1.1), Cpu(1.1), Memory(198.0)],
            ..ROW
        }],
    },
    Group {
        name: "trim-tree",
        setup: setup::trim_tree,
        // Other names keep the files, so that none of their blocks are freed.
        fresh: "mkdir -p before
            for old in tree copy; do if [ -e $old ]; then mv $old before/$$.$old; fi; done
            cp -rl 10000 tree
            sync -f tree",
        rows: &[
            Row {
                what: "Trim a tree of 10,000 files for one GPU",
                reference: ("`cp -r` of the output, flushed", "cp -r --reflink=never trimmed copy
                    sync -f copy"),
                own: TRIM_TREE,
                bounds: &[Wall(1.3), Memory(64.0)],
                size: 10_000,
                ..ROW
            },
            Row {
                what: "Trim a tree of 10,000 files for one GPU",
                reference: ("`cat` of all files, `rm` of what goes", "find tree -type f -print0 | xargs -0 cat
                    xargs -0 rm < goes"),
                own: TRIM_TREE,
                size: 10_000,
                ..ROW
            },
        ],
    },
    Group {
        name: "join-windows",
        setup: setup::join_windows,
        fresh: "rm -f joined",
        rows: &[Row {
            what: "Join a DLL of 190 MB",
            reference: (
                "join of an ELF file with the same device code",
                "kpack join --quiet --arch gfx1030 --prefix elf --output joined lib/bench.so",
            ),
            own: "kpack join --quiet --arch gfx1030 --prefix pe --output joined bin/bench.dll",
            bounds: &[Cpu(1.05)],
            ..ROW
        }],
    },
    Group {
        name: "wheel",
        setup: setup::wheels,
        fresh: "rm -rf out
            mkdir -p out/packed",
        rows: &[
            Row {
                what: "Split the wheel of cyllama-rocm (plain bundles)",
                reference: ("`wheel unpack`, `wheel pack`", "tools/bin/wheel unpack --dest out cyllama-rocm/*.whl
                    tools/bin/wheel pack --dest-dir out/packed out/*-*
                    sync out/packed/*"),
                own: "kpack wheel split --quiet --output-dir out/split cyllama-rocm/*.whl",
                bounds: &[Wall(0.5), Memory(200.0)],
                hashes: true,
                ..ROW
            },
            Row {
                what: "Split the wheel of bitsandbytes (compressed bundles, much host code)",
                reference: ("`wheel unpack`, `wheel pack`", "tools/bin/wheel unpack --dest out bitsandbytes/*.whl
                    tools/bin/wheel pack --dest-dir out/packed out/*-*
                    sync out/packed/*"),
                own: "kpack wheel split --quiet --output-dir out/split bitsandbytes/*.whl",
                bounds: &[Wall(1.0), Memory(200.0)],
                hashes: true,
                ..ROW
            },
        ],
    },
    Group {
        name: "build-dep",
        setup: setup::build_dependencies,
        fresh: "rm -rf */target",
        rows: &[
            Row {
                what: "Compile kpack-build as a build dependency",
                reference: ("`bindgen`", "cd bindgen; cargo build --offline --quiet"),
                own: BUILD,
                bounds: &[Cpu(1.2)],
                ..ROW
            },
            Row {
                what: "Compile kpack-build as a build dependency",
                reference: ("`cc`", "cd cc; cargo build --offline --quiet"),
                own: BUILD,
                ..ROW
            },
        ],
    },
    Group {
        name: "bytes",
        setup: setup::bytes,
        fresh: "rm -rf prefix out
            mkdir prefix out
            cp -r $SIZE prefix/lib",
        rows: &[
            Row { what: "Split 10 MB", size: 10, ..BYTES },
            Row { what: "Split 100 MB", size: 100, ..BYTES },
            Row { what: "Split 1 GB", size: 1000, ..BYTES },
            Row { what: "Split 5 GB", size: 5000, large: true, ..BYTES },
        ],
    },
    Group {
        name: "files",
        setup: setup::files,
        fresh: NEW_OUTPUT,
        rows: &[
            Row { what: "Split a tree of 100 files", size: 100, ..FILES },
            Row { what: "Split a tree of 1,000 files", size: 1000, ..FILES },
            Row {
 what: "Split a tree of 10,000 files",
 size: 10_000,
 bounds: &[Wall(1.3), Memory(20.0)],
 ..FILES
 },
            Row {
 what: "Split a tree of 100,000 files",
 size: 100_000,
 bounds: &[Wall(1.3), Memory(65.0)],
 ..FILES
 },
            Row { what: "Split a tree of 10,000 files", size: 10_000, ..READ_FILES },
            Row { what: "Split a tree of 100,000 files", size: 100_000, ..READ_FILES },
            Row { what: "Split a tree of 1,000,000 files", size: 1_000_000, large: true, ..FILES },
        ],
    },
];

const SMALL: &str =
    "for p in prefix/*; do kpack split --quiet --module bench --prefix $p lib/library.so; done";
const START: &str = "sh start kpack split/lib/library.so";
const JOIN: &str =
    "kpack join --quiet --arch gfx1030 --prefix prefix --output joined lib/library.so";
const TRIM_TREE: &str = "kpack trim --quiet --arch gfx942 tree";

const BUILD: &str = "cd kpack-build; cargo build --offline --quiet";

const BYTES: Row = Row {
    reference: ("`zstd -3 -T2`", "zstd -3 -T2 -q --output-dir-flat out prefix/lib/*.so"),
    own: "kpack split --quiet --module bench --prefix prefix prefix/lib/*.so",
    bounds: &[Memory(150.0)],
    ..ROW
};

const PACK: Row = Row {
    reference: (
        "`tar`, `zstd -3 -T0`, flushed",
        "for a in $SIZE/packages/*_lib_*; do tar -C $a -c . | zstd -3 -T0 -q -o out/${a##*/}.tar.zst; done
        sync -f out",
    ),
    own: "kpack artifact pack --quiet $SIZE/packages --output-dir out/store",
    bounds: &[Wall(1.2), Memory(200.0)],
    hashes: true,
    input: "packages",
    ..ROW
};

const UNPACK: Row = Row {
    reference: (
        "`zstd -dc`, `tar -x`, flushed",
        "for a in $SIZE/store/*.tar.zst; do mkdir out/${a##*/}; zstd -dc $a | tar -x -C out/${a##*/}; done
        sync -f out",
    ),
    own: "kpack artifact unpack --quiet $SIZE/store --output-dir out/unpacked",
    bounds: &[Wall(1.2), Memory(200.0)],
    hashes: true,
    input: "store",
    ..ROW
};

const RECOMBINE: Row = Row {
    reference: (
        "`cp -r` of the output, flushed",
        "cp -r --reflink=never $SIZE/packages out/copy
        sync -f out/copy",
    ),
    own: "kpack artifact recombine --quiet --input-shards-dir $SIZE/shards --config groups.json --output-dir out/packages",
    bounds: &[Memory(200.0), Read(1.3)],
    hashes: true,
    input: "shards",
    ..ROW
};

/// Half a kilobyte of memory for each file is the bound, and 15 MB for everything else.
/// Where a file belongs is decided before anything is written, so each is read twice.
const READ_FILES: Row = Row {
    reference: (
        "`cat` of all files, `cp -r`, flushed",
        "find $SIZE -type f -print0 | xargs -0 cat
        cp -r --reflink=never $SIZE out/copy
        sync -f out/copy",
    ),
    bounds: &[Wall(1.1)],
    ..FILES
};

const FILES: Row = Row {
    reference: (
        "`cp -r`, flushed",
        "cp -r --reflink=never $SIZE out/copy
        sync -f out/copy",
    ),
    own: "kpack artifact split --quiet --artifact-prefix blas_lib --artifact-dir $SIZE --output-dir out/split",
    ..ROW
};
