"""The load of the demo: clients of all libraries, kills meanwhile, the account of each record."""
