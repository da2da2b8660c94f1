//! Given a marker in the memory of this process, when it is read, then nothing after it is.

use std::fs::File;

use kpack::internal::{Error, Marker, discover_binary_path, marker_at};
use memmap2::{MmapMut, MmapOptions};

const PAGE: usize = 4096;

fn marker(name: &str) -> Marker {
    Marker::new(name, vec![".kpack/vec_lib_@GFXARCH@.kpack".to_owned()])
}

/// Two pages; the second one cannot be read, since it is past the end of the file.
struct AtTheEnd {
    page: MmapMut,
}

impl AtTheEnd {
    fn of(bytes: &[u8]) -> (Self, usize) {
        // A file of one page, mapped over two: reading past its end gives SIGBUS, as after the last
        // page of a binary.
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGE as u64).unwrap();
        let mut page = map(&file);
        page[PAGE - bytes.len()..PAGE].copy_from_slice(bytes);
        let address = page.as_ptr() as usize + PAGE - bytes.len();
        (Self { page }, address)
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> MmapMut {
    // SAFETY: nobody else has the file.
    unsafe { MmapOptions::new().len(2 * PAGE).map_mut(file) }.unwrap()
}

#[test]
fn a_marker_at_the_end_of_what_is_mapped() {
    let expected = marker("lib/libvec.so");
    let (page, address) = AtTheEnd::of(&expected.to_bytes());
    assert_eq!(marker_at(address).unwrap(), expected);
    drop(page.page);
}

#[test]
fn a_marker_that_goes_over_a_pages_end() {
    let expected = marker(&"x".repeat(3000));
    let bytes = [&[0; 3000][..], &expected.to_bytes()].concat();
    let address = bytes.as_ptr() as usize + 3000;
    assert_eq!(marker_at(address).unwrap(), expected);
}

#[test]
fn a_marker_that_says_it_is_longer_than_what_is_mapped() {
    let mut bytes = marker("lib/libvec.so").to_bytes();
    bytes.pop();
    let (page, address) = AtTheEnd::of(&bytes);
    let error = marker_at(address).unwrap_err();
    assert!(matches!(error, Error::Marker { .. }), "{error}");
    drop(page.page);
}

#[test]
fn text_without_an_end() {
    let (page, address) = AtTheEnd::of(b"../.kpack:.kpack");
    let marker = marker_at(address).unwrap();
    assert_eq!(marker.kernel_name, None);
    assert_eq!(marker.kpack_search_paths, ["../.kpack", ".kpack"]);
    drop(page.page);
}

#[test]
fn addresses_where_nothing_is() {
    for address in [1, PAGE, usize::MAX, usize::MAX - PAGE, 1 << 47] {
        let error = marker_at(address).unwrap_err();
        assert!(matches!(error, Error::NotReadable { .. }), "{error}");
        discover_binary_path(address).unwrap_err();
    }
    let error = marker_at(b"\xc0\xc0".as_ptr() as usize).unwrap_err();
    assert!(matches!(error, Error::Marker { .. }), "{error}");
}

#[test]
fn the_binary_around_an_address() {
    static HERE: [u8; 16] = *b"find me in there";
    let address = HERE.as_ptr() as usize;
    let (path, offset) = discover_binary_path(address).unwrap();
    let this = std::env::current_exe().unwrap().canonicalize().unwrap();
    assert_eq!(path, this);
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[offset..offset + 16], HERE);
    let on_the_heap = Box::new(HERE);
    discover_binary_path(on_the_heap.as_ptr() as usize).unwrap_err();
}
