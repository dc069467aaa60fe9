"""Answers to the exercises of lesson 11: right ones, and those that people give."""

from sspo_teach.memory import largest_micro_batch
from sspo_teach.training.hardware import hardware
from sspo_teach.widgets.planning import preset_load

PLAIN = preset_load("t4", gradient_checkpointing=False)

RIGHT = {
    "logits": 1.24,
    "states": 7.9,
    "fits": largest_micro_batch(PLAIN, hardware("t4").bytes),
    "problems": 2185,
}

WRONG = {
    "logits": [0.31, 0.62, 1.16, 1245.0, 3.0],
    "states": [2.0, 3.95, 5.9, 0.99, 10.0],
    "fits": [
        largest_micro_batch(preset_load("t4"), hardware("t4").bytes),
        largest_micro_batch(PLAIN, hardware("24gb").bytes),
        1,
        3.5,
    ],
    "problems": [2401, 8740, 569, 44, 1319],
}
