"""Live runs on an H200 server and on two virtual EPYC cores: tables of arms, and what was calibrated beside them.

`live-h200-x1.csv` 78 arms over both bundled traces, three rounds; `-x4.csv` the same with experts of four times
the bytes, two rounds; `live-epyc2-cardless.csv` 11 arms of the engine without a card, seven rounds. No arm was
used in a fit: profiles (`*.toml`) and presets (`*.engine.toml`) come from the calibrator alone.
"""
