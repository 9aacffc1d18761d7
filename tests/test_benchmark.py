"""scripts/benchmark.py: the action sampler against exact integers, the harness on games whose checksum is known."""

import csv
import json
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from scripts import benchmark
from scripts.benchmark import (
    BLOCK,
    COLUMNS,
    Args,
    Game,
    count_step_compilations,
    main,
    make_rollout,
    measure,
    peak_resident_mb,
    random_legal_actions,
)


@pytest.mark.parametrize("num_actions", [1, 2, 3, 37, BLOCK, BLOCK + 1, 344, 1000])
def test_action_is_the_kth_legal_one_exactly(num_actions):
    rng = np.random.default_rng(num_actions)
    legal = rng.random((2000, num_actions)) < rng.random((2000, 1))
    legal[np.arange(2000), rng.integers(num_actions, size=2000)] = True
    legal[:200] = True  # as many legal actions as there are
    words = rng.integers(2**32, size=2000, dtype=np.uint32)
    words[:4] = (0, 2**32 - 1, 2**31, 2**31 - 1)
    for row in range(100, 150):  # words next to where k changes
        words[row] = -(-(rng.integers(num_actions) * 2**32) // num_actions) - row % 2 & 0xFFFFFFFF
    right = [np.flatnonzero(mask)[int(word) * int(mask.sum()) >> 32] for word, mask in zip(words, legal, strict=True)]
    actions = jax.jit(random_legal_actions)(words, legal)
    assert actions.dtype == jnp.int32
    np.testing.assert_array_equal(actions, right)


@pytest.mark.parametrize(("num_actions", "num_legal"), [(2, 2), (13, 5), (344, 300), (600, 600)])
def test_actions_are_uniform_over_the_legal_ones(num_actions, num_legal):
    num_draws = 200 * num_legal
    legal = np.zeros(num_actions, bool)
    legal[np.random.default_rng(0).permutation(num_actions)[:num_legal]] = True
    words = jax.random.bits(jax.random.key(1), (num_draws,))
    actions = jax.jit(random_legal_actions)(words, jnp.broadcast_to(legal, (num_draws, num_actions)))
    counts = np.bincount(actions, minlength=num_actions)
    assert not counts[~legal].any()
    statistic = ((counts[legal] - 200) ** 2 / 200).sum()
    assert chi2.cdf(statistic, num_legal - 1) < 0.999


def test_players_of_a_parallel_game_draw_from_their_own_masks():
    legal = np.zeros((4, 3, 344), bool)
    legal[:, 0, 7] = legal[:, 1, 100] = legal[:, 2, 343] = True
    actions = random_legal_actions(jax.random.bits(jax.random.key(0), (4, 3)), legal)
    np.testing.assert_array_equal(actions, [[7, 100, 343]] * 4)


def probe_game(num_envs: int, world_dtype=jnp.int32) -> Game:
    """Two players act at once and are paid their actions; only action 2 of 3 is legal; every second step ends."""
    legal = jnp.broadcast_to(jnp.array([False, False, True]), (num_envs, 2, 3))
    return Game(
        action_shape=(2,),
        reset=lambda _: jnp.zeros(num_envs, jnp.int32),
        view=lambda world: (jnp.ones((*world.shape, 5), bool), legal),
        step=lambda world, actions, _: ((world + 1).astype(world_dtype), actions.astype(jnp.float32), world % 2 == 1),
    )


def test_checksum_holds_every_observation_and_reward():
    checksum, episodes = jax.jit(make_rollout(probe_game(3), num_envs=3, num_steps=10))(jax.random.key(0))
    assert checksum == 11 * 3 * 5 + 10 * 3 * 2 * 2  # observations of reset and 10 steps, rewards of 10 steps
    assert episodes == 15


def test_recompiling_step_is_counted():
    assert count_step_compilations(probe_game(3), num_envs=3) == 1
    assert count_step_compilations(probe_game(3, world_dtype=jnp.float32), num_envs=3) == 2


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_holdem"])
def test_step_compiles_once(name):
    assert count_step_compilations(benchmark.own_game(name, 4), num_envs=4) == 1


@pytest.mark.parametrize("kernel_mark", [True, False])
def test_peak_memory_sees_what_is_freed_again(kernel_mark, monkeypatch):
    def refuse(*_):
        raise OSError

    if not kernel_mark:
        monkeypatch.setattr(benchmark.Path, "write_text", refuse)
    before = benchmark.resident_mb()
    total, peak = peak_resident_mb(lambda: sum(float(np.ones(2**23).sum()) for _ in range(10)))  # 67 MB at a time
    assert total == 10 * 2**23
    assert 60 < peak - before < 160


def test_comparison_with_pgx_writes_every_column(tmp_path, capsys, monkeypatch):
    in_process = benchmark.measure_in_process  # PGX alone is measured in this process, to save time
    monkeypatch.setattr(
        benchmark, "measure_in_process", lambda spec: in_process(spec) if spec["repeats"] else measure(spec)
    )
    args = Args(num_envs=(2,), num_steps=20, repeats=3, min_seconds=0.001, compare="pgx", out=tmp_path / "new")
    assert main(args) == 0
    with (tmp_path / "new" / "benchmark.csv").open() as file:
        reader = csv.DictReader(file)
        own, theirs = reader
    assert tuple(reader.fieldnames) == COLUMNS
    assert (own["library"], own["game"], theirs["library"], theirs["game"]) == (
        "bluffjax",
        "kuhn_poker",
        "pgx",
        "kuhn_poker",
    )
    record = json.loads((tmp_path / "new" / "benchmark.json").read_text())
    runs = [row["runs"] for row in record["rows"]]
    assert [len(values) for values in runs] == [3, 3]
    assert float(own["ratio"]) == statistics.median(a / b for a, b in zip(*runs, strict=True))
    assert float(own["steps_per_s"]) == statistics.median(runs[0])
    assert (own["step_compilations"], theirs["step_compilations"]) == ("1", "")
    assert theirs["ratio"] == ""
    for row in (own, theirs):
        assert 10 <= int(row["episodes"]) <= 20  # 40 steps, hands of 2 or 3
        assert float(row["checksum"]) > 0
        assert float(row["compile_s"]) > 0
        assert 0 <= float(row["rss_run_mb"]) < 60 < float(row["rss_compiled_mb"])
    assert (tmp_path / "new" / "benchmark.png").stat().st_size > 10_000
    assert "times PGX" in capsys.readouterr().out


def test_size_that_fails_is_reported_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    def fail_at_10(spec):
        if spec["num_envs"] == 10:
            raise ChildProcessError("killed by signal 9 (out of memory?)")
        row = dict.fromkeys(("compile_s", "rss_compiled_mb", "rss_peak_mb", "rss_run_mb", "buffers_mb"), 1.0)
        return [
            row | {"step_compilations": 2, "episodes": 1, "checksum": 1.0, "device": "cpu", "runs": [1e6, 2e6, 4e6]}
        ]

    monkeypatch.setattr(benchmark, "measure_in_process", fail_at_10)
    assert main(Args(num_envs=(1, 10, 100), repeats=3, out=tmp_path)) == 1
    out, err = capsys.readouterr()
    assert "2M (1M to 4M)" in out
    assert err.splitlines() == [
        "error: step of kuhn_poker compiles 2 times",
        "error: kuhn_poker with 10 environments: killed by signal 9 (out of memory?)",
        "error: step of kuhn_poker compiles 2 times",
    ]
    with (tmp_path / "benchmark.csv").open() as file:
        assert [row["num_envs"] for row in csv.DictReader(file)] == ["1", "100"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"env": ("kuhn_pocker",)}, "did you mean 'kuhn_poker'?"),
        ({"env": ()}, "--env"),
        ({"env_kwargs": '{"num_ranks": 99}'}, "num_ranks=99"),
        ({"env_kwargs": '{"ranks": 5}'}, "'ranks'"),
        ({"env_kwargs": "num_ranks=5"}, "not JSON"),
        ({"env_kwargs": "[5]"}, "not a JSON object"),
        ({"num_envs": (1, 0)}, "--num-envs"),
        ({"num_steps": 0}, "--num-steps"),
        ({"repeats": 0}, "--repeats"),
        ({"pgx_env": "kuhn_poker"}, "needs --compare pgx"),
        ({"pgx_env": "kuhn", "compare": "pgx"}, "PGX has"),
        ({"out": "a file"}, "a file"),
    ],
)
def test_mistakes_end_in_one_line(args, words, tmp_path, capsys):
    (tmp_path / "a file").touch()
    args = args | {"out": tmp_path / args.get("out", "out")}
    assert main(Args(**args)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert error.startswith("error: ")
