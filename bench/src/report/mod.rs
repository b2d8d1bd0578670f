//! What a run came to: written as JSON for programs, and as a page with plots for people.

mod page;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::figures::Spread;
use crate::load::Outcome;

/// Where `make bench-scaling` writes what `make bench` shows of it, and where that of a reference
/// machine is.
pub const SCALING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/scaling.json");
/// Likewise, of a reference machine: docs/scaling.md explains it.
pub const SCALING_PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/scaling.json");
/// How our own stack is called.
const OURS: &str = "millrace";

/// Everything that one run has measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// When it began, `YYYY-MM-DD-HHMM` in UTC.
    pub date: String,
    /// The commit that was measured, with `+` if the tree was changed; empty outside of a
    /// repository.
    pub commit: String,
    /// Kernel, processor and cores.
    pub machine: String,
    /// How everything was started and set up, in sentences that may have `commands` in them.
    #[serde(default)]
    pub setup: Vec<String>,
    /// What speaks against the figures: other work on the machine.
    pub warning: Option<String>,
    /// How often each subject was measured, in turns.
    pub rounds: usize,
    /// How long each measurement took, in seconds.
    pub seconds: f64,
    /// What was measured.
    pub scenarios: Vec<Scenario>,
    /// What was asked for and not measured, with the reason.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// How it scales with cores.
    #[serde(default)]
    pub curves: Vec<Curves>,
    /// What others said of their own designs, and what ours does.
    #[serde(default)]
    pub originals: Vec<Original>,
}

/// A figure over the number of cores, for several schemes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curves {
    /// A short name, fit for a file's.
    pub name: String,
    /// What is done, in a sentence.
    pub what: String,
    /// Of the values.
    pub unit: String,
    /// The schemes.
    pub lines: Vec<Curve>,
}

/// One scheme.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Cores, and the values of all rounds.
    pub points: Vec<(usize, Vec<f64>)>,
}

/// A figure of a design that ours comes from.
#[derive(Debug, Serialize, Deserialize)]
pub struct Original {
    /// Whose, and of what.
    pub what: String,
    /// As published, on their machines.
    pub theirs: String,
    /// Here, or why there is none.
    pub ours: String,
}

/// One comparison.
#[derive(Debug, Serialize, Deserialize)]
pub struct Scenario {
    /// The chapter it belongs to.
    pub group: String,
    /// A short name, fit for a file's.
    pub name: String,
    /// What is done, in a sentence.
    pub what: String,
    /// Of the values.
    pub unit: String,
    /// Whether less is better.
    pub less_is_better: bool,
    /// What ours should reach.
    pub goals: Vec<Goal>,
    /// Who was measured; ours first.
    pub subjects: Vec<Subject>,
    /// Why a goal is missed, or another is ahead, as far as it is known.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A bound on our median.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Goal {
    /// The subject that it is a ratio to; none for a bound on the value itself.
    pub against: Option<String>,
    /// The bound: the most if less is better, else the least.
    pub bound: f64,
}

/// One stack in a scenario.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Subject {
    /// Its name.
    pub stack: String,
    /// A value for each round.
    pub values: Vec<f64>,
    /// Of runs under load, everything else that was counted.
    pub outcomes: Vec<Outcome>,
    /// Why it has no values, or fewer than rounds.
    pub failure: Option<String>,
    /// Why it was not measured, where that is no failure: it cannot do as much, or nothing can
    /// count it.
    #[serde(default)]
    pub left_out: Option<String>,
}

impl Subject {
    /// One that has not been measured yet.
    pub fn named(stack: impl Into<String>) -> Subject {
        Subject {
            stack: stack.into(),
            ..Subject::default()
        }
    }

    /// Why there is no value, in words.
    pub fn without_value(&self) -> String {
        match (&self.left_out, &self.failure) {
            (Some(reason), _) => format!("not measured: {reason}"),
            (None, Some(failure)) => format!("failed: {failure}"),
            (None, None) => "failed: it gave no value".to_owned(),
        }
    }

    /// Median, least and greatest; `None` if it has failed in every round.
    pub fn spread(&self) -> Option<Spread> {
        Spread::of(self.values.clone())
    }
}

impl Scenario {
    /// Ours, in relation to another subject, round by round.
    pub fn ratio_to(&self, stack: &str) -> Option<Spread> {
        self.ratio(&self.subjects.first()?.stack, stack)
    }

    /// One subject in relation to another, round by round.
    pub fn ratio(&self, one: &str, other: &str) -> Option<Spread> {
        let values = |stack: &str| {
            let mut subjects = self.subjects.iter();
            Some(&subjects.find(|subject| subject.stack == stack)?.values)
        };
        let ratios = Spread::of_ratios(values(one)?, values(other)?)?;
        // Beside nothing there is no ratio.
        ratios.greatest.is_finite().then_some(ratios)
    }

    /// What a goal is about, as it was measured; `None` when there is nothing to compare.
    pub fn reached(&self, goal: &Goal) -> Option<f64> {
        match &goal.against {
            Some(stack) => Some(self.ratio_to(stack)?.median),
            None => Some(self.subjects.first()?.spread()?.median),
        }
    }

    /// Whether a goal is met; `None` when there is nothing to compare.
    pub fn meets(&self, goal: &Goal) -> Option<bool> {
        let value = self.reached(goal)?;
        Some(if self.less_is_better {
            value <= goal.bound
        } else {
            value >= goal.bound
        })
    }

    /// Whether all goals are met that can be judged; `None` when there are none.
    pub fn is_met(&self) -> Option<bool> {
        let judged = self.goals.iter().filter_map(|goal| self.meets(goal));
        judged.reduce(|all, one| all && one)
    }

    /// A goal in words.
    pub fn goal_text(&self, goal: &Goal) -> String {
        let most = if self.less_is_better {
            "at most"
        } else {
            "at least"
        };
        match &goal.against {
            Some(stack) => format!("{most} {} of {stack}'s", goal.bound),
            None => format!("{most} {} {}", goal.bound, self.unit),
        }
    }

    /// Every goal in words, and whether it is met.
    pub fn goals_text(&self) -> String {
        if self.goals.is_empty() {
            return "none".to_owned();
        }
        let each = self.goals.iter().map(|goal| {
            let met = match self.meets(goal) {
                Some(true) => "met",
                Some(false) => "missed",
                None => "cannot be judged",
            };
            format!("{}: {met}", self.goal_text(goal))
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// Whether its subjects are stacks, ours first, and not ours alone in several sizes.
    pub fn compares(&self) -> bool {
        let mut subjects = self.subjects.iter();
        subjects.next().is_some_and(|subject| subject.stack == OURS) && subjects.next().is_some()
    }

    /// Those that are ahead of ours by more than 3 %.
    pub fn ahead_of_ours(&self) -> Vec<&str> {
        if !self.compares() {
            return Vec::new();
        }
        let others = self.subjects.iter().skip(1);
        let others = others.filter(|subject| !subject.stack.starts_with(OURS));
        let is_ahead = |subject: &&Subject| {
            let Some(ratio) = self.ratio_to(&subject.stack) else {
                return false;
            };
            match self.less_is_better {
                true => ratio.median > 1.03,
                false => ratio.median < 0.97,
            }
        };
        others
            .filter(is_ahead)
            .map(|subject| subject.stack.as_str())
            .collect()
    }
}

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
