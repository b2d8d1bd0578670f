//! Engines: settings first, then shards that wait for the threads which take them. The only thing
//! that threads share.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace::{BuildError, Part};

use crate::host::Host;
use crate::outcome::{Outcome, explain};
use crate::packets::Packets;
use crate::settings::Settings;

/// Engines of a process at once.
const ENGINES_MAX: usize = 256;

/// An engine before and after its start.
struct Engine {
    settings: Settings,
    /// Shards that nobody has taken yet; none at all before the start.
    parts: Option<Vec<Option<Part>>>,
}

/// All of them, each by its number, which none had before.
struct Engines {
    all: Vec<(c_int, Engine)>,
    made: c_int,
}

static ENGINES: Mutex<Engines> = Mutex::new(Engines {
    all: Vec::new(),
    made: 0,
});

fn engines() -> MutexGuard<'static, Engines> {
    ENGINES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engines {
    fn get_mut(&mut self, number: c_int) -> Outcome<&mut Engine> {
        let found = self.all.iter_mut().find(|(own, _)| *own == number);
        found.map(|(_, engine)| engine).ok_or(libc::EBADF)
    }
}

/// Makes an engine that is nothing yet.
///
/// # Errors
/// `EMFILE` when there are 256.
pub fn new() -> Outcome<c_int> {
    let mut engines = engines();
    if engines.all.len() >= ENGINES_MAX || engines.made == c_int::MAX {
        return Err(libc::EMFILE);
    }
    engines.made += 1;
    let number = engines.made;
    let engine = Engine {
        settings: Settings::default(),
        parts: None,
    };
    engines.all.push((number, engine));
    Ok(number)
}

/// Changes an engine's settings.
///
/// # Errors
/// `EBADF`, `EBUSY` once it has started, `EINVAL` for what is wrong, in words.
pub fn configure(
    number: c_int,
    change: impl FnOnce(&mut Settings) -> Result<(), String>,
) -> Outcome<()> {
    let mut engines = engines();
    let engine = engines.get_mut(number)?;
    if engine.parts.is_some() {
        explain("the engine has started; say this before");
        return Err(libc::EBUSY);
    }
    change(&mut engine.settings).map_err(|text| {
        explain(text);
        libc::EINVAL
    })
}

/// Opens the link of an engine.
///
/// # Errors
/// `EBADF`, `EBUSY` when it has started, `EINVAL` for what does not go together or does not open,
/// in words.
pub fn start(number: c_int) -> Outcome<()> {
    let mut engines = engines();
    let engine = engines.get_mut(number)?;
    if engine.parts.is_some() {
        return Err(libc::EBUSY);
    }
    let parts = engine.settings.builder().and_then(|builder| {
        let parts = builder.parts(engine.settings.shards);
        parts.map_err(|error| error.to_string())
    });
    let parts = parts.map_err(|text| {
        explain(text);
        libc::EINVAL
    })?;
    engine.parts = Some(parts.into_iter().map(Some).collect());
    Ok(())
}

/// Takes a shard of an engine for this thread.
///
/// # Errors
/// `EBADF`, `ENOTCONN` before the start, `EINVAL` for a shard that there is not, `EBUSY` for one
/// that was taken, `EMFILE` without descriptors for it.
pub fn take(number: c_int, shard: c_int) -> Outcome<Host> {
    let mut engines = engines();
    let engine = engines.get_mut(number)?;
    let parts = engine.parts.as_mut().ok_or(libc::ENOTCONN)?;
    let shard = usize::try_from(shard).map_err(|_| libc::EINVAL)?;
    let part = parts.get_mut(shard).ok_or(libc::EINVAL)?;
    let refuse = |error: BuildError| {
        explain(error.to_string());
        libc::EMFILE
    };
    // What cannot be taken now stays, for who comes later.
    part.as_mut()
        .ok_or(libc::EBUSY)?
        .prepare()
        .map_err(refuse)?;
    let part = part.take().ok_or(libc::EBUSY)?;
    let settings = engine.settings.clone();
    drop(engines);
    let stack = part.stack().map_err(refuse)?;
    let packets = settings.is_packets().then(|| Packets::new(settings.mtu()));
    Ok(Host::new(stack, settings.manual_clock, packets))
}

/// Forgets an engine. Shards that were taken go on.
///
/// # Errors
/// `EBADF`.
pub fn close(number: c_int) -> Outcome<()> {
    let mut engines = engines();
    engines.get_mut(number)?;
    engines.all.retain(|(own, _)| *own != number);
    Ok(())
}
