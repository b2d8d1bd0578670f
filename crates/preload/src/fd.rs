//! Descriptor numbers: what each one means, and how it is made, duplicated, passed on and closed.

pub mod internal;
pub mod operations;
pub mod placeholder;
pub mod refcount;
pub mod scm_rights;
pub mod table;
