"""Right and typical wrong answers to lesson 09."""

from torch.nn.functional import logsigmoid

RIGHT = {
    "gap": (3 / 8 * 5 / 8) ** 0.5,
    "infonce": lambda right, wrong, tau, margin: (
        -logsigmoid((right - margin) / tau - (wrong / tau).logsumexp(0)).mean().item()
    ),
    "critic": lambda rewards, v: rewards - v.sigmoid(),
}


def everybody(right, wrong, tau, margin):
    rivals = ((right - margin) / tau).exp().sum() + (wrong / tau).exp().sum()
    return -(((right - margin) / tau).exp() / rivals).log().mean()


def by_exp(right, wrong, tau, margin):
    own, rest = ((right - margin) / tau).exp(), (wrong / tau).exp().sum()
    return -(own / (own + rest)).log().mean()


WRONG = {
    "gap": [3 / 8 * 5 / 8, (5 / 3) ** 0.5, 3 / 8, 1.0, (3 / 8 * 5 / 8 * 7 / 8) ** 0.5],
    "infonce": [
        everybody,
        by_exp,
        lambda right, wrong, tau, margin: RIGHT["infonce"](right, wrong, tau, 0.0),
        lambda right, wrong, tau, margin: RIGHT["infonce"](right, wrong, tau, -margin),
        lambda right, wrong, tau, margin: -RIGHT["infonce"](right, wrong, tau, margin),
        lambda right, wrong, tau, margin: right.mean() - wrong.mean(),
    ],
    "critic": [
        lambda rewards, v: rewards - v,
        lambda rewards, v: v.sigmoid() - rewards,
        lambda rewards, v: rewards - rewards.mean(),
        lambda rewards, v: (
            (rewards - v.sigmoid() - (rewards - v.sigmoid()).mean()) / (rewards - v.sigmoid()).std(correction=0)
        ),
        lambda rewards, v: (rewards - v.sigmoid())[:2],
    ],
}
