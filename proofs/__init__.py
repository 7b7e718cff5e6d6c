"""What proves the core: models, mutations, sweeps, sanitizers, torture."""
