"""Scores of runs, saved networks and labelled images; corruptions, OOD detection, multiplexed inference, analysis."""
