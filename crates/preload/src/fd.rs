//! Descriptor numbers: what each number means, and how descriptors are made, duplicated, passed to
//! other processes and closed.

pub mod internal;
pub mod operations;
pub mod placeholder;
pub mod refcount;
pub mod scm_rights;
pub mod table;
