//! What happened, counted.

/// Counts since the start. Each has one writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub frames: u64,
    /// Frames handed on as they were.
    pub passed: u64,
    /// Segments that were held, and so went into units.
    pub segments: u64,
    /// Payload bytes of these.
    pub segment_bytes: u64,
    /// Units handed on, of one segment or more.
    pub units: u64,
    /// Frames dropped for a wrong IP checksum.
    pub bad_ip_checksum: u64,
    /// Frames dropped for a wrong TCP checksum.
    pub bad_tcp_checksum: u64,
    /// Segments that came out of order and were put where they belong.
    pub reordered: u64,
    /// Segments dropped because all of their bytes are held already.
    pub duplicates: u64,
    /// Segments of which a part was cut off because it is held already.
    pub trimmed: u64,
    /// Segments of bytes that were handed on before, or far from what is expected: passed as they
    /// are.
    pub unexpected: u64,
    /// Acknowledgements sent for the host.
    pub active_acks: u64,
    /// Acknowledgements of the host that said less than those, and were dropped.
    pub acks_suppressed: u64,
    /// Units given to the host again because it asked, by acknowledging the same three times.
    pub given_again_asked: u64,
    /// ... because it acknowledged nothing for too long.
    pub given_again_timeout: u64,
    /// Flows taken up.
    pub flows_created: u64,
    /// Flows dropped because the table was full.
    pub flows_evicted: u64,
    /// Flows dropped because nothing came.
    pub flows_aged: u64,
    /// Units handed on because they were full.
    pub flush_full: u64,
    /// ... because the sender pushed.
    pub flush_push: u64,
    /// ... because the burst had ended and waiting would have been delay.
    pub flush_burst: u64,
    /// ... because nothing came for some intervals.
    pub flush_timeout: u64,
    /// ... because they were held for as long as any is, though their flow went on.
    pub flush_held: u64,
    /// ... because a hole was not filled in time.
    pub flush_hole: u64,
    /// ... because a frame of the flow that is not held comes after them.
    pub flush_order: u64,
    /// ... because buffers or descriptors ran out.
    pub flush_pressure: u64,
}

impl Counters {
    /// Adds what another counted.
    pub fn add(&mut self, other: &Counters) {
        for ((_, own), (_, other)) in self.fields_mut().into_iter().zip(other.fields()) {
            *own += other;
        }
    }

    /// Every count with its name.
    pub fn fields(&self) -> [(&'static str, u64); 26] {
        let mut copy = *self;
        copy.fields_mut().map(|(name, value)| (name, *value))
    }

    fn fields_mut(&mut self) -> [(&'static str, &mut u64); 26] {
        [
            ("frames", &mut self.frames),
            ("passed", &mut self.passed),
            ("segments", &mut self.segments),
            ("segment_bytes", &mut self.segment_bytes),
            ("units", &mut self.units),
            ("bad_ip_checksum", &mut self.bad_ip_checksum),
            ("bad_tcp_checksum", &mut self.bad_tcp_checksum),
            ("reordered", &mut self.reordered),
            ("duplicates", &mut self.duplicates),
            ("trimmed", &mut self.trimmed),
            ("unexpected", &mut self.unexpected),
            ("active_acks", &mut self.active_acks),
            ("acks_suppressed", &mut self.acks_suppressed),
            ("given_again_asked", &mut self.given_again_asked),
            ("given_again_timeout", &mut self.given_again_timeout),
            ("flows_created", &mut self.flows_created),
            ("flows_evicted", &mut self.flows_evicted),
            ("flows_aged", &mut self.flows_aged),
            ("flush_full", &mut self.flush_full),
            ("flush_push", &mut self.flush_push),
            ("flush_burst", &mut self.flush_burst),
            ("flush_timeout", &mut self.flush_timeout),
            ("flush_held", &mut self.flush_held),
            ("flush_hole", &mut self.flush_hole),
            ("flush_order", &mut self.flush_order),
            ("flush_pressure", &mut self.flush_pressure),
        ]
    }
}

/// Why what is held of a flow is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Full,
    Push,
    Burst,
    Timeout,
    Held,
    Hole,
    Order,
    Pressure,
}

impl Counters {
    /// Counts a flush.
    pub(crate) fn flushed(&mut self, cause: Cause) {
        *match cause {
            Cause::Full => &mut self.flush_full,
            Cause::Push => &mut self.flush_push,
            Cause::Burst => &mut self.flush_burst,
            Cause::Timeout => &mut self.flush_timeout,
            Cause::Held => &mut self.flush_held,
            Cause::Hole => &mut self.flush_hole,
            Cause::Order => &mut self.flush_order,
            Cause::Pressure => &mut self.flush_pressure,
        } += 1;
    }
}
