# SPDX-License-Identifier: Apache-2.0
"""A copy of an installed Cyborg with the patch of this directory, which adds the entry point cyborg.quota."""

from __future__ import annotations

import pathlib
import re
import shutil

from tests import installing

PATCH = pathlib.Path(__file__).with_name("cyborg.patch")


def ensure(programs: pathlib.Path) -> pathlib.Path:
    """Patch a copy of the Cyborg of this environment if that was not done; returns the directory of its programs.

    The other packages are those of the environment: a file that lists its directory is in that of the copy. Raises
    NotAvailable.
    """
    environment = programs.parent
    directory = environment.parent / "patched"
    stamp = installing.stamp_of((environment.parent / "services.stamp").read_text(), PATCH.read_text(), __doc__ or "")
    with installing.locked(environment.parent / "lock"), installing.stamped(directory / "stamp", stamp) as needed:
        if needed:
            _make(directory, environment)
    return directory / "bin"


def _make(directory: pathlib.Path, environment: pathlib.Path) -> None:
    installing.make_environment(directory)
    [theirs] = environment.glob("lib/python*/site-packages")
    [ours] = directory.glob("lib/python*/site-packages")
    for found in (theirs / "cyborg", *theirs.glob("openstack_cyborg-*.dist-info")):
        shutil.copytree(found, ours / found.name)
    (ours / "environment.pth").write_text(f"{theirs}\n")
    for program in environment.glob("bin/cyborg*"):
        shutil.copy(program, directory / "bin")
    # (In a directory that belongs to a repository, git applies the patch to that.)
    apply = ["git", "-C", str(ours), "apply", "--whitespace=nowarn", "--include=cyborg/*", str(PATCH)]
    installing.run(apply, installing.STEP_TIMEOUT_SECONDS, GIT_CEILING_DIRECTORIES=str(ours.parent))
    [metadata] = ours.glob("openstack_cyborg-*.dist-info/entry_points.txt")
    with metadata.open("a") as file:
        file.write("".join(_entry_points()))


def _entry_points() -> list[str]:
    """The lines that the patch adds to pyproject.toml, as an installation writes them."""
    added = PATCH.read_text().partition("+++ b/pyproject.toml")[2]
    lines = re.findall(r"^\+(.+)\n", added, re.MULTILINE)
    return [re.sub(r'project\.entry-points\.|"', "", line) + "\n" for line in lines]
