//! The socket, in a slot that stays open.

use std::ffi::c_int;

use millrace_context::{Slot, SlotRef};

use crate::engine::{self, Engine};
use crate::sys::Result;

#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/socket/flag.rs"]
pub mod flag;

pub struct Socket {
    pub engine: &'static Engine,
    pub slot: &'static Slot,
    pub reference: SlotRef,
}

impl Socket {
    pub fn get(_fd: c_int, reference: SlotRef) -> Result<Socket> {
        let engine = engine::get()?;
        let slot = engine.region.slot(reference.index).unwrap();
        Ok(Socket {
            engine,
            slot,
            reference,
        })
    }

    /// No other process has the set in a check.
    pub fn change_flags(&self, _set: u32, _clear: u32) {}

    pub fn close_owed(_: &'static Engine) {}
}
