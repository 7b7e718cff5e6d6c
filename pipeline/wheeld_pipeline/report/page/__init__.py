"""The page: plots, tables and the templates that they go into."""
