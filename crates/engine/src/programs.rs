//! What a worker knows of each program and each of its sockets. This is private memory of the
//! engine; nothing here is read from the region without a check.

pub mod entry;
pub mod owners;
pub mod program;
pub(crate) mod slot;
pub(crate) mod table;
pub mod watches;
