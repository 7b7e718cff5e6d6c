"""What the counts mean: tables, the verdict, and the advice on tick, size and capacity."""
