"""Kuhn poker, two players (Kuhn 1950, "A simplified two-person poker").

Rules: each player antes 1 and gets one card of a deck with one card of each rank. The opener checks or bets 1. After
a check the other player checks (showdown) or bets 1; a bet is answered by a fold or a call (showdown). The higher
card wins the pot. Which seat opens is drawn at reset. A hand has at most 3 actions.

Actions, both always legal:
    0   check, or fold when facing a bet
    1   bet, or call when facing a bet
    An action outside this range is played as 0.

Observation "paper" (R = num_ranks, 9 features by default; all of the observing player's view):
    0 ... R-1       own card, one-hot
    R ... R+1       own chips in the pot, 1 or 2, one-hot
    R+2 ... R+3     opponent's chips in the pot, 1 or 2, one-hot
    R+4 ... R+5     acts first, acts second, one-hot

Observation "information_state" (perfect recall; 11 features by default):
    0 ... R-1       own card, one-hot
    R ... R+1       acts first, acts second, one-hot
    R+2 ... R+7     actions in order: 3 slots x (check/fold, bet/call), one-hot, zeros where not yet played

Reward: net chips, paid when the hand ends.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

ANTE = 1
BET = 1
PASSIVE, AGGRESSIVE = 0, 1
MAX_ACTIONS = 3
SLOT_BITS = 2  # of `State.history`: 0 not played, action + 1 otherwise


@struct.dataclass
class State:
    """State of one hand. Arrays carry no batch axis: use `jax.vmap`."""

    key: jax.Array  # PRNG key of all later hands
    current_player: jax.Array  # int32, seat to act; the last to have acted once the hand is over
    timestep: jax.Array  # int32, actions played in this hand
    returns: jax.Array  # [2] float32, rewards of this hand so far
    finished: jax.Array  # bool, the hand is over
    first_player: jax.Array  # int32, seat that opens
    cards: jax.Array  # [2] int32, rank held, 0 the lowest
    bets: jax.Array  # [2] int32, chips in the pot
    history: jax.Array  # int32, SLOT_BITS for each action, the first action lowest


@dataclass(frozen=True)
class KuhnPoker:
    """Kuhn poker; `num_ranks` (3 to 13) is the size of the deck.

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_ranks: int = 3
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    num_agents: ClassVar[int] = 2
    num_actions: ClassVar[int] = 2
    zero_sum: ClassVar[bool] = True

    def __post_init__(self):
        if type(self.num_ranks) is not int or not 3 <= self.num_ranks <= 13:
            raise ValueError(f"num_ranks={self.num_ranks!r}: an integer from 3 to 13 is allowed")
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def obs_shape(self) -> tuple[int]:
        return (self.num_ranks + (6 if self.observation == "paper" else 8),)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Deals a hand; the key is consumed. Returns the state and f32[*obs_shape], the opener's observation."""
        key, deal_key = jax.random.split(key)
        state = self._deal(key, deal_key)
        return state, self.observe(state, state.current_player)

    def step(self, state: State, action: jax.Array):
        """Plays `action`; where that ends the hand, the state and observation returned are the first of a new hand.

        Args:
            state: a state.
            action: int, the move of `state.current_player`.

        Returns:
            State; observation f32[*obs_shape] of its player to act; reward f32[2]; absorbing bool[2]; done bool;
            info with `returns` f32[2], `timestep` int32, `illegal_action` bool, `winner` bool[2] and `final_state`,
            the state before the new hand.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new hand. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        player = state.current_player
        seats = jnp.arange(2, dtype=jnp.int32)
        is_legal = (action == PASSIVE) | (action == AGGRESSIVE)
        action = jnp.where(is_legal, action, PASSIVE).astype(jnp.int32)
        facing_bet = state.bets[0] != state.bets[1]

        bets = state.bets + jnp.where((seats == player) & (action == AGGRESSIVE), BET, 0).astype(jnp.int32)
        fold = facing_bet & (action == PASSIVE)
        check_back = (state.timestep == 1) & (action == PASSIVE)
        finished = facing_bet | check_back

        winner = jnp.where(fold, 1 - player, (state.cards[1] > state.cards[0]).astype(jnp.int32))
        live = ~state.finished
        won = jnp.where(live & finished, jnp.minimum(bets[0], bets[1]), 0)  # chips that seat 0 wins
        won = jax.lax.optimization_barrier(jnp.where(winner == 0, won, -won))
        reward = jnp.where(seats == 0, won, -won).astype(jnp.float32)
        played = state.replace(
            current_player=jnp.where(finished, player, 1 - player),
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            bets=bets,
            history=state.history | (action + 1) << (SLOT_BITS * state.timestep),
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
        """bool[2], True = legal: both actions, none in a finished state."""
        return jnp.broadcast_to(~state.finished, (2,))

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        own_chips = jnp.where(player == 0, state.bets[0], state.bets[1])
        opponent_chips = jnp.where(player == 0, state.bets[1], state.bets[0])
        features = (
            _one_hot(self._own_card(state, player), self.num_ranks),
            _one_hot(own_chips - ANTE, 2),
            _one_hot(opponent_chips - ANTE, 2),
            _one_hot(player != state.first_player, 2),
        )
        return jnp.concatenate(features)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32[num_ranks + 8], everything that `player` has seen and done, in order."""
        slots = jnp.arange(MAX_ACTIONS, dtype=jnp.int32)[:, None] * SLOT_BITS
        played = (state.history >> slots) % (1 << SLOT_BITS)  # [MAX_ACTIONS, 1]
        features = (
            _one_hot(self._own_card(state, player), self.num_ranks),
            _one_hot(player != state.first_player, 2),
            (played == jnp.array([[1, 2]], jnp.int32)).astype(jnp.float32).reshape(-1),
        )
        return jnp.concatenate(features)

    def deals(self) -> tuple[State, np.ndarray]:
        """All deals, seat 0 opening: batched first states [D] and their probabilities f64[D], D = R (R - 1)."""
        num_deals = self.num_ranks * (self.num_ranks - 1)
        keys = jax.random.split(jax.random.key(0), num_deals)
        states = jax.jit(jax.vmap(self._first_state))(keys, 2 * np.arange(num_deals, dtype=np.uint32))
        return states, np.full(num_deals, 1 / num_deals)

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all cards where `player` is None."""
        lines = []
        for seat in range(2):
            card = int(state.cards[seat]) if player in (None, seat) else "?"
            marks = " opens" * (seat == int(state.first_player))
            marks += " to act" * (seat == int(state.current_player) and not bool(state.finished))
            lines.append(f"seat {seat}: card {card}, {int(state.bets[seat])} in the pot{marks}")
        if bool(state.finished):
            lines.append("over, returns " + " ".join(f"{float(chips):+g}" for chips in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random hand."""
        num_outcomes = 2 * self.num_ranks * (self.num_ranks - 1)
        bits = jax.random.key_data(deal_key)[0]  # data of a fresh key are random: no second hash is needed
        return self._first_state(key, bits % np.uint32(num_outcomes))

    def _first_state(self, key: jax.Array, outcome: jax.Array) -> State:
        """First state of the hand number `outcome` of 2 R (R - 1): two cards without replacement and the opener."""
        others = np.uint32(self.num_ranks - 1)
        first_player = (outcome % np.uint32(2)).astype(jnp.int32)
        deal = outcome // np.uint32(2)
        card_0 = (deal // others).astype(jnp.int32)
        card_1 = (deal % others).astype(jnp.int32)
        return State(
            key=key,
            current_player=first_player,
            timestep=jnp.int32(0),
            returns=jnp.zeros(2, jnp.float32),
            finished=jnp.bool_(False),
            first_player=first_player,
            cards=jnp.where(jnp.arange(2) == 0, card_0, card_1 + (card_1 >= card_0)),
            bets=jnp.full(2, ANTE, jnp.int32),
            history=jnp.int32(0),
        )

    def _own_card(self, state: State, player: jax.Array) -> jax.Array:
        return jnp.where(player == 0, state.cards[0], state.cards[1])


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
