//! Which end of the network a link belongs to.

/// Whatever has a link to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Host(usize),
    Station(usize),
}
