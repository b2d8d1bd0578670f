//! Segments written by hand, to the kernel's stack and to ours: the same script to both, and the
//! answers side by side.
//!
//! A script is what the other end of a connection sends and what the program on the stack does.
//! Sequence numbers are relative to what each stack said itself, so that what differs by chance
//! (initial numbers, ports, windows) does not count.

mod answer;
mod kernel;
mod ours;
mod script;

pub use answer::{Answer, Outcome, Status};
pub use kernel::Kernel;
pub use ours::Ours;
pub use script::{At, Do, Script, Send, Step, Subject, run};
