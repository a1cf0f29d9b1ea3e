"""Measures the operators against the code they replace and against other libraries: what ``edge-ops bench`` runs.

Data flows one way: `cells` says what is measured, `problems` makes its inputs and the float64 answer, an adapter in
`arms/` turns a problem into a call, `timing` runs the calls of a cell interleaved, `store` keeps the raw samples, and
`stats`, `tables` and `plots` compute every published number from them.
"""
