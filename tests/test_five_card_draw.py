"""Five card draw: phases, who draws what, cards without repeats, side pots, longest hand, observations."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from envs.five_card_draw import FiveCardDraw, State, _rank_hand

CALL, HALF, POT, ALL_IN, FOLD = range(5)
LETTERS = "chpaf"
KEEP_ALL, THROW_ALL = 36, 5
NUM_SEEDS = 64


def cards(text):
    return [4 * "23456789TJQKA".index(name[0]) + "cdhs".index(name[1]) for name in text.split()]


@cache
def compiled(env):
    @jax.jit
    def act(state, action):
        state, _, reward, _, done, info = env.step_env(state, action)
        return state, env.legal_actions(state), reward, done, info

    return jax.jit(jax.vmap(env.reset)), act


@cache
def dealt(env):
    return compiled(env)[0](jax.random.split(jax.random.key(0), NUM_SEEDS))[0]


def first_state(env, button=0, hands=None):
    """A first state with this button; with chosen cards where `hands` are given."""
    states = dealt(env)
    state = jax.tree.map(lambda leaf: leaf[int(np.argmax(states.button == button))], states)
    if hands is not None:
        hole_cards = np.array([cards(hand) for hand in hands], np.int32)
        left = sum(1 << card for card in set(range(52)) - set(hole_cards.reshape(-1).tolist()))
        state = state.replace(
            hole_cards=jnp.array(hole_cards),
            dealt_cards=jnp.array(hole_cards),
            stock_low=jnp.uint32(left % 2**32),
            stock_high=jnp.uint32(left >> 32),
        )
    return state


def play(env, actions, **kwargs):
    """Plays letters of `LETTERS` and numbers, all legal: the states, the last legal actions and reward."""
    state = first_state(env, **kwargs)
    states, legal, reward = [state], np.asarray(env.legal_actions(state)), np.zeros(env.num_agents)
    for action in actions:
        number = LETTERS.index(action) if isinstance(action, str) else action
        assert legal[number], (actions, action, legal)
        state, legal, reward, done, info = compiled(env)[1](state, jnp.int32(number))
        assert not info["illegal_action"]
        assert bool(done) == ~np.any(legal)
        states.append(state)
    return states, np.asarray(legal), np.asarray(reward)


def phase(state):
    return int(2 * state.betting_round + state.drawing)


def stock(state):
    mask = int(state.stock_low) | int(state.stock_high) << 32
    return {card for card in range(52) if mask >> card & 1}


PAT = ["Ah As Kc Qd 9h", "Kh Ks Jc Td 8h", "Qh Qs Jd 9c 7h", "Th Ts 8c 7d 6h"]


@pytest.mark.parametrize(("num_agents", "first", "later"), [(2, [0, 1], [1, 0]), (3, [0, 1, 2], [1, 2, 0])])
@pytest.mark.parametrize("button", [0, 1])
def test_the_draw_and_the_second_round_start_left_of_the_button(num_agents, first, later, button):
    env = FiveCardDraw(num_agents)
    states, _, _ = play(env, ["c"] * num_agents + [KEEP_ALL] * num_agents + ["c"] * num_agents, button=button)
    assert [(int(state.current_player) - button) % num_agents for state in states[:-1]] == first + later + later
    assert [phase(state) for state in states[:-1]] == [number for number in range(3) for _ in range(num_agents)]
    assert bool(states[-1].finished)


def test_patterns_keep_cards_by_their_order_and_not_by_the_order_of_the_deal():
    env = FiveCardDraw(2)
    hands = ["9h Ah 2c Kc 2d", PAT[1]]  # in card order: 2c 2d 9h Kc Ah
    for kept, names in ((0b00011, "2c 2d"), (0b11000, "Kc Ah"), (0b00100, "9h"), (0b10101, "2c 9h Ah")):
        states, _, _ = play(env, ["c", "c", KEEP_ALL, 5 + kept], hands=hands)
        before, after = (set(state.hole_cards[0].tolist()) for state in states[-2:])
        assert before & after == set(cards(names))
        assert len(after) == 5
        assert after - before <= stock(states[-2])
        assert stock(states[-1]) == stock(states[-2]) - after
        assert states[-1].num_drawn.tolist() == [5 - len(names.split()), 0]
        assert int(states[-1].scores[0]) == int(_rank_hand(states[-1].hole_cards[0]))
        assert states[-1].dealt_cards[0].tolist() == cards(hands[0])


def test_all_patterns_are_legal_in_the_draw_and_only_bets_outside():
    env = FiveCardDraw(2)
    for actions, legal in ((["c"], [1, 1, 1, 1, 0]), (["c", "c"], None), (["c", "c", THROW_ALL], None)):
        allowed = play(env, actions)[1]
        expected = [*legal, *[0] * 32] if legal else [*[0] * 5, *[1] * 32]
        assert allowed.tolist() == [bool(number) for number in expected]


def test_illegal_actions_are_checks_folds_and_the_lowest_pattern():
    env = FiveCardDraw(2)
    act = compiled(env)[1]
    state, *_, info = act(play(env, ["c"])[0][-1], jnp.int32(KEEP_ALL))
    assert info["illegal_action"]
    assert phase(state) == 1
    for action in (CALL, FOLD, -1, 37):
        drawn, *_, info = act(state, jnp.int32(action))
        expected, *_ = act(state, jnp.int32(THROW_ALL))
        assert info["illegal_action"]
        assert drawn.hole_cards.tolist() == expected.hole_cards.tolist()
        assert drawn.num_drawn.tolist() == [-1, 5]
    _, _, reward, done, info = act(play(env, ["a"])[0][-1], jnp.int32(KEEP_ALL))
    assert info["illegal_action"]
    assert done
    assert reward.tolist() == [2, -2]


def test_all_in_players_draw_and_only_the_second_round_is_skipped():
    env = FiveCardDraw(3, stack=(50, 100, 200))
    states, legal, reward = play(env, ["a", "a", "c", KEEP_ALL, KEEP_ALL, KEEP_ALL], hands=PAT[:3])
    assert [phase(state) for state in states] == [0, 0, 0, 1, 1, 1, 1]
    assert [int(state.current_player) for state in states[3:6]] == [1, 2, 0]
    assert not legal.any()
    assert reward.tolist() == [100, 0, -100]


def test_an_all_in_player_draws_and_the_others_go_on_betting():
    env = FiveCardDraw(3, stack=(50, 100, 200))
    actions = ["a", "c", "c", KEEP_ALL, KEEP_ALL, KEEP_ALL]
    states, legal, _ = play(env, actions, hands=PAT[:3])
    assert phase(states[-1]) == 2
    assert int(states[-1].current_player) == 1
    assert np.flatnonzero(legal).tolist() == [CALL, ALL_IN]  # half of 150 is more than 50
    _, legal, reward = play(env, [*actions, "a", "c"], hands=PAT[:3])
    assert not legal.any()
    assert reward.tolist() == [100, 0, -100]


def test_a_fold_ends_the_hand_and_folded_players_do_not_draw():
    assert play(FiveCardDraw(2), ["f"])[2].tolist() == [-1, 1]
    states, _, _ = play(FiveCardDraw(3), ["f", "c", "c", KEEP_ALL, KEEP_ALL, "c", "c"])
    assert [int(state.current_player) for state in states] == [0, 1, 2, 1, 2, 1, 2, 2]
    assert bool(states[-1].finished)


def test_betting_rules_are_those_of_no_limit():
    env = FiveCardDraw(4, stack=(100, 19, 100, 16))
    assert np.flatnonzero(play(env, ["a", "c", "a", "c"])[1]).tolist() == [CALL, FOLD]  # 19 over 16: no full raise
    states, legal, _ = play(env, ["a", "c", "a", "c", "c"])
    assert phase(states[-1]) == 1
    assert states[-1].contributions.tolist() == [19, 19, 19, 16]
    assert legal[THROW_ALL]
    states, _, _ = play(FiveCardDraw(2), ["p", "h"])  # call 1 + 4 = 6 in all; call 4 + half of 12
    assert states[-1].contributions.tolist() == [6, 12]
    assert int(states[-1].min_raise) == 6


def test_equal_hands_split_and_the_wheel_is_five_high():
    env = FiveCardDraw(3)
    keep = [KEEP_ALL] * 3
    hands = ["Ac 2d 3h 4s 5c", "Ad 2c 3s 4h 5d", "Ah Kh Qd Jc 9s"]
    assert play(env, ["a", "c", "c", *keep], hands=hands)[2].tolist() == [50, 50, -100]
    hands = ["Ac 2d 3h 4s 5c", "2h 3s 4h 5d 6d", "Ah As Ad Jc 9s"]
    assert play(env, ["a", "c", "c", *keep], hands=hands)[2].tolist() == [-100, 200, -100]


def test_the_longest_hand_of_two_has_12_actions():
    env = FiveCardDraw()
    assert env.max_actions == 12
    states, legal, _ = play(env, ["c", "c", KEEP_ALL, KEEP_ALL, "c", *"hhhhh", "a", "c"])
    assert not legal.any()
    assert int(states[-1].timestep) == 12
    assert not any(bool(state.finished) for state in states[:-1])
    assert (np.asarray(states[-1].history) > 0).all()


def random_hands(env, weights, num_hands, seed=0, weights_draw=1.0):
    """States [E, T + 1] and rewards [E, T, N] of random play with `step_env`."""
    weights = jnp.array([*weights, *[weights_draw] * 32], jnp.float32)

    def hand(key):
        deal_key, play_key = jax.random.split(key)

        def turn(state, key):
            legal = env.legal_actions(state)
            action = jnp.where(legal, weights * jax.random.uniform(key, legal.shape), -1.0).argmax()
            played, _, reward, _, _, info = env.step_env(state, action)
            return played, (state.replace(key=None), reward, legal, action, info["illegal_action"])

        return jax.lax.scan(turn, env.reset(deal_key)[0], jax.random.split(play_key, env.max_actions))

    final, rest = jax.jit(jax.vmap(hand))(jax.random.split(jax.random.key(seed), num_hands))
    return final.replace(key=None), rest


def masks_to_planes(states):
    """[..., 52] bool, the stock."""
    both = np.asarray(states.stock_low).astype(np.uint64) | np.asarray(states.stock_high).astype(np.uint64) << 32
    return (both[..., None] >> np.arange(52, dtype=np.uint64) & 1).astype(bool)


def counts(hole_cards, live):
    """[..., 52], how many live players hold each card."""
    planes = (np.asarray(hole_cards)[..., None] == np.arange(52)).sum(-2)
    return (planes * np.asarray(live)[..., None]).sum(-2)


@pytest.mark.parametrize(
    ("num_agents", "stack"),
    [
        (2, (37, 180)),
        (5, (40, 2, 77, 77, 20)),
        (6, (2, 7, 30, 100, 15, 60)),
        (10, (40, 2, 3, 100, 90, 77, 13, 20, 5, 64)),
    ],
)
def test_random_play_conserves_chips_and_cards(num_agents, stack):
    env = FiveCardDraw(num_agents, stack=stack)
    num_hands = 200
    final, (states, rewards, legal, actions, illegal) = random_hands(env, [9, 1, 0.5, 0.2, 0.1], num_hands)
    assert not np.asarray(illegal)[~np.asarray(states.finished)].any()
    assert np.asarray(final.finished).all()
    paid = np.asarray(final.contributions)
    assert (paid <= np.array(stack)).all()
    np.testing.assert_allclose(np.asarray(rewards).sum(-1), 0, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(rewards).sum(1), final.returns)
    assert (np.asarray(final.returns) >= -paid - 1e-4).all()
    # no card twice, at no time: neither in live hands and the stock, nor in the deal
    live = ~np.asarray(states.folded)
    held = counts(states.hole_cards, live)
    assert (held + masks_to_planes(states) <= 1).all()
    assert (held.sum(-1) == 5 * live.sum(-1)).all()
    assert (counts(states.dealt_cards, np.ones_like(live)) <= 1).all()
    # what may be thrown away is what there is in the stock, and thrown away or folded
    drawing = np.asarray(states.drawing & ~states.finished)
    thrown = 5 - np.array([number.bit_count() for number in range(32)])
    there = 52 - 5 * live.sum(-1)
    np.testing.assert_array_equal(np.asarray(legal)[drawing][:, 5:], thrown[None] <= there[drawing][:, None])
    # a drawer's new cards are neither his own nor another's, and as many as he threw away
    acted = np.flatnonzero(drawing.reshape(-1))
    before = np.asarray(states.hole_cards).reshape(-1, num_agents, 5)[acted]
    after = np.concatenate([np.asarray(states.hole_cards)[:, 1:], np.asarray(final.hole_cards)[:, None]], 1)
    after = after.reshape(-1, num_agents, 5)[acted]
    player = np.asarray(states.current_player).reshape(-1)[acted]
    index = np.arange(len(acted))
    own_before, own_after = np.sort(before[index, player]), after[index, player]
    kept = np.asarray(actions).reshape(-1)[acted] - 5
    keeps = (kept[:, None] >> np.arange(5) & 1).astype(bool)
    common = (own_before[:, :, None] == own_after[:, None]).any(-1)
    np.testing.assert_array_equal(common, keeps)
    others = np.arange(num_agents)[None] != player[:, None]
    np.testing.assert_array_equal(before[others], after[others])
    if num_agents == 10:  # somebody was served from what others had thrown away
        assert (~masks_to_planes(states).any(-1) & drawing).any()


@pytest.mark.parametrize("num_agents", [6, 10])
def test_all_throw_as_many_as_they_can(num_agents):
    """Six seats: 22 cards in the stock for 30; ten seats: two cards each."""
    env = FiveCardDraw(num_agents)
    state = first_state(env)
    act = compiled(env)[1]
    for _ in range(num_agents):
        state, legal, *_ = act(state, jnp.int32(CALL))
    in_stock, thrown_by_others = stock(state), set()
    for _ in range(num_agents):
        assert state.drawing
        action = int(np.flatnonzero(legal)[0])
        assert action == (THROW_ALL if num_agents == 6 else 5 + 0b111)
        player = int(state.current_player)
        before = set(state.hole_cards[player].tolist())
        state, legal, *_ = act(state, jnp.int32(action))
        after = set(state.hole_cards[player].tolist())
        new = after - before
        assert len(new) == (5 if num_agents == 6 else 2)
        if len(new) <= len(in_stock):
            assert new <= in_stock
            in_stock -= new
        else:
            assert in_stock < new or not in_stock
            assert new - in_stock <= thrown_by_others
            in_stock = thrown_by_others - new
            thrown_by_others = set()
        assert stock(state) == in_stock
        thrown_by_others |= before - after
        held = state.hole_cards.reshape(-1).tolist()
        assert len(set(held)) == 5 * num_agents
    assert phase(state) == 2


def is_uniform(values, size):
    return stats.chisquare(np.bincount(values, minlength=size)).pvalue > 1e-3


@pytest.mark.parametrize("num_agents", [2, 3])
def test_deals_are_uniform(num_agents):
    env = FiveCardDraw(num_agents)
    states, _ = compiled(env)[0](jax.random.split(jax.random.key(5), 40_000))
    hands = np.asarray(states.hole_cards).reshape(-1, 5 * num_agents)
    for place in range(hands.shape[1]):
        assert is_uniform(hands[:, place], 52)
    assert is_uniform(np.asarray(states.button), num_agents)
    for first, second in ((0, 9), (8, 9), (3, 5)):  # ordered pairs
        pairs = hands[:, first] // 4 * 13 + hands[:, second] // 4
        expected = np.where(np.arange(169) % 14 == 0, 4 * 3, 16) / (52 * 51)
        observed = np.bincount(pairs, minlength=169)
        assert stats.chisquare(observed, expected * len(hands)).pvalue > 1e-3
    planes = masks_to_planes(states) + counts(states.hole_cards, np.ones((len(hands), num_agents)))
    assert (planes == 1).all()


@pytest.mark.parametrize(("num_agents", "drawer"), [(2, 0), (2, 1), (6, 4), (6, 5)])
def test_new_cards_are_uniform_over_what_may_be_drawn(num_agents, drawer):
    """Of one state with 20,000 keys; of six seats the fifth gets the stock's last two cards and three thrown away."""
    env = FiveCardDraw(num_agents)
    states, legal, _ = play(env, ["c"] * num_agents + [THROW_ALL] * drawer, button=0)
    state = states[-1]
    assert legal[THROW_ALL]
    keys = jax.random.split(jax.random.key(1), 20_000)
    after, *_ = jax.jit(jax.vmap(lambda key: env.step_env(state.replace(key=key), jnp.int32(THROW_ALL))))(keys)
    player = int(state.current_player)
    new = np.asarray(after.hole_cards)[:, player]
    pool = stock(state) - set(state.hole_cards.reshape(-1).tolist())
    forced = set()
    assert (len(pool) < 5) == (drawer == 4)
    if drawer == 4:
        forced = pool
        live = set(state.hole_cards.reshape(-1).tolist())
        pool = set(range(52)) - live - forced
    held = np.bincount(new.reshape(-1), minlength=52)
    assert set(np.flatnonzero(held)) == pool | forced
    assert (held[sorted(forced)] == len(keys)).all()
    drawn = held[sorted(pool)]
    share = (5 - len(forced)) / len(pool)
    # counts of draws without replacement vary less than independent ones: by 1 - share
    statistic = ((drawn - len(keys) * share) ** 2 / (len(keys) * share * (1 - share))).sum() * (1 - 1 / len(pool))
    assert stats.chi2(len(pool) - 1).sf(statistic) > 1e-3
    num_hands = math.comb(len(pool), 5 - len(forced))
    assert len(np.unique(np.sort(new), axis=0)) > 0.9 * num_hands * -math.expm1(-len(keys) / num_hands)


@pytest.mark.parametrize("place", range(5))
def test_a_card_from_the_reserve_is_uniform_whichever_one_it_stands_for(place):
    """Of six seats four throw all away and the fifth two: the stock is used up when the last throws one."""
    env = FiveCardDraw(6)
    throws = [THROW_ALL] * 4 + [5 + 0b00111]
    states, legal, _ = play(env, ["c"] * 6 + throws, button=0)
    state, action = states[-1], 5 + (0b11111 & ~(1 << place))
    assert not stock(state)
    assert legal[action]
    keys = jax.random.split(jax.random.key(2), 10_000)
    after, *_ = jax.jit(jax.vmap(lambda key: env.step_env(state.replace(key=key), jnp.int32(action))))(keys)
    player = int(state.current_player)
    own = set(np.asarray(state.hole_cards)[player].tolist())
    new = [set(hand) - own for hand in np.asarray(after.hole_cards)[:, player].tolist()]
    assert {len(cards) for cards in new} == {1}
    drawn = np.bincount([card for cards in new for card in cards], minlength=52)
    reserve = set(range(52)) - set(np.asarray(state.hole_cards).reshape(-1).tolist())
    assert set(np.flatnonzero(drawn)) == reserve
    assert stats.chisquare(drawn[sorted(reserve)]).pvalue > 1e-3


def test_draws_of_one_hand_differ_with_step_env_alone():
    """The key stands still there; the two players' draws must not be the same numbers."""
    env = FiveCardDraw(2)
    final, (states, *_) = random_hands(env, [1, 0, 0, 0, 0], 2_000, weights_draw=0.0)
    del final
    drew = np.asarray(states.num_drawn)[:, -1]
    assert (drew == 5).all()
    hole = np.sort(np.asarray(states.hole_cards)[:, -1], -1)
    lowest = hole[:, :, 0]
    assert abs(stats.spearmanr(lowest[:, 0], lowest[:, 1]).statistic) < 0.1


def test_paper_observation_is_own_cards_own_chips_and_most_chips():
    env = FiveCardDraw(2)
    states, _, _ = play(env, ["h", "c", KEEP_ALL, 5 + 0b00111, "p"], hands=PAT[:2])
    for player, own in ((0, 4), (1, 12)):
        expected = np.zeros(54, np.float32)
        expected[states[-1].hole_cards[player]] = 1
        expected[52:] = own, 12
        np.testing.assert_array_equal(env.observe(states[-1], player), expected)


def test_information_state_is_cards_phase_position_stacks_draws_and_bets():
    N = 3
    env = FiveCardDraw(N, stack=(50, 100, 200), observation="information_state")
    states, _, _ = play(env, ["p", "c", "f", 5 + 0b00111, KEEP_ALL, "h"], hands=PAT[:3])
    state = states[-1]
    assert env.obs_shape == (107 + 2 * N + 6 * N + env.max_bets * (8 + N),)
    for player in range(N):
        expected = np.zeros(107 + 8 * N, np.float32)
        expected[cards(PAT[player])] = 1
        expected[52 + np.asarray(state.hole_cards[player])] = 1
        expected[104 + 2] = 1
        expected[107 + (player - 1) % N] = 1
        expected[107 + N : 107 + 2 * N] = np.roll([25, 50, 100], -player)
        for seat, drawn in ((0, 0), (1, 2)):
            expected[107 + 2 * N + 6 * ((seat - player) % N) + drawn] = 1
        slots = np.zeros((env.max_bets, 8 + N), np.float32)
        bets = [(7, POT, 0, 0), (6, CALL, 0, 1), (0, FOLD, 0, 2), (8, HALF, 1, 1)]
        for slot, (chips, action, betting_round, seat) in enumerate(bets):
            slots[slot, 0] = chips / 2
            slots[slot, [1 + action, 6 + betting_round, 8 + (seat - player) % N]] = 1
        seen = np.asarray(env.information_state(state, player))
        np.testing.assert_array_equal(seen, np.concatenate([expected, slots.reshape(-1)]))
        np.testing.assert_array_equal(seen, env.observe(state, player))


def test_nothing_that_a_player_sees_depends_on_hidden_cards():
    """10,000 states of three players; all cards but those that seat 1 has or had are permuted."""
    env, player = FiveCardDraw(3, stack=(40, 60, 100)), 1
    final, (states, *_) = random_hands(env, [9, 1, 0.5, 0.2, 0.4], 1_000, seed=3)
    del final
    states = jax.tree.map(lambda leaf: leaf[:, :10].reshape(-1, *leaf.shape[2:]), states)

    def compare(state, key):
        deck = jnp.arange(52)
        known = (deck[:, None] == state.dealt_cards[player][None]).any(1)
        known |= (deck[:, None] == state.hole_cards[player][None]).any(1)
        order = jnp.argsort(jnp.where(known, 2.0, jax.random.uniform(key, (52,))))
        permuted = jnp.where(known, deck, order[jnp.cumsum(~known) - 1]).astype(jnp.int32)
        words = jnp.stack([state.stock_low, state.stock_high])
        in_stock = (words[deck // 32] >> (deck % 32).astype(jnp.uint32) & 1) == 1
        moved = (in_stock[None] & (permuted[None] == deck[:, None])).any(1).astype(jnp.uint32)
        other = state.replace(
            hole_cards=permuted[state.hole_cards],
            dealt_cards=permuted[state.dealt_cards],
            stock_low=(moved[:32] << jnp.arange(32, dtype=jnp.uint32)).sum(dtype=jnp.uint32),
            stock_high=(moved[32:] << jnp.arange(20, dtype=jnp.uint32)).sum(dtype=jnp.uint32),
        )
        looks = (env.legal_actions, partial(env.observe, player=player), partial(env.information_state, player=player))
        same = jnp.stack([(look(state) == look(other)).all() for look in looks])
        return same.all(), (other.hole_cards != state.hole_cards).any()

    same, differs = jax.jit(jax.vmap(compare))(states, jax.random.split(jax.random.key(4), 10_000))
    assert isinstance(states, State)
    assert same.all()
    assert differs.mean() > 0.9


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"num_agents": 1}, "num_agents=1.*2 to 10"),
        ({"stack": 1}, "stack=1: .*2"),
        ({"stack": (100, 1)}, r"stack=\(100, 1\): 2 integers from 2"),
        ({"stack": 2, "blinds": (2, 2)}, "stack=2: .*3"),
        ({"blinds": (3, 2)}, r"blinds=\(3, 2\)"),
        ({"observation": "cards"}, "observation='cards'.*'paper'"),
    ],
)
def test_bad_parameters_are_refused_with_what_is_allowed(parameters, told):
    with pytest.raises(ValueError, match=told):
        FiveCardDraw(**parameters)


def test_deals_are_too_many():
    with pytest.raises(ValueError, match=r"3\.99e\+12"):
        FiveCardDraw().deals()


def test_render_shows_own_cards_draws_and_bets():
    env = FiveCardDraw(2)
    states, _, _ = play(env, ["h", "c", 5 + 0b00111, KEEP_ALL, "p", "f"], hands=PAT[:2])
    own, every = env.render(states[-2], 0), env.render(states[-2])
    assert "9h Qd Kc Ah As" in own
    assert "? ? ? ? ?, drew 2, 12 in the pot, 88 behind" in own
    assert "Kh" not in own
    assert "8h Td Jc" in every
    assert "first round: seat 0 half pot 3, seat 1 check or call 2" in own
    assert "second round: seat 1 pot 8" in own
    assert "over, returns -4 +4" in env.render(states[-1], 1)
