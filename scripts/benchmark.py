"""Steps per second, memory and compile time of the games, alone or against PGX.

    python scripts/benchmark.py --env kuhn_poker leduc_holdem --compare pgx

Each run plays `--num-steps` steps of E environments in one `lax.scan` under `jit`, episodes restarting by themselves,
with uniform random legal actions. One step of one environment counts as one step, also where all players act at once.

What makes the numbers comparable:
- One harness for both libraries. Each step it draws one 32-bit word per acting player in one batch, turns it into a
  legal action, and adds all observations and rewards to a checksum. The observation is carried from one step to the
  next, as a policy would read it, so it is really written to memory.
- PGX resets by its own `pgx.experimental.auto_reset`, under `vmap`, with keys from one batched `split` a step.
- With `--compare pgx` both programs live in one process and are timed in turn, so that a change in the machine's load
  hits both. The ratio of each pair is taken first, then the median of the ratios.
- Every batch size has a process of its own. Memory is the largest resident set during the first run minus the
  resident set after compiling (and after handing freed memory back to the system); PGX's memory and compile time are
  taken in yet another process.
- Compile time is tracing, lowering and compiling the whole scan, without any compilation cache.

Writes `benchmark.csv`, `benchmark.json` (every single run, hardware, versions) and `benchmark.png` to `--out`.

Letters: E environments, N players, A actions.
"""

import contextlib
import csv
import ctypes
import dataclasses
import gc
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import envs

PGX_GAMES = {"kuhn_poker": "kuhn_poker", "leduc_holdem": "leduc_holdem"}  # games that both libraries have
PGX_YARDSTICK = "kuhn_poker"
BLOCK = 40  # actions whose legal ones are counted one by one; more are counted by the words of a bit mask
WORD_BITS = 32
COLUMNS = (
    *("env", "library", "game", "observation", "env_kwargs", "num_envs", "num_steps", "repeats"),
    *("steps_per_s", "steps_per_s_min", "steps_per_s_max", "ratio", "ratio_min", "ratio_max"),
    *("compile_s", "rss_compiled_mb", "rss_peak_mb", "rss_run_mb", "buffers_mb", "step_compilations"),
    *("episodes", "checksum", "device"),
)
TABLE_HEAD = (
    f"{'game':<32}{'envs':>8}  {'steps/s (least to most)':<25}{'times PGX':<20}{'compile s':>9}"
    f"{'compiled MB':>13}{'run MB':>9}{'compilations':>14}"
)


@dataclass
class Args:
    env: tuple[str, ...] = ("kuhn_poker",)
    """games to measure, one or more"""
    num_envs: tuple[int, ...] = (1, 10, 100, 1000, 10000)
    """numbers of environments stepped together"""
    num_steps: int = 1000
    """steps of each environment in one scan"""
    repeats: int = 7
    """timed runs of each program; the median counts, least and most are shown"""
    min_seconds: float = 0.1
    """a timed run plays the scan as often as it takes to last about this long"""
    observation: Literal["paper", "information_state"] = "paper"
    """encoding of the observations"""
    env_kwargs: str = "{}"
    """parameters of the games as JSON, e.g. '{"num_ranks": 5}'"""
    compare: Literal["none", "pgx"] = "none"
    """library to measure in turn with the games"""
    pgx_env: str | None = None
    """game of PGX to compare with; None: the same game where PGX has it, else its kuhn_poker as a yard-stick"""
    seed: int = 0
    """seed of the deals and actions"""
    out: Path | None = None
    """folder for the results, made if missing; None: runs/benchmark__<time>"""


class Game(NamedTuple):
    """A game as the harness sees it, batched over E environments. `world` is all that passes from step to step."""

    action_shape: tuple[int, ...]  # () where one player acts, (N,) where all do
    reset: Callable[[jax.Array], Any]  # key -> world
    view: Callable[[Any], tuple[jax.Array, jax.Array]]  # world -> obs [E, ...], legal bool[E, *action_shape, A]
    step: Callable[..., tuple[Any, jax.Array, jax.Array]]  # world, actions, key -> world, rewards [E, N], done bool[E]


def random_legal_actions(words: jax.Array, legal: jax.Array) -> jax.Array:
    """Uniform random legal actions, one 32-bit word each.

    The action is the k-th legal one, k = floor(words * n / 2**32) for n legal actions; each has probability 1 / n up
    to 2**-32. The product has more than 32 bits and goes through the halves of the word: exact for n <= 65536.

    Args:
        words: uint32 [...], uniform random bits.
        legal: bool [..., A], True = legal, at least one in each row.

    Returns:
        int32 [...].
    """
    num_actions = legal.shape[-1]
    if num_actions <= BLOCK:
        num_legal = legal.sum(-1, dtype=jnp.uint32)
        return find_in_cumulative_sum(legal, scale_word(words, num_legal))[0]
    padding = [(0, 0)] * (legal.ndim - 1) + [(0, -num_actions % WORD_BITS)]
    flags = jnp.pad(legal, padding).reshape(*legal.shape[:-1], -1, WORD_BITS).astype(jnp.uint32)
    masks = (flags << jax.lax.broadcasted_iota(jnp.uint32, flags.shape, flags.ndim - 1)).sum(-1, dtype=jnp.uint32)
    counts = jax.lax.population_count(masks)
    block, k = find_in_cumulative_sum(counts, scale_word(words, counts.sum(-1, dtype=jnp.uint32)))
    is_block = jax.lax.broadcasted_iota(jnp.int32, masks.shape, masks.ndim - 1) == block[..., None]
    mask = jnp.where(is_block, masks, 0).sum(-1, dtype=jnp.uint32)
    action = block * WORD_BITS
    for width in (16, 8, 4, 2, 1):  # in which half of what is left the k-th bit is
        in_lower = jax.lax.population_count(mask & np.uint32((1 << width) - 1))
        is_upper = k >= in_lower
        mask, k = jnp.where(is_upper, mask >> width, mask), jnp.where(is_upper, k - in_lower, k)
        action += jnp.where(is_upper, width, 0)
    return action.astype(jnp.int32)


def scale_word(words: jax.Array, sizes: jax.Array) -> jax.Array:
    """floor(words * sizes / 2**32), uint32, for sizes <= 65536."""
    high, low = words >> 16, words & 0xFFFF
    return (high * sizes + (low * sizes >> 16)) >> 16


def find_in_cumulative_sum(counts: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first index on the last axis where the sum up to it exceeds `k`, and `k` minus the sum before that index.

    A sum that runs along with the comparison is several times as fast as `jnp.cumsum` on a CPU.
    """
    running = before = jnp.zeros_like(k)
    index = jnp.zeros_like(k, jnp.int32)
    for i in range(counts.shape[-1] - 1):  # the last index is what is left
        running = running + counts[..., i]
        past = running <= k
        index = index + past
        before = jnp.where(past, running, before)
    return index, k - before


def own_game(name: str, num_envs: int, **env_kwargs) -> Game:
    """A game of this repository."""
    env = envs.make(name, **env_kwargs)

    def step(world, actions, key):
        del key  # the state carries its own
        state, obs, reward, _, done, _ = jax.vmap(env.step)(world[0], actions)
        return (state, obs), reward, done

    return Game(
        action_shape=() if env.api == "aec" else (env.num_agents,),
        reset=lambda key: jax.vmap(env.reset)(jax.random.split(key, num_envs)),
        view=lambda world: (world[1], jax.vmap(env.legal_actions)(world[0])),
        step=step,
    )


def pgx_game(name: str, num_envs: int) -> Game:
    """A game of PGX with PGX's own auto-reset."""
    import pgx
    from pgx.experimental import auto_reset

    env = pgx.make(name)
    step_or_reset = jax.vmap(auto_reset(env.step, env.init))

    def step(world, actions, key):
        world = step_or_reset(world, actions, jax.random.split(key, num_envs))
        return world, world.rewards, world.terminated | world.truncated

    return Game(
        action_shape=(),
        reset=lambda key: jax.vmap(env.init)(jax.random.split(key, num_envs)),
        view=lambda world: (world.observation, world.legal_action_mask),
        step=step,
    )


def make_rollout(game: Game, num_envs: int, num_steps: int) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """The program that is timed: `rollout(key)` plays E x `num_steps` steps; returns checksum and ended episodes."""

    def rollout(key):
        reset_key, key = jax.random.split(key)

        def one_step(carry, _):
            world, key, checksum, episodes = carry
            key, action_key, step_key = jax.random.split(key, 3)
            obs, legal = game.view(world)
            words = jax.random.bits(action_key, (num_envs, *game.action_shape))
            world, reward, done = game.step(world, random_legal_actions(words, legal), step_key)
            checksum += obs.sum(dtype=jnp.float32) + reward.sum(dtype=jnp.float32)
            return (world, key, checksum, episodes + done.sum(dtype=jnp.int32)), None

        carry = (game.reset(reset_key), key, jnp.float32(0), jnp.int32(0))
        (world, _, checksum, episodes), _ = jax.lax.scan(one_step, carry, length=num_steps)
        return checksum + game.view(world)[0].sum(dtype=jnp.float32), episodes

    return rollout


def count_step_compilations(game: Game, num_envs: int) -> int:
    """How often a jitted step compiles when fed its own results: 1 if dtypes and shapes come out as they go in."""
    step = jax.jit(game.step)
    world = jax.jit(game.reset)(jax.random.key(0))
    for key in jax.random.split(jax.random.key(1), 4):
        world, *_ = step(world, jnp.zeros((num_envs, *game.action_shape), jnp.int32), key)
    return step._cache_size()


def resident_mb(field: str = "VmRSS") -> float:
    """Resident set of this process in MB, now ("VmRSS") or at its largest ("VmHWM"); NaN where there is no /proc."""
    with contextlib.suppress(OSError):
        if match := re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE):
            return int(match[1]) * 1024 / 1e6
    return math.nan


def peak_resident_mb(function: Callable[[], Any]) -> tuple[Any, float]:
    """Calls `function`; returns its result and the largest resident set meanwhile, in MB.

    The kernel's own high-water mark is exact; where it cannot be reset, a thread samples every millisecond.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
    else:
        return function(), resident_mb("VmHWM")
    samples, stop = [resident_mb()], threading.Event()

    def sample():
        while not stop.wait(0.001):
            samples.append(resident_mb())

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    result = function()
    stop.set()
    sampler.join()
    return result, max(samples)


def release_freed_memory():
    """Hands what the compiler freed back to the system; else a run could live in it and seem to need nothing."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def prepare(game: Game, num_envs: int, num_steps: int, seed: int) -> tuple[Callable, dict]:
    """Compiles the program and runs it once; returns it, and what that took."""
    key = jax.random.key(seed)
    jax.block_until_ready(jax.random.split(key))  # the backend is up
    start = time.perf_counter()
    program = jax.jit(make_rollout(game, num_envs, num_steps)).lower(key).compile()
    compile_s = time.perf_counter() - start
    release_freed_memory()
    rss_compiled = resident_mb()
    (checksum, episodes), rss_peak = peak_resident_mb(lambda: jax.block_until_ready(program(key)))
    buffers = program.memory_analysis()
    return program, {
        "compile_s": compile_s,
        "rss_compiled_mb": rss_compiled,
        "rss_peak_mb": rss_peak,
        "rss_run_mb": rss_peak - rss_compiled,
        "buffers_mb": (buffers.temp_size_in_bytes + buffers.output_size_in_bytes) / 1e6 if buffers else math.nan,
        "episodes": int(episodes),
        "checksum": float(checksum),
        "device": jax.devices()[0].device_kind,
    }


def timed(program: Callable, key: jax.Array, calls: int) -> float:
    """Seconds that `calls` runs of `program` take."""
    start = time.perf_counter()
    outputs = [program(key) for _ in range(calls)]
    jax.block_until_ready(outputs)
    return time.perf_counter() - start


def measure(spec: dict) -> list[dict]:
    """Measures one batch size in this process, the programs of `spec["games"]` timed in turn.

    Args:
        spec: `games`, a list of {"library", "game", "observation", "env_kwargs"}; `num_envs`; of `Args` `num_steps`,
            `repeats` (0: no timing), `min_seconds`, `seed`.

    Returns:
        One dict per game: what `prepare` measures, `runs`, the steps/s of each run, and for games of this repository
        `step_compilations`.
    """
    num_envs, num_steps, seed = spec["num_envs"], spec["num_steps"], spec["seed"]
    programs, results = [], []
    for game in spec["games"]:
        if game["library"] == "pgx":
            program, result = prepare(pgx_game(game["game"], num_envs), num_envs, num_steps, seed)
        else:
            kwargs = {"observation": game["observation"]} | json.loads(game["env_kwargs"])
            built = own_game(game["game"], num_envs, **kwargs)
            program, result = prepare(built, num_envs, num_steps, seed)
            result["step_compilations"] = count_step_compilations(built, num_envs)
        programs.append(program)
        results.append(result | {"runs": []})
    keys = jax.random.split(jax.random.key(seed + 1), spec["repeats"] + 1)
    calls = [max(1, math.ceil(spec["min_seconds"] / timed(program, keys[-1], 1))) for program in programs]
    order = list(range(len(programs)))
    for repeat in range(spec["repeats"]):
        for i in order if repeat % 2 == 0 else order[::-1]:
            seconds = timed(programs[i], keys[repeat], calls[i])
            results[i]["runs"].append(calls[i] * num_envs * num_steps / seconds)
    return results


def measure_in_process(spec: dict) -> list[dict]:
    """`measure` in a fresh process. Raises ChildProcessError with the last line of its stderr."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, __file__, "--worker", json.dumps(spec)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode < 0:
        raise ChildProcessError(f"killed by signal {-done.returncode}" + " (out of memory?)" * (done.returncode == -9))
    if done.returncode > 0:
        raise ChildProcessError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def benchmark_size(args: Args, name: str, num_envs: int) -> list[dict]:
    """Rows of one game at one batch size, PGX's after it: `COLUMNS` and `runs`, the steps/s of every run."""
    games = [{"library": "bluffjax", "game": name, "observation": args.observation, "env_kwargs": args.env_kwargs}]
    if args.compare == "pgx":
        pgx_name = args.pgx_env or PGX_GAMES.get(name, PGX_YARDSTICK)
        games.append({"library": "pgx", "game": pgx_name, "observation": "", "env_kwargs": "{}"})
    spec = {"num_envs": num_envs} | {field: getattr(args, field) for field in ("num_steps", "min_seconds", "seed")}
    results = measure_in_process(spec | {"games": games, "repeats": args.repeats})
    if args.compare == "pgx":  # compile time and memory as in a process that has run nothing before
        alone = measure_in_process(spec | {"games": games[1:], "repeats": 0})[0]
        results[1] = alone | {"runs": results[1]["runs"]}

    shared = {"env": name, "num_envs": num_envs, "num_steps": args.num_steps, "repeats": args.repeats}
    rows = [shared | game | result for game, result in zip(games, results, strict=True)]
    for row in rows:
        row |= middle_and_range("steps_per_s", row["runs"])
    if args.compare == "pgx":
        rows[0] |= middle_and_range("ratio", [a / b for a, b in zip(rows[0]["runs"], rows[1]["runs"], strict=True)])
    return rows


def middle_and_range(name: str, values: list[float]) -> dict[str, float]:
    """Median, least and most of `values` as columns."""
    return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def hardware_and_versions() -> dict[str, str]:
    """What the numbers depend on."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu = names[0] if names else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = {"cpu": cpu, "cores": str(cores), "python": platform.python_version()}
    for package in ("jax", "jaxlib", "pgx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def short(value: float) -> str:
    """Three digits and k, M or G: 1.23M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"


def table_line(row: dict) -> str:
    """One row of the printed table."""
    speed = f"{short(row['steps_per_s'])} ({short(row['steps_per_s_min'])} to {short(row['steps_per_s_max'])})"
    ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})" if "ratio" in row else ""
    return (
        f"{row['library'] + ' ' + row['game']:<32}{row['num_envs']:>8}  {speed:<25}{ratio:<20}{row['compile_s']:>9.2f}"
        f"{row['rss_compiled_mb']:>13.1f}{row['rss_run_mb']:>9.1f}{row.get('step_compilations', ''):>14}"
    )


def write_results(rows: list[dict], args: Args, hardware: dict[str, str], out: Path):
    """Writes `benchmark.csv` and `benchmark.json`."""
    with (out / "benchmark.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(rows)
    record = {"args": dataclasses.asdict(args), "hardware": hardware, "rows": rows}
    (out / "benchmark.json").write_text(json.dumps(record, indent=1, default=str))


def draw(rows: list[dict], hardware: dict[str, str], path: Path):
    """Steps/s and memory against the number of environments."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    speed_axes, memory_axes = figure.subplots(1, 2)
    lines: dict[tuple[str, str], dict[int, dict]] = {}  # PGX's yard-stick may be measured beside several games
    for row in rows:
        lines.setdefault((row["library"], row["game"]), {})[row["num_envs"]] = row
    games = list(dict.fromkeys(game for _, game in lines))
    for (library, game), points in lines.items():
        x = sorted(points)
        style = {"color": f"C{games.index(game) % 10}", "markersize": 5}
        style |= {"marker": "o"} if library == "bluffjax" else {"marker": "s", "linestyle": "--", "mfc": "white"}
        label = game if library == "bluffjax" else f"{game} (PGX)"
        speed_axes.plot(x, [points[n]["steps_per_s"] for n in x], label=label, **style)
        least, most = ([points[n][f"steps_per_s_{end}"] for n in x] for end in ("min", "max"))
        speed_axes.fill_between(x, least, most, color=style["color"], alpha=0.2, linewidth=0)
        memory_axes.plot(x, [points[n]["rss_run_mb"] for n in x], label=label, **style)
    for axes, label in ((speed_axes, "environment steps per second"), (memory_axes, "memory of a run (RSS), MB")):
        axes.set(xscale="log", xlabel="environments stepped together", ylabel=label)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    speed_axes.set_yscale("log")
    speed_axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    speed_axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    speed_axes.yaxis.set_minor_formatter(NullFormatter())
    memory_axes.set_ylim(bottom=0)
    speed_axes.legend(frameon=False)
    title = f"{hardware['cpu']}, {hardware['cores']} cores, device {hardware['device']}, jax {hardware['jax']}"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)


def check(args: Args):
    """Raises ValueError where the arguments cannot work, before anything is measured."""
    for field in ("env", "num_envs", "num_steps", "repeats"):
        value = getattr(args, field)
        if not value or (field != "env" and min(value if isinstance(value, tuple) else (value,)) < 1):
            raise ValueError(f"--{field.replace('_', '-')} {value}: one or more is needed")
    try:
        env_kwargs = json.loads(args.env_kwargs)
    except json.JSONDecodeError as error:
        raise ValueError(f"--env-kwargs {args.env_kwargs!r} is not JSON: {error}") from None
    if not isinstance(env_kwargs, dict):
        raise ValueError(f'--env-kwargs {args.env_kwargs!r} is not a JSON object such as {{"num_ranks": 5}}')
    for name in args.env:
        envs.make(name, **{"observation": args.observation} | env_kwargs)
    if args.pgx_env and args.compare != "pgx":
        raise ValueError("--pgx-env needs --compare pgx")
    if args.compare == "pgx":
        try:
            import pgx
        except ImportError:
            raise ValueError("--compare pgx needs PGX: pip install pgx") from None
        if args.pgx_env and args.pgx_env not in pgx.available_envs():
            raise ValueError(f"--pgx-env {args.pgx_env}: PGX has {', '.join(pgx.available_envs())}")


def run(args: Args, out: Path) -> int:
    """Measures, prints and writes to `out`; returns the exit code."""
    hardware = hardware_and_versions()
    print(", ".join(f"{name} {value}" for name, value in hardware.items()), flush=True)
    rows: list[dict] = []
    exit_code = 0
    for name in args.env:
        for num_envs in sorted(set(args.num_envs)):
            try:
                measured = benchmark_size(args, name, num_envs)
            except ChildProcessError as error:
                print(f"error: {name} with {num_envs} environments: {error}", file=sys.stderr)
                exit_code = 1
                continue
            if not rows:
                hardware["device"] = measured[0]["device"]
                print(f"device {hardware['device']}, {args.num_steps} steps a scan, median of {args.repeats} runs\n")
                print(TABLE_HEAD)
            print("\n".join(map(table_line, measured)), flush=True)
            if measured[0]["step_compilations"] != 1:
                print(f"error: step of {name} compiles {measured[0]['step_compilations']} times", file=sys.stderr)
                exit_code = 1
            rows += measured
            write_results(rows, args, hardware, out)
    if rows:
        draw(rows, hardware, out / "benchmark.png")
        print(f"\nwritten to {out}: benchmark.csv, benchmark.json, benchmark.png")
    return exit_code


def main(args: Args) -> int:
    """`run` with the user's mistakes and a disk that fails as one line on stderr; returns the exit code."""
    out = args.out or Path("runs") / f"benchmark__{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        check(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        out.mkdir(parents=True, exist_ok=True)
        return run(args, out)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        jax.config.update("jax_enable_compilation_cache", False)
        print(json.dumps(measure(json.loads(sys.argv[2]))))
    else:
        jax.config.update("jax_platforms", "cpu")  # this process computes nothing: it leaves the device to the workers
        sys.exit(main(tyro.cli(Args, description=__doc__)))
