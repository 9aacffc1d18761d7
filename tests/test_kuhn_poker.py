"""Kuhn poker: every line of every deal, observations bit for bit, and how hands are dealt."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import envs

JACK, QUEEN, KING = 0, 1, 2
CHECK, BET = 0, 1
# line, p for check or fold and b for bet or call: chips at stake where it is a showdown, else the opener's payoff
SHOWDOWNS = {"pp": 1, "pbb": 2, "bb": 2}
FOLDS = {"pbp": -1, "bp": 1}
LINES = (*SHOWDOWNS, *FOLDS)


@cache
def jitted(function_name, **parameters):
    return jax.jit(getattr(envs.make("kuhn_poker", **parameters), function_name))


def first_state(cards, opener=0):
    """`cards` in order of seats."""
    states, _ = envs.make("kuhn_poker").deals()
    [deal] = np.flatnonzero((np.asarray(states.cards) == cards).all(-1))
    state = jax.tree.map(lambda leaf: leaf[deal], states)
    return state.replace(first_player=jnp.int32(opener), current_player=jnp.int32(opener))


def play(cards, line, opener=0):
    """The outputs of `step_env` for each letter of `line`."""
    state, outputs = first_state(cards, opener), []
    for letter in line:
        outputs.append(jitted("step_env")(state, jnp.int32("pb".index(letter))))
        state = outputs[-1][0]
    return outputs


@pytest.mark.parametrize("opener", [0, 1])
@pytest.mark.parametrize("line", LINES)
def test_terminals_pay_the_opener_as_published(line, opener):
    for cards in itertools.permutations((JACK, QUEEN, KING), 2):
        outputs = play(cards, line, opener)
        *early, (state, _, reward, absorbing, done, info) = outputs
        for turn, (state_then, _, reward_then, _, done_then, _) in enumerate(early):
            assert not done_then
            assert not reward_then.any()
            assert int(state_then.current_player) == (opener + turn + 1) % 2
        stake = SHOWDOWNS.get(line)
        payoff = FOLDS[line] if stake is None else stake * np.sign(cards[opener] - cards[1 - opener])
        expected = np.array([payoff, -payoff], np.float32)[[opener, 1 - opener]]
        np.testing.assert_array_equal(reward, expected)
        np.testing.assert_array_equal(info["returns"], expected)
        np.testing.assert_array_equal(info["winner"], expected > 0)
        assert bool(done)
        assert absorbing.all()
        assert int(info["timestep"]) == int(state.timestep) == len(line)


def test_both_actions_are_legal_until_the_hand_is_over():
    for line in LINES:
        outputs = play((JACK, KING), line)
        masks = [jitted("legal_actions")(output[0]).tolist() for output in outputs]
        assert masks == [[True, True]] * (len(line) - 1) + [[False, False]]


# own card J Q K | own chips 1 2 | opponent's chips 1 2 | acts first, second
@pytest.mark.parametrize(
    ("line", "player", "expected"),
    [
        ("", 0, [0, 1, 0, 1, 0, 1, 0, 1, 0]),
        ("", 1, [0, 0, 1, 1, 0, 1, 0, 0, 1]),
        ("p", 1, [0, 0, 1, 1, 0, 1, 0, 0, 1]),
        ("b", 0, [0, 1, 0, 0, 1, 1, 0, 1, 0]),
        ("b", 1, [0, 0, 1, 1, 0, 0, 1, 0, 1]),
        ("pb", 0, [0, 1, 0, 1, 0, 0, 1, 1, 0]),
        ("pb", 1, [0, 0, 1, 0, 1, 1, 0, 0, 1]),
        ("bb", 0, [0, 1, 0, 0, 1, 0, 1, 1, 0]),
        ("bp", 1, [0, 0, 1, 1, 0, 0, 1, 0, 1]),
        ("pbp", 0, [0, 1, 0, 1, 0, 0, 1, 1, 0]),
    ],
)
@pytest.mark.parametrize("opener", [0, 1])
def test_paper_observation_is_the_published_table(line, player, expected, opener):
    """`player` 0 opens with the queen, 1 has the king."""
    cards = (QUEEN, KING) if opener == 0 else (KING, QUEEN)
    state = [first_state(cards, opener), *(output[0] for output in play(cards, line, opener))][-1]
    seat = (opener + player) % 2
    np.testing.assert_array_equal(jitted("observe")(state, jnp.int32(seat)), np.float32(expected))


# own card J Q K | acts first, second | three actions, each check/fold, bet/call
@pytest.mark.parametrize(
    ("line", "player", "expected"),
    [
        ("", 0, [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        ("", 1, [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]),
        ("p", 1, [0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0]),
        ("b", 1, [0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0]),
        ("pb", 0, [0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0]),
        ("pbp", 0, [0, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0]),
        ("pbb", 1, [0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1]),
        ("bb", 0, [0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0]),
    ],
)
@pytest.mark.parametrize("opener", [0, 1])
def test_information_state_is_own_card_seat_and_all_actions_in_order(line, player, expected, opener):
    cards = (QUEEN, KING) if opener == 0 else (KING, QUEEN)
    state = [first_state(cards, opener), *(output[0] for output in play(cards, line, opener))][-1]
    seat = (opener + player) % 2
    np.testing.assert_array_equal(jitted("information_state")(state, jnp.int32(seat)), np.float32(expected))


@pytest.mark.parametrize("encoding", ["observe", "information_state"])
def test_the_12_decisions_look_different(encoding):
    seen = set()
    for cards in itertools.permutations((JACK, QUEEN, KING), 2):
        for line in ("", "p", "b", "pb"):
            state = [first_state(cards), *(output[0] for output in play(cards, line))][-1]
            seen.add(tuple(jitted(encoding)(state, state.current_player).tolist()))
    assert len(seen) == 12


@pytest.mark.parametrize("num_ranks", range(3, 14))
def test_num_ranks_sets_the_observation_sizes(num_ranks):
    assert envs.make("kuhn_poker", num_ranks=num_ranks).obs_shape == (num_ranks + 6,)
    assert envs.make("kuhn_poker", num_ranks=num_ranks, observation="information_state").obs_shape == (num_ranks + 8,)


@pytest.mark.parametrize("num_ranks", [3, 4, 13])
def test_deals_are_all_pairs_of_ranks(num_ranks):
    env = envs.make("kuhn_poker", num_ranks=num_ranks)
    states, probabilities = env.deals()
    cards = np.asarray(states.cards)
    assert sorted(map(tuple, cards.tolist())) == list(itertools.permutations(range(num_ranks), 2))
    np.testing.assert_allclose(probabilities, 1 / (num_ranks * (num_ranks - 1)), rtol=1e-12)
    state = jax.tree.map(lambda leaf: leaf[-1], states)  # the top rank against the next
    np.testing.assert_array_equal(env.observe(state, 0)[:num_ranks], np.eye(num_ranks)[num_ranks - 1])
    np.testing.assert_array_equal(env.observe(state, 1)[:num_ranks], np.eye(num_ranks)[num_ranks - 2])


@pytest.mark.parametrize("num_ranks", [2, 14, -3, 3.0, True, "3", None])
def test_num_ranks_out_of_range_is_refused_with_value_and_range(num_ranks):
    with pytest.raises(ValueError, match=r"num_ranks.*3 to 13") as error:
        envs.make("kuhn_poker", num_ranks=num_ranks)
    assert repr(num_ranks) in str(error.value)


def outcomes(states):
    """[B] which of all that can be dealt, opener included, each state is."""
    cards, openers = np.asarray(states.cards), np.asarray(states.first_player)
    assert (states.current_player == states.first_player).all()
    _, index = np.unique(np.column_stack([openers, cards]), axis=0, return_inverse=True)
    return index


def is_uniform(index, size):
    counts = np.bincount(index, minlength=size)
    assert len(counts) == size
    return stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("num_ranks", [3, 13])
def test_reset_deals_all_hands_and_openers_equally_often(num_ranks):
    env = envs.make("kuhn_poker", num_ranks=num_ranks)
    keys = jax.random.split(jax.random.key(0), 30_000)
    states, _ = jax.jit(jax.vmap(env.reset))(keys)
    assert is_uniform(outcomes(states), 2 * num_ranks * (num_ranks - 1))


def test_the_hand_after_is_dealt_independently_of_the_hand_before():
    env = envs.make("kuhn_poker")
    first, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 30_000))
    step = jax.jit(jax.vmap(env.step))
    bet, fold = jnp.full(30_000, BET), jnp.full(30_000, CHECK)
    middle, *_, done_early, _ = step(first, bet)
    second, *_, done, _ = step(middle, fold)
    assert not done_early.any()
    assert done.all()
    assert is_uniform(outcomes(second), 12)
    assert is_uniform(12 * outcomes(first) + outcomes(second), 12 * 12)


@pytest.mark.parametrize("opener", [0, 1])
def test_render_shows_a_player_his_own_card_only(opener):
    env = envs.make("kuhn_poker")
    (state, *_), (over, *_) = play((QUEEN, KING), "bb", opener)
    whole, own = env.render(state), env.render(state, 1)
    assert "card 1" in whole
    assert "card 2" in whole
    assert "card 1" not in own
    assert "card 2" in own
    assert "to act" in own
    assert "-2 +2" in env.render(over, 1)


@pytest.mark.parametrize("action", [1, True, 9, np.int8(0), np.float32(1)])
def test_illegal_action_flag_is_a_bool_for_any_kind_of_number(action):
    env = envs.make("kuhn_poker")
    info = env.step_env(env.reset(jax.random.key(0))[0], action)[-1]
    assert info["illegal_action"].dtype == bool
    assert bool(info["illegal_action"]) == (action == 9)
