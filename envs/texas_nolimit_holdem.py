"""No-limit Texas hold'em, 2 to 10 players.

Rules: every player gets two hole cards; five board cards show in three steps (flop 3, turn 1, river 1), each followed
by a betting round, the first round being before the flop. The button is drawn at reset. Heads-up the button posts the
small blind, acts first before the flop and last after it; with more players the two seats left of the button post the
blinds, the seat left of the big blind opens, and the seat left of the button opens later rounds. A round is over when
every live player has acted and matched the highest bet or is all-in; so the big blind may raise where all others
called. As soon as all bets are matched and at most one player has chips behind, the board runs out and the hand ends
in the same step. At the showdown the best five of seven cards win; equal hands split the pot.

Bets: a call adds c = highest bet - own bet, or the whole stack if that is less. A raise adds c, and on top at least the
last full raise of the round (the big blind if there was none); an all-in may add less. A player who has acted in the
round may raise again only if c is at least the last full raise; all-ins that are too short add up (rule 47 of the Poker
Tournament Directors Association). Nobody may raise, all-in included, unless another live player has chips to call with.
Who is all-in can win from each opponent no more than he put in himself: the pot is split into layers by what live
players put in, and each goes to the best hands among those who reach it. Chips that nobody called so go back.

Differences from PokerKit: there an all-in below one big blind as the first raise of a round reopens the betting, after
two short all-ins have added up a further one closes it again, and a big blind is asked even where all others are all-in
for exactly it.

A round has at most N + (N - 1) r actions, r the raises in it: a raise leaves at most N - 1 players to act. Before a
raise at least two live players have the highest total h, once the raiser has called, so half the pot is at least h,
and a half-pot or pot raise doubles h at least. Nobody raises unless h is below the second largest stack s. So all
raises but the last end below s: at most K = #{k >= 1: 2^k big blinds < s} by a part of the pot, and one all-in for each
of the D different stacks between the big blind and s. A hand has at most 4 N + (N - 1) (K + D + 1) actions (4 N if
s is the big blind): 14 with two stacks of 100 and blinds of 1 and 2, which can be reached; 94 with ten.

Actions:
    0   check, or call (with fewer chips: all-in)
    1   raise by half the pot, after calling: c + floor((pot + c) / 2); pot is all that was put in so far
    2   raise by the pot, after calling: c + (pot + c)
    3   all-in, where that is more than a call
    4   fold, legal when facing a bet
    Raises 1 and 2 are legal if they are no less than the minimum and leave chips behind; what takes the whole stack is
    an all-in only. An illegal action is played as a check, as a fold when facing a bet.

Observation "paper" (54 features; all of the observing player's view):
    0 ... 51    own hole cards and the board dealt so far, binary, card = 4 * rank + suit
    52          own chips in the pot
    53          most chips that any player has in the pot

Observation "information_state" (perfect recall; L slots, one for each action of a longest hand; chips in big blinds):
    0 ... 51                own hole cards
    52 ... 207              flop, turn, river, 52 each, zeros before it shows
    then N                  seats left of the small blind, one-hot
    then N                  stacks before the hand, by seat, own first
    then L * (10 + N)       actions in order, for each slot, zeros where not played: chips put in, then one-hot each:
                            which of the 5 actions, which of the 4 rounds, which seat, own first

Reward: net chips, paid when the hand ends.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

NUM_CARDS, NUM_RANKS, NUM_SUITS = 52, 13, 4
CHECK_CALL, HALF_POT, POT, ALL_IN, FOLD = 0, 1, 2, 3, 4
NUM_ROUNDS = 4
HOLE_CARDS = 2
BOARD_BY_ROUND = (0, 3, 4, 5)  # board cards that show
MAX_CHIPS = 1_000_000  # of a stack; sums of ten are exact in float32
ROUND_NAMES = ("preflop", "flop", "turn", "river")
# `State.history`, from the lowest bits: action + 1 (0 not played), round, seats left of the button, chips put in
ACTION_BITS, ROUND_BITS, SEAT_BITS = 3, 2, 4


@struct.dataclass
class State:
    """State of one hand. Arrays carry no batch axis: use `jax.vmap`. L slots, one for each action of a longest hand."""

    key: jax.Array  # PRNG key of all later hands
    current_player: jax.Array  # int32, seat to act; the last to have acted once the hand is over
    timestep: jax.Array  # int32, actions played in this hand
    returns: jax.Array  # [N] float32, rewards of this hand so far
    finished: jax.Array  # bool, the hand is over
    button: jax.Array  # int32, seat
    hole_cards: jax.Array  # [N, 2] int32, 0 to 51
    board: jax.Array  # [5] int32, the whole board of the hand, shown or not
    scores: jax.Array  # [N] int32, what `_rank_hand` gives for the hole cards with the whole board
    contributions: jax.Array  # [N] int32, chips put in during this hand
    stacks: jax.Array  # [N] int32, chips before the hand, `stack` by seat; behind are stacks - contributions
    folded: jax.Array  # [N] bool
    betting_round: jax.Array  # int32, 0 to 3; 3 once the board has run out
    min_raise: jax.Array  # int32, the last full raise of the round, the big blind if none
    turn: jax.Array  # int32, seats from the round's first one to the player to act; from N on it has acted before
    to_act: jax.Array  # int32, players who have to act before the round is over, unless somebody raises
    history: jax.Array  # [L] int32, actions in order, packed as above


@dataclass(frozen=True)
class TexasNolimitHoldem:
    """No-limit Texas hold'em.

    Attributes:
        num_agents: players, 2 to 10.
        stack: chips of every player before the hand, or one number a seat; at least the big blind, more than that
            where two players post equal blinds (somebody has to have a decision).
        blinds: small and big blind in chips.
        observation: "paper" or "information_state".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 2
    stack: int | tuple[int, ...] = 100
    blinds: tuple[int, int] = (1, 2)
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    num_actions: ClassVar[int] = 5
    zero_sum: ClassVar[bool] = True
    call_actions: ClassVar[tuple[int, ...]] = (CHECK_CALL,)  # of an opponent who always calls; the first legal one

    def __post_init__(self):
        if type(self.num_agents) is not int or not 2 <= self.num_agents <= 10:
            raise ValueError(f"num_agents={self.num_agents!r}: an integer from 2 to 10 is allowed")
        _require_tuple(self, "blinds", (2,), 1, MAX_CHIPS - 1)
        if self.blinds[0] > self.blinds[1]:
            raise ValueError(f"blinds={self.blinds!r}: a small blind of at most the big blind is allowed")
        least = self.blinds[1] + (self.num_agents == 2 and self.blinds[0] == self.blinds[1])
        if isinstance(self.stack, list | tuple):
            _require_tuple(self, "stack", (self.num_agents,), least, MAX_CHIPS)
        elif type(self.stack) is not int or not least <= self.stack <= MAX_CHIPS:
            allowed = f"from {least} to {MAX_CHIPS}"
            raise ValueError(f"stack={self.stack!r}: an integer {allowed}, or one for each seat, is allowed")
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def obs_shape(self) -> tuple[int]:
        if self.observation == "paper":
            return (NUM_CARDS + 2,)
        slot = 1 + self.num_actions + NUM_ROUNDS + self.num_agents
        return (NUM_CARDS * NUM_ROUNDS + 2 * self.num_agents + self.max_actions * slot,)

    @property
    def stacks(self) -> tuple[int, ...]:
        """Chips before the hand, by seat."""
        return self.stack if isinstance(self.stack, tuple) else (self.stack,) * self.num_agents

    @property
    def max_actions(self) -> int:
        """Most actions in a hand."""
        return NUM_ROUNDS * self.num_agents + (self.num_agents - 1) * _max_raises(self.stacks, self.blinds[1])

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
        N = self.num_agents
        bet = _play_bet(state, action)
        showdown = bet.closed | ((bet.to_act == 0) & (state.betting_round == NUM_ROUNDS - 1))
        finished, next_round = _materialize(
            (bet.num_live == 1) | showdown, (bet.to_act == 0) & ~showdown & (bet.num_live > 1)
        )
        runs_out = bet.closed & (bet.num_live > 1)
        acts = jnp.arange(N, dtype=jnp.int32) == state.current_player
        contributions = state.contributions + jnp.where(acts, bet.chips, 0)
        folded = state.folded | (acts & (bet.action == FOLD))
        net = _settle_pots(contributions, jnp.where(folded, -1, state.scores), len(set(self.stacks)))
        live = ~state.finished
        reward = jnp.where(live & finished, net, 0.0)

        previous = jnp.where(next_round, state.button, state.current_player)
        next_player = _next_seat(~folded & (contributions < state.stacks), previous)
        next_player = jnp.where(finished, state.current_player, next_player)
        moved = (next_player - previous - 1) % N
        slots = jnp.arange(self.max_actions, dtype=jnp.int32)
        position = (state.current_player - state.button) % N
        packed = (bet.chips << SEAT_BITS | position) << ROUND_BITS | state.betting_round
        packed = packed << ACTION_BITS | (bet.action + 1)
        played = state.replace(
            current_player=next_player,
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            contributions=contributions,
            folded=folded,
            betting_round=jnp.where(runs_out, NUM_ROUNDS - 1, state.betting_round + next_round),
            min_raise=jnp.where(next_round, self.blinds[1], bet.min_raise),
            turn=jnp.where(next_round, moved, state.turn + 1 + moved),
            to_act=jnp.where(next_round, bet.num_able, bet.to_act),
            history=jnp.where(slots == state.timestep, packed, state.history),
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~bet.is_legal,
            "winner": state.finished & ~state.folded & (state.returns == state.returns.max()),
            "phase": state.betting_round,
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (N,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[5], True = legal, of the player to act; none in a finished state."""
        _, legal = _betting_options(state)
        return jnp.stack(legal) & ~state.finished

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        shown = jnp.arange(state.board.shape[0]) < self._num_shown(state)
        cards = [*_own_cards(state.hole_cards, player), *jnp.where(shown, state.board, -1)]
        seats = jnp.arange(self.num_agents, dtype=jnp.int32)
        own = jnp.where(seats == player, state.contributions, 0).sum(dtype=jnp.int32)
        chips = jnp.where(jnp.arange(2) == 0, own, state.contributions.max())
        return jnp.concatenate([_card_plane(cards), chips.astype(jnp.float32)])

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32 [208 + 2 N + L (10 + N)], everything that `player` has seen and done, in order."""
        N = self.num_agents
        num_shown = self._num_shown(state)
        planes = [_card_plane(_own_cards(state.hole_cards, player))]
        for first, last in itertools.pairwise(BOARD_BY_ROUND):
            street = state.board[first:last]
            planes.append(_card_plane(jnp.where(num_shown >= last, street, -1)))
        small_blind = state.button if N == 2 else (state.button + 1) % N
        features = (
            *planes,
            _one_hot((player - small_blind) % N, N),
            _relative_stacks(state, player) / self.blinds[1],
            _betting_history(state, player, NUM_ROUNDS, self.blinds[1]),
        )
        return jnp.concatenate(features)

    def deals(self):
        """Not listed: there are too many.

        Raises:
            ValueError: always; it says how many deals there are.
        """
        left, count = NUM_CARDS, 1
        for dealt in (*[HOLE_CARDS] * self.num_agents, *np.diff(BOARD_BY_ROUND).tolist()):
            count *= math.comb(left, dealt)
            left -= dealt
        raise ValueError(f"texas_nolimit_holdem has {count:.3g} deals, too many to list: use games that are sampled")

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
            lines.append(f"seat {seat}: {cards}, {_seat_line(state, seat)}")
        return "\n".join(lines + _betting_lines(state, ROUND_NAMES))

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random hand."""
        N = self.num_agents
        *cards, button = _materialize(*_draw_cards(deal_key, HOLE_CARDS * N + BOARD_BY_ROUND[-1], N))
        hands, board = [cards[2 * seat : 2 * seat + 2] for seat in range(N)], cards[HOLE_CARDS * N :]
        scores = _materialize(*[_rank_hand([*hand, *board]) for hand in hands])
        seats = jnp.arange(N, dtype=jnp.int32)
        small_blind = button if N == 2 else (button + 1) % N
        big_blind = (small_blind + 1) % N
        posts = jnp.where(seats == small_blind, self.blinds[0], jnp.where(seats == big_blind, self.blinds[1], 0))
        posts = posts.astype(jnp.int32)
        stacks = jnp.array(self.stacks, jnp.int32)
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
            contributions=posts,
            stacks=stacks,
            folded=jnp.zeros(N, jnp.bool_),
            betting_round=jnp.int32(0),
            min_raise=jnp.int32(self.blinds[1]),
            turn=jnp.int32(0),
            to_act=(posts < stacks).sum(dtype=jnp.int32),
            history=jnp.zeros(self.max_actions, jnp.int32),
        )

    def _num_shown(self, state: State) -> jax.Array:
        """Board cards that show."""
        shown = jnp.int32(0)
        for betting_round, cards in enumerate(BOARD_BY_ROUND):
            shown = jnp.where(state.betting_round == betting_round, cards, shown)
        return shown.astype(jnp.int32)


# repeated block: max_raises (tests/test_repeated_blocks.py)
def _max_raises(stacks: tuple[int, ...], big_blind: int) -> int:
    """Most raises in a hand, as derived in the file's docstring."""
    second = sorted(stacks)[-2]
    doublings = ((second - 1) // big_blind).bit_length() - 1
    return doublings + len({stack for stack in stacks if big_blind < stack < second}) + 1


# repeated block: Bet (tests/test_repeated_blocks.py)
class _Bet(NamedTuple):
    """One action of a betting round and what it leads to; scalars."""

    action: jax.Array  # int32, the one that is played
    is_legal: jax.Array  # bool, the one that was chosen
    chips: jax.Array  # int32, put in
    min_raise: jax.Array  # int32, the last full raise from now on
    to_act: jax.Array  # int32, players who have to act before the round is over, unless somebody raises
    num_live: jax.Array  # int32, players who have not folded
    num_able: jax.Array  # int32, those of them who have chips behind
    closed: jax.Array  # bool, all bets are matched, and at most one player has chips behind: nobody is asked again


# repeated block: betting_options (tests/test_repeated_blocks.py)
def _betting_options(state: State) -> tuple[list[jax.Array], list[jax.Array]]:
    """Of the player to act: what each betting action puts in, 5 int32, and whether it is legal, 5 bool.

    All live players who are not all-in have put in the same when a round starts, so that the bets of the round differ
    as the contributions to the hand do.
    """
    seats = jnp.arange(state.stacks.shape[0], dtype=jnp.int32)
    acts = seats == state.current_player
    own, stack, highest, pot, others_can_call = _materialize(
        jnp.where(acts, state.contributions, 0).sum(dtype=jnp.int32),
        jnp.where(acts, state.stacks, 0).sum(dtype=jnp.int32),
        state.contributions.max(),
        state.contributions.sum(dtype=jnp.int32),
        (~acts & ~state.folded & (state.stacks > state.contributions.max())).any(),
    )
    call, behind = highest - own, stack - own
    reopened = (state.turn < seats.shape[0]) | (call >= state.min_raise)
    can_raise = others_can_call & reopened & (behind > call)
    raises = (pot + call) // 2, pot + call
    fits = [can_raise & (size >= state.min_raise) & (behind > call + size) for size in raises]
    chips = [jnp.minimum(call, behind), *(call + size for size in raises), behind, jnp.zeros_like(call)]
    return chips, [jnp.ones_like(can_raise), *fits, can_raise, call > 0]


# repeated block: play_bet (tests/test_repeated_blocks.py)
def _play_bet(state: State, action: jax.Array) -> _Bet:
    """The player to act bets; an illegal action is played as a check, as a fold when facing a bet."""
    action = jnp.asarray(action)
    chips, legal = _betting_options(state)
    is_legal = sum(((action == number) & allowed).astype(jnp.int32) for number, allowed in enumerate(legal)) > 0
    action = jnp.where(is_legal, action, jnp.where(legal[FOLD], FOLD, CHECK_CALL)).astype(jnp.int32)
    paid = sum(jnp.where(action == number, amount, 0) for number, amount in enumerate(chips))
    action, is_legal, paid = _materialize(action, is_legal, paid)
    acts = jnp.arange(state.stacks.shape[0], dtype=jnp.int32) == state.current_player
    own = jnp.where(acts, state.contributions, 0).sum(dtype=jnp.int32)
    raised_by = own + paid - state.contributions.max()  # negative after a fold or a short call
    contributions = state.contributions + jnp.where(acts, paid, 0)
    live = ~state.folded & ~(acts & (action == FOLD))
    able = live & (contributions < state.stacks)
    num_able, num_live, others_able, unmatched = _materialize(
        able.sum(dtype=jnp.int32),
        live.sum(dtype=jnp.int32),
        (able & ~acts).sum(dtype=jnp.int32),
        (able & (contributions < contributions.max())).any(),
    )
    to_act = jnp.where(raised_by > 0, others_able, state.to_act - 1)
    min_raise = jnp.maximum(state.min_raise, raised_by)
    closed = (num_able <= 1) & ~unmatched
    return _Bet(action, is_legal, paid, *_materialize(min_raise, to_act), num_live, num_able, closed)


# repeated block: settle_pots (tests/test_repeated_blocks.py)
def _settle_pots(contributions: jax.Array, scores: jax.Array, num_layers: int) -> jax.Array:
    """Net chips of every player once a hand is over.

    The pot is cut into layers at what each live player put in; each layer is split among the best hands of those who
    reach its top. What folded players put in above the highest such cut belongs to the highest layer.

    Args:
        contributions: [N] int32, chips put in.
        scores: [N] int32, the higher the better; negative = folded.
        num_layers: at least as many as there are different contributions of live players. As many as there are
            different stacks are enough: who is live and not all-in has put in the most of all.

    Returns:
        [N] float32.
    """
    seats = range(contributions.shape[0])
    paid, hands = [contributions[seat] for seat in seats], [scores[seat] for seat in seats]
    whole, rest = [-chips for chips in paid], [jnp.float32(0) for _ in seats]  # net chips are the sum of the two
    everything = np.int32(np.iinfo(np.int32).max)
    bottom = jnp.int32(0)
    for layer in range(num_layers):
        reaches = [(hands[seat] >= 0) & (paid[seat] > bottom) for seat in seats]
        best = functools.reduce(jnp.maximum, [jnp.where(reaches[seat], hands[seat], -1) for seat in seats])
        wins = [reaches[seat] & (hands[seat] == best) for seat in seats]
        top = everything
        if layer < num_layers - 1:
            lowest = functools.reduce(jnp.minimum, [jnp.where(reaches[seat], paid[seat], everything) for seat in seats])
            goes_on = functools.reduce(jnp.logical_or, [reaches[seat] & (paid[seat] > lowest) for seat in seats])
            top = jnp.where(goes_on, lowest, everything)
        size = sum(jnp.maximum(jnp.minimum(chips, top) - bottom, 0) for chips in paid)
        num_wins = jnp.maximum(sum(win.astype(jnp.int32) for win in wins), 1)
        share, share_rest = _split(size, num_wins)
        bottom, share, share_rest = _materialize(jnp.asarray(top), share, share_rest)
        whole = [whole[seat] + jnp.where(wins[seat], share, 0) for seat in seats]
        rest = [rest[seat] + jnp.where(wins[seat], share_rest, 0.0) for seat in seats]
    return jnp.stack(whole).astype(jnp.float32) + jnp.stack(rest)


# repeated block: relative_stacks (tests/test_repeated_blocks.py)
def _relative_stacks(state: State, player: jax.Array) -> jax.Array:
    """f32[N], chips before the hand, those of `player` first, then leftwards."""
    N = state.stacks.shape[0]
    seats = jnp.arange(N, dtype=jnp.int32)
    is_seat = (seats[None] - player) % N == seats[:, None]
    return jnp.where(is_seat, state.stacks[None], 0).sum(1, dtype=jnp.int32).astype(jnp.float32)


# repeated block: betting_history (tests/test_repeated_blocks.py)
def _betting_history(state: State, player: jax.Array, num_rounds: int, big_blind: int) -> jax.Array:
    """f32[L * (1 + 5 + num_rounds + N)], `State.history` as `player` sees it, as told in the file's docstring."""
    N = state.stacks.shape[0]
    packed = state.history[:, None]
    kind, packed = packed % (1 << ACTION_BITS) - 1, packed >> ACTION_BITS
    betting_round, packed = packed % (1 << ROUND_BITS), packed >> ROUND_BITS
    position, chips = packed % (1 << SEAT_BITS), packed >> SEAT_BITS
    seat = (position + state.button - player) % N

    def one_hots(values, size):
        return (kind >= 0) & (values == jnp.arange(size, dtype=jnp.int32)[None])

    played = jnp.concatenate([one_hots(kind, FOLD + 1), one_hots(betting_round, num_rounds), one_hots(seat, N)], axis=1)
    slots = [chips.astype(jnp.float32) / big_blind, played.astype(jnp.float32)]
    return jnp.concatenate(slots, axis=1).reshape(-1)


# repeated block: seat_line (tests/test_repeated_blocks.py)
def _seat_line(state: State, seat: int) -> str:
    """Chips of a seat and what it is doing."""
    paid = int(state.contributions[seat])
    marks = " button" * (seat == int(state.button)) + " folded" * bool(state.folded[seat])
    marks += " to act" * (seat == int(state.current_player) and not bool(state.finished))
    return f"{paid} in the pot, {int(state.stacks[seat]) - paid} behind{marks}"


# repeated block: betting_lines (tests/test_repeated_blocks.py)
def _betting_lines(state: State, round_names: tuple[str, ...]) -> list[str]:
    """What was bet in each round, and the returns once the hand is over."""
    names = ("check or call", "half pot", "pot", "all-in", "fold")
    bets = {}
    for packed in np.asarray(state.history).tolist():
        if packed:
            kind, packed = packed % (1 << ACTION_BITS) - 1, packed >> ACTION_BITS
            betting_round, packed = packed % (1 << ROUND_BITS), packed >> ROUND_BITS
            position, chips = packed % (1 << SEAT_BITS), packed >> SEAT_BITS
            seat = (position + int(state.button)) % len(state.stacks)
            bets.setdefault(betting_round, []).append(f"seat {seat} {names[kind]} {chips}")
    lines = [f"{round_names[betting_round]}: " + ", ".join(played) for betting_round, played in bets.items()]
    if bool(state.finished):
        lines.append("over, returns " + " ".join(f"{float(chips):+g}" for chips in state.returns))
    return lines


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
