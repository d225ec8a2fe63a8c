"""What other commands than training ask of mmengine: catalogs, checks, explanations."""
