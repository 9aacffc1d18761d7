"""Every five-, six- or seven-card poker hand through the evaluator of the games, and its order against PokerKit's.

    python scripts/verify_hands.py --cards 5 7

What is checked:
- All C(52, k) hands of k cards are scored in chunks. The number of hands in each category has to be the known one, and
  so has the number of different scores.
- `--pairs` random pairs of hands of 5, 6 and 7 cards each: the first has to be better than, equal to or worse than the
  second as PokerKit's StandardHighHand has it. In every second pair the hands share all but two of their cards, as at a
  table, so that there are ties.

Prints the numbers, and those that differ; the exit code is 1 where any does. The evaluator is `_rank_hand` of
`envs/texas_limit_holdem.py`, a block that stands in all poker games.

On two busy CPU cores all hands of seven cards took 25 s; 100,000 pairs of each size take 70 s of CPU time, nearly all
of it in PokerKit. About 0.5 GB of memory.

Letters: H hands, k cards.
"""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import jax
import numpy as np
import tyro

from envs.texas_limit_holdem import _rank_hand

NUM_CARDS = 52
CHUNK = 1 << 20  # hands scored at once
LOWEST = 4  # cards of a hand that are looked up in one table, the others in another one
CATEGORY_BITS = 26  # a score is category << 26 | ranks
CATEGORIES = (
    *("high card", "pair", "two pair", "three of a kind", "straight", "flush"),
    *("full house", "four of a kind", "straight flush"),
)
COUNTS = {  # hands by category, for each number of cards
    5: (1_302_540, 1_098_240, 123_552, 54_912, 10_200, 5_108, 3_744, 624, 40),
    6: (6_612_900, 9_730_740, 2_532_816, 732_160, 361_620, 205_792, 165_984, 14_664, 1_844),
    7: (23_294_460, 58_627_800, 31_433_400, 6_461_620, 6_180_020, 4_047_644, 3_473_184, 224_848, 41_584),
}
DISTINCT = {5: 7_462, 6: 6_075, 7: 4_824}  # different scores


@dataclass
class Args:
    cards: tuple[Literal[5, 6, 7], ...] = (5, 7)
    """numbers of cards, one or more, of which all hands are scored"""
    pairs: int = 100_000
    """random pairs of hands of each size, 5, 6 and 7 cards, to compare with PokerKit; 0: none"""
    seed: int = 0
    """seed of the random pairs"""


rank_hands = jax.jit(_rank_hand)


def all_hands(num_cards: int) -> Iterator[np.ndarray]:
    """All hands of `num_cards` cards, int32 [k, H] with H = `CHUNK`, or less in the last chunk.

    A hand is its k - 4 highest cards and 4 cards that are all lower. In colexicographic order the sets of 4 cards below
    a given one are the first ones of the list of all sets of 4.
    """
    lowest, highest = subsets(LOWEST), subsets(num_cards - LOWEST)
    num_below = np.array([math.comb(card, LOWEST) for card in range(NUM_CARDS)])
    ends = np.cumsum(num_below[highest[0]])  # of the hands with the same highest cards
    for first in range(0, ends[-1], CHUNK):
        hands = np.arange(first, min(first + CHUNK, ends[-1]))
        high = np.searchsorted(ends, hands, side="right")
        low = hands - (ends[high] - num_below[highest[0, high]])
        yield np.concatenate([lowest[:, low], highest[:, high]])


def subsets(size: int) -> np.ndarray:
    """int32 [size, C(52, size)], all sets of cards in colexicographic order, each set in ascending order."""
    downwards = np.array(list(combinations(range(NUM_CARDS - 1, -1, -1), size)), np.int32)
    return downwards[::-1, ::-1].T.copy()


def count_scores(num_cards: int) -> tuple[np.ndarray, np.ndarray]:
    """Hands by category, [9], and all different scores, of all hands of `num_cards` cards."""
    counts, scores = np.zeros(len(CATEGORIES), np.int64), np.zeros(0, np.int32)
    for hands in all_hands(num_cards):
        padded = np.pad(hands, ((0, 0), (0, CHUNK - hands.shape[1])), mode="edge")  # one shape, compiled once
        found = np.asarray(rank_hands(padded))[: hands.shape[1]]
        counts += np.bincount(found >> CATEGORY_BITS, minlength=len(CATEGORIES))
        scores = np.union1d(scores, found)
    return counts, scores


def check_all_hands(num_cards: int) -> int:
    """Prints the numbers of hands by category and of different scores; returns how many of these numbers are wrong."""
    start = time.perf_counter()
    counts, scores = count_scores(num_cards)
    print(f"{counts.sum():,} hands of {num_cards} cards in {time.perf_counter() - start:.1f} s")
    wrong = 0
    rows = [*zip(CATEGORIES, counts, COUNTS[num_cards], strict=True)]
    for name, found, right in [*reversed(rows), ("different scores", len(scores), DISTINCT[num_cards])]:
        wrong += int(found != right)
        print(f"  {name:<18}{found:>12,}" + f"   WRONG, it should be {right:,}" * bool(found != right))
    return wrong


def random_pairs(rng: np.random.Generator, num_cards: int, num_pairs: int) -> np.ndarray:
    """int32 [2, k, H], pairs of hands; in every second pair they share all but two of their cards."""
    decks = rng.permuted(np.tile(np.arange(NUM_CARDS, dtype=np.int32), (num_pairs, 1)), axis=1)
    others = decks[:, num_cards : 2 * num_cards].copy()
    others[::2, : num_cards - 2] = decks[::2, : num_cards - 2]
    return np.stack([decks[:, :num_cards].T, others.T])


def peer_hands(hands: np.ndarray) -> list:
    """PokerKit's hands, comparable with each other, of int32 [k, H]."""
    from pokerkit import Card, StandardHighHand

    deck = [next(iter(Card.parse(rank + suit))) for rank in "23456789TJQKA" for suit in "cdhs"]
    return [StandardHighHand.from_game([deck[card] for card in hand]) for hand in hands.T.tolist()]


def check_pairs(rng: np.random.Generator, num_cards: int, num_pairs: int) -> int:
    """Prints in how many of the pairs the order is not PokerKit's, and the first ones of them; returns how many."""
    pairs = random_pairs(rng, num_cards, num_pairs)
    ours = [np.asarray(rank_hands(hands)) for hands in pairs]
    order = np.sign(ours[0] - ours[1])  # scores are not negative
    peers = zip(*map(peer_hands, pairs), strict=True)
    right = np.array([int(first > second) - int(first < second) for first, second in peers])
    differing = np.flatnonzero(order != right)
    ties = int((right == 0).sum())
    print(f"{num_pairs:,} pairs of {num_cards} cards, {ties:,} of them ties: {len(differing):,} in another order")
    for pair in differing[:5]:
        first, second = (
            " ".join("23456789TJQKA"[card // 4] + "cdhs"[card % 4] for card in hands[:, pair]) for hands in pairs
        )
        print(f"  WRONG: {first} against {second} is {order[pair]:+d}, it should be {right[pair]:+d}")
    return len(differing)


def main(args: Args) -> int:
    """Runs all checks; returns the exit code, 1 where something differs."""
    rng = np.random.default_rng(args.seed)
    wrong = sum(check_all_hands(num_cards) for num_cards in args.cards)
    if args.pairs > 0:
        wrong += sum(check_pairs(rng, num_cards, args.pairs) for num_cards in COUNTS)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
