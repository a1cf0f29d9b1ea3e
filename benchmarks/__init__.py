"""Measures Edge-ops' operators against other libraries: `python -m benchmarks run`, `python -m benchmarks report`.

Data flows one way: `cells` says what is measured, `problems` makes its inputs and the float64 answer, an adapter in
`arms/` turns a problem into a call, `timing` runs the calls of a cell interleaved, `store` keeps the raw samples, and
`stats`, `targets` and `report` compute every published number from them.
"""
