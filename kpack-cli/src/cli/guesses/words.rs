//! The words with which people say what they want: kpack's own, and those of other tools.

/// What somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Build,
    Bundle,
    Cmake,
    Compare,
    Compress,
    Doctor,
    Embed,
    Explain,
    Extract,
    Gpus,
    Install,
    Join,
    Libraries,
    List,
    Merge,
    Pack,
    Remove,
    Repair,
    Report,
    Show,
    Split,
    Stage,
    Trim,
    Verify,
    Version,
}

impl Intent {
    /// Whether its command writes, so that a last path may be where to.
    pub(super) fn writes(self) -> bool {
        use Intent::{Bundle, Compress, Extract, Join, Merge, Pack, Split, Stage, Trim};
        matches!(self, Bundle | Compress | Extract | Join | Merge | Pack | Split | Stage | Trim)
    }

    /// Whether an option of this name says more than the command before it.
    pub(super) fn replaces(self) -> bool {
        use Intent::{Doctor, Extract, Join, List, Merge, Show, Split, Trim};
        matches!(self, Doctor | Extract | Join | List | Merge | Show | Split | Trim)
    }
}

/// Verbs, also written as options, and nouns that stand for one. The first is the command whose help answers.
#[rustfmt::skip]
const VERBS: &[(Intent, &str)] = &[
    (Intent::Show, "show is i info inspect describe describes detail details identify file view cat display dump status print \
        examine analyze analyse probe query read open see look peek readelf objdump readobj has supports support supported contains \
        meta metadata header headers find search scan tell which is-split has-code"),
    (Intent::List, "list l ls ll t tf tvf kernel kernels code nm symbols contents content toc index members entries files enumerate \
        freeze"),
    (Intent::Extract, "extract x xf xvf get unpack unbundle unarchive unzip untar export pull dump-code carve decompress uncompress \
        save objcopy fetch-code read-code roc-obj dump-section only-section disassemble disasm xelf extract-elf"),
    (Intent::Split, "split separate externalize externalise detach offload outline divide break chop unlink extract-code strip-code \
        strip-gpu move move-code convert process transform partition kpack splice unmerge apply deb debs debian build-deb rpm rpms build-rpm"),
    (Intent::Join, "join reassemble undo unsplit restore revert rejoin inline reattach attach rollback reverse back putback put-back \
        put-code-back return unkpack reset recover"),
    (Intent::Merge, "join merge combine recombine assemble fuse glue union unite concat"),
    (Intent::Trim, "trim strip thin slim slimify shrink prune keep filter only select-arch reduce minimize minimise minify optimize \
        optimise debloat cut limit restrict retain tidy clean squash remove-section"),
    (Intent::Remove, "trim remove rm drop delete del exclude discard purge erase without uninstall"),
    (Intent::Verify, "verify check validate test lint audit fsck integrity checksum hash digest sha256 sha256sum b3sum sanity confirm \
        prove ensure verify-arch selftest doublecheck outdated"),
    (Intent::Compare, "verify diff cmp compare same equal"),
    (Intent::Report, "report du df size sizes stat stats statistics measure weigh breakdown summary summarize treemap"),
    (Intent::Doctor, "doctor diagnose diagnostics diag why debug troubleshoot health healthcheck env environment \
        diagnosis system problem problems works loads run exec execute trace strace untrim check-gpu check-gpus gpu-check test-gpu"),
    (Intent::Libraries, "doctor ldd lddtree libs depends deps dependencies needed"),
    (Intent::Repair, "doctor repair fix repack"),
    (Intent::Gpus, "doctor arch archs arches architecture architectures gpu gpus gfx target targets device devices rocminfo detect \
        list-gpus list-devices list-targets list-archs help-targets show-gpus"),
    (Intent::Explain, "explain error errors what meaning code-of lookup perror strerror reason"),
    (Intent::Stage, "stage copy cp deploy ship dist distribute collect gather release publish portable appimage vendor relocate"),
    (Intent::Bundle, "stage bundle"),
    (Intent::Pack, "create pack package archive c cf cvf ar new tar make-archive mkarchive create-archive"),
    (Intent::Compress, "split compress recompress zip gzip gz xz zst zstd"),
    (Intent::Embed, "create embed insert inject attach include append put import"),
    (Intent::Build, "split build b compile make cargo hipcc clang configure link generate init"),
    (Intent::Cmake, "split cmake cmakedir pkg-config pkgconfig find-package"),
    (Intent::Install, "doctor install add fetch download update upgrade sync require provide"),
    (Intent::Version, "show version ver about"),
];

/// What an option's value is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Against,
    Input,
    Module,
    Output,
    Removed,
    Targets,
}

#[rustfmt::skip]
const ROLES: &[(Role, &str)] = &[
    (Role::Against, "against original orig reference ref baseline before compare compare-to compare-with expected with fat unsplit-original"),
    (Role::Input, "i image in input inputs input-file input-dir file f path p prefix src source-dir root-dir tree binary lib library exe \
        wheel whl deb rpm program app from-dir directory dir"),
    (Role::Module, "module name m project package pkg"),
    (Role::Output, "o c out output outfile outdir out-file out-dir output-file output-dir output-directory out-directory d dest \
        destination dst w wheel-dir wheelhouse to into target-dir save save-to save-as write write-to to-dir install-dir dist-dir zip tar tarball"),
    (Role::Removed, "remove rm drop exclude delete without except not remove-arch remove-gpu drop-arch exclude-arch"),
    (Role::Targets, "a g t arch archs arches architecture architectures gpu gpus gpu-target gpu-targets gpu-arch gpu-archs target \
        targets offload-arch offload-archs amdgpu-target amdgpu-targets gfx gfx-arch keep keep-arch keep-only only for device devices \
        processor thin select rocm-arch pytorch-rocm-arch extract plat platform xelf extract-elf"),
];

/// What options without values ask for, besides what the command has.
#[rustfmt::skip]
const FLAGS: &[(Flag, &str)] = &[
    (Flag::Backup, "backup bak keep-original save-original"),
    (Flag::DryRun, "dry-run dryrun n simulate just-print no-act noop what-if whatif pretend"),
    (Flag::ForPrograms, "csv machine-readable parseable porcelain tsv xml yaml"),
    (Flag::Harmless, "all debug f force h human human-readable i in-place inplace l long progress r recurse recursive release type v \
        verbose vv y yes"),
    (Flag::HostOnly, "host-only no-gpu remove-section strip-all"),
    (Flag::Native, NATIVE),
];

/// What an option without a value asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    /// A copy of what changes.
    Backup,
    /// That nothing changes.
    DryRun,
    /// A form that programs read.
    ForPrograms,
    /// Nothing that changes what is meant.
    Harmless,
    /// Files without any code for GPUs.
    HostOnly,
    /// The GPUs of this machine.
    Native,
}

/// What stands for the GPUs of this machine.
const NATIVE: &str =
    "native auto current detect host-gpu local local-gpu my-gpu this-gpu this-machine";

/// Options with a value that says how to print.
const FORMATS: &str = "columns fields fmt format output-format showformat sort sort-by template";

/// Words that say nothing here: the inputs say it already.
const FILLERS: &str = "a an all and archives artifacts as binary can do does for from in into is it libraries library me my of on \
    please program rocm the there this to wheels whl with";

/// What a word or the name of an option asks for. Of a compound such as `list-targets`, the first part counts.
pub(super) fn intent(word: &str) -> Option<Intent> {
    let word = word.to_lowercase().replace('_', "-");
    if ["no-", "not-", "dont-", "don't-"].iter().any(|not| word.starts_with(not)) {
        return None;
    }
    verb(&word).or_else(|| word.split('-').filter(|part| part.len() > 1).find_map(verb))
}

/// The command whose help answers.
pub(super) fn command(intent: Intent) -> &'static str {
    let row = VERBS.iter().find(|(own, _)| *own == intent);
    row.and_then(|(_, words)| words.split(' ').next()).unwrap_or("show")
}

/// How packages are split.
pub(super) const PACKAGES: &str = "kpack makes no packages; docs/packages.md shows how to build them (`dh_kpack`, `%kpack_split`)";

/// How to undo `kpack trim`.
pub(super) const TRIMMED: &str = "only installing the files again brings back what `kpack trim` removed; `kpack doctor` prints the command";

/// What somebody has to know who types one of these words, besides the commands that come near.
#[rustfmt::skip]
const NOTES: &[(&str, &str)] = &[
    ("run exec execute", "kpack does not run programs; `kpack doctor` says whether their GPU code loads"),
    ("disassemble disasm", "kpack does not disassemble; `llvm-objdump -d` does, after `kpack extract`"),
    ("hash digest sha256 sha256sum b3sum", "`kpack show --json` prints the hashes that a manifest (.kpm) lists; `kpack verify` checks them"),
    ("ldd lddtree", "`ldd` lists all libraries; these are the ones with code for GPUs"),
    ("docker podman oci image images container", "kpack does not open images; run `kpack trim` in the RUN that installs (docs/trim.md)"),
    ("clean", "kpack keeps no cache; `kpack trim` removes the code for other GPUs"),
    ("owner", "`dpkg -S` or `rpm -qf` says which package a file belongs to"),
    ("backup snapshot", "kpack keeps no copies, so copy files with `cp -a` before you trim them; `kpack join` undoes a split"),
    ("config settings", "kpack has no configuration file; its commands have options"),
    ("deb debs debian build-deb split-deb rpm rpms build-rpm split-rpm", PACKAGES),
    ("untrim", TRIMMED),
    ("watch", "kpack does not run in the background; call it after each build"),
];

pub(super) fn note(word: &str) -> Option<&'static str> {
    NOTES.iter().find(|(words, _)| holds(words, word)).map(|(_, note)| *note)
}

/// What exactly this word asks for.
pub(super) fn verb(word: &str) -> Option<Intent> {
    VERBS.iter().find(|(_, words)| holds(words, word)).map(|(intent, _)| *intent)
}

/// The verb that a word with one wrong, missing, additional or exchanged letter was meant to be.
pub(super) fn misspelled(word: &str) -> Option<Intent> {
    let is_near = |known: &&str| known.len() > 3 && is_near(word, known);
    let mut verbs = VERBS.iter();
    verbs.find_map(|(intent, words)| words.split_whitespace().find(is_near).map(|_| *intent))
}

pub(super) fn is_near(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let start = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[start..], &other[start..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    match (&one[..one.len() - end], &other[..other.len() - end]) {
        ([], [_]) | ([_], [] | [_]) => true,
        ([a, b], [c, d]) => a == d && b == c,
        _ => false,
    }
}

pub(super) fn role(name: &str) -> Option<Role> {
    ROLES.iter().find(|(_, names)| holds(names, name)).map(|(role, _)| *role)
}

pub(super) fn flag(name: &str) -> Option<Flag> {
    FLAGS.iter().find(|(_, names)| holds(names, name)).map(|(flag, _)| *flag)
}

pub(super) fn is_native(word: &str) -> bool {
    holds(NATIVE, word)
}

pub(super) fn is_format(name: &str) -> bool {
    holds(FORMATS, name)
}

fn holds(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|own| own == word)
}

pub(super) fn is_filler(word: &str) -> bool {
    holds(FILLERS, &word.to_lowercase())
}
