//! What is in an archive that kpack and ROCm's loader read, and HRX does not, a HIP runtime that reads archives itself.

use super::entries::Targets;
use super::toc::{Scheme, Toc};
use super::writer::ArchiveWriter;

/// The largest code object that HRX reads, in bytes.
const MOST_CODE: u64 = 256 << 20;
/// The longest kernel name with its index that HRX reads, in bytes.
const MOST_NAME: usize = 1024;

impl Toc {
    /// What is beyond the bounds of other readers, a text for each of them.
    pub fn beyond_other_readers(&self) -> Vec<String> {
        let kernels = self.kernels.iter();
        let entries = kernels.flat_map(|(kernel, targets)| {
            let sizes = Targets::values(targets);
            sizes.map(move |entry| {
                let lacks_size = entry.lacks_size && self.scheme == Scheme::ZstdPerKernel;
                (kernel.as_str(), entry.original_size, lacks_size)
            })
        });
        beyond(entries)
    }
}

impl<S> ArchiveWriter<S> {
    /// What is beyond the bounds of other readers, a text for each of them.
    pub fn beyond_other_readers(&self) -> Vec<String> {
        let kernels = self.kernels.iter();
        beyond(kernels.map(|(kernel, entered)| {
            (kernel.name.as_str(), self.stored[entered.index].original_size, false)
        }))
    }
}

/// Judges kernels, each with the size of its code object, and whether the archive leaves that out.
fn beyond<'a>(entries: impl Iterator<Item = (&'a str, u64, bool)>) -> Vec<String> {
    let (mut large, mut long, mut without_size) = (None, None, None);
    for (kernel, size, lacks_size) in entries {
        if size > MOST_CODE {
            large.get_or_insert((kernel, size));
        }
        if kernel.len() > MOST_NAME {
            long.get_or_insert(kernel);
        }
        if lacks_size {
            without_size.get_or_insert(kernel);
        }
    }
    let shown = |kernel: &str| {
        let mut start = kernel.escape_debug().take(80).collect::<String>();
        if start.len() < kernel.len() {
            start.push('…');
        }
        start
    };
    let large = large.map(|(kernel, size)| {
        let kernel = shown(kernel);
        format!("the code object of `{kernel}` has {size} bytes; HRX reads at most {MOST_CODE}")
    });
    let long = long.map(|kernel| {
        let (size, kernel) = (kernel.len(), shown(kernel));
        format!("the kernel name `{kernel}` has {size} bytes; HRX reads at most {MOST_NAME}")
    });
    let without_size = without_size.map(|kernel| {
        let kernel = shown(kernel);
        format!("`{kernel}` has no `original_size`, which HRX requires of compressed code objects")
    });
    [large, long, without_size].into_iter().flatten().collect()
}
