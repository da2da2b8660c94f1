//! Manifests and markers: the wire names that others read, what is refused, and that no bytes make
//! the readers panic.

use kpack_format::manifest::{KpackFile, Manifest};
use kpack_format::marker::{MAX_SIZE, Marker};
use kpack_tests::bytes;
use proptest::prelude::*;

fn manifest() -> Manifest {
    let file = KpackFile::new("gfx1100", "vec_lib_gfx1100.kpack", 300, 2, Some([7; 32]));
    let mut manifest = Manifest::new("vec_lib", "lib");
    manifest.kpack_files.insert("gfx1100".to_owned(), file);
    manifest
}

/// As it stands in a file, written by hand.
fn manifest_bytes() -> Vec<u8> {
    [
        &b"\x84\xaeformat_version\x01\xaecomponent_name\xa7vec_lib\xa6prefix\xa3lib"[..],
        b"\xabkpack_files\x81\xa7gfx1100\x85\xacarchitecture\xa7gfx1100",
        b"\xa8filename\xb5vec_lib_gfx1100.kpack\xa4size\xcd\x01\x2c\xackernel_count\x02",
        b"\xa6blake3\xc4\x20",
        &[7; 32],
    ]
    .concat()
}

#[test]
fn a_manifest_is_as_others_read_it() {
    assert_eq!(manifest().to_bytes(), manifest_bytes());
    assert_eq!(Manifest::read(&manifest_bytes()).unwrap(), manifest());
}

#[test]
fn an_install_hint_is_a_key_that_others_pass_over() {
    let mut with_hint = manifest();
    with_hint.install_hint = Some("apt install vec-@GFXARCH@".to_owned());
    let mut bytes = manifest_bytes();
    bytes[0] += 1;
    bytes.extend(b"\xacinstall_hint\xb9apt install vec-@GFXARCH@");
    assert_eq!(with_hint.to_bytes(), bytes);
    assert_eq!(Manifest::read(&bytes).unwrap(), with_hint);
    // A reader that does not know the key reads what it read before.
    let place = bytes::position(&bytes, b"install");
    bytes[place] = b'x';
    assert_eq!(Manifest::read(&bytes).unwrap(), manifest());
}

#[test]
fn a_manifest_without_checksum_is_read() {
    let mut expected = manifest();
    expected.kpack_files.get_mut("gfx1100").unwrap().checksum = None;
    assert_eq!(Manifest::read(&expected.to_bytes()).unwrap(), expected);
}

#[test]
fn a_manifest_that_leads_out_of_its_directory_is_refused() {
    for name in ["../other.kpack", "/etc/passwd", "..", ""] {
        let mut manifest = manifest();
        manifest.kpack_files.get_mut("gfx1100").unwrap().filename = name.to_owned();
        let error = Manifest::read(&manifest.to_bytes()).unwrap_err().to_string();
        assert!(error.contains("expected a file name without directory"), "{error}");
    }
}

#[test]
fn another_version_and_trailing_bytes_are_refused() {
    let mut bytes = manifest_bytes();
    bytes[16] = 2;
    let error = Manifest::read(&bytes).unwrap_err().to_string();
    assert!(error.contains("format version 2; this program reads version 1"), "{error}");
    let bytes = [manifest_bytes(), vec![0]].concat();
    let error = Manifest::read(&bytes).unwrap_err().to_string();
    assert!(error.contains("1 bytes follow the manifest"), "{error}");
}

fn marker() -> Marker {
    Marker::new("bin/vec", vec!["../lib/.kpack/vec_lib_@GFXARCH@.kpack".to_owned()])
}

/// The same of a binary whose device code is known.
fn marker_with_ids() -> Marker {
    let ids = [("gfx1100", [1; 8]), ("gfx90a:xnack+", [2; 8])];
    marker().with_code_ids(ids.map(|(target, id)| (target.to_owned(), id)).into())
}

/// As it stands in a file, written by hand.
fn marker_bytes() -> Vec<u8> {
    [
        &b"\x82\xb2kpack_search_paths\x91\xd9\x25../lib/.kpack/vec_lib_@GFXARCH@.kpack"[..],
        b"\xabkernel_name\xa7bin/vec",
    ]
    .concat()
}

#[test]
fn a_marker_is_as_others_read_it() {
    assert_eq!(marker().to_bytes(), marker_bytes());
}

#[test]
fn a_marker_with_code_ids_is_as_others_read_it() {
    let mut bytes = marker_bytes();
    bytes[0] = 0x83;
    bytes.extend(b"\xabcode_blake3\x82\xa7gfx1100\xc4\x08\x01\x01\x01\x01\x01\x01\x01\x01");
    bytes.extend(b"\xadgfx90a:xnack+\xc4\x08\x02\x02\x02\x02\x02\x02\x02\x02");
    assert_eq!(marker_with_ids().to_bytes(), bytes);
    let expected = (marker_with_ids(), bytes.len());
    assert_eq!(Marker::read(&bytes).unwrap(), expected);
    // An ID is 8 bytes.
    bytes.pop();
    let last = bytes.len() - 8;
    bytes[last] = 7;
    let error = Marker::read(&bytes).unwrap_err().to_string();
    assert!(error.contains("a digest of 8 bytes"), "{error}");
}

#[test]
fn shared_bundles_are_ranges_of_indices() {
    let mut marker = marker();
    let bundles: [&[u32]; 4] = [&[0, 1, 2, 5, 7, 8], &[3], &[4, 300], &[]];
    marker.set_shared_bundles(bundles.into_iter());
    assert_eq!(
        [2, 3, 5, 6, 300].map(|i| marker.shared_bundle(i)),
        [Some(0), None, Some(0), None, Some(1)]
    );
    let mut bytes = marker_bytes();
    bytes[0] = 0x83;
    bytes.extend(b"\xaeshared_bundles\x92\x96\x00\x03\x05\x01\x07\x02\x94\x04\x01\xcd\x01\x2c\x01");
    assert_eq!(marker.to_bytes(), bytes);
    assert_eq!(Marker::read(&bytes).unwrap(), (marker.clone(), bytes.len()));
    assert_eq!(marker.without_additions(), self::marker());
    // An odd number of integers, and an end past the last index.
    for damaged in [&b"\x91\x91\x00"[..], b"\x91\x92\xce\xff\xff\xff\xff\x01"] {
        let bytes = [&bytes[..marker_bytes().len() + 15], damaged].concat();
        let error = Marker::read(&bytes).unwrap_err().to_string();
        assert!(error.contains("expected ranges"), "{error}");
    }
}

#[test]
fn shared_bundles_without_room_become_separate_before_code_ids_are_left_out() {
    let mut marker = marker_with_ids();
    marker.set_shared_bundles([&[0, 1][..]].into_iter());
    let room = marker.to_bytes().len();
    let (fewer, _) = Marker::read(&marker.to_bytes_within(room - 1).unwrap()).unwrap();
    assert_eq!(fewer, marker_with_ids());
    // Every other wrapper of very many.
    let indices: Vec<u32> = (0..40_000).map(|index| 2 * index).collect();
    marker.set_shared_bundles([&indices[..]].into_iter());
    assert_eq!(marker, marker_with_ids());
}

#[test]
fn code_ids_that_do_not_fit_are_left_out() {
    let (marker, size) = (marker_with_ids(), marker_with_ids().to_bytes().len());
    // Given room for all of them, then for one, then for none.
    let read = |room| Marker::read(&marker.to_bytes_within(room).unwrap()).unwrap().0;
    assert_eq!(marker.to_bytes_within(size + 9).unwrap().len(), size + 9);
    assert_eq!(read(size + 9), marker);
    assert_eq!(Vec::from_iter(read(size - 1).code_ids.into_keys()), ["gfx1100"]);
    assert_eq!(read(marker_bytes().len()), self::marker());
    // What leads to the archives cannot be left out.
    assert_eq!(marker.to_bytes_within(marker_bytes().len() - 1), None);
}

/// A reader may unpack a whole section, and expect one map.
#[test]
fn padding_is_in_the_map() {
    let marker = marker_with_ids();
    let least = marker.to_bytes().len();
    let (mut map, mut end) = (marker.to_bytes(), 0);
    map[0] += 1;
    map.extend(b"\xa7padding\xc5");
    for room in [least + 11, least + 12, least + 300, MAX_SIZE] {
        let bytes = marker.to_bytes_within(room).unwrap();
        let padding = room - least - 11;
        let expected = [&map[..], &(padding as u16).to_be_bytes(), &vec![0; padding]].concat();
        assert_eq!(bytes, expected, "{room}");
        assert_eq!(Marker::read(&bytes).unwrap(), (marker.clone(), room));
        end = end.max(room);
    }
    // No reader reads further than that.
    let more = marker.to_bytes_within(end + 100).unwrap();
    assert_eq!(Marker::read(&more).unwrap(), (marker.clone(), end));
    // Too little for a key is left after the map.
    for room in least..least + 11 {
        let bytes = marker.to_bytes_within(room).unwrap();
        assert_eq!(bytes[..least], marker.to_bytes());
        assert!(bytes[least..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_marker_ends_where_it_ends() {
    let bytes = [marker_bytes(), vec![0xc1; 100]].concat();
    assert_eq!(Marker::read(&bytes).unwrap(), (marker(), marker_bytes().len()));
}

#[test]
fn the_keys_of_a_marker_come_in_any_order() {
    let bytes = b"\x82\xabkernel_name\xa1x\xb2kpack_search_paths\x91\xa1y";
    let (marker, size) = Marker::read(bytes).unwrap();
    assert_eq!((marker.kernel_name.as_deref(), size), (Some("x"), bytes.len()));
}

#[test]
fn search_paths_and_names_that_are_no_strings_lead_nowhere() {
    let with = |name: &[u8], paths: &[u8]| {
        let keys = [&b"\x82\xabkernel_name"[..], name, b"\xb2kpack_search_paths", paths];
        Marker::read(&keys.concat()).map(|(marker, _)| marker.kpack_search_paths)
    };
    // A number, nothing, bytes, a list, a map, a truth, a float, an extension.
    let others: [&[u8]; 8] = [
        b"\x2a",
        b"\xc0",
        b"\xc4\x01y",
        b"\x91\xa1y",
        b"\x81\xa1y\xa1y",
        b"\xc3",
        b"\xcb\0\0\0\0\0\0\0\0",
        b"\xd4\x01y",
    ];
    for other in others {
        // Beside a string they are passed over,
        let paths = [&b"\x92"[..], other, b"\xa1y"].concat();
        assert_eq!(with(b"\xa1x", &paths).unwrap(), ["y"], "{other:02x?}");
        // alone they are no search paths, and no name.
        let error = with(b"\xa1x", &[b"\x91", other].concat()).unwrap_err();
        assert!(error.to_string().contains("no search paths"), "{error}");
        with(other, b"\x91\xa1y").unwrap_err();
    }
}

#[test]
fn the_early_text_form_is_read() {
    let (marker, size) = Marker::read(b"../../../.kpack:../../.kpack:.kpack\0junk").unwrap();
    assert_eq!(marker.kernel_name, None);
    assert_eq!(marker.kpack_search_paths, ["../../../.kpack", "../../.kpack", ".kpack"]);
    assert_eq!(size, 35);
}

#[test]
fn what_is_no_marker_is_refused() {
    for bytes in [&b""[..], b"\0\0\0", b"\x80", b"\x7fELF\x02\x01\x01", b"\x81\xa1x\x01"] {
        assert!(Marker::read(bytes).is_err(), "{bytes:02x?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Manifest::read(&bytes);
        let _ = Marker::read(&bytes);
    }

    #[test]
    fn truncation_is_noticed(cut in 0usize..160) {
        prop_assert!(Manifest::read(&manifest_bytes()[..cut.min(manifest_bytes().len() - 1)]).is_err());
        prop_assert!(Marker::read(&marker_bytes()[..cut.min(marker_bytes().len() - 1)]).is_err());
    }
}

#[test]
fn what_leads_nowhere_or_everywhere_is_no_marker() {
    let none = b"\x82\xabkernel_name\xa1x\xb2kpack_search_paths\x90";
    assert!(Marker::read(none).is_err());
    let mut many = b"\x82\xabkernel_name\xa1x\xb2kpack_search_paths\xdc\x00\x41".to_vec();
    many.extend([0xa1, b'y'].repeat(65));
    let error = Marker::read(&many).unwrap_err().to_string();
    assert!(error.contains("at most 64"), "{error}");
    for text in ["this is no marker", ":", "a:b"] {
        assert!(Marker::read(text.as_bytes()).is_err(), "{text}");
    }
}
