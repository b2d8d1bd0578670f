//! Engines in this process, and processes that are programs of theirs for the length of one input.
//!
//! The code of the engines is measured with that of the target. A program is a process of its own,
//! made by fork, since it is its death that gives back what it holds.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::program::{Program, engine_with_shards, holdings, transfer};

/// How long a process, or the engine, may take for anything.
const PATIENCE: Duration = Duration::from_secs(20);
/// Seconds after which a process ends that has waited in vain.
const ALARM: u32 = 15;

/// An engine, and a program of it that the others must not harm.
pub struct Engine {
    pub name: &'static str,
    pub victim: Program,
    client: millrace_context::SlotRef,
    server: millrace_context::SlotRef,
    thread: std::thread::JoinHandle<()>,
}

impl Engine {
    fn start(name: &'static str, shards: u16) -> Engine {
        let thread = engine_with_shards(name, shards);
        let victim = Program::attach(name);
        let listener = victim.listener(7000);
        let client = victim.connect(7000);
        let server = victim.accept(listener);
        // Others would connect to it, and wait in its queue beyond their end.
        victim.close(listener);
        let engine = Engine {
            name,
            victim,
            client,
            server,
            thread,
        };
        // What the first processes make an engine and this process take is there from now on.
        for _ in 0..2 {
            engine.carry();
            Process::fork(|| drop(Program::attach(name))).wait();
        }
        engine
    }

    /// The engine's name as it is called outside of this process.
    pub fn full_name(&self) -> String {
        format!("{}-{}", self.name, std::process::id())
    }

    /// The victim sends itself bytes, which arrive as they were.
    pub fn carry(&self) {
        transfer(&self.victim, self.client, self.server, 2_000, || ());
        assert!(!self.thread.is_finished(), "the engine has ended");
    }

    /// What programs hold of the engine, and how many descriptors this process has.
    pub fn holdings(&self) -> (Vec<u64>, usize) {
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        (holdings(self.name), descriptors)
    }

    /// Runs `body`, after which the engine serves as before and holds what it held.
    pub fn while_it_holds(&self, body: impl FnOnce()) {
        let before = self.holdings();
        body();
        self.carry();
        wait_until(|| {
            let now = self.holdings();
            (now.0 == before.0 && now.1 <= before.1)
                .then_some(())
                .ok_or_else(|| format!("{now:?} is held where {before:?} was"))
        });
    }
}

/// The engine with one shard, or with two. One input at a time has them.
pub fn engine(shards: usize) -> MutexGuard<'static, Engine> {
    static ENGINES: [OnceLock<Mutex<Engine>>; 2] = [const { OnceLock::new() }; 2];
    static ONE: Mutex<()> = Mutex::new(());
    let second = shards % 2;
    let one = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let start = || {
        Mutex::new(Engine::start(
            ["fuzz-one", "fuzz-two"][second],
            1 + second as u16,
        ))
    };
    let engine = ENGINES[second].get_or_init(start);
    drop(one);
    engine.lock().expect("the input before has not failed")
}

/// Waits until something is as it should be, which says what is wrong until then.
pub fn wait_until(mut is_so: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + PATIENCE;
    while let Err(wrong) = is_so() {
        assert!(Instant::now() < end, "{wrong}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that was made by fork.
pub struct Process(libc::pid_t);

impl Process {
    /// Runs `body` in a child of this process, which ends then. Whatever it does there ends nothing
    /// here.
    pub fn fork(body: impl FnOnce()) -> Process {
        Process::fork_with(&[], body)
    }

    /// The same for a child that keeps these descriptors, in rising order.
    pub fn fork_with(keep: &[i32], body: impl FnOnce()) -> Process {
        // SAFETY: the child has a copy of this thread alone. It uses the allocator, which copes
        // with that, and locks of its own.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid > 0 {
            return Process(pid);
        }
        // SAFETY: plain system calls. What else refers to the closed descriptors is never dropped
        // in this process.
        unsafe {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            libc::alarm(ALARM);
            let mut first = 3;
            for &kept in keep {
                libc::close_range(first, kept as u32 - 1, 0);
                first = kept as u32 + 1;
            }
            libc::close_range(first, u32::MAX, 0);
        }
        // A refusal ends what a program does, and is nothing that the engine did wrong.
        std::panic::set_hook(Box::new(|_| ()));
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: nothing runs after it.
        unsafe { libc::_exit(0) }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.0 as u32
    }

    /// Waits for its end, which must be its own.
    pub fn wait(self) {
        let mut status = 0;
        loop {
            // SAFETY: the status is ours, and the process a child that nobody else waits for.
            let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
            let error = std::io::Error::last_os_error();
            if waited == self.0 {
                break;
            }
            // libFuzzer looks at its clock by a signal.
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
        let alarmed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM;
        assert!(!alarmed, "a program was not answered for {ALARM} s");
    }
}

/// This process ends if it has not set it anew before.
pub fn set_alarm() {
    // SAFETY: a plain system call.
    unsafe { libc::alarm(ALARM) };
}

/// Ends a process by force.
pub fn kill(pid: u32) {
    // SAFETY: a plain system call; the process is one of this input's.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}
