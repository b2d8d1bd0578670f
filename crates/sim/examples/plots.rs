//! Writes the pictures of `docs/plots` into the directory that is its argument.

use std::path::PathBuf;

use millrace_sim::plots;

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("name the directory"));
    };
    for plot in plots::all() {
        let path = directory.join(plot.name).with_extension("svg");
        std::fs::write(&path, plots::draw(&plot))?;
        println!("{} is written", path.display());
    }
    Ok(())
}
