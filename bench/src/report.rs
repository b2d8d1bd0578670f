//! What a run came to: written as JSON for programs, and as a page with plots for people.

mod measured;
mod page;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use measured::{Curve, Curves, Goal, Original, Report, Scenario, Subject};

/// Where `make bench-scaling` writes what `make bench` shows of it.
pub const SCALING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/scaling.json");
/// The figures of a reference machine, which docs/scaling.md explains.
pub const SCALING_PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scaling.json");

impl Curves {
    /// Those in a file.
    ///
    /// # Errors
    /// Of the file system; when something else is in it.
    pub fn read(file: &str) -> Result<Vec<Curves>> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        serde_json::from_str(&text).with_context(|| format!("reading {file}"))
    }
}

impl Report {
    /// An empty one, of now and here.
    pub fn begin(rounds: usize, seconds: f64) -> Result<Report> {
        Ok(Report {
            date: said_by("date", &["-u", "+%Y-%m-%d-%H%M"])?,
            commit: commit(),
            machine: crate::machine::describe(),
            setup: Vec::new(),
            warning: crate::machine::warning(),
            rounds,
            seconds,
            scenarios: Vec::new(),
            left_out: Vec::new(),
            curves: Vec::new(),
            originals: Vec::new(),
        })
    }

    /// One that was written as JSON.
    ///
    /// # Errors
    /// Of the file system; when something else is in it.
    pub fn read(file: &Path) -> Result<Report> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("reading {}", file.display()))
    }

    /// Writes what there is so far as `DATE.json`, for whoever may have to stop.
    ///
    /// # Errors
    /// Of the file system.
    pub fn save(&self, directory: &Path) -> Result<PathBuf> {
        fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        let json = directory.join(format!("{}.json", self.date));
        fs::write(&json, serde_json::to_string_pretty(self)?)?;
        Ok(json)
    }

    /// Writes `DATE.json`, `DATE.html`, and `DATE.md` with its plots in `DATE/`; returns the paths
    /// of the first three.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write(&self, directory: &Path) -> Result<[PathBuf; 3]> {
        let place = |ending: &str| directory.join(format!("{}.{ending}", self.date));
        let json = self.save(directory)?;
        let [html, markdown] = ["html", "md"].map(place);
        fs::write(&html, page::html(self)?)?;
        self.write_markdown(&markdown, &self.date)?;
        Ok([json, html, markdown])
    }

    /// Writes a page in Markdown, and its plots into the folder `plots` beside it.
    ///
    /// # Errors
    /// Of the file system.
    pub fn write_markdown(&self, path: &Path, plots: &str) -> Result<()> {
        let folder = path.with_file_name(plots);
        // Those of an earlier report would stay.
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        for scenario in &self.scenarios {
            if let Some(svg) = plot::of(scenario)? {
                fs::write(folder.join(format!("{}.svg", scenario.name)), svg)?;
            }
        }
        for curves in &self.curves {
            fs::write(
                folder.join(format!("{}.svg", curves.name)),
                plot::curves(curves)?,
            )?;
        }
        Ok(fs::write(path, page::markdown(self, plots)?)?)
    }
}

fn commit() -> String {
    let Ok(commit) = said_by("git", &["rev-parse", "--short", "HEAD"]) else {
        return String::new();
    };
    match said_by("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Ok(changes) if changes.is_empty() => commit,
        _ => commit + "+",
    }
}

fn said_by(program: &str, arguments: &[&str]) -> Result<String> {
    let output = std::process::Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("running {program}"))?;
    anyhow::ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(less_is_better: bool, bound: f64) -> Scenario {
        let subject = |stack: &str, values: &[f64]| Subject {
            values: values.to_vec(),
            ..Subject::named(stack)
        };
        Scenario {
            group: "Group".into(),
            name: "name".into(),
            what: "what".into(),
            unit: "us".into(),
            less_is_better,
            goals: vec![Goal {
                against: Some("kernel".into()),
                bound,
            }],
            subjects: vec![
                subject("millrace", &[1.0, 2.0]),
                subject("kernel", &[2.0, 2.0]),
            ],
            reason: None,
        }
    }

    fn report() -> Report {
        let mut failed = scenario(true, 0.7);
        failed.subjects.push(Subject {
            failure: Some("it <crashed>".into()),
            ..Subject::named("other")
        });
        failed.subjects.push(Subject {
            left_out: Some("nothing counts it".into()),
            ..Subject::named("another")
        });
        Report {
            date: "2026-01-02-0304".into(),
            commit: "abc".into(),
            machine: "a machine".into(),
            setup: vec!["started by `server <address>`".into()],
            warning: None,
            rounds: 2,
            seconds: 1.0,
            scenarios: vec![failed],
            left_out: vec!["bulk: no time".into()],
            curves: Vec::new(),
            originals: vec![Original {
                what: "somebody's".into(),
                theirs: "2 times".into(),
                ours: "3 times".into(),
            }],
        }
    }

    #[test]
    fn a_goal_is_a_bound_in_the_direction_that_is_better() {
        assert_eq!(scenario(true, 0.75).is_met(), Some(true));
        assert_eq!(scenario(true, 0.7).is_met(), Some(false));
        assert_eq!(scenario(false, 0.75).is_met(), Some(true));
        assert_eq!(scenario(false, 0.8).is_met(), Some(false));
    }

    #[test]
    fn who_fails_is_in_the_report() {
        let page = page::html(&report()).unwrap();
        assert!(page.contains("it &lt;crashed&gt;"), "{page}");
        assert!(page.contains("<svg"));
        assert!(
            page.contains("<li>started by <code>server &lt;address&gt;</code></li>"),
            "{page}"
        );
        assert!(page.contains("<td>2 times</td><td>3 times</td>"), "{page}");
        let page = page::markdown(&report(), "plots").unwrap();
        assert!(page.contains("failed: it <crashed>"), "{page}");
        assert!(page.contains("not measured: nothing counts it"), "{page}");
        assert!(page.contains("- bulk: no time"), "{page}");
        assert!(page.contains("- started by `server <address>`"), "{page}");
        assert!(
            page.contains(
                "| [name](#name) | us | 1.50 | at most 0.7 of kernel's | 0.75 | missed |"
            ),
            "{page}"
        );
        assert!(
            page.contains("| somebody's | 2 times | 3 times |"),
            "{page}"
        );
        assert!(page.contains("![](plots/name.svg)"), "{page}");
    }

    #[test]
    fn who_is_ahead_is_named() {
        let mut behind = scenario(true, 0.7);
        behind.subjects[1].values = vec![0.5, 1.0];
        assert_eq!(behind.ahead_of_ours(), ["kernel"]);
        behind.less_is_better = false;
        assert!(behind.ahead_of_ours().is_empty());
        // Ours alone, in several sizes.
        behind.subjects[0].stack = "1,000 connections".into();
        behind.less_is_better = true;
        assert!(behind.ahead_of_ours().is_empty());
    }

    #[test]
    fn what_is_written_can_be_read() {
        let text = serde_json::to_string(&report()).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(read.scenarios[0].subjects.len(), 4);
    }
}
