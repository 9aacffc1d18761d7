"""Deep CFR: counterfactual regret minimization with networks in place of tables.

    python solvers/deep_cfr.py --env leduc_holdem
    python solvers/deep_cfr.py --env leduc_holdem --average single --num-seeds 5
    python solvers/deep_cfr.py --env texas_limit_holdem

Papers: Brown, Lerer, Gross and Sandholm 2019, "Deep counterfactual regret minimization" (arXiv 1811.00164); Steinberger
2019, "Single deep counterfactual regret minimization" (arXiv 1901.07621) for `--average single`.

Exploitability of the average network, seeds 100 to 104, mean and 95 % interval: Leduc 0.154 ± 0.023 after 60 iterations
(the default) and 0.126 ± 0.022 after 120, Kuhn 0.006 ± 0.002 after 60. README.md has the table.

How it works: in every iteration, for either player in turn, `num_traversals` games are walked through by external
sampling: the player takes all actions at his own nodes, the opponent and chance draw one. The advantages found go to
the player's reservoir, and a network learns them from scratch, later iterations weighing more. Where he thinks some
advantages positive he plays in proportion to them, else the largest. What converges is the average over iterations: a
further network learns it from the strategies that the opponents were met with, or (`--average single`) it is taken over
all advantage networks, exactly, which needs a game whose tree fits.

The walks run on the device, through the game itself: `num_lanes` depth-first searches in lock-step, each with a stack
of its own.

Deviations from the paper: a network learns advantages in units of their own spread, with a step size that falls to 0.
In games where a walk through all own actions would be too long, only a random part of the own nodes is expanded
(`max_leaves`); at the others the player draws one action, and learns nothing. The advantages sampled keep their
expectation; the opponents' strategies are then met as often as the player's own draws lead to them, so that the average
network weighs iterations by that too. Both play uniformly in all of the first iteration.

Letters: B lanes, D frames of a stack, C places of a reservoir, A actions, O observation features, I information sets, S
seeds. Players are numbered by who acts first in an episode, 0, not by seat.
"""

import argparse
import contextlib
import csv
import dataclasses
import errno
import importlib.metadata
import io
import json
import math
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import serialization, struct
from jax.sharding import AxisType, PartitionSpec
from scipy.special import stdtrit
from tqdm import tqdm

import envs
from solvers.exploitability import (
    action_values,
    evaluate_policy,
    look_up_policy,
    make_policy_table,
    merge_observations,
    number_observations,
    sequence_payoffs,
    sequence_reach,
)
from solvers.game_tree import GameTree, build_game_tree, uniform_policy

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "wandb")  # whose versions a run writes down
PIECE_BYTES = 2**25  # of a checkpoint, written at a time


# repeated block: number_of_steps (tests/test_repeated_blocks.py)
def number_of_steps(text: str) -> int:
    """Reads a whole number, also written as 1e7."""
    try:
        if float(text) == int(float(text)):
            return int(float(text))
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is not a whole number, such as 10000000 or 1e7")


Steps = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: number_of_steps(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]


@dataclass(frozen=True)
class Args:
    env: str = "kuhn_poker"
    """game of two players who take turns, one of `envs.available_envs()`"""
    env_kwargs: str = "{}"
    """parameters of the game as JSON, such as '{"num_ranks": 5}'"""
    observation: Literal["information_state", "paper"] | None = None
    """what the networks see; by default `information_state` where the game has one, else `paper`"""
    preset: Literal["tuned", "paper"] = "tuned"
    """`paper` sets what the BluffJAX paper used; flags given beside it win"""
    seed: int = 1
    """first seed; seed i of a run is the run of --seed + i alone"""
    num_seeds: int = 1
    """seeds trained at once"""
    iterations: Steps = 60
    """iterations of CFR"""

    num_traversals: Steps = 1536
    """games walked through for each player in an iteration"""
    num_lanes: int = 256
    """B, walks side by side; divides --num-traversals"""
    max_leaves: int = 1000
    """mean number of leaves of a walk up to which all own nodes are expanded; in larger games a part of them is"""
    max_depth: int = 16
    """D, own nodes on a path that are expanded at most"""
    memory_size: Steps = 1_000_000
    """C, samples kept of each player's advantages, and of strategies"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """widths of the hidden layers of all networks"""
    advantage_steps: int = 300
    """Adam's steps for an advantage network"""
    strategy_steps: int = 2000
    """Adam's steps for the average network"""
    batch_size: int = 2048
    """samples of a step"""
    learning_rate: float = 2e-3
    """Adam's step size at the first step of a training"""
    anneal_lr: bool = True
    """let the step size fall linearly to 0 within each training"""
    max_grad_norm: float = 1.0
    """largest gradient norm"""
    average: Literal["network", "single"] = "network"
    """the policy proposed: a network that learns the average strategy, in any game, or the exact average of all
    iterations' ones, a little better, where the game's tree fits"""

    log_interval: int = 0
    """iterations between log steps, where the average network is trained; 0 gives about 10 log steps"""
    eval_games: int = 4096
    """games played against each kind of opponent at a log step, where exploitability is not exact"""
    runs: Path = Path("runs")
    """folder that gets the run's folder"""
    resume: Path | None = None
    """folder of a killed run to go on with, under its own arguments"""
    wandb_mode: Literal["offline", "online", "disabled"] = "offline"
    """offline needs neither account nor network"""
    wandb_project: str = "bluffjax"
    """W&B project"""


PAPER = {
    "iterations": 50, "num_traversals": 100, "num_lanes": 100, "memory_size": 100_000, "advantage_steps": 200,
    "strategy_steps": 200, "anneal_lr": False, "learning_rate": 1e-3,
}  # fmt: skip

TRAINING_STREAM = 0xDEE9  # keeps the draws of the average network apart from those of the iterations
EVALUATION_STREAM = 0xE7A1  # and those of evaluations
CHUNK = 64  # lock-steps between insertions into the reservoirs


# ---------------------------------------------------------------------------------------------------------- networks


class MLP(nn.Module):
    """Hidden layers of a linear map, LayerNorm and ReLU, and a linear head."""

    hidden_sizes: tuple[int, ...]
    num_outputs: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [..., O] -> [..., num_outputs]
        for size in self.hidden_sizes:
            x = nn.relu(nn.LayerNorm()(nn.Dense(size)(x)))
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.orthogonal(0.01))(x)


# repeated block: masked_logits (tests/test_repeated_blocks.py)
def masked_logits(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """Logits [..., A] with illegal actions at -1e9: probability 0, and finite entropy and gradients."""
    return jnp.where(legal, logits, -1e9)


def match_advantages(advantages: jax.Array, legal: jax.Array) -> jax.Array:
    """Regret matching: probabilities [..., A] in proportion to positive advantages; the largest where none is."""
    positive = jnp.where(legal, jnp.maximum(advantages, 0), 0)
    total = positive.sum(-1, keepdims=True)
    largest = jax.nn.one_hot(jnp.where(legal, advantages, -jnp.inf).argmax(-1), legal.shape[-1])
    return jnp.where(total > 0, positive / jnp.where(total > 0, total, 1), largest)


def uniform_over(legal: jax.Array) -> jax.Array:
    """Probabilities [..., A]."""
    return legal / jnp.maximum(legal.sum(-1, keepdims=True), 1)


def make_policy(config: dict) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """The policy that a run proposes.

    Args:
        config: what `config.json` of the run folder holds.

    Returns:
        `policy(params, obs [..., O], legal [..., A]) -> probabilities [..., A]`; `params` of one seed as in
        `params.msgpack`.
    """
    args = config["args"]
    if args["average"] == "single":
        return look_up_policy
    network = MLP(tuple(args["hidden_sizes"]), make_env(args).num_actions)

    def policy(params, obs, legal):
        return jax.nn.softmax(masked_logits(network.apply(params, obs), legal))

    return policy


# repeated block: make_env (tests/test_repeated_blocks.py)
def make_env(args: dict):
    """The game that the arguments name; `env_kwargs` is a dict here."""
    return envs.make(args["env"], observation=args["observation"], **args["env_kwargs"])


# ---------------------------------------------------------------------------------------------------------- reservoir


@struct.dataclass
class Sample:
    """What is learned at information sets: advantages or probabilities of the actions."""

    obs: jax.Array  # [..., O] float16 in a reservoir: half the memory, exact up to 2,048
    legal: jax.Array  # [..., A] bool
    target: jax.Array  # [..., A]
    iteration: jax.Array  # [...] int32, from 1


@struct.dataclass
class Reservoir:
    """Uniform sample of C items from a stream (Vitter 1985, algorithm R)."""

    items: Sample  # [C, ...]
    count: jax.Array  # [2] uint32, items seen so far: high and low word

    @property
    def size(self) -> jax.Array:
        """How many of the C places are filled."""
        capacity = self.items.iteration.shape[0]
        return jnp.where(self.count[0] > 0, capacity, jnp.minimum(self.count[1], capacity)).astype(jnp.int32)


def make_reservoir(capacity: int, obs_shape: tuple[int, ...], num_actions: int) -> Reservoir:
    """An empty reservoir."""
    items = Sample(
        obs=jnp.zeros((capacity, *obs_shape), jnp.float16),
        legal=jnp.zeros((capacity, num_actions), bool),
        target=jnp.zeros((capacity, num_actions)),
        iteration=jnp.zeros(capacity, jnp.int32),
    )
    return Reservoir(items, jnp.zeros(2, jnp.uint32))


def reservoir_insert(key: jax.Array, reservoir: Reservoir, items: Sample, valid: jax.Array) -> Reservoir:
    """Shows a batch to the reservoir, as if item by item: item n (from 0) stays with probability C / (n + 1).

    Args:
        key: PRNG key, consumed.
        reservoir: of capacity C.
        items: [n, ...].
        valid: [n] bool, items that belong to the stream.
    """
    capacity, n = reservoir.items.iteration.shape[0], valid.shape[0]
    accept_key, slot_key = jax.random.split(key)
    high, low = reservoir.count[0], reservoir.count[1]
    position = jnp.cumsum(valid, dtype=jnp.uint32) - 1  # among the valid ones
    seen = high.astype(jnp.float32) * 2.0**32 + low.astype(jnp.float32) + position.astype(jnp.float32) + 1
    fills = (high == 0) & (low < capacity) & (position < capacity - jnp.minimum(low, capacity))
    accepted = valid & (fills | (jax.random.uniform(accept_key, (n,)) < capacity / seen))
    slot = jnp.where(fills, (low + position).astype(jnp.int32), jax.random.randint(slot_key, (n,), 0, capacity))
    slot = jnp.where(accepted, slot, capacity)  # one past the end: dropped
    order = jnp.arange(n, dtype=jnp.int32)
    last = jnp.full(capacity, -1, jnp.int32).at[slot].max(order, mode="drop")  # of several on a slot the last stays
    slot = jnp.where(last[jnp.minimum(slot, capacity - 1)] == order, slot, capacity)
    new_low = low + valid.sum(dtype=jnp.uint32)
    largest = float(jnp.finfo(jnp.float16).max)
    items = items.replace(obs=jnp.clip(items.obs, -largest, largest).astype(jnp.float16))
    return Reservoir(
        jax.tree.map(lambda kept, new: kept.at[slot].set(new, mode="drop"), reservoir.items, items),
        jnp.stack([high + (new_low < low), new_low]),
    )


# --------------------------------------------------------------------------------------------------------- traversals


@struct.dataclass
class Frame:
    """An own node whose actions are being tried, one after the other."""

    state: Any  # without its key
    obs: jax.Array  # [..., O]
    legal: jax.Array  # [..., A] bool
    policy: jax.Array  # [..., A]
    values: jax.Array  # [..., A], of the actions tried so far
    action: jax.Array  # [...] int32, which is being tried


@struct.dataclass
class Walks:
    """Depth-first searches of B lanes."""

    state: Any  # [B, ...]
    first_player: jax.Array  # [B] int32, seat that opened the episode
    value: jax.Array  # [B], return of the traverser from what has been tried last
    returns: jax.Array  # [B] bool: `value` goes to the frame on top; else `state` is a node to go on from
    frames: Frame  # [B, D, ...]
    depth: jax.Array  # [B] int32, frames on the stack
    left: jax.Array  # [B] int32, traversals to finish
    steps: jax.Array  # [] int32, env steps taken


def rows(mask: jax.Array, new, old):
    """`new` in the lanes [B] where `mask`, else `old`, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, old)


def draw_action(uniform: jax.Array, policy: jax.Array) -> jax.Array:
    """int32[B], an action of each row of probabilities [B, A] by numbers [B] in [0, 1)."""
    cumulative = jnp.cumsum(policy, -1)
    below = cumulative <= uniform[:, None] * cumulative[:, -1:]
    return jnp.minimum(below.sum(-1), policy.shape[-1] - 1).astype(jnp.int32)


def start_walks(env, key: jax.Array, num_lanes: int, max_depth: int, traversals_each: int) -> Walks:
    """B lanes at the first states of their first episodes; the key is consumed."""
    state, _ = jax.vmap(env.reset)(jax.random.split(key, num_lanes))
    A = env.num_actions
    empty = Frame(
        state=state.replace(key=None),
        obs=jnp.zeros((num_lanes, *env.obs_shape)),
        legal=jnp.zeros((num_lanes, A), bool),
        policy=jnp.zeros((num_lanes, A)),
        values=jnp.zeros((num_lanes, A)),
        action=jnp.zeros(num_lanes, jnp.int32),
    )
    return Walks(
        state=state,
        first_player=state.current_player,
        value=jnp.zeros(num_lanes),
        returns=jnp.zeros(num_lanes, bool),
        frames=jax.tree.map(lambda x: jnp.zeros((num_lanes, max_depth, *x.shape[1:]), x.dtype), empty),
        depth=jnp.zeros(num_lanes, jnp.int32),
        left=jnp.full(num_lanes, traversals_each),
        steps=jnp.int32(0),
    )


def walk(
    env,
    strategy: Callable,
    traverser: jax.Array,
    iteration: jax.Array,
    expand_probability: float,
    walks: Walks,
    key: jax.Array,
) -> tuple[Walks, tuple[Sample, jax.Array], tuple[Sample, jax.Array]]:
    """One lock-step of external sampling: every lane plays an action, or hands a finished frame's value up.

    Args:
        env: the game.
        strategy: `strategy(player [B], obs [B, O], legal [B, A]) -> probabilities [B, A]`.
        traverser: int32, the player whose advantages are sampled.
        iteration: int32, from 1; goes into the samples.
        expand_probability: of an own node, see `choose_expand_probability`.
        walks: B lanes.
        key: PRNG key, consumed.

    Returns:
        The lanes; samples [B] of advantages, and which are there; of the opponent's strategy, and which are there.
    """
    action_key, expand_key, reset_key = jax.random.split(key, 3)
    B, D = walks.frames.action.shape
    lanes = jnp.arange(B)
    active = walks.left > 0

    # A value comes back to the frame on top: the next action is tried, or the frame is finished.
    top = jnp.maximum(walks.depth - 1, 0)
    frame = jax.tree.map(lambda x: x[lanes, top], walks.frames)
    is_tried = jnp.arange(env.num_actions)[None] == frame.action[:, None]
    values = jnp.where(is_tried, walks.value[:, None], frame.values)
    untried = frame.legal & (jnp.arange(env.num_actions)[None] > frame.action[:, None])
    finishes = walks.returns & ~untried.any(-1)
    expected = (frame.policy * values).sum(-1)
    advantages = jnp.where(frame.legal, values - expected[:, None], 0)

    # Or there is a node to go on from: an own one gets a frame, at the others an action is drawn.
    seat = walks.state.current_player
    player = (seat - walks.first_player) % 2
    obs = jax.vmap(env.observe)(walks.state, seat)
    legal = jax.vmap(env.legal_actions)(walks.state)
    policy = strategy(player, obs, legal)
    is_own = player == traverser
    expands = ~walks.returns & is_own & (walks.depth < D)
    if expand_probability < 1:
        expands &= jax.random.bernoulli(expand_key, expand_probability, (B,))
    drawn = draw_action(jax.random.uniform(action_key, (B,)), policy)
    action = jnp.where(expands, legal.argmax(-1).astype(jnp.int32), drawn)
    action = jnp.where(walks.returns, untried.argmax(-1).astype(jnp.int32), action)

    pushed = Frame(walks.state.replace(key=None), obs, legal, policy, jnp.zeros_like(policy), action)
    changed = rows(expands, pushed, frame.replace(values=values, action=action))
    place = jnp.where(expands, walks.depth, jnp.where(walks.returns & ~finishes, top, D))  # D: nowhere
    frames = jax.tree.map(lambda all_, x: all_.at[lanes, place].set(x, mode="drop"), walks.frames, changed)
    depth = walks.depth + expands - finishes

    origin = rows(walks.returns, frame.state, walks.state.replace(key=None)).replace(key=walks.state.key)
    child, _, _, _, done, info = jax.vmap(env.step_env)(origin, action)
    traverser_seat = (walks.first_player + traverser) % 2
    payoff = info["returns"][lanes, traverser_seat]
    is_met = active & ~walks.returns & ~is_own
    returns = finishes | done
    is_over = returns & (depth == 0)
    fresh, _ = jax.vmap(env.reset)(jax.random.split(reset_key, B))
    state = rows(is_over, fresh.replace(key=None), child.replace(key=None)).replace(key=fresh.key)
    walks = walks.replace(
        state=state,
        first_player=jnp.where(is_over, fresh.current_player, walks.first_player),
        value=jnp.where(finishes, expected, payoff),
        returns=returns & ~is_over,
        frames=frames,
        depth=depth,
        left=walks.left - (is_over & active),
        steps=walks.steps + (active & ~finishes).sum(dtype=jnp.int32),
    )
    iterations = jnp.full(B, iteration)
    return (
        walks,
        (Sample(frame.obs, frame.legal, advantages, iterations), active & finishes),
        (Sample(obs, legal, policy, iterations), is_met),
    )


def choose_expand_probability(env, key: jax.Array, max_leaves: int, num_games: int = 1024) -> float:
    """Largest probability of expanding an own node with which a walk has at most `max_leaves` leaves on average.

    A walk that expands own nodes with n actions with probability ρ has E[prod (1 + ρ (n - 1))] leaves, the product over
    the own nodes of a game at random: this is averaged over games of uniform play.
    """
    grid = np.append(np.logspace(-4, 0, 81)[:-1], 1.0).astype(np.float32)

    @jax.jit
    def mean_leaves(key):
        key, deal_key = jax.random.split(key)
        state, _ = jax.vmap(env.reset)(jax.random.split(deal_key, num_games))

        def step(carry):
            state, done, leaves, key = carry
            key, action_key = jax.random.split(key)
            legal = jax.vmap(env.legal_actions)(state)
            action = draw_action(jax.random.uniform(action_key, (num_games,)), uniform_over(legal))
            branches = 1 + jnp.asarray(grid)[None] * jnp.maximum(legal.sum(-1) - 1, 0)[:, None]  # [games, grid]
            acts = state.current_player[:, None] == jnp.arange(2)[None]
            leaves *= jnp.where(acts[:, :, None], branches[:, None], 1)
            state, _, _, _, done, _ = jax.vmap(env.step_env)(state, action)
            return state, done, leaves, key

        carry = (state, jnp.zeros(num_games, bool), jnp.ones((num_games, 2, len(grid))), key)
        return jax.lax.while_loop(lambda carry: ~carry[1].all(), step, carry)[2].mean(0).max(0)

    fits = np.flatnonzero(np.asarray(mean_leaves(key)) <= max_leaves)
    return float(grid[fits[-1]]) if len(fits) else float(grid[0])


# ---------------------------------------------------------------------------------------------------------- algorithm


@struct.dataclass
class TrainState:
    """All that a run needs to go on, for one seed."""

    key: jax.Array
    iteration: jax.Array  # int32, iterations done
    advantage_nets: tuple[Any, Any]  # parameters, of either player
    advantages: tuple[Reservoir, Reservoir]
    strategies: Reservoir
    average_net: Any  # parameters as of the last log step
    cumulative_policy: jax.Array  # [I, A] sum over iterations of t x reach x policy; I = 0 without a tree
    env_steps: jax.Array  # [2] uint32, taken by walks: high and low word
    bad_iteration: jax.Array  # int32, first iteration with a number that is not finite, else -1


def advantage_loss(prediction: jax.Array, sample: Sample, scale: jax.Array, iteration: jax.Array) -> jax.Array:
    """Squared error over legal actions, weighted by iteration: E[t_i / t sum_a (f(a) - A(a) / scale)²].

    Args:
        prediction: [n, A], in units of `scale`.
        sample: [n].
        scale: standard size of the advantages.
        iteration: t, the current one.
    """
    error = jnp.where(sample.legal, prediction - sample.target / scale, 0)
    return (sample.iteration / iteration * (error**2).sum(-1)).mean()


def strategy_loss(logits: jax.Array, sample: Sample, iteration: jax.Array) -> jax.Array:
    """Cross-entropy with the strategies sampled, weighted by iteration: -E[t_i / t sum_a σ(a) log π(a)]."""
    log_policy = jax.nn.log_softmax(masked_logits(logits, sample.legal))
    return -(sample.iteration / iteration * jnp.where(sample.legal, sample.target * log_policy, 0).sum(-1)).mean()


class Training(NamedTuple):
    """Functions of one seed; all can be jitted."""

    init: Callable  # (seed) -> state
    train: Callable  # (state, num_iterations) -> state, what the last iteration logs
    fit_average: Callable  # (state) -> state, loss


def make_train(args: Args, env, tree: GameTree | None, expand_probability: float = 1.0) -> Training:
    """Builds the training of one seed."""
    net = MLP(args.hidden_sizes, env.num_actions)

    def strategy(nets, iteration, player, obs, legal):
        """Probabilities [..., A] of players [...]; uniform in the first iteration."""
        advantages = [net.apply(params, obs) for params in nets]
        advantages = jnp.where((player == 0)[..., None], *advantages)
        return jnp.where(iteration == 1, uniform_over(legal), match_advantages(advantages, legal))

    def walk_all(key, nets, traverser, iteration, advantages, strategies):
        """All traversals of one player."""
        start_key, key = jax.random.split(key)
        each = args.num_traversals // args.num_lanes
        walks = start_walks(env, start_key, args.num_lanes, args.max_depth, each)
        play = partial(walk, env, partial(strategy, nets, iteration), traverser, iteration, expand_probability)

        def chunk(carry):
            walks, advantages, strategies, key = carry
            key, walk_key, advantage_key, strategy_key = jax.random.split(key, 4)

            def step(walks, key):
                walks, *samples = play(walks, key)
                return walks, samples

            walks, samples = jax.lax.scan(step, walks, jax.random.split(walk_key, CHUNK))
            found, met = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
            advantages = reservoir_insert(advantage_key, advantages, *found)
            return walks, advantages, reservoir_insert(strategy_key, strategies, *met), key

        carry = (walks, advantages, strategies, key)
        walks, advantages, strategies, _ = jax.lax.while_loop(lambda carry: (carry[0].left > 0).any(), chunk, carry)
        return advantages, strategies, walks.steps

    def fit(key, reservoir, loss_fn, num_steps):
        """A network trained from scratch; its parameters, and the mean loss of the last tenth of the steps."""
        init_key, key = jax.random.split(key)
        rate = args.learning_rate
        schedule = optax.linear_schedule(rate, 0.0, num_steps) if args.anneal_lr else rate
        optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.adam(schedule))
        params = net.init(init_key, reservoir.items.obs[:1].astype(jnp.float32))

        def step(carry, key):
            params, optimizer_state = carry
            index = jax.random.randint(key, (args.batch_size,), 0, jnp.maximum(reservoir.size, 1))
            batch = jax.tree.map(lambda x: x[index], reservoir.items)
            batch = batch.replace(obs=batch.obs.astype(jnp.float32))
            loss, gradient = jax.value_and_grad(lambda params: loss_fn(net.apply(params, batch.obs), batch))(params)
            change, optimizer_state = optimizer.update(gradient, optimizer_state)
            return (optax.apply_updates(params, change), optimizer_state), loss

        carry = (params, optimizer.init(params))
        (params, _), loss = jax.lax.scan(step, carry, jax.random.split(key, num_steps))
        return params, loss[-max(num_steps // 10, 1) :].mean()

    def fit_advantages(key, reservoir, iteration):
        known = jnp.arange(reservoir.items.iteration.shape[0]) < reservoir.size
        squares = jnp.where(known[:, None], reservoir.items.target, 0) ** 2
        scale = jnp.sqrt(squares.sum() / jnp.maximum((known[:, None] & reservoir.items.legal).sum(), 1)) + 1e-8
        loss_fn = partial(advantage_loss, scale=scale, iteration=iteration)
        return fit(key, reservoir, loss_fn, args.advantage_steps)

    def init(seed):
        key, *net_keys = jax.random.split(jax.random.key(seed), 4)
        params = [net.init(key, jnp.zeros((1, *env.obs_shape))) for key in net_keys]
        num_infosets = 0 if tree is None else tree.num_infosets
        reservoirs = [make_reservoir(args.memory_size, env.obs_shape, env.num_actions) for _ in range(3)]
        return TrainState(
            key=key,
            iteration=jnp.int32(0),
            advantage_nets=tuple(params[:2]),
            advantages=tuple(reservoirs[:2]),
            strategies=reservoirs[2],
            average_net=params[2],
            cumulative_policy=jnp.zeros((num_infosets, env.num_actions)),
            env_steps=jnp.zeros(2, jnp.uint32),
            bad_iteration=jnp.int32(-1),
        )

    def iterate(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        key, *keys = jax.random.split(state.key, 5)
        iteration = state.iteration + 1
        nets, reservoirs, strategies = list(state.advantage_nets), list(state.advantages), state.strategies
        losses, env_steps = [], jnp.uint32(0)
        for p in range(2):
            # WALK
            reservoirs[p], strategies, steps = walk_all(
                keys[2 * p], nets, jnp.int32(p), iteration, reservoirs[p], strategies
            )
            env_steps += steps.astype(jnp.uint32)
            # LEARN
            nets[p], loss = fit_advantages(keys[2 * p + 1], reservoirs[p], iteration)
            losses.append(loss)
        # AVERAGE
        cumulative = state.cumulative_policy
        if tree is not None:
            obs, legal = jnp.asarray(tree.observations), jnp.asarray(tree.legal_actions)
            policy = strategy(nets, iteration + 1, jnp.asarray(tree.infoset_player), obs, legal)
            reach = sequence_reach(tree, policy)[tree.num_agents :].reshape(policy.shape)
            cumulative = cumulative + iteration * reach
        loss = jnp.stack(losses)
        numbers = jax.tree.leaves((loss, nets))
        finite = jnp.stack([jnp.isfinite(number).all() for number in numbers]).all()
        low = state.env_steps[1] + env_steps
        state = state.replace(
            key=key,
            iteration=iteration,
            advantage_nets=tuple(nets),
            advantages=tuple(reservoirs),
            strategies=strategies,
            cumulative_policy=cumulative,
            env_steps=jnp.stack([state.env_steps[0] + (low < env_steps), low]),
            bad_iteration=jnp.where((state.bad_iteration < 0) & ~finite, iteration, state.bad_iteration),
        )
        logged = {
            "losses/advantage_loss": loss.mean(),
            "charts/advantage_memory": jnp.stack([r.size for r in reservoirs]).mean(dtype=jnp.float32),
            "charts/env_steps": state.env_steps[0] * 2.0**32 + state.env_steps[1].astype(jnp.float32),
        }
        return state, logged

    def train(state: TrainState, num_iterations: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        """Runs `num_iterations` (traced: any number, one compilation)."""
        logged = jax.eval_shape(lambda state: iterate(state)[1], state)
        logged = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), logged)
        return jax.lax.fori_loop(0, num_iterations, lambda _, carry: iterate(carry[0]), (state, logged))

    def fit_average(state: TrainState) -> tuple[TrainState, jax.Array]:
        key = jax.random.fold_in(state.key, TRAINING_STREAM)
        loss_fn = partial(strategy_loss, iteration=state.iteration)
        params, loss = fit(key, state.strategies, loss_fn, args.strategy_steps)
        finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves((loss, params))]).all()
        bad = jnp.where((state.bad_iteration < 0) & ~finite, state.iteration, state.bad_iteration)
        return state.replace(average_net=params, bad_iteration=bad), loss

    return Training(init, train, fit_average)


# --------------------------------------------------------------------------------------------------------- evaluation


def make_evaluate(args: Args, env, tree: GameTree | None) -> Callable:
    """Builds `evaluate(state, key) -> {name: score}` of the proposed policy of one seed.

    Where the game's tree fits, the scores are exact: the exploitability of the proposed policy, its expected return
    against uniform play, mean over the seats, and the exploitability of the exact average of all advantage networks'
    strategies. Else the policy plays against opponents that play uniformly at random and, where the game names its
    `call_actions`, that always call: the mean return of mirrored deals, played from either seat. `eval/..._ci` is half
    the 95 % interval over deals.
    """
    network = make_policy(make_config(args)) if args.average == "network" else None
    numbers = None if tree is None else number_observations(tree)

    def exact_scores(state, _):
        obs, legal = jnp.asarray(tree.observations), jnp.asarray(tree.legal_actions)
        weights = merge_observations(state.cumulative_policy, numbers)  # what the networks cannot tell apart
        total = weights.sum(-1, keepdims=True)
        single = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), uniform_over(legal))
        proposed = single if network is None else network(state.average_net, obs, legal)
        opponents = sequence_reach(tree, uniform_over(legal))
        _, returns = action_values(tree, sequence_payoffs(tree, opponents), proposed)
        return {
            "eval/exploitability": evaluate_policy(tree, proposed).exploitability,
            "eval/exploitability_single": evaluate_policy(tree, single).exploitability,
            "eval/return_vs_uniform": returns.mean(),
        }

    def always_call(legal):
        """The first of `call_actions` that is legal, else any legal action."""
        calls = legal[..., jnp.array(env.call_actions)]
        action = jnp.array(env.call_actions)[jnp.argmax(calls, axis=-1)]
        return jnp.where(calls.any(-1, keepdims=True), jax.nn.one_hot(action, env.num_actions), uniform_over(legal))

    def play(params, key, opponent):
        """float32 [deals]: the policy's mean return over both seats of each deal."""
        num_deals = max(-(-args.eval_games // 2), 2)
        key, deal_key = jax.random.split(key)
        state, _ = jax.vmap(env.reset)(jnp.repeat(jax.random.split(deal_key, num_deals), 2))
        own = jnp.tile(jnp.arange(2), num_deals)  # the seat that the policy plays

        def step(carry):
            state, _, returns, key = carry
            key, action_key = jax.random.split(key)
            seat = state.current_player
            legal = jax.vmap(env.legal_actions)(state)
            policy = network(params, jax.vmap(env.observe)(state, seat), legal)
            policy = jnp.where((seat == own)[:, None], policy, opponent(legal))
            action = draw_action(jax.random.uniform(action_key, own.shape), policy)
            state, _, reward, _, done, _ = jax.vmap(env.step_env)(state, action)
            return state, done, returns + jnp.take_along_axis(reward, own[:, None], -1)[:, 0], key

        carry = (state, own < 0, jnp.zeros(own.shape), key)
        returns = jax.lax.while_loop(lambda carry: ~carry[1].all(), step, carry)[2]
        return returns.reshape(num_deals, 2).mean(-1)

    def scores_vs_opponents(state, key):
        opponents = {"uniform": uniform_over} | ({"call": always_call} if hasattr(env, "call_actions") else {})
        scores = {}
        for (name, opponent), opponent_key in zip(
            opponents.items(), jax.random.split(key, len(opponents)), strict=True
        ):
            returns = play(state.average_net, opponent_key, opponent)
            half = float(stdtrit(len(returns) - 1, 0.975)) * jnp.std(returns, ddof=1) / jnp.sqrt(len(returns))
            scores |= {f"eval/return_vs_{name}": returns.mean(), f"eval/return_vs_{name}_ci": half}
        return scores

    return scores_vs_opponents if tree is None else exact_scores


# ---------------------------------------------------------------------------------------------------------------- run


# repeated block: atomic_write (tests/test_repeated_blocks.py)
def atomic_write(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file so that a crash at any moment leaves either the old content or the new one.

    Raises:
        OSError: the disk is full or the folder not writable; the message names the file, and the old content stays.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if hasattr(os, "O_DIRECTORY"):  # not on Windows: the new name itself must reach the disk too
            directory = os.open(path.parent, os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


# repeated block: RunLogger (tests/test_repeated_blocks.py)
class RunLogger:
    """Writes what a run measures: `metrics.csv` in the run folder, and one W&B run per seed.

    `metrics.csv` has one row per log step and seed: seed, global_step, wall_time, then the logged names. It is the
    whole record: W&B, which loses its last seconds when a process is killed, is filled from it again on a resume,
    under the same run ids (`wandb_ids.json`). Log a step before writing its checkpoint. Upload offline runs once they
    are complete: uploading, resuming and uploading again shows the steps before the resume twice.
    """

    def __init__(
        self,
        folder: Path,
        config: dict,
        seeds: list[int],
        name: str,
        group: str,
        project: str,
        wandb_mode: str = "offline",
        resume_step: int | None = None,
    ) -> None:
        """Start logging into an existing run folder.

        Args:
            folder: The run folder.
            config: What W&B shows as the configuration; `seed` is set to each run's own.
            seeds: Seed of each entry of the logged arrays.
            name: `<env>__<algo>`; the W&B run of a seed is called `<name>__<seed>`.
            group: W&B group of all seeds.
            project: W&B project.
            wandb_mode: "offline" (no account, no network), "online" or "disabled".
            resume_step: None for a new run, else the global step of the checkpoint: rows after it are cut.

        Raises:
            OSError: The folder is not writable or the disk is full; the message names the file.
            SystemExit: Code 2: W&B is to be online, and there is no login or no connection.
        """
        self.folder, self.path, self.seeds = folder, folder / "metrics.csv", seeds
        self.columns: list[str] = []
        self.wall_time_before = 0.0  # seconds spent before the resume
        self.runs = {}  # seed -> W&B run
        rows = self._cut(resume_step) if resume_step is not None and self.path.exists() else []
        if wandb_mode != "disabled":
            self._start_wandb(config, name, group, project, wandb_mode)
        for row in rows:
            self._log_wandb({column: float(value) for column, value in row.items()})

    def _cut(self, resume_step: int) -> list[dict[str, str]]:
        """Cut the rows after `resume_step` and a line torn by a kill; returns the rows kept."""
        header, *lines = self.path.read_text().split("\n")[:-1] or [""]  # behind the last newline: torn, or nothing
        kept = [line for line in lines if int(line.split(",")[1]) <= resume_step]
        atomic_write(self.path, "".join(line + "\n" for line in [header, *kept] if line).encode())
        rows = list(csv.DictReader([header, *kept]))
        self.columns = header.split(",") if header else []
        self.wall_time_before = float(rows[-1]["wall_time"]) if rows else 0.0
        return rows

    def _start_wandb(self, config: dict, name: str, group: str, project: str, mode: str) -> None:
        ids_path = self.folder / "wandb_ids.json"
        ids = json.loads(ids_path.read_text()) if ids_path.exists() else {}
        ids = {str(seed): ids.get(str(seed), secrets.token_hex(8)) for seed in self.seeds}
        atomic_write(ids_path, json.dumps(ids, indent=1).encode())
        for old in self.folder.glob("wandb/offline-run-*"):  # a resumed run starts over with all rows of metrics.csv
            if not list(old.glob("*.synced")):
                shutil.rmtree(old)
        if not os.access(os.environ.get("HOME", ""), os.W_OK):  # or W&B's service prints that it has no place for logs
            os.environ.setdefault("WANDB_CACHE_DIR", str(self.folder / "wandb" / "cache"))
        import wandb  # here, so that a run with W&B disabled neither needs it nor waits for its import

        self.wandb = wandb
        settings = wandb.Settings(
            mode=mode, silent=True, console="off", symlink=False, use_dot_wandb=False, disable_git=True,
            disable_code=True, save_code=False, x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
            x_save_requirements=False, finish_timeout=60,
        )  # fmt: skip
        try:
            wandb.setup(settings)
            if mode == "online" and not wandb.login(prompt=False):
                raise wandb.Error("not logged in: run `wandb login`, or use --wandb-mode offline")
            for seed in self.seeds:
                self.runs[seed] = wandb.init(
                    dir=self.folder, project=project, group=group, name=f"{name}__{seed}", id=ids[str(seed)],
                    config=config | {"seed": seed}, resume="allow", reinit="create_new", settings=settings,
                )  # fmt: skip
                self.runs[seed].define_metric("*", step_metric="global_step")
        except wandb.Error as error:
            print(f"error: W&B: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(2) from None

    def _log_wandb(self, row: dict[str, float]) -> None:
        if self.runs:
            values = {name: value for name, value in row.items() if name != "seed"}
            try:  # hands the row to W&B's service process; W&B drops a step that it has already
                self.runs[row["seed"]].log(values, step=int(row["global_step"]))
            except Exception as error:
                self._stop_wandb(error)

    def _stop_wandb(self, error: BaseException) -> None:
        """W&B's service process died: no reason to stop training."""
        print(f"warning: W&B stopped ({error}); metrics.csv goes on, --resume fills W&B from it", file=sys.stderr)
        self.runs = {}
        with contextlib.suppress(Exception, SystemExit):
            self.wandb.teardown()  # or W&B's own exit hook prints a trace

    def log(self, global_step: int, wall_time: float, metrics: dict[str, np.ndarray]) -> None:
        """Log one step of all seeds.

        Args:
            global_step: Environment steps so far, larger at every call.
            wall_time: Seconds since this process began; the time before a resume is added here.
            metrics: Name -> [S] values, in the order of `seeds`. The first call fixes the names.

        Raises:
            OSError: The rows could not be written; the message names the file.
            ValueError: The names are not those of the first call.
        """
        start = {"global_step": int(global_step), "wall_time": self.wall_time_before + wall_time}
        arrays = {name: np.asarray(values) for name, values in metrics.items()}
        rows = [
            {"seed": seed, **start, **{name: values[i].item() for name, values in arrays.items()}}
            for i, seed in enumerate(self.seeds)
        ]
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns or list(rows[0]), lineterminator="\n")
        if not self.columns:
            writer.writeheader()
            self.columns = list(rows[0])
        if set(rows[0]) != set(self.columns):
            raise ValueError(f"logged names changed: {sorted(set(rows[0]) ^ set(self.columns))}")
        writer.writerows(rows)  # floats as repr: read back, the same bits
        try:
            with open(self.path, "a", newline="") as file:
                file.write(text.getvalue())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        for row in rows:
            self._log_wandb(row)

    def finish(self, exit_code: int = 0) -> str | None:
        """End all W&B runs of this process; returns the command that uploads them if they are offline."""
        command = f"wandb sync {shlex.quote(str(self.folder / 'wandb'))}"
        offline = any(run.offline for run in self.runs.values())
        try:
            for run in self.runs.values():
                run.finish(exit_code=int(exit_code))  # W&B refuses a bool
            if self.runs:
                self.wandb.teardown()  # waits until the service process has written everything; finish() does not
        except (Exception, SystemExit) as error:
            self._stop_wandb(error)
        return command if offline else None


# repeated block: save_curve (tests/test_repeated_blocks.py)
def save_curve(path: Path, metric: str, title: str, uniform: float | None, unit: str = "env steps") -> None:
    """Draws `curve.png` beside `metrics.csv`: mean and 95 % interval over seeds; finer: scripts/plot.py."""
    import matplotlib  # here, so that no run has to wait for it before it starts

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = list(csv.DictReader(path.read_text().splitlines()))
    steps = sorted({int(row["global_step"]) for row in rows})
    scores = [[float(row[metric]) for row in rows if int(row["global_step"]) == step] for step in steps]
    mean, half = np.transpose([mean_and_interval(score) for score in scores])
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot(steps, mean, label=f"mean of {len(scores[-1])} seeds" if len(scores[-1]) > 1 else "one seed")
    axes.fill_between(steps, mean - half, mean + half, alpha=0.25)
    if uniform is not None:
        axes.axhline(uniform, color="gray", linestyle="--", label="uniform policy")
        axes.set_yscale("log")
    axes.set(xlabel=unit, ylabel=metric.removeprefix("eval/").replace("_", " "), title=title)
    axes.legend()
    figure.savefig(path.with_name("curve.png"), dpi=150)
    plt.close(figure)


# repeated block: mean_and_interval (tests/test_repeated_blocks.py)
def mean_and_interval(scores) -> tuple[float, float]:
    """Mean over seeds and half the width of its 95 % interval (Student's t; 0 for a single seed)."""
    scores = np.asarray(scores, np.float64)
    if len(scores) < 2:
        return float(scores.mean()), 0.0
    return float(scores.mean()), float(stdtrit(len(scores) - 1, 0.975) * scores.std(ddof=1) / np.sqrt(len(scores)))


# repeated block: describe_run (tests/test_repeated_blocks.py)
def describe_run() -> dict:
    """Commit, versions and device, for `config.json`."""
    try:
        git = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
        ).stdout.strip()  # fmt: skip
    except OSError:  # no git
        git = ""
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": git or None,
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "start": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


# repeated block: write_config (tests/test_repeated_blocks.py)
def write_config(folder: Path, config: dict, status: str) -> None:
    atomic_write(folder / "config.json", json.dumps(config | {"status": status}, indent=2).encode())


# repeated block: pack (tests/test_repeated_blocks.py)
def pack(tree) -> Iterator[bytes]:
    """What `flax.serialization.msgpack_restore` reads, piece by piece: all at once would take several times the
    memory of the arrays."""
    if isinstance(tree := serialization.to_state_dict(tree), dict):
        yield b"\xdf" + len(tree).to_bytes(4, "big")  # a map of so many entries
        for name, value in tree.items():
            yield serialization.msgpack_serialize(name)
            yield from pack(value)
    elif getattr(tree, "nbytes", 0) > PIECE_BYTES:  # as flax divides an array that is too large for one entry
        flat, size = np.asarray(tree).reshape(-1), PIECE_BYTES // tree.dtype.itemsize
        pieces = [flat[start : start + size] for start in range(0, len(flat), size)]
        shape, chunks = ({str(i): value for i, value in enumerate(values)} for values in (tree.shape, pieces))
        yield from pack({"__msgpack_chunked_array__": True, "shape": shape, "chunks": chunks})
    else:
        yield serialization.msgpack_serialize(np.asarray(tree) if isinstance(tree, jax.Array) else tree)


class Programs(NamedTuple):
    """The compiled functions of a run, over all seeds and devices; states and scores have a leading axis S."""

    init: Callable  # () -> states
    train: Callable  # (states, num_iterations) -> states, metrics; the states given are consumed
    evaluate: Callable  # (states) -> states, metrics; trains the average network, the states given are consumed


def make_programs(args: Args, env, tree: GameTree | None, expand_probability: float) -> Programs:
    """Puts training on the devices, whole seeds on each: on as many as the seeds can be shared by evenly.

    No random draw depends on their number.
    """
    devices = jax.devices()[: math.gcd(args.num_seeds, len(jax.devices()))]
    if len(devices) < len(jax.devices()):
        print(f"note: --num-seeds {args.num_seeds} uses {len(devices)} of {len(jax.devices())} devices")
    mesh = jax.make_mesh((len(devices),), ("devices",), axis_types=(AxisType.Auto,), devices=devices)
    training = make_train(args, env, tree, expand_probability)
    evaluate = make_evaluate(args, env, tree)
    seeds = np.arange(args.seed, args.seed + args.num_seeds, dtype=np.uint32)

    def over_seeds(function):
        """Maps over S: one after the other where a seed fills the processor, together on accelerators."""
        mapped = partial(jax.lax.map, function) if jax.default_backend() == "cpu" else jax.vmap(function)
        spec = PartitionSpec("devices")
        return jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    def train_all(states, num_iterations):
        repeated = jnp.broadcast_to(num_iterations, args.num_seeds)
        return over_seeds(lambda inputs: training.train(*inputs))((states, repeated))

    def evaluate_one(inputs):
        state, seed = inputs
        logged = {}
        if args.average == "network":
            state, loss = training.fit_average(state)
            logged = {"losses/strategy_loss": loss}
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), EVALUATION_STREAM), state.iteration)
        return state, logged | evaluate(state, key)

    return Programs(
        init=jax.jit(lambda: over_seeds(training.init)(jnp.asarray(seeds))),
        train=jax.jit(train_all, donate_argnums=0),
        evaluate=jax.jit(lambda states: over_seeds(evaluate_one)((states, jnp.asarray(seeds))), donate_argnums=0),
    )


# repeated block: make_config (tests/test_repeated_blocks.py)
def make_config(args: Args) -> dict:
    """What `config.json` holds of the arguments: plain JSON values."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(args).items()}
    return {"args": values | {"env_kwargs": json.loads(args.env_kwargs)}, "script": Path(__file__).name}


def check_args(args: Args) -> None:
    """Raises ValueError for arguments that cannot work, naming the flag, the value and what is allowed."""
    counts = (
        "num_seeds iterations num_traversals num_lanes max_leaves max_depth memory_size advantage_steps strategy_steps "
        "batch_size eval_games"
    )
    for name in counts.split():
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1 is allowed")
    for name in ("learning_rate", "max_grad_norm"):
        if not 0 < getattr(args, name) < np.inf:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: a finite number above 0 is allowed")
    if args.log_interval < 0:
        raise ValueError(f"--log-interval {args.log_interval}: at least 0 is allowed")
    if not args.hidden_sizes or min(args.hidden_sizes) < 1:
        raise ValueError(f"--hidden-sizes {args.hidden_sizes}: one or more widths of at least 1 are allowed")
    if args.num_traversals % args.num_lanes:
        raise ValueError(f"--num-lanes {args.num_lanes}: it has to divide --num-traversals {args.num_traversals}")
    if args.seed < 0 or args.seed + args.num_seeds > 2**31:
        raise ValueError(f"--seed {args.seed}: 0 to 2^31 - --num-seeds is allowed")


def check_memory(args: Args, env) -> None:
    """Raises ValueError where the reservoirs are larger than the memory of the machine or of the devices."""
    stats = jax.local_devices()[0].memory_stats() or {}
    try:
        memory = stats["bytes_limit"] if stats else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (KeyError, AttributeError, ValueError, OSError):  # the system does not tell
        return
    one = jax.eval_shape(lambda: make_reservoir(1, env.obs_shape, env.num_actions)).items
    used = math.gcd(args.num_seeds, len(jax.devices())) if stats else 1  # devices with memory of their own
    seeds = args.num_seeds // used
    item_bytes = 3 * seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(one))
    if args.memory_size * item_bytes > memory:
        raise ValueError(
            f"--memory-size {args.memory_size}: {args.num_seeds} times 3 reservoirs need "
            f"{args.memory_size * item_bytes / 1e9:.1f} GB of {memory / 1e9:.1f} GB here; up to "
            f"{memory // item_bytes // 2} leaves half of it free"
        )


def resolve_env(args: Args):
    """The game, and the arguments with its observation filled in.

    Raises:
        ValueError: an unknown game, a bad parameter, or a game that is not of two players who take turns.
    """
    try:
        kwargs = json.loads(args.env_kwargs)
    except json.JSONDecodeError as error:
        raise ValueError(f"--env-kwargs {args.env_kwargs!r} is not JSON ({error})") from None
    if not isinstance(kwargs, dict) or "observation" in kwargs:
        raise ValueError(
            f"--env-kwargs {args.env_kwargs!r}: an object such as '{{\"num_ranks\": 5}}' is allowed, and the "
            "observation is a flag of its own"
        )
    if args.observation is None:
        plain = make_env({"env": args.env, "env_kwargs": kwargs, "observation": "paper"})
        has_information_state = hasattr(plain, "information_state")
        args = dataclasses.replace(args, observation="information_state" if has_information_state else "paper")
    env = make_env({"env": args.env, "env_kwargs": kwargs, "observation": args.observation})
    if env.api != "aec" or env.num_agents != 2:
        raise ValueError(
            f"--env {args.env}: {env.num_agents} players who act {'in turn' if env.api == 'aec' else 'at once'}; two "
            "who act in turn are allowed"
        )
    return env, args


# repeated block: read_run (tests/test_repeated_blocks.py)
def read_run(folder: Path) -> Args:
    """Arguments of a run folder.

    Raises:
        ValueError: it is no run folder of this script.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        values = config["args"] | {"env_kwargs": json.dumps(config["args"]["env_kwargs"]), "resume": folder}
        values |= {"hidden_sizes": tuple(values["hidden_sizes"]), "runs": Path(values["runs"])}
        return Args(**values)
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        reason = f"config.json has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"--resume {folder}: not the folder of a run of {Path(__file__).name} ({reason})") from None


def parse_args(argv: list[str] | None = None) -> Args:
    """Reads the command line. Flags win over the preset; a resumed run keeps its own arguments.

    Raises:
        ValueError: a flag contradicts the run that is resumed, or the folder is none.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="tuned")
    first.add_argument("--resume", type=Path)
    known, _ = first.parse_known_args(argv)
    default = Args(**PAPER, preset="paper") if known.preset == "paper" else Args()
    if known.resume is not None:
        default = read_run(known.resume)
    args = tyro.cli(Args, default=default, args=argv, description=__doc__)
    if known.resume is not None:
        kept = make_config(default)["args"]
        for name, value in make_config(args)["args"].items():
            if name not in ("resume", "wandb_mode") and value != kept[name]:
                raise ValueError(
                    f"--resume {known.resume} goes on with {name}={kept[name]!r}, "
                    f"and {name}={value!r} would be another run"
                )
    return args


def run(args: Args, env) -> None:
    """Trains and writes the run folder.

    Raises:
        OSError: the run folder cannot be written, or the checkpoint not be read.
        ValueError: the average needs a tree that does not fit.
        FloatingPointError: a loss or a parameter is not finite.
    """
    config = make_config(args) | describe_run()
    name = f"{args.env}__{Path(__file__).stem}"
    folder = args.resume or args.runs / f"{name}__{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    tree = None
    try:
        tree = build_game_tree(env)
        uniform = jax.jit(evaluate_policy)(tree, uniform_policy(tree).astype(jnp.float32)).exploitability
        config["uniform_exploitability"] = float(uniform)
    except ValueError as reason:
        if args.average == "single":
            raise ValueError(f"--average single: its policy is exact only on a game's tree, and {reason}") from None
        tqdm.write(f"scored by games against simple opponents, since exploitability is not exact: {reason}")
    metric = "eval/return_vs_uniform" if tree is None else "eval/exploitability"
    expand_probability = choose_expand_probability(env, jax.random.key(0), args.max_leaves)  # whatever the seed
    if expand_probability < 1:
        print(f"own nodes expanded with probability {expand_probability:.3g}: up to {args.max_leaves} leaves a walk")

    programs = make_programs(args, env, tree, expand_probability)
    log_interval = args.log_interval or -(-args.iterations // 10)
    shapes = jax.eval_shape(programs.init)
    checkpoint_path = folder / "checkpoint.msgpack"
    states = restore_checkpoint(checkpoint_path, shapes) if args.resume else None
    states = programs.init() if states is None else states
    iteration = int(states.iteration[0])

    folder.mkdir(parents=True, exist_ok=True)
    if args.resume:  # of the first start
        first = json.loads((folder / "config.json").read_text())
        config |= {key: first.get(key) for key in ("command", "start")}
    else:
        atomic_write(folder / "script.py", Path(__file__).read_bytes())
    write_config(folder, config, "running")
    print(f"{env} on {config['device']}, run folder {folder}; compiling", flush=True)
    logger, status = None, "failed"
    try:
        logger = RunLogger(
            folder, config, list(range(args.seed, args.seed + args.num_seeds)), name, folder.name, args.wandb_project,
            args.wandb_mode, iteration if args.resume else None,
        )  # fmt: skip
        start = time.perf_counter()
        train = programs.train.lower(states, np.int32(1)).compile()
        evaluate = programs.evaluate.lower(states).compile()
        config["compile_seconds"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        with tqdm(
            total=args.iterations, initial=iteration, unit=" iterations",
            mininterval=0.5 if sys.stderr.isatty() else 30,
        ) as progress:  # fmt: skip
            seconds, steps_before = 0.0, env_steps(states)
            while iteration < args.iterations:
                train_start = time.perf_counter()
                states, logged = jax.block_until_ready(train(states, np.int32(1)))
                seconds += time.perf_counter() - train_start
                iteration += 1
                progress.update(1)
                if iteration % log_interval and iteration < args.iterations:
                    continue
                states, scores = evaluate(states)
                bad_iteration = np.asarray(states.bad_iteration)
                if (bad_iteration >= 0).any():
                    last_good = checkpoint_path if checkpoint_path.exists() else "none yet"
                    raise FloatingPointError(
                        f"iteration {bad_iteration[bad_iteration >= 0].min()}: a loss or a parameter is not finite "
                        f"(last good checkpoint: {last_good})"
                    )
                speed = np.full(args.num_seeds, (env_steps(states) - steps_before) / seconds)
                seconds, steps_before = 0.0, env_steps(states)
                metrics = jax.tree.map(np.asarray, logged | scores) | {"charts/SPS": speed}
                logger.log(iteration, time.perf_counter() - start, metrics)
                save_checkpoint(args, folder, states, tree)
                progress.set_postfix({metric.removeprefix("eval/"): f"{metrics[metric].mean():.4f}"}, refresh=False)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        sync_command = logger.finish(exit_code=status != "finished") if logger else None
        write_config(folder, config | {"end": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, status)

    uniform = config.get("uniform_exploitability")
    save_curve(folder / "metrics.csv", metric, f"{name}, {config['device']}", uniform, "iterations")
    print_scores(folder / "metrics.csv", config)
    print(f"\nrun folder: {folder}")
    if sync_command:
        print(f"upload to W&B: {sync_command}")


def env_steps(states: TrainState) -> float:
    """Env steps of all seeds so far."""
    words = np.asarray(states.env_steps, np.float64)
    return float((words[:, 0] * 2.0**32 + words[:, 1]).sum())


def save_checkpoint(args: Args, folder: Path, states: TrainState, tree: GameTree | None) -> None:
    """Writes `params.msgpack` (the proposed policy, leading axis S) and all of the run's state."""
    params = states.average_net
    if args.average == "single":
        params = make_policy_table(tree, np.asarray(states.cumulative_policy))
    atomic_write(folder / "params.msgpack", pack(params))
    atomic_write(folder / "checkpoint.msgpack", pack(states.replace(key=jax.random.key_data(states.key))))


def restore_checkpoint(path: Path, shapes: TrainState) -> TrainState | None:
    """The states; None where the run was killed before its first checkpoint.

    Raises:
        OSError: the file cannot be read, or is not a checkpoint of this script under the run's arguments.
    """
    if not path.exists():
        return None
    like = shapes.replace(key=jax.eval_shape(jax.random.key_data, shapes.key))
    try:
        states = serialization.from_state_dict(like, serialization.msgpack_restore(path.read_bytes()))
        if jax.tree.map(lambda x: (x.shape, x.dtype), states) != jax.tree.map(lambda x: (x.shape, x.dtype), like):
            raise ValueError("arrays of other shapes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(errno.EINVAL, f"no checkpoint of this script and these arguments ({error})", str(path)) from None
    return jax.device_put(states).replace(key=jax.random.wrap_key_data(states.key))


def print_scores(path: Path, config: dict) -> None:
    """The table that ends a run: scores at the last iteration, over seeds."""
    rows = list(csv.DictReader(path.read_text().splitlines()))
    last = [row for row in rows if row["global_step"] == rows[-1]["global_step"]]
    print(f"\n{'at iteration ' + last[0]['global_step']:28}{'mean':>11}{'± 95 %':>11}{'seeds':>7}")
    for metric in (name for name in last[0] if name.startswith("eval/") and not name.endswith("_ci")):
        mean, half = mean_and_interval([float(row[metric]) for row in last])
        if len(last) == 1:  # over its games, where it has been measured by games
            half = float(last[0].get(f"{metric}_ci", math.nan))
        print(f"{metric:28}{mean:11.4f} {'-' if math.isnan(half) else f'{half:.4f}':>10}{len(last):7}")
    if "uniform_exploitability" in config:
        print(f"{'of the uniform policy':28}{config['uniform_exploitability']:11.4f}")
    print(f"{'env steps/s (median)':28}{np.median([float(row['charts/SPS']) for row in rows]):11,.0f}")


def main(argv: list[str] | None = None) -> None:
    try:
        args = parse_args(argv)
        check_args(args)
        env, args = resolve_env(args)
        check_memory(args, env)
        run(args, env)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error.filename or 'the run folder'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except FloatingPointError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; go on with --resume and the run folder", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
