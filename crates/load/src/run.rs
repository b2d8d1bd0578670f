//! A run: the shards, their clock, and what they tell.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use millrace::{Builder, Link, LinkOptions, LinkSpec, Stack};
use rustix::thread::set_current_timer_slack;

use crate::machine::Sample;
use crate::peer;
use crate::plan::{Error, Plan};
use crate::tally::{Progress, Report, Tally, Took};
use crate::work::Work;

/// Between two looks at how it goes.
const STEP: Duration = Duration::from_secs(1);

/// What a shard tells.
enum Told {
    /// What the warm-up came to.
    Warm(Tally),
    /// What this second came to; all before it belongs to the total.
    Second(Tally),
    /// What the end of the last second came to, and what had not begun.
    Last(Tally, u64),
}

/// Does what is planned; `progress` hears of it once a second.
///
/// # Errors
/// What does not fit, what does not open, and [`Error::Silence`] when nothing has come of the
/// warm-up but failures, or of the whole run nothing at all.
pub fn run(plan: &Plan, mut progress: impl FnMut(Progress)) -> Result<Report, Error> {
    check(plan)?;
    let shared = Arc::new(plan.clone());
    if plan.link == LinkSpec::Pair {
        return in_memory(&shared, &mut progress);
    }
    let mut options = LinkOptions::new().queues(plan.shards).mtu(plan.mtu);
    options.hosts = plan.hosts.clone();
    on_device(&shared, Link::open(&plan.link, &options)?, &mut progress)
}

fn check(plan: &Plan) -> Result<(), Error> {
    let target = plan.target.address;
    let other = |(address, _): &&(std::net::IpAddr, u8)| address.is_ipv4() != target.is_ipv4();
    if let Some(&(address, _)) = plan.addresses.iter().find(other) {
        return Err(Error::Family { target, address });
    }
    if plan.connections < u32::from(plan.shards) {
        return Err(Error::Connections {
            connections: plan.connections,
            shards: plan.shards,
        });
    }
    if plan.link == LinkSpec::Pair && plan.shards != 1 {
        return Err(Error::Pair(plan.shards));
    }
    if plan.rate.is_some() && plan.workload.is_bulk() {
        return Err(Error::Rate(plan.workload.name()));
    }
    Ok(())
}

fn builder(plan: &Plan, link: Link) -> Builder {
    let mut builder = Builder::new().link(link);
    for &(address, bits) in &plan.addresses {
        builder = builder.address(address, bits);
    }
    match plan.gateway {
        Some(gateway) => builder.gateway(gateway),
        None => builder,
    }
}

/// On threads of its own, one for each shard.
fn on_device(
    plan: &Arc<Plan>,
    link: Link,
    progress: &mut impl FnMut(Progress),
) -> Result<Report, Error> {
    let (tell, told) = channel();
    let shared = plan.clone();
    let engine = builder(plan, link).start(plan.shards, move |stack, shard| {
        let work = Work::new(&shared, &stack, shard as u32);
        shard_main(stack, work, shared.clone(), tell.clone())
    })?;
    let mut gathered = Gathered::new(plan);
    gathered.take_all(&told, progress)?;
    drop(engine);
    gathered.report()
}

/// Both ends on this thread.
fn in_memory(plan: &Arc<Plan>, progress: &mut impl FnMut(Progress)) -> Result<Report, Error> {
    let (ours, theirs) = Link::pair(plan.mtu);
    let server = peer::serve(theirs, plan)?;
    let stack = builder(plan, ours).build()?;
    let (tell, told) = channel();
    let work = Work::new(plan, &stack, 0);
    stack.spawn(shard_main(stack.clone(), work, plan.clone(), tell));
    let mut gathered = Gathered::new(plan);
    while !gathered.is_over() {
        if stack.poll() + server.poll() == 0 {
            // Only an open loop has nothing to do at times.
            std::thread::yield_now();
        }
        while let Ok(news) = told.try_recv() {
            gathered.take(news, progress)?;
        }
    }
    // They hold their stacks, and so each other.
    stack.cancel_tasks();
    server.cancel_tasks();
    gathered.report()
}

/// Warms up, and tells what each second comes to.
async fn shard_main(stack: Stack, work: std::rc::Rc<Work>, plan: Arc<Plan>, tell: Sender<Told>) {
    if plan.rate.is_some() {
        // Operations begin at their times, and not up to 50 us later as the kernel would have it.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
    // Nobody hears it any more when the run has failed.
    work.begin().await;
    let take = || std::mem::replace(&mut *work.tally.borrow_mut(), Tally::new());
    stack.sleep(plan.warm_up).await;
    let _ = tell.send(Told::Warm(take()));
    work.restart();
    let start = Instant::now();
    loop {
        let left = plan.duration.saturating_sub(start.elapsed());
        stack.sleep(left.min(STEP)).await;
        if start.elapsed() >= plan.duration {
            let errors = stack.link_errors();
            let last = Tally {
                dropped: [errors.receive_dropped, errors.send_dropped],
                ..take()
            };
            let _ = tell.send(Told::Last(last, work.overdue()));
            return;
        }
        let _ = tell.send(Told::Second(take()));
    }
}

/// When it began to count, and what had been used until then.
struct Start {
    at: Instant,
    cpu_seconds: f64,
    /// Of all cores; none where the kernel does not tell.
    machine: Option<Sample>,
}

impl Start {
    fn now() -> Start {
        Start {
            at: Instant::now(),
            cpu_seconds: cpu_seconds(),
            machine: Sample::take().ok(),
        }
    }
}

/// What the shards have told.
struct Gathered<'a> {
    plan: &'a Plan,
    warm: Tally,
    second: Tally,
    total: Tally,
    /// Shards that have told of their warm-up, of this second, of the last.
    told: [u16; 3],
    overdue: u64,
    start: Start,
}

impl Gathered<'_> {
    fn new(plan: &Plan) -> Gathered<'_> {
        Gathered {
            plan,
            warm: Tally::new(),
            second: Tally::new(),
            total: Tally::new(),
            told: [0; 3],
            overdue: 0,
            start: Start::now(),
        }
    }

    /// Takes all that the shards tell. One that has panicked tells nothing any more.
    fn take_all(
        &mut self,
        told: &Receiver<Told>,
        progress: &mut impl FnMut(Progress),
    ) -> Result<(), Error> {
        while !self.is_over() {
            self.take(told.recv().map_err(|_| Error::Shard)?, progress)?;
        }
        Ok(())
    }

    /// Whether all have told the last.
    fn is_over(&self) -> bool {
        self.told[2] == self.plan.shards
    }

    fn take(&mut self, news: Told, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        let all = self.plan.shards;
        match news {
            Told::Warm(tally) => {
                self.warm.add(&tally);
                self.told[0] += 1;
                if self.told[0] == all {
                    if self.warm.is_silent() && self.warm.worst().is_some() {
                        return Err(silence(self.plan, &self.warm));
                    }
                    progress(Progress::of(&self.warm, None));
                    self.start = Start::now();
                }
            }
            Told::Second(tally) => {
                self.second.add(&tally);
                self.told[1] += 1;
                if self.told[1] == all {
                    let seconds = self.start.at.elapsed().as_secs_f64();
                    progress(Progress::of(&self.second, Some(seconds)));
                    self.total.add(&self.second);
                    (self.second, self.told[1]) = (Tally::new(), 0);
                }
            }
            Told::Last(tally, overdue) => {
                self.total.add(&tally);
                self.overdue += overdue;
                self.told[2] += 1;
            }
        }
        Ok(())
    }

    fn report(mut self) -> Result<Report, Error> {
        self.total.add(&self.second);
        if self.total.is_silent() {
            return Err(silence(self.plan, &self.total));
        }
        let Start {
            at,
            cpu_seconds: before,
            machine,
        } = self.start;
        let took = Took {
            seconds: at.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() - before,
            machine: machine.and_then(|before| before.until_now().ok()),
        };
        Ok(Report::new(self.plan, self.total, took, self.overdue))
    }
}

fn silence(plan: &Plan, tally: &Tally) -> Error {
    let (why, next) = match tally.worst() {
        Some((why, count)) => (
            format!("{why} ({count} times)"),
            match why {
                "connection refused" => "is a server listening there?",
                "no answer in time" => {
                    "does the server have a way back to the addresses of this generator?"
                }
                _ => "does the server speak what this workload speaks?",
            },
        ),
        None => (
            format!("not a word in {:.1} s", plan.duration.as_secs_f64()),
            "is it on this link, and does it have a way back to the addresses of this generator?",
        ),
    };
    Error::Silence {
        target: plan.target.address,
        why,
        next,
    }
}

/// CPU that this process has used, the kernel's for it included.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Workload;

    #[test]
    fn a_shard_that_ends_early_ends_the_run() {
        let mut plan = Plan::new(Workload::Pingpong, "10.0.0.1:7".parse().expect("a target"));
        plan.shards = 2;
        let (tell, told) = channel();
        let other = tell.clone();
        other.send(Told::Warm(Tally::new())).expect("heard");
        drop(other);
        for news in [Told::Warm(Tally::new()), Told::Last(Tally::new(), 0)] {
            tell.send(news).expect("heard");
        }
        drop(tell);
        let mut gathered = Gathered::new(&plan);
        let outcome = gathered.take_all(&told, &mut |_| {});
        assert!(matches!(outcome, Err(Error::Shard)), "{outcome:?}");
    }
}
