"""Right and typical wrong answers to lesson 07."""

from sspo_teach.grading.lesson_07 import CASES

RIGHT = {
    "inert": 1,
    "moved": lambda logp, logp_old, mask: ((logp - logp_old).exp() - 1).abs()[mask].gt(0.1).float().mean(),
    "diagnose": dict(CASES),
}
WRONG = {
    "inert": [4, 2, 0, 8, 3, 1.0],
    "moved": [
        lambda logp, logp_old, mask: ((logp - logp_old).exp() - 1).abs().gt(0.1).float().mean(),
        lambda logp, logp_old, mask: (logp - logp_old).abs()[mask].gt(0.1).float().mean(),
        lambda logp, logp_old, mask: (logp - logp_old).exp()[mask].gt(1.1).float().mean(),
        lambda logp, logp_old, mask: (((logp - logp_old).exp() - 1).abs().gt(0.1) & mask).float().mean(),
        lambda logp, logp_old, mask: 0.1,
    ],
    "diagnose": [
        {**CASES, "A": "one update", "E": "rate too small"},
        {**CASES, "B": "shuffled rewards", "D": "no signal"},
        {**CASES, "F": "collapsed"},
        {"A": "healthy"},
        "healthy",
    ],
}
