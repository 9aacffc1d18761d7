"""Rules of bluff: step by step against the plain-Python game of `reference_bluff.py`, and single cases by hand."""

import itertools
import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_bluff import Bluff as Reference
from scipy import stats

import envs
from envs import bluff

CLAIM, PLAY, CHALLENGE = range(3)
DOUBT, PASS = range(2)
SMALL = {"num_ranks": 2, "num_suits": 2}  # 4 cards
WILD = 1 / 16  # of the actions are drawn from -2 ... A + 1, legal or not
# Most programs run a few times only here: nearly all the time would go into optimising them.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make(**kwargs):
    return envs.make("bluff", **kwargs)


def counts(env, words):
    """int [..., R], cards of each rank, out of packed words [..., W]."""
    ranks = np.arange(env.num_ranks)
    places = (env.count_bits * (ranks % env.ranks_per_word)).astype(np.uint32)
    return (np.asarray(words)[..., ranks // env.ranks_per_word] >> places & ((1 << env.count_bits) - 1)).astype(int)


def packed(env, cards):
    """uint32 [..., W] out of `counts`."""
    words = np.zeros((*cards.shape[:-1], env.num_words), np.uint32)
    for rank in range(env.num_ranks):
        shift = np.uint32(env.count_bits * (rank % env.ranks_per_word))
        words[..., rank // env.ranks_per_word] += cards[..., rank].astype(np.uint32) << shift
    return words


@cache
def compiled(env):
    players = jnp.arange(env.num_agents)
    return jit(env.step_env), jit(lambda state: jax.vmap(env.observe, (None, 0))(state, players)), jit(env.step)


def dealt(env, *hands, opener=0):
    """First state with these hands, each a list of ranks; all other cards are on the pile."""
    cards = np.array([np.bincount(hand, minlength=env.num_ranks) for hand in hands])
    rest = env.num_copies - cards.sum(0)
    assert (rest >= 0).all()
    return jit(env._first_state)(jax.random.key(0), packed(env, cards), packed(env, rest), jnp.int32(opener))


def play(env, state, *actions):
    """The state after these actions, each of them legal, and the rewards of each, [T, N]."""
    rewards = []
    for action in actions:
        state, _, reward, _, _, info = compiled(env)[0](state, jnp.int32(action))
        assert not info["illegal_action"]
        rewards.append(np.asarray(reward))
    return state, np.array(rewards)


# Against the reference


@partial(jit, static_argnums=0)
def play_chunk(env, states, keys):
    """One random step of each game for every key, recorded; `seen` is what all players see in the last state."""
    players = jnp.arange(env.num_agents)

    def all_see(state):
        return jax.vmap(env.observe, (None, 0))(state, players)

    def turn(states, key):
        choice_key, wild_key, number_key = jax.random.split(key, 3)
        legal = jax.vmap(env.legal_actions)(states)
        actions = jnp.where(legal, jax.random.uniform(choice_key, legal.shape), -1.0).argmax(-1)
        wild = jax.random.randint(number_key, actions.shape, -2, env.num_actions + 2)
        actions = jnp.where(jax.random.uniform(wild_key, actions.shape) < WILD, wild, actions)
        nexts, obs, reward, absorbing, done, info = jax.vmap(env.step)(states, actions)
        final = info["final_state"]
        record = {
            "hands": states.hands,
            "pile": states.pile,
            "seen": jax.vmap(all_see)(final),
            "player": states.current_player,
            "legal": legal,
            "action": actions,
            "obs": obs,
            "reward": reward,
            "absorbing": absorbing,
            "done": done,
            "illegal": info["illegal_action"],
            "winner": info["winner"],
            "phase": info["phase"],
            "timestep": info["timestep"],
            "returns": info["returns"],
            "next_player": final.current_player,
            "next_legal": jax.vmap(env.legal_actions)(final),
        }
        return nexts, record

    return jax.lax.scan(turn, states, keys)


def replay(env, reference, record, game, first_obs, faults):
    """Steps `reference` through one game's column of a record; returns how many episodes ended.

    `first_obs` is what the player to act sees before the first step.
    """
    ended = 0
    rows = {name: column[:, game].tolist() for name, column in record.items() if name not in ("hands", "pile", "obs")}
    hands = counts(env, record["hands"][:, game])
    N = env.num_agents
    for step, action in enumerate(rows["action"]):
        if rows["timestep"][step] == 1:
            deal = [np.repeat(np.arange(env.num_ranks), hand).tolist() for hand in hands[step]]
            reference.start(deal, rows["player"][step])
            if first_obs.tolist() != reference.observation(reference.current_player):
                faults.append(("obs", step, game))
        found = {"player": reference.current_player, "legal": reference.legal_actions()}
        reward, absorbing, done, illegal = reference.step(action)
        seen = [reference.observation(player) for player in range(N)]
        found |= {
            "seen": seen,
            "reward": np.float32(reward).tolist(),
            "absorbing": [absorbing] * N,
            "done": done,
            "illegal": illegal,
            "winner": reference.winner,
            "phase": reference.phase(),
            "timestep": reference.timestep,
            "next_player": reference.current_player,
            "next_legal": reference.legal_actions(),
        }
        faults += [(name, step, game) for name, value in found.items() if rows[name][step] != value]
        if not np.allclose(rows["returns"][step], reference.returns, rtol=0, atol=1e-4):
            faults.append(("returns", step, game))
        first_obs = record["obs"][step, game]
        if not done and first_obs.tolist() != seen[reference.current_player]:
            faults.append(("obs", step, game))
        ended += done
    return ended


def compare(num_episodes, num_games, num_steps, **kwargs):
    """Plays at least `num_episodes` to their end in both and asserts that nothing differs. Returns (won, cut)."""
    env = make(**kwargs)
    references = [Reference(**kwargs) for _ in range(num_games)]
    states, first_obs = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), num_games))
    first_obs = list(np.asarray(first_obs))
    ended = won = cut = chunk = 0
    while ended < num_episodes:
        chunk += 1
        states, record = play_chunk(env, states, jax.random.split(jax.random.key(chunk), num_steps))
        record = jax.tree.map(np.asarray, record)
        cards = counts(env, record["hands"]).sum(2) + counts(env, record["pile"])
        assert (cards == env.num_copies).all()
        for name in ("seen", "obs"):
            assert np.isin(record[name], (0, 1)).all()
        faults = []
        for game, reference in enumerate(references):
            ended += replay(env, reference, record, game, first_obs[game], faults)
        first_obs = list(record["obs"][-1])
        assert faults == [], f"{len(faults)} differences (what, step, game) in chunk {chunk} of {kwargs}"
        won += int(record["absorbing"].all(-1).sum())
        cut += int((record["done"] & ~record["absorbing"].all(-1)).sum())
    assert won + cut == ended
    return won, cut


# parameters, then episodes, games and steps at a time in the suite, and episodes in the full test
PARAMETERS = [
    ({}, 10, 10, 250, 200),
    ({"horizon": 100, "shaped_rewards": False}, 20, 10, 100, 2_000),
    ({"num_agents": 2, "num_ranks": 3, "num_suits": 2}, 130, 20, 100, 40_000),
    ({"num_agents": 3, "num_ranks": 2, "num_suits": 3, "shaped_rewards": False}, 120, 20, 100, 26_000),
    ({"num_agents": 4, "num_ranks": 5, "num_suits": 2, "horizon": 30}, 130, 20, 100, 22_000),
    ({"num_agents": 5, "num_decks": 2, "num_ranks": 4, "num_suits": 2, "horizon": 60}, 40, 20, 100, 5_000),
    ({"num_agents": 10, "num_ranks": 13, "num_suits": 2, "horizon": 25}, 40, 20, 50, 3_000),
    ({"num_agents": 3, "num_decks": 4, "num_ranks": 2, "num_suits": 4, "horizon": 50}, 20, 10, 100, 2_000),
]


@pytest.mark.parametrize(("kwargs", "num_episodes", "num_games", "num_steps", "_"), PARAMETERS)
def test_random_play_equals_the_reference_step_by_step(kwargs, num_episodes, num_games, num_steps, _):
    won, cut = compare(num_episodes, num_games, num_steps, **kwargs)
    assert won or "horizon" in kwargs
    assert cut or "horizon" not in kwargs


@pytest.mark.full
@pytest.mark.parametrize(("kwargs", "_", "_games", "_steps", "num_episodes"), PARAMETERS)
def test_100_000_episodes_of_random_play_equal_the_reference_step_by_step(kwargs, _, _games, _steps, num_episodes):
    compare(num_episodes, 64, 100, **kwargs)


def test_there_are_500_episodes_in_the_suite_and_100_000_in_the_full_test():
    assert sum(suite for _, suite, _, _, _ in PARAMETERS) >= 500
    assert sum(full for _, _, _, _, full in PARAMETERS) >= 100_000


def uniform_step(env, states, key):
    """The states after uniform random actions; those of finished games stay."""
    legal = jax.vmap(env.legal_actions)(states)
    number = (jax.random.uniform(key, legal.shape[:1]) * legal.sum(-1)).astype(jnp.int32)
    actions = (jnp.cumsum(legal, -1) > number[:, None]).argmax(-1)
    return jax.vmap(env.step_env)(states, actions)[0]


# The end of a game


def test_last_card_played_and_nobody_challenges_pays_10_exactly_once():
    env = make(num_agents=3, **SMALL)  # one card each, one on the pile
    state = dealt(env, [0], [1], [1])
    state, rewards = play(env, state, 0, 0, PASS, PASS)
    np.testing.assert_array_equal(rewards, [[0, 0, 0]] * 3 + [[11, 0, 0]])  # 1 for the card, 10 for winning
    again, _, reward, absorbing, done, info = compiled(env)[0](state, jnp.int32(PASS))
    assert not reward.any()
    assert done
    assert absorbing.all()
    assert again.returns.tolist() == [11, 0, 0]
    assert info["winner"].tolist() == [True, False, False]
    # with `step`, all rewards of the episode, too
    state, total = dealt(env, [0], [1], [1]), 0
    for action in (0, 0, PASS, PASS):
        state, _, reward, _, done, info = compiled(env)[2](state, jnp.int32(action))
        total = total + np.asarray(reward)
    assert done
    assert total.tolist() == info["returns"].tolist() == [11, 0, 0]


def test_last_card_challenged_in_vain_wins_and_costs_the_challenger_the_pile():
    env = make(num_agents=3, **SMALL)
    state, rewards = play(env, dealt(env, [0], [1], [1]), 0, 0, PASS, DOUBT)
    np.testing.assert_array_equal(rewards[-1], [1 + 10, 0, -2])  # the card left over by the deal, and the one played
    assert state.finished
    assert counts(env, state.hands).tolist() == [[0, 0], [0, 1], [2, 1]]
    assert not counts(env, state.pile).any()
    assert (state.phase, state.current_player) == (CHALLENGE, 2)


def test_last_card_not_of_the_claimed_rank_and_challenged_does_not_win():
    env = make(num_agents=2, **SMALL)  # two cards each
    state = dealt(env, [0, 1], [0, 1])
    # seat 0 plays a deuce, which is true as the rank is free, and then seat 1 a three and seat 0 his own as a deuce
    state, rewards = play(env, state, 0, 0, PASS, 0, 0, PASS)
    assert rewards.tolist() == [[0, 0]] * 2 + [[1, 0]] + [[0, 0]] * 2 + [[0, 1]]
    assert (state.current_player, state.base) == (0, 0)
    state, rewards = play(env, state, 0, 1, DOUBT)
    assert rewards.tolist() == [[0, 0], [0, 0], [-3, 1]]
    assert not state.finished
    assert (state.phase, state.current_player, state.base, state.rank_is_free) == (CLAIM, 1, 0, True)
    assert counts(env, state.hands).tolist() == [[1, 2], [1, 0]]


def test_unshaped_pays_only_the_end_and_sums_to_zero():
    for num_agents in (2, 3, 4):
        env = make(num_agents=num_agents, shaped_rewards=False, num_ranks=2, num_suits=num_agents)
        assert env.zero_sum
        # two cards each
        state = dealt(env, *[[0, 1]] * num_agents, opener=1)
        state, rewards = play(env, state, 1, 0, 1, *[PASS] * (num_agents - 1))
        assert not rewards[:-1].any()
        expected = np.full(num_agents, -1 / (num_agents - 1))
        expected[1] = 1
        np.testing.assert_allclose(rewards[-1], expected, rtol=1e-6)
        assert abs(rewards[-1].sum()) < 1e-5
    assert not make().zero_sum


@pytest.mark.parametrize(("horizon", "player"), [(1, 0), (3, 2), (4, 2)])
def test_the_horizon_cuts_undecided_and_its_step_can_win(horizon, player):
    """The game is won in four steps. `player` would act next where it is cut; acted last where it is won."""
    env, endless = make(num_agents=3, horizon=horizon, **SMALL), make(num_agents=3, **SMALL)
    wins = horizon == 4
    actions = (0, 0, PASS, PASS)[:horizon]
    state = dealt(env, [0], [1], [1])
    for count, action in enumerate(actions, 1):
        state, obs, _, absorbing, done, info = compiled(env)[2](state, jnp.int32(action))
        assert info["timestep"] == count
        assert bool(done) == (count == horizon)
        assert absorbing.tolist() == [wins and count == horizon] * 3
    assert info["winner"].tolist() == [wins, False, False]
    final = info["final_state"]
    assert (final.timestep, final.current_player, final.finished) == (horizon, player, wins)
    assert final.returns.tolist() == [11 * wins, 0, 0]
    assert not env.legal_actions(final).any()
    assert (state.timestep, state.phase) == (0, CLAIM)
    np.testing.assert_array_equal(obs, compiled(env)[1](state)[state.current_player])
    # the state that is cut, and what everybody sees of it, is the one from which the game would go on
    on, _ = play(endless, dealt(endless, [0], [1], [1]), *actions)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), on.replace(key=None), final.replace(key=None))
    assert all(jax.tree.leaves(same))
    np.testing.assert_array_equal(compiled(env)[1](final), compiled(endless)[1](on))
    again, _, reward, absorbing, done, _ = compiled(env)[0](final, jnp.int32(PASS))
    assert done
    assert absorbing.all() == wins
    assert not reward.any()
    assert again.timestep == horizon


def test_uniform_play_decides_few_games_in_100_steps_and_90_percent_in_1000():
    env = make()
    num_games = 2_000

    @jax.jit
    def lengths(key):
        """Step that decided each game, 0 where none did."""
        reset_key, key = jax.random.split(key)
        states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, num_games))

        def turn(carry, key):
            states, length = carry
            states = uniform_step(env, states, key)
            return (states, jnp.where(states.finished & (length == 0), states.timestep, length)), None

        start = states, jnp.zeros(num_games, jnp.int32)
        return jax.lax.scan(turn, start, jax.random.split(key, 1000))[0][1]

    length = np.asarray(lengths(jax.random.key(0)))
    decided = length > 0
    assert 0.001 < (decided & (length <= 100)).mean() < 0.008
    assert 0.88 < decided.mean() < 0.92


# Claims, ranks, the pile


def test_a_claim_is_at_most_four_cards_and_no_more_than_held():
    env = make(num_agents=2, num_ranks=5, num_suits=2)  # five cards each
    state = dealt(env, [0, 0, 1, 1, 2], [2, 3, 3, 4, 4])
    assert env.legal_actions(state).tolist() == [True] * 4 + [False]
    state, _ = play(env, state, 3, 0, 0, 1, 1, PASS)
    assert env.legal_actions(state).tolist() == [True] * 4 + [False]
    state, _ = play(env, state, 0, 1, PASS)  # of seat 0 one card is left
    assert env.legal_actions(state).tolist() == [True] + [False] * 4
    again, *_, info = compiled(env)[0](state, jnp.int32(1))
    assert info["illegal_action"]
    assert again.claim_size == 1


def test_the_first_card_chooses_a_free_rank_and_the_next_claim_is_of_the_rank_after_it():
    env = make(num_agents=2, num_ranks=3, num_suits=4)  # six cards each
    state = dealt(env, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], opener=1)
    assert (state.base, state.rank_is_free) == (0, True)
    state, _ = play(env, state, 1, 2)  # two cards, the first a four: of base 0 the action is 2
    assert (state.base, state.rank_is_free, state.phase) == (2, False, PLAY)
    assert not counts(env, state.claims).any()  # not before the claim is down
    state, _ = play(env, state, 0)  # another four, now action 0
    assert counts(env, state.claims).tolist() == [0, 0, 2]
    assert (state.phase, state.current_player, state.base) == (CHALLENGE, 0, 2)
    state, _ = play(env, state, PASS)
    assert (state.phase, state.current_player, state.base, state.rank_is_free) == (CLAIM, 0, 0, False)
    state, rewards = play(env, state, 0, 1, DOUBT)  # a three as a deuce
    assert rewards[-1].tolist() == [-3, 1]
    assert (state.phase, state.current_player, state.base, state.rank_is_free) == (CLAIM, 1, 0, True)
    assert not counts(env, state.claims).any()
    assert not counts(env, state.pile).any()
    assert counts(env, state.hands).tolist() == [[2, 2, 4], [2, 2, 0]]


def test_a_true_claim_gives_the_challenger_the_pile_and_the_claimant_the_turn():
    env = make(num_agents=3, num_ranks=3, num_suits=3)  # three cards each
    state = dealt(env, [0, 0, 1], [0, 1, 1], [2, 2, 2], opener=2)
    state, rewards = play(env, state, 1, 2, 0, PASS, DOUBT)  # two fours, both true; seat 1 challenges
    assert rewards[-1].tolist() == [0, -2, 1]
    assert (state.current_player, state.claimant, state.base, state.rank_is_free) == (2, 2, 2, True)
    assert counts(env, state.hands).tolist() == [[2, 1, 0], [1, 2, 2], [0, 0, 1]]


def test_claims_of_a_rank_saturate_at_the_cards_there_are():
    env = make(num_agents=2, num_ranks=2, num_suits=4)  # four cards each
    state = dealt(env, [0, 0, 0, 1], [1, 1, 1, 0])
    state, _ = play(env, state, 2, 0, 0, 0, PASS, 0, 0, PASS)  # three deuces, then a three
    assert (state.base, counts(env, state.claims).tolist()) == (0, [3, 1])
    # Two of rank 0 would make five: only seat 1 could still have them, so he needs cards; give him the turn.
    state = state.replace(current_player=jnp.int32(1), claimant=jnp.int32(1))
    state, _ = play(env, state, 1, 1, 1)
    assert counts(env, state.claims).tolist() == [4, 1]
    assert compiled(env)[1](state)[0, :8].tolist() == [1, 1, 1, 0, 1, 0, 1, 0]


def ones_at(size, *places):
    row = np.zeros(size, np.float32)
    row[list(places)] = 1
    return row


def test_observation_is_the_table_of_the_docstring():
    env = make(num_agents=2, num_ranks=3, num_suits=2, num_decks=2)  # 12 cards, six each
    D = env.num_cards
    assert env.obs_shape == (5 * D + 3,) == (63,)
    see = compiled(env)[1]
    state = dealt(env, [0, 0, 0, 1, 1, 2], [0, 1, 1, 2, 2, 2])
    # ranks 0, 1, 2 from base 0; level by level
    own = [24, 25, 26, 24 + 3, 25 + 3, 24 + 6], [24, 25, 26, 25 + 3, 26 + 3, 26 + 6]
    for player in range(2):
        np.testing.assert_array_equal(see(state)[player], ones_at(63, *own[player], 60 + CLAIM))
    state, _ = play(env, state, 2, 1)  # three cards, the first of rank 1, the base from now on
    own = [24 + 2, 24 + 2 + 3, 24 + 2 + 6, 24, 24 + 1], [24, 24 + 3, 24 + 1, 24 + 1 + 3, 24 + 1 + 6, 24 + 2]
    for player in range(2):
        np.testing.assert_array_equal(see(state)[player], ones_at(63, *own[player], 60 + PLAY))
    state, _ = play(env, state, 0, 2)  # another of rank 1, and one of rank 0
    own = [24 + 2, 24 + 2 + 3, 24 + 1], own[1]
    public = [0, 3, 6, *range(12, 15), *range(36, 39), *range(48, 51), 60 + CHALLENGE]  # three of rank 1 are claimed
    for player in range(2):
        np.testing.assert_array_equal(see(state)[player], ones_at(63, *own[player], *public))
    state, _ = play(env, state, PASS)  # base 2
    own = [24 + 1, 24 + 1 + 3, 24], [24 + 2, 24 + 2 + 3, 24, 24 + 3, 24 + 6, 24 + 1]
    for player in range(2):
        expected = ones_at(63, 2, 5, 8, *range(12, 15), *own[player], 60 + CLAIM)
        np.testing.assert_array_equal(see(state)[player], expected)


def test_observation_of_the_smallest_deck_tells_the_phases_apart():
    env = make(num_agents=2, num_ranks=2, num_suits=1)
    state = dealt(env, [0], [1])
    for phase, action in ((CLAIM, 0), (PLAY, 0), (CHALLENGE, None)):
        assert int(state.phase) == phase
        for player in range(2):
            assert compiled(env)[1](state)[player, 5 * env.num_cards :].tolist() == [phase == i for i in range(3)]
        state = state if action is None else play(env, state, action)[0]


def test_the_remainder_of_the_deal_is_on_the_pile_but_not_claimed():
    env = make(num_agents=3)
    state, obs = jit(env.reset)(jax.random.key(0))
    assert counts(env, state.hands).sum(-1).tolist() == [17, 17, 17]
    assert counts(env, state.pile).sum() == 1
    assert obs[:52].sum() == 0
    assert obs[52:104].tolist() == [1] + [0] * 51


# Hidden cards


def redealt(env, states, player, rng):
    """The states with all cards that `player` does not hold dealt anew to the others and the pile."""
    cards = counts(env, np.concatenate([states.hands, states.pile[:, None]], 1))  # [B, N + 1, R]
    B, N, R, C = len(cards), env.num_agents, env.num_ranks, env.num_copies
    is_own = np.arange(C)[None, None] < cards[:, player, :, None]  # [B, R, C]
    order = np.argsort(rng.random((B, R * C)) - is_own.reshape(B, -1), axis=1)  # his own first
    ranks = order // C
    owners = [player, *(seat for seat in range(N + 1) if seat != player)]
    ends = np.cumsum(cards.sum(-1)[:, owners], 1)
    new = np.zeros_like(cards)
    place = np.arange(R * C)[None]
    for i, owner in enumerate(owners):
        mine = (place < ends[:, i, None]) & (place >= (ends[:, i - 1, None] if i else 0))
        for rank in range(R):
            new[:, owner, rank] = (mine & (ranks == rank)).sum(1)
    assert (new.sum(-1) == cards.sum(-1)).all()
    assert (new[:, player] == cards[:, player]).all()
    words = packed(env, new)
    is_true = rng.random(B) < 0.5
    return states.replace(hands=jnp.asarray(words[:, :N]), pile=jnp.asarray(words[:, N]), is_true=jnp.asarray(is_true))


def test_nothing_that_a_player_sees_depends_on_hidden_cards_in_10_000_states():
    env = make()
    num_games, every, num_samples = 250, 9, 40

    @jax.jit
    def sample(key):
        states, _ = jax.vmap(env.reset)(jax.random.split(key, num_games))

        def turn(states, key):
            return uniform_step(env, states, key), None

        def turns(states, key):
            return jax.lax.scan(turn, states, jax.random.split(key, every))[0], states

        return jax.lax.scan(turns, states, jax.random.split(key, num_samples))[1]

    states = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), sample(jax.random.key(0)))
    assert len(states.timestep) == 10_000
    see = jit(jax.vmap(env.observe, (0, None)))
    legal = jit(jax.vmap(env.legal_actions))
    rng = np.random.default_rng(0)
    for player in range(env.num_agents):
        others = redealt(env, states, player, rng)
        assert (np.asarray(others.hands) != states.hands).any((1, 2)).mean() > 0.9
        np.testing.assert_array_equal(see(others, player), see(states, player))
        acts = np.asarray(states.current_player) == player
        np.testing.assert_array_equal(np.asarray(legal(others))[acts], np.asarray(legal(states))[acts])


# The deal


def deal_probabilities(env):
    """{counts of all hands as a tuple: probability}, of all cards told apart."""
    N, R, C = env.num_agents, env.num_ranks, env.num_copies
    size = env.num_cards // N
    total = math.factorial(env.num_cards) / (math.factorial(size) ** N * math.factorial(env.num_cards - N * size))
    found = {}
    splits = [row for row in itertools.product(range(C + 1), repeat=N) if sum(row) <= C]
    for ranks in itertools.product(splits, repeat=R):
        if all(sum(row[seat] for row in ranks) == size for seat in range(N)):
            ways = math.prod(math.factorial(C) / math.prod(map(math.factorial, (*row, C - sum(row)))) for row in ranks)
            found[tuple(np.array(ranks).T.ravel().tolist())] = ways / total
    assert abs(sum(found.values()) - 1) < 1e-9
    return found


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_agents": 2, "num_ranks": 3, "num_suits": 2},
        {"num_agents": 4, "num_ranks": 3, "num_suits": 2},  # two cards are left over
        {"num_agents": 3, "num_ranks": 2, "num_suits": 4, "num_decks": 2},
    ],
)
def test_every_deal_of_a_small_deck_is_as_likely_as_it_should_be(kwargs):
    env = make(**kwargs)
    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 100_000))
    expected = deal_probabilities(env)
    deals = counts(env, states.hands).reshape(100_000, -1)
    found, numbers = np.unique(deals, axis=0, return_inverse=True)
    keys = [tuple(row) for row in found.tolist()]
    assert set(keys) <= set(expected)
    table = np.array([[expected[key]] * env.num_agents for key in keys]) * 100_000 / env.num_agents
    observed = np.zeros_like(table)
    np.add.at(observed, (numbers.ravel(), np.asarray(states.current_player)), 1)
    often = table >= 5  # deal and opener together
    rest = [observed[~often].sum()], [100_000 - table[often].sum()]
    observed, table = np.append(observed[often], rest[0]), np.append(table[often], rest[1])
    if table[-1] < 1e-6:
        assert observed[-1] == 0
        observed, table = observed[:-1], table[:-1]
    assert stats.chisquare(observed, table).pvalue > 1e-3


def test_the_default_deal_gives_each_rank_hypergeometrically_to_each_seat_and_a_uniform_card_to_the_pile():
    env = make()
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 100_000))
    hands, pile = counts(env, states.hands), counts(env, states.pile)
    assert (hands.sum(-1) == 17).all()
    assert (hands.sum(1) + pile == 4).all()
    assert stats.chisquare(pile.sum(0)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(states.current_player, minlength=3)).pvalue > 1e-3
    expected = stats.hypergeom(52, 4, 17).pmf(np.arange(5)) * 100_000
    pvalues = [
        stats.chisquare(np.bincount(hands[:, seat, rank], minlength=5), expected).pvalue
        for seat in range(3)
        for rank in range(13)
    ]
    assert min(pvalues) > 1e-4
    # two ranks of one hand, and one rank of two hands
    for first, second in (((0, 0), (0, 1)), ((0, 12), (0, 7)), ((2, 3), (2, 11))):
        together = np.histogram2d(hands[:, *first], hands[:, *second], bins=(np.arange(-0.5, 5),) * 2)[0]
        a, b = np.meshgrid(np.arange(5), np.arange(5), indexing="ij")
        expected = stats.multivariate_hypergeom.pmf(np.stack([a, b, 17 - a - b], -1), [4, 4, 44], 17) * 100_000
        often = expected >= 5
        assert (
            stats.chisquare(
                np.append(together[often], together[~often].sum()), np.append(expected[often], expected[~often].sum())
            ).pvalue
            > 1e-3
        )


def test_a_game_that_ends_is_followed_by_an_independent_deal():
    env = make(num_agents=2, num_ranks=2, num_suits=2, horizon=1)
    first, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 50_000))
    second, _, _, _, done, _ = jit(jax.vmap(env.step))(first, jnp.zeros(50_000, jnp.int32))
    assert done.all()
    codes = [counts(env, s.hands)[:, 0, 0] * 2 + np.asarray(s.current_player) for s in (first, second)]
    for code in codes:
        expected = np.repeat(np.array([1, 4, 1]) / 12, 2) * 50_000
        assert stats.chisquare(np.bincount(code, minlength=6), expected).pvalue > 1e-3
    assert stats.chi2_contingency(np.histogram2d(*codes, 6)[0]).pvalue > 1e-3


@pytest.mark.parametrize("size", [1, 2, 3, 10, 52, 208, 2047, 2048])
def test_numbers_drawn_are_the_exact_product_with_a_63_bit_fraction(size):
    words = np.random.default_rng(size).integers(2**63, size=1_000).tolist()
    whole = [(k * 2**63 // size + delta) % 2**63 for k in range(min(size, 99) + 1) for delta in (-1, 0, 1)]
    fractions = [0, 1, 2**63 - 1, *whole, *words]
    limbs = [
        np.array([fraction >> shift & int(bluff.LIMB) for fraction in fractions], np.uint32) for shift in (42, 21, 0)
    ]
    number, rest = jax.jit(bluff._next_number, static_argnums=1)(tuple(map(jnp.asarray, limbs)), size)
    assert {array.dtype for array in (number, *rest)} == {jnp.dtype("uint32")}
    assert number.tolist() == [size * fraction >> 63 for fraction in fractions]
    left = [high << 42 | middle << 21 | low for high, middle, low in zip(*(r.tolist() for r in rest), strict=True)]
    assert left == [size * fraction % 2**63 for fraction in fractions]


@pytest.mark.parametrize("sizes", [[3, *range(52, 0, -1)], [10, *range(208, 0, -1)], [2, 2, 1]])
def test_numbers_drawn_together_share_no_more_bits_than_precision_allows(sizes, monkeypatch):
    """Of each 63 random bits the numbers' probabilities are off by the product of the sizes / 2^63 of themselves."""
    products, seen = [], []

    def next_number(fraction, size):
        if not any(fraction is known for known in seen):
            products.append(1)
        products[-1] *= size
        left = tuple(limb * 1 for limb in fraction)
        seen.append(left)
        return fraction[0] * 0, left

    monkeypatch.setattr(bluff, "_next_number", next_number)
    bluff._draw_numbers(jax.random.key(0), sizes)
    assert math.prod(products) == math.prod(sizes)
    assert sum(product / 2**63 for product in products) <= 1e-3


# Parameters, text


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"num_agents": 1}, "2 to 10"),
        ({"num_agents": 11}, "2 to 10"),
        ({"num_agents": 3.0}, "2 to 10"),
        ({"num_decks": 0}, "1 to 4"),
        ({"num_ranks": 14}, "2 to 13"),
        ({"num_ranks": 1}, "2 to 13"),
        ({"num_suits": 5}, "1 to 4"),
        ({"num_suits": True}, "1 to 4"),
        ({"horizon": 0}, "1 to 1000000"),
        ({"shaped_rewards": 1}, "True or False"),
        ({"num_agents": 5, "num_ranks": 2, "num_suits": 2}, "2 to 4"),
        ({"observation": "information_state"}, "'paper'"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_allowed(kwargs, told):
    name, value = next(iter(kwargs.items()))
    with pytest.raises(ValueError, match=f"^{name}=.*{told}") as error:
        make(**kwargs)
    assert repr(value) in str(error.value)


def test_sizes_follow_from_the_parameters():
    assert make().obs_shape == (263,)
    assert make().num_actions == 13
    assert make(num_ranks=3).num_actions == 4
    assert make(num_decks=2, num_ranks=5, num_suits=3).obs_shape == (5 * 30 + 3,)
    assert not hasattr(make(), "information_state")
    with pytest.raises(ValueError, match=r"bluff has 1\.79e\+24 deals"):
        make().deals()


def test_render_shows_own_cards_and_claims_and_hides_all_else():
    env = make(num_agents=2, num_ranks=3, num_suits=4)
    state, _ = play(env, dealt(env, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2]), 1, 0, 1)
    text = env.render(state, 0)
    assert "seat 0: 2344" in text
    assert "seat 1: ??????" in text
    assert "claimed 22" in text
    assert "false" not in text
    assert "2 cards" in text
    assert "seat 1: 223344" in env.render(state, 1)
    whole = env.render(state)
    assert "seat 0: 2344" in whole
    assert "seat 1: 223344" in whole
    assert "false" in whole
    won, _ = play(make(num_agents=3, **SMALL), dealt(make(num_agents=3, **SMALL), [0], [1], [1]), 0, 0, PASS, PASS)
    assert "won by seat 0, returns +11 +0 +0" in make(num_agents=3, **SMALL).render(won)
