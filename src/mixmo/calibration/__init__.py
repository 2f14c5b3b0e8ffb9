"""Post-hoc calibration on held-out data: temperature, conformal sets, selective prediction."""
