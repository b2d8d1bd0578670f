//! The hook by which AddressSanitizer asks a program for options when it starts.

use std::ffi::{CStr, c_char};

use super::hooks;

/// Its runtime wants to be the first of the libraries, so that its versions of the C library's
/// functions are called. The shim before it calls the next version of what it stands in for, which
/// is the runtime's.
const OPTIONS: &CStr = c"verify_asan_link_order=0";

hooks! {
    /// The runtime's options, before those of the environment. A program that has this function
    /// keeps its own.
    fn __asan_default_options() -> *const c_char {
        OPTIONS.as_ptr()
    }
}
