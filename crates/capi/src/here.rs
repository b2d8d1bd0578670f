//! What the calling thread has: stacks, and descriptors of what is in them.

use std::cell::RefCell;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::host::{Host, Lent};
use crate::numbers::Numbers;
use crate::outcome::Outcome;

/// A descriptor's meaning: a stack, and the key of something in it.
type Named = (Rc<Host>, u32);

/// What a thread has.
#[derive(Default)]
struct Here {
    stacks: Vec<(c_int, Rc<Host>)>,
    current: c_int,
    numbers: Numbers<Named>,
}

thread_local! {
    static HERE: RefCell<Here> = RefCell::default();
}

/// Numbers of stacks: no two of a process are the same.
static STACKS: AtomicI32 = AtomicI32::new(1);

/// Something short with what the thread has.
fn here<T>(body: impl FnOnce(&mut Here) -> Outcome<T>) -> Outcome<T> {
    // A thread that is ending has nothing any more; one that is interrupted in here by a signal
    // handler cannot be helped.
    HERE.try_with(|here| {
        here.try_borrow_mut()
            .map_or(Err(libc::EBUSY), |mut here| body(&mut here))
    })
    .unwrap_or(Err(libc::EBADF))
}

/// Gives this thread the stack that is made, which new sockets are made in from now on.
///
/// # Errors
/// `EMFILE`, and what `make` says.
pub fn adopt(make: impl FnOnce() -> Outcome<Host>) -> Outcome<c_int> {
    // Nothing is made for a thread that cannot have it.
    here(|_| Ok(()))?;
    let next = |number: c_int| number.checked_add(1);
    let number = STACKS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    let number = number.map_err(|_| libc::EMFILE)?;
    let host = make()?;
    here(|here| {
        here.stacks.push((number, Rc::new(host)));
        here.current = number;
        Ok(number)
    })
}

/// A stack of this thread's, by its number.
///
/// # Errors
/// `EBADF` for any other number.
pub fn stack(number: c_int) -> Outcome<Rc<Host>> {
    here(|here| {
        let found = here.stacks.iter().find(|(own, _)| *own == number);
        let (_, host) = found.ok_or(libc::EBADF)?;
        host.lent.set(None);
        Ok(host.clone())
    })
}

/// The stack that new sockets are made in.
///
/// # Errors
/// `ENODEV` when the thread has none.
pub fn current() -> Outcome<Rc<Host>> {
    let number = here(|here| Ok(here.current))?;
    stack(number).map_err(|_| libc::ENODEV)
}

/// Makes another stack the one that new sockets are made in.
///
/// # Errors
/// As [`stack`].
pub fn choose(number: c_int) -> Outcome<()> {
    stack(number)?;
    here(|here| {
        here.current = number;
        Ok(())
    })
}

/// Takes a stack from this thread, with all descriptors of what is in it.
///
/// # Errors
/// As [`stack`].
pub fn give_up(number: c_int) -> Outcome<Rc<Host>> {
    let host = stack(number)?;
    here(|here| {
        here.stacks.retain(|(own, _)| *own != number);
        here.numbers
            .remove_all(|(other, _)| Rc::ptr_eq(other, &host));
        if here.current == number {
            here.current = here.stacks.last().map_or(0, |(number, _)| *number);
        }
        Ok(())
    })?;
    Ok(host)
}

/// What a descriptor names.
///
/// # Errors
/// `EBADF` for one that is closed, another thread's, or none.
pub fn named(descriptor: c_int) -> Outcome<Named> {
    named_and_lent(descriptor).map(|(named, _)| named)
}

/// As [`named`], with what the call before has lent.
///
/// # Errors
/// As [`named`].
pub fn named_and_lent(descriptor: c_int) -> Outcome<(Named, Option<Lent>)> {
    here(|here| {
        let (host, key) = here.numbers.get(descriptor).ok_or(libc::EBADF)?;
        Ok(((host.clone(), *key), host.lent.take()))
    })
}

/// Gives something a descriptor. If there is none it is closed.
///
/// # Errors
/// `EMFILE`.
pub fn name(host: &Rc<Host>, key: u32) -> Outcome<c_int> {
    let number = here(|here| here.numbers.insert((host.clone(), key)).ok_or(libc::EMFILE));
    if number.is_err() {
        let _ = host.close(key);
    }
    number
}

/// Takes a descriptor back.
///
/// # Errors
/// As [`named`].
pub fn forget(descriptor: c_int) -> Outcome<Named> {
    named(descriptor)?;
    here(|here| here.numbers.remove(descriptor).ok_or(libc::EBADF))
}
