"""Rules of seven_card_stud: what GAMES.md says, on dealt hands and on random play with 2 to 8 seats."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import envs

CALL, RAISE, FOLD, CHECK = range(4)
LETTERS = {"c": CALL, "r": RAISE, "f": FOLD, "k": CHECK}
LIVE = 5  # fold_round of a seat that has not folded
NUM_HANDS = 64


def make(num_agents, **kwargs):
    return envs.make("seven_card_stud", num_agents=num_agents, **kwargs)


@cache
def compiled(num_agents):
    env = make(num_agents)

    def step(state, action):
        state, _, reward, _, done, info = env.step_env(state, action)
        return state, reward, done, info["illegal_action"]

    return jax.jit(step), jax.jit(env.observe), jax.jit(env.information_state), jax.jit(env.legal_actions)


def cards_of(text):
    return ["23456789TJQKA".index(rank) * 4 + "cdhs".index(suit) for rank, suit in text.split()]


def dealt(*hands, dealer=0, stock=""):
    """First state with these hands, by seat, in order dealt."""
    hands = [[jnp.int32(card) for card in cards_of(hand)] for hand in hands]
    cards = [jnp.int32(card) for card in cards_of(stock)]
    assert len({int(card) for card in sum(hands, cards)}) == sum(map(len, hands)) + len(cards)
    return jax.jit(make(len(hands))._first_state)(jax.random.key(0), hands, cards, jnp.int32(dealer))


def play(state, letters):
    """The state after these actions, each of them legal."""
    step, _, _, legal_actions = compiled(len(state.contributions))
    for letter in letters.replace(" ", ""):
        assert legal_actions(state)[LETTERS[letter]]
        state, _, _, illegal = step(state, jnp.int32(LETTERS[letter]))
        assert not illegal
    return state


def shown(state, player):
    """Own cards, and the opponents' upcards by seat to the left and slot, that the observation "paper" shows."""
    N = len(state.contributions)
    obs = np.asarray(compiled(N)[1](state, jnp.int32(player)))
    planes = obs[: 52 * (1 + 4 * (N - 1))].reshape(-1, 52)
    assert (planes[1:].sum(1) <= 1).all()
    upcards = [[int(plane.argmax()) for plane in slots if plane.any()] for slots in planes[1:].reshape(N - 1, 4, 52)]
    return np.flatnonzero(planes[0]).tolist(), upcards


# seats 0 and 1; seat 0 brings in with the deuce and wins with a straight
LOW, HIGH = "Ac 3d 2c 4h 5s Kd Kh", "Qc Qd Qh 7s 8s 9h Th"


def test_first_observation_has_three_own_cards_and_one_upcard_of_each_opponent():
    for num_agents in (2, 3, 8):
        states, legal, _ = random_play(num_agents)
        first = jax.tree.map(lambda leaf: leaf[0, 0], states)
        for player in range(num_agents):
            own, upcards = shown(first, player)
            assert own == sorted(first.cards[player, :3].tolist())
            others = [(player + left) % num_agents for left in range(1, num_agents)]
            assert upcards == [[int(first.cards[other, 2])] for other in others]
        assert (np.asarray(legal[0]) == [True, True, True, False]).all()


@pytest.mark.parametrize(
    ("upcards", "seat"),
    [
        ("2s 3c 4c", 0),
        ("Ac Kd Qh", 2),
        ("Ac 3d 2h", 2),  # an ace is high
        ("5d 5c 5h", 1),  # clubs lowest
        ("5s 5h 5d", 2),
        ("As Ad Ah", 1),
        ("Ks 9s 9h", 2),
    ],
)
def test_the_lowest_upcard_brings_in_by_rank_then_suit(upcards, seat):
    downcards = ("7c 7d", "7h 7s", "8c 8d")
    later = ("Tc Td Th Ts", "Jc Jd Jh Js", "6c 6d 6h 6s")
    hands = [" ".join(hand) for hand in zip(downcards, upcards.split(), later, strict=True)]
    for dealer in range(3):
        state = dealt(*hands, dealer=dealer)
        assert state.bring_in == seat
        assert state.current_player == (seat + 1) % 3
        np.testing.assert_array_equal(state.contributions, 1 + (np.arange(3) == seat))
        assert state.to_act == 2


def test_calling_the_bring_in_costs_1_and_ends_the_street_where_nobody_completes():
    state = dealt(LOW, HIGH)
    assert state.contributions.tolist() == [2, 1]
    state = play(state, "c")
    assert state.contributions.tolist() == [2, 2]
    assert state.betting_round == 1
    three = play(dealt(LOW, HIGH, "6c 6d 6h 6s Js Jh Jd"), "c")
    assert (three.betting_round, three.current_player) == (0, 2)
    assert play(three, "c").betting_round == 1


def test_completing_makes_2_and_later_raises_add_2_then_4_from_fifth_street():
    chips, state = [], dealt(LOW, HIGH)
    for letter in "rrrrc" + "rrrrc" + "rrrrc":
        state = play(state, letter)
        chips.append(state.contributions.tolist())
    # the bring-in, seat 0, has 2 in the pot; queens open later streets
    assert chips[:5] == [[2, 3], [5, 3], [5, 7], [9, 7], [9, 9]]
    assert chips[5:10] == [[9, 11], [13, 11], [13, 15], [17, 15], [17, 17]]
    assert chips[10:] == [[17, 21], [25, 21], [25, 29], [33, 29], [33, 33]]
    assert state.raises.tolist() == [4, 4, 4, 0, 0]


def test_a_fold_to_the_bring_in_pays_it_the_antes():
    over = play(dealt(LOW, HIGH, "6c 6d 6h 6s Js Jh Jd"), "ff")
    assert over.finished
    np.testing.assert_array_equal(over.returns, np.float32([0.5, -0.25, -0.25]))


def test_the_completion_is_one_of_four_raises_and_a_fifth_folds():
    step, _, _, legal_actions = compiled(2)
    for state in (play(dealt(LOW, HIGH), "rrrr"), play(dealt(LOW, HIGH), "c rrrr"), play(dealt(LOW, HIGH), "ckk rrrr")):
        assert legal_actions(state).tolist() == [True, False, True, False]
        over, _, done, illegal = step(state, jnp.int32(RAISE))
        folded, *_ = step(state, jnp.int32(FOLD))
        assert done
        assert illegal
        np.testing.assert_array_equal(over.returns, folded.returns)
        np.testing.assert_array_equal(over.history, folded.history)


def test_fold_and_call_only_when_facing_a_bet_and_check_only_when_not():
    state = play(dealt(LOW, HIGH), "c")
    step, _, _, legal_actions = compiled(2)
    assert legal_actions(state).tolist() == [False, True, False, True]
    checked, *_ = step(state, jnp.int32(CHECK))
    for action in (CALL, FOLD):
        other, _, done, illegal = step(state, jnp.int32(action))
        assert illegal
        assert not done
        np.testing.assert_array_equal(other.history, checked.history)


# Three seats' upcards, the dealer, and the seats that open fourth, fifth and sixth street; seventh opens as sixth.
@pytest.mark.parametrize(
    ("upcards", "dealer", "openers"),
    [
        (("2c Ah Kd Qd", "3c Kc Qh Jh", "4c Qs 9c 5d"), 0, [0, 0, 0]),  # high cards
        (("2c 2d 5d 4h", "Ac Kh Qh Jh", "Ad Qd 9s 8h"), 0, [0, 0, 0]),  # a pair beats ace high
        (("2c 2d 3d 4d", "5d 3h 3s 6d", "Ad 7h 8h 7s"), 0, [0, 1, 2]),  # the higher pair
        (("2c 2d 7h 7d", "Ac Ad Kh Qh", "4c 4d 5d 5c"), 0, [1, 1, 0]),  # two pair beat aces, sevens up fives up
        (("2c 2d 2h 5d", "Ac Ad Kh Kd", "4c 7d Qd 9c"), 0, [1, 0, 0]),  # trips beat two pair
        (("3c 3d 3h 3s", "Ac Ad Ah Kd", "4c 7d Qd 9c"), 0, [1, 1, 0]),  # quads beat trips
        (("2h 5h 9h Ah", "3c 3d 4d 7d", "4c 7s Qd 9c"), 2, [1, 1, 1]),  # no flushes
        (("5h 6h 7h 8h", "3c 3d 4d 2d", "4c 7s Qd 9c"), 2, [1, 1, 1]),  # no straights
        (("2h Ah 9h 5h", "Ac 2c 9c 5c", "Ad 2d 9d 5d"), 0, [1, 1, 1]),  # ties
        (("2h Ah 9h 5h", "Ac 2c 9c 5c", "Ad 2d 9d 5d"), 1, [2, 2, 2]),
        (("2h Ah 9h 5h", "Ac 2c 9c 5c", "Ad 2d 9d 5d"), 2, [0, 0, 0]),
        (("2h Ah 9h 5h", "Kc 2c 9c 5c", "Ad 2d 9d 5d"), 0, [2, 2, 2]),  # two of three tie
        (("2h Ah 9h 5h", "Kc 2c 9c 5c", "Ad 2d 9d 5d"), 2, [0, 0, 0]),
        (("6h 6d Ah 5h", "6c 6s As 4c", "Kd Qd 9d 7d"), 0, [1, 1, 0]),  # one pair, one kicker, then another
    ],
)
def test_the_best_upcards_open_from_fourth_street_and_ties_go_to_the_dealers_left(upcards, dealer, openers):
    hands = [" ".join(hand) for hand in zip(("Ts Tc", "Jd Jc", "8d 8c"), upcards, ("Th", "Js", "8s"), strict=True)]
    state, found = play(dealt(*hands, dealer=dealer), "cc"), []
    for _ in range(4):
        found.append(int(state.current_player))
        state = play(state, "kkk")
    assert state.finished
    assert found == [*openers, openers[-1]]


def test_folded_upcards_do_not_open_stay_in_sight_and_no_later_ones_appear():
    hands = "Ts Tc 2c 2d 7h 7d Th", "Jd Jc Ac Ad Kh Qh Js", "8d 8c 4c 4d 5d 5c 8s"
    state = play(dealt(*hands), "cc")
    assert state.current_player == 1
    state = play(state, "krcf")  # the aces check, fours bet, deuces call, aces fold
    assert state.fold_round.tolist() == [LIVE, 1, LIVE]
    assert state.current_player == 2
    folded, deuces = cards_of("Ac Ad"), cards_of("2c 2d 7h 7d")
    for street in (2, 3, 4):
        assert state.betting_round == street
        own, upcards = shown(state, 2)
        assert upcards == [deuces[: street + 1], folded]
        assert own == sorted(cards_of(hands[2])[: 3 + street])
        assert shown(state, 1)[0] == sorted(cards_of(hands[1])[:4])
        state = play(state, "kk")
    assert state.finished
    assert shown(state, 2)[1] == [deuces, folded]


def test_the_best_five_of_seven_win_and_equal_hands_split():
    won = play(dealt(LOW, HIGH), "c" + "kk" * 4)  # ace to five against trips and a king-high straight draw
    np.testing.assert_array_equal(won.returns, np.float32([0.5, -0.5]))
    # twice ace king queen high; the pair of jacks folds to a bet on sixth street
    state = play(dealt("As Ks 2c 5h 7c Qd 3h", "Ah Kh 3c 5d 7d Qc 2h", "6s 6h 8h 9c Jc Jd 4h"), "cc kkk kkk")
    assert (state.betting_round, state.current_player) == (3, 2)
    state = play(state, "krcf kk")
    np.testing.assert_array_equal(state.returns, np.float32([0.25, 0.25, -0.5]))


# What an observation is made of, by index


def ones_at(size, *places):
    row = np.zeros(size, np.float32)
    row[list(places)] = 1
    return row


def test_paper_observation_is_the_published_table():
    state = play(dealt(LOW, HIGH, dealer=1), "rrc r")  # fourth street, queens have bet
    own, upcards = cards_of(LOW)[:4], cards_of(HIGH)[2:4]
    opponent = [52 + 52 * slot + card for slot, card in enumerate(upcards)]
    expected = ones_at(287, *own, *opponent, 260 + 2, 265 + 1, 285)
    np.testing.assert_array_equal(compiled(2)[1](state, 0), expected)
    own, upcards = cards_of(HIGH)[:4], cards_of(LOW)[2:4]
    opponent = [52 + 52 * slot + card for slot, card in enumerate(upcards)]
    expected = ones_at(287, *own, *opponent, 260 + 2, 265 + 1, 286)
    np.testing.assert_array_equal(compiled(2)[1](state, 1), expected)


# own downcards 0 | five further own cards 52 | opponent's upcards 312 | bring-in 520 | dealer 522 | 5 x 6 actions 524
def test_information_state_is_own_cards_in_order_upcards_seats_and_all_actions():
    state = play(dealt(LOW, HIGH, dealer=1), "rrc r")
    down, *later = [cards_of(LOW)[:2], *cards_of(LOW)[2:4]]
    own = [*down, *(52 * (1 + place) + card for place, card in enumerate(later))]
    opponent = [312 + 52 * slot + card for slot, card in enumerate(cards_of(HIGH)[2:4])]
    actions = [524 + 4 * slot + action for slot, action in ((0, RAISE), (1, RAISE), (2, CALL), (6, RAISE))]
    expected = ones_at(524 + 120, *own, *opponent, 520, 523, *actions)
    np.testing.assert_array_equal(compiled(2)[2](state, 0), expected)
    assert make(2, observation="information_state").obs_shape == (644,)


# Random play


@cache
def random_play(num_agents):
    """States [T + 1, B] of B random hands, legal [T + 1, B, 4], actions [T, B]; no resets."""
    env, length = make(num_agents), 25 * num_agents - 21
    weights = jnp.log(jnp.array([1, 1, 0.05 if num_agents > 3 else 0.2, 1], jnp.float32))  # of few folds

    def play_hands(key):
        deal_key, key = jax.random.split(key)
        first, _ = jax.vmap(env.reset)(jax.random.split(deal_key, NUM_HANDS))

        def step(state, key):
            legal = jax.vmap(env.legal_actions)(state)
            action = jax.random.categorical(key, jnp.where(legal, weights[None], -jnp.inf)).astype(jnp.int32)
            action = jnp.where(legal.any(-1), action, CHECK).astype(jnp.int32)
            return jax.vmap(env.step_env)(state, action)[0], (state.replace(key=None), legal, action)

        last, (states, legal, actions) = jax.lax.scan(step, first, jax.random.split(key, length))
        states = jax.tree.map(lambda leaf, end: jnp.concatenate([leaf, end[None]]), states, last.replace(key=None))
        return states, legal, actions

    return jax.tree.map(np.asarray, jax.jit(play_hands)(jax.random.key(num_agents)))


@pytest.mark.parametrize("num_agents", [2, 3, 7, 8])
def test_chips_are_conserved_and_losers_pay_what_they_put_in(num_agents):
    states, _, _ = random_play(num_agents)
    assert states.finished[-1].all()
    assert states.contributions.dtype == np.int32
    assert (np.diff(states.contributions, axis=0) >= 0).all()
    assert states.contributions.max() <= 65
    last = jax.tree.map(lambda leaf: leaf[-1], states)
    np.testing.assert_allclose(last.returns.sum(-1), 0, atol=1e-5)
    best = np.where(last.fold_round == LIVE, last.scores, -1)
    wins = best == best.max(-1, keepdims=True)
    share = last.contributions.sum(-1, keepdims=True) / wins.sum(-1, keepdims=True)
    np.testing.assert_allclose(4 * last.returns, np.where(wins, share, 0) - last.contributions, atol=1e-5)
    assert (last.fold_round < LIVE).any()
    assert (last.betting_round == 4).any()


def on_table(state):
    """bool[N, 7], cards that were dealt, a shared one for each seat that it counts for."""
    return np.arange(7) < 3 + np.minimum(state.betting_round, state.fold_round)[:, None]


@pytest.mark.parametrize("num_agents", [2, 7, 8])
def test_no_card_is_twice_on_the_table_but_a_shared_one(num_agents):
    states, _, _ = random_play(num_agents)
    num_shared = 0
    for hand in range(NUM_HANDS):
        last = jax.tree.map(lambda leaf, hand=hand: leaf[-1, hand], states)
        cards, table = last.cards, on_table(last)
        before, seventh = cards[:, :6][table[:, :6]], cards[:, 6][table[:, 6]]
        assert len(set(before.tolist())) == len(before)
        assert not set(before.tolist()) & set(seventh.tolist())
        is_shared = 52 - len(before) < len(seventh)
        assert len(set(seventh.tolist())) == (1 if is_shared else len(seventh))
        assert all(0 <= card < 52 for card in (*before, *seventh))
        num_shared += is_shared
    assert (num_shared > 0) == (num_agents == 8)


def test_eight_seats_share_the_last_card_and_it_does_not_change_who_opens():
    first, last = "9d 9h 2c 3c 4c 5c", "2d 2h Kc Kd Kh Ks"
    names = [rank + suit for rank in "23456789TJQK" for suit in "cdhs"]
    rest = [name for name in names if name not in f"{first} {last}"]
    hands = [first, *(" ".join(rest[seat::6]) for seat in range(6)), last]
    state = play(dealt(*hands, stock="Ac Ad Ah As"), "ccccccc")
    for _ in range(3):
        opener = state.current_player
        state = play(state, "kkkkkkkk")
    assert state.betting_round == 4
    assert (opener, state.current_player) == (7, 7)  # kings
    assert (np.asarray(state.cards)[:, 6] == cards_of("Ac")).all()
    for player in range(8):
        own, upcards = shown(state, player)
        assert own == sorted([*cards_of(hands[player]), *cards_of("Ac")])
        assert upcards == [cards_of(hands[(player + left) % 8])[2:] for left in range(1, 8)]
        information = np.asarray(compiled(8)[2](state, player))
        assert information[52 * 34 : 52 * 35].nonzero()[0].tolist() == cards_of("Ac")
    over = play(state, "kkkkkkkk")
    # ace to five of clubs: without the ace, four kings would win
    np.testing.assert_array_equal(over.returns, np.float32([3.5] + [-0.5] * 7))


@pytest.mark.parametrize("folds", ["fffcccc", "ffccccc", "fcccccc"])
def test_eight_seats_get_own_last_cards_from_what_folded_seats_did_not(folds):
    states, _, _ = random_play(8)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), states).replace(key=jax.random.key(0))
    state = play(first, folds + " " + "k" * (8 - folds.count("f")) * 3)
    assert state.betting_round == 4
    table = on_table(jax.tree.map(np.asarray, state.replace(key=None)))
    cards = np.asarray(state.cards)[table].tolist()
    assert len(set(cards)) == len(cards)
    assert len(cards) == 7 * (8 - folds.count("f")) + 3 * folds.count("f")
    for player in range(8):
        assert len(shown(state, player)[0]) == (7 if state.fold_round[player] == LIVE else 3)


def test_a_seat_that_folds_after_third_street_leaves_too_few_cards_for_seven():
    states, _, _ = random_play(8)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), states).replace(key=jax.random.key(0))
    state = play(first, "ccccccc" + "rfcccccc" + "k" * 14)  # 4 + 2 cards, seven players
    assert state.betting_round == 4
    assert len(set(np.asarray(state.cards)[:, 6].tolist())) == 1
    assert all(len(shown(state, player)[0]) == (7 if state.fold_round[player] == LIVE else 5) for player in range(8))


@pytest.mark.parametrize("num_agents", [3, 8])
def test_rotated_seats_play_the_same_game(num_agents):
    states, _, actions = random_play(num_agents)
    env = make(num_agents)
    by_seat = ("returns", "cards", "scores", "contributions", "fold_round")

    def rotate(state):
        seats = {name: (getattr(state, name) + 1) % num_agents for name in ("current_player", "dealer", "bring_in")}
        return state.replace(**{name: jnp.roll(getattr(state, name), 1, axis=0) for name in by_seat}, **seats)

    @jax.jit
    @jax.vmap
    def compare(state, action):
        plain, obs, reward, *_ = env.step_env(state, action)
        rotated, rotated_obs, rotated_reward, *_ = env.step_env(rotate(state), action)
        same = jax.tree.map(lambda a, b: (a == b).all(), rotate(plain), rotated)
        return same, (obs == rotated_obs).all(), (jnp.roll(reward, 1) == rotated_reward).all()

    before = jax.tree.map(lambda leaf: leaf[:-1].reshape(-1, *leaf.shape[2:]), states)
    assert all(leaf.all() for leaf in jax.tree.leaves(compare(before, actions.reshape(-1))))


@pytest.mark.parametrize("num_agents", [2, 8])
def test_hidden_cards_permuted_change_nothing_that_a_player_sees(num_agents):
    states, _, _ = random_play(num_agents)
    rng = np.random.default_rng(0)
    _, observe, information_state, legal_actions = compiled(num_agents)
    num_moved = 0
    for _ in range(60):
        time, hand, player = (int(rng.integers(size)) for size in (len(states.finished), NUM_HANDS, num_agents))
        state = jax.tree.map(lambda leaf, at=(time, hand): leaf[at], states)
        table, places = on_table(state), np.arange(7)
        known = table & ((np.arange(num_agents)[:, None] == player) | ((places >= 2) & (places < 6)))
        if num_agents == 8 and state.betting_round == 4:
            known[:, 6] |= len(set(state.cards[state.fold_round >= 4, 6].tolist())) == 1
        hidden = sorted(set(range(52)) - set(state.cards[known].tolist()))
        swap = np.arange(53) - (np.arange(53) == 52) * 53  # -1 stays
        swap[hidden] = rng.permutation(hidden)
        stock = state.stock if state.stock is None else swap[state.stock].astype(np.int32)
        other = state.replace(cards=swap[state.cards].astype(np.int32), stock=stock)
        num_moved += (other.cards != state.cards).sum()
        for view in (observe, information_state):
            np.testing.assert_array_equal(view(state, player), view(other, player))
        np.testing.assert_array_equal(legal_actions(state), legal_actions(other))
    assert num_moved > 60


@pytest.mark.parametrize("num_agents", [2, 3, 8])
def test_the_longest_hand_has_25_n_minus_21_actions_and_costs_65_chips(num_agents):
    states, _, _ = random_play(num_agents)
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), states).replace(key=jax.random.key(0))
    letters = "c" * (num_agents - 2) + "r" + ("c" * (num_agents - 2) + "r") * 3 + "c" * (num_agents - 1)
    later = "k" * (num_agents - 1) + letters[num_agents - 2 :]
    state = play(state, letters + later * 4)
    assert state.finished
    assert state.timestep == 25 * num_agents - 21
    assert state.contributions.tolist() == [65] * num_agents
    assert (np.asarray(state.history) != 0).sum() == 25 * num_agents - 21


def test_every_card_and_dealer_is_equally_likely():
    env = make(2)
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 20_000))
    cards = np.asarray(state.cards).reshape(-1, 14)
    assert (np.diff(np.sort(cards), axis=1) > 0).all()
    for place in range(14):
        assert stats.chisquare(np.bincount(cards[:, place], minlength=52)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(np.asarray(state.dealer), minlength=2)).pvalue > 1e-4
    pairs = np.bincount(cards[:, 0] // 4 * 13 + cards[:, 13] // 4, minlength=169)  # a rank twice is less likely
    expected = 20_000 * np.where(np.eye(13, dtype=bool), 4 * 3, 4 * 4).ravel() / (52 * 51)
    assert stats.chisquare(pairs, expected).pvalue > 1e-4


@pytest.mark.parametrize("parameter", [1, 9, 2.0, True, "2", None])
def test_a_number_of_players_out_of_range_is_refused(parameter):
    with pytest.raises(ValueError, match=r"num_agents.*2 to 8") as error:
        make(parameter)
    assert repr(parameter) in str(error.value)


def test_an_unknown_observation_is_refused_and_deals_are_too_many():
    with pytest.raises(ValueError, match=r"observation='all'.*paper.*information_state"):
        make(2, observation="all")
    with pytest.raises(ValueError, match=r"deals, too many"):
        make(2).deals()


def test_render_shows_what_a_player_may_see():
    env = make(2)
    state = play(dealt(LOW, HIGH), "rc")
    text = env.render(state, 0)
    assert "Ac 3d 2c 4h" in text
    assert "? ? Qh 7s" in text
    assert "5s" not in text
    everything = env.render(state)
    assert "Qc Qd Qh 7s (8s) (9h) (Th)" in everything
    assert "third street: raise call" in everything
    over = play(state, "rf")
    assert "returns -0.75 +0.75" in env.render(over, 0)
    assert "Qc" not in env.render(over, 0)
