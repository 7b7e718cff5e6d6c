"""Text for the command `status`."""

from __future__ import annotations

from typing import Any

from wheeld_core.units import duration, mebibytes, readable_bytes


def status_text(status: dict[str, Any]) -> str:
    counters, most = status["counters"], status["max_per_worker"]
    lines = [
        f"{status['name']}  pid {status['pid']}, clock pid {status['clock_pid']}"
        f"{'' if status['clock_ok'] else '  CLOCK STALLED'}",
        *([f"  trouble     {status['clock_trouble']}"] if status["clock_trouble"] else []),
        f"  in          {status['directory']}",
        f"  up          {status['uptime_s']:.0f} s",
        f"  pending     {status['pending']:,} of {status['capacity']:,} timers; {status['free']:,}"
        f" slots are free" + (f"; at most {most:,} per worker" if most else ""),
        f"  wheel       tick {status['tick_ns'] / 1e6:g} ms, {status['wheel_size']} buckets per"
        f" level, payload {status['payload_bytes']} bytes",
        f"  payloads    {mebibytes(status['payload_heap']['bytes'])} in a heap of"
        f" {mebibytes(status['payload_heap']['memory'])}, at most"
        f" {mebibytes(status['payload_heap']['memory_at_most'])}",
        f"  memory      {mebibytes(status['shared_bytes'])} shared, for"
        f" {status['slots_with_memory']:,} slots; {mebibytes(status['shared_bytes_at_most'])}"
        f" for all slots; {mebibytes(status['huge_bytes'])} in huge pages",
        f"  fired       {counters['fired']:,}   returned {counters['returned']:,}"
        f"   dropped {counters['dropped']:,} with dead owners (armed, or expired and unread)",
        f"  clock       {counters['wakes']:,} wake-ups, latest by"
        f" {counters['wake_late_ns'] / 1e6:.3f} ms; replaced {status['clock_restarts']} times",
        f"  late by     {_percentiles(status['histograms']['lateness_ns'])}",
        f"  passes      {_percentiles(status['histograms']['pass_ns'])}",
    ]
    if status["virtual_now_ns"] is not None:
        lines.append(f"  virtual now {status['virtual_now_ns']} ns")
    if status["purgatories"]:
        lines.append(f"  purgatories {len(status['purgatories'])}")
        lines += [f"    {purgatory_text(purgatory)}" for purgatory in status["purgatories"]]
    if status["pools"]:
        lines.append(f"  pools       {len(status['pools'])}")
        lines += [f"    {pool_text(pool)}" for pool in status["pools"]]
    if status["words"]["used"]:
        words = status["words"]
        lines.append(f"  words       {words['used']:,} of {words['possible']:,}")
    if status["trace"] is not None:
        lines += _trace_lines(status["trace"])
    lines += [
        f"  {part:<11} {_address_text(status[part], end)}"
        for part, end in (("metrics", "/metrics"), ("web", ""))
        if status.get(part) is not None
    ]
    lines.append(f"  workers     {len(status['workers'])}")
    lines += [
        f"    {worker['row']:>3}  {worker['name']:<24} pid {worker['pid']:<8} {worker['state']:<10}"
        f" {worker['on_death']:<8} pending {worker['pending']:,}"
        f" of {worker['held']:,} slots held  fired {worker['fired']:,}"
        + (f"  in {', '.join(worker['groups'])}" if worker["groups"] else "")
        + (f"  watches {count:,} buckets" if (count := worker["watched_buckets"]) else "")
        + (
            f"  holds {readable_bytes(out)} of pools"
            if (out := sum(worker["pool_bytes"].values()))
            else ""
        )
        for worker in status["workers"]
    ]
    return "\n".join(lines)


def _percentiles(found: dict[str, Any]) -> str:
    """A histogram of times in one line."""
    if not found["count"]:
        return "nothing yet"
    shown = (f"{key} {duration(found[key])}" for key in ("p50", "p99", "p999", "max"))
    return f"{'   '.join(shown)}   of {found['count']:,}"


def _trace_lines(trace: dict[str, Any]) -> list[str]:
    recorder = f"recorder pid {trace['recorder_pid']}" if trace["recorder_pid"] else "NO RECORDER"
    lines = [
        f"  trace       {trace['directory']}",
        f"    {trace['recorded']:,} events recorded, {trace['lost']:,} lost; {trace['behind']:,} of"
        f" {trace['ring']:,} in the ring; {recorder}, replaced {trace['restarts']} times",
    ]
    return lines + ([f"    CANNOT WRITE: {trace['trouble']}"] if trace["trouble"] else [])


def _address_text(part: dict[str, Any], path: str) -> str:
    if part["address"] is None:
        return f"NOT SERVED: {part['trouble'] or 'its process starts'}"
    return f"http://{part['address']}{path}"


def purgatory_text(purgatory: dict[str, Any]) -> str:
    """A name, made safe to print in one line; a worker may have written anything there."""
    name = "".join(c if c.isprintable() else "\ufffd" for c in purgatory["name"])
    return (
        f"{name:<28} {purgatory['delayed']:,} operations waiting, {purgatory['watched']:,} watches,"
        f" in {purgatory['workers']} workers"
    )


def pool_text(pool: dict[str, Any]) -> str:
    text = f"{pool['name']:<28} {readable_bytes(pool['used'])} of {readable_bytes(pool['size'])}"
    text += " strictly" if pool["strict"] else ""
    text += f"  depleted {pool['depleted_percent']:.1f} %"
    return text + (f"  {pool['waiters']} workers waiting" if pool["waiters"] else "")
