"""Limit Texas hold'em, 2 to 10 players.

Rules: every player gets two hole cards; five board cards show in three steps (flop 3, turn 1, river 1), each followed
by a betting round, the first round being before the flop. The button is drawn at reset. Heads-up the button posts the
small blind, acts first before the flop and last after it; with more players the two seats left of the button post the
blinds, the seat left of the big blind opens, and the seat left of the button opens later rounds. A bet or raise is one
big blind in the first two rounds, two in later ones, at most `max_raises` of them a round, the blinds not counted. A
round is over when every live player has acted and matched the highest bet; so the big blind may raise where all others
called. There are no stacks: everybody can always pay. At the showdown the best five of seven cards win; equal hands
split the pot. `num_rounds` shortens the game: 2 is flop hold'em (best five of five cards), the benchmark of the Deep
CFR papers. `max_raises=(3, 4, 4, 4)` is the game of the Annual Computer Poker Competition.

A round has at most N + max_raises * (N - 1) actions, so a hand of two players has at most 4 * 6 = 24, of ten players
4 * 46 = 184.

Actions:
    0   call, legal when facing a bet
    1   raise or bet, legal while fewer than `max_raises` were made in the round
    2   fold, legal when facing a bet
    3   check, legal when facing none
    An illegal action is played as a check, as a fold when facing a bet.

Observation "paper" (72 + N features; all of the observing player's view):
    0 ... 51        own hole cards and the board dealt so far, binary, card = 4 * rank + suit
    52 ... 71       raises in each of 4 rounds, 0 to 4, one-hot; zeros in rounds not reached
    72 ... 71 + N   seats left of the small blind, one-hot

Observation "information_state" (perfect recall; R rounds, L = N + max(max_raises) * (N - 1) slots a round):
    0 ... 51                    own hole cards
    then 52 for each street     flop, turn, river, as far as R reaches; zeros before it shows
    then N                      seats left of the small blind, one-hot
    then R * L * 4              actions in order: R rounds x L slots x (call, raise, fold, check), one-hot

Reward: (chips won - chips paid) / big blind, paid when the hand ends.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

NUM_CARDS, NUM_RANKS, NUM_SUITS = 52, 13, 4
CALL, RAISE, FOLD, CHECK = 0, 1, 2, 3
MAX_ROUNDS = 4
MAX_RAISES = 4  # a round
HOLE_CARDS = 2
BOARD_BY_ROUND = (0, 3, 4, 5)  # board cards that show
ROUND_NAMES = ("preflop", "flop", "turn", "river")
ACTION_NAMES = ("call", "raise", "fold", "check")


@struct.dataclass
class State:
    """State of one hand. Arrays carry no batch axis: use `jax.vmap`. R rounds, L slots a round."""

    key: jax.Array  # PRNG key of all later hands
    current_player: jax.Array  # int32, seat to act; the last to have acted once the hand is over
    timestep: jax.Array  # int32, actions played in this hand
    returns: jax.Array  # [N] float32, rewards of this hand so far
    finished: jax.Array  # bool, the hand is over
    button: jax.Array  # int32, seat
    hole_cards: jax.Array  # [N, 2] int32, 0 to 51
    board: jax.Array  # [3, 4 or 5] int32, the whole board of the hand, shown or not
    scores: jax.Array  # [N] int32, what `_rank_hand` gives for the hole cards with the whole board
    contributions: jax.Array  # [N] int32, chips in the pot
    folded: jax.Array  # [N] bool
    betting_round: jax.Array  # int32, 0 to R - 1
    raises: jax.Array  # [R] int32, bets and raises by round
    to_act: jax.Array  # int32, players who have to act before the round is over, unless somebody raises
    round_actions: jax.Array  # int32, actions played in this round
    history: jax.Array  # [R * L] int8, action + 1 by round and slot, 0 where not played


@dataclass(frozen=True)
class TexasLimitHoldem:
    """Limit Texas hold'em.

    Attributes:
        num_agents: players, 2 to 10.
        num_rounds: betting rounds, 2 (up to the flop) to 4 (up to the river).
        max_raises: most bets and raises in each round, 1 to 4, one number a round (numbers past `num_rounds` are
            not used).
        blinds: small and big blind in chips; a bet is one or two big blinds.
        observation: "paper" or "information_state".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 2
    num_rounds: int = 4
    max_raises: tuple[int, ...] = (4, 4, 4, 4)
    blinds: tuple[int, int] = (1, 2)
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    num_actions: ClassVar[int] = 4
    zero_sum: ClassVar[bool] = True
    call_actions: ClassVar[tuple[int, ...]] = (CALL, CHECK)  # of an opponent who always calls; the first legal one

    def __post_init__(self):
        if type(self.num_agents) is not int or not 2 <= self.num_agents <= 10:
            raise ValueError(f"num_agents={self.num_agents!r}: an integer from 2 to 10 is allowed")
        if type(self.num_rounds) is not int or not 2 <= self.num_rounds <= MAX_ROUNDS:
            raise ValueError(f"num_rounds={self.num_rounds!r}: an integer from 2 to 4 is allowed")
        _require_tuple(self, "max_raises", (self.num_rounds, MAX_ROUNDS), 1, MAX_RAISES)
        _require_tuple(self, "blinds", (2,), 1, 1_000_000)
        if self.blinds[0] > self.blinds[1]:
            raise ValueError(f"blinds={self.blinds!r}: a small blind of at most the big blind is allowed")
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def obs_shape(self) -> tuple[int]:
        if self.observation == "paper":
            return (NUM_CARDS + MAX_ROUNDS * (MAX_RAISES + 1) + self.num_agents,)
        actions = self.num_rounds * self.round_slots * self.num_actions
        return (NUM_CARDS * self.num_rounds + self.num_agents + actions,)

    @property
    def round_slots(self) -> int:
        """Most actions in a round."""
        return self.num_agents + max(self.max_raises[: self.num_rounds]) * (self.num_agents - 1)

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
            State; observation f32[*obs_shape] of its player to act; reward f32[N]; absorbing bool[N]; done bool; info
            with `returns` f32[N], `timestep` int32, `illegal_action` bool, `winner` bool[N] (live, with the
            highest return), `phase` int32 (the betting round) and `final_state`, the state before the new hand.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new hand. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        N, R = self.num_agents, self.num_rounds
        seats = jnp.arange(N, dtype=jnp.int32)
        rounds = jnp.arange(R, dtype=jnp.int32)
        acts = seats == state.current_player
        highest, own = state.contributions.max(), jnp.where(acts, state.contributions, 0).sum(dtype=jnp.int32)
        facing_bet = highest > own
        is_legal = (
            ((action == CALL) & facing_bet)
            | ((action == RAISE) & self._can_raise(state))
            | ((action == FOLD) & facing_bet)
            | ((action == CHECK) & ~facing_bet)
        )
        action = jnp.where(is_legal, action, jnp.where(facing_bet, FOLD, CHECK)).astype(jnp.int32)
        folds, calls, raises = action == FOLD, action == CALL, action == RAISE

        bet_size = self.blinds[1] * jnp.where(state.betting_round < 2, 1, 2).astype(jnp.int32)
        paid = jnp.where(calls | raises, highest - own, 0) + jnp.where(raises, bet_size, 0)
        num_live = (~state.folded & ~(acts & folds)).sum(dtype=jnp.int32)
        to_act = jnp.where(raises, num_live - 1, state.to_act - 1)
        finished = (num_live == 1) | ((to_act == 0) & (state.betting_round == R - 1))
        next_round = (to_act == 0) & ~finished
        action, raises, folds, paid, num_live, to_act, finished, next_round = _materialize(
            action, raises, folds, paid, num_live, to_act, finished, next_round
        )
        contributions = state.contributions + jnp.where(acts, paid, 0)
        folded = state.folded | (acts & folds)

        best = jnp.where(folded, -1, state.scores).max()
        wins = ~folded & (state.scores == best)
        pot = contributions.sum(dtype=jnp.int32)
        share, share_rest = _split(pot, wins.sum(dtype=jnp.int32))
        live = ~state.finished
        net = (jnp.where(wins, share, 0) - contributions).astype(jnp.float32) + jnp.where(wins, share_rest, 0.0)
        reward = jnp.where(live & finished, net / self.blinds[1], 0.0)

        previous = jnp.where(next_round, state.button, state.current_player)
        slot = self.round_slots * state.betting_round + state.round_actions
        played = state.replace(
            current_player=jnp.where(finished, state.current_player, _next_seat(~folded, previous)),
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            contributions=contributions,
            folded=folded,
            betting_round=state.betting_round + next_round,
            raises=state.raises + ((rounds == state.betting_round) & raises),
            to_act=jnp.where(next_round, num_live, to_act),
            round_actions=jnp.where(next_round, 0, state.round_actions + 1),
            history=jnp.where(
                jnp.arange(R * self.round_slots, dtype=jnp.int32) == slot, (action + 1).astype(jnp.int8), state.history
            ),
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~is_legal,
            "winner": state.finished & ~state.folded & (state.returns == state.returns.max()),
            "phase": state.betting_round,
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (N,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[4], True = legal, of the player to act; none in a finished state."""
        acts = jnp.arange(self.num_agents, dtype=jnp.int32) == state.current_player
        facing_bet = (acts & (state.contributions < state.contributions.max())).any()
        return jnp.stack([facing_bet, self._can_raise(state), facing_bet, ~facing_bet]) & ~state.finished

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        shown = jnp.arange(state.board.shape[0]) < self._num_shown(state)
        cards = [*_own_cards(state.hole_cards, player), *jnp.where(shown, state.board, -1)]
        rounds = jnp.arange(MAX_ROUNDS, dtype=jnp.int32)
        raises = jnp.pad(state.raises, (0, MAX_ROUNDS - self.num_rounds))
        raises = jnp.where(rounds <= state.betting_round, raises, -1)
        counts = raises[:, None] == jnp.arange(MAX_RAISES + 1, dtype=jnp.int32)[None]
        position = (player - self._small_blind(state)) % self.num_agents
        features = (_card_plane(cards), counts.astype(jnp.float32).reshape(-1), _one_hot(position, self.num_agents))
        return jnp.concatenate(features)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32 [52 R + N + 4 R L], everything that `player` has seen and done, in order."""
        num_shown = self._num_shown(state)
        planes = [_card_plane(_own_cards(state.hole_cards, player))]
        for first, last in itertools.pairwise(BOARD_BY_ROUND[: self.num_rounds]):
            street = state.board[first:last]
            planes.append(_card_plane(jnp.where(num_shown >= last, street, -1)))
        position = (player - self._small_blind(state)) % self.num_agents
        played = state.history[:, None] == jnp.arange(1, self.num_actions + 1, dtype=jnp.int8)[None]
        return jnp.concatenate([*planes, _one_hot(position, self.num_agents), played.astype(jnp.float32).reshape(-1)])

    def deals(self):
        """Not listed: there are too many.

        Raises:
            ValueError: always; it says how many deals there are.
        """
        left, count = NUM_CARDS, 1
        for dealt in (*[HOLE_CARDS] * self.num_agents, *np.diff(BOARD_BY_ROUND[: self.num_rounds]).tolist()):
            count *= math.comb(left, dealt)
            left -= dealt
        raise ValueError(f"texas_limit_holdem has {count:.3g} deals, too many to list: use games that are sampled")

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all cards where `player` is None."""
        num_shown = int(self._num_shown(state))
        board = [_card_name(card) for card in state.board]
        board = board[:num_shown] + (
            ["(" + " ".join(board[num_shown:]) + ")"] if player is None and board[num_shown:] else []
        )
        lines = [f"{ROUND_NAMES[int(state.betting_round)]}, board: " + " ".join(board)]
        for seat in range(self.num_agents):
            cards = " ".join(_card_name(card) for card in state.hole_cards[seat]) if player in (None, seat) else "? ?"
            marks = " button" * (seat == int(state.button)) + " folded" * bool(state.folded[seat])
            marks += " to act" * (seat == int(state.current_player) and not bool(state.finished))
            lines.append(f"seat {seat}: {cards}, {int(state.contributions[seat])} in the pot{marks}")
        for betting_round, name in enumerate(ROUND_NAMES[: self.num_rounds]):
            actions = np.asarray(state.history).reshape(self.num_rounds, -1)[betting_round]
            if actions.any():
                lines.append(f"{name}: " + " ".join(ACTION_NAMES[action - 1] for action in actions if action))
        if bool(state.finished):
            lines.append("over, returns " + " ".join(f"{float(blinds):+g}" for blinds in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random hand."""
        N, R = self.num_agents, self.num_rounds
        *cards, button = _materialize(*_draw_cards(deal_key, HOLE_CARDS * N + BOARD_BY_ROUND[R - 1], N))
        hands, board = [cards[2 * seat : 2 * seat + 2] for seat in range(N)], cards[HOLE_CARDS * N :]
        scores = _materialize(*[_rank_hand([*hand, *board]) for hand in hands])
        seats = jnp.arange(N, dtype=jnp.int32)
        small_blind = button if N == 2 else (button + 1) % N
        big_blind = (small_blind + 1) % N
        posts = jnp.where(seats == small_blind, self.blinds[0], jnp.where(seats == big_blind, self.blinds[1], 0))
        return State(
            key=key,
            current_player=(big_blind + 1) % N,
            timestep=jnp.int32(0),
            returns=jnp.zeros(N, jnp.float32),
            finished=jnp.bool_(False),
            button=button,
            hole_cards=jnp.stack([jnp.stack(hand) for hand in hands]),
            board=jnp.stack(board),
            scores=jnp.stack(scores),
            contributions=posts.astype(jnp.int32),
            folded=jnp.zeros(N, jnp.bool_),
            betting_round=jnp.int32(0),
            raises=jnp.zeros(R, jnp.int32),
            to_act=jnp.int32(N),
            round_actions=jnp.int32(0),
            history=jnp.zeros(R * self.round_slots, jnp.int8),
        )

    def _can_raise(self, state: State) -> jax.Array:
        rounds = jnp.arange(self.num_rounds, dtype=jnp.int32)
        limits = jnp.array(self.max_raises[: self.num_rounds], jnp.int32)
        return ((rounds == state.betting_round) & (state.raises < limits)).any()

    def _small_blind(self, state: State) -> jax.Array:
        return state.button if self.num_agents == 2 else (state.button + 1) % self.num_agents

    def _num_shown(self, state: State) -> jax.Array:
        """Board cards that show."""
        shown = jnp.int32(0)
        for betting_round, cards in enumerate(BOARD_BY_ROUND):
            shown = jnp.where(state.betting_round == betting_round, cards, shown)
        return shown.astype(jnp.int32)


# repeated block: require_tuple (tests/test_repeated_blocks.py)
def _require_tuple(env, name: str, lengths: tuple[int, ...], least: int, most: int) -> None:
    """Makes a list a tuple.

    Raises:
        ValueError: the parameter is no list or tuple of integers of one of `lengths`, all from `least` to `most`.
    """
    value = getattr(env, name)
    if (
        not isinstance(value, list | tuple)
        or len(value) not in lengths
        or not all(type(number) is int and least <= number <= most for number in value)
    ):
        sizes = " or ".join(str(length) for length in dict.fromkeys(lengths))
        raise ValueError(f"{name}={value!r}: {sizes} integers from {least} to {most} are allowed")
    object.__setattr__(env, name, tuple(value))


# repeated block: next_seat (tests/test_repeated_blocks.py)
def _next_seat(can_act: jax.Array, seat: jax.Array) -> jax.Array:
    """The first seat left of `seat` that can act, bool[N]; `seat` itself comes last."""
    N = can_act.shape[0]
    distance = (jnp.arange(N, dtype=jnp.int32) - seat - 1) % N
    return (seat + 1 + jnp.where(can_act, distance, N - 1).min()) % N


# repeated block: own_cards (tests/test_repeated_blocks.py)
def _own_cards(cards: jax.Array, player: jax.Array) -> jax.Array:
    """int32[k], row `player` of int32[N, k]."""
    seats = jnp.arange(cards.shape[0], dtype=jnp.int32)[:, None]
    return jnp.where(seats == player, cards, 0).sum(0, dtype=jnp.int32)


# repeated block: card_name (tests/test_repeated_blocks.py)
def _card_name(card: jax.Array) -> str:
    return "23456789TJQKA"[int(card) // NUM_SUITS] + "cdhs"[int(card) % NUM_SUITS]


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


# repeated block: draw_cards (tests/test_repeated_blocks.py)
def _draw_cards(key: jax.Array, num_cards: int, num_seats: int) -> list[jax.Array]:
    """`num_cards` of 52 cards without replacement in random order, and a random seat; the key is consumed.

    Floyd's draw (Bentley and Floyd 1987, "A sample of brilliance"), made to give the order too: the next card is
    uniform over the cards up to a bound that grows by one, and where an earlier draw has it already, that draw gets
    the bound itself instead. Up to 9 cards come out of the same 64 random bits: no deal's probability is off by more
    than a thousandth of itself, and that of a few cards by far less.

    Returns:
        `num_cards` + 1 int32, the last from 0 to `num_seats` - 1.
    """
    num_words = -(-num_cards // 9) * 2
    words = jax.random.key_data(key)[:2]  # of a fresh key they are random: the first 9 cards need no second hash
    if num_words > 2:
        words = jnp.concatenate([words, jax.random.bits(key, (num_words - 2,), jnp.uint32)])
    numbers = []
    for i in range(num_cards):
        if i % 9 == 0:
            high, low = words[2 * (i // 9)], words[2 * (i // 9) + 1]
        number, high, low = _draw_number(high, low, NUM_CARDS - num_cards + i + 1)
        numbers.append(number)
    *numbers, seat = _materialize(*numbers, _draw_number(high, low, num_seats)[0])
    cards = []
    for bound, card in enumerate(numbers, NUM_CARDS - num_cards):
        cards = [*(jnp.where(earlier == card, bound, earlier) for earlier in cards), card]
    return [*cards, seat]


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


# repeated block: rank_hand (tests/test_repeated_blocks.py)
def _rank_hand(cards: Sequence[jax.Array]) -> jax.Array:
    """Scores poker hands: the higher score has the better five cards, equal scores tie.

    Each suit is a mask of 13 rank bits. The four masks are added bit by bit, which gives the ranks held once, twice,
    three and four times. A score is the category (0 high card ... 8 straight flush), then a mask of the ranks that
    make it, then a mask of the kickers; masks with equally many bits order as the cards do.

    Args:
        cards: 5, 6 or 7 arrays int32 [...], 0 to 51; or one array with them on the first axis.

    Returns:
        int32 [...].
    """
    bits = [(card % NUM_SUITS, 1 << (card // NUM_SUITS)) for card in cards]
    masks = [sum(jnp.where(suit == held, bit, 0) for suit, bit in bits) for held in range(NUM_SUITS)]
    clubs, diamonds, hearts, spades = masks
    two_01, two_23, one_01, one_23 = clubs & diamonds, hearts & spades, clubs ^ diamonds, hearts ^ spades
    twos = two_01 ^ two_23 ^ (one_01 & one_23)
    quads = two_01 & two_23
    trips = twos & (one_01 ^ one_23)
    pairs = twos & ~trips
    held = clubs | diamonds | hearts | spades
    flush = sum(jnp.where(jax.lax.population_count(mask) >= 5, mask, 0) for mask in masks)

    def drop_lowest(mask):
        return mask & (mask - 1)

    def highest(mask, count):
        """The `count` highest bits of a mask that has at most two more."""
        excess = jax.lax.population_count(mask) - count
        mask = jnp.where(excess > 0, drop_lowest(mask), mask)
        return jnp.where(excess > 1, drop_lowest(mask), mask)

    def straight(mask):
        """The bit of the highest card of the best straight, 0 where there is none."""
        run = mask << 1 | mask >> (NUM_RANKS - 1)  # the ace below the deuce, too
        run = run & run << 1
        run = run & run << 2 & (mask << 1 | mask >> (NUM_RANKS - 1)) << 4
        return (run & ~(run >> 1)) >> 1

    top_trips = highest(trips, 1)
    top_pairs = highest(pairs, 2)
    under_trips = (pairs | trips) & ~top_trips  # what can fill a full house
    num_pairs = jax.lax.population_count(top_pairs)
    has_quads, has_trips = quads != 0, trips != 0
    full = has_trips & (under_trips != 0)
    main = jnp.where(has_quads, quads, jnp.where(has_trips, top_trips, top_pairs))
    category = jnp.where(has_quads, 7, jnp.where(full, 6, jnp.where(has_trips, 3, num_pairs)))
    kickers = jnp.where(full & ~has_quads, under_trips, held & ~main)
    num_kickers = jnp.where(
        has_quads | full | (category == 2), 1, jnp.where(has_trips, 2, jnp.where(num_pairs == 1, 3, 5))
    )
    score = category << 26 | main << 13 | highest(kickers, num_kickers)
    straight_top, flush_top = straight(held), straight(flush)
    score = jnp.maximum(score, jnp.where(straight_top != 0, 4 << 26 | straight_top, 0))
    score = jnp.maximum(score, jnp.where(flush != 0, 5 << 26 | highest(flush, 5), 0))
    return jnp.maximum(score, jnp.where(flush_top != 0, 8 << 26 | flush_top, 0)).astype(jnp.int32)


# repeated block: split (tests/test_repeated_blocks.py)
def _split(chips: jax.Array, num_shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One of equal shares of int32 chips: int32 whole chips, and f32, what is to be added to them, less than one chip.

    A float of the whole share would have an error that grows with the pot.
    """
    whole = (chips.astype(jnp.float32) / num_shares.astype(jnp.float32)).astype(jnp.int32)
    return whole, (chips - whole * num_shares).astype(jnp.float32) / num_shares.astype(jnp.float32)


# repeated block: card_plane (tests/test_repeated_blocks.py)
def _card_plane(cards: Sequence[jax.Array]) -> jax.Array:
    """f32[52], 1 at each of the cards, int32 [] each; negative ones are left out."""
    places = jnp.arange(NUM_CARDS, dtype=jnp.uint32)
    words = []
    for first in (0, 32):  # 32 cards in a word
        bits = (
            jnp.where(card // 32 == first // 32, np.uint32(1) << (card % 32).astype(jnp.uint32), 0) for card in cards
        )
        words.append(sum(bits))
    low, high = _materialize(*words)
    return (jnp.where(places < 32, low, high) >> places % 32 & 1).astype(jnp.float32)


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
