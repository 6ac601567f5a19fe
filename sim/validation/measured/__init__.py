"""Every shipped measured speed (`hwmodels/runs/measured/`) as a question to the model.

`machines` reads which parts a row ran on, `models` which sizes its weights have, `knobs` what the run chose, and
`questions` puts them together or says what a prediction lacks. Nothing here knows a time.
"""
