//! A node on an Ethernet: its ports, and the frames that it receives and sends. Sans-IO: frames and
//! the time come in, frames and the next deadline go out.

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;

use millrace_tcp::Instant;
use millrace_wire::ethernet::{self, Mac};
use siphasher::sip::SipHasher13;

use super::frame::{ASKS, ETHERTYPE, HEADER_LEN, Header, Kind, read_record};
use super::link::{Link, State};
use crate::endpoint::Endpoint;
use crate::record::HEAD_LEN;
use crate::types::{Channel, Error, Failure, Limits, Payload, PortName, SYSTEM_MAX};

/// The smallest MTU that a node works with, in bytes: a frame takes the largest message of the
/// system channel.
pub const MTU_MIN: u16 = (HEADER_LEN + HEAD_LEN + SYSTEM_MAX) as u16;
/// Frames that answer what belongs to no session and wait to be sent.
const ANSWERS_MAX: usize = 64;
/// Epochs of sessions that have ended and do not begin again when an old frame is repeated.
const ENDED_MAX: usize = 256;

/// Ports of other nodes that have told that they are there.
const PRESENT_MAX: usize = 256;

/// What a node has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Frames received for one of its ports, damaged ones among them.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Frames that were damaged, or that no node sends.
    pub bad: u64,
    /// Frames that had come before.
    pub repeated: u64,
    /// Frames of no session that there is, or with an epoch that is not its.
    pub foreign: u64,
    /// Answers that were not sent, since too many waited.
    pub answers_dropped: u64,
}

/// Why a session is ended, as a reset says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Reason {
    Unknown = 1,
    NoSuchPort = 2,
    Refused = 3,
    Violation = 4,
    Closed = 5,
}

impl Reason {
    fn failure(code: u32) -> Option<Failure> {
        Some(match code {
            1 => Failure::PeerRestarted,
            2 => Failure::NoSuchPort,
            3 => Failure::Refused,
            4 => Failure::Violation,
            5 => Failure::PeerLost,
            _ => return None,
        })
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    node: u16,
    mac: Mac,
    /// Bytes of records in a frame.
    capacity: usize,
    secret: [u8; 16],
    epochs: u64,
    ports: HashMap<u16, Endpoint<Link>>,
    answers: VecDeque<(Header, Mac)>,
    ended: VecDeque<u64>,
    counters: NodeCounters,
    /// Ports of other nodes that have told that they are there, the last one last.
    present: VecDeque<PortName>,
    /// Memory for a frame to be sent, and for the numbers of the ports.
    frame: Vec<u8>,
    numbers: Vec<u16>,
}

impl Node {
    /// The node `node` at the station `mac`. `secret` is random and not used before: epochs are
    /// made of it.
    ///
    /// # Panics
    /// When `mtu` is less than [`MTU_MIN`].
    pub fn new(node: u16, mac: Mac, mtu: u16, secret: [u8; 16]) -> Node {
        assert!(
            mtu >= MTU_MIN,
            "an MTU of {mtu} is too small: {MTU_MIN} at least"
        );
        Node {
            node,
            mac,
            capacity: usize::from(mtu) - HEADER_LEN,
            secret,
            epochs: 0,
            ports: HashMap::new(),
            answers: VecDeque::new(),
            ended: VecDeque::new(),
            counters: NodeCounters::default(),
            present: VecDeque::new(),
            frame: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// Makes a port. False if there is one of that number.
    pub fn open(&mut self, port: u16, limits: Limits) -> bool {
        let name = PortName::new(self.node, port);
        let is_free = !self.ports.contains_key(&port);
        if is_free {
            self.ports.insert(port, Endpoint::new(name, limits));
        }
        is_free
    }

    /// A port: its queues and buffers.
    pub fn endpoint(&self, port: u16) -> Option<&Endpoint<Link>> {
        self.ports.get(&port)
    }

    /// A port, to be changed.
    pub fn port(&mut self, port: u16) -> Option<&mut Endpoint<Link>> {
        self.ports.get_mut(&port)
    }

    /// Tells all stations that a port of this node is there.
    pub fn tell_presence(&mut self, port: u16) {
        let src = PortName::new(self.node, port);
        let header = Header {
            kind: Kind::Presence,
            src,
            dst: src,
            src_epoch: 0,
            dst_epoch: 0,
            seq: 0,
            ack: 0,
            sack: 0,
            window: 0,
            flags: 0,
        };
        self.answer(header, Mac::BROADCAST);
    }

    /// The ports of other nodes that have told that they are there. Some may be gone since.
    pub fn present(&self) -> impl Iterator<Item = PortName> + '_ {
        self.present.iter().copied()
    }

    /// A port of another node is there.
    fn on_presence(&mut self, port: PortName) {
        if port.node == self.node {
            // Two nodes have one number.
            self.counters.bad += 1;
        } else if !self.present.contains(&port) {
            if self.present.len() == PRESENT_MAX {
                self.present.pop_front();
            }
            self.present.push_back(port);
        }
    }

    /// What the node has counted.
    pub fn counters(&self) -> NodeCounters {
        self.counters
    }

    /// Bytes of frames that it keeps for all its sessions.
    pub fn memory(&mut self) -> usize {
        let ports = self.ports.values_mut();
        let links = ports.map(|port| {
            let indices = 0..port.indices();
            let memory = |index| port.peer(index).map_or(0, |peer| peer.transport.memory());
            indices.map(memory).sum::<usize>()
        });
        links.sum()
    }

    /// Closes a port. Its requests end with [`Failure::Closed`]; it is returned for their
    /// completions.
    pub fn close(&mut self, port: u16) -> Option<Endpoint<Link>> {
        let mut endpoint = self.ports.remove(&port)?;
        for index in 0..endpoint.indices() {
            self.end(&mut endpoint, index, Failure::Closed, Some(Reason::Closed));
        }
        Some(endpoint)
    }

    /// Sends a message from a port of this node.
    ///
    /// # Errors
    /// Those of a request that cannot be: nothing is under way then. [`Error::NoSuchBuffer`] also
    /// if there is no such port here.
    #[expect(clippy::too_many_arguments, reason = "a request has so many fields")]
    pub fn send(
        &mut self,
        port: u16,
        to: PortName,
        channel: Channel,
        offset: u64,
        payload: Payload<'_>,
        tag: u64,
        now: Instant,
    ) -> Result<(), Error> {
        let epoch = self.next_epoch();
        let endpoint = self.ports.get_mut(&port).ok_or(Error::NoSuchBuffer)?;
        endpoint.check(to, channel, &payload)?;
        let index = match endpoint.find(to) {
            Some(index) => index,
            None => {
                let link = Link::new(endpoint.name(), to, epoch, self.capacity, now);
                endpoint.add(to, link)?
            }
        };
        endpoint.send_by(index, channel, offset, payload, tag, now)
    }

    /// An epoch that nobody can guess and that was not used before.
    fn next_epoch(&mut self) -> u64 {
        self.epochs += 1;
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write_u64(self.epochs);
        hasher.finish() | 1
    }

    /// The epoch of a session that a peer begins with its own. Even, and so none of
    /// [`Node::next_epoch`].
    fn answering_epoch(&self, header: &Header) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        for word in [
            header.src.node,
            header.src.port,
            header.dst.node,
            header.dst.port,
        ] {
            hasher.write_u16(word);
        }
        hasher.write_u64(header.src_epoch);
        (hasher.finish() & !1).max(2)
    }

    /// Ends a session; with a reason the peer is told.
    fn end(
        &mut self,
        endpoint: &mut Endpoint<Link>,
        index: usize,
        failure: Failure,
        reason: Option<Reason>,
    ) {
        let Some(link) = endpoint.remove(index, failure) else {
            return;
        };
        if link.peer_epoch == 0 {
            return;
        }
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(link.peer_epoch);
        if let Some(reason) = reason {
            let header = Header {
                kind: Kind::Reset,
                src: endpoint.name(),
                dst: link.remote(),
                src_epoch: link.epoch,
                dst_epoch: link.peer_epoch,
                seq: reason as u32,
                ack: 0,
                sack: 0,
                window: 0,
                flags: 0,
            };
            self.answer(header, link.mac);
        }
    }

    fn answer(&mut self, header: Header, mac: Mac) {
        if self.answers.len() == ANSWERS_MAX {
            self.counters.answers_dropped += 1;
        } else {
            self.answers.push_back((header, mac));
        }
    }

    /// Answers a frame: with another one from its destination to its source.
    fn answer_to(&mut self, to: &Header, mac: Mac, kind: Kind, reason: u32, epoch: u64) {
        let header = Header {
            kind,
            src: to.dst,
            dst: to.src,
            src_epoch: epoch,
            dst_epoch: to.src_epoch,
            seq: reason,
            ack: 0,
            sack: 0,
            window: 0,
            flags: 0,
        };
        self.answer(header, mac);
    }

    /// Takes a frame. Frames for others, and of other EtherTypes, are left alone.
    pub fn input(&mut self, frame: &[u8], now: Instant) {
        let Ok((link, bytes)) = ethernet::Header::parse(frame) else {
            return;
        };
        let is_ours = link.dst == self.mac || link.dst == Mac::BROADCAST;
        if link.ethertype != ETHERTYPE || !is_ours || link.src == self.mac {
            return;
        }
        let Ok((header, records)) = Header::parse(bytes) else {
            self.counters.bad += 1;
            return;
        };
        if header.kind == Kind::Presence {
            return self.on_presence(header.src);
        }
        if header.dst.node != self.node {
            return;
        }
        self.counters.received += 1;
        if header.src == header.dst || header.src_epoch == 0 && header.kind != Kind::Reset {
            self.counters.bad += 1;
            return;
        }
        let Some(mut endpoint) = self.ports.remove(&header.dst.port) else {
            if header.kind != Kind::Reset {
                self.answer_to(
                    &header,
                    link.src,
                    Kind::Reset,
                    Reason::NoSuchPort as u32,
                    header.dst_epoch,
                );
            }
            return;
        };
        self.input_for(&mut endpoint, &header, link.src, records, now);
        self.ports.insert(header.dst.port, endpoint);
    }

    fn input_for(
        &mut self,
        endpoint: &mut Endpoint<Link>,
        header: &Header,
        mac: Mac,
        records: &[u8],
        now: Instant,
    ) {
        match header.kind {
            Kind::Hello => self.on_hello(endpoint, header, mac, now),
            Kind::Welcome => {
                if let Some(index) = endpoint.find(header.src)
                    && let Some(peer) = endpoint.peer(index)
                    && peer.transport.state == State::Opening
                    && peer.transport.epoch == header.dst_epoch
                {
                    peer.transport.confirm(header.src_epoch, mac, now);
                }
            }
            Kind::Confirm => self.on_confirm(endpoint, header, mac, now),
            Kind::Reset => self.on_reset(endpoint, header, now),
            Kind::Data | Kind::Ack => self.on_session(endpoint, header, mac, records, now),
            // It is for no port.
            Kind::Presence => {}
        }
    }

    fn on_hello(&mut self, endpoint: &mut Endpoint<Link>, header: &Header, mac: Mac, now: Instant) {
        let local = endpoint.name();
        match endpoint.find(header.src) {
            Some(index) => {
                if let Some(peer) = endpoint.peer(index) {
                    match peer.transport.state {
                        // Of two hellos that cross each other, the one of the smaller name goes on.
                        State::Opening if local < header.src => return,
                        State::Confirming => return,
                        State::Opening => peer.transport.yield_to_peer(now),
                        State::Yielding | State::Up => {}
                    }
                }
            }
            None if endpoint.remotes_len() >= endpoint.limits().peers => {
                endpoint.count_refused();
                self.answer_to(header, mac, Kind::Reset, Reason::Refused as u32, 0);
                return;
            }
            None => {}
        }
        let epoch = self.answering_epoch(header);
        self.answer_to(header, mac, Kind::Welcome, 0, epoch);
    }

    fn on_confirm(
        &mut self,
        endpoint: &mut Endpoint<Link>,
        header: &Header,
        mac: Mac,
        now: Instant,
    ) {
        let local = endpoint.name();
        let is_answer = header.dst_epoch == self.answering_epoch(header);
        if !is_answer || self.ended.contains(&header.src_epoch) {
            self.counters.foreign += 1;
            self.answer_to(
                header,
                mac,
                Kind::Reset,
                Reason::Unknown as u32,
                header.dst_epoch,
            );
            return;
        }
        let mut found = endpoint.find(header.src);
        if let Some(index) = found
            && let Some(peer) = endpoint.peer(index)
        {
            let link = &mut peer.transport;
            match link.state {
                State::Up if link.peer_epoch == header.src_epoch => {
                    link.acknowledge();
                    return;
                }
                State::Up => {
                    self.end(endpoint, index, Failure::PeerRestarted, None);
                    found = None;
                }
                State::Confirming if local < header.src => return,
                _ => {}
            }
        }
        let index = match found {
            Some(index) => index,
            None => {
                let link = Link::new(local, header.src, header.dst_epoch, self.capacity, now);
                let Ok(index) = endpoint.add(header.src, link) else {
                    let epoch = header.dst_epoch;
                    self.answer_to(header, mac, Kind::Reset, Reason::Refused as u32, epoch);
                    return;
                };
                index
            }
        };
        if let Some(peer) = endpoint.peer(index) {
            let link = &mut peer.transport;
            link.come_up(header.dst_epoch, header.src_epoch, mac, now);
            peer.session.come_up();
        }
    }

    fn on_reset(&mut self, endpoint: &mut Endpoint<Link>, header: &Header, now: Instant) {
        let Some(failure) = Reason::failure(header.seq) else {
            self.counters.bad += 1;
            return;
        };
        let epoch = self.next_epoch();
        if let Some(index) = endpoint.find(header.src)
            && let Some(peer) = endpoint.peer(index)
        {
            let link = &mut peer.transport;
            let is_known = link.epoch == header.dst_epoch && link.peer_epoch == header.src_epoch;
            match link.state {
                _ if !is_known => {}
                // The answer to a confirm: the peer has been restarted since it welcomed us.
                State::Confirming if failure == Failure::PeerRestarted => {
                    link.reopen(epoch, now);
                    return;
                }
                State::Yielding => {}
                _ => {
                    self.end(endpoint, index, failure, None);
                    return;
                }
            }
        }
        self.counters.foreign += 1;
    }

    fn on_session(
        &mut self,
        endpoint: &mut Endpoint<Link>,
        header: &Header,
        mac: Mac,
        records: &[u8],
        now: Instant,
    ) {
        let index = endpoint.find(header.src);
        let found = index.and_then(|index| Some((index, endpoint.peer_and_shared(index)?)));
        let Some((index, (peer, shared))) = found.filter(|(_, (peer, _))| {
            let link = &peer.transport;
            matches!(link.state, State::Up | State::Confirming)
                && (link.epoch, link.peer_epoch) == (header.dst_epoch, header.src_epoch)
        }) else {
            self.counters.foreign += 1;
            self.answer_to(
                header,
                mac,
                Kind::Reset,
                Reason::Unknown as u32,
                header.dst_epoch,
            );
            return;
        };
        let link = &mut peer.transport;
        if link.state == State::Confirming {
            link.come_up(header.dst_epoch, header.src_epoch, mac, now);
            peer.session.come_up();
        }
        let mut is_good = link.on_ack(header, now).is_ok();
        if header.kind == Kind::Ack && header.flags & ASKS != 0 {
            link.acknowledge();
        }
        if header.kind == Kind::Data && !link.on_data(header.seq, records) {
            self.counters.repeated += 1;
        }
        while is_good && let Some(records) = link.next_in_order() {
            let mut rest = &records[..];
            while is_good && !rest.is_empty() {
                is_good = read_record(&mut rest).is_some_and(|(head, body)| {
                    peer.session.on_record(shared, head, &body).is_ok()
                });
            }
            link.give_back(records);
        }
        if !is_good {
            self.end(endpoint, index, Failure::Violation, Some(Reason::Violation));
        }
    }

    /// Does what the time and the requests of the program demand.
    fn work(&mut self, endpoint: &mut Endpoint<Link>, now: Instant) {
        for index in 0..endpoint.indices() {
            let Some(peer) = endpoint.peer(index) else {
                continue;
            };
            if !peer.transport.on_time(now) {
                self.end(endpoint, index, Failure::PeerLost, Some(Reason::Closed));
            }
        }
        endpoint.expire(now);
        while let Some(index) = endpoint.grant() {
            self.end(endpoint, index, Failure::Violation, Some(Reason::Violation));
        }
        for index in 0..endpoint.indices() {
            endpoint.pump(index);
            // Nobody waits for a session any more that has not begun.
            if let Some(peer) = endpoint.peer(index)
                && !peer.session.is_up()
                && peer.session.is_idle()
            {
                self.end(endpoint, index, Failure::NoSuchPort, None);
            }
        }
    }

    /// Sends what there is to send: each frame is given to `send`, which returns false when it
    /// takes no more now; a frame that it did not take is lost. To be called after frames have
    /// come, after calls on the ports, and at the deadline.
    pub fn transmit(&mut self, now: Instant, mut send: impl FnMut(&[u8]) -> bool) {
        let mut frame = std::mem::take(&mut self.frame);
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        numbers.extend(self.ports.keys());
        for &number in &numbers {
            let Some(mut endpoint) = self.ports.remove(&number) else {
                continue;
            };
            self.work(&mut endpoint, now);
            'peers: for index in 0..endpoint.indices() {
                while let Some(peer) = endpoint.peer(index) {
                    let mac = peer.transport.mac;
                    let Some((header, records)) = peer.transport.transmit(now) else {
                        break;
                    };
                    self.counters.sent += 1;
                    if !emit(&header, self.mac, mac, records, &mut frame, &mut send) {
                        break 'peers;
                    }
                    // What was acknowledged or sent may have made room.
                    endpoint.pump(index);
                }
            }
            self.ports.insert(number, endpoint);
        }
        while let Some((header, mac)) = self.answers.pop_front() {
            self.counters.sent += 1;
            if !emit(&header, self.mac, mac, &[], &mut frame, &mut send) {
                break;
            }
        }
        (self.frame, self.numbers) = (frame, numbers);
    }

    /// When [`Node::transmit`] is to be called though nothing happens.
    pub fn deadline(&mut self) -> Instant {
        let mut deadline = Instant::NEVER;
        for endpoint in self.ports.values_mut() {
            deadline = deadline.min(endpoint.deadline());
            for index in 0..endpoint.indices() {
                if let Some(peer) = endpoint.peer(index) {
                    deadline = deadline.min(peer.transport.deadline());
                }
            }
        }
        deadline
    }
}

fn emit(
    header: &Header,
    src: Mac,
    dst: Mac,
    records: &[u8],
    frame: &mut Vec<u8>,
    send: &mut impl FnMut(&[u8]) -> bool,
) -> bool {
    let link = ethernet::Header {
        dst,
        src,
        ethertype: ETHERTYPE,
    };
    frame.clear();
    header.emit(link, records, frame);
    send(frame)
}
