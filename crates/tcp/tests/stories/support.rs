//! Two kinds of tests: a [`script`] of one connection, segment by segment, and a [`pair`] of
//! connections over a wire that loses, delays and duplicates packets on demand.

pub mod notation;
pub mod pair;
pub mod random;
pub mod script;

pub use pair::{Fate, Pair};
pub use random::Random;
pub use script::Script;
