//! What the connections of one shard do.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace::{Stack, TcpOptions, TcpStream};

use crate::http::Answer;
use crate::plan::{Closes, Plan, Workload};
use crate::tally::Tally;

/// After a failure a connection begins again this much later: who refuses is not to be flooded.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// A server that does not answer for so long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are written at a time in bulk.
const PIECE: usize = 256 << 10;
/// Connections that are begun together at the start, a millisecond after those before them.
const TOGETHER: u32 = 64;
/// What messages consist of.
static FILLING: [u8; PIECE] = [b'x'; PIECE];

/// One shard's part.
pub(crate) struct Work {
    plan: Arc<Plan>,
    stack: Stack,
    shard: u32,
    pub(crate) tally: RefCell<Tally>,
    /// Of an open loop: when the first operation is meant to begin, and how many have been given
    /// out since.
    schedule: Cell<(Instant, u64)>,
    request: Vec<u8>,
}

impl Work {
    pub(crate) fn new(plan: &Arc<Plan>, stack: &Stack, shard: u32) -> Rc<Work> {
        let Plan {
            target, keep_alive, ..
        } = &**plan;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\n{}\r\n",
            target.path,
            target.address,
            if *keep_alive {
                ""
            } else {
                "Connection: close\r\n"
            }
        );
        Rc::new(Work {
            plan: plan.clone(),
            stack: stack.clone(),
            shard,
            tally: RefCell::new(Tally::new()),
            schedule: Cell::new((Instant::now(), 0)),
            request: request.into_bytes(),
        })
    }

    /// Waits until the last of the addresses may be used: those of IPv6 are asked for first (RFC
    /// 4862 5.4).
    async fn addresses(&self) {
        let last = self.plan.addresses.last().map(|(last, _)| *last);
        let from = last.map(|last| SocketAddr::new(last, 0));
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let to = self.plan.target.address;
            let options = TcpOptions::new();
            match TcpStream::connect_nonblocking_from(&self.stack, from, to, options) {
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                    self.stack.sleep(AFTER_FAILURE).await;
                }
                // What else is wrong is told by those who connect.
                tried => return drop(tried),
            }
        }
    }

    /// Begins all of this shard's connections.
    pub(crate) async fn begin(self: &Rc<Work>) {
        self.addresses().await;
        self.restart_schedule();
        let shards = u32::from(self.plan.shards);
        let own = (self.shard..self.plan.connections).step_by(shards as usize);
        for (count, number) in (0..).zip(own) {
            if count % TOGETHER == TOGETHER - 1 {
                self.stack.sleep(Duration::from_millis(1)).await;
            }
            self.stack.spawn(self.clone().repeat(number));
        }
    }

    /// What was counted so far counts no more.
    pub(crate) fn restart(&self) {
        *self.tally.borrow_mut() = Tally::new();
        self.restart_schedule();
    }

    fn restart_schedule(&self) {
        // Shards begin theirs one after the other within the interval.
        let apart = self.interval().map_or(Duration::ZERO, |interval| {
            interval * self.shard / u32::from(self.plan.shards)
        });
        self.schedule.set((Instant::now() + apart, 0));
    }

    /// Between two operations of this shard.
    fn interval(&self) -> Option<Duration> {
        let rate = self.plan.rate?;
        Some(Duration::from_secs_f64(f64::from(self.plan.shards) / rate))
    }

    /// Operations that are meant to have begun by now and have not.
    pub(crate) fn overdue(&self) -> u64 {
        let (start, given) = self.schedule.get();
        let Some(interval) = self.interval() else {
            return 0;
        };
        let due = start.elapsed().as_nanos() / interval.as_nanos().max(1);
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(given)
    }

    /// Waits until the next operation is meant to begin; when that was. In a closed loop, now.
    async fn turn(&self) -> Instant {
        let Some(interval) = self.interval() else {
            return Instant::now();
        };
        let (start, given) = self.schedule.get();
        self.schedule.set((start, given + 1));
        let nanos = interval.as_nanos().saturating_mul(given.into());
        let begin = start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        while let Some(left) = begin.checked_duration_since(Instant::now()) {
            if left < Duration::from_micros(1) {
                break;
            }
            self.stack.sleep(left).await;
        }
        begin
    }

    fn done(&self, begun: Instant) {
        self.tally.borrow_mut().operation(begun.elapsed());
    }

    /// One connection after the other.
    async fn repeat(self: Rc<Work>, number: u32) {
        loop {
            let outcome = match self.plan.workload {
                Workload::Short => self.short(number).await,
                Workload::Pingpong => self.pingpong(number).await,
                Workload::In => self.fill(number).await,
                Workload::Out => self.drain(number).await,
                Workload::Http => self.http(number).await,
            };
            if let Err(error) = outcome {
                self.tally.borrow_mut().failed(reason(&error));
                self.stack.sleep(AFTER_FAILURE).await;
            }
        }
    }

    /// A connection from the address that is this one's.
    async fn connect(&self, number: u32) -> io::Result<TcpStream> {
        let (source, _) = self.plan.addresses[number as usize % self.plan.addresses.len()];
        let from = Some(SocketAddr::new(source, 0));
        let options = TcpOptions::new().nodelay(true);
        let stream = TcpStream::connect_nonblocking_from(
            &self.stack,
            from,
            self.plan.target.address,
            options,
        )?;
        self.patiently(stream.connected_async()).await?;
        Ok(stream)
    }

    async fn patiently<T>(&self, what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let late = || Err(io::Error::from(ErrorKind::TimedOut));
        let outcome = self.stack.timeout(PATIENCE, what).await;
        outcome.unwrap_or_else(late)
    }

    async fn short(&self, number: u32) -> io::Result<()> {
        let begun = self.turn().await;
        let stream = self.connect(number).await?;
        self.send(&stream, &FILLING[..self.plan.size]).await?;
        self.receive(&stream, self.plan.size as u64).await?;
        match self.plan.closes {
            Closes::Server => {
                if self.patiently(self.more(&stream)).await? != 0 {
                    let why = "more than was sent came back";
                    return Err(io::Error::new(ErrorKind::InvalidData, why));
                }
            }
            Closes::Client => stream.abort(),
        }
        self.done(begun);
        Ok(())
    }

    async fn pingpong(&self, number: u32) -> io::Result<()> {
        let stream = self.connect(number).await?;
        loop {
            let begun = self.turn().await;
            self.send(&stream, &FILLING[..self.plan.size]).await?;
            self.receive(&stream, self.plan.size as u64).await?;
            self.done(begun);
        }
    }

    async fn fill(&self, number: u32) -> io::Result<()> {
        let stream = self.connect(number).await?;
        loop {
            let sent = stream.write_async(&FILLING).await?;
            self.tally.borrow_mut().bytes_out += sent as u64;
        }
    }

    async fn drain(&self, number: u32) -> io::Result<()> {
        let stream = self.connect(number).await?;
        loop {
            if self.more(&stream).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn http(&self, number: u32) -> io::Result<()> {
        let mut answer = Answer::new();
        // That a connection is made is part of what takes time only where each request has its own.
        let mut first = match self.plan.keep_alive {
            true => None,
            false => Some(self.turn().await),
        };
        let stream = self.connect(number).await?;
        while answer.stays {
            let begun = match first.take() {
                Some(begun) => begun,
                None => self.turn().await,
            };
            self.send(&stream, &self.request).await?;
            answer.again();
            self.patiently(self.answered(&stream, &mut answer)).await?;
            if !(200..300).contains(&answer.status) {
                self.tally.borrow_mut().unsuccessful += 1;
            }
            self.done(begun);
        }
        Ok(())
    }

    /// Takes an answer of HTTP.
    async fn answered(&self, stream: &TcpStream, answer: &mut Answer) -> io::Result<()> {
        while !answer.is_done() {
            let mut wrong = None;
            let mut ended = false;
            let taken = stream.read_with(|[first, second]| {
                ended = first.is_empty() && second.is_empty();
                let mut taken = 0;
                for piece in [first, second] {
                    match answer.take(piece) {
                        Ok(own) => taken += own,
                        Err(why) => wrong = Some(why),
                    }
                }
                taken
            });
            match taken {
                Ok(taken) => self.tally.borrow_mut().bytes_in += taken as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stream.readable_async().await?;
                }
                Err(error) => return Err(error),
            }
            if let Some(why) = wrong {
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            }
            if ended {
                return match answer.ends_with_connection() {
                    true => Ok(()),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                };
            }
        }
        Ok(())
    }

    async fn send(&self, stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        self.patiently(stream.write_all_async(bytes)).await?;
        self.tally.borrow_mut().bytes_out += bytes.len() as u64;
        Ok(())
    }

    /// Takes so many bytes where they are.
    async fn receive(&self, stream: &TcpStream, len: u64) -> io::Result<()> {
        let mut left = len;
        while left > 0 {
            match self.patiently(self.at_most(stream, left)).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                taken => left -= taken,
            }
        }
        Ok(())
    }

    /// Takes what is there, or comes; 0 is the end.
    async fn more(&self, stream: &TcpStream) -> io::Result<u64> {
        self.at_most(stream, u64::MAX).await
    }

    async fn at_most(&self, stream: &TcpStream, most: u64) -> io::Result<u64> {
        loop {
            let there = |[first, second]: [&[u8]; 2]| {
                let len = first.len() + second.len();
                usize::try_from(most).unwrap_or(usize::MAX).min(len)
            };
            match stream.read_with(there) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stream.readable_async().await?;
                }
                Err(error) => return Err(error),
                Ok(taken) => {
                    self.tally.borrow_mut().bytes_in += taken as u64;
                    return Ok(taken as u64);
                }
            }
        }
    }
}

/// Why, without the number of the error.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::ConnectionReset => "connection reset".to_owned(),
        ErrorKind::TimedOut => "no answer in time".to_owned(),
        ErrorKind::UnexpectedEof => "the server closed before it had answered".to_owned(),
        ErrorKind::AddrNotAvailable => "no port is free; give more sources".to_owned(),
        _ => error.to_string(),
    }
}
