"""Times of spans in a Chrome trace, so that the Perfetto UI draws each of them.

A trace's times are microseconds in JSON; Perfetto cuts each to whole nanoseconds and drops a span that then begins before the one before it on its
track has ended (`slice_drop_overlapping_complete_event` under "Info and stats").
"""

CUT = 0.25
"""Nanoseconds on top of a whole number: what the way through decimals and microseconds changes does not move it below that number."""


def span_times(begin_s: float, end_s: float) -> dict[str, float]:
    """`ts` and `dur`: begin and end are cut to nanoseconds, so that a span that begins where another ends does so there too."""
    begin, end = int(begin_s * 1e9 + CUT), int(end_s * 1e9 + CUT)
    return {"ts": (begin + CUT) / 1e3, "dur": (end - begin + CUT) / 1e3}
