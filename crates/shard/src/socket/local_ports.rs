//! The local ports of bound and listening sockets and of connections, and the choice of ephemeral
//! ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hashbrown::HashTable;

use crate::memory::Owner;
use crate::memory::shares::Shares;
use crate::secrets::Secrets;
use crate::socket::{Device, Reuse};

/// Ephemeral ports, as Linux's `ip_local_port_range`.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// Random tries before all are searched.
const RANDOM_TRIES: u32 = 32;

/// The register of local ports.
#[derive(Default)]
pub struct Ports {
    entries: HashTable<Port>,
    /// All ephemeral ports, from `next` on in the order of their last use; empty until the first is
    /// wanted.
    ephemeral: Box<[u16]>,
    next: usize,
    /// Ports that nobody uses any more; none where nobody wants to know.
    freed: Option<Vec<u16>>,
    /// Sockets that are bound to ephemeral ports.
    shares: Shares,
}

/// An owner may have so many times the ephemeral ports that are left bound. Connections count for
/// nobody: their ports are others' too, for other destinations.
const GENEROSITY: u32 = 8;

struct Port {
    number: u16,
    bound: Vec<Bound>,
    connections: [Connections; CLASSES],
}

/// Connections are counted apart for each family, and in each for the link's addresses and for
/// loopback.
const CLASSES: usize = 4;

/// Connections (TIME-WAIT included) with a local port.
#[derive(Clone, Copy, Default)]
struct Connections {
    all: u32,
    /// Those whose socket did not have `SO_REUSEADDR`.
    exclusive: u32,
}

/// A socket that holds a local address.
#[derive(Clone, Copy)]
pub struct Bound {
    /// Index of the socket.
    pub socket: u32,
    /// Its owner.
    pub owner: Owner,
    /// Address, unspecified for all of its family.
    pub address: IpAddr,
    /// Of `::`, that it does not mean IPv4, too (`IPV6_V6ONLY`).
    pub v6_only: bool,
    /// Whether others may bind beside it.
    pub reuse: Reuse,
    /// The device that it is bound to.
    pub device: Device,
    /// Whether it listens. One for datagrams does while it has no peer.
    pub listening: bool,
    /// Where it stands among those that share an address by `SO_REUSEPORT`: in every shard in the
    /// same order.
    pub rank: u32,
    /// The shard whose it is, of one that listens in all of them.
    pub home: Option<u16>,
    /// Whether it is one for datagrams: then `SO_REUSEADDR` shares the address whether it listens
    /// or not.
    pub datagrams: bool,
}

/// A shard among others that share its addresses.
#[derive(Clone, Copy)]
pub struct Near {
    /// The number of this shard.
    pub own: u16,
    /// How many serve: the first ones.
    pub shards: u16,
}

impl Near {
    /// Whether each shard that serves has as many of these, and no other has any.
    fn is_even<'a>(self, listening: impl Iterator<Item = &'a Bound>) -> bool {
        let mut counts = [0u32; SHARDS_MAX];
        for bound in listening {
            match bound
                .home
                .and_then(|home| counts.get_mut(usize::from(home)))
            {
                Some(count) => *count += 1,
                None => return false,
            }
        }
        let Some((serving, others)) = counts.split_at_checked(self.shards.into()) else {
            return false;
        };
        let first = serving.first().copied().unwrap_or(0);
        let even = first > 0 && serving.iter().all(|count| *count == first);
        even && others.iter().all(|count| *count == 0)
    }
}

/// As many as are looked at.
const SHARDS_MAX: usize = 64;

impl Ports {
    /// A register that chooses among `ephemeral` ports and tells which are free again; without
    /// them, among all that are there for it.
    pub fn new(ephemeral: Option<&[u16]>, secrets: &mut Secrets, shared: bool) -> Ports {
        let count = ephemeral.map_or(EPHEMERAL.len(), <[u16]>::len);
        Ports {
            shares: Shares::new(count as u32, shared, GENEROSITY),
            ephemeral: ephemeral.map_or_else(Box::default, |ports| shuffled(ports.into(), secrets)),
            freed: ephemeral.map(|_| Vec::new()),
            ..Ports::default()
        }
    }

    /// A port that nobody uses, and somebody did.
    pub fn take_freed(&mut self) -> Option<u16> {
        loop {
            let port = self.freed.as_mut()?.pop()?;
            if self.find(port).is_none() {
                return Some(port);
            }
        }
    }

    /// Whether anybody uses a port.
    pub fn is_used(&self, port: u16) -> bool {
        self.find(port).is_some()
    }

    /// How many ports are in use.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether `bound` may have `port`, by Linux's rules (`inet_csk_bind_conflict`).
    pub fn is_free(&self, port: u16, bound: &Bound) -> bool {
        let Some(entry) = self.find(port) else {
            return true;
        };
        let beside_sockets = entry.bound.iter().all(|other| {
            other.socket == bound.socket
                || !overlap(other, bound)
                || (bound.reuse.address
                    && other.reuse.address
                    && (other.datagrams || !other.listening))
                || (bound.reuse.port && other.reuse.port && bound.owner == other.owner)
        });
        let beside_connections =
            entry
                .connections
                .iter()
                .enumerate()
                .all(|(class, connections)| {
                    !bound.includes_class(class)
                        || connections.all == 0
                        || (bound.reuse.address && connections.exclusive == 0)
                        || bound.reuse.port
                });
        beside_sockets && beside_connections
    }

    /// Whether `owner` may bind another socket to `port`, 0 for an ephemeral one, and leaves enough
    /// of these to others.
    pub fn allows(&self, port: u16, owner: Owner) -> bool {
        (port != 0 && !EPHEMERAL.contains(&port)) || self.shares.allows(owner)
    }

    /// Registers a socket at `port`; [`Ports::is_free`] has been asked.
    pub fn bind(&mut self, port: u16, bound: Bound) {
        if EPHEMERAL.contains(&port) {
            self.shares.take(bound.owner);
        }
        let all = &mut self.entry(port).bound;
        let ahead = |other: &Bound| bound.reuse.port && other.reuse.port && other.rank > bound.rank;
        let at = all.iter().position(ahead).unwrap_or(all.len());
        all.insert(at, bound);
    }

    /// Takes a socket out.
    pub fn unbind(&mut self, port: u16, socket: u32) {
        let mut owner = None;
        self.change(port, |entry| {
            entry.bound.retain(|bound| {
                let stays = bound.socket != socket;
                if !stays {
                    owner = Some(bound.owner);
                }
                stays
            });
        });
        if let Some(owner) = owner.filter(|_| EPHEMERAL.contains(&port)) {
            self.shares.give(owner);
        }
    }

    /// The registered socket, to change.
    pub fn bound_mut(&mut self, port: u16, socket: u32) -> Option<&mut Bound> {
        self.find_mut(port)?
            .bound
            .iter_mut()
            .find(|bound| bound.socket == socket)
    }

    /// The listener for a connection to `local`: one bound to the address before one bound to all;
    /// several of one address (`SO_REUSEPORT`) share by `hash`. A listener bound to `::` comes
    /// last. Sockets for datagrams, which listen while they have no peer, can share an address with
    /// `SO_REUSEADDR` alone: then the one that came last has it.
    pub fn listener(&self, local: SocketAddr, hash: u64) -> Option<u32> {
        self.listener_near(local, hash, None)
    }

    /// The same on one of several shards that share out connections evenly. If those that share an
    /// address are as many in each, a shard's connections are for its own, whose program has no
    /// other shard to do with; otherwise each gets as much as any, wherever it is.
    pub fn listener_near(&self, local: SocketAddr, hash: u64, near: Option<Near>) -> Option<u32> {
        let device = Device::of(local.ip());
        let entry = self.find(local.port())?;
        if let [only] = &entry.bound[..] {
            let meant = only.listening && only.includes(local.ip()) && only.hears(device);
            return meant.then_some(only.socket);
        }
        let pick = |address: IpAddr, of_v4: bool| {
            let listening = || {
                entry.bound.iter().filter(|bound| {
                    bound.listening
                        && bound.address == address
                        && bound.hears(device)
                        && !(of_v4 && bound.v6_only)
                })
            };
            match listening().count() {
                0 => None,
                _ if listening().any(|bound| !bound.reuse.port) => {
                    listening().next_back().map(|bound| bound.socket)
                }
                count => {
                    let near = near.filter(|near| near.is_even(listening()));
                    let of = |bound: &&Bound| near.is_none_or(|near| bound.home == Some(near.own));
                    let count = count / near.map_or(1, |near| near.shards.into());
                    let mut meant = listening().filter(of);
                    let picked = meant.nth((hash % count as u64) as usize);
                    picked.map(|bound| bound.socket)
                }
            }
        };
        // As Linux's `compute_score`: an IPv4 socket before one of IPv6 that takes IPv4, too.
        let of_v4 = local.is_ipv4();
        let any = of_v4.then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        pick(local.ip(), false)
            .or_else(|| pick(any?, false))
            .or_else(|| pick(Ipv6Addr::UNSPECIFIED.into(), of_v4))
    }

    /// The sockets at a port.
    pub fn bound(&self, port: u16) -> &[Bound] {
        self.find(port).map_or(&[], |entry| &entry.bound)
    }

    /// Counts a connection with this local end.
    pub fn add_connection(&mut self, local: SocketAddr, reuse: bool) {
        let connections = &mut self.entry(local.port()).connections[class_of(local.ip())];
        connections.all += 1;
        connections.exclusive += u32::from(!reuse);
    }

    /// Counts a connection out.
    pub fn remove_connection(&mut self, local: SocketAddr, reuse: bool) {
        self.change(local.port(), |entry| {
            let connections = &mut entry.connections[class_of(local.ip())];
            connections.all -= 1;
            connections.exclusive -= u32::from(!reuse);
        });
    }

    /// An ephemeral port that cannot be guessed: random ones are tried for which `good` is true;
    /// when those are scarce, all are searched, and `acceptable` will do. (RFC 6056 3.3.1, but
    /// among the half that was used longest ago, so that a new connection does not meet its
    /// predecessor in TIME-WAIT at the peer.)
    #[inline(always)]
    pub fn choose(
        &mut self,
        secrets: &mut Secrets,
        good: impl Fn(&Ports, u16) -> bool,
        acceptable: impl Fn(&Ports, u16) -> bool,
    ) -> Option<u16> {
        if self.ephemeral.is_empty() {
            self.ephemeral = shuffled(EPHEMERAL.collect(), secrets);
        }
        let count = self.ephemeral.len();
        for _ in 0..RANDOM_TRIES {
            let ahead = (secrets.random() % (count as u64 / 2)) as usize;
            if good(self, self.ephemeral[(self.next + ahead) % count]) {
                return Some(self.take(ahead));
            }
        }
        let found = (0..count)
            .find(|&ahead| acceptable(self, self.ephemeral[(self.next + ahead) % count]))?;
        Some(self.take(found))
    }

    /// Takes the port that is `ahead` of the next one, and puts it at the end of the line.
    fn take(&mut self, ahead: usize) -> u16 {
        let count = self.ephemeral.len();
        self.ephemeral.swap(self.next, (self.next + ahead) % count);
        let port = self.ephemeral[self.next];
        self.next = (self.next + 1) % count;
        port
    }

    /// Whether any socket is bound to `port` with an address that includes `address`.
    pub fn is_bound(&self, port: u16, address: IpAddr) -> bool {
        self.find(port)
            .is_some_and(|entry| entry.bound.iter().any(|bound| bound.includes(address)))
    }

    fn find(&self, port: u16) -> Option<&Port> {
        self.entries.find(hash(port), |entry| entry.number == port)
    }

    fn find_mut(&mut self, port: u16) -> Option<&mut Port> {
        self.entries
            .find_mut(hash(port), |entry| entry.number == port)
    }

    fn entry(&mut self, port: u16) -> &mut Port {
        let vacant = || Port {
            number: port,
            bound: Vec::new(),
            connections: Default::default(),
        };
        self.entries
            .entry(
                hash(port),
                |entry| entry.number == port,
                |entry| hash(entry.number),
            )
            .or_insert_with(vacant)
            .into_mut()
    }

    fn change(&mut self, port: u16, change: impl FnOnce(&mut Port)) {
        if let Ok(mut found) = self
            .entries
            .find_entry(hash(port), |entry| entry.number == port)
        {
            let entry = found.get_mut();
            change(entry);
            if entry.bound.is_empty()
                && entry
                    .connections
                    .iter()
                    .all(|connections| connections.all == 0)
            {
                found.remove();
                if let Some(freed) = &mut self.freed {
                    freed.push(port);
                }
            }
        }
    }
}

fn shuffled(mut ports: Box<[u16]>, secrets: &mut Secrets) -> Box<[u16]> {
    for at in (1..ports.len()).rev() {
        ports.swap(at, (secrets.random() % (at as u64 + 1)) as usize);
    }
    ports
}

impl Bound {
    /// Whether packets to `address` are for this socket.
    #[inline]
    pub fn includes(&self, address: IpAddr) -> bool {
        self.address == address
            || (self.address.is_unspecified() && self.includes_family(address.is_ipv4()))
    }

    /// Whether packets from a device are for this socket.
    #[inline]
    pub fn hears(&self, device: Device) -> bool {
        self.device == Device::Any || self.device == device
    }

    /// Whether it may take packets of a family.
    fn includes_family(&self, v4: bool) -> bool {
        match self.address {
            IpAddr::V4(_) => v4,
            IpAddr::V6(address) => !v4 || (address.is_unspecified() && !self.v6_only),
        }
    }

    /// Whether connections of a class may be those of a socket like this.
    fn includes_class(&self, class: usize) -> bool {
        if self.address.is_unspecified() {
            self.includes_family(class < 2)
        } else {
            class_of(self.address) == class
        }
    }
}

/// Whether there is an address that both include, on a device that both hear.
fn overlap(a: &Bound, b: &Bound) -> bool {
    if a.device != Device::Any && !b.hears(a.device) {
        return false;
    }
    let both_any = a.address.is_unspecified() && b.address.is_unspecified();
    if both_any {
        return a.address == b.address || (!a.v6_only && !b.v6_only);
    }
    a.includes(b.address) || b.includes(a.address)
}

fn class_of(address: IpAddr) -> usize {
    let first = if address.is_ipv4() { 0 } else { 2 };
    first + usize::from(address.is_loopback())
}

/// Ports are numbers below 65,536: there is nothing to defend against.
fn hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(
        socket: u32,
        address: impl Into<IpAddr>,
        reuse_address: bool,
        listening: bool,
    ) -> Bound {
        Bound {
            socket,
            owner: Owner(0),
            address: address.into(),
            v6_only: false,
            reuse: Reuse {
                address: reuse_address,
                port: false,
            },
            listening,
            rank: 0,
            device: Device::Any,
            home: None,
            datagrams: false,
        }
    }

    /// A group in which each shard has as many listeners gives a shard's connections to its own;
    /// any other group gives each listener as many.
    #[test]
    fn listeners_of_a_group_are_near_if_each_shard_has_as_many() {
        let mut ports = Ports::default();
        let reuse = Reuse {
            address: false,
            port: true,
        };
        let local = SocketAddr::new(ONE.into(), 80);
        let picks = |ports: &Ports, own| {
            let near = Some(Near { own, shards: 2 });
            let picked = (0..100).filter_map(|hash| ports.listener_near(local, hash, near));
            let mut counts = [0; 5];
            picked.for_each(|socket| counts[socket as usize] += 1);
            counts
        };
        for (socket, home, expected) in [
            (0, 0, [[100, 0, 0, 0, 0]; 2]),
            (1, 0, [[50, 50, 0, 0, 0]; 2]),
            (2, 1, [[34, 33, 33, 0, 0]; 2]),
            (3, 1, [[50, 50, 0, 0, 0], [0, 0, 50, 50, 0]]),
        ] {
            let one = Bound {
                reuse,
                home: Some(home),
                ..bound(socket, ANY, false, true)
            };
            ports.bind(80, one);
            assert_eq!([picks(&ports, 0), picks(&ports, 1)], expected);
        }
        // One of a shard that serves no more gets as much as the others.
        let one = Bound {
            reuse,
            home: Some(2),
            ..bound(4, ANY, false, true)
        };
        ports.bind(80, one);
        assert!(picks(&ports, 0).iter().all(|count| *count > 0));
    }

    const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
    const ONE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    #[test]
    fn a_listener_shares_with_nobody_and_a_bound_socket_with_its_like() {
        let mut ports = Ports::default();
        ports.bind(80, bound(1, ANY, true, true));
        assert!(!ports.is_free(80, &bound(2, ONE, true, false)));
        assert!(ports.is_free(81, &bound(2, ONE, false, false)));
        ports.bind(81, bound(2, ONE, true, false));
        assert!(ports.is_free(81, &bound(3, ANY, true, false)));
        assert!(!ports.is_free(81, &bound(3, ANY, false, false)));
        assert!(ports.is_free(81, &bound(3, Ipv4Addr::LOCALHOST, false, false)));
    }

    #[test]
    fn connections_left_over_need_reuse_on_both_sides() {
        let mut ports = Ports::default();
        let local = SocketAddr::new(ONE.into(), 80);
        ports.add_connection(local, true);
        assert!(!ports.is_free(80, &bound(1, ANY, false, true)));
        assert!(ports.is_free(80, &bound(1, ANY, true, true)));
        ports.add_connection(local, false);
        assert!(!ports.is_free(80, &bound(1, ANY, true, true)));
        ports.remove_connection(local, false);
        ports.remove_connection(local, true);
        assert_eq!(ports.len(), 0);
    }

    #[test]
    fn reuse_port_spreads_by_hash_and_the_specific_address_wins() {
        let mut ports = Ports::default();
        let shared = |socket| Bound {
            reuse: Reuse {
                address: false,
                port: true,
            },
            ..bound(socket, ANY, false, true)
        };
        ports.bind(80, shared(1));
        assert!(ports.is_free(80, &shared(2)));
        assert!(!ports.is_free(
            80,
            &Bound {
                owner: Owner(9),
                ..shared(2)
            }
        ));
        ports.bind(80, shared(2));
        let local = SocketAddr::new(ONE.into(), 80);
        assert_eq!(
            (ports.listener(local, 0), ports.listener(local, 1)),
            (Some(1), Some(2))
        );
        ports.bind(
            80,
            Bound {
                address: ONE.into(),
                ..shared(3)
            },
        );
        assert_eq!(ports.listener(local, 1), Some(3));
    }

    #[test]
    fn those_that_share_a_port_stand_in_one_order_whenever_they_came() {
        let local = SocketAddr::new(ONE.into(), 53);
        for order in [[1, 2, 3], [3, 1, 2]] {
            let mut ports = Ports::default();
            for rank in order {
                let mut shared = bound(rank, ANY, false, true);
                (shared.reuse.port, shared.rank) = (true, rank);
                ports.bind(53, shared);
            }
            let picked = [0, 1, 2].map(|hash| ports.listener(local, hash));
            assert_eq!(picked, [Some(1), Some(2), Some(3)]);
        }
    }

    #[test]
    fn sockets_of_two_devices_share_an_address() {
        let on = |socket, device| Bound {
            device,
            ..bound(socket, ANY, false, true)
        };
        let mut ports = Ports::default();
        ports.bind(80, on(1, Device::Link));
        let link = SocketAddr::new(ONE.into(), 80);
        let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
        assert_eq!(ports.listener(loopback, 0), None);
        assert_eq!(ports.listener(link, 0), Some(1));
        assert!(!ports.is_free(80, &on(2, Device::Link)));
        assert!(!ports.is_free(80, &on(2, Device::Any)));
        assert!(ports.is_free(80, &on(2, Device::Loopback)));
        ports.bind(80, on(2, Device::Loopback));
        assert_eq!(ports.listener(loopback, 0), Some(2));
        assert_eq!(ports.listener(link, 0), Some(1));
    }

    #[test]
    fn rfc3493_5_3_the_unspecified_v6_address_takes_v4_unless_told_not_to() {
        const ANY6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
        let mut ports = Ports::default();
        let v4 = SocketAddr::new(ONE.into(), 80);
        let v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 80);
        let only = |socket| Bound {
            v6_only: true,
            ..bound(socket, ANY6, false, true)
        };
        ports.bind(80, bound(1, ANY6, false, true));
        assert!(!ports.is_free(80, &bound(2, ANY, false, true)));
        assert!(!ports.is_free(80, &bound(2, ONE, false, true)));
        assert!(!ports.is_free(80, &only(2)));
        assert_eq!(ports.listener(v4, 0), Some(1));
        assert_eq!(ports.listener(v6, 0), Some(1));
        ports.unbind(80, 1);
        ports.bind(80, only(2));
        assert!(ports.is_free(80, &bound(3, ANY, false, true)));
        assert!(!ports.is_free(80, &bound(3, ANY6, false, true)));
        assert_eq!(ports.listener(v4, 0), None);
        ports.bind(80, bound(3, ANY, false, true));
        assert_eq!(ports.listener(v4, 0), Some(3));
        assert_eq!(ports.listener(v6, 0), Some(2));
    }

    #[test]
    fn b3_ephemeral_ports_are_spread_and_not_sequential() {
        let mut ports = Ports::default();
        let mut secrets = Secrets::new(&[3; 32]);
        let chosen: Vec<u16> = (0..2048)
            .map(|_| {
                ports
                    .choose(&mut secrets, |_, _| true, |_, _| true)
                    .unwrap()
            })
            .collect();
        let distinct: std::collections::HashSet<u16> = chosen.iter().copied().collect();
        assert!(distinct.len() > 1024);
        assert!(chosen.iter().all(|port| EPHEMERAL.contains(port)));
        let neighbours = chosen
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) == 1)
            .count();
        assert!(neighbours < 5);
    }

    #[test]
    fn ports_are_chosen_from_a_list_and_told_when_they_are_free() {
        let mut secrets = Secrets::new(&[3; 32]);
        let mut ports = Ports::new(Some(&[1000, 2000, 3000, 4000]), &mut secrets, false);
        let mut chosen: Vec<u16> = (0..4)
            .map(|_| {
                let unused = |ports: &Ports, port| !ports.is_used(port);
                let port = ports.choose(&mut secrets, unused, unused).unwrap();
                ports.bind(port, bound(port.into(), ONE, false, true));
                port
            })
            .collect();
        chosen.sort_unstable();
        assert_eq!(chosen, [1000, 2000, 3000, 4000]);
        assert_eq!(
            ports.choose(
                &mut secrets,
                |_, _| false,
                |ports, port| !ports.is_used(port)
            ),
            None
        );
        // One that still has a connection is not free.
        ports.add_connection(SocketAddr::new(ONE.into(), 2000), false);
        ports.unbind(1000, 1000);
        ports.unbind(2000, 2000);
        assert_eq!((ports.take_freed(), ports.take_freed()), (Some(1000), None));
        ports.remove_connection(SocketAddr::new(ONE.into(), 2000), false);
        // Nor one that is used again before anybody asks.
        ports.bind(2000, bound(1, ONE, false, true));
        assert_eq!(ports.take_freed(), None);
    }

    #[test]
    fn the_last_free_port_is_found() {
        let mut ports = Ports::default();
        let mut secrets = Secrets::new(&[3; 32]);
        assert_eq!(
            ports.choose(&mut secrets, |_, _| false, |_, port| port == 40_000),
            Some(40_000)
        );
        assert_eq!(ports.choose(&mut secrets, |_, _| false, |_, _| false), None);
    }
}
