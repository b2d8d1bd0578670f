//! How this worker serves what other workers hand over and ask for, and asks them in turn.

use std::sync::mpsc::{self, Sender, TryRecvError};
use std::time::Duration;

use millrace_shard::Error;

use crate::peers::Record;
use crate::peers::request::Request;
use crate::server::ShardServer;

/// Records taken from one ring in one round.
const HANDED_BURST: usize = 64;
/// Polls for an answer before a worker that waits for one sleeps in between.
const POLLS: u32 = 64;
/// How long a worker that waits for an answer sleeps between polls.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

impl ShardServer {
    /// Takes in what other workers have handed over and asked for. Returns how much that was.
    pub(crate) fn take_handed(&mut self) -> usize {
        let Some(peers) = &self.peers else {
            return 0;
        };
        let mut taken = 0;
        for from in 0..peers.shards().end as usize {
            for _ in 0..HANDED_BURST {
                let peers = self.peers.as_deref_mut();
                match peers.and_then(|peers| peers.next_record(from)) {
                    Some(Record::Frame(frame, arrival, forward)) => {
                        self.shard.input_handed(&frame, arrival, self.now);
                        // A frame from a ring is whole.
                        if let Some((misrouted, _)) = self.shard.take_misrouted() {
                            forward.pass(misrouted, &frame, &mut self.counters);
                        }
                    }
                    Some(Record::Accepted(accepted)) => self.queue_accepted_elsewhere(&accepted),
                    None => break,
                }
                taken += 1;
            }
        }
        taken + self.drain_requests()
    }

    /// Takes in the frames that have waited for flows on their way to this shard.
    pub(crate) fn take_awaited(&mut self) {
        let Some(peers) = &mut self.peers else {
            return;
        };
        for (frame, arrival) in peers.take_awaited().iter() {
            self.shard.input_handed(&frame, arrival, self.now);
            if let Some((misrouted, whole)) = self.shard.take_misrouted() {
                peers.pass(misrouted, &frame, whole.as_deref(), &mut self.counters);
            }
        }
    }

    /// Does what the other workers have asked for. Returns how many requests there were.
    pub(crate) fn drain_requests(&mut self) -> usize {
        let mut done = 0;
        while let Some(request) = self.peers.as_ref().and_then(|peers| peers.next_request()) {
            self.serve_peer_request(request);
            done += 1;
        }
        done
    }

    /// Hands to other shards what belongs to them.
    pub(crate) fn send_handed(&mut self) {
        if self.peers.is_some() {
            self.unpin();
        }
        if let Some(peers) = &mut self.peers {
            while let Some((to, bytes)) = self.shard.take_crossing() {
                peers.cross(to, &bytes, &mut self.counters);
                self.shard.return_crossing(bytes);
            }
            peers.flush();
        }
    }

    /// Asks another worker and waits for the answer. Serves the requests of other workers
    /// meanwhile.
    pub(crate) fn ask_peer(
        &mut self,
        shard: u32,
        request: impl FnOnce(Sender<Result<(), Error>>) -> Request,
    ) -> Result<(), Error> {
        // A worker that has ended has no objection.
        self.ask_peer_for(shard, request).unwrap_or(Ok(()))
    }

    /// Asks another worker for an answer of any type. None: the worker has ended.
    pub(crate) fn ask_peer_for<T>(
        &mut self,
        shard: u32,
        request: impl FnOnce(Sender<T>) -> Request,
    ) -> Option<T> {
        let (reply, answer) = mpsc::channel();
        if let Some(peers) = &self.peers {
            peers.tell(shard, request(reply));
        }
        let mut polls = 0;
        loop {
            match answer.try_recv() {
                Ok(outcome) => return Some(outcome),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if self.drain_requests() > 0 {
                continue;
            }
            polls += 1;
            if polls < POLLS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}
