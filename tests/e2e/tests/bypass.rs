//! What would go past millrace: io_uring is refused; sockets and programs that are the kernel's are said once and counted.

use millrace_e2e::{Result, Stack, World, compile, ensure, on_both_stacks, seconds};

on_both_stacks!(io_uring_is_refused_and_said_once);

fn io_uring_is_refused_and_said_once(world: &World) -> Result<()> {
    let program = compile::program("uring")?;
    let ended = world.run_on_subject(&[&program], seconds(15))?;
    let expected = match world.stack {
        Stack::Kernel => "a ring",
        Stack::Millrace => "ENOSYS",
    };
    let said = ended.text();
    for way in ["library", "instruction", "child"] {
        ensure!(said.contains(&format!("{way}: {expected}\n")), "{said}");
    }
    let lines = ended.error_text().matches("io_uring is refused").count();
    let expected = usize::from(world.stack == Stack::Millrace);
    ensure!(lines == expected, "{}", ended.error_text());
    Ok(())
}
