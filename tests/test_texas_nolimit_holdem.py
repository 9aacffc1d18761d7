"""No-limit hold'em: who acts, what may be raised, side pots, run-outs, longest hand, observations."""

import dataclasses
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.texas_nolimit_holdem import TexasNolimitHoldem, _max_raises, _rank_hand, _settle_pots

CALL, HALF, POT, ALL_IN, FOLD = range(5)
LETTERS = "chpaf"
NUM_SEEDS = 64
BOARD = "2h 7d 9c Jd 3c"


def cards(text):
    return [4 * "23456789TJQKA".index(name[0]) + "cdhs".index(name[1]) for name in text.split()]


@cache
def dealt(num_agents):
    """First states of `NUM_SEEDS` seeds, stacks of 100, blinds of 1 and 2."""
    env = TexasNolimitHoldem(num_agents)
    return jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), NUM_SEEDS))[0]


@cache
def any_stacks(num_agents, blinds):
    """An env whose functions are right for states with any stacks of up to 1000 chips."""
    return TexasNolimitHoldem(num_agents, stack=tuple(range(1000, 1000 + num_agents)), blinds=blinds)


@cache
def compiled(env):
    @jax.jit
    def act(state, action):
        state, _, reward, _, done, info = env.step_env(state, action)
        return state, env.legal_actions(state), reward, done, info["illegal_action"]

    return act


def action_of(env):
    """Compiled once for each number of players and blinds."""
    return compiled(any_stacks(env.num_agents, env.blinds))


rank_hands = jax.jit(jax.vmap(lambda hand: _rank_hand(list(hand))))


def first_state(env, button=0, hands=None, board=BOARD):
    """A first state of `env` with this button; with chosen cards where `hands` are given."""
    N = env.num_agents
    states = dealt(N)
    state = jax.tree.map(lambda leaf: leaf[int(np.argmax(states.button == button))], states)
    small_blind = button if N == 2 else (button + 1) % N
    posts = np.zeros(N, np.int32)
    posts[small_blind], posts[(small_blind + 1) % N] = env.blinds
    stacks = np.array(env.stacks, np.int32)
    state = state.replace(
        contributions=jnp.array(posts),
        stacks=jnp.array(stacks),
        to_act=jnp.int32((posts < stacks).sum()),
        min_raise=jnp.int32(env.blinds[1]),
        history=jnp.zeros(any_stacks(N, env.blinds).max_actions, jnp.int32),
    )
    if hands is not None:
        hole_cards, shared = np.array([cards(hand) for hand in hands], np.int32), cards(board)
        scores = rank_hands(jnp.array([[*hand, *shared] for hand in hole_cards.tolist()], jnp.int32))
        state = state.replace(hole_cards=jnp.array(hole_cards), board=jnp.array(shared, jnp.int32), scores=scores)
    return state


def play(env, line, **kwargs):
    """Plays a line of `LETTERS`, all legal: states before each action and the last one, its legal actions, reward."""
    state = first_state(env, **kwargs)
    states, legal, reward = [state], np.asarray(env.legal_actions(state)), np.zeros(env.num_agents)
    for letter in line.replace(" ", ""):
        assert legal[LETTERS.index(letter)], (line, letter, legal)
        state, legal, reward, done, illegal = action_of(env)(state, jnp.int32(LETTERS.index(letter)))
        assert not illegal
        assert bool(done) == ~np.any(legal)
        states.append(state)
    return states, np.asarray(legal), np.asarray(reward)


def legal_letters(legal):
    return "".join(letter for letter, allowed in zip(LETTERS, legal, strict=True) if allowed)


# Who acts


@pytest.mark.parametrize(
    ("num_agents", "small_blind", "preflop", "flop"),
    [(2, 0, [0, 1], [1, 0]), (3, 1, [0, 1, 2], [1, 2, 0]), (6, 1, [3, 4, 5, 0, 1, 2], [1, 2, 3, 4, 5, 0])],
)
@pytest.mark.parametrize("button", [0, 1])
def test_blinds_and_order_heads_up_and_with_more_players(num_agents, small_blind, preflop, flop, button):
    """Seats are counted from the button."""
    env = TexasNolimitHoldem(num_agents)
    states, _, _ = play(env, "c" * 4 * num_agents, button=button)
    posts = np.roll(np.asarray(states[0].contributions), -button)
    assert posts.tolist() == [{small_blind: 1, (small_blind + 1) % num_agents: 2}.get(s, 0) for s in range(num_agents)]
    seats = [(int(state.current_player) - button) % num_agents for state in states[:-1]]
    assert seats == preflop + 3 * flop
    rounds = [int(state.betting_round) for state in states[:-1]]
    assert rounds == [street for street in range(4) for _ in range(num_agents)]


def test_resets_post_blinds_out_of_the_stacks_of_their_seats():
    for num_agents in (2, 3, 6):
        states = dealt(num_agents)
        for button in range(num_agents):
            index = int(np.argmax(states.button == button))
            expected = first_state(TexasNolimitHoldem(num_agents), button)
            for name in ("contributions", "stacks", "to_act", "min_raise"):
                assert np.array_equal(getattr(states, name)[index], getattr(expected, name)), name
    env = TexasNolimitHoldem(3, stack=(5, 2, 9))
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), NUM_SEEDS))
    assert (np.asarray(states.stacks) == [5, 2, 9]).all()
    assert set(np.asarray(states.to_act)[np.asarray(states.button) == 2]) == {2}  # seat 1 is all-in with its blind
    assert set(np.asarray(states.to_act)[np.asarray(states.button) != 2]) == {3}


@pytest.mark.parametrize("num_agents", [2, 3, 6])
def test_the_big_blind_may_raise_where_all_others_called(num_agents):
    env = TexasNolimitHoldem(num_agents)
    states, legal, _ = play(env, "c" * (num_agents - 1))
    assert int(states[-1].betting_round) == 0
    assert legal_letters(legal) == "chpa"
    states, _, _ = play(env, "c" * num_agents)
    assert int(states[-1].betting_round) == 1
    states, legal, _ = play(env, "c" * (num_agents - 1) + "p")
    assert int(states[-1].betting_round) == 0
    assert int(states[-1].contributions.max()) == 2 + 2 * num_agents
    assert "f" in legal_letters(legal)


# What may be raised


def test_a_raise_by_a_part_of_the_pot_counts_the_call_first():
    """Pot 5, then a bet of 3: by the pot raises to 14, by half the pot to 3 + floor(11 / 2) = 8."""
    env = TexasNolimitHoldem(6, stack=(100, 4, 100, 100, 100, 100), blinds=(1, 1))
    line = "f cccc c" + "a"  # seat 3 folds; seat 1, all-in with 3, opens the flop
    for letter, paid in (("p", 14), ("h", 8), ("c", 3)):
        states, _, _ = play(env, line + letter)
        assert int(states[-3].contributions.sum()) == 5
        assert int(states[-2].contributions.sum()) == 8
        assert int(states[-1].contributions[2] - states[-2].contributions[2]) == paid


@pytest.mark.parametrize(("line", "paid"), [("h", 3), ("p", 5), ("hh", 6), ("pp", 16), ("cch", 2), ("ccp", 4)])
def test_sizes_of_raises_heads_up(line, paid):
    """Blinds 1 and 2. h: call 1 + half of 4; p: call 1 + 4; hh: call 2 + half of 8; pp: call 4 + 12."""
    states, _, _ = play(TexasNolimitHoldem(), line)
    assert int(states[-1].contributions.sum() - states[-2].contributions.sum()) == paid


def test_a_raise_is_at_least_the_last_full_raise():
    env = TexasNolimitHoldem(3, stack=(100, 12, 300))
    states, legal, _ = play(env, "p")  # seat 0: call 2 + 5, so 5 is the last full raise
    assert int(states[-1].min_raise) == 5
    assert legal_letters(legal) == "caf"  # seat 1, 11 behind, call 6: half the pot is floor(16 / 2) = 8, too much
    states, legal, _ = play(env, "pa")  # to 12: 5 more, just a full raise
    assert int(states[-1].min_raise) == 5
    assert legal_letters(legal) == "chpaf"
    states, legal, _ = play(env, "pah")  # pot 7 + 12 + 2, call 10, half of 31 = 15: to 27
    assert int(states[-1].contributions.max()) == 27
    assert int(states[-1].min_raise) == 15
    states, legal, _ = play(env, "pcc")  # the flop: the big blind again
    assert int(states[-1].min_raise) == 2


def test_half_the_pot_below_the_minimum_raise_is_illegal():
    env = TexasNolimitHoldem(3, stack=(100, 200, 300), blinds=(1, 9))
    _, legal, _ = play(env, "cf")  # pot 19, no call: 9 are enough
    assert legal_letters(legal) == "chpa"
    env = TexasNolimitHoldem(2, stack=(100, 60), blinds=(1, 9))
    states, legal, _ = play(env, "", button=0)  # pot 10, call 8: half of 18 is 9
    assert legal_letters(legal) == "chpaf"
    # a bet of 3 that is short of the big blind leaves 9 as the minimum: half of (4 + 3 + 3) is too little
    state = states[0].replace(min_raise=jnp.int32(10))
    assert legal_letters(env.legal_actions(state)) == "cpaf"


def test_a_raise_that_takes_the_whole_stack_is_an_all_in_only():
    """Seat 0 opens three-handed: half the pot is 4, the pot 7."""
    for stack, letters in ((5, "chaf"), (4, "caf"), (7, "chaf"), (8, "chpaf"), (3, "caf")):
        _, legal, _ = play(TexasNolimitHoldem(3, stack=(stack, 300, 200)), "")
        assert legal_letters(legal) == letters, stack


def test_a_stack_above_the_call_and_below_the_minimum_raise_may_be_all_in_but_no_raise():
    env = TexasNolimitHoldem(3, stack=(100, 10, 300))
    states, legal, _ = play(env, "p")  # to 7; seat 1 has 10: 3 above the call, 5 is the minimum
    assert legal_letters(legal) == "caf"
    states, legal, _ = play(env, "pa")
    assert int(states[-1].contributions.max()) == 10
    assert int(states[-1].min_raise) == 5  # short: the next raise is to 15 at least


def test_a_call_that_takes_the_whole_stack_leaves_call_and_fold():
    env = TexasNolimitHoldem(2, stack=(100, 30))
    for button in (0, 1):
        opens = "a" if button == 0 else "ca"
        states, legal, _ = play(env, opens, button=button)
        assert int(states[-1].current_player) == 1
        assert legal_letters(legal) == "cf"
        states, legal, reward = play(env, opens + "c", button=button)
        assert states[-1].contributions.tolist() == [100, 30]
        assert not legal.any()
        assert abs(reward).max() in (0, 30)


def test_nobody_may_raise_whom_nobody_could_call():
    env = TexasNolimitHoldem(2, stack=(100, 30))
    states, legal, _ = play(env, "a", button=1)  # 30; seat 0 has 100
    assert int(states[-1].current_player) == 0
    assert legal_letters(legal) == "cf"
    env = TexasNolimitHoldem(3, stack=(40, 20, 60))
    _, legal, _ = play(env, "f a")  # seat 0 folded, seat 1 all-in
    assert legal_letters(legal) == "cf"
    _, legal, _ = play(env, "c a")  # seat 0 can still call
    assert legal_letters(legal) == "chaf"  # half of 2 + 20 + 2 + 18 is 21


def test_short_all_in_does_not_reopen_betting():
    """First to act 16, button 100, small blind 19, big blind 100: 19 is no full raise over 16."""
    env = TexasNolimitHoldem(4, stack=(100, 19, 100, 16))
    states, legal, _ = play(env, "acac")
    assert int(states[-1].current_player) == 0
    assert legal_letters(legal) == "cf"
    states, legal, _ = play(env, "acac" + "c")
    assert int(states[-1].betting_round) == 1
    assert states[-1].contributions.tolist() == [19, 19, 19, 16]
    assert legal_letters(legal) == "chpa"
    _, legal, _ = play(env, "aca")  # the big blind has not acted
    assert legal_letters(legal) == "chpaf"


def test_short_all_ins_add_up_to_a_full_raise():
    """Seat 3 raises to 4, by 2; seats 0 and 1 go all-in with 5 and 6."""
    both, one = TexasNolimitHoldem(4, stack=(5, 6, 100, 90)), TexasNolimitHoldem(4, stack=(5, 80, 100, 90))
    states, legal, _ = play(both, "haac")
    assert int(states[-1].current_player) == 3
    assert int(states[-1].min_raise) == 2
    assert legal_letters(legal) == "chpaf"
    states, legal, _ = play(one, "hacc")  # only one of them: seat 3 faces 1
    assert int(states[-1].current_player) == 3
    assert legal_letters(legal) == "cf"


def test_an_all_in_below_the_big_blind_does_not_reopen_to_who_checked():
    """Seat 1 checks, seat 2 is all-in with 1 on the flop, seat 0 calls: seat 1 may call or fold."""
    env = TexasNolimitHoldem(3, stack=(100, 90, 3))
    states, legal, _ = play(env, "ccc" + "ca")
    assert legal_letters(legal) == "chpaf"  # seat 0 has not acted: by half the pot, call 1 + 4
    states, legal, _ = play(env, "ccc" + "cac")
    assert int(states[-1].current_player) == 1
    assert legal_letters(legal) == "cf"


def test_illegal_actions_are_checks_and_folds_when_facing_a_bet():
    env = TexasNolimitHoldem(2, stack=(100, 30))
    facing = play(env, "a")[0][-1]
    _, _, reward, done, illegal = action_of(env)(facing, jnp.int32(POT))
    assert illegal
    assert done
    assert reward.tolist() == [2, -2]
    for action in (FOLD, -1, 5):
        state, *_, done, illegal = action_of(env)(play(env, "c")[0][-1], jnp.int32(action))
        assert illegal
        assert not done
        assert int(state.betting_round) == 1


# Who wins what


def test_three_stacks_all_in():
    env = TexasNolimitHoldem(3, stack=(50, 100, 200))
    for button, line in ((0, "aac"), (1, "acc"), (2, "acc")):
        _, legal, reward = play(env, line, button=button, hands=["Ah Ad", "Kh Kd", "Qh Qd"])
        assert reward.tolist() == [100, 0, -100], (button, line)
        assert not legal.any()


def test_each_side_pot_is_split_among_its_own_best_hands():
    env = TexasNolimitHoldem(4, stack=(100, 20, 60, 100))
    hands = ["Kh Kd", "Ah Ad", "Ks Kc", "Qh Qd"]
    _, _, reward = play(env, "accc", hands=hands)  # 80 to the aces; half of 3 * 40 to each pair of kings, and 2 * 40
    assert reward.tolist() == [60 + 80 - 100, 80 - 20, 60 - 60, -100]


def test_chips_that_nobody_called_go_back():
    _, _, reward = play(TexasNolimitHoldem(2), "af")
    assert reward.tolist() == [2, -2]
    env = TexasNolimitHoldem(2, stack=(100, 30))
    _, _, reward = play(env, "ac", hands=["Qh Qd", "Kh Kd"])
    assert reward.tolist() == [-30, 30]


@pytest.mark.parametrize(
    ("hands", "board", "shares"),
    [
        (["Ah Ad", "Kh Kd", "Qh Qd"], "Ts Js Qs Ks As", [0, 0, 0]),  # the board plays
        (["Td Js", "3s 3d", "2c 2d"], "6c Qc Ad 6s Ac", [0, 0, 0]),  # no third pair: the queen kicks for all
        (["8h 8d", "2c 2d", "Kc Kd"], "3h 4h 5h 6h 7h", [200, -100, -100]),
        (["Ac 9d", "6c Kd", "Kc Kh"], "2h 3d 4s 5c Jd", [-100, 200, -100]),  # the wheel is five high
    ],
)
def test_showdowns_of_three(hands, board, shares):
    _, _, reward = play(TexasNolimitHoldem(3), "acc", hands=hands, board=board)
    np.testing.assert_allclose(reward, shares, atol=1e-5)


def settle_chip_by_chip(contributions, scores):
    """Net chips in exact fractions; a chip at a height that no live player reaches belongs to the highest layer."""
    live = [seat for seat, score in enumerate(scores) if score >= 0]
    highest = max(contributions[seat] for seat in live)
    net = [Fraction(-chips) for chips in contributions]
    for height in range(1, highest + 1):
        chips = sum(chips >= height for chips in contributions)
        if height == highest:
            chips += sum(max(chips - highest, 0) for chips in contributions)
        reach = [seat for seat in live if contributions[seat] >= height]
        best = max(scores[seat] for seat in reach)
        winners = [seat for seat in reach if scores[seat] == best]
        for seat in winners:
            net[seat] += Fraction(chips, len(winners))
    return net


@pytest.mark.parametrize("num_agents", [2, 3, 6])
def test_pots_are_settled_as_chip_by_chip(num_agents):
    rng = np.random.default_rng(num_agents)
    B = 300
    contributions = rng.integers(1, 9, (B, num_agents), dtype=np.int32) * rng.integers(1, 5, (B, 1), dtype=np.int32)
    scores = rng.integers(-2, 3, (B, num_agents), dtype=np.int32)
    scores[np.arange(B), rng.integers(0, num_agents, B)] = rng.integers(0, 3, B)  # somebody is live
    settled = jax.jit(jax.vmap(lambda paid, hands: _settle_pots(paid, hands, num_agents)))(contributions, scores)
    expected = [settle_chip_by_chip(*pair) for pair in zip(contributions.tolist(), scores.tolist(), strict=True)]
    np.testing.assert_allclose(settled, np.array(expected, float), atol=1e-5)


def test_the_top_layer_that_only_folded_players_reach_belongs_to_the_layer_below():
    net = _settle_pots(jnp.array([10, 50, 10, 4], jnp.int32), jnp.array([5, -1, 7, 9], jnp.int32), 2)
    # 16 to seat 3; 3 * 6 + 40 to seat 2
    assert net.tolist() == [-10, -50, 58 - 10, 16 - 4]


# The board runs out


@pytest.mark.parametrize("line", ["ac", "ccac", "cc cc ac", "cc cc cc ac"])
def test_the_board_runs_out_in_the_same_step_once_all_are_in(line):
    env = TexasNolimitHoldem(2)
    states, legal, reward = play(env, line, hands=["Ah Ad", "Kh Kd"])
    assert not legal.any()
    assert bool(states[-1].finished)
    assert not any(bool(state.finished) for state in states[:-1])
    assert reward.tolist() == [100, -100]
    assert int(states[-1].betting_round) == 3
    seen = np.flatnonzero(np.asarray(env.observe(states[-1], 1))[:52])
    assert sorted(seen) == sorted(cards("Kh Kd " + BOARD))


def test_a_fold_before_the_river_shows_no_more_of_the_board():
    env = TexasNolimitHoldem(2)
    states, _, _ = play(env, "cchf", hands=["Ah Ad", "Kh Kd"])
    assert int(states[-1].betting_round) == 1
    seen = np.flatnonzero(np.asarray(env.observe(states[-1], 1))[:52])
    assert sorted(seen) == sorted(cards("Kh Kd 2h 7d 9c"))


def test_a_lone_player_with_chips_is_asked_only_to_call():
    env = TexasNolimitHoldem(3, stack=(30, 20, 100))
    states, legal, _ = play(env, "ac", hands=["Ah Ad", "Kh Kd", "Qh Qd"])
    assert int(states[-1].current_player) == 2
    assert legal_letters(legal) == "cf"
    for letter, rewards in (("c", [50, -20, -30]), ("f", [22, -20, -2])):
        _, legal, reward = play(env, "ac" + letter, hands=["Ah Ad", "Kh Kd", "Qh Qd"])
        assert not legal.any()
        assert reward.tolist() == rewards


def test_a_big_blind_that_has_matched_two_all_ins_is_not_asked():
    env = TexasNolimitHoldem(3, stack=(2, 2, 100))
    states, _, reward = play(env, "cc", hands=["Ah Ad", "Kh Kd", "Qh Qd"])
    assert bool(states[-1].finished)
    assert int(states[-1].betting_round) == 3
    assert reward.tolist() == [4, -2, -2]


def test_a_big_blind_that_is_all_in_can_only_be_called():
    env = TexasNolimitHoldem(2, stack=(100, 2))
    assert legal_letters(play(env, "")[1]) == "cf"
    assert play(env, "c", hands=["Ah Ad", "Kh Kd"])[2].tolist() == [2, -2]
    assert play(env, "f", hands=["Ah Ad", "Kh Kd"])[2].tolist() == [-1, 1]


# Whole hands


def test_the_longest_hand_of_two_has_14_actions():
    env = TexasNolimitHoldem()
    assert env.max_actions == 14
    state = jax.tree.map(lambda leaf: leaf[0], dealt(2))
    assert state.history.shape == (14,)
    for number, letter in enumerate("cc" * 3 + "c" + "hhhhh" + "a" + "c"):
        assert not state.finished
        assert (np.asarray(state.history) > 0).sum() == number
        state, _, _, _, illegal = compiled(env)(state, jnp.int32(LETTERS.index(letter)))
        assert not illegal
    assert state.finished
    assert (np.asarray(state.history) > 0).all()


@pytest.mark.parametrize(
    ("stacks", "big_blind", "raises"),
    [
        ((100, 100), 2, 6),
        ((64, 64), 2, 5),
        ((65, 65), 2, 6),
        ((2, 100), 2, 0),
        ((3, 100), 2, 1),
        ((5, 100), 2, 2),
        ((50, 100, 200), 2, 7),
        ((3, 4, 5, 5), 2, 4),
    ],
)
def test_bound_of_the_number_of_raises(stacks, big_blind, raises):
    assert _max_raises(stacks, big_blind) == raises


RANDOM_STACKS = [
    (2, (37, 180)),
    (3, (40, 2, 77)),
    (6, (2, 7, 30, 100, 15, 60)),
    (10, (40, 2, 3, 100, 90, 77, 13, 20, 5, 64)),
]


@pytest.mark.parametrize(("num_agents", "stack"), RANDOM_STACKS)
def test_random_play_conserves_chips_and_ends_within_the_bound(num_agents, stack):
    env = TexasNolimitHoldem(num_agents, stack=stack)
    weights = jnp.array([4, 2, 0.5, 0.4, 0.3])

    def hand(key):
        deal_key, play_key = jax.random.split(key)

        def turn(state, key):
            legal = env.legal_actions(state)
            action = jnp.where(legal, weights * jax.random.uniform(key, (5,)), -1.0).argmax()
            state, _, reward, _, _, _ = env.step_env(state, action)
            return state, (reward, state.contributions, legal)

        return jax.lax.scan(turn, env.reset(deal_key)[0], jax.random.split(play_key, env.max_actions))

    states, (rewards, paid, legal) = jax.jit(jax.vmap(hand))(jax.random.split(jax.random.key(2), 300))
    stacks = np.array(env.stacks)
    assert np.asarray(states.finished).all()
    assert (np.asarray(states.timestep) <= env.max_actions).all()
    assert (np.diff(np.asarray(paid), axis=1) >= 0).all()
    assert (np.asarray(paid) <= stacks).all()
    np.testing.assert_allclose(np.asarray(rewards).sum(-1), 0, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(rewards).sum(1), states.returns)
    paid = np.asarray(states.contributions)
    ranks = np.where(states.folded, -1, states.scores)
    expected = [settle_chip_by_chip(*pair) for pair in zip(paid.tolist(), ranks.tolist(), strict=True)]
    np.testing.assert_allclose(states.returns, np.array(expected, float), atol=1e-4)
    assert np.asarray(legal).any((0, 1)).all()  # every action was legal somewhere
    # what a hand cost can be read out of its history
    packed = np.asarray(states.history)
    seats = ((packed >> 5) % 16 + np.asarray(states.button)[:, None]) % num_agents
    for seat in range(num_agents):
        bets = np.where((packed > 0) & (seats == seat), packed >> 9, 0).sum(-1)
        assert set(paid[:, seat] - bets) <= {0, 1, 2}


# What players see


def test_paper_observation_is_cards_own_chips_and_most_chips():
    env = TexasNolimitHoldem(2)
    states, _, _ = play(env, "hcp", hands=["Ah Ad", "Kh Kd"])
    for player, own, hole in ((0, 4, "Ah Ad"), (1, 12, "Kh Kd")):
        expected = np.zeros(54, np.float32)
        expected[cards(hole + " 2h 7d 9c")] = 1
        expected[52:] = own, 12
        np.testing.assert_array_equal(env.observe(states[-1], player), expected)


def test_information_state_is_cards_by_street_position_stacks_and_all_bets():
    N = 3
    states, _, _ = play(TexasNolimitHoldem(N, stack=(30, 20, 100)), "pcf h", hands=["Ah Ad", "Kh Kd", "Qh Qd"])
    env = dataclasses.replace(any_stacks(N, (1, 2)), observation="information_state")
    assert env.obs_shape == (52 * 4 + 2 * N + env.max_actions * (10 + N),)
    for player in range(N):
        expected = np.zeros(52 * 4 + 2 * N, np.float32)
        expected[cards(["Ah Ad", "Kh Kd", "Qh Qd"][player])] = 1
        expected[[52 + card for card in cards("2h 7d 9c")]] = 1
        expected[208 + (player - 1) % N] = 1
        expected[208 + N : 208 + 2 * N] = np.roll([15, 10, 50], -player)
        slots = np.zeros((env.max_actions, 10 + N), np.float32)
        bets = [(7, POT, 0, 0), (6, CALL, 0, 1), (0, FOLD, 0, 2), (8, HALF, 1, 1)]  # pot 16
        for slot, (chips, action, betting_round, seat) in enumerate(bets):
            slots[slot, 0] = chips / 2
            slots[slot, [1 + action, 6 + betting_round, 10 + (seat - player) % N]] = 1
        seen = np.asarray(env.information_state(states[-1], player))
        np.testing.assert_array_equal(seen, np.concatenate([expected, slots.reshape(-1)]))
        np.testing.assert_array_equal(seen, env.observe(states[-1], player))


def test_nothing_that_a_player_sees_depends_on_hidden_cards():
    """10,000 states of three players, the cards that seat 1 does not see permuted."""
    env, B, player = TexasNolimitHoldem(3, stack=(40, 60, 100)), 10_000, 1

    def compare(key):
        deal_key, shuffle_key, play_key, length_key = jax.random.split(key, 4)
        length = jax.random.randint(length_key, (), 0, 9)

        def turn(state, step):
            number, key = step
            legal = env.legal_actions(state)
            action = jnp.where(legal, jnp.array([4, 1, 1, 0.3, 0.5]) * jax.random.uniform(key, (5,)), -1.0).argmax()
            played = env.step_env(state, action)[0]
            return jax.tree.map(lambda new, old: jnp.where(number < length, new, old), played, state), None

        start = env.reset(deal_key)[0].replace(key=None)
        start = start.replace(key=jnp.zeros((), jnp.int32))
        state, _ = jax.lax.scan(turn, start, (jnp.arange(8), jax.random.split(play_key, 8)))
        shown = jnp.arange(5) < jnp.array([0, 3, 4, 5])[state.betting_round]
        deck = jnp.arange(52)
        known = (deck[:, None] == jnp.where(shown, state.board, -1)[None]).any(1)
        known |= (deck[:, None] == state.hole_cards[player][None]).any(1)
        order = jnp.argsort(jnp.where(known, 2.0, jax.random.uniform(shuffle_key, (52,))))
        permuted = jnp.where(known, deck, order[jnp.cumsum(~known) - 1]).astype(jnp.int32)
        hole_cards, board = permuted[state.hole_cards], permuted[state.board]
        scores = jnp.stack([_rank_hand([*hole_cards[seat], *board]) for seat in range(3)])
        other = state.replace(hole_cards=hole_cards, board=board, scores=scores)
        same = [
            (look(state) == look(other)).all()
            for look in (
                env.legal_actions,
                lambda state: env.observe(state, player),
                lambda state: env.information_state(state, player),
            )
        ]
        return jnp.stack(same).all(), (hole_cards != state.hole_cards).any()

    same, differs = jax.jit(jax.vmap(compare))(jax.random.split(jax.random.key(3), B))
    assert same.all()
    assert differs.mean() > 0.9


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"num_agents": 11}, "num_agents=11.*2 to 10"),
        ({"num_agents": True}, "num_agents=True.*2 to 10"),
        ({"stack": 1}, "stack=1: .*2"),
        ({"stack": 10.0}, "stack=10.0: .*2"),
        ({"stack": (100, 1)}, r"stack=\(100, 1\): 2 integers from 2"),
        ({"stack": (100, 100, 100)}, r"stack=.*2 integers"),
        ({"stack": 2, "blinds": (2, 2)}, "stack=2: .*3"),
        ({"stack": 1_000_001}, "stack=1000001.*1000000"),
        ({"blinds": (3, 2)}, r"blinds=\(3, 2\)"),
        ({"blinds": 2}, "blinds=2"),
        ({"observation": "cards"}, "observation='cards'.*'paper'"),
    ],
)
def test_bad_parameters_are_refused_with_what_is_allowed(parameters, told):
    with pytest.raises(ValueError, match=told):
        TexasNolimitHoldem(**parameters)


def test_a_list_of_stacks_becomes_a_tuple_and_deals_are_too_many():
    env = TexasNolimitHoldem(2, stack=[50, 60])
    assert env.stacks == env.stack == (50, 60)
    assert hash(env) == hash(TexasNolimitHoldem(2, stack=(50, 60)))
    with pytest.raises(ValueError, match=r"5\.56e\+13"):
        env.deals()


def test_render_shows_own_cards_the_board_dealt_and_all_bets():
    env = TexasNolimitHoldem(2)
    states, _, _ = play(env, "hcpf", hands=["Ah Ad", "Kh Kd"])
    own, every = env.render(states[-2], 1), env.render(states[-2])
    assert [name in own for name in ("Ah", "Kd", "9c", "Jd")] == [False, True, True, False]
    assert [name in every for name in ("Ah", "Kd", "9c", "Jd")] == [True] * 4
    assert "preflop: seat 0 half pot 3, seat 1 check or call 2" in own
    assert "flop: seat 1 pot 8" in own
    assert "seat 1: Kh Kd, 12 in the pot, 88 behind" in own
    assert "over, returns -4 +4" in env.render(states[-1], 1)


def test_who_folded_is_no_winner_where_the_others_tie_and_nobody_wins_a_chip():
    env = TexasNolimitHoldem(num_agents=3)
    state, _ = env.reset(jax.random.key(0))
    state = state.replace(scores=jnp.full(3, 7, jnp.int32))
    step = jax.jit(env.step_env)
    button = int(state.button)
    for action in (4, 0, 0, 0, 0, 0, 0, 0, 0):  # the button folds, the blinds call and check down
        state, _, reward, _, done, info = step(state, jnp.int32(action))
    assert done
    np.testing.assert_array_equal(reward, 0)
    np.testing.assert_array_equal(info["winner"], [seat != button for seat in range(3)])
