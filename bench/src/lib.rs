//! Measuring a program on millrace beside the same program on the kernel.
//!
//! `bench` runs everything and prints ratios; `load` is the client on the kernel's side, which also
//! says what the machine was doing meanwhile; `nic` measures receive offload in front of the
//! kernel; `demo` shows nginx and redis on both stacks.

pub mod card;
pub mod cpu;
pub mod figures;
pub mod load;
pub mod machine;
pub mod path;
pub mod report;
pub mod source;
pub mod supervise;
