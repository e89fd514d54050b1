"""The engine behind a server: many requests, one model, one thread that owns it.

`engine.py` is the loop, `sequence.py` one request's tokens, `scheduler.py` decides what runs next, `batch_runner.py`
runs it; `waiting_queue.py` is who waits, `batch_calls.py` passes of encoders, `counts.py` what is measured.
"""
