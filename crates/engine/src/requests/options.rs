//! Socket options, as programs set and get them.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use libc::{ENODATA, ENOPROTOOPT, ENOTCONN};
use millrace_context::Submission;
use millrace_context::submission::Query;
use millrace_shard::{Buffers, Device, Opt, OptName, Options, Reuse};
use millrace_sockopt::{Sockets, VALUE_MAX, WORDS};

use crate::requests::outcome::{Outcome, done, to_outcome};

/// The option of a request, with its value. The shim has checked it; the engine checks it again.
pub(crate) fn parse(number: u32, arguments: &[u64; 6]) -> Result<Opt, i32> {
    let name = OptName::from_number(number).ok_or(ENOPROTOOPT)?;
    if name.row().told == Sockets::empty() {
        return Err(ENOPROTOOPT);
    }
    let words: &[u64; WORDS] = arguments.first_chunk().unwrap_or(&[0; WORDS]);
    Opt::from_words(name, words)
}

/// The value of an option in the form of getsockopt.
pub(crate) fn encode(opt: Opt) -> Vec<u8> {
    let mut bytes = [0; VALUE_MAX];
    let len = opt.encode(&mut bytes);
    bytes[..len].to_vec()
}

/// The options that were set before there was a socket.
pub(crate) fn collect(set: &[Opt], buffers: &Buffers) -> Options {
    let mut options = Options::default();
    for opt in set {
        // A socket would have refused the same values.
        let _ = options.set(*opt, buffers.send_max, buffers.receive_max);
    }
    options
}

/// The options of a socket that a bind with these flags sets.
pub(crate) fn of_bind(flags: u64) -> Options {
    Options {
        reuse: Reuse {
            address: flags & 1 != 0,
            port: flags & 2 != 0,
        },
        v6_only: flags & 4 != 0,
        device: match flags >> 3 & 3 {
            1 => Device::Link,
            2 => Device::Loopback,
            _ => Device::Any,
        },
        ..Options::default()
    }
}

impl ShardServer {
    pub(crate) fn set_option(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        let opt = parse(submission.parameter, &submission.arguments)?;
        let entry = &mut self.program(place.program).entries[place.slot];
        let replicated = entry.replicated;
        if opt.name() == OptName::FastOpenKeys {
            // The keys belong to the listener, which may listen later or again.
            entry.set_option(opt);
        }
        match entry.socket {
            Some(id) => {
                if replicated {
                    self.set_option_elsewhere(place, opt);
                }
                self.mark_changed(place);
                to_outcome(self.shard.set_option(id, opt, self.now))
            }
            None => {
                entry.set_option(opt);
                done()
            }
        }
    }

    pub(crate) fn get_option(&mut self, place: ProgramSlot, submission: &Submission) -> Outcome {
        if let Some(query) = Query::from_number(submission.parameter) {
            return self.query(place, query);
        }
        let name = OptName::from_number(submission.parameter).ok_or(ENOPROTOOPT)?;
        let entry = &self.program(place.program).entries[place.slot];
        let set = entry.options().iter().find(|opt| opt.name() == name);
        if name == OptName::FastOpenKeys {
            return Ok((0, set.map_or_else(Vec::new, |keys| encode(*keys))));
        }
        let Some(id) = entry.socket else {
            return self.option_before(place, name);
        };
        let opt = self.shard.option(id, name);
        Ok((0, encode(opt.map_err(|error| error.errno())?)))
    }

    /// An option of a slot that has no socket yet. `ENODATA`: the shim knows the value itself.
    fn option_before(&mut self, place: ProgramSlot, name: OptName) -> Outcome {
        let config = self.shard.config();
        let (buffers, congestion) = (config.buffers, config.tcp.congestion);
        let entry = &self.program(place.program).entries[place.slot];
        let set = entry.options();
        let opt = match name {
            OptName::ReceiveLowWater => {
                let options = collect(set, &buffers);
                Some(Opt::ReceiveLowWater(options.receive_low.max(1)))
            }
            _ => set.iter().find(|opt| opt.name() == name).copied(),
        };
        let engines = || (name == OptName::Congestion).then_some(Opt::Congestion(congestion));
        opt.or_else(engines)
            .map(|opt| (0, encode(opt)))
            .ok_or(ENODATA)
    }

    fn query(&mut self, place: ProgramSlot, query: Query) -> Outcome {
        let entry = &self.program(place.program).entries[place.slot];
        let id = entry.socket.ok_or(ENOTCONN)?;
        let int = match query {
            Query::Info => {
                let info = self.shard.linux_tcp_info(id, self.now);
                return Ok((0, info.map_err(|error| error.errno())?.to_vec()));
            }
            Query::Mtu => {
                let mtu = self.shard.path_mtu(id, self.now);
                i32::from(mtu.map_err(|error| error.errno())?)
            }
            Query::OutQueue => {
                let view = self.shard.view(id);
                view.map_or(0, |view| (view.queued - view.acked) as i32)
            }
            Query::OutQueueUnsent => {
                let info = self.shard.tcp_info(id, self.now);
                info.map_or(0, |info| info.unsent as i32)
            }
        };
        Ok((0, int.to_ne_bytes().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalive_times_may_come_after_it_is_switched_on() {
        let set = [Opt::KeepAlive(true), Opt::KeepIdle(7), Opt::KeepCount(3)];
        let options = collect(&set, &Buffers::default());
        let keepalive = options.tcp.keepalive.unwrap();
        assert_eq!((keepalive.idle_s, keepalive.probes), (7, 3));
    }

    #[test]
    fn what_a_program_may_not_say_is_refused() {
        let said = |opt: Opt, words: [u64; 6]| parse(opt.name().number(), &words);
        let int = |value: u64| [4, value, 0, 0, 0, 0];
        assert_eq!(said(Opt::KeepCount(1), int(127)), Ok(Opt::KeepCount(127)));
        assert_eq!(said(Opt::KeepCount(1), int(128)), Err(libc::EINVAL));
        assert_eq!(
            said(Opt::KeepCount(1), [33, 1, 0, 0, 0, 0]),
            Err(libc::EINVAL)
        );
        assert_eq!(said(Opt::KeepCount(1), [u64::MAX; 6]), Err(libc::EINVAL));
        // The shim keeps this option, and the shard does not know it.
        assert_eq!(said(Opt::PacketInfo(true), int(1)), Err(ENOPROTOOPT));
        assert_eq!(parse(u32::MAX, &int(1)), Err(ENOPROTOOPT));
        assert_eq!(parse(Query::Info as u32, &int(1)), Err(ENOPROTOOPT));
    }
}
