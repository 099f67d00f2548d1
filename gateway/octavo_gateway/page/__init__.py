"""The page at `/`: a chat playground and the live view. `assets` holds its files, `feed` what its viewers are sent.

cell_wire asks the scheduler, latency keeps what this gateway measured, view puts both into one JSON per audience.
"""
