//! exec: the next program in this process (or in a new one) learns which of its descriptors are
//! millrace sockets.

use std::ffi::{CStr, c_char, c_int};

use millrace_context::SlotRef;
use millrace_context::protocol::{ENV_ENGINE, ENV_INHERIT, ENV_PROCESS, ENV_TOKEN, Kind, Request};
use rustix::io::Errno;

use crate::engine::batch;
use crate::engine::{self, Engine, Held};
use crate::fd::table::{self, Entry};
use crate::process::environment::{self, Environment, value_of};
use crate::sys::mmap_buffer::MmapBuffer;
use crate::sys::{self, Result};

/// The most bytes of one inherited socket in the list: three numbers and their separators.
const ITEM_MAX: usize = 36;
/// Room for the other variables that the shim adds: the engine's address, the token, a ticket and
/// LD_PRELOAD.
const LINES_MAX: usize = 8192;

/// The environment of the next program: the caller's variables and those for its shim.
pub struct Outgoing {
    /// An array of variables that ends with a null pointer.
    pub lines: MmapBuffer<*const c_char>,
    _text: MmapBuffer<u8>,
}

/// A buffer to which text is appended.
struct Writer {
    text: MmapBuffer<u8>,
    at: usize,
}

impl Writer {
    fn new(room: usize) -> Result<Writer> {
        Ok(Writer {
            text: MmapBuffer::new(room)?,
            at: 0,
        })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.at + bytes.len();
        let to = self.text.get_mut(self.at..end).ok_or(Errno::TOOBIG)?;
        to.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    fn push_number(&mut self, mut number: u64) -> Result<()> {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..])
    }

    /// Appends one variable `name=value`; returns where it begins.
    fn line(&mut self, name: &str, value: impl FnOnce(&mut Writer) -> Result<()>) -> Result<usize> {
        let start = self.at;
        self.push(name.as_bytes())?;
        self.push(b"=")?;
        value(self)?;
        self.push(b"\0")?;
        Ok(start)
    }
}

/// The sockets that the next program will have, and their descriptors.
pub trait Survivors {
    /// Calls `each` for every socket.
    fn each(&self, each: &mut dyn FnMut(c_int, SlotRef));
}

/// The descriptors that an exec does not close.
pub struct NotClosedOnExec;

impl Survivors for NotClosedOnExec {
    fn each(&self, each: &mut dyn FnMut(c_int, SlotRef)) {
        for (fd, entry) in table::all() {
            if let Entry::Socket(slot) = entry
                && sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
            {
                each(fd, slot);
            }
        }
    }
}

impl Outgoing {
    /// Makes an environment from `given` and the shim's variables. `ticket` is a new process's.
    ///
    /// # Safety
    /// `given` is an array of strings that ends with a null pointer, or null.
    pub unsafe fn new(
        given: *const *const c_char,
        environment: &Environment,
        survivors: &dyn Survivors,
        ticket: Option<u64>,
    ) -> Result<Outgoing> {
        let mut count = 0;
        survivors.each(&mut |_, _| count += 1);
        // SAFETY: the caller's promise.
        let lines = || unsafe { lines(given) };
        let has = |name: &str| lines().any(|line| value_of(line, name).is_some());
        let mut text = Writer::new(LINES_MAX + count * ITEM_MAX)?;
        let mut added = [None; 5];
        if count > 0 {
            added[0] = Some(text.line(ENV_INHERIT, |text| {
                let mut outcome = Ok(());
                let mut first = true;
                survivors.each(&mut |fd, slot| {
                    let numbers = [fd as u64, slot.index.into(), slot.generation.into()];
                    for (at, number) in numbers.into_iter().enumerate() {
                        let separator: &[u8] = match (at, first) {
                            (0, true) => b"",
                            (0, false) => b",",
                            _ => b":",
                        };
                        if outcome.is_ok() {
                            outcome = text.push(separator).and_then(|()| text.push_number(number));
                        }
                    }
                    first = false;
                });
                outcome
            })?);
        }
        if let Some(ticket) = ticket {
            added[1] = Some(text.line(ENV_PROCESS, |text| text.push_number(ticket))?);
        }
        // A program that gives its child an environment of its own still starts it as part of the
        // same program.
        if !has(ENV_ENGINE) {
            added[2] = Some(text.line(ENV_ENGINE, |text| {
                text.push(environment.engine_text().as_bytes())
            })?);
        }
        if !has(ENV_TOKEN) {
            added[3] = Some(text.line(ENV_TOKEN, |text| {
                for byte in environment.token {
                    let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                    text.push(&[digit(byte >> 4), digit(byte & 15)])?;
                }
                Ok(())
            })?);
        }
        if !has("LD_PRELOAD") && !environment.preload.bytes().is_empty() {
            added[4] =
                Some(text.line("LD_PRELOAD", |text| text.push(environment.preload.bytes()))?);
        }
        let mut all = MmapBuffer::new(lines().count() + added.len() + 1)?;
        let kept = lines().filter(|line| {
            value_of(line, ENV_INHERIT).is_none() && value_of(line, ENV_PROCESS).is_none()
        });
        let own = added
            .into_iter()
            .flatten()
            .map(|at| text.text[at..].as_ptr().cast::<c_char>());
        for (to, from) in all.iter_mut().zip(kept.map(CStr::as_ptr).chain(own)) {
            *to = from;
        }
        Ok(Outgoing {
            lines: all,
            _text: text.text,
        })
    }
}

/// # Safety
/// `array` is an array of strings that ends with a null pointer, or null; it stays as long as the
/// lines are used.
pub unsafe fn lines<'a>(mut array: *const *const c_char) -> impl Iterator<Item = &'a CStr> {
    std::iter::from_fn(move || {
        // SAFETY: the caller's promise; the walk ends at the null pointer.
        unsafe {
            if array.is_null() || (*array).is_null() {
                return None;
            }
            let line = CStr::from_ptr(*array);
            array = array.add(1);
            Some(line)
        }
    })
}

/// Calls `go` (an exec) with the new environment. Returns only if the exec fails. `can_be`: whether
/// the exec is likely to succeed.
///
/// # Safety
/// The requirements of execve hold.
pub unsafe fn exec(
    can_be: impl FnOnce() -> bool,
    given: *const *const c_char,
    go: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    let Some(environment) = environment::get() else {
        return go(given);
    };
    // SAFETY: the caller's promise.
    let Ok(outgoing) = (unsafe { Outgoing::new(given, environment, &NotClosedOnExec, None) })
    else {
        sys::set_errno(Errno::TOOBIG);
        return -1;
    };
    if let Some(engine) = engine::attached() {
        // The next program starts with empty contexts.
        batch::settle(engine);
        // Nobody would notice the sockets that the exec itself closes. A program that cannot be
        // executed must not lose its sockets.
        if can_be() {
            let _ = announce_survivors(engine);
        }
    }
    go(outgoing.lines.as_ptr())
}

/// Tells the engine which sockets this process will still hold, if the exec closes any.
fn announce_survivors(engine: &'static Engine) -> Result<()> {
    let mut held = Held::new()?;
    let mut survivors = 0;
    NotClosedOnExec.each(&mut |_, slot| {
        held.push(slot);
        survivors += 1;
    });
    let all = table::all()
        .filter(|(_, entry)| matches!(entry, Entry::Socket(_)))
        .count();
    if all == survivors {
        return Ok(());
    }
    let request = Request::new(Kind::Holds, [0; 16], [0; 4]);
    engine.call(&request, held.bytes()).map(drop)
}
