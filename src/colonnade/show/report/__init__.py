"""The page of `colonnade report`: one run, several, or a study."""
