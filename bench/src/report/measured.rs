//! What a report says, as it is written to JSON and read from it.

use serde::{Deserialize, Serialize};

use crate::figures::Spread;
use crate::load::Outcome;

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
