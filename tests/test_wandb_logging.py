"""The run logger of the baselines: `metrics.csv` and the W&B files, read back from disk."""

import csv
import errno
import json
import os
import pty
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from wandb_reader import BLOCK_SIZE, WandbRun, read_wandb

import baselines.ppo_nfsp
from baselines.ppo_nfsp import RunLogger, atomic_write

SEEDS = [3, 4, 5]
NAMES = [
    "charts/SPS",
    "charts/episodic_return",
    "losses/value_loss",
    "losses/policy_loss",
    "eval/exploitability",
]
# What a machine without a W&B account looks like, with settings in the environment that would break a careless run.
BARE_ENV = {"PATH": os.environ["PATH"], "WANDB_MODE": "disabled", "WANDB_RUN_ID": "other", "WANDB_SILENT": "false"}
SCRIPT = """
import os, signal, sys, warnings
from pathlib import Path
import numpy as np
from baselines.ppo_nfsp import RunLogger
warnings.simplefilter("error")  # not earlier: distrax warns when it is imported
def start(**kwargs):
    return RunLogger(Path(sys.argv[1]), {}, [3, 4, 5], "kuhn_poker__ppo_nfsp", "group", "project", **kwargs)
def log(logger, steps):
    for step in steps:
        logger.log(step, step / 8, {name: np.full(3, step * 0.1) for name in sys.argv[2:]})
"""


def values_at(step: int) -> dict[str, np.ndarray]:
    """Values that need all their digits, of several dtypes, told apart by name, step and seed."""
    key = np.random.default_rng(step)
    values = {name: key.normal(size=len(SEEDS)) for name in NAMES}
    values["charts/SPS"] = np.float32(values["charts/SPS"])
    return values | {"charts/episodes": np.arange(len(SEEDS)) + 7 * step}


def start(folder: Path, **kwargs) -> RunLogger:
    folder.mkdir(exist_ok=True)
    config = {"env": "kuhn_poker", "learning_rate": 2.5e-4, "hidden": [64, 64], "seed": SEEDS[0]}
    return RunLogger(folder, config, SEEDS, "kuhn_poker__ppo_nfsp", "a_group", "bluffjax", **kwargs)


def log(logger: RunLogger, steps: range) -> None:
    for step in steps:
        logger.log(step, step / 8, values_at(step))


def read_runs(folder: Path) -> dict[int, WandbRun]:
    """The W&B runs of a folder by seed; fails if a seed has more than one file."""
    files = list(folder.glob("wandb/*/*.wandb"))
    runs = {run.config["seed"]: run for run in map(read_wandb, files)}
    assert len(runs) == len(files)
    return runs


def run_script(folder: Path, body: str, home: Path | None = None, stdin_closed: bool = False) -> tuple[int, str, str]:
    """Runs SCRIPT and `body` on a bare machine, on a terminal where nobody answers; warnings are errors.

    Returns:
        Exit code, standard output and standard error.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", SCRIPT + body, str(folder), *NAMES]
    terminal, process_side = pty.openpty()
    try:
        process = subprocess.run(
            ["sh", "-c", 'exec "$@" <&-', "sh", *command] if stdin_closed else command,
            cwd=Path(baselines.ppo_nfsp.__file__).parents[1],
            env=BARE_ENV | ({} if home is None else {"HOME": str(home)}),
            stdin=process_side,
            stdout=subprocess.PIPE,
            stderr=process_side,
            timeout=60,
        )
        os.write(process_side, b"\0")  # where reading ends
        errors = b""
        while not errors.endswith(b"\0"):
            errors += os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.close(process_side)
    return process.returncode, process.stdout.decode(), errors[:-1].decode().replace("\r\n", "\n")


def test_offline_files_hold_every_name_step_and_value_of_every_seed(tmp_path, capfd):
    logger = start(tmp_path / "run")
    log(logger, range(0, 1600, 8))
    assert logger.finish() == f"wandb sync {tmp_path / 'run' / 'wandb'}"
    assert capfd.readouterr() == ("", "")
    assert min(path.stat().st_size for path in tmp_path.glob("run/wandb/*/*.wandb")) > 3 * BLOCK_SIZE
    ids = json.loads((tmp_path / "run" / "wandb_ids.json").read_text())
    runs = read_runs(tmp_path / "run")
    assert list(ids) == [str(seed) for seed in SEEDS] == [str(seed) for seed in sorted(runs)]
    assert len(set(ids.values())) == len(SEEDS)
    for i, seed in enumerate(SEEDS):
        run = runs[seed]
        assert (run.id, run.name) == (ids[str(seed)], f"kuhn_poker__ppo_nfsp__{seed}")
        assert (run.group, run.project, run.exit_code) == ("a_group", "bluffjax", 0)
        assert run.config["hidden"] == [64, 64]
        assert run.step_metrics["*"] == "global_step"
        assert len(run.history) == 200
        for step, row in zip(range(0, 1600, 8), run.history, strict=True):
            expected = {name: values[i].item() for name, values in values_at(step).items()}
            expected |= {"global_step": step, "_step": step, "wall_time": step / 8}
            assert {name: row[name] for name in row if name not in ("_runtime", "_timestamp")} == expected
        assert {name: run.summary[name] for name in expected} == expected


def test_failed_run_is_marked_so_and_can_still_be_uploaded(tmp_path, capfd):
    logger = start(tmp_path / "run")
    log(logger, range(2))
    assert logger.finish(exit_code=True) == f"wandb sync {tmp_path / 'run' / 'wandb'}"
    assert capfd.readouterr().err == ""
    assert {run.exit_code for run in read_runs(tmp_path / "run").values()} == {1}


def test_metrics_csv_reads_back_to_the_same_bits(tmp_path):
    log(start(tmp_path, wandb_mode="disabled"), range(3))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert list(rows[0]) == ["seed", "global_step", "wall_time", *values_at(0)]
    assert [(row["seed"], row["global_step"]) for row in rows] == [(str(s), str(k)) for k in range(3) for s in SEEDS]
    for name in NAMES:
        assert [float(row[name]) for row in rows] == [value for step in range(3) for value in values_at(step)[name]]


def test_resume_after_kill_keeps_ids_and_ends_as_the_unbroken_run(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder, body in (
        (whole, "log(start(wandb_mode='disabled'), range(20))"),
        (killed, "log(start(), range(12)); os.kill(os.getpid(), signal.SIGKILL)"),
    ):
        run_script(folder, body)
    ids = (killed / "wandb_ids.json").read_text()
    with (killed / "metrics.csv").open("a") as file:
        file.write("3,12,1.5,0.123")  # as if the kill came in the middle of a write
    for checkpoint, last in ((9, 14), (13, 20)):
        logger = start(killed, resume_step=checkpoint)
        for step in range(checkpoint + 1, last):  # the clock goes on from the last kept row
            logger.log(step, (step - checkpoint) / 8, {name: np.full(3, step * 0.1) for name in NAMES})
        logger.finish()
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert (killed / "wandb_ids.json").read_text() == ids
    for seed, run in read_runs(killed).items():
        assert run.id == json.loads(ids)[str(seed)]
        assert [(row["_step"], row[NAMES[0]]) for row in run.history] == [(k, k * 0.1) for k in range(20)]


def test_resume_before_the_first_row_or_with_a_torn_header_starts_anew(tmp_path):
    for content in (None, "", "seed,glob", "seed,global_step,wall_time,a\n3,8,1.0,2.0\n"):
        if content is not None:
            (tmp_path / "metrics.csv").write_text(content)
        logger = start(tmp_path, wandb_mode="disabled", resume_step=0)
        logger.log(5, 0.5, {"a": np.ones(3)})
        expected = "seed,global_step,wall_time,a\n3,5,0.5,1.0\n4,5,0.5,1.0\n5,5,0.5,1.0\n"
        assert (tmp_path / "metrics.csv").read_text() == expected


def test_names_are_fixed_by_the_first_step(tmp_path):
    logger = start(tmp_path, wandb_mode="disabled")
    logger.log(0, 0.0, {"a": np.zeros(3), "b": np.zeros(3)})
    logger.log(1, 0.1, {"b": np.ones(3), "a": np.zeros(3)})  # the order is free
    assert (tmp_path / "metrics.csv").read_text().splitlines()[-1] == "5,1,0.1,0.0,1.0"
    with pytest.raises(ValueError, match=r"logged names changed: \['b', 'c'\]"):
        logger.log(2, 0.2, {"a": np.zeros(3), "c": np.zeros(3)})


def test_disabled_writes_only_metrics_csv_and_leaves_wandb_unimported(tmp_path):
    body = """
logger = start(wandb_mode="disabled")
log(logger, range(2))
print(logger.finish(), "wandb" in sys.modules, end="")
"""
    assert run_script(tmp_path / "run", body) == (0, "None False", "")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.csv"]


@pytest.mark.parametrize("stdin_closed", [False, True])
def test_offline_needs_no_account_no_home_and_prints_nothing(tmp_path, stdin_closed):
    body = "logger = start()\nlog(logger, range(2))\nlogger.finish()"
    assert run_script(tmp_path / "run", body, stdin_closed=stdin_closed) == (0, "", "")
    assert [len(run.history) for run in read_runs(tmp_path / "run").values()] == [2, 2, 2]


def test_online_without_login_is_one_line_and_exit_code_2(tmp_path):
    home = tmp_path / "home"  # no .netrc of the user who runs the tests
    home.mkdir()
    code, output, errors = run_script(tmp_path / "run", "start(wandb_mode='online')", home=home)
    assert (code, output) == (2, "")
    assert errors == "error: W&B: not logged in: run `wandb login`, or use --wandb-mode offline\n"


def test_death_of_the_wandb_service_does_not_stop_the_run(tmp_path):
    body = """
import warnings
warnings.simplefilter("ignore", ResourceWarning)  # wandb never waits for a service that died
logger = start()
log(logger, range(2))
children = [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
log(logger, range(2, 6))
logger.finish()
"""
    code, _, errors = run_script(tmp_path / "run", body)
    assert code == 0
    assert errors.count("\n") == 1
    assert errors.startswith("warning: W&B stopped")
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 1 + 6 * len(SEEDS)


@pytest.fixture
def full_disk():
    """Files cannot grow beyond 2000 bytes, as if the disk were full there (also for root)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("full_disk")
def test_full_disk_is_an_error_that_names_the_file_and_resume_repairs_it(tmp_path):
    with pytest.raises(OSError, match=r"metrics\.csv") as raised:
        log(start(tmp_path, wandb_mode="disabled"), range(100))
    assert raised.value.errno == errno.EFBIG
    torn = (tmp_path / "metrics.csv").read_text()
    assert not torn.endswith("\n")
    start(tmp_path, wandb_mode="disabled", resume_step=2)
    assert (tmp_path / "metrics.csv").read_text() == "".join(torn.splitlines(keepends=True)[: 1 + 3 * len(SEEDS)])


@pytest.mark.usefixtures("full_disk")
def test_atomic_write_keeps_the_old_content_where_the_new_does_not_fit(tmp_path):
    path = tmp_path / "checkpoint"
    atomic_write(path, b"old")
    with pytest.raises(OSError, match="checkpoint"):
        atomic_write(path, b"x" * 3000)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("checkpoint", b"old")]
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"


def test_missing_folder_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"wandb_ids\.json"):
        RunLogger(tmp_path / "none", {}, SEEDS, "name", "group", "project")
