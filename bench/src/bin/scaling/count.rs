//! What cores that take turns do, counted by valgrind: instructions, those of them that lock, and
//! writes to memory that several cores write.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// What a plan costs for each message and its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Instructions, without those of the load.
    pub instructions: f64,
    /// Instructions of the load.
    pub load: f64,
    /// Instructions that lock: with the prefix, or an exchange with memory.
    pub locked: f64,
}

/// Writes to lines that more than one core wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// For each message and its answer.
    pub each: f64,
    /// Lines of 64 bytes.
    pub lines: usize,
}

/// Counts instructions of a `play` with these arguments.
pub fn instructions(play: &[String]) -> Result<Cost> {
    let all = callgrind(play, "*counted_turn*", true)?;
    let load = callgrind(play, "*client_turn*", false)?;
    Ok(Cost {
        instructions: (all.instructions - load.instructions) as f64 / all.answered as f64,
        load: load.instructions as f64 / load.answered as f64,
        locked: all.locked as f64 / all.answered as f64,
    })
}

struct Counted {
    instructions: u64,
    locked: u64,
    answered: u64,
}

/// What was executed inside a function.
fn callgrind(play: &[String], within: &str, addresses: bool) -> Result<Counted> {
    let out = std::env::temp_dir().join(format!("millrace-scaling-{}", std::process::id()));
    let mut command = Command::new("valgrind");
    command
        .args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(format!("--toggle-collect={within}"))
        .arg(format!(
            "--dump-instr={}",
            if addresses { "yes" } else { "no" }
        ))
        .arg(format!("--callgrind-out-file={}", out.display()))
        // Else `rep movsb` counts an instruction for each byte, or not, as the processor has it.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.x86_rep_movsb_threshold=1000000000",
        )
        .arg(std::env::current_exe()?)
        .args(play);
    let ran = command.output().context("running valgrind")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "valgrind: {said}");
    let answered = number(&String::from_utf8_lossy(&ran.stdout), "answered")?;
    let text =
        std::fs::read_to_string(&out).with_context(|| format!("reading {}", out.display()))?;
    std::fs::remove_file(&out)?;
    let executed = executed(&text, addresses);
    let mut counted = Counted {
        instructions: executed.values().flat_map(HashMap::values).sum(),
        locked: 0,
        answered,
    };
    ensure!(
        counted.instructions > 0,
        "callgrind saw nothing of {within}"
    );
    if addresses {
        for (object, at) in &executed {
            // What valgrind itself has put there is in no file.
            if std::path::Path::new(object).exists() {
                counted.locked += locking(object)?
                    .iter()
                    .filter_map(|address| at.get(address))
                    .sum::<u64>();
            }
        }
    }
    Ok(counted)
}

/// The number behind a word.
fn number(text: &str, word: &str) -> Result<u64> {
    let mut words = text.split_whitespace();
    words.find(|at| *at == word);
    let number = words.next().and_then(|number| number.parse().ok());
    number.with_context(|| format!("no {word} in: {text}"))
}

/// How often what was executed, for each object by address. Without addresses everything of an
/// object is at 0.
fn executed(text: &str, addresses: bool) -> BTreeMap<String, HashMap<u64, u64>> {
    let mut executed: BTreeMap<String, HashMap<u64, u64>> = BTreeMap::new();
    let mut object = String::new();
    let mut of_call = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name.to_string();
        } else if line.starts_with("calls=") {
            // The line behind it has what was called in it, which has lines of its own.
            of_call = true;
        } else if line.starts_with(|at: char| at.is_ascii_digit()) {
            if std::mem::take(&mut of_call) {
                continue;
            }
            let mut fields = line.split(' ');
            let address = if addresses {
                fields.next().and_then(hexadecimal)
            } else {
                Some(0)
            };
            if let (Some(address), Some(Ok(count))) =
                (address, fields.nth(1).map(str::parse::<u64>))
            {
                *executed
                    .entry(object.clone())
                    .or_default()
                    .entry(address)
                    .or_default() += count;
            }
        }
    }
    executed
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Where an object has instructions that lock.
fn locking(object: &str) -> Result<HashSet<u64>> {
    let ran = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", object])
        .output()
        .context("running objdump")?;
    ensure!(
        ran.status.success(),
        "objdump {object}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let lines = String::from_utf8_lossy(&ran.stdout);
    let locking = lines.lines().filter_map(|line| {
        let (address, instruction) = line.trim_start().split_once(":\t")?;
        is_locking(instruction).then(|| u64::from_str_radix(address, 16).ok())?
    });
    Ok(locking.collect())
}

/// Whether an instruction locks: exchanges with memory do so without saying it.
fn is_locking(instruction: &str) -> bool {
    let mut words = instruction.split_whitespace();
    match words.next() {
        Some("lock") => true,
        Some(word) if word.starts_with("xchg") => instruction.contains('('),
        _ => false,
    }
}

/// Follows every write of a `play` with these arguments.
pub fn writes(play: &[String]) -> Result<Writes> {
    let mut child = Command::new("valgrind")
        .args([
            "--tool=lackey",
            "--trace-mem=yes",
            "--basic-counts=no",
            "--log-fd=1",
        ])
        .arg(std::env::current_exe()?)
        .args(play)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("running valgrind")?;
    let stdout = child.stdout.take().context("a pipe")?;
    let mut trace = Trace::default();
    for line in BufReader::with_capacity(1 << 20, stdout).lines() {
        trace.line(&line?);
    }
    ensure!(child.wait()?.success(), "lackey has failed");
    ensure!(trace.answered > 0, "lackey has seen no play");
    let shared = trace
        .lines
        .values()
        .filter(|line| line.cores.count_ones() > 1);
    let (writes, lines) = shared.fold((0, 0), |(writes, lines), line| {
        (writes + line.writes, lines + 1)
    });
    Ok(Writes {
        each: writes as f64 / trace.answered as f64,
        lines,
    })
}

#[derive(Default)]
struct Line {
    /// Who wrote it, a bit each.
    cores: u64,
    writes: u64,
}

/// What is known from a trace so far.
#[derive(Default)]
struct Trace {
    marks: usize,
    apart: usize,
    /// Where the threads' stacks are: what each has of its own, and writes to while it waits for
    /// its turn, too.
    stacks: Vec<std::ops::Range<usize>>,
    core: Option<u32>,
    lines: HashMap<usize, Line>,
    answered: u64,
}

/// How far a thread's stack may reach below and above a variable of its first function.
const STACK: (usize, usize) = (1 << 20, 16 << 10);

impl Trace {
    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["S" | "M", place] => {
                let address = place
                    .split(',')
                    .next()
                    .and_then(|at| usize::from_str_radix(at, 16).ok());
                if let Some(address) = address {
                    self.write(address);
                }
            }
            ["marks", at, "apart", apart] => {
                let number = |text: &str| text.parse().unwrap_or(0);
                (self.marks, self.apart) = (number(at), number(apart));
            }
            ["stack", at] => {
                let at: usize = at.parse().unwrap_or(0);
                self.stacks.push(at.saturating_sub(STACK.0)..at + STACK.1);
            }
            ["answered", number] => self.answered = number.parse().unwrap_or(0),
            _ => {}
        }
    }

    fn write(&mut self, address: usize) {
        let of_marks = 1 + crate::schemes::CORES_MAX;
        if self.marks > 0 && (self.marks..self.marks + of_marks * self.apart).contains(&address) {
            self.core = ((address - self.marks) / self.apart)
                .checked_sub(1)
                .map(|core| core as u32);
        } else if let Some(core) = self.core
            && !self.stacks.iter().any(|stack| stack.contains(&address))
        {
            let line = self.lines.entry(address / 64).or_default();
            line.cores |= 1 << core;
            line.writes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_lock_are_known() {
        assert!(is_locking("lock cmpxchg %ecx,(%rbx)"));
        assert!(is_locking("xchg   %eax,(%rdi)"));
        assert!(!is_locking("xchg   %ax,%ax"));
        assert!(!is_locking("mov    %eax,(%rdi)"));
    }

    #[test]
    fn what_was_called_is_counted_once() {
        let text = "ob=/a\nfn=f\n0x10 3 5\n0x14 3 7\ncfn=g\ncalls=1 0x20 0\n0x14 3 900\nob=/b\nfn=g\n0x20 1 2\n";
        let executed = executed(text, true);
        assert_eq!(executed["/a"], HashMap::from([(0x10, 5), (0x14, 7)]));
        assert_eq!(executed["/b"], HashMap::from([(0x20, 2)]));
    }

    #[test]
    fn writes_of_several_cores_to_a_line_are_told_from_others() {
        let mut trace = Trace::default();
        for line in [
            " S 1000,8",
            "marks 65536 apart 64",
            "stack 1073741824",
            " S 00010040,1", // core 0
            " S 2000,8",
            " M 3000,4",
            " S 3ffffff8,8", // its stack
            " L 2000,8",
            " S 00010080,1", // core 1
            " S 2038,8",
            " S 3ffffff8,8",
            " S 00010000,1", // nobody
            " S 3000,8",
            "answered 2",
        ] {
            trace.line(line);
        }
        let shared: Vec<_> = trace
            .lines
            .iter()
            .filter(|(_, line)| line.cores.count_ones() > 1)
            .collect();
        assert_eq!(shared.len(), 1);
        assert_eq!((*shared[0].0, shared[0].1.writes), (0x2000 / 64, 2));
        assert_eq!(trace.answered, 2);
    }
}
