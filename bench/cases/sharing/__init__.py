"""Cases of what workers share: timers by key, payloads, limits, leases, jobs."""
