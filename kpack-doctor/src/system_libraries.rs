//! Which libraries the system provides, so that no application ships them: one table, for Linux and for Windows.

use kpack_tree::place::matches_pattern;

/// Libraries that the system provides for one reason.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SystemGroup {
    /// What they have in common, for people.
    pub name: &'static str,
    /// Why they count as the system's.
    pub source: &'static str,
    /// Whether they are ROCm's, which an application may ship or require.
    pub is_rocm: bool,
    /// Whether Windows takes them from its own directory, even if a program has others beside it.
    pub is_reserved: bool,
    /// Their names; a `*` stands for anything. Those of DLLs are in lower case.
    pub names: &'static [&'static str],
}

/// The defaults of a row.
const GROUP: SystemGroup =
    SystemGroup { name: "", source: "", is_rocm: false, is_reserved: false, names: &[] };

/// The policy of `manylinux2014`, in which all later ones agree.
const MANYLINUX: &str =
    "manylinux_2_17 (PEP 599), which lists what wheels may expect of a distribution";
/// How Windows finds DLLs.
const SEARCH_ORDER: &str =
    "https://learn.microsoft.com/en-us/windows/win32/dlls/dynamic-link-library-search-order";

/// All of them. The first that has a name counts.
pub const SYSTEM_GROUPS: &[SystemGroup] = &[
    SystemGroup {
        name: "C and C++ runtime",
        source: MANYLINUX,
        names: &[
            "ld-linux*.so.*",
            "ld64.so.*",
            "libanl.so.1",
            "libatomic.so.1",
            "libc.so.6",
            "libdl.so.2",
            "libgcc_s.so.1",
            "libm.so.6",
            "libmvec.so.1",
            "libnsl.so.1",
            "libpthread.so.0",
            "libresolv.so.2",
            "librt.so.1",
            "libstdc++.so.6",
            "libutil.so.1",
        ],
        ..GROUP
    },
    SystemGroup {
        name: "desktop",
        source: MANYLINUX,
        names: &[
            "libGL.so.1",
            "libICE.so.6",
            "libSM.so.6",
            "libX11.so.6",
            "libXext.so.6",
            "libXrender.so.1",
            "libexpat.so.1",
            "libglib-2.0.so.0",
            "libgobject-2.0.so.0",
            "libgthread-2.0.so.0",
            "libz.so.1",
        ],
        ..GROUP
    },
    SystemGroup {
        name: "driver",
        source: "they belong to the kernel's driver, or find the driver that is installed",
        names: &["libOpenCL.so.1", "libdrm.so.2", "libdrm_amdgpu.so.1", "libvulkan.so.1"],
        ..GROUP
    },
    SystemGroup {
        name: "API sets",
        source: SEARCH_ORDER,
        is_reserved: true,
        names: &["api-ms-*.dll", "ext-ms-*.dll"],
        ..GROUP
    },
    SystemGroup {
        name: "known DLLs",
        source: SEARCH_ORDER,
        is_reserved: true,
        // The values of `KnownDLLs` in the registry of Windows 10 and 11, and what those DLLs need.
        names: &[
            "advapi32.dll",
            "bcryptprimitives.dll",
            "cfgmgr32.dll",
            "clbcatq.dll",
            "combase.dll",
            "comdlg32.dll",
            "coml2.dll",
            "difxapi.dll",
            "gdi32.dll",
            "gdi32full.dll",
            "gdiplus.dll",
            "imagehlp.dll",
            "imm32.dll",
            "kernel32.dll",
            "kernelbase.dll",
            "msctf.dll",
            "msvcp_win.dll",
            "msvcrt.dll",
            "normaliz.dll",
            "nsi.dll",
            "ntdll.dll",
            "ole32.dll",
            "oleaut32.dll",
            "psapi.dll",
            "rpcrt4.dll",
            "sechost.dll",
            "setupapi.dll",
            "shcore.dll",
            "shell32.dll",
            "shlwapi.dll",
            "ucrtbase.dll",
            "user32.dll",
            "win32u.dll",
            "wldap32.dll",
            "ws2_32.dll",
        ],
        ..GROUP
    },
    SystemGroup {
        name: "Windows",
        source: "`C:\\Windows\\System32` of Windows 10 and 11",
        names: &[
            "authz.dll",
            "avrt.dll",
            "bcrypt.dll",
            "comctl32.dll",
            "credui.dll",
            "crypt32.dll",
            "cryptbase.dll",
            "cryptsp.dll",
            "d2d1.dll",
            "d3d10.dll",
            "d3d10_1.dll",
            "d3d11.dll",
            "d3d12.dll",
            "d3d9.dll",
            "dbgcore.dll",
            "dbgeng.dll",
            "dbghelp.dll",
            "dcomp.dll",
            "dhcpcsvc.dll",
            "dinput8.dll",
            "dnsapi.dll",
            "dsound.dll",
            "dwmapi.dll",
            "dwrite.dll",
            "dxcore.dll",
            "dxgi.dll",
            "fwpuclnt.dll",
            "glu32.dll",
            "hid.dll",
            "iphlpapi.dll",
            "ksuser.dll",
            "mf.dll",
            "mfplat.dll",
            "mfreadwrite.dll",
            "mpr.dll",
            "msacm32.dll",
            "mscoree.dll",
            "msimg32.dll",
            "mswsock.dll",
            "ncrypt.dll",
            "netapi32.dll",
            "ntdsapi.dll",
            "odbc32.dll",
            "oleacc.dll",
            "opengl32.dll",
            "pdh.dll",
            "powrprof.dll",
            "profapi.dll",
            "propsys.dll",
            "rstrtmgr.dll",
            "secur32.dll",
            "srvcli.dll",
            "sspicli.dll",
            "tdh.dll",
            "userenv.dll",
            "usp10.dll",
            "uxtheme.dll",
            "version.dll",
            "wevtapi.dll",
            "windowscodecs.dll",
            "winhttp.dll",
            "wininet.dll",
            "winmm.dll",
            "winscard.dll",
            "winspool.drv",
            "wintrust.dll",
            "wsock32.dll",
            "wtsapi32.dll",
            "xinput1_4.dll",
        ],
        ..GROUP
    },
    SystemGroup {
        name: "Visual C++ runtime",
        source: "https://learn.microsoft.com/en-us/cpp/windows/latest-supported-vc-redist: \
                 Microsoft's installer provides it for all programs",
        names: &[
            "concrt140*.dll",
            "mfc140*.dll",
            "msvcp140*.dll",
            "vcamp140*.dll",
            "vccorlib140*.dll",
            "vcomp140*.dll",
            "vcruntime140*.dll",
        ],
        ..GROUP
    },
    SystemGroup {
        name: "driver",
        source: "they belong to a graphics driver, or find the one that is installed",
        names: &[
            "amdadlx64.dll",
            "amdocl64.dll",
            "atiadlxx.dll",
            "nvcuda.dll",
            "nvml.dll",
            "opencl.dll",
            "vulkan-1.dll",
        ],
        ..GROUP
    },
    SystemGroup {
        name: "ROCm",
        source: "an installed ROCm, if the application requires one",
        is_rocm: true,
        names: &[
            "libMIOpen*.so*",
            "libamd_comgr*.so*",
            "libamdhip64.so*",
            "libhipblas*.so*",
            "libhipdnn*.so*",
            "libhipfft*.so*",
            "libhiprand.so*",
            "libhiprtc*.so*",
            "libhipsolver*.so*",
            "libhipsparse*.so*",
            "libhiptensor*.so*",
            "libhsa-*.so*",
            "libhsakmt*.so*",
            "librccl*.so*",
            "librocalution*.so*",
            "librocblas.so*",
            "librocfft*.so*",
            "librocm*.so*",
            "librocprofiler*.so*",
            "librocrand.so*",
            "librocroller.so*",
            "librocsolver.so*",
            "librocsparse.so*",
            "libroctracer64.so*",
            "libroctx64.so*",
            "amd_comgr*.dll",
            "amdhip64*.dll",
            "hipblas*.dll",
            "hipdnn*.dll",
            "hipfft*.dll",
            "hiprand.dll",
            "hiprtc*.dll",
            "hipsolver.dll",
            "hipsparse*.dll",
            "libhipblas*.dll",
            "miopen.dll",
            "rccl.dll",
            "rocblas.dll",
            "rocfft.dll",
            "rocm_*.dll",
            "rocrand.dll",
            "rocroller.dll",
            "rocsolver.dll",
            "rocsparse.dll",
        ],
        ..GROUP
    },
];

/// Which libraries the system provides: those in the table, with changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemLibraries {
    /// Whether ROCm's count as well.
    pub rocm: bool,
    /// The names of others that do; a `*` stands for anything.
    pub also: Vec<String>,
    /// The names of those that do not, although they are in the table.
    pub except: Vec<String>,
}

impl SystemLibraries {
    /// Whether the system provides the library with this file name. Case does not matter for DLLs.
    pub fn provides(&self, name: &str) -> bool {
        let is_named =
            |patterns: &[String]| patterns.iter().any(|pattern| matches_library(pattern, name));
        if is_named(&self.except) {
            return false;
        }
        is_named(&self.also) || group_of(name).is_some_and(|group| self.rocm || !group.is_rocm)
    }
}

/// Whether a library has a name like this pattern, in which a `*` stands for anything. Case does not matter for DLLs.
pub fn matches_library(pattern: &str, name: &str) -> bool {
    match is_dll(name) {
        true => matches_pattern(&pattern.to_ascii_lowercase(), &name.to_ascii_lowercase()),
        false => matches_pattern(pattern, name),
    }
}

/// The row with a file name.
pub(crate) fn group_of(name: &str) -> Option<&'static SystemGroup> {
    let folded = if is_dll(name) { name.to_ascii_lowercase() } else { name.to_owned() };
    let has =
        |group: &&SystemGroup| group.names.iter().any(|pattern| matches_pattern(pattern, &folded));
    SYSTEM_GROUPS.iter().find(has)
}

/// Whether a file name is that of a library for Windows.
pub(crate) fn is_dll(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    ["dll", "drv"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_provides_what_the_table_says_with_the_callers_changes() {
        let of_system = SystemLibraries::default();
        for name in [
            "libc.so.6",
            "ld-linux-x86-64.so.2",
            "libstdc++.so.6",
            "libdrm_amdgpu.so.1",
            "KERNEL32.dll",
            "api-ms-win-crt-heap-l1-1-0.dll",
            "MSVCP140_ATOMIC_WAIT.dll",
            "WINSPOOL.DRV",
        ] {
            assert!(of_system.provides(name), "{name}");
        }
        for name in ["libnuma.so.1", "LIBC.SO.6", "libamdhip64.so.7", "amdhip64_7.dll", "zlib1.dll"]
        {
            assert!(!of_system.provides(name), "{name}");
        }
        let changed = SystemLibraries {
            rocm: true,
            also: vec!["libnuma.so.*".to_owned(), "Zlib*.dll".to_owned()],
            except: vec!["libstdc++.so.6".to_owned(), "librocblas.so.5".to_owned()],
        };
        for name in ["libc.so.6", "libnuma.so.1", "ZLIB1.DLL", "libamdhip64.so.7", "AMDHIP64_7.dll"]
        {
            assert!(changed.provides(name), "{name}");
        }
        for name in ["libstdc++.so.6", "librocblas.so.5", "libamdhip64-00ca863d.so.7", "libx.so"] {
            assert!(!changed.provides(name), "{name}");
        }
    }

    /// The names of DLLs are compared in lower case, so a pattern with another case would match nothing.
    #[test]
    fn names_of_dlls_are_in_lower_case() {
        let names = SYSTEM_GROUPS.iter().flat_map(|group| group.names);
        for name in names.filter(|name| is_dll(name)) {
            assert_eq!(*name, name.to_ascii_lowercase());
        }
    }
}
