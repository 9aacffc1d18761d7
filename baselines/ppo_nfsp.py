"""PPO-NFSP: neural fictitious self-play whose best response learns by PPO.

Papers: Heinrich and Silver 2016, "Deep reinforcement learning from self-play in imperfect-information games" (arXiv
1603.01121); Schulman et al. 2017, "Proximal policy optimization algorithms" (arXiv 1707.06347).

    python baselines/ppo_nfsp.py --env kuhn_poker
    python baselines/ppo_nfsp.py --env leduc_holdem --total-timesteps 1e7 --num-seeds 10 --seed 100

Exploitability of the average policy after 1e7 steps, seeds 100 to 109, mean and 95 % interval: Kuhn 0.0073 ± 0.0008
(uniform policy 0.4583), Leduc 0.1143 ± 0.0079 (2.3736); about 100 s a seed on two idle CPU cores. Three seeds with
`--preset paper`: 0.3176 ± 0.0129 and 2.2598 ± 0.0189.

How it works: two networks, a best response and an average policy. At the start of every episode every seat draws which
of the two it plays (the best response with probability `anticipatory_param`) and keeps it to the end. The best response
learns by PPO from its own decisions; they also go to a uniform reservoir, from which the average policy learns by
cross-entropy. The average policy is what converges and what is evaluated.

Deviations from NFSP: PPO in place of DQN. The draw is conditioned on at least one best response at the table: nobody
learns from the other games, and what a best response meets is distributed as before. A strong entropy bonus keeps the
best response soft enough to follow the average policy, so the reservoir gets its actions sharpened (`reservoir_power`).
Large supervised batches.

Letters: T steps of a rollout, E envs, N agents, R seats asked at once (1 where players take turns, N where all act at
once), A actions, O observation features, S seeds, B batch.
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

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import serialization, struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy.special import stdtrit
from tqdm import tqdm

import envs
from solvers.exploitability import (
    action_values,
    evaluate_network,
    evaluate_policy,
    sequence_payoffs,
    sequence_reach,
)
from solvers.game_tree import GameTree, build_game_tree, uniform_policy

PACKAGES = ("jax", "jaxlib", "flax", "optax", "distrax", "numpy", "wandb")  # whose versions a run writes down


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
    """game, one of `envs.available_envs()`"""
    env_kwargs: str = "{}"
    """parameters of the game as JSON, such as '{"num_ranks": 5}'"""
    observation: Literal["information_state", "paper"] | None = None
    """what the networks see; by default `information_state` where the game has one, else `paper`"""
    preset: Literal["tuned", "paper"] = "tuned"
    """`paper` sets the hyperparameters of the BluffJAX paper; flags given beside it win"""
    seed: int = 1
    """first seed; seed i of a run is the run of --seed + i alone"""
    num_seeds: int = 1
    """seeds trained at once"""
    total_timesteps: Steps = 3_000_000
    """env steps of each seed, rounded down to whole updates"""

    num_envs: int = 256
    """E, games played side by side"""
    num_steps: int = 16
    """T, steps of each game between updates"""
    hidden_sizes: tuple[int, ...] = (128, 128)
    """widths of the hidden layers of both networks"""

    learning_rate: float = 2e-3
    """Adam's step size of the best response"""
    anneal_lr: bool = False
    """let the best response's step size fall linearly to 0"""
    gamma: float = 1.0
    """discount per own decision"""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation"""
    update_epochs: int = 4
    """passes over a rollout"""
    num_minibatches: int = 4
    """minibatches a pass; divides --num-envs"""
    clip_coef: float = 0.2
    """clip range of the probability ratio"""
    vf_clip_coef: float = 0.0
    """clip range of the value, 0 for none"""
    ent_coef: float = 0.2
    """weight of the entropy bonus in the first update, for advantages of unit variance"""
    ent_coef_end: float = 0.1
    """weight of the entropy bonus in the last update, linear in between"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """largest gradient norm of the best response"""

    anticipatory_param: float = 0.1
    """η, probability with which a seat plays its best response"""
    reservoir_power: float = 4.0
    """the reservoir gets actions of (best response)^power, normalized: the entropy bonus keeps the best response soft,
    so that it can follow the others, and the power takes the softness out again; 1 is the best response itself"""
    reservoir_size: Steps = 500_000
    """decisions kept for the average policy"""
    avg_learning_rate: float = 1e-3
    """Adam's step size of the average policy"""
    anneal_avg_lr: bool = True
    """let the average policy's step size fall linearly to 0"""
    avg_steps: int = 8
    """supervised steps per update"""
    avg_batch_size: int = 2048
    """decisions in a supervised step"""

    log_interval: int = 0
    """updates between log steps; 0 gives about 100 log steps"""
    checkpoint_interval: int = 5
    """log steps between checkpoints"""
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
    coordinator_address: str | None = None
    """host:port of process 0, to train on several hosts; start the same command on each"""
    num_processes: int = 1
    """number of hosts"""
    process_id: int = 0
    """which of them this is"""


PAPER = {
    "total_timesteps": 10_000_000, "num_envs": 1024, "num_steps": 64, "hidden_sizes": (128, 128),
    "learning_rate": 3e-5, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "update_epochs": 4,
    "num_minibatches": 4, "clip_coef": 0.2, "vf_clip_coef": 0.2, "ent_coef": 0.0, "ent_coef_end": 0.0, "vf_coef": 1.0,
    "max_grad_norm": 0.5, "anticipatory_param": 0.1, "reservoir_power": 1.0, "reservoir_size": 100_000,
    "avg_learning_rate": 3e-4, "anneal_avg_lr": False, "avg_steps": 2, "avg_batch_size": 256,
}  # fmt: skip


PIECE_BYTES = 2**25  # of a checkpoint, written at a time
EVALUATION_STREAM = 0xE7A1  # keeps the draws of evaluations apart from those of training


# ---------------------------------------------------------------------------------------------------------- networks


class MLP(nn.Module):
    """Hidden layers with ReLU and a linear head (orthogonal initialization, as in CleanRL)."""

    hidden_sizes: tuple[int, ...]
    num_outputs: int
    head_scale: float = 0.01

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [..., O] -> [..., num_outputs]
        for size in self.hidden_sizes:
            x = nn.relu(nn.Dense(size, kernel_init=nn.initializers.orthogonal(np.sqrt(2)))(x))
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.orthogonal(self.head_scale))(x)


class BestResponse(nn.Module):
    """Policy logits [..., A] and value [...] from one torso."""

    hidden_sizes: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = MLP(self.hidden_sizes, self.num_actions + 1)(obs)
        return outputs[..., :-1], outputs[..., -1]


# repeated block: masked_logits (tests/test_repeated_blocks.py)
def masked_logits(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """Logits [..., A] with illegal actions at -1e9: probability 0, and finite entropy and gradients."""
    return jnp.where(legal, logits, -1e9)


def make_policy(config: dict) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """The policy that a run proposes, its average policy.

    Args:
        config: what `config.json` of the run folder holds.

    Returns:
        `policy(params, obs [..., O], legal [..., A]) -> probabilities [..., A]`; `params` of one seed as in
        `params.msgpack`.
    """
    env = make_env(config["args"])
    network = MLP(tuple(config["args"]["hidden_sizes"]), env.num_actions)

    def policy(params, obs, legal):
        return jax.nn.softmax(masked_logits(network.apply(params["average"], obs), legal))

    return policy


# repeated block: make_env (tests/test_repeated_blocks.py)
def make_env(args: dict):
    """The game that the arguments name; `env_kwargs` is a dict here."""
    return envs.make(args["env"], observation=args["observation"], **args["env_kwargs"])


@dataclass(frozen=True)
class SeatsToAct:
    """A game with an axis R of the seats that are asked at once: one where players take turns, else all."""

    env: Any

    @property
    def takes_turns(self) -> bool:
        return self.env.api == "aec"

    def reset(self, key: jax.Array):
        """State; observations [R, O]."""
        state, obs = self.env.reset(key)
        return state, obs[None] if self.takes_turns else obs

    def step(self, state, action: jax.Array):
        """`env.step` of actions [R], with observations [R, O]."""
        state, obs, *rest = self.env.step(state, action[0] if self.takes_turns else action)
        return state, obs[None] if self.takes_turns else obs, *rest

    def step_env(self, state, action: jax.Array):
        """`env.step_env` of actions [R], with observations [R, O]."""
        state, obs, *rest = self.env.step_env(state, action[0] if self.takes_turns else action)
        return state, obs[None] if self.takes_turns else obs, *rest

    def legal_actions(self, state) -> jax.Array:
        """bool[R, A]"""
        legal = self.env.legal_actions(state)
        return legal[None] if self.takes_turns else legal

    def acting(self, state) -> jax.Array:
        """bool[R, N], one-hot: which seats they are."""
        seats = jnp.arange(self.env.num_agents)
        return (state.current_player[None] if self.takes_turns else seats)[:, None] == seats[None]


def by_seat(values: jax.Array, acting: jax.Array) -> jax.Array:
    """Values [..., R] of the seats that acted, in their places [..., N]; 0 for the others."""
    return (values[..., None] * acting).sum(-2)


def by_row(values: jax.Array, acting: jax.Array) -> jax.Array:
    """Values [..., N] of all seats, of those that acted [..., R]."""
    return (values[..., None, :] * acting).sum(-1)


# ------------------------------------------------------------------------------------------------------------ buffers


@struct.dataclass
class Transition:
    """One step of E games; seen from the R seats that acted where there is no axis N."""

    obs: jax.Array  # [E, R, O]
    legal: jax.Array  # [E, R, A] bool
    action: jax.Array  # [E, R] int32
    reservoir_action: jax.Array  # [E, R] int32, what the average policy learns
    log_prob: jax.Array  # [E, R]
    value: jax.Array  # [E, R]
    acting: jax.Array  # [E, R, N] bool, one-hot: which seat it is
    plays_best_response: jax.Array  # [E, R] bool
    reward: jax.Array  # [E, N]
    done: jax.Array  # [E] bool
    absorbing: jax.Array  # [E] bool, decided and not cut by a horizon
    final_value: jax.Array  # [E, N] value of every seat's last observation where a horizon cut, else 0
    best_response_return: jax.Array  # [E] return so far of the seats that play the best response, on average


@struct.dataclass
class Reservoir:
    """Uniform sample of C decisions from a stream (Vitter 1985, algorithm R)."""

    obs: jax.Array  # [C, O] float16: half the memory; exact up to 2,048, and nothing is larger than 65,504
    legal: jax.Array  # [C, A] bool
    action: jax.Array  # [C] int32
    count: jax.Array  # [2] uint32, decisions seen so far: high and low word

    @property
    def size(self) -> jax.Array:
        """How many of the C places are filled."""
        capacity = self.action.shape[0]
        return jnp.where(self.count[0] > 0, capacity, jnp.minimum(self.count[1], capacity)).astype(jnp.int32)


def make_reservoir(capacity: int, obs_shape: tuple[int, ...], num_actions: int) -> Reservoir:
    """An empty reservoir."""
    return Reservoir(
        obs=jnp.zeros((capacity, *obs_shape), jnp.float16),
        legal=jnp.zeros((capacity, num_actions), bool),
        action=jnp.zeros(capacity, jnp.int32),
        count=jnp.zeros(2, jnp.uint32),
    )


def reservoir_insert(
    key: jax.Array, reservoir: Reservoir, obs: jax.Array, legal: jax.Array, action: jax.Array, valid: jax.Array
) -> Reservoir:
    """Shows a batch to the reservoir, as if item by item: item n (from 0) stays with probability C / (n + 1).

    Args:
        key: PRNG key, consumed.
        reservoir: of capacity C.
        obs: [B, O].
        legal: [B, A] bool.
        action: [B] int32.
        valid: [B] bool, items that belong to the stream.
    """
    capacity, B = reservoir.action.shape[0], action.shape[0]
    accept_key, slot_key = jax.random.split(key)
    high, low = reservoir.count[0], reservoir.count[1]
    position = jnp.cumsum(valid, dtype=jnp.uint32) - 1  # among the valid ones; n = count + position
    seen = high.astype(jnp.float32) * 2.0**32 + low.astype(jnp.float32) + position.astype(jnp.float32) + 1
    fills = (high == 0) & (low < capacity) & (position < capacity - jnp.minimum(low, capacity))
    accepted = valid & (fills | (jax.random.uniform(accept_key, (B,)) < capacity / seen))
    slot = jnp.where(fills, (low + position).astype(jnp.int32), jax.random.randint(slot_key, (B,), 0, capacity))
    slot = jnp.where(accepted, slot, capacity)  # one past the end: dropped

    order = jnp.arange(B, dtype=jnp.int32)
    last = jnp.full(capacity, -1, jnp.int32).at[slot].max(order, mode="drop")  # of several on a slot the last stays
    slot = jnp.where(last[jnp.minimum(slot, capacity - 1)] == order, slot, capacity)
    new_low = low + valid.sum(dtype=jnp.uint32)
    largest = float(jnp.finfo(reservoir.obs.dtype).max)
    obs = jnp.clip(obs, -largest, largest).astype(reservoir.obs.dtype)
    return Reservoir(
        obs=reservoir.obs.at[slot].set(obs, mode="drop"),
        legal=reservoir.legal.at[slot].set(legal, mode="drop"),
        action=reservoir.action.at[slot].set(action, mode="drop"),
        count=jnp.stack([high + (new_low < low), new_low]),
    )


@struct.dataclass
class TrainState:
    """All that a run needs to go on, for one seed."""

    key: jax.Array
    update: jax.Array  # int32, updates done
    env_state: Any  # batched over E
    obs: jax.Array  # [E, R, O], of the seats to act
    best_response_seats: jax.Array  # [E, N] bool, seats that play the best response in this episode
    best_response: Any
    best_response_optimizer: Any
    average: Any
    average_optimizer: Any
    reservoir: Reservoir
    bad_update: jax.Array  # int32, first update with a number that is not finite, else -1


# ---------------------------------------------------------------------------------------------------------- algorithm


def draw_best_response_seats(key: jax.Array, num_envs: int, num_agents: int, anticipatory_param: float) -> jax.Array:
    """Which seats play their best response in an episode: each with probability η, given that at least one does.

    Returns:
        bool[E, N]. The first such seat is i with probability η (1 - η)^i / (1 - (1 - η)^N); later seats draw freely.
    """
    first_key, later_key = jax.random.split(key)
    at_least_one = 1 - (1 - anticipatory_param) ** num_agents
    uniform = jax.random.uniform(first_key, (num_envs, 1))
    first = jnp.floor(jnp.log1p(-uniform * at_least_one) / jnp.log1p(-anticipatory_param))
    seats = jnp.arange(num_agents)[None]
    later = jax.random.bernoulli(later_key, anticipatory_param, (num_envs, num_agents))
    return (seats == jnp.minimum(first, num_agents - 1)) | ((seats > first) & later)


def compute_gae(
    value: jax.Array,
    acting: jax.Array,
    reward: jax.Array,
    done: jax.Array,
    absorbing: jax.Array,
    final_value: jax.Array,
    last_value: jax.Array,
    last_acting: jax.Array,
    gamma: float,
    gae_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Generalized advantage estimation along every player's own decisions (Schulman et al. 2016, arXiv 1506.02438).

    A transition runs from a decision of a player to his next one, or to the end of the episode: its reward is the sum
    of his rewards in between, δ = Σ r + γ V(next own decision) - V(own decision), A = δ + γ λ A(next own decision).
    Nobody's value is used for another. At a horizon cut the next value is that of his own last observation. A
    decision whose successor lies beyond the rollout is not known, unless it is the very next one.

    Args:
        value: [T, E, N], value of the acting seats' observations; not read elsewhere.
        acting: [T, E, N] bool, seats that acted.
        reward: [T, E, N].
        done: [T, E] bool, the episode ended with this step.
        absorbing: [T, E] bool, and it was decided, not cut.
        final_value: [T, E, N], value of every seat's last observation; read at cuts only.
        last_value: [E, N], value of the observations after the rollout.
        last_acting: [E, N] bool, seats that act next.
        gamma: discount per own decision.
        gae_lambda: λ.

    Returns:
        advantages [T, E, N] and known [T, E, N] bool; advantages are 0 where a seat did not act or is not known.
    """

    def step(carry, transition):
        next_value, next_advantage, pending_reward, known = carry
        value, acting, reward, done, absorbing, final_value = transition
        done, absorbing = done[:, None], absorbing[:, None]
        next_value = jnp.where(done, jnp.where(absorbing, 0, final_value), next_value)
        next_advantage = jnp.where(done, 0, next_advantage)
        pending_reward = jnp.where(done, 0, pending_reward) + reward
        known = known | done
        delta = pending_reward + gamma * next_value - value
        advantage = jnp.where(acting & known, delta + gamma * gae_lambda * next_advantage, 0)
        carry = (
            jnp.where(acting, value, next_value),
            jnp.where(acting, advantage, next_advantage),
            jnp.where(acting, 0, pending_reward),
            known | acting,
        )
        return carry, (advantage, acting & known)

    zeros = jnp.zeros_like(last_value)
    carry = (jnp.where(last_acting, last_value, 0), zeros, zeros, last_acting)
    _, (advantages, known) = jax.lax.scan(
        step, carry, (value, acting, reward, done, absorbing, final_value), reverse=True
    )
    return advantages, known


def ppo_loss(
    logits: jax.Array,
    value: jax.Array,
    batch: Transition,
    advantage: jax.Array,
    weight: jax.Array,
    clip_coef: float,
    vf_clip_coef: float,
    vf_coef: float,
    ent_coef: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's clipped loss over the decisions of weight 1.

    L = E[max(-Â ρ, -Â clip(ρ, 1 ± ε))] + c_v E[(V - G)²] / (Var[G] + 1e-4) / 2 - c_e E[H],
    Â = (A - E[A]) / (std A + 1e-8),
    with ρ the probability ratio and G = A + V_old. Var[G] makes the balance of the two losses the same in games
    of large and of small rewards.

    Args:
        logits: [B, A], unmasked.
        value: [B].
        batch: what was played, [B, ...].
        advantage: [B].
        weight: [B], 0 or 1.
        clip_coef: ε.
        vf_clip_coef: clip range of the value, 0 for none.
        vf_coef: c_v.
        ent_coef: c_e.

    Returns:
        The loss and what is logged of it.
    """

    def mean(x):
        return (x * weight).sum() / jnp.maximum(weight.sum(), 1)

    distribution = distrax.Categorical(logits=masked_logits(logits, batch.legal))
    log_ratio = jnp.where(weight > 0, distribution.log_prob(batch.action) - batch.log_prob, 0)
    ratio = jnp.exp(log_ratio)
    normalized = advantage - mean(advantage)
    normalized = normalized / (jnp.sqrt(mean(normalized**2)) + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1 - clip_coef, 1 + clip_coef)
    policy_loss = mean(jnp.maximum(-normalized * ratio, -normalized * clipped_ratio))

    target = advantage + batch.value
    error = (value - target) ** 2
    if vf_clip_coef > 0:
        clipped_value = batch.value + jnp.clip(value - batch.value, -vf_clip_coef, vf_clip_coef)
        error = jnp.maximum(error, (clipped_value - target) ** 2)
    value_loss = 0.5 * mean(error) / (mean((target - mean(target)) ** 2) + 1e-4)
    entropy = mean(distribution.entropy())
    loss = policy_loss + vf_coef * value_loss - ent_coef * entropy
    logged = {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": mean(ratio - 1 - log_ratio),
        "losses/clipfrac": mean(jnp.abs(ratio - 1) > clip_coef),
    }
    return loss, logged


def average_loss(logits: jax.Array, legal: jax.Array, action: jax.Array) -> jax.Array:
    """Cross-entropy of the average policy with the best responses' actions: -E[log π(a)]."""
    return -distrax.Categorical(logits=masked_logits(logits, legal)).log_prob(action).mean()


class Training(NamedTuple):
    """Functions of one seed; all can be jitted. `train` is made of the others."""

    init: Callable  # (seed) -> state
    train: Callable  # (state, num_updates) -> state, mean of what the updates log
    collect: Callable  # (state, key) -> state, batch of transitions [T, E, ...]
    update_best_response: Callable  # (state, key, batch) -> state, what is logged
    fill_reservoir: Callable  # (state, key, batch) -> state
    update_average: Callable  # (state, key) -> state, what is logged


def make_train(
    args: Args,
    env,
    shard_envs: Callable[..., Any] = lambda tree, axis: tree,  # noqa: ARG005
) -> Training:
    """Builds the training of one seed.

    Args:
        args: hyperparameters.
        env: a game. One that cuts episodes says so by an attribute `horizon`.
        shard_envs: `(tree, axis) -> tree` spreads the axis of the envs over devices.
    """
    E, N, T = args.num_envs, env.num_agents, args.num_steps
    num_updates = args.total_timesteps // (E * T)
    best_response_net = BestResponse(args.hidden_sizes, env.num_actions)
    average_net = MLP(args.hidden_sizes, env.num_actions)
    has_horizon = getattr(env, "horizon", None) is not None
    game = SeatsToAct(env)

    def schedule(start, anneal, steps_per_update):
        return optax.linear_schedule(start, 0.0, num_updates * steps_per_update) if anneal else start

    best_response_optimizer = optax.chain(
        optax.clip_by_global_norm(args.max_grad_norm),
        optax.adam(schedule(args.learning_rate, args.anneal_lr, args.update_epochs * args.num_minibatches), eps=1e-5),
    )
    average_optimizer = optax.adam(schedule(args.avg_learning_rate, args.anneal_avg_lr, args.avg_steps), eps=1e-5)

    def init(seed: jax.Array) -> TrainState:
        keys = jax.random.split(jax.random.key(seed), 5)
        key, env_key, seats_key, best_response_key, average_key = keys
        env_state, obs = shard_envs(jax.vmap(game.reset)(jax.random.split(env_key, E)), 0)
        best_response = best_response_net.init(best_response_key, obs[:1])
        average = average_net.init(average_key, obs[:1])
        return TrainState(
            key=key,
            update=jnp.int32(0),
            env_state=env_state,
            obs=obs,
            best_response_seats=draw_best_response_seats(seats_key, E, N, args.anticipatory_param),
            best_response=best_response,
            best_response_optimizer=best_response_optimizer.init(best_response),
            average=average,
            average_optimizer=average_optimizer.init(average),
            reservoir=make_reservoir(args.reservoir_size, env.obs_shape, env.num_actions),
            bad_update=jnp.int32(-1),
        )

    def final_values(params, final_state, cut):
        """[E, N], value of every seat's last observation in the games that a horizon cut."""
        if not has_horizon:
            return jnp.zeros((E, N))

        def evaluate():
            observe_all = jax.vmap(jax.vmap(env.observe, (None, 0)), (0, None))
            return best_response_net.apply(params, observe_all(final_state, jnp.arange(N)))[1]

        return jax.lax.cond(cut.any(), evaluate, lambda: jnp.zeros((E, N)))

    def collect(state: TrainState, key: jax.Array) -> tuple[TrainState, Transition]:
        def step(carry, step_key):
            env_state, obs, best_response_seats = carry
            action_key, reservoir_key, seats_key = jax.random.split(step_key, 3)
            legal, acting = jax.vmap(game.legal_actions)(env_state), jax.vmap(game.acting)(env_state)
            plays_best_response = (acting & best_response_seats[:, None]).any(-1)
            best_response_logits, value = best_response_net.apply(state.best_response, obs)
            average_logits = average_net.apply(state.average, obs)
            logits = jnp.where(plays_best_response[..., None], best_response_logits, average_logits)
            distribution = distrax.Categorical(logits=masked_logits(logits, legal))
            action = distribution.sample(seed=action_key)
            log_prob = distribution.log_prob(action)
            sharpened = masked_logits(args.reservoir_power * best_response_logits, legal)
            reservoir_action = distrax.Categorical(logits=sharpened).sample(seed=reservoir_key)
            env_state, next_obs, reward, absorbing, done, info = jax.vmap(game.step)(env_state, action)
            absorbing = absorbing.all(-1)
            final_value = final_values(state.best_response, info["final_state"], done & ~absorbing)
            best_response_return = info["returns"].mean(-1, where=best_response_seats)
            transition = Transition(
                obs, legal, action, reservoir_action, log_prob, value, acting, plays_best_response, reward, done,
                absorbing, final_value, best_response_return,
            )  # fmt: skip
            fresh_seats = draw_best_response_seats(seats_key, E, N, args.anticipatory_param)
            best_response_seats = jnp.where(done[:, None], fresh_seats, best_response_seats)
            return (env_state, next_obs, best_response_seats), transition

        carry = (state.env_state, state.obs, state.best_response_seats)
        (env_state, obs, seats), batch = jax.lax.scan(step, carry, jax.random.split(key, T))
        return state.replace(env_state=env_state, obs=obs, best_response_seats=seats), shard_envs(batch, 1)

    def update_best_response(state: TrainState, key: jax.Array, batch: Transition):
        last_acting = jax.vmap(game.acting)(state.env_state)
        last_value = best_response_net.apply(state.best_response, state.obs)[1]
        advantage, known = compute_gae(
            by_seat(batch.value, batch.acting), batch.acting.any(-2), batch.reward, batch.done, batch.absorbing,
            batch.final_value, by_seat(last_value, last_acting), last_acting.any(-2), args.gamma, args.gae_lambda,
        )  # fmt: skip
        advantage = by_row(advantage, batch.acting)  # [T, E, R]
        weight = by_row(known, batch.acting) * batch.plays_best_response.astype(jnp.float32)
        progress = state.update / max(num_updates - 1, 1)
        ent_coef = args.ent_coef + (args.ent_coef_end - args.ent_coef) * progress

        def loss_fn(params, minibatch):
            batch, advantage, weight = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), minibatch)
            logits, value = best_response_net.apply(params, batch.obs)
            return ppo_loss(
                logits, value, batch, advantage, weight, args.clip_coef, args.vf_clip_coef, args.vf_coef, ent_coef
            )

        def minibatch_step(carry, envs_of_minibatch):
            params, optimizer_state = carry
            minibatch = jax.tree.map(lambda x: x[:, envs_of_minibatch], (batch, advantage, weight))
            gradient, logged = jax.grad(loss_fn, has_aux=True)(params, shard_envs(minibatch, 1))
            step, optimizer_state = best_response_optimizer.update(gradient, optimizer_state)
            return (optax.apply_updates(params, step), optimizer_state), logged

        # A minibatch is all steps of some of the envs.
        permute = partial(jax.random.permutation, x=E)
        orders = jax.vmap(permute)(jax.random.split(key, args.update_epochs))
        orders = orders.reshape(args.update_epochs * args.num_minibatches, -1)
        (params, optimizer_state), logged = jax.lax.scan(
            minibatch_step, (state.best_response, state.best_response_optimizer), orders
        )
        logged = jax.tree.map(jnp.mean, logged) | {"charts/valid_fraction": weight.mean(), "charts/ent_coef": ent_coef}
        return state.replace(best_response=params, best_response_optimizer=optimizer_state), logged

    def fill_reservoir(state: TrainState, key: jax.Array, batch: Transition) -> TrainState:
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), batch)
        return state.replace(
            reservoir=reservoir_insert(
                key, state.reservoir, flat.obs, flat.legal, flat.reservoir_action, flat.plays_best_response
            )
        )

    def update_average(state: TrainState, key: jax.Array):
        def loss_fn(params, index):
            reservoir = state.reservoir
            logits = average_net.apply(params, reservoir.obs[index].astype(jnp.float32))
            return average_loss(logits, reservoir.legal[index], reservoir.action[index])

        def step(carry, step_key):
            params, optimizer_state = carry
            index = jax.random.randint(step_key, (args.avg_batch_size,), 0, jnp.maximum(state.reservoir.size, 1))
            loss, gradient = jax.value_and_grad(loss_fn)(params, shard_envs(index, 0))
            step, optimizer_state = average_optimizer.update(gradient, optimizer_state)
            return (optax.apply_updates(params, step), optimizer_state), loss

        (params, optimizer_state), loss = jax.lax.scan(
            step, (state.average, state.average_optimizer), jax.random.split(key, args.avg_steps)
        )
        return state.replace(average=params, average_optimizer=optimizer_state), {"losses/average_loss": loss.mean()}

    def update(state: TrainState) -> tuple[TrainState, dict[str, jax.Array]]:
        key, collect_key, best_response_key, reservoir_key, average_key = jax.random.split(state.key, 5)
        state, batch = collect(state.replace(key=key), collect_key)
        state, logged = update_best_response(state, best_response_key, batch)
        state, average_logged = update_average(fill_reservoir(state, reservoir_key, batch), average_key)
        num_episodes = jnp.maximum(batch.done.sum(), 1)
        logged |= average_logged | {
            "charts/reservoir_size": state.reservoir.size.astype(jnp.float32),
            "charts/episodic_length": batch.done.size / num_episodes,
            "charts/best_response_return": (batch.best_response_return * batch.done).sum() / num_episodes,
        }
        numbers = jax.tree.leaves((logged, state.best_response, state.average))
        finite = jnp.stack([jnp.isfinite(number).all() for number in numbers]).all()
        bad_update = jnp.where((state.bad_update < 0) & ~finite, state.update, state.bad_update)
        return state.replace(update=state.update + 1, bad_update=bad_update), logged

    def train(state: TrainState, num_updates: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        """Runs `num_updates` updates (traced: any number, one compilation) and averages what they log."""
        logged = jax.eval_shape(lambda state: update(state)[1], state)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), logged)

        def body(_, carry):
            state, total = carry
            state, logged = update(state)
            return state, jax.tree.map(jnp.add, total, logged)

        state, total = jax.lax.fori_loop(0, num_updates, body, (state, zeros))
        return state, jax.tree.map(lambda x: x / num_updates, total)

    return Training(init, train, collect, update_best_response, fill_reservoir, update_average)


# --------------------------------------------------------------------------------------------------------- evaluation


def make_evaluate(args: Args, env, policy: Callable, tree: GameTree | None) -> Callable:
    """Builds `evaluate(params, key) -> {name: score}` of the proposed policy of one seed.

    The scores are, where the game's tree fits, the exact exploitability and the expected return of an episode against
    opponents that play uniformly at random, mean over the seats. Else they are the mean return against such opponents,
    how often that wins, and, where the game names its `call_actions`, the return against ones that always call. There
    the policy plays one seat against all others or, where the game has `teams`, all seats of one team. Deals are
    mirrored: each is played once from every seat or team, so that luck evens out.
    `eval/..._ci` is half the 95 % interval over deals.
    """
    N, game = env.num_agents, SeatsToAct(env)
    sides = getattr(env, "num_teams", N)

    def exact_scores(params, _):
        probabilities = policy(params, jnp.asarray(tree.observations), jnp.asarray(tree.legal_actions))
        opponents = sequence_reach(tree, uniform_policy(tree).astype(probabilities.dtype))
        _, returns = action_values(tree, sequence_payoffs(tree, opponents), probabilities)
        return {
            "eval/exploitability": evaluate_network(tree, policy, params).exploitability,
            "eval/return_vs_uniform": returns.mean(),
        }

    def uniform(legal):
        return legal.astype(jnp.float32)

    def always_call(legal):
        """The first of `call_actions` that is legal, else any legal action."""
        calls = legal[..., jnp.array(env.call_actions)]
        action = jnp.array(env.call_actions)[jnp.argmax(calls, axis=-1)]
        return jnp.where(calls.any(-1, keepdims=True), jax.nn.one_hot(action, env.num_actions), uniform(legal))

    def play(params, key, opponent):
        """float32 [2, deals]: the policy's mean return over all sides of each deal, and the share that it won."""
        num_deals = max(-(-args.eval_games // sides), 2)
        key, deal_key = jax.random.split(key)
        states, obs = jax.vmap(game.reset)(jnp.repeat(jax.random.split(deal_key, num_deals), sides))
        team = jax.vmap(env.teams)(states) if hasattr(env, "teams") else jnp.arange(N)[None]
        own = team == jnp.tile(jnp.arange(sides), num_deals)[:, None]  # [games, N], seats that the policy plays

        def step(carry):
            states, obs, _, returns, _, key = carry
            key, action_key = jax.random.split(key)
            legal, acting = jax.vmap(game.legal_actions)(states), jax.vmap(game.acting)(states)
            own_turn = (acting & own[:, None]).any(-1, keepdims=True)
            probabilities = jnp.where(own_turn, policy(params, obs, legal), opponent(legal))
            action = jax.random.categorical(action_key, masked_logits(jnp.log(probabilities), legal))
            states, obs, reward, _, done, info = jax.vmap(game.step_env)(states, action)
            return states, obs, done, returns + reward.mean(-1, where=own), (info["winner"] & own).any(-1), key

        nothing = jnp.zeros(len(own))
        carry = (states, obs, nothing > 0, nothing, nothing > 0, key)
        *_, returns, wins, _ = jax.lax.while_loop(lambda carry: ~carry[2].all(), step, carry)
        return jnp.stack([returns, wins]).reshape(2, num_deals, sides).mean(-1)

    def scores_vs_opponents(params, key):
        opponents = {"uniform": uniform} | ({"call": always_call} if hasattr(env, "call_actions") else {})
        scores = {}
        for (name, opponent), opponent_key in zip(
            opponents.items(), jax.random.split(key, len(opponents)), strict=True
        ):
            returns, wins = play(params, opponent_key, opponent)
            measured = {f"return_vs_{name}": returns} | ({"win_rate_vs_uniform": wins} if name == "uniform" else {})
            for measure, values in measured.items():
                half = float(stdtrit(len(values) - 1, 0.975)) * jnp.std(values, ddof=1) / jnp.sqrt(len(values))
                scores |= {f"eval/{measure}": values.mean(), f"eval/{measure}_ci": half}
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


class Programs(NamedTuple):
    """The compiled functions of a run, over all seeds and devices; states and scores have a leading axis S."""

    init: Callable  # () -> states
    train: Callable  # (states, num_updates) -> states, metrics, bad_update [S]; the states given are consumed
    evaluate: Callable  # (states) -> scores
    gather: Callable  # (states) -> states with their keys as numbers, whole on every process
    restore: Callable  # the reverse, from NumPy arrays
    gathered_shapes: TrainState  # shapes and dtypes of what `gather` returns


def make_programs(args: Args, env, tree: GameTree | None) -> Programs:
    """Puts training on all devices: whole seeds where their number divides by the devices', else parts of the envs.

    No random draw depends on the number of devices.
    """
    num_devices, by_seed = len(jax.devices()), splits_by_seed(args)
    mesh = jax.make_mesh((num_devices,), ("devices",), axis_types=(AxisType.Auto,))
    replicated = NamedSharding(mesh, PartitionSpec())
    seeds = np.arange(args.seed, args.seed + args.num_seeds, dtype=np.uint32)

    def shard_envs(tree, axis):
        if by_seed:
            return tree
        sharding = NamedSharding(mesh, PartitionSpec(*[None] * axis, "devices"))
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding), tree)

    training = make_train(args, env, shard_envs)
    evaluate = make_evaluate(args, env, make_policy(make_config(args)), tree)

    def over_seeds(function):
        """Maps over S: one after the other where a seed fills the processor, together on accelerators."""
        mapped = partial(jax.lax.map, function) if jax.default_backend() == "cpu" else jax.vmap(function)
        if not by_seed:
            return mapped
        spec = PartitionSpec("devices")
        return jax.shard_map(mapped, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)

    def init_all():
        return over_seeds(training.init)(jnp.asarray(seeds))

    def train_all(states, num_updates):
        repeated = jnp.broadcast_to(num_updates, args.num_seeds)
        states, logged = over_seeds(lambda inputs: training.train(*inputs))((states, repeated))
        return states, logged, states.bad_update

    def evaluate_one(inputs):
        state, seed = inputs
        params = {"average": state.average, "best_response": state.best_response}
        evaluation_key = jax.random.fold_in(jax.random.key(seed), EVALUATION_STREAM)
        key = jax.random.fold_in(evaluation_key, state.update)
        return evaluate(params, key)

    shapes = jax.eval_shape(init_all)
    if by_seed:
        shardings = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec("devices")), shapes)
    else:
        by_env = NamedSharding(mesh, PartitionSpec(None, "devices"))
        shardings = jax.tree.map(lambda _: replicated, shapes)
        for field in ("env_state", "obs", "best_response_seats"):
            shardings = shardings.replace(**{field: jax.tree.map(lambda _: by_env, getattr(shapes, field))})

    def gather(states):
        return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, states)

    def restore(arrays):
        return jax.tree.map(lambda x, like: jax.random.wrap_key_data(x) if is_key(like) else x, arrays, shapes)

    return Programs(
        init=jax.jit(init_all, out_shardings=shardings),
        train=jax.jit(train_all, out_shardings=(shardings, replicated, replicated), donate_argnums=0),
        evaluate=jax.jit(
            lambda states: over_seeds(evaluate_one)((states, jnp.asarray(seeds))), out_shardings=replicated
        ),
        gather=gather if jax.process_count() == 1 else jax.jit(gather, out_shardings=replicated),
        restore=jax.jit(restore, out_shardings=shardings),
        gathered_shapes=jax.eval_shape(gather, shapes),
    )


def is_key(x) -> bool:
    """Whether an array holds PRNG keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def splits_by_seed(args: Args) -> bool:
    """Whether every device trains whole seeds; else every device has a part of the envs.

    Raises:
        ValueError: neither the seeds nor the envs of a minibatch can be shared evenly.
    """
    num_devices, minibatch_envs = len(jax.devices()), args.num_envs // args.num_minibatches
    if args.num_seeds % num_devices and minibatch_envs % num_devices:
        raise ValueError(
            f"{num_devices} devices share neither --num-seeds {args.num_seeds} nor --num-envs / --num-minibatches = "
            f"{minibatch_envs} evenly: one of them has to be a multiple of {num_devices}"
        )
    return args.num_seeds % num_devices == 0


# repeated block: make_config (tests/test_repeated_blocks.py)
def make_config(args: Args) -> dict:
    """What `config.json` holds of the arguments: plain JSON values."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(args).items()}
    return {"args": values | {"env_kwargs": json.loads(args.env_kwargs)}, "script": Path(__file__).name}


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


def check_args(args: Args) -> None:
    """Raises ValueError for arguments that cannot work, naming the flag, the value and what is allowed."""
    counts = (
        "num_seeds num_envs num_steps total_timesteps update_epochs num_minibatches reservoir_size avg_steps "
        "avg_batch_size checkpoint_interval eval_games num_processes"
    )
    for name in counts.split():
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1 is allowed")
    fractions, positive = "gamma gae_lambda", "learning_rate avg_learning_rate clip_coef max_grad_norm reservoir_power"
    for name in fractions.split():
        if not 0 <= getattr(args, name) <= 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: 0 to 1 is allowed")
    for name in positive.split():
        if not 0 < getattr(args, name) < np.inf:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: a finite number above 0 is allowed")
    for name in ("vf_clip_coef", "ent_coef", "ent_coef_end", "vf_coef"):
        if not 0 <= getattr(args, name) < np.inf:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: a finite number from 0 on is allowed")
    if args.log_interval < 0:
        raise ValueError(f"--log-interval {args.log_interval}: at least 0 is allowed")
    if args.num_processes > 1 and (not args.coordinator_address or not 0 <= args.process_id < args.num_processes):
        raise ValueError(
            f"--num-processes {args.num_processes}: --coordinator-address and a --process-id from 0 to "
            f"{args.num_processes - 1} are needed, not {args.coordinator_address} and {args.process_id}"
        )
    if not args.hidden_sizes or min(args.hidden_sizes) < 1:
        raise ValueError(f"--hidden-sizes {args.hidden_sizes}: one or more widths of at least 1 are allowed")
    if args.num_envs % args.num_minibatches:
        raise ValueError(f"--num-minibatches {args.num_minibatches}: it has to divide --num-envs {args.num_envs}")
    if not 0 < args.anticipatory_param <= 1:
        raise ValueError(f"--anticipatory-param {args.anticipatory_param}: above 0 and at most 1 is allowed")
    if args.seed < 0 or args.seed + args.num_seeds > 2**31:
        raise ValueError(f"--seed {args.seed}: 0 to 2^31 - --num-seeds is allowed")
    if args.total_timesteps < args.num_envs * args.num_steps:
        raise ValueError(
            f"--total-timesteps {args.total_timesteps}: an update takes --num-envs x --num-steps = "
            f"{args.num_envs * args.num_steps} steps, so at least that many are needed"
        )


def check_memory(args: Args, env) -> None:
    """Raises ValueError where the reservoirs are larger than the memory of the machine or of the devices."""
    stats = jax.local_devices()[0].memory_stats() or {}
    try:
        memory = stats["bytes_limit"] if stats else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (KeyError, AttributeError, ValueError, OSError):  # the system does not tell
        return
    one = jax.eval_shape(lambda: make_reservoir(1, env.obs_shape, env.num_actions))
    seeds = args.num_seeds
    if splits_by_seed(args) and stats:  # devices with memory of their own
        seeds //= len(jax.devices())
    item_bytes = seeds * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(one.replace(count=())))
    if args.reservoir_size * item_bytes > memory:
        raise ValueError(
            f"--reservoir-size {args.reservoir_size}: needs {args.reservoir_size * item_bytes / 1e9:.1f} GB of "
            f"{memory / 1e9:.1f} GB here ({seeds} times decisions of {math.prod(env.obs_shape)} numbers); up to "
            f"{memory // item_bytes // 2} leaves half of it free"
        )


def resolve_env(args: Args):
    """The game, and the arguments with its observation filled in.

    Raises:
        ValueError: an unknown game or a bad parameter.
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
    return make_env({"env": args.env, "env_kwargs": kwargs, "observation": args.observation}), args


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
        free = ("resume", "wandb_mode", "coordinator_address", "num_processes", "process_id")
        kept = make_config(default)["args"]
        for name, value in make_config(args)["args"].items():
            if name not in free and value != kept[name]:
                raise ValueError(
                    f"--resume {known.resume} goes on with {name}={kept[name]!r}, "
                    f"and {name}={value!r} would be another run"
                )
    return args


def run(args: Args, env) -> None:
    """Trains and writes the run folder.

    Raises:
        OSError: the run folder cannot be written, or the checkpoint not be read.
        FloatingPointError: a loss or a parameter is not finite.
    """
    is_main = jax.process_index() == 0
    config = make_config(args) | describe_run()
    name = f"{args.env}__{Path(__file__).stem}"
    folder = args.resume or args.runs / f"{name}__{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    checkpoint_path = folder / "checkpoint.msgpack"

    tree = None
    try:
        tree = build_game_tree(env)
        uniform = jax.jit(evaluate_policy)(tree, uniform_policy(tree).astype(jnp.float32)).exploitability
        config["uniform_exploitability"] = float(uniform)
    except ValueError as reason:
        tqdm.write(f"scored by games against simple opponents, since exploitability is not exact: {reason}")
    metric = "eval/return_vs_uniform" if tree is None else "eval/exploitability"

    programs = make_programs(args, env, tree)
    steps_per_update = args.num_envs * args.num_steps
    num_updates = args.total_timesteps // steps_per_update
    log_interval = args.log_interval or -(-num_updates // 100)
    update, states = restore_checkpoint(checkpoint_path, programs) if args.resume else (0, None)
    states = programs.init() if states is None else states

    logger, status = None, "failed"
    if is_main:
        folder.mkdir(parents=True, exist_ok=True)
        if args.resume:  # of the first start
            first = json.loads((folder / "config.json").read_text())
            config |= {name: first.get(name) for name in ("command", "start")}
        else:
            atomic_write(folder / "script.py", Path(__file__).read_bytes())
        write_config(folder, config, "running")
        print(f"{env} on {config['device']}, run folder {folder}; compiling", flush=True)
    try:
        if is_main:
            logger = RunLogger(
                folder, config, list(range(args.seed, args.seed + args.num_seeds)), name, folder.name,
                args.wandb_project, args.wandb_mode, update * steps_per_update if args.resume else None,
            )  # fmt: skip
        start = time.perf_counter()
        train = programs.train.lower(states, np.int32(1)).compile()
        evaluate = programs.evaluate.lower(states).compile()
        config["compile_seconds"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        with tqdm(
            total=num_updates * steps_per_update, initial=update * steps_per_update, unit=" steps", unit_scale=True,
            disable=not is_main, mininterval=0.5 if sys.stderr.isatty() else 30,
        ) as progress:  # fmt: skip
            while update < num_updates:
                count = min(log_interval, num_updates - update)
                train_start = time.perf_counter()
                states, logged, bad_update = jax.block_until_ready(train(states, np.int32(count)))
                train_seconds = time.perf_counter() - train_start
                bad_update = np.asarray(bad_update)
                if (bad_update >= 0).any():
                    first_bad = bad_update[bad_update >= 0].min() + 1
                    last_good = checkpoint_path if checkpoint_path.exists() else "none yet"
                    raise FloatingPointError(
                        f"update {first_bad}: a loss or a parameter is not finite (last good checkpoint: {last_good})"
                    )
                update += count
                scores = jax.tree.map(np.asarray, evaluate(states))
                speed = args.num_seeds * count * steps_per_update / train_seconds
                logged = jax.tree.map(np.asarray, logged) | {"charts/SPS": np.full(args.num_seeds, speed)} | scores
                if is_main:
                    logger.log(update * steps_per_update, time.perf_counter() - start, logged)
                if update == num_updates or update // log_interval % args.checkpoint_interval == 0:
                    gathered = programs.gather(states)
                    if is_main:
                        save_checkpoint(folder, update, gathered)
                    del gathered  # else training could not reuse its memory
                progress.set_postfix(
                    {
                        name.removeprefix("eval/"): f"{value.mean():.4f}"
                        + (f" ± {scores[f'{name}_ci'].mean():.4f}" if f"{name}_ci" in scores else "")
                        for name, value in scores.items()
                        if not name.endswith("_ci")
                    },
                    refresh=False,
                )
                progress.update(count * steps_per_update)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        if is_main:
            sync_command = logger.finish(exit_code=status != "finished") if logger else None
            write_config(folder, config | {"end": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, status)

    if is_main:
        save_curve(folder / "metrics.csv", metric, f"{name}, {config['device']}", config.get("uniform_exploitability"))
        print_scores(folder / "metrics.csv", config)
        print(f"\nrun folder: {folder}")
        if sync_command:
            print(f"upload to W&B: {sync_command}")


def save_checkpoint(folder: Path, update: int, states: TrainState) -> None:
    """Writes `params.msgpack` (both networks, leading axis S) and all of the run's state."""
    params = {"average": states.average, "best_response": states.best_response}
    atomic_write(folder / "params.msgpack", pack(params))
    atomic_write(folder / "checkpoint.msgpack", pack({"update": update, "states": states}))


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


def restore_checkpoint(path: Path, programs: Programs) -> tuple[int, TrainState | None]:
    """Updates done and the states, on the devices; 0 and None where the run was killed before its first checkpoint.

    Raises:
        OSError: the file cannot be read, or is not a checkpoint of this script under the run's arguments.
    """
    if not path.exists():
        return 0, None
    like = programs.gathered_shapes
    try:
        saved = serialization.msgpack_restore(path.read_bytes())
        update, states = saved["update"], serialization.from_state_dict(like, saved["states"])
        if jax.tree.map(lambda x: (x.shape, x.dtype), states) != jax.tree.map(lambda x: (x.shape, x.dtype), like):
            raise ValueError("arrays of other shapes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(errno.EINVAL, f"no checkpoint of this script and these arguments ({error})", str(path)) from None
    return update, programs.restore(states)


# repeated block: write_config (tests/test_repeated_blocks.py)
def write_config(folder: Path, config: dict, status: str) -> None:
    atomic_write(folder / "config.json", json.dumps(config | {"status": status}, indent=2).encode())


def print_scores(path: Path, config: dict) -> None:
    """The table that ends a run: scores at the last step, over seeds."""
    rows = list(csv.DictReader(path.read_text().splitlines()))
    last = [row for row in rows if row["global_step"] == rows[-1]["global_step"]]
    print(f"\n{'at step ' + last[0]['global_step']:28}{'mean':>11}{'± 95 %':>11}{'seeds':>7}")
    for metric in (name for name in last[0] if name.startswith("eval/") and not name.endswith("_ci")):
        mean, half = mean_and_interval([float(row[metric]) for row in last])
        if len(last) == 1:  # over its games, where it has been measured by games
            half = float(last[0].get(f"{metric}_ci", math.nan))
        print(f"{metric:28}{mean:11.4f} {'-' if math.isnan(half) else f'{half:.4f}':>10}{len(last):7}")
    if "uniform_exploitability" in config:
        print(f"{'of the uniform policy':28}{config['uniform_exploitability']:11.4f}")
    print(f"{'training steps/s (median)':28}{np.median([float(row['charts/SPS']) for row in rows]):11,.0f}")


def main(argv: list[str] | None = None) -> None:
    try:
        args = parse_args(argv)
        check_args(args)
        if args.coordinator_address:
            jax.distributed.initialize(args.coordinator_address, args.num_processes, args.process_id)
        env, args = resolve_env(args)
        check_memory(args, env)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        run(args, env)
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
