//! Which user a process becomes that root has started.
//!
//! It is the user `millrace`, if the machine has one. Nothing is installed for millrace, so most
//! machines have none; then it is a number from the range that systemd gives to dynamic users
//! (`DynamicUser=`), which no user of the machine has. `nobody` is no choice: other services and
//! NFS use it.

use std::path::Path;

use crate::Error;

/// The user of choice.
const NAME: &str = "millrace";
/// Where systemd's dynamic users are, and where it says which of them are in use.
const DYNAMIC: std::ops::RangeInclusive<u32> = 61_184..=65_519;
const DYNAMIC_USED: &str = "/run/systemd/dynamic-uid";

/// A user's and a group's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The user to become: the one that was `asked` for, or the one of choice, or a number that
/// depends on the `process`'s name.
pub(crate) fn choose(asked: Option<&str>, process: &str) -> Result<User, Error> {
    // A machine without the file has no users but root.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match asked {
        Some(name) => named(&passwd, name).ok_or_else(|| Error::NoUser(name.to_owned())),
        None => Ok(named(&passwd, NAME).unwrap_or_else(|| dynamic(&passwd, process))),
    }
}

/// A user by name or number; a number that nobody has has a group of the same number.
fn named(passwd: &str, name: &str) -> Option<User> {
    let by_number = name.parse().ok();
    let known = users(passwd).find(|(known, user)| *known == name || Some(user.uid) == by_number);
    let unknown = || by_number.map(|uid| User { uid, gid: uid });
    known.map(|(_, user)| user).or_else(unknown)
}

/// A number that is nobody's. Two processes with the same number could do no more to each other
/// than to any other process: neither is dumpable.
fn dynamic(passwd: &str, process: &str) -> User {
    let count = DYNAMIC.end() - DYNAMIC.start() + 1;
    let start = hash(process) % count;
    let is_free = |uid: &u32| {
        !users(passwd).any(|(_, user)| user.uid == *uid || user.gid == *uid)
            && !Path::new(DYNAMIC_USED).join(uid.to_string()).exists()
    };
    let mut all = (0..count).map(|step| DYNAMIC.start() + (start + step) % count);
    let uid = all.find(is_free).unwrap_or(*DYNAMIC.end());
    User { uid, gid: uid }
}

/// FNV-1a.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The lines `name:x:uid:gid:...`.
fn users(passwd: &str) -> impl Iterator<Item = (&str, User)> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some((name, User { uid, gid }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nmillrace:x:990:980::/:/bin/false\nodd\n";

    #[test]
    fn a_user_has_a_name_or_a_number() {
        let user = |uid, gid| Some(User { uid, gid });
        assert_eq!(named(PASSWD, "millrace"), user(990, 980));
        assert_eq!(named(PASSWD, "990"), user(990, 980));
        assert_eq!(named(PASSWD, "4711"), user(4711, 4711));
        assert_eq!(named(PASSWD, "0"), user(0, 0));
        assert_eq!(named(PASSWD, "odd"), None);
        assert_eq!(named(PASSWD, ""), None);
    }

    #[test]
    fn a_dynamic_user_is_nobody_of_the_machine() {
        let first = dynamic("", "lab");
        assert!(DYNAMIC.contains(&first.uid) && first.gid == first.uid);
        assert_eq!(dynamic("", "lab"), first, "the same at each start");
        let taken = format!("other:x:{}:5::/:/bin/sh", first.uid);
        assert_ne!(dynamic(&taken, "lab").uid, first.uid);
    }
}
