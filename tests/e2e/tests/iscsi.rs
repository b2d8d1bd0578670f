//! iSCSI: an unmodified target (`tgtd`) and unmodified initiators (the tools of `libiscsi`), either
//! of them on the stack under test.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::programs::Tgtd;
use millrace_e2e::{
    Context as _, PEER, Process, Result, SUBJECT, World, compile, ensure,
    on_both_stacks_and_a_pipeline, seconds, wait_until,
};

on_both_stacks_and_a_pipeline!(
    target_keeps_what_initiators_write,
    initiators_are_served_by_the_kernel,
    target_passes_the_families_of_the_test_suite,
);

const PORT: u16 = 3260;
/// Bytes of the disk.
const DISK: usize = 32 << 20;

/// Families of libiscsi's test suite that a disk of this target has something for.
const FAMILIES: [&str; 24] = [
    "CompareAndWrite",
    "Inquiry",
    "Mandatory",
    "ModeSense6",
    "OrWrite",
    "Prefetch10",
    "PrinReadKeys",
    "ProutRegister",
    "Read6",
    "Read10",
    "Read12",
    "Read16",
    "ReadCapacity10",
    "ReadCapacity16",
    "ReportSupportedOpcodes",
    "TestUnitReady",
    "Verify10",
    "Verify16",
    "Write10",
    "Write16",
    "WriteSame10",
    "WriteVerify10",
    "iSCSIcmdsn",
    "iSCSIResiduals",
];

/// A target with one disk, which is a file.
struct Target {
    server: Process,
    address: Ipv4Addr,
    disk: PathBuf,
    tgtd: Tgtd,
}

impl Target {
    /// One on the stack under test, or on the peer.
    fn start(world: &World, on_subject: bool) -> Result<Target> {
        let tgtd = Tgtd::of(world);
        let disk = world.directory().join("disk");
        write_file(&disk, 1, DISK)?;
        let address = if on_subject { SUBJECT } else { PEER };
        let words = tgtd.words(&address.to_string(), PORT);
        let mut server = match on_subject {
            true => world.subject(&words)?,
            false => world.peer(&words)?,
        };
        wait_until("tgtd takes orders", seconds(15), || {
            server.ensure_not_failed()?;
            Ok(tgtd.is_ready())
        })?;
        tgtd.make(&disk)?;
        Ok(Target {
            server,
            address,
            disk,
            tgtd,
        })
    }

    fn url(&self) -> String {
        format!("iscsi://{}:{PORT}/{}/1", self.address, Tgtd::NAME)
    }

    /// What an initiator wrote came back to it, and is on the disk.
    fn ensure_kept(&self, world: &World, on_subject: bool) -> Result<()> {
        let (written, copy) = (
            world.directory().join("written"),
            world.directory().join("copy"),
        );
        write_file(&written, 2, DISK)?;
        let program = compile::program("iscsi")?;
        let (from, to) = (written.display().to_string(), copy.display().to_string());
        let words = [&program, &self.url(), &from, &to];
        let ended = match on_subject {
            true => world.run_on_subject(&words, seconds(60))?,
            false => world.run_on_peer(&words, seconds(60))?,
        };
        ensure!(ended.text().trim() == "128 pieces", "{}", ended.text());
        ensure_same(&written, &copy)?;
        ensure_same(&written, &self.disk)
    }

    fn stop(self) -> Result<()> {
        self.tgtd.end()?;
        self.server.wait(seconds(20))?.success().map(|_| ())
    }
}

/// Runs a tool on the stack under test, or on the peer; what it says.
fn tool(world: &World, on_subject: bool, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let ended = match on_subject {
        true => world.run_on_subject(&words, seconds(60))?,
        false => world.run_on_peer(&words, seconds(60))?,
    };
    Ok(ended.success()?.text())
}

/// Lists, asks, reads as fast as it can, and writes and compares.
fn use_with_all_tools(world: &World, target: &Target, on_subject: bool) -> Result<()> {
    let (address, url) = (target.address, target.url());
    let listed = tool(
        world,
        on_subject,
        &format!("iscsi-ls -s iscsi://{address}:{PORT}"),
    )?;
    ensure!(
        listed.contains(Tgtd::NAME) && listed.contains("DIRECT_ACCESS (Size:31M)"),
        "{listed}"
    );
    let about = tool(world, on_subject, &format!("iscsi-inq {url}"))?;
    ensure!(about.contains("Peripheral Qualifier:CONNECTED"), "{about}");
    let capacity = tool(world, on_subject, &format!("iscsi-readcapacity16 {url}"))?;
    ensure!(
        capacity.contains(&format!("Total size:{DISK}")),
        "{capacity}"
    );
    let read = tool(
        world,
        on_subject,
        &format!("iscsi-perf -m 32 -b 128 -t 2 {url}"),
    )?;
    ensure!(read.contains("finished."), "{read}");
    let read = tool(
        world,
        on_subject,
        &format!("iscsi-perf -r -m 8 -b 8 -t 2 {url}"),
    )?;
    ensure!(read.contains("finished."), "{read}");
    target.ensure_kept(world, on_subject)
}

fn target_keeps_what_initiators_write(world: &World) -> Result<()> {
    let target = Target::start(world, true)?;
    use_with_all_tools(world, &target, false)?;
    target.stop()
}

fn initiators_are_served_by_the_kernel(world: &World) -> Result<()> {
    let target = Target::start(world, false)?;
    use_with_all_tools(world, &target, true)?;
    target.stop()
}

fn target_passes_the_families_of_the_test_suite(world: &World) -> Result<()> {
    let target = Target::start(world, true)?;
    for family in FAMILIES {
        let line = format!(
            "iscsi-test-cu --dataloss --test ALL.{family} {}",
            target.url()
        );
        let said = tool(world, false, &line).with_context(|| family.to_owned())?;
        // "tests TOTAL RAN PASSED FAILED INACTIVE"
        let tests = said
            .lines()
            .find(|line| line.trim_start().starts_with("tests"));
        let counts: Vec<u32> = tests
            .into_iter()
            .flat_map(|line| line.split_whitespace().skip(1))
            .filter_map(|number| number.parse().ok())
            .collect();
        ensure!(
            matches!(counts[..], [_, ran, passed, 0, _] if ran > 0 && ran == passed),
            "{family}: {said}"
        );
    }
    target.stop()
}
