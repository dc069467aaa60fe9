"""Figures of the question whether SSPO trades bias against noise better than its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from sspo_teach.plotting.style import looks

Rows = Sequence[Mapping[str, Any]]


def trade_off(rows: Rows, *, batch: int = 256, distance: float = 0.3) -> Figure:
    """Bias against noise along each method's own number, means over problems; the ends of a curve have their number.

    Args:
        rows: with method, number, problem, bias and noise (``claim.by_knob``).
        batch: groups in a batch; noise is √(noise/batch).
        distance: KL(old ‖ new) at which the rows were taken, for the title.
    """
    figure = Figure(figsize=(7.6, 5.0), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["method"] for row in rows))
    for name, look in looks(names).items():
        numbers = list(dict.fromkeys(row["number"] for row in rows if row["method"] == name))
        points = []
        for number in numbers:
            own = [row for row in rows if (row["method"], row["number"]) == (name, number)]
            mean = {key: sum(row[key] for row in own) / len(own) for key in ("bias", "noise")}
            points.append(((mean["noise"] / batch) ** 0.5, mean["bias"]))
        axes.plot(*zip(*points, strict=True), **look, label=name)
        for i in (0, -1):
            axes.annotate(f"{numbers[i]:g}", points[i], fontsize="x-small", color=look["color"], xytext=(4, 4),
                          textcoords="offset points")  # fmt: skip
    axes.set(xlabel=f"noise of {batch} groups, relative to |∇J|", ylabel="bias of the direction, relative to |∇J|")
    axes.set_title(
        f"Each method trades bias for noise; SSPO reaches the least bias, at more noise than a clip\n"
        f"ε or τ from end to end of each curve, KL(old ‖ new) = {distance:g}, all else equal",
        loc="left", fontsize="small",
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    return figure


def error_ratio(rows: Rows, *, drift: str = "random", batches: Sequence[int] = (16, 256, 4096)) -> Figure:
    """SSPO's squared error over each rival's against KL(old ‖ new), with 95 % intervals over problems.

    Args:
        rows: with drift, distance, setting, rival, measure, ratio, low and high (``claim.paired``).
        drift: the one that is drawn.
        batches: groups in a batch, one column each.
    """
    own = [row for row in rows if row["drift"] == drift]
    settings = list(dict.fromkeys(row["setting"] for row in own))
    figure = Figure(figsize=(3.4 * len(batches) + 1.2, 2.7 * len(settings) + 0.4), layout="constrained")
    grid = figure.subplots(len(settings), len(batches), sharex=True, sharey=True, squeeze=False)
    names = list(dict.fromkeys(row["rival"] for row in own))
    distances = sorted({row["distance"] for row in own})
    for i, setting in enumerate(settings):
        for j, batch in enumerate(batches):
            axes = grid[i][j]
            for k, (name, look) in enumerate(looks(names).items()):
                line = [r for r in own if (r["rival"], r["setting"], r["measure"]) == (name, setting, f"mse_{batch}")]
                x = [distances.index(row["distance"]) + 0.09 * (k - (len(names) - 1) / 2) for row in line]
                y = [row["ratio"] for row in line]
                bars = [
                    [row["ratio"] - row["low"] for row in line],
                    [row["high"] - row["ratio"] for row in line],
                ]
                axes.errorbar(x, y, bars, **look, capsize=2, lw=1.2, label=name)
            axes.axhline(1, color="0.4", lw=0.8, zorder=0)
            axes.set(yscale="log")
            axes.set_xticks(range(len(distances)), [f"{distance:g}" for distance in distances])
            axes.set_title(f"{setting}, {batch} groups", fontsize="small", loc="left")
            axes.spines[["top", "right"]].set_visible(False)
        grid[i][0].set_ylabel("SSPO's error over the rival's")
    for axes in grid[-1]:
        axes.set_xlabel("KL(old ‖ new), nats per response")
    ticks = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
    grid[0][0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    grid[0][0].set_yticks([], minor=True)
    figure.suptitle(f"Below the line SSPO's step errs less than the rival's: drift {drift}", x=0.01, ha="left")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title="rival", fontsize="small")
    return figure


def along_tau(rows: Rows, *, setting: str = "all else equal", batches: Sequence[int] = (16, 256, 4096)) -> Figure:
    """SSPO's squared error against τ (of positive advantages), means over problems, a curve per KL(old ‖ new)."""
    own = [row for row in rows if row["setting"] == setting]
    figure = Figure(figsize=(3.4 * len(batches) + 1.0, 3.4), layout="constrained")
    distances = sorted({row["distance"] for row in own})
    taus = sorted({row["tau"] for row in own}, key=_first)
    for axes, batch in zip(figure.subplots(1, len(batches), sharey=True), batches, strict=True):
        for i, distance in enumerate(distances):
            errors = []
            for tau in taus:
                here = [row[f"mse_{batch}"] for row in own if (row["distance"], row["tau"]) == (distance, tau)]
                errors.append(sum(here) / len(here))
            shade = str(0.75 - 0.75 * i / max(len(distances) - 1, 1))
            axes.plot(range(len(taus)), errors, color=shade, marker="o", ms=3.5, label=f"{distance:g}")
        axes.set_xticks(range(len(taus)), taus, rotation=45, fontsize="small")
        axes.set(xlabel="τ⁺/τ⁻", ylim=(0, 1))
        axes.set_title(f"{batch} groups", fontsize="small", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("error of a step (0 exact, 1 none)")
    figure.suptitle("A small τ errs least once a batch averages the noise away", x=0.01, ha="left")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title="KL", fontsize="small")
    return figure


def _first(tau: str) -> tuple[float, ...]:
    return tuple(float(part) for part in tau.split("/"))
