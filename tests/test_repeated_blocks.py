"""Blocks that stand in several files, so that each file can be copied alone, are the same in all of them."""

import ast
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from envs import kuhn_poker

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("envs", "baselines", "solvers", "scripts")
MARK = re.compile(r"# repeated block: (\w+) \(tests/test_repeated_blocks\.py\)")
BLOCKS = {
    "atomic_write": ("baselines/ppo_nfsp.py",),
    "RunLogger": ("baselines/ppo_nfsp.py",),
    "save_curve": ("baselines/ppo_nfsp.py",),
    "mean_and_interval": ("baselines/ppo_nfsp.py",),
    "auto_reset": ("envs/kuhn_poker.py", "envs/leduc_holdem.py"),
    "select_state": ("envs/kuhn_poker.py", "envs/leduc_holdem.py"),
    "one_hot": ("envs/kuhn_poker.py", "envs/leduc_holdem.py"),
}


def definitions(source):
    """{first line (that of the first decorator): (source up to the last line, name)} of module-level definitions."""
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[first] = ("\n".join(lines[first - 1 : node.end_lineno]), node.name)
    return found


def find_faults(root, blocks):
    """One line for each way in which the files under `root` are not as `blocks` lists them."""
    faults = []
    copies = {name: {} for name in blocks}  # {block: {file: source}}
    unmarked = []  # (file, name, source)
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        rest = definitions(source)
        for number, line in enumerate(source.splitlines(), 1):
            if not line.lstrip().startswith("# repeated block"):
                continue
            mark = MARK.fullmatch(line)
            if mark is None:
                faults.append(f"{file}:{number}: not of the form {MARK.pattern}")
            elif number + 1 not in rest:
                faults.append(f"{file}:{number}: no module-level definition directly below")
            elif file in copies.setdefault(mark[1], {}):
                faults.append(f"{file}:{number}: a second {mark[1]} in one file")
            else:
                copies[mark[1]][file] = rest.pop(number + 1)[0]
        unmarked += [(file, name, text) for text, name in rest.values()]

    for block, files in copies.items():
        faults += [
            f"{file}: {block} is not listed in BLOCKS" for file in sorted(set(files) - set(blocks.get(block, ())))
        ]
        faults += [f"{file}: {block} is listed, not there" for file in sorted(set(blocks.get(block, ())) - set(files))]
        faults += [
            f"{file}: {name} is a copy of {block} without its mark"
            for file, name, text in unmarked
            if text in files.values()
        ]
        first, *others = files or [None]
        faults += [f"{file}: {block} differs from that in {first}" for file in others if files[file] != files[first]]
    return faults


def test_every_copy_of_a_repeated_block_is_listed_and_the_same():
    assert find_faults(ROOT, BLOCKS) == []


BLOCK = """
import functools

# repeated block: twice (tests/test_repeated_blocks.py)
@functools.cache
def _twice(x):
    # a comment
    return 2 * x


rest = 1
"""


@pytest.mark.parametrize(
    ("second", "faults"),
    [
        (BLOCK, []),
        ("rest = 2\n" + BLOCK, []),
        (BLOCK.replace("# a comment", "# another"), ["solvers/b.py: twice differs from that in envs/a.py"]),
        (BLOCK.replace("@functools.cache\n", ""), ["solvers/b.py: twice differs from that in envs/a.py"]),
        (BLOCK.replace("2 * x", "x"), ["solvers/b.py: twice differs from that in envs/a.py"]),
        ("rest = 1", ["solvers/b.py: twice is listed, not there"]),
        (
            BLOCK.replace("# repeated", "# Repeated"),
            ["solvers/b.py: twice is listed, not there", "solvers/b.py: _twice is a copy of twice without its mark"],
        ),
        (
            BLOCK.replace("twice (", "thrice ("),
            ["solvers/b.py: twice is listed, not there", "solvers/b.py: thrice is not listed in BLOCKS"],
        ),
        (BLOCK + BLOCK, ["solvers/b.py:15: a second twice in one file"]),
        (
            BLOCK.replace("@functools", "\n@functools"),
            ["solvers/b.py:4: no module-level definition directly below"],
        ),
        (BLOCK.replace("(tests/", "(test/"), [f"solvers/b.py:4: not of the form {MARK.pattern}"]),
    ],
)
def test_a_copy_that_differs_or_is_not_listed_is_found(tmp_path, second, faults):
    for file, source in (("envs/a.py", BLOCK), ("solvers/b.py", second)):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(source, encoding="utf-8")
    found = find_faults(tmp_path, {"twice": ("envs/a.py", "solvers/b.py")})
    assert set(faults) <= set(found)
    assert bool(faults) == bool(found)


def test_one_hot_is_1_at_its_index_and_all_zeros_outside():
    for index in range(-2, 6):
        row = kuhn_poker._one_hot(jnp.int32(index), 4)
        assert row.dtype == jnp.float32
        np.testing.assert_array_equal(row, [float(index == place) for place in range(4)])
    np.testing.assert_array_equal(kuhn_poker._one_hot(jnp.bool_(True), 2), [0, 1])
