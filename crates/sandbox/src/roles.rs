//! The table: what each role may do.
//!
//! Calls that come for every packet or wake-up are allowed whatever their arguments: the kernel
//! remembers those and does not run the filter for them. The others are allowed with the arguments
//! that the role uses, where other arguments would do something else.

use libc::c_long;
use rustix::thread::CapabilitySet;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Accepts processes of programs and the command line.
    Control,
    /// Runs a shard of the stack.
    Shard,
    /// Owns a queue of the device for shards.
    Io,
    /// Closes descriptors that came from programs, or waits for other threads: nothing else.
    Closer,
    /// Runs a shard of a software network card.
    Card,
    /// Answers who asks for the counters of a card.
    CardControl,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 6] = [
        Role::Control,
        Role::Shard,
        Role::Io,
        Role::Closer,
        Role::Card,
        Role::CardControl,
    ];
}

/// Where frames come from, as far as roles depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A descriptor that frames are read from and written to, or none: TAP, macvtap and packet
    /// sockets, loopback.
    Frames,
    /// AF_XDP sockets.
    Xdp,
    /// AF_XDP sockets, with the addresses, routes, ports and neighbours of the kernel.
    SharedXdp,
}

impl Link {
    /// All of them.
    pub const ALL: [Link; 3] = [Link::Frames, Link::Xdp, Link::SharedXdp];
}

/// The capabilities that a role keeps, of those that the process has.
pub(crate) fn capabilities(role: Role, link: Link) -> CapabilitySet {
    // Ports below 1024 are taken from the kernel, its neighbours are asked for, and before Linux
    // 5.19 maps of XDP programs are not written without CAP_BPF.
    let shared = match (role, link) {
        (Role::Control | Role::Shard | Role::Io, Link::SharedXdp) => {
            CapabilitySet::NET_BIND_SERVICE | CapabilitySet::NET_ADMIN | CapabilitySet::BPF
        }
        _ => CapabilitySet::empty(),
    };
    match role {
        // Descriptors on their way to programs are limited by user: one program that leaves its
        // own unread must not keep the others from theirs.
        Role::Control => shared | CapabilitySet::SYS_RESOURCE,
        _ => shared,
    }
}

/// Those of all roles together.
pub(crate) fn all_capabilities(link: Link) -> CapabilitySet {
    let all = Role::ALL.into_iter();
    all.map(|role| capabilities(role, link))
        .fold(CapabilitySet::empty(), CapabilitySet::union)
}

/// What an argument, counted from 0, must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// This.
    Is(u8, u64),
    /// These bits of it must be so.
    Bits(u8, u64, u64),
    /// The number of this process.
    OwnProcess(u8),
    /// No pointer.
    Null(u8),
}

/// A call that is allowed if all arguments of one of these lists are so; always if there is no
/// list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: c_long,
    pub(crate) arguments: &'static [&'static [Argument]],
}

const fn any(number: c_long) -> Call {
    only(number, &[])
}

const fn only(number: c_long, arguments: &'static [&'static [Argument]]) -> Call {
    Call { number, arguments }
}

/// The calls of a role. Each role has those of every thread.
pub(crate) fn calls(role: Role, link: Link) -> Vec<Call> {
    let parts: &[&[Call]] = match role {
        Role::Closer => &[],
        Role::Shard | Role::Io => &[WAITING, FRAMES],
        Role::Card => &[WAITING, FRAMES, CARD],
        Role::CardControl => &[CARD_CONTROL],
        Role::Control => &[WAITING, CONTROL],
    };
    let of_link: &[&[Call]] = match (role, link) {
        (Role::Closer | Role::CardControl, _) | (_, Link::Frames) => &[],
        (Role::Control, Link::Xdp) => &[STATISTICS],
        (Role::Control, Link::SharedXdp) => &[STATISTICS, SHARED, NETWORK],
        (_, Link::Xdp) => &[XDP, STATISTICS],
        (_, Link::SharedXdp) => &[XDP, STATISTICS, SHARED],
    };
    let all = [&[EVERY_THREAD], parts, of_link].concat();
    all.into_iter().flatten().copied().collect()
}

const PR_GET_AUXV: u64 = 0x4155_5856;
const NOT_EXECUTABLE: &[&[Argument]] = &[&[Argument::Bits(2, libc::PROT_EXEC as u64, 0)]];

/// What the C library and Rust's do in any thread: memory, locks, the clock, an error on standard
/// error, the thread's start and end, a panic.
const EVERY_THREAD: &[Call] = &[
    any(libc::SYS_write),
    any(libc::SYS_writev),
    any(libc::SYS_close),
    any(libc::SYS_futex),
    any(libc::SYS_sched_yield),
    any(libc::SYS_munmap),
    any(libc::SYS_mremap),
    any(libc::SYS_madvise),
    any(libc::SYS_brk),
    only(libc::SYS_mmap, NOT_EXECUTABLE),
    only(libc::SYS_mprotect, NOT_EXECUTABLE),
    any(libc::SYS_clock_gettime),
    any(libc::SYS_clock_nanosleep),
    any(libc::SYS_nanosleep),
    any(libc::SYS_gettimeofday),
    any(libc::SYS_getrandom),
    any(libc::SYS_getpid),
    any(libc::SYS_gettid),
    any(libc::SYS_geteuid),
    any(libc::SYS_getcpu),
    any(libc::SYS_sched_getaffinity),
    // A shard's thread goes after its program's; 0 is the calling thread.
    only(libc::SYS_sched_setaffinity, &[&[Argument::Is(0, 0)]]),
    any(libc::SYS_rseq),
    any(libc::SYS_set_robust_list),
    any(libc::SYS_sigaltstack),
    any(libc::SYS_rt_sigprocmask),
    any(libc::SYS_rt_sigreturn),
    any(libc::SYS_restart_syscall),
    // A debug build asks whether what it closes is open.
    only(libc::SYS_fcntl, &[&[Argument::Is(1, libc::F_GETFD as u64)]]),
    // The first use of some calls looks for them in the auxiliary vector.
    only(
        libc::SYS_prctl,
        &[
            &[Argument::Is(0, libc::PR_SET_NAME as u64)],
            &[Argument::Is(0, PR_GET_AUXV)],
        ],
    ),
    // An abort is a signal to oneself.
    only(libc::SYS_tgkill, &[&[Argument::OwnProcess(0)]]),
    any(libc::SYS_exit),
    any(libc::SYS_exit_group),
];

/// Waiting for frames, doorbells and time.
const WAITING: &[Call] = &[
    any(libc::SYS_epoll_pwait),
    any(libc::SYS_epoll_pwait2),
    any(libc::SYS_ppoll),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_epoll_wait),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_poll),
    any(libc::SYS_epoll_ctl),
    any(libc::SYS_timerfd_settime),
    any(libc::SYS_read),
];

/// Frames in and out.
const FRAMES: &[Call] = &[
    any(libc::SYS_readv),
    any(libc::SYS_recvmsg),
    // How many frames the kernel had no room for.
    only(
        libc::SYS_getsockopt,
        &[&[Argument::Is(1, libc::SOL_PACKET as u64)]],
    ),
];

/// AF_XDP has frames sent by `sendto`, and its driver polled by `recvfrom`, both with neither data
/// nor an address of it.
const XDP: &[Call] = &[any(libc::SYS_sendto), any(libc::SYS_recvfrom)];

/// What AF_XDP sockets have lost, and who polls them.
const STATISTICS: &[Call] = &[only(
    libc::SYS_getsockopt,
    &[
        &[Argument::Is(1, libc::SOL_XDP as u64)],
        &[
            Argument::Is(1, libc::SOL_SOCKET as u64),
            Argument::Is(2, libc::SO_INCOMING_NAPI_ID as u64),
        ],
        &[
            Argument::Is(1, libc::SOL_SOCKET as u64),
            Argument::Is(2, libc::SO_PREFER_BUSY_POLL as u64),
        ],
    ],
)];

/// `BPF_MAP_UPDATE_ELEM`.
const MAP_UPDATE: u64 = 2;

/// A port is taken from the kernel by a socket that is bound to it, and the XDP program is told by
/// a map.
const SHARED: &[Call] = &[
    only(
        libc::SYS_socket,
        &[
            &[Argument::Is(0, libc::AF_INET as u64)],
            &[Argument::Is(0, libc::AF_INET6 as u64)],
        ],
    ),
    any(libc::SYS_bind),
    only(
        libc::SYS_setsockopt,
        &[&[
            Argument::Is(1, libc::IPPROTO_IPV6 as u64),
            Argument::Is(2, libc::IPV6_V6ONLY as u64),
        ]],
    ),
    only(libc::SYS_bpf, &[&[Argument::Is(0, MAP_UPDATE)]]),
];

/// The kernel's addresses and routes are read anew.
const NETWORK: &[Call] = &[
    only(
        libc::SYS_socket,
        &[&[
            Argument::Is(0, libc::AF_NETLINK as u64),
            Argument::Is(2, libc::NETLINK_ROUTE as u64),
        ]],
    ),
    any(libc::SYS_connect),
    any(libc::SYS_getsockname),
    any(libc::SYS_sendto),
    any(libc::SYS_recvfrom),
    only(libc::SYS_ioctl, &[&[Argument::Is(1, libc::SIOCGIFINDEX)]]),
];

/// What a file may be opened for: to be read.
const READ_ONLY: &[&[Argument]] = &[&[Argument::Bits(
    2,
    (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_PATH) as u64,
    libc::O_RDONLY as u64,
)]];

const SO_PASSRIGHTS: u64 = 83;

/// Programs, their regions and what they pass to each other; the command line; threads that close.
const CONTROL: &[Call] = &[
    any(libc::SYS_accept4),
    any(libc::SYS_recvmsg),
    any(libc::SYS_sendmsg),
    any(libc::SYS_epoll_create1),
    any(libc::SYS_eventfd2),
    any(libc::SYS_pidfd_open),
    any(libc::SYS_memfd_create),
    any(libc::SYS_ftruncate),
    any(libc::SYS_lseek),
    any(libc::SYS_fstat),
    any(libc::SYS_statx),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_newfstatat),
    any(libc::SYS_shutdown),
    // The name of the control socket goes with the engine, where its user may remove it.
    any(libc::SYS_unlinkat),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_unlink),
    // The parent of a process, the process of a pidfd, who may bind to low ports, and what the
    // audit log says of a process are read from /proc.
    only(libc::SYS_openat, READ_ONLY),
    any(libc::SYS_pread64),
    any(libc::SYS_readlinkat),
    #[cfg(target_arch = "x86_64")]
    any(libc::SYS_readlink),
    only(
        libc::SYS_getsockopt,
        &[&[Argument::Is(1, libc::SOL_SOCKET as u64)]],
    ),
    only(
        libc::SYS_setsockopt,
        &[
            &[
                Argument::Is(1, libc::SOL_SOCKET as u64),
                Argument::Is(2, libc::SO_PASSCRED as u64),
            ],
            &[
                Argument::Is(1, libc::SOL_SOCKET as u64),
                Argument::Is(2, SO_PASSRIGHTS),
            ],
        ],
    ),
    only(
        libc::SYS_socketpair,
        &[&[Argument::Is(0, libc::AF_UNIX as u64)]],
    ),
    // The name by which a descriptor on its way is known again.
    any(libc::SYS_bind),
    only(
        libc::SYS_fcntl,
        &[
            &[Argument::Is(1, libc::F_DUPFD_CLOEXEC as u64)],
            &[Argument::Is(1, libc::F_ADD_SEALS as u64)],
        ],
    ),
    // Limits are read, not set.
    only(
        libc::SYS_prlimit64,
        &[&[Argument::Is(0, 0), Argument::Null(2)]],
    ),
    // A thread of this process, in no namespace of its own.
    only(
        libc::SYS_clone,
        &[&[Argument::Bits(
            0,
            (libc::CLONE_THREAD | libc::CLONE_VM | NAMESPACES) as u64,
            (libc::CLONE_THREAD | libc::CLONE_VM) as u64,
        )]],
    ),
    // The closers' threads enter their role.
    any(libc::SYS_capget),
    any(libc::SYS_capset),
    only(
        libc::SYS_seccomp,
        &[&[Argument::Is(0, libc::SECCOMP_SET_MODE_FILTER as u64)]],
    ),
];

const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;

/// The kernel's interface may be given another link-layer address, which the wire then takes.
const CARD: &[Call] = &[
    only(libc::SYS_ioctl, &[&[Argument::Is(1, libc::SIOCGIFHWADDR)]]),
    only(
        libc::SYS_setsockopt,
        &[&[
            Argument::Is(1, libc::SOL_SOCKET as u64),
            Argument::Is(2, libc::SO_ATTACH_FILTER as u64),
        ]],
    ),
];

/// Who asks for counters is told them, if it reads them in time.
const CARD_CONTROL: &[Call] = &[
    any(libc::SYS_accept4),
    any(libc::SYS_sendto),
    only(
        libc::SYS_getsockopt,
        &[&[
            Argument::Is(1, libc::SOL_SOCKET as u64),
            Argument::Is(2, libc::SO_PEERCRED as u64),
        ]],
    ),
    only(
        libc::SYS_setsockopt,
        &[&[
            Argument::Is(1, libc::SOL_SOCKET as u64),
            Argument::Is(2, libc::SO_SNDTIMEO as u64),
        ]],
    ),
];

/// Calls that no thread of ours makes for any reason once it has its role, whatever a program
/// sends: one that does has been taken over. The process ends then, since it has the memory of all
/// programs; its connections are lost.
pub(crate) const DEADLY: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_open_by_handle_at,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_personality,
    libc::SYS_pkey_mprotect,
];

/// Calls that the C library tries and does without: a new thread by `clone3`, whose arguments a
/// filter cannot see, and the settings of the allocator in a file. They fail with ENOSYS, and are
/// neither counted nor said.
pub(crate) fn absent(role: Role) -> &'static [c_long] {
    match role {
        Role::Control => &[libc::SYS_clone3],
        _ => &[libc::SYS_clone3, libc::SYS_openat],
    }
}
