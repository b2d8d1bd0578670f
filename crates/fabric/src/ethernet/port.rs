//! A port of a node on a link of this host: polled, or waited for.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time;

use millrace_port::{BUFFER_LEN, Offload, open, spec::Spec};
use millrace_tcp::Instant;
use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::link::Link;
use super::node::{MTU_MIN, Node, NodeCounters};
use crate::endpoint::Endpoint;
use crate::ip::IP_PORT;
use crate::types::{Channel, Error, Limits, Payload, PortName};

/// Frames taken of the link in one call of [`Port::poll`].
const BATCH: usize = 256;
/// A link without a descriptor is polled this often by [`Port::wait`], as is one whose queue of
/// outgoing frames is full.
const POLL_EVERY: time::Duration = time::Duration::from_micros(50);

/// Why a port on a link cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The link does not open.
    #[error(transparent)]
    Open(#[from] open::Error),
    /// The link's frames are too small.
    #[error("the link's MTU is {0} B, and messages need {MTU_MIN} B: raise the MTU")]
    Mtu(u16),
    /// The last port of a node is its IP port.
    #[error("port {0} is the IP port of its node: take another number")]
    Reserved(PortName),
    /// Anything else that the kernel says.
    #[error("waiting for a link: {0}")]
    Io(#[from] io::Error),
}

/// The link of a node.
type Device = Box<dyn millrace_port::Port + Send>;

/// A node with one port, on a link. It belongs to one thread at a time.
///
/// Requests go out, and messages come in, when the port is polled or waited for.
pub struct Port {
    name: PortName,
    node: Node,
    link: Device,
    buffer: Box<[u8]>,
    /// Readable when a frame has come or the timer has expired.
    epoll: OwnedFd,
    timer: OwnedFd,
    started: time::Instant,
    now: Instant,
    /// Frames of the last burst are still in the link's queue.
    is_blocked: bool,
    /// Why the link is of no more use.
    failed: Option<io::Error>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Port {
    /// Opens a link, and a port of the node that is there.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn open(spec: &Spec, name: PortName, limits: Limits) -> Result<Port, LinkError> {
        let opened = open::open(spec, &open::Options::new())?;
        let mut ports = opened.ports;
        Port::on(ports.swap_remove(0), name, limits)
    }

    /// A port of the node that is on `link`.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn on(link: Device, name: PortName, limits: Limits) -> Result<Port, LinkError> {
        match name.port {
            IP_PORT => Err(LinkError::Reserved(name)),
            _ => Port::on_any(link, name, limits),
        }
    }

    /// As [`Port::on`], the IP port, too.
    pub(crate) fn on_any(link: Device, name: PortName, limits: Limits) -> Result<Port, LinkError> {
        let capabilities = link.capabilities();
        if capabilities.mtu < MTU_MIN {
            return Err(LinkError::Mtu(capabilities.mtu));
        }
        let mut secret = [0; 16];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
            .map_err(io::Error::from)?;
        let mut node = Node::new(name.node, capabilities.mac, capabilities.mtu, secret);
        node.open(name.port, limits);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(io::Error::from)?;
        let watched = [link.descriptor(), Some(timer.as_fd())];
        for descriptor in watched.into_iter().flatten() {
            let token = epoll::EventData::new_u64(0);
            epoll::add(&epoll, descriptor, token, epoll::EventFlags::IN)
                .map_err(io::Error::from)?;
        }
        Ok(Port {
            name,
            node,
            link,
            buffer: vec![0; BUFFER_LEN].into(),
            epoll,
            timer,
            started: time::Instant::now(),
            now: Instant::from_micros(0),
            is_blocked: false,
            failed: None,
        })
    }

    /// What the node has counted.
    pub fn node_counters(&self) -> NodeCounters {
        self.node.counters()
    }

    /// The port's queues and buffers.
    pub fn endpoint(&self) -> &Endpoint<Link> {
        self.node
            .endpoint(self.name.port)
            .expect("it was opened with the node and is never closed")
    }

    /// The port's queues and buffers.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint<Link> {
        self.node
            .port(self.name.port)
            .expect("it was opened with the node and is never closed")
    }

    /// The ports of that number on other nodes that have told that they are there; and tells the
    /// others that this one is.
    pub(crate) fn present(&mut self, number: u16) -> Vec<PortName> {
        self.node.tell_presence(self.name.port);
        let ports = self.node.present();
        ports.filter(|port| port.port == number).collect()
    }

    /// Asks for a message to be sent: by the next [`Port::poll`] or [`Port::wait`].
    ///
    /// # Errors
    /// Those of a request that cannot be; nothing is under way then.
    pub fn send(
        &mut self,
        to: PortName,
        channel: Channel,
        offset: u64,
        payload: Payload<'_>,
        tag: u64,
    ) -> Result<(), Error> {
        self.look_at_clock();
        let (port, now) = (self.name.port, self.now);
        self.node.send(port, to, channel, offset, payload, tag, now)
    }

    /// Takes what frames have come, and sends what can be sent. Returns how many frames came.
    pub fn poll(&mut self) -> usize {
        self.look_at_clock();
        match self.exchange() {
            Ok(frames) => frames,
            Err(error) => {
                self.failed = Some(error);
                0
            }
        }
    }

    fn exchange(&mut self) -> io::Result<usize> {
        let mut frames = 0;
        while frames < BATCH
            && let Some(meta) = self.link.receive(&mut self.buffer)?
        {
            self.node.input(&self.buffer[..meta.len], self.now);
            frames += 1;
        }
        let (link, mut outcome) = (&mut self.link, Ok(true));
        self.node.transmit(self.now, |frame| {
            outcome = link.send(frame, [&[], &[]], Offload::None);
            matches!(outcome, Ok(true))
        });
        let is_taken = outcome?;
        self.is_blocked = !self.link.flush()? || !is_taken;
        Ok(frames)
    }

    /// Waits until a completion queue has an entry, or for `timeout` at most. Whether one has.
    ///
    /// # Errors
    /// Those of the link, after which it is of no more use, and of the kernel's wait.
    pub fn wait(&mut self, timeout: Option<time::Duration>) -> io::Result<bool> {
        let until = timeout.and_then(|timeout| time::Instant::now().checked_add(timeout));
        loop {
            let came = self.poll();
            if self.endpoint().has_completions() {
                return Ok(true);
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if came > 0 {
                continue;
            }
            let now = time::Instant::now();
            if until.is_some_and(|until| now >= until) {
                return Ok(false);
            }
            let mut left = until.map(|until| until - now);
            if self.is_blocked || self.link.descriptor().is_none() {
                left = Some(left.map_or(POLL_EVERY, |left| left.min(POLL_EVERY)));
            }
            self.set_timer();
            self.sleep(left)?;
        }
    }

    fn sleep(&self, timeout: Option<time::Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut space = [const { MaybeUninit::uninit() }; 2];
        match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What becomes readable when there may be something to do, once [`Port::prepare_to_wait`] has
    /// said so.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Sets the timer behind [`Port::descriptor`]. False if there is something to do already.
    pub fn prepare_to_wait(&mut self) -> bool {
        let came = self.poll();
        self.set_timer();
        came == 0 && !self.is_blocked && self.failed.is_none() && !self.endpoint().has_completions()
    }

    /// Has the descriptor become readable at the node's deadline.
    fn set_timer(&mut self) {
        let deadline = self.node.deadline();
        // A time of zero would turn the timer off.
        let left = match deadline == Instant::NEVER {
            true => 0,
            false => deadline
                .as_micros()
                .saturating_sub(self.now.as_micros())
                .max(1),
        };
        let at = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: (left / 1_000_000) as i64,
                tv_nsec: (left % 1_000_000 * 1_000) as i64,
            },
        };
        // A descriptor of our own and a sound time: there is nothing to refuse.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &at);
    }

    fn look_at_clock(&mut self) {
        self.now = Instant::from_micros(self.started.elapsed().as_micros() as u64);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // The peers are told; one whose frame is lost finds out by itself.
        self.node.close(self.name.port);
        let _ = self.exchange();
    }
}
