"""The overflow under kills: at each of its lines, and in Spark."""
