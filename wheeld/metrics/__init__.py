"""A daemon's figures for Prometheus and OpenTelemetry."""
