"""Liar's dice, two players, one round (the game of ReBeL: Brown et al. 2020, "Combining deep reinforcement learning and
search for imperfect-information games").

Rules: each player rolls D dice with F faces and sees only his own. The opener, drawn at reset, names a quantity and a
face; in turn each player either bids higher (a larger quantity with any face, or the same quantity with a higher face)
or calls "liar", which ends the game. The highest face is wild: it counts as every face. If at least the quantity named
last is there, among both players' dice, the bidder wins, else the caller. A game has at most 2 * D * F + 1 actions.

Actions (B = 2 * D * F):
    0 ... B-1   bid quantity action // F + 1 of face action % F + 1, legal when higher than the last bid
    B           liar, legal after a bid
    An illegal action is played as the lowest legal one: the next bid, or liar after the highest bid.

Observation "paper" (F + B + 2 features, 20 by default; all of the observing player's view):
    0 ... F-1       own dice that show each face, a number
    F ... F+B-1     last bid, one-hot, zeros before the first
    F+B, F+B+1      oneself is to act, the other is to act, one-hot, zeros when the game is over

Observation "information_state" (perfect recall; F + B + 3 features, 21 by default):
    0 ... F-1       own dice that show each face, a number
    F, F+1          opens, acts second, one-hot
    F+2 ... F+B+1   all bids made, binary; they only rise and the players take turns, so this gives their order and
                    who made them
    F+B+2           "liar" was called

Reward: 1 to the winner, -1 to the other, paid when the game ends. Dice are never shown to the other player.
"""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

MAX_DICE, MAX_FACES = 6, 8
COUNT_BITS = 4  # of `State.dice`, for each face: enough to add both players' dice up, and for 8 faces in 32 bits
COUNT_MASK = (1 << COUNT_BITS) - 1
MAX_DEALS = 50_000  # that `deals` lists


@struct.dataclass
class State:
    """State of one game. Arrays carry no batch axis: use `jax.vmap`. B bids, F faces."""

    key: jax.Array  # PRNG key of all later games
    current_player: jax.Array  # int32, seat to act; the one that called once the game is over
    timestep: jax.Array  # int32, actions played in this game
    returns: jax.Array  # [2] float32, rewards of this game so far
    finished: jax.Array  # bool, the game is over
    first_player: jax.Array  # int32, seat that opens
    dice: jax.Array  # [2] uint32, COUNT_BITS for each face, the lowest first: how many of the player's dice show it
    last_bid: jax.Array  # int32, -1 before the first
    bids: jax.Array  # [B] bool, bids made


@dataclass(frozen=True)
class LiarsDice:
    """Liar's dice for two players.

    Attributes:
        num_dice: dice of each player, 1 to 6.
        num_faces: faces of a die, 2 to 8.
        observation: "paper" or "information_state".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_dice: int = 1
    num_faces: int = 6
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    num_agents: ClassVar[int] = 2
    zero_sum: ClassVar[bool] = True

    def __post_init__(self):
        if type(self.num_dice) is not int or not 1 <= self.num_dice <= MAX_DICE:
            raise ValueError(f"num_dice={self.num_dice!r}: an integer from 1 to {MAX_DICE} is allowed")
        if type(self.num_faces) is not int or not 2 <= self.num_faces <= MAX_FACES:
            raise ValueError(f"num_faces={self.num_faces!r}: an integer from 2 to {MAX_FACES} is allowed")
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def num_bids(self) -> int:
        return 2 * self.num_dice * self.num_faces

    @property
    def num_actions(self) -> int:
        return self.num_bids + 1

    @property
    def obs_shape(self) -> tuple[int]:
        return (self.num_faces + self.num_bids + (2 if self.observation == "paper" else 3),)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Rolls the dice; the key is consumed. Returns the state and f32[*obs_shape], the opener's observation."""
        key, deal_key = jax.random.split(key)
        state = self._deal(key, deal_key)
        return state, self.observe(state, state.current_player)

    def step(self, state: State, action: jax.Array):
        """Plays `action`; where that ends the game, the state and observation returned are the first of a new game.

        Args:
            state: a state.
            action: int, the move of `state.current_player`.

        Returns:
            State; observation f32[*obs_shape] of its player to act; reward f32[2]; absorbing bool[2]; done bool;
            info with `returns` f32[2], `timestep` int32, `illegal_action` bool, `winner` bool[2] and `final_state`,
            the state before the new game.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new game. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        F, B = self.num_faces, self.num_bids
        seats = jnp.arange(2, dtype=jnp.int32)
        live = ~state.finished
        player, last_bid = state.current_player, state.last_bid
        is_legal = (action > last_bid) & (action <= B) & ((action < B) | (last_bid >= 0))
        action = jnp.where(is_legal, action, last_bid + 1).astype(jnp.int32)
        calls = action == B

        face, quantity = last_bid % F, last_bid // F + 1
        dice = state.dice[0] + state.dice[1]
        found = _count(dice, face) + jnp.where(face == F - 1, 0, _count(dice, F - 1))
        winner = jnp.where(found >= quantity, 1 - player, player)
        won = jnp.where(live & calls, 1 - 2 * winner, 0)  # by seat 0
        action, calls, won = _materialize(action, calls, won)
        reward = jnp.where(seats == 0, won, -won).astype(jnp.float32)
        played = state.replace(
            current_player=jnp.where(calls, player, 1 - player),
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=calls,
            last_bid=jnp.where(calls, last_bid, action),
            bids=state.bids | (jnp.arange(B, dtype=jnp.int32) == action),
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~is_legal,
            "winner": state.finished & (state.returns == state.returns.max()),
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (2,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[B + 1], True = legal, of the player to act; none in a finished state."""
        actions = jnp.arange(self.num_actions, dtype=jnp.int32)
        first_bid = state.last_bid < 0
        return (actions > state.last_bid) & ~(first_bid & (actions == self.num_bids)) & ~state.finished

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        acts = jnp.where(state.finished, -1, player != state.current_player)
        features = (self._own_dice(state, player), _one_hot(state.last_bid, self.num_bids), _one_hot(acts, 2))
        return jnp.concatenate(features)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32[F + B + 3], everything that `player` has seen and done, in order."""
        features = (
            self._own_dice(state, player),
            _one_hot(player != state.first_player, 2),
            state.bids.astype(jnp.float32),
            state.finished.astype(jnp.float32)[None],
        )
        return jnp.concatenate(features)

    def deals(self) -> tuple[State, np.ndarray]:
        """All rolls, seat 0 opening: batched first states [D] and their probabilities f64[D].

        The dice of a player have no order, so rolls have multinomial probabilities.

        Raises:
            ValueError: there are too many; it says how many.
        """
        D, F = self.num_dice, self.num_faces
        num_deals = math.comb(D + F - 1, D) ** 2
        if num_deals > MAX_DEALS:
            raise ValueError(
                f"num_dice={D}, num_faces={F}: {num_deals:,} rolls are too many, up to {MAX_DEALS:,} are listed"
            )
        rolls, probabilities = [], []
        for faces in itertools.combinations_with_replacement(range(F), D):
            counts = [faces.count(face) for face in range(F)]
            rolls.append(sum(count << COUNT_BITS * face for face, count in enumerate(counts)))
            probabilities.append(math.factorial(D) / math.prod(map(math.factorial, counts)) / F**D)
        dice = np.array(list(itertools.product(rolls, rolls)), np.uint32)
        keys = jax.random.split(jax.random.key(0), num_deals)
        states = jax.jit(jax.vmap(self._first_state, in_axes=(0, 0, None)))(keys, dice, np.int32(0))
        return states, np.outer(probabilities, probabilities).reshape(-1)

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all dice where `player` is None."""
        lines = []
        for seat in range(2):
            counts = [int(state.dice[seat]) >> COUNT_BITS * face & COUNT_MASK for face in range(self.num_faces)]
            dice = [str(face + 1) for face, count in enumerate(counts) for _ in range(count)]
            marks = " opens" * (seat == int(state.first_player))
            marks += " to act" * (seat == int(state.current_player) and not bool(state.finished))
            lines.append(f"seat {seat}: dice {' '.join(dice if player in (None, seat) else '?' * len(dice))}{marks}")
        bids = [f"{bid // self.num_faces + 1}x{bid % self.num_faces + 1}" for bid in np.flatnonzero(state.bids)]
        lines.append("bids: " + " ".join([*bids, *["liar"] * bool(state.finished)]))
        if bool(state.finished):
            lines.append("over, returns " + " ".join(f"{float(reward):+g}" for reward in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random game."""
        high, low = jax.random.key_data(deal_key)[:2]  # of a fresh key they are random: no second hash is needed
        first_player, high, low = _draw_number(high, low, 2)
        dice = []
        for _ in range(2):
            counts = jnp.uint32(0)
            for _ in range(self.num_dice):
                face, high, low = _draw_number(high, low, self.num_faces)
                counts = counts + (np.uint32(1) << (COUNT_BITS * face).astype(jnp.uint32))
            dice.append(counts)
        first_player, *dice = _materialize(first_player, *dice)
        return self._first_state(key, jnp.where(jnp.arange(2) == 0, *dice), first_player)

    def _first_state(self, key: jax.Array, dice: jax.Array, first_player: jax.Array) -> State:
        """First state of a game with these dice, uint32[2]."""
        return State(
            key=key,
            current_player=first_player,
            timestep=jnp.int32(0),
            returns=jnp.zeros(2, jnp.float32),
            finished=jnp.bool_(False),
            first_player=first_player,
            dice=dice,
            last_bid=jnp.int32(-1),
            bids=jnp.zeros(self.num_bids, jnp.bool_),
        )

    def _own_dice(self, state: State, player: jax.Array) -> jax.Array:
        """f32[F], how many dice of `player` show each face."""
        dice = jnp.where(player == 0, state.dice[0], state.dice[1])
        return _count(dice, jnp.arange(self.num_faces, dtype=jnp.int32)).astype(jnp.float32)


def _count(dice: jax.Array, face: jax.Array | int) -> jax.Array:
    """int32, how many of the dice in uint32 counts show a face."""
    shift = COUNT_BITS * jnp.asarray(face, jnp.int32)
    return (dice >> shift.astype(jnp.uint32) & COUNT_MASK).astype(jnp.int32)


# repeated block: child_keys (tests/test_repeated_blocks.py)
def _child_keys(key: jax.Array, num: int) -> list[jax.Array]:
    """The keys of `jax.random.split(key, num)`, made one by one: with 1,000 games a CPU is then up to 40 % faster."""
    if jax.random.key_impl(key) == "unsafe_rbg":  # folding the same number in twice would bring back the first key
        return list(jax.random.split(key, num))
    return [jax.random.fold_in(key, child) for child in range(num)]


# repeated block: auto_reset (tests/test_repeated_blocks.py)
def _auto_reset(env, state: State, action: jax.Array):
    """`env.step_env`, and where the episode ended, the first state of a new one; no observation.

    The key is split once; the state that ends and the one that begins carry the same new key.
    """
    key, deal_key = _child_keys(state.key, 2)
    final_state, _, reward, absorbing, done, info = env.step_env(state.replace(key=key), action)
    state = _select_state(done, env._deal(key, deal_key), final_state)
    return state, reward, absorbing, done, info


# repeated block: select_state (tests/test_repeated_blocks.py)
def _select_state(condition: jax.Array, state: State, other: State) -> State:
    """`state` where `condition`, else `other`, field by field. Both carry the same key, which is not selected."""
    selected = jax.tree.map(
        lambda new, old: jnp.where(condition, new, old), state.replace(key=None), other.replace(key=None)
    )
    return selected.replace(key=other.key)


# repeated block: one_hot (tests/test_repeated_blocks.py)
def _one_hot(index: jax.Array, size: int) -> jax.Array:
    """f32[size], 1 at `index`."""
    return (jnp.arange(size, dtype=jnp.int32) == index).astype(jnp.float32)


# repeated block: materialize (tests/test_repeated_blocks.py)
def _materialize(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays as they are, each computed once.

    XLA on a CPU builds whatever computes a value into every operation that uses the value, and so computes it again in
    each, unless a reduction lies between; an `optimization_barrier` does not stop it.
    """

    def materialize(array):
        first = (jnp.arange(2) == 0).reshape(2, *[1] * array.ndim)
        if array.dtype == jnp.bool_:
            return (first & array[None]).any(0)
        return jnp.where(first, array[None], 0).sum(0, dtype=array.dtype)

    return tuple(materialize(array) for array in arrays)


# repeated block: draw_number (tests/test_repeated_blocks.py)
def _draw_number(high: jax.Array, low: jax.Array, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """floor(size * u) as int32, size <= 65536, for the binary fraction u = 0.[high][low], and the two uint32 words of
    the fraction that is left over, which is as random as u but for log2(size) bits."""
    size = np.uint32(size)

    def high_word(word):
        """The upper 32 bits of word * size."""
        return ((word >> 16) * size + ((word & np.uint32(0xFFFF)) * size >> 16)) >> 16

    carry = high_word(low)
    rest = high * size + carry
    return (high_word(high) + (rest < carry)).astype(jnp.int32), rest, low * size
