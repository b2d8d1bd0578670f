//! Refuses io_uring to programs on millrace. Its requests bypass the shim, and the kernel knows
//! only the placeholder in the descriptor of a millrace socket.
//!
//! The shim refuses calls through the C library or liburing. A seccomp filter refuses the system
//! call itself. The filter needs CAP_SYS_ADMIN or `no_new_privs`, and the latter would break
//! programs that gain privileges (sudo, ping). So without the capability there is no filter.

use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, sock_filter, sock_fprog,
};

/// `io_uring_setup` has the same number on every architecture here, 32-bit programs included.
const IO_URING_SETUP: u32 = libc::SYS_io_uring_setup as u32;
/// The bit in the system call numbers of x32 programs.
const X32: u32 = 0x4000_0000;

const fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// It reads only the number of the call. So the kernel knows which calls always pass, and does not
/// run the filter for those (Linux 5.11).
static FILTER: [sock_filter; 5] = [
    // The number is the first word of `struct seccomp_data`.
    statement(BPF_LD | BPF_W | BPF_ABS, 0),
    statement(BPF_ALU | BPF_AND | BPF_K, !X32),
    jump(BPF_JMP | BPF_JEQ | BPF_K, IO_URING_SETUP, 0, 1),
    statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
];

/// Makes `io_uring_setup` fail with ENOSYS in the command and its descendants, if this process may
/// install a filter.
pub fn refuse_io_uring(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe, and the filter is a constant that the kernel copies.
    unsafe {
        command.pre_exec(|| {
            let program = sock_fprog {
                len: FILTER.len() as u16,
                filter: FILTER.as_ptr().cast_mut(),
            };
            // Without the capability this fails with EACCES. The shim still refuses what it sees.
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            );
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_refused_io_uring_where_it_can_be() {
        let mut command = Command::new("/bin/sh");
        command.args([
            "-c",
            "grep Seccomp: /proc/self/status; grep NoNewPrivs: /proc/self/status",
        ]);
        refuse_io_uring(&mut command);
        let said = command.output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout);
        let may = rustix::thread::capabilities(None).is_ok_and(|sets| {
            sets.effective
                .contains(rustix::thread::CapabilitySet::SYS_ADMIN)
        });
        let before = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = |text: &str, name: &str| -> Option<String> {
            text.lines()
                .find(|line| line.starts_with(name))
                .map(String::from)
        };
        assert_eq!(line(&said, "NoNewPrivs:"), line(&before, "NoNewPrivs:"));
        match may {
            true => assert_eq!(line(&said, "Seccomp:").unwrap(), "Seccomp:\t2"),
            false => assert_eq!(line(&said, "Seccomp:"), line(&before, "Seccomp:")),
        }
    }
}
