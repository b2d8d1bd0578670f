//! A port over either transport.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use millrace_port::spec::Spec;

use crate::shm::OpenError;
use crate::types::{BufferId, Channel, Counters, Error, Limits, Payload, PortName, Received, Sent};
use crate::{ethernet, shm};

/// A port of this process: in memory that is shared with other processes of this host, or on a
/// link. It belongs to one thread at a time.
///
/// ```
/// use millrace_fabric::{Channel, Limits, Payload, Port, PortName, shm};
///
/// let place = std::env::temp_dir().join(format!("millrace-fabric-port-{}", std::process::id()));
/// let directory = shm::Directory::at(&place);
/// let open = |name| shm::Port::open_in(&directory, name, Limits::default());
/// let mut one = Port::from(open(PortName::new(0, 1))?);
/// let mut two = Port::from(open(PortName::new(0, 2))?);
/// let buffer = one.register(8192)?;
/// one.send(two.name(), Channel::Normal(0), 0, Payload::Buffer(buffer, 8192), 7)?;
/// let place_for_it = two.register(8192)?;
/// two.post(Channel::Normal(0), place_for_it)?;
/// while one.poll_sent().is_none() {
///     one.poll();
///     two.poll();
/// }
/// # std::fs::remove_dir_all(place)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum Port {
    /// In memory that pairs of ports share.
    Shared(Box<shm::Port>),
    /// On a link.
    Ethernet(Box<ethernet::Port>),
}

impl From<shm::Port> for Port {
    fn from(port: shm::Port) -> Port {
        Port::Shared(Box::new(port))
    }
}

impl From<ethernet::Port> for Port {
    fn from(port: ethernet::Port) -> Port {
        Port::Ethernet(Box::new(port))
    }
}

/// Calls the transport's method of the same meaning.
macro_rules! either {
    ($self:expr, $shared:ident => $one:expr, $ethernet:ident => $other:expr) => {
        match $self {
            Port::Shared($shared) => $one,
            Port::Ethernet($ethernet) => $other,
        }
    };
}

impl Port {
    /// Opens the port `name` for processes of the same user on this host.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(name: PortName, limits: Limits) -> Result<Port, OpenError> {
        shm::Port::open(name, limits).map(Port::from)
    }

    /// Opens a link, and the port `name` there.
    ///
    /// # Errors
    /// [`ethernet::LinkError`].
    pub fn open_on(
        link: &Spec,
        name: PortName,
        limits: Limits,
    ) -> Result<Port, ethernet::LinkError> {
        ethernet::Port::open(link, name, limits).map(Port::from)
    }

    /// Its name.
    pub fn name(&self) -> PortName {
        either!(self, port => port.name(), port => port.endpoint().name())
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        either!(self, port => port.counters(), port => port.endpoint().counters())
    }

    /// The ports that it speaks with.
    pub fn peers(&self) -> Vec<PortName> {
        either!(self, port => port.peers(), port => port.endpoint().remotes())
    }

    /// The ports of that number that are there, but this one; on a link, the others are told of
    /// this one.
    pub(crate) fn present(&mut self, number: u16) -> Vec<PortName> {
        either!(self, port => port.present(number), port => port.present(number))
    }

    /// As [`Endpoint::register`](crate::Endpoint::register).
    ///
    /// # Errors
    /// As there.
    pub fn register(&mut self, len: usize) -> Result<BufferId, Error> {
        either!(self, port => port.register(len), port => port.endpoint_mut().register(len))
    }

    /// As [`Endpoint::free`](crate::Endpoint::free).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn free(&mut self, buffer: BufferId) -> Result<(), Error> {
        either!(self, port => port.free(buffer), port => port.endpoint_mut().free(buffer))
    }

    /// As [`Endpoint::bytes`](crate::Endpoint::bytes).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn bytes(&self, buffer: BufferId) -> Result<&[u8], Error> {
        either!(self, port => port.bytes(buffer), port => port.endpoint().bytes(buffer))
    }

    /// As [`Endpoint::bytes_mut`](crate::Endpoint::bytes_mut).
    ///
    /// # Errors
    /// As there.
    pub fn bytes_mut(&mut self, buffer: BufferId) -> Result<&mut [u8], Error> {
        either!(self, port => port.bytes_mut(buffer), port => port.endpoint_mut().bytes_mut(buffer))
    }

    /// As [`Endpoint::message`](crate::Endpoint::message).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn message(&self, message: &Received) -> Result<&[u8], Error> {
        either!(self, port => port.message(message), port => port.endpoint().message(message))
    }

    /// As [`Endpoint::post`](crate::Endpoint::post).
    ///
    /// # Errors
    /// As there.
    pub fn post(&mut self, channel: Channel, buffer: BufferId) -> Result<(), Error> {
        either!(self, port => port.post(channel, buffer), port => port.endpoint_mut().post(channel, buffer))
    }

    /// As [`Endpoint::offer`](crate::Endpoint::offer).
    ///
    /// # Errors
    /// As there.
    pub fn offer(&mut self, channel: Channel, buffer: BufferId) -> Result<(), Error> {
        either!(self, port => port.offer(channel, buffer), port => port.endpoint_mut().offer(channel, buffer))
    }

    /// As [`Endpoint::withdraw`](crate::Endpoint::withdraw).
    ///
    /// # Errors
    /// As there.
    pub fn withdraw(&mut self, channel: Channel) -> Result<Option<BufferId>, Error> {
        either!(self, port => port.withdraw(channel), port => port.endpoint_mut().withdraw(channel))
    }

    /// Asks for a message to be sent: by the next [`Port::poll`] or [`Port::wait`] at the latest.
    ///
    /// # Errors
    /// Those of a request that cannot be; nothing is under way then.
    #[inline]
    pub fn send(
        &mut self,
        to: PortName,
        channel: Channel,
        offset: u64,
        payload: Payload<'_>,
        tag: u64,
    ) -> Result<(), Error> {
        either!(
            self,
            port => port.send(to, channel, offset, payload, tag),
            port => port.send(to, channel, offset, payload, tag)
        )
    }

    /// The next entry of the send-completion queue.
    #[inline]
    pub fn poll_sent(&mut self) -> Option<Sent> {
        either!(self, port => port.poll_sent(), port => port.endpoint_mut().poll_sent())
    }

    /// The next entry of the receive-completion queue.
    #[inline]
    pub fn poll_received(&mut self) -> Option<Received> {
        either!(self, port => port.poll_received(), port => port.endpoint_mut().poll_received())
    }

    /// Does what there is to do. Returns 0 if nothing has come.
    #[inline]
    pub fn poll(&mut self) -> usize {
        either!(self, port => port.poll(), port => port.poll())
    }

    /// Waits until a completion queue has an entry, or for `timeout` at most. Whether one has.
    ///
    /// # Errors
    /// Those of the kernel's wait, and of the link.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        either!(self, port => port.wait(timeout), port => port.wait(timeout))
    }

    /// What becomes readable when there may be something to do, once [`Port::prepare_to_wait`] has
    /// said so.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        either!(self, port => port.descriptor(), port => port.descriptor())
    }

    /// Gets the descriptor ready for somebody who waits for it. False if there is something to do
    /// already. Afterwards [`Port::wait`] with a time-out of zero does it.
    pub fn prepare_to_wait(&mut self) -> bool {
        either!(self, port => port.prepare_to_wait(), port => port.prepare_to_wait())
    }
}
