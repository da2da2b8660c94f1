//! How small files get in a package: the program that packs them tells.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use kpack_core::Error;

/// What compresses a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Packing {
    /// `xz -6`, as most DEB packages
    Xz,
    /// `zstd -19`, as most RPM packages
    Zstd,
    /// `gzip -6`, the DEFLATE of wheels and other ZIP files
    Zip,
}

impl Packing {
    fn command(self) -> [&'static str; 2] {
        match self {
            Self::Xz => ["xz", "-6"],
            Self::Zstd => ["zstd", "-19"],
            Self::Zip => ["gzip", "-6"],
        }
    }

    /// The size of `files` compressed one after another, without their names. A ZIP file compresses each by itself.
    ///
    /// # Errors
    /// [`Error::Io`], also if the program is missing or fails.
    pub(super) fn size(self, files: &[PathBuf]) -> Result<u64, Error> {
        match self {
            Self::Zip => files.chunks(1).map(|file| self.compressed(file)).sum(),
            Self::Xz | Self::Zstd => self.compressed(files),
        }
    }

    fn compressed(self, files: &[PathBuf]) -> Result<u64, Error> {
        let [program, level] = self.command();
        let failed = |error| Error::io(Path::new(program), "run", error);
        let mut command = Command::new(program);
        let command = command.args([level, "-c", "-q"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (fed, size) = thread::scope(|scope| {
            let feed = scope.spawn(move || match input {
                Some(input) => feed(files, input),
                None => Ok(()),
            });
            let size = output.map_or(Ok(0), |mut output| io::copy(&mut output, &mut io::sink()));
            (feed.join(), size)
        });
        let status = child.wait().map_err(failed)?;
        if !status.success() {
            let reason = format!("it ended with {status}");
            return Err(failed(io::Error::other(reason)));
        }
        fed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        size.map_err(failed)
    }
}

/// Writes `files` to `input`.
fn feed(files: &[PathBuf], mut input: impl io::Write) -> Result<(), Error> {
    let mut part = vec![0; 1 << 20];
    for path in files {
        let failed = |error| Error::io(path, "read", error);
        let mut file = File::open(path).map_err(failed)?;
        loop {
            let read = file.read(&mut part).map_err(failed)?;
            // The program's status says why it reads no more.
            if read == 0 || input.write_all(&part[..read]).is_err() {
                break;
            }
        }
    }
    Ok(())
}
