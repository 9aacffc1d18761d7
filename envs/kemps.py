"""Kemps, a card game of partners with secret signals: 4, 6, 8, ... players in teams of two.

Rules, in the variant where all act at once: everybody gets a hand, and four cards lie face up in the centre. Partners
sit N/2 seats apart. In each step every player either swaps one of his cards for one in the centre, or does nothing
(no-op), or calls KEMPS or STOP KEMPS; with any of these goes a signal, which all see in the next step. Who has four
cards of one rank wants his partner to know, and the opponents not.

Swaps are resolved one by one in a random order, each on the centre as it then stands: the player gives his
lowest-numbered card of one rank and takes the lowest-numbered card of another (or the same) rank that was there before
he gave. If the centre has no card of that rank any more, nothing moves. If all chose the no-op, the centre is swept out
of the game and four new cards are dealt; with fewer than four undealt cards the game ends in a draw, and the centre
stays.

A call ends the game before any swap. If several players call, one of them, each with the same probability, counts:
    KEMPS           if the caller's partner has four of a kind, his team gets +1 and the others -1; else his team gets
                    -1 and the others +1
    STOP KEMPS      if a member of another team has four of a kind, the caller's team gets +1, the teams that have it
                    -1, any third team 0; else the caller's team gets -1 and the others +1
Four of a kind are four or more cards of one rank. At the `horizon` (in steps, the longest game) the game is cut, with
no reward. A draw pays 0, and nobody is a winner then.

Cards are numbered num_suits * rank + suit. R ranks, N players, C = comm_dim signals, D = R * num_suits cards.

Actions, base * C + signal, 0 <= signal < C (344 by default), where base is
    R a + b         give the own card of rank a, take the card of rank b, a = b allowed; legal if the player has a card
                    of rank a and one of rank b is in the centre
    R R             no-op
    R R + 1         KEMPS
    R R + 2         STOP KEMPS
    No-op and calls are always legal. An illegal action is played as the no-op with signal 0.

Observation "paper" (D (N + 1) + N C features, 268 by default; all of the observing player's view), one for each player:
    0 ... D-1           own hand, binary
    D ... N D - 1       hands of the other seats: always zeros
    N D ... N D + D-1   centre, binary
    then N * C          signals of the last step, by seat, own first, one-hot, zeros before the first step

There is no encoding of the whole history: up to `horizon` steps of N signals and four centre cards each.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

CENTRE_CARDS = 4
KIND_CARDS = 4  # of one rank, to call KEMPS
NUM_OTHERS = 3  # base actions that are no swaps
MAX_RANKS = 127
WORD_BITS = 32
SERVED_AT_ONCE = 4  # hands in one round of the loop that deals: longer to compile, quicker to run
MAX_AGENTS_OF_64_BITS = 16  # for whose order they are enough: none of 16! orders is off by more than 1 / 800,000
# What a player does, packed: kind, rank to take, card to give, signal, legal or not
NO_OP, KEMPS, STOP_KEMPS, SWAP = 0, 1, 2, 4
RANK_SHIFT, CARD_SHIFT, SIGNAL_SHIFT = 3, 10, 23
CODE_MASK, ILLEGAL = (1 << SIGNAL_SHIFT) - 1, 1 << 30
NO_CARD = np.uint32((1 << SIGNAL_SHIFT - CARD_SHIFT) - 1)  # of no word


@struct.dataclass
class State:
    """State of one game. Arrays carry no batch axis: use `jax.vmap`.

    A set of cards is W words, each of the cards of 32 // num_suits ranks: card c is bit c % B of word c // B, with
    B = 32 // num_suits * num_suits.
    """

    key: jax.Array  # PRNG key of all later chance
    timestep: jax.Array  # int32, steps of this game so far
    returns: jax.Array  # [N] float32, rewards of this game so far
    finished: jax.Array  # bool, the game is over, decided or cut
    decided: jax.Array  # bool, it was called or drawn
    dealer: jax.Array  # int32, seat from which the random orders are counted
    hands: jax.Array  # [N, W] uint32, cards of each player
    centre: jax.Array  # [W] uint32, cards face up
    undealt: jax.Array  # [W] uint32, cards that may still be dealt
    signals: jax.Array  # [N] int32, of the last step, -1 before the first


@dataclass(frozen=True)
class Kemps:
    """Kemps.

    Attributes:
        num_agents: players, 4, 6, 8, ... 30.
        num_ranks: of the deck, at most 127.
        num_suits: of the deck, 4 to 32.
        hand_size: cards of each player, at least 4; `num_agents * hand_size + 4` may not exceed the deck.
        comm_dim: signals to choose from, at most 32.
        horizon: steps after which a game is cut.
        observation: "paper".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 4
    num_ranks: int = 13
    num_suits: int = 4
    hand_size: int = 4
    comm_dim: int = 2
    horizon: int = 200
    observation: str = "paper"

    api: ClassVar[str] = "parallel"
    version: ClassVar[int] = 1

    def __post_init__(self):
        for name, least, most in (
            ("num_agents", 4, 30),
            ("num_ranks", 1, MAX_RANKS),
            ("num_suits", KIND_CARDS, WORD_BITS),
            ("hand_size", KIND_CARDS, MAX_RANKS * WORD_BITS),
            ("comm_dim", 1, WORD_BITS),
            ("horizon", 1, 1_000_000_000),
        ):
            value, step = getattr(self, name), 2 if name == "num_agents" else 1
            if type(value) is not int or not least <= value <= most or value % step:
                kind = "an integer" if step == 1 else "an even integer"
                raise ValueError(f"{name}={value!r}: {kind} from {least} to {most} is allowed")
        if self.num_agents * self.hand_size + CENTRE_CARDS > self.deck_size:
            raise ValueError(
                f"num_agents={self.num_agents!r}, hand_size={self.hand_size!r}: at most {self.deck_size} cards "
                f"(num_ranks={self.num_ranks!r} times num_suits={self.num_suits!r}) are allowed, the "
                f"{CENTRE_CARDS} in the centre included"
            )
        if self.observation != "paper":
            raise ValueError(f"observation={self.observation!r}: 'paper' is allowed, this game has no other")

    @property
    def deck_size(self) -> int:
        return self.num_ranks * self.num_suits

    @property
    def num_actions(self) -> int:
        return (self.num_ranks**2 + NUM_OTHERS) * self.comm_dim

    @property
    def obs_shape(self) -> tuple[int]:
        return (self.deck_size * (self.num_agents + 1) + self.num_agents * self.comm_dim,)

    @property
    def zero_sum(self) -> bool:
        """With more than two teams one caller's team stands against all others."""
        return self.num_agents == 4

    @property
    def num_teams(self) -> int:
        return self.num_agents // 2

    @property
    def word_ranks(self) -> int:
        """Ranks whose cards are in one word."""
        return WORD_BITS // self.num_suits

    @property
    def word_cards(self) -> int:
        """Cards in one word."""
        return self.word_ranks * self.num_suits

    @property
    def word_signals(self) -> int:
        """Players whose signals are in one word of the observation."""
        return WORD_BITS // self.comm_dim

    @property
    def num_words(self) -> int:
        return -(-self.num_ranks // self.word_ranks)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Deals a game; the key is consumed. Returns the state and f32[N, *obs_shape], each player's observation."""
        key, deal_key = jax.random.split(key)
        state = self._deal(key, deal_key)
        return state, self._observe_all(state)

    def step(self, state: State, action: jax.Array):
        """Plays one action of each player; where that ends the game, state and observation are the first of a new one.

        Args:
            state: a state.
            action: int[N], by seat.

        Returns:
            State; observation f32[N, *obs_shape]; reward f32[N]; absorbing bool[N]; done bool; info with `returns`
            f32[N], `timestep` int32, `illegal_action` bool[N], `winner` bool[N] (those paid +1) and `final_state`, the
            state before the new game.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self._observe_all(state), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new game. A finished state comes back as it is, with reward 0."""
        N = self.num_agents
        actions = jnp.asarray(action)
        hands, centre, undealt = [list(hand) for hand in state.hands], list(state.centre), list(state.undealt)
        moves = _materialize(*[self._read(hands[seat], centre, actions[seat]) for seat in range(N)])
        codes = [move & np.uint32(CODE_MASK) for move in moves]
        chance_key = _chance_key(state)
        order = _materialize(*_swap_order(chance_key, state.dealer, N))

        called = _any([(code == KEMPS) | (code == STOP_KEMPS) for code in codes])
        idle = ~_any([code != NO_OP for code in codes])
        drawn = idle & (_count(undealt) < CENTRE_CARDS)
        live, called, swept, drawn = _materialize(~state.finished, called, idle & ~drawn, drawn)
        paid, owed = _materialize(*self._call(hands, codes, order))

        given, taken = self._swap(centre, [jnp.where(called, NO_OP, code) for code in codes], order)
        hands = [self._exchange(hand, give, take) for hand, give, take in zip(hands, given, taken, strict=True)]
        words = jax.random.key_data(chance_key)[:2]  # of a fresh key they are random, and those who sweep do not swap
        new = _materialize(*self._set_of(self._draw_cards(words, undealt, CENTRE_CARDS)))
        given, taken = self._set_of(given), self._set_of(taken)
        for word in range(self.num_words):
            left = (centre[word] | given[word]) & ~taken[word]  # what one gave another may have taken
            centre[word] = jnp.where(swept, new[word], left)
            undealt[word] = undealt[word] & ~jnp.where(swept, new[word], 0)

        seats = jnp.arange(N, dtype=jnp.uint32)
        reward = (paid >> seats & 1).astype(jnp.float32) - (owed >> seats & 1).astype(jnp.float32)
        reward = jnp.where(live & called, reward, 0)
        decided, timestep = called | drawn, state.timestep + 1
        played = state.replace(
            timestep=timestep,
            returns=state.returns + reward,
            finished=decided | (timestep >= self.horizon),
            decided=decided,
            hands=jnp.stack([jnp.stack(hand) for hand in hands]),
            centre=jnp.stack(centre),
            undealt=jnp.stack(undealt),
            signals=(jnp.stack(moves) >> SIGNAL_SHIFT & (WORD_BITS - 1)).astype(jnp.int32),
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & (jnp.stack(moves) >= ILLEGAL),
            "winner": state.decided & (state.returns > 0),
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.decided, (N,))
        return state, self._observe_all(state), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[N, A], True = legal, of each player; none in a finished state."""
        R = self.num_ranks
        # What an action needs, as bits: a swap its two ranks, one held and one in the centre; all actions the last
        # bit, that the game is on. So a mask is one pass, with one comparison for each word of bits.
        base, needs = np.arange(self.num_actions) // self.comm_dim, np.arange(2 * R + 1)[:, None]
        swap_needs = (base < R * R) & ((needs == base // R) | (needs == R + base % R))
        needs = _pack_words(list(swap_needs | (needs == 2 * R)))

        live = ~state.finished
        centre = self._ranks(list(state.centre))
        has = [_pack_words([live & flag for flag in (*self._ranks(hand), *centre, live)]) for hand in state.hands]
        legal = jnp.ones((self.num_agents, self.num_actions), jnp.bool_)
        for need, *words in zip(needs, *(_materialize(*words) for words in has), strict=True):
            legal &= (jnp.stack(words)[:, None] & need[None]) == need[None]
        return legal

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees."""
        is_own = jnp.arange(self.num_agents, dtype=jnp.int32)[:, None] == player
        hand = jnp.where(is_own, state.hands, 0).sum(0, dtype=jnp.uint32)
        words = [*hand, *state.centre, *self._signal_words(state, player)]
        return self._features([word[None] for word in words])[0]

    def teams(self, state: State) -> jax.Array:  # noqa: ARG002
        """int32[N], the team of every seat."""
        return jnp.arange(self.num_agents, dtype=jnp.int32) % self.num_teams

    def deals(self):
        """Not listed: there are too many.

        Raises:
            ValueError: always; it says how many deals there are.
        """
        *left, centre = range(self.deck_size, 0, -self.hand_size)[: self.num_agents + 1]
        count = math.prod(math.comb(cards, self.hand_size) for cards in left) * math.comb(centre, CENTRE_CARDS)
        raise ValueError(f"kemps has {count:.3g} deals, too many to list: use games that are sampled")

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all hands where `player` is None."""
        lines = [f"step {int(state.timestep)} of {self.horizon}, centre: {self._card_names(state.centre)}"]
        for seat in range(self.num_agents):
            partner, signal = (seat + self.num_agents // 2) % self.num_agents, int(state.signals[seat])
            hand = self._card_names(state.hands[seat]) if player in (None, seat) else " ".join("?" * self.hand_size)
            lines.append(f"seat {seat} (partner {partner}): {hand}" + f", signals {signal}" * (signal >= 0))
        if bool(state.finished):
            end = "over" if bool(state.decided) else "cut"
            lines.append(f"{end}, returns " + " ".join(f"{float(points):+g}" for points in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random game."""
        N, H = self.num_agents, self.hand_size
        bits = jax.random.bits(deal_key, (N * -(-H // 2) + 3,), jnp.uint32)
        cards = range(self.deck_size)
        deck = [
            sum(1 << card % self.word_cards for card in cards if card // self.word_cards == word)
            for word in range(self.num_words)
        ]
        # derived from `bits`, so that there is one for each device where games are spread over several
        undealt = tuple(bits[0] & np.uint32(0) | np.uint32(all_cards) for all_cards in deck)

        def serve(undealt, words, num_cards=H):
            dealt = _materialize(*self._set_of(self._draw_cards(words, undealt, num_cards)))
            return tuple(word & ~cards for word, cards in zip(undealt, dealt, strict=True)), jnp.stack(dealt)

        undealt, hands = jax.lax.scan(serve, undealt, bits[3:].reshape(N, -1), unroll=SERVED_AT_ONCE)
        undealt, centre = serve(undealt, bits[1:3], CENTRE_CARDS)
        return State(
            key=key,
            timestep=jnp.int32(0),
            returns=jnp.zeros(N, jnp.float32),
            finished=jnp.bool_(False),
            decided=jnp.bool_(False),
            dealer=_scale(bits[0], jnp.uint32(N))[0].astype(jnp.int32),
            hands=hands,
            centre=centre,
            undealt=jnp.stack(undealt),
            signals=jnp.full(N, -1, jnp.int32),
        )

    def _read(self, hand: Sequence, centre: Sequence, action: jax.Array) -> jax.Array:
        """What a player does, packed in uint32: from the lowest bits NO_OP, KEMPS, STOP_KEMPS or SWAP, the rank to take
        and the card to give in a swap, then the signal, and whether the action was illegal."""
        R, C = self.num_ranks, self.comm_dim
        number = action.astype(jnp.int32)
        in_range = (number.astype(action.dtype) == action) & (number >= 0) & (number < self.num_actions)
        number = jnp.where(in_range, number, 0).astype(jnp.uint32)
        base, signal = number // C, number % C
        give, take = self._lowest_card(hand, base // R), self._lowest_card(centre, base % R)
        is_swap = base < R * R
        is_legal = in_range & (~is_swap | ((give != NO_CARD) & (take != NO_CARD)))
        code = jnp.where(is_swap, SWAP | base % R << RANK_SHIFT | give << CARD_SHIFT, base - R * R)
        return jnp.where(is_legal, code | signal << SIGNAL_SHIFT, np.uint32(ILLEGAL | NO_OP))

    def _swap(self, centre: Sequence, codes: Sequence, order: Sequence) -> tuple[list, list]:
        """Resolves the swaps. Returns the cards given and taken, N uint32 each by seat, NO_CARD where nothing moves."""
        taken = []
        for seat in order:
            code = _at(codes, seat)
            take = self._lowest_card(centre, code >> RANK_SHIFT & MAX_RANKS)
            [take] = _materialize(jnp.where(code & SWAP != 0, take, NO_CARD))
            centre = self._exchange(centre, take, jnp.where(take == NO_CARD, take, code >> CARD_SHIFT))
            taken.append(take)
        turns = [[at == seat for at in order] for seat in range(len(codes))]
        by_seat = [
            sum(jnp.where(is_turn, take, 0) for is_turn, take in zip(turn, taken, strict=True)) for turn in turns
        ]
        taken = _materialize(*by_seat)
        given = [jnp.where(take == NO_CARD, take, code >> CARD_SHIFT) for code, take in zip(codes, taken, strict=True)]
        return given, taken

    def _call(self, hands: Sequence, codes: Sequence, order: Sequence) -> list[jax.Array]:
        """Who gets +1 and who -1, two uint32 with the bit of each seat, by the first call in `order`."""
        teams = len(codes) // 2
        call, caller = codes[0], order[0]
        for seat in reversed(order):
            code = _at(codes, seat)
            calls = (code == KEMPS) | (code == STOP_KEMPS)
            call, caller = jnp.where(calls, code, call), jnp.where(calls, seat, caller)
        call, caller, four = _materialize(call, caller, _pack([self._has_four(hand) for hand in hands]))
        own = np.uint32(1) << caller % teams
        others = np.uint32((1 << teams) - 1) - own
        others_four = (four | four >> teams) & others
        is_right = jnp.where(call == KEMPS, four >> (caller + teams) % (2 * teams) & 1, others_four) != 0
        paid = jnp.where(is_right, own, others)
        owed = jnp.where(is_right, jnp.where(call == KEMPS, others, others_four), own)
        return [paid | paid << teams, owed | owed << teams]

    def _draw_cards(self, words: jax.Array, cards: Sequence, num_cards: int) -> list[jax.Array]:
        """Cards of a set, uint32 each, in no order; all choices are equally likely (Floyd's draw).

        Args:
            words: uint32[>= num_cards / 2], random bits, 32 of them for two cards: no two of 52 cards are drawn with a
                probability that is off by more than a millionth of itself.
            cards: W words, the set.
            num_cards: how many to draw; if the set has fewer, what is drawn means nothing.
        """
        bound = _count(cards) - num_cards
        numbers = []
        for i in range(num_cards):
            if i % 2 == 0:
                word = words[i // 2]
            number, word = _scale(word, bound + (i + 1))
            numbers.append(jnp.where(_any([number == earlier for earlier in numbers]), bound + i, number))
        return [self._nth_card(cards, number) for number in _materialize(*numbers)]

    def _set_of(self, cards: Sequence) -> list[jax.Array]:
        """A set of cards, uint32 each, without NO_CARD."""
        places = [(card // WORD_BITS, np.uint32(1) << card % WORD_BITS) for card in cards]
        return [sum(jnp.where(at == word, bit, 0) for at, bit in places) for word in range(self.num_words)]

    def _exchange(self, cards: Sequence, gone: jax.Array, come: jax.Array) -> list[jax.Array]:
        """A set without the card `gone`, with `come`."""
        words = zip(cards, self._set_of([gone]), self._set_of([come]), strict=True)
        return [word & ~gone_bit | come_bit for word, gone_bit, come_bit in words]

    def _lowest_card(self, cards: Sequence, rank: jax.Array) -> jax.Array:
        """uint32, the lowest-numbered card of a rank in a set, or NO_CARD."""
        at, shift = rank // self.word_ranks, rank % self.word_ranks * self.num_suits
        held = cards[0]
        for word in range(1, self.num_words):
            held = jnp.where(at == word, cards[word], held)
        suits = held >> shift & np.uint32((1 << self.num_suits) - 1)
        suit = jax.lax.population_count((suits & -suits) - 1)
        return jnp.where(suits == 0, NO_CARD, at * WORD_BITS + shift + suit)

    def _nth_card(self, cards: Sequence, number: jax.Array) -> jax.Array:
        """uint32, card `number` in order, from 0, of a set."""
        mask, card, rest, before = cards[0], jnp.uint32(0), number, jnp.uint32(0)
        for word in range(1, self.num_words):
            before = before + jax.lax.population_count(cards[word - 1])
            past = number >= before
            mask, rest = jnp.where(past, cards[word], mask), jnp.where(past, number - before, rest)
            card = jnp.where(past, np.uint32(word * WORD_BITS), card)
        for width in (16, 8, 4, 2, 1):
            below = jax.lax.population_count(mask & np.uint32((1 << width) - 1))
            above = rest >= below
            mask, rest = jnp.where(above, mask >> width, mask), jnp.where(above, rest - below, rest)
            card = card + jnp.where(above, np.uint32(width), 0)
        return card

    def _ranks(self, cards: list) -> list[jax.Array]:
        """R bool, the ranks of which there is a card in a set."""
        suits = (1 << self.num_suits) - 1
        shifts = [(rank // self.word_ranks, rank % self.word_ranks * self.num_suits) for rank in range(self.num_ranks)]
        return [(cards[word] & np.uint32(suits << shift)) != 0 for word, shift in shifts]

    def _has_four(self, cards: list) -> jax.Array:
        """bool, four cards of one rank."""
        first_suit = np.uint32(sum(1 << shift for shift in range(0, self.word_cards, self.num_suits)))
        found = jnp.bool_(False)
        for word in cards:
            held = [first_suit] + [np.uint32(0)] * KIND_CARDS  # ranks with at least so many of the suits so far
            for suit in range(self.num_suits):
                has = word >> suit
                held = [first_suit, *(more | has & fewer for fewer, more in itertools.pairwise(held))]
            found |= held[KIND_CARDS] != 0
        return found

    def _signal_words(self, state: State, player: int | jax.Array) -> list[jax.Array]:
        """Signals by seat, the first `player`'s, one-hot: `word_signals` seats in one uint32."""
        places = [(seat - player) % self.num_agents for seat in range(self.num_agents)]
        bits = []
        for place, signal in zip(places, state.signals, strict=True):
            bit = place % self.word_signals * self.comm_dim + signal
            bits.append(jnp.where(signal >= 0, np.uint32(1) << bit.astype(jnp.uint32), 0))
        words = [place // self.word_signals for place in places]
        num_words = -(-self.num_agents // self.word_signals)
        return [
            sum(jnp.where(at == word, bit, 0) for at, bit in zip(words, bits, strict=True)) for word in range(num_words)
        ]

    def _observe_all(self, state: State) -> jax.Array:
        """f32[N, *obs_shape], what each player sees."""
        N = self.num_agents
        hands, centre = _materialize(state.hands, state.centre)
        signals = [_materialize(*self._signal_words(state, seat)) for seat in range(N)]
        signals = [jnp.stack(words) for words in zip(*signals, strict=True)]
        return self._features([*hands.T, *jnp.broadcast_to(centre[:, None], (self.num_words, N)), *signals])

    def _features(self, words: Sequence[jax.Array]) -> jax.Array:
        """f32[n, *obs_shape] of n players: words of their hands, of the centre and of signals, uint32[n] each."""
        W, D, N = self.num_words, self.deck_size, self.num_agents
        hand, centre, signals = words[:W], words[W : 2 * W], words[2 * W :]
        parts = [(self.word_cards * place, word) for place, word in enumerate(hand)]
        parts.append((D, jnp.zeros_like(hand[0])))
        parts += [(N * D + self.word_cards * place, word) for place, word in enumerate(centre)]
        first, step = (N + 1) * D, self.word_signals * self.comm_dim
        parts += [(first + step * place, word) for place, word in enumerate(signals)]
        # One pass over all features: joined parts take a CPU several times as long.
        index = np.arange(*self.obs_shape, dtype=np.uint32)
        start, word = np.zeros_like(index), parts[0][1][:, None]
        for begin, following in parts[1:]:
            start = np.where(index >= begin, np.uint32(begin), start)
            word = jnp.where((index >= begin)[None], following[:, None], word)
        return (word >> ((index - start) % WORD_BITS)[None] & 1).astype(jnp.float32)

    def _card_names(self, words: jax.Array) -> str:
        held = [int(word) >> place & 1 for word in words for place in range(self.word_cards)]
        return " ".join(f"{card // self.num_suits}.{card % self.num_suits}" for card, has in enumerate(held) if has)


def _chance_key(state: State) -> jax.Array:
    """The key of all chance in a step from `state`. `step` brings a new key each time; where only `step_env` plays, the
    time step tells the draws apart."""
    return jax.random.fold_in(state.key, 2 + state.timestep)


def _swap_order(key: jax.Array, dealer: jax.Array, num_agents: int) -> list[jax.Array]:
    """All seats in random order, N int32: who swaps first, second, ..., and whose call counts, the first caller's.

    The key is consumed. Counted from the dealer, so that turning all seats turns the order, too.
    """
    bits = jax.random.key_data(key)[:2]  # of a fresh key they are random
    if num_agents > MAX_AGENTS_OF_64_BITS:
        bits = jax.random.bits(key, (2 * num_agents,), jnp.uint32)
    high, low = bits[0], bits[1]
    places = []
    for bound in range(num_agents):
        if num_agents > MAX_AGENTS_OF_64_BITS:
            high, low = bits[2 * bound], bits[2 * bound + 1]
        number, high, low = _draw_number(high, low, bound + 1)
        # Floyd's draw (Bentley and Floyd 1987, "A sample of brilliance"), made to give the order too
        places = [*(jnp.where(place == number, bound, place) for place in places), number]
    return [(dealer + place).astype(jnp.uint32) % num_agents for place in places]


def _scale(word: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """floor(size * u), uint32, size <= 65536, for the binary fraction u = 0.[word], and the fraction that is left
    over; all uint32."""
    return ((word >> 16) * size + ((word & 0xFFFF) * size >> 16)) >> 16, word * size


def _at(values: Sequence[jax.Array], index: jax.Array) -> jax.Array:
    """values[index]."""
    return sum(jnp.where(index == place, value, 0) for place, value in enumerate(values))


def _any(flags: Sequence[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.logical_or, flags, jnp.bool_(False))


def _count(words: Sequence[jax.Array]) -> jax.Array:
    """uint32, bits that are 1."""
    return sum(jax.lax.population_count(word) for word in words)


def _pack(flags: Sequence[jax.Array]) -> jax.Array:
    """uint32, up to 32 flags as bits, the first lowest."""
    return sum(flag.astype(np.uint32) << np.uint32(place) for place, flag in enumerate(flags))


def _pack_words(flags: Sequence[jax.Array]) -> list[jax.Array]:
    """uint32 for every 32 flags."""
    return [_pack(flags[first : first + WORD_BITS]) for first in range(0, len(flags), WORD_BITS)]


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
