"""Kemps: step by step against the plain-Python reference, rules in hand-made states, chance, and what is hidden."""

import itertools
import math
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_kemps
from scipy import stats

from envs import kemps
from envs.kemps import Kemps

# Most of the time would go into optimising programs that run a few times only.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


# Recorded random play


class Record(NamedTuple):
    """Steps [T, E, ...] of E games side by side."""

    state: object  # before the step
    seen: np.ndarray  # [T, E, N, O] in `state`, as the step before returned it
    legal: np.ndarray  # [T, E, N, A] in `state`
    action: np.ndarray  # [T, E, N]
    order: np.ndarray  # [T, E, N] seats as they swap and as their calls count
    reward: np.ndarray
    absorbing: np.ndarray
    done: np.ndarray
    info: dict
    final_seen: np.ndarray  # in `info["final_state"]`, by `observe`
    final_legal: np.ndarray


def count_ranks(env, sets):
    """[N, R] cards of each rank in N sets of cards."""
    ranks = np.arange(env.num_ranks)
    shifts = np.uint32(ranks % env.word_ranks * env.num_suits)
    blocks = sets[:, ranks // env.word_ranks] >> shifts[None]
    return jax.lax.population_count(blocks & np.uint32((1 << env.num_suits) - 1)).astype(jnp.int32)


def choose(env, state, legal, collects, call_rate, key):
    """Actions int[N]: mostly legal ones, calls being rare; now and then all do nothing, so that the centre is swept.

    Where `collects`, players take ranks that they hold and give others away, and so get four of a kind.
    """
    N, C, num_swaps = env.num_agents, env.comm_dim, env.num_ranks**2 * env.comm_dim
    swap_key, kind_key, idle_key, signal_key, wild_key, number_key = jax.random.split(key, 6)
    held = count_ranks(env, state.hands).astype(jnp.float32)
    gain = jnp.repeat((held[:, None] - held[:, :, None]).reshape(N, -1), C, axis=1)
    score = jax.random.uniform(swap_key, (N, num_swaps)) + jnp.where(collects, gain, 0)
    swap = jnp.where(legal[:, :num_swaps], score, -jnp.inf).argmax(-1)
    kind = jax.random.uniform(kind_key, (N,))
    calls, idle = kind < call_rate, jax.random.uniform(idle_key) < 0.25
    swaps = ~calls & ~idle & (kind < 0.9) & legal[:, :num_swaps].any(-1)
    base = env.num_ranks**2 + jnp.where(calls, 1 + (kind < call_rate / 2), 0)
    action = jnp.where(swaps, swap, base * C + jax.random.randint(signal_key, (N,), 0, C))
    wild = jax.random.uniform(wild_key, (N,)) < 0.03
    return jnp.where(wild, jax.random.randint(number_key, (N,), -2, env.num_actions + 2), action)


@partial(jit, static_argnums=(0, 1, 2))
def record_play(env, num_games, num_steps, call_rate, key):
    collects = jnp.arange(num_games) % 2 == 0
    first = jax.vmap(env.reset)(jax.random.split(key, num_games))

    def turn(carry, key):
        states, seen = carry
        legal = jax.vmap(env.legal_actions)(states)
        keys = jax.random.split(key, num_games)
        actions = jax.vmap(partial(choose, env), (0, 0, 0, None, 0))(states, legal, collects, call_rate, keys)
        nexts, next_seen, reward, absorbing, done, info = jax.vmap(env.step)(states, actions)
        final = info["final_state"]
        chance_keys = jax.vmap(kemps._chance_key)(states.replace(key=final.key))
        order = jax.vmap(kemps._swap_order, (0, 0, None))(chance_keys, states.dealer, env.num_agents)
        final_seen = jax.vmap(jax.vmap(env.observe, (None, 0)), (0, None))(final, jnp.arange(env.num_agents))
        result = jnp.stack(order, 1), reward, absorbing, done, info, final_seen, jax.vmap(env.legal_actions)(final)
        return (nexts, next_seen), Record(states, seen, legal, actions, *result)

    return jax.lax.scan(turn, first, jax.random.split(jax.random.fold_in(key, 1), num_steps))[1]


def plain(tree):
    def leaf(array):
        return np.asarray(jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array)

    return jax.tree.map(leaf, tree)


def play(env, num_games, num_steps, call_rate, seed=0):
    return plain(record_play(env, num_games, num_steps, call_rate, jax.random.key(seed)))


@cache
def default_play():
    """10,240 states."""
    return play(Kemps(), 160, 64, 0.03)


def rows(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def cards_in(env, words):
    """Card numbers of one set."""
    return [env.word_cards * i + bit for i, word in enumerate(words.tolist()) for bit in range(32) if word >> bit & 1]


# Against the reference


def replay(env, record):
    """Plays the recorded games with the reference; an error where anything differs. Returns the number of episodes."""
    names = ("num_agents", "num_ranks", "num_suits", "hand_size", "comm_dim", "horizon")
    game = reference_kemps.Kemps(**{name: getattr(env, name) for name in names})
    N, (T, E) = env.num_agents, record.done.shape
    info = record.info
    outcomes = record.reward, record.absorbing, record.done, info["illegal_action"], info["winner"], info["returns"]

    def assert_same_views(seen, legal):
        assert seen.tolist() == [game.observation(seat) for seat in range(N)]
        assert legal.tolist() == [game.legal_actions(seat) for seat in range(N)]

    for at in ((step, lane) for lane in range(E) for step in range(T)):
        if at[0] == 0 or record.done[at[0] - 1, at[1]]:
            hands = [cards_in(env, hand) for hand in record.state.hands[at]]
            game.start(hands, cards_in(env, record.state.centre[at]))
            assert_same_views(record.seen[at], record.legal[at])
        order = record.order[at].tolist()
        new_centre = cards_in(env, info["final_state"].centre[at])
        actions = record.action[at].tolist()
        rewards, absorbing, done, illegal = game.step(
            actions, order, lambda cards=new_centre: cards, partial(min, key=order.index)
        )
        expected = [rewards, [absorbing] * N, done, illegal, game.winner, game.returns]
        assert [outcome[at].tolist() for outcome in outcomes] == expected
        assert info["timestep"][at] == game.timestep
        assert_same_views(record.final_seen[at], record.final_legal[at])
    return int(record.done.sum())


def what_happened(env, record):
    """The kinds of steps that a record has."""
    decided, cut = record.absorbing.any(-1), record.done & ~record.absorbing.any(-1)
    legal_base = np.where(record.info["illegal_action"], env.num_ranks**2, record.action // env.comm_dim)
    idle = (legal_base == env.num_ranks**2).all(-1)
    called = (legal_base > env.num_ranks**2).any(-1)
    moved = (record.info["final_state"].hands != record.state.hands).any(-1)
    failed = (legal_base < env.num_ranks**2) & ~moved & ~called[..., None]
    return {
        "swept": (idle & ~record.done).any(),
        "drawn": (idle & decided).any(),
        "cut": cut.any(),
        "failed swap": failed.any(),
        "several callers": ((legal_base > env.num_ranks**2).sum(-1) > 1).any(),
        "right KEMPS or STOP KEMPS": ((record.reward > 0).sum(-1) == 2).any(),
        "wrong call": (called & ((record.reward < 0).sum(-1) == 2)).any(),
        "illegal": record.info["illegal_action"].any(),
    }


VARIANTS = [  # parameters, games, steps, call rate
    ({"num_ranks": 6, "comm_dim": 1, "horizon": 9}, 32, 48, 0.05),
    ({"num_agents": 6, "num_ranks": 9, "num_suits": 5, "hand_size": 5, "comm_dim": 3}, 6, 48, 0.03),
    ({"num_agents": 8, "num_ranks": 18, "horizon": 30}, 4, 48, 0.04),
]


def test_500_random_episodes_agree_with_the_reference_step_by_step():
    played = [(Kemps(**parameters), play(Kemps(**parameters), *size, seed=1)) for parameters, *size in VARIANTS]
    played.append((Kemps(), rows(default_play(), np.s_[:, :8])))
    assert sum(replay(env, record) for env, record in played) >= 500
    happened = [what_happened(env, record) for env, record in played]
    assert all(any(kinds[kind] for kinds in happened) for kind in happened[0]), happened


@pytest.mark.full
def test_100000_random_episodes_agree_with_the_reference_step_by_step():
    episodes = 0
    for parameters, seeds, *size in (
        ({"num_ranks": 5, "comm_dim": 1}, 4, 256, 64, 0.07),
        ({"num_ranks": 6, "comm_dim": 1, "horizon": 4}, 5, 256, 64, 0.07),
        ({"num_ranks": 4, "num_suits": 7, "hand_size": 6, "comm_dim": 2, "horizon": 12}, 4, 256, 64, 0.08),
        ({"num_ranks": 1, "num_suits": 32, "hand_size": 5, "comm_dim": 3, "horizon": 7}, 3, 256, 64, 0.08),
        ({"num_agents": 6, "num_ranks": 7, "comm_dim": 1, "horizon": 20}, 2, 256, 64, 0.05),
        ({"num_agents": 6, "num_ranks": 10, "num_suits": 5, "hand_size": 6, "comm_dim": 9}, 1, 32, 64, 0.05),
        ({"num_agents": 8, "num_ranks": 9, "comm_dim": 1}, 1, 128, 64, 0.04),
        ({"num_agents": 10, "num_ranks": 17, "hand_size": 6, "comm_dim": 5}, 1, 8, 64, 0.03),
        ({"num_ranks": 40, "num_suits": 4}, 1, 4, 64, 0.03),
        ({}, 1, 64, 64, 0.03),
    ):
        env = Kemps(**parameters)
        for seed in range(seeds):
            episodes += replay(env, play(env, *size, seed=seed + 2))
    assert episodes >= 100_000


# Hand-made states


def set_of(env, cards):
    words = [sum(1 << card % env.word_cards for card in cards if card // env.word_cards == i) for i in range(99)]
    assert not any(words[env.num_words :])
    return np.array(words[: env.num_words], np.uint32)


def table(env, hands, centre, undealt=(), key=0, **fields):
    """A state with these cards."""
    assert len({*itertools.chain(*hands), *centre, *undealt}) == sum(map(len, hands)) + len(centre) + len(undealt)
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state.replace(key=None))
    hands, centre, undealt = jnp.stack([set_of(env, hand) for hand in hands]), set_of(env, centre), set_of(env, undealt)
    sets = {"hands": hands, "centre": jnp.asarray(centre), "undealt": jnp.asarray(undealt)}
    return zeros.replace(key=jax.random.key(key), **sets, signals=jnp.full(env.num_agents, -1, jnp.int32), **fields)


def swap(env, give, take, signal=0):
    return (env.num_ranks * give + take) * env.comm_dim + signal


def no_op(env, signal=0):
    return env.num_ranks**2 * env.comm_dim + signal


def kemps_call(env, signal=0):
    return (env.num_ranks**2 + 1) * env.comm_dim + signal


def stop_call(env, signal=0):
    return (env.num_ranks**2 + 2) * env.comm_dim + signal


@cache
def step_env(env):
    return jit(env.step_env)


@cache
def step_env_by_key(env):
    """For many keys of the same state and actions."""
    return jit(jax.vmap(lambda state, key, actions: env.step_env(state.replace(key=key), actions), (None, 0, None)))


def sets_after(env, state):
    return [cards_in(env, hand) for hand in np.asarray(state.hands)], cards_in(env, np.asarray(state.centre))


SPREAD = [[4 * seat, 4 * seat + 1, 4 * seat + 2, 32 + seat] for seat in range(8)]  # nobody has four of a kind
CENTRE = [48, 49, 50, 51]


def hands_with_four(seats, num_agents):
    """Those seats have four of a kind, the others three."""
    return [[*SPREAD[seat][:3], 4 * seat + 3 if seat in seats else 32 + seat] for seat in range(num_agents)]


@pytest.mark.parametrize("N", [4, 6, 8])
def test_calls_pay_as_the_rules_say_for_every_caller_and_all_that_have_four(N):
    env = Kemps(num_agents=N)
    subsets = [seats for size in range(N + 1) for seats in itertools.combinations(range(N), size)]
    hands = np.stack([[set_of(env, hand) for hand in hands_with_four(seats, N)] for seats in subsets])
    state = table(env, hands_with_four((), N), CENTRE)
    swaps = np.array([swap(env, seat, 12) for seat in range(N)])  # of those who do not call
    calls = [(caller, call) for caller in range(N) for call in (kemps_call(env), stop_call(env))]
    actions = np.stack([np.where(np.arange(N) == caller, call, swaps) for caller, call in calls])
    step = jax.vmap(jax.vmap(lambda h, a: env.step_env(state.replace(hands=h), a), (None, 0)), (0, None))
    final, _, reward, absorbing, done, info = jit(step)(hands, actions)
    assert done.all()
    assert absorbing.all()
    assert not info["illegal_action"].any()
    np.testing.assert_array_equal(final.hands, np.broadcast_to(hands[:, None], final.hands.shape))  # nobody swapped
    np.testing.assert_array_equal(info["winner"], reward > 0)
    np.testing.assert_array_equal(info["returns"], reward)
    if env.zero_sum:
        assert not np.asarray(reward).sum(-1).any()
    for i, seats in enumerate(subsets):
        teams_with_four = {seat % (N // 2) for seat in seats}
        for j, (caller, call) in enumerate(calls):
            team = caller % (N // 2)
            pays = {}
            for other in set(range(N // 2)) - {team}:
                if call == kemps_call(env):
                    right = (caller + N // 2) % N in seats
                    pays[other] = -1 if right else 1
                else:
                    right = bool(teams_with_four - {team})
                    pays[other] = (-1 if other in teams_with_four else 0) if right else 1
            pays[team] = 1 if right else -1
            assert reward[i, j].tolist() == [pays[seat % (N // 2)] for seat in range(N)], (seats, caller, call)


@pytest.mark.parametrize(
    ("num_agents", "four", "caller", "call", "expected"),
    [
        (4, [2], 0, kemps_call, [1, -1, 1, -1]),
        (4, [0], 0, kemps_call, [-1, 1, -1, 1]),  # he himself has it, not his partner
        (4, [1], 0, stop_call, [1, -1, 1, -1]),
        (4, [0, 2], 0, stop_call, [-1, 1, -1, 1]),
        (6, [4], 1, kemps_call, [-1, 1, -1, -1, 1, -1]),  # three teams of two: 0 and 3, 1 and 4, 2 and 5
        (6, [3], 1, kemps_call, [1, -1, 1, 1, -1, 1]),
        (6, [3], 1, stop_call, [-1, 1, 0, -1, 1, 0]),
        (6, [3, 5], 1, stop_call, [-1, 1, -1, -1, 1, -1]),
        (6, [4], 1, stop_call, [1, -1, 1, 1, -1, 1]),
        (8, [7], 3, kemps_call, [-1, -1, -1, 1, -1, -1, -1, 1]),
        (8, [4, 2], 3, stop_call, [-1, 0, -1, 1, -1, 0, -1, 1]),
    ],
)
def test_a_call_pays(num_agents, four, caller, call, expected):
    env = Kemps(num_agents=num_agents)
    state = table(env, hands_with_four(four, num_agents), CENTRE)
    actions = jnp.full(num_agents, no_op(env)).at[caller].set(call(env))
    _, _, reward, absorbing, done, info = step_env(env)(state, actions)
    assert reward.tolist() == expected
    assert absorbing.all()
    assert bool(done)
    assert info["winner"].tolist() == [pay > 0 for pay in expected]


@pytest.mark.parametrize(
    ("hand", "has"),
    [
        ([0, 1, 2, 6, 7, 8], False),  # twice three
        ([12, 14, 15, 17, 40, 51], True),
        ([12, 13, 14, 15, 16, 17], True),
        ([30, 31, 32, 33, 34, 3], True),
        ([48, 49, 52, 53, 40, 18], True),
        ([48, 49, 52, 24, 25, 18], False),
    ],
)
def test_four_cards_of_a_rank_are_four_of_a_kind_among_more_cards_and_suits(hand, has):
    env = Kemps(num_ranks=9, num_suits=6, hand_size=6, comm_dim=1)
    others = [[19, 20, 21, 26, 27, 28], [5, 11, 23, 29, 35, 41], [4, 10, 22, 42, 43, 44]]
    state = table(env, [*others[:2], hand, others[2]], [36, 37, 38, 39])
    _, _, reward, *_ = step_env(env)(state, jnp.full(4, no_op(env)).at[0].set(kemps_call(env)))
    assert reward.tolist() == ([1, -1, 1, -1] if has else [-1, 1, -1, 1])


def test_a_swap_gives_the_lowest_own_card_and_takes_the_lowest_of_the_centre():
    env = Kemps()
    hands = [[5, 6, 7, 50], [8, 9, 12, 16], [20, 24, 28, 32], [36, 40, 44, 48]]
    centre = [0, 2, 3, 51]
    idle = jnp.full(4, no_op(env))
    for give, take, hand, left in (
        (1, 0, [0, 6, 7, 50], [2, 3, 5, 51]),
        (12, 0, [0, 5, 6, 7], [2, 3, 50, 51]),
        (12, 12, [5, 6, 7, 51], [0, 2, 3, 50]),  # he does not take back what he gives
        (1, 12, [6, 7, 50, 51], [0, 2, 3, 5]),
    ):
        state, *_, info = step_env(env)(table(env, hands, centre, [1]), idle.at[0].set(swap(env, give, take)))
        assert sets_after(env, state) == ([hand, *hands[1:]], left)
        assert cards_in(env, np.asarray(state.undealt)) == [1]
        assert not info["illegal_action"].any()


def test_swaps_are_resolved_in_a_random_order_each_on_the_centre_as_it_then_stands():
    env = Kemps()
    hands = [[4, 12, 20, 28], [8, 13, 21, 29], [10, 14, 22, 30], [11, 15, 23, 31]]
    centre = [7, 40, 44, 48]  # one card of rank 1, which seats 0 to 2 want
    gives = [4, 8, 14]  # the first of them is of rank 1, too
    actions = jnp.array([*(swap(env, card // 4, 1) for card in gives), no_op(env)])
    state = table(env, hands, centre, range(32, 40), dealer=jnp.int32(3))
    keys = jax.random.split(jax.random.key(3), 500)
    final, *_, info = plain(step_env_by_key(env)(state, keys, actions))
    orders = jax.vmap(lambda key: kemps._swap_order(kemps._chance_key(state.replace(key=key)), state.dealer, 4))(keys)
    orders = np.stack(orders, 1).tolist()
    assert len({tuple(order) for order in orders}) == 24
    assert not info["illegal_action"].any()
    assert not final.finished.any()
    for i, order in enumerate(orders):
        first, second, _ = (seat for seat in order if seat != 3)
        takes = {first: 7, second: 4} if first == 0 else {first: 7}  # the others find none: nothing moves
        expected = [[*hand] for hand in hands]
        for seat, card in takes.items():
            expected[seat] = sorted({*hands[seat]} - {gives[seat]} | {card})
        left = {*centre} | {gives[seat] for seat in takes}
        assert sets_after(env, rows(final, i)) == (expected, sorted(left - set(takes.values())))
        assert cards_in(env, final.undealt[i]) == list(range(32, 40))


def test_the_centre_is_swept_only_if_nobody_does_anything_and_swept_cards_never_return():
    env = Kemps(num_ranks=6)
    hands = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    idle = jnp.array([no_op(env), no_op(env, 1), -1, swap(env, 5, 5)])  # illegal actions are no-ops, too
    state, _, reward, _, done, info = step_env(env)(table(env, hands, [16, 17, 18, 19], [20, 21, 22, 23]), idle)
    assert sets_after(env, state) == (hands, [20, 21, 22, 23])
    assert cards_in(env, np.asarray(state.undealt)) == []
    assert info["illegal_action"].tolist() == [False, False, True, True]
    assert state.signals.tolist() == [0, 1, 0, 0]
    assert not done
    assert not reward.any()


@pytest.mark.parametrize("num_undealt", [0, 3, 4])
def test_fewer_than_four_undealt_cards_are_a_draw_decided_without_reward(num_undealt):
    env = Kemps(num_ranks=6)
    hands = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    state = table(env, hands, [16, 17, 18, 19], range(20, 20 + num_undealt))
    state, seen, reward, absorbing, done, info = step_env(env)(state, jnp.full(4, no_op(env)))
    drawn = num_undealt < 4
    assert (bool(done), absorbing.tolist()) == (drawn, [drawn] * 4)
    assert not reward.any()
    assert not info["winner"].any()
    assert jit(env.legal_actions)(state).any() == (not drawn)
    if drawn:
        assert sets_after(env, state) == (hands, [16, 17, 18, 19])
        np.testing.assert_array_equal(seen[0, 4 * 24 : 5 * 24], [card in (16, 17, 18, 19) for card in range(24)])


# Horizon


@cache
def step(env):
    return jit(env.step)


def test_the_horizon_cuts_without_absorbing_and_final_state_is_the_last_one():
    env = Kemps(horizon=3)
    state, _ = jit(env.reset)(jax.random.key(5))
    for number in range(1, 4):
        before = state
        signals = [number % 2, 0, 1, 1]
        actions = jnp.array([no_op(env, signal) for signal in signals])
        state, seen, reward, absorbing, done, info = step(env)(state, actions)
        final = info["final_state"]
        assert bool(done) == (number == 3)
        assert not absorbing.any()
        assert not reward.any()
        assert not info["winner"].any()
        assert info["timestep"] == number
    assert final.timestep == 3
    assert final.signals.tolist() == signals
    assert final.finished
    np.testing.assert_array_equal(final.hands, before.hands)
    new_centre = cards_in(env, np.asarray(final.centre))
    assert set(new_centre) < set(cards_in(env, np.asarray(before.undealt)))
    last_seen = env.observe(final, 1)
    assert cards_in(env, np.asarray(before.hands)[1]) == np.flatnonzero(last_seen[:52]).tolist()
    assert new_centre == np.flatnonzero(last_seen[4 * 52 : 5 * 52]).tolist()
    assert last_seen[-8:].tolist() == [1, 0, 0, 1, 0, 1, 0, 1]  # of seats 1, 2, 3, 0
    assert not jit(env.legal_actions)(final).any()
    # what comes back is a fresh game
    assert (state.timestep, state.finished, state.signals.tolist()) == (0, False, [-1] * 4)
    assert not np.array_equal(state.hands, final.hands)
    np.testing.assert_array_equal(seen[0], env.observe(state, 0))
    # and the cut game stays as it is
    again, _, reward, absorbing, done, info = step_env(env)(final, actions.at[0].set(kemps_call(env)))
    assert done
    assert not absorbing.any()
    assert not reward.any()
    assert not info["illegal_action"].any()
    jax.tree.map(np.testing.assert_array_equal, plain(again), plain(final))


@pytest.mark.parametrize("last", ["call", "draw", "swap"])
def test_what_decides_at_the_horizon_is_decided_and_no_cut(last):
    env = Kemps(horizon=3)
    state = table(env, SPREAD[:4], CENTRE, timestep=jnp.int32(2))
    action = {"call": kemps_call(env), "draw": no_op(env), "swap": swap(env, 0, 12)}[last]
    _, _, reward, absorbing, done, _ = step_env(env)(state, jnp.full(4, no_op(env)).at[0].set(action))
    assert done
    assert absorbing.tolist() == [last != "swap"] * 4
    assert reward.any() == (last == "call")


# What is seen


def test_observation_is_own_hand_empty_rows_centre_and_signals_by_seat():
    env = Kemps(num_agents=6, comm_dim=3)
    state = table(env, SPREAD[:6], CENTRE)
    first = np.asarray(env.observe(state, 4))
    assert np.flatnonzero(first).tolist() == [*SPREAD[4], *(6 * 52 + card for card in CENTRE)]  # no signal yet
    signals = [0, 1, 2, 2, 1, 0]
    actions = [swap(env, 0, 12, 0), no_op(env, 1), stop_call(env, 2), no_op(env, 2), kemps_call(env, 1), no_op(env)]
    state, seen, *_, done, _ = step_env(env)(state, jnp.array(actions))
    assert done
    assert state.signals.tolist() == signals
    for player in range(6):
        by_seat = [7 * 52 + 3 * r + signals[(player + r) % 6] for r in range(6)]
        assert np.flatnonzero(seen[player]).tolist() == [*SPREAD[player], *(6 * 52 + card for card in CENTRE), *by_seat]
        np.testing.assert_array_equal(env.observe(state, player), seen[player])


def test_no_signals_show_in_first_observations():
    record = default_play()
    assert not record.seen[record.state.timestep == 0][..., -8:].any()
    signals = record.seen[record.state.timestep > 0][..., -8:]
    assert (signals.reshape(-1, 4, 2).sum(-1) == 1).all()
    assert (record.final_seen[..., -8:].reshape(-1, 4, 2).sum(-1) == 1).all()


def places_of(env, states):
    """[B, D] where each card is: a seat, N the centre, N + 1 undealt, N + 2 swept out."""
    N, cards = env.num_agents, np.arange(env.deck_size)
    sets = np.concatenate([states.hands, states.centre[:, None], states.undealt[:, None]], 1)  # [B, N + 2, W]
    words = sets[..., cards // env.word_cards] >> (cards % env.word_cards).astype(np.uint32) & 1
    assert (words.sum(1) <= 1).all(), "a card is in two places"
    return np.where(words.any(1), words.argmax(1), N + 2)


def sets_of_places(env, places):
    cards = np.arange(env.deck_size)
    bits = np.uint32(1) << (cards % env.word_cards).astype(np.uint32)
    word = cards // env.word_cards == np.arange(env.num_words)[:, None]  # [W, D]
    is_there = places[:, None] == np.arange(env.num_agents + 2)[:, None]  # [B, N + 2, D]
    return np.where(is_there[:, :, None] & word, bits, 0).sum(-1, dtype=np.uint32)


def flat(tree):
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def revive(state):
    state = jax.tree.map(jnp.asarray, state)
    return state.replace(key=jax.random.wrap_key_data(state.key))


def test_nothing_hidden_shows_in_10000_states():
    """Hands of others, undealt cards, the dealer and the key are dealt anew."""
    env, rng = Kemps(), np.random.default_rng(0)
    record = flat(default_play())
    states = record.state
    assert len(states.timestep) > 10_000
    places = places_of(env, states)
    np.testing.assert_array_equal(
        sets_of_places(env, places), np.concatenate([states.hands, states.centre[:, None], states.undealt[:, None]], 1)
    )
    look = jit(
        jax.vmap(lambda state, player: (env.observe(state, player), env.legal_actions(state)[player]), (0, None))
    )
    for player in range(4):
        hidden = (places != player) & (places != 4) & (places != 6)
        hidden_first = np.where(hidden, rng.random(places.shape), 2).argsort(1)
        shuffled = np.where(hidden, rng.random(places.shape), 2).argsort(1)
        redealt = places.copy()
        moved = np.take_along_axis(places, shuffled, 1)
        np.put_along_axis(redealt, hidden_first, moved, 1)
        sets = sets_of_places(env, redealt)
        assert (sets != sets_of_places(env, places)).any((1, 2)).mean() > 0.99
        other = states.replace(
            hands=sets[:, :4],
            centre=sets[:, 4],
            undealt=sets[:, 5],
            dealer=rng.integers(0, 4, states.dealer.shape, dtype=np.int32),
            key=rng.permutation(states.key),
        )
        seen, legal = look(revive(other), player)
        np.testing.assert_array_equal(seen, record.seen[:, player])
        np.testing.assert_array_equal(legal, record.legal[:, player])


def test_of_simultaneous_moves_only_signals_and_what_they_did_to_the_centre_show():
    """Whoever calls, and whatever the others would have done, everybody sees the same as long as the signals are."""
    env, rng = Kemps(), np.random.default_rng(1)
    record = flat(default_play())
    states = revive(rows(record.state, np.s_[:10_000]))
    signals = rng.integers(0, 2, (10_000, 4))
    run = jit(jax.vmap(env.step_env))
    outcomes = []
    for _ in range(2):
        bases = rng.integers(0, env.num_ranks**2 + 3, (10_000, 4))
        moved = 2 * bases + signals
        legal = np.take_along_axis(record.legal[:10_000], moved[..., None], -1)[..., 0]
        moved = np.where(legal, moved, no_op(env) + signals)
        caller = rng.integers(0, 4, (10_000, 1))
        calls = kemps_call(env) + 2 * rng.integers(0, 2, (10_000, 1)) + signals
        moved = np.where(np.arange(4) == caller, calls, moved)
        _, seen, *_, done, info = run(states, moved)
        assert done.all()
        assert not info["illegal_action"].any()
        outcomes.append((moved, np.asarray(seen)))
    assert (outcomes[0][0] != outcomes[1][0]).any(1).mean() > 0.9
    np.testing.assert_array_equal(outcomes[0][1], outcomes[1][1])
    np.testing.assert_array_equal(outcomes[0][1][..., :260], record.seen[:10_000, :, :260])


# Cards and chance


def test_cards_are_conserved():
    env, record = Kemps(), default_play()
    before, after = (flat(state) for state in (record.state, record.info["final_state"]))
    for states in (before, after):
        places = places_of(env, states)
        counts = (places[..., None] == np.arange(7)).sum(1)
        assert (counts[:, :5] == 4).all()  # four hands and the centre
    was, now = places_of(env, before), places_of(env, after)
    swept = (now == 6).sum(1) - (was == 6).sum(1)
    assert set(swept.tolist()) == {0, 4}
    assert (now[was == 6] == 6).all()  # swept cards never return
    drawn = (was == 5) & (now != 5)
    assert (now[drawn] == 4).all()
    np.testing.assert_array_equal(drawn.sum(1), swept)
    assert (was[(now == 6) & (was != 6)] == 4).all()


def pvalue(index, size):
    counts = np.bincount(index, minlength=size)
    assert len(counts) == size
    return stats.chisquare(counts).pvalue


@pytest.mark.parametrize(("N", "num_keys"), [(4, 24_000), (6, 72_000), (8, 40_320 * 8)])
def test_every_order_of_swaps_is_equally_likely_and_counts_from_the_dealer(N, num_keys):
    keys = jax.random.split(jax.random.key(N), num_keys)
    draw = jit(jax.vmap(lambda key, dealer: jnp.stack(kemps._swap_order(key, dealer, N)), (0, None)))
    orders = np.asarray(draw(keys, jnp.int32(0)))
    assert (np.sort(orders, 1) == np.arange(N)).all()
    _, index = np.unique(orders @ N ** np.arange(N), return_inverse=True)
    assert pvalue(index, math.factorial(N)) > 1e-3
    np.testing.assert_array_equal(draw(keys[:100], jnp.int32(N - 1)), (orders[:100] + N - 1) % N)


def test_chance_differs_with_the_time_step_where_the_key_stays():
    env = Kemps()
    state, _ = env.reset(jax.random.key(0))
    keys = [kemps._chance_key(state.replace(timestep=jnp.int32(step))) for step in range(200)]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 200


@pytest.mark.parametrize("callers", [(0, 1), (1, 2, 3), (0, 1, 2, 3)])
def test_of_several_callers_each_counts_equally_often(callers):
    env = Kemps(num_agents=8)
    state = table(env, SPREAD, CENTRE)  # nobody has four of a kind, so the caller's team loses
    actions = jnp.full(8, swap(env, 0, 12)).at[jnp.array(callers)].set(kemps_call(env))
    keys = jax.random.split(jax.random.key(1), 3_000)
    _, _, reward, *_ = step_env_by_key(env)(state, keys, actions)
    assert ((np.asarray(reward) == -1).sum(1) == 2).all()
    teams = (np.asarray(reward)[:, :4] == -1).argmax(1)
    assert pvalue(teams - callers[0], len(callers)) > 1e-3


def test_every_new_centre_is_equally_likely():
    env = Kemps(num_ranks=17)  # 68 cards in three words
    undealt = [3, 30, 31, 47, 52, 63, 64, 67]
    state = table(env, SPREAD[:4], CENTRE, undealt)
    keys = jax.random.split(jax.random.key(2), 14_000)
    final, *_ = plain(step_env_by_key(env)(state, keys, jnp.full(4, no_op(env))))
    centres = [tuple(cards_in(env, words)) for words in final.centre]
    numbers = {cards: i for i, cards in enumerate(itertools.combinations(undealt, 4))}
    assert pvalue([numbers[cards] for cards in centres], 70) > 1e-3
    np.testing.assert_array_equal(final.centre | final.undealt, np.broadcast_to(state.undealt, final.undealt.shape))


def test_every_card_of_the_deck_is_dealt_anywhere_equally_often_by_reset_and_step():
    env = Kemps(num_ranks=9, num_suits=5)  # 45 cards, 30 in a word: 25 undealt ones
    num_games = 20_000
    first, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), num_games))
    calls = jnp.full((num_games, 4), kemps_call(env))
    second, *_, done, _ = jit(jax.vmap(env.step))(first, calls)
    assert done.all()
    expected = np.array([4] * 5 + [25])
    both = [places_of(env, plain(states)) for states in (first, second)]
    for places in both:
        counts = np.stack([(places == place).sum(0) for place in range(6)])
        assert (stats.chisquare(counts, (expected / 45 * num_games)[:, None]).pvalue > 1e-5).all()
        pairs = np.bincount(6 * places[:, 0] + places[:, 44], minlength=36).reshape(6, 6)
        chances = (np.outer(expected, expected) - np.diag(expected)) / (45 * 44)
        assert stats.chisquare(pairs.ravel(), chances.ravel() * num_games).pvalue > 1e-3
    # the second deal does not depend on the first
    table_of_both = np.bincount(6 * both[0][:, 7] + both[1][:, 7], minlength=36).reshape(6, 6)
    assert stats.chi2_contingency(table_of_both).pvalue > 1e-3
    for states in (first, second):
        assert pvalue(states.dealer, 4) > 1e-3


@pytest.mark.parametrize("size", [1, 2, 30, 33, 52, 127 * 32])
def test_scaled_words_are_the_exact_product(size):
    words = np.random.default_rng(size).integers(2**32, size=2_000, dtype=np.uint32)
    words[:3] = 0, 2**31, 2**32 - 1
    number, rest = jit(kemps._scale)(words, jnp.uint32(size))
    assert number.tolist() == [word * size >> 32 for word in words.tolist()]
    assert rest.tolist() == [word * size % 2**32 for word in words.tolist()]


def test_swap_order_of_many_seats_is_a_permutation_with_every_seat_anywhere():
    keys = jax.random.split(jax.random.key(0), 18_000)
    orders = np.stack(jit(jax.vmap(lambda key: kemps._swap_order(key, jnp.int32(0), 18)))(keys), 1)
    assert (np.sort(orders, 1) == np.arange(18)).all()
    counts = np.stack([np.bincount(seats, minlength=18) for seats in orders.T])
    assert (stats.chisquare(counts, axis=1).pvalue > 1e-5).all()


# Parameters


def test_sizes_follow_the_parameters():
    env = Kemps()
    assert (env.num_actions, env.obs_shape, env.zero_sum, env.api) == (344, (268,), True, "parallel")
    env = Kemps(num_agents=6, num_ranks=20, num_suits=5, hand_size=9, comm_dim=3)
    assert (env.num_actions, env.obs_shape, env.zero_sum) == (3 * 403, (7 * 100 + 18,), False)
    assert not hasattr(env, "information_state")


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"num_agents": 5}, r"num_agents=5: an even integer from 4"),
        ({"num_agents": 2}, r"num_agents=2: an even integer from 4"),
        ({"num_agents": "4"}, r"num_agents='4'"),
        ({"num_agents": 14}, r"num_agents=14, hand_size=4: .*52 cards .*num_ranks=13.*num_suits=4"),
        ({"hand_size": 13}, r"num_agents=4, hand_size=13: .*52"),
        ({"num_ranks": 4}, r"16 cards .*num_ranks=4"),
        ({"num_ranks": 0}, r"num_ranks=0: an integer from 1"),
        ({"num_suits": 3}, r"num_suits=3: an integer from 4 to 32"),
        ({"num_suits": 33}, r"num_suits=33: an integer from 4 to 32"),
        ({"hand_size": 3}, r"hand_size=3: an integer from 4"),
        ({"comm_dim": 0}, r"comm_dim=0: an integer from 1 to 32"),
        ({"comm_dim": True}, r"comm_dim=True"),
        ({"horizon": 0}, r"horizon=0: an integer from 1"),
        ({"horizon": 1.5}, r"horizon=1.5"),
        ({"observation": "information_state"}, r"observation='information_state': 'paper'"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_allowed(parameters, told):
    with pytest.raises(ValueError, match=told):
        Kemps(**parameters)


def test_deals_says_how_many_there_are():
    with pytest.raises(ValueError, match=r"kemps has 3\.85e\+25 deals"):
        Kemps().deals()


def test_render_shows_ones_own_hand_the_centre_and_signals():
    env = Kemps()
    hands = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 47]]
    state = table(env, hands, CENTRE)
    own = env.render(state, 3)
    assert all(card in own for card in ("0.3", "1.3", "2.3", "11.3", "12.0", "12.3"))
    assert not any(f" {rank}.{suit}" in own for rank in range(3) for suit in range(3))
    assert "signal" not in own
    assert all(card in env.render(state) for card in ("0.0", "1.1", "2.2", "11.3"))
    state, *_ = step_env(env)(state, jnp.array([kemps_call(env, 1), *[no_op(env)] * 3]))
    assert "signals 1" in env.render(state, 2)
    assert "over, returns -1 +1 -1 +1" in env.render(state, 2)
