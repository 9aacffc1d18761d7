"""Rules of goofspiel: what GAMES.md says, on chosen and on random games, and step by step against OpenSpiel."""

import itertools
import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest
from scipy import stats

import envs

# Programs run a few times only here: nearly all the time goes into compiling, and half of that into optimising.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
RETURNS_TYPES = {"points": "total_points", "point_difference": "point_difference", "win_loss": "win_loss"}


def make(num_agents=2, num_cards=13, **kwargs):
    return envs.make("goofspiel", num_agents=num_agents, num_cards=num_cards, **kwargs)


def view(env, state):
    """What all players see: observations, information states, masks."""
    players = jnp.arange(env.num_agents)
    seen = (jax.vmap(function, (None, 0))(state, players) for function in (env.observe, env.information_state))
    return (*seen, env.legal_actions(state))


@cache
def compiled(env):
    """`step_env`, `view` and `_first_state`."""
    return jit(env.step_env), jit(partial(view, env)), jit(env._first_state)


@cache
def step_batch(env):
    return jit(jax.vmap(env.step_env))


@cache
def view_batch(env):
    return jit(jax.vmap(partial(view, env)))


def start(env, prizes):
    """First state of the game with these prizes, values 1 to K in order."""
    if env.prize_order == "descending":
        assert list(prizes) == list(range(env.num_cards, 0, -1))
    unseen, number = sorted(prizes), 0
    for value in prizes:
        number = number * len(unseen) + unseen.index(value)
        unseen.remove(value)
    fraction = ((2 * number + 1) << 63) // math.factorial(env.num_cards)
    words = np.array([fraction >> 32, fraction & 0xFFFFFFFF], np.uint32)
    return compiled(env)[2](jax.random.key(0), words)


def play(env, prizes, *bids):
    """Plays rounds of bids, all of them values 1 to K. Returns states, rewards [T, N] and infos."""
    states, rewards, infos = [start(env, prizes)], [], []
    for turn, cards in enumerate(bids):
        assert int(states[-1].prize) + 1 == prizes[turn]
        state, _, reward, absorbing, done, info = compiled(env)[0](states[-1], jnp.array(cards, jnp.int32) - 1)
        assert bool(done) == (turn == env.num_cards - 1)
        assert absorbing.tolist() == [bool(done)] * env.num_agents
        states.append(state)
        rewards.append(reward.tolist())
        infos.append(info)
    return states, rewards, infos


# Rules on chosen games


def test_the_highest_bid_wins_the_prize_that_showed():
    states, rewards, infos = play(make(2, 4), [3, 1, 4, 2], (2, 1), (1, 4), (4, 3), (3, 2))
    assert rewards == [[3, 0], [0, 1], [4, 0], [2, 0]]
    assert [state.scores.tolist() for state in states] == [[0, 0], [3, 0], [3, 1], [7, 1], [9, 1]]
    assert infos[-1]["winner"].tolist() == [True, False]
    assert not any(info["winner"].any() for info in infos[:-1])
    assert int(states[-1].prize) == -1


@pytest.mark.parametrize(
    ("bids", "won"),
    [
        ((2, 2, 1), [0, 0, 0]),  # the lower bid stands alone, and still gets nothing
        ((1, 3, 3), [0, 0, 0]),
        ((2, 2, 2), [0, 0, 0]),
        ((1, 1, 2), [0, 0, 3]),
        ((3, 1, 2), [3, 0, 0]),
        ((1, 2, 1), [0, 3, 0]),
    ],
)
def test_a_tie_for_the_highest_bid_discards_the_prize(bids, won):
    _, [reward], _ = play(make(3, 3), [3, 2, 1], bids)
    assert reward == won


@pytest.mark.parametrize(
    ("num_agents", "bids", "points"),
    [
        (2, ((1, 1), (2, 2), (3, 3)), [0, 0]),
        (2, ((3, 1), (1, 2), (2, 3)), [3, 3]),
        (2, ((3, 1), (1, 3), (2, 2)), [3, 1]),
        (2, ((1, 2), (2, 1), (3, 3)), [1, 3]),
        (3, ((3, 2, 1), (1, 3, 2), (2, 1, 3)), [3, 1, 2]),
        (3, ((3, 2, 1), (1, 2, 3), (2, 3, 1)), [3, 2, 1]),
        (3, ((3, 1, 1), (1, 2, 3), (2, 3, 2)), [3, 2, 1]),
        (3, ((3, 2, 2), (1, 3, 1), (2, 1, 3)), [3, 1, 2]),
        (3, ((1, 2, 2), (2, 3, 1), (3, 1, 3)), [0, 1, 0]),
        (3, ((1, 3, 1), (2, 1, 3), (3, 2, 2)), [2, 3, 1]),
        (5, ((3, 1, 1, 1, 1), (1, 3, 2, 2, 2), (2, 2, 3, 3, 3)), [3, 1, 0, 0, 0]),
        (5, ((3, 1, 1, 2, 2), (2, 3, 2, 1, 1), (1, 2, 3, 3, 2)), [3, 1, 0, 0, 0]),
        (5, ((3, 3, 3, 3, 3), (1, 1, 2, 2, 1), (2, 2, 1, 1, 2)), [0, 0, 0, 0, 0]),
    ],
)
def test_the_three_rewards_of_one_game(num_agents, bids, points):
    _, rewards, infos = play(make(num_agents, 3), [3, 1, 2], *bids)
    assert np.sum(rewards, 0).tolist() == points
    best = [score == max(points) for score in points]
    assert infos[-1]["winner"].tolist() == best

    _, rewards, infos = play(make(num_agents, 3, reward="point_difference"), [3, 1, 2], *bids)
    mean = np.mean(points)
    difference = [2 * (score - mean) if num_agents == 2 else score - mean for score in points]
    assert not np.any(rewards[:-1])
    np.testing.assert_allclose(rewards[-1], difference, rtol=0, atol=1e-6)
    assert infos[-1]["winner"].tolist() == best

    _, rewards, infos = play(make(num_agents, 3, reward="win_loss"), [3, 1, 2], *bids)
    num_best = sum(best)
    shares = [1 / num_best if is_best else -1 / (num_agents - num_best) for is_best in best]
    assert not np.any(rewards[:-1])
    np.testing.assert_allclose(rewards[-1], [0] * num_agents if all(best) else shares, rtol=0, atol=1e-6)
    assert infos[-1]["winner"].tolist() == best


def test_all_rewards_but_points_are_zero_sum():
    assert [make(reward=reward).zero_sum for reward in RETURNS_TYPES] == [False, True, True]


def test_an_illegal_bid_is_the_lowest_card_held_whatever_the_others_bid():
    env = make(3, 5)
    states, _, _ = play(env, [1, 2, 3, 4, 5], (1, 2, 5), (2, 1, 1))
    for wild in (-(2**31), -1, 5, 2**31 - 1):
        state, *_, info = compiled(env)[0](states[-1], jnp.array([wild, 0, 2], jnp.int32))  # seat 1: used already
        assert info["illegal_action"].tolist() == [True, True, False]
        assert state.bids[:, 2].tolist() == [2, 2, 2]
        assert not (state.scores - states[-1].scores).any()


# Observations bit for bit


def ones_at(size, places):
    row = np.zeros(size, np.float32)
    row[places] = 1
    return row


def test_paper_observation_is_the_prize_and_the_used_cards_by_seat():
    env = make(3, 4)
    states, _, _ = play(env, [2, 4, 1, 3], (1, 4, 2), (3, 1, 4), (2, 2, 1), (4, 3, 3))
    used = {0: (), 1: (0, 3, 1), 2: ((0, 2), (3, 0), (1, 3)), 4: ((0, 1, 2, 3),) * 3}
    for turn, prize in ((0, 1), (1, 3), (2, 0), (4, None)):
        obs, _, legal = compiled(env)[1](states[turn])
        masks = [set(np.atleast_1d(used[turn][seat]) if used[turn] else ()) for seat in range(3)]
        np.testing.assert_array_equal(legal, [[card not in mask for card in range(4)] for mask in masks])
        for player in range(3):
            places = [] if prize is None else [prize]
            for left in range(3):
                places += [4 * (1 + left) + card for card in masks[(player + left) % 3]]
            np.testing.assert_array_equal(obs[player], ones_at(16, places))
    assert make().obs_shape == (39,)
    assert make(7).obs_shape == (104,)


def test_information_state_adds_prizes_to_come_scores_and_all_rounds():
    """Of three cards: paper 0-8, prizes to come 9-11, scores 12-13, rounds of (prize, own bid, other's bid) from 14."""
    env = make(2, 3)
    states, _, _ = play(env, [2, 3, 1], (1, 3), (2, 1), (3, 2))
    to_come = [[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    scores = [(0, 0), (0, 2), (3, 2), (4, 2)]
    rounds = [(2, 1, 3), (3, 2, 1), (1, 3, 2)]
    for turn, state in enumerate(states):
        paper, information, _ = compiled(env)[1](state)
        for player in range(2):
            seen = [(prize, *bids[:: 1 - 2 * player]) for prize, *bids in rounds[:turn]]
            seen += [(prize, 0, 0) for prize, *_ in rounds[turn : turn + 1]]
            seen += [(0, 0, 0)] * (3 - len(seen))
            expected = [*to_come[turn], *np.divide(scores[turn][:: 1 - 2 * player], 6), *np.divide(seen, 3).ravel()]
            np.testing.assert_array_equal(information[player], [*paper[player], *np.float32(expected)])
    assert make(observation="information_state").obs_shape == (93,)


def rounds_of(information, num_agents, num_cards):
    """int [B, K, 1 + N] prize and bids of each round by relative seat, 1 to K and 0 where not known, from the rows."""
    rounds = information[:, -num_cards * (num_agents + 1) :] * num_cards
    assert np.abs(rounds - rounds.round()).max() < 1e-5
    return rounds.round().astype(int).reshape(-1, num_cards, 1 + num_agents)


# Random games


@partial(jit, static_argnums=(0, 2))
def play_games(env, key, num_games):
    """Random games; one card in eight is drawn from -2 ... K + 1. Returns what was there before each round and what it
    brought, [T, G, ...], and the last states."""
    reset_key, action_key = jax.random.split(key)
    states, obs = jax.vmap(env.reset)(jax.random.split(reset_key, num_games))
    players = jnp.arange(env.num_agents)

    def turn(carry, key):
        states, obs = carry
        choice_key, wild_key, number_key = jax.random.split(key, 3)
        legal = jax.vmap(env.legal_actions)(states)
        actions = jnp.where(legal, jax.random.uniform(choice_key, legal.shape), -1.0).argmax(-1)
        wild = jax.random.randint(number_key, actions.shape, -2, env.num_cards + 2)
        actions = jnp.where(jax.random.uniform(wild_key, actions.shape) < 1 / 8, wild, actions)
        nexts, next_obs, rewards, absorbing, done, info = jax.vmap(env.step_env)(states, actions)
        information = jax.vmap(jax.vmap(env.information_state, (None, 0)), (0, None))(states, players)
        before = {"state": states, "obs": obs, "information": information, "legal": legal, "action": actions}
        after = {"reward": rewards, "absorbing": absorbing, "done": done, "illegal": info["illegal_action"]}
        return (nexts, next_obs), before | after | {"winner": info["winner"], "scores": nexts.scores}

    (states, obs), record = jax.lax.scan(turn, (states, obs), jax.random.split(action_key, env.num_cards))
    return record | {"last_obs": obs, "last_state": states}


def replay(game, prizes, bids):
    """Plays one game in OpenSpiel. Returns masks [K, N, K], scores [K, N] after each round, returns [N]."""
    num_cards, num_agents = bids.shape
    state = game.new_initial_state()
    legal = np.zeros((num_cards, num_agents, num_cards), bool)
    scores = np.zeros((num_cards, num_agents), int)
    for turn in range(num_cards):
        if state.is_chance_node():
            left = sorted(prizes[turn:])
            assert [prize for prize, _ in state.chance_outcomes()] == left
            np.testing.assert_allclose([chance for _, chance in state.chance_outcomes()], 1 / len(left))
            state.apply_action(prizes[turn])
        if turn == num_cards - 1:  # the last round was played with the one before it
            assert state.is_terminal()
            legal[turn, np.arange(num_agents), bids[turn]] = True
        else:
            assert state.current_player() == pyspiel.PlayerId.SIMULTANEOUS
            for player in range(num_agents):
                legal[turn, player, state.legal_actions(player)] = True
            state.apply_actions(bids[turn].tolist())
        if turn != num_cards - 2:  # there it has the points of both rounds
            [line] = [line for line in str(state).splitlines() if line.startswith("Points:")]
            scores[turn] = [int(score) for score in line.split()[1:]]
    [line] = [line for line in str(state).splitlines() if line.startswith("Point card sequence:")]
    assert line.split()[3:] == [str(prize + 1) for prize in prizes]
    return legal, scores, state.returns()


def compare_with_open_spiel(env, num_games, seed):
    """Plays random games and compares every step. Returns the numbers of distinct games and of prize orders."""
    N, K = env.num_agents, env.num_cards
    record = play_games(env, jax.random.key(seed), num_games)
    for name in ("state", "last_state"):
        record[name] = record[name].replace(key=None)
    record = jax.tree.map(np.asarray, record)
    prizes = record["state"].prize.T  # [G, T]
    bids = record["last_state"].bids.transpose(0, 2, 1).astype(int)  # [G, T, N]
    random_order = "random" if env.prize_order == "random" else "descending"
    parameters = f"imp_info=False,players={N},num_cards={K},points_order={random_order}"
    game = pyspiel.load_game(f"goofspiel({parameters},returns_type={RETURNS_TYPES[env.reward]})")
    replayed = [replay(game, *pair) for pair in zip(prizes.tolist(), bids, strict=True)]
    legal, scores, returns = map(np.array, zip(*replayed, strict=True))  # [G, T, N, K], [G, T, N], [G, N]

    # masks, and what stands for an illegal bid
    by_game = {name: np.swapaxes(record[name], 0, 1) for name in ("legal", "action", "illegal", "obs", "information")}
    np.testing.assert_array_equal(by_game["legal"], legal)
    action = by_game["action"]
    in_range = (action >= 0) & (action < K)
    is_legal = in_range & np.take_along_axis(legal, np.where(in_range, action, 0)[..., None], -1)[..., 0]
    np.testing.assert_array_equal(by_game["illegal"], ~is_legal)
    np.testing.assert_array_equal(bids, np.where(is_legal, action, legal.argmax(-1)))

    # scores and rewards; those of the last round but one OpenSpiel does not tell
    ours = np.swapaxes(record["scores"], 0, 1)
    told = [turn for turn in range(K) if turn != K - 2]
    np.testing.assert_array_equal(ours[:, told], scores[:, told])
    rewards = np.swapaxes(record["reward"], 0, 1)
    if env.reward == "points":
        np.testing.assert_array_equal(rewards, np.diff(ours, axis=1, prepend=0))
    else:
        assert not rewards[:, :-1].any()
        assert np.abs(rewards.sum(-1)).max() < 1e-5
    if env.reward == "point_difference" and N == 2:
        returns = 2 * returns  # OpenSpiel counts from the mean
    np.testing.assert_allclose(rewards.sum(1), returns, rtol=0, atol=1e-5)
    np.testing.assert_allclose(record["last_state"].returns, returns, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(record["winner"][-1], scores[:, -1] == scores[:, -1].max(-1, keepdims=True))

    # the end
    is_last = (np.arange(K) == K - 1)[:, None]
    np.testing.assert_array_equal(record["done"], np.broadcast_to(is_last, (K, num_games)))
    np.testing.assert_array_equal(record["absorbing"], np.broadcast_to(is_last[..., None], (K, num_games, N)))
    assert not record["winner"][:-1].any()

    # observations
    one_hot = np.eye(K, dtype=np.float32)
    for player in range(N):
        seats = (player + np.arange(N)) % N
        paper = np.concatenate([one_hot[prizes][:, :, None], ~legal[:, :, seats]], 2)
        np.testing.assert_array_equal(by_game["obs"][:, :, player], paper.reshape(num_games, K, -1))
        used_up = np.repeat(np.float32([[0, 1]]), [K, N * K], axis=1)
        np.testing.assert_array_equal(record["last_obs"][:, player], np.tile(used_up, (num_games, 1)))
        rounds = np.concatenate([prizes[..., None], bids[:, :, seats]], 2) + 1  # [G, T, 1 + N]
        before = np.concatenate([np.zeros_like(ours[:, :1]), ours[:, :-1]], 1)  # scores, [G, T, N]
        for turn in range(K):
            seen = rounds * (np.arange(K) <= turn)[None, :, None]
            seen[:, turn, 1:] = 0
            to_come = one_hot[prizes[:, turn + 1 :]].sum(1)
            points = before[:, turn, seats] / np.float32(K * (K + 1) // 2)
            expected = [paper[:, turn].reshape(num_games, -1), to_come, points, seen.reshape(num_games, -1) / K]
            expected = np.concatenate(expected, 1, dtype=np.float32)
            np.testing.assert_allclose(by_game["information"][:, turn, player], expected, rtol=0, atol=1e-6)
    return len(np.unique(np.concatenate([prizes, bids.reshape(num_games, -1)], 1), axis=0)), len(
        np.unique(prizes, axis=0)
    )


VARIANTS = [
    {},
    {"reward": "win_loss", "num_cards": 4},
    {"reward": "point_difference", "prize_order": "descending"},
    {"reward": "win_loss", "num_agents": 3, "num_cards": 6},
    {"reward": "point_difference", "num_agents": 3, "num_cards": 5},
    {"reward": "win_loss", "num_agents": 5, "num_cards": 3, "prize_order": "descending"},
    {"reward": "point_difference", "num_agents": 7, "num_cards": 13},
    {"num_agents": 4, "num_cards": 2},
]


@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_64_random_games_are_played_as_in_open_spiel(kwargs):
    num_distinct, num_orders = compare_with_open_spiel(make(**kwargs), 64, seed=0)
    assert num_distinct >= (8 if kwargs.get("num_cards") == 2 else 50)
    assert (num_orders > 1) == (kwargs.get("prize_order") != "descending")


@pytest.mark.full
@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_12500_random_games_are_played_as_in_open_spiel(kwargs):
    for seed in range(1, 6):
        compare_with_open_spiel(make(**kwargs), 2_500, seed=seed)


# What players know


SAMPLED = [make(2, 13), make(4, 7)]


@cache
def sampled_states(env):
    """10,000 states or a few more of random games, finished ones included, and what is seen in them."""
    record = play_games(env, jax.random.key(3), 10_000 // (env.num_cards + 1) + 1)
    states = [jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), record["state"]), record["last_state"]]
    states = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states)
    assert len(states.timestep) >= 10_000
    return states, view_batch(env)(states)


@pytest.mark.parametrize("env", SAMPLED, ids=["2-13", "4-7"])
def test_no_player_sees_which_prizes_come_in_10000_states(env):
    states, seen = sampled_states(env)
    others = states.replace(prize_draws=jax.random.bits(jax.random.key(4), states.prize_draws.shape, jnp.uint32))
    for expected, other in zip(seen, view_batch(env)(others), strict=True):
        np.testing.assert_array_equal(other, expected)
    # and the prizes that come are others
    cards = np.full((len(states.timestep), env.num_agents), -1, np.int32)
    after, other = (step_batch(env)(batch, cards)[0] for batch in (states, others))
    undecided = np.asarray(states.timestep) < env.num_cards - 3
    assert (np.asarray(after.prize) != np.asarray(other.prize))[undecided].mean() > 0.5


@pytest.mark.parametrize("env", SAMPLED, ids=["2-13", "4-7"])
def test_a_bid_says_nothing_to_others_before_the_round_is_over_in_10000_states(env):
    """All players' observations and masks are those of one state, which has no bid of the round; and what a player
    bids in it, an illegal card included, does not depend on the others' bids of the round, nor does the next prize."""
    N, K = env.num_agents, env.num_cards
    states, _ = sampled_states(env)
    assert ((np.asarray(states.bids) < 0).sum((1, 2)) == N * (K - np.asarray(states.timestep))).all()
    drawn, other = jax.random.randint(jax.random.key(5), (2, len(states.timestep), N), -1, K)
    after, *_, info = step_batch(env)(states, drawn)
    for player in range(N):
        changed, *_, changed_info = step_batch(env)(states, np.where(np.arange(N) == player, drawn, other))
        for name in ("bids", "used"):
            np.testing.assert_array_equal(getattr(changed, name)[:, player], getattr(after, name)[:, player])
        np.testing.assert_array_equal(changed_info["illegal_action"][:, player], info["illegal_action"][:, player])
        np.testing.assert_array_equal(changed.prizes, after.prizes)
        assert (np.asarray(changed.bids) != np.asarray(after.bids)).any()


@pytest.mark.parametrize("env", SAMPLED, ids=["2-13", "4-7"])
def test_remaining_prizes_and_all_scores_can_be_read_from_the_information_state(env):
    """From features of their own, and once more from the rounds alone."""
    N, K = env.num_agents, env.num_cards
    states, (_, information, _) = sampled_states(env)
    shown = np.asarray(states.prizes)[..., None] == np.arange(K)[None, None]
    for player in range(N):
        rows, scores = np.asarray(information[:, player]), np.roll(states.scores, -player, axis=1)
        np.testing.assert_array_equal(rows[:, K * (N + 1) : K * (N + 2)], ~shown.any(1))
        read = rows[:, K * (N + 2) : K * (N + 2) + N] * (K * (K + 1) // 2)
        np.testing.assert_array_equal(read.round(), scores)
        prizes, bids = np.split(rounds_of(rows, N, K), [1], axis=2)
        highest = bids.max(-1, keepdims=True)
        wins = (bids == highest) & (highest > 0) & ((bids == highest).sum(-1, keepdims=True) == 1)
        np.testing.assert_array_equal((wins * prizes).sum(1), scores)
        np.testing.assert_array_equal((prizes == np.arange(1, K + 1)[None, None]).any(1), shown.any(1))


@cache
def all_games(env):
    """Every game there is: prizes [G, K], bids [G, K, N], and information states [K + 1, G, N, ...] before each round
    and at the end."""
    deals, _ = env.deals()
    orders = list(itertools.permutations(range(env.num_cards)))
    lines = np.array(list(itertools.product(orders, repeat=env.num_agents)), np.int32).swapaxes(1, 2)  # [L, K, N]
    states = jax.tree.map(lambda leaf: jnp.repeat(leaf, len(lines), axis=0), deals)
    bids = np.tile(lines, (len(orders), 1, 1))

    @jit
    def play(states, bids):
        def turn(states, bids):
            nexts, *_, info = jax.vmap(env.step_env)(states, bids)
            return nexts, (view_all(states), info["illegal_action"])

        view_all = jax.vmap(lambda state: view(env, state)[1])
        states, (information, illegal) = jax.lax.scan(turn, states, bids)
        return states.prizes, jnp.concatenate([information, view_all(states)[None]]), illegal

    prizes, information, illegal = play(states, bids.swapaxes(0, 1))
    assert not illegal.any()
    return np.asarray(prizes), bids, np.asarray(information)


@pytest.mark.parametrize(("num_agents", "num_cards"), [(2, 3), (3, 2), (2, 4)])
def test_information_states_tell_every_line_of_play_apart(num_agents, num_cards):
    """Prizes shown and bids made are common knowledge, so each sequence of them is one information state."""
    prizes, bids, information = all_games(make(num_agents, num_cards))
    assert len(prizes) == math.factorial(num_cards) ** (num_agents + 1)
    rounds = np.concatenate([prizes[:, :, None], bids], axis=2)  # [G, K, 1 + N]
    numbers = np.zeros((2, len(prizes)), int)  # of what has been played: by sequence, by information state
    expected, found = 0, [set() for _ in range(num_agents)]
    for played in range(num_cards + 1):
        known = np.concatenate([rounds[:, :played].reshape(len(prizes), -1), prizes[:, played : played + 1]], 1)
        sequences, numbers[0] = np.unique(known, axis=0, return_inverse=True)
        assert len(sequences) == (
            math.perm(num_cards, min(played + 1, num_cards)) * math.perm(num_cards, played) ** num_agents
        )
        expected += len(sequences)
        for player in range(num_agents):
            _, numbers[1] = np.unique(information[played, :, player], axis=0, return_inverse=True)
            assert len(np.unique(numbers, axis=1).T) == len(sequences) == numbers[1].max() + 1
            found[player] |= {row.tobytes() for row in information[played, :, player]}
    assert [len(rows) for rows in found] == [expected] * num_agents


def test_what_open_spiel_tells_follows_from_the_information_state():
    prizes, bids, information = all_games(make(2, 3))
    game = pyspiel.load_game("goofspiel(imp_info=False,players=2,num_cards=3,points_order=random)")
    known = [{}, {}]
    for number in range(len(prizes)):
        state = game.new_initial_state()
        for turn in range(2):  # OpenSpiel plays the last round with the second
            state.apply_action(int(prizes[number, turn]))
            for player in range(2):
                told = state.information_state_string(player)
                assert known[player].setdefault(information[turn, number, player].tobytes(), told) == told
            state.apply_actions(bids[number, turn].tolist())
    assert [len(told) for told in known] == [3 + 54] * 2


# Prize orders


def shown_prizes(env, states):
    """[B, K] the prizes of games from their first states, all bidding their lowest cards."""
    step = jit(jax.vmap(lambda state: env.step_env(state, jnp.full(env.num_agents, -1))[0]))
    for _ in range(env.num_cards - 1):
        states = step(states)
    return np.asarray(states.prizes)


@pytest.mark.parametrize("num_cards", [2, 3, 5])
def test_deals_are_all_prize_orders(num_cards):
    env = make(3, num_cards)
    states, probabilities = env.deals()
    orders = shown_prizes(env, states)
    assert sorted(map(tuple, orders.tolist())) == list(itertools.permutations(range(num_cards)))
    np.testing.assert_allclose(probabilities, 1 / math.factorial(num_cards))


def test_deals_of_descending_prizes_are_one():
    for num_cards in (4, 13):
        env = make(2, num_cards, prize_order="descending")
        states, probabilities = env.deals()
        assert probabilities.tolist() == [1]
        assert shown_prizes(env, states).tolist() == [list(range(num_cards))[::-1]]


def test_more_deals_than_50000_are_refused_with_their_number():
    assert len(make(2, 8).deals()[1]) == 40_320
    for num_cards, number in ((9, "362,880"), (13, "6,227,020,800")):
        with pytest.raises(ValueError, match=rf"num_cards={num_cards}.*{number}.*8"):
            make(2, num_cards).deals()


def test_reset_and_step_draw_every_prize_order_equally_often():
    env = make(2, 4)
    first, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 24_000))
    step = jit(jax.vmap(lambda state: env.step(state, jnp.full(2, -1))[0]))
    second = first
    for _ in range(4):
        second = step(second)
    assert not second.timestep.any()
    orders = []
    for states in (first, second):
        _, order, counts = np.unique(shown_prizes(env, states), axis=0, return_inverse=True, return_counts=True)
        assert len(counts) == 24
        assert stats.chisquare(counts).pvalue > 1e-3
        orders.append(order)
    # the next game's order does not depend on the last one's
    assert stats.chi2_contingency(np.histogram2d(*orders, 24)[0]).pvalue > 1e-3


def test_every_prize_of_13_comes_equally_often_in_every_round():
    env = make()
    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 13_000))
    prizes = shown_prizes(env, states)
    assert (np.sort(prizes, axis=1) == np.arange(13)[None]).all()
    counts = np.stack([np.bincount(column, minlength=13) for column in prizes.T])
    assert (stats.chisquare(counts, axis=1).pvalue > 1e-4).all()
    pairs = np.histogram2d(prizes[:, 0], prizes[:, 1], 13)[0]
    assert stats.chisquare(pairs[~np.eye(13, dtype=bool)]).pvalue > 1e-3


# Parameters, text


@pytest.mark.parametrize(
    ("parameter", "values", "allowed"),
    [
        ("num_agents", (1, 8, 2.0, "2", None, True), "2 to 7"),
        ("num_cards", (1, 14, 4.0, None), "2 to 13"),
        ("reward", ("winloss", None, 1, ["points"]), "'points', 'point_difference' or 'win_loss'"),
        ("prize_order", ("ascending", None, 1), "'random' or 'descending'"),
        ("observation", ("pixels", None, ["paper"]), "'paper' or 'information_state'"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_allowed(parameter, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=parameter) as error:
            envs.make("goofspiel", **{parameter: value})
        assert str(error.value).startswith(f"{parameter}={value!r}: ")
        assert allowed in str(error.value)


def test_render_shows_bids_scores_and_prizes_and_those_to_come_to_nobody():
    for kwargs in ({}, {"prize_order": "descending"}):
        env = make(2, 4, **kwargs)
        prizes = [4, 3, 2, 1] if kwargs else [2, 4, 1, 3]
        states, _, _ = play(env, prizes, (1, 3), (4, 2), (2, 1), (3, 4))
        shown, to_come = " ".join(map(str, prizes[:2])), " ".join(map(str, prizes[2:]))
        whole = env.render(states[1])
        assert f"prizes: {shown} ({to_come})" in whole
        assert env.render(states[1], 0) == env.render(states[1], 1) == whole.replace(f" ({to_come})", "")
        assert "seat 0: 0 points, bids 1, holds 2 3 4" in whole
        assert f"seat 1: {prizes[0]} points, bids 3, holds 1 2 4" in whole
        over = env.render(states[4])
        points = " ".join(f"{score:+d}" for score in states[4].scores.tolist())
        assert f"over, returns {points}" in over
        assert "(" not in over
