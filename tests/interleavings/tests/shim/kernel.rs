//! The kernel's epoll set, with doorbells in it that are edge-triggered: each ring is told to one
//! thread, a sleeping one or the next that looks.

use std::ffi::c_int;

use libc::epoll_event;
use loom::sync::{Condvar, Mutex};

/// The number of the set.
pub const SET: c_int = 8;
/// The doorbell that the engine rings.
pub const BELL: c_int = 9;
/// The doorbell that threads of the program ring.
pub const OWN_BELL: c_int = 10;

/// An open descriptor.
pub struct Fd(pub c_int);

loom::lazy_static! {
    /// Made anew in each order of steps.
    static ref KERNEL: Kernel = Kernel::default();
}

#[derive(Default)]
struct Kernel {
    bells: Mutex<[State; 2]>,
    sleepers: Condvar,
}

#[derive(Clone, Copy, Default)]
struct State {
    data: Option<u64>,
    rung: bool,
}

fn place(bell: c_int) -> usize {
    (bell - BELL) as usize
}

/// Puts a doorbell into the set.
pub fn add(bell: c_int, data: u64) {
    let mut bells = KERNEL.bells.lock().unwrap();
    let state = &mut bells[place(bell)];
    state.data = Some(data);
    if state.rung {
        KERNEL.sleepers.notify_one();
    }
}

/// Writes to a doorbell.
pub fn ring(bell: c_int) {
    let mut bells = KERNEL.bells.lock().unwrap();
    bells[place(bell)].rung = true;
    KERNEL.sleepers.notify_one();
}

fn take(bells: &mut [State; 2], events: &mut [epoll_event]) -> usize {
    let rung = bells.iter_mut().filter(|bell| bell.rung);
    let told = rung.filter_map(|bell| Some((bell.data?, bell)));
    let mut count = 0;
    for ((data, bell), event) in told.zip(events) {
        bell.rung = false;
        let bits = libc::EPOLLIN as u32;
        *event = epoll_event {
            events: bits,
            u64: data,
        };
        count += 1;
    }
    count
}

/// `epoll_wait` without a time-out.
pub fn wait(events: &mut [epoll_event]) -> usize {
    let mut bells = KERNEL.bells.lock().unwrap();
    loop {
        let count = take(&mut bells, events);
        if count > 0 {
            return count;
        }
        bells = KERNEL.sleepers.wait(bells).unwrap();
    }
}

/// `epoll_wait` that does not wait.
pub fn look(events: &mut [epoll_event]) -> usize {
    take(&mut KERNEL.bells.lock().unwrap(), events)
}
