"""Leduc hold'em: every betting line of every deal, observations bit for bit, and how hands are dealt."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import envs

FOLD, CALL, RAISE = 0, 1, 2
LETTERS = "fcr"
JACK, QUEEN, KING = 0, 1, 2
NUM_DEALS = 120


class Node(NamedTuple):
    """All deals after one betting line, seat 0 opening; arrays have a leading axis [120] of deals."""

    state: object
    legal: np.ndarray  # [120, 3]
    observation: np.ndarray  # [120, 36] of the player to act
    information_state: np.ndarray  # [120, 32] of the player to act
    reward: np.ndarray  # [120, 2] for the line's last action
    done: np.ndarray  # [120]
    illegal: np.ndarray  # [120], of the line's last action


@cache
def functions():
    """Of the env: what a state shows and one action, for all deals at once."""
    env = envs.make("leduc_holdem")

    @jax.jit
    @jax.vmap
    def view(state):
        shown = env.observe(state, state.current_player), env.information_state(state, state.current_player)
        return env.legal_actions(state), *shown

    return view, jax.jit(jax.vmap(env.step_env, in_axes=(0, None)))


def arrive(state, reward, done, illegal):
    return Node(state, *map(np.asarray, (*functions()[0](state), reward, done, illegal)))


@cache
def node(line):
    if not line:
        state, _ = envs.make("leduc_holdem").deals()
        no_flags = np.zeros(NUM_DEALS, bool)
        return arrive(state, np.zeros((NUM_DEALS, 2)), no_flags, no_flags)
    state, _, reward, _, done, info = functions()[1](node(line[:-1]).state, jnp.int32(LETTERS.index(line[-1])))
    return arrive(state, reward, done, info["illegal_action"])


@cache
def all_lines():
    """Every legal betting line, the unfinished ones included."""
    lines, rest = [], [""]
    while rest:
        line = rest.pop()
        lines.append(line)
        legal = node(line).legal
        assert (legal == legal[0]).all()  # what may be played does not depend on the cards
        assert (node(line).done == ~legal.any(-1)).all()
        rest += [line + LETTERS[action] for action in np.flatnonzero(legal[0])]
    return sorted(lines)


def split_rounds(line):
    """The actions of the first and of the second round; None where there was no second round."""
    for end in range(1, len(line) + 1):
        if line[end - 1] == "c" and (end > 1 or line[0] != "c"):
            return line[:end], line[end:]
    return line, None


def paid(line):
    """Chips of the opener and the other, counted from the rules of betting alone."""
    chips, mover = [1, 1], 0
    for actions, size in zip(split_rounds(line), (2, 4), strict=True):
        mover = 0
        for letter in actions or "":
            if letter in "cr":
                chips[mover] = max(chips) + size * (letter == "r")
            mover = 1 - mover
    return chips


def ranks():
    state = node("").state
    return np.asarray(state.cards) // 2, np.asarray(state.public_card) // 2


def test_deals_are_all_ordered_triples_of_the_6_cards():
    state = node("").state
    cards = np.column_stack([state.cards, state.public_card])
    assert len(np.unique(cards, axis=0)) == NUM_DEALS
    assert ((cards >= 0) & (cards < 6)).all()
    assert all(len(set(row)) == 3 for row in cards.tolist())


def test_there_are_36_decisions_and_49_ends_for_each_deal():
    ends = [line for line in all_lines() if node(line).done.all()]
    assert len(ends) == 4 + 5 * (4 + 5)  # folds in round one, then folds and showdowns after each of its 5 endings
    assert len(all_lines()) - len(ends) == 6 + 5 * 6


def test_raise_then_fold_ends_the_hand_in_the_first_round():
    end = node("rf")
    assert end.done.all()
    assert not end.legal.any()
    np.testing.assert_array_equal(end.reward, np.tile(np.float32([1, -1]), (NUM_DEALS, 1)))
    np.testing.assert_array_equal(end.state.timestep, 2)


def test_a_fold_gives_the_other_player_what_was_put_in():
    for line in all_lines():
        if line.endswith("f"):
            chips = paid(line)
            loser = int(node(line).state.current_player[0])
            assert chips[loser] < chips[1 - loser]
            expected = np.float32([chips[loser]] * 2) * (-1 if loser == 0 else 1) * [1, -1]
            np.testing.assert_array_equal(node(line).reward, np.tile(expected, (NUM_DEALS, 1)))


def test_showdowns_of_the_120_deals_are_24_ties_and_48_wins_each():
    payoffs = node("cccc").reward[:, 0]
    assert [int((payoffs == value).sum()) for value in (-1, 0, 1)] == [48, 24, 48]


def test_a_pair_beats_a_high_card_and_a_higher_rank_a_lower():
    held, public = ranks()
    for line in all_lines():
        if split_rounds(line)[1] is None or not node(line).done.all() or line.endswith("f"):
            continue
        pairs = held == public[:, None]
        better = np.where(pairs[:, 0] != pairs[:, 1], pairs[:, 0], held[:, 0] > held[:, 1])
        sign = np.where(held[:, 0] == held[:, 1], 0, np.where(better, 1, -1))
        chips = paid(line)
        assert chips[0] == chips[1]
        np.testing.assert_array_equal(node(line).reward, np.float32(chips[0] * sign[:, None] * [1, -1]))


def test_payoffs_reach_13_and_never_pass_it():
    payoffs = np.concatenate([node(line).reward for line in all_lines()])
    assert payoffs.min() == -13
    assert payoffs.max() == 13
    assert set(np.abs(node("rrcrrc").reward).ravel()) == {0, 13}


def test_chips_in_the_pot_follow_the_bets():
    for line in all_lines():
        np.testing.assert_array_equal(node(line).state.bets, np.tile(paid(line), (NUM_DEALS, 1)))


def test_at_most_two_raises_a_round_and_folds_only_facing_a_bet():
    for line in all_lines():
        if node(line).done.all():
            continue
        first, second = split_rounds(line)
        this_round = first if second is None else second
        can_raise, can_fold = this_round.count("r") < 2, this_round.endswith("r")
        np.testing.assert_array_equal(node(line).legal, np.tile([can_fold, True, can_raise], (NUM_DEALS, 1)))


def test_the_opener_opens_both_rounds_and_players_take_turns():
    for line in all_lines():
        if node(line).done.all():
            continue
        first, second = split_rounds(line)
        np.testing.assert_array_equal(node(line).state.current_player, len(first if second is None else second) % 2)


def test_the_longest_hand_has_8_actions():
    ends = {line for line in all_lines() if node(line).done.all()}
    assert max(map(len, ends)) == 8
    assert {line for line in ends if len(line) == 8} == {"crrccrrc", "crrccrrf"}
    for line in ends:
        np.testing.assert_array_equal(node(line).state.timestep, len(line))


def test_a_raise_beyond_the_cap_folds():
    fold, beyond = node("rrf"), node("rrr")
    assert beyond.illegal.all()
    assert beyond.done.all()
    np.testing.assert_array_equal(beyond.reward, np.tile(np.float32([-3, 3]), (NUM_DEALS, 1)))
    np.testing.assert_array_equal(beyond.reward, fold.reward)
    np.testing.assert_array_equal(beyond.state.history, fold.state.history)


def test_a_fold_facing_no_bet_checks():
    for line in ("", "c", "cc", "rcc"):
        assert node(line + "f").illegal.all()
        assert not node(line + "c").illegal.any()
        np.testing.assert_array_equal(node(line + "f").state.history, node(line + "c").state.history)
        np.testing.assert_array_equal(node(line + "f").reward, node(line + "c").reward)


def test_decisions_show_288_information_states_but_81_paper_observations():
    decisions = [line for line in all_lines() if not node(line).done.all()]
    paper = np.concatenate([node(line).observation for line in decisions])
    information = np.concatenate([node(line).information_state for line in decisions])
    assert len(np.unique(information, axis=0)) == 288
    assert len(np.unique(paper, axis=0)) == 81
    assert len(np.unique(np.concatenate([information, paper], 1), axis=0)) == 288


def state_of(line, cards, public_card, opener):
    """`cards` of the opener and the other; where seat 1 opens, seats are exchanged."""
    all_deals = node(line).state
    found = (np.asarray(all_deals.cards) == cards).all(-1) & (np.asarray(all_deals.public_card) == public_card)
    [deal] = np.flatnonzero(found)
    state = jax.tree.map(lambda leaf: leaf[deal], all_deals)
    if opener == 1:
        state = state.replace(
            **{name: getattr(state, name)[::-1] for name in ("cards", "bets", "returns")},
            **{name: 1 - getattr(state, name) for name in ("current_player", "first_player")},
        )
    return state


def ones_at(size, *places):
    row = np.zeros(size, np.float32)
    row[list(places)] = 1
    return row


# own rank 0-2 | public rank 3-5 | own chips 6-20 | opponent's chips 21-35
@pytest.mark.parametrize(
    ("line", "player", "places"),
    [
        ("", 0, (QUEEN, 6 + 1, 21 + 1)),
        ("", 1, (KING, 6 + 1, 21 + 1)),
        ("c", 1, (KING, 6 + 1, 21 + 1)),
        ("r", 1, (KING, 6 + 1, 21 + 3)),
        ("rr", 0, (QUEEN, 6 + 3, 21 + 5)),
        ("rf", 1, (KING, 6 + 1, 21 + 3)),
        ("cc", 0, (QUEEN, 3 + KING, 6 + 1, 21 + 1)),
        ("rrc", 0, (QUEEN, 3 + KING, 6 + 5, 21 + 5)),
        ("rrcr", 1, (KING, 3 + KING, 6 + 5, 21 + 9)),
        ("crrccrr", 1, (KING, 3 + KING, 6 + 9, 21 + 13)),
        ("crrccrrc", 0, (QUEEN, 3 + KING, 6 + 13, 21 + 13)),
    ],
)
@pytest.mark.parametrize("opener", [0, 1])
def test_paper_observation_is_the_published_table(line, player, places, opener):
    """`player` 0 opens with a queen, 1 has a king; the public card is the other king."""
    state = state_of(line, (2 * QUEEN, 2 * KING), 2 * KING + 1, opener)
    observation = envs.make("leduc_holdem").observe(state, (opener + player) % 2)
    np.testing.assert_array_equal(observation, ones_at(36, *places))


# own rank 0-2 | public rank 3-5 | opens 6, acts second 7 | fold, call, raise of slots 0-3 of each round, from 8 and 20
@pytest.mark.parametrize(
    ("line", "player", "places"),
    [
        ("", 0, (QUEEN, 6)),
        ("", 1, (KING, 7)),
        ("c", 1, (KING, 7, 8 + CALL)),
        ("rf", 1, (KING, 7, 8 + RAISE, 11 + FOLD)),
        ("crrc", 0, (QUEEN, 3 + KING, 6, 8 + CALL, 11 + RAISE, 14 + RAISE, 17 + CALL)),
        ("rccr", 0, (QUEEN, 3 + KING, 6, 8 + RAISE, 11 + CALL, 20 + CALL, 23 + RAISE)),
        ("ccrf", 1, (KING, 3 + KING, 7, 8 + CALL, 11 + CALL, 20 + RAISE, 23 + FOLD)),
    ],
)
@pytest.mark.parametrize("opener", [0, 1])
def test_information_state_is_ranks_seat_and_all_actions_by_round(line, player, places, opener):
    state = state_of(line, (2 * QUEEN, 2 * KING), 2 * KING + 1, opener)
    encoded = envs.make("leduc_holdem").information_state(state, (opener + player) % 2)
    np.testing.assert_array_equal(encoded, ones_at(32, *places))


def deal_numbers(states):
    """[B] which of the 240 deals, opener included, each state is."""
    cards = np.column_stack([states.first_player, states.cards, states.public_card])
    assert (states.current_player == states.first_player).all()
    _, index = np.unique(cards, axis=0, return_inverse=True)
    return index


def is_uniform(index, size):
    counts = np.bincount(index, minlength=size)
    assert len(counts) == size
    return stats.chisquare(counts).pvalue > 1e-3


def test_reset_and_step_deal_all_120_hands_and_both_openers_equally_often():
    env = envs.make("leduc_holdem")
    first, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 30_000))
    assert is_uniform(deal_numbers(first), 2 * NUM_DEALS)
    step = jax.jit(jax.vmap(env.step, in_axes=(0, None)))
    middle, *_, done_early, _ = step(first, jnp.int32(RAISE))
    second, *_, done, _ = step(middle, jnp.int32(FOLD))
    assert not done_early.any()
    assert done.all()
    assert is_uniform(deal_numbers(second), 2 * NUM_DEALS)
    # the next hand does not depend on the last: ranks and openers of both
    before, after = (
        np.asarray(6 * states.first_player + states.cards[:, 0] // 2 * 2 + (states.cards[:, 1] > 2))
        for states in (first, second)
    )
    assert stats.chi2_contingency(np.histogram2d(before, after, 12)[0]).pvalue > 1e-3


@pytest.mark.parametrize("parameter", ["paper ", "infostate", None, 1, ["paper"]])
def test_an_unknown_observation_is_refused_with_the_two_allowed(parameter):
    with pytest.raises(ValueError, match=r"observation.*paper.*information_state") as error:
        envs.make("leduc_holdem", observation=parameter)
    assert repr(parameter) in str(error.value)


def test_render_shows_the_public_card_from_the_second_round_on_and_never_the_opponents():
    env = envs.make("leduc_holdem")
    cards = (2 * QUEEN, 2 * KING), 2 * KING + 1  # Qc, Kc, Kd
    first, second, over = (state_of(line, *cards, 0) for line in ("r", "rc", "rcrf"))
    assert [name in env.render(first, 0) for name in ("Qc", "Kc", "Kd")] == [True, False, False]
    assert [name in env.render(second, 1) for name in ("Qc", "Kc", "Kd")] == [False, True, True]
    assert [name in env.render(over, 0) for name in ("Qc", "Kc", "Kd")] == [True, False, True]
    assert [name in env.render(first) for name in ("Qc", "Kc", "Kd")] == [True, True, True]
    assert "round 1, public card: (Kd) comes" in env.render(first)
    assert "round 2, public card: Kd" in env.render(second)
    assert "+3 -3" in env.render(over, 0)
