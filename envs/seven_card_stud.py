"""Fixed-limit seven-card stud, 2 to 8 players.

Rules: every player antes 1 and gets two cards face down and one face up (third street), then, while he has not folded,
three more face up and a last one face down (fourth to seventh street), each street followed by a betting round. No card
is burnt. The lowest upcard on third street (deuce low, ace high; equal ranks by suit: clubs, diamonds, hearts, spades)
has to bring in 1: that is posted with the deal and counts as its player's action, so that the street ends there when
nobody completes. The seat left of the bring-in goes on: a call costs 1, the first raise completes to the small bet of
2, later raises add 2. On later streets the best upcards of those who have not folded act first (pairs, two pair, trips
and quads count, straights and flushes do not; equal ones: the first seat left of the dealer, who is drawn at reset);
bets and raises are the small bet of 2 on fourth street and the big bet of 4 from fifth street on. At most 4 raises a
street, the completion or bet among them. There are no stacks: everybody can always pay. At the showdown the best five
of seven cards win; equal hands split the pot. Where fewer cards are left than players before seventh street, which
takes eight players, one card is dealt to all of them together; it does not change who opens.

Third street has at most 5 * (N - 1) actions, a later one 5 * N - 4, as each raise lets all others act again; so a hand
of two players has at most 29, of N players 25 * N - 21, of eight 179. Nobody puts in more than 65 chips.

Actions:
    0   call, legal when facing a bet
    1   complete, bet or raise, legal while fewer than 4 were made on the street
    2   fold, legal when facing a bet
    3   check, legal when facing none
    An illegal action is played as a check, as a fold when facing a bet.

Observation "paper" (52 + 208 * (N - 1) + 25 + N features; all of the observing player's view):
    0 ... 51                own cards dealt so far, binary, card = 4 * rank + suit; a card dealt to all is among them
    then 4 * 52 for each    opponent by seat, the next to the left first: upcards of third to sixth street dealt so
                            far, one-hot; those of folded seats stay
    then 5 * 5              raises on each of 5 streets, 0 to 4, one-hot; zeros on streets not reached
    then N                  seats left of the bring-in, one-hot

Observation "information_state" (perfect recall; L = 5 * N - 4 slots a street):
    0 ... 51                own two downcards of third street
    then 5 * 52             own further cards in order dealt, one-hot each, zeros before they are dealt
    then 4 * 52 for each    opponent by seat: upcards, as in "paper"
    then 52                 the card dealt to all, with eight players only
    then N                  seats left of the bring-in, one-hot
    then N                  seats left of the dealer, one-hot
    then 5 * L * 4          actions in order: 5 streets x L slots x (call, raise, fold, check), one-hot

Reward: (chips won - chips paid) / big bet, paid when the hand ends.
"""

import functools
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
ANTE, BRING_IN, SMALL_BET, BIG_BET = 1, 1, 2, 4  # chips
MAX_RAISES = 4  # a street
NUM_ROUNDS = 5  # third to seventh street
SEVENTH = 4  # the last of them
HAND_CARDS = 7
DOWNCARDS, UPCARDS = 2, 4  # in a hand's first six cards, in this order
MAX_HANDS = NUM_CARDS // HAND_CARDS  # that the cards are enough for
ROUND_NAMES = ("third street", "fourth street", "fifth street", "sixth street", "seventh street")
ACTION_NAMES = ("call", "raise", "fold", "check")


@struct.dataclass
class State:
    """State of one hand. Arrays carry no batch axis: use `jax.vmap`. L slots a street."""

    key: jax.Array  # PRNG key of all later hands
    current_player: jax.Array  # int32, seat to act; the last to have acted once the hand is over
    timestep: jax.Array  # int32, actions played in this hand
    returns: jax.Array  # [N] float32, rewards of this hand so far
    finished: jax.Array  # bool, the hand is over
    dealer: jax.Array  # int32, seat; breaks ties of who opens
    bring_in: jax.Array  # int32, seat
    cards: jax.Array  # [N, 7] int32, 0 to 51 in order dealt, dealt or not; N = 8: -1 is a last card not dealt yet
    stock: jax.Array | None  # [4] int32, N = 8: cards that nobody has before seventh street; None for fewer seats
    scores: jax.Array  # [N] int32, what `_rank_hand` gives for all seven cards; N = 8: 0 before seventh street
    contributions: jax.Array  # [N] int32, chips in the pot
    fold_round: jax.Array  # [N] int32, street on which the seat folded, 0 to 4; 5 while it has not
    betting_round: jax.Array  # int32, 0 to 4, third to seventh street
    raises: jax.Array  # [5] int32, completions, bets and raises by street
    to_act: jax.Array  # int32, players who have to act before the street is over, unless somebody raises
    round_actions: jax.Array  # int32, actions played on this street
    history: jax.Array  # [5 * L] int8, action + 1 by street and slot, 0 where not played


@dataclass(frozen=True)
class SevenCardStud:
    """Fixed-limit seven-card stud.

    Attributes:
        num_agents: players, 2 to 8.
        observation: "paper" or "information_state".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 2
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    num_actions: ClassVar[int] = 4
    zero_sum: ClassVar[bool] = True
    call_actions: ClassVar[tuple[int, ...]] = (CALL, CHECK)  # of an opponent who always calls; the first legal one

    def __post_init__(self):
        if type(self.num_agents) is not int or not 2 <= self.num_agents <= 8:
            raise ValueError(f"num_agents={self.num_agents!r}: an integer from 2 to 8 is allowed")
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def obs_shape(self) -> tuple[int]:
        N = self.num_agents
        opponents = (N - 1) * UPCARDS * NUM_CARDS
        if self.observation == "paper":
            return (NUM_CARDS + opponents + NUM_ROUNDS * (MAX_RAISES + 1) + N,)
        own = (HAND_CARDS - DOWNCARDS + 1) * NUM_CARDS
        shared = NUM_CARDS if N > MAX_HANDS else 0
        return (own + opponents + shared + 2 * N + NUM_ROUNDS * self.round_slots * self.num_actions,)

    @property
    def round_slots(self) -> int:
        """Most actions on a street."""
        return self.num_agents + MAX_RAISES * (self.num_agents - 1)

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
            with `returns` f32[N], `timestep` int32, `illegal_action` bool, `winner` bool[N] (highest return of the
            finished hand), `phase` int32 (the street, 0 to 4) and `final_state`, the state before the new hand.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new hand. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        N = self.num_agents
        seats = jnp.arange(N, dtype=jnp.int32)
        rounds = jnp.arange(NUM_ROUNDS, dtype=jnp.int32)
        acts = seats == state.current_player
        highest, own = state.contributions.max(), jnp.where(acts, state.contributions, 0).sum(dtype=jnp.int32)
        num_raises = _at(state.raises, state.betting_round)
        facing_bet = highest > own
        is_legal = (
            ((action == CALL) & facing_bet)
            | ((action == RAISE) & (num_raises < MAX_RAISES))
            | ((action == FOLD) & facing_bet)
            | ((action == CHECK) & ~facing_bet)
        )
        action = jnp.where(is_legal, action, jnp.where(facing_bet, FOLD, CHECK)).astype(jnp.int32)
        folds, calls, raises = action == FOLD, action == CALL, action == RAISE

        completes = (state.betting_round == 0) & (num_raises == 0)
        raise_by = jnp.where(completes, SMALL_BET - BRING_IN, jnp.where(state.betting_round < 2, SMALL_BET, BIG_BET))
        paid = jnp.where(calls | raises, highest - own, 0) + jnp.where(raises, raise_by, 0)
        num_live = ((state.fold_round == NUM_ROUNDS) & ~(acts & folds)).sum(dtype=jnp.int32)
        to_act = jnp.where(raises, num_live - 1, state.to_act - 1)
        finished = (num_live == 1) | ((to_act == 0) & (state.betting_round == SEVENTH))
        next_round = (to_act == 0) & ~finished
        action, folds, raises, paid, num_live, to_act, finished, next_round = _materialize(
            action, folds, raises, paid.astype(jnp.int32), num_live, to_act, finished, next_round
        )
        fold_round = jnp.where(acts & folds, state.betting_round, state.fold_round)
        contributions = state.contributions + jnp.where(acts, paid, 0)
        live = fold_round == NUM_ROUNDS
        played = state.replace(
            timestep=state.timestep + 1,
            finished=finished,
            contributions=contributions,
            fold_round=fold_round,
            betting_round=state.betting_round + next_round,
            raises=state.raises + ((rounds == state.betting_round) & raises),
            to_act=jnp.where(next_round, num_live, to_act),
            round_actions=jnp.where(next_round, 0, state.round_actions + 1),
            history=jnp.where(
                jnp.arange(NUM_ROUNDS * self.round_slots, dtype=jnp.int32)
                == self.round_slots * state.betting_round + state.round_actions,
                (action + 1).astype(jnp.int8),
                state.history,
            ),
        )

        num_upcards = jnp.minimum(state.betting_round + 2, UPCARDS)  # of the next street
        upcards = [state.cards[seat, DOWNCARDS : DOWNCARDS + UPCARDS] for seat in range(N)]
        upcard_scores = jnp.stack(_materialize(*[_rank_upcards(hand, num_upcards) for hand in upcards]))
        best_upcards = live & (upcard_scores == jnp.where(live, upcard_scores, -1).max())
        can_act = jnp.where(next_round, best_upcards, live)
        next_player = _next_seat(can_act, jnp.where(next_round, state.dealer, state.current_player))

        best = jnp.where(live, state.scores, -1).max()
        wins = live & (state.scores == best)
        pot = contributions.sum(dtype=jnp.int32)
        share, share_rest = _split(pot, wins.sum(dtype=jnp.int32))
        unfinished = ~state.finished
        net = (jnp.where(wins, share, 0) - contributions).astype(jnp.float32) + jnp.where(wins, share_rest, 0.0)
        reward = jnp.where(unfinished & finished, net / BIG_BET, 0.0)

        played = played.replace(
            current_player=jnp.where(finished, state.current_player, next_player), returns=state.returns + reward
        )
        if N > MAX_HANDS:
            played = _select_state(next_round & (played.betting_round == SEVENTH), _deal_last(played), played)
        state = _select_state(unfinished, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": unfinished & ~is_legal,
            "winner": state.finished & (state.returns == state.returns.max()),
            "phase": state.betting_round,
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (N,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[4], True = legal, of the player to act; none in a finished state."""
        acts = jnp.arange(self.num_agents, dtype=jnp.int32) == state.current_player
        facing_bet = (acts & (state.contributions < state.contributions.max())).any()
        can_raise = _at(state.raises, state.betting_round) < MAX_RAISES
        return jnp.stack([facing_bet, can_raise, facing_bet, ~facing_bet]) & ~state.finished

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        N = self.num_agents
        own, upcards = self._own_dealt(state, player), self._opponents_upcards(state, player)
        first_count = NUM_CARDS * (1 + len(upcards))  # index of the first raise count
        position = first_count + NUM_ROUNDS * (MAX_RAISES + 1) + (player - state.bring_in) % N
        ones = [jnp.where(card < 0, -1, NUM_CARDS * plane + card) for plane, card in enumerate(upcards, 1)]

        # One pass over all features, from bits of own cards and raise counts and from the indices of the other ones:
        # planes that are joined take a CPU four times as long.
        def bit(number):
            return np.uint32(1) << number.astype(jnp.uint32)

        low, high = (sum(jnp.where(card // 32 == word, bit(card % 32), 0) for card in own) for word in range(2))
        counts = sum(
            jnp.where(street <= state.betting_round, bit((MAX_RAISES + 1) * street + state.raises[street]), 0)
            for street in range(NUM_ROUNDS)
        )
        low, high, counts, *ones = _materialize(low, high, counts, *ones, position)
        index = jnp.arange(*self.obs_shape, dtype=jnp.uint32)
        word = jnp.where(index < 32, low, jnp.where(index < 64, high, counts))
        shift = jnp.where(index < 64, index % 32, jnp.minimum(index - first_count, 31))  # bit 31 of `counts` is 0
        features = word >> shift & 1
        for one in ones:
            features = features | (index.astype(jnp.int32) == one)
        return features.astype(jnp.float32)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32 [312 + 208 (N - 1) + 2 N + 20 L; 52 more with N = 8], all that `player` has seen and done, in order."""
        N = self.num_agents
        own = self._own_dealt(state, player)
        shared = jnp.where(_shares_last(state) & (state.betting_round == SEVENTH), state.cards[0, -1], -1)
        played = state.history[:, None] == jnp.arange(1, self.num_actions + 1, dtype=jnp.int8)[None]
        return jnp.concatenate(
            [
                _card_plane(own[:DOWNCARDS]),
                _card_planes([*own[DOWNCARDS:], *self._opponents_upcards(state, player)]),
                *([_one_hot(shared, NUM_CARDS)] if N > MAX_HANDS else []),
                _one_hot((player - state.bring_in) % N, N),
                _one_hot((player - state.dealer) % N, N),
                played.astype(jnp.float32).reshape(-1),
            ]
        )

    def deals(self):
        """Not listed: there are too many.

        Raises:
            ValueError: always; it says how many deals there are.
        """
        num_dealt = min(HAND_CARDS * self.num_agents, NUM_CARDS)
        count = math.perm(NUM_CARDS, num_dealt) // math.factorial(DOWNCARDS) ** self.num_agents
        raise ValueError(f"seven_card_stud has {count:.3g} deals, too many to list: use games that are sampled")

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all cards where `player` is None, cards to come in brackets."""
        lines = [ROUND_NAMES[int(state.betting_round)]]
        dealt = np.asarray(_dealt(state))
        for seat in range(self.num_agents):
            cards = []
            for place, card in enumerate(np.asarray(state.cards[seat])):
                is_up = DOWNCARDS <= place < DOWNCARDS + UPCARDS
                if dealt[seat, place]:
                    cards.append(_card_name(card) if player in (None, seat) or is_up else "?")
                elif player is None and card >= 0:
                    cards.append(f"({_card_name(card)})")
            marks = " dealer" * (seat == int(state.dealer)) + " bring-in" * (seat == int(state.bring_in))
            marks += " folded" * (int(state.fold_round[seat]) < NUM_ROUNDS)
            marks += " to act" * (seat == int(state.current_player) and not bool(state.finished))
            lines.append(f"seat {seat}: {' '.join(cards)}, {int(state.contributions[seat])} in the pot{marks}")
        if int(state.betting_round) == SEVENTH and bool(_shares_last(state)):
            lines.append(f"card for all: {_card_name(state.cards[0, -1])}")
        for betting_round, name in enumerate(ROUND_NAMES):
            actions = np.asarray(state.history).reshape(NUM_ROUNDS, -1)[betting_round]
            if actions.any():
                lines.append(f"{name}: " + " ".join(ACTION_NAMES[action - 1] for action in actions if action))
        if bool(state.finished):
            lines.append("over, returns " + " ".join(f"{float(bets):+g}" for bets in state.returns))
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random hand. Cards of later streets are drawn, too: who gets them changes no probability."""
        N = self.num_agents
        hand_cards = HAND_CARDS if N <= MAX_HANDS else HAND_CARDS - 1
        *cards, dealer = _materialize(*_draw_cards(deal_key, HAND_CARDS * N if N <= MAX_HANDS else NUM_CARDS, N))
        hands = [cards[hand_cards * seat : hand_cards * (seat + 1)] for seat in range(N)]
        return self._first_state(key, hands, cards[hand_cards * N :], dealer)

    def _first_state(self, key: jax.Array, hands: list, stock: list, dealer: jax.Array) -> State:
        """First state of a hand with these cards: 7 int32 for each seat and no stock; with eight seats 6 and 4."""
        N = self.num_agents
        if N <= MAX_HANDS:
            scores = jnp.stack(_materialize(*[_rank_hand(hand) for hand in hands]))
        else:
            scores = jnp.zeros(N, jnp.int32)
            hands = [[*hand, jnp.int32(-1)] for hand in hands]
        seats = jnp.arange(N, dtype=jnp.int32)
        cards = jnp.stack([jnp.stack(hand) for hand in hands])
        first_upcards = cards[:, DOWNCARDS]
        bring_in = jnp.where(first_upcards == first_upcards.min(), seats, 0).sum(dtype=jnp.int32)
        return State(
            key=key,
            current_player=(bring_in + 1) % N,
            timestep=jnp.int32(0),
            returns=jnp.zeros(N, jnp.float32),
            finished=jnp.bool_(False),
            dealer=dealer,
            bring_in=bring_in,
            cards=cards,
            stock=jnp.stack(stock) if stock else None,
            scores=scores,
            contributions=jnp.where(seats == bring_in, ANTE + BRING_IN, ANTE).astype(jnp.int32),
            fold_round=jnp.full(N, NUM_ROUNDS, jnp.int32),
            betting_round=jnp.int32(0),
            raises=jnp.zeros(NUM_ROUNDS, jnp.int32),
            to_act=jnp.int32(N - 1),
            round_actions=jnp.int32(0),
            history=jnp.zeros(NUM_ROUNDS * self.round_slots, jnp.int8),
        )

    def _own_dealt(self, state: State, player: jax.Array) -> list[jax.Array]:
        """7 int32, the cards that `player` has in order dealt, -1 where not dealt."""
        return list(_own_cards(jnp.where(_dealt(state), state.cards, -1), player))

    def _opponents_upcards(self, state: State, player: jax.Array) -> list[jax.Array]:
        """(N - 1) * 4 int32, upcards of the seats left of `player` in their order, -1 where not dealt."""
        N = self.num_agents
        up = slice(DOWNCARDS, DOWNCARDS + UPCARDS)
        upcards = jnp.where(_dealt(state)[:, up], state.cards[:, up], -1)
        return [card for left in range(1, N) for card in _own_cards(upcards, (player + left) % N)]


def _at(numbers: jax.Array, index: jax.Array) -> jax.Array:
    """numbers[index] of int32[k], without a gather."""
    return jnp.where(jnp.arange(numbers.shape[0], dtype=jnp.int32) == index, numbers, 0).sum(dtype=jnp.int32)


def _card_planes(cards: Sequence[jax.Array]) -> jax.Array:
    """f32[k * 52], each of k cards one-hot; zeros for a negative one."""
    index = jnp.arange(NUM_CARDS * len(cards), dtype=jnp.int32)
    places = _materialize(*[jnp.where(card < 0, -1, NUM_CARDS * plane + card) for plane, card in enumerate(cards)])
    return functools.reduce(jnp.logical_or, [index == place for place in places]).astype(jnp.float32)


def _dealt(state: State) -> jax.Array:
    """bool[N, 7], the cards of each seat that are on the table, a card dealt to all included."""
    num_dealt = DOWNCARDS + 1 + jnp.minimum(state.betting_round, state.fold_round)
    places = jnp.arange(HAND_CARDS, dtype=jnp.int32)[None]
    dealt = places < num_dealt[:, None]
    shared = (state.betting_round == SEVENTH) & _shares_last(state)
    return dealt | (shared & (places == HAND_CARDS - 1))


def _shares_last(state: State) -> jax.Array:
    """bool, before seventh street there are or were fewer cards left than players."""
    if state.stock is None:
        return jnp.bool_(False)
    num_players = (state.fold_round >= SEVENTH).sum(dtype=jnp.int32)
    saved = jnp.maximum(SEVENTH - 1 - state.fold_round, 0).sum(dtype=jnp.int32)  # cards that folded seats did not get
    return state.stock.shape[0] + saved < num_players


def _deal_last(state: State) -> State:
    """Deals seventh street to eight seats from the stock and the cards that folded seats did not get.

    All orders of the undealt cards are equally likely, so they may be dealt in any: the stock first, then seat by seat
    from the dealer's left, who is also the first to get one.
    """
    N = state.fold_round.shape[0]
    seats = jnp.arange(N, dtype=jnp.int32)
    from_dealer = seats[None] == ((state.dealer + 1 + seats) % N)[:, None]  # [N in dealing order, N by seat]
    fold_round = jnp.where(from_dealer, state.fold_round[None], 0).sum(1, dtype=jnp.int32)
    later = slice(DOWNCARDS + 1, DOWNCARDS + UPCARDS)  # upcards of fourth to sixth street
    cards = jnp.where(from_dealer[:, :, None], state.cards[None, :, later], 0).sum(1, dtype=jnp.int32)
    saved = fold_round[:, None] <= jnp.arange(UPCARDS - 1, dtype=jnp.int32)[None]
    undealt = jnp.concatenate([state.stock, cards.reshape(-1)])
    is_undealt = jnp.concatenate([jnp.ones(state.stock.shape, jnp.bool_), saved.reshape(-1)])
    place = jnp.cumsum(is_undealt, dtype=jnp.int32) - 1
    live = fold_round == NUM_ROUNDS
    turn = jnp.where(_shares_last(state), 0, jnp.cumsum(live, dtype=jnp.int32) - 1)
    gets = is_undealt[None] & (place[None] == turn[:, None])  # [N in dealing order, undealt]
    last = jnp.where(gets, undealt[None], 0).sum(1, dtype=jnp.int32)
    last = jnp.where(live | _shares_last(state), last, -1)
    last = jnp.where(from_dealer, last[:, None], 0).sum(0, dtype=jnp.int32)
    cards = jnp.concatenate([state.cards[:, :-1], last[:, None]], axis=1)
    return state.replace(cards=cards, scores=_rank_hand(cards.T))


def _rank_upcards(cards: jax.Array, num_cards: jax.Array) -> jax.Array:
    """Scores the first `num_cards` of 4 upcards, int32[4]: quads, trips, pairs, high cards; the higher is better.

    As `_rank_hand`: a category, then a mask of the ranks held more than once, then a mask of the others.
    """
    bits = [jnp.where(place < num_cards, 1 << (cards[place] // NUM_SUITS), 0) for place in range(UPCARDS)]
    once, twice, thrice, four = bits[0], 0, 0, 0  # ranks held at least so often
    for bit in bits[1:]:
        once, twice, thrice, four = once | bit, twice | once & bit, thrice | twice & bit, four | thrice & bit
    num_pairs, num_trips, num_quads = (jax.lax.population_count(mask) for mask in (twice, thrice, four))
    return ((num_pairs + 2 * num_trips + num_quads) << 26 | twice << 13 | once & ~twice).astype(jnp.int32)


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
