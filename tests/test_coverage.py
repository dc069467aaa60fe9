"""Coverage of bands: exact numbers, and a simulation that keeps them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sspo_teach.exact.coverage import drifting, enough, miss, positive_share, tail
from sspo_teach.gates import bounds


def test_a_fixed_band_has_a_tail_that_depends_on_length():
    gspo = bounds.constant(3e-4, 4e-4)
    found = [tail(length, *gspo, sd=0.035) for length in (16, 256, 4096, 16384)]
    assert found == pytest.approx([0.968, 0.873, 0.524, 0.208], abs=5e-4)
    fspo = [tail(length, -0.03 / length**0.5, 0.03 / length**0.5, sd=0.035) for length in (1, 100, 8192)]
    assert fspo == pytest.approx([0.3914] * 3, abs=5e-5)


def test_the_exact_miss_of_order_statistics():
    assert [miss(100, a) for a in (0.1, 0.2, 0.4)] == pytest.approx([0.0990, 0.1980, 0.3960], abs=5e-5)
    assert [miss(512, a) for a in (0.1, 0.2, 0.4)] == pytest.approx([0.0975, 0.1988, 0.3977], abs=5e-5)
    assert [enough(a) for a in (0.1, 0.2, 0.4)] == [19, 9, 4]


def test_without_drift_both_bands_keep_alpha_and_under_drift_only_the_calibrated_one_is_near():
    still = [drifting(growth=1.0, seed=seed) for seed in range(5)]
    own = np.mean([run.missed(run.calibrated)[run.judged].mean() for run in still])
    assert own == pytest.approx(miss(512, 0.1), abs=0.01)
    moving = drifting(growth=3.0)
    own, fixed = (moving.missed(band)[moving.judged].mean() for band in (moving.calibrated, moving.fixed))
    assert 0.1 < own < 0.15
    assert fixed > 0.3


def test_a_step_never_sets_its_own_band():
    one = drifting(updates=30)
    assert np.isinf(one.calibrated[0]).all()
    seen = one.scores[:10].ravel()[-512:]
    assert one.calibrated[10] == pytest.approx(bounds.calibrated(seen.tolist(), 0.1))


def test_a_window_too_small_for_a_band_is_refused():
    with pytest.raises(ValueError, match=r"window must lie in \[19, .*got 18"):
        drifting(0.1, window=18)


def test_bapo_counts_by_hand():
    ratio, A = torch.tensor([1.5, 1.0, 0.5, 0.95, 1.1]), torch.tensor([1.0, 1, -1, -1, -1])
    pairs = [(0.6, 1.2), (0.6, 1.5), (0.9, 1.2), (0.9, 1.5)]
    printed = positive_share(bounds.printed_mass, ratio, A, pairs)
    assert printed == pytest.approx([0.4536, 0.4854, 0.4272, 0.4587], abs=5e-5)
    active = positive_share(bounds.active_mass, ratio, A, [(0.6, 1.2), (0.6, 1.5), (0.97, 1.5)])
    assert active == pytest.approx([0.3279, 0.5495, 0.6944], abs=5e-5)
