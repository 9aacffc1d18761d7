"""Curves of several runs in one picture, with a table of where they end.

    python scripts/plot.py runs/kuhn_poker__ppo_nfsp__*
    python scripts/plot.py runs/a runs/b --per-run --metric losses/policy_loss --x wall_time --out b_against_a.png
    python scripts/plot.py runs/leduc_holdem__ppo_nfsp__* --levels runs/leduc_holdem__cfr__a runs/leduc_holdem__cfr__b@8

Runs of the same script and game form one curve, their seeds pooled; each game has a panel of its own. A curve is the
interquartile mean (IQM) over seeds: the mean without the lowest and the highest quarter, each rounded down to whole
seeds, so that up to 3 seeds it is the plain mean. The band is its 95 % percentile bootstrap interval (2,000 resamples
of whole seeds, stratified by game: Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice",
arXiv 2108.13264). With one seed there is no band. The table is of the last step that all seeds of a curve have.

Letters: S seeds, T steps, B bootstrap resamples.
"""

import csv
import difflib
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

NUM_RESAMPLES = 2000
LEVEL = 0.95
MAX_RESAMPLED = 4_000_000  # numbers in memory at once, B * S * steps
DEFAULT_METRICS = ("eval/exploitability", "eval/return_vs_uniform")
Y_LABELS = {
    "eval/exploitability": "exploitability (reward per episode)",
    "eval/return_vs_uniform": "return against uniform play",
    "charts/SPS": "training speed (steps/s)",
}
SOLVERS = ("cfr", "deep_cfr")  # scripts whose steps are iterations
NOT_A_SETTING = re.compile(  # arguments that leave the numbers of a seed as they are
    "env|env_kwargs|seed|num_seeds|runs|resume|wandb.*|checkpoint_interval|coordinator_address|num_processes|process_id"
)


@dataclass
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """run folders"""
    metric: str | None = None
    """a column of metrics.csv; None: eval/exploitability where a game has it, else eval/return_vs_uniform"""
    x: Literal["global_step", "wall_time"] = "global_step"
    """horizontal axis"""
    out: Path = Path("plot.png")
    """picture to write; its ending names the format"""
    log_y: bool = False
    """logarithmic vertical axis"""
    levels: tuple[str, ...] = ()
    """run folders, of solvers above all, to draw as horizontal lines where they end, or, as folder@100, at step 100"""
    per_run: bool = False
    """one curve per folder instead of one per script and game"""
    seed: int = 0
    """seed of the bootstrap"""


@dataclass
class Run:
    """A run folder as it was read."""

    path: Path
    config: dict
    columns: list[str]  # of metrics.csv, without seed, global_step, wall_time
    rows: list[dict[str, str]]

    @property
    def game(self) -> str:
        """The environment and its parameters; different parameters are different games."""
        kwargs = ", ".join(f"{name}={value}" for name, value in sorted(self.config["args"]["env_kwargs"].items()))
        return self.config["args"]["env"] + (f" ({kwargs})" if kwargs else "")

    @property
    def algorithm(self) -> str:
        return Path(self.config["script"]).stem


@dataclass
class Curve:
    """A metric over seeds, on the steps that all of them have."""

    label: str
    x: np.ndarray  # [T] steps, or mean seconds over seeds
    steps: np.ndarray  # [T]
    values: np.ndarray  # [S, T]
    lower: np.ndarray  # [T] bounds of the interquartile mean over seeds
    upper: np.ndarray  # [T]
    uniform: float | None  # the uniform policy's value, where known
    unit: str = "environment steps"

    @property
    def iqm(self) -> np.ndarray:
        return interquartile_mean(self.values)  # [T]


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean without the lowest and the highest quarter along `axis`, each rounded down to whole entries."""
    values = np.sort(values, axis=axis)
    count = values.shape[axis]
    return np.take(values, np.arange(count // 4, count - count // 4), axis=axis).mean(axis=axis)


def bootstrap_interval(
    strata: list[np.ndarray], rng: np.random.Generator, num_resamples: int = NUM_RESAMPLES, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of the interquartile mean, by stratified bootstrap.

    Seeds are drawn with replacement within each stratum, whole curves at a time, as many as the stratum has.

    Args:
        strata: arrays [S_i, T], one per game.
        rng: consumed.
        num_resamples: B.
        level: probability inside the interval.

    Returns:
        Lower and upper bounds, [T] each.
    """
    draws, start = [], 0
    for stratum in strata:
        draws.append(start + rng.integers(len(stratum), size=(num_resamples, len(stratum))))
        start += len(stratum)
    draws = np.concatenate(draws, axis=1)  # [B, S]
    values = np.concatenate(strata)  # [S, T]
    chunk = max(1, MAX_RESAMPLED // draws.size)
    tails = [(1 - level) / 2, (1 + level) / 2]
    bounds = [
        np.quantile(interquartile_mean(values[draws, first : first + chunk], axis=1), tails, axis=0)
        for first in range(0, values.shape[1], chunk)
    ]
    lower, upper = np.concatenate(bounds, axis=1)
    return lower, upper


def read_run(path: Path) -> Run:
    """Reads `config.json` and `metrics.csv` (none yet: no rows). Raises ValueError where they are broken."""
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: no config.json, so this is not the folder of a run")
    try:
        config = json.loads((path / "config.json").read_text())
        if not isinstance(config["args"]["env"], str) or not isinstance(config["script"], str):
            raise TypeError("args.env and script have to be strings")
        kwargs = config["args"].get("env_kwargs") or {}  # JSON in a string, as on the command line, or a dict
        config["args"]["env_kwargs"] = dict(json.loads(kwargs) if isinstance(kwargs, str) else kwargs)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}/config.json: {type(error).__name__}: {error}") from None
    if not (path / "metrics.csv").is_file():
        return Run(path, config, [], [])
    with (path / "metrics.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or [])
    for column in ("seed", "global_step", "wall_time"):
        if column not in columns:
            raise ValueError(f"{path}/metrics.csv: no column {column!r}")
        columns.remove(column)
    return Run(path, config, columns, rows)


def number(text: str | None) -> float:
    """The number in a cell of a table, NaN where there is none."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def seed_curves(run: Run, metric: str) -> dict[int, dict[int, tuple[float, float]]]:
    """`{seed: {global_step: (wall_time, value)}}` of the rows where the metric is logged and finite."""
    curves: dict[int, dict[int, tuple[float, float]]] = {}
    for row in run.rows:
        seed, step, value = number(row["seed"]), number(row["global_step"]), number(row.get(metric))
        if math.isfinite(seed) and math.isfinite(step) and math.isfinite(value):
            curves.setdefault(int(seed), {})[int(step)] = (number(row["wall_time"]), value)
    return curves


def align(label: str, curves: list[dict[int, tuple[float, float]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps [T], wall times [S, T] and values [S, T] of curves on one grid; says so where their grids differ.

    The grid is the steps that all curves have, or, if that is less than half of what the coarsest has, the coarsest
    curve's steps where all curves run, the others interpolated linearly.

    Raises:
        ValueError: no step that all curves reach.
    """
    grids = [np.array(sorted(curve)) for curve in curves]
    steps = np.array(sorted(set.intersection(*map(set, curves))))
    coarsest = min(grids, key=len)
    how = "the steps that all of them have"
    if 2 * len(steps) < len(coarsest):
        first, last = max(grid[0] for grid in grids), min(grid[-1] for grid in grids)
        steps = coarsest[(first <= coarsest) & (coarsest <= last)]
        how = "the coarsest seed's steps, the others interpolated"
    if not len(steps):
        raise ValueError(f"{label}: its seeds have no steps in common")
    if any(len(grid) != len(steps) or (grid != steps).any() for grid in grids):
        print(
            f"note: {label}: the seeds were logged at different steps; drawn on {how} "
            f"({len(steps)}, up to {steps[-1]:,}; the longest seed goes up to {max(grid[-1] for grid in grids):,})"
        )
    tables = [np.array([curve[step] for step in grid]) for curve, grid in zip(curves, grids, strict=True)]
    columns = [
        np.stack([np.interp(steps, grid, table[:, i]) for grid, table in zip(grids, tables, strict=True)])
        for i in range(2)
    ]
    return steps, *columns


def pool(label: str, runs: list[Run], metric: str) -> list[dict[int, tuple[float, float]]]:
    """One `{global_step: (wall_time, value)}` per independent seed of `runs`.

    A seed that was run twice with the same settings gives the same numbers twice: the longer one is kept.

    Raises:
        ValueError: a run without the metric, or no value of it in any.
    """
    settings = [{k: v for k, v in run.config["args"].items() if not NOT_A_SETTING.fullmatch(k)} for run in runs]
    names = sorted({k for setting in settings for k in setting if any(s.get(k) != setting[k] for s in settings)})
    if names:
        print(f"note: {label}: pools runs that differ in {', '.join(names)}; --per-run draws them apart")
    curves: dict[tuple[int, str], dict[int, tuple[float, float]]] = {}
    for run, setting in zip(runs, settings, strict=True):
        if metric not in run.columns:
            close = difflib.get_close_matches(metric, run.columns, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"{run.path}: no metric {metric!r}: {hint}it has {', '.join(run.columns) or 'none'}")
        found = seed_curves(run, metric)
        if not found:
            print(f"note: {run.path} has no value of {metric} yet and is left out")
        for seed, curve in found.items():
            key = (seed, json.dumps(setting, sort_keys=True))
            if key in curves:
                print(f"note: {label}: seed {seed} was run twice with the same settings; the longer run counts")
            curves[key] = max(curves.get(key, {}), curve, key=len)
    if not curves:
        raise ValueError(f"{label}: no value of {metric} is logged yet")
    return list(curves.values())


def make_curve(game: str, label: str, runs: list[Run], metric: str, args: Args) -> Curve:
    """The curve of all seeds of `runs`, with its band."""
    steps, times, values = align(f"{game}, {label}", pool(f"{game}, {label}", runs, metric))
    lower, upper = bootstrap_interval([values], np.random.default_rng(args.seed))
    known = [
        run.config["uniform_exploitability"] for run in runs if run.config.get("uniform_exploitability") is not None
    ]
    uniform = known[0] if known and metric == "eval/exploitability" else None
    x = steps if args.x == "global_step" else times.mean(axis=0)
    if args.log_y and not (values > 0).all():
        raise ValueError(f"--log-y: {game}, {label} has {metric} down to {values.min():.4g}")
    unit = "wall time (s)" if args.x == "wall_time" else step_unit(runs[0])
    return Curve(Path(label).name, x, steps, values, lower, upper, uniform, unit)


def make_panels(runs: list[Run], args: Args) -> dict[str, tuple[str, list[Curve]]]:
    """`{game: (metric, curves)}`."""
    panels: dict[str, tuple[str, list[Curve]]] = {}
    for game in dict.fromkeys(run.game for run in runs):
        groups: dict[str, list[Run]] = {}
        for run in (run for run in runs if run.game == game):
            groups.setdefault(str(run.path) if args.per_run else run.algorithm, []).append(run)
        members = [run for group in groups.values() for run in group]
        known = [name for name in DEFAULT_METRICS if any(seed_curves(run, name) for run in members)]
        metric = args.metric or (known or DEFAULT_METRICS)[0]
        curves = [make_curve(game, label, group, metric, args) for label, group in groups.items()]
        panels[game] = (metric, curves)
    return panels


def read_levels(args: Args, panels: dict[str, tuple[str, list[Curve]]]) -> dict[str, list[tuple[str, float]]]:
    """`{game: [(label, value)]}` of `args.levels`, the interquartile mean over the seeds of a run at one step.

    Raises:
        ValueError: no such run, step or metric, or no curve of its game; or a level that `--log-y` cannot show.
    """
    levels: dict[str, list[tuple[str, float]]] = {}
    for text in args.levels:
        folder, wanted = Path(text), None
        if not folder.exists() and (match := re.fullmatch(r"(.*)@(\d+)", text)):
            folder, wanted = Path(match[1]), int(match[2])
        run = read_run(folder)
        if run.game not in panels:
            raise ValueError(f"--levels {text}: a run of {run.game}, and the curves are of {', '.join(panels)}")
        metric = panels[run.game][0]
        if metric not in run.columns:
            raise ValueError(f"--levels {text}: no metric {metric!r}: it has {', '.join(run.columns) or 'none'}")
        curves = list(seed_curves(run, metric).values())
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        step = wanted if wanted is not None else (steps or [None])[-1]
        if step not in steps:
            known = ", ".join(map(str, steps)) or "none"
            raise ValueError(f"--levels {text}: {metric} is logged at the steps {known}")
        value = float(interquartile_mean(np.array([curve[step][1] for curve in curves])))
        if args.log_y and value <= 0:
            raise ValueError(f"--log-y: --levels {text} has {metric} {value:.4g}")
        variant = run.config["args"].get("variant")
        name = f"{run.algorithm} ({variant})" if variant else run.algorithm
        levels.setdefault(run.game, []).append((f"{name}, {step:,} {step_unit(run)} ({value:.4g})", value))
    return levels


def step_unit(run: Run) -> str:
    return "iterations" if run.algorithm in SOLVERS else "environment steps"


def read_runs(paths: tuple[Path, ...]) -> list[Run]:
    """The runs that have logged something, with a note on those that have not. Raises ValueError if none has."""
    if not paths:
        raise ValueError("name one or more run folders, e.g. runs/kuhn_poker__ppo_nfsp__*")
    runs = [read_run(path) for path in dict.fromkeys(paths)]
    for run in runs:
        if not run.rows:
            print(f"note: {run.path} has logged nothing (status {run.config.get('status')}) and is left out")
    if not any(run.rows for run in runs):
        raise ValueError(f"{paths[0]}: nothing is logged" + " in any of the folders" * (len(paths) > 1))
    return [run for run in runs if run.rows]


def print_table(panels: dict[str, tuple[str, list[Curve]]]):
    """Values at the last step that all seeds of a curve have."""
    rows = [("game", "run", "metric", "step", "IQM", "mean", f"{LEVEL:.0%} interval", "seeds")]
    for game, (metric, curves) in panels.items():
        for curve in curves:
            seeds = len(curve.values)
            iqm, mean, lower, upper = (
                f"{value[-1]:.4g}" if abs(value[-1]) < 1e4 else f"{value[-1]:,.0f}"
                for value in (curve.iqm, curve.values.mean(axis=0), curve.lower, curve.upper)
            )
            interval = f"{lower} to {upper}" if seeds > 1 else "-"
            rows.append((game, curve.label, metric, f"{curve.steps[-1]:,}", iqm, mean, interval, str(seeds)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def tick(value: float, _=None) -> str:
    """A number as on the command line: 0, 500, 2.5e6."""
    if abs(value) < 1e4:
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    return f"{value / 10**exponent:.4g}e{exponent}"


def draw(
    panels: dict[str, tuple[str, list[Curve]]], args: Args, levels: dict[str, list[tuple[str, float]]] | None = None
) -> Figure:
    """The picture, one panel a game."""
    num_columns = min(3, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    figure = Figure(figsize=(0.8 + 5.2 * num_columns, 3.9 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    labels = list(dict.fromkeys(curve.label for _, curves in panels.values() for curve in curves))
    for axes, (game, (metric, curves)) in zip(grid, panels.items(), strict=False):
        for curve in curves:
            color = f"C{labels.index(curve.label) % 10}"
            seeds = len(curve.values)
            name = f"{curve.label} ({seeds} seed{'s' * (seeds > 1)})"
            axes.plot(curve.x, curve.iqm, color=color, label=name, linewidth=1.8, marker="o" * (len(curve.x) == 1))
            if seeds > 1:
                axes.fill_between(curve.x, curve.lower, curve.upper, color=color, alpha=0.2, linewidth=0)
        for level in {curve.uniform for curve in curves if curve.uniform is not None}:
            axes.axhline(level, color="0.35", linestyle="--", linewidth=1.2, label=f"uniform policy ({level:.4g})")
        for i, (label, level) in enumerate((levels or {}).get(game, [])):
            axes.axhline(level, color=f"C{(len(labels) + i) % 10}", linestyle=":", linewidth=1.5, label=label)
        units = " or ".join(dict.fromkeys(curve.unit for curve in curves))
        axes.set(title=game, xlabel=units, ylabel=Y_LABELS.get(metric, metric))
        axes.xaxis.set_major_formatter(FuncFormatter(tick))
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        if args.log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        elif metric == "eval/exploitability":
            axes.set_ylim(bottom=0)
        if args.log_y or max(map(abs, axes.get_ylim())) >= 1e4:
            axes.yaxis.set_major_formatter(FuncFormatter(tick))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if any(len(curve.values) > 1 for _, curves in panels.values() for curve in curves):
        note = f"interquartile mean over seeds, {LEVEL:.0%} bootstrap band"
        figure.supxlabel(note, fontsize=8, color="0.4")
    return figure


def main(args: Args) -> int:
    """Reads, prints and draws; returns the exit code."""
    try:
        formats = Figure().canvas.get_supported_filetypes()
        if args.out.suffix[1:] not in formats:
            raise ValueError(f"--out {args.out}: the name has to end in one of {', '.join(f'.{f}' for f in formats)}")
        panels = make_panels(read_runs(args.runs), args)
        levels = read_levels(args, panels)
        print_table(panels)
        for game, values in levels.items():
            print("\n".join(f"level in {game}: {label}" for label, _ in values))
        args.out.parent.mkdir(parents=True, exist_ok=True)
        draw(panels, args, levels).savefig(args.out, dpi=150)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"\nwritten to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
