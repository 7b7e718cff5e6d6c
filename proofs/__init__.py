"""The proofs of the core: models, mutations, sweeps, sanitizers, torture."""
