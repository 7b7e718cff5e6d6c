"""The demonstration: one million requests against an embedded daemon, accounted for."""
