"""How numbers, places and commands read as text, the same in every report for people.

Rounding never changes what a number says: what is close to 1 but not 1 keeps the digits that show it, a share
below 100 % is never printed as 100 %, and a missing value is a dash, not a zero.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from decimal import ROUND_DOWN, Decimal

MISSING = "–"
SHARE_UNITS = ("share", "fraction")
NEAR_ONE = 0.1
VERY_NEAR_ONE = 1e-6
"""Nearer than this to 1, a number is written as its distance from 1."""
SMALL, LARGE = 1e-3, 1e6
"""Outside these a number is written with an exponent."""


def number(value: float | int | str | bool | None, unit: str | None = None, *, digits: int = 3, aligned: bool = False) -> str:
    """``value`` for people, with ``digits`` significant digits; text passes unchanged.

    A value without unit within 0.1 of 1 keeps two digits of its distance from 1 (a correlation of 0.99968 is not "1.000").
    A unit of "share" prints as percent. Other units are left to the caller. aligned: keep trailing zeros, for columns.

    >>> number(12288), number(1.234e-06), number(0.99968), number(1 - 7.5e-12), number(0.25, "share"), number(None)
    ('12,288', '1.23e-06', '0.99968', '1 - 7.5e-12', '25 %', '–')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if unit in SHARE_UNITS:
        return percent(value, digits=digits, aligned=aligned)
    return f"{value:,}" if isinstance(value, int) else _decimal(value, digits, near_one=unit is None)


def _decimal(value: float, digits: int, *, near_one: bool) -> str:
    if not math.isfinite(value):
        return nonfinite(value)
    if value == int(value) and abs(value) < LARGE:
        return f"{int(value):,}"
    distance = abs(abs(value) - 1)
    if near_one and 0 < distance < NEAR_ONE:
        return _near_one(value, distance)
    if SMALL <= abs(value) < LARGE:
        return f"{value:,.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"
    return f"{value:.{digits - 1}e}"


def _near_one(value: float, distance: float) -> str:
    if distance >= VERY_NEAR_ONE:
        return f"{value:.{1 - math.floor(math.log10(distance))}f}"
    sign = "-" if value < 0 else ""
    return f"{sign}1 {'+' if abs(value) > 1 else '-'} {distance:.1e}"


def nonfinite(value: float) -> str:
    """NaN, inf or -inf, spelled as NumPy, pandas and DuckDB read them."""
    if math.isnan(value):
        return "NaN"
    return "inf" if value > 0 else "-inf"


def percent(share: float, *, digits: int = 3, aligned: bool = False) -> str:
    """A share (0..1) as percent; rounds so that only all is 100 % and only nothing is 0 %.

    >>> percent(1.0), percent(0.99996), percent(0.5), percent(1.5e-05), percent(0.0), percent(0.97, aligned=True)
    ('100 %', '99.996 %', '50 %', '0.0015 %', '0 %', '97.0 %')
    """
    if not math.isfinite(share):
        return nonfinite(share)
    exact = Decimal(repr(float(share))) * 100
    if exact in (0, 100):
        return f"{int(exact)} %"
    if 0 < exact < Decimal("1e-3"):
        return f"{float(exact):.{digits - 1}e} %"
    missing = 100 - exact
    if 0 < missing < Decimal("1e-4"):
        return "> 99.9999 %"
    decimals = 1 - missing.adjusted() if 0 < missing < 1 else max(digits - 1 - exact.adjusted(), 0)
    rounded = round(exact, decimals)
    if rounded == 100:
        rounded = exact.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_DOWN)
    text = f"{rounded:f}"
    return (text.rstrip("0").rstrip(".") if "." in text and not aligned else text) + " %"


def with_unit(value: float | int | str | bool | None, unit: str | None) -> str:
    """``value`` followed by its unit; shares are percent, missing values have no unit."""
    text = number(value, unit)
    if value is None or unit is None or unit in SHARE_UNITS:
        return text
    return f"{text} {unit}"


def of_total(part: int, total: int, what: str) -> str:
    """``"12,288 of 12,288 trainer rows, 100 %"``; no percentage of nothing."""
    share = f", {percent(part / total)}" if total else ""
    return f"{part:,} of {total:,} {what}{share}"


def times(value: float) -> str:
    """A ratio for people: ``"3,530 x"``.

    >>> times(3529.4), times(1.04), times(0.25)
    ('3,530 ×', '1.04 ×', '0.25 ×')
    """
    if not math.isfinite(value):
        return nonfinite(value)
    if value >= LARGE:
        return f"{value:.2e} ×"
    if value == 0:
        return "0 ×"
    decimals = 2 - math.floor(math.log10(abs(value)))
    text = f"{round(value, decimals):,.{min(max(decimals, 0), 12)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " ×"


def place(where: Mapping[str, object]) -> str:
    """Where a finding applies, in one line: ``"steps 3, 9 · layer 2"``; empty for the whole run."""
    return " · ".join(f"{_label(name, value)} {_values(value)}" for name, value in where.items())


def _label(name: str, value: object) -> str:
    text = name.replace("_", " ")
    one = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1
    return text[:-1] if one and text.endswith("s") else text


def _values(value: object, *, most: int = 8) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_values(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = list(value)
        if _consecutive(items) and len(items) > 2:
            return f"{items[0]}–{items[-1]}"
        shown = ", ".join(_values(item) for item in items[:most])
        return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a step, layer or position: an index, not an amount
    return number(value) if isinstance(value, float | bool) or value is None else str(value)


def _consecutive(items: Sequence[object]) -> bool:
    return all(isinstance(item, int) for item in items) and list(items) == list(range(items[0], items[0] + len(items)))  # type: ignore[call-overload, operator]


def query_command(run: str, sql: str) -> str:
    """The command line that runs ``sql``, as it can be pasted into a POSIX shell."""
    return f"rlaudit query {shlex.quote(run)} {shell_quote(sql)}"


def shell_quote(sql: str) -> str:
    """``sql`` as one shell word: in double quotes where those are safe, because SQL is full of single ones."""
    text = sql.strip()
    return f'"{text}"' if not set(text) & set('"$`\\!') else shlex.quote(text)


def duration(seconds: float) -> str:
    """A time span for people.

    >>> duration(42), duration(192), duration(7500)
    ('42.0 s', '3 min 12 s', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def size(count: int) -> str:
    """Bytes for people, in powers of 1000.

    >>> size(999), size(1_240_000)
    ('999 B', '1.24 MB')
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def spans(values: Sequence[int]) -> str:
    """Sorted whole numbers, neighbours drawn together.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    drawn: list[list[int]] = []
    for value in values:
        if drawn and drawn[-1][1] == value - 1:
            drawn[-1][1] = value
        else:
            drawn.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in drawn)
