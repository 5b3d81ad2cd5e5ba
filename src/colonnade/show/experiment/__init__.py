"""The page of `colonnade experiment`: its figures, its table, and what this machine's clock says."""
