"""How near an output comes to that of a reference, measured so that a bound holds on any processor.

A bound must hold with four times the noise of `tests.rounding`, for several seeds: both sides of a comparison were
rounded, and the noise is a sample of what may happen. `make test-rounding` tries it.
"""

from __future__ import annotations

import torch


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())


def spectral_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of magnitudes or powers (..., bands, F), relative to the largest of the same frame.

    A Fourier transform's rounding error is relative to the power of the whole frame (Higham, Accuracy and Stability of
    Numerical Algorithms, section 24.1). A quiet band beside a loud one has few right digits, and its logarithm spreads
    what is wrong with them over the whole spectrum, so logarithms are undone before they are compared.
    """
    assert found.shape == wanted.shape
    return float(((found - wanted).abs().amax(-2) / wanted.abs().amax(-2)).max())
