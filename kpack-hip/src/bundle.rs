//! The offload bundle of one split wrapper.

use kpack::internal::{Cache, CodeObject, Request, TargetId};
use kpack_format::finding::{self, Id};
use kpack_format::offload_bundle::{HOST_ENTRY, Layout};
use memmap2::{Mmap, MmapMut};

/// HIP runtimes read a bundle's table from this much of it, in bytes.
const TABLE: usize = 4096;

/// A bundle in memory that belongs to no file: HIP runtimes open the file of a mapped one.
#[derive(Debug)]
pub struct Bundle(Mmap);

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The loader's.
    #[error(transparent)]
    Loader(#[from] kpack::internal::Error),
    /// More code objects than a HIP runtime would see.
    #[error(
        "{count} code objects fit into no bundle; set HSA_OVERRIDE_GFX_VERSION to the version of the GPU, \
         and they are unknown here"
    )]
    TooMany {
        /// Their number.
        count: usize,
    },
}

impl Error {
    /// What kind of problem it is.
    pub fn id(&self) -> Id {
        match self {
            Self::Loader(error) => error.id(),
            Self::TooMany { .. } => finding::NO_GPU,
        }
    }
}

impl Bundle {
    /// The code objects of `request` that may run on `gpus`; for all GPUs if it is unknown which ones
    /// there are. Ignores the request's ISAs.
    ///
    /// # Errors
    /// As [`Cache::code_objects`]; [`Error::TooMany`]; too little memory.
    pub fn new(
        cache: &Cache,
        request: &Request<'_>,
        gpus: Option<&[TargetId]>,
    ) -> Result<Self, Error> {
        let mut code_objects = match gpus {
            // Without a GPU, no kernel can run. A program may find that out and go on.
            Some([]) => Vec::new(),
            gpus => cache.code_objects(&Request { isas: gpus.unwrap_or_default(), ..*request })?,
        };
        loop {
            match Self::of(cache, &code_objects) {
                Ok(bundle) => return Ok(bundle),
                Err((_, error)) if code_objects.len() < 2 => return Err(error),
                // Another GPU's code object, perhaps.
                Err((Some(damaged), error)) => {
                    cache.warn(request.binary, error.id(), &error);
                    code_objects.remove(damaged);
                }
                Err((None, error)) => return Err(error),
            }
        }
    }

    /// Without a code object, as compilers make it for a kernel that no GPU can run.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn empty(cache: &Cache) -> Result<Self, Error> {
        Self::of(cache, &[]).map_err(|(_, error)| error)
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A bundle of exactly these code objects. An error may have the position of the one to blame.
    fn of(cache: &Cache, code_objects: &[CodeObject]) -> Result<Self, (Option<usize>, Error)> {
        let host = (HOST_ENTRY.to_owned(), 0);
        let entry = |found: &CodeObject| (found.entry_id(), found.size());
        let entries = [host].into_iter().chain(code_objects.iter().map(entry));
        let layout = Layout::new(&Vec::from_iter(entries));
        if layout.table.len() > TABLE {
            let count = code_objects.len();
            return Err((None, Error::TooMany { count }));
        }
        let size = layout.size;
        let memory = usize::try_from(size).ok();
        let memory = memory.and_then(|size| MmapMut::map_anon(size).ok());
        let no_memory = || (None, kpack::internal::Error::OutOfMemory { size }.into());
        let mut memory = memory.ok_or_else(no_memory)?;
        memory[..layout.table.len()].copy_from_slice(&layout.table);
        for (index, found) in code_objects.iter().enumerate() {
            // The host's entry is the first.
            let start = layout.offsets[index + 1] as usize;
            let bytes = &mut memory[start..start + found.size() as usize];
            let loaded = cache.load(found, bytes);
            loaded.map_err(|error| (Some(index), error.into()))?;
        }
        let memory = memory.make_read_only().map_err(|_| no_memory())?;
        Ok(Self(memory))
    }
}
