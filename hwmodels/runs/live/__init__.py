"""Live runs on one H200 server: tables of arms, and the profile, preset and readings calibrated in the same hour.

`live-h200-x1.csv` 78 arms over both bundled traces, three rounds; `-x4.csv` the same with experts of four times
the bytes, two rounds; `-cardless.csv` 22 arms of the engine without a card, one to three rounds. No arm was used
in a fit: profiles (`h200-*.toml`) and presets (`h200-*.engine.toml`) come from the calibrator alone.
"""
