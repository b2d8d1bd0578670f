//! LD_PRELOAD shim: POSIX sockets, epoll, poll and select for unmodified programs.
//!
//! From outside in: `hooks` are the functions that a program calls in place of the C library's. They look up a descriptor in the
//! `table`, where it is the kernel's, ours, or not `decide`d yet, and call the C library's own (`real`) or one of `send`, `receive`,
//! `connect`, `options`, `descriptors`, `epoll`, `poll`. These read a socket's shared state (`socket`, `readiness`) and speak to its shard
//! through a `lane`. Below are the `engine` that this process has attached to, and plain tools.
//!
//! Rules for everything here: nothing is allocated (the program's allocator may call us) but a `stream` of the C library, nothing goes through
//! what we stand in for, no lock is waited for by the thread that holds it (a signal handler may call us in the middle of a call), nothing
//! happens at load but reading the environment and taking over what was inherited.

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

mod address;
mod anchor;
mod bypass;
mod connect;
mod datagram;
mod decide;
mod descriptors;
mod device;
mod elsewhere;
mod engine;
mod environment;
mod epoll;
mod epoll_set;
mod exec;
mod executable;
mod fork;
mod hooks;
mod inner;
mod interfaces;
mod internal;
mod interrupt;
mod lane;
mod lock;
mod memory;
mod netlink;
mod options;
mod poll;
mod poller;
mod readiness;
mod real;
mod receive;
mod refs;
mod rights;
mod sanitizer;
mod scratch;
mod select;
mod send;
mod sets;
mod signals;
mod sleep;
mod socket;
mod spawn;
mod stream;
mod sys;
mod table;
mod thread;
mod urgent;
