"""`python baselines/ppo_nfsp.py` as people meet it: arguments, run folder, resume, devices, forks, mistakes."""

import ast
import csv
import itertools
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from dataclasses import fields
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import serialization
from wandb_reader import read_wandb

import baselines.ppo_nfsp
from baselines.ppo_nfsp import Args, check_args, describe_run, main, mean_and_interval, parse_args
from solvers.exploitability import evaluate_policy, load_policy
from solvers.game_tree import build_game_tree

SCRIPT = Path(baselines.ppo_nfsp.__file__)
ROOT = SCRIPT.parents[1]
SEEDS = [11, 12, 13, 14]
NUM_UPDATES, STEPS_PER_UPDATE = 150, 8 * 4
TINY = (
    f"--seed {SEEDS[0]} --num-seeds {len(SEEDS)} --num-envs 8 --num-steps 4 --hidden-sizes 8 --update-epochs 2 "
    f"--num-minibatches 2 --reservoir-size 64 --avg-steps 2 --avg-batch-size 8 --log-interval 1 "
    f"--checkpoint-interval 3 --total-timesteps {NUM_UPDATES * STEPS_PER_UPDATE}"
).split()
QUIET = ["--wandb-mode", "disabled"]
# A machine without home, W&B account and network; what subprocesses compile is kept for the next one.
BARE_ENV = {
    "PATH": os.environ["PATH"],
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": os.environ["JAX_COMPILATION_CACHE_DIR"],
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "COLUMNS": "200",
}
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


def start(*args, script=SCRIPT, env=None, **kwargs) -> subprocess.Popen:
    """Starts the script on a bare machine."""
    kwargs = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": ROOT} | kwargs
    command = [sys.executable, str(script), *map(str, args)]
    return subprocess.Popen(command, env=BARE_ENV | (env or {}), text=True, **kwargs)


def finish(process: subprocess.Popen, code: int = 0, timeout: float = 180) -> tuple[str, str]:
    """Standard output and standard error of a process that ends with this exit code."""
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == code, errors
    return output, errors


def train(runs: Path, *args, **kwargs) -> Path:
    """Trains to the end; the run folder."""
    before = set(runs.glob("*"))
    finish(start(*TINY, *QUIET, "--runs", runs, *args, **kwargs))
    (folder,) = set(runs.glob("*")) - before
    return folder


def read_metrics(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))


def assert_same_run(folder: Path, other: Path) -> None:
    """Parameters, optimizers, buffers, keys to the bit; metrics but the clock's."""
    for name in ("checkpoint.msgpack", "params.msgpack"):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    rows, expected = read_metrics(folder), read_metrics(other)
    for row in rows + expected:
        del row["wall_time"], row["charts/SPS"]
    assert rows == expected


def error_line(errors: str) -> str:
    """The one line that a mistake gives, besides the progress line."""
    assert "Traceback" not in errors
    lines = [line for line in re.split(r"[\r\n]+", errors) if line.strip() and " steps/s" not in line]
    assert len(lines) == 1, errors
    assert lines[0].startswith("error: ")
    return lines[0]


def fails(capsys, *args) -> tuple[int, str]:
    """Exit code and standard error of a call in this process."""
    with pytest.raises(SystemExit) as exit_:
        main(list(map(str, args)))
    return exit_.value.code, capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end on a terminal where nobody answers: run folder, standard output, the terminal's text."""
    runs = tmp_path_factory.mktemp("runs")
    terminal, process_side = pty.openpty()
    termios.tcsetwinsize(process_side, (40, 200))
    text = b""

    def read():
        nonlocal text
        while not text.endswith(b"\0"):
            text += os.read(terminal, 4096)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        output, _ = finish(start(*TINY, "--runs", runs, stdin=process_side, stderr=process_side))
    finally:
        os.write(process_side, b"\0")
        reader.join()
        os.close(terminal)
        os.close(process_side)
    (folder,) = runs.iterdir()
    return folder, output, text[:-1].decode()


# The run folder and what is printed


def test_run_folder_holds_configuration_script_metrics_curve_and_parameters(finished):
    folder, *_ = finished
    assert re.fullmatch(r"kuhn_poker__ppo_nfsp__11__\d{8}-\d{6}.*", folder.name)
    names = {"config.json", "script.py", "metrics.csv", "curve.png", "params.msgpack", "checkpoint.msgpack"}
    assert {path.name for path in folder.iterdir()} == names | {"wandb", "wandb_ids.json"}
    assert (folder / "script.py").read_bytes() == SCRIPT.read_bytes()
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    config = json.loads((folder / "config.json").read_text())
    assert config["status"] == "finished"
    keys = {"args", "script", "command", "commit", "versions", "device", "start", "end", "uniform_exploitability"}
    assert keys <= config.keys()
    assert config["args"].keys() == {field.name for field in fields(Args)}
    assert config["args"]["observation"] == "information_state"
    assert {"python", "jax", "jaxlib", "flax", "optax"} <= config["versions"].keys()
    assert config["device"] == "1 x cpu"
    np.testing.assert_allclose(config["uniform_exploitability"], 0.4583333, atol=1e-6)


def test_metrics_have_a_row_for_each_log_step_and_seed(finished):
    rows = read_metrics(finished[0])
    columns = list(rows[0])
    assert columns[:3] == ["seed", "global_step", "wall_time"]
    assert {"charts/SPS", "eval/exploitability", "charts/valid_fraction", "losses/average_loss"} <= set(columns[3:])
    assert all(re.match(r"(charts|losses|eval)/", name) for name in columns[3:])
    steps = range(STEPS_PER_UPDATE, (NUM_UPDATES + 1) * STEPS_PER_UPDATE, STEPS_PER_UPDATE)
    expected = list(itertools.product(steps, SEEDS))
    assert [(int(row["global_step"]), int(row["seed"])) for row in rows] == expected
    assert np.isfinite([[float(value) for value in row.values()] for row in rows]).all()


def test_output_shows_progress_and_ends_in_a_table_of_the_last_step(finished):
    folder, output, terminal = finished
    assert re.search(r"\d+%\|.*\d[kM]? steps/s, exploitability=0\.\d+", terminal)
    assert re.search(r"\[\d+:\d+<\d+:\d+", terminal)  # time spent and left
    scores = [float(row["eval/exploitability"]) for row in read_metrics(folder)[-len(SEEDS) :]]
    mean, half = mean_and_interval(scores)
    assert re.search(rf"at step {NUM_UPDATES * STEPS_PER_UPDATE} +mean +± 95 % +seeds", output)
    assert re.search(rf"eval/exploitability +{mean:.4f} +{half:.4f} +4", output)
    assert f"run folder: {folder}" in output
    assert f"wandb sync {folder / 'wandb'}" in output


def test_without_account_and_network_nothing_is_asked_and_offline_files_hold_every_logged_name(finished):
    folder, output, terminal = finished
    assert "wandb" not in terminal.lower()
    assert output.lower().count("wandb") == 2  # in the line that uploads
    rows = read_metrics(folder)
    runs = {run.config["seed"]: run for run in map(read_wandb, folder.glob("wandb/*/*.wandb"))}
    assert sorted(runs) == SEEDS
    for seed, run in runs.items():
        assert (run.group, run.name, run.exit_code) == (folder.name, f"kuhn_poker__ppo_nfsp__{seed}", 0)
        assert run.config["args"]["env"] == "kuhn_poker"
        own = [{name: float(row[name]) for name in row if name != "seed"} for row in rows if row["seed"] == str(seed)]
        assert [{name: row[name] for name in own[0]} for row in run.history] == own


def test_saved_parameters_give_the_policy_that_was_scored(finished):
    folder, *_ = finished
    policy, params, env, _ = load_policy(folder)
    tree = build_game_tree(env)
    for i, row in enumerate(read_metrics(folder)[-len(SEEDS) :]):
        probabilities = policy(jax.tree.map(lambda leaf, i=i: leaf[i], params), tree.observations, tree.legal_actions)
        exploitability = evaluate_policy(tree, probabilities).exploitability
        np.testing.assert_allclose(exploitability, float(row["eval/exploitability"]), atol=1e-5)


def test_help_shows_what_every_flag_says_of_itself():
    output, _ = finish(start("--help"))
    shown = re.sub(r"[\W_]+", "", output)
    (arguments,) = (node for node in ast.parse(SCRIPT.read_text()).body if getattr(node, "name", "") == "Args")
    documented = 0
    for field, doc in itertools.pairwise(arguments.body):
        if isinstance(field, ast.AnnAssign):
            text = doc.value.value
            assert f"--{field.target.id.replace('_', '-')}" in output
            assert re.sub(r"[\W_]+", "", text) in shown, text
            documented += 1
    assert documented == len(fields(Args))


def test_steps_may_be_written_with_an_exponent():
    args = parse_args(["--total-timesteps", "1e5", "--reservoir-size", "2.5e3"])
    assert (args.total_timesteps, args.reservoir_size) == (100_000, 2_500)
    assert {type(args.total_timesteps), type(args.reservoir_size)} == {int}


def test_a_machine_without_git_only_leaves_the_commit_out(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_run()["commit"] is None


# Resume


def resume(folder: Path, *args, **kwargs) -> tuple[str, str]:
    return finish(start("--resume", folder, *args, **kwargs))


def kill_at(process: subprocess.Popen, find_folder, update: int, delay: float) -> Path:
    """Kills a run `delay` seconds after an update was logged; the run folder."""
    folder = None
    while process.poll() is None:
        folder = folder or find_folder()
        if folder and (folder / "metrics.csv").exists():
            lines = (folder / "metrics.csv").read_text().count("\n")
            if lines > update * len(SEEDS):
                time.sleep(delay)
                break
        time.sleep(0.002)
    process.kill()
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors  # not finished before
    return folder


@pytest.mark.parametrize("updates", [[83], pytest.param([1, 20, 45, 80, 110], marks=pytest.mark.full)])
def test_run_killed_at_random_moments_and_resumed_ends_as_the_unbroken_one(updates, finished, tmp_path):
    rng = random.Random(len(updates))
    process = start(*TINY, "--runs", tmp_path)
    for update in updates:
        moment = update + rng.randrange(20), rng.random() * 0.05
        folder = kill_at(process, lambda: next(tmp_path.iterdir(), None), *moment)
        assert json.loads((folder / "config.json").read_text())["status"] == "running"
        process = start("--resume", folder)
    finish(process)
    assert_same_run(folder, finished[0])
    assert json.loads((folder / "config.json").read_text())["status"] == "finished"
    runs = [read_wandb(path) for path in folder.glob("wandb/*/*.wandb")]
    ids = json.loads((folder / "wandb_ids.json").read_text())
    assert sorted((run.config["seed"], run.id) for run in runs) == [(int(seed), id_) for seed, id_ in ids.items()]
    assert [len(run.history) for run in runs] == [NUM_UPDATES] * len(SEEDS)


@pytest.mark.full
def test_interrupted_run_says_how_to_go_on_and_ends_as_the_unbroken_one(finished, tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background job it is ignored, also by runs
    process = start(*TINY, *QUIET, "--runs", tmp_path)
    while not list(tmp_path.glob("*/checkpoint.msgpack")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = finish(process, code=130)
    assert "Traceback" not in errors
    assert "--resume" in errors
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "config.json").read_text())["status"] == "interrupted"
    resume(folder)
    assert_same_run(folder, finished[0])


# Devices and hosts


def test_seeds_split_over_four_devices_are_bit_identical_to_one_device(finished, tmp_path):
    folder = train(tmp_path, env=FOUR_DEVICES)
    assert json.loads((folder / "config.json").read_text())["device"] == "4 x cpu"
    assert_same_run(folder, finished[0])


def one_update(runs: Path, env: dict) -> dict:
    """All that a checkpoint holds after one update of one seed."""
    folder = train(runs, "--num-seeds", 1, "--total-timesteps", STEPS_PER_UPDATE, env=env)
    return serialization.msgpack_restore((folder / "checkpoint.msgpack").read_bytes())


@pytest.mark.full
def test_envs_split_over_four_devices_draw_the_same_and_learn_the_same(tmp_path):
    got, expected = one_update(tmp_path, FOUR_DEVICES), one_update(tmp_path, {})
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        if np.issubdtype(np.asarray(y).dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.full
@pytest.mark.parametrize("num_seeds", [4, 1], ids=["by seed", "by env"])
def test_every_device_has_its_own_part_of_the_work(num_seeds, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import jax, numpy as np
from baselines.ppo_nfsp import make_programs, parse_args, resolve_env
env, args = resolve_env(parse_args({[*TINY, "--num-seeds", str(num_seeds)]}))
programs = make_programs(args, env, None)
states, _, _ = programs.train(programs.init(), np.int32(1))
for array in (states.obs, states.env_state.cards, states.best_response_seats):
    shards = array.addressable_shards
    assert len({{shard.device for shard in shards}}) == 4
    assert sum(shard.data.size for shard in shards) == array.size
""")
    finish(start(script=script, env=FOUR_DEVICES))


@pytest.mark.full
def test_two_processes_are_bit_identical_to_one(finished, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hosts = ["--coordinator-address", f"127.0.0.1:{port}", "--num-processes", "2", "--runs", tmp_path]
    processes = [start(*TINY, *QUIET, *hosts, "--process-id", i) for i in range(2)]
    try:
        outputs = [finish(process)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    (folder,) = tmp_path.iterdir()  # of process 0
    assert_same_run(folder, finished[0])
    assert json.loads((folder / "config.json").read_text())["device"] == "2 x cpu"
    assert "exploitability" in outputs[0]
    assert "exploitability" not in outputs[1]


def test_work_that_devices_cannot_share_is_refused_with_the_numbers():
    args = ["--num-seeds", "3", "--num-envs", "12", "--num-minibatches", "2"]
    _, errors = finish(start(*TINY, *args, env=FOUR_DEVICES), code=2)
    line = error_line(errors)
    for part in ("4 devices", "--num-seeds 3", "--num-envs / --num-minibatches = 6", "multiple of 4"):
        assert part in line


# Forks


def test_script_copied_out_of_the_repository_runs_and_its_policy_loads(tmp_path):
    fork = tmp_path / "project" / "my_nfsp.py"
    fork.parent.mkdir()
    shutil.copyfile(SCRIPT, fork)
    finish(start(*TINY, *QUIET, script=fork, cwd=fork.parent))
    (folder,) = (fork.parent / "runs").iterdir()
    assert folder.name.startswith("kuhn_poker__my_nfsp__11__")
    output, _ = finish(start("--policy", folder, script=ROOT / "solvers" / "exploitability.py", cwd=tmp_path))
    for row in read_metrics(folder)[-len(SEEDS) :]:
        (printed,) = re.findall(rf"^seed {row['seed']} .* (\S+)$", output, re.MULTILINE)
        np.testing.assert_allclose(float(printed), float(row["eval/exploitability"]), atol=1e-5)


# Mistakes


def test_unknown_game_is_one_line_with_the_nearest_name():
    _, errors = finish(start("--env", "kuhn_pokr"), code=2)
    assert "did you mean 'kuhn_poker'?" in error_line(errors)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--env", "leduc"], ["unknown environment 'leduc'", "did you mean 'leduc_holdem'?"]),
        (["--env-kwargs", '{"num_ranks": 5'], ["--env-kwargs", "is not JSON"]),
        (["--env-kwargs", "[5]"], ["--env-kwargs", "'[5]'", '{"num_ranks": 5}']),
        (["--env-kwargs", '{"observation": "paper"}'], ["--env-kwargs", "flag of its own"]),
        (["--env-kwargs", '{"ranks": 5}'], ["no parameter 'ranks'", "num_ranks"]),
        (["--env-kwargs", '{"num_ranks": 2}'], ["num_ranks=2", "from 3 to 13"]),
        (["--env-kwargs", '{"num_ranks": "5"}'], ["num_ranks='5'", "from 3 to 13"]),
        (["--num-envs", "8", "--num-minibatches", "3"], ["--num-minibatches 3", "divide --num-envs 8"]),
        (["--num-envs", "0"], ["--num-envs 0", "at least 1"]),
        (["--total-timesteps", "10"], ["--total-timesteps 10", "--num-envs x --num-steps"]),
        (["--anticipatory-param", "0"], ["--anticipatory-param 0.0", "above 0 and at most 1"]),
        (["--gamma", "nan"], ["--gamma nan", "0 to 1"]),
        (["--gae-lambda", "2"], ["--gae-lambda 2.0", "0 to 1"]),
        (["--learning-rate", "nan"], ["--learning-rate nan", "a finite number above 0"]),
        (["--clip-coef", "-1"], ["--clip-coef -1.0", "a finite number above 0"]),
        (["--ent-coef", "inf"], ["--ent-coef inf", "a finite number from 0 on"]),
        (["--resume", ROOT / "checkpoints" / "kuhn_poker" / "ppo_nfsp"], ["config.json has no 'runs'"]),
        (["--seed", "-1"], ["--seed -1"]),
        (["--resume", "/nowhere/run"], ["--resume /nowhere/run", "not the folder of a run"]),
        (["--resume", ROOT / "tests"], [f"--resume {ROOT / 'tests'}", "not the folder of a run"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if value and str(value[0]).startswith("--") else "",
)
def test_wrong_argument_is_one_line_that_names_flag_value_and_what_is_allowed(args, parts, capsys):
    code, errors = fails(capsys, *args)
    assert code == 2
    line = error_line(errors)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("steps", ["1.5", "abc", "inf", "1e400", "nan"])
def test_steps_that_are_no_whole_number_are_refused(steps, capsys):
    code, errors = fails(capsys, "--total-timesteps", steps)
    assert code == 2
    assert "Traceback" not in errors
    assert f"'{steps}' is not a whole number" in " ".join(errors.replace("│", " ").split())


@pytest.mark.parametrize("name", ["log_interval", "num_seeds", "avg_batch_size", "eval_games", "checkpoint_interval"])
def test_negative_count_is_refused(name):
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} -1"):
        check_args(Args(**{name: -1}))


@pytest.mark.parametrize(
    "hosts",
    [{}, {"coordinator_address": "host:1", "process_id": 2}, {"coordinator_address": "host:1", "process_id": -1}],
)
def test_several_processes_need_a_coordinator_and_a_number_each(hosts):
    with pytest.raises(ValueError, match=r"--num-processes 2: --coordinator-address and a --process-id from 0 to 1"):
        check_args(Args(num_processes=2, **hosts))


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished[0], tmp_path / "copy", ignore=shutil.ignore_patterns("wandb*"))


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["--env", "leduc_holdem"], ["env='kuhn_poker'", "env='leduc_holdem'"]),
        (["--seed", "5"], ["seed=11", "seed=5"]),
        (["--preset", "paper"], ["preset='tuned'", "preset='paper'"]),
    ],
)
def test_resuming_as_another_run_is_one_line_with_both_values(args, parts, copied, capsys):
    code, errors = fails(capsys, "--resume", copied, *args)
    assert code == 2
    line = error_line(errors)
    for part in [f"--resume {copied}", *parts]:
        assert part in line


@pytest.mark.parametrize("content", [b"no checkpoint", b"", b"\x80"], ids=["garbage", "empty", "other"])
def test_checkpoint_that_does_not_fit_is_one_line_that_names_it(content, copied, capsys):
    (copied / "checkpoint.msgpack").write_bytes(content)
    code, errors = fails(capsys, "--resume", copied, *QUIET)
    assert code != 0
    assert str(copied / "checkpoint.msgpack") in error_line(errors)


@pytest.mark.parametrize("place", ["under a file", pytest.param("/proc", marks=pytest.mark.full)])
def test_run_folder_that_cannot_be_written_is_one_line_that_names_it(place, tmp_path):
    runs = Path(place) if place.startswith("/") else tmp_path / "file" / "runs"
    (tmp_path / "file").touch()
    _, errors = finish(start(*TINY, *QUIET, "--runs", runs), code=1)
    assert error_line(errors).startswith(f"error: {runs}")


@pytest.mark.parametrize(
    ("num_bytes", "name"), [(80_000, "metrics.csv"), pytest.param(1000, "script.py", marks=pytest.mark.full)]
)
def test_full_disk_is_one_line_that_names_the_file(num_bytes, name, tmp_path):
    process = start(*TINY, *QUIET, "--runs", tmp_path)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    _, errors = finish(process, code=1)
    (folder,) = tmp_path.iterdir()
    assert error_line(errors) == f"error: {folder / name}: File too large"
    if name == "metrics.csv":
        assert json.loads((folder / "config.json").read_text())["status"] == "failed"
        assert (folder / "checkpoint.msgpack").exists()


def test_numbers_that_are_not_finite_are_one_line_that_names_the_update_and_the_good_checkpoint(copied):
    path = copied / "checkpoint.msgpack"
    saved = serialization.msgpack_restore(path.read_bytes())
    states = saved["states"]
    states["average"] = jax.tree.map(lambda x: np.full_like(x, np.nan), states["average"])
    states["update"] = np.full_like(states["update"], 100)
    path.write_bytes(serialization.msgpack_serialize(saved | {"update": 100}))
    before = path.read_bytes()
    _, errors = finish(start("--resume", copied, *QUIET), code=1)
    line = error_line(errors)
    assert line.startswith("error: update 101: a loss or a parameter is not finite")
    assert str(path) in line
    assert path.read_bytes() == before
    assert json.loads((copied / "config.json").read_text())["status"] == "failed"
    assert int(read_metrics(copied)[-1]["global_step"]) == 100 * STEPS_PER_UPDATE


@pytest.mark.full
def test_command_without_any_more_flags_trains_kuhn_poker_to_the_bound_of_the_readme(tmp_path):
    output, _ = finish(start("--env", "kuhn_poker", cwd=tmp_path), timeout=600)
    (mean,) = re.findall(r"eval/exploitability +(\S+)", output)
    assert float(mean) <= 0.06
