"""The account, for people."""

from __future__ import annotations

from typing import Any


def text(figures: dict[str, Any]) -> str:
    """The lines of an account."""
    rate = figures["answered"] / figures["seconds"] if figures.get("seconds") else 0
    lines = [
        f"{figures['sent']} requests in {figures['seconds']} s ({rate:.0f} per second)",
        f"  answered    {figures['answered']}, of which {figures['timed_out']} timed out",
        f"  errors      {_pairs(figures['errors']) or 0}",
        f"  lost        {figures['lost']}",
        f"  doubled     {figures['doubled']}",
        f"  sent again  {figures['resent']}, after {figures['broken']} broken or refused "
        "connections",
    ]
    if "killed" in figures:
        lines.append(f"  killed      {_pairs(figures['killed'])}")
    for kind, one in figures["kinds"].items():
        outcomes = {name: count for name, count in one.items() if not name.endswith("_ms")}
        lines.append(
            f"  {kind:10}  {_pairs(outcomes)}; p50 {one['p50_ms']} ms, p99 {one['p99_ms']} ms"
        )
    lines.append(
        f"  log         {figures['records']} records compared, each once and in its place"
        if not figures["faults"]
        else f"  faults      {_pairs(figures['faults'])}"
    )
    lines += [f"              {example}" for example in figures["examples"]]
    if "replica_bytes" in figures:
        lines.append(f"  replicas    {figures['replica_bytes']} bytes compared")
    lines.append(f"  groups      {figures['generations']} generations, all members agree")
    lines.append("exact" if figures["exact"] else "NOT exact")
    return "\n".join(lines)


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
