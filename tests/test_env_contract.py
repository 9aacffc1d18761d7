"""The environment contract, for every game that `available_envs()` names, with each observation it has.

A new game needs an entry in `GAMES` (how its seats turn, what a player cannot see, its passive action), nothing else.
"""

import ast
import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from envs import available_envs, make

ROOT = Path(__file__).resolve().parent.parent
NUM_HANDS, CHUNK_STEPS = 32, 32  # shape [T, E] of what is recorded at once
MIN_EPISODES, MAX_STEPS = 32, 1_300  # the first chunk and the one in which these are reached are kept
NUM_LIVE, NUM_FINISHED = 96, 32  # states that are looked at one by one
NUM_SEEDS = 4_096  # of the starting player
OUT_OF_RANGE = (-(2**31), -1, 0, 7, 2**31 - 1)  # numbers >= 0 but the last are counted from `num_actions`
# Programs run a few times only here: nearly all the time goes into compiling, and half of that into optimising.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


# What cannot be known of a game without knowing it


class Game(NamedTuple):
    """`turn(env, state)`: the state with every seat one place further. `redeal(env, state, player, key)`: another deal
    of the cards, dice, roles and choices that `player` does not see. `passive(env, state, legal)`: the action that
    stands for an illegal one, of a row bool[A]."""

    turn: Callable
    redeal: Callable
    passive: Callable


def turn_fields(per_seat, seat_numbers):
    """Of State fields with a leading axis of seats, and of those that hold a seat (negative: none)."""

    def turn(env, state):
        moved = {name: jnp.roll(getattr(state, name), 1, axis=0) for name in per_seat}
        for name in seat_numbers:
            seat = getattr(state, name)
            moved[name] = jnp.where(seat < 0, seat, (seat + 1) % env.num_agents)
        return state.replace(**moved)

    return turn


def first_legal(*order):
    """The first legal action of `order`, else the lowest-numbered legal one."""

    def passive(env, state, legal):  # noqa: ARG001
        actions = jnp.array([*order, *(action for action in range(env.num_actions) if action not in order)])
        return actions[jnp.argmax(legal[actions])]

    return passive


def shuffle(key, known):
    """A random permutation of the cards 0 ... len(known) - 1 that leaves the `known` ones where they are."""
    unknown_first = jnp.argsort(jnp.where(known, 2.0, jax.random.uniform(key, known.shape)))
    return jnp.where(known, jnp.arange(len(known)), unknown_first[jnp.cumsum(~known) - 1])


def redeal_kuhn(env, state, player, key):
    permuted = shuffle(key, jnp.arange(env.num_ranks) == state.cards[player])
    return state.replace(cards=permuted[state.cards])


def redeal_leduc(env, state, player, key):  # noqa: ARG001
    cards = jnp.arange(6)
    shown = (cards == state.public_card) & (state.betting_round == 1)
    permuted = shuffle(key, (cards == state.cards[player]) | shown)
    return state.replace(cards=permuted[state.cards], public_card=permuted[state.public_card])


def rank_hands(env, hands):
    """Scores int32[N] of the hands [N, 5 to 7]."""
    return sys.modules[type(env).__module__]._rank_hand(hands.T)


def redeal_holdem(env, state, player, key):
    cards = jnp.arange(52)
    num_shown = jnp.array([0, 3, 4, 5])[state.betting_round]
    shown = (cards[:, None] == state.board[None]) & (jnp.arange(len(state.board)) < num_shown)[None]
    permuted = shuffle(key, shown.any(1) | jnp.isin(cards, state.hole_cards[player])).astype(jnp.int32)
    hole_cards, board = permuted[state.hole_cards], permuted[state.board]
    boards = jnp.broadcast_to(board[None], (env.num_agents, len(board)))
    scores = rank_hands(env, jnp.concatenate([hole_cards, boards], axis=1))
    return state.replace(hole_cards=hole_cards, board=board, scores=scores)


def redeal_draw(env, state, player, key):
    cards = jnp.arange(52)
    own = jnp.concatenate([state.dealt_cards[player], state.hole_cards[player]])
    permuted = shuffle(key, jnp.isin(cards, own)).astype(jnp.int32)
    hole_cards = permuted[state.hole_cards]
    in_low, in_high = (
        state.stock_low >> cards.astype(jnp.uint32) & 1,
        state.stock_high >> (cards - 32).astype(jnp.uint32) & 1,
    )
    in_stock = jnp.where(cards < 32, in_low, in_high)
    bits = jnp.where(in_stock == 1, jnp.uint32(1) << (permuted % 32).astype(jnp.uint32), 0)
    return state.replace(
        hole_cards=hole_cards,
        dealt_cards=permuted[state.dealt_cards],
        stock_low=jnp.where(permuted < 32, bits, 0).sum(dtype=jnp.uint32),
        stock_high=jnp.where(permuted < 32, 0, bits).sum(dtype=jnp.uint32),
        scores=jnp.where(state.num_drawn < 0, 0, rank_hands(env, hole_cards)),
    )


def redeal_stud(env, state, player, key):  # of up to seven players: with eight the last card comes from a stock
    places = jnp.arange(7)[None]
    dealt = places < 3 + jnp.minimum(state.betting_round, state.fold_round)[:, None]
    is_own = jnp.arange(env.num_agents)[:, None] == player
    known = jnp.where(dealt & (is_own | ((places >= 2) & (places < 6))), state.cards, -1)
    permuted = shuffle(key, jnp.isin(jnp.arange(52), known)).astype(jnp.int32)
    cards = permuted[state.cards]
    return state.replace(cards=cards, scores=rank_hands(env, cards))


def redeal_goofspiel(env, state, player, key):  # noqa: ARG001
    return state.replace(prize_draws=jax.random.bits(key, (2,), jnp.uint32))


def redeal_liars_dice(env, state, player, key):
    faces = jax.random.randint(key, (env.num_dice,), 0, env.num_faces)
    dice = (1 << 4 * faces).sum().astype(jnp.uint32)  # four bits for the count of each face
    return state.replace(dice=jnp.where(jnp.arange(2) == player, state.dice, dice))


def redeal_bluff(env, state, player, key):
    N, R, C = env.num_agents, env.num_ranks, env.num_copies
    ranks = jnp.arange(R)
    held = jnp.stack([jax.vmap(env._count_of, (None, 0))(words, ranks) for words in (*state.hands, state.pile)])
    owners = jnp.concatenate([(player + jnp.arange(N)) % N, jnp.array([N])])  # the pile last
    ends = jnp.cumsum(held[owners], axis=0)  # [N + 1, R]
    owner = owners[(jnp.arange(C)[None, None] >= ends[:, :, None]).sum(0)].reshape(-1)  # of card C * rank + copy
    card_key, truth_key = jax.random.split(key)
    permuted = shuffle(card_key, owner == player)
    dealt = jnp.zeros((N + 1, R), jnp.uint32).at[owner, permuted // C].add(1)
    cards = (dealt[:, :, None] * jax.vmap(env._packed)(ranks)[None]).sum(1, dtype=jnp.uint32)
    return state.replace(hands=cards[:N], pile=cards[N], is_true=jax.random.bernoulli(truth_key))


def pass_or_first(env, state, legal):  # noqa: ARG001
    return jnp.where(state.phase == 2, 1, jnp.argmax(legal))


def redeal_werewolf(env, state, player, key):
    """Other roles than those that `player` knows, and other choices at night than his own."""
    N = env.num_agents
    places = jnp.arange(N)
    own = (player - state.start_seat) % N
    keys = jax.random.split(key, 7)

    def is_in(mask):
        return (mask >> places & 1) == 1

    def mask_of(members):
        return jnp.where(members, 1 << places, 0).sum(dtype=jnp.int32)

    def rank(seers):
        """Which of the seers `player` is, if he is one."""
        return (seers & (places < own)).sum()

    werewolves, doctors, seers = (is_in(mask) for mask in (state.werewolves, state.doctors, state.seers))
    inspected = jnp.stack([*state.inspected, jnp.int32(0)])
    own_inspected = jnp.where(seers[own], inspected[rank(seers)], 0)
    found = is_in(own_inspected)
    known = (places == own) | (werewolves & (found | werewolves[own]))
    roles = 1 * werewolves + 2 * doctors + 3 * seers
    roles = roles[shuffle(keys[0], known | found)][shuffle(keys[1], ~found | werewolves)]
    others = jax.random.randint(keys[2], inspected.shape, 0, 1 << N, jnp.int32)
    inspected = jnp.where((jnp.arange(len(inspected)) == rank(roles == 3)) & seers[own], own_inspected, others)
    history = state.history.reshape(-1, N)
    choices = jax.random.randint(keys[3], history.shape, 0, N + 1, jnp.int16)
    history = jnp.where(places[None] == own, history, history & ~15 | choices).reshape(-1)
    state = state.replace(
        werewolves=mask_of(roles == 1),
        doctors=mask_of(roles == 2),
        seers=mask_of(roles == 3),
        inspected=tuple(inspected[:-1]),
        history=history,
    )
    acts = state.current_player == player
    other_player = (player + jax.random.randint(keys[4], (), 1, N, jnp.int32)) % N
    protected, to_act = jax.random.randint(keys[5], (2,), 1, 1 << N, jnp.int32)
    night = state.replace(
        current_player=jnp.where(acts, player, other_player).astype(jnp.int32),
        protected=protected,
        to_act=to_act,
        votes=jax.random.randint(keys[6], (N,), 0, 3, jnp.int8),
    )
    at_night = state.phase == 0
    return jax.tree.map(partial(jnp.where, at_night), night.replace(key=None), state.replace(key=None)).replace(
        key=state.key
    )


def redeal_kemps(env, state, player, key):
    cards = jnp.arange(env.deck_size)
    words, bits = cards // env.word_cards, (cards % env.word_cards).astype(jnp.uint32)
    sets = jnp.concatenate([state.hands, state.undealt[None]])
    held = (sets[:, words] >> bits[None] & 1) == 1  # [N + 1, D]
    permuted = shuffle(key, held[player] | ~held.any(0))
    of_word = words[None] == jnp.arange(env.num_words)[:, None]  # [W, D]
    sets = jnp.where(held[:, permuted][:, None] & of_word[None], jnp.uint32(1) << bits[None, None], 0)
    sets = sets.sum(-1, dtype=jnp.uint32)
    return state.replace(hands=sets[:-1], undealt=sets[-1])


LEDUC_SEATS = (("returns", "cards", "bets"), ("current_player", "first_player"))
HOLDEM_SEATS = (("returns", "hole_cards", "scores", "contributions", "folded"), ("current_player", "button"))
NO_LIMIT_SEATS = ((*HOLDEM_SEATS[0], "stacks"), HOLDEM_SEATS[1])
DRAW_SEATS = ((*NO_LIMIT_SEATS[0], "dealt_cards", "num_drawn"), NO_LIMIT_SEATS[1])
STUD_SEATS = (("returns", "cards", "scores", "contributions", "fold_round"), ("current_player", "dealer", "bring_in"))
GAMES = {
    "goofspiel": Game(turn_fields(("returns", "scores", "used", "bids"), ()), redeal_goofspiel, first_legal()),
    "liars_dice": Game(
        turn_fields(("returns", "dice"), ("current_player", "first_player")), redeal_liars_dice, first_legal()
    ),
    "bluff": Game(turn_fields(("returns", "hands"), ("current_player", "claimant")), redeal_bluff, pass_or_first),
    # the no-op with signal 0, always legal
    "kemps": Game(turn_fields(("returns", "hands", "signals"), ("dealer",)), redeal_kemps, first_legal(13 * 13 * 2)),
    # nobody accused, else the lowest-numbered choice
    "werewolf": Game(
        turn_fields(("returns",), ("current_player", "start_seat")),
        redeal_werewolf,
        lambda env, state, legal: first_legal(env.num_actions - 1)(env, state, legal),
    ),
    "kuhn_poker": Game(turn_fields(*LEDUC_SEATS), redeal_kuhn, first_legal(0)),
    "leduc_holdem": Game(turn_fields(*LEDUC_SEATS), redeal_leduc, first_legal(0, 1)),
    # check where it is legal, else fold
    "texas_limit_holdem": Game(turn_fields(*HOLDEM_SEATS), redeal_holdem, first_legal(3, 2)),
    "texas_nolimit_holdem": Game(turn_fields(*NO_LIMIT_SEATS), redeal_holdem, first_legal(4, 0)),
    "five_card_draw": Game(turn_fields(*DRAW_SEATS), redeal_draw, first_legal(4, 0)),
    "seven_card_stud": Game(turn_fields(*STUD_SEATS), redeal_stud, first_legal(3, 2)),
}


def game_of(env):
    name = type(env).__module__.removeprefix("envs.")
    assert name in GAMES, f"{name} has no entry in GAMES of {__file__}"
    return GAMES[name]


# What is run once for each game


def variants(observations):
    """Every game; once more with more seats where their number is a parameter, and with the other observation.

    Both together in the quick suite; each of them alone takes long and is `full`.
    """
    for name in available_envs():
        default = make(name)
        yield pytest.param(default, id=name)
        has_other = "information_state" in observations and hasattr(default, "information_state")
        other = {"observation": "information_state"} if has_other else {}
        if "num_agents" not in {field.name for field in dataclasses.fields(default)}:
            if other:
                yield pytest.param(make(name, **other), id=f"{name}-information_state")
            continue
        for num_agents in range(default.num_agents + 1, default.num_agents + 3):
            try:
                larger = make(name, num_agents=num_agents, **other)
            except ValueError:
                continue
            yield pytest.param(larger, id=f"{name}-{num_agents}" + "-information_state" * bool(other))
            if other:
                alone = make(name, num_agents=num_agents), make(name, **other)
                for env, what in zip(alone, (num_agents, "information_state"), strict=True):
                    yield pytest.param(env, id=f"{name}-{what}", marks=pytest.mark.full)
            break


@pytest.fixture(scope="module", params=list(variants(["paper", "information_state"])))
def env(request):
    """Every game with each of its observations."""
    return request.param


@pytest.fixture(scope="module", params=list(variants(["paper"])))
def game(request):
    """Every game once, for what either does not depend on `observation` or looks at both encodings itself."""
    return request.param


def plain(tree):
    """Numpy arrays; keys as their data."""

    def leaf(array):
        is_key = isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(array) if is_key else array)

    return jax.tree.map(leaf, tree)


def revive(state):
    """A State again, out of `plain(state)`."""
    state = jax.tree.map(jnp.asarray, state)
    return state.replace(key=jax.random.wrap_key_data(state.key))


def assert_same(actual, expected):
    actual, expected = plain(actual), plain(expected)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, left), right in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=jax.tree_util.keystr(path))


def agree(left, right):
    """[B] whether states or arrays with a leading axis are equal in all fields."""
    leaves = zip(jax.tree.leaves(plain(left)), jax.tree.leaves(plain(right)), strict=True)
    return np.all([(a == b).reshape(len(a), -1).all(-1) for a, b in leaves], 0)


def action_shape(env):
    return () if env.api == "aec" else (env.num_agents,)


def seen_by_all(env, state):
    """What every player sees, with leading axis [N]."""
    players = jnp.arange(env.num_agents)
    seen = {"observe": jax.vmap(env.observe, (None, 0))(state, players)}
    if hasattr(env, "information_state"):
        seen["information_state"] = jax.vmap(env.information_state, (None, 0))(state, players)
    return seen


class Play(NamedTuple):
    """Recorded steps, [B, ...]."""

    state: object
    legal: np.ndarray
    action: np.ndarray  # one in eight is drawn from -2 ... A + 1, legal or not
    next_state: object
    obs: np.ndarray
    reward: np.ndarray
    absorbing: np.ndarray
    done: np.ndarray
    info: dict
    final_legal: np.ndarray
    next_legal: np.ndarray
    next_seen: dict  # what every player sees in `next_state`
    paid: np.ndarray  # [B, N] rewards since the reset, this step's included
    steps: np.ndarray  # [B] since the reset, this one included
    again: tuple  # `step_env` on the state before the reset


@partial(jit, static_argnums=0)
def play_chunk(env, carry, keys):
    def turn(carry, key):
        states, paid, steps = carry
        choice_key, wild_key, number_key = jax.random.split(key, 3)
        legal = jax.vmap(env.legal_actions)(states)
        actions = jnp.where(legal, jax.random.uniform(choice_key, legal.shape), -1.0).argmax(-1)
        wild = jax.random.randint(number_key, actions.shape, -2, env.num_actions + 2)
        actions = jnp.where(jax.random.uniform(wild_key, actions.shape) < 1 / 8, wild, actions)
        nexts, obs, reward, absorbing, done, info = jax.vmap(env.step)(states, actions)
        paid, steps = paid + reward, steps + 1
        final = info["final_state"]
        record = Play(
            states,
            legal,
            actions,
            nexts,
            obs,
            reward,
            absorbing,
            done,
            info,
            jax.vmap(env.legal_actions)(final),
            jax.vmap(env.legal_actions)(nexts),
            jax.vmap(partial(seen_by_all, env))(nexts),
            paid,
            steps,
            jax.vmap(env.step_env)(final, actions),
        )
        return (nexts, jnp.where(done[:, None], 0, paid), jnp.where(done, 0, steps)), record

    return jax.lax.scan(turn, carry, keys)


@cache
def fresh_states(env):
    """First states of `NUM_SEEDS` seeds."""
    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), NUM_SEEDS))
    return plain(states)


@cache
def play(env) -> Play:
    """Random play from `NUM_HANDS` seeds: the first steps, and those in which enough episodes have ended."""
    states = revive(rows(fresh_states(env), slice(NUM_HANDS)))
    carry = states, jnp.zeros((NUM_HANDS, env.num_agents)), jnp.zeros(NUM_HANDS, jnp.int32)
    chunks, num_ended = [], 0
    for chunk in range(MAX_STEPS // CHUNK_STEPS):
        carry, record = play_chunk(env, carry, jax.random.split(jax.random.key(chunk + 1), CHUNK_STEPS))
        chunks = [*chunks[:1], plain(record)]
        num_ended += int(record.done.sum())
        if num_ended >= MIN_EPISODES:
            break
    return jax.tree.map(lambda *leaves: np.concatenate([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves]), *chunks)


def rows(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@cache
def sample(env):
    """[B] states, the finished ones last, and an action for each."""
    record = play(env)
    live = np.linspace(0, len(record.done) - 1, NUM_LIVE).astype(int)
    finished = np.resize(np.flatnonzero(record.done), NUM_FINISHED)
    states = jax.tree.map(
        lambda *leaves: np.concatenate(leaves), rows(record.state, live), rows(record.info["final_state"], finished)
    )
    return states, record.action[np.concatenate([live, finished])]


@cache
def step_env_batch(env):
    return jit(jax.vmap(env.step_env))


@cache
def step_batch(env):
    return jit(jax.vmap(env.step))


@cache
def step_single(env):
    return jit(env.step)


def stepped(record):
    """What `step` returned."""
    return record.next_state, record.obs, record.reward, record.absorbing, record.done, record.info


# Parameters, names, errors


def test_env_is_hashable_comparable_printable_replaceable_and_frozen(env):
    parameters = {field.name: getattr(env, field.name) for field in dataclasses.fields(env)}
    twin = type(env)(**parameters)
    assert twin == env
    assert hash(twin) == hash(env)
    assert eval(repr(env), {type(env).__name__: type(env)}) == env
    assert dataclasses.replace(env) == env
    other = "paper" if env.observation == "information_state" else "information_state"
    if hasattr(env, "information_state"):
        assert dataclasses.replace(env, observation=other) != env
    with pytest.raises(dataclasses.FrozenInstanceError):
        env.observation = other


def test_static_attributes_have_their_types(env):
    for name in ("num_agents", "num_actions", "version"):
        assert type(getattr(env, name)) is int
        assert getattr(env, name) > 0
    assert type(env.obs_shape) is tuple
    assert all(type(size) is int for size in env.obs_shape)
    assert env.api in ("aec", "parallel")
    assert type(env.zero_sum) is bool


@pytest.mark.parametrize("name", available_envs())
def test_lists_given_as_parameters_become_tuples(name):
    default = make(name)
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        if isinstance(value, tuple):
            given = make(name, **{field.name: list(value)})
            assert given == default
            assert hash(given) == hash(default)


def test_numpy_numbers_and_arrays_given_as_parameters_are_plain_ones():
    given = {"num_agents": np.int64(3), "stack": np.array([40, 100, 7], np.int32), "observation": np.str_("paper")}
    assert make("texas_nolimit_holdem", **given) == make(
        "texas_nolimit_holdem", num_agents=3, stack=(40, 100, 7), observation="paper"
    )
    with pytest.raises(ValueError, match=r"num_agents=3\.5"):
        make("texas_nolimit_holdem", num_agents=np.float64(3.5))


@pytest.mark.parametrize("name", available_envs())
def test_a_bad_value_is_refused_with_parameter_value_and_what_is_allowed(name):
    default = make(name)
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        bad = {str: "pixels", int: -1, float: -1.0}.get(type(value), "many")
        with pytest.raises(ValueError, match=f"{field.name}.*{bad}") as error:
            make(name, **{field.name: bad})
        told = str(error.value).replace(field.name, "", 1).replace(repr(bad), "", 1)
        assert re.search(r"\d|'\w+'|\bTrue\b", told), f"{error.value} does not say what is allowed"
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"observation.*'pixels'.*'paper'"):
        make(name, observation="pixels")


@pytest.mark.parametrize("name", available_envs())
def test_an_unknown_parameter_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=rf"{name}.*number_of_cards.*observation"):
        make(name, number_of_cards=5)


@pytest.mark.parametrize("name", available_envs())
def test_an_unknown_name_is_refused_with_the_nearest(name):
    for misspelt in (name[:-1], name[1:], name[0] + name[2:], name + "s", name + "-v1"):
        with pytest.raises(ValueError, match=rf"{misspelt}.*did you mean '{name}'"):
            make(misspelt)
    for unknown in ("xyz", "", None, 3):
        with pytest.raises(ValueError, match=name) as error:
            make(unknown)
        assert repr(unknown) in str(error.value)


# Shapes and dtypes


def is_key(spec):
    return jnp.issubdtype(spec.dtype, jax.dtypes.prng_key)


def traced_shapes(env, action_dtype, player):
    """Shapes and dtypes of all that the functions of `env` return."""
    state, obs = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    action = jax.ShapeDtypeStruct(action_shape(env), action_dtype)
    out = {
        "reset": (state, obs),
        "step": jax.eval_shape(env.step, state, action),
        "step_env": jax.eval_shape(env.step_env, state, action),
        "legal_actions": jax.eval_shape(env.legal_actions, state),
        "observe": jax.eval_shape(env.observe, state, player),
        "observe_python_int": jax.eval_shape(lambda state: env.observe(state, 0), state),
    }
    if hasattr(env, "information_state"):
        out["information_state"] = jax.eval_shape(env.information_state, state, player)
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype), leaf.weak_type), out)


PLAYER = jax.ShapeDtypeStruct((), jnp.int32)


def test_shapes_and_dtypes_are_those_of_the_contract(env):
    N, A = env.num_agents, env.num_actions
    seats = () if env.api == "aec" else (N,)
    shapes = traced_shapes(env, jnp.int32, PLAYER)
    state, obs = shapes["reset"]
    assert obs == ((*seats, *env.obs_shape), "float32", False)
    assert shapes["legal_actions"] == ((*seats, A), "bool", False)
    assert shapes["observe"] == shapes["observe_python_int"] == (env.obs_shape, "float32", False)
    if hasattr(env, "information_state"):
        shape, *rest = shapes["information_state"]
        assert rest == ["float32", False]
        if env.observation == "information_state":
            assert shape == env.obs_shape
    for name in ("step", "step_env"):
        next_state, next_obs, reward, absorbing, done, info = shapes[name]
        assert next_state == state
        assert next_obs == obs
        assert reward == ((N,), "float32", False)
        assert absorbing == ((N,), "bool", False)
        assert done == ((), "bool", False)
        assert info["returns"] == ((N,), "float32", False)
        assert info["timestep"] == ((), "int32", False)
        assert info["illegal_action"] == (seats, "bool", False)
        assert info["winner"] == ((N,), "bool", False)
        assert info["final_state"] == state
    assert shapes["step"] == shapes["step_env"]
    assert state.returns == ((N,), "float32", False)
    assert state.timestep == ((), "int32", False)
    if env.api == "aec":
        assert state.current_player == ((), "int32", False)


def test_states_are_integers_and_bools_but_for_key_and_returns(game):
    state, _ = jax.eval_shape(game.reset, jax.eval_shape(lambda: jax.random.key(0)))
    assert dataclasses.is_dataclass(state)
    assert is_key(state.key)
    for field in dataclasses.fields(state):
        if field.name not in ("key", "returns"):
            for leaf in jax.tree.leaves(getattr(state, field.name)):
                assert leaf.dtype == jnp.bool_ or jnp.issubdtype(leaf.dtype, jnp.integer), field.name


def test_dtypes_are_the_same_under_x64(env):
    expected = traced_shapes(env, jnp.int32, PLAYER)
    for action_dtype in (jnp.uint8, jnp.uint32):
        assert traced_shapes(env, action_dtype, PLAYER) == expected
    with jax.enable_x64(True):
        for dtype in (jnp.int32, jnp.int64):
            assert traced_shapes(env, dtype, jax.ShapeDtypeStruct((), dtype)) == expected


def test_first_states_are_the_same_under_x64(game):
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), NUM_SEEDS)[:64]
        states, _ = jax.jit(jax.vmap(game.reset))(keys)
    assert_same(states, rows(fresh_states(game), slice(64)))


# One batch of random play, looked at step by step


def test_returns_are_the_sum_of_rewards(env):
    record = play(env)
    np.testing.assert_allclose(record.info["returns"], record.paid, rtol=0, atol=1e-4)
    assert_same(record.info["returns"], record.info["final_state"].returns)


def test_timestep_counts_the_steps_of_the_episode(env):
    record = play(env)
    assert_same(record.info["timestep"], record.steps)
    assert_same(record.info["timestep"], record.info["final_state"].timestep)


def test_rewards_of_a_zero_sum_game_sum_to_zero_at_every_step(env):
    record = play(env)
    assert record.reward.any()
    if env.zero_sum:
        np.testing.assert_allclose(record.reward.sum(-1), 0, atol=1e-5)


def test_no_action_is_legal_just_where_the_episode_is_over(env):
    record = play(env)
    legal = record.final_legal.reshape(len(record.done), -1, env.num_actions).any(-1)  # [B, seats asked]
    assert_same(legal, np.broadcast_to(~record.done[:, None], legal.shape))
    assert record.next_legal.any(-1).all()


def test_done_is_all_decided_or_a_cut(env):
    record = play(env)
    absorbing, done = record.absorbing, record.done
    assert done.any()
    assert not done.all()
    assert_same(absorbing.any(-1), absorbing.all(-1))
    assert not (absorbing.all(-1) & ~done).any()
    assert not record.info["winner"][~done].any()


def test_done_returns_the_first_state_of_a_fresh_episode_and_keeps_the_last(env):
    record = play(env)
    done, final, fresh = record.done, record.info["final_state"], record.next_state
    assert not fresh.timestep[done].any()
    assert not fresh.returns[done].any()
    assert final.timestep[done].all()
    assert_same(rows(fresh, ~done), rows(final, ~done))
    np.testing.assert_allclose(final.returns, record.state.returns + record.reward, rtol=0, atol=1e-4)
    assert record.reward[done].any()


def test_step_returns_the_observation_of_whoever_acts_next(env):
    record = play(env)
    seen = record.next_seen["observe"]
    if env.api == "aec":
        seen = seen[np.arange(len(seen)), record.next_state.current_player]
    assert_same(record.obs, seen)
    if env.observation == "information_state":
        assert_same(record.next_seen["observe"], record.next_seen["information_state"])


def test_step_env_changes_nothing_in_a_finished_state_and_pays_nothing(env):
    record = play(env)
    done = record.done
    state, _, reward, absorbing, still_done, info = rows(record.again, done)
    final = rows(record.info["final_state"], done)
    assert_same(state, final)
    assert not reward.any()
    assert_same(absorbing, rows(record.absorbing, done))
    assert still_done.all()
    assert not info["illegal_action"].any()
    expected = rows(record.info, done) | {"illegal_action": info["illegal_action"]}
    assert_same(info, expected)


def test_stepped_and_fresh_states_carry_the_same_new_key(game):
    record = play(game)
    keys = record.next_state.key
    assert_same(keys, record.info["final_state"].key)
    parents = jax.random.wrap_key_data(record.state.key)
    assert_same(jax.random.wrap_key_data(keys), jax.vmap(jax.random.split)(parents)[:, 0])
    assert len(np.unique(keys, axis=0)) == len(keys)
    # from one key, states that go on and states that end here arrive at one key
    index = np.resize(np.concatenate([np.flatnonzero(~record.done)[:8], np.flatnonzero(record.done)]), NUM_LIVE)
    states, actions = rows((record.state, record.action), index)
    shared = states.replace(key=np.broadcast_to(states.key[:1], states.key.shape))
    nexts, *_ = step_batch(game)(revive(shared), actions)
    assert len(np.unique(plain(nexts.key), axis=0)) == 1
    assert not agree(nexts.key, shared.key).any()


def test_key_reuse_checker_finds_nothing(game):
    actions = jnp.full(action_shape(game), -1, jnp.int32)

    def episode(key):
        state, _ = game.reset(key)
        for _ in range(2):
            state, *_ = game.step(state, actions)
        return state.timestep

    with jax.debug_key_reuse(True):
        jit(episode)(jax.random.key(0))
        state, _ = jit(game.reset)(jax.random.key(0))
        step = jit(game.step)
        for _ in range(12):
            state, *_ = step(state, actions)


def test_the_passive_action_stands_for_an_illegal_one_and_is_flagged(game):
    record = play(game)
    A = game.num_actions
    legal, actions = record.legal, record.action
    in_range = (actions >= 0) & (actions < A)
    is_legal = in_range & np.take_along_axis(legal, np.clip(actions, 0, A - 1)[..., None], -1)[..., 0]
    assert_same(record.info["illegal_action"], ~is_legal)
    assert not is_legal.all()

    states, _ = sample(game)
    states = revive(rows(states, slice(NUM_LIVE)))
    passive = partial(game_of(game).passive, game)

    @jit
    @jax.vmap
    def choose(state, key):
        """The passive action of everybody to act, and a legal mask's random illegal action (-1: none)."""
        mask = game.legal_actions(state)
        each = passive if game.api == "aec" else jax.vmap(passive, (None, 0))
        illegal = jnp.where(mask, -1.0, jax.random.uniform(key, mask.shape)).argmax(-1)
        return each(state, mask), jnp.where(mask.all(-1), -1, illegal)

    expected_actions, masked = choose(states, jax.random.split(jax.random.key(0), NUM_LIVE))
    expected = step_env_batch(game)(states, expected_actions)
    assert not expected[-1]["illegal_action"].any()
    outside = [A + number if number in (0, 7) else number for number in OUT_OF_RANGE]
    for turn, illegal in enumerate([masked, *outside]):
        if game.api == "aec":
            wrong = jnp.broadcast_to(jnp.asarray(illegal, jnp.int32), (NUM_LIVE,))
            flags = np.ones(NUM_LIVE, bool)
        else:  # one player at a time
            flags = np.broadcast_to(np.arange(game.num_agents) == turn % game.num_agents, expected_actions.shape)
            wrong = jnp.where(flags, jnp.asarray(illegal, jnp.int32), expected_actions)
        state, obs, reward, absorbing, done, info = step_env_batch(game)(states, wrong)
        assert_same(info["illegal_action"], flags)
        assert_same((state, obs, reward, absorbing, done), expected[:-1])
        assert_same(info, expected[-1] | {"illegal_action": info["illegal_action"]})


# Seats, hidden cards


def test_turning_the_seats_turns_rewards_and_leaves_relative_observations(game):
    turn = partial(game_of(game).turn, game)
    states, actions = sample(game)

    @jit
    @jax.vmap
    def compare(state, action):
        turned = turn(state)
        back = state
        for _ in range(game.num_agents):
            back = turn(back)
        turned_action = jnp.roll(action, 1, axis=0) if game.api == "parallel" else action
        stepped, obs, reward, absorbing, done, _ = game.step_env(state, action)
        turned_stepped, turned_obs, turned_reward, turned_absorbing, turned_done, _ = game.step_env(
            turned, turned_action
        )
        one_further = partial(jax.tree.map, lambda leaf: jnp.roll(leaf, 1, axis=0))
        return (
            turned,
            back,
            [
                (one_further(seen_by_all(game, state)), seen_by_all(game, turned)),
                (one_further(seen_by_all(game, stepped)), seen_by_all(game, turned_stepped)),
                (one_further((reward, absorbing)), (turned_reward, turned_absorbing)),
                (jnp.roll(obs, int(game.api == "parallel"), axis=0), turned_obs),
                (done, turned_done),
                (
                    jnp.roll(game.legal_actions(state), int(game.api == "parallel"), axis=0),
                    game.legal_actions(turned),
                ),
            ],
        )

    turned, back, pairs = compare(revive(states), actions)
    assert_same(back, states)
    assert not agree(turned, states).all()
    for expected, turned in pairs:
        assert_same(turned, expected)


@cache
def redealt(env):
    """The sampled states as they look to each player, before and after dealing anew what that player does not see."""
    redeal = partial(game_of(env).redeal, env)
    states, _ = sample(env)
    players = jnp.arange(env.num_agents)

    def look(state, player):
        seen = {"observe": env.observe(state, player), "legal_actions": env.legal_actions(state)}
        if env.api == "parallel":
            seen["legal_actions"] = seen["legal_actions"][player]
        else:  # nobody else may know what the player to act may do
            is_own = state.current_player == player
            seen["legal_actions"] = seen["legal_actions"] & is_own
        if hasattr(env, "information_state"):
            seen["information_state"] = env.information_state(state, player)
        return seen

    @jit
    @jax.vmap
    def both(state, key):
        others = jax.vmap(redeal, (None, 0, 0))(state, players, jax.random.split(key, env.num_agents))
        return jax.vmap(look, (None, 0))(state, players), jax.vmap(look)(others, players), others

    return plain(both(revive(states), jax.random.split(jax.random.key(1), len(states.timestep))))


def test_nothing_that_a_player_sees_depends_on_hidden_cards(game):
    before, after, others = redealt(game)
    assert_same(after, before)
    states, _ = sample(game)
    for player in range(game.num_agents):
        assert not agree(rows(others, np.s_[:, player]), states).all(), "the redeal changes nothing"


def test_render_shows_the_table_and_no_hidden_card(game):
    states, _ = sample(game)
    _, _, others = redealt(game)
    differs = 0
    for index in (0, 5, NUM_LIVE - 1, NUM_LIVE):
        state = rows(states, index)
        whole = game.render(state)
        assert isinstance(whole, str)
        assert whole.strip()
        for player in range(game.num_agents):
            other = rows(others, (index, player))
            assert game.render(state, player) == game.render(other, player)
            differs += whole != game.render(other)
    assert differs


# Chance


def test_everybody_opens_equally_often(game):
    if game.api == "parallel":
        pytest.skip("all act at once")
    counts = np.bincount(fresh_states(game).current_player, minlength=game.num_agents)
    assert len(counts) == game.num_agents
    assert stats.chisquare(counts).pvalue > 1e-3


def test_the_same_seed_gives_the_same_trajectory_and_another_seed_another(game):
    def observations():
        state = revive(rows(fresh_states(game), slice(NUM_LIVE)))
        seen = []
        for _ in range(96):
            state, obs, *_ = step_batch(game)(state, jnp.full((NUM_LIVE, *action_shape(game)), -1))
            seen.append(np.asarray(obs).reshape(NUM_LIVE, -1))
        return np.concatenate(seen, -1)

    first = observations()
    assert_same(observations(), first)
    assert len(np.unique(first, axis=0)) == NUM_LIVE


def test_every_team_has_the_same_members_for_the_whole_episode(game):
    assert hasattr(game, "teams") == hasattr(game, "num_teams")
    if not hasattr(game, "teams"):
        return
    record = play(game)
    before, after = (jit(jax.vmap(game.teams))(states) for states in (record.state, record.info["final_state"]))
    assert (after.dtype, after.shape) == (jnp.int32, (len(record.done), game.num_agents))
    np.testing.assert_array_equal(before, after)
    members = (np.asarray(after)[..., None] == np.arange(game.num_teams)).sum(1)
    assert (members > 0).all()
    assert (members.sum(-1) == game.num_agents).all()


def test_deals_have_probabilities_that_sum_to_1_and_seat_0_opens(game):
    try:
        states, probabilities = game.deals()
    except ValueError as error:
        assert re.search(r"\d{3}|\de\+\d", str(error)), "the error says how many deals there are"
        return
    assert probabilities.dtype == np.float64
    assert (probabilities > 0).all()
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=0, atol=1e-12)
    fresh, _ = jax.eval_shape(game.reset, jax.eval_shape(lambda: jax.random.key(0)))
    for got, single in zip(jax.tree.leaves(states), jax.tree.leaves(fresh), strict=True):
        assert got.shape == (len(probabilities), *single.shape)
        assert got.dtype == single.dtype
    if game.api == "aec":
        assert not np.asarray(states.current_player).any()
    assert not np.asarray(states.timestep).any()
    assert len(np.unique(plain(states.key), axis=0)) == len(probabilities)
    fields = [leaf.reshape(len(probabilities), -1) for leaf in jax.tree.leaves(plain(states.replace(key=None)))]
    assert len(np.unique(np.concatenate(fields, -1).astype(np.int64), axis=0)) == len(probabilities)
    with jax.enable_x64(True):
        wide = jax.eval_shape(lambda: game.deals()[0])
    assert [leaf.dtype for leaf in jax.tree.leaves(wide)] == [leaf.dtype for leaf in jax.tree.leaves(states)]


# Transformations


def test_a_single_jitted_step_equals_the_batched_one_and_is_compiled_once(env):
    step, record = step_single(env), play(env)
    for index in range(6):
        state, action = rows((record.state, record.action), index)
        assert_same(step(revive(state), jnp.asarray(action)), rows(stepped(record), index))
    state, _ = env.reset(jax.random.key(4))
    for number in range(40):
        state, *_ = step(state, jnp.full(action_shape(env), number % env.num_actions, jnp.int32))
    assert step._cache_size() == 1


def test_step_without_jit_equals_the_jitted_one(game):
    record = play(game)
    state, action = rows((record.state, record.action), 0)
    assert_same(game.step(revive(state), jnp.asarray(action)), rows(stepped(record), 0))


def test_two_nested_vmaps_equal_one(game):
    record = play(game)
    state, action = jax.tree.map(lambda leaf: leaf[:6].reshape(2, 3, *leaf.shape[1:]), (record.state, record.action))
    out = plain(jit(jax.vmap(jax.vmap(game.step)))(revive(state), action))
    assert_same(jax.tree.map(lambda leaf: leaf.reshape(6, *leaf.shape[2:]), out), rows(stepped(record), slice(6)))


def test_step_can_be_mapped_over_devices(game):
    record = play(game)
    state, action = rows((record.state, record.action), np.s_[:4])
    inputs = revive(state), jnp.asarray(action)
    expected = jax.eval_shape(jax.vmap(game.step), *inputs)
    mesh = jax.make_mesh((1,), ("envs",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    spec = jax.sharding.PartitionSpec("envs")
    mapped = jax.shard_map(jax.vmap(game.step), mesh=mesh, in_specs=spec, out_specs=spec)
    parallel = jax.pmap(jax.vmap(game.step), devices=jax.devices()[:1])
    one_device = jax.tree.map(lambda leaf: leaf[None], inputs)
    for out, lead in ((jax.eval_shape(mapped, *inputs), ()), (jax.eval_shape(parallel, *one_device), (1,))):
        for got, single in zip(jax.tree.leaves(out), jax.tree.leaves(expected), strict=True):
            assert (got.shape, got.dtype) == ((*lead, *single.shape), single.dtype)


# Files


def run_python(code, *arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORT_ALL = """
import importlib, sys
import envs
for name in envs.available_envs():
    importlib.import_module(f"envs.{name}")
    hash(envs.make(name))
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
import jax
assert not jax.live_arrays()
print("clean")
"""


def test_importing_and_making_envs_allocates_nothing_on_the_device():
    assert run_python(IMPORT_ALL, cwd=ROOT) == "clean\n"


RUN_ALONE = """
import dataclasses, importlib, sys
import jax, jax.numpy as jnp
for folder, name in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.path.insert(0, folder)
    module = importlib.import_module(name)
    sys.path.remove(folder)
    [env] = [game() for game in vars(module).values() if dataclasses.is_dataclass(game) and hasattr(game, "step_env")]
    state, obs = env.reset(jax.random.key(0))
    action = jnp.full(() if env.api == "aec" else (env.num_agents,), -1)
    state, obs, reward, *_ = jax.jit(env.step)(state, action)
    assert reward.shape == (env.num_agents,)
    assert env.render(state)
assert not {"envs", "solvers", "baselines"} & set(sys.modules)
print("ran")
"""


def test_a_game_copied_alone_into_an_empty_folder_runs(tmp_path):
    arguments = []
    for name in available_envs():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_bytes((ROOT / "envs" / f"{name}.py").read_bytes())
        arguments += [str(tmp_path / name), name]
    assert run_python(RUN_ALONE, *arguments, cwd=tmp_path) == "ran\n"


@pytest.mark.parametrize("name", available_envs())
def test_a_game_imports_nothing_but_jax_numpy_flax_struct_and_the_standard_library(name):
    imported = set()
    for node in ast.walk(ast.parse((ROOT / "envs" / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    foreign = {path for path in imported if path.split(".")[0] not in {"jax", "numpy", *sys.stdlib_module_names}}
    assert foreign <= {"flax.struct"}


def test_every_game_file_is_registered():
    files = {path.stem for path in (ROOT / "envs").glob("*.py")} - {"__init__", "wrappers"}
    assert files == set(available_envs()) == set(GAMES)
