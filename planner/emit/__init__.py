"""Emission: a plan becomes the files that launch it, one emitter a framework."""
