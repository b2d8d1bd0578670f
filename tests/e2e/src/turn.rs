//! Who runs beside whom: tests run side by side, but for the few that say that they must be alone.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Instant;

/// Read by each test, written by one that is alone.
static PLACE: RwLock<()> = RwLock::new(());

thread_local! {
    /// A test has a thread of its own: what this holds ends with it.
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// What a test holds until its end.
struct Turn {
    place: Option<Place>,
    since: Instant,
}

/// Held for its `Drop`.
#[expect(dead_code, reason = "the guards are held, not read")]
enum Place {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// From here to the end of the calling test, no test runs that must be alone. Waits for one that
/// does. A second call does nothing.
pub fn with_others() {
    TURN.with_borrow_mut(|turn| {
        // Poison says only that another test has failed.
        turn.get_or_insert_with(|| Turn {
            place: Some(Place::Shared(
                PLACE.read().unwrap_or_else(PoisonError::into_inner),
            )),
            since: Instant::now(),
        });
    });
}

/// From here to the end of the calling test no other runs: for what asks how often, how fast or how
/// evenly, or changes what the whole machine has but once. Waits for the others to end.
pub fn alone() {
    with_others();
    TURN.with_borrow_mut(|turn| {
        let turn = turn.as_mut().expect("it was made just now");
        if matches!(turn.place, Some(Place::Alone(_))) {
            return;
        }
        // Its own part goes first, or it would wait for itself.
        turn.place = None;
        let place = PLACE.write().unwrap_or_else(PoisonError::into_inner);
        *turn = Turn {
            place: Some(Place::Alone(place)),
            since: Instant::now(),
        };
    });
}

impl Drop for Turn {
    /// Gives back memory, and adds a line to the file that `MILLRACE_TIMES` names: how many seconds
    /// the test took, without the wait for others, and its name.
    fn drop(&mut self) {
        // Each program that the next tests start costs a copy of the tables of what this process
        // has, and tests hold files of a hundred megabytes.
        // SAFETY: it may be called at any time; memory that is in use stays.
        unsafe { libc::malloc_trim(0) };
        let Some(path) = std::env::var_os("MILLRACE_TIMES") else {
            return;
        };
        let took = self.since.elapsed().as_secs_f64();
        let line = format!("{took:8.2} {}\n", thread::current().name().unwrap_or("?"));
        let file = OpenOptions::new().append(true).create(true).open(path);
        // A test that has passed does not fail for the want of a figure.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
