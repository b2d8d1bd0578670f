//! The links of a stack: which one a socket is on, and what all of them say.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use millrace_shard::{Counters, Error, SocketInfo, Usage};
use rustix::io::Errno;

use crate::core::{Core, LinkErrors};
use crate::stack::{Stack, system};

impl Stack {
    /// How many links it has, or this handle means. A stack without a link has its loopback in the
    /// place of one.
    ///
    /// ```
    /// let stack = millrace::Builder::new().build()?;
    /// assert_eq!(stack.links(), 1);
    /// # Ok::<(), millrace::BuildError>(())
    /// ```
    pub fn links(&self) -> usize {
        self.span().len()
    }

    /// The same stack, with one of its links alone: the one that the builder was told as number
    /// `link`, from 0 on. Sockets that are made with this handle are on that link, whatever other
    /// ways there are (`SO_BINDTODEVICE`); [`Stack::input`], [`Stack::transmit`],
    /// [`Stack::with_sockets`] and what belongs to it, and what is counted, are that link's. It
    /// works, waits and runs tasks as any other handle.
    ///
    /// ```
    /// let stack = millrace::Builder::new()
    ///     .link(millrace::Link::packets(1500))
    ///     .address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .link(millrace::Link::packets(1500))
    ///     .address(std::net::Ipv4Addr::new(10, 1, 0, 2), 24)
    ///     .build()?;
    /// let inside = stack.on_link(1)?;
    /// let listener = millrace::TcpListener::bind(&inside, "0.0.0.0:80")?;
    /// // Nobody on the first link can reach it: its port is free there.
    /// let other = millrace::TcpListener::bind(&stack, "10.0.0.2:80")?;
    /// assert!(stack.on_link(2).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ENODEV` if there is no such link.
    pub fn on_link(&self, link: usize) -> io::Result<Stack> {
        match self.span().contains(&link) {
            true => Ok(self.at(link)),
            false => Err(Errno::NODEV.into()),
        }
    }

    /// The handle for sockets of a link.
    pub(crate) fn at(&self, link: usize) -> Stack {
        Stack {
            link: link as u16,
            narrow: true,
            ..self.clone()
        }
    }

    /// The handle that means all links.
    pub(crate) fn all_links(&self) -> Stack {
        Stack {
            link: 0,
            narrow: false,
            ..self.clone()
        }
    }

    /// The handle of the link by which a connection from `local` goes to `remote`.
    pub(crate) fn way(&self, local: Option<SocketAddr>, remote: SocketAddr) -> io::Result<Stack> {
        let local = local.map_or(Ipv4Addr::UNSPECIFIED.into(), |local| local.ip());
        let link = self.towards(local, remote).map_err(system)?;
        Ok(self.at(link))
    }

    /// The links that this handle means.
    pub(crate) fn span(&self) -> Range<usize> {
        match (self.narrow, usize::from(self.link)) {
            (true, link) => link..link + 1,
            (false, _) => 0..self.inner.cores.count(),
        }
    }

    fn each_link(&self, mut visit: impl FnMut(&Core)) {
        for link in self.span() {
            visit(&self.inner.cores.get(link).borrow());
        }
    }

    /// The link that a socket at `address` is on; none if it is on all of them.
    pub(crate) fn home(&self, address: IpAddr) -> Option<usize> {
        let span = self.span();
        if span.len() == 1 {
            return Some(span.start);
        }
        let address = address.to_canonical();
        let several = match address {
            IpAddr::V4(address) => address.is_broadcast(),
            IpAddr::V6(_) => false,
        };
        if address.is_unspecified() || address.is_multicast() || several {
            return None;
        }
        match self.owner(address) {
            Some(link) => Some(link),
            // Nobody's counts as everybody's, or is refused.
            None if self.takes_any() => None,
            None => Some(span.start),
        }
    }

    /// The link whose address this is. Loopback is the first one's.
    fn owner(&self, address: IpAddr) -> Option<usize> {
        let mut span = self.span();
        if address.is_loopback() {
            return Some(span.start);
        }
        let has = |&link: &usize| {
            self.inner
                .cores
                .get(link)
                .borrow()
                .shard
                .has_address(address)
        };
        span.find(has)
    }

    fn takes_any(&self) -> bool {
        self.with(|core| core.shard.config().any_address)
    }

    /// The link by which packets from `local`, which may be unspecified, go to `remote`: that of
    /// the address if it is ours; that of the source if it is bound, since an address is of one
    /// link here (RFC 1122 3.3.4.2, the strong model); or else the one that leads nearest to it.
    /// What leads nowhere is left to the first one to refuse.
    pub(crate) fn towards(&self, local: IpAddr, remote: SocketAddr) -> Result<usize, Error> {
        let span = self.span();
        if span.len() == 1 {
            return Ok(span.start);
        }
        let to = remote.ip().to_canonical();
        let source = match local.to_canonical() {
            local if local.is_unspecified() || local.is_loopback() => None,
            local => self.owner(local),
        };
        // Linux: the unspecified address is this host.
        let here = match to.is_unspecified() {
            true => Some(span.start),
            false => self.owner(to),
        };
        match (source, here) {
            (Some(source), Some(here)) if source != here => Err(Error::NetworkUnreachable),
            (Some(link), _) | (None, Some(link)) => Ok(link),
            (None, None) => Ok(self.scope(remote).unwrap_or_else(|| self.nearest(to))),
        }
    }

    /// The link that a link-local address says it is on (RFC 4007 6), counted from 1 as the
    /// kernel's interfaces are.
    fn scope(&self, remote: SocketAddr) -> Option<usize> {
        match remote {
            SocketAddr::V6(remote) if remote.ip().is_unicast_link_local() => {
                let link = (remote.scope_id() as usize).checked_sub(1)?;
                self.span().contains(&link).then_some(link)
            }
            _ => None,
        }
    }

    /// An address that was heard on this handle's link, with the link in it if it is link-local.
    pub(crate) fn scoped(&self, mut address: SocketAddr) -> SocketAddr {
        if let SocketAddr::V6(address) = &mut address
            && self.inner.cores.count() > 1
            && address.ip().is_unicast_link_local()
        {
            address.set_scope_id(u32::from(self.link) + 1);
        }
        address
    }

    fn nearest(&self, to: IpAddr) -> usize {
        let span = self.span();
        let mut best = (None, span.start);
        for link in span {
            let nearness = self.inner.cores.get(link).borrow().shard.nearness(to);
            // Among equals the one that was said first.
            if nearness > best.0 {
                best = (nearness, link);
            }
        }
        best.1
    }

    /// Counts since the start, on all links.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(stack.counters().passive_opens, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        self.each_link(|core| all.add(core.shard.counters()));
        all
    }

    /// What is in use now, on all links. A socket that hears several counts on each.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// // A listener, and both ends.
    /// assert_eq!(stack.usage().sockets, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        self.each_link(|core| all.add(&core.shard.usage()));
        all
    }

    /// Frames that were lost on this side of the links.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// assert_eq!(stack.link_errors().refused, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn link_errors(&self) -> LinkErrors {
        let mut all = LinkErrors::default();
        self.each_link(|core| all.add(&core.link_errors()));
        all
    }

    /// Shows every socket, half-open connection and connection in TIME-WAIT to `visit`, as `ss`
    /// would, one link after the other. `visit` must leave the stack alone.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// let mut established = 0;
    /// stack.for_each_socket(|socket| {
    ///     established += usize::from(socket.state == millrace::SocketState::Tcp(
    ///         millrace::State::Established));
    /// });
    /// assert_eq!(established, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_each_socket(&self, mut visit: impl FnMut(&SocketInfo)) {
        self.each_link(|core| core.shard.for_each_socket(core.now, &mut visit));
    }
}
