"""Right answers to the exercises of the first page, and the mistakes that people make."""

RIGHT = {"advantages": [1, -1, -1, 1], "zero_loss": (0, 1), "teaching": 1}
WRONG = {
    "advantages": [[1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5], [0.866, -0.866, -0.866, 0.866], [-1, 1, 1, -1], [1, -1]],
    "zero_loss": [(0, 0), (1, 1), (-1, 1), (0, 0.5)],
    "teaching": [2, 3, 0, 1.5],
}
