"""Answers to the exercises of lesson 10: right ones, and those that people give."""

RIGHT = {"interval": 1.70, "seeds": 12, "winner": 0.487, "budget": "BD"}

WRONG = {
    "interval": [1.2, 1.52, 3.8, 0.612, 1.5, 3.4],
    "seeds": [9, 4, 11, 13, 1, 8.64],
    "winner": [0.125, 0.625, 0.513, 0.5, 12.5],
    "budget": ["ABD", "B", "BDF", "", "BDX"],
}
