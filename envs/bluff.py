"""Bluff, also called Cheat or I Doubt It, 2 to 10 players.

Rules: the cards are dealt evenly; those left over start the pile, face down. A turn has three phases. Claim: the player
says that he plays k = 1 to 4 cards of the current rank, no more than he holds. Play: he puts k cards of any rank on the
pile, face down, one per action. Challenge: the others, from his left on, challenge or pass, until one challenges. At
the start and after a challenge the rank is free: it becomes that of the first card played, which is so true. Otherwise
it is the rank after the last one claimed, the lowest coming after the highest. If all pass, the next player has the
turn. If somebody challenges, the claim is looked at: was it true, the challenger takes the whole pile, the cards just
played included, else the claimant does; who was right has the next turn. A player who is out of cards once his claim
was passed by all or challenged in vain wins, and the game ends. The opener is drawn at reset.

Suits do not matter: a hand is how many cards of each rank it has. "Base" is the rank that actions and observations
count from: the current rank; while the rank is free, the lowest at the start and the last one claimed after a
challenge. Public are the claims, not the cards: the cards left over by the deal count in the size of the pile only, and
pile and claims change when all cards of a claim are down.

A game has at most `horizon` steps: then it is cut, undecided and without a reward for that. Uniform play decides
under 1 % of the games within 100 steps and 90 % within 1000.

Actions (max(num_ranks, 4)):
    claim       a: a + 1 cards, legal up to 4 and to the cards held
    play        a: a card of rank (base + a) mod num_ranks, legal if one is held
    challenge   0 challenge, 1 pass
    An illegal action is played as a pass, before the challenge phase as the legal action with the lowest number.

Observation "paper" (5 D + 3 features, D = num_decks * num_ranks * num_suits cards; R ranks, C = num_decks * num_suits
cards of each; all of the observing player's view; n of a kind are ones at the first n of its places):
    0 ... D - 1         cards of each rank claimed since the pile was last taken, at most C count; place R * level +
                        rank, level 0 to C - 1, ranks counted from the base
    D ... 2 D - 1       cards on the pile
    2 D ... 3 D - 1     own cards of each rank, those put down left out; places as above
    3 D ... 4 D - 1     cards that the claimant has left; zeros unless in the challenge phase
    4 D ... 5 D - 1     cards claimed; zeros unless in the challenge phase
    5 D ... 5 D + 2     claim, play, challenge phase, one-hot
    It tells neither which cards went into the pile nor who claimed what, so there is no perfect recall; as a game has
    no short bound, there is no observation "information_state".

Reward, shaped: a claim of k cards that all pass pays the claimant k, paid at the last pass; a challenge pays 1 to who
was right and costs the other the cards on the pile, those just played included; the winner gets 10 more. Not shaped:
1 to the winner, -1 / (N - 1) to each other, zero-sum.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

MAX_CLAIM = 4  # cards
CLAIM, PLAY, CHALLENGE = 0, 1, 2  # phases
DOUBT, PASS = 0, 1  # actions of the challenge phase
WIN_REWARD = 10
PHASE_NAMES = ("claim", "play", "challenge")
RANK_NAMES = "23456789TJQKA"
WORD_BITS = 32
BYTE = 8  # bits; a count of cards fits in
LIMB_BITS, NUM_LIMBS = 21, 3  # of the fractions that random numbers are drawn from
LIMB = np.uint32((1 << LIMB_BITS) - 1)
DRAW_ERROR = 1e-3  # by which the probability of a deal may be off, relative to itself


@struct.dataclass
class State:
    """State of one game. Arrays carry no batch axis: use `jax.vmap`.

    Counts of cards by rank are packed into W words of 32 bits, `Bluff.count_bits` for each rank, rank 0 lowest.
    """

    key: jax.Array  # PRNG key of all later deals
    current_player: jax.Array  # int32, seat to act; the last to have acted once the game is decided
    timestep: jax.Array  # int32, actions played in this game
    returns: jax.Array  # [N] float32, rewards of this game so far
    finished: jax.Array  # bool, the game is decided: the claimant has won
    phase: jax.Array  # int32, 0 claim, 1 play, 2 challenge; the game is decided in the last
    claimant: jax.Array  # int32, seat that has the turn
    base: jax.Array  # int32, rank that actions and observations count from
    rank_is_free: jax.Array  # bool, the next card played chooses the rank of the claim
    claim_size: jax.Array  # int32, cards claimed in this turn or, in the claim phase, in the last one
    num_down: jax.Array  # int32, cards of this claim that are down
    is_true: jax.Array  # bool, all of those are of the claimed rank
    hands: jax.Array  # [N, W] uint32, packed, cards held, without those put down
    pile: jax.Array  # [W] uint32, packed, cards on the pile, all that were put down included
    claims: jax.Array  # [W] uint32, packed, cards claimed since the pile was last taken, up to C of a rank


@dataclass(frozen=True)
class Bluff:
    """Bluff.

    Attributes:
        num_agents: players, 2 to 10.
        num_decks: decks, 1 to 4.
        num_ranks: ranks, 2 to 13.
        num_suits: suits in a deck, 1 to 4; there must be a card for every player.
        horizon: steps after which a game is cut.
        shaped_rewards: rewards for getting rid of cards and for challenges, not only for winning; not zero-sum.
        observation: "paper".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 3
    num_decks: int = 1
    num_ranks: int = 13
    num_suits: int = 4
    horizon: int = 1000
    shaped_rewards: bool = True
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1

    def __post_init__(self):
        ranges = {
            "num_agents": (2, 10),
            "num_decks": (1, 4),
            "num_ranks": (2, len(RANK_NAMES)),
            "num_suits": (1, 4),
            "horizon": (1, 1_000_000),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name}={value!r}: an integer from {least} to {most} is allowed")
        if self.num_cards < self.num_agents:
            raise ValueError(
                f"num_agents={self.num_agents!r}: with {self.num_cards} cards (num_decks * num_ranks * num_suits) an "
                f"integer from 2 to {self.num_cards} is allowed, so that everybody gets one"
            )
        if type(self.shaped_rewards) is not bool:
            raise ValueError(f"shaped_rewards={self.shaped_rewards!r}: True or False is allowed")
        if self.observation != "paper":
            raise ValueError(f"observation={self.observation!r}: 'paper' is allowed, there is no other")

    @property
    def num_actions(self) -> int:
        return max(self.num_ranks, MAX_CLAIM)

    @property
    def obs_shape(self) -> tuple[int]:
        return (5 * self.num_cards + len(PHASE_NAMES),)

    @property
    def zero_sum(self) -> bool:
        return not self.shaped_rewards

    @property
    def num_copies(self) -> int:
        """Cards of each rank."""
        return self.num_decks * self.num_suits

    @property
    def num_cards(self) -> int:
        return self.num_copies * self.num_ranks

    @property
    def count_bits(self) -> int:
        """Bits of a packed count: it is at most `num_copies` and leaves the highest bit unused."""
        return self.num_copies.bit_length() + 1

    @property
    def ranks_per_word(self) -> int:
        return WORD_BITS // self.count_bits

    @property
    def num_words(self) -> int:
        """W, words of packed counts."""
        return -(-self.num_ranks // self.ranks_per_word)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Deals a game; the key is consumed. Returns the state and f32[*obs_shape], the opener's observation."""
        key, deal_key = jax.random.split(key)
        state = self._deal(key, deal_key)
        return state, self.observe(state, state.current_player)

    def step(self, state: State, action: jax.Array):
        """Plays `action`; where that ends the game, the state and observation returned are the first of a new game.

        Args:
            state: a state.
            action: int, the move of `state.current_player`.

        Returns:
            State; observation f32[*obs_shape] of its player to act; reward f32[N]; absorbing bool[N]; done bool; info
            with `returns` f32[N], `timestep` int32, `illegal_action` bool, `winner` bool[N], `phase` int32 (0 claim,
            1 play, 2 challenge) and `final_state`, the state before the new game.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new game. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        N, R = self.num_agents, self.num_ranks
        seats = jnp.arange(N, dtype=jnp.int32)
        player, claimant = state.current_player, state.claimant
        claims, answers = state.phase == CLAIM, state.phase == CHALLENGE

        legal = self._legal_mask(state)
        in_range = (action >= 0) & (action < self.num_actions)
        number = jnp.where(in_range, action, 0).astype(jnp.int32)
        is_legal = in_range & ((legal >> number & 1) == 1)
        lowest = jax.lax.population_count(~legal & (legal - 1))
        action, is_legal = _materialize(
            jnp.where(is_legal, number, jnp.where(answers, PASS, lowest)).astype(jnp.int32), is_legal
        )

        # the card that is played and the rank of the claim
        plays = state.phase == PLAY
        rank = (state.base + action) % R
        base = jnp.where(plays & state.rank_is_free, rank, state.base)
        claim_size = jnp.where(claims, action + 1, state.claim_size)
        num_down = jnp.where(claims, 0, state.num_down + plays)
        claim_down = plays & (num_down == claim_size)

        # what becomes of the claim
        doubts, passes = answers & (action == DOUBT), answers & (action == PASS)
        next_player = (player + 1) % N
        all_pass = passes & (next_player == claimant)
        is_out = self._count(_row(state.hands, claimant)) == 0
        finished = is_out & (all_pass | (doubts & state.is_true))
        right, wrong = jnp.where(state.is_true, claimant, player), jnp.where(state.is_true, player, claimant)
        rank, base, doubts, wrong, pile_size, finished = _materialize(
            rank, base, doubts, wrong, self._count(state.pile), finished
        )
        turn_over = (all_pass | doubts) & ~finished

        if self.shaped_rewards:
            gain = jnp.where(all_pass, claim_size, 0) + jnp.where(finished, WIN_REWARD, 0)
            verdict = jnp.where(seats == right, 1, jnp.where(seats == wrong, -pile_size, 0))
            paid = jnp.where(seats == claimant, gain, 0) + jnp.where(doubts, verdict, 0)
        else:
            paid = jnp.where(finished, jnp.where(seats == claimant, 1.0, -1 / (N - 1)), 0.0)
        live = ~self._is_done(state)
        reward = jnp.where(live, paid, 0).astype(jnp.float32)

        card = jnp.where(plays, self._packed(rank), 0)
        new_claims = jnp.minimum(claim_size, self.num_copies - self._count_of(state.claims, base))
        new_claims = jnp.where(claim_down, self._packed(base) * new_claims.astype(jnp.uint32), 0)
        changes = seats == jnp.where(doubts, wrong, player)
        change = jnp.where(doubts, state.pile, 0) - card
        next_player = jnp.where(
            finished | claims | (plays & ~claim_down),
            player,
            jnp.where(doubts, right, jnp.where(all_pass, (claimant + 1) % N, next_player)),
        )
        played = state.replace(
            current_player=next_player,
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            phase=jnp.where(turn_over, CLAIM, jnp.where(claims, PLAY, jnp.where(claim_down, CHALLENGE, state.phase))),
            claimant=jnp.where(turn_over, next_player, claimant),
            base=jnp.where(turn_over & all_pass, (base + 1) % R, base),
            rank_is_free=(state.rank_is_free & ~plays) | (turn_over & doubts),
            claim_size=claim_size,
            num_down=num_down,
            is_true=claims | (state.is_true & (~plays | (rank == base))),
            hands=state.hands + jnp.where(changes[:, None], change[None], 0),
            pile=jnp.where(doubts, 0, state.pile + card),
            claims=jnp.where(doubts, 0, state.claims + new_claims),
        )
        state = _select_state(live, played, state)
        done = self._is_done(state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~is_legal,
            "winner": state.finished & (seats == state.claimant),
            "phase": state.phase,
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (N,))
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[A], True = legal, of the player to act; none in a finished state."""
        (legal,) = _materialize(self._legal_mask(state))
        return (legal >> jnp.arange(self.num_actions, dtype=jnp.int32) & 1) == 1

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees."""
        D, R = self.num_cards, self.num_ranks
        answers = state.phase == CHALLENGE
        counts = (
            self._count(state.pile) - jnp.where(state.phase == PLAY, state.num_down, 0),
            jnp.where(answers, self._count(_row(state.hands, state.claimant)), 0),
            jnp.where(answers, state.claim_size, 0),
        )
        word = sum(count << BYTE * i for i, count in enumerate(counts)) | 1 << (BYTE * len(counts) + state.phase)
        claims, hand = self._levels(state.claims, state.base), self._levels(_row(state.hands, player), state.base)
        words = _materialize(word, *claims, *hand)

        # One pass over all features, as planes that are joined take a CPU several times as long: each feature is 1 if
        # some bits of one of the words are more than a number that is known before.
        plane, place = np.divmod(np.arange(*self.obs_shape), D)
        source, bits, least = np.zeros((3, *plane.shape), np.int32)
        mask_bits = self._levels_per_mask() * R
        for p, first in ((0, 1), (2, 1 + len(claims))):
            source = np.where(plane == p, first + place // mask_bits, source)
            bits = np.where(plane == p, 1 << place % mask_bits, bits)
        for i, p in enumerate((1, 3, 4)):
            bits = np.where(plane == p, (1 << BYTE) - 1 << BYTE * i, bits)
            least = np.where(plane == p, place << BYTE * i, least)
        phase = np.maximum(np.arange(*self.obs_shape) - 5 * D, 0)  # of the last three features
        bits = np.where(plane >= 5, 1 << BYTE * len(counts) + phase, bits)
        chosen = (word & np.where(source == i, bits, 0).astype(np.int32) for i, word in enumerate(words))
        return (functools.reduce(jnp.bitwise_or, chosen) > least.astype(np.int32)).astype(jnp.float32)

    def deals(self):
        """Not listed: there are too many.

        Raises:
            ValueError: always; it says how many deals there are.
        """
        hand_size, rest = divmod(self.num_cards, self.num_agents)
        hands = math.factorial(hand_size) ** self.num_agents * math.factorial(rest)
        count = math.factorial(self.num_cards) // hands
        raise ValueError(f"bluff has {count:.3g} deals and no short longest game: use games that are sampled")

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all cards where `player` is None."""

        def ranks(words):
            counts = [int(self._count_of(words, jnp.int32(rank))) for rank in range(self.num_ranks)]
            return "".join(name * count for name, count in zip(RANK_NAMES, counts, strict=False)) or "-"

        phase, base = int(state.phase), int(state.base)
        rank = "free rank" if bool(state.rank_is_free) else f"rank {RANK_NAMES[base]}"
        lines = [f"{PHASE_NAMES[phase]}, {rank}"]
        if phase != CLAIM:
            truth = "" if player is not None else (" (true)" if bool(state.is_true) else " (false)")
            lines.append(
                f"claim of seat {int(state.claimant)}: {int(state.claim_size)}, {int(state.num_down)} down{truth}"
            )
        pile = f" ({ranks(state.pile)})" if player is None else ""
        lines.append(f"pile: {int(self._count(state.pile))} cards{pile}, claimed {ranks(state.claims)}")
        for seat in range(self.num_agents):
            size = int(self._count(state.hands[seat]))
            cards = ranks(state.hands[seat]) if player in (None, seat) else "?" * size or "-"
            marks = " to act" * (seat == int(state.current_player) and not bool(self._is_done(state)))
            lines.append(f"seat {seat}: {cards}{marks}")
        if bool(self._is_done(state)):
            how = f"won by seat {int(state.claimant)}" if bool(state.finished) else "cut"
            lines.append(f"over, {how}, returns " + " ".join(f"{float(points):+g}" for points in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random game.

        The cards go rank by rank to their owners: with s of the D - i cards left still to come to the first j seats,
        card i is one of theirs with probability s / (D - i).
        """
        N, D, C = self.num_agents, self.num_cards, self.num_copies
        hand_size = D // N
        opener, *numbers = _draw_numbers(deal_key, [N, *range(D, 0, -1)])
        shared = []  # packed, cards of the first j seats
        for seats in range(1, N + 1):
            left = np.uint32(seats * hand_size)
            words = [jnp.uint32(0)] * self.num_words
            for card, number in enumerate(numbers):
                gets = (number < left).astype(jnp.uint32)
                left = left - gets
                word, place = divmod(card // C, self.ranks_per_word)
                words[word] = words[word] + (gets << self.count_bits * place)
            shared.append(jnp.stack(words) if seats * hand_size < D else self._deck())
        hands = [shared[0], *(more - fewer for fewer, more in itertools.pairwise(shared))]
        return self._first_state(key, jnp.stack(hands), self._deck() - shared[-1], opener.astype(jnp.int32))

    def _first_state(self, key: jax.Array, hands: jax.Array, pile: jax.Array, opener: jax.Array) -> State:
        """First state of a game with these cards, packed."""
        return State(
            key=key,
            current_player=opener,
            timestep=jnp.int32(0),
            returns=jnp.zeros(self.num_agents, jnp.float32),
            finished=jnp.bool_(False),
            phase=jnp.int32(CLAIM),
            claimant=opener,
            base=jnp.int32(0),
            rank_is_free=jnp.bool_(True),
            claim_size=jnp.int32(0),
            num_down=jnp.int32(0),
            is_true=jnp.bool_(True),
            hands=hands,
            pile=jnp.asarray(pile),
            claims=jnp.zeros(self.num_words, jnp.uint32),
        )

    def _deck(self) -> np.ndarray:
        """uint32[W], packed, all cards."""
        words = [0] * self.num_words
        for rank in range(self.num_ranks):
            words[rank // self.ranks_per_word] += self.num_copies << self.count_bits * (rank % self.ranks_per_word)
        return np.array(words, np.uint32)

    def _is_done(self, state: State) -> jax.Array:
        return state.finished | (state.timestep >= self.horizon)

    def _legal_mask(self, state: State) -> jax.Array:
        """int32, bit a for action a of the player to act; 0 in a finished state."""
        hand = _row(state.hands, state.current_player)
        can_claim = (1 << jnp.minimum(self._count(hand), MAX_CLAIM)) - 1
        held = self._rotated(self._above(hand, 0), state.base)
        legal = jnp.where(state.phase == CLAIM, can_claim, jnp.where(state.phase == PLAY, held, 1 << DOUBT | 1 << PASS))
        return jnp.where(self._is_done(state), 0, legal).astype(jnp.int32)

    def _packed(self, rank: jax.Array) -> jax.Array:
        """uint32[W], one card of `rank`."""
        words = jnp.arange(self.num_words, dtype=jnp.int32)
        place = (rank % self.ranks_per_word * self.count_bits).astype(jnp.uint32)
        return jnp.where(words == rank // self.ranks_per_word, jnp.uint32(1) << place, 0)

    def _count_of(self, words: jax.Array, rank: jax.Array) -> jax.Array:
        """int32, cards of `rank`."""
        places = jnp.arange(self.num_words, dtype=jnp.int32)
        word = jnp.where(places == rank // self.ranks_per_word, words, 0).sum(dtype=jnp.uint32)
        place = (rank % self.ranks_per_word * self.count_bits).astype(jnp.uint32)
        return (word >> place).astype(jnp.int32) & ((1 << self.count_bits) - 1)

    def _count(self, words: jax.Array) -> jax.Array:
        """int32, cards of all ranks."""
        counts = (
            words[rank // self.ranks_per_word] >> self.count_bits * (rank % self.ranks_per_word)
            for rank in range(self.num_ranks)
        )
        return sum(count & np.uint32((1 << self.count_bits) - 1) for count in counts).astype(jnp.int32)

    def _above(self, words: jax.Array, level: int) -> jax.Array:
        """int32, bit r set if there are more than `level` cards of rank r."""
        bits, ranks = self.count_bits, self.ranks_per_word
        add = np.uint32(sum(((1 << bits - 1) - 1 - level) << bits * place for place in range(ranks)))
        marks = [words[word] + add for word in range(self.num_words)]  # the highest bit of a count marks it
        mask = sum(
            (marks[rank // ranks] >> (bits * (rank % ranks) + bits - 1) & 1) << rank for rank in range(self.num_ranks)
        )
        return mask.astype(jnp.int32)

    def _rotated(self, mask: jax.Array, base: jax.Array) -> jax.Array:
        """The mask of ranks counted from `base`."""
        return (mask | mask << self.num_ranks) >> base & ((1 << self.num_ranks) - 1)

    def _levels_per_mask(self) -> int:
        return (WORD_BITS - 1) // self.num_ranks  # the sign bit is not used

    def _levels(self, words: jax.Array, base: jax.Array) -> list[jax.Array]:
        """int32 each, the bits R * level + rank, ranks counted from `base`; as many levels in one as there is room."""
        per_mask = self._levels_per_mask()
        levels = [self._rotated(self._above(words, level), base) for level in range(self.num_copies)]
        groups = [levels[first : first + per_mask] for first in range(0, self.num_copies, per_mask)]
        return [sum(level << self.num_ranks * i for i, level in enumerate(group)) for group in groups]


def _row(array: jax.Array, seat: jax.Array) -> list[jax.Array]:
    """array[seat] of [N, k], as k scalars, without a gather."""
    rows = []
    for column in range(array.shape[1]):
        value = array[0, column]
        for other in range(1, array.shape[0]):
            value = jnp.where(seat == other, array[other, column], value)
        rows.append(value)
    return rows


def _draw_numbers(key: jax.Array, sizes: list[int]) -> list[jax.Array]:
    """Independent random uint32 numbers, each below its size; the key is consumed.

    As many as precision allows come out of the same 64 random bits: no outcome's probability is off by more than
    `DRAW_ERROR` of itself.
    """
    groups = [[]]
    for size in sizes:
        group = [*groups[-1], size]
        fits = math.prod(group) <= 2 ** (LIMB_BITS * NUM_LIMBS) * DRAW_ERROR * len(group) / len(sizes)
        groups[-1:] = [group] if fits else [groups[-1], [size]]
    bits = max(max(sizes) - 1, 1).bit_length()
    per_word = WORD_BITS // bits
    numbers = []
    # data of a fresh key are random: the first group needs no second hash
    for source, group in zip([key, *_child_keys(key, len(groups) - 1)], groups, strict=True):
        high, low = jax.random.key_data(source)[:2]
        fraction = high >> 11, (high << 10 | low >> 22) & LIMB, low >> 1 & LIMB
        drawn = []
        for size in group:
            number, fraction = _next_number(fraction, size)
            drawn.append(number)
        # packed, as what is computed once for each word is computed less often than once for each number
        words = [
            sum(number << bits * i for i, number in enumerate(drawn[first : first + per_word]))
            for first in range(0, len(drawn), per_word)
        ]
        words = _materialize(*words)
        mask = np.uint32((1 << bits) - 1)
        numbers += [words[i // per_word] >> bits * (i % per_word) & mask for i in range(len(drawn))]
    return numbers


def _next_number(fraction: tuple[jax.Array, ...], size: int) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """floor(size * u), size <= 2048, for the binary fraction u of three limbs of 21 bits, uint32, the highest first,
    and the fraction that is left over, which is as random as u but for log2(size) bits."""
    high, middle, low = (limb * np.uint32(size) for limb in fraction)
    middle = middle + (low >> LIMB_BITS)
    high = high + (middle >> LIMB_BITS)
    return high >> LIMB_BITS, (high & LIMB, middle & LIMB, low & LIMB)


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
