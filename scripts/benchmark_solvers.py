"""CFR iterations and exploitability evaluations per second, against OpenSpiel's C++.

    pip install -r tests/requirements.txt && python scripts/benchmark_solvers.py

- Tabular CFR (`--variant cfr`), both in float64, alternating updates, the same information sets (Leduc by rank, as
  OpenSpiel's `suit_isomorphism`), against `pyspiel.CFRSolver`.
- Exploitability of a network policy (2 x 128, float32) in a loop on the device, against `pyspiel.nash_conv` of a
  uniform policy, which has no network to run.

Both sides live in one process and are timed in turn, `--repeats` times after a first run that does not count, so that a
change in the machine's load hits both. The table shows medians and, in brackets, least to most; the ratio is the median
of the pairs' ratios. Writes `benchmark_solvers.csv` to `--out`.
"""

import csv
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

import envs
from solvers import cfr
from solvers.exploitability import evaluate_network
from solvers.game_tree import build_game_tree

# game: OpenSpiel's name, our iterations in a run, theirs
CFR_GAMES = {
    "kuhn_poker": ("kuhn_poker", 500_000, 20_000),
    "leduc_holdem": ("leduc_poker(suit_isomorphism=True)", 30_000, 100),
    "liars_dice": ("liars_dice", 500, 5),
}
EVALUATION_GAMES = {
    "kuhn_poker": ("kuhn_poker", 10_000, 1_000),
    "leduc_holdem": ("leduc_poker", 1_000, 3),
}
HIDDEN = 128


@dataclass
class Args:
    repeats: int = 5
    """timed runs of each side"""
    out: Path = Path("solver_benchmark")
    """folder for the table"""


def time_pairs(ours: Callable[[], None], theirs: Callable[[], None], repeats: int) -> list[tuple[float, float]]:
    """Seconds of either, in turn; a first run of each is left out."""
    pairs = []
    for _ in range(repeats + 1):
        seconds = []
        for function in (ours, theirs):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
        pairs.append(tuple(seconds))
    return pairs[1:]


def benchmark_cfr(name: str, repeats: int) -> dict:
    import pyspiel

    their_name, iterations, their_iterations = CFR_GAMES[name]
    layout = cfr.make_layout(build_game_tree(envs.make(name)))
    solver = pyspiel.CFRSolver(pyspiel.load_game(their_name))
    with jax.enable_x64(True):
        layout = jax.device_put(layout)
        tables = jax.jit(cfr.init_tables)(layout)
        start = time.perf_counter()
        run = jax.jit(lambda layout, tables, end: cfr.solve(layout, tables, 0, end, cfr.Rule("cfr")))
        run = run.lower(layout, tables, iterations).compile()
        compile_seconds = time.perf_counter() - start

        def theirs():
            for _ in range(their_iterations):
                solver.evaluate_and_update_policy()

        pairs = time_pairs(lambda: jax.block_until_ready(run(layout, tables, iterations)), theirs, repeats)
    return summarise("CFR iterations/s", name, pairs, iterations, their_iterations) | {"compile_s": compile_seconds}


def benchmark_evaluation(name: str, repeats: int) -> dict:
    import pyspiel

    their_name, calls, their_calls = EVALUATION_GAMES[name]
    env = envs.make(name, observation="information_state")
    tree = build_game_tree(env)
    sizes = [env.obs_shape[0], HIDDEN, HIDDEN, env.num_actions]
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = itertools.pairwise(sizes)
    params = [jax.random.normal(key, shape) / shape[0] ** 0.5 for key, shape in zip(keys, shapes, strict=True)]

    def policy(params, obs, legal):
        for kernel in params[:-1]:
            obs = jax.nn.relu(obs @ kernel)
        return jax.nn.softmax(jnp.where(legal, obs @ params[-1], -1e9))

    def loop(params):
        """Every call's parameters hang on the last one's result, so that none is left out."""

        def body(_, carry):
            params, _ = carry
            score = evaluate_network(tree, policy, params).exploitability
            return jax.tree.map(lambda x: x + 1e-9 * score, params), score

        return jax.lax.fori_loop(0, calls, body, (params, jnp.float32(0)))[1]

    start = time.perf_counter()
    run = jax.jit(loop).lower(params).compile()
    compile_seconds = time.perf_counter() - start
    game = pyspiel.load_game(their_name)
    their_policy = pyspiel.UniformRandomPolicy(game)

    def theirs():
        for _ in range(their_calls):
            pyspiel.nash_conv(game, their_policy)

    pairs = time_pairs(lambda: jax.block_until_ready(run(params)), theirs, repeats)
    return summarise("evaluations/s", name, pairs, calls, their_calls) | {"compile_s": compile_seconds}


def summarise(what: str, name: str, pairs: list[tuple[float, float]], ours: int, theirs: int) -> dict:
    row = {"what": what, "game": name}
    rates = {
        "ours": [ours / seconds for seconds, _ in pairs],
        "openspiel": [theirs / seconds for _, seconds in pairs],
    }
    rates["ratio"] = [a / b for a, b in zip(rates["ours"], rates["openspiel"], strict=True)]
    for column, values in rates.items():
        row |= {column: statistics.median(values), f"{column}_min": min(values), f"{column}_max": max(values)}
    return row


def main(args: Args) -> None:
    cfr.fuse_small_loops()
    rows = [benchmark_cfr(name, args.repeats) for name in CFR_GAMES]
    rows += [benchmark_evaluation(name, args.repeats) for name in EVALUATION_GAMES]
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "benchmark_solvers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(
        f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, jax {jax.__version__}; {args.repeats} runs in turn\n"
    )
    print(f"{'':18}{'game':14}{'ours':>30}{'OpenSpiel':>26}{'ratio':>24}{'compile':>10}")
    for row in rows:
        cells = [
            f"{row[c]:,.0f} ({row[c + '_min']:,.0f}-{row[c + '_max']:,.0f})" for c in ("ours", "openspiel", "ratio")
        ]
        line = f"{row['what']:18}{row['game']:14}{cells[0]:>30}{cells[1]:>26}{cells[2]:>24}"
        print(f"{line}{row['compile_s']:9.2f}s")
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
