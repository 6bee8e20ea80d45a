# SPDX-License-Identifier: Apache-2.0
"""Plots the held-out losses of two runs in one picture, with the training losses as thin lines behind them.

usage: plot_curves.py OUT.svg NAME_A=METRICS_A.jsonl NAME_B=METRICS_B.jsonl

Each file has one JSON object per line: {"step", "loss", ...} or {"step", "eval_loss", ...}: a run's metrics.jsonl, or what
peers/nanogpt_shakespeare.py --out writes.
"""
import json
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 56, 16, 34, 44
COLOURS = ("#1f6feb", "#d1541f")


def read(path):
    rows = [json.loads(line) for line in open(path, encoding="utf-8")]
    train = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    held_out = [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row]
    return train, held_out


def smooth(points, width=20):
    """Averages groups of `width` points, so that the noise of single batches does not hide the curve."""
    groups = [points[i:i + width] for i in range(0, len(points), width)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def main():
    out, *arguments = sys.argv[1:]
    runs = [(name, *read(path)) for name, path in (argument.split("=", 1) for argument in arguments)]
    last = max(x for _, train, _ in runs for x, _ in train)
    low, high = 1.6, 4.0
    fx = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / last
    fy = lambda y: TOP + (HEIGHT - TOP - BOTTOM) * (high - min(max(y, low), high)) / (high - low)
    line = lambda points: " ".join(f"{fx(x):.1f},{fy(y):.1f}" for x, y in points)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for tick in (2.0, 2.5, 3.0, 3.5, 4.0):
        svg.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{fy(tick):.1f}" y2="{fy(tick):.1f}" stroke="#e4e7eb"/>')
        svg.append(f'<text x="{LEFT - 8}" y="{fy(tick) + 4:.1f}" text-anchor="end" fill="#57606a">{tick:.1f}</text>')
    for tick in range(0, last + 1, 250):
        svg.append(f'<text x="{fx(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#57606a">{tick}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#57606a">step</text>')
    svg.append(f'<text x="{LEFT}" y="18" fill="#24292f">loss, nats a byte: held-out (thick) and training (thin)</text>')
    for index, (name, train, held_out) in enumerate(runs):
        colour = COLOURS[index]
        svg.append(f'<polyline points="{line(smooth(train))}" fill="none" stroke="{colour}" stroke-opacity="0.35"/>')
        svg.append(f'<polyline points="{line(held_out)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        svg += [f'<circle cx="{fx(x):.1f}" cy="{fy(y):.1f}" r="3" fill="{colour}"/>' for x, y in held_out]
        y = TOP + 22 + 20 * index
        svg.append(f'<rect x="{WIDTH - 300}" y="{y - 9}" width="14" height="4" fill="{colour}"/>')
        svg.append(f'<text x="{WIDTH - 280}" y="{y - 2}" fill="#24292f">{name}: {held_out[-1][1]:.3f} at step {held_out[-1][0]}</text>')
    svg.append("</svg>")
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
