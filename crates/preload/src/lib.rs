//! LD_PRELOAD shim: POSIX sockets, epoll, poll and select for unmodified programs.
//!
//! From the outside in:
//! - [`hooks`]: the functions that a program calls in place of the C library's. A hook looks up
//!   what its descriptor is and calls the C library's own function or one of the modules below.
//! - [`socket`]: calls on one socket that millrace serves: connect, send, receive, options.
//! - [`readiness`]: epoll, poll and select.
//! - [`process`]: fork, exec and spawn, the environment, signals and threads.
//! - [`fd`]: what each descriptor number is; duplicating, closing and passing descriptors.
//! - [`interfaces`]: the engine's addresses among those of the kernel.
//! - [`engine`]: the engine that this process has attached to, and the submissions to its shards.
//! - [`sys`]: system calls, the C library's original functions, memory and locks.
//!
//! Rules for everything here:
//! - Nothing is allocated, because the program's allocator may call us. The one exception is a
//!   stream of the C library ([`hooks::stdio`]).
//! - Nothing calls a function that this library replaces.
//! - No thread waits for a lock that it holds, because a signal handler may call us in the middle
//!   of a call.
//! - The load of the library does nothing but read the environment and take over inherited sockets.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "nobody links to this library from Rust: its documentation is for who reads it"
)]
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "the functions that programs call are ordinary ones in tests, and nobody calls them"
    )
)]

mod engine;
mod fd;
mod hooks;
mod interfaces;
mod process;
mod readiness;
mod socket;
mod sys;
