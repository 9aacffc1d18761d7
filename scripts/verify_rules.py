"""Random poker hands, every decision replayed in PokerKit and in OpenSpiel's `universal_poker`.

    python scripts/verify_rules.py --env texas_limit_holdem --hands 100000 --num-agents 2 3 --workers 2

What is compared:
- Before every decision: the player to act, the legal actions, chips in the pot by seat, who is still in, the betting
  round, and what the player's observation shows of cards (own ones; board; in stud the other players' upcards).
- Legal actions go both ways: what the game allows the engine allows, to the exact amount, and what the game forbids
  the engine forbids. Actions that a rule of the game itself excludes (a raise of half the pot or the pot that is
  exactly all-in is the all-in) are excluded on both sides.
- The end of the hand, and all players' payoffs: PokerKit's are fractions, so that split pots are exact; ours may
  differ by what a float32 cannot hold.
A hand that differs is printed with all that is needed to play it again, and the exit code is 1.

Random play: in half of the hands actions are uniform over the legal ones; in the others they have weights drawn for
the hand, so that there are hands without folds, hands full of raises, and so on.

Without `--env-kwargs` the parameters are random, a few sets of them (each is compiled once), always the default ones
first; stacks are equal in every other set. With it they are what it says.

Known differences. They are recognised by the condition given here, mapped, counted and printed:
- PokerKit, "reopened": there was no full raise in the round yet, only all-ins below one big blind. PokerKit lets a
  player who has acted and faces less than a big blind raise; we do not.
- PokerKit, "closed": all-ins below the last full raise have added up to one, and further ones that do not add up to
  another came after. PokerKit forbids a raise to a player who has acted before all of them; by the rule that what he
  faces counts, we do not.
- PokerKit, "lone check": in the first round PokerKit asks a blind, not asked yet, who has nothing to call, where all
  others still in are all-in. We do not; the answer is a check. (It takes unequal stacks, so not in OpenSpiel.)

What is not compared: seven card stud with 8 players (PokerKit deals the last cards differently), five card draw with
more than 5 (its reserve differs), OpenSpiel with unequal stacks, PokerKit heads-up with equal blinds (it takes the
wrong player for the big blind).

How PokerKit is driven: its table of hand ranks is looked up directly for the best five cards instead of through 21
hand objects; at the showdown all hands are shown; the deck is not tracked, as the cards are those of our game (that
no card is dealt twice is checked here); nothing is burnt.

Speed on one core: in PokerKit 2,000 to 3,500 hands a second with two players, 600 to 1,000 with ten; OpenSpiel is three
times as fast. Compiling a parameter set takes some seconds.

Letters: E hands, N players, A actions, T decisions.
"""

import collections
import dataclasses
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import envs

BATCH = 2048  # hands played at once, whatever number of them is compared
TURNS = 8  # decisions between two looks at whether all hands are over
MAX_CHUNKS = 100  # of so many decisions; the longest hand has 274
MAX_PRINTED = 3  # hands that differ, for each parameter set
HANDS_PER_SET = 5_000  # a random parameter set more for each
MAX_SETS = 8
PLAYERS = {
    "texas_limit_holdem": (2, 10),
    "texas_nolimit_holdem": (2, 10),
    "five_card_draw": (2, 5),
    "seven_card_stud": (2, 7),
}
WHY_NOT_MORE = {
    "five_card_draw": "with more, PokerKit's reserve of discards differs",
    "seven_card_stud": "with more, PokerKit deals the last cards differently",
}
LIMIT_NAMES = ("call", "raise", "fold", "check")
CALL, RAISE, FOLD, CHECK = range(4)
NO_LIMIT_NAMES = ("check/call", "raise half pot", "raise pot", "all-in", "fold")
NL_CALL, NL_HALF, NL_POT, NL_ALL_IN, NL_FOLD = range(5)
FIRST_PATTERN, NUM_PATTERNS = 5, 32  # draw: action 5 + k keeps the cards whose bit in k is set
BOARD_STREETS = (0, 3, 1, 1)
STUD_UPCARDS = ((False, False, True), (True,), (True,), (True,), (False,))  # of the cards dealt on each street
STUD_BETS = (2, 2, 4, 4, 4)
STUD_RAISES = 4
CHIPS = 7  # first column of a recorded decision that has chips
LIMIT_GAMES = ("texas_limit_holdem", "seven_card_stud")
OPEN_SPIEL_GAMES = ("texas_limit_holdem", "texas_nolimit_holdem")
KNOWN = ("reopened", "closed", "lone check")
ENOUGH = 100  # big blinds (stud: chips) of everybody in games without stacks; nobody can lose as many


@dataclass
class Args:
    env: str = "texas_limit_holdem"
    """poker game to compare"""
    hands: int = 1000
    """hands for each number of players"""
    num_agents: tuple[int, ...] = ()
    """numbers of players, one or more; none: a random one for each parameter set"""
    env_kwargs: str | None = None
    """parameters of the game as JSON, e.g. '{"max_raises": [3, 4, 4, 4]}'; None: random ones"""
    seed: int = 0
    """seed of parameters, deals and actions; each batch of 2,048 hands has a seed of its own, counted from this one"""
    workers: int = 1
    """processes"""
    peer: Literal["pokerkit", "open_spiel", "both"] | None = None
    """engine to compare with; None: all that have the game"""


class MismatchError(Exception):
    """What differs in a hand."""


@dataclass
class Hand:
    """One hand as it was played here. Players are counted from the one left of the button, as in the engines."""

    index: int  # in its batch
    button: int  # seat that has it
    rows: list[list[int]]  # [T], a decision each, see below
    first_cards: list[list[int]]  # [N][k], own cards at the start (stud: all seven)
    last_cards: list[list[int]]  # [N][k], own cards at the end
    board: list[int]  # whole board
    payoffs: list[float]  # [N], sum of all rewards

    # Columns of a row: player, action, legal actions as bits, whether the action was called illegal, betting round,
    # cards that the player sees as his own and on the board, as bits, and as others' upcards; then for N players minus
    # the chips in the pot, and 1 for those still in, else 0.


# ---------------------------------------------------------------------------------------------------------------------
# Playing
# ---------------------------------------------------------------------------------------------------------------------


def bit_words(flags: jax.Array, width: int) -> list[jax.Array]:
    """bool[n] as two int32 of `width` bits each, the lowest first."""
    flags = jnp.pad(flags, (0, 2 * width - flags.shape[0])).reshape(2, width)
    words = jnp.where(flags, jnp.int32(1) << jnp.arange(width, dtype=jnp.int32)[None], 0).sum(-1, dtype=jnp.int32)
    return [words[0], words[1]]


def play_recorded(env, state, action: jax.Array):
    """`env.step_env`. Returns the next state, f32[N] rewards, and int32[10 + 2 N], what is recorded of the decision."""
    obs, legal = env.observe(state, state.current_player) > 0, env.legal_actions(state)
    is_stud, is_draw = hasattr(state, "dealer"), hasattr(state, "drawing")
    upcards = obs[52 : 52 * (1 + 4 * (env.num_agents - 1))].reshape(-1, 52).any(0) if is_stud else obs[:0]
    still_in = state.fold_round == len(STUD_BETS) if is_stud else ~state.folded
    betting_round = 2 * state.betting_round + state.drawing if is_draw else state.betting_round
    following, _, reward, _, _, info = env.step_env(state, action)
    columns = [state.current_player, action, *bit_words(legal, 31), info["illegal_action"], betting_round]
    columns += [*bit_words(obs[:52], 26), *bit_words(upcards, 26)]
    columns = jnp.stack([jnp.asarray(column, jnp.int32) for column in columns])
    return following, reward, jnp.concatenate([columns, -state.contributions, still_in.astype(jnp.int32)])


@partial(jax.jit, static_argnums=0)
def begin_hands(env, key: jax.Array):
    """First states of `BATCH` hands, and f32[E, A], the logarithms of the actions' weights."""
    deal_key, weights_key = jax.random.split(key)
    states, _ = jax.vmap(env.reset)(jax.random.split(deal_key, BATCH))
    weights = 1.5 * jax.random.normal(weights_key, (BATCH, env.num_actions))
    return states, jnp.where(jnp.arange(BATCH)[:, None] % 2 == 0, 0.0, weights)


@partial(jax.jit, static_argnums=0)
def play_turns(env, states, weights: jax.Array, totals: jax.Array, key: jax.Array):
    """`TURNS` decisions. Returns states, f32[E, N] rewards so far, int32[TURNS, E, F] what was recorded."""

    def turn(carry, key):
        states, totals = carry
        legal = jax.vmap(env.legal_actions)(states)
        noise = jax.random.gumbel(key, legal.shape)
        actions = jnp.where(legal, weights + noise, -jnp.inf).argmax(-1).astype(jnp.int32)
        states, rewards, record = jax.vmap(partial(play_recorded, env))(states, actions)
        return (states, totals + rewards), record

    (states, totals), records = jax.lax.scan(turn, (states, totals), jax.random.split(key, TURNS))
    return states, totals, records


def play_batch(env, seed: int) -> list[Hand]:
    """Plays `BATCH` random hands."""
    key, turns_key = jax.random.split(jax.random.key(seed))
    first, weights = begin_hands(env, key)
    states, totals = first, jnp.zeros((BATCH, env.num_agents), jnp.float32)
    records = []
    while not np.asarray(states.finished).all():
        if len(records) == MAX_CHUNKS:
            raise RuntimeError(f"seed {seed}: a hand is not over after {TURNS * MAX_CHUNKS} decisions")
        states, totals, record = play_turns(env, states, weights, totals, jax.random.fold_in(turns_key, len(records)))
        records.append(np.asarray(record))
    return unpack(env, first, states, np.asarray(totals), np.concatenate(records))


def unpack(env, first, last, totals: np.ndarray, records: np.ndarray) -> list[Hand]:
    """The records as hands, all seats counted from the one left of the button (stud: the dealer)."""
    N = env.num_agents
    buttons = np.asarray(first.dealer if hasattr(first, "dealer") else first.button)
    order = (np.arange(N)[None] + buttons[:, None] + 1) % N  # [E, N], seat of each engine's index
    raw = records.astype(np.int64)
    player, action, *legal, illegal, round_, low, high, low_others, high_others = np.moveaxis(raw[..., :10], -1, 0)
    columns = [(player - buttons[None] - 1) % N, action, legal[0] | legal[1] << 31, illegal, round_]
    columns += [low | high << 26, low_others | high_others << 26]
    chips, still_in = (
        np.take_along_axis(part, np.broadcast_to(order, part.shape), -1) for part in np.split(raw[..., 10:], 2, axis=-1)
    )
    rows = np.concatenate([np.stack(columns, -1), chips, still_in], -1).swapaxes(0, 1)  # [E, T, F]
    lengths = np.asarray(last.timestep).tolist()
    hands_of = (
        np.take_along_axis(np.asarray(own_cards(state)), order[..., None], 1).tolist() for state in (first, last)
    )
    boards = np.asarray(first.board).tolist() if hasattr(first, "board") else [[]] * len(buttons)
    payoffs = np.take_along_axis(totals, order, 1).astype(np.float64).tolist()
    return [
        Hand(index, button, rows[index, :length].tolist(), *cards, board, payoff)
        for index, (button, length, cards, board, payoff) in enumerate(
            zip(buttons.tolist(), lengths, zip(*hands_of, strict=True), boards, payoffs, strict=True)
        )
    ]


def own_cards(states) -> jax.Array:
    """[E, N, k]"""
    return states.hole_cards if hasattr(states, "hole_cards") else states.cards


# ---------------------------------------------------------------------------------------------------------------------
# Engines
# ---------------------------------------------------------------------------------------------------------------------


def check(condition: bool, words: str, *values):
    """Raises MismatchError, in `words` with `values` put in, unless `condition`."""
    if not condition:
        raise MismatchError(words.format(*values))


def card_bits(cards) -> int:
    return sum(1 << card for card in cards)


def card_names(cards) -> str:
    return " ".join("23456789TJQKA"[card // 4] + "cdhs"[card % 4] for card in cards)


def check_deal(hand: Hand):
    dealt = [card for cards in (*hand.first_cards, hand.board) for card in cards]
    check(len(set(dealt)) == len(dealt), "a card is dealt twice: {}", card_names(sorted(dealt)))


def check_cards(which: str, ours: int, theirs: int):
    if ours != theirs:
        named = (card_names(card for card in range(52) if bits >> card & 1) for bits in (ours, theirs))
        raise MismatchError("{} seen: {}; in the engine: {}".format(which, *named))


def reward_unit(game: str, env) -> int:
    """Chips that a reward of 1 stands for."""
    if game == "texas_limit_holdem":
        return env.blinds[1]
    return STUD_BETS[-1] if game == "seven_card_stud" else 1


def stack_of(env) -> int | tuple[int, ...]:
    if hasattr(env, "stack"):
        return env.stack
    return ENOUGH * (env.blinds[1] if hasattr(env, "blinds") else 1)


def action_names(game: str) -> tuple[str, ...]:
    if game in LIMIT_GAMES:
        return LIMIT_NAMES
    patterns = ("keep " + f"{k:05b}"[::-1] for k in range(NUM_PATTERNS)) if game == "five_card_draw" else ()
    return (*NO_LIMIT_NAMES, *patterns)


def check_legal(game: str, ours: int, theirs: int):
    if ours != theirs:
        named = (
            ", ".join(name for action, name in enumerate(action_names(game)) if legal >> action & 1) or "nothing"
            for legal in (ours, theirs)
        )
        raise MismatchError("legal: {}; in the engine: {}".format(*named))


def check_payoffs(ours: list[float], unit: int, theirs: list, pot: int):
    """A float32 holds the sum of a few shares of the pot to about 2**-22 of the pot."""
    for own, right in zip(ours, theirs, strict=True):
        if not abs(own * unit - right) <= pot * 2**-20:
            values = [[f"{float(value):g}" for value in payoffs] for payoffs in ([own * unit for own in ours], theirs)]
            raise MismatchError("payoffs {}; in the engine {}".format(*map(", ".join, values)))


def make_hand_type(cards: list):
    """A stand-in for PokerKit's StandardHighHand: `from_game` gives the place of the best five cards in its table.

    The table of 7,462 different hands is asked once for each. Ranks stand as prime numbers, so that a product of seven
    divided by two of them is the key of the other five.
    """
    import pokerkit

    lookup = pokerkit.StandardHighHand.lookup
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    plain, flushes = {}, {}
    for ranks in itertools.combinations_with_replacement(range(13), 5):
        if ranks[0] != ranks[4]:
            key = math.prod(primes[rank] for rank in ranks)
            # equal ranks are neighbours, four at most: suits taken in turn make them different cards, and no flush
            plain[key] = lookup.get_entry([cards[4 * rank + place % 4] for place, rank in enumerate(ranks)]).index
            if len(set(ranks)) == 5:
                flushes[key] = lookup.get_entry([cards[4 * rank] for rank in ranks]).index
    of_card = {id(card): (primes[number // 4], number % 4) for number, card in enumerate(cards)}

    class HandType:
        @staticmethod
        def from_game(hole_cards, board_cards=()):
            held = [of_card[id(card)] for card in itertools.chain(hole_cards, board_cards)]
            if len(held) < 5:
                raise ValueError("fewer than five cards")
            numbers, suits = [prime for prime, _ in held], [suit for _, suit in held]
            product = math.prod(numbers)
            # a five of a kind cannot come up: no key is missing
            best = max([plain[product // math.prod(out)] for out in itertools.combinations(numbers, len(held) - 5)])
            for suit in range(4):
                if suits.count(suit) >= 5:
                    suited = [prime for prime, of in held if of == suit]
                    best = max(best, *(flushes[math.prod(five)] for five in itertools.combinations(suited, 5)))
            return best

    return HandType


class PokerKit:
    """Replays hands in PokerKit."""

    name = "pokerkit"

    def __init__(self, game: str, env):
        import pokerkit

        self.game, self.env, self.num_agents = game, env, env.num_agents
        self.is_limit = game in LIMIT_GAMES
        self.unit = reward_unit(game, env)
        self.known = collections.Counter() if self.is_limit else collections.Counter(dict.fromkeys(KNOWN, 0))
        suits = [suit for suit in pokerkit.Suit if suit.value in "cdhs"]
        self.cards = [pokerkit.Card(rank, suit) for rank in pokerkit.RankOrder.STANDARD for suit in suits]
        if [repr(card) for card in self.cards] != [card_names([card]) for card in range(52)]:
            raise RuntimeError("PokerKit's cards are in another order than expected")
        stack = stack_of(env)
        self.stacks = [stack] * env.num_agents if isinstance(stack, int) else list(stack)

        street = partial(pokerkit.Street, False)  # no burns
        automation, opening = pokerkit.Automation, pokerkit.Opening
        settings = {"raw_antes": 0, "raw_blinds_or_straddles": 0, "bring_in": 0}
        if game == "seven_card_stud":
            settings |= {"raw_antes": 1, "bring_in": 1}
            openings = [opening.LOW_CARD] + [opening.HIGH_HAND] * 4
            streets = [
                street(dealt, 0, False, opens, bet, STUD_RAISES)
                for dealt, opens, bet in zip(STUD_UPCARDS, openings, STUD_BETS, strict=True)
            ]
        else:
            settings["raw_blinds_or_straddles"] = env.blinds
            hole = (False,) * (5 if game == "five_card_draw" else 2)
            boards = (0, 0) if game == "five_card_draw" else BOARD_STREETS[: getattr(env, "num_rounds", 4)]
            streets = []
            for number, board in enumerate(boards):
                bet = env.blinds[1] * (2 if self.is_limit and number >= 2 else 1)
                most = env.max_raises[number] if self.is_limit else None
                draws = game == "five_card_draw" and number == 1
                streets.append(street(() if number else hole, board, draws, opening.POSITION, bet, most))

        class State(pokerkit.State):
            """PokerKit's rules; no deck is tracked, and at the showdown everybody shows."""

            def _consume_cards(self, cards):
                pass

            def _produce_cards(self, cards):
                pass

            def _verify_cards_consumption(self, cards):
                return cards

            def get_dealable_cards(self, deal_count=0, warning_status=True):  # noqa: ARG002
                return range(52)

            def can_win_now(self, player_index):  # noqa: ARG002
                return True

        self.new_state = partial(
            State,
            deck=(),
            automations=(
                *(automation.ANTE_POSTING, automation.BLIND_OR_STRADDLE_POSTING, automation.BET_COLLECTION),
                *(automation.HOLE_CARDS_SHOWING_OR_MUCKING, automation.CHIPS_PUSHING, automation.CHIPS_PULLING),
            ),
            hand_types=(make_hand_type(self.cards),),
            streets=tuple(streets),
            betting_structure=getattr(pokerkit.BettingStructure, "FIXED_LIMIT" if self.is_limit else "NO_LIMIT"),
            ante_trimming_status=True,
            player_count=env.num_agents,
            divmod=lambda pot, shares: (Fraction(pot, shares) if pot % shares else pot // shares, 0),
            rake=lambda pot, _: (0, pot),
            **settings,
        )

    def history(self) -> str:
        return "; ".join(str(operation).replace("commentary=None, ", "") for operation in self.state.operations)

    def replay(self, hand: Hand):
        """Plays one hand in PokerKit.

        Raises:
            MismatchError: at the first difference.
        """
        N, self.hand = self.num_agents, hand
        order = [(hand.button + 1 + index) % N for index in range(N)]
        self.state = state = self.new_state(raw_starting_stacks=[self.stacks[seat] for seat in order])
        check_deal(hand)
        self.own_bits, self.up_bits, self.num_dealt, self.shown = [0] * N, [0] * N, [0] * N, 0
        self.drawn: list[list[int]] = [[] for _ in range(N)]  # cards that replace the discards
        self.new_round(0)
        self.deal()
        if state.bring_in_status:
            state.post_bring_in()
        decide = self.limit_decision if self.is_limit else self.no_limit_decision
        for row in hand.rows:
            player, action, legal, illegal, betting_round, seen, others_seen = row[:CHIPS]
            check(state.status, "player {} is asked, in PokerKit the hand is over", player)
            draws = not state.actor_indices
            turn = state.stand_patter_or_discarder_index if draws else state.actor_indices[0]
            check(turn == player, "player {} is asked, in PokerKit player {}", player, turn)
            chips, still_in = row[CHIPS : CHIPS + N], row[CHIPS + N :]
            if state.payoffs != chips:  # what nobody called PokerKit gives back before a draw
                most = sorted(chips)[1] if draws else min(chips)
                returned = state.payoffs == [max(most, value) for value in chips]
                check(returned, "chips in the pot {}, in PokerKit {} (negative)", chips, state.payoffs)
            check(state.statuses == still_in, "still in {}, in PokerKit {}", still_in, state.statuses)
            place = state.street_index + (self.game == "five_card_draw" and not draws and state.street_index == 1)
            check(place == betting_round, "betting round {}, in PokerKit {}", betting_round, place)
            bits = self.own_bits[player] | self.shown
            check_cards("cards", seen, bits)
            bits = 0
            for other, cards in enumerate(self.up_bits):
                bits |= 0 if other == player else cards
            check_cards("upcards of others", others_seen, bits)
            check(not illegal, "an action that was legal is called illegal")
            if draws:
                self.draw_decision(player, action, legal)
            else:
                decide(player, action, legal)
            self.deal()
        check(not state.status, "the hand is over, PokerKit goes on")
        check_payoffs(hand.payoffs, self.unit, state.payoffs, -sum(hand.rows[-1][CHIPS : CHIPS + N]))

    def deal(self):
        """Deals until somebody has a decision, and answers for the one whom only PokerKit asks."""
        state = self.state
        while state.status:
            if state.actor_indices:
                player = state.actor_indices[0]
                if (
                    self.is_limit
                    or state.street_index
                    or player in self.acted
                    or state.bets[player] < max(state.bets)
                    or any(stack for seat, stack in enumerate(state.stacks) if state.statuses[seat] and seat != player)
                ):
                    return
                self.known["lone check"] += 1
                state.check_or_call()
            elif any(state.standing_pat_or_discarding_statuses):
                return
            elif state.board_dealing_counts[0]:
                first = sum(BOARD_STREETS[: state.street_index])
                cards = self.hand.board[first : first + state.board_dealing_counts[0]]
                self.shown |= card_bits(cards)
                state.deal_board([self.cards[card] for card in cards])
            else:
                self.deal_hole_cards()

    def deal_hole_cards(self):
        state = self.state
        check(any(state.hole_dealing_statuses), "PokerKit deals no cards")
        for player, pending in enumerate(state.hole_dealing_statuses):
            if not pending:
                continue
            if state.street_index and self.game == "five_card_draw":
                cards = self.drawn[player]
            else:
                first = self.num_dealt[player]
                self.num_dealt[player] = last = first + len(pending)
                cards = self.hand.first_cards[player][first:last]
                self.own_bits[player] |= card_bits(cards)
                self.up_bits[player] |= card_bits(card for card, is_up in zip(cards, pending, strict=True) if is_up)
            state.deal_hole([self.cards[card] for card in cards], player)

    def new_round(self, street: int):
        """Forgets what was remembered of a betting round."""
        self.street = street
        self.acted: set[int] = set()
        self.full_raise = 0  # the last full one; 0: none yet
        self.largest_raise = 0  # PokerKit's measure of a full raise
        self.short_all_ins = 0  # sum of those that have not yet made such a raise together

    def limit_decision(self, player: int, action: int, legal: int):  # noqa: ARG002
        state = self.state
        to_call = state.checking_or_calling_amount
        raise_to = state.min_completion_betting_or_raising_to_amount
        theirs = 1 << (CALL if to_call else CHECK) | state.can_fold() << FOLD | (raise_to is not None) << RAISE
        check_legal(self.game, legal, theirs)
        if action == RAISE:
            state.complete_bet_or_raise_to(raise_to)
        elif action == FOLD:
            state.fold()
        else:
            state.check_or_call()

    def no_limit_decision(self, player: int, action: int, legal: int):
        state = self.state
        if state.street_index != self.street:
            self.new_round(state.street_index)
        highest, own, pot = max(state.bets), state.bets[player], -sum(state.payoffs)
        to_call, all_in = highest - own, own + state.stacks[player]
        full_raise = self.full_raise or self.env.blinds[1]
        raise_to = {NL_HALF: highest + (pot + to_call) // 2, NL_POT: highest + pot + to_call, NL_ALL_IN: all_in}
        least = state.min_completion_betting_or_raising_to_amount
        if player in self.acted:
            if least is None and to_call >= full_raise and 0 < self.short_all_ins < self.largest_raise:
                state.consecutive_short_all_in_amounts.clear()
                self.short_all_ins = 0
                least = state.min_completion_betting_or_raising_to_amount
                self.known["closed"] += least is not None
            elif least is not None and not self.full_raise and 0 < to_call < full_raise:
                self.known["reopened"] += 1
                least = None
        theirs = 1 << NL_CALL | state.can_fold() << NL_FOLD
        if least is not None:
            theirs |= 1 << NL_ALL_IN
            for part in (NL_HALF, NL_POT):
                theirs |= (least <= raise_to[part] < all_in) << part
        check_legal(self.game, legal, theirs)
        self.acted.add(player)
        if action == NL_FOLD:
            state.fold()
        elif action == NL_CALL:
            state.check_or_call()
        else:
            more = raise_to[action] - highest
            self.full_raise = more if more >= full_raise else self.full_raise
            self.largest_raise = max(self.largest_raise, more)
            self.short_all_ins = self.short_all_ins + more if action == NL_ALL_IN else 0
            if self.short_all_ins >= self.largest_raise:
                self.short_all_ins = 0
            state.complete_bet_or_raise_to(raise_to[action])

    def draw_decision(self, player: int, action: int, legal: int):
        # any discards are legal in PokerKit, and there are always enough cards for five players
        check_legal(self.game, legal, (1 << NUM_PATTERNS) - 1 << FIRST_PATTERN)
        held, now = sorted(self.hand.first_cards[player]), self.hand.last_cards[player]
        thrown = [card for place, card in enumerate(held) if not action - FIRST_PATTERN >> place & 1]
        new = [card for card in now if card not in held]
        served = len(now) == 5 and len(new) == len(thrown) and not set(thrown) & set(now)
        check(served, "{}, without {}, becomes {}", card_names(held), card_names(thrown), card_names(now))
        others = [card for cards in (*self.hand.first_cards, *self.drawn) for card in cards]
        check(not set(new) & set(others), "{} is dealt twice", card_names(set(new) & set(others)))
        self.drawn[player] = new
        self.own_bits[player] = card_bits(now)
        self.state.stand_pat_or_discard([self.cards[card] for card in thrown])


class OpenSpiel:
    """Replays hands in OpenSpiel's `universal_poker`, where all stacks are equal."""

    name = "open_spiel"

    def __init__(self, game: str, env):
        import pyspiel

        self.game, self.env, self.num_agents = game, env, env.num_agents
        self.is_limit = game in LIMIT_GAMES
        self.unit = reward_unit(game, env)
        self.known = collections.Counter()
        N, self.boards = env.num_agents, BOARD_STREETS[: getattr(env, "num_rounds", 4)]
        stack = stack_of(env)
        self.stack = stack if isinstance(stack, int) else stack[0]
        small, big = env.blinds
        # its player 0 is the one left of the button: heads-up the big blind; it counts openers from 1
        blinds, opener = ((big, small), 2) if N == 2 else ((small, big, *[0] * (N - 2)), 3)
        settings = {
            "betting": "limit" if self.is_limit else "nolimit",
            "bettingAbstraction": "fcpa" if self.is_limit else "fullgame",
            "numPlayers": N,
            "numRounds": len(self.boards),
            "blind": blinds,
            "firstPlayer": (opener, *[1] * (len(self.boards) - 1)),
            "stack": (self.stack,) * N,
            "numSuits": 4,
            "numRanks": 13,
            "numHoleCards": 2,
            "numBoardCards": self.boards,
        }
        if self.is_limit:
            settings["raiseSize"] = [big * (1 if number < 2 else 2) for number in range(len(self.boards))]
            # OpenSpiel writes no stacks into the definition of a limit game, whose parser then takes there to be four
            stacks = " ".join([str(self.stack)] * N)
            settings["maxRaises"] = " ".join(map(str, env.max_raises[: len(self.boards)])) + f"\nstack = {stacks}"
        self.engine = pyspiel.load_game(
            "universal_poker",
            {
                key: value if isinstance(value, int | str) else " ".join(map(str, value))
                for key, value in settings.items()
            },
        )

    def history(self) -> str:
        return f"actions {self.state.history()}, " + str(self.state).replace("\n", "; ")

    def replay(self, hand: Hand):
        """Plays one hand in OpenSpiel.

        Raises:
            MismatchError: at the first difference.
        """
        N = self.num_agents
        self.state = state = self.engine.new_initial_state()
        check_deal(hand)
        self.undealt = iter([card for own in hand.first_cards for card in own] + hand.board)
        self.deal()
        still_in = [1] * N
        for row in hand.rows:
            player, action, legal, illegal, betting_round, seen, _ = row[:CHIPS]
            check(not state.is_terminal(), "player {} is asked, in OpenSpiel the hand is over", player)
            turn = state.current_player()
            check(turn == player, "player {} is asked, in OpenSpiel player {}", player, turn)
            view = state.observation_tensor(player)
            chips, ours = view[-N:], [-value for value in row[CHIPS : CHIPS + N]]
            check(chips == ours, "chips in the pot {}, in OpenSpiel {}", ours, chips)
            check(row[CHIPS + N :] == still_in, "still in {}, by the folds {}", row[CHIPS + N :], still_in)
            bits = sum(1 << place for place, has in enumerate(view[N : N + 52]) if has)
            board = sum(1 << place for place, has in enumerate(view[N + 52 : N + 104]) if has)
            check_cards("cards", seen, bits | board)
            shown = sum(self.boards[: betting_round + 1])
            check(board.bit_count() == shown, "{} cards on the board, in OpenSpiel {}", shown, board.bit_count())
            check(not illegal, "an action that was legal is called illegal")

            allowed = state.legal_actions()
            highest, pot = int(max(chips)), int(sum(chips))
            to_call = highest - int(chips[player])
            if self.is_limit:
                theirs = (
                    (2 in allowed) << RAISE | (0 in allowed) << FOLD | (1 in allowed) << (CALL if to_call else CHECK)
                )
                move = {CALL: 1, CHECK: 1, FOLD: 0, RAISE: 2}[action]
            else:
                raise_to = {NL_HALF: highest + (pot + to_call) // 2, NL_POT: highest + pot + to_call}
                theirs = (1 in allowed) << NL_CALL | (0 in allowed) << NL_FOLD | (self.stack in allowed) << NL_ALL_IN
                for part, total in raise_to.items():
                    theirs |= (total < self.stack and total in allowed) << part
                move = (raise_to | {NL_CALL: 1, NL_FOLD: 0, NL_ALL_IN: self.stack})[action]
            check_legal(self.game, legal, theirs)
            still_in[player] = int(move != 0)
            state.apply_action(move)
            self.deal()
        check(state.is_terminal(), "the hand is over, OpenSpiel goes on")
        check_payoffs(hand.payoffs, self.unit, state.returns(), -sum(hand.rows[-1][CHIPS : CHIPS + N]))

    def deal(self):
        while self.state.is_chance_node():
            self.state.apply_action(next(self.undealt))


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------

PEERS = {"pokerkit": PokerKit, "open_spiel": OpenSpiel}
PACKAGES = {"pokerkit": ("pokerkit", "pokerkit"), "open_spiel": ("pyspiel", "open-spiel")}  # module, name to install


@dataclass
class Piece:
    """Work of one process: batches of one parameter set."""

    game: str
    env_kwargs: dict[str, Any]
    peers: tuple[str, ...]
    left_out: dict[str, str]  # engines that have the game, but cannot be compared with, and why
    batches: list[tuple[int, int]]  # seed, hands of it to compare


@dataclass
class Result:
    """What a piece, or several of one parameter set, came to."""

    hands: int = 0
    showdowns: int = 0
    decisions: int = 0
    mismatches: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by engine
    known: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by (engine, name)
    reports: list[str] = dataclasses.field(default_factory=list)
    seconds: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # playing, by engine

    def add(self, other: "Result"):
        self.hands += other.hands
        self.showdowns += other.showdowns
        self.decisions += other.decisions
        self.mismatches.update(other.mismatches)
        self.known.update(other.known)
        self.seconds.update(other.seconds)
        self.reports += other.reports


def run_piece(piece: Piece) -> Result:
    return compare(envs.make(piece.game, **piece.env_kwargs), piece)


def compare(env, piece: Piece) -> Result:
    """Plays the batches of `piece` with `env` and replays them."""
    result = Result()
    engines = [PEERS[peer](piece.game, env) for peer in piece.peers]
    for engine in engines:
        result.mismatches[engine.name] = 0
    fold = FOLD if piece.game in LIMIT_GAMES else NL_FOLD
    for seed, num_hands in piece.batches:
        start = time.perf_counter()
        hands = play_batch(env, seed)[:num_hands]
        result.seconds["playing"] += time.perf_counter() - start
        result.hands += len(hands)
        result.showdowns += sum(
            sum(hand.rows[-1][-env.num_agents :]) - (hand.rows[-1][1] == fold) > 1 for hand in hands
        )
        result.decisions += sum(len(hand.rows) for hand in hands)
        for engine in engines:
            start = time.perf_counter()
            for hand in hands:
                try:
                    engine.replay(hand)
                except Exception as difference:
                    result.mismatches[engine.name] += 1
                    if len(result.reports) < MAX_PRINTED:
                        result.reports.append(report(piece, seed, hand, engine, difference))
            result.seconds[engine.name] += time.perf_counter() - start
    for engine in engines:
        result.known.update({(engine.name, name): count for name, count in engine.known.items()})
    return result


def report(piece: Piece, seed: int, hand: Hand, engine, difference: Exception) -> str:
    """A hand that differs, in words, and how to play it again."""
    seats = [(hand.button + 1 + player) % engine.num_agents for player in range(engine.num_agents)]
    words = str(difference) if isinstance(difference, MismatchError) else f"{engine.name} refuses: {difference!r}"
    names = action_names(piece.game)
    lines = [
        f"MISMATCH of {piece.game} and {engine.name}: {words}",
        f"  again: python scripts/verify_rules.py --env {piece.game} --env-kwargs '{json.dumps(piece.env_kwargs)}' "
        f"--seed {seed} --hands {hand.index + 1} --peer {engine.name}",
        f"  hand {hand.index} of seed {seed}, seat {hand.button} has the button; players are counted from its left",
    ]
    for player, seat in enumerate(seats):
        first, last = hand.first_cards[player], hand.last_cards[player]
        later = f", later {card_names(last)}" if last != first else ""
        lines.append(f"  player {player} (seat {seat}): {card_names(first)}{later}, payoff {hand.payoffs[player]:g}")
    lines += [f"  board: {card_names(hand.board)}"] * bool(hand.board)
    lines.append("  actions: " + "; ".join(f"{row[0]} {names[row[1]]}" for row in hand.rows))
    lines.append(f"  {engine.name}: {engine.history()}")
    return "\n".join(lines)


def random_parameters(game: str, num_agents: int, number: int, rng: np.random.Generator, equal_stacks: bool) -> dict:
    """The `number`-th parameter set of `num_agents` players; the first is the default one."""
    kwargs: dict[str, Any] = {"num_agents": num_agents}
    if number == 0 or game == "seven_card_stud":
        return kwargs
    small, big = [(1, 2), (2, 5), (5, 10), (1, 3), (10, 10)][rng.integers(4 if num_agents == 2 else 5)]
    kwargs["blinds"] = [small, big]
    if game == "texas_limit_holdem":
        kwargs["num_rounds"] = int(rng.integers(2, 5))
        return kwargs | {"max_raises": [(3, 4, 4, 4), tuple(rng.integers(1, 5, 4).tolist())][int(rng.integers(2))]}
    # mostly short: then there are all-ins below a raise, side pots, and blinds that take the whole stack
    deepest = int(big * rng.choice([3, 8, 20, 100]))
    stacks = rng.integers(big, deepest + 1, num_agents).tolist()
    return kwargs | {"stack": stacks[0] if equal_stacks or number % 2 == 0 else stacks}


def parameter_sets(args: Args) -> list[tuple[dict, int]]:
    """Parameters, and hands to compare with them."""
    least, most = PLAYERS[args.env]
    rng = np.random.default_rng(args.seed)
    if args.env_kwargs is not None:
        kwargs = json.loads(args.env_kwargs)
        return [(kwargs | {"num_agents": N}, args.hands) for N in args.num_agents] or [(kwargs, args.hands)]
    num_sets = min(MAX_SETS, 1 + args.hands // HANDS_PER_SET)
    sets = []
    for N in args.num_agents or (None,):
        for number in range(num_sets):
            players = N or int(rng.integers(least, most + 1))
            kwargs = random_parameters(args.env, players, number, rng, args.peer == "open_spiel")
            hands = args.hands * (number + 1) // num_sets - args.hands * number // num_sets
            place = next((place for place, (other, _) in enumerate(sets) if other == kwargs), None)
            if place is None:
                sets.append((kwargs, hands))
            else:
                sets[place] = (kwargs, sets[place][1] + hands)
    return sets


def why_not(game: str, env) -> dict[str, str]:
    """Engines that a parameter set cannot be compared with, and why."""
    stack = stack_of(env)
    reasons = {}
    if game not in OPEN_SPIEL_GAMES:
        reasons["open_spiel"] = "does not have the game"
    elif not isinstance(stack, int) and len(set(stack)) > 1:
        reasons["open_spiel"] = "is compared with equal stacks only"
    if env.num_agents == 2 and hasattr(env, "blinds") and env.blinds[0] == env.blinds[1]:
        reasons["pokerkit"] = "takes the wrong player for the big blind where two players post equal blinds"
    return reasons


def check_args(args: Args) -> list[Piece]:
    """The work, cut into pieces.

    Raises:
        ValueError: the arguments cannot work.
    """
    if args.env not in PLAYERS:
        raise ValueError(f"--env {args.env}: the games with engines to compare with are {', '.join(PLAYERS)}")
    for name in ("hands", "workers"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}: one or more is needed")
    least, most = PLAYERS[args.env]
    for N in args.num_agents:
        if not 2 <= N <= 10:
            raise ValueError(f"--num-agents {N}: {args.env} is compared with {least} to {most}")
    if args.seed < 0:
        raise ValueError(f"--seed {args.seed}: zero or more is needed")
    if args.peer in ("open_spiel", "both") and args.env not in OPEN_SPIEL_GAMES:
        raise ValueError(f"--peer {args.peer}: OpenSpiel has no {args.env}")
    if args.env_kwargs is not None:
        try:
            kwargs = json.loads(args.env_kwargs)
        except json.JSONDecodeError as error:
            raise ValueError(f"--env-kwargs {args.env_kwargs!r} is not JSON: {error}") from None
        if not isinstance(kwargs, dict):
            raise ValueError(f'--env-kwargs {args.env_kwargs!r} is not a JSON object such as {{"blinds": [1, 2]}}')
        if args.num_agents and "num_agents" in kwargs:
            raise ValueError("--num-agents is given twice: it is in --env-kwargs, too")
        if kwargs.get("observation", "paper") != "paper":
            raise ValueError("--env-kwargs: cards are read from the observation 'paper'")
    pieces, seed = [], args.seed
    sets = parameter_sets(args)
    for kwargs, num_hands in sets:
        env = envs.make(args.env, **kwargs)
        if not least <= env.num_agents <= most:
            why = f": {WHY_NOT_MORE[args.env]}" if args.env in WHY_NOT_MORE else ""
            raise ValueError(f"{env.num_agents} players: {args.env} is compared with {least} to {most}{why}")
        reasons = why_not(args.env, env)
        wanted = tuple(PEERS) if args.peer in (None, "both") else (args.peer,)
        peers = tuple(peer for peer in wanted if peer not in reasons)
        if not peers:
            raise ValueError(f"{json.dumps(kwargs)}: " + "; ".join(f"{peer} {reasons[peer]}" for peer in wanted))
        for module, package in (PACKAGES[peer] for peer in peers):
            if importlib.util.find_spec(module) is None:
                raise ValueError(f"comparing needs {package}: pip install {package}")
        left_out = {peer: reasons[peer] for peer in wanted if peer in reasons and args.env in OPEN_SPIEL_GAMES}
        batches = []
        for first in range(0, num_hands, BATCH):
            batches.append((seed, min(BATCH, num_hands - first)))
            seed += 1
        shares = args.workers if len(sets) < args.workers else 1
        parts = (batches[share::shares] for share in range(shares))
        pieces += [Piece(args.env, kwargs, peers, left_out, part) for part in parts if part]
    return pieces


def run(pieces: list[Piece], workers: int) -> int:
    """Compares, prints, and returns the exit code."""
    total, start = Result(), time.perf_counter()
    for piece, result in results_of(pieces, workers):
        total.add(result)
        for text in result.reports:
            print(text + "\n", flush=True)
        against = ", ".join(
            f"{peer} {result.mismatches[peer]:,} mismatches ({result.hands / result.seconds[peer]:,.0f} hands/s)"
            for peer in piece.peers
        )
        print(
            f"{piece.game} {json.dumps(piece.env_kwargs)}: {result.hands:,} hands, {result.showdowns:,} showdowns, "
            f"{result.decisions:,} decisions; "
            f"{against}"
            + known_text(result.known)
            + "".join(f"; {peer} {why}" for peer, why in piece.left_out.items()),
            flush=True,
        )
    print(
        f"\nin all {total.hands:,} hands, {total.showdowns:,} showdowns, {total.decisions:,} decisions, "
        f"{sum(total.mismatches.values()):,} mismatches, {time.perf_counter() - start:,.0f} s{known_text(total.known)}"
    )
    return 1 if any(total.mismatches.values()) else 0


def known_text(known: collections.Counter) -> str:
    if not known:
        return ""
    return "; known differences: " + ", ".join(f"{peer} {name} {count:,}" for (peer, name), count in known.items())


def results_of(pieces: list[Piece], workers: int) -> Iterator[tuple[Piece, Result]]:
    """Pieces as they are done."""
    if workers == 1:
        yield from ((piece, run_piece(piece)) for piece in pieces)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run_piece, piece): piece for piece in pieces}
        yield from ((futures[done], done.result()) for done in as_completed(futures))


def main(args: Args) -> int:
    """`run`, with the user's mistakes as one line on stderr; returns the exit code."""
    try:
        pieces = check_args(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return run(pieces, args.workers)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # of the workers, too
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main(tyro.cli(Args, description=__doc__)))
