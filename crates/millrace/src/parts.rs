//! The stacks of one engine, each for whichever thread takes it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use millrace_shard::{ConflictDetection, Groups, Hash, Steer};

use crate::build_error::{BuildError, refused};
use crate::builder::{Builder, random, waiting};
use crate::core::Clock;
use crate::link::Link;
use crate::peers::Peers;
use crate::plan::{Plan, Ready};
use crate::stack::Stack;
use crate::tasks::Remote;

/// One shard of several, before it runs: give it to its thread, which makes a [`Stack`] of it.
///
/// ```
/// let mut parts = millrace::Builder::new().parts(1)?;
/// let mut part = parts.pop().expect("there is one");
/// // Descriptors are opened here; nothing can fail where it is taken.
/// part.prepare()?;
/// let thread = std::thread::spawn(|| part.stack().map(drop));
/// thread.join().expect("it does not panic")?;
/// # Ok::<(), millrace::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Part {
    links: Vec<Ready>,
    clock: Clock,
    pub(crate) remote: Arc<Remote>,
    /// What the stack will wait with, once [`Part::prepare`] has opened it.
    epoll: Option<OwnedFd>,
}

impl Builder {
    /// The stacks of `shards` shards (1 to 64) that share the links' addresses, for threads of the
    /// caller's; [`Builder::start`] has them on threads of its own. Each link needs a queue for
    /// each; limits are shared out. Every one of them has to run: what is meant for one that does
    /// not is lost.
    ///
    /// ```
    /// let parts = millrace::Builder::new().parts(2)?;
    /// std::thread::scope(|scope| {
    ///     for part in parts {
    ///         scope.spawn(|| {
    ///             let stack = part.stack().expect("descriptors to wait with");
    ///             assert!(millrace::TcpListener::bind(&stack, "127.0.0.1:80").is_ok());
    ///         });
    ///     }
    /// });
    /// # Ok::<(), millrace::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::build`], and [`BuildError::Queues`].
    pub fn parts(self, shards: u16) -> Result<Vec<Part>, BuildError> {
        let fits = |plan: &Plan| match plan.link.queues() {
            0 => !plan.link.is_manual() || shards == 1,
            queues => queues == usize::from(shards),
        };
        let unfit = match shards {
            1..=64 => self.plans.iter().find(|plan| !fits(plan)),
            _ => self.plans.first(),
        };
        if let Some(Plan { link, .. }) = unfit {
            let queues = link.queues();
            return Err(BuildError::Queues { shards, queues });
        }
        let configs = self.configs(shards)?;
        let memory = self.receive_memory_of(shards);
        let keys: [[u8; 8]; 3] = [
            random().map_err(refused("cannot get random bytes"))?,
            random().map_err(refused("cannot get random bytes"))?,
            random().map_err(refused("cannot get random bytes"))?,
        ];
        let [one, two, three] = keys.map(u64::from_ne_bytes);
        let hash = Hash::Keyed([one, two, three | 1]);
        let clock = self.clock();
        let remotes: Result<Vec<_>, _> = (0..shards).map(|_| Remote::new()).collect();
        let remotes = remotes.map_err(refused("cannot make a doorbell"))?;
        let part = |remote: &Arc<Remote>| Part {
            links: Vec::with_capacity(configs.len()),
            clock,
            remote: remote.clone(),
            epoll: None,
        };
        let mut parts: Vec<Part> = remotes.iter().map(part).collect();
        for (plan, config) in self.plans.into_iter().zip(configs) {
            let mut links: Vec<Link> = match shards {
                1 => vec![plan.link],
                _ => plan.link.split().collect(),
            };
            links.resize_with(shards.into(), Link::none);
            let peers = Peers::mesh(&remotes);
            for (own, ((part, link), peers)) in (0..).zip(parts.iter_mut().zip(links).zip(peers)) {
                let mut config = config.clone();
                config.steer = (shards > 1).then(|| Steer {
                    own,
                    hash: hash.clone(),
                    groups: Groups::even(shards),
                });
                // One speaks for all.
                if own > 0 {
                    config.conflict_detection = ConflictDetection::Nothing;
                }
                part.links.push(Ready {
                    config,
                    memory,
                    link,
                    peers: Some(peers).filter(|_| shards > 1),
                });
            }
        }
        Ok(parts)
    }
}

impl Part {
    /// Opens the descriptor that the stack will wait with: after that [`Part::stack`] cannot fail.
    /// A part that could not be prepared is as it was, and may be later.
    ///
    /// ```
    /// let mut parts = millrace::Builder::new().parts(2)?;
    /// for part in &mut parts {
    ///     part.prepare()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::System`]: `EMFILE`, `ENFILE`.
    pub fn prepare(&mut self) -> Result<(), BuildError> {
        if self.epoll.is_none() {
            self.epoll = Some(waiting(&self.remote)?);
        }
        Ok(())
    }

    /// The stack, on this thread from now on.
    ///
    /// ```
    /// for part in millrace::Builder::new().parts(1)? {
    ///     let stack = part.stack()?;
    ///     assert!(millrace::TcpListener::bind(&stack, "127.0.0.1:80").is_ok());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Part::prepare`].
    pub fn stack(mut self) -> Result<Stack, BuildError> {
        let epoll = match self.epoll.take() {
            Some(epoll) => epoll,
            None => waiting(&self.remote)?,
        };
        Ok(Stack::new(self.links, self.clock, self.remote, epoll))
    }
}
