#!/usr/bin/env python3
"""Draws docs/charts/*.svg, for Sends, from the output of `cargo xtask bench peers --json` (standard input)."""

import json
import re
import sys
from math import ceil, floor, log, log10
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 70, 170, 36, 44
COLORS = {
    "uiw": "#0b61a4",
    "raw TCP": "#555555",
    "raw TCP, large writes": "#555555",
    "raw TCP, one by one": "#999999",
    "UCX, tcp": "#c1440e",
    "libfabric, tcp (mean)": "#3d8b37",
}
UNITS = {"k/s": 1e3, "MB/s": 1e6, "us": 1}


def read(lines):
    """Returns figures by operation, kind of chart, series and message size: bytes per second of
    streams, microseconds of round trips."""
    figures = {}
    for line in lines:
        bench = json.loads(line)
        op, size, latency = re.fullmatch(r"(\w+) (\d+)(, round trip)?", bench["row"]).groups()
        ours, theirs, unit = re.match(r"([\d.]+) beside ([\d.]+) (\S+)", bench["note"]).groups()
        factor = UNITS[unit] * (int(size) if unit == "k/s" else 1)
        peer = bench["ratio"].removeprefix("of ")
        chart = figures.setdefault((op, "round trip" if latency else "throughput"), {})
        if "mean" not in peer:
            chart.setdefault("uiw", {})[int(size)] = float(ours) * factor
        if peer in COLORS:
            chart.setdefault(peer, {})[int(size)] = float(theirs) * factor
    return figures


def short(value, suffixes):
    for limit, suffix in suffixes:
        if value >= limit:
            return f"{value / limit:g}{suffix}"
    return f"{value:g}"


def draw(title, unit, series):
    """Returns a chart with logarithmic axes."""
    sizes = sorted({size for points in series.values() for size in points})
    values = [value for points in series.values() for value in points.values()]
    low, high = 10 ** floor(log10(min(values))), 10 ** ceil(log10(max(values)))

    def fraction(value, start, end):
        return log(value / start) / log(end / start)

    def x(size):
        return LEFT + (WIDTH - LEFT - RIGHT) * fraction(size, sizes[0], sizes[-1])

    def y(value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * fraction(value, low, high)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{title}</text>',
    ]
    tick = low
    while tick <= high * 1.001:
        text = short(tick, [(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s")]) if unit == "B/s" else f"{tick:g} us"
        out.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>')
        tick *= 10
    for size in sizes:
        text = short(size, [(1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B")])
        out.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{text}</text>')
    names = sorted(series, key=list(COLORS).index)
    labels = sorted(names, key=lambda name: -series[name][max(series[name])])
    places = {}
    lowest = TOP - 16
    for name in labels:
        lowest = places[name] = max(lowest + 16, y(series[name][max(series[name])]) + 4)
    for name in names:
        points = [(x(size), y(value)) for size, value in sorted(series[name].items())]
        path = " ".join(f"{at:.1f},{height:.1f}" for at, height in points)
        color = COLORS[name]
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out += [f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3" fill="{color}"/>' for at, height in points]
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{places[name]:.1f}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    folder = Path(__file__).resolve().parents[2] / "docs/charts"
    folder.mkdir(exist_ok=True)
    for (op, kind), series in read(sys.stdin).items():
        if op == "send":
            title = f"{op.capitalize()}s over message size: {kind}"
            unit = "us" if kind == "round trip" else "B/s"
            name = f"{op}-{kind}.svg".replace(" ", "-")
            (folder / name).write_text(draw(title, unit, series))


if __name__ == "__main__":
    main()
