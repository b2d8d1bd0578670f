//! Hooks of getifaddrs.

use std::ffi::c_int;

use libc::ifaddrs;

use super::hooks;
use crate::interfaces;
use crate::sys::original;

hooks! {
    /// Lists all addresses with their devices.
    fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
        let result = original::getifaddrs(list);
        if result == 0 {
            interfaces::append(list);
        }
        result
    }

    /// Frees a list of addresses.
    fn freeifaddrs(list: *mut ifaddrs) -> () {
        original::freeifaddrs(interfaces::cut_off(list));
    }
}
