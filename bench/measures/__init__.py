"""What `python -m bench --only NAME` measures beside the table's rows, each with its own table."""
