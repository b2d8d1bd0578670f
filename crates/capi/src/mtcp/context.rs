//! Contexts: one stack each, of the thread that made it.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace::Duration;

use super::config::{Conf, Config};
use super::periodic::Periodic;
use super::signals::Bell;
use crate::engine;
use crate::host::Host;
use crate::outcome::{Outcome, explain};

/// How long connections may go on when their context is destroyed, in milliseconds.
const END_MS: c_int = 1000;

/// What `mtcp_init` and `mtcp_setconf` have said, for all threads.
struct Global {
    config: Option<Config>,
    ready: bool,
    /// The engine, from the first context on.
    engine: Option<c_int>,
}

static GLOBAL: Mutex<Global> = Mutex::new(Global {
    config: None,
    ready: false,
    engine: None,
});

fn global() -> MutexGuard<'static, Global> {
    GLOBAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context of this thread's.
pub struct Context {
    number: usize,
    pub host: Host,
    /// Addresses that connections leave from, in turn.
    sources: RefCell<Vec<Ipv4Addr>>,
    next: Cell<usize>,
    _bell: Bell,
}

thread_local! {
    static CONTEXTS: RefCell<Vec<Rc<Context>>> = RefCell::default();
}

/// Numbers of contexts, as the program sees them; no two are the same.
static NUMBERS: AtomicUsize = AtomicUsize::new(1);

/// Says on standard error, as mTCP does, what a number of errno cannot.
fn complain(text: &str) {
    eprintln!("mtcp: {text}");
    explain(text);
}

/// `mtcp_init`.
///
/// # Errors
/// `EBUSY` after another, `EINVAL` for what is wrong in the file, and those of reading it.
pub fn init(path: &str) -> Outcome<()> {
    let mut global = global();
    if global.ready {
        return Err(libc::EBUSY);
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        complain(&format!("{path}: {error}"));
        error.raw_os_error().unwrap_or(libc::EILSEQ)
    })?;
    let mut config = global.config.clone().unwrap_or_default();
    let read = config.read(path, &text);
    read.map_err(|what| {
        complain(&what);
        libc::EINVAL
    })?;
    (global.config, global.ready) = (Some(config), true);
    Ok(())
}

/// `mtcp_destroy`: contexts that there are go on until they are destroyed.
pub fn destroy() {
    let mut global = global();
    if let Some(engine) = global.engine.take() {
        // It is there.
        let _ = engine::close(engine);
    }
    (global.config, global.ready) = (None, false);
}

/// `mtcp_getconf`.
pub fn conf() -> Conf {
    global().config.get_or_insert_default().conf
}

/// `mtcp_setconf`.
///
/// # Errors
/// `EINVAL` for what is out of bounds, `EBUSY` once there was a context.
pub fn set_conf(conf: &Conf) -> Outcome<()> {
    let mut global = global();
    if global.engine.is_some() {
        return Err(libc::EBUSY);
    }
    let changed = global.config.get_or_insert_default().change(conf);
    changed.then_some(()).ok_or(libc::EINVAL)
}

/// `mtcp_create_context`: its number. The first one opens the link.
///
/// # Errors
/// `EPERM` before `mtcp_init`, `EINVAL` for a core that there is not and for a link that does not
/// open, `EBUSY` for a core whose context there was.
pub fn create(cpu: c_int) -> Outcome<usize> {
    let (engine, config) = {
        let mut global = global();
        let config = match &global.config {
            Some(config) if global.ready => config.clone(),
            _ => return Err(libc::EPERM),
        };
        if !(0..config.conf.num_cores).contains(&cpu) {
            return Err(libc::EINVAL);
        }
        let engine = match global.engine {
            Some(engine) => engine,
            None => {
                let engine = begin(&config)?;
                global.engine = Some(engine);
                engine
            }
        };
        (engine, config)
    };
    // Before the shard: one that is taken cannot be given back.
    let bell = Bell::new()?;
    let mut host = engine::take(engine, cpu)?;
    host.most = config.conf.max_concurrency as u32;
    host.periodic = Some(Periodic::new(
        u64::try_from(config.conf.tcp_timeout)
            .ok()
            .map(Duration::from_secs),
        config.stat_print.then_some(cpu),
    ));
    bell.hang(&host.stack)?;
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let context = Rc::new(Context {
        number,
        host,
        sources: RefCell::default(),
        next: Cell::new(0),
        _bell: bell,
    });
    let kept = CONTEXTS.try_with(|contexts| contexts.borrow_mut().push(context));
    kept.map_err(|_| libc::EPERM)?;
    Ok(number)
}

fn begin(config: &Config) -> Outcome<c_int> {
    let number = engine::new()?;
    let started = engine::configure(number, |settings| {
        *settings = config.settings()?;
        Ok(())
    })
    .and_then(|()| engine::start(number));
    if let Err(error) = started {
        complain(&crate::outcome::words());
        let _ = engine::close(number);
        return Err(error);
    }
    Ok(number)
}

/// A context of this thread's, by its number.
///
/// # Errors
/// `EACCES` for any other number: none, one that was destroyed, another thread's.
pub fn find(number: usize) -> Outcome<Rc<Context>> {
    let found = CONTEXTS.try_with(|contexts| {
        let contexts = contexts.try_borrow().map_err(|_| libc::EBUSY)?;
        let found = contexts.iter().find(|context| context.number == number);
        found.cloned().ok_or(libc::EACCES)
    });
    let context = found.unwrap_or(Err(libc::EACCES))?;
    context.host.lent.set(None);
    Ok(context)
}

/// `mtcp_destroy_context`.
///
/// # Errors
/// As [`find`].
pub fn end(number: usize) -> Outcome<()> {
    let context = find(number)?;
    let forgotten = CONTEXTS.try_with(|contexts| {
        contexts
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, &context));
    });
    forgotten.map_err(|_| libc::EACCES)?;
    context.host.end(END_MS);
    Ok(())
}

impl Context {
    /// `mtcp_init_rss`: connections leave from these addresses of ours in turn. Their ports bring
    /// the answers to this context in any case.
    ///
    /// # Errors
    /// `EINVAL` for no addresses at all, `EADDRNOTAVAIL` for one that is not ours.
    pub fn set_sources(&self, base: Ipv4Addr, count: c_int) -> Outcome<()> {
        if !(1..=256).contains(&count) {
            return Err(libc::EINVAL);
        }
        if base.is_unspecified() {
            self.sources.borrow_mut().clear();
            return Ok(());
        }
        let first = u32::from(base);
        let all = (0..count as u32).map(|at| first.checked_add(at).map(Ipv4Addr::from));
        let all: Vec<Ipv4Addr> = all.collect::<Option<_>>().ok_or(libc::EINVAL)?;
        for &address in &all {
            let key = self.host.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
            let bound = self.leave_from(key, address);
            self.host.remove(key, false)?;
            bound?;
        }
        *self.sources.borrow_mut() = all;
        Ok(())
    }

    /// Binds a socket to an address, and leaves the port to connect.
    fn leave_from(&self, key: u32, address: Ipv4Addr) -> Outcome<()> {
        let on = 1i32.to_ne_bytes();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
        self.host.set_option(key, level, name, &on)?;
        self.host.bind(key, SocketAddr::new(IpAddr::V4(address), 0))
    }

    /// `mtcp_connect`, from the next of the addresses if there are any and the socket is not bound.
    ///
    /// # Errors
    /// Those of connect.
    pub fn connect(&self, key: u32, remote: Option<SocketAddr>) -> Outcome<()> {
        let unbound = {
            let things = self.host.things.borrow();
            let socket = things.socket(key)?;
            !socket.bound && !socket.connecting && !socket.datagrams
        };
        let source = {
            let sources = self.sources.borrow();
            let at = self.next.get() % sources.len().max(1);
            sources.get(at).copied()
        };
        if let (Some(source), true, Some(SocketAddr::V4(_))) = (source, unbound, remote) {
            let view = self.host.view(self.host.things.borrow().socket(key)?.id)?;
            if view.state.is_none() {
                self.leave_from(key, source)?;
                self.next.set(self.next.get().wrapping_add(1));
            }
        }
        self.host.connect(key, remote)
    }
}
