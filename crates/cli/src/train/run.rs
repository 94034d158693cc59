//! A run from a text to a model.

use std::{
    fs::OpenOptions,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    time::Instant,
};

use dtensor::{
    CommDebug, DeviceMesh, Placement, Runner, Tensor, World, WorldKind, detect_anomaly, no_grad,
    random,
};
use dtensor_nn::{
    Optimizer,
    optim::{Cosine, WarmUp},
    set_training,
};
use dtensor_picture::units;

use super::{
    Failure, Outcome,
    config::Config,
    curve,
    data::Text,
    finite,
    lines::Lines,
    model::{Model, Sizes},
    profile::{Parts, Profile},
    report::{self, Progress, StepLine},
    save::{self, Earlier, Place},
    step::Trainer,
    stop,
};
use crate::{
    error::{Error, Result},
    memory::resident_bytes,
    output::{Out, terminal_width},
};

/// How a run ended, as rank 0 saw it.
struct Ended {
    losses: Vec<f64>,
    sample: String,
    parameters: usize,
    /// Bytes of parameters that this rank holds.
    held: usize,
    interrupted: bool,
    /// Of the last steps of all ranks, if it is wanted and there was one.
    trace: Option<String>,
}

/// Everything that a run needs.
pub struct Prepared {
    config: Config,
    text: Text,
    earlier: Option<Earlier>,
}

impl Prepared {
    pub fn new(config: Config, earlier: Option<Earlier>) -> Result<Prepared> {
        let text = Text::new(config.data.as_deref(), config.seq)?;
        earlier.as_ref().map_or(Ok(()), |earlier| earlier.check_characters(&text))?;
        check_writable(&config)?;
        Ok(Prepared { config, text, earlier })
    }
}

pub fn run(prepared: &Prepared) -> Result<()> {
    let Prepared { config, text, earlier } = prepared;
    stop::listen();
    let runner = Runner::new().ranks(config.mesh.size());
    let ended = runner.run(|world| train(world, config, text, earlier.as_ref()));
    let ended = ended.map_err(|error| super::readable(&error, config))?;
    let Some(Some(ended)) = ended.into_iter().next() else { return Ok(()) };
    if let (Some(path), Some(trace)) = (&config.profile, &ended.trace) {
        std::fs::write(path, trace)
            .map_err(|error| Error::failure(format!("--profile {}: {error}", path.display())))?;
    }
    let picture = config.out.join("loss.svg");
    std::fs::write(&picture, curve::svg(&ended.losses))
        .map_err(|error| Error::failure(format!("{}: {error}", picture.display())))?;
    let stopped = format!(
        "Stopped after step {}; --resume {} goes on.",
        ended.losses.len(),
        config.out.display()
    );
    if config.json {
        if ended.interrupted {
            // Beside the lines, which are all JSON. Where nobody listens there is nobody to tell.
            let _ = writeln!(io::stderr(), "{stopped}");
        }
        return Ok(());
    }
    let mut out = Out::new();
    out.lines(report::table(&ended.losses))?;
    out.line("")?;
    out.lines(curve::text(&ended.losses, terminal_width(), 8))?;
    out.line("")?;
    if !ended.sample.is_empty() {
        out.line(&format!("A text of the model:\n{}", ended.sample.trim()))?;
        out.line("")?;
    }
    out.line(&format!(
        "{} parameters, of which rank 0 holds {}. Checkpoint and loss.svg are in {}.",
        units::grouped(ended.parameters),
        units::bytes(ended.held as f64),
        config.out.display()
    ))?;
    if ended.interrupted {
        out.line(&stopped)?;
    }
    Ok(())
}

/// Whether what a run leaves can be written: found out before it, not after hours.
fn check_writable(config: &Config) -> Result<()> {
    let out = &config.out;
    let refused = |error: io::Error| Error::usage(format!("--out {}: {error}", out.display()));
    std::fs::create_dir_all(out).map_err(refused)?;
    let probe = out.join(format!(".dtensor-{}", std::process::id()));
    std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe)).map_err(refused)?;
    let Some(profile) = &config.profile else { return Ok(()) };
    check_openable(profile)
        .map_err(|error| Error::usage(format!("--profile {}: {error}", profile.display())))
}

/// Whether a file can be written. What an earlier run has left stays until there is something new, and nothing is left where nothing
/// was: a run without a step has no trace.
fn check_openable(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let opened = OpenOptions::new().append(true).open(path);
            match opened {
                // Another process of the run has had a look at the same time.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                opened => opened.map(drop),
            }
        }
        Err(error) => Err(error),
    }
}

/// One rank's part. Rank 0 says how it ended.
fn train(
    world: &World,
    config: &Config,
    text: &Text,
    earlier: Option<&Earlier>,
) -> Outcome<Option<Ended>> {
    super::check_ranks(world, &config.mesh)?;
    random::manual_seed(config.seed);
    let first = world.rank() == 0;
    let mesh = DeviceMesh::from_mesh(world, config.mesh.clone())?;
    let sizes = Sizes { vocabulary: text.characters.len() };
    let model = Model::new(config, &sizes, &mesh)?;
    let mut trainer = Trainer::new(model, config, &mesh);
    let mut place = match earlier {
        Some(earlier) => save::read(earlier, &mut trainer, world)?,
        None => Place { step: 0, losses: Vec::new() },
    };
    if first && !config.json {
        describe(config, text, &trainer, world, earlier.is_some());
    }
    if first && earlier.is_some() && place.step >= config.steps {
        let done = format!("All {} steps are done; give --steps for more.", config.steps);
        // Beside the lines of --json. Where nobody listens there is nobody to tell.
        let _ = writeln!(io::stderr(), "{done}");
    }
    let shown = first && !config.json && world.kind() != WorldKind::Fake;
    let mut progress = match (shown, io::stderr().is_terminal()) {
        (false, _) => Progress::None,
        (true, true) => Progress::bar(config.steps, place.step),
        (true, false) => Progress::log(config.steps),
    };
    let steps = config.steps.saturating_sub(config.warmup).max(1);
    let schedule = WarmUp { steps: config.warmup, then: Cosine { to: 0.1, steps } };
    let lines = (first && config.json).then(Lines::new);
    let mut interrupted = false;
    let mut profile = config.profile.as_ref().map(|_| Profile::begin(world)).transpose()?;
    while place.step < config.steps && !interrupted {
        if config.detect_anomaly {
            finite::check_parameters(trainer.model.module(), place.step)?;
        }
        let (began, mut parts) = (Instant::now(), Parts::default());
        let mut run = || trainer.step(place.step, text, config, &schedule, &mut parts);
        let (outcome, comm) = CommDebug::record(|| match config.detect_anomaly {
            true => detect_anomaly(run),
            false => run(),
        });
        let outcome = outcome.map_err(|source| Failure::Step { step: place.step, source })?;
        let took = began.elapsed();
        super::check_finite(place.step, outcome.loss, outcome.grad_norm)?;
        let line = StepLine {
            step: place.step,
            loss: outcome.loss,
            grad_norm: outcome.grad_norm,
            lr: trainer.optimizer.learning_rates().first().copied().unwrap_or(0.0),
            took,
            tokens_per_second: (config.batch * config.seq) as f64 / took.as_secs_f64(),
            calls: comm.calls(),
            bytes: comm.bytes(),
            memory: resident_bytes(),
        };
        if let Some(profile) = &mut profile {
            profile.keep(place.step, began, parts, comm);
        }
        place.step += 1;
        place.losses.push(outcome.loss);
        progress.step(&line);
        if let Some(lines) = &lines {
            lines.say(line.json());
        }
        interrupted = stop::is_asked(world)?;
        let is_last = place.step == config.steps || interrupted;
        let is_due = config.save_every.is_some_and(|every| place.step.is_multiple_of(every));
        if is_due && !is_last {
            save::write(config, text, &trainer, &place, world)?;
        }
    }
    progress.end();
    save::write(config, text, &trainer, &place, world)?;
    drop(lines);
    let trace = profile.map(|profile| profile.gather(world)).transpose()?.flatten();
    let sample = match interrupted || config.json {
        true => String::new(),
        false => sample(&mut trainer, text, config, &mesh)?,
    };
    let value =
        |held: usize, parameter: &dtensor_nn::Parameter| held + parameter.value().local_bytes();
    Ok(first.then(|| Ended {
        losses: place.losses,
        sample,
        parameters: trainer.parameters.iter().map(|parameter| parameter.value().numel()).sum(),
        held: trainer.parameters.iter().fold(0, value),
        interrupted,
        trace,
    }))
}

fn describe(config: &Config, text: &Text, trainer: &Trainer, world: &World, goes_on: bool) {
    let parameters: usize =
        trainer.parameters.iter().map(|parameter| parameter.value().numel()).sum();
    let mut lines = vec![
        format!(
            "{:?}, {} layers of {} features, {} heads: {} parameters",
            config.model,
            config.layers,
            config.dim,
            config.heads,
            units::grouped(parameters)
        ),
        format!(
            "{} on {} ranks ({}): {}",
            config.mesh,
            world.size(),
            world.kind(),
            config.strategy
        ),
        format!(
            "{} characters, {} different; {} x {} per step",
            units::grouped(text.len()),
            text.characters.len(),
            config.batch,
            config.seq
        ),
    ];
    if let Some(step) = save::step_of(&config.out).filter(|_| !goes_on) {
        lines.push(format!(
            "{} has a checkpoint of step {step}, which this run will replace",
            config.out.display()
        ));
    }
    // What cannot be written to stdout is found where the results are.
    let _ = Out::new().lines(lines);
}

/// A text that the model goes on with. All ranks compute it.
fn sample(
    trainer: &mut Trainer,
    text: &Text,
    config: &Config,
    mesh: &DeviceMesh,
) -> dtensor_nn::Result<String> {
    set_training(trainer.model.module_mut(), false);
    let mut tokens = text.tokens_of("In the morning, ");
    if tokens.is_empty() {
        tokens.push(0);
    }
    let copies = vec![Placement::Replicate; mesh.n_axes()];
    for number in 0..240_u64 {
        let from = tokens.len().saturating_sub(config.seq);
        let seen = &tokens[from..];
        let whole = Tensor::from_slice(seen, &[1, seen.len()]).map_err(dtensor::Error::from)?;
        let seen_by_all = config.strategy.place_copies(&whole, mesh)?;
        let last = config.strategy.index_of_last(seen.len(), mesh).cast_signed();
        let logits = no_grad(|| {
            let logits = trainer.model.logits(&seen_by_all)?;
            logits
                .select(1, last)?
                .to_dtype(dtensor::DType::F32)?
                .div(0.7)?
                .softmax(-1)?
                .to_vec::<f32>()
        })?;
        // Drawn by a number that is the same on every rank.
        let draw =
            random::with_state(random::RandomState { seed: config.seed, offset: number }, || {
                dtensor::rand(&[1], dtensor::DType::F64, mesh, &copies)?.item::<f64>()
            })?;
        let mut left = draw;
        let picked = logits.iter().position(|share| {
            left -= f64::from(*share);
            left <= 0.0
        });
        tokens.push(picked.unwrap_or(0) as i64);
    }
    set_training(trainer.model.module_mut(), true);
    Ok(tokens.iter().map(|token| text.character(*token)).collect())
}
