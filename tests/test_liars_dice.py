"""Rules of liar's dice: what GAMES.md says, on chosen and on random games, and step by step against OpenSpiel."""

import collections
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
from solvers.exploitability import evaluate_policy
from solvers.game_tree import build_game_tree, uniform_policy

# Programs run a few times only here: nearly all the time goes into compiling, and half of that into optimising.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make(num_dice=1, num_faces=6, **kwargs):
    return envs.make("liars_dice", num_dice=num_dice, num_faces=num_faces, **kwargs)


def view(env, state):
    """What both players see: observations and information states [2, ...]."""
    players = jnp.arange(2)
    return tuple(jax.vmap(function, (None, 0))(state, players) for function in (env.observe, env.information_state))


@cache
def compiled(env):
    """`step_env`, `view`, `legal_actions` and `_first_state`."""
    return jit(env.step_env), jit(partial(view, env)), jit(env.legal_actions), jit(env._first_state)


@cache
def tree_of(num_dice, num_faces):
    return build_game_tree(make(num_dice, num_faces))


def start(env, *dice, opener=0):
    """First state in which the seats have rolled these faces, 1 to F."""
    packed = [sum(1 << 4 * (face - 1) for face in faces) for faces in dice]
    return compiled(env)[3](jax.random.key(0), np.array(packed, np.uint32), np.int32(opener))


def action_of(env, move):
    """Action of "quantity x face" or "liar"."""
    if move == "liar":
        return env.num_actions - 1
    quantity, face = map(int, move.split("x"))
    return (quantity - 1) * env.num_faces + face - 1


def play(env, state, moves):
    """Plays legal moves, "1x3 2x1 liar"; returns the state, the reward of the last and its info."""
    step, _, legal_actions, _ = compiled(env)
    reward = info = None
    for move in moves.split():
        action = action_of(env, move)
        assert legal_actions(state)[action]
        player = int(state.current_player)
        state, _, reward, absorbing, done, info = step(state, jnp.int32(action))
        assert bool(done) == (move == "liar") == bool(absorbing.all()) == bool(absorbing.any())
        assert int(state.current_player) == (player if done else 1 - player)
    return state, reward, info


# Rules on chosen games


@pytest.mark.parametrize("opener", [0, 1])
@pytest.mark.parametrize(
    ("dice", "bids", "bidder_wins"),  # of six faces; dice of the opener and the other
    [
        (((3,), (5,)), "1x3", True),
        (((5,), (3,)), "1x3", True),
        (((2,), (5,)), "1x3", False),
        (((6,), (5,)), "1x3", True),  # the six is wild
        (((6,), (5,)), "1x6", True),
        (((3,), (5,)), "1x6", False),  # nothing stands for a six
        (((3,), (3,)), "1x1 1x3 2x3", True),
        (((3,), (6,)), "2x3", True),
        (((6,), (6,)), "2x1", True),
        (((6,), (6,)), "2x6", True),
        (((6,), (3,)), "2x6", False),
        (((3,), (4,)), "2x3", False),
        (((3, 3), (6, 1)), "1x1 3x3", True),
        (((3, 3), (6, 1)), "1x1 3x3 4x3", False),
        (((6, 6), (6, 6)), "4x2", True),
        (((6, 6), (6, 2)), "1x1 4x2", True),
        (((6, 6), (6, 2)), "4x6", False),
        (((1, 1), (1, 1)), "4x1", True),
    ],
)
def test_the_bidder_wins_where_the_quantity_is_there_counting_wild_ones(dice, bids, bidder_wins, opener):
    env = make(len(dice[0]))
    state = start(env, *(dice if opener == 0 else dice[::-1]), opener=opener)
    state, reward, info = play(env, state, bids + " liar")
    caller = (opener + len(bids.split())) % 2
    winner = 1 - caller if bidder_wins else caller
    assert reward.tolist() == [1 if seat == winner else -1 for seat in range(2)]
    assert info["winner"].tolist() == [seat == winner for seat in range(2)]
    assert state.returns.tolist() == reward.tolist()
    assert not compiled(env)[2](state).any()


@pytest.mark.parametrize(("num_dice", "num_faces"), [(1, 2), (1, 6), (2, 3), (6, 8)])
def test_bids_only_rise_and_liar_comes_after_a_bid(num_dice, num_faces):
    env = make(num_dice, num_faces)
    num_bids = 2 * num_dice * num_faces
    assert env.num_actions == num_bids + 1
    step, _, legal_actions, first_state = compiled(env)
    state = first_state(jax.random.key(0), np.full(2, num_dice, np.uint32), np.int32(0))  # all dice show 1
    assert np.flatnonzero(legal_actions(state)).tolist() == list(range(num_bids))
    for bid in range(num_bids):
        state, _, reward, _, done, _ = step(state, jnp.int32(bid))
        assert not done
        assert not reward.any()
        assert np.flatnonzero(legal_actions(state)).tolist() == list(range(bid + 1, num_bids + 1))
    assert np.flatnonzero(legal_actions(state)).tolist() == [num_bids]  # after the highest bid, only liar
    state, *_, done, info = step(state, jnp.int32(num_bids))
    assert done
    assert int(info["timestep"]) == num_bids + 1


def test_an_illegal_action_is_the_next_bid_or_liar_after_the_highest():
    env = make(1, 3)
    step, *_ = compiled(env)
    for line, wrong, right in (
        ("", (6, -1, 7, 2**31 - 1, -(2**31)), 0),
        ("1x2", (0, 1, -1, 7), 2),
        ("1x3 2x2", (0, 4, 99), 5),
        ("2x3", (0, 5, -1, 7), 6),
    ):
        state, *_ = play(env, start(env, (1,), (3,)), line)
        expected, *_, info = step(state, jnp.int32(right))
        assert not info["illegal_action"]
        for action in wrong:
            played, *_, info = step(state, jnp.int32(action))
            assert info["illegal_action"]
            for name in ("bids", "last_bid", "finished", "returns", "current_player", "timestep"):
                np.testing.assert_array_equal(getattr(played, name), getattr(expected, name))


# Observations bit for bit


def features(size, places):
    row = np.zeros(size, np.float32)
    for place, number in places.items():
        row[place] = number
    return row


@pytest.mark.parametrize("opener", [0, 1])
def test_paper_observation_is_own_dice_last_bid_and_who_acts(opener):
    """Three dice, two faces: counts 0-1, last bid 2-13, who acts 14-15. The opener holds 1 1 2, the other 2 2 2."""
    env = make(3, 2)
    dice = ((1, 1, 2), (2, 2, 2))
    state = start(env, *(dice if opener == 0 else dice[::-1]), opener=opener)
    own = ({0: 2, 1: 1}, {1: 3})
    for line, last_bid, acts in (("", None, 0), ("1x1", 2, 1), ("1x1 3x2", 7, 0), ("1x1 3x2 liar", 7, None)):
        observations, _ = compiled(env)[1](play(env, state, line)[0])
        for seat in range(2):
            player = (seat + opener) % 2  # 0: the opener
            places = own[player] | ({} if last_bid is None else {last_bid: 1})
            places |= {} if acts is None else {14 + (acts != player): 1}
            np.testing.assert_array_equal(observations[seat], features(16, places))
    assert make().obs_shape == (20,)


@pytest.mark.parametrize("opener", [0, 1])
def test_information_state_is_own_dice_seat_and_all_bids(opener):
    """Counts 0-1, opens 2, acts second 3, bids 4-15, liar 16."""
    env = make(3, 2)
    dice = ((1, 1, 2), (2, 2, 2))
    state = start(env, *(dice if opener == 0 else dice[::-1]), opener=opener)
    own = ({0: 2, 1: 1, 2: 1}, {1: 3, 3: 1})
    for line, bids in (("", ()), ("1x1", (4,)), ("1x1 3x2", (4, 9)), ("1x1 3x2 liar", (4, 9, 16))):
        _, information = compiled(env)[1](play(env, state, line)[0])
        for seat in range(2):
            expected = features(17, own[(seat + opener) % 2] | dict.fromkeys(bids, 1))
            np.testing.assert_array_equal(information[seat], expected)
    assert make(observation="information_state").obs_shape == (21,)


# Random games


def dice_of(state, num_faces):
    """int[..., 2, F] how many dice of each seat show each face."""
    return np.asarray(state.dice)[..., None] >> np.arange(0, 4 * num_faces, 4) & 15


@partial(jit, static_argnums=(0, 2))
def play_games(env, key, num_games):
    """Random games; one action in eight is drawn from -2 ... A + 1. Returns what was there before each action and what
    it brought, [T, G, ...], and the last states."""
    reset_key, action_key = jax.random.split(key)
    states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, num_games))

    def turn(states, key):
        choice_key, wild_key, number_key = jax.random.split(key, 3)
        legal = jax.vmap(env.legal_actions)(states)
        actions = jnp.where(legal, jax.random.uniform(choice_key, legal.shape), -1.0).argmax(-1)
        wild = jax.random.randint(number_key, actions.shape, -2, env.num_actions + 2)
        actions = jnp.where(jax.random.uniform(wild_key, actions.shape) < 1 / 8, wild, actions)
        nexts, _, rewards, absorbing, done, info = jax.vmap(env.step_env)(states, actions)
        observations, information = jax.vmap(partial(view, env))(states)
        before = {"state": states.replace(key=None), "obs": observations, "information": information, "legal": legal}
        after = {"action": actions, "reward": rewards, "done": done, "absorbing": absorbing}
        return nexts, before | after | {"illegal": info["illegal_action"], "winner": info["winner"]}

    states, record = jax.lax.scan(turn, states, jax.random.split(action_key, env.num_actions))
    return record, states.replace(key=None)


def replay(game, dice, moves):
    """Plays one game in OpenSpiel, where the opener is player 0: masks [T, A], who acts [T], -1 when the game is over,
    what the players know [T, 2], and the returns [2]."""
    state = game.new_initial_state()
    num_faces = dice.shape[-1]
    for faces in dice:
        for face in np.repeat(np.arange(num_faces), faces):
            assert [outcome for outcome, _ in state.chance_outcomes()] == list(range(num_faces))
            state.apply_action(int(face))
    legal = np.zeros((len(moves), game.num_distinct_actions()), bool)
    player = np.full(len(moves), -1)
    known = []
    for turn, move in enumerate(moves):
        if state.is_terminal():
            break
        legal[turn, state.legal_actions()] = True
        player[turn] = state.current_player()
        known.append([state.information_state_string(0), state.information_state_string(1)])
        state.apply_action(move)
    assert state.is_terminal()
    return legal, player, known, state.returns()


def compare_with_open_spiel(env, num_games, seed):
    """Plays random games and compares every step. Returns the numbers of distinct games and of openers."""
    D, F, B, T = env.num_dice, env.num_faces, env.num_bids, env.num_actions
    record, last = jax.tree.map(np.asarray, play_games(env, jax.random.key(seed), num_games))
    record = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), record)  # [G, T, ...]
    opener = last.first_player
    from_opener = (opener[:, None] + np.arange(2)) % 2
    dice = np.take_along_axis(dice_of(last, F), from_opener[..., None], 1)  # [G, 2, F]
    assert (dice.sum(-1) == D).all()

    action, legal = record["action"], record["legal"]
    in_range = (action >= 0) & (action <= B)
    is_legal = in_range & np.take_along_axis(legal, np.where(in_range, action, 0)[..., None], -1)[..., 0]
    live = legal.any(-1)  # [G, T]
    moves = np.where(is_legal, action, legal.argmax(-1))
    game = pyspiel.load_game(f"liars_dice(players=2,numdice={D},dice_sides={F})")
    replayed = [replay(game, *pair) for pair in zip(dice, moves.tolist(), strict=True)]
    told_legal, told_player, known, returns = zip(*replayed, strict=True)

    # masks, who acts, illegal actions, the end, rewards
    np.testing.assert_array_equal(legal, told_legal)
    np.testing.assert_array_equal(record["illegal"], live & ~is_legal)
    player = (record["state"].current_player - opener[:, None]) % 2
    np.testing.assert_array_equal(np.where(live, player, -1), told_player)
    ends = live & (np.cumsum(live, 1) == live.sum(1, keepdims=True))
    np.testing.assert_array_equal(record["done"], ~live | ends)
    np.testing.assert_array_equal(record["absorbing"], np.repeat((~live | ends)[..., None], 2, -1))
    by_seat = np.take_along_axis(np.array(returns), from_opener, 1)  # exchanging two is its own inverse
    np.testing.assert_array_equal(record["reward"], ends[..., None] * by_seat[:, None])
    np.testing.assert_array_equal(last.returns, by_seat)
    np.testing.assert_array_equal(record["winner"], (~live | ends)[..., None] & (by_seat[:, None] > 0))

    # observations, by the opener's player numbers
    made = np.cumsum(np.eye(B + 1, dtype=int)[moves] * live[..., None], 1)
    made = np.concatenate([np.zeros_like(made[:, :1]), made[:, :-1]], 1)  # [G, T, B + 1] before each action
    last_bid = made[..., :B] * (np.cumsum(made[..., B - 1 :: -1], -1)[..., ::-1] == 1)
    for number in range(2):
        seat = from_opener[:, number, None, None, None]
        own = np.repeat(dice[:, None, number], T, 1)
        acts = np.eye(2, dtype=int)[(player != number).astype(int)] * live[..., None]
        paper = np.concatenate([own, last_bid, acts], -1)
        np.testing.assert_array_equal(np.take_along_axis(record["obs"], seat, 2)[:, :, 0], paper)
        opens = np.broadcast_to(np.eye(2, dtype=int)[number], (num_games, T, 2))
        whole = np.concatenate([own, opens, made], -1)
        information = np.take_along_axis(record["information"], seat, 2)[:, :, 0]
        np.testing.assert_array_equal(information, whole)
        # the information state and OpenSpiel's tell each other, both ways
        pairs = {
            (row.tobytes(), told[number])
            for rows, tellings in zip(information, known, strict=True)
            for row, told in zip(rows, tellings, strict=False)
        }
        assert len({row for row, _ in pairs}) == len({told for _, told in pairs}) == len(pairs)
    return len(np.unique(np.concatenate([dice.reshape(num_games, -1), moves * live], 1), axis=0)), len(set(opener))


SIZES = [(1, 6), (1, 4), (2, 3), (1, 2), (3, 2), (2, 6), (5, 6), (6, 8)]  # dice, faces


@pytest.mark.parametrize(("num_dice", "num_faces"), SIZES)
def test_64_random_games_are_played_as_in_open_spiel(num_dice, num_faces):
    num_distinct, num_openers = compare_with_open_spiel(make(num_dice, num_faces), 64, seed=0)
    assert num_distinct >= (24 if num_dice * num_faces == 2 else 48)
    assert num_openers == 2


@pytest.mark.full
@pytest.mark.parametrize(("num_dice", "num_faces"), SIZES)
def test_12500_random_games_are_played_as_in_open_spiel(num_dice, num_faces):
    for seed in range(1, 6):
        compare_with_open_spiel(make(num_dice, num_faces), 2_500, seed)


@pytest.mark.parametrize(("num_dice", "num_faces"), [(1, 6), (3, 4)])
def test_no_player_sees_the_others_dice_in_10000_states(num_dice, num_faces):
    env = make(num_dice, num_faces)
    record, _ = play_games(env, jax.random.key(7), 10_000 // env.num_actions + 1)
    states = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), record["state"])
    num_states = len(states.timestep)
    assert num_states >= 10_000
    faces = np.random.default_rng(0).integers(num_faces, size=(num_states, num_dice))
    rerolled = (1 << 4 * faces).sum(-1).astype(np.uint32)
    look = jit(jax.vmap(lambda state: (*view(env, state), env.legal_actions(state))))
    seen = look(states)
    for player in range(2):
        dice = np.where(np.arange(2) == player, states.dice, rerolled[:, None])
        observations, information, legal = look(states.replace(dice=dice))
        np.testing.assert_array_equal(observations[:, player], seen[0][:, player])
        np.testing.assert_array_equal(information[:, player], seen[1][:, player])
        np.testing.assert_array_equal(legal, seen[2])
        assert (np.asarray(observations[:, 1 - player]) != np.asarray(seen[0][:, 1 - player])).any(-1).mean() > 0.5


# Information states, exploitability


def open_spiel_information_states(num_dice, num_faces):
    """Information states in which OpenSpiel's players act, and the number of decision nodes."""
    known, num_nodes = set(), 0
    rest = [pyspiel.load_game(f"liars_dice(players=2,numdice={num_dice},dice_sides={num_faces})").new_initial_state()]
    while rest:
        state = rest.pop()
        if not state.is_terminal():
            if not state.is_chance_node():
                known.add((state.current_player(), state.information_state_string()))
                num_nodes += 1
            rest += [state.child(action) for action in state.legal_actions()]
    return known, num_nodes


@pytest.mark.parametrize(("num_dice", "num_faces"), [(1, 2), (1, 4), (2, 2)])
def test_there_are_as_many_information_states_as_in_open_spiel(num_dice, num_faces):
    tree = tree_of(num_dice, num_faces)
    known, num_nodes = open_spiel_information_states(num_dice, num_faces)
    num_bids, num_rolls = 2 * num_dice * num_faces, math.comb(num_dice + num_faces - 1, num_dice)
    assert len(known) == tree.num_infosets == num_rolls << num_bids
    assert num_nodes == num_faces ** (2 * num_dice) << num_bids  # with ordered dice
    assert (tree.node_infoset >= 0).sum() == num_rolls**2 << num_bids


@pytest.mark.parametrize(
    ("num_dice", "num_faces", "exploitability"),
    [(1, 4, 0.6550595), (1, 5, 0.7208709), (1, 6, 0.7807443), (2, 3, 0.7389959)],
)
def test_exploitability_of_the_uniform_policy_is_the_published_one(num_dice, num_faces, exploitability):
    tree = tree_of(num_dice, num_faces)
    with jax.enable_x64(True):
        found = float(jit(evaluate_policy)(tree, uniform_policy(tree)).exploitability)
    assert abs(found - exploitability) < 1e-6


# Dice


def test_deals_are_all_unordered_rolls_with_the_chances_of_ordered_dice():
    for num_dice, num_faces in ((1, 6), (2, 3), (3, 2), (2, 6)):
        env = make(num_dice, num_faces)
        states, probabilities = env.deals()
        rolls = dice_of(states, num_faces).reshape(-1, 2 * num_faces)
        chances = collections.Counter()
        for faces in itertools.product(range(num_faces), repeat=num_dice):
            chances[tuple(np.bincount(faces, minlength=num_faces).tolist())] += num_faces**-num_dice
        expected = {(*a, *b): chances[a] * chances[b] for a, b in itertools.product(chances, repeat=2)}
        assert len(rolls) == len(expected) == math.comb(num_dice + num_faces - 1, num_dice) ** 2
        assert {tuple(row): None for row in rolls.tolist()}.keys() == expected.keys()
        for row, probability in zip(rolls.tolist(), probabilities, strict=True):
            assert math.isclose(probability, expected[tuple(row)], rel_tol=1e-12)
        assert not np.asarray(states.first_player).any()


def test_more_deals_than_50000_are_refused_with_their_number():
    for num_dice, num_faces, number in ((5, 6, "63,504"), (6, 8, "2,944,656")):
        with pytest.raises(ValueError, match=rf"num_dice={num_dice}, num_faces={num_faces}: {number} .*50,000"):
            make(num_dice, num_faces).deals()
    assert len(make(4, 6).deals()[1]) == 126**2


@pytest.mark.parametrize(("num_dice", "num_faces"), [(1, 6), (2, 3), (3, 2)])
def test_reset_and_step_roll_all_dice_and_openers_with_their_chances(num_dice, num_faces):
    env = make(num_dice, num_faces)
    deals, probabilities = env.deals()
    number_of = {tuple(dice): number for number, dice in enumerate(np.asarray(deals.dice).tolist())}
    first, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 20_000))
    step = jit(jax.vmap(env.step, (0, None)))
    middle, *_, done, _ = step(first, jnp.int32(env.num_bids - 1))
    assert not done.any()
    second, *_, done, _ = step(middle, jnp.int32(env.num_bids))
    assert done.all()
    rolls = []
    for states in (first, second):
        roll = np.array([number_of[tuple(dice)] for dice in np.asarray(states.dice).tolist()])
        counts = np.bincount(2 * roll + np.asarray(states.first_player), minlength=2 * len(probabilities))
        assert stats.chisquare(counts, 20_000 * np.repeat(probabilities / 2, 2)).pvalue > 1e-3
        rolls.append(roll)
    # the next roll does not depend on the last one
    assert stats.chi2_contingency(np.histogram2d(*rolls, len(probabilities))[0]).pvalue > 1e-3


# Parameters, text


@pytest.mark.parametrize(
    ("parameter", "values", "allowed"),
    [
        ("num_dice", (0, 7, 1.0, "1", None, True), "1 to 6"),
        ("num_faces", (1, 9, 6.0, None), "2 to 8"),
        ("observation", ("pixels", None, ["paper"]), "'paper' or 'information_state'"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_allowed(parameter, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=parameter) as error:
            envs.make("liars_dice", **{parameter: value})
        assert str(error.value).startswith(f"{parameter}={value!r}: ")
        assert allowed in str(error.value)


def test_render_shows_bids_and_own_dice_only():
    env = make(2, 6)
    state, *_ = play(env, start(env, (2, 5), (6, 1), opener=1), "1x3 3x6")
    assert env.render(state) == "seat 0: dice 2 5\nseat 1: dice 1 6 opens to act\nbids: 1x3 3x6"
    assert env.render(state, 0) == "seat 0: dice 2 5\nseat 1: dice ? ? opens to act\nbids: 1x3 3x6"
    over, *_ = play(env, state, "liar")
    assert env.render(over, 1).endswith("seat 1: dice 1 6 opens\nbids: 1x3 3x6 liar\nover, returns -1 +1")
