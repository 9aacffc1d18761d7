"""Where the time of a training goes: milliseconds of each phase of one update, alone and in all.

    python scripts/profile_training.py --env kuhn_poker leduc_holdem

Every phase of `baselines/ppo_nfsp.py` is compiled and timed on its own, one seed, with the script's defaults; "update"
is all of them in one program, as a run does it. "env" is a part of "collect": as many steps with the first legal action
and no network. Also counts the operations of the compiled training that talk to the host: there have to be none.
"""

import os
import platform
import re
import statistics
import sys
import time
from dataclasses import dataclass

import jax
import tyro

import envs
from baselines import ppo_nfsp
from solvers.game_tree import build_game_tree

HOST_OPERATION = re.compile(r"callback|infeed\(|outfeed\(|send\(|recv\(")


@dataclass
class Args:
    env: tuple[str, ...] = ("kuhn_poker", "leduc_holdem")
    """games to train"""
    updates: int = 100
    """updates before the timing, so that the reservoir is not empty"""
    repeats: int = 15
    """timed calls of each phase; the median counts"""


def count_host_operations(compiled) -> int:
    """Operations of a compiled program that wait for the host."""
    return len(HOST_OPERATION.findall(compiled.as_text()))


def milliseconds(function_of_phase, *inputs, repeats: int) -> float:
    """Median time of a jitted phase after a first call; states come back without reservoir, so it is not copied."""

    def without_reservoir(x):
        return x.replace(reservoir=None) if isinstance(x, ppo_nfsp.TrainState) else x

    function = jax.jit(
        lambda *inputs: jax.tree.map(
            without_reservoir, function_of_phase(*inputs), is_leaf=lambda x: isinstance(x, ppo_nfsp.TrainState)
        )
    )
    jax.block_until_ready(function(*inputs))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*inputs))
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def profile(name: str, args: Args) -> None:
    """Prints the table of one game."""
    env, run_args = ppo_nfsp.resolve_env(ppo_nfsp.Args(env=name))
    training = ppo_nfsp.make_train(run_args, env)
    train = jax.jit(training.train).lower(jax.eval_shape(training.init, 0), 1).compile()
    state, _ = train(jax.jit(training.init)(0), args.updates)
    keys = jax.random.split(jax.random.key(1), 4)
    _, batch = jax.jit(training.collect)(state, keys[0])
    params = {"average": state.average, "best_response": state.best_response}
    policy = ppo_nfsp.make_policy(ppo_nfsp.make_config(run_args))
    evaluate = ppo_nfsp.make_evaluate(run_args, env, policy, build_game_tree(env))

    def step_envs(env_state):
        def step(env_state, _):
            env_state, obs, reward, *_ = jax.vmap(env.step)(
                env_state, jax.vmap(env.legal_actions)(env_state).argmax(-1)
            )
            return env_state, (obs, reward)

        return jax.lax.scan(step, env_state, length=run_args.num_steps)

    def timed(function, *inputs):
        return milliseconds(function, *inputs, repeats=args.repeats)

    times = {
        "collect": timed(training.collect, state, keys[0]),
        "  of it env": timed(step_envs, state.env_state),
        "best response (forward, backward)": timed(training.update_best_response, state, keys[1], batch),
        "reservoir": timed(
            lambda state: (
                jax.lax.fori_loop(0, 10, lambda _, s: training.fill_reservoir(s, keys[2], batch), state).reservoir
            ),
            state,
        )
        / 10,
        "average policy (forward, backward)": timed(training.update_average, state, keys[3]),
        "update": timed(lambda state: training.train(state, 10), state) / 10,
        "evaluation, once a log step": timed(evaluate, params, keys[0]),
    }
    samples = run_args.num_envs * run_args.num_steps
    print(f"\n{name}: {1000 * samples / times['update']:,.0f} samples/s, {samples} samples an update")
    for phase, time_ms in times.items():
        print(f"  {phase:36}{time_ms:9.2f} ms{100 * time_ms / times['update']:8.0f} %")
    print(f"  operations that talk to the host: {count_host_operations(train)}")


def main(args: Args) -> None:
    for name in args.env:
        if name not in envs.available_envs():
            print(f"error: --env {name}: available are {', '.join(envs.available_envs())}", file=sys.stderr)
            sys.exit(2)
    device = jax.devices()[0].device_kind
    print(f"jax {jax.__version__} on {device}, {platform.machine()}, {os.cpu_count()} cores")
    for name in args.env:
        profile(name, args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
