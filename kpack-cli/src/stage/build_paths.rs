//! Finds paths of the build machine in files of a release.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::iter;
use std::path::{Path, PathBuf};

use kpack_core::platform::OsStrExt;
use memchr::memmem::Finder;
use memchr::{memchr_iter, memchr2_iter};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Bytes examined after a path: a slash and a name.
const AFTER: usize = 256;

/// A path with at least this many names does not occur inside another one by accident.
const TELLING: usize = 3;

/// Finds the first of `places`, absolute paths, in the bytes: alone, or followed by a slash and
/// more.
///
/// A short path may be part of another one: `/src` is in `/rustc/…/library/core/src/slice.rs`. Yet
/// the text before it may also be the end of another string, since Rust does not separate string
/// constants. So where a longer name could end, a match counts only if the path with the following
/// name exists. Matches in one of `except` do not count.
pub(super) fn find<'a>(
    mut source: impl Read,
    places: &'a [PathBuf],
    except: &[PathBuf],
) -> io::Result<Option<&'a Path>> {
    let all = places.iter().chain(except).map(|place| place.as_os_str().as_bytes());
    let Some(longest) = all.clone().map(<[u8]>::len).max() else {
        return Ok(None);
    };
    let starts = Starts::of(all);
    let mut window = Vec::new();
    let mut seen = 0;
    loop {
        let read = Read::by_ref(&mut source).take(CHUNK as u64).read_to_end(&mut window)?;
        let end = read == 0;
        // Keep what may be incomplete for the next round, with the bytes before and after it.
        let whole = if end { window.len() } else { window.len().saturating_sub(longest + AFTER) };
        for at in starts.within(&window[seen..]).take_while(|at| *at < whole - seen) {
            let (front, rest) = window.split_at(seen + at);
            let is_here = |place: &&PathBuf| is_place(front.last(), rest, place);
            if let Some(place) = places.iter().find(is_here)
                && !except.iter().any(|place| is_here(&place))
            {
                return Ok(Some(place));
            }
        }
        if end {
            return Ok(None);
        }
        let done = whole.saturating_sub(1);
        window.drain(..done);
        seen = whole - done;
    }
}

/// How the places begin.
enum Starts {
    /// All with these bytes.
    Alike(Box<Finder<'static>>),
    /// With one of these bytes. On Windows, a place can be written in several ways.
    Bytes(Vec<u8>),
}

impl Starts {
    fn of<'p>(mut places: impl Iterator<Item = &'p [u8]> + Clone) -> Self {
        if cfg!(windows) {
            let firsts = places.filter_map(|place| place.first());
            let firsts = BTreeSet::from_iter(firsts.map(|first| folded(*first)));
            return Self::Bytes(
                (0..=u8::MAX).filter(|byte| firsts.contains(&folded(*byte))).collect(),
            );
        }
        let first = places.next().unwrap_or_default();
        let alike = places.fold(first, |alike, place| {
            let same = alike.iter().zip(place).take_while(|(one, other)| one == other);
            &alike[..same.count()]
        });
        Self::Alike(Box::new(Finder::new(alike).into_owned()))
    }

    /// Where places may begin in the bytes.
    fn within<'b>(&'b self, bytes: &'b [u8]) -> Box<dyn Iterator<Item = usize> + 'b> {
        match self {
            Self::Alike(alike) => {
                let mut next = 0;
                Box::new(iter::from_fn(move || {
                    let at = next + alike.find(&bytes[next..])?;
                    next = at + 1;
                    Some(at)
                }))
            }
            Self::Bytes(firsts) => match **firsts {
                [one] => Box::new(memchr_iter(one, bytes)),
                [one, other] => Box::new(memchr2_iter(one, other, bytes)),
                _ => Box::new((0..bytes.len()).filter(|at| firsts.contains(&bytes[*at]))),
            },
        }
    }
}

/// Whether bytes begin with `place`; `front` is the byte before them.
fn is_place(front: Option<&u8>, bytes: &[u8], place: &Path) -> bool {
    let Some(rest) = without(bytes, place.as_os_str().as_bytes()) else {
        return false;
    };
    if rest.first().is_some_and(|next| is_of_name(*next)) {
        return false;
    }
    let begins = front.is_none_or(|byte| !is_of_name(*byte) && folded(*byte) != b'/');
    // The root counts as a component.
    begins || place.components().count() > TELLING || leads_somewhere(place, rest)
}

/// Whether `rest`, a slash and more, names an existing file in `place`. Other text may follow the
/// name.
fn leads_somewhere(place: &Path, rest: &[u8]) -> bool {
    let Some(rest) = without(rest, b"/") else {
        return false;
    };
    let Ok(entries) = fs::read_dir(place) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let Some(after) = without(rest, name.as_bytes()) else {
            return false;
        };
        let is_file = name.as_bytes().contains(&b'.');
        is_file || after.first().is_none_or(|next| !is_of_name(*next))
    })
}

/// What follows `start`, if the bytes begin with that.
fn without<'b>(bytes: &'b [u8], start: &[u8]) -> Option<&'b [u8]> {
    let (front, rest) = bytes.split_at_checked(start.len())?;
    let mut pairs = front.iter().zip(start);
    pairs.all(|(one, other)| folded(*one) == folded(*other)).then_some(rest)
}

/// The same for all bytes that mean the same in a path.
fn folded(byte: u8) -> u8 {
    match byte {
        b'\\' if cfg!(windows) => b'/',
        byte if cfg!(windows) => byte.to_ascii_lowercase(),
        byte => byte,
    }
}

/// Whether a byte can continue a name in a path.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, find};
    use std::fs;
    use std::path::{Path, PathBuf};

    fn has(text: impl AsRef<[u8]>, place: &str) -> bool {
        find(text.as_ref(), &[PathBuf::from(place)], &[]).unwrap().is_some()
    }

    #[test]
    fn part_of_another_path() {
        let rustc = "/rustc/0123/library/core/src/slice.rs\0app/src/main.rs\0./src/add.hip";
        assert!(!has(rustc, "/src"));
        assert!(!has(rustc, "/library"));
        assert!(has("at /src/main.rs", "/src"));
        assert!(has("\0/src\0", "/src"));
        assert!(has("/src", "/src"));
        assert!(!has("/srcs/main.rs /src-2/main.rs", "/src"));
    }

    #[test]
    fn packages_of_the_registry_in_a_workspace() {
        let places = [PathBuf::from("/srv/app")];
        let except = [PathBuf::from("/srv/app/.cargo/registry/src/index/libc-0.2")];
        let find = |text: &str| find(text.as_bytes(), &places, &except).unwrap();
        assert!(find("/srv/app/.cargo/registry/src/index/libc-0.2/src/lib.rs").is_none());
        assert!(find("/srv/app/.cargo/registry/src/index/libc-0.2.1/src/lib.rs").is_some());
    }

    #[test]
    fn places_that_begin_alike_or_not() {
        let text = b"x /home/somebody/work/main.rs \0/srv/build/of/lib";
        for (places, found) in [
            (&["/home/somebody/work", "/home/somebody/other"][..], true),
            (&["/home/somebody", "/home/somebody/work"], true),
            (&["/srv/build/of", "/home/nobody"], true),
            (&["/usr/src/a", "/srv/build/of"], true),
            (&["/srv/build/off", "/home/nobody"], false),
        ] {
            let places = Vec::from_iter(places.iter().map(PathBuf::from));
            assert_eq!(find(&text[..], &places, &[]).unwrap().is_some(), found, "{places:?}");
        }
    }

    #[test]
    fn text_in_front() {
        // `directory` has two components, as `/srv/app` does.
        let directory = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
        let place = directory.path().to_str().unwrap();
        let packed = format!("internal error{place}/main.rscalled");
        assert!(!has(&packed, place));
        fs::write(directory.path().join("main.rs"), "").unwrap();
        assert!(has(&packed, place));
        assert!(!has(format!("x{place}/mainly/z"), place));
        // A long path always counts.
        assert!(has("internal error/a/b/c/main.rs", "/a/b/c"));
    }

    #[test]
    fn across_what_is_read_at_a_time() {
        let place = Path::new("/home/somebody/work");
        for at in [CHUNK - 300, CHUNK - 20, CHUNK - 5, CHUNK, 2 * CHUNK - 3] {
            let mut bytes = vec![b' '; 3 * CHUNK];
            let text = place.to_str().unwrap().as_bytes();
            bytes[at..at + text.len()].copy_from_slice(text);
            assert!(has(&bytes, "/home/somebody/work"), "{at}");
            // The bytes before it count too.
            bytes[at - 4..at].copy_from_slice(b"/usr");
            assert!(!has(&bytes, "/home"), "{at}");
            assert!(!has(&bytes, "/home/some"), "{at}");
        }
    }
}
