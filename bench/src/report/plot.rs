//! Plots of a scenario, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Scenario, Subject};
use crate::figures::short;
use crate::load::Outcome;

const WIDTH: u32 = 720;
/// Height of a bar with what is around it.
const ROW: u32 = 36;
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xd0, 0x6a, 0x1e),
    RGBColor(0x3a, 0x8f, 0x4d),
    RGBColor(0x8a, 0x5a, 0xa8),
    RGBColor(0x9c, 0x3d, 0x3d),
    RGBColor(0x6b, 0x6b, 0x6b),
];
/// What [`Outcome::latency_us`] has.
const PERCENTILES: [&str; 5] = ["50 %", "90 %", "99 %", "99.9 %", "max"];

/// All plots that there is something to show in, with a name for each kind.
pub(super) fn all(scenario: &Scenario) -> Result<Vec<(&'static str, String)>> {
    let mut plots = Vec::new();
    if scenario
        .subjects
        .iter()
        .any(|subject| !subject.values.is_empty())
    {
        plots.push(("bars", bars(scenario)?));
    }
    let is_timed = |subject: &Subject| {
        let mut outcomes = subject.outcomes.iter();
        outcomes.any(Outcome::has_latency)
    };
    if scenario.subjects.iter().any(is_timed) {
        plots.push(("latency", latency(scenario)?));
    }
    let is_counted = |subject: &Subject| !subject.outcomes.is_empty();
    if scenario.subjects.iter().any(is_counted) {
        plots.push(("cpu", cpu(scenario)?));
    }
    Ok(plots)
}

/// Medians as bars, with the least and the greatest value.
fn bars(scenario: &Scenario) -> Result<String> {
    let measured: Vec<_> = scenario
        .subjects
        .iter()
        .filter_map(|subject| Some((subject.stack.as_str(), subject.spread()?)))
        .collect();
    let most = measured
        .iter()
        .map(|(_, spread)| spread.greatest)
        .fold(0.0, f64::max);
    let parts = measured
        .iter()
        .enumerate()
        .map(|(at, (stack, spread))| Bar {
            name: stack,
            parts: vec![(spread.median, COLOURS[at % COLOURS.len()])],
            whisker: Some((spread.least, spread.greatest)),
            label: short(spread.median),
        });
    draw_bars(&scenario.unit, &parts.collect::<Vec<_>>(), most)
}

/// CPU of the whole machine for one operation, or one MB, by what it was spent in.
fn cpu(scenario: &Scenario) -> Result<String> {
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
    let counted: Vec<_> = scenario
        .subjects
        .iter()
        .filter(|subject| !subject.outcomes.is_empty())
        .map(|subject| {
            let parts = [
                mean(subject, |core| core.user),
                mean(subject, |core| core.system),
                mean(subject, |core| core.interrupt),
            ];
            (subject.stack.as_str(), parts)
        })
        .collect();
    let most = counted
        .iter()
        .map(|(_, parts)| parts.iter().sum())
        .fold(0.0, f64::max);
    let parts = counted.iter().map(|(stack, parts)| Bar {
        name: stack,
        parts: parts.iter().copied().zip(COLOURS).collect(),
        whisker: None,
        label: parts.map(short).join(" + "),
    });
    let bulk = counted_in_bytes(scenario);
    let unit = if bulk { "MB" } else { "operation" };
    let title = format!("us of CPU of the whole machine per {unit}: user + system + interrupts");
    draw_bars(&title, &parts.collect::<Vec<_>>(), most)
}

fn counted_in_bytes(scenario: &Scenario) -> bool {
    let mut outcomes = scenario
        .subjects
        .iter()
        .flat_map(|subject| &subject.outcomes);
    outcomes.all(|outcome| outcome.operations == 0)
}

struct Bar<'a> {
    name: &'a str,
    /// Lengths, one after the other.
    parts: Vec<(f64, RGBColor)>,
    /// From the least to the greatest.
    whisker: Option<(f64, f64)>,
    label: String,
}

fn draw_bars(title: &str, bars: &[Bar<'_>], most: f64) -> Result<String> {
    let mut svg = String::new();
    let height = 64 + ROW * bars.len() as u32;
    draw(&mut svg, height, |area| {
        area.fill(&WHITE)?;
        let names = 130;
        let (left, top, bottom) = (names, 30, height as i32 - 28);
        // Room for the label behind the longest.
        let scale = f64::from(WIDTH as i32 - left - 150) / most.max(f64::MIN_POSITIVE);
        let x = |value: f64| left + (value * scale) as i32;
        let font = ("sans-serif", 14).into_font();
        area.draw(&Text::new(
            title.to_owned(),
            (8, 8),
            font.clone().style(FontStyle::Bold),
        ))?;
        for (at, bar) in bars.iter().enumerate() {
            let (upper, lower) = (
                top + (ROW * at as u32) as i32 + 6,
                top + (ROW * (at as u32 + 1)) as i32 - 6,
            );
            let middle = i32::midpoint(upper, lower);
            area.draw(&Text::new(
                bar.name.to_owned(),
                (8, middle - 7),
                font.clone(),
            ))?;
            let mut from = 0.0;
            for &(length, colour) in &bar.parts {
                let corners = [(x(from), upper), (x(from + length), lower)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
                from += length;
            }
            let mut end = x(from);
            if let Some((least, greatest)) = bar.whisker {
                area.draw(&PathElement::new(
                    vec![(x(least), middle), (x(greatest), middle)],
                    BLACK.stroke_width(2),
                ))?;
                for edge in [least, greatest] {
                    area.draw(&PathElement::new(
                        vec![(x(edge), middle - 5), (x(edge), middle + 5)],
                        BLACK.stroke_width(2),
                    ))?;
                }
                end = end.max(x(greatest));
            }
            area.draw(&Text::new(
                bar.label.clone(),
                (end + 8, middle - 7),
                font.clone(),
            ))?;
        }
        area.draw(&PathElement::new(
            vec![(left, top), (left, bottom)],
            BLACK.stroke_width(1),
        ))?;
        Ok(())
    })?;
    Ok(svg)
}

/// Medians of the percentiles of latency, on a logarithmic axis.
fn latency(scenario: &Scenario) -> Result<String> {
    let lines: Vec<_> = scenario
        .subjects
        .iter()
        .filter(|subject| subject.outcomes.iter().any(Outcome::has_latency))
        .map(|subject| {
            let point = |at: usize| {
                let values = subject
                    .outcomes
                    .iter()
                    .map(|outcome| outcome.latency_us[at]);
                crate::figures::Spread::of(values.collect()).map_or(0.0, |spread| spread.median)
            };
            (subject.stack.as_str(), [0, 1, 2, 3, 4].map(point))
        })
        .collect();
    let values = || {
        lines
            .iter()
            .flat_map(|(_, points)| points)
            .copied()
            .filter(|value| *value > 0.0)
    };
    let (least, most) = (
        values().fold(f64::INFINITY, f64::min),
        values().fold(1.0, f64::max),
    );
    let mut svg = String::new();
    draw(&mut svg, 300, |area| {
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption("latency, us", ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..4.4f64, (least * 0.8..most * 1.3).log_scale())?;
        let name = |at: &f64| match at.fract() {
            0.0 => PERCENTILES
                .get(*at as usize)
                .copied()
                .unwrap_or_default()
                .to_owned(),
            _ => String::new(),
        };
        chart
            .configure_mesh()
            .x_labels(5)
            .x_label_formatter(&name)
            .y_label_formatter(&|value| short(*value))
            .light_line_style(WHITE)
            .draw()?;
        for (at, (stack, points)) in lines.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let points: Vec<(f64, f64)> = points
                .iter()
                .enumerate()
                .map(|(x, y)| (x as f64, *y))
                .collect();
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
                .label(*stack)
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        Ok(())
    })?;
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw<'a>(
    svg: &'a mut String,
    height: u32,
    make: impl FnOnce(&Area<'a>) -> Result<(), Box<dyn std::error::Error + 'a>>,
) -> Result<()> {
    let area = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    make(&area).map_err(|error| anyhow!("drawing a plot: {error}"))?;
    area.present()
        .map_err(|error| anyhow!("writing a plot: {error}"))
}
