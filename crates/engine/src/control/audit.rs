//! The audit log: which processes attached, which requests were refused and why, which processes
//! were cut off, who changed the engine. Each event is one line.
//!
//! The control thread writes the log. Shards send their events to it and never wait. A user can
//! cause a limited number of lines. Further lines are counted, and the count is written. So a user
//! can neither make the log grow at will nor hide the lines of another user.

use std::collections::HashMap;
use std::fmt::{Display, Write as _};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::doorbell;

/// Lines that a user can cause at once.
const BURST: u32 = 40;
/// The time after which a user can cause one more line.
const REFILL: Duration = Duration::from_millis(100);
/// Users that are counted separately. All further users share one allowance.
const USERS: usize = 1024;
/// The number of the further users.
const OTHERS: u32 = u32::MAX;
/// Longest line in bytes: a pipe takes that much in one piece.
const LINE_MAX: usize = 2048;
/// Events of shards that can wait for the control thread.
const WAITING: usize = 1024;
/// How often, in microseconds, a shard reports the same limit of the same program.
const EVERY_US: u64 = 1_000_000;

/// A line under construction.
#[derive(Debug)]
pub(crate) struct Line(String);

impl Line {
    pub(crate) fn new(event: &str) -> Line {
        Line(format!("event={event}"))
    }

    /// Adds a word of the engine's own, or a number.
    pub(crate) fn word(mut self, key: &str, value: impl Display) -> Line {
        // Writing to a string does not fail.
        let _ = write!(self.0, " {key}={value}");
        self
    }

    /// Adds bytes that another program has chosen.
    pub(crate) fn text(mut self, key: &str, value: &[u8]) -> Line {
        let _ = write!(self.0, " {key}=\"{}\"", escaped(value));
        self
    }

    /// Adds a process: its pid, its user, its name and its executable.
    pub(crate) fn process(self, pid: u32, uid: u32) -> Line {
        let line = self.word("pid", pid).word("uid", uid);
        let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let line = line.text("comm", comm.strip_suffix(b"\n").unwrap_or(&comm));
        match fs::read_link(format!("/proc/{pid}/exe")) {
            Ok(exe) => line.text("exe", exe.as_os_str().as_bytes()),
            Err(_) => line,
        }
    }
}

/// Escapes quotes, backslashes and all bytes that are not printable ASCII (`\xNN`).
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' => text.push(byte.into()),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text
}

/// The lines that a user can still cause.
#[derive(Debug)]
struct User {
    left: u32,
    refilled: Instant,
    suppressed: u64,
}

/// The audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    to: Option<OwnedFd>,
    engine: String,
    users: HashMap<u32, User>,
    /// Lines that the file did not take, since the last one that it took.
    lost: u64,
}

impl Audit {
    /// Opens a file, or standard error for `-`. Must be called before the process drops the
    /// privileges that opening takes.
    pub(crate) fn open(to: Option<&str>, engine: &str) -> io::Result<Audit> {
        let to = match to {
            None => None,
            Some("-") => Some(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 0)?),
            Some(path) => {
                let mut options = OpenOptions::new();
                options.append(true).create(true).mode(0o600);
                options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
                Some(options.open(path)?.into())
            }
        };
        Ok(Audit {
            to,
            engine: engine.to_owned(),
            users: HashMap::new(),
            lost: 0,
        })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.to.is_some()
    }

    /// Writes a line that a user has caused, or counts it.
    pub(crate) fn write(&mut self, uid: u32, line: impl FnOnce() -> Line) {
        if !self.is_on() {
            return;
        }
        let now = Instant::now();
        let key = match self.users.contains_key(&uid) || self.users.len() < USERS {
            true => uid,
            false => OTHERS,
        };
        let user = self.users.entry(key).or_insert(User {
            left: BURST,
            refilled: now,
            suppressed: 0,
        });
        user.refill(now);
        if user.left == 0 {
            user.suppressed += 1;
            return;
        }
        user.left -= 1;
        let suppressed = std::mem::take(&mut user.suppressed);
        if suppressed > 0 {
            self.put(&suppressed_line(key, suppressed));
        }
        self.put(&line());
    }

    /// Writes a line that only the owner of the engine can cause.
    pub(crate) fn write_always(&mut self, line: impl FnOnce() -> Line) {
        if self.is_on() {
            self.put(&line());
        }
    }

    /// Writes the counts of suppressed lines whose users may cause lines again. Returns when to
    /// call it again; none if no count is left.
    pub(crate) fn check(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut waits = false;
        self.users.retain(|uid, user| {
            user.refill(now);
            if user.suppressed > 0 && user.left == BURST {
                due.push((*uid, std::mem::take(&mut user.suppressed)));
            }
            waits |= user.suppressed > 0;
            user.left < BURST || user.suppressed > 0
        });
        for (uid, count) in due {
            self.put(&suppressed_line(uid, count));
        }
        waits.then_some(Duration::from_secs(1))
    }

    /// Writes all counts that are left, and the end of the log.
    pub(crate) fn end(&mut self) {
        let users = std::mem::take(&mut self.users);
        for (uid, user) in users.into_iter().filter(|(_, user)| user.suppressed > 0) {
            self.put(&suppressed_line(uid, user.suppressed));
        }
        self.write_always(|| Line::new("end"));
    }

    fn put(&mut self, line: &Line) {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = time.unwrap_or_default();
        let (seconds, millis) = (time.as_secs(), time.subsec_millis());
        let lost = match self.lost {
            0 => String::new(),
            lost => format!(" lost={lost}"),
        };
        let mut text = format!(
            "millrace-audit time={seconds}.{millis:03} engine={} {}{lost}",
            self.engine, line.0
        );
        text.truncate(LINE_MAX - 1);
        text.push('\n');
        let Some(to) = &self.to else {
            return;
        };
        // The engine does not wait for a pipe that nobody reads.
        let mut ready = [PollFd::new(to, PollFlags::OUT)];
        let is_ready = poll(&mut ready, Some(&Timespec::default())) == Ok(1)
            && ready[0].revents().contains(PollFlags::OUT);
        let written = is_ready && rustix::io::write(to, text.as_bytes()) == Ok(text.len());
        self.lost = if written { 0 } else { self.lost + 1 };
    }
}

fn suppressed_line(uid: u32, count: u64) -> Line {
    let line = Line::new("suppressed").word("count", count);
    match uid {
        OTHERS => line.word("uid", "others"),
        uid => line.word("uid", uid),
    }
}

impl User {
    fn refill(&mut self, now: Instant) {
        let more = now.duration_since(self.refilled).as_micros() / REFILL.as_micros();
        let more = u32::try_from(more).unwrap_or(BURST).min(BURST);
        if more > 0 {
            self.left = (self.left + more).min(BURST);
            self.refilled = now;
        }
    }
}

/// A shard refused something to a program, or cut a process off.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) program: u32,
    pub(crate) pid: Option<u32>,
    /// The limit, by the name of its counter, or `nonsense`.
    pub(crate) what: &'static str,
    /// How often since the last report.
    pub(crate) count: u64,
    /// The reason, if the limit does not say it all.
    pub(crate) why: Option<String>,
}

/// The control thread's end of the channel from the shards.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) events: Receiver<Event>,
    pub(crate) doorbell: Arc<OwnedFd>,
}

/// A shard's end of the channel to the audit log.
#[derive(Debug)]
pub(crate) struct Outbox {
    to: SyncSender<Event>,
    doorbell: Arc<OwnedFd>,
    is_on: bool,
    /// For each program and limit: when it was last reported, and how often it was reached since.
    said: HashMap<(u32, &'static str), (u64, u64)>,
    /// The failures of each program at the last check.
    counted: HashMap<u32, u64>,
}

impl Clone for Outbox {
    fn clone(&self) -> Outbox {
        Outbox {
            to: self.to.clone(),
            doorbell: self.doorbell.clone(),
            is_on: self.is_on,
            said: HashMap::new(),
            counted: HashMap::new(),
        }
    }
}

/// A channel from the shards to the audit log.
pub(crate) fn channel(is_on: bool) -> io::Result<(Outbox, Inbox)> {
    let (to, events) = sync_channel(WAITING);
    let doorbell = doorbell::doorbell()?;
    let outbox = Outbox {
        to,
        doorbell: doorbell.clone(),
        is_on,
        said: HashMap::new(),
        counted: HashMap::new(),
    };
    Ok((outbox, Inbox { events, doorbell }))
}

impl Outbox {
    /// Reports that a program has reached a limit, at time `now_us` of the shard.
    #[cold]
    pub(crate) fn limit(&mut self, program: u32, what: &'static str, now_us: u64) {
        if !self.is_on {
            return;
        }
        let (last, count) = self.said.entry((program, what)).or_default();
        *count += 1;
        if *last != 0 && now_us < *last + EVERY_US {
            return;
        }
        *last = now_us.max(1);
        let count = std::mem::take(count);
        self.send(Event {
            program,
            pid: None,
            what,
            count,
            why: None,
        });
    }

    /// Reports a limit by its total count, if the total has grown.
    pub(crate) fn count(&mut self, program: u32, what: &'static str, total: u64, now_us: u64) {
        if !self.is_on {
            return;
        }
        let before = self.counted.insert(program, total).unwrap_or(0);
        if total > before {
            self.said.entry((program, what)).or_default().1 += total - before - 1;
            self.limit(program, what, now_us);
        }
    }

    /// Reports that a process of a program was cut off.
    #[cold]
    pub(crate) fn cut_off(&mut self, program: u32, pid: u32, why: String) {
        if self.is_on {
            self.send(Event {
                program,
                pid: Some(pid),
                what: "nonsense",
                count: 1,
                why: Some(why),
            });
        }
    }

    /// Forgets a program that has ended. Another program may get its number.
    pub(crate) fn forget(&mut self, program: u32) {
        self.said.retain(|(of, _), _| *of != program);
        self.counted.remove(&program);
    }

    fn send(&mut self, event: Event) {
        let key = (event.program, event.what);
        let count = event.count;
        if self.to.try_send(event).is_ok() {
            doorbell::ring(self.doorbell.as_fd());
        } else {
            // The channel is full: the next report includes this one.
            self.said.entry(key).or_default().1 += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &std::path::Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_others_have_chosen_is_escaped() {
        let line = Line::new("attach").text("comm", b"a\nevent=end \"\\\x1b\xff");
        assert_eq!(line.0, r#"event=attach comm="a\x0aevent=end \"\\\x1b\xff""#);
    }

    #[test]
    fn a_user_cannot_make_it_grow_nor_hide_another_one() {
        let path = std::env::temp_dir().join(format!("mr-audit-{}", std::process::id()));
        let mut audit = Audit::open(path.to_str(), "lab").unwrap();
        for _ in 0..10 * BURST {
            audit.write(1000, || Line::new("attach"));
        }
        audit.write(1001, || Line::new("attach").word("uid", 1001));
        audit.end();
        let lines = lines(&path);
        fs::remove_file(&path).unwrap();
        assert!(lines.len() < 3 * BURST as usize, "{}", lines.len());
        let has = |part: &str| lines.iter().any(|line| line.contains(part));
        assert!(has("uid=1001") && has("event=suppressed") && has("event=end"));
        assert!(lines[0].starts_with("millrace-audit time=") && lines[0].contains("engine=lab"));
    }

    #[test]
    fn a_limit_that_is_reached_again_and_again_is_said_once_a_second() {
        let (mut outbox, inbox) = channel(true).unwrap();
        for now in [5, 6, 7, EVERY_US + 6] {
            outbox.limit(3, "overruns", now);
        }
        let counts: Vec<u64> = inbox.events.try_iter().map(|event| event.count).collect();
        assert_eq!(counts, [1, 3]);
    }

    #[test]
    fn without_a_log_nothing_is_kept() {
        let mut audit = Audit::open(None, "lab").unwrap();
        audit.write(1, || unreachable!());
        assert!(audit.users.is_empty());
        let (mut outbox, inbox) = channel(false).unwrap();
        outbox.limit(0, "overruns", 1);
        assert_eq!(inbox.events.try_iter().count(), 0);
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let mut audit = Audit::open(None, "lab").unwrap();
        audit.to = Some(writer);
        for _ in 0..2000 {
            audit.write_always(|| Line::new("attach"));
        }
        assert!(audit.lost > 0);
    }
}
