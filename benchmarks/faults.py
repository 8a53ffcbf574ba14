"""A run that is killed again and again, and always resumed: does it end as an undisturbed one does?

python benchmarks/faults.py --rounds 50               (--signal TERM for the polite kind)

tests/faults/tormenting.py says how. One JSON object comes last.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.faults.tormenting import ENDED_BY, torment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="how many kills")
    parser.add_argument("--signal", choices=sorted(ENDED_BY), default="KILL")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = torment(
            Path(folder),
            given.rounds,
            given.signal,
            given.seed,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(json.dumps({**vars(given), **vars(tally)}))


if __name__ == "__main__":
    main()
