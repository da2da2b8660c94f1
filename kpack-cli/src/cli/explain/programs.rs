//! Errors that programs print if GPU code does not load: those of HIP, and of the loader that it calls.

use serde::Serialize;

/// An error of HIP or of the loader.
#[derive(Debug, Serialize)]
pub(super) struct ProgramError {
    pub(super) error: &'static str,
    pub(super) code: u32,
    /// What HIP prints.
    pub(super) text: &'static str,
    pub(super) meaning: &'static str,
    pub(super) help: &'static str,
}

const NO_CODE: &str = "A library has no code for one of this machine's GPUs, or the archive with that code is not installed.";
const NO_SPLIT: &str = "The HIP runtime cannot load split binaries, or code for this machine's GPU is missing or damaged.";
const DOCTOR: &str = "Run `kpack doctor PROGRAM`. It names the library and the GPU, and prints the command that helps if it knows one.";

#[rustfmt::skip]
const ERRORS: &[ProgramError] = &[
    ProgramError {
        error: "hipErrorNoBinaryForGpu", code: 209, text: "no kernel image is available for execution on the device",
        meaning: NO_CODE, help: DOCTOR,
    },
    ProgramError {
        error: "hipErrorInvalidImage", code: 200, text: "device kernel image is invalid", meaning: NO_SPLIT, help: DOCTOR,
    },
    ProgramError {
        error: "hipErrorInvalidDeviceFunction", code: 98, text: "invalid device function", meaning: NO_SPLIT, help: DOCTOR,
    },
    ProgramError {
        error: "hipErrorSharedObjectInitFailed", code: 303, text: "shared object initialization failed", meaning: NO_SPLIT,
        help: DOCTOR,
    },
    ProgramError {
        error: "hipErrorSharedObjectSymbolNotFound", code: 302, text: "shared object symbol not found", meaning: NO_SPLIT,
        help: DOCTOR,
    },
    ProgramError {
        error: "hipErrorFileNotFound", code: 301, text: "file not found",
        meaning: "The program loads a file of GPU code by its name, and the file is not there.",
        help: "Run `kpack doctor PROGRAM`. If it finds nothing, look for the file that the program names, such as a .hsaco or .co file.",
    },
    ProgramError {
        error: "hipErrorNoDevice", code: 100, text: "no ROCm-capable device is detected",
        meaning: "The program sees no GPU: a driver, a permission or a container's device is missing, or a variable hides it.",
        help: "Run `kpack doctor PROGRAM`. It says which of these it is.",
    },
    ProgramError {
        error: "KPACK_ERROR_ARCHIVE_NOT_FOUND", code: 13, text: "kpack_load_code_object failed with error: 13",
        meaning: "The loader finds no archive with code for this machine's GPU. Usually, the GPU's wheel or package is not installed.",
        help: DOCTOR,
    },
    ProgramError {
        error: "KPACK_ERROR_ARCH_NOT_FOUND", code: 14, text: "kpack_load_code_object failed with error: 14",
        meaning: "There are archives, but none for this machine's GPU, or they belong to another build of the binary.",
        help: DOCTOR,
    },
];

/// Other texts, of older runtimes and of programs.
const TEXTS: &[(&str, &str)] = &[
    ("unable to find code object for all current devices", "hipErrorNoBinaryForGpu"),
    ("no kernel image", "hipErrorNoBinaryForGpu"),
    ("no binary for gpu", "hipErrorNoBinaryForGpu"),
    ("kernel image is invalid", "hipErrorInvalidImage"),
    ("invalid image", "hipErrorInvalidImage"),
    ("module not initialized", "hipErrorSharedObjectInitFailed"),
    ("cannot find symbol", "hipErrorSharedObjectSymbolNotFound"),
    ("no hip gpus", "hipErrorNoDevice"),
];

impl ProgramError {
    /// The error whose number this is, or whose name or text is in it.
    pub(super) fn find(text: &str) -> Option<&'static Self> {
        let text = text.to_lowercase();
        let has = |name: &str| text.contains(&name.to_lowercase());
        let other = TEXTS.iter().find(|(words, _)| has(words)).map(|(_, error)| *error);
        // A number alone, or after the word `error`.
        let mut words = text.split([' ', ':', '(', ')']).filter(|word| !word.is_empty());
        let number = words
            .next_back()
            .filter(|_| words.all(|word| ["error", "hip", "code"].contains(&word)));
        let named = Vec::from_iter(text.split(|c: char| !c.is_alphanumeric() && c != '_'));
        let is_it = |known: &&Self| {
            number == Some(&*known.code.to_string())
                || named.contains(&&*known.error.to_lowercase())
                || has(known.text)
                || Some(known.error) == other
        };
        ERRORS.iter().find(is_it)
    }
}
