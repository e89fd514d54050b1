"""The serving engine: many requests, one model, one thread that owns it.

`engine.py` is the loop, `sequence.py` one request's tokens, `scheduler.py` decides what runs next, `batch_runner.py`
runs it; `waiting_queue.py` is the request queue, `batch_calls.py` batches encoder passes, `counts.py` has the metrics.
"""
