"""What every room needs: errors, registry, progress, memory, random numbers, devices, signals."""
