"""Searches for bytes that break a parser, with other examples in each round, until the time is over.

    make fuzz ARGS="--minutes 60"

The tests are those marked `fuzz`, which `make test` runs with the same few examples each time. What fails is kept in
.hypothesis/examples, and comes first in the next run; the output says how to repeat it.

Exit status: 0 when nothing was found, 1 when something was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["tests", *(str(one) for one in sorted(ROOT.glob("plugins/*/tests")))]
COMMAND = [sys.executable, "-m", "pytest", "-q", "-m", "fuzz", "--hypothesis-profile=search", *PLACES]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description="Search for bytes that break a parser.")
    parser.add_argument("--minutes", type=float, default=1.0, help="no round begins after this time (1)")
    parser.add_argument("pytest", nargs="*", help="more arguments of pytest, after --")
    parsed = parser.parse_args()
    end = time.monotonic() + 60 * parsed.minutes
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        if subprocess.run([*COMMAND, *parsed.pytest], cwd=ROOT, check=False).returncode:
            return 1
        rounds += 1
    sys.stdout.write(f"nothing found in {rounds} rounds\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
