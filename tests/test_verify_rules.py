"""scripts/verify_rules.py: the four poker games against PokerKit and OpenSpiel, and games broken on purpose."""

import copy
import dataclasses
import itertools
import re
import shlex
from functools import partial

import jax
import numpy as np
import pokerkit
import pytest

import envs
from envs.texas_limit_holdem import TexasLimitHoldem
from scripts import verify_rules
from scripts.verify_rules import (
    CHIPS,
    NL_ALL_IN,
    NL_CALL,
    NL_FOLD,
    NL_HALF,
    PLAYERS,
    Args,
    MismatchError,
    OpenSpiel,
    Piece,
    PokerKit,
    check_args,
    main,
    make_hand_type,
    play_batch,
    play_recorded,
    random_parameters,
    run_piece,
    unpack,
)

SETS = {  # game: parameter sets of the suite
    "texas_limit_holdem": [
        {"num_agents": 2, "max_raises": [3, 4, 4, 4]},
        {"num_agents": 3, "num_rounds": 2, "max_raises": [2, 1], "blinds": [2, 5]},
    ],
    "texas_nolimit_holdem": [{"num_agents": 2}, {"num_agents": 3, "stack": [9, 40, 23], "blinds": [2, 4]}],
    "five_card_draw": [{"num_agents": 3, "stack": [12, 60, 33], "blinds": [1, 3]}],
    "seven_card_stud": [{"num_agents": 3}],
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(verify_rules, "BATCH", 300)


@pytest.mark.parametrize(("game", "kwargs"), [(game, kwargs) for game, sets in SETS.items() for kwargs in sets])
def test_300_random_hands_are_played_as_in_the_engines(game, kwargs):
    peers = (
        ("pokerkit", "open_spiel") if "hold" in game and not isinstance(kwargs.get("stack"), list) else ("pokerkit",)
    )
    result = run_piece(Piece(game, kwargs, peers, {}, [(1, 300)]))
    assert not result.reports, "\n".join(result.reports)
    assert result.mismatches == dict.fromkeys(peers, 0)
    assert result.hands == 300
    assert result.decisions > 600
    assert result.showdowns > 50


@partial(jax.jit, static_argnums=0)
def deals(env):
    return jax.vmap(lambda key: env.reset(key)[0])(jax.random.split(jax.random.key(0), 64))


jitted_step = jax.jit(play_recorded, static_argnums=0)


def scripted_hand(env, button: int, moves: list[tuple[int, int]]):
    """A hand with the button at that seat: (seat, action) in turn, to the end of the hand."""
    states, totals, records = deals(env), 0, []
    place = int(np.flatnonzero(states.button == button)[0])
    first = state = jax.tree.map(lambda leaf: leaf[place], states)
    for seat, action in moves:
        assert int(state.current_player) == seat
        state, reward, record = jitted_step(env, state, action)
        totals += np.asarray(reward)
        records.append(np.asarray(record))
    assert bool(state.finished)
    first, last = (jax.tree.map(lambda leaf: leaf[None], end) for end in (first, state))
    return unpack(env, first, last, totals[None], np.stack(records)[:, None])[0]


def test_each_known_difference_is_recognised_and_counted():
    # button at seat 0, blinds at 1 and 2; seats 4, 5, 6 and 0 can only go all-in for little more
    env = envs.make("texas_nolimit_holdem", num_agents=8, blinds=(5, 10), stack=(46, 200, 200, 200, 30, 38, 13, 10))
    closed = [(3, NL_HALF), (4, NL_ALL_IN), (5, NL_ALL_IN), (6, NL_FOLD), (7, NL_FOLD), (0, NL_ALL_IN), (1, NL_FOLD)]
    closed += [(2, NL_CALL), (3, NL_ALL_IN), (2, NL_CALL)]
    reopened = [(3, NL_CALL), (4, NL_FOLD), (5, NL_FOLD), (6, NL_ALL_IN), (7, NL_FOLD), (0, NL_FOLD), (1, NL_FOLD)]
    reopened += [(2, NL_CALL), (3, NL_CALL)] + [(2, NL_CALL), (3, NL_CALL)] * 3
    lone_check = [(seat, NL_FOLD) for seat in (3, 4, 5, 6)] + [(7, NL_CALL), (0, NL_FOLD), (1, NL_FOLD)]
    for name, moves in (("closed", closed), ("reopened", reopened), ("lone check", lone_check)):
        engine, hand = PokerKit("texas_nolimit_holdem", env), scripted_hand(env, 0, moves)
        engine.replay(hand)
        assert engine.known == {"closed": 0, "reopened": 0, "lone check": 0} | {name: 1}
        if name != "lone check":  # what is forgiven is that difference alone
            hand.rows[8][2] ^= 1 << NL_ALL_IN
            with pytest.raises(MismatchError, match="legal"):
                engine.replay(hand)


@pytest.fixture(scope="module")
def limit_hands():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_rules, "BATCH", 300)
        env = envs.make("texas_limit_holdem", **SETS["texas_limit_holdem"][0])
        return env, play_batch(env, 1)


def change(column, value):
    def change_row(hand):
        row = hand.rows[len(hand.rows) // 2]
        row[column] = value(row[column])

    return change_row


def swap_payoffs(hand):
    hand.payoffs.reverse()


def swap_cards(hand):
    hand.first_cards.reverse()


@pytest.mark.parametrize("peer", [PokerKit, OpenSpiel])
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (change(0, lambda player: 1 - player), "is asked"),
        (change(2, lambda legal: legal ^ 2), "legal"),  # a raise
        (change(2, lambda legal: legal ^ 4), "legal"),  # a fold
        (change(2, lambda legal: legal ^ 9), "legal"),  # call and check
        (change(2, lambda legal: legal | 16), "legal"),  # an action that does not exist
        (change(3, lambda _: 1), "illegal"),
        (change(4, lambda betting_round: betting_round ^ 1), "betting round|on the board"),
        (change(5, lambda seen: seen ^ 1 << 20), "cards seen"),
        (change(CHIPS, lambda chips: chips - 1), "chips in the pot"),
        (change(CHIPS + 2, lambda _: 0), "still in"),
        (lambda hand: hand.rows.pop(), "goes on"),
        (lambda hand: hand.rows.append(hand.rows[-1]), "the hand is over"),
        (swap_payoffs, "payoffs"),
        (swap_cards, "cards seen"),
        (lambda hand: hand.board.__setitem__(0, hand.first_cards[1][0]), "dealt twice"),
    ],
)
def test_whatever_differs_is_found(peer, broken, words, limit_hands):
    env, hands = limit_hands
    hand = next(hand for hand in hands if len(hand.rows) > 4 and hand.payoffs[0])
    engine = peer("texas_limit_holdem", env)
    engine.replay(hand)
    hand = copy.deepcopy(hand)
    broken(hand)
    with pytest.raises(MismatchError, match=words):
        engine.replay(hand)


@dataclasses.dataclass(frozen=True)
class HighCardsDoNotCount(TexasLimitHoldem):
    """Every showdown is a tie."""

    def reset(self, key):
        state, obs = super().reset(key)
        return state.replace(scores=state.scores * 0), obs


@dataclasses.dataclass(frozen=True)
class NobodyRaisesTwice(TexasLimitHoldem):
    """A raise too few in each round."""

    def legal_actions(self, state):
        legal = super().legal_actions(state)
        return legal.at[1].set(legal[1] & (state.raises.max() < 1))


@pytest.mark.parametrize(("broken", "words"), [(HighCardsDoNotCount, "payoffs"), (NobodyRaisesTwice, "legal")])
def test_a_broken_game_is_printed_and_can_be_played_again(broken, words, monkeypatch, capsys):
    monkeypatch.setattr(envs, "make", lambda _, **kwargs: broken(**kwargs))
    kwargs = '{"num_agents": 2, "num_rounds": 2}'
    assert main(Args(env_kwargs=kwargs, hands=200, seed=5)) == 1
    out = capsys.readouterr().out
    numbers = [int(text) for text in re.findall(r"(\d+) mismatches \(", out)]
    assert len(numbers) == 2  # PokerKit and OpenSpiel
    assert min(numbers) > 20
    assert f"in all 200 hands, {re.search(r'([0-9]+) showdowns', out)[1]} showdowns" in out
    assert f"{sum(numbers)} mismatches, " in out
    reports = out.split("MISMATCH of ")[1:]
    assert len(reports) == verify_rules.MAX_PRINTED
    assert f"texas_limit_holdem and pokerkit: {words}" in reports[0]
    for part in ("player 0 (seat ", "board: ", "actions: ", "HoleDealing(", "BlindOrStraddlePosting("):
        assert part in reports[0]

    command = shlex.split(re.search(r"again: (.*)", reports[0])[1])
    options = dict(zip(command[2::2], command[3::2], strict=True))
    again = Args(options["--env"], int(options["--hands"]), (), options["--env-kwargs"], int(options["--seed"]))
    again = dataclasses.replace(again, peer=options["--peer"])
    assert main(again) == 1
    assert reports[0].split("pokerkit: ")[-1].strip() in capsys.readouterr().out


def test_hands_rank_as_in_pokerkit():
    suits = [suit for suit in pokerkit.Suit if suit.value in "cdhs"]
    cards = [pokerkit.Card(rank, suit) for rank in pokerkit.RankOrder.STANDARD for suit in suits]
    rng, hand_type = np.random.default_rng(0), make_hand_type(cards)
    ours, theirs = [], []
    for number in range(600):
        # many of one suit or close in rank: flushes and straights are not rare
        pool = [range(52), range(number % 4, 52, 4), range(16, 36)][number % 3]
        held = [cards[card] for card in rng.choice(pool, 5 + number % 5 % 3, replace=False)]
        ours.append(hand_type.from_game(held[:2], held[2:]))
        theirs.append(pokerkit.StandardHighHand.from_game(held[:2], held[2:]))
    assert len({hand.entry.label for hand in theirs}) == 9
    assert ours == [hand.entry.index for hand in theirs]


@pytest.mark.parametrize("game", PLAYERS)
def test_random_parameters_are_in_range_and_the_first_are_the_default(game):
    rng = np.random.default_rng(0)
    for number, num_agents in itertools.product(range(8), range(PLAYERS[game][0], PLAYERS[game][1] + 1)):
        kwargs = random_parameters(game, num_agents, number, rng, equal_stacks=False)
        assert number or kwargs == {"num_agents": num_agents}
        env = envs.make(game, **kwargs)
        assert env.num_agents == num_agents
        assert not hasattr(env, "stack") or isinstance(env.stack, int) or number % 2


def test_work_is_cut_so_that_no_seed_comes_twice_and_no_hand_is_lost(monkeypatch):
    monkeypatch.setattr(verify_rules, "BATCH", 2048)
    pieces = check_args(Args(env="texas_nolimit_holdem", hands=30_001, num_agents=(2, 3), seed=7, workers=2))
    seeds = [seed for piece in pieces for seed, _ in piece.batches]
    assert sorted(seeds) == list(range(7, 7 + len(seeds)))
    for num_agents in (2, 3):
        part = [piece for piece in pieces if piece.env_kwargs["num_agents"] == num_agents]
        assert sum(hands for piece in part for _, hands in piece.batches) == 30_001
        stacks = [piece.env_kwargs.get("stack", 100) for piece in part]
        assert {isinstance(stack, int) for stack in stacks} == {True, False}
        assert [piece.peers for piece in part] == [
            ("pokerkit", "open_spiel") if isinstance(stack, int) or len(set(stack)) == 1 else ("pokerkit",)
            for stack in stacks
        ]
    one_set = check_args(Args(hands=10_000, env_kwargs='{"num_agents": 4}', workers=2))
    assert [len(piece.batches) for piece in one_set] == [3, 2]


@pytest.mark.full
def test_two_processes_come_to_the_same(capsys):
    args = Args(hands=5_000, env_kwargs='{"num_agents": 2, "num_rounds": 2}')
    totals = []
    for workers in (1, 2):
        assert main(dataclasses.replace(args, workers=workers)) == 0
        totals.append(re.search(r"in all (.*) mismatches", capsys.readouterr().out)[1])
    assert totals[0] == totals[1]


def test_missing_engine_is_named_with_the_package_to_install(monkeypatch, capsys):
    monkeypatch.setattr(
        verify_rules.importlib.util, "find_spec", lambda module: None if module == "pyspiel" else module
    )
    assert main(Args()) == 2
    assert "pip install open-spiel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"env": "kuhn_poker"}, "texas_limit_holdem, texas_nolimit_holdem, five_card_draw, seven_card_stud"),
        ({"env": "seven_card_stud", "num_agents": (8,)}, "8 players: seven_card_stud is compared with 2 to 7"),
        ({"env": "five_card_draw", "num_agents": (6,)}, "6 players: five_card_draw is compared with 2 to 5"),
        ({"env": "seven_card_stud", "peer": "open_spiel"}, "OpenSpiel has no seven_card_stud"),
        ({"num_agents": (11,)}, "--num-agents 11"),
        ({"num_agents": (2, 0)}, "--num-agents 0"),
        ({"seed": -1}, "--seed -1"),
        ({"hands": 0}, "--hands 0"),
        ({"workers": 0}, "--workers 0"),
        ({"env_kwargs": "[2]"}, "not a JSON object"),
        ({"env_kwargs": "blinds=2"}, "not JSON"),
        ({"env_kwargs": '{"rake": 2}'}, "'rake'"),
        ({"env_kwargs": '{"num_agents": 2}', "num_agents": (3,)}, "given twice"),
        ({"env_kwargs": '{"observation": "information_state"}'}, "'paper'"),
        ({"env_kwargs": '{"blinds": [2, 2]}', "peer": "pokerkit"}, "equal blinds"),
        ({"env": "texas_nolimit_holdem", "env_kwargs": '{"stack": [9, 8]}', "peer": "open_spiel"}, "equal stacks"),
    ],
)
def test_mistakes_end_in_one_line(args, words, capsys):
    assert main(Args(**args)) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
