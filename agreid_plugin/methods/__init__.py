"""The papers' methods, in the paper's order, each knowing no toolbox and no other method."""
