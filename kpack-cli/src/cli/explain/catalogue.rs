//! The texts of all findings: what each means, why it matters, and what to do.
//!
//! `kpack explain ID` prints an entry, and docs/findings.md is made from them. They are here and not beside the
//! IDs, because every build script compiles those.

use kpack_core::{Id, ids};

/// An entry of the catalogue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The ID.
    pub(super) id: Id,
    /// What it means.
    pub(super) meaning: &'static str,
    /// Why it matters.
    pub(super) why: &'static str,
    /// What to do.
    pub(super) help: &'static str,
}

/// Entries about one subject.
#[derive(Debug, Clone, Copy)]
pub(super) struct Section {
    /// Its heading.
    pub(super) title: &'static str,
    /// The entries.
    pub(super) entries: &'static [Entry],
}

/// The entries of all sections.
pub(super) fn entries() -> impl Iterator<Item = &'static Entry> {
    SECTIONS.iter().flat_map(|section| section.entries)
}

/// Makes the list of sections.
macro_rules! catalogue {
    ($($title:literal { $($id:ident $meaning:literal $why:literal $help:literal)* })*) => {
        /// The catalogue.
        pub(super) const SECTIONS: &[Section] = &[$(Section {
            title: $title,
            entries: &[$(Entry { id: ids::$id, meaning: $meaning, why: $why, help: $help }),*],
        }),*];
    };
}

catalogue! {
    "Files" {
        NOT_A_FILE
            "A directory, a device, a FIFO or a socket is where a regular file is expected."
            "Reading it could block, or change the system."
            "Name a regular file, or a link to one."

        UNKNOWN_FILE
            "The file is not of a kind that this command reads."
            "kpack tells files apart by their first bytes, and guesses nothing."
            "Name a file of a kind that the message lists; `kpack show FILE` reports what a file is."

        CHANGED
            "The file was replaced or modified while kpack read it."
            "The parts that were read may not fit together, so nothing was written."
            "Run the command again when nothing else writes the file."

        OUTSIDE_PREFIX
            "A path leads out of the install prefix."
            "Markers hold paths relative to the binary, so both must move together."
            "Name a path within the prefix, or another prefix."

        UNREPRESENTABLE_PATH
            "A path is not UTF-8, or has a byte that markers cannot hold."
            "Markers and manifests name files, and are UTF-8."
            "Rename the file or directory."

        WINDOWS_NAME
            "No file can have this name on Windows, where kpack runs."
            "It would lead to a device, to another stream of a file, or out of the output directory."
            "Run kpack on Linux or in WSL, or rename what the message names."

        NOT_TEXT
            "A text file is not UTF-8."
            "Its names could not be compared with others."
            "Save it as UTF-8."

        LEFTOVER
            "A hidden file or directory that a run of kpack left when it was killed."
            "It takes space, and is not part of what is installed."
            "Run the command again, which removes it, or delete it."

        OUTPUT_IN_THE_WAY
            "Something that is not kpack's to replace is where output would go."
            "kpack replaces regular files that it could have written, and nothing else."
            "Remove it, or choose another output."

        SYSTEM
            "A call of the operating system failed."
            "The message has the call and its cause. What was being written was not published."
            "Remove the cause: a full disk, permissions, too many open files. Then run the command again."

        USAGE
            "The arguments contradict each other, or one is invalid."
            "Nothing was read or written."
            "Correct the command; `--help` lists the arguments."

        RESOLVED_ELSEWHERE
            "A named file is a link to another file of the prefix, which is split instead."
            "The archives are named after the file, not after the link."
            "Nothing."

        SHARED_LINK
            "The file is a symbolic link to one that others may share."
            "Package managers such as uv link many installations to one file."
            "Write to `--output`, or name the file itself."

        ATTRIBUTE_LOST
            "The owner, a permission or an extended attribute of a file could not be kept."
            "File capabilities and labels decide what a program may do."
            "Run as root, or set the attribute again."

        UNCHANGED
            "The file stays as it is."
            "The message says why."
            "Nothing."

        UNSOUND_OUTPUT
            "The file that kpack wrote did not pass its own check, so it was not published."
            "The result might not load. This is a bug in kpack."
            "Report it, with the linker and its options. The input is unchanged."

        COMPILER
            "There is no suitable compiler, or it failed."
            "Nothing was compiled. The compiler's messages follow."
            "Correct the source, or name another compiler."
    }

    "Binaries" {
        DAMAGED_BINARY
            "The headers of a binary contradict each other or the file's size."
            "kpack rewrites only files that it can read without doubt."
            "Build or install the file again."

        UNSUPPORTED_BINARY
            "The file is sound, but of a form that kpack does not rewrite."
            "A wrong rewrite would show only when the program runs."
            "The message names the form; link the binary without it."

        SIGNED_BINARY
            "The Windows binary has a signature."
            "A changed binary no longer fits its signature, and Windows may refuse to run it."
            "Run kpack on the unsigned binary, then sign the result."

        STALE_CHECKSUM
            "The checksum in the header of the Windows binary is not that of the file."
            "A tool changed the file and did not renew the checksum, as most do, or the file is damaged. Windows compares it for drivers only."
            "If nothing changed the file on purpose, install it again."

        DAMAGED_BUNDLE
            "Device code in the binary cannot be read as an offload bundle."
            "Splitting it would lose code objects."
            "Build or install the file again."

        DAMAGED_CODE_OBJECT
            "A code object is not an ELF file for an AMD GPU, or its headers are wrong."
            "A HIP runtime would reject it when a kernel is loaded."
            "Build the file again."

        UNACCOUNTED_CODE
            "Bytes between bundles are neither padding nor in the bundle of a wrapper."
            "Splitting would lose them."
            "Build the file again; if it stays, report the linker and its options."

        NO_DEVICE_CODE
            "The binary has no device code."
            "There is nothing to split, join or verify."
            "Name a binary that was compiled for HIP."

        BUNDLES_IN_DATA
            "The read-only data of the binary contains offload bundles."
            "No wrapper refers to them: the program hands them to the HIP runtime itself, as TensorFlow does. So they stay in the host file."
            "Nothing."

        THIN_ARCHIVE
            "The static library is a thin archive: its members are files of their own."
            "The device code is in these files, and kpack does not look for them."
            "Name the members instead; `ar t FILE` lists them."

        SPLIT_ALREADY
            "The input is already split, and what was asked for needs the original."
            "A binary is split once; its archives keep the names that its marker has."
            "Split the original that was not split. For `kpack install`, you can also pass the module, component and directory that the message names."

        SPLIT_BY_ANOTHER_TOOL
            "Another tool split the binary, and its archives are not at hand."
            "Without them, its kernels do not load."
            "Install the archives that the message names beside the binary; `kpack wheel split --archives` adds them to wheels."

        SPLIT_BEFORE_LINK
            "The objects of the binary were split before the link, each with its own marker."
            "Their code objects are in the build tree until the binary is installed."
            "Run `kpack install` for it first."

        RECOMPILED_AFTER_LINK
            "No archive has the device code of an object that was split before the link."
            "The object was compiled again afterwards, so host and device code would not fit."
            "Link again."

        NO_ROOM
            "The new marker, or the new headers, do not fit into the binary."
            "Nothing else in the file may move."
            "Install to a shorter path, or follow the message."

        WITHOUT_WRAPPERS
            "There is device code, but nothing that registers it."
            "kpack finds code objects by their wrappers."
            "Nothing, if no host code uses it."

        OTHER_MODULE
            "The marker of the binary refers to another module."
            "Its code is in the archives of that module."
            "Name the module that the marker has, or none."

        FAT_BINARY
            "A binary still carries its device code."
            "It is as large as before, and needs no archives."
            "Split it with `kpack install`, if that was intended."

        BUILD_PATH
            "A released file contains the path of a directory of the build."
            "It tells others where you build, and differs between builds."
            "Pass `--remap-path-prefix` to the compiler, or `--allow-build-paths`."

        NOTHING_SPLIT
            "No split binary is in the prefix."
            "There is nothing to join or verify."
            "Name the prefix that the binaries were installed to."

        SPIRV_KEPT
            "A wrapper with SPIR-V stays in the binary."
            "HIP runtimes do not read SPIR-V from archives."
            "Nothing, or `--spirv drop` where all GPUs have native code."

        DEBUG_INFORMATION
            "Code objects have, or had, debug information."
            "Compilers write it for `-g`, and no strip tool sees into archives. It can be most of an archive, and only debuggers read it."
            "Nothing, or `--strip-debug`, which leaves it out; `--strip-debug=DIR` moves it to where debuggers look for it."

        NO_BUILD_ID
            "A code object keeps its debug information in the archive, because it has no build ID."
            "Debuggers find separate debug information of code objects by build ID, and compilers write none by default."
            "Link device code with `-Xoffload-linker --build-id`, and split again; `--strip-debug` without a directory removes it for good."

        SHARED_BUILD_ID
            "Two code objects that differ have the same build ID, so their debug files would have the same name."
            "Debuggers find separate debug information of code objects by build ID alone."
            "Link device code with `-Xoffload-linker --build-id`, which makes an ID of the contents. If a debug file of an earlier version is in the way, remove it or name another directory."

        DEBUG_NOT_REMOVABLE
            "A code object keeps its debug information, because it is laid out so that its debug sections cannot be removed."
            "Symbols refer to sections by number, so a section can be removed only if none that symbols refer to follows it. Compilers put debug sections last, unless asked to keep relocations."
            "Link device code without `--emit-relocs`."
    }

    "Comparison with the unsplit original" {
        HOST_DIFFERS
            "The host part of a split or joined binary differs from the unsplit original's."
            "Splitting changes the device code and the pointers to it, and nothing else."
            "Split the original again; if it stays, report it."
    }

    "This machine" {
        GPUS
            "The GPUs of the machine."
            "kpack checks whether there is code for these GPUs."
            "Nothing; `--arch` names others."

        HIDDEN_GPUS
            "`ROCR_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` or `CUDA_VISIBLE_DEVICES` hides GPUs of the machine from programs."
            "Programs load no kernels for them."
            "Unset the variable, if that was not intended."

        NO_GPU
            "No GPU was found on the machine."
            "kpack cannot tell which code is missing."
            "Pass the GPU with `--arch`, or tell the shim with HSA_OVERRIDE_GFX_VERSION; where there is one, load the amdgpu driver."

        LOADER_DISABLED
            "ROCM_KPACK_DISABLE turns the loader off."
            "Kernels of split binaries do not load."
            "Unset ROCM_KPACK_DISABLE."

        SEARCH_PATHS_SET
            "`ROCM_KPACK_PATH` or `ROCM_KPACK_PATH_PREFIX` sends the loader to other archives than the binaries name."
            "Programs may load other code than was installed."
            "Unset the variable, if that was not intended."

        CODE_FOUND
            "A binary finds its code for the GPUs or targets that the message names."
            "For information."
            "Nothing."

        EARLY_MARKER
            "The marker of the binary is in an early form without kernel names."
            "kpack cannot tell whether the archives have its code."
            "Install a build with newer markers to verify it."

        RUNTIME_READS_MARKERS
            "The HIP runtime reads markers, so it finds the code of split binaries."
            "For information."
            "Nothing."

        MARKERS_NOT_NEEDED
            "The HIP runtime does not read markers, and no binary here needs it to."
            "For information."
            "Nothing."

        RUNTIME_IGNORES_MARKERS
            "The HIP runtime does not read the markers of split binaries."
            "It finds no code, so kernels do not load."
            "Join the binaries with `kpack join`, or preload the shim."

        SHIM_OFF
            "KPACK_HIP stops the shim that would give the HIP runtime its code."
            "Kernels do not load."
            "Unset KPACK_HIP."

        MIXED_GPUS
            "The HIP runtime asks for code once for all GPUs, and the machine may have several kinds."
            "Only the first kind gets code; kernels fail on the others."
            "Join the binaries for all GPUs, or preload the shim with KPACK_HIP=force."

        ROCM_LOADER
            "ROCm's loader misses code that kpack's loader finds."
            "Kernels do not load with this HIP runtime."
            "Put kpack's loader in its place, or do what the message says."

        UNKNOWN_RUNTIME
            "kpack cannot tell which HIP runtime is used."
            "The binary was not linked with one, or its libraries cannot be listed."
            "Run `kpack doctor` for the program that loads it."

        NOT_LOADABLE
            "The dynamic linker would not load the file."
            "The program does not start."
            "Correct what the message says."

        MISSING_LIBRARY
            "A library that the HIP runtime or the program needs was not found."
            "The program does not start, or finds no kernels."
            "Install the library, or add its directory to LD_LIBRARY_PATH."
    }

    "Configuration" {
        BAD_CONFIGURATION
            "The configuration is not valid JSON, or has a wrong value or an unknown key."
            "A misspelled key would be ignored, and with it what you asked for."
            "Correct the place that the message names."
    }

    "Targets" {
        MISSING_TARGET
            "There is no device code for a GPU target."
            "Kernels do not load on such a GPU."
            "Install the archive for the target, or build with it in `--offload-arch`."

        CODE_DROPPED
            "The joined binary has code for a target now, and loses it."
            "GPUs of that target run it no longer."
            "Name all GPUs of the machine, or `--arch native`."

        GENERIC_CODE
            "A GPU gets the code of a generic target, such as gfx11-generic, or SPIR-V."
            "HIP runtimes take generic code since a certain version of ROCm; the message says which. They compile SPIR-V."
            "Nothing, if the runtime is that new."

        UNEXPECTED_TARGET
            "There is device code for a target that was not expected here."
            "It would be lost, or end up in a package for other GPUs."
            "Add the target to those expected, or build without it."
    }

    "Wheels" {
        WHEEL_SOUND
            "A wheel has the members that its RECORD lists, with the same hashes."
            "For information."
            "Nothing."

        DAMAGED_WHEEL
            "The wheel is damaged, or its members contradict its RECORD or each other."
            "Installers disagree about such wheels: some reject them, others install something else."
            "Build or download the wheel again."

        UNSUPPORTED_WHEEL
            "The wheel has something that kpack or installers do not support."
            "Split, it would not install, or its kernels would not load."
            "The message says what it is; build the wheel without it."

        WHEEL_NAME
            "The file name is not that of a wheel, or the metadata contradicts it."
            "Installers go by the file name."
            "Give the file the name that the metadata says, or build the wheel again."

        NOT_FOR_PYPI
            "PyPI rejects the wheel, because of its size or its platform tag."
            "Other indexes may accept it."
            "Run `auditwheel repair` for the tag; for the size, ask PyPI for a higher limit or use another index."

        OTHER_PYTHONS
            "The device code of wheels for several Pythons differs, so they share no device wheels."
            "There are as many device wheels for each GPU as Pythons. By default, clang derives a symbol from the directory of Python's headers."
            "Compile with `-fuse-cuid=none`, or publish them as they are."

        SIGNATURE_DROPPED
            "The signature of the wheel's RECORD is left out."
            "Splitting changes RECORD, so the signature would be wrong."
            "Sign the wheels after the split."

        SMALL_GAIN
            "Splitting the wheel saves little, or takes more space in total."
            "Split wheels are worth their number only if downloads get smaller."
            "Publish the wheel as it was, or group processors with `--group`."

        NO_VARIANT
            "A wheel has device code, but no wheel variant for a GPU."
            "Variants name processors, so generic code and files of families have none. Installers that know variants install no device code."
            "Name the extras for such code in your instructions, or build the wheel with code for processors."

        OUTSIDE_SITE_PACKAGES
            "A script or data file of the wheel has device code."
            "It is installed outside of site-packages, away from the archives, so it keeps its device code."
            "Move it into the package, or accept the larger host wheel."

        MISSING_WHEEL
            "A wheel that belongs to the set is not among those given."
            "A set can only be verified as a whole."
            "Pass the host wheel and all of its device wheels."

        UNREQUESTED_WHEEL
            "No extra of a host wheel asks for the wheel."
            "It is not installed with the host wheel."
            "Pass the host wheel that it belongs to, or leave it out."

        WRONG_PIN
            "A host wheel's extras and its device wheels do not require each other's versions."
            "Installers could combine host and device code of different builds."
            "Split the wheel again, and publish all wheels of that run."

        FAMILY_NOT_REQUIRED
            "A device wheel has generic code or files for a family of processors, and the extra or device wheel for a processor that needs them does not ask for it."
            "Users who install the code for that processor lack these files, such as AOTriton's images."
            "Split the wheel again, and publish all wheels of that run."

        OVERLAPPING_WHEELS
            "Two wheels of a set install a file at the same path."
            "The one that is installed last wins."
            "Split the wheel again, and publish all wheels of that run."
    }

    "Selection and output" {
        NAME_CLASH
            "Two things would have the same name in the output."
            "One would replace the other."
            "Rename one of them, or write them to different directories."

        NO_SUCH_CODE
            "The file has no code object for the kernel or target."
            "There is nothing to extract."
            "Choose from those that the message lists."

        SEVERAL_SELECTED
            "Several code objects are selected, but one file is to be written."
            "kpack does not choose among them."
            "Pass `--kernel` and `--arch`, or `--output-dir` to get all of them."

        SIZE_LIMIT
            "The output would exceed the limit of `--max-bytes`."
            "Archives compress well, so a small one can fill a disk."
            "Raise the limit, or select fewer code objects."

        CODE_IN_ARCHIVES
            "The device code of the binary is in archives, not in the binary."
            "The command reads code from the file that it is given."
            "Pass an archive; `kpack show FILE` lists them."

        NOTHING_BUILT
            "Cargo's messages end early, report a failure, or name no program or library."
            "There is nothing complete to stage."
            "Correct the build, and run it with `--message-format=json-render-diagnostics`."
    }

    "Archives" {
        ARCHIVE_SOUND
            "An archive and all of its code objects are as they must be."
            "For information."
            "Nothing."

        MISSING_ARCHIVE
            "No archive is where the marker and the search paths lead."
            "The kernels in it do not load."
            "Install the package with the archive, or split the binary again."

        DAMAGED_ARCHIVE
            "An archive cannot be read."
            "The kernels in it do not load."
            "Install it again, or split the binary again."

        OTHER_TYPE
            "An archive's entry is not of the type `hsaco`."
            "Loaders serve its bytes; a HIP runtime that expects a code object may reject them."
            "Nothing, if a program of yours reads it. Otherwise ask whoever wrote the archive."

        MISSING_KERNEL
            "An archive has code for the target, but not this kernel's."
            "The kernel does not load."
            "Install the archive that belongs to this build of the binary."

        STALE_ARCHIVE
            "An archive has the code of another build of the binary."
            "Host and device code would not fit. kpack's loader refuses it; ROCm's loads it."
            "Install binary and archive from the same build."
    }

    "Manifests and markers" {
        FEWER_KERNELS
            "An archive has fewer kernels than the one that it replaces."
            "Kernels of binaries that this run does not name are lost."
            "Name all binaries of the module in one run."

        DAMAGED_MANIFEST
            "A manifest (`.kpm`) cannot be read."
            "It lists the archives of a module. `kpack install` replaces one that it cannot read, so entries for archives that are in other packages are lost."
            "Restore it before you run `kpack install`, or split all binaries of the module again."

        DAMAGED_MARKER
            "A marker (`.rocm_kpack_ref`) cannot be read."
            "The loader cannot tell which archives have the code."
            "Install the binary again."
    }

    "Artifacts" {
        NOT_AN_ARTIFACT
            "The directory is not an artifact, or not a split one."
            "An artifact has a file artifact_manifest.txt; a split one is named after its target, or `generic`."
            "Name a directory of that form; for a plain install tree, run `kpack install`."

        SPLIT_ARTIFACT
            "The input, or a part of it, was split already."
            "Splitting it again, or with another build, would mix what does not belong together."
            "Name what the build wrote; split artifacts of different builds into separate directories."

        INVALID_PREFIX_LIST
            "A line of artifact_manifest.txt is not a usable prefix."
            "A prefix is a directory within the artifact, beside all others; modules are named after it."
            "Correct the line that the message names, or the directory."

        MISSING_PREFIX
            "artifact_manifest.txt lists a prefix that does not exist."
            "Usually harmless: builds often list prefixes that they install nothing to. If the name is misspelled, its files are not packaged."
            "Nothing, or correct the list."

        IN_NO_PREFIX
            "Files of an artifact are in no prefix that artifact_manifest.txt lists."
            "No package will have them."
            "List their prefix, or remove them."

        UNSUPPORTED_MARK
            "The file .kpack-artifact cannot be read, or a later version of kpack wrote it."
            "It says which kernel databases were split."
            "Use a later kpack, or split again."

        MISPLACED_FILE
            "A file is in the artifact of another target, or in the generic one instead of a target's."
            "A package would have what other GPUs need, or lack what its own need."
            "Split again into an empty directory."

        UNPLACED_FILE
            "A file looks architecture-specific, but is in no place of a known kernel database."
            "kpack does not know which GPUs need it, so all get it."
            "Nothing, if all need it; `kpack split --unknown` also moves or rejects such files."

        CONTRADICTORY_TARGET
            "The path of a file and its content name different targets."
            "It would go to GPUs that cannot run it."
            "Correct its name, or build it again."

        UNREADABLE_DEVICE_CODE
            "A file begins like device code, but cannot be read as such."
            "It is damaged, or only looks like device code; it counts as a host file."
            "Nothing, unless it is meant to be device code."

        UNOPENED_PACKAGE
            "A package, such as a wheel or a tar file, is among the files."
            "kpack does not open it, so device code in it is not split."
            "Unpack it before splitting, if it has device code."

        CONFLICTING_FILES
            "Two files would be installed at one path."
            "One would overwrite the other."
            "Remove one of them, or give it another name."

        STALE_ARTIFACT
            "The output directory has an artifact that this run does not write."
            "An earlier run wrote it, and packages would be made from it."
            "Remove it, or choose another output directory."

        MISSING_ARTIFACT
            "An artifact, or a manifest in it, that belongs with others is missing."
            "Without the generic artifact, nothing loads the device code beside it."
            "Add the artifact that the message names, or leave the others out."

        WITHOUT_CODE
            "An archive, or the artifact of a target, has no device code."
            "It would make an empty package."
            "Remove it, or split again."

        ARTIFACT_SOUND
            "An artifact has what it must have, and nothing else."
            "For information."
            "Nothing."
    }

    "Kernel databases" {
        DAMAGED_DATABASE_FILE
            "A file of a kernel database is damaged, empty, or a pointer of Git LFS."
            "The library will not load its kernels."
            "Build or fetch the file again."

        UNREAD_DATABASE_FILE
            "A file of a kernel database is in a format that kpack does not read."
            "Only its name says which target it is for."
            "Nothing, if the name is right."

        INCOMPLETE_DATABASE
            "A kernel database lacks a file, or an entry for a target, that another of its files needs."
            "The library fails on GPUs of that target, or is slower."
            "Build the library for the target again, or merge what each machine built with `kpack recombine`."

        FILE_FOR_ALL_TARGETS
            "A file has device code for several targets, and stays one file for all of them."
            "Every package of host files has all of it."
            "Nothing."

        DATABASES_SOUND
            "The kernel databases have what they need, for the targets that their files name."
            "For information."
            "Nothing."
    }

    "Shards" {
        NO_SHARDS
            "The directory has no shards."
            "`kpack recombine` expects a directory per shard, with the output of `kpack split` in it."
            "Name the directory that holds the shards."

        MISSING_SHARD
            "The shards are not those that the configuration lists as `shards`."
            "The packages would lack the targets of a machine, or have those of another build."
            "Fetch or build a missing shard. Add a new one to `shards`, or remove its directory."

        NOT_PUBLISHED
            "A shard has no `index.json`, and `--require-index` was passed."
            "The index comes last. Without it, the shard may not be complete."
            "Wait until the machine has published its shard, and run `kpack unpack` again."

        SHARDS_DIFFER
            "Two shards have different host files, were split with different options, or are of different runs."
            "Only one copy of a host file is taken, and it must fit the device code of all shards."
            "Build and split all shards from the same source with the same options, and fetch those of one run."

        DUPLICATE_DEVICE_CODE
            "Two shards have device code for one target, and it differs."
            "The code of one shard may not fit the host files of the other."
            "Let only one shard build for the target."

        UNMERGEABLE_FILE
            "A file for all targets differs between shards, and cannot be merged."
            "GPUs that one of the shards built for would not find their kernels."
            "Let one shard build the library for all targets."

        MERGED_FILE
            "A file was merged from several shards, or taken from one that is not the primary shard."
            "For information."
            "Nothing."

        FAILED_COMPONENTS
            "Components could not be recombined, so they were not written."
            "The messages before this one say why."
            "Correct what they name, and run the command again."
    }

    "Stores" {
        BAD_INDEX
            "An `index.json` was not written by `kpack pack`, has an unsupported version, or contradicts itself."
            "Files could be unpacked to the wrong place."
            "Download the index again; if that does not help, its publisher has to run `kpack pack` again."

        NOT_FETCHED
            "The index lists artifacts that are not in the directory."
            "A tree without them would lack files, so nothing was unpacked."
            "Fetch what `kpack select` lists."

        WRONG_DIGEST
            "A packed artifact has another size or SHA-256 than the index says."
            "It is truncated, damaged, or another file, so nothing was unpacked."
            "Resume or repeat its download."

        DAMAGED_TAR
            "A packed artifact is not a tar archive that kpack reads, compressed with zstd."
            "Its files could not be told from each other."
            "If its SHA-256 is right, its publisher has to pack it again."

        UNSAFE_MEMBER
            "A packed artifact, or a tree to pack, has what no artifact may have: a path or link that leads out of it, \
             a device, or a file with special permissions."
            "Unpacking it could change files elsewhere, or give away permissions."
            "Do not unpack it by other means before you know where it is from. In a tree to pack, remove what the \
             message names."

        INDEX_DIFFERS
            "Artifacts are missing, or their files or sizes differ from the index beside them."
            "The index was not written from them, or they changed since they were unpacked."
            "Unpack the shard again. If the SHA-256 of a packed artifact is right, its publisher has to run `kpack pack` again."

        NAMES_DIFFER_BY_CASE
            "Two paths differ only by case."
            "A file system that ignores case, as on Windows, cannot hold both: one file would overwrite the other, or two \
             directories would become one."
            "Rename one of the files or artifacts. Spell a module as in the names of its archives. To keep both names, \
             use kpack on Linux or in WSL."

        OTHER_PUBLISHER
            "The output directory has the index of another run or shard."
            "Two publishers of one place replace each other's artifacts, and the last one wins."
            "Give each shard and run its own directory."

        UNKNOWN_GROUP
            "Nothing says which GPUs a packed artifact is for."
            "Neither its name nor its archives name a target, so `kpack select --arch` never selects it."
            "Pack it with `kpack pack`, or call it after a target."
    }

    "Verification" {
        MANIFEST_SOUND
            "A manifest agrees with the archives beside it."
            "For information."
            "Nothing."

        INCONSISTENT_MANIFEST
            "A manifest contradicts itself, its place, another manifest, or the archives beside it."
            "Tools that read it would take the wrong archives."
            "Split all binaries of the module again."

        NOT_AS_LISTED
            "An archive is not the one that its manifest lists."
            "It is damaged, or from another build than the host files."
            "Install it again, or split again into an empty directory."

        MISNAMED_ARCHIVE
            "The name of an archive does not fit its content."
            "The loader finds archives by their names."
            "Give the archive the name that the message has."

        NAMES_WITHOUT_COLONS
            "Archives for ELF binaries were written on Windows, with `-` in place of each colon of a target."
            "ROCm's loader does not find them under these names on Linux; kpack's loader does."
            "Run kpack on Linux or in WSL, or compile for the plain processor. Wheels have the right names on any system."

        UNUSED_KERNELS
            "An archive has kernels that no binary refers to."
            "Their binary is missing, truncated, or from another build."
            "Install the binary that belongs to the archive, or remove the archive."

        MARKER_SOUND
            "The markers and wrappers of a binary are as they must be."
            "For information."
            "Nothing."

        INCONSISTENT_MARKER
            "A marker contradicts the wrappers of its binary, or has unusable names or search paths."
            "The loader would not find the kernels, or find the wrong ones."
            "Split the unsplit binary again."

        MOVED_BINARY
            "A binary is not where its kernels say it is."
            "Tools and some loaders find archives relative to the install prefix, which they cannot determine for a moved binary."
            "Install the binary at that path, or split it again."

        DEVICE_CODE_LEFT
            "A split binary still has device code in the file."
            "It takes the space that splitting saves."
            "Split the unsplit binary again."

        CODE_MATCHES
            "The code objects of a binary are those of its build, or of the unsplit original."
            "For information."
            "Nothing."

        CODE_DIFFERS
            "The code objects of a binary are not those of its build, or of the unsplit original."
            "Kernels would be missing, or would not fit the host code."
            "Split or join the original again."

        HOST_MATCHES
            "The host part of a binary is the unsplit original's."
            "For information."
            "Nothing."

        FILES_MATCH
            "A split tree has all files of the unsplit one, each in one place."
            "For information."
            "Nothing."

        FILES_DIFFER
            "A file was lost, added or changed between the unsplit tree and the split one."
            "Splitting moves files, and changes only binaries with device code."
            "Split the unsplit tree again into an empty directory."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_has_one_text() {
        let mut explained: Vec<Id> = entries().map(|entry| entry.id).collect();
        let mut known = ids::ALL.to_vec();
        explained.sort_unstable();
        known.sort_unstable();
        assert_eq!(explained, known);
    }

    #[test]
    fn names_are_distinct_lower_case_words() {
        let mut names: Vec<&str> = ids::ALL.iter().map(|id| id.as_str()).collect();
        for name in &names {
            let fits = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(name.chars().all(fits) && !name.starts_with('-'), "{name}");
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn texts_are_sentences() {
        for entry in entries() {
            for text in [entry.meaning, entry.why, entry.help] {
                assert!(text.ends_with('.'), "{}: {text}", entry.id);
            }
        }
    }
}
