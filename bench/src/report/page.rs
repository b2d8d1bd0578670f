//! The report as a page: Markdown with plots beside it, HTML with all in one file.

use std::fmt::Write as _;

use anyhow::Result;

use super::measured::{Curves, Original, Report, Scenario};
use super::plot;
use crate::figures::{Spread, short};
use crate::load::Outcome;

/// Titles of chapters that are not scenarios.
const GOALS: &str = "Goals";
const BEHIND: &str = "Where others are ahead";
const CURVES: &str = "Scaling with cores";
const ORIGINALS: &str = "What the designs that this comes from said of themselves";
const SETUP: &str = "How everything was set up";
const LEFT_OUT: &str = "Not measured in this run";
/// What is said where no reason is known.
const UNKNOWN: &str = "not known yet";

/// A table: heading and rows.
type Table = Vec<Vec<String>>;

/// Markdown; the plots are in the folder `plots` beside it.
pub(super) fn markdown(report: &Report, plots: &str) -> Result<String> {
    let mut out = format!("# Figures of {}\n\n", report.date);
    for line in heading(report) {
        writeln!(out, "{line}\n")?;
    }
    for (title, table) in [
        (GOALS, goals(report, &link)),
        (BEHIND, behind(report, &link)),
    ] {
        if table.len() > 1 {
            writeln!(out, "## {title}\n")?;
            markdown_table(&mut out, &table)?;
        }
    }
    for (group, scenarios) in groups(report) {
        writeln!(out, "## {group}\n")?;
        for scenario in scenarios {
            writeln!(out, "### {}\n\n{}\n", scenario.name, scenario.what)?;
            markdown_table(&mut out, &table(scenario))?;
            writeln!(out, "{}\n", verdict(scenario))?;
            if plot::of(scenario)?.is_some() {
                writeln!(out, "![]({plots}/{}.svg)\n", scenario.name)?;
            }
        }
    }
    if !report.curves.is_empty() {
        writeln!(out, "## {CURVES}\n")?;
    }
    for curves in &report.curves {
        writeln!(out, "{}\n\n![]({plots}/{}.svg)\n", curves.what, curves.name)?;
    }
    if !report.originals.is_empty() {
        writeln!(out, "## {ORIGINALS}\n")?;
        markdown_table(&mut out, &originals(report))?;
    }
    if !report.setup.is_empty() {
        writeln!(out, "## {SETUP}\n")?;
        for line in &report.setup {
            writeln!(out, "- {line}")?;
        }
        writeln!(out)?;
    }
    if !report.left_out.is_empty() {
        writeln!(out, "## {LEFT_OUT}\n")?;
        for line in &report.left_out {
            writeln!(out, "- {}", one_line(line))?;
        }
    }
    Ok(out.trim_end().to_owned() + "\n")
}

fn markdown_table(out: &mut String, table: &[Vec<String>]) -> Result<()> {
    let [head, rows @ ..] = table else {
        return Ok(());
    };
    let right = match head
        .last()
        .is_some_and(|text| WORDS.contains(&text.as_str()))
    {
        true => "---|",
        false => "--:|",
    };
    writeln!(
        out,
        "| {} |\n|---|{}",
        head.join(" | "),
        right.repeat(head.len() - 1)
    )?;
    for row in rows {
        let cells = row.iter().map(|text| text.replace('|', "\\|"));
        writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "))?;
    }
    writeln!(out)?;
    Ok(())
}

/// To a scenario's heading, by the name that pages of Markdown give it: without dots.
fn link(name: &str) -> String {
    format!("[{name}](#{})", name.replace('.', ""))
}

/// Last columns that are words, not figures.
const WORDS: [&str; 2] = ["why", "here"];

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.6rem 0;font-size:.92rem}td,th{padding:.15rem .7rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}\
th{border-bottom:2px solid #888}tr:hover td{background:#f4f7fa}table.words td,table.words th{text-align:left}\
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto;display:block;margin:.6rem 0}\
h1{margin-bottom:.2rem}h2{margin-top:2.5rem;border-bottom:2px solid #222}h3{margin:2rem 0 .2rem}a{color:#1f6fb4;text-decoration:none}\
nav{columns:2;font-size:.92rem;margin:1rem 0}nav a{display:block}.met{color:#27763a}.missed,.failed{color:#a32a2a}.note{color:#555;margin:.3rem 0}\
td.met,td.missed{font-weight:600}.tally{font-size:1.15rem}";

/// HTML, plots and style in it.
pub(super) fn html(report: &Report) -> Result<String> {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>millrace: figures of {}</title><style>{STYLE}</style></head><body>\n<h1>millrace: figures of {}</h1>\n",
        report.date, report.date
    );
    for line in heading(report) {
        writeln!(out, "<p class=\"note\">{}</p>", escaped(&line))?;
    }
    let link = |name: &str| format!("#{name}");
    for (title, table) in [
        (GOALS, goals(report, &link)),
        (BEHIND, behind(report, &link)),
    ] {
        if table.len() > 1 {
            writeln!(out, "<h2>{title}</h2>")?;
            html_table(&mut out, &table)?;
        }
    }
    writeln!(out, "<h2>All of it</h2>\n<nav>")?;
    for (at, (group, _)) in groups(report).iter().enumerate() {
        writeln!(out, "<a href=\"#group-{at}\">{}</a>", escaped(group))?;
    }
    writeln!(out, "</nav>")?;
    for (at, (group, scenarios)) in groups(report).into_iter().enumerate() {
        writeln!(out, "<h2 id=\"group-{at}\">{}</h2>", escaped(group))?;
        for scenario in scenarios {
            let name = escaped(&scenario.name);
            writeln!(
                out,
                "<h3 id=\"{name}\">{name}</h3>\n<p>{}</p>",
                escaped(&scenario.what)
            )?;
            html_table(&mut out, &table(scenario))?;
            let class = match scenario.is_met() {
                Some(true) => "met",
                Some(false) => "missed",
                None => "note",
            };
            writeln!(
                out,
                "<p class=\"{class}\">{}</p>",
                escaped(&verdict(scenario))
            )?;
            if let Some(svg) = plot::of(scenario)? {
                writeln!(out, "{svg}")?;
            }
        }
    }
    if !report.curves.is_empty() {
        writeln!(out, "<h2>{CURVES}</h2>")?;
    }
    for curves in &report.curves {
        let Curves { what, .. } = curves;
        writeln!(out, "<p>{}</p>\n{}", escaped(what), plot::curves(curves)?)?;
    }
    if !report.originals.is_empty() {
        writeln!(out, "<h2>{ORIGINALS}</h2>")?;
        html_table(&mut out, &originals(report))?;
    }
    if !report.setup.is_empty() {
        writeln!(out, "<h2>{SETUP}</h2>\n<ul>")?;
        for line in &report.setup {
            writeln!(out, "<li>{}</li>", with_code(line))?;
        }
        writeln!(out, "</ul>")?;
    }
    if !report.left_out.is_empty() {
        writeln!(out, "<h2>{LEFT_OUT}</h2>\n<ul>")?;
        for line in &report.left_out {
            writeln!(out, "<li>{}</li>", escaped(&one_line(line)))?;
        }
        writeln!(out, "</ul>")?;
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

/// A cell that begins with `#` is a link to that scenario.
fn html_table(out: &mut String, table: &[Vec<String>]) -> Result<()> {
    let last = table.first().and_then(|head| head.last());
    let class = match last.is_some_and(|text| WORDS.contains(&text.as_str())) {
        true => " class=\"words\"",
        false => "",
    };
    writeln!(out, "<table{class}>")?;
    for (at, row) in table.iter().enumerate() {
        let cell = if at == 0 { "th" } else { "td" };
        let cells = row.iter().map(|text| {
            let class = match text.as_str() {
                "met" => " class=\"met\"",
                "missed" => " class=\"missed\"",
                text if text.starts_with("failed") => " class=\"failed\"",
                _ => "",
            };
            let shown = match text.strip_prefix('#') {
                Some(name) => format!("<a href=\"#{0}\">{0}</a>", escaped(name)),
                None => escaped(text),
            };
            format!("<{cell}{class}>{shown}</{cell}>")
        });
        writeln!(out, "<tr>{}</tr>", cells.collect::<String>())?;
    }
    writeln!(out, "</table>")?;
    Ok(())
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
            "{} rounds{of}, in turns, {} s each. Median (least .. greatest). Ratios are taken round by round. Bars have the least and the greatest value as whiskers.",
            report.rounds, report.seconds
        ),
    ];
    lines.extend(report.warning.clone());
    let judged = || {
        let scenarios = report.scenarios.iter();
        scenarios.flat_map(|scenario| {
            scenario
                .goals
                .iter()
                .filter_map(|goal| scenario.meets(goal))
        })
    };
    let met = judged().filter(|met| *met).count();
    lines.push(format!("{met} of {} goals met.", judged().count()));
    lines
}

/// Every goal, what was reached, and whether that does. `link` makes of a name what leads to its
/// scenario.
fn goals(report: &Report, link: &dyn Fn(&str) -> String) -> Table {
    let head = ["scenario", "what counts", "millrace", "goal", "reached", ""];
    let mut rows = vec![head.map(String::from).to_vec()];
    for scenario in &report.scenarios {
        for goal in &scenario.goals {
            let ours = scenario
                .subjects
                .first()
                .and_then(|subject| subject.spread());
            rows.push(vec![
                link(&scenario.name),
                scenario.unit.clone(),
                ours.map_or_else(String::new, |spread| short(spread.median)),
                match &goal.against {
                    Some(_) => scenario.goal_text(goal),
                    None => scenario
                        .goal_text(goal)
                        .replace(&scenario.unit, "")
                        .trim()
                        .to_owned(),
                },
                scenario.reached(goal).map_or_else(String::new, short),
                match scenario.meets(goal) {
                    Some(true) => "met".to_owned(),
                    Some(false) => "missed".to_owned(),
                    None => "nothing to compare".to_owned(),
                },
            ]);
        }
    }
    rows
}

/// Where another stack is ahead, or a goal is missed, and why.
fn behind(report: &Report, link: &dyn Fn(&str) -> String) -> Table {
    let mut rows = vec![["scenario", "ours to it", "why"].map(String::from).to_vec()];
    for scenario in &report.scenarios {
        let ahead = scenario.ahead_of_ours();
        if ahead.is_empty() && scenario.is_met() != Some(false) {
            continue;
        }
        let beside = ahead.iter().filter_map(|stack| {
            let ratio = scenario.ratio_to(stack)?;
            Some(format!("{} of {stack}'s", short(ratio.median)))
        });
        let beside = match ahead.is_empty() {
            true => "nobody is; the goal is missed".to_owned(),
            false => beside.collect::<Vec<_>>().join(", "),
        };
        let why = scenario.reason.clone();
        rows.push(vec![
            link(&scenario.name),
            beside,
            why.unwrap_or_else(|| UNKNOWN.to_owned()),
        ]);
    }
    rows
}

fn originals(report: &Report) -> Table {
    let mut rows = vec![["", "theirs", "here"].map(String::from).to_vec()];
    for original in &report.originals {
        let Original { what, theirs, ours } = original;
        rows.push(vec![what.clone(), theirs.clone(), ours.clone()]);
    }
    rows
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
fn table(scenario: &Scenario) -> Table {
    let outcomes = || {
        let subjects = scenario.subjects.iter();
        subjects.flat_map(|subject| &subject.outcomes)
    };
    let is_loaded = outcomes().next().is_some();
    let is_bulk = outcomes().all(|outcome| outcome.operations == 0);
    let is_timed = outcomes().any(Outcome::has_latency);
    // Where that is not what counts anyway.
    let has_rate = scenario.unit != "per second";
    let mut head = vec!["stack".to_owned(), scenario.unit.clone()];
    let has_ratio = scenario.compares();
    if has_ratio {
        head.push("ours to it".to_owned());
    }
    if is_loaded && is_bulk {
        head.push("us of CPU per MB".to_owned());
    } else if is_loaded {
        if has_rate {
            head.push("per second".to_owned());
        }
        head.push("us of CPU each".to_owned());
    }
    if is_timed {
        head.push("latency 50/99/99.9 %, us".to_owned());
    }
    let mut rows = vec![head];
    for (at, subject) in scenario.subjects.iter().enumerate() {
        let failure = subject.failure.as_deref().map(one_line);
        let values = match (subject.spread(), failure) {
            (Some(spread), None) => spread.to_string(),
            (Some(spread), Some(failure)) => format!("{spread}, then failed: {failure}"),
            (None, _) => one_line(&subject.without_value()),
        };
        let mut row = vec![subject.stack.clone(), values];
        if has_ratio {
            let ratio = scenario.ratio_to(&subject.stack).filter(|_| at > 0);
            row.push(ratio.map_or_else(String::new, |ratio| ratio.to_string()));
        }
        let spread = |of: &dyn Fn(&Outcome) -> f64| {
            Spread::of(subject.outcomes.iter().map(of).collect())
                .map_or_else(String::new, |spread| short(spread.median))
        };
        if is_loaded && is_bulk {
            row.push(spread(&Outcome::cpu_us_per_megabyte));
        } else if is_loaded {
            if has_rate {
                row.push(spread(&Outcome::rate));
            }
            row.push(spread(&Outcome::cpu_us));
        }
        if is_timed {
            row.push(match subject.outcomes.iter().any(Outcome::has_latency) {
                true => [0, 2, 3]
                    .map(|at| spread(&|outcome| outcome.latency_us[at]))
                    .join("/"),
                false => String::new(),
            });
        }
        rows.push(row);
    }
    rows
}

/// What is said of the goals.
fn verdict(scenario: &Scenario) -> String {
    let better = if scenario.less_is_better {
        "Less"
    } else {
        "More"
    };
    let reason = match &scenario.reason {
        Some(reason) => format!(" {reason}"),
        None => String::new(),
    };
    format!(
        "{better} is better. Goal: {}.{reason}",
        scenario.goals_text()
    )
}

/// What a program said, as far as it has room in a table.
fn one_line(text: &str) -> String {
    const MOST: usize = 240;
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

/// Escaped, and what is between backticks as code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let each = parts.map(|(at, part)| match at % 2 {
        0 => escaped(part),
        _ => format!("<code>{}</code>", escaped(part)),
    });
    each.collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
