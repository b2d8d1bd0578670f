//! The environment variables for the shim, read once at load. Later the program may have
//! overwritten them, as servers do that write their titles there.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use millrace_context::SlotRef;
use millrace_context::control_socket::{ADDRESS_MAX, Address};
use millrace_context::protocol::{
    ENV_ENGINE, ENV_INHERIT, ENV_PROCESS, ENV_TOKEN, Token, parse_token,
};

use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::hooks::stdio;

/// Room for the value of LD_PRELOAD.
const PRELOAD_MAX: usize = 4096;

/// Text of at most `N` bytes.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const fn new() -> Text<N> {
        Text {
            bytes: [0; N],
            len: 0,
        }
    }
    /// Sets the text. Text that is too long becomes empty, since a part of a name is another name.
    fn set(&mut self, from: &[u8]) {
        self.len = 0;
        if let Some(to) = self.bytes.get_mut(..from.len()) {
            to.copy_from_slice(from);
            self.len = from.len();
        }
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The values of the shim's environment variables.
pub struct Environment {
    engine: Text<ADDRESS_MAX>,
    /// The program's secret.
    pub token: Token,
    /// LD_PRELOAD.
    pub preload: Text<PRELOAD_MAX>,
    /// The ticket that this process's parent got for it; 0 for none.
    pub announced: AtomicU64,
    /// Handle plus 1 of the control connection that the parent got for this process; 0 for none.
    pub control: AtomicU32,
    /// The engine waits to hear which sockets this process has inherited.
    pub is_awaited: bool,
    present: bool,
}

impl Environment {
    /// The engine's address.
    pub fn engine(&self) -> Option<Address<'_>> {
        Address::parse(self.engine_text())
    }

    /// The engine's address as text.
    pub fn engine_text(&self) -> &str {
        std::str::from_utf8(self.engine.bytes()).unwrap_or("")
    }
}

struct Place(UnsafeCell<Environment>);
// SAFETY: written once, by the thread that takes STATE from 0 to READING; read only once STATE is
// READ.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(Environment {
    engine: Text::new(),
    token: [0; 16],
    preload: Text::new(),
    announced: AtomicU64::new(0),
    control: AtomicU32::new(0),
    is_awaited: false,
    present: false,
}));

static STATE: AtomicU32 = AtomicU32::new(0);
const READING: u32 = 1;
const READ: u32 = 2;

/// The environment; `None` if the program does not belong to an engine.
pub fn get() -> Option<&'static Environment> {
    if STATE.load(Ordering::Acquire) != READ {
        unsafe extern "C" {
            static mut environ: *mut *mut c_char;
        }
        // SAFETY: before our own initialiser other libraries' may run, alone; the C library has set
        // `environ` by then.
        unsafe { read(environ) };
    }
    if STATE.load(Ordering::Acquire) != READ {
        return None;
    }
    // SAFETY: READ says that it is written.
    let environment = unsafe { &*PLACE.0.get() };
    environment.present.then_some(environment)
}

/// Reads the environment, once.
///
/// # Safety
/// `environment` is an array of strings that ends with a null pointer, or null, and nobody else
/// uses it now.
pub unsafe fn read(environment: *mut *mut c_char) {
    if environment.is_null()
        || STATE
            .compare_exchange(0, READING, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    // SAFETY: only the thread that got here writes, and nobody reads before STATE is READ.
    let place = unsafe { &mut *PLACE.0.get() };
    let mut inherited: Option<&'static CStr> = None;
    let (mut engine_found, mut token_found) = (false, false);
    let (mut from, mut to) = (environment, environment);
    // SAFETY: by the function's promise every pointer up to the null one is a string; the array is
    // moved up in place.
    unsafe {
        while !(*from).is_null() {
            let text = CStr::from_ptr(*from);
            let mut keep = true;
            if let Some(value) = value_of(text, ENV_ENGINE) {
                place.engine.set(value);
                engine_found = !place.engine.bytes().is_empty();
            } else if let Some(value) = value_of(text, ENV_TOKEN) {
                let token = std::str::from_utf8(value).ok().and_then(parse_token);
                token_found = token.is_some();
                place.token = token.unwrap_or_default();
            } else if let Some(value) = value_of(text, "LD_PRELOAD") {
                place.preload.set(value);
            } else if value_of(text, ENV_INHERIT).is_some() {
                inherited = Some(text);
                keep = false;
            } else if let Some(value) = value_of(text, ENV_PROCESS) {
                let ticket = number(value).unwrap_or(0);
                place.announced.store(ticket, Ordering::Relaxed);
                keep = false;
            }
            if keep {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = std::ptr::null_mut();
    }
    place.present = engine_found && token_found;
    let present = place.present;
    place.is_awaited = inherited.is_some() || place.announced.load(Ordering::Relaxed) != 0;
    STATE.store(READ, Ordering::Release);
    if !present {
        return;
    }
    if let Some(list) = inherited.and_then(|text| value_of(text, ENV_INHERIT)) {
        for item in list.split(|byte| *byte == b',') {
            inherit(item);
        }
    }
}

/// Takes over a socket that survived an exec, given as `fd:index:generation`. A descriptor that is
/// no longer a placeholder is not the shim's any more.
fn inherit(item: &[u8]) {
    let mut numbers = item.split(|byte| *byte == b':').map(number);
    if let (Some(Some(fd)), Some(Some(index)), Some(Some(generation))) =
        (numbers.next(), numbers.next(), numbers.next())
    {
        let (fd, slot) = (
            fd as c_int,
            SlotRef {
                index: index as u32,
                generation: generation as u32,
            },
        );
        if table::holds(fd) && placeholder::is_one(fd) {
            table::set(fd, Entry::Socket(slot));
            stdio::stand_in(fd);
        }
    }
}

/// The value of `name` if `text` is that variable.
pub fn value_of<'a>(text: &'a CStr, name: &str) -> Option<&'a [u8]> {
    text.to_bytes()
        .strip_prefix(name.as_bytes())?
        .strip_prefix(b"=")
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_name_and_a_value() {
        assert_eq!(
            value_of(c"MILLRACE_ENGINE=a=b", ENV_ENGINE),
            Some(&b"a=b"[..])
        );
        assert_eq!(value_of(c"MILLRACE_ENGINES=a", ENV_ENGINE), None);
        assert_eq!(value_of(c"MILLRACE_ENGINE", ENV_ENGINE), None);
    }

    #[test]
    fn text_that_does_not_fit_is_none() {
        let mut text = Text::<4>::new();
        text.set(b"abcd");
        assert_eq!(text.bytes(), b"abcd");
        text.set(b"abcde");
        assert_eq!(text.bytes(), b"");
    }

    #[test]
    fn p5_an_inherited_number_that_is_no_placeholder_is_not_ours() {
        inherit(b"0:3:4");
        inherit(b"nonsense");
        assert!(table::is_kernel(0));
    }
}
