//! How calls end: a value, or -1 and errno. And text about what cannot be said by a number.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a call fails with: a number of errno.
pub type Outcome<T> = Result<T, c_int>;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// A type that has a value for failure.
pub trait Value {
    /// What a failed call returns.
    const FAILED: Self;
}

impl Value for c_int {
    const FAILED: c_int = -1;
}

impl Value for isize {
    const FAILED: isize = -1;
}

impl<T> Value for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// What happens behind an exported function: `body`, with its error in errno. A panic goes no
/// further; it is `ENOTRECOVERABLE`, and the stack that it happened in may be in any state, though
/// memory is sound.
pub fn call<T: Value>(body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::ENOTRECOVERABLE));
    outcome.unwrap_or_else(|number| {
        set_errno(number);
        T::FAILED
    })
}

/// Sets errno.
pub fn set_errno(number: c_int) {
    // SAFETY: the address is that of this thread's errno, which lives as long as the thread.
    unsafe { *libc::__errno_location() = number };
}

/// Keeps what is to be said of a failure.
pub fn explain(text: impl Into<String>) {
    let text = text.into().replace('\0', " ");
    // A thread that is ending has nobody who asks.
    let _ = TEXT.try_with(|kept| *kept.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// [`text`], for ourselves.
pub fn words() -> String {
    let words = TEXT.try_with(|kept| kept.borrow().to_string_lossy().into_owned());
    words.unwrap_or_default()
}

/// What was said of the last failure on this thread that needed words.
pub fn text() -> *const c_char {
    TEXT.try_with(|kept| kept.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_boundary() {
        let result: c_int = call(|| panic!("something that cannot be"));
        assert_eq!(result, -1);
        let number = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(number, Some(libc::ENOTRECOVERABLE));
    }
}
