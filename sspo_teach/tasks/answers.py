r"""Reading a number out of what a language model wrote: exact, forgiving about dress, strict about value.

The answer is what the *latest* marker holds. Markers are ``#### 72``, ``\boxed{72}`` and ``<answer>72</answer>`` (any
case; the closing tag or brace may be missing). No marker, no answer; and a later marker that holds no number takes the
answer back. ``####`` holds the rest of its line (or the next line that is not blank), the others what they enclose.

Inside a marker the first number counts, and its dress does not: currency, percent, units, thousands separators, bold,
LaTeX spaces and ``\text``, words before and after. Decimals, ``3/4``, ``\frac{3}{4}``, ``1 1/2``, ``½``, ``1.5e3``,
``1.5 \times 10^3`` and ``2 million`` are numbers. In an equation the number after the last ``=`` counts: ``x = 72``,
``70 + 2 = 72``. What is not exactly one number is no answer, rather than a guess: ``7 2``, ``1,00``, ``72, 73``,
``72 or 73``, ``10-12``, ``3:45``, ``70 + 2``, ``2\sqrt{3}``, ``10^3``, ``1.000,50``, ``1/0``.

``<think>`` tags are plain text, so it makes no difference whether the chat template wrote the opening one.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_DIGITS = 640  # Python never refuses int() of so few digits, whatever limit is set; a longer number is no answer

# Every quantifier that could give characters back is possessive (``*+``, ``++``): each pattern reads its text once.
_MARKER = re.compile(r"(?P<hashes>#{4,}+)|(?P<box>\\boxed\s*+\{)|(?ai:<answer>)")
_CLOSING_TAG = re.compile(r"(?ai:</answer>)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace opens nothing

_NUM = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++"
_NUMBER = re.compile(
    rf"""(?<![^\W_])                                            # x2 is a name, not a number
    (?:(?P<whole>[0-9]++)\s++(?=[0-9]++\s*+/\s*+[0-9]))?        # the 1 of 1 1/2
    (?P<top>{_NUM})
    (?:\s*+/\s*+(?P<bottom>[-+]?(?:{_NUM})))?
    (?:(?:[eE]|\s*+(?:\\times|\\cdot|[x×*·])\s*+10\s*+\^\s*+\{{?)(?P<power>[-+]?[0-9]{{1,3}}+)\}}?)?
    (?:\s*+(?P<scale>hundred|thousand|million|billion|trillion)\b)?""",
    re.VERBOSE,
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

# What after a number makes it a part of something else: a list, a range, a time, a term, a side of an equation.
_MORE = re.compile(
    r"""[\s%$€£¥₹*_`'’")\]{}]*+
    (?: [0-9⁰¹²³⁴-⁹=]
      | (?:[,;:.]|(?<!\s)\()\s*+[-+$€£]?\s*+\.?[0-9]      # 72, 73   1,00   3:45   1.2.3   2(36)
      | (?:[-/^]|x(?![^\W0-9_])|or\b|and\b|to\b)[\s$€£({+-]*+\.?[0-9]
      | [+×·÷±]\s*+\w
      | \^(?!\s*+\{?\s*+\\circ)
      | \\(?!(?:circ|degree|end|par|n)(?![A-Za-z]))[A-Za-z]     # 2\sqrt{3}, 3\pi
      | [^\W\d_]++\s*+=                                         # 2x = 144   2 hours = 120 minutes
    )""",
    re.VERBOSE,
)
_TERM = re.compile(  # what before a number takes it as an argument: x^2, x/2, \sqrt{16}, \frac{x}{2}
    r"[\^√/×·÷±]\Z|\\(?!(?:implies|therefore|to|n|[rR]ightarrow|pounds|euro)(?![A-Za-z]))[A-Za-z]"
)

_TRANSLATION: dict[int, str] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms
_TRANSLATION |= {ord(dash): "-" for dash in "−–‐‑"} | {ord("≈"): "="}
_TRANSLATION |= {ord(c): f" {Fraction(unicodedata.numeric(c)).limit_denominator(10)} " for c in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
_ARGUMENT = rf"\s*+(?:\{{[\s{{]*+(-?(?:{_NUM}))(?:\s*+\}})++|([0-9]))"
_DRESS = (  # taken off in this order
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?<=[0-9])(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=[0-9])"), ","),
    (re.compile(r"\\approx\b"), "="),
    (re.compile(r"\\(?:[,;:>()\[\] ]|(?:q?quad|left|right|displaystyle|bf|rm|large|Large)(?![A-Za-z]))|~"), " "),
    (re.compile(r"\\(?:text[a-z]*+|math[a-z]*+|mbox|bm|boldsymbol)(?![A-Za-z])"), " "),
    (re.compile(r"\\(?=[$%#&{}])"), ""),
    (re.compile(r"\b(?:USD|US(?=\$)|EUR|GBP|INR|CAD|AUD|Rs\.?)(?=\s?[-$]?[0-9])"), "$"),
    (re.compile(rf"\\[dtc]?frac{_ARGUMENT}{_ARGUMENT}"), r" \1\2/\3\4 "),
)
_OPENING = " \t\r\n\f\v$€£¥₹*_`'\"([{"


def parse_answer(text: str) -> Fraction | None:
    """The number that the latest marker in ``text`` holds, or None. On any string: linear time, and never raises."""
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}; decode token ids with task.decode first")
    marker = _latest_marker(text)
    return None if marker is None else parse_number(_held(text, marker))


def parse_number(text: str) -> Fraction | None:
    """The first number in ``text``, markers or not, by the rules above; None where it is not exactly one number."""
    text = text.translate(_TRANSLATION)
    for pattern, plain in _DRESS:
        text = pattern.sub(plain, text)
    value = _first_number(text)
    return value if value is not None or "=" not in text else _first_number(text.rpartition("=")[2])


def has_marker(text: str) -> bool:
    """Whether anything in ``text`` marks an answer, a number or not."""
    return _MARKER.search(text) is not None


def verify(*, prediction: str, gold: str | int | Fraction) -> bool:
    """Whether the answer in ``prediction`` is ``gold``, exactly. Arguments go by name: swapped ones would look right.

    ``gold`` is a number, or a text that holds one with or without a marker.
    """
    right: Fraction | None
    if isinstance(gold, str):
        right = parse_answer(gold) if has_marker(gold) else parse_number(gold)
    else:
        right = Fraction(gold)
    if right is None:
        raise ValueError(f"gold must hold a number such as '#### 72' or 72, got {gold!r:.80}")
    return parse_answer(prediction) == right


def _latest_marker(text: str) -> re.Match[str] | None:
    latest = None
    for marker in _MARKER.finditer(text):
        latest = marker
    return latest


def _held(text: str, marker: re.Match[str]) -> str:
    """What a marker holds."""
    start, end = marker.end(), -1
    if marker["box"]:
        depth = 1
        for brace in _BRACE.finditer(text, start):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                end = brace.start()
                break
    elif not marker["hashes"] and (closing := _CLOSING_TAG.search(text, start)):
        end = closing.start()
    return text[start:end] if end >= 0 else text[start:].lstrip().partition("\n")[0]


def _first_number(text: str) -> Fraction | None:
    number = _NUMBER.search(text)
    if number is None or len(number[0]) > MAX_DIGITS or _MORE.match(text, number.end()):
        return None
    lead = text[: number.start()]
    opened = lead.rstrip(_OPENING)
    before = opened.rstrip("-+ ")
    signs = opened[len(before) :]
    if before[-1:].isalnum():
        if "+" in signs:
            return None  # x + 5
        if not (signs.startswith(" ") and opened == lead.rstrip("$€£")):
            signs = ""  # a hyphen or a dash: total-5, the total - 5
    if len(signs.replace(" ", "")) > 1 or _TERM.search(before.rpartition("=")[2].rstrip(_OPENING)):
        return None
    top = Fraction(number["top"].replace(",", ""))
    bottom = Fraction((number["bottom"] or "1").replace(",", ""))
    if bottom == 0:
        return None
    value = top / bottom
    if number["whole"]:
        if not 0 < value < 1:
            return None
        value += int(number["whole"])
    value *= Fraction(10) ** int(number["power"] or 0) * _SCALES.get(number["scale"], 1)
    return -value if "-" in signs else value
