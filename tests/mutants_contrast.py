"""Wrong pairs, wrong critics' objectives: (name, method, part, old, new, law that rejects it). See ``test_mutants``."""

PAIRS, CRITIC = "objectives.contrastive", "objectives.critic"

MUTANTS = [
    ("InfoNCE without its own term", "conspo", f"{PAIRS}.conspo", "-torch.nn.functional.logsigmoid(", "-(", "loops"),
    ("right and wrong exchanged", "conspo", f"{PAIRS}.sides", "return A > 0, same", "return A < 0, same", "way back"),
    ("rivals of the whole batch", "conspo", f"{PAIRS}.sides", "same_group(group_ids, mask) & ", "", "loops"),
    ("all others are rivals", "conspo", f"{PAIRS}.sides", "& (A < 0).T", "& mask.any(1)", "loops"),
    ("margin not over τ", "conspo", f"{PAIRS}.conspo", "margin / tau", "margin", "loops"),
    ("margin towards the wrong", "conspo", f"{PAIRS}.conspo", "s - margin / tau", "s + margin / tau", "loops"),
    ("sum for mean", "conspo", f"{PAIRS}.conspo", "s = masked_mean(", "s = masked_sum(",
     "loops"),
    ("largest rival for all", "conspo", f"{PAIRS}.conspo", "logsumexp(1, keepdim=True)", "amax(1, keepdim=True)",
     "loops"),
    ("groups by their right ones", "conspo", f"{PAIRS}.per_group", "lost * size / P.clamp(min=1)", "lost", "loops"),
    ("empty responses in the group", "click", f"{PAIRS}.per_group", "mask.any(1, keepdim=True)",
     "torch.ones_like(right)", "empty row"),
    ("mean for sum", "click", f"{PAIRS}.click", "S = masked_sum(", "S = masked_mean(",
     "loops"),
    ("pairs added up", "click", f"{PAIRS}.click", " / wrong.sum(1, keepdim=True).clamp(min=1)", "", "loops"),
    ("squared hinge", "click", f"{PAIRS}.click", ".clamp(min=0)", ".clamp(min=0).square()", "loops"),
    ("band in log space for GAE", "ppo_gae", f"{CRITIC}.ppo_gae", "gates.clip(log_r, advantages, eps_low, eps_high)",
     "gates.log_clip(log_r, advantages, -eps_low, eps_high).exp()", "loops"),
    ("one advantage per response", "ppo_gae", f"{CRITIC}.ppo_gae", "advantages, eps_low, eps_high) * advantages",
     "advantages, eps_low, eps_high) * advantages.mean(1, keepdim=True)", "padding"),
    ("dual clip off by 0.1", "sppo", f"{CRITIC}.sppo", "ratio_cap: float = 3.0", "ratio_cap: float = 2.9", "loops"),
    ("dual clip at 1 + c", "sppo", f"{CRITIC}.sppo", "eps_high, ratio_cap)", "eps_high, 1 + ratio_cap)", "loops"),
    ("ratio of the prefix", "sppo", f"{CRITIC}.sppo", "= log_ratio(logp, logp_old, mask)",
     "= log_ratio(logp, logp_old, mask).cumsum(1)", "loops"),
    ("far tokens learn", "conspo", f"{PAIRS}.log_pi", "with_value(promote(logp), log_ratio(logp, logp_old, mask))",
     "promote(logp)", "limit"),
]  # fmt: skip
