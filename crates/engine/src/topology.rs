//! The threads of an engine, and the core of each.

use std::fmt::Write as _;

use millrace_context::layout::SHARDS_MAX;
use millrace_steer::Policy;

pub use crate::config::Topology;

use crate::config::Config;
use crate::start::affinity;

/// Why such threads are not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// I/O threads were asked for without a pipeline.
    #[error(
        "--io-threads belong to a pipeline, and --topology rtc has none: leave one of the two out"
    )]
    NoPipeline,
    /// No I/O threads, or too many.
    #[error("{0} I/O threads were asked for; a pipeline has 1 to {SHARDS_MAX}")]
    IoThreads(u16),
    /// Room for more shards takes a pipeline, whose I/O threads steer by buckets.
    #[error(
        "--shards-max is for a pipeline, where I/O threads say which shard a new flow goes to: it needs a --link, and neither --topology rtc nor mixed"
    )]
    NoRoom,
    /// Balance takes a pipeline, whose I/O threads steer by buckets.
    #[error(
        "--balance is for a pipeline, where I/O threads say which shard a flow goes to: it needs a --link, and neither --topology rtc nor mixed"
    )]
    NoBalance,
    /// A mixed topology takes shards of both kinds.
    #[error(
        "--topology mixed takes two --shards at least, one with a queue of the device and one without, and a device with more queues than I/O threads ({0}): take --topology auto"
    )]
    NotMixed(u16),
    /// An order of virtual queues was asked for, and there are no such queues.
    #[error(
        "{flag} {order} is for a pipeline, and here the shards own the device's queues: give --topology pipeline, or leave {flag} out"
    )]
    NoQueues {
        /// The flag that asks for it.
        flag: &'static str,
        /// The order.
        order: String,
    },
    /// I/O threads take a device.
    #[error("I/O threads own queues of a device, and there is none without --link: leave them out")]
    NoLink,
    /// There are more I/O threads than queues.
    #[error(
        "{io_threads} I/O threads want a queue of the device each, and {queues} are in use there: take --io-threads {queues}"
    )]
    TooFewQueues {
        /// Threads that were asked for.
        io_threads: u16,
        /// Queues that are used.
        queues: u16,
    },
    /// A core that the process may not use, or that does not exist.
    #[error("--cores names core {core}; this process may use {usable}")]
    Core {
        /// The number of the core.
        core: usize,
        /// The cores that the process may use.
        usable: String,
    },
    /// The same core twice.
    #[error("--cores names core {0} twice")]
    Twice(usize),
    /// There are fewer cores than threads.
    #[error(
        "--cores names {cores} for {threads} threads ({what}): name {threads}, or leave it out and they take turns"
    )]
    TooFewCores {
        /// Cores that were named.
        cores: usize,
        /// Threads of the engine.
        threads: usize,
        /// The kinds of threads.
        what: String,
    },
}

/// The threads that were asked for.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    topology: Topology,
    shards: u16,
    /// Further shards, which serve when `millrace scale` says so.
    more: u16,
    /// Whether flows move between shards for balance.
    balance: bool,
    io_threads: Option<u16>,
    /// Cores of I/O threads, then of shards, then of programs. Empty: none were named.
    cores: &'a [usize],
}

/// What the machine has.
#[derive(Clone, Copy, Debug)]
struct Machine<'a> {
    /// Queues of the device. None: there is no link. [`u16::MAX`]: as many are made as are wanted.
    queues: Option<u16>,
    /// The cores that the process may use.
    cores: &'a [usize],
}

/// The threads of an engine and their cores. None: the thread may run on any core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The core of each I/O thread. Empty: the shards own the queues.
    pub(crate) io: Vec<Option<usize>>,
    /// How many of the first shards own queues beside the I/O threads.
    pub(crate) owners: u16,
    /// The core of each shard.
    pub(crate) shards: Vec<Option<usize>>,
    /// Notes for the user.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// How many ports of the device are opened for `shards` shards.
    pub(crate) fn ports(&self, shards: u16) -> u16 {
        match self.io.len() as u16 {
            0 => shards,
            io => self.owners + io,
        }
    }
}

/// The threads of an engine with this configuration, on this machine.
pub(crate) fn of(config: &Config) -> Result<Plan, Error> {
    let asked = Asked {
        topology: config.topology,
        shards: config.shards,
        more: config.room() - config.shards,
        balance: config.balance,
        io_threads: config.io_threads,
        cores: &config.cores,
    };
    let machine = Machine {
        queues: queues(config),
        cores: &affinity::cores(),
    };
    let plan = plan(asked, machine)?;
    let orders = [
        ("--schedule", &config.shard_schedule),
        ("--io-schedule", &config.io_schedule),
    ];
    let default = Policy::default().to_string();
    match orders.into_iter().find(|(_, order)| **order != default) {
        Some((flag, order)) if plan.io.is_empty() => Err(Error::NoQueues {
            flag,
            order: order.clone(),
        }),
        _ => Ok(plan),
    }
}

/// The cores that are left for programs. Empty: programs may run on any core.
///
/// # Errors
/// The engine could not start either.
pub fn cores_of_programs(config: &Config) -> Result<Vec<usize>, Error> {
    let plan = of(config)?;
    let threads = plan.io.len() + plan.shards.len();
    Ok(config.cores.iter().skip(threads).copied().collect())
}

/// The queues of the device. None: there is no link. Most kinds of link make as many as are wanted.
fn queues(config: &Config) -> Option<u16> {
    let link = config.link.as_ref()?;
    Some(link.device.queues().unwrap_or(u16::MAX))
}

/// The threads for what was asked for, on a given machine.
fn plan(asked: Asked<'_>, machine: Machine<'_>) -> Result<Plan, Error> {
    let mut notes = Vec::new();
    let io = io_threads(asked, machine, &mut notes)?;
    let room = asked.shards + asked.more;
    let shards = usize::from(room);
    let threads = usize::from(io) + shards;
    let what = name(io, room);
    let cores: Vec<Option<usize>> = if asked.cores.is_empty() {
        if threads > 1 && threads > machine.cores.len() {
            notes.push(format!(
                "{what} on {} cores: they take turns, which is slower than fewer of them",
                machine.cores.len()
            ));
        }
        // A lone thread follows its program.
        let pinned = threads > 1 && threads <= machine.cores.len();
        let core = |thread: usize| pinned.then(|| machine.cores[thread]);
        (0..threads).map(core).collect()
    } else {
        check(asked.cores, machine.cores)?;
        if asked.cores.len() < threads {
            return Err(Error::TooFewCores {
                cores: asked.cores.len(),
                threads,
                what,
            });
        }
        asked
            .cores
            .iter()
            .take(threads)
            .copied()
            .map(Some)
            .collect()
    };
    let (io, shards) = cores.split_at(io.into());
    Ok(Plan {
        owners: owners(asked, machine, io.len() as u16),
        io: io.to_vec(),
        shards: shards.to_vec(),
        notes,
    })
}

/// How many shards own queues beside the I/O threads: all but one, or as many as there are queues
/// left.
fn owners(asked: Asked<'_>, machine: Machine<'_>, io_threads: u16) -> u16 {
    let left = machine.queues.unwrap_or(0).saturating_sub(io_threads);
    match asked.topology {
        Topology::Mixed => left.min(asked.shards - 1),
        _ => 0,
    }
}

/// How many I/O threads there are; 0 if the shards own the queues.
fn io_threads(
    asked: Asked<'_>,
    machine: Machine<'_>,
    notes: &mut Vec<String>,
) -> Result<u16, Error> {
    if let Some(wanted) = asked.io_threads
        && !(1..=SHARDS_MAX).contains(&wanted.into())
    {
        return Err(Error::IoThreads(wanted));
    }
    let wanted = match (asked.topology, asked.io_threads, machine.queues) {
        (Topology::RunToCompletion | Topology::Mixed, ..) | (_, _, None) if asked.more > 0 => {
            return Err(Error::NoRoom);
        }
        (Topology::RunToCompletion | Topology::Mixed, ..) | (_, _, None) if asked.balance => {
            return Err(Error::NoBalance);
        }
        (Topology::RunToCompletion, Some(_), _) => return Err(Error::NoPipeline),
        (Topology::RunToCompletion, None, _) => return Ok(0),
        (Topology::Pipeline | Topology::Mixed, _, None) | (_, Some(_), None) => {
            return Err(Error::NoLink);
        }
        (Topology::Auto, None, None) => return Ok(0),
        (Topology::Auto, None, Some(_)) if asked.more > 0 || asked.balance => 1,
        (Topology::Auto, None, Some(queues)) if queues >= asked.shards => return Ok(0),
        (Topology::Auto, None, Some(queues)) => {
            let spare = machine.cores.len().saturating_sub(asked.shards.into());
            let io = queues.min(spare as u16).max(1);
            notes.push(format!(
                "a pipeline of {}: the device has fewer queues than there are to be shards ({queues})",
                name(io, asked.shards)
            ));
            return Ok(io);
        }
        (_, io_threads, Some(_)) => io_threads.unwrap_or(1),
    };
    match machine.queues {
        Some(queues) if wanted > queues => Err(Error::TooFewQueues {
            io_threads: wanted,
            queues,
        }),
        Some(queues)
            if asked.topology == Topology::Mixed && (queues == wanted || asked.shards < 2) =>
        {
            Err(Error::NotMixed(wanted))
        }
        _ => Ok(wanted),
    }
}

fn check(named: &[usize], usable: &[usize]) -> Result<(), Error> {
    for (at, &core) in named.iter().enumerate() {
        if !usable.contains(&core) {
            return Err(Error::Core {
                core,
                usable: list(usable),
            });
        }
        if named[..at].contains(&core) {
            return Err(Error::Twice(core));
        }
    }
    Ok(())
}

/// For example `2 I/O threads and 4 shards`.
fn name(io: u16, shards: u16) -> String {
    let plural = |count, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    match io {
        0 => plural(shards, "shard"),
        io => format!(
            "{} and {}",
            plural(io, "I/O thread"),
            plural(shards, "shard")
        ),
    }
}

/// For example `0-3,6`, as `--cores` takes it.
fn list(cores: &[usize]) -> String {
    let mut text = String::new();
    for run in cores.chunk_by(|one, next| *next == one + 1) {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = match run {
            [one] => write!(text, "{comma}{one}"),
            run => write!(text, "{comma}{}-{}", run[0], run[run.len() - 1]),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: Option<u16> = Some(u16::MAX);

    fn asked(topology: Topology, shards: u16, io_threads: Option<u16>) -> Asked<'static> {
        Asked {
            topology,
            shards,
            more: 0,
            balance: false,
            io_threads,
            cores: &[],
        }
    }

    /// The threads and notes of a plan for a machine of 4 cores.
    fn threads(asked: Asked<'_>, queues: Option<u16>) -> Result<(usize, usize, usize), Error> {
        let machine = Machine {
            queues,
            cores: &[0, 1, 2, 3],
        };
        let plan = plan(asked, machine)?;
        Ok((plan.io.len(), plan.shards.len(), plan.notes.len()))
    }

    #[test]
    fn shards_own_the_queues_where_there_are_enough() {
        use Topology::{Auto, RunToCompletion};
        assert_eq!(threads(asked(Auto, 4, None), MANY), Ok((0, 4, 0)));
        assert_eq!(threads(asked(Auto, 4, None), Some(4)), Ok((0, 4, 0)));
        assert_eq!(threads(asked(Auto, 4, None), None), Ok((0, 4, 0)));
        assert_eq!(
            threads(asked(RunToCompletion, 4, None), Some(1)),
            Ok((0, 4, 0))
        );
    }

    #[test]
    fn a_pipeline_comes_by_its_name_by_its_threads_or_for_want_of_queues() {
        use Topology::{Auto, Pipeline};
        assert_eq!(threads(asked(Pipeline, 2, None), MANY), Ok((1, 2, 0)));
        assert_eq!(threads(asked(Pipeline, 2, Some(2)), MANY), Ok((2, 2, 0)));
        assert_eq!(threads(asked(Auto, 2, Some(2)), MANY), Ok((2, 2, 0)));
        assert_eq!(
            threads(asked(Auto, 2, None), Some(1)),
            Ok((1, 2, 1)),
            "and is told"
        );
        assert_eq!(
            threads(asked(Auto, 3, None), Some(2)),
            Ok((1, 3, 1)),
            "for cores"
        );
        assert_eq!(
            threads(asked(Auto, 4, None), Some(2)),
            Ok((1, 4, 2)),
            "and that it has too few cores"
        );
    }

    #[test]
    fn shards_of_a_mixed_engine_own_the_queues_that_are_left() {
        use Topology::{Auto, Mixed, Pipeline};
        let owners = |asked, queues| {
            let machine = Machine {
                queues,
                cores: &[0, 1, 2, 3],
            };
            plan(asked, machine).map(|plan| (plan.io.len(), plan.owners, plan.shards.len()))
        };
        for (shards, io_threads, queues, expected) in [
            (2, None, MANY, (1, 1, 2)),
            (3, None, Some(2), (1, 1, 3)),
            (3, None, Some(8), (1, 2, 3)),
            (4, Some(2), Some(3), (2, 1, 4)),
            (4, Some(2), Some(4), (2, 2, 4)),
        ] {
            let asked = asked(Mixed, shards, io_threads);
            assert_eq!(owners(asked, queues), Ok(expected), "{asked:?} {queues:?}");
        }
        for topology in [Auto, Pipeline] {
            let (_, owners, _) = owners(asked(topology, 3, None), Some(2)).unwrap();
            assert_eq!(owners, 0, "{topology:?}");
        }
        let refused = |io_threads| Err(Error::NotMixed(io_threads));
        assert_eq!(owners(asked(Mixed, 3, None), Some(1)), refused(1));
        assert_eq!(owners(asked(Mixed, 3, Some(2)), Some(2)), refused(2));
        assert_eq!(owners(asked(Mixed, 1, None), Some(2)), refused(1));
        assert_eq!(owners(asked(Mixed, 2, None), None), Err(Error::NoLink));
        let more = Asked {
            more: 1,
            ..asked(Mixed, 2, None)
        };
        assert_eq!(owners(more, MANY), Err(Error::NoRoom));
        let balanced = Asked {
            balance: true,
            ..asked(Mixed, 2, None)
        };
        assert_eq!(owners(balanced, MANY), Err(Error::NoBalance));
    }

    #[test]
    fn room_for_more_shards_makes_a_pipeline() {
        use Topology::{Auto, Pipeline, RunToCompletion};
        let room = |topology| Asked {
            more: 2,
            ..asked(topology, 1, None)
        };
        assert_eq!(threads(room(Auto), MANY), Ok((1, 3, 0)));
        assert_eq!(threads(room(Pipeline), Some(1)), Ok((1, 3, 0)));
        assert_eq!(threads(room(RunToCompletion), MANY), Err(Error::NoRoom));
        assert_eq!(threads(room(Auto), None), Err(Error::NoRoom));
    }

    #[test]
    fn flows_that_move_by_themselves_make_a_pipeline() {
        use Topology::{Auto, Pipeline, RunToCompletion};
        let balanced = |topology| Asked {
            balance: true,
            ..asked(topology, 2, None)
        };
        assert_eq!(threads(balanced(Auto), MANY), Ok((1, 2, 0)));
        assert_eq!(threads(balanced(Pipeline), Some(1)), Ok((1, 2, 0)));
        let refused = Err(Error::NoBalance);
        assert_eq!(threads(balanced(RunToCompletion), MANY), refused);
        assert_eq!(threads(balanced(Auto), None), refused);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        use Topology::{Auto, Pipeline, RunToCompletion};
        assert_eq!(
            threads(asked(RunToCompletion, 1, Some(1)), MANY),
            Err(Error::NoPipeline)
        );
        assert_eq!(threads(asked(Pipeline, 1, None), None), Err(Error::NoLink));
        assert_eq!(threads(asked(Auto, 1, Some(1)), None), Err(Error::NoLink));
        for wrong in [0, 65, u16::MAX] {
            for topology in [Auto, Pipeline] {
                let refused = Err(Error::IoThreads(wrong));
                assert_eq!(threads(asked(topology, 1, Some(wrong)), MANY), refused);
            }
        }
        let few = Error::TooFewQueues {
            io_threads: 3,
            queues: 2,
        };
        assert_eq!(threads(asked(Pipeline, 1, Some(3)), Some(2)), Err(few));
    }

    #[test]
    fn cores_are_given_to_io_threads_first() {
        let cores = |asked| {
            let machine = Machine {
                queues: MANY,
                cores: &[0, 1, 2, 5],
            };
            plan(asked, machine).map(|plan| (plan.io, plan.shards))
        };
        let pipeline = asked(Topology::Pipeline, 2, None);
        let chosen = (vec![Some(0)], vec![Some(1), Some(2)]);
        assert_eq!(cores(pipeline), Ok(chosen));
        let named = |cores| Asked { cores, ..pipeline };
        let chosen = (vec![Some(5)], vec![Some(2), Some(0)]);
        assert_eq!(
            cores(named(&[5, 2, 0, 1])),
            Ok(chosen),
            "the rest is for programs"
        );
        let many = asked(Topology::Pipeline, 4, None);
        assert_eq!(
            cores(many),
            Ok((vec![None], vec![None; 4])),
            "they take turns"
        );
        let lone = asked(Topology::Auto, 1, None);
        assert_eq!(
            cores(lone),
            Ok((vec![], vec![None])),
            "it follows its program"
        );
        let said = |cores_named| cores(named(cores_named)).unwrap_err().to_string();
        assert!(said(&[4, 1, 2]).contains("core 4; this process may use 0-2,5"));
        assert!(said(&[1, 2, 1]).contains("core 1 twice"));
        assert!(said(&[1, 2]).contains("2 for 3 threads (1 I/O thread and 2 shards)"));
    }
}
