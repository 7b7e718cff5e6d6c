"""The page: plots, tables and their templates."""
