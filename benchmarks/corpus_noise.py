"""The noise of the corpus: the sum of a fast and a slow process, sometimes with heavy tails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.record import FloatArray

_HEAVY_DF = 4.0


@dataclass(frozen=True)
class Noise:
    """Two AR(1) processes; standard deviations in MB, time constants in seconds."""

    fast_sd: float
    fast_tau_s: float
    slow_sd: float
    slow_tau_s: float
    heavy: bool  # the fast process has Student's t instead of normal innovations

    @property
    def density_at_zero(self) -> float:
        """Spectral density at zero in MB^2 s: variance of one-second means if independent."""
        fast = 2.0 * self.fast_tau_s * self.fast_sd**2
        return fast + 2.0 * self.slow_tau_s * self.slow_sd**2


def draw_noise(rng: np.random.Generator, base: float, duration_s: float) -> Noise:
    """Draw noise of 0.03 to 0.4% of ``base``; the slow process gets the smaller share."""
    sd = base * float(np.exp(rng.uniform(np.log(0.0003), np.log(0.004))))
    slow = rng.uniform(0.0, 0.5) if rng.random() < 0.5 else 0.0
    fast_tau_s = float(np.exp(rng.uniform(np.log(2.0), np.log(60.0))))
    slow_tau_s = min(float(np.exp(rng.uniform(np.log(60.0), np.log(400.0)))), 0.03 * duration_s)
    return Noise(sd * (1.0 - slow), fast_tau_s, sd * slow, slow_tau_s, bool(rng.random() < 0.25))


def noise_at(rng: np.random.Generator, t_s: FloatArray, noise: Noise) -> FloatArray:
    """Return the noise in MB at the times of the samples."""
    fast = record_noise(rng, t_s, noise.fast_tau_s, heavy=noise.heavy)
    out: FloatArray = noise.fast_sd * fast
    if noise.slow_sd:
        out = out + noise.slow_sd * record_noise(rng, t_s, noise.slow_tau_s)
    return out


def record_noise(
    rng: np.random.Generator, t: FloatArray, tau: float, *, heavy: bool = False
) -> FloatArray:
    """Return AR(1) noise of standard deviation 1 at times ``t``, in the unit of ``tau``."""
    phi = np.exp(-np.diff(t, prepend=t[0] - 10.0 * tau) / tau)
    if heavy:
        fresh = rng.standard_t(_HEAVY_DF, t.size) / np.sqrt(_HEAVY_DF / (_HEAVY_DF - 2.0))
    else:
        fresh = rng.normal(size=t.size)
    fresh = fresh * np.sqrt(1.0 - phi * phi)
    out = np.empty_like(t)
    state = 0.0
    for i, (keep, new) in enumerate(zip(phi.tolist(), fresh.tolist(), strict=True)):
        state = keep * state + new
        out[i] = state
    return out
