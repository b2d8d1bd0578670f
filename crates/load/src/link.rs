//! What the generator's stack is on.

use std::str::FromStr;

use millrace::{LinkError, Tap, xdp};
use millrace_port::spec::Spec;

use crate::plan::Plan;

/// A link, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// A device, as the command line names it.
    Device(Spec),
    /// No device: a server of our own at the other end of a pair in memory, which shows what the generator itself costs.
    Pair,
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Link, String> {
        match text {
            "pair" => Ok(Link::Pair),
            _ => match text.parse() {
                Ok(device) => Ok(Link::Device(device)),
                Err(error) => Err(format!(
                    "{error}, and pair (a server of our own, in memory)"
                )),
            },
        }
    }
}

/// Opens a device.
pub(crate) fn open(device: &Spec, plan: &Plan) -> Result<millrace::Link, LinkError> {
    match device {
        Spec::Tap { name } => millrace::Link::tap(&Tap {
            name: name.clone(),
            hosts: plan.hosts.clone(),
            mtu: plan.mtu,
            queues: plan.shards,
        }),
        Spec::Packet { name } => millrace::Link::packet(name, plan.shards),
        Spec::Macvtap { name } => millrace::Link::macvtap(name, plan.shards),
        Spec::Xdp { shared: true, .. } => Err(LinkError::Shared),
        Spec::Xdp {
            name,
            queues,
            mode,
            busy_poll,
            ..
        } => millrace::Link::xdp(&xdp::Config {
            device: name.clone(),
            queues: *queues,
            mode: *mode,
            busy_poll: *busy_poll,
            ports: plan.shards,
            mac: None,
            shared: Vec::new(),
        }),
    }
}
