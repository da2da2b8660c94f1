//! The argument that names kernel files of programs that kpack does not know.

use std::path::Path;

use clap::Args;
use kpack_core::Error;
use kpack_tree::kernel_files::KernelFiles;

#[derive(Debug, Args)]
pub(super) struct KernelFilesArguments {
    /// Kernel files of a program that kpack does not know, such as
    /// 'cycles=lib/kernel*_{target}.{fatbin,hipfb}.zst', where {target} stands for the GPU target. @FILE reads
    /// rules from a file, one on each line. Can be repeated
    #[arg(long, value_name = "NAME=PATTERN")]
    kernel_files: Vec<String>,
}

impl KernelFilesArguments {
    /// The rules, those of files included.
    pub(super) fn rules(&self) -> Result<Vec<KernelFiles>, Error> {
        let mut rules = Vec::new();
        for argument in &self.kernel_files {
            match argument.strip_prefix('@') {
                Some(file) => rules.extend(KernelFiles::read(Path::new(file))?),
                None => rules.push(argument.parse()?),
            }
        }
        Ok(rules)
    }
}
