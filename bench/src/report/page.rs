//! The report as a page: Markdown with plots beside it, HTML with all in one file.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Original, Report, Scenario, plot};
use crate::figures::{Spread, short};
use crate::load::Outcome;

/// The title of what others said.
const ORIGINALS: &str = "What the designs that this comes from said of themselves";

/// Markdown; the plots are in the folder `plots` beside it.
pub(super) fn markdown(report: &Report, plots: &str) -> Result<String> {
    let mut out = format!("# Figures of {}\n\n", report.date);
    for line in heading(report) {
        writeln!(out, "{line}\n")?;
    }
    for (group, scenarios) in groups(report) {
        writeln!(out, "## {group}\n")?;
        for scenario in scenarios {
            writeln!(out, "### {}\n\n{}\n", scenario.name, scenario.what)?;
            let [head, rows @ ..] = &table(scenario)[..] else {
                continue;
            };
            writeln!(
                out,
                "| {} |\n|---|{}",
                head.join(" | "),
                "--:|".repeat(head.len() - 1)
            )?;
            for row in rows {
                writeln!(out, "| {} |", row.join(" | "))?;
            }
            writeln!(out, "\n{}\n", verdict(scenario))?;
            for (kind, _) in plot::all(scenario)? {
                writeln!(out, "![]({plots}/{}-{kind}.svg)\n", scenario.name)?;
            }
        }
    }
    if !report.originals.is_empty() {
        writeln!(out, "## {ORIGINALS}\n\n| | theirs | here |\n|---|---|---|")?;
        for original in &report.originals {
            let Original { what, theirs, ours } = original;
            writeln!(out, "| {what} | {theirs} | {ours} |")?;
        }
    }
    Ok(out.trim_end().to_owned() + "\n")
}

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.6rem 0}td,th{padding:.15rem .7rem;border-bottom:1px solid #ccc;text-align:right}\
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;margin:.6rem 0}\
h2{margin-top:2.5rem;border-bottom:2px solid #222}.met{color:#27763a}.missed,.failed{color:#a32a2a}.note{color:#555}";

/// HTML, plots and style in it.
pub(super) fn html(report: &Report) -> Result<String> {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>millrace: figures of {}</title><style>{STYLE}</style></head><body>\n<h1>millrace: figures of {}</h1>\n",
        report.date, report.date
    );
    for line in heading(report) {
        writeln!(out, "<p class=\"note\">{}</p>", escaped(&line))?;
    }
    for (group, scenarios) in groups(report) {
        writeln!(out, "<h2>{}</h2>", escaped(group))?;
        for scenario in scenarios {
            writeln!(
                out,
                "<h3>{}</h3>\n<p>{}</p>\n<table>",
                escaped(&scenario.name),
                escaped(&scenario.what)
            )?;
            for (at, row) in table(scenario).iter().enumerate() {
                let cell = if at == 0 { "th" } else { "td" };
                let cells = row.iter().map(|text| {
                    let class = if text.starts_with("failed") {
                        " class=\"failed\""
                    } else {
                        ""
                    };
                    format!("<{cell}{class}>{}</{cell}>", escaped(text))
                });
                writeln!(out, "<tr>{}</tr>", cells.collect::<String>())?;
            }
            let class = match scenario.is_met() {
                Some(true) => "met",
                Some(false) => "missed",
                None => "note",
            };
            writeln!(
                out,
                "</table>\n<p class=\"{class}\">{}</p>",
                escaped(&verdict(scenario))
            )?;
            for (_, svg) in plot::all(scenario)? {
                writeln!(out, "{svg}")?;
            }
        }
    }
    if !report.originals.is_empty() {
        writeln!(
            out,
            "<h2>{ORIGINALS}</h2>\n<table>\n<tr><th></th><th>theirs</th><th>here</th></tr>"
        )?;
        for original in &report.originals {
            let [what, theirs, ours] =
                [&original.what, &original.theirs, &original.ours].map(|text| escaped(text));
            writeln!(
                out,
                "<tr><td>{what}</td><td>{theirs}</td><td>{ours}</td></tr>"
            )?;
        }
        writeln!(out, "</table>")?;
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

/// What holds for all of it.
fn heading(report: &Report) -> Vec<String> {
    let of = match report.commit.as_str() {
        "" => String::new(),
        commit => format!(" of commit {commit}"),
    };
    let mut lines = vec![
        report.machine.clone(),
        format!(
            "{} rounds{of}, in turns, {} s each. Median (least .. greatest). Ratios are taken round by round.",
            report.rounds, report.seconds
        ),
    ];
    lines.extend(report.warning.clone());
    lines
}

/// The scenarios by their groups, in the order in which they came.
fn groups(report: &Report) -> Vec<(&str, Vec<&Scenario>)> {
    let mut groups: Vec<(&str, Vec<&Scenario>)> = Vec::new();
    for scenario in &report.scenarios {
        match groups
            .iter_mut()
            .find(|(group, _)| *group == scenario.group)
        {
            Some((_, of)) => of.push(scenario),
            None => groups.push((&scenario.group, vec![scenario])),
        }
    }
    groups
}

/// Heading and rows of a scenario's table.
fn table(scenario: &Scenario) -> Vec<Vec<String>> {
    let loaded = scenario
        .subjects
        .iter()
        .any(|subject| !subject.outcomes.is_empty());
    let mut head = vec![
        "stack".to_owned(),
        scenario.unit.clone(),
        "ours to it".to_owned(),
    ];
    if loaded {
        head.extend(["per second", "us of CPU each", "latency 50/99/99.9 %, us"].map(String::from));
    }
    let mut rows = vec![head];
    for (at, subject) in scenario.subjects.iter().enumerate() {
        let values = match (subject.spread(), &subject.failure) {
            (Some(spread), None) => spread.to_string(),
            (Some(spread), Some(failure)) => format!("{spread}, then failed: {failure}"),
            (None, failure) => format!("failed: {}", failure.as_deref().unwrap_or("no value")),
        };
        let ratio = match at {
            0 => String::new(),
            _ => scenario
                .ratio_to(&subject.stack)
                .map_or_else(String::new, |ratio| ratio.to_string()),
        };
        let mut row = vec![subject.stack.clone(), values, ratio];
        if loaded {
            let spread = |of: &dyn Fn(&Outcome) -> f64| {
                Spread::of(subject.outcomes.iter().map(of).collect())
                    .map_or_else(String::new, |spread| short(spread.median))
            };
            let is_bulk = subject
                .outcomes
                .iter()
                .all(|outcome| outcome.operations == 0);
            row.extend(match is_bulk {
                true => [
                    String::new(),
                    format!(
                        "{} per MB",
                        spread(&|outcome| outcome.cpu_us_per_megabyte())
                    ),
                    String::new(),
                ],
                false => [
                    spread(&|outcome| outcome.rate()),
                    spread(&|outcome| outcome.cpu_us()),
                    match subject.outcomes.iter().any(Outcome::has_latency) {
                        true => [0, 2, 3]
                            .map(|at| spread(&|outcome| outcome.latency_us[at]))
                            .join("/"),
                        false => String::new(),
                    },
                ],
            });
        }
        rows.push(row);
    }
    rows
}

/// What is said of the goal.
fn verdict(scenario: &Scenario) -> String {
    let better = if scenario.less_is_better {
        "Less"
    } else {
        "More"
    };
    let met = match scenario.is_met() {
        Some(true) => ": met",
        Some(false) => ": missed",
        None => "",
    };
    format!("{better} is better. Goal: {}{met}.", scenario.goal_text())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
