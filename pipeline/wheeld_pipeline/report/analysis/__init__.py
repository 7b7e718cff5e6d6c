"""The meaning of the counts: tables, the verdict, and the advice on tick, size and capacity."""
