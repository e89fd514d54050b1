"""The claims of the lectures as experiments: one file per claim in `claims/`; each can fail, with a verdict."""
