"""Goofspiel, the Game of Pure Strategy, 2 to 7 players (Ross 1971, "Goofspiel: the game of pure strategy").

Rules: every player holds the bid cards 1 to K, and there is a prize card of each value 1 to K. In each of K rounds a
prize shows, and all players bid one of their cards at once; the bids then lie open and are used up. The highest bid
wins the prize's points. Where several players share the highest bid nobody gets the prize, even if a lower bid stands
alone. The last round, in which everybody has one card left, is played like any other, so a game has exactly K steps.
Prizes come in random order, or K first and 1 last. Nobody knows which random prize comes next.

Actions, of all players at once:
    0 ... K-1       bid the card of value action + 1, legal while it is held
    An illegal action is played as the lowest card held.

Observation "paper" (K * (N + 1) features, 39 by default; all of the observing player's view):
    0 ... K-1       prize to be won, one-hot, zeros when the game is over
    K ... 2K-1      own cards used, binary
    then K for each opponent by seat, the next to the left first: cards used, binary

Observation "information_state" (perfect recall; 2 K (N + 1) + K + N features, 93 by default):
    first           all of "paper"
    then K          prizes to come, binary
    then N          scores by seat, one's own first, as fractions of all points
    then K rounds x (prize, own bid, each opponent's bid by seat): value / K, 0 where not yet shown

Reward:
    "points"            each round the prize's points to its winner
    "point_difference"  at the end; two players: own points - the other's; more: own points - mean of all
    "win_loss"          at the end; those with most points share +1, the others share -1; 0 if all have equally many
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

MAX_AGENTS = 7
MAX_CARDS = 13  # so that 64 random bits give each of 13! prize orders within a billionth of its probability
MAX_DEALS = 50_000  # that `deals` lists: 8! = 40,320
REWARDS = ("points", "point_difference", "win_loss")
PRIZE_ORDERS = ("random", "descending")


@struct.dataclass
class State:
    """State of one game. Arrays carry no batch axis: use `jax.vmap`. K cards."""

    key: jax.Array  # PRNG key of all later games
    current_player: jax.Array  # int32, always 0: all players act at once
    timestep: jax.Array  # int32, rounds played in this game
    returns: jax.Array  # [N] float32, rewards of this game so far
    finished: jax.Array  # bool, the game is over
    scores: jax.Array  # [N] int32, points won
    used: jax.Array  # [N] int32, bit k: the player has bid card k
    bids: jax.Array  # [N, K] int8, card by round, -1 in rounds to come
    prizes: jax.Array  # [K] int8, card by round, the one to be won included, -1 in rounds to come
    prize: jax.Array  # int32, card to be won, -1 when the game is over
    seen_prizes: jax.Array  # int32, bit k: prize k has shown
    prize_draws: jax.Array  # [2] uint32, binary fraction 0.[0][1] that fixes the order of prizes to come


@dataclass(frozen=True)
class Goofspiel:
    """Goofspiel.

    Attributes:
        num_agents: players, 2 to 7.
        num_cards: cards of every player and prizes, 2 to 13.
        reward: "points", "point_difference" or "win_loss".
        prize_order: "random" or "descending".
        observation: "paper" or "information_state".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 2
    num_cards: int = 13
    reward: str = "points"
    prize_order: str = "random"
    observation: str = "paper"

    api: ClassVar[str] = "parallel"
    version: ClassVar[int] = 1

    def __post_init__(self):
        if type(self.num_agents) is not int or not 2 <= self.num_agents <= MAX_AGENTS:
            raise ValueError(f"num_agents={self.num_agents!r}: an integer from 2 to {MAX_AGENTS} is allowed")
        if type(self.num_cards) is not int or not 2 <= self.num_cards <= MAX_CARDS:
            raise ValueError(f"num_cards={self.num_cards!r}: an integer from 2 to {MAX_CARDS} is allowed")
        if self.reward not in REWARDS:
            raise ValueError(f"reward={self.reward!r}: 'points', 'point_difference' or 'win_loss' is allowed")
        if self.prize_order not in PRIZE_ORDERS:
            raise ValueError(f"prize_order={self.prize_order!r}: 'random' or 'descending' is allowed")
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def num_actions(self) -> int:
        return self.num_cards

    @property
    def zero_sum(self) -> bool:
        return self.reward != "points"

    @property
    def obs_shape(self) -> tuple[int]:
        N, K = self.num_agents, self.num_cards
        return (K * (N + 1) if self.observation == "paper" else 2 * K * (N + 1) + K + N,)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Starts a game; the key is consumed. Returns the state and f32[N, *obs_shape], what each player sees."""
        key, deal_key = jax.random.split(key)
        state = self._deal(key, deal_key)
        return state, self._observe_all(state)

    def step(self, state: State, action: jax.Array):
        """Plays a round; where that ends the game, the state and observations returned are the first of a new game.

        Args:
            state: a state.
            action: int[N], the cards that the players bid.

        Returns:
            State; observations f32[N, *obs_shape]; reward f32[N]; absorbing bool[N]; done bool; info with `returns`
            f32[N], `timestep` int32, `illegal_action` bool[N], `winner` bool[N] (most points of the finished game) and
            `final_state`, the state before the new game.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self._observe_all(state), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new game. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        N, K = self.num_agents, self.num_cards
        live = ~state.finished
        cards, is_legal = [], []
        for seat in range(N):
            in_range = (action[seat] >= 0) & (action[seat] < K)
            card = jnp.where(in_range, action[seat], 0).astype(jnp.int32)
            is_legal.append(in_range & (state.used[seat] >> card & 1 == 0))
            lowest = ~state.used[seat] & (state.used[seat] + 1)  # bit of the lowest card held
            cards.append(jnp.where(is_legal[seat], card, jax.lax.population_count(lowest - 1)))
        highest = cards[0]
        for card in cards[1:]:
            highest = jnp.maximum(highest, card)
        num_highest = sum((card == highest).astype(jnp.int32) for card in cards)
        points = jnp.where(live & (num_highest == 1), state.prize + 1, 0)
        *cards, highest, points = _materialize(*cards, highest, points)
        bid = _by_seat(cards)
        won = jnp.where(bid == highest, points, 0)
        scores = state.scores + won

        finished = state.timestep >= K - 1
        prize, prize_draws = self._draw_prize(state.prize_draws, state.seen_prizes, state.timestep + 1)
        reward = won.astype(jnp.float32)
        if self.reward != "points":
            reward = jnp.where(live & finished, self._final_reward(scores), 0.0)
        rounds = jnp.arange(K, dtype=jnp.int32)
        played = state.replace(
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            scores=scores,
            used=state.used | 1 << bid,
            bids=jnp.where((rounds == state.timestep)[None], bid[:, None].astype(jnp.int8), state.bids),
            prizes=jnp.where(rounds == state.timestep + 1, prize.astype(jnp.int8), state.prizes),
            prize=prize,
            seen_prizes=state.seen_prizes | _bit(prize),
            prize_draws=prize_draws,
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~jnp.stack(is_legal),
            "winner": state.finished & (state.scores == state.scores.max()),
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (N,))
        return state, self._observe_all(state), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[N, K], True = legal, of every player; none in a finished state."""
        cards = jnp.arange(self.num_cards, dtype=jnp.int32)
        return state.used[:, None] >> cards[None] & 1 == 0  # at the end all cards are used

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        return _planes([_bit(state.prize), *self._from_seat(state.used, player)], self.num_cards)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32[2 K (N + 1) + K + N], everything that `player` has seen and done, in order."""
        K = self.num_cards
        rounds = [state.prizes, *self._from_seat(state.bids, player)]
        features = (
            _planes([_bit(state.prize), *self._from_seat(state.used, player), ~state.seen_prizes], K),
            jnp.stack(self._from_seat(state.scores, player)).astype(jnp.float32) / (K * (K + 1) // 2),
            (jnp.stack(rounds, axis=1) + jnp.int8(1)).astype(jnp.float32).reshape(-1) / K,
        )
        return jnp.concatenate(features)

    def deals(self) -> tuple[State, np.ndarray]:
        """All prize orders: batched first states [D] and their probabilities f64[D], D = K! (1 if descending).

        Raises:
            ValueError: there are too many; it says how many.
        """
        num_deals = math.factorial(self.num_cards) if self.prize_order == "random" else 1
        if num_deals > MAX_DEALS:
            raise ValueError(
                f"num_cards={self.num_cards}: {num_deals:,} prize orders are too many to list; up to 8 cards, with "
                f"{math.factorial(8):,}, are allowed"
            )
        fractions = [((2 * deal + 1) << 63) // num_deals for deal in range(num_deals)]  # (deal + 1/2) / D in 64 bits
        words = np.array([[fraction >> 32, fraction & 0xFFFFFFFF] for fraction in fractions], np.uint32)
        keys = jax.random.split(jax.random.key(0), num_deals)
        states = jax.jit(jax.vmap(self._first_state))(keys, words)
        return states, np.full(num_deals, 1 / num_deals)

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with the prizes to come, in brackets, where `player` is None."""
        K = self.num_cards
        prizes = [int(card) + 1 for card in state.prizes if card >= 0]
        line = "prizes: " + " ".join(map(str, prizes))
        if player is None and len(prizes) < K:
            line += f" ({' '.join(str(card + 1) for card in self._prizes_to_come(state))})"
        lines = [line]
        for seat in range(self.num_agents):
            bids = [str(int(card) + 1) for card in state.bids[seat] if card >= 0]
            held = [str(card + 1) for card in range(K) if not int(state.used[seat]) >> card & 1]
            cards = f"bids {' '.join(bids) or '-'}, holds {' '.join(held) or '-'}"
            lines.append(f"seat {seat}: {int(state.scores[seat])} points, {cards}")
        if bool(state.finished):
            lines.append("over, returns " + " ".join(f"{float(reward):+g}" for reward in state.returns))
        return "\n".join(lines)

    def _from_seat(self, array: jax.Array, player: jax.Array) -> list[jax.Array]:
        """The N rows of `array` in the order in which `player` sees the seats."""
        return [_at(array, (player + left) % self.num_agents) for left in range(self.num_agents)]

    def _observe_all(self, state: State) -> jax.Array:
        """f32[N, *obs_shape], what each player sees."""
        return jax.vmap(self.observe, in_axes=(None, 0))(state, jnp.arange(self.num_agents, dtype=jnp.int32))

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random game."""
        return self._first_state(key, jax.random.key_data(deal_key)[:2])  # of a fresh key: no second hash is needed

    def _first_state(self, key: jax.Array, prize_draws: jax.Array) -> State:
        """First state of the game whose prize order `prize_draws` [2] uint32 fix."""
        N, K = self.num_agents, self.num_cards
        prize, prize_draws = self._draw_prize(prize_draws, jnp.int32(0), jnp.int32(0))
        return State(
            key=key,
            current_player=jnp.int32(0),
            timestep=jnp.int32(0),
            returns=jnp.zeros(N, jnp.float32),
            finished=jnp.bool_(False),
            scores=jnp.zeros(N, jnp.int32),
            used=jnp.zeros(N, jnp.int32),
            bids=jnp.full((N, K), -1, jnp.int8),
            prizes=jnp.where(jnp.arange(K) == 0, prize, -1).astype(jnp.int8),
            prize=prize,
            seen_prizes=_bit(prize),
            prize_draws=prize_draws,
        )

    def _draw_prize(self, prize_draws: jax.Array, seen_prizes: jax.Array, played: jax.Array):
        """The prize after `played` rounds, int32, -1 after the last, and what is left of `prize_draws`."""
        K = self.num_cards
        if self.prize_order == "descending":
            return K - 1 - played, prize_draws
        unseen = ~seen_prizes & ((1 << K) - 1)
        place, *prize_draws = _draw_index(*prize_draws, K - played)
        for lower in range(K - 1):  # drops the `place` lowest bits
            unseen = jnp.where(place > lower, unseen & (unseen - 1), unseen)
        prize = jnp.where(unseen == 0, -1, jax.lax.population_count(~unseen & (unseen - 1)))
        prize, high, low = _materialize(prize, *prize_draws)
        return prize, jnp.where(jnp.arange(2) == 0, high, low)

    def _prizes_to_come(self, state: State) -> list[int]:
        """The cards after the one to be won, in order."""
        unseen = [card for card in range(self.num_cards) if not int(state.seen_prizes) >> card & 1]
        if self.prize_order == "descending":
            return unseen[::-1]
        fraction, prizes = int(state.prize_draws[0]) << 32 | int(state.prize_draws[1]), []
        while unseen:
            place, fraction = divmod(fraction * len(unseen), 1 << 64)
            prizes.append(unseen.pop(place))
        return prizes

    def _final_reward(self, scores: jax.Array) -> jax.Array:
        """f32[N], of a game that ends with `scores`."""
        N = self.num_agents
        if self.reward == "point_difference":
            times = 1 if N == 2 else N  # two players: the difference is twice that from the mean
            return (N * scores - scores.sum(dtype=jnp.int32)).astype(jnp.float32) / times
        wins = scores == scores.max()
        num_winners = wins.sum(dtype=jnp.int32).astype(jnp.float32)
        shares = jnp.where(wins, 1 / num_winners, -1 / jnp.maximum(N - num_winners, 1))
        return jnp.where(num_winners == N, 0.0, shares)


def _by_seat(values: list[jax.Array]) -> jax.Array:
    """int32[N] from N int32."""
    seats = jnp.arange(len(values), dtype=jnp.int32)
    array = values[0]
    for seat, value in enumerate(values[1:], 1):
        array = jnp.where(seats == seat, value, array)
    return array


def _at(array: jax.Array, seat: jax.Array) -> jax.Array:
    """array[seat], without a gather."""
    row = array[0]
    for other in range(1, array.shape[0]):
        row = jnp.where(seat == other, array[other], row)
    return row


def _planes(masks: list[jax.Array], num_cards: int) -> jax.Array:
    """f32[len(masks) * K], the lowest K bits of each mask, in one pass: to join planes takes a CPU twice as long."""
    index = jnp.arange(len(masks) * num_cards, dtype=jnp.int32)
    mask = masks[0]
    for plane, later in enumerate(masks[1:], 1):
        mask = jnp.where(index < plane * num_cards, mask, later)
    return (mask >> index % num_cards & 1).astype(jnp.float32)


def _bit(card: jax.Array) -> jax.Array:
    """int32 with the bit of `card`, 0 for a negative one."""
    return jnp.where(card < 0, 0, 1 << jnp.maximum(card, 0))


def _draw_index(high: jax.Array, low: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """floor(size * u) as int32, 0 <= size <= 65536, for the binary fraction u = 0.[high][low], and the two uint32 words
    of the fraction that is left over: it is as random as u but for log2(size) bits."""
    size = size.astype(jnp.uint32)

    def high_word(word):
        """The upper 32 bits of word * size."""
        return ((word >> 16) * size + ((word & np.uint32(0xFFFF)) * size >> 16)) >> 16

    carry = high_word(low)
    rest = high * size + carry
    return (high_word(high) + (rest < carry)).astype(jnp.int32), rest, low * size


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
