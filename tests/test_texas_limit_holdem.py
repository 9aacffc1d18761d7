"""Limit hold'em: who acts, what may be bet, who wins what, longest hands, what players see, how hands are dealt."""

from fractions import Fraction
from functools import cache, partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import envs
from envs.texas_limit_holdem import TexasLimitHoldem, _rank_hand

CALL, RAISE, FOLD, CHECK = range(4)
LETTERS = "crfk"
BOARD = "2h 7d 9c Jd 3c"
SHOWN = (0, 3, 4, 5)  # board cards in each round
# Programs run a few times only here: nearly all the time goes into compiling, and half of that into optimising.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def cards(text):
    return [4 * "23456789TJQKA".index(name[0]) + "cdhs".index(name[1]) for name in text.split()]


@cache
def dealt(num_agents, num_rounds=4):
    """First states of 150,000 seeds, for two and ten players with the whole board; else of 1,000. Blinds 1 and 2."""
    num_hands = 150_000 if num_agents in (2, 10) and num_rounds == 4 else 1_000
    keys = jax.vmap(jax.random.key)(jnp.arange(num_hands))
    states, _ = jit(jax.vmap(TexasLimitHoldem(num_agents, num_rounds).reset))(keys)
    return jax.tree.map(np.asarray, states.replace(key=None)).replace(key=states.key)


def first_states(env, num_hands):
    """First states of `env` with the deals of `dealt`."""
    states = jax.tree.map(lambda leaf: leaf[:num_hands], dealt(env.num_agents, env.num_rounds))
    small, big = env.blinds
    return states.replace(
        contributions=np.array([0, small, big], np.int32)[states.contributions],
        history=np.zeros((num_hands, env.num_rounds * env.round_slots), np.int8),
    )


@cache
def compiled(env):
    @jit
    def act(state, action):
        state, _, reward, _, done, info = env.step_env(state, action)
        return state, env.legal_actions(state), reward, done, info["illegal_action"]

    return act


rank_hands = jit(_rank_hand)


def first_state(env, button=0, hands=None, board=BOARD):
    """A first state with this button; with chosen cards where `hands` are given."""
    states = first_states(env, 100)
    state = jax.tree.map(lambda leaf: leaf[int(np.argmax(states.button == button))], states)
    if hands is None:
        return state
    hole_cards, shared = np.array([cards(hand) for hand in hands], np.int32), np.array(cards(board), np.int32)
    scores = rank_hands(np.concatenate([hole_cards, np.tile(shared, (env.num_agents, 1))], axis=1).T)
    return state.replace(hole_cards=hole_cards, board=shared, scores=np.asarray(scores))


def play(env, line, **kwargs):
    """Plays a line of `LETTERS`, all legal: states before each action and the last one, its legal actions, reward."""
    state = first_state(env, **kwargs)
    states, legal, reward = [state], np.asarray(env.legal_actions(state)), np.zeros(env.num_agents)
    for letter in line.replace(" ", ""):
        assert legal[LETTERS.index(letter)], (line, letter, legal)
        state, legal, reward, done, illegal = compiled(env)(state, jnp.int32(LETTERS.index(letter)))
        assert not illegal
        assert bool(done) == ~np.any(legal)
        states.append(state)
    return states, np.asarray(legal), np.asarray(reward)


def legal_letters(legal):
    return "".join(letter for letter, allowed in zip(LETTERS, legal, strict=True) if allowed)


def longest(env):
    """Most actions of a hand by the rules: all act, and all but one after each raise."""
    return sum(env.num_agents + limit * (env.num_agents - 1) for limit in env.max_raises[: env.num_rounds])


class Hands(NamedTuple):
    """Random hands: T actions each, E hands; a hand that is over plays on without effect."""

    states: object  # [T + 1, E, ...]
    actions: np.ndarray  # [T, E]
    rewards: np.ndarray  # [T, E, N]
    legal: np.ndarray  # [T + 1, E, A]


def random_play(env, states, weights=(4, 2, 0.4, 4)):
    """Plays out the hands of `states` [E]; of the legal actions those with more weight are likelier."""

    def turn(state, key):
        legal = env.legal_actions(state)
        action = jnp.where(legal, jnp.array(weights) * jax.random.uniform(key, (4,)), -1.0).argmax().astype(jnp.int32)
        after, _, reward, _, _, _ = env.step_env(state, action)
        return after.replace(key=None), (after.replace(key=None), action, reward, env.legal_actions(after))

    @jit
    @jax.vmap
    def hand(state, key):
        state = state.replace(key=None)
        _, record = jax.lax.scan(turn, state, jax.random.split(key, longest(env)))
        return state, env.legal_actions(state), record

    first, first_legal, record = hand(states, jax.random.split(jax.random.key(1), len(states.button)))
    states, actions, rewards, legal = jax.tree.map(lambda leaf: np.asarray(leaf).swapaxes(0, 1), record)
    states, legal = jax.tree.map(
        lambda one, rest: np.concatenate([np.asarray(one)[None], rest]), (first, first_legal), (states, legal)
    )
    return Hands(states, actions, rewards, legal)


@cache
def random_hands(env):
    return random_play(env, first_states(env, 1_000))


# Who acts, what may be bet


@pytest.mark.parametrize(
    ("num_agents", "small_blind", "preflop", "flop"),
    [(2, 0, [0, 1], [1, 0]), (3, 1, [0, 1, 2], [1, 2, 0]), (6, 1, [3, 4, 5, 0, 1, 2], [1, 2, 3, 4, 5, 0])],
)
@pytest.mark.parametrize("button", [0, 1])
def test_blinds_and_order_heads_up_and_with_more_players(num_agents, small_blind, preflop, flop, button):
    """Seats are counted from the button."""
    env = TexasLimitHoldem(num_agents)
    line = "c" * (num_agents - 1) + "k" + "k" * 3 * num_agents
    states, _, _ = play(env, line, button=button)
    posts = np.roll(np.asarray(states[0].contributions), -button)
    assert posts.tolist() == [{small_blind: 1, (small_blind + 1) % num_agents: 2}.get(s, 0) for s in range(num_agents)]
    seats = [(int(state.current_player) - button) % num_agents for state in states[:-1]]
    assert seats == preflop + 3 * flop
    assert [int(state.betting_round) for state in states[:-1]] == list(np.repeat(range(4), num_agents))
    assert bool(states[-1].finished)


def test_reset_posts_the_blinds_of_the_parameters():
    env = TexasLimitHoldem(3, num_rounds=3, max_raises=(3, 1, 4), blinds=(3, 7))
    states, _ = jit(jax.vmap(env.reset))(jax.vmap(jax.random.key)(jnp.arange(20)))
    expected = first_states(env, 20)
    assert set(states.contributions.ravel().tolist()) == {0, 3, 7}
    for state, other in zip(*(jax.tree.leaves(given.replace(key=None)) for given in (states, expected)), strict=True):
        assert np.array_equal(state, other)
        assert state.dtype == other.dtype


def by_the_rules(env, button, actions):
    """Of one hand, before each action and after the last: player to act, round, chips by seat, live seats, legal
    letters, counted by rules written out in another way: who still owes an action is a queue of seats."""
    N = env.num_agents
    left = [(button + 1 + seat) % N for seat in range(N)]  # left of the button first
    order = left if N > 2 else left[::-1]
    chips, live = [0] * N, set(range(N))
    chips[order[0]], chips[order[1]] = env.blinds
    queue, betting_round, raises, player = order[2:] + order[:2], 0, 0, None
    for action in [*actions, None]:
        over = not queue
        player = player if over else queue.pop(0)
        facing = max(chips) > chips[player]
        legal = "" if over else "c" * facing + "r" * (raises < env.max_raises[betting_round]) + "fk"[not facing]
        yield player, betting_round, list(chips), set(live), legal
        if action is None or over:
            return
        assert LETTERS[action] in legal
        if action in (CALL, RAISE):
            chips[player] = max(chips)
        if action == RAISE:
            raises += 1
            chips[player] += env.blinds[1] * (1 + (betting_round >= 2))
            place = left.index(player)
            queue = [seat for seat in left[place + 1 :] + left[:place] if seat in live]
        if action == FOLD:
            live.remove(player)
            if len(live) == 1:
                queue = []
        if not queue and len(live) > 1 and betting_round < env.num_rounds - 1:
            betting_round, raises, queue = betting_round + 1, 0, [seat for seat in left if seat in live]


@pytest.mark.parametrize(
    "env",
    [
        TexasLimitHoldem(2),
        TexasLimitHoldem(3, num_rounds=3, max_raises=(3, 1, 4), blinds=(3, 7)),
        TexasLimitHoldem(6),
        TexasLimitHoldem(10),
    ],
    ids=lambda env: str(env.num_agents),
)
def test_random_hands_are_played_by_the_rules_and_chips_are_conserved(env):
    hands = random_hands(env)
    states = hands.states
    assert states.finished[-1].all()
    np.testing.assert_allclose(hands.rewards.sum(-1), 0, atol=1e-5)
    np.testing.assert_array_equal(hands.rewards.sum(0), states.returns[-1])
    assert hands.legal[:-1].any((0, 1)).all()
    for e in range(200):
        num_actions = int(states.timestep[-1, e])
        actions = hands.actions[:num_actions, e].tolist()
        for t, (player, betting_round, chips, live, legal) in enumerate(
            by_the_rules(env, int(states.button[0, e]), actions)
        ):
            assert states.current_player[t, e] == player
            assert states.betting_round[t, e] == betting_round
            assert states.contributions[t, e].tolist() == chips
            assert set(np.flatnonzero(~states.folded[t, e])) == live
            assert legal_letters(hands.legal[t, e]) == legal
            assert states.finished[t, e] == (not legal)
        assert t == num_actions
        assert not hands.rewards[: num_actions - 1, e].any()
        best = max(states.scores[0, e, seat] for seat in live)
        winners = [seat for seat in live if states.scores[0, e, seat] == best]
        net = [Fraction(sum(chips) * (seat in winners), len(winners)) - chips[seat] for seat in range(env.num_agents)]
        np.testing.assert_allclose(states.returns[-1, e], np.array(net, float) / env.blinds[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_agents", [2, 3, 6])
def test_the_big_blind_may_check_or_raise_where_all_others_called(num_agents):
    env = TexasLimitHoldem(num_agents)
    calls = "c" * (num_agents - 1)
    states, legal, _ = play(env, calls)
    assert int(states[-1].betting_round) == 0
    assert int(states[-1].current_player) == (1 if num_agents == 2 else 2)
    assert legal_letters(legal) == "rk"
    assert int(play(env, calls + "k")[0][-1].betting_round) == 1
    states, legal, _ = play(env, calls + "r")
    assert int(states[-1].betting_round) == 0
    assert legal_letters(legal) == "crf"
    assert int(play(env, calls + "r" + calls)[0][-1].betting_round) == 1


@pytest.mark.parametrize(("blinds", "unit"), [((1, 2), 2), ((5, 10), 10), ((2, 2), 2)])
def test_bets_are_one_big_blind_in_two_rounds_then_two(blinds, unit):
    env = TexasLimitHoldem(2, blinds=blinds)
    states, _, reward = play(env, "rc rc rc rf", hands=["Ah Ad", "Kh Kd"])
    paid = [int(state.contributions.max()) for state in states]
    assert paid == [unit * big_blinds for big_blinds in (1, 2, 2, 3, 3, 5, 5, 7, 7)]
    assert reward.tolist() == [-5, 5]  # in big blinds; seat 1 bet the river, seat 0 folded


def test_each_round_has_its_own_cap_and_the_big_blind_does_not_count():
    env = TexasLimitHoldem(2, max_raises=(1, 2, 3, 4))
    states, legal, _ = play(env, "")
    for betting_round, limit in enumerate(env.max_raises):
        line = "".join("r" * cap + "c" for cap in env.max_raises[:betting_round])
        for raises in range(limit + 1):
            states, legal, _ = play(env, line + "r" * raises)
            assert int(states[-1].betting_round) == betting_round
            assert ("r" in legal_letters(legal)) == (raises < limit)
            assert states[-1].raises.tolist()[betting_round] == raises


@pytest.mark.parametrize(("max_raises", "chips"), [((3, 4, 4, 4), 48), ((4, 4, 4, 4), 50), ((1, 1, 1, 1), 14)])
def test_most_chips_that_a_player_can_lose_heads_up(max_raises, chips):
    env = TexasLimitHoldem(2, max_raises=max_raises)
    line = "".join("r" * limit + "c" for limit in max_raises)
    states, _, reward = play(env, line, hands=["Kh Kd", "Ah Ad"])
    assert states[-1].contributions.tolist() == [chips, chips]
    assert reward.tolist() == [-chips / 2, chips / 2]


def test_nobody_loses_more_than_24_big_blinds_in_the_game_of_the_computer_poker_competition():
    env = TexasLimitHoldem(2, max_raises=(3, 4, 4, 4))
    hands = random_play(env, first_states(env, 1_000), weights=(1, 20, 0.01, 1))
    assert hands.states.finished[-1].all()
    assert np.abs(hands.states.returns).max() == 24
    assert hands.states.contributions.max() == 48


@pytest.mark.parametrize(
    ("env", "actions"),
    [
        (TexasLimitHoldem(2), 24),
        (TexasLimitHoldem(3), 4 * (3 + 4 * 2)),
        (TexasLimitHoldem(10), 184),
        (TexasLimitHoldem(2, max_raises=(3, 4, 4, 4)), 23),
        (TexasLimitHoldem(2, num_rounds=2), 12),
    ],
)
def test_the_longest_hand_is_reached(env, actions):
    """All call; the last to act raises."""
    state, legal, number = first_state(env), env.legal_actions(first_state(env)), 0
    while legal.any():
        assert int((state.history > 0).sum()) == number
        action = RAISE if int(state.to_act) == 1 and legal[RAISE] else CALL if legal[CALL] else CHECK
        state, legal, _, _, illegal = compiled(env)(state, jnp.int32(action))
        assert not illegal
        number += 1
    assert number == int(state.timestep) == actions == longest(env)
    assert int((state.history > 0).sum()) == actions
    assert bool(state.finished)


def test_a_raise_beyond_the_cap_and_a_check_facing_a_bet_fold():
    env = TexasLimitHoldem(3)
    for line, actions in (("rrrr", (RAISE, CHECK, -1, 4)), ("", (CHECK, 7))):
        states, legal, _ = play(env, line)
        assert legal_letters(legal) == ("cf" if line else "crf")
        folded, *_ = compiled(env)(states[-1], jnp.int32(FOLD))
        for action in actions:
            state, _, _, _, illegal = compiled(env)(states[-1], jnp.int32(action))
            assert illegal
            assert all(
                np.array_equal(getattr(state, name), getattr(folded, name))
                for name in ("folded", "contributions", "history", "current_player", "to_act")
            )
            assert state.folded.tolist() == folded.folded.tolist()
            assert int(folded.folded.sum()) == 1


def test_call_and_fold_facing_no_bet_check():
    env = TexasLimitHoldem(2)
    before = play(env, "ck")[0][-1]
    checked, *_ = compiled(env)(before, jnp.int32(CHECK))
    for action in (CALL, FOLD, -1, 4):
        state, _, _, done, illegal = compiled(env)(before, jnp.int32(action))
        assert illegal
        assert not done
        assert np.array_equal(state.history, checked.history)
        assert np.array_equal(state.contributions, checked.contributions)


# Who wins what


def test_the_last_one_in_wins_the_pot_whatever_he_holds():
    env = TexasLimitHoldem(3)
    hands = ["Ah Ad", "Kh Kd", "4h 5d"]
    states, legal, reward = play(env, "rff", hands=hands[::-1])
    assert reward.tolist() == [1.5, -0.5, -1]
    assert not legal.any()
    assert int(states[-1].betting_round) == 0
    states, _, reward = play(env, "ccr cc rff", hands=hands)
    assert int(states[-1].current_player) == 0
    assert reward.tolist() == [-2, 4, -2]


def test_a_folded_player_is_not_asked_again_and_wins_nothing():
    env = TexasLimitHoldem(3)
    states, _, reward = play(env, "rcf kk kk kr c", hands=["4h 5d", "Kh Kd", "Ah Ad"])
    assert [int(state.current_player) for state in states[3:-1]] == [1, 0, 1, 0, 1, 0, 1]
    assert reward.tolist() == [-4, 5, -1]


@pytest.mark.parametrize(
    ("hands", "board", "rewards"),
    [
        (["2h 3d", "2c 2d", "3c 4d"], "Ts Js Qs Ks As", [0, 0, 0]),  # the board plays
        (["Td Js", "3s 3d", "2c 2d"], "6c Qc Ad 6s Ac", [0, 0, 0]),  # the third pair does not count, the queen kicks
        (["8h 8d", "2c 2d", "Kc Kd"], "3h 4h 5h 6h 7h", [2, -1, -1]),  # eight-high straight flush
        (["Ac 9d", "6c Kd", "Kc Kh"], "2h 3d 4s 5c Jd", [-1, 2, -1]),  # the wheel is five high
        (["Ac 9d", "Qc Kd", "Kc Kh"], "2h 3d 4s 5c Jd", [2, -1, -1]),  # and a straight
        (["Ah 4d", "Ac 4c", "Kc Kh"], "Ad 3d 7s 9c Jd", [0.5, 0.5, -1]),  # a pot of 6, 3 each
    ],
)
def test_showdowns_of_three(hands, board, rewards):
    _, _, reward = play(TexasLimitHoldem(3), "cck" + "kkk" * 3, hands=hands, board=board)
    np.testing.assert_allclose(reward, rewards, atol=1e-6)


def test_three_winners_split_what_three_others_paid():
    hands = ["2c 3d", "2d 4d", "3c 4c", "5c 5d", "6c 6d", "7c 7d"]
    env = TexasLimitHoldem(6)
    line = "cccccr fffcc" + "kkk" * 3  # seats 3, 4 and 5 call the big blind and fold to its raise
    states, _, reward = play(env, line, hands=hands, board="Ts Js Qs Ks As")
    assert states[-1].contributions.tolist() == [4, 4, 4, 2, 2, 2]
    np.testing.assert_allclose(reward, [1, 1, 1, -1, -1, -1], atol=1e-6)


def test_scores_are_those_of_the_hole_cards_with_the_whole_board():
    for env in (TexasLimitHoldem(2), TexasLimitHoldem(10), TexasLimitHoldem(2, 2), TexasLimitHoldem(3, 3)):
        states = first_states(env, 1_000)
        for seat in range(env.num_agents):
            seven = np.concatenate([states.hole_cards[:, seat], states.board], axis=1)
            assert seven.shape[1] == 2 + SHOWN[env.num_rounds - 1]
            assert np.array_equal(states.scores[:, seat], rank_hands(seven.T))


def test_flop_holdem_ends_after_two_rounds_with_the_best_five_cards():
    env = TexasLimitHoldem(2, num_rounds=2)
    states, legal, reward = play(env, "ck rc", hands=["Ah Ad", "2c 2d"], board="2h 7d 9c")
    assert not legal.any()
    assert reward.tolist() == [-2, 2]
    assert [int(state.betting_round) for state in states] == [0, 0, 1, 1, 1]
    _, _, reward = play(env, "ck kk", hands=["Ah 3d", "Ad 3c"], board="2h 7d 9c")
    assert reward.tolist() == [0, 0]
    assert env.obs_shape == (72 + 2,)
    observation = env.observe(states[-1], 0)
    assert np.flatnonzero(observation).tolist() == sorted([*cards("Ah Ad 2h 7d 9c"), 52, 58, 72])
    assert env == TexasLimitHoldem(2, num_rounds=2, max_raises=[4] * 4)
    shorter = TexasLimitHoldem(2, num_rounds=2, max_raises=(4, 2))
    assert np.array_equal(shorter.legal_actions(play(shorter, "ck rr")[0][-1]), [True, False, True, False])


# What players see


def ones_at(size, *places):
    row = np.zeros(size, np.float32)
    row[list(places)] = 1
    return row


@pytest.mark.parametrize(
    ("line", "shown", "raises"),
    [
        ("", "", [0]),
        ("rr", "", [2]),
        ("rrrr", "", [4]),
        ("ccr", "", [1]),
        ("cck", "2h 7d 9c", [0, 0]),
        ("rcc r", "2h 7d 9c", [1, 1]),
        ("rcc kkk rr", "2h 7d 9c Jd", [1, 0, 2]),
        ("rcc kkk kkk rrr", "2h 7d 9c Jd 3c", [1, 0, 0, 3]),
        ("rff", "", [1]),
    ],
)
@pytest.mark.parametrize("button", [0, 2])
def test_paper_observation_is_cards_raise_counts_and_position(line, shown, raises, button):
    """0-51 cards | 52-71 raises by round | 72-74 seats left of the small blind"""
    env, hands = TexasLimitHoldem(3), ["Ah Ad", "Kh Kd", "4h 5d"]
    state = play(env, line, button=button, hands=hands)[0][-1]
    assert env.obs_shape == (75,)
    for player in range(3):
        counts = [52 + 5 * betting_round + count for betting_round, count in enumerate(raises)]
        position = 72 + (player - button - 1) % 3
        expected = ones_at(75, *cards(f"{hands[player]} {shown}"), *counts, position)
        np.testing.assert_array_equal(env.observe(state, player), expected)


def test_position_of_the_paper_observation_heads_up():
    env = TexasLimitHoldem(2)
    for button in (0, 1):
        state = first_state(env, button)
        for player in (0, 1):
            assert env.observe(state, player)[72:].tolist() == ([1, 0] if player == button else [0, 1])


def test_information_state_is_cards_by_street_position_and_actions_by_round():
    """0-51 hole cards | 52-207 flop, turn, river | 208-210 position | 4 rounds x 11 slots x call, raise, fold, check"""
    env, hands = TexasLimitHoldem(3, observation="information_state"), ["Ah Ad", "Kh Kd", "4h 5d"]
    assert env.obs_shape == (208 + 3 + 4 * 11 * 4,)
    letters = {0: "rcc", 1: "kkk", 2: "krfc", 3: "r"}
    state = play(TexasLimitHoldem(3), "".join(letters.values()), button=1, hands=hands)[0][-1]
    for player in range(3):
        streets = [*(52 + card for card in cards("2h 7d 9c")), 104 + cards("Jd")[0], 156 + cards("3c")[0]]
        actions = [
            211 + 44 * betting_round + 4 * slot + LETTERS.index(letter)
            for betting_round, played in letters.items()
            for slot, letter in enumerate(played)
        ]
        expected = ones_at(387, *cards(hands[player]), *streets, 208 + (player - 2) % 3, *actions)
        np.testing.assert_array_equal(env.observe(state, player), expected)
        np.testing.assert_array_equal(env.information_state(state, player), expected)


@pytest.mark.parametrize(
    "env", [TexasLimitHoldem(2), TexasLimitHoldem(3, num_rounds=3, max_raises=(3, 1, 4), blinds=(3, 7))], ids=["2", "3"]
)
def test_information_states_are_the_same_just_where_a_player_has_seen_and_done_the_same(env):
    """Many hands with few different cards, so that most information states come up often."""
    N, E, rng = env.num_agents, 1_000, np.random.default_rng(0)
    first = first_states(env, E)
    hole_cards = rng.permuted(np.arange(2 * N + 2).reshape(1, -1, 2).repeat(E, 0), axis=1)[:, :N]
    hole_cards = rng.permuted(hole_cards, axis=2)
    board = np.column_stack([rng.permuted(np.tile([20, 21, 22], (E, 1)), axis=1), rng.integers(23, 25, (E, 2))])
    board[:, 4] += 2
    board = board[:, : SHOWN[env.num_rounds - 1]]
    first = first.replace(hole_cards=hole_cards.astype(np.int32), board=board.astype(np.int32))
    hands = random_play(env, first)
    look = jit(jax.vmap(jax.vmap(jax.vmap(env.information_state, (None, 0)), (0, None)), (0, None)))
    seen = np.packbits(np.asarray(look(hands.states, jnp.arange(N))) > 0, axis=-1)  # [T + 1, E, N, bytes]
    states, pairs = hands.states, set()
    for e in range(E):
        actions = []
        for t in range(states.timestep[-1, e] + 1):
            shown = SHOWN[states.betting_round[t, e]]
            streets = [frozenset(street.tolist()) for street in np.split(board[e, :shown], (3, 4))]
            for player in range(N):
                own = frozenset(hole_cards[e, player].tolist())
                known = own, *streets, (player - states.button[0, e]) % N, tuple(actions)
                pairs.add((known, seen[t, e, player].tobytes()))
            if t < states.timestep[-1, e]:
                actions.append((int(states.betting_round[t, e]), int(hands.actions[t, e])))
    num_states = N * int((states.timestep[-1] + 1).sum())
    assert len(pairs) < 0.7 * num_states
    assert len({known for known, _ in pairs}) == len({encoded for _, encoded in pairs}) == len(pairs)


@pytest.mark.parametrize("num_agents", [2, 6])
def test_nothing_that_a_player_sees_depends_on_hidden_cards(num_agents):
    """10,000 states, each with all cards permuted that one of the players does not see."""
    env, B, rng = TexasLimitHoldem(num_agents), 10_000, np.random.default_rng(0)
    hands = random_hands(env)
    pick = rng.choice(hands.legal.shape[0] * 1_000, B, replace=False)
    states = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[pick], hands.states)
    assert len(np.unique(states.betting_round)) == 4
    player = rng.integers(num_agents, size=B).astype(np.int32)
    shown = np.where(np.arange(5) < np.array(SHOWN)[states.betting_round][:, None], states.board, -1)
    known = np.concatenate([states.hole_cards[np.arange(B), player], shown], axis=1)
    is_known = (np.arange(52)[None, :, None] == known[:, None]).any(-1)
    # the unknown cards in random order take the places of the unknown cards
    order = np.argsort(np.where(is_known, 2.0, rng.random((B, 52))), axis=1)
    permuted = np.take_along_axis(order, np.cumsum(~is_known, axis=1) - 1, axis=1)
    permuted = np.where(is_known, np.arange(52), permuted).astype(np.int32)
    assert np.array_equal(np.sort(permuted, axis=1), np.tile(np.arange(52), (B, 1)))
    hole_cards = np.take_along_axis(permuted, states.hole_cards.reshape(B, -1), axis=1).reshape(B, num_agents, 2)
    board = np.take_along_axis(permuted, states.board, axis=1)
    boards = np.broadcast_to(board[:, None], (B, num_agents, 5))
    scores = rank_hands(np.moveaxis(np.concatenate([hole_cards, boards], axis=-1), -1, 0))
    others = states.replace(hole_cards=hole_cards, board=board, scores=np.asarray(scores))
    assert (others.hole_cards != states.hole_cards).any((1, 2)).mean() > 0.99

    @jit
    @jax.vmap
    def look(state, player):
        return env.observe(state, player), env.information_state(state, player), env.legal_actions(state)

    for before, after in zip(look(states, player), look(others, player), strict=True):
        np.testing.assert_array_equal(before, after)


def test_render_shows_own_cards_the_board_dealt_and_all_actions():
    env = TexasLimitHoldem(2)
    states, _, _ = play(env, "rc kr f", hands=["Ah Ad", "Kh Kd"])
    own, every = env.render(states[-2], 1), env.render(states[-2])
    assert [name in own for name in ("Ah", "Kd", "9c", "Jd")] == [False, True, True, False]
    assert [name in every for name in ("Ah", "Kd", "9c", "Jd")] == [True] * 4
    assert "preflop: raise call" in own
    assert "flop: check raise" in own
    assert "seat 0: ? ?, 6 in the pot button" in own
    assert "seat 1: Kh Kd, 4 in the pot to act" in own
    assert "over, returns +2 -2" in env.render(states[-1], 1)
    river = env.render(play(env, "ck kk kk")[0][-1])
    assert river.startswith("river, board: ")
    assert "(" not in river.splitlines()[0]
    assert "folded" in env.render(states[-1], 1)


# Chance


def is_uniform(counts):
    """Of rows of counts, whether none is less likely than one in a million."""
    return (stats.chisquare(counts, axis=-1).pvalue > 1e-6).all()


@pytest.mark.parametrize("num_agents", [2, 10])
def test_every_card_is_as_likely_in_every_place_and_with_every_other_card_and_button(num_agents):
    states = dealt(num_agents)
    E = len(states.button)
    assert E == 150_000
    dealt_cards = np.concatenate([np.asarray(states.hole_cards).reshape(E, -1), states.board], axis=1).T
    button = np.asarray(states.button)
    assert len(dealt_cards) == 2 * num_agents + 5
    assert (np.diff(np.sort(dealt_cards, axis=0), axis=0) > 0).all()  # never the same card twice
    assert is_uniform(np.stack([np.bincount(place, minlength=52) for place in dealt_cards]))
    assert is_uniform(np.bincount(button, minlength=num_agents))
    with_button = [np.bincount(num_agents * place + button, minlength=52 * num_agents) for place in dealt_cards]
    assert is_uniform(np.stack(with_button))
    pairs = [np.bincount(52 * one + other, minlength=52 * 52) for one, other in combinations(dealt_cards, 2)]
    different = ~np.eye(52, dtype=bool).reshape(-1)
    assert is_uniform(np.stack(pairs)[:, different])


def test_the_hand_after_a_hand_is_as_random_and_does_not_depend_on_it():
    env, first = TexasLimitHoldem(2), dealt(2)
    E = len(first.button)
    second, *_, done, _ = jit(jax.vmap(env.step, in_axes=(0, None)))(first, jnp.int32(FOLD))
    assert done.all()
    assert not second.timestep.any()
    before, after = (
        np.column_stack([np.asarray(states.hole_cards).reshape(E, -1), states.board, states.button]).T
        for states in (first, second)
    )
    assert is_uniform(np.stack([np.bincount(place, minlength=52) for place in after[:-1]]))
    for one in before:
        for other in after:
            sizes = one.max() + 1, other.max() + 1
            counts = np.bincount(sizes[1] * one + other, minlength=sizes[0] * sizes[1])
            assert is_uniform(counts)


# Parameters


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"num_agents": 1}, "num_agents=1: .*2 to 10"),
        ({"num_agents": 11}, "num_agents=11: .*2 to 10"),
        ({"num_agents": 23}, "num_agents=23: .*2 to 10"),
        ({"num_agents": 2.0}, "num_agents=2.0: .*2 to 10"),
        ({"num_agents": True}, "num_agents=True: .*2 to 10"),
        ({"num_rounds": 1}, "num_rounds=1: .*2 to 4"),
        ({"num_rounds": 5}, "num_rounds=5: .*2 to 4"),
        ({"max_raises": 4}, "max_raises=4: 4 integers from 1 to 4"),
        ({"max_raises": (4, 4)}, r"max_raises=\(4, 4\): 4 integers from 1 to 4"),
        ({"max_raises": (4, 4, 4, 0)}, r"max_raises=\(4, 4, 4, 0\): 4 integers from 1 to 4"),
        ({"max_raises": (5, 4, 4, 4)}, r"max_raises=\(5, 4, 4, 4\): 4 integers from 1 to 4"),
        ({"max_raises": (4, 4, 4), "num_rounds": 2}, r"max_raises=\(4, 4, 4\): 2 or 4 integers from 1 to 4"),
        ({"blinds": (0, 2)}, r"blinds=\(0, 2\): 2 integers from 1"),
        ({"blinds": (3, 2)}, r"blinds=\(3, 2\): a small blind of at most the big blind"),
        ({"blinds": (1, 2, 3)}, r"blinds=\(1, 2, 3\): 2 integers"),
        ({"blinds": (0.5, 1)}, r"blinds=\(0.5, 1\): 2 integers"),
        ({"blinds": (1, 1_000_001)}, "blinds=.*to 1000000"),
        ({"observation": "cards"}, "observation='cards': 'paper' or 'information_state'"),
    ],
)
def test_bad_parameters_are_refused_with_what_is_allowed(parameters, told):
    with pytest.raises(ValueError, match=told):
        envs.make("texas_limit_holdem", **parameters)


def test_defaults_are_those_of_the_paper():
    env = envs.make("texas_limit_holdem")
    assert env == TexasLimitHoldem(2, num_rounds=4, max_raises=(4, 4, 4, 4), blinds=(1, 2), observation="paper")
    assert (env.obs_shape, env.num_actions, env.api, env.zero_sum) == ((74,), 4, "aec", True)
    assert [TexasLimitHoldem(num_agents).obs_shape for num_agents in (3, 10)] == [(75,), (82,)]


def test_deals_are_too_many_to_list():
    hole_cards = 1326 * 1225  # C(52, 2) C(50, 2)
    with pytest.raises(ValueError, match=rf"{hole_cards * 17296:.3g} deals".replace("+", r"\+")):  # C(48, 3)
        TexasLimitHoldem(2, num_rounds=2).deals()
    with pytest.raises(ValueError, match=rf"{hole_cards * 17296 * 45 * 44:.3g} deals".replace("+", r"\+")):
        TexasLimitHoldem(2).deals()
