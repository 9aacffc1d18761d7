"""Counterfactual regret minimization: solves small games exactly, or by Monte Carlo sampling.

    python solvers/cfr.py --env leduc_holdem
    python solvers/cfr.py --env liars_dice --env-kwargs '{"num_faces": 4}' --variant cfr+ --iterations 10000
    python solvers/cfr.py --env leduc_holdem --sampling external --iterations 1e6 --num-seeds 10

Papers: CFR: Zinkevich et al. 2007, "Regret minimization in games with incomplete information"; CFR+: Tammelin 2014
(arXiv 1407.5042); linear CFR and DCFR: Brown and Sandholm 2019 (arXiv 1809.04040); PCFR+: Farina, Kroer and Sandholm
2021 (arXiv 2007.14358); external and outcome sampling: Lanctot et al. 2009, "Monte Carlo sampling for regret
minimization in extensive games".

DCFR, the default, brings Leduc hold'em (game value -0.0856064) to an exploitability of 1e-3 in some 300 iterations,
which take a few milliseconds.

How it works: `build_game_tree` steps the game itself into a tree, and `make_layout` turns that into flat arrays with
one number per sequence (an information set and an action) of a player. One update of a player is four passes, all over
dense arrays: the opponents' reach gives every sequence its payoffs; from the last information sets to the first, these
are added up to counterfactual values; regrets and strategy follow; from the first to the last, the strategy gives the
player's own reach. Where two players hold private hands and all else is public, the payoffs are a block for every
public leaf, one player's hands against the other's, and no index is looked up in the pass that costs most; elsewhere
they are summed by sequence. Players take turns within an iteration (`--simultaneous`: they do not), all in float64 and
in one compiled loop.

Letters: N agents, A actions, I information sets, S sequences of a player with his empty one, K actions of an
information set, B games sampled at once, W nodes of a level of a sampled game.
"""

import argparse
import contextlib
import csv
import dataclasses
import errno
import importlib.metadata
import io
import itertools
import json
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import serialization, struct
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import stdtrit
from tqdm import tqdm

import envs
from solvers.exploitability import (
    evaluate_policy,
    look_up_policy,
    make_policy_table,
    merge_observations,
    number_observations,
)
from solvers.game_tree import GameTree, build_game_tree

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "scipy", "wandb")  # whose versions a run writes down


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
    """game, one of `envs.available_envs()` whose tree fits"""
    env_kwargs: str = "{}"
    """parameters of the game as JSON, such as '{"num_ranks": 5}'"""
    max_nodes: Steps = 3_000_000
    """largest tree to build, in nodes; a node takes about 1 kB of memory while it is built"""
    variant: Literal["cfr", "cfr+", "linear", "dcfr", "pcfr+"] | None = None
    """how regrets and policies are weighted; by default dcfr, and cfr where games are sampled (there cfr or linear)"""
    iterations: Steps = 1000
    """iterations, of one update for every player each; where games are sampled, games for every player"""
    simultaneous: bool = False
    """all players answer the others' policies of the last iteration, instead of taking turns"""
    alpha: float = 1.5
    """dcfr: exponent of the discount of positive regrets"""
    beta: float = 0.0
    """dcfr: exponent of the discount of negative regrets"""
    gamma: float = 2.0
    """dcfr: exponent of the weight of an iteration in the average policy"""

    sampling: Literal["none", "external", "outcome"] = "none"
    """Monte Carlo CFR: in a sampled game one player takes all actions (external) or everybody one (outcome)"""
    batch_size: int = 16
    """games sampled at once, all from the same policies"""
    exploration: float = 0.6
    """outcome sampling: probability with which the player draws uniformly"""
    seed: int = 1
    """first seed; seed i of a run is the run of --seed + i alone"""
    num_seeds: int = 1
    """seeds solved at once, where games are sampled"""

    runs: Path = Path("runs")
    """folder that gets the run's folder"""
    resume: Path | None = None
    """folder of a killed run to go on with, under its own arguments"""
    wandb_mode: Literal["offline", "online", "disabled"] = "offline"
    """offline needs neither account nor network"""
    wandb_project: str = "bluffjax"
    """W&B project"""


# ------------------------------------------------------------------------------------------------------------- layout

SMALL = 4096  # numbers: arrays up to this size are padded to one shape, since a further loop would cost more
UNROLLED = 32  # hands up to which a block's product is written out, which XLA turns into vector instructions


@struct.dataclass
class Player:
    """Sequences of one player as flat arrays, by depth (the number of his earlier decisions).

    A depth holds groups of n information sets that are padded to K actions each: K x n numbers, action by action.
    Sequence 0 is the empty one; `S - 1` arrays leave it out.
    """

    groups: tuple[tuple[tuple[int, int], ...], ...] = struct.field(pytree_node=False)  # for each depth: (K, n)s
    parent: jax.Array  # [S - 1] int32, the sequence that leads here, counted from the first of the depth before
    infoset: jax.Array  # [S - 1] int32, to which information set of this player the sequence belongs
    uniform: jax.Array  # [S - 1] uniform policy, 0 in the padding
    child_sums: tuple[tuple[jax.Array, ...], ...]  # for each depth: `grouped_sums` tables to the last depth's sequences
    payoff_place: jax.Array  # [S] int32, where `payoffs` has the sequence's sum; past the end if it is paid nothing
    action_place: jax.Array  # [I, A] int32, the sequence of a tree's information set and action less 1; S - 1 if none


@struct.dataclass
class Blocks:
    """Payoffs of public leaves: n leaves at which R sequences of player 0 meet C of player 1."""

    payoffs: jax.Array  # [R, C, n], to player 0, times the probability of chance
    sequences: tuple[jax.Array, jax.Array]  # [R, n] and [C, n] int32


@struct.dataclass
class Sums:
    """Payoffs of sequences that are paid up to W times each, one player's."""

    payoffs: jax.Array  # [n, W], to the player, times the probability of chance
    sequences: jax.Array  # [N - 1, n, W] int32, of the other players


@struct.dataclass
class Layout:
    """A game tree for CFR: the players' sequences and how they meet."""

    players: tuple[Player, ...]
    blocks: tuple[Blocks, ...]  # two players with private hands and a public tree; else empty, and there are sums
    sums: tuple[tuple[Sums, ...], ...]  # for each player

    @property
    def kind(self) -> str:
        return "public tree x private hands" if self.blocks else "sums over sequences"


def make_layout(tree: GameTree) -> Layout:
    """Lays a tree out for CFR; the tree alone decides how, not the game's name.

    Args:
        tree: the game.

    Returns:
        The layout in NumPy arrays, on the host.
    """
    number = np.zeros(tree.num_sequences, np.int64)  # of the tree's sequences, among those of their player here
    players = [_lay_out_player(tree, p, number) for p in range(tree.num_agents)]
    blocks = _make_blocks(tree, number, players) if tree.num_agents == 2 else None
    if blocks is not None:
        return Layout(*blocks, sums=())
    return Layout(*_make_sums(tree, number, players))


def _lay_out_player(tree: GameTree, p: int, number: np.ndarray) -> Player:
    """Player p, all but where his payoffs are; fills in the `number` of his sequences."""
    N, A = tree.num_agents, tree.num_actions
    widths = tree.legal_actions.sum(-1)
    order_of_action = np.cumsum(tree.legal_actions, -1) - 1
    groups, parents, infosets, uniform, child_sums = [], [], [], [], []
    num_sequences, num_infosets, last = 1, 0, (0, 1)  # `last`: sequences of the depth before
    for start, end in itertools.pairwise(tree.depth_starts):
        own = start + np.flatnonzero(tree.infoset_player[start:end] == p)
        if not len(own):
            break
        first, shapes, infoset_parents = num_sequences, [], []
        for K, members in padded_groups(widths[own]):
            i = own[members]
            n = len(i)
            shapes.append((K, n))
            infoset_parents.append(number[tree.infoset_parent[i]] - last[0])
            parents.append(np.tile(infoset_parents[-1], K))
            infosets.append(np.tile(num_infosets + np.arange(n), K))
            uniform.append(((np.arange(K)[:, None] < widths[i]) / widths[i]).ravel())
            row, action = np.nonzero(tree.legal_actions[i])
            number[N + i[row] * A + action] = num_sequences + order_of_action[i[row], action] * n + row
            num_sequences += K * n
            num_infosets += n
        groups.append(tuple(shapes))
        child_sums.append(grouped_sums(np.concatenate(infoset_parents), last[1] - last[0]))
        last = (first, num_sequences)
    is_own = tree.legal_actions & (tree.infoset_player == p)[:, None]
    return Player(
        groups=tuple(groups),
        parent=np.concatenate(parents).astype(np.int32),
        infoset=np.concatenate(infosets).astype(np.int32),
        uniform=np.concatenate(uniform),
        child_sums=tuple(child_sums),
        payoff_place=np.zeros(num_sequences, np.int32),
        action_place=np.where(is_own, number[N:].reshape(-1, A) - 1, num_sequences - 1).astype(np.int32),
    )


def padded_groups(widths: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Puts items [n] of similar width together, so that padding no more than doubles them: (width, their indices)."""
    if len(widths) * widths.max() <= SMALL:
        yield int(widths.max()), np.arange(len(widths))
        return
    widths = widths.copy()
    while (widest := widths.max()) > 0:
        members = np.flatnonzero(2 * widths > widest)
        yield int(widest), members
        widths[members] = 0


def grouped_sums(segments: np.ndarray, num_segments: int) -> tuple[np.ndarray, ...]:
    """Tables with which `sum_groups` adds up all values of one segment.

    Args:
        segments: int[n], the segment of every value.
        num_segments: how many there are.

    Returns:
        Tables [m, W] int32 of the values of m segments, n where there are less than W, and as the last one
        [num_segments] where among all rows a segment's sum is; past the end for one without values.
    """
    counts = np.bincount(segments, minlength=num_segments)
    used = np.flatnonzero(counts)
    order = np.append(np.argsort(segments, kind="stable"), len(segments))
    starts = np.cumsum(counts) - counts
    place = np.full(num_segments, len(used))
    tables, num_rows = [], 0
    for W, members in padded_groups(counts[used]):
        segment = used[members]
        value = np.arange(W)
        index = np.where(value < counts[segment, None], starts[segment, None] + value, len(segments))
        tables.append(order[index].astype(np.int32))
        place[segment] = num_rows + np.arange(len(segment))
        num_rows += len(segment)
    return (*tables, place.astype(np.int32))


def _make_blocks(tree: GameTree, number: np.ndarray, players: list[Player]):
    """Players and blocks, or None where the payoffs do not fall into blocks.

    Sequences that meet, directly or through others, belong to one public leaf: nobody can tell its deals apart but by
    his own hand.
    """
    sequences, payoffs = tree.payoff_sequences, tree.payoffs
    if np.abs(payoffs.sum(-1)).max() > 1e-9 * np.abs(payoffs).max():
        return None
    meets = coo_array((np.ones(len(sequences)), sequences.T), shape=(tree.num_sequences,) * 2)
    _, leaf_of = connected_components(meets, directed=False)
    leaf = leaf_of[sequences[:, 0]]
    rank, size = [], []  # a sequence's place in its leaf, how many of a player the leaf has
    for p in range(2):
        used = np.unique(sequences[:, p])
        used = used[np.argsort(leaf_of[used], kind="stable")]
        counts = np.bincount(leaf_of[used], minlength=leaf_of.max() + 1)
        rank.append(np.zeros(tree.num_sequences, np.int64))
        rank[p][used] = np.arange(len(used)) - np.repeat(np.cumsum(counts) - counts, counts)
        size.append(counts)
    leaves = np.unique(leaf)
    shapes = np.stack([size[0][leaves], size[1][leaves]], -1)
    if len(leaves) * shapes.max(0).prod() <= SMALL:
        shapes[:] = shapes.max(0)
    if shapes.prod(-1).sum() > max(2 * len(payoffs), SMALL) or len(np.unique(shapes, axis=0)) > 16:
        return None

    blocks, num_sums = [], [0, 0]
    places = [np.full(len(player.payoff_place), -1) for player in players]
    for shape in np.unique(shapes, axis=0):
        members = leaves[(shapes == shape).all(-1)]
        n = len(members)
        column = np.full(leaf_of.max() + 1, -1)
        column[members] = np.arange(n)
        e = np.flatnonzero(column[leaf] >= 0)
        block = np.zeros((*shape, n))
        np.add.at(block, (rank[0][sequences[e, 0]], rank[1][sequences[e, 1]], column[leaf[e]]), payoffs[e, 0])
        tables = []
        for p in range(2):
            s = sequences[e, p]
            table = np.zeros((shape[p], n), np.int32)
            table[rank[p][s], column[leaf[e]]] = number[s]
            places[p][number[s]] = num_sums[p] + rank[p][s] * n + column[leaf[e]]
            num_sums[p] += shape[p] * n
            tables.append(table)
        blocks.append(Blocks(block, tuple(tables)))
    return _with_places(players, places, num_sums), tuple(blocks)


def _make_sums(tree: GameTree, number: np.ndarray, players: list[Player]):
    """Players, no blocks, and sums."""
    sequences = number[tree.payoff_sequences]  # [E, N]
    sums, places, num_sums = [], [], []
    for p, player in enumerate(players):
        own, others = sequences[:, p], np.delete(sequences, p, -1).T
        *tables, place = grouped_sums(own, len(player.payoff_place))
        payoffs = np.append(tree.payoffs[:, p], 0)
        others = np.append(others, np.zeros((len(others), 1), np.int64), -1).astype(np.int32)
        sums.append(tuple(Sums(payoffs[table], others[:, table]) for table in tables))
        num_sums.append(sum(len(table) for table in tables))
        places.append(np.where(place == num_sums[p], -1, place))
    return _with_places(players, places, num_sums), (), tuple(sums)


def _with_places(players: list[Player], places: list[np.ndarray], num_sums: list[int]) -> tuple[Player, ...]:
    return tuple(
        player.replace(payoff_place=np.where(place < 0, num, place).astype(np.int32))
        for player, place, num in zip(players, places, num_sums, strict=True)
    )


# ---------------------------------------------------------------------------------------------------------------- CFR


@struct.dataclass
class Tables:
    """What CFR knows, by player; NumPy or JAX arrays."""

    regrets: tuple[jax.Array, ...]  # [S - 1] cumulative
    policy: tuple[jax.Array, ...]  # [S - 1] current
    reach: tuple[jax.Array, ...]  # [S] of the current policy
    cumulative_policy: tuple[jax.Array, ...]  # [S] weighted sum of reaches


def init_tables(layout: Layout) -> Tables:
    """Nothing known, uniform policy."""
    policy = tuple(jnp.asarray(player.uniform) for player in layout.players)
    reach = tuple(compute_reach(player, x) for player, x in zip(layout.players, policy, strict=True))
    return Tables(jax.tree.map(jnp.zeros_like, policy), policy, reach, jax.tree.map(jnp.zeros_like, reach))


def take(values: jax.Array, index: jax.Array) -> jax.Array:
    """`values[index]` without a check of the bounds."""
    return values.at[index].get(mode="promise_in_bounds")


def join(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def with_zero(values: jax.Array) -> jax.Array:
    """[n + 1], so that index n is 0."""
    return jnp.concatenate([values, jnp.zeros(1, values.dtype)])


def sum_groups(values: jax.Array, tables: tuple[jax.Array, ...]) -> jax.Array:
    """Sums of all segments by the tables of `grouped_sums`."""
    values = with_zero(values)
    return take(with_zero(join([take(values, table).sum(-1) for table in tables[:-1]])), tables[-1])


def sum_actions(player: Player, depth: int, values: jax.Array) -> jax.Array:
    """Sums the sequences of one depth over the actions of every information set."""
    sums, start = [], 0
    for K, n in player.groups[depth]:
        sums.append(values[start : start + K * n].reshape(K, n).sum(0))
        start += K * n
    return join(sums)


def depth_slices(player: Player) -> list[slice]:
    """Where among the S - 1 sequences each depth is."""
    ends = np.cumsum([sum(K * n for K, n in groups) for groups in player.groups]).tolist()
    return [slice(start, end) for start, end in itertools.pairwise([0, *ends])]


def compute_reach(player: Player, policy: jax.Array) -> jax.Array:
    """Product [S] of the player's own probabilities along every sequence."""
    reach = [jnp.ones(1, policy.dtype)]
    for part in depth_slices(player):
        reach.append(policy[part] * take(reach[-1], player.parent[part]))
    return jnp.concatenate(reach)


def compute_payoffs(layout: Layout, p: int, reach: tuple[jax.Array, ...]) -> jax.Array:
    """Payoffs [S] of player p right at each sequence, weighted with the reach of chance and the others."""
    parts = []
    for blocks in layout.blocks:
        payoffs = jnp.moveaxis(blocks.payoffs, p, 0)  # [own hands, other hands, n]
        other = take(reach[1 - p], blocks.sequences[1 - p])  # [other hands, n]
        if len(other) <= UNROLLED:
            total = payoffs[:, 0] * other[:1]
            for hand in range(1, len(other)):
                total = total + payoffs[:, hand] * other[hand : hand + 1]
        else:
            total = (payoffs * other[None]).sum(1)
        parts.append((total if p == 0 else -total).ravel())
    if not layout.blocks:
        for sums in layout.sums[p]:
            others = [x for q, x in enumerate(reach) if q != p]
            weights = sums.payoffs
            for x, sequences in zip(others, sums.sequences, strict=True):
                weights = weights * take(x, sequences)
            parts.append(weights.sum(-1))
    return take(with_zero(join(parts)), layout.players[p].payoff_place)


def compute_regrets(player: Player, payoffs: jax.Array, policy: jax.Array) -> jax.Array:
    """Instantaneous counterfactual regrets [S - 1] of a policy: q(i, a) - sum_b policy(i, b) q(i, b).

    Args:
        player: whose.
        payoffs: [S], `compute_payoffs`.
        policy: [S - 1], his own.
    """
    slices = depth_slices(player)
    q, values, later = [], [], 0.0
    for depth in reversed(range(len(slices))):
        part = slices[depth]
        q.append(payoffs[1:][part] + later)
        values.append(sum_actions(player, depth, policy[part] * q[-1]))
        if depth:
            later = sum_groups(values[-1], player.child_sums[depth])
    regrets = join(q[::-1]) - take(join(values[::-1]), player.infoset)
    return jnp.where(player.uniform > 0, regrets, 0)


def match_regrets(player: Player, regrets: jax.Array) -> jax.Array:
    """Policy [S - 1] in proportion to positive regrets, uniform where there are none (Hart and Mas-Colell 2000)."""
    positive = jnp.maximum(regrets, 0)
    sums = [sum_actions(player, depth, positive[part]) for depth, part in enumerate(depth_slices(player))]
    total = take(join(sums), player.infoset)
    return jnp.where(total > 0, positive / jnp.where(total > 0, total, 1), player.uniform)


@dataclass(frozen=True)
class Rule:
    """How a variant adds up regrets and policies; t is the iteration, from 1."""

    variant: str = "dcfr"
    alpha: float = 1.5
    beta: float = 0.0
    gamma: float = 2.0

    def add_regrets(self, regrets: jax.Array, instantaneous: jax.Array, t: jax.Array) -> jax.Array:
        """cfr: R + r. cfr+ and pcfr+: max(R + r, 0). linear: R + t r. dcfr: R + r, then positive ones times
        t^α / (t^α + 1), negative ones times t^β / (t^β + 1) = 1 / (1 + t^-β)."""
        if self.variant == "linear":
            return regrets + t * instantaneous
        regrets = regrets + instantaneous
        if self.variant in ("cfr+", "pcfr+"):
            return jnp.maximum(regrets, 0)
        if self.variant == "dcfr":
            positive, negative = (1 / (1 + t**-power) for power in (self.alpha, self.beta))
            return regrets * jnp.where(regrets > 0, positive, negative)
        return regrets

    def predict(self, regrets: jax.Array, instantaneous: jax.Array) -> jax.Array:
        """Regrets that the next policy answers: pcfr+ takes the last ones to come again."""
        return regrets + instantaneous if self.variant == "pcfr+" else regrets

    def policy_weight(self, t: jax.Array) -> jax.Array:
        """Weight of iteration t in the average policy. (dcfr: discounting by (t / (t + 1))^γ is the same as t^γ.)"""
        power = {"cfr": 0, "cfr+": 1, "linear": 1, "dcfr": self.gamma, "pcfr+": 2}[self.variant]
        return t**power


def iterate(layout: Layout, tables: Tables, t: jax.Array, rule: Rule, simultaneous: bool = False) -> Tables:
    """One iteration: every player in turn updates regrets and policy against the others' current ones.

    Args:
        layout: the game.
        tables: before.
        t: float, the iteration, from 1.
        rule: of the variant.
        simultaneous: all players answer the policies of the last iteration.
    """
    regrets, policy, reach, cumulative = (
        list(x) for x in (tables.regrets, tables.policy, tables.reach, tables.cumulative_policy)
    )
    weight = rule.policy_weight(t)
    for p, player in enumerate(layout.players):
        payoffs = compute_payoffs(layout, p, tables.reach if simultaneous else tuple(reach))
        cumulative[p] = cumulative[p] + weight * reach[p]
        instantaneous = compute_regrets(player, payoffs, policy[p])
        regrets[p] = rule.add_regrets(regrets[p], instantaneous, t)
        policy[p] = match_regrets(player, rule.predict(regrets[p], instantaneous))
        reach[p] = compute_reach(player, policy[p])
    return Tables(tuple(regrets), tuple(policy), tuple(reach), tuple(cumulative))


def solve(
    layout: Layout, tables: Tables, start: jax.Array, end: jax.Array, rule: Rule, simultaneous: bool = False
) -> Tables:
    """Iterations start + 1 to end, in one loop."""

    def body(t, tables):
        return iterate(layout, tables, (t + 1).astype(jnp.float64), rule, simultaneous)

    return jax.lax.fori_loop(start, end, body, tables)


def policy_weights(layout: Layout, tables: Tables) -> jax.Array:
    """The average policy [I, A] in the tree's numbering, before it is normalised: w(i, a) = sum_t weight x_t(i, a)."""
    weights = jnp.zeros(layout.players[0].action_place.shape)
    for player, cumulative in zip(layout.players, tables.cumulative_policy, strict=True):
        weights += take(with_zero(cumulative[1:]), player.action_place)
    return weights


def normalise_policy(weights: jax.Array, legal: jax.Array) -> jax.Array:
    """Weights [..., A] as probabilities, uniform over the legal actions where all are 0."""
    total = weights.sum(-1, keepdims=True)
    uniform = legal / jnp.maximum(legal.sum(-1, keepdims=True), 1)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), uniform)


# -------------------------------------------------------------------------------------------------------- Monte Carlo


@struct.dataclass
class Nodes:
    """A tree to sample games in; node M, with nothing below it, stands for no node."""

    children: jax.Array  # [M + 1, A] int32, M where the action is illegal
    infoset: jax.Array  # [M + 1] int32, I where nobody acts
    returns: jax.Array  # [M + 1, N] of the episode so far
    player: jax.Array  # [I + 1] int32, who acts; N for none
    deals: jax.Array  # [D] cumulative probabilities; the first D nodes
    widths: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)  # for each player and level, `_max_widths`


@struct.dataclass
class SampledTables:
    """What MCCFR knows."""

    regrets: jax.Array  # [I, A]
    cumulative_policy: jax.Array  # [I, A]


def make_nodes(tree: GameTree) -> Nodes:
    """A tree's nodes, in NumPy arrays."""
    M, I = tree.num_nodes, tree.num_infosets  # noqa: E741
    returns = tree.node_rewards.astype(np.float64)
    levels = [np.arange(len(tree.deal_probabilities))]
    while len(levels[-1]):
        parent, action = np.nonzero(tree.node_children[levels[-1]] >= 0)
        levels.append(tree.node_children[levels[-1]][parent, action])
        returns[levels[-1]] += returns[levels[-2][parent]]
    children = np.where(tree.node_children < 0, M, tree.node_children)
    deals = np.cumsum(tree.deal_probabilities)
    return Nodes(
        children=np.append(children, np.full((1, tree.num_actions), M), 0).astype(np.int32),
        infoset=np.append(np.where(tree.node_infoset < 0, I, tree.node_infoset), I).astype(np.int32),
        returns=np.append(returns, np.zeros((1, tree.num_agents)), 0),
        player=np.append(tree.infoset_player, tree.num_agents).astype(np.int32),
        deals=deals / deals[-1],
        widths=tuple(_max_widths(tree, levels[:-1], p) for p in range(tree.num_agents)),
    )


def _max_widths(tree: GameTree, levels: list[np.ndarray], p: int) -> tuple[int, ...]:
    """The most nodes of each level that a game can reach in which player p takes all actions and the others one."""
    widths = np.zeros((tree.num_nodes + 1, len(levels)), np.int32)  # below every node; the last row is for no node
    player = np.append(tree.infoset_player, -1)[tree.node_infoset]
    for level, nodes in reversed(list(enumerate(levels))):
        below = widths[tree.node_children[nodes]]  # [n, A, levels]
        widths[nodes] = np.where((player[nodes] == p)[:, None], below.sum(1), below.max(1))
        widths[nodes, level] = 1
    return tuple(widths[levels[0]].max(0).tolist())


def sample_index(key: jax.Array, cumulative: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws int32[shape] from cumulative probabilities [D]."""
    uniform = jax.random.uniform(key, shape, cumulative.dtype)
    return jnp.minimum(jnp.searchsorted(cumulative, uniform, side="right"), len(cumulative) - 1).astype(jnp.int32)


def sample_actions(key: jax.Array, policy: jax.Array) -> jax.Array:
    """Draws one action of each row of probabilities [..., A]; bool[..., A], one-hot."""
    cumulative = jnp.cumsum(policy, -1)
    uniform = jax.random.uniform(key, policy.shape[:-1], policy.dtype)[..., None] * cumulative[..., -1:]
    below = cumulative <= uniform
    return ~below & jnp.concatenate([jnp.ones_like(below[..., :1]), below[..., :-1]], -1)


def current_policy(regrets: jax.Array, legal: jax.Array) -> jax.Array:
    """Regret matching of rows [..., A]; 0 where illegal."""
    return jnp.where(legal, normalise_policy(jnp.where(legal, jnp.maximum(regrets, 0), 0), legal), 0)


def look_at(nodes: Nodes, regrets: jax.Array, node: jax.Array):
    """Information sets, children [..., A], which are legal, who acts and his policy [..., A], of nodes [...]."""
    infoset, children = take(nodes.infoset, node), take(nodes.children, node)
    legal = children < len(nodes.infoset) - 1
    policy = current_policy(regrets.at[infoset].get(mode="fill", fill_value=0), legal)
    return infoset, children, legal, take(nodes.player, infoset), policy


def sample_external(
    nodes: Nodes, regrets: jax.Array, key: jax.Array, p: int, batch_size: int
) -> tuple[list[tuple[jax.Array, jax.Array]], list[tuple[jax.Array, jax.Array]]]:
    """External sampling: games in which player p takes every action, the others and chance draw one.

    Args:
        nodes: the game.
        regrets: [I, A], which the policies follow.
        key: PRNG key, consumed.
        p: whose regrets are sampled.
        batch_size: B games.

    Returns:
        Rows to add to the regrets of player p, as pairs of information sets [B, W] (I for none) and rows [B, W, A],
        and the same for the cumulative policy of the next player, at whose nodes the policy is averaged as it is
        (Lanctot et al.'s simple average; with more than two players the others' reach weighs it too).
    """
    num_infosets, num_agents = len(regrets), nodes.returns.shape[-1]
    deal_key, *action_keys = jax.random.split(key, len(nodes.widths[p]) + 1)
    node = sample_index(deal_key, nodes.deals, (batch_size, 1))
    game = jnp.arange(batch_size)[:, None, None]
    levels = []
    for W, action_key in zip((*nodes.widths[p][1:], 1), action_keys, strict=True):
        infoset, children, legal, player, policy = look_at(nodes, regrets, node)
        own = (player == p)[..., None]
        taken = legal & (own | sample_actions(action_key, policy))
        slot = (jnp.cumsum(taken.reshape(batch_size, -1), -1, dtype=jnp.int32) - 1).reshape(taken.shape)
        levels.append((node, infoset, player, policy, own, taken, slot))
        node = jnp.full((batch_size, W), len(nodes.infoset) - 1, jnp.int32)
        node = node.at[game, jnp.where(taken, slot, W)].set(children, mode="drop")

    value = jnp.zeros((batch_size, 1), regrets.dtype)
    regret_rows, policy_rows = [], []
    for node, infoset, player, policy, own, taken, slot in reversed(levels):
        below = jnp.where(taken, jnp.take_along_axis(value[:, None], jnp.where(taken, slot, 0), -1), 0)
        expected = jnp.where(own, policy * below, below).sum(-1)
        regret = jnp.where(taken, below - expected[..., None], 0)
        regret_rows.append((jnp.where(own[..., 0], infoset, num_infosets), regret))
        averaged = player == (p + 1) % num_agents
        policy_rows.append((jnp.where(averaged, infoset, num_infosets), policy))
        value = jnp.where(infoset == num_infosets, take(nodes.returns[:, p], node), expected)
    return regret_rows, policy_rows


def sample_outcome(
    nodes: Nodes, regrets: jax.Array, key: jax.Array, p: int, batch_size: int, exploration: float
) -> tuple[list[tuple[jax.Array, jax.Array]], list[tuple[jax.Array, jax.Array]]]:
    """Outcome sampling: one game each, in which player p draws uniformly with probability ε, and all else follows the
    policies. What p's draws make more or less likely is divided out.

    Args and returns: as `sample_external`, with W = 1; `exploration` is ε.
    """
    num_infosets, num_agents = len(regrets), nodes.returns.shape[-1]
    deal_key, *action_keys = jax.random.split(key, len(nodes.widths[p]) + 1)
    node = sample_index(deal_key, nodes.deals, (batch_size,))
    weight = jnp.ones(batch_size, regrets.dtype)  # 1 / probability of p's draws so far
    levels = []
    for action_key in action_keys:
        infoset, children, legal, player, policy = look_at(nodes, regrets, node)
        own = (player == p)[..., None]
        explored = (1 - exploration) * policy + exploration * normalise_policy(jnp.zeros_like(policy), legal)
        drawn = jnp.where(own, explored, policy)
        taken = legal & sample_actions(action_key, jnp.where(legal, drawn, 0))
        ratio = jnp.where(own[..., 0], 1 / jnp.where(taken, drawn, 0).sum(-1), 1)
        levels.append((infoset, player, legal, policy, own, taken, weight, ratio))
        acts = infoset < num_infosets
        weight = jnp.where(acts, weight * ratio, weight)
        node = jnp.where(acts, jnp.where(taken, children, 0).sum(-1), node)

    value = take(nodes.returns[:, p], node)
    regret_rows, policy_rows = [], []
    for infoset, player, legal, policy, own, taken, weight, ratio in reversed(levels):
        below = jnp.where(taken, (value * ratio)[:, None], 0)
        expected = (policy * below).sum(-1)
        own = own[..., 0] & (infoset < num_infosets)
        regret = jnp.where(legal, weight[:, None] * (below - expected[:, None]), 0)
        regret_rows.append((jnp.where(own, infoset, num_infosets), regret))
        averaged = player == (p + 1) % num_agents
        policy_rows.append((jnp.where(averaged, infoset, num_infosets), weight[:, None] * policy))
        value = jnp.where(own, expected, value)
    return regret_rows, policy_rows


def sample(nodes: Nodes, tables: SampledTables, key: jax.Array, t: jax.Array, args: Args, rule: Rule) -> SampledTables:
    """`batch_size` sampled games for each player in turn, from the same tables; t is the batch, from 1."""
    regrets, cumulative = tables.regrets, tables.cumulative_policy
    regret_weight = t if rule.variant == "linear" else 1.0
    for p, player_key in enumerate(jax.random.split(key, nodes.returns.shape[-1])):
        if args.sampling == "external":
            rows = sample_external(nodes, regrets, player_key, p, args.batch_size)
        else:
            rows = sample_outcome(nodes, regrets, player_key, p, args.batch_size, args.exploration)
        for infoset, row in rows[0]:
            regrets = regrets.at[infoset].add(regret_weight * row, mode="drop")
        for infoset, row in rows[1]:
            cumulative = cumulative.at[infoset].add(rule.policy_weight(t) * row, mode="drop")
    return SampledTables(regrets, cumulative)


def solve_by_sampling(
    nodes: Nodes, tables: SampledTables, key: jax.Array, start: jax.Array, end: jax.Array, args: Args, rule: Rule
) -> SampledTables:
    """Batches start + 1 to end, in one loop; batch t draws from `fold_in(key, t)`."""

    def body(t, tables):
        return sample(nodes, tables, jax.random.fold_in(key, t), (t + 1).astype(jnp.float64), args, rule)

    return jax.lax.fori_loop(start, end, body, tables)


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


def make_policy(config: dict) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:  # noqa: ARG001
    """The policy that a run proposes, its average policy: `look_up_policy`, whatever the configuration."""
    return look_up_policy


# repeated block: make_env (tests/test_repeated_blocks.py)
def make_env(args: dict):
    """The game that the arguments name; `env_kwargs` is a dict here."""
    return envs.make(args["env"], observation=args["observation"], **args["env_kwargs"])


class Solver(NamedTuple):
    """A compiled way to solve one game, over S seeds. A step is an iteration, or a batch of sampled games."""

    tables: Tables | SampledTables  # at the start, with a leading axis S
    advance: Callable  # (tables, step done, step to reach) -> tables; those given are consumed
    policy_weights: Callable  # tables -> float64 [S, I, A], the average policy before it is normalised; all finite?
    description: str


def make_solver(args: Args, tree: GameTree) -> Solver:
    """Lays the tree out and compiles the loop; to be called, and its functions too, under `jax.enable_x64(True)`."""
    rule = Rule(args.variant, args.alpha, args.beta, args.gamma)
    if args.sampling == "none":
        game = jax.device_put(make_layout(tree))
        tables = jax.jit(init_tables)(game)

        def advance(game, tables, start, end):
            return solve(game, tables, start, end, rule, args.simultaneous)

        weights, description = policy_weights, game.kind
    else:
        game = jax.device_put(make_nodes(tree))
        tables = SampledTables(*[jnp.zeros((tree.num_infosets, tree.num_actions)) for _ in range(2)])
        keys = jax.vmap(jax.random.key)(jnp.arange(args.seed, args.seed + args.num_seeds))

        def advance(game, tables, start, end):
            def one_seed(tables, key):
                return solve_by_sampling(game, tables, key, start, end, args, rule)

            return jax.vmap(one_seed)(tables, keys)

        tables = jax.tree.map(lambda x: jnp.tile(x, (args.num_seeds, 1, 1)), tables)
        description = f"tree in which {args.sampling} sampling follows up to {max(map(max, game.widths))} nodes at once"

        def weights(game, tables):  # noqa: ARG001
            return tables.cumulative_policy

    compiled = jax.jit(advance, donate_argnums=1).lower(game, tables, np.int64(0), np.int64(1)).compile()
    num_bytes = sum(x.nbytes for x in jax.tree.leaves((game, tables)))
    return Solver(
        tables=tables,
        advance=lambda tables, start, end: compiled(game, tables, np.int64(start), np.int64(end)),
        policy_weights=jax.jit(
            lambda tables: (
                weights(game, tables).reshape(-1, *tree.legal_actions.shape),
                jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tables)]).all(),
            )
        ),
        description=f"{description}, {num_bytes / 1e6:,.1f} MB",
    )


# repeated block: make_config (tests/test_repeated_blocks.py)
def make_config(args: Args) -> dict:
    """What `config.json` holds of the arguments: plain JSON values."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(args).items()}
    return {"args": values | {"env_kwargs": json.loads(args.env_kwargs)}, "script": Path(__file__).name}


# repeated block: write_config (tests/test_repeated_blocks.py)
def write_config(folder: Path, config: dict, status: str) -> None:
    atomic_write(folder / "config.json", json.dumps(config | {"status": status}, indent=2).encode())


CHECKPOINT_SECONDS = 10  # between checkpoints, and again for every second that the last one took to write


def run(args: Args, env, tree: GameTree) -> None:
    """Solves and writes the run folder.

    Raises:
        OSError: the run folder cannot be written, or the checkpoint not be read.
        FloatingPointError: a number is not finite.
    """
    config = make_config(args) | describe_run()
    config["args"]["observation"] = env.observation
    name = f"{args.env}__{Path(__file__).stem}"
    folder = args.resume or args.runs / f"{name}__{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    size = f"{tree.num_infosets:,} information sets, {tree.num_nodes:,} nodes"
    start = time.perf_counter()
    solver = make_solver(args, tree)
    config["compile_seconds"] = round(time.perf_counter() - start, 2)

    numbers = number_observations(tree)
    are_told_apart = numbers.max() + 1 == tree.num_infosets

    @jax.jit
    def evaluate_all(tree, weights):
        """Scores of the average policy and of the saved one, which is asked by observation."""

        def evaluate(weights):
            return evaluate_policy(tree, normalise_policy(weights, jnp.asarray(tree.legal_actions)))

        merged = weights if are_told_apart else jax.vmap(merge_observations, (0, None))(weights, numbers)
        return jax.vmap(evaluate)(weights), jax.vmap(evaluate)(merged).exploitability

    evaluate = partial(evaluate_all, jax.device_put(tree))  # an argument: large constants take long to compile
    everything = np.tile(np.float64(tree.legal_actions), (args.num_seeds, 1, 1))
    uniform = float(evaluate(everything)[0].exploitability[0])
    config["uniform_exploitability"] = uniform

    games = args.batch_size if args.sampling != "none" else 1  # iterations that a step is
    checkpoint_path = folder / "checkpoint.msgpack"
    step, tables = restore_checkpoint(checkpoint_path, solver.tables) if args.resume else (0, None)
    tables = solver.tables if tables is None else tables
    num_steps = args.iterations // games
    folder.mkdir(parents=True, exist_ok=True)
    if args.resume:  # of the first start
        first = json.loads((folder / "config.json").read_text())
        config |= {key: first.get(key) for key in ("command", "start")}
    else:
        atomic_write(folder / "script.py", Path(__file__).read_bytes())
    write_config(folder, config, "running")
    print(f"{env}: {size}\n{solver.description}\nrun folder {folder}", flush=True)

    logger, status = None, "failed"
    try:
        logger = RunLogger(
            folder, config, list(range(args.seed, args.seed + args.num_seeds)), name, folder.name, args.wandb_project,
            args.wandb_mode, step * games if args.resume else None,
        )  # fmt: skip
        start = saved = time.perf_counter()
        saving = 0.0  # seconds that the last checkpoint took
        chunk, seconds, steps_timed = 1, 0.0, 0  # a chunk takes about a second
        with tqdm(
            total=num_steps * games, initial=step * games, unit=" iterations", unit_scale=True,
            mininterval=0.5 if sys.stderr.isatty() else 30,
        ) as progress:  # fmt: skip
            while step < num_steps:
                mark = min(1 << step.bit_length(), num_steps)  # the next power of two
                end = min(step + chunk, mark)
                chunk_start = time.perf_counter()
                tables = jax.block_until_ready(solver.advance(tables, step, end))
                chunk_seconds = time.perf_counter() - chunk_start
                seconds, steps_timed = seconds + chunk_seconds, steps_timed + end - step
                chunk = max(int((end - step) / max(chunk_seconds, 1e-6)), 1)
                progress.update((end - step) * games)
                step = end
                if step == mark:
                    weights, is_finite = solver.policy_weights(tables)
                    scores, saved_exploitability = jax.tree.map(np.asarray, evaluate(weights))
                    if not is_finite or not np.isfinite(scores.exploitability).all():
                        last_good = checkpoint_path if checkpoint_path.exists() else "none yet"
                        raise FloatingPointError(
                            f"iteration {step * games}: a number is not finite (last good checkpoint: {last_good})"
                        )
                    logged = {
                        "charts/SPS": np.full(args.num_seeds, args.num_seeds * steps_timed * games / seconds),
                        "eval/exploitability": scores.exploitability,
                        "eval/value_0": scores.values[:, 0],
                    }
                    if not are_told_apart:
                        logged["eval/exploitability_saved"] = saved_exploitability
                    logger.log(step * games, time.perf_counter() - start, logged)
                    progress.set_postfix(exploitability=f"{scores.exploitability.mean():.3g}", refresh=False)
                    if step < num_steps:
                        seconds, steps_timed = 0.0, 0
                if step == num_steps or time.perf_counter() - saved > CHECKPOINT_SECONDS * (1 + saving):
                    saved = time.perf_counter()
                    save_checkpoint(folder, step, tables, tree, solver.policy_weights(tables)[0])
                    saving, saved = time.perf_counter() - saved, time.perf_counter()
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        sync_command = logger.finish(exit_code=status != "finished") if logger else None
        write_config(folder, config | {"end": time.strftime("%Y-%m-%dT%H:%M:%S%z")}, status)

    print_scores(folder / "metrics.csv", config)
    print(f"\nrun folder: {folder}")
    if sync_command:
        print(f"upload to W&B: {sync_command}", flush=True)
    save_curve(folder / "metrics.csv", "eval/exploitability", f"{name}, {config['device']}", uniform, "iterations")


def save_checkpoint(
    folder: Path, step: int, tables: Tables | SampledTables, tree: GameTree, weights: jax.Array
) -> None:
    """Writes `params.msgpack` (the average policy, leading axis S) and all of the run's state."""
    table = make_policy_table(tree, np.asarray(weights))
    atomic_write(folder / "params.msgpack", serialization.msgpack_serialize(table))
    state = serialization.to_state_dict(jax.tree.map(np.asarray, tables))
    atomic_write(folder / "checkpoint.msgpack", serialization.msgpack_serialize({"step": step, "tables": state}))


def restore_checkpoint(path: Path, like: Tables | SampledTables) -> tuple[int, Tables | SampledTables | None]:
    """Steps done and the tables; 0 and None where the run was killed before its first checkpoint.

    Raises:
        OSError: the file cannot be read, or is not a checkpoint of this script under the run's arguments.
    """
    if not path.exists():
        return 0, None
    try:
        saved = serialization.msgpack_restore(path.read_bytes())
        step, tables = saved["step"], serialization.from_state_dict(like, saved["tables"])
        if jax.tree.map(lambda x: (x.shape, x.dtype), tables) != jax.tree.map(lambda x: (x.shape, x.dtype), like):
            raise ValueError("arrays of other shapes")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OSError(errno.EINVAL, f"no checkpoint of this script and these arguments ({error})", str(path)) from None
    return step, jax.device_put(tables)


def print_scores(path: Path, config: dict) -> None:
    """The table that ends a run: exploitability of the average policy after 1, 2, 4, ... iterations."""
    rows = list(csv.DictReader(path.read_text().splitlines()))
    num_seeds = len({row["seed"] for row in rows})
    print(f"\n{'iterations':>12}{'exploitability':>16}{'± 95 %':>12}{'value of player 0':>19}{'seconds':>10}")
    print(f"{'uniform':>12}{config['uniform_exploitability']:16.7f}")
    for _, group in itertools.groupby(rows, key=lambda row: row["global_step"]):
        group = list(group)
        mean, half = mean_and_interval([float(row["eval/exploitability"]) for row in group])
        value, _ = mean_and_interval([float(row["eval/value_0"]) for row in group])
        interval = f"{half:.7f}" if num_seeds > 1 else "-"
        seconds = float(group[0]["wall_time"])
        print(f"{group[0]['global_step']:>12}{mean:16.7g}{interval:>12}{value:19.7f}{seconds:10.2f}")
    if "eval/exploitability_saved" in rows[-1]:
        score = mean_and_interval([float(row["eval/exploitability_saved"]) for row in rows[-num_seeds:]])[0]
        print(f"\nSeats that see alike play alike in the policy that is saved: exploitability {score:.7g}.")
    speed = float(rows[-1]["charts/SPS"])
    print(f"\n{1e3 / speed:,.4f} ms an iteration ({speed:,.0f} in a second{', over all seeds' * (num_seeds > 1)})")


def check_args(args: Args) -> Args:
    """Fills in the default variant.

    Raises:
        ValueError: arguments that cannot work; names the flag, the value and what is allowed.
    """
    for name in ("iterations", "max_nodes", "batch_size", "num_seeds"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1 is allowed")
    for name in ("alpha", "beta", "gamma"):
        if not np.isfinite(getattr(args, name)):
            raise ValueError(f"--{name} {getattr(args, name)}: a finite number is allowed")
    if (args.gamma + 1) * np.log(args.iterations) > 700:  # or the sum of t^γ has no end
        largest = 700 / np.log(args.iterations) - 1
        raise ValueError(f"--gamma {args.gamma}: with --iterations {args.iterations}, at most {largest:.4g} is allowed")
    if not 0 < args.exploration <= 1:
        raise ValueError(f"--exploration {args.exploration}: above 0 and at most 1 is allowed")
    if args.seed < 0 or args.seed + args.num_seeds > 2**31:
        raise ValueError(f"--seed {args.seed}: 0 to 2^31 - --num-seeds is allowed")
    if args.sampling == "none":
        if args.num_seeds > 1:
            raise ValueError(f"--num-seeds {args.num_seeds}: without --sampling nothing is random, so 1 is allowed")
        return dataclasses.replace(args, variant=args.variant or "dcfr")
    if args.variant not in (None, "cfr", "linear"):
        raise ValueError(f"--variant {args.variant}: with --sampling {args.sampling}, cfr or linear is allowed")
    if args.simultaneous:
        raise ValueError(f"--simultaneous: not with --sampling {args.sampling}, whose players take turns")
    if args.iterations % args.batch_size:
        raise ValueError(f"--iterations {args.iterations}: a multiple of --batch-size {args.batch_size} is allowed")
    return dataclasses.replace(args, variant=args.variant or "cfr")


def resolve_env(args: Args):
    """The game, told apart by what a player remembers where it has such observations.

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
            "observation is always what tells information sets apart"
        )
    env = envs.make(args.env, **kwargs)
    return envs.make(args.env, observation="information_state", **kwargs) if hasattr(env, "information_state") else env


def read_run(folder: Path) -> Args:
    """Arguments of a run folder.

    Raises:
        ValueError: it is no run folder of this script.
    """
    try:
        values = json.loads((folder / "config.json").read_text())["args"]
        del values["observation"]
        values |= {"env_kwargs": json.dumps(values["env_kwargs"]), "resume": folder, "runs": Path(values["runs"])}
        return Args(**values)
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        reason = f"config.json has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"--resume {folder}: not the folder of a run of {Path(__file__).name} ({reason})") from None


def parse_args(argv: list[str] | None = None) -> Args:
    """Reads the command line; a resumed run keeps its own arguments.

    Raises:
        ValueError: a flag contradicts the run that is resumed, or the folder is none.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--resume", type=Path)
    known, _ = first.parse_known_args(argv)
    default = Args() if known.resume is None else read_run(known.resume)
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


def fuse_small_loops() -> None:
    """Asks XLA to make one function of a loop that touches little memory, instead of calling its operations one by one:
    four times as fast for Kuhn poker, on a CPU. It has to come before the first thing that JAX computes."""
    if "xla_backend_extra_options" not in (flags := os.environ.get("XLA_FLAGS", "")):
        option = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000"
        os.environ["XLA_FLAGS"] = f"{flags} {option}".strip()


def main(argv: list[str] | None = None) -> None:
    fuse_small_loops()
    try:
        args = check_args(parse_args(argv))
        if args.wandb_mode != "disabled":  # takes seconds; XLA compiles meanwhile
            threading.Thread(target=importlib.import_module, args=("wandb.sdk.launch",), daemon=True).start()
        env = resolve_env(args)
        tree = build_game_tree(env, args.max_nodes)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        with jax.enable_x64(True):
            run(args, env, tree)
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
