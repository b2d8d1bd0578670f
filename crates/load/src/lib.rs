//! A load generator: connections of a user-level stack, which cost a server's machine less than the
//! kernel's, so that the client is not the limit.
//!
//! Each shard has a part of the connections, each of which is a task that does one operation after
//! the other ([`Workload`]). In a closed loop the next begins when the one before it is over. With
//! a rate ([`Plan::rate`]) operations have times at which they are meant to begin, whoever is late:
//! latency counts from there, so that a server that stands still for a second is seen by all
//! operations of that second and not by those alone that were under way (no coordinated omission).
//!
//! ```
//! use millrace_load::{LinkSpec, Plan, Target, Workload};
//!
//! let mut plan = Plan::new(Workload::Pingpong, "10.0.0.1:7".parse().expect("a target"));
//! plan.link = LinkSpec::Pair;
//! plan.addresses = vec![("10.0.0.2".parse().expect("an address"), 24)];
//! plan.warm_up = std::time::Duration::ZERO;
//! plan.duration = std::time::Duration::from_millis(50);
//! match millrace_load::run(&plan, |_| {}) {
//!     Ok(report) => println!("{}", report.text()),
//!     Err(error) => eprintln!("{error}"),
//! }
//! ```
#![forbid(unsafe_code)]

mod http;
pub mod machine;
mod peer;
mod plan;
mod run;
mod tally;
mod work;

pub use millrace::LinkSpec;
pub use plan::{Closes, Error, Plan, Target, Workload};
pub use run::run;
pub use tally::{Progress, Report};
