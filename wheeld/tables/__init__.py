"""What the supervisor keeps in shared memory: workers and groups, watched keys, pools, heads."""
