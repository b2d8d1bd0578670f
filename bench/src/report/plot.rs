//! Plots of a scenario, as SVG: bars, CPU beside them, latencies below; and curves over the number
//! of cores.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::measured::{Curves, Scenario, Subject};
use crate::figures::{Spread, short};
use crate::load::Outcome;

/// Pixels from left to right, and of one of two panels side by side.
const WIDTH: u32 = 960;
const HALF: u32 = WIDTH / 2;
/// Height of a bar with what is around it, and of what is above and below all bars.
const ROW: u32 = 30;
const AROUND: u32 = 44;
/// Height of a plot with axes, and of a line of its legend; how much room legends have at its
/// right.
const CHART: u32 = 270;
const LINE: i32 = 20;
const SIDE: u32 = 150;
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xd0, 0x6a, 0x1e),
    RGBColor(0x3a, 0x8f, 0x4d),
    RGBColor(0x8a, 0x5a, 0xa8),
    RGBColor(0x9c, 0x3d, 0x3d),
    RGBColor(0x6b, 0x6b, 0x6b),
    RGBColor(0x2b, 0x9a, 0xa0),
    RGBColor(0xb0, 0x8a, 0x1e),
];
/// Of CPU: user, system, interrupts.
const PARTS: [(&str, RGBColor); 3] = [
    ("programs", RGBColor(0x7f, 0xb2, 0xdd)),
    ("kernel", RGBColor(0x33, 0x5c, 0x81)),
    ("interrupts", RGBColor(0xe0, 0xa4, 0x58)),
];

/// All that there is to show of a scenario; `None` if nothing was measured.
pub(super) fn of(scenario: &Scenario) -> Result<Option<String>> {
    let measured = scenario.subjects.iter();
    let rows = measured
        .filter(|subject| !subject.values.is_empty())
        .count() as u32;
    if rows == 0 {
        return Ok(None);
    }
    let is_timed = |subject: &Subject| subject.outcomes.iter().any(Outcome::has_latency);
    let has_cpu = scenario
        .subjects
        .iter()
        .any(|subject| !subject.outcomes.is_empty());
    let has_latency = scenario.subjects.iter().any(is_timed);
    let bars_height = AROUND + ROW * rows;
    let height = bars_height + if has_latency { CHART } else { 0 };
    let svg = draw(height, |area| {
        let (upper, lower) = area.split_vertically(bars_height as i32);
        if has_cpu {
            let (left, right) = upper.split_horizontally(HALF as i32);
            bars(&left, scenario)?;
            cpu(&right, scenario)?;
        } else {
            bars(&upper, scenario)?;
        }
        if has_latency {
            latency(&lower, scenario)?;
        }
        Ok(())
    })?;
    Ok(Some(svg))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), Box<dyn std::error::Error + 'a>>;

/// Medians as bars, with the least and the greatest value.
fn bars<'a>(area: &Area<'a>, scenario: &Scenario) -> Drawn<'a> {
    let measured = scenario.subjects.iter().enumerate();
    let bars: Vec<Bar<'_>> = measured
        .filter_map(|(at, subject)| {
            let spread = subject.spread()?;
            Some(Bar {
                name: &subject.stack,
                parts: vec![(spread.median, COLOURS[at % COLOURS.len()])],
                whisker: Some((spread.least, spread.greatest)),
                label: short(spread.median),
            })
        })
        .collect();
    draw_bars(area, &scenario.unit, &[], &bars)
}

/// CPU of the whole machine for one operation, or one MB, by what it was spent in.
fn cpu<'a>(area: &Area<'a>, scenario: &Scenario) -> Drawn<'a> {
    let per = |outcome: &Outcome| match outcome.operations {
        0 => 1e12 / outcome.bytes as f64,
        operations => 1e6 / operations as f64,
    };
    let mean = |subject: &Subject, of: fn(&crate::cpu::Core) -> f64| {
        let each = subject.outcomes.iter().map(|outcome| {
            let seconds: f64 = outcome.machine.cores.iter().map(of).sum();
            seconds * per(outcome)
        });
        each.sum::<f64>() / subject.outcomes.len() as f64
    };
    let mut bars = Vec::new();
    for subject in &scenario.subjects {
        if subject.outcomes.is_empty() {
            continue;
        }
        let parts = [
            mean(subject, |core| core.user),
            mean(subject, |core| core.system),
            mean(subject, |core| core.interrupt),
        ];
        let colours = PARTS.map(|(_, colour)| colour);
        bars.push(Bar {
            name: &subject.stack,
            parts: parts.into_iter().zip(colours).collect(),
            whisker: None,
            label: short(parts.iter().sum()),
        });
    }
    let mut outcomes = scenario
        .subjects
        .iter()
        .flat_map(|subject| &subject.outcomes);
    let title = match outcomes.all(|outcome| outcome.operations == 0) {
        true => "us of CPU per MB:",
        false => "us of CPU each:",
    };
    draw_bars(area, title, &PARTS, &bars)
}

struct Bar<'a> {
    name: &'a str,
    /// Lengths, one after the other.
    parts: Vec<(f64, RGBColor)>,
    /// From the least to the greatest.
    whisker: Option<(f64, f64)>,
    label: String,
}

fn draw_bars<'a>(
    area: &Area<'a>,
    title: &str,
    legend: &[(&str, RGBColor)],
    bars: &[Bar<'_>],
) -> Drawn<'a> {
    let (width, height) = area.dim_in_pixel();
    let (left, top, bottom) = (140, 30, height as i32 - 10);
    let ends = bars.iter().map(|bar| {
        let all: f64 = bar.parts.iter().map(|(length, _)| length).sum();
        bar.whisker.map_or(all, |(_, greatest)| greatest)
    });
    let most = ends.fold(0.0, f64::max);
    // Room for the label behind the longest.
    let scale = f64::from(width as i32 - left - 80) / most.max(f64::MIN_POSITIVE);
    let x = |value: f64| left + (value * scale) as i32;
    let font = ("sans-serif", 14).into_font();
    let bold = font.clone().style(FontStyle::Bold);
    area.draw(&Text::new(title.to_owned(), (8, 8), bold))?;
    for (at, (name, colour)) in legend.iter().enumerate() {
        let from = 140 + 110 * at as i32;
        let square = [(from, 9), (from + 12, 21)];
        area.draw(&Rectangle::new(square, colour.filled()))?;
        area.draw(&Text::new((*name).to_owned(), (from + 18, 8), font.clone()))?;
    }
    for (at, bar) in bars.iter().enumerate() {
        let upper = top + (ROW * at as u32) as i32 + 5;
        let lower = upper + ROW as i32 - 10;
        let middle = i32::midpoint(upper, lower);
        let name = Text::new(bar.name.to_owned(), (8, middle - 7), font.clone());
        area.draw(&name)?;
        let mut from = 0.0;
        for &(length, colour) in &bar.parts {
            let corners = [(x(from), upper), (x(from + length), lower)];
            area.draw(&Rectangle::new(corners, colour.filled()))?;
            from += length;
        }
        let mut end = x(from);
        if let Some((least, greatest)) = bar.whisker {
            let ends = vec![(x(least), middle), (x(greatest), middle)];
            area.draw(&PathElement::new(ends, BLACK.stroke_width(2)))?;
            for edge in [least, greatest] {
                let ends = vec![(x(edge), middle - 5), (x(edge), middle + 5)];
                area.draw(&PathElement::new(ends, BLACK.stroke_width(2)))?;
            }
            end = end.max(x(greatest));
        }
        let label = Text::new(bar.label.clone(), (end + 8, middle - 7), font.clone());
        area.draw(&label)?;
    }
    let axis = vec![(left, top), (left, bottom)];
    area.draw(&PathElement::new(axis, BLACK.stroke_width(1)))?;
    Ok(())
}

/// Where a part of all operations stands on the axis: each nine takes as much room as the one
/// before it.
fn nines(fraction: f64) -> f64 {
    -(1.0 - fraction).max(1e-5).log10()
}

/// The distribution of latencies: what so many operations took at most, in the middle of all
/// rounds; both axes by powers of ten.
fn latency<'a>(area: &Area<'a>, scenario: &Scenario) -> Drawn<'a> {
    let timed = scenario.subjects.iter().enumerate();
    let lines: Vec<_> = timed
        .filter(|(_, subject)| subject.outcomes.iter().any(Outcome::has_latency))
        .map(|(at, subject)| (at, subject.stack.as_str(), distribution(subject)))
        .collect();
    let values = || {
        let points = lines.iter().flat_map(|(_, _, points)| points);
        points.map(|(_, value)| *value).filter(|value| *value > 0.0)
    };
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(1.0, f64::max);
    let (plot, side) = area.split_horizontally((WIDTH - SIDE) as i32);
    let mut chart = ChartBuilder::on(&plot)
        .caption(
            "what so many took at most, us",
            ("sans-serif", 14).into_font().style(FontStyle::Bold),
        )
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..4.05f64, (least * 0.8..most * 1.3).log_scale())?;
    let name = |at: &f64| match (at * 10.0).round() as i64 {
        10 => "90 %".to_owned(),
        20 => "99 %".to_owned(),
        30 => "99.9 %".to_owned(),
        40 => "99.99 %".to_owned(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .x_labels(5)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| short(*value))
        .light_line_style(WHITE)
        .draw()?;
    let mut entries = Vec::new();
    for (at, stack, points) in lines {
        let colour = COLOURS[at % COLOURS.len()];
        let points = points.into_iter().map(|(part, value)| (nines(part), value));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(2);
        chart.draw_series(line)?;
        entries.push((stack, colour));
    }
    legend(&side, (0, 2 * LINE), &entries)
}

/// Names of lines and their colours, one below the other, beside or below the lines and not on
/// them.
fn legend<'a>(area: &Area<'a>, (x, top): (i32, i32), entries: &[(&str, RGBColor)]) -> Drawn<'a> {
    let font = ("sans-serif", 12).into_font();
    for (at, (name, colour)) in entries.iter().enumerate() {
        let y = top + LINE * at as i32;
        let stroke = vec![(x, y), (x + 20, y)];
        area.draw(&PathElement::new(stroke, colour.stroke_width(3)))?;
        let text = Text::new((*name).to_owned(), (x + 26, y - 6), font.clone());
        area.draw(&text)?;
    }
    Ok(())
}

/// For each part of the operations the median of what all rounds say, up to the last that they all
/// have.
fn distribution(subject: &Subject) -> Vec<(f64, f64)> {
    let timed = || {
        subject
            .outcomes
            .iter()
            .filter(|outcome| outcome.has_latency())
    };
    let Some(first) = timed().next() else {
        return Vec::new();
    };
    let points = first.distribution_us.iter().enumerate();
    points
        .filter_map(|(at, &(part, _))| {
            let values = timed().map(|outcome| Some(outcome.distribution_us.get(at)?.1));
            let spread = Spread::of(values.collect::<Option<Vec<f64>>>()?)?;
            Some((part, spread.median))
        })
        .collect()
}

/// A figure over the number of cores, with the least and the greatest of all rounds.
pub(super) fn curves(curves: &Curves) -> Result<String> {
    let points = || curves.lines.iter().flat_map(|line| &line.points);
    let cores = points().map(|(cores, _)| *cores).max().unwrap_or(1);
    let values = points().flat_map(|(_, values)| values);
    let most = values.copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let plot_height = CHART + 40;
    let height = plot_height + LINE as u32 * curves.lines.len() as u32;
    draw(height, |area| {
        let (plot, below) = area.split_vertically(plot_height as i32);
        let mut chart = ChartBuilder::on(&plot)
            .caption(
                format!("{}, by cores", curves.unit),
                ("sans-serif", 14).into_font().style(FontStyle::Bold),
            )
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(64)
            .build_cartesian_2d(0.5..cores as f64 + 0.5, 0.0..most * 1.15)?;
        let whole = |at: &f64| match at.fract() {
            0.0 => format!("{at:.0}"),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .x_labels(cores + 1)
            .x_label_formatter(&whole)
            .y_label_formatter(&|value| short(*value))
            .light_line_style(WHITE)
            .draw()?;
        for (at, line) in curves.lines.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let spreads: Vec<(f64, Spread)> = line
                .points
                .iter()
                .filter_map(|(cores, values)| Some((*cores as f64, Spread::of(values.clone())?)))
                .collect();
            let medians = spreads
                .iter()
                .map(|(cores, spread)| (*cores, spread.median));
            chart.draw_series(LineSeries::new(medians, colour.stroke_width(2)).point_size(3))?;
            chart.draw_series(spreads.iter().map(|(cores, spread)| {
                let ends = vec![(*cores, spread.least), (*cores, spread.greatest)];
                PathElement::new(ends, colour.stroke_width(1))
            }))?;
        }
        let lines = curves.lines.iter().enumerate();
        let entries: Vec<(&str, RGBColor)> = lines
            .map(|(at, line)| (line.name.as_str(), COLOURS[at % COLOURS.len()]))
            .collect();
        legend(&below, (72, LINE / 2 - 2), &entries)
    })
}

fn draw(height: u32, make: impl for<'a> FnOnce(&Area<'a>) -> Drawn<'a>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)
            .map_err(|error| anyhow!("drawing a plot: {error}"))?;
        make(&area).map_err(|error| anyhow!("drawing a plot: {error}"))?;
        area.present()
            .map_err(|error| anyhow!("writing a plot: {error}"))?;
    }
    Ok(svg)
}
