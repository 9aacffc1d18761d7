"""Set before any test imports jax: how strict it is, and where compiled programs of subprocesses are kept."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)  # most of the tests' time is compiling
# The cache is for subprocesses only: its files are not written atomically, and of two pytest workers one may find the
# other's half-written entry, which jax reports as a warning and pytest takes for a failure.
jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """A process that holds the programs of all modules runs out of memory maps, and XLA crashes."""
    yield
    jax.clear_caches()
