"""Drawings of a report, as SVG: each a phone's width, its text real text.

They need matplotlib, which is imported when one is drawn.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from . import problems
from .analysis import LOSS, TIE, WIN, Run, best_peer, verdict
from .arms import BASE, MAIN, NAMES, OWN
from .blocks import Figure
from .cells import OPERATORS
from .stats import NULL_LIMIT
from .store import Measured

WIDTH = 3.7  # inches: 355 CSS pixels
INK, QUIET, GRID = "#1b1f24", "#6a7078", "#d9dde2"
RED = "#b3121d"
# Dark enough to read on white, told apart by those who do not see red and green, and with a marker each.
ARM_STYLE = {
    MAIN: ("#0b5fa5", "o"),
    "eager": (QUIET, "s"),
    "eager_parts": ("#8f959d", "D"),
    "F.rms_norm": ("#4d7c0f", "v"),
    "compile": ("#a3316f", "P"),
    "vllm": ("#b45309", "^"),
    "hub": ("#6d3fb0", "X"),
    "onnxruntime": ("#0f766e", "d"),
}
OPERATOR_STYLE = dict(zip(OPERATORS, list(ARM_STYLE.values())[:1] + list(ARM_STYLE.values())[3:]))
# Never in one drawing with the libraries for the CPU.
ARM_STYLE |= {
    "flashinfer": ARM_STYLE["hub"],
    "sglang": ARM_STYLE["onnxruntime"],
    "vllm_cuda": ARM_STYLE["vllm"],
    "liger": ("#7c2d12", "<"),
}
VERDICT_STYLE = {WIN: ("#0b5fa5", "o", "full"), TIE: ("#0b5fa5", "o", "none"), LOSS: (RED, "D", "full")}

_numbers = itertools.count(1)


def _figure(height: float) -> tuple[Any, Any]:
    """A figure with one pair of axes in the page's style.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    style = {"svg.fonttype": "none", "svg.hashsalt": "edge-ops", "font.family": "sans-serif", "font.size": 8.5}
    matplotlib.rcParams.update(style)
    drawing = Drawing(figsize=(WIDTH, height), layout="constrained")
    axes = drawing.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(colors=INK, labelsize=8)
    return drawing, axes


def _finish(drawing: Any, label: str) -> Figure:
    target = io.StringIO()
    drawing.savefig(target, format="svg", metadata={"Date": None})
    svg = target.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    # Identifiers are unique in the drawing only, and a page holds many.
    mark = f"p{next(_numbers)}"
    svg = re.sub(r'\bid="', f'id="{mark}-', svg)
    svg = re.sub(r"url\(#", f"url(#{mark}-", svg)
    svg = re.sub(r'href="#', f'href="#{mark}-', svg)
    return Figure(svg, label)


def _multiples(axes: Any, which: str) -> None:
    """A logarithmic axis of multiples, labelled 0.5, 1, 2, 5, ..."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    span = math.log10(high / low)
    steps = (1, 2, 5) if span < 1.8 else (1, 3) if span < 2.6 else (1,)
    ticks = [step * 10.0**power for power in range(-3, 7) for step in steps]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _legend(axes: Any, columns: int) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, frameon=False, fontsize=8, handletextpad=0.3,
        columnspacing=1.0, borderaxespad=0,
    )  # fmt: skip


def speedups(found: Sequence[Measured], title: str) -> Figure:
    """How many times faster Edge-ops is than eager and than the best peer, a line a shape, with quartiles."""
    order = sorted(found, key=lambda one: one.cell.tokens)
    drawing, axes = _figure(0.85 + 0.158 * len(order))
    seen: set[str] = set()

    def dot(value: Any, row: int, colour: str, marker: str, name: str, fill: str = "full") -> None:
        axes.plot([value.low, value.high], [row, row], color=colour, linewidth=1.1, alpha=0.6, zorder=2)
        axes.plot(
            value.value, row, marker, color=colour, fillstyle=fill, markersize=4.2, zorder=3,
            markeredgewidth=1, linestyle="none", label=None if name in seen else name,
        )  # fmt: skip
        seen.add(name)

    for row, one in enumerate(order):
        if one.has(BASE):
            dot(one.speedup(MAIN, BASE), row, *ARM_STYLE[BASE], "than eager")
        peer = best_peer(one)
        if peer is not None:
            kind = verdict(one, peer)
            colour, marker, fill = VERDICT_STYLE[kind]
            names = {WIN: "than the best peer", TIE: "tie with it", LOSS: "slower than it"}
            dot(one.speedup(MAIN, peer), row, colour, marker, names[kind], fill)
        if row and one.cell.tokens != order[row - 1].cell.tokens:
            axes.axhline(row - 0.5, color=GRID, linewidth=0.8, zorder=0)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    axes.set_xscale("log")
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.8), max(right, 3))
    _multiples(axes, "x")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(order)), [one.cell.shape for one in order], fontsize=7.5)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlabel("times faster")
    _legend(axes, 3 if len(seen) > 2 else 2)
    return _finish(drawing, f"{title}: how many times faster Edge-ops is, shape by shape")


def _crossing(tokens: Sequence[int], own: Sequence[float], other: Sequence[float]) -> float | None:
    """Where the other arm's line passes Edge-ops', between two measured token counts."""
    for index in range(1, len(tokens)):
        before, after = (math.log(own[i] / other[i]) for i in (index - 1, index))
        if before * after < 0:
            share = before / (before - after)
            return math.exp(math.log(tokens[index - 1]) * (1 - share) + math.log(tokens[index]) * share)
    return None


def latencies(found: Sequence[Measured], title: str) -> Figure:
    """Time against tokens at one geometry: a line an arm, and one for each further thread count of Edge-ops."""
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    fewest = min(one.threads for one in found)
    for one in found:
        for name in NAMES:
            if one.has(name) and one.threads == fewest and (name not in OWN or name == MAIN):
                lines[name][one.cell.tokens] = one.nanoseconds(name)[1] / 1000
        if one.threads != fewest and one.has(MAIN):
            lines[f"{MAIN}, {one.threads} threads"][one.cell.tokens] = one.nanoseconds(MAIN)[1] / 1000
    drawing, axes = _figure(2.9)
    for name, line in lines.items():
        arm = name.split(",")[0]
        colour, marker = ARM_STYLE[arm]
        tokens = sorted(line)
        style = "--" if name != arm else "-"
        axes.plot(
            tokens, [line[count] for count in tokens], style, color=colour, marker=marker, markersize=4,
            linewidth=2 if name == MAIN else 1.1, label=name, zorder=4 if arm == MAIN else 3,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted({count for line in lines.values() for count in line})
    axes.set_xticks(counts, list(map(str, counts)))
    axes.minorticks_off()
    _multiples(axes, "y")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_xlabel("tokens")
    axes.set_ylabel("µs a call")
    notes = []
    own = lines[MAIN]
    for name, line in lines.items():
        shared = [count for count in counts if count in line and count in own]
        crossing = _crossing(shared, [own[c] for c in shared], [line[c] for c in shared]) if name != MAIN else None
        if crossing is not None:
            height = math.exp(_interpolated(own, crossing))
            axes.plot(crossing, height, "o", color=RED, fillstyle="none", markersize=10, zorder=5)
            notes.append(f"{name} crosses at {crossing:.0f} tokens")
    axes.annotate(
        "\n".join(notes) or "no line crosses Edge-ops'", (0.02, 0.98), xycoords="axes fraction", va="top",
        fontsize=8, color=RED if notes else QUIET,
    )  # fmt: skip
    _legend(axes, 3)
    return _finish(drawing, f"{title}: time of a call against the number of tokens")


def _interpolated(line: dict[int, float], tokens: float) -> float:
    """Logarithm of the time at a token count between two measured ones."""
    counts = sorted(line)
    upper = next(i for i in range(1, len(counts)) if counts[i] >= tokens)
    a, b = counts[upper - 1], counts[upper]
    share = math.log(tokens / a) / math.log(b / a)
    return math.log(line[a]) * (1 - share) + math.log(line[b]) * share


def roofline(run: Run, found: Iterable[Measured], title: str) -> Figure:
    """How far each cell is from a copy of its bytes, against the bytes."""
    drawing, axes = _figure(2.9)
    points: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for one in found:
        roof = run.roof_ns(one)
        if roof is not None:
            xs, ys = points[one.cell.operator]
            xs.append(problems.traffic(one.cell).moved / 1024)
            ys.append(one.nanoseconds(MAIN)[1] / roof)
    for operator, (xs, ys) in points.items():
        colour, marker = OPERATOR_STYLE[operator]
        axes.plot(xs, ys, marker, color=colour, markersize=4, linestyle="none", alpha=0.8, label=operator)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _, top = axes.get_ylim()
    axes.set_ylim(0.5, max(top, 2))
    _multiples(axes, "x")
    _multiples(axes, "y")
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_xlabel("KiB read and written")
    axes.set_ylabel("time, in copies of as many bytes")
    _legend(axes, 2)
    return _finish(drawing, f"{title}: distance from the copy bandwidth; 1 is a plain copy of as many bytes")


def null_spread(found: Iterable[Measured], title: str) -> Figure:
    """How far the two identical arms of each pass lie apart."""
    differences = [100 * difference for one in found for difference in one.differences]
    drawing, axes = _figure(2.3)
    limit, edges = 100 * NULL_LIMIT, [index / 10 for index in range(31)]
    clipped = [min(difference, edges[-1] - 1e-9) for difference in differences]
    kept, dropped = ([d for d in clipped if (d <= limit) == keep] for keep in (True, False))
    axes.hist(
        [kept, dropped], bins=edges, stacked=True, color=["#0b5fa5", "#e3a6a9"],
        label=[f"kept, {len(kept)} passes", f"dropped, {len(dropped)}"],
    )  # fmt: skip
    axes.axvline(limit, color=INK, linewidth=1)
    axes.set_xlabel("difference between twins, % (3 and more in the last bar)")
    axes.set_ylabel("passes")
    _legend(axes, 2)
    return _finish(drawing, f"{title}: how far the two identical arms of a pass lie apart")


def representative(operator_cells: Sequence[Measured]) -> list[Measured]:
    """The cells of the geometry that was measured at the most token counts, the first of them."""
    by_shape: dict[str, list[Measured]] = defaultdict(list)
    for one in operator_cells:
        by_shape[one.cell.geometry.label].append(one)
    preferred = ("1024", "3072", "16/8x128")
    most = max(len({one.cell.tokens for one in members}) for members in by_shape.values())
    full = [label for label, members in by_shape.items() if len({one.cell.tokens for one in members}) == most]
    chosen = next((label for label in preferred if label in full), full[0])
    return by_shape[chosen]


__all__ = ["latencies", "null_spread", "representative", "roofline", "speedups"]
