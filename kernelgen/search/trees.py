"""Extremely randomised regression trees (Geurts, Ernst, Wehenkel 2006), grown level by level, all trees at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelgen.search.points import Floats, Places

TREES = 24


@dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one list; the first nodes are the roots. Of a leaf the feature is -1."""

    trees: int
    depth: int
    feature: Places
    threshold: Floats
    child: Places
    """The node for what is not above the threshold; the next one is for what is."""
    value: Floats

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation over the trees. x: (points, features)."""
        points, width = x.shape
        flat, first = x.ravel(), np.arange(points) * width
        total, squares = np.zeros(points), np.zeros(points)
        for root in range(self.trees):
            at, moving = np.full(points, root), np.arange(points)
            for _ in range(self.depth):
                feature = self.feature[at[moving]]
                inner = feature >= 0
                moving, feature = moving[inner], feature[inner]
                if not moving.size:
                    break
                node = at[moving]
                at[moving] = self.child[node] + (flat[first[moving] + feature] > self.threshold[node])
            found = self.value[at]
            total += found
            squares += found * found
        mean = total / self.trees
        return mean, np.sqrt(np.maximum(squares / self.trees - mean * mean, 0.0))


def grow(x: Floats, y: Floats, rng: np.random.Generator) -> Forest:
    """Trees that fit every sample. x: (samples, features), y: (samples,).

    A node draws one threshold a feature and takes the one that explains the most; it is a leaf where its samples
    are equal.
    """
    count = len(y)
    rows, sizes, made = np.tile(np.arange(count), TREES), np.full(TREES, count), TREES
    levels: list[tuple[Places, Floats, Places, Floats]] = []
    while len(sizes):
        nodes = len(sizes)
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        xs, ys = x[rows], y[rows]
        low, high = np.minimum.reduceat(xs, begins, axis=0), np.maximum.reduceat(xs, begins, axis=0)
        sums = np.add.reduceat(ys, begins)
        feature, threshold, child = np.full(nodes, -1), np.zeros(nodes), np.zeros(nodes, dtype=np.int64)
        levels.append((feature, threshold, child, sums / sizes))
        varied = np.minimum.reduceat(ys, begins) < np.maximum.reduceat(ys, begins)
        split = np.flatnonzero(varied & (low < high).any(axis=1))
        if not split.size:
            break
        inside = np.repeat(np.isin(np.arange(nodes), split), sizes)
        rows, xs, ys, sizes = rows[inside], xs[inside], ys[inside], sizes[split]
        begins, owner = np.concatenate([[0], np.cumsum(sizes)[:-1]]), np.repeat(np.arange(len(split)), sizes)
        cuts = low[split] + (high[split] - low[split]) * rng.random((len(split), x.shape[1]))
        below = xs <= cuts[owner]
        counts = np.add.reduceat(below.astype(np.float64), begins, axis=0)
        left = np.add.reduceat(below * ys[:, None], begins, axis=0)
        best = _explained(counts, sizes[:, None] - counts, left, sums[split][:, None] - left).argmax(axis=1)
        each = np.arange(len(split))
        feature[split], threshold[split], child[split] = best, cuts[each, best], made + 2 * each
        above = ~below[np.arange(len(rows)), best[owner]]
        rows = rows[np.argsort(2 * owner + above, kind="stable")]
        lefts = counts[each, best].astype(np.int64)
        sizes = np.stack([lefts, sizes - lefts], axis=1).ravel()
        made += len(sizes)
    parts = [np.concatenate(part) for part in zip(*levels, strict=True)]
    return Forest(TREES, len(levels), parts[0].astype(np.int64), parts[1], parts[2].astype(np.int64), parts[3])


def _explained(left: Floats, right: Floats, left_sum: Floats, right_sum: Floats) -> Floats:
    """How much of the variance a cut explains, up to a constant of its node; nothing where one side is empty."""
    with np.errstate(divide="ignore", invalid="ignore"):
        score = left_sum**2 / left + right_sum**2 / right
    return np.where((left > 0) & (right > 0), score, -np.inf)
