"""Person search: gallery index, feature files, results. Knows no model."""
