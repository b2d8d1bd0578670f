//! The shim's state of the calling thread.

pub mod thread {
    use std::cell::Cell;

    #[derive(Default)]
    pub struct Thread {
        number: Cell<u32>,
        pub batch: Cell<bool>,
        pub unrung: Cell<u64>,
        pub urgent: Cell<bool>,
    }

    loom::thread_local! {
        static THREAD: Thread = Thread::default();
    }

    pub fn with<T>(use_it: impl FnOnce(&Thread) -> T) -> T {
        THREAD.with(use_it)
    }

    pub fn number() -> u32 {
        with(|thread| thread.number.get())
    }

    /// Gives the calling thread the context of this number.
    pub fn begin(number: u32) {
        with(|thread| thread.number.set(number));
    }
}
