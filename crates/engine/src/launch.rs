//! How `millrace run` starts programs: sessions, signals, inherited descriptors, a seccomp filter.

pub mod process;
pub mod seccomp;
