//! Receive offload: statements about single frames, and any traffic beside a model that knows
//! nothing of units.

mod ahead;
mod flushing;
mod frames;
mod merging;
mod model;
mod order;
mod support;
