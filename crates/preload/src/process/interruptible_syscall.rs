//! System calls that sleep unless a signal handler has run since a given moment.
//!
//! A handler could run between the comparison of its count and the system call, and the call would
//! sleep all the same. So comparison and call are one piece of assembly. Before each handler runs,
//! [`restart`] moves a thread that stands in that piece back to its beginning. A call that the
//! kernel would restart (SA_RESTART) also stands there, so the comparison decides.

use std::cell::Cell;
use std::ffi::{c_long, c_void};

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden millrace_interruptible",
    ".globl millrace_interruptible",
    ".type millrace_interruptible, @function",
    // rdi: the call's number and its arguments; rsi: the count; edx: the count that was seen.
    "millrace_interruptible:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r12, 0",
    "mov rbx, rsi",
    "mov r12d, edx",
    "mov rax, [rdi]",
    "mov rsi, [rdi + 16]",
    "mov rdx, [rdi + 24]",
    "mov r10, [rdi + 32]",
    "mov r8, [rdi + 40]",
    "mov r9, [rdi + 48]",
    "mov rdi, [rdi + 8]",
    ".hidden millrace_interruptible_look",
    ".globl millrace_interruptible_look",
    "millrace_interruptible_look:",
    "cmp dword ptr [rbx], r12d",
    "jne 2f",
    ".hidden millrace_interruptible_call",
    ".globl millrace_interruptible_call",
    "millrace_interruptible_call:",
    "syscall",
    "1:",
    "pop r12",
    ".cfi_remember_state",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r12",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    "2:",
    ".cfi_restore_state",
    "mov rax, -4", // EINTR
    "jmp 1b",
    ".cfi_endproc",
    ".size millrace_interruptible, . - millrace_interruptible",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".hidden millrace_interruptible",
    ".globl millrace_interruptible",
    ".type millrace_interruptible, @function",
    // x0: the call's number and its arguments; x1: the count; w2: the count that was seen. The
    // kernel keeps every register but x0.
    "millrace_interruptible:",
    ".cfi_startproc",
    "mov x9, x1",
    "mov w10, w2",
    "ldr x8, [x0]",
    "ldp x1, x2, [x0, 16]",
    "ldp x3, x4, [x0, 32]",
    "ldr x5, [x0, 48]",
    "ldr x0, [x0, 8]",
    ".hidden millrace_interruptible_look",
    ".globl millrace_interruptible_look",
    "millrace_interruptible_look:",
    "ldr w11, [x9]",
    "cmp w11, w10",
    "b.ne 2f",
    ".hidden millrace_interruptible_call",
    ".globl millrace_interruptible_call",
    "millrace_interruptible_call:",
    "svc 0",
    "ret",
    "2:",
    "mov x0, -4", // EINTR
    "ret",
    ".cfi_endproc",
    ".size millrace_interruptible, . - millrace_interruptible",
);

unsafe extern "C" {
    fn millrace_interruptible(words: *const c_long, count: *const u32, seen: u32) -> c_long;
    static millrace_interruptible_look: u8;
    static millrace_interruptible_call: u8;
}

/// Makes a system call by its number and six arguments, and returns the kernel's result. Returns
/// EINTR without the call if `count`, the calling thread's count of handlers, differs from `seen`.
///
/// # Safety
/// The requirements of the system call hold.
pub unsafe fn call(words: &[c_long; 7], count: &Cell<u32>, seen: u32) -> c_long {
    // SAFETY: the caller's promise; the count is this thread's and is only read.
    unsafe { millrace_interruptible(words.as_ptr(), count.as_ptr(), seen) }
}

/// Called before a handler runs. A thread that stands between the comparison and the call compares
/// again after the handler.
///
/// # Safety
/// `context` is the kernel's context of a signal handler.
pub unsafe fn restart(context: *mut c_void) {
    let (look, call) = (
        &raw const millrace_interruptible_look as usize,
        &raw const millrace_interruptible_call as usize,
    );
    // SAFETY: the caller's promise.
    let at = unsafe { instruction(context) };
    if (look..=call).contains(at) {
        *at = look;
    }
}

/// The instruction at which the thread continues after the handler.
///
/// # Safety
/// `context` is the kernel's context of a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn instruction<'a>(context: *mut c_void) -> &'a mut usize {
    // SAFETY: the caller's promise; a register is a word.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        let registers = &raw mut (*context).uc_mcontext.gregs;
        &mut *registers.cast::<usize>().add(libc::REG_RIP as usize)
    }
}

/// The instruction at which the thread continues after the handler.
///
/// # Safety
/// `context` is the kernel's context of a signal handler.
#[cfg(target_arch = "aarch64")]
unsafe fn instruction<'a>(context: *mut c_void) -> &'a mut usize {
    // SAFETY: the caller's promise; a register is a word.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        &mut *(&raw mut (*context).uc_mcontext.pc).cast::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_has_moved_ends_the_call_before_it_is_made() {
        let count = Cell::new(7);
        let words = [libc::SYS_getpid, 0, 0, 0, 0, 0, 0];
        // SAFETY: it asks for a number.
        let own = unsafe { call(&words, &count, 7) };
        assert_eq!(own, c_long::from(std::process::id()));
        // SAFETY: as above.
        let none = unsafe { call(&words, &count, 6) };
        assert_eq!(none, -c_long::from(libc::EINTR));
    }

    #[test]
    fn six_arguments_arrive() {
        let count = Cell::new(0);
        let protection = c_long::from(libc::PROT_READ | libc::PROT_WRITE);
        let kind = c_long::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let words = [libc::SYS_mmap, 0, 8192, protection, kind, -1, 0];
        // SAFETY: new memory.
        let at = unsafe { call(&words, &count, 0) };
        assert!(at > 0, "{at}");
        // SAFETY: mapped above.
        unsafe {
            *(at as *mut u8).add(8191) = 1;
            libc::munmap(at as *mut c_void, 8192);
        }
    }

    /// Single steps of the processor run the program's handler at each instruction of the piece in
    /// turn.
    #[cfg(target_arch = "x86_64")]
    mod at_each_instruction {
        use std::arch::asm;
        use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

        use libc::{c_int, siginfo_t};

        use super::*;

        /// The processor's flag that raises SIGTRAP after each instruction.
        const TRAP: i64 = 1 << 8;

        /// How many instructions of the piece run before the handler.
        static BEFORE: AtomicUsize = AtomicUsize::new(0);
        /// The instruction at which the handler ran; 0 if it did not.
        static RAN_AT: AtomicUsize = AtomicUsize::new(0);
        static COUNT: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
        static LOOKS_AGAIN: AtomicBool = AtomicBool::new(false);

        extern "C" fn step(_signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
            // SAFETY: the kernel's context of this very signal.
            let at = unsafe { *instruction(context) };
            let piece = millrace_interruptible as *const () as usize;
            // Two pops and the return follow the system call.
            let end = &raw const millrace_interruptible_call as usize + 6;
            if !(piece..end).contains(&at) {
                return;
            }
            if BEFORE.load(Ordering::Relaxed) > 0 {
                BEFORE.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            RAN_AT.store(at, Ordering::Relaxed);
            // As in `signals::enter`.
            // SAFETY: the count is the test's, which waits for this handler; the context as above.
            unsafe {
                *COUNT.load(Ordering::Relaxed) += 1;
                if LOOKS_AGAIN.load(Ordering::Relaxed) {
                    restart(context);
                }
                let registers = &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
                (*registers)[libc::REG_EFL as usize] &= !TRAP;
            }
        }

        /// Makes the call with a handler at instruction `number` of the piece. Returns the
        /// instruction's address and the call's result, or `None` if the piece is shorter.
        fn with_handler_at(number: usize) -> Option<(usize, c_long)> {
            let count = Cell::new(0);
            COUNT.store(count.as_ptr(), Ordering::Relaxed);
            BEFORE.store(number, Ordering::Relaxed);
            RAN_AT.store(0, Ordering::Relaxed);
            let words = [libc::SYS_getpid, 0, 0, 0, 0, 0, 0];
            // SAFETY: single steps change nothing but that `step` runs after each; the call asks
            // for a number.
            let result = unsafe {
                asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
                let result = call(&words, &count, 0);
                asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
                result
            };
            match RAN_AT.load(Ordering::Relaxed) {
                0 => None,
                at => Some((at, result)),
            }
        }

        /// The instructions at which a handler does not prevent the system call.
        fn missed() -> Vec<usize> {
            let call = &raw const millrace_interruptible_call as usize;
            let all = (0..).map_while(with_handler_at);
            let mut missed = Vec::new();
            let mut after = 0;
            for (at, result) in all {
                if at > call {
                    after += 1;
                    assert_eq!(result, c_long::from(std::process::id()), "it has been made");
                } else if result != -c_long::from(libc::EINTR) {
                    missed.push(at);
                }
            }
            assert!(after > 0, "every instruction has been gone through");
            missed
        }

        #[test]
        fn a_handler_before_the_call_ends_it_wherever_it_comes() {
            // SAFETY: a good action; no other thread of the tests traps.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = step as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(
                    libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()),
                    0
                );
            }
            LOOKS_AGAIN.store(true, Ordering::Relaxed);
            assert_eq!(missed(), []);
            // Without the second comparison, a handler after the first one is not noticed.
            LOOKS_AGAIN.store(false, Ordering::Relaxed);
            let call = &raw const millrace_interruptible_call as usize;
            let missed = missed();
            assert!(missed.contains(&call) && missed.len() == 2, "{missed:x?}");
        }
    }
}
