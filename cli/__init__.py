"""Words, tables, progress and pictures for people; the only place that rounds."""
