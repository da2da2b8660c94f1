//! The processors of AMD's GPUs by their PCI IDs, where the driver does not tell them.

use kpack_format::TargetId;

/// The processors of the GPUs among the display adapters, whose IDs are as Windows has them:
/// `PCI\VEN_1002&DEV_744C&SUBSYS_…&REV_C8\…`. `None` if there are none, or if one of them is newer or older than this
/// list, since the others alone would pass for all.
pub(super) fn processors(adapters: &[String]) -> Option<Vec<TargetId>> {
    let of_amd = adapters.iter().filter_map(|id| id.strip_prefix(r"PCI\VEN_1002&"));
    let processors = of_amd.map(|id| {
        let part = |name: &str| {
            let mut parts = id.split(['&', '\\']);
            let number = parts.find_map(|part| part.strip_prefix(name))?;
            u16::from_str_radix(number, 16).ok()
        };
        processor(part("DEV_")?, part("REV_").unwrap_or_default())?.parse().ok()
    });
    processors.collect::<Option<Vec<_>>>().filter(|found| !found.is_empty())
}

/// The processor of a device with a revision. Two tables of AMD say so, or the only one that has it: the one that ROCm's
/// runtime used before drivers told it (`gfxip_lookup_table`), and its successor for WSL, and that of AMD's tools for
/// Windows (GPUOpen's `device_info`); for accelerators the one of rocprofiler-compute.
fn processor(device: u16, revision: u16) -> Option<&'static str> {
    Some(match device {
        0x67df | 0x67ef | 0x67ff | 0x6fdf => "gfx803",
        0x6860..=0x6864 | 0x6867..=0x686e | 0x687f => "gfx900",
        0x15d8 | 0x15dd => "gfx902",
        0x69a0..=0x69a3 | 0x69af => "gfx904",
        0x66a0..=0x66a4 | 0x66a7 | 0x66af => "gfx906",
        0x7388 | 0x738c | 0x738e | 0x7390 => "gfx908",
        0x7408 | 0x740c | 0x740f | 0x7410 => "gfx90a",
        0x15e7 | 0x1636 | 0x1638 | 0x164c => "gfx90c",
        0x74a0..=0x74a2 | 0x74a5 | 0x74a8 | 0x74a9 => "gfx942",
        0x74b4..=0x74b6 | 0x74b9 | 0x74bc | 0x74bd => "gfx942",
        0x75a0..=0x75a3 | 0x75b0 | 0x75b2 | 0x75b3 => "gfx950",
        0x7310 | 0x7312 | 0x7318..=0x731b | 0x731e | 0x731f => "gfx1010",
        0x7360 | 0x7362 => "gfx1011",
        0x7340 | 0x7341 | 0x7347 | 0x734f => "gfx1012",
        0x73a0..=0x73a3 | 0x73a5 | 0x73ab | 0x73ae | 0x73af | 0x73bf => "gfx1030",
        0x73c0 | 0x73c1 | 0x73c3 | 0x73da..=0x73df => "gfx1031",
        // The Radeon RX 6750 GRE 10GB, among the RX 6600.
        0x73ff if revision == 0xdf => "gfx1031",
        0x73e0..=0x73e3 | 0x73e8..=0x73ed | 0x73ef | 0x73ff => "gfx1032",
        0x163f => "gfx1033",
        0x7420..=0x7423 | 0x743f => "gfx1034",
        0x164d | 0x1681 => "gfx1035",
        0x13c0 | 0x1506 | 0x164e => "gfx1036",
        0x7448..=0x744c | 0x745e => "gfx1100",
        0x7460 | 0x7461 | 0x7470 | 0x747e => "gfx1101",
        0x7480 | 0x7481 | 0x7483 | 0x7487 | 0x7489 | 0x748b | 0x7499 => "gfx1102",
        0x15bf | 0x15c8 | 0x1900 | 0x1901 => "gfx1103",
        0x150e => "gfx1150",
        0x1586 => "gfx1151",
        0x1114 => "gfx1152",
        0x1902 => "gfx1153",
        0x7590 => "gfx1200",
        0x7550 | 0x7551 => "gfx1201",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(adapters: &[&str]) -> Option<Vec<String>> {
        let adapters = Vec::from_iter(adapters.iter().map(|id| (*id).to_owned()));
        Some(processors(&adapters)?.iter().map(TargetId::to_string).collect())
    }

    #[test]
    fn adapters_by_device_and_revision() {
        for (id, expected) in [
            (r"PCI\VEN_1002&DEV_744C&SUBSYS_79011EAE&REV_C8\6&10C0C1D3&0&00000019", "gfx1100"),
            (r"PCI\VEN_1002&DEV_164E&SUBSYS_D0001458&REV_C8\4&3B0A5F0&0&0041", "gfx1036"),
            (r"PCI\VEN_1002&DEV_73FF&SUBSYS_00000000&REV_C1\0", "gfx1032"),
            (r"PCI\VEN_1002&DEV_73FF&SUBSYS_00000000&REV_DF\0", "gfx1031"),
            (r"PCI\VEN_1002&DEV_73FF", "gfx1032"),
        ] {
            assert_eq!(names(&[id]).unwrap(), [expected], "{id}");
        }
    }

    #[test]
    fn a_part_of_the_gpus_is_not_all() {
        const KNOWN: &str = r"PCI\VEN_1002&DEV_7550&SUBSYS_0&REV_C0\0";
        const OTHER: &str = r"PCI\VEN_10DE&DEV_2684&SUBSYS_0&REV_A1\0";
        assert_eq!(names(&[OTHER, KNOWN, KNOWN]).unwrap(), ["gfx1201", "gfx1201"]);
        for unknown in ["FFFF", "", "744", "744C0", "Ä"] {
            let unknown = format!(r"PCI\VEN_1002&DEV_{unknown}&SUBSYS_0&REV_00\0");
            assert_eq!(names(&[KNOWN, &unknown]), None, "{unknown}");
        }
        for none in [&[][..], &[OTHER], &[r"ROOT\BASICDISPLAY\0000"], &[r"PCI\VEN_1002&"]] {
            assert_eq!(names(none), None, "{none:?}");
        }
    }

    #[test]
    fn every_processor_exists() {
        let known = Vec::from_iter(kpack_format::code_object::processors());
        let named =
            (0..=u16::MAX).flat_map(|device| [processor(device, 0), processor(device, 0xdf)]);
        for processor in named.flatten() {
            assert!(known.contains(&processor), "{processor}");
        }
    }
}
