//! The display adapters.

#![allow(unsafe_code)]

use std::ptr;

use windows_sys::Win32::Devices::DeviceAndDriverInstallation::{
    DIGCF_PRESENT, GUID_DEVCLASS_DISPLAY, MAX_DEVICE_ID_LEN, SP_DEVINFO_DATA,
    SetupDiDestroyDeviceInfoList, SetupDiEnumDeviceInfo, SetupDiGetClassDevsW,
    SetupDiGetDeviceInstanceIdW,
};

/// The IDs of the display adapters of this machine. Windows remembers those that were removed, too; they are not listed.
pub(crate) fn display_adapters() -> Vec<String> {
    let mut adapters = Vec::new();
    let class = GUID_DEVCLASS_DISPLAY;
    let mut device = SP_DEVINFO_DATA::default();
    device.cbSize = size_of_val(&device) as u32;
    let mut text = [0; MAX_DEVICE_ID_LEN as usize];
    // SAFETY: the list is valid until it is destroyed, `device` has its size, and `text` has room for that many
    // characters. A list that could not be made has no devices.
    unsafe {
        let flags = DIGCF_PRESENT;
        let list = SetupDiGetClassDevsW(&raw const class, ptr::null(), ptr::null_mut(), flags);
        let mut index = 0;
        while SetupDiEnumDeviceInfo(list, index, &raw mut device) != 0 {
            let (device, into, room) = (&raw const device, text.as_mut_ptr(), MAX_DEVICE_ID_LEN);
            // One without a readable ID may be a GPU, so none is known.
            if SetupDiGetDeviceInstanceIdW(list, device, into, room, ptr::null_mut()) == 0 {
                adapters.clear();
                break;
            }
            let id = text.split(|character| *character == 0).next().unwrap_or_default();
            adapters.push(String::from_utf16_lossy(id));
            index += 1;
        }
        SetupDiDestroyDeviceInfoList(list);
    }
    adapters
}
