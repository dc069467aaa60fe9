"""What the README promises of its first command, read from the run that it left behind."""

import sys
from pathlib import Path

from sspo_teach.training.folder import RunFolder, read_config

run = RunFolder(Path(sys.argv[1]))
config, history, evaluations = read_config(run.path), run.history(), run.evaluations()


def gain(way: str) -> float:
    first, last = (evaluations[i][way]["correct"]["share"] for i in (0, -1))
    return 100 * (last - first)


moved = sum(row["moved"] for row in history) / len(history)
print(f"sampled {gain('sampled'):+.1f} points, greedy {gain('greedy'):+.1f} points, moved {moved:.1%}")
assert gain("sampled") >= 25, "sampled accuracy on held-out additions must rise by 25 points"
assert gain("greedy") >= 8, "greedy accuracy on held-out additions must rise by 8 points"
assert config.minibatches * config.epochs >= 4, "with fewer updates per batch the gate is not tested"
assert moved > 0.01, "ratios hardly moved: the gate is not tested"
