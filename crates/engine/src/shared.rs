//! The memory that the engine shares with programs: receive buffers inside each program's region.

pub mod arena;
pub mod arenas;
