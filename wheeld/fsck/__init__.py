"""`wheeld fsck`: check the wheel in shared memory for damage."""
