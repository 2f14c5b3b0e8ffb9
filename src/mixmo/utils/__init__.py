"""Helpers that every room uses: errors, registry, progress, memory, random numbers, devices, signals."""
