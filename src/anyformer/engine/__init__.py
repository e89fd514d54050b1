"""The engine behind a server: many requests, one model, one thread that owns it.

`engine.py` is the loop; `queue.py` who waits and whose turn it is; `writing.py` one text on its way and `writers.py`
all of them; `calls.py` passes of encoders; `jobs.py` what is asked and answered; `counts.py` what is measured.
"""
