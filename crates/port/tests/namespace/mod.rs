//! Runs a test in a process of its own, in a network namespace of its own: what it creates is seen
//! by nobody and goes with it.

use std::os::unix::process::CommandExt;
use std::process::Command;

const INSIDE: &str = "MILLRACE_TEST_NAMESPACE";

/// Runs `body` as the test `name` in a new namespace, as root there. `name` is that of the calling
/// test function.
pub fn run(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().expect("this executable"));
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1");
    // SAFETY: these reads cannot fail and change nothing.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ];
    // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing.
    unsafe {
        command.pre_exec(move || {
            let flags = libc::CLONE_NEWNET | if user == 0 { 0 } else { libc::CLONE_NEWUSER };
            if libc::unshare(flags) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            if user != 0 {
                for (path, content) in &maps {
                    std::fs::write(path, content)?;
                }
            }
            Ok(())
        });
    }
    let output = command
        .output()
        .expect("this executable runs in a network namespace of its own");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("1 passed"),
        "the name `{name}` is not that of the test:\n{text}"
    );
}
