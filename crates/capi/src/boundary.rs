//! The functions that C sees. What `include/millrace.h` says of them is what stands here; the rules
//! that hold for all of them are in its preamble (`cbindgen.toml`).
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's preamble says for all functions what a pointer has to be"
)]

pub(crate) mod bell;
mod engine;
mod epoll;
pub(crate) mod pointer;
mod socket;
mod stack;
mod transfer;

pub use engine::*;
pub use epoll::*;
pub use socket::*;
pub use stack::*;
pub use transfer::*;
