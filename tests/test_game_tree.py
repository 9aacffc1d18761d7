"""The tree against games whose structure is known, and against a plain walk over a probe game."""

import itertools
import runpy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest
from flax import struct
from open_spiel.python.algorithms import exploitability
from open_spiel.python.policy import UniformRandomPolicy

import envs
import solvers.game_tree
from solvers.exploitability import evaluate_policy
from solvers.game_tree import build_game_tree, segment_sum, segment_sum_tables, uniform_policy

DEALS, PLAYERS, ACTIONS = 3, 3, 2
PROBABILITIES = np.array([0.2, 0.3, 0.5])
TURNS = (0, 1, 2, 0, 1)  # who acts in which phase
MAX_CODE = 3 ** len(TURNS)
REWARDS = np.random.default_rng(0).normal(size=(DEALS, MAX_CODE, PLAYERS)).astype(np.float32)


@struct.dataclass
class ProbeState:
    key: jax.Array
    current_player: jax.Array
    deal: jax.Array
    phase: jax.Array
    code: jax.Array  # the actions so far in base 3
    first_action: jax.Array
    last_action: jax.Array


@dataclass(frozen=True)
class ProbeGame:
    """Three players, pay at every step, uneven deals; player 1's first turn is left out where player 0 plays 0.

    Players 0 and 2 see one bit of the deal each. Player 2 does not see what was played, so that his information sets
    lie on two levels. Without `information_state`: information sets come from `observe`.
    """

    api: ClassVar[str] = "aec"
    num_agents: ClassVar[int] = PLAYERS
    num_actions: ClassVar[int] = ACTIONS
    obs_shape: ClassVar[tuple[int]] = (4,)

    def deals(self):
        states = [self._first_state(deal) for deal in range(DEALS)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), PROBABILITIES

    def _first_state(self, deal):
        zero = jnp.int32(0)
        return ProbeState(jax.random.key(0), zero, jnp.int32(deal), zero, zero, zero, zero)

    def step_env(self, state, action):
        phase = state.phase + 1 + ((state.phase == 0) & (action == 0))
        code = 3 * state.code + action + 1
        done = phase == len(TURNS)
        state = state.replace(
            current_player=jnp.array(TURNS, jnp.int32)[jnp.minimum(phase, len(TURNS) - 1)],
            phase=phase,
            code=code,
            first_action=jnp.where(state.phase == 0, action, state.first_action),
            last_action=action,
        )
        reward = jnp.asarray(REWARDS)[state.deal, code]
        return state, self.observe(state, state.current_player), reward, jnp.broadcast_to(done, (PLAYERS,)), done, {}

    def legal_actions(self, state):
        """Player 0 has only action 0 in his second turn if he played 0 in his first."""
        alone = (state.phase == 3) & (state.first_action == 0)
        return jnp.array([True, False]) | ((state.phase < len(TURNS)) & ~alone)

    def observe(self, state, player):
        deal_bit = jnp.where(player == 1, -1, (state.deal == player).astype(jnp.int32))
        last_action = jnp.where((player == 2) | (state.phase < 3), -1, state.last_action)
        return jnp.stack([player, deal_bit, last_action, state.phase * (player != 2)]).astype(jnp.float32)


@dataclass(frozen=True)
class LeakingProbe(ProbeGame):
    """`observe` tells the deal, which `information_state` does not know."""

    def observe(self, state, player):
        return super().observe(state, player).at[1].set(state.deal)

    def information_state(self, state, player):
        return super().observe(state, player)


@dataclass(frozen=True)
class UnevenProbe(ProbeGame):
    def deals(self):
        states, _ = super().deals()
        return states, np.array([0.2, 0.2, 0.2])


@dataclass(frozen=True)
class EndlessProbe(ProbeGame):
    """A binary tree without an end."""

    def step_env(self, state, action):
        state, observation, reward, absorbing, _, info = super().step_env(state, action)
        return state.replace(phase=jnp.int32(1)), observation, reward, absorbing, jnp.bool_(False), info


@dataclass(frozen=True)
class UnlistableProbe(ProbeGame):
    def deals(self):
        raise ValueError("probe has 10,000,000,000 deals")


@cache
def tree_of(name, observation="information_state"):
    return build_game_tree(envs.make(name, observation=observation))


@cache
def probe_tree():
    return build_game_tree(ProbeGame())


@cache
def probe_walk():
    """The probe game walked step by step, without the tree's idea of information sets.

    Returns:
        Payoffs (probability of the deal, decisions on the way, reward), a decision being (key, action) and a key the
        player with all that he saw and did; legal actions by key; and keys by node of the tree.
    """
    env = ProbeGame()
    step, observe, legal_actions = jax.jit(env.step_env), jax.jit(env.observe), jax.jit(env.legal_actions)
    payoffs, legal, key_of_node = [], {}, {}

    def walk(state, probability, decisions, node):
        player = int(state.current_player)
        own = tuple(decision for decision in decisions if decision[0][0] == player)
        key = (player, own, tuple(observe(state, player).tolist()))
        key_of_node[node] = key
        legal[key] = np.flatnonzero(legal_actions(state)).tolist()
        for action in legal[key]:
            child, _, reward, _, done, _ = step(state, action)
            path = (*decisions, (key, action))
            payoffs.append((probability, path, np.asarray(reward, np.float64)))
            if not done:
                walk(child, probability, path, int(probe_tree().node_children[node, action]))

    states, probabilities = env.deals()
    for deal, probability in enumerate(probabilities):
        walk(jax.tree.map(lambda leaf, deal=deal: leaf[deal], states), probability, (), deal)
    return payoffs, legal, key_of_node


def probe_values(policy):
    """Expected returns [3] under `policy`, a dict from keys to probabilities."""
    return sum(
        probability * np.prod([policy[key][action] for key, action in decisions]) * reward
        for probability, decisions, reward in probe_walk()[0]
    )


def probe_best_response_value(policy, player):
    """The most that any pure strategy of `player` earns."""
    legal = {key: actions for key, actions in probe_walk()[1].items() if key[0] == player}
    plans = itertools.product(*legal.values())
    return max(
        probe_values(policy | {key: np.eye(ACTIONS)[action] for key, action in zip(legal, plan, strict=True)})[player]
        for plan in plans
    )


def test_kuhn_has_12_information_sets_and_54_nodes():
    tree = tree_of("kuhn_poker")
    assert (tree.num_infosets, tree.num_nodes) == (12, 6 * 9)
    assert tree.depth_starts == (0, 9, 12)
    assert np.bincount(tree.infoset_player).tolist() == [6, 6]


def test_leduc_has_288_information_sets_by_rank():
    tree = tree_of("leduc_holdem")
    assert (tree.num_infosets, len(tree.deal_probabilities)) == (288, 120)
    assert np.bincount(tree.infoset_player).tolist() == [144, 144]


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_holdem"])
def test_information_sets_do_not_depend_on_the_observation_the_network_gets(name):
    paper, perfect_recall = tree_of(name, "paper"), tree_of(name)
    assert paper.observations.shape[1:] == envs.make(name, observation="paper").obs_shape
    assert len(np.unique(perfect_recall.observations, axis=0)) == perfect_recall.num_infosets
    for field in ("legal_actions", "infoset_player", "infoset_parent", "node_infoset", "payoffs", "payoff_sequences"):
        np.testing.assert_array_equal(getattr(paper, field), getattr(perfect_recall, field))


def test_papers_observation_of_leduc_merges_information_sets():
    assert len(np.unique(tree_of("leduc_holdem", "paper").observations, axis=0)) < 288


def test_observations_are_what_env_observe_gives_the_player_to_act():
    env = envs.make("leduc_holdem", observation="paper")
    tree = tree_of("leduc_holdem", "paper")
    states, _ = env.deals()
    observe = jax.jit(jax.vmap(lambda state: env.observe(state, state.current_player)))
    nodes = np.arange(len(tree.deal_probabilities))
    for action in (1, 2, 2, 1):
        np.testing.assert_array_equal(tree.observations[tree.node_infoset[nodes]], observe(states))
        states = jax.jit(jax.vmap(lambda state, action=action: env.step_env(state, action)[0]))(states)
        nodes = tree.node_children[nodes, action]


def test_children_are_there_exactly_where_the_action_is_legal():
    tree = tree_of("leduc_holdem")
    acting = tree.node_infoset >= 0
    np.testing.assert_array_equal(tree.node_children[acting] >= 0, tree.legal_actions[tree.node_infoset[acting]])
    assert (tree.node_children[~acting] == -1).all()
    deals = np.arange(len(tree.deal_probabilities))
    children = tree.node_children[tree.node_children >= 0]
    assert sorted([*deals, *children]) == list(range(tree.num_nodes))


def test_an_information_set_may_lie_on_two_levels():
    tree = probe_tree()
    infosets = np.flatnonzero(tree.infoset_player == 2)
    assert len(infosets) == 2
    for deal in range(DEALS):
        after_0 = tree.node_children[deal, 0]
        after_1_1 = tree.node_children[tree.node_children[deal, 1], 1]
        assert tree.node_infoset[after_0] == tree.node_infoset[after_1_1]
        assert tree.node_infoset[after_0] in infosets


def test_information_sets_are_the_players_own_observations_and_actions():
    tree, key_of_node = probe_tree(), probe_walk()[2]
    pairs = {(tree.node_infoset[node].item(), key) for node, key in key_of_node.items()}
    assert len(pairs) == len({key for _, key in pairs}) == tree.num_infosets
    assert len(key_of_node) == (tree.node_infoset >= 0).sum()


def test_values_and_best_responses_of_the_probe_game_equal_those_of_a_plain_walk_over_all_pure_strategies():
    tree, (_, legal, key_of_node) = probe_tree(), probe_walk()
    rng = np.random.default_rng(1)
    for _ in range(3):
        table = rng.dirichlet(np.ones(ACTIONS), tree.num_infosets) * tree.legal_actions
        table /= table.sum(-1, keepdims=True)
        policy = {key: table[tree.node_infoset[node]] for node, key in key_of_node.items()}
        assert policy.keys() == legal.keys()
        with jax.enable_x64(True):
            result = jax.jit(evaluate_policy)(tree, table)
        values = probe_values(policy)
        best = np.array([probe_best_response_value(policy, player) for player in range(PLAYERS)])
        np.testing.assert_allclose(result.values, values, rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.best_response_values, best, rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.nash_conv, (best - values).sum(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.exploitability, (best - values).sum() / 3, rtol=0, atol=1e-12)


def test_uniform_policy_plays_legal_actions_equally_often():
    policy = uniform_policy(tree_of("leduc_holdem"))
    assert policy.dtype == jnp.float32
    assert set(np.unique(np.asarray(policy)).tolist()) == {0.0, np.float32(1 / 3).item(), 0.5}
    with jax.enable_x64(True):
        assert uniform_policy(tree_of("leduc_holdem")).dtype == jnp.float64


def test_segment_sum_equals_a_scatter_add_with_empty_and_long_segments():
    rng = np.random.default_rng(2)
    segments = np.concatenate([np.full(1000, 3), np.full(9, 5), rng.integers(6, 40, 100), [49]])
    rng.shuffle(segments)
    values = rng.normal(size=len(segments))
    expected = np.bincount(segments, values, 60)
    with jax.enable_x64(True):
        sums = segment_sum(jnp.asarray(values), segment_sum_tables(segments, 60))
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-12)


def test_more_nodes_than_one_chunk_give_the_same_tree(monkeypatch):
    monkeypatch.setattr(solvers.game_tree, "CHUNK", 4)
    small_chunks = build_game_tree(envs.make("kuhn_poker", observation="information_state"))
    jax.tree.map(np.testing.assert_array_equal, small_chunks, tree_of("kuhn_poker"))


def test_a_game_too_large_is_refused_with_its_size():
    with pytest.raises(ValueError, match=r"LeducHoldem.* 10,200 nodes .*120 deals.* 10,199.*scripts/exploit\.py"):
        build_game_tree(envs.make("leduc_holdem"), max_nodes=10_199)
    assert build_game_tree(envs.make("leduc_holdem"), max_nodes=10_200).num_nodes == 10_200


def test_a_game_without_end_is_refused():
    with pytest.raises(ValueError, match=r"EndlessProbe.*too large.*scripts/exploit\.py"):
        build_game_tree(EndlessProbe(), max_nodes=10_000)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (UnlistableProbe(), r"10,000,000,000 deals.*scripts/exploit\.py"),
        (UnevenProbe(), r"probabilities of deals\(\).* not 1"),
        (LeakingProbe(), r"LeakingProbe.*observe\(\) differs"),
    ],
)
def test_a_game_without_a_tree_is_refused_in_one_line(env, message):
    with pytest.raises(ValueError, match=message) as error:
        build_game_tree(env)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("parameters", "peer", "unit"),
    [
        ({"num_cards": 3, "reward": "win_loss"}, "num_cards=3,returns_type=win_loss", 1),
        ({"num_cards": 4, "reward": "win_loss"}, "num_cards=4,returns_type=win_loss", 1),
        (
            {"num_cards": 3, "reward": "point_difference"},
            "num_cards=3,returns_type=point_difference",
            2,
        ),  # its points are counted from the mean
        ({"num_cards": 3, "reward": "points"}, "num_cards=3,returns_type=total_points", 1),
        ({"num_agents": 3, "num_cards": 3, "reward": "win_loss"}, "num_cards=3,players=3,returns_type=win_loss", 1),
    ],
)
def test_simultaneous_moves_are_worth_what_they_are_in_openspiel(parameters, peer, unit):
    """Uniform play and the best responses to it, in Goofspiel."""
    tree = build_game_tree(envs.make("goofspiel", **parameters))
    with jax.enable_x64(True):
        ours = evaluate_policy(tree, uniform_policy(tree))
    game = pyspiel.convert_to_turn_based(pyspiel.load_game(f"goofspiel(imp_info=False,points_order=random,{peer})"))
    theirs = exploitability.nash_conv(game, UniformRandomPolicy(game), return_only_nash_conv=False)
    np.testing.assert_allclose(ours.nash_conv, unit * theirs.nash_conv, rtol=0, atol=1e-6)
    gains = np.asarray(ours.best_response_values - ours.values)
    np.testing.assert_allclose(gains, unit * np.array(theirs.player_improvements), rtol=0, atol=1e-6)


@pytest.mark.full
def test_a_tree_of_millions_of_nodes_has_openspiels_exploitability():
    """Goofspiel with five cards: about 7 GB of memory and four minutes, most of them OpenSpiel's."""
    tree = build_game_tree(envs.make("goofspiel", num_cards=5, reward="win_loss"), max_nodes=10_000_000)
    with jax.enable_x64(True):
        ours = evaluate_policy(tree, uniform_policy(tree)).exploitability
    peer = "goofspiel(imp_info=False,points_order=random,num_cards=5,returns_type=win_loss)"
    game = pyspiel.convert_to_turn_based(pyspiel.load_game(peer))
    theirs = pyspiel.exploitability(game, pyspiel.UniformRandomPolicy(game))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(theirs, 0.8015278, rtol=0, atol=1e-7)


def test_who_acts_later_in_a_simultaneous_move_does_not_see_the_moves_before():
    """Two cards, 2 orders of prizes: both choose once, knowing the first prize."""
    tree = build_game_tree(envs.make("goofspiel", num_cards=2))
    first = tree.infoset_parent < tree.num_agents
    assert first.sum() == 4
    assert np.bincount(tree.infoset_player[first]).tolist() == [2, 2]
    assert tree.num_nodes == 2 * (1 + 2 + 4 + 4 + 4)


@pytest.mark.parametrize("module", ["game_tree.py", "exploitability.py"])
def test_importing_allocates_nothing(module):
    before = len(jax.live_arrays())
    runpy.run_path(Path(solvers.game_tree.__file__).with_name(module))
    assert len(jax.live_arrays()) == before
