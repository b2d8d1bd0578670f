use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// A directory of this test's, as it is when all is well.
fn directory(name: &str) -> Directory {
    let path = std::env::temp_dir().join(format!("mr-{name}-{}", std::process::id()));
    make(&path, 0o700).unwrap();
    let owner = rustix::process::geteuid().as_raw();
    check(&path, owner).unwrap();
    Directory { path, owner }
}

fn end(directory: &Directory) {
    fs::remove_dir_all(&directory.path).unwrap();
}

#[test]
fn a_name_has_one_living_listener() {
    let directory = directory("listener");
    let first = listen(&directory, "lab", SocketType::SEQPACKET).unwrap();
    let second = listen(&directory, "lab", SocketType::SEQPACKET).unwrap_err();
    assert_eq!(second.raw_os_error(), Some(libc::EADDRINUSE));
    let found = directory.sockets(SocketType::SEQPACKET);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].name.as_str(), found[0].network),
        ("lab", network())
    );
    drop(first);
    let left = fs::read_dir(&directory.path).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [LOCK], "the directory's own lock is left alone");
    end(&directory);
}

#[test]
fn what_a_dead_process_has_left_is_replaced() {
    let directory = directory("stale");
    for name in ["lab", "other"] {
        let Listener { socket, held } = listen(&directory, name, SocketType::SEQPACKET).unwrap();
        // As after a kill: the files stay.
        let lock = lock_of(&held.path);
        let kept = directory.path.join("kept");
        fs::hard_link(&held.path, &kept).unwrap();
        drop((socket, held));
        fs::rename(&kept, directory.path_of(name)).unwrap();
        fs::write(lock, "").unwrap();
    }
    assert_eq!(directory.sockets(SocketType::SEQPACKET), []);
    let listener = listen(&directory, "lab", SocketType::SEQPACKET).unwrap();
    assert_eq!(directory.sockets(SocketType::SEQPACKET).len(), 1);
    assert!(!directory.path_of("other").exists(), "it is swept");
    drop(listener);
    end(&directory);
}

#[test]
fn a_directory_that_others_can_write_is_not_used() {
    let directory = directory("unsafe");
    let uid = directory.owner;
    let path = &directory.path;
    for mode in [0o777, 0o720, 0o1777] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(check(path, uid).is_err(), "{mode:o}");
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(check(path, uid + 1).is_err());
    let link = path.join("link");
    symlink(path, &link).unwrap();
    assert!(check(&link, uid).is_err());
    end(&directory);
}

#[test]
fn a_name_is_no_path() {
    let directory = directory("names");
    for name in ["", ".", "..", "a/b", "x@lock", ".hidden", "a:b"] {
        let error = listen(&directory, name, SocketType::SEQPACKET).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
    }
    end(&directory);
}

#[test]
fn an_address_is_text() {
    let address = Address {
        owner: 33,
        alias: "00112233445566778899aabbccddeeff",
        path: "/run/millrace/lab",
    };
    let text = address.to_string();
    assert_eq!(Address::parse(&text), Some(address));
    assert_eq!(address.name(), "lab");
    for text in ["", "lab", "x::/a", "1:/a"] {
        assert_eq!(Address::parse(text), None, "{text}");
    }
    const { assert!(11 + 32 + 1 + PATH_MAX <= ADDRESS_MAX) };
}

#[test]
fn a_process_that_sees_other_files_connects_by_the_alias() {
    let (listener, alias) = listen_by_alias().unwrap();
    let alias = crate::protocol::format_token(&alias);
    let address = Address {
        owner: rustix::process::geteuid().as_raw(),
        alias: &alias,
        path: "/nowhere/lab",
    };
    let client = address.connect(peer).unwrap();
    assert_eq!(peer(&client).unwrap().pid, std::process::id());
    drop(listener);
    let error = address.connect(peer).unwrap_err();
    assert_eq!(
        error.raw_os_error(),
        Some(libc::ENOENT),
        "what is said is of the path"
    );
}

#[test]
fn users_have_numbers() {
    assert_eq!(user("0"), Some(0));
    assert_eq!(user("root"), Some(0));
    assert_eq!(user("no such user"), None);
}
