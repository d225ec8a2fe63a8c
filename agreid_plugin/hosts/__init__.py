"""The only code that imports a host."""
