"""The supervisor's tables in shared memory: workers, groups, watched keys, pools, segment
headers."""
