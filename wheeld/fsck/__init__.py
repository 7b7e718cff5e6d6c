"""`wheeld fsck`: is the wheel in shared memory what it should be?"""
