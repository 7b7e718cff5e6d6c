"""Figures of a case as text, for people."""

from __future__ import annotations

from typing import Any

from wheeld_client.replay import percentile_row, verdict_lines


def case_text(figures: dict[str, Any], title: str) -> str:
    """One case."""
    cpu = figures["cpu_s"]
    lines = [
        title,
        f"  scheduled       {figures['scheduled']:>11,}  of {figures['requests']:,} requests",
        f"  completed       {figures['completed']:>11,}  cancelled before their timeout",
        f"  timed out       {figures['timed_out']:>11,}  delivered"
        + f" ({figures['late_completions']:,} of them completed too late)",
        f"  exactly once    {figures['exactly_once']:>11,}  of {figures['requests']:,}, checked"
        " one by one",
        f"  lost {figures['lost']:,}, doubled {figures['doubled']:,}, early"
        f" {figures['fired_early'] + figures['deadline_wrong']:,}, payload mismatches"
        f" {figures['payload_wrong']:,}",
        _row("lateness", figures["lateness_ms"], "fired - deadline"),
        _row("  as received", figures["receive_lateness_ms"], "poll returned - deadline"),
        _row("scheduling lag", figures["scheduling_lag_ms"], "scheduled - arrival"),
        f"  rate            offered {_rate(figures)},"
        f" reached {figures['reached_per_s']:,.0f}/s in {figures['run_s']:.1f} s;"
        f" at most {figures['peak_pending']:,} pending",
        f"  CPU             workers {cpu['workers']:.1f} s, clock {cpu['clock']:.1f} s,"
        f" supervisor {cpu['supervisor']:.2f} s",
        f"  shared memory   {figures['shared_bytes'] / 2**20:.1f} MiB",
    ]
    return "\n".join(
        [*lines, *_warnings(figures), *(f"  {line}" for line in verdict_lines(figures["faults"]))]
    )


def _row(name: str, values: dict[str, float] | None, meaning: str) -> str:
    return "  " + percentile_row(name, values, meaning, 15, "nothing was delivered")


def _rate(figures: dict[str, Any]) -> str:
    offered = figures["offered_per_s"]
    return "all at once" if offered is None else f"{offered:,.0f}/s"


def saturated(figures: dict[str, Any]) -> str:
    """That the run fell behind its open loop: its lateness is that of an overloaded machine."""
    lag = figures["scheduling_lag_ms"]
    return (
        f"SATURATED: asked for {_rate(figures)}, reached {figures['reached_per_s']:,.0f}/s, up to"
        f" {lag['max'] if lag else 0:,.0f} ms behind; lower --rate to see lateness of a machine"
        " that keeps up"
    )


def _warnings(figures: dict[str, Any]) -> list[str]:
    lines = []
    if figures["saturated"]:
        lines.append(f"  {saturated(figures)}")
    if figures["wheel_full"]:
        lines.append(f"  the wheel was full {figures['wheel_full']:,} times; workers tried again")
    return lines
