"""The engine behind a server: many requests, one model, one thread that owns it.

`engine.py` is the loop; `queue.py` who waits and whose turn it is; `writing.py` one text on its way, `row_holders.py`
those that have a row and `writers.py` what is done with them; `calls.py` passes of encoders; `jobs.py` what is asked
and answered; `counts.py` what is measured.
"""
