//! The way from the user who started the process to one without rights.

use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::config::{Config, OWN, Sandbox};
use crate::error::Error;
use crate::user::{self, User};
use crate::{Link, filter, refusals, roles};

fn system(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System {
        what,
        error: errno.into(),
    }
}

/// Makes the process another user, if root has started it, and takes its capabilities but those
/// that its link needs. `name` is the process's: of the same name it is the same user. To be
/// called by its only thread: those that it starts then have no more.
///
/// Whoever is not root stays who they are. So does root of a user namespace that has no other
/// user, unless another one is asked for.
///
/// # Errors
/// What the kernel says, or there is no such user.
pub fn drop_privileges(config: &Config, name: &str, link: Link) -> Result<(), Error> {
    let starter = rustix::process::geteuid();
    set_no_new_privs(true).map_err(system("set no_new_privs"))?;
    // Without CAP_SETPCAP the sets cannot be cleared, and nothing that is started could use them.
    for bit in 0..64 {
        let _ = remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit));
    }
    let _ = clear_ambient_capability_set();
    if starter.is_root() {
        become_user(config, name)?;
    } else if let Some(user) = &config.user
        && user::choose(Some(user), name)?.uid != starter.as_raw()
    {
        return Err(Error::User {
            user: user.clone(),
            error: Errno::PERM.into(),
        });
    }
    limit(roles::all_capabilities(link))?;
    // The kernel has cleared it with the rights.
    let dumpable = match config.dumpable {
        true => DumpableBehavior::Dumpable,
        false => DumpableBehavior::NotDumpable,
    };
    set_dumpable_behavior(dumpable).map_err(system("keep others from the memory"))?;
    if !config.all_calls {
        filter::is_available().map_err(Error::Filter)?;
        refusals::catch().map_err(Error::Filter)?;
        filter::install_deadly()?;
    }
    let _ = OWN.set(Sandbox {
        link,
        starter: starter.as_raw(),
        filtered: !config.all_calls,
    });
    Ok(())
}

/// From root to the user of choice.
fn become_user(config: &Config, name: &str) -> Result<(), Error> {
    let user = user::choose(config.user.as_deref(), name)?;
    if user.uid == 0 {
        return Ok(());
    }
    set_keep_capabilities(true).map_err(system("keep capabilities"))?;
    let changed = change(user);
    let _ = set_keep_capabilities(false);
    match (changed, &config.user) {
        (Ok(()), _) => Ok(()),
        (Err(error), Some(user)) => Err(Error::User {
            user: user.clone(),
            error,
        }),
        // In a user namespace: there is nobody else, or root has no right to change.
        (Err(error), None) if is_alone(&error) => Ok(()),
        (Err(error), None) => Err(Error::System {
            what: "become another user",
            error,
        }),
    }
}

fn is_alone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM))
}

/// Changes the calling thread, which is the only one; the groups first, while it may.
fn change(User { uid, gid }: User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// Leaves the calling thread with those of its capabilities that are among these.
pub(crate) fn limit(to: CapabilitySet) -> Result<(), Error> {
    let fail = system("drop capabilities");
    let own = capabilities(None).map_err(&fail)?;
    let left = own.permitted & to;
    let sets = CapabilitySets {
        effective: left,
        permitted: left,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(fail)
}
