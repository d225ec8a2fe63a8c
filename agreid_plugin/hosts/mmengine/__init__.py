"""mmengine as a host: registries with our losses, transforms and networks."""
