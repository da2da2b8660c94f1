//! The IDs of all findings. `kpack explain ID` says what one means, why it matters, and what to do.

use kpack_format::finding;

use super::Id;

/// Declares the IDs, and the list of them.
macro_rules! ids {
    ($($id:ident = $name:expr;)*) => {
        $(
            #[doc = concat!("`kpack explain` says what `", stringify!($id), "` means.")]
            pub const $id: Id = Id::new($name);
        )*

        /// All of them.
        pub const ALL: &[Id] = &[$($id),*];
    };
}

/// The ID with this name.
pub fn named(name: &str) -> Option<Id> {
    ALL.iter().copied().find(|id| id.as_str() == name)
}

ids! {
    NOT_A_FILE = "not-a-file";
    UNKNOWN_FILE = "unknown-file";
    CHANGED = "changed-while-read";
    OUTSIDE_PREFIX = "outside-prefix";
    UNREPRESENTABLE_PATH = "unrepresentable-path";
    WINDOWS_NAME = "windows-name";
    NOT_TEXT = "not-text";
    LEFTOVER = "leftover";
    OUTPUT_IN_THE_WAY = "output-in-the-way";
    SYSTEM = finding::SYSTEM.as_str();
    USAGE = finding::USAGE.as_str();
    RESOLVED_ELSEWHERE = "resolved-elsewhere";
    SHARED_LINK = "shared-link";
    ATTRIBUTE_LOST = "attribute-lost";
    UNCHANGED = "unchanged";
    UNSOUND_OUTPUT = "unsound-output";
    COMPILER = "compiler";
    DAMAGED_BINARY = "damaged-binary";
    UNSUPPORTED_BINARY = "unsupported-binary";
    SIGNED_BINARY = "signed-binary";
    STALE_CHECKSUM = "stale-checksum";
    DAMAGED_BUNDLE = finding::DAMAGED_BUNDLE.as_str();
    DAMAGED_CODE_OBJECT = "damaged-code-object";
    DEVICE_CODE_SOUND = "device-code-sound";
    UNACCOUNTED_CODE = "unaccounted-code";
    NO_DEVICE_CODE = "no-device-code";
    BUNDLES_IN_DATA = "bundles-in-data";
    OFFLOAD_IMAGES = "offload-images";
    THIN_ARCHIVE = "thin-archive";
    SPLIT_ALREADY = "split-already";
    SPLIT_BY_ANOTHER_TOOL = "split-by-another-tool";
    SPLIT_BEFORE_LINK = "split-before-link";
    RECOMPILED_AFTER_LINK = "recompiled-after-link";
    NO_ROOM = "no-room";
    WITHOUT_WRAPPERS = "without-wrappers";
    OTHER_MODULE = "other-module";
    FAT_BINARY = "fat-binary";
    NATIVE_TARGETS = "native-targets";
    BUILD_PATH = "build-path";
    NOTHING_SPLIT = "nothing-split";
    SPIRV_KEPT = "spirv-kept";
    DEBUG_INFORMATION = "debug-information";
    NO_BUILD_ID = "no-build-id";
    SHARED_BUILD_ID = "shared-build-id";
    DEBUG_NOT_REMOVABLE = "debug-not-removable";
    UNCOMPRESSED = "uncompressed";
    HOST_DIFFERS = "host-differs";
    GPUS = "gpus";
    HIDDEN_GPUS = "hidden-gpus";
    NO_GPU = finding::NO_GPU.as_str();
    LOADER_DISABLED = finding::LOADER_DISABLED.as_str();
    SEARCH_PATHS_SET = finding::SEARCH_PATHS_SET.as_str();
    NO_DRIVER = "no-driver";
    NO_DEVICE_ACCESS = "no-device-access";
    GPU_OVERRIDDEN = "gpu-overridden";
    DEVICE_WHEEL_MISSING = "device-wheel-missing";
    DEVICE_WHEEL_OTHER_GPU = "device-wheel-other-gpu";
    DEVICE_WHEEL_VERSION = "device-wheel-version";
    DEVICE_WHEEL_DAMAGED = "device-wheel-damaged";
    FAMILY_WHEEL_MISSING = "family-wheel-missing";
    HOST_WHEEL_MISSING = "host-wheel-missing";
    NO_DEVICE_WHEEL = "no-device-wheel";
    DEVICE_PACKAGE_MISSING = "device-package-missing";
    DEVICE_PACKAGE_DAMAGED = "device-package-damaged";
    UNREAD_PACKAGE_DATABASE = "unread-package-database";
    TWO_RUNTIMES = "two-runtimes";
    CODE_FOUND = "code-found";
    EARLY_MARKER = "early-marker";
    RUNTIME_READS_MARKERS = "runtime-reads-markers";
    MARKERS_NOT_NEEDED = "markers-not-needed";
    RUNTIME_IGNORES_MARKERS = "runtime-ignores-markers";
    SHIM_OFF = "shim-off";
    MIXED_GPUS = "mixed-gpus";
    ROCM_LOADER = "rocm-loader";
    UNKNOWN_RUNTIME = "unknown-runtime";
    NOT_LOADABLE = "not-loadable";
    MISSING_LIBRARY = "missing-library";
    RUN_PATH = "run-path";
    LOADER_VERSION = "loader-version";
    MISSING_DATABASE = "missing-database";
    BAD_CONFIGURATION = "bad-configuration";
    MISSING_TARGET = finding::MISSING_TARGET.as_str();
    CODE_DROPPED = "code-dropped";
    GENERIC_CODE = "generic-code";
    UNEXPECTED_TARGET = "unexpected-target";
    UNKNOWN_PROCESSOR = "unknown-processor";
    WHEEL_SOUND = "wheel-sound";
    DAMAGED_WHEEL = "damaged-wheel";
    UNSUPPORTED_WHEEL = "unsupported-wheel";
    WHEEL_NAME = "wheel-name";
    NOT_FOR_PYPI = "not-for-pypi";
    OTHER_PYTHONS = "other-pythons";
    NEWER_ROCM_NEEDED = "newer-rocm-needed";
    VENDORED_ROCM = "vendored-rocm";
    SIGNATURE_DROPPED = "signature-dropped";
    SMALL_GAIN = "small-gain";
    NO_VARIANT = "no-variant";
    OUTSIDE_SITE_PACKAGES = "outside-site-packages";
    MISSING_WHEEL = "missing-wheel";
    UNREQUESTED_WHEEL = "unrequested-wheel";
    WRONG_PIN = "wrong-pin";
    FAMILY_NOT_REQUIRED = "family-not-required";
    OVERLAPPING_WHEELS = "overlapping-wheels";
    NAME_CLASH = "name-clash";
    NO_SUCH_CODE = "no-such-code";
    SEVERAL_SELECTED = "several-selected";
    SIZE_LIMIT = "size-limit";
    CODE_IN_ARCHIVES = "code-in-archives";
    NOTHING_BUILT = "nothing-built";
    ARCHIVE_SOUND = "archive-sound";
    MISSING_ARCHIVE = finding::MISSING_ARCHIVE.as_str();
    DAMAGED_ARCHIVE = finding::DAMAGED_ARCHIVE.as_str();
    OTHER_TYPE = "other-type";
    MISSING_KERNEL = finding::MISSING_KERNEL.as_str();
    STALE_ARCHIVE = finding::STALE_ARCHIVE.as_str();
    FEWER_KERNELS = "fewer-kernels";
    INCOMPLETE_VARIANT = "incomplete-variant";
    DAMAGED_MANIFEST = "damaged-manifest";
    DAMAGED_MARKER = finding::DAMAGED_MARKER.as_str();
    NOT_AN_ARTIFACT = "not-an-artifact";
    SPLIT_ARTIFACT = "split-artifact";
    INVALID_PREFIX_LIST = "invalid-prefix-list";
    MISSING_PREFIX = "missing-prefix";
    IN_NO_PREFIX = "in-no-prefix";
    UNSUPPORTED_MARK = "unsupported-mark";
    MISPLACED_FILE = "misplaced-file";
    UNPLACED_FILE = "unplaced-file";
    CONTRADICTORY_TARGET = "contradictory-target";
    UNREADABLE_DEVICE_CODE = "unreadable-device-code";
    UNOPENED_PACKAGE = "unopened-package";
    CONFLICTING_FILES = "conflicting-files";
    STALE_ARTIFACT = "stale-artifact";
    MISSING_ARTIFACT = "missing-artifact";
    WITHOUT_CODE = "without-code";
    ARTIFACT_SOUND = "artifact-sound";
    DAMAGED_DATABASE_FILE = "damaged-database-file";
    UNREAD_DATABASE_FILE = "unread-database-file";
    INCOMPLETE_DATABASE = "incomplete-database";
    FILE_FOR_ALL_TARGETS = "file-for-all-targets";
    DATABASES_SOUND = "databases-sound";
    NO_SHARDS = "no-shards";
    MISSING_SHARD = "missing-shard";
    NOT_PUBLISHED = "not-published";
    SHARDS_DIFFER = "shards-differ";
    DUPLICATE_DEVICE_CODE = "duplicate-device-code";
    UNMERGEABLE_FILE = "unmergeable-file";
    MERGED_FILE = "merged-file";
    FAILED_COMPONENTS = "failed-components";
    BAD_INDEX = "bad-index";
    NOT_FETCHED = "not-fetched";
    WRONG_DIGEST = "wrong-digest";
    DAMAGED_TAR = "damaged-tar";
    UNSAFE_MEMBER = "unsafe-member";
    INDEX_DIFFERS = "index-differs";
    NAMES_DIFFER_BY_CASE = "names-differ-by-case";
    OTHER_PUBLISHER = "other-publisher";
    UNKNOWN_GROUP = "unknown-group";
    MANIFEST_SOUND = "manifest-sound";
    INCONSISTENT_MANIFEST = "inconsistent-manifest";
    NOT_AS_LISTED = "not-as-listed";
    MISNAMED_ARCHIVE = "misnamed-archive";
    BEYOND_OTHER_READERS = "beyond-other-readers";
    NAMES_WITHOUT_COLONS = "names-without-colons";
    UNUSED_KERNELS = "unused-kernels";
    MARKER_SOUND = "marker-sound";
    INCONSISTENT_MARKER = "inconsistent-marker";
    MOVED_BINARY = "moved-binary";
    DEVICE_CODE_LEFT = "device-code-left";
    CODE_MATCHES = "code-matches";
    CODE_DIFFERS = "code-differs";
    HOST_MATCHES = "host-matches";
    FILES_MATCH = "files-match";
    FILES_DIFFER = "files-differ";
}
