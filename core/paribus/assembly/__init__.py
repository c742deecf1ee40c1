"""From a resolved spec to a module: the only place that builds components."""
