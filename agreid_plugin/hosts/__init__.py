"""The toolboxes that our components run in: one folder a host, the only code that imports it."""
