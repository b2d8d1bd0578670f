//! Windows, bytes in flight and round trips over time, as pictures: `docs/plots`.

use millrace_tcp::Algorithm;

use crate::goodput::{Sample, Scenario, trace};

/// Points of a line, so that a picture stays small.
const POINTS: u64 = 400;
/// Width and height of each of a picture's two panels, in pixels.
const PANEL: [f64; 2] = [800.0, 400.0];

/// A picture of a scenario.
pub struct Plot {
    /// Of the file, without `.svg`.
    pub name: &'static str,
    /// Over the picture.
    pub title: &'static str,
    /// What is to be seen.
    pub shows: &'static str,
    /// What is run, all of it, warm-up and the rest.
    pub scenario: Scenario,
}

/// One flow over 100 Mbit/s and 40 ms, with a queue of what the path holds.
fn alone(algorithm: Algorithm, seconds: u64) -> Scenario {
    Scenario {
        algorithm,
        rate: 100_000_000,
        round_trip_us: 40_000,
        warm_up_s: 0,
        measured_s: seconds,
        ..Scenario::default()
    }
}

/// The same over 100 ms, with one frame of a hundred lost.
fn lossy(algorithm: Algorithm) -> Scenario {
    Scenario {
        round_trip_us: 100_000,
        loss: 100,
        ..alone(algorithm, 20)
    }
}

/// All pictures.
pub fn all() -> [Plot; 7] {
    [
        Plot {
            name: "cubic",
            title: "CUBIC, 100 Mbit/s, 40 ms",
            shows: "Slow start overruns the queue once; then the window goes back to its former peak, stays around it, and feels on until the queue is full. At its lowest the round trip is 57 ms: the queue never runs empty. Every other time it levels off lower: a loss just short of the former peak is taken for the sign of a newcomer (RFC 9438 4.7).",
            scenario: alone(Algorithm::Cubic, 40),
        },
        Plot {
            name: "reno",
            title: "NewReno, 100 Mbit/s, 40 ms",
            shows: "A segment more in each round trip, from half of what path and queue hold to all of it in 20 s; after each loss the queue just runs empty.",
            scenario: alone(Algorithm::NewReno, 100),
        },
        Plot {
            name: "dctcp",
            title: "DCTCP, 100 Mbit/s, 40 ms",
            shows: "Marks come from a quarter of what the path holds: from 6 s on the window varies by 3 %, and the round trip is 50 ms where CUBIC and NewReno go up to 80.",
            scenario: alone(Algorithm::Dctcp, 20),
        },
        Plot {
            name: "bbr",
            title: "BBR, 100 Mbit/s, 40 ms",
            shows: "When start-up has filled the queue and drained it, what is in flight is what the path holds, 500 kB, and the window twice that; small peaks are the probes for a higher rate, and every 10 s four segments for 200 ms show what the round trip is without a queue.",
            scenario: alone(Algorithm::Bbr, 24),
        },
        Plot {
            name: "cubic-loss",
            title: "CUBIC, 100 Mbit/s, 100 ms, 1 % lost",
            shows: "One loss in a hundred frames leaves a window of 6 to 35 kB, from 2 s on, where the path holds 1,250; nothing is ever queued for long.",
            scenario: lossy(Algorithm::Cubic),
        },
        Plot {
            name: "bbr-loss",
            title: "BBR, 100 Mbit/s, 100 ms, 1 % lost",
            shows: "The same losses do not touch the rate once it is found. Start-up overruns the queue at 3 s and is back, through a time-out, at 4.5 s; from then on the window is what is in flight during recovery, else twice what the path holds.",
            scenario: lossy(Algorithm::Bbr),
        },
        Plot {
            name: "cubic-two",
            title: "Two of CUBIC, 100 Mbit/s, 40 ms",
            shows: "The second begins at 10 s and leaves slow start with a quarter of all; it takes 90 s until both have about the same, and from there they have the larger part in turns.",
            scenario: Scenario {
                flows: 2,
                apart_ms: 10_000,
                warm_up_s: 40,
                ..alone(Algorithm::Cubic, 160)
            },
        },
    ]
}

/// What `docs/goodput.md` says of the pictures.
pub fn section() -> String {
    let mut text = String::from(
        "\n## Over time\n\
         \n\
         Congestion window, bytes in flight and smoothed round trip, as the sender has them, over 100 Mbit/s with a queue of what the path holds. \
         `cargo xtask sim --plots` draws them; a test draws some again.\n\
         \n",
    );
    for Plot {
        name, title, shows, ..
    } in all()
    {
        text += &format!("- [{title}](plots/{name}.svg): {shows}\n");
    }
    text
}

/// Runs it and draws it: an SVG, the same each time.
pub fn draw(plot: &Plot) -> String {
    let scenario = &plot.scenario;
    let step_ms = (scenario.warm_up_s + scenario.measured_s) * 1_000 / POINTS;
    let samples = trace(scenario, step_ms);
    let line = |flow: usize, value: fn(&Sample) -> f64| -> Vec<[f64; 2]> {
        let own = samples.iter().filter(|sample| sample.flow == flow);
        own.map(|sample| [sample.at_ms as f64 / 1_000.0, value(sample)])
            .collect()
    };
    let mut windows = Vec::new();
    let mut round_trips = Vec::new();
    for flow in 0..scenario.flows {
        let of = match scenario.flows {
            1 => String::new(),
            _ => format!(" {}", flow + 1),
        };
        let cwnd = line(flow, |sample| f64::from(sample.cwnd) / 1_000.0);
        let in_flight = line(flow, |sample| f64::from(sample.in_flight) / 1_000.0);
        let mut round_trip = line(flow, |sample| f64::from(sample.srtt_us) / 1_000.0);
        // None is known before the first sample of it.
        round_trip.retain(|point| point[1] > 0.0);
        windows.push((format!("cwnd{of}"), cwnd));
        windows.push((format!("in flight{of}"), in_flight));
        round_trips.push((format!("srtt{of}"), round_trip));
    }
    let top = panel(windows, [plot.title, "s", "kB"], 0.0);
    let bottom = panel(round_trips, ["", "s", "ms"], PANEL[1]);
    let [width, height] = [PANEL[0], 2.0 * PANEL[1]];
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">{top}{bottom}</svg>\n"
    )
}

/// Lines with their names, over one axis of time, so far below the top.
fn panel(lines: Vec<(String, Vec<[f64; 2]>)>, labels: [&str; 3], below: f64) -> String {
    let header = poloto::header()
        .with_dim(PANEL)
        .with_viewbox(PANEL)
        .with(("y", below));
    let lines: Vec<_> = lines
        .into_iter()
        .map(|(name, points)| poloto::build::plot(name).line(points))
        .collect();
    let [title, x, y] = labels;
    poloto::frame()
        .with_viewbox(PANEL)
        .with_precision(1)
        .with_tick_lines([true, true])
        .build()
        .data(poloto::plots!(poloto::build::origin(), lines))
        .build_and_label((title, x, y))
        .append_to(header.light_theme())
        .render_string()
        .expect("a string takes all")
}
