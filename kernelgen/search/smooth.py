"""A Gaussian process with a length for every axis: what changes smoothly along axes it learns from few points."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kernelgen.search.points import Floats

ROOT5 = 5**0.5
STEPS = 6
"""Of gradient ascent on the likelihood at every fit: each begins where the last one ended."""
MOST = 200
"""Points that it is fitted to: the cost grows with their cube."""
FASTEST = 120
"""Of these the fastest; the others are the last ones."""


@dataclass
class Smooth:
    """Matern 5/2 over coordinates between 0 and 1, with noise; `width` axes."""

    width: int
    _logs: Floats = field(init=False)
    """Logarithms of the lengths, of the signal's deviation and of the noise's."""
    _mean_slope: Floats = field(init=False)
    _mean_square: Floats = field(init=False)
    _steps: int = 0

    def __post_init__(self) -> None:
        self._logs = np.concatenate([np.full(self.width, np.log(0.7)), [0.0, np.log(0.02)]])
        self._mean_slope, self._mean_square = np.zeros(self.width + 2), np.zeros(self.width + 2)

    def fit(self, x: Floats, y: Floats) -> Fitted:
        """The process after so many points. x: (samples, axes), in the order in which they were seen."""
        if len(y) > MOST:
            kept = np.union1d(np.argsort(y, kind="stable")[:FASTEST], np.arange(len(y) - (MOST - FASTEST), len(y)))
            x, y = x[kept], y[kept]
        mean, scale = float(y.mean()), float(y.std()) or 1.0
        z = (y - mean) / scale
        for _ in range(STEPS):
            self._climb(self._slope(x, z))
        lengths, signal, noise = self._parts()
        covariance = signal * _kernel(_distances(x / lengths, x / lengths)) + noise * np.eye(len(z))
        root = np.linalg.inv(np.linalg.cholesky(covariance))
        return Fitted(x / lengths, lengths, signal, root, root.T @ (root @ z), mean, scale)

    def _parts(self) -> tuple[Floats, float, float]:
        return np.exp(self._logs[:-2]), float(np.exp(2 * self._logs[-2])), float(np.exp(2 * self._logs[-1])) + 1e-8

    def _slope(self, x: Floats, z: Floats) -> Floats:
        """Of the logarithm of the posterior: the likelihood, and wide normal priors around where it began."""
        lengths, signal, noise = self._parts()
        distance = _distances(x / lengths, x / lengths)
        plain = signal * _kernel(distance)
        inverse = np.linalg.inv(plain + noise * np.eye(len(z)))
        weights = inverse @ z
        outer = np.outer(weights, weights) - inverse
        along = outer * signal * (5 / 3) * (1 + ROOT5 * distance) * np.exp(-ROOT5 * distance)
        apart = [np.subtract.outer(x[:, j], x[:, j]) / lengths[j] for j in range(self.width)]
        slopes = [0.5 * float((along * gap * gap).sum()) for gap in apart]
        slopes += [float((outer * plain).sum()), noise * float(np.trace(outer))]
        centre = np.concatenate([np.full(self.width, np.log(0.7)), [0.0, np.log(0.03)]])
        variance = np.concatenate([np.full(self.width, 2.25), [1.0, 1.0]])
        return np.asarray(np.array(slopes) - (self._logs - centre) / variance)

    def _climb(self, slope: Floats) -> None:
        """One step of Adam, within bounds."""
        self._steps += 1
        self._mean_slope = 0.8 * self._mean_slope + 0.2 * slope
        self._mean_square = 0.95 * self._mean_square + 0.05 * slope * slope
        mean = self._mean_slope / (1 - 0.8**self._steps)
        square = self._mean_square / (1 - 0.95**self._steps)
        self._logs = self._logs + 0.1 * mean / (np.sqrt(square) + 1e-9)
        low = np.concatenate([np.full(self.width, np.log(0.05)), [-2.0, np.log(1e-3)]])
        high = np.concatenate([np.full(self.width, np.log(20.0)), [2.0, 0.0]])
        self._logs = np.clip(self._logs, low, high)


@dataclass(frozen=True)
class Fitted:
    """A process that knows its points."""

    near: Floats
    lengths: Floats
    signal: float
    root: Floats
    """Inverse of the lower root of the covariance."""
    weights: Floats
    mean: float
    scale: float

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of each point. x: (points, axes)."""
        shared = self.signal * _kernel(_distances(x / self.lengths, self.near))
        known = shared @ self.root.T
        variance = np.maximum(self.signal - (known * known).sum(axis=1), 1e-12)
        return shared @ self.weights * self.scale + self.mean, np.sqrt(variance) * self.scale


def _distances(a: Floats, b: Floats) -> Floats:
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None] - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _kernel(distance: Floats) -> Floats:
    return np.asarray((1 + ROOT5 * distance + 5 / 3 * distance * distance) * np.exp(-ROOT5 * distance))
