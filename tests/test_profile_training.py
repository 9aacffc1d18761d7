"""The compiled training never waits for the host, and the script's count would say so if it did."""

import jax
import pytest

from baselines.ppo_nfsp import Args, make_train, resolve_env
from scripts.profile_training import Args as ProfileArgs
from scripts.profile_training import count_host_operations, main

TINY = {"num_envs": 8, "num_steps": 4, "hidden_sizes": (8,), "reservoir_size": 64, "avg_steps": 1, "avg_batch_size": 8}


def test_no_operation_of_an_update_talks_to_the_host():
    env, args = resolve_env(Args(**TINY))
    training = make_train(args, env)
    compiled = jax.jit(training.train).lower(jax.eval_shape(training.init, 0), 1).compile()
    assert count_host_operations(compiled) == 0


def test_a_callback_counts_as_talking_to_the_host():
    def chatty(x):
        jax.debug.callback(lambda _: None, x)
        return x + 1

    assert count_host_operations(jax.jit(chatty).lower(1.0).compile()) > 0


def test_unknown_game_is_refused_with_the_games_there_are(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(ProfileArgs(env=("chess",)))
    assert "kuhn_poker" in capsys.readouterr().err
