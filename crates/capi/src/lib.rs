//! The stack inside a C or C++ program, and the interface of mTCP.
//!
//! `include/millrace.h` is made of the functions in `boundary` by cbindgen; a test compares. All of
//! them have the same shape: arguments are checked and copied, something safe is done, and what
//! fails sets errno. A panic ends there, as `ENOTRECOVERABLE`.
//!
//! What a thread has is the thread's alone (`here`): its stacks (`host::Host`), its descriptors
//! (`numbers`). Nothing is shared but the engines, whose shards wait in a table (`engine`) for the
//! threads that take them. So there are no locks where packets are, and the worst that a wrong
//! number from another thread does is `EBADF`.

mod address;
pub mod boundary;
mod control;
mod engine;
mod epoll;
mod here;
mod host;
mod lend;
mod mtcp;
mod numbers;
mod opening;
mod options;
mod outcome;
mod packets;
mod pipe;
mod poll;
mod settings;
mod socket;
mod things;
