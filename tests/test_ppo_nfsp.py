"""PPO-NFSP: its parts against plain Python and NumPy, its training on games whose best play is known, and on Kuhn."""

import itertools
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization, struct
from scipy import stats

import envs
from baselines import ppo_nfsp
from baselines.ppo_nfsp import (
    PAPER,
    Args,
    Transition,
    average_loss,
    check_memory,
    compute_gae,
    draw_best_response_seats,
    make_policy,
    make_programs,
    make_reservoir,
    make_train,
    masked_logits,
    pack,
    parse_args,
    ppo_loss,
    reservoir_insert,
    resolve_env,
    run,
)
from solvers.game_tree import build_game_tree

P_VALUE = 1e-3  # of chi-square tests; the draws are the same in every run


# Credit


def gae_of_every_player(
    value, acting, reward, done, absorbing, final_value, last_value, last_acting, gamma, gae_lambda
):
    """`compute_gae`, decision by decision."""
    T, E, N = acting.shape
    advantages, known = np.zeros((T, E, N)), np.zeros((T, E, N), bool)
    for e, p in itertools.product(range(E), range(N)):
        decisions = np.flatnonzero(acting[:, e, p]).tolist()
        for t, following in reversed(list(itertools.pairwise([*decisions, None]))):
            ends = [u for u in range(t, T if following is None else following) if done[u, e]]
            next_advantage = 0
            if ends:
                until = ends[0] + 1
                next_value = 0 if absorbing[ends[0], e] else final_value[ends[0], e, p]
            elif following is not None:
                until = following
                next_value, next_advantage = value[following, e, p], advantages[following, e, p]
            elif last_acting[e, p]:
                until, next_value = T, last_value[e, p]
            else:
                continue
            delta = reward[t:until, e, p].sum() + gamma * next_value - value[t, e, p]
            advantages[t, e, p] = delta + gamma * gae_lambda * next_advantage
            known[t, e, p] = True
    return advantages, known


def random_rollout(seed, num_agents, parallel, T=24, E=40):
    """Arguments of `compute_gae` before γ: uneven turns, NaN wherever nothing may be read."""
    rng = np.random.default_rng(seed)
    players = rng.choice(num_agents, (T + 1, E), p=np.arange(1, num_agents + 1) / sum(range(num_agents + 1)))
    acting = np.full((T + 1, E, num_agents), True) if parallel else players[..., None] == np.arange(num_agents)
    done = rng.random((T, E)) < 0.15
    absorbing = done & (rng.random((T, E)) < 0.5)
    value, final_value = rng.normal(size=(2, T + 1, E, num_agents)).astype(np.float32)
    value = np.where(acting, value, np.nan)
    final_value = np.where((done & ~absorbing)[..., None], final_value[:T], np.nan)
    reward = rng.normal(size=(T, E, num_agents)).astype(np.float32)
    return value[:T], acting[:T], reward, done, absorbing, final_value, value[T], acting[T]


@pytest.mark.parametrize("parallel", [False, True], ids=["aec", "parallel"])
@pytest.mark.parametrize("num_agents", [2, 3, 6])
def test_gae_equals_a_loop_over_each_players_own_decisions(num_agents, parallel):
    compute = jax.jit(compute_gae)
    unknown = 0
    for gae_lambda in (0.0, 0.5, 1.0):
        rollout = random_rollout(num_agents, num_agents, parallel)
        advantages, known = compute(*rollout, 0.9, gae_lambda)
        expected, expected_known = gae_of_every_player(*rollout, 0.9, gae_lambda)
        np.testing.assert_array_equal(known, expected_known)
        np.testing.assert_allclose(advantages, expected, atol=1e-5)
        unknown += (rollout[1] & ~expected_known).sum()
    assert (unknown > 0) == (not parallel)


def test_loser_who_did_not_act_last_is_credited_with_the_terminal_reward():
    """The first player bets, the second folds; then the first player of the next hand, who is to act next, bets."""
    reward = jnp.array([[[0.0, 0.0]], [[1.0, -1.0]], [[0.0, 0.0]]])
    acting = jnp.array([[[True, False]], [[False, True]], [[True, False]]])
    done = jnp.array([[False], [True], [False]])
    value, last_value = jnp.full((3, 1, 2), 0.25), jnp.full((1, 2), 7.0)
    advantages, known = compute_gae(
        value, acting, reward, done, done, value, last_value, jnp.array([[False, True]]), 1.0, 1.0
    )
    np.testing.assert_allclose(advantages[:, 0], [[0.75, 0], [0, -1.25], [0, 0]])
    np.testing.assert_array_equal(known[:, 0], [[True, False], [False, True], [False, False]])


# Seats


@pytest.mark.parametrize("anticipatory_param", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("num_agents", [2, 3])
def test_seats_play_their_best_response_independently_given_that_one_does(num_agents, anticipatory_param):
    seats = draw_best_response_seats(jax.random.key(0), 100_000, num_agents, anticipatory_param)
    observed = np.bincount(np.asarray(seats) @ (1 << np.arange(num_agents)), minlength=1 << num_agents)
    ones = np.array([bin(pattern).count("1") for pattern in range(1 << num_agents)])
    expected = anticipatory_param**ones * (1 - anticipatory_param) ** (num_agents - ones)
    expected[0] = 0
    possible = expected > 0
    assert observed[~possible].sum() == 0
    if possible.sum() > 1:
        expected = expected[possible] / expected.sum() * len(seats)
        assert stats.chisquare(observed[possible], expected).pvalue > P_VALUE


# Reservoir

NUM_BITS = 7
INVALID = 100  # and above: items that do not belong to the stream


def fill_reservoirs(batches, capacity, num_streams):
    """Shows the same batches of items to many reservoirs; every row of an item is a function of the item."""

    def fill(key):
        reservoir = make_reservoir(capacity, (2,), NUM_BITS)
        for i, batch in enumerate(batches):
            item = jnp.array(batch, jnp.int32)
            reservoir = reservoir_insert(
                jax.random.fold_in(key, i), reservoir, obs_of(item), legal_of(item), item, item < INVALID
            )
        return reservoir

    return jax.jit(jax.vmap(fill))(jax.random.split(jax.random.key(len(batches)), num_streams))


def obs_of(item):
    return jnp.stack([item, 2 * item], -1).astype(jnp.float32)


def legal_of(item):
    return (item[..., None] >> jnp.arange(NUM_BITS).reshape((1,) * item.ndim + (NUM_BITS,))) % 2 == 1


def in_batches(num_items, *sizes):
    """Items 0, 1, ... in batches, with items that are not valid before, between and behind them."""
    items, invalid = iter(range(num_items)), itertools.cycle(range(INVALID, 1 << NUM_BITS))
    batches = [[x for item in itertools.islice(items, size) for x in (next(invalid), item)] for size in sizes]
    assert next(items, None) is None
    return [[*batch, next(invalid), next(invalid)] for batch in batches]


@pytest.mark.parametrize("sizes", [(40,), (3, 20, 1, 0, 9, 7), (1,) * 12, (8, 32), (39, 1)])
def test_every_item_is_in_the_reservoir_with_probability_capacity_over_count(sizes):
    num_items, capacity, num_streams = sum(sizes), 8, 4000
    reservoir = fill_reservoirs(in_batches(num_items, *sizes), capacity, num_streams)
    items = np.asarray(reservoir.action)
    assert items.max() < num_items
    assert all(len(set(row)) == capacity for row in items.tolist())
    np.testing.assert_array_equal(reservoir.count, np.tile([0, num_items], (num_streams, 1)))

    # Sampling without replacement: the counts' covariances make the sum over n items chi-square of n - 1.
    share = capacity / num_items
    deviation = np.bincount(items.ravel(), minlength=num_items) - num_streams * share
    statistic = (deviation**2).sum() / (num_streams * share * (1 - share)) * (num_items - 1) / num_items
    assert P_VALUE < stats.chi2.sf(statistic, num_items - 1) < 1 - P_VALUE


@pytest.mark.parametrize("sizes", [(6,), (1,) * 6, (1, 4, 1), (2, 4), (4, 2)])
def test_a_batch_leaves_what_its_items_leave_one_by_one(sizes):
    capacity, num_items, num_streams = 2, 6, 20_000
    contents = {tuple(range(capacity)): 1.0}  # by algorithm R: item n takes a given place with probability 1 / (n + 1)
    for n in range(capacity, num_items):
        following = defaultdict(float)
        for places, probability in contents.items():
            following[places] += probability * (1 - capacity / (n + 1))
            for i in range(capacity):
                following[(*places[:i], n, *places[i + 1 :])] += probability / (n + 1)
        contents = following

    reservoir = fill_reservoirs(in_batches(num_items, *sizes), capacity, num_streams)
    found, counts = np.unique(np.asarray(reservoir.action), axis=0, return_counts=True)
    observed = dict(zip(map(tuple, found.tolist()), counts, strict=True))
    assert observed.keys() <= contents.keys()
    observed = [observed.get(places, 0) for places in contents]
    assert stats.chisquare(observed, np.array(list(contents.values())) * num_streams).pvalue > P_VALUE


def test_observation_legal_actions_and_action_of_an_item_stay_together():
    reservoir = fill_reservoirs(in_batches(64, 2, 62), 3, 1000)  # far more items than places: many fall on one place
    np.testing.assert_array_equal(reservoir.obs, obs_of(reservoir.action))
    np.testing.assert_array_equal(reservoir.legal, legal_of(reservoir.action))


def test_reservoir_rounds_to_11_bits_and_holds_finite_numbers_only():
    obs = jnp.array([[2048.0, 2049.0, 0.1, 1e6, -jnp.inf]])
    one = jnp.ones(1, bool)
    reservoir = reservoir_insert(jax.random.key(0), make_reservoir(1, (5,), 1), obs, one[None], one * 0, one)
    assert reservoir.obs[0].tolist() == [2048, 2048, np.float16(0.1), 65504, -65504]


def test_reservoir_that_is_not_full_holds_exactly_the_valid_items():
    reservoir = jax.tree.map(lambda x: x[0], fill_reservoirs(in_batches(7, 3, 0, 4), 16, 1))
    assert int(reservoir.size) == 7
    assert reservoir.action[:7].tolist() == list(range(7))
    assert not reservoir.obs[7:].any()


@pytest.mark.parametrize("before", [2**31 - 3, 2**32 - 3, 2**32 - 7, 2**33 + 5])
def test_count_passes_2_to_the_31_and_2_to_the_32(before):
    reservoir = make_reservoir(4, (2,), NUM_BITS).replace(count=jnp.array(divmod(before, 2**32), jnp.uint32))
    item = jnp.arange(9, dtype=jnp.int32)
    for _ in range(2):
        reservoir = reservoir_insert(jax.random.key(0), reservoir, obs_of(item), legal_of(item), item, item != 4)
    high, low = np.asarray(reservoir.count).tolist()
    assert high * 2**32 + low == before + 16
    assert int(reservoir.size) == 4


@pytest.mark.parametrize("before", [2**31 - 2**15, 2**32 + 5])
def test_items_are_still_kept_with_probability_capacity_over_count_beyond_2_to_the_31(before):
    B = capacity = 2**16
    item = jnp.arange(1, B + 1, dtype=jnp.int32)
    start = make_reservoir(capacity, (1,), 1).replace(count=jnp.array(divmod(before, 2**32), jnp.uint32))

    def num_kept(key):
        obs, legal = jnp.zeros((B, 1)), jnp.zeros((B, 1), bool)
        return (reservoir_insert(key, start, obs, legal, item, item > 0).action > 0).sum()

    num_batches = 64
    kept = jax.jit(lambda keys: jax.lax.map(num_kept, keys))(jax.random.split(jax.random.key(0), num_batches)).sum()
    expected = num_batches * B * capacity / (before + B / 2)
    assert abs(kept - expected) < 4 * np.sqrt(expected)


# Losses


def random_batch(seed, B=64, A=4, scale=3.0):
    """Logits, values, batch, advantages and weights, as `ppo_loss` takes them."""
    rng = np.random.default_rng(seed)
    legal = rng.random((B, A)) < 0.6
    action = rng.integers(A, size=B)
    legal[np.arange(B), action] = True
    logits, old_logits = rng.normal(size=(2, B, A))
    log_prob = log_softmax(np.where(legal, old_logits, -1e9))[np.arange(B), action]
    value, old_value, advantage = scale * rng.normal(size=(3, B))
    batch = transition(legal=legal, action=action, log_prob=log_prob, value=old_value)
    weight = rng.random(B) < 0.7
    return as_float32((logits, value, batch, advantage, weight.astype(np.float32)))


def transition(**fields):
    return Transition(**(dict.fromkeys(Transition.__dataclass_fields__) | fields))


def as_float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else None), tree)


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("vf_clip_coef", [0.0, 0.5])
def test_ppo_loss_equals_its_formula(vf_clip_coef):
    logits, value, batch, advantage, weight = random_batch(0)
    clip_coef, vf_coef, ent_coef = 0.2, 0.7, 0.05
    loss, logged = ppo_loss(
        logits, value, batch, advantage, weight, clip_coef, vf_clip_coef, vf_coef, jnp.float32(ent_coef)
    )

    used = np.asarray(weight) > 0
    log_prob = log_softmax(np.where(batch.legal, np.asarray(logits, np.float64), -1e9))[used]
    ratio = np.exp(log_prob[np.arange(used.sum()), np.asarray(batch.action)[used]] - np.asarray(batch.log_prob)[used])
    advantage, value, old_value = (np.asarray(x, np.float64)[used] for x in (advantage, value, batch.value))
    target = advantage + old_value
    normalized = (advantage - advantage.mean()) / advantage.std()
    clipped_ratio = np.clip(ratio, 1 - clip_coef, 1 + clip_coef)
    policy_loss = np.maximum(-normalized * ratio, -normalized * clipped_ratio).mean()
    error = (value - target) ** 2
    if vf_clip_coef:
        error = np.maximum(error, (np.clip(value, old_value - vf_clip_coef, old_value + vf_clip_coef) - target) ** 2)
    value_loss = error.mean() / target.var() / 2
    entropy = -(np.exp(log_prob) * np.maximum(log_prob, -1e6)).sum(-1).mean()
    expected = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": (ratio - 1 - np.log(ratio)).mean(),
        "losses/clipfrac": (np.abs(ratio - 1) > clip_coef).mean(),
    }
    assert 0 < expected["losses/clipfrac"] < 1
    assert logged.keys() == expected.keys()
    for name, number in expected.items():
        np.testing.assert_allclose(logged[name], number, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(loss, policy_loss + vf_coef * value_loss - ent_coef * entropy, rtol=1e-4, atol=1e-6)


def loss_and_gradient(logits, value, batch, advantage, weight, vf_clip_coef=0.0):
    def loss_fn(outputs):
        return ppo_loss(*outputs, batch, advantage, weight, 0.2, vf_clip_coef, 0.5, jnp.float32(0.05))

    (loss, logged), gradient = jax.value_and_grad(loss_fn, has_aux=True)((logits, value))
    return loss, logged, gradient


@pytest.mark.parametrize("vf_clip_coef", [0.0, 0.2])
def test_samples_of_weight_0_count_neither_in_the_loss_nor_in_its_gradient(vf_clip_coef):
    sample = random_batch(1)
    weight = sample[-1]
    logits, value, batch, advantage, _ = random_batch(2, scale=1e3)
    other = (logits, value, batch.replace(log_prob=8 * batch.log_prob), advantage)
    mixed = jax.tree.map(
        lambda x, y: jnp.where((weight > 0).reshape(-1, *[1] * (x.ndim - 1)), x, y), sample[:-1], other
    )
    for expected, got in zip(
        jax.tree.leaves(loss_and_gradient(*sample, vf_clip_coef)),
        jax.tree.leaves(loss_and_gradient(*mixed, weight, vf_clip_coef)),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    for gradient in loss_and_gradient(*mixed, weight, vf_clip_coef)[-1]:
        assert not gradient[weight == 0].any()
        assert gradient[weight > 0].any()


def test_a_minibatch_without_decisions_to_learn_from_changes_nothing():
    logits, value, batch, advantage, weight = random_batch(3)
    loss, logged, gradient = loss_and_gradient(logits, value, batch, advantage, jnp.zeros_like(weight))
    assert all(number == 0 for number in (loss, *logged.values()))
    assert not any(x.any() for x in gradient)


def test_decisions_with_equal_advantages_give_finite_numbers():
    logits, value, batch, advantage, weight = random_batch(4)
    numbers = loss_and_gradient(logits, value, batch, jnp.ones_like(advantage), weight)
    assert all(jnp.isfinite(number).all() for number in jax.tree.leaves(numbers))


@pytest.mark.parametrize("illegal_logit", [5.0, -1e30, -np.inf])
@pytest.mark.parametrize(
    ("legal", "entropy"), [([True, True, False], np.log(2)), ([True, False, False], 0.0), ([True] * 3, np.log(3))]
)
def test_illegal_actions_leave_entropy_and_gradients_finite(legal, entropy, illegal_logit):
    logits = jnp.where(jnp.array([legal]), 0.0, jnp.float32(illegal_logit))
    batch = transition(
        legal=jnp.array([legal]), action=jnp.zeros(1, jnp.int32), log_prob=jnp.full(1, -0.5), value=jnp.zeros(1)
    )
    loss, logged, (gradient, _) = loss_and_gradient(logits, jnp.ones(1), batch, jnp.ones(1), jnp.ones(1))
    np.testing.assert_allclose(logged["losses/entropy"], entropy, atol=1e-6)
    assert jnp.isfinite(loss)
    assert jnp.isfinite(gradient).all()
    assert not gradient[~batch.legal].any()
    probabilities = distrax.Categorical(logits=masked_logits(logits, batch.legal)).probs
    np.testing.assert_allclose(probabilities[0], np.array(legal) / sum(legal), atol=1e-7)

    loss, gradient = jax.value_and_grad(average_loss)(logits, batch.legal, batch.action)
    np.testing.assert_allclose(loss, np.log(sum(legal)), atol=1e-6)
    assert jnp.isfinite(gradient).all()
    assert not gradient[~batch.legal].any()


# Step sizes


def test_step_sizes_fall_linearly_to_0_over_all_optimizer_steps(monkeypatch):
    schedules = []
    adam = optax.adam
    monkeypatch.setattr(optax, "adam", lambda learning_rate, **kw: schedules.append(learning_rate) or adam(1.0, **kw))
    args = Args(
        num_envs=12, num_steps=5, total_timesteps=12 * 5 * 10, update_epochs=3, num_minibatches=4, avg_steps=6,
        learning_rate=0.25, avg_learning_rate=0.5, anneal_lr=True, anneal_avg_lr=True,
    )  # fmt: skip
    make_train(args, envs.make("kuhn_poker"))
    for schedule, start, steps in zip(schedules, (0.25, 0.5), (10 * 3 * 4, 10 * 6), strict=True):
        at = [float(schedule(step)) for step in (0, steps // 2, steps, 2 * steps)]
        np.testing.assert_allclose(at, [start, start / 2, 0, 0], atol=1e-7)
        assert 0 < float(schedule(steps - 1)) < start / 2

    schedules.clear()
    make_train(replace(args, anneal_lr=False, anneal_avg_lr=False), envs.make("kuhn_poker"))
    assert schedules == [0.25, 0.5]


# Games whose best play is known

DISCOUNT = 0.5


@struct.dataclass
class ProbeState:
    key: jax.Array
    current_player: jax.Array  # int32
    timestep: jax.Array  # int32
    returns: jax.Array  # [3] float32
    finished: jax.Array  # bool
    is_chain: jax.Array  # bool, which of the two games
    first_player: jax.Array  # int32
    last_action: jax.Array  # [3] int32, -1 before a seat's first decision
    bonus: jax.Array  # [3] float32, to be paid at the end


@dataclass(frozen=True)
class Probe:
    """Two games of three seats that take turns; which one is drawn at reset, and so is the seat that opens.

    Late rewards: every seat decides twice, between actions 0 and 1. Action 1 in the first decision pays 1, while the
    next seat acts; action 0 in the second pays 3, at the end. Values: 1 + 3 γ, then 3.
    Chain: action 2 of 0, 1, 2 pays seat + 1 at once; after `horizon` steps, 3 decisions of the opener and 2 of the
    others, the game is cut. Value, with the bootstrap at the cut: (seat + 1) / (1 - γ).

    Observation: the game (2), the own seat (3), the own last action (3), one-hot.
    """

    horizon: int = 7

    api: ClassVar[str] = "aec"
    num_agents: ClassVar[int] = 3
    num_actions: ClassVar[int] = 3
    obs_shape: ClassVar[tuple[int, ...]] = (8,)

    def reset(self, key):
        key, deal_key = jax.random.split(key)
        state = self._deal(deal_key).replace(key=key)
        return state, self.observe(state, state.current_player)

    def _deal(self, key):
        game_key, player_key = jax.random.split(key)
        player = jax.random.randint(player_key, (), 0, 3)
        return ProbeState(
            key=None,
            current_player=player,
            timestep=jnp.int32(0),
            returns=jnp.zeros(3),
            finished=jnp.bool_(False),
            is_chain=jax.random.bernoulli(game_key),
            first_player=player,
            last_action=jnp.full(3, -1, jnp.int32),
            bonus=jnp.zeros(3),
        )

    def step(self, state, action):
        key, deal_key = jax.random.split(state.key)
        final_state, _, reward, absorbing, done, info = self.step_env(state.replace(key=key), action)
        state = jax.tree.map(
            lambda fresh, stepped: jnp.where(done, fresh, stepped), self._deal(deal_key), final_state.replace(key=None)
        ).replace(key=key)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state, action):
        seats, player = jnp.arange(3), state.current_player
        is_player, was_player = seats == player, seats == (player - 1) % 3
        second = state.timestep >= 3

        paid_late = was_player & (state.last_action == 1) & (state.timestep >= 1) & (state.timestep <= 3)
        bonus = state.bonus + 3.0 * (is_player & second & (action == 0))
        late = 1.0 * paid_late + jnp.where(state.timestep == 5, bonus, 0)
        chain = jnp.where(is_player & (action == 2), seats + 1.0, 0)
        live = ~state.finished
        reward = jnp.where(live, jnp.where(state.is_chain, chain, late), 0)

        timestep = state.timestep + 1
        done = timestep == jnp.where(state.is_chain, self.horizon, 6)
        played = state.replace(
            current_player=jnp.where(done & ~state.is_chain, player, (player + 1) % 3),
            timestep=timestep,
            returns=state.returns + reward,
            finished=done,
            last_action=jnp.where(is_player, action, state.last_action).astype(jnp.int32),
            bonus=bonus,
        )
        state = jax.tree.map(
            lambda new, old: jnp.where(live, new, old), played.replace(key=None), state.replace(key=None)
        ).replace(key=state.key)
        info = {"returns": state.returns, "timestep": state.timestep, "final_state": state}
        info["winner"] = state.finished & (state.returns == state.returns.max())
        absorbing = jnp.broadcast_to(state.finished & ~state.is_chain, (3,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state):
        return ~state.finished & ((jnp.arange(3) < 2) | state.is_chain)

    def observe(self, state, player):
        game = jnp.arange(2) == state.is_chain
        last_action = jnp.arange(3) == state.last_action[player]
        return jnp.concatenate([game, jnp.arange(3) == player, last_action]).astype(jnp.float32)

    def deals(self):
        raise ValueError("Probe does not list its 6 deals")


PROBE_ARGS = Args(
    env="probe", observation="paper", seed=5, num_envs=64, num_steps=16, total_timesteps=64 * 16 * 200,
    hidden_sizes=(16,), learning_rate=5e-3, anneal_lr=True, gamma=DISCOUNT, gae_lambda=0.9, update_epochs=2,
    num_minibatches=2, ent_coef=0.0, ent_coef_end=0.0, anticipatory_param=0.5, reservoir_size=4096,
    avg_learning_rate=5e-3, anneal_avg_lr=True, avg_steps=4, avg_batch_size=256, eval_games=4000,
    wandb_mode="disabled",
)  # fmt: skip


@pytest.fixture(scope="module")
def probe():
    """The programs of training on `Probe`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "make", lambda *_, **__: Probe())
        return make_programs(PROBE_ARGS, Probe(), None)


@pytest.fixture(scope="module")
def trained_probe(probe):
    num_updates = PROBE_ARGS.total_timesteps // (PROBE_ARGS.num_envs * PROBE_ARGS.num_steps)
    states, _, bad_update = probe.train(probe.init(), np.int32(num_updates))
    assert bad_update.tolist() == [-1]
    return states


def probe_decisions():
    """Observations of all decisions of `Probe` under best play, with the legal actions, the best one and its value."""
    decisions = []
    for seat in range(3):
        for is_chain, last_action, best, value in (
            (False, None, 1, 1 + 3 * DISCOUNT),
            (False, 1, 0, 3),
            (True, None, 2, (seat + 1) / (1 - DISCOUNT)),
            (True, 2, 2, (seat + 1) / (1 - DISCOUNT)),
        ):
            obs = np.concatenate([np.arange(2) == is_chain, np.arange(3) == seat, np.arange(3) == last_action])
            decisions.append((obs.astype(np.float32), [True, True, is_chain], best, value))
    return tuple(jnp.array(column) for column in zip(*decisions, strict=True))


def test_best_response_finds_late_rewards_and_the_value_beyond_a_horizon_cut(trained_probe):
    obs, legal, best, expected = probe_decisions()
    params = jax.tree.map(lambda x: x[0], trained_probe.best_response)
    network = ppo_nfsp.BestResponse(PROBE_ARGS.hidden_sizes, Probe.num_actions)
    logits, value = network.apply(params, obs)
    probability = jax.nn.softmax(masked_logits(logits, legal))[np.arange(len(best)), best]
    assert probability.min() > 0.95
    np.testing.assert_allclose(value, expected, atol=0.25)


def test_return_vs_uniform_is_that_of_the_average_policy_which_follows_the_best_response(probe, trained_probe):
    before, after = (
        probe.evaluate(states)["eval/return_vs_uniform"].item() for states in (probe.init(), trained_probe)
    )
    mean_decisions = 7 / 3  # of a seat in the chain, where seats earn 1, 2 and 3
    np.testing.assert_allclose(before, (2.0 + mean_decisions * 2 / 3) / 2, atol=0.15)
    np.testing.assert_allclose(after, (4.0 + mean_decisions * 2) / 2, atol=0.3)


def test_seats_keep_their_network_for_an_episode_and_the_reservoir_gets_best_responses_only(probe):
    def always(params, action, num_outputs):
        """The network, playing one action whatever it sees."""
        bias = jnp.where(jnp.arange(num_outputs) == action, 1e3, 0.0)[None]
        return jax.tree.map(lambda x: bias if x.shape == bias.shape else x, params)

    states = probe.init()
    start = np.asarray(states.best_response_seats[0])
    states = states.replace(
        best_response=always(states.best_response, 1, Probe.num_actions + 1),
        average=always(states.average, 0, Probe.num_actions),
    )
    states = probe.restore(to_host(probe, states))  # placed like any others, so that nothing compiles anew
    states, logged, _ = probe.train(states, np.int32(1))
    seats, last_action = np.asarray(states.best_response_seats[0]), np.asarray(states.env_state.last_action[0])
    np.testing.assert_array_equal(last_action[last_action >= 0], seats[last_action >= 0])
    assert (seats.any(-1)).all()
    assert (seats != start).any()

    reservoir = jax.tree.map(lambda x: np.asarray(x[0]), states.reservoir)
    count = reservoir.count[1]
    own_last_action = reservoir.obs[:count, 5:]
    assert own_last_action[:, 1].sum() > 100
    assert not own_last_action[:, [0, 2]].any()
    assert (reservoir.action[:count] == 1).all()
    assert not reservoir.action[count:].any()
    decisions = PROBE_ARGS.num_envs * PROBE_ARGS.num_steps
    assert abs(count / decisions - 0.5 / (1 - 0.5**3)) < 0.06  # a seat's chance to play its best response
    assert logged["charts/reservoir_size"].item() == count


@struct.dataclass
class TogetherState:
    key: jax.Array
    current_player: jax.Array  # int32, means nothing
    timestep: jax.Array  # int32
    returns: jax.Array  # [3] float32
    finished: jax.Array  # bool
    is_cut: jax.Array  # bool, this episode ends at the horizon
    targets: jax.Array  # [3] int32, one for each seat
    last_action: jax.Array  # [3] int32


@dataclass(frozen=True)
class Together(Probe):
    """Three seats that act at once, two or, where a horizon cuts, three times; what one does is nothing to the others.

    A seat whose first action is its target is paid seat + 1 a step later, whatever it does then; in episodes that are
    cut it is paid 4 for action 2 in every step instead. Values: γ (seat + 1), then seat + 1 or 0; 4 / (1 - γ).

    Observation: cut (1), seat (3), target (2), last action (3, zeros at first).
    """

    horizon: int = 3

    api: ClassVar[str] = "parallel"
    obs_shape: ClassVar[tuple[int, ...]] = (9,)

    def reset(self, key):
        key, deal_key = jax.random.split(key)
        state = self._deal(deal_key).replace(key=key)
        return state, self._observe_all(state)

    def _observe_all(self, state):
        return jax.vmap(self.observe, (None, 0))(state, jnp.arange(3))

    def _deal(self, key):
        cut_key, target_key = jax.random.split(key)
        return TogetherState(
            key=None,
            current_player=jnp.int32(0),
            timestep=jnp.int32(0),
            returns=jnp.zeros(3),
            finished=jnp.bool_(False),
            is_cut=jax.random.bernoulli(cut_key),
            targets=jax.random.randint(target_key, (3,), 0, 2),
            last_action=jnp.full(3, -1, jnp.int32),
        )

    def step(self, state, action):
        state, _, *rest = super().step(state, action)
        return state, self._observe_all(state), *rest

    def step_env(self, state, action):
        late = jnp.where((state.timestep == 1) & (state.last_action == state.targets), jnp.arange(3) + 1.0, 0)
        live = ~state.finished
        reward = jnp.where(live, jnp.where(state.is_cut, 4.0 * (action == 2), late), 0)
        timestep = state.timestep + live
        played = state.replace(
            timestep=timestep,
            returns=state.returns + reward,
            finished=timestep == jnp.where(state.is_cut, self.horizon, 2),
            last_action=jnp.where(live, action, state.last_action).astype(jnp.int32),
        )
        info = {"returns": played.returns, "timestep": timestep, "final_state": played}
        info["winner"] = played.finished & (played.returns > 0)
        absorbing = jnp.broadcast_to(played.finished & ~state.is_cut, (3,))
        return played, self._observe_all(played), reward, absorbing, played.finished, info

    def legal_actions(self, state):
        return jnp.broadcast_to(~state.finished & ((jnp.arange(3) < 2) | state.is_cut)[None], (3, 3))

    def observe(self, state, player):
        last_action = jnp.arange(3) == state.last_action[player]
        target = jnp.arange(2) == state.targets[player]
        return jnp.concatenate([state.is_cut[None], jnp.arange(3) == player, target, last_action]).astype(jnp.float32)


def test_seats_that_act_at_once_learn_by_the_same_rule(monkeypatch):
    monkeypatch.setattr(envs, "make", lambda *_, **__: Together())
    together = make_programs(PROBE_ARGS, Together(), None)
    num_updates = PROBE_ARGS.total_timesteps // (PROBE_ARGS.num_envs * PROBE_ARGS.num_steps)
    start = together.init()
    before = together.evaluate(start)["eval/return_vs_uniform"].item()
    states, _, bad_update = together.train(start, np.int32(num_updates))
    assert bad_update.tolist() == [-1]
    after = together.evaluate(states)
    assert before < 3.5
    assert after["eval/return_vs_uniform"].item() > 6.6  # at most 2 on average of late rewards, 12 of the others
    assert after["eval/win_rate_vs_uniform"].item() > 0.97

    rows = [(seat, target) for seat in range(3) for target in range(2)]
    obs = np.array([[0, *(np.arange(3) == seat), *(np.arange(2) == target), 0, 0, 0] for seat, target in rows])
    cut = obs + np.eye(9)[0]
    network = ppo_nfsp.BestResponse(PROBE_ARGS.hidden_sizes, 3)
    params = jax.tree.map(lambda x: x[0], states.best_response)
    logits, value = network.apply(params, jnp.array(np.concatenate([obs, cut]), jnp.float32))
    assert np.argmax(logits[:6, :2], -1).tolist() == [target for _, target in rows]
    assert (np.argmax(logits[6:], -1) == 2).all()
    np.testing.assert_allclose(value[:6], [DISCOUNT * (seat + 1) for seat, _ in rows], atol=0.35)
    np.testing.assert_allclose(value[6:], 4 / (1 - DISCOUNT), rtol=0.1)


def test_a_policy_of_a_game_with_teams_plays_all_seats_of_one():
    class Teams(Together):
        """Seats 0 and 2 are a team; the first target tells which other team wins nothing."""

        num_teams = 2

        def teams(self, state):  # noqa: ARG002
            return jnp.array([0, 1, 0])

    def always_2(params, obs, legal):  # noqa: ARG001
        return jnp.where(legal[..., 2:], jnp.arange(3) == 2, legal).astype(jnp.float32)

    args = replace(PROBE_ARGS, eval_games=20_000)
    scores = jax.jit(ppo_nfsp.make_evaluate(args, Teams(), always_2, None))(None, jax.random.key(0))
    # Cut: 3 steps of 4; else the target is hit half of the time: seats 0 and 2 earn 2 on average, seat 1 as well.
    np.testing.assert_allclose(scores["eval/return_vs_uniform"], (12 + 2 / 2) / 2, atol=0.15)
    np.testing.assert_allclose(scores["eval/win_rate_vs_uniform"], (1 + (3 / 4 + 1 / 2) / 2) / 2, atol=0.02)


@pytest.mark.parametrize("learning_rate", [np.nan, pytest.param(1e30, marks=pytest.mark.full)])
def test_numbers_that_are_not_finite_stop_the_run_and_name_the_update(learning_rate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(envs, "make", lambda *_, **__: Probe())
    args = replace(PROBE_ARGS, learning_rate=learning_rate, anneal_lr=False, runs=tmp_path, eval_games=30)
    with pytest.raises(FloatingPointError, match=r"^update [12]: a loss or a parameter is not finite .*none"):
        run(args, Probe())
    assert "Probe does not list its 6 deals" in capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    assert '"status": "failed"' in (folder / "config.json").read_text()
    assert not list(folder.glob("*.msgpack"))


@pytest.mark.parametrize("piece_bytes", [16, 40, 10**6])
def test_what_is_packed_piece_by_piece_is_read_by_flax(piece_bytes, monkeypatch):
    monkeypatch.setattr(ppo_nfsp, "PIECE_BYTES", piece_bytes)
    tree = {
        "update": 7,
        "nothing": {},
        "reservoir": make_reservoir(9, (2, 3), 5).replace(obs=jnp.arange(54.0).astype(jnp.float16).reshape(9, 2, 3)),
        "scalar": jnp.int32(-3),
        "numpy": np.arange(12).reshape(3, 4)[:, ::2],
    }
    pieces = list(pack(tree))
    restored = serialization.msgpack_restore(b"".join(pieces))
    assert_equal(restored, serialization.to_state_dict(tree))
    assert max(map(len, pieces)) < max(piece_bytes, 40) + 100


def test_reservoir_larger_than_the_memory_is_refused_with_the_sizes():
    size = 10**13
    message = rf"^--reservoir-size {size}: needs \d+\.\d GB of \d+\.\d GB here \(2 times"
    with pytest.raises(ValueError, match=message) as error:
        check_memory(replace(PROBE_ARGS, reservoir_size=size, num_seeds=2), Probe())
    half = int(re.search(r"up to (\d+) leaves half", str(error.value))[1])
    check_memory(replace(PROBE_ARGS, reservoir_size=half, num_seeds=2), Probe())
    with pytest.raises(ValueError, match="reservoir-size"):
        check_memory(replace(PROBE_ARGS, reservoir_size=3 * half, num_seeds=2), Probe())


# Kuhn poker

KUHN_ARGS = Args(
    env="kuhn_poker", seed=3, num_seeds=2, num_envs=64, num_steps=16, total_timesteps=150_000, hidden_sizes=(32,),
    learning_rate=2e-3, anneal_lr=True, update_epochs=2, num_minibatches=4, ent_coef=0.2, ent_coef_end=0.1,
    anticipatory_param=0.1, reservoir_size=100_000, avg_learning_rate=1e-3, anneal_avg_lr=True, avg_steps=4,
    avg_batch_size=512,
)  # fmt: skip
KUHN_UPDATES = 150_000 // (64 * 16)


def to_host(programs, states):
    """NumPy copies: training consumes what it is given."""
    return jax.tree.map(np.array, programs.gather(states))


@pytest.fixture(scope="module")
def kuhn():
    env, args = resolve_env(KUHN_ARGS)
    return make_programs(args, env, build_game_tree(env))


@pytest.fixture(scope="module")
def three_updates(kuhn):
    """States and metrics after three updates, NumPy arrays."""
    states, logged, _ = kuhn.train(kuhn.init(), np.int32(3))
    return to_host(kuhn, states), jax.tree.map(np.asarray, logged)


def assert_equal(got, expected, rtol=0.0):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def test_kuhn_exploitability_of_the_average_policy_falls_below_a_bound(kuhn):
    states = kuhn.init()
    scores = [kuhn.evaluate(states)["eval/exploitability"]]
    for num_updates in (KUHN_UPDATES // 2, KUHN_UPDATES - KUHN_UPDATES // 2 - 1):
        states, logged, _ = kuhn.train(states, np.int32(num_updates))
        scores.append(kuhn.evaluate(states)["eval/exploitability"])
    start, soon, end = np.asarray(scores)
    assert (start > 0.4).all()
    assert (soon < start - 0.05).all()
    assert (end < 0.17).all()  # 0.12 to 0.14 over eight seeds
    assert logged["charts/valid_fraction"].min() >= 0.5

    before_last = jax.tree.map(np.asarray, (states.best_response, states.average))
    states, logged, _ = kuhn.train(states, np.int32(1))
    at_end = jax.tree.map(np.asarray, (states.best_response, states.average))
    np.testing.assert_allclose(logged["charts/ent_coef"], KUHN_ARGS.ent_coef_end, rtol=1e-6)
    states, *_ = kuhn.train(states, np.int32(1))
    beyond = jax.tree.map(np.asarray, (states.best_response, states.average))
    assert all((x != y).any() for x, y in zip(before_last, at_end, strict=True) for x, y in [flat(x, y)])
    assert_equal(beyond, at_end)  # with step sizes of 0


def flat(*trees):
    return [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in trees]


def test_same_seed_twice_gives_equal_states_and_metrics(kuhn, three_updates):
    states, logged, _ = kuhn.train(kuhn.init(), np.int32(3))
    assert_equal((to_host(kuhn, states), logged), three_updates)


def test_two_seeds_differ_in_their_first_deals_and_networks(kuhn, three_updates):
    states = to_host(kuhn, kuhn.init())
    for array in (states.key, states.env_state.cards, states.env_state.first_player, states.best_response_seats):
        assert (array[0] != array[1]).any()
    for tree in (states.best_response, states.average):
        assert (
            np.diff(flat(jax.tree.map(lambda x: x[0], tree), jax.tree.map(lambda x: x[1], tree)), axis=0) != 0
        ).any()
    for name in ("losses/policy_loss", "losses/average_loss", "charts/best_response_return"):
        assert three_updates[1][name][0] != three_updates[1][name][1]


def test_best_response_and_average_policy_start_different(kuhn):
    states = to_host(kuhn, kuhn.init())
    kernels = [
        next(x for x in jax.tree.leaves(tree) if x.ndim == 3 and x.shape[1] == states.obs.shape[-1])
        for tree in (states.best_response, states.average)
    ]
    assert kernels[0].shape == kernels[1].shape
    assert not np.isclose(*kernels).any()


def test_seed_i_of_several_is_the_run_of_that_seed_alone(three_updates):
    env, args = resolve_env(replace(KUHN_ARGS, seed=KUHN_ARGS.seed + 1, num_seeds=1))
    alone = make_programs(args, env, None)
    states, logged, _ = alone.train(alone.init(), np.int32(3))
    expected = jax.tree.map(lambda x: x[1:], three_updates)
    assert_equal((to_host(alone, states), jax.tree.map(np.asarray, logged)), expected, rtol=1e-5)


def test_any_number_of_updates_runs_in_one_compilation_and_metrics_are_their_mean(kuhn, three_updates):
    states, first, _ = kuhn.train(kuhn.init(), np.int32(1))
    states, second, _ = kuhn.train(states, np.int32(2))
    assert kuhn.train._cache_size() == 1
    np.testing.assert_allclose(first["charts/ent_coef"], KUHN_ARGS.ent_coef, rtol=1e-6)
    assert_equal(to_host(kuhn, states), three_updates[0])
    mean = jax.tree.map(lambda x, y: (np.asarray(x) + 2 * np.asarray(y)) / 3, first, second)
    assert_equal(mean, three_updates[1], rtol=1e-5)


TINY_ARGS = Args(
    env="kuhn_poker", num_envs=8, num_steps=8, num_minibatches=2, update_epochs=2, hidden_sizes=(4,),
    total_timesteps=128, anticipatory_param=0.3, reservoir_size=32, avg_steps=1, avg_batch_size=16, eval_games=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    """Training of one tiny seed, and its first state and batch."""
    training = make_train(*reversed(resolve_env(TINY_ARGS)))
    state = jax.jit(training.init)(np.uint32(0))
    return training, state, jax.jit(training.collect)(state, jax.random.key(1))[1]


def test_best_response_learns_from_its_own_decisions_only(tiny):
    training, state, batch = tiny
    update = jax.jit(training.update_best_response)

    def learned(changed):
        """Parameters after an update in which these decisions were others."""
        action = jnp.where(changed, 1 - batch.action, batch.action)
        log_prob = jnp.where(changed, batch.log_prob - 1, batch.log_prob)
        return update(state, jax.random.key(2), batch.replace(action=action, log_prob=log_prob))[0].best_response

    expected = learned(jnp.zeros_like(batch.plays_best_response))
    assert not batch.plays_best_response.all()
    assert_equal(learned(~batch.plays_best_response), expected)
    assert (np.diff(flat(learned(batch.plays_best_response), expected), axis=0) != 0).any()


def test_average_policy_learns_from_the_filled_places_of_the_reservoir_only(tiny):
    training, state, batch = tiny
    obs, legal, action = batch.obs[0, 0], batch.legal[0, 0], batch.action[0, 0]  # [R = 1, ...]
    reservoir = reservoir_insert(jax.random.key(0), state.reservoir, obs, legal, action, jnp.ones(1, bool))
    after, logged = jax.jit(training.update_average)(state.replace(reservoir=reservoir), jax.random.key(3))
    network = ppo_nfsp.MLP(TINY_ARGS.hidden_sizes, 2)
    before = average_loss(network.apply(state.average, obs), legal, action)
    np.testing.assert_allclose(logged["losses/average_loss"], before, rtol=1e-5)
    assert average_loss(network.apply(after.average, obs), legal, action) < before


def test_key_reuse_checker_finds_nothing():
    env, args = resolve_env(TINY_ARGS)
    training = make_train(args, env)
    evaluate = ppo_nfsp.make_evaluate(args, env, lambda params, obs, legal: 1.0 * legal, None)  # noqa: ARG005

    def train_and_evaluate(seed):
        state, _ = training.train(training.init(seed), 2)
        return state, evaluate(None, jax.random.fold_in(state.key, 1))

    with jax.debug_key_reuse(True):
        jax.jit(train_and_evaluate).lower(np.uint32(0))  # the checker looks at the traced program


def test_mirrored_deals_leave_no_luck_between_equal_players():
    env = envs.make("texas_limit_holdem", num_agents=3)
    args = replace(TINY_ARGS, env="texas_limit_holdem", eval_games=30)

    def always_call(params, obs, legal):  # noqa: ARG001
        return jnp.where(legal[:, :1], jnp.array([[1.0, 0, 0, 0]]), jnp.array([[0.0, 0, 0, 1]]))

    scores = jax.jit(ppo_nfsp.make_evaluate(args, env, always_call, None))(None, jax.random.key(0))
    assert set(scores) == {
        f"eval/{name}{ci}"
        for name in ("return_vs_uniform", "win_rate_vs_uniform", "return_vs_call")
        for ci in ("", "_ci")
    }
    np.testing.assert_allclose([scores["eval/return_vs_call"], scores["eval/return_vs_call_ci"]], 0, atol=1e-6)
    assert scores["eval/return_vs_uniform_ci"] > 0.1


def test_exact_return_against_uniform_opponents_is_that_of_mirrored_deals():
    env = envs.make("kuhn_poker", observation="information_state")
    args = replace(TINY_ARGS, eval_games=40_000)

    def lean_on_bets(params, obs, legal):  # noqa: ARG001
        return jnp.broadcast_to(jnp.array([0.2, 0.8]), legal.shape)

    exact = ppo_nfsp.make_evaluate(args, env, lean_on_bets, build_game_tree(env))(None, None)
    sampled = jax.jit(ppo_nfsp.make_evaluate(args, env, lean_on_bets, None))(None, jax.random.key(0))
    difference = abs(exact["eval/return_vs_uniform"] - sampled["eval/return_vs_uniform"])
    assert difference < 2 * sampled["eval/return_vs_uniform_ci"] < 0.05
    assert abs(exact["eval/return_vs_uniform"]) > 0.05


def test_interval_of_the_return_is_that_of_the_mean_over_deals():
    env = envs.make("texas_limit_holdem")
    args = replace(TINY_ARGS, env="texas_limit_holdem", eval_games=512)
    uniform = jax.jit(ppo_nfsp.make_evaluate(args, env, lambda params, obs, legal: 1.0 * legal, None))  # noqa: ARG005
    scores = jax.vmap(uniform, (None, 0))(None, jax.random.split(jax.random.key(0), 64))
    means, half = scores["eval/return_vs_uniform"], scores["eval/return_vs_uniform_ci"]
    np.testing.assert_allclose(1.96 * means.std(ddof=1), half.mean(), rtol=0.3)  # 0.3: four deviations of 64 means
    assert (np.abs(means) < half).mean() > 0.8


def test_policy_of_a_configuration_gives_probabilities_of_legal_actions(kuhn):
    _, args = resolve_env(KUHN_ARGS)
    policy = make_policy(ppo_nfsp.make_config(args))
    params = {"average": jax.tree.map(lambda x: x[0], kuhn.init().average)}
    legal = jnp.array([[True, True], [True, False], [False, True]])
    probabilities = policy(params, jnp.ones((3, 11)), legal)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-6)
    assert not probabilities[~legal].any()


# Arguments


def test_paper_preset_sets_the_papers_values_and_flags_win_over_it():
    args = asdict(parse_args(["--preset", "paper", "--gamma", "0.5", "--total-timesteps", "2e6"]))
    expected = PAPER | {"preset": "paper", "gamma": 0.5, "total_timesteps": 2_000_000}
    assert {name: args[name] for name in expected} == expected
    others = {name: value for name, value in args.items() if name not in expected}
    assert others == {name: value for name, value in asdict(Args()).items() if name not in expected}
