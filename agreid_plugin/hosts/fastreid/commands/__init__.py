"""What other commands than training ask of fast-reid: catalogs, checks, explanations."""
