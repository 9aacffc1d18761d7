"""Blocks that stand in several files, so that each file can be copied alone, are the same in all of them."""

import ast
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from envs import five_card_draw, kuhn_poker, texas_limit_holdem

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("envs", "baselines", "solvers", "scripts")
MARK = re.compile(r"# repeated block: (\w+) \(tests/test_repeated_blocks\.py\)")
BETS = ("envs/texas_nolimit_holdem.py", "envs/five_card_draw.py")
BLINDS = ("envs/texas_limit_holdem.py", *BETS)
POKER = (*BLINDS, "envs/seven_card_stud.py")
SMALL = ("envs/kuhn_poker.py", "envs/leduc_holdem.py", "envs/liars_dice.py")
OTHERS = ("envs/goofspiel.py", "envs/bluff.py", "envs/werewolf.py", "envs/kemps.py")
GAMES = (*SMALL, *POKER, *OTHERS)
SCRIPTS = ("baselines/ppo_nfsp.py", "solvers/cfr.py", "solvers/deep_cfr.py")
NETWORKS = ("baselines/ppo_nfsp.py", "solvers/deep_cfr.py")
BLOCKS = {
    "number_of_steps": SCRIPTS,
    "atomic_write": SCRIPTS,
    "RunLogger": SCRIPTS,
    "save_curve": SCRIPTS,
    "mean_and_interval": SCRIPTS,
    "describe_run": SCRIPTS,
    "write_config": SCRIPTS,
    "make_env": SCRIPTS,
    "make_config": SCRIPTS,
    "pack": NETWORKS,
    "masked_logits": NETWORKS,
    "read_run": NETWORKS,
    "auto_reset": GAMES,
    "child_keys": GAMES,
    "select_state": GAMES,
    "one_hot": (*SMALL, *POKER, "envs/werewolf.py"),
    "next_seat": POKER,
    "own_cards": POKER,
    "card_name": POKER,
    "materialize": (*POKER, *OTHERS, "envs/liars_dice.py"),
    "draw_cards": POKER,
    "draw_number": (*POKER, "envs/liars_dice.py", "envs/werewolf.py", "envs/kemps.py"),
    "rank_hand": POKER,
    "card_plane": POKER,
    "split": POKER,
    "require_tuple": BLINDS,
    "max_raises": BETS,
    "Bet": BETS,
    "betting_options": BETS,
    "play_bet": BETS,
    "settle_pots": BETS,
    "relative_stacks": BETS,
    "betting_history": BETS,
    "seat_line": BETS,
    "betting_lines": BETS,
}


def definitions(source):
    """{first line (that of the first decorator): (source up to the last line, name)} of module-level definitions."""
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[first] = ("\n".join(lines[first - 1 : node.end_lineno]), node.name)
    return found


def find_faults(root, blocks):
    """One line for each way in which the files under `root` are not as `blocks` lists them."""
    faults = []
    copies = {name: {} for name in blocks}  # {block: {file: source}}
    unmarked = []  # (file, name, source)
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        rest = definitions(source)
        for number, line in enumerate(source.splitlines(), 1):
            if not line.lstrip().startswith("# repeated block"):
                continue
            mark = MARK.fullmatch(line)
            if mark is None:
                faults.append(f"{file}:{number}: not of the form {MARK.pattern}")
            elif number + 1 not in rest:
                faults.append(f"{file}:{number}: no module-level definition directly below")
            elif file in copies.setdefault(mark[1], {}):
                faults.append(f"{file}:{number}: a second {mark[1]} in one file")
            else:
                copies[mark[1]][file] = rest.pop(number + 1)[0]
        unmarked += [(file, name, text) for text, name in rest.values()]

    for block, files in copies.items():
        faults += [
            f"{file}: {block} is not listed in BLOCKS" for file in sorted(set(files) - set(blocks.get(block, ())))
        ]
        faults += [f"{file}: {block} is listed, not there" for file in sorted(set(blocks.get(block, ())) - set(files))]
        faults += [
            f"{file}: {name} is a copy of {block} without its mark"
            for file, name, text in unmarked
            if text in files.values()
        ]
        first, *others = files or [None]
        faults += [f"{file}: {block} differs from that in {first}" for file in others if files[file] != files[first]]
    return faults


def test_every_copy_of_a_repeated_block_is_listed_and_the_same():
    assert find_faults(ROOT, BLOCKS) == []


BLOCK = """
import functools

# repeated block: twice (tests/test_repeated_blocks.py)
@functools.cache
def _twice(x):
    # a comment
    return 2 * x


rest = 1
"""


@pytest.mark.parametrize(
    ("second", "faults"),
    [
        (BLOCK, []),
        ("rest = 2\n" + BLOCK, []),
        (BLOCK.replace("# a comment", "# another"), ["solvers/b.py: twice differs from that in envs/a.py"]),
        (BLOCK.replace("@functools.cache\n", ""), ["solvers/b.py: twice differs from that in envs/a.py"]),
        (BLOCK.replace("2 * x", "x"), ["solvers/b.py: twice differs from that in envs/a.py"]),
        ("rest = 1", ["solvers/b.py: twice is listed, not there"]),
        (
            BLOCK.replace("# repeated", "# Repeated"),
            ["solvers/b.py: twice is listed, not there", "solvers/b.py: _twice is a copy of twice without its mark"],
        ),
        (
            BLOCK.replace("twice (", "thrice ("),
            ["solvers/b.py: twice is listed, not there", "solvers/b.py: thrice is not listed in BLOCKS"],
        ),
        (BLOCK + BLOCK, ["solvers/b.py:15: a second twice in one file"]),
        (
            BLOCK.replace("@functools", "\n@functools"),
            ["solvers/b.py:4: no module-level definition directly below"],
        ),
        (BLOCK.replace("(tests/", "(test/"), [f"solvers/b.py:4: not of the form {MARK.pattern}"]),
    ],
)
def test_a_copy_that_differs_or_is_not_listed_is_found(tmp_path, second, faults):
    for file, source in (("envs/a.py", BLOCK), ("solvers/b.py", second)):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(source, encoding="utf-8")
    found = find_faults(tmp_path, {"twice": ("envs/a.py", "solvers/b.py")})
    assert set(faults) <= set(found)
    assert bool(faults) == bool(found)


def test_one_hot_is_1_at_its_index_and_all_zeros_outside():
    for index in range(-2, 6):
        row = kuhn_poker._one_hot(jnp.int32(index), 4)
        assert row.dtype == jnp.float32
        np.testing.assert_array_equal(row, [float(index == place) for place in range(4)])
    np.testing.assert_array_equal(kuhn_poker._one_hot(jnp.bool_(True), 2), [0, 1])


def test_require_tuple_makes_a_list_a_tuple_and_refuses_all_else():
    for given in ([1, 9], (1, 9), [2, 3, 4], (9, 9, 9)):
        env = SimpleNamespace(sizes=given)
        texas_limit_holdem._require_tuple(env, "sizes", (2, 3), 1, 9)
        assert env.sizes == tuple(given)
        assert type(env.sizes) is tuple
    for given in (5, None, "12", (), (1,), (1, 2, 3, 4), (0, 1), (1, 10), (1, 2.0), (1, True), {1: 2, 3: 4}, (1, "2")):
        with pytest.raises(ValueError, match="2 or 3 integers from 1 to 9") as error:
            texas_limit_holdem._require_tuple(SimpleNamespace(sizes=given), "sizes", (2, 3), 1, 9)
        assert str(error.value).startswith(f"sizes={given!r}: ")
    with pytest.raises(ValueError, match=": 4 integers from"):
        texas_limit_holdem._require_tuple(SimpleNamespace(sizes=1), "sizes", (4, 4), 1, 9)


@pytest.mark.parametrize("N", [2, 3, 5])
def test_next_seat_is_the_first_to_the_left_that_can_act(N):
    can_act = np.array(list(itertools.product([False, True], repeat=N)))
    seats = np.arange(N, dtype=np.int32)
    found = jax.jit(jax.vmap(jax.vmap(texas_limit_holdem._next_seat, (None, 0)), (0, None)))(can_act, seats)
    assert found.dtype == jnp.int32
    for mask, row in zip(can_act, found.tolist(), strict=True):
        for seat, following in enumerate(row):
            leftwards = [(seat + step) % N for step in range(1, N + 1)]
            assert following == next((left for left in leftwards if mask[left]), seat)


def test_own_cards_are_the_row_of_the_player():
    cards = jnp.array([[3, -1, 51], [0, 7, 8], [5, 6, -1]], jnp.int32)
    for player in range(3):
        own = texas_limit_holdem._own_cards(cards, player)
        assert own.dtype == jnp.int32
        assert own.tolist() == cards[player].tolist()


def test_card_names_are_rank_and_suit():
    names = [texas_limit_holdem._card_name(jnp.int32(card)) for card in range(52)]
    assert names == [rank + suit for rank in "23456789TJQKA" for suit in "cdhs"]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint32", "bool", "float32"])
def test_materialize_gives_its_arguments_back(dtype, shape):
    words = np.random.default_rng(0).integers(2**32, size=(2, *shape), dtype=np.uint32)
    words[0] |= np.uint32(1 << 31)
    if dtype == "float32":
        arrays = (words.astype(np.float32) - np.float32(2**31)) / np.float32(3)
    else:
        arrays = words % 2 == 0 if dtype == "bool" else words.astype(dtype)
    for function in (texas_limit_holdem._materialize, jax.jit(texas_limit_holdem._materialize)):
        out = function(*map(jnp.asarray, arrays))
        assert type(out) is tuple
        for array, given in zip(out, arrays, strict=True):
            assert (array.dtype, array.shape, array.weak_type) == (given.dtype, shape, False)
            np.testing.assert_array_equal(array, given)
    with jax.enable_x64(True):
        [wide] = jax.eval_shape(texas_limit_holdem._materialize, jax.ShapeDtypeStruct(shape, dtype))
    assert (wide.dtype, wide.shape, wide.weak_type) == (dtype, shape, False)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 43, 52, 65_535, 65_536])
def test_draw_number_is_the_exact_product_with_a_64_bit_fraction(size):
    words = np.random.default_rng(size).integers(2**32, size=(2, 2_000), dtype=np.uint32)
    edges = [0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1]
    # where the product passes a whole number
    whole = [(k * 2**64 // size + delta) % 2**64 for k in range(min(size, 99) + 1) for delta in (-1, 0, 1)]
    pairs = [*itertools.product(edges, edges), *((number >> 32, number % 2**32) for number in whole), *words.T.tolist()]
    high, low = np.array(pairs, np.uint32).T
    number, *rest = jax.jit(texas_limit_holdem._draw_number, static_argnums=2)(high, low, size)
    assert [array.dtype for array in (number, *rest)] == [jnp.int32, jnp.uint32, jnp.uint32]
    products = [size * (upper << 32 | lower) for upper, lower in pairs]
    assert number.tolist() == [product >> 64 for product in products]
    left_over = zip(*(words.tolist() for words in rest), strict=True)
    assert [upper << 32 | lower for upper, lower in left_over] == [product % 2**64 for product in products]


@pytest.mark.parametrize("num_cards", [1, 9, 10, 19, 52])
def test_draw_cards_are_different_cards_and_a_seat(num_cards):
    draw = jax.jit(jax.vmap(lambda key: texas_limit_holdem._draw_cards(key, num_cards, 7)))
    *cards, seat = draw(jax.random.split(jax.random.key(0), 20_000))
    assert {array.dtype for array in (*cards, seat)} == {jnp.dtype("int32")}
    cards = np.stack(cards)
    assert len(cards) == num_cards
    assert (np.diff(np.sort(cards, axis=0), axis=0) > 0).all()
    counts = np.stack([np.bincount(place, minlength=52) for place in cards])
    assert counts.shape == (num_cards, 52)
    assert (stats.chisquare(counts, axis=1).pvalue > 1e-5).all()
    assert stats.chisquare(np.bincount(seat, minlength=7)).pvalue > 1e-3


def test_draw_cards_gives_every_ordered_draw_and_seat_equally_often(monkeypatch):
    monkeypatch.setattr(texas_limit_holdem, "NUM_CARDS", 6)
    draw = jax.jit(jax.vmap(lambda key: texas_limit_holdem._draw_cards(key, 4, 3)))
    drawn = np.stack(draw(jax.random.split(jax.random.key(0), 200_000)), axis=1)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6 * 5 * 4 * 3 * 3
    assert stats.chisquare(counts).pvalue > 1e-3


KINDS_OF_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


@pytest.mark.parametrize("kind", KINDS_OF_KEYS)
def test_child_keys_are_those_of_split_and_never_come_back(kind):
    key, seen = jax.random.key(5, impl=kind), set()
    for _ in range(20):
        children = kuhn_poker._child_keys(key, 3)
        data = np.stack([jax.random.key_data(child) for child in children])
        np.testing.assert_array_equal(data, jax.random.key_data(jax.random.split(key, 3)))
        seen |= {tuple(row) for row in data.tolist()}
        key = children[0]
    assert len(seen) == 60


def dealt_by_draw_cards(key):
    return jnp.stack(texas_limit_holdem._draw_cards(key, 25, 10)[:-1])


def dealt_hand_by_hand(key):
    return five_card_draw._deal_hands(key, 5)[0].reshape(-1)


@pytest.mark.parametrize("deal", [dealt_by_draw_cards, dealt_hand_by_hand])
@pytest.mark.parametrize("kind", KINDS_OF_KEYS)
def test_cards_are_independent_whatever_kind_of_key_they_come_from(kind, deal):
    """Ranks of the first card and of others: 3 of 51 others have the same rank, 4 each another."""
    keys = jax.random.split(jax.random.key(0, impl=kind), 30_000)
    ranks = np.asarray(jax.jit(jax.vmap(deal))(keys)) // 4
    expected = len(keys) * (4 - np.eye(13)) / 51 / 13
    for place in (1, 5, 9, 10, 18, 24):
        counts = np.bincount(13 * ranks[:, 0] + ranks[:, place], minlength=169)
        assert stats.chisquare(counts, expected.ravel()).pvalue > 1e-4, place


@pytest.mark.parametrize("num_shares", range(1, 11))
def test_split_has_no_error_that_grows_with_the_pot(num_shares):
    chips = np.concatenate([np.arange(2_000), np.arange(2**24 - 50, 2**24 + 50), [2**30 - 1]]).astype(np.int32)
    whole, rest = jax.jit(jax.vmap(texas_limit_holdem._split, (0, None)))(chips, jnp.int32(num_shares))
    assert (whole.dtype, rest.dtype) == (jnp.int32, jnp.float32)
    shares = np.asarray(whole).astype(float) + np.asarray(rest).astype(float)
    np.testing.assert_allclose(shares, chips / num_shares, rtol=1e-15, atol=1e-6)
    assert (np.abs(rest)[chips < 2**24] < 1).all()


def test_card_plane_is_1_at_each_card_and_leaves_out_negative_ones():
    rng = np.random.default_rng(0)
    hands = np.stack([rng.permutation(52)[:7] for _ in range(200)]).astype(np.int32)
    hands = np.where(rng.random(hands.shape) < 0.2, -rng.integers(1, 40, hands.shape), hands).astype(np.int32)
    hands[:2] = [[0, 31, 32, 51, -1, -1, -1], [-1] * 7]
    planes = jax.jit(jax.vmap(texas_limit_holdem._card_plane))(hands)
    assert planes.dtype == jnp.float32
    expected = np.zeros((200, 52), np.float32)
    for row, hand in zip(expected, hands.tolist(), strict=True):
        row[[card for card in hand if card >= 0]] = 1
    np.testing.assert_array_equal(planes, expected)
    np.testing.assert_array_equal(texas_limit_holdem._card_plane(list(hands[0])), expected[0])
