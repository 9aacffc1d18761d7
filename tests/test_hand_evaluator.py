"""The hand evaluator of all poker games against counts, a slow evaluator and PokerKit; `scripts/verify_hands.py`."""

from functools import cache
from itertools import combinations, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.texas_limit_holdem import _rank_hand
from scripts import verify_hands
from scripts.verify_hands import CATEGORIES, CATEGORY_BITS, COUNTS, DISTINCT, all_hands, main, peer_hands, random_pairs

RANKS, SUITS = "23456789TJQKA", "cdhs"
SHUFFLED = (3, 0, 2, 1)  # suits instead of clubs, diamonds, hearts, spades


rank_hands = jax.jit(_rank_hand)


def score(text):
    cards = [4 * RANKS.index(name[0]) + SUITS.index(name[1]) for name in text.split()]
    return int(rank_hands(jnp.array(cards, jnp.int32)))


def category(text):
    return CATEGORIES[score(text) >> CATEGORY_BITS]


@cache
def five_card_hands():
    """All hands of five cards, int32 [5, H], and their scores [H]."""
    hands = np.concatenate(list(all_hands(5)), axis=1)
    return hands, np.asarray(rank_hands(hands))


def random_hands(num_cards, num_hands):
    """int32 [k, H]"""
    words = np.random.default_rng(num_cards).random((num_hands, 52), np.float32)
    return np.argpartition(words, num_cards, axis=1)[:, :num_cards].T.astype(np.int32)


def slow_scores(hands):
    """Scores of hands of five cards, [5, H], in another way: a category, then the ranks, the more often held first."""
    ranks, suits = hands // 4, hands % 4
    held = sum((ranks == rank[None]).astype(np.int64) for rank in ranks)  # how often the rank of each card is held
    ranks = -np.sort(-(held * 13 + ranks), axis=0) % 13
    in_a_row = (held == 1).all(0) & (ranks[0] - ranks[4] == 4)
    wheel = (ranks == np.array([12, 3, 2, 1, 0])[:, None]).all(0)
    ranks = np.where(wheel[None], np.array([3, 2, 1, 0, -1])[:, None], ranks)
    flush, straight = (suits == suits[:1]).all(0), in_a_row | wheel
    shape = held.sum(0)  # 1 * singles + 4 * paired cards / 2 + ...: 5, 7, 9, 11, 13, 17
    kind = np.select([shape == number for number in (7, 9, 11, 13, 17)], [1, 2, 3, 6, 7], 0)
    kind = np.where(flush & straight, 8, np.where(flush, 5, np.where(straight, 4, kind)))
    value = kind
    for rank in ranks:
        value = value * 14 + rank + 1
    return value


def test_all_five_card_hands_have_the_known_categories_and_7462_scores():
    hands, scores = five_card_hands()
    assert hands.shape == (5, 2_598_960)
    assert scores.dtype == np.int32
    assert np.bincount(scores >> CATEGORY_BITS).tolist() == list(COUNTS[5])
    distinct, repeats = np.unique(scores, return_counts=True)
    assert len(distinct) == 7_462
    per_score = np.unique(np.column_stack([distinct >> CATEGORY_BITS, repeats]), axis=0).tolist()
    # hands that tie with each other: choices of suits
    assert per_score == [[0, 1020], [1, 384], [2, 144], [3, 64], [4, 1020], [5, 4], [6, 24], [7, 4], [8, 4]]


def test_all_five_card_hands_are_in_the_order_of_a_slow_evaluator():
    hands, scores = five_card_hands()
    expected = slow_scores(hands)
    order = np.argsort(scores, kind="stable")
    assert np.array_equal(np.diff(scores[order]) > 0, np.diff(expected[order]) > 0)
    assert (np.diff(expected[order]) >= 0).all()


def test_the_7462_scores_are_in_pokerkits_order():
    hands, scores = five_card_hands()
    _, first = np.unique(scores, return_index=True)
    peers = peer_hands(hands[:, first])
    assert all(worse < better for worse, better in pairwise(peers))


@pytest.mark.parametrize(("num_cards", "num_hands"), [(6, 100_000), (7, 1_000_000)])
def test_a_random_hand_scores_as_the_best_five_of_its_cards(num_cards, num_hands):
    hands = random_hands(num_cards, num_hands)
    scores = np.asarray(rank_hands(hands))
    assert scores.dtype == np.int32
    best = np.zeros(num_hands, np.int32)
    for places in combinations(range(num_cards), 5):
        np.maximum(best, rank_hands(hands[list(places)]), out=best)
    assert np.array_equal(scores, best)
    counts = np.bincount(scores >> CATEGORY_BITS, minlength=9)
    expected = num_hands * np.array(COUNTS[num_cards]) / sum(COUNTS[num_cards])
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("num_cards", [5, 6, 7])
def test_random_pairs_are_in_pokerkits_order_ties_included(num_cards, capsys):
    rng = np.random.default_rng(1)
    assert verify_hands.check_pairs(rng, num_cards, 600) == 0
    assert "0 in another order" in capsys.readouterr().out


@pytest.mark.parametrize("num_cards", [5, 6, 7])
def test_neither_the_order_of_the_cards_nor_the_names_of_suits_count(num_cards):
    hands = random_hands(num_cards, 20_000)
    scores = np.asarray(rank_hands(hands))
    assert np.array_equal(rank_hands(hands[::-1]), scores)
    assert np.array_equal(rank_hands(hands // 4 * 4 + np.array(SHUFFLED)[hands % 4].astype(np.int32)), scores)


def test_cards_may_come_as_a_list_and_have_any_batch_shape():
    hands = random_hands(7, 24)
    expected = np.asarray(rank_hands(hands))
    assert np.array_equal(jax.jit(jax.vmap(lambda hand: _rank_hand(list(hand))))(hands.T), expected)
    batched = rank_hands(hands.reshape(7, 2, 3, 4))
    assert batched.dtype == jnp.int32
    assert np.array_equal(batched.reshape(-1), expected)
    with jax.enable_x64(True):
        wide = jax.eval_shape(_rank_hand, jax.ShapeDtypeStruct((7, 3), jnp.int32))
    assert (wide.dtype, wide.weak_type) == (jnp.int32, False)


@pytest.mark.parametrize(
    ("hand", "expected"),
    [
        ("2c 5d 9h Jc Ks", "high card"),
        ("2c 2d 9h Jc Ks", "pair"),
        ("2c 2d 9h 9c Ks", "two pair"),
        ("2c 2d 2h 9c Ks", "three of a kind"),
        ("Ac 2d 3h 4c 5s", "straight"),
        ("Ac Kd Qh Jc Ts", "straight"),
        ("2c 5c 9c Jc Kc", "flush"),
        ("2c 2d 2h 9c 9s", "full house"),
        ("2c 2d 2h 2s 9s", "four of a kind"),
        ("Ac 2c 3c 4c 5c", "straight flush"),
        ("Qc Kc Ac 2c 3c", "flush"),  # no straight goes around the ace
        ("Qc Kd Ac 2c 3h 4s 7d", "high card"),
        ("2c 3d 4h 5s 6c 6d 6h", "straight"),  # before three of a kind
        ("2c 3c 4c 5c 6d 7c Kh", "flush"),  # before a straight of other suits
        ("2c 3c 4c 5c 6c 6d 6h", "straight flush"),
        ("9c 9d 9h Kc Kd Kh 2s", "full house"),  # twice three of a kind
        ("9c 9d Jh Jc Kd Kh", "two pair"),
        ("9c 9d Jh Jc Kd Kh Ks", "full house"),  # two pairs beside three of a kind
        ("9c 9d 9h 9s Kc Kd Kh", "four of a kind"),
        ("2d 3d 4d 5d 6h 7h 8h", "straight"),
        ("Ah 2h 3h 4h 5h 6s 7s", "straight flush"),  # lower than the straight beside it
    ],
)
def test_categories(hand, expected):
    assert category(hand) == expected


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("2c 3d 4h 5s 6c", "Ac 2d 3h 4c 5s"),  # the wheel is five high, the lowest straight
        ("Ac 2d 3h 4c 5s", "Ac Ad Ah Ks Qc"),
        ("Ac Kd 3h 4c 5s 2h 9h", "9c 9d 9h As Kc"),
        ("2c 3d 4h 5s 6c Ad Kh", "Ac 2d 3h 4c 5s Kd Kh"),
        ("8h 8d 3h 4h 5h 6h 7h", "3h 4h 5h 6h 7h Ac Ad"),  # eight-high straight flush
        ("3h 4h 5h 6h 7h", "Ah 2h 3h 4h 5h"),
        ("Ah 2h 3h 4h 5h", "Ac Ad Ah As Kc"),
        ("3c 3d 3h 2c 2d", "2c 2d 2h Ac Ad"),  # full houses go by the three
        ("3c 3d 3h 5c 5d 4s 4d", "3c 3d 3h 4c 4d As Kd"),
        ("3c 3d 3h 2c 2d 2h Ad", "2c 2d 2h Ac Ad Ks Qs"),
        ("Ac Ad Kh Kc 2s", "Kc Kd Qh Qc As"),
        ("Ac Ad 2h 2c Ks", "Ac Ad 2h 2c Qs"),
        ("Ac Ad Kh Kc Qs 2d 2h", "Ac Ad Kh Kc Js Jd 2h"),
        ("2c 2d Ah Kc 9s", "2c 2d Ah Kc 8s"),
        ("Ac Qd 9h 5c 3s", "Ac Qd 9h 5c 2s"),
        ("Ac Qd 9h 5c 4s 3d 2h", "Kc Qd Jh 9c 8s 7d 6h"),
        ("Ac Qc 9c 5c 3c", "Ac Qc 9c 5c 2c"),
        ("2c 4c 5c 6c 8c 9c Tc", "2d 4c 5c 6c 8c 9c Th"),
        ("9c 9d 9h 9s 3c", "9c 9d 9h 9s 2c"),
        ("9c 9d 9h 9s Ac Kd Kh", "9c 9d 9h 9s Kc Kd Kh"),
    ],
)
def test_the_first_hand_is_better(better, worse):
    assert score(better) > score(worse)


@pytest.mark.parametrize(
    ("hand", "other"),
    [
        ("6c Qc Ad 6s Ac Td Js", "6c Qc Ad 6s Ac 3s 3d"),  # the third pair does not count, the queen kicks for both
        ("As Ks Qs Js Ts 2c 2d", "As Ks Qs Js Ts Ah Ad"),  # the board plays
        ("2c 7d 9h Jc Ks As Td", "2d 7h 9s Jd Kc Ac Th"),  # the deuce and the seven are out
        ("9c 9d 9h 9s Kc 2d 2h", "9c 9d 9h 9s Kc Kd 3h"),
        ("9c 9d Jh Jc Kd Kh As", "9c 8d Jh Jc Kd Kh As"),
        ("4c 4d 4h 3c 3d 3h 2d", "4c 4d 4h 3c 3d Ah Kd"),
        ("2c 3c 4c 5c 6c 6d 6h", "2c 3c 4c 5c 6c Ad Kh"),
        ("3c 8c 9c Jc Kc 2c Ad", "3c 8c 9c Jc Kc 2d Qd"),
        ("Ac Kd Qh Jc Ts 9c 8d", "Ad Kc Qs Jd Th 2c 2d"),
        ("9c 9d 9h Ac Kd 3s", "9s 9d 9h As Kh 2s"),
    ],
)
def test_hands_tie(hand, other):
    assert score(hand) == score(other)


# The script


@pytest.mark.parametrize("num_cards", [5, 6, 7])
def test_enumeration_has_every_hand_once(num_cards, monkeypatch):
    monkeypatch.setattr(verify_hands, "NUM_CARDS", 16)
    monkeypatch.setattr(verify_hands, "CHUNK", 1000)
    chunks = list(all_hands(num_cards))
    assert {chunk.shape[1] for chunk in chunks[:-1]} == {1000}
    assert all(chunk.dtype == np.int32 for chunk in chunks)
    hands = np.concatenate(chunks, axis=1).T.tolist()
    assert sorted(map(tuple, hands)) == sorted(combinations(range(16), num_cards))


def test_script_prints_the_counts_and_exits_with_0(capsys):
    assert main(verify_hands.Args(cards=(5,), pairs=20)) == 0
    out = capsys.readouterr().out
    assert "2,598,960 hands of 5 cards" in out
    assert [line.split()[-1] for line in out.splitlines()[1:11]] == [f"{n:,}" for n in (*COUNTS[5][::-1], DISTINCT[5])]
    assert [f"20 pairs of {num_cards} cards" in out for num_cards in (5, 6, 7)] == [True] * 3
    assert "WRONG" not in out


def test_script_exits_with_1_where_counts_or_order_differ(capsys, monkeypatch):
    def without_flushes(cards):
        ranks = [card // 4 * 4 for card in cards]
        suits = [place % 4 for place in range(len(cards))]
        return rank_hands(np.stack([rank + suit for rank, suit in zip(ranks, suits, strict=True)]))

    monkeypatch.setattr(verify_hands, "rank_hands", without_flushes)
    assert main(verify_hands.Args(cards=(5,), pairs=0)) == 1
    out = capsys.readouterr().out
    assert "WRONG, it should be 5,108" in out
    monkeypatch.setattr(verify_hands, "rank_hands", lambda hands: -np.asarray(rank_hands(hands)))
    assert main(verify_hands.Args(cards=(), pairs=20)) == 1
    assert "WRONG: " in capsys.readouterr().out
    first, second = random_pairs(np.random.default_rng(0), 7, 100)
    shared = [len(set(one) & set(other)) for one, other in zip(first.T.tolist(), second.T.tolist(), strict=True)]
    assert shared[::2] == [5] * 50
    assert shared[1::2] == [0] * 50
