"""Leduc hold'em, two players (Southey et al. 2005, "Bayes' bluff: opponent modelling in poker").

Rules: the deck is J, Q, K in two suits. Each player antes 1 and gets one card. Two betting rounds with a public card
dealt between them; the same player, drawn at reset, opens both. A bet or raise adds 2 in round one and 4 in round two
to what a call would put in; at most 2 of them a round. A fold gives the pot away. At the showdown a pair with the
public card beats a high card, the higher rank wins, equal ranks split. A hand has at most 8 actions; nobody puts in
more than 13 chips.

Actions:
    0   fold, legal only when facing a bet
    1   call, or check when facing none
    2   raise or bet, legal while fewer than 2 were made in the round
    An illegal action is played as a check, as a fold when facing a bet.

Observation "paper" (36 features; all of the observing player's view):
    0 ... 2         own rank, one-hot
    3 ... 5         rank of the public card, one-hot, zeros before it shows
    6 ... 20        own chips in the pot, 0 to 14, one-hot
    21 ... 35       opponent's chips in the pot, 0 to 14, one-hot
    It tells neither who opened nor what was checked: 936 information sets share 81 observations, so no policy on it
    can be an equilibrium.

Observation "information_state" (perfect recall; 32 features, 288 of them can come up):
    0 ... 2         own rank, one-hot
    3 ... 5         rank of the public card, one-hot, zeros before it shows
    6 ... 7         opens, acts second, one-hot
    8 ... 31        actions in order: 2 rounds x 4 slots x (fold, call, raise), one-hot, zeros where not played

Reward: net chips, paid when the hand ends.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

ANTE = 1
BET_SIZES = (2, 4)  # chips, by round
MAX_RAISES = 2  # a round, the bet included
NUM_RANKS, NUM_SUITS = 3, 2
NUM_CARDS = NUM_RANKS * NUM_SUITS
CHIP_LEVELS = 15  # of the "paper" observation
FOLD, CALL, RAISE = 0, 1, 2
NUM_ROUNDS = 2
ROUND_SLOTS = MAX_RAISES + 2  # most actions in a round: check, bet, raise, call
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
    cards: jax.Array  # [2] int32, card held, 0 to 5; card // NUM_SUITS is its rank
    public_card: jax.Array  # int32, shows in the second round
    bets: jax.Array  # [2] int32, chips in the pot
    betting_round: jax.Array  # int32, 0 or 1
    raises: jax.Array  # int32, bets and raises in this round
    history: jax.Array  # int32, SLOT_BITS for each of NUM_ROUNDS * ROUND_SLOTS actions, the first lowest


@dataclass(frozen=True)
class LeducHoldem:
    """Leduc hold'em.

    Raises:
        ValueError: a parameter is out of its range.
    """

    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    num_agents: ClassVar[int] = 2
    num_actions: ClassVar[int] = 3
    zero_sum: ClassVar[bool] = True

    def __post_init__(self):
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def obs_shape(self) -> tuple[int]:
        return (36,) if self.observation == "paper" else (32,)

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
            info with `returns` f32[2], `timestep` int32, `illegal_action` bool, `winner` bool[2], `phase` int32 (the
            betting round) and `final_state`, the state before the new hand.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        # So that the observation is not computed from the rules: a fifth faster on a CPU with 10,000 games.
        state = jax.lax.optimization_barrier(state.replace(key=None)).replace(key=state.key)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new hand. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        player = state.current_player
        seats = jnp.arange(2, dtype=jnp.int32)
        highest = jnp.maximum(state.bets[0], state.bets[1])
        facing_bet = state.bets[0] != state.bets[1]
        is_legal = (
            ((action == FOLD) & facing_bet) | (action == CALL) | ((action == RAISE) & (state.raises < MAX_RAISES))
        )
        action = jnp.where(is_legal, action, jnp.where(facing_bet, FOLD, CALL)).astype(jnp.int32)
        folds, calls, raises = action == FOLD, action == CALL, action == RAISE

        raise_to = highest + jnp.where(state.betting_round == 0, BET_SIZES[0], BET_SIZES[1]).astype(jnp.int32)
        own_bet = jnp.where(player == 0, state.bets[0], state.bets[1])
        other_bet = jnp.where(player == 0, state.bets[1], state.bets[0])
        own_bet = jnp.where(folds, own_bet, jnp.where(raises, raise_to, highest))
        bets = jnp.where(seats == player, own_bet, state.bets)
        checks_back = player != state.first_player  # the opener's check never ends a round, the other's always does
        round_over = calls & (facing_bet | checks_back)
        finished = folds | (round_over & (state.betting_round == 1))
        next_round = round_over & ~finished

        public_rank = state.public_card // NUM_SUITS
        strength_0, strength_1 = (_strength(state.cards[seat] // NUM_SUITS, public_rank) for seat in range(2))
        ahead = jnp.where(folds, 2 * player - 1, jnp.sign(strength_0 - strength_1))  # of seat 0 over seat 1
        live = ~state.finished
        won = jnp.where(live & finished, ahead * jnp.minimum(own_bet, other_bet), 0)  # chips that seat 0 wins
        won = jax.lax.optimization_barrier(won)
        reward = jnp.where(seats == 0, won, -won).astype(jnp.float32)

        round_history = state.history >> (SLOT_BITS * ROUND_SLOTS * state.betting_round)
        round_actions = sum(
            (round_history >= 1 << (SLOT_BITS * slot)).astype(jnp.int32) for slot in range(ROUND_SLOTS - 1)
        )
        slot = ROUND_SLOTS * state.betting_round + round_actions
        played = state.replace(
            current_player=jnp.where(finished, player, jnp.where(next_round, state.first_player, 1 - player)),
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            bets=bets,
            betting_round=state.betting_round + next_round,
            raises=jnp.where(next_round, 0, state.raises + raises),
            history=state.history | (action + 1) << (SLOT_BITS * slot),
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~is_legal,
            "winner": state.finished & (state.returns == state.returns.max()),
            "phase": state.betting_round,
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (2,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[3], True = legal, of the player to act; none in a finished state."""
        can_fold = state.bets[0] != state.bets[1]
        can_raise = state.raises < MAX_RAISES
        return jnp.stack([can_fold, jnp.ones_like(can_fold), can_raise]) & ~state.finished

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        own_chips = jnp.where(player == 0, state.bets[0], state.bets[1])
        opponent_chips = jnp.where(player == 0, state.bets[1], state.bets[0])
        features = (
            _one_hot(self._own_rank(state, player), NUM_RANKS),
            _one_hot(self._shown_rank(state), NUM_RANKS),
            _one_hot(own_chips, CHIP_LEVELS),
            _one_hot(opponent_chips, CHIP_LEVELS),
        )
        return jnp.concatenate(features)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32[32], everything that `player` has seen and done, in order."""
        slots = jnp.arange(NUM_ROUNDS * ROUND_SLOTS, dtype=jnp.int32)[:, None] * SLOT_BITS
        played = (state.history >> slots) % (1 << SLOT_BITS)  # [slots, 1]
        features = (
            _one_hot(self._own_rank(state, player), NUM_RANKS),
            _one_hot(self._shown_rank(state), NUM_RANKS),
            _one_hot(player != state.first_player, 2),
            (played == jnp.arange(1, 4, dtype=jnp.int32)[None]).astype(jnp.float32).reshape(-1),
        )
        return jnp.concatenate(features)

    def deals(self) -> tuple[State, np.ndarray]:
        """All 120 deals, public card included, seat 0 opening: batched first states and probabilities f64[120]."""
        num_deals = NUM_CARDS * (NUM_CARDS - 1) * (NUM_CARDS - 2)
        keys = jax.random.split(jax.random.key(0), num_deals)
        states = jax.jit(jax.vmap(self._first_state))(keys, 2 * np.arange(num_deals, dtype=np.uint32))
        return states, np.full(num_deals, 1 / num_deals)

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all cards where `player` is None."""
        card = _name(state.public_card)
        if int(state.betting_round) == 0:
            card = f"({card}) comes" if player is None else "?"
        lines = [f"round {int(state.betting_round) + 1}, public card: {card}"]
        for seat in range(2):
            card = _name(state.cards[seat]) if player in (None, seat) else "?"
            marks = " opens" * (seat == int(state.first_player))
            marks += " to act" * (seat == int(state.current_player) and not bool(state.finished))
            lines.append(f"seat {seat}: card {card}, {int(state.bets[seat])} in the pot{marks}")
        if bool(state.finished):
            lines.append("over, returns " + " ".join(f"{float(chips):+g}" for chips in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random hand."""
        num_outcomes = 2 * NUM_CARDS * (NUM_CARDS - 1) * (NUM_CARDS - 2)
        bits = jax.random.key_data(deal_key)[0]  # data of a fresh key are random: no second hash is needed
        return self._first_state(key, bits % np.uint32(num_outcomes))

    def _first_state(self, key: jax.Array, outcome: jax.Array) -> State:
        """First state of the hand number `outcome` of 240: three cards without replacement and the opener."""
        outcome = outcome.astype(jnp.int32)
        first_player, deal = outcome % 2, outcome // 2
        card_0, deal = deal % NUM_CARDS, deal // NUM_CARDS
        card_1, public_card = deal % (NUM_CARDS - 1), deal // (NUM_CARDS - 1)
        card_1 = card_1 + (card_1 >= card_0)
        low, high = jnp.minimum(card_0, card_1), jnp.maximum(card_0, card_1)
        public_card = public_card + (public_card >= low)
        public_card = public_card + (public_card >= high)
        return State(
            key=key,
            current_player=first_player,
            timestep=jnp.int32(0),
            returns=jnp.zeros(2, jnp.float32),
            finished=jnp.bool_(False),
            first_player=first_player,
            cards=jnp.where(jnp.arange(2) == 0, card_0, card_1),
            public_card=public_card,
            bets=jnp.full(2, ANTE, jnp.int32),
            betting_round=jnp.int32(0),
            raises=jnp.int32(0),
            history=jnp.int32(0),
        )

    def _own_rank(self, state: State, player: jax.Array) -> jax.Array:
        return jnp.where(player == 0, state.cards[0], state.cards[1]) // NUM_SUITS

    def _shown_rank(self, state: State) -> jax.Array:
        """Rank of the public card, -1 before it shows."""
        return jnp.where(state.betting_round == 1, state.public_card // NUM_SUITS, -1)


def _strength(rank: jax.Array, public_rank: jax.Array) -> jax.Array:
    """Orders hands: pairs with the public card above high cards, then by rank."""
    return rank + jnp.where(rank == public_rank, NUM_RANKS, 0).astype(jnp.int32)


def _name(card: jax.Array) -> str:
    return "JQK"[int(card) // NUM_SUITS] + "cdhs"[int(card) % NUM_SUITS]


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
