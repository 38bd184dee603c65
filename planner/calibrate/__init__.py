"""What a machine and its runs tell: measurements, logs, and the fits that turn them into files."""
