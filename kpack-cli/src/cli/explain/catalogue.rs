//! The texts of all findings: what each means, why it matters, and what to do.
//!
//! `kpack explain ID` prints an entry, and docs/findings.md is made from them. They are here and not beside the
//! IDs, because every build script compiles those.

use kpack_core::{Id, ids};

/// An entry of the catalogue.
#[derive(Debug, Clone, Copy)]
pub(super) struct CatalogueEntry {
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
pub(super) struct CatalogueSection {
    /// Its heading.
    pub(super) title: &'static str,
    /// The entries.
    pub(super) entries: &'static [CatalogueEntry],
}

/// The entries of all sections.
pub(super) fn entries() -> impl Iterator<Item = &'static CatalogueEntry> {
    SECTIONS.iter().flat_map(|section| section.entries)
}

/// Makes the list of sections.
macro_rules! catalogue {
    ($($title:literal { $($id:ident $meaning:literal $why:literal $help:literal)* })*) => {
        /// The catalogue.
        pub(super) const SECTIONS: &[CatalogueSection] = &[$(CatalogueSection {
            title: $title,
            entries: &[$(CatalogueEntry { id: ids::$id, meaning: $meaning, why: $why, help: $help }),*],
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
            "This command does not read this kind of file."
            "kpack recognises files by their first bytes, and does not guess."
            "Name a file of a kind that the message lists. `kpack show FILE` identifies a file."

        CHANGED
            "The file was replaced or modified while kpack read it."
            "The parts that were read may not fit together, so nothing was written."
            "Run the command again when nothing else writes the file."

        OUTSIDE_PREFIX
            "A path points out of the install prefix."
            "Markers contain paths relative to the binary, so binary and archives must move together."
            "Name a path within the prefix, or another prefix."

        UNREPRESENTABLE_PATH
            "A path is not UTF-8, or contains a byte that markers cannot contain."
            "Markers and manifests name files, and are UTF-8."
            "Rename the file or directory."

        WINDOWS_NAME
            "No file can have this name on Windows, where kpack runs."
            "It would refer to a device, to another stream of a file, or to a place outside the output directory."
            "Run kpack on Linux or in WSL, or rename the file that the message names."

        NOT_TEXT
            "A text file is not UTF-8."
            "kpack could not compare its names with others."
            "Save it as UTF-8."

        LEFTOVER
            "A hidden file or directory that a run of kpack left when it was killed."
            "It takes space, and does not belong to the installation."
            "Run the command again, which removes it, or delete it."

        OUTPUT_IN_THE_WAY
            "A file or directory that kpack must not replace is where output would go."
            "kpack replaces only regular files that it could have written."
            "Remove it, or choose another output. `kpack artifact split --replace-artifacts` replaces artifacts of other tools."

        SYSTEM
            "Reading or writing failed."
            "The message names the cause. Unfinished output was not published."
            "Fix the cause, such as a full disk, missing permissions or too many open files. Then run the command again."

        USAGE
            "The arguments contradict each other, or one is invalid."
            "Nothing was read or written."
            "Correct the command; `--help` lists the arguments."

        RESOLVED_ELSEWHERE
            "A named path leads to a file at another path of the prefix, for example because it is a symbolic link. kpack splits that file."
            "The names of the kernels contain the path of the file, not the path that was given."
            "Nothing."

        SHARED_LINK
            "The file is a symbolic link to a file that several installations may share."
            "Package managers such as uv link many installations to one file."
            "Write to `--output`, or pass the file itself."

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
            "Report it, with the linker and its options. The input did not change."

        COMPILER
            "kpack found no suitable compiler, or the compiler failed."
            "Nothing was compiled. The compiler's messages follow."
            "Correct the source, or choose another compiler."
    }

    "Binaries" {
        DAMAGED_BINARY
            "The headers of a binary contradict each other or the file's size."
            "kpack rewrites only files whose headers it fully understands."
            "Build or install the file again."

        UNSUPPORTED_BINARY
            "The file is sound, but kpack does not rewrite files of this form."
            "A wrong rewrite would show only when the program runs."
            "Link the binary without the feature that the message names."

        SIGNED_BINARY
            "The Windows binary has a signature."
            "A changed binary no longer fits its signature, and Windows may refuse to run it."
            "Run kpack on the unsigned binary, then sign the result."

        STALE_CHECKSUM
            "The checksum in the header of the Windows binary does not match the file."
            "A tool changed the file without updating the checksum, which is common, or the file is damaged. Windows checks it only for drivers."
            "If no tool changed the file on purpose, install it again."

        DAMAGED_BUNDLE
            "kpack cannot read an offload bundle, or the content of a compressed one does not match the hash in its header, because bits flipped on a disk or in transit."
            "Splitting it would lose code objects, or give the damaged ones a new checksum."
            "Get the file again: reinstall its package, or build it again. If the new file has the same fault, report it to whoever publishes the package."

        DAMAGED_CODE_OBJECT
            "A code object is not an ELF file for an AMD GPU, or its headers are wrong."
            "A HIP runtime would reject it when a kernel is loaded."
            "Build the file again."

        DEVICE_CODE_SOUND
            "A file with a code object or an offload bundle shows no damage in its headers or its hash."
            "This is only information."
            "Nothing."

        UNACCOUNTED_CODE
            "Bytes between bundles are neither padding nor in the bundle of a wrapper."
            "Splitting would lose them."
            "Build the file again. If that does not help, report the linker and its options."

        NO_DEVICE_CODE
            "The file or directory contains no device code."
            "There is nothing to split, join, trim or verify."
            "Name a binary that was compiled for HIP, or a directory that contains one."

        BUNDLES_IN_DATA
            "The read-only data of the binary contains offload bundles."
            "No wrapper refers to them, because the program passes them to the HIP runtime itself, as TensorFlow does. So they stay in the host file."
            "Nothing. `kpack trim` removes their code for other GPUs, or says why it cannot."

        OFFLOAD_IMAGES
            "The binary contains images for another offloading runtime, such as OpenMP's."
            "They are not HIP's device code, and that runtime expects them in the binary, so kpack leaves them there."
            "Nothing."

        THIN_ARCHIVE
            "The static library is a thin archive, so its members are separate files."
            "The device code is in these files, and kpack does not look for them."
            "Name the members instead; `ar t FILE` lists them."

        SPLIT_ALREADY
            "The input is already split, and this command needs the original."
            "A binary is split once, and its archives keep the names in its marker."
            "Split the unsplit original. For `kpack split`, you can also pass the module, component and directory that the message names."

        SPLIT_BY_ANOTHER_TOOL
            "Another tool split the binary, and kpack does not find its archives."
            "Without them, its kernels do not load."
            "Install the archives that the message names. For wheels, `kpack wheel split --archives` adds them."

        SPLIT_BEFORE_LINK
            "The objects of the binary were split before the link, each with its own marker."
            "Their code objects are in the build tree until the binary is installed."
            "Run `kpack split` for it first."

        RECOMPILED_AFTER_LINK
            "No archive contains the device code of an object that was split before the link."
            "The object was compiled again after the link, so host and device code do not match."
            "Link again."

        NO_ROOM
            "The new marker, or the new headers, do not fit into the binary."
            "kpack must not move the other parts of the file."
            "Put the file at a shorter path in the prefix, or follow the message."

        WITHOUT_WRAPPERS
            "There is device code, but no wrapper registers it."
            "kpack finds code objects by their wrappers."
            "Nothing, if no host code uses it."

        OTHER_MODULE
            "The marker of the binary refers to another module."
            "Its code is in the archives of that module."
            "Name the module in the marker, or none."

        FAT_BINARY
            "A binary still carries its device code."
            "It is as large as before, and needs no archives."
            "Split it with `kpack split`, if that was intended."

        NATIVE_TARGETS
            "A package of the release has code only for the GPUs of the machine that built it."
            "Nothing named the GPU targets of its package, so other GPUs have no code."
            "Name the targets in build.rs or in the variable `KPACK_OFFLOAD_ARCH`, then build and stage again."

        BUILD_PATH
            "A released file contains the path of a directory of the build."
            "It reveals where you build, and differs between builds."
            "Pass `--remap-path-prefix` to the compiler, or `--allow-build-paths`."

        NOTHING_SPLIT
            "The prefix contains no split binary, or the given file is not split."
            "There is nothing to join, and kpack cannot compare archives with any binary."
            "Name the prefix of the installed binaries, or split them."

        SPIRV_KEPT
            "A wrapper with SPIR-V stays in the binary."
            "HIP runtimes do not read SPIR-V from archives."
            "Nothing. If there is native code for all GPUs, you can pass `--spirv drop`."

        DEBUG_INFORMATION
            "Code objects contain, or contained, debug information."
            "Compilers write it for `-g`, and `strip` does not see into archives. It can be most of an archive, and only debuggers read it."
            "Nothing, or pass `--strip-debug` to remove it, or `--strip-debug=DIR` to move it to a place where debuggers look."

        NO_BUILD_ID
            "A code object without a build ID keeps its debug information in the archive."
            "Debuggers find separate debug information of code objects by build ID, and compilers write none by default."
            "Link device code with `-Xoffload-linker --build-id`, and split again; `--strip-debug` without a directory removes it for good."

        SHARED_BUILD_ID
            "Two different code objects have the same build ID, so their debug files would have the same name."
            "Debuggers find separate debug information of code objects by build ID alone."
            "Link device code with `-Xoffload-linker --build-id`, which derives the ID from the contents. If a debug file of an earlier version is in the way, remove it or name another directory."

        DEBUG_NOT_REMOVABLE
            "A code object keeps its debug information, because its layout does not allow kpack to remove debug sections."
            "Symbols refer to sections by number, so a section can be removed only if none that symbols refer to follows it. Compilers put debug sections last, unless asked to keep relocations."
            "Link device code without `--emit-relocs`."

        UNCOMPRESSED
            "A joined binary is larger than it was before the split."
            "`kpack join` puts code back uncompressed, because archives do not record how compilers compressed it, and older HIP runtimes load no compressed code. Archives may also have code for more targets than the binary had."
            "Nothing, or join for fewer targets. If you need the size of before, install the unsplit binary."
    }

    "Comparison with the unsplit original" {
        HOST_DIFFERS
            "The host part of a split or joined binary differs from the unsplit original's."
            "Splitting must change only the device code and the pointers to it."
            "Split the original again. If that does not help, report it."
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
            "kpack does not know which code the machine needs."
            "Pass the GPU with `--arch`, or to the shim in HSA_OVERRIDE_GFX_VERSION. If the machine has a GPU, load the amdgpu driver."

        LOADER_DISABLED
            "ROCM_KPACK_DISABLE turns the loader off."
            "Kernels of split binaries do not load."
            "Unset ROCM_KPACK_DISABLE."

        SEARCH_PATHS_SET
            "`ROCM_KPACK_PATH` or `ROCM_KPACK_PATH_PREFIX` makes the loader use archives that the binaries do not name."
            "Programs may load code that does not belong to them."
            "Unset the variable, if that was not intended."

        NO_DRIVER
            "The machine has an AMD GPU, but the kernel does not offer it for computing."
            "Programs see no GPU at all, whatever is installed."
            "Load the driver with `modprobe amdgpu`, or install it. In WSL, install ROCm for WSL."

        NO_DEVICE_ACCESS
            "Programs cannot use the machine's GPUs: `/dev/kfd` does not exist here, this user may not read and write it, or no GPU reaches this container."
            "Programs see no GPU at all, whatever is installed."
            "Add the user to the group that owns `/dev/kfd` (`render` or `video`) and log in again, or start the container with `--device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd)`."

        GPU_OVERRIDDEN
            "`HSA_OVERRIDE_GFX_VERSION` makes programs ask for the code of another GPU."
            "Builds with code for the real GPU alone then no longer load."
            "Unset the variable if there is code for the real GPU."

        DEVICE_WHEEL_MISSING
            "A Python package needs a device wheel for a GPU, and it is not installed."
            "The package has no kernels for that GPU, so programs fail at the first one, often with hipErrorInvalidImage."
            "Run the command that `kpack doctor` prints, which installs the package's extra for the GPU."

        DEVICE_WHEEL_OTHER_GPU
            "A Python package has device wheels for other GPUs only."
            "The package has no kernels for this GPU, so programs fail at the first one, often with hipErrorInvalidImage."
            "Run the command that `kpack doctor` prints, which installs the package's extra for the GPU."

        DEVICE_WHEEL_VERSION
            "Python packages that belong together, such as a device wheel and its host, are of different versions or builds."
            "Kernels are missing, or those of another build are loaded."
            "Run the command that `kpack doctor` prints, which installs the version that the package requires."

        DEVICE_WHEEL_DAMAGED
            "A device wheel is installed, but an archive of it is missing, truncated or unreadable."
            "The kernels in that archive cannot be loaded."
            "Run the command that `kpack doctor` prints, which installs the wheel again."

        FAMILY_WHEEL_MISSING
            "A Python package has a device wheel for a family of GPUs, and it is not installed."
            "It contains files that the GPUs of the family share, such as AOTriton's images for attention. In some versions, the extras do not require it."
            "Run the command that `kpack doctor` prints, which installs it too."

        HOST_WHEEL_MISSING
            "A Python package needs a wheel with the host's part of ROCm, and it is not installed."
            "The HIP runtime or its libraries are missing, so nothing loads."
            "Run the command that `kpack doctor` prints."

        NO_DEVICE_WHEEL
            "A Python package has device wheels, but none for this GPU."
            "Its kernels were not built for the GPU, so there is no wheel to install."
            "Install another version or build of the package that supports the GPU."

        DEVICE_PACKAGE_MISSING
            "A package of the distribution recommends a device package for this GPU, and it is not installed; or a conda package has no code for this GPU."
            "The libraries of the package have no kernels for the GPU."
            "Run the command that `kpack doctor` prints, which installs the device package. For conda, install a build of the package with code for the GPU."

        DEVICE_PACKAGE_DAMAGED
            "A package of the distribution or of conda is installed, but an archive of it is missing."
            "The kernels in that archive cannot be loaded."
            "Run the command that `kpack doctor` prints, or install the package again."

        UNREAD_PACKAGE_DATABASE
            "A database of installed packages is damaged, or in a format that kpack does not read: RPM's Berkeley DB and ndb, which RHEL 8 and SUSE use."
            "kpack does not know which package a file belongs to, so it cannot print the command that installs it."
            "Ask the package manager, for instance `rpm --query --file FILE` or `dpkg --search FILE`."

        TWO_RUNTIMES
            "A process would load two HIP runtimes, or one that is not the environment's."
            "Each runtime knows only the code that was registered with it, so it does not find kernels, or the process crashes."
            "Unset LD_LIBRARY_PATH and LD_PRELOAD, or install builds that share one runtime."

        CODE_FOUND
            "A binary finds its code for the GPUs or targets that the message names."
            "This is only information."
            "Nothing."

        EARLY_MARKER
            "The marker of the binary is in an early form without kernel names."
            "kpack cannot tell whether the archives contain its code."
            "Install a build with newer markers to verify it."

        RUNTIME_READS_MARKERS
            "The HIP runtime reads markers, so it finds the code of split binaries."
            "This is only information."
            "Nothing."

        MARKERS_NOT_NEEDED
            "The HIP runtime does not read markers, but no binary here needs that."
            "This is only information."
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
            "ROCm's loader misses code that kpack's loader finds. It is a note if only ROCm 7.14 and older miss it, and the version is unknown."
            "Kernels do not load with this HIP runtime."
            "Use kpack's loader instead, or follow the message."

        UNKNOWN_RUNTIME
            "kpack cannot tell which HIP runtime is used."
            "The binary was not linked with one, or kpack cannot list its libraries."
            "Run `kpack doctor` for the program that loads it."

        NOT_LOADABLE
            "The dynamic linker would not load the file."
            "The program does not start."
            "Fix the problem that the message describes."

        MISSING_LIBRARY
            "A library that the HIP runtime or the program needs was not found."
            "The program does not start, or finds no kernels."
            "Install the library, or add its directory to LD_LIBRARY_PATH. On Windows, copy the DLL to the directory of the program. If ROCm's `rocm_kpack.dll` is missing, copy it from the ROCm that the HIP runtime is from."

        LOADER_VERSION
            "The HIP runtime calls functions of the loader (`librocm_kpack`) that this loader does not have."
            "The program does not start, or ends at the first such call."
            "Copy the HIP runtime and the loader from the same ROCm."

        MISSING_DATABASE
            "A library of ROCm was copied without its kernel database, such as `rocblas/library`."
            "rocBLAS, hipBLASLt and hipSPARSELt fail at the first call. MIOpen and rocFFT compile or search for kernels at run time, which is slow."
            "Copy the directory with the kernel database too, to the same place beside the library."

        RUN_PATH
            "A staged program or library does not find the libraries beside it, and its run path has no room for their directory."
            "Only files on the machine that staged it would be found, so the program would not start elsewhere."
            "Link the program with the option that the message shows, or change a copy of it with the command there, and stage that."
    }

    "Configuration" {
        BAD_CONFIGURATION
            "The configuration is not valid JSON, or contains a wrong value or an unknown key."
            "If kpack ignored a misspelled key, it would ignore your request."
            "Correct the place that the message names."
    }

    "Targets" {
        MISSING_TARGET
            "There is no device code for a GPU target."
            "Kernels do not load on such a GPU."
            "Install the archive for the target, or build with it in `--offload-arch`. If `kpack trim` removed the code, run the command that `kpack doctor` prints."

        CODE_DROPPED
            "The joined binary loses its code for a target."
            "GPUs of that target can no longer run it."
            "Name all GPUs of the machine, or `--arch native`."

        GENERIC_CODE
            "A GPU gets the code of a generic target, such as gfx11-generic, or SPIR-V."
            "HIP runtimes load generic code since a certain version of ROCm, which the message names. They compile SPIR-V."
            "Nothing, if the runtime is that new."

        UNEXPECTED_TARGET
            "There is device code for an unexpected target."
            "It would be lost, or end up in a package for other GPUs."
            "Add the target to the expected ones, or build without it."

        UNKNOWN_PROCESSOR
            "This version of kpack does not know the processor in the name of a target."
            "The name may be misspelled. Code for processors that are newer than kpack is split like any other."
            "Correct the name, or nothing if the processor is new."
    }

    "Wheels" {
        WHEEL_SOUND
            "The members of a wheel match its RECORD."
            "This is only information."
            "Nothing."

        DAMAGED_WHEEL
            "The wheel is damaged, or its members contradict its RECORD or each other."
            "Installers disagree about such wheels. Some reject them, and others install something different."
            "Build or download the wheel again."

        UNSUPPORTED_WHEEL
            "The wheel contains something that kpack or installers do not support."
            "Split, it would not install, or its kernels would not load."
            "Build the wheel without the part that the message names."

        WHEEL_NAME
            "The file name is not a valid wheel name, or contradicts the metadata."
            "Installers go by the file name."
            "Give the file the name in the metadata, or build the wheel again."

        NOT_FOR_PYPI
            "PyPI rejects the wheel, because of its size or its platform tag."
            "Other indexes may accept it."
            "Run `auditwheel repair` for the tag; for the size, ask PyPI for a higher limit or use another index."

        OTHER_PYTHONS
            "The device code of wheels for several Pythons differs, so they share no device wheels."
            "Each Python needs its own device wheels. By default, clang derives a symbol from the directory of Python's headers, so the code differs."
            "Compile with `-fuse-cuid=none`, or publish them as they are."

        NEWER_ROCM_NEEDED
            "The name, the version or a requirement of a wheel says that it is for a ROCm that cannot load split binaries. Or a staged program has split binaries, and the system must provide its HIP runtime."
            "HIP runtimes older than ROCm 7.13 do not read markers, so the first kernel launch fails with them. Only some builds of ROCm 7.12 do."
            "For users of an older ROCm, also publish the unsplit wheel, or stage the program without `--split`. Or link the shim into the binaries before the split (docs/older-rocm.md). If the binaries of a wheel are already linked with the shim, ignore the note."

        VENDORED_ROCM
            "The wheel contains copies of ROCm's own libraries."
            "The copies make the wheel larger, and the process may load two HIP runtimes. `auditwheel repair` copies each library that its options do not exclude. An option excludes only the names that it matches, and the names of ROCm's libraries end with versions, as in `librocblas.so.5`."
            "If your users have ROCm, or if the wheel depends on ROCm's wheels, exclude the libraries with patterns such as `--exclude 'librocblas.so*'`."

        SIGNATURE_DROPPED
            "The signature of the wheel's RECORD was removed."
            "Splitting changes RECORD, so the signature would be wrong."
            "Sign the wheels after the split."

        SMALL_GAIN
            "Splitting the wheel saves little, or takes more space in total."
            "More wheels are only worth the effort if downloads get smaller."
            "Publish the wheel as it was, or group processors with `--group`."

        NO_VARIANT
            "A wheel contains device code, but no wheel variant for a GPU."
            "Variants name processors, so there is none for generic code and files of families. Installers that know variants then install no device code."
            "Name the extras for such code in your instructions, or build the wheel with code for processors."

        OUTSIDE_SITE_PACKAGES
            "A script or data file of the wheel contains device code."
            "It is installed outside of site-packages, away from the archives, so it keeps its device code."
            "Move it into the package, or accept the larger host wheel."

        MISSING_WHEEL
            "A wheel of the set was not passed."
            "kpack can only verify a complete set."
            "Pass the host wheel and all of its device wheels."

        UNREQUESTED_WHEEL
            "No extra of a host wheel requires the wheel."
            "It is not installed with the host wheel."
            "Pass the host wheel that it belongs to, or leave it out."

        WRONG_PIN
            "A host wheel's extras and its device wheels do not require each other's versions."
            "Installers could combine host and device code of different builds."
            "Split the wheel again, and publish all wheels of that run."

        FAMILY_NOT_REQUIRED
            "A device wheel contains generic code or files for a family of processors, but the extra or device wheel for one of these processors does not require it."
            "Users who install the code for that processor lack these files, such as AOTriton's images."
            "Split the wheel again, and publish all wheels of that run."

        OVERLAPPING_WHEELS
            "Two wheels of a set install a file at the same path."
            "The one that is installed last wins."
            "Split the wheel again, and publish all wheels of that run."
    }

    "Selection and output" {
        NAME_CLASH
            "Two files would have the same name in the output."
            "One would replace the other."
            "Rename one of them, or write them to different directories."

        NO_SUCH_CODE
            "The file contains no code object for the kernel or target."
            "There is nothing to extract."
            "Choose one that the message lists."

        SEVERAL_SELECTED
            "Several code objects are selected, but one file is to be written."
            "kpack does not choose among them."
            "Pass `--kernel` and `--arch`, or `--output-dir` to get all of them."

        SIZE_LIMIT
            "The output would exceed the limit of `--max-bytes`, or `.kpack-trimmed` its own limit of 256 MiB."
            "Device code compresses well, so a small archive can fill a disk. kpack does not read a larger `.kpack-trimmed`, so it removes no code whose removal it cannot note there."
            "Raise the limit, or select fewer code objects. For `.kpack-trimmed`, trim the directories one by one."

        CODE_IN_ARCHIVES
            "The device code of the binary is in archives, not in the binary."
            "This command reads code only from the named file."
            "Pass an archive, or for `kpack trim` the directory of the archives; `kpack show FILE` lists them."

        NOTHING_BUILT
            "Cargo's messages end early, report a failure, or name no program or library."
            "There is nothing complete to stage."
            "Correct the build, and run it with `--message-format=json-render-diagnostics`."
    }

    "Archives" {
        ARCHIVE_SOUND
            "An archive and all of its code objects are sound."
            "This is only information."
            "Nothing."

        MISSING_ARCHIVE
            "There is no archive at the paths in the marker and the variables."
            "The kernels in it do not load."
            "If the message says where the archive is, run the command that moves it. If only the binary was copied, copy its archives. Otherwise install their package, or split the binary again. If `kpack trim` removed them, run the command that `kpack doctor` prints. A warning means that the archives of another GPU are complete: do nothing if this machine has that GPU."

        DAMAGED_ARCHIVE
            "An archive cannot be read."
            "The kernels in it do not load."
            "Install it again, or split the binary again."

        OTHER_TYPE
            "An archive's entry is not of the type `hsaco`."
            "Loaders return its bytes, but a HIP runtime that expects a code object may reject them."
            "Nothing, if your own program reads it. Otherwise ask the author of the archive."

        MISSING_KERNEL
            "An archive contains code for the target, but not for this kernel."
            "The kernel does not load."
            "Install the archive that belongs to this build of the binary."

        INCOMPLETE_VARIANT
            "The archive for a variant of a processor, such as gfx90a:xnack+, lacks code objects that are only compiled for less specific targets, such as gfx90a."
            "ROCm 7.13 and 7.14 ask only the archive for the variant, so these kernels do not load there, nor does the whole library with some runtimes. kpack's loader and newer ones of ROCm go on to the other archive."
            "If `kpack split` replaced the originals, run the commands that it prints, which put the code back and split with `--complete-variants`: this copies the code into the archives for variants. Otherwise split the originals of all binaries of the module in one run with it, or compile all code for the same targets."

        STALE_ARCHIVE
            "An archive contains the code of another build of the binary."
            "Host and device code do not match. kpack's loader rejects the code; ROCm's runs it."
            "Install binary and archive from the same build."
    }

    "Manifests and markers" {
        FEWER_KERNELS
            "An archive contains fewer kernels than the one that it replaces."
            "Kernels of binaries that this run does not name are lost."
            "Name all binaries of the module in one run."

        DAMAGED_MANIFEST
            "A manifest (`.kpm`) cannot be read."
            "It lists the archives of a module. `kpack split` replaces one that it cannot read, so entries for archives that are in other packages are lost."
            "Restore it before you run `kpack split`, or split all binaries of the module again."

        DAMAGED_MARKER
            "A marker (`.rocm_kpack_ref`) cannot be read."
            "The loader cannot tell which archives contain the code."
            "Install the binary again."
    }

    "Artifacts" {
        NOT_AN_ARTIFACT
            "The directory is not an artifact, or not a split one."
            "An artifact contains a file artifact_manifest.txt. A split artifact is named after its target, or `generic`."
            "Name a directory of that form; for a plain install tree, run `kpack split`."

        SPLIT_ARTIFACT
            "The input, or a part of it, is already split."
            "Splitting it again, or together with another build, would mix files that do not belong together."
            "Name the output of the build, and split artifacts of different builds into separate directories."

        INVALID_PREFIX_LIST
            "A line of artifact_manifest.txt is not a usable prefix."
            "A prefix is a directory within the artifact and outside all other prefixes, and modules are named after it."
            "Correct the line that the message names, or the directory. A list may have 1,000 prefixes with at most 64 names each, and they may have 1,000 directories in all."

        MISSING_PREFIX
            "artifact_manifest.txt lists a prefix that does not exist."
            "This is usually harmless, because builds often list prefixes without files. But if the name is misspelled, its files are not packaged."
            "Nothing, or correct the list."

        IN_NO_PREFIX
            "Files of an artifact are outside all prefixes that artifact_manifest.txt lists."
            "No package will contain them."
            "List their prefix, or remove them."

        UNSUPPORTED_MARK
            "The file .kpack-artifact cannot be read, or a later version of kpack wrote it."
            "It lists the kernel databases that were split."
            "Use a later kpack, or split again."

        MISPLACED_FILE
            "A file is in the artifact of another target, or in the generic one instead of a target's."
            "A package would contain files for other GPUs, or lack files for its own."
            "Split again into an empty directory."

        UNPLACED_FILE
            "A file looks architecture-specific, but does not belong to a known kernel database."
            "kpack does not know which GPUs need it, so it is installed for all."
            "Nothing, if all GPUs need it. Otherwise name such files with `--kernel-files`, or let `kpack artifact split --unknown` move or reject them."

        CONTRADICTORY_TARGET
            "The path and the contents of a file name different targets."
            "It would go to GPUs that cannot run it."
            "Correct its name, or build it again."

        UNREADABLE_DEVICE_CODE
            "A file begins like device code, but kpack cannot read it."
            "It is damaged, or only looks like device code. It counts as a host file."
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
            "The output directory contains an artifact that this run does not write."
            "An earlier run wrote it, and packages would be made from it."
            "Remove it, or choose another output directory."

        MISSING_ARTIFACT
            "An artifact, or a manifest in it, that belongs with others is missing."
            "Without the generic artifact, no program loads the device code of the others."
            "Add the artifact that the message names, or leave the others out."

        WITHOUT_CODE
            "An archive, or the artifact of a target, contains no device code."
            "It would make an empty package."
            "Remove it, or split again."

        ARTIFACT_SOUND
            "An artifact contains all files that it must contain, and no others."
            "This is only information."
            "Nothing."
    }

    "Kernel databases" {
        DAMAGED_DATABASE_FILE
            "A file of a kernel database is damaged, empty, or a Git LFS pointer."
            "The library will not load its kernels."
            "Build or fetch the file again."

        UNREAD_DATABASE_FILE
            "A file of a kernel database is in a format that kpack does not read."
            "Only its name says which target it is for."
            "Nothing, if the name is right."

        INCOMPLETE_DATABASE
            "A kernel database lacks a file, or an entry for a target, that another of its files needs."
            "On GPUs of that target, the library fails or is slower."
            "Build the library for the target again, or merge what each machine built with `kpack artifact recombine`. If an application was copied, copy the missing file too."

        FILE_FOR_ALL_TARGETS
            "A file contains device code for several targets, and stays one file for all of them."
            "Every package of host files contains all of it."
            "Nothing."

        DATABASES_SOUND
            "The kernel databases are complete for the targets that their files name."
            "This is only information."
            "Nothing."
    }

    "Shards" {
        NO_SHARDS
            "The directory contains no shards."
            "`kpack artifact recombine` expects a directory per shard, with the output of `kpack artifact split` in it."
            "Name the directory that contains the shards."

        MISSING_SHARD
            "The shards differ from those that the configuration lists as `shards`."
            "The packages would lack the targets of a machine, or contain those of another build."
            "Fetch or build a missing shard. Add a new one to `shards`, or remove its directory."

        NOT_PUBLISHED
            "A shard has no `index.json`, and `--require-index` was passed."
            "The index comes last. Without it, the shard may not be complete."
            "Wait until the machine has published its shard, and run `kpack artifact unpack` again."

        SHARDS_DIFFER
            "Two shards contain different host files, were split with different options, or belong to different runs."
            "kpack uses only one copy of a host file, and it must match the device code of all shards."
            "Build and split all shards from the same source with the same options, and fetch those of one run."

        DUPLICATE_DEVICE_CODE
            "Two shards contain different device code for one target."
            "The code of one shard may not match the host files of the other."
            "Let only one shard build for the target."

        UNMERGEABLE_FILE
            "A file for all targets differs between shards, and cannot be merged."
            "GPUs that one of the shards built for would not find their kernels."
            "Let one shard build the library for all targets."

        MERGED_FILE
            "kpack merged a file from several shards, or used the copy of a shard that is not the primary one."
            "This is only information."
            "Nothing."

        FAILED_COMPONENTS
            "Components could not be recombined, so they were not written."
            "The messages before this one say why."
            "Fix these problems, and run the command again."
    }

    "Stores" {
        BAD_INDEX
            "An `index.json` was not written by `kpack artifact pack`, has an unsupported version, or contradicts itself."
            "Files could be unpacked to the wrong place."
            "Download the index again; if that does not help, its publisher has to run `kpack artifact pack` again."

        NOT_FETCHED
            "The index lists artifacts that are not in the directory."
            "A tree without them would lack files, so nothing was unpacked."
            "Fetch the files that `kpack artifact select` lists."

        WRONG_DIGEST
            "The size or SHA-256 of a packed artifact differs from the index."
            "It is truncated, damaged, or a different file, so nothing was unpacked."
            "Resume or repeat its download."

        DAMAGED_TAR
            "A packed artifact is not a valid tar archive compressed with zstd."
            "kpack cannot extract its files reliably."
            "If its SHA-256 is right, its publisher has to pack it again."

        UNSAFE_MEMBER
            "A packed artifact, or a tree to pack, contains a path or link that points out of it, a device, a file with special permissions, a path of more than 64 names or with a name that kpack gives to its own directories (such as `.kpack-unpack.tmp`), or more directories than its members need."
            "Unpacking it could change files elsewhere, make a later run remove files, give away permissions, or fill the file system with directories."
            "Do not unpack it with another tool unless you trust its origin. From a tree to pack, remove the file that the message names."

        INDEX_DIFFERS
            "Artifacts are missing, or their files or sizes differ from the index."
            "The index was not written from them, or they changed since they were unpacked."
            "Unpack the shard again. If the SHA-256 of a packed artifact is right, its publisher has to run `kpack artifact pack` again."

        NAMES_DIFFER_BY_CASE
            "Two paths differ only by case."
            "On a file system that ignores case, as on Windows, one file would overwrite the other, or two directories would become one."
            "Rename one of the files or artifacts, and spell a module as in the names of its archives. To keep both names, use kpack on Linux or in WSL."

        OTHER_PUBLISHER
            "The output directory contains the index of another run or shard."
            "Two runs that publish to one directory replace each other's artifacts."
            "Give each shard and run its own directory."

        UNKNOWN_GROUP
            "kpack cannot tell which GPUs a packed artifact is for."
            "Neither its name nor its archives name a target, so `kpack artifact select --arch` never selects it."
            "Pack it with `kpack artifact pack`, or name it after a target."
    }

    "Verification" {
        MANIFEST_SOUND
            "A manifest agrees with the archives next to it."
            "This is only information."
            "Nothing."

        INCONSISTENT_MANIFEST
            "A manifest contradicts itself, its location, another manifest, or the archives next to it."
            "Tools that read it would use the wrong archives."
            "Split all binaries of the module again."

        NOT_AS_LISTED
            "An archive differs from the one that its manifest lists."
            "It is damaged, or from another build than the host files."
            "Install it again, or split again into an empty directory."

        MISNAMED_ARCHIVE
            "The name of an archive does not match its contents."
            "The loader finds archives by their names."
            "Give the archive the name in the message."

        BEYOND_OTHER_READERS
            "ROCm's loader and kpack's read the archive, but another HIP runtime, HRX, does not."
            "HRX accepts only smaller code objects and shorter kernel names, and requires sizes that ROCm's loader does not need."
            "Nothing, unless your users run HRX. For them, shorten the path in the prefix, compile fewer kernels into one code object, or write the archive with kpack."

        NAMES_WITHOUT_COLONS
            "Archives for ELF binaries were written on Windows, with `-` in place of each colon of a target."
            "ROCm's loader does not find them under these names on Linux; kpack's loader does."
            "Run kpack on Linux or in WSL, or compile for the plain processor. In wheels, the names are right on any system."

        UNUSED_KERNELS
            "An archive contains kernels that no binary refers to."
            "Their binary is missing, truncated, from another build, or was split again into another module."
            "Install the binary that belongs to the archive, or remove the archive."

        MARKER_SOUND
            "The markers and wrappers of a binary are sound."
            "This is only information."
            "Nothing."

        INCONSISTENT_MARKER
            "A marker contradicts the wrappers of its binary, or contains unusable names or search paths."
            "The loader would find no kernels, or the wrong ones."
            "Split the unsplit binary again."

        MOVED_BINARY
            "A binary is not at the path in the names of its kernels."
            "Tools and some loaders find archives relative to the install prefix, which they cannot determine for a moved binary."
            "Install the binary at that path, or split it again."

        DEVICE_CODE_LEFT
            "A split binary still contains device code."
            "It takes the space that splitting saves."
            "Split the unsplit binary again."

        CODE_MATCHES
            "The code objects of a binary match its build, or the unsplit original."
            "This is only information."
            "Nothing."

        CODE_DIFFERS
            "The code objects of a binary do not match its build, or the unsplit original."
            "Kernels would be missing, or would not match the host code."
            "Split or join the original again."

        HOST_MATCHES
            "The host part of a binary matches the unsplit original."
            "This is only information."
            "Nothing."

        FILES_MATCH
            "A split tree contains all files of the unsplit one, each in one place."
            "This is only information."
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
