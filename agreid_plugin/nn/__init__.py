"""Building blocks of the methods: attention, the vision transformer, reading its weights."""
