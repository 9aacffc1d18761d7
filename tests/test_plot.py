"""scripts/plot.py: the statistics against values worked out by hand, and what it does with awkward runs."""

import csv
import json

import numpy as np
import pytest
from scipy.stats import trim_mean

from scripts import plot
from scripts.plot import Args, align, bootstrap_interval, interquartile_mean, main, make_panels, read_run, tick


def write_run(folder, rows, env="kuhn_poker", script="ppo_nfsp.py", metric="eval/exploitability", **config):
    """A run folder; `rows` are (seed, global_step, wall_time, value)."""
    folder.mkdir(parents=True)
    config = {"args": {"env": env, **config.pop("args", {})}, "script": script} | config
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "global_step", "wall_time", "charts/SPS", metric])
        writer.writerows([seed, step, seconds, 1000, value] for seed, step, seconds, value in rows)
    return folder


def only_curve(folders, **args):
    ((_, (curve,)),) = make_panels([read_run(folder) for folder in folders], Args(tuple(folders), **args)).values()
    return curve


def test_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert interquartile_mean(np.array([7.0, 0.0, 1.0, 2.0, 3.0, 100.0, 5.0, 4.0])) == 3.5  # of 2, 3, 4, 5
    assert interquartile_mean(np.array([0.0, 1.0, 2.0, 3.0, 100.0])) == 2
    assert interquartile_mean(np.array([0.0, 1.0, 8.0])) == 3  # fewer than 4: the plain mean


@pytest.mark.parametrize("num_seeds", range(1, 14))
def test_interquartile_mean_equals_scipys_trimmed_mean(num_seeds):
    values = np.random.default_rng(num_seeds).normal(size=(num_seeds, 5))
    np.testing.assert_allclose(interquartile_mean(values), trim_mean(values, 0.25), rtol=1e-12)
    np.testing.assert_allclose(interquartile_mean(values.T, axis=1), trim_mean(values, 0.25), rtol=1e-12)


def test_bootstrap_of_two_seeds_has_the_exact_quantiles():
    values = [np.array([[0.0, 10.0], [1.0, 30.0]])]  # resampled means: 0, 1/2, 1 with probability 1/4, 1/2, 1/4
    lower, upper = bootstrap_interval(values, np.random.default_rng(0), level=0.95)
    np.testing.assert_array_equal((lower, upper), ([0, 10], [1, 30]))
    lower, upper = bootstrap_interval(values, np.random.default_rng(0), level=0.4)
    np.testing.assert_array_equal((lower, upper), ([0.5, 20], [0.5, 20]))


def test_bootstrap_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(40, 400))  # 400 experiments of 40 seeds, true interquartile mean 0
    lower, upper = bootstrap_interval([samples], rng, num_resamples=500)
    assert 0.90 < ((lower <= 0) & (upper >= 0)).mean() < 0.98


def test_bootstrap_draws_within_each_stratum():
    strata = [np.zeros((2, 1)), np.full((2, 1), 10.0)]  # one stratum could not be drawn four times
    np.testing.assert_array_equal(bootstrap_interval(strata, np.random.default_rng(0)), ([5.0], [5.0]))


def test_bootstrap_in_pieces_is_the_same_and_seeded(monkeypatch):
    values = [np.random.default_rng(0).normal(size=(5, 7))]
    whole = bootstrap_interval(values, np.random.default_rng(1), num_resamples=50)
    monkeypatch.setattr(plot, "MAX_RESAMPLED", 50 * 5 * 2)
    np.testing.assert_array_equal(whole, bootstrap_interval(values, np.random.default_rng(1), num_resamples=50))
    assert not np.array_equal(whole, bootstrap_interval(values, np.random.default_rng(2), num_resamples=50))


def test_runs_of_one_script_and_game_pool_their_seeds(tmp_path, capsys):
    a = write_run(tmp_path / "a", [(0, 10, 1, 0.5), (0, 20, 3, 0.1), (1, 10, 1, 0.7), (1, 20, 3, 0.3)])
    b = write_run(tmp_path / "b", [(2, 10, 3, 0.3), (2, 20, 5, 0.5)])
    curve = only_curve([a, b])
    np.testing.assert_allclose(curve.iqm, [0.5, 0.3])
    np.testing.assert_array_equal(curve.x, [10, 20])
    np.testing.assert_allclose(only_curve([a, b], x="wall_time").x, [5 / 3, 11 / 3])
    assert capsys.readouterr().out == ""
    assert len(make_panels([read_run(a), read_run(b)], Args((a, b), per_run=True))["kuhn_poker"][1]) == 2


def test_games_with_other_parameters_get_their_own_panel(tmp_path):
    row = [(0, 10, 1, 0.5)]
    plain = write_run(tmp_path / "a", row)
    five = write_run(tmp_path / "b", row, args={"env_kwargs": '{"num_ranks": 5}'})
    leduc = write_run(tmp_path / "c", row, env="leduc_holdem", metric="eval/return_vs_uniform")
    panels = make_panels([read_run(folder) for folder in (plain, five, leduc)], Args((plain, five, leduc)))
    assert list(panels) == ["kuhn_poker", "kuhn_poker (num_ranks=5)", "leduc_holdem"]
    metrics = ["eval/exploitability", "eval/exploitability", "eval/return_vs_uniform"]
    assert [metric for metric, _ in panels.values()] == metrics


def test_missing_values_are_left_out(tmp_path):
    rows = [(0, 10, 1, ""), (0, 20, 2, 0.4), (0, 30, 3, "nan"), (0, 40, 4, 0.2)]
    np.testing.assert_array_equal(only_curve([write_run(tmp_path / "a", rows)]).steps, [20, 40])


def test_unequal_grids_meet_on_their_common_steps_and_say_so(capsys):
    long = {step: (step / 10, step / 100) for step in range(10, 110, 10)}
    short = {step: (step / 5, step / 50) for step in range(20, 90, 20)}
    steps, times, values = align("kuhn", [long, short])
    np.testing.assert_array_equal(steps, [20, 40, 60, 80])
    np.testing.assert_allclose(values, [[0.2, 0.4, 0.6, 0.8], [0.4, 0.8, 1.2, 1.6]])
    np.testing.assert_allclose(times[1], [4, 8, 12, 16])
    assert "all of them have (4, up to 80; the longest seed goes up to 100)" in capsys.readouterr().out


def test_grids_that_hardly_meet_are_interpolated(capsys):
    steps, _, values = align("kuhn", [{0: (0, 0.0), 64: (1, 6.4), 128: (2, 12.8)}, {50: (0, 1.0), 100: (1, 2.0)}])
    np.testing.assert_array_equal(steps, [50, 100])
    np.testing.assert_allclose(values, [[5, 10], [1, 2]])
    assert "interpolated" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no steps in common"):
        align("kuhn", [{1: (0, 0.0)}, {2: (0, 0.0)}])


def test_a_seed_run_twice_counts_once(tmp_path, capsys):
    killed = write_run(tmp_path / "a", [(0, 10, 1, 0.5)], args={"seed": 0, "num_seeds": 1})
    whole = write_run(tmp_path / "b", [(0, 10, 2, 0.5), (0, 20, 3, 0.1)], args={"seed": 0, "num_seeds": 1})
    assert only_curve([killed, whole]).values.shape == (1, 2)
    assert "run twice" in capsys.readouterr().out


def test_runs_that_logged_nothing_are_left_out_and_named(tmp_path, capsys):
    whole = write_run(tmp_path / "whole", [(0, 10, 1, 0.5)])
    dead = write_run(tmp_path / "dead", [], status="failed")
    early = write_run(tmp_path / "early", [(1, 10, 1, "")])
    assert main(Args((whole, dead, early), metric="eval/exploitability", out=tmp_path / "plot.png")) == 0
    out = capsys.readouterr().out
    assert f"{dead} has logged nothing (status failed) and is left out" in out
    assert f"{early} has no value of eval/exploitability yet and is left out" in out


def test_pooling_different_settings_is_said(tmp_path, capsys):
    a = write_run(tmp_path / "a", [(0, 10, 1, 0.5)], args={"learning_rate": 1e-3, "wandb_mode": "offline"})
    b = write_run(tmp_path / "b", [(0, 10, 1, 0.3)], args={"learning_rate": 1e-4, "wandb_mode": "disabled"})
    assert only_curve([a, b]).values.shape == (2, 1)
    assert "differ in learning_rate;" in capsys.readouterr().out


def test_picture_has_the_uniform_level_a_band_and_readable_ticks(tmp_path):
    rows = [(seed, step * 10**6, step, 0.4 / step + seed / 50) for step in range(1, 10) for seed in range(4)]
    pooled = write_run(tmp_path / "a", rows, uniform_exploitability=0.4583333)
    single = write_run(tmp_path / "b", rows[::4], script="cfr.py")
    args = Args((pooled, single))
    (axes,) = plot.draw(make_panels([read_run(pooled), read_run(single)], args), args).axes
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [0.4583333]
    assert len(axes.collections) == 1  # the band: none around one seed
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["ppo_nfsp (4 seeds)", "cfr (1 seed)", "uniform policy (0.4583)"]
    assert [tick(value) for value in (0, 0.25, 500, 2e6, 2.5e6, -1e5)] == ["0", "0.25", "500", "2e6", "2.5e6", "-1e5"]


def test_levels_of_solvers_are_drawn_into_learning_curves(tmp_path, capsys):
    curve = write_run(tmp_path / "a", [(0, step, step, 1 / step) for step in (10, 20)])
    solver = write_run(
        tmp_path / "b", [(1, step, 1, 0.5 / step) for step in (1, 2, 100)], script="cfr.py", args={"variant": "cfr+"}
    )
    deep = write_run(tmp_path / "c@4", [(seed, 60, 1, seed / 10) for seed in (1, 3)], script="deep_cfr.py")
    args = Args((curve,), levels=(f"{solver}", f"{solver}@2", f"{deep}", f"{curve}"), out=tmp_path / "plot.png")
    panels = make_panels([read_run(curve)], args)
    levels = plot.read_levels(args, panels)
    assert levels == {
        "kuhn_poker": [
            ("cfr (cfr+), 100 iterations (0.005)", 0.005),
            ("cfr (cfr+), 2 iterations (0.25)", 0.25),
            ("deep_cfr, 60 iterations (0.2)", 0.2),
            ("ppo_nfsp, 20 environment steps (0.05)", 0.05),
        ]
    }
    (axes,) = plot.draw(panels, args, levels).axes
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [0.005, 0.25, 0.2, 0.05]
    assert main(args) == 0
    assert "level in kuhn_poker: cfr (cfr+), 2 iterations (0.25)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("env", "metric", "text", "words"),
    [
        ("kuhn_poker", "eval/exploitability", "@3", "the steps 1, 2"),
        ("kuhn_poker", "eval/exploitability", "@1", "--log-y"),
        ("kuhn_poker", "eval/other", "", "no metric 'eval/exploitability'"),
        ("x", "eval/exploitability", "", "a run of x"),
    ],
)
def test_a_level_that_cannot_be_drawn_is_said(tmp_path, capsys, env, metric, text, words):
    curve = write_run(tmp_path / "a", [(0, 10, 1, 0.5)])
    solver = write_run(tmp_path / "b", [(1, 1, 1, 0.0), (1, 2, 1, 0.4)], script="cfr.py", env=env, metric=metric)
    assert main(Args((curve,), levels=(f"{solver}{text}",), log_y=True, out=tmp_path / "plot.png")) == 2
    assert_one_line(capsys, words)


def test_solvers_are_drawn_over_iterations(tmp_path):
    folder = write_run(tmp_path / "a", [(1, 1, 1, 0.5), (1, 2, 1, 0.4)], script="cfr.py")
    assert only_curve([folder]).unit == "iterations"
    assert only_curve([folder], x="wall_time").unit == "wall time (s)"


def test_main_writes_the_picture_and_the_table(tmp_path, capsys):
    folder = write_run(tmp_path / "a", [(seed, 2_000_000, 60, seed) for seed in range(8)])
    out = tmp_path / "new" / "plot.png"
    assert main(Args((folder,), out=out)) == 0
    assert out.stat().st_size > 10_000
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:6] == ["kuhn_poker", "ppo_nfsp", "eval/exploitability", "2,000,000", "3.5", "3.5"]
    assert line[-1] == "8"


def assert_one_line(capsys, words):
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert error.startswith("error: ")


@pytest.mark.parametrize(
    ("config", "metrics", "words"),
    [
        (None, "", "no config.json"),
        ('{"args": {"env": "x"}, "script": "x.py"}', None, "nothing is logged"),
        ("{", "", "JSONDecodeError"),
        ("{}", "", "KeyError: 'args'"),
        ('{"args": {"env": 3}, "script": "x.py"}', "", "have to be strings"),
        ('{"args": {"env": "x"}, "script": "x.py"}', "", "no column 'seed'"),
        ('{"args": {"env": "x"}, "script": "x.py"}', "seed,global_step,wall_time\n0,1,1\n", "no metric"),
        ('{"args": {"env": "x"}, "script": "x.py"}', "seed,global_step,wall_time,a\n0,1,1,\n", "is logged yet"),
        ('{"args": {"env": "x", "env_kwargs": "{"}, "script": "x.py"}', "", "config.json: JSONDecodeError"),
    ],
)
def test_broken_folders_end_in_one_line(tmp_path, capsys, config, metrics, words):
    for name, text in (("config.json", config), ("metrics.csv", metrics)):
        if text is not None:
            (tmp_path / name).write_text(text)
    metric = "a" if "logged" in words else None
    assert main(Args((tmp_path,), metric=metric, out=tmp_path / "plot.png")) == 2
    assert_one_line(capsys, words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"metric": "eval/exploitabilty"}, "did you mean eval/exploitability?"),
        ({"log_y": True}, "down to -0.5"),
        ({"out": "plot.txt"}, "has to end in"),
        ({"out": "a/config.json/plot.png"}, "config.json"),
        ({"runs": ()}, "one or more run folders"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, capsys, args, words):
    folder = write_run(tmp_path / "a", [(0, 10, 1, -0.5)])
    args = {"runs": (folder,)} | args | {"out": tmp_path / args.get("out", "plot.png")}
    assert main(Args(**args)) == 2
    assert_one_line(capsys, words)
