//! One shard: a queue of the wire, a queue of the kernel's interface, and the flows between them.

use std::io;

use millrace_offload::{
    Config, Counters, FlowInfo, HEAD_MAX, Instant, PaceCounters, Pacer, Receive, Sink, Unit,
    transmit,
};
use millrace_port::{FRAME_MAX, Relay};
use millrace_wire::vnet::{self, VnetHeader};

/// How many frames are taken from the wire in a round. Whoever comes to a busy card waits for a
/// round, so it is short.
const BURST: usize = 32;
/// How many units are handed to the kernel in a round: more than so many frames of common size
/// make.
const UNITS: usize = 1;
/// How many of the kernel's units are taken in a round.
const SEND_BURST: usize = 8;
/// Room beyond the largest frame, for a tag.
const SPARE: usize = 64;
/// How soon a wire that has frames left is tried again, in nanoseconds: nothing says when it takes
/// more.
const FULL_LOOK: u64 = 100_000;

/// What a round has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Frames from the wire.
    pub received: usize,
    /// Units handed to the kernel in their turn.
    pub served: usize,
    /// Units from the kernel.
    pub sent: usize,
}

impl Round {
    /// Whether there was nothing to do.
    pub fn is_idle(&self) -> bool {
        *self == Round::default()
    }
}

/// Frames that could not be put into a form that the wire takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unsound(pub(crate) u64);

/// A shard between the wire `W` and the host `H`. No system call but those of its ports, no clock.
#[derive(Debug)]
pub struct Shard<W, H> {
    wire: W,
    host: H,
    receive: Receive,
    /// What a buffer of the pool has no room for, and what the kernel sends.
    large: Vec<u8>,
    /// Where the kernel's units leave at their flows' pace, if they do.
    pacer: Option<Box<Pacer>>,
    /// When the wire, which has frames left, is tried again.
    again: Option<Instant>,
    unsound: Unsound,
}

impl<W: Relay, H: Relay> Shard<W, H> {
    /// A shard. The host must take unfinished checksums and large units, as a TAP device does.
    pub fn new(wire: W, host: H, config: Config) -> Shard<W, H> {
        Shard {
            wire,
            host,
            receive: Receive::new(config),
            large: vec![0; FRAME_MAX + SPARE],
            pacer: None,
            again: None,
            unsound: Unsound::default(),
        }
    }

    /// Has the segments of the kernel's large units leave one after the other; they are cut here
    /// then, whatever the wire can.
    #[must_use]
    pub fn paced(self) -> Shard<W, H> {
        Shard {
            pacer: Some(Box::default()),
            ..self
        }
    }

    /// Takes what is there, from both sides, up to a limit. Units come last: what the kernel has
    /// answered to frames that passed goes before them.
    ///
    /// # Errors
    /// Those of a device that is gone.
    pub fn round(&mut self, now: Instant) -> io::Result<Round> {
        let received = self.take_from_wire(now)?;
        let sent = self.take_from_host(now)?;
        self.acknowledge(now)?;
        let all = self.wire.flush()?;
        self.again = (!all).then(|| now.after(FULL_LOOK));
        let served = self.serve(now)?;
        Ok(Round {
            received,
            served,
            sent,
        })
    }

    /// Says how many frames came. Who asks for a connection ends the burst, and is answered before
    /// more is taken.
    fn take_from_wire(&mut self, now: Instant) -> io::Result<usize> {
        let mut sink = ToHost {
            host: &mut self.host,
            error: None,
        };
        let (mut received, mut drained) = (0, false);
        while received < BURST {
            let Some(frame) = self
                .wire
                .receive_parts(self.receive.buffer(), &mut self.large)?
            else {
                drained = true;
                break;
            };
            let rest = &self.large[..frame.rest];
            self.receive
                .frame(frame.start, frame.len, rest, frame.vnet, now, &mut sink);
            received += 1;
            if self.receive.take_newcomer() {
                break;
            }
        }
        if received > 0 {
            self.receive.end_of_burst(drained, now, &mut sink);
        } else {
            self.receive.on_timer(now);
        }
        sink.error.map_or(Ok(received), Err)
    }

    /// Says how many units were handed on.
    fn serve(&mut self, now: Instant) -> io::Result<usize> {
        let mut sink = ToHost {
            host: &mut self.host,
            error: None,
        };
        let served = self.receive.serve(UNITS, &mut sink);
        self.receive.give_what_is_due(now, &mut sink);
        sink.error.map_or(Ok(served), Err)
    }

    fn take_from_host(&mut self, now: Instant) -> io::Result<usize> {
        let mut sent = 0;
        while sent < SEND_BURST {
            let buffer = match &mut self.pacer {
                Some(pacer) => pacer.buffer(),
                None => &mut self.large,
            };
            let Some(frame) = self.host.receive_parts(buffer, &mut [])? else {
                break;
            };
            sent += 1;
            let bytes = &mut buffer[frame.start..frame.start + frame.len];
            let mut sink = ToHost {
                host: &mut self.host,
                error: None,
            };
            let passes = self.receive.from_host(bytes, &frame.vnet, now, &mut sink);
            sink.error.map_or(Ok(()), Err)?;
            if !passes {
                continue;
            }
            let sound = match &mut self.pacer {
                Some(pacer) => {
                    let mut wire = ToWire::new(&mut self.wire);
                    let cut =
                        pacer.frame(frame.start, frame.len, &frame.vnet, now, |head, payload| {
                            wire.send(head, payload);
                        });
                    wire.outcome.map(|()| cut.is_ok())?
                }
                None => {
                    let bytes = &mut self.large[frame.start..frame.start + frame.len];
                    send(&mut self.wire, bytes, &frame.vnet)?
                }
            };
            self.unsound.0 += u64::from(!sound);
        }
        if let Some(pacer) = &mut self.pacer {
            let mut wire = ToWire::new(&mut self.wire);
            pacer.on_timer(now, |head, payload| wire.send(head, payload));
            wire.outcome?;
        }
        Ok(sent)
    }

    /// Sends what is acknowledged for the kernel.
    fn acknowledge(&mut self, now: Instant) -> io::Result<()> {
        let mut frame = [0; HEAD_MAX];
        while let Some(len) = self.receive.acknowledgement(now, &mut frame) {
            self.wire
                .send_parts(&frame[..len], &[], &VnetHeader::default())?;
        }
        Ok(())
    }

    /// When [`Shard::round`] is wanted though no frame has come.
    pub fn deadline(&self) -> Option<Instant> {
        let pace = self.pacer.as_ref().and_then(|pacer| pacer.deadline());
        let all = [self.receive.deadline(), pace, self.again];
        all.into_iter().flatten().min()
    }

    /// What pacing has done; nothing without.
    pub fn pacing(&self) -> PaceCounters {
        let pacer = self.pacer.as_ref();
        pacer.map_or_else(PaceCounters::default, |pacer| pacer.counters())
    }

    /// What receive offload has done.
    pub fn counters(&self) -> &Counters {
        self.receive.counters()
    }

    /// The flows that it knows.
    pub fn flows(&self, now: Instant) -> impl Iterator<Item = FlowInfo> {
        self.receive.flows(now)
    }

    /// Units that the kernel sent and that were not what it said of them.
    pub fn unsound(&self) -> u64 {
        self.unsound.0
    }

    /// The wire.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// The wire.
    pub fn wire_mut(&mut self) -> &mut W {
        &mut self.wire
    }

    /// The kernel's interface.
    pub fn host(&self) -> &H {
        &self.host
    }
}

/// Sends a frame of the kernel's; what is left undone in it is done here if the wire cannot.
/// `false` when the frame is not what is said of it.
fn send(wire: &mut impl Relay, frame: &mut [u8], vnet: &VnetHeader) -> io::Result<bool> {
    let capabilities = wire.capabilities();
    let whole = vnet.gso == vnet::Gso::NONE;
    let done_by_wire = match whole {
        true => capabilities.tx_checksum,
        false => capabilities.tx_segmentation_max > 0,
    };
    if done_by_wire {
        wire.send_parts(frame, &[], vnet)?;
        return Ok(true);
    }
    if whole && transmit::complete(frame, vnet).is_err() {
        return Ok(false);
    }
    let mut wire = ToWire::new(wire);
    let cut = transmit::segment(frame, vnet, |head, payload| wire.send(head, payload));
    wire.outcome.map(|()| cut.is_ok())
}

/// Sends finished frames; after an error none.
struct ToWire<'a, W> {
    wire: &'a mut W,
    outcome: io::Result<()>,
}

impl<'a, W: Relay> ToWire<'a, W> {
    fn new(wire: &'a mut W) -> ToWire<'a, W> {
        ToWire {
            wire,
            outcome: Ok(()),
        }
    }

    fn send(&mut self, head: &[u8], payload: &[u8]) {
        if self.outcome.is_ok() {
            let sent = self
                .wire
                .send_parts(head, &[payload], &VnetHeader::default());
            self.outcome = sent.map(drop);
        }
    }
}

/// Hands units to the kernel; one that it does not take is dropped, and its queue counts it.
struct ToHost<'a, H> {
    host: &'a mut H,
    error: Option<io::Error>,
}

impl<H: Relay> Sink for ToHost<'_, H> {
    fn unit(&mut self, unit: Unit<'_>) {
        if let Err(error) = self.host.send_parts(unit.head, unit.payload, &unit.vnet) {
            self.error = Some(error);
        }
    }
}
