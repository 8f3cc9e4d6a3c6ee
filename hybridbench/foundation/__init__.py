"""Foundation of all other packages: settings, metrics, labels, units, errors and the clock."""
