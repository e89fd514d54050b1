"""The claims of the lectures, re-run: one file a claim in `claims/`; each can fail, and says so when it does."""
