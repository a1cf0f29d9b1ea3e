"""Qualification: whether the operators of this device have the contract's bits, and a record that says so.

`corpus` lists the cases, `generate` makes their inputs, `layouts` puts those into memory, `run` runs and digests
them, `explain` shows a difference, `levels` goes through the backends and ISA levels of a host, `record` writes and
reads what was found, `compare` holds two records side by side. The golden digests in golden.json come from the
contract's NumPy form and not from this package (docs/qualification.md).
"""
