"""Deep CFR: its walks against exact counterfactual values, its parts against plain code, its runs."""

import csv
import json
from functools import cache, partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from scipy import stats

import envs
from solvers import deep_cfr
from solvers.deep_cfr import (
    Args,
    Reservoir,
    Sample,
    advantage_loss,
    choose_expand_probability,
    draw_action,
    make_reservoir,
    make_train,
    match_advantages,
    reservoir_insert,
    start_walks,
    strategy_loss,
    walk,
)
from solvers.exploitability import (
    action_values,
    evaluate_policy,
    load_policy,
    look_up_policy,
    make_policy_table,
    sequence_payoffs,
    sequence_reach,
)
from solvers.game_tree import build_game_tree

CARD = np.array([0.7, 0.3])  # probabilities of player 0's card
PUBLIC = np.array([[0.8, 0.2], [0.1, 0.9]])  # of the public card, given player 0's


@struct.dataclass
class GuessState:
    key: jax.Array
    current_player: jax.Array
    card: jax.Array
    public: jax.Array
    bet: jax.Array
    finished: jax.Array
    returns: jax.Array


class Guess:
    """Player 0 sees a card and bets or not; player 1 sees a public card that hints at it, and guesses it."""

    api, num_agents, num_actions, obs_shape, zero_sum, observation = "aec", 2, 2, (6,), True, "information_state"

    def _first(self, key, card, public):
        zero = jnp.int32(0)
        return GuessState(key, zero, card, public, zero, jnp.bool_(False), jnp.zeros(2))

    def reset(self, key):
        key, card_key, public_key = jax.random.split(key, 3)
        card = (jax.random.uniform(card_key) < CARD[1]).astype(jnp.int32)
        public = (jax.random.uniform(public_key) < jnp.asarray(PUBLIC)[card, 1]).astype(jnp.int32)
        state = self._first(key, card, public)
        return state, self.observe(state, state.current_player)

    def deals(self):
        card, public = np.repeat([0, 1], 2), np.tile([0, 1], 2)
        keys = jax.random.split(jax.random.key(0), 4)
        states = jax.vmap(self._first)(keys, jnp.asarray(card, jnp.int32), jnp.asarray(public, jnp.int32))
        return states, (CARD[:, None] * PUBLIC).reshape(-1)

    def legal_actions(self, state):
        return jnp.full(2, ~state.finished)

    def observe(self, state, player):
        first = jax.nn.one_hot(state.card, 2) * (player == 0)
        second = jnp.concatenate([jax.nn.one_hot(state.public, 2), jax.nn.one_hot(state.bet, 2)]) * (player == 1)
        return jnp.concatenate([first, second])

    def step_env(self, state, action):
        guesses = state.current_player == 1
        paid = jnp.where(action == state.card, -1.0, 1.0 + state.bet)
        reward = jnp.where(guesses & ~state.finished, jnp.stack([paid, -paid]), 0)
        finished = state.finished | guesses
        state = state.replace(
            current_player=jnp.where(guesses, 1, 1).astype(jnp.int32),
            bet=jnp.where(guesses, state.bet, action).astype(jnp.int32),
            finished=finished,
            returns=state.returns + reward,
        )
        info = {"returns": state.returns}
        return state, self.observe(state, state.current_player), reward, jnp.full(2, finished), finished, info


@cache
def game_of(name):
    env = Guess() if name == "guess" else envs.make(name, observation="information_state")
    return env, build_game_tree(env)


def random_policy(tree):
    policy = np.random.default_rng(0).dirichlet(np.ones(tree.num_actions), tree.num_infosets) * tree.legal_actions
    return (policy / policy.sum(-1, keepdims=True)).astype(np.float32)


def sampled(env, tree, policy, traverser, expand_probability, num_traversals, lanes=1024):
    """Means and standard errors [I, A] over traversals of what each adds to an information set's advantages and, as
    [I], how often the opponent's nodes there were sampled; the strategies sampled are checked on the way."""
    table = jax.tree.map(lambda x: jnp.asarray(x[0]), make_policy_table(tree, np.float64(policy)[None]))
    vector = np.random.default_rng(1).integers(1, 2**20, tree.observations[0].size)  # tells information sets apart
    numbers = np.int32(tree.observations.reshape(tree.num_infosets, -1) * 64) @ vector.astype(np.int32)
    order = np.argsort(numbers)
    assert len(np.unique(numbers)) == tree.num_infosets

    def infoset_of(obs):
        number = jnp.int32(obs * 64) @ jnp.asarray(vector, jnp.int32)
        return jnp.asarray(order)[jnp.searchsorted(jnp.asarray(numbers[order]), number)]

    def strategy(player, obs, legal):  # noqa: ARG001
        return look_up_policy(table, obs, legal)

    play = partial(walk, env, strategy, jnp.int32(traverser), jnp.int32(1), expand_probability)

    @jax.jit
    def run(key):
        start_key, key = jax.random.split(key)
        walks = start_walks(env, start_key, lanes, 16, num_traversals // lanes)

        def step(carry):
            walks, key, total, squares, met = carry
            key, walk_key = jax.random.split(key)
            walks, (found, is_found), (seen, is_seen) = play(walks, walk_key)
            place = jnp.where(is_found, infoset_of(found.obs), tree.num_infosets)
            total = total.at[place].add(found.target, mode="drop")
            squares = squares.at[place].add(found.target**2, mode="drop")
            met = met.at[jnp.where(is_seen, infoset_of(seen.obs), tree.num_infosets)].add(seen.target, mode="drop")
            return walks, key, total, squares, met

        zeros = jnp.zeros((tree.num_infosets, tree.num_actions))
        carry = jax.lax.while_loop(lambda c: (c[0].left > 0).any(), step, (walks, key, zeros, zeros, zeros))
        return carry[2:], carry[0].steps

    (total, squares, met), _ = run(jax.random.key(traverser))
    mean = np.asarray(total) / num_traversals
    error = np.sqrt(np.maximum(np.asarray(squares) / num_traversals - mean**2, 0) / num_traversals)
    return mean, error, np.asarray(met) / num_traversals


@pytest.mark.parametrize(
    ("name", "expand_probability"),
    [
        ("guess", 1.0),
        ("kuhn_poker", 0.4),
        pytest.param("leduc_holdem", 1.0, marks=pytest.mark.full),
        pytest.param("leduc_holdem", 0.4, marks=pytest.mark.full),
    ],
)
def test_sampled_advantages_are_counterfactual_regrets(name, expand_probability):
    """The expectation over own actions, not the largest; chance with its real probabilities, which in `guess` hang on
    a private card; with own nodes expanded at random, times the probability that they are come to and expanded."""
    env, tree = game_of(name)
    policy = random_policy(tree)
    reach = sequence_reach(tree, jnp.asarray(policy))
    q, _ = action_values(tree, sequence_payoffs(tree, reach), jnp.asarray(policy))
    q = np.where(tree.legal_actions, q, 0)
    regrets = np.where(tree.legal_actions, q - (policy * q).sum(-1, keepdims=True), 0)
    come_to = sequence_reach(tree, jnp.asarray(expand_probability + (1 - expand_probability) * policy))
    regrets *= expand_probability * np.asarray(come_to)[tree.infoset_parent][:, None]
    for p in range(2):
        own = tree.infoset_player == p
        mean, error, _ = sampled(env, tree, policy, p, expand_probability, 2**15)
        often = own[:, None] & (error > 0) & (np.abs(regrets) > 1e-4)
        assert (np.abs(mean - regrets)[often] <= 4.5 * error[often]).all()
        assert often.sum() >= 2
        assert not mean[~own].any()


def test_the_opponents_strategy_is_sampled_where_he_comes_to_play():
    env, tree = game_of("kuhn_poker")
    policy = random_policy(tree)
    _, _, met = sampled(env, tree, policy, 0, 1.0, 2**14)
    opponents = tree.infoset_player == 1
    assert not met[~opponents].any()
    np.testing.assert_allclose(met[opponents] / met[opponents].sum(-1, keepdims=True), policy[opponents], atol=1e-4)
    # every deal reaches both of his information sets with that card, 1 in 3
    np.testing.assert_allclose(met[opponents].sum(-1), 1 / 3, atol=0.02)


def test_a_full_stack_draws_instead_of_expanding():
    env, tree = game_of("kuhn_poker")
    policy = jnp.full((6, 2), 0.5)
    strategy = lambda player, obs, legal: jnp.broadcast_to(policy[:1], legal.shape)  # noqa: ARG005, E731
    walks = start_walks(env, jax.random.key(0), 8, 1, 4)
    deepest = 0
    for key in jax.random.split(jax.random.key(1), 40):
        walks, _, _ = walk(env, strategy, jnp.int32(0), jnp.int32(1), 1.0, walks, key)
        deepest = max(deepest, int(walks.depth.max()))
    assert deepest == 1
    assert int(walks.left.max()) <= 0
    assert tree.num_infosets == 12


@pytest.mark.parametrize(
    ("advantages", "legal", "expected"),
    [
        ([1.0, 3.0, -2.0], [1, 1, 1], [0.25, 0.75, 0]),
        ([-1.0, -3.0, -2.0], [1, 1, 1], [1, 0, 0]),  # none is positive: the largest
        ([5.0, -3.0, -2.0], [0, 1, 1], [0, 0, 1]),  # the largest that is legal
        ([0.0, 0.0, 0.0], [0, 1, 1], [0, 1, 0]),
        ([9.0, 2.0, 0.0], [0, 1, 1], [0, 1, 0]),
    ],
)
def test_play_matches_advantages_and_takes_the_largest_where_none_is_positive(advantages, legal, expected):
    policy = match_advantages(jnp.array(advantages), jnp.array(legal, bool))
    np.testing.assert_allclose(policy, expected)


def test_drawn_actions_have_their_probabilities_and_are_never_illegal():
    policy = jnp.array([0.0, 0.25, 0.0, 0.75, 0.0])
    action = draw_action(jnp.linspace(0, 0.99999994, 40_000), jnp.tile(policy[None], (40_000, 1)))
    np.testing.assert_allclose(np.bincount(action, minlength=5) / 40_000, policy, atol=1e-3)


def test_reservoir_keeps_every_item_with_the_same_probability():
    capacity, batch, seeds = 8, 10, 2000

    def fill(key):
        reservoir = make_reservoir(capacity, (1,), 2)
        for i, batch_key in enumerate(jax.random.split(key, 4)):
            number = jnp.arange(batch) + batch * i
            target = jnp.tile(number[:, None].astype(jnp.float32), (1, 2))
            items = Sample(number[:, None].astype(jnp.float32), jnp.ones((batch, 2), bool), target, number)
            reservoir = reservoir_insert(batch_key, reservoir, items, number % 5 != 0)
        return reservoir

    reservoirs = jax.jit(jax.vmap(fill))(jax.random.split(jax.random.key(0), seeds))
    kept = np.asarray(reservoirs.items.iteration)
    np.testing.assert_array_equal(kept, reservoirs.items.obs[..., 0])
    np.testing.assert_array_equal(kept, reservoirs.items.target[..., 0])
    assert all(len(set(row)) == capacity for row in kept)
    counts = np.bincount(kept.ravel(), minlength=40).reshape(-1, 5)
    assert not counts[:, 0].any()
    assert stats.chisquare(counts[:, 1:].ravel()).pvalue > 1e-3
    assert reservoirs.count.tolist() == [[0, 32]] * seeds


def test_reservoir_counts_beyond_32_bits():
    reservoir = make_reservoir(4, (1,), 2)
    reservoir = Reservoir(reservoir.items, jnp.array([0, 2**32 - 2], jnp.uint32))
    items = Sample(jnp.ones((5, 1)), jnp.ones((5, 2), bool), jnp.ones((5, 2)), jnp.ones(5, jnp.int32))
    reservoir = reservoir_insert(jax.random.key(0), reservoir, items, jnp.ones(5, bool))
    assert reservoir.count.tolist() == [1, 3]
    assert int(reservoir.size) == 4


def test_losses_are_weighted_by_iteration_and_blind_to_illegal_actions():
    legal = jnp.array([[True, True, False], [True, False, True]])
    target = jnp.array([[2.0, -4.0, 9.0], [1.0, 9.0, 0.0]])
    sample = Sample(jnp.zeros((2, 1)), legal, target, jnp.array([1, 4]))
    prediction = jnp.array([[1.0, 0.0, 7.0], [0.5, 7.0, 1.0]])
    expected = (1 / 4 * (0 + 4) + 4 / 4 * (0 + 1)) / 2
    np.testing.assert_allclose(advantage_loss(prediction, sample, jnp.float32(2), jnp.int32(4)), expected)
    policy = jnp.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]])
    sample = sample.replace(target=policy)
    logits = jnp.array([[0.0, 0.0, 50.0], [0.0, 50.0, 0.0]])
    loss, gradient = jax.value_and_grad(strategy_loss)(logits, sample, jnp.int32(4))
    np.testing.assert_allclose(loss, np.log(2) * (1 / 4 + 1) / 2, rtol=1e-6)
    assert jnp.isfinite(gradient).all()
    assert gradient[0, 2] == gradient[1, 1] == 0


def test_walks_of_small_games_expand_everything_and_those_of_large_ones_a_part():
    assert choose_expand_probability(game_of("leduc_holdem")[0], jax.random.key(0), 1000) == 1
    probability = choose_expand_probability(envs.make("texas_limit_holdem"), jax.random.key(0), 20)
    assert 1e-4 < probability < 0.9


def small_args(**changes):
    flags = {
        "env": "kuhn_poker", "observation": "information_state", "num_traversals": 64, "num_lanes": 32,
        "advantage_steps": 20, "strategy_steps": 20, "batch_size": 64, "memory_size": 4096, "hidden_sizes": (16,),
    }  # fmt: skip
    return Args(**flags | changes)


def test_exact_average_is_the_iterations_average_weighted_by_reach_and_iteration():
    env, tree = game_of("kuhn_poker")
    training = make_train(small_args(average="single"), env, tree)
    train = jax.jit(training.train)
    state = jax.jit(training.init)(jnp.uint32(3))
    net = deep_cfr.MLP((16,), 2)
    expected = np.zeros((12, 2))
    for t in range(1, 4):
        state, _ = train(state, 1)
        advantages = [net.apply(params, jnp.asarray(tree.observations)) for params in state.advantage_nets]
        policy = np.where((tree.infoset_player == 0)[:, None], *advantages)
        policy = np.asarray(match_advantages(jnp.asarray(policy), jnp.asarray(tree.legal_actions)))
        for i in range(12):
            reach, sequence = 1.0, tree.infoset_parent[i]
            while sequence >= 2:
                parent, action = divmod(sequence - 2, 2)
                reach *= policy[parent, action]
                sequence = tree.infoset_parent[parent]
            expected[i] += t * reach * policy[i]
    np.testing.assert_allclose(state.cumulative_policy, expected, rtol=1e-5)
    assert int(state.iteration) == 3


def run_script(folder, *flags):
    """Runs the script without W&B; the run's folder."""
    deep_cfr.main(["--runs", str(folder), "--wandb-mode", "disabled", *flags])
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime)


SMALL = [
    "--num-traversals=128", "--num-lanes=64", "--advantage-steps=60", "--strategy-steps=200", "--batch-size=256",
    "--memory-size=20000", "--hidden-sizes=32",
]  # fmt: skip


def rows_of(folder):
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))


@pytest.mark.parametrize("average", [pytest.param("network", marks=pytest.mark.full), "single"])
def test_script_learns_kuhn_and_saves_a_policy_that_loads(tmp_path, capsys, average):
    folder = run_script(
        tmp_path, "--env", "kuhn_poker", "--average", average, "--iterations", "30", "--num-seeds", "2",
        "--log-interval", "15", *SMALL,
    )  # fmt: skip
    rows = rows_of(folder)
    assert [int(row["global_step"]) for row in rows] == [15, 15, 30, 30]
    scores = [float(row["eval/exploitability"]) for row in rows[-2:]]
    assert max(scores) < 0.2  # 0.458 is the uniform policy's
    for name in ("config.json", "script.py", "curve.png", "params.msgpack", "checkpoint.msgpack"):
        assert (folder / name).stat().st_size > 0
    for seed in (1, 2):
        loaded = load_policy(folder, seed)
        tree = build_game_tree(loaded.env)
        policy = loaded.policy(loaded.params, jnp.asarray(tree.observations), jnp.asarray(tree.legal_actions))
        assert abs(float(evaluate_policy(tree, policy).exploitability) - scores[seed - 1]) < 1e-4
    assert "eval/exploitability" in capsys.readouterr().out


@pytest.mark.full
def test_resumed_run_ends_as_one_never_stopped(tmp_path, monkeypatch):
    flags = ["--env", "kuhn_poker", "--iterations", "4", "--log-interval", "1", *SMALL, "--strategy-steps", "20"]
    whole = run_script(tmp_path / "whole", *flags)
    real = deep_cfr.save_checkpoint

    def stop(args, folder, states, tree):
        real(args, folder, states, tree)
        if int(states.iteration[0]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(deep_cfr, "save_checkpoint", stop)
    with pytest.raises(SystemExit, match="130"):
        run_script(tmp_path / "cut", *flags)
    monkeypatch.setattr(deep_cfr, "save_checkpoint", real)
    (cut,) = (tmp_path / "cut").iterdir()
    assert json.loads((cut / "config.json").read_text())["status"] == "interrupted"
    deep_cfr.main(["--resume", str(cut), "--wandb-mode", "disabled"])
    for name in ("params.msgpack", "checkpoint.msgpack"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    numbers = [
        [{key: row[key] for key in row if key not in ("wall_time", "charts/SPS")} for row in rows_of(folder)]
        for folder in (cut, whole)
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.full
def test_policy_proposed_is_the_one_saved_where_observations_forget(tmp_path):
    folder = run_script(
        tmp_path, "--env", "leduc_holdem", "--observation", "paper", "--average", "single", "--iterations", "3",
        "--log-interval", "3", *SMALL,
    )  # fmt: skip
    loaded = load_policy(folder, 1)
    tree = build_game_tree(loaded.env)
    policy = loaded.policy(loaded.params, jnp.asarray(tree.observations), jnp.asarray(tree.legal_actions))
    score = float(evaluate_policy(tree, policy).exploitability)
    assert abs(score - float(rows_of(folder)[-1]["eval/exploitability"])) < 1e-4


@pytest.mark.full
def test_seeds_of_one_run_are_those_of_runs_of_their_own(tmp_path):
    flags = ["--env", "kuhn_poker", "--average", "single", "--iterations", "3", "--log-interval", "3", *SMALL]
    together = rows_of(run_script(tmp_path / "together", *flags, "--seed", "5", "--num-seeds", "2"))
    for row in together:
        (alone,) = rows_of(run_script(tmp_path / row["seed"], *flags, "--seed", row["seed"]))
        same = [name for name in row if name not in ("wall_time", "charts/SPS")]
        assert [row[name] for name in same] == [alone[name] for name in same]


@pytest.mark.full
def test_a_large_game_is_scored_head_to_head(tmp_path, capsys):
    folder = run_script(
        tmp_path, "--env", "texas_limit_holdem", "--iterations", "2", "--log-interval", "2", "--num-traversals", "16",
        "--num-lanes", "16", "--max-leaves", "4", "--eval-games", "64", "--advantage-steps", "5", "--strategy-steps",
        "5", "--batch-size", "64", "--memory-size", "2000", "--hidden-sizes", "16",
    )  # fmt: skip
    row = rows_of(folder)[-1]
    assert np.isfinite([float(row[f"eval/return_vs_{name}"]) for name in ("uniform", "call")]).all()
    assert "expanded with probability" in capsys.readouterr().out
    loaded = load_policy(folder, 1)
    _, obs = loaded.env.reset(jax.random.key(0))
    probabilities = loaded.policy(loaded.params, obs, jnp.arange(loaded.env.num_actions) > 0)
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6)
    assert probabilities[0] == 0


@pytest.mark.full
def test_a_number_that_is_not_finite_stops_the_run(tmp_path, capsys):
    with pytest.raises(SystemExit, match="1"):
        run_script(tmp_path, "--iterations", "2", "--log-interval", "1", "--learning-rate", "1e38", *SMALL)
    assert "iteration 1: a loss or a parameter is not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--env", "goofspiel"], "two who act in turn"),
        (["--env", "texas_limit_holdem", "--env-kwargs", '{"num_agents": 3}'], "3 players"),
        (["--env", "kuhn"], "kuhn_poker"),
        (["--num-traversals", "100"], "--num-lanes 256"),
        (["--iterations", "0"], "--iterations 0"),
        (["--learning-rate", "0"], "--learning-rate 0"),
        (["--env", "texas_limit_holdem", "--average", "single"], "--average single"),
        (["--resume", "nowhere"], "--resume nowhere"),
        (["--memory-size", "1e12"], "--memory-size 1000000000000"),
    ],
)
def test_mistake_is_answered_with_one_line(tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit) as stopped:
        deep_cfr.main(["--runs", str(tmp_path / "runs"), *flags])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_paper_preset_sets_what_the_paper_used_and_flags_win():
    args = deep_cfr.parse_args(["--preset", "paper", "--advantage-steps", "7"])
    assert SimpleNamespace(**{k: getattr(args, k) for k in ("iterations", "num_traversals", "memory_size")}) == (
        SimpleNamespace(iterations=50, num_traversals=100, memory_size=100_000)
    )
    assert args.advantage_steps == 7
