//! The protocols between threads that share memory, run by a checker in every order of their steps:
//! see `tests/all`.
//!
//! `make unit` builds them with `--cfg millrace_loom`, which puts loom's atomics in the place of
//! the processor's and makes rings as small as they can be. Without it there is nothing here.
