//! Two shards joined by a link in virtual time, and hostile frames.

mod accept;
mod addresses;
mod claims;
mod close;
mod complaints;
mod datagrams;
mod fast_open;
mod fragments;
mod frames;
mod hostile;
mod limits;
mod loopback;
mod marks;
mod net;
mod opening;
mod options;
mod requirements;
mod routes;
mod steering;
mod transfer;
mod udp;
mod udp_groups;
mod udp_out;
mod udp_shards;
mod v6;
mod v6_hostile;
